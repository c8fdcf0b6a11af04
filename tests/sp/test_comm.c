/* test_comm.c - memo_comm over threads, and the mesh: the cases of comm_cases.h for 1 to 8 ranks,
 * and the further promises of this back end: bits, time-outs, failures, names of ranks that differ,
 * links. */
#include "scarce.h"
#include "turns.h"

static int64_t nap_ns = 10000000;
#define MEMOI_THREADS_NAP_NS nap_ns

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "comm_cases.h"
#include "stats.h"
#include "typed.h"
#include "orders.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#define MAX_RANKS 16

/* --- a world --- */

typedef struct {
    int32_t n_ranks;
    double start_s;
    memo_device* devices[MAX_RANKS];
    memo_comm* comms[MAX_RANKS];
    rank_case cases[MAX_RANKS];
} rig;

static rig rig_of(int32_t n_ranks, const memo_comm_threads_desc* given) {
    const memo_host_device_desc host = {.queue_operations = 256};
    memo_comm_threads_desc desc = {0};
    rig g = {.n_ranks = n_ranks, .start_s = now_s()};
    for (int32_t r = 0; r < n_ranks; r++) {
        CHECK_OK(memo_host_device_create(&host, &g.devices[r], &error));
        for (int i = 0; i < CASE_STREAMS; i++) {
            char name[32];
            snprintf(name, sizeof name, "r%d s%d", (int)r, i);
            CHECK_OK(memo_stream_create(g.devices[r], name, 0, &g.cases[r].streams[i], &error));
        }
    }
    if (given) desc = *given;
    desc.n_ranks = n_ranks;
    desc.devices = g.devices;
    CHECK_OK(memo_comm_create_threads(&desc, g.comms, &error));
    for (int32_t r = 0; r < n_ranks; r++) {
        if (!g.comms[r]) abort();
        g.cases[r].comm = g.comms[r];
        g.cases[r].device = g.devices[r];
    }
    return g;
}

/* A rank waits at most so long for another. */
static rig rig_of_timed(int32_t n_ranks, double timeout_s) {
    memo_comm_threads_desc desc = {.timeout_s = timeout_s};
    return rig_of(n_ranks, &desc);
}

static void* rig_rank(void* argument) {
    rank_case* c = (rank_case*)argument;
    (void)turn_begins();
    c->function(c);
    (void)turn_ends();
    return NULL;
}

/* Runs function on every rank, a thread each. */
static void rig_run(rig* g, case_function function, uint64_t seed) {
    pthread_t threads[MAX_RANKS];
    for (int32_t r = 0; r < g->n_ranks; r++) {
        g->cases[r].function = function;
        case_begin(&g->cases[r], seed);
        CHECK(!pthread_create(&threads[r], NULL, rig_rank, &g->cases[r]));
        (void)turn_creates();
    }
    for (int32_t r = 0; r < g->n_ranks; r++) {
        (void)turn_joins(threads[r]);
        pthread_join(threads[r], NULL);
    }
}

static void rig_synchronize(rig* g) {
    for (int32_t r = 0; r < g->n_ranks; r++)
        for (int i = 0; i < CASE_STREAMS; i++)
            IGNORE(memo_stream_synchronize(g->devices[r], g->cases[r].streams[i], NULL));
}

static void rig_end(rig* g) {
    rig_synchronize(g);
    for (int32_t r = 0; r < g->n_ranks; r++) memo_comm_destroy(g->comms[r]);
    for (int32_t r = 0; r < g->n_ranks; r++) memo_host_device_destroy(g->devices[r]);
}
#define own_rig OWNED(rig_end) rig

/* Ranks wait for each other so long from now on. */
static void rig_set_timeout(rig* g, double timeout_s) {
    rig_synchronize(g);
    ((memoi_threads_rank*)g->comms[0]->context)->group->world->desc.timeout_s = timeout_s;
}

/* --- orders --- */

/* Lets other threads run for 0 to n - 1 turns. */
static void let_run(int n) {
    for (int64_t turns = (int64_t)(turns_random() % (uint64_t)n); turns > 0; turns--)
        (void)turn_waits();
}

/* --- gates --- */

/* A stream that waits at gate k goes on when gates_open is above k.  A test that never opens it
 * ends with an error. */
static int32_t gates_open;

static memo_status gate_function(void* args, memo_error* e) {
    const int32_t gate = *(const int32_t*)args;
    for (int tries = 0; tries < 100000; tries++) {
        if (__atomic_load_n(&gates_open, __ATOMIC_ACQUIRE) > gate) return MEMO_STATUS_OK;
        (void)turn_waits();
    }
    return memo_error_set(e, MEMO_STATUS_DEVICE, "gate %d stays closed", (int)gate);
}
static void wait_at_gate(rank_case* c, memo_stream stream, int32_t gate) {
    CHECK_OK(memo_host_device_launch(c->device, stream, gate_function, &gate, sizeof gate, &error));
}
static void open_gate(void) { __atomic_fetch_add(&gates_open, 1, __ATOMIC_ACQ_REL); }

/* --- the common cases --- */

static void run_case(case_function function) {
    for (int32_t n = 1; n <= 8; n++)
        for (int are_peers = 0; are_peers < 2; are_peers++) {
            memo_comm_threads_desc desc = {.are_peers = are_peers};
            own_rig g = rig_of(n, &desc);
            rig_run(&g, function, memo_test_random());
        }
}

/* --- types --- */

TEST(types_have_sizes_and_names) {
    CHECK(memo_type_bytes(MEMO_TYPE_F32) == 4 && memo_type_bytes(MEMO_TYPE_F64) == 8 &&
          memo_type_bytes(MEMO_TYPE_BF16) == 2 && memo_type_bytes(MEMO_TYPE_F16) == 2 &&
          memo_type_bytes(MEMO_TYPE_I32) == 4 && memo_type_bytes(MEMO_TYPE_I64) == 8 &&
          memo_type_bytes(MEMO_TYPE_U8) == 1 && memo_type_bytes((memo_type)7) == 0);
    CHECK(!strcmp(memo_type_name(MEMO_TYPE_BF16), "bf16") &&
          !strcmp(memo_type_name(MEMO_TYPE_I64), "i64") && memo_type_name((memo_type)99) != NULL);
}

/* --- bits --- */

enum { BITS_COUNT = 1531, BITS_BYTES = BITS_COUNT * 8 };

/* Element i of all ranks, summed in their order: in double, or in float and rounded once. */
static void expected_sum(char* to, const char (*from)[BITS_BYTES], int64_t i, int32_t n,
                         memo_type type) {
    double wide = 0;
    volatile float sum = 0; /* no more digits than a float */
    for (int32_t r = 0; r < n; r++) {
        if (type == MEMO_TYPE_F64)
            wide += ((const double*)(const void*)from[r])[i];
        else
            sum = r ? sum + typed_at(from[r], i, type) : typed_at(from[r], i, type);
    }
    if (type == MEMO_TYPE_F64)
        ((double*)(void*)to)[i] = wide;
    else
        typed_set(to, i, type, (double)sum);
}

