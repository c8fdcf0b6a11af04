#pragma once
#include "memo/plan_from_trace.h"
#include "plan/offsets/plan_solve.h"
#include "plan/session/running.h"
/* --- >>session stage ---
 * Knows: the rows of a policy or of a search, their addresses, the budgets, and the costs that a
 * search gets.  Knows nothing of streams and copies: no device is called.
 *
 * A *stage* is a plan under way: rows, and what follows from them. */

/* What makes plans; it lives in a call.  The first part is the caller's. */
typedef struct memoi_planner {
    const memo_profile* profile; /* of each shape; NULL: times are guesses */
    memoi_rows_effort effort;    /* less than the whole: the plan must fit, no more */
    const memo_step_plan* open;  /* whose states stay where they are; NULL: none do */
    double best_s;               /* a step of the best plan of other slices and groups; 0: none */

    /* What follows from the desc that is planned. */
    memo_session* session;     /* not open: what ranks agree on, the shapes, and their stages */
    int64_t limit_bytes;       /* of the device for a stage: the budget, or less; 0: none */
    int64_t peak_bytes;        /* of the stage, the most of all ranks */
    const memo_profile* times; /* of the stage's shape */
    int is_measured;           /* 0: times are guesses */
    int64_t least_streamed;    /* states of layers */
    const int64_t* start;      /* rows with which whole searches begin; NULL: none */
} memoi_planner;

MEMOI int memob_step_plan_fits(const memo_step_plan* plan) {
    while (plan && plan->fits) plan = plan->next;
    return !plan;
}

/* Predicted seconds of a step; 0: there are no times. */
MEMOI double memoi_step_plan_s(const memo_step_plan* plan) {
    return plan->times ? plan->times->step_s : 0;
}

/* Lists the requests of a micro-batch with the stage's rows, which may exceed the budgets. */
MEMOI void memoi_session_list_requests(memo_session* s) {
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    memo_step_plan* plan = s->part->plan;
    memob_swap_placement* placement = &s->part->placement;
    if (s->failure.status) return;

    memob_swap_placement_free(placement); /* of the stage before */
    memo_plan_destroy(plan->addresses);
    memo_trace_destroy(plan->trace);
    plan->addresses = NULL;
    plan->trace = NULL;
    memoi_keep(s, memob_swap_placement_make(s->steps, 0, placement, &s->call_error));
    memoi_keep(s, memo_trace_create(&plan->trace, &s->call_error));
    desc.trace = plan->trace; /* it records */
    memoi_session_start_arena(s, &desc);
    if (!s->failure.status) memoi_session_list_lives(s);

    memo_arena_destroy(s->part->arena);
    s->part->arena = NULL;
    s->part->base = NULL;
    plan->sizes = placement->sizes;
    if (plan->shape.is_forward_only && s->n_slices == 1) { /* nothing leaves the device */
        memset(&plan->sizes, 0, sizeof plan->sizes);
        plan->sizes.device_bytes = placement->sizes.device_bytes;
    }
    if (!s->failure.status)
        memoi_keep(s, memo_plan_from_trace(plan->trace, 0, &plan->addresses, &s->call_error));
}

/* Fixes what lives as long as the session at the bottom, at the same place in all shapes and plans:
 * buffers from the last request on, then states, then the engine's memory, which is the first
 * request.  No plan becomes larger, because nothing else ever uses these bytes.  Returns the number
 * of bytes. */
MEMOI int64_t memoi_session_fix(memo_plan* plan, int is_fixed) {
    int64_t end_bytes = 0;
    for (int64_t i = plan->n_buffers - 1; i >= 0; i--) {
        memo_buffer* buffer = &plan->buffers[i];
        if (buffer->memory_class != MEMO_CLASS_PERSISTENT) continue;
        if (is_fixed) buffer->offset_bytes = end_bytes;
        buffer->is_fixed = is_fixed;
        end_bytes += memob_buffer_bytes(plan, i);
    }
    return end_bytes;
}

