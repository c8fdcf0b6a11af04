#pragma once
#include "plan/offsets/greedy.h"
#include "plan/offsets/first_fit.h"
#include "plan/offsets/full_sections.h"
#include "plan/offsets/ejections.h"
#include "plan/offsets/mixed_integer_program.h"
#include "plan/offsets/bi_level.h"
#include "plan/offsets/pack_doors.h"
/* ---- >>loop -------------------------------------------------------------------------------------
 * Runs the engines that suit the problem, as the table at >>problem says.  Door: memoi_loop_run.
 * Knows nothing of how they plan.
 *
 * A round begins with layers, and with orders of greedy that are left.  Then engines lower the best
 * plan: most with a share of the round's nodes, the exact search with all of them a capacity.  The
 * next round has twice as many.  So what cannot help costs at most a few times what can.
 *
 * What gains goes on.  Two things rest once they have spent a sixteenth of all nodes in vain: in a
 * large problem memo_pack.h with full sections (n_vain, memoi_loop_improve), and ejections between
 * two attempts of the search (n_idle, memoi_loop_search).  memoi_loop_is_done ends the loop: what
 * cannot be proven ends once nothing gains.
 * Nothing but the end depends on a clock.
 *
 * 1. No engine makes the plan worse, or forgets a bound. */

typedef struct memoi_loop {
    const memoi_problem* problem;
    int64_t target;
    memoi_effort* effort;
    memoi_solution* best;
    memo_plan* plan; /* its layers */
    const memo_plan_desc* desc;
    memoi_solver solve; /* for levels */
    const char* name;   /* of the engine that made the best plan; NULL: the plan has it */
    memoi_solution before;
    memoi_ejections ejections;
    memoi_exact exact;
    int64_t n_idle; /* nodes of ejections since they gained, beside the exact search */
    int64_t n_vain; /* nodes of memo_pack.h and of full sections since one of them gained */
    int64_t n_begin, n_gained; /* nodes spent before the pass; after its last round that gained */
    int32_t round, n_orders, end_orders; /* of greedy: tried, and behind the last to be tried */
    memoi_made ejections_made, exact_made;
    int32_t is_second;  /* the second pass, for which layers and greedy have no more to do */
    int32_t is_stuck;   /* the last round gained nothing */
    int32_t has_layers; /* whose plans may become better */
} memoi_loop;

MEMOI int memoi_loop_goes_on(const memoi_loop* loop) {
    return memoi_effort_goes_on(loop->effort, loop->best, loop->target);
}

/* Names the engine if the plan has become better since the call before. */
MEMOI void memoi_loop_credit(memoi_loop* loop, const char* engine) {
    const memoi_solution *best = loop->best, *before = &loop->before;
    MEMO_ASSERT(best->peak <= before->peak && best->bound >= before->bound); /* 1 */
    if (best->peak < before->peak || (best->peak <= best->bound && before->peak > before->bound))
        loop->name = engine;
    loop->before = *best;
}

/* Nodes for an engine that may gain nothing: at most a quarter of what is left. */
MEMOI int64_t memoi_loop_share(const memoi_loop* loop, int64_t n_nodes) {
    return memob_min(n_nodes, loop->effort->nodes_left / MEMOI_SHARE + 1);
}

/* Runs `first` to last - 1 of greedy. */
MEMOI memo_status memoi_loop_greedy(memoi_loop* loop, int first, int last, memo_error* error) {
    return memoi_greedy_solve(loop->problem, first, last, loop->target, &loop->effort->clock,
                              loop->best, error);
}

/* Behind the first order of a large problem: the order of lives at once if the plan is near the
 * bound, because it mostly gets there; sweeps; the order of requests if the plan is far. */
MEMOI memo_status memoi_loop_second(memoi_loop* loop, memo_error* error) {
    const memoi_solution* best = loop->best;
    const int is_near = best->peak - best->bound <= best->bound / 128;
    memo_status status = MEMO_STATUS_OK;
    if (is_near) { /* the last order, which then is not tried again */
        loop->end_orders = MEMOI_ORDER_LIFETIME;
        status = memoi_loop_greedy(loop, MEMOI_ORDER_LIFETIME, MEMOI_ORDER_LIFETIME + 1, error);
    }
    if (!status && memoi_loop_goes_on(loop))
        status =
            memoi_pack_sweep(loop->problem, loop->target, &loop->effort->clock, loop->best, error);
    if (is_near || status) return status;
    loop->n_orders = MEMOI_ORDER_START + 1;
    return memoi_loop_greedy(loop, MEMOI_ORDER_START, loop->n_orders, error);
}

/* Layers, and greedy: all orders in the first round.  A large problem gets two then, with sweeps
 * between them, and another one behind a round that gained nothing. */
