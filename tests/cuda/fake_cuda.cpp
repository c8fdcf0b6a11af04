/* fake_cuda.cpp - see fake_cuda.h.  It refuses everything that CUDA refuses or leaves undefined:
 *   copies     that cross the border of two registered ranges, overlap, exceed their memory, have
 *              the wrong kind, or use memory that is not pinned; pitches above the limit
 *   events     elapsed times of events that were never recorded, are not done or were captured;
 *              records on a stream of another device
 *   captures   that wait for operations outside, allocate, synchronize, query, or leave a stream
 *              unjoined; later use of an event recorded in a capture
 *   pages      sizes and addresses that are not multiples of the granularity; mappings outside a
 *              reservation, over each other or larger than their pages; access to unmapped memory;
 *              unmapping or freeing in other pieces, in the wrong order, or twice
 *   pinning    registered twice, unregistered after munmap or while a copy uses it; destroyed
 *              handles; calls from a host function
 * Modules of kernels and libraries take device memory when they are first used.  The last MiB that is
 * free is given to nobody.
 * "Not ready" stays for cudaGetLastError, memory is aligned to exactly 256 bytes and begins as 0xff.
 * Calls of several threads take turns.
 *
 * It is more lenient than CUDA in this: what stands for kernels never overlaps (it overlaps copies),
 * the operations of a graph do not overlap, the legacy stream waits for no other, and there is one
 * capture at a time. */
#include "fake_cuda.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "queues.h"

enum { N_DEVICES = 4 };
static size_t mebibytes_of(const char* variable, size_t otherwise) {
    const char* value = getenv(variable);
    return (value ? (size_t)atoll(value) : otherwise) << 20;
}
static const size_t DEVICE_BYTES = mebibytes_of("FAKE_CUDA_DEVICE_MIB", 8 << 10),
                    GRANULE = (size_t)2 << 20;
static size_t library_bytes = mebibytes_of("FAKE_CUDA_LIBRARY_MIB", 0);

/* A thread's context: none, the primary one of a device, or one that a caller made by the driver.
 * The runtime makes and takes the primary one of device 0 if a thread has none; the driver does
 * not. */
struct fake_context {
    int device, n_retained;
    bool is_made;
};
static fake_context primary[N_DEVICES] = {{0, 0, false},
                                          {1, 0, false},
                                          {2, 0, false},
                                          {3, 0, false}},
                    foreign = {0, 0, true};
static thread_local fake_context* current;
static bool reaches[N_DEVICES][N_DEVICES];
static int current_device(void) { return current ? current->device : 0; }
static void need_context(void) {
    if (!current) (current = &primary[0])->is_made = true;
}
int fake_has_context(int device) { return primary[device].is_made; }
void fake_forget_contexts(void) {
    for (auto& context : primary) context.is_made = false;
    current = NULL;
}
void fake_set_foreign_context(int is_foreign) { current = is_foreign ? &foreign : NULL; }
int fake_is_foreign_context(void) { return current == &foreign; }
int fake_is_without_context(void) { return !current; }

/* --- failures on demand --- */

struct failure {
    std::string function;
    int k;
    cudaError_t code;
};
static std::vector<failure> failures;
static thread_local cudaError_t last_error;

void fake_fail(const char* function, int k, cudaError_t code) {
    failures.push_back({function, k, code});
}
void fake_forget_failures(void) { failures.clear(); }

static thread_local bool is_in_host_function;
void fake_break(cudaError_t code) { broken = code; }
cudaError_t fake_broken(void) { return broken; }

static cudaError_t due(const char* function) {
    if (broken) return last_error = broken.load();
    if (is_in_host_function) return last_error = cudaErrorNotPermitted;
    for (auto& failure : failures)
        if (failure.k && failure.function == function && --failure.k == 0)
            return last_error = failure.code;
    return cudaSuccess;
}
#define TAKE_TURNS() std::lock_guard<std::recursive_mutex> turn_(everything)
/* CALL_...: of a function that needs no context. */
#define CALL_FAIL_IF_DUE(function)                                                                 \
    TAKE_TURNS();                                                                                  \
    do {                                                                                           \
        cudaError_t code_ = due(function);                                                         \
        if (code_ != cudaSuccess) return code_;                                                    \
    } while (0)
#define FAIL_IF_DUE(function)                                                                      \
    need_context();                                                                                \
    CALL_FAIL_IF_DUE(function)
/* The driver leaves nothing for cudaGetLastError. */
static bool is_driver_due(const char* function) {
    cudaError_t before = last_error;
    bool is_due = due(function) != cudaSuccess;
    last_error = before;
    return is_due;
}
#define DRIVER_CALL_FAIL_IF_DUE(function)                                                          \
    TAKE_TURNS();                                                                                  \
    if (is_driver_due(function)) return CUDA_ERROR_UNKNOWN
#define DRIVER_FAIL_IF_DUE(function)                                                               \
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;                                               \
    DRIVER_CALL_FAIL_IF_DUE(function)

static cudaError_t refuse(cudaError_t code) { return last_error = code; }
/* Behind a wait, which may have met an error. */
static cudaError_t result(void) { return broken ? refuse(broken) : cudaSuccess; }
void fake_set_last_error(cudaError_t code) { last_error = code; }

/* --- memory --- */

