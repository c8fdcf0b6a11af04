#pragma once
#include "plan/offsets/branching.h"
#include "plan/offsets/pack_doors.h"
/* --- >>smallest peak ---
 * The door of the exact search: memoi_exact_round attempts one capacity after the other, between
 * the bound and the best plan, by runs that differ.  Knows nothing of plans in bytes.
 *
 * Running times of one order are heavy-tailed: a run succeeds soon or takes very long.  So runs are
 * short and grow slowly.  They differ in the order of the items, in the rule for tight sections,
 * and in whether sections that failed often go first. */

MEMOI void memoi_search_reset(memoi_search* search) {
    const memoi_problem* problem = search->problem;
    search->n_changes = search->n_old_looks = 0;
    search->unplaced = 0;
    memset(search->is_stale, 1, (size_t)problem->n_sections);
    memset(search->is_stale_tally, 1, (size_t)(problem->n_items / MEMOI_TALLY_ITEMS + 1));
    memset(search->crossing, 0, (size_t)problem->n_sections * sizeof(int32_t));
    memset(search->n_unplaced, 0, (size_t)problem->n_sections * sizeof(int32_t));
    memset(search->unplaced_sum, 0, (size_t)problem->n_sections * sizeof(int64_t));
    for (int64_t i = 0; i < problem->n_items; i++) {
        search->minimum[i] = memob_max(problem->items[i].fixed, 0);
        search->bound[i] = search->minimum[i];
        if (problem->items[i].fixed < 0) search->bound[i] = memoi_neighbors_clear(problem, i, 0);
        search->is_placed[i] = search->is_blocked[i] = 0;
        memoi_search_count(search, i, 1);
    }
}

/* Branches of the first run.  A run needs one for each item; half as many runs of twice as many
 * branches come to more plans. */
MEMOI int64_t memoi_search_shortest_run(const memoi_problem* problem) {
    return memob_max(500, 3 * problem->n_items);
}

