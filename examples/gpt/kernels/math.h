/* math.h - the math of a small GPT: functions of elements and rows, each beside its backward,
 * products, and attention on the host.
 *
 * The loops over rows are those of host.h and cuda.cu.  Any range of rows
 * can be computed alone, at any time, in any order, and gives the same bits as the first time:
 *
 *   - the code, not the compiler, fixes the order of every sum;
 *   - a row's result never depends on the rows beside it, except in a GEMM: for the same bits, a
 * caller passes the same rows together, in fixed tiles;
 *   - dropout has no state: a mask element is a function of seed, step, layer, site, token and
 * column.
 *
 * Compile with -std=c99 or -ffp-contract=off: otherwise a compiler may fuse a product and a sum in
 * one place and not in another.  The code calls fused multiply-add if it is faster.
 *
 *   GPT_DOUBLE   computes in double precision instead of float
 *   GPT_BLAS     takes the GEMM from a CBLAS library, which the program loads, instead of the one
 *                below; in float
 *
 * Shapes are in parentheses, rows first: (rows, hidden).  Matrices are row-major; a weight of a
 * linear layer is (outputs, inputs).  Backward functions add to the gradients of parameters. */
#ifndef GPT_MATH_H
#define GPT_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gpt/kernels/kernels.h"

#ifdef GPT_BLAS
#include <cblas.h>
extern __typeof__(cblas_sgemm)* gpt_blas_gemm; /* set before the first product */
#endif

#ifdef GPT_DOUBLE
typedef double gpt_real;
#else
typedef float gpt_real;
#endif

/* a * b + c, rounded once if the processor has the instruction. */
#if defined(GPT_DOUBLE) && defined(FP_FAST_FMA)
#define GPT_FMA(a, b, c) fma(a, b, c)
#elif !defined(GPT_DOUBLE) && defined(FP_FAST_FMAF)
#define GPT_FMA(a, b, c) fmaf(a, b, c)
#else
#define GPT_FMA(a, b, c) ((a) * (b) + (c))
#endif

enum {
    GPT_ATTENTION_TILE = 128, /* queries, and keys, of a tile of scores */
    /* Elements of the keys in a tile of the backward: fewer keys if heads exceed 256 elements. */
    GPT_ATTENTION_KEYS = 64 * 256,
    /* Rows and columns whose sums are in registers; depth of a panel, which is on the stack. */
    GPT_GEMM_M = 4,
    GPT_GEMM_N = 128 / (int)sizeof(gpt_real),
    GPT_GEMM_K = 128
};

