#pragma once
#include "sp/attention/ring.h"
/* ---- >>ring over nodes --------------------------------------------------------------------------
 * Knows: rings within a node as a function, and the rows that cross between nodes.  Knows nothing
 * of steps or heads.
 *
 * Rows of other nodes are brought by the rank at the owner's place, on a stream of their own, while
 * earlier rings are computed.  Invariants:
 *   1  ring d reads rows that are held in place d % 2, and the next rows come there behind ring d
 *   2  gradients of held rows leave behind ring d, and before rows come to their place
 *   3  own gradients of other nodes are added behind ring 0, in the order of d */

/* What is held of other nodes, by places; the last ones are of backward. */
typedef struct memoi_nodes_buffers {
    char* kv[2][2];
    float* d_kv[2][2];
    char *taken, *given; /* contributions in carried_type; given: NULL if that is fp32 */
} memoi_nodes_buffers;

/* One forward or backward on one rank. */
typedef struct memoi_nodes {
    memoi_ring* ring;
    const memo_exchange* plan;
    memo_comm* comm; /* by nodes */
    memoi_nodes_buffers buffers;
    memoi_shape shape; /* of this node's ring and a group of heads */
    char* own_kv[2];
    float* own_d_kv[2];
    int32_t own_keys_cell;
    int32_t n_rings; /* of this group, so far */
} memoi_nodes;

/* Brings the keys of ring d, and sends the rows that readers d nodes on need. */
MEMOI void memoi_nodes_bring(memoi_nodes* n, int32_t d) {
    const memoi_shape* shape = n->ring->shape;
    const int64_t n_all = shape->n_batch * shape->key_sharding.ring_tokens;
    const memoi_exchange_pieces *out, *in;
    memoi_target* target = n->ring->target;
    memo_range reads[2], writes[2];
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_NODES);
    const int32_t n_nodes = n->plan->shape.n_nodes;
    int64_t n_bytes = 0;
    if (d >= n_nodes) return;
    out = memoi_exchange_crossing_of(n->plan, 0, d);
    in = memoi_exchange_crossing_of(n->plan, 1, d);
    if (!out->n && !in->n) return;

    MEMO_ASSERT(d < 3 || n->n_rings > d - 2); /* 1: enqueued behind ring d - 2 */
    if (in->n) memoi_target_touch(target, &op, MEMOI_CELL_HELD_KEYS + d % 2, 1);
    if (out->n) memoi_target_touch(target, &op, n->own_keys_cell, 0);
    memoi_target_begin(target, &op);
    for (int is_v = 0; is_v < 2; is_v++) {
        const int64_t row_bytes = memoi_ring_row_bytes(shape, is_v);
        reads[is_v] = memob_range_at(n->own_kv[is_v], n_all * row_bytes);
        writes[is_v] = memob_range_at(n->buffers.kv[d % 2][is_v], n_all * row_bytes);
        n_bytes += shape->n_batch * out->n_rows * row_bytes;
    }
    memoi_target_group_begin(target, MEMOI_TARGET_NODES, n->comm, "node keys", d, reads,
                             out->n ? 2 : 0, writes, in->n ? 2 : 0, n_bytes);
    for (int32_t i = 0; i < 4 * shape->n_batch; i++) { /* own rows, and rows to hold, of k and v */
        const int is_v = i / 2 % 2, is_in = i % 2;
        char* rows = is_in ? n->buffers.kv[d % 2][is_v] : n->own_kv[is_v];
        memoi_ring_send_pieces(n->ring, MEMOI_TARGET_NODES, n->comm, is_v, is_in ? in : out, is_in,
                               rows + i / 4 * n_all / shape->n_batch *
                                          memoi_ring_row_bytes(shape, is_v),
                               (n->comm->rank + (is_in ? n_nodes - d : d)) % n_nodes);
    }
    memoi_target_group_end(target, MEMOI_TARGET_NODES, n->comm);
    memoi_target_end(target, &op);
}

/* Messages of the gradients of rows: of d_k of all sequences, then of d_v. */
MEMOI void memoi_nodes_messages(const memoi_nodes* n, int32_t d, int is_receive,
                                char* const first[2], const int64_t stride_rows) {
    const memoi_shape* shape = n->ring->shape;
    const int64_t n_rows = memoi_exchange_crossing_of(n->plan, !is_receive, d)->n_rows;
    const int32_t n_nodes = n->plan->shape.n_nodes;
    const int32_t peer = (n->comm->rank + (is_receive ? d : n_nodes - d)) % n_nodes;
    for (int t = 0; t < 2; t++)
        for (int32_t b = 0; b < shape->n_batch; b++)
            memoi_target_message(n->ring->target, MEMOI_TARGET_NODES, n->comm, !is_receive,
                                 first[t] + b * stride_rows * memoi_ring_row(shape, t) *
                                                memo_type_bytes(shape->carried_type),
                                 n_rows * memoi_ring_row(shape, t), shape->carried_type, peer);
}

/* Sends the gradients of the rows held for ring d to their owner, and adds what comes back of own
 * rows. */
