/* cuda.cu - the operations of kernels.h on a GPU: see cuda.h.
 *
 * The kernels are loops over the element functions of math.h.  No sum depends on the order in
 * which threads run: each element is summed by one thread, or by the lanes of one warp in a tree,
 * or in parts that a later kernel adds in order.
 *
 * Include memo_cuda.cuh before, or compile alone and link with memo's implementation. */
#include "memo_sp.h" /* the row kernels, before memo_cuda.cuh */

#include "memo_cuda.cuh"

#include "warps.h"
#include "gpt/kernels/cuda.h"
#include "gpt/kernels/math.h"

#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>

/* ---- threads and elements -------------------------------------------------------------------- */

enum {
    GPT_CUDA_OWNERS = 512, /* warps that share the tokens of a group of columns; a power of 2 */
    GPT_CUDA_AHEAD = 4,    /* accesses under way at once */
    GPT_CUDA_GEMMS_MAX = 512
};
/* A matrix in one product has fewer elements: from exactly 2^31 on cuBLASLt 13.6 offers an
 * algorithm that then fails. */
#ifndef GPT_CUDA_ELEMENTS
#define GPT_CUDA_ELEMENTS ((int64_t)1 << 31)
#endif

#ifdef __CUDA_ARCH__ /* host compilers do not know it */
#define GPT_UNROLL _Pragma("unroll")
#else
#define GPT_UNROLL
#endif

/* The type of elements that a kernel gets.  -DGPT_CUDA_BF16 compiles the kernels for one type
 * alone, so that bench/cuda_sass.py finds no code of another one. */
#ifdef GPT_CUDA_BF16
struct gpt_kernel_type {
    __host__ __device__ gpt_kernel_type(memo_type) {}
    __host__ __device__ operator memo_type() const { return MEMO_TYPE_BF16; }
};
#else
typedef memo_type gpt_kernel_type;
#endif

/* 4 N bytes by one access: only of these types of CUDA does the compiler never make several. */
template <int N> using gpt_words = std::conditional_t<N == 4, uint4, uint2>;

/* Two rounded numbers, by one instruction where the GPU has it. */
__device__ static inline uint32_t gpt_pack(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return memo_bf16_from_f32(low) | (uint32_t)memo_bf16_from_f32(high) << 16;
#endif
}
/* 2 N elements of bf16. */
template <int N> __device__ static inline void gpt_unpack(float* values, gpt_words<N> packed) {
    uint32_t words[N];
    memcpy(words, &packed, sizeof words);
    for (int k = 0; k < N; k++) {
        const uint32_t bits[2] = {words[k] << 16, words[k] & 0xffff0000u};
        memcpy(values + 2 * k, bits, sizeof bits);
    }
}

/* W elements from i on, 1, 4 or 8; more than one need an address that is a multiple of their bytes,
 * of 16 at most. */
template <int W>
__device__ static inline void gpt_read(float* values, const void* x, memo_type type, int64_t i) {
    if constexpr (W == 1)
        values[0] = gpt_load(x, type, i);
    else if (type == MEMO_TYPE_BF16)
        gpt_unpack<W / 2>(values, *(const gpt_words<W / 2>*)(const void*)((const uint16_t*)x + i));
    else
        for (int k = 0; k < W; k += 4) {
            const uint4 words = *(const uint4*)(const void*)((const float*)x + i + k);
            memcpy(values + k, &words, sizeof words);
        }
}
template <int W>
__device__ static inline void gpt_write(void* x, memo_type type, int64_t i, const float* values) {
    if constexpr (W == 1) {
        gpt_store(x, type, i, values[0]);
    } else if (type == MEMO_TYPE_BF16) {
        uint32_t words[W / 2];
        gpt_words<W / 2> packed;
        for (int k = 0; k < W / 2; k++) words[k] = gpt_pack(values[2 * k], values[2 * k + 1]);
        memcpy(&packed, words, sizeof packed);
        *(gpt_words<W / 2>*)(void*)((uint16_t*)x + i) = packed;
    } else {
        for (int k = 0; k < W; k += 4) {
            uint4 words;
            memcpy(&words, values + k, sizeof words);
            *(uint4*)(void*)((float*)x + i + k) = words;
        }
    }
}

__device__ static inline float gpt_warp_max(float value) {
    for (int apart = WARPS_LANES / 2; apart; apart /= 2)
        value = fmaxf(value, warps_other(value, apart));
    return value;
}

/* ---- element by element ---------------------------------------------------------------------- */

/* A warp a row: a division of 64-bit numbers for each few elements would take longer than the
 * memory does. */
template <int W>
__global__ static void gpt_dropout_kernel(gpt_elements_args a, gpt_kernel_type type) {
    const gpt_dropout dropout = gpt_dropout_of(&a);
    const int64_t first_token = a.values->first_token;
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        const uint64_t key = gpt_token_key(&dropout, first_token + a.token_numbers[row]);
        for (int64_t c = WARPS_LANE * W; c < a.n_columns; c += WARPS_LANES * W) {
            const int64_t i = row * a.n_columns + c;
            float x[W], z[W], y[W];
            gpt_read<W>(x, a.x, type, i);
            gpt_read<W>(z, a.z ? a.z : a.x, type, i); /* no branch between loads */
            for (int k = 0; k < W; k++) {
                const float mask = dropout.threshold ? gpt_mask(&dropout, key, c + k) : 1.0f;
                y[k] = a.z ? x[k] + mask * z[k] : mask * x[k];
            }
            gpt_write<W>(a.y, type, i, y);
        }
    }
}

/* W elements of y at a time; KIND: of GELU and SwiGLU, and their backward.  Up and gate take turns,
 * so that W of both are 2 W elements. */
template <int W, int KIND>
__global__ static void gpt_elements_kernel(gpt_elements_args a, gpt_kernel_type type) {
    const int of_x = KIND == GPT_KIND_SWIGLU ? 2 : 1,
              of_y = KIND == GPT_KIND_SWIGLU_BACKWARD ? 2 : 1;
    const int is_backward = KIND == GPT_KIND_GELU_BACKWARD || KIND == GPT_KIND_SWIGLU_BACKWARD;
    WARPS_EACH_THREAD(g, (a.rows.end - a.rows.begin) * a.n_columns / W) {
        float x[of_x * W], y[of_y * W];
        for (int k = 0; k < of_x; k++) gpt_read<W>(x + k * W, a.x, type, g * of_x * W + k * W);
        for (int k = 0; k < of_y && is_backward; k++)
            gpt_read<W>(y + k * W, a.z, type, g * of_y * W + k * W);
        for (int k = 0; k < W; k++) {
            if (KIND == GPT_KIND_GELU) y[k] = gpt_gelu(x[k]);
            if (KIND == GPT_KIND_GELU_BACKWARD) y[k] = x[k] * gpt_gelu_slope(y[k]);
            if constexpr (of_x == 2) y[k] = gpt_swiglu(x[2 * k], x[2 * k + 1]);
            if constexpr (of_y == 2) gpt_swiglu_slopes(&y[2 * k], &y[2 * k + 1], x[k]);
        }
        for (int k = 0; k < of_y; k++) gpt_write<W>(a.y, type, g * of_y * W + k * W, y + k * W);
    }
}

/* A warp a row, W pairs a lane at a time.  A lane's angles are the same for every head if they
 * divide the warp. */
template <int W> __global__ static void gpt_rope_kernel(gpt_rope_args a, gpt_kernel_type type) {
    const int n_pairs = (int)a.head_size / 2, n_groups = n_pairs / W;
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        const float* table =
            (const float*)a.table + (a.rows.begin + row) % a.sequence * a.head_size;
        float c[W] = {}, s[W] = {};
        int held = -1;
        for (int g = WARPS_LANE; g < (int)a.n_heads * n_groups; g += WARPS_LANES) {
            const int j = g % n_groups * W;
            const int64_t i = (row * a.n_heads + g / n_groups) * a.head_size + j;
            float x[W], y[W];
            gpt_read<W>(x, a.x, type, i);
            gpt_read<W>(y, a.x, type, i + n_pairs);
            if (j != held) {
                gpt_read<W>(c, table, MEMO_TYPE_F32, j);
                gpt_read<W>(s, table, MEMO_TYPE_F32, j + n_pairs);
                for (int k = 0; k < W; k++) s[k] *= (float)a.direction;
                held = j;
            }
            for (int k = 0; k < W; k++) gpt_rope_pair(&x[k], &y[k], c[k], s[k]);
            gpt_write<W>(a.x, type, i, x);
            gpt_write<W>(a.x, type, i + n_pairs, y);
        }
    }
}

__global__ static void gpt_rope_table_kernel(gpt_rope_table_args a) {
    const int64_t n_pairs = a.head_size / 2;
    WARPS_EACH_THREAD(g, a.n_positions * n_pairs) {
        const int64_t row = g / n_pairs, j = g % n_pairs, token = a.token_numbers[row];
        const double angle =
            gpt_rope_angle(&a.law, token < 0 ? 0 : token % a.sequence, j, a.head_size);
        float* to = (float*)a.table + row * a.head_size + j;
        to[0] = (float)cos(angle);
        to[n_pairs] = (float)sin(angle);
    }
}

