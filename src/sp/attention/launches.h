#pragma once
#include "sp/attention/segments.h"
/* ---- >>launches ---------------------------------------------------------------------------------
 * Knows: the segments of a block, and what a call of a fused kernel can compute.  Knows nothing of
 * positions, ranks or devices.
 *
 * 1. No two sequences of a launch share queries or keys, and both ascend.
 * 2. Every sequence that has a segment is in one launch. */

/* Rows with one pair of limits. */
typedef struct memoi_sequence {
    int64_t q_begin, q_end, k_begin, k_end;
    int32_t left, right, from_top;
    int32_t launch, first_segment, n_segments;
} memoi_sequence;

/* The launches of a block; arrays of as many as it has segments. */
typedef struct memoi_launches {
    memoi_sequence* sequences;
    memo_launch* launches;
    memo_segment* segments;   /* in the order of launches */
    int64_t *q_ends, *k_ends; /* of launches */
    int32_t n_sequences, n;
} memoi_launches;

MEMOI memoi_sequence memoi_sequence_of(const memo_segment* s, memo_launch_kind kind) {
    const int64_t n_more = s->k_end - s->k_begin - (s->q_end - s->q_begin);
    memoi_sequence x = {s->q_begin, s->q_end, s->k_begin, s->k_end, -1, -1, 0, 0, 0, 1};
    MEMO_ASSERT(s->type == MEMO_SEGMENT_FULL || n_more >= 0); /* the first query sees a key */
    if (memoi_segment_moves_end(s)) x.right = 0;
    if (memoi_segment_moves_begin(s)) x.left = (int32_t)n_more;
    if (s->type == MEMO_SEGMENT_INVERSE && kind == MEMO_LAUNCHES_RAGGED) {
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

MEMOI void memoi_launches_make_sequences(memoi_launches* x, const memo_segment* segments, int64_t n,
                                         memo_launch_kind kind) {
    x->n_sequences = 0;
    for (int64_t i = 0; i < n; i++) {
        memoi_sequence next = memoi_sequence_of(&segments[i], kind);
        memoi_sequence* last = x->sequences + x->n_sequences - 1;
        if (x->n_sequences && memoi_sequence_joins(last, &next)) {
            last->q_end = next.q_end;
            last->k_end = next.k_end;
            last->left = next.left;
            last->n_segments++;
        } else {
            next.first_segment = (int32_t)i;
            x->sequences[x->n_sequences++] = next;
        }
    }
}

/* May a sequence have the limits of a launch?  Those that cut nothing are free. */
MEMOI int memoi_sequence_fits(const memoi_sequence* s, const memo_launch* launch) {
    const int64_t n_q = s->q_end - s->q_begin, n_k = s->k_end - s->k_begin;
    int is_left = s->left == launch->left && s->from_top == launch->from_top;
    int is_right = s->right == launch->right;
    if (!is_left && s->left < 0 && !launch->from_top)
        is_left = launch->left < 0 || launch->left >= n_k - 1; /* the last query sees all keys */
    if (!is_right && s->right < 0) is_right = n_q == 1 && !launch->from_top;
    return is_left && is_right;
}

/* Puts each sequence into the first launch that ends before it.  New launches are causal with the
 * widest window, if their first sequence fits, since shorter documents and single rows then do. */
MEMOI void memoi_launches_make(memoi_launches* x, const memo_segment* segments, int64_t n,
                               memo_launch_kind kind) {
    memo_launch widest = MEMO_ZERO(memo_launch);
    int has_causal = 0;
    widest.left = -1;
    memoi_launches_make_sequences(x, segments, n, kind);
    for (int32_t i = 0; i < x->n_sequences; i++) {
        if (x->sequences[i].right || x->sequences[i].from_top) continue;
        has_causal = 1;
        widest.left = (int32_t)memob_max(widest.left, x->sequences[i].left);
    }

    x->n = 0;
    for (int32_t i = 0; i < x->n_sequences; i++) {
        memoi_sequence* s = &x->sequences[i];
        memo_launch* l = x->launches;
        int32_t k = 0;
        while (k < x->n && (x->q_ends[k] > s->q_begin || x->k_ends[k] > s->k_begin ||
                            !memoi_sequence_fits(s, &l[k])))
            k++;
        if (k == x->n) {
            l[x->n] = widest;
            x->q_ends[k] = x->k_ends[k] = 0;
            if (!has_causal || !memoi_sequence_fits(s, &widest)) {
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

    /* The segments of each. */
    for (int32_t k = 0, at = 0; k < x->n; at += x->launches[k++].n_segments) {
        x->launches[k].segments = x->segments + at;
        for (int32_t i = 0; i < x->n_sequences; i++) {
            const memoi_sequence* s = &x->sequences[i];
            if (s->launch != k) continue;
            memcpy(x->segments + at + x->launches[k].n_segments, segments + s->first_segment,
                   (size_t)s->n_segments * sizeof *segments);
            x->launches[k].n_segments += s->n_segments;
        }
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
        memo_launch* l = &x->launches[k];
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

/* --- blocks --- */

/* The segments of a block, without device arrays, and launches that are to be written. */
typedef struct memoi_block_segments {
    memo_segments segments;
    memoi_launches launches;
    int64_t n_rows;    /* queries that see a key */
    int64_t first_row; /* that sees none, if all earlier ones do */
} memoi_block_segments;

MEMOI void memoi_block_segments_make(const memo_segment* seen, int64_t n_seen, const memo_run* q,
                                     int32_t n_q, const memo_run* k, int32_t n_k,
                                     memo_launch_kind kind, memob_arrays* arrays,
                                     memoi_block_segments* b) {
    const int64_t n = memoi_segments_derive(seen, n_seen, q, n_q, k, n_k, NULL);
    memo_segment* list = MEMOB_ARRAY(arrays, memo_segment, n);
    memset(b, 0, sizeof *b);
    if (arrays->failed || n > INT32_MAX / 8) arrays->failed = 1;
    if (arrays->failed) return;
    (void)memoi_segments_derive(seen, n_seen, q, n_q, k, n_k, list);
    b->segments.n = (int32_t)n;
    b->segments.host = list;
    for (int64_t i = 0; i < n; i++) {
        b->n_rows += list[i].q_end - list[i].q_begin;
        if (list[i].q_begin == b->first_row) b->first_row = list[i].q_end;
    }
    if (kind != MEMO_LAUNCHES_VARLEN && kind != MEMO_LAUNCHES_RAGGED) return;

    b->launches.sequences = MEMOB_ARRAY(arrays, memoi_sequence, n);
    b->launches.launches = MEMOB_ARRAY(arrays, memo_launch, n);
    b->launches.segments = MEMOB_ARRAY(arrays, memo_segment, n);
    b->launches.q_ends = MEMOB_ARRAY(arrays, int64_t, n);
    b->launches.k_ends = MEMOB_ARRAY(arrays, int64_t, n);
    if (arrays->failed) return;
    memoi_launches_make(&b->launches, list, n, kind);
    b->segments.n_launches = b->launches.n;
    b->segments.launches = b->launches.launches;
}

/* Most bytes of device arrays for a segment, which is a launch of its own. */
enum { MEMOI_SEGMENT_BYTES = 4 * (5 + 4 + 2) };

/* Numbers of the device arrays of a block. */
MEMOI int64_t memoi_block_segments_count(const memoi_block_segments* b) {
    return 5 * (int64_t)b->segments.n + memoi_launches_count(&b->launches);
}

/* Writes the device arrays to `words`; the segments then point to the same numbers behind
 * `address`.  Returns the words behind them. */
MEMOI int32_t* memoi_block_segments_write(memoi_block_segments* b, int32_t* words,
                                          const int32_t* address) {
    const int32_t n = b->segments.n;
    int32_t *k_ranges = words + 2 * n, *types = k_ranges + 2 * n;
    for (int32_t i = 0; i < n; i++) {
        const memo_segment* s = &b->segments.host[i];
        words[2 * i] = (int32_t)s->q_begin;
        words[2 * i + 1] = (int32_t)s->q_end;
        k_ranges[2 * i] = (int32_t)s->k_begin;
        k_ranges[2 * i + 1] = (int32_t)s->k_end;
        types[i] = (int32_t)s->type;
    }
    b->segments.q_ranges = address;
    b->segments.k_ranges = address + 2 * n;
    b->segments.types = address + 4 * n;
    memoi_launches_write(&b->launches, types + n, address + 5 * n);
    return words + memoi_block_segments_count(b);
}
