#pragma once
/* ---- 11 row kernels: the arithmetic between copies ----------------------------------------------
 *
 * Operations on rows other than matrix products.  memo_row_run computes on the calling thread, and
 * memo_row_kernel enqueues a kernel on a device: the host's, or a GPU by memo_cuda.cuh.
 *
 * Numbers are F32, BF16 or F16, computed in fp32 and rounded once, to nearest even.  Every product
 * that is added is an explicit fma, so that host and GPU agree bit for bit, but for exp, log,
 * log1p, tanh and the order of a loss's sums.  The merge differs by 4 units in the last place of
 * the weight, and of the larger term of the LSE; in the cross-entropy each exp(x) by 3 + |x| / 40
 * units (a GPU takes an exp below 2^-126 as 0), the LSE by 4 units of 1 or of the LSE.  A NaN stays
 * a NaN.  Arrays must be aligned to their element; 16 bytes are faster.
 *
 * Strides count elements from the start of one row to the next; 0 means contiguous rows.  An output
 * may overlap an input only if both are the same array with the same stride and element size. */

/* --- a number --- */

MEMO_INLINE uint32_t memob_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
MEMO_INLINE float memob_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MEMO_INLINE float memo_f32_from_bf16(uint16_t bits) {
    return memob_f32_from_bits(MEMO_CAST(uint32_t, bits) << 16);
}
MEMO_INLINE uint16_t memo_bf16_from_f32(float value) {
    uint32_t bits = memob_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return MEMO_CAST(uint16_t, (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

MEMO_INLINE float memo_f32_from_f16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    uint32_t sign = MEMO_CAST(uint32_t, bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity and NaN */
        return memob_f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return memob_f32_from_bits(sign | ((magnitude << 13) + 0x38000000u));
    /* Below the normal ones: a multiple of 2^-24, exact in fp32. */
    return memob_f32_from_bits(
        sign | memob_f32_bits(MEMO_CAST(float, magnitude) * 5.9604644775390625e-8f));
#endif
}
MEMO_INLINE uint16_t memo_f16_from_f32(float value) {
    uint32_t bits = memob_f32_bits(value), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
#if defined(__CUDA_ARCH__)
    uint16_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    {
        uint32_t sign = bits >> 16 & 0x8000;
        if (magnitude >= 0x477ff000u)
            return MEMO_CAST(uint16_t, sign | 0x7c00);                  /* 65520 and more */
        if (magnitude <= 0x33000000u) return MEMO_CAST(uint16_t, sign); /* 2^-25 and less */
        if (magnitude < 0x38800000u) { /* the result counts units of 2^-24 */
            uint32_t shift = 126 - (magnitude >> 23), one = (magnitude & 0x7fffffu) | 0x800000u;
            uint32_t odd = (one >> shift) & 1;
            return MEMO_CAST(uint16_t, sign | (one + (1u << (shift - 1)) - 1 + odd) >> shift);
        }
        magnitude += 0xfff + ((magnitude >> 13) & 1);
        return MEMO_CAST(uint16_t, sign | (magnitude - 0x38000000u) >> 13);
    }
#endif
}

/* --- merge of partial attention ---
 *
 * out and lse cover some keys, part_out and part_lse cover others.  Afterwards out and lse cover
 * all.  With a and O_a a row's lse and out, b and O_b its part_lse and part_out:
 *   e = exp(-|a - b|),  weights 1 / (1 + e) of the part with the larger LSE and e / (1 + e) of the
 *   other,  O = w_a O_a + w_b O_b,  LSE = max(a, b) + log1p(e).
 * LSE -inf means that no key was seen; O is then ignored.  The error of an output element is at
 * most (8 + |a - b|) 2^-24 (w_a |O_a| + w_b |O_b|), so a part keeps its precision beside another
 * that takes nearly all.  An LSE of fp32 is itself rounded, by |LSE| 2^-24 of its weight. */
typedef struct memo_merge_desc {
    float* out;           /* (n_batches, n_rows, n_columns); a row is a token and head */
    float* lse;           /* (n_batches, n_rows) */
    const void* part_out; /* as out */
    const float* part_lse;
    memo_type part_type; /* of part_out */
    int64_t n_batches;   /* 0: 1 */
    int64_t n_rows, n_columns;
    int64_t batch_stride_rows; /* of all four arrays; 0: n_rows */
} memo_merge_desc;

/* --- add: to = a + b; cast: to = a --- */
typedef struct memo_add_desc { /* of row sums too */
    void* to;                  /* (n_rows, n_columns) */
    const void *a, *b;         /* as to; a may be to; cast has no b */
    memo_type to_type, a_type, b_type;
    int64_t n_rows; /* 0: 1; of row sums: none */
    int64_t n_columns;
    int64_t to_stride, a_stride, b_stride;
} memo_add_desc;

/* --- add packed: rows of ranges += packed, which has one range after another --- */
#define MEMO_PACK_MAX 32
typedef struct memo_pack_desc {
    /* One tensor or two, such as gradients of keys and values: (any rows, n_columns). */
    void *packed[2], *rows[2];
    memo_type packed_type, rows_type;
    int64_t n_columns[2];
    int32_t n_ranges; /* 0 to MEMO_PACK_MAX */
    /* Range k begins at row begins[k].  Its packed rows end before row ends[k], where the packed
     * rows of the next range begin.  Ranges do not overlap. */
    int64_t begins[MEMO_PACK_MAX], ends[MEMO_PACK_MAX];
} memo_pack_desc;

/* --- row sums: to[row] = sum over columns of a * b ---
 *
 * Their desc is memo_add_desc.  With a = dO and b = O it is D of attention's backward.  to is F32,
 * a number a row.  Each of 8 lanes adds its products in order, by fma; then lanes l and l + 4, l
 * and l + 2, 0 and 1 are added. */

/* --- cross-entropy of logits, of which this rank may hold only some columns ---
 *
 * logits are columns first_column, first_column + 1, ... of the whole vocabulary of V columns.
 * Three kernels use the same desc, in this order:
 *
 *   softmax_parts   parts[part][row] = the largest logit m of the row's columns other than its
 *                   label, the sum of their exp(z - m), and the logit of the label (-inf if it is
 *                   not among these columns)
 *   cross_entropy   reads all parts, and sets losses and d_logits
 *   loss_sums       sums[0] += the losses of the rows with a label, sums[1] += the number of labels
 *                   below the vocabulary, sums[2] += the number of labels at or beyond it
 *
 * With z the logits (softcap: z = softcap tanh(x / softcap)), p = exp(z - LSE) and y = [the column
 * is the label]:
 *
 *   loss     = LSE - z[label]
 *   d_logits = scale (p - y) (1 - (z / softcap)^2)
 *
 * p - y of the label is minus the sum of the other p, and p is exp(z - max) / sum, which keeps the
 * precision with large logits and confident labels.  A row without label (label < 0) gets loss 0
 * and gradient 0.  A label at or beyond the vocabulary is an error that only the device sees: its
 * loss is NaN, so sums[0] is, its gradient is 0, and sums[2] counts it (memo_loss_read).
 *
 * On a GPU 32 lanes share a row: lane l takes groups l, l + 32, ... in order; then lanes l and l +
 * 16, l and l + 8, ... are joined.  The host joins chunks of 256 columns in order.  Lane l of
 * loss_sums adds rows l, l + 32, ... in double. */
typedef struct memo_cross_entropy_desc {
    const void* logits;    /* (n_rows, n_columns) */
    void* d_logits;        /* likewise, same stride; may be logits; NULL: no gradient */
    const int32_t* labels; /* (n_rows) */
    float* parts;          /* (n_parts, n_rows, MEMO_LOSS_NUMBERS) */
    float* losses;         /* (n_rows), in nats */
    double* sums;          /* (3); loss_sums only */
    memo_type type;        /* of logits and d_logits */
    int32_t n_parts;       /* 0: 1 */
    int32_t part;          /* the part that softmax_parts writes */
    float scale;
    float softcap; /* 0: none */
    int64_t n_rows, n_columns, stride;
    int64_t first_column;
    int64_t vocabulary; /* V; 0: first_column + n_columns, if there is one part */
} memo_cross_entropy_desc;
#define MEMO_LOSS_NUMBERS 3 /* of a row in parts */

/* --- attention sinks ---
 *
 * A sink is a logit of a head that takes part in the softmax of every row and has no value.
 *
 *   sinks       the merge with a part whose LSE is the sink and whose output is 0: out *= w_a,
 *               LSE = log(exp(LSE) + exp(sink)).  A row that saw no key has output 0 and the sink
 *               as LSE
 *   sink_sums   d_sinks[h] -= sum over the rows of exp(sink - LSE) * row_dots, with the LSE that
 *               sinks left, and row_dots = sum of d_out * out of a row and head.  A row that saw no
 *               key adds nothing, even if d_out is NaN there, as padding may be
 *
 * sink_sums takes 32 lanes a head: lane l adds rows l, l + 32, ... in double; then lanes l and l +
 * 16, l and l + 8, ... are added. */
typedef struct memo_sinks_desc {
    float* out;            /* (n_rows, n_heads, n_columns); sinks only */
    float* lse;            /* (n_rows, n_heads) */
    const float* sinks;    /* (n_heads) */
    const float* row_dots; /* (n_rows, n_heads); sink_sums only */
    float* d_sinks;        /* (n_heads); sink_sums only */
    int64_t n_rows, n_heads, n_columns;
} memo_sinks_desc;

/* --- reduce: to[i] = the sum or maximum of from[0][i], from[1][i], ... ---
 *
 * Arrays may lie on devices whose memory this one reaches.  All types, with the bits of
 * memo_all_reduce.  to may be one of from. */
#define MEMO_REDUCE_MAX 16
typedef struct memo_reduce_desc {
    void* to;                          /* (count) */
    const void* from[MEMO_REDUCE_MAX]; /* (n_from), each (count) */
    int32_t n_from;
    memo_type type;
    memo_reduction reduction;
    int64_t count;
} memo_reduce_desc;

/* --- running them --- */

/* All row kernels: K(memo_row_kind, name, name in schedules, desc). */
#define MEMO_ROW_KERNELS(K)                                                                        \
    K(MEMO_ROW_MERGE, merge, "merge", memo_merge_desc)                                             \
    K(MEMO_ROW_ADD, add, "add", memo_add_desc)                                                     \
    K(MEMO_ROW_SUMS, sums, "row sums", memo_add_desc)                                              \
    K(MEMO_ROW_CAST, cast, "cast", memo_add_desc)                                                  \
    K(MEMO_ROW_SOFTMAX_PARTS, softmax_parts, "softmax parts", memo_cross_entropy_desc)             \
    K(MEMO_ROW_CROSS_ENTROPY, cross_entropy, "cross entropy", memo_cross_entropy_desc)             \
    K(MEMO_ROW_LOSS_SUMS, loss_sums, "loss sums", memo_cross_entropy_desc)                         \
    K(MEMO_ROW_SINKS, sinks, "sinks", memo_sinks_desc)                                             \
    K(MEMO_ROW_SINK_SUMS, sink_sums, "sink sums", memo_sinks_desc)                                 \
    K(MEMO_ROW_REDUCE, reduce, "reduce", memo_reduce_desc)                                         \
    K(MEMO_ROW_ADD_PACKED, add_packed, "add packed", memo_pack_desc)

/* Enqueues a kernel, whose desc is that of its kind.  A recorder records what it reads and writes.
 * Errors: INVALID_ARGUMENT (a type other than F32, BF16 and F16, except reduce; a negative size; a
 * stride shorter than a row; an address that is NULL or not aligned to its element; sizes above
 * 2^62), UNSUPPORTED (the device has no row kernels), the device's. */
MEMO_TRY memo_status memo_row_kernel(const memo_device* device, memo_stream stream,
                                     memo_row_kind kind, const void* desc, memo_error* error);
/* Runs a kernel on the calling thread.  Errors: INVALID_ARGUMENT, as above; also a sink that is
 * NaN or +inf, which a GPU cannot report: NaN makes the output of the head NaN, +inf makes the
 * output 0 and the LSE +inf. */
MEMO_TRY memo_status memo_row_run(memo_row_kind kind, const void* desc, memo_error* error);
/* A desc of any kind, as a device's row_kernel gets it: valid, with each 0 replaced by its
 * default. */
typedef union memo_row_desc {
    memo_merge_desc merge;
    memo_add_desc add;
    memo_cross_entropy_desc entropy;
    memo_sinks_desc sinks;
    memo_reduce_desc reduce;
    memo_pack_desc pack;
} memo_row_desc;

/* memo_row_add(device, stream, &add, error) and so on: memo_row_kernel with the right desc. */
#define MEMOI_ROW_INLINE(kind, name, shown, desc_type)                                             \
    MEMO_FUNCTION memo_status memo_row_##name(const memo_device* device, memo_stream stream,       \
                                              const desc_type* desc, memo_error* error) {          \
        return memo_row_kernel(device, stream, kind, desc, error);                                 \
    }
MEMO_ROW_KERNELS(MEMOI_ROW_INLINE)
