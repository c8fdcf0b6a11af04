/* gpt.h - a byte-level GPT on memo: which operation runs where, and where its tensors lie.
 *
 * The math is in math.h; the other files use memo.  All device memory comes from one session.
 * Parameters, gradients and Adam's moments are states of the session: if they do not fit on the
 * device, they lie on the host and come layer by layer.
 * Every operation is enqueued on one compute stream, by a table of kernels.  It is announced to the
 * device table, so that a recorder sees which bytes it reads and writes.
 *
 * A query sees its own token and those before it: all of them, the last config.window, or those of
 * its document.  RoPE makes scores depend on distances only, so that positions need not begin again
 * with a document.
 *
 * A layer (pre-norm):  input -> norm1 -> q, k, v -> RoPE -> causal attention -> projection
 * -> dropout -> + input = middle -> norm2 -> up (4h) -> GELU -> down -> dropout -> + middle.
 * With SwiGLU (Shazeer 2020) up has 8h columns, up and gate in turn: up * silu(gate) replaces GELU.
 *
 * Under every policy, products over tokens run in tiles of config.tile_rows rows.  The border
 * between swapped and recomputed rows lies between two tiles.  A row is therefore recomputed in the
 * same tile as in the forward, and all policies give the same bits.
 *
 * Ranks split the sequences of a micro-batch (data) and the tokens of each sequence (ring x
 * ulysses, zigzag).  Only three parts depend on this split: the map from rows to tokens
 * (gpt_share), attention, and the sums at the end of a step.  config.zero selects how ranks split
 * the optimizer.
 *
 * A layer is two blocks, attention and MLP, each a function on a range of rows.  The plain model
 * calls them one after the other.  With tensor ranks or sub-batches, memo_blocks calls them:
 * tensor.h.
 *
 * This file is the interface; README.md lists the implementation in reading order. */
#ifndef GPT_H
#define GPT_H

#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "gpt/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum gpt_mlp { GPT_MLP_GELU = 0, GPT_MLP_SWIGLU, GPT_N_MLPS } gpt_mlp;

/* Adapters (LoRA, Hu et al. 2021): a product is x W^T + alpha / rank (x A^T) B^T.  W and all other
 * weights of the model are frozen; A (rank, inputs) and B (outputs, rank) train.  lora.h. */
typedef struct gpt_lora {
    int32_t rank; /* 0: no adapters, and all weights train */
    double alpha;
    uint32_t targets; /* bit i: products i of lora.h have adapters; 0: all */
} gpt_lora;

/* A mixture of experts, as Qwen3's: n MLPs in place of one.  A router gives each token a share of each,
 * softmax(W x); the token goes through the n_chosen with the largest shares, which weigh their
 * outputs.  experts.h. */
typedef struct gpt_experts {
    int32_t n; /* 0: one MLP for all tokens */
    int32_t n_chosen;
    int32_t is_normed; /* the shares of those that are chosen are divided by their sum */
} gpt_experts;

/* The gradient whose norm gpt_update_values.clip limits.  LAYER and BEFORE are other trainings
 * than STEP: they need no norm of a step that is not over, so that a layer can be updated in its last
 * backward. */
typedef enum gpt_clip {
    GPT_CLIP_STEP = 0, /* all of this step */
    GPT_CLIP_LAYER,    /* each bucket's own, to clip / sqrt(buckets): all of them to clip at most */
    GPT_CLIP_BEFORE,   /* all, by the norm of the step before; the first step has no limit */
    GPT_N_CLIPS
} gpt_clip;

