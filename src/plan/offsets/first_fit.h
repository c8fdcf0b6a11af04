#pragma once
#include "plan/offsets/greedy.h"
#include "plan/offsets/neighbors.h"
/* --- >>first fit ---
 * Each item, in its turn, goes into the lowest hole that the items before it have left.  So gaps,
 * fixed items and holds cost no room, unlike in >>greedy, and a run is slower.  Doors:
 * memoi_fit_solve, memoi_fit_run.  Knows nothing of sections.
 *
 * 1. An item that is placed is clear of the items placed before. */

MEMOI int memoi_fit_compare_ranges(const void* a, const void* b) {
    return memob_compare(((const memoi_range*)a)->begin, ((const memoi_range*)b)->begin);
}

/* The lowest offset at which an item is clear of n ranges.  Each round jumps on top of ranges in
 * the way, and drops ranges that end below.  After many rounds the ranges are sorted; then a single
 * further round is enough. */
MEMOI int64_t memoi_fit_lowest(memoi_range* taken, int64_t n, const memoi_item* item) {
    int64_t offset, next = 0, round = 0, n_above;
    do {
        if (++round == MEMOI_TRIES)
            qsort(taken, (size_t)n, sizeof *taken, memoi_fit_compare_ranges);
        offset = next;
        n_above = 0;
        for (int64_t k = 0; k < n; k++) {
            memoi_range here = taken[k];
            next = ((here.begin < next + item->size) & (here.end > next)) ? here.end : next;
            taken[n_above] = here;
            n_above += here.end > next;
        }
        n = n_above;
        if (item->alignment > 1) next = memob_align_up(next, item->alignment);
    } while (next > offset);
    return offset;
}

/* Places the items whose offset is -1, in the order of ranked.  Returns -1; the first item that
 * does not fit within the capacity; or the number of items if time is up.  places: scratch, two an
 * item. */
MEMOI int64_t memoi_fit_run(const memoi_problem* problem, const memoi_ranked* ranked,
                            int64_t capacity, const memoi_deadline* clock, memoi_range* places,
                            int64_t* offsets) {
    const memoi_neighbors* neighbors = problem->neighbors;
    int64_t n = problem->n_items, i;
    memoi_range* taken = places + n;
    for (i = 0; i < n; i++) { /* what is not placed is in no way */
        places[i].begin = memob_max(offsets[i], 0);
        places[i].end = offsets[i] < 0 ? 0 : offsets[i] + problem->items[i].size;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t n_taken = 0;
        const memoi_item* item = &problem->items[i = ranked[k].index];
        if (k % MEMOI_CLOCK == 0 && clock && memoi_deadline_is_over(clock)) return n;
        if (offsets[i] >= 0) continue;
        for (int64_t l = neighbors->first[i]; l < neighbors->first[i + 1]; l++) {
            taken[n_taken] = places[neighbors->list[l]];
            n_taken += taken[n_taken].end > 0;
        }
        places[i].begin = offsets[i] = memoi_fit_lowest(taken, n_taken, item);
        places[i].end = offsets[i] + item->size;
        for (int64_t l = 0; l < n_taken; l++) /* 1 */
            MEMO_ASSERT(taken[l].begin >= places[i].end || taken[l].end <= places[i].begin);
        if (places[i].end - item->spare > capacity) return i;
    }
    return -1;
}

/* First fit in the orders of greedy: one in each round if the problem is easy and not large, all at
 * once in round -1, and in round 0 if the problem is not easy.  Takes plans that are lower.  Does
 * nothing if the lists of neighbors are too long. */
MEMOI memo_status memoi_fit_solve(const memoi_problem* problem, int round, int64_t target,
                                  memoi_effort* effort, memoi_solution* best, memo_error* error) {
    const int is_easy = memoi_problem_is_easy(problem);
    const int is_one = is_easy && round >= 0;
    const int first = (int)memob_max(round, 0), last = is_one ? round + 1 : MEMOI_GREEDY_RUNS;
    int ok;
    memoi_made listed;
    memoi_greedy greedy;
    memoi_range* places;

    /* In rounds, and in problems that are not easy, once. */
    if (MEMOI_WITHOUT(first_fit) || last > MEMOI_GREEDY_RUNS || (!is_easy && round > 0) ||
        (is_one && memoi_problem_is_large(problem)))
        return MEMO_STATUS_OK;
    listed = memoi_neighbors_list(problem);
    if (listed == MEMOI_UNFIT) return MEMO_STATUS_OK;
    ok = memoi_greedy_create(&greedy, problem, &effort->clock);
    places = MEMOB_ARRAY(&greedy.arrays, memoi_range, 2 * problem->n_items);
    ok = ok && listed && !greedy.arrays.failed;
    for (int run = first; ok && run < last && best->peak > target; run++) {
        memoi_greedy_order_items(problem, (memoi_item_order)run, NULL, greedy.ranked);
        for (int64_t i = 0; i < problem->n_items; i++) greedy.offsets[i] = problem->items[i].fixed;
        if (memoi_fit_run(problem, greedy.ranked, INT64_MAX, greedy.clock, places,
                          greedy.offsets) >= 0)
            break; /* time is up */
        memoi_solution_offer(problem, greedy.offsets, best);
    }
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "first fit");
}
