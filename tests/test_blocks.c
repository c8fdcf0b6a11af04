/* test_blocks.c - chapter 8 of memo_sp.h over threads: the recorded schedule, the layers of a split
 * model, order and errors.  Losses and gradients match the default order bitwise, and the unsplit
 * model up to rounding. */
#include "extras/memo_layout.h"
#include "extras/memo_look.h"
#include "bench/block_parts.h"
#include "measure_collective.h"
#include "memo_test.h"
#include "stats.h"
#include "thread_ranks.h"
#include "blocks_model.h"

/* ---- bitwise: every order computes the same as the default order ---- */

#ifdef MEMO_TEST_VALGRIND
#define SPLIT_STEP 2 /* T = 1, 4 */
#else
#define SPLIT_STEP 1
#endif

static void same_bits(int splits_sequence) {
    static const int splits[] = {1, 2, 4, 8};
    int t, n_parts, order, r;
    for (t = 0; t < 4; t += SPLIT_STEP)
        for (n_parts = 1; n_parts <= 4; n_parts *= 2) {
            model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, n_parts);
            job* expected;
            setup.n_steps = 2; /* gradients add up, buffers are used again */
            setup.splits_sequence = splits_sequence;
            setup.is_recorded = 1;
            expected = run_job(splits[t], &setup);
            for (order = MEMO_BLOCKS_DEFAULT; order <= MEMO_BLOCKS_FINE; order++) {
                job* found;
                setup.order = (memo_blocks_order)order;
                setup.by_layer = (order + t) % 2;
                found = run_job(splits[t], &setup);
                CHECK_CASE(is_same(expected, found), "%s, T = %d, %d parts",
                           memo_blocks_order_name(setup.order), splits[t], n_parts);
                CHECK_CASE(!found->compared, "%s, T = %d, %d parts: %s",
                           memo_blocks_order_name(setup.order), splits[t], n_parts,
                           found->difference);
                CHECK_IS(found->n_races, ==, 0);
                for (r = 0; r < splits[t]; r++) CHECK_IS(found->recorded[r].n_recorded, >, 0);
                free_job(found);
            }
            free_job(expected);
        }
}

TEST(orders_agree) { same_bits(0); }
TEST(orders_agree_on_a_sequence) { same_bits(1); }

/* ---- within rounding: the unsplit model, one rank and one part ---- */

TEST(equals_the_unsplit_model) {
    int T, n_parts, kind;
    double worst = 0;
    for (kind = 0; kind < 2; kind++) {
        model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, 1);
        job* whole;
        setup.splits_sequence = kind;
        whole = run_job(1, &setup);
        for (T = 1; T <= 8; T *= 2)
            for (n_parts = 1; n_parts <= 4; n_parts *= 2) {
                job* split;
                char what[80];
                setup.order = MEMO_BLOCKS_FINE;
                setup.n_parts = n_parts;
                split = run_job(T, &setup);
                snprintf(what, sizeof what, "T = %d, %d parts%s", T, n_parts,
                         kind ? " of a sequence" : "");
                keep_worst(&worst, compare_unsplit(whole, split, T, what), 0);
                free_job(split);
            }
        free_job(whole);
    }
    printf("# largest difference from the unsplit model: %.2g\n", worst);
}

/* The gradients are gradients: central differences of the loss. */
TEST(gradients_are_right) {
    model_setup setup = setup_of(MEMO_BLOCKS_FINE, 2);
    job* j = run_job(1, &setup);
    int n, side, r;
    for (n = 0; n < 40; n++) {
        int64_t at = memo_test_int(0, j->n_gradients[0] - 1);
        double loss[2], measured;
        for (side = 0; side < 2; side++) {
            job* moved = (job*)calloc(1, sizeof *moved);
            if (!moved) abort();
            moved->setup = setup;
            moved->losses = (float*)calloc(ROWS, sizeof(float));
            moved->nudged = at;
            moved->nudge = side ? 0.01f : -0.01f;
            CHECK_OK(thread_ranks_run(1, run_rank, moved, &error));
            for (loss[side] = 0, r = 0; r < ROWS; r++) loss[side] += moved->losses[r] / ROWS;
            free_job(moved);
        }
        measured = (loss[1] - loss[0]) / 0.02;
        CHECK_CASE(fabs(measured - (double)j->gradients[0][at]) < 2e-4 + 0.02 * fabs(measured),
                   "gradient %lld: %g, measured %g", (long long)at, (double)j->gradients[0][at],
                   measured);
    }
    free_job(j);
}

/* ---- degrees that change between blocks ----
 *
 * Three stages, each an attention and an MLP block of its own degree, dropout keyed by the row of
 * the whole batch.  The loss is a weighted sum of the output; it and the gradients, summed over the
 * data-parallel ranks, are compared with those of one rank and one part. */

enum {
    MIXED_STAGES = 3,
    MIXED_ROWS = 128,
    MIXED_TOKENS = 4, /* of a sequence */
    MIXED_LINEARS = 6,
    MIXED_STAGE_WEIGHTS = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * WIDTH,
    MIXED_GRADIENTS = MIXED_STAGES * MIXED_STAGE_WEIGHTS
};

typedef struct mixed_stage {
    memo_degree_comms comms;
    memo_blocks* blocks;
    blocks_log log;
    linear_layer linears[MIXED_LINEARS]; /* q, k, v, o, up, down */
    memo_share heads, width;             /* heads: in elements */
    int number, n_rows;                  /* of a part */
    int row[MAX_SPLIT][MIXED_ROWS];      /* of the batch, of each part */
    float weights[MIXED_LINEARS][HIDDEN * WIDTH], gradients[MIXED_LINEARS][HIDDEN * WIDTH];
    float h[2][MAX_SPLIT][MIXED_ROWS * HIDDEN]; /* of a block and part, as all that follows */
    float out[MAX_SPLIT][MIXED_ROWS * HIDDEN], d[MAX_SPLIT][MIXED_ROWS * HIDDEN];
    float dy[MAX_SPLIT][MIXED_ROWS * HIDDEN], piece[MAX_SPLIT][MIXED_ROWS * HIDDEN];
    float y[MAX_SPLIT][MIXED_ROWS * HIDDEN], g[MAX_SPLIT][MIXED_ROWS * HIDDEN];
    float act[MAX_SPLIT][MIXED_ROWS * WIDTH], d_act[MAX_SPLIT][MIXED_ROWS * WIDTH];
    float qkvo[4][MAX_SPLIT][MIXED_ROWS * HIDDEN], d_qkvo[4][MAX_SPLIT][MIXED_ROWS * HIDDEN];
} mixed_stage;

