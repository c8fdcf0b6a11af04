/* test_comm_mpi.c - the cases of comm_cases.h over MPI (examples/comm_mpi.h), and its failures.
 * make -f .ci/checks.mk test-mpi runs it:
 *
 *   mpicc -std=c99 -I. -Iexamples -Itests/support tests/sp/test_comm_mpi.c -o test_comm_mpi -lpthread -lm
 *   mpirun --allow-run-as-root --oversubscribe -n 4 ./test_comm_mpi [NAME] [--seed N]
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "mpi_test.h"

#include "comm_mpi.h"
#include "comm_cases.h"

static rank_case rank;
static memo_device* device;
static double start_s; /* of this world */

/* A device and a world for one test. */
static int world_begin(double timeout_s, int is_debug) {
    start_s = MPI_Wtime();
    memset(&rank, 0, sizeof rank);
    device = new_device(MEMO_ZERO(memo_host_device_desc));
    if (!device) return 0;
    for (int i = 0; i < CASE_STREAMS; i++)
        CHECK_OK(memo_stream_create(device, "comm", 0, &rank.streams[i], &error));
    CHECK_OK(comm_mpi_create(MPI_COMM_WORLD, device, timeout_s, is_debug, &rank.comm, &error));
    rank.device = device;
    return rank.comm != NULL;
}

static void world_end(void) {
    for (int i = 0; i < CASE_STREAMS; i++)
        IGNORE(memo_stream_synchronize(device, rank.streams[i], NULL));
    memo_comm_destroy(rank.comm);
    memo_host_device_destroy(device);
}

static void run_case(case_function function) {
    for (int round = 0; round < 2; round++) { /* with checks, and without */
        if (!world_begin(60, !round)) return;
        case_begin(&rank, memo_test_random());
        function(&rank);
        world_end();
    }
    mpi_test_count_failures();
}

COMM_TESTS

/* Sums in the order of ranks: the bits that the threads back end gives, computed here alone. */
TEST(sums_have_the_bits_of_the_threads_back_end) {
    enum { COUNT = 1001 };
    static float all[64][COUNT], to[COUNT], expected[COUNT];
    const void* from[64];
    if (!world_begin(60, 0)) return;
    for (int32_t r = 0; r < rank.comm->size && r < 64; r++) {
        for (int i = 0; i < COUNT; i++)
            all[r][i] = (float)((memo_test_real() - 0.5) * (memo_test_int(0, 3) ? 1 : 1e6));
        from[r] = all[r];
    }
    memo_comm_reduce(expected, from, rank.comm->size, 0, COUNT, MEMO_TYPE_F32, MEMO_REDUCTION_SUM);
    CHECK_OK(memo_all_reduce(rank.comm, rank.streams[0], all[rank.comm->rank], to, COUNT,
                             MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error));
    CHECK_OK(memo_stream_synchronize(device, rank.streams[0], &error));
    CHECK(!memcmp(to, expected, sizeof to));
    world_end();
    mpi_test_count_failures();
}

/* --- failures: after one, MPI may keep using buffers, so these are static --- */

static float word[4];

static void expect_failure(const char* words) {
    memset(&error, 0, sizeof error);
    IGNORE(memo_stream_synchronize(device, rank.streams[0], &error));
    while (!memo_comm_status(rank.comm, &error) && MPI_Wtime() - start_s < 20) {
        struct timespec nap = {.tv_sec = 0, .tv_nsec = 5000000};
        nanosleep(&nap, NULL);
    }
    CHECK_CASE(memo_comm_status(rank.comm, &error) == MEMO_STATUS_COMM, "rank %d: %s",
               (int)rank.comm->rank, error.message);
    CHECK_CASE(strstr(error.message, words), "rank %d: %s", (int)rank.comm->rank, error.message);
    CHECK_CASE(MPI_Wtime() - start_s < 10, "%g s", MPI_Wtime() - start_s);
    CHECK_IS(memo_barrier(rank.comm, rank.streams[0], &error), !=, MEMO_STATUS_OK);
    world_end();
    mpi_test_count_failures();
}

