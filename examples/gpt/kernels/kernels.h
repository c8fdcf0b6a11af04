/* kernels.h - the operations of a model: their kinds, their arguments, and the table of
 * functions that enqueues them.
 *
 * The model, its layers and policies use this file only.  They know neither how an operation is
 * computed nor the C type of an element.  Arguments are plain numbers and addresses of device
 * memory; no operation reads host memory.  Arguments are the same in every step, so that a graph of
 * a step can be replayed: operations read what changes (gpt_batch_values, gpt_update_values) from
 * device memory.  host.h computes on threads.
 *
 * Types: activations, their gradients and weights have the type of the model (gpt_config.type).
 * "sums" have gpt_sum_type: rstd, LSE, gradients of parameters, master weights.
 * Totals are F64.  Shapes are in parentheses, rows first. */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include <stdint.h>
#include <string.h>

#include "memo.h"
#include "memo_sp.h"

#define GPT_FUNCTION static MEMO_UNUSED
#ifdef __CUDACC__
#define GPT_INLINE static __host__ __device__ __forceinline__
#else
#define GPT_INLINE static inline
#endif

enum {
    GPT_BYTES = 256, /* the vocabulary of a model of bytes */
    GPT_LANES = 16,  /* partial sums of a reduction: vectorizable, in a fixed order */
    GPT_BLOCK = 256  /* moments of 8 bits that share two scales, for each a float */
};

GPT_INLINE int64_t gpt_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Messages name a field as the trainer's option that sets it. */
#define gpt_invalid(error, ...)     memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, __VA_ARGS__)
#define gpt_unsupported(error, ...) memo_error_set(error, MEMO_STATUS_UNSUPPORTED, __VA_ARGS__)
static inline memo_status gpt_no_memory(const char* what, memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %s", what);
}

static inline memo_type gpt_sum_type(memo_type type) {
    return type == MEMO_TYPE_F64 ? MEMO_TYPE_F64 : MEMO_TYPE_F32;
}

/* A range of rows: the part of a tensor that a pass computes, or a part of a micro-batch. */
typedef struct gpt_rows {
    int64_t begin, end;
} gpt_rows;

static inline gpt_rows gpt_rows_make(int64_t begin, int64_t end) {
    gpt_rows rows;
    rows.begin = begin;
    rows.end = end;
    return rows;
}
static inline int64_t gpt_count(gpt_rows rows) { return rows.end - rows.begin; }
/* The rows that both have; none: those at the begin of the second. */
static inline gpt_rows gpt_rows_in(gpt_rows a, gpt_rows b) {
    a.begin = a.begin > b.begin ? a.begin : b.begin;
    a.end = gpt_min(a.end, b.end);
    return a.begin < a.end ? a : gpt_rows_make(b.begin, b.begin);
}

/* The piece of at most n rows that begins at a row; empty behind the last. */
static inline gpt_rows gpt_piece_at(gpt_rows rows, int64_t begin, int64_t n) {
    return gpt_rows_make(begin, gpt_min(begin + n, rows.end));
}
#define GPT_EACH_PIECE(piece, rows, n)                                                             \
    for (gpt_rows piece = gpt_piece_at(rows, (rows).begin, n); gpt_count(piece) > 0;               \
         piece = gpt_piece_at(rows, piece.end, n))

/* ---- dropout: a mask without state ---------------------------------------------------------- */

/* The finalizer of splitmix64: every bit of the result depends on every bit of z. */
GPT_INLINE uint64_t gpt_mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The key of a dropout mask: everything that it depends on except token and column. */
typedef struct gpt_dropout {
    uint64_t key;
    uint32_t threshold; /* numbers below it drop the element */
    double scale;       /* factor of the other elements: 1 / (1 - rate) */
} gpt_dropout;

