#pragma once
#include "plan/offsets/greedy.h"
/* --- >>lowest offset ---
 * Knows: the tops of placed items.  Knows nothing of holes below them.
 *
 * A plateau is a longest run of sections with one top.  The item that can lie lowest lives within
 * the lowest plateau.  If no item does, nothing can fill that plateau, so the plateau rises to its
 * lower neighbor.
 *
 * An aligned item leaves a hole below itself.  (Plans in which items wait until a plateau reaches
 * their alignment are higher.) */

/* Sets the top of the plateau that begins at a section; INT64_MAX: none does. */
MEMOI void memoi_plateau_set(memoi_greedy* greedy, int64_t begin, int64_t top) {
    int64_t node = greedy->n_leaves + begin;
    for (; node > 0 && greedy->tops[node] != top; node /= 2) { /* as far as something changes */
        greedy->tops[node] = top;
        top = memob_min(top, greedy->tops[node ^ 1]);
    }
}

MEMOI int64_t memoi_plateau_top(const memoi_greedy* greedy, int64_t begin) {
    return greedy->tops[greedy->n_leaves + begin];
}

/* The first of the lowest plateaus. */
MEMOI int64_t memoi_plateau_lowest(const memoi_greedy* greedy) {
    int64_t node = 1;
    while (node < greedy->n_leaves)
        node = 2 * node + (greedy->tops[2 * node] > greedy->tops[2 * node + 1]);
    return node - greedy->n_leaves;
}

MEMOI void memoi_plateau_add(memoi_greedy* greedy, int64_t begin, int64_t end, int64_t top,
                             int64_t previous) {
    memoi_plateau* plateau = &greedy->plateau[begin];
    plateau->end = (int32_t)end;
    plateau->previous = (int32_t)previous;
    if (end < greedy->problem->n_sections) greedy->plateau[end].previous = (int32_t)begin;
    if (previous >= 0) greedy->plateau[previous].end = (int32_t)begin;
    memoi_plateau_set(greedy, begin, top);
}

/* Gives the plateau at begin a top, and joins it with neighbors of that top. */
MEMOI void memoi_plateau_raise(memoi_greedy* greedy, int64_t begin, int64_t top) {
    memoi_plateau here = greedy->plateau[begin];
    if (here.end < greedy->problem->n_sections && memoi_plateau_top(greedy, here.end) == top) {
        memoi_plateau_set(greedy, here.end, INT64_MAX);
        here.end = greedy->plateau[here.end].end;
    }
    if (here.previous >= 0 && memoi_plateau_top(greedy, here.previous) == top) {
        memoi_plateau_set(greedy, begin, INT64_MAX);
        begin = here.previous;
        here.previous = greedy->plateau[begin].previous;
    }
    memoi_plateau_add(greedy, begin, here.end, top, here.previous);
}

/* Sections [begin, end) become a plateau; the first of them belongs to the one at `at`. */
MEMOI void memoi_plateau_cover(memoi_greedy* greedy, int64_t at, int64_t begin, int64_t end,
                               int64_t top) {
    memoi_plateau old = greedy->plateau[at];
    int64_t old_top = memoi_plateau_top(greedy, at);
    if (at < begin) {
        memoi_plateau_add(greedy, at, begin, old_top, old.previous);
        old.previous = (int32_t)at;
    }
    while (old.end < end) {
        int64_t swallowed = old.end;
        old_top = memoi_plateau_top(greedy, swallowed);
        old.end = greedy->plateau[swallowed].end;
        memoi_plateau_set(greedy, swallowed, INT64_MAX);
    }
    if (end < old.end) memoi_plateau_add(greedy, end, old.end, old_top, begin);
    memoi_plateau_add(greedy, begin, end, top, old.previous);
    memoi_plateau_raise(greedy, begin, top);
}

/* The top of a plateau's lower neighbor. */
MEMOI int64_t memoi_plateau_next(const memoi_greedy* greedy, int64_t begin) {
    const memoi_plateau* here = &greedy->plateau[begin];
    int64_t left = here->previous >= 0 ? memoi_plateau_top(greedy, here->previous) : INT64_MAX;
    int64_t right =
        here->end < greedy->problem->n_sections ? memoi_plateau_top(greedy, here->end) : INT64_MAX;
    return memob_min(left, right);
}

/* Nothing is placed: all free items are on the tree. */
MEMOI void memoi_plateau_begin(memoi_greedy* greedy) {
    const memoi_problem* problem = greedy->problem;
    int64_t n = problem->n_items, i;
    for (int64_t rank = 0; rank < n; rank++) {
        const memoi_item* item = &problem->items[i = greedy->ranked[rank].index];
        greedy->unplaced.turn[greedy->unplaced.place_of[i]] =
            item->fixed < 0 ? (int32_t)rank : INT32_MAX;
        greedy->offsets[i] = item->fixed;
    }
    if (n == 0) return;

    /* Build the tree from its leaves, then one plateau over all sections. */
    memoi_unplaced_begin(&greedy->unplaced);
    for (i = 0; i < 2 * greedy->n_leaves; i++) greedy->tops[i] = INT64_MAX;
    memoi_plateau_add(greedy, 0, problem->n_sections, problem->ground, -1);
}

/* Places the first item that fits the lowest plateau, and returns 1.  If there is none, that
 * plateau rises. */
MEMOI int memoi_plateau_step(memoi_greedy* greedy) {
    int64_t at = memoi_plateau_lowest(greedy), offset, i;
    int32_t end = greedy->plateau[at].end;
    int32_t rank = memoi_unplaced_find(&greedy->unplaced, (int32_t)at, end);
    const memoi_item* item;
    if (rank == INT32_MAX) {
        memoi_plateau_raise(greedy, at, memoi_plateau_next(greedy, at));
        return 0;
    }
    item = &greedy->problem->items[i = greedy->ranked[rank].index];
    offset = greedy->offsets[i] = memob_align_up(memoi_plateau_top(greedy, at), item->alignment);
    memoi_unplaced_set(&greedy->unplaced, greedy->unplaced.place_of[i], INT32_MAX);
    memoi_plateau_cover(greedy, at, item->begin, item->until, offset + item->size);
    return 1;
}

/* Places the item that can lie lowest, until none is left; in a tie the first of greedy->ranked.
 * Returns 0 as soon as the deadline cannot be met. */
MEMOI int memoi_plateau_run(memoi_greedy* greedy) {
    int64_t n = greedy->problem->n_items, n_placed = greedy->problem->n_fixed;
    double begin = memob_now_s();
    memoi_plateau_begin(greedy);
    for (int64_t round = 1; n_placed < n; round++) {
        if (round % MEMOI_CLOCK == 0 && memoi_greedy_is_late(greedy, begin, n_placed)) return 0;
        n_placed += memoi_plateau_step(greedy);
    }
    return 1;
}
