/* test_blocks.c - chapter 8 of memo_sp.h over threads: the recorded schedule, the layers of a split
 * model, order and errors.  Losses and gradients match the default order bitwise, and the unsplit
 * model up to rounding. */
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "bench/block_parts.h"
#include "measure_collective.h"
#include "memo_test.h"
#include "stats.h"
#include "thread_ranks.h"
#include "blocks_model.h"
#include "owned.h"

/* ---- bitwise: every order computes the same as the default order ---- */

#ifdef MEMO_TEST_VALGRIND
#define SPLIT_STEP 2 /* T = 1, 4 */
#else
#define SPLIT_STEP 1
#endif

static void same_bits(int splits_sequence) {
    static const int splits[] = {1, 2, 4, 8};
    for (int t = 0; t < 4; t += SPLIT_STEP)
        for (int n_parts = 1; n_parts <= 4; n_parts *= 2) {
            model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, n_parts);
            setup.n_steps = 2; /* gradients add up, buffers are used again */
            setup.splits_sequence = splits_sequence;
            own_memory job* expected = run_job(splits[t], &setup);
            for (int order = MEMO_BLOCKS_DEFAULT; order < MEMO_N_BLOCKS_ORDERS; order++) {
                setup.order = (memo_blocks_order)order;
                setup.by_layer = (order + t) % 2;
                own_memory job* found = run_job(splits[t], &setup);
                CHECK_CASE(is_same(expected, found), "%s", setup_text(splits[t], &setup));
                check_recorded(found, splits[t]);
            }
        }
}

TEST(orders_agree) { same_bits(0); }
TEST(orders_agree_on_a_sequence) { same_bits(1); }

/* ---- within rounding: the unsplit model, one rank and one part ---- */

TEST(equals_the_unsplit_model) {
    double worst = 0;
    for (int kind = 0; kind < 2; kind++) {
        model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, 1);
        setup.splits_sequence = kind;
        own_memory job* whole = run_job(1, &setup);
        for (int T = 1; T <= 8; T *= 2)
            for (int n_parts = 1; n_parts <= 4; n_parts *= 2) {
                setup.order = MEMO_BLOCKS_FINE;
                setup.n_parts = n_parts;
                own_memory job* split = run_job(T, &setup);
                keep_worst(&worst, compare_unsplit(whole, split, T), 0);
            }
    }
    printf("# largest difference from the unsplit model: %.2g\n", worst);
}

/* The gradients are gradients: central differences of the loss. */
TEST(gradients_are_right) {
    model_setup setup = setup_of(MEMO_BLOCKS_FINE, 2);
    own_memory job* j = run_job(1, &setup);
    int r;
    for (int n = 0; n < 40; n++) {
        int64_t at = memo_test_int(0, 2 * LAYER_GRADIENTS - 1);
        double loss[2], measured;
        for (int side = 0; side < 2; side++) {
            own_memory job* moved = run_nudged(1, &setup, at, side ? 0.01f : -0.01f);
            for (loss[side] = 0, r = 0; r < MAX_ROWS; r++)
                loss[side] += (double)moved->losses[0][r];
        }
        measured = (loss[1] - loss[0]) / 0.02;
        CHECK_CASE(fabs(measured - (double)j->gradients[0][at]) < 2e-5 + 0.02 * fabs(measured),
                   "gradient %lld: %g, measured %g", (long long)at, (double)j->gradients[0][at],
                   measured);
    }
}

/* Ranks that must hold a weight or bias: each group of tensor ranks has all weights once, and the
 * biases of row-parallel layers on every rank. */
static int expected_holders(const model_setup* setup, int T, int place) {
    const int at = place % LAYER_GRADIENTS - LAYER_WEIGHTS; /* biases: q, k, v, o, up, down */
    const int is_on_all =
        (at >= 3 * HIDDEN && at < 4 * HIDDEN) || (at >= 4 * HIDDEN + WIDTH && at < LAYER_GRADIENTS);
    return is_on_all ? T : T / setup->degrees[place / LAYER_GRADIENTS];
}

/* Degrees that change between blocks: three stages of a layer.  Every row and weight is on as many
 * ranks as its stage's degree says. */