GPT_INLINE gpt_real gpt_sqrt(gpt_real x) {
#ifdef GPT_DOUBLE
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

/* Element i of an array of the kernels' types. */
GPT_INLINE gpt_real gpt_load(const void* x, memo_type type, int64_t i) {
    return type == MEMO_TYPE_BF16 ? (gpt_real)memo_f32_from_bf16(((const uint16_t*)x)[i])
                                  : ((const gpt_real*)x)[i];
}

GPT_INLINE void gpt_store(void* x, memo_type type, int64_t i, gpt_real value) {
    if (type == MEMO_TYPE_BF16)
        ((uint16_t*)x)[i] = memo_bf16_from_f32((float)value);
    else
        ((gpt_real*)x)[i] = value;
}

/* ---- sums, exponential --------------------------------------------------------------------- */

static inline gpt_real gpt_sum_lanes(const gpt_real lanes[GPT_LANES]) {
    gpt_real sum = 0;
    for (int i = 0; i < GPT_LANES; i++) sum += lanes[i];
    return sum;
}

/* Returns the sum of a[i] * b[i].  Element i is added to lane i % GPT_LANES; then the lanes are
 * added in order. */
static inline gpt_real gpt_dot(const gpt_real* a, const gpt_real* b, int64_t n) {
    gpt_real lanes[GPT_LANES] = {0};
    int64_t i;
    for (i = 0; i + GPT_LANES <= n; i += GPT_LANES)
        for (int j = 0; j < GPT_LANES; j++) lanes[j] = GPT_FMA(a[i + j], b[i + j], lanes[j]);
    for (int j = 0; i + j < n; j++) lanes[j] = GPT_FMA(a[i + j], b[i + j], lanes[j]);
    return gpt_sum_lanes(lanes);
}

static inline gpt_real gpt_sum(const gpt_real* a, int64_t n) {
    gpt_real lanes[GPT_LANES] = {0};
    int64_t i;
    for (i = 0; i + GPT_LANES <= n; i += GPT_LANES)
        for (int j = 0; j < GPT_LANES; j++) lanes[j] += a[i + j];
    for (int j = 0; i + j < n; j++) lanes[j] += a[i + j];
    return gpt_sum_lanes(lanes);
}

static inline gpt_real gpt_max(const gpt_real* a, int64_t n) {
    gpt_real lanes[GPT_LANES], max;
    int64_t i;
    for (int j = 0; j < GPT_LANES; j++) lanes[j] = a[0];
    for (i = 0; i + GPT_LANES <= n; i += GPT_LANES)
        for (int j = 0; j < GPT_LANES; j++) lanes[j] = a[i + j] > lanes[j] ? a[i + j] : lanes[j];
    for (int j = 0; i + j < n; j++) lanes[j] = a[i + j] > lanes[j] ? a[i + j] : lanes[j];
    max = lanes[0];
    for (int j = 1; j < GPT_LANES; j++) max = lanes[j] > max ? lanes[j] : max;
    return max;
}

/* e^x.  In float it is a polynomial that a compiler vectorizes, with a relative error up to 1.2e-7.
 * It returns 0 below -87, -infinity included, and e^88 above 88. */
#ifdef GPT_DOUBLE
GPT_INLINE gpt_real gpt_exp(gpt_real x) { return exp(x); }
#else
GPT_INLINE gpt_real gpt_exp(gpt_real x) {
    /* x = n ln 2 + r with |r| <= ln 2 / 2.  Adding 1.5 * 2^23 rounds to an integer, in the lowest
     * bits of the sum. */
    const float round = 12582912.0f;
    float bounded = x > -87.0f ? x : -87.0f, shifted, n, r, p, power;
    uint32_t bits;
    bounded = bounded < 88.0f ? bounded : 88.0f;
    shifted = GPT_FMA(bounded, 1.44269504f, round);
    n = shifted - round;
    r = GPT_FMA(n, -0.693359375f, bounded); /* ln 2 in two parts: n times the first is exact */
    r = GPT_FMA(n, 2.12194440e-4f, r);
    p = GPT_FMA(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = GPT_FMA(p, r, 8.3334519073e-3f);
    p = GPT_FMA(p, r, 4.1665795894e-2f);
    p = GPT_FMA(p, r, 1.6666665459e-1f);
    p = GPT_FMA(p, r, 5.0000001201e-1f);
    p = GPT_FMA(p * r, r, r) + 1.0f;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23; /* 2^n: n + 127 in the exponent */
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : p * power;
}
#endif

/* e^x and x / y of activations and of a softmax: on a GPU by its approximate instructions, with
 * relative errors near 1e-6 for |x| up to 20.  Beyond the range e^x is 0 or infinity, and x /
 * infinity is 0. */
GPT_INLINE gpt_real gpt_exp_fast(gpt_real x) {
#ifdef __CUDA_ARCH__
    gpt_real power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
#else
    return gpt_exp(x);
#endif
}
GPT_INLINE gpt_real gpt_divide_fast(gpt_real x, gpt_real y) {
#ifdef __CUDA_ARCH__
    return __fdividef(x, y);
#else
    return x / y;
#endif
}

/* ---- random numbers: counters, no state ---------------------------------------------------- */

/* As gpt_mix for 32 bits, which vectorizes on every processor. */
GPT_INLINE uint32_t gpt_mix32(uint32_t z) {
    z = (z ^ (z >> 16)) * 0x7feb352du;
    z = (z ^ (z >> 15)) * 0x846ca68bu;
    return z ^ (z >> 16);
}

/* Uniform in (0, 1), a function of key and counter. */
GPT_INLINE double gpt_uniform(uint64_t key, uint64_t counter) {
    return ((double)(gpt_mix(gpt_mix(key) ^ counter) >> 12) + 0.5) * (1.0 / 4503599627370496.0);
}

/* Standard normal (Box-Muller). */
GPT_INLINE double gpt_normal(uint64_t key, uint64_t counter) {
    const double two_pi = 6.283185307179586;
    return sqrt(-2.0 * log(gpt_uniform(key, 2 * counter))) *
           cos(two_pi * gpt_uniform(key, 2 * counter + 1));
}

/* Element i of a parameter. */
GPT_INLINE double gpt_initial_value(const gpt_initial_args* a, int64_t i) {
    const int64_t of_whole = a->offset + i / a->n_columns * a->stride + i % a->n_columns;
    if (a->is_uniform)
        return a->mean + a->std * sqrt(12.0) * (gpt_uniform(a->key, (uint64_t)of_whole) - 0.5);
    return a->std > 0 ? a->mean + a->std * gpt_normal(a->key, (uint64_t)of_whole) : a->mean;
}

/* The factor of element `column` of a token: 0 or scale.  gpt_token_key returns token_key. */
GPT_INLINE uint64_t gpt_token_key(const gpt_dropout* dropout, int64_t token) {
    return gpt_mix(dropout->key ^ (uint64_t)token);
}
GPT_INLINE gpt_real gpt_mask(const gpt_dropout* dropout, uint64_t token_key, int64_t column) {
    const uint32_t low = (uint32_t)token_key, high = (uint32_t)(token_key >> 32);
    const uint32_t drawn = gpt_mix32(gpt_mix32(low + (uint32_t)column * 0x9e3779b9u) ^ high);
    return drawn < dropout->threshold ? (gpt_real)0 : (gpt_real)dropout->scale;
}

/* ---- GEMM: C = alpha op(A) op(B) + beta C -------------------------------------------------- */

/* op(X) is X, or its transpose if is_transposed.  op(A) is (m, k), op(B) (k, n), C (m, n).  A
 * leading dimension is the distance between two stored rows.  beta = 0 does not read C.  The same
 * shapes and values give the same bits at any address. */
GPT_FUNCTION void gpt_gemm(int a_is_transposed, int b_is_transposed, int64_t m, int64_t n,
                           int64_t k, gpt_real alpha, const gpt_real* a, int64_t lda,
                           const gpt_real* b, int64_t ldb, gpt_real beta, gpt_real* c,
                           int64_t ldc) {
#ifdef GPT_BLAS
    gpt_blas_gemm(CblasRowMajor, a_is_transposed ? CblasTrans : CblasNoTrans,
                  b_is_transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a,
                  (int)lda, b, (int)ldb, beta, c, (int)ldc);
#else
    gpt_real panel[GPT_GEMM_K * GPT_GEMM_N] = {0}; /* of op(B): columns side by side */
    const int64_t a_row = a_is_transposed ? 1 : lda, a_column = a_is_transposed ? lda : 1;
    const int64_t b_row = b_is_transposed ? 1 : ldb, b_column = b_is_transposed ? ldb : 1;
    for (int64_t j0 = 0; j0 < n; j0 += GPT_GEMM_N)
        for (int64_t p0 = 0; p0 < k; p0 += GPT_GEMM_K) {
            const int64_t width = gpt_min(n - j0, GPT_GEMM_N), depth = gpt_min(k - p0, GPT_GEMM_K);
            const gpt_real old = p0 == 0 ? beta : 1;
            for (int64_t j = 0; j < width; j++)
                for (int64_t p = 0; p < depth; p++)
                    panel[p * GPT_GEMM_N + j] = b[(p0 + p) * b_row + (j0 + j) * b_column];

            for (int64_t i = 0; i < m; i += GPT_GEMM_M) {
                const int64_t height = gpt_min(m - i, GPT_GEMM_M);
                gpt_real sums[GPT_GEMM_M][GPT_GEMM_N] = {{0}};
                for (int64_t p = 0; p < depth; p++)
                    for (int y = 0; y < GPT_GEMM_M; y++) {
                        const gpt_real x = a[gpt_min(i + y, m - 1) * a_row + (p0 + p) * a_column];
                        for (int j = 0; j < GPT_GEMM_N; j++)
                            sums[y][j] = GPT_FMA(x, panel[p * GPT_GEMM_N + j], sums[y][j]);
                    }
                for (int64_t y = 0; y < height; y++)
                    for (int64_t j = 0; j < width; j++) {
                        gpt_real* to = c + (i + y) * ldc + j0 + j;
                        *to = alpha * sums[y][j] + (old == 0 ? 0 : old * *to);
                    }
            }
        }
#endif
}

/* ---- root mean square norm: y = x * rstd * weight, rstd = 1 / sqrt(mean of x^2 + epsilon) --- */

/* mean: of the squares. */
GPT_INLINE gpt_real gpt_rstd(gpt_real mean, double epsilon) {
    return (gpt_real)(1 / sqrt((double)mean + epsilon));
}

GPT_FUNCTION void gpt_norm_forward(gpt_real* y,            /* (rows, hidden) */
                                   gpt_real* rstds,        /* (rows); NULL: not stored */
                                   const gpt_real* x,      /* (rows, hidden) */
                                   const gpt_real* weight, /* (hidden) */
                                   int64_t n_rows, int64_t hidden, double epsilon) {
    for (int64_t row = 0; row < n_rows; row++, x += hidden, y += hidden) {
        const gpt_real mean = gpt_dot(x, x, hidden) / (gpt_real)hidden;
        const gpt_real rstd = gpt_rstd(mean, epsilon);
        if (rstds) rstds[row] = rstd;
        for (int64_t column = 0; column < hidden; column++)
            y[column] = x[column] * rstd * weight[column];
    }
}

/* ---- rotary position embedding ------------------------------------------------------------- */

/* Radians a token. */
GPT_INLINE double gpt_rope_frequency(const gpt_rope_law* law, int64_t j, int64_t head_size) {
    const double theta = law->theta > 0 ? law->theta : 10000.0;
    const double plain = pow(theta, -2.0 * (double)j / (double)head_size);
    const double turns = plain * law->original / 6.283185307179586; /* in `original` tokens */
    double kept;                                                    /* of the plain frequency */
    if (law->kind == GPT_ROPE_PLAIN) return plain;
    if (law->kind == GPT_ROPE_LINEAR) return plain / law->factor;
    kept = (turns - law->low_factor) / (law->high_factor - law->low_factor);
    if (turns < law->low_factor) kept = 0;
    if (turns > law->high_factor) kept = 1;
    return (1 - kept) * plain / law->factor + kept * plain;
}
GPT_INLINE double gpt_rope_angle(const gpt_rope_law* law, int64_t position, int64_t j,
                                 int64_t head_size) {
    return (double)position * gpt_rope_frequency(law, j, head_size);
}

/* The row of a position: head_size / 2 cosines of its angles, then their sines. */
GPT_FUNCTION void gpt_rope_row(gpt_real* row, /* (head_size) */
                               const gpt_rope_law* law, int64_t position, int64_t head_size) {
    for (int64_t j = 0; j < head_size / 2; j++) {
        const double angle = gpt_rope_angle(law, position, j, head_size);
        row[j] = (gpt_real)cos(angle);
        row[head_size / 2 + j] = (gpt_real)sin(angle);
    }
}

GPT_INLINE void gpt_rope_pair(gpt_real* x, gpt_real* y, gpt_real cosine, gpt_real sine) {
    const gpt_real a = *x, b = *y;
    *x = a * cosine - b * sine;
    *y = a * sine + b * cosine;
}

/* Rotates the pairs (j, j + head_size / 2) of every head in place.  Row r has position (first_row +
 * r) % sequence.  direction 1: forward; -1: backward, which rotates the gradient back. */
GPT_FUNCTION void gpt_rope(gpt_real* x,           /* (rows, heads * head_size) */
                           const gpt_real* table, /* (sequence, head_size) */
                           int direction, int64_t first_row, int64_t n_rows, int64_t sequence,
                           int64_t n_heads, int64_t head_size) {
    const int64_t n_pairs = head_size / 2;
    for (int64_t row = 0; row < n_rows; row++) {
        const gpt_real* cosine = table + (first_row + row) % sequence * head_size;
        const gpt_real* sine = cosine + n_pairs;
        for (int64_t head = 0; head < n_heads; head++, x += head_size)
            for (int64_t j = 0; j < n_pairs; j++)
                gpt_rope_pair(&x[j], &x[n_pairs + j], cosine[j], (gpt_real)direction * sine[j]);
    }
}

/* ---- causal attention in tiles ----------------------------------------------------------------
 *
 * A call does one key-value head with its query heads, of one sequence.  Scores exist a tile at
 * a time (FlashAttention-2, Dao 2023); a row's log-sum-exp is all that the backward needs to make
 * them again:  P = exp(S - LSE),  S = q k^T / sqrt(head_size). */

/* Scores of a tile of queries against a tile of keys.  Scores of keys that a query does not see,
 * and of columns that pad the tile, are -infinity. */
static void gpt_attention_scores(gpt_real* scores, /* (n_queries, GPT_ATTENTION_TILE) */
                                 const gpt_real* q, int64_t q_stride, const gpt_real* k,
                                 int64_t k_stride, int64_t first_query, int64_t n_queries,
                                 int64_t first_key, int64_t n_keys,
                                 const gpt_attention_shape* shape, const int64_t* begins) {
    const int64_t head_size = shape->head_size;
    int64_t column;
    gpt_gemm(0, 1, n_queries, n_keys, head_size, (gpt_real)(1 / sqrt((double)head_size)), q,
             q_stride, k, k_stride, 0, scores, GPT_ATTENTION_TILE);
    for (int64_t row = 0; row < n_queries; row++) {
        const int64_t first = gpt_first_key(shape, begins, first_query + row) - first_key;
        for (column = 0; column < first && column < GPT_ATTENTION_TILE; column++)
            scores[row * GPT_ATTENTION_TILE + column] = -(gpt_real)INFINITY;
        column = gpt_min(n_keys, first_query + row - first_key + 1);
        if (column < 0) column = 0;
        for (; column < GPT_ATTENTION_TILE; column++)
            scores[row * GPT_ATTENTION_TILE + column] = -(gpt_real)INFINITY;
    }
}

/* The reals from an index on; these state what an argument points to. */
static const gpt_real* gpt_in(const void* x, int64_t i) { return (const gpt_real*)x + i; }
static gpt_real* gpt_out(void* x, int64_t i) { return (gpt_real*)x + i; }

GPT_FUNCTION void gpt_attention_forward(const gpt_attention_args* a, int64_t sequence,
                                        int64_t kv_head) {
    enum { TILE = GPT_ATTENTION_TILE };
    const gpt_attention_shape* shape = &a->shape;
    const int64_t size = shape->head_size, stride = shape->n_heads * size;
    const int64_t kv_stride = shape->n_kv_heads * size, at = sequence * shape->sequence;
    const int64_t group = shape->n_heads / shape->n_kv_heads;
    const int64_t* begins = gpt_begins_at(a, sequence);
    const gpt_real* q = gpt_in(a->q, at * stride);
    const gpt_real* head_k = gpt_in(a->k, at * kv_stride + kv_head * size);
    const gpt_real* head_v = gpt_in(a->v, at * kv_stride + kv_head * size);
    gpt_real *out = gpt_out(a->out, at * stride), *lse = gpt_out(a->lse, at * shape->n_heads);
    gpt_real scores[TILE * TILE], max[TILE], sum[TILE];
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t i = 0; i < shape->sequence - shape->first; i += TILE) {
            const int64_t n_queries = gpt_min(shape->sequence - shape->first - i, TILE);
            const int64_t begin = gpt_first_key(shape, begins, shape->first + i) / TILE * TILE;
            gpt_real* tile_out = out + i * stride + head * size;
            for (int64_t row = 0; row < n_queries; row++) max[row] = -(gpt_real)INFINITY;
            for (int64_t row = 0; row < n_queries; row++) sum[row] = 0;

            /* Each tile of keys may raise a row's maximum; what was summed before shrinks by it.  A
             * row may see none of the first tiles. */
            for (int64_t j = begin; j < shape->first + i + n_queries; j += TILE) {
                const int64_t n_keys = gpt_min(shape->sequence - j, TILE);
                gpt_attention_scores(scores, q + i * stride + head * size, stride,
                                     head_k + j * kv_stride, kv_stride, shape->first + i, n_queries,
                                     j, n_keys, shape, begins);
                for (int64_t row = 0; row < n_queries; row++) {
                    gpt_real* s = scores + row * TILE;
                    const gpt_real tile_max = gpt_max(s, TILE);
                    const gpt_real new_max = tile_max > max[row] ? tile_max : max[row];
                    const gpt_real largest = new_max > -(gpt_real)INFINITY ? new_max : 0;
                    const gpt_real shrink = gpt_exp(max[row] - largest);
                    for (int64_t column = 0; column < TILE; column++)
                        s[column] = gpt_exp(s[column] - largest);
                    max[row] = new_max;
                    sum[row] = sum[row] * shrink + gpt_sum(s, TILE);
                    for (int64_t column = 0; column < size && j > begin; column++)
                        tile_out[row * stride + column] *= shrink;
                }
                gpt_gemm(0, 0, n_queries, size, n_keys, 1, scores, TILE, head_v + j * kv_stride,
                         kv_stride, j > begin ? (gpt_real)1 : (gpt_real)0, tile_out, stride);
            }

            for (int64_t row = 0; row < n_queries; row++) {
                for (int64_t column = 0; column < size; column++)
                    tile_out[row * stride + column] /= sum[row];
                lse[(i + row) * shape->n_heads + head] = max[row] + (gpt_real)log((double)sum[row]);
            }
        }
    }
}

