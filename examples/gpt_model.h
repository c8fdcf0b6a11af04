/* gpt_model.h - a byte-level GPT on memo: which operation runs where, and where its tensors lie.
 *
 * The maths is in gpt_ops.h; here is what memo has to do with it.  All device memory comes from one
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
 * Single translation unit: everything is static.  GPT_DOUBLE computes in double precision. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "memo.h"
#include "memo_sp.h"
#include "gpt_ops.h"

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

typedef enum gpt_policy {
    GPT_POLICY_KEEP = 0,  /* every skeletal tensor of every layer stays on the device */
    GPT_POLICY_RECOMPUTE, /* only layer inputs stay; the rest is recomputed, attention too */
    GPT_POLICY_SWAP,      /* everything is swapped: alpha = 1 */
    GPT_POLICY_ALPHA,     /* input and attention output swapped, the other tensors by alpha */
    GPT_POLICY_MEMO       /* every tensor of every layer by gpt_desc.rows */
} gpt_policy;

typedef struct gpt_desc {
    gpt_config config;
    gpt_policy policy;
    double alpha;              /* GPT_POLICY_ALPHA, and GPT_POLICY_MEMO without rows */
    int32_t n_resident_layers; /* as in memo_swap_desc */
    /* GPT_POLICY_MEMO: as in memo_swap_desc, (n_layers, GPT_N_TENSORS), copied; NULL: by alpha.
     * No row of a layer's input may be left to recomputation. */
    const memo_swap_rows* rows;
    memo_device* host_device; /* where functions are launched; NULL: dry run */
    /* The table that copies, events and announcements go to: host_device itself, or a recorder's or
     * a test's table around it; NULL: host_device. */
    const memo_device* device;
    memo_trace* trace;     /* dry run: the requests of one micro-batch are recorded here */
    const memo_plan* plan; /* real run: made from such a trace */
    int32_t is_timed;      /* measure stalls */
    const memo_mesh* mesh; /* real run of several ranks: of the config's degrees */
} gpt_desc;

typedef struct gpt_model gpt_model;

/* What the swap engine is told: the table of skeletal tensors under this policy. */
GPT_FUNCTION memo_status gpt_swap_sizes(const gpt_desc* desc, memo_swap_sizes* sizes,
                                        memo_error* error);

/* Dry run: records the trace of one micro-batch (create, then gpt_micro_batch once; tokens and
 * targets may be NULL).  Real run: reserves plan->peak_bytes, initialises the parameters from
 * config.seed. Errors: INVALID_ARGUMENT for a configuration that cannot be meant, and memo's. */
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

/* To measure how long a part of a micro-batch takes: gpt_micro_batch requests memory for all of it,
 * but enqueues only the operations of these parts.  The numbers are then worth nothing.  For a model
 * under GPT_POLICY_KEEP, on which nothing is copied. */
enum { GPT_PART_FORWARD = 1, GPT_PART_BACKWARD = 2, GPT_PART_REST = 4, GPT_PART_ALL = 7 };
GPT_FUNCTION void gpt_set_parts(gpt_model* model, int parts);
/* The same for what recomputing all rows of a tensor (the table's) of layer 0 takes.  Errors:
 * UNSUPPORTED for the input, and for what comes with another tensor. */
GPT_FUNCTION memo_status gpt_recompute_alone(gpt_model* model, int32_t tensor, memo_error* error);

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

/* Engine, arena and stream, for statistics and timelines. */
GPT_FUNCTION memo_swap* gpt_swap(gpt_model* model);
GPT_FUNCTION memo_arena* gpt_arena(gpt_model* model);
GPT_FUNCTION memo_stream gpt_compute_stream(gpt_model* model);
/* Sent so far to tensor ranks, as memo_comm counts. */
GPT_FUNCTION int64_t gpt_tensor_bytes(const gpt_model* model);

/* ==== implementation ======================================================================== */

/* ---- parameters: one flat array ------------------------------------------------------------ */

/* Offsets in reals; those of a layer count from the layer's begin. */
typedef struct gpt_layout {
    /* Columns of q, of k and of v, and of the MLP, of a rank; where degrees differ, there is room for
     * the smallest's, and gpt_widths_of says how much of it a layer takes. */
    int64_t q_hidden, kv_hidden, wide;
    int64_t embedding; /* (vocabulary, hidden) */
    int64_t layers, layer_stride;
    int64_t norm1;      /* (hidden) */
    int64_t query;      /* (q_hidden, hidden) */
    int64_t key, value; /* (kv_hidden, hidden) */
    int64_t projection; /* (hidden, q_hidden) */
    int64_t norm2;      /* (hidden) */
    int64_t up;         /* (wide, hidden) */
    int64_t down;       /* (hidden, wide) */
    int64_t final_norm; /* (hidden) */
    int64_t classifier; /* (vocabulary, hidden) */
    int64_t n;
} gpt_layout;

static int64_t gpt_append(int64_t* n, int64_t n_reals) {
    const int64_t offset = *n;
    *n += (n_reals + 15) / 16 * 16;
    return offset;
}

static int64_t gpt_round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int32_t gpt_degree(int32_t degree) { return degree > 1 ? degree : 1; }
static int32_t gpt_block_degree(const gpt_config* config, int32_t block) {
    return config->degrees ? config->degrees[block] : gpt_degree(config->tensor);
}
static int32_t gpt_least_degree(const gpt_config* config) {
    int32_t least = gpt_degree(config->tensor), block;
    for (block = 0; block < 2 * config->n_layers && config->degrees; block++)
        if (config->degrees[block] < least) least = config->degrees[block];
    return least;
}
static int gpt_is_mixed(const gpt_config* config) { /* not all of degree tensor */
    return gpt_least_degree(config) < gpt_degree(config->tensor);
}

/* What a rank has of a layer. */
typedef struct gpt_widths {
    int32_t degrees[2];         /* of attention, of the MLP */
    int64_t q, kv, heads, wide; /* columns of q, of k and of v; heads of q; columns of the MLP */
} gpt_widths;

static gpt_widths gpt_widths_of(const gpt_config* config, int32_t layer) {
    gpt_widths w;
    w.degrees[0] = gpt_block_degree(config, 2 * layer);
    w.degrees[1] = gpt_block_degree(config, 2 * layer + 1);
    w.q = config->hidden / w.degrees[0];
    w.kv = config->hidden / config->n_heads * config->n_kv_heads / w.degrees[0];
    w.heads = config->n_heads / w.degrees[0];
    w.wide = 4 * (int64_t)config->hidden / w.degrees[1];
    return w;
}

/* Those that train copies of a parameter: gradients are summed, and ZeRO splits, over them. */
static int32_t gpt_n_ranks(const gpt_config* config) {
    return gpt_degree(config->data) * gpt_degree(config->ring) * gpt_degree(config->ulysses);
}
static int gpt_is_split(const gpt_config* config) { /* run by memo_blocks */
    return config->tensor > 1 || config->sub_batches > 1;
}

static gpt_layout gpt_layout_make(const gpt_config* config) {
    const int64_t hidden = config->hidden, unit = 16 * (int64_t)gpt_n_ranks(config);
    const int32_t least = gpt_least_degree(config);
    gpt_layout l;
    l.q_hidden = hidden / least;
    l.kv_hidden = hidden / config->n_heads * config->n_kv_heads / least;
    l.wide = 4 * hidden / least;
    l.layer_stride = 0;
    l.norm1 = gpt_append(&l.layer_stride, hidden);
    l.query = gpt_append(&l.layer_stride, l.q_hidden * hidden);
    l.key = gpt_append(&l.layer_stride, l.kv_hidden * hidden);
    l.value = gpt_append(&l.layer_stride, l.kv_hidden * hidden);
    l.projection = gpt_append(&l.layer_stride, hidden * l.q_hidden);
    l.norm2 = gpt_append(&l.layer_stride, hidden);
    l.up = gpt_append(&l.layer_stride, l.wide * hidden);
    l.down = gpt_append(&l.layer_stride, hidden * l.wide);
    l.layer_stride = gpt_round_up(l.layer_stride, unit);
    l.embedding = 0;
    l.layers = gpt_round_up(GPT_VOCABULARY * hidden, unit);
    l.n = l.layers + config->n_layers * l.layer_stride;
    l.final_norm = gpt_append(&l.n, hidden);
    l.classifier = gpt_append(&l.n, GPT_VOCABULARY * hidden);
    l.n = l.layers + gpt_round_up(l.n - l.layers, unit);
    return l;
}

GPT_FUNCTION int64_t gpt_n_parameters(const gpt_config* config) {
    return gpt_layout_make(config).n;
}

GPT_FUNCTION int64_t gpt_optimizer_bytes(const gpt_config* config) {
    return 2 * gpt_n_parameters(config) / (config->zero ? gpt_n_ranks(config) : 1) *
           (int64_t)sizeof(gpt_real);
}
GPT_FUNCTION int64_t gpt_state_bytes(const gpt_config* config) {
    const int64_t n = gpt_n_parameters(config);
    return (n + n / (config->zero == 2 ? gpt_n_ranks(config) : 1)) * (int64_t)sizeof(gpt_real) +
           gpt_optimizer_bytes(config);
}

GPT_FUNCTION int64_t gpt_n_parameter_tensors(const gpt_config* config) {
    return 8 * (int64_t)config->n_layers + 3;
}

GPT_FUNCTION gpt_parameter gpt_parameter_at(const gpt_config* config, int64_t index) {
    const gpt_layout l = gpt_layout_make(config);
    const int32_t last = config->n_layers - 1;
    const gpt_widths w =
        gpt_widths_of(config, (int32_t)(index > 0 ? gpt_min((index - 1) / 8, last) : 0));
    const int64_t hidden = config->hidden, q = w.q, kv = w.kv, wide = w.wide;
    const int32_t attention = w.degrees[0], mlp = w.degrees[1];
    const int64_t vocabulary = GPT_VOCABULARY * hidden;
    /* The two matrices that add to the residual stream start smaller: the sum over all layers then
     * has the size of one (GPT-2). */
    const double std = 0.02, residual_std = std / sqrt(2.0 * config->n_layers);
    const gpt_parameter of_model[3] = {
        {"embedding", l.embedding, vocabulary, hidden, hidden, 0, 1, std},
        {"final norm", l.final_norm, hidden, hidden, hidden, 0, 1, 0},
        {"classifier", l.classifier, vocabulary, hidden, hidden, 0, 1, std},
    };
    /* Tensor ranks have some of the outputs of what reads the whole stream, and some of the inputs
     * of what adds to it. */
    const gpt_parameter of_layer[8] = {
        {"norm1", l.norm1, hidden, hidden, hidden, 0, 1, 0},
        {"query", l.query, q * hidden, hidden, hidden, q * hidden, attention, std},
        {"key", l.key, kv * hidden, hidden, hidden, kv * hidden, attention, std},
        {"value", l.value, kv * hidden, hidden, hidden, kv * hidden, attention, std},
        {"projection", l.projection, hidden * q, q, hidden, q, attention, residual_std},
        {"norm2", l.norm2, hidden, hidden, hidden, 0, 1, 0},
        {"up", l.up, wide * hidden, hidden, hidden, wide * hidden, mlp, std},
        {"down", l.down, hidden * wide, wide, 4 * hidden, wide, mlp, residual_std},
    };
    gpt_parameter parameter;
    if (index == 0) return of_model[0];
    if (index > 8 * (int64_t)config->n_layers)
        return of_model[index - 8 * (int64_t)config->n_layers];
    parameter = of_layer[(index - 1) % 8];
    parameter.offset += l.layers + (index - 1) / 8 * l.layer_stride;
    return parameter;
}

GPT_FUNCTION int64_t gpt_element_of_whole(const gpt_parameter* p, int32_t tensor_rank, int64_t i) {
    return tensor_rank % p->degree * p->step + i / p->n_columns * p->stride + i % p->n_columns;
}

/* A rank's share of those of one. */
static void gpt_initial_parameters(const gpt_config* config, int32_t tensor_rank,
                                   gpt_real* parameters) {
    int64_t t, i;
    memset(parameters, 0, (size_t)gpt_n_parameters(config) * sizeof *parameters);
    for (t = 0; t < gpt_n_parameter_tensors(config); t++) {
        const gpt_parameter p = gpt_parameter_at(config, t);
        const uint64_t key = gpt_mix(config->seed) ^ (uint64_t)t;
        for (i = 0; i < p.n; i++)
            parameters[p.offset + i] =
                p.initial_std > 0
                    ? (gpt_real)(p.initial_std * gpt_normal(key, (uint64_t)gpt_element_of_whole(
                                                                     &p, tensor_rank, i)))
                    : (gpt_real)1;
    }
}

/* ---- what a rank holds --------------------------------------------------------------------- */

typedef struct gpt_share {
    memo_layout layout; /* of a sequence over ring x ulysses ranks */
    int64_t batch;      /* sequences of each rank */
    int64_t n_rows;     /* batch * layout.local_tokens */
    int32_t n_ranks;
    int32_t data_rank, sequence_rank, rank; /* 0 in a dry run */
    int32_t tensor_rank;
} gpt_share;

/* The config has been checked. */
static gpt_share gpt_share_make(const gpt_config* config, const memo_mesh* mesh) {
    memo_layout_desc desc = memo_layout_desc_default();
    gpt_share share;
    memset(&share, 0, sizeof share);
    desc.kind = config->ring > 1 ? MEMO_LAYOUT_ZIGZAG : MEMO_LAYOUT_PLAIN;
    desc.ring = config->ring;
    desc.ulysses = config->ulysses;
    desc.n_tokens = config->sequence;
    memo_layout_make(&desc, &share.layout, NULL);
    share.batch = config->batch / gpt_degree(config->data);
    share.n_rows = share.batch * share.layout.local_tokens;
    share.n_ranks = gpt_n_ranks(config);
    if (mesh) {
        share.data_rank = mesh->data_rank;
        share.sequence_rank = mesh->sequence_rank;
        share.rank = mesh->gradient_rank;
        share.tensor_rank = mesh->tensor_rank;
    }
    return share;
}

GPT_FUNCTION int64_t gpt_n_rows(const gpt_config* config) {
    return gpt_share_make(config, NULL).n_rows;
}

/* The number of a row's token in the micro-batch of all ranks; -1: padding. */
static int64_t gpt_token_of(const gpt_share* share, int64_t row) {
    const memo_layout* layout = &share->layout;
    const int64_t sequence = share->data_rank * share->batch + row / layout->local_tokens;
    const int64_t position =
        memo_layout_position(layout, share->sequence_rank, row % layout->local_tokens);
    return position < layout->n_tokens ? sequence * layout->n_tokens + position : -1;
}

/* How many rows from `row` on, up to `end`, hold consecutive tokens, from *token on, or padding
 * (*token = -1). */
static int64_t gpt_run_of_tokens(const gpt_share* share, int64_t row, int64_t end, int64_t* token) {
    const int64_t first = gpt_token_of(share, row);
    int64_t n = 1;
    while (row + n < end && gpt_token_of(share, row + n) == (first < 0 ? first : first + n)) n++;
    *token = first;
    return n;
}

/* ---- skeletal tensors ---------------------------------------------------------------------- */

