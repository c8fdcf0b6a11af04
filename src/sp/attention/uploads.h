#pragma once
#include "sp/attention/exchange.h"
#include "sp/attention/desc.h"
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

/* A block has a segment for each piece of a mask's segment that a run of queries cuts out, and one
 * more for each begin or end of a run of keys that an end of what queries see passes. */
int64_t memo_exchange_device_bytes(const memo_sp_attention_desc* desc, int64_t n_segments) {
    const int64_t most_levels = desc->has_levels ? MEMO_LEVELS_MAX : 1;
    const int64_t n_masks = memob_max(desc->n_masks, 1) * most_levels;
    int64_t n_runs = 2;
    for (int i = 0; i < 2; i++) {
        const memo_sharding* s = i ? &desc->key_sharding : &desc->sharding;
        if (s->slice_tokens) n_runs = memob_max(n_runs, 2 * (s->n_tokens / s->slice_tokens + 1));
        if (s->kind == MEMO_SHARDING_DOCUMENTS) n_runs = memob_max(n_runs, n_segments + 64);
    }
    n_runs += memob_min(n_segments + n_runs, MEMOI_PIECES_MAX); /* of rows that travel */
    return desc->sharding.ring * (n_segments + n_masks * (5 * n_runs + 8)) * MEMOI_SEGMENT_BYTES;
}

/* Enqueues one copy of the arrays of all steps. */
MEMOI memo_status memoi_exchange_upload(memo_exchange* plan, const memo_exchange_desc* desc,
                                        const memo_device* device, memo_stream stream,
                                        memo_error* error) {
    memoi_block_segments* b;
    int64_t n = 0, i = 0;
    int32_t d = 0, *words, *at;
    memo_status status;
    if (!plan->launches) return MEMO_STATUS_OK;
    while ((b = memoi_exchange_next(plan, &d, &i)) != NULL) n += memoi_block_segments_count(b);
    if (!n) return MEMO_STATUS_OK;
    words = at = MEMOB_ARRAY(&plan->arrays, int32_t, n);
    if (!words) return memob_no_memory(error, "the segments of an exchange");
    if (desc->device_memory && desc->device_bytes < n * 4)
        return MEMOI_REFUSE("memo_exchange_desc.device_bytes: %lld, but the segments need %lld; "
                            "memo_exchange_device_bytes of the masks is enough",
                            (long long)desc->device_bytes, (long long)n * 4);
    status = MEMO_STATUS_OK;
    plan->on_device = desc->device_memory;
    if (!plan->on_device) {
        status = memo_device_alloc(device, n * 4, &plan->allocated, error);
        plan->on_device = plan->allocated;
    }
    if (status) return status;
    for (d = 0, i = 0; (b = memoi_exchange_next(plan, &d, &i)) != NULL;)
        at = memoi_block_segments_write(b, at, (const int32_t*)plan->on_device + (at - words));
    MEMO_ASSERT(at == words + n); /* 1 */
    return memo_copy(device, stream, MEMO_COPY_TO_DEVICE, plan->on_device, words, n * 4, error);
}
