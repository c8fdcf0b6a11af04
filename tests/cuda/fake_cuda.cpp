/* fake_cuda.cpp - see fake_cuda.h.  Where CUDA would refuse, so does this: copies that cross the border of two
 * registered ranges, pitches beyond the limit, elapsed times of events never recorded, ranges registered twice, captures
 * that wait for what is outside of them, synchronise, or leave a stream unjoined. */
#include "fake_cuda.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <vector>

enum { MOST = 4096 };
static const size_t DEVICE_BYTES = (size_t)8 << 30;

/* --- failures on demand --- */

static struct {
    char function[64];
    int k;
    cudaError_t code;
} failures[8];
static cudaError_t last_error;

void fake_fail(const char* function, int k, cudaError_t code) {
    for (auto& failure : failures) {
        if (failure.k) continue;
        snprintf(failure.function, sizeof failure.function, "%s", function);
        failure.k = k;
        failure.code = code;
        return;
    }
    abort();
}
void fake_forget_failures(void) { memset(failures, 0, sizeof failures); }

static cudaError_t due(const char* function) {
    for (auto& failure : failures)
        if (failure.k && strcmp(failure.function, function) == 0 && --failure.k == 0)
            return last_error = failure.code;
    return cudaSuccess;
}
#define FAIL_IF_DUE(function)                                                                      \
    do {                                                                                           \
        cudaError_t code_ = due(function);                                                         \
        if (code_ != cudaSuccess) return code_;                                                    \
    } while (0)
#define DRIVER_FAIL_IF_DUE(function)                                                               \
    if (due(function) != cudaSuccess) return CUDA_ERROR_UNKNOWN

static cudaError_t refuse(cudaError_t code) { return last_error = code; }

/* --- what there is --- */

struct range {
    char* begin;
    size_t n_bytes;
};
struct ranges {
    range all[MOST];
    int n;
    void add(void* begin, size_t n_bytes) {
        if (n == MOST) abort();
        all[n].begin = (char*)begin;
        all[n++].n_bytes = n_bytes;
    }
    bool take(const void* begin, range* taken) {
        for (int i = 0; i < n; i++) {
            if (all[i].begin != begin) continue;
            *taken = all[i];
            all[i] = all[--n];
            return true;
        }
        return false;
    }
};
static ranges device_memory, host_memory, registered, reserved, mapped;
static size_t device_bytes;
static int n_streams, n_events, n_pages, max_pitch = 2147483647, n_processors = 132;
static unsigned grid;
static int n_graphs;

int fake_n_registered(void) { return registered.n; }
int fake_n_host_allocs(void) { return host_memory.n; }
int fake_n_objects(void) {
    return device_memory.n + host_memory.n + registered.n + reserved.n + mapped.n + n_streams +
           n_events + n_pages + n_graphs;
}
void fake_set_max_pitch(int n_bytes) { max_pitch = n_bytes; }
void fake_set_n_processors(int n) { n_processors = n; }
unsigned fake_grid(void) { return grid; }

/* CUDA takes memory that is registered as a whole, or not at all. */
static bool is_copyable(const char* begin, size_t n_bytes) {
    for (int i = 0; i < registered.n; i++) {
        const range& r = registered.all[i];
        if (begin + n_bytes <= r.begin || begin >= r.begin + r.n_bytes) continue;
        return begin >= r.begin && begin + n_bytes <= r.begin + r.n_bytes;
    }
    return true;
}

/* --- capture ---
 *
 * A stream that captures keeps what it is told for the graph instead of doing it.  One that waits for an event
 * recorded by such a stream captures too, and must be joined: at the end, the first stream must have waited for all
 * that the others were told. */

enum { MOST_STREAMS = 64 };
typedef std::vector<int64_t> seen; /* of each stream, how many operations come before */

struct fake_stream {
    int priority, number;
    bool is_capturing;
    seen before;
};
struct fake_event {
    bool is_recorded, is_captured;
    struct timespec time;
    seen before;
};
typedef std::vector<std::function<void()>> fake_graph;

static fake_stream* streams[MOST_STREAMS];
static fake_graph capture;

static bool is_capturing(cudaStream_t stream) {
    return stream && ((fake_stream*)stream)->is_capturing;
}

/* Does it now, or when the graph is launched. */
static cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation) {
    if (is_capturing(stream)) {
        fake_stream* s = (fake_stream*)stream;
        s->before[(size_t)s->number]++;
        capture.push_back(operation);
    } else {
        operation();
    }
    return cudaSuccess;
}

void fake_enqueue(cudaStream_t stream, std::function<void()> operation) {
    (void)enqueue(stream, operation);
}

