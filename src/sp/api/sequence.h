#pragma once
/* ---- 13 sequence: attention of all layers in one object -----------------------------------------
 *
 * Chapters 3 and 7 in six calls.  The object keeps LSEs and saved tensors of all layers.  Attention
 * is causal within documents, which may have parents, and has a window if the desc has one.  The
 * sharding is "documents".  Other masks, slices, sinks and cross-attention take chapters 3 to 7.
 * The head of this file has an example. */

typedef struct memo_sequence_desc {
    const memo_device* device;
    memo_stream stream; /* runs the layers */
    /* Ranks that share the sequence: memo_mesh.sequence, or a world; NULL: one.  Each runs of
     * `ulysses` consecutive ranks (0: 1) shares heads; these groups are a ring. */
    memo_comm* comm;
    int32_t ulysses;
    int32_t nodes; /* that the ring spans (chapter 6); 0: 1 */
    int64_t n_tokens;
    int32_t n_batch, n_layers; /* 0: 1; sequences of a batch have the same documents */
    /* As in memo_sp_attention_desc. */
    int32_t n_q_heads, n_kv_heads, head_size, v_head_size;
    memo_latent latent;
    memo_type type;
    float scale, softcap;
    int32_t sends_again, rounds_gradients, ulysses_groups;
    memo_attention attention;
    int32_t has_trees; /* 1: memo_sequence_begin may get document_parents */
    int64_t window;    /* a query sees fewer than `window` tokens back; 0: no limit */
} memo_sequence_desc;

typedef struct memo_sequence memo_sequence;

/* All ranks of comm must call this, each from its thread, and wait for each other.  Allocates from
 * the device: scratch, and for each layer its LSEs and saved tensors. */
MEMO_TRY memo_status memo_sequence_create(const memo_sequence_desc* desc, memo_sequence** sequence,
                                          memo_error* error);
MEMO_API void memo_sequence_destroy(memo_sequence* sequence);

/* Begins a batch, on all ranks with equal documents: document_begins (n_documents + 1 positions
 * from 0 to n_tokens, not descending; NULL: one document) is copied.  Waits for the desc's stream,
 * which may still use the batch before.  Computes and allocates on the host.  After a failure no
 * batch has begun.  COMM may come from a later call.
 *
 * document_parents (memo_mask_desc.document_parents; NULL: none) is copied, too: several answers to
 * one prompt, which is in the batch once.  Positions of a document follow those of its parent.
 * Labels end with each document: if a parent's last token has to predict the first token of each
 * child, let each child begin with a copy of that token instead. */
MEMO_TRY memo_status memo_sequence_begin(memo_sequence* sequence, const int64_t* document_begins,
                                         const int64_t* document_parents, int64_t n_documents,
                                         memo_error* error);

/* The batch's sharding, for labels, and to scatter and gather rows; NULL before the first batch. */
MEMO_API const memo_sharding* memo_sequence_get_sharding(const memo_sequence* sequence);
/* positions[rows of this rank]: of each row, counted from the begin of its document, behind its
 * ancestors, for rotary embeddings.  A batch must have begun. */
MEMO_API void memo_sequence_get_positions(const memo_sequence* sequence, int64_t* positions);

/* Passes.  q and out are (n_batch, local_tokens, n_q_heads, head_size or v_head_size), k and v have
 * n_kv_heads, all contiguous in device memory, with local_tokens = n_tokens / ranks, rounded up.
 * Latent keys are k, and v is NULL.  attend keeps the layer's LSEs for attend_backward, which takes
 * the same q, k, v and out, and sets d_q, d_k and d_v.  INVALID_STATE: no batch has begun. */
MEMO_TRY memo_status memo_sequence_attend(memo_sequence* sequence, int32_t layer, const void* q,
                                          const void* k, const void* v, void* out,
                                          memo_error* error);
MEMO_TRY memo_status memo_sequence_attend_backward(memo_sequence* sequence, int32_t layer,
                                                   const void* q, const void* k, const void* v,
                                                   const void* out, const void* d_out, void* d_q,
                                                   void* d_k, void* d_v, memo_error* error);
