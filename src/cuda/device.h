#pragma once
#include "cuda/phantom.h"
/* ---- >>device table -----------------------------------------------------------------------------
 * Knows: the table of memo.h, a CUDA call per function.  Knows nothing of plans or layers.
 *
 * 1. Blocks of phantom memory are in the order of their addresses, and none shares a byte.
 * 2. No copy crosses the end of a piece of pinned memory, and the parts of a copy cover it.
 * 3. Rows of one call lie in one another's strides.
 * 4. A block of the device is aligned within what CUDA gave. */

/* --- device memory --- */

MEMOI memo_status memoi_cuda_out_of_memory(int64_t size_bytes, memo_error* error) {
    size_t free_bytes = 0, total_bytes = 0;
    char asked[32], left[32], all[32];
    (void)MEMOI_CUDA_CALL(cudaMemGetInfo, (&free_bytes, &total_bytes), NULL);
    return memo_error_set(
        error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
        "cudaMalloc: cudaErrorMemoryAllocation, %s (%lld bytes) requested, %s (%lld bytes) free of "
        "%s%s" MEMOI_CUDA_PLACE,
        memob_bytes_text(asked, (double)size_bytes), (long long)size_bytes,
        memob_bytes_text(left, (double)free_bytes), (long long)free_bytes,
        memob_bytes_text(all, (double)total_bytes),
        size_bytes > (int64_t)free_bytes ? "" : ", the last of which CUDA does not give away");
}

/* CUDA promises an alignment of 256 bytes.  A block that had to be asked for again would have to be
 * given back, for which CUDA waits for all streams. */
enum { MEMOI_CUDA_ALIGNMENT = 256 };
MEMOI memo_status memoi_cuda_malloc(memoi_cuda_block* block, memo_error* error) {
    const size_t more = MEMOB_DEVICE_ALIGNMENT - MEMOI_CUDA_ALIGNMENT;
    const size_t wanted = (block->size_bytes ? (size_t)block->size_bytes : 1) + more;
    const memo_status status = MEMOI_CUDA_CALL(cudaMalloc, (&block->base, wanted), error);
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        return memoi_cuda_out_of_memory(block->size_bytes, error);
    if (status) return status;
    block->address = memoi_cuda_aligned(block->base);
    MEMO_ASSERT((size_t)(block->address - (char*)block->base) <= more); /* 4 */
    return MEMO_STATUS_OK;
}

/* The first gap between blocks that is large enough; *place is the link after it. */
MEMOI memo_status memoi_cuda_find_phantom(memoi_cuda* cuda, memoi_cuda_block* block,
                                          memoi_cuda_block*** place, memo_error* error) {
    char* at = (char*)(uintptr_t)cuda->phantom->address;
    char* end = at + cuda->phantom->size_bytes;
    int64_t needed =
        memob_align_up(block->size_bytes ? block->size_bytes : 1, MEMOB_DEVICE_ALIGNMENT);
    memoi_cuda_block** list = &cuda->device_blocks;
    for (; *list && (*list)->address - at < needed; list = &(*list)->next)
        at = (*list)->address + (*list)->mapped_bytes;
    if (!*list && end - at < needed)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "phantom memory: no gap is large enough (%lld bytes requested); "
                              "raise memo_cuda_device_desc.phantom_bytes above %lld",
                              (long long)block->size_bytes, (long long)cuda->desc.phantom_bytes);
    MEMO_ASSERT(!*list || at + needed <= (*list)->address); /* 1 */
    MEMO_ASSERT(at + needed <= end);                        /* 1 */
    block->address = at;
    block->mapped_bytes = needed;
    *place = list;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_cuda_device_alloc(void* context, int64_t size_bytes, void** address,
                                          memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_block** place = &cuda->device_blocks;
    memoi_cuda_block* block;
    memo_status status = on.status;
    *address = NULL;
    if (!status)
        status = memoi_cuda_check_request(MEMO_STATUS_OUT_OF_DEVICE_MEMORY, "device", size_bytes,
                                          cuda->stats.device_bytes, cuda->desc.device_memory_bytes,
                                          error);
    if (status) return status;

    /* Memory of CUDA, or phantom addresses; either goes into the list. */
    block = (memoi_cuda_block*)memob_calloc(1, sizeof *block);
    if (!block) return memob_no_memory(error, "the list of device memory");
    block->size_bytes = size_bytes;
    status = cuda->phantom ? memoi_cuda_find_phantom(cuda, block, &place, error)
                           : memoi_cuda_malloc(block, error);
    if (status) {
        MEMO_FREE(block);
        return status;
    }
    block->next = *place;
    *place = block;
    memoi_cuda_count(size_bytes, &cuda->stats.device_bytes, &cuda->stats.device_peak_bytes);
    *address = block->address;
    return MEMO_STATUS_OK;
}

