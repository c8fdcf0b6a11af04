/* device.h - the device of a rank and the kernels on it: a host device, or with -DTRAIN_CUDA
 * a GPU.  The threads of the host, and OpenBLAS.
 *
 * On the host a rank computes on the device that its messages use.  On a GPU it computes on a
 * device of its own, whose capacity is the budget. */
#ifndef TRAIN_DEVICE_H
#define TRAIN_DEVICE_H

#include <pthread.h>

#include "memo_sp.h"
#include "gpt/run/options.h"
#include "thread_ranks.h"

#include "gpt/kernels/cudnn.h"
#ifdef TRAIN_CUDA
#include "memo_cuda.cuh"
#else
#include "gpt/kernels/host.h"
#endif

typedef struct train_device {
    memo_device* device;
    gpt_kernels kernels;
#ifdef TRAIN_CUDA
    gpt_cuda_kernels* cuda;
#ifdef TRAIN_CUDNN
    gpt_cudnn* cudnn;
#endif
#else
    gpt_host_kernels host;
#endif
    gpt_cudnn_desc planned; /* of a dry run with --cluster */
} train_device;

#ifdef TRAIN_CUDA
extern int32_t train_gpu; /* CUDA's number of the GPU of this process */

/* The device of the current run.  A lost peer fails it, from a thread of the communicator. */
extern memo_device* train_running;
extern pthread_mutex_t train_running_mutex;

/* What an arena could have beside everything that the process holds now: free memory, and that of
 * the device. */
memo_status train_device_room(const train_device* d, int64_t* room, memo_error* error);
#endif

/* Kernels without a device, to plan, with cuDNN's attention if the program has it. */
memo_status train_device_plan(train_device* d, const train_options* o, memo_error* error);

/* Capacities; 0: what the machine has.  On the host they are those of the rank's device. */
memo_status train_device_open(train_device* d, const train_options* o, const thread_rank* rank,
                              int64_t device_memory, int64_t host_memory, memo_error* error);
void train_device_close(train_device* d);

/* A device is about to run. */
void train_device_enter(const train_device* d);
void train_device_peaks(const train_device* d, int64_t* device_bytes, int64_t* host_bytes);

/* Refuses what the device cannot do. */
memo_status train_device_check(train_options* o, memo_error* error);

/* Returns whether every rank of this machine could have these bytes besides.  Libraries may take
 * some for each policy. */
int train_device_has_room(const train_options* o, int64_t device_bytes, int64_t host_bytes);
void train_device_print(const train_options* o);

/* Call before the first product; gpt_helpers_end ends it.  Several threads call OpenBLAS, and each
 * computes alone. */
memo_status compute_begin(int64_t n_ranks, memo_error* error);

/* Planning takes a quarter of a MiB of the main thread's stack; other threads bring their own. */
memo_status compute_check_stack(memo_error* error);

/* Adds the limit to a message about memory: `ulimit -v` is easily forgotten. */
void compute_explain(memo_error* error);

#endif
