#include "gpt/model/enqueue.h"

#include <assert.h>

/* ---- the model ----------------------------------------------------------------------------- */

int gpt_is_idle(const gpt_model* model) { return model->status || model->measures; }

memo_status gpt_finish(gpt_model* model, memo_error* error) {
    if (model->status && error) *error = model->error;
    return model->status;
}

void gpt_enter_session(gpt_model* model, memo_session* session) {
    if (model->session != session) model->session = session; /* an update on the host reads it */
    model->status = MEMO_STATUS_OK;
}
void gpt_leave_session(gpt_model* model) {
    memo_session_fail(model->session, model->status, model->error.message);
}

/* ---- micro-batches on their way to the device ------------------------------------------------ */

typedef char gpt_values_fit[sizeof(gpt_batch_values) <= GPT_VALUES_BYTES &&
                                    sizeof(gpt_update_values) <= GPT_VALUES_BYTES &&
                                    GPT_N_SUMMED * sizeof(double) <= GPT_VALUES_BYTES
                                ? 1
                                : -1];

int64_t gpt_batch_bytes(const gpt_config* config) {
    const int64_t n_begins = config->documents ? config->documents + 1 : 0;
    return GPT_VALUES_BYTES + 2 * gpt_n_rows(config) * (int64_t)sizeof(int32_t) +
           config->batch / gpt_degree(config->data) * n_begins * (int64_t)sizeof(int64_t);
}
int64_t* gpt_begins_of(void* batch, int64_t n_rows) {
    return (int64_t*)(void*)((char*)batch + GPT_VALUES_BYTES +
                             2 * n_rows * (int64_t)sizeof(int32_t));
}

/* ---- parameters, gradients, optimizer: states of the session ------------------------------- */

static const gpt_layout* gpt_layout_of(const gpt_model* model, int array) {
    return array == GPT_FROZEN ? &model->base : &model->layout;
}
static int64_t gpt_begin_in(const gpt_model* model, const gpt_layout* at, int64_t bucket) {
    if (bucket == 0) return 0;
    if (bucket == gpt_n_buckets(&model->config)) return at->n;
    return at->at[GPT_W_NORM1] + (bucket - 1) * at->layer_stride;
}
static int64_t gpt_bucket_in(const gpt_model* model, const gpt_layout* at, int64_t i) {
    const int64_t in_layers = i - at->at[GPT_W_NORM1];
    if (in_layers < 0) return 0;
    return gpt_min(in_layers / at->layer_stride + 1, gpt_n_buckets(&model->config) - 1);
}
int64_t gpt_bucket_begin(const gpt_model* model, int64_t bucket) {
    return gpt_begin_in(model, &model->layout, bucket);
}
int64_t gpt_bucket_of(const gpt_model* model, int64_t i) {
    return gpt_bucket_in(model, &model->layout, i);
}
gpt_rows gpt_base_bucket(const gpt_model* model, int64_t bucket) {
    return gpt_rows_make(gpt_begin_in(model, &model->base, bucket),
                         gpt_begin_in(model, &model->base, bucket + 1));
}
int64_t gpt_bucket_tensor(const gpt_model* model, int64_t bucket) {
    const int64_t n_before = model->config.lora.rank ? 0 : 1; /* the embedding */
    return bucket == 0 ? 0
                       : gpt_min(gpt_n_layer_tensors(&model->config) * (bucket - 1) + n_before,
                                 gpt_n_parameter_tensors(&model->config));
}

int64_t gpt_array_bytes(const gpt_model* model, int array, int64_t n) {
    const gpt_config* config = &model->config;
    switch (array) {
    case GPT_MASTERS: return gpt_sum_bytes(model, n);
    case GPT_GRADIENTS: return n * memo_type_bytes(gpt_gradient_type(config));
    case GPT_MOMENTS1:
    case GPT_MOMENTS2: return n * memo_type_bytes(gpt_state_type(config));
    case GPT_SCALES: return (n + GPT_BLOCK - 1) / GPT_BLOCK * 2 * (int64_t)sizeof(float);
    default: return gpt_n_bytes(model, n);
    }
}
gpt_rows gpt_part_at(const gpt_model* model, int64_t bucket, int64_t rank) {
    const gpt_rows whole = gpt_whole_bucket(model, bucket);
    const int64_t n = gpt_count(whole) / model->share.n_ranks;
    return gpt_rows_make(whole.begin + rank * n, whole.begin + (rank + 1) * n);
}
gpt_rows gpt_bucket_rows(const gpt_model* model, int array, int64_t bucket) {
    if (array == GPT_FROZEN) return gpt_base_bucket(model, bucket);
    const int is_part =
        model->zero && array != GPT_WEIGHTS && (model->zero == 2 || array != GPT_GRADIENTS);
    return is_part ? gpt_part_at(model, bucket, model->share.rank)
                   : gpt_whole_bucket(model, bucket);
}

/* A session gives addresses while a layer is open.  Sums over ranks go on behind it, and the norm
 * reads them later: states that stay on the device are asked for once. */
static void* gpt_state_address(const gpt_model* model, int64_t bucket, int32_t state) {
    void** known = &model->addresses[bucket * GPT_N_STATES + state];
    if (model->streams) return memo_session_get_state(model->session, (int32_t)bucket - 1, state);
    if (!*known) *known = memo_session_get_state(model->session, (int32_t)bucket - 1, state);
    return *known;
}

char* gpt_address_at(const gpt_model* model, void* const* on_host, int array, int64_t i) {
    const int64_t bucket = gpt_bucket_in(model, gpt_layout_of(model, array), i);
    const int32_t state = GPT_N_PLACES * array + gpt_bucket_place(model, bucket);
    if (model->measures) return NULL;
    if (gpt_is_in_table(model, array, bucket))
        return gpt_offset(gpt_buffer_address(model, GPT_BUFFER_TABLE), gpt_n_bytes(model, i));
    void* at = on_host ? on_host[state] : gpt_state_address(model, bucket, state);
    return gpt_offset(
        (char*)at, gpt_array_bytes(model, array, i - gpt_bucket_rows(model, array, bucket).begin));
}
/* Where a tensor of a layer begins; layer 0 also for those of the model. */
static int64_t gpt_begin_of(const gpt_model* model, int32_t layer, int w) {
    return model->base.at[w] + layer * model->base.layer_stride;
}