/* block is in no list any more; it is freed whether CUDA refuses or not. */
MEMOI memo_status memoi_cuda_release_device(memoi_cuda* cuda, memoi_cuda_block* block,
                                            memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (block->base) status = MEMOI_CUDA_CALL(cudaFree, (block->base), error);
    memoi_cuda_count(-block->size_bytes, &cuda->stats.device_bytes, &cuda->stats.device_peak_bytes);
    MEMO_FREE(block);
    return status;
}

MEMOI memo_status memoi_cuda_device_free(void* context, void* address, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    return memoi_cuda_free(cuda, &cuda->device_blocks, "device", address, memoi_cuda_release_device,
                           error);
}

MEMOI memo_status memoi_cuda_memory_info(void* context, int64_t* free_bytes, int64_t* total_bytes,
                                         memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
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
    if (cuda->desc.device_memory_bytes) {
        int64_t left_bytes = cuda->desc.device_memory_bytes - cuda->stats.device_bytes;
        if (*total_bytes > cuda->desc.device_memory_bytes)
            *total_bytes = cuda->desc.device_memory_bytes;
        if (*free_bytes > left_bytes) *free_bytes = left_bytes;
    }
    return MEMO_STATUS_OK;
}

/* --- streams --- */

MEMOI memo_status memoi_cuda_stream_create(void* context, const char* name, int32_t priority,
                                           memo_stream* stream, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    int least = 0, greatest = 0, wanted; /* CUDA counts down: least is 0, greatest is negative */
    cudaStream_t created = NULL;
    memo_status status = on.status;
    (void)name; /* CUDA's streams have none */
    *stream = NULL;
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetStreamPriorityRange, (&least, &greatest), error);
    if (status) return status;
    wanted = least - (int)memob_min(memob_max(priority, 0), least - greatest);
    status = MEMOI_CUDA_CALL(cudaStreamCreateWithPriority,
                             (&created, cudaStreamNonBlocking, wanted), error);
    if (status) return status;
    *stream = (memo_stream)created;
    cuda->n_streams++;
    if (cuda->is_worker_started) memoi_cuda_log_crowd(cuda);
    return status;
}

MEMOI memo_status memoi_cuda_stream_destroy(void* context, memo_stream stream, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    if (!stream || on.status) return on.status;
    ((memoi_cuda*)context)->n_streams--;
    return MEMOI_CUDA_CALL(cudaStreamDestroy, (memo_cuda_stream(stream)), error);
}

MEMOI memo_status memoi_cuda_stream_synchronize(void* context, memo_stream stream,
                                                memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaStreamSynchronize, (memo_cuda_stream(stream)), error);
    return status ? status : memob_failure_status(&cuda->failure, error);
}

/* --- events --- */

MEMOI memo_status memoi_cuda_event_make(void* context, unsigned flags, memo_event* event,
                                        memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    cudaEvent_t created = NULL;
    memo_status status = on.status;
    *event = NULL;
    if (!status) status = MEMOI_CUDA_CALL(cudaEventCreateWithFlags, (&created, flags), error);
    if (!status) *event = (memo_event)created;
    return status;
}

MEMOI memo_status memoi_cuda_event_create(void* context, memo_event* event, memo_error* error) {
    return memoi_cuda_event_make(context, cudaEventDefault, event, error);
}

MEMOI memo_status memoi_cuda_event_create_untimed(void* context, memo_event* event,
                                                  memo_error* error) {
    return memoi_cuda_event_make(context, cudaEventDisableTiming, event, error);
}

MEMOI memo_status memoi_cuda_event_destroy(void* context, memo_event event, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    if (!event || on.status) return on.status;
    return MEMOI_CUDA_CALL(cudaEventDestroy, (memo_cuda_event(event)), error);
}

MEMOI memo_status memoi_cuda_event_record(void* context, memo_event event, memo_stream stream,
                                          memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (status) return status;
    return MEMOI_CUDA_CALL(cudaEventRecord, (memo_cuda_event(event), memo_cuda_stream(stream)),
                           error);
}

