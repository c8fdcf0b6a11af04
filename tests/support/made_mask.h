/* made_mask.h - masks with memory of their own, for tests and benchmarks.  Include after memo_sp.h. */
#ifndef MADE_MASK_H
#define MADE_MASK_H

#include <stdio.h>
#include <stdlib.h>

/* The segments of a mask; stops the program if there is no memory or the mask is wrong. */
static inline memo_segment* made_segments(memo_status status, int64_t n, const memo_error* error) {
    memo_segment* segments = status ? NULL : (memo_segment*)calloc((size_t)n + 1, sizeof *segments);
    if (!segments) {
        printf("Bail out! %s\n", status ? error->message : "no memory for a mask");
        exit(1);
    }
    return segments;
}

/* Free it with made_mask_free. */
static inline memo_mask made_mask(const memo_mask_desc* desc) {
    memo_error error;
    memo_mask mask = {NULL, 0};
    memo_status status = memo_mask_documents(desc, NULL, &mask.n_segments, &error);
    memo_segment* segments = made_segments(status, mask.n_segments, &error);
    status = memo_mask_documents(desc, segments, &mask.n_segments, &error);
    mask.segments = status ? NULL : segments;
    return mask;
}
static inline memo_mask made_intervals(const int64_t* first, const int64_t* end, int64_t n_tokens,
                                       int64_t n_keys) {
    memo_error error;
    memo_mask mask = {NULL, 0};
    memo_status status =
        memo_mask_intervals(first, end, n_tokens, n_keys, NULL, &mask.n_segments, &error);
    memo_segment* segments = made_segments(status, mask.n_segments, &error);
    status = memo_mask_intervals(first, end, n_tokens, n_keys, segments, &mask.n_segments, &error);
    mask.segments = status ? NULL : segments;
    return mask;
}
static inline void made_mask_free(const memo_mask* mask) {
    free((memo_segment*)(uintptr_t)mask->segments);
}

/* The number of pairs of a query and a key; exact up to 2^53. */
static inline double count_pairs_of(const memo_segment* segments, int64_t n) {
    double pairs = 0;
    for (int64_t i = 0; i < n; i++) {
        const memo_segment* s = &segments[i];
        const double n_q = (double)(s->q_end - s->q_begin), n_k = (double)(s->k_end - s->k_begin);
        if (s->type == MEMO_SEGMENT_FULL)
            pairs += n_q * n_k;
        else if (s->type == MEMO_SEGMENT_BAND)
            pairs += n_q * (n_k - n_q + 1);
        else
            pairs += n_q * (n_k - n_q + 1) + n_q * (n_q - 1) / 2;
    }
    return pairs;
}

/* The keys [*begin, *end) that a query sees in the first level; none: 0, 0. */
static inline void made_mask_keys(const memo_mask* mask, int64_t query, int64_t* begin,
                                  int64_t* end) {
    *begin = *end = 0;
    for (int64_t i = 0; i < mask->n_segments && !mask->segments[i].level; i++)
        if (query >= mask->segments[i].q_begin && query < mask->segments[i].q_end)
            memo_segment_keys(&mask->segments[i], query, begin, end);
}

#endif
