/* swap_chain.h - a chain of layers that writes patterns in the forward and checks them in the
 * backward.
 *
 * The forward of a layer writes a pattern into every row of every tensor.  The backward rewrites
 * the rows that the engine does not bring back (recomputation), and compares all rows with the
 * pattern.  Patterns differ by tensor, layer, row and micro-batch, so every misplaced byte is
 * found.
 *
 * With slices a layer of the desc is a step.  A step also compares the LAYER rows of the slices
 * before it, and finds in EDGE rows the pattern that the layer before (in the backward: after) it
 * wrote there; the first of a backward finds the last outputs.  In a group the slices are those of
 * n_group micro-batches, each with LAYER rows of its own.  With an order each place has its own
 * layers, of which the first writes EDGE rows, as does the first of a backward of another chunk. */
#ifndef SWAP_CHAIN_H
#define SWAP_CHAIN_H

#include "owned.h"
#include "pattern.h"
#include "uses.h"
#include "random_order.h"
#include "item_choices.h"

#define CHAIN_TENSORS_MAX 8
#define CHAIN_LAYERS_MAX  20 /* of chains with a table of rows; with slices, steps */

typedef struct chain {
    memo_device* host;         /* runs functions */
    const memo_device* device; /* for the engine and announcements */
    memo_stream compute;
    memo_item tensors[CHAIN_TENSORS_MAX];
    int64_t rows[CHAIN_LAYERS_MAX * CHAIN_TENSORS_MAX]; /* if has_rows */
    int32_t has_rows;
    int32_t layer_kinds[CHAIN_LAYERS_MAX]; /* if has_kinds */
    int32_t has_kinds;
    int32_t order[RANDOM_ORDER_MAX], ends[RANDOM_ORDER_MAX]; /* if desc.n_order */
    int32_t is_given; /* 1: a backward begins with an EDGE that nobody has written */
    memo_swap_desc desc;
    memo_swap* swap;
    int64_t n_rows;                   /* of this micro-batch */
    int64_t routed[CHAIN_LAYERS_MAX]; /* late rows of each layer, of this micro-batch */
    int64_t n_wrong; /* bytes that came back different; written on the compute stream */
} chain;

/* Tensors of ROWS, without bytes yet. */
static MEMO_UNUSED void chain_init(chain* c, int32_t n_tensors) {
    memset(c, 0, sizeof *c);
    c->desc = MEMO_ZERO(memo_swap_desc);
    c->desc.tensors = c->tensors;
    c->desc.n_tensors = n_tensors;
    for (int32_t t = 0; t < n_tensors; t++)
        c->tensors[t].name = "tensor", c->tensors[t].away = MEMO_ROWS;
}

/* Where spilled layers go. */
static MEMO_UNUSED const char* chain_folder(void) { return memo_test_folder(); }

static int32_t chain_slices(const chain* c) { return c->desc.n_slices > 1 ? c->desc.n_slices : 1; }

/* Slices of a micro-batch. */
static int32_t chain_batch_slices(const chain* c) {
    return c->desc.n_group > 1 ? chain_slices(c) / c->desc.n_group : chain_slices(c);
}

/* Rows of all slices of a micro-batch. */
static int64_t chain_rows(const chain* c) {
    return c->desc.layer_rows ? c->desc.layer_rows : chain_batch_slices(c) * c->desc.n_rows;
}

/* The first row of a step's slice, and how many rows it has in this micro-batch. */
static int64_t chain_begin(const chain* c, int32_t layer) {
    return layer % chain_batch_slices(c) * c->desc.n_rows;
}
static int64_t chain_step_rows(const chain* c, int32_t layer) {
    int64_t n = c->n_rows - chain_begin(c, layer);
    return n < 0 ? 0 : n < c->desc.n_rows ? n : c->desc.n_rows;
}

static int chain_is_layer(const chain* c, int32_t t) {
    return chain_batch_slices(c) > 1 && c->tensors[item_leader(c->tensors, t)].scope == MEMO_LAYER;
}

/* Does a layer have bytes of a tensor? */
static int chain_has(const chain* c, int32_t layer, int32_t tensor) {
    const uint32_t kinds = c->tensors[tensor].kinds;
    return c->tensors[tensor].row_bytes > 0 && (!kinds || kinds >> c->layer_kinds[layer] & 1);
}