void gpt_synchronize(gpt_model* model) {
    GPT_TRY(model, memo_stream_synchronize(&model->device, model->compute, &model->error));
    if (!model->status) model->n_staged = 0;
}

/* Elements of a frozen, tied table, as memo_session_write_state and _read_state do it. */
static void gpt_copy_table(gpt_model* model, int is_write, int64_t at, char* staging,
                           int64_t n_bytes) {
    char* table = gpt_buffer_address(model, GPT_BUFFER_TABLE) + at;
    GPT_TRY(model, memo_session_flush(model->session, &model->error));
    if (is_write)
        gpt_copy(model, MEMO_COPY_TO_DEVICE, table, staging, n_bytes);
    else
        gpt_copy(model, MEMO_COPY_TO_HOST, staging, table, n_bytes);
    gpt_synchronize(model);
}

void gpt_copy_array(gpt_model* model, int is_write, int array, gpt_rows rows, void* host) {
    const int64_t most = gpt_places_bytes(&model->config, model->n_micro_batches);
    char *bytes = (char*)host, *staging = model->staging;
    gpt_rows piece;
    gpt_synchronize(model); /* tokens may be on their way */
    for (piece.begin = rows.begin; piece.begin < rows.end && !model->status;
         piece.begin = piece.end) {
        const int64_t bucket = gpt_bucket_in(model, gpt_layout_of(model, array), piece.begin);
        const int32_t layer = (int32_t)bucket - 1;
        const int32_t state = GPT_N_PLACES * array + gpt_bucket_place(model, bucket);
        piece.end = gpt_min(rows.end, gpt_begin_in(model, gpt_layout_of(model, array), bucket + 1));
        const int64_t n_bytes = gpt_array_bytes(model, array, gpt_count(piece));
        const int64_t at = gpt_array_bytes(
            model, array, piece.begin - gpt_bucket_rows(model, array, bucket).begin);

        /* The caller's memory need not be pinned: the staging buffer is. */
        for (int64_t done = 0, n; done < n_bytes && !model->status; done += n, bytes += n) {
            n = gpt_min(most, n_bytes - done);
            if (is_write) memcpy(staging, bytes, (size_t)n);
            if (gpt_is_in_table(model, array, bucket))
                gpt_copy_table(model, is_write, at + done, staging, n);
            else
                model->status = is_write
                                    ? memo_session_write_state(model->session, layer, state,
                                                               at + done, staging, n, &model->error)
                                    : memo_session_read_state(model->session, layer, state,
                                                              at + done, staging, n, &model->error);
            if (!is_write && !model->status) memcpy(bytes, staging, (size_t)n);
        }
    }
}

/* ---- waits, and the kind of ranks ---- */

memo_status gpt_wait(gpt_model* model, memo_error* error) {
    memo_status status = memo_stream_synchronize(&model->device, model->compute, error);
    return status || !model->sums ? status
                                  : memo_stream_synchronize(&model->device, model->sums, error);
}

memo_status gpt_wait_for_states(gpt_model* model, memo_error* error) {
    const memo_status status = gpt_wait(model, error);
    if (status) return status;
    /* Reading waits, even for no bytes, of a state that there is: weights of a layer. */
    return memo_session_read_state(model->session, 0, GPT_N_PLACES * GPT_WEIGHTS + 1, 0, NULL, 0,
                                   error);
}

/* ---- memory --------------------------------------------------------------------------------- */

char* gpt_buffer_address(const gpt_model* model, gpt_buffer buffer) {
    const int32_t at = model->buffer_at[buffer];
    return at < 0 ? NULL : (char*)memo_session_get_buffer(model->session, at);
}

void gpt_begin_work(gpt_model* model, gpt_buffer buffer) {
    const int32_t at = model->buffer_at[buffer];
    memset(&model->work, 0, sizeof model->work);
    if (at < 0) return;
    model->work.address = gpt_buffer_address(model, buffer);
    model->work.n_bytes = model->buffers[at].size_bytes;
}

/* taken: 1 + the bytes that were used at the begin, or as many below 0 at the end. */
static gpt_array gpt_take_work(gpt_model* model, gpt_rows rows, int64_t n_columns, memo_type type,
                               int at_end) {
    const int64_t n_bytes =
        gpt_round_up(gpt_count(rows) * n_columns * memo_type_bytes(type), GPT_WORK_UNIT);
    gpt_memory* work = &model->work;
    const int64_t used = work->used[at_end];
    const int64_t offset = at_end ? work->n_bytes - used - n_bytes : used;
    const gpt_array x = {gpt_offset(work->address, offset), rows.begin, n_columns, type,
                         at_end ? -1 - used : 1 + used};
    work->used[at_end] += n_bytes;
    const int64_t sum = work->used[0] + work->used[1];
    if (sum > work->most) work->most = sum;
    if (sum > work->n_bytes && !gpt_is_idle(model))
        model->status = memo_error_set(&model->error, MEMO_STATUS_INVALID_STATE,
                                       "%s: needs %lld bytes of work memory, and has %lld",
                                       model->phase, (long long)sum, (long long)work->n_bytes);
    return x;
}

gpt_array gpt_take_typed(gpt_model* model, gpt_rows rows, int64_t n_columns, memo_type type) {
    return gpt_take_work(model, rows, n_columns, type, 0);
}
gpt_array gpt_take_at_end(gpt_model* model, gpt_rows rows, int64_t n_columns) {
    return gpt_take_work(model, rows, n_columns, model->config.type, 1);
}

/* The pass of weights reads again what a block has given. */
void gpt_give(gpt_model* model, gpt_array x) {
    if (!x.taken || model->tensor.is_in_block) return;
    model->work.used[x.taken < 0] = (x.taken < 0 ? -x.taken : x.taken) - 1;
}

void gpt_begin_phase(gpt_model* model, int32_t layer, const char* phase) {
    snprintf(model->phase, sizeof model->phase, "%s %d", phase, layer);
}

/* ---- operations: their operands, announced and enqueued -------------------------------------- */

