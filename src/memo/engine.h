#pragma once
#include "memo/spill_file.h"
#include "memo/waits.h"
/* ---- >>engine -----------------------------------------------------------------------------------
 * Knows: the memory, streams, events and file that an engine has.  Knows nothing of what the engine
 * moves.
 *
 * 1. An event that is recorded is one of the engine's.
 * 2. An operation of the file is the same each time. */

/* Memory of the device and of the host, between which copies go, and a file. */
typedef struct memob_memory {
    char *device, *host;
    int32_t owns_device, owns_host;
    /* Writes and reads of the file, each made when it is first used; before that, those by a
     * function of the caller. */
    memob_spill_op* spill_ops;
    memob_spill_file file;
    int64_t copied_bytes[2], file_bytes[2]; /* so far: to the host, back; to the file, back */
} memob_memory;

typedef struct memob_engine {
    memo_device device;
    memo_stream streams[MEMOB_N_STREAMS];
    int32_t borrowed;         /* bit k: stream k is the caller's */
    int32_t computes_on_host; /* the calling thread computes, not a stream */
    memo_event* events;
    int32_t n_events;
    memob_memory memory;
    memob_arrays arrays; /* events, spill_ops, and others of the engine */

    /* The call that is under way.  After a failure the rest of the call does nothing. */
    memo_status status;
    memo_error* error;
} memob_engine;

/* An address in memory that a dry run or a planner may lack. */
MEMOI void* memob_at(const void* memory, int64_t offset) {
    return (void*)((uintptr_t)memory + (uintptr_t)offset);
}

/* An engine that has nothing yet but what the caller gives, on a device that was checked. */
MEMOI void memob_engine_begin(memob_engine* e, const memo_device* device,
                              memo_stream compute_stream, int32_t computes_on_host,
                              void* device_memory, void* host_memory) {
    memset(e, 0, sizeof *e);
    (void)memob_device_take(&e->device, device, "", NULL);
    e->memory.file.fd = -1;
    e->streams[MEMOB_STREAM_COMPUTE] = compute_stream;
    e->computes_on_host = computes_on_host;
    e->memory.device = (char*)device_memory;
    e->memory.host = (char*)host_memory;
}

/* Takes memory that the caller has not given.  desc: name of the desc, for messages.
 * memob_engine_release frees whatever was taken. */
MEMOI memo_status memob_engine_acquire(memob_engine* e, const char* desc, int64_t device_bytes,
                                       int64_t host_bytes, memo_error* error) {
    void *on_device = e->memory.device, *on_host = e->memory.host;
    memo_status status = MEMO_STATUS_OK;
    if (!on_device && device_bytes) {
        status = memo_device_alloc(&e->device, device_bytes, &on_device, error);
        if (status) return status;
        e->memory.owns_device = 1;
    }
    e->memory.device = (char*)on_device;
    if ((uintptr_t)on_device % MEMOB_DEVICE_ALIGNMENT)
        return MEMOB_INVALID(error, "%s.device_memory: not a multiple of %d bytes", desc,
                             MEMOB_DEVICE_ALIGNMENT);
    if (!on_host && host_bytes) {
        status = memo_host_alloc(&e->device, host_bytes, &on_host, error);
        if (status) return status;
        e->memory.owns_host = 1;
    }
    e->memory.host = (char*)on_host;
    return status;
}

/* Creates streams that are not there: of copies (n_streams 2), and of the file (3). */
MEMOI memo_status memob_engine_take_streams(memob_engine* e, int32_t n_streams, memo_error* error) {
    static const char* const names[] = {"compute", "to host", "to device", "file"};
    MEMOB_TABLE_OF(MEMOB_N_STREAMS, names);
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = MEMOB_STREAM_TO_HOST; i <= n_streams && !status; i++)
        if (!e->streams[i])
            status = memo_stream_create(&e->device, names[i], 0, &e->streams[i], error);
    return status;
}

