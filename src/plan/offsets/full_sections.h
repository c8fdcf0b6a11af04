#pragma once
#include "plan/offsets/rounds.h"
/* --- >>full sections ---
 * Knows: the items that live in full sections, and lowest offset.  Knows nothing of capacities.
 *
 * Often few sections are nearly as full as the bound.  The items that live there are planned alone.
 * All other items go around these by lowest offset, because there is room elsewhere. */

typedef struct memoi_around {
    memoi_greedy greedy;
    const int64_t* offsets; /* of placed items */
    memob_keyed* ahead;     /* placed items by offset; items before first have been reached */
    char* is_ahead;         /* of an item: placed, but not reached */
    int64_t first, n_ahead;
} memoi_around;

/* The lowest item ahead, by place in the list, that lives in sections [begin, end) and lies below
 * top; -1: none. */
MEMOI int64_t memoi_around_lowest(const memoi_around* around, int64_t begin, int64_t end,
                                  int64_t top) {
    for (int64_t k = around->first; k < around->n_ahead && around->ahead[k].key < top; k++) {
        const memoi_item* item = &around->greedy.problem->items[around->ahead[k].index];
        if (around->is_ahead[around->ahead[k].index] && item->begin < end && item->end > begin)
            return k;
    }
    return -1;
}

/* As memoi_plateau_step: an item that is reached, or the first that fits the lowest plateau below
 * all that is ahead; a few are tried.  If there is none, the plateau rises, but not into what is
 * ahead. */
MEMOI int memoi_around_step(memoi_around* around) {
    memoi_greedy* greedy = &around->greedy;
    int64_t at = memoi_plateau_lowest(greedy), top = memoi_plateau_top(greedy, at), reached;
    const int32_t end = greedy->plateau[at].end;
    int32_t passed[MEMOI_TRIES], rank = INT32_MAX, n_passed = 0;
    const memoi_item* item = NULL;
    int64_t i = 0;

    /* All that is below top has been reached, so an item at top lies on this plateau wholly. */
    reached = memoi_around_lowest(around, at, end, top + 1);
    if (reached >= 0) {
        item = &greedy->problem->items[around->ahead[reached].index];
        around->is_ahead[around->ahead[reached].index] = 0;
        memoi_plateau_cover(greedy, at, item->begin, item->end, top + item->size);
        while (around->first < around->n_ahead &&
               !around->is_ahead[around->ahead[around->first].index])
            around->first++;
        return 1;
    }

    /* What is too large is off the tree for this step. */
    for (; n_passed < MEMOI_TRIES; passed[n_passed++] = rank) {
        rank = memoi_unplaced_find(&greedy->unplaced, (int32_t)at, end);
        if (rank == INT32_MAX) break;
        item = &greedy->problem->items[i = greedy->ranked[rank].index];
        top = memob_align_up(memoi_plateau_top(greedy, at), item->alignment);
        memoi_unplaced_set(&greedy->unplaced, greedy->unplaced.place_of[i], INT32_MAX);
        if (memoi_around_lowest(around, item->begin, item->end, top + item->size) < 0) break;
    }
    rank = n_passed < MEMOI_TRIES ? rank : INT32_MAX;
    while (n_passed-- > 0)
        memoi_unplaced_set(&greedy->unplaced,
                           greedy->unplaced.place_of[greedy->ranked[passed[n_passed]].index],
                           passed[n_passed]);
    if (rank < INT32_MAX) {
        greedy->offsets[i] = top;
        memoi_plateau_cover(greedy, at, item->begin, item->end, top + item->size);
        return 1;
    }
    top = memoi_plateau_next(greedy, at);
    reached = memoi_around_lowest(around, at, end, top);
    memoi_plateau_raise(greedy, at, reached < 0 ? top : around->ahead[reached].key);
    return 0;
}

/* Places all items by an order, around the items in the set, which keep their offsets.  Returns 0
 * as soon as the deadline cannot be met. */
