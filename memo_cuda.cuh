/* memo_cuda.cuh - the device table for CUDA.
 *
 * In this version the header declares nothing yet; MEMO_CUDA_AVAILABLE says so to the preprocessor.
 * Until then a CUDA trainer can fill a memo_device of its own: each entry of the table is one call of
 * the CUDA runtime (chapter 4 of memo.h, examples/04_custom_device.c).  The chapters will be:
 *
 *   device          memo_device over the CUDA runtime: streams and events are CUDA's own, so a step
 *                   can be captured in a graph
 *   host memory     pinned, in one arena
 *   row kernels     gather, scatter, merge, add, row sums, casts; each a loop over an inline function
 *                   that also compiles for the host
 *   phantom memory  a dry run of a length that does not fit
 *
 * USE, once there: in exactly one .cu file, after memo.h's implementation,
 *
 *     #define MEMO_CUDA_IMPLEMENTATION
 *     #include "memo_cuda.cuh"
 *
 * Licence: MIT, see LICENSE.  Language: CUDA C++11.  Dependencies: memo.h, the CUDA runtime. */
#ifndef MEMO_CUDA_CUH
#define MEMO_CUDA_CUH

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 1
#error "memo_cuda.cuh: this is the one of memo 0.1; take memo.h from the same release"
#endif

/* 0: no chapter is there; 1: all are. */
#define MEMO_CUDA_AVAILABLE 0

#endif /* MEMO_CUDA_CUH */
