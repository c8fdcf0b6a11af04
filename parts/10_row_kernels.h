#ifndef MEMO_ROW_KERNELS
#define MEMO_ROW_KERNELS

#include "../memo.h"

#include <math.h>
#include <string.h>

/* Functions that host code and kernels share. */
#if defined(__CUDACC__)
#define MEMO_INLINE static inline __host__ __device__
#else
#define MEMO_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MEMO_SP_H
typedef enum memo_type {
    MEMO_TYPE_F32 = 0,
    MEMO_TYPE_F64,
    MEMO_TYPE_BF16,
    MEMO_TYPE_F16,
    MEMO_TYPE_I32,
    MEMO_TYPE_I64,
    MEMO_TYPE_U8
} memo_type;
#endif

/* ---- 10 row kernels: the arithmetic between copies -------------------------------------------------
 *
 * What long-context training does to rows besides multiplying matrices: collect and spread them, merge
 * partial attention, add, sum products, change types.  Each kernel is a loop over an inline function of
 * this chapter.  The loops of memo_row_* run at once on the calling thread; those of memo_cuda.cuh run on
 * a GPU; a device with row kernels enqueues them (chapter 4).
 *
 * Numbers are F32, BF16 or F16, computed in fp32 and rounded once, to nearest even, when stored.  Every
 * product that is added to something is an explicit fma, so that host and GPU agree bit for bit; only exp
 * and log1p of the merge may differ: by 4 units in the last place of the weight, and for the LSE of its larger
 * term.  A NaN stays one, with whatever payload.  Arrays are aligned to their element; aligned to 16 bytes
 * they are faster.
 *
 * Strides count elements (gather and scatter: bytes), from the beginning of a row to that of the next; 0
 * means that rows lie side by side.  Outputs overlap inputs only where they are the same array with the
 * same strides and element size. */

/* Bytes of an element; 0 where the row kernels do not take the type. */
MEMO_INLINE int64_t memo_row_type_bytes(memo_type type) {
    return type == MEMO_TYPE_F32 ? 4 : type == MEMO_TYPE_BF16 || type == MEMO_TYPE_F16 ? 2 : 0;
}

/* --- one number --- */

MEMO_INLINE uint32_t memo_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
MEMO_INLINE float memo_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MEMO_INLINE float memo_f32_from_bf16(uint16_t bits) {
    return memo_f32_from_bits((uint32_t)bits << 16);
}
MEMO_INLINE uint16_t memo_bf16_from_f32(float value) {
    uint32_t bits = memo_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

MEMO_INLINE float memo_f32_from_f16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity and NaN */
        return memo_f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return memo_f32_from_bits(sign | ((magnitude << 13) + 0x38000000u));
    /* Below the normal ones: a multiple of 2^-24, exact in fp32. */
    return memo_f32_from_bits(sign | memo_f32_bits((float)magnitude * 5.9604644775390625e-8f));
#endif
}
MEMO_INLINE uint16_t memo_f16_from_f32(float value) {
    uint32_t bits = memo_f32_bits(value), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
#if defined(__CUDA_ARCH__)
    uint16_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    {
        uint32_t sign = bits >> 16 & 0x8000;
        if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and more */
        if (magnitude <= 0x33000000u) return (uint16_t)sign;            /* 2^-25 and less */
        if (magnitude < 0x38800000u) { /* the result counts units of 2^-24 */
            uint32_t shift = 126 - (magnitude >> 23), one = (magnitude & 0x7fffffu) | 0x800000u;
            uint32_t odd = (one >> shift) & 1;
            return (uint16_t)(sign | (one + (1u << (shift - 1)) - 1 + odd) >> shift);
        }
        magnitude += 0xfff + ((magnitude >> 13) & 1);
        return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
    }
#endif
}

/* --- a few numbers: what a thread takes at a time ---
 *
 * Eight of them, 16 bytes of the 16-bit types; four where the output is F32, so that neighbouring threads write
 * neighbouring 16 bytes there too. */