/* dk may be k and dv may be v, unless shape->sums: tiles of k and v are copied before. */
GPT_FUNCTION void gpt_attention_backward(const gpt_attention_args* a, int64_t sequence,
                                         int64_t kv_head) {
    enum { TILE = GPT_ATTENTION_TILE };
    const gpt_attention_shape* shape = &a->shape;
    const int64_t size = shape->head_size, stride = shape->n_heads * size;
    const int64_t kv_stride = shape->n_kv_heads * size, begin = sequence * shape->sequence;
    const int64_t* begins = gpt_begins_at(a, sequence);
    const gpt_real *q = gpt_in(a->q, begin * stride), *dout = gpt_in(a->dout, begin * stride);
    const gpt_real *k = gpt_in(a->k, begin * kv_stride), *v = gpt_in(a->v, begin * kv_stride);
    const gpt_real* out = gpt_in(a->out, begin * stride);
    const gpt_real* lse = gpt_in(a->lse, begin * shape->n_heads);
    gpt_real *dq = gpt_out(a->dq, begin * stride),
             *delta = gpt_out(a->delta, begin * shape->n_heads);
    gpt_real *dk = gpt_out(a->dk, begin * kv_stride), *dv = gpt_out(a->dv, begin * kv_stride);
    const gpt_real scale = (gpt_real)(1 / sqrt((double)size));
    const int64_t group = shape->n_heads / shape->n_kv_heads, kv_offset = kv_head * size;
    const int64_t key_tile = gpt_min(TILE, GPT_ATTENTION_KEYS / size);
    gpt_real p[TILE * TILE], ds[TILE * TILE];
    gpt_real keys[GPT_ATTENTION_KEYS], values[GPT_ATTENTION_KEYS]; /* copies of a tile */

    /* delta = rowsum(dO * O), which equals rowsum(dP * P). */
    for (int64_t row = 0; row < shape->sequence - shape->first; row++)
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const int64_t at = row * stride + head * size;
            memset(dq + at, 0, (size_t)size * sizeof *dq);
            delta[row * shape->n_heads + head] = gpt_dot(dout + at, out + at, size);
        }

    /* Tiles of keys, each with the tiles of queries that see it. */
    for (int64_t j = 0; j < shape->sequence; j += key_tile) {
        const int64_t n_keys = gpt_min(shape->sequence - j, key_tile);
        const int64_t kv = j * kv_stride + kv_offset,
                      first = j > shape->first ? j - shape->first : 0;
        for (int64_t row = 0; row < n_keys; row++) {
            const int64_t at = kv + row * kv_stride;
            memcpy(keys + row * size, k + at, (size_t)size * sizeof *k);
            memcpy(values + row * size, v + at, (size_t)size * sizeof *v);
            if (shape->adds) continue;
            memset(dk + at, 0, (size_t)size * sizeof *dk);
            memset(dv + at, 0, (size_t)size * sizeof *dv);
        }

        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t i = first / TILE * TILE; i < shape->sequence - shape->first; i += TILE) {
                const int64_t n_queries = gpt_min(shape->sequence - shape->first - i, TILE);
                const int64_t at = i * stride + head * size;
                /* Later queries see none of these keys either. */
                if (gpt_first_key(shape, begins, shape->first + i) >= j + n_keys) break;
                gpt_attention_scores(p, q + at, stride, keys, size, shape->first + i, n_queries, j,
                                     n_keys, shape, begins);
                gpt_gemm(0, 1, n_queries, n_keys, size, 1, dout + at, stride, values, size, 0, ds,
                         TILE); /* dP */
                for (int64_t row = 0; row < n_queries; row++) {
                    const int64_t r = (i + row) * shape->n_heads + head;
                    for (int64_t column = 0; column < n_keys; column++) {
                        const int64_t c = row * TILE + column;
                        p[c] = gpt_exp(p[c] - lse[r]);
                        ds[c] = p[c] * (ds[c] - delta[r]);
                    }
                }

                gpt_gemm(1, 0, n_keys, size, n_queries, 1, p, TILE, dout + at, stride, 1, dv + kv,
                         kv_stride);
                gpt_gemm(0, 0, n_queries, size, n_keys, scale, ds, TILE, keys, size, 1, dq + at,
                         stride);
                gpt_gemm(1, 0, n_keys, size, n_queries, scale, ds, TILE, q + at, stride, 1, dk + kv,
                         kv_stride);
            }
    }
}

