/* gpt_test.h - shared by the tests of the trainer's model: a model in a device of exactly its size,
 * and text to train on. */
#ifndef GPT_TEST_H
#define GPT_TEST_H

#include "gpt_model_unit.h"
#include "memo_plan.h"
#include "memo_test.h"
#include "item_choices.h"

/* --- what a model holds --- */

/* 1: recomputation does not make the tensor. */
static inline int gpt_is_lost(const gpt_config* config, const memo_item* tensors, int32_t t) {
    return !item_recomputes(tensors, t) ||
           (tensors[item_leader(tensors, t)].scope == MEMO_LAYER && gpt_n_slices(config) > 1);
}

/* The swap engine's view of a model with a table of rows. */
static inline memo_swap_desc gpt_swap_desc(const gpt_desc* desc, memo_item tensors[GPT_N_TENSORS]) {
    memo_swap_desc swap = MEMO_ZERO(memo_swap_desc);
    gpt_fill_tensors(&desc->config, tensors);
    for (int t = GPT_INPUT; t < GPT_N_TENSORS && !desc->rows; t++)
        item_choose(&tensors[t], MEMO_KEEP, MEMO_SLICE, 0);
    swap.tensors = tensors;
    swap.n_tensors = gpt_n_tensors(&desc->config);
    swap.n_slices = (int32_t)gpt_n_slices(&desc->config);
    swap.n_layers = desc->config.n_layers * swap.n_slices; /* steps */
    swap.n_rows = gpt_slice_rows(&desc->config);
    swap.layer_rows = gpt_n_rows(&desc->config);
    swap.tile_rows = desc->config.tile_rows;
    swap.rows = desc->rows;
    return swap;
}

/* Writes the table of a policy; MEMO as ALPHA.  Errors: INVALID_ARGUMENT. */
static inline memo_status gpt_fill_rows(const gpt_config* config, memo_policy policy, double alpha,
                                        int64_t* rows, memo_error* error) {
    memo_item tensors[GPT_N_TENSORS];
    memo_status status = gpt_check_config(config, error);
    if (status) return status;
    gpt_desc desc = MEMO_ZERO(gpt_desc);
    desc.config = *config;
    desc.rows = rows;
    memo_swap_desc swap = gpt_swap_desc(&desc, tensors);
    memo_session_desc session = MEMO_ZERO(memo_session_desc);
    session.tensors = tensors;
    session.n_tensors = swap.n_tensors;
    session.n_layers = config->n_layers;
    session.n_rows = swap.layer_rows;
    session.slice_rows = swap.n_rows;
    session.tile_rows = swap.tile_rows;
    session.policy = MEMO_POLICY_ALPHA;
    session.alpha = alpha;
    memo_step_plan* plan = NULL;
    status = memo_session_plan(&session, NULL, &plan, error);
    if (!status)
        memcpy(rows, plan->swap.rows, sizeof(int64_t) * (size_t)(swap.n_layers * swap.n_tensors));
    memo_step_plan_destroy(plan);
    for (int64_t i = 0; i < (int64_t)swap.n_layers * swap.n_tensors && !status; i++) {
        const int is_lost = gpt_is_lost(config, tensors, (int32_t)(i % swap.n_tensors));
        if (policy == MEMO_POLICY_KEEP) rows[i] = MEMO_ROWS_KEPT;
        if (policy == MEMO_POLICY_RECOMPUTE) rows[i] = is_lost ? MEMO_ROWS_KEPT : 0;
        if (policy == MEMO_POLICY_SWAP) rows[i] = swap.n_rows;
    }
    return status;
}

/* Checks the config, and returns the sizes of the swap engine. */
static inline memo_status gpt_swap_sizes(const gpt_desc* desc, memo_swap_sizes* sizes,
                                         memo_error* error) {
    memo_item tensors[GPT_N_TENSORS];
    memo_status status = gpt_check_config(&desc->config, error);
    if (status) return status;
    memo_swap_desc swap = gpt_swap_desc(desc, tensors);
    return memo_swap_desc_get_sizes(&swap, sizes, error);
}

/* These copy from and to the caller's memory, gpt_n_parameters elements each, of this tensor rank:
 * gradients of gpt_gradient_type, parameters of config.type.  They wait for all enqueued work.  If
 * config.zero splits the gradients, the parts of other ranks are 0. */