/* What a layer's backward needs of its forward, in the order in which it is computed. */
enum {
    GPT_INPUT,     /* (rows, hidden) */
    GPT_RSTD1,     /* (rows) */
    GPT_NORM1,     /* (rows, hidden) */
    GPT_Q,         /* (rows, q_hidden), turned by RoPE */
    GPT_K,         /* (rows, kv_hidden), turned by RoPE */
    GPT_V,         /* (rows, kv_hidden) */
    GPT_ATTENTION, /* (rows, q_hidden) */
    GPT_LSE,       /* (rows, heads); split by heads: as memo_sp_attention_tensors says */
    GPT_MIDDLE,    /* (rows, hidden) */
    GPT_RSTD2,     /* (rows) */
    GPT_NORM2,     /* (rows, hidden) */
    GPT_UP,        /* (rows, wide) */
    GPT_GELU,      /* (rows, wide) */
    GPT_N_TENSORS
};

/* The order `fine`, and any where degrees differ, recomputes without a sum over ranks, from the input of every block; the others
 * recompute a layer from its input, and repeat the sum that ends attention for the rows of middle
 * that are recomputed. */
static int gpt_has_middle(const gpt_config* config) {
    return gpt_is_split(config) && (config->schedule == MEMO_BLOCKS_FINE || gpt_is_mixed(config));
}
/* Of these no row can be recomputed: what it would be made from is gone. */
static int gpt_is_dead_end(const gpt_config* config, int tensor) {
    return tensor == GPT_INPUT || (tensor == GPT_MIDDLE && gpt_has_middle(config));
}

static memo_swap_desc gpt_swap_desc(const gpt_desc* desc, memo_swap_tensor tensors[GPT_N_TENSORS]) {
    const gpt_config* config = &desc->config;
    const gpt_layout at = gpt_layout_make(config);
    const int64_t hidden = config->hidden, q = at.q_hidden, kv = at.kv_hidden, wide = at.wide;
    const int64_t lse_columns =
        gpt_round_up(config->n_heads / gpt_least_degree(config), gpt_degree(config->ulysses));
    const int has_middle = gpt_has_middle(config);
    const struct {
        const char* name;
        int64_t n_columns;
        int32_t is_dear; /* dear to recompute, or small: swapped whole whatever alpha */
        int32_t is_contiguous;
    } table[GPT_N_TENSORS] = {
        {"input", hidden, 1, 0},
        {"rstd1", 1, 1, 0},
        {"norm1", hidden, 0, 0},
        {"q", q, 0, 1},
        {"k", kv, 0, 1},
        {"v", kv, 0, 1},
        {"attention", q, 1, 1},
        {"lse", lse_columns, 1, 1},
        {"middle", hidden, has_middle, 0},
        {"rstd2", 1, 1, 0},
        {"norm2", hidden, 0, 0},
        {"up", wide, 0, 0},
        {"gelu", wide, 0, 0},
    };
    memo_swap_desc swap = memo_swap_desc_default();
    int t;
    for (t = 0; t < GPT_N_TENSORS; t++) {
        tensors[t].name = table[t].name;
        tensors[t].row_bytes = table[t].n_columns * (int64_t)sizeof(gpt_real);
        tensors[t].is_contiguous = table[t].is_contiguous;
        switch (desc->policy) {
        case GPT_POLICY_KEEP: tensors[t].mode = MEMO_SWAP_KEEP; break;
        case GPT_POLICY_RECOMPUTE:
            tensors[t].mode = gpt_is_dead_end(config, t) ? MEMO_SWAP_KEEP : MEMO_SWAP_RECOMPUTE;
            break;
        case GPT_POLICY_SWAP: tensors[t].mode = MEMO_SWAP_WHOLE; break;
        case GPT_POLICY_ALPHA:
        case GPT_POLICY_MEMO:
            tensors[t].mode = table[t].is_dear ? MEMO_SWAP_WHOLE : MEMO_SWAP_SPLIT;
            break;
        }
    }
    swap.tensors = tensors;
    swap.n_tensors = GPT_N_TENSORS;
    swap.n_layers = config->n_layers;
    swap.n_rows = gpt_n_rows(config);
    swap.tile_rows = config->tile_rows;
    swap.alpha = desc->policy >= GPT_POLICY_ALPHA ? desc->alpha : 1;
    swap.rows = desc->policy == GPT_POLICY_MEMO ? desc->rows : NULL;
    swap.n_resident_layers = desc->n_resident_layers;
    swap.is_timed = desc->is_timed;
    return swap;
}

static memo_status gpt_check_degrees(const gpt_config* config, memo_error* error) {
    const int32_t tensor = gpt_degree(config->tensor);
    const int64_t n_sequences = config->batch / gpt_degree(config->data);
    const int64_t n_parts = (int64_t)gpt_degree(config->sub_batches) * tensor;
    int32_t block;
    for (block = 0; block < 2 * config->n_layers && config->degrees; block++) {
        const int32_t degree = config->degrees[block];
        if (degree < 1 || degree > tensor || (degree & (degree - 1)) || (tensor & (tensor - 1)) ||
            tensor > 128)
            return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "degree %d of block %d: powers of two up to tensor %d, itself "
                                  "one and at most 128, would work",
                                  (int)degree, (int)block, (int)tensor);
    }
    if (gpt_is_mixed(config) && (n_sequences % (n_parts / gpt_least_degree(config)) ||
                                 gpt_degree(config->ring) * gpt_degree(config->ulysses) > 1))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "degrees %d to %d spread whole sequences, on one rank each: %lld of a "
            "data rank must be a multiple of sub-batches x %d",
            (int)gpt_least_degree(config), (int)tensor, (long long)n_sequences,
            (int)(tensor / gpt_least_degree(config)));
    return MEMO_STATUS_OK;
}

static memo_status gpt_check_config(const gpt_config* config, memo_error* error) {
    const int64_t heads = config->n_heads, kv_heads = config->n_kv_heads;
    memo_status status;
    if (config->n_layers < 1 || config->hidden < 1 || heads < 1 || kv_heads < 1 ||
        config->sequence < 1 || config->batch < 1 || config->tile_rows < 1)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "layers %d, hidden %d, heads %d, key-value heads %d, sequence %lld, "
                              "batch %lld, tile rows %lld: each must be 1 or more",
                              config->n_layers, config->hidden, config->n_heads, config->n_kv_heads,
                              (long long)config->sequence, (long long)config->batch,
                              (long long)config->tile_rows);
    if (config->hidden % heads || heads % kv_heads || config->hidden / heads % 2)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "hidden %d must be heads %d times an even number, and heads a "
                              "multiple of key-value heads %d",
                              config->hidden, config->n_heads, config->n_kv_heads);
    if (!(config->dropout >= 0 && config->dropout < 1))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "dropout %g is not in [0, 1)",
                              config->dropout);
    if (config->data < 0 || config->ring < 0 || config->ulysses < 0 ||
        (double)gpt_degree(config->data) * gpt_degree(config->ring) * gpt_degree(config->ulysses) >
            1 << 16 ||
        config->batch % gpt_degree(config->data))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "ranks: data %d, ring %d, ulysses %d: at most 2^16 in all, and batch "
                              "%lld a multiple of data",
                              config->data, config->ring, config->ulysses,
                              (long long)config->batch);
    if (config->tensor < 0 || config->tensor > 1 << 16 || heads % gpt_degree(config->tensor) ||
        kv_heads % gpt_degree(config->tensor))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "tensor %d: must divide heads %d and key-value heads %d",
                              config->tensor, config->n_heads, config->n_kv_heads);
    if ((status = gpt_check_degrees(config, error))) return status;
    if (config->sub_batches < 0 || config->sub_batches > 1000 ||
        (config->batch / gpt_degree(config->data) % gpt_degree(config->sub_batches) &&
         (config->batch != gpt_degree(config->data) ||
          gpt_degree(config->ring) * gpt_degree(config->ulysses) > 1 ||
          config->sub_batches > config->sequence)))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "sub-batches %d: must divide the %lld sequences of a rank, or be parts of a single one "
            "that is on one rank",
            config->sub_batches, (long long)(config->batch / gpt_degree(config->data)));
    if (config->zero < 0 || config->zero > 2)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "zero %d is not 0, 1 or 2",
                              config->zero);
    if (gpt_degree(config->ring) * gpt_degree(config->ulysses) > 1 &&
        (sizeof(gpt_real) != sizeof(float) ||
         config->hidden / heads > MEMO_HOST_ATTENTION_HEAD_SIZE))
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "attention over ranks takes floats, in heads of at most %d",
                              MEMO_HOST_ATTENTION_HEAD_SIZE);
    /* Up to here no product of sizes passes 64 bits, and no dimension of a GEMM an int. */
    if (config->n_layers > 1 << 16 || config->hidden > 1 << 18 || config->tile_rows > 1 << 28 ||
        config->sequence > ((int64_t)1 << 36) / config->batch)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "layers are at most 2^16, hidden 2^18, tile rows 2^28, batch * "
                              "sequence 2^36");
    return MEMO_STATUS_OK;
}

static memo_status gpt_check_rows(const gpt_config* config, const memo_swap_desc* swap,
                                  memo_error* error) {
    int64_t i;
    for (i = 0; i < (int64_t)swap->n_layers * GPT_N_TENSORS; i++) {
        const memo_swap_rows* rows = &swap->rows[i];
        const int tensor = (int)(i % GPT_N_TENSORS);
        if (gpt_is_dead_end(config, tensor) && rows->kept + rows->swapped < swap->n_rows)
            return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "gpt_desc.rows: layer %d: %lld rows of its %s would be "
                                  "recomputed, but nothing is there to do it from",
                                  (int)(i / GPT_N_TENSORS),
                                  (long long)(swap->n_rows - rows->kept - rows->swapped),
                                  tensor == GPT_INPUT ? "input" : "middle");
    }
    return MEMO_STATUS_OK;
}

GPT_FUNCTION memo_status gpt_swap_sizes(const gpt_desc* desc, memo_swap_sizes* sizes,
                                        memo_error* error) {
    memo_swap_tensor tensors[GPT_N_TENSORS];
    memo_swap_desc swap;
    memo_status status = gpt_check_config(&desc->config, error);
    if (status) return status;
    if (gpt_is_mixed(&desc->config) && desc->policy > GPT_POLICY_SWAP)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "where degrees differ, a rank has other rows of each block, and no "
                              "plan of rows suits all: policies keep, recompute and swap work");
    swap = gpt_swap_desc(desc, tensors);
    status = memo_swap_get_sizes(&swap, sizes, error);
    return status || !swap.rows ? status : gpt_check_rows(&desc->config, &swap, error);
}

/* ---- the model ----------------------------------------------------------------------------- */

typedef memo_swap_view gpt_rows; /* where the rows of a tensor lie, skeletal or not */

/* Rows of a tensor that a pass computes, or of a part. */
typedef struct gpt_need {
    int64_t begin, end;
} gpt_need;

/* What a backward function does: both, or first what the sum over tensor ranks waits for. */
typedef enum gpt_pass { GPT_PASS_BOTH = 0, GPT_PASS_INPUTS, GPT_PASS_WEIGHTS } gpt_pass;

enum { GPT_MAX_LEVELS = 8 }; /* degrees of 1 to 128 */

/* Of a model that memo_blocks runs: gpt_tensor.h. */
typedef struct gpt_tensor_state {
    memo_blocks* blocks;
    memo_comm* ranks; /* memo_mesh.tensor */
    memo_comm sums;   /* the same, but with sums of the rows that are read */
    /* Of degrees 2^a < 2^b: ranks of the first, and what exchanges rows with the second. */
    memo_degree_comms pairs[GPT_MAX_LEVELS][GPT_MAX_LEVELS];
    int32_t n_parts;
    int32_t splits_sequence;
    gpt_rows partial, gradient;   /* y and g of memo_blocks (rows, hidden); persistent */
    gpt_rows x, dx;               /* the residual stream and its gradient, of this micro-batch */
    gpt_rows d_key, d_value;      /* (rows, kv_hidden), where parts add to each other's */
    gpt_need need[GPT_N_TENSORS]; /* what the layer at hand recomputes */
    int64_t sum_begin, sum_end;   /* what the next sum is of: reals of the part's buffer */
    /* Memory for what a block needs while it runs; a block's requests begin anew. */
    char* work;
    int64_t work_bytes, work_used;
    int is_in_block;
    /* Of the block that was called last, whose collective comes next. */
    int32_t block, part;
    int is_forward, is_backward;
} gpt_tensor_state;

struct gpt_model {
    gpt_config config;
    gpt_layout layout;
    gpt_share share;
    memo_comm* gradient;          /* those of gpt_n_ranks; NULL: one */
    int32_t zero;                 /* config.zero, 0 on one rank */
    memo_sp_attention* attention; /* over the ranks of a sequence; NULL: one */
    memo_host_attention attention_state;
    int64_t n_rows, chunk_rows; /* chunk: what the MLP's backward and the classifier do at a time */
    int32_t is_dry_run;

    memo_device* host_device;
    memo_device device;
    memo_stream compute;
    memo_event tokens_copied[2]; /* of either half of the staging buffer */
    int32_t is_copying[2];
    int32_t half;
    memo_arena* arena;
    memo_swap* swap;
    int32_t n_recomputed_layers; /* the first ones */
    gpt_tensor_state tensor;
    gpt_pass pass;
    int32_t parts, is_skipped; /* which parts are enqueued; whether the one at hand is not */
    gpt_rows (*tensors)[GPT_N_TENSORS]; /* of each layer */

    /* On the device. */
    gpt_real *parameters, *gradients, *moments1, *moments2; /* (n parameters), or a rank's part */
    gpt_real* rope;                                         /* (local tokens, head size) */
    double* totals;                                         /* (GPT_N_TOTALS), of this step */
    /* zero 2: the gradients of the bucket that is computed at the moment, and its first one. */
    gpt_rows bucket;
    int64_t bucket_begin;
    int32_t is_reduced; /* the gradients are those of all ranks */
    /* In pinned host memory. */
    double* host_totals;
    uint8_t* staging; /* two halves, each tokens and targets (2, rows) */

    int64_t n_updates;
    int64_t step;        /* keys the dropout, as does */
    int64_t first_token; /* the global number of the micro-batch's first token, of all ranks */
    char phase[32];      /* "forward 3", for the names of operations */

    /* The first failure of the call at hand.  After it every further operation does nothing, so the
     * code below reads from top to bottom and asks once, at the end. */
    memo_status status;
    memo_error error;
};

enum { GPT_SITE_EMBEDDING, GPT_SITE_PROJECTION, GPT_SITE_MLP };
/* Totals of a step.  The squares, of the gradient, come last: where it is whole on every rank they
 * are not summed. */
enum { GPT_TOTAL_LOSS, GPT_TOTAL_VOTES, GPT_TOTAL_SQUARES, GPT_N_TOTALS };
#define GPT_TYPE (sizeof(gpt_real) == sizeof(float) ? MEMO_TYPE_F32 : MEMO_TYPE_F64)

static memo_status gpt_finish(gpt_model* model, memo_error* error) {
    if (model->status && error) *error = model->error;
    return model->status;
}

/* In a block whose parts take turns in the schedule's order: the arena knows one order alone. */
static void* gpt_take_work(gpt_model* model, int64_t size_bytes) {
    gpt_tensor_state* t = &model->tensor;
    void* address = t->work + t->work_used;
    t->work_used += gpt_round_up(size_bytes, 64);
    if (t->work_used > t->work_bytes && !model->status)
        model->status = memo_error_set(&model->error, MEMO_STATUS_INVALID_STATE,
                                       "a block needs %lld bytes of the %lld set aside",
                                       (long long)t->work_used, (long long)t->work_bytes);
    return address;
}

