#pragma once
#include "sp/attention/segments.h"
/* ---- >>launches ---------------------------------------------------------------------------------
 * Knows: the segments of a block, and what a call of a fused kernel can compute.  Knows nothing of
 * positions, ranks or devices.
 *
 * 1. No two sequences of a launch share queries or keys, and both ascend.
 * 2. Every sequence that has a segment is in one launch. */

/* Sequences of one call of a kernel.  Query i of nq sees key j of nk, both counted within their
 * sequence, if i + nk - nq - left <= j <= i + nk - nq + right. */
typedef struct memoi_launch {
    int32_t n;            /* sequences */
    int32_t left, right;  /* -1: no limit */
    int32_t from_top;     /* 1: the left limit is i - left <= j */
    int32_t max_q, max_k; /* of the longest sequence */
    int32_t has_gaps;     /* rows lie between sequences */
    /* Rows: begins are n + 1, as cu_seqlens, counts are n.  Without gaps begins are enough. */
    const int32_t *q_begins, *q_counts, *k_begins, *k_counts;
} memoi_launch;

/* What a kernel can compute in one call. */
typedef enum memoi_kernel {
    MEMOI_KERNEL_RANGES = 0, /* segments as they are: FFA, and kernels without a list of lengths */
    MEMOI_KERNEL_VARLEN,     /* FlashAttention: all limits are bottom-right aligned */
    MEMOI_KERNEL_RAGGED      /* cuDNN: INVERSE is top-left aligned, and alone */
} memoi_kernel;

/* Rows with one pair of limits. */
typedef struct memoi_sequence {
    int64_t q_begin, q_end, k_begin, k_end;
    int32_t left, right, from_top;
    int32_t launch;
} memoi_sequence;

/* The launches of a block; arrays of as many as it has segments. */
typedef struct memoi_launches {
    memoi_sequence* sequences;
    memoi_launch* launches;
    int64_t *q_ends, *k_ends; /* of launches */
    int32_t n_sequences, n;
} memoi_launches;

MEMOI memoi_sequence memoi_sequence_of(const memoi_segment* s, memoi_kernel kernel) {
    const int64_t n_more = s->k_end - s->k_begin - (s->q_end - s->q_begin);
    memoi_sequence x = {s->q_begin, s->q_end, s->k_begin, s->k_end, -1, -1, 0, 0};
    MEMO_ASSERT(s->type == MEMOI_SEGMENT_FULL || n_more >= 0); /* the first query sees a key */
    if (memoi_segment_moves_end(s)) x.right = 0;
    if (memoi_segment_moves_begin(s)) x.left = (int32_t)n_more;
    if (s->type == MEMOI_SEGMENT_INVERSE && kernel == MEMOI_KERNEL_RAGGED) {
        x.left = 0;
        x.from_top = 1;
    }
    return x;
}

/* Do two sequences, one behind the other, make one with the limits of the second?  CAUSAL and BAND
 * do: a window.  FULL and INVERSE do, too, where queries move on over the same last key. */
MEMOI int memoi_sequence_joins(const memoi_sequence* first, const memoi_sequence* second) {
    const int64_t n_later = second->right ? 0 : second->q_end - second->q_begin;
    return first->left < 0 && second->left >= 0 && !second->from_top &&
           first->right == second->right && first->q_end == second->q_begin &&
           first->k_begin + 1 == second->k_begin && first->k_end == second->k_end - n_later;
}

MEMOI void memoi_launches_make_sequences(memoi_launches* x, const memoi_segment* segments,
                                         int64_t n, memoi_kernel kernel) {
    x->n_sequences = 0;
    for (int64_t i = 0; i < n; i++) {
        const memoi_sequence next = memoi_sequence_of(&segments[i], kernel);
        memoi_sequence* last = x->sequences + x->n_sequences - 1;
        if (x->n_sequences && memoi_sequence_joins(last, &next)) {
            last->q_end = next.q_end;
            last->k_end = next.k_end;
            last->left = next.left;
        } else {
            x->sequences[x->n_sequences++] = next;
        }
    }
}