__global__ static void gpt_initial_kernel(gpt_initial_args a, gpt_kernel_type type) {
    WARPS_EACH_THREAD(i, a.n) { gpt_store(a.to, type, i, (float)gpt_initial_value(&a, i)); }
}

/* W 4: 16 bytes a lane of each fp32 tensor, so that every sector is written at once. */
template <int W> __global__ static void gpt_adamw_kernel(gpt_adamw_args a, gpt_kernel_type type) {
    const gpt_adamw_factors f = gpt_adamw_factors_of(&a);
    WARPS_EACH_THREAD(at, a.n / W) {
        const int64_t i = at * W;
        float x[W], g[W], m[W], v[W];
        gpt_read<W>(x, a.parameters, a.kept, i);
        gpt_read<W>(g, a.gradients, a.summed, i);
        gpt_read<W>(m, a.moments1, a.states, i);
        gpt_read<W>(v, a.moments2, a.states, i);
        for (int k = 0; k < W; k++) {
            const gpt_random random = gpt_random_of(&f, a.rounding.first + i + k);
            gpt_adamw_element(&x[k], &m[k], &v[k], g[k], &f);
            x[k] = gpt_rounded(a.kept, x[k], random.parameter);
            m[k] = gpt_rounded(a.states, m[k], random.moment1);
            v[k] = gpt_rounded(a.states, v[k], random.moment2);
        }
        gpt_write<W>(a.parameters, a.kept, i, x);
        gpt_write<W>(a.moments1, a.states, i, m);
        gpt_write<W>(a.moments2, a.states, i, v);
        if (a.weights) gpt_write<W>(a.weights, type, i, x);
    }
}

/* Moments of 8 bits: a warp a block, W elements a lane side by side.  IS_WIDE: all addresses are
 * multiples of 16; the last block may be short, and is then read one by one. */
template <bool IS_WIDE> __global__ static void gpt_adamw_blocks_kernel(gpt_adamw_args a) {
    enum { W = GPT_BLOCK / WARPS_LANES };
    const gpt_adamw_factors f = gpt_adamw_factors_of(&a);
    uint8_t *codes1 = (uint8_t*)a.moments1, *codes2 = (uint8_t*)a.moments2;
    WARPS_EACH(block, (a.n + GPT_BLOCK - 1) / GPT_BLOCK) {
        const int64_t i = block * GPT_BLOCK + WARPS_LANE * W;
        const int n = (int)gpt_min(W, a.n - i); /* of this lane; none: 0 or less */
        const bool is_wide = IS_WIDE && (block + 1) * GPT_BLOCK <= a.n;
        float* scales = (float*)a.scales + 2 * block;
        float x[W] = {}, g[W] = {}, m[W] = {}, v[W] = {}, most1 = 0, most2 = 0;
        uint8_t c1[W] = {}, c2[W] = {};
        if (is_wide) {
            gpt_read<W>(x, a.parameters, a.kept, i);
            gpt_read<W>(g, a.gradients, a.summed, i);
            const uint2 words1 = *(const uint2*)(const void*)(codes1 + i),
                        words2 = *(const uint2*)(const void*)(codes2 + i);
            memcpy(c1, &words1, sizeof c1);
            memcpy(c2, &words2, sizeof c2);
        }
        /* All loops have W turns, so that arrays stay in registers. */
        if (!is_wide)
            for (int k = 0; k < W; k++)
                if (k < n) {
                    x[k] = gpt_load(a.parameters, a.kept, i + k);
                    g[k] = gpt_load(a.gradients, a.summed, i + k);
                    c1[k] = codes1[i + k];
                    c2[k] = codes2[i + k];
                }

        /* The element, and the largest of the block: each lane has read the scales before it gives
         * its own. */
        GPT_UNROLL
        for (int k = 0; k < W; k++) {
            if (k >= n) continue;
            m[k] = gpt_moment1_of(c1[k], scales[0]);
            v[k] = gpt_moment2_of(c2[k], scales[1]);
            gpt_adamw_element(&x[k], &m[k], &v[k], g[k], &f);
            most1 = fmaxf(most1, fabsf(m[k]));
            most2 = fmaxf(most2, v[k]);
        }
        most1 = gpt_warp_max(most1);
        most2 = gpt_warp_max(most2);
        GPT_UNROLL
        for (int k = 0; k < W; k++) {
            if (k >= n) continue;
            const gpt_random random = gpt_random_of(&f, a.rounding.first + i + k);
            x[k] = gpt_rounded(a.kept, x[k], random.parameter);
            c1[k] = gpt_moment1_code(m[k], most1, random.moment1);
            c2[k] = gpt_moment2_code(v[k], most2, random.moment2);
        }

        if (WARPS_LANE == 0) {
            scales[0] = most1;
            scales[1] = most2;
        }
        if (is_wide) {
            uint2 words1, words2;
            gpt_write<W>(a.parameters, a.kept, i, x);
            memcpy(&words1, c1, sizeof words1);
            memcpy(&words2, c2, sizeof words2);
            *(uint2*)(void*)(codes1 + i) = words1;
            *(uint2*)(void*)(codes2 + i) = words2;
        }
        if (!is_wide)
            for (int k = 0; k < W; k++)
                if (k < n) {
                    gpt_store(a.parameters, a.kept, i + k, x[k]);
                    codes1[i + k] = c1[k];
                    codes2[i + k] = c2[k];
                }
    }
}

/* ---- norm: a warp a row ---------------------------------------------------------------------- */

/* W columns a lane at a time.  V words of 8 elements of bf16 stay in registers, so that the row is
 * read once; V 0: it is read twice. */
template <int W, int V> struct gpt_held_row {
    const void* row;
    memo_type type;
    uint4 held[V ? V : 1];
    __device__ gpt_held_row(const void* x, memo_type t, int64_t at, int64_t hidden)
        : row((const char*)x + at * (t == MEMO_TYPE_BF16 ? 2 : 4)), type(t), held() {
        for (int v = 0; v < V; v++)
            if (column(v) < hidden)
                held[v] = *(const uint4*)(const void*)((const uint16_t*)row + column(v));
    }
    __device__ static int64_t column(int v) { return ((int64_t)v * WARPS_LANES + WARPS_LANE) * W; }
    __device__ void get(float* values, int v) const {
        if constexpr (V > 0)
            gpt_unpack<4>(values, held[v]);
        else
            gpt_read<W>(values, row, type, column(v));
    }
};
/* The vectors of a row that a lane has. */
#define GPT_EACH_HELD(v, c, hidden)                                                                \
    for (int v = 0; v < (V ? V : (int)(((hidden) + WARPS_LANES * W - 1) / (WARPS_LANES * W)));     \
         v++)                                                                                      \
        if (const int64_t c = gpt_held_row<W, V>::column(v); c < (hidden))

template <int W, int V>
__global__ static void gpt_norm_kernel(gpt_norm_args a, gpt_kernel_type of_model) {
    const memo_type type = V ? MEMO_TYPE_BF16 : (memo_type)of_model;
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        const int64_t at = row * a.hidden;
        const gpt_held_row<W, V> row_x(a.x, type, at, a.hidden);
        float x[W], w[W], squares = 0;
        GPT_EACH_HELD(v, c, a.hidden) {
            row_x.get(x, v);
            for (int k = 0; k < W; k++) squares += x[k] * x[k];
        }
        const float rstd = gpt_rstd(warps_sum(squares) / (float)a.hidden, a.epsilon);
        if (WARPS_LANE == 0 && a.rstd) ((float*)a.rstd)[row] = rstd;
        GPT_EACH_HELD(v, c, a.hidden) {
            row_x.get(x, v);
            gpt_read<W>(w, a.weight, type, c);
            for (int k = 0; k < W; k++) x[k] = x[k] * rstd * w[k];
            gpt_write<W>(a.y, type, at + c, x);
        }
    }
}

template <int W, int V>
__global__ static void gpt_norm_backward_kernel(gpt_norm_args a, gpt_kernel_type of_model) {
    const memo_type type = V ? MEMO_TYPE_BF16 : (memo_type)of_model;
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        const int64_t at = row * a.hidden;
        const float rstd = ((const float*)a.rstd)[row];
        const gpt_held_row<W, V> row_x(a.x, type, at, a.hidden), row_dy(a.y, type, at, a.hidden);
        float x[W], dy[W], w[W], dx[W] = {}, along = 0;
        GPT_EACH_HELD(v, c, a.hidden) {
            row_x.get(x, v);
            row_dy.get(dy, v);
            gpt_read<W>(w, a.weight, type, c);
            for (int k = 0; k < W; k++) along += dy[k] * w[k] * x[k];
        }
        const float shrink = warps_sum(along) / (float)a.hidden * rstd * rstd * rstd;
        GPT_EACH_HELD(v, c, a.hidden) {
            row_x.get(x, v);
            row_dy.get(dy, v);
            gpt_read<W>(w, a.weight, type, c);
            if (!a.is_first) gpt_read<W>(dx, a.dx, type, at + c);
            for (int k = 0; k < W; k++) dx[k] = dx[k] + dy[k] * w[k] * rstd - x[k] * shrink;
            gpt_write<W>(a.dx, type, at + c, dx);
        }
    }
}

