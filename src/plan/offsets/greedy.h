#pragma once
#include "memo/text.h"
#include "plan/offsets/solution.h"
#include "plan/offsets/pack_doors.h"
/* ---- >>greedy -----------------------------------------------------------------------------------
 * The first engine: makes a plan in milliseconds, for most training steps one at the bound.  Door:
 * memoi_greedy_solve.  Begins anew each time, so the second pass leaves it out.
 *
 * Lowest offset: take the unplaced item that can lie lowest, ties by an order; put it there.  Runs
 * differ in the order.  A *plateau* is a longest run of sections with one top.  The item that can
 * lie lowest lives within the lowest plateau.  If no item does, nothing can fill that plateau, so
 * the plateau rises to its lower neighbor.  An aligned item leaves a hole below itself; for the
 * choice of an item alignments do not count.
 *
 * Gaps count as life, an item lives `until` the last one held against it begins, and all lie above
 * the fixed items.  So every item lives in one piece, and a run is fast for any number of items.
 *
 * Ahead.  >>full sections places some items *ahead* of a run.  A plateau that reaches such an item
 * takes it; another item goes below only if it fits there.  After a few items that do not, the
 * plateau rises, at most to the lowest item ahead.
 *
 * 1. The plateaus cover all sections, each of which belongs to one of them.
 * 2. An item is placed once, on the top of a plateau in which it lives.
 * 3. The tree of unplaced items gives each its place in the order.
 * 4. A plateau that rises to an item placed before lies under the whole item. */

/* --- orders --- */

typedef struct memoi_ranked {
    double first, second;
    int64_t index;
} memoi_ranked;

MEMOI int memoi_greedy_compare_ranked(const void* left, const void* right) { /* largest first */
    const memoi_ranked* a = (const memoi_ranked*)left;
    const memoi_ranked* b = (const memoi_ranked*)right;
    if (a->first < b->first || a->first > b->first) return a->first > b->first ? -1 : 1;
    if (a->second < b->second || a->second > b->second) return a->second > b->second ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* With random numbers ranks are blurred by a few per cent, so that orders of the search differ. */
MEMOI void memoi_greedy_order_items(const memoi_problem* problem, memoi_item_order order,
                                    uint64_t* random, memoi_ranked* ranked) {
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        const double size = (double)item->size, lifetime = (double)item->lifetime;
        const double ranks[][2] = {{(double)item->load, lifetime},             /* LOAD */
                                   {0, -(double)item->begin},                  /* START */
                                   {size * lifetime, size * lifetime},         /* AREA */
                                   {size, lifetime},                           /* SIZE */
                                   {lifetime, size * lifetime},                /* LIFETIME */
                                   {(double)(item->end - item->begin), size}}; /* SECTIONS */
        MEMOB_TABLE_OF(MEMOI_N_ORDERS, ranks);
        ranked[i].index = i;
        ranked[i].first = ranks[order][0];
        ranked[i].second = ranks[order][1];
        if (random) ranked[i].first *= 0.95 + 0.1 * memob_random_real(random);
    }
    qsort(ranked, (size_t)problem->n_items, sizeof *ranked, memoi_greedy_compare_ranked);
}

/* --- unplaced items ---
 * Which unplaced item comes first in the order, among the items that live within an interval of
 * sections?  Items are ordered by begin, so those that begin in the interval follow each other.  A
 * tree over items finds the least turn of those that end there, too. */

typedef struct memoi_unplaced {
    int64_t n_leaves;          /* a power of 2; item i is node n_leaves + i */
    int32_t *turn, *least_end; /* of a node's items that wait: the least; INT32_MAX: none does */
    int32_t* largest_end;      /* of all its items */
} memoi_unplaced;

/* The arrays belong to a.  0: no memory. */
MEMOI int memoi_unplaced_create(memoi_unplaced* unplaced, const memoi_problem* problem,
                                memob_arrays* a) {
    const int64_t n = problem->n_items;
    int64_t n_leaves = 1;
    while (n_leaves < n) n_leaves *= 2;
    unplaced->n_leaves = n_leaves;
    unplaced->turn = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->least_end = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->largest_end = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    if (a->failed) return 0;
    for (int64_t i = 0; i < n_leaves; i++) {
        unplaced->turn[n_leaves + i] = INT32_MAX;
        unplaced->largest_end[n_leaves + i] = i < n ? (int32_t)problem->items[i].until : 0;
    }
    for (int64_t i = n_leaves - 1; i > 0; i--)
        unplaced->largest_end[i] =
            (int32_t)memob_max(unplaced->largest_end[2 * i], unplaced->largest_end[2 * i + 1]);
    return 1;
}