/* ---- GELU, tanh form: x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) ------------- */

/* 1 + exp(-2 u) */
GPT_INLINE gpt_real gpt_gelu_divisor(gpt_real x) {
    const gpt_real a = (gpt_real)-1.5957691216057308, b = (gpt_real)0.044715; /* -2 sqrt(2 / pi) */
    return 1 + gpt_exp_fast(a * x * (1 + b * x * x));
}
GPT_INLINE gpt_real gpt_gelu(gpt_real x) { return gpt_divide_fast(x, gpt_gelu_divisor(x)); }
GPT_INLINE gpt_real gpt_gelu_slope(gpt_real x) {
    const gpt_real a = (gpt_real)-1.5957691216057308, b = (gpt_real)0.044715;
    const gpt_real s = gpt_divide_fast(1, gpt_gelu_divisor(x));
    return s - x * s * (1 - s) * a * (1 + 3 * b * x * x);
}

/* ---- SwiGLU: up * silu(gate), silu(x) = x / (1 + exp(-x)) (Shazeer 2020) ------------------- */

GPT_INLINE gpt_real gpt_sigmoid(gpt_real x) { return gpt_divide_fast(1, 1 + gpt_exp_fast(-x)); }
GPT_INLINE gpt_real gpt_swiglu(gpt_real up, gpt_real gate) { return up * gate * gpt_sigmoid(gate); }
/* Replaces up and gate by the gradients of both. */
GPT_INLINE void gpt_swiglu_slopes(gpt_real* up, gpt_real* gate, gpt_real dy) {
    const gpt_real s = gpt_sigmoid(*gate), d_up = dy * *gate * s;
    *gate = dy * *up * s * (1 + *gate * (1 - s));
    *up = d_up;
}

