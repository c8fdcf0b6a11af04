/* host_attention.h - exact attention for host devices, for every block of memo_sp.h: any mask and
 * sharding, head sizes up to HOST_ATTENTION_HEAD_SIZE, key and value heads of unequal sizes,
 * softcaps.  It computes tiles of queries against tiles of keys with fp32 sums, and skips what the
 * mask excludes.  exact_attention.h is its twin for GPUs.
 *
 *     host_attention state = {device, 0};                // must outlive the attention
 *     desc.attention = host_attention_functions(&state);
 *
 * Include after memo_sp.h. */
#ifndef HOST_ATTENTION_H
#define HOST_ATTENTION_H

#include <math.h>
#include <string.h>

#define HOST_ATTENTION_HEAD_SIZE 256 /* head_size and v_head_size are at most this */

typedef struct host_attention {
    memo_device* device;
    /* Scores computed so far, including masked scores in partly masked tiles.  Read after
     * synchronization. */
    int64_t n_scores;
} host_attention;

#define HOST_TILE_Q 32
#define HOST_TILE_K 64

typedef struct host_attention_args {
    memo_attention_block block;
    host_attention* state;
    int32_t is_backward;
} host_attention_args;
typedef char host_attention_fits[sizeof(host_attention_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];

static inline int64_t host_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t host_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Numbers [first, first + n) of an array, as fp32. */
static inline void host_attention_widen(float* to, const void* from, memo_type type, int64_t first,
                                        int64_t n) {
    const uint16_t* bits = (const uint16_t*)from + first;
    if (type == MEMO_TYPE_F32) {
        memcpy(to, (const float*)from + first, (size_t)n * sizeof *to);
    } else if (type == MEMO_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++) to[i] = memo_f32_from_bf16(bits[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = memo_f32_from_f16(bits[i]);
    }
}

/* Up to HOST_TILE_Q queries of one segment, for one head, against up to HOST_TILE_K keys at a
 * time. */
typedef struct host_attention_tile {
    const memo_attention_block* block;
    int64_t b, h, n_scores;
    int32_t is_backward;

    /* Queries from row q_row on, and the rows of keys that each sees, which do not descend. */
    int64_t q_row, n_q, low[HOST_TILE_Q], high[HOST_TILE_Q];
    float q[HOST_TILE_Q][HOST_ATTENTION_HEAD_SIZE];
    /* Keys; each query sees the indices [begin, end) of them. */
    int64_t n_k, begin[HOST_TILE_Q], end[HOST_TILE_Q];
    float k_transposed[HOST_ATTENTION_HEAD_SIZE *
                       HOST_TILE_K];                   /* so that the inner loop runs over keys */
    float rows[HOST_TILE_K][HOST_ATTENTION_HEAD_SIZE]; /* forward: v; backward: k */

    float result[HOST_TILE_Q][HOST_ATTENTION_HEAD_SIZE]; /* forward: out; backward: d_q */
    /* Forward, in one pass: sums are relative to the largest score so far. */
    float largest[HOST_TILE_Q], sum[HOST_TILE_Q];
    /* Backward. */
    float lse[HOST_TILE_Q], row_dot[HOST_TILE_Q], d_out[HOST_TILE_Q][HOST_ATTENTION_HEAD_SIZE];
    float v_transposed[HOST_ATTENTION_HEAD_SIZE * HOST_TILE_K];
    float d_k[HOST_TILE_K][HOST_ATTENTION_HEAD_SIZE], d_v[HOST_TILE_K][HOST_ATTENTION_HEAD_SIZE];
} host_attention_tile;

/* The queries of a segment from row `first` on. */
static inline void host_attention_place_queries(host_attention_tile* t, const memo_segment* segment,
                                                int64_t first) {
    t->q_row = first;
    t->n_q = host_min(segment->q_end - first, HOST_TILE_Q);
    for (int64_t i = 0; i < t->n_q; i++)
        memo_segment_keys(segment, first + i, &t->low[i], &t->high[i]);
}

/* The keys from row `first` on, as many as fit. */
static inline void host_attention_place_keys(host_attention_tile* t, int64_t first) {
    t->n_k = host_min(t->high[t->n_q - 1] - first, HOST_TILE_K);
    for (int64_t i = 0; i < t->n_q; i++) {
        t->end[i] = host_min(host_max(t->high[i] - first, 0), t->n_k);
        t->begin[i] = host_min(host_max(t->low[i] - first, 0), t->end[i]);
    }
}

/* The element of q, k, v, out or lse (x) where a head's numbers begin; size: how many. */
#define HOST_ATTENTION_AT(block, x, b, row, h, size)                                               \
    ((b) * (block)->x##_batch_stride + (row) * (block)->x##_row_stride + (h) * (int64_t)(size))

/* Loads n rows of d elements as fp32: as rows, as columns, or both. */
static void host_attention_load(float* transposed, float rows[][HOST_ATTENTION_HEAD_SIZE],
                                const void* from, int64_t first, int64_t row_stride, int64_t n,
                                int32_t d, memo_type type) {
    float line[HOST_ATTENTION_HEAD_SIZE];
    for (int64_t i = 0; i < n; i++, first += row_stride) {
        float* to = rows ? rows[i] : line;
        host_attention_widen(to, from, type, first, d);
        if (transposed)
            for (int32_t e = 0; e < d; e++) transposed[e * HOST_TILE_K + i] = to[e];
    }
    if (transposed) /* host_attention_products reads whole tiles */
        for (int32_t e = 0; e < d; e++)
            for (int64_t i = n; i < HOST_TILE_K; i++) transposed[e * HOST_TILE_K + i] = 0;
}

/* products[j] = sum over e of x[e] * columns[e][j], for all keys of a tile. */
static inline void host_attention_products(float products[HOST_TILE_K], const float* x,
                                           const float* columns, int32_t d) {
    for (int j = 0; j < HOST_TILE_K; j++) products[j] = 0;
    for (int32_t e = 0; e < d; e++) {
        float factor = x[e];
        for (int j = 0; j < HOST_TILE_K; j++) products[j] += factor * columns[e * HOST_TILE_K + j];
    }
}

/* to += factor * from */
static inline void host_attention_row_add(float* to, float factor, const float* from, int32_t d) {
    for (int32_t e = 0; e < d; e++) to[e] += factor * from[e];
}

static inline float host_attention_score(const memo_attention_block* block, float product) {
    float score = block->scale * product;
    return block->softcap > 0 ? block->softcap * tanhf(score / block->softcap) : score;
}

static inline void host_attention_softmax(host_attention_tile* t) {
    float scores[HOST_TILE_K], part[HOST_ATTENTION_HEAD_SIZE];
    int32_t d = t->block->v_head_size;
    for (int64_t i = 0; i < t->n_q; i++) {
        float largest = t->largest[i], correction, sum = 0;
        if (t->begin[i] == t->end[i]) continue;
        host_attention_products(scores, t->q[i], t->k_transposed, t->block->head_size);
        for (int64_t j = t->begin[i]; j < t->end[i]; j++) {
            scores[j] = host_attention_score(t->block, scores[j]);
            if (scores[j] > largest) largest = scores[j];
        }
        if (largest == -INFINITY) continue; /* every score is */

        /* Rescale the sums so far to the new largest score. */
        correction = expf(t->largest[i] - largest);
        for (int32_t e = 0; e < d; e++) part[e] = 0;
        for (int64_t j = t->begin[i]; j < t->end[i]; j++) {
            float p = expf(scores[j] - largest);
            sum += p;
            host_attention_row_add(part, p, t->rows[j], d);
        }
        t->largest[i] = largest;
        t->sum[i] = t->sum[i] * correction + sum;
        for (int32_t e = 0; e < d; e++) t->result[i][e] = t->result[i][e] * correction + part[e];
    }
}

static inline void host_attention_gradients(host_attention_tile* t) {
    const memo_attention_block* block = t->block;
    float scores[HOST_TILE_K], d_p[HOST_TILE_K], part[HOST_ATTENTION_HEAD_SIZE];
    int32_t d = block->head_size, d_v = block->v_head_size;
    for (int64_t i = 0; i < t->n_q; i++) {
        if (t->begin[i] == t->end[i] || t->lse[i] == -INFINITY) continue;
        host_attention_products(scores, t->q[i], t->k_transposed, d);
        host_attention_products(d_p, t->d_out[i], t->v_transposed, d_v);
        for (int32_t e = 0; e < d; e++) part[e] = 0;
        for (int64_t j = t->begin[i]; j < t->end[i]; j++) {
            float score = host_attention_score(block, scores[j]), p = expf(score - t->lse[i]);
            float d_s = block->scale * p * (d_p[j] - t->row_dot[i]);
            if (block->softcap > 0) d_s *= 1 - score / block->softcap * (score / block->softcap);
            host_attention_row_add(part, d_s, t->rows[j], d);
            host_attention_row_add(t->d_k[j], d_s, t->q[i], d);
            host_attention_row_add(t->d_v[j], p, t->d_out[i], d_v);
        }
        host_attention_row_add(t->result[i], 1, part, d);
    }
}

/* Before the first keys and after the last ones. */
static inline void host_attention_begin(host_attention_tile* t) {
    const memo_attention_block* block = t->block;
    const int32_t d = block->head_size, d_v = block->v_head_size;
    const int64_t q_at = HOST_ATTENTION_AT(block, q, t->b, t->q_row, t->h, d);
    const int64_t out_at = HOST_ATTENTION_AT(block, out, t->b, t->q_row, t->h, d_v);
    host_attention_load(NULL, t->q, block->q, q_at, block->q_row_stride, t->n_q, d, block->type);
    if (t->is_backward)
        host_attention_load(NULL, t->d_out, block->d_out, out_at, block->out_row_stride, t->n_q,
                            d_v, block->type);
    for (int64_t i = 0; i < t->n_q; i++) {
        const int64_t lse = HOST_ATTENTION_AT(block, lse, t->b, t->q_row + i, t->h, 1);
        t->lse[i] = t->is_backward ? block->lse[lse] : 0;
        t->row_dot[i] = t->is_backward ? block->row_dots[lse] : 0;
        t->largest[i] = -INFINITY;
        t->sum[i] = 0;
        memset(t->result[i], 0, (size_t)(t->is_backward ? d : d_v) * sizeof(float));
    }
}
static inline void host_attention_end(const host_attention_tile* t) {
    const memo_attention_block* block = t->block;
    const int32_t d = block->head_size, d_v = block->v_head_size;
    for (int64_t i = 0; i < t->n_q; i++) {
        const int64_t row = t->q_row + i;
        const int64_t q_at = HOST_ATTENTION_AT(block, q, t->b, row, t->h, d);
        const int64_t out_at = HOST_ATTENTION_AT(block, out, t->b, row, t->h, d_v);
        if (t->is_backward) {
            host_attention_row_add(block->d_q + q_at, 1, t->result[i], d);
            continue;
        }
        for (int32_t e = 0; e < d_v; e++)
            block->out[out_at + e] = t->sum[i] > 0 ? t->result[i][e] / t->sum[i] : 0;
        block->lse[HOST_ATTENTION_AT(block, lse, t->b, row, t->h, 1)] =
            t->sum[i] > 0 ? t->largest[i] + logf(t->sum[i]) : -INFINITY;
    }
}

/* Adds placed keys, which begin at a row. */
static inline void host_attention_add(host_attention_tile* t, int64_t row) {
    const memo_attention_block* block = t->block;
    const int32_t d = block->head_size, d_v = block->v_head_size;
    const int64_t kv_head = t->h / (block->n_q_heads / block->n_kv_heads);
    const int64_t k_at = HOST_ATTENTION_AT(block, k, t->b, row, kv_head, d);
    const int64_t v_at = HOST_ATTENTION_AT(block, v, t->b, row, kv_head, d_v);
    t->n_scores += t->n_q * t->n_k;
    host_attention_load(t->k_transposed, t->is_backward ? t->rows : NULL, block->k, k_at,
                        block->k_row_stride, t->n_k, d, block->type);
    host_attention_load(t->is_backward ? t->v_transposed : NULL, t->is_backward ? NULL : t->rows,
                        block->v, v_at, block->v_row_stride, t->n_k, d_v, block->type);
    if (!t->is_backward) {
        host_attention_softmax(t);
        return;
    }

    /* The keys' gradients are summed in the tile, then added to the block's. */
    for (int64_t j = 0; j < t->n_k; j++) {
        memset(t->d_k[j], 0, (size_t)d * sizeof(float));
        memset(t->d_v[j], 0, (size_t)d_v * sizeof(float));
    }
    host_attention_gradients(t);
    for (int64_t j = 0; j < t->n_k; j++) {
        host_attention_row_add(block->d_k + k_at + j * block->k_row_stride, 1, t->d_k[j], d);
        host_attention_row_add(block->d_v + v_at + j * block->v_row_stride, 1, t->d_v[j], d_v);
    }
}

/* Placed queries of a head against all keys. */
static inline void host_attention_head(host_attention_tile* t) {
    host_attention_begin(t);
    for (int64_t row = t->low[0]; row < t->high[t->n_q - 1]; row += HOST_TILE_K) {
        host_attention_place_keys(t, row);
        host_attention_add(t, row);
    }
    host_attention_end(t);
}

static inline memo_status host_attention_run(void* args, memo_error* error) {
    const host_attention_args* run = (const host_attention_args*)args;
    const memo_attention_block* block = &run->block;
    host_attention_tile t;
    (void)error;
    t.block = block;
    t.is_backward = run->is_backward;
    t.n_scores = 0;
    for (int32_t s = 0; s < block->segments.n; s++) {
        const memo_segment* segment = &block->segments.host[s];
        for (int64_t first = segment->q_begin; first < segment->q_end; first += HOST_TILE_Q) {
            host_attention_place_queries(&t, segment, first);
            for (t.b = 0; t.b < block->n_batch; t.b++)
                for (t.h = 0; t.h < block->n_q_heads; t.h++) host_attention_head(&t);
        }
    }
    __atomic_fetch_add(&run->state->n_scores, t.n_scores, __ATOMIC_RELAXED);
    return MEMO_STATUS_OK;
}

static inline memo_status host_attention_launch(void* user, memo_stream stream,
                                                const memo_attention_block* block, int is_backward,
                                                memo_error* error) {
    host_attention_args args = {*block, (host_attention*)user, is_backward};
    memo_device* device;
    if (host_min(block->head_size, block->v_head_size) < 1 ||
        host_max(block->head_size, block->v_head_size) > HOST_ATTENTION_HEAD_SIZE)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "host attention: head_size or v_head_size is out of range (%d, %d); 1 to "
            "%d are supported",
            (int)block->head_size, (int)block->v_head_size, HOST_ATTENTION_HEAD_SIZE);
    if (block->type != MEMO_TYPE_F32 && block->type != MEMO_TYPE_BF16 &&
        block->type != MEMO_TYPE_F16)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "host attention.type: not supported (%s); f32, bf16 and f16 are",
                              memo_type_name(block->type));
    if (block->n_kv_heads < 1 || block->n_q_heads % block->n_kv_heads)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "host attention.n_q_heads: not a multiple of n_kv_heads (%d, %d); call "
            "it for groups of heads that are",
            (int)block->n_q_heads, (int)block->n_kv_heads);

    /* Not on a recorder around the device. */
    device = args.state->device;
    while (MEMO_DEVICE_HAS(device, inner)) device = (memo_device*)(uintptr_t)device->inner;
    return memo_host_device_launch(device, stream, host_attention_run, &args, sizeof args, error);
}

static inline memo_status host_attention_forward(void* user, memo_stream stream,
                                                 const memo_attention_block* block,
                                                 memo_error* error) {
    return host_attention_launch(user, stream, block, 0, error);
}
static inline memo_status host_attention_backward(void* user, memo_stream stream,
                                                  const memo_attention_block* block,
                                                  memo_error* error) {
    return host_attention_launch(user, stream, block, 1, error);
}

static inline memo_attention host_attention_functions(host_attention* state) {
    const memo_attention attention = {host_attention_forward, host_attention_backward, state,
                                      MEMO_LAUNCHES_NONE};
    return attention;
}

#endif