/* Sets a node's least turn and end from its children; returns 1 if they change. */
MEMOI int memoi_unplaced_join(memoi_unplaced* unplaced, int64_t node) {
    int32_t *turn = &unplaced->turn[node], *end = &unplaced->least_end[node];
    const int32_t before[] = {*turn, *end};
    *turn = (int32_t)memob_min(unplaced->turn[2 * node], unplaced->turn[2 * node + 1]);
    *end = (int32_t)memob_min(unplaced->least_end[2 * node], unplaced->least_end[2 * node + 1]);
    return *turn != before[0] || *end != before[1];
}

/* Sets the turn of an item, but not those above it; INT32_MAX: it no longer waits. */
MEMOI int64_t memoi_unplaced_leaf(memoi_unplaced* unplaced, int64_t i, int32_t turn) {
    const int64_t node = unplaced->n_leaves + i;
    unplaced->turn[node] = turn;
    unplaced->least_end[node] = turn < INT32_MAX ? unplaced->largest_end[node] : INT32_MAX;
    return node;
}

MEMOI void memoi_unplaced_set(memoi_unplaced* unplaced, int64_t i, int32_t turn) {
    int64_t node = memoi_unplaced_leaf(unplaced, i, turn) / 2;
    while (node > 0 && memoi_unplaced_join(unplaced, node)) node /= 2;
}

/* The least turn, if below best, of a node's items that end by `end`. */
MEMOI int32_t memoi_unplaced_below(const memoi_unplaced* unplaced, int64_t node, int32_t end,
                                   int32_t best) {
    const int32_t turn = unplaced->turn[node];
    int64_t child;
    if (turn >= best || unplaced->least_end[node] > end) return best;
    if (unplaced->largest_end[node] <= end) return turn;   /* as for a leaf */
    child = 2 * node + (unplaced->turn[2 * node] != turn); /* the least turn first */
    best = memoi_unplaced_below(unplaced, child, end, best);
    return memoi_unplaced_below(unplaced, child ^ 1, end, best);
}

/* The least turn of items first to last - 1 that end by `end`, or INT32_MAX. */
MEMOI int32_t memoi_unplaced_find(const memoi_unplaced* unplaced, int64_t first, int64_t last,
                                  int32_t end) {
    int64_t left = unplaced->n_leaves + first, right = unplaced->n_leaves + last;
    int32_t best = INT32_MAX;
    for (; left < right; left /= 2, right /= 2) {
        if (left & 1) best = memoi_unplaced_below(unplaced, left++, end, best);
        if (right & 1) best = memoi_unplaced_below(unplaced, --right, end, best);
    }
    return best;
}

/* --- lowest offset --- */

/* Plateaus are a ring: the one behind the last section has no sections and no top. */
typedef struct memoi_plateau {
    int32_t end, previous; /* sections: where the next plateau begins, and the one before */
} memoi_plateau;

/* Scratch of greedy runs. */
typedef struct memoi_greedy {
    const memoi_problem* problem;
    const memoi_deadline* clock; /* NULL: there is no plan yet, so the run goes on to its end */
    memob_arrays arrays;
    memoi_ranked* ranked;
    int64_t* offsets;
    memoi_unplaced unplaced;
    memoi_plateau* plateau; /* of a first section */
    /* By first section, the leaves of a tree of the lowest; INT64_MAX: no plateau begins here. */
    int64_t* tops;
    int64_t n_leaves; /* a power of 2, more than sections */

    /* Items that are placed before the run, by offset: none, or those of full sections. */
    memob_keyed* ahead;
    char* is_ahead; /* of an item: no plateau has reached it */
    int64_t n_ahead, first_ahead;
} memoi_greedy;

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_greedy_create(memoi_greedy* greedy, const memoi_problem* problem,
                              const memoi_deadline* clock) {
    int64_t n = problem->n_items;
    memob_arrays* a = &greedy->arrays;
    memset(greedy, 0, sizeof *greedy);
    greedy->problem = problem;
    greedy->clock = clock;
    greedy->ranked = MEMOB_ARRAY(a, memoi_ranked, n);
    greedy->offsets = MEMOB_ARRAY(a, int64_t, n);
    greedy->plateau = MEMOB_ARRAY(a, memoi_plateau, problem->n_sections + 1);
    for (greedy->n_leaves = 1; greedy->n_leaves <= problem->n_sections;) greedy->n_leaves *= 2;
    greedy->tops = MEMOB_ARRAY(a, int64_t, 2 * greedy->n_leaves);
    greedy->ahead = MEMOB_ARRAY(a, memob_keyed, n);
    greedy->is_ahead = (char*)memob_arrays_add(a, n, 1);
    return memoi_unplaced_create(&greedy->unplaced, problem, a);
}

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

