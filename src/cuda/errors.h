#pragma once
#include "memo/text.h"
/* ---- >>cuda errors ------------------------------------------------------------------------------
 * Knows: how CUDA reports errors, and ranges for profilers.  Knows nothing of a device's state. */

/* Removes code from cudaGetLastError, where the failed call left it.  An error of another call
 * stays there. */
MEMOI void memoi_cuda_forget(cudaError_t code) {
    if (cudaPeekAtLastError() == code) (void)cudaGetLastError();
}

memo_status memo_cuda_check_at(cudaError_t code, const char* call, const char* file, int line,
                               memo_error* error) {
    const char* slash = strrchr(file, '/');
    memo_status status = MEMO_STATUS_DEVICE;
    if (code == cudaSuccess) return MEMO_STATUS_OK;
    memoi_cuda_forget(code);
    if (code == cudaErrorMemoryAllocation) status = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
        code == cudaErrorStubLibrary || code == cudaErrorSystemDriverMismatch ||
        code == cudaErrorInvalidDevice || code == cudaErrorNotSupported)
        status = MEMO_STATUS_UNSUPPORTED;
    return memo_error_set(error, status, "%s: %s (%s), %s:%d", call, cudaGetErrorName(code),
                          cudaGetErrorString(code), slash ? slash + 1 : file, line);
}

/* At the end of a message: ", memo_cuda.cuh:512". */
#define MEMOI_CUDA_TEXT_OF(line) #line
#define MEMOI_CUDA_TEXT(line)    MEMOI_CUDA_TEXT_OF(line)
#define MEMOI_CUDA_PLACE         ", memo_cuda.cuh:" MEMOI_CUDA_TEXT(__LINE__)

/* MEMOI_CUDA_CALL(cudaFree, (address), error) */
#define MEMOI_CUDA_CALL(function, arguments, error)                                                \
    memo_cuda_check_at(function arguments, #function, __FILE__, __LINE__, error)

MEMOI void memoi_cuda_log(const memo_log* log, const char* message) {
    if (log->write) log->write(log->user, message);
}

/* A range for profilers, until the end of the block. */
struct memoi_cuda_range {
#ifdef MEMO_CUDA_NVTX
    explicit memoi_cuda_range(const char* name) { (void)nvtxRangePushA(name); }
    ~memoi_cuda_range() { (void)nvtxRangePop(); }
#else
    explicit memoi_cuda_range(const char*) {}
#endif
};