/* Tells other searches when this one has an answer. */
MEMOI void memoi_search_answer(memoi_search* search) {
    const int64_t now = memoi_search_moment_of(search);
    int64_t answered = search->answered ? __atomic_load_n(search->answered, __ATOMIC_RELAXED) : 0;
    while (now < answered && !__atomic_compare_exchange_n(search->answered, &answered, now, 0,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* A run within search->capacity.  Runs try each rank with each kind of tightness; a later run does
 * not learn from the sections that failed.  Returns 1 if another run may follow. */
MEMOI int memoi_search_run(memoi_search* search) {
    enum { N_RANKS = 3, N_LEARNING = (int)N_RANKS * (int)MEMOI_N_TIGHTNESSES };
    static const memoi_item_order ranks[] = {MEMOI_ORDER_SECTIONS, MEMOI_ORDER_AREA,
                                             MEMOI_ORDER_LIFETIME}; /* break ties */
    int64_t run = search->place + search->n_runs++;
    int style = (int)(run % (N_LEARNING + 1));
    if (MEMOI_WITHOUT(styles)) style = 0;
    search->use_weights = style < N_LEARNING && !MEMOI_WITHOUT(weights);
    search->tightness =
        search->use_weights ? (memoi_tightness)(style / N_RANKS) : MEMOI_TIGHT_SLACK;

    memoi_search_reset(search);
    memoi_greedy_order_items(search->problem, ranks[style % N_RANKS], &search->random,
                             search->ranked);
    for (int64_t i = 0; i < search->problem->n_items; i++)
        search->rank[search->ranked[i].index] = (int32_t)i;

    search->branch_stop = search->n_branches + (int64_t)search->run_length;
    search->verdict = memoi_search_node(search, 0, search->problem->n_sections);
    if (search->verdict != MEMOI_STOPPED) memoi_search_answer(search);
    if (search->verdict != MEMOI_STOPPED || search->is_out_of_time || search->is_out_of_memory ||
        search->is_overtaken)
        return 0;

    /* The next run is longer and forgets a part of the weights. */
    for (int64_t s = 0; s < search->problem->n_sections; s++)
        search->weight[s] = 1 + 0.9 * (search->weight[s] - 1);
    search->run_length *= 1.05;
    return search->n_nodes < search->node_end;
}

/* Begins an attempt at a capacity: again with the first style of run and the shortest run. */
MEMOI void memoi_search_begin(memoi_search* search, int64_t capacity, int64_t budget) {
    search->capacity = capacity;
    memob_map_free(&search->bases);
    memset(&search->bases, 0, sizeof search->bases);
    search->verdict = MEMOI_STOPPED;
    search->is_overtaken = 0;
    search->n_runs = 0;
    search->run_length = (double)memoi_search_shortest_run(search->problem);
    search->node_begin = search->n_nodes;
    search->node_end = search->n_nodes + budget;
}

/* The exact search of a problem, from attempt to attempt. */
typedef struct memoi_exact {
    memoi_search search;
    const memoi_problem* problem;
    memoi_effort* effort;
    memoi_solution* best;
    int64_t given_up; /* the last capacity attempted in vain, in this round */
    void* pack;       /* of extras/memo_pack.h */
} memoi_exact;

/* As memoi_search_create. */
MEMOI int memoi_exact_create(memoi_exact* exact, const memoi_problem* problem, memoi_effort* effort,
                             memoi_solution* best) {
    memset(exact, 0, sizeof *exact);
    exact->problem = problem;
    exact->effort = effort;
    exact->best = best;
    return MEMOI_WITHOUT(search)
               ? -1
               : memoi_search_create(&exact->search, problem, effort->seed, &effort->clock);
}

MEMOI void memoi_exact_free(memoi_exact* exact) {
    memoi_pack_forget(exact);
    memoi_search_free(&exact->search);
}

/* Attempts a capacity with so many nodes.  A plan lowers the best; an exhausted search raises the
 * bound.  0: no memory. */
MEMOI int memoi_exact_attempt(memoi_exact* exact, int64_t capacity, int64_t n_nodes) {
    memoi_search* search = &exact->search;
    memoi_solution* best = exact->best;
    int verdict;
    n_nodes = memob_min(n_nodes, exact->effort->nodes_left);
    verdict = memoi_pack_attempt(exact, capacity, n_nodes);
    if (verdict < 0) {
        memoi_search_begin(search, capacity, n_nodes);
        while (memoi_search_run(search)) continue;
        verdict = (int)search->verdict;
        if (verdict == MEMOI_FOUND) memoi_solution_offer(exact->problem, search->minimum, best);
        memoi_effort_spend(exact->effort, search->n_nodes - search->node_begin);
    }
    if (search->is_out_of_memory) return 0;

    if (verdict != MEMOI_FOUND) exact->given_up = capacity;
    if (verdict == MEMOI_FAILED) best->bound = memob_max(best->bound, capacity + 1);
    memoi_effort_report(exact->effort, exact->problem, best);
    return 1;
}

MEMOI int memoi_exact_goes_on(const memoi_exact* exact, int64_t target) {
    return exact->best->peak > memob_max(target, exact->best->bound) &&
           !memoi_effort_is_over(exact->effort);
}

/* A round of attempts with so many nodes each: at the goal, then halfway from the capacity given up
 * to the best peak, until no capacity is left between.  It waits for a later round if a run takes
 * more nodes.  0: no memory. */
MEMOI int memoi_exact_round(memoi_exact* exact, int64_t target, int64_t n_nodes) {
    const memoi_solution* best = exact->best;
    if (n_nodes < exact->search.least_nodes) return 1;
    exact->given_up = memob_max(target, best->bound);
    if (memoi_exact_goes_on(exact, target) && !memoi_exact_attempt(exact, exact->given_up, n_nodes))
        return 0;
    while (memoi_exact_goes_on(exact, target) && exact->given_up < best->peak - 1) {
        const int64_t capacity = exact->given_up + (best->peak - exact->given_up) / 2;
        if (!memoi_exact_attempt(exact, memob_max(capacity, best->bound), n_nodes)) return 0;
    }
    return 1;
}

/* The nodes of an attempt in the first round: enough for several short runs. */
MEMOI int64_t memoi_exact_first(const memoi_problem* problem) {
    return memob_max(5000, 8 * memoi_search_shortest_run(problem));
}

/* Lowers the best plan in rounds, each with twice as many nodes an attempt, until the effort is
 * over; does nothing if the problem is too large.  0: no memory. */
MEMOI int memoi_exact_solve(const memoi_problem* problem, int64_t target, memoi_effort* effort,
                            memoi_solution* best) {
    memoi_exact exact;
    const int created = memoi_exact_create(&exact, problem, effort, best);
    int64_t n_nodes = memob_min(memoi_exact_first(problem), effort->nodes_left / 2);
    int ok = created != 0;
    while (ok && created > 0 && memoi_exact_goes_on(&exact, target)) {
        ok = memoi_exact_round(&exact, target, n_nodes);
        n_nodes *= 2;
    }
    memoi_exact_free(&exact);
    return ok;
}
