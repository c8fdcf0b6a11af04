#pragma once
#include "sp/row_math.h"
#include "memo/device.h"
#include "sp/comm.h"
/* ---- >>row kernels ------------------------------------------------------------------------------
 * Knows: the arithmetic of rows, the device table.  Knows nothing of CUDA, attention or
 * its callers.
 *
 * 1. A kernel reads few enough arrays for a recorder's list, and writes few enough. */

/* Is it a type of rows?  desc: its type in errors. */
MEMOI memo_status memoi_check_row_type(const char* desc, const char* field, memo_type type,
                                       memo_error* error) {
    if (memo_row_type_bytes(type)) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s.%s: not supported (%s); f32, bf16 and f16 are", desc, field,
                        memo_type_name(type));
}

/* --- the host's loops; descs are resolved --- */

#define MEMOI_ROW_CHUNK 256 /* numbers in fp32 at a time: a multiple of the lanes' groups */

/* Numbers [first, first + n) of an array, as fp32. */
MEMOI void memoi_row_widen(float* to, const void* from, memo_type type, int64_t first, int64_t n) {
    const uint16_t* bits = (const uint16_t*)from + first;
    if (type == MEMO_TYPE_F32) {
        memcpy(to, (const float*)from + first, (size_t)n * sizeof *to);
    } else if (type == MEMO_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++) to[i] = memo_f32_from_bf16(bits[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = memo_f32_from_f16(bits[i]);
    }
}
MEMOI void memoi_row_narrow(void* to, memo_type type, int64_t first, const float* from, int64_t n) {
    uint16_t* bits = (uint16_t*)to + first;
    if (type == MEMO_TYPE_F32) {
        memcpy((float*)to + first, from, (size_t)n * sizeof *from);
    } else if (type == MEMO_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++) bits[i] = memo_bf16_from_f32(from[i]);
    } else {
        for (int64_t i = 0; i < n; i++) bits[i] = memo_f16_from_f32(from[i]);
    }
}
/* The next chunk of a row: at, and how many numbers. */
#define MEMOI_EACH_CHUNK(at, count, n_columns)                                                     \
    for (int64_t at = 0, count; (count = memob_min((n_columns)-at, MEMOI_ROW_CHUNK)) > 0;          \
         at += count)

MEMOI void memoi_row_loop_merge(const void* desc) {
    const memo_merge_desc* merge = (const memo_merge_desc*)desc;
    const int64_t n = merge->n_columns;
    float x[MEMOI_ROW_CHUNK], y[MEMOI_ROW_CHUNK];
    for (int64_t i = 0; i < merge->n_batches * merge->n_rows; i++) {
        const int64_t row = i / merge->n_rows * merge->batch_stride_rows + i % merge->n_rows;
        const float a = merge->lse[row], b = merge->part_lse[row];
        const memo_merge_weights weights = memo_merge_weights_of(a, b);
        MEMOI_EACH_CHUNK(at, count, weights.part == 0 ? 0 : n) {
            float* out = merge->out + row * n + at;
            memoi_row_widen(y, merge->part_out, merge->part_type, row * n + at, count);
            if (weights.out != 0) { /* else out may be anything */
                memoi_row_widen(x, out, MEMO_TYPE_F32, 0, count);
                for (int64_t k = 0; k < count; k++)
                    y[k] = fmaf(weights.part, y[k], weights.out * x[k]);
            }
            memoi_row_narrow(out, MEMO_TYPE_F32, 0, y, count);
        }
        merge->lse[row] = memo_merge_lse(a, b);
    }
}

/* Adds, if the desc has b. */
MEMOI void memoi_row_loop_add(const void* desc) {
    const memo_add_desc* add = (const memo_add_desc*)desc;
    float x[MEMOI_ROW_CHUNK], y[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < add->n_rows; row++) MEMOI_EACH_CHUNK(at, count, add->n_columns) {
            memoi_row_widen(x, add->a, add->a_type, row * add->a_stride + at, count);
            if (add->b) memoi_row_widen(y, add->b, add->b_type, row * add->b_stride + at, count);
            for (int64_t k = 0; k < count && add->b; k++) x[k] += y[k];
            memoi_row_narrow(add->to, add->to_type, row * add->to_stride + at, x, count);
        }
}
MEMOI void memoi_row_loop_cast(const void* cast) { memoi_row_loop_add(cast); } /* b is NULL */