TEST(mixed_degrees) {
    static const int cases[][1 + MAX_STAGES] = {{2, 1, 2, 1}, {4, 2, 4, 1}, {4, 4, 2, 4},
                                                {4, 1, 2, 4}, {8, 2, 8, 4}, {8, 8, 4, 1},
                                                {4, 2, 2, 4}, {8, 1, 1, 8}};
    model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, 1);
    double worst = 0, largest = 0;
    setup.n_rows = MAX_ROWS;
    setup.tokens = 4;
    setup.n_stages = MAX_STAGES;
    setup.n_layers = 1;
    for (int k = 0; k < MAX_STAGES; k++) setup.degrees[k] = 1;
    own_memory job* whole = run_job(1, &setup);
    for (int i = 0; i < MAX_GRADIENTS; i++) keep_worst(&largest, (double)whole->gradients[0][i], 0);
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c += SPLIT_STEP)
        for (setup.n_parts = 1; setup.n_parts <= MAX_SPLIT; setup.n_parts *= 2) {
            own_memory job* first = NULL;
            for (int k = 0; k < MAX_STAGES; k++) setup.degrees[k] = cases[c][1 + k];
            for (int order = MEMO_BLOCKS_DEFAULT; order < MEMO_N_BLOCKS_ORDERS; order++) {
                const int T = cases[c][0];
                int n_other = 0;
                setup.order = (memo_blocks_order)order;
                job* mixed = run_job(T, &setup);
                keep_worst(&worst, compare_unsplit(whole, mixed, T), 0);
                check_recorded(mixed, T);
                for (int i = 0; i < MAX_GRADIENTS + MAX_ROWS; i++) {
                    const int is_row = i >= MAX_GRADIENTS;
                    int n_ranks = 0;
                    for (int r = 0; r < T; r++)
                        n_ranks += is_row ? mixed->has_row[r][i - MAX_GRADIENTS] : mixed->has[r][i];
                    n_other += n_ranks != (is_row ? setup.degrees[MAX_STAGES - 1]
                                                  : expected_holders(&setup, T, i));
                }
                CHECK_CASE(n_other == 0, "%s: %d rows and weights are on other ranks",
                           setup_text(T, &setup), n_other);
                CHECK_CASE(!first || is_same(first, mixed), "%s", setup_text(T, &setup));
                if (first)
                    free(mixed);
                else
                    first = mixed;
            }
        }
    printf("# largest difference from one rank: %.2g, of gradients up to %.2g\n", worst, largest);
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
    for (int kind = 0; kind < 3; kind++)
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
    memo_host_device_desc device_desc = {0};
    memo_comm_threads_desc comm_desc = {.bytes_per_s = measured_bytes_per_s};
    CHECK_OK(thread_ranks_run_on(&device_desc, &comm_desc, MEASURED_RANKS, function, user, &error));
}

/* Over links with a rate, a message takes at least its bytes / rate, and all ranks get the same
 * time.  The measured times decide about parts: a block of computation only, with messages that are
 * too short or long enough. */
TEST(measured_collectives) {
#ifdef MEMO_TEST_STRICT
    SKIP("links of the host device");
#endif
    int64_t bytes[MEASURED];
    measurement got = {0};
    measured_start(measure_rank, &got);
    for (int kind = 0; kind < 3; kind++)
        for (int k = 0; k < MEASURED; k++) {
            /* What a rank sends: half of the bytes twice, or all bytes. */
            double least = (double)measured_counts[k] * sizeof(float) / measured_bytes_per_s;
            CHECK_CASE(got.measured_s[0][kind][k] >= 0.9 * least, "%g s, not %g",
                       got.measured_s[0][kind][k], least);
            CHECK_IS(got.measured_s[0][kind][k], ==, got.measured_s[1][kind][k]);
        }
    for (int k = 0; k < MEASURED; k++) bytes[k] = measured_counts[k] * (int64_t)sizeof(float);
    for (int k = 0; k < MEASURED; k += MEASURED - 1) { /* the shortest message, the longest */
        block_overhead overhead = {1e-3, 0};
        memo_block_times times[2];
        int32_t n_parts = 0;
        overhead.collective_s = block_latency(bytes, got.measured_s[0][0], MEASURED);
        memset(times, 0, sizeof times);
        for (int32_t i = 0; i < 2; i++) {
            times[i].forward_s = times[i].recompute_s = times[i].backward_s =
                k ? got.measured_s[0][0][k] : 1e-3;
            times[i].reduce_s = got.measured_s[0][0][k];
        }
        if (k == 0) times[0].reduce_s = times[1].reduce_s = overhead.collective_s;
        memo_blocks_schedule_desc schedule = {.order = MEMO_BLOCKS_FINE, .n_blocks = 2};
        CHECK_OK(block_best_parts(&schedule, times, MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD,
                                  &overhead, 4, &n_parts, NULL, &error));
        printf("# all-reduce of %d bytes: %.3f ms, latency %.3f ms: %d parts\n", (int)bytes[k],
               1e3 * got.measured_s[0][0][k], 1e3 * overhead.collective_s, (int)n_parts);
        CHECK(k ? n_parts > 1 : n_parts == 1);
    }
}

/* ---- blocks that compute nothing ---- */

