/* Chapter 8 of memo_sp.h, run over threads: the schedule as recorded, losses and gradients bitwise those of the default
 * order and within rounding those of the unsplit model, the layers of a split model, order and errors. */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_test.h"
#include "thread_ranks.h"
#include "blocks_model.h"

/* ---- bitwise: every order computes what the default order does ---- */

#ifdef MEMO_TEST_VALGRIND
#define SPLIT_STEP 2 /* T = 1, 4 */
#else
#define SPLIT_STEP 1
#endif

static void same_bits(int is_scattered, int splits_sequence) {
    static const int splits[] = {1, 2, 4, 8};
    int t, n_parts, order, r;
    for (t = 0; t < 4; t += SPLIT_STEP)
        for (n_parts = 1; n_parts <= 4; n_parts *= 2) {
            model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, n_parts);
            job* expected;
            setup.n_steps = 2; /* gradients add up, buffers are used again */
            setup.is_scattered = is_scattered;
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
                CHECK(found->n_races == 0);
                for (r = 0; r < splits[t]; r++) CHECK(found->recorded[r].n_recorded > 0);
                free_job(found);
            }
            free_job(expected);
        }
}

static void orders_agree(void) { same_bits(0, 0); }
static void orders_agree_on_a_sequence(void) { same_bits(0, 1); }
static void orders_agree_scattered(void) { same_bits(1, 0); }
static void orders_agree_scattered_sequence(void) { same_bits(1, 1); }

/* ---- within rounding: the unsplit model, one rank and one part ---- */

static void equals_the_unsplit_model(void) {
    int T, n_parts, kind;
    double worst = 0;
    for (kind = 0; kind < 3; kind++) {
        model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, 1);
        job* whole;
        setup.splits_sequence = kind == 2;
        whole = run_job(1, &setup);
        for (T = 1; T <= 8; T *= 2)
            for (n_parts = 1; n_parts <= 4; n_parts *= 2) {
                job* split;
                char what[80];
                setup.order = MEMO_BLOCKS_FINE;
                setup.n_parts = n_parts;
                setup.is_scattered = kind == 1;
                split = run_job(T, &setup);
                snprintf(what, sizeof what, "T = %d, %d parts%s%s", T, n_parts,
                         kind == 1 ? ", scattered" : "", kind == 2 ? " of a sequence" : "");
                keep_worst(&worst, compare_unsplit(whole, split, T, what), 0);
                free_job(split);
            }
        free_job(whole);
    }
    printf("# largest difference from the unsplit model: %.2g\n", worst);
}

