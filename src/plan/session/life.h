#pragma once
#include "plan/session/measure.h"
/* --- >>session life ---
 * Knows: the public calls.  Knows nothing of what they do. */

memo_status memo_session_get_least(const memo_session_desc* desc, int64_t* device_bytes,
                                   memo_error* error) {
    memo_session_desc least;
    memo_step_plan *plan = NULL, *p;
    memo_status status = memob_check_given("memo_session_get_least", "desc", desc, error);
    *device_bytes = 0;
    if (status) return status;
    least = *desc;

    /* The smallest plan lacks the rest; with its bytes only the host or the disk can lack. */
    for (int is_last = 0; is_last < 2 && !status; is_last++) {
        least.device_bytes = memob_max(*device_bytes, 1);
        status =
            is_last ? memo_session_plan(&least, NULL, &plan, error)
                    : memoi_session_plan_sizes(&least, NULL, MEMOI_ROWS_EFFORT_FIRST, &plan, error);
        for (p = plan; p && !status; p = p->next) {
            if (!is_last)
                *device_bytes = memob_max(*device_bytes, p->device_bytes);
            else if (!p->fits)
                status = memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s", p->shortage);
        }
        memo_step_plan_destroy(plan);
    }
    return status;
}

/* Every rank takes the same way: plans fit on all ranks or on none. */
memo_status memo_session_create(const memo_session_desc* desc, memo_session** session,
                                memo_error* error) {
    int is_alpha, is_memo;
    memo_session_desc first;
    memo_profile* profiles;
    memo_step_plan* plan = NULL;
    memo_status status = memob_check_given("memo_session_create", "desc", desc, error);
    *session = NULL;
    if (status) return status;
    is_alpha = desc->policy == MEMO_POLICY_ALPHA && !desc->has_alpha;
    is_memo = desc->policy == MEMO_POLICY_MEMO;
    first = *desc;

    /* Times are needed only if not everything can be kept. */
    if (is_memo) first.n_outputs = memoi_session_outputs(desc);
    if (is_memo) first.policy = MEMO_POLICY_KEEP;
    if (is_memo && memoi_session_chooses(desc)) first.slice_rows = desc->n_rows;
    if (!is_alpha)
        status = is_memo
                     ? memoi_session_plan_sizes(&first, NULL, MEMOI_ROWS_EFFORT_FIRST, &plan, error)
                     : memo_session_plan(&first, NULL, &plan, error);
    if (!status && (is_alpha || (is_memo && (!memoi_step_plan_fits(plan) || plan->n_streamed)))) {
        memo_step_plan_destroy(plan);
        plan = NULL;
        profiles = (memo_profile*)memob_calloc(MEMO_SHAPES_MAX, sizeof *profiles);
        status = profiles ? memo_session_measure(desc, profiles, error)
                          : memoi_session_verdict(desc, memob_no_memory(error, "a profile"), error);
        if (!status) status = memo_session_plan(desc, profiles, &plan, error);
        MEMO_FREE(profiles);
    }
    if (!status) status = memo_session_open(desc, plan, session, error);
    if (!status) {
        (*session)->own_plan = plan;
        return status;
    }
    memo_step_plan_destroy(plan);
    *session = NULL; /* step may have stored a session of a dry run there, which is gone */
    return status;
}

void memo_session_get_info(const memo_session* s, memo_session_info* info) {
    info->plan = s->part->plan;
    info->arena = s->part->arena;
    info->swap = s->part->swap;
    info->states_to_host_bytes = s->states ? s->states->sink.engine.copied_bytes[0] : 0;
    info->states_to_device_bytes = s->states ? s->states->sink.engine.copied_bytes[1] : 0;
}
