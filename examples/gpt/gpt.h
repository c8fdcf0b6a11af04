/* gpt.h - a byte-level GPT on memo: which operation runs where, and where its tensors lie.
 *
 * The math is in gpt_math.h; the other files are what memo has to do with it.  All device memory comes from one
 * arena: parameters, gradients, Adam's moments and the swap engine's rounding buffers are requested
 * before the first micro-batch (persistent), everything else inside it.  Every operation is
 * enqueued on one compute stream of the host device and announced to the device table, so that a
 * recorder sees which bytes it reads and writes.
 *
 * A layer (pre-norm):  input -> norm1 -> q, k, v -> RoPE -> causal attention -> projection ->
 * dropout
 * -> + input = middle -> norm2 -> up (4h) -> GELU -> down -> dropout -> + middle.
 *
 * Every product over tokens is done in tiles of config.tile_rows rows, under every policy, and the
 * border between swapped and recomputed rows lies between two tiles.  So a row is recomputed in the
 * company in which it was first computed, and all policies give the same bits.
 *
 * Ranks split the sequences of a micro-batch (data) and the tokens of each sequence (ring x ulysses,
 * zigzag); all that knows of it is which tokens a row of this rank is (gpt_share), attention, and
 * what is summed at the end of a step.  The optimizer is split as config.zero says.
 *
 * A layer is two blocks, attention and MLP, each a function on a range of rows.  The plain model calls
 * them one after the other; split by columns (tensor), and into sub-batches that overlap with sums
 * over ranks, they are called by memo_blocks: gpt_tensor.h.
 *
 * This file is the interface.  The implementation, in reading order:
 *
 *     gpt_math.h        products, norm, attention, ... on arrays, without memo
 *     gpt_threads.h     helper threads that share an operation
 *     gpt_layout.h      where parameters lie, which rows a rank has, which tensors a layer saves
 *     gpt_enqueue.h     what runs on the compute stream, in memory from the arena
 *     gpt_layer.h       a layer: two blocks, forward and backward
 *     gpt_parallel.h    sums over ranks, ZeRO, the update
 *     gpt_tensor.h      the two blocks split over tensor ranks and sub-batches
 *     gpt_model.h       a micro-batch, a step, create and destroy, planning
 *     gpt_generate.h    continues a text
 *
 * Single translation unit: everything is static.  GPT_DOUBLE computes in double precision. */
#ifndef GPT_H
#define GPT_H

#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "gpt_math.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct gpt_config {
    int32_t n_layers, hidden;
    int32_t n_heads,
        n_kv_heads;          /* hidden % n_heads = 0, n_heads % n_kv_heads = 0, head size even */
    int64_t sequence, batch; /* a micro-batch has batch * sequence rows (tokens) */
    int64_t tile_rows;       /* rows of a GEMM and of the split between swapped and recomputed */
    double dropout;          /* in [0, 1): embedding, after the projection, after the MLP */
    uint64_t seed;           /* of the initial parameters and of dropout */

    /* Ranks that train together: batch and sequence above are those of all ranks. */
    int32_t data;          /* ranks that split the batch, batch % data = 0; 0: 1 */
    int32_t ring, ulysses; /* ranks that split each sequence; 0: 1 */
    /* Ranks that split each layer by heads and columns; 0: 1.  Heads of either kind are a multiple. */
    int32_t tensor;
    /* Parts of a rank's micro-batch whose sums over tensor ranks run behind each other's
     * computation; 0: 1.  Whole sequences each, or ranges of a single one. */
    int32_t sub_batches;
    /* (2 n_layers), of attention and MLP in turn, lent; NULL: all tensor.  Powers of two, tensor one
     * of them or larger.  Where a block has fewer ranks, the others take other rows: gpt_tensor.h. */
    const int32_t* degrees;
    memo_blocks_order schedule; /* of these; the losses are the same under all */
    int32_t zero; /* what data x ring x ulysses ranks split (ZeRO): 0 nothing, 1 Adam's moments, 2
                     also the gradient, summed over ranks after every micro-batch */
} gpt_config;