static int chain_is_routed(const chain* c, int32_t t) { return c->tensors[t].is != 0; }

/* Of n rows of a step, those of a tensor: a CARRIED one has the first. */
static int64_t chain_tensor_rows(const chain* c, int32_t t, int64_t n) {
    return c->tensors[item_leader(c->tensors, t)].scope == MEMO_CARRIED && n > 1 ? 1 : n;
}

/* The bytes of rows [begin, end); empty if the layer lacks the tensor. */
static memo_range chain_range(const chain* c, int32_t layer, int32_t tensor, int64_t begin,
                              int64_t end) {
    const uint64_t address = (uint64_t)(uintptr_t)memo_swap_get_address(c->swap, layer, tensor);
    memo_range range = {0};
    if (!chain_has(c, layer, tensor)) return range;
    begin = chain_tensor_rows(c, tensor, begin), end = chain_tensor_rows(c, tensor, end);
    range.begin = address + (uint64_t)(begin * c->tensors[tensor].row_bytes);
    range.end = address + (uint64_t)(end * c->tensors[tensor].row_bytes);
    return range;
}

static void chain_use(const chain* c, op_uses* u, int is_written, int32_t layer, int32_t tensor,
                      int64_t begin, int64_t end) {
    const memo_range range = chain_range(c, layer, tensor, begin, end);
    add_use(u, is_written, (const void*)(uintptr_t)range.begin, (int64_t)(range.end - range.begin));
}

/* key: of the pattern, besides tensor and micro-batch. */
static memo_status chain_launch(chain* c, int compares, int32_t layer, int32_t tensor,
                                int64_t begin, int64_t end, int64_t key, int64_t micro_batch) {
    const int64_t row_bytes = c->tensors[tensor].row_bytes;
    begin = chain_tensor_rows(c, tensor, begin), end = chain_tensor_rows(c, tensor, end);
    if (begin >= end || !chain_has(c, layer, tensor)) return MEMO_STATUS_OK;
    if (c->tensors[tensor].scope != MEMO_EDGE && c->tensors[tensor].scope != MEMO_INPUT)
        key = 1024 * (1 + tensor) + key;
    pattern p = {memo_swap_get_address(c->swap, layer, tensor), begin * row_bytes, end * row_bytes,
                 (uint64_t)((micro_batch * 16384 + key) * 1000003), compares ? &c->n_wrong : NULL};
    if (c->desc.computes_on_host) return run_pattern(&p, &error);
    return memo_host_device_launch(c->host, c->compute, run_pattern, &p, (int64_t)sizeof p, &error);
}

/* The key of what a step must find in EDGE rows; -1: it writes them. */
static int64_t chain_finds(const chain* c, int is_backward, int32_t layer) {
    const int32_t n = c->desc.n_layers / (c->desc.n_places ? c->desc.n_places : 1);
    const int32_t n_slices = chain_slices(c), i = layer % n;
    if (!is_backward) return i < n_slices ? -1 : layer - n_slices;
    if (i + n_slices < n) return 512 + layer + n_slices;
    return c->is_given ? -1 : layer;
}

/* One operation over all rows of tensors [first, last) of a step: the forward writes, the backward
 * compares. */
static memo_status chain_layer(chain* c, int is_backward, int32_t layer, int32_t first,
                               int32_t last, int64_t micro_batch) {
    const int32_t n_slices = chain_slices(c);
    const int64_t n_rows = chain_step_rows(c, layer), begin = chain_begin(c, layer);
    op_uses u = {.n = {0, 0}};
    for (int32_t t = first; t < last; t++) {
        const int is_handed = c->tensors[t].scope == MEMO_EDGE;
        const int64_t n = chain_is_routed(c, t) ? c->routed[layer] : n_rows;
        if (!chain_is_layer(c, t)) {
            chain_use(c, &u, is_handed || !is_backward, layer, t, 0, n);
        } else if (n) {
            chain_use(c, &u, 0, layer, t, 0, begin + n * is_backward);
            if (!is_backward) chain_use(c, &u, 1, layer, t, begin, begin + n);
        }
    }
    memo_status status = announce(c->device, c->compute, is_backward ? "backward" : "forward", &u);
    for (int32_t t = first; t < last && !status; t++) {
        const int32_t scope = c->tensors[t].scope;
        const int64_t n = chain_is_routed(c, t) ? c->routed[layer] : n_rows;
        int64_t key = chain_is_layer(c, t) ? layer / chain_batch_slices(c) : layer;
        if (chain_is_layer(c, t)) { /* what earlier slices wrote, and this one */
            status = chain_launch(c, 1, layer, t, 0, n ? begin : 0, key, micro_batch);
            if (!status)
                status = chain_launch(c, is_backward, layer, t, begin, begin + n, key, micro_batch);
        } else if (scope == MEMO_EDGE) { /* what the layer before left, then what this one leaves */
            const int64_t left = chain_finds(c, is_backward, layer);
            if (left >= 0) status = chain_launch(c, 1, layer, t, 0, n, left, micro_batch);
            if (!status)
                status = chain_launch(c, 0, layer, t, 0, n, is_backward ? 512 + layer : layer,
                                      micro_batch);
        } else if (scope == MEMO_INPUT) { /* EDGE, as this step found it */
            status = chain_launch(c, is_backward, layer, t, 0, n, layer - n_slices, micro_batch);
        } else {
            status = chain_launch(c, is_backward, layer, t, 0, n, key, micro_batch);
        }
    }
    return status;
}