typedef struct mixed_job {
    int degrees[MIXED_STAGES], n_parts;
    memo_blocks_order order;
    float losses[8][MIXED_ROWS]; /* of each rank, of the rows it has, at the places of the whole */
    float gradients[8][MIXED_GRADIENTS]; /* likewise */
    char has[8][MIXED_GRADIENTS], has_row[8][MIXED_ROWS];
    recorded_rank recorded[8][MIXED_STAGES];
} mixed_job;

typedef struct mixed_work {
    mixed_stage* stage;
    memo_block_call call;
    int step; /* which of the pieces below */
} mixed_work;

enum {
    MIXED_ENTER,
    MIXED_ATTEND,
    MIXED_ACTIVATE,
    MIXED_RETURN,
    MIXED_ATTEND_BACKWARD,
    MIXED_DERIVE,
    MIXED_ADD,
    MIXED_LEAVE,
    MIXED_LEAVE_BACKWARD
};

static float mixed_keep(const mixed_stage* m, int block, int s, int r, int i) {
    return model_keep(2 * m->number + block, m->row[s][r], i);
}

static void mixed_residual(const mixed_stage* m, int block, int s, float* to) {
    int r, i;
    for (r = 0; r < m->n_rows; r++)
        for (i = 0; i < HIDDEN; i++)
            to[r * HIDDEN + i] = m->h[block][s][r * HIDDEN + i] +
                                 mixed_keep(m, block, s, r, i) * m->y[s][r * HIDDEN + i];
}

/* Row r of one head at column `at` over the tokens before it in its sequence: output, or
 * gradients. */
static void mixed_attend(mixed_stage* m, int s, int r, int at, int is_backward) {
    const int w = (int)m->heads.count, first = r / MIXED_TOKENS * MIXED_TOKENS;
    float *q = m->qkvo[0][s] + at, *k = m->qkvo[1][s] + at, *v = m->qkvo[2][s] + at;
    float *dq = m->d_qkvo[0][s] + at, *dk = m->d_qkvo[1][s] + at, *dv = m->d_qkvo[2][s] + at;
    const float* d_o = m->d_qkvo[3][s] + at;
    float p[MIXED_TOKENS], dp[MIXED_TOKENS], sum = 0, dot = 0;
    int c, i;
    for (c = first; c <= r; c++) {
        float score = 0;
        for (i = 0; i < HEAD; i++) score += q[r * w + i] * k[c * w + i];
        sum += p[c - first] = expf(score);
    }
    for (c = first; c <= r; c++) p[c - first] /= sum;
    for (i = 0; i < HEAD && !is_backward; i++) {
        float o = 0;
        for (c = first; c <= r; c++) o += p[c - first] * v[c * w + i];
        m->qkvo[3][s][r * w + at + i] = o;
        dq[r * w + i] = dk[r * w + i] = dv[r * w + i] = 0;
    }
    if (!is_backward) return;
    for (c = first; c <= r; c++) {
        dp[c - first] = 0;
        for (i = 0; i < HEAD; i++) {
            dp[c - first] += d_o[r * w + i] * v[c * w + i];
            dv[c * w + i] += p[c - first] * d_o[r * w + i];
        }
        dot += dp[c - first] * p[c - first];
    }
    for (c = first; c <= r; c++)
        for (i = 0; i < HEAD; i++) {
            float ds = p[c - first] * (dp[c - first] - dot);
            dq[r * w + i] += ds * k[c * w + i];
            dk[c * w + i] += ds * q[r * w + i];
        }
}

static memo_status mixed_piece(void* args, memo_error* e) {
    const mixed_work* w = (const mixed_work*)args;
    mixed_stage* m = w->stage;
    int s = w->call.part, block = w->call.block, r, i;
    int64_t j, n = (int64_t)m->n_rows * m->width.count, n_hidden = (int64_t)m->n_rows * HIDDEN;
    (void)e;
    switch (w->step) {
    case MIXED_ENTER:
        if (!w->call.is_input_saved) mixed_residual(m, block - 1, s, m->h[block][s]);
        break;
    case MIXED_ATTEND:
    case MIXED_ATTEND_BACKWARD:
        for (r = 0; r < m->n_rows; r++)
            for (i = 0; i < m->heads.count; i += HEAD)
                mixed_attend(m, s, r, i, w->step == MIXED_ATTEND_BACKWARD);
        break;
    case MIXED_ACTIVATE:
        for (j = 0; j < n; j++) m->act[s][j] = tanhf(m->act[s][j]);
        break;
    case MIXED_RETURN:
        for (r = 0; r < m->n_rows; r++)
            for (i = 0; i < HIDDEN; i++) {
                if (block == 0) m->d[s][r * HIDDEN + i] += m->g[s][r * HIDDEN + i];
                m->dy[s][r * HIDDEN + i] = mixed_keep(m, block, s, r, i) * m->d[s][r * HIDDEN + i];
            }
        break;
    case MIXED_DERIVE:
        for (j = 0; j < n; j++) m->d_act[s][j] *= 1 - m->act[s][j] * m->act[s][j];
        break;
    case MIXED_ADD:
        for (j = 0; j < n_hidden; j++) m->g[s][j] += m->piece[s][j];
        break;
    case MIXED_LEAVE: mixed_residual(m, 1, s, m->out[s]); break;
    default:
        for (j = 0; j < n_hidden; j++) m->d[s][j] += m->g[s][j];
    }
    return MEMO_STATUS_OK;
}

