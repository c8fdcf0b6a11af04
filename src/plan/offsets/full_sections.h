#pragma once
#include "plan/offsets/greedy.h"
#include "plan/offsets/exact_search.h"
/* ---- >>full sections ----------------------------------------------------------------------------
 * The engine for many items of easy problems.  Door: memoi_full_solve, with a percent, of which the
 * loop tries several.  Knows nothing of gaps, holds and fixed items.
 *
 * Often few sections are nearly as full as the bound.  The items that live there are planned alone,
 * by greedy and the exact search; a bound of these items bounds the whole.  All other items go
 * around these by lowest offset. */

/* Plans the items in the set alone, from their offsets on; raises the bound of the whole. */
MEMOI memo_status memoi_full_inner(const memoi_problem* problem, const char* is_in_set,
                                   int64_t target, memoi_effort* own, int64_t* offsets,
                                   int64_t* bound, memo_error* error) {
    memoi_inner inner;
    const memoi_problem* part = &inner.part;
    int n_runs;
    memo_status status = memoi_inner_begin(&inner, problem, is_in_set, offsets, error);
    if (status) return status;
    n_runs = memoi_problem_is_large(part) ? 1 : MEMOI_GREEDY_RUNS;
    status = memoi_greedy_solve(part, 0, n_runs, target, &own->clock, &inner.best, error);
    memoi_effort_spend(own, n_runs * part->n_items / MEMOI_PLACED_NODE);
    if (!status)
        status = memoi_exact_solve(part, target, memoi_exact_first(part, own->nodes_left), own,
                                   &inner.best, error);
    *bound = memob_max(*bound, inner.best.bound);
    memoi_inner_end(&inner, offsets);
    return status;
}

/* Lowers the best plan of an easy problem.  The items of sections that are full up to some percent
 * of the bound come first, with so many nodes.  Does nothing if nearly all items live there. */
MEMOI memo_status memoi_full_solve(const memoi_problem* problem, int percent, int64_t target,
                                   int64_t n_nodes, memoi_effort* effort, memoi_solution* best,
                                   memo_error* error) {
    const int64_t n = problem->n_items, n_run = n / MEMOI_PLACED_NODE; /* nodes of an order */
    const int64_t n_orders = memob_min(2 + n_nodes / (2 * n_run + 1), 4);
    const int64_t bound = problem->lower_bound;
    const int64_t level = bound / 100 * percent + bound % 100 * percent / 100; /* no overflow */
    memo_status status = MEMO_STATUS_OK;
    int64_t peak = 0, n_full = 0;
    memoi_greedy greedy;
    memoi_effort own = memoi_effort_take(effort, n_nodes);
    const int ok = memoi_greedy_create(&greedy, problem, &effort->clock);
    memob_arrays* a = &greedy.arrays;
    int64_t* offsets = greedy.offsets; /* as scratch */
    char* is_in_set = (char*)memob_arrays_add(a, n, 1);
    if (!ok || a->failed) status = memob_no_memory(error, "full sections");
    for (int64_t i = 0; !status && i < n; i++)
        n_full += is_in_set[i] = problem->items[i].load > level;
    if (status || n_full > n / 4 * 3) goto done;
    memcpy(offsets, best->offsets, (size_t)n * sizeof(int64_t));
    status = memoi_full_inner(problem, is_in_set, target, &own, offsets, &best->bound, error);
    memoi_effort_spend(effort, own.n_nodes);

    /* All other items around it. */
    for (int64_t i = 0; !status && i < n; i++) {
        if (!is_in_set[i]) continue;
        greedy.ahead[greedy.n_ahead++] = memob_keyed_of(offsets[i], i);
        peak = memob_max(peak, memoi_item_top(&problem->items[i], offsets[i]));
    }
    qsort(greedy.ahead, (size_t)greedy.n_ahead, sizeof(memob_keyed), memob_keyed_compare);
    for (int k = 0; !status && k < n_orders && peak < best->peak; k++) { /* AREA to SECTIONS */
        memoi_greedy_order_items(problem, (memoi_item_order)((int)MEMOI_ORDER_AREA + k), NULL,
                                 greedy.ranked);
        if (memoi_deadline_is_over(&effort->clock) || !memoi_plateau_run(&greedy)) break;
        memoi_effort_spend(effort, n_run);
        memoi_solution_offer(problem, greedy.offsets, best);
    }
done: /* after a failure as well */
    memob_arrays_free(a);
    return status;
}
