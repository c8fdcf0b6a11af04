/* blocks_model.h - a small transformer split over threads, for the tests of overlapped blocks: norm,
 * attention, MLP, and dropout keyed by position.  It has stages, each of its own degree.  The loss
 * is a weighted sum of the output. */
#ifndef BLOCKS_MODEL_H
#define BLOCKS_MODEL_H

#include "blocks_order.h"
#include "degree_comms.h"
#include "linear_layers.h"

/* Memory that the host and the device can use; and the function that runs the ranks. */
#ifndef CASE_CALLOC
#define CASE_CALLOC(n, size_bytes) calloc(n, size_bytes)
#define CASE_FREE(address)         free(address)
#endif
#ifndef CASE_RANKS_RUN
#define CASE_RANKS_RUN thread_ranks_run
#endif

enum {
    HIDDEN = 16,
    HEAD = 2,
    N_HEADS = 8,
    WIDTH = 32,    /* of the MLP */
    MAX_SPLIT = 4, /* parts */
    MAX_ROWS = 128,
    MAX_KEYS = 32, /* tokens of a sequence */
    MAX_STAGES = 3,
    MAX_LAYERS = 2, /* of a stage */
    N_LINEARS = 6,  /* of a layer: q, k, v, o, up, down */
    LAYER_WEIGHTS = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * WIDTH,
    LAYER_GRADIENTS = LAYER_WEIGHTS + 5 * HIDDEN + WIDTH, /* biases follow the weights */
    MAX_GRADIENTS = MAX_STAGES * LAYER_GRADIENTS
};

typedef struct model_setup {
    memo_blocks_order order;
    int32_t n_parts, splits_sequence;
    int32_t n_rows, tokens; /* of the batch, of a sequence that is not split */
    int32_t n_stages, n_layers, degrees[MAX_STAGES]; /* n_layers: of a stage */
    int32_t by_layer;                                /* call layer by layer */
    int32_t n_steps;                                 /* of accumulation */
} model_setup;

/* The recording of one rank. */
typedef struct recorded_rank {
    memo_status compared;
    char difference[200];
    int64_t n_races;
} recorded_rank;

typedef struct job {
    model_setup setup;
    /* Of each rank, of the rows and weights that it has, at their places in the whole model. */
    float losses[8][MAX_ROWS], gradients[8][MAX_GRADIENTS];
    char has_row[8][MAX_ROWS], has[8][MAX_GRADIENTS], has_run[8];
    recorded_rank recorded[8][MAX_STAGES];
    /* One weight of the unsplit model moved by this much. */
    int64_t nudged;
    float nudge;
} job;

/* One stage on one rank. */
typedef struct blocks_model {
    const model_setup* setup;
    thread_rank* rank;
    degree_comms comms;
    memo_recorder* recorder;
    memo_blocks* blocks;
    memo_blocks_desc desc;
    int32_t first_layer, n_blocks, n_rows, part_rows, tokens;
    int32_t row[MAX_ROWS];   /* of the batch */
    memo_share heads, width; /* heads: in elements */
    linear_layer linears[MAX_LAYERS][N_LINEARS];
    float *h[2 * MAX_LAYERS], *out, *d, *dy, *y, *g, *piece; /* (n_rows, HIDDEN) */
    float* x[2];                                             /* normed inputs */
    float *q, *k, *v, *o, *dq, *dk, *dv, *d_o;               /* (n_rows, heads.count) */
    float *up, *act;                                         /* (n_rows, width.count) */
    float losses[MAX_ROWS];
    void* memory[64];
    int n_memory;
    order_list calls;                /* of block functions */
    int n_wrong;                     /* with other arguments than the order has */
    order_list order[2];             /* expected on compute and comm */
    int32_t is_kept[2 * MAX_LAYERS]; /* inputs that recomputation will find */
} blocks_model;

static float* model_floats(blocks_model* m, int64_t n) {
    float* array = (float*)CASE_CALLOC((size_t)n + 1, sizeof(float));
    if (!array) abort();
    m->memory[m->n_memory++] = array;
    return array;
}

/* In [-0.5, 0.5), the same on every rank. */
static float model_value(uint64_t tag, int64_t index) {
    uint64_t z = tag * 0x9e3779b97f4a7c15u + (uint64_t)index * 0xd1b54a32d192ed03u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((z ^ (z >> 31)) >> 40) * (1.0f / 16777216.0f) - 0.5f;
}

