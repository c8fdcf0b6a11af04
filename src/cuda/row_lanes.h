#pragma once
#include "sp/row_math.h"
/* ---- >>row lanes --------------------------------------------------------------------------------
 * Knows: how threads share rows, and in how many accesses they read them.  Knows nothing of grids.
 * The host's loops (memo_sp.h, >>row kernels) have the same results without any of it. */
#ifdef MEMO_SP_H
#define MEMO_CUDA_ROW_KERNELS
#include "memo_sp.h" /* its arithmetic of rows */

/* --- groups: the numbers that a thread reads at a time ---
 *
 * A group has eight numbers, 16 bytes of a 16-bit type; four numbers if the output is F32, so that
 * neighboring threads write neighboring 16 bytes.
 *
 * A GPU reaches its memory bandwidth only if enough reads are in flight.  So an item of add and
 * cast has two groups, half a row apart, and reads both before it writes; an item of a cast to F32
 * has four.  Row sums read two groups before they add.  Groups are converted only after all are
 * read, so that no read waits for a conversion. */

#define MEMOI_ROW_GROUP 8

#if defined(__CUDA_ARCH__)
#define MEMOI_VECTORS /* several words in one access */
#endif

/* Up to 8 numbers as in memory: a word is one F32, or two of a 16-bit type; or bytes. */
typedef struct memoi_row_group {
    uint32_t words[MEMOI_ROW_GROUP];
} memoi_row_group;

/* Loads 2 or 4 words; the address is aligned to their size. */
MEMO_INLINE void memoi_words_load(uint32_t* to, const void* from, int n) {
#if defined(MEMOI_VECTORS)
    if (n == 4) {
        uint4 v = *(const uint4*)from;
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    } else {
        uint2 v = *(const uint2*)from;
        to[0] = v.x;
        to[1] = v.y;
    }
#else
    memcpy(to, from, (size_t)n * 4);
#endif
}
MEMO_INLINE void memoi_words_store(void* to, const uint32_t* from, int n) {
#if defined(MEMOI_VECTORS)
    if (n == 4)
        *(uint4*)to = make_uint4(from[0], from[1], from[2], from[3]);
    else
        *(uint2*)to = make_uint2(from[0], from[1]);
#else
    memcpy(to, from, (size_t)n * 4);
#endif
}

MEMO_INLINE int memoi_is_aligned_to(const void* address, int n_bytes) {
    return ((uintptr_t)address & (uintptr_t)(n_bytes - 1)) == 0;
}

/* Words of aligned accesses that hold n elements: 8, 4 or 2; 0: access element by element.  A word
 * of two 16-bit numbers has the first number in its low half, which memory has on little-endian
 * machines alone. */
MEMO_INLINE int memoi_row_words(const void* address, memo_type type, int32_t n) {
    int is_f32 = type == MEMO_TYPE_F32;
    if (MEMOB_IS_BIG_ENDIAN && !is_f32) return 0;
    if (n == 8 && memoi_is_aligned_to(address, 16)) return is_f32 ? 8 : 4;
    if (n == 4 && memoi_is_aligned_to(address, is_f32 ? 16 : 8)) return is_f32 ? 4 : 2;
    return 0;
}

/* Loads n elements, at most 8 (0 or below: none), followed by zeros. */
MEMO_INLINE void memoi_group_load(memoi_row_group* group, const void* from, memo_type type,
                                  int32_t n) {
    int words = memoi_row_words(from, type, n), k;
    MEMO_ROW_UNROLL
    for (k = 0; k < MEMOI_ROW_GROUP; k++) group->words[k] = 0;
    if (words == 2) {
        memoi_words_load(group->words, from, 2);
    } else if (words) {
        memoi_words_load(group->words, from, 4);
        if (words == 8) memoi_words_load(group->words + 4, (const char*)from + 16, 4);
    } else {
        MEMO_ROW_UNROLL
        for (k = 0; k < MEMOI_ROW_GROUP; k++) {
            if (k >= n) continue;
            if (type == MEMO_TYPE_F32)
                group->words[k] = memob_f32_bits(((const float*)from)[k]);
            else
                group->words[k / 2] |= (uint32_t)((const uint16_t*)from)[k] << (k % 2 * 16);
        }
    }
}