/* Searches for addresses within the budget: greedy first, then as long as the limit allows. */
MEMOI void memoi_stage_solve(const memoi_planner* p) {
    memo_session* s = p->session;
    memo_plan_desc desc = MEMO_ZERO(memo_plan_desc);
    memo_plan* plan = s->part->plan->addresses;
    memo_status status;
    if (s->failure.status) return;
    desc.trace = s->part->plan->trace;
    desc.capacity_bytes = p->limit_bytes ? p->limit_bytes : MEMOB_BYTES_MAX;
    desc.engine = MEMO_PLAN_ENGINE_GREEDY;
    (void)memoi_session_fix(plan, 1);
    status = memo_plan_solve(plan, &desc, &s->call_error);

    /* No search helps if the budget is below the bound. */
    if (status == MEMO_STATUS_INFEASIBLE && plan->lower_bound_bytes <= desc.capacity_bytes) {
        memob_session_log(s, "session: searching for addresses of %lld buffers, at most 10 s",
                          (long long)plan->n_buffers);
        desc.engine = MEMO_PLAN_ENGINE_BILEVEL;
        status = memo_plan_solve(plan, &desc, &s->call_error);
    }
    (void)memoi_session_fix(plan, 0);
    if (status != MEMO_STATUS_INFEASIBLE) memoi_keep(s, status);
}

static const char* const memoi_session_tiers[] = {"device_bytes", "host_bytes", "disk_bytes"};
MEMOB_TABLE_OF(MEMO_N_TIERS, memoi_session_tiers);

/* Says which budget of a plan that does not fit would do, and device_bytes beside another one; 0:
 * none. */
MEMOI void memoi_session_put_shortage(const memo_session_desc* desc, memo_step_plan* plan,
                                      int32_t shape, int32_t tier, int64_t budget_bytes,
                                      int64_t needed_bytes, int64_t device_bytes) {
    const int64_t other_bytes = plan->device_bytes - plan->sizes.device_bytes;
    const int is_sliced = plan->slice_rows && plan->slice_rows < plan->shape.n_rows;
    const char* spilling = desc->spill_directory ? "lower n_rows" : "set spill_directory";
    const char* smaller = is_sliced ? "lower n_rows or slice_rows" : "lower n_rows";
    char policy[64], bytes[4][32], rest[128] = "", device[48] = "";
    snprintf(policy, sizeof policy, "policy %s", memo_policy_name(plan->policy));
    if (plan->policy == MEMO_POLICY_MEMO) strcpy(policy, "the smallest plan");
    if (plan->shape.is_forward_only) strcpy(policy, "a forward alone");
    if (desc->n_shapes > 1) snprintf(policy + strlen(policy), 24, " of shape %d", (int)shape);

    memob_bytes_text(bytes[0], (double)(needed_bytes - budget_bytes));
    memob_bytes_text(bytes[1], (double)needed_bytes);
    memob_bytes_text(bytes[2], (double)(needed_bytes - other_bytes));
    memob_bytes_text(bytes[3], (double)other_bytes);
    if (tier == 0)
        snprintf(rest, sizeof rest, " (%s of activations, %s of %sother buffers)", bytes[2],
                 bytes[3], desc->n_states ? "states and " : "");
    else if (device_bytes)
        snprintf(device, sizeof device, "device_bytes to %lld, or ", (long long)device_bytes);
    snprintf(plan->shortage, sizeof plan->shortage,
             "memo_session_desc.%s: %s needs %s, %s more than the budget%s; raise %s to %lld, or "
             "%s%s",
             memoi_session_tiers[tier], policy, bytes[1], bytes[0], rest, memoi_session_tiers[tier],
             (long long)needed_bytes, device, tier ? spilling : smaller);
}

/* The bytes of each owner on each tier, and their sums. */
MEMOI void memoi_session_add_up(const memo_session* s, memo_step_plan* plan, int64_t* needed) {
    const int64_t fixed_bytes = memoi_session_fix(plan->addresses, 0);
    int64_t(*of)[MEMO_N_OWNERS] = plan->bytes;
    for (int32_t tier = 0; tier < MEMO_N_TIERS; tier++)
        memcpy(of[tier], s->states_sizes.bytes[tier], sizeof s->states_sizes.bytes[tier]);
    of[MEMO_TIER_DEVICE][MEMO_OWNER_ACTIVATIONS] = plan->sizes.device_bytes;
    of[MEMO_TIER_HOST][MEMO_OWNER_ACTIVATIONS] =
        memob_align_up(plan->sizes.host_bytes, MEMOB_DEVICE_ALIGNMENT);
    of[MEMO_TIER_FILE][MEMO_OWNER_ACTIVATIONS] = plan->sizes.spill_bytes;
    of[MEMO_TIER_DEVICE][MEMO_OWNER_SESSION] =
        fixed_bytes - plan->sizes.device_bytes - s->states_sizes.device_bytes;
    of[MEMO_TIER_DEVICE][MEMO_OWNER_MICRO_BATCH] = plan->addresses->peak_bytes - fixed_bytes;
    for (int32_t tier = 0; tier < MEMO_N_TIERS; tier++)
        for (int32_t owner = 0; owner < MEMO_N_OWNERS; owner++) needed[tier] += of[tier][owner];
    plan->device_bytes = needed[MEMO_TIER_DEVICE];
    plan->sleep_bytes = s->states_sizes.resident_bytes - s->states_sizes.fetched_bytes +
                        of[MEMO_TIER_DEVICE][MEMO_OWNER_SESSION];
    plan->host_bytes = needed[MEMO_TIER_HOST];
    plan->disk_bytes = needed[MEMO_TIER_FILE];
    plan->device_budget_bytes = s->desc.device_bytes;
    plan->host_budget_bytes = s->desc.host_bytes;
}