static memo_status mixed_launch(mixed_stage* m, const memo_block_call* call, int step,
                                memo_error* e) {
    mixed_work work;
    work.stage = m;
    work.call = *call;
    work.step = step;
    return memo_host_device_launch(m->linears[0].device, call->stream, mixed_piece, &work,
                                   sizeof work, e);
}

static memo_status mixed_recompute(void* context, const memo_block_call* call, memo_error* e) {
    mixed_stage* m = (mixed_stage*)context;
    int s = call->part, is_mlp = call->block == 1, j;
    linear_layer* l = m->linears;
    memo_status status = mixed_launch(m, call, MIXED_ENTER, e);
    for (j = 0; j < 3 && !is_mlp && !status; j++)
        status = linear_forward(&l[j], call->stream, m->h[0][s], m->qkvo[j][s], m->n_rows, e);
    if (!status && is_mlp)
        status = linear_forward(&l[4], call->stream, m->h[1][s], m->act[s], m->n_rows, e);
    if (!status) status = mixed_launch(m, call, is_mlp ? MIXED_ACTIVATE : MIXED_ATTEND, e);
    if (status || !call->has_output) return status;
    return linear_forward(&l[is_mlp ? 5 : 3], call->stream, is_mlp ? m->act[s] : m->qkvo[3][s],
                          m->y[s], m->n_rows, e);
}
static memo_status mixed_backward(void* context, const memo_block_call* call, memo_error* e) {
    mixed_stage* m = (mixed_stage*)context;
    linear_layer* l = m->linears;
    int s = call->part, j;
    memo_status status = mixed_launch(m, call, MIXED_RETURN, e);
    if (status) return status;
    if (call->block == 1) {
        if (linear_backward(&l[5], call->stream, m->dy[s], m->d_act[s], m->n_rows, e) ||
            mixed_launch(m, call, MIXED_DERIVE, e))
            return e->status;
        return linear_backward(&l[4], call->stream, m->d_act[s], m->g[s], m->n_rows, e);
    }
    if (linear_backward(&l[3], call->stream, m->dy[s], m->d_qkvo[3][s], m->n_rows, e) ||
        mixed_launch(m, call, MIXED_ATTEND_BACKWARD, e))
        return e->status;
    for (j = 0; j < 3 && !status; j++) {
        status = linear_backward(&l[j], call->stream, m->d_qkvo[j][s], j ? m->piece[s] : m->g[s],
                                 m->n_rows, e);
        if (!status && j) status = mixed_launch(m, call, MIXED_ADD, e);
    }
    return status;
}
static memo_status mixed_weights(void* context, const memo_block_call* call, memo_error* e) {
    mixed_stage* m = (mixed_stage*)context;
    linear_layer* l = m->linears;
    int s = call->part, j;
    memo_status status;
    if (call->block == 1) {
        if (linear_weights(&l[5], call->stream, m->act[s], m->dy[s], m->n_rows, e))
            return e->status;
        return linear_weights(&l[4], call->stream, m->h[1][s], m->d_act[s], m->n_rows, e);
    }
    status = linear_weights(&l[3], call->stream, m->qkvo[3][s], m->dy[s], m->n_rows, e);
    for (j = 0; j < 3 && !status; j++)
        status = linear_weights(&l[j], call->stream, m->h[0][s], m->d_qkvo[j][s], m->n_rows, e);
    return status;
}
static memo_status mixed_leave(void* context, const memo_block_call* call, memo_error* e) {
    return mixed_launch((mixed_stage*)context, call, MIXED_LEAVE, e);
}
static memo_status mixed_leave_backward(void* context, const memo_block_call* call, memo_error* e) {
    return mixed_launch((mixed_stage*)context, call, MIXED_LEAVE_BACKWARD, e);
}

static int64_t mixed_size(const mixed_stage* m, int linear) {
    return m->linears[linear].n_in * m->linears[linear].n_out;
}
/* Where weight j of a rank's share of a linear lies in the whole. */
static int64_t mixed_place(const mixed_stage* m, int linear, int64_t j) {
    memo_share share = linear < 4 ? m->heads : m->width;
    int64_t n = linear < 4 ? HIDDEN : WIDTH; /* that is split */
    int64_t at = (int64_t)m->number * MIXED_STAGE_WEIGHTS +
                 (linear < 4 ? linear * HIDDEN * HIDDEN
                             : 4 * HIDDEN * HIDDEN + (linear - 4) * HIDDEN * WIDTH);
    if (linear == 3 || linear == 5) return at + j / share.count * n + share.begin + j % share.count;
    return at + share.begin * HIDDEN + j;
}

static memo_status mixed_make(mixed_stage* m, thread_rank* rank, const mixed_job* mix, int k,
                              memo_error* e) {
    memo_blocks_desc desc = memo_blocks_desc_default();
    memo_block_buffers buffers[MAX_SPLIT];
    int size = rank->comm->size, degree = mix->degrees[k], low = 8, s, r, i, part, n_groups;
    int64_t j;
    for (i = 0; i < MIXED_STAGES; i++) low = mix->degrees[i] < low ? mix->degrees[i] : low;
    n_groups = degree / low; /* of the smallest degree, in this one */
    part = MIXED_ROWS * low / size / mix->n_parts;
    if (memo_degree_comms_create(rank->comm, degree, k + 1 < MIXED_STAGES ? mix->degrees[k + 1] : 0,
                                 &m->comms, e))
        return e->status;
    m->number = k;
    m->n_rows = n_groups * part;
    m->width = memo_share_of(WIDTH, degree, m->comms.tensor->rank);
    m->heads = memo_share_of(N_HEADS, degree, m->comms.tensor->rank);
    m->heads.begin *= HEAD;
    m->heads.count *= HEAD;
    for (s = 0; s < mix->n_parts; s++) /* part s of the larger: part s of each smaller in it */
        for (r = 0; r < m->n_rows; r++)
            m->row[s][r] =
                ((rank->comm->rank / degree * n_groups + r / part) * mix->n_parts + s) * part +
                r % part;
    for (i = 0; i < MIXED_LINEARS; i++) {
        linear_layer* l = &m->linears[i];
        int64_t share = i < 4 ? m->heads.count : m->width.count;
        l->device = rank->device;
        l->split = i == 3 || i == 5 ? LINEAR_ROW : LINEAR_COLUMN;
        l->n_in = l->split == LINEAR_ROW ? share : HIDDEN;
        l->n_out = l->split == LINEAR_ROW ? HIDDEN : share;
        l->weights = m->weights[i];
        l->d_weights = m->gradients[i];
        for (j = 0; j < mixed_size(m, i); j++)
            m->weights[i][j] = model_value(77, mixed_place(m, i, j));
    }
    memset(buffers, 0, sizeof buffers);
    for (s = 0; s < mix->n_parts; s++) {
        buffers[s].output = m->y[s];
        buffers[s].gradient = m->g[s];
        buffers[s].count = (int64_t)m->n_rows * HIDDEN;
    }
    desc.device = rank->device;
    desc.compute_stream = rank->stream;
    desc.comm = m->comms.tensor;
    desc.schedule.order = mix->order;
    desc.schedule.n_blocks = 2;
    desc.schedule.n_parts = mix->n_parts;
    desc.buffers = buffers;
    desc.functions.context = m;
    desc.functions.forward = desc.functions.recompute = mixed_recompute;
    desc.functions.backward = mixed_backward;
    desc.functions.weights = mixed_weights;
    desc.functions.forward_end = mixed_leave;
    desc.functions.backward_end = mixed_leave_backward;
    blocks_log_init(&m->log, &desc);
    return memo_blocks_create(&desc, &m->blocks, e);
}

