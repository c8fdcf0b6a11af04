#pragma once
/* ---- 4 local attention: a block of queries against a block of keys ------------------------------
 *
 * A callback computes a step of the ring on a rank, so that any kernel can be used.  The callback
 * gets queries and keys at known positions, and what they see, in rows.  Exact
 * callbacks are in examples/: host_attention.h, and exact_attention.h for GPUs. */

/* --- segments ---
 *
 * What queries see of keys is a list of segments: of positions in a mask, of rows in a block.  Of
 * the queries [q_begin, q_end), nq in number, query i sees these keys j of [k_begin, k_end), nk in
 * number, both counted from 0:
 *
 *     FULL     all                          CAUSAL   j <= i + nk - nq
 *     INVERSE  j >= i                       BAND     i <= j <= i + nk - nq
 *
 * nk is at least nq, unless all keys are seen, so each query of a segment sees a key.  Segments
 * ascend: q_begin is the last q_end or more, and neither end of the keys that a query sees descends
 * from a query to the next.
 *
 * A query may see several intervals of keys, each by a segment of another level.  Levels follow
 * each other in a list, and each ascends from its begin.  No two levels have the same pair. */

typedef enum memo_segment_type { /* the numbers of FlexFlashAttention's attn_type_map */
                                 MEMO_SEGMENT_FULL = 0,
                                 MEMO_SEGMENT_CAUSAL,
                                 MEMO_SEGMENT_INVERSE,
                                 MEMO_SEGMENT_BAND,
                                 MEMO_N_SEGMENT_TYPES
} memo_segment_type;

typedef struct memo_segment {
    int64_t q_begin, q_end, k_begin, k_end;
    memo_segment_type type;
    int32_t level; /* from 0 to MEMO_LEVELS_MAX - 1 */
} memo_segment;
#define MEMO_LEVELS_MAX 32

/* The keys [*begin, *end) that query q of a segment sees. */
MEMO_API void memo_segment_keys(const memo_segment* segment, int64_t q, int64_t* begin,
                                int64_t* end);

/* --- masks --- */

/* Positions from 0: of queries to the sharding's n_tokens, of keys to the key_sharding's.  A query
 * without a segment sees nothing. */
typedef struct memo_mask {
    const memo_segment* segments; /* (n_segments) */
    int64_t n_segments;
} memo_mask;

typedef enum memo_mask_kind {
    MEMO_MASK_CAUSAL = 0, /* a query sees the keys up to its own position */
    MEMO_MASK_FULL,
    MEMO_N_MASK_KINDS
} memo_mask_kind;

/* Packed documents.  The conditions hold together. */
typedef struct memo_mask_desc {
    memo_mask_kind kind;
    /* A query at position p sees keys in (p - window_before, p + window_after); 0: no limit.
     * CAUSAL is window_after 1. */
    int64_t window_before, window_after;
    /* Beside a window before, of a causal mask: a query also sees the first keys of its document,
     * up to its own position.  Level 1.  0: none. */
    int64_t n_first_keys;
    int64_t n_tokens; /* queries */
    int64_t n_keys;   /* 0: first_query + n_tokens */
    /* The position of query 0 among the keys: queries are a slice of a longer sequence.  Below 0:
     * queries before all keys. */
    int64_t first_query;
    /* n_documents + 1 positions of keys from 0 to n_keys, not descending (cu_seqlens).  A query
     * sees only keys of the same document; outside of all documents, none.  NULL: one document.
     * Chunked attention is a document for each chunk. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* A tree of documents, so that many answers share one prompt: a query also sees all keys of the
     * parent of its document, of the parent's parent, and so on, each at a level of its own.
     * document_parents[i] (n_documents) is an earlier document, or -1.  Documents are in preorder:
     * the parent of document i is i - 1 or one of its ancestors.  At most MEMO_TREE_DEPTH_MAX
     * ancestors.  Not with windows or first_query.  NULL: no document has a parent. */
    const int64_t* document_parents;
} memo_mask_desc;
#define MEMO_TREE_DEPTH_MAX (MEMO_LEVELS_MAX - 1)

