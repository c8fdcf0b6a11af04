#pragma once
/* ---- 2 trace: what was requested ----------------------------------------------------------------
 *
 * The memory requests of a step, in order.  Time counts mallocs and frees: number k, from 0,
 * happens at time k.
 *
 * Streams.  A buffer belongs to the stream of the request.  If another stream reads or writes the
 * buffer, record a `use`.  If events order streams, record the event's `record` and `wait`.  If a
 * stream uses a buffer without having waited for the buffer's own stream since the request, the use
 * is assumed to begin with the request.  At the end of a micro-batch the trainer must order all
 * streams, so that the next micro-batch starts after all work of this micro-batch. */

typedef enum memo_class {
    MEMO_CLASS_TRANSIENT = 0,
    MEMO_CLASS_SKELETAL,
    MEMO_CLASS_PERSISTENT,
    MEMO_N_CLASSES
} memo_class;

typedef enum memo_request_kind {
    MEMO_REQUEST_MALLOC = 0, /* id, size_bytes, memory_class, stream */
    MEMO_REQUEST_FREE,       /* id, size_bytes of the malloc */
    MEMO_REQUEST_USE,        /* id, stream: all work enqueued on stream so far may use the buffer */
    MEMO_REQUEST_RECORD,     /* id = event, stream */
    MEMO_REQUEST_WAIT,       /* id = event, stream: stream waits for the latest record of event */
    MEMO_REQUEST_MARK,       /* id = offset of the text in memo_trace.text */
    MEMO_N_REQUEST_KINDS
} memo_request_kind;

typedef struct memo_request {
    memo_request_kind kind;
    memo_class memory_class;
    int32_t stream;
    int64_t id;
    int64_t size_bytes;
} memo_request;

typedef struct memo_trace {
    memo_request* requests;
    int64_t n_requests;
    char* text; /* the marks, each followed by a zero byte */
    int64_t text_bytes;
    int64_t n_buffers; /* mallocs so far */
    int64_t n_live;    /* mallocs not yet freed */
    void* reserved;    /* for memo.h */
} memo_trace;

MEMO_TRY memo_status memo_trace_create(memo_trace** trace, memo_error* error);
MEMO_API void memo_trace_destroy(memo_trace* trace);

/* Append a request.  On failure the trace is unchanged.  Errors: INVALID_ARGUMENT (negative size;
 * stream outside 0 to 63; malloc of an id that is live; free or use of an id that is not; wait for
 * an event that was never recorded), OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_trace_malloc(memo_trace* trace, int64_t id, int64_t size_bytes,
                                       memo_class memory_class, int32_t stream, memo_error* error);
MEMO_TRY memo_status memo_trace_free(memo_trace* trace, int64_t id, memo_error* error);
MEMO_TRY memo_status memo_trace_use(memo_trace* trace, int64_t id, int32_t stream,
                                    memo_error* error);
MEMO_TRY memo_status memo_trace_record(memo_trace* trace, int64_t event, int32_t stream,
                                       memo_error* error);
MEMO_TRY memo_status memo_trace_wait(memo_trace* trace, int64_t event, int32_t stream,
                                     memo_error* error);

/* A mark names a moment.  Two kinds of text have a meaning; any other line is kept and shown:
 *   "iteration begin" | "iteration end"               the repeated part, a micro-batch
 *   "layer N forward|recompute|backward begin|end"    N from 0
 * Other text directly before a malloc names the buffer in pictures.  Errors: INVALID_ARGUMENT
 * (empty text, or a control character); OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_trace_mark(memo_trace* trace, const char* text, memo_error* error);

/* The meaning of a mark.  Without a meaning, layer is -1 and phase MEMO_PHASE_NONE. */
typedef enum memo_phase {
    MEMO_PHASE_NONE = 0,
    MEMO_PHASE_ITERATION,
    MEMO_PHASE_FORWARD,
    MEMO_PHASE_RECOMPUTE,
    MEMO_PHASE_BACKWARD,
    MEMO_N_PHASES
} memo_phase;
typedef struct memo_mark {
    memo_phase phase;
    int64_t layer;
    int32_t is_end;
} memo_mark;
MEMO_API memo_mark memo_mark_parse(const char* text);

/* Files.  Text, a request a line:
 *
 *   memo trace 1
 *   # comment
 *   malloc ID SIZE [transient|skeletal|persistent [STREAM]]
 *   free ID SIZE
 *   use ID STREAM
 *   record EVENT STREAM
 *   wait EVENT STREAM
 *   mark TEXT
 *   end REQUESTS CHECKSUM          FNV-1a of all bytes before this line, 16 hexadecimal digits
 *
 * Version 0 has neither the first nor the last line, and only malloc, free and mark.  Path "-" is
 * standard input or output.  A file is written completely or not at all.
 * Errors: IO; FORMAT and VERSION, which set error->line; the message has file, line and reason;
 * OUT_OF_HOST_MEMORY; to write, INVALID_ARGUMENT (a value that the file cannot hold). */
MEMO_TRY memo_status memo_trace_read(const char* path, memo_trace** trace, memo_error* error);
MEMO_TRY memo_status memo_trace_write(const memo_trace* trace, const char* path, memo_error* error);
/* Reads from memory instead.  name replaces the path in messages; text needs no zero at the end.
 * text NULL is INVALID_ARGUMENT. */
MEMO_TRY memo_status memo_trace_parse(const char* text, int64_t n_bytes, const char* name,
                                      memo_trace** trace, memo_error* error);