/* The rows of one stage for the other: gathered if that has more rows, cut if it has fewer. */
static memo_status mixed_exchange(thread_rank* rank, memo_comm* across, float* from, int n_from,
                                  float* to, int n_to, memo_error* e) {
    const memo_device* d = rank->device;
    int64_t count = (int64_t)(n_from < n_to ? n_from : n_to) * HIDDEN;
    if (n_from < n_to)
        return memo_all_gather(across, rank->stream, from, to, count, MEMO_TYPE_F32, e);
    if (n_from > n_to) from += across->rank * count;
    return memo_copy(d, rank->stream, MEMO_COPY_ON_DEVICE, to, from, count * (int64_t)sizeof(float),
                     e);
}

/* Forward through all stages, backward through all, gradients summed over the data-parallel
 * ranks. */
static memo_status mixed_run(mixed_stage* m, thread_rank* rank, const mixed_job* mix,
                             memo_error* e) {
    mixed_stage* last = &m[MIXED_STAGES - 1];
    int s, r, i, k, n = mix->n_parts;
    for (s = 0; s < n; s++) {
        for (r = 0; r < m->n_rows * HIDDEN; r++)
            m->h[0][s][r] = model_value(78, m->row[s][r / HIDDEN] * HIDDEN + r % HIDDEN);
        for (r = 0; r < last->n_rows * HIDDEN; r++)
            last->d[s][r] =
                model_value(79, last->row[s][r / HIDDEN] * HIDDEN + r % HIDDEN) / MIXED_ROWS;
    }
    for (k = 0; k < MIXED_STAGES; k++) {
        if (memo_blocks_forward(m[k].blocks, e)) return e->status;
        for (s = 0; s < n && k + 1 < MIXED_STAGES; s++)
            if (mixed_exchange(rank, m[k].comms.across, m[k].out[s], m[k].n_rows, m[k + 1].h[0][s],
                               m[k + 1].n_rows, e))
                return e->status;
    }
    for (k = MIXED_STAGES - 1; k >= 0; k--) {
        if (memo_blocks_backward(m[k].blocks, e)) return e->status;
        for (s = 0; s < n && k > 0; s++)
            if (mixed_exchange(rank, m[k - 1].comms.across, m[k].d[s], m[k].n_rows, m[k - 1].d[s],
                               m[k - 1].n_rows, e))
                return e->status;
        for (i = 0; i < MIXED_LINEARS; i++)
            if (memo_all_reduce(m[k].comms.data, rank->stream, m[k].gradients[i], m[k].gradients[i],
                                mixed_size(&m[k], i), MEMO_TYPE_F32, MEMO_REDUCTION_SUM, e))
                return e->status;
    }
    return memo_stream_synchronize(rank->device, rank->stream, e);
}

static void mixed_result(mixed_stage* m, mixed_job* mix, int me) {
    const mixed_stage* last = &m[MIXED_STAGES - 1];
    int s, r, i, k;
    int64_t j;
    for (s = 0; s < mix->n_parts; s++)
        for (r = 0; r < last->n_rows; r++) {
            float loss = 0;
            for (i = 0; i < HIDDEN; i++)
                loss += last->out[s][r * HIDDEN + i] *
                        model_value(79, last->row[s][r] * HIDDEN + i) / MIXED_ROWS;
            mix->losses[me][last->row[s][r]] = loss;
            mix->has_row[me][last->row[s][r]] = 1;
        }
    for (k = 0; k < MIXED_STAGES; k++) {
        memo_blocks_desc desc = m[k].log.inner;
        for (i = 0; i < MIXED_LINEARS; i++)
            for (j = 0; j < mixed_size(&m[k], i); j++) {
                int64_t at = mixed_place(&m[k], i, j);
                mix->gradients[me][at] = m[k].gradients[i][j];
                mix->has[me][at] = 1;
            }
        compare_recorded(&desc, 1, NULL, &m[k].log, &mix->recorded[me][k]);
    }
}

static memo_status mixed_rank(thread_rank* rank, memo_error* e) {
    mixed_job* mix = (mixed_job*)rank->user;
    mixed_stage* m = (mixed_stage*)calloc(MIXED_STAGES, sizeof *m);
    memo_status status = MEMO_STATUS_OK;
    int k;
    if (!m) abort();
    for (k = 0; k < MIXED_STAGES && !status; k++) status = mixed_make(&m[k], rank, mix, k, e);
    if (!status) status = mixed_run(m, rank, mix, e);
    if (!status) mixed_result(m, mix, rank->comm->rank);
    for (k = 0; k < MIXED_STAGES; k++) {
        memo_blocks_destroy(m[k].blocks);
        memo_degree_comms_destroy(&m[k].comms);
        blocks_log_free(&m[k].log);
    }
    free(m);
    return status;
}