/* sums (chunks, hidden): of the weight's gradient over GPT_CUDA_CHUNK rows each. */
template <int W>
__global__ static void gpt_norm_sums_kernel(gpt_norm_args a, gpt_kernel_type type, float* sums,
                                            int64_t n_chunks) {
    const int64_t n_rows = a.rows.end - a.rows.begin, n_groups = a.hidden / W;
    WARPS_EACH_THREAD(g, n_chunks * n_groups) {
        const int64_t c = g % n_groups * W, begin = g / n_groups * GPT_CUDA_CHUNK;
        const int64_t end = gpt_min(begin + GPT_CUDA_CHUNK, n_rows);
        float sum[W] = {};
        for (int64_t first = begin; first < end; first += GPT_CUDA_AHEAD) {
            float x[GPT_CUDA_AHEAD][W], dy[GPT_CUDA_AHEAD][W], rstd[GPT_CUDA_AHEAD];
            for (int i = 0; i < GPT_CUDA_AHEAD; i++) { /* no branch between loads */
                const int64_t row = gpt_min(first + i, end - 1);
                gpt_read<W>(x[i], a.x, type, row * a.hidden + c);
                gpt_read<W>(dy[i], a.y, type, row * a.hidden + c);
                rstd[i] = first + i < end ? ((const float*)a.rstd)[row] : 0;
            }
            for (int i = 0; i < GPT_CUDA_AHEAD; i++)
                for (int k = 0; k < W; k++) sum[k] += dy[i][k] * x[i][k] * rstd[i];
        }
        gpt_write<W>(sums, MEMO_TYPE_F32, g / n_groups * a.hidden + c, sum);
    }
}

/* ---- bias ------------------------------------------------------------------------------------ */

/* A warp a row, W columns a lane at a time. */
template <int W> __global__ static void gpt_bias_kernel(gpt_bias_args a, gpt_kernel_type type) {
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        for (int64_t c = WARPS_LANE * W; c < a.n_columns; c += WARPS_LANES * W) {
            float y[W], bias[W];
            gpt_read<W>(y, a.y, type, row * a.n_columns + c);
            gpt_read<W>(bias, a.bias, type, c);
            for (int k = 0; k < W; k++) y[k] += bias[k];
            gpt_write<W>(a.y, type, row * a.n_columns + c, y);
        }
    }
}