/* Operands: rows of a tensor; numbers of a micro-batch's rows. */
void gpt_use_rows(gpt_op* op, int uses, const void* place, gpt_array x, gpt_rows rows) {
    assert(rows.begin >= x.begin || gpt_count(rows) <= 0);
    gpt_use(op, uses, place, gpt_at(x, rows.begin), x.type, gpt_count(rows) * x.n_columns);
}
void gpt_use_sums(gpt_model* model, gpt_op* op, int uses, const void* place, const void* address,
                  int64_t n) {
    gpt_use(op, uses, place, address, gpt_sum_type(model->config.type), n);
}
static void gpt_use_of_rows(gpt_op* op, int uses, const void* place, const void* of_row_0,
                            memo_type type, gpt_rows rows) {
    gpt_use(op, uses, place, gpt_offset(of_row_0, rows.begin * memo_type_bytes(type)), type,
            gpt_count(rows));
}
static void gpt_use_values(gpt_model* model, gpt_op* op, const void* place) {
    gpt_use_bytes(op, GPT_READ, place, model->values, (int64_t)sizeof *model->values);
}

static memo_range gpt_range(const void* address, int64_t n_bytes) {
    memo_range range;
    range.begin = (uint64_t)(uintptr_t)address;
    range.end = range.begin + (uint64_t)n_bytes;
    return range;
}

/* Tells a recorder of the next operation. */
static void gpt_announce(gpt_model* model, const char* what, const memo_range* reads,
                         int64_t n_reads, const memo_range* writes, int64_t n_writes) {
    memo_op_desc announced = MEMO_ZERO(memo_op_desc);
    char name[96];
    if (gpt_is_idle(model) || !model->device.annotate) return;
    snprintf(name, sizeof name, "%s: %s", model->phase, what);
    announced.name = name;
    announced.reads = reads;
    announced.n_reads = n_reads;
    announced.writes = writes;
    announced.n_writes = n_writes;
    model->status = memo_annotate(&model->device, model->compute, &announced, &model->error);
}
void gpt_announce_ranges(gpt_model* model, const char* what, const void* from, int64_t from_bytes,
                         const void* to, int64_t to_bytes) {
    const memo_range reads = gpt_range(from, from_bytes), writes = gpt_range(to, to_bytes);
    gpt_announce(model, what, &reads, 1, &writes, 1);
}

void gpt_launch(gpt_model* model, const gpt_op* op) {
    memo_range ranges[2][GPT_OPERANDS_MAX];
    int64_t n[2] = {0, 0};
    if (gpt_is_idle(model) || !op->operands[0].n) return;
    if (model->pass == GPT_PASS_WEIGHTS && op->kind != GPT_KIND_LINEAR_BACKWARD) return;
    for (int32_t o = 0; o < op->n_operands; o++)
        for (int is_write = 0; is_write < 2; is_write++)
            if (op->operands[o].uses & (is_write ? GPT_WRITTEN : GPT_READ))
                ranges[is_write][n[is_write]++] =
                    gpt_range(op->operands[o].address,
                              op->operands[o].n * memo_type_bytes(op->operands[o].type));
    gpt_announce(model, op->name, ranges[0], n[0], ranges[1], n[1]);
    GPT_TRY(model,
            model->kernels.enqueue(model->kernels.context, model->compute, op, &model->error));
}

void gpt_clear(gpt_model* model, void* address, int64_t n_bytes) {
    GPT_DO(model, memo_fill(&model->device, model->compute, address, 0, n_bytes, &model->error));
}

void gpt_copy(gpt_model* model, memo_copy_kind kind, void* to, const void* from, int64_t n_bytes) {
    GPT_DO(model,
           memo_copy(&model->device, model->compute, kind, to, from, n_bytes, &model->error));
}

void gpt_cast(gpt_model* model, void* to, memo_type to_type, const void* from, memo_type from_type,
              int64_t n) {
    const memo_add_desc cast = {to, from, NULL, to_type, from_type, to_type, 1, n, 0, 0, 0};
    GPT_DO(model, memo_row_cast(&model->device, model->compute, &cast, &model->error));
}

char* gpt_gradient(const gpt_model* model, int64_t i) {
    const int place = gpt_bucket_place(model, gpt_bucket_of(model, i));
    return gpt_has_buckets(model) ? gpt_at(model->buckets[place], i)
                                  : gpt_address(model, GPT_GRADIENTS, i);
}

/* A state of the embedding, in a bucket that shares it. */
static char* gpt_shared_state(const gpt_model* model, int64_t bucket, int32_t state) {
    return model->measures ? NULL : (char*)gpt_state_address(model, bucket, state);
}
void gpt_add_tied(gpt_model* model) {
    const int64_t n = gpt_table_elements(model);
    const memo_type type = gpt_sum_type(model->config.type);
    if (gpt_trains_tied(&model->config))
        gpt_add(model, gpt_gradient(model, 0), type, gpt_shared_state(model, 0, GPT_TIED_GRADIENT),
                type, n);
}

static char* gpt_base_weight(const gpt_model* model, int32_t layer, int w) {
    const int64_t last = gpt_n_buckets(&model->config) - 1;
    return w == GPT_W_CLASSIFIER && gpt_trains_tied(&model->config)
               ? gpt_shared_state(model, last, GPT_N_PLACES * GPT_WEIGHTS)
               : gpt_address(model, gpt_base_array(model), gpt_begin_of(model, layer, w));
}
static char* gpt_base_gradient(const gpt_model* model, int32_t layer, int w) {
    const int64_t last = gpt_n_buckets(&model->config) - 1;
    return w == GPT_W_CLASSIFIER && gpt_trains_tied(&model->config)
               ? gpt_shared_state(model, last, GPT_TIED_GRADIENT)
               : gpt_gradient(model, gpt_begin_of(model, layer, w));
}

void gpt_use_weight(gpt_model* model, gpt_op* op, const void* place, int32_t layer, int w,
                    int64_t n) {
    gpt_use(op, GPT_READ, place, gpt_base_weight(model, layer, w), model->config.type, n);
}
void gpt_use_gradient(gpt_model* model, gpt_op* op, const void* place, int32_t layer, int w,
                      int64_t n) {
    if (!model->config.lora.rank)
        gpt_use_sums(model, op, GPT_WRITTEN, place, gpt_base_gradient(model, layer, w), n);
}

/* ---- linear: y = x W^T ---------------------------------------------------------------------- */

/* The names of operations with a weight. */
static const char* const gpt_w_names[] = {
    "embedding", "norm1",      "query",      "key",      "value",      "query bias",
    "key bias",  "value bias", "query norm", "key norm", "projection", "norm2",
    "router",    "up",         "down",       "norm",     "logits"};