static mixed_job* mixed_start(int size, const int* degrees, int n_parts, int order) {
    mixed_job* mix = (mixed_job*)calloc(1, sizeof *mix);
    int k;
    if (!mix) abort();
    for (k = 0; k < MIXED_STAGES; k++) mix->degrees[k] = degrees[k];
    mix->n_parts = n_parts;
    mix->order = (memo_blocks_order)order;
    CHECK_OK(thread_ranks_run(size, mixed_rank, mix, &error));
    return mix;
}

/* The largest difference from one rank; every row and weight is somewhere, and all went as
 * promised. */
static double mixed_compare(const mixed_job* whole, const mixed_job* mix, int size) {
    double worst = 0;
    int r, i, k, n_gradients = 0, n_rows = 0, expected = 0;
    for (r = 0; r < size; r++) {
        for (i = 0; i < MIXED_GRADIENTS; i++) {
            if (!mix->has[r][i]) continue;
            keep_worst(&worst, (double)mix->gradients[r][i], (double)whole->gradients[0][i]);
            n_gradients++;
        }
        for (i = 0; i < MIXED_ROWS; i++) {
            if (!mix->has_row[r][i]) continue;
            keep_worst(&worst, (double)mix->losses[r][i], (double)whole->losses[0][i]);
            n_rows++;
        }
        for (k = 0; k < MIXED_STAGES; k++) {
            const recorded_rank* recorded = &mix->recorded[r][k];
            CHECK_CASE(!recorded->compared && recorded->n_races == 0, "rank %d, stage %d: %s", r, k,
                       recorded->difference);
            CHECK_IS(recorded->n_recorded, >, 0);
        }
    }
    for (k = 0; k < MIXED_STAGES; k++) expected += size * MIXED_STAGE_WEIGHTS / mix->degrees[k];
    CHECK(n_gradients == expected && n_rows == MIXED_ROWS * mix->degrees[MIXED_STAGES - 1]);
    return worst;
}

TEST(mixed_degrees) {
    static const int cases[][1 + MIXED_STAGES] = {{2, 1, 2, 1}, {4, 2, 4, 1}, {4, 4, 2, 4},
                                                  {4, 1, 2, 4}, {8, 2, 8, 4}, {8, 8, 4, 1},
                                                  {4, 2, 2, 4}, {8, 1, 1, 8}};
    static const int ones[MIXED_STAGES] = {1, 1, 1};
    mixed_job* whole = mixed_start(1, ones, 1, MEMO_BLOCKS_DEFAULT);
    double all_worst = 0, largest = 0;
    int order, n_parts, c, i;
    for (i = 0; i < MIXED_GRADIENTS; i++) keep_worst(&largest, (double)whole->gradients[0][i], 0);
    for (c = 0; c < (int)(sizeof cases / sizeof *cases); c += SPLIT_STEP)
        for (n_parts = 1; n_parts <= MAX_SPLIT; n_parts *= 2) {
            mixed_job* first = NULL;
            for (order = MEMO_BLOCKS_DEFAULT; order <= MEMO_BLOCKS_FINE; order++) {
                mixed_job* mix = mixed_start(cases[c][0], cases[c] + 1, n_parts, order);
                double worst = mixed_compare(whole, mix, cases[c][0]);
                CHECK_CASE(worst < 3e-6, "%d ranks, degrees %d, %d and %d, %d parts: %g",
                           cases[c][0], cases[c][1], cases[c][2], cases[c][3], n_parts, worst);
                keep_worst(&all_worst, worst, 0);
                if (!first) {
                    first = mix;
                    continue;
                }
                CHECK(!memcmp(first->gradients, mix->gradients, sizeof mix->gradients));
                CHECK(!memcmp(first->losses, mix->losses, sizeof mix->losses));
                free(mix);
            }
            free(first);
        }
    printf("# largest difference from one rank: %.2g, of gradients up to %.2g\n", all_worst,
           largest);
    free(whole);
}

/* ---- measured collectives ---- */

enum { MEASURED = 4, MEASURED_RANKS = 2 };

typedef struct measurement {
    double measured_s[MEASURED_RANKS][3][MEASURED];
} measurement;

static const int64_t measured_counts[MEASURED] = {1 << 8, 1 << 16, 1 << 17, 1 << 18};
static const double measured_bytes_per_s = 1e8;

static memo_status measure_rank(thread_rank* rank, memo_error* e) {
    measurement* to = (measurement*)rank->user;
    int kind;
    for (kind = 0; kind < 3; kind++)
        if (measure_collective(rank->comm, rank->device, rank->stream, (memo_collective)kind,
                               MEMO_TYPE_F32, measured_counts, MEASURED,
                               to->measured_s[rank->comm->rank][kind], e))
            return e->status;
    return host_device_stats(rank->device).device_bytes
               ? memo_error_set(e, MEMO_STATUS_INVALID_STATE, "memory is left")
               : MEMO_STATUS_OK;
}

/* As thread_ranks_run, over links of that rate. */
static void measured_start(memo_status (*function)(thread_rank* rank, memo_error* e), void* user) {
    memo_comm_threads_desc comm_desc = memo_comm_threads_desc_default();
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    memo_device* devices[MEASURED_RANKS];
    memo_comm* comms[MEASURED_RANKS];
    thread_rank ranks[MEASURED_RANKS];
    int r;
    memset(ranks, 0, sizeof ranks);
    for (r = 0; r < MEASURED_RANKS; r++) {
        CHECK_OK(memo_host_device_create(&device_desc, &devices[r], &error));
        ranks[r].device = devices[r];
        ranks[r].function = function;
        ranks[r].user = user;
    }
    comm_desc.n_ranks = MEASURED_RANKS;
    comm_desc.devices = devices;
    comm_desc.bytes_per_s = measured_bytes_per_s;
    CHECK_OK(memo_comm_create_threads(&comm_desc, comms, &error));
    CHECK_OK(thread_ranks_start(ranks, comms, MEASURED_RANKS, &error));
    for (r = 0; r < MEASURED_RANKS; r++) {
        memo_comm_destroy(comms[r]);
        memo_host_device_destroy(devices[r]);
    }
}

