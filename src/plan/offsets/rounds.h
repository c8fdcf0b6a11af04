#pragma once
#include "plan/offsets/greedy_runs.h"
#include "plan/offsets/ejections.h"
/* --- >>rounds ---
 * Knows: which capacity is attempted next.  Knows nothing of how an attempt is made. */

typedef struct memoi_rounds {
    memoi_team* team;
    memoi_cores* cores; /* without a problem: none */
    const memoi_problem* problem;
    memoi_effort* effort;
    memoi_solution* best;
    int64_t* bound;
    int64_t target;
    int64_t given_up; /* the last capacity attempted in vain, in this round */
    int64_t n_nodes;  /* spent */
    int32_t is_over;  /* the time */
} memoi_rounds;

MEMOI int memoi_rounds_go_on(const memoi_rounds* r) {
    return r->best->peak > memob_max(r->target, *r->bound) && r->effort->nodes_left > 0 &&
           !r->is_over;
}

/* Attempts a capacity with so many nodes.  A plan lowers the best; an
 * exhausted search raises the bound.  0: no memory. */
MEMOI int memoi_rounds_attempt(memoi_rounds* r, int64_t capacity, int64_t limit) {
    memoi_effort* effort = r->effort;
    memoi_team* team = r->team;
    memoi_verdict verdict = MEMOI_STOPPED;
    const memoi_search* answer;
    const int64_t before = r->given_up;
    int64_t n_spent;
    limit = memob_min(limit, effort->nodes_left);
    answer =
        memoi_team_capacity(team, capacity, r->cores->problem ? (limit + 3) / 4 : limit, &n_spent);
    for (int64_t k = 0; k < team->n; k++) {
        if (team->searches[k].is_out_of_memory) return 0;
        if (team->searches[k].is_out_of_time) r->is_over = 1;
    }
    effort->nodes_left -= n_spent;
    r->n_nodes += n_spent;
    r->given_up = capacity;
    if (answer) verdict = answer->verdict;
    if (verdict == MEMOI_FOUND) memoi_solution_offer(r->problem, answer->minimum, r->best);

    /* If nothing is known, a core may tell. */
    if (!answer && r->cores->problem && !r->is_over) {
        n_spent = memob_min(limit, effort->nodes_left);
        if (!memoi_cores_attempt(r->cores, capacity, &n_spent, &verdict, r->best)) return 0;
        effort->nodes_left -= n_spent;
        r->n_nodes += n_spent;
        r->is_over = memob_now_s() > effort->deadline;
    }
    if (verdict == MEMOI_FOUND) r->given_up = before;
    if (verdict == MEMOI_FAILED) *r->bound = capacity + 1;
    memoi_search_report(effort, r->problem, r->best, *r->bound, r->n_nodes);
    return 1;
}

/* Makes rounds of attempts.  A round begins with ejections and an attempt at the goal.  Then the
 * round attempts halfway from the capacity given up to the best peak, until no capacity is left
 * between.  Each round spends twice as much on an attempt as the round before.  A plain problem or
 * a cover has no ejections.  0: no memory. */
MEMOI int memoi_rounds_run(memoi_rounds* r) {
    enum { RUNS = 10 }; /* of the shortest length, in an attempt of the first round */
    const memoi_problem* problem = r->problem;
    const int has_ejections = !problem->is_cover && !memoi_problem_is_plain(problem);
    int64_t budget = RUNS * memoi_search_shortest_run(problem);

    while (memoi_rounds_go_on(r)) {
        const int64_t goal = memob_max(r->target, *r->bound);
        const int64_t limit = memob_min(budget, r->effort->nodes_left / MEMOI_SHARE);
        if (has_ejections &&
            !memoi_ejections_rounds(problem, goal, limit, r->effort, NULL, r->best))
            return 0;
        memoi_search_report(r->effort, problem, r->best, *r->bound, r->n_nodes);
        r->is_over = memob_now_s() > r->effort->deadline;

        r->given_up = goal;
        if (memoi_rounds_go_on(r) && !memoi_rounds_attempt(r, goal, budget)) return 0;
        while (memoi_rounds_go_on(r) && r->given_up < r->best->peak - 1) {
            int64_t capacity = r->given_up + (r->best->peak - r->given_up) / 2;
            if (!memoi_rounds_attempt(r, capacity, budget)) return 0;
        }
        if (budget < (int64_t)1 << 40) budget *= 2;
    }
    return 1;
}

