/* layout.h - what a rank holds: where its parameters lie, which tokens are its rows, what a
 * layer's backward needs from its forward. */
#ifndef GPT_LAYOUT_H
#define GPT_LAYOUT_H

#include "gpt/model/gpt.h"

/* ---- parameters: one flat array ------------------------------------------------------------ */

/* A rank's share of a layer. */
typedef struct gpt_widths {
    int32_t degrees[2];   /* of attention, of the MLP */
    int64_t q, kv, heads; /* columns of q, of k and of v; heads of q */
    int64_t wide, up;     /* columns of the MLP's activation, and of the product before it: of
                             experts, those of all that a token goes through */
} gpt_widths;

/* The tensors of the array; those from GPT_W_NORM1 to GPT_W_DOWN repeat in each layer. */
enum {
    GPT_W_EMBEDDING,  /* (vocabulary, hidden) */
    GPT_W_NORM1,      /* (hidden) */
    GPT_W_QUERY,      /* (q, hidden) */
    GPT_W_KEY,        /* (kv, hidden) */
    GPT_W_VALUE,      /* (kv, hidden) */
    GPT_W_QUERY_BIAS, /* (q); these three or none */
    GPT_W_KEY_BIAS,   /* (kv) */
    GPT_W_VALUE_BIAS, /* (kv) */
    GPT_W_QUERY_NORM, /* (head size); both or none */
    GPT_W_KEY_NORM,   /* (head size) */
    GPT_W_PROJECTION, /* (hidden, q) */
    GPT_W_NORM2,      /* (hidden) */
    GPT_W_ROUTER,     /* (experts, hidden); none without experts */
    GPT_W_UP,   /* (up, hidden), of each expert: wide, or with SwiGLU up and gate in turn, 2 wide */
    GPT_W_DOWN, /* (hidden, wide), of each expert */
    GPT_W_FINAL_NORM, /* (hidden) */
    GPT_W_CLASSIFIER, /* (vocabulary, hidden); tied: none, and its place is the embedding's */
    GPT_N_W,          /* A and B of the products of lora.h follow */
    GPT_N_ADAPTED = 7,
    GPT_LORA_GATE = 4, /* of lora.h's products, the first of the MLP */
    GPT_N_W_ALL = GPT_N_W + 2 * GPT_N_ADAPTED
};

/* Returns whether a model has the tensor. */
int gpt_has_parameter(const gpt_config* config, int w);
/* Tensors of a layer. */
int64_t gpt_n_layer_tensors(const gpt_config* config);

/* In elements. */
typedef struct gpt_layout {
    /* Of a rank.  If degrees differ, there is room for the smallest degree, and gpt_widths_of
     * returns the columns that a layer uses. */
    gpt_widths widths;
    int64_t at[GPT_N_W_ALL]; /* of a layer's tensors in the first layer */
    int64_t layer_stride, n;
} gpt_layout;

static inline int64_t gpt_round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static inline int32_t gpt_degree(int32_t degree) { return degree > 1 ? degree : 1; }
static inline int32_t gpt_block_degree(const gpt_config* config, int32_t block) {
    return config->degrees ? config->degrees[block] : gpt_degree(config->tensor);
}
int32_t gpt_least_degree(const gpt_config* config);
static inline int
gpt_is_mixed(const gpt_config* config) { /* blocks do not all have degree tensor */
    return gpt_least_degree(config) < gpt_degree(config->tensor);
}

/* The model on one rank. */
gpt_config gpt_whole_config(const gpt_config* config);

/* The degrees of the mesh that the config's ranks make. */
memo_mesh_desc gpt_mesh_desc(const gpt_config* config);

static inline int64_t gpt_wide(const gpt_config* config) {
    return config->mlp_columns ? config->mlp_columns : 4 * (int64_t)config->hidden;
}
/* Matrices of up and of down; those whose products a row has. */
static inline int64_t gpt_n_experts(const gpt_config* config) {
    return config->experts.n ? config->experts.n : 1;
}
static inline int64_t gpt_n_chosen(const gpt_config* config) {
    return config->experts.n ? config->experts.n_chosen : 1;
}
static inline int64_t gpt_head_size(const gpt_config* config) {
    return config->head_size ? config->head_size : config->hidden / config->n_heads;
}
/* Columns of q of all tensor ranks. */
static inline int64_t gpt_q_columns(const gpt_config* config) {
    return config->n_heads * gpt_head_size(config);
}
static inline double gpt_norm_epsilon(const gpt_config* config) {
    return config->norm_epsilon > 0 ? config->norm_epsilon : 1e-5;
}
gpt_widths gpt_widths_of(const gpt_config* config, int32_t layer);

/* If blocks have degree `tensor`. */
gpt_widths gpt_even_widths(const gpt_config* config);

/* Ranks that train copies of a parameter.  Gradients are summed over them, and ZeRO splits over
 * them. */
static inline int32_t gpt_n_ranks(const gpt_config* config) {
    return gpt_degree(config->data) * gpt_degree(config->ring) * gpt_degree(config->ulysses);
}
static inline int gpt_is_split(const gpt_config* config) { /* run by memo_blocks */
    return config->tensor > 1 || config->sub_batches > 1;
}

static inline int64_t gpt_vocabulary(const gpt_config* config) {
    return config->vocabulary ? config->vocabulary : GPT_BYTES;
}

/* Of the parameters that train. */
gpt_layout gpt_layout_make(const gpt_config* config);

