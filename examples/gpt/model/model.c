/* model.c - a micro-batch, the end of a step, create and destroy, and planning: the functions
 * of gpt.h but gpt_generate. */
#include "gpt/model/layer.h"
#include "gpt/model/lora.h"
#include "gpt/model/parallel.h"
#include "gpt/model/ranges.h"
#include "gpt/model/tensor.h"
#include "gpt/model/weights.h"

/* The slice that the session has open: its rows, of its micro-batch, are those that the model
 * computes.  Returns its residual stream, or the gradient of that. */
static gpt_array gpt_open_slice(gpt_model* model, int32_t layer) {
    const memo_slice slice = memo_session_get_slice(model->session);
    char* batch = gpt_buffer_address(model, GPT_BUFFER_BATCH);
    model->place = model->group_place + slice.micro_batch;
    model->is_last = model->group_begin + slice.micro_batch + 1 == model->n_micro_batches;
    model->values = (const gpt_batch_values*)(void*)batch;
    model->tokens = batch ? gpt_tokens_of(batch) : NULL;
    model->begins = batch ? gpt_begins_of(batch, model->n_rows) : NULL;
    model->open = gpt_rows_make(slice.begin, slice.end);
    return gpt_skeletal(model, layer, GPT_STREAM, model->open.begin);
}

/* Values, tokens and targets of the open micro-batch. */
static void gpt_bring_batch(gpt_model* model) {
    gpt_copy(model, MEMO_COPY_TO_DEVICE, gpt_buffer_address(model, GPT_BUFFER_BATCH),
             gpt_staged(model, model->place), gpt_batch_bytes(&model->config));
    if (model->attention && model->config.documents && !gpt_is_idle(model))
        gpt_make_exchanges(model);
}

/* The open slice.  The first layer's begins with the embedding. */
static void gpt_forward_slice(gpt_model* model, int32_t layer, int64_t slice) {
    gpt_array x = gpt_open_slice(model, layer);
    gpt_begin_work(model, GPT_BUFFER_FORWARD);
    if (layer == 0) {
        if (slice % model->n_slices == 0) gpt_bring_batch(model);
        snprintf(model->phase, sizeof model->phase, "forward");
        gpt_embedding(model, 0, x);
        gpt_drop_elements(model, x, x, NULL, 0, GPT_SITE_EMBEDDING, model->open);
    }
    gpt_begin_phase(model, layer, "forward");
    if (gpt_is_split(&model->config))
        gpt_forward_blocks(model, layer, x);
    else
        gpt_forward_plain(model, layer, x);
}
static void gpt_forward(gpt_model* model, int32_t layer, int64_t slice) {
    gpt_begin_range("forward", layer);
    model->computes = memo_session_forward_begin(model->session, layer);
    if (model->computes) gpt_forward_slice(model, layer, slice);
    memo_session_forward_end(model->session, layer);
    gpt_end_range();
}

/* Final norm, classifier and loss of a slice, forward and backward together: x, the stream, becomes
 * its gradient.  They run in chunks of tokens, so that logits exist for one chunk at a time. */
static void gpt_classify(gpt_model* model, gpt_array x) {
    const int64_t hidden = model->config.hidden, tile = model->config.tile_rows;
    gpt_rows rows;
    gpt_array stream, normed, rstd, logits, d_norm;

    snprintf(model->phase, sizeof model->phase, "classifier");
    for (rows.begin = model->open.begin; rows.begin < model->open.end; rows.begin = rows.end) {
        /* A chunk smaller than a tile ends with it, so that the chunks are those of any slice. */
        rows.end = gpt_min(rows.begin + model->loss_rows, model->open.end);
        if (model->loss_rows < tile) rows.end = gpt_min(rows.end, (rows.begin / tile + 1) * tile);

        /* Forward and loss. */
        stream = gpt_take(model, rows, hidden);
        gpt_copy_rows(model, stream, x, rows);
        normed = gpt_take(model, rows, hidden);
        rstd = gpt_take_sums(model, rows, 1);
        gpt_norm(model, 0, GPT_W_FINAL_NORM, NULL, normed, rstd, stream, rows);
        logits = gpt_take(model, rows, gpt_vocabulary(&model->config));
        gpt_linear(model, 0, GPT_W_CLASSIFIER, logits, normed, rows);
        gpt_loss(model, logits, rows);

        /* Backward: the logits are their own gradient now. */
        d_norm = gpt_take(model, rows, hidden);
        gpt_linear_back(model, 0, GPT_W_CLASSIFIER, d_norm, logits, normed, 1, rows);
        gpt_clear(model, gpt_at(x, rows.begin), gpt_bytes(x, rows));
        gpt_norm(model, 0, GPT_W_FINAL_NORM, &x, d_norm, rstd, stream, rows);
        gpt_give(model, stream); /* and the others */
    }
}

/* Final norm, classifier and loss of the open slice, in work memory of a pass. */
static void gpt_compute_loss(gpt_model* model, gpt_buffer work, int32_t layer, int begins) {
    gpt_begin_work(model, work);
    if (begins) gpt_begin_bucket(model, gpt_n_buckets(&model->config) - 1);
    gpt_classify(model, gpt_open_slice(model, layer));
}

/* Sums of the gradients of a layer's keys and values, to which slices add. */
static int64_t gpt_keys_bytes(const gpt_model* model) {
    return gpt_round_up(gpt_sum_bytes(model, model->n_rows * model->layout.widths.kv), 512);
}
static void gpt_place_keys(gpt_model* model, char* address) {
    const gpt_array sums = {address, 0, model->layout.widths.kv, gpt_sum_type(model->config.type),
                            0};
    model->d_key = model->d_value = sums;
    model->d_value.address = gpt_offset(address, gpt_keys_bytes(model));
}

/* The open slice.  The last layer's begins with the loss, unless that is between the passes; the
 * first layer's ends with the embedding.  The session has recomputed rows of the plain model;
 * memo_blocks recomputes its own rows. */
