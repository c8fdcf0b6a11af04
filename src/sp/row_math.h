#pragma once
#include "memo/base.h"
/* --- arithmetic of rows, which is the same on host and GPU --- */

#if defined(__CUDA_ARCH__)
#define MEMO_ROW_UNROLL _Pragma("unroll")
#else
#define MEMO_ROW_UNROLL
#endif

/* Bytes of an element; 0: the row kernels do not accept the type. */
MEMO_INLINE int64_t memo_row_type_bytes(memo_type type) {
    if (type == MEMO_TYPE_F32) return 4;
    return type == MEMO_TYPE_BF16 || type == MEMO_TYPE_F16 ? 2 : 0;
}

/* --- merge of partial attention --- */

/* The shares of two parts in the whole.  The shares add up to 1, but neither is computed as 1 minus
 * the other, so that the smaller share keeps its precision if the larger share rounds to 1. */
typedef struct memo_merge_weights {
    float out, part;
} memo_merge_weights;

MEMO_INLINE memo_merge_weights memo_merge_weights_of(float lse, float part_lse) {
    memo_merge_weights weights = {1, 0};
    float ratio, larger, smaller;
    if (part_lse == -INFINITY) return weights;
    ratio = lse == -INFINITY ? 0.0f : expf(-fabsf(lse - part_lse));
    larger = 1.0f / (1.0f + ratio);
    smaller = ratio * larger;
    weights.out = lse >= part_lse ? larger : smaller;
    weights.part = lse >= part_lse ? smaller : larger;
    return weights;
}
MEMO_INLINE float memo_merge_lse(float a, float b) {
    if (b == -INFINITY) return a;
    if (a == -INFINITY) return b;
    return (a > b ? a : b) + log1pf(expf(-fabsf(a - b)));
}

/* --- cross-entropy --- */

#define MEMO_LOSS_LANES 32

/* Some columns of a row, without the label. */
typedef struct memo_softmax_sum {
    float max, sum; /* the sum of exp(z - max) */
} memo_softmax_sum;

MEMO_INLINE memo_softmax_sum memo_softmax_none(void) {
    const memo_softmax_sum none = {-INFINITY, 0};
    return none;
}
/* 2^t within 2 units; on a GPU 0 below 2^-126. */
MEMO_INLINE float memoi_two_to(float t) {
#if defined(__CUDA_ARCH__)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
    return power;
#else
    return exp2f(t);
#endif
}
/* exp(x) by a power of two, x <= 0.  The product t = x log2(e) is rounded; what it lost,
 * x - t ln 2, corrects the power.  Clamped, because -inf - -inf is NaN.  2^(-104 log2(e)) is 0. */
MEMO_INLINE float memoi_exp_by_two(float x) {
    float t, power;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %1, 0fC2D00000;" : "=f"(x) : "f"(x)); /* one instruction */
#else
    x = x < -104 ? -104 : x;
#endif
    t = x * 1.44269504f;
    power = memoi_two_to(t);
    return fmaf(power, fmaf(t, -0.693147181f, x), power);
}
/* exp(x), x <= 0, of which the loss needs one or two an element. */
MEMO_INLINE float memo_loss_exp(float x) {
#if defined(__CUDA_ARCH__)
    return memoi_exp_by_two(x);
#else
    return expf(x);
#endif
}

/* The larger one; y if x is NaN. */
MEMO_INLINE float memoi_larger(float x, float y) {
#if defined(__CUDA_ARCH__)
    return fmaxf(x, y); /* one instruction */
#else
    return x > y ? x : y;
#endif
}
/* The sum relative to a maximum that is not below its own. */
MEMO_INLINE float memoi_softmax_scaled(memo_softmax_sum x, float max) {
    return x.max == max ? x.sum : x.sum * memo_loss_exp(x.max - max);
}
MEMO_INLINE memo_softmax_sum memo_softmax_join(memo_softmax_sum a, memo_softmax_sum b) {
    memo_softmax_sum both;
    both.max = a.max > b.max ? a.max : b.max;
    both.sum = memoi_softmax_scaled(a, both.max) + memoi_softmax_scaled(b, both.max);
    return both;
}

