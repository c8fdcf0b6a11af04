/* cuda_gemm.h - row-major matrix products by cuBLASLt.  Each shape is prepared once, so every run
 * uses one algorithm.  Knows: cuBLASLt.  Knows nothing of layers. */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include <cublasLt.h>
#include <math.h>

#include "cuda_bench.h"

#define CHECK_LT(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                    \
            fprintf(stderr, "%s: %s, %s:%d\n", #call, cublasLtGetStatusName(status_), __FILE__,    \
                    __LINE__);                                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* D (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C (m, n), n_batches times.  A and B are bf16, C
 * and D bf16 or fp32; a transposed operand is stored transposed.  ld: distance of stored rows;
 * stride: distance of batches. */
typedef struct gemm {
    int64_t m, n, k;
    int a_transposed, b_transposed, is_fp32;
    int64_t lda, ldb, ldd;
    int n_batches;
    int64_t a_stride, b_stride, d_stride;
    float alpha, beta;
    /* set by gemm_prepare */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} gemm;

typedef struct gemm_library {
    cublasLtHandle_t handle;
    void* workspace;
    size_t workspace_bytes;
} gemm_library;

static inline cublasLtMatrixLayout_t gemm_layout(cudaDataType type, int64_t columns, int64_t rows,
                                                 int64_t ld, int n_batches, int64_t stride) {
    cublasLtMatrixLayout_t layout;
    int32_t count = n_batches;
    /* What is row-major here is column-major and transposed there. */
    CHECK_LT(cublasLtMatrixLayoutCreate(&layout, type, (uint64_t)columns, (uint64_t)rows, ld));
    if (n_batches > 1) {
        CHECK_LT(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                  &count, sizeof count));
        CHECK_LT(cublasLtMatrixLayoutSetAttribute(
            layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    }
    return layout;
}

/* Makes descriptors, and returns the number of algorithms that the heuristic offers, the fastest
 * first. */
enum { GEMM_ASKED = 8 };
static inline int gemm_ask(const gemm_library* library, gemm* g,
                           cublasLtMatmulHeuristicResult_t found[GEMM_ASKED]) {
    cublasOperation_t on_a = g->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t on_b = g->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t preference;
    /* If k is split, a separate kernel adds the parts in fp32, so that every run gives the same
     * bits. */
    const uint32_t in_fp32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int n_found = 0, n_batches = g->n_batches ? g->n_batches : 1;

    CHECK_LT(cublasLtMatmulDescCreate(&g->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    /* D^T = op(B)^T op(A)^T: B comes first. */
    CHECK_LT(
        cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSA, &on_b, sizeof on_b));
    CHECK_LT(
        cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSB, &on_a, sizeof on_a));

    /* Row-major matrices are the transposes of what cuBLASLt expects. */
    g->b = gemm_layout(CUDA_R_16BF, g->b_transposed ? g->k : g->n, g->b_transposed ? g->n : g->k,
                       g->ldb, n_batches, g->b_stride);
    g->a = gemm_layout(CUDA_R_16BF, g->a_transposed ? g->m : g->k, g->a_transposed ? g->k : g->m,
                       g->lda, n_batches, g->a_stride);
    g->d = gemm_layout(g->is_fp32 ? CUDA_R_32F : CUDA_R_16BF, g->n, g->m, g->ldd, n_batches,
                       g->d_stride);

    CHECK_LT(cublasLtMatmulPreferenceCreate(&preference));
    CHECK_LT(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &library->workspace_bytes,
        sizeof library->workspace_bytes));
    CHECK_LT(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_fp32, sizeof in_fp32));
    CHECK_LT(cublasLtMatmulAlgoGetHeuristic(library->handle, g->desc, g->b, g->a, g->d, g->d,
                                            preference, GEMM_ASKED, found, &n_found));
    CHECK_LT(cublasLtMatmulPreferenceDestroy(preference));
    return n_found;
}

/* The heuristic's first algorithm is pinned, so that every run uses the same one. */
static inline void gemm_prepare(const gemm_library* library, gemm* g) {
    cublasLtMatmulHeuristicResult_t found[GEMM_ASKED];
    if (gemm_ask(library, g, found) == 0 || found[0].state != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "cuBLASLt has no algorithm for %lld x %lld x %lld\n", (long long)g->m,
                (long long)g->n, (long long)g->k);
        exit(1);
    }
    g->algo = found[0].algo;
}

/* c is read only if beta is not 0.  It may be d, or NULL if it is not read. */
static inline void gemm_run(const gemm_library* library, const gemm* g, const void* a,
                            const void* b, const void* c, void* d, cudaStream_t stream) {
    CHECK_LT(cublasLtMatmul(library->handle, g->desc, &g->alpha, b, g->b, a, g->a, &g->beta,
                            c ? c : d, g->d, d, g->d, &g->algo, library->workspace,
                            library->workspace_bytes, stream));
}

/* Seconds of one product, A and B in `from`; INFINITY: the algorithm does not run. */
static inline double gemm_time(const gemm_library* library, const gemm* g, const void* from,
                               void* to, const cublasLtMatmulAlgo_t* algo, cudaEvent_t ends[2]) {
    enum { WARM = 2, RUNS = 10 };
    const float beta = 0;
    float elapsed_ms = 0;
    for (int i = 0; i < WARM + RUNS; i++) {
        if (i == WARM) CHECK_CUDA(cudaEventRecord(ends[0], NULL));
        if (cublasLtMatmul(library->handle, g->desc, &g->alpha, from, g->b, from, g->a, &beta, to,
                           g->d, to, g->d, algo, library->workspace, library->workspace_bytes,
                           NULL)) {
            (void)cudaGetLastError();
            return INFINITY;
        }
    }
    CHECK_CUDA(cudaEventRecord(ends[1], NULL));
    CHECK_CUDA(cudaEventSynchronize(ends[1]));
    CHECK_CUDA(cudaEventElapsedTime(&elapsed_ms, ends[0], ends[1]));
    return 1e-3 * (double)elapsed_ms / RUNS;
}

/* Prints a row of the pinned algorithm of a product and of the fastest that the heuristic offers.
 * from, to: memory for the largest operand, and result. */
static inline void gemm_print(const gemm_library* library, gemm* g, const void* from, void* to) {
    const double flop = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    cublasLtMatmulHeuristicResult_t found[GEMM_ASKED];
    const int n_found = gemm_ask(library, g, found);
    cudaEvent_t ends[2];
    double pinned_s, best_s;
    int best = -1;
    for (cudaEvent_t& end : ends) CHECK_CUDA(cudaEventCreate(&end));
    best_s = pinned_s = gemm_time(library, g, from, to, &g->algo, ends);
    for (int i = 0; i < n_found; i++) {
        const double seconds = gemm_time(library, g, from, to, &found[i].algo, ends);
        if (seconds >= best_s) continue;
        best_s = seconds;
        best = i;
    }
    for (cudaEvent_t end : ends) CHECK_CUDA(cudaEventDestroy(end));
    printf("| %lld x %lld x %lld%s%s%s | %.0f | %.0f | %.3f | %d of %d |\n", (long long)g->m,
           (long long)g->n, (long long)g->k, g->a_transposed ? ", A transposed" : "",
           g->b_transposed ? ", B transposed" : "", g->is_fp32 ? ", fp32" : "",
           1e-12 * flop / pinned_s, 1e-12 * flop / best_s, best_s / pinned_s,
           best < 0 ? 1 : best + 1, n_found);
}

#endif