MEMOB_TABLE_OF(GPT_N_W, gpt_w_names);

static gpt_op gpt_product_op(const gpt_model* model, const gpt_product* p, gpt_kind kind,
                             gpt_rows rows, int64_t n_outputs, int64_t n_inputs) {
    gpt_op op = gpt_op_make(p->name, kind);
    op.args.linear.rows = rows;
    op.args.linear.tile_rows = model->config.tile_rows;
    op.args.linear.n_outputs = n_outputs;
    op.args.linear.n_inputs = n_inputs;
    op.args.linear.scale = p->scale;
    op.args.linear.adds = p->adds;
    return op;
}

void gpt_multiply(gpt_model* model, const gpt_product* p, gpt_array y, gpt_array x, gpt_rows rows) {
    gpt_op op = gpt_product_op(model, p, GPT_KIND_LINEAR, rows, y.n_columns, x.n_columns);
    gpt_linear_args* a = &op.args.linear;
    gpt_use_rows(&op, p->adds ? GPT_READ | GPT_WRITTEN : GPT_WRITTEN, &a->y, y, rows);
    gpt_use_rows(&op, GPT_READ, &a->x, x, rows);
    gpt_use(&op, GPT_READ, &a->weight, p->weight, model->config.type, y.n_columns * x.n_columns);
    gpt_launch(model, &op);
}

void gpt_multiply_back(gpt_model* model, const gpt_product* p, const gpt_array* dx, gpt_array dy,
                       gpt_array x, gpt_rows rows) {
    const int64_t n = dy.n_columns * x.n_columns;
    gpt_op op = gpt_product_op(model, p, GPT_KIND_LINEAR_BACKWARD, rows, dy.n_columns, x.n_columns);
    gpt_linear_args* a = &op.args.linear;
    if (!dx && !p->dweight) return;
    gpt_use_rows(&op, GPT_READ, &a->y, dy, rows);
    if (dx) {
        gpt_use_rows(&op, p->adds ? GPT_READ | GPT_WRITTEN : GPT_WRITTEN, &a->dx, *dx, rows);
        gpt_use(&op, GPT_READ, &a->weight, p->weight, model->config.type, n);
    }
    if (p->dweight) {
        gpt_use_rows(&op, GPT_READ, &a->x, x, rows);
        gpt_use_sums(model, &op, GPT_WRITTEN, &a->dweight, p->dweight, n);
    }
    gpt_launch(model, &op);
}

void gpt_linear(gpt_model* model, int32_t layer, int w, gpt_array y, gpt_array x, gpt_rows rows) {
    const gpt_product p = {gpt_w_names[w], gpt_base_weight(model, layer, w), NULL, 1, 0};
    gpt_multiply(model, &p, y, x, rows);
    gpt_lora_forward(model, layer, w, y, x, rows);
}

void gpt_linear_back(gpt_model* model, int32_t layer, int w, gpt_array dx, gpt_array dy,
                     gpt_array x, int is_first, gpt_rows rows) {
    const int is_frozen = model->config.lora.rank > 0;
    gpt_product p = {gpt_w_names[w], NULL, NULL, 1, !is_first};
    if (model->pass != GPT_PASS_WEIGHTS) p.weight = gpt_base_weight(model, layer, w);
    if (model->pass != GPT_PASS_INPUTS && !is_frozen)
        p.dweight = gpt_base_gradient(model, layer, w);
    gpt_multiply_back(model, &p, model->pass == GPT_PASS_WEIGHTS ? NULL : &dx, dy, x, rows);
    gpt_lora_backward(model, layer, w, dx, dy, x, rows);
}

/* ---- norm ------------------------------------------------------------------------------------ */

void gpt_norm(gpt_model* model, int32_t layer, int w, const gpt_array* dx, gpt_array y,
              gpt_array rstd, gpt_array x, gpt_rows rows) {
    const int of_forward = dx ? GPT_READ : GPT_WRITTEN;
    gpt_op op = gpt_op_make(gpt_w_names[w], dx ? GPT_KIND_NORM_BACKWARD : GPT_KIND_NORM);
    gpt_norm_args* a = &op.args.norm;
    a->rows = rows;
    a->hidden = x.n_columns;
    a->epsilon = gpt_norm_epsilon(&model->config);
    gpt_use_rows(&op, of_forward, &a->y, y, rows);
    gpt_use_rows(&op, of_forward, &a->rstd, rstd, rows);
    gpt_use_rows(&op, GPT_READ, &a->x, x, rows);
    gpt_use_weight(model, &op, &a->weight, layer, w, a->hidden);
    if (dx) {
        gpt_use_rows(&op, GPT_READ | GPT_WRITTEN, &a->dx, *dx, rows);
        gpt_use_gradient(model, &op, &a->dweight, layer, w, a->hidden);
    }
    gpt_launch(model, &op);
}

/* Rows of heads: each head is a row. */
static gpt_array gpt_by_heads(gpt_array x, int64_t n_heads) {
    x.begin *= n_heads;
    x.n_columns /= n_heads;
    return x;
}

void gpt_head_norm(gpt_model* model, int32_t layer, int w, const gpt_array* dx, gpt_array y,
                   const gpt_array* rstd, gpt_array x, gpt_rows rows) {
    const int64_t n = x.n_columns / gpt_head_size(&model->config);
    const gpt_rows heads = gpt_rows_make(rows.begin * n, rows.end * n);
    const int of_forward = dx ? GPT_READ : GPT_WRITTEN;
    gpt_op op = gpt_op_make(gpt_w_names[w], dx ? GPT_KIND_NORM_BACKWARD : GPT_KIND_NORM);
    gpt_norm_args* a = &op.args.norm;
    a->rows = heads;
    a->hidden = x.n_columns / n;
    a->epsilon = gpt_norm_epsilon(&model->config);
    a->is_first = 1;
    gpt_use_rows(&op, of_forward, &a->y, gpt_by_heads(y, n), heads);
    if (rstd) gpt_use_rows(&op, of_forward, &a->rstd, gpt_by_heads(*rstd, n), heads);
    gpt_use_rows(&op, GPT_READ, &a->x, gpt_by_heads(x, n), heads);
    gpt_use_weight(model, &op, &a->weight, layer, w, a->hidden);
    if (dx) {
        gpt_use_rows(&op, GPT_WRITTEN, &a->dx, gpt_by_heads(*dx, n), heads);
        gpt_use_gradient(model, &op, &a->dweight, layer, w, a->hidden);
    }
    gpt_launch(model, &op);
}

