/* nccl_ranks.h - a test program that runs as n ranks over NCCL, a process per rank:
 *
 *   ./test_comm_nccl 4 [NAME] [--seed N]         4 ranks; more ranks than GPUs share them
 *
 * NCCL refuses two ranks on one GPU of one host.  Ranks that share a GPU therefore get different
 * host names and use the loopback.  Rank 0 prints; with MEMO_TEST_ALL_RANKS in the environment all
 * ranks do.
 *
 * It has main.  Include it after memo_cuda.cuh with MEMO_CUDA_NCCL, instead of memo_test.h. */
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H

#define MEMO_TEST_OWN_MAIN
#include "memo_test.h"
#include <sys/wait.h>

/* Memory that the host, the GPU and NCCL can use. */
static void* managed_malloc(size_t size_bytes) {
    void* address = NULL;
    return cudaMallocManaged(&address, size_bytes ? size_bytes : 1, cudaMemAttachGlobal) ==
                   cudaSuccess
               ? address
               : NULL;
}

/* A failure on one rank counts on every rank. */
static void nccl_count_failures(memo_comm* comm, memo_stream stream) {
    memo_error error;
    int32_t* failures = (int32_t*)managed_malloc(sizeof *failures);
    CHECK(failures != NULL);
    if (!failures) return;
    *failures = memo_test.failures;
    CHECK_OK(memo_all_reduce(comm, stream, failures, failures, 1, MEMO_TYPE_I32, MEMO_REDUCTION_SUM,
                             &error));
    CHECK_OK(memo_comm_nccl_synchronize(comm, stream, 60, &error));
    if (*failures > memo_test.failures) memo_test.failures = *failures;
    cudaFree(failures);
}

static int nccl_run_rank(int argc, char** argv, int my_rank, int n_ranks) {
    char number[16];
    int n_gpus = 0;
    snprintf(number, sizeof number, "%d", my_rank);
    setenv("RANK", number, 1);
    if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0) {
        if (my_rank == 0)
            printf("1..0 # SKIP no GPU; run it on a machine with one, as bench/device.sh does\n");
        return 0;
    }
    if (n_gpus < n_ranks) {
        setenv("NCCL_HOSTID", number, 1);
        setenv("NCCL_NET", "Socket", 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        setenv("NCCL_IB_DISABLE", "1", 1);
    }
    cudaSetDevice(my_rank % n_gpus);
    if (my_rank && !getenv("MEMO_TEST_ALL_RANKS") && !freopen("/dev/null", "w", stdout)) return 1;
    memo_test_begin(argc, argv);
    return memo_test_run_all();
}

/* Every rank's process runs all tests. */
int main(int argc, char** argv) {
    int n_ranks = argc > 1 ? atoi(argv[1]) : 2, result, r;
    char number[16];
    if (n_ranks < 1 || n_ranks > 16) {
        fprintf(stderr, "usage: %s RANKS [NAME] [--seed N]\n", argv[0]);
        return 2;
    }
    if (argc > 1) { /* the number is not memo_test's */
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    snprintf(number, sizeof number, "%d", n_ranks);
    setenv("WORLD_SIZE", number, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 0);
    setenv("MASTER_PORT", "29533", 0);
    fflush(stdout);
    for (r = 1; r < n_ranks; r++) { /* before anything touches CUDA */
        pid_t child = fork();
        if (child == 0) return nccl_run_rank(argc, argv, r, n_ranks);
        if (child < 0) perror("fork"); /* the time-out of the other ranks ends the run */
    }
    result = nccl_run_rank(argc, argv, 0, n_ranks);
    while (wait(&r) > 0) result |= r != 0;
    return result;
}

#endif