/* One in eight is dropped, the others grow. */
static float model_keep(const blocks_model* m, int32_t block, int64_t r, int64_t column) {
    uint64_t tag = 900 + 2 * (uint64_t)m->first_layer + (uint64_t)block;
    return model_value(tag, m->row[r] * HIDDEN + column) < -0.375f ? 0.0f : 8.0f / 7.0f;
}

/* ---- one row ---- */

static void model_norm(const float* h, float* x) {
    float sum = 0, factor;
    for (int i = 0; i < HIDDEN; i++) sum += h[i] * h[i];
    factor = 1.0f / sqrtf(sum / HIDDEN + 1e-3f);
    for (int i = 0; i < HIDDEN; i++) x[i] = h[i] * factor;
}

/* d += gradient through the norm of h. */
static void model_norm_backward(const float* h, const float* dx, float* d) {
    float sum = 0, dot = 0, factor;
    for (int i = 0; i < HIDDEN; i++) sum += h[i] * h[i];
    factor = 1.0f / sqrtf(sum / HIDDEN + 1e-3f);
    for (int i = 0; i < HIDDEN; i++) dot += dx[i] * h[i];
    for (int i = 0; i < HIDDEN; i++)
        d[i] += factor * (dx[i] - h[i] * dot * factor * factor / HIDDEN);
}

static void model_residual(const blocks_model* m, int32_t block, int64_t r, float* to) {
    for (int i = 0; i < HIDDEN; i++)
        to[r * HIDDEN + i] =
            m->h[block][r * HIDDEN + i] + model_keep(m, block, r, i) * m->y[r * HIDDEN + i];
}

/* Row r of the head at column `at` over the tokens before it in its sequence: output, or
 * gradients. */
static void model_attend(blocks_model* m, int64_t r, int64_t at, int is_backward) {
    const int64_t w = m->heads.count, first = r / m->tokens * m->tokens;
    const float *q = m->q + at, *k = m->k + at, *v = m->v + at, *d_o = m->d_o + at;
    float *dq = m->dq + at, *dk = m->dk + at, *dv = m->dv + at;
    float p[MAX_KEYS], dp[MAX_KEYS], sum = 0, dot = 0;
    for (int64_t c = first; c <= r; c++) {
        float score = 0;
        for (int i = 0; i < HEAD; i++) score += q[r * w + i] * k[c * w + i];
        sum += p[c - first] = expf(score); /* small numbers: no overflow */
    }
    for (int64_t c = first; c <= r; c++) p[c - first] /= sum;
    for (int i = 0; i < HEAD && !is_backward; i++) {
        float o = 0;
        for (int64_t c = first; c <= r; c++) o += p[c - first] * v[c * w + i];
        m->o[r * w + at + i] = o;
        dk[r * w + i] = dv[r * w + i] = 0;
    }
    if (!is_backward) return;

    /* dp and dv, and the row sum of p dp; then through the softmax to dq and dk. */
    for (int64_t c = first; c <= r; c++) {
        dp[c - first] = 0;
        for (int i = 0; i < HEAD; i++) {
            dp[c - first] += d_o[r * w + i] * v[c * w + i];
            dv[c * w + i] += p[c - first] * d_o[r * w + i];
        }
        dot += dp[c - first] * p[c - first];
    }
    for (int i = 0; i < HEAD; i++) dq[r * w + i] = 0;
    for (int64_t c = first; c <= r; c++)
        for (int i = 0; i < HEAD; i++) {
            float ds = p[c - first] * (dp[c - first] - dot);
            dq[r * w + i] += ds * k[c * w + i];
            dk[c * w + i] += ds * q[r * w + i];
        }
}

/* ---- functions on the streams, between the products ---- */

typedef enum model_piece {
    MODEL_ENTER,
    MODEL_ATTEND,
    MODEL_ACTIVATE,
    MODEL_LEAVE,
    MODEL_RETURN,
    MODEL_ATTEND_BACKWARD,
    MODEL_DERIVE,
    MODEL_ADD,
    MODEL_LEAVE_BACKWARD,
    MODEL_INPUT, /* from here on of all rows */
    MODEL_FORGET,
    MODEL_LOSS
} model_piece;

typedef struct model_work {
    blocks_model* m;
    memo_block_call call;
    model_piece piece;
    /* By value, because the next step's forward changes them while this step's work is still in the
     * stream. */
    int32_t is_kept[2 * MAX_LAYERS];
} model_work;