static void gpt_backward_slice(gpt_model* model, int32_t layer, int64_t slice, int is_between) {
    const int64_t of_classifier = gpt_n_buckets(&model->config) - 1;
    const int is_last = layer == model->config.n_layers - 1, ends = slice % model->n_slices == 0;
    const int begins = (slice + 1) % model->n_slices == 0;
    if (is_last && !is_between) gpt_compute_loss(model, GPT_BUFFER_BACKWARD, layer, begins);
    gpt_array x = gpt_open_slice(model, layer);
    if (is_last && ends) {
        gpt_add_losses(model);
        gpt_end_bucket(model, of_classifier);
    }

    gpt_begin_work(model, GPT_BUFFER_BACKWARD);
    if (begins) gpt_begin_bucket(model, layer + 1);
    if (model->shares_keys) gpt_place_keys(model, gpt_buffer_address(model, GPT_BUFFER_KEYS));
    gpt_begin_phase(model, layer, "backward");
    if (gpt_is_split(&model->config))
        gpt_backward_blocks(model, layer, x);
    else
        gpt_backward_plain(model, layer, x);
    if (ends) gpt_end_bucket(model, layer + 1);

    if (layer == 0) {
        if (begins) gpt_begin_bucket(model, 0);
        snprintf(model->phase, sizeof model->phase, "backward");
        gpt_drop_elements(model, x, x, NULL, 0, GPT_SITE_EMBEDDING, model->open);
        gpt_embedding(model, 1, x);
        if (slice == 0 && model->is_last) gpt_add_tied(model);
        if (ends) gpt_end_bucket(model, 0);
        if (slice == 0) gpt_give_summed_bucket(model);
    }
}

/* The loss is between the passes, where the session times it apart, if it has a buffer there: see
 * gpt_fill_bytes.  An error of the session leaves none. */
static void gpt_backward(gpt_model* model, int32_t layer, int64_t slice) {
    const int is_between =
        layer == model->config.n_layers - 1 && model->buffer_at[GPT_BUFFER_CLASSIFIER] >= 0;
    if (is_between && model->computes && gpt_buffer_address(model, GPT_BUFFER_CLASSIFIER))
        gpt_compute_loss(model, GPT_BUFFER_CLASSIFIER, layer, 1);
    gpt_begin_range("backward", layer); /* with what is recomputed for it */
    if (memo_session_backward_begin(model->session, layer))
        gpt_backward_slice(model, layer, slice, is_between);
    memo_session_backward_end(model->session, layer);
    gpt_end_range();
}

/* Callback of the session: recomputes rows of a tensor of a layer. */
static void gpt_recompute(void* user, memo_session* session, int32_t layer, int32_t tensor,
                          int64_t begin, int64_t end) {
    gpt_model* model = (gpt_model*)user;
    gpt_rows need[GPT_N_TENSORS];
    memset(need, 0, sizeof need);
    (void)gpt_open_slice(model, layer);
    need[tensor] = gpt_rows_make(model->open.begin + begin, model->open.begin + end);
    gpt_begin_range("recompute", layer);
    gpt_begin_phase(model, layer, "recompute");
    if (gpt_is_split(&model->config))
        gpt_compute_parts(model, layer, need);
    else
        gpt_compute(model, layer, need);
    gpt_end_range();
    memo_session_fail(session, model->status, model->error.message);
}

/* ---- a micro-batch ------------------------------------------------------------------------- */

static int32_t gpt_token_at(const gpt_model* model, const void* tokens, int64_t i) {
    return model->config.vocabulary ? ((const int32_t*)tokens)[i] : ((const uint8_t*)tokens)[i];
}

/* Where the documents of each sequence of this rank begin; those that it lacks are empty, at its
 * end. */
static void gpt_write_begins(gpt_model* model, int64_t* begins, const void* tokens) {
    const int64_t most = model->config.documents, length = model->config.sequence;
    int64_t i, n;
    for (int64_t s = 0; s < model->share.batch && most; s++, begins += most + 1) {
        const int64_t first = (model->share.data_rank * model->share.batch + s) * length;
        begins[0] = 0;
        for (i = 1, n = 1; i < length; i++) {
            if (gpt_token_at(model, tokens, first + i - 1) != model->config.separator) continue;
            if (n < most) begins[n] = i;
            n++;
        }
        if (n > most)
            model->status = gpt_invalid(&model->error,
                                        "gpt_config.documents (--documents): sequence %lld has "
                                        "%lld documents, more than %lld",
                                        (long long)s, (long long)n, (long long)most);
        for (; n <= most; n++) begins[n] = length;
    }
}

/* Micro-batches that go through each layer together. */
static int64_t gpt_n_group(const gpt_model* model) {
    return memo_session_get_slice(model->session).n_slices / model->n_slices;
}

/* Writes a micro-batch to the next place of the staging buffer.  If its group has no places, it
 * waits until the device has those before. */
static void gpt_stage(gpt_model* model, const void* tokens, const void* targets, int64_t step,
                      int64_t micro_batch, double loss_scale) {
    const int64_t n_group = gpt_n_group(model);
    if (micro_batch % n_group == 0 &&
        model->n_staged + n_group > gpt_n_places(model->n_micro_batches))
        gpt_synchronize(model);
    if (model->status) return;
    gpt_batch_values* values = gpt_staged(model, model->n_staged++);
    values->step = step;
    values->first_token = micro_batch * model->config.batch * model->config.sequence;
    values->loss_scale = loss_scale;
    int32_t* to = gpt_tokens_of(values);
    for (int64_t row = 0; row < model->n_rows; row++) {
        const int64_t i = gpt_token_of(&model->share, row);
        to[row] = i < 0 ? 0 : gpt_token_at(model, tokens, i); /* padding takes any token */
        to[model->n_rows + row] = i < 0 ? 0 : gpt_token_at(model, targets, i);
    }
    gpt_write_begins(model, gpt_begins_of(values, model->n_rows), tokens);
}

/* All updates on the host of the step before are over: this step's forward has waited for them. */
static void gpt_hand_update(gpt_model* model) {
    gpt_handed_update* to = model->handed;
    gpt_copy(model, MEMO_COPY_TO_HOST, &to->values, model->update, (int64_t)sizeof to->values);
    gpt_copy(model, MEMO_COPY_TO_HOST, &to->squares, &model->totals[GPT_TOTAL_SQUARES],
             (int64_t)sizeof to->squares);
}

/* What a fused update of the step reads, without a norm of it.  Updates of the step before, which
 * may have been deferred to the forward, are over. */
static void gpt_bring_update(gpt_model* model) {
    if (!model->fuses || !model->has_last) return;
    gpt_copy(model, MEMO_COPY_TO_DEVICE, model->update, model->host_update,
             (int64_t)sizeof *model->update);
    if (model->updates_on_host) gpt_hand_update(model);
}

/* Callback of the session: runs a group of micro-batches. */
static void gpt_step(void* user, memo_session* session) {
    gpt_model* model = (gpt_model*)user;
    const int64_t n_slices = memo_session_get_slice(session).n_slices;
    const int32_t n_layers = model->config.n_layers;
    gpt_enter_session(model, session);
    model->has_summed_bucket = 0;
    for (int32_t layer = 0; layer < n_layers; layer++)
        for (int64_t slice = 0; slice < n_slices; slice++) gpt_forward(model, layer, slice);
    gpt_bring_update(model);
    for (int32_t layer = n_layers - 1; layer >= 0; layer--)
        for (int64_t slice = n_slices - 1; slice >= 0; slice--) gpt_backward(model, layer, slice);
    gpt_leave_session(model);
}

