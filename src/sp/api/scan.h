#pragma once
/* ---- 10 scan: recurrences over ranks ------------------------------------------------------------
 *
 * A recurrence such as Mamba-2, linear attention or the gated delta net maps the state before a
 * token to the state after it: h -> M h + b.  A rank's rows together do the same.  So a rank first
 * summarizes its rows as M and b from a state of 0.  A prefix scan then gives each rank the state
 * before its first row, and the rank runs its rows from there.
 *
 *   summarize  M, and b: the state after the rows if the state before them is 0
 *   compose    (M2, b2) after (M1, b1) is (M2 M1, M2 b1 + b2)
 *   run        the rows, from the state before them
 *
 * The scan takes ceil(log2(ranks)) exchanges.  Their bytes do not depend on the number of tokens.
 * backward is the scan from the last rank to the first: h is the gradient of the state, M is
 * transposed, and b is the gradient of the state before the rows if that after them is 0.  Ranks
 * compose in a fixed order, so each run gives the same bits.
 *
 * The rows of a rank are consecutive positions, in the order of ranks, with any number of rows on
 * each.  A state ends where a document begins.  Nothing travels past such a border, and compose is
 * not called for it; but summarize and run must treat borders inside of their rows.
 *
 * The callbacks decide what the numbers mean.  Where M is diagonal, its logarithms do not underflow
 * (the library only moves M).  m_count 0 is an M that is the identity, as in linear attention.
 * examples/24_scan_ranks.c is a whole example. */

typedef struct memo_scan_call {
    memo_stream stream; /* enqueue here */
    int32_t is_backward;
    void* user; /* memo_scan_tensors.user */
    /* summarize and compose set M (m_count) and b (b_count), in device memory.  m NULL: M is not
     * needed, and first_m may be NULL too. */
    float *m, *b;
    /* compose: what is applied first, and then.  No array is m or b.  In backward M is not stored
     * transposed: M = first_m then_m, b = then_m^T first_b + then_b. */
    const float *first_m, *first_b, *then_m, *then_b;
    /* run: the state before the rows, in backward the gradient of the state after them; zeros if
     * there is none. */
    const float* state;
} memo_scan_call;

/* On a rank without rows the functions are not called. */
typedef memo_status (*memo_scan_function)(void* context, const memo_scan_call* call,
                                          memo_error* error);
typedef struct memo_scan_functions {
    void* context;
    memo_scan_function summarize, compose, run;
} memo_scan_functions;

typedef struct memo_scan_desc {
    const memo_device* device;
    memo_stream stream;
    memo_comm* comm;          /* the ranks of a sequence, such as memo_mesh.sequence; NULL: one */
    int64_t m_count, b_count; /* fp32 numbers, of all heads and sequences of the batch */
    memo_scan_functions functions;
    /* A convolution of width w reads halo_rows = w - 1 rows before each row; 0: no halo. */
    int32_t halo_rows;
    int64_t halo_columns; /* elements of a row */
    memo_type halo_type;  /* F32, BF16 or F16 */
} memo_scan_desc;

typedef struct memo_scan memo_scan;

/* Each rank calls this independently.  Allocates scratch of 4 (m_count + b_count) numbers and halo
 * rows from the device, shared by all layers.  UNSUPPORTED: a halo without row kernels. */
MEMO_TRY memo_status memo_scan_create(const memo_scan_desc* desc, memo_scan** scan,
                                      memo_error* error);
MEMO_API void memo_scan_destroy(memo_scan* scan);

/* Call this once a batch, on all ranks with equal numbers.  Rank r has the rows at positions
 * [row_begins[r], row_begins[r + 1]) (size + 1 positions, not descending).  Of a plain sharding, or
 * of a ring of 1, row_begins[r] is the smaller of r * local_tokens and n_tokens.  document_begins
 * (n_documents + 1, from 0, not descending; NULL: no border) may go beyond these rows: a document
 * that begins right behind the rows is of the next slice.  A document without tokens begins
 * nowhere, so begins may be padded to a fixed length with the end of the last document.  Copies the
 * positions, does not allocate, and enqueues a barrier that compares descs and numbers of all
 * ranks; passes compare nothing on NCCL.  COMM may come from a later call. */
MEMO_TRY memo_status memo_scan_set_rows(memo_scan* scan, const int64_t* row_begins,
                                        const int64_t* document_begins, int64_t n_documents,
                                        memo_error* error);

/* In device memory, except user. */
typedef struct memo_scan_tensors {
    void* user; /* the layer's rows, for the callbacks */
    /* (b_count): forward sets the state before this rank's rows, backward the gradient of the state
     * after them.  A rank without rows leaves it unchanged. */
    float* state;
    /* (b_count): the state before the first row of all ranks, in backward the gradient of the state
     * after the last one, for a sequence in slices.  Only the first (last) rank with rows reads it,
     * and only if no document begins there, in backward right behind the rows; the end of
     * document_begins is no begin.  NULL: 0. */
    const float* initial;
} memo_scan_tensors;

/* Passes.  INVALID_STATE: no rows are set, or a halo of a scan whose halo_rows is 0. */
MEMO_TRY memo_status memo_scan_forward(memo_scan* scan, const memo_scan_tensors* tensors,
                                       memo_error* error);
MEMO_TRY memo_status memo_scan_backward(memo_scan* scan, const memo_scan_tensors* tensors,
                                        memo_error* error);
/* forward sets halo (halo_rows, halo_columns): the rows before this rank's first, of one or more
 * ranks; 0 for rows of another document and before the first row of all ranks.  backward adds the
 * gradients d_halo to d_rows of the ranks that own the rows.  rows and d_rows have this rank's
 * rows.  A call is for one sequence. */
MEMO_TRY memo_status memo_scan_halo_forward(memo_scan* scan, const void* rows, void* halo,
                                            memo_error* error);
MEMO_TRY memo_status memo_scan_halo_backward(memo_scan* scan, const void* d_halo, void* d_rows,
                                             memo_error* error);
