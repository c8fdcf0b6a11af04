/* enqueue.h - the model's state, memory from its session, and its operations.
 *
 * For each operation, a function fills the arguments (kernels.h), announces which bytes are
 * read and written, and enqueues it on the compute stream. */
#ifndef GPT_ENQUEUE_H
#define GPT_ENQUEUE_H

#include "degree_comms.h"
#include "gpt/model/layout.h"

/* ---- the model ----------------------------------------------------------------------------- */

/* Rows of a tensor, skeletal or not, side by side. */
typedef struct gpt_array {
    char* address; /* of row `begin`; NULL if the model only measures */
    int64_t begin, n_columns;
    memo_type type;
    int64_t taken; /* where gpt_give takes it back; 0: memory of others */
} gpt_array;

/* Buffers of the session, beside its states and skeletal tensors: gpt_fill_buffers. */
typedef enum gpt_buffer {
    GPT_BUFFER_ROPE, /* as long as the session */
    GPT_BUFFER_NUMBERS,
    GPT_BUFFER_LOSSES,
    GPT_BUFFER_TOTALS,
    GPT_BUFFER_UPDATE,
    GPT_BUFFER_TABLE,    /* frozen and tied: the table, which embedding and classifier read */
    GPT_BUFFER_SCRATCH,  /* of kernels */
    GPT_BUFFER_PARTIAL,  /* sums over tensor ranks */
    GPT_BUFFER_SEQUENCE, /* attention over ranks */
    GPT_BUFFER_ADAPTER,  /* of lora.c */
    GPT_BUFFER_BATCH,    /* of a micro-batch */
    GPT_BUFFER_FORWARD,  /* work memory of a slice */
    GPT_BUFFER_CLASSIFIER,
    GPT_BUFFER_BACKWARD,
    GPT_BUFFER_KEYS,   /* of a layer's backward: gradients of keys and values */
    GPT_BUFFER_BUCKET, /* of gpt_has_buckets; any bucket fits */
    GPT_BUFFER_OTHER_BUCKET,
    GPT_BUFFER_THIRD_BUCKET, /* of the embedding, if the only layer has slices */
    GPT_N_BUFFERS
} gpt_buffer;

/* Memory that arrays are taken from, at its begin and at its end. */
enum { GPT_WORK_UNIT = 64 }; /* bytes of which arrays are multiples */
typedef struct gpt_memory {
    char* address;
    int64_t n_bytes, used[2];
    int64_t most; /* bytes that were used at a time */
} gpt_memory;

enum { GPT_MAX_LEVELS = 8 }; /* degrees of 1 to 128 */
enum { GPT_N_PLACES = 3 };   /* kinds of buckets: the embedding, a layer, the classifier */

/* Arrays with an element for each parameter, or for each frozen weight.  A bucket of an array is a state: the embedding, a
 * layer, or final norm with classifier.  Buckets are also the units of sums over ranks and of ZeRO,
 * by which a rank has a part of each bucket. */
enum {
    GPT_WEIGHTS,   /* of config.type */
    GPT_MASTERS,   /* sums; none if the weights are not rounded, or at random */
    GPT_GRADIENTS, /* of gpt_gradient_type */
    GPT_MOMENTS1,  /* of gpt_state_type */
    GPT_MOMENTS2,
    GPT_SCALES, /* of moments of 8 bits: two floats for GPT_BLOCK parameters */
    GPT_FROZEN, /* of config.type: the weights that adapters are added to; none without adapters */
    GPT_N_ARRAYS
};
enum { GPT_N_STATES = GPT_N_ARRAYS * GPT_N_PLACES };
/* A tied table that trains: the gradient of the classifier, before it is added to that of the
 * embedding.  Such a model has no frozen states. */
enum { GPT_TIED_GRADIENT = GPT_FROZEN * GPT_N_PLACES };

/* The work of a backward function: everything, or first what the sum over tensor ranks needs. */
typedef enum gpt_pass { GPT_PASS_BOTH = 0, GPT_PASS_INPUTS, GPT_PASS_WEIGHTS } gpt_pass;