static inline memo_status gpt_get_gradients(gpt_model* model, void* gradients, memo_error* error) {
    model->status = gpt_wait(model, &model->error);
    memset(gradients, 0, (size_t)gpt_sum_bytes(model, model->layout.n));
    for (int64_t b = 0; b < gpt_n_buckets(&model->config); b++) {
        const gpt_rows rows = gpt_updated_part(model, b);
        gpt_copy_array(model, 0, GPT_GRADIENTS, rows,
                       (char*)gradients + gpt_array_bytes(model, GPT_GRADIENTS, rows.begin));
    }
    return gpt_finish(model, error);
}

static inline memo_status gpt_get_parameters(gpt_model* model, void* parameters,
                                             memo_error* error) {
    model->status = MEMO_STATUS_OK;
    gpt_copy_array(model, 0, GPT_WEIGHTS, gpt_rows_make(0, model->layout.n), parameters);
    return gpt_finish(model, error);
}

static inline memo_status gpt_set_parameters(gpt_model* model, const void* parameters,
                                             memo_error* error) {
    model->status = MEMO_STATUS_OK;
    gpt_copy_array(model, 1, GPT_WEIGHTS, gpt_rows_make(0, model->layout.n),
                   (void*)(uintptr_t)parameters);
    return gpt_finish(model, error);
}

/* gpt_update.  Returns also the norm of the gradient before clipping, over all ranks,
 * unless NULL. */
static inline memo_status gpt_test_update(gpt_model* model, const gpt_update_values* values,
                                          double* loss, double* norm, memo_error* error) {
    const memo_status status = gpt_update(model, values, loss, error);
    if (norm && !status) *norm = sqrt(model->host_totals[GPT_TOTAL_SQUARES]);
    return status;
}

/* Ends the step without an update: parameters and moments remain.  It waits, returns the loss of
 * this rank's rows (unless NULL) and drops the gradients. */
static inline memo_status gpt_test_discard(gpt_model* model, double* loss, memo_error* error) {
    model->status = MEMO_STATUS_OK;
    gpt_end_step(model);
    GPT_TRY(model, memo_session_skip_update(model->session, &model->error));
    gpt_synchronize(model);
    if (loss && !model->status) *loss = model->host_totals[GPT_TOTAL_LOSS];
    return gpt_finish(model, error);
}

/* The text that every model learns, with some order in it, so that a loss can fall: each byte is
 * near the one before. */
static inline const uint8_t* gpt_test_text(void) {
    static uint8_t text[2048];
    for (size_t i = 0; i < sizeof text && !text[sizeof text - 1]; i++)
        text[i] =
            (uint8_t)('a' +
                      ((i ? text[i - 1] - 'a' : 0) + (int)(gpt_mix(memo_test.seed + i) % 4)) % 26);
    return text;
}

/* Of x from y, over the norm of y. */
static inline double gpt_test_distance(const gpt_real* x, const gpt_real* y, int64_t n) {
    double difference = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += pow((double)x[i] - (double)y[i], 2);
        squares += (double)y[i] * (double)y[i];
    }
    return sqrt(difference / squares);
}

/* One step of so many micro-batches.  Of its end gradients and their digest, unless NULL. */
static inline memo_status gpt_test_step(gpt_model* model, const gpt_config* config, int64_t step,
                                        int64_t accumulate, void* gradients, uint64_t* digest,
                                        double* loss, double* norm, memo_error* error) {
    const gpt_update_values update = {{0.01, 0.9, 0.99, 1e-8, 0.1, 0}, 1.0, 0};
    const int64_t n = config->batch * config->sequence;
    const uint8_t* tokens = gpt_test_text() + step * accumulate * n;
    memo_status status = MEMO_STATUS_OK;
    gpt_set_update(model, &update);
    for (int64_t m = 0; m < accumulate && !status; m++, tokens += n)
        status = gpt_micro_batch(model, tokens, tokens + 1, step, m, 1.0 / (double)(accumulate * n),
                                 error);
    if (!status && gradients) status = gpt_get_gradients(model, gradients, error);
    if (!status && digest) status = gpt_digest_gradients(model, digest, error);
    return status ? status : gpt_test_update(model, &update, loss, norm, error);
}

/* --- a model in a device --- */