/* Ranges of bytes by their begin. */
struct ranges {
    std::map<char*, size_t> all;
    void add(void* begin, size_t n_bytes) { all[(char*)begin] = n_bytes; }
    /* Its bytes; 0: there is none. */
    size_t take(void* begin) {
        const auto found = all.find((char*)begin);
        if (found == all.end()) return 0;
        const size_t n_bytes = found->second;
        all.erase(found);
        return n_bytes;
    }
    bool contains(const void* begin, size_t n_bytes) const {
        for (const auto& each : all)
            if ((char*)begin >= each.first && (char*)begin + n_bytes <= each.first + each.second)
                return true;
        return false;
    }
    bool meets(const void* begin, size_t n_bytes) const {
        for (const auto& each : all)
            if ((char*)begin < each.first + each.second && each.first < (char*)begin + n_bytes)
                return true;
        return false;
    }
};
static ranges device_memory, host_memory, registered, reserved, mapped;
static size_t device_bytes;
static bool has_wait_value = true;
void fake_set_wait_value(int has) { has_wait_value = has; }
static std::set<std::string> loaded;
static bool has_room(size_t n_bytes) {
    return device_bytes + n_bytes + ((size_t)1 << 20) <= DEVICE_BYTES;
}
bool fake_load(const char* library) {
    TAKE_TURNS();
    if (!loaded.insert(library).second) return true;
    if (!has_room(library_bytes)) return false;
    device_bytes += library_bytes;
    return true;
}
void fake_set_library_bytes(size_t n_bytes) {
    library_bytes = n_bytes;
    loaded.clear();
}
static CUmemAllocationProp latest_pages;
static int has_virtual_memory = 1;
void fake_set_virtual_memory(int has) { has_virtual_memory = has; }
int fake_are_pages_exportable(void) {
    return latest_pages.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
           latest_pages.allocFlags.gpuDirectRDMACapable;
}
/* Streams, events, pages and graphs. */
static int n_objects, max_pitch = 2147483647, n_processors = 132;
static unsigned grid;

int fake_n_registered(void) { return (int)registered.all.size(); }
int fake_n_host_allocs(void) {
    int n = 0;
    for (const auto& each : host_memory.all) n += each.second >= GRANULE;
    return n;
}
int fake_n_objects(void) {
    int n = n_objects;
    for (const ranges* each : {&device_memory, &host_memory, &registered, &reserved, &mapped})
        n += (int)each->all.size();
    return n;
}
static size_t register_limit = (size_t)1 << 39;
void fake_set_register_limit(size_t n_bytes) { register_limit = n_bytes; }
static int has_same_pointers = 1;
void fake_set_same_pointers(int same) { has_same_pointers = same; }
void fake_set_max_pitch(int n_bytes) { max_pitch = n_bytes; }
void fake_set_n_processors(int n) { n_processors = n; }
unsigned fake_grid(void) { return grid; }

static std::map<char*, size_t> accessible; /* mapped ranges with access */

/* CUDA takes memory that is registered as a whole. */
static bool is_pinned(const char* begin, size_t n_bytes) {
    return registered.contains(begin, n_bytes) || host_memory.contains(begin, n_bytes);
}
static bool reaches_host;
void fake_set_reaches_host(int has) { reaches_host = has; }
/* Memory of the host that CUDA does not know. */
static bool is_unknown(const void* begin, size_t n_bytes) {
    for (const ranges* each : {&registered, &host_memory, &device_memory, &reserved})
        if (each->meets(begin, n_bytes)) return false;
    return true;
}
static bool is_pageable(const void* begin, size_t n_bytes) {
    return !reaches_host && is_unknown(begin, n_bytes);
}
static bool is_on_device(const char* begin, size_t n_bytes) {
    const char* end = begin + n_bytes;
    if (device_memory.contains(begin, n_bytes)) return true;
    if (reaches_host && is_unknown(begin, n_bytes)) return true;
    while (begin < end) { /* from mapping to mapping */
        auto next = accessible.upper_bound((char*)begin);
        if (next == accessible.begin()) return false;
        --next;
        if (begin >= next->first + next->second) return false;
        begin = next->first + next->second;
    }
    return true;
}
int fake_is_on_device(const void* address, size_t n_bytes) {
    TAKE_TURNS();
    return is_on_device((const char*)address, n_bytes);
}
int fake_is_pinned(const void* address, size_t n_bytes) {
    TAKE_TURNS();
    return is_pinned((const char*)address, n_bytes);
}
/* n_to and n_from: bytes from the first to the end of the last row. */
static bool is_copyable(const void* to, size_t n_to, const void* from, size_t n_from,
                        cudaMemcpyKind kind) {
    const char *t = (const char*)to, *f = (const char*)from;
    const auto is_on_host = [](const char* begin, size_t n_bytes) {
        return is_pinned(begin, n_bytes) || (reaches_host && is_unknown(begin, n_bytes));
    };
    if (t < f + n_from && f < t + n_to) return false;
    switch (kind) {
    case cudaMemcpyDeviceToHost: return is_on_host(t, n_to) && is_on_device(f, n_from);
    case cudaMemcpyHostToDevice: return is_on_device(t, n_to) && is_on_host(f, n_from);
    case cudaMemcpyDeviceToDevice: return is_on_device(t, n_to) && is_on_device(f, n_from);
    case cudaMemcpyDefault:
        return (is_on_device(t, n_to) || is_pinned(t, n_to)) &&
               (is_on_device(f, n_from) || is_pinned(f, n_from));
    default: return false;
    }
}

/* --- capture ---
 *
 * A stream in capture adds its operations to the graph instead of running them.  A stream that
 * waits for an event of such a stream captures too, and must be joined: at the end, the first
 * stream must have waited for all operations of the others. */

enum { MOST_STREAMS = 512 };
typedef std::vector<int64_t> seen; /* of each stream, how many operations come before */

struct fake_stream {
    int priority, number, device;
    bool is_capturing;
    seen before;
    std::shared_ptr<queue> work;
};
struct fake_event {
    bool is_timed;
    std::shared_ptr<record> latest; /* NULL: none, or in a capture */
    int capture, device;            /* capture: number of the one that recorded it; 0: none */
    seen before;
};
struct fake_graph {
    struct operation {
        size_t stream;
        seen before;               /* itself counts */
        std::function<bool()> run; /* false: must be run again */
    };
    std::vector<operation> all;
    size_t origin;
};

static fake_stream* streams[MOST_STREAMS];
static std::shared_ptr<queue> make_queue(void) {
    if (stream_mode == STRICT) return std::make_shared<strict_queue>();
    return std::make_shared<turns_queue>();
}
static std::vector<std::shared_ptr<queue>> hardware;
void fake_set_hardware_queues(int n) {
    hardware.clear();
    for (int k = 0; k < n; k++) hardware.push_back(make_queue());
}
static const int has_hardware_queues =
    (fake_set_hardware_queues((int)strict_setting("STRICT_QUEUES", 0)), 1);
