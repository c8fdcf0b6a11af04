/* gpt_enqueue.h - the model's state, memory from its arena, and its operations.
 *
 * Each operation is a struct of arguments, a function that runs on the compute stream, and a
 * function that announces and enqueues it.
 *
 * Single translation unit: everything is static. */
#ifndef GPT_ENQUEUE_H
#define GPT_ENQUEUE_H

#include "gpt_layout.h"
#include "gpt_threads.h"

/* ---- the model ----------------------------------------------------------------------------- */

/* Rows of a tensor, skeletal or not, side by side. */
typedef struct gpt_array {
    gpt_real* address; /* of row `begin` */
    int64_t begin, n_columns;
} gpt_array;

/* A range of rows: the part of a tensor that a pass computes, or a part of a micro-batch. */
typedef struct gpt_rows {
    int64_t begin, end;
} gpt_rows;

static gpt_rows gpt_rows_make(int64_t begin, int64_t end) {
    gpt_rows rows;
    rows.begin = begin;
    rows.end = end;
    return rows;
}
static int64_t gpt_count(gpt_rows rows) { return rows.end - rows.begin; }

/* The work of a backward function: everything, or first what the sum over tensor ranks needs. */
typedef enum gpt_pass { GPT_PASS_BOTH = 0, GPT_PASS_INPUTS, GPT_PASS_WEIGHTS } gpt_pass;

enum { GPT_MAX_LEVELS = 8 }; /* degrees of 1 to 128 */

/* State of a model that memo_blocks runs: gpt_tensor.h. */
typedef struct gpt_tensor_state {
    memo_blocks* blocks;
    memo_comm* ranks; /* memo_mesh.tensor */
    memo_comm sums;   /* the same, with sums over the rows that are read */
    /* For degrees 2^a < 2^b: the ranks of the first, and the communicator to the second. */
    memo_degree_comms pairs[GPT_MAX_LEVELS][GPT_MAX_LEVELS];
    int32_t n_parts;
    int32_t splits_sequence;
    gpt_array partial, gradient;  /* y and g of memo_blocks (rows, hidden); persistent */
    gpt_array x, dx;              /* the residual stream and its gradient, of this micro-batch */
    gpt_array d_key, d_value;     /* (rows, kv_hidden), sums of the gradients of all parts */
    gpt_rows need[GPT_N_TENSORS]; /* rows that the current layer recomputes */
    int64_t sum_begin, sum_end;   /* operand of the next sum: reals of the part's buffer */
    /* Memory that a block needs while it runs; each block starts its requests again. */
    char* work;
    int64_t work_bytes, work_used;
    int is_in_block;
    /* The block that was called last; its collective comes next. */
    int32_t block, part;
    int is_forward, is_backward;
} gpt_tensor_state;

struct gpt_model {
    gpt_config config;
    gpt_layout layout;
    gpt_share share;
    memo_comm* gradient;          /* over gpt_n_ranks ranks; NULL: one rank */
    int32_t zero;                 /* config.zero, 0 on one rank */
    memo_sp_attention* attention; /* over the ranks of a sequence; NULL: one rank */
    memo_host_attention attention_state;
    int64_t n_rows, chunk_rows; /* chunk: rows that the MLP's backward and the classifier process
                                   at a time */
    int32_t is_dry_run;

    memo_device* host_device;
    memo_device device;
    memo_stream compute;
    memo_event tokens_copied[2]; /* of each half of the staging buffer */
    int32_t is_copying[2];
    int32_t half;
    memo_session* session;
    memo_arena* arena; /* owned by the session, as the next two */
    memo_status (*share_plan)(void* user, void* data, int64_t n_bytes, memo_error* error);
    void* share_user;
    const memo_mesh* mesh;          /* while gpt_create creates the session */
    int32_t is_measured;            /* likewise */
    int64_t columns[GPT_N_TENSORS]; /* of skeletal tensors, in a block of degree `tensor` */
    gpt_tensor_state tensor;
    gpt_pass pass;

    /* On the device. */
    gpt_real *parameters, *gradients, *moments1, *moments2; /* (n parameters), or a rank's part */
    gpt_real* rope;                                         /* (local tokens, head size) */
    double* totals;                                         /* (GPT_N_TOTALS), of this step */
    /* zero 2: the gradients of the current bucket, and its first parameter. */
    gpt_array bucket;
    int64_t bucket_begin;
    int32_t is_reduced; /* the gradients are sums over all ranks */
    /* In pinned host memory. */
    double* host_totals;
    uint8_t* staging; /* two halves, each tokens and targets (2, rows) */

