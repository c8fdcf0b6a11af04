#pragma once
#include "plan/offsets/greedy.h"
/* --- >>first fit ---
 * Knows: an order and the items placed so far.  Knows nothing of sections.
 *
 * Each item, in its turn, goes into the lowest hole that the items before it have left. */

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
                            int64_t capacity, double deadline, memoi_range* places,
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
        if (k % MEMOI_CLOCK == 0 && memob_now_s() > deadline) return n;
        if (offsets[i] >= 0) continue;
        for (int64_t l = neighbors->first[i]; l < neighbors->first[i + 1]; l++) {
            taken[n_taken] = places[neighbors->list[l]];
            n_taken += taken[n_taken].end > 0;
        }
        places[i].begin = offsets[i] = memoi_fit_lowest(taken, n_taken, item);
        places[i].end = offsets[i] + item->size;
        if (places[i].end - item->spare > capacity) return i;
    }
    return -1;
}