/* Over links with a rate, a message takes at least its bytes / rate, and all ranks get the same
 * time.  The measured times decide about parts: a block of computation only, with messages that are
 * too short or long enough. */
TEST(measured_collectives) {
    measurement got;
    int64_t bytes[MEASURED];
    int kind, k;
    memset(&got, 0, sizeof got);
    measured_start(measure_rank, &got);
    for (kind = 0; kind < 3; kind++)
        for (k = 0; k < MEASURED; k++) {
            double least;
            memo_collective_call call;
            memset(&call, 0, sizeof call);
            call.kind = (memo_collective)kind;
            call.type = MEMO_TYPE_F32;
            call.count = measured_counts[k];
            least = (double)memo_comm_bytes(&call, MEASURED_RANKS, 0) / measured_bytes_per_s;
            CHECK_CASE(got.measured_s[0][kind][k] >= 0.9 * least, "%g s, not %g",
                       got.measured_s[0][kind][k], least);
            CHECK_IS(got.measured_s[0][kind][k], ==, got.measured_s[1][kind][k]);
        }
    for (k = 0; k < MEASURED; k++) bytes[k] = measured_counts[k] * (int64_t)sizeof(float);
    for (k = 0; k < MEASURED; k += MEASURED - 1) { /* the shortest message, the longest */
        memo_blocks_schedule_desc schedule = memo_blocks_schedule_desc_default();
        block_overhead overhead = {1e-3, 0};
        memo_block_times times[2];
        int32_t n_parts = 0, i;
        overhead.collective_s = block_latency(bytes, got.measured_s[0][0], MEASURED);
        memset(times, 0, sizeof times);
        for (i = 0; i < 2; i++) {
            times[i].forward_s = times[i].recompute_s = times[i].backward_s =
                k ? got.measured_s[0][0][k] : 1e-3;
            times[i].reduce_s = got.measured_s[0][0][k];
        }
        if (k == 0) times[0].reduce_s = times[1].reduce_s = overhead.collective_s;
        schedule.order = MEMO_BLOCKS_FINE;
        schedule.n_blocks = 2;
        CHECK_OK(block_best_parts(&schedule, times, MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD,
                                  &overhead, 4, &n_parts, NULL, &error));
        printf("# all-reduce of %d bytes: %.3f ms, latency %.3f ms: %d parts\n", (int)bytes[k],
               1e3 * got.measured_s[0][0][k], 1e3 * overhead.collective_s, (int)n_parts);
        CHECK(k ? n_parts > 1 : n_parts == 1);
    }
}

/* ---- a measured profile of degrees ---- */

enum { PROFILE_BLOCKS = 2, PROFILE_COUNT = 1 << 16, PROFILE_WEIGHTS = 1 << 15 };
static const double profile_forward_s = 4e-3; /* of a part on one rank */

/* Seconds of a block's function, which sleeps here, between events. */
static memo_status profile_time(thread_rank* rank, double duration_s, double* measured_s,
                                memo_error* e) {
    const memo_device* d = rank->device;
    memo_event events[2] = {NULL, NULL};
    int k;
    memo_status status = MEMO_STATUS_OK;
    for (k = 0; k < 2 && !status; k++) status = memo_event_create(d, &events[k], e);
    if (!status) status = memo_event_record(d, events[0], rank->stream, e);
    if (!status) status = memo_host_device_sleep(rank->device, rank->stream, duration_s, e);
    if (!status) status = memo_event_record(d, events[1], rank->stream, e);
    if (!status) status = memo_stream_synchronize(d, rank->stream, e);
    if (!status) status = memo_event_elapsed(d, events[0], events[1], measured_s, e);
    for (k = 0; k < 2; k++)
        if (events[k]) (void)memo_event_destroy(d, events[k], NULL);
    return status;
}

/* One degree: costs of its blocks, and the gather to the next. */
static memo_status profile_degree(thread_rank* rank, memo_degrees_problem* problem, int32_t k,
                                  memo_error* e) {
    int32_t degree = problem->degrees[k], next = k ? 0 : problem->degrees[k + 1], i;
    /* A part of this degree has this many elements; of the next, as many times more. */
    int64_t message = PROFILE_COUNT * (int64_t)degree, weights = PROFILE_WEIGHTS / degree;
    memo_degree_comms comms;
    memo_status status = memo_degree_comms_create(rank->comm, degree, next, &comms, e);
    for (i = 0; i < PROFILE_BLOCKS && !status; i++) {
        memo_degree_cost* c = &problem->costs[i * problem->n_degrees + k];
        c->state_bytes = 16 * weights;
        c->saved_bytes = 2 * message * (int64_t)sizeof(float);
        status =
            measure_collective(comms.tensor, rank->device, rank->stream, MEMO_COLLECTIVE_ALL_REDUCE,
                               MEMO_TYPE_F32, &message, 1, &c->forward_collective_s, e);
        c->backward_collective_s = c->forward_collective_s;
        if (!status)
            status = measure_collective(comms.data, rank->device, rank->stream,
                                        MEMO_COLLECTIVE_ALL_REDUCE, MEMO_TYPE_F32, &weights, 1,
                                        &c->gradient_s, e);
        if (!status) status = profile_time(rank, profile_forward_s, &c->forward_s, e);
        if (!status) status = profile_time(rank, 3 * profile_forward_s, &c->backward_s, e);
    }
    if (!status && next)
        status =
            measure_collective(comms.across, rank->device, rank->stream, MEMO_COLLECTIVE_ALL_GATHER,
                               MEMO_TYPE_F32, &message, 1, &problem->gather_s[k][k + 1], e);
    memo_degree_comms_destroy(&comms);
    return status;
}