/* rate in [0, 1).  site distinguishes the dropouts of a layer. */
GPT_INLINE gpt_dropout gpt_dropout_make(double rate, uint64_t seed, int64_t step, int64_t layer,
                                        int64_t site) {
    gpt_dropout dropout;
    dropout.key = gpt_mix(gpt_mix(gpt_mix(gpt_mix(seed) ^ (uint64_t)step) ^ (uint64_t)layer) ^
                          (uint64_t)site);
    dropout.threshold = (uint32_t)(rate * 4294967296.0);
    dropout.scale = 1.0 / (1.0 - rate);
    return dropout;
}

/* ---- what changes from step to step, in device memory ---------------------------------------- */

/* The values of a micro-batch. */
typedef struct gpt_batch_values {
    int64_t step;        /* keys the dropout, with the next field */
    int64_t first_token; /* the number of the micro-batch's first token, over all ranks */
    double loss_scale;
} gpt_batch_values;

typedef struct gpt_adamw_desc {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    int64_t update; /* from 1: for the bias correction of the moments */
} gpt_adamw_desc;

/* At random: of moments to bf16 and to 8 bits, and of weights without master weights. */
typedef struct gpt_rounding {
    uint64_t seed;
    int64_t first; /* the number of element 0 among all parameters */
} gpt_rounding;

/* The values of an update. */
typedef struct gpt_update_values {
    gpt_adamw_desc adamw;
    double clip; /* the largest norm of the gradient, 0: no limit; or see gpt_adamw_args */
    double vote; /* summed over ranks: see gpt_votes */
} gpt_update_values;

/* ---- kinds and their arguments ---------------------------------------------------------------
 *
 * Addresses are those of the first row or element.  rows are numbered in the micro-batch, so that
 * tiles lie at the same rows in every pass. */

typedef enum gpt_kind {
    GPT_KIND_LINEAR = 0,      /* gpt_linear_args: y = or += scale x W^T */
    GPT_KIND_LINEAR_BACKWARD, /* dx = or += scale dy W; dW += scale dy^T x */
    GPT_KIND_NORM,            /* gpt_norm_args: root mean square norm */
    GPT_KIND_NORM_BACKWARD,   /* sets or adds to dx, adds to the weight's gradient */
    GPT_KIND_DROPOUT,         /* gpt_elements_args: y = mask * x, or x + mask * z */
    GPT_KIND_GELU,            /* y = gelu(x) */
    GPT_KIND_GELU_BACKWARD,   /* y = x * gelu'(z) */
    GPT_KIND_SWIGLU,          /* y = up * silu(gate); x is (rows, 2 columns): up and gate in turn */
    GPT_KIND_SWIGLU_BACKWARD, /* y (rows, 2 columns) = x * the slopes at z (rows, 2 columns) */
    GPT_KIND_ROPE,            /* gpt_rope_args */
    GPT_KIND_BIAS,            /* gpt_bias_args: y += bias */
    GPT_KIND_BIAS_BACKWARD,   /* dbias += the sum of the rows of y */
    GPT_KIND_ATTENTION,       /* gpt_attention_args */
    GPT_KIND_ATTENTION_BACKWARD, /* sets dq, dk, dv and delta */
    GPT_KIND_EMBEDDING,          /* gpt_tokens_args: x = rows of the table */
    GPT_KIND_EMBEDDING_BACKWARD, /* rows of the table += x */
    GPT_KIND_CROSS_ENTROPY,      /* sets the losses; x, logits, becomes their gradient */
    GPT_KIND_LOSS,               /* gpt_loss_args: adds them to the loss, in the order of rows */
    GPT_KIND_SQUARES,            /* gpt_squares_args: lanes += squares */
    GPT_KIND_NORM_TOTAL,         /* gpt_total_args: total += lanes; lanes = 0 */
    GPT_KIND_ADAMW,              /* gpt_adamw_args */
    GPT_KIND_INITIAL,            /* gpt_initial_args: initial values of a parameter */
    GPT_KIND_ROPE_TABLE,         /* gpt_rope_table_args: cosines and sines */
    GPT_KIND_ROUTE,              /* gpt_route_args: sets routes */
    GPT_KIND_ROUTE_BACKWARD,     /* sets dlogits */
    GPT_KIND_EXPERTS,            /* gpt_experts_args: y = products of each row's experts */
    GPT_KIND_EXPERTS_BACKWARD,   /* sets dx and dshares, adds to dW */
    GPT_KIND_SPREAD,             /* gpt_spread_args: rows of wide = narrow, the others 0 */
    GPT_KIND_SPREAD_BACKWARD,    /* narrow += these rows of wide */
    GPT_N_KINDS
} gpt_kind;