MEMOI memo_status memoi_loop_begin(memoi_loop* loop, int64_t n_nodes, memo_error* error) {
    const int is_slow =
        memoi_problem_is_large(loop->problem) && loop->desc->engine != MEMO_PLAN_ENGINE_GREEDY;
    const int first = loop->n_orders, n = is_slow ? 1 : MEMOI_GREEDY_RUNS;
    memo_status status = MEMO_STATUS_OK;
    if (loop->has_layers)
        status =
            memoi_bilevel_solve(loop->plan, loop->desc->trace, loop->problem, loop->target, n_nodes,
                                loop->effort, loop->solve, loop->best, &loop->has_layers, error);
    memoi_loop_credit(loop, "bilevel");
    loop->n_orders =
        (int)memob_min(first + (loop->round > 0 ? loop->is_stuck : n), loop->end_orders);
    if (!status) status = memoi_loop_greedy(loop, first, loop->n_orders, error);
    if (is_slow && loop->round == 0 && !status) status = memoi_loop_second(loop, error);
    memoi_loop_credit(loop, "greedy");
    return status;
}

/* Full sections, at several percents: all at once, or one in each round of a large problem. */
MEMOI memo_status memoi_loop_full(memoi_loop* loop, int64_t goal, int64_t n_nodes,
                                  memo_error* error) {
    enum { N = 5 };
    static const int percents[N] = {81, 93, 85, 97, 89};
    const memoi_problem* problem = loop->problem;
    const int n = memoi_problem_is_large(problem) ? 1 : N;
    memo_status status = MEMO_STATUS_OK;
    if (problem->n_items <= MEMOI_SMALL_ITEMS || !memoi_problem_is_easy(problem) ||
        MEMOI_WITHOUT(full_sections))
        return status;
    for (int k = 0; k < n && !status && memoi_loop_goes_on(loop); k++)
        status =
            memoi_full_solve(problem, percents[(loop->round + k) % N], goal,
                             memoi_loop_share(loop, n_nodes / N), loop->effort, loop->best, error);
    return status;
}

/* Nodes for ejections: few if the problem is small, as the exact search is likely to end. */
MEMOI int64_t memoi_loop_ejections(const memoi_loop* loop, int64_t n_nodes) {
    n_nodes = memoi_loop_share(loop, n_nodes);
    return loop->problem->n_items <= MEMOI_SMALL_ITEMS ? n_nodes / MEMOI_TRIES : n_nodes;
}

/* Ejections until the goal or the nodes are reached.  Their lists take the time of a greedy run, so
 * these are made on first use. */
MEMOI memo_status memoi_loop_eject(memoi_loop* loop, int64_t goal, int64_t n_nodes,
                                   memo_error* error) {
    if (!loop->ejections.problem)
        loop->ejections_made =
            memoi_ejections_create(&loop->ejections, loop->problem, loop->desc->seed);
    if (loop->ejections_made == MEMOI_MADE)
        memoi_ejections_solve(&loop->ejections, goal, n_nodes, loop->effort, loop->best);
    return loop->ejections_made == MEMOI_NO_MEMORY ? memob_no_memory(error, "ejections")
                                                   : MEMO_STATUS_OK;
}

/* Does the round end here?  An engine that lowered a large plan goes on with the next round. */
MEMOI int memoi_loop_round_is_over(const memoi_loop* loop, int64_t peak) {
    return !memoi_loop_goes_on(loop) ||
           (memoi_problem_is_large(loop->problem) && loop->best->peak < peak);
}

/* A round of the exact search.  Between attempts ejections that do not rest lower the plan. */
MEMOI memo_status memoi_loop_search(memoi_loop* loop, int has_ejections, int64_t peak,
                                    int64_t n_nodes, memo_error* error) {
    const memoi_effort* effort = loop->effort;
    memo_status status = MEMO_STATUS_OK;
    memoi_exact_begin(&loop->exact, loop->target);
    while (!status && !memoi_loop_round_is_over(loop, peak) &&
           memoi_exact_step(&loop->exact, n_nodes)) {
        int has_gained = has_ejections && loop->n_idle <= effort->n_nodes / MEMOI_TRIES;
        while (has_gained && !status && !memoi_loop_round_is_over(loop, peak)) {
            const int64_t before = loop->best->peak, n_before = effort->n_nodes;
            status = memoi_loop_eject(loop, memob_max(loop->target, loop->best->bound),
                                      memoi_loop_ejections(loop, n_nodes / MEMOI_TRIES + 1), error);
            has_gained = loop->best->peak < before;
            loop->n_idle = has_gained ? 0 : loop->n_idle + effort->n_nodes - n_before;
        }
    }
    return loop->exact.search.is_out_of_memory ? memob_no_memory(error, "the search") : status;
}