/* sums (chunks, columns): as gpt_norm_sums_kernel. */
template <int W>
__global__ static void gpt_bias_sums_kernel(gpt_bias_args a, gpt_kernel_type type, float* sums,
                                            int64_t n_chunks) {
    const int64_t n_rows = a.rows.end - a.rows.begin, n_groups = a.n_columns / W;
    WARPS_EACH_THREAD(g, n_chunks * n_groups) {
        const int64_t c = g % n_groups * W, begin = g / n_groups * GPT_CUDA_CHUNK;
        const int64_t end = gpt_min(begin + GPT_CUDA_CHUNK, n_rows);
        float sum[W] = {}, y[W];
        for (int64_t row = begin; row < end; row++) {
            gpt_read<W>(y, a.y, type, row * a.n_columns + c);
            for (int k = 0; k < W; k++) sum[k] += y[k];
        }
        gpt_write<W>(sums, MEMO_TYPE_F32, g / n_groups * a.n_columns + c, sum);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

template <int W>
__global__ static void gpt_embedding_kernel(gpt_tokens_args a, gpt_kernel_type type) {
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        const int64_t from = a.tokens[row] * a.n_columns;
        for (int64_t c = WARPS_LANE * W; c < a.n_columns; c += WARPS_LANES * W) {
            float x[W];
            gpt_read<W>(x, a.table, type, from + c);
            gpt_write<W>(a.x, type, row * a.n_columns + c, x);
        }
    }
}

/* A warp adds W columns a lane of all tokens that are equal modulo GPT_CUDA_OWNERS, in order of
 * rows.  It looks at a row a lane at a time.  The sum of a token stays in registers until another
 * token comes. */
template <int W>
__global__ static void gpt_embedding_backward_kernel(gpt_tokens_args a, gpt_kernel_type type) {
    const int64_t n_rows = a.rows.end - a.rows.begin, width = WARPS_LANES * W;
    WARPS_EACH(item, GPT_CUDA_OWNERS * ((a.n_columns + width - 1) / width)) {
        const int64_t c = item / GPT_CUDA_OWNERS * width + WARPS_LANE * W;
        const int32_t owner = (int32_t)(item % GPT_CUDA_OWNERS);
        const int is_in = c < a.n_columns;
        float sum[W] = {};
        int64_t held = -1;

        for (int64_t first = 0; first < n_rows; first += WARPS_LANES) {
            const int64_t row = first + WARPS_LANE;
            uint32_t mine = __ballot_sync(
                0xffffffffu, row < n_rows && (a.tokens[row] & (GPT_CUDA_OWNERS - 1)) == owner);
            while (mine) {
                float x[GPT_CUDA_AHEAD][W];
                int64_t tokens[GPT_CUDA_AHEAD];
                for (int i = 0; i < GPT_CUDA_AHEAD; i++) {
                    tokens[i] = -1;
                    if (!mine) continue;
                    const int64_t from = first + __ffs((int)mine) - 1;
                    mine &= mine - 1;
                    tokens[i] = a.tokens[from];
                    if (is_in) gpt_read<W>(x[i], a.x, type, from * a.n_columns + c);
                }

                for (int i = 0; i < GPT_CUDA_AHEAD; i++) {
                    if (tokens[i] < 0 || !is_in) continue;
                    if (tokens[i] != held) {
                        if (held >= 0)
                            gpt_write<W>(a.dtable, MEMO_TYPE_F32, held * a.n_columns + c, sum);
                        held = tokens[i];
                        gpt_read<W>(sum, a.dtable, MEMO_TYPE_F32, held * a.n_columns + c);
                    }
                    for (int k = 0; k < W; k++) sum[k] += x[i][k];
                }
            }
        }
        if (held >= 0) gpt_write<W>(a.dtable, MEMO_TYPE_F32, held * a.n_columns + c, sum);
    }
}

/* Vectors of a row from c on, a warp apart; -infinity behind the end. */
template <int W>
__device__ static inline void gpt_read_ahead(float (*x)[W], const void* row, memo_type type,
                                             int64_t at, int64_t c, int64_t n_columns) {
    for (int i = 0; i < GPT_CUDA_AHEAD; i++, c += WARPS_LANES * W) {
        for (int k = 0; k < W; k++) x[i][k] = -INFINITY;
        if (c < n_columns) gpt_read<W>(x[i], row, type, at + c);
    }
}

/* A warp a row, W columns a lane at a time; see gpt_cross_entropy.  A lane's sum shrinks
 * when its maximum grows, so that the row is read twice. */
template <int W>
__global__ static void gpt_cross_entropy_kernel(gpt_tokens_args a, gpt_kernel_type type) {
    const double loss_scale = a.values->loss_scale;
    const int64_t step = GPT_CUDA_AHEAD * WARPS_LANES * W;
    WARPS_EACH(row, a.rows.end - a.rows.begin) {
        const int64_t at = row * a.n_columns, target = a.tokens[row];
        const int is_padding = a.token_numbers[row] < 0;
        const float target_logit = gpt_load(a.x, type, at + target);
        float x[GPT_CUDA_AHEAD][W], max = -INFINITY, sum = 0, largest, factor;

        for (int64_t c = WARPS_LANE * W; c < a.n_columns; c += step) {
            float larger = max, part = 0;
            gpt_read_ahead<W>(x, a.x, type, at, c, a.n_columns);
            for (int i = 0; i < GPT_CUDA_AHEAD; i++)
                for (int k = 0; k < W; k++) larger = fmaxf(larger, x[i][k]);
            if (larger > max) sum *= gpt_exp_fast(max - larger);
            max = larger;
            for (int i = 0; i < GPT_CUDA_AHEAD; i++)
                for (int k = 0; k < W; k++) part += gpt_exp_fast(x[i][k] - max);
            sum += part;
        }

        largest = gpt_warp_max(max);
        sum = warps_sum(max > -INFINITY ? sum * gpt_exp_fast(max - largest) : 0);
        factor = is_padding ? 0 : (float)(loss_scale / (double)sum);
        if (WARPS_LANE == 0)
            a.losses[row] =
                is_padding
                    ? 0
                    : loss_scale * (log((double)sum) + (double)largest - (double)target_logit);
        __syncwarp(); /* all lanes have read the target's logit, which one of them replaces */

        for (int64_t c = WARPS_LANE * W; c < a.n_columns; c += step) {
            gpt_read_ahead<W>(x, a.x, type, at, c, a.n_columns);
            for (int i = 0; i < GPT_CUDA_AHEAD; i++) {
                const int64_t begin = c + i * WARPS_LANES * W;
                if (begin >= a.n_columns) continue;
                for (int k = 0; k < W; k++) x[i][k] = gpt_exp_fast(x[i][k] - largest) * factor;
                if (target >= begin && target < begin + W && !is_padding)
                    for (int k = 0; k < W; k++)
                        if (begin + k == target) x[i][k] -= (float)loss_scale;
                gpt_write<W>(a.x, type, at + begin, x[i]);
            }
        }
    }
}

/* ---- long sums ------------------------------------------------------------------------------- */

/* partials[t] = the sum of the squares that warp t takes, 4 elements a lane at a time.  W 1 reads
 * them one by one. */
template <int W>
__global__ static void gpt_squares_kernel(double* partials, const void* x, memo_type type,
                                          int64_t n, int64_t n_partials) {
    const int64_t step = n_partials * WARPS_LANES * 4;
    WARPS_EACH(t, n_partials) {
        double sum = 0;
        for (int64_t first = (t * WARPS_LANES + WARPS_LANE) * 4; first < n;
             first += GPT_CUDA_AHEAD * step) {
            float values[GPT_CUDA_AHEAD][4] = {};
            for (int i = 0; i < GPT_CUDA_AHEAD; i++) {
                const int64_t at = first + i * step;
                if (W == 4 && at + 4 <= n) {
                    gpt_read<4>(values[i], x, type, at);
                } else {
                    for (int k = 0; k < 4; k++)
                        if (at + k < n) values[i][k] = gpt_load(x, type, at + k);
                }
            }
            for (int i = 0; i < GPT_CUDA_AHEAD; i++)
                for (int k = 0; k < 4; k++) sum += (double)values[i][k] * (double)values[i][k];
        }
        sum = warps_sum(sum);
        if (WARPS_LANE == 0) partials[t] = sum;
    }
}
/* to[t] = or, if it adds, += the sum of x[t], x[t + n_sums], ... */
template <typename Real>
__global__ static void gpt_fold_kernel(Real* to, const Real* x, int64_t n, int64_t n_sums,
                                       int32_t adds) {
    WARPS_EACH_THREAD(t, n_sums) {
        Real sum = 0;
        for (int64_t i = t; i < n; i += n_sums) sum += x[i];
        to[t] = adds ? to[t] + sum : sum;
    }
}
/* to += the lanes, which become 0.  A single thread works. */
__global__ static void gpt_total_kernel(double* to, double* lanes, double* vote,
                                        const gpt_update_values* values) {
    WARPS_EACH_THREAD(t, 1) {
        double sum = 0;
        for (int j = 0; j < GPT_LANES; j++) sum += lanes[j];
        for (int j = 0; j < GPT_LANES; j++) lanes[j] = 0;
        *to += sum;
        if (vote) *vote = values->vote;
    }
}

/* ---- attention: exact and slow --------------------------------------------------------------- */

/* The keys that a query and head see: one from each element of begin, begin + step, ... to end. */
struct gpt_seen_keys {
    int64_t begin, end, step;
};
__device__ static inline gpt_seen_keys gpt_keys_of(const gpt_attention_args& a, int64_t item) {
    const gpt_attention_shape& s = a.shape;
    const int64_t n_queries = s.sequence - s.first, row = item / s.n_heads;
    const int64_t query = s.first + row % n_queries, sequence = row / n_queries;
    const int64_t step = s.n_kv_heads * s.head_size;
    const int64_t first = gpt_first_key(&s, gpt_begins_at(&a, sequence), query);
    const int64_t head = item % s.n_heads / (s.n_heads / s.n_kv_heads) * s.head_size;
    return {(sequence * s.sequence + first) * step + head,
            (sequence * s.sequence + query + 1) * step, step};
}

/* A warp a query and head: rows of q, out and lse are queries, of k and v keys. */
__global__ static void gpt_attention_kernel(gpt_attention_args a, gpt_kernel_type type) {
    const gpt_attention_shape s = a.shape;
    const float scale = 1 / sqrtf((float)s.head_size);
    WARPS_EACH(item, a.batch * (s.sequence - s.first) * s.n_heads) {
        const gpt_seen_keys keys = gpt_keys_of(a, item);
        const warps_head q = warps_load(a.q, type, item * s.head_size, s.head_size);
        warps_head out = {};
        float max = -INFINITY, sum = 0;

        for (int64_t at = keys.begin; at < keys.end; at += keys.step) {
            const warps_head k = warps_load(a.k, type, at, s.head_size);
            const warps_head v = warps_load(a.v, type, at, s.head_size);
            const float score = scale * warps_dot(q, k), larger = fmaxf(max, score);
            const float shrink = gpt_exp(max - larger), p = gpt_exp(score - larger);
            for (float& e : out.v) e *= shrink;
            warps_add(&out, p, v);
            sum = sum * shrink + p;
            max = larger;
        }

        for (float& e : out.v) e /= sum;
        warps_store(a.out, type, item * s.head_size, s.head_size, out, false);
        if (WARPS_LANE == 0) ((float*)a.lse)[item] = max + (float)log((double)sum);
    }
}

/* dq and delta, a warp a query and head. */
__global__ static void gpt_attention_dq_kernel(gpt_attention_args a, gpt_kernel_type type) {
    const gpt_attention_shape s = a.shape;
    const float scale = 1 / sqrtf((float)s.head_size);
    WARPS_EACH(item, a.batch * (s.sequence - s.first) * s.n_heads) {
        const gpt_seen_keys keys = gpt_keys_of(a, item);
        const warps_head q = warps_load(a.q, type, item * s.head_size, s.head_size);
        const warps_head out = warps_load(a.out, type, item * s.head_size, s.head_size);
        const warps_head dout = warps_load(a.dout, type, item * s.head_size, s.head_size);
        const float delta = warps_dot(dout, out), lse = ((const float*)a.lse)[item];
        warps_head dq = {};
        for (int64_t at = keys.begin; at < keys.end; at += keys.step) {
            const warps_head k = warps_load(a.k, type, at, s.head_size);
            const warps_head v = warps_load(a.v, type, at, s.head_size);
            const float p = gpt_exp(scale * warps_dot(q, k) - lse);
            warps_add(&dq, scale * p * (warps_dot(dout, v) - delta), k);
        }
        warps_store(a.dq, type, item * s.head_size, s.head_size, dq, false);
        if (WARPS_LANE == 0) ((float*)a.delta)[item] = delta;
    }
}

/* dk and dv, a warp a key and its head: queries in order, head by head. */
__global__ static void gpt_attention_dkv_kernel(gpt_attention_args a, gpt_kernel_type type) {
    const gpt_attention_shape s = a.shape;
    const int64_t n_queries = s.sequence - s.first, group = s.n_heads / s.n_kv_heads;
    const float scale = 1 / sqrtf((float)s.head_size);
    WARPS_EACH(item, a.batch * s.sequence * s.n_kv_heads) {
        const int64_t row = item / s.n_kv_heads, kv_head = item % s.n_kv_heads;
        const int64_t key = row % s.sequence, first_query = row / s.sequence * n_queries;
        const warps_head k = warps_load(a.k, type, item * s.head_size, s.head_size);
        const warps_head v = warps_load(a.v, type, item * s.head_size, s.head_size);
        const gpt_kernel_type to = s.sums ? gpt_kernel_type(MEMO_TYPE_F32) : type;
        const int64_t* begins = gpt_begins_at(&a, row / s.sequence);
        warps_head dk = {}, dv = {};

        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t i = key > s.first ? key - s.first : 0; i < n_queries; i++) {
                const int64_t at = (first_query + i) * s.n_heads + head;
                if (gpt_first_key(&s, begins, s.first + i) > key) break;
                const warps_head q = warps_load(a.q, type, at * s.head_size, s.head_size);
                const warps_head dout = warps_load(a.dout, type, at * s.head_size, s.head_size);
                const float p = gpt_exp(scale * warps_dot(q, k) - ((const float*)a.lse)[at]);
                const float dp = warps_dot(dout, v) - ((const float*)a.delta)[at];
                warps_add(&dv, p, dout);
                warps_add(&dk, scale * p * dp, q);
            }

        warps_store(a.dk, to, item * s.head_size, s.head_size, dk, s.adds != 0);
        warps_store(a.dv, to, item * s.head_size, s.head_size, dv, s.adds != 0);
    }
}

/* ---- rows that take turns -------------------------------------------------------------------- */

__global__ static void gpt_spread_kernel(gpt_spread_args a, gpt_kernel_type type) {
    WARPS_EACH_THREAD(i, a.n) {
        const int64_t from = gpt_spread_from(&a, i);
        gpt_store(a.wide, type, i, from < 0 ? 0 : gpt_load(a.narrow, type, from));
    }
}

__global__ static void gpt_spread_backward_kernel(gpt_spread_args a) {
    WARPS_EACH_THREAD(i, a.n) {
        const int64_t from = gpt_spread_from(&a, i);
        if (from >= 0) ((float*)a.narrow)[from] += ((const float*)a.wide)[i];
    }
}

/* ---- experts ---------------------------------------------------------------------------------
 *
 * Exact, deterministic and slow, as the built-in attention: without tensor cores.  How many rows an
 * expert has is known on the GPU alone, so no product is one of cuBLASLt's. */