/* A product computes whole tiles of tile_rows rows, so that a row is recomputed with the same bits.
 * If a part of a micro-batch begins inside a tile, it has the rest of that tile in every pass. */
typedef struct gpt_linear_args {
    void* y;            /* (rows, outputs); backward: dy, only read */
    const void* x;      /* (rows, inputs) */
    void* dx;           /* (rows, inputs); backward alone, as dweight; NULL: not computed */
    const void* weight; /* (outputs, inputs) */
    void* dweight;      /* (outputs, inputs), sums; NULL: not computed */
    gpt_rows rows;
    int64_t tile_rows, n_outputs, n_inputs;
    double scale;
    int32_t adds; /* to y; in the backward to dx */
} gpt_linear_args;

typedef struct gpt_norm_args {
    void* y; /* (rows, hidden); backward: dy, only read */
    const void* x;
    void* rstd; /* (rows), sums; NULL: not stored by the forward */
    void* dx;
    const void* weight;
    void* dweight; /* (hidden), sums; NULL: not computed */
    gpt_rows rows;
    int64_t hidden;
    double epsilon;   /* added to the mean of squares */
    int32_t is_first; /* backward: dx is set, otherwise added to */
} gpt_norm_args;

typedef struct gpt_bias_args {
    void* y;          /* (rows, columns), in place; backward: the gradient, only read */
    const void* bias; /* (columns) */
    void* dbias;      /* (columns), sums; backward alone */
    gpt_rows rows;
    int64_t n_columns;
} gpt_bias_args;

/* token_numbers: (rows), the number of a row's token in the micro-batch of all ranks; -1:
 * padding. */
typedef struct gpt_elements_args {
    gpt_kind kind;
    void* y;           /* (rows, columns) */
    const void *x, *z; /* y from x and, if there are two inputs, z */
    gpt_rows rows;
    int64_t n_columns;
    const int64_t* token_numbers;
    const gpt_batch_values* values; /* of dropout, as the next three */
    double rate;
    uint64_t seed;
    int32_t layer, site;
} gpt_elements_args;

GPT_INLINE gpt_dropout gpt_dropout_of(const gpt_elements_args* a) {
    return gpt_dropout_make(a->rate, a->seed, a->values->step, a->layer, a->site);
}

typedef struct gpt_rope_args {
    void* x;           /* (rows, heads * head_size), in place */
    const void* table; /* (sequence, head_size), sums */
    gpt_rows rows;
    int64_t sequence, n_heads, head_size; /* sequence: rows of a sequence on this rank */
    int32_t direction;                    /* 1: forward; -1: backward */
} gpt_rope_args;

/* Whole sequences, or the queries [first, sequence) of one against the keys before each.  Query
 * head h uses key-value head h * n_kv_heads / n_heads. */
typedef struct gpt_attention_shape {
    int64_t first, sequence; /* the first query; keys from 0 to sequence */
    int64_t n_heads, n_kv_heads, head_size;
    int32_t adds;      /* backward: dk and dv are added to, not set */
    int32_t sums;      /* dk and dv are sums, added up over calls */
    int64_t window;    /* keys that a query sees, its own the last; 0: all */
    int64_t documents; /* the most of a sequence; 0: it is one */
} gpt_attention_shape;

/* A query sees the keys from this one to its own.  begins: of the sequence's documents.  It never
 * falls from one query to the next. */
