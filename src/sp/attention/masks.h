#pragma once
#include "sp/shardings.h"
#include "sp/attention/segments.h"
/* ---- >>masks ------------------------------------------------------------------------------------
 * Knows: what masks of documents and of intervals let queries see, by positions.  Knows nothing of
 * ranks, rows or devices. */

/* --- documents --- */

/* An end of the keys: `offset` positions behind the query's own, or without a limit. */
typedef struct memoi_mask_limit {
    int is_set;
    int64_t offset;
} memoi_mask_limit;

/* Adds queries at own positions [own, last_own), counted like keys; number q - own is theirs.  Each
 * sees the keys of [first, last) that the limits leave. */
MEMOI void memoi_mask_add_limited(memoi_segment_list* x, int64_t q, int64_t own, int64_t last_own,
                                  int64_t first, int64_t last, memoi_mask_limit from,
                                  memoi_mask_limit to) {
    while (own < last_own && first < last) {
        const int64_t low = from.is_set ? own + from.offset : first;
        const int64_t high = to.is_set ? own + to.offset : last;
        const int64_t begin = memob_max(low, first), end = memob_min(high, last);
        const int moves_begin = from.is_set && low >= first, moves_end = to.is_set && high < last;
        int64_t n = last_own - own;
        if (low < first) n = memob_min(n, first - low);
        if (moves_end) n = memob_min(n, last - high);
        if (moves_begin && !moves_end && begin < end) n = memob_min(n, end - begin);
        if (begin >= end && high <= first) n = memob_min(n, first - high + 1);
        if (begin < end) memoi_segments_add_rows(x, q, n, begin, end, moves_begin, moves_end);
        q += n;
        own += n;
    }
}

/* The queries of a mask within their documents; in level 1, the first keys of their document that
 * the window has left. */
MEMOI void memoi_mask_add_documents(memoi_segment_list* x, const memo_mask_desc* mask) {
    const int64_t before = memob_min(mask->window_before, MEMOB_BYTES_MAX);
    const int64_t after =
        mask->kind == MEMO_MASK_CAUSAL ? 1 : memob_min(mask->window_after, MEMOB_BYTES_MAX);
    const int64_t first_own = mask->first_query, end_own = first_own + mask->n_tokens;
    const int64_t n_keys = mask->n_keys ? mask->n_keys : memob_max(end_own, 0);
    const memoi_mask_limit none = {0, 0}, from = {before > 0, 1 - before};
    const memoi_mask_limit to = {after > 0, after}, left = {1, 1 - before};
    for (int64_t d = 0; d < (mask->document_begins ? mask->n_documents : 1); d++) {
        const int64_t* document = mask->document_begins ? mask->document_begins + d : NULL;
        const int64_t own = document ? memob_max(document[0], first_own) : first_own;
        const int64_t last_own = document ? memob_min(document[1], end_own) : end_own;
        const int64_t first = document ? document[0] : 0, last = document ? document[1] : n_keys;
        if (x->open.level)
            memoi_mask_add_limited(x, own - first_own, own, last_own, first,
                                   memob_min(first + mask->n_first_keys, last), none, left);
        else
            memoi_mask_add_limited(x, own - first_own, own, last_own, first, last, from, to);
    }
}

/* The number of ancestors of a document. */
MEMOI int32_t memoi_mask_depth(const int64_t* parents, int64_t document) {
    int32_t depth = 0;
    while ((document = parents[document]) >= 0) depth++;
    return depth;
}

/* The queries of all documents that have an ancestor at a depth.  Neither end of their keys
 * descends, since documents are in preorder. */
MEMOI void memoi_mask_add_ancestors(memoi_segment_list* x, const memo_mask_desc* mask,
                                    int32_t depth) {
    const int64_t *begins = mask->document_begins, *parents = mask->document_parents;
    for (int64_t i = 0; i < mask->n_documents; i++) {
        int64_t ancestor = i;
        int32_t n = memoi_mask_depth(parents, i);
        if (n <= depth) continue;
        for (; n > depth; n--) ancestor = parents[ancestor];
        if (begins[ancestor] < begins[ancestor + 1])
            memoi_segments_add_rows(x, begins[i], begins[i + 1] - begins[i], begins[ancestor],
                                    begins[ancestor + 1], 0, 0);
    }
}

/* The segments of a checked desc, level by level.  Returns their number. */
MEMOI int64_t memoi_mask_fill(const memo_mask_desc* mask, memo_segment* segments) {
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    int32_t n_levels = mask->n_first_keys && mask->window_before ? 2 : 1;
    for (int64_t i = 0; i < mask->n_documents && mask->document_parents; i++)
        n_levels = (int32_t)memob_max(n_levels, memoi_mask_depth(mask->document_parents, i) + 1);
    x.list = segments;
    for (int32_t level = 0; level < n_levels; level++) {
        memoi_segments_begin(&x, level);
        if (level && mask->document_parents)
            memoi_mask_add_ancestors(&x, mask, level - 1);
        else
            memoi_mask_add_documents(&x, mask);
        memoi_segments_close(&x);
    }
    return x.n;
}

