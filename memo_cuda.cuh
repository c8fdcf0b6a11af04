/* memo_cuda.cuh - memo on a real GPU: the device table for CUDA, pinned memory, row kernels, phantom memory.
 *
 * In exactly one .cu file (memo.h's implementation may be there too, or in a C file of its own):
 *
 *     #define MEMO_CUDA_IMPLEMENTATION
 *     #include "memo_cuda.cuh"          // nvcc -arch=native ...; the CUDA runtime is all that is linked
 *
 * EXAMPLE: what runs on the host device runs here.
 *
 *     memo_device* device; memo_stream compute; memo_error error;
 *     memo_cuda_device_desc desc = memo_cuda_device_desc_default();
 *     memo_cuda_device_create(&desc, &device, &error);
 *     memo_stream_create(device, "compute", 0, &compute, &error);
 *     // ... arena, swap engine, recorder with this device; kernels of one's own on
 *     my_kernel<<<grid, block, 0, memo_cuda_stream(compute)>>>(...);
 *     memo_stream_synchronize(device, compute, &error);
 *
 * RULES.  As in memo.h.  Every error names the CUDA call, CUDA's name of the error and the place:
 * "cudaMemcpyAsync: cudaErrorInvalidValue (invalid argument), memo_cuda.cuh:512".  A call that failed leaves
 * nothing behind in cudaGetLastError, nor does an event that is not ready; errors that CUDA keeps (an illegal
 * address) stay and are returned by every later call.  The calling thread's current device is as it was when
 * a call returns.
 *
 * GRAPHS.  Streams and events are CUDA's own, nothing enqueued allocates or synchronises, and all of it, the
 * swap engine's copies included, may be captured: cudaStreamBeginCapture on the compute stream, one step,
 * cudaStreamEndCapture.  The engine forks its two streams by events and joins them before the step's end.
 * Capture one whole micro-batch, with memo_swap_desc.is_timed 0, since events inside of a graph cannot be read.
 * Run one step uncaptured first: CUDA loads a kernel, and cuBLAS takes its work space, when they are first used.
 * Where other threads use CUDA meanwhile, capture with cudaStreamCaptureModeThreadLocal.  After a capture that
 * failed, end it, and call memo_swap_abandon before the next step.
 *
 * CHAPTERS  1 device | 2 pinned memory | 3 row kernels | 4 phantom memory
 *
 * Licence: MIT, see LICENSE.  Language: CUDA C++11.  Dependencies: memo.h, the CUDA runtime 12 or later, Linux. */
#ifndef MEMO_CUDA_CUH
#define MEMO_CUDA_CUH

#include "memo.h"

#include <cuda_runtime.h>

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 1
#error "memo_cuda.cuh: this is the one of memo 0.1; take memo.h from the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 device --------------------------------------------------------------------------------------
 *
 * What memo.h leaves to the device:
 *   streams      do not synchronise with CUDA's default stream; NULL is that stream.  Priority 0 is CUDA's
 *                lowest, 1 the next, ...; what is above the highest counts as the highest
 *   events       measure time; elapsed times have a resolution of about half a microsecond
 *   copies       of pinned memory are asynchronous, of other host memory CUDA decides
 *   row kernels  of chapter 3, where memo.h's table has room for them
 *   launch_host  by cudaLaunchHostFunc, on a thread of CUDA's own that all streams share.  A function that
 *                fails fails the device: host functions behind it are skipped, kernels and copies cannot be,
 *                so what they computed is to be dropped; every later call that enqueues or synchronises, and
 *                status, returns its error
 * An object serves one thread at a time; several devices may serve several threads. */

typedef struct memo_cuda_device_desc {
    int32_t ordinal; /* CUDA's number of the GPU */
    /* A device for recording what does not fit: device_alloc gives phantom addresses (chapter 4) out of so
     * many bytes of them; memory_info counts these.  0: device memory. */
    int64_t phantom_bytes;
    int64_t phantom_chunk_bytes; /* of memory behind them; 0: 1 GiB, or less where less is free */
    /* Pinned memory (chapter 2). */
    int32_t host_threads;       /* that touch it; 0: as many as there are processors, at most 16 */
    int32_t without_huge_pages; /* 1: pages of the usual size */
    int64_t host_chunk_bytes;   /* registered at once; 0: 8 GiB; at most 64 GiB */
    memo_log log;
} memo_cuda_device_desc;

/* How the latest pinned memory came about. */
typedef enum memo_cuda_host_kind {
    MEMO_CUDA_HOST_NONE = 0,
    MEMO_CUDA_HOST_HUGETLB,     /* from the system's pool of huge pages, registered */
    MEMO_CUDA_HOST_TRANSPARENT, /* huge pages where the system gives them, registered */
    MEMO_CUDA_HOST_PAGES,       /* usual pages, registered */
    MEMO_CUDA_HOST_CUDA         /* cudaHostAlloc: below 2 MiB, or as a way out */
} memo_cuda_host_kind;

typedef struct memo_cuda_device_stats {
    int64_t device_bytes, host_bytes; /* asked for and not given back */
    memo_cuda_host_kind host_kind;
    int64_t host_chunks; /* of it: times that memory was registered */
    double host_alloc_s; /* and how long it took */
} memo_cuda_device_stats;

MEMO_API memo_cuda_device_desc memo_cuda_device_desc_default(void);
/* Errors: UNSUPPORTED (no GPU, no driver, no such ordinal; phantom memory on a device without virtual memory
 * management), INVALID_ARGUMENT, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE. */
MEMO_API memo_status memo_cuda_device_create(const memo_cuda_device_desc* desc,
                                             memo_device** device, memo_error* error);
/* Waits for the GPU and gives back all memory taken through the table.  Streams and events are CUDA's: those not
 * destroyed stay.  device may be NULL. */
MEMO_API void memo_cuda_device_destroy(memo_device* device);
MEMO_API void memo_cuda_device_get_stats(const memo_device* device, memo_cuda_device_stats* stats);
MEMO_API const char* memo_cuda_host_kind_name(memo_cuda_host_kind kind); /* never NULL */

static inline cudaStream_t memo_cuda_stream(memo_stream stream) { return (cudaStream_t)stream; }
static inline cudaEvent_t memo_cuda_event(memo_event event) { return (cudaEvent_t)event; }
static inline memo_stream memo_cuda_from_stream(cudaStream_t stream) { return (memo_stream)stream; }

/* For callers of their own CUDA functions: status and message from what one of them returned.
 *     status = memo_cuda_check(cudaStreamBeginCapture(s, mode), "cudaStreamBeginCapture", &error); */
#define memo_cuda_check(code, call, error) memo_cuda_check_at(code, call, __FILE__, __LINE__, error)
MEMO_API memo_status memo_cuda_check_at(cudaError_t code, const char* call, const char* file,
                                        int line, memo_error* error);

/* ---- 2 pinned memory --------------------------------------------------------------------------------
 *
 * host_alloc is meant for one arena at start.  From 2 MiB on: address space, huge pages where they work
 * (first from the system's pool, then by advice), touched by several threads near the GPU, registered with
 * CUDA in chunks while the next ones are still being touched.  What takes longer than a second is told to the
 * log every second, or after each chunk where that takes longer.  Where registering fails, what was taken is
 * given back, the log told why, and cudaHostAlloc asked; so it is from the start where kernels could not reach
 * registered memory by the host's addresses.  More than the machine (or the container) has left is refused before a
 * page is touched: OUT_OF_HOST_MEMORY with both numbers.  Copies that cross the border of two chunks are enqueued
 * in parts. */

/* ---- 3 row kernels ----------------------------------------------------------------------------------
 *
 * The loops of memo.h's chapter on row kernels, on the GPU: enqueued on stream, which belongs to the current device;
 * arrays are in device memory (or pinned).  Any number of elements.  The desc is read before the call returns.
 * Errors: INVALID_ARGUMENT as there, DEVICE. */
MEMO_API memo_status memo_cuda_gather_rows(memo_stream stream, const memo_rows_desc* rows,
                                           memo_error* error);
MEMO_API memo_status memo_cuda_scatter_rows(memo_stream stream, const memo_rows_desc* rows,
                                            memo_error* error);
MEMO_API memo_status memo_cuda_merge(memo_stream stream, const memo_merge_desc* merge,
                                     memo_error* error);
MEMO_API memo_status memo_cuda_add(memo_stream stream, const memo_add_desc* add, memo_error* error);
MEMO_API memo_status memo_cuda_row_sums(memo_stream stream, const memo_row_sums_desc* sums,
                                        memo_error* error);
MEMO_API memo_status memo_cuda_cast(memo_stream stream, const memo_cast_desc* cast,
                                    memo_error* error);

/* ---- 4 phantom memory: addresses without memory of their own ----------------------------------------
 *
 * A device with phantom_bytes gives terabytes of addresses that kernels can use.  Behind all of them lies one chunk
 * of the GPU's memory, mapped thousands of times, so their contents are garbage.  It records a length that does not
 * fit: the trainer runs its step unchanged, and its requests become a trace.  What one kernel writes through one
 * address, a kernel after it sees through another; within one kernel nothing is promised. */

#ifdef __cplusplus
}
#endif

#endif /* MEMO_CUDA_CUH */

/* ==== implementation =============================================================================== */
#if defined(MEMO_CUDA_IMPLEMENTATION) && !defined(MEMO_CUDA_IMPLEMENTATION_DONE)
#define MEMO_CUDA_IMPLEMENTATION_DONE

#include <cuda.h> /* types only: the driver's functions are asked for at run time */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MEMO_MALLOC
#define MEMO_MALLOC(size_bytes) malloc(size_bytes)
#define MEMO_FREE(address)      free(address)
#endif

/* ---- what the chapters share ------------------------------------------------------------------------
 * Knows: how CUDA reports errors.  Knows nothing of devices and memory. */

