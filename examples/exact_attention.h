/* exact_attention.h - attention on a GPU for every block of memo_sp.h: any mask, any sharding, key
 * and value heads of unequal sizes, softcaps.  Sums are in fp32 and in a fixed order, so that runs
 * have the same bits.
 *
 *     desc.attention = exact_attention();
 *
 * A warp computes a query of a head, or a key of a head, and reads each row from memory, which is
 * slow: for masks that a fused kernel lacks (cudnn_attention.h takes it for these), and to compare
 * a fused kernel with.  Calls take no memory and may be captured in a graph.  It has not run on a
 * GPU yet: the tests run it on an emulated grid.
 *
 * Include memo_cuda.cuh first. */
#ifndef EXACT_ATTENTION_H
#define EXACT_ATTENTION_H

#include <math.h>

#include "warps.h"

/* One segment of a block. */
struct exact_part {
    memo_attention_block block; /* its arrays on the host are not read */
    int64_t first_q, n_q, first_k, n_k;
    int64_t moves_begin, moves_end; /* by which the keys of a query move to those of the next */
};

/* The score of a product of q and k; *slope: its derivative by scale times the product. */
__device__ static inline float exact_score(const memo_attention_block& b, float product,
                                           float* slope) {
    const float score = b.scale * product;
    *slope = 1;
    if (b.softcap == 0) return score;
    const float capped = tanhf(score / b.softcap);
    *slope = 1 - capped * capped;
    return b.softcap * capped;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Where a query and its head lie, and which keys of the part the query sees. */
struct exact_query {
    int64_t q, out, lse;
    int64_t begin, end; /* keys, counted from the first of the part */
    int32_t kv_head;
};
__device__ static inline exact_query exact_query_of(const exact_part& p, int64_t batch, int64_t i,
                                                    int32_t head) {
    const memo_attention_block& b = p.block;
    const int64_t row = p.first_q + i;
    exact_query at;
    at.q = batch * b.q_batch_stride + row * b.q_row_stride + (int64_t)head * b.head_size;
    at.out = batch * b.out_batch_stride + row * b.out_row_stride + (int64_t)head * b.v_head_size;
    at.lse = batch * b.lse_batch_stride + row * b.lse_row_stride + head;
    at.begin = p.moves_begin * i;
    at.end = p.n_k - p.moves_end * (p.n_q - 1 - i);
    at.kv_head = head / (b.n_q_heads / b.n_kv_heads);
    return at;
}
__device__ static inline int64_t exact_at(const exact_part& p, int64_t batch, int64_t key,
                                          int32_t kv_head, bool is_v) {
    const memo_attention_block& b = p.block;
    return batch * (is_v ? b.v_batch_stride : b.k_batch_stride) +
           (p.first_k + key) * (is_v ? b.v_row_stride : b.k_row_stride) +
           (int64_t)kv_head * (is_v ? b.v_head_size : b.head_size);
}
__device__ static inline warps_head exact_key(const exact_part& p, int64_t batch, int64_t key,
                                              int32_t kv_head) {
    return warps_load<true>(p.block.k, p.block.type, exact_at(p, batch, key, kv_head, false),
                            p.block.head_size);
}
__device__ static inline warps_head exact_value(const exact_part& p, int64_t batch, int64_t key,
                                                int32_t kv_head) {
    return warps_load<true>(p.block.v, p.block.type, exact_at(p, batch, key, kv_head, true),
                            p.block.v_head_size);
}

__global__ static void exact_forward_kernel(exact_part p) {
    const memo_attention_block& b = p.block;
    WARPS_EACH(item, b.n_batch * p.n_q * b.n_q_heads) {
        const int64_t batch = item / b.n_q_heads / p.n_q, i = item / b.n_q_heads % p.n_q;
        const exact_query at = exact_query_of(p, batch, i, (int32_t)(item % b.n_q_heads));
        const warps_head q = warps_load<true>(b.q, b.type, at.q, b.head_size);
        warps_head out = {};
        float max = -INFINITY, sum = 0, slope;
        for (int64_t key = at.begin; key < at.end; key++) {
            const warps_head k = exact_key(p, batch, key, at.kv_head);
            const warps_head v = exact_value(p, batch, key, at.kv_head);
            const float score = exact_score(b, warps_dot(q, k), &slope);
            const float larger = fmaxf(max, score);
            if (larger == -INFINITY) continue;
            const float shrink = expf(max - larger), weight = expf(score - larger);
            for (float& e : out.v) e *= shrink;
            warps_add(&out, weight, v);
            sum = sum * shrink + weight;
            max = larger;
        }

        if (sum > 0)
            for (float& e : out.v) e /= sum;
        warps_store(b.out, MEMO_TYPE_F32, at.out, b.v_head_size, out, false);
        if (WARPS_LANE == 0) b.lse[at.lse] = sum > 0 ? max + logf(sum) : -INFINITY;
    }
}

__global__ static void exact_d_q_kernel(exact_part p) {
    const memo_attention_block& b = p.block;
    WARPS_EACH(item, b.n_batch * p.n_q * b.n_q_heads) {
        const int64_t batch = item / b.n_q_heads / p.n_q, i = item / b.n_q_heads % p.n_q;
        const int32_t head = (int32_t)(item % b.n_q_heads);
        const exact_query at = exact_query_of(p, batch, i, head);
        const float lse = b.lse[at.lse], row_dot = b.row_dots[at.lse];
        const warps_head q = warps_load<true>(b.q, b.type, at.q, b.head_size);
        const warps_head d_out = warps_load<true>(b.d_out, b.type, at.out, b.v_head_size);
        warps_head d_q = {};
        float slope;
        if (lse == -INFINITY) continue;
        for (int64_t key = at.begin; key < at.end; key++) {
            const warps_head k = exact_key(p, batch, key, at.kv_head);
            const warps_head v = exact_value(p, batch, key, at.kv_head);
            const float weight = expf(exact_score(b, warps_dot(q, k), &slope) - lse);
            warps_add(&d_q, b.scale * slope * weight * (warps_dot(d_out, v) - row_dot), k);
        }
        warps_store(b.d_q, MEMO_TYPE_F32, at.q, b.head_size, d_q, true);
    }
}

/* Query heads of a key head in order, and their queries in order. */
__global__ static void exact_d_kv_kernel(exact_part p) {
    const memo_attention_block& b = p.block;
    const int32_t group = b.n_q_heads / b.n_kv_heads;
    WARPS_EACH(item, b.n_batch * p.n_k * b.n_kv_heads) {
        const int64_t batch = item / b.n_kv_heads / p.n_k, key = item / b.n_kv_heads % p.n_k;
        const int32_t kv_head = (int32_t)(item % b.n_kv_heads);
        const warps_head k = exact_key(p, batch, key, kv_head);
        const warps_head v = exact_value(p, batch, key, kv_head);
        warps_head d_k = {}, d_v = {};
        float slope;
        for (int32_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t i = 0; i < p.n_q; i++) {
                const exact_query at = exact_query_of(p, batch, i, head);
                if (key < at.begin || key >= at.end || b.lse[at.lse] == -INFINITY) continue;
                const warps_head q = warps_load<true>(b.q, b.type, at.q, b.head_size);
                const warps_head d_out = warps_load<true>(b.d_out, b.type, at.out, b.v_head_size);
                const float weight = expf(exact_score(b, warps_dot(q, k), &slope) - b.lse[at.lse]);
                const float d_score = weight * (warps_dot(d_out, v) - b.row_dots[at.lse]);
                warps_add(&d_v, weight, d_out);
                warps_add(&d_k, b.scale * slope * d_score, q);
            }
        warps_store(b.d_k, MEMO_TYPE_F32, exact_at(p, batch, key, kv_head, false), b.head_size, d_k,
                    true);
        warps_store(b.d_v, MEMO_TYPE_F32, exact_at(p, batch, key, kv_head, true), b.v_head_size,
                    d_v, true);
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static inline memo_status exact_compute(cudaStream_t stream, const exact_part& p, bool is_backward,
                                        memo_error* error) {
    const memo_attention_block& b = p.block;
    const int64_t n_queries = b.n_batch * p.n_q * b.n_q_heads * WARPS_LANES; /* threads */
    const int64_t n_keys = b.n_batch * p.n_k * b.n_kv_heads * WARPS_LANES;
    if (!is_backward) return warps_launch(stream, n_queries, error, exact_forward_kernel, p);
    if (warps_launch(stream, n_queries, error, exact_d_q_kernel, p)) return error->status;
    return warps_launch(stream, n_keys, error, exact_d_kv_kernel, p);
}

static inline memo_status exact_block(memo_stream memo, const memo_attention_block* b,
                                      bool is_backward, memo_error* error) {
    exact_part p = {};
    p.block = *b;
    if (b->head_size > WARPS_HEAD || b->v_head_size > WARPS_HEAD)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "exact attention: heads of %d and %d elements; %d or fewer would work", b->head_size,
            b->v_head_size, (int)WARPS_HEAD);
    for (int32_t i = 0; i < b->segments.n; i++) {
        const memo_segment& s = b->segments.host[i];
        p.first_q = s.q_begin;
        p.n_q = s.q_end - s.q_begin;
        p.first_k = s.k_begin;
        p.n_k = s.k_end - s.k_begin;
        p.moves_begin = s.type == MEMO_SEGMENT_INVERSE || s.type == MEMO_SEGMENT_BAND;
        p.moves_end = s.type == MEMO_SEGMENT_CAUSAL || s.type == MEMO_SEGMENT_BAND;
        if (exact_compute(memo_cuda_stream(memo), p, is_backward, error)) return error->status;
    }
    return MEMO_STATUS_OK;
}

static inline memo_status exact_forward(void*, memo_stream stream, const memo_attention_block* b,
                                        memo_error* error) {
    return exact_block(stream, b, false, error);
}
static inline memo_status exact_backward(void*, memo_stream stream, const memo_attention_block* b,
                                         memo_error* error) {
    return exact_block(stream, b, true, error);
}

static inline memo_attention exact_attention(void) {
    memo_attention a = {};
    a.forward = exact_forward;
    a.backward = exact_backward;
    a.user = NULL;
    return a;
}

#endif
