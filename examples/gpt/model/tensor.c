#include "gpt/model/tensor.h"

#include "gpt/model/layer.h"
#include "gpt/model/parallel.h"

/* ---- parts ---- */

/* With slices memo_blocks runs one layer of one slice at a time, otherwise all layers. */
static int32_t gpt_n_blocks(const gpt_model* model) {
    return 2 * (model->n_slices > 1 ? 1 : model->config.n_layers);
}
/* The layer's number among those that memo_blocks runs. */
static int32_t gpt_blocks_layer(const gpt_model* model, int32_t layer) {
    return model->n_slices > 1 ? 0 : layer;
}

/* Returns the degree of a block.  Before the first block and after the last one, all ranks have all
 * rows. */
static int32_t gpt_degree_at(const gpt_model* model, int32_t block) {
    return block < 0 || block >= 2 * model->config.n_layers
               ? gpt_degree(model->config.tensor)
               : gpt_block_degree(&model->config, block);
}

/* Begins the work of a block's part and returns its rows.  Its operations take its name, and its
 * arrays the memory of the block before. */
static gpt_rows gpt_begin_block(gpt_model* model, const memo_block_call* call, const char* phase) {
    const int32_t block = model->tensor.first_block + call->block;
    const gpt_rows part = gpt_part_rows(model, call->part);
    const gpt_rows rows = gpt_group_rows(model, part, gpt_degree_at(model, block));
    gpt_tensor_state* t = &model->tensor;
    snprintf(model->phase, sizeof model->phase, "%s %d%c", phase, (int)block / 2,
             'a' + (int)call->part % 26);
    t->is_in_block = 1;
    t->direction = 0;
    t->block = block;
    t->part = call->part;
    model->work.used[0] = model->work.used[1] = 0;
    t->sum_begin = (rows.begin - part.begin) * model->config.hidden;
    t->sum_end = (rows.end - part.begin) * model->config.hidden;
    return rows;
}

static memo_status gpt_end_block(gpt_model* model, memo_error* error) {
    model->tensor.is_in_block = 0;
    model->pass = GPT_PASS_BOTH;
    return gpt_finish(model, error);
}

/* ---- the residual stream and its gradient ---- */

/* Adds the output of a block to x. */
static void gpt_add_output(gpt_model* model, int32_t block, gpt_rows rows) {
    const gpt_tensor_state* t = &model->tensor;
    gpt_drop_elements(model, t->x, t->x, &t->partial, block / 2,
                      block % 2 ? GPT_SITE_MLP : GPT_SITE_PROJECTION, rows);
}

/* dx += g, the sum of the gradient from the block above. */
static void gpt_add_gradient(gpt_model* model, gpt_rows rows) {
    const gpt_tensor_state* t = &model->tensor;
    gpt_add(model, gpt_at(t->dx, rows.begin), t->dx.type, gpt_at(t->gradient, rows.begin),
            t->gradient.type, gpt_count(rows) * model->config.hidden);
}

/* ---- sums over tensor ranks ---- */

/* Gathers slices of the stream, or of its gradient, for the larger degree that comes next.  This
 * rank first adds the sum of its block to its slice. */
static void gpt_gather_slices(gpt_model* model, int32_t degree, int32_t next) {
    const gpt_tensor_state* t = &model->tensor;
    const gpt_rows part = gpt_part_rows(model, t->part);
    const gpt_rows from = gpt_group_rows(model, part, degree),
                   to = gpt_group_rows(model, part, next);
    const gpt_array x = t->direction > 0 ? t->x : t->dx;
    memo_comm* across = gpt_pair(model, degree, next)->across;
    if (t->direction > 0)
        gpt_add_output(model, t->block, from);
    else
        gpt_add_gradient(model, from);
    gpt_all_gather(model, across, "gather rows", gpt_at(x, from.begin), gpt_at(x, to.begin),
                   gpt_count(from) * model->config.hidden);
}

