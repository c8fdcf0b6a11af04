/* llmc_stand_in.h - what llm.c's train_gpt2_fp32.cu and train_gpt2.cu need beyond emulated_grid.h,
 * to run on a CPU: cooperative groups, shared memory, atomics, cuBLAS, cuBLASLt.  port.sh of
 * examples/llmc writes each launch kernel<<<blocks, threads>>>(arguments) as
 * llmc_launch([=] { kernel(arguments); }, blocks, threads).
 *
 * Threads run in order: softmax_autoregressive_backward_kernel zeroes and reuses shared memory
 * without a barrier, which only fails in an order that a GPU hardly takes. */
#ifndef LLMC_STAND_IN_H
#define LLMC_STAND_IN_H

#define MEMO_TEST_OWN_MAIN
#include "emulated_grid.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <math.h>

using std::max;
template <typename A, typename B> static inline auto min(A a, B b) { return a < b ? a : b; }

/* --- kernels --- */

#undef __shared__
#define __shared__ static                      /* blocks run one after another */
alignas(16) static char llmc_shared[96 << 10]; /* extern __shared__ */
enum { warpSize = EMULATED_LANES };

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline unsigned atomicInc(unsigned* to, unsigned most) {
    const unsigned old = *to;
    *to = old >= most ? 0 : old + 1;
    return old;
}
template <typename T> static inline T __ldcs(const T* from) { return *from; }
template <typename T> static inline void __stcs(T* to, T value) { *to = value; }
template <typename T> static inline void __stcg(T* to, T value) { *to = value; }
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline float llmc_shuffle(int line, unsigned mask, float value, int apart, int width = 32) {
    return emulated_shuffle_xor(line, mask, value, apart, width);
}
#undef __shfl_xor_sync
#define __shfl_xor_sync(mask, value, ...) llmc_shuffle(__LINE__, mask, value, __VA_ARGS__)
/* A lane near the end of its segment keeps its value. */
static inline float llmc_shuffle_down(int line, unsigned mask, float value, int apart, int width) {
    const int lane = (int)(emulated_now - emulated_lanes) % EMULATED_LANES;
    const int source = lane % width + apart < width ? lane + apart : lane;
    uint32_t bits = __float_as_uint(value);
    return __uint_as_float(emulated_meet("__shfl_down_sync", line, mask, source, bits));
}
#define __shfl_down_sync(mask, value, apart, width)                                                \
    llmc_shuffle_down(__LINE__, mask, value, apart, width)

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

/* LLMC_ANY_ORDER: as on a GPU, where two runs add atomically in two orders. */
static bool llmc_has_order() {
    struct timespec now;
    if (!getenv("LLMC_ANY_ORDER")) return true;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memo_test.state = (uint64_t)now.tv_nsec;
    return false;
}

static void llmc_run(const std::function<void()>* kernel) { (*kernel)(); }
static inline void llmc_launch(std::function<void()> kernel, dim3 blocks, dim3 threads,
                               size_t n_shared = 0, cudaStream_t stream = NULL) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = stream;
    if (n_shared > sizeof llmc_shared) abort();
    static const bool has_order = llmc_has_order();
    emulated_is_in_order = has_order;
    if (!has_order) memo_test_next(&memo_test.state);
    cudaError_t code = cudaLaunchKernelExC(&config, (const void*)llmc_run, NULL);
    if (code != cudaSuccess) abort();
    fake_enqueue(stream, [=] { emulated_run(blocks, threads, kernel); });
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
/* Pageable memory: a copy to the device has its bytes at once, a copy from there waits. */
static inline cudaError_t llmc_memcpy_async(void* to, const void* from, size_t n_bytes,
                                            cudaMemcpyKind kind, cudaStream_t stream) {
    const bool is_up = kind == cudaMemcpyHostToDevice;
    const char* bytes = (const char*)from;
    if (kind == cudaMemcpyDeviceToDevice || fake_is_pinned(is_up ? from : to, n_bytes))
        return cudaMemcpyAsync(to, from, n_bytes, kind, stream);
    if (!fake_is_on_device(is_up ? to : from, n_bytes)) return cudaErrorInvalidValue;
    if (is_up) {
        const std::vector<char> staged(bytes, bytes + n_bytes);
        fake_enqueue(stream, [=] { memcpy(to, staged.data(), n_bytes); });
        return cudaSuccess;
    }
    cudaError_t code = cudaStreamSynchronize(stream);
    if (code == cudaSuccess) memcpy(to, from, n_bytes);
    return code;
}
static inline cudaError_t llmc_properties(cudaDeviceProp* properties, int) {
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "a stand-in");
    properties->multiProcessorCount = 2; /* kernels that fill the GPU have few blocks */
    properties->maxThreadsPerMultiProcessor = 1024;
    properties->major = 9;
    return cudaSuccess;
}
#define cudaMemcpy                       llmc_memcpy
#define cudaMemcpyAsync                  llmc_memcpy_async
#define cudaMemset(to, value, n)         cudaMemsetAsync(to, value, n, NULL)
#define cudaMallocHost(to, n_bytes, ...) cudaHostAlloc((void**)(to), n_bytes, cudaHostAllocDefault)
#define cudaGetDeviceProperties          llmc_properties
#define cudaFuncSetAttribute(...)        cudaSuccess
#define cudaStreamCreate(stream)         cudaStreamCreateWithFlags(stream, cudaStreamDefault)
#define cudaEventCreate(event)           cudaEventCreateWithFlags(event, cudaEventDefault)
#define cudaMemAdvise(...)               cudaSuccess

