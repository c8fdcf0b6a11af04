#pragma once
#include "plan/session/timing.h"
/* --- >>session life ---
 * Knows: which steps create a session, and in which order.  Knows nothing of how a step is done. */

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
        status = is_last ? memo_session_plan(&least, NULL, &plan, error)
                         : memoi_session_plan_sizes(NULL, &least, NULL, MEMOI_ROWS_EFFORT_FIRST,
                                                    &plan, error);
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

void memo_session_get_info(const memo_session* s, memo_session_info* info) {
    info->plan = s->part->plan;
    info->arena = s->part->arena;
    info->swap = s->part->swap;
    info->states_to_host_bytes = s->states ? s->states->sink.engine.copied_bytes[0] : 0;
    info->states_to_device_bytes = s->states ? s->states->sink.engine.copied_bytes[1] : 0;
}
