#pragma once
#include "memo/base.h"
/* ---- >>list -------------------------------------------------------------------------------------
 * Knows: visits.  Knows nothing of memory.
 *
 * A step is everything between two updates, one update included.  A visit is the computation of one
 * pass of one layer; with slices or places in flight, of one step of the engine of rows.  A list is
 * the visits of a step, in the order in which the trainer makes them. */

typedef enum memob_pass {
    MEMOB_FORWARD = 0,
    MEMOB_BACKWARD,
    MEMOB_UPDATE,
    MEMOB_N_PASSES
} memob_pass;

typedef struct memob_visit {
    int32_t pass, layer; /* layer: of rows a step */
    int32_t odd;         /* of rows: the rounding buffer of the step */
    int32_t forward;     /* of rows, of a backward: the visit that is its forward */
    int32_t ends;        /* of rows: of a turn whose backward begins with the loss */
} memob_visit;

/* The place of a turn of memo_swap_desc.order, or the chunk of one of memob_states_desc.turns: a
 * forward or a backward. */
MEMOI int32_t memob_turn_of(int32_t turn) { return turn < 0 ? -1 - turn : turn; }