/* The collective of the block that was called last.  memo_blocks calls it right after the block. */
static memo_status gpt_sum_partial(memo_comm* comm, memo_stream stream,
                                   const memo_collective_call* call, memo_error* error) {
    gpt_model* model = (gpt_model*)comm->context;
    const gpt_tensor_state* t = &model->tensor;
    const int64_t n = t->sum_end - t->sum_begin;
    const int32_t degree = gpt_degree_at(model, t->block);
    const int32_t next = t->direction ? gpt_degree_at(model, t->block + t->direction) : 0;
    const int32_t all = gpt_degree(model->config.tensor);
    memo_comm* ranks = degree == all ? t->ranks : gpt_pair(model, degree, all)->tensor;
    const memo_stream compute = model->compute;
    char* sum = (char*)call->to + gpt_n_bytes(model, t->sum_begin);
    if (n == 0) return MEMO_STATUS_OK;
    model->compute = stream; /* where the sum is */
    if (ranks->size > 1)     /* not sub-batches alone, nor a block of one rank */
        gpt_all_reduce(model, ranks, "sum over ranks", sum, n, call->type);
    if (next > degree) gpt_gather_slices(model, degree, next);
    model->compute = compute;
    return gpt_finish(model, error);
}

/* ---- forward ---- */

/* The residual stream adds the output of the previous block; a layer keeps what its backward
 * needs. */
static void gpt_enter_block(gpt_model* model, const memo_block_call* call, gpt_rows rows) {
    const gpt_tensor_state* t = &model->tensor;
    const int32_t block = t->block;
    if (call->block > 0 && gpt_degree_at(model, block - 1) >= gpt_degree_at(model, block))
        gpt_add_output(model, block - 1, rows); /* otherwise it is gathered with the output */
    gpt_copy_rows(model, gpt_tensor(model, block / 2, block % 2 ? GPT_MIDDLE : GPT_INPUT), t->x,
                  rows);
}

static memo_status gpt_block_forward(void* context, const memo_block_call* call,
                                     memo_error* error) {
    gpt_model* model = (gpt_model*)context;
    const gpt_rows rows = gpt_begin_block(model, call, "forward");
    const int32_t layer = model->tensor.block / 2;
    gpt_rows need[GPT_N_TENSORS];
    memset(need, 0, sizeof need);
    for (int i = 0; i < gpt_n_tensors(&model->config); i++) need[i] = rows;
    gpt_enter_block(model, call, rows);
    model->tensor.direction = 1;
    if (call->block % 2 == 0) {
        gpt_compute_attention(model, layer, need, rows, model->tensor.partial);
        return gpt_end_block(model, error);
    }

    gpt_compute_mlp(model, layer, need);
    GPT_EACH_PIECE(chunk, rows, gpt_mlp_rows(model)) {
        gpt_begin_chunk(model, layer, chunk);
        gpt_linear(model, layer, GPT_W_DOWN, model->tensor.partial,
                   gpt_tensor(model, layer, GPT_ACTIVATED), chunk);
        gpt_end_chunk(model);
    }
    return gpt_end_block(model, error);
}

static memo_status gpt_block_forward_end(void* context, const memo_block_call* call,
                                         memo_error* error) {
    gpt_model* model = (gpt_model*)context;
    const gpt_rows rows = gpt_begin_block(model, call, "forward");
    const int32_t block = model->tensor.block;
    if (gpt_degree_at(model, block) == gpt_degree(model->config.tensor)) /* else gathered */
        gpt_add_output(model, block, rows);
    return gpt_end_block(model, error);
}

/* ---- recomputation ---- */