/* Each of these sets *n_segments, and unless segments is NULL writes as many.  Errors:
 * INVALID_ARGUMENT.
 *
 * Documents have at most 4 segments each within themselves, and one for each ancestor. */
MEMO_TRY memo_status memo_mask_documents(const memo_mask_desc* desc, memo_segment* segments,
                                         int64_t* n_segments, memo_error* error);
/* Query i sees the keys [key_first[i], key_end[i]) (n_tokens each), ends that do not descend:
 * images that attend within themselves, prefixes that all queries see. */
MEMO_TRY memo_status memo_mask_intervals(const int64_t* key_first, const int64_t* key_end,
                                         int64_t n_tokens, int64_t n_keys, memo_segment* segments,
                                         int64_t* n_segments, memo_error* error);
/* Cross-attention: queries of document i see all keys of document i.  (n_documents + 1) each. */
MEMO_TRY memo_status memo_mask_cross(const int64_t* query_begins, const int64_t* key_begins,
                                     int64_t n_documents, memo_segment* segments,
                                     int64_t* n_segments, memo_error* error);

/* --- the segments of a block --- */

/* What a local attention gets beside segments on the host: arrays in device memory. */
typedef enum memo_launch_kind {
    MEMO_LAUNCHES_NONE = 0,
    MEMO_LAUNCHES_RANGES, /* ranges and types: FlexFlashAttention, one call */
    MEMO_LAUNCHES_VARLEN, /* these, and launches of FlashAttention 2 and 3 */
    MEMO_LAUNCHES_RAGGED, /* these, and launches of cuDNN, whose INVERSE is from_top */
    MEMO_N_LAUNCH_KINDS
} memo_launch_kind;

/* Sequences that one call of a fused kernel computes; no two of a launch share queries or keys.
 * Query i of nq sees key j of nk, both counted within their sequence, if
 *     i + nk - nq - left <= j <= i + nk - nq + right
 *
 *   FlashAttention 3   cu_seqlens are begins; with has_gaps seqused are counts; causal if left is
 *                      -1 and right 0, otherwise window_size (left, right).  Its backward sets
 *                      gradients: let it write to scratch memory, and add the rows of sequences
 *   FlashAttention 2   has no seqused in backward: a gap is two sequences more, of queries without
 *                      keys and of keys without queries
 *   cuDNN              ragged offsets are begins x the elements of a row, lengths are counts.
 *                      Right 0: BOTTOM_RIGHT with right bound 0; a window also has the left bound
 *                      left + 1; from_top: TOP_LEFT with left bound 1 */
typedef struct memo_launch {
    int32_t n;            /* sequences */
    int32_t left, right;  /* -1: no limit */
    int32_t from_top;     /* 1: the left limit is i - left <= j */
    int32_t max_q, max_k; /* of the longest sequences */
    int32_t has_gaps;     /* rows lie between sequences */
    /* In device memory, rows of the block: begins are (n + 1), counts are (n). */
    const int32_t *q_begins, *q_counts, *k_begins, *k_counts;
    /* The same in host memory: one or two segments a sequence.  For a kernel that computes what
     * another cannot. */
    int32_t n_segments;
    const memo_segment* segments;
} memo_launch;

/* Segments of rows, of one level.  In a causal document that is cut zigzag, a rank's own keys are
 * one CAUSAL segment, and the keys of another rank one FULL segment.  Arrays stay unchanged until
 * the stream has passed. */
typedef struct memo_segments {
    int32_t n;
    const memo_segment* host; /* (n), in host memory */
    /* In device memory, as memo_attention.launches says; otherwise NULL. */
    const int32_t *q_ranges, *k_ranges, *types; /* (n, 2), (n, 2), (n) */
    int32_t n_launches;
    const memo_launch* launches; /* (n_launches), in host memory */
} memo_segments;