/* State of a model that memo_blocks runs: tensor.h. */
typedef struct gpt_tensor_state {
    memo_blocks* blocks;
    memo_comm* ranks; /* memo_mesh.tensor */
    memo_comm sums;   /* the same, with sums over the rows that are read */
    memo_comm* norms; /* the same ranks, for gradients of norms; NULL: one rank */
    /* For degrees 2^a < 2^b: the ranks of the first, and the communicator to the second. */
    degree_comms pairs[GPT_MAX_LEVELS][GPT_MAX_LEVELS];
    int32_t n_parts;
    int32_t first_block;          /* of those that memo_blocks runs: 0, or the first of the layer */
    gpt_array partial, gradient;  /* y and g of memo_blocks (rows, hidden); persistent */
    gpt_array x, dx;              /* the residual stream and its gradient, of this micro-batch */
    gpt_rows need[GPT_N_TENSORS]; /* rows that the current layer recomputes */
    int64_t sum_begin, sum_end;   /* operand of the next sum: elements of the part's buffer */
    int is_in_block;              /* its arrays live until the next block begins */
    /* The block that was called last; its collective comes next. */
    int32_t block, part;
    int32_t direction; /* to the block that comes next: 1, -1 in the backward; 0: to none */
} gpt_tensor_state;

/* What updates on the host read: copies, in the order of the compute stream, because the next step
 * begins meanwhile. */
typedef struct gpt_handed_update {
    gpt_update_values values;
    double squares;
} gpt_handed_update;

struct gpt_model {
    gpt_config config;
    gpt_layout layout, base; /* of the parameters; of the weights of a model without adapters */
    const struct gpt_stored* frozen; /* their files; NULL: no adapters */
    gpt_share share;
    memo_comm* gradient;           /* over gpt_n_ranks ranks; NULL: one rank */
    memo_stream sums;              /* of gradients over these and tensor ranks; NULL: one rank */
    memo_event computed, summed;   /* before and after the latest sum */
    int64_t n_micro_batches;       /* of a step; 0: unknown */
    int32_t zero;                  /* config.zero, 0 on one rank */
    memo_sp_attention** attention; /* (slices), over the ranks of a sequence; NULL: one rank */
    memo_mask* masks;              /* (sequences) */
    memo_segment* segments;        /* of these, (gpt_n_segments) each */
    memo_exchange** exchanges;     /* see gpt_exchange; NULL: as attention */
    int64_t n_rows, n_slices, slice_rows;
    gpt_rows open;                 /* rows of the current slice */
    int32_t shares_keys;           /* as gpt_shares_keys */
    gpt_array d_key, d_value;      /* then (rows, kv_hidden), sums of the gradients of a layer */
    int64_t chunk_rows, loss_rows; /* rows at a time: of the MLP's backward, of the logits */
    int32_t computes;              /* the latest forward that began; 0 in a dry run */
    int32_t measures;              /* work memory: nothing is enqueued */

    gpt_kernels kernels;
    memo_device device;
    memo_stream compute;
    memo_session* session;
    memo_status (*agree)(void* user, int64_t* values, int64_t n, memo_error* error);
    void* agree_user;
    const memo_mesh* mesh;
    memo_item tensors[GPT_N_TENSORS]; /* for the session, as the states */
    memo_state states[GPT_N_STATES];
    memo_session_buffer buffers[GPT_N_BUFFERS];
    int32_t n_buffers, buffer_at[GPT_N_BUFFERS]; /* in `buffers`; -1: no bytes */
    gpt_memory work;
    int64_t columns[GPT_N_TENSORS]; /* of skeletal tensors, in a block of degree `tensor` */
    gpt_array chunk[GPT_N_TENSORS]; /* config.mlp_rows: the MLP's tensors, of the current chunk */
    gpt_tensor_state tensor;
    gpt_pass pass;

    /* On the device, beside the states of the session. */
    char* rope;                /* (local tokens, head size), sums */
    int64_t* token_numbers;    /* (rows), as gpt_token_of */
    double* losses;            /* (rows), of this micro-batch */
    double* totals;            /* (gpt_n_totals), of this step */
    gpt_update_values* update; /* of this step */
    /* gpt_has_buckets: the gradients of the buckets that a backward adds to: of the embedding, a layer, the
     * classifier.  The buffers that they lie in, and of the bucket before, whose sum is under
     * way. */
    gpt_array buckets[GPT_N_PLACES];
    gpt_buffer bucket_in[GPT_N_PLACES], summed_in;
    int32_t has_summed_bucket;
    /* States leave the device, or updates are fused: gradients are complete before their layer
     * ends. */
    int32_t streams;
    void**
        addresses; /* (buckets, GPT_N_STATES): of states that stay on the device; NULL: not known */
    int32_t updates_on_host;
    int32_t defers;     /* the update of a layer is in its next forward */
    int32_t fuses;      /* or in its last backward */
    int32_t is_timing;  /* the session times steps, and will plan again */
    int32_t is_last;    /* micro-batch of the step: its buckets are summed at once */
    int32_t has_last;   /* a step's last group is enqueued */
    int32_t is_summing; /* the stream `sums` has work that the compute stream has not waited for */
    /* In pinned host memory. */
    double* host_totals;
    gpt_update_values* host_update;
    gpt_handed_update* handed;
    char* staging; /* (places, gpt_batch_bytes): micro-batches on their way to the device */