/* Sections [begin, end) become a plateau, which joins neighbors of the same top. */
MEMOI void memoi_plateau_add(memoi_greedy* greedy, int64_t begin, int64_t end, int64_t top,
                             int64_t previous) {
    memoi_plateau* plateau = greedy->plateau;
    if (memoi_plateau_top(greedy, end) == top) {
        memoi_plateau_set(greedy, end, INT64_MAX);
        end = plateau[end].end;
    }
    if (memoi_plateau_top(greedy, previous) == top) {
        memoi_plateau_set(greedy, begin, INT64_MAX);
        begin = previous;
        previous = plateau[begin].previous;
    }
    MEMO_ASSERT(begin < end && end <= greedy->problem->n_sections && /* 1 */
                (previous < begin || previous == greedy->problem->n_sections));
    plateau[begin].end = (int32_t)end;
    plateau[begin].previous = (int32_t)previous;
    plateau[end].previous = plateau[previous].end = (int32_t)begin;
    memoi_plateau_set(greedy, begin, top);
}

/* Sections [begin, end) get a top; the first of them belongs to the plateau at `at`. */
MEMOI void memoi_plateau_cover(memoi_greedy* greedy, int64_t at, int64_t begin, int64_t end,
                               int64_t top) {
    memoi_plateau old = greedy->plateau[at];
    int64_t old_top = memoi_plateau_top(greedy, at);
    memoi_plateau_set(greedy, at, INT64_MAX);
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
}

/* Nothing is placed: all free items that are not ahead are on the tree. */
MEMOI void memoi_plateau_begin(memoi_greedy* greedy) {
    const memoi_problem* problem = greedy->problem;
    int64_t n = problem->n_items, i;
    for (int64_t rank = 0; rank < n; rank++) {
        const memoi_item* item = &problem->items[i = greedy->ranked[rank].index];
        memoi_unplaced_leaf(&greedy->unplaced, i, item->fixed < 0 ? (int32_t)rank : INT32_MAX);
        greedy->offsets[i] = item->fixed;
    }
    for (int64_t k = greedy->first_ahead = 0; k < greedy->n_ahead; k++) {
        greedy->offsets[i = greedy->ahead[k].index] = greedy->ahead[k].key;
        memoi_unplaced_leaf(&greedy->unplaced, i, INT32_MAX);
        greedy->is_ahead[i] = 1;
    }
    if (n == 0) return;

    /* Build the tree from its leaves, then one plateau over all sections. */
    for (i = greedy->unplaced.n_leaves - 1; i > 0; i--) memoi_unplaced_join(&greedy->unplaced, i);
    for (i = 0; i < 2 * greedy->n_leaves; i++) greedy->tops[i] = INT64_MAX;
    memoi_plateau_add(greedy, 0, problem->n_sections, problem->ground, problem->n_sections);
}

/* The place of the lowest item ahead that lives in [begin, end) and lies below top; -1: none. */
MEMOI int64_t memoi_plateau_ahead(const memoi_greedy* greedy, int64_t begin, int64_t end,
                                  int64_t top) {
    for (int64_t k = greedy->first_ahead; k < greedy->n_ahead && greedy->ahead[k].key < top; k++) {
        const memoi_item* item = &greedy->problem->items[greedy->ahead[k].index];
        if (greedy->is_ahead[greedy->ahead[k].index] && item->begin < end && item->end > begin)
            return k;
    }
    return -1;
}

/* Takes the first item that fits the lowest plateau, at `at`, below all that is ahead, off the
 * tree; a few are tried.  Returns its rank, or INT32_MAX. */