/* Numbers of very different sizes. */
static void check_sums(int trial) {
    static const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_F64, MEMO_TYPE_BF16};
    static char from[8][BITS_BYTES], to[8][BITS_BYTES], part[8][BITS_BYTES], expected[BITS_BYTES];
    memo_type type = types[trial % 3];
    int64_t bytes = memo_type_bytes(type), i;
    int64_t count = trial % 2 ? BITS_COUNT : memo_test_int(1, 90); /* split among ranks, or not */
    int32_t n = (int32_t)memo_test_int(2, 8), r;
    own_rig g = rig_of(n, NULL);
    for (r = 0; r < n; r++)
        for (i = 0; i < BITS_COUNT; i++) {
            double value = (memo_test_real() - 0.5) * (memo_test_int(0, 3) ? 1 : 1e6);
            if (type == MEMO_TYPE_F64)
                ((double*)(void*)from[r])[i] = value;
            else
                typed_set(from[r], i, type, value);
        }
    for (i = 0; i < BITS_COUNT; i++)
        expected_sum(expected, (const char(*)[BITS_BYTES])from, i, n, type);
    for (r = 0; r < n; r++) {
        memo_comm* comm = g.comms[r];
        memo_stream stream = g.cases[r].streams[0];
        CHECK_OK(
            memo_all_reduce(comm, stream, from[r], to[r], count, type, MEMO_REDUCTION_SUM, &error));
        CHECK_OK(memo_reduce_scatter(comm, stream, from[r], part[r], count / n, type,
                                     MEMO_REDUCTION_SUM, &error));
    }
    rig_synchronize(&g);
    for (r = 0; r < n; r++) {
        CHECK_CASE(!memcmp(to[r], expected, (size_t)(count * bytes)), "%s, %d ranks, rank %d",
                   memo_type_name(type), (int)n, (int)r);
        CHECK(!memcmp(part[r], expected + r * (count / n) * bytes, (size_t)(count / n * bytes)));
    }
}
TEST(sums_have_the_same_bits_in_any_order) {
    for (int trial = 0; trial < 24 && !memo_test.failures; trial++) in_orders(check_sums, trial);
}

TEST(a_nan_is_the_largest_on_every_rank) {
    float x[3][2], y[3][2];
    double zero = 0;
    own_rig g = rig_of(3, NULL);
    for (int32_t r = 0; r < 3; r++) {
        x[r][0] = (float)r;
        x[r][1] = r == 1 ? (float)(zero / zero) : 5.0f;
        CHECK_OK(memo_all_reduce(g.comms[r], g.cases[r].streams[0], x[r], y[r], 2, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_MAX, &error));
    }
    rig_synchronize(&g);
    for (int32_t r = 0; r < 3; r++) CHECK(y[r][0] == 2 && y[r][1] != y[r][1]);
}

/* No elements, no buffers: still everybody must call, and that is all. */
TEST(nothing_is_a_count_too) {
    own_rig g = rig_of(3, NULL);
    for (int32_t r = 0; r < 3; r++) {
        memo_comm* comm = g.comms[r];
        memo_stream s = g.cases[r].streams[0];
        CHECK_OK(
            memo_all_reduce(comm, s, NULL, NULL, 0, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error));
        CHECK_OK(memo_all_gather(comm, s, NULL, NULL, 0, MEMO_TYPE_F32, &error));
        CHECK_OK(
            memo_reduce_scatter(comm, s, NULL, NULL, 0, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error));
        CHECK_OK(memo_broadcast(comm, s, NULL, 0, MEMO_TYPE_F32, 2, &error));
        CHECK_OK(memo_group_begin(comm, &error));
        CHECK_OK(memo_send(comm, s, NULL, 0, MEMO_TYPE_F32, (r + 1) % 3, &error));
        CHECK_OK(memo_receive(comm, s, NULL, 0, MEMO_TYPE_F32, (r + 2) % 3, &error));
        CHECK_OK(memo_group_end(comm, s, &error));
    }
    rig_synchronize(&g);
    for (int32_t r = 0; r < 3; r++) {
        CHECK_OK(memo_comm_status(g.comms[r], &error));
        CHECK_IS(g.comms[r]->sent_bytes, ==, 0);
    }
}

/* --- matching --- */

/* Rank 1 waits for 2 before it sends to 0, and 2's send to 1 comes after the one to 0: a group that
 * took its receives one after the other would never end. */
TEST(a_group_takes_what_comes_first) {
    float x = 1, y[3] = {0, 0, 0};
    memo_stream s[3];
    for (int i = 0; i < 20; i++) {
        own_rig g = rig_of(3, NULL);
        for (int32_t r = 0; r < 3; r++) s[r] = g.cases[r].streams[0];
        CHECK_OK(memo_group_begin(g.comms[0], &error));
        CHECK_OK(memo_receive(g.comms[0], s[0], &y[0], 1, MEMO_TYPE_F32, 1, &error));
        CHECK_OK(memo_receive(g.comms[0], s[0], &y[1], 1, MEMO_TYPE_F32, 2, &error));
        CHECK_OK(memo_group_end(g.comms[0], s[0], &error));
        CHECK_OK(memo_receive(g.comms[1], s[1], &y[2], 1, MEMO_TYPE_F32, 2, &error));
        CHECK_OK(memo_send(g.comms[1], s[1], &x, 1, MEMO_TYPE_F32, 0, &error));
        CHECK_OK(memo_send(g.comms[2], s[2], &x, 1, MEMO_TYPE_F32, 0, &error));
        CHECK_OK(memo_send(g.comms[2], s[2], &x, 1, MEMO_TYPE_F32, 1, &error));
        rig_synchronize(&g);
        for (int32_t r = 0; r < 3; r++) CHECK_OK(memo_comm_status(g.comms[r], &error));
        CHECK(y[0] == 1 && y[1] == 1 && y[2] == 1);
    }
}

/* More messages than fit wait for room; a group that never fits is refused. */
TEST(messages_wait_for_room) {
    enum { N = 2 * MEMOI_THREADS_MESSAGES + 96 };
    static int32_t x[N], y[N];
    own_rig g = rig_of(2, NULL);
    memo_comm* a = g.comms[0];
    memo_comm* b = g.comms[1];
    for (int i = 0; i < N; i++) x[i] = i;
    for (int i = 0; i < N; i++) {
        if (i % 32 == 0) {
            CHECK_OK(memo_group_begin(a, &error));
            CHECK_OK(memo_group_begin(b, &error));
        }
        CHECK_OK(memo_send(a, g.cases[0].streams[0], &x[i], 1, MEMO_TYPE_I32, 1, &error));
        CHECK_OK(memo_receive(b, g.cases[1].streams[0], &y[i], 1, MEMO_TYPE_I32, 0, &error));
        if (i % 32 == 31) {
            CHECK_OK(memo_group_end(a, g.cases[0].streams[0], &error));
            CHECK_OK(memo_group_end(b, g.cases[1].streams[0], &error));
        }
    }
    rig_synchronize(&g);
    CHECK(!memcmp(x, y, sizeof x));
    CHECK(a->sent_bytes == N * 4 && b->sent_bytes == 0);
    CHECK_OK(memo_group_begin(a, &error));
    for (int i = 0; i < MEMOI_THREADS_MESSAGES; i++)
        CHECK_OK(memo_send(a, g.cases[0].streams[0], &x[i], 1, MEMO_TYPE_I32, 1, &error));
    CHECK_ERROR(memo_send(a, g.cases[0].streams[0], x, 1, MEMO_TYPE_I32, 1, &error),
                INVALID_ARGUMENT, "4096");
}

