/* blocks_model.h - a small GPT, split over threads, for the tests of overlapped blocks: norm,
 * attention, MLP, and dropout keyed by position. */
#ifndef BLOCKS_MODEL_H
#define BLOCKS_MODEL_H

#include "blocks_log.h"
#include "linear_layers.h"

/* Memory that the host and the device can use; and the function that runs the ranks. */
#ifndef CASE_CALLOC
#define CASE_CALLOC(n, size_bytes) calloc(n, size_bytes)
#define CASE_FREE(address)         free(address)
#endif
#ifndef CASE_RANKS_RUN
#define CASE_RANKS_RUN thread_ranks_run
#endif

#define ROWS       32 /* of the batch: sequences x tokens */
#define HIDDEN     16
#define HEAD       2
#define N_HEADS    8
#define WIDTH      32 /* of the MLP */
#define VOCABULARY 23
#define N_LAYERS   2
#define N_BLOCKS   (2 * N_LAYERS)
#define MAX_SPLIT  4 /* parts */
#define N_LINEARS  6 /* of a layer: q, k, v, o, up, down */

typedef struct model_setup {
    memo_blocks_order order;
    int32_t n_parts, splits_sequence;
    int32_t by_layer;    /* call layer by layer */
    int32_t is_recorded; /* compare the enqueued operations with the schedule */
    int32_t n_steps;     /* of accumulation */
} model_setup;

typedef struct blocks_model {
    const model_setup* setup;
    thread_rank* rank;
    int32_t T, part_rows, sequence; /* tokens of one */
    memo_share heads, width, vocabulary;
    int32_t tokens[ROWS], labels[ROWS];
    linear_layer linears[N_LAYERS][N_LINEARS], head;
    float *table, *d_table;
    float *h[N_BLOCKS], *out, *d, *dy, *y, *g; /* (ROWS, HIDDEN) */
    float* x[2];                               /* normed inputs */
    float *q, *k, *v, *o, *dq, *dk, *dv, *d_o; /* (ROWS, heads.count * HEAD) */
    float *up, *act;                           /* (ROWS, width.count) */
    float* piece;                              /* (ROWS, HIDDEN) */
    float *final_x, *logits, *losses, *scratch, *d_final;
    void* memory[96];
    int n_memory;
    int n_calls[4];
    int32_t is_kept[N_BLOCKS]; /* inputs that recomputation will find */
} blocks_model;

/* ---- embedding and cross-entropy over a vocabulary that is split over the ranks ---- */

/* table (share.count, hidden): out (n_rows, hidden) is the sum over the ranks.  A token outside the
 * vocabulary gives zeros. */

typedef struct model_embedding_args {
    const float* from; /* table, d_out */
    float* to;         /* out, d_table */
    memo_share share;
    const int32_t* tokens;
    int64_t n_rows, hidden;
} model_embedding_args;

static memo_status model_embedding_forward_run(void* args, memo_error* error) {
    const model_embedding_args* a = (const model_embedding_args*)args;
    int64_t r, i;
    (void)error;
    for (r = 0; r < a->n_rows; r++) {
        int64_t row = a->tokens[r] - a->share.begin;
        int is_own = row >= 0 && row < a->share.count;
        for (i = 0; i < a->hidden; i++)
            a->to[r * a->hidden + i] = is_own ? a->from[row * a->hidden + i] : 0;
    }
    return MEMO_STATUS_OK;
}

static memo_status model_embedding_backward_run(void* args, memo_error* error) {
    const model_embedding_args* a = (const model_embedding_args*)args;
    int64_t r, i;
    (void)error;
    for (r = 0; r < a->n_rows; r++) {
        int64_t row = a->tokens[r] - a->share.begin;
        if (row < 0 || row >= a->share.count) continue;
        for (i = 0; i < a->hidden; i++) a->to[row * a->hidden + i] += a->from[r * a->hidden + i];
    }
    return MEMO_STATUS_OK;
}

static memo_status model_embedding_launch(memo_device* host_device, memo_stream stream,
                                          memo_host_function run, const float* from, float* to,
                                          memo_share share, const int32_t* tokens, int64_t n_rows,
                                          int64_t hidden, memo_error* error) {
    model_embedding_args args;
    args.from = from;
    args.to = to;
    args.share = share;
    args.tokens = tokens;
    args.n_rows = n_rows;
    args.hidden = hidden;
    return memo_host_device_launch(host_device, stream, run, &args, sizeof args, error);
}

static memo_status model_embedding_forward(memo_device* host_device, memo_comm* comm,
                                           memo_stream stream, const float* table, memo_share share,
                                           const int32_t* tokens, int64_t n_rows, int64_t hidden,
                                           float* out, memo_error* error) {
    memo_status status = model_embedding_launch(host_device, stream, model_embedding_forward_run,
                                                table, out, share, tokens, n_rows, hidden, error);
    if (status) return status;
    return memo_all_reduce(comm, stream, out, out, n_rows * hidden, MEMO_TYPE_F32,
                           MEMO_REDUCTION_SUM, error);
}

static memo_status model_embedding_backward(memo_device* host_device, memo_stream stream,
                                            float* d_table, memo_share share, const int32_t* tokens,
                                            int64_t n_rows, int64_t hidden, const float* d_out,
                                            memo_error* error) {
    return model_embedding_launch(host_device, stream, model_embedding_backward_run, d_out, d_table,
                                  share, tokens, n_rows, hidden, error);
}

