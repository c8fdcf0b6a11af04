/* memo.h - memory for long-context transformer training: plan it, replay it, move it.
 *
 * A trainer written in C or CUDA runs out of device memory long before it runs out of time.  memo
 * gives it three things, each usable alone:
 *
 *   trace, plan, arena    one training step's memory requests are recorded, given fixed offsets before
 *                         training, and replayed without a lock, a system call or fragmentation;
 *   swap engine           the activations that the backward pass needs leave the device behind the
 *                         computation and come back in time, row by row; the rest is recomputed;
 *   schedule              what was enqueued on which stream, as data: checked for races, simulated,
 *                         drawn.
 *
 * Everything runs through a small table of functions, memo_device.  This header brings one for the host
 * (threads as streams, with a hard capacity); memo_cuda.cuh brings the one for CUDA.
 *
 * Licence: MIT, see LICENSE.  Language: the subset of C99 that is also C++11.  Dependencies: none.
 *
 * USE.  Include it where you need it.  In exactly one translation unit:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #include "memo.h"                 // cc -std=c99 ... -lpthread -lm
 *
 * EXAMPLE: run one step without computing, plan it, run it for ever.
 *
 *     static memo_status step(memo_arena* arena, memo_error* error) {
 *         void *x, *y;
 *         if (memo_arena_begin(arena, error) ||
 *             memo_arena_alloc(arena, 3 << 20, 0, &x, error) ||
 *             memo_arena_alloc(arena, 1 << 20, 0, &y, error)) return error->status;
 *         // ... compute with x and y, unless this is the dry run ...
 *         if (memo_arena_free(arena, x, error) || memo_arena_free(arena, y, error))
 *             return error->status;
 *         return memo_arena_end(arena, error);
 *     }
 *     ...
 *     memo_trace* trace; memo_plan* plan; memo_arena* arena; memo_error error;
 *     memo_arena_desc desc = memo_arena_desc_default();
 *     memo_trace_create(&trace, &error);
 *     desc.trace = trace;                                  // no device: addresses only, a dry run
 *     memo_arena_create(&desc, &arena, &error);
 *     step(arena, &error);
 *     memo_arena_destroy(arena);
 *     memo_plan_from_trace(trace, 0, &plan, &error);
 *     memo_plan_solve(plan, NULL, &error);                 // memo_plan.h
 *     desc = memo_arena_desc_default();
 *     desc.device = device;  desc.plan = plan;             // replay: one block of plan->peak_bytes
 *     memo_arena_create(&desc, &arena, &error);
 *     for (;;) step(arena, &error);                        // tens of nanoseconds a request
 *
 * RULES.  Every fallible call returns memo_status and takes a memo_error that may be NULL; the message
 * says what was wrong, where, and what would work.  A desc is a plain struct in which zero means
 * default; start from memo_x_desc_default().  No global state.  Once created, nothing here allocates,
 * locks or synchronises on the training path.  An object serves one thread at a time.  Sizes are bytes,
 * times are seconds, intervals are half-open, indices are 64 bits wide.
 *
 * CHAPTERS  1 status and error | 2 trace | 3 plan | 4 device | 5 arena | 6 host device | 7 schedule
 *           8 recorder | 9 swap engine | then the implementation, in the same order.
 *
 * OPTIONS (define before the implementation)
 *     MEMO_STATIC              all functions are static
 *     MEMO_MALLOC, MEMO_FREE   memory for memo's own bookkeeping (default malloc, free)
 *     MEMO_ASSERT              (default assert)
 *     MEMO_NO_HOST_DEVICE      leaves chapter 6 and with it POSIX threads out
 */
#ifndef MEMO_H
#define MEMO_H

#define MEMO_VERSION_MAJOR 0
#define MEMO_VERSION_MINOR 1
#define MEMO_VERSION_PATCH 0

#if defined(MEMO_IMPLEMENTATION) && !defined(_WIN32)
/* The implementation uses POSIX (threads, clock, rename); ask before the first system header. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1
#endif
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define MEMO_PRINTF(position, first) __attribute__((format(printf, position, first)))
#define MEMO_UNUSED __attribute__((unused))
#else
#define MEMO_PRINTF(position, first)
#define MEMO_UNUSED
#endif

#ifdef MEMO_STATIC
#define MEMO_API static MEMO_UNUSED
#else
#define MEMO_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 status and error ------------------------------------------------------------------------- */

typedef enum memo_status {
    MEMO_STATUS_OK = 0,
    MEMO_STATUS_INVALID_ARGUMENT,     /* a desc or an argument that cannot be meant */
    MEMO_STATUS_INVALID_STATE,        /* a call out of order */
    MEMO_STATUS_OUT_OF_DEVICE_MEMORY, /* the device's capacity */
    MEMO_STATUS_OUT_OF_HOST_MEMORY,   /* pinned memory or memo's own bookkeeping */
    MEMO_STATUS_DIVERGED,             /* a request that is not the planned one */
    MEMO_STATUS_INFEASIBLE,           /* no plan meets the capacity that was asked for */
    MEMO_STATUS_IO,                   /* a file could not be read or written */
    MEMO_STATUS_FORMAT,               /* a file or text that is not what it should be */
    MEMO_STATUS_VERSION,              /* a file of a version this header does not know */
    MEMO_STATUS_DEVICE,               /* the device reports an error */
    MEMO_STATUS_UNSUPPORTED,          /* not available in this build or on this device */
    MEMO_STATUS_COMM                  /* a rank is lost, late, or does something else than the others */
} memo_status;