/* What recomputation has to bring back. */
static void model_forget(blocks_model* m, const int32_t* is_kept) {
    int64_t n = (int64_t)m->n_rows * HIDDEN, j;
    for (int i = 0; i < m->n_blocks; i++)
        for (j = 0; j < n && !is_kept[i]; j++) m->h[i][j] = NAN;
    for (j = 0; j < n; j++) m->x[0][j] = m->x[1][j] = m->y[j] = m->g[j] = NAN;
    n = m->n_rows * m->heads.count;
    for (j = 0; j < n; j++) m->q[j] = m->k[j] = m->v[j] = m->o[j] = NAN;
    n = m->n_rows * m->width.count;
    for (j = 0; j < n; j++) m->up[j] = m->act[j] = NAN;
}

static memo_status model_run_piece(void* args, memo_error* e) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    const int32_t block = w->call.block;
    const int is_all = w->piece >= MODEL_INPUT;
    const int64_t begin = is_all ? 0 : (int64_t)w->call.part * m->part_rows;
    const int64_t end = begin + (is_all ? m->n_rows : m->part_rows), wide = m->width.count;
    int64_t i;
    (void)e;
    switch (w->piece) {
    case MODEL_ENTER: /* the block's normed input */
        for (int64_t r = begin; r < end; r++) {
            if (!w->call.is_input_saved) model_residual(m, block - 1, r, m->h[block]);
            model_norm(m->h[block] + r * HIDDEN, m->x[block % 2] + r * HIDDEN);
        }
        break;
    case MODEL_ATTEND:
    case MODEL_ATTEND_BACKWARD:
        for (int64_t r = begin; r < end; r++)
            for (i = 0; i < m->heads.count; i += HEAD)
                model_attend(m, r, i, w->piece == MODEL_ATTEND_BACKWARD);
        break;
    case MODEL_ACTIVATE:
        for (int64_t j = begin * wide; j < end * wide; j++) m->act[j] = tanhf(m->up[j]);
        break;
    case MODEL_RETURN: /* the gradient of the output stream, from the block above */
        for (int64_t r = begin; r < end; r++) {
            if (block < m->n_blocks - 1)
                model_norm_backward(m->h[block + 1] + r * HIDDEN, m->g + r * HIDDEN,
                                    m->d + r * HIDDEN);
            for (i = 0; i < HIDDEN; i++)
                m->dy[r * HIDDEN + i] = model_keep(m, block, r, i) * m->d[r * HIDDEN + i];
        }
        break;
    case MODEL_DERIVE: /* up holds the gradient of act by now */
        for (int64_t j = begin * wide; j < end * wide; j++) m->up[j] *= 1 - m->act[j] * m->act[j];
        break;
    case MODEL_ADD:
        for (int64_t j = begin * HIDDEN; j < end * HIDDEN; j++) m->g[j] += m->piece[j];
        break;
    case MODEL_LEAVE:
        for (int64_t r = begin; r < end; r++) model_residual(m, m->n_blocks - 1, r, m->out);
        break;
    case MODEL_LEAVE_BACKWARD:
        for (int64_t r = begin; r < end; r++)
            model_norm_backward(m->h[0] + r * HIDDEN, m->g + r * HIDDEN, m->d + r * HIDDEN);
        break;
    case MODEL_INPUT:
        for (int64_t r = begin; r < end; r++)
            for (i = 0; i < HIDDEN; i++)
                m->h[0][r * HIDDEN + i] = model_value(78, m->row[r] * HIDDEN + i);
        break;
    case MODEL_FORGET: model_forget(m, w->is_kept); break;
    case MODEL_LOSS:
        for (int64_t r = begin; r < end; r++)
            for (m->losses[r] = 0, i = 0; i < HIDDEN; i++) {
                float weight = model_value(79, m->row[r] * HIDDEN + i) / (float)m->setup->n_rows;
                m->losses[r] += weight * m->out[r * HIDDEN + i];
                m->d[r * HIDDEN + i] = weight;
            }
    }
    return MEMO_STATUS_OK;
}

static memo_status model_launch(blocks_model* m, const memo_block_call* call, model_piece piece,
                                memo_error* e) {
    model_work work = MEMO_ZERO(model_work);
    work.m = m;
    work.piece = piece;
    if (call) work.call = *call;
    memcpy(work.is_kept, m->is_kept, sizeof work.is_kept);
    return memo_host_device_launch(m->rank->device, m->rank->stream, model_run_piece, &work,
                                   sizeof work, e);
}

/* ---- block functions ---- */