    int64_t n_updates;
    /* State of the current micro-batch. */
    const uint8_t *tokens, *targets; /* NULL: zeros, to measure */
    double loss_scale;
    int64_t step;        /* keys the dropout, with the next field */
    int64_t first_token; /* the global number of the micro-batch's first token, over all ranks */
    char phase[32];      /* "forward 3", for the names of operations */

    /* The first failure of the current call.  Every later operation does nothing, so callers check
     * it once, at the end. */
    memo_status status;
    memo_error error;
};

enum { GPT_SITE_EMBEDDING, GPT_SITE_PROJECTION, GPT_SITE_MLP };
/* Totals of a step.  The sum of squares of the gradient comes last: it is not summed over ranks if
 * every rank has the whole gradient. */
enum { GPT_TOTAL_LOSS, GPT_TOTAL_VOTES, GPT_TOTAL_SQUARES, GPT_N_TOTALS };
#define GPT_TYPE (sizeof(gpt_real) == sizeof(float) ? MEMO_TYPE_F32 : MEMO_TYPE_F64)

static memo_status gpt_finish(gpt_model* model, memo_error* error) {
    if (model->status && error) *error = model->error;
    return model->status;
}

static gpt_rows gpt_all_rows(const gpt_model* model) { return gpt_rows_make(0, model->n_rows); }

/* The parts of a block run in the schedule's order, but the arena allows only one order of
 * requests. */
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

/* Requests rows of a tensor; they live until gpt_give. */
static gpt_array gpt_take(gpt_model* model, gpt_rows rows, int64_t n_columns) {
    const int64_t n_bytes = gpt_count(rows) * n_columns * (int64_t)sizeof(gpt_real);
    gpt_array x;
    void* address = NULL;
    if (model->tensor.is_in_block)
        address = gpt_take_work(model, n_bytes);
    else if (!model->status)
        model->status = memo_arena_alloc(model->arena, n_bytes, 0, &address, &model->error);
    x.address = (gpt_real*)address;
    x.begin = rows.begin;
    x.n_columns = n_columns;
    return x;
}

static void gpt_give(gpt_model* model, gpt_array x) {
    if (model->tensor.is_in_block) return;
    if (!model->status) model->status = memo_arena_free(model->arena, x.address, &model->error);
}

/* Requests device memory that lives as long as the model.  A dry run makes the same requests.  The
 * mark names the memory in the picture of the plan. */
static void* gpt_take_persistent(gpt_model* model, const char* name, int64_t size_bytes) {
    void* address = NULL;
    if (!model->status) model->status = memo_arena_mark(model->arena, name, &model->error);
    if (!model->status)
        model->status = memo_arena_alloc(model->arena, size_bytes, 0, &address, &model->error);
    return address;
}