MEMOI memo_status memoi_mask_check_desc(const memo_mask_desc* mask, memo_error* error) {
    static const char name[] = "memo_mask_desc";
    const char* also = NULL;
    int64_t n_keys;
    if (MEMOI_INTEGER(name, mask, kind, 0, MEMO_N_MASK_KINDS - 1) ||
        MEMOI_INTEGER(name, mask, window_before, 0, INT64_MAX) ||
        MEMOI_INTEGER(name, mask, window_after, 0, INT64_MAX) ||
        MEMOI_INTEGER(name, mask, n_first_keys, 0, MEMOB_BYTES_MAX / 4) ||
        MEMOI_INTEGER(name, mask, n_tokens, 0, MEMOB_BYTES_MAX / 4) ||
        MEMOI_INTEGER(name, mask, n_keys, 0, MEMOB_BYTES_MAX / 4) ||
        MEMOI_INTEGER(name, mask, first_query, -MEMOB_BYTES_MAX / 4, MEMOB_BYTES_MAX / 4))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (mask->n_first_keys && mask->kind != MEMO_MASK_CAUSAL)
        return MEMOI_REFUSE("%s.n_first_keys: not 0 (%lld) beside MEMO_MASK_FULL; 0, or a causal "
                            "mask, is valid",
                            name, (long long)mask->n_first_keys);

    /* Documents of keys, and their parents. */
    n_keys = mask->n_keys ? mask->n_keys : memob_max(mask->first_query + mask->n_tokens, 0);
    if (mask->document_begins &&
        memoi_sharding_check_documents("memo_mask_desc.document_begins", mask->document_begins,
                                       mask->n_documents, n_keys, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!mask->document_parents) return MEMO_STATUS_OK;

    if (mask->first_query) also = "beside first_query";
    if (mask->window_before || mask->window_after) also = "beside a window";
    if (!mask->document_begins) also = "without documents";
    if (mask->n_tokens != n_keys) also = "beside keys of another number";
    if (also)
        return MEMOI_REFUSE("%s.document_parents: not NULL %s; pass NULL, or document_begins and "
                            "parents alone",
                            name, also);
    return memoi_sharding_check_parents("memo_mask_desc.document_parents", mask->document_parents,
                                        mask->n_documents, error);
}

memo_status memo_mask_documents(const memo_mask_desc* desc, memo_segment* segments,
                                int64_t* n_segments, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "n_segments", n_segments);
    *n_segments = 0;
    if (memoi_mask_check_desc(desc, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    *n_segments = memoi_mask_fill(desc, segments);
    return MEMO_STATUS_OK;
}

/* --- intervals and cross-attention --- */

memo_status memo_mask_intervals(const int64_t* first, const int64_t* end, int64_t n_tokens,
                                int64_t n_keys, memo_segment* segments, int64_t* n_segments,
                                memo_error* error) {
    MEMOB_REFUSE_NULL(error, "n_segments", n_segments);
    MEMOB_REFUSE_NULL(error, "key_first", first);
    MEMOB_REFUSE_NULL(error, "key_end", end);
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    x.list = segments;
    *n_segments = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (first[i] < (i ? first[i - 1] : 0) || end[i] < (i ? end[i - 1] : 0) ||
            first[i] > end[i] || end[i] > n_keys)
            return MEMOI_REFUSE("memo_mask_intervals.key_first, key_end [%lld]: invalid (%lld, "
                                "%lld); ends that do not descend, first <= end, are valid from 0 "
                                "to %lld",
                                (long long)i, (long long)first[i], (long long)end[i],
                                (long long)n_keys);
        if (first[i] < end[i]) memoi_segments_add(&x, i, first[i], end[i]);
    }
    memoi_segments_close(&x);
    *n_segments = x.n;
    return MEMO_STATUS_OK;
}

memo_status memo_mask_cross(const int64_t* query_begins, const int64_t* key_begins,
                            int64_t n_documents, memo_segment* segments, int64_t* n_segments,
                            memo_error* error) {
    MEMOB_REFUSE_NULL(error, "n_segments", n_segments);
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    x.list = segments;
    *n_segments = 0;
    if (memoi_sharding_check_documents("memo_mask_cross.query_begins", query_begins, n_documents,
                                       -1, error) ||
        memoi_sharding_check_documents("memo_mask_cross.key_begins", key_begins, n_documents, -1,
                                       error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    for (int64_t i = 0; i < n_documents; i++)
        if (key_begins[i] < key_begins[i + 1])
            memoi_segments_add_rows(&x, query_begins[i], query_begins[i + 1] - query_begins[i],
                                    key_begins[i], key_begins[i + 1], 0, 0);
    memoi_segments_close(&x);
    *n_segments = x.n;
    return MEMO_STATUS_OK;
}

/* --- lists of the caller --- */

/* Leaves of the queries [*from, *to] those where a value is above 0 that is `value` at query q, and
 * changes by `slope` from a query to the next. */
MEMOI void memoi_mask_narrow(int64_t value, int slope, int64_t q, int64_t* from, int64_t* to) {
    if (slope > 0) *from = memob_max(*from, q + 1 - value);
    if (slope < 0) *to = memob_min(*to, q + value - 1);
    if (!slope && value <= 0) *to = *from - 1;
}

/* Do two segments have the same pair? */
MEMOI int memoi_mask_overlaps(const memo_segment* a, const memo_segment* b) {
    int64_t from = memob_max(a->q_begin, b->q_begin), to = memob_min(a->q_end, b->q_end) - 1;
    const int64_t q = from;
    int64_t a_begin, a_end, b_begin, b_end;
    if (from > to) return 0;
    memo_segment_keys(a, q, &a_begin, &a_end);
    memo_segment_keys(b, q, &b_begin, &b_end);
    memoi_mask_narrow(a_end - b_begin, memoi_segment_moves_end(a) - memoi_segment_moves_begin(b), q,
                      &from, &to);
    memoi_mask_narrow(b_end - a_begin, memoi_segment_moves_end(b) - memoi_segment_moves_begin(a), q,
                      &from, &to);
    return from <= to;
}

/* Segments [begins[level], begins[level + 1]) of each level. */
MEMOI memo_status memoi_mask_check_levels(const memo_mask* mask, const int64_t* begins,
                                          int32_t n_levels, memo_error* error) {
    const memo_segment* list = mask->segments;
    for (int32_t k = 0; k < n_levels; k++)
        for (int32_t m = k + 1; m < n_levels; m++) {
            int64_t i = begins[k], j = begins[m];
            while (i < begins[k + 1] && j < begins[m + 1]) {
                if (memoi_mask_overlaps(&list[i], &list[j]))
                    return MEMOI_REFUSE("memo_mask.segments[%lld], [%lld]: levels %d and %d have "
                                        "the same pair; a query sees a key once",
                                        (long long)i, (long long)j, (int)k, (int)m);
                if (list[i].q_end < list[j].q_end)
                    i++;
                else
                    j++;
            }
        }
    return MEMO_STATUS_OK;
}

/* Checks a list, and sets where its levels begin: (MEMO_LEVELS_MAX + 1). */
MEMOI memo_status memoi_mask_check(const memo_mask* mask, int64_t n_tokens, int64_t n_keys,
                                   int64_t* begins, int32_t* n_levels, memo_error* error) {
    int64_t low = 0, high = 0, q = 0, i;
    *n_levels = 0;
    if (mask->n_segments < 0 || (mask->n_segments && !mask->segments))
        return MEMOI_REFUSE("memo_mask.segments: %s (%lld segments); as many as n_segments are "
                            "valid",
                            mask->segments ? "fewer than none" : "NULL",
                            (long long)mask->n_segments);

    for (i = 0; i < mask->n_segments; i++) {
        const memo_segment* s = &mask->segments[i];
        const int64_t n_q = s->q_end - s->q_begin, n_k = s->k_end - s->k_begin;
        const char* wrong = NULL;
        int64_t begin, end;
        if (s->level >= *n_levels && s->level < MEMO_LEVELS_MAX) {
            while (*n_levels <= s->level) begins[(*n_levels)++] = i;
            low = high = q = 0;
        }
        if (s->level != *n_levels - 1)
            wrong = "its level; levels from 0 to MEMO_LEVELS_MAX - 1 that ascend are valid";
        else if ((uint32_t)s->type >= MEMO_N_SEGMENT_TYPES)
            wrong = "its type; those of memo_segment_type are valid";
        else if (s->q_begin < q || s->q_end > n_tokens || n_q < 1)
            wrong = "its queries; ranges that ascend up to n_tokens are valid";
        else if (s->k_begin < 0 || s->k_end > n_keys || n_k < 1)
            wrong = "its keys; ranges up to the number of keys are valid";
        else if (s->type != MEMO_SEGMENT_FULL && n_k < n_q)
            wrong = "fewer keys than queries; FULL segments may have these";

        /* The keys of the first query, after those of the last one before it. */
        if (!wrong) {
            memo_segment_keys(s, s->q_begin, &begin, &end);
            if (begin < low || end < high)
                wrong = "keys that descend from a query to the next; use another level";
            memo_segment_keys(s, s->q_end - 1, &low, &high);
            q = s->q_end;
        }
        if (wrong)
            return MEMOI_REFUSE("memo_mask.segments[%lld]: {%lld, %lld, %lld, %lld, %d, %d}: %s",
                                (long long)i, (long long)s->q_begin, (long long)s->q_end,
                                (long long)s->k_begin, (long long)s->k_end, (int)s->type,
                                (int)s->level, wrong);
    }
    begins[*n_levels] = i;
    return memoi_mask_check_levels(mask, begins, *n_levels, error);
}