/* What went wrong.  Owned by the caller, filled on failure only; no call needs it. */
typedef struct memo_error {
    memo_status status;
    int64_t line; /* of the text at fault, from 1; 0 where no text is meant */
    char message[496];
} memo_error;

/* "out of device memory" and the like; never NULL. */
MEMO_API const char* memo_status_name(memo_status status);

/* Fills error (may be NULL) and returns status: `return memo_error_set(error, status, "...", ...);`.
 * For those who write a memo_device or a host function of their own. */
MEMO_API memo_status memo_error_set(memo_error* error, memo_status status, const char* format, ...)
    MEMO_PRINTF(3, 4);

/* Where warnings go, one line each without a newline.  Zeroed: nowhere. */
typedef struct memo_log {
    void (*write)(void* user, const char* message);
    void* user;
} memo_log;

/* ---- 2 trace: what was requested ----------------------------------------------------------------
 *
 * The memory requests of one step in the order the trainer made them.  Time is counted in mallocs and
 * frees: the k-th of them (from 0) happens at time k.
 *
 * Class of a buffer: *persistent* lives through the step (parameters, optimizer states, rounding
 * buffers); *skeletal* is made by a layer's forward and needed by its backward; *transient* is the rest.
 * (MEMO paper, section 3.1.)
 *
 * Streams: a buffer belongs to the stream it is requested for.  Where another stream reads or writes it,
 * record a `use`; where streams are ordered by events, record the event's `record` and `wait`.  At the end
 * of a micro-batch the trainer orders its streams, so that the next one comes after all of its work. */

typedef enum memo_class {
    MEMO_CLASS_TRANSIENT = 0,
    MEMO_CLASS_SKELETAL,
    MEMO_CLASS_PERSISTENT
} memo_class;

typedef enum memo_request_kind {
    MEMO_REQUEST_MALLOC = 0, /* id, size_bytes, memory_class, stream */
    MEMO_REQUEST_FREE,       /* id */
    MEMO_REQUEST_USE,        /* id, stream: everything enqueued on stream so far may use the buffer */
    MEMO_REQUEST_RECORD,     /* id = event, stream */
    MEMO_REQUEST_WAIT,       /* id = event, stream: stream waits for the latest record of event */
    MEMO_REQUEST_MARK        /* id = offset of the text in memo_trace.text */
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
    char* text; /* the marks, each ended by a zero byte */
    int64_t text_bytes;
    int64_t n_buffers; /* mallocs so far */
    int64_t n_live;    /* mallocs not yet freed */
    void* reserved;    /* bookkeeping of memo.h */
} memo_trace;

MEMO_API memo_status memo_trace_create(memo_trace** trace, memo_error* error);
MEMO_API void memo_trace_destroy(memo_trace* trace);

/* Append one request.  Errors: INVALID_ARGUMENT for a negative size, a stream outside [0, 63], an id
 * that is live already (malloc) or not live (free, use), an event never recorded (wait);
 * OUT_OF_HOST_MEMORY.  A failed call leaves the trace as it was. */
MEMO_API memo_status memo_trace_malloc(memo_trace* trace, int64_t id, int64_t size_bytes,
                                       memo_class memory_class, int32_t stream, memo_error* error);
MEMO_API memo_status memo_trace_free(memo_trace* trace, int64_t id, memo_error* error);
MEMO_API memo_status memo_trace_use(memo_trace* trace, int64_t id, int32_t stream, memo_error* error);
MEMO_API memo_status memo_trace_record(memo_trace* trace, int64_t event, int32_t stream,
                                       memo_error* error);
MEMO_API memo_status memo_trace_wait(memo_trace* trace, int64_t event, int32_t stream,
                                     memo_error* error);

/* A mark names a moment.  These are understood; any other one-line text is kept and shown:
 *   "iteration begin" | "iteration end"               the part that repeats, a micro-batch
 *   "layer N forward|recompute|backward begin|end"    N from 0 */
MEMO_API memo_status memo_trace_mark(memo_trace* trace, const char* text, memo_error* error);

/* What a mark says.  layer is -1 and phase PHASE_NONE where it names none. */
typedef enum memo_phase {
    MEMO_PHASE_NONE = 0,
    MEMO_PHASE_ITERATION,
    MEMO_PHASE_FORWARD,
    MEMO_PHASE_RECOMPUTE,
    MEMO_PHASE_BACKWARD
} memo_phase;
typedef struct memo_mark {
    memo_phase phase;
    int64_t layer;
    int32_t is_end;
} memo_mark;
MEMO_API memo_mark memo_mark_parse(const char* text);

/* Sets the class of every transient buffer born between a layer's forward begin and end, and freed
 * after that end, to skeletal. */
MEMO_API void memo_trace_classify(memo_trace* trace);

/* A trace of n_layers layers from one recorded with fewer (paper, section 4.3.2): the recorded layer's
 * forward is repeated, its backward repeated in reverse.  From a trace of one layer, what crosses its
 * border is matched by order and size (the output of layer i is the input of layer i+1); from three
 * or more, the second layer is the pattern, nothing is guessed, and n_layers is at least 2.  What lies
 * outside the layers is taken once, as recorded.  Errors: INVALID_ARGUMENT where the trace has no complete
 * layer, the inner layers differ, or the border of one cannot be matched; the message says to record three
 * layers then. */
MEMO_API memo_status memo_trace_apply_layers(const memo_trace* trace, int64_t n_layers,
                                             memo_trace** result, memo_error* error);