/* phase: forward, recompute or backward. */
static void gpt_begin_phase(gpt_model* model, int32_t layer, const char* phase) {
    snprintf(model->phase, sizeof model->phase, "%s %d", phase, layer);
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

static gpt_real* gpt_at(gpt_array x, int64_t row) {
    return x.address + (row - x.begin) * x.n_columns;
}
static int64_t gpt_bytes(gpt_array x, gpt_rows rows) {
    return gpt_count(rows) * x.n_columns * (int64_t)sizeof(gpt_real);
}
/* These return the address of the first row. */
static gpt_real* gpt_reads_rows(gpt_op* op, gpt_array x, gpt_rows rows) {
    gpt_reads(op, gpt_at(x, rows.begin), gpt_bytes(x, rows));
    return gpt_at(x, rows.begin);
}
static gpt_real* gpt_writes_rows(gpt_op* op, gpt_array x, gpt_rows rows) {
    gpt_writes(op, gpt_at(x, rows.begin), gpt_bytes(x, rows));
    return gpt_at(x, rows.begin);
}

/* A dry run only requests memory.  After a failure nothing more is enqueued. */
static int gpt_is_idle(const gpt_model* model) { return model->is_dry_run || model->status; }
/* The session keeps its own first error and computes nothing afterwards. */
static void gpt_follow_session(gpt_model* model) {
    if (!gpt_is_idle(model) && !memo_session_computes(model->session))
        model->status =
            memo_error_set(&model->error, MEMO_STATUS_INVALID_STATE, "the session failed");
}

static void gpt_announce(gpt_model* model, const gpt_op* op) {
    memo_op_desc announced = memo_op_desc_default();
    char name[96];
    if (gpt_is_idle(model) || !model->device.annotate) return;
    snprintf(name, sizeof name, "%s: %s", model->phase, op->name);
    announced.name = name;
    announced.reads = op->reads;
    announced.n_reads = op->n_reads;
    announced.writes = op->writes;
    announced.n_writes = op->n_writes;
    model->status = memo_annotate(&model->device, model->compute, &announced, &model->error);
}

static void gpt_enqueue(gpt_model* model, const gpt_op* op, memo_host_function function,
                        const void* args, size_t args_bytes) {
    if (gpt_is_idle(model)) return;
    gpt_announce(model, op);
    if (!model->status)
        model->status = memo_host_device_launch(model->host_device, model->compute, function, args,
                                                (int64_t)args_bytes, &model->error);
}

/* A pass of weights alone skips this: the pass of inputs has already done it. */
static void gpt_launch(gpt_model* model, const gpt_op* op, memo_host_function function,
                       const void* args, size_t args_bytes) {
    if (model->pass != GPT_PASS_WEIGHTS) gpt_enqueue(model, op, function, args, args_bytes);
}

/* Pieces of an operation that threads share: rows, if the operation treats each row alone; outputs,
 * for the gradient of a weight. */
enum { GPT_PIECE_ROWS = 64, GPT_PIECE_OUTPUTS = 48 };

/* Returns the sum of gradients of the parameters from `offset` on. */
static gpt_real* gpt_gradient(const gpt_model* model, int64_t offset) {
    return model->zero == 2 ? model->bucket.address + (offset - model->bucket_begin)
                            : model->gradients + offset;
}

/* --- linear: y = x W^T --- */
typedef struct gpt_linear_args {
    gpt_real* y; /* backward: dy */
    const gpt_real* x;
    gpt_real* dx;
    const gpt_real* weight;
    gpt_real* dweight;
    gpt_rows rows;
    int64_t tile_rows;
    int64_t n_outputs, n_inputs;
    int32_t is_first; /* backward: dx is set, otherwise added to */
    gpt_pass pass;
} gpt_linear_args;

/* Works a tile at a time, so that a row is recomputed with the same bits.  A part may begin inside
 * a tile.  It then always has the rest of that tile, on every rank and in every pass. */
static void gpt_linear_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_linear_forward(a->y + at * a->n_outputs, a->x + at * a->n_inputs, a->weight, end - begin,
                       a->n_outputs, a->n_inputs);
}
static memo_status gpt_linear_run(void* pointer, memo_error* error) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    (void)error;
    gpt_over(gpt_linear_rows, a, a->rows.begin, a->rows.end, a->tile_rows);
    return MEMO_STATUS_OK;
}

static void gpt_linear(gpt_model* model, const char* name, gpt_array y, gpt_array x, int64_t weight,
                       gpt_rows rows) {
    gpt_op op = gpt_op_make(name);
    gpt_linear_args a;
    if (gpt_is_idle(model) || !gpt_count(rows)) return;
    memset(&a, 0, sizeof a);
    a.y = gpt_writes_rows(&op, y, rows);
    a.x = gpt_reads_rows(&op, x, rows);
    a.weight = model->parameters + weight;
    a.rows = rows;
    a.tile_rows = model->config.tile_rows;
    a.n_outputs = y.n_columns;
    a.n_inputs = x.n_columns;
    gpt_reads(&op, a.weight, a.n_outputs * a.n_inputs * (int64_t)sizeof(gpt_real));
    gpt_launch(model, &op, gpt_linear_run, &a, sizeof a);
}

static void gpt_linear_backward_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_linear_backward(a->dx + at * a->n_inputs, a->y + at * a->n_outputs, a->weight, a->is_first,
                        end - begin, a->n_outputs, a->n_inputs);
}
/* Outputs [begin, end), of all rows. */
static void gpt_linear_weights_outputs(const void* pointer, int64_t begin, int64_t end) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    gpt_linear_weights(a->dweight + begin * a->n_inputs, a->y + begin, a->n_outputs, a->x,
                       gpt_count(a->rows), end - begin, a->n_inputs);
}
static memo_status gpt_linear_backward_run(void* pointer, memo_error* error) {
    const gpt_linear_args* a = (const gpt_linear_args*)pointer;
    (void)error;
    if (a->pass != GPT_PASS_WEIGHTS)
        gpt_over(gpt_linear_backward_rows, a, a->rows.begin, a->rows.end, a->tile_rows);
    if (a->pass != GPT_PASS_INPUTS)
        gpt_over(gpt_linear_weights_outputs, a, 0, a->n_outputs, GPT_PIECE_OUTPUTS);
    return MEMO_STATUS_OK;
}