/* loss = log(sum exp(l_j - m)) + m - l_label, m = max l_j; gradient exp(l_j - m) / sum - [j =
 * label].  m, the sum and the label's logit are of all ranks. */

typedef struct model_entropy_args {
    float* logits;
    memo_share share;
    int64_t vocabulary;
    const int32_t* labels;
    int64_t n_rows;
    float scale;
    float *losses, *maxima, *sums; /* sums, then the labels' logits */
} model_entropy_args;

static memo_status model_entropy_max_run(void* args, memo_error* error) {
    const model_entropy_args* a = (const model_entropy_args*)args;
    int64_t r, j;
    (void)error;
    for (r = 0; r < a->n_rows; r++) {
        const float* row = a->logits + r * a->share.count;
        float most = -INFINITY; /* a rank may have none */
        for (j = 0; j < a->share.count; j++) most = row[j] > most ? row[j] : most;
        a->maxima[r] = most;
    }
    return MEMO_STATUS_OK;
}

static memo_status model_entropy_sum_run(void* args, memo_error* error) {
    const model_entropy_args* a = (const model_entropy_args*)args;
    int64_t r, j;
    (void)error;
    for (r = 0; r < a->n_rows; r++) {
        float* row = a->logits + r * a->share.count;
        int64_t label = a->labels[r] - a->share.begin;
        float sum = 0;
        a->sums[a->n_rows + r] = label >= 0 && label < a->share.count ? row[label] : 0;
        for (j = 0; j < a->share.count; j++) {
            row[j] = expf(row[j] - a->maxima[r]);
            sum += row[j];
        }
        a->sums[r] = sum;
    }
    return MEMO_STATUS_OK;
}

static memo_status model_entropy_loss_run(void* args, memo_error* error) {
    const model_entropy_args* a = (const model_entropy_args*)args;
    int64_t r, j;
    (void)error;
    for (r = 0; r < a->n_rows; r++) {
        float* row = a->logits + r * a->share.count;
        int is_counted = a->labels[r] >= 0 && a->labels[r] < a->vocabulary;
        int64_t label = a->labels[r] - a->share.begin;
        float factor = is_counted ? a->scale / a->sums[r] : 0;
        for (j = 0; j < a->share.count; j++) row[j] *= factor;
        if (is_counted && label >= 0 && label < a->share.count) row[label] -= a->scale;
        a->losses[r] = is_counted ? logf(a->sums[r]) + a->maxima[r] - a->sums[a->n_rows + r] : 0;
    }
    return MEMO_STATUS_OK;
}

static memo_status model_cross_entropy(memo_device* host_device, memo_comm* comm,
                                       memo_stream stream, float* logits, memo_share share,
                                       int64_t vocabulary, const int32_t* labels, int64_t n_rows,
                                       float scale, float* losses, float* scratch,
                                       memo_error* error) {
    model_entropy_args args;
    memo_status status;
    args.logits = logits;
    args.share = share;
    args.vocabulary = vocabulary;
    args.labels = labels;
    args.n_rows = n_rows;
    args.scale = scale;
    args.losses = losses;
    args.maxima = scratch;
    args.sums = scratch + n_rows;

    /* Maxima and sums over all ranks make the softmax, then each rank has its losses. */
    status = memo_host_device_launch(host_device, stream, model_entropy_max_run, &args, sizeof args,
                                     error);
    if (!status)
        status = memo_all_reduce(comm, stream, args.maxima, args.maxima, n_rows, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_MAX, error);
    if (!status)
        status = memo_host_device_launch(host_device, stream, model_entropy_sum_run, &args,
                                         sizeof args, error);
    if (!status)
        status = memo_all_reduce(comm, stream, args.sums, args.sums, 2 * n_rows, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_SUM, error);
    if (!status)
        status = memo_host_device_launch(host_device, stream, model_entropy_loss_run, &args,
                                         sizeof args, error);
    return status;
}

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
static float model_keep(int32_t block, int64_t row, int64_t column) {
    return model_value(900 + (uint64_t)block, row * HIDDEN + column) < -0.375f ? 0.0f : 8.0f / 7.0f;
}

/* ---- one row ---- */

static void model_norm(const float* h, float* x) {
    float sum = 0, factor;
    int i;
    for (i = 0; i < HIDDEN; i++) sum += h[i] * h[i];
    factor = 1.0f / sqrtf(sum / HIDDEN + 1e-3f);
    for (i = 0; i < HIDDEN; i++) x[i] = h[i] * factor;
}

/* d += gradient through the norm of h. */
static void model_norm_backward(const float* h, const float* dx, float* d) {
    float sum = 0, dot = 0, factor;
    int i;
    for (i = 0; i < HIDDEN; i++) sum += h[i] * h[i];
    factor = 1.0f / sqrtf(sum / HIDDEN + 1e-3f);
    for (i = 0; i < HIDDEN; i++) dot += dx[i] * h[i];
    for (i = 0; i < HIDDEN; i++) d[i] += factor * (dx[i] - h[i] * dot * factor * factor / HIDDEN);
}