/* Rewrites the rows of tensors [first, last) that the engine does not bring back. */
static memo_status chain_recompute(chain* c, int32_t layer, int32_t first, int32_t last,
                                   int64_t micro_batch) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t t = first; t < last && !status; t++) {
        int64_t begin = 0, end = 0;
        memo_swap_get_recompute_rows(c->swap, layer, t, &begin, &end);
        op_uses u = {.n = {0, 0}};
        chain_use(c, &u, 1, layer, t, begin, end);
        if (u.n[1]) status = announce(c->device, c->compute, "recompute", &u);
        if (!status) status = chain_launch(c, 0, layer, t, begin, end, layer, micro_batch);
    }
    return status;
}

/* The step whose forward is open has so many late rows, as in a session. */
static memo_status chain_route(chain* c, int32_t layer, int64_t n_rows) {
    return memob_swap_set_routed(c->swap->placement, layer, n_rows, 0, &error);
}

/* Gives the host as many layers as fit, and a file the others; 0: not one fits. */
static MEMO_UNUSED int chain_fits(memo_swap_desc* desc, int64_t host_bytes) {
    memob_swap_placement placement;
    const memo_status status = memob_swap_placement_fit(desc, host_bytes, &placement, &error);
    const int fits = !status && (!host_bytes || placement.sizes.host_bytes <= host_bytes);
    memob_swap_placement_free(&placement);
    return fits;
}

static memo_status chain_forward(chain* c, int32_t layer, int64_t micro_batch) {
    memo_status status = memo_swap_forward_begin(c->swap, layer, &error);
    if (!status && c->desc.routed_rows_layer) status = chain_route(c, layer, c->routed[layer]);
    if (!status) status = chain_layer(c, 0, layer, 0, c->desc.n_tensors, micro_batch);
    return status ? status : memo_swap_forward_end(c->swap, layer, &error);
}

static memo_status chain_backward(chain* c, int32_t layer, int64_t micro_batch) {
    memo_status status = memo_swap_backward_begin(c->swap, layer, &error);
    if (!status) status = chain_recompute(c, layer, 0, c->desc.n_tensors, micro_batch);
    if (!status) status = chain_layer(c, 1, layer, 0, c->desc.n_tensors, micro_batch);
    return status ? status : memo_swap_backward_end(c->swap, layer, &error);
}

/* One micro-batch of fused kernels: inside a layer the first tensor of the next one is written, and
 * on the way back recomputed and read. */
