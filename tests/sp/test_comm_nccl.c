/* test_comm_nccl.c - the cases of comm_cases.h over NCCL, with a process per rank.  bench/device.sh
 * runs it on a GPU:
 *
 *   nvcc -std=c++17 -x cu -DMEMO_CUDA_NCCL -I. -Itests/support tests/sp/test_comm_nccl.c -o test_comm_nccl -lnccl
 *   ./test_comm_nccl 4 [NAME] [--seed N]         4 ranks, see nccl_ranks.h
 *
 * Built without MEMO_CUDA_NCCL it skips. */
#ifndef LINKED /* with the implementations of the other tests */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#ifdef FAKE_NCCL
#define MEMO_TEST_OWN_MAIN
#include "../cuda/emulated_grid.h"
#endif
#include "signals.h"
#include "memo_plan.h"
#include "memo_sp.h"
#ifdef MEMO_CUDA_NCCL
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"
#endif
#include "extras/memo_look.h"

#ifndef MEMO_CUDA_NCCL
#include "memo_test.h"
TEST(comm_over_nccl) {
    SKIP("built without MEMO_CUDA_NCCL; the head of tests/sp/test_comm_nccl.c has the command");
}
#else
#ifdef FAKE_NCCL
#include "../cuda/fake_nccl.h"
#endif
#include "nccl_ranks.h"
#define CASE_MALLOC(size_bytes) managed_malloc(size_bytes)
#define CASE_FREE(address)      cudaFree(address)
#include "session_ranks.h"
#include "comm_cases.h"

static rank_case rank;
static memo_device device; /* as much of one as the cases use */

static memo_status synchronize(void* context, memo_stream stream, memo_error* e) {
    return memo_comm_nccl_synchronize((memo_comm*)context, stream, 60, e);
}

static memo_error world_failure;
static int n_world_failures;
static void keep_failure(void* user, const memo_error* why) {
    world_failure = *why;
    __atomic_fetch_add((int*)user, 1, __ATOMIC_SEQ_CST);
}

static int world_begin(void) {
    memo_comm_nccl_desc desc = {0}; /* from the environment */
    memset(&rank, 0, sizeof rank);
    desc.join_timeout_s = 60;
    desc.timeout_s = 60;
    desc.failed = keep_failure;
    desc.failed_user = &n_world_failures;
    CHECK_OK(memo_comm_create_nccl(&desc, &rank.comm, &error));
    if (!rank.comm) return 0;
    for (int i = 0; i < CASE_STREAMS; i++) {
        cudaStream_t stream = NULL;
        CHECK_IS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), ==, cudaSuccess);
        rank.streams[i] = (memo_stream)(void*)stream;
    }
    device.context = rank.comm;
    device.stream_synchronize = synchronize;
    rank.device = &device;
    return 1;
}

static void world_end(void) {
    memo_comm_destroy(rank.comm);
    for (int i = 0; i < CASE_STREAMS; i++) cudaStreamDestroy((cudaStream_t)(void*)rank.streams[i]);
}

/* All cases on one communicator: joining takes NCCL about a second. */
static void run_case(case_function function) {
    if (!rank.comm) {
        CHECK(rank.comm != NULL);
        return;
    }
    case_begin(&rank, memo_test_random());
    function(&rank);
    nccl_count_failures(rank.comm, rank.streams[0]);
}

TEST(ranks_join) { CHECK(world_begin()); }

COMM_TESTS

/* For memo_session_desc.agree: NCCL takes memory of the GPU. */
static memo_status agree(void* user, int64_t* values, int64_t n, memo_error* e) {
    const memo_stream stream = rank.streams[0];
    int64_t* shared = (int64_t*)managed_malloc((size_t)n * sizeof *values);
    memo_status status;
    if (!shared) return memo_error_set(e, MEMO_STATUS_OUT_OF_DEVICE_MEMORY, "no memory");
    memcpy(shared, values, (size_t)n * sizeof *values);
    status =
        memo_all_reduce(rank.comm, stream, shared, shared, n, MEMO_TYPE_I64, MEMO_REDUCTION_MAX, e);
    if (!status) status = memo_comm_nccl_synchronize(rank.comm, stream, 60, e);
    memcpy(values, shared, (size_t)n * sizeof *values);
    cudaFree(shared);
    (void)user;
    return status;
}