__global__ static void gpt_route_kernel(gpt_route_args a, gpt_kernel_type type) {
    WARPS_EACH_THREAD(row, a.rows.end - a.rows.begin) {
        gpt_route((float*)a.routes + row * 2 * a.n_chosen, a.logits, type, row * a.n_experts,
                  a.n_experts, a.n_chosen, a.is_normed);
    }
}
__global__ static void gpt_route_backward_kernel(gpt_route_args a, gpt_kernel_type type) {
    WARPS_EACH_THREAD(row, a.rows.end - a.rows.begin) {
        gpt_route_backward(a.dlogits, a.logits, type, row * a.n_experts,
                           (const float*)a.routes + row * 2 * a.n_chosen,
                           (const float*)a.dshares + row * a.n_chosen, a.n_experts, a.n_chosen,
                           a.is_normed);
    }
}

/* Element (output, input) 0 of the weight of a row's expert j. */
__device__ static inline int64_t gpt_expert_weight(const gpt_experts_args& a, int64_t row,
                                                   int64_t j) {
    const float* routes = (const float*)a.routes + row * 2 * a.n_chosen;
    return gpt_route_expert(routes, j) * a.n_outputs * a.n_inputs;
}
__device__ static inline float gpt_expert_share(const gpt_experts_args& a, int64_t row, int64_t j) {
    return ((const float*)a.routes)[(row * 2 + 1) * a.n_chosen + j];
}

/* y: a warp an element. */
__global__ static void gpt_experts_kernel(gpt_experts_args a, gpt_kernel_type type) {
    const int64_t in = a.n_inputs, n_wide = a.spreads ? a.n_chosen : 1;
    WARPS_EACH(item, (a.rows.end - a.rows.begin) * n_wide * a.n_outputs) {
        const int64_t wide = item / a.n_outputs, o = item % a.n_outputs, row = wide / n_wide;
        float sum = 0;
        for (int64_t j = a.spreads ? wide % n_wide : 0, k = 0; k < a.n_chosen / n_wide; j++, k++) {
            const int64_t w = gpt_expert_weight(a, row, j) + o * in;
            const int64_t x = a.spreads ? row * in : (row * a.n_chosen + j) * in;
            float part = 0;
            for (int64_t i = WARPS_LANE; i < in; i += WARPS_LANES)
                part += gpt_load(a.x, type, x + i) * gpt_load(a.weight, type, w + i);
            sum += (a.spreads ? 1 : gpt_expert_share(a, row, j)) * part;
        }
        sum = warps_sum(sum);
        if (WARPS_LANE == 0) gpt_store(a.y, type, item, sum);
    }
}

/* dx of a product that spreads: a thread an element. */
__global__ static void gpt_experts_narrow_kernel(gpt_experts_args a, gpt_kernel_type type) {
    WARPS_EACH_THREAD(at, (a.rows.end - a.rows.begin) * a.n_inputs) {
        const int64_t row = at / a.n_inputs, i = at % a.n_inputs;
        float sum = 0;
        for (int64_t j = 0; j < a.n_chosen; j++) {
            const int64_t w = gpt_expert_weight(a, row, j) + i;
            const int64_t y = (row * a.n_chosen + j) * a.n_outputs;
            for (int64_t o = 0; o < a.n_outputs; o++)
                sum += gpt_load(a.y, type, y + o) * gpt_load(a.weight, type, w + o * a.n_inputs);
        }
        gpt_store(a.dx, type, at, sum);
    }
}

/* dx and dshares of the other product: a warp for each expert of a row. */
__global__ static void gpt_experts_wide_kernel(gpt_experts_args a, gpt_kernel_type type) {
    WARPS_EACH(wide, (a.rows.end - a.rows.begin) * a.n_chosen) {
        const int64_t row = wide / a.n_chosen, j = wide % a.n_chosen, in = a.n_inputs;
        const int64_t w = gpt_expert_weight(a, row, j), y = row * a.n_outputs;
        const float share = gpt_expert_share(a, row, j);
        float along = 0;
        for (int64_t i = WARPS_LANE; i < in; i += WARPS_LANES) {
            float sum = 0;
            for (int64_t o = 0; o < a.n_outputs; o++)
                sum += gpt_load(a.y, type, y + o) * gpt_load(a.weight, type, w + o * in + i);
            along += sum * gpt_load(a.x, type, wide * in + i);
            gpt_store(a.dx, type, wide * in + i, share * sum);
        }
        along = warps_sum(along);
        if (WARPS_LANE == 0) ((float*)a.dshares)[wide] = along;
    }
}

/* dW: a warp for O outputs and I inputs a lane of an expert.  It looks for the expert's rows, 32 at a
 * time, and adds them in order. */
__global__ static void gpt_experts_weights_kernel(gpt_experts_args a, gpt_kernel_type type) {
    enum { O = 4, I = 4 };
    const int64_t n_rows = a.rows.end - a.rows.begin, in = a.n_inputs, out = a.n_outputs;
    const int64_t n_i = (in + I * WARPS_LANES - 1) / (I * WARPS_LANES), n_o = (out + O - 1) / O;
    WARPS_EACH(item, a.n_experts * n_o * n_i) {
        const int64_t expert = item / (n_o * n_i), first_o = item / n_i % n_o * O;
        const int64_t first_i = item % n_i * I * WARPS_LANES + WARPS_LANE;
        float sums[O][I] = {};
        for (int64_t begin = 0; begin < n_rows; begin += WARPS_LANES) {
            const int64_t own = begin + WARPS_LANE;
            int64_t j = 0;
            while (j < a.n_chosen && own < n_rows &&
                   gpt_expert_weight(a, own, j) != expert * out * in)
                j++;
            unsigned found = __ballot_sync(0xffffffffu, own < n_rows && j < a.n_chosen);

            for (; found; found &= found - 1) {
                int64_t row = begin, of = 0;
                for (unsigned bit = found; !(bit & 1); bit >>= 1) row++;
                while (of < a.n_chosen - 1 && gpt_expert_weight(a, row, of) != expert * out * in)
                    of++;
                const int64_t wide = row * a.n_chosen + of;
                const int64_t x = (a.spreads ? row : wide) * in, y = (a.spreads ? wide : row) * out;
                const float share = a.spreads ? 1 : gpt_expert_share(a, row, of);
                for (int k = 0; k < I; k++) {
                    const int64_t i = first_i + k * WARPS_LANES;
                    const float value = i < in ? share * gpt_load(a.x, type, x + i) : 0;
                    for (int o = 0; o < O; o++)
                        if (first_o + o < out)
                            sums[o][k] += value * gpt_load(a.y, type, y + first_o + o);
                }
            }
        }

        for (int o = 0; o < O; o++)
            for (int k = 0; k < I; k++) {
                const int64_t i = first_i + k * WARPS_LANES, at = (expert * out + first_o + o) * in;
                if (first_o + o < out && i < in) ((float*)a.dweight)[at + i] += sums[o][k];
            }
    }
}

/* ---- matrix products ------------------------------------------------------------------------- */

/* y = or += x W^T; dx = or += dy W; dW += dy^T x.  W is (outputs, inputs). */
typedef enum gpt_gemm_kind {
    GPT_GEMM_FORWARD,
    GPT_GEMM_FORWARD_ADDED,
    GPT_GEMM_INPUTS,
    GPT_GEMM_INPUTS_ADDED,
    GPT_GEMM_WEIGHTS
} gpt_gemm_kind;

/* The algorithm of a product with a number of rows. */
typedef struct gpt_gemm_choice {
    gpt_gemm_kind kind;
    uint32_t weight_alignment; /* of its address */
    int64_t n_outputs, n_inputs, n_rows;
    cublasLtMatmulAlgo_t algo;
} gpt_gemm_choice;

struct gpt_cuda_kernels {
    gpt_cuda_attention attention; /* enqueue NULL: built-in */
    memo_type type;
    cublasLtHandle_t lt;
    gpt_gemm_choice gemms[GPT_CUDA_GEMMS_MAX];
    int32_t n_gemms;
    char* workspace;          /* of cuBLASLt; the next are parts of the same scratch */
    double *lanes, *partials; /* (GPT_LANES), (GPT_CUDA_PARTIALS) */
    char* rows;               /* of an operation on rows */
    char* of_attention;
};

static int gpt_gemm_is_forward(gpt_gemm_kind kind) { return kind <= GPT_GEMM_FORWARD_ADDED; }

static memo_status gpt_lt_check(cublasStatus_t code, const char* call, memo_error* error) {
    if (code == CUBLAS_STATUS_SUCCESS) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_DEVICE, "%s: %s", call, cublasLtGetStatusName(code));
}
#define GPT_LT(function, arguments)   gpt_lt_check(function arguments, #function, error)
#define GPT_CUDA(function, arguments) memo_cuda_check(function arguments, #function, error)

typedef struct gpt_gemm_call {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    const void *a_data, *b_data;
    void* d_data;
    float alpha, beta;
} gpt_gemm_call;

/* Rows of one product, so that each matrix of rows has fewer than GPT_CUDA_ELEMENTS elements. */
static int64_t gpt_most_rows(int64_t n_outputs, int64_t n_inputs) {
    const int64_t most = (GPT_CUDA_ELEMENTS - 1) / (n_outputs > n_inputs ? n_outputs : n_inputs);
    return most > 256 ? most / 256 * 256 : most > 1 ? most : 1;
}