static void gpt_linear_back(gpt_model* model, const char* name, gpt_array dx, gpt_array dy,
                            gpt_array x, int is_first, int64_t weight, gpt_rows rows) {
    const int64_t weight_bytes = dy.n_columns * x.n_columns * (int64_t)sizeof(gpt_real);
    gpt_op op = gpt_op_make(name);
    gpt_linear_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.y = gpt_reads_rows(&op, dy, rows);
    a.x = gpt_at(x, rows.begin);
    a.dx = gpt_at(dx, rows.begin);
    a.weight = model->parameters + weight;
    a.dweight = gpt_gradient(model, weight);
    a.rows = rows;
    a.tile_rows = model->config.tile_rows;
    a.n_outputs = dy.n_columns;
    a.n_inputs = x.n_columns;
    a.is_first = is_first;
    a.pass = model->pass;
    if (a.pass != GPT_PASS_WEIGHTS) {
        gpt_reads(&op, a.weight, weight_bytes);
        gpt_writes_rows(&op, dx, rows);
    }
    if (a.pass != GPT_PASS_INPUTS) {
        gpt_reads_rows(&op, x, rows);
        gpt_writes(&op, a.dweight, weight_bytes);
    }
    gpt_enqueue(model, &op, gpt_linear_backward_run, &a, sizeof a);
}

/* --- norm --- */
typedef struct gpt_norm_args {
    gpt_real* y; /* backward: dy */
    const gpt_real* x;
    gpt_real* rstd;
    gpt_real* dx; /* added to */
    const gpt_real* weight;
    gpt_real* dweight;
    gpt_rows rows;
    int64_t hidden;
} gpt_norm_args;

static void gpt_norm_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    const int64_t at = begin - a->rows.begin;
    gpt_norm_forward(a->y + at * a->hidden, a->rstd + at, a->x + at * a->hidden, a->weight,
                     end - begin, a->hidden);
}
static memo_status gpt_norm_run(void* pointer, memo_error* error) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    (void)error;
    gpt_over(gpt_norm_rows, a, a->rows.begin, a->rows.end, GPT_PIECE_ROWS);
    return MEMO_STATUS_OK;
}

static void gpt_norm(gpt_model* model, const char* name, gpt_array y, gpt_array rstd, gpt_array x,
                     int64_t weight, gpt_rows rows) {
    gpt_op op = gpt_op_make(name);
    gpt_norm_args a;
    if (gpt_is_idle(model) || !gpt_count(rows)) return;
    memset(&a, 0, sizeof a);
    a.y = gpt_writes_rows(&op, y, rows);
    a.x = gpt_reads_rows(&op, x, rows);
    a.rstd = gpt_writes_rows(&op, rstd, rows);
    a.weight = model->parameters + weight;
    a.rows = rows;
    a.hidden = x.n_columns;
    gpt_reads(&op, a.weight, a.hidden * (int64_t)sizeof(gpt_real));
    gpt_launch(model, &op, gpt_norm_run, &a, sizeof a);
}

static memo_status gpt_norm_backward_run(void* pointer, memo_error* error) {
    const gpt_norm_args* a = (const gpt_norm_args*)pointer;
    (void)error;
    gpt_norm_backward(a->dx, a->dweight, a->y, a->x, a->rstd, a->weight, gpt_count(a->rows),
                      a->hidden);
    return MEMO_STATUS_OK;
}

static void gpt_norm_back(gpt_model* model, const char* name, gpt_array dx, gpt_array dy,
                          gpt_array x, gpt_array rstd, int64_t weight, gpt_rows rows) {
    gpt_op op = gpt_op_make(name);
    gpt_norm_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.y = gpt_reads_rows(&op, dy, rows);
    a.x = gpt_reads_rows(&op, x, rows);
    a.rstd = gpt_reads_rows(&op, rstd, rows);
    a.dx = gpt_writes_rows(&op, dx, rows);
    a.weight = model->parameters + weight;
    a.dweight = gpt_gradient(model, weight);
    a.rows = rows;
    a.hidden = x.n_columns;
    gpt_reads(&op, a.weight, a.hidden * (int64_t)sizeof(gpt_real));
    gpt_writes(&op, a.dweight, a.hidden * (int64_t)sizeof(gpt_real));
    gpt_launch(model, &op, gpt_norm_backward_run, &a, sizeof a);
}

