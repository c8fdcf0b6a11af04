/* fake_cublaslt.h - a cuBLASLt without a GPU: products on the host, as operations of fake_cuda.h's
 * streams.
 *
 * An algorithm fixes the order of a sum, so that another one gives other bits.  The order in which
 * the heuristic proposes them depends on the number of rows, so that a product that asks again for
 * other rows gets another one.  It also proposes an algorithm that splits the sum, one whose order
 * depends on the number of rows, and one that refuses few rows.  As the real one it fails at
 * matrices that are too long, and may offer an algorithm that then fails. */
#ifndef FAKE_CUBLASLT_H
#define FAKE_CUBLASLT_H

#include "fake_cuda.h"

#include <algorithm>
#include <cublasLt.h>
#include <stdint.h>
#include <string.h>

enum {
    FAKE_LT_SPLITS = 3,
    FAKE_LT_BY_ROWS = 4,
    FAKE_LT_MANY_ROWS = 5,
    FAKE_LT_FAILS = 6,
    FAKE_LT_ALGORITHMS = 6
};

static int fake_lt_offers_bad_ones_only; /* 2: only what splits the sum */
/* 1: the first algorithm of every list is refused when it is enqueued; 2: it fails later, on the
 * device, and the device stays failed. */
static int fake_lt_offers_failing;
/* A matrix of rows with as many elements, or more, fails when it runs. */
static uint64_t fake_lt_elements = (uint64_t)1 << 31;
static int fake_lt_n_too_long;
static int64_t fake_lt_n_products;

