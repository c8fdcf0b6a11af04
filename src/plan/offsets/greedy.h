#pragma once
#include "plan/offsets/solution.h"
#include "plan/offsets/unplaced.h"
/* ---- >>greedy -----------------------------------------------------------------------------------
 * Knows: the problem and orders of its items.  Knows nothing of plans found before.
 *
 * The first engine: plans in milliseconds, most of which are at the bound if the problem is the
 * step of a program.  Lowest offset: take the unplaced item that can lie lowest, ties by an order;
 * put it there.  Sweep: take the items in order of time, from the fullest section both ways.
 *
 * Both take no notice of gaps, and place all items above the fixed items.  Then every item lives in
 * one piece, and both are fast for any number of items. */

/* The orders of the portfolio, each a permutation of the items. */
typedef enum memoi_item_order {
    MEMOI_ORDER_LIFETIME = 0, /* longest, then largest area */
    MEMOI_ORDER_AREA,         /* size times lifetime */
    MEMOI_ORDER_SIZE,         /* largest, then longest */
    MEMOI_ORDER_START,        /* as requested */
    MEMOI_ORDER_SECTIONS,     /* number of sections, then size: for the search */
    MEMOI_N_ORDERS,
    MEMOI_ORDER_LOAD = MEMOI_N_ORDERS /* fullest section first: memoi_greedy_order_by_load */
} memoi_item_order;

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

typedef struct memoi_plateau {
    int32_t end, previous; /* sections */
} memoi_plateau;

enum { MEMOI_GREEDY_PACE = 1000 }; /* items placed that tell how long a run takes */

/* Scratch of greedy runs. */
typedef struct memoi_greedy {
    const memoi_problem* problem;
    const memoi_deadline* clock;
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