void gpt_bias(gpt_model* model, int32_t layer, int w, int is_backward, gpt_array y, gpt_rows rows) {
    if (is_backward && model->config.lora.rank) return; /* it is frozen */
    gpt_op op = gpt_op_make(gpt_w_names[w], is_backward ? GPT_KIND_BIAS_BACKWARD : GPT_KIND_BIAS);
    gpt_bias_args* a = &op.args.bias;
    a->rows = rows;
    a->n_columns = y.n_columns;
    gpt_use_rows(&op, is_backward ? GPT_READ : GPT_READ | GPT_WRITTEN, &a->y, y, rows);
    if (is_backward)
        gpt_use_gradient(model, &op, &a->dbias, layer, w, a->n_columns);
    else
        gpt_use_weight(model, &op, &a->bias, layer, w, a->n_columns);
    gpt_launch(model, &op);
}

/* ---- element by element: dropout, residual, activation; RoPE --------------------------------- */

/* z may be NULL. */
static gpt_op gpt_elements_op(const char* name, gpt_kind kind, gpt_array y, gpt_array x,
                              const gpt_array* z, gpt_rows rows) {
    gpt_op op = gpt_op_make(name, kind);
    gpt_elements_args* a = &op.args.elements;
    a->kind = kind;
    a->rows = rows;
    a->n_columns = gpt_min(x.n_columns, y.n_columns); /* of SwiGLU one is twice as wide */
    gpt_use_rows(&op, GPT_WRITTEN, &a->y, y, rows);
    gpt_use_rows(&op, GPT_READ, &a->x, x, rows);
    if (z) gpt_use_rows(&op, GPT_READ, &a->z, *z, rows);
    return op;
}

void gpt_activate(gpt_model* model, gpt_array y, gpt_array x, const gpt_array* z, gpt_rows rows) {
    const int is_gated = model->config.mlp == GPT_MLP_SWIGLU;
    const gpt_kind forward = is_gated ? GPT_KIND_SWIGLU : GPT_KIND_GELU;
    const gpt_kind backward = is_gated ? GPT_KIND_SWIGLU_BACKWARD : GPT_KIND_GELU_BACKWARD;
    gpt_op op =
        gpt_elements_op(is_gated ? "SwiGLU" : "GELU", z ? backward : forward, y, x, z, rows);
    gpt_launch(model, &op);
}

void gpt_drop_elements(gpt_model* model, gpt_array y, gpt_array x, const gpt_array* z,
                       int32_t layer, int32_t site, gpt_rows rows) {
    gpt_op op = gpt_elements_op(z ? "residual" : "dropout", GPT_KIND_DROPOUT, y, x, z, rows);
    gpt_elements_args* a = &op.args.elements;
    a->rate = model->config.dropout;
    a->seed = model->config.seed;
    a->layer = layer;
    a->site = site;
    gpt_use_of_rows(&op, GPT_READ, &a->token_numbers, model->token_numbers, MEMO_TYPE_I64, rows);
    gpt_use_values(model, &op, &a->values);
    gpt_launch(model, &op);
}

void gpt_rope_rows(gpt_model* model, const char* name, gpt_array x, int32_t direction,
                   gpt_rows rows) {
    gpt_op op = gpt_op_make(name, GPT_KIND_ROPE);
    gpt_rope_args* a = &op.args.rope;
    a->rows = rows;
    a->sequence = model->share.layout.local_tokens;
    a->head_size = gpt_head_size(&model->config);
    a->n_heads = x.n_columns / a->head_size;
    a->direction = direction;
    gpt_use_rows(&op, GPT_READ | GPT_WRITTEN, &a->x, x, rows);
    gpt_use_sums(model, &op, GPT_READ, &a->table, model->rope, a->sequence * a->head_size);
    gpt_launch(model, &op);
}

/* ---- attention over the ranks that hold a sequence ------------------------------------------- */

/* Least number of queries in a group of heads, so that a GPU stays busy. */
#ifndef GPT_GROUP_QUERIES
#define GPT_GROUP_QUERIES 65536
#endif

/* Returns the number of groups of heads.  Attention needs the scratch memory of one group, so it is
 * the largest number that divides the key heads of a rank, if all ranks have as many. */
static int32_t gpt_ulysses_groups(const memo_sp_attention_desc* desc) {
    const int32_t ulysses = desc->sharding.ulysses;
    const int64_t n_queries =
        desc->n_batch * desc->sharding.ring_tokens * (desc->n_q_heads / ulysses);
    int32_t n = desc->n_kv_heads % ulysses ? 1 : desc->n_kv_heads / ulysses;
    while (n > 1 && (desc->n_kv_heads / ulysses % n || n_queries / n < GPT_GROUP_QUERIES)) n--;
    return n;
}

memo_sp_attention_desc gpt_sp_desc(const gpt_config* config, const gpt_share* share,
                                   int64_t slice) {
    memo_sp_attention_desc desc = MEMO_ZERO(memo_sp_attention_desc);
    desc.sharding = share->layout;
    if (share->layout.slice_tokens)
        memo_sharding_slice(&share->layout, slice, &desc.sharding, &desc.key_sharding);
    desc.type = config->type;
    desc.n_batch = (int32_t)share->batch / gpt_degree(config->sub_batches);
    desc.n_q_heads = config->n_heads / gpt_degree(config->tensor);
    desc.n_kv_heads = config->n_kv_heads / gpt_degree(config->tensor);
    desc.head_size = (int32_t)gpt_head_size(config);
    if (config->documents) desc.n_masks = desc.n_batch; /* each sequence has its own */
    desc.sends_again = 1; /* used if split by heads: q, k and v by rows are stored anyway */
    desc.ulysses_groups = gpt_ulysses_groups(&desc);
    return desc;
}

/* The most segments of a sequence's mask: two of each document. */
int64_t gpt_n_segments(const gpt_config* config) {
    return config->documents ? 2 * config->documents : 2;
}