    double squares_before;           /* of the gradient of the last step; 0: there was none */
    int64_t n_updates, first_update; /* of this model; the first one that this program runs */
    int64_t n_staged;                /* micro-batches in the staging buffer since the latest wait */
    void* graph;                     /* of a step; NULL: not captured */
    int32_t is_graph;                /* steps are staged, and then run as a graph */
    /* State of the current group of micro-batches. */
    int64_t group_begin, group_place; /* its first; where that lies in the staging buffer */
    /* State of the open micro-batch. */
    int64_t place; /* in the staging buffer */
    const gpt_batch_values* values;
    const int32_t* tokens; /* (2, rows): inputs and targets */
    const int64_t* begins; /* of documents */
    char phase[32];        /* "forward 3", for the names of operations */

    /* The first failure of the current call.  Every later operation does nothing, so callers check
     * it once, at the end. */
    memo_status status;
    memo_error error;
};

/* The status of a call, unless one before has failed; and of one that measuring leaves out. */
#define GPT_TRY(model, call)                                                                       \
    do {                                                                                           \
        if (!(model)->status) (model)->status = (call);                                            \
    } while (0)
#define GPT_DO(model, call)                                                                        \
    do {                                                                                           \
        if (!gpt_is_idle(model)) (model)->status = (call);                                         \
    } while (0)

enum { GPT_SITE_EMBEDDING, GPT_SITE_PROJECTION, GPT_SITE_MLP };

/* Totals of a step.  The sum of squares of the gradient is the last that ranks sum: not if every
 * rank has the whole gradient. */
enum {
    GPT_TOTAL_LOSS,
    GPT_TOTAL_VOTES,
    GPT_TOTAL_SQUARES,
    GPT_N_SUMMED,                    /* the host reads those before */
    GPT_TOTAL_BUCKET = GPT_N_SUMMED, /* squares of a bucket's gradient: GPT_CLIP_LAYER */
    GPT_TOTAL_UNUSED,                /* a vote of it */
    GPT_TOTAL_LANES                  /* (parts, GPT_LANES): of squares */
};

/* After a failure nothing more is enqueued, nor while the model measures its work memory. */
int gpt_is_idle(const gpt_model* model);
memo_status gpt_finish(gpt_model* model, memo_error* error);

/* Bracket a function of the session, which gets the first failure. */
void gpt_enter_session(gpt_model* model, memo_session* session);
void gpt_leave_session(gpt_model* model);

/* Bytes of n elements: of activations and weights; of what is summed. */
static inline int64_t gpt_n_bytes(const gpt_model* model, int64_t n) {
    return n * memo_type_bytes(model->config.type);
}
static inline int64_t gpt_sum_bytes(const gpt_model* model, int64_t n) {
    return n * memo_type_bytes(gpt_sum_type(model->config.type));
}

/* Weights and activations are rounded; they are copies of master weights. */
static inline int gpt_is_rounded(const gpt_config* config) {
    return gpt_sum_type(config->type) != config->type;
}
static inline int gpt_has_masters(const gpt_config* config) {
    return gpt_is_rounded(config) && !config->is_pure;
}

/* ---- micro-batches on their way to the device ------------------------------------------------ */

enum { GPT_VALUES_BYTES = 64 }; /* room of gpt_batch_values, of gpt_update_values, of totals */

/* Values, tokens (rows), targets (rows) and where documents begin (sequences, documents + 1): on
 * the device, and in the staging buffer. */
int64_t gpt_batch_bytes(const gpt_config* config);
int64_t* gpt_begins_of(void* batch, int64_t n_rows);
static inline int32_t* gpt_tokens_of(void* batch) {
    return (int32_t*)(void*)((char*)batch + GPT_VALUES_BYTES);
}

