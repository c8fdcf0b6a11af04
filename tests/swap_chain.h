/* swap_chain.h - a chain of layers that writes patterns in the forward and checks them in the backward.
 *
 * The forward of a layer writes a pattern into every row of every tensor.  The backward rewrites the
 * rows that the engine does not bring back (recomputation), and compares all rows with the pattern.
 * Patterns differ by tensor, layer, row and micro-batch, so every misplaced byte is found. */
#ifndef SWAP_CHAIN_H
#define SWAP_CHAIN_H

#include "memo.h"
#include "memo_test.h"

#include <stdlib.h>

#define CHAIN_TENSORS_MAX 8
#define CHAIN_LAYERS_MAX  9 /* of chains with a table of rows */

typedef struct chain {
    memo_device* host;         /* runs functions */
    const memo_device* device; /* for the engine and announcements */
    memo_stream compute;
    memo_tensor tensors[CHAIN_TENSORS_MAX];
    int64_t rows[CHAIN_LAYERS_MAX * CHAIN_TENSORS_MAX]; /* if has_rows */
    int32_t has_rows;
    int32_t layer_kinds[CHAIN_LAYERS_MAX]; /* if has_kinds */
    uint32_t tensor_kinds[CHAIN_TENSORS_MAX];
    int32_t has_kinds;
    memo_swap_desc desc;
    memo_swap* swap;
    int64_t n_rows;  /* of this micro-batch */
    int64_t n_wrong; /* rows that came back different; written on the compute stream */
} chain;

typedef struct chain_op {
    char* address; /* of row 0 */
    int64_t row_bytes;
    int64_t begin, end; /* rows */
    uint64_t key;
    int64_t* n_wrong;
} chain_op;

/* Where spilled layers go. */
static MEMO_UNUSED const char* chain_folder(void) { return memo_test_folder(); }

static unsigned char chain_byte(uint64_t key, int64_t row, int64_t column) {
    uint64_t hash = (key ^ (uint64_t)row) * 0x9e3779b97f4a7c15u;
    return (unsigned char)((hash >> 40) + (uint64_t)column);
}

static memo_status chain_write(void* arguments, memo_error* error) {
    const chain_op* op = (const chain_op*)arguments;
    int64_t row, column;
    (void)error;
    for (row = op->begin; row < op->end; row++) {
        unsigned char* bytes = (unsigned char*)op->address + row * op->row_bytes;
        for (column = 0; column < op->row_bytes; column++)
            bytes[column] = chain_byte(op->key, row, column);
    }
    return MEMO_STATUS_OK;
}

static memo_status chain_compare(void* arguments, memo_error* error) {
    const chain_op* op = (const chain_op*)arguments;
    int64_t row, column;
    (void)error;
    for (row = op->begin; row < op->end; row++) {
        const unsigned char* bytes = (unsigned char*)op->address + row * op->row_bytes;
        for (column = 0; column < op->row_bytes; column++) {
            if (bytes[column] == chain_byte(op->key, row, column)) continue;
            ++*op->n_wrong;
            break;
        }
    }
    return MEMO_STATUS_OK;
}

/* Does a layer have bytes of a tensor? */
static int chain_has(const chain* c, int32_t layer, int32_t tensor) {
    uint32_t kinds = c->has_kinds ? c->tensor_kinds[tensor] : 0;
    return c->tensors[tensor].row_bytes > 0 && (!kinds || kinds >> c->layer_kinds[layer] & 1);
}

/* The bytes of rows [begin, end); empty if the layer lacks the tensor. */
static memo_range chain_range(const chain* c, int32_t layer, int32_t tensor, int64_t begin,
                              int64_t end) {
    const uint64_t address = (uint64_t)(uintptr_t)memo_swap_get_address(c->swap, layer, tensor);
    memo_range range;
    memset(&range, 0, sizeof range);
    if (!chain_has(c, layer, tensor)) return range;
    range.begin = address + (uint64_t)(begin * c->tensors[tensor].row_bytes);
    range.end = address + (uint64_t)(end * c->tensors[tensor].row_bytes);
    return range;
}