MEMOI int memoi_around_run(memoi_around* around, const char* is_in_set) {
    memoi_greedy* greedy = &around->greedy;
    int64_t n = greedy->problem->n_items, n_placed, step;
    double begin = memob_now_s();
    memoi_plateau_begin(greedy);
    around->first = 0;
    for (int64_t i = 0; i < n; i++) {
        around->is_ahead[i] = is_in_set[i];
        if (!is_in_set[i]) continue;
        greedy->offsets[i] = around->offsets[i];
        memoi_unplaced_set(&greedy->unplaced, greedy->unplaced.place_of[i], INT32_MAX);
    }
    for (step = 1, n_placed = 0; n_placed < n; step++) {
        if (step % MEMOI_CLOCK == 0 && memoi_greedy_end(begin, n_placed, n) > greedy->deadline)
            return 0;
        n_placed += memoi_around_step(around);
    }
    return 1;
}

/* Lowers the best plan of an easy problem.  A section is full if its bound is above so many percent
 * of the plan's bound.  The items of full sections come first, with a share of the effort.  Then
 * all other items go around these, by one order after the other, with a share of the time that is
 * left.  Does nothing if most items live in full sections. */
MEMOI memo_status memoi_full_solve(const memoi_problem* problem, int percent, double share,
                                   int64_t goal, memoi_effort* effort, memoi_solution* best,
                                   int64_t* bound, memo_error* error) {
    static const memoi_item_order orders[] = {MEMOI_ORDER_AREA, MEMOI_ORDER_SIZE,
                                              MEMOI_ORDER_LIFETIME, MEMOI_ORDER_SECTIONS};
    const int64_t n = problem->n_items, level = problem->lower_bound / 100 * percent;
    memo_status status = MEMO_STATUS_OK;
    int64_t peak = 0, n_full = 0;
    double now;
    memoi_around around;
    memoi_solution inner;
    memoi_effort own;
    char* is_in_set;
    int64_t* before; /* a section: how many are full */
    int ok = memoi_greedy_create(&around.greedy, problem, effort->deadline);
    memob_arrays* a = &around.greedy.arrays;
    memoi_solution_begin(&inner, MEMOB_ARRAY(a, int64_t, n));
    is_in_set = (char*)memob_arrays_add(a, n, 1);
    before = MEMOB_ARRAY(a, int64_t, problem->n_sections + 1);
    around.ahead = MEMOB_ARRAY(a, memob_keyed, n);
    around.is_ahead = (char*)memob_arrays_add(a, n, 1);
    if (!ok || a->failed) {
        status = memob_no_memory(error, "full sections");
        goto done;
    }

    /* The items of full sections. */
    for (int64_t i = 0; i < problem->n_sections; i++)
        before[i + 1] = before[i] + (problem->section_bounds[i] > level);
    for (int64_t i = 0; i < n; i++) {
        is_in_set[i] = before[problem->items[i].begin] < before[problem->items[i].end];
        n_full += is_in_set[i];
    }
    if (n_full > n / 2) goto done;

    /* The plan of these items, and all other items around it. */
    memcpy(inner.offsets, best->offsets, (size_t)n * sizeof(int64_t));
    own = memoi_effort_take(effort, share);
    status =
        memoi_search_part_at(problem, 0, n, is_in_set, goal, &own, &inner, bound, &peak, error);
    effort->nodes_left += own.nodes_left;
    around.offsets = inner.offsets;
    for (int64_t i = around.n_ahead = 0; i < n; i++) {
        if (!is_in_set[i]) continue;
        around.ahead[around.n_ahead].key = inner.offsets[i];
        around.ahead[around.n_ahead++].index = i;
    }
    qsort(around.ahead, (size_t)around.n_ahead, sizeof(memob_keyed), memob_keyed_compare);
    now = memob_now_s();
    around.greedy.deadline = now + share * (effort->deadline - now);
    for (size_t k = 0; !status && k < sizeof orders / sizeof *orders && peak < best->peak; k++) {
        if (memob_now_s() > around.greedy.deadline) break;
        memoi_greedy_order_items(problem, orders[k], NULL, around.greedy.ranked);
        if (!memoi_around_run(&around, is_in_set)) break;
        memoi_solution_offer(problem, around.greedy.offsets, best);
    }
done:
    memob_arrays_free(a);
    return status;
}
