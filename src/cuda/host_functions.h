#pragma once
#include "cuda/pinned.h"
#include "cuda/device.h"
/* ---- >>host functions ---------------------------------------------------------------------------
 * Knows: a queue, a worker thread and words of pinned memory.  Knows nothing of what functions do.
 *
 * 1. The queue has a first lane if and only if it has a last one, behind which there is none.
 * 2. A lane is in the queue at most once: its word is 0 from then until its launches have run.
 * 3. Each lane has a word of its own, if the device has a worker.
 * 4. When the worker has ended, no lane waits for it.
 *
 * cudaLaunchHostFunc calls everything on one thread, which the proxy work of NCCL in graphs needs
 * too.  A read of gigabytes there would hold up all streams.  So it only hands the function to this
 * device's worker, and the stream waits for a word that the worker sets:
 *
 *     stream    cudaLaunchHostFunc: word = 0, enqueue | cuStreamWaitValue32: word == 1 | goes on
 *     worker                                 function, then word = 1
 *
 * A graph that captured both may be replayed: the first sets the word back.  The stream's own order
 * is all that CUDA has to know; the function waits for nothing on the GPU.
 *
 * A call has a lane, with a word, for each stream.  Launches of a lane follow each other in their
 * stream: the next one sets the word back only after the wait of the one before.  So any number of
 * launches are in flight by the lanes of the first step, and only a first launch allocates. */

enum { MEMOI_CUDA_WORDS = 1024 }; /* allocated at once */

/* A memo_host_call on a stream. */
struct memoi_cuda_lane {
    memoi_cuda_lane* next;      /* in the queue */
    memoi_cuda_lane* next_all;  /* of the device */
    memoi_cuda_lane* next_call; /* on another stream; the call's `device` is the latest */
    memoi_cuda* cuda;
    const memo_host_call* call;
    memo_stream stream;
    /* In the queue.  Above 1 only if order fails: a graph of this stream is replayed on another, or
     * a destroyed stream's handle is used again.  Then each waits for all. */
    int32_t n_launches;
    uint32_t* word; /* NULL: CUDA's thread runs the function */
};

MEMOI void memoi_cuda_run_call(memoi_cuda* cuda, const memo_host_call* call) {
    memo_error error;
    memo_status status;
    if (memob_failure_is_kept(&cuda->failure)) return;
    memset(&error, 0, sizeof error);
    status = call->function(call->argument, &error);
    if (status)
        memob_failure_keep(&cuda->failure, status, "host function: %.400s",
                           error.message[0] ? error.message : memo_status_name(status));
}

/* The mutex is locked. */
MEMOI void memoi_cuda_put_last(memoi_cuda* cuda, memoi_cuda_lane* lane) {
    lane->next = NULL;
    MEMO_ASSERT(!cuda->first == !cuda->last);                              /* 1 */
    MEMO_ASSERT(!cuda->last || (cuda->last != lane && !cuda->last->next)); /* 1, 2 */
    if (cuda->last)
        cuda->last->next = lane;
    else
        cuda->first = lane;
    cuda->last = lane;
}

/* On CUDA's thread; nothing here may call CUDA. */
MEMOI void CUDART_CB memoi_cuda_on_stream(void* argument) {
    memoi_cuda_lane* lane = (memoi_cuda_lane*)argument;
    memoi_cuda* cuda = lane->cuda;
    if (!lane->word) {
        memoi_cuda_run_call(cuda, lane->call);
        return;
    }
    pthread_mutex_lock(&cuda->mutex);
    __atomic_store_n(lane->word, 0, __ATOMIC_SEQ_CST);
    if (!lane->n_launches++) memoi_cuda_put_last(cuda, lane);
    pthread_cond_signal(&cuda->has_work);
    pthread_mutex_unlock(&cuda->mutex);
}