static const std::shared_ptr<queue> default_work = make_queue();
/* Of destroyed streams: CUDA does not wait for them, and what is in them runs. */
static std::vector<std::shared_ptr<queue>> left_queues;
static std::set<fake_event*> events;
static fake_graph capture;
static fake_stream* capture_origin; /* NULL: no capture goes on */
static int n_captures;
static bool is_capture_spoiled;
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* NULL is CUDA's own stream. */
static bool is_stream(cudaStream_t stream) {
    for (fake_stream* each : streams)
        if (each && (cudaStream_t)each == stream) return true;
    return !stream;
}
static bool is_event(cudaEvent_t event) { return events.count((fake_event*)event) > 0; }
static bool is_capturing(cudaStream_t stream) {
    return stream && ((fake_stream*)stream)->is_capturing;
}
int fake_device_of(cudaStream_t stream) { return ((fake_stream*)stream)->device; }

static cudaError_t spoil(cudaError_t code) {
    is_capture_spoiled = true;
    return refuse(code);
}
/* What is unsafe while a capture goes on, in a thread that is not relaxed about it. */
#define REFUSE_IF_CAPTURING()                                                                      \
    if (capture_origin && thread_mode != cudaStreamCaptureModeRelaxed)                             \
    return spoil(cudaErrorStreamCaptureUnsupported)
#define DRIVER_REFUSE_IF_CAPTURING()                                                               \
    if (capture_origin && thread_mode != cudaStreamCaptureModeRelaxed) {                           \
        (void)spoil(cudaErrorStreamCaptureUnsupported);                                            \
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                                              \
    }
/* After the first mistake a capture takes nothing more. */
#define REFUSE_IF_SPOILT(stream)                                                                   \
    if (is_capturing(stream) && is_capture_spoiled) return refuse(cudaErrorStreamCaptureInvalidated)
#define NEED_STREAM(stream)                                                                        \
    if (!is_stream(stream)) return refuse(cudaErrorInvalidResourceHandle)
#define NEED_EVENT(event)                                                                          \
    if (!is_event(event)) return refuse(cudaErrorInvalidResourceHandle)

static std::shared_ptr<queue> work_of(cudaStream_t stream) {
    return stream ? ((fake_stream*)stream)->work : default_work;
}

static std::vector<std::shared_ptr<queue>> all_queues(void) {
    std::vector<std::shared_ptr<queue>> all = left_queues;
    all.push_back(default_work);
    for (fake_stream* stream : streams)
        if (stream) all.push_back(stream->work);
    return all;
}
void fake_advance(void) {
    TAKE_TURNS();
    if (stream_mode != AT_ONCE || !turns_queue::n_waiting) return;
    for (const auto& work : all_queues()) (void)work->advance(work->n_pushed());
}

/* The first n items of work are done.  The other threads have turns in between. */
static void finish(const std::shared_ptr<queue>& work, size_t n) {
    for (int n_looks = 0; !work->advance(n); n_looks++) {
        everything.unlock();
        work->pause(n, n_looks);
        everything.lock();
        fake_advance();
    }
    for (const auto& each : all_queues()) each->tell();
}
static void finish_all(void) {
    for (const auto& work : all_queues()) finish(work, work->n_pushed());
    left_queues.erase(
        std::remove_if(left_queues.begin(), left_queues.end(),
                       [](const auto& work) { return work->advance(work->n_pushed()); }),
        left_queues.end());
}
void fake_set_late(int late) {
    TAKE_TURNS();
    finish_all();
    if (stream_mode != STRICT) stream_mode = late ? LATE : AT_ONCE;
}

static void push(cudaStream_t stream, std::function<bool()> item) {
    work_of(stream)->push(item);
    fake_advance();
}

/* In the stream's queue, or when the graph is launched, until it returns true. */
static cudaError_t enqueue_until(cudaStream_t stream, std::function<bool()> operation) {
    NEED_STREAM(stream);
    REFUSE_IF_SPOILT(stream);
    if (is_capturing(stream)) {
        fake_stream* s = (fake_stream*)stream;
        s->before[(size_t)s->number]++;
        capture.all.push_back({(size_t)s->number, s->before, operation});
    } else {
        push(stream, operation);
    }
    return cudaSuccess;
}
static cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation) {
    return enqueue_until(stream, [=] { return operation(), true; });
}

/* What stands for kernels takes turns: the emulated grid runs one. */
static std::recursive_mutex one_kernel;
void fake_enqueue_until(cudaStream_t stream, std::function<bool()> operation) {
    TAKE_TURNS();
    (void)enqueue_until(stream, [=] {
        std::lock_guard<std::recursive_mutex> lock(one_kernel);
        return operation();
    });
}
void fake_enqueue(cudaStream_t stream, std::function<void()> operation) {
    fake_enqueue_until(stream, [=] { return operation(), true; });
}

/* As CUDA: large allocations take whole granules of 2 MiB, and small ones are aligned to 256
 * bytes. */
static size_t taken_bytes(size_t n_bytes) {
    return n_bytes < GRANULE / 2 ? n_bytes : (n_bytes + GRANULE - 1) / GRANULE * GRANULE;
}
static char* take_memory(size_t n_bytes) {
    void* memory;
    if (n_bytes >= GRANULE / 2)
        return posix_memalign(&memory, GRANULE, n_bytes) ? NULL : (char*)memory;
    return posix_memalign(&memory, 512, n_bytes + 256) ? NULL : (char*)memory + 256;
}
static void give_back_memory(char* memory) {
    free((uintptr_t)memory % 512 ? memory - 256 : memory);
}

void fake_abandon(void) {
    for (ranges* memory : {&device_memory, &host_memory})
        for (const auto& each : memory->all) give_back_memory(each.first);
    for (ranges* memory : {&device_memory, &host_memory, &registered, &reserved, &mapped})
        memory->all.clear();
    accessible.clear();
    n_objects = 0;
    device_bytes = 0;
}

