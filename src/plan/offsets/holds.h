#pragma once
#include "memo/base.h"
/* --- >>holds ---
 * Knows: streams and the waits between them.  Knows nothing of offsets. */

enum { MEMOI_HELD_PAIRS = 1 << 25 }; /* beyond, lifetimes are stretched instead */

/* Goes to the next pair that a hold keeps apart, from hold 0 and buffer -1 on; 0: there is none. */
MEMOI int memoi_holds_next(const memo_plan* plan, int64_t* h, int64_t* j) {
    for (; *h < plan->n_holds; (*h)++, *j = -1) {
        const memo_hold* hold = &plan->holds[*h];
        const memo_buffer *held = &plan->buffers[hold->buffer], *other;
        for (*j = memob_max(*j, hold->buffer) + 1; *j < plan->n_buffers; (*j)++) {
            other = &plan->buffers[*j];
            if (other->begin >= hold->until) break;
            if (other->lane == hold->lane && other->begin >= held->end) return 1;
        }
    }
    return 0;
}