#define MEMO_ROW_GROUP 8

#if defined(__CUDA_ARCH__)
#define MEMOI_UNROLL _Pragma("unroll")
#else
#define MEMOI_UNROLL
#endif

typedef struct memo_row_block {
    uint32_t words[4];
} memo_row_block;

MEMO_INLINE memo_row_block memoi_block_load(const void* from) {
    memo_row_block block;
#if defined(__CUDA_ARCH__)
    uint4 v = *(const uint4*)from;
    block.words[0] = v.x;
    block.words[1] = v.y;
    block.words[2] = v.z;
    block.words[3] = v.w;
#else
    memcpy(&block, from, sizeof block);
#endif
    return block;
}
MEMO_INLINE void memoi_block_store(void* to, memo_row_block block) {
#if defined(__CUDA_ARCH__)
    *(uint4*)to = make_uint4(block.words[0], block.words[1], block.words[2], block.words[3]);
#else
    memcpy(to, &block, sizeof block);
#endif
}
/* The first two words of a block. */
MEMO_INLINE memo_row_block memoi_block_load_half(const void* from) {
    memo_row_block block;
#if defined(__CUDA_ARCH__)
    uint2 v = *(const uint2*)from;
    block.words[0] = v.x;
    block.words[1] = v.y;
#else
    memcpy(&block, from, 8);
#endif
    block.words[2] = block.words[3] = 0;
    return block;
}
MEMO_INLINE void memoi_block_store_half(void* to, memo_row_block block) {
#if defined(__CUDA_ARCH__)
    *(uint2*)to = make_uint2(block.words[0], block.words[1]);
#else
    memcpy(to, &block, 8);
#endif
}

MEMO_INLINE int memoi_is_block_aligned(const void* address) {
    return ((uintptr_t)address & 15) == 0;
}

/* How n elements of a type lie: 2 or more words of a block in one access, or (0) element by element. */
MEMO_INLINE int memoi_row_words(const void* address, memo_type type, int64_t n) {
    int is_f32 = type == MEMO_TYPE_F32;
    if (n >= 8 && memoi_is_block_aligned(address)) return is_f32 ? 8 : 4;
    if (n == 4 && ((uintptr_t)address & (is_f32 ? 15 : 7)) == 0) return is_f32 ? 4 : 2;
    return 0;
}

/* Words of a 16-bit type to numbers, and back. */
MEMO_INLINE void memoi_block_widen(float* to, memo_row_block block, memo_type type) {
    int k;
    MEMOI_UNROLL
    for (k = 0; k < 4; k++) {
        uint32_t word = block.words[k];
        if (type == MEMO_TYPE_BF16) {
            to[2 * k] = memo_f32_from_bits(word << 16);
            to[2 * k + 1] = memo_f32_from_bits(word & 0xffff0000u);
        } else {
            to[2 * k] = memo_f32_from_f16((uint16_t)(word & 0xffff));
            to[2 * k + 1] = memo_f32_from_f16((uint16_t)(word >> 16));
        }
    }
}
MEMO_INLINE memo_row_block memoi_block_narrow(const float* from, memo_type type) {
    memo_row_block block;
    int k;
    MEMOI_UNROLL
    for (k = 0; k < 4; k++) {
        if (type == MEMO_TYPE_BF16)
            block.words[k] = memo_bf16_from_f32(from[2 * k]) |
                             (uint32_t)memo_bf16_from_f32(from[2 * k + 1]) << 16;
        else
            block.words[k] =
                memo_f16_from_f32(from[2 * k]) | (uint32_t)memo_f16_from_f32(from[2 * k + 1]) << 16;
    }
    return block;
}