MEMO_INLINE float memo_softcap(const memo_cross_entropy_desc* entropy, float x) {
    return entropy->softcap > 0 ? entropy->softcap * tanhf(x / entropy->softcap) : x;
}
/* Its derivative, 1 - tanh^2, which keeps its precision where tanh rounds to 1. */
MEMO_INLINE float memoi_softcap_slope(float softcap, float x) {
    float e = expf(-2 * fabsf(x / softcap));
    return 4 * e / ((1 + e) * (1 + e));
}

/* Adds n numbers, in order.  A logit of -inf adds nothing to the sum, even first. */
MEMO_INLINE memo_softmax_sum memo_softmax_add(memo_softmax_sum to, const float* x, int n) {
    float max = to.max, base;
    MEMO_ROW_UNROLL
    for (int k = 0; k < n; k++) max = memoi_larger(x[k], max);
    base = max == -INFINITY ? 0.0f : max;
    to.sum = memoi_softmax_scaled(to, max);
    to.max = max;
    MEMO_ROW_UNROLL
    for (int k = 0; k < n; k++) to.sum += memo_loss_exp(x[k] - base);
    return to;
}

/* The label's column among these; -1: it is not. */
MEMO_INLINE int64_t memo_label_column(const memo_cross_entropy_desc* entropy, int64_t row) {
    int64_t column = (int64_t)entropy->labels[row] - entropy->first_column;
    return entropy->labels[row] >= 0 && column >= 0 && column < entropy->n_columns ? column : -1;
}

/* What the columns of a row need: d_logits = factor exp(z - max), or of the label. */
typedef struct memo_entropy_row {
    float loss, max, factor, of_label;
} memo_entropy_row;

/* Joins the parts of a row, in order.  Every lane does. */
MEMO_INLINE memo_entropy_row memo_entropy_row_of(const memo_cross_entropy_desc* entropy,
                                                 int64_t row) {
    memo_softmax_sum all = memo_softmax_none();
    memo_entropy_row r;
    float label = -INFINITY, others, sum;
    for (int32_t p = 0; p < entropy->n_parts; p++) {
        const float* part = entropy->parts + (p * entropy->n_rows + row) * MEMO_LOSS_NUMBERS;
        const memo_softmax_sum next = {part[0], part[1]};
        all = memo_softmax_join(all, next);
        if (!(part[2] <= label)) label = part[2]; /* a NaN too */
    }

    /* Relative to the largest logit.  Its own term is 1, so that no log loses precision. */
    r.max = label > all.max ? label : all.max;
    others = memoi_softmax_scaled(all, r.max);
    sum = others + expf(label - r.max);
    r.loss = r.max - label + (label >= all.max ? log1pf(others) : logf(sum));
    r.factor = 1 / sum;
    r.of_label = -others / sum;
    return r;
}

/* The gradient of logit x of a column. */
MEMO_INLINE float memo_entropy_gradient(const memo_cross_entropy_desc* entropy,
                                        const memo_entropy_row* r, int is_label, float x) {
    float d = entropy->scale;
    if (entropy->softcap > 0) d *= memoi_softcap_slope(entropy->softcap, x);
    return d *
           (is_label ? r->of_label : r->factor * memo_loss_exp(memo_softcap(entropy, x) - r->max));
}

/* One lane's share of number k of loss_sums: the losses, the labels, those that are not valid. */
MEMO_INLINE double memo_loss_lane(const memo_cross_entropy_desc* entropy, int64_t k, int32_t lane) {
    double sum = 0;
    for (int64_t row = lane; row < entropy->n_rows; row += MEMO_LOSS_LANES) {
        const int is_valid = entropy->labels[row] < entropy->vocabulary;
        if (entropy->labels[row] < 0) continue;
        sum += k == 0 ? (double)entropy->losses[row] : is_valid == (k == 1);
    }
    return sum;
}
MEMO_INLINE void memo_loss_end(const memo_cross_entropy_desc* entropy, int64_t k, double sum) {
    entropy->sums[k] += sum;
}

/* --- attention sinks --- */

MEMO_INLINE double memo_sink_sum_lane(const memo_sinks_desc* sinks, int64_t head, int32_t lane) {
    float sink = sinks->sinks[head];
    double sum = 0;
    for (int64_t row = lane; row < sinks->n_rows && sink != -INFINITY; row += MEMO_LOSS_LANES) {
        const int64_t place = row * sinks->n_heads + head;
        const float dot = sinks->row_dots[place]; /* of a row without keys: 0, or 0 * NaN */
        if (dot == dot || sinks->lse[place] != sink)
            sum += (double)(expf(sink - sinks->lse[place]) * dot);
    }
    return sum;
}
MEMO_INLINE void memo_sink_sum_end(const memo_sinks_desc* sinks, int64_t head, double sum) {
    sinks->d_sinks[head] -= (float)sum;
}