static memo_status profile_rank(thread_rank* rank, memo_error* e) {
    static const int32_t degrees[] = {1, 2};
    memo_degrees_problem* problem;
    int32_t k;
    memo_status status = memo_degrees_problem_create(PROFILE_BLOCKS, degrees, 2, &problem, e);
    for (k = 0; k < 2 && !status; k++) status = profile_degree(rank, problem, k, e);
    if (!status && rank->comm->rank == 0) {
        problem->has_gradients = 1;
        status = memo_degrees_problem_write(problem, (const char*)rank->user, e);
    }
    memo_degrees_problem_destroy(problem);
    return status;
}

TEST(measured_profile) {
    char path[250];
    int i, k;
    memo_degrees_problem* problem;
    memo_degrees_plan* plan;
    double message_s = PROFILE_COUNT * sizeof(float) / measured_bytes_per_s;
    memo_test_path(path, "blocks");
    measured_start(profile_rank, path);
    CHECK_OK(memo_degrees_problem_read(path, &problem, &error));
    CHECK_IS(problem->gather_s[0][1], >=, 0.9 * message_s);
    for (i = 0; i < PROFILE_BLOCKS; i++)
        for (k = 0; k < 2; k++) {
            const memo_degree_cost* c = &problem->costs[2 * i + k];
            CHECK_IS(c->forward_s, >=, 0.9 * profile_forward_s);
            CHECK_IS(c->backward_s, >=, 0.9 * 3 * profile_forward_s);
            /* Over two ranks an all-reduce moves the message once; alone nothing, but then
             * gradients move. */
            CHECK(k ? c->forward_collective_s >= 0.9 * 2 * message_s
                    : c->gradient_s >= 0.9 * message_s * PROFILE_WEIGHTS / PROFILE_COUNT);
        }
    /* Which degree wins depends on how busy the machine was; the plan is no slower than either. */
    CHECK_OK(memo_degrees_solve(problem, 0, &plan, &error));
    for (k = 0; k < 2; k++) {
        const int32_t same[PROFILE_BLOCKS] = {k + 1, k + 1};
        double step_s;
        int64_t memory_bytes;
        CHECK_OK(memo_degrees_evaluate(problem, same, &step_s, &memory_bytes, &error));
        CHECK_IS(plan->step_s, <=, step_s * (1 + 1e-9));
    }
    memo_degrees_plan_destroy(plan);
    memo_degrees_problem_destroy(problem);
    remove(path);
}

/* ---- operations that are left out ---- */

TEST(calls) {
    int order;
    for (order = 0; order <= MEMO_BLOCKS_FINE; order++) {
        model_setup setup = setup_of((memo_blocks_order)order, 2);
        job* j = run_job(2, &setup);
        int k;
        for (k = 0; k < 4; k++) CHECK_IS(j->n_calls[k], ==, 2 * N_BLOCKS);
        free_job(j);
    }
}

static memo_status nothing(void* context, const memo_block_call* call, memo_error* e) {
    (void)context;
    (void)call;
    (void)e;
    return MEMO_STATUS_OK;
}
static memo_status fails(void* context, const memo_block_call* call, memo_error* e) {
    (void)context;
    return call->block == 1 && call->part == 1
               ? memo_error_set(e, MEMO_STATUS_INVALID_STATE, "not today")
               : MEMO_STATUS_OK;
}

/* Two layers that compute nothing, with the sums of two sub-batches. */
static void idle_blocks(memo_blocks_desc* desc, thread_rank* rank, memo_block_buffers* buffers,
                        float (*values)[2][8]) {
    int s;
    memset(buffers, 0, 2 * sizeof *buffers);
    for (s = 0; s < 2; s++) {
        buffers[s].output = values[s][0];
        buffers[s].gradient = values[s][1];
        buffers[s].count = 8;
    }
    desc->device = rank->device;
    desc->compute_stream = rank->stream;
    desc->comm = rank->comm;
    desc->schedule.n_blocks = 4;
    desc->schedule.order = MEMO_BLOCKS_FINE;
    desc->buffers = buffers;
    desc->functions.forward = desc->functions.recompute = desc->functions.backward = nothing;
}