typedef struct gpt_test_run {
    memo_device* host;
    gpt_host_kernels host_kernels;
    gpt_kernels kernels;
    memo_step_plan* step; /* it owns */
    const memo_trace* trace;
    const memo_plan* plan;
    gpt_model* model;
} gpt_test_run;

/* Kernels without a device, to plan. */
static inline const gpt_kernels* gpt_test_kernels(void) {
    static gpt_host_kernels host;
    static gpt_kernels kernels;
    kernels = gpt_kernels_host(&host, NULL);
    return &kernels;
}

enum { GPT_TEST_TABLES = 64, GPT_TEST_LAYERS = 64 /* or steps */ };

/* Room for a table of rows: the next 63 calls leave it alone. */
static inline int64_t* gpt_test_table(void) {
    static int64_t tables[GPT_TEST_TABLES][GPT_TEST_LAYERS * GPT_N_TENSORS];
    static int next;
    next = (next + 1) % GPT_TEST_TABLES;
    return tables[next];
}

/* Micro-batches of a step of the including test. */
#ifndef GPT_TEST_ACCUMULATED
#define GPT_TEST_ACCUMULATED 1
#endif

/* MEMO_POLICY_KEEP: without a table. */
static inline gpt_desc gpt_test_desc(gpt_config config, memo_policy policy, double alpha) {
    int64_t* rows = gpt_test_table();
    memo_error error;
    gpt_desc desc = MEMO_ZERO(gpt_desc);
    desc.config = config;
    desc.kernels = gpt_test_kernels();
    desc.n_micro_batches = GPT_TEST_ACCUMULATED;
    if (policy == MEMO_POLICY_KEEP) return desc;
    CHECK_IS(config.n_layers * gpt_n_slices(&config), <=, GPT_TEST_LAYERS);
    CHECK_OK(gpt_fill_rows(&config, policy, alpha, rows, &error));
    desc.rows = rows;
    return desc;
}

static inline gpt_config gpt_test_config(int32_t n_layers, int32_t hidden, int32_t n_heads,
                                         int32_t n_kv_heads, int64_t sequence, int64_t batch,
                                         int64_t tile_rows, double dropout) {
    gpt_config config = MEMO_ZERO(gpt_config);
    config.n_layers = n_layers;
    config.hidden = hidden;
    config.n_heads = n_heads;
    config.n_kv_heads = n_kv_heads;
    config.sequence = sequence;
    config.batch = batch;
    config.tile_rows = tile_rows;
    config.dropout = dropout;
    config.seed = 42;
    config.type = GPT_REAL_TYPE;
    return config;
}

/* Documents of the text that the tests train on. */
static inline gpt_config with_masks(gpt_config config, int64_t window, int64_t documents) {
    config.window = window;
    config.documents = documents;
    config.separator = 'm';
    return config;
}

static inline gpt_config with_swiglu(gpt_config config) {
    config.mlp = GPT_MLP_SWIGLU;
    return config;
}

static inline gpt_config with_head_size(gpt_config config, int32_t head_size) {
    config.head_size = head_size;
    return config;
}

static inline gpt_config with_biases(gpt_config config) {
    config.has_biases = 1;
    return config;
}
static inline gpt_config with_head_norms(gpt_config config) {
    config.has_head_norms = 1;
    return config;
}
static inline gpt_config with_experts(gpt_config config, int32_t n, int32_t n_chosen,
                                      int32_t is_normed) {
    const gpt_experts experts = {n, n_chosen, is_normed};
    config.mlp = GPT_MLP_SWIGLU;
    config.mlp_columns = 10;
    config.experts = experts;
    return config;
}
static inline gpt_config with_tied_tables(gpt_config config) {
    config.is_tied = 1;
    return config;
}

static inline gpt_config with_rope(gpt_config config, gpt_rope_kind kind) {
    const gpt_rope_law law = {500, kind, 8, 1, 4, 40};
    config.rope = law;
    config.norm_epsilon = 0.03;
    return config;
}

static inline gpt_config mlp_in_chunks(gpt_config config, int64_t n_rows) {
    config.mlp_rows = n_rows;
    return config;
}

static inline gpt_config in_slices(gpt_config config, int64_t n_rows) {
    config.slice_rows = n_rows;
    return config;
}