MEMOI void* memoi_cuda_worker(void* argument) {
    memoi_cuda* cuda = (memoi_cuda*)argument;
    pthread_mutex_lock(&cuda->mutex);
    for (;;) {
        memoi_cuda_lane* lane = cuda->first;
        if (!lane) {
            if (cuda->is_worker_ending) break;
            pthread_cond_wait(&cuda->has_work, &cuda->mutex);
            continue;
        }
        cuda->first = lane->next;
        if (!cuda->first) cuda->last = NULL;
        pthread_mutex_unlock(&cuda->mutex);
        memoi_cuda_run_call(cuda, lane->call);
        MEMO_ASSERT(*lane->word == 0); /* 2 */
        pthread_mutex_lock(&cuda->mutex);
        if (--lane->n_launches)
            memoi_cuda_put_last(cuda, lane);
        else
            __atomic_store_n(lane->word, 1, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&cuda->mutex);
    return NULL;
}

/* Words of pinned memory, also while a capture goes on. */
MEMOI memo_status memoi_cuda_more_words(memoi_cuda* cuda, memo_error* error) {
    const int64_t n_bytes = MEMOI_CUDA_WORDS * (int64_t)sizeof(uint32_t);
    memoi_cuda_relaxed relaxed;
    memoi_cuda_block* block;
    memo_status status = memoi_cuda_host_block(cuda, n_bytes, INT64_MAX, &block, error);
    if (status) return status;
    memset(block->address, 0, (size_t)n_bytes);
    block->size_bytes = 0; /* not counted: nobody requested it */
    cuda->words = (uint32_t*)block->address;
    cuda->n_words = MEMOI_CUDA_WORDS;
    return MEMO_STATUS_OK;
}

/* Makes the lane of a call that a stream gets for the first time.  The lane keeps its word: a
 * captured graph may refer to it. */
MEMOI memo_status memoi_cuda_make_lane(memoi_cuda* cuda, memo_host_call* call, memo_stream stream,
                                       memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memoi_cuda_lane* lane;
    if (cuda->has_worker && !cuda->is_worker_started) {
        int code = memob_thread_create(&cuda->worker, 0, memoi_cuda_worker, cuda);
        if (code)
            return memo_error_set(error, MEMO_STATUS_DEVICE, "a thread for host functions: %s",
                                  strerror(code));
        cuda->is_worker_started = 1;
        memoi_cuda_log_crowd(cuda);
    }
    if (cuda->has_worker && !cuda->n_words) status = memoi_cuda_more_words(cuda, error);
    if (status) return status;
    lane = (memoi_cuda_lane*)memob_calloc(1, sizeof *lane);
    if (!lane) return memob_no_memory(error, "a host function");
    lane->cuda = cuda;
    lane->call = call;
    lane->stream = stream;
    if (cuda->has_worker) lane->word = &cuda->words[--cuda->n_words];
    MEMO_ASSERT(cuda->n_words >= 0 && !lane->word == !cuda->has_worker);         /* 3 */
    MEMO_ASSERT(!cuda->lanes || !lane->word || lane->word != cuda->lanes->word); /* 3 */
    lane->next_all = cuda->lanes;
    cuda->lanes = lane;
    lane->next_call = (memoi_cuda_lane*)call->device;
    call->device = lane;
    return MEMO_STATUS_OK;
}

/* NULL: the call was never enqueued on stream. */
MEMOI memoi_cuda_lane* memoi_cuda_find_lane(const memo_host_call* call, memo_stream stream) {
    memoi_cuda_lane* lane = (memoi_cuda_lane*)call->device;
    while (lane && lane->stream != stream) lane = lane->next_call;
    return lane;
}

MEMOI memo_status memoi_cuda_launch_host(void* context, memo_stream stream, memo_host_call* call,
                                         memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    memoi_cuda_lane* lane = memoi_cuda_find_lane(call, stream);
    if (!status && !lane) {
        status = memoi_cuda_make_lane(cuda, call, stream, error);
        lane = (memoi_cuda_lane*)call->device;
    }
    if (status) return status;
    status = MEMOI_CUDA_CALL(cudaLaunchHostFunc,
                             (memo_cuda_stream(stream), memoi_cuda_on_stream, lane), error);
    if (status || !lane->word) return status;
    return MEMOI_CUDA_DRIVER(
        &cuda->driver, wait_value, cuStreamWaitValue32,
        ((CUstream)stream, (CUdeviceptr)(uintptr_t)lane->word, 1, CU_STREAM_WAIT_VALUE_EQ), error);
}

/* The first chunk of words, and a wait that ends at once as a trial. */
MEMOI memo_status memoi_cuda_prepare_worker(memoi_cuda* cuda, memo_error* error) {
    memo_error why;
    memo_status status = memoi_cuda_more_words(cuda, error);
    if (status) return status;
    cuda->has_worker = !MEMOI_CUDA_DRIVER(
        &cuda->driver, wait_value, cuStreamWaitValue32,
        ((CUstream)cuda->probe, (CUdeviceptr)(uintptr_t)cuda->words, 0, CU_STREAM_WAIT_VALUE_EQ),
        &why);
    if (!cuda->has_worker) {
        char message[600];
        snprintf(message, sizeof message, "%s; host functions run on CUDA's thread instead",
                 why.message);
        memoi_cuda_log(&cuda->desc.log, message);
    }
    return MEMO_STATUS_OK;
}

/* All streams are done. */
MEMOI void memoi_cuda_end_worker(memoi_cuda* cuda) {
    memoi_cuda_lane* lane;
    pthread_mutex_lock(&cuda->mutex);
    cuda->is_worker_ending = 1;
    pthread_cond_signal(&cuda->has_work);
    pthread_mutex_unlock(&cuda->mutex);
    if (cuda->is_worker_started) pthread_join(cuda->worker, NULL);
    MEMO_ASSERT(!cuda->first); /* 4 */
    while ((lane = cuda->lanes) != NULL) {
        cuda->lanes = lane->next_all;
        MEMO_FREE(lane);
    }
}