static memo_status gpt_block_recompute(void* context, const memo_block_call* call,
                                       memo_error* error) {
    gpt_model* model = (gpt_model*)context;
    const gpt_rows rows = gpt_begin_block(model, call, "recompute");
    const int32_t layer = model->tensor.block / 2;
    gpt_tensor_state* t = &model->tensor;
    gpt_rows need[GPT_N_TENSORS];
    for (int i = 0; i < GPT_N_TENSORS; i++) need[i] = gpt_rows_in(t->need[i], rows);
    t->sum_end = t->sum_begin; /* no operation reads the output of the MLP */
    if (call->block % 2 == 0) {
        const int64_t begin = gpt_part_rows(model, call->part).begin;
        t->sum_begin = (need[GPT_MIDDLE].begin - begin) * model->config.hidden;
        t->sum_end = (need[GPT_MIDDLE].end - begin) * model->config.hidden;
        gpt_compute_attention(model, layer, need, rows, t->partial);
    } else {
        gpt_compute_middle(model, layer, t->partial, need);
    }
    return gpt_end_block(model, error);
}

/* ---- backward ---- */

static void gpt_backward_block(gpt_model* model, const memo_block_call* call, gpt_rows rows) {
    const gpt_tensor_state* t = &model->tensor;
    const int32_t layer = t->block / 2;
    if (call->block % 2 == 0) {
        gpt_backward_attention(model, layer, t->gradient, t->dx, rows);
        return;
    }
    GPT_EACH_PIECE(chunk, rows, gpt_mlp_rows(model)) {
        gpt_begin_chunk(model, layer, chunk);
        gpt_backward_mlp(model, layer, t->gradient, t->dx, chunk);
        gpt_end_chunk(model);
    }
}

/* The next chunk takes the memory of a chunk, so its weights cannot wait for the pass of
 * weights. */
static int gpt_is_in_chunks(const gpt_model* model, const memo_block_call* call) {
    return model->config.mlp_rows && call->block % 2;
}

static memo_status gpt_block_backward(void* context, const memo_block_call* call,
                                      memo_error* error) {
    gpt_model* model = (gpt_model*)context;
    const gpt_rows rows = gpt_begin_block(model, call, "backward");
    model->tensor.direction = -1;
    if (call->block < gpt_n_blocks(model) - 1 &&
        gpt_degree_at(model, model->tensor.block + 1) >= gpt_degree_at(model, model->tensor.block))
        gpt_add_gradient(model, rows); /* otherwise it is gathered with the gradient */
    gpt_clear(model, gpt_at(model->tensor.gradient, rows.begin),
              gpt_bytes(model->tensor.gradient, rows));
    model->pass = gpt_is_in_chunks(model, call) ? GPT_PASS_BOTH : GPT_PASS_INPUTS;
    gpt_backward_block(model, call, rows);
    return gpt_end_block(model, error);
}

/* For the part whose inputs' gradients were computed last: the same arrays have the same
 * addresses. */
static memo_status gpt_block_weights(void* context, const memo_block_call* call,
                                     memo_error* error) {
    gpt_model* model = (gpt_model*)context;
    const gpt_rows rows = gpt_begin_block(model, call, "weights");
    model->pass = GPT_PASS_WEIGHTS;
    if (!gpt_is_in_chunks(model, call)) gpt_backward_block(model, call, rows);
    return gpt_end_block(model, error);
}

static memo_status gpt_block_backward_end(void* context, const memo_block_call* call,
                                          memo_error* error) {
    gpt_model* model = (gpt_model*)context;
    const gpt_rows rows = gpt_begin_block(model, call, "backward");
    if (gpt_degree_at(model, 0) == gpt_degree(model->config.tensor)) /* else gathered */
        gpt_add_gradient(model, rows);
    return gpt_end_block(model, error);
}

/* ---- a layer ---- */

void gpt_measure_blocks(gpt_model* model) {
    const int32_t n_layers = gpt_is_mixed(&model->config) ? model->config.n_layers : 1;
    memo_block_call call = MEMO_ZERO(memo_block_call);
    for (call.block = 0; call.block < 2 * n_layers; call.block++)
        for (call.part = 0; call.part < gpt_degree(model->config.sub_batches); call.part++) {
            const gpt_rows rows = gpt_begin_block(model, &call, "backward");
            gpt_backward_block(model, &call, rows);
            (void)gpt_end_block(model, NULL);
        }
}

