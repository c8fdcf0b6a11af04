#pragma once
#include "memo/base.h"
/* ---- >>list -------------------------------------------------------------------------------------
 * Knows: visits, and which of them a step makes.  Knows nothing of memory.
 *
 * A step is everything between two updates, one update included.  A visit is the computation of one
 * pass of one layer, for one slice of one micro-batch.  A list is the visits of a step, in the
 * order in which the trainer makes them. */

typedef enum memob_pass {
    MEMOB_FORWARD = 0,
    MEMOB_BACKWARD,
    MEMOB_WEIGHTS, /* gradients of weights, in a turn of their own */
    MEMOB_UPDATE
} memob_pass;

typedef struct memob_visit {
    int32_t pass, layer;
    int32_t slice, micro_batch; /* UPDATE: 0 */
    int32_t is_deferred;        /* UPDATE: before the layer's first FORWARD */
} memob_visit;

/* Which visits of the list a step makes. */
typedef enum memob_list_kind {
    MEMOB_LIST_EVERY = 0,  /* all: a step behind another step */
    MEMOB_LIST_FIRST,      /* no deferred updates: there are no gradients yet */
    MEMOB_LIST_PENDING,    /* deferred updates alone */
    MEMOB_LIST_EVALUATION, /* forwards of micro-batch 0 alone */
    MEMOB_LIST_BATCH,      /* no updates at all: a micro-batch that is not the last */
    MEMOB_LIST_UPDATE      /* updates that are not deferred, alone */
} memob_list_kind;

MEMOI int memoi_list_has(const memob_visit* visit, int32_t kind) {
    switch (kind) {
    case MEMOB_LIST_FIRST: return !visit->is_deferred;
    case MEMOB_LIST_PENDING: return visit->is_deferred;
    case MEMOB_LIST_EVALUATION: return visit->pass == MEMOB_FORWARD && !visit->micro_batch;
    case MEMOB_LIST_BATCH: return visit->pass != MEMOB_UPDATE;
    case MEMOB_LIST_UPDATE: return visit->pass == MEMOB_UPDATE && !visit->is_deferred;
    default: return 1;
    }
}
