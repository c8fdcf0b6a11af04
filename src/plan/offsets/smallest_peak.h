#pragma once
#include "plan/offsets/branching.h"
/* ---- >>smallest peak ----------------------------------------------------------------------------
 * Knows: runs of the exact search within a capacity.  Knows nothing of plans in bytes.
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

/* Nodes of a run that can come to a plan at all. */
MEMOI int64_t memoi_search_shortest_run(const memoi_problem* problem) {
    return memob_max(500, problem->n_items + problem->n_items / 2);
}

/* Tells the searches side by side when this one has an answer. */
MEMOI void memoi_search_answer(memoi_search* search) {
    int64_t now = memoi_search_moment_of(search);
    int64_t answered = __atomic_load_n(search->answered, __ATOMIC_RELAXED);
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

    search->node_stop = memob_min(search->n_nodes + (int64_t)search->run_length, search->node_end);
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
