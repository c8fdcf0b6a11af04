#pragma once
#include "plan/api/offsets.h"
#include "plan/offsets/sections.h"
/* --- >>solution ---
 * What all engines share: the best plan so far, the nodes and the time that are left, and problems
 * made of some items of a problem.  Knows nothing of engines.
 *
 * 1. No plan is lower than the bound.
 * 2. No more nodes count as spent than are left. */

/* Orders of the items.  Greedy has all but the last, and those that help most come first. */
typedef enum memoi_item_order {
    MEMOI_ORDER_LOAD = 0, /* fullest section first, then longest: others have room on top */
    MEMOI_ORDER_START,    /* as requested */
    MEMOI_ORDER_AREA,     /* size times lifetime */
    MEMOI_ORDER_SIZE,     /* largest, then longest */
    MEMOI_ORDER_LIFETIME, /* longest, then largest area */
    MEMOI_GREEDY_RUNS,
    MEMOI_ORDER_SECTIONS = MEMOI_GREEDY_RUNS, /* number of sections, then size */
    MEMOI_N_ORDERS
} memoi_item_order;

/* The best offsets so far, in units, one an item. */
typedef struct memoi_solution {
    int64_t* offsets;
    int64_t peak;
    int64_t bound; /* no plan is lower: at the bound, the plan is proven */
} memoi_solution;

/* Nothing yet, in the caller's array of offsets. */
MEMOI void memoi_solution_begin(memoi_solution* best, const memoi_problem* problem,
                                int64_t* offsets) {
    best->offsets = offsets;
    best->peak = INT64_MAX;
    best->bound = problem->lower_bound;
}

/* Sets the peak of offsets; returns the item that ends there. */
MEMOI int64_t memoi_solution_highest(const memoi_problem* problem, const int64_t* offsets,
                                     int64_t* peak) {
    int64_t highest = 0;
    *peak = 0;
    for (int64_t i = 0; i < problem->n_items; i++) {
        const int64_t top = memoi_item_top(&problem->items[i], offsets[i]);
        if (top > *peak) highest = i;
        *peak = memob_max(*peak, top);
    }
    return highest;
}

/* Takes offsets if their peak is lower.  They must be a valid plan, by overlaps, holds, alignments
 * and fixed offsets: nothing checks that again but memo_plan_validate. */
MEMOI void memoi_solution_offer(const memoi_problem* problem, const int64_t* offsets,
                                memoi_solution* best) {
    int64_t peak;
    memoi_solution_highest(problem, offsets, &peak);
    MEMO_ASSERT(peak >= best->bound); /* 1 */
    if (peak >= best->peak) return;
    best->peak = peak;
    memcpy(best->offsets, offsets, (size_t)problem->n_items * sizeof(int64_t));
}

/* When planning ends. */
typedef struct memoi_deadline {
    double deadline;
    const int32_t* stop; /* of the caller; NULL: none */
} memoi_deadline;

MEMOI int memoi_deadline_is_over(const memoi_deadline* clock) {
    return memob_now_s() > clock->deadline ||
           (clock->stop && __atomic_load_n(clock->stop, __ATOMIC_RELAXED));
}

/* What may be spent.  A node is about 30 us: a node of the exact search, or as much work of another
 * engine.  Orders of the loop's greedy and first fit look at the clock alone. */
typedef struct memoi_effort {
    memoi_deadline clock;
    int64_t nodes_left; /* of each thread */
    int64_t n_nodes;    /* spent */
    int64_t n_before;   /* spent before, by those who gave this share */
    uint64_t seed;
    int64_t n_threads;
    const memo_log* log;
} memoi_effort;

MEMOI void memoi_effort_spend(memoi_effort* effort, int64_t n_nodes) {
    n_nodes = memob_min(n_nodes, effort->nodes_left);
    effort->n_nodes += n_nodes;
    effort->nodes_left -= n_nodes;
    MEMO_ASSERT(n_nodes >= 0 && effort->nodes_left >= 0); /* 2 */
}

MEMOI int memoi_effort_is_over(const memoi_effort* effort) {
    return effort->nodes_left <= 0 || memoi_deadline_is_over(&effort->clock);
}