GPT_INLINE int64_t gpt_first_key(const gpt_attention_shape* shape, const int64_t* begins,
                                 int64_t query) {
    int64_t low = 0, high = shape->documents, first = 0;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (begins[middle] <= query)
            low = middle;
        else
            high = middle;
    }
    if (shape->documents) first = begins[low];
    return shape->window && query - shape->window >= first ? query - shape->window + 1 : first;
}

typedef struct gpt_attention_args {
    gpt_attention_shape shape;
    int64_t batch;
    const void *q, *k, *v; /* (queries, heads * head_size), (sequence, kv_heads * head_size) */
    void* out;
    void* lse; /* (queries, heads), sums, natural log */
    const void* dout;
    void *dq, *dk, *dv; /* dk may be k, and dv v, unless shape.sums */
    void* delta;        /* (queries, heads), sums: scratch of the backward */
    /* (batch, documents + 1): positions from 0 to sequence, not descending; equal ones are an empty
     * document. */
    const int64_t* begins;
} gpt_attention_args;

GPT_INLINE const int64_t* gpt_begins_at(const gpt_attention_args* a, int64_t sequence) {
    return a->shape.documents ? a->begins + sequence * (a->shape.documents + 1) : a->begins;
}

typedef struct gpt_tokens_args {
    void* x;               /* (rows, columns) */
    const void* table;     /* (vocabulary, columns) */
    void* dtable;          /* (vocabulary, columns), sums */
    const int32_t* tokens; /* (rows); cross-entropy: the targets */
    const int64_t* token_numbers;
    double* losses; /* (rows), of cross-entropy, as the next */
    const gpt_batch_values* values;
    gpt_rows rows;
    int64_t n_columns;
} gpt_tokens_args;

typedef struct gpt_loss_args {
    const double* losses; /* (n) */
    double* loss;
    int64_t n;
} gpt_loss_args;

typedef struct gpt_squares_args {
    const void* x;
    double* lanes;  /* (GPT_LANES); element i is added to lane i % GPT_LANES */
    memo_type type; /* of x: sums, or BF16 */
    int64_t n;
} gpt_squares_args;

typedef struct gpt_total_args {
    double *lanes, *total;
    double* vote; /* set to that of values */
    const gpt_update_values* values;
} gpt_total_args;

typedef struct gpt_adamw_args {
    void* parameters;      /* of type `kept`: the master weights, or weights without them */
    void* weights;         /* their rounded copy; NULL: none */
    const void* gradients; /* of type `summed` */
    void *moments1, *moments2;
    void* scales;                   /* (blocks, 2), floats; of moments of 8 bits alone */
    memo_type kept, summed, states; /* sums, or BF16; states, of both moments, also U8: 8 bits */
    gpt_rounding rounding;
    const double* squares; /* of the gradient that clip limits; NULL: clip multiplies it */
    const gpt_update_values* values;
    int32_t decays; /* 0: without weight decay */
    int64_t n;
} gpt_adamw_args;

/* Element i is element offset + i / n_columns * stride + i % n_columns of the unsplit parameter. */
typedef struct gpt_initial_args {
    void* to;
    int64_t n, n_columns, stride, offset;
    uint64_t key;
    double std, mean;   /* of a normal distribution */
    int32_t is_uniform; /* of a uniform one, between mean - sqrt(3) std and mean + sqrt(3) std */
} gpt_initial_args;

/* The frequency of pair j of a head: theta^(-2 j / head_size), then scaled.  LINEAR (Chen et al.
 * 2023) divides it by factor.  LLAMA3 (Llama 3.1) divides it by factor if its wavelength exceeds
 * original / low_factor, keeps it below original / high_factor, and takes a mean of both in
 * between.  All 0: theta 10000, plain. */
typedef enum gpt_rope_kind {
    GPT_ROPE_PLAIN = 0,
    GPT_ROPE_LINEAR,
    GPT_ROPE_LLAMA3,
    GPT_N_ROPES
} gpt_rope_kind;
typedef struct gpt_rope_law {
    double theta; /* 0: 10000 */
    gpt_rope_kind kind;
    double factor, low_factor, high_factor;
    double original; /* tokens */
} gpt_rope_law;

