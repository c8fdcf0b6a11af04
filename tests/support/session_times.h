/* session_times.h - the times that a session takes in its first steps, for plans by them. */
#ifndef SESSION_TIMES_H
#define SESSION_TIMES_H

#include <string.h>

#include "memo_plan.h"

/* Trains micro-batches of all shapes with a backward in turn, a step each, until the session knows
 * their times: `n` of each shape count, at most 12.  profiles: one for each shape; zeros for shapes
 * without a backward. */
static memo_status session_times_of(const memo_session_desc* desc, int32_t n,
                                    memo_profile* profiles, memo_error* why) {
    const int32_t n_shapes = desc->n_shapes > 0 ? desc->n_shapes : 1;
    memo_session_desc own = *desc;
    memo_session* s = NULL;
    memo_status status;
    int32_t i, k = 0, turn, n_trained = 0;
    for (i = 0; i < n_shapes; i++) n_trained += !desc->n_shapes || !desc->shapes[i].is_forward_only;
    own.timed_steps = 1 + n * n_trained;
    status = memo_session_create(&own, &s, why);
    for (i = 0; i <= own.timed_steps && !status; i++, k = (k + 1) % n_shapes) {
        memo_batch batch = MEMO_ZERO(memo_batch);
        while (desc->n_shapes && desc->shapes[k].is_forward_only) k = (k + 1) % n_shapes;
        batch.shape = k;
        for (turn = 0; (turn == 0 || turn < desc->n_order) && !status; turn++) {
            if (desc->n_order) batch.turn = desc->order[turn];
            status = memo_session_run(s, &batch, why);
        }
        if (!status && (desc->n_states || desc->agree)) status = memo_session_update(s, why);
    }
    for (k = 0; k < n_shapes && !status; k++) {
        memset(&profiles[k], 0, sizeof *profiles);
        if (!desc->n_shapes || !desc->shapes[k].is_forward_only)
            status = memo_session_get_profile(s, k, &profiles[k], why);
    }
    memo_session_destroy(s);
    return status;
}

static MEMO_UNUSED memo_status session_times(const memo_session_desc* desc, memo_profile* profiles,
                                             memo_error* why) {
    return session_times_of(desc, 6, profiles, why);
}

#endif
