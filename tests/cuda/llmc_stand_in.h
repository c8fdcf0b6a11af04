/* llmc_stand_in.h - what llm.c's train_gpt2_fp32.cu needs beyond emulated_grid.h, to run on a CPU:
 * cooperative groups, shared memory, atomics, cuBLAS.  See examples/llmc/port.sh.
 *
 * Threads run in order: softmax_autoregressive_backward_kernel zeroes and reuses shared memory
 * without a barrier, which only fails in an order that a GPU hardly takes. */
#ifndef LLMC_STAND_IN_H
#define LLMC_STAND_IN_H

#define MEMO_TEST_OWN_MAIN
#include "emulated_grid.h"

#include <cublas_v2.h>
#include <math.h>

using std::max;

/* --- kernels --- */

#undef __shared__
#define __shared__ static          /* blocks run one after another */
static char llmc_shared[48 << 10]; /* extern __shared__ */
enum { warpSize = EMULATED_LANES };

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline void atomicAdd(float* to, float value) { *to += value; }
static inline float __ldcs(const float* from) { return *from; }
static inline void __stcs(float* to, float value) { *to = value; }

namespace cooperative_groups {
static inline unsigned rank(void) { return threadIdx.y * blockDim.x + threadIdx.x; }
struct thread_block {
    unsigned thread_rank(void) const { return rank(); }
    void sync(void) const { __syncthreads(); }
};
static inline thread_block this_thread_block(void) { return thread_block(); }
template <int SIZE> struct thread_block_tile {
    unsigned size(void) const { return SIZE; }
    unsigned thread_rank(void) const { return rank() % SIZE; }
    unsigned meta_group_rank(void) const { return rank() / SIZE; }
    unsigned meta_group_size(void) const { return blockDim.x * blockDim.y / SIZE; }
};
template <int SIZE> static thread_block_tile<SIZE> tiled_partition(const thread_block&) {
    return thread_block_tile<SIZE>();
}
template <typename T> struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <typename T> struct greater {
    T operator()(T a, T b) const { return a > b ? a : b; }
};
template <typename Operation>
static float reduce(const thread_block_tile<32>&, float value, Operation operation) {
    for (int apart = 16; apart > 0; apart /= 2)
        value = operation(value, __shfl_xor_sync(0xffffffffu, value, apart, 32));
    return value;
}
} // namespace cooperative_groups

/* kernel<<<blocks, threads>>>(arguments): LLMC_LAUNCH(kernel, blocks, threads)(arguments) */
template <typename... Parameters> struct llmc_kernel {
    void (*kernel)(Parameters...);
    cudaLaunchConfig_t config;
    void operator()(Parameters... arguments) const {
        (void)cudaLaunchKernelEx(&config, kernel, arguments...);
    }
};
template <typename... Parameters>
static llmc_kernel<Parameters...> llmc_launch(void (*kernel)(Parameters...), dim3 blocks,
                                              dim3 threads, size_t n_shared = 0) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    if (n_shared > sizeof llmc_shared) abort();
    emulated_is_in_order = true;
    return {kernel, config};
}

/* --- calls of the runtime that wait --- */

static inline cudaError_t llmc_memcpy(void* to, const void* from, size_t n_bytes,
                                      cudaMemcpyKind kind) {
    const void* on_device = kind == cudaMemcpyHostToDevice ? to : from;
    if (kind == cudaMemcpyDeviceToDevice) return cudaMemcpyAsync(to, from, n_bytes, kind, NULL);
    if (!fake_is_on_device(on_device, n_bytes)) return cudaErrorInvalidValue;
    cudaError_t code = cudaStreamSynchronize(NULL);
    if (code == cudaSuccess) memcpy(to, from, n_bytes);
    return code;
}
static inline cudaError_t llmc_properties(cudaDeviceProp* properties, int) {
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "a stand-in");
    return cudaSuccess;
}
#define cudaMemcpy                  llmc_memcpy
#define cudaMemset(to, value, n)    cudaMemsetAsync(to, value, n, NULL)
#define cudaMallocHost(to, n_bytes) cudaHostAlloc(to, n_bytes, cudaHostAllocDefault)
#define cudaGetDeviceProperties     llmc_properties

/* --- cuBLAS: column-major products on the default stream --- */

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    *handle = NULL;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t on_a,
                                         cublasOperation_t on_b, int m, int n, int k,
                                         const float* alpha, const float* a, int lda,
                                         long long a_stride, const float* b, int ldb,
                                         long long b_stride, const float* beta, float* c, int ldc,
                                         long long c_stride, int n_batches) {
    const float f = *alpha, g = *beta;
    const int a_row = on_a == CUBLAS_OP_T ? lda : 1, a_column = on_a == CUBLAS_OP_T ? 1 : lda;
    const int b_row = on_b == CUBLAS_OP_T ? ldb : 1, b_column = on_b == CUBLAS_OP_T ? 1 : ldb;
    fake_enqueue(NULL, [=] {
        for (int batch = 0; batch < n_batches; batch++)
            for (int j = 0; j < n; j++)
                for (int i = 0; i < m; i++) {
                    const float* x = a + batch * a_stride + i * a_row;
                    const float* y = b + batch * b_stride + j * b_column;
                    float *to = c + batch * c_stride + j * ldc + i, sum = 0;
                    for (int p = 0; p < k; p++) sum += x[p * a_column] * y[p * b_row];
                    *to = f * sum + (g == 0 ? 0 : g * *to);
                }
    });
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t on_a, cublasOperation_t on_b,
                              int m, int n, int k, const float* alpha, const float* a, int lda,
                              const float* b, int ldb, const float* beta, float* c, int ldc) {
    return cublasSgemmStridedBatched(handle, on_a, on_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta,
                                     c, ldc, 0, 1);
}
}

#endif
