#pragma once
#include "memo/plan_validation.h"
#include "plan/offsets/parts.h"
#include "plan/offsets/mixed_integer_program.h"
#include "plan/offsets/two_levels.h"
/* ---- >>plan solve -------------------------------------------------------------------------------
 * Knows: the engines, and which of them comes next.  Knows nothing of how they plan. */

/* Sets the peak, and the proof that the bound gives.  A fixed buffer that occupies nothing is no
 * item, but counts in both. */
MEMOI void memoi_plan_measure(memo_plan* plan) {
    plan->peak_bytes = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        plan->peak_bytes = memob_max(plan->peak_bytes,
                                     plan->buffers[i].offset_bytes + memob_buffer_bytes(plan, i));
    plan->proof =
        plan->peak_bytes <= plan->lower_bound_bytes ? MEMO_PROOF_OPTIMAL : MEMO_PROOF_FEASIBLE;
}

MEMOI void memoi_plan_store(memo_plan* plan, const memoi_problem* problem,
                            const memoi_solution* best, const char* engine) {
    for (int64_t i = 0; i < plan->n_buffers; i++)
        if (!plan->buffers[i].is_fixed) plan->buffers[i].offset_bytes = 0;
    for (int64_t i = 0; i < problem->n_items; i++)
        plan->buffers[problem->items[i].buffer].offset_bytes =
            best->offsets[i] * problem->unit_bytes;
    memoi_plan_measure(plan);
    snprintf(plan->engine, sizeof plan->engine, "%s", engine);
}

/* The solution of a plan's offsets. */
MEMOI void memoi_plan_load(const memo_plan* plan, const memoi_problem* problem,
                           memoi_solution* best) {
    for (int64_t i = 0; i < problem->n_items; i++)
        best->offsets[i] =
            plan->buffers[problem->items[i].buffer].offset_bytes / problem->unit_bytes;
    memoi_solution_highest(problem, best);
}

MEMOI memo_status memoi_market_solve(memo_plan* plan, const memo_plan_desc* desc,
                                     memo_error* error);

/* The problem of a plan with its holds. */
MEMOI memo_status memoi_problem_pose(const memo_plan* plan, int simpler, memoi_problem* problem,
                                     memo_error* error) {
    memo_status status = memoi_problem_create(plan, simpler, problem, error);
    int ok = 1;
    if (!status && plan->n_holds > 0)
        ok = memoi_problem_add_holds(problem, plan);
    else if (!status && problem->has_gaps && problem->n_items <= MEMOI_SMALL_ITEMS)
        ok = memoi_problem_cover(problem, NULL);
    if (ok > 0) return status;
    memoi_problem_free(problem);
    return ok ? memoi_problem_create(plan, simpler | MEMOI_STRETCHED, problem, error)
              : memob_no_memory(error, "the holds of the plan");
}

/* Names the engine if the plan has become better since the call before; before: the plan at that
 * call. */
MEMOI void memoi_solution_credit(const memoi_solution* best, memoi_solution* before,
                                 const char* engine, const char** name) {
    if (best->peak < before->peak || best->is_optimal > before->is_optimal) *name = engine;
    *before = *best;
}

/* Runs the engines that the settings select, from the fastest to the most thorough.  Each begins
 * with the best plan so far, and only if that misses the target.  *name becomes the engine of the
 * best plan. */
