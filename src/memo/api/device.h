#pragma once
/* ---- 4 device: the table of functions that everything runs on -----------------------------------
 *
 * Events have CUDA's semantics.  A wait sees the latest earlier record.  A wait for an event that
 * was never recorded does nothing; memo_schedule_check reports the wait.  If an operation fails,
 * the next call and every synchronization return the error.  The host device skips later work; on
 * CUDA work that is enqueued still runs, and its results have no meaning.  To change a device, copy
 * the table and replace functions (examples/04_custom_device.c). */

typedef struct memo_stream_handle* memo_stream; /* CUDA: a cudaStream_t */
typedef struct memo_event_handle* memo_event;   /* CUDA: a cudaEvent_t */

typedef enum memo_copy_kind {
    MEMO_COPY_TO_HOST = 0,
    MEMO_COPY_TO_DEVICE,
    MEMO_COPY_ON_DEVICE,
    MEMO_N_COPY_KINDS
} memo_copy_kind;

typedef struct memo_range {
    uint64_t begin, end; /* bytes [begin, end): addresses, or any consistent numbering */
} memo_range;

/* An operation in words: announced by annotate, or part of a schedule (extras/memo_look.h). */
typedef struct memo_op_desc {
    const char* name; /* copied; NULL: "run" */
    int32_t stream;
    double duration_s;
    int64_t link_bytes; /* that it moves, to show */
    const memo_range* reads;
    int64_t n_reads;
    const memo_range* writes;
    int64_t n_writes;
} memo_op_desc;

/* Types of numbers. */
typedef enum memo_type {
    MEMO_TYPE_F32 = 0,
    MEMO_TYPE_F64,
    MEMO_TYPE_BF16,
    MEMO_TYPE_F16,
    MEMO_TYPE_I32,
    MEMO_TYPE_I64,
    MEMO_TYPE_U8,
    MEMO_N_TYPES
} memo_type;

/* The row kernels of memo_sp.h, whose chapter 11 has the desc of each. */
typedef enum memo_row_kind {
    MEMO_ROW_MERGE = 0,
    MEMO_ROW_ADD,
    MEMO_ROW_SUMS,
    MEMO_ROW_CAST,
    MEMO_ROW_SOFTMAX_PARTS,
    MEMO_ROW_CROSS_ENTROPY,
    MEMO_ROW_LOSS_SUMS,
    MEMO_ROW_SINKS,
    MEMO_ROW_SINK_SUMS,
    MEMO_ROW_REDUCE,
    MEMO_ROW_ADD_PACKED,
    MEMO_N_ROW_KINDS
} memo_row_kind;

/* A host function as an operation of a stream.  Returns OK, or an error that fails the stream. */
typedef memo_status (*memo_host_function)(void* args, memo_error* error);
typedef struct memo_row_call {
    memo_row_kind kind;
    const void* desc; /* of the kind, valid, with all defaults filled in */
    /* A device whose streams run on the host runs function(a copy of args). */
    memo_host_function function;
    const void* args;
    int64_t args_bytes; /* at most MEMO_HOST_ARGS_BYTES */
} memo_row_call;
typedef struct memo_host_call {
    memo_host_function function;
    void* argument;
    void* device; /* set by a CUDA device that enqueues the call; then no other device may */
} memo_host_call;

/* What a row of bytes holds, for checked sessions.  Poison: NaN where nothing has been written. */
typedef struct memo_row_content {
    uint64_t digest;      /* the same for the same bytes, from one device */
    int64_t n_poisoned;   /* so many of the first bytes are poison */
    int64_t is_of_poison; /* 1: at least two numbers were computed from poison */
} memo_row_content;