/* Nothing empties the queues before the start, so waiting for room would never end. */
TEST(a_group_is_on_one_stream) {
    int32_t x = 1;
    own_rig g = rig_of(2, NULL);
    memo_comm* comm = g.comms[0];
    CHECK_OK(memo_group_begin(comm, &error));
    CHECK_OK(memo_send(comm, g.cases[0].streams[0], &x, 1, MEMO_TYPE_I32, 1, &error));
    CHECK_IS(memo_group_end(comm, g.cases[0].streams[1], &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_comm_status(comm, &error));
    CHECK_IS(comm->sent_bytes, ==, 0);
}

/* Rank `late` comes when the other sleeps, for ten minutes unless a ring ends the nap. */
static memo_status await_sleeper(void* args, memo_error* e) {
    memoi_threads_rank* peer = *(memoi_threads_rank**)args;
    for (int tries = 0; tries < 1000000; tries++) {
        if (__atomic_load_n(&peer->bell, __ATOMIC_ACQUIRE) & 1) return MEMO_STATUS_OK;
        memob_sleep_until(memob_now_ns() + 20000);
    }
    return memo_error_set(e, MEMO_STATUS_DEVICE, "rank %d does not sleep", (int)peer->table.rank);
}
TEST(a_peer_that_comes_wakes_a_rank) {
    nap_ns = (int64_t)600 * 1000000000;
    for (int k = 0; k < 20; k++) {
        const int32_t late = k % 2;
        float x[2] = {1, 0};
        own_rig g = rig_of(2, NULL);
        void* peer = g.comms[!late]->context;
        CHECK_OK(memo_host_device_launch(g.devices[late], g.cases[late].streams[0], await_sleeper,
                                         &peer, sizeof peer, &error));
        CHECK_OK(memo_send(g.comms[0], g.cases[0].streams[0], &x[0], 1, MEMO_TYPE_F32, 1, &error));
        CHECK_OK(
            memo_receive(g.comms[1], g.cases[1].streams[0], &x[1], 1, MEMO_TYPE_F32, 0, &error));
        rig_synchronize(&g);
        for (int32_t r = 0; r < 2; r++) CHECK_OK(memo_device_status(g.devices[r], &error));
        CHECK(x[1] == 1);
        CHECK_IS(now_s() - g.start_s, <, 600);
    }
    nap_ns = 10000000;
}

/* --- failures --- */

/* Below the time-outs of ranks that must not wait for them.  The machine may be busy. */
#define BOUND_S 15.0

/* The state after a failure: the status of every rank, of its stream and of its next call is COMM
 * with all the words, within BOUND_S; and everything can be destroyed. */
static void expect_failure(rig* g, const char* words, const char* more_words) {
    float x = 0;
    rig_synchronize(g);
    for (int32_t r = 0; r < g->n_ranks; r++) {
        memo_comm* comm = g->comms[r];
        CHECK_ERROR(memo_comm_status(comm, &error), COMM, words);
        CHECK_TEXT(error.message, more_words);
        CHECK_IS(memo_all_reduce(comm, g->cases[r].streams[0], &x, &x, 1, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_SUM, &error),
                 !=, MEMO_STATUS_OK);
        CHECK_IS(memo_group_begin(comm, &error), ==, MEMO_STATUS_COMM);
        CHECK_FAILS(memo_send(comm, g->cases[r].streams[0], &x, 1, MEMO_TYPE_F32, 0, &error), COMM);
    }
    CHECK_IS(now_s() - g->start_s, <, BOUND_S);
}

/* Enqueued, or too late: another rank has noticed the failure already. */
static int may_be_late(memo_status status) {
    return status == MEMO_STATUS_OK || status == MEMO_STATUS_COMM;
}

/* A message of one float between a rank and another. */
static memo_status message_of(rig* g, int32_t rank, int is_send, int32_t other) {
    static float x[MAX_RANKS];
    memo_comm* comm = g->comms[rank];
    memo_stream s = g->cases[rank].streams[0];
    return is_send ? memo_send(comm, s, &x[rank], 1, MEMO_TYPE_F32, other, &error)
                   : memo_receive(comm, s, &x[rank], 1, MEMO_TYPE_F32, other, &error);
}

/* The rank cleans up and leaves, as after an error. */
static void rig_remove(rig* g, int32_t rank) {
    memo_comm_destroy(g->comms[rank]);
    g->comms[rank] = NULL;
}

TEST(a_rank_that_never_comes_is_named) {
    float x[4] = {0, 0, 0, 0};
    own_rig g = rig_of_timed(4, 60);
    for (int32_t r = 0; r < 4; r++)
        CHECK_OK(memo_barrier(g.comms[r], g.cases[r].streams[0], &error));
    rig_set_timeout(&g, 0.3); /* all have come once, so that threads run */
    for (int32_t r = 0; r < 4; r++)
        if (r != 2)
            CHECK(may_be_late(memo_all_reduce(g.comms[r], g.cases[r].streams[0], &x[r], &x[r], 1,
                                              MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error)));
    expect_failure(&g, "rank 2 of 'threads world' did not arrive at all_reduce", "0.3 s");
    CHECK_IS(now_s() - g.start_s, >=, 0.3);
}

TEST(a_peer_that_never_sends_is_named) {
    for (int is_send = 0; is_send < 2; is_send++) {
        own_rig g = rig_of_timed(3, 0.2);
        CHECK(may_be_late(message_of(&g, is_send ? 2 : 0, is_send, 1)));
        expect_failure(&g,
                       is_send ? "rank 1 of 'threads world' did not receive 1 f32 that rank 2"
                               : "rank 1 of 'threads world' did not send 1 f32 that rank 0",
                       "0.2 s");
    }
}

static memo_status fail_with_message(MEMO_UNUSED void* args, memo_error* e) {
    return memo_error_set(e, MEMO_STATUS_DEVICE, "the cat sat on the GPU");
}

/* The device fails before, between and beside operations; nobody waits for the time-out. */
static void fail_a_device(int variant) {
    static float x[4][5000];
    own_rig g = rig_of_timed(4, 60);
    gates_open = 0;
    if (variant == 2) wait_at_gate(&g.cases[3], g.cases[3].streams[1], 0);
    CHECK_OK(memo_host_device_launch(g.devices[3], g.cases[3].streams[variant == 2],
                                     fail_with_message, NULL, 0, &error));
    for (int32_t r = 0; r < 4; r++) {
        memo_stream stream = g.cases[r].streams[0];
        memo_comm* comm = g.comms[r];
        if (variant == 2 && r == 3) open_gate();
        if (variant == 2 && r == 3) /* the device has failed: it cannot even enqueue */
            CHECK(memo_stream_synchronize(g.devices[3], g.cases[3].streams[1], NULL) ==
                  MEMO_STATUS_DEVICE);
        memo_status status =
            variant == 1 ? memo_receive(comm, stream, x[r], 1, MEMO_TYPE_F32, (r + 1) % 4, &error)
                         : memo_all_reduce(comm, stream, x[r], x[r], 5000, MEMO_TYPE_F32,
                                           MEMO_REDUCTION_SUM, &error);
        CHECK(may_be_late(status) || r == 3);
    }
    expect_failure(&g, "rank 3", "the cat sat on the GPU");
}
TEST(a_failed_device_is_noticed_by_all) {
    for (int variant = 0; variant < 3; variant++) in_orders(fail_a_device, variant);
}

TEST(a_rank_that_goes_is_noticed) {
    own_rig g = rig_of_timed(3, 60);
    CHECK(may_be_late(message_of(&g, 0, 0, 2)));
    CHECK(may_be_late(memo_barrier(g.comms[2], g.cases[2].streams[0], &error)));
    rig_remove(&g, 1);
    memo_host_device_destroy(g.devices[1]);
    g.n_ranks = 1;
    expect_failure(&g, "rank 1 of 'threads world' did not arrive at barrier and is lost",
                   "has destroyed its communicator");
    IGNORE(memo_stream_synchronize(g.devices[2], g.cases[2].streams[0], NULL));
    memo_comm_destroy(g.comms[2]);
    memo_host_device_destroy(g.devices[2]);
}

TEST(a_peer_that_goes_is_noticed) {
    for (int is_send = 0; is_send < 2; is_send++) {
        own_rig g = rig_of_timed(2, 60);
        CHECK_OK(message_of(&g, 0, is_send, 1));
        rig_remove(&g, 1);
        g.n_ranks = 1;
        expect_failure(&g,
                       is_send
                           ? "rank 1 of 'threads world' did not receive 1 f32 that rank 0 sends"
                           : "rank 1 of 'threads world' did not send 1 f32 that rank 0 receives",
                       "and is lost: it has destroyed its communicator");
        memo_host_device_destroy(g.devices[1]);
    }
}

/* A rank that has done all its work may go while others still talk to each other. */
static void go_when_done(MEMO_UNUSED int argument) {
    float x = 3, y = 0;
    own_rig g = rig_of(3, NULL);
    rig_remove(&g, 2);
    CHECK_OK(memo_receive(g.comms[0], g.cases[0].streams[0], &y, 1, MEMO_TYPE_F32, 1, &error));
    let_run(200);
    CHECK_OK(memo_send(g.comms[1], g.cases[1].streams[0], &x, 1, MEMO_TYPE_F32, 0, &error));
    rig_synchronize(&g);
    CHECK_OK(memo_comm_status(g.comms[0], &error));
    CHECK_IS(y, ==, 3);
}
TEST(a_rank_that_is_done_may_go) { in_orders(go_when_done, 0); }

static void* abort_later(void* comm) {
    (void)turn_begins();
    let_run(200);
    memo_comm_abort((memo_comm*)comm);
    (void)turn_ends();
    return NULL;
}

static void abort_elsewhere(MEMO_UNUSED int argument) {
    pthread_t thread;
    own_rig g = rig_of_timed(4, 60);
    CHECK(!pthread_create(&thread, NULL, abort_later, g.comms[1]));
    (void)turn_creates();
    CHECK(may_be_late(message_of(&g, 0, 0, 3)));
    CHECK(may_be_late(memo_barrier(g.comms[2], g.cases[2].streams[0], &error)));
    (void)turn_joins(thread);
    pthread_join(thread, NULL);
    expect_failure(&g, "rank 1 of 'threads world'", "aborted");
}
TEST(abort_from_another_thread_ends_all) { in_orders(abort_elsewhere, 0); }

/* Links that would take minutes let go at once. */
static void abort_a_transfer(int is_collective) {
    static char x[4000];
    memo_comm_threads_desc desc = {.timeout_s = 300, .bytes_per_s = 10};
    own_rig g = rig_of(2, &desc);
    for (int32_t r = 0; r < 2; r++) {
        memo_comm* comm = g.comms[r];
        memo_stream s = g.cases[r].streams[0];
        if (is_collective)
            CHECK_OK(memo_broadcast(comm, s, x + 2000 * r, 2000, MEMO_TYPE_U8, 0, &error));
        else if (r == 0)
            CHECK_OK(memo_send(comm, s, x, 2000, MEMO_TYPE_U8, 1, &error));
        else
            CHECK_OK(memo_receive(comm, s, x + 2000, 2000, MEMO_TYPE_U8, 0, &error));
    }
    let_run(200);
    memo_comm_abort(g.comms[0]);
    expect_failure(&g, "rank 0 of 'threads world'", "aborted");
}
TEST(abort_ends_a_slow_transfer) {
    for (int is_collective = 0; is_collective < 2; is_collective++)
        in_orders(abort_a_transfer, is_collective);
}

static void splits_until_the_end(rank_case* c) {
    memo_error own;
    for (int i = 0; i < 10000; i++) {
        memo_comm* part = NULL;
        memo_status status = memo_comm_split(c->comm, c->comm->rank / 2, 0, "x", &part, &own);
        CHECK_CASE(may_be_late(status) && (status == MEMO_STATUS_OK) == (part != NULL),
                   "split %d: %s", i, own.message);
        memo_comm_destroy(part);
        if (status) break;
    }
}

/* Ranks 1 and 3 are a part, in which the first one waits for the other. */
static void split_and_wait(rank_case* c) {
    static float x[MAX_RANKS];
    const int32_t rank = c->comm->rank;
    memo_error own;
    memo_comm* part = NULL;
    CHECK_OK(memo_comm_split(c->comm, rank % 2, 0, rank % 2 ? "odd" : "even", &part, &own));
    if (rank == 1)
        CHECK(may_be_late(memo_receive(part, c->streams[0], &x[rank], 1, MEMO_TYPE_F32, 1, &own)));
    IGNORE(memo_stream_synchronize(c->device, c->streams[0], NULL));
    memo_comm_destroy(part);
}

TEST(abort_during_splits_loses_nothing) {
    for (int trial = 0; trial < 15; trial++) {
        pthread_t thread;
        own_rig g = rig_of(4, NULL);
        CHECK(!pthread_create(&thread, NULL, abort_later, g.comms[trial % 4]));
        rig_run(&g, splits_until_the_end, 1);
        pthread_join(thread, NULL);
        expect_failure(&g, "aborted", "threads world");
    }
}

/* The number of a rank in a part names no process, so the world's is beside it. */
TEST(errors_of_parts_name_ranks_of_the_world) {
    own_rig g = rig_of_timed(4, 0.2);
    rig_run(&g, split_and_wait, 1);
    expect_failure(&g, "rank 1 (world rank 3) of 'threads odd' did not", "rank 0 (world rank 1)");
}

TEST(a_rank_in_errors_is_a_process) {
    char text[MEMO_RANK_TEXT], host[300];
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = 0;
    CHECK(!strcmp(memo_comm_rank_text(text, 3, -1, NULL), "3"));
    CHECK(!strcmp(memo_comm_rank_text(text, 3, -1, "node7"), "3 (on node7)"));
    CHECK(!strcmp(memo_comm_rank_text(text, 1, 5, ""), "1 (world rank 5)"));
    CHECK(!strcmp(memo_comm_rank_text(text, 1, 5, "node7"), "1 (world rank 5 on node7)"));
    (void)memo_comm_rank_text(text, INT32_MAX, INT32_MAX, host); /* cut, and closed */
    CHECK(text[strlen(text) - 1] == ')');
}

/* A split that one rank never calls. */
static void split_with_missing(rank_case* c) {
    memo_error own;
    memo_comm* part = c->comm;
    if (c->comm->rank == 1) return;
    CHECK_CASE(memo_comm_split(c->comm, 0, 0, "x", &part, &own) == MEMO_STATUS_COMM, "split");
    CHECK_CASE(!part && strstr(own.message, "rank 1 of 'threads world' did not arrive at split"),
               "%s", own.message);
}

TEST(a_split_times_out) {
    own_rig g = rig_of_timed(3, 0.5);
    rig_run(&g, split_with_missing, 1);
    CHECK_IS(now_s() - g.start_s, <, BOUND_S);
}

/* Failures at random moments of a random traffic: nothing hangs, nothing is touched after it was
 * freed. */
static void failing_traffic(rank_case* c) {
    memo_error own;
    memo_comm* comm = c->comm;
    enum { COUNT = 20000 };
    own_memory float* x = (float*)case_array(COUNT, MEMO_TYPE_F32);
    own_memory float* y = (float*)case_array(COUNT, MEMO_TYPE_F32);
    memset(x, 0, COUNT * sizeof(float));
    for (int i = 0; i < 1000; i++) {
        int32_t peer = (comm->rank + 1) % comm->size;
        int32_t other = (comm->rank + comm->size - 1) % comm->size;
        if (memo_all_reduce(comm, c->streams[0], x, y, i % 2 ? 50 : COUNT, MEMO_TYPE_F32,
                            MEMO_REDUCTION_SUM, &own) ||
            memo_group_begin(comm, &own) ||
            memo_send(comm, c->streams[0], x, COUNT, MEMO_TYPE_F32, peer, &own) ||
            memo_receive(comm, c->streams[0], y, COUNT, MEMO_TYPE_F32, other, &own) ||
            memo_group_end(comm, c->streams[0], &own))
            break;
        if (memo_stream_synchronize(c->device, c->streams[0], &own)) break;
        if (comm->rank == 0 && memo_test_next(&c->my_state) % 8 == 0) {
            if (memo_test_next(&c->my_state) % 2)
                memo_comm_abort(comm);
            else
                IGNORE(memo_host_device_launch(c->device, c->streams[1], fail_with_message, NULL, 0,
                                               &own));
            if (memo_test_next(&c->my_state) % 2) break;
        }
    }
    memo_comm_abort(comm);
    IGNORE(memo_stream_synchronize(c->device, c->streams[0], NULL));
    CHECK(memo_barrier(comm, c->streams[0], &own) == MEMO_STATUS_COMM); /* peers read no buffer */
}

TEST(failures_at_random_moments_touch_nothing_freed) {
    for (int trial = 0; trial < 16; trial++) {
        memo_comm_threads_desc desc = {.are_peers = trial % 2};
        own_rig g = rig_of((int32_t)memo_test_int(2, 5), &desc);
        rig_run(&g, failing_traffic, memo_test_random());
    }
}

/* --- peers --- */

static memo_status refuse_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                               const void* from, int64_t size_bytes, memo_error* e) {
    (void)context, (void)stream, (void)kind, (void)to, (void)from, (void)size_bytes;
    return memo_error_set(e, MEMO_STATUS_DEVICE, "the copy engine is on strike");
}

