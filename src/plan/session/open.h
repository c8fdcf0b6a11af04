#pragma once
#include "plan/session/running.h"
/* --- >>session open ---
 * Knows: memory, arena and engines of a plan.  Knows nothing of how the plan was made.
 *
 * 1. The block of the device has the bytes of every plan.
 * 2. What has a file begins with a whole page of the host's memory. */

/* Takes the caller's memory or the device's, unless it has been taken; host_bytes of rows.  A
 * session that plans again takes its whole budget, if it gets so much.  Without memory of the
 * caller states take their own.  On the host, what has a file comes first: it has whole pages, as a
 * file needs. */
MEMOI memo_status memoi_session_take_memory(memo_session* s, int64_t device_bytes,
                                            int64_t host_bytes, memo_error* error) {
    const int64_t states_bytes = s->states_sizes.host_bytes;
    const int64_t both_bytes = memob_align_up(host_bytes, MEMOB_DEVICE_ALIGNMENT) + states_bytes;
    const int states_are_first = s->states_sizes.spill_bytes > 0;
    const int64_t rows_at = states_are_first ? states_bytes : 0;
    memo_status status = MEMO_STATUS_OK;
    const char* field = NULL;

    /* A plan for other budgets may need more. */
    if (s->desc.device_memory && device_bytes > s->desc.device_bytes) field = "device";
    if (s->desc.host_memory && both_bytes > s->desc.host_bytes) field = "host";
    if (field)
        return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                              "memo_session_desc.%s_memory: the plan takes %lld bytes, more than "
                              "%s_bytes; plan with these budgets, or give more memory",
                              field, (long long)(*field == 'd' ? device_bytes : both_bytes), field);

    if (!s->device_memory) {
        s->device_memory = s->desc.device_memory;
        s->memory_bytes = device_bytes;
        if (s->timing.plan)
            s->memory_bytes =
                memob_max(device_bytes,
                          s->desc.device_bytes / MEMOB_DEVICE_ALIGNMENT * MEMOB_DEVICE_ALIGNMENT);
        if (!s->device_memory && s->memory_bytes > device_bytes &&
            memo_device_alloc(s->device, s->memory_bytes, &s->device_memory, NULL))
            s->memory_bytes = device_bytes;
        if (!s->device_memory)
            status = memo_device_alloc(s->device, device_bytes, &s->device_memory, error);
    }
    MEMO_ASSERT(device_bytes <= s->memory_bytes); /* 1 */
    if (s->desc.host_memory) {
        char* base = (char*)s->desc.host_memory;
        s->host_memory = base + rows_at;
        if (!states_are_first) /* the same place under every plan */
            base += (s->desc.host_bytes - states_bytes) / MEMOB_DEVICE_ALIGNMENT *
                    MEMOB_DEVICE_ALIGNMENT;
        s->states_desc.host_memory = base;
        MEMO_ASSERT(rows_at % MEMOB_SPILL_ALIGNMENT == 0); /* 2 */
    } else if (!status && host_bytes) {
        status = memo_host_alloc(s->device, host_bytes, &s->host_memory, error);
    }
    return status;
}

/* The step of a shape in which nothing moves. */
MEMOI void memoi_session_start_step(memo_session* s) {
    memoi_session_part* part = s->part;
    if (s->states || s->failure.status) return;
    memob_engine_begin(&part->own_sink.engine, s->device, s->desc.compute_stream,
                       s->desc.computes_on_host, NULL, NULL);
    part->step = &part->own_step;
    memoi_keep(s, memob_swap_make_step(s->steps, &part->placement, &part->own_sink, part->step,
                                       &s->call_error));
}

#ifdef MEMO_CHECK_COMES /* extras/memo_check.h includes this header, and runs updates both ways */
MEMOI memo_status memo_check_updates(memo_session* s, memo_error* error);
#endif

/* Memory for the largest shape; arena and engine of each; a checked session's memory.  All ranks
 * call this, also those that have failed. */
MEMOI void memoi_session_start(memo_session* s) {
    int64_t device_bytes = 1, host_bytes = 0;
    memob_sink* base = NULL; /* whose streams all shapes use */

    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        host_bytes = memob_max(host_bytes, plan->sizes.host_bytes);
        device_bytes = memob_max(device_bytes, plan->addresses->peak_bytes);
    }
    memob_session_log(s, "session: taking %lld bytes of device memory, %lld of host memory",
                      (long long)device_bytes, (long long)host_bytes);
    s->is_open = 1;

    if (!s->failure.status)
        memoi_keep(s, memoi_session_take_memory(s, device_bytes, host_bytes, &s->call_error));
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        memo_swap_desc swap = s->parts[k].plan->swap;
        memoi_session_use_shape(s, k);
        if (!s->failure.status)
            memoi_keep(s,
                       memob_swap_placement_make(s->steps, 0, &s->part->placement, &s->call_error));
        s->part->skipped = (uint8_t*)memob_calloc(s->n_steps, 1);
        if (!s->part->skipped) memoi_keep(s, memob_no_memory(&s->call_error, "a session"));
        memoi_session_open_arena(s);
        if (s->failure.status) break;
        if (s->streamed && !s->states) {
            s->states_desc.trainer.update = memoi_session_update_layer;
            s->states_desc.trainer.look = s->desc.is_checked ? memoi_session_look : NULL;
            memoi_keep(s, memob_states_create(&s->states_desc, 0, &s->states, &s->call_error));
        }
        if (s->states && !s->failure.status)
            memoi_keep(s, memob_states_get_step(s->states, s->n_slices, memob_session_n_rounds(s),
                                                &s->part->step, &s->call_error));
        if (s->states) base = &s->states->sink;
        if (s->part->plan->shape.is_forward_only && s->n_slices == 1) { /* no row moves */
            memoi_session_start_step(s);
            continue;
        }
        swap.device = s->device;
        swap.compute_stream = s->desc.compute_stream;
        swap.computes_on_host = s->desc.computes_on_host;
        swap.spill_directory = s->desc.spill_directory; /* another rank's may have made the plan */
        swap.spill_bytes_per_s = s->desc.spill_bytes_per_s;
        swap.is_timed = s->desc.is_timed;
        swap.device_memory = s->part->base;
        swap.host_memory = s->host_memory;
        memoi_keep(s, memob_swap_create(&swap, 0, &s->part->placement, base, &s->part->swap,
                                        &s->call_error));
        if (!base && s->part->swap) base = s->part->swap->sink;
        if (!s->states && s->part->swap) s->part->step = &s->part->swap->step;
    }
    memoi_session_use_shape(s, 0);
    if (!s->failure.status && s->desc.is_checked)
        memoi_keep(s, memoi_checked_create(s, &s->call_error));
#ifdef MEMO_CHECK_COMES
    if (!s->failure.status) memoi_keep(s, memo_check_updates(s, &s->call_error));
#endif
}
