#pragma once
/* ---- 13 sequence: attention of all layers in one object -----------------------------------------
 *
 * Chapters 3 and 7 in a few calls.  A sequence has what all batches share.  A batch has documents,
 * and any number of batches is in flight, as in a pipeline.  Attention is causal within documents,
 * which may have parents, and has a window if the desc has one.  The sharding is "documents".
 * Other masks, slices, sinks and cross-attention take chapters 3 to 7.  The head of this file has
 * an example. */

typedef struct memo_sequence_desc {
    const memo_device* device;
    memo_stream stream; /* runs the layers */
    /* Ranks that share the sequence: memo_mesh.sequence, or a world; NULL: one.  Each runs of
     * `ulysses` consecutive ranks (0: 1) shares heads; these groups are a ring. */
    memo_comm* comm;
    int32_t ulysses;
    int32_t nodes;             /* that the ring spans (chapter 6); 0: 1 */
    int64_t n_tokens;          /* of a batch, at most */
    int32_t n_batch, n_layers; /* 0: 1; sequences of a batch have the same documents */
    /* As in memo_sp_attention_desc. */
    int32_t n_q_heads, n_kv_heads, head_size, v_head_size;
    memo_latent latent;
    memo_type type;
    float scale, softcap;
    int32_t sends_again, rounds_gradients, ulysses_groups;
    memo_attention attention;
    int32_t has_trees; /* 1: batches may have document_parents */
    int64_t window;    /* a query sees fewer than `window` tokens back; 0: no limit */
    /* Batches that the sequence has memory for, to keep lse and saved of all layers from forward to
     * backward; 0: 1.  -1: none, passes get tensors.lse and tensors.saved, which a session can
     * keep. */
    int32_t n_in_flight;
} memo_sequence_desc;

typedef struct memo_sequence memo_sequence;

/* All ranks of comm must call this, each from its thread, and wait for each other.  Allocates from
 * the device: scratch, and the memory of n_in_flight batches. */
MEMO_TRY memo_status memo_sequence_create(const memo_sequence_desc* desc, memo_sequence** sequence,
                                          memo_error* error);
/* Destroy the batches first. */
MEMO_API void memo_sequence_destroy(memo_sequence* sequence);
/* lse_bytes and saved_bytes: of a layer of a batch. */
MEMO_API memo_sp_attention_sizes memo_sequence_get_sizes(const memo_sequence* sequence);

/* What passes keep, as items of a session: then it is in the session's budget, stays or travels,
 * and the sequence takes n_in_flight -1.
 *
 *     memo_sequence_get_items(sequence, &tensors[LSE]);  // and tensors[LSE + 1]
 *     desc.n_rows = n_batch * local_tokens;              // the rows of this rank
 *     ...
 *     t.lse = memo_session_get_address(session, layer, LSE);
 *     t.saved = memo_session_get_address(session, layer, LSE + 1);
 *
 * items[0] is "lse", items[1] "q_k_v_by_heads", which is absent (row_bytes 0) if nothing is
 * saved; both MOVE, as their rows are by heads.  The second may be WHOLE if `recompute` calls
 * memo_sequence_batch_attend. */
MEMO_API void memo_sequence_get_items(const memo_sequence* sequence, memo_item items[2]);

/* Equal on all ranks.  Everything is copied. */
typedef struct memo_sequence_batch_desc {
    int64_t n_tokens; /* 0: the sequence's.  Rows without tokens cost no scores */
    /* n_documents + 1 positions from 0 to n_tokens, not descending; NULL: one document. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* As in memo_mask_desc; NULL: none.  Several answers to one prompt, which is in the batch once:
     * positions of a document follow those of its parent.  Labels end with each document.  If a
     * parent's last token has to predict the first token of each child, let each child begin with a
     * copy of that token instead. */
    const int64_t* document_parents;
} memo_sequence_batch_desc;

typedef struct memo_sequence_batch memo_sequence_batch;

/* Computes and allocates on the host alone, and waits for nothing.  Any thread may call this, such
 * as a loader's, while passes of other batches run. */
MEMO_TRY memo_status memo_sequence_batch_create(memo_sequence* sequence,
                                                const memo_sequence_batch_desc* desc,
                                                memo_sequence_batch** batch, memo_error* error);
/* On the thread of passes; before the first pass on any thread.  Waits for nothing, as
 * memo_exchange_destroy. */
MEMO_API void memo_sequence_batch_destroy(memo_sequence_batch* batch);

/* For labels, and to scatter and gather rows; lives as long as the batch. */
MEMO_API const memo_sharding* memo_sequence_batch_get_sharding(const memo_sequence_batch* batch);
/* positions[rows of this rank]: of each row, counted from the begin of its document, behind its
 * ancestors, for rotary embeddings. */
MEMO_API void memo_sequence_batch_get_positions(const memo_sequence_batch* batch,
                                                int64_t* positions);

/* Passes of a layer, in any order of batches and layers, the same on all ranks.  A forward may come
 * again, as recomputation.  Its backward comes once, with the same q, k, v and out, and lse and
 * saved at the same addresses.  If tensors.lse and saved are NULL, the sequence keeps them: for
 * n_in_flight batches, each from its first forward until it is destroyed.
 *
 * The first pass of a batch also compares it on all ranks (COMM may come from a later call), and
 * uploads the segments that the local attention reads on the device.  It allocates for these only
 * if they need more memory than those of earlier batches; do not capture it in a graph.
 *
 * INVALID_STATE: no memory for one more batch in flight; a backward without a forward, a second one
 * or with another lse; the batch was destroyed, as far as its memory still shows that. */
MEMO_TRY memo_status memo_sequence_batch_attend(memo_sequence_batch* batch, int32_t layer,
                                                const memo_sp_attention_tensors* tensors,
                                                memo_error* error);
MEMO_TRY memo_status memo_sequence_batch_attend_backward(memo_sequence_batch* batch, int32_t layer,
                                                         const memo_sp_attention_tensors* tensors,
                                                         memo_error* error);