/* What rank 1 does, while the others gather and exchange. */
typedef enum {
    COMES_NOT,
    ABORTS,
    GOES,
    CANNOT_COPY,
    DIFFERS,
    IS_ELSEWHERE,
    N_PEER_FAULTS
} peer_fault;
static const char* const peer_words[][2] = {
    {"rank 1 of 'threads world' did not arrive at all_gather", "0.3 s"},
    {"rank 1 of 'threads world' aborted it", ""},
    {"rank 1 of 'threads world' did not arrive at all_gather and is lost",
     "has destroyed its communicator"},
    {"rank 1 of 'threads world' cannot enqueue", "on strike"},
    {"rank 0 calls all_gather(32 f32) as collective 2", "rank 1 calls all_gather(31 f32)"},
    {"rank 0 calls all_gather(32 f32) for here 1", "rank 1 calls all_gather(32 f32) for there 1"}};
static peer_fault fault;

static void meet_all(rank_case* c) {
    CHECK_OK(memo_barrier(c->comm, c->streams[0], &error));
    case_synchronize(c); /* as destroy requires */
}
static void gather_beside_a_fault(rank_case* c) {
    memo_comm* comm = c->comm;
    memo_stream s = c->streams[0];
    own_memory float* x = (float*)case_array(32 * comm->size, MEMO_TYPE_F32);
    const int is_odd = comm->rank == 1;
    memo_error own;
    if (is_odd && fault == ABORTS) memo_comm_abort(comm);
    if (is_odd && fault == GOES) {
        memo_comm_destroy(comm);
        c->comm = NULL;
    }
    if (is_odd && fault <= GOES) return;
    if (fault == IS_ELSEWHERE) comm->label.text = is_odd ? "there" : "here";
    comm->label.number = 1;
    memo_status status = memo_all_gather(comm, s, x + 32 * comm->rank, x,
                                         32 - (is_odd && fault == DIFFERS), MEMO_TYPE_F32, &own);
    CHECK_CASE(status == MEMO_STATUS_COMM && strstr(own.message, peer_words[fault][0]) &&
                   strstr(own.message, peer_words[fault][1]),
               "fault %d, rank %d: %s", (int)fault, (int)comm->rank, own.message);
    CHECK(memo_barrier(comm, s, &own) == MEMO_STATUS_COMM);
    CHECK(memo_comm_status(comm, &own) == MEMO_STATUS_COMM);
}