static void model_residual(const blocks_model* m, int32_t block, int64_t r, float* to) {
    int i;
    for (i = 0; i < HIDDEN; i++)
        to[r * HIDDEN + i] =
            m->h[block][r * HIDDEN + i] + model_keep(block, r, i) * m->y[r * HIDDEN + i];
}

static int64_t model_first_key(const blocks_model* m, int64_t row) {
    return row / m->sequence * m->sequence;
}

/* Probabilities of a row's visible keys. */
static void model_softmax(const blocks_model* m, int64_t row, int64_t head, float* p) {
    int64_t first = model_first_key(m, row), w = m->heads.count * HEAD, c;
    float most = -INFINITY, sum = 0;
    int i;
    for (c = first; c <= row; c++) {
        float s = 0;
        for (i = 0; i < HEAD; i++)
            s += m->q[row * w + head * HEAD + i] * m->k[c * w + head * HEAD + i];
        p[c - first] = s;
        most = s > most ? s : most;
    }
    for (c = first; c <= row; c++) sum += p[c - first] = expf(p[c - first] - most);
    for (c = first; c <= row; c++) p[c - first] /= sum;
}

/* ---- functions on the streams, between the products ---- */

typedef struct model_work {
    blocks_model* m;
    memo_block_call call;
} model_work;

/* Rows of a part. */
static int64_t model_begin(const model_work* w) { return (int64_t)w->call.part * w->m->part_rows; }
static int64_t model_end(const model_work* w) { return model_begin(w) + w->m->part_rows; }
/* The block's normed input. */
static memo_status model_enter(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int32_t i = w->call.block;
    int64_t r;
    (void)error;
    for (r = model_begin(w); r < model_end(w); r++) {
        if (!w->call.is_input_saved) model_residual(m, i - 1, r, m->h[i]);
        model_norm(m->h[i] + r * HIDDEN, m->x[i % 2] + r * HIDDEN);
    }
    return MEMO_STATUS_OK;
}

static memo_status model_attend(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int64_t r, c, a, n = m->heads.count * HEAD;
    float p[ROWS];
    int i;
    (void)error;
    for (r = model_begin(w); r < model_end(w); r++)
        for (a = 0; a < m->heads.count; a++) {
            int64_t first = model_first_key(m, r);
            model_softmax(m, r, a, p);
            for (i = 0; i < HEAD; i++) {
                float sum = 0;
                for (c = first; c <= r; c++) sum += p[c - first] * m->v[c * n + a * HEAD + i];
                m->o[r * n + a * HEAD + i] = sum;
                m->dk[r * n + a * HEAD + i] = m->dv[r * n + a * HEAD + i] = 0;
            }
        }
    return MEMO_STATUS_OK;
}

static memo_status model_activate(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int64_t j;
    (void)error;
    for (j = model_begin(w) * m->width.count; j < model_end(w) * m->width.count; j++)
        m->act[j] = tanhf(m->up[j]);
    return MEMO_STATUS_OK;
}

/* The gradient of the output stream, from the block above. */
static memo_status model_return(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int32_t i = w->call.block;
    int64_t r;
    (void)error;
    for (r = model_begin(w); r < model_end(w) && i < N_BLOCKS - 1; r++)
        model_norm_backward(m->h[i + 1] + r * HIDDEN, m->g + r * HIDDEN, m->d + r * HIDDEN);
    return MEMO_STATUS_OK;
}

static memo_status model_drop(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int64_t r;
    int i;
    (void)error;
    for (r = model_begin(w); r < model_end(w); r++)
        for (i = 0; i < HIDDEN; i++)
            m->dy[r * HIDDEN + i] = model_keep(w->call.block, r, i) * m->d[r * HIDDEN + i];
    return MEMO_STATUS_OK;
}

static memo_status model_attend_backward(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int64_t r, c, a, n = m->heads.count * HEAD;
    float p[ROWS], dp[ROWS];
    int i;
    (void)error;
    for (r = model_begin(w); r < model_end(w); r++)
        for (a = 0; a < m->heads.count; a++) {
            int64_t first = model_first_key(m, r), at = a * HEAD;
            float dot = 0;
            model_softmax(m, r, a, p);

            /* dp and dv, and the row sum of p dp. */
            for (c = first; c <= r; c++) {
                float sum = 0;
                for (i = 0; i < HEAD; i++) {
                    sum += m->d_o[r * n + at + i] * m->v[c * n + at + i];
                    m->dv[c * n + at + i] += p[c - first] * m->d_o[r * n + at + i];
                }
                dp[c - first] = sum;
                dot += sum * p[c - first];
            }

            /* Through the softmax to dq and dk. */
            for (i = 0; i < HEAD; i++) m->dq[r * n + at + i] = 0;
            for (c = first; c <= r; c++) {
                float ds = p[c - first] * (dp[c - first] - dot);
                for (i = 0; i < HEAD; i++) {
                    m->dq[r * n + at + i] += ds * m->k[c * n + at + i];
                    m->dk[c * n + at + i] += ds * m->q[r * n + at + i];
                }
            }
        }
    return MEMO_STATUS_OK;
}

static memo_status model_activate_backward(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    blocks_model* m = w->m;
    int64_t j;
    (void)error;
    for (j = model_begin(w) * m->width.count; j < model_end(w) * m->width.count; j++)
        m->up[j] *= 1 - m->act[j] * m->act[j]; /* up holds the gradient of act by now */
    return MEMO_STATUS_OK;
}