/* The arguments of a call are those of the block's place in the order. */
static void model_call(blocks_model* m, const memo_block_call* call, const char* kind) {
    const memo_blocks_order order = m->setup->order;
    const int keeps = order_keeps_input(order, call->block, 2);
    order_add(&m->calls, kind, kind[0] == 'e' ? -1 : call->block, call->part);
    m->n_wrong += call->stream != m->rank->stream;
    if (kind[0] == 'F')
        m->n_wrong += call->is_input_saved != (call->block == 0) || call->keeps_input != keeps;
    if (kind[0] == 'R')
        m->n_wrong += call->is_input_saved != keeps ||
                      call->has_output != order_reads_output(order, call->block, 2);
}

#define AT(array, width) ((array) + (int64_t)call->part * m->part_rows * (width))

static memo_status model_compute(blocks_model* m, const memo_block_call* call, int has_output,
                                 memo_error* error) {
    linear_layer* l = m->linears[call->block / 2];
    int64_t n = m->part_rows, w = m->heads.count;
    const float* x = AT(m->x[call->block % 2], HIDDEN);
    if (model_launch(m, call, MODEL_ENTER, error)) return error->status;
    if (call->block % 2 == 0) {
        if (linear_forward(&l[0], call->stream, x, AT(m->q, w), n, error) ||
            linear_forward(&l[1], call->stream, x, AT(m->k, w), n, error) ||
            linear_forward(&l[2], call->stream, x, AT(m->v, w), n, error) ||
            model_launch(m, call, MODEL_ATTEND, error))
            return error->status;
        if (!has_output) return MEMO_STATUS_OK;
        return linear_forward(&l[3], call->stream, AT(m->o, w), AT(m->y, HIDDEN), n, error);
    }
    if (linear_forward(&l[4], call->stream, x, AT(m->up, m->width.count), n, error) ||
        model_launch(m, call, MODEL_ACTIVATE, error))
        return error->status;
    if (!has_output) return MEMO_STATUS_OK;
    return linear_forward(&l[5], call->stream, AT(m->act, m->width.count), AT(m->y, HIDDEN), n,
                          error);
}

static memo_status model_forward(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    model_call(m, call, "F");
    m->is_kept[call->block] = call->keeps_input;
    return model_compute(m, call, 1, error);
}

static memo_status model_recompute(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    model_call(m, call, "R");
    return model_compute(m, call, call->has_output, error);
}

static memo_status model_backward(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    linear_layer* l = m->linears[call->block / 2];
    int64_t n = m->part_rows, w = m->heads.count, wide = m->width.count;
    float *g = AT(m->g, HIDDEN), *piece = AT(m->piece, HIDDEN), *dy = AT(m->dy, HIDDEN);
    model_call(m, call, "B");
    if (model_launch(m, call, MODEL_RETURN, error)) return error->status;
    if (call->block % 2) {
        if (linear_backward(&l[5], call->stream, dy, AT(m->up, wide), n, error) ||
            model_launch(m, call, MODEL_DERIVE, error) ||
            linear_backward(&l[4], call->stream, AT(m->up, wide), g, n, error))
            return error->status;
        return MEMO_STATUS_OK;
    }
    if (linear_backward(&l[3], call->stream, dy, AT(m->d_o, w), n, error) ||
        model_launch(m, call, MODEL_ATTEND_BACKWARD, error) ||
        linear_backward(&l[0], call->stream, AT(m->dq, w), g, n, error) ||
        linear_backward(&l[1], call->stream, AT(m->dk, w), piece, n, error) ||
        model_launch(m, call, MODEL_ADD, error) ||
        linear_backward(&l[2], call->stream, AT(m->dv, w), piece, n, error))
        return error->status;
    return model_launch(m, call, MODEL_ADD, error);
}

static memo_status model_weights(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    linear_layer* l = m->linears[call->block / 2];
    int64_t n = m->part_rows, w = m->heads.count, wide = m->width.count;
    const float *x = AT(m->x[call->block % 2], HIDDEN), *dy = AT(m->dy, HIDDEN);
    model_call(m, call, "W");
    if (call->block % 2) {
        if (linear_weights(&l[5], call->stream, AT(m->act, wide), dy, n, error))
            return error->status;
        return linear_weights(&l[4], call->stream, x, AT(m->up, wide), n, error);
    }
    if (linear_weights(&l[3], call->stream, AT(m->o, w), dy, n, error) ||
        linear_weights(&l[0], call->stream, x, AT(m->dq, w), n, error) ||
        linear_weights(&l[1], call->stream, x, AT(m->dk, w), n, error))
        return error->status;
    return linear_weights(&l[2], call->stream, x, AT(m->dv, w), n, error);
}

