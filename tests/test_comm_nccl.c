/* The cases of comm_cases.h over NCCL, a process a rank.  bench/device.sh runs it where there is a GPU:
 *
 *   cc -std=c99 -DMEMO_SP_NCCL -I. -Itests -I$CUDA/include tests/test_comm_nccl.c -o test_comm_nccl \
 *      -L$CUDA/lib64 -lnccl -lcudart -lpthread -lm
 *   ./test_comm_nccl 4 [NAME] [--seed N]         4 ranks, see nccl_ranks.h
 *
 * Built without MEMO_SP_NCCL it skips. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_test.h"

#ifndef MEMO_SP_NCCL
static void comm_over_nccl(void) { SKIP("built without MEMO_SP_NCCL, see tests/test_comm_nccl.c"); }
int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    TEST(comm_over_nccl);
    return memo_test_end();
}
#else
#ifdef FAKE_NCCL
#include "fake_nccl.h"
#endif
#include "nccl_ranks.h"
#define CASE_MALLOC(size_bytes) managed_malloc(size_bytes)
#define CASE_FREE(address)      cudaFree(address)
#include "comm_cases.h"

static rank_case rank;
static memo_device device; /* as much of one as the cases use */

static memo_status synchronize(void* context, memo_stream stream, memo_error* error) {
    memo_status status = memo_comm_nccl_synchronize((memo_comm*)context, stream, 60, error);
    CHECK(status || cudaGetLastError() == cudaSuccess); /* the next check of a kernel */
    return status;
}

static int world_begin(void) {
    memo_comm_nccl_desc desc = memo_comm_nccl_desc_default(); /* from the environment */
    memo_error error;
    int i;
    memset(&rank, 0, sizeof rank);
    desc.timeout_s = 60;
    CHECK_OK(memo_comm_create_nccl(&desc, &rank.comm, &error));
    if (!rank.comm) return 0;
    for (i = 0; i < CASE_STREAMS; i++) {
        cudaStream_t stream = NULL;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
        rank.streams[i] = (memo_stream)(void*)stream;
    }
    device.context = rank.comm;
    device.stream_synchronize = synchronize;
    rank.device = &device;
    return 1;
}

static void world_end(void) {
    int i;
    memo_comm_destroy(rank.comm);
    for (i = 0; i < CASE_STREAMS; i++) cudaStreamDestroy((cudaStream_t)(void*)rank.streams[i]);
}

/* All cases on one communicator: joining takes NCCL about a second. */
static void run_case(const char* name) {
    int i;
    if (!rank.comm) {
        CHECK(rank.comm != NULL);
        return;
    }
    for (i = 0; i < N_COMM_CASES; i++) {
        if (strcmp(comm_cases[i].name, name) != 0) continue;
        rank.n_failed = 0;
        rank.seed = rank.state = memo_test_random();
        rank.my_state = rank.seed + (uint64_t)rank.comm->rank + 1;
        comm_cases[i].function(&rank);
        CHECK_CASE(!rank.n_failed, "%s, seed %llu: %s", name, (unsigned long long)rank.seed,
                   rank.message);
    }
    nccl_count_failures(rank.comm, rank.streams[0]);
}

static void ranks_join(void) { CHECK(world_begin()); }
static void collectives_give_what_they_should(void) { run_case("collectives"); }
static void collectives_can_be_enqueued_in_a_row(void) { run_case("collectives_in_a_row"); }
static void groups_of_random_messages_arrive(void) { run_case("groups"); }
static void exchange_of_all_with_all_does_not_deadlock(void) { run_case("exchange"); }
static void single_messages_meet_grouped_ones(void) { run_case("single_messages"); }
static void splits_make_the_right_groups_which_work_at_once(void) { run_case("splits"); }
static void meshes_make_the_right_groups(void) { run_case("meshes"); }
static void refused_calls_harm_nobody(void) { run_case("refused_calls"); }

/* Rank 1 goes; the others' operation ends with a status, not never. */
static void a_peer_that_never_comes_ends_in_a_timeout(void) {
    memo_error error;
    float* x;
    double start_s;
    if (!rank.comm || rank.comm->size < 2) SKIP("needs two ranks");
    x = (float*)case_array(1, MEMO_TYPE_F32);
    start_s = memob_now_s();
    if (rank.comm->rank != 1) {
        memo_status status = memo_all_reduce(rank.comm, rank.streams[0], x, x, 1, MEMO_TYPE_F32,
                                             MEMO_REDUCTION_SUM, &error);
        if (!status) status = memo_comm_nccl_synchronize(rank.comm, rank.streams[0], 2, &error);
        CHECK_CASE(status == MEMO_STATUS_COMM, "%s", error.message);
        CHECK(memo_comm_status(rank.comm, &error) == MEMO_STATUS_COMM);
        CHECK(memob_now_s() - start_s < 90);
    }
    memo_comm_abort(rank.comm);
    CASE_FREE(x);
}

static void tests(void) {
    TEST(ranks_join);
    TEST(collectives_give_what_they_should);
    TEST(collectives_can_be_enqueued_in_a_row);
    TEST(groups_of_random_messages_arrive);
    TEST(exchange_of_all_with_all_does_not_deadlock);
    TEST(single_messages_meet_grouped_ones);
    TEST(splits_make_the_right_groups_which_work_at_once);
    TEST(meshes_make_the_right_groups);
    TEST(refused_calls_harm_nobody);
    TEST(a_peer_that_never_comes_ends_in_a_timeout);
    if (rank.comm) world_end();
}

int main(int argc, char** argv) { return nccl_ranks_main(argc, argv, tests); }
#endif
