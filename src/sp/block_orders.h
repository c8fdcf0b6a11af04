#pragma once
#include "sp/target.h"
/* ---- >>block orders -----------------------------------------------------------------------------
 * Knows: blocks, parts, two streams, a target, and the trainer's functions.  Knows nothing of
 * attention or of how a pass is called.
 *
 * 1. Operations are of blocks and parts that the schedule has. */

const char* memo_blocks_order_name(memo_blocks_order order) {
    static const char* const names[] = {"default", "pipelined", "cross", "fine"};
    MEMOB_TABLE_OF(MEMO_N_BLOCKS_ORDERS, names);
    return MEMOI_NAME(names, order, "no order");
}

#define MEMOI_BLOCKS_MAX (1 << 20) /* n_blocks x n_parts: each makes about 10 operations */

typedef enum memoi_blocks_kind {
    MEMOI_BLOCKS_FORWARD = 0,
    MEMOI_BLOCKS_RECOMPUTE,
    MEMOI_BLOCKS_BACKWARD,
    MEMOI_BLOCKS_WEIGHTS,
    MEMOI_BLOCKS_END,
    MEMOI_BLOCKS_REDUCE_FORWARD,   /* from here on: on the comm stream */
    MEMOI_BLOCKS_REDUCE_RECOMPUTE, /* of a layer's last block: unread; the published order has it */
    MEMOI_BLOCKS_REDUCE_BACKWARD,
    MEMOI_N_BLOCKS_KINDS
} memoi_blocks_kind;

struct memo_blocks {
    memo_blocks_desc desc; /* with defaults filled in */
    memoi_target target;   /* events: n_parts each: ready, reduced, returned */
    int32_t n_layers;
    memo_label agreed;                   /* digests of the desc; text is not used */
    int32_t is_backward;                 /* the pass that runs */
    int32_t has_met;                     /* its first collective is enqueued */
    int64_t n_ops;                       /* collectives enqueued in this pass */
    int32_t next_forward, next_backward; /* the layer that may come next; -1: none */
    int64_t n_ahead;                     /* forward passes whose backward has not begun */
};

enum { MEMOI_BLOCKS_READY, MEMOI_BLOCKS_REDUCED, MEMOI_BLOCKS_RETURNED, MEMOI_BLOCKS_EVENTS };

/* --- one op after another --- */

MEMOI int memoi_blocks_is_last(const memo_blocks_schedule_desc* desc, int32_t block) {
    return block % desc->blocks_per_layer == desc->blocks_per_layer - 1;
}

/* Returns 1 if forward saves the input of a block for its recomputation. */
MEMOI int memoi_blocks_is_saved(const memo_blocks_schedule_desc* desc, int32_t block) {
    return desc->order == MEMO_BLOCKS_FINE || block % desc->blocks_per_layer == 0;
}

/* Returns 1 if recomputation must compute the output: in the fine order never, in the cross order
 * not for a layer's last block. */
MEMOI int memoi_blocks_has_output(const memo_blocks_schedule_desc* desc, int32_t block) {
    if (desc->order == MEMO_BLOCKS_FINE) return 0;
    return desc->order != MEMO_BLOCKS_CROSS || !memoi_blocks_is_last(desc, block);
}

MEMOI void memoi_blocks_name(char name[40], memoi_blocks_kind kind, int32_t n, int32_t part) {
    static const char* const kinds[] = {"F", "R", "B", "W", "end-", "cF", "cR", "cB"};
    MEMOB_TABLE_OF(MEMOI_N_BLOCKS_KINDS, kinds);
    char block[16] = "";
    if (kind != MEMOI_BLOCKS_END) snprintf(block, sizeof block, "%d", (int)n + 1);
    if (part < 26)
        snprintf(name, 40, "%s%s%c", kinds[kind], block, 'a' + (int)part);
    else
        snprintf(name, 40, "%s%s.%d", kinds[kind], block, (int)part + 1);
}

MEMOI int memoi_blocks_is_comm(memoi_blocks_kind kind) {
    return kind >= MEMOI_BLOCKS_REDUCE_FORWARD;
}

