#pragma once
#include "memo/base.h"
/* ---- >>list -------------------------------------------------------------------------------------
 * Knows: visits.  Knows nothing of memory.
 *
 * A step is everything between two updates, one update included.  A visit is the computation of one
 * pass of one layer; with slices or places in flight, of one step of the engine of rows.  A list is
 * the visits of a step, in the order in which the trainer makes them. */

typedef enum memob_pass { MEMOB_FORWARD = 0, MEMOB_BACKWARD, MEMOB_UPDATE } memob_pass;

typedef struct memob_visit {
    int32_t pass, layer; /* layer: of rows a step */
    int32_t odd;         /* of rows: the rounding buffer of the step */
    int32_t forward;     /* of rows, of a backward: the visit that is its forward */
    int32_t ends;        /* of rows: of a turn whose backward begins with the loss */
} memob_visit;