#define MEMOI_CUDA           static MEMO_UNUSED
#define MEMOI_CUDA_BYTES_MAX ((int64_t)1 << 62)

/* Without what the call left for cudaGetLastError: the caller gets it from here. */
memo_status memo_cuda_check_at(cudaError_t code, const char* call, const char* file, int line,
                               memo_error* error) {
    const char* slash = strrchr(file, '/');
    memo_status status = MEMO_STATUS_DEVICE;
    if (code == cudaSuccess) return MEMO_STATUS_OK;
    (void)cudaGetLastError();
    if (code == cudaErrorMemoryAllocation) status = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
        code == cudaErrorStubLibrary || code == cudaErrorSystemDriverMismatch ||
        code == cudaErrorInvalidDevice || code == cudaErrorNotSupported)
        status = MEMO_STATUS_UNSUPPORTED;
    return memo_error_set(error, status, "%s: %s (%s), %s:%d", call, cudaGetErrorName(code),
                          cudaGetErrorString(code), slash ? slash + 1 : file, line);
}

/* Behind a message: ", memo_cuda.cuh:512". */
#define MEMOI_CUDA_TEXT_OF(line) #line
#define MEMOI_CUDA_TEXT(line)    MEMOI_CUDA_TEXT_OF(line)
#define MEMOI_CUDA_PLACE         ", memo_cuda.cuh:" MEMOI_CUDA_TEXT(__LINE__)

/* MEMOI_CUDA_CALL(cudaFree, (address), error) */
#define MEMOI_CUDA_CALL(function, arguments, error)                                                \
    memo_cuda_check_at(function arguments, #function, __FILE__, __LINE__, error)

MEMOI_CUDA memo_status memoi_cuda_no_memory(memo_error* error, const char* what) {
    return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %s", what);
}

MEMOI_CUDA void* memoi_cuda_zeroed(size_t size_bytes) {
    void* address = MEMO_MALLOC(size_bytes);
    if (address) memset(address, 0, size_bytes);
    return address;
}

MEMOI_CUDA double memoi_cuda_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A multiple of unit; value stays below MEMOI_CUDA_BYTES_MAX. */
MEMOI_CUDA int64_t memoi_cuda_round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* "12.3 GiB" into a buffer of at least 32 bytes, which it returns. */
MEMOI_CUDA const char* memoi_cuda_bytes_name(char* buffer, int64_t size_bytes) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double size = (double)size_bytes;
    int unit = 0;
    for (; size >= 1024 && unit < 5; unit++) size /= 1024;
    snprintf(buffer, 32, unit && size < 100 ? "%.1f %s" : "%.0f %s", size, units[unit]);
    return buffer;
}

/* The calling thread on a device, and back where it was.  is_bound: the thread has a context from here on, which the
 * driver's functions do not make themselves. */
struct memoi_cuda_on {
    int before, ordinal;
    memo_status status;
    memoi_cuda_on(int wanted, memo_error* error, int is_bound = 0)
        : before(wanted), ordinal(wanted) {
        status = MEMOI_CUDA_CALL(cudaGetDevice, (&before), error);
        if (!status && (before != wanted || is_bound))
            status = MEMOI_CUDA_CALL(cudaSetDevice, (wanted), error);
    }
    ~memoi_cuda_on() {
        if (before != ordinal && cudaSetDevice(before) != cudaSuccess) (void)cudaGetLastError();
    }
};

/* ---- 1 device: what it is made of ------------------------------------------------------------------- */

#define MEMOI_CUDA_MAGIC     0x6d656d6f63756461u /* "memocuda" */
#define MEMOI_CUDA_ALIGNMENT 512

/* Memory that was taken and not given back. */
typedef struct memoi_cuda_block {
    struct memoi_cuda_block* next;
    char* address;
    int64_t size_bytes;
    void* base;                        /* what CUDA gave; differs from address by alignment */
    int64_t mapped_bytes, chunk_bytes; /* of registered memory; 0: of cudaHostAlloc */
} memoi_cuda_block;

typedef struct memoi_cuda_phantom memoi_cuda_phantom; /* chapter 4 */

typedef struct memoi_cuda {
    uint64_t magic;
    memo_device table;
    memo_cuda_device_desc desc;
    int ordinal;
    size_t max_pitch_bytes; /* of copies of rows in one call */
    int can_register;       /* kernels reach registered memory by the host's addresses */
    cudaStream_t probe;     /* never used for work: asked for asynchronous errors */
    memoi_cuda_block *device_blocks, *host_blocks;
    memoi_cuda_phantom* phantom; /* device_blocks are in it, in the order of their addresses */
    memo_cuda_device_stats stats;

    /* The first failure of a host function: claimed, written, then published. */
    int32_t is_failure_claimed;
    int32_t is_failed;
    memo_error failure;
} memoi_cuda;

/* The first address from base on that memo.h's table may give out. */
MEMOI_CUDA char* memoi_cuda_aligned(void* base) {
    return (char*)base +
           (MEMOI_CUDA_ALIGNMENT - (uintptr_t)base % MEMOI_CUDA_ALIGNMENT) % MEMOI_CUDA_ALIGNMENT;
}

/* What a host function left for later calls. */
MEMOI_CUDA memo_status memoi_cuda_host_status(const memoi_cuda* cuda, memo_error* error) {
    if (!__atomic_load_n(&cuda->is_failed, __ATOMIC_ACQUIRE)) return MEMO_STATUS_OK;
    return memo_error_set(error, cuda->failure.status, "%s", cuda->failure.message);
}

/* The block that begins at address, unlinked; NULL: none does. */
MEMOI_CUDA memoi_cuda_block* memoi_cuda_take(memoi_cuda_block** list, const void* address) {
    memoi_cuda_block* block;
    for (; (block = *list) != NULL; list = &block->next) {
        if (block->address != address) continue;
        *list = block->next;
        return block;
    }
    return NULL;
}

MEMOI_CUDA memo_status memoi_cuda_not_ours(const char* memory, const void* address,
                                           memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                          "%s memory: %p was not allocated here, or is free already", memory,
                          address);
}

MEMOI_CUDA memo_status memoi_cuda_check_size(const char* memory, int64_t size_bytes,
                                             memo_error* error) {
    if (size_bytes >= 0 && size_bytes <= MEMOI_CUDA_BYTES_MAX) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "%s memory: %lld bytes cannot be",
                          memory, (long long)size_bytes);
}

/* ---- 2 pinned memory --------------------------------------------------------------------------------
 * Knows: pages, processors, registration.  Knows nothing of who copies what. */

#define MEMOI_CUDA_HUGE_BYTES  ((int64_t)2 << 20)
#define MEMOI_CUDA_TOUCH_BYTES ((int64_t)32 << 20) /* that a thread takes at a time */

/* --- touching: several threads, each takes the next bytes --- */

typedef struct memoi_cuda_touch {
    char* address;
    int64_t size_bytes, chunk_bytes;
    int64_t next;                   /* atomic: where the next thread begins */
    int32_t is_stopped, is_refused; /* atomic */
    int64_t* touched_bytes;         /* atomic, of each chunk */
    cpu_set_t near_gpu;
    int32_t has_near_gpu;
} memoi_cuda_touch;

/* 0: the system has no page left.  A container may have reserved more huge pages than its limit lets it have: a
 * write would then end the program by SIGBUS, where madvise returns. */
MEMOI_CUDA int memoi_cuda_touch_pages(char* address, int64_t size_bytes) {
    const int64_t page_bytes = 4096; /* the smallest there is */
    const int populate_write = 23;   /* MADV_POPULATE_WRITE, Linux 5.14 */
    int64_t at;
    if (madvise(address, (size_t)size_bytes, populate_write) == 0) return 1;
    if (errno == EFAULT || errno == ENOMEM) return 0;
    for (at = 0; at < size_bytes; at += page_bytes) *(volatile char*)(address + at) = 0;
    return 1;
}

MEMOI_CUDA void* memoi_cuda_touch_run(void* argument) {
    memoi_cuda_touch* touch = (memoi_cuda_touch*)argument;
    for (;;) {
        int64_t begin = __atomic_fetch_add(&touch->next, MEMOI_CUDA_TOUCH_BYTES, __ATOMIC_RELAXED);
        int64_t end = begin + MEMOI_CUDA_TOUCH_BYTES;
        if (begin >= touch->size_bytes || __atomic_load_n(&touch->is_stopped, __ATOMIC_RELAXED))
            return NULL;
        if (end > touch->size_bytes) end = touch->size_bytes;
        if (!memoi_cuda_touch_pages(touch->address + begin, end - begin)) {
            __atomic_store_n(&touch->is_refused, 1, __ATOMIC_RELAXED);
            return NULL;
        }
        __atomic_fetch_add(&touch->touched_bytes[begin / touch->chunk_bytes], end - begin,
                           __ATOMIC_RELEASE);
    }
}

MEMOI_CUDA void* memoi_cuda_touch_thread(void* argument) {
    memoi_cuda_touch* touch = (memoi_cuda_touch*)argument;
    /* A wish: what is touched from here lies in this node's memory. */
    if (touch->has_near_gpu) (void)sched_setaffinity(0, sizeof touch->near_gpu, &touch->near_gpu);
    return memoi_cuda_touch_run(touch);
}

/* "0-7,16,20-23" to a set. */
MEMOI_CUDA void memoi_cuda_parse_processors(const char* text, cpu_set_t* set) {
    CPU_ZERO(set);
    while (*text >= '0' && *text <= '9') {
        char* end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++) CPU_SET((size_t)first, set);
        if (*end != ',') return;
        text = end + 1;
    }
}

