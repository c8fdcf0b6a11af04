#pragma once
/* ---- 3 shardings: which rank holds which tokens -------------------------------------------------
 *
 * A sequence is split over ring x ulysses ranks; sequence rank = ring_rank * ulysses +
 * ulysses_rank.  Each rank holds local_tokens rows.  The ranks of one ulysses group together hold
 * ring_tokens rows, in the order of their ranks; the attention of their ring rank works on these.
 * With rd = ring, and padded_tokens cut into equal chunks:
 *
 *   zigzag     2 rd chunks; ring rank r holds chunks r and 2 rd - 1 - r.  Equal work under a causal
 *              mask (unified SP paper, Algorithm 2).
 *   plain      rd chunks; ring rank r holds chunk r.  The last rank has the most work.
 *   documents  short documents stay on one ring rank, long ones are cut zigzag over as many as
 *              balance needs.  Equal work if attention ends at document borders.
 *
 * Padding.  If the length does not divide, fewer than 2 ring * ulysses padding tokens follow the
 * last token (documents: of each rank), at positions n_tokens and above.  Their output and gradient
 * are 0, their LSE is -inf or the head's sink, and they have no label.  A rank may have padding
 * only.
 *
 * Documents.  Packed documents need not divide by anything, and may be empty: the mask (chapter 4)
 * decides what attends to what.  The sharding "documents" halves the ring ranks again and again.
 * The document with most scores goes to the half with fewer, then the next one.  The document that
 * fills a half is cut there.  If the scores of a rank of both halves differ by more than 1 / 32 of
 * the mean over all ranks, the document with most scores is cut zigzag over all ranks of both
 * halves instead, so that each gets as many.  So the scores of ranks differ by a few percent, the
 * token counts by at most 1, and few documents have rows on several ranks.  Scores are causal in
 * each document, or those of the segments that are given.  A rank has as many rows whatever the
 * documents.  If these have fewer tokens than the capacity, each rank has its share of them, then
 * padding.
 *
 * Slices.  A sequence may be cut into slices, which are sharded one by one, zigzag or plain.  So
 * each rank has a share of each slice, and a layer may be computed slice by slice.
 *
 * The rows of a rank are runs of positions, ascending: at most MEMO_RUNS_MAX runs, of each slice if
 * there are slices; any number in the sharding "documents". */

typedef enum memo_sharding_kind {
    MEMO_SHARDING_ZIGZAG = 0,
    MEMO_SHARDING_PLAIN,
    MEMO_SHARDING_DOCUMENTS,
    MEMO_N_SHARDING_KINDS
} memo_sharding_kind;

/* The count positions start, start + 1, ... */
typedef struct memo_run {
    int64_t start, count;
} memo_run;
#define MEMO_RUNS_MAX 2

typedef struct memo_sharding_desc {
    memo_sharding_kind kind;
    int32_t ring, ulysses; /* degrees; 0: 1; ring of documents: at most 65536 */
    int64_t n_tokens;      /* of the whole sequence */
    /* MEMO_SHARDING_DOCUMENTS only: each rank has rows as if there were so many tokens; 0:
     * n_tokens. */
    int64_t capacity;
    /* MEMO_SHARDING_DOCUMENTS only: n_documents + 1 positions from 0 to n_tokens, not descending
     * (cu_seqlens).  Borrowed as long as the sharding is used. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* As in memo_mask_desc: the scores of a document count those with its ancestors, and its
     * positions follow theirs.  NULL: none.  Borrowed, too. */
    const int64_t* document_parents;
    /* MEMO_SHARDING_DOCUMENTS only: what queries see (memo_mask.segments), if not causal documents.
     * Read by memo_sharding_make alone.  NULL, 0: causal. */
    const struct memo_segment* segments;
    int64_t n_segments;
    /* Tokens of every slice but the last; 0: one slice.  Multiples of 2 ring * ulysses work. */
    int64_t slice_tokens;
} memo_sharding_desc;

/* In the sharding "documents" the rows from `row` on, counted over all ranks, have the positions
 * from `position` on. */
typedef struct memo_sharding_piece {
    int64_t row, position;
} memo_sharding_piece;

typedef struct memo_sharding {
    memo_sharding_kind kind;
    int32_t ring, ulysses;
    int64_t n_tokens, capacity;
    int64_t padded_tokens;          /* ring * ulysses * local_tokens */
    int64_t local_tokens;           /* rows of each rank */
    int64_t ring_tokens;            /* ulysses * local_tokens */
    const int64_t* document_begins; /* as in the desc; otherwise NULL */
    int64_t n_documents;
    const int64_t* document_parents;
    int64_t slice_tokens;
    memo_sharding_piece* pieces; /* (n_pieces + 1) of documents, the last one an end; or NULL */
    int64_t n_pieces;
} memo_sharding;

/* Only documents take memory, which copies share.  Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_sharding_make(const memo_sharding_desc* desc, memo_sharding* sharding,
                                        memo_error* error);
/* Frees the memory of documents; call this once, when no copy is used. */
MEMO_API void memo_sharding_free(memo_sharding* sharding);

/* Sets slice number k as a sharding of its own, and slices 0 .. k, whose keys k's queries may see.
 * Rows of a rank follow each other by slices: k's begin at so_far->local_tokens -
 * slice->local_tokens.  Without slices k is 0, and both are the sharding. */
MEMO_API void memo_sharding_slice(const memo_sharding* sharding, int64_t k, memo_sharding* slice,
                                  memo_sharding* so_far);
/* The position of a row in [0, local_tokens) of a sequence rank.  O(1); for documents
 * O(log n_pieces). */
MEMO_API int64_t memo_sharding_position(const memo_sharding* sharding, int32_t sequence_rank,
                                        int64_t row);
/* Writes the runs of a sequence rank and returns their number; no run is empty.  runs NULL: returns
 * the number only. */
MEMO_API int32_t memo_sharding_runs(const memo_sharding* sharding, int32_t sequence_rank,
                                    memo_run* runs);

/* Sets a rank's labels (n_batch, local_tokens): the label of a position is the token `ahead`
 * positions later: 1 for the next token, 2 or more for multi-token prediction, -1 for the previous
 * token.  A position without such a token in its document, and padding, get `ignored`.
 * document_begins (n_documents + 1): NULL means the documents of the sharding, or one document.
 * tokens (n_batch, n_tokens) are in host memory.  Returns the number of labels that are not
 * ignored.
 *
 * The mean loss: sum the losses and the numbers of labels over memo_mesh.gradient, and divide.  The
 * gradient of each label's loss is 1 / number of labels of all ranks.  Sum parameter gradients over
 * memo_mesh.gradient; do not average them. */
MEMO_API int64_t memo_sharding_labels(const memo_sharding* sharding, int32_t sequence_rank,
                                      int64_t n_batch, const int32_t* tokens, int64_t ahead,
                                      const int64_t* document_begins, int64_t n_documents,
                                      int32_t ignored, int32_t* labels);