/* The gradients are gradients: central differences of the loss. */
static void gradients_are_right(void) {
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
 * Two stages of two MLP blocks, each of its own degree, dropout keyed by the row of the whole batch.  The loss is a
 * weighted sum of the output; gradients are summed over the data-parallel ranks and compared with those of one rank. */

#define MIXED_GRADIENTS (4 * 2 * HIDDEN * WIDTH)

typedef struct mixed_stage {
    memo_degree_comms comms;
    memo_blocks* blocks;
    memo_linear up[2], down[2];
    memo_share width;
    int first_block, n_rows; /* of a part */
    int row[2][ROWS];        /* of the batch, of each part */
    float weights[2][2][HIDDEN * WIDTH], gradients[2][2][HIDDEN * WIDTH];
    float h[2][2][ROWS * HIDDEN]; /* of a block and part, as all that follows */
    float out[2][ROWS * HIDDEN], d[2][ROWS * HIDDEN], dy[2][ROWS * HIDDEN];
    float y[2][ROWS * HIDDEN], g[2][ROWS * HIDDEN];
    float act[2][ROWS * WIDTH], d_act[2][ROWS * WIDTH];
} mixed_stage;

typedef struct mixed_job {
    int degrees[2];
    memo_blocks_order order;
    float gradients[8][MIXED_GRADIENTS]; /* of each rank, at the places of the whole */
    char has[8][MIXED_GRADIENTS];
} mixed_job;

typedef struct mixed_work {
    mixed_stage* stage;
    memo_block_call call;
    int step; /* which of the pieces below */
} mixed_work;

enum { MIXED_ENTER, MIXED_ACTIVATE, MIXED_RETURN, MIXED_DERIVE, MIXED_LEAVE, MIXED_LEAVE_BACKWARD };

static void mixed_residual(const mixed_stage* m, int block, int s, float* to) {
    int r, i;
    for (r = 0; r < m->n_rows; r++)
        for (i = 0; i < HIDDEN; i++)
            to[r * HIDDEN + i] =
                m->h[block][s][r * HIDDEN + i] +
                model_keep(m->first_block + block, m->row[s][r], i) * m->y[s][r * HIDDEN + i];
}

static memo_status mixed_piece(void* args, memo_error* e) {
    const mixed_work* w = (const mixed_work*)args;
    mixed_stage* m = w->stage;
    int s = w->call.part, block = w->call.block, r, i;
    int64_t j, n = (int64_t)m->n_rows * m->width.count;
    (void)e;
    switch (w->step) {
    case MIXED_ENTER:
        if (!w->call.is_input_saved) mixed_residual(m, block - 1, s, m->h[block][s]);
        break;
    case MIXED_ACTIVATE:
        for (j = 0; j < n; j++) m->act[s][j] = tanhf(m->act[s][j]);
        break;
    case MIXED_RETURN:
        for (r = 0; r < m->n_rows; r++)
            for (i = 0; i < HIDDEN; i++) {
                if (block == 0) m->d[s][r * HIDDEN + i] += m->g[s][r * HIDDEN + i];
                m->dy[s][r * HIDDEN + i] =
                    model_keep(m->first_block + block, m->row[s][r], i) * m->d[s][r * HIDDEN + i];
            }
        break;
    case MIXED_DERIVE:
        for (j = 0; j < n; j++) m->d_act[s][j] *= 1 - m->act[s][j] * m->act[s][j];
        break;
    case MIXED_LEAVE: mixed_residual(m, 1, s, m->out[s]); break;
    default:
        for (j = 0; j < (int64_t)m->n_rows * HIDDEN; j++) m->d[s][j] += m->g[s][j];
    }
    return MEMO_STATUS_OK;
}

static memo_status mixed_launch(mixed_stage* m, const memo_block_call* call, int step,
                                memo_error* e) {
    mixed_work work;
    work.stage = m;
    work.call = *call;
    work.step = step;
    return memo_host_device_launch((memo_device*)m->up[0].functions.context, call->stream,
                                   mixed_piece, &work, sizeof work, e);
}

static memo_status mixed_recompute(void* context, const memo_block_call* call, memo_error* e) {
    mixed_stage* m = (mixed_stage*)context;
    int s = call->part, k = call->block;
    if (mixed_launch(m, call, MIXED_ENTER, e) ||
        memo_linear_forward(&m->up[k], call->stream, m->h[k][s], m->act[s], m->n_rows, e) ||
        mixed_launch(m, call, MIXED_ACTIVATE, e))
        return e->status;
    if (!call->has_output) return MEMO_STATUS_OK;
    return memo_linear_forward(&m->down[k], call->stream, m->act[s], m->y[s], m->n_rows, e);
}
static memo_status mixed_backward(void* context, const memo_block_call* call, memo_error* e) {
    mixed_stage* m = (mixed_stage*)context;
    int s = call->part, k = call->block;
    if (mixed_launch(m, call, MIXED_RETURN, e) ||
        memo_linear_backward(&m->down[k], call->stream, m->dy[s], m->d_act[s], m->n_rows, e) ||
        mixed_launch(m, call, MIXED_DERIVE, e))
        return e->status;
    return memo_linear_backward(&m->up[k], call->stream, m->d_act[s], m->g[s], m->n_rows, e);
}
static memo_status mixed_weights(void* context, const memo_block_call* call, memo_error* e) {
    mixed_stage* m = (mixed_stage*)context;
    int s = call->part, k = call->block;
    if (memo_linear_weights(&m->down[k], call->stream, m->act[s], m->dy[s], m->n_rows, e))
        return e->status;
    return memo_linear_weights(&m->up[k], call->stream, m->h[k][s], m->d_act[s], m->n_rows, e);
}
static memo_status mixed_leave(void* context, const memo_block_call* call, memo_error* e) {
    return mixed_launch((mixed_stage*)context, call, MIXED_LEAVE, e);
}
static memo_status mixed_leave_backward(void* context, const memo_block_call* call, memo_error* e) {
    return mixed_launch((mixed_stage*)context, call, MIXED_LEAVE_BACKWARD, e);
}

/* Where weight j of a rank's share lies in the whole: up (WIDTH, HIDDEN), then down (HIDDEN, WIDTH). */
static int mixed_place(const mixed_stage* m, int block, int is_down, int j) {
    int at = (m->first_block + block) * 2 * HIDDEN * WIDTH + is_down * HIDDEN * WIDTH;
    int count = (int)m->width.count, begin = (int)m->width.begin;
    return is_down ? at + j / count * WIDTH + begin + j % count : at + begin * HIDDEN + j;
}

static memo_status mixed_make(mixed_stage* m, thread_rank* rank, const mixed_job* mix, int k,
                              memo_error* e) {
    memo_blocks_desc desc = memo_blocks_desc_default();
    memo_block_buffers buffers[2];
    int size = rank->comm->size, degree = mix->degrees[k], s, r, b, j;
    int low = mix->degrees[0] < mix->degrees[1] ? mix->degrees[0] : mix->degrees[1];
    int n_groups = degree / low, part = ROWS * low / size / 2; /* rows of a part of the smaller */
    if (memo_degree_comms_create(rank->comm, degree, k == 0 ? mix->degrees[1] : 0, &m->comms, e))
        return e->status;
    m->first_block = 2 * k;
    m->n_rows = n_groups * part;
    m->width = memo_share_of(WIDTH, degree, m->comms.tensor->rank);
    for (s = 0; s < 2; s++) /* part s of the larger: part s of each smaller group in it */
        for (r = 0; r < m->n_rows; r++)
            m->row[s][r] =
                (rank->comm->rank / degree * n_groups + r / part) * 2 * part + s * part + r % part;
    for (b = 0; b < 2; b++) {
        memo_linear *up = &m->up[b], *down = &m->down[b];
        up->functions = down->functions = memo_host_linear_functions(rank->device);
        up->split = MEMO_LINEAR_COLUMN;
        down->split = MEMO_LINEAR_ROW;
        up->n_in = down->n_out = HIDDEN;
        up->n_out = down->n_in = m->width.count;
        up->weights = m->weights[b][0];
        down->weights = m->weights[b][1];
        up->d_weights = m->gradients[b][0];
        down->d_weights = m->gradients[b][1];
        for (j = 0; j < HIDDEN * (int)m->width.count; j++) {
            m->weights[b][0][j] = model_value(77, mixed_place(m, b, 0, j));
            m->weights[b][1][j] = model_value(77, mixed_place(m, b, 1, j));
        }
    }
    memset(buffers, 0, sizeof buffers);
    for (s = 0; s < 2; s++) {
        buffers[s].output = m->y[s];
        buffers[s].gradient = m->g[s];
        buffers[s].count = (int64_t)m->n_rows * HIDDEN;
    }
    desc.device = rank->device;
    desc.compute_stream = rank->stream;
    desc.comm = m->comms.tensor;
    desc.schedule.order = mix->order;
    desc.schedule.n_blocks = 2;
    desc.schedule.blocks_per_layer = 1;
    desc.buffers = buffers;
    desc.functions.context = m;
    desc.functions.forward = desc.functions.recompute = mixed_recompute;
    desc.functions.backward = mixed_backward;
    desc.functions.weights = mixed_weights;
    desc.functions.forward_end = mixed_leave;
    desc.functions.backward_end = mixed_leave_backward;
    return memo_blocks_create(&desc, &m->blocks, e);
}

/* The rows of one stage for the other: gathered where that has more, cut where it has fewer. */
static memo_status mixed_exchange(thread_rank* rank, memo_comm* across, float* from, int n_from,
                                  float* to, int n_to, memo_error* e) {
    const memo_device* d = rank->device;
    int64_t count = (int64_t)(n_from < n_to ? n_from : n_to) * HIDDEN;
    if (n_from < n_to)
        return across->all_gather(across, rank->stream, from, to, count, MEMO_TYPE_F32, e);
    if (n_from > n_to) from += across->rank * count;
    return d->copy(d->context, rank->stream, MEMO_COPY_ON_DEVICE, to, from,
                   count * (int64_t)sizeof(float), e);
}

static memo_status mixed_run(mixed_stage* m, thread_rank* rank, mixed_job* mix, memo_error* e) {
    memo_comm* across = m[0].comms.across;
    int s, r, i, k, b, w;
    for (s = 0; s < 2; s++)
        for (r = 0; r < m[0].n_rows; r++)
            for (i = 0; i < HIDDEN; i++)
                m[0].h[0][s][r * HIDDEN + i] = model_value(78, m[0].row[s][r] * HIDDEN + i);
    for (s = 0; s < 2; s++)
        for (r = 0; r < m[1].n_rows; r++)
            for (i = 0; i < HIDDEN; i++)
                m[1].d[s][r * HIDDEN + i] = model_value(79, m[1].row[s][r] * HIDDEN + i);
    if (memo_blocks_forward(m[0].blocks, e)) return e->status;
    for (s = 0; s < 2; s++)
        if (mixed_exchange(rank, across, m[0].out[s], m[0].n_rows, m[1].h[0][s], m[1].n_rows, e))
            return e->status;
    if (memo_blocks_forward(m[1].blocks, e) || memo_blocks_backward(m[1].blocks, e))
        return e->status;
    for (s = 0; s < 2; s++)
        if (mixed_exchange(rank, across, m[1].d[s], m[1].n_rows, m[0].d[s], m[0].n_rows, e))
            return e->status;
    if (memo_blocks_backward(m[0].blocks, e)) return e->status;
    for (k = 0; k < 2; k++)
        for (b = 0; b < 2; b++)
            for (w = 0; w < 2; w++)
                if (m[k].comms.data->all_reduce(m[k].comms.data, rank->stream, m[k].gradients[b][w],
                                                m[k].gradients[b][w], HIDDEN * m[k].width.count,
                                                MEMO_TYPE_F32, MEMO_REDUCTION_SUM, e))
                    return e->status;
    if (rank->device->stream_synchronize(rank->device->context, rank->stream, e)) return e->status;
    for (k = 0; k < 2; k++)
        for (b = 0; b < 2; b++)
            for (w = 0; w < 2; w++)
                for (i = 0; i < HIDDEN * (int)m[k].width.count; i++) {
                    int at = mixed_place(&m[k], b, w, i);
                    mix->gradients[rank->comm->rank][at] = m[k].gradients[b][w][i];
                    mix->has[rank->comm->rank][at] = 1;
                }
    return MEMO_STATUS_OK;
}

static memo_status mixed_rank(thread_rank* rank, memo_error* e) {
    mixed_job* mix = (mixed_job*)rank->user;
    mixed_stage* m = (mixed_stage*)calloc(2, sizeof *m);
    memo_status status;
    int k;
    if (!m) abort();
    status = mixed_make(&m[0], rank, mix, 0, e);
    if (!status) status = mixed_make(&m[1], rank, mix, 1, e);
    if (!status) status = mixed_run(m, rank, mix, e);
    for (k = 0; k < 2; k++) {
        memo_blocks_destroy(m[k].blocks);
        memo_degree_comms_destroy(&m[k].comms);
    }
    free(m);
    return status;
}

static void mixed_degrees(void) {
    static const int cases[][3] = {{2, 1, 2}, {4, 2, 4}, {4, 4, 2}, {4, 1, 4},
                                   {8, 2, 8}, {8, 4, 1}, {4, 2, 2}};
    mixed_job* whole = (mixed_job*)calloc(1, sizeof *whole);
    size_t c;
    int order, r, i;
    if (!whole) abort();
    whole->degrees[0] = whole->degrees[1] = 1;
    CHECK_OK(thread_ranks_run(1, mixed_rank, whole, &error));
    for (c = 0; c < sizeof cases / sizeof *cases; c++) {
        mixed_job* first = NULL;
        for (order = MEMO_BLOCKS_DEFAULT; order <= MEMO_BLOCKS_FINE; order++) {
            mixed_job* mix = (mixed_job*)calloc(1, sizeof *mix);
            double worst = 0;
            int n_compared = 0;
            if (!mix) abort();
            mix->order = (memo_blocks_order)order;
            mix->degrees[0] = cases[c][1];
            mix->degrees[1] = cases[c][2];
            CHECK_OK(thread_ranks_run(cases[c][0], mixed_rank, mix, &error));
            for (r = 0; r < cases[c][0]; r++)
                for (i = 0; i < MIXED_GRADIENTS; i++) {
                    if (!mix->has[r][i]) continue;
                    keep_worst(&worst, (double)mix->gradients[r][i],
                               (double)whole->gradients[0][i]);
                    n_compared++;
                }
            CHECK_CASE(worst < 2e-5, "%d ranks, degrees %d and %d: %g", cases[c][0], cases[c][1],
                       cases[c][2], worst); /* sums of 32 rows, of order 10 */
            CHECK(n_compared == cases[c][0] * (MIXED_GRADIENTS / 2 / cases[c][1] +
                                               MIXED_GRADIENTS / 2 / cases[c][2]));
            if (first) CHECK(!memcmp(first->gradients, mix->gradients, sizeof mix->gradients));
            if (!first)
                first = mix;
            else
                free(mix);
        }
        free(first);
    }
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
    int64_t none = 0;
    int kind;
    CHECK(memo_comm_measure(rank->comm, rank->device, rank->stream, MEMO_COLLECTIVE_ALL_REDUCE,
                            MEMO_TYPE_F32, &none, 1, NULL, e) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(memo_comm_measure(rank->comm, rank->device, rank->stream, MEMO_COLLECTIVE_BARRIER,
                            MEMO_TYPE_F32, measured_counts, 1, NULL,
                            e) == MEMO_STATUS_INVALID_ARGUMENT);
    for (kind = 0; kind < 3; kind++)
        if (memo_comm_measure(rank->comm, rank->device, rank->stream, (memo_collective)kind,
                              MEMO_TYPE_F32, measured_counts, MEASURED,
                              to->measured_s[rank->comm->rank][kind], e))
            return e->status;
    return memo_host_device_get_stats(rank->device).device_bytes
               ? memo_error_set(e, MEMO_STATUS_INVALID_STATE, "memory is left")
               : MEMO_STATUS_OK;
}

/* Over links of a rate a message takes its bytes over it at least; all ranks are told the same.  What is measured
 * decides about parts: a block that is all computation, of messages too short or long enough. */
static void measured_collectives(void) {
    memo_comm_threads_desc comm_desc = memo_comm_threads_desc_default();
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    memo_device* devices[MEASURED_RANKS];
    memo_comm* comms[MEASURED_RANKS];
    thread_rank ranks[MEASURED_RANKS];
    measurement got;
    int64_t bytes[MEASURED];
    int r, kind, k;
    memset(ranks, 0, sizeof ranks);
    for (r = 0; r < MEASURED_RANKS; r++) {
        CHECK_OK(memo_host_device_create(&device_desc, &devices[r], &error));
        ranks[r].device = devices[r];
        ranks[r].function = measure_rank;
        ranks[r].user = &got;
    }
    comm_desc.n_ranks = MEASURED_RANKS;
    comm_desc.devices = devices;
    comm_desc.bytes_per_s = measured_bytes_per_s;
    CHECK_OK(memo_comm_create_threads(&comm_desc, comms, &error));
    CHECK_OK(thread_ranks_start(ranks, comms, MEASURED_RANKS, &error));
    for (kind = 0; kind < 3; kind++)
        for (k = 0; k < MEASURED; k++) {
            double least = (double)memo_comm_bytes((memo_collective)kind, MEASURED_RANKS, 0,
                                                   measured_counts[k], MEMO_TYPE_F32, 0) /
                           measured_bytes_per_s;
            CHECK_CASE(got.measured_s[0][kind][k] >= 0.9 * least, "%g s, not %g",
                       got.measured_s[0][kind][k], least);
            CHECK(got.measured_s[0][kind][k] == got.measured_s[1][kind][k]);
        }
    for (k = 0; k < MEASURED; k++) bytes[k] = measured_counts[k] * (int64_t)sizeof(float);
    for (k = 0; k < MEASURED; k += MEASURED - 1) { /* the shortest message, the longest */
        memo_blocks_schedule_desc schedule = memo_blocks_schedule_desc_default();
        memo_blocks_overhead overhead = {1e-3, 0};
        memo_block_times times[2];
        int32_t n_parts = 0, i;
        overhead.collective_s = memo_blocks_latency(bytes, got.measured_s[0][0], MEASURED);
        memset(times, 0, sizeof times);
        for (i = 0; i < 2; i++) {
            times[i].forward_s = times[i].recompute_s = times[i].backward_s =
                k ? got.measured_s[0][0][k] : 1e-3;
            times[i].reduce_s = got.measured_s[0][0][k];
        }
        if (k == 0) times[0].reduce_s = times[1].reduce_s = overhead.collective_s;
        schedule.order = MEMO_BLOCKS_FINE;
        schedule.n_blocks = 2;
        schedule.times = times;
        CHECK_OK(memo_blocks_best_parts(&schedule, &overhead, 4, &n_parts, NULL, &error));
        printf("# all-reduce of %d bytes: %.3f ms, latency %.3f ms: %d parts\n", (int)bytes[k],
               1e3 * got.measured_s[0][0][k], 1e3 * overhead.collective_s, (int)n_parts);
        CHECK(k ? n_parts > 1 : n_parts == 1);
    }
    for (r = 0; r < MEASURED_RANKS; r++) {
        comms[r]->destroy(comms[r]);
        memo_host_device_destroy(devices[r]);
    }
}

/* ---- what is left out ---- */

static void calls(void) {
    int order;
    for (order = 0; order <= MEMO_BLOCKS_FINE; order++) {
        model_setup setup = setup_of((memo_blocks_order)order, 2);
        job* j = run_job(2, &setup);
        int k;
        for (k = 0; k < 4; k++) CHECK(j->n_calls[k] == 2 * N_BLOCKS);
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

static memo_status run_refusals(thread_rank* rank, memo_error* e) {
    memo_blocks_desc desc = memo_blocks_desc_default(), bad;
    memo_blocks* blocks = NULL;
    float y[2][8], g[2][8];
    memo_block_buffers buffers[2];
    int s;
    (void)e;
    memset(buffers, 0, sizeof buffers);
    memset(y, 0, sizeof y);
    memset(g, 0, sizeof g);
    for (s = 0; s < 2; s++) {
        buffers[s].output = y[s];
        buffers[s].gradient = g[s];
        buffers[s].count = 8;
    }
    desc.device = rank->device;
    desc.compute_stream = rank->stream;
    desc.comm = rank->comm;
    desc.schedule.n_blocks = 4;
    desc.schedule.order = MEMO_BLOCKS_FINE;
    desc.buffers = buffers;
    desc.functions.forward = desc.functions.recompute = desc.functions.backward = nothing;
    bad = desc;
    bad.functions.recompute = NULL;
    CHECK(memo_blocks_create(&bad, &blocks, &error) == MEMO_STATUS_INVALID_ARGUMENT && !blocks);
    bad = desc;
    bad.comm = NULL;
    CHECK(memo_blocks_create(&bad, &blocks, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    bad = desc;
    bad.schedule.n_blocks = 3;
    CHECK(memo_blocks_create(&bad, &blocks, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    bad = desc;
    bad.schedule.is_scattered = 1;
    CHECK(memo_blocks_create(&bad, &blocks, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "forward_rows") != NULL);
    buffers[1].gradient = NULL;
    CHECK(memo_blocks_create(&desc, &blocks, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    buffers[1].gradient = g[1];

    CHECK_OK(memo_blocks_create(&desc, &blocks, &error));
    CHECK(memo_blocks_backward(blocks, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK(strstr(error.message, "without a forward") != NULL);
    CHECK(memo_blocks_forward_layer(blocks, 1, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward_layer(blocks, 0, &error));
    CHECK(memo_blocks_backward_layer(blocks, 1, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward_layer(blocks, 0, &error)); /* begins anew */
    CHECK_OK(memo_blocks_forward_layer(blocks, 1, &error));
    CHECK(memo_blocks_forward_layer(blocks, 2, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK(memo_blocks_backward_layer(blocks, 0, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_backward(blocks, &error));
    CHECK(memo_blocks_backward(blocks, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, &error));
    CHECK(memo_blocks_get_schedule(blocks, 0)->n_ops > 0);
    memo_blocks_destroy(blocks);
    memo_blocks_destroy(NULL);

    desc.functions.forward = fails;
    CHECK_OK(memo_blocks_create(&desc, &blocks, &error));
    CHECK(memo_blocks_forward(blocks, &error) == MEMO_STATUS_INVALID_STATE);
    CHECK(strstr(error.message, "not today") != NULL);
    CHECK(memo_blocks_forward_layer(blocks, 1, &error) == MEMO_STATUS_INVALID_STATE);
    memo_blocks_destroy(blocks);
    return MEMO_STATUS_OK;
}

static void refusals(void) { CHECK_OK(thread_ranks_run(1, run_refusals, NULL, &error)); }

static void shares(void) {
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
            CHECK(next == n);
        }
}

int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    TEST(shares);
    TEST(refusals);
    TEST(gradients_are_right);
    TEST(calls);
    TEST(orders_agree);
    TEST(orders_agree_on_a_sequence);
    TEST(orders_agree_scattered);
    TEST(orders_agree_scattered_sequence);
    TEST(equals_the_unsplit_model);
    TEST(mixed_degrees);
    TEST(measured_collectives);
    return memo_test_end();
}
