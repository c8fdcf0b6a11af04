/* attention_launch.h - launches a kernel of attention, whose threads take elements in turn.  Shared
 * by cudnn_attention.h and exact_attention.h.  Include memo_cuda.cuh first. */
#ifndef ATTENTION_LAUNCH_H
#define ATTENTION_LAUNCH_H

#include "memo.h"

template <typename... Parameters, typename... Arguments>
static inline memo_status attention_launch(cudaStream_t stream, int64_t n_threads,
                                           memo_error* error, void (*kernel)(Parameters...),
                                           Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    const int64_t n_blocks = (n_threads + 255) / 256;
    config.gridDim = dim3((unsigned)(n_blocks < 4224 ? n_blocks : 4224));
    config.blockDim = dim3(256);
    config.stream = stream;
    return memo_cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx",
                           error);
}

#endif
