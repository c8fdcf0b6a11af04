/* nccl_blocks.cu - overlapped tensor-parallel blocks over NCCL (nccl_test.h): losses and gradients
 * of a small split GPT, whose collectives run on a stream of high priority beside its computation.
 * bench/device.sh runs it:
 *
 *   nvcc -arch=native -I. -Iexamples -Itests/support tests/cuda/nccl_blocks.cu -lnccl -o nccl_blocks
 *   ./nccl_blocks 4 [NAME] [--seed N] */
#include "nccl_test.h"

#include "thread_ranks.h"

/* As thread_ranks_run: this process is one of n ranks, or the only one. */
static memo_status nccl_ranks_run(int32_t n,
                                  memo_status (*function)(thread_rank* rank, memo_error* error),
                                  void* user, memo_error* error) {
    memo_device* device = cuda_device;
    int32_t me = nccl_world->rank;
    thread_rank rank;
    memset(&rank, 0, sizeof rank);
    rank.device = device;
    rank.user = user;
    memo_status status =
        memo_comm_split(nccl_world, n == 1 ? me : 0, me, "blocks", &rank.comm, error);
    if (!status) status = memo_stream_create(device, "compute", 0, &rank.stream, error);
    if (!status) status = function(&rank, error);
    if (rank.stream) memo_stream_destroy(device, rank.stream, NULL);
    memo_comm_destroy(rank.comm);
    return status;
}
#define CASE_RANKS_RUN nccl_ranks_run
#include "../sp/blocks_model.h"

/* The blocks' comm stream relies on this: streams of the next priority go first on this GPU. */
TEST(priorities_differ) {
    int priorities[2] = {0, 0}, i;
    (void)thread_ranks_run; /* unused here */
    (void)is_same;
    NEED_WORLD();
    for (i = 0; i < 2; i++) {
        memo_stream stream = NULL;
        CHECK_OK(memo_stream_create(cuda_device, "comm", i, &stream, &error));
        CHECK(cudaStreamGetPriority(memo_cuda_stream(stream), &priorities[i]) == cudaSuccess);
        CHECK_OK(memo_stream_destroy(cuda_device, stream, &error));
    }
    CHECK(priorities[1] < priorities[0]); /* CUDA counts downwards */
    ranks_agree();
}

/* Every order against the unsplit model, which each rank runs alone; up to rounding, since NCCL
 * promises no order of sums. */
TEST(every_order_is_right) {
    model_setup setup = setup_of(MEMO_BLOCKS_DEFAULT, 1);
    double worst = 0;
    int order, T;
    NEED_WORLD();
    T = nccl_world->size;
    job* whole = run_job(1, &setup);
    for (order = MEMO_BLOCKS_DEFAULT; order <= MEMO_BLOCKS_FINE; order++) {
        setup.order = (memo_blocks_order)order;
        setup.n_parts = 2;
        job* split = run_job(T, &setup);
        keep_worst(&worst, compare_unsplit(whole, split, T), 0);
        check_recorded(split, T);
        free(split);
    }
    printf("# largest difference from the unsplit model: %.2g\n", worst);
    free(whole);
    ranks_agree();
}

TEST(the_ranks_leave) { ranks_leave(); }