/* --- element by element: dropout, residual, GELU --- */
typedef struct gpt_elements_args {
    gpt_real* y;
    const gpt_real *x, *z; /* y from x and, if there are two inputs, z */
    gpt_rows rows;
    int64_t n_columns, first_token;
    const gpt_share* share; /* owned by the model, which outlives the operation */
    gpt_dropout dropout;
} gpt_elements_args;

/* Reads x, or x and z.  Each step takes as many rows as hold consecutive tokens. */
static void gpt_dropout_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    int64_t row, n, token;
    for (row = begin; row < end; row += n) {
        const int64_t at = (row - a->rows.begin) * a->n_columns;
        n = gpt_run_of_tokens(a->share, row, end, &token);
        token += a->first_token;
        if (a->z)
            gpt_residual_forward(a->y + at, a->x + at, a->z + at, &a->dropout, token, n,
                                 a->n_columns);
        else
            gpt_dropout_apply(a->y + at, a->x + at, &a->dropout, token, n, a->n_columns);
    }
}
static memo_status gpt_dropout_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    (void)error;
    gpt_over(gpt_dropout_rows, a, a->rows.begin, a->rows.end, GPT_PIECE_ROWS);
    return MEMO_STATUS_OK;
}

static void gpt_gelu_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t at = (begin - a->rows.begin) * a->n_columns;
    gpt_gelu_forward(a->y + at, a->x + at, end - begin, a->n_columns);
}
static memo_status gpt_gelu_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    (void)error;
    gpt_over(gpt_gelu_rows, a, a->rows.begin, a->rows.end, GPT_PIECE_ROWS);
    return MEMO_STATUS_OK;
}

static void gpt_gelu_backward_rows(const void* pointer, int64_t begin, int64_t end) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    const int64_t at = (begin - a->rows.begin) * a->n_columns;
    gpt_gelu_backward(a->y + at, a->x + at, a->z + at, end - begin, a->n_columns);
}
static memo_status gpt_gelu_backward_run(void* pointer, memo_error* error) {
    const gpt_elements_args* a = (const gpt_elements_args*)pointer;
    (void)error;
    gpt_over(gpt_gelu_backward_rows, a, a->rows.begin, a->rows.end, GPT_PIECE_ROWS);
    return MEMO_STATUS_OK;
}

/* z and dropout may be NULL. */
static void gpt_elements(gpt_model* model, const char* name, memo_host_function function,
                         gpt_array y, gpt_array x, const gpt_array* z, const gpt_dropout* dropout,
                         gpt_rows rows) {
    gpt_op op = gpt_op_make(name);
    gpt_elements_args a;
    if (gpt_is_idle(model) || !gpt_count(rows)) return;
    memset(&a, 0, sizeof a);
    a.y = gpt_writes_rows(&op, y, rows);
    a.x = gpt_reads_rows(&op, x, rows);
    if (z) a.z = gpt_reads_rows(&op, *z, rows);
    a.rows = rows;
    a.n_columns = y.n_columns;
    a.first_token = model->first_token;
    a.share = &model->share;
    if (dropout) a.dropout = *dropout;
    gpt_launch(model, &op, function, &a, sizeof a);
}

/* --- RoPE, in place --- */
typedef struct gpt_rope_args {
    gpt_real* x;
    const gpt_real* table; /* a row for each position of this rank */
    gpt_rows rows;
    int64_t sequence, n_heads, head_size;
    int direction;
} gpt_rope_args;

static memo_status gpt_rope_run(void* pointer, memo_error* error) {
    const gpt_rope_args* a = (const gpt_rope_args*)pointer;
    (void)error;
    gpt_rope(a->x, a->table, a->direction, a->rows.begin, gpt_count(a->rows), a->sequence,
             a->n_heads, a->head_size);
    return MEMO_STATUS_OK;
}