/* The group that begins with this micro-batch, at a place of the staging buffer. */
static void gpt_enqueue_group(gpt_model* model, int64_t micro_batch, int64_t place) {
    memo_batch batch = MEMO_ZERO(memo_batch);
    if (model->status) return;
    model->group_begin = micro_batch;
    model->group_place = place;
    batch.more_follow = micro_batch + gpt_n_group(model) < model->n_micro_batches;
    model->has_last = !batch.more_follow;
    model->status = memo_session_run(model->session, &batch, &model->error);
    if (model->status) model->has_last = 0;
}

memo_status gpt_micro_batch(gpt_model* model, const void* tokens, const void* targets, int64_t step,
                            int64_t micro_batch, double loss_scale, memo_error* error) {
    if (model->is_graph &&
        (micro_batch != model->n_staged || micro_batch >= model->n_micro_batches))
        return gpt_invalid(error,
                           "gpt_micro_batch: %lld after %lld of gpt_desc.n_micro_batches %lld; "
                           "a graph's, in order, would work",
                           (long long)micro_batch, (long long)model->n_staged,
                           (long long)model->n_micro_batches);
    model->status = MEMO_STATUS_OK;
    gpt_stage(model, tokens, targets, step, micro_batch, loss_scale);
    const int64_t n_before = gpt_n_group(model) - 1; /* of a whole group */
    if (!model->is_graph && (micro_batch + 1) % (n_before + 1) == 0)
        gpt_enqueue_group(model, micro_batch - n_before, model->n_staged - 1 - n_before);
    return gpt_finish(model, error);
}

/* ---- the end of a step --------------------------------------------------------------------- */

static int64_t gpt_totals_bytes(const gpt_model* model) {
    return (GPT_TOTAL_LANES + GPT_LANES * gpt_n_parts(model)) * (int64_t)sizeof(double);
}

/* Copies the totals to the host, and clears them for the next step: but for the squares, which
 * deferred updates read in the next forward. */
static void gpt_end_step(gpt_model* model) {
    const int64_t lanes = GPT_TOTAL_LANES * (int64_t)sizeof(double);
    gpt_join_sums(model);
    gpt_copy(model, MEMO_COPY_TO_HOST, model->host_totals, model->totals,
             GPT_N_SUMMED * (int64_t)sizeof(double));
    gpt_clear(model, model->totals, GPT_TOTAL_SQUARES * (int64_t)sizeof(double));
    gpt_clear(model, model->totals + GPT_TOTAL_LANES, gpt_totals_bytes(model) - lanes);
}

static void gpt_enqueue_update(gpt_model* model) {
    snprintf(model->phase, sizeof model->phase, "update");
    gpt_copy(model, MEMO_COPY_TO_DEVICE, model->update, model->host_update,
             (int64_t)sizeof *model->update);
    gpt_join_sums(model);
    gpt_clear(model, &model->totals[GPT_TOTAL_SQUARES], (int64_t)sizeof(double));
    gpt_gradient_norm(model);
    gpt_reduce_totals(model);
    if (model->updates_on_host && !model->fuses) gpt_hand_update(model);
    GPT_TRY(model, memo_session_update(model->session, &model->error));
    gpt_end_step(model);
}

/* ---- a step as a graph ---- */

static void gpt_destroy_graph(gpt_model* model) {
    if (model->graph) model->kernels.graph_destroy(model->kernels.context, model->graph);
    model->graph = NULL;
}

static void gpt_enqueue_step(gpt_model* model) {
    for (int64_t m = 0; m < model->n_micro_batches; m += gpt_n_group(model))
        gpt_enqueue_group(model, m, m);
    gpt_enqueue_update(model);
}

/* A capture ends even after a failure; its graph is then incomplete.  The session could not abandon
 * the micro-batch inside the capture. */
static void gpt_capture_step(gpt_model* model) {
    const gpt_kernels* kernels = &model->kernels;
    model->status = kernels->graph_begin(kernels->context, model->compute, &model->error);
    if (model->status) return;
    gpt_enqueue_step(model);
    memo_status status = kernels->graph_end(kernels->context, model->compute, &model->graph,
                                            model->status ? NULL : &model->error);
    if (!model->status) model->status = status;
    if (!model->status) return;
    gpt_destroy_graph(model);
    const memo_session_info info = memo_session_get_info(model->session);
    if (info.swap) status = memo_swap_abandon(info.swap, NULL);
    (void)status; /* the first error is kept */
}

/* The first step takes calls, the second is captured. */
static void gpt_run_staged(gpt_model* model) {
    const gpt_kernels* kernels = &model->kernels;
    if (model->n_updates == model->first_update) {
        gpt_enqueue_step(model);
        return;
    }
    if (!model->graph) gpt_capture_step(model);
    GPT_TRY(model,
            kernels->graph_launch(kernels->context, model->compute, model->graph, &model->error));
}

memo_status gpt_use_graph(gpt_model* model, int is_graph, memo_error* error) {
    const char* why = !model->kernels.graph_begin ? "these kernels have no graphs"
                      : model->attention && model->config.documents
                          ? "documents over ring or Ulysses ranks change what ranks send"
                      : model->is_timing                        ? "the session times its steps"
                      : model->fuses                            ? "updates are fused"
                      : model->streams                          ? "states leave the device"
                      : model->defers                           ? "updates are deferred"
                      : model->n_micro_batches > GPT_STAGED_MAX ? "too many micro-batches"
                                                                : NULL;
    if (is_graph && why)
        return gpt_unsupported(error, "gpt_use_graph: %s; steps by calls would work", why);
    model->is_graph = is_graph;
    return MEMO_STATUS_OK;
}

/* ---- the update ---- */

/* clip as the kernels read it. */
static double gpt_clip_of(const gpt_model* model, double clip) {
    const double n_layers = (double)model->config.n_layers, norm = sqrt(model->squares_before);
    if (model->config.clip_by == GPT_CLIP_LAYER)
        return clip / sqrt(model->config.lora.rank ? n_layers : n_layers + 2);
    if (model->config.clip_by == GPT_CLIP_BEFORE) return clip > 0 && norm > clip ? clip / norm : 1;
    return clip;
}

