#pragma once
/* ---- 7 hybrid: attention over ulysses x ring ranks ----------------------------------------------
 *
 * Create an object per rank and shape, and an exchange per batch and kind of mask, alike on all
 * ranks of the mesh's sequence group; both serve all layers.  A degree of 1 costs nothing: no copy,
 * no message, no buffer.
 *
 * Slices.  A layer of a long sequence may be computed slice by slice (slice_tokens of a sharding).
 * Each slice has an attention of its own: sharding and key_sharding are of memo_sharding_slice, and
 * first_query of memo_mask_desc is the slice's first token.  k and v are this rank's rows of the
 * slices so far.  Backward sets their gradients, which the caller adds up over slices. */

typedef struct memo_sp_attention_desc {
    const memo_device* device; /* optional for get_sizes */
    /* Runs all but exchanges of the ring and, with several ulysses_groups, of Ulysses.  Not NULL:
     * pass a handle of CUDA's default stream, also in chapters 9, 10 and 12. */
    memo_stream stream;
    /* memo_mesh.ring and .ulysses; NULL if the degree is 1, and for get_sizes. */
    memo_comm *ring, *ulysses;
    int32_t ring_rank, ulysses_rank; /* used if ring or ulysses is NULL */
    /* A ring over nodes, whose ranks at the same place of each node are `nodes`: memo_mesh.nodes.
     * Each row crosses to a node once (chapter 6).  NULL: none.  n_nodes: used if it is NULL. */
    memo_comm* nodes;
    int32_t n_nodes;
    memo_sharding sharding;
    /* 0: 1.  Of a ring at most about max_waiting / 4: more fail in forward.  Up to 63 its groups
     * have at most 256 messages; NCCL is known to hang with more. */
    int32_t n_batch;
    /* The masks of an exchange: 1 (or 0) for all sequences of the batch, or n_batch in an array, so
     * that each sequence has separate documents. */
    int32_t n_masks;
    /* 1: masks may have several levels, which are merged in scratch memory. */
    int32_t has_levels;
    /* Cross-attention: the sharding of k and v, of any length and kind, with the same ring and
     * ulysses.  Empty: keys have the queries' sharding. */
    memo_sharding key_sharding;
    /* n_q_heads must be a multiple of n_kv_heads.  head_size: of q and k.  v_head_size: of v and
     * out; 0: head_size.  The local attention may limit both. */
    int32_t n_q_heads, n_kv_heads, head_size, v_head_size;
    /* Not 0 in latent.size: k and d_k are latent rows, and v and d_v NULL.  n_kv_heads, head_size
     * and v_head_size are of the expanded keys and values, which exist on their readers only. */
    memo_latent latent;
    memo_type type; /* F32, BF16, F16; lse, sinks and d_sinks are fp32 */
    float scale;    /* 0: 1 / sqrt(head_size) */
    float softcap;  /* of the scores, as in memo_attention_block; 0: none */
    /* 1: d_k and d_v travel in the tensors' type, so each step's contribution is rounded once. */
    int32_t rounds_gradients;
    /* If ulysses > 1, backward needs q, k and v by heads.  0: tensors.saved keeps them; 1: backward
     * sends them again. */
    int32_t sends_again;
    /* Groups of heads per rank (chapter 5); 0: 1.  The all-to-all of a group overlaps the attention
     * of another.  Scratch memory holds one group; what arrives during another group exists twice.
     * ulysses * ulysses_groups must divide n_q_heads; not used if ulysses is 1. */
    int32_t ulysses_groups;
    memo_attention attention;
    /* memo_sp_attention_sizes.device_bytes, aligned to 512; NULL: allocated from the device. */
    void* device_memory;
} memo_sp_attention_desc;

/* The memory of a desc, before anything is allocated. */
typedef struct memo_sp_attention_sizes {
    int64_t device_bytes; /* scratch, shared by all layers */
    int64_t saved_bytes;  /* tensors.saved, kept from forward to backward */
    int64_t lse_bytes;    /* tensors.lse, kept from forward to backward */
    memo_ulysses_heads heads;
} memo_sp_attention_sizes;

/* A layer's tensors in device memory: the rows of this rank, contiguous.  q and d_q are (n_batch,
 * local_tokens, n_q_heads, head_size); k and d_k have n_kv_heads.  out and d_out are (n_batch,
 * local_tokens, n_q_heads, v_head_size); v and d_v have n_kv_heads.  k, v, d_k and d_v have the
 * local_tokens of key_sharding, if there is one.  Latent keys are k and d_k (n_batch, local_tokens,
 * latent.size).  Set the struct to zero first; unused fields are NULL. */