static memo_status nothing(MEMO_UNUSED void* context, MEMO_UNUSED const memo_block_call* call,
                           MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
static memo_status fails(MEMO_UNUSED void* context, const memo_block_call* call, memo_error* e) {
    return call->block == 1 && call->part == 1
               ? memo_error_set(e, MEMO_STATUS_INVALID_STATE, "not today")
               : MEMO_STATUS_OK;
}

/* Two layers that compute nothing, with the sums of two sub-batches. */
static void idle_blocks(memo_blocks_desc* desc, thread_rank* rank, memo_block_buffers* buffers,
                        float (*values)[2][8]) {
    memset(buffers, 0, 2 * sizeof *buffers);
    for (int s = 0; s < 2; s++) {
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
    memo_blocks_desc desc = {0};
    own_blocks* blocks = NULL;
    float values[2][2][8];
    memo_block_buffers buffers[2];
    (void)e;
    memset(values, 0, sizeof values);
    idle_blocks(&desc, rank, buffers, values);
    memo_blocks_desc bad = desc;
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
    CHECK_IS(memo_blocks_forward(blocks, -2, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_IS(memo_blocks_backward(blocks, -2, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_ERROR(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, &error), INVALID_STATE,
                "run forward for all layers first");
    CHECK_IS(memo_blocks_forward(blocks, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, 0, &error));
    CHECK_IS(memo_blocks_backward(blocks, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, 0, &error)); /* begins again */
    CHECK_OK(memo_blocks_forward(blocks, 1, &error));
    CHECK_IS(memo_blocks_forward(blocks, 2, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_IS(memo_blocks_backward(blocks, 0, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, &error));
    CHECK_OK(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, &error)); /* of two slices */
    CHECK_OK(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, &error));
    CHECK_IS(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, &error));
    CHECK_OK(memo_blocks_backward(blocks, 1, &error)); /* given up: its forward is used */
    CHECK_OK(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, &error));
    CHECK_OK(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, &error));
    CHECK_IS(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, &error));
    memo_blocks_destroy(blocks);
    memo_blocks_destroy(NULL);

    desc.functions.forward = fails;
    CHECK_OK(memo_blocks_create(&desc, &blocks, &error));
    CHECK_ERROR(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, &error), INVALID_STATE, "not today");
    CHECK_IS(memo_blocks_forward(blocks, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    return MEMO_STATUS_OK;
}

TEST(refusals) { CHECK_OK(thread_ranks_run(1, run_refusals, NULL, &error)); }

/* A failure of the call, or of what it enqueued. */
static memo_status end_of_stream(thread_rank* rank, memo_status status, memo_error* e) {
    memo_status late = memo_stream_synchronize(rank->device, rank->stream, status ? NULL : e);
    return status ? status : late;
}

/* Rank 1 has another order, whose forward is the same, or is in another pass than the others, of
 * the same counts and types.  user: the words of the error. */
static memo_status run_unlike(thread_rank* rank, memo_error* e) {
    static float values[3][2][2][8];
    const char* const* words = (const char* const*)rank->user;
    memo_blocks_desc desc = {0};
    own_blocks* blocks = NULL;
    memo_block_buffers buffers[2];
    const int me = rank->comm->rank, is_other_pass = words[1] != NULL;
    idle_blocks(&desc, rank, buffers, values[me]);
    if (!is_other_pass) desc.schedule.order = me == 1 ? MEMO_BLOCKS_FINE : MEMO_BLOCKS_CROSS;
    memo_status status = memo_blocks_create(&desc, &blocks, e);
    if (!status) status = memo_blocks_forward(blocks, MEMO_ALL_LAYERS, e);
    if (is_other_pass) {
        if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);
        CHECK_CASE(!status, "%s", e->message);
        if (!status)
            status =
                (me == 1 ? memo_blocks_forward : memo_blocks_backward)(blocks, MEMO_ALL_LAYERS, e);
    }
    status = end_of_stream(rank, status, e);
    CHECK_CASE(status == MEMO_STATUS_COMM && strstr(e->message, words[0]) &&
                   (!is_other_pass || strstr(e->message, words[1])),
               "rank %d: status %d, %s", me, (int)status, status ? e->message : "");
    return MEMO_STATUS_OK;
}

TEST(a_rank_in_another_pass_is_an_error_on_all_ranks) {
    const char* words[2] = {"blocks forward", "blocks backward"};
    CHECK_OK(thread_ranks_run(3, run_unlike, words, &error));
}
TEST(a_rank_of_another_order_is_an_error_on_all_ranks) {
    const char* words[2] = {"memo_blocks_desc.schedule: rank 0 and rank 1", NULL};
    CHECK_OK(thread_ranks_run(3, run_unlike, words, &error));
}

/* A communicator that keeps the labels and streams of collectives. */
typedef struct label_keeper {
    memo_label labels[64];
    memo_stream streams[64];
    int n;
} label_keeper;
static memo_status keep_label(memo_comm* comm, memo_stream stream, const memo_collective_call* call,
                              memo_error* e) {
    label_keeper* keeper = (label_keeper*)comm->context;
    (void)call, (void)e;
    if (keeper->n == 64) abort();
    keeper->streams[keeper->n] = stream;
    keeper->labels[keeper->n++] = comm->label;
    return MEMO_STATUS_OK;
}
static memo_comm comm_of_keeper(label_keeper* keeper) {
    memset(keeper, 0, sizeof *keeper);
    return (memo_comm){.size = 2, .context = keeper, .collective = keep_label};
}

/* What NCCL compares: the first collective of each pass, and no other, has digests; one of them is
 * of the pass. */
static memo_status run_labels(thread_rank* rank, memo_error* e) {
    static float values[2][2][8];
    memo_blocks_desc desc = {0};
    own_blocks* blocks = NULL;
    memo_block_buffers buffers[2];
    label_keeper keeper;
    memo_comm comm = comm_of_keeper(&keeper);
    int n_first = 0;
    idle_blocks(&desc, rank, buffers, values);
    desc.comm = &comm;
    CHECK_OK(memo_blocks_create(&desc, &blocks, e));
    CHECK_OK(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, e));
    int n_forward = keeper.n;
    CHECK_OK(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, e));
    for (int k = 0; k < keeper.n; k++) n_first += keeper.labels[k].is_first;
    CHECK(n_first == 2 && keeper.labels[0].is_first && keeper.labels[n_forward].is_first);
    CHECK(keeper.labels[0].fields && keeper.labels[n_forward].fields);
    for (int k = 0; k < MEMO_LABEL_FIELDS; k++)
        CHECK_IS((keeper.labels[0].digests[k] != keeper.labels[n_forward].digests[k]), ==, k == 0);
    return MEMO_STATUS_OK;
}