MEMOI void memoi_row_loop_add_packed(const void* desc) {
    const memo_pack_desc* pack = (const memo_pack_desc*)desc;
    for (int32_t i = 0; i < 2 * pack->n_ranges; i++) {
        const int32_t t = i % 2, k = i / 2;
        const int64_t first = k ? pack->ends[k - 1] : 0, n = pack->n_columns[t];
        const int64_t rows_bytes = n * memo_row_type_bytes(pack->rows_type);
        const int64_t packed_bytes = n * memo_row_type_bytes(pack->packed_type);
        memo_add_desc add = MEMO_ZERO(memo_add_desc);
        add.to = (char*)pack->rows[t] + pack->begins[k] * rows_bytes;
        add.a = add.to;
        add.b = (const char*)pack->packed[t] + first * packed_bytes;
        add.to_type = add.a_type = pack->rows_type;
        add.b_type = pack->packed_type;
        add.n_rows = 1;
        add.n_columns = (pack->ends[k] - first) * n;
        if (add.n_columns) memoi_row_loop_add(&add);
    }
}

/* In the order of a GPU: groups of 8 go to 8 lanes in turn. */
MEMOI void memoi_row_loop_sums(const void* desc) {
    const memo_add_desc* sums = (const memo_add_desc*)desc;
    float x[MEMOI_ROW_CHUNK], y[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < sums->n_rows; row++) {
        float lanes[8] = {0};
        MEMOI_EACH_CHUNK(at, count, sums->n_columns) {
            memoi_row_widen(x, sums->a, sums->a_type, row * sums->a_stride + at, count);
            memoi_row_widen(y, sums->b, sums->b_type, row * sums->b_stride + at, count);
            for (int64_t k = count; k % 64; k++) x[k] = y[k] = 0;
            for (int64_t k = 0; k < (count + 63) / 64 * 8; k++)
                for (int lane = 0; lane < 8; lane++) {
                    const int64_t i = k / 8 * 64 + 8 * lane + k % 8;
                    lanes[lane] = fmaf(x[i], y[i], lanes[lane]);
                }
        }
        for (int apart = 4; apart; apart /= 2)
            for (int lane = 0; lane < apart; lane++) lanes[lane] += lanes[lane + apart];
        ((float*)sums->to)[row] = lanes[0];
    }
}

/* The label's logit is apart from the sum. */
MEMOI void memoi_row_loop_softmax_parts(const void* desc) {
    const memo_cross_entropy_desc* entropy = (const memo_cross_entropy_desc*)desc;
    float x[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < entropy->n_rows; row++) {
        float* part = entropy->parts + (entropy->part * entropy->n_rows + row) * MEMO_LOSS_NUMBERS;
        const int64_t label = memo_label_column(entropy, row);
        memo_softmax_sum sum = memo_softmax_none();
        part[2] = -INFINITY;
        MEMOI_EACH_CHUNK(at, count, entropy->n_columns) {
            memoi_row_widen(x, entropy->logits, entropy->type, row * entropy->stride + at, count);
            for (int64_t k = 0; k < count && entropy->softcap > 0; k++)
                x[k] = memo_softcap(entropy, x[k]);
            if (label >= at && label < at + count) {
                part[2] = x[label - at];
                x[label - at] = -INFINITY;
            }
            sum = memo_softmax_join(sum, memo_softmax_add(memo_softmax_none(), x, (int)count));
        }
        part[0] = sum.max;
        part[1] = sum.sum;
    }
}

MEMOI void memoi_row_loop_cross_entropy(const void* desc) {
    const memo_cross_entropy_desc* entropy = (const memo_cross_entropy_desc*)desc;
    float x[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < entropy->n_rows; row++) {
        const int32_t label = entropy->labels[row];
        const int64_t column = memo_label_column(entropy, row), first = row * entropy->stride;
        const int has_label = label >= 0 && label < entropy->vocabulary;
        const memo_entropy_row r = memo_entropy_row_of(entropy, row);
        entropy->losses[row] = has_label ? r.loss : 0;
        if (label >= entropy->vocabulary) entropy->losses[row] = NAN;
        MEMOI_EACH_CHUNK(at, count, entropy->d_logits ? entropy->n_columns : 0) {
            memoi_row_widen(x, entropy->logits, entropy->type, first + at, count);
            for (int64_t k = 0; k < count; k++)
                x[k] = has_label ? memo_entropy_gradient(entropy, &r, at + k == column, x[k]) : 0;
            memoi_row_narrow(entropy->d_logits, entropy->type, first + at, x, count);
        }
    }
}

