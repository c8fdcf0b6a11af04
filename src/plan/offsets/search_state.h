#pragma once
#include "plan/offsets/neighbors.h"
#include "plan/offsets/exact_search.h"
/* --- >>search state ---
 * Changes the state of the exact search, places an item, and undoes changes.  Knows nothing of why
 * they are made. */

typedef struct memoi_search_moment {
    int64_t n_changes, n_old_looks;
} memoi_search_moment;

MEMOI memoi_search_moment memoi_search_now(const memoi_search* search) {
    memoi_search_moment now;
    now.n_changes = search->n_changes;
    now.n_old_looks = search->n_old_looks;
    return now;
}

MEMOI void memoi_search_log(memoi_search* search, memoi_change_kind kind, int64_t index,
                            int64_t before) {
    if (search->n_changes == search->change_capacity &&
        !memob_reserve(&search->changes, &search->change_capacity, search->n_changes + 1,
                       sizeof(memoi_change))) {
        search->is_out_of_memory = 1; /* the run ends, and its state is not used again */
        return;
    }
    if (kind != MEMOI_CHANGE_STALE) search->is_stale_tally[index / MEMOI_TALLY_ITEMS] = 1;
    search->changes[search->n_changes].kind = (int32_t)kind;
    search->changes[search->n_changes].index = (int32_t)index;
    search->changes[search->n_changes++].value = before;
}

MEMOI void memoi_search_log_look(memoi_search* search, int64_t s) {
    if (search->n_old_looks == search->old_look_capacity &&
        !memob_reserve(&search->old_looks, &search->old_look_capacity, search->n_old_looks + 1,
                       sizeof(memoi_old_look))) {
        search->is_out_of_memory = 1;
        return;
    }
    search->old_looks[search->n_old_looks].look = search->looks[s];
    search->old_looks[search->n_old_looks++].section = s;
}

/* A tool may write down why a node fails: examples/tools/plan_proof.h defines this before. */
#ifndef MEMOI_PROVE
#define MEMOI_PROVE(search, step, a, b) 1
#endif

/* Counts item i as unplaced (sign 1) or no longer (-1). */
MEMOI void memoi_search_count(memoi_search* search, int64_t i, int sign) {
    const memoi_item* item = &search->problem->items[i];
    int64_t change = sign * item->size;
    for (int64_t k = 0; k < item->n_ranges; k++) {
        const memoi_range* range = &search->problem->ranges[item->first_range + k];
        for (int64_t s = range->begin; s < range->end; s++) search->unplaced_sum[s] += change;
        for (int64_t s = range->begin; s < range->end; s++) search->n_unplaced[s] += sign;
    }
    for (int64_t s = item->begin + 1; s < item->end; s++) search->crossing[s] += sign;
    if (search->sets) search->unplaced ^= (uint64_t)1 << i;
}

MEMOI void memoi_search_undo(memoi_search* search, memoi_search_moment moment) {
    while (search->n_old_looks > moment.n_old_looks) {
        const memoi_old_look* old = &search->old_looks[--search->n_old_looks];
        search->looks[old->section] = old->look;
    }
    while (search->n_changes > moment.n_changes) {
        const memoi_change* change = &search->changes[--search->n_changes];
        if (change->kind != MEMOI_CHANGE_STALE)
            search->is_stale_tally[change->index / MEMOI_TALLY_ITEMS] = 1;
        switch (change->kind) {
        case MEMOI_CHANGE_MINIMUM: search->minimum[change->index] = change->value; break;
        case MEMOI_CHANGE_BOUND: search->bound[change->index] = change->value; break;
        case MEMOI_CHANGE_BLOCKED: search->is_blocked[change->index] = (char)change->value; break;
        case MEMOI_CHANGE_STALE: search->is_stale[change->index] = 1; break;
        case MEMOI_CHANGE_PLACED:
            search->is_placed[change->index] = 0;
            memoi_search_count(search, change->index, 1);
            break;
        default: break;
        }
    }
}

MEMOI void memoi_search_touch(memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    for (int64_t k = 0; k < item->n_ranges; k++) {
        const memoi_range* range = &search->problem->ranges[item->first_range + k];
        memset(search->is_stale + range->begin, 1, (size_t)(range->end - range->begin));
    }
}

/* Returns 0 if the item then no longer fits. */
MEMOI int memoi_search_raise(memoi_search* search, int64_t i, int64_t bound) {
    const memoi_item* item = &search->problem->items[i];
    if (bound <= search->bound[i]) return 1;
    if (item->fixed >= 0) return 0;
    bound = memoi_neighbors_clear(search->problem, i, bound);
    if (memoi_item_top(item, bound) > search->capacity) return 0;
    memoi_search_log(search, MEMOI_CHANGE_BOUND, i, search->bound[i]);
    search->bound[i] = bound;
    memoi_search_touch(search, i);
    return 1;
}

/* Puts i at its minimum; returns 0 if a neighbor then no longer fits. */
MEMOI int memoi_search_place(memoi_search* search, int64_t i) {
    const memoi_problem* problem = search->problem;
    const int64_t* first = search->neighbors->first;
    int64_t top = search->minimum[i] + search->size[i], k;
    memoi_search_log(search, MEMOI_CHANGE_PLACED, i, 0);
    search->is_placed[i] = 1;
    memoi_search_count(search, i, -1);
    memoi_search_touch(search, i);
    search->n_looks += first[i + 1] - first[i];
    for (k = first[i]; k < first[i + 1]; k++) {
        int64_t j = search->neighbors->list[k], offset = top;
        if (search->is_placed[j]) continue;
        if (search->is_blocked[j]) {
            memoi_search_log(search, MEMOI_CHANGE_BLOCKED, j, 1);
            search->is_blocked[j] = 0;
        }
        if (top <= search->minimum[j]) continue;
        if (problem->has_alignment) offset = memob_align_up(top, problem->items[j].alignment);
        memoi_search_log(search, MEMOI_CHANGE_MINIMUM, j, search->minimum[j]);
        search->minimum[j] = offset;
        if (!memoi_search_raise(search, j, offset)) return 0;
    }
    return 1;
}