MEMOI memo_status memoi_problem_solve(memo_plan* plan, memoi_problem* problem,
                                      const memo_plan_desc* settings, int64_t target,
                                      memoi_effort* effort, memoi_solution* best, const char** name,
                                      memo_error* error) {
    memo_plan_engine engine = settings->engine;
    memo_status status = MEMO_STATUS_OK;
    const int is_greedy = engine == MEMO_PLAN_ENGINE_GREEDY;
    const int is_large = problem->n_items > MEMOI_SEARCH_ITEMS;
    double now = memob_now_s(), deadline = effort->deadline;
    double last_greedy = now + (deadline - now) / (is_greedy ? 1 : (int)MEMOI_SHARE);
    memoi_solution before = *best;

    if (engine == MEMO_PLAN_ENGINE_BILEVEL && settings->trace && plan->n_holds == 0) {
        status = memoi_bilevel_solve(plan, settings->trace, problem, target, effort, best, error);
        memoi_solution_credit(best, &before, "bilevel", name);
    }
    if (!status && best->peak > target) {
        status = memoi_greedy_solve(problem, target, last_greedy, is_large ? last_greedy : deadline,
                                    best, error);
        if (!status && is_greedy && !memoi_problem_is_easy(problem) &&
            !memoi_ejections_rounds(problem, target, 2 * problem->n_items, effort, NULL, best))
            status = memob_no_memory(error, "the greedy planner");
        memoi_solution_credit(best, &before, "greedy", name);
    }
    if (status || best->peak <= target || is_greedy) return status;

    if (engine == MEMO_PLAN_ENGINE_MIP) {
        status = memoi_mip_solve(problem, deadline, best, error);
        memoi_solution_credit(best, &before, "mip", name);
    } else {
        status = memoi_search_solve(problem, target, effort, best, error);
        memoi_solution_credit(best, &before, "search", name);
    }
    return status;
}

/* Returns 0 if trace belongs to another plan. */
MEMOI int memoi_problem_trace_fits(const memo_trace* trace, const memo_plan* plan) {
    int64_t n_times = 0;
    for (int64_t i = 0; i < trace->n_requests; i++)
        n_times += trace->requests[i].kind == MEMO_REQUEST_MALLOC ||
                   trace->requests[i].kind == MEMO_REQUEST_FREE;
    return trace->n_buffers == plan->n_buffers && n_times == plan->n_times;
}

/* Plans a prepared plan; *bound_bytes rises to what is proven.  In the first pass spare room counts
 * in the peak, because a plan of round sizes is found sooner.  If there is spare room, a second pass
 * improves that plan: it is at most a rounding too high. */
MEMOI memo_status memoi_plan_pass(memo_plan* plan, const memo_plan_desc* settings, int is_second,
                                  double begin, memoi_effort* effort, int64_t* bound_bytes,
                                  int32_t* is_open, memo_error* error) {
    int64_t target, culprit, peak;
    const char* engine = is_second ? "search" : "greedy";
    memoi_problem problem;
    memoi_solution best;
    memo_status status;

    /* The problem, and room for the best plan.  No order can help fixed buffers that conflict. */
    memset(&problem, 0, sizeof problem);
    status = memoi_problem_pose(plan, is_second ? 0 : MEMOI_ROUNDED, &problem, error);
    if (!status && problem.n_fixed > 0 && plan->n_holds > 0)
        status = memob_plan_check_holds(plan, 0, &culprit, error);
    memoi_solution_begin(&best, (int64_t*)memob_calloc(problem.n_items, sizeof(int64_t)));
    if (!status && !best.offsets) status = memob_no_memory(error, "the plan");
    if (status) goto done;
    if (is_second) {
        problem.lower_bound =
            memob_max(problem.lower_bound,
                      memob_align_up(*bound_bytes, problem.unit_bytes) / problem.unit_bytes);
        memoi_plan_load(plan, &problem, &best);
    }
    plan->proof = MEMO_PROOF_NONE; /* until there is a plan again */

    /* Work after the search takes about twice as long as work before it, on a busy machine too. */
    if (!is_second)
        effort->deadline -= fmin(0.4 * settings->time_limit_s,
                                 fmax(3 * (memob_now_s() - begin), 1e-6 * (double)plan->n_buffers));

    /* No plan is below the bound, so a smaller capacity is no useful target. */
    target = memob_min(settings->capacity_bytes, MEMOB_BYTES_MAX) / problem.unit_bytes;
    if (problem.is_rounded && settings->capacity_bytes % problem.unit_bytes) target++;
    if (target < problem.lower_bound) target = problem.lower_bound;
    if (best.peak > target)
        status =
            memoi_problem_solve(plan, &problem, settings, target, effort, &best, &engine, error);

    /* A proof with stretched lives proves nothing.  A rounded peak is less than a unit too high. */
    peak = best.is_optimal ? best.peak : problem.lower_bound;
    if (!problem.is_stretched && !status)
        *bound_bytes =
            memob_max(*bound_bytes, problem.is_rounded ? (peak - 1) * problem.unit_bytes + 1
                                                       : peak * problem.unit_bytes);
    if (!status) memoi_plan_store(plan, &problem, &best, engine);
    if (!status && plan->peak_bytes <= *bound_bytes) plan->proof = MEMO_PROOF_OPTIMAL;
    *is_open =
        problem.is_rounded && plan->peak_bytes > memob_max(*bound_bytes, settings->capacity_bytes);

done: /* after a failure as well */
    MEMO_FREE(best.offsets);
    memoi_problem_free(&problem);
    return status;
}