void gpt_set_update(gpt_model* model, const gpt_update_values* desc) {
    *model->host_update = *desc; /* no step before is under way: each ends with a wait */
    model->host_update->adamw.update = model->n_updates + 1;
    model->host_update->clip = gpt_clip_of(model, desc->clip);
}

memo_status gpt_update(gpt_model* model, const gpt_update_values* desc, double* loss,
                       memo_error* error) {
    if (model->is_graph ? model->n_staged != model->n_micro_batches : !model->has_last)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "gpt_update: the last of %lld micro-batches (gpt_desc.n_micro_batches) comes first",
            (long long)model->n_micro_batches);
    model->has_last = 0;
    model->status = MEMO_STATUS_OK;
    gpt_set_update(model, desc);
    if (model->is_graph)
        gpt_run_staged(model);
    else
        gpt_enqueue_update(model);
    gpt_synchronize(model);
    if (!model->status) {
        model->n_updates++;
        model->squares_before = model->host_totals[GPT_TOTAL_SQUARES];
        *loss = model->host_totals[GPT_TOTAL_LOSS];
    }
    return gpt_finish(model, error);
}

int gpt_is_timing(const gpt_model* model) { return model->is_timing; }
double gpt_votes(const gpt_model* model) { return model->host_totals[GPT_TOTAL_VOTES]; }

memo_status gpt_digest_gradients(gpt_model* model, uint64_t* digest, memo_error* error) {
    enum { N_PIECE = 1 << 14 };
    const int64_t element = gpt_array_bytes(model, GPT_GRADIENTS, 1);
    uint32_t* words = (uint32_t*)malloc((size_t)(N_PIECE * element));
    *digest = 0;
    model->status =
        words ? gpt_wait(model, &model->error) : gpt_no_memory("a digest", &model->error);
    for (int64_t b = 0; b < gpt_n_buckets(&model->config) && !model->status; b++) {
        const gpt_rows part = gpt_updated_part(model, b);
        GPT_EACH_PIECE(piece, part, N_PIECE) {
            gpt_copy_array(model, 0, GPT_GRADIENTS, piece, words);
            for (int64_t i = 0; i < element * gpt_count(piece) / 4 && !model->status; i++)
                *digest += gpt_mix(words[i] + gpt_mix((uint64_t)(element * piece.begin / 4 + i)));
        }
    }
    free(words);
    return gpt_finish(model, error);
}

/* ---- create and destroy -------------------------------------------------------------------- */

/* Totals, values of the update, the same for the host, micro-batches. */
int64_t gpt_staging_bytes(const gpt_config* config, int64_t n_micro_batches) {
    return gpt_round_up(4 * GPT_VALUES_BYTES + gpt_places_bytes(config, n_micro_batches), 512);
}

/* Stream, events, pinned memory: resources that the session requires or does not manage. */
static void gpt_create_streams(gpt_model* model) {
    const memo_device* device = &model->device;
    const int64_t n_bytes = gpt_staging_bytes(&model->config, model->n_micro_batches);
    void* pinned;
    GPT_TRY(model, memo_stream_create(device, "compute", 0, &model->compute, &model->error));
    if (model->gradient || gpt_degree(model->config.tensor) > 1) {
        GPT_TRY(model, memo_stream_create(device, "gradients", 1, &model->sums, &model->error));
        GPT_TRY(model, memo_event_create_untimed(device, &model->computed, &model->error));
        GPT_TRY(model, memo_event_create_untimed(device, &model->summed, &model->error));
    }
    GPT_TRY(model, memo_host_alloc(device, n_bytes, &pinned, &model->error));
    if (model->status) return;
    model->host_totals = (double*)pinned;
    model->host_update = (gpt_update_values*)(void*)((char*)pinned + GPT_VALUES_BYTES);
    model->handed = (gpt_handed_update*)(void*)((char*)pinned + 2 * GPT_VALUES_BYTES);
    model->staging = (char*)pinned + 4 * GPT_VALUES_BYTES;
}

/* Attention over ranks, and the blocks. */
static void gpt_create_collectives(gpt_model* model) {
    if (gpt_is_over_ranks(model)) {
        const int64_t n = model->n_slices;
        model->attention = (memo_sp_attention**)calloc((size_t)n, sizeof *model->attention);
        model->exchanges =
            (memo_exchange**)calloc((size_t)gpt_n_exchanges(model), sizeof *model->exchanges);
        model->masks = (memo_mask*)calloc((size_t)model->share.batch, sizeof *model->masks);
        model->segments = (memo_segment*)calloc(
            (size_t)(model->share.batch * gpt_n_segments(&model->config)), sizeof(memo_segment));
        if (!model->attention || !model->exchanges || !model->masks || !model->segments)
            model->status = gpt_no_memory("attention over ranks", &model->error);
        for (int64_t slice = 0; slice < n && !model->status; slice++) {
            memo_sp_attention_desc sp = gpt_sp_desc(&model->config, &model->share, slice);
            sp.attention = model->kernels.attention;
            sp.device = &model->device;
            sp.stream = model->compute;
            sp.ring = model->mesh->ring;
            sp.ulysses = model->mesh->ulysses;
            /* Slices use it in turn. */
            sp.device_memory = gpt_buffer_address(model, GPT_BUFFER_SEQUENCE);
            model->status = memo_sp_attention_create(&sp, &model->attention[slice], &model->error);
        }
        if (!model->status && !model->config.documents) gpt_make_exchanges(model);
    }
    if (!model->status) gpt_create_blocks(model);
}

static void gpt_destroy_collectives(gpt_model* model) {
    gpt_destroy_blocks(model);
    for (int64_t i = 0; model->exchanges && i < gpt_n_exchanges(model); i++)
        memo_exchange_destroy(model->exchanges[i]);
    for (int64_t slice = 0; model->attention && slice < model->n_slices; slice++)
        memo_sp_attention_destroy(model->attention[slice]);
    free(model->masks);
    free(model->segments);
    free(model->exchanges);
    free(model->attention);
    model->masks = NULL;
    model->segments = NULL;
    model->exchanges = NULL;
    model->attention = NULL;
}

/* The numbers of this rank's tokens, through the staging buffer, which holds fewer at a time. */
static void gpt_initialize_numbers(gpt_model* model) {
    const int64_t n_bytes = gpt_places_bytes(&model->config, model->n_micro_batches);
    const int64_t most = n_bytes / (int64_t)sizeof(int64_t);
    int64_t* numbers = (int64_t*)(void*)model->staging;
    int64_t n;
    for (int64_t row = 0; row < model->n_rows && !model->status; row += n) {
        n = gpt_min(most, model->n_rows - row);
        for (int64_t i = 0; i < n; i++) numbers[i] = gpt_token_of(&model->share, row + i);
        gpt_copy(model, MEMO_COPY_TO_DEVICE, model->token_numbers + row, numbers,
                 n * (int64_t)sizeof *numbers);
        gpt_synchronize(model);
    }
}