/* Files.  Text, one request a line:
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
 * Version 0 has no first and no last line and only malloc, free and mark.  A path "-" is standard input
 * or output.  A write replaces the file at once or not at all.
 * Errors: IO; FORMAT, VERSION with error->line; the message names file, line and reason. */
MEMO_API memo_status memo_trace_read(const char* path, memo_trace** trace, memo_error* error);
MEMO_API memo_status memo_trace_write(const memo_trace* trace, const char* path, memo_error* error);
/* The same from memory; name stands for the file in messages.  text needs no zero at its end. */
MEMO_API memo_status memo_trace_parse(const char* text, int64_t n_bytes, const char* name,
                                      memo_trace** trace, memo_error* error);

/* ---- 3 plan: where it goes ------------------------------------------------------------------------
 *
 * The offline placement problem and its solution in one struct: buffers with half-open lifetimes, and
 * their offsets once a planner (memo_plan.h) has set them.  Two buffers that live at the same time
 * never share a byte. */

typedef enum memo_proof {
    MEMO_PROOF_NONE = 0, /* not planned yet */
    MEMO_PROOF_FEASIBLE, /* valid; peak_bytes - lower_bound_bytes is the gap */
    MEMO_PROOF_OPTIMAL   /* valid, and no plan is smaller */
} memo_proof;

typedef struct memo_buffer {
    int64_t id;
    int64_t size_bytes;
    int64_t begin, end;      /* lifetime [begin, end) */
    int64_t offset_bytes;    /* set by the planner; where is_fixed, by the user before */
    int64_t alignment_bytes; /* of the offset; a power of two, not below the plan's; 0: the plan's */
    int32_t is_fixed;
    int32_t stream;
    memo_class memory_class;
} memo_buffer;

/* buffer (an index into buffers) occupies nothing during [begin, end): it is swapped out. */
typedef struct memo_gap {
    int64_t buffer;
    int64_t begin, end;
} memo_gap;

typedef struct memo_plan {
    memo_buffer* buffers; /* ordered by begin */
    int64_t n_buffers;
    memo_gap* gaps; /* ordered by buffer, then begin; disjoint, inside the lifetime */
    int64_t n_gaps;
    int64_t alignment_bytes;   /* a power of two; offsets are multiples, sizes count rounded up to it */
    int64_t n_times;           /* lifetimes lie in [0, n_times] */
    int64_t body_begin;        /* time at which the repeated part begins; persistent is before it */
    int64_t peak_bytes;        /* largest offset + rounded size: what the arena reserves */
    int64_t lower_bound_bytes; /* largest sum of live sizes; no plan is smaller */
    memo_proof proof;
    char engine[16]; /* who set the offsets */
} memo_plan;

/* A problem of n buffers, zeroed but for alignment_bytes (0: 1); fill buffers, then plan it. */
MEMO_API memo_status memo_plan_create(int64_t n_buffers, int64_t n_gaps, int64_t alignment_bytes,
                                      memo_plan** plan, memo_error* error);
MEMO_API void memo_plan_destroy(memo_plan* plan);

/* The problem that a trace poses.  alignment_bytes 0: 512.  A buffer never freed lives to n_times, and
 * is persistent where it was requested before the body.  A persistent buffer lives to n_times even if
 * freed, and from 0 if requested inside the body, since that is repeated.  With several streams a
 * lifetime ends only where every later malloc, on whatever stream, comes after all uses of the buffer.
 * Errors: INVALID_ARGUMENT (a sum of sizes beyond 2^62), OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_plan_from_trace(const memo_trace* trace, int64_t alignment_bytes,
                                          memo_plan** plan, memo_error* error);

/* Sorts buffers by begin (keeping gaps attached), checks sizes, lifetimes, alignments and gaps, and sets
 * lower_bound_bytes and, where it is smaller than the last end, n_times.  Every planner calls it first.
 * Errors: INVALID_ARGUMENT naming the buffer. */
MEMO_API memo_status memo_plan_prepare(memo_plan* plan, memo_error* error);

/* Trusts nothing a planner says and shares no code with any: every offset >= 0 and aligned, no two
 * buffers that live at the same time share a byte, peak and bound are what the buffers make them.
 * (That a plan above its bound is optimal is its engine's word; this cannot be checked here.)
 * Errors: INVALID_ARGUMENT naming the buffers. */
MEMO_API memo_status memo_plan_validate(const memo_plan* plan, memo_error* error);

/* Text: "memo plan 1", the numbers, a line a buffer, "end" with a checksum; read, write and parse as for
 * traces. A plan that does not validate is refused. */
MEMO_API memo_status memo_plan_read(const char* path, memo_plan** plan, memo_error* error);
MEMO_API memo_status memo_plan_write(const memo_plan* plan, const char* path, memo_error* error);
MEMO_API memo_status memo_plan_parse(const char* text, int64_t n_bytes, const char* name,
                                     memo_plan** plan, memo_error* error);

/* Address over time as SVG: a rectangle a buffer, coloured by class, with hover text; peak and bound
 * marked; phases named where trace (may be NULL) has marks.  Errors: IO; INVALID_STATE without offsets. */
MEMO_API memo_status memo_plan_write_svg(const memo_plan* plan, const memo_trace* trace,
                                         const char* title, const char* path, memo_error* error);

