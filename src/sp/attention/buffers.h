#pragma once
#include "sp/attention/desc.h"
#include "sp/attention/ring.h"
/* ---- >>attention buffers ------------------------------------------------------------------------
 * Knows: the tensors that a pass keeps beside the user's, and their sizes.  Knows nothing of the
 * order in which they are used.
 *
 * 1. The pools of keys lie at the same place in both passes.
 * 2. The groups of a rank have its query heads, each in one group. */

/* The buffers of one group of heads.  Buffers that the exchange of a group fills while another
 * group is computed exist twice, for even and odd groups. */
typedef struct memoi_buffers {
    char *q[2], *kv[2][2];      /* by heads; kv[number][is_v]; used if backward sends again */
    char* d_out[2];             /* by heads, in the tensors' type */
    char* staging;              /* for exchanges between rows and heads */
    float* out;                 /* by heads: fp32 output; d_q */
    float *dots_rows, *dots[2]; /* row dots by rows, by heads */
    char* results[3]; /* by heads, as they are sent: output or d_q, d_k, d_v; may be one buffer */
    /* (n_batch, local_tokens, n_kv_heads, larger head) of d_k and d_v of replicas; may be one */
    float* sums[2];
    memoi_ring_buffers ring;
} memoi_buffers;

/* Tensors that need no exchange and no rounding are computed in the user's memory. */
MEMOI int memoi_buffers_is_direct(const memoi_shape* shape) {
    return shape->sharding.ulysses == 1 && shape->type == MEMO_TYPE_F32;
}

/* q, k and v by heads, in this order. */
MEMOI void memoi_buffers_carve_heads(const memoi_shape* shape, memoi_carver* carver, char** q,
                                     char* kv[2]) {
    int64_t element_bytes = memo_type_bytes(shape->type);
    *q = memoi_carve(carver, memoi_ring_q_elements(shape) * element_bytes);
    for (int is_v = 0; is_v < 2; is_v++)
        kv[is_v] = memoi_carve(carver, memoi_ring_kv_elements(shape, is_v) * element_bytes);
}

/* What the buffers of a pass are carved from. */
typedef struct memoi_buffers_carving {
    const memoi_shape* shape;
    memoi_carver c;
    int64_t bytes;           /* of an element */
    int64_t n_q, n_kv[2];    /* elements: rows x heads of queries; of keys, of values */
    int64_t q_rows, kv_rows; /* of this rank */
    int64_t q_size, kv_size; /* the larger head, of both */
    int32_t has_ring, has_ulysses, is_grouped, is_direct, is_backward;
} memoi_buffers_carving;

/* First, so that forward and backward have the ring's buffers at the same place: then the waits
 * that order the use of a buffer in a pass order its use between passes, too. */
MEMOI void memoi_buffers_carve_ring(memoi_buffers_carving* v, memoi_buffers* b) {
    const memoi_shape* shape = v->shape;
    const int64_t all = memob_max(shape->heads.n_q * shape->n_read_heads / shape->n_q_heads, 1);
    const int64_t n_heads = shape->latent.n_heads ? memob_min(shape->latent.n_heads, all) : all;
    const int64_t n_latent =
        shape->n_batch / shape->n_parts * shape->key_sharding.ring_tokens * n_heads;
    for (int is_v = 0; is_v < 2; is_v++)
        b->ring.kv[is_v] =
            memoi_carve(&v->c, v->has_ring * memoi_pool_rows(shape, MEMOI_POOL_KEYS) *
                                   memoi_ring_row_bytes(shape, is_v));
    for (int is_v = 0; is_v < 2; is_v++)
        b->ring.held[is_v] =
            memoi_carve(&v->c, (shape->n_nodes > 1) * memoi_pool_rows(shape, MEMOI_POOL_HELD) *
                                   memoi_ring_row_bytes(shape, is_v));

    /* Keys and values of latent rows, of one step and as many heads as a call of attention has. */
    for (int is_v = 0; is_v < 2 && shape->latent.size; is_v++) {
        const int64_t n = n_latent * (is_v ? shape->v_head_size : shape->head_size);
        b->ring.expanded[is_v] = memoi_carve(&v->c, n * v->bytes);
        if (v->is_backward) b->ring.d_expanded[is_v] = (float*)memoi_carve(&v->c, n * 4);
    }
}