static inline void gpt_test_close(gpt_test_run* run) {
    gpt_destroy(run->model);
    if (run->host) memo_host_device_destroy(run->host);
    memo_step_plan_destroy(run->step);
    memset(run, 0, sizeof *run);
}
#define own_run OWNED(gpt_test_close) gpt_test_run /* of owned.h */

/* The device of the run, and its kernels. */
static inline void gpt_test_attach(gpt_test_run* run, gpt_desc* desc) {
    run->kernels = gpt_kernels_host(&run->host_kernels, run->host);
    desc->kernels = &run->kernels;
    desc->device = run->host;
}

/* Dry run, then a plan. */
static inline memo_status gpt_test_plan(const gpt_desc* desc, gpt_test_run* run,
                                        memo_error* error) {
    memo_status status = gpt_plan(desc, NULL, &run->step, error);
    if (status) return status;
    run->trace = run->step->trace;
    run->plan = run->step->addresses;
    return status;
}

/* The smallest device on which a model of these budgets works. */
static inline int64_t gpt_test_least(gpt_desc desc) {
    memo_session_desc budgets = *desc.session;
    memo_step_plan* plan = NULL;
    int64_t least = 0;
    memo_error error;
    budgets.device_bytes = 1;
    desc.session = &budgets;
    CHECK_OK(gpt_plan(&desc, NULL, &plan, &error));
    if (plan) least = plan->device_bytes;
    memo_step_plan_destroy(plan);
    return least;
}

/* The bytes of the device that a model needs. */
static inline int64_t gpt_test_peak(gpt_config config, memo_policy policy, double alpha) {
    const gpt_desc desc = gpt_test_desc(config, policy, alpha);
    memo_error error;
    gpt_test_run run = MEMO_ZERO(gpt_test_run);
    CHECK_OK(gpt_test_plan(&desc, &run, &error));
    int64_t peak = run.plan ? run.plan->peak_bytes : 0;
    gpt_test_close(&run);
    return peak;
}

/* A model in a device that has the bytes it was promised and not one more.  On failure nothing is
 * left. */
static inline memo_status gpt_test_open(const gpt_desc* desc, gpt_test_run* run,
                                        memo_error* error) {
    memo_host_device_desc host = MEMO_ZERO(memo_host_device_desc);
    gpt_desc real = *desc;
    memo_status status;
    memset(run, 0, sizeof *run);
    memo_swap_sizes sizes = MEMO_ZERO(memo_swap_sizes);
    if ((status = gpt_test_plan(desc, run, error)) ||
        (status = gpt_swap_sizes(desc, &sizes, error))) {
        gpt_test_close(run);
        return status;
    }
    host.device_memory_bytes = run->plan->peak_bytes;
    host.host_memory_bytes =
        sizes.host_bytes + gpt_staging_bytes(&desc->config, desc->n_micro_batches);
    status = memo_host_device_create(&host, &run->host, error);
    gpt_test_attach(run, &real);
    if (!status) status = gpt_create(&real, &run->model, error);
    if (status) gpt_test_close(run);
    return status;
}

/* With activations in bf16 the kernels store rstd and LSE in fp32: they are near the exact ones of
 * the bf16 operands, not a rounding to bf16 away. */