static memo_status model_add_piece(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    int64_t j;
    (void)error;
    for (j = model_begin(w) * HIDDEN; j < model_end(w) * HIDDEN; j++) w->m->g[j] += w->m->piece[j];
    return MEMO_STATUS_OK;
}

static memo_status model_leave(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    int64_t r;
    (void)error;
    for (r = model_begin(w); r < model_end(w); r++)
        model_residual(w->m, N_BLOCKS - 1, r, w->m->out);
    return MEMO_STATUS_OK;
}

static memo_status model_leave_backward(void* args, memo_error* error) {
    const model_work* w = (const model_work*)args;
    int64_t r;
    (void)error;
    for (r = model_begin(w); r < model_end(w); r++)
        model_norm_backward(w->m->h[0] + r * HIDDEN, w->m->g + r * HIDDEN, w->m->d + r * HIDDEN);
    return MEMO_STATUS_OK;
}

/* By value, because the next step's forward changes them while this step's work is still in the
 * stream. */
typedef struct forget_work {
    blocks_model* m;
    int32_t is_kept[N_BLOCKS];
} forget_work;

/* What recomputation has to bring back. */
static memo_status model_forget(void* args, memo_error* error) {
    const forget_work* work = (const forget_work*)args;
    blocks_model* m = work->m;
    int64_t w = m->heads.count * HEAD, j;
    int i;
    (void)error;
    for (i = 0; i < N_BLOCKS; i++)
        for (j = 0; j < ROWS * HIDDEN && !work->is_kept[i]; j++) m->h[i][j] = NAN;
    for (j = 0; j < ROWS * HIDDEN; j++) m->x[0][j] = m->x[1][j] = m->y[j] = m->g[j] = NAN;
    for (j = 0; j < ROWS * w; j++) m->q[j] = m->k[j] = m->v[j] = m->o[j] = NAN;
    for (j = 0; j < ROWS * m->width.count; j++) m->up[j] = m->act[j] = NAN;
    return MEMO_STATUS_OK;
}

static memo_status model_norm_all(void* args, memo_error* error) {
    blocks_model* m = ((const model_work*)args)->m;
    int64_t r;
    (void)error;
    for (r = 0; r < ROWS; r++) model_norm(m->out + r * HIDDEN, m->final_x + r * HIDDEN);
    return MEMO_STATUS_OK;
}

static memo_status model_norm_all_backward(void* args, memo_error* error) {
    blocks_model* m = ((const model_work*)args)->m;
    int64_t r;
    (void)error;
    memset(m->d, 0, ROWS * HIDDEN * sizeof(float));
    for (r = 0; r < ROWS; r++)
        model_norm_backward(m->out + r * HIDDEN, m->d_final + r * HIDDEN, m->d + r * HIDDEN);
    return MEMO_STATUS_OK;
}

static memo_status model_launch(blocks_model* m, const memo_block_call* call, memo_host_function f,
                                memo_error* error) {
    model_work work;
    work.m = m;
    work.call = *call;
    return memo_host_device_launch(m->rank->device, call->stream, f, &work, sizeof work, error);
}

/* ---- block functions ---- */

#define AT(array, width) ((array) + (int64_t)call->part * m->part_rows * (width))

static memo_status model_compute(blocks_model* m, const memo_block_call* call, int has_output,
                                 memo_error* error) {
    linear_layer* l = m->linears[call->block / 2];
    int64_t n = m->part_rows, w = m->heads.count * HEAD;
    const float* x = AT(m->x[call->block % 2], HIDDEN);
    if (model_launch(m, call, model_enter, error)) return error->status;
    if (call->block % 2 == 0) {
        if (linear_forward(&l[0], call->stream, x, AT(m->q, w), n, error) ||
            linear_forward(&l[1], call->stream, x, AT(m->k, w), n, error) ||
            linear_forward(&l[2], call->stream, x, AT(m->v, w), n, error) ||
            model_launch(m, call, model_attend, error))
            return error->status;
        if (!has_output) return MEMO_STATUS_OK;
        return linear_forward(&l[3], call->stream, AT(m->o, w), AT(m->y, HIDDEN), n, error);
    }
    if (linear_forward(&l[4], call->stream, x, AT(m->up, m->width.count), n, error) ||
        model_launch(m, call, model_activate, error))
        return error->status;
    if (!has_output) return MEMO_STATUS_OK;
    return linear_forward(&l[5], call->stream, AT(m->act, m->width.count), AT(m->y, HIDDEN), n,
                          error);
}

static memo_status model_forward(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    m->n_calls[0]++;
    m->is_kept[call->block] = call->keeps_input;
    return model_compute(m, call, 1, error);
}

static memo_status model_recompute(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    m->n_calls[1]++;
    return model_compute(m, call, call->has_output, error);
}