TEST(each_pass_begins_with_digests_of_its_own) {
    CHECK_OK(thread_ranks_run(1, run_labels, NULL, &error));
}

/* A device that keeps the stream that is created, and counts streams that are destroyed. */
static memo_device inner_device;
static int32_t created_priority;
static memo_stream created_stream;
static memo_status keep_stream(void* context, const char* name, int32_t priority,
                               memo_stream* stream, memo_error* e) {
    memo_status status = inner_device.stream_create(context, name, priority, stream, e);
    created_priority = priority;
    created_stream = *stream;
    return status;
}

static int n_destroyed;
static memo_status count_destroyed(void* context, memo_stream stream, memo_error* e) {
    n_destroyed++;
    return inner_device.stream_destroy(context, stream, e);
}

static memo_status run_priority(thread_rank* rank, memo_error* e) {
    static float values[2][2][8];
    memo_blocks_desc desc = {0};
    memo_block_buffers buffers[2];
    memo_blocks* blocks = NULL;
    label_keeper keeper;
    memo_comm comm = comm_of_keeper(&keeper);
    memo_device device = inner_device = *rank->device;
    device.stream_create = keep_stream;
    device.stream_destroy = count_destroyed;
    idle_blocks(&desc, rank, buffers, values);
    desc.device = &device;
    desc.comm = &comm;
    for (int order = 0; order < 4; order++) {
        /* Of 2 parts in 4 blocks: forward, backward, and outputs of recomputation that are read. */
        static const int n_collectives[] = {3 * 8, 3 * 8, 2 * 8 + 4, 2 * 8};
        desc.schedule.order = (memo_blocks_order)order;
        keeper.n = created_priority = 0;
        CHECK_OK(memo_blocks_create(&desc, &blocks, e));
        CHECK_IS(created_priority, >, 0);
        CHECK_OK(memo_blocks_forward(blocks, MEMO_ALL_LAYERS, e));
        CHECK_OK(memo_blocks_backward(blocks, MEMO_ALL_LAYERS, e));
        for (int i = 0; i < keeper.n; i++) CHECK(keeper.streams[i] == created_stream);
        CHECK_IS(keeper.n, ==, n_collectives[order]);
        memo_blocks_destroy(blocks);
    }
    CHECK_IS(n_destroyed, ==, 4);
    return MEMO_STATUS_OK;
}

TEST(collectives_run_on_a_stream_of_priority) {
    CHECK_OK(thread_ranks_run(1, run_priority, NULL, &error));
}

TEST(shares) {
    for (int n = 0; n < 30; n++)
        for (int size = 1; size <= 8; size++) {
            int64_t next = 0;
            for (int rank = 0; rank < size; rank++) {
                memo_share share = memo_share_of(n, size, rank);
                CHECK(share.begin == next && share.count >= n / size &&
                      share.count <= n / size + 1);
                next += share.count;
            }
            CHECK_IS(next, ==, n);
        }
}