static memo_status model_forward_end(void* context, const memo_block_call* call,
                                     memo_error* error) {
    model_call((blocks_model*)context, call, "end-");
    return model_launch((blocks_model*)context, call, MODEL_LEAVE, error);
}
static memo_status model_backward_end(void* context, const memo_block_call* call,
                                      memo_error* error) {
    model_call((blocks_model*)context, call, "end-");
    return model_launch((blocks_model*)context, call, MODEL_LEAVE_BACKWARD, error);
}

/* ---- a stage ---- */

/* Weights of a linear on this rank; its biases follow. */
static int64_t model_size(const linear_layer* l) { return l->n_in * l->n_out; }

/* Where weight or bias j of a linear lies in the whole model. */
static int64_t model_place(const blocks_model* m, int32_t layer, int linear, int64_t j) {
    const linear_layer* l = &m->linears[layer][linear];
    const int is_mlp = linear > 3, is_row = l->split == LINEAR_ROW;
    const memo_share share = is_mlp ? m->width : m->heads;
    const int64_t n_split = is_mlp ? WIDTH : HIDDEN, bias = j - model_size(l);
    int64_t at = (int64_t)(m->first_layer + layer) * LAYER_GRADIENTS;
    if (bias >= 0)
        return at + LAYER_WEIGHTS + linear * HIDDEN + (linear == 5 ? WIDTH - HIDDEN : 0) +
               (is_row ? 0 : share.begin) + bias;
    at += is_mlp ? 4 * HIDDEN * HIDDEN + (linear - 4) * HIDDEN * WIDTH : linear * HIDDEN * HIDDEN;
    return is_row ? at + j / share.count * n_split + share.begin + j % share.count
                  : at + share.begin * HIDDEN + j;
}

/* The weights depend on their place only, so every split has the same model. */
static void model_linear(blocks_model* m, const job* all, int32_t layer, int linear) {
    linear_layer* l = &m->linears[layer][linear];
    const int64_t share = linear > 3 ? m->width.count : m->heads.count;
    l->device = m->rank->device;
    l->split = linear == 3 || linear == 5 ? LINEAR_ROW : LINEAR_COLUMN;
    l->rank = m->comms.tensor->rank;
    l->n_in = l->split == LINEAR_ROW ? share : (int64_t)HIDDEN;
    l->n_out = l->split == LINEAR_ROW ? (int64_t)HIDDEN : share;
    float* weights = model_floats(m, model_size(l) + l->n_out);
    l->weights = weights;
    l->bias = weights + model_size(l);
    l->d_weights = model_floats(m, model_size(l) + l->n_out);
    l->d_bias = l->d_weights + model_size(l);
    for (int64_t j = 0; j < model_size(l) + l->n_out; j++) {
        const int64_t at = model_place(m, layer, linear, j);
        weights[j] = (j < model_size(l) ? 0.5f : 0.2f) * model_value(77, at);
        if (at == all->nudged) weights[j] += all->nudge;
    }
}

/* The rows of this rank: part s of a group of ranks is part s of each of the smallest groups in
 * it. */
static void model_rows(blocks_model* m, int32_t degree) {
    const model_setup* setup = m->setup;
    int32_t low = degree, n_groups, part;
    for (int32_t k = 0; k < setup->n_stages; k++)
        if (setup->degrees[k] < low) low = setup->degrees[k];
    n_groups = degree / low;
    part = setup->n_rows * low / m->rank->comm->size / setup->n_parts;
    m->part_rows = n_groups * part;
    m->n_rows = setup->n_parts * m->part_rows;
    for (int32_t r = 0; r < m->n_rows; r++) {
        int32_t in_part = r % m->part_rows;
        int32_t group = m->rank->comm->rank / degree * n_groups + in_part / part;
        m->row[r] = (group * setup->n_parts + r / m->part_rows) * part + in_part % part;
    }
}

static void model_memory(blocks_model* m) {
    float** const hidden[] = {&m->out, &m->d, &m->dy, &m->y, &m->g, &m->piece, &m->x[0], &m->x[1]};
    float** const by_head[] = {&m->q, &m->k, &m->v, &m->o, &m->dq, &m->dk, &m->dv, &m->d_o};
    for (int i = 0; i < m->n_blocks; i++) m->h[i] = model_floats(m, m->n_rows * HIDDEN);
    for (int i = 0; i < 8; i++) *hidden[i] = model_floats(m, m->n_rows * HIDDEN);
    for (int i = 0; i < 8; i++) *by_head[i] = model_floats(m, m->n_rows * m->heads.count);
    m->up = model_floats(m, m->n_rows * m->width.count);
    m->act = model_floats(m, m->n_rows * m->width.count);
}