/* Announces one operation on rows [begin, end) of tensors [first, last): written, or else read.
 * Nothing where these are no bytes. */
static memo_status chain_announce(chain* c, const char* name, int is_written, int32_t layer,
                                  int32_t first, int32_t last, int64_t begin, int64_t end,
                                  memo_error* error) {
    memo_range ranges[CHAIN_TENSORS_MAX];
    memo_op_desc what = memo_op_desc_default();
    int64_t n = 0;
    int32_t t;
    if (!c->device->annotate) return MEMO_STATUS_OK;
    for (t = first; t < last; t++)
        if (chain_has(c, layer, t)) ranges[n++] = chain_range(c, layer, t, begin, end);
    what.name = name;
    what.reads = what.writes = ranges;
    what.n_reads = is_written ? 0 : n;
    what.n_writes = is_written ? n : 0;
    return memo_annotate(c->device, c->compute, &what, error);
}

static memo_status chain_launch(chain* c, memo_host_function function, int32_t layer,
                                int32_t tensor, int64_t begin, int64_t end, int64_t micro_batch,
                                memo_error* error) {
    chain_op op;
    if (begin >= end || !chain_has(c, layer, tensor)) return MEMO_STATUS_OK;
    op.address = (char*)memo_swap_get_address(c->swap, layer, tensor);
    op.row_bytes = c->tensors[tensor].row_bytes;
    op.begin = begin;
    op.end = end;
    op.key = (uint64_t)(((micro_batch * 64 + layer) * 16 + tensor) * 1000003);
    op.n_wrong = &c->n_wrong;
    if (c->desc.computes_on_host) return function(&op, error);
    return memo_host_device_launch(c->host, c->compute, function, &op, (int64_t)sizeof op, error);
}

/* One operation over all rows of tensors [first, last) of a layer. */
static memo_status chain_layer(chain* c, const char* name, memo_host_function function,
                               int32_t layer, int32_t first, int32_t last, int64_t micro_batch,
                               memo_error* error) {
    memo_status status =
        chain_announce(c, name, function == chain_write, layer, first, last, 0, c->n_rows, error);
    int32_t t;
    for (t = first; t < last && !status; t++)
        status = chain_launch(c, function, layer, t, 0, c->n_rows, micro_batch, error);
    return status;
}

/* Rewrites the rows of tensors [first, last) that the engine does not bring back. */
static memo_status chain_recompute(chain* c, int32_t layer, int32_t first, int32_t last,
                                   int64_t micro_batch, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int32_t t;
    for (t = first; t < last && !status; t++) {
        int64_t begin, end;
        memo_swap_get_recompute_rows(c->swap, layer, t, &begin, &end);
        if (begin < end)
            status = chain_announce(c, "recompute", 1, layer, t, t + 1, begin, end, error);
        if (!status)
            status = chain_launch(c, chain_write, layer, t, begin, end, micro_batch, error);
    }
    return status;
}

static memo_status chain_forward(chain* c, int32_t layer, int64_t micro_batch, memo_error* error) {
    memo_status status = memo_swap_forward_begin(c->swap, layer, error);
    if (!status)
        status =
            chain_layer(c, "forward", chain_write, layer, 0, c->desc.n_tensors, micro_batch, error);
    return status ? status : memo_swap_forward_end(c->swap, layer, error);
}

static memo_status chain_backward(chain* c, int32_t layer, int64_t micro_batch, memo_error* error) {
    memo_status status = memo_swap_backward_begin(c->swap, layer, error);
    if (!status) status = chain_recompute(c, layer, 0, c->desc.n_tensors, micro_batch, error);
    if (!status)
        status = chain_layer(c, "backward", chain_compare, layer, 0, c->desc.n_tensors, micro_batch,
                             error);
    return status ? status : memo_swap_backward_end(c->swap, layer, error);
}

