/* instead.cpp - tests that use memo's host device run on memo_cuda.cuh instead, over fake_cuda.cpp.
 * In a program linked with -Wl,--wrap=memo_host_device_{create,destroy,launch,sleep,get_stats} and
 * this file, a CUDA device is created in the place of a host device.  Functions that it launches
 * stand for kernels; the row kernels run on the emulated grid. */
#define MEMO_TEST_OWN_MAIN
#include "emulated_grid.h"

#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>

extern "C" {
memo_status __real_memo_host_device_create(const memo_host_device_desc*, memo_device**,
                                           memo_error*);
void __real_memo_host_device_destroy(memo_device*);
memo_status __real_memo_host_device_launch(memo_device*, memo_stream, memo_host_function,
                                           const void*, int64_t, memo_error*);
memo_status __real_memo_host_device_sleep(memo_device*, memo_stream, double, memo_error*);
memo_host_device_stats __real_memo_host_device_get_stats(const memo_device*);

static std::atomic<long> n_devices, n_functions;
static void report(void) {
    fprintf(stderr, "# instead: %ld CUDA devices, %ld functions launched, %ld row kernels\n",
            n_devices.load(), n_functions.load(), (long)emulated_n_launches);
}
static const int reports = atexit(report);
static bool is_cuda(const memo_device* device) {
    return device && device->name && !strncmp(device->name, "cuda", 4);
}

/* A host device ends its streams; CUDA's are the caller's. */
static std::mutex mutex;
static std::map<void*, std::set<memo_stream>> streams_of;
static memo_status create_stream(void* context, const char* name, int32_t priority,
                                 memo_stream* stream, memo_error* error) {
    const memo_status status = memoi_cuda_stream_create(context, name, priority, stream, error);
    std::lock_guard<std::mutex> lock(mutex);
    if (!status) streams_of[context].insert(*stream);
    return status;
}
static memo_status destroy_stream(void* context, memo_stream stream, memo_error* error) {
    std::lock_guard<std::mutex> lock(mutex);
    streams_of[context].erase(stream);
    return memoi_cuda_stream_destroy(context, stream, error);
}
static void destroy_device(memo_device* device) {
    std::set<memo_stream> left;
    {
        std::lock_guard<std::mutex> lock(mutex);
        left.swap(streams_of[device->context]);
        streams_of.erase(device->context);
    }
    for (memo_stream stream : left) IGNORE(memo_stream_destroy(device, stream, NULL));
    memo_cuda_device_destroy(device);
}

/* Wrong descs stay the host device's, whose message the tests know. */
memo_status __wrap_memo_host_device_create(const memo_host_device_desc* desc, memo_device** device,
                                           memo_error* error) {
    if (!desc || desc->device_memory_bytes < 0 || desc->host_memory_bytes < 0)
        return __real_memo_host_device_create(desc, device, error);
    memo_cuda_device_desc cuda = {};
    cuda.device_memory_bytes = desc->device_memory_bytes;
    cuda.host_memory_bytes = desc->host_memory_bytes;
    cuda.host_limit = MEMO_CUDA_HOST_IGNORE;
    fake_set_reaches_host(1); /* tests compute in arrays of their own */
    n_devices++;
    const memo_status status = memo_cuda_device_create(&cuda, device, error);
    if (status) return status;
    (*device)->stream_create = create_stream;
    (*device)->stream_destroy = destroy_stream;
    return status;
}
void __wrap_memo_host_device_destroy(memo_device* device) {
    if (is_cuda(device))
        destroy_device(device);
    else
        __real_memo_host_device_destroy(device);
}
memo_status __wrap_memo_host_device_launch(memo_device* device, memo_stream stream,
                                           memo_host_function function, const void* arguments,
                                           int64_t n_bytes, memo_error* error) {
    if (!is_cuda(device))
        return __real_memo_host_device_launch(device, stream, function, arguments, n_bytes, error);
    const std::string taken((const char*)arguments, (size_t)n_bytes);
    const memo_status status = memo_device_status(device, error);
    if (status) return status;
    n_functions++;
    fake_enqueue(memo_cuda_stream(stream), [=] {
        alignas(64) char mine[MEMO_HOST_ARGS_BYTES];
        memo_error failure = {};
        memcpy(mine, taken.data(), taken.size());
        failure.status = function(mine, &failure);
        if (failure.status) memo_cuda_device_fail(device, &failure);
    });
    return MEMO_STATUS_OK;
}
memo_status __wrap_memo_host_device_sleep(memo_device* device, memo_stream stream, double s,
                                          memo_error* error) {
    if (!is_cuda(device)) return __real_memo_host_device_sleep(device, stream, s, error);
    fake_enqueue(memo_cuda_stream(stream), [=] {
        const struct timespec time = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
        nanosleep(&time, NULL);
    });
    return MEMO_STATUS_OK;
}
memo_host_device_stats __wrap_memo_host_device_get_stats(const memo_device* device) {
    if (!is_cuda(device)) return __real_memo_host_device_get_stats(device);
    const memo_cuda_device_stats cuda = memo_cuda_device_get_stats(device);
    memo_host_device_stats host = {};
    host.device_bytes = cuda.device_bytes;
    host.device_peak_bytes = cuda.device_peak_bytes;
    host.host_bytes = cuda.host_bytes;
    host.host_peak_bytes = cuda.host_peak_bytes;
    return host;
}
}