static MEMO_UNUSED memo_status chain_fused_micro_batch(chain* c, int64_t micro_batch) {
    int32_t n = c->desc.n_layers, n_tensors = c->desc.n_tensors;
    memo_status status = memo_swap_forward_begin(c->swap, 0, &error);
    if (!status) status = chain_layer(c, 0, 0, 0, 1, micro_batch);
    for (int32_t layer = 0; layer < n && !status; layer++) {
        status = chain_layer(c, 0, layer, 1, n_tensors, micro_batch);
        if (!status && layer + 1 < n) status = memo_swap_forward_begin(c->swap, layer + 1, &error);
        if (!status && layer + 1 < n) status = chain_layer(c, 0, layer + 1, 0, 1, micro_batch);
        if (!status) status = memo_swap_forward_end(c->swap, layer, &error);
    }
    if (!status) status = memo_swap_backward_begin(c->swap, n - 1, &error);
    if (!status) status = chain_layer(c, 1, n - 1, 0, 1, micro_batch);
    for (int32_t layer = n - 1; layer >= 0 && !status; layer--) {
        status = chain_recompute(c, layer, 1, n_tensors, micro_batch);
        if (!status) status = chain_layer(c, 1, layer, 1, n_tensors, micro_batch);
        if (!status && layer > 0) status = memo_swap_backward_begin(c->swap, layer - 1, &error);
        if (!status && layer > 0) status = chain_recompute(c, layer - 1, 0, 1, micro_batch);
        if (!status && layer > 0) status = chain_layer(c, 1, layer - 1, 0, 1, micro_batch);
        if (!status) status = memo_swap_backward_end(c->swap, layer, &error);
    }
    return status;
}

/* Turns of micro-batches in flight: each forward of a place is of another micro-batch. */
static memo_status chain_turns(chain* c, int64_t micro_batch, int64_t n_calls) {
    const int32_t n = c->desc.n_layers / c->desc.n_places;
    int64_t number[CHAIN_LAYERS_MAX] = {0}, done = 0;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < c->desc.n_order * n && !status; k++) {
        const int32_t of = c->order[k / n], place = of < 0 ? -1 - of : of, i = k % n;
        if (done++ == n_calls) return memo_swap_abandon(c->swap, &error);
        if (of >= 0 && i == 0) number[place] = RANDOM_ORDER_MAX * micro_batch + k / n;
        c->is_given = !c->ends[k / n] || !c->desc.has_loss;
        status = of < 0 ? chain_backward(c, place * n + n - 1 - i, number[place])
                        : chain_forward(c, place * n + i, number[place]);
    }
    return status;
}

/* One micro-batch, like a trainer that may be interrupted: it stops before the n_calls-th call of
 * forward and backward, if there are so many. */
static memo_status chain_micro_batch(chain* c, int64_t micro_batch, int64_t n_calls) {
    memo_status status = MEMO_STATUS_OK;
    int32_t n = c->desc.n_layers;
    int64_t done = 0;
    if (c->desc.n_order) return chain_turns(c, micro_batch, n_calls);
    for (int32_t layer = 0; layer < n && !status && done < n_calls; layer++, done++)
        status = chain_forward(c, layer, micro_batch);
    for (int32_t layer = n - 1; layer >= 0 && !status && done < n_calls; layer--, done++)
        status = chain_backward(c, layer, micro_batch);
    if (!status && done < 2 * (int64_t)n) status = memo_swap_abandon(c->swap, &error);
    return status;
}

static MEMO_UNUSED memo_status chain_forward_only(chain* c, int64_t micro_batch) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t layer = 0; layer < c->desc.n_layers && !status; layer++)
        status = chain_forward(c, layer, micro_batch);
    return status;
}

static void chain_set_kinds(chain* c) {
    c->desc.layer_kinds = c->has_kinds ? c->layer_kinds : NULL;
    for (int32_t t = 0; t < CHAIN_TENSORS_MAX && !c->has_kinds; t++) c->tensors[t].kinds = 0;
}

/* Makes the compute stream and the engine; c->host, c->device, c->desc and c->tensors are set. */
static memo_status chain_open(chain* c) {
    memo_status status = memo_stream_create(c->device, "compute", 0, &c->compute, &error);
    c->swap = NULL;
    c->n_wrong = 0;
    c->n_rows = chain_rows(c);
    if (status) return status;
    c->desc.device = c->device;
    c->desc.compute_stream = c->compute;
    c->desc.tensors = c->tensors; /* of this copy of the chain */
    if (c->has_rows) c->desc.rows = c->rows;
    if (c->desc.n_order) c->desc.order = c->order;
    if (c->desc.n_order) c->desc.ends = c->ends;
    chain_set_kinds(c);
    status = memo_swap_create(&c->desc, &c->swap, &error);
    if (status) {
        memo_stream_destroy(c->device, c->compute, NULL);
        c->compute = NULL;
    }
    return status;
}

static void chain_close(chain* c) {
    if (c->compute) IGNORE(memo_stream_synchronize(c->device, c->compute, NULL));
    memo_swap_destroy(c->swap);
    if (c->compute) memo_stream_destroy(c->device, c->compute, NULL);
}

#endif