/* May more effort lower the plan, which is above the target? */
MEMOI int memoi_effort_goes_on(const memoi_effort* effort, const memoi_solution* best,
                               int64_t target) {
    return best->peak > memob_max(target, best->bound) && !memoi_effort_is_over(effort);
}

/* So many nodes of the effort; the caller spends those that are used. */
MEMOI memoi_effort memoi_effort_take(const memoi_effort* effort, int64_t n_nodes) {
    memoi_effort own = *effort;
    own.nodes_left = memob_min(n_nodes, effort->nodes_left);
    own.n_nodes = 0;
    own.n_before = effort->n_before + effort->n_nodes;
    return own;
}

MEMOI void memoi_effort_report(const memoi_effort* effort, const memoi_problem* problem,
                               const memoi_solution* best) {
    char message[160];
    if (!effort->log->write) return;
    snprintf(message, sizeof message, "search: peak %lld, bound %lld, %lld nodes",
             (long long)(best->peak * problem->unit_bytes),
             (long long)(best->bound * problem->unit_bytes),
             (long long)(effort->n_before + effort->n_nodes));
    effort->log->write(effort->log->user, message);
}

/* Makes a problem of items of the whole, without pairs; origins are their indices.  0: no memory */
MEMOI int memoi_problem_pick(const memoi_problem* whole, const char* is_in_set,
                             memoi_problem* part) {
    memob_arrays* a = &part->arrays;
    *part = *whole;
    memset(a, 0, sizeof *a);
    part->n_items = part->n_ranges = part->n_fixed = part->n_held = 0;
    part->lower_bound = part->ground = 0;
    part->held = NULL;
    part->items = MEMOB_ARRAY(a, memoi_item, whole->n_items);
    part->ranges = MEMOB_ARRAY(a, memoi_range, whole->n_ranges);
    part->neighbors = MEMOB_ARRAY(a, memoi_neighbors, 1);

    for (int64_t i = 0; !a->failed && i < whole->n_items; i++) {
        memoi_item* item = &part->items[part->n_items];
        if (!is_in_set[i]) continue;
        *item = whole->items[i];
        memcpy(part->ranges + part->n_ranges, whole->ranges + item->first_range,
               (size_t)item->n_ranges * sizeof(memoi_range));
        item->origin = i;
        item->first_range = part->n_ranges;
        part->n_ranges += item->n_ranges;
        part->n_fixed += item->fixed >= 0;
        part->n_items++;
    }

    if (!a->failed && memoi_sections_find(part)) return 1;
    memoi_problem_free(part);
    return 0;
}

/* Items of a problem that are planned alone. */
typedef struct memoi_inner {
    memoi_problem part;
    memoi_solution best;
} memoi_inner;

/* Picks the items in the set, and begins with their offsets; NULL: with no plan. */
MEMOI memo_status memoi_inner_begin(memoi_inner* inner, const memoi_problem* whole,
                                    const char* is_in_set, const int64_t* offsets,
                                    memo_error* error) {
    int64_t* own = NULL;
    if (memoi_problem_pick(whole, is_in_set, &inner->part))
        own = MEMOB_ARRAY(&inner->part.arrays, int64_t, inner->part.n_items);
    if (!own) {
        memoi_problem_free(&inner->part);
        return memob_no_memory(error, "a part of the plan");
    }
    memoi_solution_begin(&inner->best, &inner->part, own);
    if (!offsets) return MEMO_STATUS_OK;
    for (int64_t i = 0; i < inner->part.n_items; i++) own[i] = offsets[inner->part.items[i].origin];
    memoi_solution_highest(&inner->part, own, &inner->best.peak);
    return MEMO_STATUS_OK;
}

/* Sets the offsets of the whole, and frees the part. */
MEMOI void memoi_inner_end(memoi_inner* inner, int64_t* offsets) {
    for (int64_t i = 0; i < inner->part.n_items; i++)
        offsets[inner->part.items[i].origin] = inner->best.offsets[i];
    memoi_problem_free(&inner->part);
}
