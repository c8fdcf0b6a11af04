#pragma once
#include "memo/text.h"
#include "plan/offsets/lowest_offset.h"
#include "plan/offsets/sweep.h"
/* --- >>greedy runs ---
 * The door of greedy: memoi_greedy_solve runs sweeps, and lowest offset in several orders, until a
 * plan meets the target.  Knows nothing of searches. */

enum { MEMOI_GREEDY_RUNS = 5 };

/* Ranks the items for a run of lowest offset. */
MEMOI void memoi_greedy_rank(memoi_greedy* greedy, int run) {
    static const memoi_item_order orders[] = {MEMOI_ORDER_LIFETIME, MEMOI_ORDER_AREA,
                                              MEMOI_ORDER_LOAD, MEMOI_ORDER_SIZE,
                                              MEMOI_ORDER_START};
    if (orders[run] == MEMOI_ORDER_LOAD)
        memoi_greedy_order_by_load(greedy);
    else
        memoi_greedy_order_items(greedy->problem, orders[run], NULL, greedy->ranked);
}

/* Two sweeps; only the first if its plan meets the target, or time is up.  0: no memory. */
MEMOI int memoi_greedy_sweep(const memoi_greedy* greedy, int64_t target, memoi_solution* best) {
    static const double near[] = {0, 0.125}; /* queues; lives of any length */
    for (int k = 0; k < 2; k++) {
        if (k > 0 && (best->peak <= target || memoi_deadline_is_over(greedy->clock))) break;
        if (!memoi_sweep_run(greedy->problem, near[k], greedy->offsets)) return 0;
        memoi_solution_offer(greedy->problem, greedy->offsets, best);
    }
    return 1;
}

/* Runs number first to last - 1, until a plan meets the target or time is up.  There is always a
 * plan: a problem that is not small begins with sweeps, and one for which time was too short ends
 * with sweeps.  A run is given up as soon as it would last too long. */
MEMOI memo_status memoi_greedy_solve(const memoi_problem* problem, int first, int last,
                                     int64_t target, const memoi_deadline* clock,
                                     memoi_solution* best, memo_error* error) {
    memoi_greedy greedy;
    int ok = memoi_greedy_create(&greedy, problem, clock);
    if (ok && first == 0 && problem->n_items > MEMOI_SMALL_ITEMS)
        ok = memoi_greedy_sweep(&greedy, target, best);
    for (int run = first; ok && run < last && best->peak > target; run++) {
        if (MEMOI_WITHOUT(orders) || memoi_deadline_is_over(clock)) break;
        memoi_greedy_rank(&greedy, run);
        if (memoi_plateau_run(&greedy)) memoi_solution_offer(problem, greedy.offsets, best);
    }
    if (ok && best->peak == INT64_MAX) ok = memoi_greedy_sweep(&greedy, target, best);
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "the greedy planner");
}