/* The processors of the GPU's node that this process may use; 0: not known, or none. */
MEMOI_CUDA int32_t memoi_cuda_near_processors(int ordinal, cpu_set_t* near_gpu) {
    char bus[32], path[96], text[1024] = "";
    cpu_set_t allowed;
    FILE* file;
    char* p;
    if (cudaDeviceGetPCIBusId(bus, (int)sizeof bus, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    for (p = bus; *p; p++)
        if (*p >= 'A' && *p <= 'F') *p = (char)(*p - 'A' + 'a');
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpulist", bus);
    file = fopen(path, "r");
    if (!file) return 0;
    if (!fgets(text, (int)sizeof text, file)) text[0] = 0;
    fclose(file);
    memoi_cuda_parse_processors(text, near_gpu);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
    CPU_AND(near_gpu, near_gpu, &allowed);
    return CPU_COUNT(near_gpu) > 0;
}

/* --- how much there is --- */

MEMOI_CUDA int64_t memoi_cuda_read_number(const char* path, const char* key, int64_t unit_bytes) {
    char line[160];
    int64_t result = -1;
    FILE* file = fopen(path, "r");
    if (!file) return -1;
    while (result < 0 && fgets(line, (int)sizeof line, file)) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) == 0 && line[n + strspn(line + n, " ")] >= '0' &&
            line[n + strspn(line + n, " ")] <= '9')
            result = (int64_t)strtoll(line + n, NULL, 10);
    }
    fclose(file);
    return result >= 0 && result < MEMOI_CUDA_BYTES_MAX / unit_bytes ? result * unit_bytes : -1;
}

/* Of a container, by the files of its control group; what is cached of files can make room.  Negative: no limit. */
MEMOI_CUDA int64_t memoi_cuda_container_available(const char* folder) {
    static const char* const files[] = {"memory.max", "memory.current", "memory.stat",
                                        "memory.stat"};
    static const char* const keys[] = {"", "", "inactive_file", "active_file"};
    int64_t bytes[4];
    char path[256];
    int k;
    for (k = 0; k < 4; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[k]);
        bytes[k] = memoi_cuda_read_number(path, keys[k], 1);
        if (k == 0 && bytes[0] < 0) return -1;
        if (bytes[k] < 0) bytes[k] = 0;
    }
    bytes[0] += bytes[2] + bytes[3] - bytes[1];
    return bytes[0] > 0 ? bytes[0] : 0;
}

/* Bytes that could still be touched, of usual pages or of the pool of huge ones; negative: not known. */
MEMOI_CUDA int64_t memoi_cuda_host_available(void) {
    int64_t machine = memoi_cuda_read_number("/proc/meminfo", "MemAvailable:", 1024);
    int64_t n_huge = memoi_cuda_read_number("/proc/meminfo", "HugePages_Free:", 1);
    int64_t huge_bytes = memoi_cuda_read_number("/proc/meminfo", "Hugepagesize:", 1024);
    int64_t container = memoi_cuda_container_available("/sys/fs/cgroup");
    if (machine >= 0 && n_huge > 0 && huge_bytes == MEMOI_CUDA_HUGE_BYTES &&
        n_huge > machine / huge_bytes)
        machine = n_huge * huge_bytes;
    return container >= 0 && (machine < 0 || container < machine) ? container : machine;
}

/* --- address space --- */

/* size_bytes is a multiple of 2 MiB, and so is the address.  NULL: the system refuses. */
MEMOI_CUDA char* memoi_cuda_map(int64_t size_bytes, int without_huge_pages, int without_pool,
                                memo_cuda_host_kind* kind) {
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    size_t wanted = (size_t)size_bytes, slack = (size_t)MEMOI_CUDA_HUGE_BYTES, before;
    char* address;
#ifdef MAP_HUGETLB
    if (!without_huge_pages && !without_pool) {
        /* The pool reserves at once or refuses.  Of pages of 2 MiB, whatever the system's usual size is: munmap
         * wants multiples of the size. */
        const int huge_2mb = 21 << 26; /* MAP_HUGE_2MB */
        address = (char*)mmap(NULL, wanted, protection, flags | MAP_HUGETLB | huge_2mb, -1, 0);
        if (address != (char*)MAP_FAILED) {
            if ((uintptr_t)address % slack == 0) {
                *kind = MEMO_CUDA_HOST_HUGETLB;
                return address;
            }
            munmap(address, wanted);
        }
    }
#endif
    address = (char*)mmap(NULL, wanted + slack, protection, flags, -1, 0);
    if (address == (char*)MAP_FAILED) return NULL;
    before = (slack - (uintptr_t)address % slack) % slack;
    if (before) munmap(address, before);
    address += before;
    if (slack > before) munmap(address + wanted, slack - before);
    *kind = MEMO_CUDA_HOST_PAGES;
#ifdef MADV_HUGEPAGE
    if (!without_huge_pages && madvise(address, wanted, MADV_HUGEPAGE) == 0)
        *kind = MEMO_CUDA_HOST_TRANSPARENT;
#endif
    return address;
}

/* --- the arena --- */

MEMOI_CUDA int64_t memoi_cuda_n_chunks(const memoi_cuda_block* block) {
    return block->chunk_bytes ? (block->mapped_bytes + block->chunk_bytes - 1) / block->chunk_bytes
                              : 0;
}

MEMOI_CUDA int64_t memoi_cuda_chunk_size(const memoi_cuda_block* block, int64_t chunk) {
    int64_t begin = chunk * block->chunk_bytes;
    return block->mapped_bytes - begin < block->chunk_bytes ? block->mapped_bytes - begin
                                                            : block->chunk_bytes;
}

MEMOI_CUDA void memoi_cuda_unpin(const memoi_cuda_block* block, int64_t n_registered) {
    int64_t chunk;
    for (chunk = 0; chunk < n_registered; chunk++)
        if (cudaHostUnregister(block->address + chunk * block->chunk_bytes) != cudaSuccess)
            (void)cudaGetLastError();
    munmap(block->address, (size_t)block->mapped_bytes);
}

/* Told once a second, from the first second on. */
typedef struct memoi_cuda_progress {
    const memo_log* log;
    double begin_s, told_s;
    int64_t size_bytes;
} memoi_cuda_progress;

MEMOI_CUDA void memoi_cuda_tell(memoi_cuda_progress* progress, const memoi_cuda_touch* touch,
                                int64_t registered_bytes) {
    double now_s = memoi_cuda_now_s();
    int64_t touched_bytes = 0, chunk;
    char all[32], touched[32], registered[32], message[200];
    if (!progress->log->write || now_s - progress->told_s < 1) return;
    progress->told_s = now_s;
    for (chunk = 0; chunk * touch->chunk_bytes < touch->size_bytes; chunk++)
        touched_bytes += __atomic_load_n(&touch->touched_bytes[chunk], __ATOMIC_RELAXED);
    snprintf(message, sizeof message, "pinning %s: %s touched, %s registered after %.1f s",
             memoi_cuda_bytes_name(all, progress->size_bytes),
             memoi_cuda_bytes_name(touched, touched_bytes),
             memoi_cuda_bytes_name(registered, registered_bytes), now_s - progress->begin_s);
    progress->log->write(progress->log->user, message);
}

/* Registers each chunk of block as soon as it is touched.  Undoes all of it, the mapping too, on failure. */
MEMOI_CUDA memo_status memoi_cuda_pin(const memoi_cuda* cuda, const memoi_cuda_block* block,
                                      memo_error* error) {
    enum { THREADS_MAX = 64 };
    pthread_t threads[THREADS_MAX];
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t n_chunks = memoi_cuda_n_chunks(block), chunk, n_registered = 0;
    int32_t n_wanted = cuda->desc.host_threads, n_threads = 0, k;
    memoi_cuda_touch touch;
    memoi_cuda_progress progress;
    memo_status status = MEMO_STATUS_OK;
    memset(&touch, 0, sizeof touch);
    touch.address = block->address;
    touch.size_bytes = block->mapped_bytes;
    touch.chunk_bytes = block->chunk_bytes;
    touch.touched_bytes = (int64_t*)memoi_cuda_zeroed((size_t)n_chunks * sizeof(int64_t));
    if (!touch.touched_bytes) {
        memoi_cuda_unpin(block, 0);
        return memoi_cuda_no_memory(error, "the chunks of pinned memory");
    }
    touch.has_near_gpu = memoi_cuda_near_processors(cuda->ordinal, &touch.near_gpu);
    progress.log = &cuda->desc.log;
    progress.begin_s = progress.told_s = memoi_cuda_now_s();
    progress.size_bytes = block->mapped_bytes;
    if (n_wanted == 0)
        n_wanted = n_processors > 16 ? 16 : n_processors > 0 ? (int32_t)n_processors : 1;
    if (n_wanted > THREADS_MAX) n_wanted = THREADS_MAX;
    if (n_wanted > block->mapped_bytes / MEMOI_CUDA_TOUCH_BYTES + 1)
        n_wanted = (int32_t)(block->mapped_bytes / MEMOI_CUDA_TOUCH_BYTES + 1);
    while (n_threads < n_wanted &&
           pthread_create(&threads[n_threads], NULL, memoi_cuda_touch_thread, &touch) == 0)
        n_threads++;
    if (n_threads == 0) (void)memoi_cuda_touch_run(&touch);
    for (chunk = 0; chunk < n_chunks && !status; chunk++) {
        int64_t chunk_bytes = memoi_cuda_chunk_size(block, chunk);
        while (__atomic_load_n(&touch.touched_bytes[chunk], __ATOMIC_ACQUIRE) < chunk_bytes &&
               !__atomic_load_n(&touch.is_refused, __ATOMIC_RELAXED)) {
            struct timespec nap = {0, 200000};
            nanosleep(&nap, NULL);
            memoi_cuda_tell(&progress, &touch, chunk * block->chunk_bytes);
        }
        if (__atomic_load_n(&touch.is_refused, __ATOMIC_RELAXED))
            status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                    "%lld bytes were mapped, but the system has no pages for them",
                                    (long long)block->mapped_bytes);
        else
            status = MEMOI_CUDA_CALL(cudaHostRegister,
                                     (block->address + chunk * block->chunk_bytes,
                                      (size_t)chunk_bytes, cudaHostRegisterPortable),
                                     error);
        if (!status) n_registered++;
        memoi_cuda_tell(&progress, &touch, n_registered * block->chunk_bytes);
    }
    if (status) __atomic_store_n(&touch.is_stopped, 1, __ATOMIC_RELAXED);
    for (k = 0; k < n_threads; k++) pthread_join(threads[k], NULL);
    MEMO_FREE(touch.touched_bytes);
    if (status) memoi_cuda_unpin(block, n_registered);
    return status;
}

