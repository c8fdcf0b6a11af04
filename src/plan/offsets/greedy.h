#pragma once
#include "memo/text.h"
#include "plan/offsets/solution.h"
#include "plan/offsets/pack_doors.h"
/* ---- >>greedy -----------------------------------------------------------------------------------
 * The first engine: plans in milliseconds, most of which are at the bound if the problem is the
 * step of a program.  Door: memoi_greedy_solve.  Knows nothing of plans found before.
 *
 * Lowest offset: take the unplaced item that can lie lowest, ties by an order; put it there.  Runs
 * differ in the order.  A *plateau* is a longest run of sections with one top.  The item that can
 * lie lowest lives within the lowest plateau.  If no item does, nothing can fill that plateau, so
 * the plateau rises to its lower neighbor.  An aligned item leaves a hole below itself.  (Plans in
 * which items wait until a plateau reaches their alignment are higher.)
 *
 * Gaps count as life, and all items lie above the fixed items.  Then every item lives in one piece,
 * and a run is fast for any number of items.
 *
 * 1. The plateaus cover all sections, each of which belongs to one of them.
 * 2. An item is placed once, on the top of a plateau in which it lives.
 * 3. The tree finds the turn of an item that waits. */

MEMOI int32_t memoi_least(int32_t a, int32_t b) { return a < b ? a : b; }

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

MEMOI uint64_t memoi_search_random(uint64_t* state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
MEMOI double memoi_search_random_real(uint64_t* state) { /* [0, 1) */
    return (double)(memoi_search_random(state) >> 11) * (1.0 / 9007199254740992.0);
}

/* With random numbers each rank is blurred by a few per cent, so that no two orders are alike. */
MEMOI void memoi_greedy_order_items(const memoi_problem* problem, memoi_item_order order,
                                    uint64_t* random, memoi_ranked* ranked) {
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        double size = (double)item->size, lifetime = (double)item->lifetime;
        ranked[i].index = i;
        ranked[i].first = 0;
        ranked[i].second = size * lifetime;
        if (order == MEMOI_ORDER_LIFETIME) ranked[i].first = lifetime;
        if (order == MEMOI_ORDER_AREA) ranked[i].first = size * lifetime;
        if (order == MEMOI_ORDER_SIZE) {
            ranked[i].first = size;
            ranked[i].second = lifetime;
        }
        if (order == MEMOI_ORDER_SECTIONS) {
            ranked[i].first = (double)(item->end - item->begin);
            ranked[i].second = size;
        }
        if (order == MEMOI_ORDER_START) ranked[i].second = -(double)item->begin;
        if (random) ranked[i].first *= 0.95 + 0.1 * memoi_search_random_real(random);
    }
    qsort(ranked, (size_t)problem->n_items, sizeof *ranked, memoi_greedy_compare_ranked);
}

/* --- unplaced items ---
 * Which unplaced item comes first in the order, among the items that live within an interval of
 * sections?  Items are ordered by begin, so those that begin in the interval follow each other.  A
 * tree over blocks of items finds the least turn of those that end there, too. */

enum { MEMOI_UNPLACED_BLOCK = 16 }; /* items of a leaf; a smaller tree stays in the cache */

typedef struct memoi_unplaced {
    int64_t n_leaves;
    int32_t *end, *turn;             /* of an item; turn INT32_MAX: it is placed, or waits */
    int32_t *least_turn, *least_end; /* of a node: of its unplaced items */
    int32_t* largest_end;            /* of a node: of all its items */
    int32_t* first_item;             /* of a section: the first item that begins there or later */
} memoi_unplaced;

/* The arrays belong to a.  0: no memory. */
MEMOI int memoi_unplaced_create(memoi_unplaced* unplaced, const memoi_problem* problem,
                                memob_arrays* a) {
    const int64_t n = problem->n_items;
    int64_t n_leaves = 1, i = 0;
    while (n_leaves * MEMOI_UNPLACED_BLOCK < n) n_leaves *= 2;
    unplaced->n_leaves = n_leaves;
    unplaced->end = MEMOB_ARRAY(a, int32_t, n_leaves * MEMOI_UNPLACED_BLOCK);
    unplaced->turn = MEMOB_ARRAY(a, int32_t, n_leaves * MEMOI_UNPLACED_BLOCK);
    unplaced->least_end = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->largest_end = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->least_turn = MEMOB_ARRAY(a, int32_t, 2 * n_leaves);
    unplaced->first_item = MEMOB_ARRAY(a, int32_t, problem->n_sections + 1);
    if (a->failed) return 0;

    for (int64_t s = 0; s <= problem->n_sections; s++) {
        while (i < n && problem->items[i].begin < s) i++;
        unplaced->first_item[s] = (int32_t)i;
    }
    for (int64_t k = 0; k < n_leaves * MEMOI_UNPLACED_BLOCK; k++) {
        int32_t* largest = &unplaced->largest_end[n_leaves + k / MEMOI_UNPLACED_BLOCK];
        unplaced->end[k] = k < n ? (int32_t)problem->items[k].until : INT32_MAX;
        unplaced->turn[k] = INT32_MAX;
        if (unplaced->end[k] > *largest) *largest = unplaced->end[k];
    }
    for (int64_t k = 2 * n_leaves - 1; k > 1; k--)
        if (unplaced->largest_end[k] > unplaced->largest_end[k / 2])
            unplaced->largest_end[k / 2] = unplaced->largest_end[k];
    return 1;
}