/* ---- experts of a row ------------------------------------------------------------------------ */

/* Element of routes: of expert j of those chosen, its number or its share. */
GPT_INLINE int64_t gpt_route_expert(const gpt_real* routes, int64_t j) {
    return (int64_t)routes[j];
}

/* A row of routes.  Each expert that is chosen is the largest behind the one before: smaller, or
 * equal with a larger number. */
GPT_INLINE void gpt_route(gpt_real* routes, const void* logits, memo_type type, int64_t at,
                          int64_t n_experts, int64_t n_chosen, int is_normed) {
    gpt_real largest = 0, sum = 0;
    for (int64_t j = 0; j < n_chosen; j++) {
        const int64_t before = j ? gpt_route_expert(routes, j - 1) : -1;
        const gpt_real bound = j ? gpt_load(logits, type, at + before) : 0;
        int64_t best = -1;
        gpt_real most = 0;
        for (int64_t e = 0; e < n_experts; e++) {
            const gpt_real logit = gpt_load(logits, type, at + e);
            if (j && !(logit < bound || (logit <= bound && e > before))) continue;
            if (best >= 0 && !(logit > most)) continue;
            best = e;
            most = logit;
        }
        if (best < 0) best = j; /* of logits that are not numbers */
        if (!j) largest = most;
        routes[j] = (gpt_real)best;
        routes[n_chosen + j] = gpt_exp(most - largest);
        sum += routes[n_chosen + j];
    }
    if (!is_normed) sum = 0;
    for (int64_t e = 0; e < n_experts && !is_normed; e++)
        sum += gpt_exp(gpt_load(logits, type, at + e) - largest);
    for (int64_t j = 0; j < n_chosen; j++) routes[n_chosen + j] /= sum;
}