/* ---- 4 device: the table of functions that everything runs on -------------------------------------
 *
 * Events have CUDA's semantics: a wait sees the latest record made before it; waiting for an event
 * never recorded is no wait at all (memo_schedule_check reports it).  A failed operation makes the
 * device fail: the error is returned by the next call and by synchronisation, and work behind it is
 * skipped, never hung.  To change a device, copy its table and replace functions (examples/04). */

typedef struct memo_stream_handle* memo_stream; /* CUDA: a cudaStream_t */
typedef struct memo_event_handle* memo_event;   /* CUDA: a cudaEvent_t */

typedef enum memo_copy_kind {
    MEMO_COPY_TO_HOST = 0,
    MEMO_COPY_TO_DEVICE,
    MEMO_COPY_ON_DEVICE
} memo_copy_kind;

struct memo_op_desc; /* chapter 7 */

typedef struct memo_device {
    int64_t struct_bytes; /* sizeof(memo_device) of the code that filled the table */
    const char* name;
    void* context; /* first argument of every function */

    /* Device memory and pinned host memory; synchronous; addresses are multiples of 512. */
    memo_status (*device_alloc)(void* context, int64_t size_bytes, void** address, memo_error* error);
    memo_status (*device_free)(void* context, void* address, memo_error* error);
    memo_status (*host_alloc)(void* context, int64_t size_bytes, void** address, memo_error* error);
    memo_status (*host_free)(void* context, void* address, memo_error* error);
    /* Bytes of device memory: still free, and in all. */
    memo_status (*memory_info)(void* context, int64_t* free_bytes, int64_t* total_bytes,
                               memo_error* error);

    /* Streams.  A larger priority goes first where the device has priorities. */
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
    /* From the completion of begin to that of end; both recorded and done. */
    memo_status (*event_elapsed)(void* context, memo_event begin, memo_event end, double* elapsed_s,
                                 memo_error* error);

    /* Enqueued on stream.  copy_rows: n_rows rows of row_bytes, their starts a stride apart. */
    memo_status (*copy)(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                        const void* from, int64_t size_bytes, memo_error* error);
    memo_status (*copy_rows)(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                             int64_t to_stride_bytes, const void* from, int64_t from_stride_bytes,
                             int64_t row_bytes, int64_t n_rows, memo_error* error);
    memo_status (*fill)(void* context, memo_stream stream, void* address, int32_t byte_value,
                        int64_t size_bytes, memo_error* error);

    /* The first asynchronous error so far, without waiting. */
    memo_status (*status)(void* context, memo_error* error);

    /* What the trainer is about to enqueue on stream, which the table does not see: name, bytes read
     * and written, duration if known.  NULL unless somebody listens (chapter 8). */
    memo_status (*annotate)(void* context, memo_stream stream, const struct memo_op_desc* op,
                            memo_error* error);
} memo_device;

/* ---- 5 arena: replays a plan ----------------------------------------------------------------------
 *
 * Record:  trace set, plan NULL.  Requests go to the device, or, without a device, return addresses that
 *          must not be used (a dry run); each is appended to the trace.
 * Replay:  plan set.  One block of plan->peak_bytes is taken at creation; the k-th request gets the
 *          address that the plan gave the k-th request: no search, no lock, no system call.
 *
 * What is requested before the first memo_arena_begin is persistent.  Between begin and end lies one
 * micro-batch, repeated any number of times; it frees all that it requests, and may end before it has made
 * all planned requests.  A request smaller than planned is served from its slot.  Frees may come early and
 * in any order.  Only the first micro-batch is recorded; those after it are served and not written down.
 *
 * A request that the plan does not have at this point (too large, one more, or one whose turn has not
 * come) diverges: the call fails with DIVERGED, or, with MEMO_DIVERGENCE_FALLBACK, the device's allocator
 * serves it, it is counted, and replay goes on with the next request that fits the plan (after a fallback,
 * preferably one of exactly a planned size).  A request of 0 bytes gets an address that no other has. */

typedef enum memo_divergence { MEMO_DIVERGENCE_ERROR = 0, MEMO_DIVERGENCE_FALLBACK } memo_divergence;

typedef struct memo_arena_desc {
    const memo_device* device; /* NULL: dry run (record), or memory below (replay) */
    const memo_plan* plan;     /* replay; borrowed until destroy */
    memo_trace* trace;         /* record; borrowed until destroy */
    memo_divergence on_divergence;
    void* memory; /* replay into these bytes instead of the device's; aligned as the plan is */
    int64_t memory_bytes;
    memo_log log; /* one line for each divergence that falls back */
} memo_arena_desc;

typedef struct memo_arena_stats {
    int64_t n_requests;     /* served so far */
    int64_t n_fallbacks;    /* of them by the device's allocator, after a divergence */
    int64_t fallback_bytes; /* largest sum of such bytes live at once */
    int64_t reserved_bytes; /* of the block (replay), largest sum of live bytes (record) */
} memo_arena_stats;

typedef struct memo_arena memo_arena;

MEMO_API memo_arena_desc memo_arena_desc_default(void);
/* Errors: INVALID_ARGUMENT (also a plan that does not validate, or whose order of requests is open since
 * buffers begin at the same time), OUT_OF_DEVICE_MEMORY (what is needed and what is free),
 * OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_arena_create(const memo_arena_desc* desc, memo_arena** arena,
                                       memo_error* error);
/* Gives the device its memory back; the caller has synchronised. */
MEMO_API void memo_arena_destroy(memo_arena* arena);