/* What is row-major here is column-major and transposed for cuBLAS, so D^T = op(A) op(B). */
static memo_status gpt_gemm_make(const gpt_cuda_kernels* c, const gpt_gemm_choice* of,
                                 gpt_gemm_call* g, memo_error* error) {
    const cudaDataType of_model = c->type == MEMO_TYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const int is_weights = of->kind == GPT_GEMM_WEIGHTS, is_forward = gpt_gemm_is_forward(of->kind);
    const cublasOperation_t on_a = is_forward ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t on_b = is_weights ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int64_t b_columns = is_forward ? of->n_inputs : of->n_outputs;
    const int64_t d_columns = is_forward ? of->n_outputs : of->n_inputs;
    const int64_t a_rows = is_weights ? of->n_rows : of->n_outputs;

    const auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
        return GPT_LT(cublasLtMatmulDescSetAttribute, (&g->desc, name, &value, sizeof value));
    };
    const auto lay = [&](cublasLtMatrixLayout_t matrix, cudaDataType type, int64_t columns,
                         int64_t rows) {
        return GPT_LT(cublasLtMatrixLayoutInit,
                      (matrix, type, (uint64_t)columns, (uint64_t)rows, columns));
    };
    memset(g, 0, sizeof *g);
    g->beta = of->kind == GPT_GEMM_FORWARD || of->kind == GPT_GEMM_INPUTS ? 0.0f : 1.0f;
    if (GPT_LT(cublasLtMatmulDescInit, (&g->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
        set(CUBLASLT_MATMUL_DESC_TRANSA, on_a) || set(CUBLASLT_MATMUL_DESC_TRANSB, on_b) ||
        lay(&g->a, of_model, of->n_inputs, a_rows) ||  /* the weight, or x */
        lay(&g->b, of_model, b_columns, of->n_rows) || /* x or dy */
        lay(&g->d, is_weights ? CUDA_R_32F : of_model, d_columns,
            is_weights ? of->n_outputs : of->n_rows))
        return error->status;
    return MEMO_STATUS_OK;
}

static memo_status gpt_gemm_run(gpt_cuda_kernels* c, gpt_gemm_call* g,
                                const cublasLtMatmulAlgo_t* algo, memo_stream stream,
                                memo_error* error) {
    return GPT_LT(cublasLtMatmul, (c->lt, &g->desc, &g->alpha, g->a_data, &g->a, g->b_data, &g->b,
                                   &g->beta, g->d_data, &g->d, g->d_data, &g->d, algo, c->workspace,
                                   (size_t)GPT_CUDA_WORKSPACE, memo_cuda_stream(stream)));
}

static bool gpt_gemm_is_alike(const gpt_gemm_choice& a, const gpt_gemm_choice& b) {
    return a.kind == b.kind && a.weight_alignment == b.weight_alignment &&
           a.n_outputs == b.n_outputs && a.n_inputs == b.n_inputs && a.n_rows == b.n_rows;
}

/* The largest power of two that divides n, at most 64: every array begins at such an address. */
static uint32_t gpt_alignment(uint64_t n) {
    n |= 64;
    return (uint32_t)(n & (~n + 1));
}

/* cuBLASLt's algorithms that do not split the sum, the fastest first.  None if it refuses the
 * shape.
 *
 * cuBLASLt expects matrices at multiples of 256, but rows begin at any multiple of their bytes.
 * The addresses of rows do not count, since they depend on the plan, and another algorithm gives
 * other bits. */
enum { GPT_GEMM_ASKED = 16 };
static int gpt_gemm_ask(gpt_cuda_kernels* c, gpt_gemm_call* g, const gpt_gemm_choice* of,
                        cublasLtMatmulAlgo_t algos[GPT_GEMM_ASKED]) {
    const uint64_t size = (uint64_t)memo_type_bytes(c->type);
    const uint32_t x = gpt_alignment((uint64_t)of->n_inputs * size),
                   y = gpt_alignment((uint64_t)of->n_outputs * size), w = of->weight_alignment;
    const int is_forward = gpt_gemm_is_forward(of->kind), is_weights = of->kind == GPT_GEMM_WEIGHTS;
    const uint32_t d = is_forward ? y : is_weights ? w : x;
    cublasLtMatmulHeuristicResult_t found[GPT_GEMM_ASKED];
    cublasLtMatmulPreferenceOpaque_t preference;
    int n_found = 0, n = 0;

    const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
        return cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value);
    };
    if (cublasLtMatmulPreferenceInit(&preference) ||
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (size_t)GPT_CUDA_WORKSPACE) ||
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE) ||
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, is_weights ? x : w) ||
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, is_forward ? x : y) ||
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d) ||
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d) ||
        cublasLtMatmulAlgoGetHeuristic(c->lt, &g->desc, &g->a, &g->b, &g->d, &g->d, &preference,
                                       GPT_GEMM_ASKED, found, &n_found))
        return 0;

    for (int i = 0; i < n_found; i++) {
        int32_t n_splits = 1;
        size_t written;
        if (found[i].state != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                 &n_splits, sizeof n_splits, &written) ||
            n_splits > 1)
            continue;
        algos[n++] = found[i].algo;
    }
    return n;
}

/* Runs a product with the algorithm of its number of rows.  At first that is the fastest one that
 * runs: what the heuristic offers may fail, and leaves its error.  An error that stays is the
 * device's. */
static memo_status gpt_gemm_run_rows(gpt_cuda_kernels* c, gpt_gemm_call* g, gpt_gemm_choice* of,
                                     memo_stream stream, memo_error* error) {
    cublasLtMatmulAlgo_t algos[GPT_GEMM_ASKED];
    memo_error why = {};
    for (int32_t i = 0; i < c->n_gemms; i++)
        if (gpt_gemm_is_alike(c->gemms[i], *of))
            return gpt_gemm_run(c, g, &c->gemms[i].algo, stream, error);
    const int n = gpt_gemm_ask(c, g, of, algos);
    for (int i = 0; i < n; i++) {
        if (gpt_gemm_run(c, g, &algos[i], stream, &why)) {
            (void)cudaGetLastError();
            if (GPT_CUDA(cudaGetLastError, ())) return error->status;
            continue;
        }
        of->algo = algos[i];
        if (c->n_gemms < GPT_CUDA_GEMMS_MAX) c->gemms[c->n_gemms++] = *of;
        return MEMO_STATUS_OK;
    }
    return gpt_unsupported(error,
                           "cuBLASLt: none of %d algorithms multiplies %lld rows with a weight of "
                           "%lld x %lld; %s",
                           n, (long long)of->n_rows, (long long)of->n_outputs,
                           (long long)of->n_inputs, n ? why.message : "another --tile may work");
}

/* ---- launches -------------------------------------------------------------------------------- */

#define GPT_LAUNCH(n_threads, ...)                                                                 \
    warps_launch(memo_cuda_stream(stream), n_threads, error, __VA_ARGS__)

/* Elements of 16 bytes at a time where all rows and addresses allow it. */
template <typename... Pointers> static bool gpt_is_wide(int64_t n_columns, Pointers... x) {
    return n_columns % 8 == 0 && (... | (uintptr_t)x) % 16 == 0;
}
#define GPT_LAUNCH_WIDE(is_wide, n, kernel, ...)                                                   \
    GPT_LAUNCH((is_wide) ? (n) / 8 : (n), (is_wide) ? kernel<8> : kernel<1>, __VA_ARGS__)

/* A forward runs tile by tile: a row that is computed again has the same rows beside it, and
 * therefore the same algorithm and bits. */
