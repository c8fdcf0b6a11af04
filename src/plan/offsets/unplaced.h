#pragma once
#include "plan/offsets/problem.h"
/* --- >>unplaced ---
 * Knows: which items wait for a place, and their turns.  Knows nothing of offsets.
 *
 * Which unplaced item comes first among the items that live within an interval of sections?  An
 * item is a point: its begin and its end.  Points lie along a curve that visits one quarter of the
 * plane after the other, and so on within each quarter (Morton's order).  So a stretch of the curve
 * is about a square, and an interval cuts few nodes of a tree over stretches. */

enum { MEMOI_UNPLACED_BLOCK = 16 }; /* points of a leaf; a smaller tree stays in the cache */

typedef struct memoi_box { /* of points */
    int32_t least_begin, largest_begin, least_end, largest_end;
} memoi_box;

typedef struct memoi_unplaced {
    int64_t n_leaves;
    int32_t *begin, *end, *turn; /* at a place on the curve; turn INT32_MAX: not unplaced */
    memoi_box* box;              /* of a node: of all its items, placed or not */
    int32_t* least_turn;         /* of a node */
    int32_t* place_of;           /* of an item: on the curve */
    int32_t* first_place;        /* of a section: items that end before the section come earlier */
} memoi_unplaced;

/* The place of a point on the curve: the bits of both in turn. */
MEMOI int64_t memoi_unplaced_key(int64_t begin, int64_t end) {
    uint64_t both[2];
    both[0] = (uint64_t)begin;
    both[1] = (uint64_t)end;
    for (int k = 0; k < 2; k++) { /* a zero behind each bit */
        both[k] = (both[k] | both[k] << 16) & 0x0000ffff0000ffffu;
        both[k] = (both[k] | both[k] << 8) & 0x00ff00ff00ff00ffu;
        both[k] = (both[k] | both[k] << 4) & 0x0f0f0f0f0f0f0f0fu;
        both[k] = (both[k] | both[k] << 2) & 0x3333333333333333u;
        both[k] = (both[k] | both[k] << 1) & 0x5555555555555555u;
    }
    return (int64_t)(both[0] << 1 | both[1]);
}

MEMOI void memoi_box_add(memoi_box* box, const memoi_box* other) {
    if (other->least_begin < box->least_begin) box->least_begin = other->least_begin;
    if (other->largest_begin > box->largest_begin) box->largest_begin = other->largest_begin;
    if (other->least_end < box->least_end) box->least_end = other->least_end;
    if (other->largest_end > box->largest_end) box->largest_end = other->largest_end;
}

/* The boxes of all nodes, from the leaves up. */
MEMOI void memoi_unplaced_boxes(memoi_unplaced* unplaced, int64_t n) {
    static const memoi_box empty = {INT32_MAX, -1, INT32_MAX, -1};
    for (int64_t k = 0; k < 2 * unplaced->n_leaves; k++) unplaced->box[k] = empty;
    for (int64_t k = 0; k < n; k++) {
        memoi_box point;
        point.least_begin = point.largest_begin = unplaced->begin[k];
        point.least_end = point.largest_end = unplaced->end[k];
        memoi_box_add(&unplaced->box[unplaced->n_leaves + k / MEMOI_UNPLACED_BLOCK], &point);
    }
    for (int64_t k = 2 * unplaced->n_leaves - 1; k > 1; k--)
        memoi_box_add(&unplaced->box[k / 2], &unplaced->box[k]);
}

/* The arrays belong to a.  0: no memory. */
MEMOI int memoi_unplaced_create(memoi_unplaced* unplaced, const memoi_problem* problem,
                                memob_arrays* a) {
    int64_t n = problem->n_items, n_leaves = 1, n_places, s, k;
    memob_keyed* curve = MEMOB_ARRAY(a, memob_keyed, n);
    while (n_leaves * MEMOI_UNPLACED_BLOCK < n) n_leaves *= 2;
    n_places = n_leaves * MEMOI_UNPLACED_BLOCK;
    unplaced->n_leaves = n_leaves;
    unplaced->begin = MEMOB_ARRAY(a, int32_t, n_places);
    unplaced->end = MEMOB_ARRAY(a, int32_t, n_places);
    unplaced->turn = MEMOB_ARRAY(a, int32_t, n_places);
    unplaced->box = MEMOB_ARRAY(a, memoi_box, 2 * n_leaves);
    unplaced->least_turn = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->place_of = MEMOB_ARRAY(a, int32_t, n);
    unplaced->first_place = MEMOB_ARRAY(a, int32_t, problem->n_sections + 1);
    if (a->failed) return 0;

    /* Items along the curve. */
    for (k = 0; k < n; k++) {
        curve[k].key = memoi_unplaced_key(problem->items[k].begin, problem->items[k].until);
        curve[k].index = k;
    }
    memob_keyed_sort(curve, n);
    for (k = 0; k < n; k++) {
        unplaced->place_of[curve[k].index] = (int32_t)k;
        unplaced->begin[k] = (int32_t)problem->items[curve[k].index].begin;
        unplaced->end[k] = (int32_t)problem->items[curve[k].index].until;
    }
    for (s = 0, k = 0; s <= problem->n_sections; s++) {
        while (k < n && curve[k].key < memoi_unplaced_key(s, s)) k++;
        unplaced->first_place[s] = (int32_t)k;
    }
    for (; k < n_places; k++) unplaced->turn[k] = INT32_MAX;
    memoi_unplaced_boxes(unplaced, n);
    return 1;
}