/* --- reduce --- */

#define MEMOI_AS_IS(a) (a)

/* A function, because compilers warn of an integer that is compared with itself. */
MEMO_INLINE int memoi_reduce_is_nan(double a) { return a != a; }

/* Elements are widened, and added as ADDED; integers unsigned, because signed overflow is
 * undefined: K(NAME, TYPE, WIDE, WIDEN, NARROW, ADDED). */
#define MEMOI_REDUCE_ALL(K)                                                                        \
    K(F32, float, float, MEMOI_AS_IS, MEMOI_AS_IS, float)                                          \
    K(F64, double, double, MEMOI_AS_IS, MEMOI_AS_IS, double)                                       \
    K(BF16, uint16_t, float, memo_f32_from_bf16, memo_bf16_from_f32, float)                        \
    K(F16, uint16_t, float, memo_f32_from_f16, memo_f16_from_f32, float)                           \
    K(I32, int32_t, int32_t, MEMOI_AS_IS, MEMOI_AS_IS, uint32_t)                                   \
    K(I64, int64_t, int64_t, MEMOI_AS_IS, MEMOI_AS_IS, uint64_t)                                   \
    K(U8, uint8_t, uint8_t, MEMOI_AS_IS, MEMOI_AS_IS, unsigned)
#if defined(__CUDA_ARCH__)
#define MEMOI_REDUCE_CHUNK 1
#else
#define MEMOI_REDUCE_CHUNK 512 /* elements; partial results stay in the first-level cache */
#endif
/* Defines memoi_reduce_NAME: to[at .. at + n) = the reduction of elements [begin, begin + n) of
 * every from, n at most MEMOI_REDUCE_CHUNK, in the order of from.  to may be the same elements of
 * one of them: it is written last.  A NaN is above everything. */
#define MEMOI_REDUCE(NAME, TYPE, WIDE, WIDEN, NARROW, ADDED)                                       \
    MEMO_INLINE void memoi_reduce_##NAME(void* to, int64_t at, const void* const* from,            \
                                         int32_t n_from, int64_t begin, int64_t n,                 \
                                         memo_reduction reduction) {                               \
        WIDE result[MEMOI_REDUCE_CHUNK];                                                           \
        const TYPE* x = (const TYPE*)from[0] + begin;                                              \
        int64_t i;                                                                                 \
        int32_t r;                                                                                 \
        for (i = 0; i < n; i++) result[i] = WIDEN(x[i]);                                           \
        for (r = 1; r < n_from; r++) {                                                             \
            x = (const TYPE*)from[r] + begin;                                                      \
            if (reduction == MEMO_REDUCTION_SUM) {                                                 \
                for (i = 0; i < n; i++) result[i] = (WIDE)((ADDED)result[i] + (ADDED)WIDEN(x[i])); \
            } else {                                                                               \
                for (i = 0; i < n; i++) {                                                          \
                    const WIDE wide = WIDEN(x[i]);                                                 \
                    const int is_more = wide > result[i] || memoi_reduce_is_nan((double)wide);     \
                    result[i] = is_more ? wide : result[i];                                        \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (i = 0; i < n; i++) ((TYPE*)to)[at + i] = NARROW(result[i]);                           \
    }
MEMOI_REDUCE_ALL(MEMOI_REDUCE)
#define MEMOI_REDUCE_CASE(NAME, TYPE, WIDE, WIDEN, NARROW, ADDED)                                  \
    case MEMO_TYPE_##NAME: memoi_reduce_##NAME(to, at, from, n_from, begin, n, reduction); break;
MEMO_INLINE void memo_reduce_elements(void* to, int64_t at, const void* const* from, int32_t n_from,
                                      int64_t begin, int64_t n, memo_type type,
                                      memo_reduction reduction) {
    switch (type) {
        MEMOI_REDUCE_ALL(MEMOI_REDUCE_CASE)
    case MEMO_N_TYPES: break;
    }
}