/* Up to 8 numbers; what lies behind n is 0. */
MEMO_INLINE void memoi_group_load(float* to, const void* from, memo_type type, int64_t n) {
    int words = memoi_row_words(from, type, n), k;
    if (words && type != MEMO_TYPE_F32) {
        memoi_block_widen(to, words == 4 ? memoi_block_load(from) : memoi_block_load_half(from),
                          type);
        return;
    }
    if (words) {
        memo_row_block first = memoi_block_load(from), second;
        for (k = 0; k < 4; k++) second.words[k] = 0;
        if (words == 8) second = memoi_block_load((const char*)from + 16);
        MEMOI_UNROLL
        for (k = 0; k < 4; k++) {
            to[k] = memo_f32_from_bits(first.words[k]);
            to[k + 4] = memo_f32_from_bits(second.words[k]);
        }
        return;
    }
    MEMOI_UNROLL
    for (k = 0; k < MEMO_ROW_GROUP; k++) {
        if (k >= n)
            to[k] = 0;
        else if (type == MEMO_TYPE_F32)
            to[k] = ((const float*)from)[k];
        else if (type == MEMO_TYPE_BF16)
            to[k] = memo_f32_from_bf16(((const uint16_t*)from)[k]);
        else
            to[k] = memo_f32_from_f16(((const uint16_t*)from)[k]);
    }
}

/* The first n of them, at most 8; from holds 8. */
MEMO_INLINE void memoi_group_store(void* to, const float* from, memo_type type, int64_t n) {
    int words = memoi_row_words(to, type, n), k;
    if (words && type != MEMO_TYPE_F32) {
        memo_row_block block = memoi_block_narrow(from, type);
        if (words == 4)
            memoi_block_store(to, block);
        else
            memoi_block_store_half(to, block);
        return;
    }
    if (words) {
        memo_row_block first, second;
        MEMOI_UNROLL
        for (k = 0; k < 4; k++) {
            first.words[k] = memo_f32_bits(from[k]);
            second.words[k] = memo_f32_bits(from[k + 4]);
        }
        memoi_block_store(to, first);
        if (words == 8) memoi_block_store((char*)to + 16, second);
        return;
    }
    MEMOI_UNROLL
    for (k = 0; k < MEMO_ROW_GROUP; k++) {
        if (k >= n) continue;
        if (type == MEMO_TYPE_F32)
            ((float*)to)[k] = from[k];
        else if (type == MEMO_TYPE_BF16)
            ((uint16_t*)to)[k] = memo_bf16_from_f32(from[k]);
        else
            ((uint16_t*)to)[k] = memo_f16_from_f32(from[k]);
    }
}

/* Numbers an item takes of a row, as a power of two. */
MEMO_INLINE int memoi_row_shift(memo_type to_type) { return to_type == MEMO_TYPE_F32 ? 2 : 3; }
MEMO_INLINE int64_t memoi_n_shifted(int64_t n, int shift) {
    return (n + ((int64_t)1 << shift) - 1) >> shift;
}
MEMO_INLINE int64_t memoi_row_rest(int64_t n, int64_t first, int shift) {
    return n - first < (int64_t)1 << shift ? n - first : (int64_t)1 << shift;
}

/* Item counts rows of n_each items: which row, and which of its items. */
MEMO_INLINE int64_t memoi_row_of(int64_t item, int64_t n_each, int64_t* rest) {
    int64_t row;
    if (((uint64_t)item | (uint64_t)n_each) >> 32)
        row = item / n_each;
    else
        row = (int64_t)((uint32_t)item / (uint32_t)n_each);
    *rest = item - row * n_each;
    return row;
}
MEMO_INLINE int64_t memoi_n_groups(int64_t n, int64_t n_each) {
    return n / n_each + (n % n_each != 0);
}

/* --- gather and scatter ---
 *
 * gather:  to[i] = from[index[i]], or zeros where index[i] lies outside of [0, n_indexed_rows);
 * scatter: to[index[i]] = from[i], or nothing where it lies outside; an index that comes twice gets
 * either row. */