typedef struct memo_sp_attention_tensors {
    const void *q, *k, *v; /* not read by a backward with tensors.saved */
    void* out;             /* set by forward, read by backward */
    /* (n_batch, ring_tokens, heads.n_q), fp32; set by forward, read by backward; -inf for rows that
     * see nothing, such as padding, unless they have sinks.  With groups of heads the arrays of
     * the groups follow each other, each with the heads of its group. */
    float* lse;
    void* saved; /* NULL is allowed if saved_bytes is 0 */
    /* Attention sinks: a logit per query head (n_q_heads), fp32, equal on all ranks, takes part in
     * the softmax of every row and has no value.  A row that sees no key has its head's sink as
     * LSE.  NULL, or -inf for a head: none.  Backward sets d_sinks (n_q_heads): the sum over the
     * rows and heads that this rank computes, 0 for other heads.  Sum it over memo_mesh.gradient,
     * as parameter gradients. */
    const float* sinks;
    float* d_sinks;
    const void* d_out; /* backward only, as are d_q, d_k and d_v */
    /* Set by backward.  If ring * ulysses is more than 1, d_k may be k and d_v may be v. */
    void *d_q, *d_k, *d_v;
} memo_sp_attention_tensors;

typedef struct memo_sp_attention memo_sp_attention;

MEMO_TRY memo_status memo_sp_attention_desc_get_sizes(const memo_sp_attention_desc* desc,
                                                      memo_sp_attention_sizes* sizes,
                                                      memo_error* error);
/* Each rank calls this independently. */
MEMO_TRY memo_status memo_sp_attention_create(const memo_sp_attention_desc* desc,
                                              memo_sp_attention** attention, memo_error* error);
/* Call before the stream, the device and the communicators are destroyed. */
MEMO_API void memo_sp_attention_destroy(memo_sp_attention* attention);

typedef struct memo_exchange_desc {
    /* The attention's desc.n_masks, read by memo_exchange_create alone; NULL: causal within the
     * documents of the keys' sharding, with their parents. */
    const memo_mask* masks;
    /* For a batch with other tokens and documents.  Its kind, degrees and rows of a rank must match
     * the desc's.  NULL: the desc's.  Its arrays are borrowed until the exchange is destroyed. */
    const memo_sharding* sharding;
    int32_t has_sinks; /* 1: passes get tensors.sinks; 0: they do not */
    /* For the device arrays of memo_segments, until the exchange is destroyed: device_bytes bytes,
     * aligned to 16.  NULL: allocated from the device.  Not used with MEMO_LAUNCHES_NONE. */
    void* device_memory;
    int64_t device_bytes;
} memo_exchange_desc;

/* Device bytes that are enough for an exchange whose masks have n_segments together. */
MEMO_API int64_t memo_exchange_device_bytes(const memo_sp_attention_desc* desc, int64_t n_segments);

/* Which rows travel in which step, and what each step computes. */
typedef struct memo_exchange memo_exchange;

/* All ranks of the sequence group must call this, as a pass.  Computes and allocates on the host
 * what passes need, so that passes do neither.  Enqueues a barrier of ring and ulysses, which
 * compares descs, shardings and masks of all ranks; passes compare nothing on NCCL.  COMM may come
 * from a later call. */
MEMO_TRY memo_status memo_exchange_create(memo_sp_attention* attention,
                                          const memo_exchange_desc* desc, memo_exchange** exchange,
                                          memo_error* error);
/* Call before memo_sp_attention_destroy, on the thread of passes.  Waits for nothing: memory is
 * freed, or serves another exchange, when the stream has passed. */
MEMO_API void memo_exchange_destroy(memo_exchange* exchange);

/* Passes of the sequence group.  Pass the same exchange to forward and backward.  Gradients of
 * padding rows are 0.  After a failure the results are undefined.  UNSUPPORTED: the device has no
 * row kernels, which every backward needs, and a forward with rows that see nothing. */
MEMO_TRY memo_status memo_sp_attention_forward(memo_sp_attention* attention,
                                               const memo_exchange* exchange,
                                               const memo_sp_attention_tensors* tensors,
                                               memo_error* error);
MEMO_TRY memo_status memo_sp_attention_backward(memo_sp_attention* attention,
                                                const memo_exchange* exchange,
                                                const memo_sp_attention_tensors* tensors,
                                                memo_error* error);
