/* picture.h - draws one step: the operations of each stream, and device memory below; then
 * device memory by owner.
 *
 * The curve is the memory of this step if every activation is kept.  It has a part that does not
 * depend on the policy, and each layer's activations from its first forward to its last backward
 * operation.  The line below the curve is the memory that the plan reserves. */
#ifndef TRAIN_PICTURE_H
#define TRAIN_PICTURE_H

#include "extras/memo_look.h"
#include "memo_plan.h"

typedef struct step_picture {
    memo_text text;
    const memo_schedule* schedule;
    const memo_simulation* times;
    const memo_step_plan *keep, *plan; /* of keeping every activation, and the one that runs */
    int32_t n_layers;
    double begin_s, span_s;
    double top;
} step_picture;

/* schedule, times, as measured, keep, plan and n_layers are set.  Errors: OUT_OF_HOST_MEMORY,
 * IO. */
memo_status step_picture_write(step_picture p, const char* title, const char* path,
                               memo_error* error);

/* ---- device memory over a micro-batch, by owner ---------------------------------------------- */

/* The bands of owners that a plan keeps, and above them the buffers that live at each request.
 * Errors: OUT_OF_HOST_MEMORY, IO. */
memo_status memory_picture_write(const memo_step_plan* plan, const char* path, memo_error* error);

#endif