/* Stage k, on a recorder. */
static memo_status model_make(blocks_model* m, thread_rank* rank, const job* all, int k,
                              memo_error* e) {
    const model_setup* setup = &all->setup;
    const int32_t degree = setup->degrees[k];
    memo_blocks_desc* desc = &m->desc;
    memo_recorder_desc recorder_desc = MEMO_ZERO(memo_recorder_desc);
    memo_block_buffers buffers[MAX_SPLIT];
    m->setup = setup;
    m->rank = rank;
    m->first_layer = k * setup->n_layers;
    m->n_blocks = 2 * setup->n_layers;
    m->tokens = setup->splits_sequence ? setup->n_rows : setup->tokens;
    if (degree_comms_create(rank->comm, degree, k + 1 < setup->n_stages ? setup->degrees[k + 1] : 0,
                            &m->comms, e))
        return e->status;
    m->width = memo_share_of(WIDTH, degree, m->comms.tensor->rank);
    m->heads = memo_share_of(N_HEADS, degree, m->comms.tensor->rank);
    m->heads.begin *= HEAD;
    m->heads.count *= HEAD;
    model_rows(m, degree);
    for (int32_t layer = 0; layer < setup->n_layers; layer++)
        for (int32_t i = 0; i < N_LINEARS; i++) model_linear(m, all, layer, i);
    model_memory(m);

    memset(buffers, 0, sizeof buffers);
    for (int32_t i = 0; i < setup->n_parts; i++) {
        int64_t at = (int64_t)i * m->part_rows * HIDDEN;
        buffers[i].output = m->y + at;
        buffers[i].gradient = m->g + at;
        buffers[i].count = (int64_t)m->part_rows * HIDDEN;
    }
    desc->compute_stream = rank->stream;
    desc->comm = m->comms.tensor;
    desc->type = MEMO_TYPE_F32;
    desc->schedule.order = setup->order;
    desc->schedule.n_blocks = m->n_blocks;
    desc->schedule.n_parts = setup->n_parts;
    desc->schedule.splits_sequence = setup->splits_sequence;
    desc->buffers = buffers;
    desc->functions.context = m;
    desc->functions.forward = model_forward;
    desc->functions.recompute = model_recompute;
    desc->functions.backward = model_backward;
    desc->functions.weights = model_weights;
    desc->functions.forward_end = model_forward_end;
    desc->functions.backward_end = model_backward_end;
    recorder_desc.device = rank->device;
    if (memo_recorder_create(&recorder_desc, &m->recorder, e) ||
        memo_recorder_name_stream(m->recorder, rank->stream, "compute", e))
        return e->status;
    desc->device = memo_recorder_get_device(m->recorder);
    return memo_blocks_create(desc, &m->blocks, e);
}

static void model_free(blocks_model* m) {
    memo_blocks_destroy(m->blocks);
    memo_recorder_destroy(m->recorder);
    degree_comms_destroy(&m->comms);
    while (m->n_memory > 0) CASE_FREE(m->memory[--m->n_memory]);
}

/* ---- a step of all stages ---- */

static memo_status model_pass(blocks_model* m, int is_backward, memo_error* e) {
    memo_status status = MEMO_STATUS_OK;
    int32_t n = m->setup->n_layers;
    if (!m->setup->by_layer)
        return is_backward ? memo_blocks_backward(m->blocks, MEMO_ALL_LAYERS, e)
                           : memo_blocks_forward(m->blocks, MEMO_ALL_LAYERS, e);
    for (int32_t layer = 0; layer < n && !status; layer++)
        status = is_backward ? memo_blocks_backward(m->blocks, n - 1 - layer, e)
                             : memo_blocks_forward(m->blocks, layer, e);
    return status;
}

/* The rows of one stage for the other, part by part: gathered if that has more rows, cut if it has
 * fewer. */
static memo_status model_exchange(const blocks_model* from, const float* rows,
                                  const blocks_model* to, float* to_rows, memo_comm* across,
                                  memo_error* e) {
    const int64_t n_from = (int64_t)from->part_rows * HIDDEN,
                  n_to = (int64_t)to->part_rows * HIDDEN;
    const memo_stream stream = from->rank->stream;
    const int64_t n_across = n_from > n_to ? n_from / n_to : n_to / n_from;
    memo_status status = MEMO_STATUS_OK;
    if (n_across > 1 && across->size != n_across)
        return memo_error_set(e, MEMO_STATUS_INVALID_STATE, "across has %d ranks, not %d",
                              (int)across->size, (int)n_across);
    for (int32_t s = 0; s < from->setup->n_parts && !status; s++, rows += n_from, to_rows += n_to)
        status = n_from < n_to
                     ? memo_all_gather(across, stream, rows, to_rows, n_from, MEMO_TYPE_F32, e)
                     : memo_copy(from->rank->device, stream, MEMO_COPY_ON_DEVICE, to_rows,
                                 rows + (n_from > n_to ? across->rank * n_to : 0),
                                 n_to * (int64_t)sizeof(float), e);
    return status;
}