/* May a sequence have the limits of a launch?  Those that cut nothing are free. */
MEMOI int memoi_sequence_fits(const memoi_sequence* s, const memoi_launch* launch) {
    const int64_t n_q = s->q_end - s->q_begin, n_k = s->k_end - s->k_begin;
    int is_left = s->left == launch->left && s->from_top == launch->from_top;
    int is_right = s->right == launch->right;
    if (!is_left && s->left < 0 && !launch->from_top)
        is_left = launch->left < 0 || launch->left >= n_k - 1; /* the last query sees all keys */
    if (!is_right && s->right < 0) is_right = n_q == 1 && !launch->from_top;
    return is_left && is_right;
}

/* Puts each sequence into the first launch that ends before it.  New launches have the widest
 * window, if their first sequence fits into it, since shorter documents then do, too. */
MEMOI void memoi_launches_make(memoi_launches* x, const memoi_segment* segments, int64_t n,
                               memoi_kernel kernel) {
    memoi_launch widest = MEMO_ZERO(memoi_launch);
    widest.left = -1;
    memoi_launches_make_sequences(x, segments, n, kernel);
    for (int32_t i = 0; i < x->n_sequences; i++)
        if (!x->sequences[i].right && !x->sequences[i].from_top)
            widest.left = (int32_t)memob_max(widest.left, x->sequences[i].left);

    x->n = 0;
    for (int32_t i = 0; i < x->n_sequences; i++) {
        memoi_sequence* s = &x->sequences[i];
        memoi_launch* l = x->launches;
        int32_t k = 0;
        while (k < x->n && (x->q_ends[k] > s->q_begin || x->k_ends[k] > s->k_begin ||
                            !memoi_sequence_fits(s, &l[k])))
            k++;
        if (k == x->n) {
            l[x->n] = widest;
            x->q_ends[k] = x->k_ends[k] = 0;
            if (widest.left < 0 || !memoi_sequence_fits(s, &widest)) {
                l[k].left = s->left;
                l[k].right = s->right;
                l[k].from_top = s->from_top;
            }
            x->n++;
        }
        s->launch = k;
        if (l[k].n++) l[k].has_gaps |= x->q_ends[k] < s->q_begin || x->k_ends[k] < s->k_begin;
        MEMO_ASSERT(s->q_begin >= x->q_ends[k] && s->k_begin >= x->k_ends[k]); /* 1 */
        l[k].max_q = (int32_t)memob_max(l[k].max_q, s->q_end - s->q_begin);
        l[k].max_k = (int32_t)memob_max(l[k].max_k, s->k_end - s->k_begin);
        x->q_ends[k] = s->q_end;
        x->k_ends[k] = s->k_end;
    }
}

/* Numbers of the arrays of all launches. */
MEMOI int64_t memoi_launches_count(const memoi_launches* x) {
    return 4 * (int64_t)x->n_sequences + 2 * (int64_t)x->n;
}

/* Writes the arrays to `words`; launches then point to the same numbers behind `address`. */
MEMOI void memoi_launches_write(memoi_launches* x, int32_t* words, const int32_t* address) {
    const int32_t* begin = words;
    for (int32_t k = 0; k < x->n; k++) {
        memoi_launch* l = &x->launches[k];
        int32_t *q_begins = words, *q_counts = q_begins + l->n + 1, *k_begins = q_counts + l->n;
        int32_t *k_counts = k_begins + l->n + 1, n = 0;
        for (int32_t i = 0; i < x->n_sequences; i++) {
            const memoi_sequence* s = &x->sequences[i];
            if (s->launch != k) continue;
            q_begins[n] = (int32_t)s->q_begin;
            k_begins[n] = (int32_t)s->k_begin;
            q_counts[n] = (int32_t)(s->q_end - s->q_begin);
            k_counts[n] = (int32_t)(s->k_end - s->k_begin);
            n++;
        }
        MEMO_ASSERT(n == l->n && n); /* 2 */
        q_begins[n] = (int32_t)x->q_ends[k];
        k_begins[n] = (int32_t)x->k_ends[k];
        l->q_begins = address + (q_begins - begin);
        l->q_counts = address + (q_counts - begin);
        l->k_begins = address + (k_begins - begin);
        l->k_counts = address + (k_counts - begin);
        words = k_counts + n;
    }
}