/* Fills block by touched and registered memory; size_bytes is at least 2 MiB. */
MEMOI_CUDA memo_status memoi_cuda_register_memory(memoi_cuda* cuda, memoi_cuda_block* block,
                                                  memo_error* error) {
    memo_cuda_host_kind kind = MEMO_CUDA_HOST_NONE;
    memo_status status;
    int without_pool = 0;
    block->chunk_bytes =
        cuda->desc.host_chunk_bytes ? cuda->desc.host_chunk_bytes : (int64_t)8 << 30;
    block->chunk_bytes = memoi_cuda_round_up(block->chunk_bytes, MEMOI_CUDA_TOUCH_BYTES);
    block->mapped_bytes = memoi_cuda_round_up(block->size_bytes, MEMOI_CUDA_HUGE_BYTES);
    do {
        block->address = memoi_cuda_map(block->mapped_bytes, cuda->desc.without_huge_pages,
                                        without_pool++, &kind);
        if (!block->address)
            return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "mmap of %lld bytes: %s",
                                  (long long)block->mapped_bytes, strerror(errno));
        status = memoi_cuda_pin(cuda, block, error);
    } while (status == MEMO_STATUS_OUT_OF_HOST_MEMORY && kind == MEMO_CUDA_HOST_HUGETLB);
    if (status) return status;
    cuda->stats.host_kind = kind;
    cuda->stats.host_chunks = memoi_cuda_n_chunks(block);
    return MEMO_STATUS_OK;
}

MEMOI_CUDA memo_status memoi_cuda_host_alloc(void* context, int64_t size_bytes, void** address,
                                             memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memoi_cuda_block* block;
    double begin_s = memoi_cuda_now_s();
    int64_t available_bytes;
    memo_error first;
    memo_status status = on.status;
    *address = NULL;
    if (!status) status = memoi_cuda_check_size("host", size_bytes, error);
    if (status) return status;
    available_bytes = memoi_cuda_host_available();
    if (available_bytes >= 0 && size_bytes > available_bytes) {
        char asked[32], available[32];
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "host memory: %s (%lld bytes) asked for, %s (%lld bytes) available",
                              memoi_cuda_bytes_name(asked, size_bytes), (long long)size_bytes,
                              memoi_cuda_bytes_name(available, available_bytes),
                              (long long)available_bytes);
    }
    block = (memoi_cuda_block*)memoi_cuda_zeroed(sizeof *block);
    if (!block) return memoi_cuda_no_memory(error, "the list of pinned memory");
    block->size_bytes = size_bytes;
    first.message[0] = 0;
    if (size_bytes < MEMOI_CUDA_HUGE_BYTES || !cuda->can_register ||
        (status = memoi_cuda_register_memory(cuda, block, &first)) != MEMO_STATUS_OK) {
        block->mapped_bytes = block->chunk_bytes = 0;
        if (status && cuda->desc.log.write) {
            char message[600];
            snprintf(message, sizeof message, "pinned memory: %s; asking cudaHostAlloc instead",
                     first.message);
            cuda->desc.log.write(cuda->desc.log.user, message);
        }
        status = MEMOI_CUDA_CALL(cudaHostAlloc,
                                 (&block->base, (size_t)size_bytes + MEMOI_CUDA_ALIGNMENT,
                                  (unsigned)cudaHostAllocPortable),
                                 error);
        block->address = memoi_cuda_aligned(block->base); /* CUDA promises no alignment */
        if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
            status = memo_error_set(
                error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                "cudaHostAlloc: cudaErrorMemoryAllocation, %lld bytes of pinned "
                "memory" MEMOI_CUDA_PLACE "%s%.300s",
                (long long)size_bytes, first.message[0] ? "; before that " : "", first.message);
        if (status) {
            MEMO_FREE(block);
            return status;
        }
        cuda->stats.host_kind = MEMO_CUDA_HOST_CUDA;
        cuda->stats.host_chunks = 1;
    }
    block->next = cuda->host_blocks;
    cuda->host_blocks = block;
    cuda->stats.host_bytes += size_bytes;
    cuda->stats.host_alloc_s = memoi_cuda_now_s() - begin_s;
    *address = block->address;
    return MEMO_STATUS_OK;
}

/* block is in no list any more; it is gone whether CUDA refuses or not. */
MEMOI_CUDA memo_status memoi_cuda_release_host(memoi_cuda* cuda, memoi_cuda_block* block,
                                               memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (block->base)
        status = MEMOI_CUDA_CALL(cudaFreeHost, (block->base), error);
    else
        memoi_cuda_unpin(block, memoi_cuda_n_chunks(block));
    cuda->stats.host_bytes -= block->size_bytes;
    MEMO_FREE(block);
    return status;
}

MEMOI_CUDA memo_status memoi_cuda_host_free(void* context, void* address, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memoi_cuda_block* block;
    memo_status status = on.status;
    if (!address || status) return status;
    block = memoi_cuda_take(&cuda->host_blocks, address);
    return block ? memoi_cuda_release_host(cuda, block, error)
                 : memoi_cuda_not_ours("host", address, error);
}

/* Where the registered chunk that holds address ends; NULL: in memory that has no such borders. */
MEMOI_CUDA const char* memoi_cuda_chunk_end(const memoi_cuda* cuda, const char* address) {
    const memoi_cuda_block* block;
    for (block = cuda->host_blocks; block; block = block->next) {
        int64_t at = address - block->address;
        if (!block->chunk_bytes || block->mapped_bytes <= block->chunk_bytes) continue;
        if (address < block->address || at >= block->mapped_bytes) continue;
        return block->address + (at / block->chunk_bytes + 1) * block->chunk_bytes;
    }
    return NULL;
}

/* ---- 4 phantom memory -------------------------------------------------------------------------------
 * Knows: the driver's virtual memory management.  Knows nothing of who asked for the addresses. */

typedef struct memoi_cuda_driver {
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) free_addresses;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;
    decltype(&cuDeviceGetAttribute) get_attribute;
    decltype(&cuGetErrorName) error_name;
    CUmemAllocationProp properties;
    int64_t page_bytes; /* sizes of chunks are multiples of it */
    int ordinal;
} memoi_cuda_driver;

struct memoi_cuda_phantom {
    memoi_cuda_driver driver;
    CUmemGenericAllocationHandle chunk;
    int64_t chunk_bytes; /* 0: none yet */
    CUdeviceptr address;
    int64_t size_bytes; /* of addresses: whole chunks */
    int64_t n_mapped;
};

MEMOI_CUDA memo_status memoi_cuda_driver_check(const memoi_cuda_driver* driver, CUresult code,
                                               const char* call, int line, memo_error* error) {
    const char* name = NULL;
    memo_status status = MEMO_STATUS_DEVICE;
    if (code == CUDA_SUCCESS) return MEMO_STATUS_OK;
    if (driver->error_name) (void)driver->error_name(code, &name);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) status = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    if (code == CUDA_ERROR_NOT_SUPPORTED) status = MEMO_STATUS_UNSUPPORTED;
    return memo_error_set(error, status, "%s: %s (%d), memo_cuda.cuh:%d", call,
                          name ? name : "an error without a name", (int)code, line);
}
#define MEMOI_CUDA_DRIVER(driver, member, call, arguments, error)                                  \
    memoi_cuda_driver_check(driver, (driver)->member arguments, #call, __LINE__, error)

MEMOI_CUDA memo_status memoi_cuda_find(const char* symbol, void** function, memo_error* error) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    memo_status status;
    *function = NULL;
#if CUDART_VERSION >= 12050
    /* 10.2 is the version that brought all of them. */
    status = MEMOI_CUDA_CALL(cudaGetDriverEntryPointByVersion,
                             (symbol, function, 10020, cudaEnableDefault, &found), error);
#else
    status = MEMOI_CUDA_CALL(cudaGetDriverEntryPoint, (symbol, function, cudaEnableDefault, &found),
                             error);
#endif
    if (status) return status;
    if (found == cudaDriverEntryPointSuccess && *function) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "the driver has no %s: virtual memory management needs a newer one",
                          symbol);
}

/* The caller is on the device. */
MEMOI_CUDA memo_status memoi_cuda_driver_open(int ordinal, memoi_cuda_driver* driver,
                                              memo_error* error) {
    const struct {
        const char* symbol;
        void** function;
    } wanted[] = {
        {"cuMemGetAllocationGranularity", (void**)&driver->granularity},
        {"cuMemCreate", (void**)&driver->create},
        {"cuMemRelease", (void**)&driver->release},
        {"cuMemAddressReserve", (void**)&driver->reserve},
        {"cuMemAddressFree", (void**)&driver->free_addresses},
        {"cuMemMap", (void**)&driver->map},
        {"cuMemUnmap", (void**)&driver->unmap},
        {"cuMemSetAccess", (void**)&driver->set_access},
        {"cuDeviceGetAttribute", (void**)&driver->get_attribute},
        {"cuGetErrorName", (void**)&driver->error_name},
    };
    memo_status status = MEMO_STATUS_OK;
    size_t page_bytes = 0, k;
    int is_supported = 0;
    memset(driver, 0, sizeof *driver);
    for (k = 0; k < sizeof wanted / sizeof wanted[0] && !status; k++)
        status = memoi_cuda_find(wanted[k].symbol, wanted[k].function, error);
    if (!status)
        status = MEMOI_CUDA_DRIVER(
            driver, get_attribute, cuDeviceGetAttribute,
            (&is_supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal),
            error);
    if (!status && !is_supported)
        status = memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                                "CUDA device %d has no virtual memory management", ordinal);
    if (status) return status;
    driver->ordinal = ordinal;
    driver->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    driver->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    driver->properties.location.id = ordinal;
    status = MEMOI_CUDA_DRIVER(
        driver, granularity, cuMemGetAllocationGranularity,
        (&page_bytes, &driver->properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), error);
    driver->page_bytes = (int64_t)page_bytes;
    return status;
}