TEST(a_peer_that_fails_wakes_the_others) {
    for (int i = 0; i < 2 * N_PEER_FAULTS; i++) {
        memo_comm_threads_desc desc = {.are_peers = 1, .timeout_s = 60};
        fault = (peer_fault)(i % N_PEER_FAULTS);
        own_rig g = rig_of(2 + i / N_PEER_FAULTS, &desc);
        memo_device broken = *g.devices[1];
        broken.copy = refuse_copy;
        if (fault == CANNOT_COPY) ((memoi_threads_rank*)g.comms[1]->context)->device = &broken;
        rig_run(&g, meet_all, 1);
        if (fault == COMES_NOT) rig_set_timeout(&g, 0.3);
        rig_run(&g, gather_beside_a_fault, 1);
        CHECK_IS(now_s() - g.start_s, <, BOUND_S);
        g.comms[1] = g.cases[1].comm;
    }
}

/* Both wait for the other's event, and neither for a stream: all calls return while streams wait at
 * gates, and what is sent is set later, one rank after the other. */
static int32_t n_ranks_back;
static void exchange_behind_gates(rank_case* c) {
    enum { N = 3 };
    memo_comm* comm = c->comm;
    memo_stream s = c->streams[0];
    double *x = (double*)case_array(4 * N, MEMO_TYPE_F64), *received = x + N, *sums = x + 2 * N;
    double* later = x + 3 * N;
    for (int i = 0; i < N; i++) later[i] = comm->rank + i, received[i] = sums[i] = -1;
    for (int is_sum = 0; is_sum < 2; is_sum++) {
        /* Rank 1 passes first at the exchange, rank 0 at the sum. */
        wait_at_gate(c, s, 2 * is_sum + (comm->rank == is_sum));
        CHECK_OK(
            memo_copy(c->device, s, MEMO_COPY_ON_DEVICE, is_sum ? sums : x, later, N * 8, &error));
        if (is_sum) continue;
        CHECK_OK(memo_group_begin(comm, &error));
        CHECK_OK(memo_send(comm, s, x, N, MEMO_TYPE_F64, 1 - comm->rank, &error));
        CHECK_OK(memo_receive(comm, s, received, N, MEMO_TYPE_F64, 1 - comm->rank, &error));
        CHECK_OK(memo_group_end(comm, s, &error));
        CHECK_OK(memo_fill(c->device, s, x, 0, N * 8, &error)); /* after the peer has read it */
    }
    CHECK_OK(memo_all_reduce(comm, s, sums, sums, N, MEMO_TYPE_F64, MEMO_REDUCTION_SUM, &error));

    /* The last rank whose calls have returned opens the gates.  A call that waits for a stream
     * never returns, and the gate ends the test. */
    if (__atomic_add_fetch(&n_ranks_back, 1, __ATOMIC_ACQ_REL) == 2)
        for (int gate = 0; gate < 4; gate++) {
            for (int i = 0; i < N; i++) CHECK(gate > 0 || (received[i] == -1 && sums[i] == -1));
            open_gate();
            let_run(100);
        }
    CHECK_OK(memo_stream_synchronize(c->device, s, &error));
    for (int i = 0; i < N; i++) CHECK(received[i] == 1 - comm->rank + i && sums[i] == 1 + 2 * i);
    CASE_FREE(x);
}