typedef struct memo_device {
    int64_t struct_bytes; /* sizeof(memo_device) of the code that filled the table */
    const char* name;
    void* context; /* first argument of every function */

    /* Device memory and pinned host memory; synchronous.  Addresses are multiples of 512.  Free
     * only memory that no enqueued operation still uses. */
    memo_status (*device_alloc)(void* context, int64_t size_bytes, void** address,
                                memo_error* error);
    memo_status (*device_free)(void* context, void* address, memo_error* error);
    memo_status (*host_alloc)(void* context, int64_t size_bytes, void** address, memo_error* error);
    memo_status (*host_free)(void* context, void* address, memo_error* error);
    /* Bytes of device memory: free, and total. */
    memo_status (*memory_info)(void* context, int64_t* free_bytes, int64_t* total_bytes,
                               memo_error* error);

    /* Streams.  A larger priority runs first, if the device has priorities. */
    memo_status (*stream_create)(void* context, const char* name, int32_t priority,
                                 memo_stream* stream, memo_error* error);
    memo_status (*stream_destroy)(void* context, memo_stream stream, memo_error* error);
    memo_status (*stream_synchronize)(void* context, memo_stream stream, memo_error* error);

    /* Events. */
    memo_status (*event_create)(void* context, memo_event* event, memo_error* error);
    memo_status (*event_destroy)(void* context, memo_event event, memo_error* error);
    memo_status (*event_record)(void* context, memo_event event, memo_stream stream,
                                memo_error* error);
    memo_status (*event_wait)(void* context, memo_event event, memo_stream stream,
                              memo_error* error); /* stream waits for event */
    memo_status (*event_query)(void* context, memo_event event, int32_t* is_done,
                               memo_error* error);
    memo_status (*event_synchronize)(void* context, memo_event event, memo_error* error);
    /* Time from the completion of begin to the completion of end; both must be done. */
    memo_status (*event_elapsed)(void* context, memo_event begin, memo_event end, double* elapsed_s,
                                 memo_error* error);

    /* Enqueued on stream.  copy_rows copies n_rows rows of row_bytes; strides are between
     * starts. */
    memo_status (*copy)(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                        const void* from, int64_t size_bytes, memo_error* error);
    memo_status (*copy_rows)(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                             int64_t to_stride_bytes, const void* from, int64_t from_stride_bytes,
                             int64_t row_bytes, int64_t n_rows, memo_error* error);
    memo_status (*fill)(void* context, memo_stream stream, void* address, int32_t byte_value,
                        int64_t size_bytes, memo_error* error);

    /* Returns the first asynchronous error so far, without waiting. */
    memo_status (*status)(void* context, memo_error* error);

    /* Announces work that the trainer launches itself on stream: name, bytes read and written, and
     * the duration if known.  NULL unless a recorder (memo_look.h) listens. */
    memo_status (*annotate)(void* context, memo_stream stream, const memo_op_desc* op,
                            memo_error* error);

    /* A row kernel, enqueued on stream; NULL if the device has none.  call and desc are read before
     * the call returns, arrays when the operation runs.  Called by memo_row_kernel (memo_sp.h).
     * Errors: UNSUPPORTED, the device's. */
    memo_status (*row_kernel)(void* context, memo_stream stream, const memo_row_call* call,
                              memo_error* error);

    /* Enqueues call->function(call->argument), which runs on a thread of the device; NULL if the
     * device cannot.  The function may block, but must not call this table.  A call may be enqueued
     * again before it has run, also on other streams: then several threads may run it at once.
     * *call must stay valid as long as a stream, or a captured graph, may run the call. */
    memo_status (*launch_host)(void* context, memo_stream stream, memo_host_call* call,
                               memo_error* error);

    /* As event_create, for an event that event_elapsed never reads; NULL: event_create serves. */
    memo_status (*event_create_untimed)(void* context, memo_event* event, memo_error* error);

    /* The device that this table passes calls on to, such as a recorder's; NULL: none. */
    const struct memo_device* inner;

    /* Enqueues a look at n_rows rows of bytes in device memory; found, in device memory, has one
     * entry a row.  NULL: a checked session copies the bytes to the host. */
    memo_status (*inspect)(void* context, memo_stream stream, const void* bytes, int64_t row_bytes,
                           int64_t n_rows, memo_row_content* found, memo_error* error);
} memo_device;

/* Does the table have this function?  A table of older code may end before the function. */
#define MEMO_DEVICE_HAS(device, function)                                                          \
    ((device)->struct_bytes >=                                                                     \
         MEMO_CAST(int64_t, offsetof(memo_device, function) + sizeof((device)->function)) &&       \
     (device)->function)

/* The table, called: memo_copy(device, stream, ..., error) is device->copy(device->context, stream,
 * ..., error), and so is memo_NAME for each other NAME, but for memo_device_status (status),
 * memo_annotate, memo_event_create_untimed and memo_row_kernel. */
#define MEMO_LIST(...) __VA_ARGS__
#define MEMO_DEVICE_NEEDS(argument)                                                                \
    if (!argument)                                                                                 \
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,                                 \
                              "%s: " #argument ": NULL; pass one", __func__);
#define MEMO_DEVICE_AS(linkage, function, parameters, arguments, needs)                            \
    linkage memo_status memo_##function(const memo_device* device, MEMO_LIST parameters,           \
                                        memo_error* error) {                                       \
        needs return device->function(device->context, MEMO_LIST arguments, error);                \
    }
#define MEMO_DEVICE_CALL(function, parameters, arguments)                                          \
    MEMO_DEVICE_AS(MEMO_TRY_CALL, function, parameters, arguments, MEMO_DEVICE_NEEDS(device))