/* Requests between end and begin are refused with INVALID_STATE; frees of persistent buffers are not. */
MEMO_API memo_status memo_arena_begin(memo_arena* arena, memo_error* error);
/* Errors: INVALID_STATE where a buffer of this micro-batch is still live. */
MEMO_API memo_status memo_arena_end(memo_arena* arena, memo_error* error);
/* Gives up the current micro-batch: all its buffers are gone, the next call is begin.  Recording, it is
 * taken out of the trace again. */
MEMO_API void memo_arena_abandon(memo_arena* arena);

/* stream: which stream uses it first, as in the trace (0 where there is one). */
MEMO_API memo_status memo_arena_alloc(memo_arena* arena, int64_t size_bytes, int32_t stream,
                                      void** address, memo_error* error);
MEMO_API memo_status memo_arena_free(memo_arena* arena, void* address, memo_error* error);

/* Kept in the trace when recording; cost nothing in replay. */
MEMO_API memo_status memo_arena_use(memo_arena* arena, void* address, int32_t stream,
                                    memo_error* error);
MEMO_API memo_status memo_arena_record(memo_arena* arena, int64_t event, int32_t stream,
                                       memo_error* error);
MEMO_API memo_status memo_arena_wait(memo_arena* arena, int64_t event, int32_t stream,
                                     memo_error* error);
MEMO_API memo_status memo_arena_mark(memo_arena* arena, const char* text, memo_error* error);

MEMO_API memo_arena_stats memo_arena_get_stats(const memo_arena* arena);

/* ---- 6 host device: threads as streams ------------------------------------------------------------
 *
 * A device made of host memory.  Each stream is a thread with its own queue, so copies and functions
 * really happen later and elsewhere; capacities are hard.  For tests, for trainers on CPUs, and for trying
 * a schedule: copies can be given a bandwidth and operations a duration.  No lock and no shared counter
 * orders two streams: only events do, so that a race detector sees a missing wait. */
#ifndef MEMO_NO_HOST_DEVICE

typedef struct memo_host_device_desc {
    int64_t device_memory_bytes; /* capacity of device_alloc; 0: no limit */
    int64_t host_memory_bytes;   /* capacity of host_alloc; 0: no limit */
    /* Rate of copies; 0: as fast as memory is. */
    double to_host_bytes_per_s;
    double to_device_bytes_per_s;
    double both_ways_bytes_per_s; /* of both together while both directions copy; 0: their sum */
    int64_t queue_operations;     /* a stream's queue; enqueueing waits where it is full; 0: 4096 */
    int32_t start_held;           /* nothing runs before memo_host_device_start */
} memo_host_device_desc;

typedef struct memo_host_device_stats {
    int64_t device_bytes, device_peak_bytes;
    int64_t host_bytes, host_peak_bytes;
    int64_t to_host_bytes, to_device_bytes; /* copied so far; read after synchronisation */
} memo_host_device_stats;

/* Runs on the stream's thread.  args is the copy made at launch. */
typedef memo_status (*memo_host_function)(void* args, memo_error* error);
#define MEMO_HOST_ARGS_BYTES 256

MEMO_API memo_host_device_desc memo_host_device_desc_default(void);
MEMO_API memo_status memo_host_device_create(const memo_host_device_desc* desc, memo_device** device,
                                             memo_error* error);
/* Waits for all streams; frees memory still allocated. */
MEMO_API void memo_host_device_destroy(memo_device* device);
MEMO_API memo_status memo_host_device_start(memo_device* device, memo_error* error);
/* Enqueue function(args) on stream; at most MEMO_HOST_ARGS_BYTES of args are copied. */
MEMO_API memo_status memo_host_device_launch(memo_device* device, memo_stream stream,
                                             memo_host_function function, const void* args,
                                             int64_t args_bytes, memo_error* error);
/* Enqueue an operation that takes duration_s and no processor. */
MEMO_API memo_status memo_host_device_sleep(memo_device* device, memo_stream stream,
                                            double duration_s, memo_error* error);
MEMO_API memo_host_device_stats memo_host_device_get_stats(const memo_device* device);

#endif

/* ---- 7 schedule: operations on streams, as data ----------------------------------------------------
 *
 * A list in the order in which one thread enqueues: operations (RUN), event records, waits, and host
 * synchronisations.  A stream runs its operations in that order, one at a time.  Generators fill it,
 * a recorder (chapter 8) fills it from a real run; check, simulate and draw serve both. */

typedef struct memo_range {
    uint64_t begin, end; /* bytes [begin, end): addresses, or any consistent numbering */
} memo_range;

typedef enum memo_op_kind {
    MEMO_OP_RUN = 0,
    MEMO_OP_RECORD, /* event on stream */
    MEMO_OP_WAIT,   /* stream waits for the latest record of event */
    MEMO_OP_SYNC    /* the host waits for all of stream, or for the latest record of event:
                       what is enqueued later, on whatever stream, comes after */
} memo_op_kind;

/* What memo_schedule_run takes.  A collective occupies several streams at once.  An operation takes
 * duration_s first (latency, computation) and then the time of its bytes on the link. */
typedef struct memo_op_desc {
    const char* name; /* copied; NULL: "run" */
    int32_t stream;
    const int32_t* more_streams;
    int64_t n_more_streams;
    double duration_s;  /* without the bytes on a link, if any */
    int32_t link;       /* from memo_schedule_add_link; 0: none */
    int64_t link_bytes; /* that pass over it; without a link shown, but they take no time */
    const memo_range* reads;
    int64_t n_reads;
    const memo_range* writes;
    int64_t n_writes;
    int64_t alloc_bytes; /* taken when it starts */
    int64_t free_bytes;  /* given back when it ends */
} memo_op_desc;