/* Sets the least turn and end of a node from its items, or from its children; returns 1 if they
 * change. */
MEMOI int memoi_unplaced_join(memoi_unplaced* unplaced, int64_t node) {
    const int64_t first = (node - unplaced->n_leaves) * MEMOI_UNPLACED_BLOCK;
    int32_t turn = INT32_MAX, end = INT32_MAX;
    int is_new;
    for (int64_t i = first; first >= 0 && i < first + MEMOI_UNPLACED_BLOCK; i++) {
        turn = memoi_least(turn, unplaced->turn[i]);
        end = memoi_least(end, unplaced->turn[i] < INT32_MAX ? unplaced->end[i] : INT32_MAX);
    }
    for (int64_t k = 2 * node; first < 0 && k < 2 * node + 2; k++) {
        turn = memoi_least(turn, unplaced->least_turn[k]);
        end = memoi_least(end, unplaced->least_end[k]);
    }
    is_new = unplaced->least_turn[node] != turn || unplaced->least_end[node] != end;
    unplaced->least_turn[node] = turn;
    unplaced->least_end[node] = end;
    return is_new;
}

/* Call this after all turns are set. */
MEMOI void memoi_unplaced_begin(memoi_unplaced* unplaced) {
    for (int64_t k = 2 * unplaced->n_leaves - 1; k > 0; k--) memoi_unplaced_join(unplaced, k);
}

/* Sets the turn of an item; INT32_MAX: it no longer waits. */
MEMOI void memoi_unplaced_set(memoi_unplaced* unplaced, int64_t i, int32_t turn) {
    int64_t node = unplaced->n_leaves + i / MEMOI_UNPLACED_BLOCK;
    unplaced->turn[i] = turn;
    while (node > 0 && memoi_unplaced_join(unplaced, node)) node /= 2;
}

/* The least turn, if below best, of the items from first to last - 1 that end by `end`. */
MEMOI int32_t memoi_unplaced_scan(const memoi_unplaced* unplaced, int64_t first, int64_t last,
                                  int32_t end, int32_t best) {
    for (int64_t i = first; i < last; i++) {
        const int32_t here = unplaced->end[i] <= end ? unplaced->turn[i] : INT32_MAX;
        best = memoi_least(best, here);
    }
    return best;
}

/* As memoi_unplaced_scan, of the items of a node. */
MEMOI int32_t memoi_unplaced_below(const memoi_unplaced* unplaced, int64_t node, int32_t end,
                                   int32_t best) {
    const int32_t turn = unplaced->least_turn[node];
    if (turn >= best || unplaced->least_end[node] > end) return best;
    if (unplaced->largest_end[node] <= end) return turn;
    if (node < unplaced->n_leaves) { /* the child with the least turn first */
        const int64_t child = 2 * node + (unplaced->least_turn[2 * node] != turn);
        best = memoi_unplaced_below(unplaced, child, end, best);
        return memoi_unplaced_below(unplaced, child ^ 1, end, best);
    }
    node = (node - unplaced->n_leaves) * MEMOI_UNPLACED_BLOCK;
    return memoi_unplaced_scan(unplaced, node, node + MEMOI_UNPLACED_BLOCK, end, best);
}

/* The least turn of the items that live within [begin, end), or INT32_MAX. */
MEMOI int32_t memoi_unplaced_find(const memoi_unplaced* unplaced, int32_t begin, int32_t end) {
    const int64_t first = unplaced->first_item[begin], last = unplaced->first_item[end];
    const int64_t from = memob_min(memob_align_up(first, MEMOI_UNPLACED_BLOCK), last);
    const int64_t to = memob_max(last - last % MEMOI_UNPLACED_BLOCK, from);
    int64_t left = unplaced->n_leaves + from / MEMOI_UNPLACED_BLOCK;
    int64_t right = unplaced->n_leaves + to / MEMOI_UNPLACED_BLOCK;
    int32_t best = memoi_unplaced_scan(unplaced, first, from, end, INT32_MAX);
    best = memoi_unplaced_scan(unplaced, to, last, end, best);
    for (; to > from && left < right; left /= 2, right /= 2) { /* most intervals are short */
        if (left & 1) best = memoi_unplaced_below(unplaced, left++, end, best);
        if (right & 1) best = memoi_unplaced_below(unplaced, --right, end, best);
    }
    return best;
}

/* --- lowest offset --- */

typedef struct memoi_plateau {
    int32_t end, previous; /* sections */
} memoi_plateau;

enum { MEMOI_GREEDY_PACE = 1000 }; /* items placed that tell how long a run takes */

