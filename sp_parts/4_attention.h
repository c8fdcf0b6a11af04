/* ---- 4 local attention: a block of queries against a block of keys -----------------------------------
 *
 * What a rank computes in one step of the ring is a callback, so that any kernel can do it: queries at known
 * positions against keys at known positions, under a mask that is stated in positions.  Supplied is an exact one for
 * the host device. */

typedef enum memo_mask_kind {
    MEMO_MASK_CAUSAL = 0, /* a query sees the keys up to its own position */
    MEMO_MASK_FULL
} memo_mask_kind;

/* Which keys a query sees: always an interval of positions, whose ends do not fall as the query moves on.  All
 * conditions hold together. */
typedef struct memo_mask {
    memo_mask_kind kind;
    int64_t window;   /* only keys less than this many positions away; 0: any */
    int64_t n_tokens; /* positions from here on are padding: they see and are seen by nobody */
    /* Documents packed into the sequence (cu_seqlens), n_documents + 1 positions, 0 the first, n_tokens the last,
     * ascending: only keys of the query's own document; the same for all sequences of a batch.  Host memory that stays
     * untouched until the stream has passed.  NULL: one document. */
    const int64_t* document_begins;
    int64_t n_documents;
} memo_mask;

MEMO_API memo_mask memo_mask_default(void);
/* The keys that a query sees are those at positions [*begin, *end); none: begin = end.  O(log n_documents). */
MEMO_API void memo_mask_interval(const memo_mask* mask, int64_t query, int64_t* begin,
                                 int64_t* end);
/* How many pairs (query, key) the mask lets through.  O(queries). */
MEMO_API int64_t memo_mask_count(const memo_mask* mask, const memo_run* q_runs, int32_t n_q_runs,
                                 const memo_run* k_runs, int32_t n_k_runs);

/* Rows are the positions of q_runs and k_runs in their order.  Heads of a row lie side by side: element e of head h of
 * row i of batch b of q is at b * q_batch_stride + i * q_row_stride + h * head_size + e.  d_out, out and d_q are
 * strided as q; v, d_k, d_v as k; lse and row_dots (a number a row and head) as lse.  Query head h reads key head
 * h / (n_q_heads / n_kv_heads).  Strides count elements. */
typedef struct memo_attention_block {
    memo_type type; /* of q, k, v, d_out: F32, BF16 or F16 */
    float scale;    /* of the scores */
    int32_t n_batch, n_q_heads, n_kv_heads, head_size;
    int32_t n_q_runs, n_k_runs;
    const memo_run *q_runs, *k_runs; /* untouched until the stream has passed */
    memo_mask mask;
    int64_t q_row_stride, q_batch_stride, k_row_stride, k_batch_stride, lse_row_stride,
        lse_batch_stride;
    const void *q, *k, *v, *d_out;
    float* out; /* forward: set */
    float* lse; /* log of the sum of exp(scale * q k): set by forward, read by backward */
    const float* row_dots;  /* backward: sum of d_out * output over a head */
    float *d_q, *d_k, *d_v; /* backward: added to */
} memo_attention_block;

/* Enqueues on stream and returns; block itself is only valid during the call.
 *   forward    the softmax over this block's keys alone: out and lse; out 0 and lse -inf for a row that sees none
 *   backward   lse is that of all keys, row_dots that of the final output: P = exp(scale * q k - lse),
 *              d_v += P^T d_out, dS = P * (d_out v^T - row_dots), d_q += scale * dS k, d_k += scale * dS^T q */
typedef memo_status (*memo_attention_function)(void* user, memo_stream stream,
                                               const memo_attention_block* block,
                                               memo_error* error);

typedef struct memo_attention {
    memo_attention_function forward, backward;
    void* user;
} memo_attention;

#ifndef MEMO_NO_HOST_DEVICE

/* An exact attention for the host device: tiles, fp32 sums, work outside of the mask skipped.  head_size at most
 * MEMO_HOST_ATTENTION_HEAD_SIZE.  Keep the state as long as the attention is used. */
#define MEMO_HOST_ATTENTION_HEAD_SIZE 256
typedef struct memo_host_attention {
    memo_device* device;
    int64_t
        n_scores; /* computed so far, masked ones of a tile not counted; read after synchronisation */
} memo_host_attention;

MEMO_API memo_attention memo_host_attention_functions(memo_host_attention* state);

#endif
