#pragma once
#include "memo/states_snapshot.h"
#include "plan/session/running.h"
/* --- >>session snapshot ---
 * Knows: when states may be written out while steps go on.  Knows nothing of where they lie.
 *
 * 1. A piece that is written lies in its state. */

/* A piece goes to the caller, on the snapshot's thread. */
MEMOI memo_status memoi_session_write(void* session, int32_t layer, int32_t state, int64_t at,
                                      const void* bytes, int64_t n_bytes, memo_error* error) {
    const memo_session* s = (const memo_session*)session;
    memo_error why = MEMO_ZERO(memo_error);
    memo_status status;
    MEMO_ASSERT(at >= 0 && n_bytes > 0 && at + n_bytes <= s->desc.states[state].size_bytes); /* 1 */
    status = s->snapshot.write(s->snapshot.user, layer - 1, state, at, bytes, n_bytes, &why);
    return memoi_session_name_bytes(s, "memo_session_snapshot", layer, state, at, n_bytes, status,
                                    &why, error);
}

memo_status memo_session_snapshot(memo_session* s, const memo_snapshot_desc* desc,
                                  memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "desc->write", desc->write);
    status = memoi_session_check_call(s, MEMOI_CALL_SNAPSHOT, error);
    if (!status) status = memo_session_flush(s, error);
    if (status) return status;
    s->snapshot = *desc;
    return memob_states_take_snapshot(s->states, memoi_session_write, error);
}

memo_status memo_session_finish_snapshot(memo_session* s, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    return s->states ? memob_states_finish_snapshot(s->states, error) : MEMO_STATUS_OK;
}
