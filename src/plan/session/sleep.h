#pragma once
#include "plan/session/running.h"
/* --- >>session sleep ---
 * Knows: what lies on the device between two micro-batches, and how a session gives the device's
 * memory away and takes it again.  Knows nothing of what rows and states are for.
 *
 * 1. A session that sleeps has no address on the device.
 * 2. What is kept comes back to where the plan has it.
 * 3. No more is kept than the plan says. */

/* Ends what has an address on the device: all that lay there is kept, or has no value. */
MEMOI void memoi_session_drop_device(memo_session* s) {
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        memoi_session_part* part = &s->parts[k];
        memo_arena_destroy(part->arena);
        part->arena = NULL;
        part->base = NULL;
        if (part->swap) part->swap->own_sink.engine.memory.device = NULL;
    }
    if (s->states) s->states->sink.engine.memory.device = NULL;
    memset(s->buffer_addresses, 0, sizeof s->buffer_addresses);
    s->device_memory = NULL;
}

/* All streams are idle, and streamed states are at home. */
MEMOI memo_status memoi_session_leave_device(memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (!s->desc.computes_on_host)
        status = memo_stream_synchronize(s->device, s->desc.compute_stream, error);
    for (int32_t k = 0; k < s->desc.n_shapes && !status; k++)
        if (s->parts[k].swap)
            status = memob_engine_synchronize(&s->parts[k].swap->own_sink.engine, error);
    if (s->states && !status) status = memob_states_leave(s->states, error);
    return status;
}

/* Do these bytes lie in the session's memory? */
MEMOI int memoi_session_is_on_device(const memo_session* s, const char* address, int64_t n_bytes) {
    const char* const begin = (const char*)s->device_memory;
    return address >= begin && address + n_bytes <= begin + s->memory_bytes;
}

/* Copies buffers of pass SESSION to `kept`, or from there; kept NULL: only counts.  Then the same
 * of resident states.  *n_bytes: all of them. */
MEMOI memo_status memoi_session_keep(memo_session* s, char* kept, int is_back, int64_t* n_bytes,
                                     memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t states_bytes = 0, n = 0;
    for (int32_t i = 0; i < s->desc.n_buffers && !status; i++) {
        const int64_t size_bytes = memoi_session_buffer_bytes(s, i, s->desc.n_rows);
        char* const address = (char*)s->buffer_addresses[i];
        if (s->desc.buffers[i].first != MEMO_PASS_SESSION) continue;
        MEMO_ASSERT(!size_bytes || memoi_session_is_on_device(s, address, size_bytes)); /* 2 */
        if (kept && size_bytes)
            status = memob_copy_now(s->device, s->sleep_stream, address, kept + n, size_bytes,
                                    is_back, error);
        n += size_bytes;
    }
    if (s->states && !status)
        status = memob_states_keep(s->states, s->sleep_stream, kept ? kept + n : NULL, is_back,
                                   memob_states_worthless(s->states), NULL, &states_bytes, error);
    *n_bytes = n + states_bytes;
    return status;
}

memo_status memo_session_sleep(memo_session* s, memo_error* error) {
    int64_t n_bytes = 0;
    char* kept = NULL;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_SLEEP, error);
    if (!status) status = memoi_session_leave_device(s, error);
    if (!status && !s->sleep_stream)
        status = memo_stream_create(s->device, "sleep", 0, &s->sleep_stream, error);
    if (!status) status = memoi_session_keep(s, NULL, 0, &n_bytes, error);
    MEMO_ASSERT(n_bytes <= s->part->plan->sleep_bytes); /* 3 */
    if (!status) kept = (char*)MEMO_MALLOC((size_t)memob_max(n_bytes, 1));
    if (!status && !kept)
        status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                "memo_session_sleep: no host memory for %lld bytes that stay on "
                                "the device; see memo_step_plan.sleep_bytes",
                                (long long)n_bytes);

    if (!status) status = memoi_session_keep(s, kept, 0, &n_bytes, error);
    if (!status && !s->desc.device_memory)
        status = memo_device_free(s->device, s->device_memory, error);
    if (status) { /* it is awake */
        MEMO_FREE(kept);
        return status;
    }
    s->slept_at = (uintptr_t)s->device_memory;
    s->kept_bytes = kept;
    memoi_session_drop_device(s);
    memob_session_log(s, "session: sleeps; %lld bytes are kept in host memory", (long long)n_bytes);
    return status;
}

/* Opens all shapes in the device memory, and brings back what was kept. */
MEMOI memo_status memoi_session_return(memo_session* s, memo_error* error) {
    const memo_batch batch = s->batch;
    int64_t n_bytes = 0;
    memoi_session_begin_call(s);
    for (int32_t k = 0; k < s->desc.n_shapes && !s->failure.status; k++) {
        memoi_session_use_shape(s, k);
        memoi_session_open_arena(s);
        if (s->part->swap) s->part->swap->own_sink.engine.memory.device = s->part->base;
    }
    memoi_session_use_shape(s, batch.shape);
    s->batch = batch;
    if (s->states) s->states->sink.engine.memory.device = (char*)s->states_desc.device_memory;

    if (!s->failure.status)
        memoi_keep(s, memoi_session_keep(s, s->kept_bytes, 1, &n_bytes, &s->call_error));
    if (s->states && !s->failure.status)
        memoi_keep(s, memob_states_fetch(s->states, &s->call_error));
    return memoi_session_end_call(s, error);
}

memo_status memo_session_wake(memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    MEMOB_REFUSE_NULL(error, "session", s);
    if (!s->kept_bytes)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_wake: the session does not sleep; memo_session_sleep "
                              "comes before");
    memoi_session_forget(s);
    if (s->error.status) return memoi_session_report(s, error);
    MEMO_ASSERT(!s->device_memory && !s->part->arena && !s->part->base); /* 1 */
    s->device_memory = s->desc.device_memory;
    if (!s->device_memory)
        status = memo_device_alloc(s->device, s->memory_bytes, &s->device_memory, error);
    if (status) return status;
    status = memoi_session_return(s, error);
    if (status) {
        if (!s->desc.device_memory)
            MEMOB_IGNORE(memo_device_free(s->device, s->device_memory, NULL));
        memoi_session_drop_device(s);
        return status;
    }
    MEMO_FREE(s->kept_bytes);
    s->kept_bytes = NULL;
    if (s->desc.planned && s->slept_at != (uintptr_t)s->device_memory)
        s->desc.planned(s->desc.user, s, s->parts[0].plan);
    return status;
}