TEST(sessions_agree_over_nccl) {
    if (!rank.comm) SKIP("not joined to the other ranks; see the first failure");
    session_rank r = {.agree = agree, .rank = rank.comm->rank, .n_ranks = rank.comm->size};
    session_ranks_agree(&r);
    nccl_count_failures(rank.comm, rank.streams[0]);
}

TEST(memory_is_reported) {
    if (!rank.comm) SKIP("not joined to the other ranks; see the first failure");
    CHECK_IS(memo_comm_nccl_get_device_bytes(rank.comm), >=, 0);
}

#ifdef FAKE_NCCL
/* NCCL may deadlock if a rank has operations of two communicators under way.  Where NCCL does not
 * order them, events do.  Rank 1 is late, so that the others have both enqueued; the stand-in
 * counts how often both were under way. */
TEST(operations_of_two_communicators_take_turns) {
    const char* implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    memo_comm* parts[2] = {NULL, NULL};
    float* x[2];
    if (!rank.comm || rank.comm->size < 2) SKIP("needs two ranks; start two processes");
    CHECK(implicit != NULL); /* set if the caller has not */
    for (int k = 0; k < 2; k++) {
        x[k] = (float*)case_array(1, MEMO_TYPE_F32);
        CHECK_OK(memo_comm_split(rank.comm, 0, 0, "turns", &parts[k], &error));
    }
    fake.n_overlaps = 0;
    if (rank.comm->rank == 1) usleep(200000);
    for (int k = 0; k < 2; k++)
        CHECK_OK(memo_all_reduce(parts[k], rank.streams[k], x[k], x[k], 1, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_SUM, &error));
    for (int k = 0; k < 2; k++)
        CHECK_OK(memo_comm_nccl_synchronize(parts[k], rank.streams[k], 60, &error));
    if (implicit && strcmp(implicit, "0") == 0)
        CHECK_CASE(fake.n_overlaps == 0, "%d at once", fake.n_overlaps);
    for (int k = 0; k < 2; k++) {
        memo_comm_destroy(parts[k]);
        CASE_FREE(x[k]);
    }
}

/* An event recorded in a capture cannot be queried: a captured operation is neither timed nor
 * waited for. */