static void run_two_peers(case_function function) {
    memo_comm_threads_desc desc = {.are_peers = 1};
    own_rig g = rig_of(2, &desc);
    rig_run(&g, function, 1);
}

static void wait_for_events(MEMO_UNUSED int argument) {
    gates_open = n_ranks_back = 0;
    run_two_peers(exchange_behind_gates);
}
TEST(peers_wait_for_events_on_their_streams) { in_orders(wait_for_events, 0); }

/* Rank 0's device fails when rank 0 lets its stream wait for the reader, whose stream is late with
 * its copy.  Then rank 0's own stream waits for nobody, and the call must. */
static memo_device* of_ranks[2];
static int32_t n_waits_left;
static memo_status fail_to_wait(MEMO_UNUSED void* context, memo_event event, memo_stream stream,
                                memo_error* e) {
    if (n_waits_left-- > 0) return memo_event_wait(of_ranks[0], event, stream, e);
    return memo_error_set(e, MEMO_STATUS_DEVICE, "the device is lost");
}
static memo_status be_late(MEMO_UNUSED void* args, MEMO_UNUSED memo_error* e) {
    for (int turns = 0; turns < 300; turns++) (void)turn_waits();
    return MEMO_STATUS_OK;
}
static memo_status copy_late(MEMO_UNUSED void* context, memo_stream stream, memo_copy_kind kind,
                             void* to, const void* from, int64_t size_bytes, memo_error* e) {
    const memo_status status = memo_host_device_launch(of_ranks[1], stream, be_late, NULL, 0, e);
    return status ? status : memo_copy(of_ranks[1], stream, kind, to, from, size_bytes, e);
}

/* A message from rank 0, or a part that each rank gathers.  from_0 is overwritten at once. */
static void overwrite_after_a_failure(rank_case* c, int is_message) {
    enum { N = 4096 };
    static double from[2][N], to[2][2 * N];
    memo_comm* comm = c->comm;
    const int32_t r = comm->rank;
    memo_stream s = c->streams[0];
    memo_error own;
    memo_status status;
    for (int i = 0; i < N; i++) from[r][i] = 1, to[r][i] = 0;
    CHECK_OK(memo_barrier(comm, s, &error));
    if (r == 0) n_waits_left = is_message ? 0 : 1; /* those of the meeting before the copies */
    if (is_message && r == 0)
        status = memo_send(comm, s, from[0], N, MEMO_TYPE_F64, 1, &own);
    else if (is_message)
        status = memo_receive(comm, s, to[1], N, MEMO_TYPE_F64, 0, &own);
    else
        status = memo_all_gather(comm, s, from[r], to[r], N, MEMO_TYPE_F64, &own);
    if (r == 0) {
        CHECK_CASE(status == MEMO_STATUS_COMM, "%s", memo_status_name(status));
        for (int i = 0; i < N; i++) from[0][i] = 2;
        return;
    }
    CHECK_OK(memo_stream_synchronize(c->device, s, &error));
    for (int i = 0; i < N; i++) CHECK(to[1][i] == 1);
}
static void overwrite_a_message(rank_case* c) { overwrite_after_a_failure(c, 1); }
static void overwrite_a_part(rank_case* c) { overwrite_after_a_failure(c, 0); }

static void fail_before_readers(int is_message) {
    memo_comm_threads_desc desc = {.are_peers = 1};
    own_rig g = rig_of(2, &desc);
    memo_device tables[2];
    for (int32_t r = 0; r < 2; r++) {
        tables[r] = *(of_ranks[r] = g.devices[r]);
        ((memoi_threads_rank*)g.comms[r]->context)->device = &tables[r];
    }
    tables[0].event_wait = fail_to_wait;
    tables[1].copy = copy_late;
    n_waits_left = 1 << 20;
    rig_run(&g, is_message ? overwrite_a_message : overwrite_a_part, 1);
    for (int32_t r = 0; r < 2; r++)
        ((memoi_threads_rank*)g.comms[r]->context)->device = of_ranks[r];
}
TEST(a_peer_whose_device_failed_waits_for_its_readers) {
    for (int is_message = 0; is_message < 2; is_message++)
        in_orders(fail_before_readers, is_message);
}

/* --- the rank that differs is named --- */

/* A call of ranks 0 to 2, and one of rank 3; a message goes from rank 0 to rank 3. */
typedef struct mismatch {
    memo_collective_call call, differs;
    const char *label, *differing_label;
    int32_t number, differing_number;
    const char *words, *more_words;
} mismatch;

#define CALL(kind, type, count, reduction, root)                                                   \
    {                                                                                              \
        MEMO_COLLECTIVE_##kind, MEMO_TYPE_##type, MEMO_REDUCTION_##reduction, root, count, NULL,   \
            NULL                                                                                   \
    }

static void expect_mismatch(const mismatch* m, int is_message) {
    static float x[4][64];
    own_rig g = rig_of_timed(4, 20);
    for (int32_t r = 0; r < 4; r++) {
        memo_comm* comm = g.comms[r];
        memo_stream s = g.cases[r].streams[0];
        memo_collective_call call = r == 3 ? m->differs : m->call;
        call.from = x[r];
        call.to = call.kind == MEMO_COLLECTIVE_ALL_GATHER ? x[r] + 32 : x[r];
        CHECK(may_be_late(memo_barrier(comm, s, &error)));
        comm->label.text = r == 3 ? m->differing_label : r == 1 ? NULL : m->label; /* or none */
        comm->label.number = r == 3 ? m->differing_number : m->number;
        if (!is_message)
            CHECK(may_be_late(memo_comm_collective(comm, s, &call, &error)));
        else if (r == 0)
            CHECK(may_be_late(memo_send(comm, s, x[0], call.count, call.type, 3, &error)));
        else if (r == 3)
            CHECK(may_be_late(memo_receive(comm, s, x[3], call.count, call.type, 0, &error)));
    }
    expect_failure(&g, m->words, m->more_words);
}