MEMOI memo_status memoi_cuda_event_wait(void* context, memo_event event, memo_stream stream,
                                        memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (status) return status;
    const memoi_cuda_range range("memo: wait");
    return MEMOI_CUDA_CALL(cudaStreamWaitEvent,
                           (memo_cuda_stream(stream), memo_cuda_event(event), 0), error);
}

/* By the driver: the runtime would leave "not ready" for cudaGetLastError, in the place of an error
 * that the caller has not seen yet. */
MEMOI memo_status memoi_cuda_event_query(void* context, memo_event event, int32_t* is_done,
                                         memo_error* error) {
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_relaxed relaxed;
    CUresult code;
    if (on.status) return on.status;
    code = cuda->driver.query_event((CUevent)memo_cuda_event(event));
    *is_done = code == CUDA_SUCCESS;
    if (code == CUDA_ERROR_NOT_READY) return MEMO_STATUS_OK;
    return memoi_cuda_driver_check(&cuda->driver, code, "cuEventQuery", __LINE__, error);
}

MEMOI memo_status memoi_cuda_event_synchronize(void* context, memo_event event, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaEventSynchronize, (memo_cuda_event(event)), error);
    return status ? status : memob_failure_status(&cuda->failure, error);
}

MEMOI memo_status memoi_cuda_event_elapsed(void* context, memo_event begin, memo_event end,
                                           double* elapsed_s, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    float elapsed_ms = 0;
    cudaError_t code;
    if (on.status) return on.status;
    code = cudaEventElapsedTime(&elapsed_ms, memo_cuda_event(begin), memo_cuda_event(end));
    if (code == cudaErrorNotReady || code == cudaErrorInvalidResourceHandle ||
        code == cudaErrorCapturedEvent) {
        memoi_cuda_forget(code);
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "cudaEventElapsedTime: %s: one of the events %s" MEMOI_CUDA_PLACE,
            cudaGetErrorName(code),
            code == cudaErrorNotReady
                ? "is not done; synchronize first"
                : "was never recorded, was captured in a graph, or has no timing");
    }
    *elapsed_s = (double)elapsed_ms * 1e-3;
    return memo_cuda_check_at(code, "cudaEventElapsedTime", __FILE__, __LINE__, error);
}

/* --- copies --- */

/* By memo_copy_kind. */
static const cudaMemcpyKind memoi_cuda_copy_kinds[] = {
    cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice};
MEMOB_TABLE_OF(MEMO_N_COPY_KINDS, memoi_cuda_copy_kinds);

/* Rows with gaps between them: all in one call, or one by one if the pitch does not allow that. */
MEMOI memo_status memoi_cuda_copy_strided(const memoi_cuda* cuda, memo_copy_kind kind,
                                          cudaStream_t stream, char* to, int64_t to_stride_bytes,
                                          const char* from, int64_t from_stride_bytes,
                                          int64_t row_bytes, int64_t n_rows, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    MEMO_ASSERT(row_bytes > 0 && n_rows > 0);
    MEMO_ASSERT(n_rows == 1 || memob_min(to_stride_bytes, from_stride_bytes) >= row_bytes); /* 3 */
    if (n_rows > 1 && (size_t)to_stride_bytes <= cuda->max_pitch_bytes &&
        (size_t)from_stride_bytes <= cuda->max_pitch_bytes)
        return MEMOI_CUDA_CALL(cudaMemcpy2DAsync,
                               (to, (size_t)to_stride_bytes, from, (size_t)from_stride_bytes,
                                (size_t)row_bytes, (size_t)n_rows, memoi_cuda_copy_kinds[kind],
                                stream),
                               error);
    for (int64_t row = 0; row < n_rows && !status; row++)
        status = MEMOI_CUDA_CALL(cudaMemcpyAsync,
                                 (to + row * to_stride_bytes, from + row * from_stride_bytes,
                                  (size_t)row_bytes, memoi_cuda_copy_kinds[kind], stream),
                                 error);
    return status;
}

/* Bytes from an address of the host to the end of its piece; of other memory: no end. */
MEMOI int64_t memoi_cuda_piece_left(const memoi_cuda* cuda, const char* address) {
    const memoi_cuda_block* block = cuda->n_cut_blocks ? cuda->host_blocks : NULL;
    for (; block; block = block->next) {
        const uintptr_t at = (uintptr_t)address - (uintptr_t)block->address;
        if (at < (uintptr_t)block->mapped_bytes)
            return MEMOI_CUDA_PIECE_BYTES - (int64_t)at % MEMOI_CUDA_PIECE_BYTES;
    }
    return INT64_MAX;
}