/* Usual tables of rows: gpt_fill_rows. */
typedef enum gpt_policy {
    GPT_POLICY_KEEP = 0,  /* every skeletal tensor of every layer stays on the device */
    GPT_POLICY_RECOMPUTE, /* only layer inputs stay; the rest is recomputed, attention too */
    GPT_POLICY_SWAP,      /* everything is swapped */
    GPT_POLICY_ALPHA,     /* input and attention output swapped, the other tensors by alpha */
    GPT_POLICY_MEMO       /* the same; a planner writes a better one */
} gpt_policy;

typedef struct gpt_desc {
    gpt_config config;
    /* (n_layers, GPT_N_TENSORS), lent until gpt_create returns: as in memo_swap_desc.  NULL: the
     * session chooses, by `session`. */
    const int64_t* rows;
    /* Budgets, profile, share with its user, spill and is_timed of the session that the model runs in,
     * lent until gpt_create returns; the model fills in the rest.  NULL: no limits. */
    const memo_session_desc* session;
    memo_device* host_device; /* where functions are launched; not of gpt_plan */
    /* The table that copies, events and announcements go to: host_device itself, or a recorder's or
     * a test's table around it; NULL: host_device. */
    const memo_device* device;
    const memo_mesh* mesh; /* of several ranks: of the config's degrees; not of gpt_plan */
} gpt_desc;

typedef struct gpt_model gpt_model;

/* Writes the table of a policy.  Errors: INVALID_ARGUMENT. */
GPT_FUNCTION memo_status gpt_fill_rows(const gpt_config* config, gpt_policy policy, double alpha,
                                       int64_t* rows, memo_error* error);
/* What the swap engine needs.  Errors: as gpt_create. */
GPT_FUNCTION memo_status gpt_swap_sizes(const gpt_desc* desc, memo_swap_sizes* sizes,
                                        memo_error* error);

/* Plans the rows and requests of one micro-batch, in a session that is a dry run.  Errors: as
 * gpt_create. */
GPT_FUNCTION memo_status gpt_plan(const gpt_desc* desc, memo_session** session, memo_error* error);

/* Creates the session, which measures where it has neither rows nor a profile and not everything fits,
 * and initializes the parameters from config.seed.  All ranks call it.  Errors: INVALID_ARGUMENT for an
 * impossible configuration; those of memo_session_create. */
GPT_FUNCTION memo_status gpt_create(const gpt_desc* desc, gpt_model** model, memo_error* error);
GPT_FUNCTION void gpt_destroy(gpt_model* model);

/* Pinned host memory beside the swap engine's: tokens on their way to the device, the loss back; a
 * multiple of 512, as the host device counts. */
GPT_FUNCTION int64_t gpt_staging_bytes(const gpt_config* config);

/* Rows (tokens, padding included) that a rank holds of a micro-batch. */
GPT_FUNCTION int64_t gpt_n_rows(const gpt_config* config);

/* Length of the flat array of parameters; each tensor begins at a multiple of 16, and each bucket
 * (embedding, a layer, final norm with classifier) can be split evenly among the ranks. */
GPT_FUNCTION int64_t gpt_n_parameters(const gpt_config* config);

/* Of a rank: Adam's moments; these with parameters and gradients. */
GPT_FUNCTION int64_t gpt_optimizer_bytes(const gpt_config* config);
GPT_FUNCTION int64_t gpt_state_bytes(const gpt_config* config);

/* The tensors in that array: 0 is the embedding, then 8 a layer, final norm, classifier. */
typedef struct gpt_parameter {
    const char* name;
    int64_t offset, n; /* of this rank */
    /* Element i is gpt_element_of_whole of the unsplit tensor. */
    int64_t n_columns, stride; /* columns of a row, here and of the whole */
    int64_t step;              /* from a rank's first element to the next one's */
    int32_t degree;            /* ranks that share it, side by side; 1: each has a copy */
    double initial_std;        /* 0: starts as ones and does not decay (the weight of a norm) */
} gpt_parameter;
GPT_FUNCTION int64_t gpt_n_parameter_tensors(const gpt_config* config);
GPT_FUNCTION gpt_parameter gpt_parameter_at(const gpt_config* config, int64_t index);
GPT_FUNCTION int64_t gpt_element_of_whole(const gpt_parameter* p, int32_t tensor_rank, int64_t i);