static memo_status gpt_gemm_enqueue(gpt_cuda_kernels* c, memo_stream stream, gpt_gemm_kind kind,
                                    const gpt_linear_args* a, memo_error* error) {
    const int is_forward = gpt_gemm_is_forward(kind), is_weights = kind == GPT_GEMM_WEIGHTS;
    const int64_t size = memo_type_bytes(c->type), n_rows = a->rows.end - a->rows.begin;
    const int64_t most = gpt_most_rows(a->n_outputs, a->n_inputs);
    const void* weight = is_weights ? a->dweight : a->weight;
    gpt_gemm_call g;
    for (int64_t row = 0, n; row < n_rows; row += n) {
        const char* x = (const char*)a->x + row * a->n_inputs * size;
        char* y = (char*)a->y + row * a->n_outputs * size;
        n = gpt_min(most, n_rows - row);
        if (is_forward) n = gpt_min(n, a->tile_rows - (a->rows.begin + row) % a->tile_rows);
        gpt_gemm_choice of = {kind, gpt_alignment((uintptr_t)weight), a->n_outputs, a->n_inputs, n,
                              {}};
        if (gpt_gemm_make(c, &of, &g, error)) return error->status;
        g.alpha = (float)a->scale;
        g.a_data = is_weights ? (const void*)x : weight;
        g.b_data = is_forward ? x : y;
        g.d_data = is_forward   ? (void*)y
                   : is_weights ? a->dweight
                                : (void*)((char*)a->dx + row * a->n_inputs * size);
        if (gpt_gemm_run_rows(c, &g, &of, stream, error)) return error->status;
    }
    return MEMO_STATUS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A warp a row. */
#define GPT_LAUNCH_ROWS(is_wide, args, kernel)                                                     \
    GPT_LAUNCH(gpt_count((args).rows) * WARPS_LANES, (is_wide) ? kernel<8> : kernel<1>, args,      \
               c->type)

template <int KIND>
static memo_status gpt_cuda_elements(gpt_cuda_kernels* c, memo_stream stream,
                                     const gpt_elements_args* a, memo_error* error) {
    const int is_wide = gpt_is_wide(a->n_columns, a->x, a->y, a->z);
    const auto kernel = is_wide ? gpt_elements_kernel<8, KIND> : gpt_elements_kernel<1, KIND>;
    const int64_t n = gpt_count(a->rows) * a->n_columns;
    return GPT_LAUNCH(is_wide ? n / 8 : n, kernel, *a, c->type);
}

static memo_status gpt_cuda_linear_backward(gpt_cuda_kernels* c, memo_stream stream,
                                            const gpt_linear_args* a, memo_error* error) {
    const gpt_gemm_kind inputs = a->adds ? GPT_GEMM_INPUTS_ADDED : GPT_GEMM_INPUTS;
    if (a->dx && gpt_gemm_enqueue(c, stream, inputs, a, error)) return error->status;
    return a->dweight ? gpt_gemm_enqueue(c, stream, GPT_GEMM_WEIGHTS, a, error) : MEMO_STATUS_OK;
}

/* By the words of a row that a lane holds at most, in bf16; 0: the row is too long or of another
 * type. */
#define GPT_NORM_KERNEL(kernel, is_wide, type, hidden)                                             \
    (!(is_wide)                                  ? kernel<1, 0>                                    \
     : type != MEMO_TYPE_BF16 || (hidden) > 4096 ? kernel<8, 0>                                    \
     : (hidden) > 2048                           ? kernel<8, 16>                                   \
     : (hidden) > 1024                           ? kernel<8, 8>                                    \
                                                 : kernel<8, 4>)

static memo_status gpt_cuda_norm(gpt_cuda_kernels* c, memo_stream stream, gpt_kind kind,
                                 const gpt_norm_args* a, memo_error* error) {
    const int64_t n_rows = gpt_count(a->rows);
    const int64_t n_chunks = (n_rows + GPT_CUDA_CHUNK - 1) / GPT_CUDA_CHUNK;
    const int is_wide = gpt_is_wide(a->hidden, a->x, a->y, a->weight, a->dx);
    float* sums = (float*)(void*)c->rows;
    const auto kernel =
        kind == GPT_KIND_NORM
            ? GPT_NORM_KERNEL(gpt_norm_kernel, is_wide, c->type, a->hidden)
            : GPT_NORM_KERNEL(gpt_norm_backward_kernel, is_wide, c->type, a->hidden);
    if (kind == GPT_KIND_NORM_BACKWARD && a->dweight &&
        (GPT_LAUNCH_WIDE(is_wide, n_chunks * a->hidden, gpt_norm_sums_kernel, *a, c->type, sums,
                         n_chunks) ||
         GPT_LAUNCH(a->hidden, gpt_fold_kernel<float>, (float*)a->dweight, sums,
                    n_chunks * a->hidden, a->hidden, 1)))
        return error->status;
    return GPT_LAUNCH(n_rows * WARPS_LANES, kernel, *a, c->type);
}

static memo_status gpt_cuda_bias_backward(gpt_cuda_kernels* c, memo_stream stream,
                                          const gpt_bias_args* a, memo_error* error) {
    const int64_t n_chunks = (gpt_count(a->rows) + GPT_CUDA_CHUNK - 1) / GPT_CUDA_CHUNK;
    float* sums = (float*)(void*)c->rows;
    if (GPT_LAUNCH_WIDE(gpt_is_wide(a->n_columns, a->y), n_chunks * a->n_columns,
                        gpt_bias_sums_kernel, *a, c->type, sums, n_chunks))
        return error->status;
    return GPT_LAUNCH(a->n_columns, gpt_fold_kernel<float>, (float*)a->dbias, sums,
                      n_chunks * a->n_columns, a->n_columns, 1);
}

static memo_status gpt_cuda_loss(gpt_cuda_kernels* c, memo_stream stream, const gpt_loss_args* a,
                                 memo_error* error) {
    if (GPT_LAUNCH(GPT_CUDA_PARTIALS, gpt_fold_kernel<double>, c->partials, a->losses, a->n,
                   GPT_CUDA_PARTIALS, 0) ||
        GPT_LAUNCH(GPT_LANES, gpt_fold_kernel<double>, c->lanes, c->partials, GPT_CUDA_PARTIALS,
                   GPT_LANES, 1))
        return error->status;
    return GPT_LAUNCH(1, gpt_total_kernel, a->loss, c->lanes, (double*)NULL,
                      (const gpt_update_values*)NULL);
}

static memo_status gpt_cuda_squares(gpt_cuda_kernels* c, memo_stream stream,
                                    const gpt_squares_args* a, memo_error* error) {
    const int64_t n_warps = (a->n + 4 * WARPS_LANES - 1) / (4 * WARPS_LANES);
    const int64_t n_partials = gpt_min(n_warps, GPT_CUDA_PARTIALS), n = n_partials * WARPS_LANES;
    if (GPT_LAUNCH(n, (uintptr_t)a->x % 16 ? gpt_squares_kernel<1> : gpt_squares_kernel<4>,
                   c->partials, a->x, a->type, a->n, n_partials))
        return error->status;
    return GPT_LAUNCH(GPT_LANES, gpt_fold_kernel<double>, a->lanes, c->partials, n_partials,
                      GPT_LANES, 1);
}

static memo_status gpt_cuda_adamw(gpt_cuda_kernels* c, memo_stream stream, const gpt_adamw_args* a,
                                  memo_error* error) {
    const int64_t n_blocks = (a->n + GPT_BLOCK - 1) / GPT_BLOCK;
    const bool is_wide =
        gpt_is_wide(0, a->parameters, a->gradients, a->weights, a->moments1, a->moments2);
    if (a->states == MEMO_TYPE_U8)
        return GPT_LAUNCH(n_blocks * WARPS_LANES,
                          is_wide ? gpt_adamw_blocks_kernel<true> : gpt_adamw_blocks_kernel<false>,
                          *a);
    return is_wide && a->n % 8 == 0 ? GPT_LAUNCH(a->n / 4, gpt_adamw_kernel<4>, *a, c->type)
                                    : GPT_LAUNCH(a->n, gpt_adamw_kernel<1>, *a, c->type);
}

static memo_status gpt_cuda_experts_backward(gpt_cuda_kernels* c, memo_stream stream,
                                             const gpt_experts_args* a, memo_error* error) {
    const int64_t n_rows = gpt_count(a->rows),
                  n_weights = a->n_experts * a->n_outputs * a->n_inputs;
    if (a->dweight && GPT_LAUNCH(n_weights, gpt_experts_weights_kernel, *a, c->type))
        return error->status;
    return a->spreads ? GPT_LAUNCH(n_rows * a->n_inputs, gpt_experts_narrow_kernel, *a, c->type)
                      : GPT_LAUNCH(n_rows * a->n_chosen * WARPS_LANES, gpt_experts_wide_kernel, *a,
                                   c->type);
}

static memo_status gpt_cuda_attend(gpt_cuda_kernels* c, memo_stream stream, gpt_kind kind,
                                   const gpt_attention_args* a, memo_error* error) {
    const gpt_attention_shape* s = &a->shape;
    const int64_t n_queries = a->batch * (s->sequence - s->first) * s->n_heads * WARPS_LANES;
    const int64_t n_keys = a->batch * s->sequence * s->n_kv_heads * WARPS_LANES;
    if (c->attention.enqueue)
        return c->attention.enqueue(c->attention.context, stream, kind, a, c->of_attention, error);
    if (kind == GPT_KIND_ATTENTION) return GPT_LAUNCH(n_queries, gpt_attention_kernel, *a, c->type);
    if (GPT_LAUNCH(n_queries, gpt_attention_dq_kernel, *a, c->type)) return error->status;
    return GPT_LAUNCH(n_keys, gpt_attention_dkv_kernel, *a, c->type);
}

static memo_status gpt_cuda_enqueue(void* context, memo_stream stream, const gpt_op* op,
                                    memo_error* error) {
    gpt_cuda_kernels* c = (gpt_cuda_kernels*)context;
    const auto& a = op->args;
    memo_error unused;
    if (!error) error = &unused;

    switch (op->kind) {
    case GPT_KIND_LINEAR:
        return gpt_gemm_enqueue(
            c, stream, a.linear.adds ? GPT_GEMM_FORWARD_ADDED : GPT_GEMM_FORWARD, &a.linear, error);
    case GPT_KIND_LINEAR_BACKWARD: return gpt_cuda_linear_backward(c, stream, &a.linear, error);
    case GPT_KIND_NORM:
    case GPT_KIND_NORM_BACKWARD: return gpt_cuda_norm(c, stream, op->kind, &a.norm, error);
    case GPT_KIND_BIAS:
        return GPT_LAUNCH_ROWS(gpt_is_wide(a.bias.n_columns, a.bias.y, a.bias.bias), a.bias,
                               gpt_bias_kernel);
    case GPT_KIND_BIAS_BACKWARD: return gpt_cuda_bias_backward(c, stream, &a.bias, error);
    case GPT_KIND_DROPOUT:
        return GPT_LAUNCH_ROWS(
            gpt_is_wide(a.elements.n_columns, a.elements.x, a.elements.y, a.elements.z), a.elements,
            gpt_dropout_kernel);
    case GPT_KIND_GELU: return gpt_cuda_elements<GPT_KIND_GELU>(c, stream, &a.elements, error);
    case GPT_KIND_GELU_BACKWARD:
        return gpt_cuda_elements<GPT_KIND_GELU_BACKWARD>(c, stream, &a.elements, error);
    case GPT_KIND_SWIGLU: return gpt_cuda_elements<GPT_KIND_SWIGLU>(c, stream, &a.elements, error);
    case GPT_KIND_SWIGLU_BACKWARD:
        return gpt_cuda_elements<GPT_KIND_SWIGLU_BACKWARD>(c, stream, &a.elements, error);
    case GPT_KIND_ROPE:
        return GPT_LAUNCH_ROWS(gpt_is_wide(a.rope.head_size / 2, a.rope.x, a.rope.table), a.rope,
                               gpt_rope_kernel);
    case GPT_KIND_ATTENTION:
    case GPT_KIND_ATTENTION_BACKWARD:
        return gpt_cuda_attend(c, stream, op->kind, &a.attention, error);
    case GPT_KIND_EMBEDDING:
        return GPT_LAUNCH_ROWS(gpt_is_wide(a.tokens.n_columns, a.tokens.x, a.tokens.table),
                               a.tokens, gpt_embedding_kernel);
    case GPT_KIND_EMBEDDING_BACKWARD: /* an owner a warp, and 8 or 1 columns a lane */
        return GPT_LAUNCH_WIDE(gpt_is_wide(a.tokens.n_columns, a.tokens.x, a.tokens.dtable),
                               GPT_CUDA_OWNERS * ((a.tokens.n_columns + 255) / 256 * 256),
                               gpt_embedding_backward_kernel, a.tokens, c->type);
    case GPT_KIND_CROSS_ENTROPY:
        return GPT_LAUNCH_ROWS(gpt_is_wide(a.tokens.n_columns, a.tokens.x), a.tokens,
                               gpt_cross_entropy_kernel);
    case GPT_KIND_LOSS: return gpt_cuda_loss(c, stream, &a.loss, error);
    case GPT_KIND_SQUARES: return gpt_cuda_squares(c, stream, &a.squares, error);
    case GPT_KIND_NORM_TOTAL:
        return GPT_LAUNCH(1, gpt_total_kernel, a.total.total, a.total.lanes, a.total.vote,
                          a.total.values);
    case GPT_KIND_ADAMW: return gpt_cuda_adamw(c, stream, &a.adamw, error);
    case GPT_KIND_INITIAL: return GPT_LAUNCH(a.initial.n, gpt_initial_kernel, a.initial, c->type);
    case GPT_KIND_ROPE_TABLE:
        return GPT_LAUNCH(a.rope_table.n_positions * a.rope_table.head_size / 2,
                          gpt_rope_table_kernel, a.rope_table);
    case GPT_KIND_ROUTE:
        return GPT_LAUNCH(gpt_count(a.route.rows), gpt_route_kernel, a.route, c->type);
    case GPT_KIND_ROUTE_BACKWARD:
        return GPT_LAUNCH(gpt_count(a.route.rows), gpt_route_backward_kernel, a.route, c->type);
    case GPT_KIND_EXPERTS:
        return GPT_LAUNCH(gpt_count(a.experts.rows) * a.experts.n_outputs * WARPS_LANES *
                              (a.experts.spreads ? a.experts.n_chosen : 1),
                          gpt_experts_kernel, a.experts, c->type);
    case GPT_KIND_EXPERTS_BACKWARD: return gpt_cuda_experts_backward(c, stream, &a.experts, error);
    case GPT_KIND_SPREAD: return GPT_LAUNCH(a.spread.n, gpt_spread_kernel, a.spread, c->type);
    case GPT_KIND_SPREAD_BACKWARD:
        return GPT_LAUNCH(a.spread.n, gpt_spread_backward_kernel, a.spread);
    case GPT_N_KINDS: break;
    }
    return gpt_invalid(error, "operation %d is unknown", (int)op->kind);
}

static int64_t gpt_cuda_scratch_bytes(void* context, const gpt_shapes* shapes) {
    const gpt_cuda_kernels* c = (const gpt_cuda_kernels*)context;
    return gpt_cuda_own_bytes(shapes) +
           (c->attention.scratch_bytes ? c->attention.scratch_bytes(c->attention.context, shapes)
                                       : 0);
}

static memo_status gpt_cuda_prepare(void* context, const gpt_shapes* shapes, memo_stream compute,
                                    void* scratch, memo_error* error) {
    gpt_cuda_kernels* c = (gpt_cuda_kernels*)context;
    memo_error unused;
    if (!error) error = &unused;
    if (shapes->type != MEMO_TYPE_BF16 && shapes->type != MEMO_TYPE_F32)
        return gpt_unsupported(error, "gpt_shapes.type: the CUDA kernels take f32 and bf16");
    if (!c->attention.enqueue && shapes->head_size > WARPS_HEAD)
        return gpt_unsupported(error, "heads of %lld: the built-in attention takes at most %d",
                               (long long)shapes->head_size, (int)WARPS_HEAD);
    if (!c->lt && GPT_LT(cublasLtCreate, (&c->lt))) return error->status;

    /* The parts of the scratch. */
    c->n_gemms = 0; /* another type may need others */
    c->type = shapes->type;
    c->workspace = (char*)scratch;
    c->lanes = (double*)(void*)(c->workspace + GPT_CUDA_WORKSPACE);
    c->partials = c->lanes + 64;
    c->rows = (char*)(c->partials + GPT_CUDA_PARTIALS);
    c->of_attention = c->rows + gpt_cuda_rows_bytes(shapes);

    if (GPT_CUDA(cudaMemsetAsync,
                 (c->lanes, 0, GPT_LANES * sizeof(double), memo_cuda_stream(compute))))
        return error->status;
    return c->attention.prepare
               ? c->attention.prepare(c->attention.context, shapes, compute, c->of_attention, error)
               : MEMO_STATUS_OK;
}

/* ---- a step as a graph ----------------------------------------------------------------------- */

/* Other threads may use CUDA meanwhile: the watchdog of NCCL does. */
static memo_status gpt_cuda_graph_begin(void*, memo_stream stream, memo_error* error) {
    return GPT_CUDA(cudaStreamBeginCapture,
                    (memo_cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
}

static memo_status gpt_cuda_graph_end(void*, memo_stream stream, void** graph, memo_error* error) {
    cudaGraph_t captured = NULL;
    cudaGraphExec_t exec = NULL;
    memo_status status = GPT_CUDA(cudaStreamEndCapture, (memo_cuda_stream(stream), &captured));
    if (!status) status = GPT_CUDA(cudaGraphInstantiate, (&exec, captured, 0));
    if (captured) cudaGraphDestroy(captured);
    *graph = exec;
    return status;
}

static memo_status gpt_cuda_graph_launch(void*, memo_stream stream, void* graph,
                                         memo_error* error) {
    return GPT_CUDA(cudaGraphLaunch, ((cudaGraphExec_t)graph, memo_cuda_stream(stream)));
}

static void gpt_cuda_graph_destroy(void*, void* graph) {
    cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

memo_status gpt_cuda_kernels_create(const gpt_cuda_attention* attention, gpt_cuda_kernels** kernels,
                                    memo_error* error) {
    gpt_cuda_kernels* c = (gpt_cuda_kernels*)calloc(1, sizeof *c);
    *kernels = NULL;
    if (!c) return gpt_no_memory("the kernels", error);
    if (attention) c->attention = *attention;
    *kernels = c;
    return MEMO_STATUS_OK;
}

void gpt_cuda_kernels_destroy(gpt_cuda_kernels* kernels) {
    if (!kernels) return;
    if (kernels->lt) cublasLtDestroy(kernels->lt);
    free(kernels);
}

gpt_kernels gpt_cuda_kernels_table(gpt_cuda_kernels* kernels) {
    gpt_kernels table = {};
    table.context = kernels;
    table.enqueue = gpt_cuda_enqueue;
    table.scratch_bytes = gpt_cuda_scratch_bytes;
    table.prepare = gpt_cuda_prepare;
    table.attention = kernels->attention.over_ranks;
    table.graph_begin = gpt_cuda_graph_begin;
    table.graph_end = gpt_cuda_graph_end;
    table.graph_launch = gpt_cuda_graph_launch;
    table.graph_destroy = gpt_cuda_graph_destroy;
    return table;
}
