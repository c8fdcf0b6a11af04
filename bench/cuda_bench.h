/* cuda_bench.h - shared by the benchmarks on a GPU: exit on errors, medians, times of a stream.
 * They print Markdown; bench/device.sh joins it.  Those in C run on the host device unless nvcc
 * compiles them (-x cu). */
#ifndef CUDA_BENCH_H
#define CUDA_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "median.h"

static memo_error error;

static inline void check(memo_status status) {
    if (!status) return;
    fprintf(stderr, "%s: %s\n", memo_status_name(status), error.message);
    exit(1);
}
#define CHECK_CUDA(call) check(memo_cuda_check(call, #call, &error))

static inline double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void* device_memory(const memo_device* device, int64_t size_bytes) {
    void* address = NULL;
    check(memo_device_alloc(device, size_bytes, &address, &error));
    return address;
}
static inline void* host_memory(const memo_device* device, int64_t size_bytes) {
    void* address = NULL;
    check(memo_host_alloc(device, size_bytes, &address, &error));
    return address;
}
static inline memo_stream new_stream(const memo_device* device, const char* name,
                                     int32_t priority) {
    memo_stream stream = NULL;
    check(memo_stream_create(device, name, priority, &stream, &error));
    return stream;
}
static inline memo_event new_event(const memo_device* device) {
    memo_event event = NULL;
    check(memo_event_create(device, &event, &error));
    return event;
}
static inline void record(const memo_device* device, memo_event event, memo_stream stream) {
    check(memo_event_record(device, event, stream, &error));
}
static inline double elapsed_s(const memo_device* device, memo_event begin, memo_event end) {
    double seconds = 0;
    check(memo_event_synchronize(device, end, &error));
    check(memo_event_elapsed(device, begin, end, &seconds, &error));
    return seconds;
}

/* The GPU if nvcc compiles the program, otherwise a host device. */
static inline memo_device* new_device(void) {
    memo_device* device = NULL;
#ifdef __CUDACC__
    memo_cuda_device_desc desc = MEMO_ZERO(memo_cuda_device_desc);
    check(memo_cuda_device_create(&desc, &device, &error));
#else
    memo_host_device_desc desc = MEMO_ZERO(memo_host_device_desc);
    check(memo_host_device_create(&desc, &device, &error));
#endif
    return device;
}
static inline void destroy_device(memo_device* device) {
#ifdef __CUDACC__
    memo_cuda_device_destroy(device);
#else
    memo_host_device_destroy(device);
#endif
}

static inline void write_line(void* user, const char* message) {
    fprintf((FILE*)user, "%s\n", message);
}

#endif
