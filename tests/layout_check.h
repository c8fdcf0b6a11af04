/* layout_check.h - is a layout valid?  It deals the positions out one by one, as the definition in memo_sp.h says, and
 * shares no code with the functions that it checks.
 *
 * Include after memo_sp.h. */
#ifndef LAYOUT_CHECK_H
#define LAYOUT_CHECK_H

#include <stdlib.h>

static memo_status check_wrong(memo_error* error, const char* what, int64_t position, int64_t rank,
                               int64_t row) {
    return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                          "layout: %s; the definition puts position %lld at row %lld of rank %lld",
                          what, (long long)position, (long long)row, (long long)rank);
}

/* Of the layout of documents; seats (4 ring): of each ring rank, the tokens that it has got of
 * all, how many of this document are for its first and second chunk, and its next place. */
static void check_deal_documents(const memo_layout* layout, int64_t n_rows, int64_t* seats,
                                 int64_t* dealt) {
    int64_t rd = layout->ring, d, t, r, i;
    for (d = 0; d < layout->n_documents; d++) {
        for (r = 0; r < rd; r++) seats[4 * r + 1] = seats[4 * r + 2] = 0;
        for (t = layout->document_begins[d]; t < layout->document_begins[d + 1]; t++)
            seats[4 * (t % rd) + 1 + seats[4 * (t % rd)]++ % 2]++;
        t = layout->document_begins[d];
        for (r = 0; r < rd; r++)
            for (i = 0; i < seats[4 * r + 1]; i++) dealt[r * n_rows + seats[4 * r + 3]++] = t++;
        for (r = rd; r-- > 0;)
            for (i = 0; i < seats[4 * r + 2]; i++) dealt[r * n_rows + seats[4 * r + 3]++] = t++;
    }
    for (r = 0, t = layout->n_tokens; r < rd; r++)
        while (seats[4 * r + 3] < n_rows) dealt[r * n_rows + seats[4 * r + 3]++] = t++;
}

/* dealt[ring rank * rows of a ring rank + place] = position. */
static void check_deal(const memo_layout* layout, int64_t n_rows, int64_t* dealt) {
    int64_t rd = layout->ring, t = 0, chunk, i;
    if (layout->kind == MEMO_LAYOUT_STRIPED) {
        for (i = 0; i < n_rows; i++)
            for (chunk = 0; chunk < rd; chunk++) dealt[chunk * n_rows + i] = t++;
    } else if (layout->kind == MEMO_LAYOUT_PLAIN) {
        for (chunk = 0; chunk < rd; chunk++)
            for (i = 0; i < n_rows; i++) dealt[chunk * n_rows + i] = t++;
    } else { /* there and back */
        for (chunk = 0; chunk < rd; chunk++)
            for (i = 0; i < n_rows / 2; i++) dealt[chunk * n_rows + i] = t++;
        for (chunk = rd; chunk-- > 0;)
            for (i = n_rows / 2; i < n_rows; i++) dealt[chunk * n_rows + i] = t++;
    }
}

static memo_status check_compare(const memo_layout* layout, const int64_t* dealt, memo_run* runs,
                                 memo_error* error) {
    int64_t n_local = layout->padded_tokens / layout->ring / layout->ulysses;
    int32_t rank;
    for (rank = 0; rank < layout->ring * layout->ulysses; rank++) {
        int32_t n_runs = memo_layout_runs(layout, rank, runs), run = 0;
        int64_t row, in_run = 0, n_rows = 0, k;
        for (k = 0; k < n_runs; k++) n_rows += runs[k].count;
        if (n_rows != n_local)
            return check_wrong(error, "the runs of a rank have another length than its rows",
                               dealt[rank * n_local], rank, 0);
        for (row = 0; row < n_local; row++) {
            int64_t position = dealt[rank * n_local + row], found_row;
            int32_t found_rank;
            if (memo_layout_position(layout, rank, row) != position)
                return check_wrong(error, "memo_layout_position says otherwise", position, rank,
                                   row);
            memo_layout_find(layout, position, &found_rank, &found_row);
            if (found_rank != rank || found_row != row)
                return check_wrong(error, "memo_layout_find says otherwise", position, rank, row);
            while (in_run == runs[run].count) {
                run++;
                in_run = 0;
            }
            if (runs[run].start + in_run++ * runs[run].stride != position)
                return check_wrong(error, "the runs say otherwise", position, rank, row);
        }
    }
    return MEMO_STATUS_OK;
}

static memo_status layout_check(const memo_layout* layout, memo_error* error) {
    int64_t n_ranks = (int64_t)layout->ring * layout->ulysses, n_rows;
    int is_documents = layout->kind == MEMO_LAYOUT_DOCUMENTS;
    int64_t *dealt, *seats;
    memo_run* runs;
    memo_status status;
    if (layout->ring < 1 || layout->ulysses < 1 || layout->padded_tokens < layout->n_tokens ||
        layout->n_tokens < 1 || layout->padded_tokens - layout->n_tokens >= 2 * n_ranks ||
        layout->padded_tokens % n_ranks ||
        layout->local_tokens != layout->padded_tokens / n_ranks ||
        layout->ring_tokens != layout->padded_tokens / layout->ring ||
        (layout->kind == MEMO_LAYOUT_ZIGZAG && layout->ring_tokens % 2) ||
        (is_documents &&
         !memoi_are_documents(layout->document_begins, layout->n_documents, layout->n_tokens)))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "layout: %lld tokens, %lld with padding, %lld a rank and %lld a ring "
                              "rank do not fit %lld ranks",
                              (long long)layout->n_tokens, (long long)layout->padded_tokens,
                              (long long)layout->local_tokens, (long long)layout->ring_tokens,
                              (long long)n_ranks);
    n_rows = layout->padded_tokens / layout->ring;
    dealt = (int64_t*)calloc((size_t)layout->padded_tokens, sizeof *dealt);
    seats = (int64_t*)calloc((size_t)layout->ring, 4 * sizeof *seats);
    runs = (memo_run*)calloc((size_t)(2 * layout->n_documents + MEMO_RUNS_MAX), sizeof *runs);
    if (!dealt || !seats || !runs) abort();
    if (is_documents)
        check_deal_documents(layout, n_rows, seats, dealt);
    else
        check_deal(layout, n_rows, dealt);
    status = check_compare(layout, dealt, runs, error);
    free(dealt);
    free(seats);
    free(runs);
    return status;
}

#endif