/* Ends a stage: says which budget lacks how much.  The most of all ranks decides.  rows: what the
 * stage does, for the log. */
MEMOI void memoi_stage_judge(memoi_planner* p, const char* rows) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int64_t budgets[] = {p->limit_bytes, s->desc.host_bytes, s->desc.disk_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, budgets);
    int64_t values[1 + MEMO_N_TIERS] = {0}, *needed = values + 1; /* of each tier */
    char bytes[32];
    int lacking = 0;
    plan->fits = 0;
    if (!s->failure.status) memoi_session_add_up(s, plan, needed);
    memoi_session_settle_values(s, values, 1 + MEMO_N_TIERS);
    if (s->failure.status) return;
    p->peak_bytes = needed[MEMO_TIER_DEVICE];
    while (lacking < MEMO_N_TIERS && !memoi_is_over(needed[lacking], budgets[lacking])) lacking++;
    plan->fits = lacking == MEMO_N_TIERS;
    *plan->shortage = 0;
    memob_bytes_text(bytes, (double)p->peak_bytes);
    if (plan->fits) {
        memob_session_log(s, "session: %s takes %s of device memory", rows, bytes);
        return;
    }
    memob_session_log(s, "session: %s takes %s of device memory (exceeds %s)", rows, bytes,
                      memoi_session_tiers[lacking]);
    memoi_session_put_shortage(&s->desc, plan, (int32_t)(s->part - s->parts), lacking,
                               budgets[lacking], needed[lacking], 0);
}

/* Numbers of a table of the stage's rows. */
MEMOI int64_t memoi_session_n_cells(const memo_session* s) {
    return (int64_t)s->part->plan->swap.n_layers * s->part->plan->swap.n_tensors;
}

/* What a stage of a policy does with rows; MEMO recomputes what can be, and swaps the rest. */
static const struct {
    const char* does;
    int recomputes, swaps;
} memoi_session_policies[] = {{"moving or recomputing everything", 1, 1},
                              {"keeping everything", 0, 0},
                              {"recomputing what can be", 1, 0},
                              {"moving everything", 0, 1},
                              {"alpha", 0, 0},
                              {"the desc's table of rows", 0, 0}};
MEMOB_TABLE_OF(MEMO_N_POLICIES, memoi_session_policies);

/* The rows of tensor t by a policy. */
MEMOI int64_t memoi_session_policy_rows(const memo_swap_desc* swap, memo_policy policy, int32_t t) {
    const int32_t away = memob_item_away(swap, t);
    if (memoi_session_policies[policy].recomputes && memob_is_recomputed(away)) return 0;
    if (!memoi_session_policies[policy].swaps || away == MEMO_KEEP) return MEMO_ROWS_KEPT;
    return away == MEMO_ROWS && memob_tensor_is_routed(swap, t) ? 0 : swap->n_rows;
}

/* Makes a stage of the plan's rows, with as many layers in host memory as fit, unless their number
 * is given.  does: for the log. */
MEMOI void memoi_stage_place(memoi_planner* p, const char* does) {
    memo_session* s = p->session;
    memo_swap_desc* swap = &s->part->plan->swap;
    const int64_t rows_bytes = s->desc.host_bytes - s->states_sizes.host_bytes;
    if (s->desc.spill_directory && s->desc.host_bytes && !swap->n_host_layers) {
        memob_swap_placement placement; /* it may need more than there is: see judge */
        memoi_keep(s, memob_swap_placement_fit(swap, memob_max(rows_bytes, 1), &placement,
                                               &s->call_error));
        memob_swap_placement_free(&placement);
    }
    memoi_session_list_requests(s);
    memoi_stage_solve(p);
    memoi_stage_judge(p, does);
}