typedef struct fake_lt_layout {
    uint64_t type, rows, columns;
    int64_t ld;
} fake_lt_layout;
static_assert(sizeof(fake_lt_layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "");
typedef struct fake_lt_desc {
    int32_t on_a, on_b;
} fake_lt_desc;
static_assert(sizeof(fake_lt_desc) <= sizeof(cublasLtMatmulDescOpaque_t), "");

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "a status";
    }
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = (cublasLtHandle_t)&fake_lt_n_products;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    memset(desc, 0, size);
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
    fake_lt_desc* d = (fake_lt_desc*)desc;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        void* field;
        size_t size;
    } known[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &d->on_a, sizeof d->on_a},
                 {CUBLASLT_MATMUL_DESC_TRANSB, &d->on_b, sizeof d->on_b}};
    for (const auto& each : known) {
        if (each.attribute != attribute) continue;
        if (size != each.size) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(each.field, value, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t ld) {
    fake_lt_layout* l = (fake_lt_layout*)layout;
    memset(layout, 0, size);
    l->type = (uint64_t)type;
    l->rows = rows;
    l->columns = columns;
    l->ld = ld;
    return rows && columns && ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS
                                                  : CUBLAS_STATUS_INVALID_VALUE;
}

/* What the addresses of A, B, C and D are multiples of; an algorithm has them too. */
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t) {
    for (int i = 0; i < 4; i++) ((uint32_t*)preference)[i] = 256;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
    const int i = (int)attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (i >= 0 && i < 4) memcpy((uint32_t*)preference + i, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* The first is the one that refuses few rows. */
static uint64_t fake_lt_proposed(uint64_t rows, uint64_t i) {
    uint64_t size = 0;
    if (fake_lt_offers_bad_ones_only)
        return FAKE_LT_SPLITS + (fake_lt_offers_bad_ones_only == 1 ? i % 2 : 0);
    if (i == 0) return fake_lt_offers_failing ? FAKE_LT_FAILS : FAKE_LT_MANY_ROWS;
    while (rows >> size > 1) size++;
    return (rows + size + i - 1) % FAKE_LT_MANY_ROWS;
}

static uint64_t fake_lt_rows(const fake_lt_desc* desc, const fake_lt_layout* b,
                             const fake_lt_layout* d) {
    return desc->on_b == CUBLAS_OP_T ? b->columns : d->columns; /* a weight's gradient sums them */
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_asked,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* n_found) {
    const uint64_t rows = ((const fake_lt_layout*)d)->columns;
    *n_found = 0;
    for (; *n_found < n_asked && *n_found < FAKE_LT_ALGORITHMS; ++*n_found) {
        memset(&results[*n_found], 0, sizeof *results);
        results[*n_found].algo.data[0] = fake_lt_proposed(rows, (uint64_t)*n_found);
        memcpy(&results[*n_found].algo.data[1], preference, 4 * sizeof(uint32_t));
        results[*n_found].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Of the two matrices with a row for each token. */
static bool fake_lt_is_too_long(const fake_lt_desc* desc, const fake_lt_layout* a,
                                const fake_lt_layout* b, const fake_lt_layout* d) {
    const fake_lt_layout* other = desc->on_b == CUBLAS_OP_T ? a : d;
    return b->rows * b->columns >= fake_lt_elements ||
           other->rows * other->columns >= fake_lt_elements;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
    const int32_t n_splits = algo->data[0] == FAKE_LT_SPLITS ? 2 : 1;
    if (attribute != CUBLASLT_ALGO_CONFIG_SPLITK_NUM || size != sizeof n_splits)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(value, &n_splits, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

} /* extern "C" */

/* Element (i, j) of a column-major matrix. */
static inline int64_t fake_lt_at(const fake_lt_layout* l, bool is_transposed, int64_t i,
                                 int64_t j) {
    return is_transposed ? i * l->ld + j : j * l->ld + i;
}
static inline float fake_lt_load(const fake_lt_layout* l, const void* x, int64_t at) {
    return l->type == CUDA_R_16BF ? memo_f32_from_bf16(((const uint16_t*)x)[at])
                                  : ((const float*)x)[at];
}

/* Sums of `width` products each, and then of these. */
static inline int64_t fake_lt_width(uint64_t algorithm, uint64_t rows) {
    return algorithm == FAKE_LT_BY_ROWS ? 3 + (int64_t)(rows % 3) : 2 << algorithm;
}

static inline void fake_lt_product(fake_lt_desc desc, fake_lt_layout a, const void* x,
                                   fake_lt_layout b, const void* y, fake_lt_layout d, void* result,
                                   float alpha, float beta, uint64_t algorithm) {
    const int64_t m = (int64_t)d.rows, n = (int64_t)d.columns;
    const bool on_a = desc.on_a == CUBLAS_OP_T, on_b = desc.on_b == CUBLAS_OP_T;
    const int64_t k = (int64_t)(on_a ? a.rows : a.columns),
                  width = fake_lt_width(algorithm, d.columns);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            const int64_t at = j * d.ld + i;
            float sum = 0;
            for (int64_t first = 0; first < k; first += width) {
                float part = 0;
                for (int64_t p = first; p < k && p < first + width; p++)
                    part += fake_lt_load(&a, x, fake_lt_at(&a, on_a, i, p)) *
                            fake_lt_load(&b, y, fake_lt_at(&b, on_b, p, j));
                sum += part;
            }
            sum *= alpha;
            if (beta != 0) sum += beta * fake_lt_load(&d, result, at);
            if (d.type == CUDA_R_16BF)
                ((uint16_t*)result)[at] = memo_bf16_from_f32(sum);
            else
                ((float*)result)[at] = sum;
        }
}

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                         const void* alpha, const void* x, cublasLtMatrixLayout_t a,
                                         const void* y, cublasLtMatrixLayout_t b, const void* beta,
                                         const void* c, cublasLtMatrixLayout_t, void* result,
                                         cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                         void*, size_t, cudaStream_t stream) {
    const fake_lt_desc operations = *(const fake_lt_desc*)desc;
    const fake_lt_layout la = *(const fake_lt_layout*)a, lb = *(const fake_lt_layout*)b;
    const fake_lt_layout ld = *(const fake_lt_layout*)d;
    const float f = *(const float*)alpha, g = *(const float*)beta;
    const bool on_a = operations.on_a == CUBLAS_OP_T, on_b = operations.on_b == CUBLAS_OP_T;
    const uint64_t algorithm = algo->data[0];
    if (c != result || (on_a ? la.columns : la.rows) != ld.rows ||
        (on_b ? lb.rows : lb.columns) != ld.columns ||
        (on_a ? la.rows : la.columns) != (on_b ? lb.columns : lb.rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    const uint32_t* at = (const uint32_t*)&algo->data[1];
    if ((uintptr_t)x % at[0] || (uintptr_t)y % at[1] || (uintptr_t)c % at[2])
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algorithm == FAKE_LT_MANY_ROWS && fake_lt_rows(&operations, &lb, &ld) < 8)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (fake_lt_is_too_long(&operations, &la, &lb, &ld)) {
        fake_lt_n_too_long++;
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (algorithm == FAKE_LT_FAILS && fake_lt_offers_failing == 2 && !fake_broken()) {
        fake_enqueue(stream, [] { fake_break(cudaErrorIllegalAddress); });
        return CUBLAS_STATUS_SUCCESS;
    }
    if (algorithm == FAKE_LT_FAILS || fake_broken()) {
        fake_set_last_error(cudaErrorLaunchOutOfResources);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (!fake_load("cuBLASLt")) return CUBLAS_STATUS_ALLOC_FAILED;
    fake_lt_n_products++;
    fake_enqueue(stream,
                 [=] { fake_lt_product(operations, la, x, lb, y, ld, result, f, g, algorithm); });
    return CUBLAS_STATUS_SUCCESS;
}

#endif