/* A row of the gradient of the logits. */
GPT_INLINE void gpt_route_backward(void* dlogits, const void* logits, memo_type type, int64_t at,
                                   const gpt_real* routes, const gpt_real* dshares,
                                   int64_t n_experts, int64_t n_chosen, int is_normed) {
    gpt_real along = 0;
    for (int64_t j = 0; j < n_chosen; j++) along += routes[n_chosen + j] * dshares[j];
    const int64_t first = gpt_route_expert(routes, 0);
    const gpt_real share0 = routes[n_chosen], logit0 = gpt_load(logits, type, at + first);
    for (int64_t e = 0; e < n_experts; e++) {
        const gpt_real share =
            is_normed ? 0 : share0 * gpt_exp(gpt_load(logits, type, at + e) - logit0);
        gpt_store(dlogits, type, at + e, -share * along);
    }
    for (int64_t j = 0; j < n_chosen; j++)
        gpt_store(dlogits, type, at + gpt_route_expert(routes, j),
                  routes[n_chosen + j] * (dshares[j] - along));
}

/* ---- softmax and cross-entropy, fused with their gradient ---------------------------------- */

/* Replaces a row's logits by scale * d(loss) / d(logits).  Returns scale * loss, in nats. */
GPT_FUNCTION double gpt_cross_entropy(gpt_real* logits, /* (columns) */
                                      int32_t target, double scale, int64_t n_columns) {
    const gpt_real max = gpt_max(logits, n_columns), at_target = logits[target];
    for (int64_t column = 0; column < n_columns; column++)
        logits[column] = gpt_exp(logits[column] - max);
    gpt_real sum = gpt_sum(logits, n_columns);
    gpt_real factor = (gpt_real)(scale / (double)sum);
    for (int64_t column = 0; column < n_columns; column++) logits[column] *= factor;
    logits[target] -= (gpt_real)scale;
    return scale * (log((double)sum) + (double)max - (double)at_target);
}

/* ---- the optimizer ------------------------------------------------------------------------- */