/* Makes a stage with the rows of a policy. */
MEMOI void memoi_stage_make(memoi_planner* p, memo_policy policy) {
    memo_session* s = p->session;
    memo_swap_desc* swap = &s->part->plan->swap;
    const int64_t n = policy == MEMO_POLICY_ROWS ? 0 : memoi_session_n_cells(s);
    int64_t* rows = (int64_t*)(uintptr_t)swap->rows; /* the plan's own */
    swap->n_host_layers = 0;
    if (policy == MEMO_POLICY_ALPHA) {
        swap->alpha = fmax(s->desc.alpha, 0);
        memoi_keep(s, memob_swap_fill_rows(swap, rows, &s->call_error));
    } else
        for (int64_t i = 0; i < n; i++)
            rows[i] = memoi_session_policy_rows(swap, policy, (int32_t)(i % swap->n_tensors));
    memoi_stage_place(p, memoi_session_policies[policy].does);
}

/* A profile of the current shape with guesses instead of times: such a plan must fit, but need not
 * be fast.  Copies are not changed. */
MEMOI void memoi_session_guess(const memo_session* s, memo_profile* profile) {
    int32_t k;
    profile->n_rows = s->steps->n_rows;
    profile->n_tensors = s->desc.n_tensors;
    for (int32_t i = 0; i < s->n_steps; i++) {
        k = memob_layer_kind(s->steps, i);
        profile->n_kinds = (int32_t)memob_max(profile->n_kinds, k + 1);
        profile->forward_s[k] = 1;
        profile->backward_s[k] = 2;
    }
    for (int32_t i = 0; i < s->desc.n_tensors; i++) {
        memo_profile_tensor* tensor = &profile->tensors[i];
        snprintf(tensor->name, sizeof tensor->name, "%s", s->steps->tensors[i].name);
        for (k = 0; k < profile->n_kinds; k++)
            tensor->recompute_s_per_row[k] =
                memob_is_recomputed(memob_item_away(s->steps, i))
                    ? 0.5 / (double)s->steps->n_rows / (double)s->desc.n_tensors
                    : -1;
    }
}

/* The planner's desc, with what it points to. */
typedef struct memoi_session_costs {
    memo_swap_plan_desc desc;
    memoi_rows_aim aim;
    memo_swap_desc swap;
    memo_profile profile;
} memoi_session_costs;

/* The costs of the stage's tensors, and the budgets. */
MEMOI void memoi_stage_cost(const memoi_planner* p, memoi_session_costs* costs) {
    const memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    memo_swap_plan_desc* desc = &costs->desc;
    memset(costs, 0, sizeof *costs);
    costs->swap = plan->swap;
    costs->swap.computes_on_host = s->desc.computes_on_host;
    costs->profile = *p->times;
    desc->swap = &costs->swap;
    desc->profile = &costs->profile;
    desc->micro_batches = s->desc.micro_batches / memoi_session_n_group(s);
    costs->aim.effort = p->effort;
    costs->aim.start = p->start;
    costs->aim.is_alpha = s->desc.policy == MEMO_POLICY_ALPHA;
    if (s->desc.host_bytes)
        desc->host_bytes = memob_max((s->desc.host_bytes - s->states_sizes.host_bytes) /
                                         MEMOB_DEVICE_ALIGNMENT * MEMOB_DEVICE_ALIGNMENT,
                                     1);
    if (s->desc.spill_directory && s->desc.host_bytes)
        desc->spill_bytes = s->desc.disk_bytes
                                ? memob_max(s->desc.disk_bytes - s->states_sizes.spill_bytes, 1)
                                : MEMOB_BYTES_MAX;

    if (s->streamed) desc->states = &s->states_desc;
}

/* The same for a search of rows, with what other buffers leave of the device; 0 or less: none. */
MEMOI void memoi_stage_cost_rows(const memoi_planner* p, memoi_session_costs* costs) {
    const int64_t other_bytes = p->peak_bytes - p->session->part->plan->sizes.device_bytes;
    memoi_stage_cost(p, costs);
    costs->swap.rows = NULL;
    if (p->limit_bytes) costs->desc.device_bytes = p->limit_bytes - other_bytes;
}