MEMOI_CUDA void memoi_cuda_phantom_destroy(memoi_cuda_phantom* phantom) {
    CUdeviceptr at;
    if (!phantom) return;
    memoi_cuda_on on(phantom->driver.ordinal, NULL, 1);
    for (at = phantom->address; phantom->n_mapped > 0; phantom->n_mapped--) {
        (void)phantom->driver.unmap(at, (size_t)phantom->chunk_bytes);
        at += (CUdeviceptr)phantom->chunk_bytes;
    }
    if (phantom->address)
        (void)phantom->driver.free_addresses(phantom->address, (size_t)phantom->size_bytes);
    if (phantom->chunk_bytes) (void)phantom->driver.release(phantom->chunk);
    MEMO_FREE(phantom);
}

/* Fewer, larger mappings are quicker; unless its size was asked for, a chunk that is not free is halved. */
MEMOI_CUDA memo_status memoi_cuda_take_chunk(memoi_cuda_phantom* phantom, int64_t size_bytes,
                                             int64_t chunk_bytes, memo_error* error) {
    const int64_t most_bytes = (int64_t)1 << 30, least_bytes = (int64_t)16 << 20;
    const int is_chosen = chunk_bytes != 0;
    const memoi_cuda_driver* driver = &phantom->driver;
    memo_status status;
    if (!is_chosen) chunk_bytes = size_bytes < most_bytes ? size_bytes : most_bytes;
    for (;;) {
        int64_t whole_bytes = memoi_cuda_round_up(chunk_bytes, driver->page_bytes);
        status = MEMOI_CUDA_DRIVER(driver, create, cuMemCreate,
                                   (&phantom->chunk, (size_t)whole_bytes, &driver->properties, 0),
                                   error);
        if (!status) phantom->chunk_bytes = whole_bytes;
        if (status != MEMO_STATUS_OUT_OF_DEVICE_MEMORY || is_chosen || chunk_bytes <= least_bytes)
            return status;
        chunk_bytes /= 2;
    }
}

MEMOI_CUDA memo_status memoi_cuda_map_chunk(memoi_cuda_phantom* phantom, int64_t size_bytes,
                                            memo_error* error) {
    const int64_t n_chunks = (size_bytes - 1) / phantom->chunk_bytes + 1;
    const memoi_cuda_driver* driver = &phantom->driver;
    CUmemAccessDesc access;
    CUdeviceptr at;
    memo_status status;
    phantom->size_bytes = n_chunks * phantom->chunk_bytes;
    status = MEMOI_CUDA_DRIVER(driver, reserve, cuMemAddressReserve,
                               (&phantom->address, (size_t)phantom->size_bytes, 0, 0, 0), error);
    for (at = phantom->address; phantom->n_mapped < n_chunks && !status;
         at += (CUdeviceptr)phantom->chunk_bytes) {
        status = MEMOI_CUDA_DRIVER(driver, map, cuMemMap,
                                   (at, (size_t)phantom->chunk_bytes, 0, phantom->chunk, 0), error);
        if (!status) phantom->n_mapped++;
    }
    memset(&access, 0, sizeof access);
    access.location = driver->properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return status ? status
                  : MEMOI_CUDA_DRIVER(driver, set_access, cuMemSetAccess,
                                      (phantom->address, (size_t)phantom->size_bytes, &access, 1),
                                      error);
}

/* The caller is on the device.  chunk_bytes 0: as is free. */
MEMOI_CUDA memo_status memoi_cuda_phantom_make(int ordinal, int64_t size_bytes, int64_t chunk_bytes,
                                               memoi_cuda_phantom** result, memo_error* error) {
    memoi_cuda_phantom* phantom = (memoi_cuda_phantom*)memoi_cuda_zeroed(sizeof *phantom);
    memo_status status;
    if (!phantom) return memoi_cuda_no_memory(error, "phantom memory");
    status = memoi_cuda_driver_open(ordinal, &phantom->driver, error);
    if (!status) status = memoi_cuda_take_chunk(phantom, size_bytes, chunk_bytes, error);
    if (!status) status = memoi_cuda_map_chunk(phantom, size_bytes, error);
    if (status)
        memoi_cuda_phantom_destroy(phantom);
    else
        *result = phantom;
    return status;
}

/* ---- 1 device -----------------------------------------------------------------------------------------
 * Knows: the table of memo.h, a CUDA call an entry.  Knows nothing of plans, layers or swapping. */

/* --- device memory --- */

MEMOI_CUDA memo_status memoi_cuda_out_of_memory(int64_t size_bytes, memo_error* error) {
    size_t free_bytes = 0, total_bytes = 0;
    char asked[32], left[32], all[32];
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) (void)cudaGetLastError();
    return memo_error_set(
        error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
        "cudaMalloc: cudaErrorMemoryAllocation, %s (%lld bytes) asked for, %s (%lld bytes) free of "
        "%s" MEMOI_CUDA_PLACE,
        memoi_cuda_bytes_name(asked, size_bytes), (long long)size_bytes,
        memoi_cuda_bytes_name(left, (int64_t)free_bytes), (long long)free_bytes,
        memoi_cuda_bytes_name(all, (int64_t)total_bytes));
}

MEMOI_CUDA memo_status memoi_cuda_malloc(memoi_cuda_block* block, memo_error* error) {
    size_t wanted = block->size_bytes ? (size_t)block->size_bytes : 1;
    memo_status status = MEMOI_CUDA_CALL(cudaMalloc, (&block->base, wanted), error);
    if (!status && (uintptr_t)block->base % MEMOI_CUDA_ALIGNMENT) { /* CUDA promises 256 */
        status = MEMOI_CUDA_CALL(cudaFree, (block->base), error);
        if (!status)
            status =
                MEMOI_CUDA_CALL(cudaMalloc, (&block->base, wanted + MEMOI_CUDA_ALIGNMENT), error);
    }
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        return memoi_cuda_out_of_memory(block->size_bytes, error);
    if (status) return status;
    block->address = memoi_cuda_aligned(block->base);
    return MEMO_STATUS_OK;
}

/* The first gap between blocks that is large enough; *place is where the list goes on behind it. */
MEMOI_CUDA memo_status memoi_cuda_find_phantom(memoi_cuda* cuda, memoi_cuda_block* block,
                                               memoi_cuda_block*** place, memo_error* error) {
    char* at = (char*)(uintptr_t)cuda->phantom->address;
    char* end = at + cuda->phantom->size_bytes;
    int64_t needed =
        memoi_cuda_round_up(block->size_bytes ? block->size_bytes : 1, MEMOI_CUDA_ALIGNMENT);
    memoi_cuda_block** list = &cuda->device_blocks;
    for (; *list && (*list)->address - at < needed; list = &(*list)->next)
        at = (*list)->address + (*list)->mapped_bytes;
    if (!*list && end - at < needed)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "phantom memory: %lld bytes asked for, no gap is so large; raise "
                              "phantom_bytes above %lld",
                              (long long)block->size_bytes, (long long)cuda->desc.phantom_bytes);
    block->address = at;
    block->mapped_bytes = needed;
    *place = list;
    return MEMO_STATUS_OK;
}

MEMOI_CUDA memo_status memoi_cuda_device_alloc(void* context, int64_t size_bytes, void** address,
                                               memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memoi_cuda_block** place = &cuda->device_blocks;
    memoi_cuda_block* block;
    memo_status status = on.status;
    *address = NULL;
    if (!status) status = memoi_cuda_check_size("device", size_bytes, error);
    if (status) return status;
    block = (memoi_cuda_block*)memoi_cuda_zeroed(sizeof *block);
    if (!block) return memoi_cuda_no_memory(error, "the list of device memory");
    block->size_bytes = size_bytes;
    status = cuda->phantom ? memoi_cuda_find_phantom(cuda, block, &place, error)
                           : memoi_cuda_malloc(block, error);
    if (status) {
        MEMO_FREE(block);
        return status;
    }
    block->next = *place;
    *place = block;
    cuda->stats.device_bytes += size_bytes;
    *address = block->address;
    return MEMO_STATUS_OK;
}

/* block is in no list any more; it is gone whether CUDA refuses or not. */
MEMOI_CUDA memo_status memoi_cuda_release_device(memoi_cuda* cuda, memoi_cuda_block* block,
                                                 memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (block->base) status = MEMOI_CUDA_CALL(cudaFree, (block->base), error);
    cuda->stats.device_bytes -= block->size_bytes;
    MEMO_FREE(block);
    return status;
}

MEMOI_CUDA memo_status memoi_cuda_device_free(void* context, void* address, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memoi_cuda_block* block;
    memo_status status = on.status;
    if (!address || status) return status;
    block = memoi_cuda_take(&cuda->device_blocks, address);
    return block ? memoi_cuda_release_device(cuda, block, error)
                 : memoi_cuda_not_ours("device", address, error);
}

MEMOI_CUDA memo_status memoi_cuda_memory_info(void* context, int64_t* free_bytes,
                                              int64_t* total_bytes, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    size_t left = 0, all = 0;
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaMemGetInfo, (&left, &all), error);
    if (status) return status;
    *free_bytes = (int64_t)left;
    *total_bytes = (int64_t)all;
    if (cuda->phantom) {
        *total_bytes = cuda->phantom->size_bytes;
        *free_bytes = *total_bytes - cuda->stats.device_bytes;
    }
    return MEMO_STATUS_OK;
}

