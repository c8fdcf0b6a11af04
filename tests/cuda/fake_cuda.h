/* fake_cuda.h - a CUDA runtime without a GPU, for the tests here: device memory is host memory, streams do everything at
 * once or into a graph, and any call can be told to fail.  Kernels that nvcc compiled are counted, not run; those of a C++
 * compiler run in emulated_grid.h; tests run others through fake_enqueue. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda_runtime.h>
#include <functional>

/* The k-th call (from 1) of function from now on returns code, once. */
void fake_fail(const char* function, int k, cudaError_t code);
void fake_forget_failures(void);
int fake_n_registered(void);
int fake_n_host_allocs(void);
int fake_n_objects(void); /* allocations, registrations, streams, events, pages, spans */
void fake_set_max_pitch(int n_bytes);
void fake_set_n_processors(int n); /* 132 until then */
unsigned fake_grid(void);          /* blocks of the latest kernel */
/* What a kernel would do; when the graph is launched, where stream is captured. */
void fake_enqueue(cudaStream_t stream, std::function<void()> operation);

#endif