/* A pair of a 16-bit type, to fp32 and back. */
MEMO_INLINE void memoi_pair_widen(float* to, uint32_t pair, memo_type type) {
    if (type == MEMO_TYPE_BF16) {
        to[0] = memob_f32_from_bits(pair << 16);
        to[1] = memob_f32_from_bits(pair & 0xffff0000u);
    } else {
        to[0] = memo_f32_from_f16((uint16_t)(pair & 0xffff));
        to[1] = memo_f32_from_f16((uint16_t)(pair >> 16));
    }
}
MEMO_INLINE uint32_t memoi_pair_narrow(const float* from, memo_type type) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 /* the same bits, NaN too, in one instruction */
    uint32_t pair;
    if (type == MEMO_TYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(from[1]), "f"(from[0]));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(from[1]), "f"(from[0]));
    return pair;
#else
    if (type == MEMO_TYPE_BF16)
        return memo_bf16_from_f32(from[0]) | (uint32_t)memo_bf16_from_f32(from[1]) << 16;
    return memo_f16_from_f32(from[0]) | (uint32_t)memo_f16_from_f32(from[1]) << 16;
#endif
}

MEMO_INLINE void memoi_group_widen(float* to, const memoi_row_group* group, memo_type type) {
    if (type == MEMO_TYPE_F32) {
        MEMO_ROW_UNROLL
        for (int k = 0; k < MEMOI_ROW_GROUP; k++) to[k] = memob_f32_from_bits(group->words[k]);
    } else {
        MEMO_ROW_UNROLL
        for (int k = 0; k < MEMOI_ROW_GROUP / 2; k++)
            memoi_pair_widen(to + 2 * k, group->words[k], type);
    }
}
/* Stores the first n of 8 numbers, 0 to 8. */
MEMO_INLINE void memoi_group_store(void* to, const float* from, memo_type type, int32_t n) {
    const int words = memoi_row_words(to, type, n), is_f32 = type == MEMO_TYPE_F32;
    memoi_row_group group;
    int k;
    MEMO_ROW_UNROLL
    for (k = 0; k < MEMOI_ROW_GROUP; k++) {
        if (is_f32)
            group.words[k] = memob_f32_bits(from[k]);
        else if (k % 2)
            group.words[k / 2] = memoi_pair_narrow(from + k - 1, type);
    }

    /* Aligned groups in few accesses, else element by element. */
    if (words == 2) {
        memoi_words_store(to, group.words, 2);
    } else if (words) {
        memoi_words_store(to, group.words, 4);
        if (words == 8) memoi_words_store((char*)to + 16, group.words + 4, 4);
    } else {
        MEMO_ROW_UNROLL
        for (k = 0; k < MEMOI_ROW_GROUP; k++) {
            if (k >= n) continue;
            if (is_f32)
                ((float*)to)[k] = from[k];
            else
                ((uint16_t*)to)[k] = (uint16_t)(group.words[k / 2] >> (k % 2 * 16));
        }
    }
}

/* Numbers of a group: a power of two, whose exponent this is.  memoi_row_rest is how many of the
 * group at `first` a row of n has; a group beyond the row has none, 0 or below. */
MEMO_INLINE int memoi_row_shift(memo_type to_type) { return to_type == MEMO_TYPE_F32 ? 2 : 3; }
MEMO_INLINE int64_t memoi_n_shifted(int64_t n, int shift) {
    return (n + ((int64_t)1 << shift) - 1) >> shift;
}
MEMO_INLINE int32_t memoi_row_rest(int64_t n, int64_t first, int shift) {
    return n - first < (int64_t)1 << shift ? (int32_t)(n - first) : 1 << shift;
}

/* Loads the group of a matrix that begins at row and column. */
MEMO_INLINE void memoi_group_load_at(memoi_row_group* group, const void* matrix, memo_type type,
                                     int64_t stride, int64_t row, int64_t column, int32_t n) {
    memoi_group_load(
        group, (const char*)matrix + (row * stride + column) * memo_row_type_bytes(type), type, n);
}

MEMO_INLINE void memoi_group_store_at(void* matrix, memo_type type, int64_t stride, int64_t row,
                                      int64_t column, const float* from, int32_t n) {
    memoi_group_store((char*)matrix + (row * stride + column) * memo_row_type_bytes(type), from,
                      type, n);
}

/* Two groups of a row, by their first columns.  All of an item are loaded before the first is
 * used. */