/* --- cuBLAS: column-major products on the default stream --- */

extern "C" {
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
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

/* --- cuBLASLt, as matmul_cublaslt calls it --- */

#ifdef LLMC_CUBLASLT
} /* extern "C" */
#include <cublasLt.h>

struct llmc_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld, n_batches = 1, stride = 0;
};
struct llmc_product {
    int32_t on_a = CUBLAS_OP_N, on_b = CUBLAS_OP_N, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = NULL;
};
extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = NULL;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t,
                                        cudaDataType_t) {
    *desc = (cublasLtMatmulDesc_t) new llmc_product;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete (llmc_product*)desc;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t n_bytes) {
    llmc_product* p = (llmc_product*)desc;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: memcpy(&p->on_a, value, n_bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: memcpy(&p->on_b, value, n_bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: memcpy(&p->epilogue, value, n_bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: memcpy(&p->bias, value, n_bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    *layout = (cublasLtMatrixLayout_t) new llmc_layout{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete (llmc_layout*)layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t) {
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        ((llmc_layout*)layout)->n_batches = *(const int32_t*)value;
    else
        ((llmc_layout*)layout)->stride = *(const int64_t*)value;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t*) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t[], int* n_found) {
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}
/* The order of a sum depends on the number of columns of D: other rows in a call, other bits.  Of
 * sums of a multiple of 8 products. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* x, cublasLtMatrixLayout_t on_x, const void* y,
                              cublasLtMatrixLayout_t on_y, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* result, cublasLtMatrixLayout_t on_d,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
    const llmc_product p = *(const llmc_product*)desc;
    const llmc_layout a = *(const llmc_layout*)on_x, b = *(const llmc_layout*)on_y;
    const llmc_layout d = *(const llmc_layout*)on_d;
    const float f = *(const float*)alpha, g = *(const float*)beta;
    if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a.type != CUDA_R_16BF || b.type != a.type || d.type != a.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    fake_enqueue(stream, [=] {
        const bool ta = p.on_a == CUBLAS_OP_T, tb = p.on_b == CUBLAS_OP_T;
        const size_t m = d.rows, n = d.columns, k = ta ? a.rows : a.columns;
        if (k % 8) abort();
        std::vector<float> rows(m * k), columns(n * k);
        for (int64_t batch = 0; batch < d.n_batches; batch++) {
            const __nv_bfloat16* u = (const __nv_bfloat16*)x + batch * a.stride;
            const __nv_bfloat16* v = (const __nv_bfloat16*)y + batch * b.stride;
            __nv_bfloat16* w = (__nv_bfloat16*)result + batch * d.stride;
            for (size_t i = 0; i < m * k; i++)
                rows[i] = u[ta ? i / k * a.ld + i % k : i % k * a.ld + i / k];
            for (size_t j = 0; j < n * k; j++)
                columns[j] = v[tb ? j % k * b.ld + j / k : j / k * b.ld + j % k];
            for (size_t j = 0; j < n; j++)
                for (size_t i = 0; i < m; i++) {
                    float parts[8] = {}, sum = 0;
                    for (size_t q = 0; q < k; q += 8)
                        for (size_t r = 0; r < 8; r++)
                            parts[r] += rows[i * k + q + r] * columns[j * k + q + r];
                    for (size_t r = 0; r < 8; r++) sum += parts[(n + r) % 8];
                    sum *= f;
                    if (g != 0) sum += g * (float)w[j * d.ld + i];
                    if (p.bias) sum += (float)((const __nv_bfloat16*)p.bias)[i];
                    w[j * d.ld + i] = sum;
                }
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}
#endif
}

#endif