/* --- streams --- */

MEMOI_CUDA memo_status memoi_cuda_stream_create(void* context, const char* name, int32_t priority,
                                                memo_stream* stream, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    int least = 0, greatest = 0, wanted; /* CUDA counts down: least is 0, greatest is negative */
    cudaStream_t created = NULL;
    memo_status status = on.status;
    (void)name; /* CUDA's streams have none */
    *stream = NULL;
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetStreamPriorityRange, (&least, &greatest), error);
    if (status) return status;
    wanted = priority > least - greatest ? greatest : priority > 0 ? least - (int)priority : least;
    status = MEMOI_CUDA_CALL(cudaStreamCreateWithPriority,
                             (&created, cudaStreamNonBlocking, wanted), error);
    if (!status) *stream = (memo_stream)created;
    return status;
}

MEMOI_CUDA memo_status memoi_cuda_stream_destroy(void* context, memo_stream stream,
                                                 memo_error* error) {
    memoi_cuda_on on(((memoi_cuda*)context)->ordinal, error);
    if (!stream || on.status) return on.status;
    return MEMOI_CUDA_CALL(cudaStreamDestroy, (memo_cuda_stream(stream)), error);
}

MEMOI_CUDA memo_status memoi_cuda_stream_synchronize(void* context, memo_stream stream,
                                                     memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaStreamSynchronize, (memo_cuda_stream(stream)), error);
    return status ? status : memoi_cuda_host_status(cuda, error);
}

/* --- events --- */

MEMOI_CUDA memo_status memoi_cuda_event_create(void* context, memo_event* event,
                                               memo_error* error) {
    memoi_cuda_on on(((memoi_cuda*)context)->ordinal, error);
    cudaEvent_t created = NULL;
    memo_status status = on.status;
    *event = NULL;
    if (!status)
        status = MEMOI_CUDA_CALL(cudaEventCreateWithFlags, (&created, cudaEventDefault), error);
    if (!status) *event = (memo_event)created;
    return status;
}

MEMOI_CUDA memo_status memoi_cuda_event_destroy(void* context, memo_event event,
                                                memo_error* error) {
    memoi_cuda_on on(((memoi_cuda*)context)->ordinal, error);
    if (!event || on.status) return on.status;
    return MEMOI_CUDA_CALL(cudaEventDestroy, (memo_cuda_event(event)), error);
}

MEMOI_CUDA memo_status memoi_cuda_event_record(void* context, memo_event event, memo_stream stream,
                                               memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status ? on.status : memoi_cuda_host_status(cuda, error);
    if (status) return status;
    return MEMOI_CUDA_CALL(cudaEventRecord, (memo_cuda_event(event), memo_cuda_stream(stream)),
                           error);
}

MEMOI_CUDA memo_status memoi_cuda_event_wait(void* context, memo_event event, memo_stream stream,
                                             memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status ? on.status : memoi_cuda_host_status(cuda, error);
    if (status) return status;
    return MEMOI_CUDA_CALL(cudaStreamWaitEvent,
                           (memo_cuda_stream(stream), memo_cuda_event(event), 0), error);
}

/* "Not ready" is an answer and no error, but CUDA leaves it for cudaGetLastError, where the next check of a kernel
 * would take it for one. */
MEMOI_CUDA void memoi_cuda_forget_not_ready(void) {
    if (cudaPeekAtLastError() == cudaErrorNotReady) (void)cudaGetLastError();
}

/* Asking is no work: it neither joins nor spoils a capture that goes on elsewhere. */
struct memoi_cuda_relaxed {
    cudaStreamCaptureMode mode;
    memoi_cuda_relaxed() : mode(cudaStreamCaptureModeRelaxed) {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~memoi_cuda_relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
};

MEMOI_CUDA memo_status memoi_cuda_event_query(void* context, memo_event event, int32_t* is_done,
                                              memo_error* error) {
    memoi_cuda_on on(((memoi_cuda*)context)->ordinal, error);
    memoi_cuda_relaxed relaxed;
    cudaError_t code;
    if (on.status) return on.status;
    code = cudaEventQuery(memo_cuda_event(event));
    *is_done = code == cudaSuccess;
    if (code == cudaErrorNotReady) {
        memoi_cuda_forget_not_ready();
        return MEMO_STATUS_OK;
    }
    return memo_cuda_check_at(code, "cudaEventQuery", __FILE__, __LINE__, error);
}

MEMOI_CUDA memo_status memoi_cuda_event_synchronize(void* context, memo_event event,
                                                    memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaEventSynchronize, (memo_cuda_event(event)), error);
    return status ? status : memoi_cuda_host_status(cuda, error);
}

MEMOI_CUDA memo_status memoi_cuda_event_elapsed(void* context, memo_event begin, memo_event end,
                                                double* elapsed_s, memo_error* error) {
    memoi_cuda_on on(((memoi_cuda*)context)->ordinal, error);
    float elapsed_ms = 0;
    cudaError_t code;
    if (on.status) return on.status;
    code = cudaEventElapsedTime(&elapsed_ms, memo_cuda_event(begin), memo_cuda_event(end));
    if (code == cudaErrorNotReady || code == cudaErrorInvalidResourceHandle ||
        code == cudaErrorCapturedEvent) {
        (void)cudaGetLastError();
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "cudaEventElapsedTime: %s: one of the events %s" MEMOI_CUDA_PLACE,
                              cudaGetErrorName(code),
                              code == cudaErrorNotReady ? "is not done; synchronise first"
                                                        : "was never recorded, or in a graph");
    }
    *elapsed_s = (double)elapsed_ms * 1e-3;
    return memo_cuda_check_at(code, "cudaEventElapsedTime", __FILE__, __LINE__, error);
}

/* --- copies --- */

MEMOI_CUDA memo_status memoi_cuda_copy_once(memo_copy_kind kind, cudaStream_t stream, char* to,
                                            const char* from, int64_t size_bytes,
                                            memo_error* error) {
    static const cudaMemcpyKind kinds[] = {cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice,
                                           cudaMemcpyDeviceToDevice};
    return MEMOI_CUDA_CALL(cudaMemcpyAsync, (to, from, (size_t)size_bytes, kinds[kind], stream),
                           error);
}

/* In parts where the host's side crosses the border of two registered chunks. */
MEMOI_CUDA memo_status memoi_cuda_copy_bytes(const memoi_cuda* cuda, memo_copy_kind kind,
                                             cudaStream_t stream, char* to, const char* from,
                                             int64_t size_bytes, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    while (size_bytes > 0 && !status) {
        const char* on_host = kind == MEMO_COPY_TO_HOST ? to : from;
        const char* end = kind == MEMO_COPY_ON_DEVICE ? NULL : memoi_cuda_chunk_end(cuda, on_host);
        int64_t n = end && end - on_host < size_bytes ? end - on_host : size_bytes;
        status = memoi_cuda_copy_once(kind, stream, to, from, n, error);
        to += n;
        from += n;
        size_bytes -= n;
    }
    return status;
}

/* How many rows from on_host on lie wholly before the border of their chunk. */
MEMOI_CUDA int64_t memoi_cuda_rows_before_border(const memoi_cuda* cuda, const char* on_host,
                                                 int64_t stride_bytes, int64_t row_bytes,
                                                 int64_t n_rows) {
    const char* end = memoi_cuda_chunk_end(cuda, on_host);
    int64_t room, n;
    if (!end) return n_rows;
    room = end - on_host;
    if (room < row_bytes) return 0;
    n = (room - row_bytes) / stride_bytes + 1;
    return n < n_rows ? n : n_rows;
}

MEMOI_CUDA memo_status memoi_cuda_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                            void* to, int64_t to_stride_bytes, const void* from,
                                            int64_t from_stride_bytes, int64_t row_bytes,
                                            int64_t n_rows, memo_error* error) {
    static const cudaMemcpyKind kinds[] = {cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice,
                                           cudaMemcpyDeviceToDevice};
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    char* target = (char*)to;
    const char* source = (const char*)from;
    memo_status status = on.status ? on.status : memoi_cuda_host_status(cuda, error);
    if (status) return status;
    if ((int)kind < 0 || kind > MEMO_COPY_ON_DEVICE)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "copy: %d is no memo_copy_kind",
                              (int)kind);
    if (row_bytes < 0 || n_rows < 0 || (n_rows && row_bytes > MEMOI_CUDA_BYTES_MAX / n_rows))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "copy: %lld rows of %lld bytes cannot be", (long long)n_rows,
                              (long long)row_bytes);
    if (n_rows > 1 && (to_stride_bytes < row_bytes || from_stride_bytes < row_bytes ||
                       to_stride_bytes > MEMOI_CUDA_BYTES_MAX / n_rows ||
                       from_stride_bytes > MEMOI_CUDA_BYTES_MAX / n_rows))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "copy: strides %lld and %lld do not fit %lld rows of %lld bytes",
                              (long long)to_stride_bytes, (long long)from_stride_bytes,
                              (long long)n_rows, (long long)row_bytes);
    if (row_bytes == 0 || n_rows == 0) return MEMO_STATUS_OK;
    if (!to || !from)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "copy: %s is NULL",
                              to ? "from" : "to");
    if (n_rows == 1 || (to_stride_bytes == row_bytes && from_stride_bytes == row_bytes))
        return memoi_cuda_copy_bytes(cuda, kind, memo_cuda_stream(stream), target, source,
                                     row_bytes * n_rows, error);
    while (n_rows > 0 && !status) {
        int64_t n = 1;
        if ((size_t)to_stride_bytes <= cuda->max_pitch_bytes &&
            (size_t)from_stride_bytes <= cuda->max_pitch_bytes)
            n = kind == MEMO_COPY_ON_DEVICE
                    ? n_rows
                    : memoi_cuda_rows_before_border(
                          cuda, kind == MEMO_COPY_TO_HOST ? target : source,
                          kind == MEMO_COPY_TO_HOST ? to_stride_bytes : from_stride_bytes,
                          row_bytes, n_rows);
        if (n > 1) {
            status = MEMOI_CUDA_CALL(cudaMemcpy2DAsync,
                                     (target, (size_t)to_stride_bytes, source,
                                      (size_t)from_stride_bytes, (size_t)row_bytes, (size_t)n,
                                      kinds[kind], memo_cuda_stream(stream)),
                                     error);
        } else {
            n = 1;
            status = memoi_cuda_copy_bytes(cuda, kind, memo_cuda_stream(stream), target, source,
                                           row_bytes, error);
        }
        target += n * to_stride_bytes;
        source += n * from_stride_bytes;
        n_rows -= n;
    }
    return status;
}