/* Places of the staging buffer. */
static inline int64_t gpt_n_places(int64_t n_micro_batches) {
    return gpt_min(n_micro_batches > 1 ? n_micro_batches : 1, GPT_STAGED_MAX);
}
static inline int64_t gpt_places_bytes(const gpt_config* config, int64_t n_micro_batches) {
    return gpt_n_places(n_micro_batches) * gpt_batch_bytes(config);
}
static inline gpt_batch_values* gpt_staged(const gpt_model* model, int64_t place) {
    return (gpt_batch_values*)(void*)(model->staging + place * gpt_batch_bytes(&model->config));
}

/* ---- parameters, gradients, optimizer: states of the session ------------------------------- */

static inline int64_t gpt_n_buckets(const gpt_config* config) { return config->n_layers + 2; }
static inline int gpt_bucket_place(const gpt_model* model, int64_t bucket) {
    return bucket == 0 ? 0 : bucket < gpt_n_buckets(&model->config) - 1 ? 1 : 2;
}
int64_t gpt_bucket_begin(const gpt_model* model, int64_t bucket);

/* The array of the weights of a model without adapters, and what it has of a bucket. */
static inline int gpt_base_array(const gpt_model* model) {
    return model->config.lora.rank ? GPT_FROZEN : GPT_WEIGHTS;
}
gpt_rows gpt_base_bucket(const gpt_model* model, int64_t bucket);

/* A tied table that trains is a state of the embedding that the classifier shares.  A frozen one
 * lies in a buffer. */
static inline int gpt_trains_tied(const gpt_config* config) {
    return config->is_tied && !config->lora.rank;
}
static inline int gpt_is_in_table(const gpt_model* model, int array, int64_t bucket) {
    return model->config.is_tied && array == GPT_FROZEN && bucket == 0;
}
static inline int64_t gpt_table_elements(const gpt_model* model) {
    return model->base.at[GPT_W_NORM1]; /* of the whole bucket */
}
/* The gradient of a tied classifier is added to that of the embedding in the first layer's last
 * backward, so that groups add in the same order. */
void gpt_add_tied(gpt_model* model);

/* The bucket with parameter i. */
int64_t gpt_bucket_of(const gpt_model* model, int64_t i);

/* The first tensor of a bucket, as in gpt_parameter_at. */
int64_t gpt_bucket_tensor(const gpt_model* model, int64_t bucket);
#define GPT_EACH_TENSOR(t, model, bucket)                                                          \
    for (int64_t t = gpt_bucket_tensor(model, bucket); t < gpt_bucket_tensor(model, (bucket) + 1); \
         t++)
int64_t gpt_array_bytes(const gpt_model* model, int array, int64_t n);

/* The parameters of a bucket. */
static inline gpt_rows gpt_whole_bucket(const gpt_model* model, int64_t bucket) {
    return gpt_rows_make(gpt_bucket_begin(model, bucket), gpt_bucket_begin(model, bucket + 1));
}

/* A rank's part of them. */
gpt_rows gpt_part_at(const gpt_model* model, int64_t bucket, int64_t rank);

/* What an array has of a bucket on this rank: all, or this rank's part. */
gpt_rows gpt_bucket_rows(const gpt_model* model, int array, int64_t bucket);

/* A model that measures has no addresses. */
static inline char* gpt_offset(const void* address, int64_t n_bytes) {
    return address ? (char*)(uintptr_t)address + n_bytes : NULL;
}

/* Where parameter i, or frozen weight i, lies in an array: in on_host, states of the parameter's layer on the host; NULL:
 * on the device, while the layer is open. */
char* gpt_address_at(const gpt_model* model, void* const* on_host, int array, int64_t i);
static inline char* gpt_address(const gpt_model* model, int array, int64_t i) {
    return gpt_address_at(model, NULL, array, i);
}
static inline char* gpt_weight(const gpt_model* model, int64_t i) {
    return gpt_address(model, GPT_WEIGHTS, i);
}

/* The array of the weights in full precision, and its type. */
static inline int gpt_full_weights(const gpt_model* model) {
    return gpt_has_masters(&model->config) ? GPT_MASTERS : GPT_WEIGHTS;
}
static inline memo_type gpt_full_type(const gpt_config* config) {
    return gpt_has_masters(config) ? gpt_sum_type(config->type) : config->type;
}

void gpt_synchronize(gpt_model* model);

/* Copies elements [rows) of an array to memory of the caller, or from there, between two steps.
 * This rank has them. */
void gpt_copy_array(gpt_model* model, int is_write, int array, gpt_rows rows, void* host);