typedef struct memo_rows_desc {
    void* to;
    const void* from;
    const int64_t* index;   /* (n_rows), where the kernel runs: device memory for CUDA */
    int64_t n_rows;         /* of the side without index */
    int64_t n_indexed_rows; /* of the other side */
    int64_t row_bytes;
    int64_t to_stride_bytes, from_stride_bytes;
} memo_rows_desc;

#define MEMO_ROW_BLOCK_BYTES 16
/* Items of a gather or scatter: blocks of 16 bytes, the last of a row may be short. */
MEMO_INLINE int64_t memo_rows_items(const memo_rows_desc* rows) {
    return rows->n_rows * memoi_n_groups(rows->row_bytes, MEMO_ROW_BLOCK_BYTES);
}

MEMO_INLINE void memoi_block_move(char* to, const char* from, int64_t n_bytes) {
    memo_row_block block;
    int k;
    for (k = 0; k < 4; k++) block.words[k] = 0;
    if (n_bytes >= MEMO_ROW_BLOCK_BYTES && memoi_is_block_aligned(to) &&
        (!from || memoi_is_block_aligned(from))) {
        memoi_block_store(to, from ? memoi_block_load(from) : block);
        return;
    }
    if (n_bytes > MEMO_ROW_BLOCK_BYTES) n_bytes = MEMO_ROW_BLOCK_BYTES;
    for (k = 0; k < n_bytes; k++) to[k] = (char)(from ? from[k] : 0);
}

MEMO_INLINE void memo_gather_item(const memo_rows_desc* rows, int64_t item) {
    int64_t block, row, source;
    row = memoi_row_of(item, memoi_n_groups(rows->row_bytes, MEMO_ROW_BLOCK_BYTES), &block);
    source = rows->index[row];
    block *= MEMO_ROW_BLOCK_BYTES;
    memoi_block_move((char*)rows->to + row * rows->to_stride_bytes + block,
                     source >= 0 && source < rows->n_indexed_rows
                         ? (const char*)rows->from + source * rows->from_stride_bytes + block
                         : (const char*)0,
                     rows->row_bytes - block);
}

MEMO_INLINE void memo_scatter_item(const memo_rows_desc* rows, int64_t item) {
    int64_t block, row, target;
    row = memoi_row_of(item, memoi_n_groups(rows->row_bytes, MEMO_ROW_BLOCK_BYTES), &block);
    target = rows->index[row];
    block *= MEMO_ROW_BLOCK_BYTES;
    if (target < 0 || target >= rows->n_indexed_rows) return;
    memoi_block_move((char*)rows->to + target * rows->to_stride_bytes + block,
                     (const char*)rows->from + row * rows->from_stride_bytes + block,
                     rows->row_bytes - block);
}

/* --- rows that several threads share: lane l of 8 takes items l, l + 8, ... of a row --- */

#define MEMO_ROW_LANES 8

/* --- merge of partial attention ---
 *
 * out and lse over some keys, part_out and part_lse over others, become those over all:
 *   w = 1 / (1 + exp(a - b)),  O += w (O_b - O),  LSE = max(a, b) + log1p(exp(-|a - b|)).
 * LSE -inf: no key seen, whatever O holds there. */
typedef struct memo_merge_desc {
    float* out;           /* (n_batches, n_rows, n_columns); a row is a token and head */
    float* lse;           /* (n_batches, n_rows) */
    const void* part_out; /* as out */
    const float* part_lse;
    memo_type part_type; /* of part_out */
    int64_t n_batches;   /* 0: 1 */
    int64_t n_rows, n_columns;
    int64_t batch_stride_rows, part_batch_stride_rows; /* 0: n_rows */
} memo_merge_desc;