/* A world for a failure.  One rank has none: it aborts, and the test ends. */
static int failure_begin(double timeout_s, int is_debug) {
    if (!world_begin(timeout_s, is_debug)) return 0;
    if (rank.comm->size > 1) return 1;
    memo_comm_abort(rank.comm);
    expect_failure("aborted");
    return 0;
}

TEST(a_rank_that_never_comes_ends_in_a_timeout) {
    if (!failure_begin(0.5, 0)) return;
    if (rank.comm->rank != 1)
        CHECK_OK(memo_all_reduce(rank.comm, rank.streams[0], &word[0], &word[1], 1, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_SUM, &error));
    expect_failure("waited 0.5 s for rank 1");
}

/* A chain of ranks, each of which waits for the next: the last one, which waits for nobody, is named,
 * with its host, and none that only waits. */
TEST(the_rank_that_is_missing_is_named) {
    char words[64];
    int32_t last;
    if (!failure_begin(1, 0)) return;
    last = rank.comm->size - 1;
    comm_mpi_world* w = ((comm_mpi*)rank.comm->context)->world;
    for (int32_t r = 0; r <= last; r++) snprintf(w->hosts[r], sizeof w->hosts[r], "node%d", (int)r);
    if (rank.comm->rank < last)
        CHECK_OK(memo_receive(rank.comm, rank.streams[0], &word[0], 1, MEMO_TYPE_F32,
                              rank.comm->rank + 1, &error));
    snprintf(words, sizeof words, "waited 1 s for rank %d (on node%d)", (int)last, (int)last);
    expect_failure(words);
}

/* Rank 1 stops before it, by itself or by an abort. */
TEST(a_split_without_a_rank_ends) {
    for (int aborts = 0; aborts < 2; aborts++) {
        memo_comm* part = NULL;
        if (!failure_begin(aborts ? 60 : 0.5, 0)) continue;
        if (aborts && rank.comm->rank == 1) memo_comm_abort(rank.comm);
        if (rank.comm->rank != 1) {
            CHECK_IS(memo_comm_split(rank.comm, 0, 0, "part", &part, &error), ==, MEMO_STATUS_COMM);
            CHECK(!part);
        }
        expect_failure(aborts ? "aborted" : "waited 0.5 s for rank 1 in a split");
    }
}

TEST(abort_reaches_all) {
    if (!world_begin(60, 0)) return;
    if (rank.comm->rank == 0)
        memo_comm_abort(rank.comm);
    else /* it may have heard already */
        IGNORE(memo_receive(rank.comm, rank.streams[0], &word[2], 1, MEMO_TYPE_F32, 0, &error));
    expect_failure("rank 0 of 'mpi world' aborted it");
}

TEST(ranks_that_differ_are_both_named) {
    if (!failure_begin(60, 1)) return;
    CHECK_OK(memo_all_reduce(rank.comm, rank.streams[0], word, word, rank.comm->rank == 1 ? 3 : 4,
                             MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error));
    expect_failure("as collective 1 of 'mpi world', rank 1 calls all_reduce(3 f32 sum)");
}

/* Rank 0 sends and rank 1 receives another type; the other ranks fail too. */
static void send_and_receive(int64_t n_sent, memo_type sent, int64_t n_received, memo_type received,
                             const char* words) {
    static float from[64], to[64];
    if (!failure_begin(60, 1)) return;
    if (rank.comm->rank == 0)
        CHECK_OK(memo_send(rank.comm, rank.streams[0], from, n_sent, sent, 1, &error));
    else if (rank.comm->rank == 1)
        CHECK_OK(memo_receive(rank.comm, rank.streams[0], to, n_received, received, 0, &error));
    if (rank.comm->rank < 2) { /* in both the operation itself fails */
        memo_status status = memo_stream_synchronize(device, rank.streams[0], &error);
        CHECK_CASE(status == MEMO_STATUS_COMM && strstr(error.message, words), "rank %d: %s",
                   (int)rank.comm->rank, status ? error.message : "no error");
    }
    expect_failure(words);
}