static memo_status model_backward(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    linear_layer* l = m->linears[call->block / 2];
    int64_t n = m->part_rows, w = m->heads.count * HEAD, wide = m->width.count;
    float *g = AT(m->g, HIDDEN), *piece = AT(m->piece, HIDDEN), *dy = AT(m->dy, HIDDEN);
    m->n_calls[2]++;
    if (model_launch(m, call, model_return, error) || model_launch(m, call, model_drop, error))
        return error->status;
    if (call->block % 2) {
        if (linear_backward(&l[5], call->stream, dy, AT(m->up, wide), n, error) ||
            model_launch(m, call, model_activate_backward, error) ||
            linear_backward(&l[4], call->stream, AT(m->up, wide), g, n, error))
            return error->status;
        return MEMO_STATUS_OK;
    }
    if (linear_backward(&l[3], call->stream, dy, AT(m->d_o, w), n, error) ||
        model_launch(m, call, model_attend_backward, error) ||
        linear_backward(&l[0], call->stream, AT(m->dq, w), g, n, error) ||
        linear_backward(&l[1], call->stream, AT(m->dk, w), piece, n, error) ||
        model_launch(m, call, model_add_piece, error) ||
        linear_backward(&l[2], call->stream, AT(m->dv, w), piece, n, error))
        return error->status;
    return model_launch(m, call, model_add_piece, error);
}

static memo_status model_weights(void* context, const memo_block_call* call, memo_error* error) {
    blocks_model* m = (blocks_model*)context;
    linear_layer* l = m->linears[call->block / 2];
    int64_t n = m->part_rows, w = m->heads.count * HEAD, wide = m->width.count;
    const float *x = AT(m->x[call->block % 2], HIDDEN), *dy = AT(m->dy, HIDDEN);
    m->n_calls[3]++;
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
    return model_launch((blocks_model*)context, call, model_leave, error);
}
static memo_status model_backward_end(void* context, const memo_block_call* call,
                                      memo_error* error) {
    return model_launch((blocks_model*)context, call, model_leave_backward, error);
}
/* ---- a rank ---- */

static void model_linear(blocks_model* m, linear_layer* l, linear_split split, uint64_t tag,
                         int64_t n_out, int64_t n_in, memo_share share, int has_bias) {
    int64_t o, i, rows = split == LINEAR_COLUMN ? share.count : n_out;
    int64_t columns = split == LINEAR_COLUMN ? n_in : share.count;
    float *weights = model_floats(m, rows * columns), *bias = model_floats(m, rows);
    memset(l, 0, sizeof *l);
    l->device = m->rank->device;
    l->split = split;
    l->rank = m->rank->comm->rank;
    l->n_in = columns;
    l->n_out = rows;

    /* The weights depend on their place in the whole matrix only, so every split has the same
     * model. */
    for (o = 0; o < rows; o++) {
        int64_t row = split == LINEAR_COLUMN ? share.begin + o : o;
        for (i = 0; i < columns; i++)
            weights[o * columns + i] =
                0.5f * model_value(tag, row * n_in + (split == LINEAR_ROW ? share.begin : 0) + i);
        bias[o] = 0.2f * model_value(tag + 1000, row);
    }

    l->weights = weights;
    l->d_weights = model_floats(m, rows * columns);
    if (has_bias) {
        l->bias = bias;
        l->d_bias = model_floats(m, rows);
    }
}

static void model_make(blocks_model* m, thread_rank* rank, const model_setup* setup) {
    int32_t T = rank->comm->size, me = rank->comm->rank, i, layer;
    int64_t w, r, c;
    memset(m, 0, sizeof *m);

    /* This rank's share of heads, width and vocabulary. */
    m->setup = setup;
    m->rank = rank;
    m->T = T;
    m->part_rows = ROWS / setup->n_parts;
    m->sequence = setup->splits_sequence ? ROWS : ROWS / MAX_SPLIT;
    m->heads = memo_share_of(N_HEADS, T, me);
    m->width = memo_share_of(WIDTH, T, me);
    m->vocabulary = memo_share_of(VOCABULARY, T, me); /* 23: ranks have different shares */
    w = m->heads.count * HEAD;

    /* Tokens and labels; some labels are ignored. */
    for (r = 0; r < ROWS; r++) {
        m->tokens[r] = (int32_t)((model_value(7, r) + 0.5f) * VOCABULARY);
        m->labels[r] = r % 9 == 8 ? -1 : (int32_t)((model_value(8, r) + 0.5f) * VOCABULARY);
    }

    /* Linear layers: q, k, v, projection, and the MLP's two. */
    for (layer = 0; layer < N_LAYERS; layer++) {
        memo_share by_head;
        linear_layer* l = m->linears[layer];
        uint64_t tag = 10 + 20 * (uint64_t)layer;
        by_head.begin = m->heads.begin * HEAD;
        by_head.count = m->heads.count * HEAD;
        for (i = 0; i < 3; i++)
            model_linear(m, &l[i], LINEAR_COLUMN, tag + (uint64_t)i, N_HEADS * HEAD, HIDDEN,
                         by_head, 1);
        model_linear(m, &l[3], LINEAR_ROW, tag + 3, HIDDEN, N_HEADS * HEAD, by_head, 1);
        model_linear(m, &l[4], LINEAR_COLUMN, tag + 4, WIDTH, HIDDEN, m->width, 1);
        model_linear(m, &l[5], LINEAR_ROW, tag + 5, HIDDEN, WIDTH, m->width, 1);
    }
    model_linear(m, &m->head, LINEAR_COLUMN, 5, VOCABULARY, HIDDEN, m->vocabulary, 0);

    m->table = model_floats(m, m->vocabulary.count * HIDDEN);
    m->d_table = model_floats(m, m->vocabulary.count * HIDDEN);
    for (r = 0; r < m->vocabulary.count; r++)
        for (c = 0; c < HIDDEN; c++)
            m->table[r * HIDDEN + c] = model_value(6, (m->vocabulary.begin + r) * HIDDEN + c);

    /* Activations of all rows. */
    for (i = 0; i < N_BLOCKS; i++) m->h[i] = model_floats(m, ROWS * HIDDEN);
    m->out = model_floats(m, ROWS * HIDDEN);
    m->d = model_floats(m, ROWS * HIDDEN);
    m->dy = model_floats(m, ROWS * HIDDEN);
    m->y = model_floats(m, ROWS * HIDDEN);
    m->g = model_floats(m, ROWS * HIDDEN);
    m->piece = model_floats(m, ROWS * HIDDEN);
    m->final_x = model_floats(m, ROWS * HIDDEN);
    m->d_final = model_floats(m, ROWS * HIDDEN);
    for (i = 0; i < 2; i++) m->x[i] = model_floats(m, ROWS * HIDDEN);

    m->q = model_floats(m, ROWS * w);
    m->k = model_floats(m, ROWS * w);
    m->v = model_floats(m, ROWS * w);
    m->o = model_floats(m, ROWS * w);
    m->dq = model_floats(m, ROWS * w);
    m->dk = model_floats(m, ROWS * w);
    m->dv = model_floats(m, ROWS * w);
    m->d_o = model_floats(m, ROWS * w);
    m->up = model_floats(m, ROWS * m->width.count);
    m->act = model_floats(m, ROWS * m->width.count);
    m->logits = model_floats(m, ROWS * m->vocabulary.count);
    m->losses = model_floats(m, ROWS);
    m->scratch = model_floats(m, 3 * ROWS);
}