static void gpt_rope_rows(gpt_model* model, const char* name, gpt_array x, int direction,
                          gpt_rows rows) {
    gpt_op op = gpt_op_make(name);
    gpt_rope_args a;
    if (gpt_is_idle(model) || !gpt_count(rows)) return;
    memset(&a, 0, sizeof a);
    a.x = gpt_reads_rows(&op, x, rows);
    a.table = model->rope;
    a.rows = rows;
    a.sequence = model->share.layout.local_tokens;
    a.head_size = model->config.hidden / model->config.n_heads;
    a.n_heads = x.n_columns / a.head_size;
    a.direction = direction;
    gpt_reads(&op, a.table, a.sequence * a.head_size * (int64_t)sizeof(gpt_real));
    gpt_writes_rows(&op, x, rows);
    gpt_launch(model, &op, gpt_rope_run, &a, sizeof a);
}

/* --- attention over the ranks that hold a sequence --- */
static memo_sp_attention_desc gpt_sp_desc(const gpt_config* config, const gpt_share* share) {
    memo_sp_attention_desc desc = memo_sp_attention_desc_default();
    desc.sharding = share->layout;
    desc.n_batch = (int32_t)share->batch / gpt_degree(config->sub_batches);
    desc.n_q_heads = config->n_heads / gpt_degree(config->tensor);
    desc.n_kv_heads = config->n_kv_heads / gpt_degree(config->tensor);
    desc.head_size = config->hidden / config->n_heads;
    desc.sends_again = 1; /* used if split by heads: q, k and v by rows are stored anyway */
    return desc;
}

/* The most that any rank needs, so that all ranks have one plan; 0 if no sequence is split. */
static int64_t gpt_sp_bytes(const gpt_config* config, const gpt_share* share) {
    memo_sp_attention_desc desc = gpt_sp_desc(config, share);
    memo_sp_attention_sizes sizes;
    int64_t most = 0;
    if (share->layout.ring * share->layout.ulysses == 1) return 0;
    for (; desc.ulysses_rank < share->layout.ulysses; desc.ulysses_rank++)
        if (!memo_sp_attention_desc_get_sizes(&desc, &sizes, NULL) && sizes.device_bytes > most)
            most = sizes.device_bytes;
    return most;
}

static memo_sp_attention_tensors gpt_sp_tensors(const gpt_array* tensors, int64_t begin) {
    memo_sp_attention_tensors t;
    memset(&t, 0, sizeof t);
    t.q = gpt_at(tensors[GPT_Q], begin);
    t.k = gpt_at(tensors[GPT_K], begin);
    t.v = gpt_at(tensors[GPT_V], begin);
    t.out = gpt_at(tensors[GPT_ATTENTION], begin);
    t.lse = (float*)(void*)gpt_at(tensors[GPT_LSE], begin);
    return t;
}

/* --- attention of whole sequences, or of the queries of a part of one sequence --- */
typedef struct gpt_attention_args {
    gpt_attention_shape shape;
    int64_t batch;
    const gpt_real *q, *k, *v;
    gpt_real *out, *lse;
    const gpt_real* dout;
    gpt_real *dq, *dk, *dv, *delta;
} gpt_attention_args;

/* Keys that these queries read. */
static gpt_rows gpt_key_rows(const gpt_model* model, gpt_rows rows) {
    if (model->tensor.splits_sequence) rows.begin = 0;
    return rows;
}

static gpt_attention_args gpt_attention_args_make(const gpt_model* model, const gpt_array* tensors,
                                                  gpt_rows rows) {
    const gpt_rows keys = gpt_key_rows(model, rows);
    gpt_attention_args a;
    memset(&a, 0, sizeof a);
    a.shape.first = rows.begin - keys.begin;
    a.shape.sequence = model->tensor.splits_sequence ? rows.end : model->config.sequence;
    a.shape.head_size = model->config.hidden / model->config.n_heads;
    a.shape.n_heads = tensors[GPT_Q].n_columns / a.shape.head_size; /* of this rank */
    a.shape.n_kv_heads = tensors[GPT_K].n_columns / a.shape.head_size;
    /* Adds to the gradients of later parts, whose backward ran first. */
    a.shape.adds = model->tensor.splits_sequence && rows.end < model->n_rows;
    a.batch = model->tensor.splits_sequence ? 1 : gpt_count(rows) / model->config.sequence;
    a.q = gpt_at(tensors[GPT_Q], rows.begin);
    a.k = gpt_at(tensors[GPT_K], keys.begin);
    a.v = gpt_at(tensors[GPT_V], keys.begin);
    a.out = gpt_at(tensors[GPT_ATTENTION], rows.begin);
    a.lse = gpt_at(tensors[GPT_LSE], rows.begin);
    return a;
}