/* Device memory for the segments of an exchange. */
static int64_t gpt_exchange_bytes(const gpt_config* config, const gpt_share* share) {
    const int64_t n_slices = gpt_n_slices(config);
    const memo_sp_attention_desc desc = gpt_sp_desc(config, share, n_slices - 1);
    const int64_t n_masks = desc.n_masks ? desc.n_masks : 1;
    return (memo_exchange_device_bytes(&desc, n_masks * gpt_n_segments(config)) + 511) / 512 * 512;
}

/* Scratch memory of attention; behind it the segments of exchanges. */
static int64_t gpt_sp_scratch_bytes(const gpt_config* config, const gpt_share* share) {
    memo_sp_attention_sizes sizes;
    int64_t most = 0;
    for (int64_t slice = 0; slice < gpt_n_slices(config); slice++) {
        memo_sp_attention_desc desc = gpt_sp_desc(config, share, slice);
        for (; desc.ulysses_rank < share->layout.ulysses; desc.ulysses_rank++)
            if (!memo_sp_attention_desc_get_sizes(&desc, &sizes, NULL) && sizes.device_bytes > most)
                most = sizes.device_bytes;
    }
    return (most + 511) / 512 * 512;
}

static gpt_attention_shape gpt_attention_shape_of(const gpt_config* config, const gpt_run* run,
                                                  int32_t degree) {
    gpt_attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.first = run->first;
    shape.sequence = run->first + gpt_count(run->rows) / run->batch;
    shape.head_size = gpt_head_size(config);
    shape.n_heads = config->n_heads / degree;
    shape.n_kv_heads = config->n_kv_heads / degree;
    shape.adds = run->adds;
    shape.sums = gpt_shares_keys(config);
    shape.window = config->window < shape.sequence ? config->window : 0;
    shape.documents = config->documents;
    return shape;
}

static void gpt_shapes_add_runs(gpt_shapes* shapes, const gpt_config* config, gpt_rows rows,
                                int32_t degree) {
    gpt_run run;
    int32_t i;
    for (; rows.begin < rows.end; rows.begin = run.rows.end) {
        run = gpt_run_at(config->sequence, rows);
        gpt_attention_shape shape = gpt_attention_shape_of(config, &run, degree);
        for (i = 0; i < shapes->n_attention; i++)
            if (shapes->attention[i].batch == run.batch &&
                !memcmp(&shapes->attention[i].shape, &shape, sizeof shape))
                break;
        if (i < shapes->n_attention || i == GPT_RUNS_MAX) continue;
        shapes->attention[i].shape = shape;
        shapes->attention[i].batch = run.batch;
        shapes->n_attention++;
    }
}

/* Every call of attention: of each slice and part, in each degree. */
static void gpt_shapes_add_attention(gpt_shapes* shapes, const gpt_config* config) {
    const int32_t all = gpt_degree(config->tensor);
    const int64_t n_slices = gpt_n_slices(config), slice_rows = gpt_slice_rows(config);
    for (int32_t degree = 1; degree <= all; degree++) {
        int is_used = degree == all && !config->degrees;
        for (int32_t i = 0; i < config->n_layers && config->degrees; i++)
            is_used |= config->degrees[2 * i] == degree;
        for (int64_t slice = 0; slice < n_slices && is_used; slice++)
            for (int32_t part = 0; part < gpt_degree(config->sub_batches); part++) {
                gpt_rows rows = gpt_part_of(config, slice_rows, gpt_slice_at(config, slice), part);
                /* A smaller degree has whole sequences, and fewer. */
                rows.end = rows.begin + gpt_count(rows) * degree / all;
                gpt_shapes_add_runs(shapes, config, rows, degree);
            }
    }
}

gpt_shapes gpt_shapes_make(const gpt_config* config) {
    const int64_t hidden = config->hidden, n_rows = gpt_slice_rows(config);
    const gpt_config one = gpt_whole_config(config);
    const gpt_widths w = gpt_layout_make(config).widths, whole = gpt_even_widths(&one);
    const gpt_share share = gpt_share_make(config, NULL);
    gpt_shapes shapes;

    memset(&shapes, 0, sizeof shapes);
    shapes.type = config->type;
    shapes.n_rows = n_rows;
    shapes.n_keys = gpt_n_rows(config) * w.kv;
    shapes.loss_rows = gpt_loss_rows(config);
    shapes.mlp_rows = config->mlp_rows ? gpt_min(gpt_chunk_rows(config), n_rows) : n_rows;
    shapes.hidden = hidden;
    shapes.head_size = gpt_head_size(config);
    shapes.q = w.q;
    shapes.vocabulary = gpt_vocabulary(config);
    shapes.wide = whole.wide;
    shapes.up = whole.up;
    const int64_t of_experts = gpt_n_experts(config) * w.up / gpt_n_chosen(config);
    shapes.largest_weight = w.q > of_experts ? w.q : of_experts;
    if (shapes.largest_weight < shapes.vocabulary) shapes.largest_weight = shapes.vocabulary;
    shapes.largest_weight *= hidden;
    shapes.over_ranks = gpt_sp_desc(config, &share, gpt_n_slices(config) - 1);
    shapes.window = config->window < config->sequence ? config->window : 0;
    shapes.documents = config->documents;
    gpt_shapes_add_attention(&shapes, config);
    return shapes;
}

static memo_sp_attention_tensors gpt_sp_tensors(const gpt_model* model, const gpt_array* tensors,
                                                int64_t begin) {
    const int64_t first_key = model->shares_keys ? 0 : begin; /* a slice reads all before it */
    memo_sp_attention_tensors t = MEMO_ZERO(memo_sp_attention_tensors);
    t.q = gpt_at(tensors[GPT_Q], begin);
    t.k = gpt_at(tensors[GPT_K], first_key);
    t.v = gpt_at(tensors[GPT_V], first_key);
    t.out = gpt_at(tensors[GPT_ATTENTION], begin);
    t.lse = (float*)(void*)gpt_at(tensors[GPT_LSE], begin); /* memo_sp states its type */
    return t;
}

/* Of rows that begin there. */
static int64_t gpt_sp_slice(const gpt_model* model, int64_t begin) {
    return model->share.layout.slice_tokens ? begin / model->slice_rows : 0;
}

/* Attention of all parts, or of a slice, has the same masks in each micro-batch; with documents,
 * each part has masks of its own in each place of the staging buffer. */
