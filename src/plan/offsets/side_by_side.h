#pragma once
#include "plan/offsets/cover.h"
#include "plan/offsets/smallest_peak.h"
/* --- >>side by side ---
 * Knows: threads.  Knows nothing of how one search decides.
 *
 * Several searches within a capacity, one per thread.  Each begins with another style of run.  The
 * first run is alone, because most attempts end with the first run, sooner than a thread starts.
 *
 * The answer comes from the search that needed the fewest nodes.  Every other search stops at that
 * number of nodes, takes over the weights of sections of that search, and keeps its random numbers.
 * So the answer depends only on seed, budget and number of threads.  The first search is the same
 * as with one thread, until another search answers earlier. */

typedef struct memoi_team {
    memoi_search* searches;
    int64_t n;
} memoi_team;

MEMOI void memoi_team_free(memoi_team* team) {
    for (int64_t k = 0; k < team->n; k++) memoi_search_free(&team->searches[k]);
    MEMO_FREE(team->searches);
}

/* As memoi_search_create. */
MEMOI int memoi_team_create(memoi_team* team, const memoi_problem* problem, int64_t n,
                            uint64_t seed, double deadline) {
    int created;
    memset(team, 0, sizeof *team);
    if (problem->n_items > MEMOI_SEARCH_ITEMS || problem->held) return -1;
    created = memoi_neighbors_list(problem);
    if (created <= 0) return created;
    team->searches = (memoi_search*)memob_calloc(n, sizeof(memoi_search));
    if (!team->searches) created = 0;
    for (; team->n < n && created > 0; team->n++) {
        memoi_search* search = &team->searches[team->n];
        created = memoi_search_create(search, problem);
        search->deadline = deadline;
        search->random = seed + (uint64_t)team->n;
        search->place = team->n;
    }
    if (created <= 0) memoi_team_free(team);
    return created;
}

/* Runs until there is an answer or the budget is spent. */
MEMOI void* memoi_team_work(void* search) {
    while (memoi_search_run((memoi_search*)search)) continue;
    return NULL;
}

/* Runs all searches to their end.  A search without a thread of its own runs last, on the calling
 * thread. */
MEMOI void memoi_team_runs(memoi_team* team) {
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t threads[MEMOI_THREADS];
    pthread_attr_t attributes;
    char is_started[MEMOI_THREADS] = {0};
    int has_attributes = team->n > 1 && pthread_attr_init(&attributes) == 0;
    if (has_attributes) pthread_attr_setstacksize(&attributes, (size_t)MEMOI_THREAD_STACK_BYTES);
    for (int64_t k = 1; k < team->n && has_attributes; k++)
        is_started[k] =
            pthread_create(&threads[k], &attributes, memoi_team_work, &team->searches[k]) == 0;
    if (has_attributes) pthread_attr_destroy(&attributes);
    memoi_team_work(&team->searches[0]);
    for (int64_t k = 1; k < team->n; k++) {
        if (is_started[k])
            pthread_join(threads[k], NULL);
        else
            memoi_team_work(&team->searches[k]);
    }
#else
    for (int64_t k = 0; k < team->n; k++) memoi_team_work(&team->searches[k]);
#endif
}

