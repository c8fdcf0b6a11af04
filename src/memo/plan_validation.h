#pragma once
#include "memo/plan.h"
/* ---- >>plan validation --------------------------------------------------------------------------
 * Knows: a plan alone.  Knows nothing of planners, and shares no code with them.
 *
 * 1. A culprit is a buffer of the plan, or -1.
 * 2. The buffers of a lane are looked at from the first on that begins at a time or later. */

MEMOI memo_status memoi_plan_check_offsets(const memo_plan* plan, int64_t* culprit,
                                           memo_error* error) {
    int64_t peak = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        const int64_t most = MEMOB_BYTES_MAX - memob_buffer_bytes(plan, i);
        if (!memob_is_within(buffer->offset_bytes, 0, most) ||
            buffer->offset_bytes % memob_buffer_alignment(plan, i))
            return memoi_plan_buffer_error(
                plan, i, culprit, error,
                "its offset is negative, not aligned, or ends beyond 2^62");
        peak = memob_max(peak, buffer->offset_bytes + memob_buffer_bytes(plan, i));
    }
    if (plan->peak_bytes != peak)
        return MEMOB_INVALID(error, "plan.peak_bytes: wrong (%lld); offsets and sizes give %lld",
                             (long long)plan->peak_bytes, (long long)peak);
    if (plan->proof == MEMO_PROOF_OPTIMAL && peak < plan->lower_bound_bytes)
        return MEMOB_INVALID(error, "plan.peak_bytes: below the lower bound");
    return MEMO_STATUS_OK;
}

/* The first buffer of a lane that begins at `time` or later; lanes lists buffers by lane, then
 * begin. */
MEMOI int64_t memoi_plan_lanes_find(const memo_plan* plan, const memob_keyed* lanes, int32_t lane,
                                    int64_t time) {
    int64_t low = 0, high = plan->n_buffers;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (lanes[middle].key > lane ||
            (lanes[middle].key == lane && plan->buffers[lanes[middle].index].begin >= time))
            high = middle;
        else
            low = middle + 1;
    }
    MEMO_ASSERT(low == plan->n_buffers || lanes[low].key > lane || /* 2 */
                plan->buffers[lanes[low].index].begin >= time);
    MEMO_ASSERT(low == 0 || lanes[low - 1].key < lane || /* 2 */
                plan->buffers[lanes[low - 1].index].begin < time);
    return low;
}

/* No buffer shares a byte with a buffer that it is held against; with check_offsets 0, no fixed
 * buffer with another. */
MEMOI memo_status memob_plan_check_holds(const memo_plan* plan, int check_offsets, int64_t* culprit,
                                         memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t k;
    memob_keyed* lanes = (memob_keyed*)memob_calloc(plan->n_buffers, sizeof(memob_keyed));
    if (!lanes) return memob_no_memory(error, "validating a plan");
    for (int64_t i = 0; i < plan->n_buffers; i++)
        lanes[i] = memob_keyed_of(plan->buffers[i].lane, i);
    qsort(lanes, (size_t)plan->n_buffers, sizeof(memob_keyed), memob_keyed_compare);

    /* Each hold against the buffers of its lane that begin while the hold lasts. */
    for (int64_t i = 0; i < plan->n_holds && !status; i++) {
        const memo_hold* hold = &plan->holds[i];
        const memo_buffer* held = &plan->buffers[hold->buffer];
        k = memoi_plan_lanes_find(plan, lanes, hold->lane, held->end);
        for (; k < plan->n_buffers && lanes[k].key == hold->lane && !status; k++) {
            const memo_buffer* other = &plan->buffers[lanes[k].index];
            if (other->begin >= hold->until) break;
            if (held->size_bytes == 0 || other->size_bytes == 0 ||
                !(check_offsets || (held->is_fixed && other->is_fixed)) ||
                !memoi_plan_overlap(plan, hold->buffer, memob_buffer_bytes(plan, hold->buffer),
                                    lanes[k].index, memob_buffer_bytes(plan, lanes[k].index)))
                continue;
            *culprit = lanes[k].index;
            MEMO_ASSERT(*culprit >= 0 && *culprit < plan->n_buffers); /* 1 */
            status =
                MEMOB_INVALID(error,
                              "buffers %lld (id %lld) and %lld (id %lld) share bytes: lane %d may "
                              "not reuse the first before time %lld, and the second begins at %lld",
                              (long long)hold->buffer, (long long)held->id,
                              (long long)lanes[k].index, (long long)other->id, (int)hold->lane,
                              (long long)hold->until, (long long)other->begin);
        }
    }
    MEMO_FREE(lanes);
    return status;
}

/* Checks a plan; with check_offsets 0, only the problem. */
MEMOI memo_status memoi_plan_verify(const memo_plan* plan, int check_offsets, int64_t* culprit,
                                    memo_error* error) {
    int64_t bound;
    memo_status status = memoi_plan_check(plan, culprit, error);
    if (!status) status = memoi_plan_check_order(plan, culprit, error);
    if (status) return status;

    /* Order, times and offsets of each buffer. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        if (i > 0 && plan->buffers[i].begin < plan->buffers[i - 1].begin)
            return memoi_plan_buffer_error(
                plan, i, culprit, error,
                "it begins before the previous buffer; memo_plan_prepare sorts buffers");
        if (plan->buffers[i].end > plan->n_times)
            return memoi_plan_buffer_error(plan, i, culprit, error, "it ends after the last time");
    }
    status = memob_check_integer("plan", "body_begin", plan->body_begin, 0, plan->n_times, error);
    if (status) return status;
    if (check_offsets) status = memoi_plan_check_offsets(plan, culprit, error);
    if (!status) status = memoi_plan_sweep(plan, check_offsets, &bound, culprit, error);

    /* The bound last: the sweep has computed it. */
    if (!status && check_offsets && plan->n_holds > 0)
        status = memob_plan_check_holds(plan, 1, culprit, error);
    if (!status && bound != plan->lower_bound_bytes) {
        *culprit = -1;
        status = MEMOB_INVALID(
            error, "plan.lower_bound_bytes: wrong (%lld); lifetimes and sizes give %lld",
            (long long)plan->lower_bound_bytes, (long long)bound);
    }
    return status;
}

memo_status memo_plan_validate(const memo_plan* plan, memo_error* error) {
    int64_t culprit;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    if (plan->proof != MEMO_PROOF_FEASIBLE && plan->proof != MEMO_PROOF_OPTIMAL)
        return MEMOB_INVALID(error, "plan: it has no offsets; call memo_plan_solve first");
    return memoi_plan_verify(plan, 1, &culprit, error);
}
