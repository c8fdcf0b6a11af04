#pragma once
#include "memo/plan_validation.h"
#include "plan/offsets/items.h"
#include "plan/offsets/cover.h"
#include "plan/offsets/loop.h"
/* ---- >>plan solve -------------------------------------------------------------------------------
 * memo_plan_solve: checks the desc, poses the problem, lets the loop plan it, and stores offsets,
 * peak and proof.  Rounded sizes come first, exact sizes second.  Knows nothing of engines.
 *
 * 1. No plan is lower than what is proven. */

/* Sets offsets, the peak, and the proof by the plan's lower bound.  Fixed buffers of no size count
 * in both. */
MEMOI void memoi_plan_store(memo_plan* plan, const memoi_problem* problem,
                            const memoi_solution* best, const char* engine) {
    for (int64_t i = 0; i < plan->n_buffers; i++)
        if (!plan->buffers[i].is_fixed) plan->buffers[i].offset_bytes = 0;
    for (int64_t i = 0; i < problem->n_items; i++)
        plan->buffers[problem->items[i].origin].offset_bytes =
            best->offsets[i] * problem->unit_bytes;
    plan->peak_bytes = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        plan->peak_bytes = memob_max(plan->peak_bytes,
                                     plan->buffers[i].offset_bytes + memob_buffer_bytes(plan, i));
    plan->proof =
        plan->peak_bytes <= plan->lower_bound_bytes ? MEMO_PROOF_OPTIMAL : MEMO_PROOF_FEASIBLE;
    if (engine) snprintf(plan->engine, sizeof plan->engine, "%s", engine);
}

/* The bytes of the largest buffer, which counts although its gaps may cover its whole life: then it
 * is no item, and no section has it. */
MEMOI int64_t memoi_solve_floor(const memo_plan* plan) {
    int64_t most = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        most = memob_max(most, memob_buffer_bytes(plan, i));
    return most;
}

/* The problem of a plan with its holds. */
MEMOI memo_status memoi_solve_pose(const memo_plan* plan, int simpler, memoi_problem* problem,
                                   memo_error* error) {
    memo_status status = memoi_items_create(plan, simpler, problem, error);
    memoi_made made = MEMOI_MADE;
    if (status) return status;
    if (plan->n_holds > 0) made = memoi_items_add_holds(problem, plan);
    if (made == MEMOI_MADE && memoi_problem_hold(problem)) return MEMO_STATUS_OK;
    memoi_problem_free(problem);
    if (made != MEMOI_UNFIT) return memob_no_memory(error, "the holds of the plan");
    return memoi_items_create(plan, simpler | MEMOI_STRETCHED, problem, error);
}

/* Returns 0 if trace belongs to another plan. */
MEMOI int memoi_solve_trace_fits(const memo_trace* trace, const memo_plan* plan) {
    int64_t n_times = 0;
    for (int64_t i = 0; i < trace->n_requests; i++)
        n_times += trace->requests[i].kind == MEMO_REQUEST_MALLOC ||
                   trace->requests[i].kind == MEMO_REQUEST_FREE;
    return trace->n_buffers == plan->n_buffers && n_times == plan->n_times;
}

/* Plans a prepared plan; *bound_bytes rises to what is proven.  In the first pass spare room counts
 * in the peak, because a plan of round sizes is found sooner, at most a rounding too high.  Unless
 * the plan is proven or within the capacity, *is_open is 1: a second pass improves it. */
MEMOI memo_status memoi_plan_pass(memo_plan* plan, const memo_plan_desc* desc, int is_second,
                                  memoi_effort* effort, int64_t* bound_bytes, int32_t* is_open,
                                  memo_error* error) {
    const int64_t floor_bytes = memoi_solve_floor(plan);
    int64_t culprit;
    memoi_problem problem = MEMO_ZERO(memoi_problem);
    memoi_solution best;
    memoi_loop loop = MEMO_ZERO(memoi_loop);
    memo_status status;

    /* The problem, and room for the best plan.  No order can help fixed buffers that conflict. */
    status = memoi_solve_pose(plan, is_second ? 0 : MEMOI_ROUNDED, &problem, error);
    if (!status && problem.n_fixed > 0 && plan->n_holds > 0)
        status = memob_plan_check_holds(plan, 0, &culprit, error);
    memoi_solution_begin(&best, &problem, MEMOB_ARRAY(&problem.arrays, int64_t, problem.n_items));
    if (!status && !best.offsets) status = memob_no_memory(error, "the plan");
    if (status) goto done;
    if (is_second) { /* starts from plan and bound of the first; a plan from elsewhere would, too */
        const int64_t bound = memob_align_up(*bound_bytes, problem.unit_bytes) / problem.unit_bytes;
        best.bound = memob_max(best.bound, bound);
        for (int64_t i = 0; i < problem.n_items; i++)
            best.offsets[i] =
                plan->buffers[problem.items[i].origin].offset_bytes / problem.unit_bytes;
        memoi_solution_highest(&problem, best.offsets, &best.peak);
    }
    plan->proof = MEMO_PROOF_NONE; /* until there is a plan again */

    /* No plan is below the bound, so a smaller capacity is no useful target. */
    loop.problem = &problem;
    loop.target = memob_min(desc->capacity_bytes, MEMOB_BYTES_MAX) / problem.unit_bytes;
    if (problem.is_rounded && desc->capacity_bytes % problem.unit_bytes)
        loop.target++; /* the topmost item's rounding may lie above the capacity */
    loop.target = memob_max(loop.target, memob_max(best.bound, floor_bytes / problem.unit_bytes));
    loop.effort = effort;
    loop.best = &best;
    loop.plan = plan;
    loop.desc = desc;
    loop.solve = memo_plan_solve;
    loop.is_second = is_second;
    status = memoi_loop_run(&loop, error);

    /* A proof with stretched lives proves nothing.  A rounded peak is less than a unit too high. */
    if (!status && !problem.is_stretched)
        *bound_bytes =
            memob_max(*bound_bytes,
                      (best.bound - problem.is_rounded) * problem.unit_bytes + problem.is_rounded);
    if (!status) memoi_plan_store(plan, &problem, &best, loop.name);
    MEMO_ASSERT(status || plan->peak_bytes >= *bound_bytes); /* 1 */
    if (!status && plan->peak_bytes <= memob_max(*bound_bytes, floor_bytes))
        plan->proof = MEMO_PROOF_OPTIMAL;
    *is_open = problem.is_rounded && plan->proof != MEMO_PROOF_OPTIMAL &&
               plan->peak_bytes > desc->capacity_bytes;

done: /* after a failure as well */
    memoi_problem_free(&problem);
    return status;
}