/* The factors of an update.  The gradient is first multiplied by scale. */
typedef struct gpt_adamw_factors {
    gpt_real beta1, beta2, scale, epsilon, decay, rate, correct_v;
    int32_t is_rounded;
    uint64_t key; /* of rounding */
} gpt_adamw_factors;

GPT_INLINE gpt_adamw_factors gpt_adamw_factors_of(const gpt_adamw_args* a) {
    const gpt_adamw_desc* desc = &a->values->adamw;
    const double clip = a->values->clip; /* 0: no limit */
    const double norm = a->squares ? sqrt(*a->squares) : 0;
    gpt_adamw_factors f;
    f.beta1 = (gpt_real)desc->beta1;
    f.beta2 = (gpt_real)desc->beta2;
    f.scale = !a->squares ? (gpt_real)clip : clip > 0 && norm > clip ? (gpt_real)(clip / norm) : 1;
    f.epsilon = (gpt_real)desc->epsilon;
    f.decay = a->decays ? (gpt_real)(desc->learning_rate * desc->weight_decay) : 0;
    f.rate = (gpt_real)(desc->learning_rate / (1 - pow(desc->beta1, (double)desc->update)));
    f.correct_v = (gpt_real)(1 / (1 - pow(desc->beta2, (double)desc->update)));
    f.is_rounded =
        a->states == MEMO_TYPE_U8 || a->states == MEMO_TYPE_BF16 || a->kept == MEMO_TYPE_BF16;
    f.key = gpt_mix(gpt_mix(a->rounding.seed) ^ (uint64_t)desc->update);
    return f;
}

/* Rounds to one of the two nearest bf16 numbers, to the larger one for more of the values of
 * `random` the nearer it is: the mean over all 65536 is the value itself. */
GPT_INLINE uint16_t gpt_bf16_rounded(float value, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return memo_bf16_from_f32(value); /* not finite */
    return (uint16_t)((bits + (random & 0xffffu)) >> 16);
}
/* What is stored as this type, rounded at random. */
GPT_INLINE gpt_real gpt_rounded(memo_type type, gpt_real value, uint32_t random) {
    if (type != MEMO_TYPE_BF16) return value;
    return (gpt_real)memo_f32_from_bf16(gpt_bf16_rounded((float)value, random));
}

/* ---- moments of 8 bits ----
 *
 * Block-wise quantization with dynamic tree numbers: Dettmers, Lewis, Shleifer and Zettlemoyer 2021,
 * "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861.  A moment is a code's number
 * times the scale of its block, the largest of the block.  The first moment has a sign and 7 bits,
 * the second one 8 bits.  Code 0 is 0.  Codes k from 2^i to 2^(i + 1) - 1 divide the decade that
 * ends at 10^(i + 1 - bits) evenly, and have the upper ends of the parts:
 *
 *     10^(i + 1 - bits) (0.1 + 0.9 (k + 1 - 2^i) / 2^i)
 *
 * So the largest of a block is exact.  (The paper takes the middles.)  Numbers between two codes are
 * rounded at random, as moments in bf16. */

/* A tenth of the end of decade i, of so many bits.  Chosen and not looked up: a table would lie in
 * the memory of a GPU's thread. */
GPT_INLINE float gpt_code_unit(int bits, int i) {
    const float units[] = {1e-8f, 1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f};
    float unit = units[0];
    for (int d = 1; d < 8; d++) unit = 8 - bits + i >= d ? units[d] : unit;
    return unit;
}
/* With one rounding, so that it is the same wherever it is compiled. */
GPT_INLINE float gpt_code_value(int bits, uint32_t code) {
    const float number = (float)code;
    uint32_t word;
    if (!code) return 0;
    memcpy(&word, &number, sizeof word);
    const int i = (int)(word >> 23) - 127; /* the highest bit of code */
    return ((float)(9 * (code + 1)) / (float)(1u << i) - 8) * gpt_code_unit(bits, i);
}

/* The code at or below x, from 0 to 1; then, at random, the next. */
GPT_INLINE uint32_t gpt_code_of(int bits, float x, uint32_t random) {
    const uint32_t most = (1u << bits) - 1;
    int i = 0;
    if (!(x > 0)) return 0; /* nor what is no number */
    if (!(x < 1)) return most;

    /* Decade i begins at code 2^i - 1. */
    for (int d = 0; d < bits - 1; d++) i += x >= 10 * gpt_code_unit(bits, d);
    const float parts = (x / gpt_code_unit(bits, i) - 1) * (float)(1u << i) / 9;
    uint32_t code = (1u << i) - 1 + (parts > 0 ? (uint32_t)parts : 0);
    if (code > most - 1) code = most - 1;

    /* The division may err by one code. */
    float low = gpt_code_value(bits, code), high = gpt_code_value(bits, code + 1);
    if (low > x) {
        high = low;
        low = gpt_code_value(bits, --code);
    } else if (high <= x && code < most - 1) {
        low = high;
        high = gpt_code_value(bits, ++code + 1);
    }
    return code + ((x - low) * 65536 > (float)(random & 0xffffu) * (high - low));
}