typedef struct gpt_rope_table_args {
    void* table;                  /* (positions, head_size), sums */
    const int64_t* token_numbers; /* (positions): position is number % sequence */
    int64_t n_positions, sequence, head_size;
    gpt_rope_law law;
} gpt_rope_table_args;

/* The experts of a row: those with the n_chosen largest logits, the smaller number first of equal
 * ones.  Their shares are softmax(logits), of all or, if is_normed, of these.  routes has the numbers
 * of the experts, and then their shares. */
typedef struct gpt_route_args {
    void* routes;        /* (rows, 2 chosen), sums; backward: only read */
    const void* logits;  /* (rows, experts) */
    void* dlogits;       /* (rows, experts); backward alone, as the next */
    const void* dshares; /* (rows, chosen), sums */
    gpt_rows rows;
    int64_t n_experts, n_chosen;
    int32_t is_normed;
} gpt_route_args;

/* Products with the weights of each row's experts; W_e is (outputs, inputs), of expert e.
 *
 *   spreads 1:  y_j = x W_e^T, j from 0 to chosen, side by side in a row
 *           0:  y = the sum over j of share_j x_j W_e^T, where x_j lie side by side */
typedef struct gpt_experts_args {
    void* y;       /* (rows, outputs); spreads: (rows, chosen * outputs); backward: dy, only read */
    const void* x; /* (rows, chosen * inputs); spreads: (rows, inputs) */
    void* dx;      /* as x; backward alone, as the next two */
    void* dshares; /* (rows, chosen), sums; NULL if spreads */
    void* dweight; /* (experts, outputs, inputs), sums; NULL: not computed */
    const void* weight; /* (experts, outputs, inputs) */
    const void* routes; /* (rows, 2 chosen), sums */
    gpt_rows rows;
    int64_t n_experts, n_chosen, n_outputs, n_inputs;
    int32_t spreads;
} gpt_experts_args;

/* Row i of narrow is row i * n_turns + turn of wide. */
typedef struct gpt_spread_args {
    void* wide;           /* (rows * n_turns, columns); backward: sums, only read */
    void* narrow;         /* (rows, columns); forward: only read; backward: sums */
    int64_t n, n_columns; /* n: elements of wide */
    int32_t turn, n_turns;
} gpt_spread_args;

/* The element of narrow; -1: none. */
GPT_INLINE int64_t gpt_spread_from(const gpt_spread_args* a, int64_t i) {
    const int64_t row = i / a->n_columns;
    return row % a->n_turns == a->turn ? row / a->n_turns * a->n_columns + i % a->n_columns : -1;
}

/* ---- an operation ----------------------------------------------------------------------------
 *
 * Its operands are all device memory that it reads or writes: the model announces them to the
 * device.  Kernels that compute in float widen those in bf16. */

enum { GPT_READ = 1, GPT_WRITTEN = 2, GPT_OPERANDS_MAX = 12 };

typedef struct gpt_operand {
    const void* address;
    int64_t n;
    memo_type type; /* of n elements; U8: of bytes that are not widened */
    int16_t uses;   /* GPT_READ, GPT_WRITTEN */
    int16_t place;  /* of the address in gpt_op */
} gpt_operand;

typedef struct gpt_op {
    const char* name;
    gpt_kind kind;
    int32_t n_operands;
    gpt_operand operands[GPT_OPERANDS_MAX]; /* the first has the rows or elements to compute */
    union {
        gpt_linear_args linear;
        gpt_norm_args norm;
        gpt_bias_args bias;
        gpt_elements_args elements;
        gpt_rope_args rope;
        gpt_attention_args attention;
        gpt_tokens_args tokens;
        gpt_loss_args loss;
        gpt_squares_args squares;
        gpt_total_args total;
        gpt_adamw_args adamw;
        gpt_initial_args initial;
        gpt_rope_table_args rope_table;
        gpt_route_args route;
        gpt_experts_args experts;
        gpt_spread_args spread;
    } args; /* of the kind */
} gpt_op;