/* What is exchanged between rows and heads; row dots are fp32. */
MEMOI void memoi_buffers_carve_ulysses(memoi_buffers_carving* v, memoi_buffers* b) {
    const memoi_shape* shape = v->shape;
    const int64_t sent_kv_bytes = v->is_backward && shape->is_replicated ? 4 : v->bytes;
    const int64_t kv_bytes = v->kv_rows * v->kv_size * sent_kv_bytes; /* of a head */
    const int64_t q_bytes = v->q_rows * memob_max(v->q_size * v->bytes, 4);
    const int64_t most_kv = v->is_grouped ? 0 : memob_max(v->n_kv[0], v->n_kv[1]);
    int64_t most = 0; /* that all ranks need of a group */
    if (!v->has_ulysses) return;
    for (int32_t g = 0; g < shape->n_groups; g++) {
        const memoi_shape group = memoi_desc_group_of(shape, g);
        most = memob_max(most, memoi_ulysses_heads_needed(&group, 0) * q_bytes);
        most = memob_max(most, memoi_ulysses_heads_needed(&group, 1) * kv_bytes);
    }
    for (int i = 0; i < 2 && i < shape->n_groups && shape->sends_again; i++)
        memoi_buffers_carve_heads(shape, &v->c, &b->q[i], b->kv[i]);
    b->staging = memoi_carve(&v->c, most);

    /* One buffer serves d_out and then all results, unless they leave behind the next group. */
    if (v->is_backward || v->is_grouped || shape->type != MEMO_TYPE_F32)
        b->results[0] = memoi_carve(&v->c, memob_max(v->n_q * v->q_size, most_kv) * v->bytes);
    b->results[1] = b->results[2] = b->d_out[0] = b->results[0];
    if (!v->is_backward || !v->is_grouped) return;
    for (int i = 0; i < 2; i++) b->d_out[i] = memoi_carve(&v->c, v->n_q * v->q_size * v->bytes);
    for (int i = 0; i < 2; i++) b->results[1 + i] = memoi_carve(&v->c, v->n_kv[i] * sent_kv_bytes);
}

MEMOI void memoi_buffers_carve_gradients(memoi_buffers_carving* v, memoi_buffers* b) {
    const memoi_shape* shape = v->shape;
    const int64_t carried_bytes = memoi_ring_row_bytes(shape, MEMOI_RING_D_KV); /* of a row */
    const int64_t n_rows = shape->n_batch * shape->key_sharding.ring_tokens;
    const int rounds = shape->carried_type != MEMO_TYPE_F32;
    for (int i = 0; i < 2 && i < shape->n_groups; i++)
        b->dots[i] = (float*)memoi_carve(&v->c, v->n_q * 4);
    b->dots_rows = b->dots[0];
    if (v->has_ulysses) b->dots_rows = (float*)memoi_carve(&v->c, v->q_rows * shape->n_q_heads * 4);
    for (int i = 0; i < 2; i++)
        b->ring.d_kv[i] =
            (float*)memoi_carve(&v->c, (v->has_ring || !v->is_direct) * v->n_kv[i] * 4);

    /* Gradients of the ring, and of the rows that a rank holds for its node. */
    if (v->has_ring && rounds)
        b->ring.d_kv_step = (float*)memoi_carve(&v->c, (v->n_kv[0] + v->n_kv[1]) * 4);
    b->ring.gradients = memoi_carve(
        &v->c, v->has_ring * memoi_pool_rows(shape, MEMOI_POOL_GRADIENTS) * carried_bytes);
    if (shape->n_nodes > 1) {
        b->ring.held_sums =
            (float*)memoi_carve(&v->c, memoi_pool_rows(shape, MEMOI_POOL_SUMS) *
                                           memoi_ring_row(shape, MEMOI_RING_D_KV) * 4);
        for (int i = 0; i < 2; i++)
            b->ring.far_sums[i] = (float*)memoi_carve(&v->c, v->n_kv[i] * 4);
        b->ring.sums_taken = memoi_carve(&v->c, n_rows * carried_bytes);
        if (rounds) b->ring.sums_given = memoi_carve(&v->c, n_rows * carried_bytes);
    }

    /* Replicas are sent and summed in fp32. */
    for (int i = 0; i < 2 && shape->is_replicated; i++)
        b->sums[i] =
            i && !v->is_grouped
                ? b->sums[0]
                : (float*)memoi_carve(&v->c, v->kv_rows * shape->n_kv_heads * v->kv_size * 4);
}