MEMO_INLINE float memo_merge_weight(float a, float b) {
    if (b == -INFINITY) return 0;
    if (a == -INFINITY) return 1;
    return 1.0f / (1.0f + expf(a - b));
}
MEMO_INLINE float memo_merge_lse(float a, float b) {
    if (b == -INFINITY) return a;
    if (a == -INFINITY) return b;
    return (a > b ? a : b) + log1pf(expf(-fabsf(a - b)));
}

/* Row counts through the batches. */
MEMO_INLINE void memoi_merge_place(const memo_merge_desc* merge, int64_t row, int64_t* place,
                                   int64_t* part_place) {
    int64_t rest = row, batch = 0;
    if (merge->n_batches > 1) batch = memoi_row_of(row, merge->n_rows, &rest);
    *place = batch * merge->batch_stride_rows + rest;
    *part_place = batch * merge->part_batch_stride_rows + rest;
}

/* What one lane does to a row; weight is that of the row. */
MEMO_INLINE void memo_merge_lane(const memo_merge_desc* merge, int64_t row, int32_t lane,
                                 float weight) {
    const int shift = memoi_row_shift(MEMO_TYPE_F32);
    int64_t place, part_place, column;
    if (weight == 0) return;
    memoi_merge_place(merge, row, &place, &part_place);
    for (column = (int64_t)lane << shift; column < merge->n_columns;
         column += (int64_t)MEMO_ROW_LANES << shift) {
        float* to = merge->out + place * merge->n_columns + column;
        const char* part = (const char*)merge->part_out + (part_place * merge->n_columns + column) *
                                                              memo_row_type_bytes(merge->part_type);
        int64_t n = memoi_row_rest(merge->n_columns, column, shift);
        float out[MEMO_ROW_GROUP], other[MEMO_ROW_GROUP];
        int k;
        memoi_group_load(other, part, merge->part_type, n);
        if (weight != 1) {
            memoi_group_load(out, to, MEMO_TYPE_F32, n);
            MEMOI_UNROLL
            for (k = 0; k < MEMO_ROW_GROUP; k++) other[k] = fmaf(weight, other[k] - out[k], out[k]);
        }
        memoi_group_store(to, other, MEMO_TYPE_F32, n);
    }
}

/* --- add: to = a + b --- */
typedef struct memo_add_desc {
    void* to;          /* (n_rows, n_columns) */
    const void *a, *b; /* likewise; a may be to */
    memo_type to_type, a_type, b_type;
    int64_t n_rows; /* 0: 1 */
    int64_t n_columns;
    int64_t to_stride, a_stride, b_stride;
} memo_add_desc;

MEMO_INLINE int64_t memo_add_items(const memo_add_desc* add) {
    return add->n_rows * memoi_n_shifted(add->n_columns, memoi_row_shift(add->to_type));
}
MEMO_INLINE void memo_add_item(const memo_add_desc* add, int64_t item) {
    const int shift = memoi_row_shift(add->to_type);
    float a[MEMO_ROW_GROUP], b[MEMO_ROW_GROUP];
    int64_t row = 0, column = item, n;
    int k;
    if (add->n_rows > 1) row = memoi_row_of(item, memoi_n_shifted(add->n_columns, shift), &column);
    column <<= shift;
    n = memoi_row_rest(add->n_columns, column, shift);
    memoi_group_load(
        a, (const char*)add->a + (row * add->a_stride + column) * memo_row_type_bytes(add->a_type),
        add->a_type, n);
    memoi_group_load(
        b, (const char*)add->b + (row * add->b_stride + column) * memo_row_type_bytes(add->b_type),
        add->b_type, n);
    MEMOI_UNROLL
    for (k = 0; k < MEMO_ROW_GROUP; k++) a[k] += b[k];
    memoi_group_store((char*)add->to +
                          (row * add->to_stride + column) * memo_row_type_bytes(add->to_type),
                      a, add->to_type, n);
}

/* --- row sums: sums[row] = sum over columns of a * b; with a = dO, b = O the D of attention's backward ---
 *
 * Each lane adds in order, by fma; then lanes l and l + 4, l and l + 2, 0 and 1 are added. */