static void gpt_initialize_parameter(gpt_model* model, int64_t index) {
    const gpt_parameter p = gpt_parameter_at(&model->config, index);
    gpt_op op = gpt_op_make(p.name, GPT_KIND_INITIAL);
    gpt_initial_args* a = &op.args.initial;
    a->n = p.n;
    a->n_columns = p.n_columns;
    a->stride = p.stride;
    a->offset = gpt_element_of_whole(&p, model->share.tensor_rank, 0);
    a->key = gpt_mix(model->config.seed) ^ (uint64_t)index;
    a->std = p.initial_std;
    a->mean = p.initial_mean;
    a->is_uniform = p.is_uniform;
    gpt_use(&op, GPT_WRITTEN, &a->to, gpt_weight(model, p.offset), model->config.type, p.n);
    gpt_launch(model, &op);
}

static void gpt_initialize_rope(gpt_model* model) {
    gpt_op op = gpt_op_make("angles of RoPE", GPT_KIND_ROPE_TABLE);
    gpt_rope_table_args* a = &op.args.rope_table;
    a->n_positions = model->share.layout.local_tokens;
    a->sequence = model->config.sequence;
    a->head_size = gpt_head_size(&model->config);
    a->law = model->config.rope;
    gpt_use_sums(model, &op, GPT_WRITTEN, &a->table, model->rope, a->n_positions * a->head_size);
    gpt_use(&op, GPT_READ, &a->token_numbers, model->token_numbers, MEMO_TYPE_I64, a->n_positions);
    gpt_launch(model, &op);
}

/* Callback of the session: the first values of a bucket. */
static void gpt_initialize_bucket(void* user, memo_session* session, int32_t layer) {
    gpt_model* model = (gpt_model*)user;
    const int64_t bucket = layer + 1;
    const gpt_rows part = gpt_updated_part(model, bucket);
    GPT_EACH_TENSOR(t, model, bucket) gpt_initialize_parameter(model, t);
    gpt_set_masters(model, bucket);
    const int last = model->config.states == MEMO_TYPE_U8 ? GPT_SCALES : GPT_MOMENTS2;
    for (int array = GPT_MOMENTS1; array <= last && gpt_count(part); array++)
        gpt_clear(model, gpt_address(model, array, part.begin),
                  gpt_array_bytes(model, array, gpt_count(part)));
    memo_session_fail(session, model->status, model->error.message);
}

/* What is not a state.  Values of an update that only measures have no effect. */
static void gpt_initialize(gpt_model* model) {
    static const gpt_update_values none = {{0, 0.9, 0.99, 1e-8, 0, 1}, 0, 0};
    snprintf(model->phase, sizeof model->phase, "initial values");
    gpt_clear(model, model->totals, gpt_totals_bytes(model));
    gpt_initialize_numbers(model);
    gpt_initialize_rope(model);
    *model->host_update = model->handed->values = none;
    model->handed->squares = 0;
    gpt_copy(model, MEMO_COPY_TO_DEVICE, model->update, model->host_update, (int64_t)sizeof none);
    gpt_synchronize(model);
}

/* The communicators must match the config. */
static memo_status gpt_check_mesh(const gpt_config* config, const memo_mesh* mesh,
                                  memo_error* error) {
    const memo_mesh_desc degrees = gpt_mesh_desc(config);
    if ((gpt_n_ranks(config) == 1 && !gpt_is_split(config)) ||
        (mesh && !memcmp(&mesh->degrees, &degrees, sizeof degrees)))
        return MEMO_STATUS_OK;
    return gpt_invalid(error,
                       "data %d x ring %d x ulysses %d x tensor %d ranks need a mesh of these "
                       "degrees",
                       degrees.data, degrees.ring, degrees.ulysses, degrees.tensor);
}

/* What depends on the rows of a slice. */
static void gpt_set_slice_rows(gpt_model* model, int64_t slice_rows) {
    model->config.slice_rows = slice_rows;
    model->share = gpt_share_make(&model->config, model->mesh);
    model->n_slices = gpt_n_slices(&model->config);
    model->slice_rows = gpt_slice_rows(&model->config);
    model->chunk_rows = gpt_chunk_rows(&model->config);
    model->loss_rows = gpt_loss_rows(&model->config);
    model->shares_keys = gpt_shares_keys(&model->config);
}

static void gpt_follow_plan(gpt_model* model, const memo_step_plan* plan) {
    const size_t n = (size_t)gpt_n_buckets(&model->config) * GPT_N_STATES;
    if (model->addresses) memset(model->addresses, 0, n * sizeof *model->addresses);
    model->fuses = plan->update_at == MEMO_UPDATE_FUSED;
    model->streams = plan->n_streamed > 0 || model->fuses;
    model->updates_on_host = plan->update_is_on_host;
    model->defers = plan->update_at == MEMO_UPDATE_DEFERRED;
}

/* The timed steps are over.  Dry runs have had sessions of their own. */
static void gpt_planned(void* user, memo_session* session, const memo_step_plan* plan) {
    gpt_model* model = (gpt_model*)user;
    model->session = session;
    model->is_timing = 0;
    gpt_follow_plan(model, plan);
}

/* ---- declared buffers ---- */

/* Takes the work memory of a pass, of the open slice. */
static void gpt_measure(gpt_model* model, gpt_buffer pass) {
    const gpt_array x = {NULL, model->open.begin, model->config.hidden, model->config.type, 0};
    const int is_split = gpt_is_split(&model->config);
    memset(&model->work, 0, sizeof model->work);
    if (pass == GPT_BUFFER_CLASSIFIER)
        gpt_classify(model, x);
    else if (is_split && (pass == GPT_BUFFER_BACKWARD || model->config.mlp_rows))
        gpt_measure_blocks(model);
    else if (!is_split && pass == GPT_BUFFER_FORWARD)
        gpt_forward_plain(model, 0, x);
    else if (!is_split)
        gpt_backward_plain(model, 0, x);
}

/* Bytes of work memory, of the slice that takes most: the functions of a step take their arrays, and
 * enqueue nothing. */
static void gpt_measure_work(gpt_model* model, int64_t n_bytes[GPT_N_BUFFERS]) {
    gpt_place_keys(model, NULL);
    model->measures = 1;
    for (int64_t slice = 0; slice < model->n_slices; slice++)
        for (int pass = GPT_BUFFER_FORWARD; pass <= GPT_BUFFER_BACKWARD; pass++) {
            model->open = gpt_slice_at(&model->config, slice);
            gpt_measure(model, (gpt_buffer)pass);
            if (model->work.most > n_bytes[pass]) n_bytes[pass] = model->work.most;
        }
    model->measures = 0;
}

