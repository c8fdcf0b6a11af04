#pragma once
#include "cuda/state.h"
/* ---- >>inspect ----------------------------------------------------------------------------------
 * Knows: what checked sessions look for in rows of bytes.  Knows nothing of sessions. */
#if defined(__CUDACC__) || defined(EMULATED_GRID_H)
#define MEMOI_CUDA_HAS_INSPECT

/* A word at `at` of a row of n bytes, with zeros behind the row.  aligned: rows begin at multiples
 * of 8. */
static __device__ unsigned long long memoi_cuda_word(const unsigned char* row, int64_t at,
                                                     int64_t n, int aligned) {
    unsigned long long word = 0;
    if (aligned && at + 8 <= n) return *(const unsigned long long*)(row + at);
    for (int i = 0; i < 8 && at + i < n; i++) word |= (unsigned long long)row[at + i] << 8 * i;
    return word;
}

/* As memob_row_content in memo.h.  A thread has a row. */
static __device__ memo_row_content memoi_cuda_row_content(const unsigned char* row, int64_t n) {
    const int phase = (int)((unsigned long long)row % 8), aligned = phase == 0;
    const unsigned long long poison =
        phase ? MEMOB_POISON >> 8 * phase | MEMOB_POISON << (64 - 8 * phase) : MEMOB_POISON;
    unsigned long long hash = 14695981039346656037ull ^ (unsigned long long)n;
    memo_row_content found = {0, n, 0};
    int64_t n_of_poison = 0;
    for (int64_t at = 0; at < n; at += 8) {
        const unsigned long long word = memoi_cuda_word(row, at, n, aligned);
        hash ^= word;
        hash = (hash << 29 | hash >> 35) * 0x9e3779b97f4a7c15ull;
        for (int i = 0; i < 8 && at + i < n && found.n_poisoned == n; i++)
            if ((word >> 8 * i & 255) != (poison >> 8 * i & 255)) found.n_poisoned = at + i;

        /* Two numbers of 32 bits, without their signs. */
        for (int half = 0; half < 2 && at + 4 * half + 4 <= n; half++) {
            const unsigned number = (unsigned)(word >> 32 * half) & 0x7fffffff;
            n_of_poison += number == 0x7fe07da0 || number == 0x7ff97da0 ||
                           (number == 0x7ff17da0 && (phase + 4 * half) % 8 == 0);
        }
    }
    found.digest = hash ^ hash >> 32;
    found.is_of_poison = n_of_poison > 1;
    return found;
}

static __global__ void memoi_cuda_inspect_kernel(const unsigned char* bytes, int64_t row_bytes,
                                                 int64_t n_rows, memo_row_content* found) {
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; row < n_rows; row += (int64_t)gridDim.x * blockDim.x)
        found[row] = memoi_cuda_row_content(bytes + row * row_bytes, row_bytes);
}

MEMOI memo_status memoi_cuda_inspect(void* context, memo_stream stream, const void* bytes,
                                     int64_t row_bytes, int64_t n_rows, memo_row_content* found,
                                     memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    const int64_t n_blocks = (n_rows + 127) / 128;
    cudaLaunchConfig_t config = {};
    if (on.status || n_rows <= 0) return on.status;
    config.gridDim = dim3((unsigned)(n_blocks < 65536 ? n_blocks : 65536), 1, 1);
    config.blockDim = dim3(128, 1, 1);
    config.stream = memo_cuda_stream(stream);
    return MEMOI_CUDA_CALL(
        cudaLaunchKernelEx,
        (&config, memoi_cuda_inspect_kernel, (const unsigned char*)bytes, row_bytes, n_rows, found),
        error);
}
#endif