static void model_free(blocks_model* m) {
    while (m->n_memory > 0) CASE_FREE(m->memory[--m->n_memory]);
}

static memo_blocks_desc model_desc(blocks_model* m, const memo_device* device,
                                   memo_block_buffers* buffers) {
    memo_blocks_desc desc = memo_blocks_desc_default();
    int s;
    desc.device = device;
    desc.compute_stream = m->rank->stream;
    desc.comm = m->rank->comm;
    desc.type = MEMO_TYPE_F32;

    desc.schedule.order = m->setup->order;
    desc.schedule.n_blocks = N_BLOCKS;
    desc.schedule.n_parts = m->setup->n_parts;
    desc.schedule.splits_sequence = m->setup->splits_sequence;
    desc.buffers = buffers;

    desc.functions.context = m;
    desc.functions.forward = model_forward;
    desc.functions.recompute = model_recompute;
    desc.functions.backward = model_backward;
    desc.functions.weights = model_weights;
    desc.functions.forward_end = model_forward_end;
    desc.functions.backward_end = model_backward_end;

    for (s = 0; s < m->setup->n_parts; s++) {
        int64_t at = (int64_t)s * m->part_rows * HIDDEN;
        memset(&buffers[s], 0, sizeof buffers[s]);
        buffers[s].output = m->y + at;
        buffers[s].gradient = m->g + at;
        buffers[s].count = (int64_t)m->part_rows * HIDDEN;
    }
    return desc;
}

static memo_status model_pass(blocks_model* m, memo_blocks* blocks, int is_backward,
                              memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int32_t layer;
    if (!m->setup->by_layer)
        return is_backward ? memo_blocks_backward(blocks, error)
                           : memo_blocks_forward(blocks, error);
    for (layer = 0; layer < N_LAYERS && !status; layer++)
        status = is_backward ? memo_blocks_backward_layer(blocks, N_LAYERS - 1 - layer, error)
                             : memo_blocks_forward_layer(blocks, layer, error);
    return status;
}

static memo_status model_step(blocks_model* m, memo_blocks* blocks, memo_error* error) {
    memo_stream stream = m->rank->stream;
    memo_device* device = m->rank->device;
    memo_comm* comm = m->rank->comm;
    memo_block_call call;
    forget_work forget;
    memset(&call, 0, sizeof call);
    call.stream = stream;

    if (model_embedding_forward(device, comm, stream, m->table, m->vocabulary, m->tokens, ROWS,
                                HIDDEN, m->h[0], error) ||
        model_pass(m, blocks, 0, error))
        return error->status;

    /* Activations that recomputation restores are overwritten. */
    forget.m = m;
    memcpy(forget.is_kept, m->is_kept, sizeof forget.is_kept);
    if (memo_host_device_launch(device, stream, model_forget, &forget, sizeof forget, error) ||
        model_launch(m, &call, model_norm_all, error) ||
        linear_forward(&m->head, stream, m->final_x, m->logits, ROWS, error) ||
        model_cross_entropy(device, comm, stream, m->logits, m->vocabulary, VOCABULARY, m->labels,
                            ROWS, 1.0f / ROWS, m->losses, m->scratch, error) ||
        linear_backward(&m->head, stream, m->logits, m->d_final, ROWS, error) ||
        linear_weights(&m->head, stream, m->final_x, m->logits, ROWS, error) ||
        memo_all_reduce(comm, stream, m->d_final, m->d_final, ROWS * HIDDEN, MEMO_TYPE_F32,
                        MEMO_REDUCTION_SUM, error) ||
        model_launch(m, &call, model_norm_all_backward, error) || model_pass(m, blocks, 1, error))
        return error->status;

    return model_embedding_backward(device, stream, m->d_table, m->vocabulary, m->tokens, ROWS,
                                    HIDDEN, m->d, error);
}

