#pragma once
#include "sp/shardings.h"
/* ---- >>masks ------------------------------------------------------------------------------------
 * Knows: positions and documents.  Knows nothing of ranks, shardings or devices.
 *
 * 1. Interval ends do not cross: a query sees [begin, end), begin <= end.
 * 2. Neither end of the intervals of a level descends from a query to the next. */

/* Positions from the query's own on that it sees; 0: no limit. */
MEMOI int64_t memoi_mask_after(const memo_mask* mask) {
    return mask->kind == MEMO_MASK_CAUSAL ? 1 : mask->window_after;
}

void memo_mask_interval(const memo_mask* mask, int64_t query, int64_t* begin, int64_t* end) {
    const int64_t own = mask->first_query + query, after = memoi_mask_after(mask);
    *begin = *end = 0;
    if (query >= mask->n_tokens) return;
    if (mask->key_first) {
        *begin = mask->key_first[query];
        *end = mask->key_end[query];
        return;
    }

    *end = mask->n_keys ? mask->n_keys : memob_max(mask->first_query + mask->n_tokens, 0);
    if (mask->document_begins) { /* before the first document and behind the last one: none */
        const int64_t* document =
            memoi_sharding_document_of(mask->document_begins, mask->n_documents, own);
        *begin = own < document[1] ? document[0] : document[1];
        *end = own < 0 ? document[0] : document[1];
    }

    /* The windows.  The query's own position may be behind the last key. */
    if (mask->window_before && own - *begin >= mask->window_before)
        *begin = memob_min(own - mask->window_before + 1, *end);
    if (after && *end - own > after) *end = memob_max(own + after, *begin);
    MEMO_ASSERT(*begin <= *end); /* 1 */
}

/* --- trees --- */

/* The number of ancestors of a document. */
MEMOI int32_t memoi_mask_depth(const memo_mask* mask, int64_t document) {
    int32_t depth = 0;
    while ((document = mask->document_parents[document]) >= 0) depth++;
    return depth;
}

/* The keys that queries see of their ancestors at a depth.  Neither end descends, since documents
 * are in preorder.  first, end: (n_tokens). */
MEMOI void memoi_mask_ancestors(const memo_mask* mask, int32_t depth, int64_t* first,
                                int64_t* end) {
    const int64_t *begins = mask->document_begins, *parents = mask->document_parents;
    int64_t low = 0, high = 0;
    for (int64_t i = 0; i < mask->n_documents && parents; i++) {
        int64_t ancestor = i;
        int32_t n = memoi_mask_depth(mask, i);
        low = high;
        if (n > depth) {
            for (; n > depth; n--) ancestor = parents[ancestor];
            low = begins[ancestor];
            high = begins[ancestor + 1];
        }
        for (int64_t q = begins[i]; q < begins[i + 1]; q++) {
            first[q] = low;
            end[q] = high;
            MEMO_ASSERT(!q || (first[q] >= first[q - 1] && end[q] >= end[q - 1])); /* 2 */
        }
    }
}

/* --- runs --- */

/* The next positions that the queries of a run see together, without a gap, from query *i on; moves
 * *i behind these queries.  Returns 0 if there are none.  Only key_first and key_end have gaps. */
MEMOI int memoi_mask_run_sees(const memo_mask* mask, const memo_run* q, int64_t* i, int64_t* begin,
                              int64_t* end) {
    const int64_t n_queries = memoi_sharding_run_below(q, mask->n_tokens);
    int64_t low, high;
    *begin = *end = 0;
    if (*i < n_queries && !mask->key_first) {
        memo_mask_interval(mask, q->start, begin, &high);
        memo_mask_interval(mask, q->start + n_queries - 1, &low, end);
        *i = n_queries;
    }
    for (; *i < n_queries; ++*i) {
        memo_mask_interval(mask, q->start + *i, &low, &high);
        if (low == high) continue;
        if (*begin < *end && low > *end) break;
        if (*begin == *end) *begin = low;
        *end = high;
    }
    return *begin < *end;
}