typedef struct memoi_row_pair {
    int64_t column[2];
    int32_t n[2]; /* 0 or below: the group is beyond the row */
} memoi_row_pair;
MEMO_INLINE memoi_row_pair memoi_row_pair_at(int64_t n_columns, int64_t first, int64_t second,
                                             int shift) {
    const memoi_row_pair pair = {
        {first, second},
        {memoi_row_rest(n_columns, first, shift), memoi_row_rest(n_columns, second, shift)}};
    return pair;
}
MEMO_INLINE void memoi_pair_load(memoi_row_group groups[2], const void* matrix, memo_type type,
                                 int64_t stride, int64_t row, const memoi_row_pair* pair) {
    memoi_group_load_at(&groups[0], matrix, type, stride, row, pair->column[0], pair->n[0]);
    memoi_group_load_at(&groups[1], matrix, type, stride, row, pair->column[1], pair->n[1]);
}

/* Splits an item into a row and a number in the row; a row has n_each items. */
MEMO_INLINE int64_t memoi_row_of(int64_t item, int64_t n_each, int64_t* rest) {
    int64_t row;
    if (((uint64_t)item | (uint64_t)n_each) >> 32)
        row = item / n_each;
    else
        row = (int64_t)((uint32_t)item / (uint32_t)n_each);
    *rest = item - row * n_each;
    return row;
}

/* --- lanes: 8 threads share a row; lane l takes groups l, l + 8, ... --- */

#define MEMO_ROW_LANES 8

/* --- merge of partial attention --- */

/* The row of the arrays, for a row that is counted through all batches. */
MEMO_INLINE int64_t memo_merge_place(const memo_merge_desc* merge, int64_t row) {
    int64_t rest = row, batch = 0;
    if (merge->n_batches > 1) batch = memoi_row_of(row, merge->n_rows, &rest);
    return batch * merge->batch_stride_rows + rest;
}

/* The work of one lane on a row, whose LSE is still that before the merge. */
MEMO_INLINE void memo_merge_lane(const memo_merge_desc* merge, int64_t row, int32_t lane) {
    const int shift = memoi_row_shift(MEMO_TYPE_F32);
    const int64_t step = (int64_t)MEMO_ROW_LANES << shift, n_columns = merge->n_columns;
    const int64_t place = memo_merge_place(merge, row);
    const memo_merge_weights weights =
        memo_merge_weights_of(merge->lse[place], merge->part_lse[place]);
    if (weights.part == 0) return;
    for (int64_t column = (int64_t)lane << shift; column < n_columns; column += 2 * step) {
        const memoi_row_pair pair = memoi_row_pair_at(n_columns, column, column + step, shift);
        memoi_row_pair read = pair;
        memoi_row_group part[2], out[2];
        if (weights.out == 0) read.n[0] = read.n[1] = 0; /* out may be anything */
        memoi_pair_load(part, merge->part_out, merge->part_type, n_columns, place, &pair);
        memoi_pair_load(out, merge->out, MEMO_TYPE_F32, n_columns, place, &read);

        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float a[MEMOI_ROW_GROUP], b[MEMOI_ROW_GROUP];
            if (pair.n[i] <= 0) continue;
            memoi_group_widen(a, &out[i], MEMO_TYPE_F32);
            memoi_group_widen(b, &part[i], merge->part_type);
            if (weights.out != 0) {
                MEMO_ROW_UNROLL
                for (int k = 0; k < MEMOI_ROW_GROUP; k++)
                    b[k] = fmaf(weights.part, b[k], weights.out * a[k]);
            }
            memoi_group_store_at(merge->out, MEMO_TYPE_F32, n_columns, place, pair.column[i], b,
                                 pair.n[i]);
        }
    }
}

/* The row's LSE, when every lane is done. */
MEMO_INLINE void memo_merge_end(const memo_merge_desc* merge, int64_t row) {
    const int64_t place = memo_merge_place(merge, row);
    merge->lse[place] = memo_merge_lse(merge->lse[place], merge->part_lse[place]);
}

/* --- add and cast --- */

/* A sum has pairs of groups of a and of b.  A group of a cast to F32 reads 8 bytes if the input has
 * 16 bits, so an item of such a cast has two pairs.  n_pairs and has_b are constants of callers. */