static memo_error error;

/* ---- one run ---- */

/* The recording of one rank. */
typedef struct recorded_rank {
    memo_status compared;
    char difference[200];
    int64_t n_recorded, n_races;
} recorded_rank;

typedef struct job {
    model_setup setup;
    float* losses;       /* ROWS */
    float* gradients[8]; /* of each rank */
    int64_t n_gradients[8];
    int n_calls[4]; /* of rank 0 */
    recorded_rank recorded[8];
    /* Of all ranks: the first that differs, the sum of races. */
    int64_t n_recorded, n_races;
    memo_status compared;
    char difference[240];
    /* One weight of the unsplit model moved by this much. */
    int64_t nudged;
    float nudge;
} job;

/* All gradients of a rank in one array, or the weights if gradients is NULL. */
static int64_t for_gradients(blocks_model* m, float* to, float** weight, int64_t at) {
    int64_t n = 0;
    int layer, k;
    for (layer = 0; layer <= N_LAYERS; layer++)
        for (k = 0; k < (layer < N_LAYERS ? N_LINEARS : 1); k++) {
            linear_layer* l = layer < N_LAYERS ? &m->linears[layer][k] : &m->head;
            int64_t size = l->n_in * l->n_out;
            if (to) memcpy(to + n, l->d_weights, (size_t)size * sizeof(float));
            if (weight && at >= n && at < n + size)
                *weight = (float*)(uintptr_t)l->weights + (at - n);
            n += size;
            if (!l->d_bias) continue;
            if (to) memcpy(to + n, l->d_bias, (size_t)l->n_out * sizeof(float));
            if (weight && at >= n && at < n + l->n_out)
                *weight = (float*)(uintptr_t)l->bias + (at - n);
            n += l->n_out;
        }
    if (to) memcpy(to + n, m->d_table, (size_t)(m->vocabulary.count * HIDDEN) * sizeof(float));
    if (weight && at >= n) *weight = m->table + (at - n);
    return n + m->vocabulary.count * HIDDEN;
}

/* The enqueued operations have the papers' order, and are those of the generated schedule of a step
 * and of the recording, if there is one, which has no race. */
static void compare_recorded(const memo_blocks_desc* desc, int n_steps,
                             const memo_schedule* recorded, const blocks_log* log,
                             recorded_rank* result) {
    const int32_t passes = MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD |
                           (desc->functions.weights ? MEMO_BLOCKS_WEIGHTS : 0);
    memo_schedule* generated = NULL;
    memo_check* check = NULL;
    memo_error difference;
    memo_status status =
        memo_blocks_generate(&desc->schedule, NULL, passes, &generated, &difference);
    if (!status) status = blocks_log_check(log, n_steps, &difference);
    if (!status && n_steps == 1) status = blocks_log_compare(log, generated, &difference);
    if (!status && recorded) status = blocks_log_compare(log, recorded, &difference);
    if (!status) status = memo_schedule_check(recorded ? recorded : generated, &check, &difference);
    if (!status) result->n_races = check->n_races + check->n_unrecorded_waits;

    result->n_recorded = log->n;
    result->compared = status;
    snprintf(result->difference, sizeof result->difference, "%.199s",
             status ? difference.message : "");
    memo_check_destroy(check);
    memo_schedule_destroy(generated);
}

static memo_status run_model(blocks_model* m, thread_rank* rank, job* j, memo_error* e) {
    memo_block_buffers buffers[MAX_SPLIT];
    memo_blocks_desc desc = model_desc(m, rank->device, buffers);
    memo_recorder_desc recorder_desc = memo_recorder_desc_default();
    memo_recorder* recorder = NULL;
    memo_blocks* blocks = NULL;
    memo_status status = MEMO_STATUS_OK;
    blocks_log log;
    int step;
    memset(&log, 0, sizeof log);
    recorder_desc.device = rank->device;

    /* The log wraps the recorder, which wraps the device. */
    if (j->setup.is_recorded) {
        status = memo_recorder_create(&recorder_desc, &recorder, e);
        if (status) return status;
        desc.device = memo_recorder_get_device(recorder);
        blocks_log_init(&log, &desc);
        status = memo_recorder_name_stream(recorder, rank->stream, "compute", e);
    }

    if (!status) status = memo_blocks_create(&desc, &blocks, e);
    for (step = 0; step < j->setup.n_steps && !status; step++) status = model_step(m, blocks, e);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);

    if (!status && recorder) {
        memo_schedule* recorded;
        status = memo_recorder_get_schedule(recorder, &recorded, e);
        if (!status)
            compare_recorded(&desc, j->setup.n_steps, recorded, &log,
                             &j->recorded[rank->comm->rank]);
    }

    memo_blocks_destroy(blocks);
    memo_recorder_destroy(recorder);
    blocks_log_free(&log);
    return status;
}

