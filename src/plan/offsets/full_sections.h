#pragma once
#include "plan/offsets/greedy.h"
#include "plan/offsets/exact_search.h"
/* ---- >>full sections ----------------------------------------------------------------------------
 * The engine for many items.  Door: memoi_full_solve.  Knows nothing of gaps and fixed items.
 *
 * Often few sections are nearly as full as the bound.  The items that live there are planned alone,
 * by greedy and the exact search.  All other items go around these by lowest offset, because there
 * is room elsewhere.
 *
 * 1. A plateau that rises to an item placed before lies under the whole item. */

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
        MEMO_ASSERT(around->ahead[reached].key == top && item->begin >= at && /* 1 */
                    item->end <= end);
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
        memoi_unplaced_set(&greedy->unplaced, i, INT32_MAX);
        if (memoi_around_lowest(around, item->begin, item->end, top + item->size) < 0) break;
    }
    rank = n_passed < MEMOI_TRIES ? rank : INT32_MAX;
    while (n_passed-- > 0)
        memoi_unplaced_set(&greedy->unplaced, greedy->ranked[passed[n_passed]].index,
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
        memoi_unplaced_set(&greedy->unplaced, i, INT32_MAX);
    }
    for (step = 1, n_placed = 0; n_placed < n; step++) {
        if (step % MEMOI_CLOCK == 0 && memoi_greedy_is_late(greedy, begin, n_placed)) return 0;
        n_placed += memoi_around_step(around);
    }
    return 1;
}

/* Marks the items of sections whose bound is above so many percent of the plan's bound; returns how
 * many items there are.  before: scratch, one more than sections. */
MEMOI int64_t memoi_full_mark(const memoi_problem* problem, int percent, char* is_in_set,
                              int64_t* before) {
    const int64_t level = problem->lower_bound / 100 * percent;
    int64_t n_full = 0;
    for (int64_t i = 0; i < problem->n_sections; i++)
        before[i + 1] = before[i] + (problem->section_bounds[i] > level);
    for (int64_t i = 0; i < problem->n_items; i++) {
        is_in_set[i] = before[problem->items[i].begin] < before[problem->items[i].end];
        n_full += is_in_set[i];
    }
    return n_full;
}

/* Plans the items in the set alone, from their offsets on, with so many nodes; raises the bound of
 * the whole.  0: no memory, with a message. */
MEMOI memo_status memoi_full_inner(const memoi_problem* problem, const char* is_in_set,
                                   int64_t target, memoi_effort* own, int64_t* offsets,
                                   int64_t* bound, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memoi_solution inner;
    memoi_problem part;
    int64_t* inner_offsets = (int64_t*)memob_calloc(problem->n_items, sizeof(int64_t));
    if (!inner_offsets || !memoi_problem_pick(problem, is_in_set, NULL, 0, &part)) {
        MEMO_FREE(inner_offsets);
        return memob_no_memory(error, "full sections");
    }
    memoi_solution_begin(&inner, &part, inner_offsets);
    for (int64_t i = 0; i < part.n_items; i++) inner.offsets[i] = offsets[part.items[i].buffer];
    memoi_solution_highest(&part, &inner);
    if (inner.peak > target)
        status =
            memoi_greedy_solve(&part, 0, MEMOI_GREEDY_RUNS, target, &own->clock, &inner, error);
    memoi_effort_spend(own, MEMOI_GREEDY_RUNS * part.n_items / MEMOI_PLACED_NODE);
    if (!status && inner.peak > target && !memoi_exact_solve(&part, target, own, &inner))
        status = memob_no_memory(error, "full sections");
    for (int64_t i = 0; !status && i < part.n_items; i++)
        offsets[part.items[i].buffer] = inner.offsets[i];
    *bound = memob_max(*bound, inner.bound);
    MEMO_FREE(inner_offsets);
    memoi_problem_free(&part);
    return status;
}

/* Lowers the best plan of an easy problem.  The items of sections that are full up to some percent
 * come first, with so many nodes.  Then all other items go around these, by one order after the
 * other.  Does nothing if nearly all items live in full sections. */
MEMOI memo_status memoi_full_solve(const memoi_problem* problem, int percent, int64_t target,
                                   int64_t n_nodes, memoi_effort* effort, memoi_solution* best,
                                   memo_error* error) {
    static const memoi_item_order orders[] = {MEMOI_ORDER_AREA, MEMOI_ORDER_SIZE,
                                              MEMOI_ORDER_LIFETIME, MEMOI_ORDER_SECTIONS};
    const int64_t n = problem->n_items;
    memo_status status = MEMO_STATUS_OK;
    int64_t peak = 0;
    memoi_around around;
    memoi_effort own = memoi_effort_take(effort, n_nodes);
    const int ok = memoi_greedy_create(&around.greedy, problem, &effort->clock);
    memob_arrays* a = &around.greedy.arrays;
    int64_t* offsets = MEMOB_ARRAY(a, int64_t, n);
    int64_t* before = MEMOB_ARRAY(a, int64_t, problem->n_sections + 1);
    char* is_in_set = (char*)memob_arrays_add(a, n, 1);
    around.ahead = MEMOB_ARRAY(a, memob_keyed, n);
    around.is_ahead = (char*)memob_arrays_add(a, n, 1);
    around.offsets = offsets;
    around.n_ahead = 0;
    if (!ok || a->failed) status = memob_no_memory(error, "full sections");

    /* The plan of the items of full sections. */
    if (status || memoi_full_mark(problem, percent, is_in_set, before) > n / 4 * 3) goto done;
    memcpy(offsets, best->offsets, (size_t)n * sizeof(int64_t));
    status = memoi_full_inner(problem, is_in_set, target, &own, offsets, &best->bound, error);
    memoi_effort_spend(effort, own.n_nodes);

    /* All other items around it. */
    for (int64_t i = 0; !status && i < n; i++) {
        if (!is_in_set[i]) continue;
        around.ahead[around.n_ahead].key = offsets[i];
        around.ahead[around.n_ahead++].index = i;
        peak = memob_max(peak, memoi_item_top(&problem->items[i], offsets[i]));
    }
    qsort(around.ahead, (size_t)around.n_ahead, sizeof(memob_keyed), memob_keyed_compare);
    for (size_t k = 0; !status && k < sizeof orders / sizeof *orders && peak < best->peak; k++) {
        memoi_greedy_order_items(problem, orders[k], NULL, around.greedy.ranked);
        if (memoi_deadline_is_over(&effort->clock) || !memoi_around_run(&around, is_in_set)) break;
        memoi_effort_spend(effort, n / MEMOI_PLACED_NODE);
        memoi_solution_offer(problem, around.greedy.offsets, best);
    }
done: /* after a failure as well */
    memob_arrays_free(a);
    return status;
}