typedef struct gpt_config {
    int32_t n_layers, hidden;
    int32_t n_heads, n_kv_heads; /* n_heads % n_kv_heads = 0 */
    int32_t head_size;           /* even; 0: hidden / n_heads, without a rest */
    int64_t sequence, batch;     /* a micro-batch has batch * sequence rows (tokens) */
    int32_t vocabulary;          /* tokens are int32_t below it; 0: tokens are bytes */
    gpt_mlp mlp;
    int32_t
        mlp_columns; /* of the MLP's activation, or an expert's; 0: 4 hidden, as GPT-2 and PaLM */
    gpt_experts experts;
    /* As Qwen2: q, k and v have biases.  As Qwen3: q and k of each head are normed before RoPE.
     * As many small models: the embedding's table is also the classifier. */
    int32_t has_biases, has_head_norms, is_tied;
    double norm_epsilon; /* of all norms; 0: 1e-5 */
    gpt_rope_law rope;   /* 0: theta 10000 */
    gpt_lora lora;
    int64_t tile_rows; /* rows of a GEMM; swapped and recomputed rows meet between tiles */
    /* Rows of the MLP at a time, rounded up to tiles.  Its tensors are then not skeletal: the
     * backward recomputes them chunk by chunk, under every policy, and they take the memory of one
     * chunk.  Losses have the same bits for every size, with the same weights; gradients match up
     * to rounding.  0: they are skeletal. */
    int64_t mlp_rows;
    /* Rows of a slice: a layer computes its micro-batch slice by slice.  A multiple of tile_rows;
     * 0: all rows.  Losses have the same bits for every multiple of 128, with the same weights;
     * gradients match up to rounding.  With several slices no mixed degrees.  Then ring and Ulysses
     * take one sequence for each data rank, without documents, and an even number of rows. */
    int64_t slice_rows;
    int64_t window; /* tokens that a query sees, its own the last; 0: all */
    /* Packed documents: the most of a sequence; 0: a sequence is one.  Each but the last ends with
     * the token `separator`, and no query sees another document. */
    int64_t documents;
    int32_t separator;
    double dropout; /* in [0, 1): embedding, after the projection, after the MLP */
    uint64_t seed;  /* of the initial parameters and of dropout */
    /* Of activations, their gradients and weights: F32, BF16 with master weights in F32, or F64
     * (host kernels with GPT_DOUBLE).  What is summed has gpt_sum_type. */
    memo_type type;
    memo_type states; /* of Adam's moments: F32, or BF16; F32 is F64 with type F64; U8: 8 bits, with
                         two scales for GPT_BLOCK of them */
    /* 1: the step's gradient is bf16, and weights in bf16 have no master weights: an update rounds
     * them at random.  Needed for U8. */
    int32_t is_pure;
    gpt_clip clip_by;

    /* Ranks that train together.  batch and sequence above count all ranks. */
    int32_t data;          /* ranks that split the batch, batch % data = 0; 0: 1 */
    int32_t ring, ulysses; /* ranks that split each sequence; 0: 1 */
    /* Ranks that split each layer by heads and columns; 0: 1.  It must divide n_heads and
     * n_kv_heads. */
    int32_t tensor;
    /* Parts of a rank's micro-batch; 0: 1.  The sum over tensor ranks of one part overlaps the
     * computation of another.  A part is whole sequences, or a range of a single sequence. */
    int32_t sub_batches;
    /* Optional: (2 n_layers) degrees, attention and MLP in turn; borrowed.  NULL: every block has
     * degree tensor.  Degrees and tensor are powers of two, at most tensor and 128.  Blocks of a
     * smaller degree split rows over the remaining ranks: tensor.h. */
    const int32_t* degrees;
    memo_blocks_order schedule; /* order of the parts; the losses are the same in every order */
    int32_t zero; /* ZeRO, what data x ring x ulysses ranks split.  0: nothing; 1: Adam's moments
                     and master weights; 2: also the gradient, summed after every micro-batch */
} gpt_config;

enum { GPT_STAGED_MAX = MEMO_GROUP_MAX }; /* micro-batches on their way to the device at once */

typedef struct gpt_desc {
    gpt_config config;
    /* Optional: (n_layers, slices, gpt_n_tensors), as in memo_swap_desc; borrowed until gpt_create
     * returns.  NULL: the policy of `session` chooses the rows. */
    const int64_t* rows;
    /* Optional: budgets, policy, micro_batches and n_group, agree and its user, spill, is_timed,
     * timed_steps and profile_path of the model's session; borrowed until gpt_create returns.  The
     * model fills in the other fields.  NULL: no limits. */
    const memo_session_desc* session;
    /* Optional: what gpt_plan made; it must outlive the model.  NULL: the session times the first
     * steps, and plans by their times. */
    const memo_step_plan* plan;
    /* Of gpt_plan, if config.slice_rows is 0 and all rows at once do not fit: it takes the largest
     * slices that fit, of 1,024 rows or more and at most so many; or else the plan that lacks
     * least.  plan->swap.n_rows is then config.slice_rows.  0: all rows at once. */
    int64_t most_slices;
    /* Both unused by gpt_plan, but for kernels->scratch_bytes (kernels NULL: none).  device may be
     * a table around the device of the kernels: a recorder's. */
    const gpt_kernels* kernels;
    const memo_device* device;
    const memo_mesh* mesh; /* required for several ranks, with their degrees; unused by gpt_plan */
    /* Required with adapters: the frozen weights, in their files.  They must outlive the model, and
     * gpt_check_weights has accepted them.  Unused by gpt_plan. */
    const struct gpt_stored* frozen;
    /* Micro-batches of a step; 0: 1.  The sums of gradients over ranks run behind the backward of
     * the last one.  Up to GPT_STAGED_MAX micro-batches are enqueued without a wait. */
    int64_t n_micro_batches;
} gpt_desc;