/* is_grouped: micro-batches may go through the layers together. */
static void gpt_fill_bytes(gpt_model* model, int is_grouped, int64_t n_bytes[GPT_N_BUFFERS]) {
    const gpt_config* config = &model->config;
    const gpt_shapes shapes = gpt_shapes_make(config);
    const int64_t n_angles = model->share.layout.local_tokens * gpt_head_size(config);
    const int is_frozen = config->is_tied && config->lora.rank;
    memset(n_bytes, 0, GPT_N_BUFFERS * sizeof *n_bytes);
    n_bytes[GPT_BUFFER_ROPE] = gpt_sum_bytes(model, n_angles);
    n_bytes[GPT_BUFFER_NUMBERS] = model->n_rows * (int64_t)sizeof *model->token_numbers;
    n_bytes[GPT_BUFFER_LOSSES] = model->n_rows * (int64_t)sizeof *model->losses;
    n_bytes[GPT_BUFFER_TOTALS] = gpt_totals_bytes(model);
    n_bytes[GPT_BUFFER_UPDATE] = GPT_VALUES_BYTES;
    n_bytes[GPT_BUFFER_TABLE] = is_frozen ? gpt_n_bytes(model, gpt_table_elements(model)) : 0;
    if (model->kernels.scratch_bytes)
        n_bytes[GPT_BUFFER_SCRATCH] = model->kernels.scratch_bytes(model->kernels.context, &shapes);
    n_bytes[GPT_BUFFER_PARTIAL] = gpt_partial_bytes(model);
    n_bytes[GPT_BUFFER_SEQUENCE] = gpt_sp_bytes(model);
    n_bytes[GPT_BUFFER_ADAPTER] = gpt_lora_bytes(model);
    n_bytes[GPT_BUFFER_BATCH] = gpt_batch_bytes(config);
    if (model->shares_keys) n_bytes[GPT_BUFFER_KEYS] = 2 * gpt_keys_bytes(model);
    for (int i = GPT_BUFFER_BUCKET; i <= GPT_BUFFER_THIRD_BUCKET; i++)
        n_bytes[i] = gpt_bucket_bytes(model, (gpt_buffer)i);
    gpt_measure_work(model, n_bytes);

    /* Slices compute the loss in the backward.  So does each micro-batch where there may be groups:
     * a buffer between the passes would have a part for each. */
    int64_t* backward = &n_bytes[GPT_BUFFER_BACKWARD];
    if (model->n_slices == 1 && !is_grouped) return;
    if (*backward < n_bytes[GPT_BUFFER_CLASSIFIER]) *backward = n_bytes[GPT_BUFFER_CLASSIFIER];
    n_bytes[GPT_BUFFER_CLASSIFIER] = 0;
}