#define MEMO_DEVICE_END(function, parameters, arguments)                                           \
    MEMO_DEVICE_AS(MEMO_FUNCTION, function, parameters, arguments, MEMO_DEVICE_NEEDS(device))
#define MEMO_DEVICE_CALL_WITH(function, parameters, arguments, pointer)                            \
    MEMO_DEVICE_AS(MEMO_TRY_CALL, function, parameters, arguments,                                 \
                   MEMO_DEVICE_NEEDS(device) MEMO_DEVICE_NEEDS(pointer))
MEMO_DEVICE_CALL_WITH(device_alloc, (int64_t size_bytes, void** address), (size_bytes, address),
                      address)
MEMO_DEVICE_END(device_free, (void* address), (address))
MEMO_DEVICE_CALL_WITH(host_alloc, (int64_t size_bytes, void** address), (size_bytes, address),
                      address)
MEMO_DEVICE_END(host_free, (void* address), (address))
MEMO_DEVICE_AS(MEMO_TRY_CALL, memory_info, (int64_t * free_bytes, int64_t* total_bytes),
               (free_bytes, total_bytes),
               MEMO_DEVICE_NEEDS(device) MEMO_DEVICE_NEEDS(free_bytes)
                   MEMO_DEVICE_NEEDS(total_bytes))
MEMO_DEVICE_CALL_WITH(stream_create, (const char* name, int32_t priority, memo_stream* stream),
                      (name, priority, stream), stream)
MEMO_DEVICE_END(stream_destroy, (memo_stream stream), (stream))
MEMO_DEVICE_CALL(stream_synchronize, (memo_stream stream), (stream))
MEMO_DEVICE_CALL_WITH(event_create, (memo_event * event), (event), event)
MEMO_DEVICE_END(event_destroy, (memo_event event), (event))
MEMO_DEVICE_CALL(event_record, (memo_event event, memo_stream stream), (event, stream))
MEMO_DEVICE_CALL(event_wait, (memo_event event, memo_stream stream), (event, stream))
MEMO_DEVICE_CALL_WITH(event_query, (memo_event event, int32_t* is_done), (event, is_done), is_done)
MEMO_DEVICE_CALL(event_synchronize, (memo_event event), (event))
MEMO_DEVICE_CALL_WITH(event_elapsed, (memo_event begin, memo_event end, double* elapsed_s),
                      (begin, end, elapsed_s), elapsed_s)
MEMO_DEVICE_CALL(copy,
                 (memo_stream stream, memo_copy_kind kind, void* to, const void* from,
                  int64_t size_bytes),
                 (stream, kind, to, from, size_bytes))
MEMO_DEVICE_CALL(copy_rows,
                 (memo_stream stream, memo_copy_kind kind, void* to, int64_t to_stride_bytes,
                  const void* from, int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows),
                 (stream, kind, to, to_stride_bytes, from, from_stride_bytes, row_bytes, n_rows))
MEMO_DEVICE_CALL(fill, (memo_stream stream, void* address, int32_t byte_value, int64_t size_bytes),
                 (stream, address, byte_value, size_bytes))
MEMO_DEVICE_CALL_WITH(launch_host, (memo_stream stream, memo_host_call* call), (stream, call), call)
MEMO_TRY_CALL memo_status memo_event_create_untimed(const memo_device* device, memo_event* event,
                                                    memo_error* error) {
    MEMO_DEVICE_NEEDS(device)
    MEMO_DEVICE_NEEDS(event)
    if (!MEMO_DEVICE_HAS(device, event_create_untimed))
        return device->event_create(device->context, event, error);
    return device->event_create_untimed(device->context, event, error);
}
MEMO_TRY_CALL memo_status memo_device_status(const memo_device* device, memo_error* error) {
    MEMO_DEVICE_NEEDS(device)
    return device->status(device->context, error);
}
/* Does nothing unless a recorder listens. */
MEMO_TRY_CALL memo_status memo_annotate(const memo_device* device, memo_stream stream,
                                        const memo_op_desc* op, memo_error* error) {
    MEMO_DEVICE_NEEDS(device)
    MEMO_DEVICE_NEEDS(op)
    return device->annotate ? device->annotate(device->context, stream, op, error) : MEMO_STATUS_OK;
}
#undef MEMO_DEVICE_AS
#undef MEMO_DEVICE_CALL
#undef MEMO_DEVICE_END
#undef MEMO_DEVICE_CALL_WITH
#undef MEMO_DEVICE_NEEDS
#undef MEMO_LIST