/* Lanes are joined in the order of the GPU's shuffles. */
#define MEMOI_ROW_JOIN(lane_of, end, desc, i)                                                      \
    do {                                                                                           \
        double lanes[MEMO_LOSS_LANES];                                                             \
        for (int32_t lane = 0; lane < MEMO_LOSS_LANES; lane++)                                     \
            lanes[lane] = lane_of(desc, i, lane);                                                  \
        for (int32_t apart = MEMO_LOSS_LANES / 2; apart; apart /= 2)                               \
            for (int32_t lane = 0; lane < apart; lane++) lanes[lane] += lanes[lane + apart];       \
        end(desc, i, lanes[0]);                                                                    \
    } while (0)

MEMOI void memoi_row_loop_loss_sums(const void* desc) {
    const memo_cross_entropy_desc* entropy = (const memo_cross_entropy_desc*)desc;
    for (int64_t k = 0; k < 3 && entropy->n_rows && entropy->sums; k++)
        MEMOI_ROW_JOIN(memo_loss_lane, memo_loss_end, entropy, k);
}

MEMOI void memoi_row_loop_sinks(const void* desc) {
    const memo_sinks_desc* sinks = (const memo_sinks_desc*)desc;
    for (int64_t place = 0; place < sinks->n_rows * sinks->n_heads; place++) {
        const float lse = sinks->lse[place], sink = sinks->sinks[place % sinks->n_heads];
        const float weight = memo_merge_weights_of(lse, sink).out;
        float* out = sinks->out + place * sinks->n_columns;
        for (int64_t column = 0; column < sinks->n_columns; column++) out[column] *= weight;
        sinks->lse[place] = memo_merge_lse(lse, sink);
    }
}
MEMOI void memoi_row_loop_sink_sums(const void* desc) {
    const memo_sinks_desc* sinks = (const memo_sinks_desc*)desc;
    for (int64_t head = 0; head < sinks->n_heads; head++)
        MEMOI_ROW_JOIN(memo_sink_sum_lane, memo_sink_sum_end, sinks, head);
}

/* Sums and maxima in the order of ranks: their bits do not depend on timing. */
void memo_comm_reduce(void* to, const void* const* from, int32_t n_from, int64_t begin, int64_t end,
                      memo_type type, memo_reduction reduction) {
    int64_t n;
    for (int64_t at = 0; begin + at < end; at += n) {
        n = memob_min(end - begin - at, MEMOI_REDUCE_CHUNK);
        memo_reduce_elements(to, at, from, n_from, begin + at, n, type, reduction);
    }
}
MEMOI void memoi_row_loop_reduce(const void* desc) { /* chunks are faster than items */
    const memo_reduce_desc* reduce = (const memo_reduce_desc*)desc;
    memo_comm_reduce(reduce->to, reduce->from, reduce->n_from, 0, reduce->count, reduce->type,
                     reduce->reduction);
}

/* --- descs --- */

enum { MEMOI_ROW_READS = 1, MEMOI_ROW_WRITES = 2, MEMOI_ROW_UPDATES = 3 };
enum { MEMOI_ROW_WRITTEN_MAX = 4 }; /* arrays that a kernel writes */

/* The arrays of a desc, after the first error none. */
typedef struct memoi_row_arrays {
    memo_row_kind kind;
    const char* desc; /* its type, for errors */
    memo_op_desc op;  /* for a recorder */
    memo_range reads[MEMO_REDUCE_MAX], writes[MEMOI_ROW_WRITTEN_MAX];
    memo_status status;
    memo_error* error;
} memoi_row_arrays;

/* An array that the kernel reads or writes: checks size and address, and replaces stride 0 by its
 * default.  stride NULL: contiguous rows. */