MEMOI_CUDA memo_status memoi_cuda_copy(void* context, memo_stream stream, memo_copy_kind kind,
                                       void* to, const void* from, int64_t size_bytes,
                                       memo_error* error) {
    return memoi_cuda_copy_rows(context, stream, kind, to, size_bytes, from, size_bytes, size_bytes,
                                1, error);
}

MEMOI_CUDA memo_status memoi_cuda_fill(void* context, memo_stream stream, void* address,
                                       int32_t byte_value, int64_t size_bytes, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status ? on.status : memoi_cuda_host_status(cuda, error);
    if (status) return status;
    if (size_bytes < 0 || (!address && size_bytes))
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "fill: %lld bytes at %p",
                              (long long)size_bytes, address);
    if (size_bytes == 0) return MEMO_STATUS_OK;
    return MEMOI_CUDA_CALL(cudaMemsetAsync,
                           (address, (int)byte_value, (size_t)size_bytes, memo_cuda_stream(stream)),
                           error);
}

/* --- host functions --- */

/* On CUDA's thread; nothing here may call CUDA. */
MEMOI_CUDA void CUDART_CB memoi_cuda_run_host(void* argument) {
    const memo_host_call* call = (const memo_host_call*)argument;
    memoi_cuda* cuda = (memoi_cuda*)call->device;
    memo_error error;
    memo_status status;
    if (__atomic_load_n(&cuda->is_failed, __ATOMIC_ACQUIRE)) return;
    memset(&error, 0, sizeof error);
    status = call->function(call->argument, &error);
    if (!status || __atomic_exchange_n(&cuda->is_failure_claimed, 1, __ATOMIC_RELAXED)) return;
    memo_error_set(&cuda->failure, status, "host function: %.400s",
                   error.message[0] ? error.message : memo_status_name(status));
    __atomic_store_n(&cuda->is_failed, 1, __ATOMIC_RELEASE);
}

MEMOI_CUDA memo_status memoi_cuda_launch_host(void* context, memo_stream stream,
                                              memo_host_call* call, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status ? on.status : memoi_cuda_host_status(cuda, error);
    if (status) return status;
    if (call->device != cuda) call->device = cuda; /* else CUDA's thread may be reading it */
    return MEMOI_CUDA_CALL(cudaLaunchHostFunc,
                           (memo_cuda_stream(stream), memoi_cuda_run_host, call), error);
}

/* Peeks: what the trainer's own cudaGetLastError would find stays there. */
MEMOI_CUDA memo_status memoi_cuda_status(void* context, memo_error* error) {
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda->ordinal, error);
    memoi_cuda_relaxed relaxed;
    cudaError_t code;
    if (on.status) return on.status;
    if (memoi_cuda_host_status(cuda, error)) return cuda->failure.status;
    memoi_cuda_forget_not_ready();
    code = cudaPeekAtLastError();
    if (code != cudaSuccess)
        return memo_error_set(error, MEMO_STATUS_DEVICE,
                              "cudaPeekAtLastError: %s (%s)" MEMOI_CUDA_PLACE,
                              cudaGetErrorName(code), cudaGetErrorString(code));
    code = cudaStreamQuery(cuda->probe);
    if (code == cudaErrorNotReady) {
        memoi_cuda_forget_not_ready();
        return MEMO_STATUS_OK;
    }
    return memo_cuda_check_at(code, "cudaStreamQuery", __FILE__, __LINE__, error);
}

/* ---- 3 row kernels --------------------------------------------------------------------------------------
 * Knows: grids.  What is computed is in memo.h, for host and GPU. */

#define MEMOI_CUDA_THREADS 256

/* Enough threads to fill the GPU several times, not more than there are items. */
MEMOI_CUDA memo_status memoi_cuda_grid(int64_t n_items, int64_t items_per_block, unsigned* n_blocks,
                                       memo_error* error) {
    int ordinal = 0, n_processors = 0;
    int64_t wanted = n_items / items_per_block + (n_items % items_per_block != 0), most;
    memo_status status = MEMOI_CUDA_CALL(cudaGetDevice, (&ordinal), error);
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetAttribute,
                                 (&n_processors, cudaDevAttrMultiProcessorCount, ordinal), error);
    most = (int64_t)n_processors * 32;
    *n_blocks = (unsigned)(wanted < most ? wanted : most);
    return status;
}

#define MEMOI_CUDA_ITEMS(name, desc_type, item_function)                                           \
    static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS)                                   \
        memoi_cuda_##name##_kernel(const __grid_constant__ desc_type desc, int64_t n_items) {      \
        int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                             \
        for (; item < n_items; item += (int64_t)gridDim.x * blockDim.x)                            \
            item_function(&desc, item);                                                            \
    }

MEMOI_CUDA_ITEMS(gather, memo_rows_desc, memo_gather_item)
MEMOI_CUDA_ITEMS(scatter, memo_rows_desc, memo_scatter_item)
MEMOI_CUDA_ITEMS(add, memo_add_desc, memo_add_item)
MEMOI_CUDA_ITEMS(cast, memo_cast_desc, memo_cast_item)

/* A row to 8 lanes, so four rows to a warp, which stays together. */
#define MEMOI_CUDA_WARP_ROWS (32 / MEMO_ROW_LANES)

MEMOI_CUDA __device__ int64_t memoi_cuda_first_row(void) {
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32 * MEMOI_CUDA_WARP_ROWS;
}
MEMOI_CUDA __device__ int64_t memoi_cuda_row_step(void) {
    return (int64_t)gridDim.x * blockDim.x / 32 * MEMOI_CUDA_WARP_ROWS;
}

static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS)
    memoi_cuda_merge_kernel(const __grid_constant__ memo_merge_desc merge, int64_t n_rows) {
    int32_t lane = (int32_t)(threadIdx.x % MEMO_ROW_LANES);
    int64_t first = memoi_cuda_first_row();
    for (; first < n_rows; first += memoi_cuda_row_step()) {
        int64_t row = first + threadIdx.x % 32 / MEMO_ROW_LANES, place = 0, part_place = 0;
        float a = 0, b = 0;
        if (row < n_rows) {
            memob_merge_place(&merge, row, &place, &part_place);
            a = merge.lse[place];
            b = merge.part_lse[part_place];
            memo_merge_lane(&merge, row, lane, memo_merge_weight(a, b));
        }
        __syncwarp(); /* all lanes have read the LSE that lane 0 replaces */
        if (row < n_rows && lane == 0) merge.lse[place] = memo_merge_lse(a, b);
    }
}

/* Four blocks at a time: left alone, the compiler takes registers for three. */
static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS, 4)
    memoi_cuda_row_sums_kernel(const __grid_constant__ memo_row_sums_desc sums, int64_t n_rows) {
    int32_t lane = (int32_t)(threadIdx.x % MEMO_ROW_LANES);
    int64_t first = memoi_cuda_first_row();
    for (; first < n_rows; first += memoi_cuda_row_step()) {
        int64_t row = first + threadIdx.x % 32 / MEMO_ROW_LANES;
        float sum = row < n_rows ? memo_row_sum_lane(&sums, row, lane) : 0;
        int apart;
        for (apart = MEMO_ROW_LANES / 2; apart > 0; apart /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, apart, MEMO_ROW_LANES);
        if (row < n_rows && lane == 0) sums.sums[row] = sum;
    }
}

/* kernel<<<n_blocks, MEMOI_CUDA_THREADS, 0, stream>>>(desc, n_items), with its own error and nobody else's. */
template <typename Desc>
static cudaError_t memoi_cuda_launch(void (*kernel)(Desc, int64_t), unsigned n_blocks,
                                     memo_stream stream, const Desc& desc, int64_t n_items) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_blocks, 1, 1);
    config.blockDim = dim3(MEMOI_CUDA_THREADS, 1, 1);
    config.stream = memo_cuda_stream(stream);
    return cudaLaunchKernelEx(&config, kernel, desc, n_items);
}