/* Tells a recorder what a step does with y and g.  All else stays on the compute stream. */
MEMOI void memoi_blocks_announce(memo_blocks* b, memoi_blocks_kind kind,
                                 const memo_block_call* call) {
    const memo_block_buffers* buffers = &b->desc.buffers[call->part];
    const int is_reduced = memoi_blocks_is_comm(kind), is_end = kind == MEMOI_BLOCKS_END;
    const int has_gradient = kind == MEMOI_BLOCKS_BACKWARD ||
                             kind == MEMOI_BLOCKS_REDUCE_BACKWARD || (is_end && b->is_backward);
    const memo_range range = memob_range_at(has_gradient ? buffers->gradient : buffers->output,
                                            buffers->count * memo_type_bytes(b->desc.type));
    int n_reads = is_reduced || is_end ||
                  (kind == MEMOI_BLOCKS_BACKWARD ? call->block < b->desc.schedule.n_blocks - 1
                                                 : !call->is_input_saved);
    int n_writes = is_reduced || (!is_end && call->has_output);
    char name[40];
    memoi_blocks_name(name, kind, call->block, call->part);
    if (kind == MEMOI_BLOCKS_WEIGHTS) n_reads = n_writes = 0;
    memoi_target_announce(&b->target, is_reduced ? MEMOI_TARGET_COMM : MEMOI_TARGET_COMPUTE, name,
                          &range, n_reads, &range, n_writes, 0);
}

/* Calls the trainer's function for an op of the compute stream. */
MEMOI memo_status memoi_blocks_compute(const memo_blocks* b, memoi_blocks_kind kind,
                                       const memo_block_call* call) {
    const memo_block_functions* f = &b->desc.functions;
    const memo_block_function by_kind[] = {f->forward, f->recompute, f->backward, f->weights,
                                           b->is_backward ? f->backward_end : f->forward_end};
    MEMOB_TABLE_OF(MEMOI_BLOCKS_END + 1, by_kind);
    return by_kind[kind] ? by_kind[kind](f->context, call, b->target.error) : MEMO_STATUS_OK;
}

/* Fields of digests, in the order of memo_label.digests. */
enum { MEMOI_BLOCKS_PASS, MEMOI_BLOCKS_SCHEDULE, MEMOI_BLOCKS_SIZES };
static const char* const memoi_blocks_fields[MEMO_LABEL_FIELDS] = {
    "memo_blocks_forward on one rank, memo_blocks_backward on another", "memo_blocks_desc.schedule",
    "memo_blocks_desc: type or buffers.count"};

/* What all ranks must agree on. */
MEMOI void memoi_blocks_agree(memo_blocks* b) {
    const memo_blocks_schedule_desc* d = &b->desc.schedule;
    const int64_t schedule[] = {d->order, d->n_blocks, d->blocks_per_layer, d->n_parts,
                                d->splits_sequence != 0};
    b->agreed.fields = memoi_blocks_fields;
    memoi_label_add(&b->agreed, MEMOI_BLOCKS_SCHEDULE, schedule, sizeof schedule);
    memoi_label_add_number(&b->agreed, MEMOI_BLOCKS_SIZES, b->desc.type);
    for (int32_t s = 0; s < d->n_parts; s++)
        memoi_label_add_number(&b->agreed, MEMOI_BLOCKS_SIZES, b->desc.buffers[s].count);
}

/* Collectives of both passes may have the same counts; the label distinguishes them. */
MEMOI memo_status memoi_blocks_reduce(memo_blocks* b, memoi_blocks_kind kind, int32_t part) {
    const memo_block_buffers* buffers = &b->desc.buffers[part];
    memo_comm* comm = b->desc.comm;
    void* buffer = kind == MEMOI_BLOCKS_REDUCE_BACKWARD ? buffers->gradient : buffers->output;
    memoi_comm_label(comm, &b->agreed, !b->has_met,
                     b->is_backward ? "blocks backward" : "blocks forward", b->n_ops);
    b->has_met = 1;
    return memo_all_reduce(comm, b->target.streams[MEMOI_TARGET_COMM], buffer, buffer,
                           buffers->count, b->desc.type, MEMO_REDUCTION_SUM, b->target.error);
}