typedef struct memo_op {
    memo_op_kind kind;
    int32_t stream;                            /* SYNC of an event: -1 */
    int32_t event;                             /* RECORD, WAIT, SYNC of an event; -1: none */
    int32_t link;                              /* RUN */
    int64_t first_more_stream, n_more_streams; /* in memo_schedule.more_streams */
    int64_t first_range, n_reads, n_writes;    /* in memo_schedule.ranges, reads first */
    int64_t link_bytes, alloc_bytes, free_bytes;
    double duration_s;
    double start_s, end_s; /* measured by a recorder; both 0 otherwise */
    int64_t name;          /* offset in memo_schedule.text */
} memo_op;

/* A link shared by the operations that send over it at the same time, in equal parts.  While link `peer`
 * (0: none) is busy too, the rate is shared_bytes_per_s instead. */
typedef struct memo_link {
    int64_t name;
    double bytes_per_s;
    int32_t peer;
    double shared_bytes_per_s;
} memo_link;

typedef struct memo_schedule {
    memo_op* ops;
    int64_t n_ops;
    int64_t* streams; /* offsets of their names in text */
    int32_t n_streams;
    memo_link* links; /* link k is links[k - 1] */
    int32_t n_links;
    int32_t n_events;
    int32_t* more_streams;
    memo_range* ranges;
    char* text;
    void* reserved; /* bookkeeping of memo.h */
} memo_schedule;

/* Building.  Streams and events count from 0, links from 1, in the order in which they are added.
 * Errors: INVALID_ARGUMENT (an index never added; a range that ends before it begins; a stream named twice
 * in one operation; negative sizes and durations; a rate that is not above 0), OUT_OF_HOST_MEMORY.
 * A failed call leaves the schedule as it was. */
MEMO_API memo_status memo_schedule_create(memo_schedule** schedule, memo_error* error);
MEMO_API void memo_schedule_destroy(memo_schedule* schedule);
MEMO_API memo_status memo_schedule_add_stream(memo_schedule* schedule, const char* name,
                                              int32_t* stream, memo_error* error);
MEMO_API memo_status memo_schedule_add_link(memo_schedule* schedule, const char* name,
                                            double bytes_per_s, int32_t* link, memo_error* error);
/* Both links carry shared_bytes_per_s each while both are busy. */
MEMO_API memo_status memo_schedule_pair_links(memo_schedule* schedule, int32_t a, int32_t b,
                                              double shared_bytes_per_s, memo_error* error);
MEMO_API memo_status memo_schedule_add_event(memo_schedule* schedule, int32_t* event,
                                             memo_error* error);
MEMO_API memo_op_desc memo_op_desc_default(void);
MEMO_API memo_status memo_schedule_run(memo_schedule* schedule, const memo_op_desc* op,
                                       memo_error* error);
MEMO_API memo_status memo_schedule_record(memo_schedule* schedule, int32_t event, int32_t stream,
                                          memo_error* error);
MEMO_API memo_status memo_schedule_wait(memo_schedule* schedule, int32_t event, int32_t stream,
                                        memo_error* error);
MEMO_API memo_status memo_schedule_sync(memo_schedule* schedule, int32_t stream, memo_error* error);
/* The host waits for the latest record of event. */
MEMO_API memo_status memo_schedule_sync_event(memo_schedule* schedule, int32_t event,
                                              memo_error* error);
/* The name of an operation, or of a record, wait or sync; never NULL. */
MEMO_API const char* memo_schedule_op_name(const memo_schedule* schedule, int64_t op);

/* Ordering, proven without running: one operation happens before another if a path of stream order and
 * events leads to it.  Two operations that touch a byte, one of them writing, without a path are a race. */
typedef struct memo_race {
    int64_t first, second; /* indices of ops, first enqueued first */
    memo_range range;      /* bytes they share */
} memo_race;

typedef struct memo_check {
    /* Of each operation with the latest on each other stream that touches the same bytes: what puts
     * that one before it, puts the earlier ones before it too.  Ordered by second, then first. */
    memo_race* races;
    int64_t n_races;
    /* Ops of kind WAIT, each of which alone could go without making a race that is not there yet. */
    int64_t* redundant_waits;
    int64_t n_redundant_waits;
    int64_t* unrecorded_waits; /* WAIT and SYNC ops for an event never recorded before */
    int64_t n_unrecorded_waits;
    int64_t n_waits;
    int64_t n_conflicts; /* pairs examined: (an operation, the latest on another stream) */
} memo_check;

/* Fills *check, which memo_check_destroy frees.  OK also where races were found: look at n_races. */
MEMO_API memo_status memo_schedule_check(const memo_schedule* schedule, memo_check** check,
                                         memo_error* error);
MEMO_API void memo_check_destroy(memo_check* check);

typedef struct memo_simulation {
    /* Of each op; n_ops of them.  A WAIT starts when its stream reaches it and ends when it has passed:
     * end - start is how long it held the stream.  A SYNC holds the host likewise. */
    double* start_s;
    double* end_s;
    double makespan_s; /* the last end */
    double* busy_s;    /* of each stream: time inside operations */
    double* stall_s;   /* of each stream: idle between its first start and its last end */
    /* Largest sum of alloc_bytes - free_bytes over time; at one moment frees come before allocs. */
    int64_t peak_bytes;
} memo_simulation;