/* Rows [begin, end) of a tensor that lives until gpt_give. */
static gpt_rows gpt_take(gpt_model* model, int64_t begin, int64_t end, int64_t n_columns) {
    gpt_rows rows;
    void* address = NULL;
    rows.row_bytes = n_columns * (int64_t)sizeof(gpt_real);
    if (model->tensor.is_in_block)
        address = gpt_take_work(model, (end - begin) * rows.row_bytes);
    else if (!model->status)
        model->status = memo_arena_alloc(model->arena, (end - begin) * rows.row_bytes, 0, &address,
                                         &model->error);
    rows.first = NULL; /* there are no rows before begin */
    rows.rest = (char*)address;
    rows.split_row = begin;
    return rows;
}

static void gpt_give(gpt_model* model, gpt_rows rows) {
    if (model->tensor.is_in_block) return;
    if (!model->status) model->status = memo_arena_free(model->arena, rows.rest, &model->error);
}

/* Device memory that lives as long as the model: the same requests in a dry run and a real one.
 * The mark gives it its name in the picture of the plan. */
static void* gpt_take_persistent(gpt_model* model, const char* name, int64_t size_bytes) {
    void* address = NULL;
    if (!model->status) model->status = memo_arena_mark(model->arena, name, &model->error);
    if (!model->status)
        model->status = memo_arena_alloc(model->arena, size_bytes, 0, &address, &model->error);
    return address;
}

/* phase: forward, recompute or backward. */
static void gpt_begin_phase(gpt_model* model, int32_t layer, const char* phase) {
    char text[64];
    snprintf(model->phase, sizeof model->phase, "%s %d", phase, layer);
    snprintf(text, sizeof text, "layer %d %s begin", layer, phase);
    if (!model->status) model->status = memo_arena_mark(model->arena, text, &model->error);
}
static void gpt_end_phase(gpt_model* model, int32_t layer, const char* phase) {
    char text[64];
    snprintf(text, sizeof text, "layer %d %s end", layer, phase);
    if (!model->status) model->status = memo_arena_mark(model->arena, text, &model->error);
}

/* ---- operations -------------------------------------------------------------------------------
 *
 * Each is a struct of arguments, a function that runs with them on the compute stream, and a
 * function that announces what will be read and written and enqueues it. */

typedef struct gpt_op {
    const char* name;
    memo_range reads[16], writes[16];
    int32_t n_reads, n_writes;
} gpt_op;

static gpt_op gpt_op_make(const char* name) {
    gpt_op op;
    op.name = name;
    op.n_reads = op.n_writes = 0;
    return op;
}

static memo_range gpt_range(const void* address, int64_t n_bytes) {
    memo_range range;
    range.begin = (uint64_t)(uintptr_t)address;
    range.end = range.begin + (uint64_t)n_bytes;
    return range;
}
static void gpt_reads(gpt_op* op, const void* address, int64_t n_bytes) {
    op->reads[op->n_reads++] = gpt_range(address, n_bytes);
}
static void gpt_writes(gpt_op* op, const void* address, int64_t n_bytes) {
    op->writes[op->n_writes++] = gpt_range(address, n_bytes);
}

/* Rows [begin, end) lie in one piece or two. */
static void gpt_reads_rows(gpt_op* op, const gpt_rows* rows, int64_t begin, int64_t end) {
    const int64_t split = begin < rows->split_row ? gpt_min(end, rows->split_row) : end;
    gpt_reads(op, memo_swap_row(rows, begin), (split - begin) * rows->row_bytes);
    if (split < end) gpt_reads(op, memo_swap_row(rows, split), (end - split) * rows->row_bytes);
}
static void gpt_writes_rows(gpt_op* op, const gpt_rows* rows, int64_t begin, int64_t end) {
    const int64_t split = begin < rows->split_row ? gpt_min(end, rows->split_row) : end;
    gpt_writes(op, memo_swap_row(rows, begin), (split - begin) * rows->row_bytes);
    if (split < end) gpt_writes(op, memo_swap_row(rows, split), (end - split) * rows->row_bytes);
}

/* A dry run only requests memory, and after a failure nothing more is enqueued. */
static int gpt_is_idle(const gpt_model* model) { return model->is_dry_run || model->status; }
/* Nor is a part that is not measured. */
static int gpt_is_silent(const gpt_model* model) { return gpt_is_idle(model) || model->is_skipped; }
static void gpt_begin_part(gpt_model* model, int part) {
    model->is_skipped = !(model->parts & part);
}

static void gpt_announce(gpt_model* model, const gpt_op* op) {
    memo_op_desc announced = memo_op_desc_default();
    char name[96];
    if (gpt_is_silent(model) || !model->device.annotate) return;
    snprintf(name, sizeof name, "%s: %s", model->phase, op->name);
    announced.name = name;
    announced.reads = op->reads;
    announced.n_reads = op->n_reads;
    announced.writes = op->writes;
    announced.n_writes = op->n_writes;
    model->status =
        model->device.annotate(model->device.context, model->compute, &announced, &model->error);
}

static void gpt_enqueue(gpt_model* model, const gpt_op* op, memo_host_function function,
                        const void* args, size_t args_bytes) {
    if (gpt_is_silent(model)) return;
    gpt_announce(model, op);
    if (!model->status)
        model->status = memo_host_device_launch(model->host_device, model->compute, function, args,
                                                (int64_t)args_bytes, &model->error);
}

/* All but the gradients of weights has been done when their turn comes alone. */
static void gpt_launch(gpt_model* model, const gpt_op* op, memo_host_function function,
                       const void* args, size_t args_bytes) {
    if (model->pass != GPT_PASS_WEIGHTS) gpt_enqueue(model, op, function, args, args_bytes);
}

/* Rows [begin, end), taken a tile at a time.  A tile lies in one piece.  (A part may begin inside a
 * tile; it then has the rest of it, whoever computes it and when.) */
typedef struct gpt_span {
    int64_t begin, end, tile_rows;
} gpt_span;

static gpt_span gpt_span_make(const gpt_model* model, int64_t begin, int64_t end) {
    gpt_span span;
    span.begin = begin;
    span.end = end;
    span.tile_rows = model->config.tile_rows;
    return span;
}
/* Of the tile that `row` lies in. */
static int64_t gpt_tile_end(const gpt_span* span, int64_t row) {
    return gpt_min((row / span->tile_rows + 1) * span->tile_rows, span->end);
}
static int64_t gpt_tile(const gpt_span* span, int64_t row) { return gpt_tile_end(span, row) - row; }
static int64_t gpt_columns(const gpt_rows* rows) {
    return rows->row_bytes / (int64_t)sizeof(gpt_real);
}
static gpt_real* gpt_at(const gpt_rows* rows, int64_t row) {
    return (gpt_real*)memo_swap_row(rows, row);
}

/* Where the gradient of the parameters from `offset` on is added up. */
static gpt_real* gpt_gradient(const gpt_model* model, int64_t offset) {
    return model->zero == 2 ? gpt_at(&model->bucket, 0) + (offset - model->bucket_begin)
                            : model->gradients + offset;
}

/* --- linear: y = x W^T --- */
typedef struct gpt_linear_args {
    gpt_span span;
    gpt_rows y, x; /* backward: y is dy */
    gpt_rows dx;
    const gpt_real* weight;
    gpt_real* dweight;
    int64_t n_outputs, n_inputs;
    int32_t is_first; /* backward: dx is set, else added to */
    gpt_pass pass;
} gpt_linear_args;

static memo_status gpt_linear_run(void* pointer, memo_error* error) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_linear_forward(gpt_at(&a->y, row), gpt_at(&a->x, row), a->weight,
                           gpt_tile(&a->span, row), a->n_outputs, a->n_inputs);
    return MEMO_STATUS_OK;
}

static void gpt_linear(gpt_model* model, const char* name, gpt_rows y, gpt_rows x, int64_t weight,
                       int64_t n_outputs, int64_t n_inputs, int64_t begin, int64_t end) {
    gpt_op op = gpt_op_make(name);
    gpt_linear_args a;
    if (gpt_is_idle(model) || begin == end) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.y = y;
    a.x = x;
    a.weight = model->parameters + weight;
    a.n_outputs = n_outputs;
    a.n_inputs = n_inputs;
    gpt_reads_rows(&op, &x, begin, end);
    gpt_reads(&op, a.weight, n_outputs * n_inputs * (int64_t)sizeof(gpt_real));
    gpt_writes_rows(&op, &y, begin, end);
    gpt_launch(model, &op, gpt_linear_run, &a, sizeof a);
}

static memo_status gpt_linear_backward_run(void* pointer, memo_error* error) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row)) {
        const int64_t n = gpt_tile(&a->span, row);
        if (a->pass != GPT_PASS_WEIGHTS)
            gpt_linear_backward(gpt_at(&a->dx, row), gpt_at(&a->y, row), a->weight, a->is_first, n,
                                a->n_outputs, a->n_inputs);
        if (a->pass != GPT_PASS_INPUTS)
            gpt_linear_weights(a->dweight, gpt_at(&a->y, row), gpt_at(&a->x, row), n, a->n_outputs,
                               a->n_inputs);
    }
    return MEMO_STATUS_OK;
}

static void gpt_linear_back(gpt_model* model, const char* name, gpt_rows dx, gpt_rows dy,
                            gpt_rows x, int is_first, int64_t weight, int64_t n_outputs,
                            int64_t n_inputs, int64_t begin, int64_t end) {
    const int64_t weight_bytes = n_outputs * n_inputs * (int64_t)sizeof(gpt_real);
    gpt_op op = gpt_op_make(name);
    gpt_linear_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.y = dy;
    a.x = x;
    a.dx = dx;
    a.weight = model->parameters + weight;
    a.dweight = gpt_gradient(model, weight);
    a.n_outputs = n_outputs;
    a.n_inputs = n_inputs;
    a.is_first = is_first;
    a.pass = model->pass;
    gpt_reads_rows(&op, &dy, begin, end);
    if (a.pass != GPT_PASS_WEIGHTS) {
        gpt_reads(&op, a.weight, weight_bytes);
        gpt_writes_rows(&op, &dx, begin, end);
    }
    if (a.pass != GPT_PASS_INPUTS) {
        gpt_reads_rows(&op, &x, begin, end);
        gpt_writes(&op, a.dweight, weight_bytes);
    }
    gpt_enqueue(model, &op, gpt_linear_backward_run, &a, sizeof a);
}

/* --- norm --- */
typedef struct gpt_norm_args {
    gpt_span span;
    gpt_rows y, x, rstd; /* backward: y is dy */
    gpt_rows dx;         /* added to */
    const gpt_real* weight;
    gpt_real* dweight;
    int64_t hidden;
} gpt_norm_args;

static memo_status gpt_norm_run(void* pointer, memo_error* error) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_norm_forward(gpt_at(&a->y, row), gpt_at(&a->rstd, row), gpt_at(&a->x, row), a->weight,
                         gpt_tile(&a->span, row), a->hidden);
    return MEMO_STATUS_OK;
}

static void gpt_norm(gpt_model* model, const char* name, gpt_rows y, gpt_rows rstd, gpt_rows x,
                     int64_t weight, int64_t begin, int64_t end) {
    gpt_op op = gpt_op_make(name);
    gpt_norm_args a;
    if (gpt_is_idle(model) || begin == end) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.y = y;
    a.x = x;
    a.rstd = rstd;
    a.weight = model->parameters + weight;
    a.hidden = model->config.hidden;
    gpt_reads_rows(&op, &x, begin, end);
    gpt_reads(&op, a.weight, a.hidden * (int64_t)sizeof(gpt_real));
    gpt_writes_rows(&op, &y, begin, end);
    gpt_writes_rows(&op, &rstd, begin, end);
    gpt_launch(model, &op, gpt_norm_run, &a, sizeof a);
}

static memo_status gpt_norm_backward_run(void* pointer, memo_error* error) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_norm_backward(gpt_at(&a->dx, row), a->dweight, gpt_at(&a->y, row), gpt_at(&a->x, row),
                          gpt_at(&a->rstd, row), a->weight, gpt_tile(&a->span, row), a->hidden);
    return MEMO_STATUS_OK;
}

static void gpt_norm_back(gpt_model* model, const char* name, gpt_rows dx, gpt_rows dy, gpt_rows x,
                          gpt_rows rstd, int64_t weight, int64_t begin, int64_t end) {
    gpt_op op = gpt_op_make(name);
    gpt_norm_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.y = dy;
    a.x = x;
    a.rstd = rstd;
    a.dx = dx;
    a.weight = model->parameters + weight;
    a.dweight = gpt_gradient(model, weight);
    a.hidden = model->config.hidden;
    gpt_reads_rows(&op, &dy, begin, end);
    gpt_reads_rows(&op, &x, begin, end);
    gpt_reads_rows(&op, &rstd, begin, end);
    gpt_reads(&op, a.weight, a.hidden * (int64_t)sizeof(gpt_real));
    gpt_writes_rows(&op, &dx, begin, end);
    gpt_writes(&op, a.dweight, a.hidden * (int64_t)sizeof(gpt_real));
    gpt_launch(model, &op, gpt_norm_backward_run, &a, sizeof a);
}

/* --- element by element: dropout, residual, GELU --- */
typedef struct gpt_elements_args {
    gpt_span span;
    gpt_rows y, x, z; /* y from x and, where there are two, z */
    int64_t n_columns, first_token;
    const gpt_share* share; /* of the model, which outlives the operation */
    gpt_dropout dropout;
} gpt_elements_args;

static memo_status gpt_dropout_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    int64_t row, n, token;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row += n) {
        n = gpt_run_of_tokens(a->share, row, gpt_tile_end(&a->span, row), &token);
        gpt_dropout_apply(gpt_at(&a->y, row), gpt_at(&a->x, row), &a->dropout,
                          a->first_token + token, n, a->n_columns);
    }
    return MEMO_STATUS_OK;
}

static memo_status gpt_residual_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    int64_t row, n, token;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row += n) {
        n = gpt_run_of_tokens(a->share, row, gpt_tile_end(&a->span, row), &token);
        gpt_residual_forward(gpt_at(&a->y, row), gpt_at(&a->x, row), gpt_at(&a->z, row),
                             &a->dropout, a->first_token + token, n, a->n_columns);
    }
    return MEMO_STATUS_OK;
}

static memo_status gpt_gelu_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_gelu_forward(gpt_at(&a->y, row), gpt_at(&a->x, row), gpt_tile(&a->span, row),
                         a->n_columns);
    return MEMO_STATUS_OK;
}

static memo_status gpt_gelu_backward_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_gelu_backward(gpt_at(&a->y, row), gpt_at(&a->x, row), gpt_at(&a->z, row),
                          gpt_tile(&a->span, row), a->n_columns);
    return MEMO_STATUS_OK;
}

/* z and dropout may be NULL. */
static void gpt_elements(gpt_model* model, const char* name, memo_host_function function,
                         gpt_rows y, gpt_rows x, const gpt_rows* z, const gpt_dropout* dropout,
                         int64_t begin, int64_t end) {
    gpt_op op = gpt_op_make(name);
    gpt_elements_args a;
    if (gpt_is_idle(model) || begin == end) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.y = y;
    a.x = x;
    a.n_columns = y.row_bytes / (int64_t)sizeof(gpt_real);
    a.first_token = model->first_token;
    a.share = &model->share;
    if (z) a.z = *z;
    if (dropout) a.dropout = *dropout;
    gpt_reads_rows(&op, &x, begin, end);
    if (z) gpt_reads_rows(&op, z, begin, end);
    gpt_writes_rows(&op, &y, begin, end);
    gpt_launch(model, &op, function, &a, sizeof a);
}

/* --- RoPE, in place --- */
typedef struct gpt_rope_args {
    gpt_span span;
    gpt_rows x;
    const gpt_real* table; /* a row for each position of this rank */
    int64_t sequence, n_heads, head_size;
    int direction;
} gpt_rope_args;

