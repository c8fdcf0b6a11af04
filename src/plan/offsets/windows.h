#pragma once
#include "plan/offsets/cores.h"
/* --- >>windows ---
 * Knows: a plan of many items, and the exact search.  Knows nothing of how the plan was made.
 *
 * In a plan of many items few items lie above a capacity that is a little smaller.  A *window* is
 * the items that live only near such an item, and all items above the capacity at that time.  The
 * exact search places the items of a window again; all other items keep their offsets. */

/* Lists the items of a window around a section, with offset -1, and all items that overlap the
 * window; returns how many.  On each side of the section the window has `lives` times as many
 * begins as items live at the section. */
MEMOI int64_t memoi_window_list(memoi_cores* cores, int64_t section, double lives, int64_t capacity,
                                const memoi_solution* best) {
    const memoi_problem* problem = cores->problem;
    int64_t n = problem->n_items, n_live = 0, n_open = 0, n_covered = 0, n_in = 0;
    int64_t begin, end, i, k;
    for (i = 0; i < n && problem->items[i].begin <= section; i++)
        n_live += problem->items[i].end > section;
    k = (int64_t)(lives * (double)n_live) + 1;
    begin = problem->items[memob_max(0, i - k)].begin;
    end = i + k < n ? problem->items[i + k].begin : problem->n_sections;

    /* The items, and the sections in which they live. */
    memset(cores->covered, 0, (size_t)(problem->n_sections + 1) * sizeof(int32_t));
    for (i = 0; i < n; i++) {
        const memoi_item* item = &problem->items[i];
        int is_over = memoi_item_top(item, best->offsets[i]) > capacity;
        cores->offsets[i] = best->offsets[i];
        if (item->fixed >= 0 || item->begin >= end || item->end <= begin ||
            (!is_over && (item->begin < begin || item->end > end)))
            continue;
        cores->offsets[i] = -1;
        for (k = item->first_range; k < item->first_range + item->n_ranges; k++) {
            cores->covered[problem->ranges[k].begin]++;
            cores->covered[problem->ranges[k].end]--;
        }
    }
    for (k = 0; k <= problem->n_sections; k++) { /* from changes to sections covered before */
        n_open += cores->covered[k];
        cores->covered[k] = (int32_t)n_covered;
        n_covered += n_open > 0;
    }

    /* The items of the window, and what overlaps these items within the capacity. */
    for (i = 0; i < n; i++) {
        const memoi_range* range = &problem->ranges[problem->items[i].first_range];
        for (k = 0; k < problem->items[i].n_ranges &&
                    cores->covered[range[k].begin] == cores->covered[range[k].end];)
            k++;
        cores->is_in[i] = k < problem->items[i].n_ranges && cores->offsets[i] < capacity;
        n_in += cores->is_in[i];
    }
    return n_in;
}

/* Sets the peak of a plan; returns the item that ends there. */
MEMOI int64_t memoi_solution_highest(const memoi_problem* problem, memoi_solution* best) {
    int64_t highest = 0, i;
    for (best->peak = i = 0; i < problem->n_items; i++) {
        int64_t top = memoi_item_top(&problem->items[i], best->offsets[i]);
        if (top > best->peak) highest = i;
        best->peak = memob_max(best->peak, top);
    }
    best->is_optimal = best->peak <= problem->lower_bound;
    return highest;
}

/* Lowers the best plan to the capacity, window by window, the highest item first.  It gives up
 * after a few windows that fail, each twice the window before: items outside of a window may be the
 * reason.  Each window may spend the budget.  A window too large for the budget waits for a larger
 * budget.  0: no memory. */
MEMOI int memoi_windows_attempt(memoi_cores* cores, int64_t capacity, int64_t budget,
                                memoi_effort* effort, memoi_solution* best) {
    const double smallest = 2, largest = 8; /* reach of a window, in lives at its section */
    const memoi_problem* problem = cores->problem;
    int64_t left, n_in, k;
    double reach = smallest, lives;
    for (;;) {
        const memoi_item* item = &problem->items[memoi_solution_highest(problem, best)];
        memoi_verdict verdict;
        left = budget = memob_min(budget, effort->nodes_left);
        if (best->peak <= capacity || reach > largest || left <= 0 ||
            memob_now_s() > cores->deadline)
            return 1;

        /* A section of the item's life, at random.  A window of too many items is halved. */
        k = item->begin +
            (int64_t)(memoi_search_random(&cores->seed) % (uint64_t)(item->end - item->begin));
        lives = reach;
        while ((n_in = memoi_window_list(cores, k, lives, capacity, best)) > MEMOI_SEARCH_ITEMS &&
               lives >= 0.25)
            lives /= 2;
        if (n_in + n_in / 2 > budget) return 1;
        if (!memoi_core_search(cores, capacity, &left, &verdict)) return 0;
        effort->nodes_left -= budget - left;
        for (k = 0; verdict == MEMOI_FOUND && k < problem->n_items; k++)
            if (cores->is_in[k]) best->offsets[k] = cores->offsets[k];
        reach = verdict == MEMOI_FOUND ? smallest : 2 * reach;
    }
}