/* Makes a stage of the least memory, which may lack some.  Tensors that cannot be recomputed
 * are kept.  If they do not fit they are swapped, unless swapping takes more device memory. */
MEMOI void memoi_stage_take_least(memoi_planner* p) {
    const memo_step_plan* plan = p->session->part->plan;
    int64_t kept_bytes;
    memoi_stage_make(p, MEMO_POLICY_RECOMPUTE);
    kept_bytes = p->peak_bytes;
    if (!plan->fits) memoi_stage_make(p, MEMO_POLICY_MEMO);
    if (!plan->fits && p->peak_bytes > kept_bytes) memoi_stage_make(p, MEMO_POLICY_RECOMPUTE);
}

/* What the stage takes of the device beside states and activations; the same, whatever is
 * streamed and kept. */
MEMOI int64_t memoi_stage_other_bytes(const memoi_planner* p) {
    const memo_session* s = p->session;
    return p->peak_bytes - s->part->plan->sizes.device_bytes - s->states_sizes.device_bytes;
}

MEMOI void memoi_stage_forget_times(memo_step_plan* plan) {
    memo_swap_plan_destroy(plan->times);
    plan->times = NULL;
}

/* Makes the stage of rows that were found. */
MEMOI void memoi_stage_take(memoi_planner* p, const memo_swap_plan* found) {
    memo_session* s = p->session;
    memo_swap_desc* swap = &s->part->plan->swap;
    int64_t* rows = (int64_t*)(uintptr_t)swap->rows; /* the plan's own */
    swap->n_host_layers = found->n_host_layers;
    if (found->rows)
        memcpy(rows, found->rows, (size_t)memoi_session_n_cells(s) * sizeof *rows);
    else {
        swap->alpha = found->alpha;
        memoi_keep(s, memob_swap_fill_rows(swap, rows, &s->call_error));
    }
    memoi_stage_place(p, "a plan of rows");
}

/* Searches the rows that take least time, beside the other buffers, which do not depend on the
 * rows. */
MEMOI void memoi_stage_search(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    memo_status status;
    memob_session_log(s, "session: planning rows by %s times",
                      p->is_measured ? "measured" : "estimated");
    memoi_stage_cost_rows(p, &costs);
    plan->fits = 0;
    if (s->failure.status || (p->limit_bytes && costs.desc.device_bytes <= 0)) return;
    status = memoi_rows_make_plan(&costs.desc, &costs.aim, &plan->times, &s->call_error);
    if (status == MEMO_STATUS_INFEASIBLE) return; /* no rows fit */
    memoi_keep(s, status);
    if (status) return;
    memoi_stage_take(p, plan->times);
    if (!p->is_measured || !plan->fits) memoi_stage_forget_times(plan); /* of no meaning */
}

/* The times of the stage's rows, if times are measured. */
MEMOI void memoi_stage_time(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    if (!p->is_measured || plan->times) return;
    memoi_stage_cost(p, &costs);
    memoi_keep(s, memoi_rows_make_plan(&costs.desc, &costs.aim, &plan->times, &s->call_error));
    memoi_session_settle(s);
}

/* Makes the stage that needs no search: of the policy, or, if rows are planned, of all rows kept,
 * which is fastest. */
MEMOI void memoi_stage_begin(memoi_planner* p) {
    const memo_session_desc* desc = &p->session->desc;
    memo_step_plan* plan = p->session->part->plan;
    memo_policy policy = desc->policy;
    if (memoi_session_plans_rows(desc)) policy = MEMO_POLICY_KEEP;
    if (plan->shape.is_forward_only) policy = MEMO_POLICY_MEMO; /* layers share what they use */
    memoi_stage_forget_times(plan);
    memoi_stage_make(p, policy);
}

/* Makes the stage of the policy of one that was begun, with measured times if there are any.  All
 * ranks plan with the same numbers. */
MEMOI void memoi_stage_end(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int is_alpha = memoi_session_is_alpha(&s->desc);
    if (s->failure.status || plan->shape.is_forward_only) return;
    if (is_alpha || (memoi_session_plans_rows(&s->desc) && !plan->fits)) {
        memoi_stage_search(p);
        if (!plan->fits && is_alpha)
            memoi_stage_make(p, s->desc.policy);
        else if (!plan->fits)
            memoi_stage_take_least(p);
    }
    memoi_stage_time(p);
}
MEMOI void memoi_stage_choose(memoi_planner* p) {
    memoi_stage_begin(p);
    memoi_stage_end(p);
}
