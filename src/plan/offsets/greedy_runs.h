#pragma once
#include "plan/offsets/items.h"
#include "plan/offsets/cover.h"
#include "plan/offsets/lowest_offset.h"
#include "plan/offsets/sweep.h"
#include "plan/offsets/first_fit.h"
/* --- >>greedy runs ---
 * Knows: both rules, and orders.  Knows nothing of the exact search. */

/* First fit from now on, if the lists of neighbors are not too long.  0: no memory. */
MEMOI int memoi_greedy_fit(memoi_greedy* greedy) {
    int listed = memoi_neighbors_list(greedy->problem);
    greedy->is_fit = listed > 0;
    if (listed > 0)
        greedy->places = MEMOB_ARRAY(&greedy->arrays, memoi_range, 2 * greedy->problem->n_items);
    return listed != 0 && !greedy->arrays.failed;
}

/* Places all items in the order of greedy->ranked.  Returns 0 if time is up. */
MEMOI int memoi_greedy_run(memoi_greedy* greedy) {
    const memoi_problem* problem = greedy->problem;
    if (!greedy->is_fit) return memoi_plateau_run(greedy);
    for (int64_t i = 0; i < problem->n_items; i++) greedy->offsets[i] = problem->items[i].fixed;
    return memoi_fit_run(problem, greedy->ranked, INT64_MAX, greedy->deadline, greedy->places,
                         greedy->offsets) < 0;
}

/* Tries one order after the other until a plan meets target or last_begin is over.  A run is given
 * up as soon as it would last too long. */
MEMOI void memoi_greedy_try(memoi_greedy* greedy, int64_t target, double last_begin,
                            memoi_solution* best) {
    static const memoi_item_order orders[] = {MEMOI_ORDER_LIFETIME, MEMOI_ORDER_AREA,
                                              MEMOI_ORDER_LOAD, MEMOI_ORDER_SIZE,
                                              MEMOI_ORDER_START};
    for (int k = 0; k < (int)(sizeof orders / sizeof *orders); k++) {
        if (best->peak <= target || memob_now_s() > last_begin) break;
        if (orders[k] == MEMOI_ORDER_LOAD)
            memoi_greedy_order_by_load(greedy);
        else
            memoi_greedy_order_items(greedy->problem, orders[k], NULL, greedy->ranked);
        if (memoi_greedy_run(greedy)) memoi_solution_offer(greedy->problem, greedy->offsets, best);
    }
}

/* Repeats greedy runs.  What ends above the target comes earlier in the next order, by a random
 * step.  ("Squeaky wheel" optimization, Joslin and Clements 1999.)  In the first run, what meets
 * full sections comes first. */
MEMOI void memoi_greedy_repeat(memoi_greedy* greedy, int64_t target, memoi_solution* best) {
    const memoi_problem* problem = greedy->problem;
    int64_t n = problem->n_items;
    uint64_t random = 0;
    memoi_greedy_order_by_load(greedy);
    for (int64_t k = 0; k < n; k++) {
        greedy->ranked[k].first = 1 - (double)k / (double)n;
        greedy->ranked[k].second = 0;
    }
    for (int64_t run = 0; run < MEMOI_TRIES && best->peak > target && memoi_greedy_run(greedy);
         run++) {
        memoi_solution_offer(problem, greedy->offsets, best);
        for (int64_t k = 0; k < n; k++) {
            memoi_ranked* ranked = &greedy->ranked[k];
            if (memoi_item_top(&problem->items[ranked->index], greedy->offsets[ranked->index]) >
                target)
                ranked->first += 0.05 * memoi_search_random_real(&random);
        }
        qsort(greedy->ranked, (size_t)n, sizeof(memoi_ranked), memoi_greedy_compare_ranked);
    }
}

/* Two sweeps; only the first if its plan meets target, or last_begin is over.  0: no memory. */
MEMOI int memoi_greedy_sweep(memoi_greedy* greedy, int64_t target, double last_begin,
                             memoi_solution* best) {
    static const double near[] = {0, 0.125}; /* queues; lives of any length */
    for (int k = 0; k < 2; k++) {
        if (k > 0 && (best->peak <= target || memob_now_s() > last_begin)) break;
        if (!memoi_sweep_run(greedy->problem, near[k], greedy->offsets)) return 0;
        memoi_solution_offer(greedy->problem, greedy->offsets, best);
    }
    return 1;
}

/* Greedy runs until a plan meets target or time is up.  There is always a plan: a large problem
 * begins with sweeps, and a small problem ends with sweeps if nothing is found.  Lowest offset
 * comes before first fit; a problem that is not easy gets first fit alone, repeated.  After
 * last_begin no order is begun, though a run, and repeated runs, may go on to the deadline. */
MEMOI memo_status memoi_greedy_solve(const memoi_problem* problem, int64_t target,
                                     double last_begin, double deadline, memoi_solution* best,
                                     memo_error* error) {
    const int is_large = problem->n_items > MEMOI_SMALL_ITEMS && best->peak == INT64_MAX;
    memoi_greedy greedy;
    int ok = memoi_greedy_create(&greedy, problem, deadline);
    if (ok && is_large) ok = memoi_greedy_sweep(&greedy, target, last_begin, best);
    if (ok && !memoi_problem_is_easy(problem) && memob_now_s() <= last_begin)
        ok = memoi_greedy_fit(&greedy);
    if (ok && !MEMOI_WITHOUT(orders)) memoi_greedy_try(&greedy, target, last_begin, best);
    if (ok && best->peak > target && memob_now_s() <= last_begin) {
        if (greedy.is_fit && !MEMOI_WITHOUT(repeat)) {
            memoi_greedy_repeat(&greedy, target, best);
        } else if (!greedy.is_fit && !MEMOI_WITHOUT(first_fit)) {
            ok = memoi_greedy_fit(&greedy);
            if (ok && greedy.is_fit) memoi_greedy_try(&greedy, target, last_begin, best);
        }
    }
    if (ok && best->peak == INT64_MAX) ok = memoi_greedy_sweep(&greedy, target, last_begin, best);
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "the greedy planner");
}