TEST(messages_that_differ_name_both_ranks) {
    send_and_receive(32, MEMO_TYPE_F32, 64, MEMO_TYPE_F32,
                     "rank 0 sends 32 f32 to rank 1, which receives 64 f32");
    send_and_receive(64, MEMO_TYPE_F32, 32, MEMO_TYPE_F32,
                     "rank 0 sends 64 f32 to rank 1, which receives 32 f32");
    send_and_receive(64, MEMO_TYPE_F32, 64, MEMO_TYPE_I32,
                     "rank 0 sends 64 f32 to rank 1, which receives 64 i32");
}

/* Without checks MPI itself would take fewer bytes in silence, and end the process on more. */
TEST(sizes_that_differ_are_named_without_checks) {
    static float from[64], to[64];
    for (int is_longer = 0; is_longer < 2; is_longer++) {
        if (!failure_begin(60, 0)) continue;
        if (rank.comm->rank == 0)
            CHECK_OK(memo_send(rank.comm, rank.streams[0], from, is_longer ? 64 : 32, MEMO_TYPE_F32,
                               1, &error));
        else if (rank.comm->rank == 1)
            CHECK_OK(memo_receive(rank.comm, rank.streams[0], to, is_longer ? 32 : 64,
                                  MEMO_TYPE_F32, 0, &error));
        expect_failure(is_longer ? "rank 1 of 'mpi world' receives 128 bytes from rank 0 in sends "
                                   "and receives, which sends more: sizes differ"
                                 : "rank 1 of 'mpi world' receives 256 bytes from rank 0 in sends "
                                   "and receives, which sends 128: sizes differ");
    }
}

/* The same count and type, in another step. */
TEST(steps_that_differ_name_both_ranks) {
    for (int is_collective = 0; is_collective < 2; is_collective++) {
        if (!failure_begin(60, 1)) continue;
        rank.comm->label.text = rank.comm->rank == 1 ? "backward" : "forward";
        rank.comm->label.number = 3;
        if (is_collective)
            CHECK_OK(memo_barrier(rank.comm, rank.streams[0], &error));
        else if (rank.comm->rank == 0)
            CHECK_OK(memo_send(rank.comm, rank.streams[0], word, 1, MEMO_TYPE_F32, 1, &error));
        else if (rank.comm->rank == 1)
            CHECK_OK(memo_receive(rank.comm, rank.streams[0], word, 1, MEMO_TYPE_F32, 0, &error));
        expect_failure("for forward 3");
    }
}

/* Two messages in one group, received in the other order. */
TEST(messages_in_another_order_name_both_ranks) {
    static float from[64], to[64];
    if (!failure_begin(60, 1)) return;
    memo_comm* comm = rank.comm;
    if (comm->rank < 2) {
        CHECK_OK(memo_group_begin(comm, &error));
        for (int k = 0; k < 2; k++)
            CHECK_OK(comm->rank ? memo_receive(comm, rank.streams[0], to + 32 * k, 8 + 16 * k,
                                               MEMO_TYPE_F32, 0, &error)
                                : memo_send(comm, rank.streams[0], from + 32 * k, 24 - 16 * k,
                                            MEMO_TYPE_F32, 1, &error));
        CHECK_OK(memo_group_end(comm, rank.streams[0], &error));
    }
    expect_failure("rank 0 sends 24 f32 to rank 1, which receives 8 f32 (message 1");
}

/* A collective here, a receive there: neither comes to an end, and each says for whom it waited. */
TEST(a_message_against_a_collective_names_both_ranks) {
    if (!failure_begin(0.5, 1)) return;
    if (rank.comm->rank == 1)
        CHECK_OK(memo_receive(rank.comm, rank.streams[0], word, 1, MEMO_TYPE_F32, 0, &error));
    else
        CHECK_OK(memo_barrier(rank.comm, rank.streams[0], &error));
    memset(&error, 0, sizeof error);
    IGNORE(memo_stream_synchronize(device, rank.streams[0], &error));
    CHECK_CASE(
        strstr(error.message, "0.5 s for rank 1 in a collective") ||
            (strstr(error.message, "rank 1 of 'mpi world' waited 0.5 s for rank 0 in sends")),
        "rank %d: %s", (int)rank.comm->rank, error.message);
    expect_failure("waited 0.5 s for rank ");
}