MEMOI void memoi_blocks_run_op(memo_blocks* b, memoi_blocks_kind kind, int32_t block,
                               int32_t part) {
    const memo_blocks_schedule_desc* desc = &b->desc.schedule;
    const int is_again = kind == MEMOI_BLOCKS_RECOMPUTE;
    memo_block_call call;
    MEMO_ASSERT(block >= 0 && block < desc->n_blocks && part >= 0 && part < desc->n_parts); /* 1 */
    call.block = block;
    call.part = part;
    call.stream = b->desc.compute_stream;
    call.keeps_input = memoi_blocks_is_saved(desc, block);
    call.is_input_saved = is_again ? call.keeps_input : block == 0;
    call.has_output = !is_again || memoi_blocks_has_output(desc, block);
    if (memoi_target_is_heard(&b->target)) memoi_blocks_announce(b, kind, &call);
    if (!b->target.status)
        b->target.status = memoi_blocks_is_comm(kind) ? memoi_blocks_reduce(b, kind, part)
                                                      : memoi_blocks_compute(b, kind, &call);
    b->n_ops++;
}

/* A record or a wait. */
MEMOI void memoi_blocks_sync(memo_blocks* b, int is_wait, int event, int32_t part, int stream) {
    (is_wait ? memoi_target_wait
             : memoi_target_record)(&b->target, event * b->desc.schedule.n_parts + part, stream);
    b->n_ops++;
}

/* In the default order the collective itself has been waited for. */
MEMOI void memoi_blocks_need(memo_blocks* b, int event, int32_t part) {
    if (b->desc.schedule.order != MEMO_BLOCKS_DEFAULT)
        memoi_blocks_sync(b, 1, event, part, MEMOI_TARGET_COMPUTE);
}

/* A collective after everything that compute has so far. */
MEMOI void memoi_blocks_collective(memo_blocks* b, memoi_blocks_kind kind, int event, int32_t block,
                                   int32_t part) {
    memoi_blocks_sync(b, 0, MEMOI_BLOCKS_READY, part, MEMOI_TARGET_COMPUTE);
    memoi_blocks_sync(b, 1, MEMOI_BLOCKS_READY, part, MEMOI_TARGET_COMM);
    memoi_blocks_run_op(b, kind, block, part);
    memoi_blocks_sync(b, 0, event, part, MEMOI_TARGET_COMM);
    if (b->desc.schedule.order == MEMO_BLOCKS_DEFAULT)
        memoi_blocks_sync(b, 1, event, part, MEMOI_TARGET_COMPUTE);
}

/* --- backward --- */

MEMOI void memoi_blocks_recompute(memo_blocks* b, int32_t block, int32_t part) {
    if (!memoi_blocks_is_saved(&b->desc.schedule, block))
        memoi_blocks_need(b, MEMOI_BLOCKS_REDUCED, part);
    memoi_blocks_run_op(b, MEMOI_BLOCKS_RECOMPUTE, block, part);
    if (memoi_blocks_has_output(&b->desc.schedule, block))
        memoi_blocks_collective(b, MEMOI_BLOCKS_REDUCE_RECOMPUTE, MEMOI_BLOCKS_REDUCED, block,
                                part);
}
MEMOI void memoi_blocks_recompute_all(memo_blocks* b, int32_t block) {
    for (int32_t k = 0; k < b->desc.schedule.n_parts; k++) memoi_blocks_recompute(b, block, k);
}