/* Key-value head `piece % n_kv_heads` of sequence `piece / n_kv_heads`, with its query heads. */
static void gpt_attention_piece(const void* pointer, int64_t piece, int64_t end) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    const int64_t q_columns = a->shape.n_heads * a->shape.head_size;
    const int64_t kv_columns = a->shape.n_kv_heads * a->shape.head_size;
    for (; piece < end; piece++) {
        const int64_t row = piece / a->shape.n_kv_heads * a->shape.sequence;
        gpt_attention_forward(a->out + row * q_columns, a->lse + row * a->shape.n_heads,
                              a->q + row * q_columns, a->k + row * kv_columns,
                              a->v + row * kv_columns, &a->shape, piece % a->shape.n_kv_heads);
    }
}
static memo_status gpt_attention_run(void* pointer, memo_error* error) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    (void)error;
    gpt_over(gpt_attention_piece, a, 0, a->batch * a->shape.n_kv_heads, 1);
    return MEMO_STATUS_OK;
}

static void gpt_attention(gpt_model* model, const gpt_array* tensors, gpt_rows rows) {
    const gpt_rows keys = gpt_key_rows(model, rows);
    gpt_op op = gpt_op_make("attention");
    gpt_attention_args a;
    if (gpt_is_idle(model)) return;
    if (model->attention) {
        const memo_sp_attention_tensors t = gpt_sp_tensors(tensors, rows.begin);
        const memo_mask causal = memo_mask_default();
        model->status = memo_sp_attention_forward(model->attention, &t, &causal, &model->error);
        return;
    }
    a = gpt_attention_args_make(model, tensors, rows);
    gpt_reads_rows(&op, tensors[GPT_Q], rows);
    gpt_reads_rows(&op, tensors[GPT_K], keys);
    gpt_reads_rows(&op, tensors[GPT_V], keys);
    gpt_writes_rows(&op, tensors[GPT_ATTENTION], rows);
    gpt_writes_rows(&op, tensors[GPT_LSE], rows);
    gpt_launch(model, &op, gpt_attention_run, &a, sizeof a);
}

static void gpt_attention_backward_piece(const void* pointer, int64_t piece, int64_t end) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    const int64_t q_columns = a->shape.n_heads * a->shape.head_size;
    const int64_t kv_columns = a->shape.n_kv_heads * a->shape.head_size;
    for (; piece < end; piece++) {
        const int64_t row = piece / a->shape.n_kv_heads * a->shape.sequence;
        const int64_t head_row = row * a->shape.n_heads;
        gpt_attention_backward(a->dq + row * q_columns, a->dk + row * kv_columns,
                               a->dv + row * kv_columns, a->delta + head_row,
                               a->dout + row * q_columns, a->out + row * q_columns,
                               a->lse + head_row, a->q + row * q_columns, a->k + row * kv_columns,
                               a->v + row * kv_columns, &a->shape, piece % a->shape.n_kv_heads);
    }
}
static memo_status gpt_attention_backward_run(void* pointer, memo_error* error) {
    const gpt_attention_args* a = (const gpt_attention_args*)pointer;
    (void)error;
    gpt_over(gpt_attention_backward_piece, a, 0, a->batch * a->shape.n_kv_heads, 1);
    return MEMO_STATUS_OK;
}

static void gpt_attention_back(gpt_model* model, const gpt_array* tensors, gpt_array dq,
                               gpt_array dk, gpt_array dv, gpt_array delta, gpt_array dout,
                               gpt_rows rows) {
    const gpt_rows keys = gpt_key_rows(model, rows);
    gpt_op op = gpt_op_make("attention");
    gpt_attention_args a;
    int t;
    if (gpt_is_idle(model) || model->pass == GPT_PASS_WEIGHTS) return;
    if (model->attention) {
        memo_sp_attention_tensors s = gpt_sp_tensors(tensors, rows.begin);
        const memo_mask causal = memo_mask_default();
        s.d_out = gpt_at(dout, rows.begin);
        s.d_q = gpt_at(dq, rows.begin);
        s.d_k = gpt_at(dk, rows.begin);
        s.d_v = gpt_at(dv, rows.begin);
        model->status = memo_sp_attention_backward(model->attention, &s, &causal, &model->error);
        return;
    }
    a = gpt_attention_args_make(model, tensors, rows);
    a.dout = gpt_reads_rows(&op, dout, rows);
    a.dq = gpt_writes_rows(&op, dq, rows);
    a.dk = gpt_writes_rows(&op, dk, keys);
    a.dv = gpt_writes_rows(&op, dv, keys);
    a.delta = gpt_writes_rows(&op, delta, rows);
    for (t = GPT_Q; t <= GPT_LSE; t++)
        gpt_reads_rows(&op, tensors[t], t == GPT_K || t == GPT_V ? keys : rows);
    gpt_launch(model, &op, gpt_attention_backward_run, &a, sizeof a);
}