typedef struct memo_row_sums_desc {
    float* sums;       /* (n_rows) */
    const void *a, *b; /* (n_rows, n_columns) */
    memo_type a_type, b_type;
    int64_t n_rows, n_columns;
    int64_t a_stride, b_stride;
} memo_row_sums_desc;

MEMO_INLINE float memo_row_sum_lane(const memo_row_sums_desc* sums, int64_t row, int32_t lane) {
    float sum = 0;
    int64_t column;
    for (column = (int64_t)lane * MEMO_ROW_GROUP; column < sums->n_columns;
         column += MEMO_ROW_LANES * MEMO_ROW_GROUP) {
        float a[MEMO_ROW_GROUP], b[MEMO_ROW_GROUP];
        int64_t n = sums->n_columns - column;
        int k;
        memoi_group_load(a,
                         (const char*)sums->a +
                             (row * sums->a_stride + column) * memo_row_type_bytes(sums->a_type),
                         sums->a_type, n);
        memoi_group_load(b,
                         (const char*)sums->b +
                             (row * sums->b_stride + column) * memo_row_type_bytes(sums->b_type),
                         sums->b_type, n);
        MEMOI_UNROLL
        for (k = 0; k < MEMO_ROW_GROUP; k++) sum = fmaf(a[k], b[k], sum);
    }
    return sum;
}

/* --- cast --- */
typedef struct memo_cast_desc {
    void* to;
    const void* from;
    memo_type to_type, from_type;
    int64_t n; /* elements */
} memo_cast_desc;

MEMO_INLINE int64_t memo_cast_items(const memo_cast_desc* cast) {
    return memoi_n_shifted(cast->n, memoi_row_shift(cast->to_type));
}
MEMO_INLINE void memo_cast_item(const memo_cast_desc* cast, int64_t item) {
    const int shift = memoi_row_shift(cast->to_type);
    float values[MEMO_ROW_GROUP];
    int64_t first = item << shift, n = memoi_row_rest(cast->n, first, shift);
    memoi_group_load(values, (const char*)cast->from + first * memo_row_type_bytes(cast->from_type),
                     cast->from_type, n);
    memoi_group_store((char*)cast->to + first * memo_row_type_bytes(cast->to_type), values,
                      cast->to_type, n);
}

/* --- the loops on the host: at once, on the calling thread ---
 *
 * Errors: INVALID_ARGUMENT for a type that is not F32, BF16 or F16, a negative size, a stride shorter than
 * a row, an address that is NULL or not aligned to its element, sums beyond 2^62. */
MEMO_API memo_status memo_row_gather(const memo_rows_desc* rows, memo_error* error);
MEMO_API memo_status memo_row_scatter(const memo_rows_desc* rows, memo_error* error);
MEMO_API memo_status memo_row_merge(const memo_merge_desc* merge, memo_error* error);
MEMO_API memo_status memo_row_add(const memo_add_desc* add, memo_error* error);
MEMO_API memo_status memo_row_sums(const memo_row_sums_desc* sums, memo_error* error);
MEMO_API memo_status memo_row_cast(const memo_cast_desc* cast, memo_error* error);

/* For those who write the loops for another device: checks a desc as above and puts in place of each 0 what
 * it stands for. */
MEMO_API memo_status memo_rows_desc_resolve(memo_rows_desc* rows, memo_error* error);
MEMO_API memo_status memo_merge_desc_resolve(memo_merge_desc* merge, memo_error* error);
MEMO_API memo_status memo_add_desc_resolve(memo_add_desc* add, memo_error* error);
MEMO_API memo_status memo_row_sums_desc_resolve(memo_row_sums_desc* sums, memo_error* error);
MEMO_API memo_status memo_cast_desc_resolve(memo_cast_desc* cast, memo_error* error);

#ifdef __cplusplus
}
#endif

#endif