static memo_status gpt_rope_run(void* pointer, memo_error* error) {
    const gpt_rope_args* a = (const gpt_rope_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_rope(gpt_at(&a->x, row), a->table, a->direction, row, gpt_tile(&a->span, row),
                 a->sequence, a->n_heads, a->head_size);
    return MEMO_STATUS_OK;
}

static void gpt_rope_rows(gpt_model* model, const char* name, gpt_rows x, int direction,
                          int64_t begin, int64_t end) {
    gpt_op op = gpt_op_make(name);
    gpt_rope_args a;
    if (gpt_is_idle(model) || begin == end) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.x = x;
    a.table = model->rope;
    a.sequence = model->share.layout.local_tokens;
    a.head_size = model->config.hidden / model->config.n_heads;
    a.n_heads = x.row_bytes / (a.head_size * (int64_t)sizeof(gpt_real));
    a.direction = direction;
    gpt_reads_rows(&op, &x, begin, end);
    gpt_reads(&op, a.table, a.sequence * a.head_size * (int64_t)sizeof(gpt_real));
    gpt_writes_rows(&op, &x, begin, end);
    gpt_launch(model, &op, gpt_rope_run, &a, sizeof a);
}

/* --- attention over the ranks that hold a sequence --- */
static memo_sp_attention_desc gpt_sp_desc(const gpt_config* config, const gpt_share* share) {
    memo_sp_attention_desc desc = memo_sp_attention_desc_default();
    desc.layout = share->layout;
    desc.n_batch = (int32_t)share->batch / gpt_degree(config->sub_batches);
    desc.n_q_heads = config->n_heads / gpt_degree(config->tensor);
    desc.n_kv_heads = config->n_kv_heads / gpt_degree(config->tensor);
    desc.head_size = config->hidden / config->n_heads;
    desc.sends_again =
        1; /* q, k and v by rows are swapped or recomputed; by heads they are not kept */
    return desc;
}

/* Of the rank that needs most, so that all ranks have one plan; 0 where no sequence is split. */
static int64_t gpt_sp_bytes(const gpt_config* config, const gpt_share* share) {
    memo_sp_attention_desc desc = gpt_sp_desc(config, share);
    memo_sp_attention_sizes sizes;
    int64_t most = 0;
    if (share->layout.ring * share->layout.ulysses == 1) return 0;
    for (; desc.ulysses_rank < share->layout.ulysses; desc.ulysses_rank++)
        if (!memo_sp_attention_get_sizes(&desc, &sizes, NULL) && sizes.device_bytes > most)
            most = sizes.device_bytes;
    return most;
}

static memo_sp_attention_tensors gpt_sp_tensors(const gpt_rows* tensors, int64_t begin) {
    memo_sp_attention_tensors t;
    memset(&t, 0, sizeof t);
    t.q = gpt_at(&tensors[GPT_Q], begin);
    t.k = gpt_at(&tensors[GPT_K], begin);
    t.v = gpt_at(&tensors[GPT_V], begin);
    t.out = gpt_at(&tensors[GPT_ATTENTION], begin);
    t.lse = (float*)(void*)gpt_at(&tensors[GPT_LSE], begin);
    return t;
}

/* --- attention, of whole sequences, or of the queries of a part of one --- */
typedef struct gpt_attention_args {
    gpt_attention_shape shape;
    int64_t batch;
    const gpt_real *q, *k, *v;
    gpt_real *out, *lse;
    const gpt_real* dout;
    gpt_real *dq, *dk, *dv, *delta;
} gpt_attention_args;

/* Where the keys of the queries [begin, end) begin. */
static int64_t gpt_first_key(const gpt_model* model, int64_t begin) {
    return model->tensor.splits_sequence ? 0 : begin;
}

static gpt_attention_args gpt_attention_args_make(const gpt_model* model, const gpt_rows* tensors,
                                                  int64_t begin, int64_t end) {
    const int64_t first = gpt_first_key(model, begin);
    gpt_attention_args a;
    memset(&a, 0, sizeof a);
    a.shape.first = begin - first;
    a.shape.sequence = model->tensor.splits_sequence ? end : model->config.sequence;
    a.shape.head_size = model->config.hidden / model->config.n_heads;
    a.shape.n_heads = gpt_columns(&tensors[GPT_Q]) / a.shape.head_size; /* of this rank */
    a.shape.n_kv_heads = gpt_columns(&tensors[GPT_K]) / a.shape.head_size;
    /* To what later parts, which came before, have added. */
    a.shape.adds = model->tensor.splits_sequence && end < model->n_rows;
    a.batch = model->tensor.splits_sequence ? 1 : (end - begin) / model->config.sequence;
    a.q = gpt_at(&tensors[GPT_Q], begin); /* these five are contiguous */
    a.k = gpt_at(&tensors[GPT_K], first);
    a.v = gpt_at(&tensors[GPT_V], first);
    a.out = gpt_at(&tensors[GPT_ATTENTION], begin);
    a.lse = gpt_at(&tensors[GPT_LSE], begin);
    return a;
}

static memo_status gpt_attention_run(void* pointer, memo_error* error) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    const int64_t q_columns = a->shape.n_heads * a->shape.head_size;
    const int64_t kv_columns = a->shape.n_kv_heads * a->shape.head_size;
    int64_t b;
    (void)error;
    for (b = 0; b < a->batch; b++) {
        const int64_t row = b * a->shape.sequence;
        gpt_attention_forward(a->out + row * q_columns, a->lse + row * a->shape.n_heads,
                              a->q + row * q_columns, a->k + row * kv_columns,
                              a->v + row * kv_columns, &a->shape);
    }
    return MEMO_STATUS_OK;
}

static void gpt_attention(gpt_model* model, const gpt_rows* tensors, int64_t begin, int64_t end) {
    const int64_t first = gpt_first_key(model, begin);
    gpt_op op = gpt_op_make("attention");
    gpt_attention_args a;
    if (gpt_is_idle(model)) return;
    if (model->attention) {
        const memo_sp_attention_tensors t = gpt_sp_tensors(tensors, begin);
        const memo_mask causal = memo_mask_default();
        model->status = memo_sp_attention_forward(model->attention, &t, &causal, &model->error);
        return;
    }
    a = gpt_attention_args_make(model, tensors, begin, end);
    gpt_reads_rows(&op, &tensors[GPT_Q], begin, end);
    gpt_reads_rows(&op, &tensors[GPT_K], first, end);
    gpt_reads_rows(&op, &tensors[GPT_V], first, end);
    gpt_writes_rows(&op, &tensors[GPT_ATTENTION], begin, end);
    gpt_writes_rows(&op, &tensors[GPT_LSE], begin, end);
    gpt_launch(model, &op, gpt_attention_run, &a, sizeof a);
}

static memo_status gpt_attention_backward_run(void* pointer, memo_error* error) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    const int64_t q_columns = a->shape.n_heads * a->shape.head_size;
    const int64_t kv_columns = a->shape.n_kv_heads * a->shape.head_size;
    int64_t b;
    (void)error;
    for (b = 0; b < a->batch; b++) {
        const int64_t row = b * a->shape.sequence, head_row = row * a->shape.n_heads;
        gpt_attention_backward(a->dq + row * q_columns, a->dk + row * kv_columns,
                               a->dv + row * kv_columns, a->delta + head_row,
                               a->dout + row * q_columns, a->out + row * q_columns,
                               a->lse + head_row, a->q + row * q_columns, a->k + row * kv_columns,
                               a->v + row * kv_columns, &a->shape);
    }
    return MEMO_STATUS_OK;
}

static void gpt_attention_back(gpt_model* model, const gpt_rows* tensors, gpt_rows dq, gpt_rows dk,
                               gpt_rows dv, gpt_rows delta, gpt_rows dout, int64_t begin,
                               int64_t end) {
    const int64_t first = gpt_first_key(model, begin);
    gpt_op op = gpt_op_make("attention");
    gpt_attention_args a;
    int t;
    if (gpt_is_idle(model) || model->pass == GPT_PASS_WEIGHTS) return;
    if (model->attention) {
        memo_sp_attention_tensors s = gpt_sp_tensors(tensors, begin);
        const memo_mask causal = memo_mask_default();
        s.d_out = gpt_at(&dout, begin);
        s.d_q = gpt_at(&dq, begin);
        s.d_k = gpt_at(&dk, begin);
        s.d_v = gpt_at(&dv, begin);
        model->status = memo_sp_attention_backward(model->attention, &s, &causal, &model->error);
        return;
    }
    a = gpt_attention_args_make(model, tensors, begin, end);
    a.dout = gpt_at(&dout, begin);
    a.dq = gpt_at(&dq, begin);
    a.dk = gpt_at(&dk, first);
    a.dv = gpt_at(&dv, first);
    a.delta = gpt_at(&delta, begin);
    for (t = GPT_Q; t <= GPT_LSE; t++)
        gpt_reads_rows(&op, &tensors[t], t == GPT_K || t == GPT_V ? first : begin, end);
    gpt_reads_rows(&op, &dout, begin, end);
    gpt_writes_rows(&op, &dq, begin, end);
    gpt_writes_rows(&op, &dk, first, end);
    gpt_writes_rows(&op, &dv, first, end);
    gpt_writes_rows(&op, &delta, begin, end);
    gpt_launch(model, &op, gpt_attention_backward_run, &a, sizeof a);
}

/* --- what touches tokens: embedding, loss --- */
typedef struct gpt_tokens_args {
    gpt_span span;
    gpt_rows x;
    gpt_real* table;       /* embedding (vocabulary, hidden), or its gradient */
    const uint8_t* tokens; /* (rows); cross-entropy: the targets */
    const gpt_share* share;
    double* loss;
    double loss_scale;
    int64_t n_columns;
} gpt_tokens_args;

static memo_status gpt_embedding_run(void* pointer, memo_error* error) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_embedding_forward(gpt_at(&a->x, row), a->table, a->tokens + row,
                              gpt_tile(&a->span, row), a->n_columns);
    return MEMO_STATUS_OK;
}

static memo_status gpt_embedding_backward_run(void* pointer, memo_error* error) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    int64_t row;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row = gpt_tile_end(&a->span, row))
        gpt_embedding_backward(a->table, gpt_at(&a->x, row), a->tokens + row,
                               gpt_tile(&a->span, row), a->n_columns);
    return MEMO_STATUS_OK;
}

static memo_status gpt_cross_entropy_run(void* pointer, memo_error* error) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    int64_t row, n, token;
    (void)error;
    for (row = a->span.begin; row < a->span.end; row += n) {
        n = gpt_run_of_tokens(a->share, row, gpt_tile_end(&a->span, row), &token);
        if (token < 0) /* padding has no loss, and so no gradient */
            memset(gpt_at(&a->x, row), 0, (size_t)(n * a->n_columns) * sizeof(gpt_real));
        else
            *a->loss += gpt_cross_entropy(gpt_at(&a->x, row), a->tokens + row, a->loss_scale, n,
                                          a->n_columns);
    }
    return MEMO_STATUS_OK;
}

static void gpt_embedding(gpt_model* model, gpt_rows x, const uint8_t* tokens, int is_backward) {
    const int64_t table_bytes = GPT_VOCABULARY * model->config.hidden * (int64_t)sizeof(gpt_real);
    gpt_op op = gpt_op_make("embedding");
    gpt_tokens_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, 0, model->n_rows);
    a.x = x;
    a.table = is_backward ? gpt_gradient(model, model->layout.embedding)
                          : model->parameters + model->layout.embedding;
    a.tokens = tokens;
    a.n_columns = model->config.hidden;
    gpt_reads(&op, tokens, model->n_rows);
    if (is_backward) {
        gpt_reads_rows(&op, &x, 0, model->n_rows);
        gpt_writes(&op, a.table, table_bytes);
    } else {
        gpt_reads(&op, a.table, table_bytes);
        gpt_writes_rows(&op, &x, 0, model->n_rows);
    }
    gpt_launch(model, &op, is_backward ? gpt_embedding_backward_run : gpt_embedding_run, &a,
               sizeof a);
}

/* Adds to the loss; logits become their gradient. */
static void gpt_loss(gpt_model* model, gpt_rows logits, const uint8_t* targets, double loss_scale,
                     int64_t begin, int64_t end) {
    gpt_op op = gpt_op_make("cross-entropy");
    gpt_tokens_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.span = gpt_span_make(model, begin, end);
    a.x = logits;
    a.tokens = targets;
    a.share = &model->share;
    a.loss = &model->totals[GPT_TOTAL_LOSS];
    a.loss_scale = loss_scale;
    a.n_columns = GPT_VOCABULARY;
    gpt_reads_rows(&op, &logits, begin, end);
    gpt_reads(&op, targets + begin, end - begin);
    gpt_writes_rows(&op, &logits, begin, end);
    gpt_writes(&op, a.loss, (int64_t)sizeof(double));
    gpt_launch(model, &op, gpt_cross_entropy_run, &a, sizeof a);
}

/* --- buckets: what is summed, and split, at a time --- */

/* The embedding, each layer, and final norm with classifier. */
static int64_t gpt_n_buckets(const gpt_config* config) { return config->n_layers + 2; }
static int64_t gpt_bucket_begin(const gpt_model* model, int64_t bucket) {
    const gpt_layout* at = &model->layout;
    if (bucket == 0) return 0;
    if (bucket == gpt_n_buckets(&model->config)) return at->n;
    return at->layers + (bucket - 1) * at->layer_stride;
}
static int64_t gpt_bucket_of(const gpt_config* config, int64_t tensor) { /* gpt_parameter_at */
    const int64_t last = gpt_n_buckets(config) - 1;
    return tensor == 0 ? 0 : gpt_min((tensor - 1) / 8 + 1, last);
}

/* A rank's part of a bucket: parameters [begin, end), and where its gradient and moments lie. */
typedef struct gpt_part {
    int64_t begin, end;
    gpt_real *gradients, *moments1, *moments2;
} gpt_part;

static gpt_part gpt_part_at(const gpt_model* model, int64_t bucket, int32_t rank) {
    const int64_t begin = gpt_bucket_begin(model, bucket), n_ranks = model->share.n_ranks;
    const int64_t n = (gpt_bucket_begin(model, bucket + 1) - begin) / n_ranks;
    gpt_part part;
    part.begin = begin + rank * n;
    part.end = part.begin + n;
    part.gradients = model->gradients + (model->zero == 2 ? begin / n_ranks : part.begin);
    part.moments1 = model->moments1 + (model->zero ? begin / n_ranks : part.begin);
    part.moments2 = model->moments2 + (part.moments1 - model->moments1);
    return part;
}

/* The ranks whose parts this one updates: its own, or all. */
static int32_t gpt_first_part(const gpt_model* model) {
    return model->zero ? model->share.rank : 0;
}
static int32_t gpt_end_part(const gpt_model* model) {
    return model->zero ? model->share.rank + 1 : model->share.n_ranks;
}

typedef struct gpt_sum_args {
    gpt_real* to; /* += from */
    const gpt_real* from;
    int64_t n;
} gpt_sum_args;

static memo_status gpt_sum_run(void* pointer, memo_error* error) {
    const gpt_sum_args* a = (const gpt_sum_args*)pointer;
    int64_t i;
    (void)error;
    for (i = 0; i < a->n; i++) a->to[i] += a->from[i];
    return MEMO_STATUS_OK;
}

