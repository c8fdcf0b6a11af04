/* ---- 3 layouts: which rank holds which tokens ---------------------------------------------------------
 *
 * A sequence is split over ring x ulysses ranks; sequence rank = ring_rank * ulysses + ulysses_rank.  All hold
 * local_tokens rows.  The ranks of one ulysses group hold, in their order, the ring_tokens rows on which the
 * attention of that ring rank works.  With rd = ring, and padded_tokens cut in equal chunks:
 *
 *   zigzag    2 rd chunks, ring rank r holds chunks r and 2 rd - 1 - r: equal work under a causal mask
 *             (unified SP paper, Algorithm 2)
 *   plain     rd chunks, ring rank r holds chunk r: the last rank works most
 *   striped   ring rank r holds positions r, r + rd, r + 2 rd, ...
 *
 * A length that does not divide is padded at its end, by less than 2 ring * ulysses tokens.  Padding is masked,
 * has output and gradient 0, and no label.  Documents packed into one sequence need no divisibility at all: they are
 * a matter of the mask (chapter 4).
 *
 * What a rank holds is at most MEMO_RUNS_MAX runs of positions, ascending, in the order of its rows. */

typedef enum memo_layout_kind {
    MEMO_LAYOUT_ZIGZAG = 0,
    MEMO_LAYOUT_PLAIN,
    MEMO_LAYOUT_STRIPED
} memo_layout_kind;
MEMO_API const char* memo_layout_name(memo_layout_kind kind); /* "zigzag"; never NULL */

/* Positions start, start + stride, ..., count of them. */
typedef struct memo_run {
    int64_t start, stride, count;
} memo_run;
#define MEMO_RUNS_MAX 2

typedef struct memo_layout_desc {
    memo_layout_kind kind;
    int32_t ring, ulysses; /* degrees; 0: 1 */
    int64_t n_tokens;      /* of the sequence, all ranks together */
} memo_layout_desc;

typedef struct memo_layout {
    memo_layout_kind kind;
    int32_t ring, ulysses;
    int64_t n_tokens;
    int64_t
        padded_tokens; /* ring * ulysses * local_tokens; positions from n_tokens on are padding */
    int64_t local_tokens; /* rows of each rank */
    int64_t ring_tokens;  /* ulysses * local_tokens */
} memo_layout;

MEMO_API memo_layout_desc memo_layout_desc_default(void);
/* Pure arithmetic, no memory: every rank makes its own.  Errors: INVALID_ARGUMENT. */
MEMO_API memo_status memo_layout_make(const memo_layout_desc* desc, memo_layout* layout,
                                      memo_error* error);
/* Trusts nothing and shares no code with the functions below: every position of the padded sequence is held once,
 * by the rank and row that the definition says, and maps and runs agree.  O(padded_tokens) time and memory.
 * Errors: INVALID_ARGUMENT naming the position, OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_layout_validate(const memo_layout* layout, memo_error* error);

/* Both ways: position of row (in [0, local_tokens)) of a sequence rank; rank and row of a position (in
 * [0, padded_tokens)). */
MEMO_API int64_t memo_layout_position(const memo_layout* layout, int32_t sequence_rank,
                                      int64_t row);
MEMO_API void memo_layout_find(const memo_layout* layout, int64_t position, int32_t* sequence_rank,
                               int64_t* row);
/* The runs of a sequence rank, and of all ranks of a ulysses group together; returns how many. */
MEMO_API int32_t memo_layout_runs(const memo_layout* layout, int32_t sequence_rank,
                                  memo_run runs[MEMO_RUNS_MAX]);
MEMO_API int32_t memo_layout_ring_runs(const memo_layout* layout, int32_t ring_rank,
                                       memo_run runs[MEMO_RUNS_MAX]);
/* positions[local_tokens] of a rank's rows, for rotary and other position embeddings.  With documents
 * (document_begins[n_documents + 1], from 0 to n_tokens, ascending; NULL: one) positions count from the begin
 * of each.  Padding counts on from n_tokens; a table of padded_tokens angles serves all. */
MEMO_API void memo_layout_positions(const memo_layout* layout, int32_t sequence_rank,
                                    const int64_t* document_begins, int64_t n_documents,
                                    int64_t* positions);

/* Rows between the whole sequence (n_batch, n_tokens, row_bytes) and a rank's share (n_batch, local_tokens,
 * row_bytes), both in host memory.  scatter sets padding to zero bytes; gather writes the rank's rows into whole and
 * drops padding: called for every rank, it fills whole. */
MEMO_API void memo_layout_scatter(const memo_layout* layout, int32_t sequence_rank, int64_t n_batch,
                                  int64_t row_bytes, const void* whole, void* share);
MEMO_API void memo_layout_gather(const memo_layout* layout, int32_t sequence_rank, int64_t n_batch,
                                 int64_t row_bytes, const void* share, void* whole);

/* A rank's labels (n_batch, local_tokens): the label of a position is the next token, looked up before the sequence
 * is split.  The last of the sequence and of each document, and padding, get `ignored`.  tokens (n_batch, n_tokens) in
 * host memory.  Returns how many labels are not ignored. */
MEMO_API int64_t memo_layout_labels(const memo_layout* layout, int32_t sequence_rank,
                                    int64_t n_batch, const int32_t* tokens,
                                    const int64_t* document_begins, int64_t n_documents,
                                    int32_t ignored, int32_t* labels);

/* The mean over all ranks' labels.  sums (device memory, 2): the sum of this rank's losses and the number of its
 * labels; becomes those of all ranks of comm (memo_mesh.gradient).  With n the second of them afterwards: loss =
 * sums[0] / n on every rank, the gradient of each label's loss is 1 / n, and gradients of parameters are summed over
 * comm, not averaged.  Enqueues on stream; all ranks call it.  Errors: those of all_reduce. */
MEMO_API memo_status memo_layout_sum_loss(memo_comm* comm, memo_stream stream, double* sums,
                                          memo_error* error);

/* A line a rank, its positions in runs, into text (capacity_bytes with the final zero; cut where it does not fit).
 * Returns the bytes of the whole, without the zero; text may be NULL where capacity_bytes is 0. */
MEMO_API int64_t memo_layout_print(const memo_layout* layout, char* text, int64_t capacity_bytes);