TEST(captured_operations_leave_no_event) {
    memo_comm* part = NULL;
    cudaStream_t stream = (cudaStream_t)(void*)rank.streams[1];
    cudaGraph_t graph;
    if (!rank.comm) SKIP("not joined to the other ranks; see the first failure");
    float* x = (float*)case_array(1, MEMO_TYPE_F32);
    CHECK_OK(memo_comm_split(rank.comm, 0, 0, "captured", &part, &error));
    memoi_nccl* me = (memoi_nccl*)part->context;
    /* Ranks meet first; then another communicator is the latest, and the third is captured. */
    for (int k = 0; k < 4; k++) {
        memo_comm* comm = k == 1 ? rank.comm : part;
        const double before_s = me->enqueued_s;
        if (k == 2) CHECK(!cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        CHECK_OK(memo_all_reduce(comm, rank.streams[1], x, x, 1, MEMO_TYPE_F32, MEMO_REDUCTION_SUM,
                                 &error));
        CHECK((me->world->latest == me) == (k % 3 == 0));
        CHECK((me->enqueued_s > before_s) == (k % 3 == 0));
        if (k == 2) CHECK(!cudaStreamEndCapture(stream, &graph) && !cudaGraphDestroy(graph));
        CHECK_OK(memo_comm_nccl_synchronize(comm, rank.streams[1], 60, &error));
    }
    memo_comm_destroy(part);
    CASE_FREE(x);
}
#endif

/* Rank 1 leaves.  The wait of the others ends, even outside NCCL, and every communicator of the
 * world has the reason.  MEMO_TEST_WAIT selects the kind of wait. */
TEST(a_lost_peer_ends_every_wait) {
    const char* how = getenv("MEMO_TEST_WAIT");
    const int is_plain = how && strcmp(how, "plain") == 0;
    memo_comm* part = NULL;
    memo_status status;
    if (!rank.comm || rank.comm->size < 2) SKIP("needs two ranks; start two processes");
    float* x = (float*)case_array(1, MEMO_TYPE_F32);
    CHECK_OK(memo_comm_split(rank.comm, 0, 0, "all", &part, &error));
    CHECK_IS(n_world_failures, ==, 0);
    if (rank.comm->rank != 1) {
        if (is_plain) ((memoi_nccl*)rank.comm->context)->world->desc.timeout_s = 0.5;
        status = memo_all_reduce(part, rank.streams[0], x, x, 1, MEMO_TYPE_F32, MEMO_REDUCTION_SUM,
                                 &error);
        if (!status && is_plain)
            CHECK_IS(cudaStreamSynchronize((cudaStream_t)(void*)rank.streams[0]), ==, cudaSuccess);
        else if (!status)
            status = memo_comm_nccl_synchronize(part, rank.streams[0], 2, &error);
        CHECK_CASE(is_plain || status == MEMO_STATUS_COMM, "%s", error.message);
        CHECK_IS(__atomic_load_n(&n_world_failures, __ATOMIC_SEQ_CST), ==, 1);
        CHECK_IS(world_failure.status, ==, MEMO_STATUS_COMM);
        CHECK_IS(memo_comm_status(part, &error), ==, MEMO_STATUS_COMM);
        CHECK_IS(memo_comm_status(rank.comm, &error), ==, MEMO_STATUS_COMM);
        CHECK_IS(strcmp(error.message, world_failure.message), ==, 0);
    }
    memo_comm_abort(rank.comm);
    memo_comm_destroy(part);
    CASE_FREE(x);
}

TEST(the_ranks_leave) {
    if (rank.comm) world_end();
}

/* Passes with 40 labels, more than are kept at a time; then one rank has another label in one pass,
 * and not afterwards. */
TEST(a_label_that_differs_fails_on_all_ranks) {
    static const char* const fields[MEMO_LABEL_FIELDS] = {"scale", "softcap", "head"};
    for (int way = 0; way < 2; way++) { /* sends and receives; a collective */
        memo_status status = MEMO_STATUS_OK;
        if (!world_begin()) return;
        float* x = (float*)case_array(64, MEMO_TYPE_F32);
        for (int pass = 0; pass < 46 && !status; pass++) {
            memo_comm* comm = rank.comm;
            const int next = (comm->rank + 1) % comm->size;
            comm->label.text = "pass";
            comm->label.fields = fields;
            for (int k = 0; k < MEMO_LABEL_FIELDS; k++)
                comm->label.digests[k] = 2654435761u * (uint32_t)(pass % 40 + k);
            if (pass == 42 && comm->rank == comm->size - 1) comm->label.digests[2] += 1u << 31;
            comm->label.is_first = 1;
            if (way)
                status = memo_all_gather(comm, rank.streams[0], x, x + 1, 1, MEMO_TYPE_F32, &error);
            else {
                CHECK_OK(memo_group_begin(comm, &error));
                if (comm->rank == 0 && comm->size > 1) /* the others have an empty group */
                    CHECK_OK(memo_send(comm, rank.streams[0], x, 1, MEMO_TYPE_F32, next, &error));
                if (comm->rank == 1)
                    CHECK_OK(memo_receive(comm, rank.streams[0], x, 1, MEMO_TYPE_F32, 0, &error));
                status = memo_group_end(comm, rank.streams[0], &error);
            }
            memset(&comm->label, 0, sizeof comm->label);
            if (!status && pass % 5 == 4)
                status = memo_comm_nccl_synchronize(comm, rank.streams[0], 60, &error);
            CHECK_CASE(!status || pass > 41, "%s", error.message);
        }
        status = memo_comm_nccl_synchronize(rank.comm, rank.streams[0], 60, &error);
        if (rank.comm->size == 1)
            CHECK_OK(status);
        else
            CHECK_CASE(status == MEMO_STATUS_COMM && strstr(error.message, "head on"),
                       "rank %d: %s", (int)rank.comm->rank, status ? error.message : "OK");
        world_end();
        CASE_FREE(x);
    }
}

/* Kernels and products whose numbers nobody reads. */
static memo_status no_kernel(MEMO_UNUSED void* context, MEMO_UNUSED memo_stream stream,
                             MEMO_UNUSED const memo_row_call* call, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
static memo_status no_product(MEMO_UNUSED void* context, MEMO_UNUSED const memo_loss_tile* tile,
                              MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}

/* The last rank has another desc, or another scale; then none has. */
TEST(a_loss_that_differs_fails_on_all_ranks) {
    static const char* const expected[] = {"tile_rows or softcap on", "n_rows or scale on", NULL};
    static const int32_t labels[5] = {0, 1, 2, 3, 4};
    for (int way = 0; way < 3; way++) {
        memo_loss* loss = NULL;
        if (!world_begin()) return;
        int is_last = rank.comm->size > 1 && rank.comm->rank == rank.comm->size - 1;
        memo_device table = device;
        table.struct_bytes = (int64_t)sizeof table;
        table.row_kernel = no_kernel;
        memo_loss_desc desc = {.device = &table,
                               .stream = rank.streams[0],
                               .tensor = rank.comm,
                               .vocabulary = 16,
                               .softcap = way == 0 && is_last ? 1.0f : 0.0f};
        desc.tile_rows = 2; /* three tiles */
        char* memory = (char*)CASE_MALLOC(1 << 16);
        desc.device_memory = memory + (512 - (uintptr_t)memory % 512) % 512;
        desc.functions.logits = desc.functions.gradients = no_product;
        memo_loss_tensors tensors = {
            .n_rows = 5, .labels = labels, .scale = way == 1 && is_last ? 2.0f : 1.0f};
        CHECK_OK(memo_loss_create(&desc, &loss, &error));
        memo_status status = memo_loss_run(loss, &tensors, &error);
        for (int i = 0; i < 2 && !status; i++)
            status = memo_comm_nccl_synchronize(rank.comm, rank.streams[0], 60, &error);
        if (rank.comm->size == 1 || !expected[way])
            CHECK_OK(status);
        else
            CHECK_CASE(status == MEMO_STATUS_COMM && strstr(error.message, expected[way]),
                       "rank %d: %s", (int)rank.comm->rank, status ? error.message : "OK");
        memo_loss_destroy(loss);
        world_end();
        CASE_FREE(memory);
    }
}

/* A world of one by an id of the caller's own. */
TEST(an_id_of_the_callers_own_serves) {
    memo_comm* comm = NULL;
    ncclUniqueId id;
    CHECK(getenv("NCCL_COMM_ID") == NULL); /* it named the first world's meeting only */
    CHECK_IS(ncclGetUniqueId(&id), ==, ncclSuccess);
    memo_comm_nccl_desc desc = {.size = 1, .unique_id = &id};
    CHECK_SIGNALS(1, CHECK_OK(memo_comm_create_nccl(&desc, &comm, &error)));
    CHECK(comm && comm->rank == 0 && comm->size == 1);
    memo_comm_destroy(comm);
}

#ifdef FAKE_NCCL
/* A later world may meet elsewhere. */
TEST(a_rank_without_memory_leaves_the_environment_alone) {
    memo_comm_nccl_desc desc = {0};
    memo_comm* comm = NULL;
    fake_fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
    CHECK_IS(memo_comm_create_nccl(&desc, &comm, &error), ==, MEMO_STATUS_DEVICE);
    CHECK(!comm && !getenv("NCCL_COMM_ID"));
}

/* The part of a split that does not end in time comes later: not into a function that has
 * returned. */
TEST(a_part_that_comes_too_late_is_aborted) {
    memo_comm *comm = NULL, *part = NULL;
    ncclUniqueId id;
    const char here = 0;
    CHECK_IS(ncclGetUniqueId(&id), ==, ncclSuccess);
    char host[] = "node7"; /* copied */
    memo_comm_nccl_desc desc = {.size = 1, .unique_id = &id, .host = host, .join_timeout_s = 0.05};
    CHECK_OK(memo_comm_create_nccl(&desc, &comm, &error));
    memset(host, 'x', sizeof host - 1);
    fake_endless.is_on = 1;
    CHECK_IS(memo_comm_split(comm, 0, 0, "late", &part, &error), ==, MEMO_STATUS_COMM);
    CHECK(part == NULL && strstr(error.message, "time-out") != NULL);
    CHECK_TEXT(error.message, "rank 0 (world rank 0 on node7): ");
    CHECK((uintptr_t)&here - (uintptr_t)fake_endless.part > 1 << 16); /* it is not on the stack */
    memo_comm_destroy(comm);
    CHECK_IS(fake_endless.n_aborted, ==, 2);
}
#endif
#endif