static inline void gpt_test_check_sums(memo_device* device, const gpt_kernels* kernels) {
    enum { N = 13, HEADS = 2, SIZE = 32, HIDDEN = HEADS * SIZE, N_ELEMENTS = N * HIDDEN };
    const int64_t sums = 4 * N_ELEMENTS * (int64_t)sizeof(uint16_t);
    const int64_t n_bytes = sums + N * (HEADS + 1) * (int64_t)sizeof(float);
    const uint64_t key = memo_test_random();
    gpt_config config = gpt_test_config(1, HIDDEN, HEADS, HEADS, N, 1, 4, 0);
    gpt_op attention = gpt_op_make("attention", GPT_KIND_ATTENTION);
    gpt_op norm = gpt_op_make("norm", GPT_KIND_NORM);
    gpt_attention_args* a = &attention.args.attention;
    memo_stream stream = NULL;
    memo_error error;
    void *pinned = NULL, *scratch = NULL, *memory = NULL;

    /* q, k, v, results; LSE, rstd. */
    config.type = MEMO_TYPE_BF16;
    gpt_shapes shapes = gpt_shapes_make(&config);
    CHECK_OK(memo_stream_create(device, "compute", 0, &stream, &error));
    CHECK_OK(memo_device_alloc(device, kernels->scratch_bytes(kernels->context, &shapes), &scratch,
                               &error));
    CHECK_OK(memo_device_alloc(device, n_bytes, &memory, &error));
    CHECK_OK(memo_host_alloc(device, n_bytes, &pinned, &error));
    if (!memory || !pinned || !scratch) return;
    CHECK_OK(kernels->prepare(kernels->context, &shapes, stream, scratch, &error));
    uint16_t* q = (uint16_t*)pinned;
    uint16_t* k = q + N_ELEMENTS;
    float* lse = (float*)(void*)((char*)pinned + sums);
    float* rstd = lse + N * HEADS;
    for (int i = 0; i < 4 * N_ELEMENTS; i++)
        q[i] = memo_bf16_from_f32((float)gpt_normal(key, (uint64_t)i));
    CHECK_OK(memo_copy(device, stream, MEMO_COPY_TO_DEVICE, memory, pinned, n_bytes, &error));

    char* at = (char*)memory;
    a->shape.sequence = N;
    a->shape.head_size = SIZE;
    a->shape.n_heads = a->shape.n_kv_heads = HEADS;
    a->batch = 1;
    gpt_use(&attention, GPT_READ, &a->q, at, MEMO_TYPE_BF16, N_ELEMENTS);
    gpt_use(&attention, GPT_READ, &a->k, at + sums / 4, MEMO_TYPE_BF16, N_ELEMENTS);
    gpt_use(&attention, GPT_READ, &a->v, at + sums / 2, MEMO_TYPE_BF16, N_ELEMENTS);
    gpt_use(&attention, GPT_WRITTEN, &a->out, at + 3 * sums / 4, MEMO_TYPE_BF16, N_ELEMENTS);
    gpt_use(&attention, GPT_WRITTEN, &a->lse, at + sums, MEMO_TYPE_F32, N * HEADS);
    gpt_norm_args* n = &norm.args.norm;
    n->rows = gpt_rows_make(0, N);
    n->hidden = HIDDEN;
    n->epsilon = 1e-5;
    gpt_use(&norm, GPT_READ, &n->x, at, MEMO_TYPE_BF16, N_ELEMENTS);
    gpt_use(&norm, GPT_READ, &n->weight, at + sums / 2, MEMO_TYPE_BF16, HIDDEN);
    gpt_use(&norm, GPT_WRITTEN, &n->y, at + 3 * sums / 4, MEMO_TYPE_BF16, N_ELEMENTS);
    gpt_use(&norm, GPT_WRITTEN, &n->rstd, at + sums + N * HEADS * (int64_t)sizeof(float),
            MEMO_TYPE_F32, N);
    CHECK_OK(kernels->enqueue(kernels->context, stream, &attention, &error));
    CHECK_OK(kernels->enqueue(kernels->context, stream, &norm, &error));
    CHECK_OK(memo_copy(device, stream, MEMO_COPY_TO_HOST, lse, at + sums, n_bytes - sums, &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));

    for (int i = 0; i < N; i++) {
        double squares = 0;
        for (int e = 0; e < HIDDEN; e++)
            squares += pow((double)memo_f32_from_bf16(q[i * HIDDEN + e]), 2);
        CHECK_IS(fabs((double)rstd[i] * sqrt(squares / HIDDEN + 1e-5) - 1), <, 1e-5);
        for (int head = 0; head < HEADS; head++) {
            double sum = 0;
            for (int j = 0; j <= i; j++) {
                double score = 0;
                for (int e = head * SIZE; e < (head + 1) * SIZE; e++)
                    score += (double)memo_f32_from_bf16(q[i * HIDDEN + e]) *
                             (double)memo_f32_from_bf16(k[j * HIDDEN + e]);
                sum += exp(score / sqrt((double)SIZE));
            }
            CHECK_IS(fabs((double)lse[i * HEADS + head] - log(sum)), <, 1e-5);
        }
    }
    CHECK_OK(memo_host_free(device, pinned, &error));
    CHECK_OK(memo_device_free(device, memory, &error));
    CHECK_OK(memo_device_free(device, scratch, &error));
    CHECK_OK(memo_stream_destroy(device, stream, &error));
}

#endif