static inline gpt_op gpt_op_make(const char* name, gpt_kind kind) {
    gpt_op op;
    memset(&op, 0, sizeof op);
    op.name = name;
    op.kind = kind;
    return op;
}

/* Sets the pointer at `place` in the arguments to an operand. */
static inline void gpt_use(gpt_op* op, int uses, const void* place, const void* address,
                           memo_type type, int64_t n) {
    gpt_operand* operand = &op->operands[op->n_operands++];
    operand->address = address;
    operand->n = n;
    operand->type = type;
    operand->uses = (int16_t)uses;
    operand->place = (int16_t)((const char*)place - (const char*)op);
    memcpy((char*)op + operand->place, &address, sizeof address);
}
/* Bytes in a type of their own. */
static inline void gpt_use_bytes(gpt_op* op, int uses, const void* place, const void* address,
                                 int64_t n_bytes) {
    gpt_use(op, uses, place, address, MEMO_TYPE_U8, n_bytes);
}

/* ---- the table ------------------------------------------------------------------------------- */

enum { GPT_RUNS_MAX = 512 };

/* What kernels need to know of a model before its first operation. */
typedef struct gpt_shapes {
    memo_type type;
    int64_t n_rows;              /* of an operation */
    int64_t n_keys;              /* elements of k, and of v, of a micro-batch */
    int64_t loss_rows, mlp_rows; /* of logits, of an operation of the MLP */
    int64_t hidden, head_size, vocabulary;
    int64_t q;        /* columns of q, and of attention */
    int64_t wide, up; /* columns of the MLP: of its activation, of the product before it */
    /* Each different call of attention.  If ranks split a sequence, over_ranks describes it
     * instead: only its shapes are set, and its degrees are not both 1. */
    struct {
        gpt_attention_shape shape;
        int64_t batch;
    } attention[GPT_RUNS_MAX];
    int32_t n_attention;
    memo_sp_attention_desc over_ranks;
    int64_t window, documents; /* of its masks, as in gpt_attention_shape */
    int64_t largest_weight;    /* elements */
} gpt_shapes;

typedef struct gpt_kernels {
    void* context;
    /* Enqueues on stream.  op is copied before the call returns. */
    memo_status (*enqueue)(void* context, memo_stream stream, const gpt_op* op, memo_error* error);
    /* Optional: device memory that the operations of a model need beside their arguments. */
    int64_t (*scratch_bytes)(void* context, const gpt_shapes* shapes);
    /* Before the first operation: refuses what the kernels cannot compute, and chooses algorithms.
     * scratch has scratch_bytes bytes and outlives the operations.  Operations are enqueued on
     * compute; those of GPT_KIND_DROPOUT also on other streams. */
    memo_status (*prepare)(void* context, const gpt_shapes* shapes, memo_stream compute,
                           void* scratch, memo_error* error);
    memo_attention attention; /* of one rank, for memo_sp */
    /* Optional, all or none.  Operations between begin and end, on stream and on streams that wait
     * for it, become a graph and do not run.  Nothing in between may wait or allocate.  end also
     * ends a capture that has failed; *graph is then NULL.  launch enqueues the graph. */
    memo_status (*graph_begin)(void* context, memo_stream stream, memo_error* error);
    memo_status (*graph_end)(void* context, memo_stream stream, void** graph, memo_error* error);
    memo_status (*graph_launch)(void* context, memo_stream stream, void* graph, memo_error* error);
    void (*graph_destroy)(void* context, void* graph);
    /* Optional: GPT_KIND_ADAMW on the host, at once and on any thread, with gpt_adamw_args of host
     * memory and the bits of enqueue. */
    void (*update_on_host)(const void* args);
} gpt_kernels;

#endif
