#pragma once
#include "plan/offsets/first_fit.h"
#include "plan/offsets/side_by_side.h"
/* --- >>cores ---
 * Knows: the exact search and first fit.  Knows nothing of lower bounds.
 *
 * A few items often decide that a capacity is too small, and a search of these items alone is
 * faster.  A *core* is such a set, and begins with the fixed items.  If the core has a plan within
 * the capacity, all other items go around the core by first fit.  An item that does not fit joins
 * the core, and the core is searched again.  If the core has no plan, neither has the whole. */

typedef struct memoi_cores {
    const memoi_problem* problem; /* NULL: there are no cores */
    memob_arrays arrays;
    char* is_in;          /* the core, of an item */
    int64_t* offsets;     /* of items, -1: not placed */
    memoi_range* places;  /* scratch, two an item */
    memoi_ranked* ranked; /* items by size */
    int32_t* covered;     /* scratch of windows: sections */
    uint64_t seed;
    double deadline;
} memoi_cores;

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_cores_create(memoi_cores* cores, const memoi_problem* problem,
                             const memoi_effort* effort) {
    int64_t n = problem->n_items;
    memob_arrays* a = &cores->arrays;
    memset(cores, 0, sizeof *cores);
    cores->problem = problem;
    cores->seed = effort->seed;
    cores->deadline = effort->deadline;
    cores->is_in = (char*)memob_arrays_add(a, n, 1);
    cores->offsets = MEMOB_ARRAY(a, int64_t, n);
    cores->places = MEMOB_ARRAY(a, memoi_range, 2 * n);
    cores->ranked = MEMOB_ARRAY(a, memoi_ranked, n);
    if (n > MEMOI_SEARCH_ITEMS) cores->covered = MEMOB_ARRAY(a, int32_t, problem->n_sections + 1);
    if (a->failed) return 0;
    memoi_greedy_order_items(problem, MEMOI_ORDER_SIZE, NULL, cores->ranked);
    return 1;
}

/* Looks for a plan of the core, and sets the verdict and the offsets.  *n_nodes, the budget, loses
 * the nodes spent.  0: no memory. */
MEMOI int memoi_core_search(memoi_cores* cores, int64_t capacity, int64_t* n_nodes,
                            memoi_verdict* verdict) {
    memoi_problem part;
    memoi_team team;
    int64_t n_spent;
    int ok = memoi_problem_pick(cores->problem, 0, cores->problem->n_items, cores->is_in,
                                cores->offsets, capacity, &part);
    if (!ok) return 0;
    *verdict = MEMOI_STOPPED;
    ok = memoi_team_create(&team, &part, 1, cores->seed++, cores->deadline);
    if (ok > 0) {
        const memoi_search* answer = memoi_team_capacity(&team, capacity, *n_nodes, &n_spent);
        *n_nodes -= n_spent + 1;
        if (answer) *verdict = answer->verdict;
        for (int64_t i = 0; *verdict == MEMOI_FOUND && i < part.n_items; i++)
            cores->offsets[part.items[i].buffer] = answer->minimum[i];
        ok = !team.searches->is_out_of_memory;
        memoi_team_free(&team);
    }
    memoi_problem_free(&part);
    return ok != 0;
}

/* Is there a plan within the capacity?  *n_nodes, the budget, becomes what is spent.  0: no
 * memory. */
MEMOI int memoi_cores_attempt(memoi_cores* cores, int64_t capacity, int64_t* n_nodes,
                              memoi_verdict* verdict, memoi_solution* best) {
    int64_t left = *n_nodes, missing = 0;

    /* The core of another capacity is no guide: a small core is best. */
    for (int64_t i = 0; i < cores->problem->n_items; i++)
        cores->is_in[i] = cores->problem->items[i].fixed >= 0;
    for (*verdict = MEMOI_FOUND; *verdict == MEMOI_FOUND && missing >= 0 && left > 0;) {
        for (int64_t i = 0; i < cores->problem->n_items; i++) cores->offsets[i] = -1;
        if (!memoi_core_search(cores, capacity, &left, verdict)) return 0;
        if (*verdict == MEMOI_FOUND)
            missing = memoi_fit_run(cores->problem, cores->ranked, capacity, HUGE_VAL,
                                    cores->places, cores->offsets);
        if (*verdict == MEMOI_FOUND && missing >= 0) cores->is_in[missing] = 1;
    }
    if (*verdict == MEMOI_FOUND && missing >= 0) *verdict = MEMOI_STOPPED;
    if (*verdict == MEMOI_FOUND) memoi_solution_offer(cores->problem, cores->offsets, best);
    *n_nodes -= left;
    return 1;
}