MEMO_INLINE int64_t memoi_add_row_items(const memo_add_desc* add, int n_pairs) {
    return memoi_n_shifted(add->n_columns, memoi_row_shift(add->to_type) + n_pairs);
}
MEMO_INLINE void memoi_add_item(const memo_add_desc* add, int64_t item, int n_pairs, int has_b) {
    const int shift = memoi_row_shift(add->to_type);
    int64_t row = 0, first = item, n_items = memoi_add_row_items(add, n_pairs);
    memoi_row_pair pairs[2];
    memoi_row_group a[2][2], b[2][2];
    if (add->n_rows > 1) row = memoi_row_of(item, n_items, &first);
    MEMO_ROW_UNROLL
    for (int p = 0; p < n_pairs; p++) {
        const int64_t column = (first + 2 * p * n_items) << shift;
        pairs[p] = memoi_row_pair_at(add->n_columns, column, column + (n_items << shift), shift);
        memoi_pair_load(a[p], add->a, add->a_type, add->a_stride, row, &pairs[p]);
        if (has_b) memoi_pair_load(b[p], add->b, add->b_type, add->b_stride, row, &pairs[p]);
    }
    MEMO_ROW_UNROLL
    for (int p = 0; p < n_pairs; p++) {
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float x[MEMOI_ROW_GROUP], y[MEMOI_ROW_GROUP];
            memoi_group_widen(x, &a[p][i], add->a_type);
            if (has_b) memoi_group_widen(y, &b[p][i], add->b_type);
            MEMO_ROW_UNROLL
            for (int k = 0; k < MEMOI_ROW_GROUP && has_b; k++) x[k] += y[k];
            memoi_group_store_at(add->to, add->to_type, add->to_stride, row, pairs[p].column[i], x,
                                 pairs[p].n[i]);
        }
    }
}

MEMO_INLINE int64_t memo_add_items(const memo_add_desc* add) {
    return add->n_rows * memoi_add_row_items(add, 1);
}
MEMO_INLINE void memo_add_item(const memo_add_desc* add, int64_t item) {
    memoi_add_item(add, item, 1, 1);
}
MEMO_INLINE int64_t memo_cast_items(const memo_add_desc* cast) {
    return cast->n_rows * memoi_add_row_items(cast, cast->to_type == MEMO_TYPE_F32 ? 2 : 1);
}
MEMO_INLINE void memo_cast_item(const memo_add_desc* cast, int64_t item) {
    if (cast->to_type == MEMO_TYPE_F32)
        memoi_add_item(cast, item, 2, 0);
    else
        memoi_add_item(cast, item, 1, 0);
}

/* --- add packed --- */

MEMO_INLINE int64_t memoi_pack_pairs(const memo_pack_desc* pack, int t) {
    return memoi_n_shifted(pack->n_columns[t], memoi_row_shift(pack->rows_type) + 1);
}
MEMO_INLINE int64_t memo_add_packed_items(const memo_pack_desc* pack) {
    return pack->n_ranges ? pack->ends[pack->n_ranges - 1] *
                                (memoi_pack_pairs(pack, 0) + memoi_pack_pairs(pack, 1))
                          : 0;
}
/* An item of a row, which is a sum of its own. */
MEMO_INLINE void memo_add_packed_item(const memo_pack_desc* pack, int64_t item) {
    const int64_t n_first = pack->ends[pack->n_ranges - 1] * memoi_pack_pairs(pack, 0);
    const int t = item >= n_first; /* the tensor */
    const int64_t n = pack->n_columns[t];
    int64_t column, row, place;
    memo_add_desc add;
    int32_t k = 0; /* the first range that ends behind row */
    row = memoi_row_of(t ? item - n_first : item, memoi_pack_pairs(pack, t), &column);
    for (int32_t step = MEMO_PACK_MAX / 2; step; step /= 2)
        if (k + step < pack->n_ranges && pack->ends[k + step - 1] <= row) k += step;
    place = pack->begins[k] + row - (k ? pack->ends[k - 1] : 0);

    add.n_rows = 1;
    add.n_columns = add.to_stride = add.a_stride = add.b_stride = n;
    add.to = (char*)pack->rows[t] + place * n * memo_row_type_bytes(pack->rows_type);
    add.a = add.to;
    add.to_type = add.a_type = pack->rows_type;
    add.b = (char*)pack->packed[t] + row * n * memo_row_type_bytes(pack->packed_type);
    add.b_type = pack->packed_type;
    memo_add_item(&add, column);
}

/* --- row sums --- */