/* Sums n reals at `gradients` over ranks; each gets its part of the sum, in place. */
static void gpt_reduce_scatter(gpt_model* model, gpt_real* gradients, int64_t n) {
    const int64_t n_part = n / model->share.n_ranks;
    gpt_op op = gpt_op_make("sum over ranks");
    if (gpt_is_idle(model)) return;
    gpt_reads(&op, gradients, n * (int64_t)sizeof *gradients);
    gpt_writes(&op, gradients + model->share.rank * n_part, n_part * (int64_t)sizeof *gradients);
    gpt_announce(model, &op);
    if (!model->status)
        model->status = model->gradient->reduce_scatter(
            model->gradient, model->compute, gradients, gradients + model->share.rank * n_part,
            n_part, GPT_TYPE, MEMO_REDUCTION_SUM, &model->error);
}

/* With zero 2 a bucket has a gradient only while its backward runs. */
static void gpt_begin_bucket(gpt_model* model, int64_t bucket) {
    const int64_t begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_bucket_begin(model, bucket + 1) - begin;
    if (model->zero < 2) return;
    model->bucket = gpt_take(model, 0, n, 1);
    model->bucket_begin = begin;
    if (!gpt_is_idle(model))
        model->status =
            model->device.fill(model->device.context, model->compute, gpt_at(&model->bucket, 0), 0,
                               n * model->bucket.row_bytes, &model->error);
}

static void gpt_end_bucket(gpt_model* model, int64_t bucket) {
    const int64_t begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_bucket_begin(model, bucket + 1) - begin;
    gpt_op op = gpt_op_make("add to the rank's part");
    gpt_sum_args a;
    if (model->zero < 2) return;
    if (!gpt_is_idle(model)) {
        gpt_reduce_scatter(model, gpt_at(&model->bucket, 0), n);
        a.n = n / model->share.n_ranks;
        a.to = gpt_part_at(model, bucket, model->share.rank).gradients;
        a.from = gpt_at(&model->bucket, 0) + model->share.rank * a.n;
        gpt_reads(&op, a.from, a.n * (int64_t)sizeof(gpt_real));
        gpt_writes(&op, a.to, a.n * (int64_t)sizeof(gpt_real));
        gpt_launch(model, &op, gpt_sum_run, &a, sizeof a);
    }
    gpt_give(model, model->bucket);
}

static void gpt_sum_layer_gradients(gpt_model* model);

/* The gradient of all micro-batches becomes that of all ranks, once a step; with zero 2 it is. */
static void gpt_reduce_gradients(gpt_model* model) {
    gpt_op op = gpt_op_make("sum over ranks");
    int64_t b;
    if (model->is_reduced) return;
    model->is_reduced = 1;
    if (model->gradient && model->zero == 0) {
        gpt_reads(&op, model->gradients, model->layout.n * (int64_t)sizeof(gpt_real));
        gpt_writes(&op, model->gradients, model->layout.n * (int64_t)sizeof(gpt_real));
        gpt_announce(model, &op);
        if (!model->status)
            model->status = model->gradient->all_reduce(
                model->gradient, model->compute, model->gradients, model->gradients,
                model->layout.n, GPT_TYPE, MEMO_REDUCTION_SUM, &model->error);
    }
    for (b = 0; b < gpt_n_buckets(&model->config) && model->zero == 1; b++)
        gpt_reduce_scatter(model, model->gradients + gpt_bucket_begin(model, b),
                           gpt_bucket_begin(model, b + 1) - gpt_bucket_begin(model, b));
    gpt_sum_layer_gradients(model);
}

static void gpt_reduce_total(gpt_model* model, memo_comm* ranks, int first, int end) {
    double* totals = model->totals + first;
    const int64_t n_bytes = (end - first) * (int64_t)sizeof(double);
    gpt_op op = gpt_op_make("totals over ranks");
    if (!ranks || ranks->size == 1) return;
    gpt_reads(&op, totals, n_bytes);
    gpt_writes(&op, totals, n_bytes);
    gpt_announce(model, &op);
    if (!model->status)
        model->status = ranks->all_reduce(ranks, model->compute, totals, totals, end - first,
                                          MEMO_TYPE_F64, MEMO_REDUCTION_SUM, &model->error);
}

/* Loss and votes of all ranks; the squares too where each has summed its own part.  Tensor ranks
 * have the same loss. */
static void gpt_reduce_totals(gpt_model* model) {
    gpt_reduce_total(model, model->tensor.ranks, GPT_TOTAL_VOTES, GPT_N_TOTALS);
    gpt_reduce_total(model, model->gradient, 0, model->zero ? GPT_N_TOTALS : GPT_TOTAL_SQUARES);
}

/* Each rank has updated its part; all get the others'. */
static void gpt_gather_parameters(gpt_model* model) {
    int64_t b;
    for (b = 0; b < gpt_n_buckets(&model->config) && model->zero && !model->status; b++) {
        const gpt_part part = gpt_part_at(model, b, model->share.rank);
        gpt_real* bucket = model->parameters + gpt_bucket_begin(model, b);
        const int64_t n = part.end - part.begin;
        gpt_op op = gpt_op_make("gather parameters");
        gpt_reads(&op, model->parameters + part.begin, n * (int64_t)sizeof(gpt_real));
        gpt_writes(&op, bucket, n * model->share.n_ranks * (int64_t)sizeof(gpt_real));
        gpt_announce(model, &op);
        if (!model->status)
            model->status = model->gradient->all_gather(model->gradient, model->compute,
                                                        model->parameters + part.begin, bucket, n,
                                                        GPT_TYPE, &model->error);
    }
}

/* --- the update --- */
typedef struct gpt_update_args {
    gpt_model* model; /* outlives the operation: gpt_destroy waits for the stream */
    gpt_adamw_desc adamw;
    double clip, vote;
} gpt_update_args;

/* Of what lower tensor ranks have no copy of. */
static void gpt_add_split_squares(const gpt_model* model, double lanes[GPT_LANES], int64_t bucket,
                                  const gpt_part* part) {
    int64_t t;
    for (t = 0; t < gpt_n_parameter_tensors(&model->config); t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        const int64_t begin = p.offset > part->begin ? p.offset : part->begin;
        const int64_t end = gpt_min(p.offset + p.n, part->end);
        if (model->share.tensor_rank < p.degree && gpt_bucket_of(&model->config, t) == bucket &&
            begin < end)
            gpt_add_squares(lanes, part->gradients + (begin - part->begin), end - begin);
    }
}

/* Part by part in the order of ranks, as they are summed where each rank has its own. */
static memo_status gpt_gradient_norm_run(void* pointer, memo_error* error) {
    const gpt_update_args* a = (const gpt_update_args*)pointer;
    const gpt_model* model = a->model;
    int64_t b;
    int32_t r;
    (void)error;
    model->totals[GPT_TOTAL_VOTES] = a->vote;
    model->totals[GPT_TOTAL_SQUARES] = 0;
    for (r = gpt_first_part(model); r < gpt_end_part(model); r++) {
        double lanes[GPT_LANES] = {0};
        for (b = 0; b < gpt_n_buckets(&model->config); b++) {
            const gpt_part part = gpt_part_at(model, b, r);
            if (model->share.tensor_rank == 0)
                gpt_add_squares(lanes, part.gradients, part.end - part.begin);
            else
                gpt_add_split_squares(model, lanes, b, &part);
        }
        model->totals[GPT_TOTAL_SQUARES] += gpt_sum_squares(lanes);
    }
    return MEMO_STATUS_OK;
}

/* What of a tensor lies in the part. */
static void gpt_adamw_part(gpt_model* model, const gpt_part* part, const gpt_parameter* p,
                           double scale, const gpt_adamw_desc* adamw) {
    const int64_t begin = p->offset > part->begin ? p->offset : part->begin;
    const int64_t end = gpt_min(p->offset + p->n, part->end), at = begin - part->begin;
    if (begin < end)
        gpt_adamw(model->parameters + begin, part->moments1 + at, part->moments2 + at,
                  part->gradients + at, scale, adamw, end - begin);
}

static memo_status gpt_adamw_run(void* pointer, memo_error* error) {
    const gpt_update_args* a = (const gpt_update_args*)pointer;
    gpt_model* model = a->model;
    const double norm = sqrt(model->totals[GPT_TOTAL_SQUARES]);
    const double scale = a->clip > 0 && norm > a->clip ? a->clip / norm : 1;
    int64_t t;
    int32_t r;
    (void)error;
    for (t = 0; t < gpt_n_parameter_tensors(&model->config); t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        gpt_adamw_desc adamw = a->adamw;
        if (p.initial_std <= 0) adamw.weight_decay = 0;
        for (r = gpt_first_part(model); r < gpt_end_part(model); r++) {
            const gpt_part part = gpt_part_at(model, gpt_bucket_of(&model->config, t), r);
            gpt_adamw_part(model, &part, &p, scale, &adamw);
        }
    }
    return MEMO_STATUS_OK;
}

