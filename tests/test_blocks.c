/* Chapter 8 of memo_sp.h, run over threads: the schedule as recorded, losses and gradients bitwise those of the default
 * order and within rounding those of the unsplit model, the layers of a split model, order and errors. */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "sp_parts/8_blocks_alone.h"
#include "memo_test.h"
#include "thread_ranks.h"
#include "blocks_model.h"

static memo_error error;

/* ---- one run ---- */

typedef struct job {
    model_setup setup;
    float* losses;       /* ROWS */
    float* gradients[8]; /* of each rank */
    int64_t n_gradients[8];
    int n_calls[4]; /* of rank 0 */
    int64_t n_recorded, n_races;
    memo_status compared;
    char difference[200];
    /* One weight of the unsplit model moved by this much. */
    int64_t nudged;
    float nudge;
} job;

/* All gradients of a rank behind each other; or the weights, where gradients is NULL. */
static int64_t for_gradients(blocks_model* m, float* to, float** weight, int64_t at) {
    int64_t n = 0;
    int layer, k;
    for (layer = 0; layer <= N_LAYERS; layer++)
        for (k = 0; k < (layer < N_LAYERS ? N_LINEARS : 1); k++) {
            memo_linear* l = layer < N_LAYERS ? &m->linears[layer][k] : &m->head;
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

/* What both passes promise, as often as they run. */
static memo_status compare_recorded(const memo_blocks_desc* desc, int n_steps,
                                    const memo_schedule* recorded, memo_error* e) {
    memo_blocks_schedule_desc promised_desc = desc->schedule;
    memo_schedule* promised;
    int step;
    memo_status status = memo_schedule_create(&promised, e);
    promised_desc.weights_apart = 1;
    for (step = 0; step < n_steps && !status; step++) {
        status = memo_blocks_forward_schedule(&promised_desc, promised, e);
        if (!status) status = memo_blocks_backward_schedule(&promised_desc, promised, e);
    }
    if (!status) status = memo_schedule_compare(promised, recorded, e);
    memo_schedule_destroy(promised);
    return status;
}

static memo_status run_model(blocks_model* m, thread_rank* rank, job* j, memo_error* e) {
    memo_block_buffers buffers[MAX_SPLIT];
    void* inputs[MAX_SPLIT][2];
    memo_blocks_desc desc = model_desc(m, rank->device, buffers, inputs);
    memo_recorder_desc recorder_desc = memo_recorder_desc_default();
    memo_recorder* recorder = NULL;
    memo_blocks* blocks = NULL;
    memo_status status = MEMO_STATUS_OK;
    int step;
    recorder_desc.device = rank->device;
    if (j->setup.is_recorded) {
        status = memo_recorder_create(&recorder_desc, &recorder, e);
        if (status) return status;
        desc.device = memo_recorder_device(recorder);
        status = memo_recorder_name_stream(recorder, rank->stream, "compute", e);
    }
    if (!status) status = memo_blocks_create(&desc, &blocks, e);
    for (step = 0; step < j->setup.n_steps && !status; step++) status = model_step(m, blocks, e);
    if (!status) status = rank->device->stream_synchronize(rank->device->context, rank->stream, e);
    if (!status && recorder) {
        memo_schedule* recorded;
        memo_check* check = NULL;
        status = memo_recorder_schedule(recorder, &recorded, e);
        if (!status) status = memo_schedule_check(recorded, &check, e);
        if (!status && rank->comm->rank == 0) {
            memo_error difference;
            difference.message[0] = 0;
            j->compared = compare_recorded(&desc, j->setup.n_steps, recorded, &difference);
            snprintf(j->difference, sizeof j->difference, "%.199s", difference.message);
            j->n_recorded = recorded->n_ops;
            j->n_races = check->n_races + check->n_unrecorded_waits;
        }
        memo_check_destroy(check);
    }
    memo_blocks_destroy(blocks);
    memo_recorder_destroy(recorder);
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
    if (!j) abort();
    j->setup = *setup;
    j->losses = (float*)calloc(ROWS, sizeof(float));
    CHECK_OK(thread_ranks_run(T, run_rank, j, &error));
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

/* ---- bitwise: every order computes what the default order does ---- */

static void same_bits(int is_scattered, int splits_sequence) {
    static const int splits[] = {1, 2, 4, 8};
    int t, n_parts, order;
    for (t = 0; t < 4; t++)
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
                CHECK(found->n_recorded > 0 && found->n_races == 0);
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

/* Where entry k of a rank's gradients lies in those of the unsplit model. */
static void compare_unsplit(const job* whole, const job* split, int T, const char* what) {
    int r, layer, k;
    double worst = 0;
    for (r = 0; r < ROWS; r++) {
        double e = fabs((double)whole->losses[r] - (double)split->losses[r]);
        worst = e > worst ? e : worst;
    }
    for (r = 0; r < T; r++) {
        int64_t at = 0, base = 0, o, i;
        const float *g = split->gradients[r], *w = whole->gradients[0];
        memo_share heads = memo_share_of(N_HEADS, T, r), width = memo_share_of(WIDTH, T, r);
        memo_share vocabulary = memo_share_of(VOCABULARY, T, r);
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
                        double e = fabs((double)g[at++] - (double)w[from]);
                        worst = e > worst ? e : worst;
                    }
                base += n_out * n_in;
                if (layer == N_LAYERS) continue;
                for (o = 0; o < (is_row ? n_out : s.count); o++) {
                    double e = fabs((double)g[at++] - (double)w[base + (is_row ? 0 : s.begin) + o]);
                    worst = e > worst ? e : worst;
                }
                base += n_out;
            }
        for (o = 0; o < vocabulary.count * HIDDEN; o++) {
            double e = fabs((double)g[at++] - (double)w[base + vocabulary.begin * HIDDEN + o]);
            worst = e > worst ? e : worst;
        }
        CHECK(at == split->n_gradients[r]);
    }
    CHECK_CASE(worst < 3e-6, "%s: %g", what, worst); /* values are of order 1 */
}

static void equals_the_unsplit_model(void) {
    int T, n_parts, kind;
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
                compare_unsplit(whole, split, T, what);
                free_job(split);
            }
        free_job(whole);
    }
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
    return memo_test_end();
}