static int64_t gpt_n_masked(const gpt_model* model) { /* of a micro-batch: parts or slices */
    return model->config.documents ? gpt_degree(model->config.sub_batches) : model->n_slices;
}
int64_t gpt_n_exchanges(const gpt_model* model) {
    return gpt_n_masked(model) *
           (model->config.documents ? gpt_n_places(model->n_micro_batches) : 1);
}
static memo_exchange** gpt_exchange(const gpt_model* model, int64_t begin) {
    const int64_t n = gpt_n_masked(model);
    return &model->exchanges[model->config.documents ? model->place * n + begin * n / model->n_rows
                                                     : gpt_sp_slice(model, begin)];
}

int64_t gpt_sp_bytes(const gpt_model* model) {
    const int64_t n = model->kernels.attention.launches ? gpt_n_exchanges(model) : 0;
    if (model->share.layout.ring * model->share.layout.ulysses == 1) return 0;
    return gpt_sp_scratch_bytes(&model->config, &model->share) +
           n * gpt_exchange_bytes(&model->config, &model->share);
}

/* The mask of sequence i, whose queries begin there. */
static void gpt_make_mask(gpt_model* model, const int64_t* begins, int64_t i, int64_t first) {
    const int64_t documents = model->config.documents, slice = model->share.layout.slice_tokens;
    memo_mask* mask = &model->masks[i];
    memo_segment* segments = model->segments + i * gpt_n_segments(&model->config);
    memo_mask_desc desc = MEMO_ZERO(memo_mask_desc);
    desc.n_tokens = model->config.sequence - first;
    if (slice) desc.n_tokens = gpt_min(slice, desc.n_tokens);
    desc.first_query = first;
    if (model->config.window < model->config.sequence) desc.window_before = model->config.window;
    if (documents) desc.document_begins = begins + i * (documents + 1);
    desc.n_documents = documents;
    mask->segments = segments;
    model->status = memo_mask_documents(&desc, segments, &mask->n_segments, &model->error);
}

void gpt_make_exchanges(gpt_model* model) {
    const int64_t n = model->share.batch;
    const int64_t* begins = gpt_begins_of(gpt_staged(model, model->place), model->n_rows);
    const int64_t slice_tokens = model->share.layout.slice_tokens, n_parts = gpt_n_masked(model);
    const int64_t n_bytes = gpt_exchange_bytes(&model->config, &model->share);
    memo_exchange_desc desc = MEMO_ZERO(memo_exchange_desc);
    for (int64_t i = 0; i < n && !slice_tokens && !model->status; i++)
        gpt_make_mask(model, begins, i, 0);

    /* Of each part, or of each slice, whose queries see all keys so far. */
    for (int64_t part = 0; part < n_parts && !model->status; part++) {
        const int64_t begin =
            slice_tokens ? part * model->slice_rows : part * model->n_rows / n_parts;
        memo_exchange** exchange = gpt_exchange(model, begin);
        desc.masks = model->masks + (slice_tokens ? 0 : part * n / n_parts);
        if (slice_tokens) gpt_make_mask(model, begins, 0, part * slice_tokens);
        if (model->kernels.attention.launches) { /* behind the scratch memory */
            desc.device_memory = (char*)gpt_buffer_address(model, GPT_BUFFER_SEQUENCE) +
                                 gpt_sp_scratch_bytes(&model->config, &model->share) +
                                 (exchange - model->exchanges) * n_bytes;
            desc.device_bytes = n_bytes;
        }
        memo_exchange_destroy(
            *exchange); /* of an earlier micro-batch, which the stream has passed */
        *exchange = NULL;
        if (!model->status)
            model->status = memo_exchange_create(model->attention[gpt_sp_slice(model, begin)],
                                                 &desc, exchange, &model->error);
    }
}

/* ---- attention of runs: whole sequences, or queries of one ----------------------------------- */

/* A slice's gradients of keys or values, which the last slice sets and others add to. */
static void gpt_add_keys(gpt_model* model, gpt_array sums, gpt_array of_slice, gpt_rows rows) {
    const int64_t n = gpt_count(rows) * sums.n_columns;
    if (rows.end == model->n_rows)
        gpt_cast(model, sums.address, sums.type, of_slice.address, of_slice.type, n);
    else
        gpt_add(model, sums.address, sums.type, of_slice.address, of_slice.type, n);
}

/* Over the ranks of a sequence.  The backward's keys are all that the rows read. */
static void gpt_attention_over_ranks(gpt_model* model, const gpt_array* tensors,
                                     const gpt_attention_back* back, gpt_rows rows) {
    const gpt_rows keys = gpt_rows_make(model->shares_keys ? 0 : rows.begin, rows.end);
    const int is_shared = back && model->shares_keys;
    memo_sp_attention_tensors t = gpt_sp_tensors(model, tensors, rows.begin);
    gpt_array dk, dv;
    if (back) {
        dk = is_shared ? gpt_take(model, keys, back->dk.n_columns) : back->dk;
        dv = is_shared ? gpt_take(model, keys, back->dv.n_columns) : back->dv;
        t.d_out = gpt_at(back->dout, rows.begin);
        t.d_q = gpt_at(back->dq, rows.begin);
        t.d_k = gpt_at(dk, keys.begin);
        t.d_v = gpt_at(dv, keys.begin);
    }
    if (model->pass != GPT_PASS_WEIGHTS)
        GPT_DO(model, (back ? memo_sp_attention_backward : memo_sp_attention_forward)(
                          model->attention[gpt_sp_slice(model, rows.begin)],
                          *gpt_exchange(model, rows.begin), &t, &model->error));
    if (!is_shared) return;
    if (model->pass != GPT_PASS_WEIGHTS) {
        gpt_add_keys(model, back->dk, dk, keys);
        gpt_add_keys(model, back->dv, dv, keys);
    }
    gpt_give(model, dv);
    gpt_give(model, dk);
}

