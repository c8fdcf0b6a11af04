/* warps.h - kernels whose threads, or warps, take items in turn: loops, a launch, sums of a warp, and
 * a head in its registers.  Sums have a fixed order.  Shared by cudnn_attention.h,
 * exact_attention.h and the trainer.  Include memo_cuda.cuh first. */
#ifndef WARPS_H
#define WARPS_H

#include <string.h>

#include "memo_sp.h"

enum {
    WARPS_LANES = 32,
    WARPS_HEAD = 256 /* elements of a head, at most */
};
#define WARPS_LANE ((int)(threadIdx.x % WARPS_LANES))

#define WARPS_EACH_THREAD(i, n)                                                                    \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)
/* All lanes of a warp have the same i. */
#define WARPS_EACH(i, n)                                                                           \
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / WARPS_LANES; i < (n);      \
         i += (int64_t)gridDim.x * blockDim.x / WARPS_LANES)

/* Of n_threads threads, or of as many as a GPU of 132 processors runs at once. */
template <typename... Parameters, typename... Arguments>
static inline memo_status warps_launch(cudaStream_t stream, int64_t n_threads, memo_error* error,
                                       void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    const int64_t n_blocks = (n_threads + 255) / 256;
    if (n_threads <= 0) return MEMO_STATUS_OK;
    config.gridDim = dim3((unsigned)(n_blocks < 4224 ? n_blocks : 4224));
    config.blockDim = dim3(256);
    config.stream = stream;
    return memo_cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx",
                           error);
}

/* The value of another lane.  A shuffle moves 32 bits. */
template <typename Value> __device__ static inline Value warps_other(Value value, int apart) {
    float words[sizeof value / 4];
    memcpy(words, &value, sizeof words);
    for (float& word : words) word = __shfl_xor_sync(0xffffffffu, word, apart, WARPS_LANES);
    memcpy(&value, words, sizeof words);
    return value;
}
/* In a tree, the same for every lane. */
template <typename Value> __device__ static inline Value warps_sum(Value value) {
    for (int apart = WARPS_LANES / 2; apart; apart /= 2) value += warps_other(value, apart);
    return value;
}

/* ---- a head in the registers of a warp ------------------------------------------------------- */

struct warps_head {
    float v[WARPS_HEAD / WARPS_LANES]; /* a lane's elements */
};

/* type: F32, BF16 or, with HAS_F16, F16: without it kernels take fewer registers. */
template <bool HAS_F16 = false>
__device__ static inline warps_head warps_load(const void* x, memo_type type, int64_t at,
                                               int64_t size) {
    warps_head head;
    for (int k = 0; k < WARPS_HEAD / WARPS_LANES; k++) {
        const int64_t e = k * WARPS_LANES + WARPS_LANE;
        head.v[k] = e >= size                ? 0.0f
                    : type == MEMO_TYPE_BF16 ? memo_f32_from_bf16(((const uint16_t*)x)[at + e])
                    : !HAS_F16 || type == MEMO_TYPE_F32
                        ? ((const float*)x)[at + e]
                        : memo_f32_from_f16(((const uint16_t*)x)[at + e]);
    }
    return head;
}

__device__ static inline float warps_dot(const warps_head& a, const warps_head& b) {
    float sum = 0;
    for (int k = 0; k < WARPS_HEAD / WARPS_LANES; k++) sum += a.v[k] * b.v[k];
    return warps_sum(sum);
}

__device__ static inline void warps_add(warps_head* to, float factor, const warps_head& x) {
    for (int k = 0; k < WARPS_HEAD / WARPS_LANES; k++) to->v[k] += factor * x.v[k];
}

/* type: F32 or BF16. */
__device__ static inline void warps_store(void* x, memo_type type, int64_t at, int64_t size,
                                          warps_head head, bool adds) {
    if (adds) warps_add(&head, 1, warps_load(x, type, at, size));
    for (int k = 0; k < WARPS_HEAD / WARPS_LANES; k++) {
        const int64_t e = k * WARPS_LANES + WARPS_LANE;
        if (e < size && type == MEMO_TYPE_F32) ((float*)x)[at + e] = head.v[k];
        if (e < size && type == MEMO_TYPE_BF16)
            ((uint16_t*)x)[at + e] = memo_bf16_from_f32(head.v[k]);
    }
}

#endif