/* One micro-batch of fused kernels: inside a layer the first tensor of the next one is written, and
 * on the way back recomputed and read. */
static MEMO_UNUSED memo_status chain_fused_micro_batch(chain* c, int64_t micro_batch,
                                                       memo_error* error) {
    int32_t layer, n = c->desc.n_layers, n_tensors = c->desc.n_tensors;
    memo_status status = memo_swap_forward_begin(c->swap, 0, error);
    if (!status) status = chain_layer(c, "forward", chain_write, 0, 0, 1, micro_batch, error);
    for (layer = 0; layer < n && !status; layer++) {
        status = chain_layer(c, "forward", chain_write, layer, 1, n_tensors, micro_batch, error);
        if (!status && layer + 1 < n) status = memo_swap_forward_begin(c->swap, layer + 1, error);
        if (!status && layer + 1 < n)
            status = chain_layer(c, "forward", chain_write, layer + 1, 0, 1, micro_batch, error);
        if (!status) status = memo_swap_forward_end(c->swap, layer, error);
    }
    if (!status) status = memo_swap_backward_begin(c->swap, n - 1, error);
    if (!status)
        status = chain_layer(c, "backward", chain_compare, n - 1, 0, 1, micro_batch, error);
    for (layer = n - 1; layer >= 0 && !status; layer--) {
        status = chain_recompute(c, layer, 1, n_tensors, micro_batch, error);
        if (!status)
            status =
                chain_layer(c, "backward", chain_compare, layer, 1, n_tensors, micro_batch, error);
        if (!status && layer > 0) status = memo_swap_backward_begin(c->swap, layer - 1, error);
        if (!status && layer > 0) status = chain_recompute(c, layer - 1, 0, 1, micro_batch, error);
        if (!status && layer > 0)
            status = chain_layer(c, "backward", chain_compare, layer - 1, 0, 1, micro_batch, error);
        if (!status) status = memo_swap_backward_end(c->swap, layer, error);
    }
    return status;
}

/* One micro-batch, like a trainer that may be interrupted: it stops before the n_calls-th call of forward and backward, if
 * there are so many. */
static memo_status chain_micro_batch(chain* c, int64_t micro_batch, int64_t n_calls,
                                     memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int32_t layer, n = c->desc.n_layers;
    int64_t done = 0;
    for (layer = 0; layer < n && !status && done < n_calls; layer++, done++)
        status = chain_forward(c, layer, micro_batch, error);
    for (layer = n - 1; layer >= 0 && !status && done < n_calls; layer--, done++)
        status = chain_backward(c, layer, micro_batch, error);
    if (!status && done < 2 * (int64_t)n) status = memo_swap_abandon(c->swap, error);
    return status;
}

static void chain_set_kinds(chain* c) {
    c->desc.layer_kinds = c->has_kinds ? c->layer_kinds : NULL;
    c->desc.tensor_kinds = c->has_kinds ? c->tensor_kinds : NULL;
}

/* Makes the compute stream and the engine; c->host, c->device, c->desc and c->tensors are set. */
static memo_status chain_open(chain* c, memo_error* error) {
    memo_status status = memo_stream_create(c->device, "compute", 0, &c->compute, error);
    c->swap = NULL;
    c->n_wrong = 0;
    c->n_rows = c->desc.n_rows;
    if (status) return status;
    c->desc.device = c->device;
    c->desc.compute_stream = c->compute;
    c->desc.tensors = c->tensors;
    if (c->has_rows) c->desc.rows = c->rows;
    chain_set_kinds(c);
    status = memo_swap_create(&c->desc, &c->swap, error);
    if (status) {
        memo_stream_destroy(c->device, c->compute, NULL);
        c->compute = NULL;
    }
    return status;
}

static void chain_close(chain* c) {
    if (c->compute) memo_stream_synchronize(c->device, c->compute, NULL);
    memo_swap_destroy(c->swap);
    if (c->compute) memo_stream_destroy(c->device, c->compute, NULL);
}

#endif