/* Rows are the positions of q_runs and k_runs in their order, without padding.  Element e of head h
 * of row i of sequence b of q is at
 *     q[b * q_batch_stride + i * q_row_stride + h * head_size + e].
 * The strides of q, k, v and out apply to d_q, d_k, d_v and d_out too.  Heads of v, out and their
 * gradients have v_head_size elements.  lse and row_dots have a number per row and head, with the
 * strides of lse.  Strides count elements.  Query head h reads key head h / (n_q_heads /
 * n_kv_heads).  The n_batch sequences share the runs and the segments. */
typedef struct memo_attention_block {
    memo_type type;       /* of q, k, v, d_out: F32, BF16 or F16 */
    float scale;          /* of the scores */
    float softcap;        /* not 0: a score s becomes softcap * tanh(s / softcap) */
    int32_t first_q_head; /* of n_q_heads of the desc, for biases by head such as ALiBi's */
    int32_t n_batch, n_q_heads, n_kv_heads;
    int32_t head_size, v_head_size; /* of q and k; of v and out */
    int32_t n_q_runs, n_k_runs;
    const memo_run *q_runs, *k_runs; /* unchanged until the stream has passed */
    memo_segments segments;          /* which pairs of rows there are, and no others */
    int64_t q_row_stride, q_batch_stride, k_row_stride, k_batch_stride, v_row_stride,
        v_batch_stride, out_row_stride, out_batch_stride, lse_row_stride, lse_batch_stride;
    const void *q, *k, *v, *d_out;
    float* out;             /* set by forward */
    float* lse;             /* set by forward, read by backward */
    const float* row_dots;  /* backward: sum of d_out * output over a head */
    float *d_q, *d_k, *d_v; /* backward adds here */
} memo_attention_block;

/* Enqueues on stream and returns.  block is valid only during the call.
 *   forward    the softmax over this block's keys: sets out and lse of the rows in segments, and
 *              no others
 *   backward   lse is over all keys, and row_dots belongs to the final output:
 *              P = exp(scale * q k - lse), d_v += P^T d_out, dS = P * (d_out v^T - row_dots),
 *              d_q += scale * dS k, d_k += scale * dS^T q
 *              With softcap, dS is multiplied by 1 - tanh^2.
 * Rows of k and v that no query of the block sees are finite numbers, but not always of their
 * positions.  A function that cannot do a block returns UNSUPPORTED.  The function may add biases
 * to scores, by head and by positions. */
typedef memo_status (*memo_attention_function)(void* user, memo_stream stream,
                                               const memo_attention_block* block,
                                               memo_error* error);

typedef struct memo_attention {
    memo_attention_function forward, backward; /* both are required */
    void* user;
    memo_launch_kind launches; /* device arrays of memo_segments that the functions read */
} memo_attention;

/* Latent keys (DeepSeek-V2's latent attention): keys and values are functions of narrow rows, which
 * travel instead.  The block is valid only during the call.  Rows and heads are contiguous. */
typedef struct memo_latent_block {
    memo_type type; /* of latent, k, v */
    int32_t first_kv_head, n_kv_heads;
    int64_t n_rows;
    const void* latent;     /* (n_rows, latent size) */
    void *k, *v;            /* (n_rows, n_kv_heads, head_size or v_head_size); expand sets both */
    const float *d_k, *d_v; /* reduce reads these, alike */
    float* d_latent;        /* reduce adds here */
} memo_latent_block;

/* Enqueues on stream and returns.
 *   expand   k and v of rows that have arrived, for heads that the caller's queries read
 *   reduce   d_latent += the gradient of the latent rows, before it travels.  Sums gradients of
 *            weights, too: over all ranks of memo_mesh.gradient they are complete.  k, v: undefined
 * Rows that no query sees are finite, but not always of their positions. */
typedef memo_status (*memo_latent_function)(void* user, memo_stream stream,
                                            const memo_latent_block* block, memo_error* error);

typedef struct memo_latent {
    int32_t size;    /* elements of a row; 0: keys and values travel */
    int32_t n_heads; /* key heads expanded at a time, which scratch memory holds; 0: all */
    memo_latent_function expand, reduce;
    void* user;
} memo_latent;