MEMO_INLINE float memo_row_sum_lane(const memo_add_desc* sums, int64_t row, int32_t lane) {
    const int64_t step = MEMO_ROW_LANES * MEMOI_ROW_GROUP;
    float sum = 0;
    for (int64_t column = (int64_t)lane * MEMOI_ROW_GROUP; column < sums->n_columns;
         column += 2 * step) {
        const memoi_row_pair pair = memoi_row_pair_at(sums->n_columns, column, column + step, 3);
        memoi_row_group a[2], b[2];
        memoi_pair_load(a, sums->a, sums->a_type, sums->a_stride, row, &pair);
        memoi_pair_load(b, sums->b, sums->b_type, sums->b_stride, row, &pair);
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float x[MEMOI_ROW_GROUP], y[MEMOI_ROW_GROUP];
            if (pair.n[i] <= 0) continue;
            memoi_group_widen(x, &a[i], sums->a_type);
            memoi_group_widen(y, &b[i], sums->b_type);
            MEMO_ROW_UNROLL
            for (int k = 0; k < MEMOI_ROW_GROUP; k++) sum = fmaf(x[k], y[k], sum);
        }
    }
    return sum;
}
MEMO_INLINE void memo_row_sum_end(const memo_add_desc* sums, int64_t row, float sum) {
    ((float*)sums->to)[row] = sum;
}

/* --- cross-entropy --- */

/* Adds the first n numbers of a group.  label: the place of the label in the group, if the label is
 * there. */
MEMO_INLINE memo_softmax_sum memoi_softmax_group(const memo_cross_entropy_desc* entropy,
                                                 memo_softmax_sum to, const memoi_row_group* group,
                                                 int32_t n, int64_t label) {
    float x[MEMOI_ROW_GROUP];
    memoi_group_widen(x, group, entropy->type);
    MEMO_ROW_UNROLL
    for (int k = 0; k < MEMOI_ROW_GROUP; k++)
        x[k] = k < n && k != label ? memo_softcap(entropy, x[k]) : -INFINITY;
    return memo_softmax_add(to, x, MEMOI_ROW_GROUP);
}

/* A lane takes a row in pairs of groups.  A pair is plain if both groups are whole and aligned and
 * lack the label, and if there is no softcap.  Nearly all pairs are plain, and a loop of their own
 * leaves out every test of the others. */
typedef struct memoi_loss_walk {
    const char* logits; /* the row's */
    int64_t column;     /* the lane's next pair */
    int64_t step;       /* between the groups of a pair; pairs are two steps apart */
    int64_t plain_end;  /* no pair from here on is plain */
    int64_t label_pair; /* the lane's pair with the label; plain_end: none */
} memoi_loss_walk;

MEMO_INLINE memoi_loss_walk memoi_loss_walk_of(const memo_cross_entropy_desc* entropy, int64_t row,
                                               int64_t lane, int64_t label) {
    const int shift = memoi_row_shift(entropy->type);
    const int64_t group = label >> shift;
    memoi_loss_walk walk;
    walk.logits =
        (const char*)entropy->logits + row * entropy->stride * memo_row_type_bytes(entropy->type);
    walk.column = lane << shift;
    walk.step = (int64_t)MEMO_LOSS_LANES << shift;
    walk.plain_end = entropy->n_columns - walk.step - ((int64_t)1 << shift) + 1;
    if (entropy->softcap > 0 || !memoi_row_words(walk.logits, entropy->type, 1 << shift))
        walk.plain_end = 0;
    walk.label_pair = walk.plain_end;
    if (label >= 0 && group % MEMO_LOSS_LANES == lane)
        walk.label_pair = group / (2 * MEMO_LOSS_LANES) * 2 * walk.step + walk.column;
    return walk;
}
/* Where the plain pairs at hand end. */
MEMO_INLINE int64_t memoi_loss_walk_end(const memoi_loss_walk* walk) {
    return walk->column <= walk->label_pair && walk->label_pair < walk->plain_end ? walk->label_pair
                                                                                  : walk->plain_end;
}

/* Plain pairs are loaded one ahead, so that the loads of a pair are under way while the pair before
 * computes.  type is a constant of the caller. */