/* The arguments are copied at launch and must fit. */
typedef char gpt_linear_args_fit[sizeof(gpt_linear_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
typedef char gpt_norm_args_fit[sizeof(gpt_norm_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
typedef char gpt_elements_args_fit[sizeof(gpt_elements_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
typedef char gpt_attention_args_fit[sizeof(gpt_attention_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];

/* ---- a layer ------------------------------------------------------------------------------- */

static gpt_rows gpt_tensor(const gpt_model* model, int32_t layer, int tensor) {
    gpt_rows nowhere;
    memset(&nowhere, 0, sizeof nowhere);
    return model->is_dry_run ? nowhere : model->tensors[layer][tensor];
}

/* Where degrees differ, a layer's rows may be narrower than those that the engine has room for: they
 * then lie side by side in the same place. */
static void gpt_narrow(const gpt_config* config, int32_t layer, gpt_rows tensors[GPT_N_TENSORS]) {
    const gpt_widths w = gpt_widths_of(config, layer);
    tensors[GPT_Q].row_bytes = tensors[GPT_ATTENTION].row_bytes = w.q * (int64_t)sizeof(gpt_real);
    tensors[GPT_K].row_bytes = tensors[GPT_V].row_bytes = w.kv * (int64_t)sizeof(gpt_real);
    tensors[GPT_LSE].row_bytes = w.heads * (int64_t)sizeof(gpt_real);
    tensors[GPT_UP].row_bytes = tensors[GPT_GELU].row_bytes = w.wide * (int64_t)sizeof(gpt_real);
}

static gpt_dropout gpt_dropout_at(const gpt_model* model, int32_t layer, int site) {
    return gpt_dropout_make(model->config.dropout, model->config.seed, model->step, layer, site);
}

/* The rows from the first to the last that either needs. */
static gpt_need gpt_need_either(gpt_need a, gpt_need b) {
    if (a.begin == a.end) return b;
    if (b.begin == b.end) return a;
    a.begin = gpt_min(a.begin, b.begin);
    a.end = a.end > b.end ? a.end : b.end;
    return a;
}

static gpt_need gpt_rows_make(int64_t begin, int64_t end) {
    gpt_need rows;
    rows.begin = begin;
    rows.end = end;
    return rows;
}
static gpt_need gpt_need_in(gpt_need need, gpt_need rows) {
    need.begin = need.begin > rows.begin ? need.begin : rows.begin;
    need.end = gpt_min(need.end, rows.end);
    if (need.begin >= need.end) need.begin = need.end = rows.begin;
    return need;
}

/* --- two blocks ---
 *
 * Rows to compute: all of a part in the forward; before the backward, those of the part that were
 * neither kept nor swapped, whatever they are of each tensor: what they are computed from is kept,
 * back, or recomputed just before.  The same operations on the same tiles give the same bits, also
 * in rows that were there already.  A norm's rstd comes with it, lse with the attention. */

/* From the layer's input to the projection, into y (rows, hidden), of as many rows as `middle`
 * needs; over tensor ranks y is a partial sum. */
static void gpt_compute_attention(gpt_model* model, int32_t layer,
                                  const gpt_need need[GPT_N_TENSORS], gpt_need rows, gpt_rows y) {
    const gpt_layout* at = &model->layout;
    const int64_t weights = at->layers + layer * at->layer_stride;
    const int64_t hidden = model->config.hidden;
    const gpt_widths w = gpt_widths_of(&model->config, layer);
    gpt_rows t[GPT_N_TENSORS];
    int i;
    for (i = 0; i < GPT_N_TENSORS; i++) t[i] = gpt_tensor(model, layer, i);

    gpt_norm(model, "norm1", t[GPT_NORM1], t[GPT_RSTD1], t[GPT_INPUT], weights + at->norm1,
             need[GPT_NORM1].begin, need[GPT_NORM1].end);
    gpt_linear(model, "query", t[GPT_Q], t[GPT_NORM1], weights + at->query, w.q, hidden,
               need[GPT_Q].begin, need[GPT_Q].end);
    gpt_linear(model, "key", t[GPT_K], t[GPT_NORM1], weights + at->key, w.kv, hidden,
               need[GPT_K].begin, need[GPT_K].end);
    gpt_linear(model, "value", t[GPT_V], t[GPT_NORM1], weights + at->value, w.kv, hidden,
               need[GPT_V].begin, need[GPT_V].end);
    gpt_rope_rows(model, "RoPE of q", t[GPT_Q], 1, need[GPT_Q].begin, need[GPT_Q].end);
    gpt_rope_rows(model, "RoPE of k", t[GPT_K], 1, need[GPT_K].begin, need[GPT_K].end);
    /* A query needs keys of all rows before it: attention is computed for all rows or not at all. */
    if (need[GPT_ATTENTION].begin < need[GPT_ATTENTION].end)
        gpt_attention(model, t, rows.begin, rows.end);
    gpt_linear(model, "projection", y, t[GPT_ATTENTION], weights + at->projection, hidden, w.q,
               need[GPT_MIDDLE].begin, need[GPT_MIDDLE].end);
}

/* `to` = `from` and what a block makes of it: y, dropped out. */
static void gpt_residual(gpt_model* model, gpt_rows to, gpt_rows from, gpt_rows y, int32_t layer,
                         int site, gpt_need rows) {
    const gpt_dropout dropout = gpt_dropout_at(model, layer, site);
    gpt_elements(model, "residual", gpt_residual_run, to, from, &y, &dropout, rows.begin, rows.end);
}

/* From middle to GELU. */
static void gpt_compute_mlp(gpt_model* model, int32_t layer, const gpt_need need[GPT_N_TENSORS]) {
    const gpt_layout* at = &model->layout;
    const int64_t weights = at->layers + layer * at->layer_stride;
    gpt_norm(model, "norm2", gpt_tensor(model, layer, GPT_NORM2),
             gpt_tensor(model, layer, GPT_RSTD2), gpt_tensor(model, layer, GPT_MIDDLE),
             weights + at->norm2, need[GPT_NORM2].begin, need[GPT_NORM2].end);
    gpt_linear(model, "up", gpt_tensor(model, layer, GPT_UP), gpt_tensor(model, layer, GPT_NORM2),
               weights + at->up, gpt_widths_of(&model->config, layer).wide, model->config.hidden,
               need[GPT_UP].begin, need[GPT_UP].end);
    gpt_elements(model, "GELU", gpt_gelu_run, gpt_tensor(model, layer, GPT_GELU),
                 gpt_tensor(model, layer, GPT_UP), NULL, NULL, need[GPT_GELU].begin,
                 need[GPT_GELU].end);
}

/* The MLP's last product, which the backward does not need; over tensor ranks a partial sum. */
static void gpt_down(gpt_model* model, int32_t layer, gpt_rows y, gpt_need rows) {
    const gpt_layout* at = &model->layout;
    gpt_linear(model, "down", y, gpt_tensor(model, layer, GPT_GELU),
               at->layers + layer * at->layer_stride + at->down, model->config.hidden,
               gpt_widths_of(&model->config, layer).wide, rows.begin, rows.end);
}

/* dx: the gradient of the block's output stream.  That of its input, the stream itself left out, is
 * added to `to`, which may be dx; over tensor ranks it is a partial sum, through the norm, which is
 * linear in it. */
static void gpt_backward_mlp(gpt_model* model, int32_t layer, gpt_rows to, gpt_rows dx,
                             gpt_need rows) {
    const gpt_layout* at = &model->layout;
    const int64_t weights = at->layers + layer * at->layer_stride;
    const int64_t hidden = model->config.hidden, begin = rows.begin, end = rows.end;
    const gpt_dropout dropout = gpt_dropout_at(model, layer, GPT_SITE_MLP);
    const gpt_rows up = gpt_tensor(model, layer, GPT_UP);
    const gpt_widths w = gpt_widths_of(&model->config, layer);
    gpt_rows masked, d_gelu, d_up, d_norm;
    masked = gpt_take(model, begin, end, hidden);
    gpt_elements(model, "dropout", gpt_dropout_run, masked, dx, NULL, &dropout, begin, end);
    d_gelu = gpt_take(model, begin, end, w.wide);
    gpt_linear_back(model, "down", d_gelu, masked, gpt_tensor(model, layer, GPT_GELU), 1,
                    weights + at->down, hidden, w.wide, begin, end);
    gpt_give(model, masked);
    d_up = gpt_take(model, begin, end, w.wide);
    gpt_elements(model, "GELU", gpt_gelu_backward_run, d_up, d_gelu, &up, NULL, begin, end);
    gpt_give(model, d_gelu);
    d_norm = gpt_take(model, begin, end, hidden);
    gpt_linear_back(model, "up", d_norm, d_up, gpt_tensor(model, layer, GPT_NORM2), 1,
                    weights + at->up, w.wide, hidden, begin, end);
    gpt_give(model, d_up);
    gpt_norm_back(model, "norm2", to, d_norm, gpt_tensor(model, layer, GPT_MIDDLE),
                  gpt_tensor(model, layer, GPT_RSTD2), weights + at->norm2, begin, end);
    gpt_give(model, d_norm);
}

/* Rows of the keys' gradients: those of the part, or all where other parts add to them. */
static gpt_rows gpt_take_keys(gpt_model* model, gpt_rows shared, gpt_need rows, int64_t n_columns) {
    return model->tensor.splits_sequence ? shared
                                         : gpt_take(model, rows.begin, rows.end, n_columns);
}
static void gpt_give_keys(gpt_model* model, gpt_rows keys) {
    if (!model->tensor.splits_sequence) gpt_give(model, keys);
}

static void gpt_backward_attention(gpt_model* model, int32_t layer, gpt_rows to, gpt_rows dx,
                                   gpt_need rows) {
    const gpt_layout* at = &model->layout;
    const int64_t weights = at->layers + layer * at->layer_stride;
    const int64_t hidden = model->config.hidden, begin = rows.begin, end = rows.end;
    const gpt_dropout dropout = gpt_dropout_at(model, layer, GPT_SITE_PROJECTION);
    const gpt_widths w = gpt_widths_of(&model->config, layer);
    gpt_rows t[GPT_N_TENSORS], masked, d_norm, d_attention, dq, dk, dv, delta;
    int i;
    for (i = 0; i < GPT_N_TENSORS; i++) t[i] = gpt_tensor(model, layer, i);

    masked = gpt_take(model, begin, end, hidden);
    gpt_elements(model, "dropout", gpt_dropout_run, masked, dx, NULL, &dropout, begin, end);
    d_attention = gpt_take(model, begin, end, w.q);
    gpt_linear_back(model, "projection", d_attention, masked, t[GPT_ATTENTION], 1,
                    weights + at->projection, hidden, w.q, begin, end);
    gpt_give(model, masked);
    dq = gpt_take(model, begin, end, w.q);
    dk = gpt_take_keys(model, model->tensor.d_key, rows, w.kv);
    dv = gpt_take_keys(model, model->tensor.d_value, rows, w.kv);
    /* Not needed over ranks of a sequence, but small. */
    delta = gpt_take(model, begin, end, w.heads);
    gpt_attention_back(model, t, dq, dk, dv, delta, d_attention, begin, end);
    gpt_give(model, delta);
    gpt_give(model, d_attention);
    gpt_rope_rows(model, "RoPE of q", dq, -1, begin, end);
    gpt_rope_rows(model, "RoPE of k", dk, -1, begin, end);
    d_norm = gpt_take(model, begin, end, hidden);
    gpt_linear_back(model, "query", d_norm, dq, t[GPT_NORM1], 1, weights + at->query, w.q, hidden,
                    begin, end);
    gpt_give(model, dq);
    gpt_linear_back(model, "key", d_norm, dk, t[GPT_NORM1], 0, weights + at->key, w.kv, hidden,
                    begin, end);
    gpt_give_keys(model, dk);
    gpt_linear_back(model, "value", d_norm, dv, t[GPT_NORM1], 0, weights + at->value, w.kv, hidden,
                    begin, end);
    gpt_give_keys(model, dv);
    gpt_norm_back(model, "norm1", to, d_norm, t[GPT_INPUT], t[GPT_RSTD1], weights + at->norm1,
                  begin, end);
    gpt_give(model, d_norm);
}

/* --- both, one after the other --- */

/* Both, of need; y is a block's output. */
static void gpt_compute(gpt_model* model, int32_t layer, const gpt_need need[GPT_N_TENSORS]) {
    const gpt_rows y = gpt_take(model, 0, model->n_rows, model->config.hidden);
    gpt_compute_attention(model, layer, need, gpt_rows_make(0, model->n_rows), y);
    gpt_residual(model, gpt_tensor(model, layer, GPT_MIDDLE), gpt_tensor(model, layer, GPT_INPUT),
                 y, layer, GPT_SITE_PROJECTION, need[GPT_MIDDLE]);
    gpt_give(model, y);
    gpt_compute_mlp(model, layer, need);
}

/* Rows that lie in one piece or two of `to`, and in one of `from`. */
static void gpt_copy_rows(gpt_model* model, gpt_rows to, gpt_rows from, gpt_need rows) {
    const int64_t split = gpt_min(to.split_row > rows.begin ? to.split_row : rows.begin, rows.end);
    const int64_t begins[2] = {rows.begin, split}, ends[2] = {split, rows.end};
    int i;
    for (i = 0; i < 2; i++)
        if (!gpt_is_silent(model) && begins[i] < ends[i])
            model->status = model->device.copy(
                model->device.context, model->compute, MEMO_COPY_ON_DEVICE, gpt_at(&to, begins[i]),
                gpt_at(&from, begins[i]), (ends[i] - begins[i]) * to.row_bytes, &model->error);
}

/* x: the residual stream (rows, hidden), in place. */
static void gpt_forward_plain(gpt_model* model, int32_t layer, gpt_rows x) {
    const gpt_need rows = gpt_rows_make(0, model->n_rows);
    gpt_need all[GPT_N_TENSORS];
    gpt_rows y;
    int i;
    for (i = 0; i < GPT_N_TENSORS; i++) all[i] = rows;
    gpt_copy_rows(model, gpt_tensor(model, layer, GPT_INPUT), x, rows);
    gpt_compute(model, layer, all);
    y = gpt_take(model, 0, model->n_rows, model->config.hidden);
    gpt_down(model, layer, y, rows);
    gpt_residual(model, x, gpt_tensor(model, layer, GPT_MIDDLE), y, layer, GPT_SITE_MLP, rows);
    gpt_give(model, y);
}

/* What the engine's rows leave to recomputation. */
static void gpt_recompute_need(const gpt_model* model, int32_t layer,
                               gpt_need need[GPT_N_TENSORS]) {
    int i;
    memset(need, 0, GPT_N_TENSORS * sizeof *need);
    for (i = 0; i < GPT_N_TENSORS && !gpt_is_idle(model) && layer < model->n_recomputed_layers; i++)
        memo_swap_recompute_rows(model->swap, layer, i, &need[i].begin, &need[i].end);
    need[GPT_NORM1] = gpt_need_either(need[GPT_NORM1], need[GPT_RSTD1]);
    need[GPT_NORM2] = gpt_need_either(need[GPT_NORM2], need[GPT_RSTD2]);
    need[GPT_ATTENTION] = gpt_need_either(need[GPT_ATTENTION], need[GPT_LSE]);
}

/* dx: the gradient of the layer's output (rows, hidden), replaced by that of its input.  The
 * residual stream passes gradients on unchanged, so each block adds to it. */
static void gpt_backward_plain(gpt_model* model, int32_t layer, gpt_rows dx) {
    gpt_need need[GPT_N_TENSORS];
    int64_t begin, end;
    if (layer < model->n_recomputed_layers) {
        gpt_begin_phase(model, layer, "recompute");
        gpt_recompute_need(model, layer, need);
        gpt_compute(model, layer, need);
        gpt_end_phase(model, layer, "recompute");
        snprintf(model->phase, sizeof model->phase, "backward %d", layer);
    }
    for (begin = 0; begin < model->n_rows; begin = end) {
        end = gpt_min(begin + model->chunk_rows, model->n_rows);
        gpt_backward_mlp(model, layer, dx, dx, gpt_rows_make(begin, end));
    }
    gpt_backward_attention(model, layer, dx, dx, gpt_rows_make(0, model->n_rows));
}

#include "gpt_tensor.h"

static void gpt_forward(gpt_model* model, int32_t layer, gpt_rows x) {
    gpt_begin_phase(model, layer, "forward");
    if (!gpt_is_idle(model))
        model->status = memo_swap_forward_begin(model->swap, layer, &model->error);
    if (gpt_is_split(&model->config))
        gpt_forward_blocks(model, layer, x);
    else
        gpt_forward_plain(model, layer, x);
    if (!gpt_is_idle(model))
        model->status = memo_swap_forward_end(model->swap, layer, &model->error);
    gpt_end_phase(model, layer, "forward");
}

static void gpt_backward(gpt_model* model, int32_t layer, gpt_rows dx) {
    gpt_begin_phase(model, layer, "backward");
    gpt_begin_bucket(model, layer + 1);
    if (!gpt_is_idle(model))
        model->status = memo_swap_backward_begin(model->swap, layer, &model->error);
    if (gpt_is_split(&model->config))
        gpt_backward_blocks(model, layer, dx);
    else
        gpt_backward_plain(model, layer, dx);
    gpt_end_bucket(model, layer + 1);
    if (!gpt_is_idle(model))
        model->status = memo_swap_backward_end(model->swap, layer, &model->error);
    gpt_end_phase(model, layer, "backward");
}

/* Final norm, classifier and loss, forward and backward together in chunks of tokens, so that
 * logits exist for one chunk at a time.  dx: the gradient of x. */
static void gpt_classify(gpt_model* model, gpt_rows dx, gpt_rows x, const uint8_t* targets,
                         double loss_scale) {
    const int64_t hidden = model->config.hidden, n = model->n_rows;
    const int64_t classifier = model->layout.classifier, norm = model->layout.final_norm;
    int64_t begin, end;
    gpt_rows normed, rstd, logits, d_norm;
    snprintf(model->phase, sizeof model->phase, "classifier");
    gpt_begin_bucket(model, gpt_n_buckets(&model->config) - 1);
    if (!gpt_is_silent(model))
        model->status = model->device.fill(model->device.context, model->compute, gpt_at(&dx, 0), 0,
                                           n * dx.row_bytes, &model->error);
    for (begin = 0; begin < n; begin = end) {
        end = gpt_min(begin + model->chunk_rows, n);
        normed = gpt_take(model, begin, end, hidden);
        rstd = gpt_take(model, begin, end, 1);
        gpt_norm(model, "norm", normed, rstd, x, norm, begin, end);
        logits = gpt_take(model, begin, end, GPT_VOCABULARY);
        gpt_linear(model, "logits", logits, normed, classifier, GPT_VOCABULARY, hidden, begin, end);
        gpt_loss(model, logits, targets, loss_scale, begin, end);
        d_norm = gpt_take(model, begin, end, hidden);
        gpt_linear_back(model, "logits backward", d_norm, logits, normed, 1, classifier,
                        GPT_VOCABULARY, hidden, begin, end);
        gpt_give(model, logits);
        gpt_give(model, normed);
        gpt_norm_back(model, "norm backward", dx, d_norm, x, rstd, norm, begin, end);
        gpt_give(model, rstd);
        gpt_give(model, d_norm);
    }
    gpt_end_bucket(model, gpt_n_buckets(&model->config) - 1);
}

/* ---- a micro-batch ------------------------------------------------------------------------- */

/* This rank's of them, through one half of the staging buffer, while the other may still be on its
 * way to the device. */
static void gpt_copy_tokens(gpt_model* model, uint8_t* to, const uint8_t* tokens,
                            const uint8_t* targets) {
    const memo_device* device = &model->device;
    const int32_t half = model->half;
    int64_t row, n, first;
    uint8_t* staging;
    if (gpt_is_silent(model)) return;
    staging = model->staging + half * 2 * model->n_rows;
    if (model->is_copying[half])
        model->status =
            device->event_synchronize(device->context, model->tokens_copied[half], &model->error);
    if (model->status) return;
    for (row = 0; row < model->n_rows; row += n) {
        n = gpt_run_of_tokens(&model->share, row, model->n_rows, &first);
        if (first < 0) { /* padding: any byte does */
            memset(staging + row, 0, (size_t)n);
            memset(staging + model->n_rows + row, 0, (size_t)n);
        } else {
            memcpy(staging + row, tokens + first, (size_t)n);
            memcpy(staging + model->n_rows + row, targets + first, (size_t)n);
        }
    }
    model->is_copying[half] = 1;
    model->half = 1 - half;
    model->status = device->copy(device->context, model->compute, MEMO_COPY_TO_DEVICE, to, staging,
                                 2 * model->n_rows, &model->error);
    if (!model->status)
        model->status = device->event_record(device->context, model->tokens_copied[half],
                                             model->compute, &model->error);
}

GPT_FUNCTION memo_status gpt_micro_batch(gpt_model* model, const uint8_t* tokens,
                                         const uint8_t* targets, int64_t step, int64_t micro_batch,
                                         double loss_scale, memo_error* error) {
    const int64_t hidden = model->config.hidden, n_rows = model->n_rows;
    const int32_t n_layers = model->config.n_layers;
    gpt_dropout dropout;
    gpt_rows x, dx;
    void* device_tokens = NULL;
    uint8_t *inputs, *labels;
    int32_t layer;

    model->step = step;
    model->first_token = micro_batch * model->config.batch * model->config.sequence;
    dropout = gpt_dropout_at(model, 0, GPT_SITE_EMBEDDING);
    model->status = memo_arena_begin(model->arena, &model->error);
    if (!model->status)
        model->status =
            memo_arena_alloc(model->arena, 2 * n_rows, 0, &device_tokens, &model->error);
    inputs = (uint8_t*)device_tokens;
    labels = model->is_dry_run || !inputs ? NULL : inputs + n_rows;
    gpt_begin_part(model, GPT_PART_REST);
    gpt_copy_tokens(model, inputs, tokens, targets);

    snprintf(model->phase, sizeof model->phase, "forward");
    x = gpt_take(model, 0, n_rows, hidden);
    gpt_embedding(model, x, inputs, 0);
    gpt_elements(model, "dropout", gpt_dropout_run, x, x, NULL, &dropout, 0, n_rows);
    gpt_begin_part(model, GPT_PART_FORWARD);
    for (layer = 0; layer < n_layers; layer++) gpt_forward(model, layer, x);

    gpt_begin_part(model, GPT_PART_REST);
    dx = gpt_take(model, 0, n_rows, hidden);
    gpt_classify(model, dx, x, labels, loss_scale);
    gpt_give(model, x);

    gpt_begin_part(model, GPT_PART_BACKWARD);
    for (layer = n_layers - 1; layer >= 0; layer--) gpt_backward(model, layer, dx);
    gpt_begin_part(model, GPT_PART_REST);
    snprintf(model->phase, sizeof model->phase, "backward");
    gpt_elements(model, "dropout", gpt_dropout_run, dx, dx, NULL, &dropout, 0, n_rows);
    gpt_begin_bucket(model, 0);
    gpt_embedding(model, dx, inputs, 1);
    gpt_end_bucket(model, 0);
    gpt_give(model, dx);

    if (!model->status) model->status = memo_arena_free(model->arena, device_tokens, &model->error);
    if (!model->status) model->status = memo_arena_end(model->arena, &model->error);
    if (model->status) {
        memo_arena_abandon(model->arena);
        if (model->swap) memo_swap_abandon(model->swap, NULL);
    }
    return gpt_finish(model, error);
}

/* ---- parts, to measure them ---------------------------------------------------------------- */

GPT_FUNCTION void gpt_set_parts(gpt_model* model, int parts) { model->parts = parts; }

GPT_FUNCTION memo_status gpt_recompute_alone(gpt_model* model, int32_t tensor, memo_error* error) {
    gpt_need need[GPT_N_TENSORS];
    gpt_rows x;
    void* tokens = NULL;
    if (gpt_is_dead_end(&model->config, tensor) || tensor == GPT_RSTD1 || tensor == GPT_RSTD2 ||
        tensor == GPT_LSE)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "a layer's input, rstd and lse are not recomputed alone, nor in the order "
            "fine its middle");
    memset(need, 0, sizeof need);
    need[tensor].end = model->n_rows;
    snprintf(model->phase, sizeof model->phase, "recompute 0");
    /* The requests with which a micro-batch begins. */
    model->status = memo_arena_begin(model->arena, &model->error);
    if (!model->status)
        model->status =
            memo_arena_alloc(model->arena, 2 * model->n_rows, 0, &tokens, &model->error);
    x = gpt_take(model, 0, model->n_rows, model->config.hidden);
    (void)x;
    model->is_skipped = 0;
    if (gpt_is_split(&model->config))
        gpt_compute_parts(model, 0, need);
    else
        gpt_compute(model, 0, need);
    memo_arena_abandon(model->arena);
    return gpt_finish(model, error);
}

/* ---- the end of a step --------------------------------------------------------------------- */

/* What a rank holds of the gradients, and of either moment. */
static int64_t gpt_gradient_bytes(const gpt_model* model) {
    return model->layout.n / (model->zero == 2 ? model->share.n_ranks : 1) *
           (int64_t)sizeof(gpt_real);
}
static int64_t gpt_moment_bytes(const gpt_model* model) {
    return model->layout.n / (model->zero ? model->share.n_ranks : 1) * (int64_t)sizeof(gpt_real);
}

/* Waits, reads the totals, and clears gradients and totals for the next step. */
static void gpt_end_step(gpt_model* model) {
    const memo_device* device = &model->device;
    if (model->status) return;
    if ((model->status =
             device->copy(device->context, model->compute, MEMO_COPY_TO_HOST, model->host_totals,
                          model->totals, GPT_N_TOTALS * (int64_t)sizeof(double), &model->error)) ||
        (model->status = device->fill(device->context, model->compute, model->totals, 0,
                                      GPT_N_TOTALS * (int64_t)sizeof(double), &model->error)) ||
        (model->status = device->fill(device->context, model->compute, model->gradients, 0,
                                      gpt_gradient_bytes(model), &model->error)))
        return;
    model->is_reduced = 0;
    model->status = device->stream_synchronize(device->context, model->compute, &model->error);
}

static memo_status gpt_refuse_dry_run(gpt_model* model, memo_error* error) {
    return model->is_dry_run ? memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                                              "a dry run has no parameters and computes nothing")
                             : MEMO_STATUS_OK;
}

GPT_FUNCTION memo_status gpt_update(gpt_model* model, const gpt_update_desc* desc, double* loss,
                                    double* gradient_norm, memo_error* error) {
    gpt_op norm = gpt_op_make("gradient norm"), adamw = gpt_op_make("AdamW");
    gpt_update_args a;
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    model->status = MEMO_STATUS_OK;
    snprintf(model->phase, sizeof model->phase, "update");
    memset(&a, 0, sizeof a);
    a.model = model;
    a.adamw.learning_rate = desc->learning_rate;
    a.adamw.beta1 = desc->beta1;
    a.adamw.beta2 = desc->beta2;
    a.adamw.epsilon = desc->epsilon;
    a.adamw.weight_decay = desc->weight_decay;
    a.adamw.update = model->n_updates + 1;
    a.clip = desc->clip;
    a.vote = desc->vote;

    model->is_skipped = 0;
    gpt_reduce_gradients(model);
    gpt_reads(&norm, model->gradients, gpt_gradient_bytes(model));
    gpt_writes(&norm, &model->totals[GPT_TOTAL_VOTES], 2 * (int64_t)sizeof(double));
    gpt_launch(model, &norm, gpt_gradient_norm_run, &a, sizeof a);
    gpt_reduce_totals(model);
    gpt_reads(&adamw, model->gradients, gpt_gradient_bytes(model));
    gpt_reads(&adamw, &model->totals[GPT_TOTAL_SQUARES], (int64_t)sizeof(double));
    gpt_writes(&adamw, model->parameters, model->layout.n * (int64_t)sizeof(gpt_real));
    gpt_writes(&adamw, model->moments1, gpt_moment_bytes(model));
    gpt_writes(&adamw, model->moments2, gpt_moment_bytes(model));
    gpt_launch(model, &adamw, gpt_adamw_run, &a, sizeof a);
    gpt_gather_parameters(model);
    gpt_end_step(model);
    if (!model->status) {
        model->n_updates++;
        if (loss) *loss = model->host_totals[GPT_TOTAL_LOSS];
        if (gradient_norm) *gradient_norm = sqrt(model->host_totals[GPT_TOTAL_SQUARES]);
    }
    return gpt_finish(model, error);
}

GPT_FUNCTION memo_status gpt_discard(gpt_model* model, double* loss, memo_error* error) {
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    model->status = MEMO_STATUS_OK;
    gpt_end_step(model);
    if (!model->status && loss) *loss = model->host_totals[GPT_TOTAL_LOSS];
    return gpt_finish(model, error);
}

GPT_FUNCTION memo_status gpt_reduce(gpt_model* model, memo_error* error) {
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    model->status = MEMO_STATUS_OK;
    snprintf(model->phase, sizeof model->phase, "gradients");
    gpt_reduce_gradients(model);
    return gpt_finish(model, error);
}

GPT_FUNCTION double gpt_votes(const gpt_model* model) {
    return model->host_totals[GPT_TOTAL_VOTES];
}

GPT_FUNCTION memo_status gpt_wait(gpt_model* model, memo_error* error) {
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    return model->device.stream_synchronize(model->device.context, model->compute, error);
}

/* Copies all parameters or gradients, and waits. */
static memo_status gpt_copy_flat(gpt_model* model, memo_copy_kind kind, void* to, const void* from,
                                 memo_error* error) {
    const memo_device* device = &model->device;
    memo_status status = device->copy(device->context, model->compute, kind, to, from,
                                      model->layout.n * (int64_t)sizeof(gpt_real), error);
    return status ? status : device->stream_synchronize(device->context, model->compute, error);
}

GPT_FUNCTION memo_status gpt_get_gradients(gpt_model* model, gpt_real* gradients,
                                           memo_error* error) {
    const memo_device* device = &model->device;
    int64_t b;
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    if (gpt_reduce(model, error)) return model->status;
    if (!model->zero)
        return gpt_copy_flat(model, MEMO_COPY_TO_HOST, gradients, model->gradients, error);
    memset(gradients, 0, (size_t)model->layout.n * sizeof *gradients);
    for (b = 0; b < gpt_n_buckets(&model->config) && !model->status; b++) {
        const gpt_part part = gpt_part_at(model, b, model->share.rank);
        model->status = device->copy(
            device->context, model->compute, MEMO_COPY_TO_HOST, gradients + part.begin,
            part.gradients, (part.end - part.begin) * (int64_t)sizeof(gpt_real), &model->error);
    }
    if (!model->status)
        model->status = device->stream_synchronize(device->context, model->compute, &model->error);
    return gpt_finish(model, error);
}

GPT_FUNCTION memo_status gpt_get_parameters(gpt_model* model, gpt_real* parameters,
                                            memo_error* error) {
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    return gpt_copy_flat(model, MEMO_COPY_TO_HOST, parameters, model->parameters, error);
}

GPT_FUNCTION memo_status gpt_set_parameters(gpt_model* model, const gpt_real* parameters,
                                            memo_error* error) {
    if (gpt_refuse_dry_run(model, error)) return MEMO_STATUS_INVALID_STATE;
    return gpt_copy_flat(model, MEMO_COPY_TO_DEVICE, model->parameters, parameters, error);
}

/* ---- create and destroy -------------------------------------------------------------------- */

GPT_FUNCTION int64_t gpt_staging_bytes(const gpt_config* config) {
    const int64_t n_bytes = 4 * gpt_n_rows(config) + GPT_N_TOTALS * (int64_t)sizeof(double);
    return (n_bytes + 511) / 512 * 512;
}

static int64_t gpt_rope_bytes(const gpt_config* config) {
    return gpt_share_make(config, NULL).layout.local_tokens * (config->hidden / config->n_heads) *
           (int64_t)sizeof(gpt_real);
}

/* Streams, events, pinned memory, engine. */
static void gpt_create_engine(gpt_model* model, const gpt_desc* desc, void* swap_memory,
                              void* sp_memory) {
    const memo_device* device = &model->device;
    const int32_t n_layers = model->config.n_layers;
    memo_swap_tensor tensors[GPT_N_TENSORS];
    memo_swap_desc swap;
    void* pinned;
    int32_t i, t;
    if ((model->status =
             device->stream_create(device->context, "compute", 0, &model->compute, &model->error)))
        return;
    for (i = 0; i < 2; i++)
        if ((model->status =
                 device->event_create(device->context, &model->tokens_copied[i], &model->error)))
            return;
    if ((model->status = device->host_alloc(device->context, gpt_staging_bytes(&model->config),
                                            &pinned, &model->error)))
        return;
    model->host_totals = (double*)pinned;
    model->staging = (uint8_t*)(model->host_totals + GPT_N_TOTALS);

    swap = gpt_swap_desc(desc, tensors);
    swap.device = device;
    swap.compute_stream = model->compute;
    swap.device_memory = swap_memory;
    if ((model->status = memo_swap_create(&swap, &model->swap, &model->error))) return;
    model->tensors = (gpt_rows(*)[GPT_N_TENSORS])malloc((size_t)n_layers * sizeof *model->tensors);
    if (!model->tensors) {
        model->status = memo_error_set(&model->error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                       "no host memory for the tensors of %d layers", n_layers);
        return;
    }
    for (i = 0; i < n_layers; i++)
        for (t = 0; t < GPT_N_TENSORS; t++)
            model->tensors[i][t] = memo_swap_get_view(model->swap, i, t);
    for (i = 0; i < n_layers && gpt_is_mixed(&model->config); i++)
        gpt_narrow(&model->config, i, model->tensors[i]);
    if (model->share.layout.ring * model->share.layout.ulysses > 1) {
        memo_sp_attention_desc sp = gpt_sp_desc(&model->config, &model->share);
        model->attention_state.device = model->host_device;
        sp.attention = memo_host_attention_functions(&model->attention_state);
        sp.device = device;
        sp.stream = model->compute;
        sp.ring = desc->mesh->ring;
        sp.ulysses = desc->mesh->ulysses;
        sp.device_memory = sp_memory;
        model->status = memo_sp_attention_create(&sp, &model->attention, &model->error);
    }
    if (!model->status) gpt_create_blocks(model, desc);
}

/* The angles of this rank's positions.  host: room for those of the whole sequence and of a rank. */
static void gpt_initialise_rope(gpt_model* model, gpt_real* host) {
    const memo_layout* layout = &model->share.layout;
    const int64_t head_size = model->config.hidden / model->config.n_heads;
    gpt_real* local = host + layout->n_tokens * head_size;
    gpt_rope_table(host, layout->n_tokens, head_size);
    memo_layout_scatter(layout, model->share.sequence_rank, 1, head_size * (int64_t)sizeof *host,
                        host, local);
    model->status =
        model->device.copy(model->device.context, model->compute, MEMO_COPY_TO_DEVICE, model->rope,
                           local, gpt_rope_bytes(&model->config), &model->error);
}

/* Parameters, the table of RoPE, and zeros for all that is added to. */
static void gpt_initialise(gpt_model* model) {
    const memo_device* device = &model->device;
    const int64_t n_bytes = model->layout.n * (int64_t)sizeof(gpt_real);
    const int64_t rope_bytes = 2 * gpt_rope_bytes(&model->config) * model->share.n_ranks;
    void* const zeroed[4] = {model->gradients, model->moments1, model->moments2, model->totals};
    const int64_t sizes[4] = {gpt_gradient_bytes(model), gpt_moment_bytes(model),
                              gpt_moment_bytes(model), GPT_N_TOTALS * (int64_t)sizeof(double)};
    gpt_real* host = (gpt_real*)malloc((size_t)(n_bytes > rope_bytes ? n_bytes : rope_bytes));
    int i;
    if (!host) {
        model->status = memo_error_set(&model->error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                       "no host memory for the initial parameters");
        return;
    }
    for (i = 0; i < 4 && !model->status; i++)
        model->status =
            device->fill(device->context, model->compute, zeroed[i], 0, sizes[i], &model->error);
    gpt_initial_parameters(&model->config, model->share.tensor_rank, host);
    if (!model->status)
        model->status =
            gpt_copy_flat(model, MEMO_COPY_TO_DEVICE, model->parameters, host, &model->error);
    if (!model->status) gpt_initialise_rope(model, host);
    if (device->stream_synchronize(device->context, model->compute, NULL) && !model->status)
        model->status = device->status(device->context, &model->error);
    free(host);
}

/* The communicators must be those of the config. */
static memo_status gpt_check_mesh(const gpt_config* config, const memo_mesh* mesh,
                                  memo_error* error) {
    if ((gpt_n_ranks(config) == 1 && !gpt_is_split(config)) ||
        (mesh && mesh->gradient && mesh->tensor &&
         mesh->degrees.tensor == gpt_degree(config->tensor) &&
         mesh->degrees.data == gpt_degree(config->data) &&
         mesh->degrees.ring == gpt_degree(config->ring) &&
         mesh->degrees.ulysses == gpt_degree(config->ulysses)))
        return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                          "data %d x ring %d x ulysses %d x tensor %d ranks need a mesh of these "
                          "degrees",
                          gpt_degree(config->data), gpt_degree(config->ring),
                          gpt_degree(config->ulysses), gpt_degree(config->tensor));
}

/* How many layers, from the first on, recompute something; with a table, not the last one, over
 * whose rows no other layer writes. */
static int32_t gpt_n_recomputed_layers(const gpt_desc* desc, const memo_swap_sizes* sizes) {
    const int64_t n_rows = gpt_n_rows(&desc->config);
    const int32_t n_resident = desc->n_resident_layers ? desc->n_resident_layers : 2;
    const memo_swap_rows* rows;
    int64_t i;
    if (desc->policy == GPT_POLICY_KEEP || desc->policy == GPT_POLICY_SWAP) return 0;
    if (desc->policy != GPT_POLICY_MEMO || !desc->rows)
        return desc->policy != GPT_POLICY_RECOMPUTE && sizes->swapped_rows == n_rows
                   ? 0
                   : desc->config.n_layers - n_resident;
    for (i = (int64_t)(desc->config.n_layers - 1) * GPT_N_TENSORS; i > 0; i--) {
        rows = &desc->rows[i - 1];
        if (rows->kept + rows->swapped < n_rows) return (int32_t)((i - 1) / GPT_N_TENSORS) + 1;
    }
    return 0;
}

GPT_FUNCTION memo_status gpt_create(const gpt_desc* desc, gpt_model** result, memo_error* error) {
    const gpt_config* config = &desc->config;
    memo_arena_desc arena = memo_arena_desc_default();
    memo_swap_sizes sizes;
    memo_status status;
    gpt_model* model;
    void* swap_memory;
    int64_t n_tiles, n_bytes;
    void* sp_memory = NULL;
    *result = NULL;
    memset(&sizes, 0, sizeof sizes);
    status = gpt_swap_sizes(desc, &sizes, error);
    if (!status && desc->host_device) status = gpt_check_mesh(config, desc->mesh, error);
    if (status) return status;
    model = (gpt_model*)calloc(1, sizeof *model);
    if (!model)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for a model");

    model->config = *config;
    model->layout = gpt_layout_make(config);
    model->share = gpt_share_make(config, desc->mesh);
    model->zero = model->share.n_ranks > 1 ? config->zero : 0;
    if (model->share.n_ranks > 1 && desc->host_device) model->gradient = desc->mesh->gradient;
    model->n_rows = model->share.n_rows;
    n_tiles = (model->n_rows - 1) / config->tile_rows + 1;
    model->chunk_rows = (n_tiles + 3) / 4 * config->tile_rows; /* four chunks */
    model->n_recomputed_layers = gpt_n_recomputed_layers(desc, &sizes);
    model->parts = GPT_PART_ALL;
    model->is_dry_run = !desc->host_device;
    if (!model->is_dry_run) {
        model->host_device = desc->host_device;
        model->device = desc->device ? *desc->device : *desc->host_device;
        arena.device = &model->device;
    }
    arena.plan = desc->plan;
    arena.trace = desc->trace;
    model->status = memo_arena_create(&arena, &model->arena, &model->error);

    n_bytes = model->layout.n * (int64_t)sizeof(gpt_real);
    model->parameters = (gpt_real*)gpt_take_persistent(model, "parameters", n_bytes);
    model->gradients =
        (gpt_real*)gpt_take_persistent(model, "gradients", gpt_gradient_bytes(model));
    model->moments1 =
        (gpt_real*)gpt_take_persistent(model, "Adam's first moments", gpt_moment_bytes(model));
    model->moments2 =
        (gpt_real*)gpt_take_persistent(model, "Adam's second moments", gpt_moment_bytes(model));
    model->rope = (gpt_real*)gpt_take_persistent(model, "angles of RoPE", gpt_rope_bytes(config));
    model->totals =
        (double*)gpt_take_persistent(model, "totals", GPT_N_TOTALS * (int64_t)sizeof(double));
    gpt_take_partial_sums(model);
    if (gpt_sp_bytes(config, &model->share))
        sp_memory =
            gpt_take_persistent(model, "attention over ranks", gpt_sp_bytes(config, &model->share));
    swap_memory =
        gpt_take_persistent(model, "activations between forward and backward", sizes.device_bytes);
    if (!gpt_is_idle(model)) gpt_create_engine(model, desc, swap_memory, sp_memory);
    if (!gpt_is_idle(model)) gpt_initialise(model);

    status = gpt_finish(model, error);
    if (status)
        gpt_destroy(model);
    else
        *result = model;
    return status;
}

GPT_FUNCTION void gpt_destroy(gpt_model* model) {
    const memo_device* device;
    int i;
    if (!model) return;
    device = &model->device;
    /* In the reverse order of creation; what was not created yet is NULL. */
    if (model->compute) device->stream_synchronize(device->context, model->compute, NULL);
    gpt_destroy_blocks(model);
    if (model->attention) memo_sp_attention_destroy(model->attention);
    if (model->swap) memo_swap_destroy(model->swap);
    if (model->host_totals) device->host_free(device->context, model->host_totals, NULL);
    for (i = 0; i < 2; i++)
        if (model->tokens_copied[i])
            device->event_destroy(device->context, model->tokens_copied[i], NULL);
    if (model->compute) device->stream_destroy(device->context, model->compute, NULL);
    if (model->arena) memo_arena_destroy(model->arena);
    free(model->tensors);
    free(model);
}

GPT_FUNCTION memo_swap* gpt_swap(gpt_model* model) { return model->swap; }
GPT_FUNCTION memo_arena* gpt_arena(gpt_model* model) { return model->arena; }
GPT_FUNCTION memo_stream gpt_compute_stream(gpt_model* model) { return model->compute; }

GPT_FUNCTION int64_t gpt_tensor_bytes(const gpt_model* model) {
    const gpt_tensor_state* t = &model->tensor;
    int64_t n_bytes = t->ranks ? t->ranks->sent_bytes : 0;
    int a, b;
    for (a = 0; a < GPT_MAX_LEVELS; a++)
        for (b = 0; b < GPT_MAX_LEVELS; b++) {
            const memo_degree_comms* pair = &t->pairs[a][b];
            if (pair->tensor) n_bytes += pair->tensor->sent_bytes + pair->data->sent_bytes;
            if (pair->across) n_bytes += pair->across->sent_bytes;
        }
    return n_bytes;
}

/* ---- generation, on the host --------------------------------------------------------------- */

typedef struct gpt_generator {
    gpt_config config;
    gpt_layout layout;
    int64_t n_positions, max_rows; /* in all; of one pass */
    gpt_real* memory;              /* all that follows, in one piece */
    gpt_real* parameters;
    gpt_real *keys, *values; /* (layers, positions, kv_hidden) */
    gpt_real* rope;          /* (positions, head size) */
    gpt_real *x, *y, *q;     /* (max rows, hidden) */
    gpt_real* up;            /* (max rows, 4 hidden) */
    gpt_real* rstd;          /* (max rows) */
    gpt_real* scores;        /* (sequence) */
    gpt_real* logits;        /* (vocabulary) */
} gpt_generator;

static int gpt_generator_create(gpt_generator* g, const gpt_config* config, int64_t n_positions) {
    const int64_t hidden = config->hidden, head_size = hidden / config->n_heads;
    gpt_real** const places[11] = {&g->parameters, &g->keys,   &g->values, &g->rope,
                                   &g->x,          &g->y,      &g->q,      &g->up,
                                   &g->rstd,       &g->scores, &g->logits};
    int64_t sizes[11], n = 0;
    int i;
    g->config = *config;
    g->layout = gpt_layout_make(config);
    g->n_positions = n_positions;
    g->max_rows = gpt_min(config->tile_rows, n_positions);
    sizes[0] = g->layout.n;
    sizes[1] = sizes[2] = config->n_layers * n_positions * g->layout.kv_hidden;
    sizes[3] = n_positions * head_size;
    sizes[4] = sizes[5] = sizes[6] = g->max_rows * hidden;
    sizes[7] = g->max_rows * 4 * hidden;
    sizes[8] = g->max_rows;
    sizes[9] = config->sequence;
    sizes[10] = GPT_VOCABULARY;
    for (i = 0; i < 11; i++) n += sizes[i];
    g->memory = (gpt_real*)malloc((size_t)n * sizeof(gpt_real));
    if (!g->memory) return 0;
    for (i = 0, n = 0; i < 11; n += sizes[i++]) *places[i] = g->memory + n;
    gpt_rope_table(g->rope, n_positions, head_size);
    return 1;
}

/* One query (heads * head size) at `position` against the keys of the `sequence` positions up to
 * it. */
static void gpt_generate_attention(gpt_generator* g, gpt_real* out, const gpt_real* q,
                                   const gpt_real* keys, const gpt_real* values, int64_t position) {
    const int64_t kv_hidden = g->layout.kv_hidden, size = g->config.hidden / g->config.n_heads;
    const int64_t first = position < g->config.sequence ? 0 : position - g->config.sequence + 1;
    const int64_t n = position - first + 1;
    int64_t head, j, c;
    for (head = 0; head < g->config.n_heads; head++, q += size, out += size) {
        const int64_t at =
            first * kv_hidden + head * g->config.n_kv_heads / g->config.n_heads * size;
        gpt_real max, sum;
        for (j = 0; j < n; j++)
            g->scores[j] = gpt_dot(q, keys + at + j * kv_hidden, size) / gpt_sqrt((gpt_real)size);
        max = gpt_max(g->scores, n);
        for (j = 0; j < n; j++) g->scores[j] = gpt_exp(g->scores[j] - max);
        sum = gpt_sum(g->scores, n);
        for (c = 0; c < size; c++) out[c] = 0;
        for (j = 0; j < n; j++)
            for (c = 0; c < size; c++)
                out[c] += g->scores[j] / sum * values[at + j * kv_hidden + c];
    }
}

/* Takes n tokens at positions first, first + 1, ... in; logits are those after the last. */
static void gpt_generator_read(gpt_generator* g, const uint8_t* tokens, int64_t first, int64_t n) {
    const gpt_layout* at = &g->layout;
    const int64_t hidden = g->config.hidden, kv_hidden = at->kv_hidden;
    const int64_t head_size = hidden / g->config.n_heads;
    const gpt_dropout none = gpt_dropout_make(0, 0, 0, 0, 0);
    int64_t layer, row;
    gpt_embedding_forward(g->x, g->parameters + at->embedding, tokens, n, hidden);
    for (layer = 0; layer < g->config.n_layers; layer++) {
        const gpt_real* w = g->parameters + at->layers + layer * at->layer_stride;
        gpt_real* keys = g->keys + layer * g->n_positions * kv_hidden;
        gpt_real* values = g->values + layer * g->n_positions * kv_hidden;
        gpt_norm_forward(g->y, g->rstd, g->x, w + at->norm1, n, hidden);
        gpt_linear_forward(g->q, g->y, w + at->query, n, hidden, hidden);
        gpt_linear_forward(keys + first * kv_hidden, g->y, w + at->key, n, kv_hidden, hidden);
        gpt_linear_forward(values + first * kv_hidden, g->y, w + at->value, n, kv_hidden, hidden);
        gpt_rope(g->q, g->rope, 1, first, n, g->n_positions, g->config.n_heads, head_size);
        gpt_rope(keys + first * kv_hidden, g->rope, 1, first, n, g->n_positions,
                 g->config.n_kv_heads, head_size);
        for (row = 0; row < n; row++)
            gpt_generate_attention(g, g->y + row * hidden, g->q + row * hidden, keys, values,
                                   first + row);
        gpt_linear_forward(g->q, g->y, w + at->projection, n, hidden, hidden);
        gpt_residual_forward(g->x, g->x, g->q, &none, 0, n, hidden);
        gpt_norm_forward(g->y, g->rstd, g->x, w + at->norm2, n, hidden);
        gpt_linear_forward(g->up, g->y, w + at->up, n, 4 * hidden, hidden);
        gpt_gelu_forward(g->up, g->up, n, 4 * hidden);
        gpt_linear_forward(g->y, g->up, w + at->down, n, hidden, 4 * hidden);
        gpt_residual_forward(g->x, g->x, g->y, &none, 0, n, hidden);
    }
    gpt_norm_forward(g->y, g->rstd, g->x + (n - 1) * hidden, g->parameters + at->final_norm, 1,
                     hidden);
    gpt_linear_forward(g->logits, g->y, g->parameters + at->classifier, 1, GPT_VOCABULARY, hidden);
}

/* uniform in (0, 1) decides. */
static uint8_t gpt_sample(const gpt_real* logits, double temperature, double uniform) {
    const double max = (double)gpt_max(logits, GPT_VOCABULARY);
    double sum = 0, left;
    int i, likeliest = 0;
    for (i = 1; i < GPT_VOCABULARY; i++)
        if (logits[i] > logits[likeliest]) likeliest = i;
    if (temperature <= 0) return (uint8_t)likeliest;
    for (i = 0; i < GPT_VOCABULARY; i++) sum += exp(((double)logits[i] - max) / temperature);
    left = uniform * sum;
    for (i = 0; i < GPT_VOCABULARY; i++) {
        left -= exp(((double)logits[i] - max) / temperature);
        if (left < 0) return (uint8_t)i;
    }
    return (uint8_t)likeliest;
}

/* Those of all tensor ranks, in the layout of one rank. */
static memo_status gpt_get_whole_parameters(gpt_model* model, const gpt_config* one,
                                            gpt_real* whole, memo_error* error) {
    memo_comm* ranks = model->tensor.ranks;
    const int64_t n = model->layout.n, size = ranks ? ranks->size : 1;
    gpt_real* shares = (gpt_real*)malloc((size_t)(n * size) * sizeof *shares);
    memo_status status;
    int64_t t, i;
    int32_t r;
    if (!shares)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "no host memory for the parameters of all ranks");
    status = gpt_get_parameters(model, shares + model->share.tensor_rank * n, error);
    if (!status && size > 1)
        status = ranks->all_gather(ranks, model->compute, shares + model->share.tensor_rank * n,
                                   shares, n, GPT_TYPE, error);
    if (!status) status = gpt_wait(model, error);
    for (t = 0; t < gpt_n_parameter_tensors(one) && !status; t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        gpt_real* to = whole + gpt_parameter_at(one, t).offset;
        for (r = 0; r < p.degree; r++)
            for (i = 0; i < p.n; i++)
                to[gpt_element_of_whole(&p, r, i)] = shares[r * n + p.offset + i];
    }
    free(shares);
    return status;
}

GPT_FUNCTION memo_status gpt_generate(gpt_model* model, const uint8_t* text, int64_t n_text,
                                      double temperature, uint64_t seed, uint8_t* result,
                                      int64_t n_new, memo_error* error) {
    const int64_t n_read = gpt_min(n_text, model->config.sequence);
    gpt_generator generator;
    gpt_config whole;
    memo_status status;
    int64_t i, n;
    if (n_text < 1 || n_new < 0)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "%lld bytes of text and %lld new ones: 1 or more are needed, and not "
                              "a negative number",
                              (long long)n_text, (long long)n_new);
    whole = model->config;
    whole.tensor = whole.sub_batches = whole.data = whole.ring = whole.ulysses = 0;
    whole.degrees = NULL;
    if (!gpt_generator_create(&generator, &whole, n_read + n_new))
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "no host memory to generate %lld bytes", (long long)n_new);
    status = gpt_get_whole_parameters(model, &generator.config, generator.parameters, error);
    text += n_text - n_read;
    for (i = 0; i < n_read && !status; i += n) {
        n = gpt_min(generator.max_rows, n_read - i);
        gpt_generator_read(&generator, text + i, i, n);
    }
    for (i = 0; i < n_new && !status; i++) {
        result[i] = gpt_sample(generator.logits, temperature, gpt_uniform(seed, (uint64_t)i));
        if (i + 1 < n_new) gpt_generator_read(&generator, &result[i], n_read + i, 1);
    }
    free(generator.memory);
    return status;
}

#endif