/* start(op) = the latest of the end of the op before it on each of its streams, the records it waits
 * for, and host synchronisation; links are shared fairly as memo_link says.  Enqueueing takes no time.
 * O((ops + dependencies) log streams), times the number of links where bytes pass over them.
 * Errors: INVALID_ARGUMENT (times beyond what a double holds), OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_schedule_simulate(const memo_schedule* schedule,
                                            memo_simulation** simulation, memo_error* error);
/* The same figures from what a recorder measured, from the first start on.  Errors: INVALID_STATE where
 * nothing was measured. */
MEMO_API memo_status memo_schedule_measured(const memo_schedule* schedule,
                                            memo_simulation** simulation, memo_error* error);
MEMO_API void memo_simulation_destroy(memo_simulation* simulation);

/* Do two schedules enqueue the same: kinds, names, streams by name, sizes of ranges; and does each wait see
 * the same record, whatever the events are called?
 * Errors: INVALID_ARGUMENT naming the first op that differs. */
MEMO_API memo_status memo_schedule_compare(const memo_schedule* promised,
                                           const memo_schedule* recorded, memo_error* error);

/* Timelines, a row a stream, of a simulation or measurement of this schedule.  Chrome trace format (open in
 * chrome://tracing or Perfetto) and SVG (busy: share of the makespan).  Errors: IO, OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_schedule_write_chrome(const memo_schedule* schedule,
                                                const memo_simulation* times, const char* path,
                                                memo_error* error);
MEMO_API memo_status memo_schedule_write_svg(const memo_schedule* schedule,
                                             const memo_simulation* times, const char* title,
                                             const char* path, memo_error* error);

/* ---- 8 recorder: what was really enqueued ---------------------------------------------------------
 *
 * A device that passes every call on to another one and keeps a schedule of it.  Copies are seen with
 * their bytes; what the trainer launches itself it announces through device->annotate.  Recording may
 * allocate; where that fails, the call that was passed on returns OUT_OF_HOST_MEMORY.
 *
 *   copy, copy_rows, fill     RUN named "to host", "to device", "on device", "fill"; link_bytes are the
 *                             bytes, link is 0; rows that do not touch have a range each
 *   annotate                  RUN with the desc's name, duration, ranges and sizes, its stream and link being
 *                             those of the recorder; it lasts until the next call that touches the stream,
 *                             or the next synchronisation
 *   event_record, event_wait  RECORD, WAIT
 *   synchronize               SYNC; so does an event_query that finds a recorded event done
 *
 * A stream that was not made through the recorder is called "stream K" until it is named. */

typedef struct memo_recorder memo_recorder;

typedef struct memo_recorder_desc {
    const memo_device* device; /* borrowed until destroy */
    /* Put events around operations and waits, for start_s and end_s; duration_s too, where it was 0, so
     * that the schedule can be simulated. */
    int32_t is_timed;
} memo_recorder_desc;

MEMO_API memo_recorder_desc memo_recorder_desc_default(void);
MEMO_API memo_status memo_recorder_create(const memo_recorder_desc* desc, memo_recorder** recorder,
                                          memo_error* error);
MEMO_API void memo_recorder_destroy(memo_recorder* recorder);
/* The device to use instead, until destroy. */
MEMO_API memo_device* memo_recorder_device(memo_recorder* recorder);
MEMO_API memo_status memo_recorder_name_stream(memo_recorder* recorder, memo_stream stream,
                                               const char* name, memo_error* error);
/* Recording can pause, so that only the steps of interest are kept.  It starts running.  Pause and resume
 * where all streams are synchronised: what was enqueued in between is forgotten, and resume puts a SYNC
 * of every stream in the schedule.  What fails here is returned by memo_recorder_schedule. */
MEMO_API void memo_recorder_pause(memo_recorder* recorder);
MEMO_API void memo_recorder_resume(memo_recorder* recorder);
/* Reads the times (all streams synchronised before) and lends the schedule until destroy.  Errors: the
 * device's, where it cannot tell them. */
MEMO_API memo_status memo_recorder_schedule(memo_recorder* recorder, memo_schedule** schedule,
                                            memo_error* error);

/* ---- 9 swap engine: two rounding buffers ----------------------------------------------------------
 *
 * The skeletal tensors of a layer are tables of rows, a row a token.  A trainer describes them once and
 * brackets each layer; the engine gives addresses, moves rows to pinned host memory behind the
 * computation and back in time (MEMO paper, section 4.1).  Layer i uses rounding buffer i % 2:
 *
 *   forward of layer i    waits until the rows of layer i-2 have left the buffer; afterwards its own
 *                         rows leave on the engine's to-host stream, behind layer i+1;
 *   backward of layer i   waits until its rows are back; afterwards the rows of layer i-2 come into the
 *                         buffer on the engine's to-device stream, behind the backward of layer i-1.
 *
 * The last two layers are never moved.  Rows that are not swapped are recomputed by the trainer before
 * the backward, from rows that are there.  They share one scratch for all layers:
 * (18 + 14 alpha) b s h elements for a GPT layer instead of the paper's 32.  Resident layers have their own.
 *
 * The engine makes four waits a layer.  Each is necessary: memo_schedule_check finds a race without it.
 *   forward_begin(i)   compute   waits for  rows of i-2 on the host    (else: overwritten before they left)
 *   forward_end(i)     to host   waits for  forward of i               (else: copied before computed)
 *   backward_begin(i)  compute   waits for  rows of i on the device    (else: read before they arrived)
 *   backward_end(i)    to device waits for  backward of i              (else: overwritten while in use)
 * That rows come back only after they have left follows: the compute stream stands between. */

