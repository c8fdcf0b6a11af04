#pragma once
#include "sp/comm.h"
#include "sp/attention/exchange.h"
/* ---- >>uploads ----------------------------------------------------------------------------------
 * Knows: the segments of a plan's steps, and a device.  Knows nothing of what is computed.
 *
 * 1. Every array that is announced on the device is written. */

/* Plan number d of a ring over nodes; without nodes the plan itself. */
MEMOI memo_exchange* memoi_exchange_ring(memo_exchange* plan, int32_t d) {
    return plan->of_nodes ? &plan->of_nodes[d] : plan;
}

/* Step s of mask m of plan d has index i of all. */
MEMOI memoi_block_segments* memoi_exchange_next(memo_exchange* plan, int32_t* d, int64_t* i) {
    const int64_t n_masks = (int64_t)plan->shape.n_parts * plan->n_levels;
    for (; *d < plan->shape.n_nodes; ++*d, *i = 0) {
        memo_exchange* ring = memoi_exchange_ring(plan, *d);
        if (*i < (ring->last_step + 1) * n_masks) return &ring->steps[(*i)++].seen;
    }
    return NULL;
}

/* Enqueues one copy of the arrays of all steps. */
MEMOI memo_status memoi_exchange_upload(memo_exchange* plan, const memo_device* device,
                                        memo_stream stream, memo_error* error) {
    memoi_block_segments* b;
    int64_t n = 0, i = 0;
    int32_t d = 0, *words, *at;
    memo_status status;
    if (!plan->launches) return MEMO_STATUS_OK;
    while ((b = memoi_exchange_next(plan, &d, &i)) != NULL) n += memoi_block_segments_count(b);
    if (!n) return MEMO_STATUS_OK;
    words = at = MEMOB_ARRAY(&plan->arrays, int32_t, n);
    if (!words) return memob_no_memory(error, "the segments of an exchange");
    status = memo_device_alloc(device, n * 4, &plan->on_device, error);
    if (status) return status;
    for (d = 0, i = 0; (b = memoi_exchange_next(plan, &d, &i)) != NULL;)
        at = memoi_block_segments_write(b, at, (const int32_t*)plan->on_device + (at - words));
    MEMO_ASSERT(at == words + n); /* 1 */
    return memo_copy(device, stream, MEMO_COPY_TO_DEVICE, plan->on_device, words, n * 4, error);
}