extern "C" {

/* --- errors and device --- */

cudaError_t cudaGetLastError(void) {
    cudaError_t code = last_error;
    last_error = broken; /* which stays */
    return code;
}
cudaError_t cudaPeekAtLastError(void) {
    CALL_FAIL_IF_DUE("cudaPeekAtLastError");
    return last_error;
}
const char* cudaGetErrorName(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    default: return "cudaErrorUnknown";
    }
}
const char* cudaGetErrorString(cudaError_t) { return "as told"; }
cudaError_t cudaGetDeviceCount(int* n) {
    CALL_FAIL_IF_DUE("cudaGetDeviceCount");
    *n = N_DEVICES;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
    CALL_FAIL_IF_DUE("cudaGetDevice");
    *ordinal = current_device();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
    CALL_FAIL_IF_DUE("cudaSetDevice");
    if (ordinal < 0 || ordinal >= N_DEVICES) return refuse(cudaErrorInvalidDevice);
    (current = &primary[ordinal])->is_made = true;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    FAIL_IF_DUE("cudaDeviceSynchronize");
    if (capture_origin) return spoil(cudaErrorStreamCaptureUnsupported);
    finish_all();
    return result();
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    CALL_FAIL_IF_DUE("cudaDeviceGetAttribute");
    switch (attribute) {
    case cudaDevAttrMaxPitch: *value = max_pitch; break;
    case cudaDevAttrCanUseHostPointerForRegisteredMem: *value = has_same_pointers; break;
    default: *value = n_processors; break;
    }
    return cudaSuccess;
}
/* The last GPU is on another bus. */
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
    CALL_FAIL_IF_DUE("cudaDeviceCanAccessPeer");
    *can = device != other && device != N_DEVICES - 1 && other != N_DEVICES - 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
    CALL_FAIL_IF_DUE("cudaDeviceEnablePeerAccess");
    if (reaches[current_device()][other]) return refuse(cudaErrorPeerAccessAlreadyEnabled);
    reaches[current_device()][other] = true;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int, int) {
    CALL_FAIL_IF_DUE("cudaDeviceGetPCIBusId");
    strcpy(bus, "0000:3B:00.0");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    FAIL_IF_DUE("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    CALL_FAIL_IF_DUE("cudaThreadExchangeStreamCaptureMode");
    cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

/* --- memory --- */

cudaError_t cudaMalloc(void** address, size_t n_bytes) {
    FAIL_IF_DUE("cudaMalloc");
    REFUSE_IF_CAPTURING();
    if (!has_room(taken_bytes(n_bytes)) || !(*address = take_memory(n_bytes)))
        return refuse(cudaErrorMemoryAllocation);
    memset(*address, 0xff, n_bytes); /* CUDA does not clear it */
    device_bytes += taken_bytes(n_bytes);
    device_memory.add(*address, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** address, size_t n_bytes, unsigned) {
    return cudaMalloc(address, n_bytes);
}
cudaError_t cudaFree(void* address) {
    FAIL_IF_DUE("cudaFree");
    REFUSE_IF_CAPTURING();
    if (!address) return cudaSuccess;
    const size_t n_bytes = device_memory.take(address);
    if (!n_bytes) return refuse(cudaErrorInvalidValue);
    finish_all();
    device_bytes -= taken_bytes(n_bytes);
    give_back_memory((char*)address);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    FAIL_IF_DUE("cudaMemGetInfo");
    *free_bytes = DEVICE_BYTES - device_bytes;
    *total_bytes = DEVICE_BYTES;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t n_bytes, unsigned) {
    FAIL_IF_DUE("cudaHostAlloc");
    REFUSE_IF_CAPTURING();
    if (!(*address = take_memory(n_bytes))) return refuse(cudaErrorMemoryAllocation);
    memset(*address, 0xff, std::min(n_bytes, GRANULE)); /* all of it would take seconds */
    host_memory.add(*address, n_bytes);
    return cudaSuccess;
}
/* Is the whole range memory? */
static bool is_mapped(void* address, size_t n_bytes) {
    const size_t page = 4096, begin = (uintptr_t)address / page * page;
    const size_t n = ((uintptr_t)address + n_bytes - begin + page - 1) / page;
    std::vector<unsigned char> resident(n);
    return mincore((void*)begin, n * page, resident.data()) == 0;
}
cudaError_t cudaHostRegister(void* address, size_t n_bytes, unsigned flags) {
    FAIL_IF_DUE("cudaHostRegister");
    REFUSE_IF_CAPTURING();
    if (n_bytes >= register_limit) return refuse(cudaErrorMemoryAllocation);
    if (!address || !n_bytes || flags != (cudaHostRegisterPortable | cudaHostRegisterMapped) ||
        !is_mapped(address, n_bytes))
        return refuse(cudaErrorInvalidValue);
    if (registered.meets(address, n_bytes)) return refuse(cudaErrorHostMemoryAlreadyRegistered);
    registered.add(address, n_bytes);
    return cudaSuccess;
}
/* Memory of copies that are not done; those of graphs do not count. */
static std::multiset<std::pair<const char*, size_t>>& in_flight =
    *new std::multiset<std::pair<const char*, size_t>>(); /* threads outlive the program */
static cudaError_t enqueue_copy(cudaStream_t stream, const void* to, size_t n_to, const void* from,
                                size_t n_from, std::function<void()> copy) {
    const std::pair<const char*, size_t> ends[2] = {{(const char*)to, n_to},
                                                    {(const char*)from, n_from}};
    NEED_STREAM(stream);
    if (is_capturing(stream)) return enqueue(stream, copy);
    for (const auto& each : ends) in_flight.insert(each);
    return enqueue(stream, [=] {
        copy();
        TAKE_TURNS();
        for (const auto& each : ends) in_flight.erase(in_flight.find(each));
    });
}
static void abort_if_in_flight(const void* address, size_t n_bytes, const char* what) {
    for (const auto& each : in_flight)
        if (each.first < (char*)address + n_bytes && (char*)address < each.first + each.second) {
            printf("# fake CUDA: memory is %s while a copy uses it\n", what);
            fflush(stdout);
            abort();
        }
}
/* CUDA does not promise to wait for what uses it. */
cudaError_t cudaFreeHost(void* address) {
    FAIL_IF_DUE("cudaFreeHost");
    REFUSE_IF_CAPTURING();
    const size_t n_bytes = host_memory.take(address);
    if (!n_bytes) return refuse(cudaErrorInvalidValue);
    abort_if_in_flight(address, n_bytes, "freed");
    give_back_memory((char*)address);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
    FAIL_IF_DUE("cudaHostUnregister");
    REFUSE_IF_CAPTURING();
    const size_t n_bytes = registered.take(address);
    if (!n_bytes) return refuse(cudaErrorHostMemoryNotRegistered);
    if (!is_mapped(address, n_bytes)) abort(); /* munmap came first */
    abort_if_in_flight(address, n_bytes, "unregistered");
    return cudaSuccess;
}
/* As CUDA does with pageable memory: to the host the call waits; from there it takes the bytes. */
static cudaError_t copy_staged(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind,
                               cudaStream_t stream) {
    NEED_STREAM(stream);
    REFUSE_IF_CAPTURING();
    if (kind == cudaMemcpyDeviceToHost && is_on_device((const char*)from, n_bytes)) {
        finish(work_of(stream), work_of(stream)->n_pushed());
        copy_now({{(char*)to, (const char*)from, n_bytes}});
        return result();
    }
    if (kind != cudaMemcpyHostToDevice || !is_on_device((char*)to, n_bytes))
        return refuse(cudaErrorInvalidValue);
    const std::vector<char> staged((const char*)from, (const char*)from + n_bytes);
    return enqueue_copy(stream, to, n_bytes, to, n_bytes, [=] {
        copy_now({{(char*)to, staged.data(), n_bytes}});
    });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    FAIL_IF_DUE("cudaMemcpyAsync");
    if (is_pageable(to, n_bytes) || is_pageable(from, n_bytes))
        return copy_staged(to, from, n_bytes, kind, stream);
    if (!is_copyable(to, n_bytes, from, n_bytes, kind)) return refuse(cudaErrorInvalidValue);
    return enqueue_copy(stream, to, n_bytes, from, n_bytes, [=] {
        copy_now({{(char*)to, (const char*)from, n_bytes}});
    });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
    FAIL_IF_DUE("cudaMemcpy2DAsync");
    if (to_pitch > (size_t)max_pitch || from_pitch > (size_t)max_pitch || width > to_pitch ||
        width > from_pitch)
        return refuse(cudaErrorInvalidPitchValue);
    const size_t n_to = (height - 1) * to_pitch + width, n_from = (height - 1) * from_pitch + width;
    if (!is_copyable(to, n_to, from, n_from, kind)) return refuse(cudaErrorInvalidValue);
    return enqueue_copy(stream, to, n_to, from, n_from, [=] {
        std::vector<row> rows;
        for (size_t i = 0; i < height; i++)
            rows.push_back({(char*)to + i * to_pitch, (const char*)from + i * from_pitch, width});
        copy_now(rows);
    });
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t n_bytes, cudaStream_t stream) {
    FAIL_IF_DUE("cudaMemsetAsync");
    if (!is_on_device((char*)address, n_bytes) && !is_pinned((char*)address, n_bytes))
        return refuse(cudaErrorInvalidValue);
    return enqueue(stream, [=] { fill_now((char*)address, value, n_bytes); });
}

cudaError_t cudaMemset(void* address, int value, size_t n_bytes) {
    FAIL_IF_DUE("cudaMemset");
    REFUSE_IF_CAPTURING();
    if (!is_on_device((char*)address, n_bytes)) return refuse(cudaErrorInvalidValue);
    return enqueue(NULL, [=] { fill_now((char*)address, value, n_bytes); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    FAIL_IF_DUE("cudaLaunchHostFunc");
    static std::mutex one_function; /* CUDA has one thread for them */
    return enqueue(stream, [=] {
        std::lock_guard<std::mutex> lock(one_function);
        is_in_host_function = true; /* which must not call CUDA */
        function(argument);
        is_in_host_function = false;
    });
}

/* For the benchmarks that compare with them; the pool keeps nothing. */
cudaError_t cudaMallocAsync(void** address, size_t n_bytes, cudaStream_t) {
    return cudaMalloc(address, n_bytes);
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
    *pool = nullptr;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
    *(uint64_t*)value = (uint64_t)device_bytes;
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

/* --- streams and events --- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    FAIL_IF_DUE("cudaStreamCreateWithPriority");
    int number = 0;
    if (flags & ~(unsigned)cudaStreamNonBlocking) return refuse(cudaErrorInvalidValue);
    while (number < MOST_STREAMS && streams[number]) number++;
    if (number == MOST_STREAMS) abort();
    streams[number] = new fake_stream();
    streams[number]->priority = priority;
    streams[number]->number = number;
    streams[number]->device = current_device();
    streams[number]->before.assign(MOST_STREAMS, 0);
    streams[number]->work =
        hardware.empty() ? make_queue() : hardware[(size_t)number % hardware.size()];
    n_objects++;
    *stream = (cudaStream_t)streams[number];
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    FAIL_IF_DUE("cudaStreamCreateWithFlags");
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    NEED_STREAM(stream);
    *priority = stream ? ((fake_stream*)stream)->priority : 0;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    FAIL_IF_DUE("cudaStreamDestroy");
    NEED_STREAM(stream);
    if (!stream) return refuse(cudaErrorInvalidResourceHandle);
    if (is_capturing(stream)) return spoil(cudaErrorStreamCaptureUnsupported);
    left_queues.push_back(work_of(stream));
    if (hardware.empty()) work_of(stream)->end();
    streams[((fake_stream*)stream)->number] = NULL;
    delete (fake_stream*)stream;
    n_objects--;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    FAIL_IF_DUE("cudaStreamSynchronize");
    NEED_STREAM(stream);
    if (is_capturing(stream)) return spoil(cudaErrorStreamCaptureUnsupported);
    REFUSE_IF_CAPTURING();
    finish(work_of(stream), work_of(stream)->n_pushed());
    return result();
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
    FAIL_IF_DUE("cudaStreamIsCapturing");
    NEED_STREAM(stream);
    *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
    fake_stream* stream = (fake_stream*)handle;
    const fake_event* event = (const fake_event*)event_handle;
    FAIL_IF_DUE("cudaStreamWaitEvent");
    NEED_STREAM(handle);
    NEED_EVENT(event_handle);
    if (flags != cudaEventWaitDefault) return refuse(cudaErrorInvalidValue);
    REFUSE_IF_SPOILT(handle);
    if (!event->capture) {
        if (is_capturing(handle)) return spoil(cudaErrorStreamCaptureIsolation);
        if (const auto latest = event->latest)
            push(handle, [=] { return latest->work->advance(latest->n); });
        return cudaSuccess;
    }
    if (!capture_origin || event->capture != n_captures) return refuse(cudaErrorCapturedEvent);
    if (!stream) return spoil(cudaErrorStreamCaptureImplicit);
    stream->is_capturing = true;
    for (size_t k = 0; k < MOST_STREAMS; k++)
        if (stream->before[k] < event->before[k]) stream->before[k] = event->before[k];
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    FAIL_IF_DUE("cudaEventCreateWithFlags");
    if (flags & ~(unsigned)cudaEventDisableTiming) return refuse(cudaErrorInvalidValue);
    fake_event* created = new fake_event();
    created->is_timed = !flags;
    created->device = current_device();
    events.insert(created);
    *event = (cudaEvent_t)created;
    n_objects++;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    FAIL_IF_DUE("cudaEventDestroy");
    NEED_EVENT(event);
    events.erase((fake_event*)event);
    delete (fake_event*)event;
    n_objects--;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    fake_event* event = (fake_event*)handle;
    FAIL_IF_DUE("cudaEventRecord");
    NEED_STREAM(stream);
    NEED_EVENT(handle);
    REFUSE_IF_SPOILT(stream);
    if (event->device != (stream ? ((fake_stream*)stream)->device : current_device()))
        return refuse(cudaErrorInvalidResourceHandle);
    event->capture = is_capturing(stream) ? n_captures : 0;
    event->latest = event->capture ? NULL : push_record(work_of(stream));
    if (event->capture) event->before = ((fake_stream*)stream)->before;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
    fake_event* event = (fake_event*)handle;
    FAIL_IF_DUE("cudaEventQuery");
    NEED_EVENT(handle);
    if (event->capture) return refuse(cudaErrorCapturedEvent);
    REFUSE_IF_CAPTURING();
    fake_advance();
    const auto latest = event->latest;
    return !latest || latest->work->ask(latest->n) ? cudaSuccess : refuse(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    FAIL_IF_DUE("cudaEventSynchronize");
    NEED_EVENT(event);
    if (((fake_event*)event)->capture) return refuse(cudaErrorCapturedEvent);
    REFUSE_IF_CAPTURING();
    if (const auto latest = ((fake_event*)event)->latest) finish(latest->work, latest->n);
    return result();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
    const fake_event *begin = (fake_event*)begin_handle, *end = (fake_event*)end_handle;
    FAIL_IF_DUE("cudaEventElapsedTime");
    NEED_EVENT(begin_handle);
    NEED_EVENT(end_handle);
    if (begin->capture || end->capture) return refuse(cudaErrorCapturedEvent);
    const auto from = begin->latest, to = end->latest;
    if (!begin->is_timed || !end->is_timed || !from || !to)
        return refuse(cudaErrorInvalidResourceHandle);
    const bool is_known = from->work->ask(from->n) & to->work->ask(to->n);
    if (!is_known) return refuse(cudaErrorNotReady);
    *ms = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                  (double)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return cudaSuccess;
}

/* --- graphs --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    FAIL_IF_DUE("cudaStreamBeginCapture");
    NEED_STREAM(stream);
    if (!stream) return refuse(cudaErrorStreamCaptureUnsupported);
    if (capture_origin) return refuse(cudaErrorIllegalState); /* CUDA takes several, this one */
    capture_origin = (fake_stream*)stream;
    capture_origin->is_capturing = true;
    for (fake_stream* each : streams)
        if (each) each->before.assign(MOST_STREAMS, 0);
    is_capture_spoiled = false;
    n_captures++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    fake_stream* first = (fake_stream*)handle;
    bool is_joined = true;
    FAIL_IF_DUE("cudaStreamEndCapture");
    *graph = NULL;
    if (!capture_origin || capture_origin != first) return refuse(cudaErrorStreamCaptureUnmatched);
    for (fake_stream* stream : streams) {
        if (!stream || !stream->is_capturing) continue;
        size_t number = (size_t)stream->number;
        is_joined &= stream->before[number] <= first->before[number];
        stream->is_capturing = false;
    }
    capture_origin = NULL;
    if (is_joined && !is_capture_spoiled) {
        capture.origin = (size_t)first->number;
        *graph = (cudaGraph_t) new fake_graph(capture);
        n_objects++;
    }
    capture.all.clear();
    if (is_capture_spoiled) return refuse(cudaErrorStreamCaptureInvalidated);
    return is_joined ? cudaSuccess : refuse(cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    FAIL_IF_DUE("cudaGraphInstantiate");
    if (!graph) return refuse(cudaErrorInvalidValue);
    *exec = (cudaGraphExec_t) new fake_graph(*(fake_graph*)graph);
    n_objects++;
    return cudaSuccess;
}
static bool precedes(const fake_graph& graph, size_t i, size_t k) {
    const size_t stream = graph.all[i].stream;
    return i < k && graph.all[i].before[stream] <= graph.all[k].before[stream];
}
/* In the order of the calls; late: the first stream's operations, each after the operations that
 * precede it; strict: in a random one of the orders that the edges allow.  False: must be run again,
 * because one of them must. */
static bool run_operation(const fake_graph& graph, size_t k, std::vector<bool>* is_done) {
    for (size_t i = 0; i < k && stream_mode == LATE && !(*is_done)[k]; i++)
        if (precedes(graph, i, k) && !run_operation(graph, i, is_done)) return false;
    if (!(*is_done)[k]) (*is_done)[k] = graph.all[k].run();
    return (*is_done)[k];
}
static bool run_graph_strictly(const fake_graph& graph, std::vector<bool>* is_done) {
    for (;;) {
        std::vector<size_t> ready;
        for (size_t k = 0; k < graph.all.size(); k++) {
            bool is_ready = !(*is_done)[k];
            for (size_t i = 0; i < k && is_ready; i++)
                is_ready = (*is_done)[i] || !precedes(graph, i, k);
            if (is_ready) ready.push_back(k);
        }
        if (ready.empty()) return true;
        if (!run_operation(graph, ready[strict_draw() % ready.size()], is_done)) return false;
    }
}
static bool run_graph(const fake_graph& graph, std::vector<bool>* is_done) {
    if (stream_mode == STRICT) return run_graph_strictly(graph, is_done);
    for (size_t k = 0; k < graph.all.size(); k++)
        if ((graph.all[k].stream == graph.origin || stream_mode != LATE) &&
            !run_operation(graph, k, is_done))
            return false;
    for (size_t k = 0; k < graph.all.size(); k++)
        if (!run_operation(graph, k, is_done)) return false;
    return true;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    FAIL_IF_DUE("cudaGraphLaunch");
    NEED_STREAM(stream);
    if (is_capturing(stream)) return spoil(cudaErrorStreamCaptureUnsupported);
    fake_graph graph = *(fake_graph*)exec;
    const auto is_done = std::make_shared<std::vector<bool>>(graph.all.size());
    return enqueue_until(stream, [=] { return run_graph(graph, is_done.get()); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete (fake_graph*)exec;
    n_objects--;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (fake_graph*)graph;
    n_objects--;
    return cudaSuccess;
}

/* --- virtual memory: pages are files in memory, which can be mapped several times --- */

struct fake_pages {
    int file;
    size_t n_bytes;
    int device;
};
static std::map<CUmemGenericAllocationHandle, fake_pages> pages;

static bool is_granular(size_t value) { return value % GRANULE == 0; }
static bool is_right(const CUmemAllocationProp* properties) {
    return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           properties->location.id >= 0 && properties->location.id < N_DEVICES;
}

static CUresult fake_granularity(size_t* n_bytes, const CUmemAllocationProp* properties,
                                 CUmemAllocationGranularity_flags) {
    if (!is_right(properties)) return CUDA_ERROR_INVALID_VALUE;
    *n_bytes = GRANULE;
    return CUDA_SUCCESS;
}
static CUresult fake_create(CUmemGenericAllocationHandle* handle, size_t n_bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) {
    static CUmemGenericAllocationHandle next = 1000;
    DRIVER_FAIL_IF_DUE("cuMemCreate");
    DRIVER_REFUSE_IF_CAPTURING();
    if (!n_bytes || !is_granular(n_bytes) || !is_right(properties) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!has_room(n_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    int file = memfd_create("pages", 0);
    if (file < 0 || ftruncate(file, (off_t)n_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    latest_pages = *properties;
    device_bytes += n_bytes;
    pages[*handle = next++] = {file, n_bytes, properties->location.id};
    n_objects++;
    return CUDA_SUCCESS;
}
static CUresult fake_release(CUmemGenericAllocationHandle handle) {
    DRIVER_FAIL_IF_DUE("cuMemRelease");
    DRIVER_REFUSE_IF_CAPTURING();
    if (!pages.count(handle)) abort(); /* undefined in CUDA */
    close(pages[handle].file);
    device_bytes -= pages[handle].n_bytes;
    pages.erase(handle);
    n_objects--;
    return CUDA_SUCCESS;
}
static CUresult fake_reserve(CUdeviceptr* address, size_t n_bytes, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
    DRIVER_FAIL_IF_DUE("cuMemAddressReserve");
    DRIVER_REFUSE_IF_CAPTURING();
    if (!n_bytes || !is_granular(n_bytes) || alignment || hint || flags)
        return CUDA_ERROR_INVALID_VALUE;
    char* begin = (char*)mmap(NULL, n_bytes + GRANULE, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t before = (GRANULE - (uintptr_t)begin % GRANULE) % GRANULE;
    if (before) munmap(begin, before);
    if (before < GRANULE) munmap(begin + before + n_bytes, GRANULE - before);
    reserved.add(begin + before, n_bytes);
    *address = (CUdeviceptr)(begin + before);
    return CUDA_SUCCESS;
}
static CUresult fake_free_addresses(CUdeviceptr address, size_t n_bytes) {
    DRIVER_FAIL_IF_DUE("cuMemAddressFree");
    DRIVER_REFUSE_IF_CAPTURING();
    if (mapped.meets((void*)address, n_bytes) || reserved.take((void*)address) != n_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void*)address, n_bytes);
    return CUDA_SUCCESS;
}
static CUresult fake_map(CUdeviceptr address, size_t n_bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    DRIVER_FAIL_IF_DUE("cuMemMap");
    DRIVER_REFUSE_IF_CAPTURING();
    if (offset || flags || !n_bytes || !is_granular(address) || !is_granular(n_bytes) ||
        !pages.count(handle) || n_bytes > pages[handle].n_bytes ||
        !reserved.contains((char*)address, n_bytes) || mapped.meets((char*)address, n_bytes) ||
        mmap((void*)address, n_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, pages[handle].file, 0) ==
            MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    mapped.add((void*)address, n_bytes);
    return CUDA_SUCCESS;
}
static CUresult fake_unmap(CUdeviceptr address, size_t n_bytes) {
    DRIVER_FAIL_IF_DUE("cuMemUnmap");
    DRIVER_REFUSE_IF_CAPTURING();
    const size_t n_mapped = mapped.take((void*)address);
    if (!n_mapped) return CUDA_ERROR_INVALID_VALUE;
    if (n_mapped != n_bytes) abort(); /* a part of a mapping */
    accessible.erase((char*)address);
    mmap((void*)address, n_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return CUDA_SUCCESS;
}
static CUresult fake_set_access(CUdeviceptr address, size_t n_bytes, const CUmemAccessDesc* access,
                                size_t n) {
    char *begin = (char*)address, *end = begin + n_bytes;
    size_t n_covered = 0;
    DRIVER_FAIL_IF_DUE("cuMemSetAccess");
    DRIVER_REFUSE_IF_CAPTURING();
    for (const auto& each : mapped.all)
        if (each.first >= begin && each.first + each.second <= end) n_covered += each.second;
    if (n_covered != n_bytes || n != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || access->location.id < 0 ||
        access->location.id >= N_DEVICES ||
        mprotect((void*)address, n_bytes, PROT_READ | PROT_WRITE))
        return CUDA_ERROR_INVALID_VALUE;
    for (const auto& each : mapped.all)
        if (each.first >= begin && each.first < end) accessible.insert(each);
    return CUDA_SUCCESS;
}
static CUresult fake_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value =
        attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED || has_virtual_memory;
    return CUDA_SUCCESS;
}

static CUresult fake_retain(CUcontext* context, CUdevice device) {
    DRIVER_CALL_FAIL_IF_DUE("cuDevicePrimaryCtxRetain");
    primary[device].is_made = true;
    primary[device].n_retained++;
    *context = (CUcontext)&primary[device];
    return CUDA_SUCCESS;
}
static CUresult fake_release_context(CUdevice device) {
    if (!primary[device].n_retained--) abort();
    return CUDA_SUCCESS;
}
static CUresult fake_get_current(CUcontext* context) {
    DRIVER_CALL_FAIL_IF_DUE("cuCtxGetCurrent");
    *context = (CUcontext)current;
    return CUDA_SUCCESS;
}
static CUresult fake_set_current(CUcontext context) {
    DRIVER_CALL_FAIL_IF_DUE("cuCtxSetCurrent");
    current = (fake_context*)context;
    return CUDA_SUCCESS;
}

/* The runtime's result, without its error for cudaGetLastError. */
static CUresult as_driver(cudaError_t code, cudaError_t before) {
    last_error = before;
    return code == cudaErrorNotReady ? CUDA_ERROR_NOT_READY
           : code                    ? CUDA_ERROR_UNKNOWN
                                     : CUDA_SUCCESS;
}
static CUresult fake_query_stream(CUstream stream) {
    DRIVER_FAIL_IF_DUE("cuStreamQuery");
    if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (is_capturing(stream)) {
        is_capture_spoiled = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    DRIVER_REFUSE_IF_CAPTURING();
    const auto work = work_of(stream);
    return work->ask(work->n_pushed()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult fake_query_event(CUevent event) {
    cudaError_t before = last_error;
    DRIVER_FAIL_IF_DUE("cuEventQuery");
    return as_driver(cudaEventQuery(event), before);
}
static CUresult fake_wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned flags) {
    uint32_t* word = (uint32_t*)address;
    DRIVER_FAIL_IF_DUE("cuStreamWaitValue32");
    if (!has_wait_value) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags != CU_STREAM_WAIT_VALUE_EQ || !is_pinned((char*)word, sizeof *word))
        return CUDA_ERROR_INVALID_VALUE;
    const cudaError_t code =
        enqueue_until(stream, [=] { return __atomic_load_n(word, __ATOMIC_SEQ_CST) == value; });
    return code ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult fake_error_name(CUresult, const char** name) {
    *name = "CUDA_ERROR_AS_TOLD";
    return CUDA_SUCCESS;
}

/* cuStreamWaitValue32 as it is now came with CUDA 11.7, the last of them; this driver is CUDA
 * 13's. */
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    static const struct {
        const char* symbol;
        void* function;
    } known[] = {{"cuMemGetAllocationGranularity", (void*)fake_granularity},
                 {"cuMemCreate", (void*)fake_create},
                 {"cuMemRelease", (void*)fake_release},
                 {"cuMemAddressReserve", (void*)fake_reserve},
                 {"cuMemAddressFree", (void*)fake_free_addresses},
                 {"cuMemMap", (void*)fake_map},
                 {"cuMemUnmap", (void*)fake_unmap},
                 {"cuMemSetAccess", (void*)fake_set_access},
                 {"cuDeviceGetAttribute", (void*)fake_get_attribute},
                 {"cuDevicePrimaryCtxRetain", (void*)fake_retain},
                 {"cuDevicePrimaryCtxRelease", (void*)fake_release_context},
                 {"cuCtxGetCurrent", (void*)fake_get_current},
                 {"cuCtxSetCurrent", (void*)fake_set_current},
                 {"cuStreamQuery", (void*)fake_query_stream},
                 {"cuEventQuery", (void*)fake_query_event},
                 {"cuStreamWaitValue32", (void*)fake_wait_value},
                 {"cuGetErrorName", (void*)fake_error_name}};
    CALL_FAIL_IF_DUE("cudaGetDriverEntryPointByVersion");
    if (version > 13000) return refuse(cudaErrorInvalidValue);
    *function = NULL;
    if (version < 11070) {
        *result = cudaDriverEntryPointVersionNotSufficent;
        return cudaSuccess;
    }
    for (const auto& entry : known) {
        if (strcmp(entry.symbol, symbol)) continue;
        *function = entry.function;
        *result = cudaDriverEntryPointSuccess;
        return cudaSuccess;
    }
    *result = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* --- kernels --- */

/* The limits of every GPU with grids of 2^31 - 1 blocks, so from compute capability 3.0 on. */
static bool is_launchable(dim3 blocks, dim3 threads) {
    return blocks.x && blocks.y && blocks.z && threads.x && threads.y && threads.z &&
           blocks.x <= 0x7fffffff && blocks.y <= 65535 && blocks.z <= 65535 && threads.x <= 1024 &&
           threads.y <= 1024 && threads.z <= 64 &&
           (uint64_t)threads.x * threads.y * threads.z <= 1024;
}
static cudaError_t launch(dim3 blocks, dim3 threads, cudaStream_t stream) {
    FAIL_IF_DUE("kernel");
    if (!is_launchable(blocks, threads)) return refuse(cudaErrorInvalidConfiguration);
    if (!fake_load("kernels")) return refuse(cudaErrorMemoryAllocation);
    grid = blocks.x;
    return enqueue(stream, [] {});
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
    return launch(config->gridDim, config->blockDim, config->stream);
}

/* What nvcc puts around them. */

static dim3 pushed_grid, pushed_block;
static struct CUstream_st* pushed_stream;
void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
unsigned __cudaPushCallConfiguration(dim3 blocks, dim3 threads, size_t,
                                     struct CUstream_st* stream) {
    pushed_grid = blocks;
    pushed_block = threads;
    pushed_stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, void* stream) {
    *blocks = pushed_grid;
    *threads = pushed_block;
    *shared = 0;
    *(struct CUstream_st**)stream = pushed_stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3 blocks, dim3 threads, void**, size_t,
                               cudaStream_t stream) {
    return launch(blocks, threads, stream);
}
}