/* Lowers best->peak of a problem to target, or as far as the effort goes; *bound rises to what is
 * proven.  A problem too large for the search gets windows, without holds, and ejections in the
 * time that is left.  0: no memory. */
MEMOI int memoi_search_minimize(const memoi_problem* problem, int64_t target, memoi_effort* effort,
                                memoi_solution* best, int64_t* bound) {
    memoi_team team;
    memoi_cores cores;
    memoi_rounds rounds = {&team, &cores, problem, effort, best, bound, target, 0, 0, 0};
    int created = MEMOI_WITHOUT(search) ? -1
                                        : memoi_team_create(&team, problem, effort->n_threads,
                                                            effort->seed, effort->deadline);
    const int is_windows = problem->n_items > MEMOI_SEARCH_ITEMS && !problem->held &&
                           !MEMOI_WITHOUT(search) && !MEMOI_WITHOUT(windows);
    int ok = created != 0;
    memset(&cores, 0, sizeof cores);
    if (ok && is_windows) ok = memoi_cores_create(&cores, problem, effort);
    if (ok && created > 0 && problem->n_items <= MEMOI_SMALL_ITEMS &&
        !memoi_problem_is_plain(problem) && !MEMOI_WITHOUT(cores))
        ok = memoi_cores_create(&cores, problem, effort);
    if (ok && created > 0) ok = memoi_rounds_run(&rounds);
    if (ok && created < 0)
        ok = memoi_ejections_rounds(problem, memob_max(target, *bound), INT64_MAX, effort,
                                    is_windows ? &cores : NULL, best);
    if (created > 0) memoi_team_free(&team);
    memob_arrays_free(&cores.arrays);
    return ok;
}

/* Lowers the items of [first, last), or the items in the set if there is a set, as far as goal:
 * sets offsets and *peak. */
MEMOI memo_status memoi_search_part_at(const memoi_problem* problem, int64_t first, int64_t last,
                                       const char* is_in_set, int64_t goal, memoi_effort* effort,
                                       memoi_solution* best, int64_t* bound, int64_t* peak,
                                       memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t proven;
    int64_t* own_offsets = (int64_t*)memob_calloc(last - first, sizeof(int64_t));
    int is_whole = last - first == problem->n_items && !is_in_set;
    memoi_problem picked;
    const memoi_problem* part = is_whole ? problem : &picked;
    memoi_solution own;
    if (!own_offsets ||
        (!is_whole && !memoi_problem_pick(problem, first, last, is_in_set, NULL, 0, &picked))) {
        MEMO_FREE(own_offsets);
        return memob_no_memory(error, "a part of the plan");
    }
    proven = part->lower_bound;
    memoi_solution_begin(&own, own_offsets);
    own.peak = 0;
    for (int64_t i = 0; i < part->n_items; i++) {
        own_offsets[i] = best->offsets[is_whole ? i : part->items[i].buffer];
        own.peak = memob_max(own.peak, memoi_item_top(&part->items[i], own_offsets[i]));
    }
    if (!is_whole) /* else the greedy planner has done what it can */
        status = memoi_greedy_solve(part, goal, effort->deadline, effort->deadline, &own, error);

    if (!status && own.peak > goal && !memoi_search_minimize(part, goal, effort, &own, &proven))
        status = memob_no_memory(error, "the search");
    if (!status) {
        for (int64_t i = 0; i < part->n_items; i++)
            best->offsets[is_whole ? i : part->items[i].buffer] = own_offsets[i];
        *peak = own.peak;
        *bound = memob_max(*bound, proven);
    }
    MEMO_FREE(own_offsets);
    if (!is_whole) memoi_problem_free(&picked);
    return status;
}