/* Errors: UNSUPPORTED.  what: what runs by launch_host. */
MEMOI memo_status memob_engine_check_launch(const memob_engine* e, const char* desc,
                                            const char* what, memo_error* error) {
    if (e->device.launch_host) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "%s.device: its table has no launch_host, which %s needs; set it, or do "
                          "without %s",
                          desc, what, what);
}

/* Waits for computation, and for all that the engine's streams do. */
MEMOI memo_status memob_engine_synchronize(const memob_engine* e, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < MEMOB_N_STREAMS && !status; k++)
        if (k == MEMOB_STREAM_COMPUTE ? !e->computes_on_host : e->streams[k] != NULL)
            status = memo_stream_synchronize(&e->device, e->streams[k], error);
    return status;
}

MEMOI void memob_engine_release(memob_engine* e) {
    const memo_device* device = &e->device;
    if (!device->struct_bytes) return; /* it has not begun */

    /* Copies use the memory below, so wait for them first. */
    for (int32_t i = MEMOB_STREAM_TO_HOST; i <= MEMOB_STREAM_FILE; i++) {
        if (!e->streams[i]) continue;
        MEMOB_IGNORE(memo_stream_synchronize(device, e->streams[i], NULL));
        if (!(e->borrowed >> i & 1)) memo_stream_destroy(device, e->streams[i], NULL);
    }
    memob_spill_destroy(&e->memory.file);
    for (int32_t i = 0; i < e->n_events && e->events; i++)
        if (e->events[i]) memo_event_destroy(device, e->events[i], NULL);
    if (e->memory.owns_host) memo_host_free(device, e->memory.host, NULL);
    if (e->memory.owns_device) memo_device_free(device, e->memory.device, NULL);
}

/* --- operations of a call --- */

MEMOI void memob_engine_call(memob_engine* e, memo_error* error) {
    e->status = MEMO_STATUS_OK;
    e->error = error;
}

MEMOI void memob_engine_record(memob_engine* e, int32_t stream, int32_t event) {
    MEMO_ASSERT(event >= 0 && event < e->n_events); /* 1 */
    if (!e->status)
        e->status = memo_event_record(&e->device, e->events[event], e->streams[stream], e->error);
}

/* Copies bytes of memory to the host, or back. */
MEMOI inline void memob_engine_copy(memob_engine* e, memob_memory* memory, int is_back,
                                    int64_t device_begin, int64_t host_begin, int64_t n_bytes) {
    void* on_device = memob_at(memory->device, device_begin);
    void* on_host = memob_at(memory->host, host_begin);
    if (e->status) return;
    e->status = is_back ? memo_copy(&e->device, e->streams[MEMOB_STREAM_TO_DEVICE],
                                    MEMO_COPY_TO_DEVICE, on_device, on_host, n_bytes, e->error)
                        : memo_copy(&e->device, e->streams[MEMOB_STREAM_TO_HOST], MEMO_COPY_TO_HOST,
                                    on_host, on_device, n_bytes, e->error);
    if (!e->status) memory->copied_bytes[is_back] += n_bytes;
}

/* Writes bytes of host memory to the file, or reads them; always the same for operation k. */
MEMOI void memob_engine_use_file(memob_engine* e, memob_memory* memory, int64_t k, int is_write,
                                 int64_t host_begin, int64_t file_begin, int64_t n_bytes) {
    memob_spill_op* op = &memory->spill_ops[k];
    void* on_host = memob_at(memory->host, host_begin);
    if (!op->file)
        memob_spill_op_init(op, &memory->file, is_write, (char*)on_host, file_begin, n_bytes);
    MEMO_ASSERT(op->is_write == is_write && op->address == on_host && /* 2 */
                op->offset == file_begin);
    if (e->status) return;
    e->status = memob_spill_launch(&e->device, e->streams[MEMOB_STREAM_FILE], op, e->error);
    if (!e->status) memory->file_bytes[!op->is_write] += op->n_bytes;
}