MEMOI MEMOB_NOINLINE void memoi_row_add(memoi_row_arrays* arrays, int access, const char* name,
                                        const void* address, int64_t n, int64_t n_columns,
                                        int64_t element_bytes, int64_t* stride_of) {
    const char* desc = arrays->desc;
    const int64_t stride = stride_of && *stride_of ? *stride_of : n_columns;
    const int64_t widest = memob_max(n_columns, stride), most = MEMOB_BYTES_MAX;
    const int is_used = n && n_columns;
    memo_error* error = arrays->error;
    memo_range range;
    if (arrays->status) return;
    if (!element_bytes)
        arrays->status =
            MEMOI_REFUSE("%s.%s: its type is not supported; f32, bf16 and f16 are", desc, name);
    else if (n < 0 || n_columns < 0 || stride < 0)
        arrays->status = MEMOI_REFUSE(
            "%s.%s: negative size (%lld rows of %lld, stride %lld); 0 or more are valid", desc,
            name, (long long)n, (long long)n_columns, (long long)stride);
    else if (stride < n_columns && n > 1)
        arrays->status = MEMOI_REFUSE(
            "%s.%s: rows overlap (stride %lld); use the %lld elements of a row, or more", desc,
            name, (long long)stride, (long long)n_columns);
    /* Rows rounded up to whole groups of 16 bytes must not overflow either.  Divisions are slow. */
    else if ((n >> 28 || widest >> 28) && (n_columns > most / element_bytes - 64 ||
                                           (n && widest > most / element_bytes / n - 64)))
        arrays->status = MEMOI_REFUSE(
            "%s.%s: too large (%lld rows of %lld, stride %lld); 2^62 bytes are the limit", desc,
            name, (long long)n, (long long)n_columns, (long long)stride);
    else if (is_used && !address)
        arrays->status = MEMOI_REFUSE("%s.%s: NULL; an array is required", desc, name);
    else if (is_used && (uintptr_t)address % (uintptr_t)element_bytes)
        arrays->status = MEMOI_REFUSE("%s.%s: not aligned (%p); align it to %lld bytes", desc, name,
                                      address, (long long)element_bytes);
    if (arrays->status) return;

    if (stride_of) *stride_of = stride;
    range = memob_range_at(address, n ? ((n - 1) * stride + n_columns) * element_bytes : 0);
    MEMO_ASSERT(arrays->op.n_reads < MEMO_REDUCE_MAX);        /* 1 */
    MEMO_ASSERT(arrays->op.n_writes < MEMOI_ROW_WRITTEN_MAX); /* 1 */
    if (access & MEMOI_ROW_READS) arrays->reads[arrays->op.n_reads++] = range;
    if (access & MEMOI_ROW_WRITES) arrays->writes[arrays->op.n_writes++] = range;
}
/* A field of the desc x; one with rows, type and stride of its own. */
#define MEMOI_ROW_ARRAY(access, field, n, m, element_bytes, stride)                                \
    memoi_row_add(arrays, MEMOI_ROW_##access, #field, x->field, n, m, element_bytes, stride)
#define MEMOI_ROW_MATRIX(access, field)                                                            \
    MEMOI_ROW_ARRAY(access, field, x->n_rows, x->n_columns, memo_row_type_bytes(x->field##_type),  \
                    &x->field##_stride)

/* Is a number of the desc x, on which sizes depend, in [least, most]? */
MEMOI int memoi_row_is_in(memoi_row_arrays* arrays, const char* field, int64_t value, int64_t least,
                          int64_t most) {
    if (!arrays->status)
        arrays->status =
            memob_check_integer(arrays->desc, field, value, least, most, arrays->error);
    return !arrays->status;
}
#define MEMOI_ROW_IS_IN(field, least, most)                                                        \
    memoi_row_is_in(arrays, #field, (int64_t)x->field, least, most)

/* The arrays of a desc, a function for each type.  They replace 0 by its default. */

MEMOI void memoi_row_arrays_memo_merge_desc(memoi_row_arrays* arrays, void* desc) {
    memo_merge_desc* x = (memo_merge_desc*)desc;
    const int64_t most = MEMOB_BYTES_MAX;
    int64_t n;
    if (x->n_batches == 0) x->n_batches = 1;
    if (x->batch_stride_rows == 0) x->batch_stride_rows = x->n_rows;
    if (!MEMOI_ROW_IS_IN(n_batches, 0, most) || !MEMOI_ROW_IS_IN(n_rows, 0, most) ||
        !MEMOI_ROW_IS_IN(batch_stride_rows, x->n_batches > 1 ? x->n_rows : INT64_MIN,
                         most / x->n_batches))
        return;
    n = x->n_rows ? (x->n_batches - 1) * x->batch_stride_rows + x->n_rows : 0;
    MEMOI_ROW_ARRAY(UPDATES, out, n, x->n_columns, 4, NULL);
    MEMOI_ROW_ARRAY(READS, part_out, n, x->n_columns, memo_row_type_bytes(x->part_type), NULL);
    MEMOI_ROW_ARRAY(UPDATES, lse, n, 1, 4, NULL);
    MEMOI_ROW_ARRAY(READS, part_lse, n, 1, 4, NULL);
}

MEMOI void memoi_row_arrays_memo_add_desc(memoi_row_arrays* arrays, void* desc) {
    memo_add_desc* x = (memo_add_desc*)desc;
    const int64_t bytes = memo_row_type_bytes(x->to_type);
    const int has_b = arrays->kind != MEMO_ROW_CAST;
    if (arrays->kind == MEMO_ROW_SUMS && MEMOI_ROW_IS_IN(to_type, MEMO_TYPE_F32, MEMO_TYPE_F32))
        MEMOI_ROW_ARRAY(WRITES, to, x->n_rows, 1, bytes, NULL);
    if (arrays->kind != MEMO_ROW_SUMS && x->n_rows == 0) x->n_rows = 1;
    if (arrays->kind != MEMO_ROW_SUMS) MEMOI_ROW_MATRIX(WRITES, to);
    MEMOI_ROW_MATRIX(READS, a);
    if (has_b)
        MEMOI_ROW_MATRIX(READS, b);
    else
        x->b = NULL;
    if (arrays->status || arrays->kind == MEMO_ROW_SUMS || x->to_stride != x->n_columns ||
        x->a_stride != x->n_columns || (has_b && x->b_stride != x->n_columns))
        return;

    /* One long row. */
    x->n_columns *= x->n_rows;
    x->n_rows = 1;
    x->to_stride = x->a_stride = x->b_stride = x->n_columns;
}

/* The kind decides which arrays of the desc are used; d_logits and sums are optional. */
MEMOI void memoi_row_arrays_memo_cross_entropy_desc(memoi_row_arrays* arrays, void* desc) {
    memo_cross_entropy_desc* x = (memo_cross_entropy_desc*)desc;
    const int64_t bytes = memo_row_type_bytes(x->type), n_numbers = MEMO_LOSS_NUMBERS;
    const int64_t n = x->n_rows, most = MEMOB_BYTES_MAX;
    if (x->n_parts == 0) x->n_parts = 1;
    if (!MEMOI_ROW_IS_IN(n_parts, 1, INT32_MAX) || !MEMOI_ROW_IS_IN(part, 0, x->n_parts - 1) ||
        !MEMOI_ROW_IS_IN(n_columns, 0, most / 2) || !MEMOI_ROW_IS_IN(first_column, 0, most / 2) ||
        !MEMOI_ROW_IS_IN(vocabulary, x->n_parts > 1, most) ||
        !MEMOI_ROW_IS_IN(n_rows, 0, most / (4 * n_numbers) / x->n_parts))
        return;
    arrays->status =
        memob_check_real(arrays->desc, "softcap", (double)x->softcap, 0, 3e38, arrays->error);
    if (!x->vocabulary) x->vocabulary = x->first_column + x->n_columns;

    /* What each of the three kernels reads and writes. */
    if (arrays->kind != MEMO_ROW_LOSS_SUMS)
        MEMOI_ROW_ARRAY(READS, logits, n, x->n_columns, bytes, &x->stride);
    MEMOI_ROW_ARRAY(READS, labels, n, 1, 4, NULL);
    if (arrays->kind == MEMO_ROW_SOFTMAX_PARTS)
        memoi_row_add(arrays, MEMOI_ROW_WRITES, "parts",
                      x->parts ? x->parts + x->part * n * n_numbers : NULL, n, n_numbers, 4, NULL);
    if (arrays->kind == MEMO_ROW_CROSS_ENTROPY) {
        MEMOI_ROW_ARRAY(READS, parts, x->n_parts, n * n_numbers, 4, NULL);
        MEMOI_ROW_ARRAY(WRITES, losses, n, 1, 4, NULL);
        if (x->d_logits) MEMOI_ROW_ARRAY(WRITES, d_logits, n, x->n_columns, bytes, &x->stride);
    }
    if (arrays->kind == MEMO_ROW_LOSS_SUMS) {
        MEMOI_ROW_ARRAY(READS, losses, n, 1, 4, NULL);
        if (x->sums) MEMOI_ROW_ARRAY(UPDATES, sums, 1, 3, 8, NULL);
    }
}

MEMOI void memoi_row_arrays_memo_sinks_desc(memoi_row_arrays* arrays, void* desc) {
    memo_sinks_desc* x = (memo_sinks_desc*)desc;
    const int64_t most = MEMOB_BYTES_MAX;
    int64_t n;
    if (!MEMOI_ROW_IS_IN(n_heads, 0, most) ||
        !MEMOI_ROW_IS_IN(n_rows, 0, x->n_heads ? most / x->n_heads : most))
        return;
    n = x->n_rows * x->n_heads;
    MEMOI_ROW_ARRAY(READS, sinks, 1, x->n_heads, 4, NULL);
    if (arrays->kind == MEMO_ROW_SINKS) {
        MEMOI_ROW_ARRAY(UPDATES, lse, n, 1, 4, NULL);
        MEMOI_ROW_ARRAY(UPDATES, out, n, x->n_columns, 4, NULL);
    } else {
        MEMOI_ROW_ARRAY(READS, lse, n, 1, 4, NULL);
        MEMOI_ROW_ARRAY(READS, row_dots, n, 1, 4, NULL);
        MEMOI_ROW_ARRAY(UPDATES, d_sinks, 1, x->n_heads, 4, NULL);
    }
}

MEMOI void memoi_row_arrays_memo_reduce_desc(memoi_row_arrays* arrays, void* desc) {
    memo_reduce_desc* x = (memo_reduce_desc*)desc;
    const int64_t bytes = memo_type_bytes(x->type);
    if (!MEMOI_ROW_IS_IN(n_from, 1, MEMO_REDUCE_MAX) ||
        !MEMOI_ROW_IS_IN(type, 0, MEMO_N_TYPES - 1) ||
        !MEMOI_ROW_IS_IN(reduction, 0, MEMO_N_REDUCTIONS - 1))
        return;
    MEMOI_ROW_ARRAY(WRITES, to, 1, x->count, bytes, NULL);
    for (int32_t r = 0; r < x->n_from; r++)
        memoi_row_add(arrays, MEMOI_ROW_READS, "from", x->from[r], 1, x->count, bytes, NULL);
}

MEMOI void memoi_row_arrays_memo_pack_desc(memoi_row_arrays* arrays, void* desc) {
    memo_pack_desc* x = (memo_pack_desc*)desc;
    const int64_t most = MEMOB_BYTES_MAX / 2;
    int64_t n_packed = 0, n_rows = 0;
    int32_t is_valid = 1;
    if (!MEMOI_ROW_IS_IN(n_ranges, 0, MEMO_PACK_MAX)) return;
    for (int32_t k = 0; k < x->n_ranges; k++) { /* few operations, as host time counts */
        const int64_t begin = x->begins[k], end = x->ends[k];
        is_valid &= (begin >= 0) & (begin <= most) & (end >= n_packed) & (end <= most);
        n_rows = memob_max(n_rows, is_valid ? begin + end - n_packed : 0);
        n_packed = end;
    }
    if (!is_valid)
        arrays->status =
            MEMOB_INVALID(arrays->error, "memo_pack_desc.begins, ends: invalid; begins from 0, and "
                                         "ends from 0 that do not descend, are valid");
    for (int32_t t = 0; t < 2; t++) {
        memoi_row_add(arrays, MEMOI_ROW_UPDATES, "rows", x->rows[t], n_rows, x->n_columns[t],
                      memo_row_type_bytes(x->rows_type), NULL);
        memoi_row_add(arrays, MEMOI_ROW_READS, "packed", x->packed[t], n_packed, x->n_columns[t],
                      memo_row_type_bytes(x->packed_type), NULL);
    }
}

typedef struct memoi_row_kernel {
    const char *name, *desc;
    size_t desc_bytes;
    void (*loop)(const void* desc);
    void (*arrays_of)(memoi_row_arrays* arrays, void* desc);
} memoi_row_kernel;

#define MEMOI_ROW_ENTRY(kind, name, shown, desc_type)                                              \
    {shown, #desc_type, sizeof(desc_type), memoi_row_loop_##name, memoi_row_arrays_##desc_type},
static const memoi_row_kernel memoi_row_kernels[] = {MEMO_ROW_KERNELS(MEMOI_ROW_ENTRY)};
MEMOB_TABLE_OF(MEMO_N_ROW_KINDS, memoi_row_kernels);

/* Copies a desc, with defaults, and checks it. */
MEMOI memo_status memoi_row_take(memo_row_kind kind, const void* desc, memo_row_desc* taken,
                                 memoi_row_arrays* arrays, memo_error* error) {
    if ((size_t)kind >= MEMO_N_ROW_KINDS)
        return MEMOI_REFUSE("row kernel: not a memo_row_kind (%d); 0 to %d are valid", (int)kind,
                            MEMO_N_ROW_KINDS - 1);
    if (!desc)
        return MEMOI_REFUSE("row kernel '%s': desc is NULL; pass the desc of its kind",
                            memoi_row_kernels[kind].name);
    memcpy(taken, desc, memoi_row_kernels[kind].desc_bytes);
    arrays->kind = kind;
    arrays->desc = memoi_row_kernels[kind].desc;
    arrays->op = MEMO_ZERO(memo_op_desc);
    arrays->op.name = memoi_row_kernels[kind].name;
    arrays->op.reads = arrays->reads;
    arrays->op.writes = arrays->writes;
    arrays->status = MEMO_STATUS_OK;
    arrays->error = error;
    memoi_row_kernels[kind].arrays_of(arrays, taken);
    return arrays->status;
}

/* --- running them --- */

/* A kernel on its way to a stream. */
typedef struct memoi_row_args {
    memo_row_kind kind;
    memo_row_desc desc;
} memoi_row_args;
#ifndef MEMO_NO_HOST_DEVICE
typedef char memoi_row_args_fit[sizeof(memoi_row_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
#endif

MEMOI memo_status memoi_row_run_args(void* args, memo_error* error) {
    const memoi_row_args* run = (const memoi_row_args*)args;
    if (run->kind == MEMO_ROW_SINKS || run->kind == MEMO_ROW_SINK_SUMS) {
        const memo_sinks_desc* sinks = &run->desc.sinks;
        for (int64_t head = 0; head < sinks->n_heads; head++)
            if (!(sinks->sinks[head] < INFINITY))
                return MEMOI_REFUSE("memo_sinks_desc.sinks[%lld]: not a number, or too large (%g); "
                                    "finite numbers and -inf (no sink) are valid",
                                    (long long)head, (double)sinks->sinks[head]);
    }
    memoi_row_kernels[run->kind].loop(&run->desc);
    return MEMO_STATUS_OK;
}

memo_status memo_row_run(memo_row_kind kind, const void* desc, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memoi_row_args args;
    memoi_row_arrays arrays;
    memo_status status = memoi_row_take(kind, desc, &args.desc, &arrays, error);
    args.kind = kind;
    return status ? status : memoi_row_run_args(&args, error);
}

MEMOI memo_status memoi_check_row_kernels(const memo_device* device, memo_error* error) {
    if (MEMO_DEVICE_HAS(device, row_kernel)) return MEMO_STATUS_OK;
    return MEMOI_FAIL(UNSUPPORTED,
                      "device '%s': it has no row kernels; use a device that has them, and include "
                      "memo_sp.h before memo_cuda.cuh",
                      device->name);
}

memo_status memo_row_kernel(const memo_device* device, memo_stream stream, memo_row_kind kind,
                            const void* desc, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "device", device);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memoi_row_args args;
    memo_row_call call = {kind, &args.desc, memoi_row_run_args, &args, 0};
    memoi_row_arrays arrays;
    memo_status status;
    if (memoi_check_row_kernels(device, error)) return MEMO_STATUS_UNSUPPORTED;
    status = memoi_row_take(kind, desc, &args.desc, &arrays, error);
    if (status) return status;
    args.kind = kind;
    call.args_bytes =
        (int64_t)(offsetof(memoi_row_args, desc) + memoi_row_kernels[kind].desc_bytes);
    if (MEMO_DEVICE_HAS(device, annotate))
        status = memo_annotate(device, stream, &arrays.op, error);
    return status ? status : device->row_kernel(device->context, stream, &call, error);
}
