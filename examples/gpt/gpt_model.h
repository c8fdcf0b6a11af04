/* gpt_model.h - a micro-batch, the end of a step, create and destroy, and planning: the functions of gpt.h
 * but gpt_generate.
 *
 * Single translation unit: everything is static. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "gpt_tensor.h"

/* What the engine is told is the same, whoever calls the blocks. */
static void gpt_forward(gpt_model* model, int32_t layer, gpt_array x) {
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

static void gpt_backward(gpt_model* model, int32_t layer, gpt_array dx) {
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
static void gpt_classify(gpt_model* model, gpt_array dx, gpt_array x, const uint8_t* targets,
                         double loss_scale) {
    const int64_t hidden = model->config.hidden, n = model->n_rows;
    const int64_t classifier = model->layout.classifier, norm = model->layout.final_norm;
    gpt_rows rows;
    gpt_array normed, rstd, logits, d_norm;
    snprintf(model->phase, sizeof model->phase, "classifier");
    gpt_begin_bucket(model, gpt_n_buckets(&model->config) - 1);
    if (!gpt_is_silent(model))
        model->status = memo_fill(&model->device, model->compute, dx.address, 0,
                                  gpt_bytes(dx, gpt_all_rows(model)), &model->error);
    for (rows.begin = 0; rows.begin < n; rows.begin = rows.end) {
        rows.end = gpt_min(rows.begin + model->chunk_rows, n);
        normed = gpt_take(model, rows, hidden);
        rstd = gpt_take(model, rows, 1);
        gpt_norm(model, "norm", normed, rstd, x, norm, rows);
        logits = gpt_take(model, rows, GPT_VOCABULARY);
        gpt_linear(model, "logits", logits, normed, classifier, rows);
        gpt_loss(model, logits, targets, loss_scale, rows);
        d_norm = gpt_take(model, rows, hidden);
        gpt_linear_back(model, "logits backward", d_norm, logits, normed, 1, classifier, rows);
        gpt_give(model, logits);
        gpt_give(model, normed);
        gpt_norm_back(model, "norm backward", dx, d_norm, x, rstd, norm, rows);
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
        model->status = memo_event_synchronize(device, model->tokens_copied[half], &model->error);
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
    model->status = memo_copy(device, model->compute, MEMO_COPY_TO_DEVICE, to, staging,
                              2 * model->n_rows, &model->error);
    if (!model->status)
        model->status =
            memo_event_record(device, model->tokens_copied[half], model->compute, &model->error);
}

GPT_FUNCTION memo_status gpt_micro_batch(gpt_model* model, const uint8_t* tokens,
                                         const uint8_t* targets, int64_t step, int64_t micro_batch,
                                         double loss_scale, memo_error* error) {
    const int64_t hidden = model->config.hidden, n_rows = model->n_rows;
    const int32_t n_layers = model->config.n_layers;
    const gpt_rows all = gpt_all_rows(model);
    gpt_dropout dropout;
    gpt_array x, dx;
    void* device_tokens = NULL;
    uint8_t *inputs, *labels;
    int32_t layer;

    model->step = step;
    model->first_token = micro_batch * model->config.batch * model->config.sequence;
    dropout = gpt_dropout_at(model, 0, GPT_SITE_EMBEDDING);
    model->status = MEMO_STATUS_OK;
    if (!model->is_dry_run) model->status = memo_arena_begin(model->arena, &model->error);
    if (!model->status)
        model->status =
            memo_arena_alloc(model->arena, 2 * n_rows, 0, &device_tokens, &model->error);
    inputs = (uint8_t*)device_tokens;
    labels = model->is_dry_run || !inputs ? NULL : inputs + n_rows;
    gpt_begin_part(model, GPT_PART_REST);
    gpt_copy_tokens(model, inputs, tokens, targets);

    snprintf(model->phase, sizeof model->phase, "forward");
    x = gpt_take(model, all, hidden);
    gpt_embedding(model, x, inputs, 0);
    gpt_elements(model, "dropout", gpt_dropout_run, x, x, NULL, &dropout, all);
    gpt_begin_part(model, GPT_PART_FORWARD);
    for (layer = 0; layer < n_layers; layer++) gpt_forward(model, layer, x);

    gpt_begin_part(model, GPT_PART_REST);
    dx = gpt_take(model, all, hidden);
    gpt_classify(model, dx, x, labels, loss_scale);
    gpt_give(model, x);

    gpt_begin_part(model, GPT_PART_BACKWARD);
    for (layer = n_layers - 1; layer >= 0; layer--) gpt_backward(model, layer, dx);
    gpt_begin_part(model, GPT_PART_REST);
    snprintf(model->phase, sizeof model->phase, "backward");
    gpt_elements(model, "dropout", gpt_dropout_run, dx, dx, NULL, &dropout, all);
    gpt_begin_bucket(model, 0);
    gpt_embedding(model, dx, inputs, 1);
    gpt_end_bucket(model, 0);
    gpt_give(model, dx);

    if (!model->status) model->status = memo_arena_free(model->arena, device_tokens, &model->error);
    if (!gpt_is_idle(model)) model->status = memo_arena_end(model->arena, &model->error);
    if (model->status && !model->is_dry_run) {
        memo_arena_abandon(model->arena);
        if (model->swap) memo_swap_abandon(model->swap, NULL);
    }
    return gpt_finish(model, error);
}

/* ---- parts, to measure them ---------------------------------------------------------------- */

GPT_FUNCTION void gpt_set_parts(gpt_model* model, int parts) { model->parts = parts; }

GPT_FUNCTION memo_status gpt_recompute_alone(gpt_model* model, int32_t tensor, memo_error* error) {
    memo_tensor tensors[GPT_N_TENSORS];
    gpt_rows need[GPT_N_TENSORS];
    gpt_array x;
    void* tokens = NULL;
    gpt_fill_tensors(&model->config, tensors);
    if (tensors[tensor].rule == MEMO_TENSOR_SWAPPED || tensors[tensor].with)
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
    x = gpt_take(model, gpt_all_rows(model), model->config.hidden);
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
             memo_copy(device, model->compute, MEMO_COPY_TO_HOST, model->host_totals, model->totals,
                       GPT_N_TOTALS * (int64_t)sizeof(double), &model->error)) ||
        (model->status = memo_fill(device, model->compute, model->totals, 0,
                                   GPT_N_TOTALS * (int64_t)sizeof(double), &model->error)) ||
        (model->status = memo_fill(device, model->compute, model->gradients, 0,
                                   gpt_gradient_bytes(model), &model->error)))
        return;
    model->is_reduced = 0;
    model->status = memo_stream_synchronize(device, model->compute, &model->error);
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
    return memo_stream_synchronize(&model->device, model->compute, error);
}

/* Copies all parameters or gradients, and waits. */
static memo_status gpt_copy_flat(gpt_model* model, memo_copy_kind kind, void* to, const void* from,
                                 memo_error* error) {
    const memo_device* device = &model->device;
    memo_status status = memo_copy(device, model->compute, kind, to, from,
                                   model->layout.n * (int64_t)sizeof(gpt_real), error);
    return status ? status : memo_stream_synchronize(device, model->compute, error);
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
        model->status = memo_copy(
            device, model->compute, MEMO_COPY_TO_HOST, gradients + part.begin, part.gradients,
            (part.end - part.begin) * (int64_t)sizeof(gpt_real), &model->error);
    }
    if (!model->status)
        model->status = memo_stream_synchronize(device, model->compute, &model->error);
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
    memo_tensor tensors[GPT_N_TENSORS];
    memo_swap_desc swap;
    void* pinned;
    int32_t i;
    if ((model->status = memo_stream_create(device, "compute", 0, &model->compute, &model->error)))
        return;
    for (i = 0; i < 2; i++)
        if ((model->status = memo_event_create(device, &model->tokens_copied[i], &model->error)))
            return;
    if ((model->status =
             memo_host_alloc(device, gpt_staging_bytes(&model->config), &pinned, &model->error)))
        return;
    model->host_totals = (double*)pinned;
    model->staging = (uint8_t*)(model->host_totals + GPT_N_TOTALS);

    swap = gpt_swap_desc(desc, tensors);
    swap.device = device;
    swap.compute_stream = model->compute;
    swap.device_memory = swap_memory;
    if ((model->status = memo_swap_create(&swap, &model->swap, &model->error))) return;
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
    const memo_sharding* layout = &model->share.layout;
    const int64_t head_size = model->config.hidden / model->config.n_heads;
    gpt_real* local = host + layout->n_tokens * head_size;
    gpt_rope_table(host, layout->n_tokens, head_size);
    memo_sharding_scatter(layout, model->share.sequence_rank, 1, head_size * (int64_t)sizeof *host,
                          host, local);
    model->status = memo_copy(&model->device, model->compute, MEMO_COPY_TO_DEVICE, model->rope,
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
        model->status = memo_fill(device, model->compute, zeroed[i], 0, sizes[i], &model->error);
    gpt_initial_parameters(&model->config, model->share.tensor_rank, host);
    if (!model->status)
        model->status =
            gpt_copy_flat(model, MEMO_COPY_TO_DEVICE, model->parameters, host, &model->error);
    if (!model->status) gpt_initialise_rope(model, host);
    if (memo_stream_synchronize(device, model->compute, NULL) && !model->status)
        model->status = memo_device_status(device, &model->error);
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

/* Columns, and rows that are recomputed, of the skeletal tensors. */
static void gpt_describe_tensors(gpt_model* model, const gpt_desc* desc) {
    const int32_t n_layers = desc->config.n_layers;
    memo_tensor tensors[GPT_N_TENSORS];
    const memo_swap_desc swap = gpt_swap_desc(desc, tensors);
    int32_t layer, t;
    for (t = 0; t < GPT_N_TENSORS; t++)
        model->columns[t] = tensors[t].row_bytes / (int64_t)sizeof(gpt_real);
    model->needs = (gpt_rows(*)[GPT_N_TENSORS])malloc((size_t)n_layers * sizeof *model->needs);
    if (!model->needs)
        model->status = memo_error_set(&model->error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                       "no host memory for the rows of %d layers", n_layers);
    for (layer = 0; layer < n_layers; layer++)
        for (t = 0; t < GPT_N_TENSORS && !model->status; t++) {
            gpt_rows* rows = &model->needs[layer][t];
            model->status = memo_swap_desc_get_recompute_rows(&swap, layer, t, &rows->begin,
                                                              &rows->end, &model->error);
        }
}

GPT_FUNCTION memo_status gpt_create(const gpt_desc* desc, gpt_model** result, memo_error* error) {
    const gpt_config* config = &desc->config;
    memo_arena_desc arena = memo_arena_desc_default();
    memo_swap_sizes sizes;
    memo_status status;
    gpt_model* model;
    void* swap_memory = NULL;
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
    model->parts = GPT_PART_ALL;
    model->is_dry_run = !desc->host_device;
    if (!model->is_dry_run) {
        model->host_device = desc->host_device;
        model->device = desc->device ? *desc->device : *desc->host_device;
        arena.device = &model->device;
    }
    arena.plan = desc->plan;
    arena.trace = desc->trace;
    gpt_describe_tensors(model, desc);
    model->arena = desc->arena;
    if (!gpt_is_idle(model))
        model->status = memo_arena_create(&arena, &model->arena, &model->error);

    /* The order is that of a session: the engine's memory comes first, and is requested by it. */
    if (!model->is_dry_run)
        swap_memory = gpt_take_persistent(model, "activations between forward and backward",
                                          sizes.device_bytes);
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
    if (model->compute) memo_stream_synchronize(device, model->compute, NULL);
    gpt_destroy_blocks(model);
    if (model->attention) memo_sp_attention_destroy(model->attention);
    if (model->swap) memo_swap_destroy(model->swap);
    if (model->host_totals) memo_host_free(device, model->host_totals, NULL);
    for (i = 0; i < 2; i++)
        if (model->tokens_copied[i]) memo_event_destroy(device, model->tokens_copied[i], NULL);
    if (model->compute) memo_stream_destroy(device, model->compute, NULL);
    if (model->arena && !model->is_dry_run) memo_arena_destroy(model->arena);
    free(model->needs);
    free(model);
}

/* ---- planning ------------------------------------------------------------------------------ */

typedef struct gpt_planning {
    gpt_desc desc;
    gpt_model* model; /* from setup to step */
} gpt_planning;

static void gpt_plan_setup(void* user, memo_session* session) {
    gpt_planning* p = (gpt_planning*)user;
    gpt_desc desc = p->desc;
    memo_session_info info;
    memo_error error;
    memo_session_get_info(session, &info);
    desc.rows = info.rows;
    desc.arena = info.arena;
    memo_session_fail(session, gpt_create(&desc, &p->model, &error), error.message);
}

static void gpt_plan_step(void* user, memo_session* session) {
    gpt_planning* p = (gpt_planning*)user;
    memo_error error;
    memo_session_fail(session, gpt_micro_batch(p->model, NULL, NULL, 0, 0, 1, &error),
                      error.message);
    gpt_destroy(p->model);
    p->model = NULL;
}

GPT_FUNCTION memo_status gpt_plan(const gpt_desc* desc, const memo_session_desc* budgets,
                                  memo_session** session, memo_error* error) {
    memo_session_desc s = budgets ? *budgets : memo_session_desc_default();
    memo_tensor tensors[GPT_N_TENSORS];
    gpt_planning planning;
    memo_status status = gpt_check_config(&desc->config, error);
    *session = NULL;
    if (status) return status;
    memset(&planning, 0, sizeof planning);
    planning.desc.config = desc->config;
    gpt_fill_tensors(&desc->config, tensors);
    s.tensors = tensors;
    s.n_tensors = GPT_N_TENSORS;
    s.n_layers = desc->config.n_layers;
    s.n_rows = gpt_n_rows(&desc->config);
    s.tile_rows = desc->config.tile_rows;
    s.rows = desc->rows;
    s.spill_directory = desc->spill_directory;
    s.user = &planning;
    s.setup = gpt_plan_setup;
    s.step = gpt_plan_step;
    s.is_dry_run = 1;
    status = memo_session_create(&s, session, error);
    gpt_destroy(planning.model); /* of a session that failed behind setup */
    return status;
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

#endif
