#pragma once
#include "plan/session/timing.h"
/* --- >>session life ---
 * Knows: which steps create a session, and in which order.  Knows nothing of how a step is done. */

memo_status memo_session_get_least(const memo_session_desc* desc, int64_t* device_bytes,
                                   memo_error* error) {
    memo_session_desc least;
    memo_step_plan *plan = NULL, *p;
    int64_t more_bytes;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "device_bytes", device_bytes);
    *device_bytes = 0;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    least = *desc;

    /* The bytes of the smallest plan. */
    least.device_bytes = 1;
    status = memoi_session_plan_sizes(NULL, &least, NULL, MEMOI_ROWS_EFFORT_FIRST, &plan, error);
    for (p = plan; p; p = p->next) *device_bytes = memob_max(*device_bytes, p->device_bytes);
    memo_step_plan_destroy(plan);
    if (status) return status;

    /* It may lack host or disk; a plan that uses less of them takes more of the device. */
    least.device_bytes = memob_max(*device_bytes, 1);
    least.is_unadvised = 0;
    status = memoi_session_plan_or_advise(&least, NULL, &plan, &more_bytes, error);
    *device_bytes = memob_max(*device_bytes, more_bytes);
    for (p = plan; p && !status && !more_bytes; p = p->next)
        if (!p->fits) status = memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s", p->shortage);
    memo_step_plan_destroy(plan);
    return status;
}

memo_session_info memo_session_get_info(const memo_session* s) {
    memo_session_info info = MEMO_ZERO(memo_session_info);
    if (!s) return info;
    info.plan = s->part->plan;
    info.arena = s->part->arena;
    info.swap = s->part->swap;
    info.states_to_host_bytes = s->states ? s->states->sink.engine.copied_bytes[0] : 0;
    info.states_to_device_bytes = s->states ? s->states->sink.engine.copied_bytes[1] : 0;
    return info;
}