typedef struct memoi_plain_pair {
    uint32_t words[2][4];
} memoi_plain_pair;
MEMO_INLINE memoi_plain_pair memoi_plain_load(const memoi_loss_walk* walk, int64_t column,
                                              memo_type type) {
    const char* from = walk->logits + column * memo_row_type_bytes(type);
    memoi_plain_pair pair;
    memoi_words_load(pair.words[0], from, 4);
    memoi_words_load(pair.words[1], from + walk->step * memo_row_type_bytes(type), 4);
    return pair;
}
/* The pair after the current one; the current one again if that is the last before end. */
MEMO_INLINE memoi_plain_pair memoi_plain_next(const memoi_loss_walk* walk, int64_t end,
                                              memo_type type) {
    const int64_t next = walk->column + 2 * walk->step;
    return memoi_plain_load(walk, next < end ? next : walk->column, type);
}
/* The 4 or 8 numbers of a group. */
MEMO_INLINE void memoi_plain_widen(float* x, const uint32_t* words, memo_type type) {
    MEMO_ROW_UNROLL
    for (int k = 0; k < 4; k++) {
        if (type == MEMO_TYPE_F32)
            x[k] = memob_f32_from_bits(words[k]);
        else
            memoi_pair_widen(x + 2 * k, words[k], type);
    }
}
/* Gives the groups of the plain pairs at hand to a function. */
template <typename Plain>
MEMO_INLINE void memoi_loss_plain(memoi_loss_walk* walk, memo_type type, Plain plain) {
    const int64_t end = memoi_loss_walk_end(walk);
    memoi_plain_pair pair, next;
    if (walk->column >= end) return;
    pair = memoi_plain_load(walk, walk->column, type);
    for (; walk->column < end; walk->column += 2 * walk->step) {
        next = memoi_plain_next(walk, end, type); /* before a store, which may replace logits */
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float x[MEMOI_ROW_GROUP];
            memoi_plain_widen(x, pair.words[i], type);
            plain(x, type, walk->column + i * walk->step);
        }
        pair = next;
    }
}

/* Walks through a row.  plain(x, type, column) gets the numbers of a plain group; other(group,
 * column, n) gets the first n of another group, 0 or below beyond the row. */
template <typename Plain, typename Other>
MEMO_INLINE void memoi_loss_walk_row(const memo_cross_entropy_desc* entropy, int64_t row,
                                     memoi_loss_walk* walk, Plain plain, Other other) {
    for (; walk->column < entropy->n_columns; walk->column += 2 * walk->step) {
        switch (entropy->type) {
        case MEMO_TYPE_BF16: memoi_loss_plain(walk, MEMO_TYPE_BF16, plain); break;
        case MEMO_TYPE_F16: memoi_loss_plain(walk, MEMO_TYPE_F16, plain); break;
        default: memoi_loss_plain(walk, MEMO_TYPE_F32, plain);
        }
        const memoi_row_pair pair =
            memoi_row_pair_at(entropy->n_columns, walk->column, walk->column + walk->step,
                              memoi_row_shift(entropy->type));
        memoi_row_group groups[2];
        memoi_pair_load(groups, entropy->logits, entropy->type, entropy->stride, row, &pair);
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) other(groups[i], pair.column[i], pair.n[i]);
    }
}

MEMO_INLINE memo_softmax_sum memo_softmax_lane(const memo_cross_entropy_desc* entropy, int64_t row,
                                               int32_t lane) {
    const int64_t label = memo_label_column(entropy, row);
    memoi_loss_walk walk = memoi_loss_walk_of(entropy, row, lane, label);
    memo_softmax_sum sum = memo_softmax_none();
    memoi_loss_walk_row(
        entropy, row, &walk,
        [&](const float* x, memo_type type, int64_t) {
            sum = memo_softmax_add(sum, x, 1 << memoi_row_shift(type));
        },
        [&](const memoi_row_group& group, int64_t column, int32_t n) {
            sum = memoi_softmax_group(entropy, sum, &group, n, label - column);
        });
    return sum;
}

/* The end of softmax_parts for a row, with the sum of all lanes. */
MEMO_INLINE void memo_softmax_end(const memo_cross_entropy_desc* entropy, int64_t row,
                                  memo_softmax_sum sum) {
    float* part = entropy->parts + (entropy->part * entropy->n_rows + row) * MEMO_LOSS_NUMBERS;
    int64_t column = memo_label_column(entropy, row);
    part[0] = sum.max;
    part[1] = sum.sum;
    part[2] = -INFINITY;
    if (column >= 0) {
        memoi_row_group group;
        float x[MEMOI_ROW_GROUP];
        memoi_group_load_at(&group, entropy->logits, entropy->type, entropy->stride, row, column,
                            1);
        memoi_group_widen(x, &group, entropy->type);
        part[2] = memo_softcap(entropy, x[0]);
    }
}

