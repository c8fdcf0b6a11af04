/* memo_cuda.cuh - memo on a GPU: the CUDA device, pinned memory, row kernels, phantom memory, NCCL.
 *
 * NOT FOR: other accelerators (write the table memo_device, examples/04_custom_device.c), unified
 * memory, or storage that a GPU reads by itself.
 *
 * STEP BY STEP, in the order of calls: memo_cuda_device_create; memo_stream_create; an arena, swap
 * engine or session with this device; kernels on memo_cuda_stream(stream); then
 * memo_cuda_device_destroy.
 *
 * In exactly one .cu file (memo.h's implementation may be there too, or in a C file):
 *
 *     #define MEMO_CUDA_IMPLEMENTATION
 *     #include "memo_cuda.cuh"          // nvcc -arch=native ...; links with the CUDA runtime only
 *
 * All other files may be C, those that call NCCL's ranks (chapter 5) too: the declarations are C.
 * The implementation is one file of CUDA C++ because it has kernels.
 *
 * EXAMPLE: memory, a kernel and a copy on a GPU.  An arena, swap engine or session takes this
 * device as it takes the host device (examples/06_cuda_arena.cu, 19_gpt.cu).
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_CUDA_IMPLEMENTATION
 *     #include "memo_cuda.cuh"
 *
 *     __global__ void add_one(float* x, int n) {
 *         for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1;
 *     }
 *
 *     int main(void) {
 *         memo_cuda_device_desc desc = {};
 *         memo_device* device = NULL;
 *         memo_stream stream = NULL;
 *         void *x = NULL, *copy = NULL;
 *         memo_error error;
 *         memo_status status = memo_cuda_device_create(&desc, &device, &error);
 *         if (!status) status = memo_stream_create(device, "compute", 0, &stream, &error);
 *         if (!status) status = memo_device_alloc(device, 4096, &x, &error);
 *         if (!status) status = memo_host_alloc(device, 4096, &copy, &error);     // pinned
 *         if (!status) status = memo_fill(device, stream, x, 0, 4096, &error);
 *         if (!status) add_one<<<1, 256, 0, memo_cuda_stream(stream)>>>((float*)x, 1024);
 *         if (!status)
 *             status = memo_copy(device, stream, MEMO_COPY_TO_HOST, copy, x, 4096, &error);
 *         if (!status) status = memo_stream_synchronize(device, stream, &error);
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         if (!status) printf("%g\n", ((float*)copy)[1023]);                      // 1
 *         if (stream) memo_stream_destroy(device, stream, NULL);
 *         memo_cuda_device_destroy(device);                        // and what it allocated
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * RULES.  As in memo.h.  Every error of CUDA names the call, CUDA's name of the error and the
 * place: "cudaMemcpyAsync: cudaErrorInvalidValue (invalid argument), memo_cuda.cuh:512".  A failed
 * call removes its own error from cudaGetLastError and leaves any other error there.  Errors that
 * CUDA keeps, such as an illegal address, are returned by every later call.
 *
 * CONTEXT.  Each call works in the primary context of the desc's GPU, and restores the thread's
 * context at the end: another GPU's, a context of the driver, a green context, or none.  No call
 * creates a context on another GPU.
 *
 * GRAPHS.  Nothing enqueued allocates or synchronizes, so a step can be captured, the swap engine's
 * copies included: cudaStreamBeginCapture on the compute stream, a step, cudaStreamEndCapture.
 * CUDA does not capture the legacy default stream.  The engine forks streams by events and joins
 * all before the step ends.  Capture a whole micro-batch with memo_swap_desc.is_timed 0: events
 * inside a graph cannot be read.  Run one step without capture first: CUDA loads a kernel, and
 * cuBLAS allocates, at the first use.  If other threads use CUDA meanwhile, capture with
 * cudaStreamCaptureModeThreadLocal.  After a failed capture, end it and call memo_swap_abandon
 * before the next step.
 *
 * OPTIONS, defined before the implementation:
 *     MEMO_CUDA_NCCL           chapter 5 (nccl.h of NCCL 2.18 or later, -lnccl); define it
 *                              identically in every file that includes memo_cuda.cuh
 *     MEMO_CUDA_NVTX           NVTX ranges for copies and waits (header-only NVTX 3, part of CUDA)
 *     MEMO_MALLOC, MEMO_FREE   replace malloc and free
 *
 * CHAPTERS  1 device | 2 pinned memory | 3 row kernels | 4 phantom memory | 5 ranks over NCCL
 *
 * License: MIT, see LICENSE.  Language: CUDA C++11.  Requires memo.h, CUDA 12 or later, Linux. */
#ifndef MEMO_CUDA_CUH
#define MEMO_CUDA_CUH

#include "memo.h"

#include <cuda_runtime.h>

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_cuda.cuh: memo.h is of another release; use the memo.h of the same release"
#endif
#if defined(MEMO_CUDA_NCCL) && !defined(MEMO_SP_H)
#error "memo_cuda.cuh: MEMO_CUDA_NCCL needs memo_comm; include memo_sp.h first"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/api/device.h"
#include "cuda/api/pinned.h"
#include "cuda/api/row_kernels.h"
#include "cuda/api/phantom.h"
#include "cuda/api/nccl.h"
#ifdef __cplusplus
}
#endif

#endif /* MEMO_CUDA_CUH */

/* ==== implementation ========================================================================== */
/* ROOMS, each with the words to search for.  A room uses public functions, those of memo.h's
 * >>base, and the rooms above it.
 *
 *     >>cuda errors      messages
 *     >>cuda driver      the driver's functions, found once
 *     >>cuda state       the device's struct; the context of a call
 *     >>pinned memory    pages, processors, registration
 *     >>phantom memory   one chunk mapped many times
 *     >>device table     memory, streams, events, copies: a CUDA call each
 *     >>host functions   functions on streams, run by a thread of the device
 *     >>row lanes        what a thread does of a row: groups of numbers in few accesses
 *     >>row kernels      grids
 *     >>inspect          rows of bytes, for checked sessions
 *     >>device life      create, fail, destroy
 *     >>nccl back end    ranks over NCCL: the meeting, the watchdog, time-outs, order */
#if defined(MEMO_CUDA_IMPLEMENTATION) && !defined(MEMO_CUDA_IMPLEMENTATION_DONE)
#define MEMO_CUDA_IMPLEMENTATION_DONE

#include "memo.h" /* its room >>base, if the file did not have it yet */

#include <cuda.h> /* types only: the driver's functions are found at run time */
#include <sched.h>
#include <sys/mman.h>

#ifdef MEMO_CUDA_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include "cuda/errors.h"
#include "cuda/driver.h"
#include "cuda/state.h"
#include "cuda/pinned.h"
#include "cuda/phantom.h"
#include "cuda/device.h"
#include "cuda/host_functions.h"
#include "cuda/row_lanes.h"
#include "cuda/row_kernels.h"
#include "cuda/inspect.h"
#include "cuda/device_life.h"
#ifdef MEMO_CUDA_NCCL
#include <nccl.h>
#include <pthread.h>

#include "cuda/nccl.h"
#endif /* MEMO_CUDA_NCCL */
#endif /* MEMO_CUDA_IMPLEMENTATION */
