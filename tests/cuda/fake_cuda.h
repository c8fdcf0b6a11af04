/* fake_cuda.h - a CUDA runtime without a GPU, for these tests.  Device memory is host memory.
 * Streams run everything at once, or as late as possible, or side by side with random delays, in
 * which case races are found (queues.h: FAKE_CUDA_MODE); or into a graph.  Any call can be made to
 * fail.  Kernels compiled by nvcc are counted, not run; kernels compiled by a C++ compiler run in
 * emulated_grid.h; tests run others through fake_enqueue. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda_runtime.h>
#include <functional>

/* The k-th call (from 1) of function from now on returns code, once. */
void fake_fail(const char* function, int k, cudaError_t code);
void fake_forget_failures(void);
/* 1: streams and graphs run operations as late as possible; 0 at first, unless FAKE_CUDA_MODE is
 * late.  Strict streams stay so. */
void fake_set_late(int late);
void fake_set_last_error(cudaError_t code); /* of cudaGetLastError and cudaPeekAtLastError */
void fake_break(cudaError_t code); /* from now on every call returns it; cudaSuccess: no more */
cudaError_t fake_broken(void);
void fake_abandon(void); /* memory and pages that were not given back, as at the end of a process */
int fake_n_registered(void);
int fake_n_host_allocs(void); /* of 2 MiB or more */
int fake_n_objects(void);     /* allocations, registrations, streams, events, pages */
void fake_set_max_pitch(int n_bytes);
/* Registrations of so many bytes and more are refused; 2^39 until then, as drivers 580 do. */
void fake_set_register_limit(size_t n_bytes);
void fake_set_same_pointers(int same); /* 0: registered memory has another address on the device */
/* Streams that are created from now on share n hardware queues in turn: an operation waits for all
 * earlier ones of its queue.  0: each stream has its own, as at first. */
void fake_set_hardware_queues(int n);
void fake_set_n_processors(int n);     /* 132 until then */
void fake_set_wait_value(int has);     /* 0: the driver lacks cuStreamWaitValue32's support */
int fake_are_pages_exportable(void);   /* the latest: as file descriptors and to other hardware */
void fake_set_virtual_memory(int has); /* 0: the GPU lacks it */
/* 1: any memory of the host counts as the device's, as on GPUs that use the host's page tables. */
void fake_set_reaches_host(int has);
int fake_device_of(cudaStream_t stream);
/* Device memory that a library takes at its first use and keeps, $FAKE_CUDA_LIBRARY_MIB; false:
 * there is not as much. */
bool fake_load(const char* library);
void fake_set_library_bytes(size_t n_bytes); /* and none is loaded */
int fake_is_on_device(const void* address, size_t n_bytes);
int fake_is_pinned(const void* address, size_t n_bytes);
/* Contexts: whether a device's primary one was made; the calling thread's. */
int fake_has_context(int device);
void fake_forget_contexts(void);
void fake_set_foreign_context(int is_foreign); /* one made by the driver; 0: none */
int fake_is_foreign_context(void);
int fake_is_without_context(void);
unsigned fake_grid(void); /* blocks of the latest kernel */
/* Stands for a kernel.  If stream is captured, the operation runs when the graph is launched. */
void fake_enqueue(cudaStream_t stream, std::function<void()> operation);
/* One that is called again and again until it returns true. */
void fake_enqueue_until(cudaStream_t stream, std::function<bool()> operation);
void fake_advance(void); /* streams that are not late go on as far as they can */

#endif