static memo_status run_refusals(thread_rank* rank, memo_error* e) {
    memo_blocks_desc desc = memo_blocks_desc_default(), bad;
    memo_blocks* blocks = NULL;
    float values[2][2][8];
    memo_block_buffers buffers[2];
    (void)e;
    memset(values, 0, sizeof values);
    idle_blocks(&desc, rank, buffers, values);
    bad = desc;
    bad.functions.recompute = NULL;
    CHECK(memo_blocks_create(&bad, &blocks, &error) == MEMO_STATUS_INVALID_ARGUMENT && !blocks);
    bad = desc;
    bad.comm = NULL;
    CHECK_IS(memo_blocks_create(&bad, &blocks, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    bad = desc;
    bad.schedule.n_blocks = 3;
    CHECK_IS(memo_blocks_create(&bad, &blocks, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    buffers[1].gradient = NULL;
    CHECK_IS(memo_blocks_create(&desc, &blocks, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    buffers[1].gradient = values[1][1];

    CHECK_OK(memo_blocks_create(&desc, &blocks, &error));
    CHECK_IS(memo_blocks_forward_layer(blocks, -1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_IS(memo_blocks_backward_layer(blocks, -1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_ERROR(memo_blocks_backward(blocks, &error), INVALID_STATE,
                "run forward for all layers first");
    CHECK_IS(memo_blocks_forward_layer(blocks, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward_layer(blocks, 0, &error));
    CHECK_IS(memo_blocks_backward_layer(blocks, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward_layer(blocks, 0, &error)); /* begins again */
    CHECK_OK(memo_blocks_forward_layer(blocks, 1, &error));
    CHECK_IS(memo_blocks_forward_layer(blocks, 2, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_IS(memo_blocks_backward_layer(blocks, 0, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, &error));
    CHECK_OK(memo_blocks_backward(blocks, &error)); /* of two slices */
    CHECK_OK(memo_blocks_backward(blocks, &error));
    CHECK_IS(memo_blocks_backward(blocks, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, &error));
    CHECK_OK(memo_blocks_backward_layer(blocks, 1, &error)); /* given up: its forward is used */
    CHECK_OK(memo_blocks_forward(blocks, &error));
    CHECK_OK(memo_blocks_backward(blocks, &error));
    CHECK_IS(memo_blocks_backward(blocks, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, &error));
    memo_blocks_destroy(blocks);
    memo_blocks_destroy(NULL);

    desc.functions.forward = fails;
    CHECK_OK(memo_blocks_create(&desc, &blocks, &error));
    CHECK_ERROR(memo_blocks_forward(blocks, &error), INVALID_STATE, "not today");
    CHECK_IS(memo_blocks_forward_layer(blocks, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    memo_blocks_destroy(blocks);
    return MEMO_STATUS_OK;
}

TEST(refusals) { CHECK_OK(thread_ranks_run(1, run_refusals, NULL, &error)); }

/* A failure of the call, or of what it enqueued. */
static memo_status end_of_stream(thread_rank* rank, memo_status status, memo_error* e) {
    memo_status late = memo_stream_synchronize(rank->device, rank->stream, status ? NULL : e);
    return status ? status : late;
}

/* Rank 1 goes forward again, the others backward: the same counts and types. */
static memo_status run_stray(thread_rank* rank, memo_error* e) {
    static float values[3][2][2][8];
    memo_blocks_desc desc = memo_blocks_desc_default();
    memo_blocks* blocks = NULL;
    memo_block_buffers buffers[2];
    memo_status status;
    int me = rank->comm->rank;
    idle_blocks(&desc, rank, buffers, values[me]);
    status = memo_blocks_create(&desc, &blocks, e);
    if (!status) status = memo_blocks_forward(blocks, e);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);
    CHECK_CASE(!status, "%s", e->message);
    if (!status) status = (me == 1 ? memo_blocks_forward : memo_blocks_backward)(blocks, e);
    status = end_of_stream(rank, status, e);
    CHECK_CASE(status == MEMO_STATUS_COMM && strstr(e->message, "blocks forward") &&
                   strstr(e->message, "blocks backward"),
               "rank %d: status %d, %s", me, (int)status, status ? e->message : "");
    memo_blocks_destroy(blocks);
    return MEMO_STATUS_OK;
}

TEST(a_rank_in_another_pass_is_an_error_on_all_ranks) {
    CHECK_OK(thread_ranks_run(3, run_stray, NULL, &error));
}

/* Rank 1 has another order, whose forward is the same. */
static memo_status run_other_order(thread_rank* rank, memo_error* e) {
    static float values[3][2][2][8];
    memo_blocks_desc desc = memo_blocks_desc_default();
    memo_blocks* blocks = NULL;
    memo_block_buffers buffers[2];
    memo_status status;
    int me = rank->comm->rank;
    idle_blocks(&desc, rank, buffers, values[me]);
    desc.schedule.order = me == 1 ? MEMO_BLOCKS_FINE : MEMO_BLOCKS_CROSS;
    status = memo_blocks_create(&desc, &blocks, e);
    if (!status) status = memo_blocks_forward(blocks, e);
    status = end_of_stream(rank, status, e);
    CHECK_CASE(status == MEMO_STATUS_COMM &&
                   strstr(e->message, "memo_blocks_desc.schedule: rank 0 and rank 1"),
               "rank %d: status %d, %s", me, (int)status, status ? e->message : "");
    memo_blocks_destroy(blocks);
    return MEMO_STATUS_OK;
}

TEST(a_rank_of_another_order_is_an_error_on_all_ranks) {
    CHECK_OK(thread_ranks_run(3, run_other_order, NULL, &error));
}

/* A communicator that keeps the labels of collectives. */
typedef struct label_keeper {
    memo_label labels[64];
    int n;
} label_keeper;
static memo_status keep_label(memo_comm* comm, memo_stream stream, const memo_collective_call* call,
                              memo_error* e) {
    label_keeper* keeper = (label_keeper*)comm->context;
    (void)stream, (void)call, (void)e;
    if (keeper->n < 64) keeper->labels[keeper->n++] = comm->label;
    return MEMO_STATUS_OK;
}

/* What NCCL compares: the first collective of each pass has digests, of the pass too. */
static memo_status run_labels(thread_rank* rank, memo_error* e) {
    static float values[2][2][8];
    memo_blocks_desc desc = memo_blocks_desc_default();
    memo_blocks* blocks = NULL;
    memo_block_buffers buffers[2];
    label_keeper keeper;
    memo_comm comm;
    int k, n_first = 0, n_forward;
    memset(&keeper, 0, sizeof keeper);
    memset(&comm, 0, sizeof comm);
    comm.size = 2;
    comm.context = &keeper;
    comm.collective = keep_label;
    idle_blocks(&desc, rank, buffers, values);
    desc.comm = &comm;
    CHECK_OK(memo_blocks_create(&desc, &blocks, e));
    CHECK_OK(memo_blocks_forward(blocks, e));
    n_forward = keeper.n;
    CHECK_OK(memo_blocks_backward(blocks, e));
    for (k = 0; k < keeper.n; k++) n_first += keeper.labels[k].is_first;
    CHECK(n_first == 2 && keeper.labels[0].is_first && keeper.labels[n_forward].is_first);
    CHECK(keeper.labels[0].fields && keeper.labels[n_forward].fields);
    for (k = 0; k < MEMO_LABEL_FIELDS; k++)
        CHECK_IS((keeper.labels[0].digests[k] != keeper.labels[n_forward].digests[k]), ==, k == 0);
    memo_blocks_destroy(blocks);
    return MEMO_STATUS_OK;
}

TEST(the_first_collective_of_a_pass_has_digests) {
    CHECK_OK(thread_ranks_run(1, run_labels, NULL, &error));
}

TEST(shares) {
    int size, rank, n;
    for (n = 0; n < 30; n++)
        for (size = 1; size <= 8; size++) {
            int64_t next = 0;
            for (rank = 0; rank < size; rank++) {
                memo_share share = memo_share_of(n, size, rank);
                CHECK(share.begin == next && share.count >= n / size &&
                      share.count <= n / size + 1);
                next += share.count;
            }
            CHECK_IS(next, ==, n);
        }
}

int main(int argc, char** argv) { return memo_test_main(argc, argv); }
