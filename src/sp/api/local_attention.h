#pragma once
/* ---- 4 local attention: a block of queries against a block of keys ------------------------------
 *
 * A callback computes a step of the ring on a rank, so that any kernel can be used.  The callback
 * gets queries and keys at known positions, and a mask over positions.  Exact
 * callbacks are in examples/: host_attention.h, and exact_attention.h for GPUs. */

typedef enum memo_mask_kind {
    MEMO_MASK_CAUSAL = 0, /* a query sees the keys up to its own position */
    MEMO_MASK_FULL,
    MEMO_N_MASK_KINDS
} memo_mask_kind;

/* The keys that a query sees are always an interval of positions.  Neither end descends from a
 * query to the next.  key_first and key_end give the interval; without these, the interval follows
 * from the other fields, whose conditions hold together.  Arrays are in host memory and must stay
 * unchanged until the stream has passed. */
typedef struct memo_mask {
    memo_mask_kind kind;
    /* A query at position p sees keys in (p - window_before, p + window_after); 0: no limit.
     * CAUSAL is window_after 1. */
    int64_t window_before, window_after;
    int64_t n_tokens; /* queries from n_tokens on are padding and see nothing */
    /* Keys from n_keys on are padding and are not seen; 0: first_query + n_tokens. */
    int64_t n_keys;
    /* The position of query 0 among the keys: queries are a slice of a longer sequence.  Beside
     * key_first, for kernels with biases by position.  Below 0: queries before all keys. */
    int64_t first_query;
    /* Packed documents (cu_seqlens): n_documents + 1 positions of keys from 0 to n_keys, not
     * descending.  A query sees only keys of the same document; outside of all documents, none.
     * NULL: one document.  Chunked attention is a document for each chunk. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* A tree of documents, so that many answers share one prompt: a query also sees all keys of the
     * parent of its document, of the parent's parent, and so on.  document_parents[i] (n_documents)
     * is an earlier document, or -1.  Documents are in preorder: the parent of document i is i - 1
     * or one of its ancestors.  At most MEMO_TREE_DEPTH_MAX ancestors.  Not with windows,
     * first_query or a key_sharding.  The local attention is called for each level of the tree, and
     * its masks have no parents.  NULL: no document has a parent. */
    const int64_t* document_parents;
    /* Query i sees the keys [key_first[i], key_end[i]) (n_tokens each): images that attend within
     * themselves, prefixes that all queries see, documents of cross-attention.  kind is then not
     * used; windows must be 0 and documents NULL.  NULL: the fields above. */
    const int64_t *key_first, *key_end;
} memo_mask;

#define MEMO_TREE_DEPTH_MAX 31

/* A query sees the keys at positions [*begin, *end); begin = end if there are none.  Keys of
 * parents are not among these.  O(log n_documents). */
MEMO_API void memo_mask_interval(const memo_mask* mask, int64_t query, int64_t* begin,
                                 int64_t* end);

/* Rows are the positions of q_runs and k_runs in their order, without padding if the device has row
 * kernels.  Element e of head h of row i of sequence b of q is at
 *     q[b * q_batch_stride + i * q_row_stride + h * head_size + e].
 * The strides of q, k, v and out apply to d_q, d_k, d_v and d_out too.  Heads of v, out and their
 * gradients have v_head_size elements.  lse and row_dots have a number per row and head, with the
 * strides of lse.  Strides count elements.  Query head h reads key head h / (n_q_heads /
 * n_kv_heads).  The n_batch sequences share the runs and the mask. */
typedef struct memo_attention_block {
    memo_type type;       /* of q, k, v, d_out: F32, BF16 or F16 */
    float scale;          /* of the scores */
    float softcap;        /* not 0: a score s becomes softcap * tanh(s / softcap) */
    int32_t first_q_head; /* of n_q_heads of the desc, for biases by head such as ALiBi's */
    int32_t n_batch, n_q_heads, n_kv_heads;
    int32_t head_size, v_head_size; /* of q and k; of v and out */
    int32_t n_q_runs, n_k_runs;
    const memo_run *q_runs, *k_runs; /* unchanged until the stream has passed */
    memo_mask mask;
    int64_t q_row_stride, q_batch_stride, k_row_stride, k_batch_stride, v_row_stride,
        v_batch_stride, out_row_stride, out_batch_stride, lse_row_stride, lse_batch_stride;
    const void *q, *k, *v, *d_out;
    float* out;             /* set by forward */
    float* lse;             /* set by forward, read by backward */
    const float* row_dots;  /* backward: sum of d_out * output over a head */
    float *d_q, *d_k, *d_v; /* backward adds here */
} memo_attention_block;

/* Enqueues on stream and returns.  block is valid only during the call.
 *   forward    the softmax over this block's keys: sets out and lse.  A row that sees no key gets
 *              out 0 and lse -inf.
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
