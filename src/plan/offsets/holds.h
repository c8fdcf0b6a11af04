#pragma once
#include "plan/offsets/problem.h"
/* --- >>holds ---
 * Lists the pairs of items that may not share bytes although they live at different times, because
 * one stream has not waited for another.  Knows nothing of offsets.
 *
 * Lowest offset and sweeps let an item live until the last item held against it begins.  Ejections
 * look at the pairs.  extras/memo_pack.h turns pairs into sections, which the exact search takes.
 *
 * 1. The earlier item of a pair comes first. */

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

/* Adds the pairs that holds keep apart to a problem.  Returns 1; 0 without memory; -1 if pairs are
 * too many. */
MEMOI int memoi_problem_add_holds(memoi_problem* problem, const memo_plan* plan) {
    int64_t capacity = 0;
    int64_t* item_of = (int64_t*)memob_calloc(plan->n_buffers, sizeof(int64_t));
    int ok = item_of != NULL;
    for (int64_t i = 0; ok && i < plan->n_buffers; i++) item_of[i] = -1;
    for (int64_t i = 0; ok && i < problem->n_items; i++) item_of[problem->items[i].buffer] = i;
    for (int64_t h = 0, j = -1; ok > 0 && memoi_holds_next(plan, &h, &j);) {
        const int64_t i = item_of[plan->holds[h].buffer], k = 2 * problem->n_held;
        if (i < 0 || item_of[j] < 0) continue;
        ok = problem->n_held == MEMOI_HELD_PAIRS
                 ? -1
                 : memob_reserve(&problem->held, &capacity, k + 2, sizeof(int32_t));
        if (ok <= 0) break;
        MEMO_ASSERT(i < item_of[j]); /* 1 */
        problem->held[k] = (int32_t)i;
        problem->held[k + 1] = (int32_t)item_of[j];
        problem->n_held++;
        problem->items[i].until =
            memob_max(problem->items[i].until, problem->items[item_of[j]].begin + 1);
    }
    MEMO_FREE(item_of);
    return ok;
}