/* Of Adam's moments; of the gradient of a step. */
static inline memo_type gpt_state_type(const gpt_config* config) {
    return config->states == MEMO_TYPE_F32 ? gpt_sum_type(config->type) : config->states;
}
static inline memo_type gpt_gradient_type(const gpt_config* config) {
    return config->is_pure ? MEMO_TYPE_BF16 : gpt_sum_type(config->type);
}
/* Elements of which tensors are multiples: blocks begin with a tensor. */
static inline int64_t gpt_unit(const gpt_config* config) {
    return config->states == MEMO_TYPE_U8 ? GPT_BLOCK : 16;
}

/* ---- a rank's rows ------------------------------------------------------------------------- */

typedef struct gpt_share {
    memo_sharding layout; /* of a sequence over ring x ulysses ranks */
    int64_t batch;        /* sequences of each rank */
    int64_t n_rows;       /* batch * layout.local_tokens */
    int32_t n_ranks;
    int32_t data_rank, sequence_rank, rank; /* 0 in a dry run */
    int32_t tensor_rank;
} gpt_share;

/* Requires a valid config. */
gpt_share gpt_share_make(const gpt_config* config, const memo_mesh* mesh);

/* Returns the number of a row's token in the micro-batch of all ranks; -1: padding. */
int64_t gpt_token_of(const gpt_share* share, int64_t row);

/* ---- slices and chunks of rows ------------------------------------------------------------- */

int64_t gpt_slice_rows(const gpt_config* config);
static inline int64_t gpt_n_slices(const gpt_config* config) {
    return (gpt_n_rows(config) + gpt_slice_rows(config) - 1) / gpt_slice_rows(config);
}
gpt_rows gpt_slice_at(const gpt_config* config, int64_t slice);

/* Rows of a part of a slice; all but the last slice have slice_rows.  Parts of a short slice begin
 * where those of the others do. */
gpt_rows gpt_part_of(const gpt_config* config, int64_t slice_rows, gpt_rows slice, int32_t part);

/* A part of the micro-batch is a range of rows, not whole sequences: its keys and values are read
 * by later parts. */
int gpt_shares_keys(const gpt_config* config);

/* Queries whose attention is one call: whole sequences, or the queries of one. */
typedef struct gpt_run {
    gpt_rows rows;
    int64_t batch, first; /* sequences; the position of row `begin` */
    int32_t adds;         /* backward: later queries of the sequence ran before */
} gpt_run;

/* The run that begins at rows.begin. */
gpt_run gpt_run_at(int64_t sequence, gpt_rows rows);

/* Keys that a query sees on average, if documents are as many as allowed and equally long. */
double gpt_keys_seen(const gpt_config* config);

/* Rows that the MLP processes at a time in the backward: a quarter of all, or config.mlp_rows. */
int64_t gpt_chunk_rows(const gpt_config* config);

/* Rows whose logits exist at a time.  The classifier is never recomputed, so a large tile may be
 * cut. */
int64_t gpt_loss_rows(const gpt_config* config);

/* ---- skeletal tensors ---------------------------------------------------------------------- */

/* The tensors that a layer's backward needs from its forward, in the order of computation. */
enum {
    GPT_STREAM,    /* (rows, hidden): the residual stream, in place; in the backward its gradient */
    GPT_INPUT,     /* (rows, hidden): a copy of it */
    GPT_NORM1,     /* (rows, hidden) */
    GPT_RSTD1,     /* (rows) */
    GPT_Q_RAW,     /* (rows, q), before the norm of heads; absent without */
    GPT_K_RAW,     /* (rows, kv) */
    GPT_Q,         /* (rows, q), turned by RoPE */
    GPT_K,         /* (rows, kv), turned by RoPE */
    GPT_V,         /* (rows, kv) */
    GPT_ATTENTION, /* (rows, q) */
    GPT_LSE,       /* (rows, heads); if split by heads, as memo_sp_attention_tensors */
    GPT_MIDDLE,    /* (rows, hidden) */
    GPT_NORM2,     /* (rows, hidden) */
    GPT_RSTD2,     /* (rows) */
    GPT_ROUTER,    /* (rows, experts): the shares are its softmax; absent without experts */
    GPT_ROUTES,    /* (rows, 2 chosen): which they are, and their shares */
    GPT_UP,        /* (rows, up) */
    GPT_ACTIVATED, /* (rows, wide): GELU or SwiGLU of up */
    GPT_N_TENSORS
};

/* Those after `middle` are not skeletal if the MLP runs in chunks. */
static inline int32_t gpt_n_tensors(const gpt_config* config) {
    return config->mlp_rows ? GPT_NORM2 : GPT_N_TENSORS;
}

/* rstd and LSE are sums. */
memo_type gpt_tensor_type(const gpt_config* config, int tensor);

/* The table for engine, planner and profile.  Operations run in the order of the table, and each
 * reads only earlier tensors, so any rows can be recomputed alone.  Attention is the exception: a
 * query needs the keys of all earlier rows. */
void gpt_fill_tensors(const gpt_config* config, memo_item tensors[GPT_N_TENSORS]);

/* Returns whether the slices of a configuration are valid.  check.c has it. */
memo_status gpt_check_slices(const gpt_config* config, memo_error* error);

/* Rows of n slices of `largest` rows, in whole tiles; 0: fewer than 1,024, or the configuration does
 * not work with them.  check.c has it. */
int64_t gpt_cut_slices(const gpt_config* config, int64_t largest, int64_t n);

#endif