MEMOI memo_status memoi_plan_check_desc(const memo_plan_desc* desc, memo_error* error) {
    const memob_bounds fields[] = {{"engine", (int64_t)desc->engine, 0, MEMO_N_PLAN_ENGINES - 1},
                                   {"capacity_bytes", desc->capacity_bytes, 0, INT64_MAX},
                                   {"n_offers", desc->n_offers, 0, desc->offers ? INT64_MAX : 0},
                                   {"n_threads", desc->n_threads, 0, MEMOI_THREADS}};
    const memo_status status = MEMOB_CHECK_FIELDS("memo_plan_desc", fields, error);
    if (status || desc->time_limit_s >= 0) return status;
    return MEMOB_INVALID(error,
                         "memo_plan_desc.time_limit_s: out of range (%g); 0 for the default, "
                         "or more",
                         desc->time_limit_s);
}

memo_status memo_plan_solve(memo_plan* plan, const memo_plan_desc* desc, memo_error* error) {
    memo_plan_desc settings = desc ? *desc : MEMO_ZERO(memo_plan_desc);
    memoi_effort effort = MEMO_ZERO(memoi_effort);
    memo_status status;
    int64_t bound_bytes;
    int32_t is_open = 1;
    double reserved_s;
    const double begin = memob_now_s();
    MEMOB_REFUSE_NULL(error, "plan", plan);
    status = memoi_plan_check_desc(&settings, error);
    if (status) return status;

    /* Large plans get less time by default, because the search of a large plan rarely ends. */
    if (!(settings.time_limit_s > 0))
        settings.time_limit_s = plan->n_buffers > MEMOI_SEARCH_ITEMS ? 3 : 10;
    if (settings.n_offers != 0) return memoi_pack_buy(plan, &settings, error);

    /* A trace of another plan would put its marks on the wrong buffers. */
    status = memo_plan_prepare(plan, error);
    if (status) return status;
    if (settings.trace && !memoi_solve_trace_fits(settings.trace, plan))
        return MEMOB_INVALID(error, "memo_plan_desc.trace: not the trace of this plan: its numbers "
                                    "of mallocs or frees differ; pass the trace that the plan was "
                                    "made from");

    /* Engines look at the clock now and then, and a second pass makes the problem again. */
    reserved_s = fmax(6 * (memob_now_s() - begin), 1e-6 * (double)plan->n_buffers);
    reserved_s = fmin(reserved_s, 0.4 * settings.time_limit_s);
    effort.clock.deadline = begin + settings.time_limit_s - reserved_s;
    effort.clock.stop = settings.stop;
    effort.nodes_left = settings.memoi_node_limit ? settings.memoi_node_limit : INT64_MAX / 4;
    effort.seed = settings.seed;
    effort.n_threads = settings.n_threads ? settings.n_threads : 1;
    effort.log = &settings.log;

    bound_bytes = plan->lower_bound_bytes;
    for (int pass = 0; !status && is_open && pass < 2; pass++)
        status = memoi_plan_pass(plan, &settings, pass, &effort, &bound_bytes, &is_open, error);

    /* A plan that misses the capacity is stored too, so that the caller can look at it. */
    if (!status && settings.capacity_bytes > 0 && plan->peak_bytes > settings.capacity_bytes)
        status = memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "the capacity of %lld bytes is not met: the best plan found needs %lld, and none "
            "needs less than %lld",
            (long long)settings.capacity_bytes, (long long)plan->peak_bytes,
            (long long)memob_max(bound_bytes, memoi_solve_floor(plan)));
    return status;
}