typedef struct gpt_model gpt_model;

/* Returns whether a configuration is valid. */
memo_status gpt_check_config(const gpt_config* config, memo_error* error);

/* Plans a micro-batch, without a device.  profile may be NULL.  Errors: as memo_session_plan. */
memo_status gpt_plan(const gpt_desc* desc, const memo_profile* profile, memo_step_plan** plan,
                     memo_error* error);

/* Creates the session and initializes the parameters from config.seed.  All ranks call it.  Errors:
 * INVALID_ARGUMENT for an invalid configuration; otherwise as memo_session_create. */
memo_status gpt_create(const gpt_desc* desc, gpt_model** model, memo_error* error);
void gpt_destroy(gpt_model* model);
/* Sets parameters, moments and gradients to their first values, between two steps.  Waits. */
memo_status gpt_restart(gpt_model* model, memo_error* error);

/* Returns the pinned host bytes beyond the swap engine's: tokens and values on their way to the
 * device, and the loss on its way back.  n_micro_batches as in gpt_desc.  A multiple of 512, the
 * unit of the host device. */
int64_t gpt_staging_bytes(const gpt_config* config, int64_t n_micro_batches);

/* Returns the rows of a micro-batch on one rank: tokens, padding included. */
int64_t gpt_n_rows(const gpt_config* config);

/* Returns the length of the flat array of parameters: of all weights that train, with adapters
 * these alone.  Each tensor begins at a multiple of gpt_unit (layout.h).  Each bucket (embedding, a layer, final norm
 * with classifier) splits evenly among the ranks. */
int64_t gpt_n_parameters(const gpt_config* config);
/* Of a model without adapters: those that a token's products read, not those of other experts. */
int64_t gpt_n_parameters_of_token(const gpt_config* config);

/* The tensors in that array: 0 is the embedding; those of each layer follow, 8 or more, then final
 * norm and, unless it is tied, classifier.  Of adapters: A and B of each product, layer by layer. */
typedef struct gpt_parameter {
    const char* name;
    int32_t w, layer;  /* of layout.h: the kind of tensor; 0 if it is of no layer */
    int64_t offset, n; /* of this rank */
    /* Element i is element gpt_element_of_whole(i) of the unsplit tensor. */
    int64_t n_columns, stride; /* columns of a row: of this rank; of the whole */
    int64_t step;              /* from a rank's first element to the next rank's */
    int32_t degree;            /* ranks that split it, side by side; 1: each has a copy */
    double initial_std, initial_mean;
    int32_t is_uniform; /* as in gpt_initial_args */
    int32_t n_matrices; /* of experts, equally large, one after the other; otherwise 1 */
    int32_t decays;     /* 0: no weight decay: weights of norms, biases */
    int32_t is_partial; /* of a layer: each tensor rank has a partial gradient */
} gpt_parameter;
int64_t gpt_n_parameter_tensors(const gpt_config* config);
gpt_parameter gpt_parameter_at(const gpt_config* config, int64_t index);
int64_t gpt_element_of_whole(const gpt_parameter* p, int32_t tensor_rank, int64_t i);

/* Enqueues forward and backward of one micro-batch, or of a group (memo_session_desc.n_group) with
 * its last one.  Gradients and loss add up over the micro-batches of a step, which come in order.
 * tokens and targets have batch * sequence tokens each, of all ranks: uint8_t if
 * config.vocabulary is 0, otherwise int32_t.  Both are copied before the call returns.
 * target[t] follows token[t].  step and micro_batch are the key of the dropout.  loss_scale is 1 /
 * (tokens of the whole step, all ranks).
 *
 * After an error the step is lost: gpt_restart begins again.  Several ranks cannot continue after an
 * error.  INVALID_STATE: more micro-batches than gpt_desc.n_micro_batches.  INVALID_ARGUMENT: a
 * sequence has more than config.documents, or a graph's micro-batches are not in order.
 *
 * All ranks call this function and gpt_update in the same order. */
memo_status gpt_micro_batch(gpt_model* model, const void* tokens, const void* targets, int64_t step,
                            int64_t micro_batch, double loss_scale, memo_error* error);

/* Runs AdamW (desc->adamw.update is ignored) after the last micro-batch, and waits for the step.
 * Returns the mean loss of the step over all ranks (nats per token).  Where a plan may update in
 * the last backward (MEMO_MAY_FUSE), gpt_set_update has the same values before the last
 * micro-batch; its vote has no meaning. */