GPT_INLINE gpt_real gpt_moment1_of(uint8_t code, float scale) {
    const float value = gpt_code_value(7, code & 0x7fu) * scale;
    return (gpt_real)(code & 0x80u ? -value : value);
}
GPT_INLINE gpt_real gpt_moment2_of(uint8_t code, float scale) {
    return (gpt_real)(gpt_code_value(8, code) * scale);
}
GPT_INLINE uint8_t gpt_moment1_code(gpt_real moment, float scale, uint32_t random) {
    const uint32_t code = gpt_code_of(7, fabsf((float)moment) / scale, random);
    return (uint8_t)(moment < 0 && code ? code | 0x80u : code);
}
/* Not 0 of more than 0: AdamW divides by the root. */
GPT_INLINE uint8_t gpt_moment2_code(gpt_real moment, float scale, uint32_t random) {
    const uint32_t code = gpt_code_of(8, (float)moment / scale, random);
    return (uint8_t)(code || !(moment > 0) ? code : 1);
}

/* ---- AdamW ---- */

/* The random bits of element `number` among all parameters, 16 each for the moments and the
 * parameter: a function of seed, update and number, so that every policy and every split of the
 * optimizer gives the same. */
typedef struct gpt_random {
    uint32_t moment1, moment2, parameter;
} gpt_random;
GPT_INLINE gpt_random gpt_random_of(const gpt_adamw_factors* f, int64_t number) {
    const uint64_t bits = f->is_rounded ? gpt_mix(f->key ^ (uint64_t)number) : 0;
    gpt_random random;
    random.moment1 = (uint32_t)bits;
    random.parameter = (uint32_t)(bits >> 16);
    random.moment2 = (uint32_t)(bits >> 32);
    return random;
}

/* AdamW (Loshchilov and Hutter 2019) of an element.  Rounding a moment to the nearest bf16 would
 * lose a change below 1/512 of it, which the second one's change per update usually is: it would
 * never decay with beta2 = 0.999.  Rounding at random keeps its mean. */
GPT_INLINE void gpt_adamw_element(gpt_real* parameter, gpt_real* moment1, gpt_real* moment2,
                                  gpt_real gradient, const gpt_adamw_factors* f) {
    const gpt_real g = gradient * f->scale;
    *moment1 = f->beta1 * *moment1 + (1 - f->beta1) * g;
    *moment2 = f->beta2 * *moment2 + (1 - f->beta2) * g * g;
    *parameter -= f->rate * *moment1 / (gpt_sqrt(*moment2 * f->correct_v) + f->epsilon) +
                  f->decay * *parameter;
}

/* Elements [begin, end) of a block: its moments of 8 bits, unpacked and packed. */
static void gpt_adamw_block(const gpt_adamw_args* a, const gpt_adamw_factors* f, int64_t begin,
                            int64_t end) {
    float* scales = (float*)a->scales + begin / GPT_BLOCK * 2;
    uint8_t *codes1 = (uint8_t*)a->moments1, *codes2 = (uint8_t*)a->moments2;
    gpt_real m[GPT_BLOCK], v[GPT_BLOCK], most1 = 0, most2 = 0;
    for (int64_t i = begin; i < end; i++) {
        const gpt_random random = gpt_random_of(f, a->rounding.first + i);
        gpt_real x = gpt_load(a->parameters, a->kept, i);
        m[i - begin] = gpt_moment1_of(codes1[i], scales[0]);
        v[i - begin] = gpt_moment2_of(codes2[i], scales[1]);
        gpt_adamw_element(&x, &m[i - begin], &v[i - begin], gpt_load(a->gradients, a->summed, i),
                          f);
        gpt_store(a->parameters, a->kept, i, gpt_rounded(a->kept, x, random.parameter));
        if (most1 < m[i - begin]) most1 = m[i - begin];
        if (most1 < -m[i - begin]) most1 = -m[i - begin];
        if (most2 < v[i - begin]) most2 = v[i - begin];
    }
    scales[0] = (float)most1;
    scales[1] = (float)most2;
    for (int64_t i = begin; i < end; i++) {
        const gpt_random random = gpt_random_of(f, a->rounding.first + i);
        codes1[i] = gpt_moment1_code(m[i - begin], scales[0], random.moment1);
        codes2[i] = gpt_moment2_code(v[i - begin], scales[1], random.moment2);
    }
}

/* Elements [begin, end); of moments of 8 bits, whole blocks. */
GPT_FUNCTION void gpt_adamw(const gpt_adamw_args* a, int64_t begin, int64_t end) {
    const gpt_adamw_factors f = gpt_adamw_factors_of(a);
    for (int64_t i = begin; i < end && a->states == MEMO_TYPE_U8; i += GPT_BLOCK)
        gpt_adamw_block(a, &f, i, gpt_min(i + GPT_BLOCK, end));
    for (int64_t i = begin; i < end && a->states != MEMO_TYPE_U8; i++) {
        const gpt_random random = gpt_random_of(&f, a->rounding.first + i);
        gpt_real x = gpt_load(a->parameters, a->kept, i);
        gpt_real m = gpt_load(a->moments1, a->states, i), v = gpt_load(a->moments2, a->states, i);
        gpt_adamw_element(&x, &m, &v, gpt_load(a->gradients, a->summed, i), &f);
        gpt_store(a->parameters, a->kept, i, gpt_rounded(a->kept, x, random.parameter));
        gpt_store(a->moments1, a->states, i, gpt_rounded(a->states, m, random.moment1));
        gpt_store(a->moments2, a->states, i, gpt_rounded(a->states, v, random.moment2));
    }
    for (int64_t i = begin; i < end && a->weights; i++)
        gpt_store(a->weights, MEMO_TYPE_BF16, i, *gpt_in(a->parameters, i));
}

#endif