/* The engines that improve a plan; only in a large problem memo_pack.h and full sections rest. */
MEMOI memo_status memoi_loop_improve(memoi_loop* loop, int64_t n_nodes, memo_error* error) {
    const memoi_problem* problem = loop->problem;
    const int has_exact = loop->exact_made == MEMOI_MADE;
    const int is_small = problem->n_items <= MEMOI_SMALL_ITEMS;
    const int is_searched =
        has_exact && (problem->is_cover || (is_small && memoi_problem_is_plain(problem)));
    const int64_t goal = memob_max(loop->target, loop->best->bound);
    const int64_t peak = loop->best->peak, n_before = loop->effort->n_nodes;
    memo_status status = MEMO_STATUS_OK;
    if (!memoi_problem_is_large(problem) || loop->n_vain <= n_before / MEMOI_TRIES) {
        loop->effort->seed++; /* other orders than in the round before; the same while these rest */
        status = memoi_fit_solve(problem, loop->round, goal, loop->effort, loop->best, error);
        if (!status && memoi_loop_goes_on(loop)) status = memoi_pack_round(loop, n_nodes, error);
        if (!status && !memoi_loop_round_is_over(loop, peak))
            status = memoi_loop_full(loop, goal, n_nodes, error);
        loop->n_vain += loop->effort->n_nodes - n_before;
        if (loop->best->peak < peak) loop->n_vain = 0;
    }

    /* A small plain problem, or a cover, is searched first; anything else needs ejections first. */
    if (!is_searched && !status && !memoi_loop_round_is_over(loop, peak))
        status = memoi_loop_eject(loop, goal,
                                  has_exact ? memoi_loop_ejections(loop, n_nodes) : n_nodes, error);
    if (has_exact && !status) status = memoi_loop_search(loop, is_searched, peak, n_nodes, error);
    memoi_loop_credit(loop, "search"); /* so is a gain of any engine of a round called */
    memoi_effort_report(loop->effort, problem, loop->best);
    return status;
}

/* The engines beside AUTO, once: GREEDY ends with ejections if the problem is not easy. */
MEMOI memo_status memoi_loop_once(memoi_loop* loop, memo_error* error) {
    const int is_mip = loop->desc->engine == MEMO_PLAN_ENGINE_MIP;
    memo_status status =
        memoi_fit_solve(loop->problem, -1, memob_max(loop->target, loop->best->bound), loop->effort,
                        loop->best, error);
    if (!is_mip && !memoi_problem_is_easy(loop->problem) && !status && memoi_loop_goes_on(loop))
        status = memoi_loop_eject(loop, loop->target, 2 * loop->problem->n_items, error);
    memoi_loop_credit(loop, "greedy");
    if (is_mip && !status && memoi_loop_goes_on(loop))
        status = memoi_mip_solve(loop->problem, &loop->effort->clock, loop->best, error);
    memoi_loop_credit(loop, "mip");
    return status;
}

/* Is nothing left to try?  Every order had its turn and no engine spent a node since `n_spent`.  Or
 * no engine can prove the plan, and none has gained for many times the nodes of the gains, and for
 * so many by the number of items that 30 take all of the default time. */
MEMOI int memoi_loop_is_done(const memoi_loop* loop, int64_t n_spent) {
    const double n_items = (double)loop->problem->n_items, cubed = 64 * n_items * n_items * n_items;
    const int64_t n_nodes = loop->effort->n_nodes;
    if (loop->round >= MEMOI_GREEDY_RUNS && n_nodes == n_spent) return 1;
    return loop->exact_made != MEMOI_MADE &&
           (double)(n_nodes - loop->n_gained - MEMOI_TRIES * (loop->n_gained - loop->n_begin)) >
               cubed;
}

/* Lowers the best plan to the target, or as far as the effort goes. */
MEMOI memo_status memoi_loop_run(memoi_loop* loop, memo_error* error) {
    const memoi_problem* problem = loop->problem;
    memoi_effort* effort = loop->effort;
    const memo_plan_engine engine = loop->desc->engine;
    const int is_once = engine == MEMO_PLAN_ENGINE_GREEDY || engine == MEMO_PLAN_ENGINE_MIP;
    int64_t n_nodes = memoi_problem_is_large(problem) ? problem->n_items / MEMOI_PLACED_NODE
                                                      : memoi_exact_first(problem, INT64_MAX);
    memo_status status = MEMO_STATUS_OK;
    loop->before = *loop->best;
    loop->n_begin = loop->n_gained = effort->n_nodes;
    loop->end_orders = MEMOI_GREEDY_RUNS;
    loop->has_layers =
        engine == MEMO_PLAN_ENGINE_BILEVEL && loop->desc->trace && loop->plan->n_holds == 0;
    loop->ejections_made = loop->exact_made = MEMOI_UNFIT;

    for (loop->round = 0; !status; loop->round++) {
        const int64_t n_spent = effort->n_nodes, peak = loop->best->peak;
        if (!loop->is_second) status = memoi_loop_begin(loop, n_nodes, error);
        if (status || !memoi_loop_goes_on(loop)) break;
        if (loop->round == 0 && !is_once)
            loop->exact_made = memoi_exact_create(&loop->exact, problem, effort, loop->best);
        if (loop->exact_made == MEMOI_NO_MEMORY) status = memob_no_memory(error, "the search");
        if (!status)
            status =
                is_once ? memoi_loop_once(loop, error) : memoi_loop_improve(loop, n_nodes, error);
        loop->is_stuck = loop->best->peak == peak;
        if (!loop->is_stuck) loop->n_gained = effort->n_nodes;
        if (is_once || memoi_loop_is_done(loop, n_spent)) break;
        n_nodes = memob_min(2 * n_nodes, (int64_t)1 << 40);
    }
    memob_arrays_free(&loop->ejections.arrays);
    memoi_exact_free(&loop->exact);
    return status;
}