/* The search that answered, or NULL; *n_nodes: spent, by the thread that spent most. */
MEMOI const memoi_search* memoi_team_capacity(memoi_team* team, int64_t capacity, int64_t budget,
                                              int64_t* n_nodes) {
    const memoi_search* first = NULL;
    memoi_search* searches = team->searches;
    uint64_t random[MEMOI_THREADS];
    int64_t answered = INT64_MAX, k;

    /* Each attempt begins again with the first style of run and the shortest run. */
    for (k = 0; k < team->n; k++) {
        searches[k].capacity = capacity;
        memob_map_free(&searches[k].bases);
        memset(&searches[k].bases, 0, sizeof searches[k].bases);
        searches[k].answered = &answered;
        searches[k].verdict = MEMOI_STOPPED;
        searches[k].is_overtaken = 0;
        searches[k].n_runs = 0;
        searches[k].run_length = (double)memoi_search_shortest_run(searches[k].problem);
        searches[k].node_begin = searches[k].n_nodes;
        searches[k].node_end = searches[k].n_nodes + budget;
        random[k] = searches[k].random;
    }

    /* One thread does the first run, because most attempts end there. */
    if (memoi_search_run(&searches[0])) memoi_team_runs(team);
    for (k = 0, *n_nodes = 0; k < team->n && !first; k++) {
        int64_t n_own = searches[k].n_nodes - searches[k].node_begin;
        *n_nodes = memob_max(*n_nodes, n_own);
        if (searches[k].verdict == MEMOI_STOPPED ||
            memoi_search_moment_of(&searches[k]) != answered)
            continue;
        first = &searches[k];
        *n_nodes = n_own;
    }

    /* The other searches take the weights of the search that answered, and restore their random
     * state.  Then the result does not depend on timing. */
    for (k = 0; first && k < team->n; k++) {
        if (&searches[k] == first) continue;
        searches[k].random = random[k];
        memcpy(searches[k].weight, first->weight,
               (size_t)searches[k].problem->n_sections * sizeof(double));
    }
    return first;
}

/* What a search may spend. */
typedef struct memoi_effort {
    double deadline;
    int64_t nodes_left; /* of each thread */
    uint64_t seed;
    int64_t n_threads;
    const memo_log* log;
} memoi_effort;

/* Takes a share of the remaining effort.  The caller adds its unused nodes back. */
MEMOI memoi_effort memoi_effort_take(memoi_effort* effort, double share) {
    double now = memob_now_s();
    memoi_effort own = *effort;
    own.deadline = now + share * (effort->deadline - now);
    own.nodes_left =
        share < 1 ? (int64_t)ceil(share * (double)effort->nodes_left) : effort->nodes_left;
    effort->nodes_left -= own.nodes_left;
    return own;
}

MEMOI void memoi_search_report(const memoi_effort* effort, const memoi_problem* problem,
                               const memoi_solution* best, int64_t bound, int64_t n_nodes) {
    char message[160];
    if (!effort->log->write) return;
    snprintf(message, sizeof message, "search: peak %lld, bound %lld, %lld nodes",
             (long long)(best->peak * problem->unit_bytes),
             (long long)(bound * problem->unit_bytes), (long long)n_nodes);
    effort->log->write(effort->log->user, message);
}

/* Makes a problem of the items of [first, last), or of the items in the set if there is a set.  The
 * buffer of an item is then its index in the whole.  offsets, if not NULL: an item with an offset
 * >= 0 is fixed there, and loses what lies above the capacity.  0: no memory. */
MEMOI int memoi_problem_pick(const memoi_problem* whole, int64_t first, int64_t last,
                             const char* is_in_set, const int64_t* offsets, int64_t capacity,
                             memoi_problem* part) {
    int64_t i;
    *part = *whole;
    part->n_items = part->n_ranges = part->n_fixed = part->lower_bound = part->ground = 0;
    part->section_bounds = NULL;
    part->items = (memoi_item*)memob_calloc(last - first, sizeof(memoi_item));
    part->ranges = (memoi_range*)memob_calloc(whole->n_ranges, sizeof(memoi_range));
    part->neighbors = (memoi_neighbors*)memob_calloc(1, sizeof(memoi_neighbors));

    for (i = first; part->items && part->ranges && part->neighbors && i < last; i++) {
        memoi_item* item = &part->items[part->n_items];
        if (is_in_set && !is_in_set[i]) continue;
        *item = whole->items[i];
        memcpy(part->ranges + part->n_ranges, whole->ranges + item->first_range,
               (size_t)item->n_ranges * sizeof(memoi_range));
        item->buffer = i;
        item->first_range = part->n_ranges;
        part->n_ranges += item->n_ranges;
        if (offsets && offsets[i] >= 0) {
            item->fixed = offsets[i];
            if (item->size > capacity - item->fixed) item->spare = 0;
            item->size = memob_min(item->size, capacity - item->fixed);
        }
        part->n_fixed += item->fixed >= 0;
        part->n_items++;
    }

    if (i == last && memoi_problem_sections(part) && memoi_problem_bounds(part)) return 1;
    memoi_problem_free(part);
    return 0;
}