memo_status memo_plan_solve(memo_plan* plan, const memo_plan_desc* desc, memo_error* error) {
    static const char name[] = "memo_plan_desc";
    memo_plan_desc settings = desc ? *desc : MEMO_ZERO(memo_plan_desc);
    memoi_effort effort;
    memo_status status;
    int64_t bound_bytes;
    int32_t is_open = 1;
    int pass;
    const double begin = memob_now_s();
    if ((status = memob_check_integer(name, "engine", (int64_t)settings.engine, 0,
                                      MEMO_PLAN_ENGINE_BILEVEL, error)) ||
        (status = memob_check_integer(name, "capacity_bytes", settings.capacity_bytes, 0, INT64_MAX,
                                      error)) ||
        (status =
             memob_check_integer(name, "node_limit", settings.node_limit, 0, INT64_MAX, error)) ||
        (status = memob_check_integer(name, "n_offers", settings.n_offers, 0,
                                      settings.offers ? INT64_MAX : 0, error)) ||
        (status =
             memob_check_integer(name, "n_threads", settings.n_threads, 0, MEMOI_THREADS, error)))
        return status;
    if (!(settings.time_limit_s >= 0))
        return MEMOB_INVALID(error,
                             "memo_plan_desc.time_limit_s: out of range (%g); 0 for the default, "
                             "or more",
                             settings.time_limit_s);

    /* Large plans get less time by default, because the search of a large plan rarely ends. */
    if (!(settings.time_limit_s > 0))
        settings.time_limit_s = plan->n_buffers > MEMOI_SEARCH_ITEMS ? 3 : 10;

    if (settings.n_offers != 0) return memoi_market_solve(plan, &settings, error);
    effort.deadline = begin + settings.time_limit_s;
    effort.nodes_left = settings.node_limit ? settings.node_limit : INT64_MAX / 4;
    effort.seed = settings.seed;
    effort.n_threads = settings.n_threads ? settings.n_threads : 1;
#ifdef MEMO_NO_HOST_DEVICE
    effort.n_threads = 1;
#endif
    effort.log = &settings.log;

    /* A trace of another plan would put its marks on the wrong buffers. */
    status = memo_plan_prepare(plan, error);
    if (status) return status;
    if (settings.trace && !memoi_problem_trace_fits(settings.trace, plan))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "memo_plan_desc.trace: not the trace of this plan: its numbers of mallocs "
            "or frees differ; pass the trace that the plan was made from");

    bound_bytes = plan->lower_bound_bytes;
    for (pass = 0; !status && is_open && pass < 2; pass++)
        status =
            memoi_plan_pass(plan, &settings, pass, begin, &effort, &bound_bytes, &is_open, error);

    /* A plan that misses the capacity is stored too, so that the caller can look at it. */
    if (!status && settings.capacity_bytes > 0 && plan->peak_bytes > settings.capacity_bytes)
        status = memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "the capacity of %lld bytes is not met: the best plan found needs %lld, and none "
            "needs less than %lld",
            (long long)settings.capacity_bytes, (long long)plan->peak_bytes,
            (long long)bound_bytes);
    return status;
}