void gpt_set_update(gpt_model* model, const gpt_update_values* desc);
memo_status gpt_update(gpt_model* model, const gpt_update_values* desc, double* loss,
                       memo_error* error);
/* Later steps are one CUDA graph (1), or calls again (0).  gpt_micro_batch then only writes to
 * pinned memory, for each of gpt_desc.n_micro_batches (at most GPT_STAGED_MAX) in order, and
 * gpt_update runs the step.  A model's first update takes calls, because libraries allocate at
 * their first use; the next one captures the step, with its messages between ranks, and each later
 * one replays it, with the same bits.  All ranks call it between the same steps.
 *
 * Errors: UNSUPPORTED (the kernels have no graphs: the host's; documents over ring or Ulysses
 * ranks; states that leave the device; more micro-batches).  The session must neither be timed, nor
 * time its first steps, nor the device record. */
memo_status gpt_use_graph(gpt_model* model, int is_graph, memo_error* error);
/* Returns whether the session still times steps: a step that has begun may have ended that. */
int gpt_is_timing(const gpt_model* model);
/* Returns the sum of all ranks' desc.vote in the last update.  Ranks use it to decide together. */
double gpt_votes(const gpt_model* model);

/* A run that saves to path.  run: numbers of the caller that the file keeps. */
enum { GPT_RUN_NUMBERS = 12, GPT_PATH_BYTES = 1024 };
typedef struct gpt_save {
    const char* path;
    int64_t aside; /* ends the name of the file aside, equal on all ranks; gpt_lock_checkpoint */
    int64_t run[GPT_RUN_NUMBERS];
} gpt_save;

/* Saves parameters, Adam's moments, the number of updates and step, between two steps, to one file
 * that all ranks can open (checkpoint.h).  It is written aside and replaces path when it is
 * complete.  gpt_read_checkpoint reads the same bits on any ranks; later steps have the same bits
 * on ranks that split the model alike.  config.seed, the model's shape and types must be those of
 * the file.  A file that is refused changes nothing.  digest: of the file if gpt_check_checkpoint
 * has read all of it; 0: the file is read for it.  All ranks call both.  After an error of one rank
 * its caller aborts the communicator, which ends the others.  Errors: IO, FORMAT (no checkpoint,
 * cut short, altered), INVALID_ARGUMENT (another model). */
memo_status gpt_write_checkpoint(gpt_model* model, const gpt_save* save, int64_t step,
                                 memo_error* error);
memo_status gpt_read_checkpoint(gpt_model* model, const char* path, uint64_t digest, int64_t* step,
                                memo_error* error);

/* Keeps other runs from saving to path, until gpt_unlock_checkpoint or the end of the process: the
 * file PATH.lock is locked.  Removes the file aside of a run that was killed.  *name: for
 * gpt_save.aside.  The first rank calls it.  Errors: INVALID_ARGUMENT (another run saves to path),
 * IO. */
typedef struct gpt_lock {
    int fd; /* -1: none is held */
    char path[GPT_PATH_BYTES];
} gpt_lock;
memo_status gpt_lock_checkpoint(const char* path, gpt_lock* lock, int64_t* name, memo_error* error);
void gpt_unlock_checkpoint(gpt_lock* lock);

/* Waits for all enqueued work. */
memo_status gpt_wait(gpt_model* model, memo_error* error);
/* Also for the copies of states; between micro-batches. */
memo_status gpt_wait_for_states(gpt_model* model, memo_error* error);
/* Returns a digest of this rank's gradients, of the parts that it updates: the sum over words w of
 * 4 bytes of gpt_mix(word + gpt_mix(w)), modulo 2^64.  Equal bits give equal digests, and other
 * bits practically never do.  After the last micro-batch.  It waits. */
memo_status gpt_digest_gradients(gpt_model* model, uint64_t* digest, memo_error* error);

/* Continues `text` by n_new sampled bytes (config.vocabulary 0), on the host, with a key-value
 * cache and a copy of the parameters.  n_text is at least 1.  Each byte depends on the `sequence`
 * bytes before it.  temperature 0 takes the most probable byte.  All tensor ranks call it. */
memo_status gpt_generate(gpt_model* model, const uint8_t* text, int64_t n_text, double temperature,
                         uint64_t seed, uint8_t* result, int64_t n_new, memo_error* error);

/* Returns the session, with the rows that it chose: for statistics. */
memo_session* gpt_session(gpt_model* model);
/* Returns the bytes sent so far to tensor ranks, as memo_comm counts. */
int64_t gpt_tensor_bytes(const gpt_model* model);

#endif