/* Runs a block's backward, part by part; recomputes: each part is recomputed just before. */
MEMOI void memoi_blocks_backward_of(memo_blocks* b, int32_t block, int recomputes) {
    /* At the end of a layer the gradient has been waited for: in the pipelined order by the
     * barrier; in the cross order by its recomputation, which waits for a later collective on the
     * comm stream. */
    const int is_there =
        block == b->desc.schedule.n_blocks - 1 ||
        (memoi_blocks_is_last(&b->desc.schedule, block) &&
         (b->desc.schedule.order == MEMO_BLOCKS_PIPELINED ||
          (b->desc.schedule.order == MEMO_BLOCKS_CROSS && b->desc.schedule.blocks_per_layer > 1)));
    for (int32_t k = 0; k < b->desc.schedule.n_parts; k++) {
        int32_t part = b->desc.schedule.splits_sequence ? b->desc.schedule.n_parts - 1 - k : k;
        if (recomputes) memoi_blocks_recompute(b, block, part);
        if (!is_there) memoi_blocks_need(b, MEMOI_BLOCKS_RETURNED, part);
        memoi_blocks_run_op(b, MEMOI_BLOCKS_BACKWARD, block, part);
        memoi_blocks_collective(b, MEMOI_BLOCKS_REDUCE_BACKWARD, MEMOI_BLOCKS_RETURNED, block,
                                part);
        if (b->desc.functions.weights) memoi_blocks_run_op(b, MEMOI_BLOCKS_WEIGHTS, block, part);
    }
}

MEMOI void memoi_blocks_barrier(memo_blocks* b, int event) {
    for (int32_t s = 0; s < b->desc.schedule.n_parts; s++) memoi_blocks_need(b, event, s);
}

/* The first blocks of the layer are recomputed before its backward: in the fine order none, in the
 * cross order all but the last.  Other blocks are recomputed just before their own backward, part
 * by part; attention over parts of a sequence is recomputed for all parts. */
MEMOI void memoi_blocks_backward_layer(memo_blocks* b, int32_t layer) {
    const memo_blocks_schedule_desc* desc = &b->desc.schedule;
    const int32_t first = layer * desc->blocks_per_layer, end = first + desc->blocks_per_layer;
    int32_t recomputed = end;
    if (desc->order == MEMO_BLOCKS_FINE) recomputed = first;
    if (desc->order == MEMO_BLOCKS_CROSS) recomputed = end - 1;
    for (int32_t i = first; i < recomputed; i++) memoi_blocks_recompute_all(b, i);
    if (recomputed == end) memoi_blocks_barrier(b, MEMOI_BLOCKS_REDUCED);
    for (int32_t i = end - 1; i >= first; i--) {
        const int couples = i >= recomputed && desc->splits_sequence && i == first;
        if (couples) memoi_blocks_recompute_all(b, i);
        memoi_blocks_backward_of(b, i, i >= recomputed && !couples);
    }
    if (desc->order == MEMO_BLOCKS_PIPELINED && first > 0)
        memoi_blocks_barrier(b, MEMOI_BLOCKS_RETURNED);
}

/* One layer; after the last one of the pass the trainer takes over. */
MEMOI void memoi_blocks_layer(memo_blocks* b, int32_t layer) {
    const int32_t end = b->is_backward ? 0 : b->n_layers - 1;
    const int32_t first = layer * b->desc.schedule.blocks_per_layer, n = b->desc.schedule.n_parts;
    if (b->is_backward) memoi_blocks_backward_layer(b, layer);
    for (int32_t k = 0; k < b->desc.schedule.blocks_per_layer * n && !b->is_backward; k++) {
        const int32_t i = first + k / n, s = k % n;
        if (i > 0) memoi_blocks_need(b, MEMOI_BLOCKS_REDUCED, s);
        memoi_blocks_run_op(b, MEMOI_BLOCKS_FORWARD, i, s);
        memoi_blocks_collective(b, MEMOI_BLOCKS_REDUCE_FORWARD, MEMOI_BLOCKS_REDUCED, i, s);
    }
    for (int32_t s = 0; s < n && layer == end; s++) {
        memoi_blocks_need(b, b->is_backward ? MEMOI_BLOCKS_RETURNED : MEMOI_BLOCKS_REDUCED, s);
        memoi_blocks_run_op(b, MEMOI_BLOCKS_END, b->is_backward ? 0 : b->desc.schedule.n_blocks - 1,
                            s);
    }
}