/* Sets the least turn of a leaf. */
MEMOI int32_t memoi_unplaced_leaf(memoi_unplaced* unplaced, int64_t leaf) {
    const int32_t* turns = unplaced->turn + leaf * MEMOI_UNPLACED_BLOCK;
    int32_t least = INT32_MAX;
    for (int k = 0; k < MEMOI_UNPLACED_BLOCK; k++) least = turns[k] < least ? turns[k] : least;
    return unplaced->least_turn[unplaced->n_leaves + leaf] = least;
}

/* Sets the least turn of a node from its children. */
MEMOI int32_t memoi_unplaced_join(memoi_unplaced* unplaced, int64_t node) {
    const int32_t* child = &unplaced->least_turn[2 * node];
    return unplaced->least_turn[node] = child[0] < child[1] ? child[0] : child[1];
}

/* Call this after all turns are set. */
MEMOI void memoi_unplaced_begin(memoi_unplaced* unplaced) {
    for (int64_t k = 0; k < unplaced->n_leaves; k++) memoi_unplaced_leaf(unplaced, k);
    for (int64_t k = unplaced->n_leaves - 1; k > 0; k--) memoi_unplaced_join(unplaced, k);
}

/* Sets the turn of a place, INT32_MAX without an item that waits. */
MEMOI void memoi_unplaced_set(memoi_unplaced* unplaced, int64_t place, int32_t turn) {
    int64_t node = unplaced->n_leaves + place / MEMOI_UNPLACED_BLOCK;
    int32_t before = unplaced->least_turn[node];
    unplaced->turn[place] = turn;
    if (memoi_unplaced_leaf(unplaced, place / MEMOI_UNPLACED_BLOCK) == before) return;
    for (node /= 2; node > 0; node /= 2) { /* as far as something changes */
        before = unplaced->least_turn[node];
        if (memoi_unplaced_join(unplaced, node) == before) return;
    }
}

/* The least turn, if below best, of the items below the node that live within [begin, end). */
MEMOI int32_t memoi_unplaced_below(const memoi_unplaced* unplaced, int64_t node, int32_t begin,
                                   int32_t end, int32_t best) {
    const memoi_box* box = &unplaced->box[node];
    int32_t turn = unplaced->least_turn[node];
    if (turn >= best || box->largest_begin < begin || box->least_end > end) return best;
    if (box->least_begin >= begin && box->largest_end <= end) return turn;
    if (node < unplaced->n_leaves) { /* the child with the least turn first */
        int64_t child = 2 * node + (unplaced->least_turn[2 * node] != turn);
        best = memoi_unplaced_below(unplaced, child, begin, end, best);
        best = memoi_unplaced_below(unplaced, child ^ 1, begin, end, best);
    } else {
        int64_t first = (node - unplaced->n_leaves) * MEMOI_UNPLACED_BLOCK;
        const int32_t *begins = unplaced->begin + first, *ends = unplaced->end + first;
        const int32_t* turns = unplaced->turn + first;
        for (int k = 0; k < MEMOI_UNPLACED_BLOCK; k++) {
            int32_t here = turns[k];
            here = ((begins[k] >= begin) & (ends[k] <= end)) ? here : INT32_MAX;
            best = here < best ? here : best;
        }
    }
    return best;
}

/* The least turn of the items that live within [begin, end), or INT32_MAX.  From the leaves up,
 * since most intervals are short. */
MEMOI int32_t memoi_unplaced_find(const memoi_unplaced* unplaced, int32_t begin, int32_t end) {
    int64_t left = unplaced->first_place[begin] / MEMOI_UNPLACED_BLOCK;
    int64_t right = (unplaced->first_place[end] + MEMOI_UNPLACED_BLOCK - 1) / MEMOI_UNPLACED_BLOCK;
    int32_t best = INT32_MAX;
    left += unplaced->n_leaves;
    right += unplaced->n_leaves;
    for (; left < right; left /= 2, right /= 2) {
        if (left & 1) best = memoi_unplaced_below(unplaced, left++, begin, end, best);
        if (right & 1) best = memoi_unplaced_below(unplaced, --right, begin, end, best);
    }
    return best;
}