#define MEMOI_CUDA_LAUNCH(name, desc_type, n_items_of, items_per_block)                            \
    memo_status memo_cuda_##name(memo_stream stream, const desc_type* desc, memo_error* error) {   \
        desc_type resolved = *desc;                                                                \
        memo_status status = desc_type##_resolve(&resolved, error);                                \
        int64_t n_items;                                                                           \
        unsigned n_blocks = 0;                                                                     \
        if (status) return status;                                                                 \
        n_items = n_items_of;                                                                      \
        if (n_items == 0) return MEMO_STATUS_OK;                                                   \
        status = memoi_cuda_grid(n_items, items_per_block, &n_blocks, error);                      \
        if (status) return status;                                                                 \
        return memo_cuda_check_at(                                                                 \
            memoi_cuda_launch(memoi_cuda_##name##_kernel, n_blocks, stream, resolved, n_items),    \
            "memo_cuda_" #name, __FILE__, __LINE__, error);                                        \
    }
#define memoi_cuda_gather_rows_kernel  memoi_cuda_gather_kernel
#define memoi_cuda_scatter_rows_kernel memoi_cuda_scatter_kernel
#define MEMOI_CUDA_ROWS_PER_BLOCK      (MEMOI_CUDA_THREADS / MEMO_ROW_LANES)

MEMOI_CUDA_LAUNCH(gather_rows, memo_rows_desc, memo_rows_items(&resolved), MEMOI_CUDA_THREADS)
MEMOI_CUDA_LAUNCH(scatter_rows, memo_rows_desc, memo_rows_items(&resolved), MEMOI_CUDA_THREADS)
MEMOI_CUDA_LAUNCH(add, memo_add_desc, memo_add_items(&resolved), MEMOI_CUDA_THREADS)
MEMOI_CUDA_LAUNCH(cast, memo_cast_desc, memo_cast_items(&resolved), MEMOI_CUDA_THREADS)
MEMOI_CUDA_LAUNCH(merge, memo_merge_desc, resolved.n_batches* resolved.n_rows,
                  MEMOI_CUDA_ROWS_PER_BLOCK)
MEMOI_CUDA_LAUNCH(row_sums, memo_row_sums_desc, resolved.n_rows, MEMOI_CUDA_ROWS_PER_BLOCK)

#define MEMOI_CUDA_ENTRY(name, desc_type)                                                          \
    MEMOI_CUDA memo_status memoi_cuda_entry_##name(void* context, memo_stream stream,              \
                                                   const desc_type* desc, memo_error* error) {     \
        memoi_cuda_on on(((memoi_cuda*)context)->ordinal, error);                                  \
        return on.status ? on.status : memo_cuda_##name(stream, desc, error);                      \
    }
MEMOI_CUDA_ENTRY(gather_rows, memo_rows_desc)
MEMOI_CUDA_ENTRY(scatter_rows, memo_rows_desc)
MEMOI_CUDA_ENTRY(merge, memo_merge_desc)
MEMOI_CUDA_ENTRY(add, memo_add_desc)
MEMOI_CUDA_ENTRY(row_sums, memo_row_sums_desc)
MEMOI_CUDA_ENTRY(cast, memo_cast_desc)

/* ---- 1 device: life -------------------------------------------------------------------------------------- */

memo_cuda_device_desc memo_cuda_device_desc_default(void) {
    memo_cuda_device_desc desc;
    memset(&desc, 0, sizeof desc);
    return desc;
}

const char* memo_cuda_host_kind_name(memo_cuda_host_kind kind) {
    switch (kind) {
    case MEMO_CUDA_HOST_NONE: return "none";
    case MEMO_CUDA_HOST_HUGETLB: return "huge pages of the pool, registered";
    case MEMO_CUDA_HOST_TRANSPARENT: return "transparent huge pages, registered";
    case MEMO_CUDA_HOST_PAGES: return "usual pages, registered";
    case MEMO_CUDA_HOST_CUDA: return "cudaHostAlloc";
    }
    return "unknown";
}

MEMOI_CUDA memo_status memoi_cuda_check_desc(const memo_cuda_device_desc* desc, memo_error* error) {
    const int64_t most_bytes = (int64_t)64 << 30;
    if (!desc) return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "desc is NULL");
    if (desc->ordinal < 0 || desc->host_threads < 0)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "memo_cuda_device_desc: ordinal %d and host_threads %d must not be "
                              "negative",
                              (int)desc->ordinal, (int)desc->host_threads);
    if (desc->host_chunk_bytes < 0 || desc->host_chunk_bytes > most_bytes)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "memo_cuda_device_desc.host_chunk_bytes: %lld is not in [0, 64 GiB]",
                              (long long)desc->host_chunk_bytes);
    if (desc->phantom_bytes < 0 || desc->phantom_bytes > MEMOI_CUDA_BYTES_MAX / 2 ||
        desc->phantom_chunk_bytes < 0 || desc->phantom_chunk_bytes > MEMOI_CUDA_BYTES_MAX / 2)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "memo_cuda_device_desc: phantom_bytes %lld and phantom_chunk_bytes %lld must be in [0, "
            "2^61]",
            (long long)desc->phantom_bytes, (long long)desc->phantom_chunk_bytes);
    return MEMO_STATUS_OK;
}

/* What the device takes from CUDA; memo_cuda_device_destroy gives any part of it back. */
MEMOI_CUDA memo_status memoi_cuda_acquire(memoi_cuda* cuda, memo_error* error) {
    int max_pitch = 0;
    memoi_cuda_on on(cuda->ordinal, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaFree, (NULL), error); /* makes the context */
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetAttribute,
                                 (&max_pitch, cudaDevAttrMaxPitch, cuda->ordinal), error);
    cuda->max_pitch_bytes = (size_t)max_pitch;
    if (!status)
        status = MEMOI_CUDA_CALL(
            cudaDeviceGetAttribute,
            (&cuda->can_register, cudaDevAttrCanUseHostPointerForRegisteredMem, cuda->ordinal),
            error);
    if (!status)
        status = MEMOI_CUDA_CALL(cudaStreamCreateWithFlags, (&cuda->probe, cudaStreamNonBlocking),
                                 error);
    if (!status && cuda->desc.phantom_bytes)
        status = memoi_cuda_phantom_make(cuda->ordinal, cuda->desc.phantom_bytes,
                                         cuda->desc.phantom_chunk_bytes, &cuda->phantom, error);
    return status;
}

MEMOI_CUDA void memoi_cuda_fill_table(memoi_cuda* cuda) {
    memo_device* table = &cuda->table;
    table->struct_bytes = (int64_t)sizeof *table;
    table->name = cuda->phantom ? "cuda phantom" : "cuda";
    table->context = cuda;
    table->device_alloc = memoi_cuda_device_alloc;
    table->device_free = memoi_cuda_device_free;
    table->host_alloc = memoi_cuda_host_alloc;
    table->host_free = memoi_cuda_host_free;
    table->memory_info = memoi_cuda_memory_info;
    table->stream_create = memoi_cuda_stream_create;
    table->stream_destroy = memoi_cuda_stream_destroy;
    table->stream_synchronize = memoi_cuda_stream_synchronize;
    table->event_create = memoi_cuda_event_create;
    table->event_destroy = memoi_cuda_event_destroy;
    table->event_record = memoi_cuda_event_record;
    table->event_wait = memoi_cuda_event_wait;
    table->event_query = memoi_cuda_event_query;
    table->event_synchronize = memoi_cuda_event_synchronize;
    table->event_elapsed = memoi_cuda_event_elapsed;
    table->copy = memoi_cuda_copy;
    table->copy_rows = memoi_cuda_copy_rows;
    table->fill = memoi_cuda_fill;
    table->status = memoi_cuda_status;
    table->gather_rows = memoi_cuda_entry_gather_rows;
    table->scatter_rows = memoi_cuda_entry_scatter_rows;
    table->merge = memoi_cuda_entry_merge;
    table->add = memoi_cuda_entry_add;
    table->row_sums = memoi_cuda_entry_row_sums;
    table->cast = memoi_cuda_entry_cast;
    table->launch_host = memoi_cuda_launch_host;
}

memo_status memo_cuda_device_create(const memo_cuda_device_desc* desc, memo_device** device,
                                    memo_error* error) {
    memoi_cuda* cuda;
    memo_status status = memoi_cuda_check_desc(desc, error);
    int n_devices = 0;
    *device = NULL;
    if (!status) status = MEMOI_CUDA_CALL(cudaGetDeviceCount, (&n_devices), error);
    if (status) return status;
    if (desc->ordinal >= n_devices)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_cuda_device_desc.ordinal: %d, but CUDA sees %d devices",
                              (int)desc->ordinal, n_devices);
    cuda = (memoi_cuda*)memoi_cuda_zeroed(sizeof *cuda);
    if (!cuda) return memoi_cuda_no_memory(error, "a CUDA device");
    cuda->magic = MEMOI_CUDA_MAGIC;
    cuda->desc = *desc;
    cuda->ordinal = (int)desc->ordinal;
    cuda->table.context = cuda;
    status = memoi_cuda_acquire(cuda, error);
    if (status) {
        memo_cuda_device_destroy(&cuda->table);
        return status;
    }
    memoi_cuda_fill_table(cuda);
    *device = &cuda->table;
    return MEMO_STATUS_OK;
}

/* NULL: not one made by memo_cuda_device_create. */
MEMOI_CUDA memoi_cuda* memoi_cuda_of(const memo_device* device) {
    memoi_cuda* cuda = device ? (memoi_cuda*)device->context : NULL;
    return cuda && cuda->magic == MEMOI_CUDA_MAGIC ? cuda : NULL;
}

void memo_cuda_device_destroy(memo_device* device) {
    memoi_cuda* cuda = memoi_cuda_of(device);
    memoi_cuda_block* block;
    if (!cuda) return;
    {
        memoi_cuda_on on(cuda->ordinal, NULL);
        if (cuda->probe && cudaDeviceSynchronize() != cudaSuccess) (void)cudaGetLastError();
        /* Also where CUDA refuses everything after a kept error, or because the program ends. */
        while ((block = cuda->device_blocks) != NULL) {
            cuda->device_blocks = block->next;
            (void)memoi_cuda_release_device(cuda, block, NULL);
        }
        while ((block = cuda->host_blocks) != NULL) {
            cuda->host_blocks = block->next;
            (void)memoi_cuda_release_host(cuda, block, NULL);
        }
        memoi_cuda_phantom_destroy(cuda->phantom);
        if (cuda->probe && cudaStreamDestroy(cuda->probe) != cudaSuccess) (void)cudaGetLastError();
    }
    cuda->magic = 0;
    MEMO_FREE(cuda);
}

void memo_cuda_device_get_stats(const memo_device* device, memo_cuda_device_stats* stats) {
    const memoi_cuda* cuda = memoi_cuda_of(device);
    memset(stats, 0, sizeof *stats);
    if (cuda) *stats = cuda->stats;
}

#endif /* MEMO_CUDA_IMPLEMENTATION */