typedef enum memo_swap_mode {
    MEMO_SWAP_SPLIT = 0, /* the first rows (alpha) are swapped, the others recomputed */
    MEMO_SWAP_WHOLE,     /* all rows swapped whatever alpha: dear to recompute, or small */
    MEMO_SWAP_RECOMPUTE, /* all rows recomputed, none moved */
    MEMO_SWAP_KEEP       /* all rows of every layer stay on the device */
} memo_swap_mode;

typedef struct memo_swap_tensor {
    const char* name;
    int64_t row_bytes; /* of one token in one layer; 0: the tensor is absent */
    memo_swap_mode mode;
    /* 1: all rows lie side by side (q, k, v, which attention reads whole).  0: a split tensor may lie in
     * two pieces that meet at a tile's border. */
    int32_t is_contiguous;
} memo_swap_tensor;

typedef struct memo_swap_desc {
    const memo_device* device; /* may be NULL for memo_swap_get_sizes */
    memo_stream compute_stream;
    const memo_swap_tensor* tensors; /* copied */
    int32_t n_tensors;
    int32_t n_layers;
    int64_t n_rows;    /* tokens of a micro-batch */
    int64_t tile_rows; /* rows are split in whole tiles; the last may be short; 0: 1 */
    double alpha;      /* of SPLIT tensors, in [0, 1]; rounded to the nearest number of tiles */
    int32_t n_resident_layers; /* last layers with all rows their own: not recomputed; 0: 2 */
    int32_t is_timed;          /* measure stalls with events */
    void* device_memory;       /* memo_swap_sizes.device_bytes, 512-aligned; NULL: from the device */
} memo_swap_desc;

/* What a desc needs and does; exact, before anything is allocated. */
typedef struct memo_swap_sizes {
    int64_t swapped_rows; /* of a SPLIT tensor */
    double alpha;         /* swapped_rows / n_rows */
    int64_t device_bytes;
    int64_t host_bytes;          /* pinned */
    int64_t layer_swapped_bytes; /* moved each way for each swapped layer of a micro-batch */
    int64_t layer_bytes;         /* skeletal bytes of one layer */
    int32_t n_swapped_layers;
} memo_swap_sizes;

/* Where the rows of a tensor of a layer lie: row r at first + r * row_bytes below split_row, at
 * rest + (r - split_row) * row_bytes from there on. */
typedef struct memo_swap_view {
    char* first;
    char* rest;
    int64_t split_row;
    int64_t row_bytes;
} memo_swap_view;

static inline void* memo_swap_row(const memo_swap_view* view, int64_t row) {
    return row < view->split_row ? view->first + row * view->row_bytes
                                 : view->rest + (row - view->split_row) * view->row_bytes;
}

typedef struct memo_swap_stats {
    int64_t to_host_bytes, to_device_bytes; /* enqueued so far */
    double forward_stall_s, backward_stall_s; /* of the compute stream, last micro-batch; is_timed only */
} memo_swap_stats;

typedef struct memo_swap memo_swap;

MEMO_API memo_swap_desc memo_swap_desc_default(void);
/* Errors: INVALID_ARGUMENT; sums beyond 2^62 included. */
MEMO_API memo_status memo_swap_get_sizes(const memo_swap_desc* desc, memo_swap_sizes* sizes,
                                         memo_error* error);
MEMO_API memo_status memo_swap_create(const memo_swap_desc* desc, memo_swap** swap,
                                      memo_error* error);
/* Waits for the engine's two streams. */
MEMO_API void memo_swap_destroy(memo_swap* swap);

/* Bracket a layer; enqueue its work on the compute stream in between.  Forward in order 0, 1, ..., n-1,
 * then backward in reverse; then the next micro-batch.  Errors: INVALID_STATE (order), and the device's. */
MEMO_API memo_status memo_swap_forward_begin(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_API memo_status memo_swap_forward_end(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_API memo_status memo_swap_backward_begin(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_API memo_status memo_swap_backward_end(memo_swap* swap, int32_t layer, memo_error* error);
/* A forward pass without a backward, or a step given up: the next call is forward_begin(0).  The compute
 * stream waits for all copies under way.  These two waits are redundant where the copies had been waited
 * for already; they are kept because a call that failed half-way leaves copies no other wait covers. */
MEMO_API memo_status memo_swap_abandon(memo_swap* swap, memo_error* error);

/* Fixed for the engine's life: look up once, use in every step. */
MEMO_API memo_swap_view memo_swap_get_view(const memo_swap* swap, int32_t layer, int32_t tensor);
/* Rows [begin, end) of tensor that the trainer must recompute before the backward of layer; often none. */
MEMO_API void memo_swap_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                       int64_t* begin, int64_t* end);
MEMO_API memo_swap_sizes memo_swap_sizes_of(const memo_swap* swap);
/* Synchronise before where stalls are wanted. */
MEMO_API memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats, memo_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_H */

/* ==== implementation =============================================================================== */
#if defined(MEMO_IMPLEMENTATION) && !defined(MEMO_IMPLEMENTATION_DONE)
#define MEMO_IMPLEMENTATION_DONE
#include "parts/01_common.inc"
#include "parts/02_trace.inc"
#include "parts/03_plan.inc"
#include "parts/05_arena.inc"
#include "parts/06_host_device.inc"
#include "parts/07_schedule.inc"
#include "parts/08_recorder.inc"
#include "parts/09_swap.inc"
#endif /* MEMO_IMPLEMENTATION */
