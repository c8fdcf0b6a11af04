/* nccl_test.h - runs the cases of the tests over threads over NCCL and CUDA streams, a process per
 * rank (nccl_ranks.h).
 *
 * The computation of these cases is a host function of a CUDA stream (cudaLaunchHostFunc) on
 * managed memory.  Kernels, copies, collectives and events around it are CUDA's and NCCL's.  This
 * tests ordering and communication on a GPU, not speed. */
#ifndef NCCL_TEST_H
#define NCCL_TEST_H

#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#define MEMO_CUDA_NCCL
#include "memo.h"

static inline memo_status launch_on_stream(memo_stream stream, memo_host_function function,
                                           const void* args, int64_t args_bytes, memo_error* error);
#define memo_host_device_launch(device, stream, function, args, args_bytes, error)                 \
    ((void)(device), launch_on_stream(stream, function, args, args_bytes, error))

#include "memo_sp.h"
#include "memo_cuda.cuh"

static int n_host_failures; /* of functions that ran on streams */

typedef struct alignas(16) stream_call {
    memo_host_function function;
} stream_call; /* its arguments follow */

static void CUDART_CB stream_call_run(void* user) {
    stream_call* call = (stream_call*)user;
    memo_error error;
    if (call->function(call + 1, &error)) __atomic_fetch_add(&n_host_failures, 1, __ATOMIC_RELAXED);
    free(call);
}

static inline memo_status launch_on_stream(memo_stream stream, memo_host_function function,
                                           const void* args, int64_t args_bytes,
                                           memo_error* error) {
    stream_call* call = (stream_call*)malloc(sizeof *call + (size_t)args_bytes);
    if (!call) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "a call on a stream");
    call->function = function;
    memcpy(call + 1, args, (size_t)args_bytes);
    memo_status status =
        memo_cuda_check(cudaLaunchHostFunc(memo_cuda_stream(stream), stream_call_run, call),
                        "cudaLaunchHostFunc", error);
    if (status) free(call);
    return status;
}

#include "../sp/nccl_ranks.h"

static void* managed_calloc(size_t n, size_t size_bytes) {
    void* address = managed_malloc(n * size_bytes);
    if (!address) abort();
    return memset(address, 0, n * size_bytes);
}
#define CASE_CALLOC(n, size_bytes) managed_calloc(n, size_bytes)
#define CASE_FREE(address)         cudaFree(address)

static memo_comm* nccl_world; /* NULL: this rank has not joined */
static memo_device* cuda_device;

TEST(ranks_join) {
    memo_comm_nccl_desc desc = MEMO_ZERO(memo_comm_nccl_desc); /* from the environment */
    memo_cuda_device_desc device_desc = MEMO_ZERO(memo_cuda_device_desc);
    int is_concurrent = 0;
    memo_error error;
    desc.join_timeout_s = 60;
    desc.timeout_s = 60;
    desc.failed = memo_cuda_device_fail;
    cudaGetDevice(&device_desc.ordinal);
    cudaDeviceGetAttribute(&is_concurrent, cudaDevAttrConcurrentManagedAccess, device_desc.ordinal);
    if (!is_concurrent)
        SKIP("the host cannot touch managed memory while this GPU works; take another GPU");
    CHECK_OK(memo_cuda_device_create(&device_desc, &cuda_device, &error));
    desc.failed_user = cuda_device;
    CHECK_OK(memo_comm_create_nccl(&desc, &nccl_world, &error));
}

/* At the end of each test; ranks that have not joined have failed already. */
static void ranks_agree(void) {
    CHECK(__atomic_load_n(&n_host_failures, __ATOMIC_RELAXED) == 0);
    if (nccl_world) nccl_count_failures(nccl_world, NULL);
}

static void ranks_leave(void) {
    memo_comm_destroy(nccl_world);
    memo_cuda_device_destroy(cuda_device);
}

#define NEED_WORLD()                                                                               \
    if (!nccl_world || !cuda_device) SKIP("not joined to the other ranks; see the first failure")

#endif
