#pragma once
#include "cuda/driver.h"
/* ---- >>cuda state -------------------------------------------------------------------------------
 * Knows: what a device owns, and the context that its calls need.  Knows nothing of what calls do.
 *
 * 1. Calls are made of a device that has its context.
 * 2. Addresses are multiples of MEMOB_DEVICE_ALIGNMENT.
 * 3. Bytes that are counted are at least 0, at most their peak. */

#define MEMOI_CUDA_MAGIC 0x6d656d6f63756461u /* "memocuda" */

/* Drivers of the 580 series refuse to register 512 GiB and more in one call as out of memory: their
 * table of pages would have 2 GiB (NVIDIA/open-gpu-kernel-modules#1234).  So larger blocks are
 * registered in pieces, and a copy ends where a piece does, because CUDA may refuse a copy over two
 * registrations. */
#ifndef MEMOI_CUDA_PIECE_BYTES
#define MEMOI_CUDA_PIECE_BYTES ((int64_t)64 << 30) /* a multiple of 2 MiB */
#endif

/* Allocated memory. */
typedef struct memoi_cuda_block {
    struct memoi_cuda_block* next;
    char* address;
    int64_t size_bytes;
    void* base;               /* what CUDA returned; address is it, aligned */
    memo_cuda_host_kind kind; /* of pinned memory */
    int64_t mapped_bytes;     /* of registered memory; 0: of cudaHostAlloc */
} memoi_cuda_block;

typedef struct memoi_cuda_phantom memoi_cuda_phantom; /* >>phantom memory */
typedef struct memoi_cuda_lane memoi_cuda_lane;       /* >>host functions */

typedef struct memoi_cuda {
    uint64_t magic;
    memo_device table;
    memo_cuda_device_desc desc;
    memoi_cuda_driver driver;
    CUcontext context;      /* the primary one of desc.ordinal, retained */
    size_t max_pitch_bytes; /* of copies of rows in one call */
    int can_register;       /* kernels reach registered memory by the host's addresses */
    cudaStream_t probe;     /* never used for work: queried for asynchronous errors */
    memoi_cuda_block *device_blocks, *host_blocks;
    int32_t n_cut_blocks;        /* host_blocks of several pieces */
    memoi_cuda_phantom* phantom; /* device_blocks are in it, in the order of their addresses */
    memo_cuda_device_stats stats;

    memob_failure failure;

    /* Host functions: lanes that wait for the worker. */
    int32_t has_worker; /* 0: they run on CUDA's thread */
    int32_t is_worker_started, is_worker_ending;
    int32_t n_streams, n_queues; /* the caller's streams; hardware queues that all streams share */
    int32_t is_crowd_logged;
    pthread_t worker;
    pthread_mutex_t mutex;
    pthread_cond_t has_work;
    memoi_cuda_lane *first, *last; /* the queue */
    memoi_cuda_lane* lanes;        /* all */
    uint32_t* words;               /* the chunk that new lanes take theirs from */
    int32_t n_words;               /* left in it */
} memoi_cuda;

/* Makes the device's primary context current, and restores the previous one at the end.  By the
 * driver: cudaSetDevice would replace a driver or green context, and, to restore "none", create a
 * context on GPU 0. */
struct memoi_cuda_on {
    const memoi_cuda* cuda;
    CUcontext before;
    memo_status status;
    memoi_cuda_on(const memoi_cuda* device, memo_error* error) : cuda(device), before(NULL) {
        const memoi_cuda_driver* driver = &cuda->driver;
        MEMO_ASSERT(cuda->context); /* 1 */
        status = MEMOI_CUDA_DRIVER(driver, get_current, cuCtxGetCurrent, (&before), error);
        if (status)
            before = cuda->context; /* nothing to restore */
        else if (before != cuda->context)
            status =
                MEMOI_CUDA_DRIVER(driver, set_current, cuCtxSetCurrent, (cuda->context), error);
    }
    ~memoi_cuda_on() {
        if (before != cuda->context) (void)cuda->driver.set_current(before);
    }
};

/* Inside it the thread's calls neither join nor invalidate a capture on another thread. */
struct memoi_cuda_relaxed {
    cudaStreamCaptureMode mode;
    memoi_cuda_relaxed() : mode(cudaStreamCaptureModeRelaxed) {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~memoi_cuda_relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
};

/* The first address from base on that memo.h's table may return. */
MEMOI char* memoi_cuda_aligned(void* base) {
    return (char*)base + (MEMOB_DEVICE_ALIGNMENT - (uintptr_t)base % MEMOB_DEVICE_ALIGNMENT) %
                             MEMOB_DEVICE_ALIGNMENT;
}

/* Unlinks and releases the block that begins at address.  memory: its kind, for the message. */
MEMOI memo_status memoi_cuda_free(
    memoi_cuda* cuda, memoi_cuda_block** list, const char* memory, const void* address,
    memo_status (*release)(memoi_cuda*, memoi_cuda_block*, memo_error*), memo_error* error) {
    memoi_cuda_on on(cuda, error);
    memoi_cuda_block* block;
    if (!address || on.status) return on.status;
    for (; (block = *list) != NULL; list = &block->next) {
        if (block->address != address) continue;
        MEMO_ASSERT((uintptr_t)address % MEMOB_DEVICE_ALIGNMENT == 0); /* 2 */
        *list = block->next;
        return release(cuda, block, error);
    }
    return MEMOB_INVALID(error,
                         "%s memory: %p was not allocated by this device, or is free already",
                         memory, address);
}

/* Is a request valid, and does it fit into a capacity of the desc (0: none)? */
MEMOI memo_status memoi_cuda_check_request(memo_status status_when_full, const char* memory,
                                           int64_t size_bytes, int64_t used_bytes,
                                           int64_t capacity_bytes, memo_error* error) {
    if (size_bytes < 0 || size_bytes > MEMOB_BYTES_MAX)
        return MEMOB_INVALID(error, "%s memory: invalid size (%lld bytes); 0 to 2^62 are valid",
                             memory, (long long)size_bytes);
    if (!capacity_bytes || size_bytes <= capacity_bytes - used_bytes) return MEMO_STATUS_OK;
    return memo_error_set(error, status_when_full,
                          "%s memory: %lld bytes requested, %lld available; raise "
                          "memo_cuda_device_desc.%s_memory_bytes above %lld",
                          memory, (long long)size_bytes, (long long)(capacity_bytes - used_bytes),
                          memory, (long long)capacity_bytes);
}

/* Counts an allocation (or, negative, its end) in a pair of stats. */
MEMOI void memoi_cuda_count(int64_t size_bytes, int64_t* bytes, int64_t* peak_bytes) {
    *bytes += size_bytes;
    MEMO_ASSERT(*bytes >= 0); /* 3 */
    if (*bytes > *peak_bytes) *peak_bytes = *bytes;
}

/* A stream that waits for the worker stops the streams that share its hardware queue. */
MEMOI void memoi_cuda_log_crowd(memoi_cuda* cuda) {
    char message[300];
    if (cuda->n_streams <= cuda->n_queues || cuda->is_crowd_logged) return;
    cuda->is_crowd_logged = 1;
    snprintf(message, sizeof message,
             "%d streams share %d hardware queues, so a wait for a host function (a file, an "
             "update on the host) may stop computation; set CUDA_DEVICE_MAX_CONNECTIONS to 32 "
             "before the process first uses CUDA",
             (int)cuda->n_streams, (int)cuda->n_queues);
    memoi_cuda_log(&cuda->desc.log, message);
}