TEST(ranks_that_differ_are_both_named) {
    static const mismatch collectives[] = {
        {CALL(ALL_REDUCE, F32, 32, SUM, 0), CALL(ALL_REDUCE, F32, 31, SUM, 0), NULL, NULL, 0, 0,
         "rank 0 calls all_reduce(32 f32 sum) as collective 2 of 'threads world'",
         "rank 3 calls all_reduce(31 f32 sum)"},
        {CALL(ALL_GATHER, F32, 1, SUM, 0), CALL(ALL_GATHER, BF16, 1, SUM, 0), NULL, NULL, 0, 0,
         "rank 0 calls all_gather(1 f32)", "rank 3 calls all_gather(1 bf16)"},
        {CALL(ALL_REDUCE, F32, 2, SUM, 0), CALL(ALL_REDUCE, F32, 2, MAX, 0), NULL, NULL, 0, 0,
         "rank 0 calls all_reduce(2 f32 sum)", "rank 3 calls all_reduce(2 f32 max)"},
        {CALL(BROADCAST, F32, 2, SUM, 2), CALL(BROADCAST, F32, 2, SUM, 1), NULL, NULL, 0, 0,
         "rank 0 calls broadcast(2 f32 from rank 2)", "rank 3 calls broadcast(2 f32 from rank 1)"},
        {CALL(ALL_REDUCE, F32, 2, SUM, 0), CALL(BARRIER, F32, 0, SUM, 0), NULL, NULL, 0, 0,
         "rank 0 calls all_reduce(2 f32 sum)", "rank 3 calls barrier"},
        {CALL(BARRIER, F32, 0, SUM, 0), CALL(BARRIER, F32, 0, SUM, 0), "step", "step", 7, 8,
         "rank 0 calls barrier for step 7 as collective 2", "rank 3 calls barrier for step 8"}};
    static const mismatch messages[] = {
        {CALL(BARRIER, F32, 64, SUM, 0), CALL(BARRIER, F32, 64, SUM, 0), "forward", "backward", 3,
         3, "rank 0 sends 64 f32 for forward 3 to rank 3", "which receives 64 f32 for backward 3"},
        {CALL(BARRIER, F32, 64, SUM, 0), CALL(BARRIER, F32, 32, SUM, 0), NULL, NULL, 0, 0,
         "rank 0 sends 64 f32 to rank 3", "which receives 32 f32"},
        {CALL(BARRIER, F32, 64, SUM, 0), CALL(BARRIER, I32, 64, SUM, 0), NULL, NULL, 0, 0,
         "rank 0 sends 64 f32 to rank 3", "which receives 64 i32"}};
    for (int i = 0; i < 6; i++) expect_mismatch(&collectives[i], 0);
    for (int i = 0; i < 3; i++) expect_mismatch(&messages[i], 1);
}

/* Equal labels at different addresses, and none on one side. */
TEST(labels_that_match_harm_nobody) {
    static const char texts[3][8] = {"step", "step", "other"};
    float x[3] = {1, 2, 4}, y[3];
    own_rig g = rig_of(3, NULL);
    for (int32_t r = 0; r < 3; r++) {
        memo_comm* comm = g.comms[r];
        memo_stream s = g.cases[r].streams[0];
        comm->label.text = r == 2 ? NULL : texts[r];
        comm->label.number = r == 2 ? 9 : 1;
        CHECK_OK(
            memo_all_reduce(comm, s, &x[r], &y[r], 1, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error));
        CHECK(!comm->label.text && !comm->label.number); /* the call clears it */
        comm->label.text = r == 2 ? NULL : texts[r];
        comm->label.number = r == 2 ? 9 : 1;
        CHECK_OK(memo_group_begin(comm, &error));
        CHECK_OK(memo_send(comm, s, &y[r], 1, MEMO_TYPE_F32, (r + 1) % 3, &error));
        CHECK_OK(memo_receive(comm, s, &x[r], 1, MEMO_TYPE_F32, (r + 2) % 3, &error));
        CHECK_OK(memo_group_end(comm, s, &error));
    }
    rig_synchronize(&g);
    for (int32_t r = 0; r < 3; r++) {
        CHECK_OK(memo_comm_status(g.comms[r], &error));
        CHECK_IS(x[r], ==, 7);
    }
}

/* --- links --- */

/* The time of enqueue's operations on all ranks, from the start of the slowest. */
static double timed(rig* g, void (*enqueue)(rig*, int32_t rank, memo_error*)) {
    const double start = now_s();
    for (int32_t r = 0; r < g->n_ranks; r++) {
        memset(&error, 0, sizeof error);
        enqueue(g, r, &error);
        CHECK_CASE(!error.status, "%s", error.message);
    }
    rig_synchronize(g);
    for (int32_t r = 0; r < g->n_ranks; r++) CHECK_OK(memo_comm_status(g->comms[r], &error));
    return now_s() - start;
}

#define LINK_BYTES 20000
static char link_from[4][4 * LINK_BYTES], link_to[4][4 * LINK_BYTES];

static void enqueue_ring(rig* g, int32_t r, memo_error* e) {
    memo_comm* comm = g->comms[r];
    memo_stream s = g->cases[r].streams[0];
    for (int i = 0; i < 3; i++)
        if (memo_group_begin(comm, e) ||
            memo_send(comm, s, link_from[r], LINK_BYTES, MEMO_TYPE_U8, (r + 1) % 4, e) ||
            memo_receive(comm, s, link_to[r], LINK_BYTES, MEMO_TYPE_U8, (r + 3) % 4, e) ||
            memo_group_end(comm, s, e))
            return;
}
static void enqueue_all_to_all(rig* g, int32_t r, memo_error* e) {
    memo_comm* comm = g->comms[r];
    memo_stream s = g->cases[r].streams[0];
    memo_status status = memo_group_begin(comm, e);
    for (int k = 0; k < 4 && !status; k++) {
        int32_t to = (r + k) % 4, from = (r + 4 - k) % 4;
        status =
            memo_send(comm, s, link_from[r] + to * LINK_BYTES, LINK_BYTES, MEMO_TYPE_U8, to, e);
        if (!status)
            status = memo_receive(comm, s, link_to[r] + from * LINK_BYTES, LINK_BYTES, MEMO_TYPE_U8,
                                  from, e);
    }
    CHECK(!status && !memo_group_end(comm, s, e));
}
static void enqueue_all_reduce(rig* g, int32_t r, memo_error* e) {
    CHECK(!memo_all_reduce(g->comms[r], g->cases[r].streams[0], link_from[r], link_to[r],
                           4 * LINK_BYTES, MEMO_TYPE_U8, MEMO_REDUCTION_MAX, e));
}
/* From rank 0 to 2.  The send comes late. */
static void enqueue_late(rig* g, int32_t r, memo_error* e) {
    memo_stream s = g->cases[r].streams[0];
    if (r % 2 || (!r && memo_host_device_sleep(g->devices[r], s, 0.05, e))) return;
    CHECK(!(r ? memo_receive(g->comms[r], s, link_to[0], LINK_BYTES, MEMO_TYPE_U8, 0, e)
              : memo_send(g->comms[r], s, link_from[0], LINK_BYTES, MEMO_TYPE_U8, 2, e)));
}
/* A transfer beside a computation that sleeps, on another stream. */
static void enqueue_overlap(rig* g, int32_t r, memo_error* e) {
    if (memo_host_device_sleep(g->devices[r], g->cases[r].streams[1], 0.07, e)) return;
    enqueue_ring(g, r, e);
}