static memo_status model_step(blocks_model* m, memo_error* e) {
    const int n = m->setup->n_stages;
    if (model_launch(m, NULL, MODEL_INPUT, e)) return e->status;
    for (int k = 0; k < n; k++)
        if (model_pass(&m[k], 0, e) ||
            (k + 1 < n &&
             model_exchange(&m[k], m[k].out, &m[k + 1], m[k + 1].h[0], m[k].comms.across, e)))
            return e->status;
    for (int k = 0; k < n; k++)
        if (model_launch(&m[k], NULL, MODEL_FORGET, e)) return e->status;
    if (model_launch(&m[n - 1], NULL, MODEL_LOSS, e)) return e->status;
    for (int k = n - 1; k >= 0; k--)
        if (model_pass(&m[k], 1, e) ||
            (k > 0 &&
             model_exchange(&m[k], m[k].d, &m[k - 1], m[k - 1].d, m[k - 1].comms.across, e)))
            return e->status;
    return MEMO_STATUS_OK;
}

/* Gradients are summed over the data-parallel ranks. */
static memo_status model_sum(blocks_model* m, memo_error* e) {
    for (int i = 0; i < m->setup->n_layers * N_LINEARS && m->comms.data->size > 1; i++) {
        const linear_layer* l = &m->linears[i / N_LINEARS][i % N_LINEARS];
        if (memo_all_reduce(m->comms.data, m->rank->stream, l->d_weights, l->d_weights,
                            model_size(l) + l->n_out, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, e))
            return e->status;
    }
    return MEMO_STATUS_OK;
}

static __thread memo_error error;

/* ---- one run ---- */

/* Sizes of ranges differ: a generated schedule has buffers of a byte. */
static void forget_ranges(memo_schedule* schedule) {
    for (int64_t i = 0; i < schedule->n_ops; i++)
        schedule->ops[i].n_reads = schedule->ops[i].n_writes = 0;
}

/* The enqueued operations have the papers' order and no race, are the calls of block functions, and
 * those of the generated schedule of a step. */
static memo_status compare_recorded(blocks_model* m, memo_schedule* recorded, int64_t* n_races,
                                    memo_error* e) {
    const memo_blocks_schedule_desc* d = &m->desc.schedule;
    const int32_t passes = MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD | MEMO_BLOCKS_WEIGHTS;
    memo_schedule* generated = NULL;
    memo_check* check = NULL;
    memo_status status = memo_blocks_generate(d, NULL, passes, &generated, e);
    if (!status) status = order_check(recorded, d, 1, m->setup->n_steps, m->order, e);
    if (!status && (m->n_wrong || m->calls.n != m->order[0].n ||
                    memcmp(m->calls.names, m->order[0].names, sizeof m->calls.names)))
        status = memo_error_set(e, MEMO_STATUS_INVALID_ARGUMENT, "%d calls, %d wrong", m->calls.n,
                                m->n_wrong);
    if (!status) status = memo_schedule_check(recorded, &check, e);
    if (!status) *n_races = check->n_races + check->n_unrecorded_waits;
    if (!status && m->setup->n_steps == 1) {
        forget_ranges(generated);
        forget_ranges(recorded);
        status = memo_schedule_compare(generated, recorded, e);
    }
    memo_check_destroy(check);
    memo_schedule_destroy(generated);
    return status;
}

static void model_result(blocks_model* m, job* all, int k) {
    const int me = m->rank->comm->rank;
    recorded_rank* found = &all->recorded[me][k];
    memo_schedule* recorded = NULL;
    memo_error difference;
    for (int32_t layer = 0; layer < m->setup->n_layers; layer++)
        for (int32_t i = 0; i < N_LINEARS; i++) {
            const linear_layer* l = &m->linears[layer][i];
            for (int64_t j = 0; j < model_size(l) + l->n_out; j++) {
                int64_t at = model_place(m, layer, i, j);
                all->gradients[me][at] = l->d_weights[j];
                all->has[me][at] = 1;
            }
        }
    for (int32_t i = 0; i < m->n_rows && k == m->setup->n_stages - 1; i++) {
        all->losses[me][m->row[i]] = m->losses[i];
        all->has_row[me][m->row[i]] = 1;
    }
    all->has_run[me] = 1;
    found->compared = memo_recorder_get_schedule(m->recorder, &recorded, &difference);
    if (!found->compared)
        found->compared = compare_recorded(m, recorded, &found->n_races, &difference);
    if (found->compared)
        snprintf(found->difference, sizeof found->difference, "%.199s", difference.message);
}