/* The buffers of sums hold the open slice. */
static void gpt_place_blocks(gpt_model* model, int32_t layer) {
    gpt_tensor_state* t = &model->tensor;
    t->first_block = 2 * (layer - gpt_blocks_layer(model, layer));
    t->partial.begin = t->gradient.begin = model->open.begin;
}

void gpt_forward_blocks(gpt_model* model, int32_t layer, gpt_array x) {
    model->tensor.x = x;
    gpt_place_blocks(model, layer);
    GPT_DO(model, memo_blocks_forward(model->tensor.blocks, gpt_blocks_layer(model, layer),
                                      &model->error));
}

/* The rows that the engine did not restore. */
static void gpt_find_need(gpt_model* model, int32_t layer) {
    /* The swap engine's number of the open slice. */
    const int32_t step = layer * memo_session_get_slice(model->session).n_slices +
                         (int32_t)(model->open.begin / model->slice_rows);
    gpt_rows* need = model->tensor.need;
    memset(need, 0, sizeof model->tensor.need);
    const memo_session_info info = memo_session_get_info(model->session);
    for (int t = 0; t < gpt_n_tensors(&model->config); t++) {
        memo_swap_get_recompute_rows(info.swap, step, t, &need[t].begin, &need[t].end);
        need[t].begin += model->open.begin;
        need[t].end += model->open.begin;
    }
}

void gpt_backward_blocks(gpt_model* model, int32_t layer, gpt_array dx) {
    gpt_tensor_state* t = &model->tensor;
    t->dx = dx;
    gpt_place_blocks(model, layer);
    gpt_find_need(model, layer);
    GPT_DO(model, memo_blocks_backward(t->blocks, gpt_blocks_layer(model, layer), &model->error));
}

/* The sum over ranks of recomputed rows, outside memo_blocks.  The norms' communicator is free once
 * the stream of sums has been joined, which waits for this one before its next use. */
static void gpt_sum_middle(gpt_model* model, gpt_rows rows) {
    const gpt_tensor_state* t = &model->tensor;
    if (!gpt_count(rows) || !t->norms) return;
    gpt_join_sums(model);
    gpt_all_reduce(model, t->norms, "sum over ranks", gpt_at(t->partial, rows.begin),
                   gpt_count(rows) * model->config.hidden, model->config.type);
}

void gpt_compute_parts(gpt_model* model, int32_t layer, const gpt_rows whole[GPT_N_TENSORS]) {
    gpt_tensor_state* t = &model->tensor;
    gpt_place_blocks(model, layer); /* another slice was open before */
    for (int32_t s = 0; s < t->n_parts; s++) {
        const gpt_rows rows = gpt_part_rows(model, s);
        gpt_rows need[GPT_N_TENSORS];
        for (int32_t i = 0; i < GPT_N_TENSORS; i++) need[i] = gpt_rows_in(whole[i], rows);
        gpt_compute_attention(model, layer, need, rows, t->partial);
        gpt_sum_middle(model, need[GPT_MIDDLE]);
        gpt_compute_middle(model, layer, t->partial, need);
    }
}

/* ---- begin and end ---- */

int64_t gpt_partial_bytes(const gpt_model* model) {
    const int64_t n = model->slice_rows * model->config.hidden;
    return gpt_is_split(&model->config) ? 2 * gpt_n_bytes(model, n) : 0;
}

/* Of partial sums, and of the gradient. */
static void gpt_place_partial_sums(gpt_model* model) {
    gpt_tensor_state* t = &model->tensor;
    const gpt_array partial = {gpt_buffer_address(model, GPT_BUFFER_PARTIAL), 0,
                               model->config.hidden, model->config.type, 0};
    t->partial = t->gradient = partial;
    t->gradient.address = partial.address + gpt_partial_bytes(model) / 2;
    t->n_parts = gpt_degree(model->config.sub_batches);
}