/* Rows, cut where a piece of the host's memory ends. */
MEMOI memo_status memoi_cuda_copy_pieces(const memoi_cuda* cuda, memo_copy_kind kind,
                                         cudaStream_t stream, char* to, int64_t to_stride_bytes,
                                         const char* from, int64_t from_stride_bytes,
                                         int64_t row_bytes, int64_t n_rows, memo_error* error) {
    const int to_host = kind == MEMO_COPY_TO_HOST;
    const int64_t stride_bytes = to_host ? to_stride_bytes : from_stride_bytes;
    memo_status status = MEMO_STATUS_OK;
    while (n_rows > 0 && !status) {
        const int64_t left = memoi_cuda_piece_left(cuda, to_host ? to : from);
        int64_t n = 1; /* rows that end in this piece, or a row that does not */
        if (n_rows > 1 && left >= row_bytes)
            n = memob_min((left - row_bytes) / stride_bytes + 1, n_rows);
        MEMO_ASSERT(left > 0 && n > 0 && n <= n_rows);                            /* 2 */
        MEMO_ASSERT((n - 1) * stride_bytes <= left - memob_min(row_bytes, left)); /* 2 */

        status = memoi_cuda_copy_strided(cuda, kind, stream, to, to_stride_bytes, from,
                                         from_stride_bytes, memob_min(row_bytes, left), n, error);
        if (left < row_bytes && !status) /* the rest of a row */
            status = memoi_cuda_copy_pieces(cuda, kind, stream, to + left, 0, from + left, 0,
                                            row_bytes - left, 1, error);
        to += n * to_stride_bytes;
        from += n * from_stride_bytes;
        n_rows -= n;
    }
    return status;
}

MEMOI memo_status memoi_cuda_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                       void* to, int64_t to_stride_bytes, const void* from,
                                       int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows,
                                       memo_error* error) {
    static const char* const ranges[] = {"memo: to host", "memo: to device", "memo: on device"};
    MEMOB_TABLE_OF(MEMO_N_COPY_KINDS, ranges);
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (!status)
        status = memob_check_copy(kind, to, to_stride_bytes, from, from_stride_bytes, row_bytes,
                                  n_rows, error);
    if (status || row_bytes == 0 || n_rows == 0) return status;

    if (to_stride_bytes == row_bytes && from_stride_bytes == row_bytes) {
        row_bytes *= n_rows;
        n_rows = 1;
    }
    const memoi_cuda_range range(ranges[kind]);
    return memoi_cuda_copy_pieces(cuda, kind, memo_cuda_stream(stream), (char*)to, to_stride_bytes,
                                  (const char*)from, from_stride_bytes, row_bytes, n_rows, error);
}

MEMOI memo_status memoi_cuda_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                  const void* from, int64_t size_bytes, memo_error* error) {
    return memoi_cuda_copy_rows(context, stream, kind, to, size_bytes, from, size_bytes, size_bytes,
                                1, error);
}

MEMOI memo_status memoi_cuda_fill(void* context, memo_stream stream, void* address,
                                  int32_t byte_value, int64_t size_bytes, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (status) return status;
    if (size_bytes < 0 || (!address && size_bytes))
        return MEMOB_INVALID(error, "fill: invalid memory (%lld bytes at %p)",
                             (long long)size_bytes, address);
    if (size_bytes == 0) return MEMO_STATUS_OK;
    return MEMOI_CUDA_CALL(cudaMemsetAsync,
                           (address, (int)byte_value, (size_t)size_bytes, memo_cuda_stream(stream)),
                           error);
}

/* Errors that CUDA keeps show on every stream, so a stream without work is queried.  What waits for
 * cudaGetLastError is the trainer's and is not looked at. */
MEMOI memo_status memoi_cuda_status(void* context, memo_error* error) {
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_relaxed relaxed;
    const memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    CUresult code;
    if (status) return status;
    code = cuda->driver.query_stream((CUstream)cuda->probe);
    if (code == CUDA_ERROR_NOT_READY) return MEMO_STATUS_OK;
    return memoi_cuda_driver_check(&cuda->driver, code, "cuStreamQuery", __LINE__, error);
}
