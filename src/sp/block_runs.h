#pragma once
#include "sp/block_orders.h"
/* ---- >>block runs -------------------------------------------------------------------------------
 * Knows: creation, passes and layers.  Knows nothing of the order of operations. */

/* Fills in the defaults of desc->schedule. */
MEMOI memo_status memoi_blocks_check_desc(memo_blocks_desc* desc, memo_error* error) {
    static const char name[] = "memo_blocks_desc", schedule_name[] = "memo_blocks_schedule_desc";
    memo_blocks_schedule_desc* schedule = &desc->schedule;
    if (schedule->blocks_per_layer == 0) schedule->blocks_per_layer = 2;
    if (schedule->n_parts == 0) schedule->n_parts = 2;
    if (MEMOI_INTEGER(schedule_name, schedule, order, 0, MEMO_N_BLOCKS_ORDERS - 1) ||
        MEMOI_INTEGER(schedule_name, schedule, n_parts, 1, MEMOI_BLOCKS_MAX))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (schedule->n_blocks < 1 || schedule->blocks_per_layer < 1 ||
        schedule->n_blocks % schedule->blocks_per_layer)
        return MEMOI_REFUSE("memo_blocks_schedule_desc.n_blocks: not whole layers (%d blocks, %d "
                            "per layer); use a positive multiple of blocks_per_layer",
                            (int)schedule->n_blocks, (int)schedule->blocks_per_layer);
    if (MEMOI_INTEGER(schedule_name, schedule, n_blocks, 1, MEMOI_BLOCKS_MAX / schedule->n_parts) ||
        MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, comm) ||
        MEMOI_GIVEN(name, desc, buffers) || MEMOI_GIVEN(name, desc, functions.forward) ||
        MEMOI_GIVEN(name, desc, functions.recompute) ||
        MEMOI_GIVEN(name, desc, functions.backward) ||
        MEMOI_INTEGER(name, desc, type, 0, MEMO_N_TYPES - 1))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Parts run side by side, each in its own buffers. */
    for (int32_t s = 0; s < schedule->n_parts; s++) {
        const memo_block_buffers* buffers = &desc->buffers[s];
        if (MEMOI_GIVEN("memo_block_buffers", buffers, output) ||
            MEMOI_GIVEN("memo_block_buffers", buffers, gradient) ||
            MEMOI_INTEGER("memo_block_buffers", buffers, count, 0, INT64_MAX))
            return MEMO_STATUS_INVALID_ARGUMENT;
    }
    return MEMO_STATUS_OK;
}

/* Streams, events and copies.  Both passes use the same events. */
MEMOI memo_status memoi_blocks_prepare(memo_blocks* blocks, const memo_blocks_desc* desc,
                                       memo_error* error) {
    const memo_blocks_schedule_desc* schedule = &blocks->desc.schedule;
    memo_block_buffers* buffers;
    memoi_target* target = &blocks->target;
    memo_status status;
    blocks->desc = *desc;
    blocks->next_forward = blocks->next_backward = -1;
    status = memoi_blocks_check_desc(&blocks->desc, error);
    if (status) return status;
    buffers = MEMOB_ARRAY(&target->arrays, memo_block_buffers, schedule->n_parts);
    target->n_events = MEMOI_BLOCKS_EVENTS * schedule->n_parts;
    target->events = MEMOB_ARRAY(&target->arrays, memo_event, target->n_events);
    if (target->arrays.failed) return memob_no_memory(error, "overlapped blocks");

    memcpy(buffers, blocks->desc.buffers, (size_t)schedule->n_parts * sizeof *buffers);
    blocks->desc.buffers = buffers;
    blocks->n_layers = schedule->n_blocks / schedule->blocks_per_layer;
    target->device = blocks->desc.device;
    target->streams[MEMOI_TARGET_COMPUTE] = blocks->desc.compute_stream;
    for (int32_t k = 0; k < target->n_events && !status; k++)
        status = memo_event_create_untimed(target->device, &target->events[k], error);
    if (!status)
        status = memo_stream_create(target->device, "comm", 1, &target->streams[MEMOI_TARGET_COMM],
                                    error);
    memoi_blocks_agree(blocks);
    return status;
}

MEMOI_TARGET_OBJECT(blocks, "overlapped blocks")

/* A layer that may come next, or all. */
MEMOI memo_status memoi_blocks_run(memo_blocks* blocks, int is_backward, int32_t layer,
                                   memo_error* error) {
    const int32_t top = blocks->n_layers - 1, step = is_backward ? -1 : 1;
    const int32_t next = is_backward ? blocks->next_backward : blocks->next_forward;
    const int is_all = layer == MEMO_ALL_LAYERS;
    const int32_t first = is_all ? is_backward * top : layer;
    const int32_t last = is_all ? !is_backward * top : layer;
    const char* hint =
        next < 0 ? "run forward for all layers first" : "run layers in descending order";
    if (!is_backward) hint = "layer 0 is valid, or the next one";
    if (first < 0 || first > top || (first != next && (first || is_backward)))
        return MEMOI_FAIL(INVALID_STATE, "memo_blocks_%s: out of order (layer %d); %s",
                          is_backward ? "backward" : "forward", (int)first, hint);
    for (layer = first; layer != last + step; layer += step) {
        if (layer == (is_backward ? top : 0)) {
            blocks->n_ops = blocks->has_met = 0;
            blocks->n_ahead -= is_backward;
        }
        blocks->is_backward = is_backward;
        blocks->agreed.digests[MEMOI_BLOCKS_PASS] = (uint32_t)is_backward;
        blocks->target.status = MEMO_STATUS_OK;
        blocks->target.error = error;
        blocks->next_forward = blocks->next_backward = -1;
        memoi_blocks_layer(blocks, layer);
        if (blocks->target.status) return blocks->target.status;

        /* What may come next. */
        if (!is_backward) blocks->next_forward = layer + 1;
        if (!is_backward && layer == top) blocks->n_ahead++;
        if (is_backward && layer)
            blocks->next_backward = layer - 1;
        else if (is_backward ? blocks->n_ahead > 0 : layer == top)
            blocks->next_backward = top;
    }
    return MEMO_STATUS_OK;
}

memo_status memo_blocks_forward(memo_blocks* blocks, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "blocks", blocks);
    return memoi_blocks_run(blocks, 0, layer, error);
}
memo_status memo_blocks_backward(memo_blocks* blocks, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "blocks", blocks);
    return memoi_blocks_run(blocks, 1, layer, error);
}