/* When each buffer lives. */
static const memo_session_buffer gpt_buffers[] = {
    {"angles of RoPE", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"numbers of tokens", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"losses", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"totals", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"update", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"tied table", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"scratch of kernels", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"partial sums", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"attention over ranks", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"adapters", 0, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"micro-batch", 0, 0, MEMO_PASS_FORWARD, 0, MEMO_PASS_BACKWARD, 0, 0},
    {"forward", 0, 0, MEMO_PASS_FORWARD, MEMO_EACH_SLICE, MEMO_PASS_FORWARD, 0, 0},
    {"classifier", 0, 0, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BETWEEN, 0, 0},
    {"backward", 0, 0, MEMO_PASS_BACKWARD, MEMO_EACH_SLICE, MEMO_PASS_BACKWARD, 0, 0},
    {"gradients of keys", 0, 0, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
    {"bucket", 0, 0, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BACKWARD, 0, 0},
    {"bucket", 0, 0, MEMO_PASS_BACKWARD, 0, MEMO_PASS_BACKWARD, 0, 0},
    {"bucket", 0, 0, MEMO_PASS_BACKWARD, 0, MEMO_PASS_BACKWARD, 0, 0}};
MEMOB_TABLE_OF(GPT_N_BUFFERS, gpt_buffers);

/* The table of buffers for the session.  A buffer that lives across layers has a part for each
 * micro-batch of a group, but all use the same buckets, which then live as long as the session. */
static void gpt_fill_buffers(gpt_model* model, const memo_session_desc* s) {
    const int is_grouped = s->n_group != 0 && s->n_group != 1 && s->micro_batches > 1;
    int64_t n_bytes[GPT_N_BUFFERS];
    gpt_fill_bytes(model, is_grouped, n_bytes);
    model->n_buffers = 0;
    for (int i = 0; i < GPT_N_BUFFERS; i++) {
        memo_session_buffer* buffer = &model->buffers[model->n_buffers];
        const int is_bucket = i >= GPT_BUFFER_BUCKET;
        model->buffer_at[i] = n_bytes[i] ? model->n_buffers++ : -1;
        if (!n_bytes[i]) continue;
        *buffer = gpt_buffers[i];
        buffer->size_bytes = n_bytes[i];
        if (i == GPT_BUFFER_OTHER_BUCKET) buffer->first_layer = model->config.n_layers - 1;
        if (is_bucket && is_grouped) buffer->first = MEMO_PASS_SESSION;
    }
}

/* The session is open: its memory of all steps, and what works there. */
static void gpt_use_session(gpt_model* model) {
    const memo_session_info info = memo_session_get_info(model->session);
    const gpt_shapes shapes = gpt_shapes_make(&model->config);
    model->addresses = (void**)calloc((size_t)gpt_n_buckets(&model->config) * GPT_N_STATES,
                                      sizeof *model->addresses);
    if (!model->addresses) model->status = gpt_no_memory("a model", &model->error);
    gpt_follow_plan(model, info.plan);
    model->rope = gpt_buffer_address(model, GPT_BUFFER_ROPE);
    model->token_numbers = (int64_t*)(void*)gpt_buffer_address(model, GPT_BUFFER_NUMBERS);
    model->losses = (double*)(void*)gpt_buffer_address(model, GPT_BUFFER_LOSSES);
    model->totals = (double*)(void*)gpt_buffer_address(model, GPT_BUFFER_TOTALS);
    model->update = (gpt_update_values*)(void*)gpt_buffer_address(model, GPT_BUFFER_UPDATE);
    GPT_TRY(model,
            model->kernels.prepare(model->kernels.context, &shapes, model->compute,
                                   gpt_buffer_address(model, GPT_BUFFER_SCRATCH), &model->error));
    if (!model->status) {
        gpt_create_collectives(model);
        /* Other ranks' streams may already wait for this rank there. */
        if (model->status && model->mesh) memo_comm_abort(model->mesh->world);
    }
    if (!model->status) gpt_initialize(model);
    if (!model->status && model->config.lora.rank && model->config.is_tied)
        model->status = gpt_load_table(model, &model->error);
}

static memo_status gpt_agree(void* user, int64_t* values, int64_t n, memo_error* error) {
    const gpt_model* model = (const gpt_model*)user;
    return model->agree(model->agree_user, values, n, error);
}

/* All ranks fail if one does. */
static memo_status gpt_agree_status(gpt_model* model, memo_error* error) {
    int64_t worst = model->status;
    if (model->agree) GPT_TRY(model, model->agree(model->agree_user, &worst, 1, &model->error));
    if (worst && !model->status)
        model->status = memo_error_set(&model->error, (memo_status)worst, "another rank failed");
    return gpt_finish(model, error);
}

static uint32_t gpt_state_uses(const gpt_model* model, int array, int place) {
    const int makes = gpt_has_masters(&model->config) && !model->zero; /* all weights of a layer */
    uint32_t uses = MEMO_STATE_UPDATE;
    if (array == GPT_WEIGHTS) uses = MEMO_STATE_WEIGHTS;
    if (array == GPT_WEIGHTS && makes) uses |= MEMO_STATE_MADE;
    if (array == GPT_GRADIENTS) uses = MEMO_STATE_GRADIENT;
    if (array == GPT_FROZEN) uses = MEMO_STATE_FORWARD | MEMO_STATE_FETCHED;
    /* No backward reads a table that has no gradient. */
    if (array == GPT_FROZEN && place > 0) uses |= MEMO_STATE_BACKWARD;
    return uses;
}

/* The table of states for the session. */
static void gpt_fill_states(const gpt_model* model, memo_state states[GPT_N_STATES]) {
    static const char* const names[] = {"embedding",          "weights",  "classifier",
                                        "embedding.masters",  "masters",  "classifier.masters",
                                        "embedding.gradient", "gradient", "classifier.gradient",
                                        "embedding.moment1",  "moment1",  "classifier.moment1",
                                        "embedding.moment2",  "moment2",  "classifier.moment2",
                                        "embedding.scales",   "scales",   "classifier.scales",
                                        "embedding.frozen",   "frozen",   "classifier.frozen"};
    MEMOB_TABLE_OF(GPT_N_STATES, names);
    static const uint32_t kinds[] = {MEMO_STATE_FIRST, 1, MEMO_STATE_LAST};
    const int64_t buckets[] = {0, 1, gpt_n_buckets(&model->config) - 1};
    MEMOB_TABLE_OF(GPT_N_PLACES, kinds);
    MEMOB_TABLE_OF(GPT_N_PLACES, buckets);
    for (int s = 0; s < GPT_N_STATES; s++) {
        const int array = s / GPT_N_PLACES, place = s % GPT_N_PLACES;
        const int64_t n = gpt_count(gpt_bucket_rows(model, array, buckets[place]));
        const int is_absent = (array == GPT_MASTERS && !gpt_has_masters(&model->config)) ||
                              (array == GPT_SCALES && model->config.states != MEMO_TYPE_U8) ||
                              (array == GPT_FROZEN && !model->config.lora.rank) ||
                              gpt_is_in_table(model, array, buckets[place]);
        states[s].name = names[s];
        states[s].size_bytes = is_absent ? 0 : gpt_array_bytes(model, array, n);
        states[s].uses = gpt_state_uses(model, array, place);
        states[s].kinds = kinds[place];
    }
    if (!gpt_trains_tied(&model->config)) return;

    memo_state* const table = &states[GPT_N_PLACES * GPT_WEIGHTS];
    table->uses |= MEMO_STATE_SHARED;
    table->kinds = MEMO_STATE_FIRST | MEMO_STATE_LAST;
    memo_state* const gradient = &states[GPT_TIED_GRADIENT];
    gradient->name = "classifier.table.gradient";
    gradient->size_bytes = gpt_sum_bytes(model, gpt_table_elements(model));
    gradient->uses = MEMO_STATE_GRADIENT | MEMO_STATE_SHARED;
    gradient->kinds = MEMO_STATE_FIRST | MEMO_STATE_LAST;
}

/* The caller's budgets, and the model. */
static memo_session_desc gpt_session_desc(gpt_model* model, const gpt_desc* desc) {
    memo_session_desc s = desc->session ? *desc->session : MEMO_ZERO(memo_session_desc);
    memo_item* tensors = model->tensors;
    gpt_fill_tensors(&desc->config, tensors);
    for (int t = 0; t < GPT_N_TENSORS; t++)
        model->columns[t] =
            tensors[t].row_bytes / memo_type_bytes(gpt_tensor_type(&desc->config, t));
    model->agree = s.agree;
    model->agree_user = s.user;

    s.device = model->compute ? &model->device : NULL;
    s.compute_stream = model->compute;
    gpt_fill_states(model, model->states);
    s.states = model->states;
    /* The frozen ones are last. */
    s.n_states = GPT_N_PLACES * GPT_FROZEN + gpt_trains_tied(&desc->config);
    if (desc->config.lora.rank) s.n_states = GPT_N_STATES;
    s.fetch = desc->config.lora.rank ? gpt_fetch_weights : NULL;
    s.update = gpt_update_bucket;
    if (model->kernels.update_on_host && !model->zero && desc->config.clip_by != GPT_CLIP_LAYER &&
        !gpt_trains_tied(&desc->config))
        s.update_host = gpt_update_bucket_on_host;
    s.tensors = tensors;
    s.n_tensors = gpt_n_tensors(&desc->config);
    s.n_layers = desc->config.n_layers;
    s.n_rows = model->n_rows;
    s.tile_rows = desc->config.tile_rows;
    s.slice_rows = gpt_slice_rows(&desc->config);
    if (desc->rows) s.policy = MEMO_POLICY_ROWS;
    s.rows = desc->rows;
    s.user = model;
    s.step = gpt_step;
    s.recompute = gpt_recompute;
    s.planned = gpt_planned;
    if (gpt_is_split(&desc->config)) s.n_group = 0; /* memo_blocks runs all layers at once */
    gpt_fill_buffers(model, &s);
    s.buffers = model->buffers;
    s.n_buffers = model->n_buffers;
    if (s.agree) s.agree = gpt_agree;
    return s;
}

static memo_status gpt_model_make(const gpt_desc* desc, gpt_model** result, memo_error* error) {
    memo_status status = gpt_check_config(&desc->config, error);
    *result = NULL;
    if (status) return status;
    gpt_model* model = (gpt_model*)calloc(1, sizeof *model);
    if (!model) return gpt_no_memory("a model", error);
    model->config = desc->config;
    model->mesh = desc->mesh;
    const gpt_config base = gpt_base_config(&desc->config);
    model->layout = gpt_layout_make(&desc->config);
    model->base = gpt_layout_make(&base);
    model->frozen = desc->frozen;
    gpt_set_slice_rows(model, desc->config.slice_rows);
    model->zero = model->share.n_ranks > 1 ? desc->config.zero : 0;
    model->n_rows = model->share.n_rows;
    model->n_micro_batches = desc->n_micro_batches ? desc->n_micro_batches : 1;
    if (desc->kernels) model->kernels = *desc->kernels;
    *result = model;
    return MEMO_STATUS_OK;
}

memo_status gpt_restart(gpt_model* model, memo_error* error) {
    model->status = MEMO_STATUS_OK;
    snprintf(model->phase, sizeof model->phase, "initial values");
    gpt_join_sums(model);
    gpt_clear(model, model->totals, gpt_totals_bytes(model));
    GPT_TRY(model, memo_session_fill_states(model->session, gpt_initialize_bucket, &model->error));
    gpt_synchronize(model);
    model->n_updates = model->first_update = 0;
    model->squares_before = 0;
    return gpt_finish(model, error);
}

memo_status gpt_create(const gpt_desc* desc, gpt_model** result, memo_error* error) {
    memo_session_desc s;
    gpt_model* model;
    memo_session* session = NULL;
    memo_status status = gpt_model_make(desc, &model, error);
    if (!status && (!desc->kernels || !desc->device))
        status = gpt_invalid(error, "gpt_desc.kernels, device: must be set; gpt_plan needs none");
    if (!status && desc->config.lora.rank && !desc->frozen)
        status = gpt_invalid(error, "gpt_desc.frozen: NULL; adapters need the weights of a model");
    if (!status) status = gpt_check_mesh(&desc->config, desc->mesh, error);
    if (!status) {
        model->device = *desc->device;
        if (model->share.n_ranks > 1) model->gradient = desc->mesh->gradient;
        gpt_create_streams(model);
        status = gpt_finish(model, error);
    }

    /* The session, and what works in its memory. */
    if (!status) {
        s = gpt_session_desc(model, desc);
        status = desc->plan ? memo_session_open(&s, desc->plan, &session, error)
                            : memo_session_create(&s, &session, error);
        model->session = session; /* NULL after a failure, even if step has set it */
        model->is_timing = !desc->plan && s.timed_steps > 0;
    }
    if (!status) {
        gpt_use_session(model);
        status = gpt_agree_status(model, error);
    }

    if (!status) status = gpt_restart(model, error);
    *result = status ? NULL : model;
    if (status) gpt_destroy(model);
    return status;
}

void gpt_destroy(gpt_model* model) {
    if (!model) return;
    const memo_device* device = &model->device;
    /* Destroys in the reverse order of creation; objects that were not created are NULL. */
    if (model->compute) (void)gpt_wait(model, NULL);
    gpt_destroy_graph(model);
    gpt_destroy_collectives(model);
    memo_session_destroy(model->session);
    if (model->host_totals) memo_host_free(device, model->host_totals, NULL);
    if (model->summed) memo_event_destroy(device, model->summed, NULL);
    if (model->computed) memo_event_destroy(device, model->computed, NULL);
    if (model->sums) memo_stream_destroy(device, model->sums, NULL);
    if (model->compute) memo_stream_destroy(device, model->compute, NULL);
    free(model->addresses);
    free(model);
}

static memo_status gpt_plan_slices(const gpt_desc* desc, const memo_profile* profile,
                                   memo_step_plan** plan, memo_error* error) {
    gpt_desc dry = *desc;
    gpt_model* model;
    dry.mesh = NULL;
    *plan = NULL;
    memo_status status = gpt_model_make(&dry, &model, error);
    if (status) return status;
    memo_session_desc s = gpt_session_desc(model, &dry);
    status = memo_session_plan(&s, profile, plan, error);
    model->session = NULL;
    gpt_destroy(model);
    return status;
}

/* Bytes of the device if it is too small, otherwise of the host. */
static double gpt_lack(const memo_step_plan* plan) {
    const int64_t limit_bytes = plan->device_budget_bytes;
    if (plan->fits) return 0;
    return limit_bytes && plan->device_bytes > limit_bytes ? 1e20 * (double)plan->device_bytes
                                                           : (double)plan->host_bytes;
}

/* In 1, 2, 4, ... slices until it fits. */
memo_status gpt_plan(const gpt_desc* desc, const memo_profile* profile, memo_step_plan** plan,
                     memo_error* error) {
    const gpt_config* config = &desc->config;
    const int64_t most = config->slice_rows ? 0 : desc->most_slices;
    gpt_desc own = *desc;
    memo_status status = gpt_plan_slices(desc, profile, plan, error);
    for (int64_t n = 2; !status && n <= most && !(*plan)->fits; n *= 2) {
        const int64_t larger = own.config.slice_rows;
        memo_step_plan* trial;
        own.config.slice_rows = gpt_cut_slices(config, gpt_n_rows(config), n);
        if (!own.config.slice_rows || own.config.slice_rows == larger) break;
        status = gpt_plan_slices(&own, profile, &trial, error);
        const int is_better = !status && gpt_lack(trial) < 0.999 * gpt_lack(*plan);
        memo_step_plan_destroy(is_better ? *plan : trial);
        if (is_better) *plan = trial;
    }
    if (!status) return status;
    memo_step_plan_destroy(*plan);
    *plan = NULL;
    return status;
}

memo_session* gpt_session(gpt_model* model) { return model->session; }

int64_t gpt_tensor_bytes(const gpt_model* model) {
    const gpt_tensor_state* t = &model->tensor;
    int64_t n_bytes = t->ranks ? t->ranks->sent_bytes : 0;
    if (t->norms) n_bytes += t->norms->sent_bytes;
    for (int a = 0; a < GPT_MAX_LEVELS; a++)
        for (int b = 0; b < GPT_MAX_LEVELS; b++) {
            const degree_comms* pair = &t->pairs[a][b];
            if (pair->tensor) n_bytes += pair->tensor->sent_bytes + pair->data->sent_bytes;
            if (pair->across) n_bytes += pair->across->sent_bytes;
        }
    return n_bytes;
}