/* Enqueues forward and backward of one micro-batch; gradients and loss add up over the
 * micro-batches of a step.  tokens, targets: batch * sequence bytes each, of all ranks, copied
 * before it returns; target[t] follows token[t].  step and micro_batch key the dropout; loss_scale
 * is 1 / (tokens of the whole step, all ranks). After an error the step is lost, but not the model:
 * gpt_discard, then begin the step again; of several ranks none can go on.
 *
 * All ranks call this, gpt_update and gpt_reduce, in the same order. */
GPT_FUNCTION memo_status gpt_micro_batch(gpt_model* model, const uint8_t* tokens,
                                         const uint8_t* targets, int64_t step, int64_t micro_batch,
                                         double loss_scale, memo_error* error);

typedef struct gpt_update_desc {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double clip; /* largest norm of the whole gradient; 0: none */
    double vote; /* summed over ranks: gpt_votes */
} gpt_update_desc;
/* Sums over ranks, AdamW, then waits for the step; returns its mean loss (nats per byte) and the
 * norm of its gradient before clipping, over all ranks; clears gradients. */
GPT_FUNCTION memo_status gpt_update(gpt_model* model, const gpt_update_desc* desc, double* loss,
                                    double* gradient_norm, memo_error* error);
/* Sums the gradients over ranks, which ends the step's micro-batches; gpt_update does it too, where
 * it has not been done. */
GPT_FUNCTION memo_status gpt_reduce(gpt_model* model, memo_error* error);
/* The sum of all ranks' desc.vote in the last update: what all must agree on. */
GPT_FUNCTION double gpt_votes(const gpt_model* model);
/* The same without touching parameters or moments: waits, returns the loss of this rank's rows,
 * clears gradients. */
GPT_FUNCTION memo_status gpt_discard(gpt_model* model, double* loss, memo_error* error);

/* Waits for all that was enqueued. */
GPT_FUNCTION memo_status gpt_wait(gpt_model* model, memo_error* error);
/* Copies to and from caller's memory, gpt_n_parameters reals each, of this tensor rank; they wait
 * for what was enqueued.
 * Gradients are gpt_reduced first; where config.zero splits them, those of other ranks are 0. */
GPT_FUNCTION memo_status gpt_get_gradients(gpt_model* model, gpt_real* gradients,
                                           memo_error* error);
GPT_FUNCTION memo_status gpt_get_parameters(gpt_model* model, gpt_real* parameters,
                                            memo_error* error);
GPT_FUNCTION memo_status gpt_set_parameters(gpt_model* model, const gpt_real* parameters,
                                            memo_error* error);

/* Continues `text` (n_text bytes, of which the last `sequence` count; at least 1) by n_new sampled
 * bytes, on the host with a key-value cache, from a copy of the parameters; all tensor ranks call it.
 * Each byte sees the
 * `sequence` bytes before it.  temperature 0: always the likeliest. */
GPT_FUNCTION memo_status gpt_generate(gpt_model* model, const uint8_t* text, int64_t n_text,
                                      double temperature, uint64_t seed, uint8_t* result,
                                      int64_t n_new, memo_error* error);

/* The session, with what it chose, and the stream: for statistics and timelines. */
GPT_FUNCTION memo_session* gpt_session(gpt_model* model);
GPT_FUNCTION memo_stream gpt_compute_stream(gpt_model* model);
/* Sent so far to tensor ranks, as memo_comm counts. */
GPT_FUNCTION int64_t gpt_tensor_bytes(const gpt_model* model);

#endif