/* --- operations on tokens: embedding, loss --- */
typedef struct gpt_tokens_args {
    gpt_real* x;
    gpt_real* table;       /* embedding (vocabulary, hidden), or its gradient */
    const uint8_t* tokens; /* cross-entropy: the targets */
    const gpt_share* share;
    double* loss;
    double loss_scale;
    gpt_rows rows;
    int64_t n_columns;
} gpt_tokens_args;

static memo_status gpt_embedding_run(void* pointer, memo_error* error) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    (void)error;
    gpt_embedding_forward(a->x, a->table, a->tokens, gpt_count(a->rows), a->n_columns);
    return MEMO_STATUS_OK;
}

static memo_status gpt_embedding_backward_run(void* pointer, memo_error* error) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    (void)error;
    gpt_embedding_backward(a->table, a->x, a->tokens, gpt_count(a->rows), a->n_columns);
    return MEMO_STATUS_OK;
}

static memo_status gpt_cross_entropy_run(void* pointer, memo_error* error) {
    const gpt_tokens_args* a = (const gpt_tokens_args*)pointer;
    int64_t row, n, token;
    (void)error;
    for (row = a->rows.begin; row < a->rows.end; row += n) {
        gpt_real* logits = a->x + (row - a->rows.begin) * a->n_columns;
        n = gpt_run_of_tokens(a->share, row, a->rows.end, &token);
        if (token < 0) /* padding has no loss and therefore no gradient */
            memset(logits, 0, (size_t)(n * a->n_columns) * sizeof(gpt_real));
        else
            *a->loss += gpt_cross_entropy(logits, a->tokens + (row - a->rows.begin), a->loss_scale,
                                          n, a->n_columns);
    }
    return MEMO_STATUS_OK;
}

static void gpt_embedding(gpt_model* model, gpt_array x, const uint8_t* tokens, int is_backward) {
    const gpt_rows rows = gpt_all_rows(model);
    const int64_t table_bytes = GPT_VOCABULARY * model->config.hidden * (int64_t)sizeof(gpt_real);
    gpt_op op = gpt_op_make("embedding");
    gpt_tokens_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.x = gpt_at(x, rows.begin);
    a.rows = rows;
    a.table = is_backward ? gpt_gradient(model, model->layout.embedding)
                          : model->parameters + model->layout.embedding;
    a.tokens = tokens + rows.begin;
    a.n_columns = model->config.hidden;
    gpt_reads(&op, a.tokens, gpt_count(rows));
    if (is_backward) {
        gpt_reads_rows(&op, x, rows);
        gpt_writes(&op, a.table, table_bytes);
    } else {
        gpt_reads(&op, a.table, table_bytes);
        gpt_writes_rows(&op, x, rows);
    }
    gpt_launch(model, &op, is_backward ? gpt_embedding_backward_run : gpt_embedding_run, &a,
               sizeof a);
}

/* Adds to the loss and replaces the logits by their gradient. */
static void gpt_loss(gpt_model* model, gpt_array logits, const uint8_t* targets, double loss_scale,
                     gpt_rows rows) {
    gpt_op op = gpt_op_make("cross-entropy");
    gpt_tokens_args a;
    if (gpt_is_idle(model)) return;
    memset(&a, 0, sizeof a);
    a.x = gpt_reads_rows(&op, logits, rows);
    a.tokens = targets + rows.begin;
    a.rows = rows;
    a.share = &model->share;
    a.loss = &model->totals[GPT_TOTAL_LOSS];
    a.loss_scale = loss_scale;
    a.n_columns = GPT_VOCABULARY;
    gpt_reads(&op, a.tokens, gpt_count(rows));
    gpt_writes_rows(&op, logits, rows);
    gpt_writes(&op, a.loss, (int64_t)sizeof(double));
    gpt_launch(model, &op, gpt_cross_entropy_run, &a, sizeof a);
}

#endif