static memo_status run_rank(thread_rank* rank, memo_error* e) {
    job* j = (job*)rank->user;
    int32_t me = rank->comm->rank;
    blocks_model* m = (blocks_model*)malloc(sizeof *m);
    memo_status status;
    if (!m) abort();
    model_make(m, rank, &j->setup);
    if (j->nudge != 0) {
        float* weight = NULL;
        (void)for_gradients(m, NULL, &weight, j->nudged);
        *weight += j->nudge;
    }
    status = run_model(m, rank, j, e);
    j->n_gradients[me] = for_gradients(m, NULL, NULL, 0);
    j->gradients[me] = (float*)malloc((size_t)j->n_gradients[me] * sizeof(float));
    if (!j->gradients[me]) abort();
    (void)for_gradients(m, j->gradients[me], NULL, 0);
    if (me == 0) {
        memcpy(j->losses, m->losses, ROWS * sizeof(float));
        memcpy(j->n_calls, m->n_calls, sizeof j->n_calls);
    }
    model_free(m);
    free(m);
    return status;
}

static job* run_job(int T, const model_setup* setup) {
    job* j = (job*)calloc(1, sizeof *j);
    int r;
    if (!j) abort();
    j->setup = *setup;
    j->losses = (float*)calloc(ROWS, sizeof(float));
    CHECK_OK(CASE_RANKS_RUN(T, run_rank, j, &error));
    for (r = 0; r < 8; r++) { /* ranks of other processes have recorded nothing here */
        const recorded_rank* of = &j->recorded[r];
        j->n_recorded += of->n_recorded;
        j->n_races += of->n_races;
        if (of->compared && !j->compared)
            snprintf(j->difference, sizeof j->difference, "rank %d, %s", r, of->difference);
        if (of->compared) j->compared = of->compared;
    }
    return j;
}

static void free_job(job* j) {
    int r;
    for (r = 0; r < 8; r++) free(j->gradients[r]);
    free(j->losses);
    free(j);
}

static int is_same(const job* a, const job* b) {
    int r;
    if (memcmp(a->losses, b->losses, ROWS * sizeof(float))) return 0;
    for (r = 0; r < 8; r++) {
        if (a->n_gradients[r] != b->n_gradients[r]) return 0;
        if (a->n_gradients[r] &&
            memcmp(a->gradients[r], b->gradients[r], (size_t)a->n_gradients[r] * sizeof(float)))
            return 0;
    }
    return 1;
}

static model_setup setup_of(memo_blocks_order order, int n_parts) {
    model_setup setup;
    memset(&setup, 0, sizeof setup);
    setup.order = order;
    setup.n_parts = n_parts;
    setup.n_steps = 1;
    return setup;
}

/* ---- within rounding: the unsplit model, one rank and one part ---- */

/* Keeps the larger one; NaN counts as the largest. */
static void keep_worst(double* worst, double a, double b) {
    double difference = fabs(a - b);
    if (!(difference <= *worst)) *worst = difference == difference ? difference : INFINITY;
}

/* The largest difference of losses and gradients, each in its place in the unsplit model. */
static double compare_unsplit(const job* whole, const job* split, int T, const char* what) {
    int r, layer, k;
    double worst = 0;
    for (r = 0; r < ROWS; r++) {
        keep_worst(&worst, (double)whole->losses[r], (double)split->losses[r]);
    }

    for (r = 0; r < T; r++) {
        int64_t at = 0, base = 0, o, i;
        const float *g = split->gradients[r], *w = whole->gradients[0];
        memo_share heads = memo_share_of(N_HEADS, T, r), width = memo_share_of(WIDTH, T, r);
        memo_share vocabulary = memo_share_of(VOCABULARY, T, r);
        if (!g) continue; /* a rank of another process */

        /* Weights, then biases, in the order of model_linear. */
        for (layer = 0; layer <= N_LAYERS; layer++)
            for (k = 0; k < (layer < N_LAYERS ? N_LINEARS : 1); k++) {
                int is_row = layer < N_LAYERS && (k == 3 || k == 5);
                int64_t n_out = layer == N_LAYERS ? VOCABULARY
                                : is_row          ? HIDDEN
                                : k == 4          ? WIDTH
                                                  : N_HEADS * HEAD;
                int64_t n_in = k == 3 ? N_HEADS * HEAD : k == 5 ? WIDTH : HIDDEN;
                memo_share s = layer == N_LAYERS ? vocabulary : k >= 4 ? width : heads;
                if (layer < N_LAYERS && k < 4) {
                    s.begin *= HEAD;
                    s.count *= HEAD;
                }
                for (o = 0; o < (is_row ? n_out : s.count); o++)
                    for (i = 0; i < (is_row ? s.count : n_in); i++) {
                        int64_t from =
                            base + (is_row ? o * n_in + s.begin + i : (s.begin + o) * n_in + i);
                        keep_worst(&worst, (double)g[at++], (double)w[from]);
                    }
                base += n_out * n_in;
                if (layer == N_LAYERS) continue;
                for (o = 0; o < (is_row ? n_out : s.count); o++) {
                    keep_worst(&worst, (double)g[at++],
                               (double)w[base + (is_row ? 0 : s.begin) + o]);
                }
                base += n_out;
            }

        for (o = 0; o < vocabulary.count * HIDDEN; o++) {
            keep_worst(&worst, (double)g[at++], (double)w[base + vocabulary.begin * HIDDEN + o]);
        }
        CHECK_IS(at, ==, split->n_gradients[r]);
    }
    CHECK_CASE(worst < 3e-6, "%s: %g", what, worst); /* values are of order 1 */
    return worst;
}

#endif