MEMOI int32_t memoi_plateau_find(memoi_greedy* greedy, int64_t at) {
    memoi_unplaced* unplaced = &greedy->unplaced;
    const int32_t *first = greedy->problem->first_item, end = greedy->plateau[at].end;
    int32_t passed[MEMOI_TRIES], n_passed = 0, rank = INT32_MAX;
    for (; n_passed < MEMOI_TRIES; passed[n_passed++] = rank) {
        const memoi_item* item;
        int64_t top, i;
        rank = memoi_unplaced_find(unplaced, first[at], first[end], end);
        if (rank == INT32_MAX) break;
        i = greedy->ranked[rank].index;
        item = &greedy->problem->items[i];
        MEMO_ASSERT(unplaced->turn[unplaced->n_leaves + i] == rank);                    /* 3 */
        MEMO_ASSERT(greedy->offsets[i] < 0 && item->begin >= at && item->until <= end); /* 2 */
        memoi_unplaced_set(unplaced, i, INT32_MAX);
        top = memob_align_up(memoi_plateau_top(greedy, at), item->alignment) + item->size;
        if (memoi_plateau_ahead(greedy, item->begin, item->end, top) < 0) break;
    }
    if (n_passed == MEMOI_TRIES) rank = INT32_MAX;
    while (n_passed-- > 0) /* too large here, but perhaps not elsewhere */
        memoi_unplaced_set(unplaced, greedy->ranked[passed[n_passed]].index, passed[n_passed]);
    return rank;
}

/* Places an item on the lowest plateau, one that is reached or the first that fits, and returns 1.
 * If there is none, that plateau rises, but not into what is ahead. */
MEMOI int memoi_plateau_step(memoi_greedy* greedy) {
    const int64_t at = memoi_plateau_lowest(greedy), top = memoi_plateau_top(greedy, at);
    const int64_t previous = greedy->plateau[at].previous, end = greedy->plateau[at].end;
    const int64_t reached = memoi_plateau_ahead(greedy, at, end, top + 1);
    const memoi_item* item;
    int64_t i, next, k;
    int32_t rank;
    if (reached >= 0) {
        item = &greedy->problem->items[i = greedy->ahead[reached].index];
        MEMO_ASSERT(greedy->offsets[i] == top && item->begin >= at && item->end <= end); /* 4 */
        greedy->is_ahead[i] = 0;
        for (k = reached; k == greedy->first_ahead && k < greedy->n_ahead; k++)
            greedy->first_ahead += !greedy->is_ahead[greedy->ahead[k].index];
        memoi_plateau_cover(greedy, at, item->begin, item->until, top + item->size);
        return 1;
    }

    rank = memoi_plateau_find(greedy, at);
    if (rank < INT32_MAX) {
        item = &greedy->problem->items[i = greedy->ranked[rank].index];
        greedy->offsets[i] = memob_align_up(top, item->alignment);
        memoi_plateau_cover(greedy, at, item->begin, item->until, greedy->offsets[i] + item->size);
        return 1;
    }
    next = memob_min(memoi_plateau_top(greedy, previous), memoi_plateau_top(greedy, end));
    k = memoi_plateau_ahead(greedy, at, end, next);
    memoi_plateau_add(greedy, at, end, k < 0 ? next : greedy->ahead[k].key, previous);
    return 0;
}

/* Places the item that can lie lowest, in a tie the first ranked, and so on.  0: time is up. */
MEMOI int memoi_plateau_run(memoi_greedy* greedy) {
    int64_t n = greedy->problem->n_items, n_placed = greedy->problem->n_fixed;
    memoi_plateau_begin(greedy);
    for (int64_t step = 1; n_placed < n; step++) {
        if (step % MEMOI_CLOCK == 0 && greedy->clock && memoi_deadline_is_over(greedy->clock))
            return 0;
        n_placed += memoi_plateau_step(greedy);
    }
    return 1;
}

/* Runs number first to last - 1, until a plan meets the target, or time is up and there is one.  A
 * call for all runs begins with sweeps of memo_pack.h, unless the problem is small. */
MEMOI memo_status memoi_greedy_solve(const memoi_problem* problem, int first, int last,
                                     int64_t target, const memoi_deadline* clock,
                                     memoi_solution* best, memo_error* error) {
    memoi_greedy greedy;
    int ok;
    if (first == last || best->peak <= target) return MEMO_STATUS_OK;
    if (problem->n_items > MEMOI_SMALL_ITEMS && last - first == MEMOI_GREEDY_RUNS) {
        const memo_status status = memoi_pack_sweep(problem, target, clock, best, error);
        if (status) return status;
    }
    ok = memoi_greedy_create(&greedy, problem, clock);
    for (int run = first; ok && run < last && best->peak > target; run++) {
        greedy.clock = best->peak < INT64_MAX ? clock : NULL;
        if (greedy.clock && (MEMOI_WITHOUT(orders) || memoi_deadline_is_over(clock))) break;
        memoi_greedy_order_items(problem, (memoi_item_order)run, NULL, greedy.ranked);
        if (memoi_plateau_run(&greedy)) memoi_solution_offer(problem, greedy.offsets, best);
    }
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "the greedy planner");
}
