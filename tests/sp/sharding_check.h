/* sharding_check.h - checks a sharding.  It deals out the positions one by one, by the definition
 * in memo_sp.h, and shares no code with the functions that it checks.  Of documents it takes the
 * positions from the sharding, and checks that rows of a rank ascend, and that each rank has as
 * many tokens, then padding.
 *
 * Include after memo_sp.h. */
#ifndef SHARDING_CHECK_H
#define SHARDING_CHECK_H

#include <stdlib.h>

static memo_status check_wrong(memo_error* error, const char* what, int64_t position, int64_t rank,
                               int64_t row) {
    return memo_error_set(
        error, MEMO_STATUS_INVALID_ARGUMENT,
        "sharding: %s; the definition puts position %lld at row %lld of rank %lld", what,
        (long long)position, (long long)row, (long long)rank);
}

/* Returns 0 if a position is dealt twice, a rank's rows do not ascend, or its tokens are too many
 * or too few. */
static int check_take_documents(const memo_sharding* sharding, int64_t* dealt) {
    const int64_t n_local = sharding->local_tokens, n_ring = n_local * sharding->ulysses;
    int64_t padding = sharding->n_tokens;
    char* seen = (char*)calloc((size_t)sharding->padded_tokens, 1);
    int is_once = 1;
    if (!seen) abort();
    for (int64_t i = 0; i < sharding->padded_tokens; i++) {
        dealt[i] = memo_sharding_position(sharding, (int32_t)(i / n_local), i % n_local);
        is_once &= dealt[i] >= 0 && dealt[i] < sharding->padded_tokens && !seen[dealt[i]]++;
    }
    free(seen);
    if (!is_once) return 0;
    for (int64_t r = 0; r < sharding->ring; r++) {
        const int64_t n_tokens =
            sharding->n_tokens / sharding->ring + (r < sharding->n_tokens % sharding->ring);
        for (int64_t i = 0; i < n_ring; i++) {
            const int64_t position = dealt[r * n_ring + i];
            if (i && position <= dealt[r * n_ring + i - 1]) return 0;
            if (i < n_tokens ? position >= sharding->n_tokens : position != padding++) return 0;
        }
    }
    return 1;
}

/* dealt[ring rank * rows of a ring rank + place] = position. */
static void check_deal(const memo_sharding* sharding, int64_t n_rows, int64_t* dealt) {
    int64_t rd = sharding->ring, t = 0;
    if (sharding->kind == MEMO_SHARDING_PLAIN) {
        for (int64_t chunk = 0; chunk < rd; chunk++)
            for (int64_t i = 0; i < n_rows; i++) dealt[chunk * n_rows + i] = t++;
    } else { /* there and back */
        for (int64_t chunk = 0; chunk < rd; chunk++)
            for (int64_t i = 0; i < n_rows / 2; i++) dealt[chunk * n_rows + i] = t++;
        for (int64_t chunk = rd; chunk-- > 0;)
            for (int64_t i = n_rows / 2; i < n_rows; i++) dealt[chunk * n_rows + i] = t++;
    }
}

/* Slice after slice; rows of a sequence rank follow each other. */
static void check_deal_slices(const memo_sharding* sharding, int64_t* dealt) {
    const int64_t n_ranks = sharding->ring * sharding->ulysses;
    for (int64_t first = 0; first < sharding->n_tokens; first += sharding->slice_tokens) {
        const int64_t end = first + sharding->slice_tokens;
        const int64_t n = (end < sharding->n_tokens ? end : sharding->padded_tokens) - first;
        int64_t* slice = (int64_t*)calloc((size_t)n, sizeof *slice);
        if (!slice) abort();
        check_deal(sharding, n / sharding->ring, slice);
        for (int64_t i = 0; i < n; i++)
            dealt[i / (n / n_ranks) * sharding->local_tokens + first / n_ranks +
                  i % (n / n_ranks)] = first + slice[i];
        free(slice);
    }
}

static memo_status check_compare(const memo_sharding* sharding, const int64_t* dealt,
                                 memo_run* runs, memo_error* error) {
    int64_t n_local = sharding->padded_tokens / sharding->ring / sharding->ulysses;
    for (int32_t rank = 0; rank < sharding->ring * sharding->ulysses; rank++) {
        int32_t n_runs = memo_sharding_runs(sharding, rank, runs), run = 0;
        int64_t in_run = 0, n_rows = 0;
        for (int64_t k = 0; k < n_runs; k++) n_rows += runs[k].count;
        if (n_rows != n_local)
            return check_wrong(error, "the runs of a rank have another length than its rows",
                               dealt[rank * n_local], rank, 0);
        for (int64_t row = 0; row < n_local; row++) {
            const int64_t position = dealt[rank * n_local + row];
            if (memo_sharding_position(sharding, rank, row) != position)
                return check_wrong(error, "memo_sharding_position says otherwise", position, rank,
                                   row);
            while (in_run == runs[run].count) {
                run++;
                in_run = 0;
            }
            if (runs[run].start + in_run++ != position)
                return check_wrong(error, "the runs say otherwise", position, rank, row);
        }
    }
    return MEMO_STATUS_OK;
}

static memo_status sharding_check(const memo_sharding* sharding, memo_error* error) {
    int64_t n_ranks = (int64_t)sharding->ring * sharding->ulysses, n_rows;
    const int64_t capacity = sharding->capacity ? sharding->capacity : sharding->n_tokens;
    int is_documents = sharding->kind == MEMO_SHARDING_DOCUMENTS, is_right = 1;
    int64_t* dealt;
    memo_run* runs;
    if (sharding->ring < 1 || sharding->ulysses < 1 || capacity < sharding->n_tokens ||
        sharding->n_tokens < 1 || sharding->padded_tokens < capacity ||
        sharding->padded_tokens - capacity >= 2 * n_ranks || sharding->padded_tokens % n_ranks ||
        sharding->local_tokens != sharding->padded_tokens / n_ranks ||
        sharding->ring_tokens != sharding->padded_tokens / sharding->ring ||
        (sharding->kind == MEMO_SHARDING_ZIGZAG && sharding->ring_tokens % 2) ||
        (is_documents &&
         memoi_sharding_check_documents("documents", sharding->document_begins,
                                        sharding->n_documents, sharding->n_tokens, error)))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "sharding: %lld tokens, %lld with padding, %lld a rank and %lld a ring "
            "rank do not fit %lld ranks",
            (long long)sharding->n_tokens, (long long)sharding->padded_tokens,
            (long long)sharding->local_tokens, (long long)sharding->ring_tokens,
            (long long)n_ranks);
    n_rows = sharding->padded_tokens / sharding->ring;
    dealt = (int64_t*)calloc((size_t)sharding->padded_tokens, sizeof *dealt);
    runs = (memo_run*)calloc((size_t)sharding->padded_tokens + 2, sizeof *runs);
    if (!dealt || !runs) abort();
    if (is_documents)
        is_right = check_take_documents(sharding, dealt);
    else if (sharding->slice_tokens)
        check_deal_slices(sharding, dealt);
    else
        check_deal(sharding, n_rows, dealt);
    memo_status status =
        is_right
            ? check_compare(sharding, dealt, runs, error)
            : memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                             "sharding: rows of documents do not ascend or occur twice, or ranks "
                             "have unequal numbers of tokens");
    free(dealt);
    free(runs);
    return status;
}

#endif