/* Does nothing unless the first degree is the smaller one. */
static void gpt_create_pair(gpt_model* model, int32_t degree, int32_t larger) {
    degree_comms* pair = gpt_pair(model, degree, larger);
    if (degree < larger && !pair->tensor && !model->status)
        model->status =
            degree_comms_create(model->tensor.ranks, degree, larger, pair, &model->error);
}

/* All tensor ranks call this and make the same communicators in the same order. */
static void gpt_create_pairs(gpt_model* model) {
    gpt_tensor_state* t = &model->tensor;
    const int32_t all = gpt_degree(model->config.tensor);
    if (all > 1)
        model->status =
            memo_comm_split(t->ranks, 0, t->ranks->rank, "norms", &t->norms, &model->error);
    for (int32_t block = 0; block < 2 * model->config.n_layers && gpt_is_mixed(&model->config);
         block++) {
        const int32_t degree = gpt_degree_at(model, block), next = gpt_degree_at(model, block + 1);
        gpt_create_pair(model, degree, all);
        gpt_create_pair(model, degree, next);
        gpt_create_pair(model, next, degree);
    }
}

void gpt_destroy_blocks(gpt_model* model) {
    memo_blocks_destroy(model->tensor.blocks);
    for (int a = 0; a < GPT_MAX_LEVELS; a++)
        for (int b = 0; b < GPT_MAX_LEVELS; b++) degree_comms_destroy(&model->tensor.pairs[a][b]);
    memset(model->tensor.pairs, 0, sizeof model->tensor.pairs);
    memo_comm_destroy(model->tensor.norms);
    model->tensor.norms = NULL;
    model->tensor.blocks = NULL;
}

void gpt_create_blocks(gpt_model* model) {
    gpt_tensor_state* t = &model->tensor;
    memo_blocks_desc blocks = MEMO_ZERO(memo_blocks_desc);
    memo_block_buffers* buffers;
    if (!gpt_is_split(&model->config)) return;
    gpt_place_partial_sums(model);
    buffers = (memo_block_buffers*)calloc((size_t)t->n_parts, sizeof *buffers);
    if (!buffers) {
        model->status = gpt_no_memory("sub-batches", &model->error);
        return;
    }
    for (int32_t s = 0; s < t->n_parts; s++) {
        const gpt_rows rows =
            gpt_part_of(&model->config, model->slice_rows, gpt_slice_at(&model->config, 0), s);
        buffers[s].output = gpt_at(t->partial, rows.begin);
        buffers[s].gradient = gpt_at(t->gradient, rows.begin);
        buffers[s].count = gpt_count(rows) * model->config.hidden;
    }

    /* Sums go through gpt_sum_partial, which restricts them to the rows that are read. */
    t->ranks = model->mesh->tensor;
    gpt_create_pairs(model);
    t->sums = *t->ranks;
    t->sums.context = model;
    t->sums.collective = gpt_sum_partial;

    blocks.device = &model->device;
    blocks.compute_stream = model->compute;
    blocks.comm = &t->sums;
    blocks.type = model->config.type;
    blocks.schedule.order = model->config.schedule;
    blocks.schedule.n_blocks = gpt_n_blocks(model);
    blocks.schedule.n_parts = t->n_parts;
    blocks.schedule.splits_sequence = model->shares_keys && t->n_parts > 1;
    blocks.buffers = buffers;
    blocks.functions.context = model;
    blocks.functions.forward = gpt_block_forward;
    blocks.functions.recompute = gpt_block_recompute;
    blocks.functions.backward = gpt_block_backward;
    blocks.functions.weights = gpt_block_weights;
    blocks.functions.forward_end = gpt_block_forward_end;
    blocks.functions.backward_end = gpt_block_backward_end;
    GPT_TRY(model, memo_blocks_create(&blocks, &t->blocks, &model->error));
    free(buffers);
}