/* back NULL: the forward. */
static void gpt_attention_run(gpt_model* model, const gpt_array* tensors,
                              const gpt_attention_back* back, const gpt_run* run) {
    const int64_t q_hidden = tensors[GPT_Q].n_columns; /* of this rank, in this block */
    const int of_forward = back ? GPT_READ : GPT_WRITTEN;
    const gpt_rows keys = gpt_rows_make(run->rows.begin - run->first, run->rows.end);
    gpt_op op = gpt_op_make("attention", back ? GPT_KIND_ATTENTION_BACKWARD : GPT_KIND_ATTENTION);
    gpt_attention_args* a = &op.args.attention;
    a->shape = gpt_attention_shape_of(&model->config, run,
                                      (int32_t)(gpt_q_columns(&model->config) / q_hidden));
    a->batch = run->batch;

    /* The backward also reads what the forward writes. */
    gpt_use_rows(&op, GPT_READ, &a->q, tensors[GPT_Q], run->rows);
    gpt_use_rows(&op, GPT_READ, &a->k, tensors[GPT_K], keys);
    gpt_use_rows(&op, GPT_READ, &a->v, tensors[GPT_V], keys);
    gpt_use_rows(&op, of_forward, &a->out, tensors[GPT_ATTENTION], run->rows);
    gpt_use_rows(&op, of_forward, &a->lse, tensors[GPT_LSE], run->rows);

    if (model->config.documents) {
        const int64_t n = a->shape.documents + 1;
        const int64_t first = run->rows.begin / model->config.sequence * n;
        gpt_use_of_rows(&op, GPT_READ, &a->begins, model->begins, MEMO_TYPE_I64,
                        gpt_rows_make(first, first + a->batch * n));
    }
    if (back) {
        gpt_use_rows(&op, GPT_READ, &a->dout, back->dout, run->rows);
        gpt_use_rows(&op, GPT_WRITTEN, &a->dq, back->dq, run->rows);
        gpt_use_rows(&op, GPT_WRITTEN, &a->dk, back->dk, keys);
        gpt_use_rows(&op, GPT_WRITTEN, &a->dv, back->dv, keys);
        gpt_use_rows(&op, GPT_WRITTEN, &a->delta, back->delta, run->rows);
    }
    gpt_launch(model, &op);
}

void gpt_attention(gpt_model* model, const gpt_array* tensors, const gpt_attention_back* back,
                   gpt_rows rows) {
    gpt_run run;
    if (gpt_is_over_ranks(model)) {
        gpt_attention_over_ranks(model, tensors, back, rows);
        return;
    }
    for (; rows.begin < rows.end; rows.begin = run.rows.end) {
        run = gpt_run_at(model->config.sequence, rows);
        gpt_attention_run(model, tensors, back, &run);
    }
}

/* ---- tokens: embedding, loss ----------------------------------------------------------------- */

/* tokens: of the open slice, or targets. */
static gpt_op gpt_tokens_op(const char* name, gpt_kind kind, int uses, gpt_array x,
                            const int32_t* tokens, gpt_rows rows) {
    gpt_op op = gpt_op_make(name, kind);
    gpt_tokens_args* a = &op.args.tokens;
    a->rows = rows;
    a->n_columns = x.n_columns;
    gpt_use_rows(&op, uses, &a->x, x, rows);
    gpt_use_of_rows(&op, GPT_READ, &a->tokens, tokens, MEMO_TYPE_I32, rows);
    return op;
}

void gpt_embedding(gpt_model* model, int is_backward, gpt_array x) {
    if (is_backward && model->config.lora.rank) return; /* it is frozen */
    const int64_t n = gpt_vocabulary(&model->config) * x.n_columns;
    gpt_op op =
        gpt_tokens_op("embedding", is_backward ? GPT_KIND_EMBEDDING_BACKWARD : GPT_KIND_EMBEDDING,
                      is_backward ? GPT_READ : GPT_WRITTEN, x, model->tokens, model->open);
    gpt_tokens_args* a = &op.args.tokens;
    if (is_backward)
        gpt_use_gradient(model, &op, &a->dtable, 0, GPT_W_EMBEDDING, n);
    else
        gpt_use_weight(model, &op, &a->table, 0, GPT_W_EMBEDDING, n);
    gpt_launch(model, &op);
}

void gpt_loss(gpt_model* model, gpt_array logits, gpt_rows rows) {
    const int32_t* targets = model->tokens ? model->tokens + model->n_rows : NULL;
    gpt_op op = gpt_tokens_op("cross-entropy", GPT_KIND_CROSS_ENTROPY, GPT_READ | GPT_WRITTEN,
                              logits, targets, rows);
    gpt_tokens_args* a = &op.args.tokens;
    gpt_use_of_rows(&op, GPT_READ, &a->token_numbers, model->token_numbers, MEMO_TYPE_I64, rows);
    gpt_use_of_rows(&op, GPT_WRITTEN, &a->losses, model->losses, MEMO_TYPE_F64, rows);
    gpt_use_values(model, &op, &a->values);
    gpt_launch(model, &op);
}

void gpt_add_losses(gpt_model* model) {
    gpt_op op = gpt_op_make("loss", GPT_KIND_LOSS);
    gpt_loss_args* a = &op.args.loss;
    a->n = model->n_rows;
    gpt_use(&op, GPT_READ, &a->losses, model->losses, MEMO_TYPE_F64, a->n);
    gpt_use(&op, GPT_WRITTEN, &a->loss, model->totals, MEMO_TYPE_F64, 1); /* GPT_TOTAL_LOSS */
    gpt_launch(model, &op);
}

/* ---- sums ------------------------------------------------------------------------------------ */

void gpt_add(gpt_model* model, void* to, memo_type to_type, const void* from, memo_type from_type,
             int64_t n) {
    const memo_add_desc add = {to, to, from, to_type, to_type, from_type, 1, n, 0, 0, 0};
    GPT_DO(model, memo_row_add(&model->device, model->compute, &add, &model->error));
}

void gpt_all_reduce(gpt_model* model, memo_comm* ranks, const char* name, void* sum, int64_t n,
                    memo_type type) {
    const int64_t n_bytes = n * memo_type_bytes(type);
    gpt_announce_ranges(model, name, sum, n_bytes, sum, n_bytes);
    GPT_DO(model, memo_all_reduce(ranks, model->compute, sum, sum, n, type, MEMO_REDUCTION_SUM,
                                  &model->error));
}

void gpt_all_gather(gpt_model* model, memo_comm* ranks, const char* name, const void* own,
                    void* all, int64_t n) {
    const int64_t n_bytes = gpt_n_bytes(model, n);
    gpt_announce_ranges(model, name, own, n_bytes, all, n_bytes * ranks->size);
    GPT_DO(model,
           memo_all_gather(ranks, model->compute, own, all, n, model->config.type, &model->error));
}