/* Several ranks hold each sequence. */
static inline int gpt_is_over_ranks(const gpt_model* model) {
    return model->share.layout.ring * model->share.layout.ulysses > 1;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Where a buffer lies; NULL if it has no bytes, or after an error of the session. */
char* gpt_buffer_address(const gpt_model* model, gpt_buffer buffer);

/* Arrays are taken from this buffer; none is taken yet. */
void gpt_begin_work(gpt_model* model, gpt_buffer buffer);

/* Takes rows of a tensor; they live until gpt_give. */
gpt_array gpt_take_typed(gpt_model* model, gpt_rows rows, int64_t n_columns, memo_type type);
static inline gpt_array gpt_take(gpt_model* model, gpt_rows rows, int64_t n_columns) {
    return gpt_take_typed(model, rows, n_columns, model->config.type);
}
static inline gpt_array gpt_take_sums(gpt_model* model, gpt_rows rows, int64_t n_columns) {
    return gpt_take_typed(model, rows, n_columns, gpt_sum_type(model->config.type));
}

/* The same at the end of the work memory: of two arrays that take turns, one lies there. */
gpt_array gpt_take_at_end(gpt_model* model, gpt_rows rows, int64_t n_columns);

/* Gives an array back, and all that was taken after it at the same end. */
void gpt_give(gpt_model* model, gpt_array x);

/* phase: forward, recompute or backward. */
void gpt_begin_phase(gpt_model* model, int32_t layer, const char* phase);

/* ---- operations: their operands, announced and enqueued -------------------------------------- */

static inline char* gpt_at(gpt_array x, int64_t row) {
    return gpt_offset(x.address, (row - x.begin) * x.n_columns * memo_type_bytes(x.type));
}
static inline int64_t gpt_bytes(gpt_array x, gpt_rows rows) {
    return gpt_count(rows) * x.n_columns * memo_type_bytes(x.type);
}
/* Operands: rows of a tensor; sums; n elements of a weight of a layer; the sums of their gradients,
 * unless it is frozen. */
void gpt_use_rows(gpt_op* op, int uses, const void* place, gpt_array x, gpt_rows rows);
void gpt_use_sums(gpt_model* model, gpt_op* op, int uses, const void* place, const void* address,
                  int64_t n);
void gpt_use_weight(gpt_model* model, gpt_op* op, const void* place, int32_t layer, int w,
                    int64_t n);
void gpt_use_gradient(gpt_model* model, gpt_op* op, const void* place, int32_t layer, int w,
                      int64_t n);

/* An operation that reads a range and writes another, such as a collective. */
void gpt_announce_ranges(gpt_model* model, const char* what, const void* from, int64_t from_bytes,
                         const void* to, int64_t to_bytes);

/* Enqueues an operation, unless it has no rows.  A pass of weights alone has products only: the
 * pass of inputs has done the others. */
void gpt_launch(gpt_model* model, const gpt_op* op);

/* Sets bytes to zero. */
void gpt_clear(gpt_model* model, void* address, int64_t n_bytes);
void gpt_copy(gpt_model* model, memo_copy_kind kind, void* to, const void* from, int64_t n_bytes);

/* Between sums and numbers of the model's type, in one of the directions. */
void gpt_cast(gpt_model* model, void* to, memo_type to_type, const void* from, memo_type from_type,
              int64_t n);

/* A micro-batch adds a bucket's gradients in a buffer, of sums, and then to those of the step, which
 * are of a part of the bucket, or rounded. */
static inline int gpt_has_buckets(const gpt_model* model) {
    return model->zero == 2 || model->config.is_pure;
}

/* Returns the sum of gradients of the parameters from i on.  With buckets this is a buffer. */
char* gpt_gradient(const gpt_model* model, int64_t i);

/* ---- linear: y = x W^T ---------------------------------------------------------------------- */

/* y = or += scale x W^T; backward: dx = or += scale dy W, dW += scale dy^T x. */
typedef struct gpt_product {
    const char* name;
    const char* weight; /* (outputs, inputs) */
    char* dweight;      /* of the backward; NULL: not computed */
    double scale;
    int32_t adds;
} gpt_product;
void gpt_multiply(gpt_model* model, const gpt_product* p, gpt_array y, gpt_array x, gpt_rows rows);
/* dx NULL: not computed. */
void gpt_multiply_back(gpt_model* model, const gpt_product* p, const gpt_array* dx, gpt_array dy,
                       gpt_array x, gpt_rows rows);

/* With a weight of a layer, and its adapters: y is set, dx is set or added to. */

void gpt_linear(gpt_model* model, int32_t layer, int w, gpt_array y, gpt_array x, gpt_rows rows);
void gpt_linear_back(gpt_model* model, int32_t layer, int w, gpt_array dx, gpt_array dy,
                     gpt_array x, int is_first, gpt_rows rows);

/* ---- adapters: lora.c ------------------------------------------------------------------------- */

int64_t gpt_lora_bytes(const gpt_model* model); /* of GPT_BUFFER_ADAPTER */

/* What the adapters of a product add to y; to dx and their gradients.  Nothing without adapters. */
void gpt_lora_forward(gpt_model* model, int32_t layer, int w, gpt_array y, gpt_array x,
                      gpt_rows rows);
void gpt_lora_backward(gpt_model* model, int32_t layer, int w, gpt_array dx, gpt_array dy,
                       gpt_array x, gpt_rows rows);

/* ---- norm ------------------------------------------------------------------------------------ */

/* dx: of the backward, in which y is dy; NULL: the forward. */
void gpt_norm(gpt_model* model, int32_t layer, int w, const gpt_array* dx, gpt_array y,
              gpt_array rstd, gpt_array x, gpt_rows rows);

/* Of each head.  rstd (rows, heads): NULL if the forward does not store it.  The backward sets
 * dx. */
void gpt_head_norm(gpt_model* model, int32_t layer, int w, const gpt_array* dx, gpt_array y,
                   const gpt_array* rstd, gpt_array x, gpt_rows rows);

/* ---- bias ------------------------------------------------------------------------------------ */

/* y += bias, in place; backward: y is its gradient. */
void gpt_bias(gpt_model* model, int32_t layer, int w, int is_backward, gpt_array y, gpt_rows rows);

/* ---- element by element: dropout, residual, activation; RoPE --------------------------------- */

/* GELU or SwiGLU; z: of the backward, or NULL. */
void gpt_activate(gpt_model* model, gpt_array y, gpt_array x, const gpt_array* z, gpt_rows rows);

/* y = dropout(x), or the residual: y = x + dropout(z). */
void gpt_drop_elements(gpt_model* model, gpt_array y, gpt_array x, const gpt_array* z,
                       int32_t layer, int32_t site, gpt_rows rows);

/* In place. */
void gpt_rope_rows(gpt_model* model, const char* name, gpt_array x, int32_t direction,
                   gpt_rows rows);

/* ---- attention over the ranks that hold a sequence ------------------------------------------- */

memo_sp_attention_desc gpt_sp_desc(const gpt_config* config, const gpt_share* share, int64_t slice);

/* The most that any rank needs, so that all ranks have one plan; 0 if no sequence is split. */
int64_t gpt_sp_bytes(const gpt_model* model);
int64_t gpt_n_segments(const gpt_config* config);

/* What kernels need to know of a rank's step. */
gpt_shapes gpt_shapes_make(const gpt_config* config);
int64_t gpt_n_exchanges(const gpt_model* model);

/* Of the current micro-batch.  The stream reads the begins of documents in the staging buffer,
 * which keeps them until the stream has passed. */
void gpt_make_exchanges(gpt_model* model);

/* ---- attention of runs: whole sequences, or queries of one ----------------------------------- */

/* Of the backward: the gradient of attention, those of its inputs, and scratch. */
typedef struct gpt_attention_back {
    gpt_array dout, dq, dk, dv, delta;
} gpt_attention_back;

/* back NULL: the forward. */
void gpt_attention(gpt_model* model, const gpt_array* tensors, const gpt_attention_back* back,
                   gpt_rows rows);

/* ---- tokens: embedding, loss ----------------------------------------------------------------- */

/* x: rows of the table; of the backward their gradient. */
void gpt_embedding(gpt_model* model, int is_backward, gpt_array x);

/* Sets the losses and replaces the logits by their gradient. */
void gpt_loss(gpt_model* model, gpt_array logits, gpt_rows rows);

/* The sum of all losses: slices compute them in any order. */
void gpt_add_losses(gpt_model* model);

/* ---- sums ------------------------------------------------------------------------------------ */

/* to += from, n elements. */
void gpt_add(gpt_model* model, void* to, memo_type to_type, const void* from, memo_type from_type,
             int64_t n);

/* Sums n elements over ranks, in place. */
void gpt_all_reduce(gpt_model* model, memo_comm* ranks, const char* name, void* sum, int64_t n,
                    memo_type type);

/* Gathers n numbers of each rank, of the model's type. */
void gpt_all_gather(gpt_model* model, memo_comm* ranks, const char* name, const void* own,
                    void* all, int64_t n);

#endif