MEMO_INLINE void memoi_entropy_group(const memo_cross_entropy_desc* entropy, int64_t row,
                                     int64_t column, int64_t label, const memo_entropy_row* r,
                                     const memoi_row_group* group, int32_t n) {
    float x[MEMOI_ROW_GROUP];
    memoi_group_widen(x, group, entropy->type);
    MEMO_ROW_UNROLL
    for (int k = 0; k < MEMOI_ROW_GROUP; k++)
        x[k] = memo_entropy_gradient(entropy, r, column + k == label, x[k]);
    if (entropy->labels[row] < 0 || entropy->labels[row] >= entropy->vocabulary) {
        MEMO_ROW_UNROLL
        for (int k = 0; k < MEMOI_ROW_GROUP; k++) x[k] = 0;
    }
    memoi_group_store_at(entropy->d_logits, entropy->type, entropy->stride, row, column, x, n);
}

MEMO_INLINE void memoi_entropy_plain(const memo_cross_entropy_desc* entropy,
                                     const memo_entropy_row* r, float* x, memo_type type,
                                     void* to) {
    memoi_row_group group;
    MEMO_ROW_UNROLL
    for (int k = 0; k < 1 << memoi_row_shift(type); k++)
        x[k] = entropy->scale * (r->factor * memo_loss_exp(x[k] - r->max));
    MEMO_ROW_UNROLL
    for (int k = 0; k < 4; k++)
        group.words[k] =
            type == MEMO_TYPE_F32 ? memob_f32_bits(x[k]) : memoi_pair_narrow(x + 2 * k, type);
    memoi_words_store(to, group.words, 4);
}

/* A row and lane: lanes of a row need nothing from each other.  Lane 0 writes the loss. */
MEMO_INLINE void memo_entropy_item(const memo_cross_entropy_desc* entropy, int64_t item) {
    const int64_t row = item / MEMO_LOSS_LANES, lane = item % MEMO_LOSS_LANES;
    const int shift = memoi_row_shift(entropy->type);
    const int64_t label = memo_label_column(entropy, row);
    const int has_label = entropy->labels[row] >= 0 && entropy->labels[row] < entropy->vocabulary;
    const memo_entropy_row r = memo_entropy_row_of(entropy, row);
    memoi_loss_walk walk = memoi_loss_walk_of(entropy, row, lane, label);
    char* to =
        (char*)entropy->d_logits + row * entropy->stride * memo_row_type_bytes(entropy->type);
    if (lane == 0) entropy->losses[row] = has_label ? r.loss : NAN;
    if (lane == 0 && entropy->labels[row] < 0) entropy->losses[row] = 0;
    if (!entropy->d_logits) return;

    /* A row without a gradient is no plain one. */
    if (!has_label || !memoi_row_words(to, entropy->type, 1 << shift)) walk.plain_end = 0;
    memoi_loss_walk_row(
        entropy, row, &walk,
        [&](float* x, memo_type type, int64_t column) {
            memoi_entropy_plain(entropy, &r, x, type, to + column * memo_row_type_bytes(type));
        },
        [&](const memoi_row_group& group, int64_t column, int32_t n) {
            if (n > 0) memoi_entropy_group(entropy, row, column, label, &r, &group, n);
        });
}

/* --- attention sinks and reduce --- */

/* The work of one lane on a row and head (place = row * n_heads + head), whose LSE is still that of
 * the keys. */
MEMO_INLINE void memo_sink_lane(const memo_sinks_desc* sinks, int64_t place, int32_t lane) {
    memo_merge_weights weights =
        memo_merge_weights_of(sinks->lse[place], sinks->sinks[place % sinks->n_heads]);
    float* out = sinks->out + place * sinks->n_columns;
    for (int64_t column = lane; column < sinks->n_columns; column += MEMO_ROW_LANES)
        out[column] *= weights.out;
}
/* The row's LSE, when every lane is done. */
MEMO_INLINE void memo_sink_end(const memo_sinks_desc* sinks, int64_t place) {
    sinks->lse[place] = memo_merge_lse(sinks->lse[place], sinks->sinks[place % sinks->n_heads]);
}
MEMO_INLINE void memo_reduce_item(const memo_reduce_desc* desc, int64_t i) {
    memo_reduce_elements(desc->to, i, desc->from, desc->n_from, i, 1, desc->type, desc->reduction);
}
#endif /* MEMO_SP_H */