/* The buffers of a pass behind base.  Returns their bytes; what is not used has none. */
MEMOI int64_t memoi_buffers_carve_pass(const memoi_shape* shape, char* base, int is_backward,
                                       memoi_buffers* b) {
    const int64_t out_size = is_backward ? shape->head_size : shape->v_head_size; /* or of d_q */
    memoi_buffers_carving v = MEMO_ZERO(memoi_buffers_carving);
    v.shape = shape;
    v.c.base = base;
    v.bytes = memo_type_bytes(shape->type);
    v.n_q = (int64_t)shape->n_batch * shape->sharding.ring_tokens * shape->heads.n_q;
    v.n_kv[0] = memoi_ring_kv_elements(shape, 0);
    v.n_kv[1] = memoi_ring_kv_elements(shape, 1);
    v.q_rows = shape->n_batch * shape->sharding.local_tokens;
    v.kv_rows = shape->n_batch * shape->key_sharding.local_tokens;
    v.q_size = memob_max(shape->head_size, shape->v_head_size);
    v.kv_size = memob_max(shape->kv_size[0], shape->kv_size[1]);
    v.has_ring = shape->sharding.ring > 1;
    v.has_ulysses = shape->sharding.ulysses > 1;
    v.is_grouped = shape->n_groups > 1;
    v.is_direct = memoi_buffers_is_direct(shape);
    v.is_backward = is_backward;

    memset(b, 0, sizeof *b);
    memoi_buffers_carve_ring(&v, b);
    memoi_buffers_carve_ulysses(&v, b);
    b->out = (float*)memoi_carve(&v.c, !v.is_direct * v.n_q * out_size * 4);
    if (is_backward) {
        memoi_buffers_carve_gradients(&v, b);
    } else {
        const int merges = v.has_ring || shape->has_levels;
        b->ring.block_out = (float*)memoi_carve(&v.c, merges * v.n_q * out_size * 4);
        b->ring.block_lse = (float*)memoi_carve(&v.c, merges * v.n_q * 4);
    }
    return v.c.n_bytes;
}

/* The buffers of both passes, in the same memory.  Returns the bytes needed. */
MEMOI int64_t memoi_buffers_carve_all(const memoi_shape* shape, char* base,
                                      memoi_buffers buffers[2]) {
    memoi_shape largest = *shape; /* with as many heads as the largest groups have */
    int64_t n_bytes;
    int32_t n_q = 0;
    largest.heads.n_q = largest.heads.n_kv = 0;
    for (int32_t g = 0; g < shape->n_groups; g++) {
        const memo_ulysses_heads heads = memoi_desc_group_of(shape, g).heads;
        n_q += heads.n_q;
        largest.heads.n_q = (int32_t)memob_max(largest.heads.n_q, heads.n_q);
        largest.heads.n_kv = (int32_t)memob_max(largest.heads.n_kv, heads.n_kv);
    }
    MEMO_ASSERT(n_q == shape->heads.n_q); /* 2 */

    n_bytes = memoi_buffers_carve_pass(&largest, base, 0, &buffers[0]);
    n_bytes = memob_max(n_bytes, memoi_buffers_carve_pass(&largest, base, 1, &buffers[1]));
    MEMO_ASSERT(buffers[0].ring.kv[0] == buffers[1].ring.kv[0] &&
                buffers[0].ring.kv[1] == buffers[1].ring.kv[1]); /* 1 */
    return n_bytes;
}

memo_status memo_sp_attention_desc_get_sizes(const memo_sp_attention_desc* desc,
                                             memo_sp_attention_sizes* sizes, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sizes", sizes);
    memoi_shape shape;
    memo_status status = memoi_desc_shape_make(desc, &shape, error);
    memoi_buffers buffers[2];
    memoi_carver saved = {NULL, 0};
    char *q_heads, *kv_heads[2];
    memset(sizes, 0, sizeof *sizes);
    if (status) return status;
    sizes->device_bytes = memoi_buffers_carve_all(&shape, NULL, buffers);
    for (int32_t g = 0; g < shape.n_groups && shape.sharding.ulysses > 1 && !shape.sends_again;
         g++) {
        memoi_shape group = memoi_desc_group_of(&shape, g);
        memoi_buffers_carve_heads(&group, &saved, &q_heads, kv_heads);
    }
    sizes->saved_bytes = saved.n_bytes;
    sizes->lse_bytes = (int64_t)shape.n_batch * shape.sharding.ring_tokens * shape.heads.n_q * 4;
    sizes->heads = memoi_shape_split_heads(shape.n_q_heads, shape.n_read_heads,
                                           shape.sharding.ulysses, shape.ulysses_rank);
    return MEMO_STATUS_OK;
}