static memo_status run_rank(thread_rank* rank, memo_error* e) {
    job* all = (job*)rank->user;
    const int n = all->setup.n_stages;
    blocks_model* m = (blocks_model*)calloc((size_t)n, sizeof *m);
    memo_status status = MEMO_STATUS_OK;
    if (!m) abort();
    for (int k = 0; k < n && !status; k++) status = model_make(&m[k], rank, all, k, e);
    for (int k = 0; k < all->setup.n_steps && !status; k++) status = model_step(m, e);
    for (int k = 0; k < n && !status; k++) status = model_sum(&m[k], e);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);
    for (int k = 0; k < n; k++) {
        if (!status) model_result(&m[k], all, k);
        model_free(&m[k]);
    }
    free(m);
    return status;
}

/* On T ranks; a single stage has degree T.  nudge: added to the weight at that place. */
static job* run_nudged(int T, const model_setup* setup, int64_t nudged, float nudge) {
    job* all = (job*)calloc(1, sizeof *all);
    if (!all) abort();
    all->setup = *setup;
    if (setup->n_stages == 1) all->setup.degrees[0] = T;
    all->nudged = nudged;
    all->nudge = nudge;
    CHECK_OK(CASE_RANKS_RUN(T, run_rank, all, &error));
    return all;
}
static job* run_job(int T, const model_setup* setup) { return run_nudged(T, setup, -1, 0); }

static int is_same(const job* a, const job* b) {
    return !memcmp(a->losses, b->losses, sizeof a->losses) &&
           !memcmp(a->gradients, b->gradients, sizeof a->gradients);
}

static model_setup setup_of(memo_blocks_order order, int n_parts) {
    model_setup setup = MEMO_ZERO(model_setup);
    setup.order = order;
    setup.n_parts = n_parts;
    setup.n_rows = 32;
    setup.tokens = 8;
    setup.n_stages = 1;
    setup.n_layers = 2;
    setup.n_steps = 1;
    return setup;
}

static const char* setup_text(int T, const model_setup* s) {
    static char text[120];
    snprintf(text, sizeof text, "%s, T = %d, degrees %d %d %d, %d parts%s",
             memo_blocks_order_name(s->order), T, (int)s->degrees[0], (int)s->degrees[1],
             (int)s->degrees[2], (int)s->n_parts, s->splits_sequence ? " of a sequence" : "");
    return text;
}

/* ---- within rounding: the unsplit model, one rank and one part ---- */

/* Keeps the larger one; NaN counts as the largest. */
static void keep_worst(double* worst, double a, double b) {
    double difference = fabs(a - b);
    if (!(difference <= *worst)) *worst = difference == difference ? difference : INFINITY;
}

/* The operations of the ranks of this process are those of the schedule, without a race. */
static void check_recorded(const job* split, int T) {
    for (int r = 0; r < T; r++)
        for (int k = 0; k < split->setup.n_stages; k++) {
            const recorded_rank* recorded = &split->recorded[r][k];
            if (!split->has_run[r]) continue;
            CHECK_CASE(!recorded->compared && !recorded->n_races,
                       "%s, rank %d, stage %d: %d races, %s", setup_text(T, &split->setup), r, k,
                       (int)recorded->n_races, recorded->difference);
        }
}

/* The largest difference of losses and gradients, which are at most about 0.2. */
static double compare_unsplit(const job* whole, const job* split, int T) {
    double worst = 0;
    for (int r = 0; r < T; r++) {
        for (int i = 0; i < MAX_GRADIENTS; i++)
            if (split->has[r][i])
                keep_worst(&worst, (double)split->gradients[r][i], (double)whole->gradients[0][i]);
        for (int i = 0; i < MAX_ROWS; i++)
            if (split->has_row[r][i])
                keep_worst(&worst, (double)split->losses[r][i], (double)whole->losses[0][i]);
    }
    CHECK_CASE(worst < 1e-6, "%s: %g", setup_text(T, &split->setup), worst);
    return worst;
}

#endif