/* A piece takes 0.01 s at 2e6 bytes/s.  Times are turns of 4 us, so they depend on the order alone:
 * never shorter than the link's, and longer by the turns that other threads take. */
static const struct {
    const char* name;
    void (*enqueue)(rig*, int32_t, memo_error*);
    double bytes_per_s, expected_s;
} links[] = {{"ring", enqueue_ring, 2e6, 3 * 0.01},
             {"all_to_all", enqueue_all_to_all, 2e6, 3 * 0.01},
             {"all_reduce", enqueue_all_reduce, 2e6, 6 * 0.01},
             {"late", enqueue_late, 1e6, 0.05 + 0.02},
             {"overlap", enqueue_overlap, 1e6, 0.07}}; /* 3 * 0.02 beside it */
enum { N_LINKS = sizeof links / sizeof links[0] };
static double longest_s[N_LINKS];

static void measure_link(int i) {
    memo_comm_threads_desc desc = {.bytes_per_s = links[i].bytes_per_s};
    own_rig g = rig_of(4, &desc);
    const double measured = timed(&g, links[i].enqueue);
    CHECK_CASE(measured >= links[i].expected_s * 0.999 &&
                   measured <= links[i].expected_s * 1.25 + 0.03,
               "%s takes %.1f ms, model %.1f ms", links[i].name, measured * 1e3,
               links[i].expected_s * 1e3);
    longest_s[i] = fmax(longest_s[i], measured);
}
TEST(links_take_their_time) {
    for (int i = 0; i < N_LINKS; i++) {
        longest_s[i] = 0;
        in_timed_orders(measure_link, i, 4000);
        printf("# links: %s at most %.1f ms, model %.1f ms\n", links[i].name, longest_s[i] * 1e3,
               links[i].expected_s * 1e3);
    }
}

/* --- making --- */

TEST(invalid_descs_are_refused) {
    memo_device *devices[MEMO_REDUCE_MAX + 1], other, *none = NULL;
    memo_comm* comm = NULL;
    memo_comm_threads_desc desc = {.n_ranks = 1, .devices = devices};
    devices[0] = new_device(MEMO_ZERO(memo_host_device_desc));
    for (int r = 1; r <= MEMO_REDUCE_MAX; r++) devices[r] = devices[0];
    for (int i = 0; i < 7; i++) {
        memo_comm_threads_desc bad = desc;
        if (i == 0) bad.n_ranks = 0;
        if (i == 1) bad.timeout_s = -1;
        if (i == 2) bad.bytes_per_s = 0.5;
        if (i == 3) bad.bytes_per_s = 1e6;
        if (i == 4) bad.devices = &none;
        if (i == 5) bad.devices = NULL;
        bad.are_peers = i == 3 || i == 6;
        if (i == 6) bad.n_ranks = MEMO_REDUCE_MAX + 1;
        CHECK_FAILS(memo_comm_create_threads(&bad, &comm, &error), INVALID_ARGUMENT);
    }
    memset(&other, 0, sizeof other); /* no device */
    none = &other;
    desc.devices = &none;
    CHECK_ERROR(memo_comm_create_threads(&desc, &comm, &error), INVALID_ARGUMENT, "rank 0");
    memo_host_device_destroy(devices[0]);
}

static void split_without_memory(rank_case* c) {
    memo_error own;
    own_comm* part = NULL;
    memo_status status = memo_comm_split(c->comm, c->comm->rank % 2, 0, "x", &part, &own);
    CHECK_CASE(status == MEMO_STATUS_OK || status == MEMO_STATUS_OUT_OF_HOST_MEMORY, "%s",
               own.message);
    CHECK_CASE((status == MEMO_STATUS_OK) == (part != NULL), "status %d", (int)status);
}

/* Memory that ends at every possible place is reported, and nothing is lost. */
TEST(memory_that_ends_is_reported) {
    for (int are_peers = 0; are_peers < 2; are_peers++) {
        memo_comm_threads_desc desc = {.are_peers = are_peers};
        memo_comm* comms[3];
        memo_status status = MEMO_STATUS_OK;
        refusal r = {0};
        own_rig g = rig_of(3, &desc);
        desc.n_ranks = 3;
        desc.devices = g.devices;
        /* Devices keep the events of an earlier world for later ones. */
        CHECK_OK(memo_comm_create_threads(&desc, comms, &error));
        for (int n = 0; n < 3; n++) memo_comm_destroy(comms[n]);
        while (next_refusal(&r, status)) {
            status = memo_comm_create_threads(&desc, comms, &error);
            for (int n = 0; n < 3 && !status; n++) memo_comm_destroy(comms[n]);
        }
        CHECK_IS(r.n_failed, >=, 6);
        for (int n = 0; n < 30; n++) {
            mallocs_left = n;
            rig_run(&g, split_without_memory, 1);
            mallocs_left = -1;
        }
        rig_run(&g, case_splits, 1);
    }
}

/* --- mesh without ranks --- */

TEST(mesh_reports_degrees_that_fit) {
    memo_comm world = {.size = 24}; /* refused before the first split */
    memo_mesh* mesh;
    memo_mesh_desc desc = {.data = 2, .ring = 3, .ulysses = 2};
    CHECK_ERROR(memo_mesh_create(&world, &desc, &mesh, &error), INVALID_ARGUMENT, "24");
    CHECK_TEXT(error.message, "ring 3");
    CHECK_TEXT(error.message, "ring 6");
    CHECK_TEXT(error.message, "data 4");
    world.size = 7;
    CHECK_ERROR(memo_mesh_create(&world, &desc, &mesh, &error), INVALID_ARGUMENT, "no change");
    world.size = 8;
    desc.ring = 1 << 30;
    desc.ulysses = 1 << 30;
    CHECK_IS(memo_mesh_create(&world, &desc, &mesh, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.ring = -1;
    CHECK_IS(memo_mesh_create(&world, &desc, &mesh, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.ring = desc.ulysses = 2;
    desc.data = 0;
    world.size = 4;
    WITH(desc.nodes, 3,
         CHECK_ERROR(memo_mesh_create(&world, &desc, &mesh, &error), INVALID_ARGUMENT,
                     "memo_mesh_desc.nodes: 3, which does not divide ring (2)"));
    WITH(desc.nodes, -1,
         CHECK_ERROR(memo_mesh_create(&world, &desc, &mesh, &error), INVALID_ARGUMENT, "nodes"));
}

COMM_TESTS
