#pragma once
#include "plan/offsets/problem.h"
/* --- >>neighbors ---
 * Lists for each item the items that conflict with it (door: memoi_neighbors_list), and finds room
 * beside those that are fixed, which lead the list.  Knows nothing of orders.
 *
 * 1. Each list has as many items as were counted for it.
 * 2. The fixed items of a list come first. */

enum { MEMOI_NEIGHBORS = 1 << 26 }; /* longer lists are not made */

/* How many entries the lists have, or with gaps an upper bound.  Items are ordered by begin, so the
 * later items that i overlaps come before the first one that begins after i has ended. */
MEMOI int64_t memoi_neighbors_count(const memoi_problem* problem) {
    int64_t n_entries = 2 * problem->n_held;
    for (int64_t i = 0; i < problem->n_items; i++)
        n_entries += 2 * (problem->first_item[problem->items[i].end] - i - 1);
    return n_entries;
}

/* Counts two neighbors, or lists them.  fill: of an item, their number or the next one's place. */
MEMOI void memoi_neighbors_add(memoi_neighbors* neighbors, int64_t* fill, int64_t i, int64_t j,
                               int is_listed) {
    if (is_listed) {
        neighbors->list[fill[i]] = (int32_t)j;
        neighbors->list[fill[j]] = (int32_t)i;
    }
    fill[i]++;
    fill[j]++;
}

/* Lists all pairs in two passes, counts and then lists, so that all lists share one array. */
MEMOI void memoi_neighbors_fill(const memoi_problem* problem, int64_t* fill) {
    memoi_neighbors* neighbors = problem->neighbors;
    const int64_t n = problem->n_items;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t last = problem->first_item[problem->items[i].end];
            for (int64_t j = i + 1; j < last; j++)
                if (!problem->has_gaps || memoi_problem_items_overlap(problem, i, j))
                    memoi_neighbors_add(neighbors, fill, i, j, pass);
        }
        for (int64_t k = 0; k < problem->n_held; k++)
            memoi_neighbors_add(neighbors, fill, problem->held[2 * k], problem->held[2 * k + 1],
                                pass);
        for (int64_t i = 0; i < n && pass == 0; i++) {
            neighbors->first[i + 1] = neighbors->first[i] + fill[i];
            fill[i] = neighbors->first[i];
        }
    }
    for (int64_t i = 0; i < n; i++) MEMO_ASSERT(fill[i] == neighbors->first[i + 1]); /* 1 */
}

/* Sorts each list: fixed items first, the lowest first.  Scratch: fill and order, an entry for each
 * item, and sorted, an entry for each neighbor. */
MEMOI void memoi_neighbors_sort(const memoi_problem* problem, int64_t* fill, memob_keyed* order,
                                int32_t* sorted) {
    const memoi_neighbors* neighbors = problem->neighbors;
    const int64_t *first = neighbors->first, n = problem->n_items;
    for (int64_t i = 0; i < n; i++) {
        const int64_t fixed = problem->items[i].fixed;
        order[i] = memob_keyed_of(fixed < 0 ? INT64_MAX : fixed, i);
        fill[i] = first[i];
    }
    qsort(order, (size_t)n, sizeof(memob_keyed), memob_keyed_compare);

    /* Each item, in this order, goes to the end of its neighbors' lists: sorting each list alone is
     * slower by far, as most items around a window of memo_pack.h are fixed. */
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = order[i].index, k = first[j]; k < first[j + 1]; k++) {
            const int32_t to = neighbors->list[k];
            MEMO_ASSERT(fill[to] == first[to] || problem->items[j].fixed < 0 || /* 2 */
                        problem->items[sorted[fill[to] - 1]].fixed >= 0);
            sorted[fill[to]++] = (int32_t)j;
        }
    memcpy(neighbors->list, sorted, (size_t)first[n] * sizeof(int32_t));
}

/* Makes the lists.  UNFIT: these are too long. */
MEMOI memoi_made memoi_neighbors_list(const memoi_problem* problem) {
    memoi_neighbors* neighbors = problem->neighbors;
    const int64_t n = problem->n_items;
    const int64_t n_entries = memoi_neighbors_count(problem);
    memob_arrays scratch = MEMO_ZERO(memob_arrays);
    memob_keyed* order;
    int64_t* fill;
    int32_t* sorted;
    if (neighbors->list) return MEMOI_MADE;
    neighbors->are_too_many |= n_entries > MEMOI_NEIGHBORS;
    if (neighbors->are_too_many) return MEMOI_UNFIT;

    /* The lists stay until the problem is freed, because several searches read them. */
    fill = MEMOB_ARRAY(&scratch, int64_t, n);
    order = MEMOB_ARRAY(&scratch, memob_keyed, problem->n_fixed > 0 ? n : 0);
    sorted = MEMOB_ARRAY(&scratch, int32_t, problem->n_fixed > 0 ? n_entries : 0);
    neighbors->first = MEMOB_ARRAY(&neighbors->arrays, int64_t, n + 1);
    neighbors->list = MEMOB_ARRAY(&neighbors->arrays, int32_t, n_entries);
    if (scratch.failed || neighbors->arrays.failed) {
        memob_arrays_free(&scratch);
        memob_arrays_free(&neighbors->arrays);
        memset(neighbors, 0, sizeof *neighbors);
        return MEMOI_NO_MEMORY;
    }
    memoi_neighbors_fill(problem, fill);
    if (problem->n_fixed > 0) memoi_neighbors_sort(problem, fill, order, sorted);
    memob_arrays_free(&scratch);
    return MEMOI_MADE;
}

/* The lowest aligned offset, from `offset` on, that is clear of a free item's fixed neighbors. */
MEMOI int64_t memoi_neighbors_clear(const memoi_problem* problem, int64_t i, int64_t offset) {
    const memoi_item* item = &problem->items[i];
    int64_t k = problem->neighbors->first[i], last = problem->neighbors->first[i + 1];
    if (item->alignment > 1) offset = memob_align_up(offset, item->alignment);
    for (; k < last && problem->n_fixed > 0; k++) {
        const memoi_item* other = &problem->items[problem->neighbors->list[k]];
        if (other->fixed < 0 || other->fixed >= offset + item->size) break;
        if (other->fixed + other->size > offset)
            offset = memob_align_up(other->fixed + other->size, item->alignment);
    }
    return offset;
}