extern "C" {

/* --- errors and device --- */

cudaError_t cudaGetLastError(void) {
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}
cudaError_t cudaPeekAtLastError(void) {
    FAIL_IF_DUE("cudaPeekAtLastError");
    return last_error;
}
const char* cudaGetErrorName(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    default: return "cudaErrorUnknown";
    }
}
const char* cudaGetErrorString(cudaError_t) { return "as told"; }
cudaError_t cudaGetDeviceCount(int* n) {
    FAIL_IF_DUE("cudaGetDeviceCount");
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
    FAIL_IF_DUE("cudaGetDevice");
    *ordinal = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
    return ordinal ? refuse(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    FAIL_IF_DUE("cudaDeviceGetAttribute");
    *value = attribute == cudaDevAttrMaxPitch ? max_pitch : n_processors;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int, int) {
    strcpy(bus, "0000:3B:00.0");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    static cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    cudaStreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return cudaSuccess;
}

/* --- memory --- */

/* As CUDA: large allocations take whole granules of 2 MiB. */
static size_t taken_bytes(size_t n_bytes) {
    const size_t granule = (size_t)2 << 20;
    return n_bytes < granule / 2 ? n_bytes : (n_bytes + granule - 1) / granule * granule;
}
cudaError_t cudaMalloc(void** address, size_t n_bytes) {
    FAIL_IF_DUE("cudaMalloc");
    if (n_bytes > DEVICE_BYTES - device_bytes || posix_memalign(address, 256, n_bytes))
        return refuse(cudaErrorMemoryAllocation);
    memset(*address, 0, n_bytes);
    device_bytes += taken_bytes(n_bytes);
    device_memory.add(*address, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
    range taken;
    FAIL_IF_DUE("cudaFree");
    if (!address) return cudaSuccess;
    if (!device_memory.take(address, &taken)) return refuse(cudaErrorInvalidValue);
    device_bytes -= taken_bytes(taken.n_bytes);
    free(address);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    *free_bytes = DEVICE_BYTES - device_bytes;
    *total_bytes = DEVICE_BYTES;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t n_bytes, unsigned) {
    FAIL_IF_DUE("cudaHostAlloc");
    if (posix_memalign(address, 4096, n_bytes)) return refuse(cudaErrorMemoryAllocation);
    host_memory.add(*address, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
    range taken;
    if (!host_memory.take(address, &taken)) return refuse(cudaErrorInvalidValue);
    free(address);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t n_bytes, unsigned) {
    FAIL_IF_DUE("cudaHostRegister");
    for (int i = 0; i < registered.n; i++)
        if ((char*)address < registered.all[i].begin + registered.all[i].n_bytes &&
            registered.all[i].begin < (char*)address + n_bytes)
            return refuse(cudaErrorInvalidValue);
    registered.add(address, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
    range taken;
    return registered.take(address, &taken) ? cudaSuccess : refuse(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    FAIL_IF_DUE("cudaMemcpyAsync");
    if (!is_copyable((char*)to, n_bytes) || !is_copyable((const char*)from, n_bytes))
        return refuse(cudaErrorInvalidValue);
    return enqueue(stream, [=] { memmove(to, from, n_bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
    FAIL_IF_DUE("cudaMemcpy2DAsync");
    if (to_pitch > (size_t)max_pitch || from_pitch > (size_t)max_pitch || width > to_pitch ||
        width > from_pitch || !is_copyable((char*)to, (height - 1) * to_pitch + width) ||
        !is_copyable((const char*)from, (height - 1) * from_pitch + width))
        return refuse(cudaErrorInvalidValue);
    return enqueue(stream, [=] {
        for (size_t i = 0; i < height; i++)
            memmove((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
    });
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t n_bytes, cudaStream_t stream) {
    FAIL_IF_DUE("cudaMemsetAsync");
    return enqueue(stream, [=] { memset(address, value, n_bytes); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    FAIL_IF_DUE("cudaLaunchHostFunc");
    return enqueue(stream, [=] { function(argument); });
}

/* --- streams and events --- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
    FAIL_IF_DUE("cudaStreamCreateWithPriority");
    int number = 0;
    while (number < MOST_STREAMS && streams[number]) number++;
    if (number == MOST_STREAMS) abort();
    streams[number] = new fake_stream();
    streams[number]->priority = priority;
    streams[number]->number = number;
    streams[number]->before.assign(MOST_STREAMS, 0);
    n_streams++;
    *stream = (cudaStream_t)streams[number];
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    FAIL_IF_DUE("cudaStreamCreateWithFlags");
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    *priority = ((fake_stream*)stream)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    streams[((fake_stream*)stream)->number] = NULL;
    delete (fake_stream*)stream;
    n_streams--;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    FAIL_IF_DUE("cudaStreamSynchronize");
    return is_capturing(stream) ? refuse(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    FAIL_IF_DUE("cudaStreamQuery");
    if (is_capturing(stream)) return refuse(cudaErrorStreamCaptureUnsupported);
    return cudaErrorNotReady; /* no error, and cudaGetLastError does not see it */
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
    fake_stream* stream = (fake_stream*)handle;
    const fake_event* event = (const fake_event*)event_handle;
    FAIL_IF_DUE("cudaStreamWaitEvent");
    if (!event->is_captured)
        return event->is_recorded && stream->is_capturing ? refuse(cudaErrorStreamCaptureIsolation)
                                                          : cudaSuccess;
    stream->is_capturing = true;
    for (size_t k = 0; k < MOST_STREAMS; k++)
        if (stream->before[k] < event->before[k]) stream->before[k] = event->before[k];
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    FAIL_IF_DUE("cudaEventCreateWithFlags");
    *event = (cudaEvent_t) new fake_event();
    n_events++;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete (fake_event*)event;
    n_events--;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    fake_event* event = (fake_event*)handle;
    FAIL_IF_DUE("cudaEventRecord");
    event->is_captured = is_capturing(stream);
    event->is_recorded = !event->is_captured;
    if (event->is_captured) event->before = ((fake_stream*)stream)->before;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    FAIL_IF_DUE("cudaEventQuery");
    return ((fake_event*)event)->is_captured ? refuse(cudaErrorCapturedEvent) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    FAIL_IF_DUE("cudaEventSynchronize");
    return ((fake_event*)event)->is_captured ? refuse(cudaErrorCapturedEvent) : cudaSuccess;
}

/* --- graphs --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    ((fake_stream*)stream)->is_capturing = true;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    fake_stream* first = (fake_stream*)handle;
    bool is_joined = true;
    for (fake_stream* stream : streams) {
        if (!stream || !stream->is_capturing) continue;
        size_t number = (size_t)stream->number;
        is_joined &= stream->before[number] <= first->before[number];
        stream->is_capturing = false;
    }
    *graph = NULL;
    if (is_joined) {
        *graph = (cudaGraph_t) new fake_graph(capture);
        n_graphs++;
    }
    capture.clear();
    return is_joined ? cudaSuccess : refuse(cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    *exec = (cudaGraphExec_t) new fake_graph(*(fake_graph*)graph);
    n_graphs++;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    for (const auto& operation : *(fake_graph*)exec) operation();
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete (fake_graph*)exec;
    n_graphs--;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (fake_graph*)graph;
    n_graphs--;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
    const fake_event *begin = (fake_event*)begin_handle, *end = (fake_event*)end_handle;
    if (!begin->is_recorded || !end->is_recorded) return refuse(cudaErrorInvalidResourceHandle);
    *ms = (float)((double)(end->time.tv_sec - begin->time.tv_sec) * 1e3 +
                  (double)(end->time.tv_nsec - begin->time.tv_nsec) * 1e-6);
    return cudaSuccess;
}

/* --- virtual memory: pages are files in memory, mapped as often as asked --- */

static CUresult fake_granularity(size_t* n_bytes, const CUmemAllocationProp*,
                                 CUmemAllocationGranularity_flags) {
    *n_bytes = (size_t)2 << 20;
    return CUDA_SUCCESS;
}
static CUresult fake_create(CUmemGenericAllocationHandle* handle, size_t n_bytes,
                            const CUmemAllocationProp*, unsigned long long) {
    DRIVER_FAIL_IF_DUE("cuMemCreate");
    int file = memfd_create("pages", 0);
    if (file < 0 || ftruncate(file, (off_t)n_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemGenericAllocationHandle)file;
    n_pages++;
    return CUDA_SUCCESS;
}
static CUresult fake_release(CUmemGenericAllocationHandle handle) {
    close((int)handle);
    n_pages--;
    return CUDA_SUCCESS;
}
static CUresult fake_reserve(CUdeviceptr* address, size_t n_bytes, size_t, CUdeviceptr,
                             unsigned long long) {
    DRIVER_FAIL_IF_DUE("cuMemAddressReserve");
    void* begin =
        mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    reserved.add(begin, n_bytes);
    *address = (CUdeviceptr)begin;
    return CUDA_SUCCESS;
}
static CUresult fake_free_addresses(CUdeviceptr address, size_t n_bytes) {
    range taken;
    if (!reserved.take((void*)address, &taken) || taken.n_bytes != n_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void*)address, n_bytes);
    return CUDA_SUCCESS;
}
static CUresult fake_map(CUdeviceptr address, size_t n_bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long) {
    DRIVER_FAIL_IF_DUE("cuMemMap");
    if (offset || address % ((size_t)2 << 20) % 4096 ||
        mmap((void*)address, n_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0) ==
            MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    mapped.add((void*)address, n_bytes);
    return CUDA_SUCCESS;
}
static CUresult fake_unmap(CUdeviceptr address, size_t n_bytes) {
    range taken;
    if (!mapped.take((void*)address, &taken) || taken.n_bytes != n_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    mmap((void*)address, n_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return CUDA_SUCCESS;
}
static CUresult fake_set_access(CUdeviceptr address, size_t n_bytes, const CUmemAccessDesc* access,
                                size_t) {
    DRIVER_FAIL_IF_DUE("cuMemSetAccess");
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        mprotect((void*)address, n_bytes, PROT_READ | PROT_WRITE))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
static CUresult fake_get_attribute(int* value, CUdevice_attribute, CUdevice) {
    *value = 1;
    return CUDA_SUCCESS;
}
static CUresult fake_error_name(CUresult, const char** name) {
    *name = "CUDA_ERROR_AS_TOLD";
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
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
                 {"cuGetErrorName", (void*)fake_error_name}};
    FAIL_IF_DUE("cudaGetDriverEntryPointByVersion");
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