MEMOI void memoi_nodes_give(memoi_nodes* n, int32_t d) {
    const memoi_shape* shape = n->ring->shape;
    const int64_t n_out = memoi_exchange_crossing_of(n->plan, 1, d)->n_rows;
    const int64_t n_in = memoi_exchange_crossing_of(n->plan, 0, d)->n_rows;
    const int64_t n_tokens = shape->key_sharding.ring_tokens, n_batch = shape->n_batch;
    const int64_t row_bytes = memoi_ring_row_bytes(shape, MEMOI_RING_D_KV);
    const int rounds = n->buffers.given != NULL;
    memoi_target* target = n->ring->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_NODES);
    char *out[2], *in[2];
    memo_range reads[2], writes;
    if (!n_out && !n_in) return;

    MEMO_ASSERT(n->n_rings == d + 1); /* 2, 3: behind ring d */
    if (n_out) memoi_target_touch(target, &op, MEMOI_CELL_HELD_SUMS + d % 2, 0);
    if (n_in) memoi_target_touch(target, &op, MEMOI_CELL_OWN_SUMS, 1);
    memoi_target_begin(target, &op);
    for (int t = 0; t < 2; t++) {
        const int64_t row = memoi_ring_row(shape, t);
        const int64_t behind = t * n_batch * memoi_ring_row(shape, 0);
        float* held = n->buffers.d_kv[d % 2][t];
        out[t] = rounds ? n->buffers.given + behind * n_out * memo_type_bytes(shape->carried_type)
                        : (char*)held;
        in[t] = n->buffers.taken + behind * n_in * memo_type_bytes(shape->carried_type);
        reads[t] = memob_range_at(held, n_batch * n_tokens * row * 4);
        for (int32_t b = 0; b < n_batch && rounds; b++)
            memoi_target_cast(target, MEMOI_TARGET_NODES,
                              out[t] + b * n_out * row * memo_type_bytes(shape->carried_type),
                              shape->carried_type, held + b * n_tokens * row, n_out * row);
    }
    if (rounds) reads[0] = memob_range_at(n->buffers.given, n_batch * n_out * row_bytes);
    writes = memob_range_at(n->buffers.taken, n_batch * n_in * row_bytes);

    memoi_target_group_begin(target, MEMOI_TARGET_NODES, n->comm, "node gradients", d, reads,
                             n_out ? 2 - rounds : 0, &writes, n_in > 0,
                             n_batch * n_out * row_bytes);
    memoi_nodes_messages(n, d, 0, out, rounds ? n_out : n_tokens);
    memoi_nodes_messages(n, d, 1, in, n_in);
    memoi_target_group_end(target, MEMOI_TARGET_NODES, n->comm);
    if (n_in)
        memoi_ring_add(n->ring, MEMOI_TARGET_NODES, n->buffers.taken, n_batch * n_in,
                       memoi_exchange_crossing_of(n->plan, 0, d), 0, n->own_d_kv);
    memoi_target_end(target, &op);
}

/* The ring within this node for the keys of the node d before. */
MEMOI void memoi_nodes_ring(memoi_nodes* n, int32_t d) {
    memoi_ring* ring = n->ring;
    ring->plan = &n->plan->of_nodes[d];
    ring->last_step = ring->plan->last_step;
    ring->keys_cell = d ? MEMOI_CELL_HELD_KEYS + d % 2 : n->own_keys_cell;
    ring->sums_cell = d ? MEMOI_CELL_HELD_SUMS + d % 2 : MEMOI_CELL_OWN_SUMS;
    for (int t = 0; t < 2; t++) {
        ring->kv[t] = d ? n->buffers.kv[d % 2][t] : n->own_kv[t];
        ring->d_kv_final[t] = d ? n->buffers.d_kv[d % 2][t] : n->own_d_kv[t];
    }
    memoi_ring_run(ring);
    n->n_rings = d + 1;
}

/* All rings of a group of heads, whose ring is of all nodes when it begins. */
MEMOI void memoi_nodes_run(memoi_nodes* n) {
    memoi_ring* ring = n->ring;
    memoi_shape* shape = &n->shape;
    *shape = *ring->shape;
    shape->sharding.ring /= n->plan->shape.n_nodes;
    shape->key_sharding.ring /= n->plan->shape.n_nodes;
    shape->ring_rank %= shape->sharding.ring;
    ring->first_peer = ring->shape->ring_rank - shape->ring_rank;
    ring->shape = shape;
    for (int t = 0; t < 2; t++) {
        n->own_kv[t] = ring->kv[t];
        n->own_d_kv[t] = ring->d_kv_final[t];
    }

    n->own_keys_cell = ring->keys_cell;
    n->n_rings = 0;

    /* Brings, computes and gives in the order of chapter 6.  Without heads zeros are set alone. */
    for (int32_t d = 1; d <= 2 && shape->heads.n_q; d++) memoi_nodes_bring(n, d);
    for (int32_t d = 0; d < (shape->heads.n_q ? n->plan->shape.n_nodes : 1); d++) {
        memoi_nodes_ring(n, d);
        if (d && ring->is_backward) memoi_nodes_give(n, d);
        if (d) memoi_nodes_bring(n, d + 2);
    }
}