/* Scratch of greedy runs. */
typedef struct memoi_greedy {
    const memoi_problem* problem;
    const memoi_deadline* clock;
    int32_t is_needed; /* there is no plan yet, so the run goes on when time is up */
    memob_arrays arrays;
    memoi_ranked* ranked;
    int64_t* offsets;
    int64_t* load; /* bounds of sections, as the leaves of a tree of their largest */

    memoi_unplaced unplaced;
    memoi_plateau* plateau; /* of a first section */
    /* Tops of plateaus by first section, as the leaves of a tree of the lowest; INT64_MAX: none
     * begins here. */
    int64_t* tops;
    int64_t n_leaves; /* a power of 2 */
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
    greedy->load = MEMOB_ARRAY(a, int64_t, 2 * problem->n_sections);
    greedy->plateau = MEMOB_ARRAY(a, memoi_plateau, problem->n_sections + 1);
    for (greedy->n_leaves = 1; greedy->n_leaves < problem->n_sections;) greedy->n_leaves *= 2;
    greedy->tops = MEMOB_ARRAY(a, int64_t, 2 * greedy->n_leaves);
    return memoi_unplaced_create(&greedy->unplaced, problem, a);
}

/* Is a run too long for the time that is left?  begin: when it began; n_placed: items so far. */
MEMOI int memoi_greedy_is_late(const memoi_greedy* greedy, double begin, int64_t n_placed) {
    const double now = memob_now_s(), n = (double)greedy->problem->n_items;
    if (greedy->is_needed) return 0;
    return memoi_deadline_is_over(greedy->clock) ||
           (n_placed >= MEMOI_GREEDY_PACE &&
            begin + (now - begin) * n / (double)n_placed > greedy->clock->deadline);
}

/* The order by the fullest section that an item meets, then by lifetime.  Items that meet full
 * sections lie low, and the other items have room on top of them. */
MEMOI void memoi_greedy_order_by_load(memoi_greedy* greedy) {
    const memoi_problem* problem = greedy->problem;
    int64_t n = problem->n_sections, left, right;
    int64_t* load = greedy->load;
    memcpy(load + n, problem->section_bounds, (size_t)n * sizeof *load);
    for (int64_t i = n - 1; i > 0; i--) load[i] = memob_max(load[2 * i], load[2 * i + 1]);
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        int64_t most = 0;
        for (left = n + item->begin, right = n + item->end; left < right; left /= 2, right /= 2) {
            if (left & 1) most = memob_max(most, load[left++]);
            if (right & 1) most = memob_max(most, load[--right]);
        }
        greedy->ranked[i].index = i;
        greedy->ranked[i].first = (double)most;
        greedy->ranked[i].second = (double)item->lifetime;
    }
    qsort(greedy->ranked, (size_t)problem->n_items, sizeof(memoi_ranked),
          memoi_greedy_compare_ranked);
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

MEMOI void memoi_plateau_add(memoi_greedy* greedy, int64_t begin, int64_t end, int64_t top,
                             int64_t previous) {
    memoi_plateau* plateau = &greedy->plateau[begin];
    MEMO_ASSERT(previous < begin && begin < end && end <= greedy->problem->n_sections); /* 1 */
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
        greedy->unplaced.turn[i] = item->fixed < 0 ? (int32_t)rank : INT32_MAX;
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
    MEMO_ASSERT(greedy->offsets[i] < 0 && item->begin >= at && item->until <= end); /* 2 */
    MEMO_ASSERT(greedy->unplaced.turn[i] == rank);                                  /* 3 */
    offset = greedy->offsets[i] = memob_align_up(memoi_plateau_top(greedy, at), item->alignment);
    memoi_unplaced_set(&greedy->unplaced, i, INT32_MAX);
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

/* Runs number first to last - 1, until a plan meets the target or time is up.  extras/memo_pack.h
 * plans a problem that is not small at once.  A run is given up as soon as it would last too long,
 * unless there is no plan yet. */
MEMOI memo_status memoi_greedy_solve(const memoi_problem* problem, int first, int last,
                                     int64_t target, const memoi_deadline* clock,
                                     memoi_solution* best, memo_error* error) {
    memoi_greedy greedy;
    int ok = memoi_greedy_create(&greedy, problem, clock);
    if (ok && first == 0 && problem->n_items > MEMOI_SMALL_ITEMS)
        ok = memoi_pack_sweep(&greedy, target, best);
    for (int run = first; ok && run < last && best->peak > target; run++) {
        greedy.is_needed = best->peak == INT64_MAX;
        if (!greedy.is_needed && (MEMOI_WITHOUT(orders) || memoi_deadline_is_over(clock))) break;
        memoi_greedy_rank(&greedy, run);
        if (memoi_plateau_run(&greedy)) memoi_solution_offer(problem, greedy.offsets, best);
    }
    memob_arrays_free(&greedy.arrays);
    return ok ? MEMO_STATUS_OK : memob_no_memory(error, "the greedy planner");
}
