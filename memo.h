/* memo.h: made from src/ by scripts/amalgamate; edit there. */
/* memo.h - memory for long-context transformer training: plan it, replay it, move it.
 *
 * A trainer written in C or CUDA runs out of device memory long before it runs out of time.  This
 * header has two parts against that, each usable alone:
 *
 *   trace, plan, arena    Record the memory requests of one training step.  Choose an offset for
 *                         each buffer before training.  Replay the plan every step, without a lock,
 *                         a system call or fragmentation.
 *   swap engine           Move activations that the backward pass needs to host memory, row by row,
 *                         while the device computes.  Bring them back in time; recompute the rest.
 *
 * Both parts call a device through one small table of functions, memo_device.  This header contains
 * a device of host memory and threads; memo_cuda.cuh contains the CUDA device.
 * extras/memo_look.h records what is enqueued on which stream, and checks it for races.
 *
 * NOT FOR: computing.  There are no kernels of a model here, no autograd and no optimizer; a
 * trainer keeps its own.  A step that fits into device memory is not faster with memo.  The arena
 * serves requests that repeat from step to step, and refuses others.  No page is migrated behind
 * the trainer's back: what moves, moves by the trainer's calls.
 *
 * License: MIT, see LICENSE.  Language: the subset of C99 that is also C++11.  Dependencies: none.
 * Needs 64-bit addresses.  docs/proofs.md lists what is claimed, and the command that shows it.
 *
 * USE.  Include memo.h where you need it.  Define MEMO_IMPLEMENTATION in exactly one source file,
 * preferably a small memo.c.  -ffast-math is refused for this file:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #include "memo.h"                 // cc -std=c99 -O2 -c memo.c; link with -lpthread -lm
 *
 * STEP BY STEP, in the order of calls:
 *
 *     1  memo_host_device_create, or memo_cuda_device_create of memo_cuda.cuh
 *     2  memo_arena_create with a trace, one step (dry), memo_plan_from_trace, memo_plan_solve
 *     3  memo_arena_create with the plan; then memo_arena_begin, _alloc, _free, _end each step
 *     4  or, without 2 and 3, memo_session_create of memo_plan.h, which does both and also swaps
 *
 * EXAMPLE.  Run a step without computing, plan the step, replay every step (examples/01_arena.c).
 * For a whole trainer, start with the session of memo_plan.h (examples/05_three_edits.c).
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_PLAN_IMPLEMENTATION
 *     #include "memo_plan.h"                               // includes memo.h
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
 *
 *     memo_status train(memo_device* device, memo_error* error) {
 *         memo_arena_desc record = {0}, replay = record;
 *         memo_arena *dry = NULL, *arena = NULL;
 *         memo_plan* plan = NULL;
 *         memo_status status = memo_trace_create(&record.trace, error);
 *         if (!status) status = memo_arena_create(&record, &dry, error);   // no device: a dry run
 *         if (!status) status = step(dry, error);                          // addresses only
 *         if (!status) status = memo_plan_from_trace(record.trace, 0, &plan, error);
 *         if (!status) status = memo_plan_solve(plan, NULL, error);
 *         replay.device = device;
 *         replay.plan = plan;                              // one block of plan->peak_bytes
 *         if (!status) status = memo_arena_create(&replay, &arena, error);
 *         while (!status) status = step(arena, error);     // some nanoseconds a request
 *         memo_arena_destroy(arena);
 *         memo_arena_destroy(dry);
 *         memo_plan_destroy(plan);
 *         memo_trace_destroy(record.trace);
 *         return status;
 *     }
 *
 * RULES.  A function that can fail returns memo_status and takes a memo_error, which may be NULL;
 * the message names the object, the problem, the value and what would work.  Only calls inside a
 * micro-batch of memo_plan.h's session do not: memo_session_end returns the error.  A desc is a
 * plain struct in which zero means default, unless a field's comment names another default.  Start
 * with {0} in C, with {} in C++, or with MEMO_ZERO(type) in either.  A function that creates an
 * object gives NULL on failure; destroying NULL does nothing.  NULL for an object, a desc or a
 * result is INVALID_ARGUMENT, unless the comment of the call allows NULL.  Calls without a status
 * then do nothing, and return NULL or zero.  memo_x_get_y fills a struct or numbers, or returns a
 * number, a handle or an address.  There is no global state.  After creation no function allocates,
 * locks or synchronizes on the training path.  Only one thread at a time may use an object.  Sizes
 * are bytes, times are seconds, intervals are half-open.  Bytes, rows and elements are counted in
 * 64 bits.  A name MEMO_N_... that ends an enum is the number of its values, and no value.
 *
 * GLOSSARY.  Terms of all four headers.
 *
 *   row             the values of a token in a tensor
 *   head            a part of a row that attention treats as a query, key or value
 *   micro-batch     the sequences that a forward and its backward process
 *   dry run         a micro-batch that makes all requests but computes nothing
 *   tile            a fixed number of consecutive rows; rows are split between tiles only
 *   persistent      buffer that lives through the whole step: parameters, optimizer states
 *   skeletal        buffer that a layer's forward makes and the layer's backward needs
 *   transient       every other buffer (these three: MEMO paper, section 3.1)
 *   lifetime        half-open interval [malloc, free) in which a buffer occupies memory
 *   offset          first byte of a buffer, counted from the start of the arena
 *   peak            largest end of any buffer: the size of the arena
 *   lower bound     largest sum of sizes that live at the same time, or the end of a fixed buffer
 *                   if that is larger; no peak is smaller
 *   rounding buffer device memory that layers use in turn for the rows that they swap
 *   alpha           fraction of rows that are swapped; the other rows are recomputed
 *   makespan        time from the start of the first operation to the end of the last
 *   stall           time in which a stream waits between the first and the last operation
 *   rank            a process or thread of several, numbered from 0, with a device
 *   group           the ranks of a communicator
 *   all-to-all      exchange in which every rank sends each other rank a different part of the data
 *   ZeRO            ranks with equal parameters share optimizer states (stage 1), gradients
 *                   (2) and parameters (3): each holds a part
 *   degree          the number of ranks that share a dimension: ring degree rd, Ulysses degree ud
 *   Ulysses         each rank computes some heads of all tokens; an all-to-all before and after
 *   ring            each rank keeps its queries; keys and values pass from rank to rank
 *   zigzag          ring rank r holds chunks r and 2 rd - 1 - r of 2 rd chunks of the tokens, so
 *                   that a causal mask gives all ranks equal work
 *   LSE             log of the sum of exp(score) over the keys of a query; a number per row and
 *                   head; merges partial attention
 *   sub-batch       a part of a batch; collectives of a part overlap other parts' computation
 *
 * CHAPTERS  1 status and error | 2 trace | 3 plan | 4 device | 5 arena | 6 host device
 *           7 swap engine | 8 states | then the implementation, whose rooms have words to
 *           search for, such as >>swap engine.
 *
 * OPTIONS (define before the implementation)
 *     MEMO_STATIC              all functions are static
 *     MEMO_MALLOC, MEMO_FREE   memory for memo's own bookkeeping (default malloc, free)
 *     MEMO_ASSERT              checks invariants of the library, for example with assert (default:
 *                              nothing is checked, which costs nothing)
 *     MEMO_FILE_BYTES_MAX      larger files are refused (default 2^30)
 *     MEMO_ALLOW_FAST_MATH     accepts -ffast-math and its parts, such as -fassociative-math, which
 *                              break NaN, infinity and -0 in rows
 *     MEMO_NO_HOST_DEVICE      leaves out chapter 6 and POSIX threads.  The rest compiles
 *                              for Windows, where spilling is UNSUPPORTED */
#ifndef MEMO_H
#define MEMO_H

#define MEMO_VERSION_MAJOR 0
#define MEMO_VERSION_MINOR 5
#define MEMO_VERSION_PATCH 0

#if defined(MEMO_IMPLEMENTATION) && !defined(_WIN32)
/* The implementation uses POSIX: threads, clock, files.  The request comes before system
 * headers. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1
#endif
#endif

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX < 0xffffffffffffffffu
#error "memo.h: a 64-bit target is required: sizes exceed 32 bits; compile without -m32"
#endif

#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define MEMO_PRINTF(position, first) __attribute__((format(printf, position, first)))
#define MEMO_UNUSED                  __attribute__((unused))
#define MEMO_USED_RESULT             __attribute__((warn_unused_result))
#else
#define MEMO_PRINTF(position, first)
#define MEMO_UNUSED
#define MEMO_USED_RESULT
#endif
#define MEMO_FUNCTION static inline MEMO_UNUSED

/* Does not compile unless the array has n elements.  Behind a table, in a function or outside: a
 * value that is added to the table's enum is missed there. */
#define MEMOB_TABLE_OF(n, table)                                                                   \
    typedef char memob_table_of_##table[sizeof(table) / sizeof *(table) == (n) ? 1 : -1] MEMO_UNUSED

/* Functions that host code and kernels share. */
#if defined(__CUDACC__)
#define MEMO_INLINE MEMO_FUNCTION __host__ __device__
#else
#define MEMO_INLINE MEMO_FUNCTION
#endif

/* A value of a type, all zero; and a conversion that -Wold-style-cast accepts. */
#if defined(__cplusplus)
#define MEMO_ZERO(type)        type()
#define MEMO_CAST(type, value) static_cast<type>(value)
#else
#define MEMO_ZERO(type)        ((type){0})
#define MEMO_CAST(type, value) ((type)(value))
#endif

#ifdef MEMO_STATIC
#define MEMO_API static MEMO_UNUSED
#else
#define MEMO_API extern
#endif

/* Functions that can fail: compilers warn where the status is not used. */
#define MEMO_TRY      MEMO_API MEMO_USED_RESULT
#define MEMO_TRY_CALL MEMO_FUNCTION MEMO_USED_RESULT

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 status and error ---------------------------------------------------------------------- */

typedef enum memo_status {
    MEMO_STATUS_OK = 0,
    MEMO_STATUS_INVALID_ARGUMENT,     /* invalid argument or desc */
    MEMO_STATUS_INVALID_STATE,        /* a call out of order */
    MEMO_STATUS_OUT_OF_DEVICE_MEMORY, /* the device's capacity is exhausted */
    MEMO_STATUS_OUT_OF_HOST_MEMORY,   /* pinned memory, or memo's own bookkeeping */
    MEMO_STATUS_DIVERGED,             /* a request other than the next planned request */
    MEMO_STATUS_INFEASIBLE,           /* no plan fits into the given capacity */
    MEMO_STATUS_IO,                   /* a file cannot be read or written */
    MEMO_STATUS_FORMAT,               /* a file or text has the wrong format */
    MEMO_STATUS_VERSION,              /* a file has a version that this header cannot read */
    MEMO_STATUS_DEVICE,               /* the device reports an error */
    MEMO_STATUS_UNSUPPORTED,          /* not available in this build or on this device */
    MEMO_STATUS_COMM,                 /* a rank is lost, late, or makes a different call */
    MEMO_N_STATUSES
} memo_status;

/* Optional; owned by the caller; written only on failure. */
typedef struct memo_error {
    memo_status status;
    int64_t line; /* of the text with the error, from 1; 0: none */
    char message[496];
} memo_error;

/* For example "out of device memory"; never NULL. */
MEMO_API const char* memo_status_name(memo_status status);

/* Writes error, which may be NULL, and returns status: `return memo_error_set(error, status, "...",
 * ...);`.  Control characters become `?`, so that a message has no line break.  For a memo_device
 * or host function of your own. */
MEMO_API memo_status memo_error_set(memo_error* error, memo_status status, const char* format, ...)
    MEMO_PRINTF(3, 4);

/* Receives warnings and progress, a line each without a newline.  All zero: these are dropped. */
typedef struct memo_log {
    void (*write)(void* user, const char* message);
    void* user;
} memo_log;

/* Text that grows in memory and is then written to a file, completely or not at all.  Start with
 * all zero.  memo writes files and pictures with this text; a trainer may, too. */
typedef struct memo_text {
    char* data; /* n_bytes, and a zero */
    int64_t n_bytes, capacity;
    int32_t failed; /* memory was exhausted; memo_text_write returns the error */
} memo_text;

/* Appends like printf. */
MEMO_API void memo_text_put(memo_text* text, const char* format, ...) MEMO_PRINTF(2, 3);
/* Append a string inside an XML element or attribute, or inside a JSON string.  Markup and quotes
 * are escaped, control characters but XML's line breaks are dropped, and a byte that is not UTF-8
 * becomes U+FFFD. */
MEMO_API void memo_text_put_xml(memo_text* text, const char* string);
MEMO_API void memo_text_put_json(memo_text* text, const char* string);
/* Writes text to path and frees the text, on failure too.  A regular file is replaced by rename:
 * readers see the old or the new file, the mode is kept, and a signal leaves no temporary file.
 * For a symbolic link the target is replaced.  "-" means standard output.  The file that standard
 * output or standard error goes to, under any path, is not replaced: the text goes there, too.
 * Errors: IO (also for a read-only file, and beyond the limit on file sizes),
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_text_write(memo_text* text, const char* path, memo_error* error);
MEMO_API void memo_text_free(memo_text* text);

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

/* ---- 3 plan: an offset for each buffer ----------------------------------------------------------
 *
 * A struct holds the problem, buffers with lifetimes, and the solution, offsets.  A planner of
 * memo_plan.h sets the offsets.  Two buffers *conflict* if they live at the same time, or if a hold
 * of the earlier buffer covers the later buffer.  Conflicting buffers never share a byte.
 *
 * Holds make a plan safe on several streams.  When a buffer is freed, another stream may not have
 * waited yet for all uses of the buffer.  Until then the buffer is *held* against every buffer that
 * this stream may use directly after the request.
 *
 * A plan may *buy* waits that the trace does not have: the plan has fewer holds, and the arena
 * makes the waits. */

typedef enum memo_proof {
    MEMO_PROOF_NONE = 0, /* not planned yet */
    MEMO_PROOF_FEASIBLE, /* valid; peak_bytes - lower_bound_bytes is the gap */
    MEMO_PROOF_OPTIMAL,  /* valid, and no plan has a smaller peak */
    MEMO_N_PROOFS
} memo_proof;

typedef struct memo_buffer {
    int64_t id;
    int64_t size_bytes;
    int64_t begin, end;   /* lifetime [begin, end) */
    int64_t offset_bytes; /* set by the planner; if is_fixed, by the caller */
    /* The offset is a multiple: a power of two, not below the plan's.  0: the plan's. */
    int64_t alignment_bytes;
    int32_t is_fixed;
    int32_t stream;
    /* The streams that may use the buffer directly after the request.  0 to 63: this stream alone.
     * From 64 on: a number for a set of streams. */
    int32_t lane;
    memo_class memory_class;
} memo_buffer;

/* During [begin, end) the buffer, an index into buffers, is swapped out and occupies no bytes. */
typedef struct memo_gap {
    int64_t buffer;
    int64_t begin, end;
} memo_gap;

/* The buffer, an index into buffers, conflicts with every buffer of this lane that begins before
 * `until`. */
typedef struct memo_hold {
    int64_t buffer;
    int64_t until; /* after the buffer's end */
    int32_t lane;
} memo_hold;

/* Stream `from` records an event when a buffer is freed, and stream `to` waits for this event
 * before another buffer is requested.  Work that the recorded step enqueued on `from` before that
 * free must come before the free in every micro-batch too. */
typedef struct memo_wait {
    int64_t freed, requested; /* indices into buffers; not persistent; freed first */
    int32_t from, to;
    double cost_s; /* the caller's estimate, 0 to 9000 s */
} memo_wait;

typedef struct memo_plan {
    memo_buffer* buffers; /* ordered by begin */
    int64_t n_buffers;
    memo_gap* gaps; /* ordered by buffer, then begin; disjoint, inside the lifetime */
    int64_t n_gaps;
    memo_hold* holds; /* ordered by buffer, then lane; set by memo_plan_from_trace */
    int64_t n_holds;
    memo_wait* waits; /* ordered by requested, to, from, freed; bought by memo_plan_solve */
    int64_t n_waits;
    /* A power of two, of which offsets are multiples; sizes are rounded up. */
    int64_t alignment_bytes;
    int64_t n_times;    /* lifetimes lie in [0, n_times] */
    int64_t body_begin; /* start of the repeated part; persistent buffers begin before */
    int64_t peak_bytes; /* largest offset + rounded size; the arena reserves it */
    /* Largest sum of rounded sizes that live at the same time, and at least the end of each fixed
     * buffer; holds are ignored. */
    int64_t lower_bound_bytes;
    memo_proof proof;
    char engine[16]; /* the planner's engine that set the offsets */
} memo_plan;

/* A problem of n_buffers, all zero except alignment_bytes (0: 1).  Fill buffers, then plan. */
MEMO_TRY memo_status memo_plan_create(int64_t n_buffers, int64_t n_gaps, int64_t alignment_bytes,
                                      memo_plan** plan, memo_error* error);
MEMO_API void memo_plan_destroy(memo_plan* plan);

/* Makes the problem from a trace.  alignment_bytes 0: 512.  A buffer that is never freed lives to
 * n_times, and is persistent if requested before the body.  A persistent buffer lives to n_times
 * even if freed, and from 0 on if requested in the body, because the body repeats.  A transient
 * buffer is skeletal if a layer's forward requests it, and a recomputation or a backward begins
 * before it is freed.  With several streams there are holds: two buffers conflict if and only if
 * memo_plan_check (extras/memo_look.h) refuses shared bytes.
 * Errors: INVALID_ARGUMENT (sizes sum to more than 2^62; an alignment that is no power of two up to
 * 2^40), OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_plan_from_trace(const memo_trace* trace, int64_t alignment_bytes,
                                          memo_plan** plan, memo_error* error);

/* Sorts buffers by begin, with gaps, holds and waits.  Checks all of these; a plan must not have
 * both gaps and holds, nor fixed buffers that overlap.  Sets lower_bound_bytes, and raises n_times
 * to the last end.  Every planner begins with this call.
 * Errors: INVALID_ARGUMENT naming the buffer, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_plan_prepare(memo_plan* plan, memo_error* error);

/* Is the plan valid? Every offset must be aligned and 0 or more, conflicting buffers must not share
 * a byte, and peak and bound must follow from the buffers.  The check shares code with
 * memo_plan_prepare alone, and cannot verify that a plan above the bound is optimal.  Errors:
 * INVALID_ARGUMENT naming the buffers, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_plan_validate(const memo_plan* plan, memo_error* error);

/* Files.  Text: "memo plan 1", the numbers, a line per buffer, "end" with a checksum.  Paths and
 * errors: as for traces.  A plan without offsets is written as a problem.  A plan with wrong
 * offsets is refused. */
MEMO_TRY memo_status memo_plan_read(const char* path, memo_plan** plan, memo_error* error);
MEMO_TRY memo_status memo_plan_write(const memo_plan* plan, const char* path, memo_error* error);

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

/* ---- 5 arena: replays a plan --------------------------------------------------------------------
 *
 * Record:  trace set, plan NULL.  Each request is appended to the trace and served by the device.
 *          Without a device, the addresses must not be used (a dry run).
 * Replay:  plan set.  The arena takes a block of plan->peak_bytes at creation.  Request number k
 *          gets the address of planned request k: no search, no lock, no system call.
 *
 * Requests before the first memo_arena_begin are persistent.  Begin and end enclose a micro-batch,
 * which may be repeated any number of times.  A micro-batch frees buffers early and in any order;
 * end frees the remaining buffers, such as outputs, whose bytes stay until the next begin.  A
 * micro-batch may request smaller sizes than planned, or stop before the last planned request.
 * Only the first micro-batch is recorded; later micro-batches are served but not recorded.  Waits
 * that the plan buys are enqueued by the request, and the events by the free before the request.
 *
 * A request other than the next planned request (too large, or too many) diverges.  The call fails
 * with DIVERGED and changes nothing.  A request of 0 bytes gets a unique address.
 *
 * Checked (is_checked).  No two requests share bytes, and behind each lies a guard of three times
 * its size.  All bytes are NaN before the request, after the free, and after the begin that follows
 * an output: memory taken for zero and buffers freed too early make the loss NaN.  Writes to the
 * guard, or to bytes of no live request, are found by the next alloc, free, end or begin that looks
 * there.  The call returns INVALID_ARGUMENT with the buffer and the byte; all but begin have done
 * their work.  A checked arena waits in every call. */

typedef struct memo_arena_desc {
    const memo_device* device; /* NULL: dry run (record), or memory below (replay) */
    const memo_plan* plan;     /* replay; borrowed until destroy */
    memo_trace* trace;         /* record; borrowed until destroy */
    /* Replay: use these bytes instead; aligned like the plan.  Dry run: requests that fit begin
     * there, 512 bytes apart, and share bytes, so a step that writes there does not crash. */
    void* memory;
    int64_t memory_bytes;
    /* Replay of a plan that buys waits: the streams of the plan's numbers, on device, which has
     * events.  Checked: the streams that compute, borrowed until destroy; none if the calling
     * thread computes.  CUDA's default stream is NULL: pass it, too. */
    const memo_stream* streams;
    int32_t n_streams;
    /* 1: finds mistakes, see above; needs about 4 times the bytes of all requests of a micro-batch
     * together.  A dry run ignores this. */
    int32_t is_checked;
} memo_arena_desc;

typedef struct memo_arena_stats {
    int64_t n_requests;     /* served so far */
    int64_t reserved_bytes; /* replay: bytes of the block; record: largest sum of live bytes */
} memo_arena_stats;

typedef struct memo_arena memo_arena;

/* Errors: INVALID_ARGUMENT (also an invalid plan, and a plan in which two buffers begin at the same
 * time, so that the order of requests is ambiguous), OUT_OF_DEVICE_MEMORY (with the needed and, if
 * the device tells, the free bytes), OUT_OF_HOST_MEMORY, the device's. */
MEMO_TRY memo_status memo_arena_create(const memo_arena_desc* desc, memo_arena** arena,
                                       memo_error* error);
/* Frees the arena's memory.  First synchronize the streams that use this memory. */
MEMO_API void memo_arena_destroy(memo_arena* arena);

/* Starts a micro-batch.  Between end and begin, requests return INVALID_STATE; persistent buffers
 * may be freed.  Errors: INVALID_STATE (a micro-batch is open, or buffers live that the plan frees
 * before the first micro-batch); while recording, the device's. */
MEMO_TRY memo_status memo_arena_begin(memo_arena* arena, memo_error* error);
/* Errors: INVALID_STATE (no micro-batch is open). */
MEMO_TRY memo_status memo_arena_end(memo_arena* arena, memo_error* error);

/* stream: the stream that the buffer belongs to (chapter 2); 0 if there is only one stream; not
 * read in replay.  Errors: INVALID_ARGUMENT (size, stream), INVALID_STATE, DIVERGED (another
 * request than planned); while recording, the device's; with bought waits, the device's. */
MEMO_TRY memo_status memo_arena_alloc(memo_arena* arena, int64_t size_bytes, int32_t stream,
                                      void** address, memo_error* error);
/* In replay the next request may get the same bytes; stream order protects these bytes.  While
 * recording, the memory returns to the device: synchronize first (chapter 4).  Errors:
 * INVALID_ARGUMENT (no live buffer has this address); the device's. */
MEMO_TRY memo_status memo_arena_free(memo_arena* arena, void* address, memo_error* error);

/* Append a use, record, wait or mark to the trace (chapter 2).  In replay these calls do
 * nothing. */
MEMO_TRY memo_status memo_arena_use(memo_arena* arena, void* address, int32_t stream,
                                    memo_error* error);
MEMO_TRY memo_status memo_arena_record(memo_arena* arena, int64_t event, int32_t stream,
                                       memo_error* error);
MEMO_TRY memo_status memo_arena_wait(memo_arena* arena, int64_t event, int32_t stream,
                                     memo_error* error);
MEMO_TRY memo_status memo_arena_mark(memo_arena* arena, const char* text, memo_error* error);

MEMO_API memo_arena_stats memo_arena_get_stats(const memo_arena* arena);

/* ---- 6 host device: threads as streams ----------------------------------------------------------
 *
 * A device of host memory, for tests, for trainers on CPUs, and for experiments with schedules.
 * Each stream is a thread with a queue, so copies and functions really run later and on another
 * thread.  Capacities are hard limits.  Copies can be given a bandwidth and operations a duration.
 * Such times count from the moment when the stream could begin, as events show: a thread that wakes
 * up late makes no operation longer.  Only events order two streams, no lock and no shared counter,
 * so that a race detector finds a missing wait.  A stream has its whole queue from its creation on.
 * Enqueueing allocates only if a second stream records an event for the first time.
 *
 * Signals, fork and exit, for all threads that memo's headers and extras start: streams, parts of
 * large operations of a file, host functions on CUDA, pinning, the watchdog of NCCL, searches.
 *   signals  These threads block all signals but SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS and
 *            SIGTRAP.  So a program's handlers, sigwait and signalfd serve its own threads; a
 *            function that a stream runs takes no signal either.
 *   fork     The child has none of these threads.  It must not use objects of its parent, nor
 *            destroy them.  It may create objects of its own on the host.
 *   exit     Neither exit nor a return from main waits for streams.  Destroy sessions and devices
 *            first: until then functions run, and use memory that the end of the program frees. */
#ifndef MEMO_NO_HOST_DEVICE

typedef struct memo_host_device_desc {
    int64_t device_memory_bytes; /* capacity of device_alloc; 0: no limit */
    int64_t host_memory_bytes;   /* capacity of host_alloc; 0: no limit */
    /* Rate of copies; 0: no limit. */
    double to_host_bytes_per_s;
    double to_device_bytes_per_s;
    /* Places in a stream's queue, which enqueueing waits for; 0: 1024.  An operation takes one, but
     * up to seven with more than 64 bytes of args.  A place takes 96 bytes of host memory from the
     * creation of the stream on. */
    int64_t queue_operations;
    /* Stack of a stream's thread, which runs the functions; rounded up to 64 KiB.  0: 8 MiB.  A
     * stack takes memory only for the pages that a function touches. */
    int64_t stack_bytes;
} memo_host_device_desc;

typedef struct memo_host_device_stats {
    int64_t device_bytes, device_peak_bytes;
    int64_t host_bytes, host_peak_bytes;
    int64_t to_host_bytes, to_device_bytes; /* copied so far; read after synchronization */
} memo_host_device_stats;

#define MEMO_HOST_ARGS_BYTES 640

MEMO_TRY memo_status memo_host_device_create(const memo_host_device_desc* desc,
                                             memo_device** device, memo_error* error);
/* Waits for all streams, then frees all memory of the device. */
MEMO_API void memo_host_device_destroy(memo_device* device);
/* Enqueues function(args); the thread of stream runs it.  args are copied: at most
 * MEMO_HOST_ARGS_BYTES. */
MEMO_TRY memo_status memo_host_device_launch(memo_device* device, memo_stream stream,
                                             memo_host_function function, const void* args,
                                             int64_t args_bytes, memo_error* error);
/* Enqueues an operation that takes duration_s and uses no processor. */
MEMO_TRY memo_status memo_host_device_sleep(memo_device* device, memo_stream stream,
                                            double duration_s, memo_error* error);
MEMO_API memo_host_device_stats memo_host_device_get_stats(const memo_device* device);

#endif

/* ---- 7 swap engine: two rounding buffers --------------------------------------------------------
 *
 * A skeletal tensor is a table with one row per token.  The trainer describes its tensors once, and
 * calls the engine before and after each layer.  The engine gives each tensor of each layer one
 * address, moves rows to pinned host memory while the device computes, and brings them back in time
 * (MEMO paper, section 4.1).  The trainer recomputes the other rows before the backward.
 *
 *     memo_item tensors[] = {MEMO_ITEM("input", 2 * h, MEMO_MOVE),
 *                            MEMO_ITEM("gelu", 8 * h, MEMO_ROWS)};
 *     memo_swap_desc desc = {0};
 *     desc.device = device;  desc.compute_stream = stream;
 *     desc.tensors = tensors;  desc.n_tensors = 2;
 *     desc.n_layers = 32;  desc.n_rows = 65536;  desc.tile_rows = 256;  desc.alpha = 0.5;
 *     memo_swap_create(&desc, &swap, &error);
 *
 *     memo_swap_forward_begin(swap, layer, &error);
 *     ... enqueue kernels on memo_swap_get_address(swap, layer, tensor) ...
 *     memo_swap_forward_end(swap, layer, &error);
 *
 * Addresses.  A tensor has one region on the device, whose rows lie in this order:
 *
 *     rows that even layers swap | rows that are recomputed | rows that odd layers swap
 *
 * Even layers swap their first rows and odd layers their last, so the rows of each layer are
 * contiguous and a kernel takes one pointer.  All layers share the middle part.  Even layers use
 * the first part in turn, odd layers the last part: the paper's two rounding buffers.  A tensor
 * that a layer keeps has its own place.  Addresses are multiples of 512.
 *
 * Device memory: for each tensor, the rows of the three parts (of each, the most that any layer
 * needs), and n_rows for each layer that keeps the tensor.  Each of the three parts, and each layer
 * that keeps the tensor, is rounded up to 512 bytes.  For a GPT layer of 16 b s h elements, of
 * which alpha splits 14, this is (18 + 14 alpha) b s h; the paper's buffers take 32 b s h.
 *
 * The engine makes four waits per layer.  "Layer i-2" is the latest layer before i that swaps rows
 * in the same part.  The last layer in each part is not moved.
 *
 *   forward_begin(i)   compute    waits for  rows of i-2 on the host
 *                                            (else: overwritten before they left)
 *   forward_end(i)     to host    waits for  forward of i
 *                                            (else: copied before they were computed)
 *   backward_begin(i)  compute    waits for  rows of i on the device
 *                                            (else: read before they arrived)
 *   backward_end(i)    to device  waits for  backward of i
 *                                            (else: overwritten while in use)
 *
 * So rows come back only after they have left: the compute stream orders both.  If a wait is left
 * out, memo_schedule_check finds a race.  A table of rows may make a wait redundant.
 *
 * Between begin and end.  The forward writes the layer's rows; the backward may overwrite all rows.
 * A kernel may work on two layers: the next layer may begin before this layer ends (in the
 * backward: layer i-1 before layer i ends).  At most two layers are open; layers end in the order
 * of their begins.  Recomputed rows of all layers share bytes, so writing a tensor of the next
 * layer overwrites the recomputed rows of the same tensor in this layer.
 *
 * A session (memo_plan.h, chapter 4) computes layers in slices, several micro-batches at a time or
 * in flight, layers of several kinds, and rows whose number is known late; and it spills to a
 * file. */

/* How the rows of an item may leave the device, and come back.  A planner may also keep the rows in
 * any layer. */
enum {
    MEMO_KEEP = 0, /* they stay on the device in every layer */
    MEMO_MOVE,     /* all rows are swapped: they cannot be recomputed */
    MEMO_ROWS,     /* a fraction alpha of the rows is swapped, the others are recomputed */
    MEMO_WHOLE,    /* all rows are swapped, or all are recomputed; alpha swaps them.  For items that
                      are expensive to recompute (attention), or whose rows are not tokens */
    MEMO_WITH,     /* as the last item before it that is not WITH, whose recomputation also makes
                      this item (a norm its rstd, attention its LSE): both have the same rows */
    MEMO_N_AWAYS
};

/* Whose the rows are; all but SLICE are of sessions: memo_plan.h, chapter 4, Slices. */
enum {
    MEMO_SLICE = 0, /* of a layer's slice; without slices of the layer */
    MEMO_LAYER,     /* later slices of the layer read them: keys and values.  ROWS and WHOLE are
                       recomputed only if there is one slice */
    MEMO_EDGE,      /* handed on: each layer updates the rows in place.  The hidden state; in the
                       backward, its gradient.  MOVE, and at most one.  Without slices it lies at
                       one address in all layers and does not move, unless `loss` needs it in an
                       order: memo_plan.h, chapter 4, In flight */
    MEMO_INPUT,     /* the bytes of EDGE when the layer's forward begins, which the trainer copies.
                       MOVE or KEEP, and at most one */
    MEMO_CARRIED,   /* the state of a recurrence when the slice begins, which the trainer copies.
                       MOVE or KEEP.  row_bytes counts the bytes of a slice */
    MEMO_N_SCOPES
};

/* Bits of memo_item.is. */
enum {
    MEMO_LATE_ROWS = 1,  /* as many rows as the trainer says: memo_plan.h, chapter 4, Late rows */
    MEMO_BY_BACKWARD = 2 /* of sessions: the backward itself recomputes rows of the item, those of
                            memo_swap_get_recompute_rows, in an order of its own.  `recompute` is
                            called for the item only in steps that are timed, for all rows.  Items
                            that `recompute` makes from the item have the bit, too */
};

/* Bytes that the forward of a layer leaves for its backward: a skeletal tensor.  If its rows are
 * not tokens, as in (3, B, NH, T, HS), it must be WHOLE, MOVE or KEEP, and n_rows * row_bytes must
 * be its size. */
typedef struct memo_item {
    const char* name;  /* no blanks */
    int64_t row_bytes; /* 0: the item is absent; CARRIED: of all rows together */
    int32_t away;      /* KEEP, MOVE, ROWS, WHOLE or WITH */
    int32_t scope;     /* SLICE, LAYER, EDGE, INPUT or CARRIED; of WITH: 0 */
    /* Sum of bits; of WITH: 0.  LATE_ROWS for rows that an expert gets: MOVE or ROWS, SLICE; all
     * such items have the same kinds.  BY_BACKWARD: ROWS or WHOLE. */
    int32_t is;
    uint32_t kinds; /* bit k: layers of kind k have the item; 0: all layers; of WITH: as the item
                       before */
} memo_item;

/* An item of its first two to six fields.  No compiler warns of the missing fields. */
#define MEMO_ITEM(...) MEMOI_ITEM(__VA_ARGS__, 0, 0, 0, 0, 0)
#define MEMOI_ITEM(name, row_bytes, away, scope, is, kinds, ...)                                   \
    { name, row_bytes, away, scope, is, kinds }

#define MEMO_ROWS_KEPT (-1) /* in a table of rows: the layer keeps the tensor */

typedef struct memo_swap_desc {
    const memo_device* device; /* may be NULL unless an engine is created */
    memo_stream compute_stream;
    /* 1: the calling thread computes, and compute_stream is not used.  Begin calls then return when
     * the layer's rows are on the device; end calls mean that the layer is computed. */
    int32_t computes_on_host;
    const memo_item* tensors; /* copied */
    int32_t n_tensors;
    int32_t n_layers;
    int64_t n_rows;    /* most tokens of a micro-batch */
    int64_t tile_rows; /* the last tile may be short; 0: 1 */
    double alpha;      /* in [0, 1]; rounded to tiles */
    /* (n_layers, n_tensors), copied: how many rows are swapped, the first ones in even layers, the
     * last ones in odd layers; the others are recomputed.  MEMO_ROWS_KEPT: neither.  The border
     * between swapped and recomputed rows must be a multiple of tile_rows.  Cells of tensors that a
     * layer lacks have no meaning.  NULL: use alpha. */
    const int64_t* rows;
    int32_t is_timed;    /* measure stalls with events */
    void* device_memory; /* memo_swap_sizes.device_bytes, 512-aligned; NULL: from the device */
    void* host_memory;   /* memo_swap_sizes.host_bytes, pinned; NULL: from the device */

    /* Fields of sessions, 0 in a caller's own desc.  With them n_layers counts steps, and n_rows
     * the rows of a slice: see >>swap places. */
    int32_t n_slices;   /* of a layer; 0: 1 */
    int32_t n_group;    /* micro-batches that these slices are of; 0: 1 */
    int64_t layer_rows; /* most tokens of all slices of a micro-batch; 0: of n_rows */
    int64_t routed_rows_layer, routed_rows_all; /* most late rows in a step, in all */
    int32_t n_places;     /* of micro-batches in flight; without an order 0: 1 */
    const int32_t* order; /* (n_order), copied: p: forwards of place p, -1 - p: its backwards */
    int32_t n_order;
    int32_t has_loss;           /* the last layer's backward begins with the loss, as in a group */
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    /* Places for layers in host memory; 0: one for each moved layer.  If there are fewer, the last
     * two (or the only one) are windows: layers without a place go through these to the file. */
    int32_t n_host_layers;
    const char* spill_directory; /* of the file; may be NULL if no layer is spilled */
    double spill_bytes_per_s;    /* limit of reads and writes; 0: none */
    const char* desc_name;       /* of the fields' owner, in messages; NULL: "memo_swap_desc" */
    /* (n_order), copied.  1: a turn of the last chunk, whose backward begins with the loss; 0, or
     * without has_loss: its backward begins with a gradient that the trainer writes into the EDGE.
     * NULL: all are 1. */
    const int32_t* ends;
} memo_swap_desc;

/* Exact sizes, before anything is allocated. */
typedef struct memo_swap_sizes {
    double alpha; /* rounded to tiles; 0 with a table of rows */
    int64_t device_bytes;
    int64_t host_bytes;          /* pinned */
    int64_t layer_swapped_bytes; /* moved each way by the layer that moves most */
    int64_t layer_bytes;         /* skeletal bytes of the largest layer */
    int32_t n_swapped_layers;    /* layers whose rows are moved */
    int64_t swapped_bytes;       /* moved each way by all layers of a micro-batch */
    /* In sessions: swapped layers with a home in the file; bytes of the file.  A layer is written
     * once a micro-batch, and read at least once, unless it comes back from its window before
     * another layer uses the window. */
    int32_t n_spilled_layers;
    int64_t spill_bytes;
} memo_swap_sizes;

typedef struct memo_swap_stats {
    int64_t to_host_bytes, to_device_bytes; /* enqueued so far */
    int64_t to_file_bytes, from_file_bytes; /* likewise; of sessions */
    /* The compute stream waited so long in the last micro-batch; is_timed only.  In a session for
     * rows and states of the layers. */
    double forward_stall_s, backward_stall_s;
} memo_swap_stats;

typedef struct memo_swap memo_swap;

/* Errors: INVALID_ARGUMENT, also if the rows of all layers exceed 2^58 bytes;
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_swap_desc_get_sizes(const memo_swap_desc* desc, memo_swap_sizes* sizes,
                                              memo_error* error);
/* Errors: INVALID_ARGUMENT, OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, the device's. */
MEMO_TRY memo_status memo_swap_create(const memo_swap_desc* desc, memo_swap** swap,
                                      memo_error* error);
/* Waits for the streams of copies.  Synchronize the compute stream first. */
MEMO_API void memo_swap_destroy(memo_swap* swap);

/* Sets the rows of the next micro-batches, at most desc->n_rows: only these are moved and
 * recomputed.  is_forward_only: no backward follows, and nothing is moved.
 * Errors: INVALID_ARGUMENT; INVALID_STATE (a micro-batch is open). */
MEMO_TRY memo_status memo_swap_set_rows(memo_swap* swap, int64_t n_rows, int is_forward_only,
                                        memo_error* error);

/* Call begin and end around each layer, and enqueue its work on the compute stream in between:
 * forwards in order 0, 1, ..., n-1, then backwards in reverse, then the next micro-batch.
 * Errors: INVALID_STATE (wrong order), the device's. */
MEMO_TRY memo_status memo_swap_forward_begin(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_swap_forward_end(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_swap_backward_begin(memo_swap* swap, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_swap_backward_end(memo_swap* swap, int32_t layer, memo_error* error);
/* Ends a forward without a backward, or abandons a step: forward_begin(0) comes next.  The compute
 * stream waits for all copies in flight.  These waits may be redundant, but after a failed call no
 * other wait may cover its copies.  Errors: the device's. */
MEMO_TRY memo_status memo_swap_abandon(memo_swap* swap, memo_error* error);

/* Address of the tensor's row 0 in this layer; rows are contiguous.  It never changes.  layer and
 * tensor are asserted. */
MEMO_API void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor);
/* Rows [begin, end) of tensor that the trainer must recompute before the backward of layer.  If no
 * rows are recomputed, begin and end are the number of rows of the layer.  Rows that no later layer
 * overwrites are not recomputed, so the last layer recomputes nothing. */
MEMO_API void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                           int64_t* begin, int64_t* end);
/* Synchronize first to read stall times.  Errors: the device's. */
MEMO_TRY memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats,
                                         memo_error* error);

/* ---- 8 states: weights, gradients, optimizer states ---------------------------------------------
 *
 * A *state* is bytes of a layer that live from step to step.  The desc of a session (memo_plan.h,
 * States) lists the states and the passes that use them. */

enum {
    MEMO_STATE_FORWARD = 1,  /* the forward reads it */
    MEMO_STATE_BACKWARD = 2, /* the backward reads it */
    MEMO_STATE_UPDATE = 4,   /* the update reads and writes it */
    MEMO_STATE_GRADIENT = 8, /* the backward adds to it, the update reads it; no other use */
    MEMO_STATE_WEIGHTS = 7,  /* each pass uses it */
    /* With UPDATE: the update writes all bytes and reads none, such as weights that are rounded
     * from a master copy.  They do not travel to an update. */
    MEMO_STATE_MADE = 16,
    /* A forward alone reads it, as of averaged weights.  FORWARD includes forwards alone. */
    MEMO_STATE_ALONE = 32,
    /* With any other use: one copy for all layers that have it, such as a table that is tied.  See
     * Shared states in memo_plan.h. */
    MEMO_STATE_SHARED = 64,
    /* With FORWARD, BACKWARD or ALONE, and no other use: frozen weights in a file of the caller's,
     * whose bytes memo_session_desc.fetch copies.  See Fetched states in memo_plan.h. */
    MEMO_STATE_FETCHED = 128
};

typedef struct memo_state {
    const char* name;   /* no blanks */
    int64_t size_bytes; /* of each layer that has the state */
    uint32_t uses;  /* sum of the constants above; without UPDATE or GRADIENT: not copied back */
    uint32_t kinds; /* bit k: layers of kind k have the state; 0: all layers */
} memo_state;
#define MEMO_STATES_MAX 32

/* Tiers of memory, and who needs bytes there. */
typedef enum memo_tier {
    MEMO_TIER_DEVICE = 0,
    MEMO_TIER_HOST,
    MEMO_TIER_FILE,
    MEMO_N_TIERS
} memo_tier;
typedef enum memo_owner {
    MEMO_OWNER_WEIGHTS = 0, /* states that the forward or the backward reads; where they stay */
    MEMO_OWNER_GRADIENTS,   /* likewise */
    MEMO_OWNER_OPTIMIZER,   /* likewise: states that the update alone uses */
    MEMO_OWNER_PLACES,      /* through which streamed states come and go */
    MEMO_OWNER_ACTIVATIONS, /* the swap engine's */
    MEMO_OWNER_SESSION,     /* buffers of pass SESSION */
    MEMO_OWNER_MICRO_BATCH, /* its other requests, where they do not share bytes */
    MEMO_N_OWNERS
} memo_owner;

/* When states are updated. */
typedef enum memo_update_at {
    MEMO_UPDATE_PASS = 1, /* in memo_session_update, behind all layers */
    MEMO_UPDATE_FUSED,    /* in the last backward of a step */
    MEMO_UPDATE_DEFERRED, /* before the layer's next forward */
    MEMO_N_UPDATE_MOMENTS /* with 0, which is none */
} memo_update_at;

#ifdef __cplusplus
}
#endif

#endif /* MEMO_H */

/* ==== implementation ======================================================================== */
/* ROOMS, each with the words to search for.  A room uses public functions and the rooms above it.
 *
 * Names that begin with memob_ are shared: memo's other headers, tools, benchmarks and tests use
 * them, and no memoi_ name of another header.  They are not for trainers: they may change in any
 * version.  Unless stated otherwise, a function that returns int returns 1 on success and 0 on
 * failure or for "no"; one that returns memo_status sets error if it fails.
 *
 *     >>base                 numbers, arrays, hash map, sorting, clock; all headers use it
 *     >>error                statuses and messages
 *     >>text                 text that is written; files that are replaced whole
 *     >>reader               lines, words, numbers
 *     >>records              lines of values, by one table; first and last line of memo's files
 *     >>trace                requests of a step
 *     >>trace file           their text
 *     >>marks                what marks say; classes
 *     >>plan                 buffers, gaps and holds in order; a sweep over time
 *     >>plan from trace      lifetimes and holds of a trace's buffers
 *     >>plan validation      offsets, holds, peak and bound
 *     >>plan file            its text
 *     >>device               a table of functions, checked and copied
 *     >>poison               bytes that nobody may use, on a device
 *     >>arena                blocks of a device, recorded or in use
 *     >>arena creation       slots of a plan, memory of an arena
 *     >>arena requests       micro-batches and requests
 *     >>host device          counters, worker threads, queues, copies
 *     >>bulk                 host memory copied and cleared by several threads
 *     >>spill file           an unnamed file and its operations
 *     >>list                 the visits of a step
 *     >>waits                which operation waits for which
 *     >>engine               memory, streams, events and file of an engine
 *     >>law                  what travels when, in a step
 *     >>law operations       its operations, in the order of enqueueing
 *     >>clock                when streams and bytes are free: predictions
 *     >>sink                 how its operations wait on a device
 *     >>snapshot             a thread that writes items, and who waits for it
 *     >>moves                where the bytes of items lie, and their copies
 *     >>step                 where a step is, and what lies on the device there
 *     >>cursor               how it goes through visits, and jumps
 *     >>swap rows            tiles; rows swapped and recomputed
 *     >>swap places          offsets on the device, on the host and in the file
 *     >>swap items           which rows share bytes; the law of a micro-batch
 *     >>swap engine          they run on a device
 *     >>states places        which states lie where,
 *     >>states items         which visits use them,
 *     >>states               and how a step goes through them
 *     >>states snapshot      writes states out while steps go on */

#if (defined(MEMO_IMPLEMENTATION) || defined(MEMO_CUDA_IMPLEMENTATION)) && !defined(MEMO_BASE_DONE)
#define MEMO_BASE_DONE

/* clang has no macro for parts of -ffast-math: memo_host_device_create looks at a sum. */
#if (defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||          \
     defined(__ASSOCIATIVE_MATH__) || defined(__NO_SIGNED_ZEROS__) ||                              \
     defined(__RECIPROCAL_MATH__)) &&                                                              \
    !defined(MEMO_ALLOW_FAST_MATH)
#error "memo.h: the implementation is compiled with -ffast-math, -Ofast or a part of these, \
which breaks NaN, infinity and -0 in rows; compile the implementation in a file of its own \
without this option"
#endif

#if defined(_WIN32) && !defined(MEMO_NO_HOST_DEVICE)
#error "memo.h: the host device needs POSIX threads; define MEMO_NO_HOST_DEVICE on Windows"
#endif

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#if !defined(MEMO_NO_HOST_DEVICE) || defined(MEMO_CUDA_IMPLEMENTATION)
#include <pthread.h>
#endif
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#undef near
#undef far
#else
#include <sys/resource.h>
#endif
#include <sys/stat.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <time.h>
#include <unistd.h>

/* Two macros that C libraries hide without _POSIX_C_SOURCE and _DEFAULT_SOURCE. */
#if defined(__linux__) && !(defined(CLOCK_MONOTONIC) && defined(M_PI))
#error "memo.h: a system header came before the implementation without POSIX; include memo.h \
first in this file, or compile with -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE"
#endif

#if defined(MEMO_MALLOC) != defined(MEMO_FREE)
#error "memo.h: define MEMO_MALLOC and MEMO_FREE both, or neither"
#endif
#ifndef MEMO_MALLOC
#define MEMO_MALLOC(size_bytes) malloc(size_bytes)
#define MEMO_FREE(address)      free(address)
#endif
#ifndef MEMO_ASSERT
#define MEMO_ASSERT(condition) ((void)sizeof(!(condition)))
#endif
#ifndef MEMO_FILE_BYTES_MAX
#define MEMO_FILE_BYTES_MAX ((int64_t)1 << 30)
#endif

/* ---- >>base -------------------------------------------------------------------------------------
 * Knows: numbers, arrays, a hash map, sorting, the clock, signals, how threads begin and fail.
 * Knows nothing of traces and plans.  memo_cuda.cuh needs this room even if the others are compiled
 * in another file.
 *
 * 1. An array without memory has no elements.
 * 2. A map is at most half full of keys, removed ones included, so that each search ends.
 * 3. A value of a map is 0 or above; -1 and -2 say that a slot has none.
 * 4. What memob_keyed_sort sorts has keys from 0 on, and is in the order of index.
 * 5. A failure that is kept has a status other than OK. */

/* Internal functions are static, and cause no warning if a build does not use them.  Programs that
 * test them share those of one object (Makefile). */
#ifndef MEMOI
#define MEMOI static MEMO_UNUSED
#endif

/* For functions that many others call, if the time of a call does not matter. */
#define MEMOB_NOINLINE __attribute__((noinline))

/* Eight bytes that nobody may read or write, see >>poison. */
#define MEMOB_POISON 0x7ff17da07fa07da0u

/* No sum of sizes exceeds this, so that the sum of two never overflows. */
#define MEMOB_BYTES_MAX ((int64_t)1 << 62)

/* Bytes.  Every address that device_alloc returns is a multiple of it. */
#define MEMOB_DEVICE_ALIGNMENT 512

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define MEMOB_IS_BIG_ENDIAN 1
#else
#define MEMOB_IS_BIG_ENDIAN 0
#endif

/* Streams of a trace are 0 to MEMOB_STREAMS - 1. */
#define MEMOB_STREAMS 64

/* The functions of a device: that every engine calls, that every device of memo has, and others. */
#define MEMOB_DEVICE_MEMORY(X)  X(device_alloc) X(device_free) X(host_alloc) X(host_free)
#define MEMOB_DEVICE_STREAMS(X) X(stream_create) X(stream_destroy) X(stream_synchronize) X(copy)
#define MEMOB_DEVICE_EVENTS(X)                                                                     \
    X(event_create)                                                                                \
    X(event_destroy) X(event_record) X(event_wait) X(event_synchronize) X(event_elapsed)
#define MEMOB_DEVICE_NEEDS(X) MEMOB_DEVICE_MEMORY(X) MEMOB_DEVICE_STREAMS(X) MEMOB_DEVICE_EVENTS(X)
#define MEMOB_DEVICE_FUNCTIONS(X)                                                                  \
    MEMOB_DEVICE_NEEDS(X) X(memory_info) X(event_query) X(copy_rows) X(fill) X(status)
#define MEMOB_DEVICE_OPTIONS(X) X(annotate) X(row_kernel) X(launch_host) X(event_create_untimed)

/* Sets error like memo_error_set, and is the status. */
#define MEMOB_INVALID(error, ...) memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, __VA_ARGS__)

/* Sets error to OUT_OF_HOST_MEMORY, "no host memory for WHAT", and returns that status. */
MEMOI MEMOB_NOINLINE memo_status memob_no_memory(memo_error* error, const char* what) {
    return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %s", what);
}

/* Appends what to do, or another cause, unless the message has it.  These words stay whole: a
 * message that would be too long loses its own end. */
MEMOI void memob_error_add(memo_error* error, const char* words) {
    const size_t most = sizeof error->message - 1, n_words = strlen(words) + 2;
    size_t n = strlen(error->message);
    if (strstr(error->message, words)) return;
    if (n + n_words > most && n_words + 3 < most) {
        n = most - n_words;
        memcpy(error->message + n - 3, "...", 3);
    }
    snprintf(error->message + n, sizeof error->message - n, "; %s", words);
}

#define MEMOB_DOUBLE_MAX 1.7976931348623157e308

/* Never true for NaN and infinity, by their bits: -ffast-math lets a compiler assume that no value
 * is NaN. */
MEMOI int memob_is_in(double value, double least, double most) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff && value >= least && value <= most;
}

MEMOI int memob_is_within(int64_t value, int64_t least, int64_t most) {
    return value >= least && value <= most;
}

/* A rule for what a caller gives, and what is wrong if the rule is broken. */
typedef struct memob_rule {
    int is_broken;
    const char* fault;
} memob_rule;

MEMOI MEMOB_NOINLINE const char* memoi_first_fault(const memob_rule* rules, size_t n) {
    size_t k = 0;
    while (k < n && !rules[k].is_broken) k++;
    return k < n ? rules[k].fault : NULL;
}
/* The fault of the first broken rule of an array; NULL: none is broken. */
#define MEMOB_FIRST_FAULT(rules) memoi_first_fault(rules, sizeof rules / sizeof *rules)

/* Check the field of a desc.  Errors: INVALID_ARGUMENT, "DESC.FIELD: out of range (VALUE); LEAST to
 * MOST are valid". */
MEMOI MEMOB_NOINLINE memo_status memob_check_integer(const char* desc, const char* field,
                                                     int64_t value, int64_t least, int64_t most,
                                                     memo_error* error) {
    if (memob_is_within(value, least, most)) return MEMO_STATUS_OK;
    if (most == INT32_MAX || most == INT64_MAX)
        return MEMOB_INVALID(error, "%s.%s: out of range (%lld); %lld or more is valid", desc,
                             field, (long long)value, (long long)least);
    return MEMOB_INVALID(error, "%s.%s: out of range (%lld); %lld to %lld are valid", desc, field,
                         (long long)value, (long long)least, (long long)most);
}

/* Fields of a desc with the numbers that they may have, checked in order. */
typedef struct memob_bounds {
    const char* field;
    int64_t value, least, most;
} memob_bounds;

MEMOI MEMOB_NOINLINE memo_status memoi_check_fields(const char* desc, const memob_bounds* fields,
                                                    size_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (size_t k = 0; k < n && !status; k++)
        status = memob_check_integer(desc, fields[k].field, fields[k].value, fields[k].least,
                                     fields[k].most, error);
    return status;
}
#define MEMOB_CHECK_FIELDS(desc, fields, error)                                                    \
    memoi_check_fields(desc, fields, sizeof fields / sizeof *fields, error)

MEMOI MEMOB_NOINLINE memo_status memob_check_real(const char* desc, const char* field, double value,
                                                  double least, double most, memo_error* error) {
    if (memob_is_in(value, least, most)) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s.%s: out of range (%g); %g to %g are valid", desc, field, value,
                         least, most);
}

/* Errors: INVALID_ARGUMENT, "CALL: ARGUMENT: NULL; pass one". */
MEMOI MEMOB_NOINLINE memo_status memob_check_given(const char* call, const char* argument,
                                                   const void* pointer, memo_error* error) {
    if (pointer) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s: %s: NULL; pass one", call, argument);
}

/* Ends the public function with this error if the pointer is NULL. */
#define MEMOB_REFUSE_NULL(error, argument, pointer)                                                \
    do {                                                                                           \
        if (!(pointer)) return memob_check_given(__func__, argument, NULL, error);                 \
    } while (0)

/* A rate is 0 (no limit), or 1 to 1e18 bytes/s; beyond, times of copies overflow. */
MEMOI MEMOB_NOINLINE memo_status memob_check_rate(const char* desc, const char* field,
                                                  double bytes_per_s, memo_error* error) {
    if (memob_is_in(bytes_per_s, 1, 1e18) || memob_is_in(bytes_per_s, 0, 0)) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s.%s: out of range (%g); 0 (no limit) and 1 to 1e18 are valid",
                         desc, field, bytes_per_s);
}

/* Checks the arguments of a device's copy_rows. */
MEMOI memo_status memob_check_copy(memo_copy_kind kind, const void* to, int64_t to_stride_bytes,
                                   const void* from, int64_t from_stride_bytes, int64_t row_bytes,
                                   int64_t n_rows, memo_error* error) {
    if (memob_check_integer("copy", "kind", (int)kind, 0, MEMO_N_COPY_KINDS - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (row_bytes < 0 || n_rows < 0 || (n_rows && row_bytes > MEMOB_BYTES_MAX / n_rows))
        return MEMOB_INVALID(error,
                             "copy: %lld rows of %lld bytes are invalid; 0 to 2^62 bytes are valid",
                             (long long)n_rows, (long long)row_bytes);
    if (n_rows > 1 && (to_stride_bytes < row_bytes || from_stride_bytes < row_bytes ||
                       to_stride_bytes > MEMOB_BYTES_MAX / n_rows ||
                       from_stride_bytes > MEMOB_BYTES_MAX / n_rows))
        return MEMOB_INVALID(
            error,
            "copy: strides %lld and %lld are too short or too long for %lld rows of %lld bytes",
            (long long)to_stride_bytes, (long long)from_stride_bytes, (long long)n_rows,
            (long long)row_bytes);
    if ((!to || !from) && row_bytes > 0 && n_rows > 0)
        return MEMOB_INVALID(error, "copy.%s: NULL; pass an address", to ? "from" : "to");
    return MEMO_STATUS_OK;
}

/* -1, 0 or 1: a is below, equal to or above b. */
MEMOI int memob_compare(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* For qsort: the smallest first. */
MEMOI int memob_compare_doubles(const void* left, const void* right) {
    double a = *(const double*)left, b = *(const double*)right;
    return (a > b) - (a < b);
}
MEMOI int64_t memob_max(int64_t a, int64_t b) { return a > b ? a : b; }
MEMOI int64_t memob_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* The next multiple of alignment, which may be any positive number. */
MEMOI int64_t memob_align_up(int64_t value, int64_t alignment) {
    int64_t remainder = value % alignment;
    MEMO_ASSERT(value >= 0 && alignment > 0);
    return remainder ? value + (alignment - remainder) : value;
}

/* --- arrays --- */

/* Zeroed array of count elements, or NULL.  A count of 0 allocates one element, so NULL always
 * means failure.  The caller frees it with MEMO_FREE. */
MEMOI MEMOB_NOINLINE void* memob_calloc(int64_t count, size_t element_bytes) {
    void* result;
    if (!memob_is_within(count, 0, MEMOB_BYTES_MAX / (int64_t)element_bytes)) return NULL;
    if (count == 0) count = 1;
    result = MEMO_MALLOC((size_t)count * element_bytes);
    if (result) memset(result, 0, (size_t)count * element_bytes);
    return result;
}

/* Grows an array to at least `needed` elements by doubling.  `array` is the address of the pointer
 * to it; capacity counts elements.  New elements are zero.  On failure the array is unchanged. */
MEMOI int memob_reserve(void* array, int64_t* capacity, int64_t needed, size_t element_bytes) {
    int64_t larger;
    void *old, *moved;
    if (needed <= *capacity) return 1;
    larger = *capacity < 16 ? 16 : *capacity;
    while (larger < needed) larger *= 2;
    moved = memob_calloc(larger, element_bytes);
    if (!moved) return 0;
    memcpy(&old, array, sizeof old); /* a pointer of any type */
    MEMO_ASSERT(old || !*capacity);  /* 1 */
    if (old) memcpy(moved, old, (size_t)*capacity * element_bytes);
    MEMO_FREE(old);
    memcpy(array, &moved, sizeof moved);
    *capacity = larger;
    return 1;
}

/* Room for n_more elements behind the first n of an array that only this function allocates: its
 * capacity is the power of two from n on, at least 16.  New elements are zero.  On failure the
 * array is unchanged. */
MEMOI int memob_grow(void* array, int64_t n, int64_t n_more, size_t element_bytes) {
    int64_t capacity = 16;
    void* first;
    memcpy(&first, array, sizeof first); /* a pointer of any type */
    if (!first) return memob_reserve(array, &n, n + n_more, element_bytes);
    if (n > capacity) capacity = (int64_t)1 << (64 - __builtin_clzll((uint64_t)n - 1));
    return n_more <= capacity - n || memob_reserve(array, &capacity, n + n_more, element_bytes);
}

/* Arrays that are freed together; all zero is none. */
typedef struct memob_arrays {
    void* latest;   /* each array begins after the address of the one before it */
    int32_t failed; /* there was no memory for one of them */
    int32_t keeps;  /* memoi_arrays_rewind was called: arrays lie in the block if there is room */
    char* block;
    int64_t block_bytes, used_bytes; /* used_bytes: as if it had room for all */
} memob_arrays;

#define MEMOI_ARRAYS_HEAD 16 /* bytes before an array, which stays aligned for every type */

/* Adds an array like memob_calloc, but its elements may be anything.  Check `failed` once, after
 * the last one.  A block ends with its array, so that a sanitizer sees what reads behind it. */
MEMOI MEMOB_NOINLINE void* memoi_arrays_take(memob_arrays* arrays, int64_t count,
                                             size_t element_bytes) {
    const int64_t n_most = (MEMOB_BYTES_MAX - MEMOI_ARRAYS_HEAD) / (int64_t)element_bytes;
    char* block;
    if (arrays->keeps &&
        memob_is_within(count, 0, MEMOB_BYTES_MAX / (int64_t)element_bytes / 2 - 1)) {
        const int64_t begin = arrays->used_bytes, n_bytes = count * (int64_t)element_bytes;
        arrays->used_bytes += memob_align_up(n_bytes, MEMOI_ARRAYS_HEAD);
        if (arrays->block && arrays->used_bytes <= arrays->block_bytes)
            return arrays->block + begin;
    }
    block = memob_is_within(count, 0, n_most)
                ? (char*)memob_calloc(MEMOI_ARRAYS_HEAD + count * (int64_t)element_bytes, 1)
                : NULL;
    if (!block) {
        arrays->failed = 1;
        return NULL;
    }
    memcpy(block, &arrays->latest, sizeof arrays->latest);
    arrays->latest = block;
    return block + MEMOI_ARRAYS_HEAD;
}

MEMOI MEMOB_NOINLINE void* memob_arrays_add(memob_arrays* arrays, int64_t count,
                                            size_t element_bytes) {
    void* array = memoi_arrays_take(arrays, count, element_bytes);
    if (array && arrays->keeps) memset(array, 0, (size_t)count * element_bytes);
    return array;
}

/* The same, of a type. */
#define MEMOB_ARRAY(arrays, type, count) ((type*)memob_arrays_add(arrays, count, sizeof(type)))
#define MEMOB_ARRAY_OF_ANY(arrays, type, count)                                                    \
    ((type*)memoi_arrays_take(arrays, count, sizeof(type)))

MEMOI MEMOB_NOINLINE void memob_arrays_free(memob_arrays* arrays) {
    while (arrays->latest) {
        void* block = arrays->latest;
        memcpy(&arrays->latest, block, sizeof arrays->latest);
        MEMO_FREE(block);
    }
    MEMO_FREE(arrays->block);
    memset(arrays, 0, sizeof *arrays);
}

/* Drops all arrays like memob_arrays_free, but keeps memory for the next ones: arrays of the same
 * sizes then allocate nothing. */
MEMOI void memoi_arrays_rewind(memob_arrays* arrays) {
    memob_arrays kept = *arrays;
    arrays->block = NULL;
    memob_arrays_free(arrays);
    if (kept.used_bytes > kept.block_bytes) {
        MEMO_FREE(kept.block);
        kept.block = (char*)memob_calloc(2 * kept.used_bytes, 1);
        kept.block_bytes = kept.block ? 2 * kept.used_bytes : 0;
    }
    arrays->keeps = 1;
    arrays->block = kept.block;
    arrays->block_bytes = kept.block_bytes;
}

/* The next random number of a state (splitmix64), and one in [0, 1). */
MEMOI uint64_t memob_random(uint64_t* state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
MEMOI double memob_random_real(uint64_t* state) {
    return (double)(memob_random(state) >> 11) * (1.0 / 9007199254740992.0);
}

/* FNV-1a. */
MEMOI uint64_t memob_hash(const char* bytes, int64_t n_bytes) {
    uint64_t hash = 14695981039346656037u;
    for (int64_t i = 0; i < n_bytes; i++) hash = (hash ^ (unsigned char)bytes[i]) * 1099511628211u;
    return hash;
}

/* --- hash map, open addressing --- */

/* Hash map from int64 to int64; all zero is an empty map.  Values are 0 or above. */
typedef struct memob_map {
    int64_t* keys;
    int64_t* values; /* -1: never used, -2: removed */
    int64_t capacity, n_filled;
} memob_map;

MEMOI MEMOB_NOINLINE void memob_map_free(memob_map* map) {
    MEMO_FREE(map->keys);
    MEMO_FREE(map->values);
    memset(map, 0, sizeof *map);
}

MEMOI int64_t memoi_map_slot(const memob_map* map, int64_t key) {
    uint64_t hash = (uint64_t)key * 0x9e3779b97f4a7c15u;
    int64_t slot = (int64_t)((hash ^ (hash >> 32)) & (uint64_t)(map->capacity - 1)), removed = -1;
    MEMO_ASSERT(map->n_filled * 2 <= map->capacity); /* 2 */
    while (map->values[slot] != -1 && (map->values[slot] == -2 || map->keys[slot] != key)) {
        if (map->values[slot] == -2 && removed < 0) removed = slot;
        slot = (slot + 1) & (map->capacity - 1);
    }
    return map->values[slot] == -1 && removed >= 0 ? removed : slot;
}

/* The value of key, or -1. */
MEMOI int64_t memob_map_get(const memob_map* map, int64_t key) {
    int64_t value = map->capacity ? map->values[memoi_map_slot(map, key)] : -1;
    return value < 0 ? -1 : value;
}

MEMOI void memob_map_remove(memob_map* map, int64_t key) {
    int64_t slot;
    if (!map->capacity) return;
    slot = memoi_map_slot(map, key);
    if (map->values[slot] >= 0) map->values[slot] = -2;
}

/* Adds a key or replaces its value.  Without memory it returns 0 and the map is unchanged. */
MEMOI int memob_map_put(memob_map* map, int64_t key, int64_t value) {
    int64_t slot;
    MEMO_ASSERT(value >= 0); /* 3 */

    /* At most half full, or probing gets long.  Removed entries are dropped on the way. */
    if (map->n_filled * 2 >= map->capacity) {
        memob_map grown = MEMO_ZERO(memob_map);
        int64_t n_kept = 0;
        for (int64_t i = 0; i < map->capacity; i++) n_kept += map->values[i] >= 0;
        grown.capacity = 32;
        while (grown.capacity < 4 * (n_kept + 1)) grown.capacity *= 2;
        grown.keys = (int64_t*)memob_calloc(grown.capacity, sizeof(int64_t));
        grown.values = (int64_t*)memob_calloc(grown.capacity, sizeof(int64_t));
        if (!grown.keys || !grown.values) {
            memob_map_free(&grown);
            return 0;
        }
        for (int64_t i = 0; i < grown.capacity; i++) grown.values[i] = -1;
        for (int64_t i = 0; i < map->capacity; i++) /* the new table has room */
            if (map->values[i] >= 0) (void)memob_map_put(&grown, map->keys[i], map->values[i]);
        memob_map_free(map);
        *map = grown;
    }

    slot = memoi_map_slot(map, key);
    if (map->values[slot] == -1) map->n_filled++;
    map->keys[slot] = key;
    map->values[slot] = value;
    return 1;
}

/* --- sorting by key --- */

/* A key and the index of its owner. */
typedef struct memob_keyed {
    int64_t key, index;
} memob_keyed;

MEMOI memob_keyed memob_keyed_of(int64_t key, int64_t index) {
    const memob_keyed keyed = {key, index};
    return keyed;
}

/* For qsort: by key, then by index. */
MEMOI int memob_keyed_compare(const void* left, const void* right) {
    const memob_keyed* a = (const memob_keyed*)left;
    const memob_keyed* b = (const memob_keyed*)right;
    return a->key != b->key ? memob_compare(a->key, b->key) : memob_compare(a->index, b->index);
}

/* Sorts keys from least to largest, digit by digit, equal keys as they came; a digit has no more
 * values than n keys.  Scratch: sorted, and place, of n + 2. */
MEMOI void memob_digits_sort(memob_keyed* list, int64_t n, int64_t least, int64_t largest,
                             memob_keyed* sorted, int32_t* place) {
    int bits = 1;
    int64_t mask, sum;
    while (n >> (bits + 2) > 0) bits++;
    mask = ((int64_t)1 << bits) - 1;
    for (int shift = 0; shift < 63 && (largest - least) >> shift > 0; shift += bits) {
        memset(place, 0, (size_t)(mask + 1) * sizeof(int32_t));
        for (int64_t k = 0; k < n; k++) place[(list[k].key - least) >> shift & mask]++;
        for (int64_t k = sum = 0; k <= mask; k++) {
            sum += place[k];
            place[k] = (int32_t)(sum - place[k]);
        }
        for (int64_t k = 0; k < n; k++)
            sorted[place[(list[k].key - least) >> shift & mask]++] = list[k];
        memcpy(list, sorted, (size_t)n * sizeof *list);
    }
}

/* Sorts a list that is in the order of index; linear. */
MEMOI void memob_keyed_sort(memob_keyed* list, int64_t n) {
    int64_t largest = 0;
    memob_keyed* sorted;
    int32_t* place;
    int is_sorted = 1;

    for (int64_t i = 0; i < n; i++) {
        MEMO_ASSERT(list[i].key >= 0 && (i == 0 || list[i - 1].index < list[i].index)); /* 4 */
        largest = memob_max(largest, list[i].key);
        if (i > 0 && list[i - 1].key > list[i].key) is_sorted = 0;
    }
    if (is_sorted) return;

    sorted = (memob_keyed*)memob_calloc(n, sizeof(memob_keyed));
    place = (int32_t*)memob_calloc(n + 2, sizeof(int32_t));
    if (sorted && place)
        memob_digits_sort(list, n, 0, largest, sorted, place);
    else /* without memory, by comparing */
        qsort(list, (size_t)n, sizeof *list, memob_keyed_compare);
    MEMO_FREE(sorted);
    MEMO_FREE(place);
}

/* --- clock --- */

/* The monotonic clock, in nanoseconds and in seconds. */
MEMOI MEMOB_NOINLINE int64_t memob_now_ns(void) {
#if defined(_WIN32)
    LARGE_INTEGER ticks, per_s;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_s);
    return ticks.QuadPart / per_s.QuadPart * 1000000000 +
           ticks.QuadPart % per_s.QuadPart * 1000000000 / per_s.QuadPart;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + (int64_t)now.tv_nsec;
#endif
}

MEMOI double memob_now_s(void) { return 1e-9 * (double)memob_now_ns(); }

#if !defined(_WIN32)
/* time_ns, 0 or above, as a timespec. */
MEMOI struct timespec memoi_timespec(int64_t time_ns) {
    struct timespec time;
    MEMO_ASSERT(time_ns >= 0);
    time.tv_sec = (time_t)(time_ns / 1000000000);
    time.tv_nsec = (long)(time_ns % 1000000000);
    return time;
}
#endif

/* Where a thread may lose its turn.  A test defines the macro (turns.h) and runs one thread at a
 * time, in an order drawn from a seed; MEMOB_TURN(waits()) is then 1, and nobody sleeps. */
#ifndef MEMOB_TURN
#define MEMOB_TURN(event) 0
#endif

/* Sleeps until the monotonic clock shows time_ns; signals do not shorten it. */
MEMOI void memob_sleep_until(int64_t time_ns) {
    if (MEMOB_TURN(sleeps(time_ns))) return;
    while (memob_now_ns() < time_ns) {
#if defined(_WIN32)
        const int64_t left_ns = memob_max(time_ns - memob_now_ns(), 0);
        Sleep((DWORD)(memob_min(left_ns, 1000000000) / 1000000 + 1));
#elif defined(__APPLE__) /* no clock_nanosleep */
        struct timespec left = memoi_timespec(memob_max(time_ns - memob_now_ns(), 0));
        nanosleep(&left, NULL);
#else
        struct timespec time = memoi_timespec(time_ns);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
#endif
    }
}

/* Writes "12.3 MiB" into a buffer of 32 bytes or more and returns it. */
MEMOI MEMOB_NOINLINE const char* memob_bytes_text(char* buffer, double size_bytes) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    while (size_bytes >= 1024 && unit < 5) {
        size_bytes /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit && size_bytes < 100 ? "%.1f %s" : "%.0f %s", size_bytes, units[unit]);
    return buffer;
}

/* --- signals and threads --- */

#if !defined(_WIN32)
/* POSIX leaves sigprocmask unspecified in programs with threads.  pthread_sigmask needs -lpthread
 * with old C libraries. */
#if !defined(MEMO_NO_HOST_DEVICE) || defined(MEMO_CUDA_IMPLEMENTATION)
#define MEMOI_SIGNALS_MASK pthread_sigmask
#else
#define MEMOI_SIGNALS_MASK sigprocmask
#endif

/* Blocks the signals of the calling thread until memoi_signals_restore, but not the signals that a
 * fault of a thread itself raises: POSIX leaves a blocked one undefined, and handlers of the
 * program, such as a sanitizer's, report it. */
MEMOI void memoi_signals_block(sigset_t* before) {
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t set;
    sigfillset(&set);
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) sigdelset(&set, faults[k]);
    MEMOI_SIGNALS_MASK(SIG_BLOCK, &set, before);
}
MEMOI void memoi_signals_restore(const sigset_t* before) {
    MEMOI_SIGNALS_MASK(SIG_SETMASK, before, NULL);
}
#endif

#if !defined(MEMO_NO_HOST_DEVICE) || defined(MEMO_CUDA_IMPLEMENTATION)
/* Starts a thread that takes no signals of the program; 0 on success, else a number for strerror.
 * Every thread of memo begins here.  stack_bytes 0: 8 MiB, because the default of musl, 128 KiB,
 * and that of `ulimit -s` may be too small for a user's function. */
MEMOI int memob_thread_create(pthread_t* thread, int64_t stack_bytes, void* (*function)(void*),
                              void* argument) {
    const int64_t unit_bytes = 1 << 16; /* at least PTHREAD_STACK_MIN, and whole pages */
    pthread_attr_t attributes;
    sigset_t before;
    int code = pthread_attr_init(&attributes);
    if (code) return code;
    stack_bytes = memob_align_up(stack_bytes ? stack_bytes : 8 << 20, unit_bytes);
    code = pthread_attr_setstacksize(&attributes, (size_t)stack_bytes);
    memoi_signals_block(&before); /* a thread begins with the mask of its creator */
    if (!code) code = pthread_create(thread, &attributes, function, argument);
    memoi_signals_restore(&before);
    pthread_attr_destroy(&attributes);
    return code;
}
#endif

/* Tries before a waiting thread sleeps, with memob_spin_pause between them. */
#define MEMOB_SPINS 64

MEMOI void memob_spin_pause(void) {
    if (MEMOB_TURN(waits())) return;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* The first failure of several threads; all zero is none.  memob_failure_keep keeps the one that
 * comes first; a failure can be read when it returns, also by a thread that came later. */
typedef struct memob_failure {
    int32_t is_claimed, is_kept;
    memo_error error; /* valid if memob_failure_is_kept */
} memob_failure;

MEMOI int memob_failure_is_kept(const memob_failure* failure) {
    return __atomic_load_n(&failure->is_kept, __ATOMIC_SEQ_CST);
}

/* The failure that is kept; OK: none. */
MEMOI MEMOB_NOINLINE memo_status memob_failure_status(const memob_failure* failure,
                                                      memo_error* error) {
    if (!memob_failure_is_kept(failure)) return MEMO_STATUS_OK;
    return memo_error_set(error, failure->error.status, "%s", failure->error.message);
}

MEMO_PRINTF(3, 4)
MEMOI void memob_failure_keep(memob_failure* failure, memo_status status, const char* format, ...) {
    MEMO_ASSERT(status != MEMO_STATUS_OK); /* 5 */
    /* Claimed, written, then published. */
    if (!__atomic_exchange_n(&failure->is_claimed, 1, __ATOMIC_RELAXED)) {
        va_list arguments;
        failure->error.status = status;
        va_start(arguments, format);
        vsnprintf(failure->error.message, sizeof failure->error.message, format, arguments);
        va_end(arguments);
        __atomic_store_n(&failure->is_kept, 1, __ATOMIC_SEQ_CST);
    }
    while (!memob_failure_is_kept(failure)) memob_spin_pause();
}

#endif

#if defined(MEMO_IMPLEMENTATION) && !defined(MEMO_IMPLEMENTATION_DONE)
#define MEMO_IMPLEMENTATION_DONE

/* ---- >>error ------------------------------------------------------------------------------------
 * Knows: statuses and messages.  Knows nothing else. */

const char* memo_status_name(memo_status status) {
    static const char* const names[] = {"ok",
                                        "invalid argument",
                                        "invalid state",
                                        "out of device memory",
                                        "out of host memory",
                                        "diverged from the plan",
                                        "infeasible",
                                        "input/output error",
                                        "format error",
                                        "unknown version",
                                        "device error",
                                        "unsupported",
                                        "communication error"};
    MEMOB_TABLE_OF(MEMO_N_STATUSES, names);
    return (unsigned)status < MEMO_N_STATUSES ? names[status] : "unknown status";
}

/* A call whose status changes nothing: what follows has an error already, or ends. */
#define MEMOB_IGNORE(call)                                                                         \
    do {                                                                                           \
        const memo_status ignored = (call);                                                        \
        (void)ignored;                                                                             \
    } while (0)

memo_status memo_error_set(memo_error* error, memo_status status, const char* format, ...) {
    if (error) {
        va_list arguments;
        char* c;
        error->status = status;
        error->line = 0;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format ? format : memo_status_name(status),
                  arguments);
        va_end(arguments);
        for (c = error->message; *c; c++)
            if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    }
    return status;
}

/* ---- >>text -------------------------------------------------------------------------------------
 * Knows: memo_text, escapes of XML and JSON, files that are replaced whole.  Knows nothing of what
 * the text says.
 *
 * 1. A text that did not fail ends with a 0 byte behind its n_bytes, inside its capacity.
 * 2. Escaping ends where the characters do: no character is cut, and none behind them is read.
 * 3. No file that is written has a descriptor of the standard streams, unless it is one of them. */

void memo_text_free(memo_text* text) {
    if (!text) return;
    MEMO_FREE(text->data);
    memset(text, 0, sizeof *text);
}

void memo_text_put(memo_text* text, const char* format, ...) {
    int64_t room, length = 0;
    va_list arguments;
    if (!text || !format) return;
    room = text->capacity - text->n_bytes;
    /* Again after it has grown, if there was too little room. */
    while (!text->failed) {
        va_start(arguments, format);
        length =
            vsnprintf(room ? text->data + text->n_bytes : NULL, (size_t)room, format, arguments);
        va_end(arguments);
        if (length >= 0 && length < room) break;
        text->failed = length < 0 ||
                       !memob_reserve(&text->data, &text->capacity, text->n_bytes + length + 1, 1);
        room = text->capacity - text->n_bytes;
    }
    if (!text->failed) text->n_bytes += length;
    MEMO_ASSERT(text->failed || text->n_bytes < text->capacity); /* 1 */
    MEMO_ASSERT(text->failed || !text->data[text->n_bytes]);     /* 1 */
}

/* Bytes of the character at s, if it is UTF-8 that XML allows, apart from controls; else 0. */
MEMOI int memoi_text_character(const char* s) {
    static const uint32_t least[] = {UINT32_MAX, 32, 0x80, 0x800, 0x10000};
    /* By the first four bits; five ones begin a code that is too large. */
    static const char lengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4};
    const unsigned char* p = (const unsigned char*)s;
    const int n = lengths[*p >> 4];
    uint32_t code = n < 2 ? *p : *p & (255u >> n);
    for (int i = 1; i < n; i++) {
        if (p[i] >> 6 != 2) return 0;
        code = code << 6 | (p[i] & 63);
    }
    return code < least[n] || code >> 11 == 27 || code >> 1 == 0x7fff || code > 0x10ffff ? 0 : n;
}

/* What XML writes between & and ; for a character; NULL: the character itself will do. */
MEMOI const char* memoi_text_entity(char character) {
    static const char* const names[] = {"amp", "lt", "gt", "quot"};
    static const char characters[] = "&<>\"";
    const char* at = (const char*)memchr(characters, character, 4);
    return at ? names[at - characters] : NULL;
}

MEMOI void memob_text_put_escaped(memo_text* text, const char* s, int64_t n_bytes, int is_json) {
    const char* const stop = s + n_bytes;
    while (s < stop) {
        const int n = *s == '\n' && !is_json ? 1 : memoi_text_character(s);
        if (is_json && (*s == '"' || *s == '\\'))
            memo_text_put(text, "\\%c", *s);
        else if (!is_json && memoi_text_entity(*s))
            memo_text_put(text, "&%s;", memoi_text_entity(*s));
        else if (n || (unsigned char)*s >= 32)
            memo_text_put(text, "%.*s", n ? n : 3, n ? s : "\xef\xbf\xbd");
        s += n ? n : 1;
    }
    MEMO_ASSERT(s == stop); /* 2 */
}
void memo_text_put_xml(memo_text* text, const char* s) {
    if (text && s) memob_text_put_escaped(text, s, (int64_t)strlen(s), 0);
}
void memo_text_put_json(memo_text* text, const char* s) {
    if (text && s) memob_text_put_escaped(text, s, (int64_t)strlen(s), 1);
}

#ifdef PATH_MAX
#define MEMOI_PATH_BYTES PATH_MAX
#else
#define MEMOI_PATH_BYTES 4096
#endif

/* memoi_text_store writes a text to a file; "-": standard output.  Returns an errno. */
#if defined(_WIN32)
MEMOI int memoi_text_store(const memo_text* text, const char* path) {
    const int is_output = strcmp(path, "-") == 0;
    char name[MEMOI_PATH_BYTES + 8]; /* its first name */
    FILE* file;
    int code;
    snprintf(name, sizeof name, "%s.memo", path);
    file = is_output ? stdout : fopen(name, "wb");
    errno = EIO; /* where the C library sets none */
    code = file && fwrite(text->data, 1, (size_t)text->n_bytes, file) == (size_t)text->n_bytes &&
                   fflush(file) == 0
               ? 0
               : errno;
    if (file && !is_output && fclose(file) && !code) code = errno;
    if (!code && !is_output) remove(path); /* rename replaces nothing there */
    if (!code && !is_output && rename(name, path)) code = errno;
    if (code && !is_output) remove(name);
    return code;
}
#else
/* Moves a descriptor to 3 or above.  If standard output is closed, a file would get descriptor 1,
 * and lines that the program prints would go into the file.  Returns -1 on failure, like open. */
MEMOI int memoi_file_descriptor_from_3(int descriptor) {
    int higher, code;
    if (descriptor < 0 || descriptor > 2) return descriptor;
    higher = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    code = errno;
    close(descriptor);
    errno = code;
    return higher;
}

/* The limit on file sizes: exceeding it ends the process. */
MEMOI int memoi_file_is_too_large(int64_t n_bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
           limit.rlim_cur < (rlim_t)n_bytes;
}

/* Returns an errno. */
MEMOI int memoi_file_write_all(int descriptor, const char* data, int64_t n_bytes) {
    struct stat info;
    if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) &&
        memoi_file_is_too_large(n_bytes + (fcntl(descriptor, F_GETFL) & O_APPEND
                                               ? (int64_t)info.st_size
                                               : (int64_t)lseek(descriptor, 0, SEEK_CUR))))
        return EFBIG;
    while (n_bytes > 0) {
        ssize_t n = write(descriptor, data, (size_t)n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        data += n;
        n_bytes -= n;
    }
    return 0;
}

/* memoi_file_write_all, then close.  A negative descriptor: opening failed, with errno. */
MEMOI int memoi_file_write_and_close(int descriptor, const char* data, int64_t n_bytes) {
    int code = descriptor < 0 ? errno : memoi_file_write_all(descriptor, data, n_bytes);
    MEMO_ASSERT(descriptor < 0 || descriptor > STDERR_FILENO); /* 3 */
    if (descriptor >= 0 && close(descriptor) && !code) code = errno;
    return code;
}

/* Writes a new file and renames it to target, so that no reader sees half of it; owner and mode of
 * an existing target are kept.  Signals are blocked, so that none leaves a temporary file.  Returns
 * an errno. */
MEMOI int memoi_file_replace(const char* target, const struct stat* old, const char* data,
                             int64_t n_bytes) {
    const char* slash = strrchr(target, '/');
    const int folder_bytes = slash ? (int)(slash - target) + 1 : 0;
    char name[MEMOI_PATH_BYTES + 48]; /* of the new file: short, unused, in the same folder */
    sigset_t before;
    int descriptor = -1, code;
    memoi_signals_block(&before);
    for (int k = 0; k < 1000 && descriptor < 0 && (k == 0 || errno == EEXIST); k++) {
        snprintf(name, sizeof name, "%.*s.memo-%ld-%d", folder_bytes, target, (long)getpid(), k);
        descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    descriptor = memoi_file_descriptor_from_3(descriptor);
    if (descriptor >= 0 && old) (void)!fchown(descriptor, old->st_uid, old->st_gid);
    code = descriptor >= 0 && old && fchmod(descriptor, old->st_mode & 07777) ? errno : 0;
    if (code)
        close(descriptor);
    else
        code = memoi_file_write_and_close(descriptor, data, n_bytes);
    if (!code && rename(name, target)) code = errno;
    if (code && descriptor >= 0) unlink(name);
    memoi_signals_restore(&before);
    return code;
}

MEMOI int memoi_text_store(const memo_text* text, const char* path) {
    struct stat info, output, link;
    char linked[MEMOI_PATH_BYTES];
    const char* target = path;
    int exists = stat(path, &info) == 0, replaces;
    int open_file = strcmp(path, "-") == 0 ? STDOUT_FILENO : -1;
    for (int k = STDOUT_FILENO; exists && open_file < 0 && k <= STDERR_FILENO; k++)
        if (fstat(k, &output) == 0 && info.st_dev == output.st_dev && info.st_ino == output.st_ino)
            open_file = k;
    replaces = open_file < 0 && (!exists || S_ISREG(info.st_mode));

    /* The target of a link is replaced, not the link.  A read-only file is refused, because rename
     * would replace it. */
    if (replaces && lstat(path, &link) == 0 && S_ISLNK(link.st_mode)) {
        replaces = realpath(path, linked) != NULL;
        target = linked;
    }
    if (replaces && exists && access(target, W_OK)) return errno;
    if (replaces)
        return memoi_file_replace(target, exists ? &info : NULL, text->data, text->n_bytes);

    /* In place into an open file, or into a device, a pipe, or the missing target of a link. */
    if (open_file >= 0)
        return fflush(open_file == STDOUT_FILENO ? stdout : stderr)
                   ? errno
                   : memoi_file_write_all(open_file, text->data, text->n_bytes);
    open_file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return memoi_file_write_and_close(memoi_file_descriptor_from_3(open_file), text->data,
                                      text->n_bytes);
}
#endif

memo_status memo_text_write(memo_text* text, const char* path, memo_error* error) {
    int code;
    if (!path) memo_text_free(text);
    MEMOB_REFUSE_NULL(error, "text", text);
    MEMOB_REFUSE_NULL(error, "path", path);
    code = text->failed ? ENOMEM : memoi_text_store(text, path);
    memo_text_free(text);
    if (!code) return MEMO_STATUS_OK;
    if (code == ENOMEM)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "%s: no host memory for its text", path);
    return memo_error_set(error, MEMO_STATUS_IO, "%s: cannot be written: %s",
                          strcmp(path, "-") ? path : "standard output", strerror(code));
}

/* ---- >>reader -----------------------------------------------------------------------------------
 * Knows: lines, words and numbers of a text.  Knows nothing of what they say.
 *
 * 1. A line lies in the text, in front of the next one: line <= stop <= next <= end.
 * 2. A word lies in its line: line <= word, word + length <= stop. */

/* Position in a text.  A word is bytes between blanks; the next word is searched behind it. */
typedef struct memob_reader {
    const char* name; /* of the file, for messages */
    const char* text;
    const char* next; /* start of the next line */
    const char* end;  /* of the text */
    const char* line; /* start of the current line */
    const char* stop; /* its end, without newline and carriage return */
    const char* word; /* the current word */
    int64_t length;   /* of the word; 0: there is none */
    int64_t n_line;   /* number of the line, from 1 */
    /* What the last line of memo's files states, and the number of that line; -1: there is none. */
    int64_t count, n_count_line;
} memob_reader;

#define MEMOB_BAD_LINE(reader, error, ...)                                                         \
    memoi_line_error(reader, error, MEMO_STATUS_FORMAT, __VA_ARGS__)

/* Reads a text of the caller, which it borrows.  name NULL: "text".  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memob_reader_init(memob_reader* reader, const char* text, int64_t n_bytes,
                                    const char* name, memo_error* error) {
    memset(reader, 0, sizeof *reader);
    if (!text || n_bytes < 0)
        return MEMOB_INVALID(error, "text: NULL, or n_bytes is negative; pass a text");
    reader->name = name ? name : "text";
    reader->count = -1;
    reader->text = reader->next = text;
    reader->end = text + n_bytes;
    return MEMO_STATUS_OK;
}

/* Reads a whole file ("-": standard input), whose text memob_reader_close frees.  Errors: IO,
 * OUT_OF_HOST_MEMORY; then there is nothing to close, and closing does no harm. */
MEMOI memo_status memob_reader_open(memob_reader* reader, const char* path, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    FILE* file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    char *bytes = NULL, limit[32];
    int64_t capacity = 0, used = 0;
    size_t n = 1;
    memset(reader, 0, sizeof *reader);

    /* Sizes of pipes and devices are unknown, so read until the end, up to a limit. */
    while (file && !status && n > 0) {
        if (!memob_reserve(&bytes, &capacity, used + 65536, 1)) {
            status = memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                    "%s: no host memory for its text", path);
            break;
        }
        n = fread(bytes + used, 1, (size_t)(capacity - used), file);
        used += (int64_t)n;
        if (n > 0 && used > MEMO_FILE_BYTES_MAX)
            status = memo_error_set(error, MEMO_STATUS_IO,
                                    "%s: larger than %s; define a larger MEMO_FILE_BYTES_MAX", path,
                                    memob_bytes_text(limit, (double)MEMO_FILE_BYTES_MAX));
    }
    if (!status && (!file || ferror(file)))
        status =
            memo_error_set(error, MEMO_STATUS_IO, "%s: cannot be read: %s", path, strerror(errno));
    if (file && file != stdin) fclose(file);
    if (status) {
        MEMO_FREE(bytes);
        return status;
    }
    return memob_reader_init(reader, bytes, used, file == stdin ? "standard input" : path, error);
}

MEMOI void memob_reader_close(memob_reader* reader) { MEMO_FREE((char*)reader->text); }

/* Moves to the next line; 0 at the end of the text. */
MEMOI int memoi_reader_next_line(memob_reader* reader) {
    const char* newline;
    if (reader->next >= reader->end) return 0;
    newline = (const char*)memchr(reader->next, '\n', (size_t)(reader->end - reader->next));
    reader->line = reader->word = reader->next;
    reader->length = 0;
    reader->stop = newline ? newline : reader->end;
    reader->next = newline ? newline + 1 : reader->end;
    if (reader->stop > reader->line && reader->stop[-1] == '\r') reader->stop--;
    reader->n_line++;
    MEMO_ASSERT(reader->line <= reader->stop && reader->stop <= reader->next); /* 1 */
    MEMO_ASSERT(reader->next <= reader->end);                                  /* 1 */
    return 1;
}

/* Moves to the next word of the current line; 0: there is none. */
MEMOI MEMOB_NOINLINE int memoi_next_word(memob_reader* reader) {
    const char* p = reader->word + reader->length;
    while (p < reader->stop && (*p == ' ' || *p == '\t')) p++;
    reader->word = p;
    while (p < reader->stop && *p != ' ' && *p != '\t') p++;
    reader->length = (int64_t)(p - reader->word);
    MEMO_ASSERT(reader->line <= reader->word); /* 2 */
    MEMO_ASSERT(p <= reader->stop);            /* 2 */
    return reader->length > 0;
}

/* Does the current word equal `expected`? */
MEMOI MEMOB_NOINLINE int memob_word_is(const memob_reader* reader, const char* expected) {
    return (int64_t)strlen(expected) == reader->length &&
           memcmp(reader->word, expected, (size_t)reader->length) == 0;
}

/* The word as a decimal int64; 0: it is not one. */
MEMOI int memoi_word_number(const char* word, int64_t length, int64_t* value) {
    int64_t i = 0, result = 0;
    int negative = length > 0 && word[0] == '-';
    if (negative) i = 1;
    if (i == length) return 0;
    for (; i < length; i++) {
        int digit = word[i] - '0';
        if (!memob_is_within(digit, 0, 9) || result < (INT64_MIN + digit) / 10) return 0;
        result = result * 10 - digit; /* negative: INT64_MIN has no positive twin */
    }
    if (!negative && result == INT64_MIN) return 0;
    *value = negative ? result : -result;
    return 1;
}

/* Sets error to "NAME:LINE: MESSAGE" of the current line, and returns status. */
MEMO_PRINTF(4, 5)
MEMOI memo_status memoi_line_error(const memob_reader* reader, memo_error* error,
                                   memo_status status, const char* format, ...) {
    if (error) {
        va_list arguments;
        char message[320], number[32] = ""; /* the text may have no line */
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        if (reader->n_line > 0) snprintf(number, sizeof number, ":%lld", (long long)reader->n_line);
        memo_error_set(error, status, "%.150s%s: %s", reader->name, number, message);
        error->line = reader->n_line;
    }
    return status;
}

/* Returns the status of a function whose arguments come from this line; the message names it. */
MEMOI memo_status memob_reader_result(const memob_reader* reader, memo_status status,
                                      const memo_error* reason, memo_error* error) {
    if (!status) return MEMO_STATUS_OK;
    if (status == MEMO_STATUS_INVALID_ARGUMENT) status = MEMO_STATUS_FORMAT;
    return memoi_line_error(reader, error, status, "%s", reason->message);
}

/* --- what a line must hold --- */

/* The current word for a message: shortened, other than printable bytes as '?'.  Returns out. */
MEMOI const char* memob_word_text(char out[40], const memob_reader* reader) {
    const char* word = reader->word;
    int64_t i;
    for (i = 0; i < reader->length && i < 36; i++)
        out[i] = word[i] >= 33 && word[i] < 127 ? word[i] : '?';
    if (i < reader->length) memcpy(out + i - 3, "...", 3);
    out[i] = 0;
    return out;
}

/* Nothing may follow.  Errors: FORMAT. */
MEMOI memo_status memob_expect_line_end(memob_reader* reader, memo_error* error) {
    char shown[40];
    if (!memoi_next_word(reader)) return MEMO_STATUS_OK;
    return MEMOB_BAD_LINE(reader, error, "unexpected `%s`; the line ends before it",
                          memob_word_text(shown, reader));
}

/* Moves to the next line that is neither blank nor a comment, and reads its first word.  0: end of
 * the text. */
MEMOI int memob_next_entry(memob_reader* reader) {
    while (memoi_reader_next_line(reader))
        if (memoi_next_word(reader) && reader->word[0] != '#') return 1;
    return 0;
}

/* ---- >>records ----------------------------------------------------------------------------------
 * Knows: values of a line and of a struct; first and last line of memo's files.  Knows nothing of
 * what they mean.
 *
 * 1. A number that the table of a record admits fits the type of its field.
 * 2. Lines go one way: they have a text, to write, or a reader, or neither, to check values.
 * 3. The `end` line lies behind the line that the reader is at, and ends what it reads.
 * 4. A message has room for all words of a value. */

/* A line between the frame's is a record: a word, then values, which lie in a struct.  One table
 * serves both directions. */
typedef enum memob_value_type {
    MEMOB_VALUE_INT64 = 0, /* in [least, most] */
    MEMOB_VALUE_INT32,
    MEMOB_VALUE_WORD,         /* an enum in [least, most] by its words */
    MEMOB_VALUE_NAME,         /* char[most]: a word; least 0: it may be empty, "-" */
    MEMOB_VALUE_FEMTOSECONDS, /* a double in seconds, 0 to 9000; least -1: "-" if it is below 0 */
    MEMOB_VALUE_NANOSECONDS   /* a double in seconds; least and most in nanoseconds */
} memob_value_type;

typedef struct memob_value {
    const char* what; /* for messages */
    memob_value_type type;
    size_t offset; /* in the struct */
    int64_t least, most;
    const char* const* words; /* WORD: of 0 and the following numbers */
} memob_value;
#define MEMOB_VALUE(what, type, of, field, least, most)                                            \
    { what, type, offsetof(of, field), least, most, NULL }
#define MEMOB_WORD(what, of, field, words)                                                         \
    { what, MEMOB_VALUE_WORD, offsetof(of, field), 0, sizeof words / sizeof *words - 1, words }
#define MEMOB_NUMBER(what, of, field)                                                              \
    MEMOB_VALUE(what, MEMOB_VALUE_INT64, of, field, INT64_MIN, INT64_MAX)
#define MEMOB_SECONDS_MOST 9000000000000000000 /* of FEMTOSECONDS and NANOSECONDS */
#define MEMOB_TIME_MAX     1e250 /* in memory: sums over 2^31 layers of 2^58 rows do not overflow */

typedef struct memob_record {
    const char* word;
    const memob_value* values;
    /* The last n_optional values are 0 if the line ends before, and are not written if all values
     * from there on are 0. */
    int32_t n_values, n_optional;
} memob_record;

/* Lines in either direction, so that one walk over them writes, reads or checks. */
typedef struct memob_lines {
    memo_text* text;      /* written to; NULL: read, */
    memob_reader* reader; /* or with neither check */
    int64_t n;            /* so far */
    memo_error* error;
} memob_lines;

/* The number that a line has for a value; names have none. */
MEMOI int64_t memob_record_number(const memob_value* value, const char* at) {
    int64_t number;
    int32_t narrow;
    double time_s, limit;
    switch (value->type) {
    case MEMOB_VALUE_INT64: memcpy(&number, at, sizeof number); return number;
    case MEMOB_VALUE_INT32:
    case MEMOB_VALUE_WORD: memcpy(&narrow, at, sizeof narrow); return narrow;
    default: break;
    }
    /* Times round to the nearest number.  What a number cannot hold is out of range. */
    memcpy(&time_s, at, sizeof time_s);
    time_s *= value->type == MEMOB_VALUE_FEMTOSECONDS ? 1e15 : 1e9;
    limit = (double)MEMOB_SECONDS_MOST;
    if (time_s < 0 && time_s >= -limit) return -1;
    return memob_is_in(time_s, 0, limit) ? (int64_t)floor(time_s + 0.5) : INT64_MAX;
}

MEMOI void memoi_record_set(const memob_value* value, char* at, int64_t number) {
    int32_t narrow = (int32_t)number;
    double time_s = (double)number;
    MEMO_ASSERT(number == narrow || /* 1 */
                (value->type != MEMOB_VALUE_INT32 && value->type != MEMOB_VALUE_WORD));
    if (value->type == MEMOB_VALUE_FEMTOSECONDS) time_s = number < 0 ? -1 : time_s * 1e-15;
    if (value->type == MEMOB_VALUE_NANOSECONDS) time_s *= 1e-9;
    if (value->type == MEMOB_VALUE_INT64)
        memcpy(at, &number, sizeof number);
    else if (value->type == MEMOB_VALUE_INT32 || value->type == MEMOB_VALUE_WORD)
        memcpy(at, &narrow, sizeof narrow);
    else
        memcpy(at, &time_s, sizeof time_s);
}

MEMOI int memob_value_is_name(const memob_value* value, const char* word, int64_t length) {
    int64_t i;
    for (i = 0; i < length && (unsigned char)word[i] > 32 && word[i] != 127; i++) {
    }
    return i == length && length > 0 && length < value->most;
}

/* Reads the current word as the value. */
MEMOI memo_status memoi_record_read(const memob_reader* reader, const memob_value* value, char* to,
                                    memo_error* error) {
    const int is_time = value->type == MEMOB_VALUE_FEMTOSECONDS;
    const int64_t least = is_time ? 0 : value->least, most = value->most;
    int64_t number = least;
    char valid[160] = "", shown[40];
    if (value->type == MEMOB_VALUE_NAME) {
        memset(to, 0, (size_t)most);
        if (least == 0 && memob_word_is(reader, "-")) return MEMO_STATUS_OK;
        if (!memob_value_is_name(value, reader->word, reader->length))
            return MEMOB_BAD_LINE(reader, error, "the %s must be 1 to %lld bytes without blanks",
                                  value->what, (long long)most - 1);
        memcpy(to, reader->word, (size_t)reader->length);
        return MEMO_STATUS_OK;
    }

    /* The number of a word, of "-", or of digits. */
    if (value->type == MEMOB_VALUE_WORD) {
        while (number <= most && !memob_word_is(reader, value->words[number])) number++;
        for (int64_t k = least; k <= most && number > most; k++) {
            const char* between = k == most ? " or " : ", ";
            snprintf(valid + strlen(valid), sizeof valid - strlen(valid), "%s%s",
                     k == least ? "" : between, value->words[k]);
        }
        MEMO_ASSERT(strlen(valid) < sizeof valid - 1); /* 4 */
        if (number > most)
            return MEMOB_BAD_LINE(reader, error, "the %s `%s` is not %s", value->what,
                                  memob_word_text(shown, reader), valid);
    } else if (is_time && value->least < 0 && memob_word_is(reader, "-")) {
        number = -1;
    } else if (!memoi_word_number(reader->word, reader->length, &number)) {
        return MEMOB_BAD_LINE(reader, error, "the %s `%s` is not a whole number of 64 bits",
                              value->what, memob_word_text(shown, reader));
    } else if (number < least || number > most) {
        return MEMOB_BAD_LINE(reader, error, "%s: out of range (%lld); %lld to %lld are valid",
                              value->what, (long long)number, (long long)least, (long long)most);
    }
    memoi_record_set(value, to, number);
    return MEMO_STATUS_OK;
}

/* Reads the values of the current line into a struct; nothing may follow.  Errors: FORMAT. */
MEMOI memo_status memoi_read_record(memob_reader* reader, const memob_record* record, void* to,
                                    memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < record->n_values && !status; k++) {
        const memob_value* value = &record->values[k];
        char* at = (char*)to + value->offset;
        if (memoi_next_word(reader))
            status = memoi_record_read(reader, value, at, error);
        else if (k >= record->n_values - record->n_optional)
            memoi_record_set(value, at, 0);
        else
            status = MEMOB_BAD_LINE(reader, error, "the %s is missing", value->what);
    }
    return status ? status : memob_expect_line_end(reader, error);
}

/* The same, of the next line, which must begin with the record's word. */
MEMOI memo_status memob_expect_record(memob_reader* reader, const memob_record* record, void* to,
                                      memo_error* error) {
    char shown[40];
    if (!memob_next_entry(reader))
        return MEMOB_BAD_LINE(reader, error, "a line `%s` is missing", record->word);
    if (memob_word_is(reader, record->word)) return memoi_read_record(reader, record, to, error);
    return MEMOB_BAD_LINE(reader, error, "unexpected `%s`; `%s` is expected here",
                          memob_word_text(shown, reader), record->word);
}

/* Appends a line.  Errors: INVALID_ARGUMENT (a value that the reader would refuse). */
MEMOI memo_status memob_put_record(memo_text* text, const memob_record* record, const void* from,
                                   memo_error* error) {
    int32_t n = record->n_values;
    while (n > record->n_values - record->n_optional &&
           memob_record_number(&record->values[n - 1],
                               (const char*)from + record->values[n - 1].offset) == 0)
        n--;

    memo_text_put(text, "%s", record->word);
    for (int32_t k = 0; k < n; k++) {
        const memob_value* value = &record->values[k];
        const char* at = (const char*)from + value->offset;
        int64_t number;
        if (value->type == MEMOB_VALUE_NAME) {
            int64_t length = 0;
            while (length < value->most && at[length]) length++;
            if (!memob_value_is_name(value, at, length) && (length || value->least))
                return MEMOB_INVALID(error,
                                     "%s.%s: not a name; 1 to %lld bytes without blanks are valid",
                                     record->word, value->what, (long long)value->most - 1);
            memo_text_put(text, " %.*s", length ? (int)length : 1, length ? at : "-");
            continue;
        }
        number = memob_record_number(value, at);
        if (memob_check_integer(record->word, value->what, number, value->least, value->most,
                                error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (value->type == MEMOB_VALUE_WORD)
            memo_text_put(text, " %s", value->words[number]);
        else if (value->type == MEMOB_VALUE_FEMTOSECONDS && number < 0)
            memo_text_put(text, " -");
        else
            memo_text_put(text, " %lld", (long long)number);
    }
    memo_text_put(text, "\n");
    return MEMO_STATUS_OK;
}

/* Checks the numbers of a struct that stays in memory, where a time may be longer than a line can
 * say, if no sum of times overflows. */
MEMOI memo_status memoi_check_record(const memob_record* record, const char* from,
                                     memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < record->n_values && !status; k++) {
        const memob_value* value = &record->values[k];
        const char* at = from + value->offset;
        double time_s;
        if (value->type == MEMOB_VALUE_FEMTOSECONDS) {
            memcpy(&time_s, at, sizeof time_s);
            status = memob_check_real(record->word, value->what, time_s,
                                      (double)value->least * MEMOB_TIME_MAX, MEMOB_TIME_MAX, error);
        } else if (value->type != MEMOB_VALUE_NAME)
            status = memob_check_integer(record->word, value->what, memob_record_number(value, at),
                                         value->least, value->most, error);
    }
    return status;
}

/* The next line, from or to a struct.  Errors: those of memob_put_record or memob_expect_record;
 * of a check INVALID_ARGUMENT. */
MEMOI MEMOB_NOINLINE memo_status memob_line(memob_lines* lines, const memob_record* record,
                                            void* values) {
    MEMO_ASSERT(!lines->text || !lines->reader); /* 2 */
    lines->n++;
    if (lines->text) return memob_put_record(lines->text, record, values, lines->error);
    if (lines->reader) return memob_expect_record(lines->reader, record, values, lines->error);
    return memoi_check_record(record, (const char*)values, lines->error);
}

/* --- the frame of a file: "memo KIND 1" first, "end COUNT CHECKSUM" last --- */

typedef struct memoi_frame_end {
    int64_t count;
    char checksum[17]; /* of all bytes before the line, in 16 hexadecimal digits */
} memoi_frame_end;
static const memob_value memoi_frame_end_values[] = {
    MEMOB_VALUE("count", MEMOB_VALUE_INT64, memoi_frame_end, count, 0, INT64_MAX),
    MEMOB_VALUE("checksum", MEMOB_VALUE_NAME, memoi_frame_end, checksum, 1, 17)};
static const memob_record memoi_frame_end_record = {"end", memoi_frame_end_values, 2, 0};

MEMOI memo_status memoi_reader_check_end(memob_reader* reader, memo_error* error) {
    memob_reader ahead = *reader;
    memoi_frame_end end;
    char found[17];
    memo_status status = memob_expect_line_end(reader, error);
    int is_end = 0;
    if (status) return status;

    /* Before any other line is parsed, so that a damaged file is reported as damaged, not by the
     * fault of a line. */
    while (!is_end && memob_next_entry(&ahead)) is_end = memob_word_is(&ahead, "end");
    if (!is_end) return MEMOB_BAD_LINE(&ahead, error, "truncated: no `end` line");
    status = memoi_read_record(&ahead, &memoi_frame_end_record, &end, error);
    if (status) return status;
    reader->count = end.count;
    reader->n_count_line = ahead.n_line;
    snprintf(found, sizeof found, "%016llx",
             (unsigned long long)memob_hash(reader->text, (int64_t)(ahead.line - reader->text)));
    if (strcmp(found, end.checksum))
        return MEMOB_BAD_LINE(
            &ahead, error,
            "wrong checksum: the lines above have %s; the file was changed or damaged", found);

    /* Whatever follows is covered by no checksum. */
    reader->end = ahead.line;
    MEMO_ASSERT(reader->next <= reader->end); /* 3 */
    while (memoi_reader_next_line(&ahead))
        if (memoi_next_word(&ahead))
            return MEMOB_BAD_LINE(&ahead, error, "nothing may follow the `end` line");
    return MEMO_STATUS_OK;
}

/* Checks both lines of a file's frame, and sets reader->count.  The reader is then between them.
 * An optional frame may be absent.  Errors: FORMAT, VERSION. */
MEMOI memo_status memob_read_frame(memob_reader* reader, const char* kind, int version,
                                   int is_optional, memo_error* error) {
    memob_reader first = *reader;
    int is_empty = !memob_next_entry(&first);
    int has_frame = !is_empty && memob_word_is(&first, "memo");
    int64_t found = 0;
    const char* why;
    char shown[40];
    if (is_optional && !is_empty && !has_frame) return MEMO_STATUS_OK;
    *reader = first;
    if (!has_frame)
        return MEMOB_BAD_LINE(reader, error, "%sthe first line must be `memo %s %d`",
                              is_empty ? "the file is empty; " : "", kind, version);

    /* The rest of the first line. */
    if (!memoi_next_word(reader) || !memob_word_is(reader, kind))
        return MEMOB_BAD_LINE(reader, error, "the file is a memo `%s`; a `memo %s` was expected",
                              memob_word_text(shown, reader), kind);
    if (!memoi_next_word(reader) || !memoi_word_number(reader->word, reader->length, &found))
        return MEMOB_BAD_LINE(reader, error, "the version is missing, or not a whole number");
    if (found == version) return memoi_reader_check_end(reader, error);
    why = found > version ? "newer" : "older";
    return memoi_line_error(reader, error, MEMO_STATUS_VERSION, "%s version %lld; %d is supported",
                            found < 1 ? "invalid" : why, (long long)found, version);
}

/* Compares the count of the last line with the number of lines found.  Errors: FORMAT. */
MEMOI memo_status memob_check_count(const memob_reader* reader, int64_t n_found,
                                    memo_error* error) {
    memob_reader last_line = *reader;
    if (reader->count < 0 || reader->count == n_found) return MEMO_STATUS_OK;
    last_line.n_line = reader->n_count_line;
    return MEMOB_BAD_LINE(&last_line, error, "wrong count: %lld stated, %lld lines above",
                          (long long)reader->count, (long long)n_found);
}

/* Appends the last line. */
MEMOI void memob_put_last_line(memo_text* text, int64_t count) {
    uint64_t checksum = text->failed ? 0 : memob_hash(text->data, text->n_bytes);
    memo_text_put(text, "end %lld %016llx\n", (long long)count, (unsigned long long)checksum);
}

/* The same, and writes text to path; if status is a failure, only frees text and returns status. */
MEMOI MEMOB_NOINLINE memo_status memob_write_lines(memo_text* text, int64_t count, const char* path,
                                                   memo_status status, memo_error* error) {
    memob_put_last_line(text, count);
    if (!status) return memo_text_write(text, path, error);
    memo_text_free(text);
    return status;
}

/* ---- >>trace ------------------------------------------------------------------------------------
 * Knows: requests, marks and ids, and the words of a request.  Knows nothing of offsets and
 * devices.
 *
 * 1. A request's origin is a malloc at or before it, of the same id; other requests have none.
 * 2. The live ids are those whose malloc has no free yet; n_live of the n_buffers.
 * 3. An event that is waited for was recorded before.
 * 4. A mark's text begins behind the 0 byte of the mark before. */

/* Words of files and pictures. */
static const char* const memob_class_names[] MEMO_UNUSED = {"transient", "skeletal", "persistent"};
MEMOB_TABLE_OF(MEMO_N_CLASSES, memob_class_names);

/* memo_trace.reserved points to it. */
typedef struct memoi_trace_book {
    int64_t* origin;  /* of each request: index of the malloc that it refers to; -1: none */
    memob_map live;   /* id -> index of its malloc */
    memob_map events; /* event -> index of its first record */
} memoi_trace_book;

MEMOI memoi_trace_book* memoi_trace_book_of(const memo_trace* trace) {
    return (memoi_trace_book*)trace->reserved;
}

/* Index of the malloc that request i refers to; a malloc refers to itself.  -1: none. */
MEMOI int64_t memob_request_origin(const memo_trace* trace, int64_t i) {
    MEMO_ASSERT(i >= 0 && i < trace->n_requests);
    return memoi_trace_book_of(trace)->origin[i];
}

memo_status memo_trace_create(memo_trace** trace, memo_error* error) {
    memo_trace* made;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    *trace = NULL;
    made = (memo_trace*)memob_calloc(1, sizeof(memo_trace));
    if (made) made->reserved = memob_calloc(1, sizeof(memoi_trace_book));
    if (!made || !made->reserved) {
        MEMO_FREE(made);
        return memob_no_memory(error, "a trace");
    }
    *trace = made;
    return MEMO_STATUS_OK;
}

void memo_trace_destroy(memo_trace* trace) {
    if (!trace) return;
    MEMO_FREE(memoi_trace_book_of(trace)->origin);
    memob_map_free(&memoi_trace_book_of(trace)->live);
    memob_map_free(&memoi_trace_book_of(trace)->events);
    MEMO_FREE(trace->reserved);
    MEMO_FREE(trace->requests);
    MEMO_FREE(trace->text);
    MEMO_FREE(trace);
}

/* --- appending --- */

/* By kind of request.  MARK is parsed apart. */
static const memob_value memoi_trace_buffer_values[] = {
    MEMOB_NUMBER("id", memo_request, id), MEMOB_NUMBER("size", memo_request, size_bytes),
    MEMOB_WORD("class", memo_request, memory_class, memob_class_names),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_request, stream, 0, MEMOB_STREAMS - 1)};
static const memob_value memoi_trace_use_values[] = {
    MEMOB_NUMBER("id", memo_request, id),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_request, stream, 0, MEMOB_STREAMS - 1)};
static const memob_value memoi_trace_event_values[] = {
    MEMOB_NUMBER("event", memo_request, id),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_request, stream, 0, MEMOB_STREAMS - 1)};
static const memob_record memoi_trace_records[] = {
    {"malloc", memoi_trace_buffer_values, 4, 2}, {"free", memoi_trace_buffer_values, 2, 0},
    {"use", memoi_trace_use_values, 2, 0},       {"record", memoi_trace_event_values, 2, 0},
    {"wait", memoi_trace_event_values, 2, 0},    {"mark", NULL, 0, 0}};
MEMOB_TABLE_OF(MEMO_N_REQUEST_KINDS, memoi_trace_records);

/* Finds the malloc of a live id; the error states whether the id was freed or never requested. */
MEMOI memo_status memoi_trace_find(const memo_trace* trace, int64_t id, const char* what,
                                   int64_t* origin, memo_error* error) {
    *origin = memob_map_get(&memoi_trace_book_of(trace)->live, id);
    MEMO_ASSERT(*origin < trace->n_requests);
    MEMO_ASSERT(*origin < 0 || trace->requests[*origin].kind == MEMO_REQUEST_MALLOC); /* 1 */
    MEMO_ASSERT(*origin < 0 || trace->requests[*origin].id == id);                    /* 1 */
    if (*origin >= 0) return MEMO_STATUS_OK;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        if (trace->requests[i].kind == MEMO_REQUEST_MALLOC && trace->requests[i].id == id)
            return MEMOB_INVALID(error,
                                 "%s of id %lld: it was freed before; request it again first", what,
                                 (long long)id);
    }
    return MEMOB_INVALID(error, "%s of id %lld: it was never requested; request it first", what,
                         (long long)id);
}

/* *origin: of a free or a use, the malloc. */
MEMOI memo_status memoi_trace_check(const memo_trace* trace, const memo_request* request,
                                    int64_t* origin, memo_error* error) {
    const memo_request_kind kind = request->kind;
    const int is_malloc = kind == MEMO_REQUEST_MALLOC;
    const memoi_trace_book* book = memoi_trace_book_of(trace);
    const int64_t id = request->id;

    /* Numbers in their ranges. */
    memo_status status =
        memob_check_integer("trace", "stream", request->stream, 0, MEMOB_STREAMS - 1, error);
    if (!status && is_malloc)
        status = memob_check_integer("trace", "size_bytes", request->size_bytes, 0, MEMOB_BYTES_MAX,
                                     error);
    if (!status)
        status = memob_check_integer("trace", "memory_class", (int64_t)request->memory_class, 0,
                                     MEMO_CLASS_PERSISTENT, error);
    if (status) return status;

    /* What a request refers to exists. */
    if (is_malloc && memob_map_get(&book->live, id) >= 0)
        return MEMOB_INVALID(error, "id %lld is already live; free it first or use another id",
                             (long long)id);
    if (kind == MEMO_REQUEST_FREE || kind == MEMO_REQUEST_USE)
        return memoi_trace_find(trace, id, memoi_trace_records[kind].word, origin, error);
    if (kind == MEMO_REQUEST_WAIT && memob_map_get(&book->events, id) < 0)
        return MEMOB_INVALID(error, "wait for event %lld: it was never recorded; record it first",
                             (long long)id);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_trace_add(memo_trace* trace, memo_request_kind kind,
                                  memo_class memory_class, int32_t stream, int64_t id,
                                  int64_t size_bytes, memo_error* error) {
    memo_request request = {kind, memory_class, stream, id, size_bytes};
    const int is_malloc = kind == MEMO_REQUEST_MALLOC, is_free = kind == MEMO_REQUEST_FREE;
    memoi_trace_book* book = memoi_trace_book_of(trace);
    const int64_t at = trace->n_requests;
    int64_t origin = -1;
    int fits;
    memo_status status = memoi_trace_check(trace, &request, &origin, error);
    if (status) return status;
    MEMO_ASSERT(kind != MEMO_REQUEST_WAIT || /* 3 */
                trace->requests[memob_map_get(&book->events, id)].kind == MEMO_REQUEST_RECORD);

    /* All that can fail, before the trace changes. */
    fits = memob_grow(&trace->requests, at, 1, sizeof(memo_request)) &&
           memob_grow(&book->origin, at, 1, 8);
    if (is_malloc) fits = fits && memob_map_put(&book->live, id, at);
    if (kind == MEMO_REQUEST_RECORD && memob_map_get(&book->events, id) < 0)
        fits = fits && memob_map_put(&book->events, id, at);
    if (!fits) return memob_no_memory(error, "a trace");

    if (is_free) memob_map_remove(&book->live, id);
    if (is_free) request.size_bytes = trace->requests[origin].size_bytes;
    trace->n_buffers += is_malloc;
    trace->n_live += is_malloc - is_free;
    MEMO_ASSERT(trace->n_live >= 0 && trace->n_live <= trace->n_buffers); /* 2 */
    MEMO_ASSERT(kind > MEMO_REQUEST_USE ||
                (memob_map_get(&book->live, id) >= 0) == !is_free); /* 2 */
    trace->requests[at] = request;
    book->origin[at] = is_malloc ? at : origin;
    trace->n_requests++;
    return MEMO_STATUS_OK;
}

memo_status memo_trace_malloc(memo_trace* trace, int64_t id, int64_t size_bytes,
                              memo_class memory_class, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_MALLOC, memory_class, stream, id, size_bytes, error);
}

memo_status memo_trace_free(memo_trace* trace, int64_t id, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_FREE, MEMO_CLASS_TRANSIENT, 0, id, 0, error);
}

memo_status memo_trace_use(memo_trace* trace, int64_t id, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_USE, MEMO_CLASS_TRANSIENT, stream, id, 0, error);
}

memo_status memo_trace_record(memo_trace* trace, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_RECORD, MEMO_CLASS_TRANSIENT, stream, event, 0,
                           error);
}

memo_status memo_trace_wait(memo_trace* trace, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_add(trace, MEMO_REQUEST_WAIT, MEMO_CLASS_TRANSIENT, stream, event, 0, error);
}

MEMOI memo_status memoi_trace_mark(memo_trace* trace, const char* text, int64_t length,
                                   memo_error* error) {
    const int64_t begin = trace->text_bytes;
    memo_status status;
    MEMO_ASSERT(begin == 0 || !trace->text[begin - 1]); /* 4 */
    if (length == 0) return MEMOB_INVALID(error, "mark: the text is empty; pass one line");
    for (int64_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 32)
            return MEMOB_INVALID(
                error, "mark: the text has a control character (%d); pass one line of text",
                (int)(unsigned char)text[i]);
    }
    if (!memob_grow(&trace->text, begin, length + 1, 1)) return memob_no_memory(error, "a trace");
    memcpy(trace->text + begin, text, (size_t)length);
    trace->text[begin + length] = 0;
    status = memoi_trace_add(trace, MEMO_REQUEST_MARK, MEMO_CLASS_TRANSIENT, 0, begin, 0, error);
    if (!status) trace->text_bytes += length + 1;
    return status;
}

memo_status memo_trace_mark(memo_trace* trace, const char* text, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memoi_trace_mark(trace, text, text ? (int64_t)strlen(text) : 0, error);
}

/* ---- >>trace file -------------------------------------------------------------------------------
 * Knows: the text of a trace.  Knows nothing of plans.
 *
 * 1. A line that was read is the last request of the trace. */

/* Parses one request; the reader is at its first word. */
MEMOI memo_status memoi_trace_parse_request(memob_reader* reader, memo_trace* trace,
                                            memo_error* error) {
    const int version = reader->count >= 0;
    int32_t kind = MEMO_N_REQUEST_KINDS - 1;
    memob_record record;
    memo_request r = MEMO_ZERO(memo_request);
    int64_t freed_bytes;
    memo_error reason;
    char shown[40];
    memo_status status;
    while (kind >= 0 && !memob_word_is(reader, memoi_trace_records[kind].word)) kind--;
    if (kind < 0 || (version == 0 && kind >= MEMO_REQUEST_USE && kind <= MEMO_REQUEST_WAIT))
        return MEMOB_BAD_LINE(
            reader, error,
            version > 0
                ? "unknown request `%s`; malloc, free, use, record, wait, mark and end are valid"
                : "unknown request `%s`; malloc, free and mark are valid, and more if the file "
                  "begins with `memo trace 1`",
            memob_word_text(shown, reader));
    if (kind == MEMO_REQUEST_MARK) {
        const char* text = reader->word + reader->length; /* behind the blank, if there is one */
        text += text < reader->stop;
        status = memoi_trace_mark(trace, text, (int64_t)(reader->stop - text), &reason);
        return memob_reader_result(reader, status, &reason, error);
    }

    /* Version 0 has no classes and streams. */
    record = memoi_trace_records[kind];
    if (version == 0) record.n_values = 2;
    status = memoi_read_record(reader, &record, &r, error);
    if (status) return status;
    status = memoi_trace_add(trace, (memo_request_kind)kind, r.memory_class, r.stream, r.id,
                             r.size_bytes, &reason);
    if (status || kind != MEMO_REQUEST_FREE)
        return memob_reader_result(reader, status, &reason, error);

    MEMO_ASSERT(trace->requests[trace->n_requests - 1].id == r.id); /* 1 */
    freed_bytes = trace->requests[trace->n_requests - 1].size_bytes;
    if (r.size_bytes == freed_bytes) return MEMO_STATUS_OK;
    return MEMOB_BAD_LINE(reader, error,
                          "free of id %lld: wrong size (%lld); its malloc has %lld bytes",
                          (long long)r.id, (long long)r.size_bytes, (long long)freed_bytes);
}

MEMOI memo_status memoi_trace_parse(memob_reader* reader, memo_trace** trace, memo_error* error) {
    memo_status status = memo_trace_create(trace, error);
    if (status) return status;

    /* Only version 1 has a frame. */
    status = memob_read_frame(reader, "trace", 1, 1, error);
    while (!status && memob_next_entry(reader))
        status = memoi_trace_parse_request(reader, *trace, error);
    if (!status) status = memob_check_count(reader, (*trace)->n_requests, error);
    if (status) {
        memo_trace_destroy(*trace);
        *trace = NULL;
    }
    return status;
}

memo_status memo_trace_parse(const char* text, int64_t n_bytes, const char* name,
                             memo_trace** trace, memo_error* error) {
    memob_reader reader;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    *trace = NULL;
    status = memob_reader_init(&reader, text, n_bytes, name, error);
    return status ? status : memoi_trace_parse(&reader, trace, error);
}

memo_status memo_trace_read(const char* path, memo_trace** trace, memo_error* error) {
    memob_reader reader;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    *trace = NULL;
    MEMOB_REFUSE_NULL(error, "path", path);
    status = memob_reader_open(&reader, path, error);
    if (!status) status = memoi_trace_parse(&reader, trace, error);
    memob_reader_close(&reader);
    return status;
}

memo_status memo_trace_write(const memo_trace* trace, const char* path, memo_error* error) {
    memo_text text = MEMO_ZERO(memo_text);
    memo_status status = MEMO_STATUS_OK;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    MEMOB_REFUSE_NULL(error, "path", path);
    memo_text_put(&text, "memo trace 1\n");
    for (int64_t i = 0; i < trace->n_requests && !status; i++) {
        const memo_request* r = &trace->requests[i];
        if (r->kind == MEMO_REQUEST_MARK)
            memo_text_put(&text, "mark %s\n", trace->text + r->id);
        else
            status = memob_put_record(&text, &memoi_trace_records[r->kind], r, error);
    }
    return memob_write_lines(&text, trace->n_requests, path, status, error);
}

/* ---- >>marks ------------------------------------------------------------------------------------
 * Knows: what a mark says.  Knows nothing of files.
 *
 * 1. A mark of a forward, recompute or backward has a layer; no other has one. */

static const char* const memob_phase_names[] MEMO_UNUSED = {"", "", "forward", "recompute",
                                                            "backward"};
MEMOB_TABLE_OF(MEMO_N_PHASES, memob_phase_names);

memo_mark memo_mark_parse(const char* text) {
    memob_reader reader;
    const memo_mark none = {MEMO_PHASE_NONE, -1, 0};
    memo_mark mark = none;
    if (!text) return none;
    (void)memob_reader_init(&reader, text, (int64_t)strlen(text), "mark", NULL);
    if (!memoi_reader_next_line(&reader) || !memoi_next_word(&reader)) return none;

    /* "iteration" or "layer N PHASE", then "begin" or "end". */
    if (memob_word_is(&reader, "iteration"))
        mark.phase = MEMO_PHASE_ITERATION;
    else if (memob_word_is(&reader, "layer") && memoi_next_word(&reader) &&
             memoi_word_number(reader.word, reader.length, &mark.layer) && mark.layer >= 0 &&
             memoi_next_word(&reader))
        for (int i = MEMO_PHASE_FORWARD; i < MEMO_N_PHASES; i++)
            if (memob_word_is(&reader, memob_phase_names[i])) mark.phase = (memo_phase)i;
    if (mark.phase == MEMO_PHASE_NONE || !memoi_next_word(&reader)) return none;
    mark.is_end = memob_word_is(&reader, "end");
    if (!mark.is_end && !memob_word_is(&reader, "begin")) return none;
    MEMO_ASSERT((mark.layer >= 0) == (mark.phase >= MEMO_PHASE_FORWARD)); /* 1 */
    return memoi_next_word(&reader) ? none : mark;
}

/* The parsed mark of request i; of no phase if it is not a mark. */
MEMOI memo_mark memob_request_mark(const memo_trace* trace, int64_t i) {
    return memo_mark_parse(
        trace->requests[i].kind == MEMO_REQUEST_MARK ? trace->text + trace->requests[i].id : NULL);
}

/* ---- >>plan -------------------------------------------------------------------------------------
 * Knows: buffers, lifetimes, alignments, gaps, holds and waits.  Knows nothing of how offsets are
 * found.
 *
 * 1. Pieces of a buffer are its lifetime without its gaps, each of which is used up.
 * 2. A sweep begins and ends each piece once: the sum of live sizes returns to 0.
 * 3. A leaf of the tree is the rank of a live piece, and changes whenever it is set.
 * 4. Only buffers that have bytes can overlap.
 * 5. Sorting a plan keeps all buffers, in the order of their begins. */

#define MEMOI_ALIGNMENT_MAX ((int64_t)1 << 40)

/* What no plan is below: if the plan is proven, its peak. */
MEMOI int64_t memob_plan_bound(const memo_plan* plan) {
    return plan->proof == MEMO_PROOF_OPTIMAL ? plan->peak_bytes : plan->lower_bound_bytes;
}

/* Size of a buffer, rounded up to the plan's alignment. */
MEMOI int64_t memob_buffer_bytes(const memo_plan* plan, int64_t buffer) {
    return memob_align_up(plan->buffers[buffer].size_bytes, plan->alignment_bytes);
}

MEMOI int memoi_plan_is_alignment(int64_t alignment) {
    return alignment >= 1 && alignment <= MEMOI_ALIGNMENT_MAX && (alignment & (alignment - 1)) == 0;
}

MEMOI memo_status memoi_plan_check_alignment(int64_t alignment, memo_error* error) {
    if (memoi_plan_is_alignment(alignment)) return MEMO_STATUS_OK;
    return MEMOB_INVALID(
        error, "alignment_bytes: not a power of two up to 2^40 (%lld); 0 means the default",
        (long long)alignment);
}

memo_status memo_plan_create(int64_t n_buffers, int64_t n_gaps, int64_t alignment_bytes,
                             memo_plan** plan, memo_error* error) {
    memo_plan* made;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    if (alignment_bytes == 0) alignment_bytes = 1;
    if (n_buffers < 0 || n_gaps < 0)
        return MEMOB_INVALID(error,
                             "plan: n_buffers %lld or n_gaps %lld is negative; 0 or more are valid",
                             (long long)n_buffers, (long long)n_gaps);
    if (memoi_plan_check_alignment(alignment_bytes, error)) return MEMO_STATUS_INVALID_ARGUMENT;

    /* One owner for all arrays, so that a failure destroys what exists. */
    made = (memo_plan*)memob_calloc(1, sizeof(memo_plan));
    if (!made) return memob_no_memory(error, "a plan");
    made->buffers = (memo_buffer*)memob_calloc(n_buffers, sizeof(memo_buffer));
    made->gaps = (memo_gap*)memob_calloc(n_gaps, sizeof(memo_gap));
    if (!made->buffers || !made->gaps) {
        memo_plan_destroy(made);
        return memob_no_memory(error, "a plan");
    }

    made->n_buffers = n_buffers;
    made->n_gaps = n_gaps;
    made->alignment_bytes = alignment_bytes;
    *plan = made;
    return MEMO_STATUS_OK;
}

void memo_plan_destroy(memo_plan* plan) {
    if (!plan) return;
    MEMO_FREE(plan->buffers);
    MEMO_FREE(plan->gaps);
    MEMO_FREE(plan->holds);
    MEMO_FREE(plan->waits);
    MEMO_FREE(plan);
}

/* --- preparing --- */

MEMOI int memoi_plan_compare_gaps(const void* a, const void* b) {
    const memo_gap* x = (const memo_gap*)a;
    const memo_gap* y = (const memo_gap*)b;
    return x->buffer != y->buffer ? memob_compare(x->buffer, y->buffer)
                                  : memob_compare(x->begin, y->begin);
}

MEMOI int memoi_plan_compare_holds(const void* a, const void* b) {
    const memo_hold* x = (const memo_hold*)a;
    const memo_hold* y = (const memo_hold*)b;
    return x->buffer != y->buffer ? memob_compare(x->buffer, y->buffer)
                                  : memob_compare(x->lane, y->lane);
}

MEMOI int memoi_plan_compare_waits(const void* a, const void* b) {
    const memo_wait* x = (const memo_wait*)a;
    const memo_wait* y = (const memo_wait*)b;
    if (x->requested != y->requested) return memob_compare(x->requested, y->requested);
    if (x->to != y->to) return memob_compare(x->to, y->to);
    return x->from != y->from ? memob_compare(x->from, y->from) : memob_compare(x->freed, y->freed);
}

/* What is wrong with a wait alone; NULL: nothing. */
MEMOI const char* memoi_plan_wait_fault(const memo_plan* plan, const memo_wait* wait) {
    const int has_streams = memob_is_within(wait->from, 0, MEMOB_STREAMS - 1) &&
                            memob_is_within(wait->to, 0, MEMOB_STREAMS - 1);
    if (!memob_is_within(wait->freed, 0, plan->n_buffers - 1) ||
        !memob_is_within(wait->requested, 0, plan->n_buffers - 1))
        return "a buffer is out of range; indices into plan.buffers are valid";
    const memo_buffer* freed = &plan->buffers[wait->freed];
    const memo_buffer* requested = &plan->buffers[wait->requested];
    const memob_rule rules[] = {
        {freed->memory_class == MEMO_CLASS_PERSISTENT ||
             requested->memory_class == MEMO_CLASS_PERSISTENT || freed->end < plan->body_begin,
         "a buffer is persistent, or is freed before the body; name two of the body"},
        {freed->end > requested->begin, "the request comes before the free"},
        {!has_streams || wait->from == wait->to,
         "streams are equal or out of range; two of 0 to 63 are valid"},
        {!memob_is_in(wait->cost_s, 0, 9000), "its cost is not 0 to 9000 s"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* The alignment of a buffer's offset: its own, or the plan's. */
MEMOI int64_t memob_buffer_alignment(const memo_plan* plan, int64_t i) {
    const int64_t own_bytes = plan->buffers[i].alignment_bytes;
    return own_bytes ? own_bytes : plan->alignment_bytes;
}

/* What is wrong with buffer i alone; NULL: nothing. */
MEMOI const char* memoi_plan_buffer_fault(const memo_plan* plan, int64_t i) {
    const memo_buffer* buffer = &plan->buffers[i];
    const int64_t alignment = memob_buffer_alignment(plan, i);
    const int is_aligned =
        memoi_plan_is_alignment(alignment) && buffer->offset_bytes % alignment == 0;
    const memob_rule rules[] = {
        {!memob_is_within(buffer->size_bytes, 0, MEMOB_BYTES_MAX),
         "its size is out of range; 0 to 2^62 bytes are valid"},
        {buffer->begin < 0 || buffer->end > MEMOB_BYTES_MAX,
         "its lifetime is out of range; 0 to 2^62 are valid"},
        {buffer->begin >= buffer->end, "its lifetime is empty; end must be after begin"},
        {!memoi_plan_is_alignment(alignment) || alignment < plan->alignment_bytes,
         "its alignment is invalid; powers of two from the plan's up to 2^40 are valid"},
        {!memob_is_within(buffer->stream, 0, MEMOB_STREAMS - 1),
         "its stream is out of range; 0 to 63 are valid"},
        {buffer->lane < 0, "its lane is negative; 0 or more are valid"},
        {!memob_is_within((int)buffer->memory_class, 0, MEMO_N_CLASSES - 1),
         "its class is not a memo_class"},
        {buffer->is_fixed &&
             (!is_aligned || !memob_is_within(buffer->offset_bytes, 0, MEMOB_BYTES_MAX)),
         "its fixed offset is negative, not aligned, or beyond 2^62"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* *culprit: the buffer with the error, or -1, here and in the next rooms. */
MEMOI MEMOB_NOINLINE memo_status memoi_plan_buffer_error(const memo_plan* plan, int64_t i,
                                                         int64_t* culprit, memo_error* error,
                                                         const char* fault) {
    MEMO_ASSERT(i >= 0 && i < plan->n_buffers);
    *culprit = i;
    return MEMOB_INVALID(error, "buffer %lld (id %lld): %s", (long long)i,
                         (long long)plan->buffers[i].id, fault);
}

MEMOI memo_status memoi_plan_check_index(const memo_plan* plan, const char* list, int64_t i,
                                         int64_t buffer, memo_error* error) {
    if (buffer >= 0 && buffer < plan->n_buffers) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error,
                         "plan.%s[%lld].buffer: out of range (%lld); the plan has %lld buffers",
                         list, (long long)i, (long long)buffer, (long long)plan->n_buffers);
}

/* All conditions of a problem except the order. */
MEMOI memo_status memoi_plan_check(const memo_plan* plan, int64_t* culprit, memo_error* error) {
    int64_t bytes, total = 0;
    *culprit = -1;
    if (memoi_plan_check_alignment(plan->alignment_bytes, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Buffers: each alone, and the sum of sizes so far. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const char* fault = memoi_plan_buffer_fault(plan, i);
        if (fault) return memoi_plan_buffer_error(plan, i, culprit, error, fault);
        bytes = memob_buffer_bytes(plan, i);
        if (bytes > MEMOB_BYTES_MAX - total ||
            (plan->buffers[i].is_fixed && plan->buffers[i].offset_bytes > MEMOB_BYTES_MAX - bytes))
            return memoi_plan_buffer_error(plan, i, culprit, error,
                                           "sizes up to this buffer sum to more than 2^62");
        total += bytes;
    }

    /* Gaps: inside the lifetime of a buffer that exists. */
    for (int64_t i = 0; i < plan->n_gaps; i++) {
        const memo_gap* gap = &plan->gaps[i];
        if (memoi_plan_check_index(plan, "gaps", i, gap->buffer, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (gap->begin >= gap->end || gap->begin < plan->buffers[gap->buffer].begin ||
            gap->end > plan->buffers[gap->buffer].end)
            return memoi_plan_buffer_error(plan, gap->buffer, culprit, error,
                                           "a gap is empty or outside the lifetime");
    }

    /* Holds: after the lifetime; never together with gaps. */
    if (plan->n_holds > 0 && plan->n_gaps > 0)
        return MEMOB_INVALID(error, "plan.holds: the plan has gaps and %lld holds; remove one kind",
                             (long long)plan->n_holds);
    for (int64_t i = 0; i < plan->n_holds; i++) {
        const memo_hold* hold = &plan->holds[i];
        if (memoi_plan_check_index(plan, "holds", i, hold->buffer, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (hold->lane < 0 || hold->until > MEMOB_BYTES_MAX ||
            hold->until <= plan->buffers[hold->buffer].end)
            return memoi_plan_buffer_error(
                plan, hold->buffer, culprit, error,
                "a hold must end after the lifetime and not above 2^62, and its "
                "lane must be 0 or more");
    }
    for (int64_t i = 0; i < plan->n_waits; i++) {
        const char* fault = memoi_plan_wait_fault(plan, &plan->waits[i]);
        if (fault) return MEMOB_INVALID(error, "plan.waits[%lld]: %s", (long long)i, fault);
    }
    return MEMO_STATUS_OK;
}

/* Gaps, holds and waits must be in order. */
MEMOI memo_status memoi_plan_check_order(const memo_plan* plan, int64_t* culprit,
                                         memo_error* error) {
    for (int64_t i = 1; i < plan->n_holds; i++)
        if (memoi_plan_compare_holds(&plan->holds[i - 1], &plan->holds[i]) >= 0)
            return memoi_plan_buffer_error(plan, plan->holds[i].buffer, culprit, error,
                                           "its holds are not in order, or two have the same lane; "
                                           "memo_plan_prepare sorts them");
    for (int64_t i = 1; i < plan->n_gaps; i++) {
        const memo_gap* gap = &plan->gaps[i];
        if (memoi_plan_compare_gaps(gap - 1, gap) > 0)
            return memoi_plan_buffer_error(
                plan, gap->buffer, culprit, error,
                "its gaps are not in order; memo_plan_prepare sorts them");
        if (gap[-1].buffer == gap->buffer && gap[-1].end > gap->begin)
            return memoi_plan_buffer_error(plan, gap->buffer, culprit, error, "two gaps overlap");
    }
    for (int64_t i = 1; i < plan->n_waits; i++)
        if (memoi_plan_compare_waits(&plan->waits[i - 1], &plan->waits[i]) >= 0)
            return MEMOB_INVALID(error,
                                 "plan.waits[%lld]: not in order, or equal to the one before; "
                                 "memo_plan_prepare sorts them",
                                 (long long)i);
    return MEMO_STATUS_OK;
}

/* --- a sweep over time ---
 *
 * Live pieces are kept by address, as a set of ranks: a complete binary tree of flags, each the
 * "or" of its two children.  A piece that starts to live overlaps a live piece only if it overlaps
 * its neighbor above or below. */

MEMOI void memoi_plan_ranks_set(unsigned char* tree, int64_t n_leaves, int64_t rank, int is_live) {
    int64_t node = n_leaves + rank;
    MEMO_ASSERT(rank >= 0 && rank < n_leaves);
    MEMO_ASSERT(tree[node] == !is_live); /* 3 */
    tree[node] = (unsigned char)is_live;
    for (node /= 2; node >= 1; node /= 2)
        tree[node] = (unsigned char)(tree[2 * node] | tree[2 * node + 1]);
}

/* The nearest rank in the set, above (direction 1) or below (0); -1: there is none. */
MEMOI int64_t memoi_plan_ranks_next(const unsigned char* tree, int64_t n_leaves, int64_t rank,
                                    int64_t direction) {
    int64_t node = n_leaves + rank;
    while (node > 1 && (node % 2 == direction || !tree[node ^ 1])) node /= 2;
    if (node <= 1) return -1;
    node ^= 1;
    while (node < n_leaves)
        node = 2 * node + (tree[2 * node + 1 - direction] ? 1 - direction : direction);
    MEMO_ASSERT(tree[node]); /* 3 */
    MEMO_ASSERT(direction ? node > n_leaves + rank
                          : node < n_leaves + rank); /* nearest on its side */
    return node - n_leaves;
}

/* A part of a buffer's lifetime in which it occupies the same bytes. */
typedef struct memob_piece {
    int64_t buffer, begin, end, bytes;
    int64_t rank; /* by offset; -1: it is not checked */
} memob_piece;

/* Lists the pieces of all buffers that have bytes, at most n_buffers + n_gaps, in the order of
 * buffers; returns how many. */
MEMOI int64_t memob_plan_pieces(const memo_plan* plan, memob_piece* pieces) {
    int64_t gap = 0, n = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        memob_piece piece = {i, 0, buffer->begin, 0, 0};
        while (piece.end < buffer->end) {
            const memo_gap* next = &plan->gaps[gap];
            const int has_gap = gap < plan->n_gaps && next->buffer == i;
            const int is_gap = has_gap && next->begin <= piece.end;
            piece.begin = piece.end;
            piece.end = buffer->end;
            if (has_gap) piece.end = is_gap ? next->end : next->begin;
            piece.bytes = is_gap ? 0 : memob_buffer_bytes(plan, i);
            gap += is_gap;
            MEMO_ASSERT(piece.begin < piece.end); /* 1 */
            if (piece.bytes > 0) pieces[n++] = piece;
        }
    }
    MEMO_ASSERT(gap == plan->n_gaps && n <= plan->n_buffers + plan->n_gaps); /* 1 */
    return n;
}

/* Do the first bytes of two buffers, neither of them 0, share one? */
MEMOI int memoi_plan_overlap(const memo_plan* plan, int64_t a, int64_t a_bytes, int64_t b,
                             int64_t b_bytes) {
    int64_t a_begin = plan->buffers[a].offset_bytes, b_begin = plan->buffers[b].offset_bytes;
    MEMO_ASSERT(a_bytes > 0 && b_bytes > 0); /* 4 */
    return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

/* Finds overlaps in time and address; with check_offsets 0, only of fixed buffers.  *bound: the
 * largest sum of live sizes, and at least the end of each fixed buffer. */
MEMOI memo_status memoi_plan_sweep(const memo_plan* plan, int check_offsets, int64_t* bound,
                                   int64_t* culprit, memo_error* error) {
    int64_t n_most = plan->n_buffers + plan->n_gaps, n, n_leaves = 1, n_placed = 0, live = 0, i;
    memo_status status = MEMO_STATUS_OK;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_piece* pieces = MEMOB_ARRAY(&arrays, memob_piece, n_most);
    memob_keyed* order = MEMOB_ARRAY(&arrays, memob_keyed, n_most);
    memob_keyed* events = MEMOB_ARRAY(&arrays, memob_keyed, 2 * n_most);
    unsigned char* tree;
    while (n_leaves < n_most) n_leaves *= 2;
    tree = MEMOB_ARRAY(&arrays, unsigned char, 2 * n_leaves);
    if (arrays.failed) {
        memob_arrays_free(&arrays);
        return memob_no_memory(error, "a sweep over a plan");
    }

    /* Events by time.  Ends come first at equal times, because lifetimes are half-open. */
    n = memob_plan_pieces(plan, pieces);
    for (i = 0; i < n; i++) {
        events[i] = memob_keyed_of(pieces[i].end, i);
        events[n + i] = memob_keyed_of(pieces[i].begin, n + i);
    }
    memob_keyed_sort(events, 2 * n);

    /* Ranks by address. */
    for (i = 0; i < n; i++) {
        pieces[i].rank = -1;
        if (!check_offsets && !plan->buffers[pieces[i].buffer].is_fixed) continue;
        order[n_placed++] = memob_keyed_of(plan->buffers[pieces[i].buffer].offset_bytes, i);
    }
    qsort(order, (size_t)n_placed, sizeof(memob_keyed), memob_keyed_compare);
    for (i = 0; i < n_placed; i++) pieces[order[i].index].rank = i;

    for (i = 0, *bound = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].is_fixed)
            *bound = memob_max(*bound, plan->buffers[i].offset_bytes + memob_buffer_bytes(plan, i));
    for (i = 0; i < 2 * n && !status; i++) {
        int begins = events[i].index >= n, direction;
        const memob_piece* piece = &pieces[events[i].index - (begins ? n : 0)];
        live += begins ? piece->bytes : -piece->bytes;
        MEMO_ASSERT(live >= 0); /* 2 */
        *bound = memob_max(*bound, live);
        if (piece->rank < 0) continue;
        memoi_plan_ranks_set(tree, n_leaves, piece->rank, begins);
        for (direction = 0; begins && direction < 2 && !status; direction++) {
            int64_t rank = memoi_plan_ranks_next(tree, n_leaves, piece->rank, direction);
            const memob_piece* other = rank < 0 ? NULL : &pieces[order[rank].index];
            if (!other ||
                !memoi_plan_overlap(plan, piece->buffer, piece->bytes, other->buffer, other->bytes))
                continue;
            *culprit = piece->buffer;
            status = MEMOB_INVALID(
                error,
                "buffers %lld (id %lld) and %lld (id %lld) both live at time %lld and share bytes: "
                "offsets %lld and %lld",
                (long long)other->buffer, (long long)plan->buffers[other->buffer].id,
                (long long)piece->buffer, (long long)plan->buffers[piece->buffer].id,
                (long long)piece->begin, (long long)plan->buffers[other->buffer].offset_bytes,
                (long long)plan->buffers[piece->buffer].offset_bytes);
        }
    }
    MEMO_ASSERT(status || live == 0); /* 2 */
    memob_arrays_free(&arrays);
    return status;
}

/* --- order --- */

/* Sorts buffers by begin, stably; gaps, holds and waits follow. */
MEMOI memo_status memoi_plan_order(memo_plan* plan, memo_error* error) {
    int64_t n = plan->n_buffers;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_keyed* order = MEMOB_ARRAY(&arrays, memob_keyed, n);
    memo_buffer* sorted = MEMOB_ARRAY(&arrays, memo_buffer, n);
    int64_t* place = MEMOB_ARRAY(&arrays, int64_t, n);
    if (arrays.failed) {
        memob_arrays_free(&arrays);
        return memob_no_memory(error, "sorting a plan");
    }

    for (int64_t i = 0; i < n; i++) order[i] = memob_keyed_of(plan->buffers[i].begin, i);
    memob_keyed_sort(order, n);
    for (int64_t i = 0; i < n; i++) {
        sorted[i] = plan->buffers[order[i].index];
        MEMO_ASSERT(i == 0 || sorted[i - 1].begin <= sorted[i].begin); /* 5 */
        place[order[i].index] = i;
    }
    for (int64_t i = 0; i < plan->n_gaps; i++) plan->gaps[i].buffer = place[plan->gaps[i].buffer];
    for (int64_t i = 0; i < plan->n_holds; i++)
        plan->holds[i].buffer = place[plan->holds[i].buffer];
    for (int64_t i = 0; i < plan->n_waits; i++) {
        plan->waits[i].freed = place[plan->waits[i].freed];
        plan->waits[i].requested = place[plan->waits[i].requested];
    }

    /* The array stays the caller's, so copy back. */
    memcpy(plan->buffers, sorted, (size_t)n * sizeof(memo_buffer));
    memob_arrays_free(&arrays);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_plan_sort(memo_plan* plan, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t i = 1;
    while (i < plan->n_buffers && plan->buffers[i - 1].begin <= plan->buffers[i].begin) i++;
    if (i < plan->n_buffers) status = memoi_plan_order(plan, error);
    qsort(plan->gaps, (size_t)plan->n_gaps, sizeof(memo_gap), memoi_plan_compare_gaps);
    if (plan->n_holds > 0)
        qsort(plan->holds, (size_t)plan->n_holds, sizeof(memo_hold), memoi_plan_compare_holds);
    if (plan->n_waits > 0)
        qsort(plan->waits, (size_t)plan->n_waits, sizeof(memo_wait), memoi_plan_compare_waits);
    return status;
}

memo_status memo_plan_prepare(memo_plan* plan, memo_error* error) {
    int64_t culprit;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    status = memoi_plan_check(plan, &culprit, error);
    if (!status) status = memoi_plan_sort(plan, error);
    if (!status) status = memoi_plan_check_order(plan, &culprit, error);
    if (!status) status = memoi_plan_sweep(plan, 0, &plan->lower_bound_bytes, &culprit, error);
    if (status) return status;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        plan->n_times = memob_max(plan->n_times, plan->buffers[i].end);
    return memob_check_integer("plan", "body_begin", plan->body_begin, 0, plan->n_times, error);
}

/* ---- >>plan from trace --------------------------------------------------------------------------
 * Knows: requests, streams, and who may use a buffer when.  Knows nothing of offsets.
 *
 * 1. A clock points to an earlier request, and each advance raises it, in the order of requests.
 * 2. A lane has a stream; its mallocs are adjacent.
 * 3. A hold lasts beyond the lifetime of its buffer, up to a malloc that it forbids.
 * 4. Each malloc and each free takes one moment; a buffer ends once.
 * 5. All bought waits are made, each before its request.
 *
 * Vector clocks: all that stream s enqueues from now on comes after some request of stream u, the
 * clock of s for u.  Only waits advance it.  The advances are kept, to find out later from which
 * request on stream s is behind a given use on stream u. */

typedef struct memoi_advances {
    memob_keyed* list; /* from request `index` on, the clock is `key` */
    int64_t n;
} memoi_advances;

/* Buffers that the same streams may use as soon as they are requested. */
typedef struct memoi_lane {
    uint64_t streams;
    int32_t name;
    int64_t first, n; /* among memoi_clocks.mallocs */
} memoi_lane;

typedef struct memoi_clocks {
    int64_t n;                /* streams are 0 to n - 1 */
    memoi_advances* advances; /* (n, n): the clock of each stream for each */
    /* A malloc's latest use; the use before a use, or -1; the latest record of an event, at its
     * first record. */
    int64_t* latest;
    uint64_t* starts; /* of each request that is a malloc: its own stream, and those that use the
                         buffer without having waited for the malloc */
    const memo_plan* buyer; /* its waits come on top of the trace's; NULL: there are none */
    int64_t* request_at;    /* of each time */
    int64_t next_wait;
    memoi_lane* lanes;
    int64_t n_lanes;
    memob_keyed* mallocs; /* requests, by lane */
    memob_arrays arrays;  /* all that do not grow */
} memoi_clocks;

/* The clock of stream s for stream u at request i, without what i itself advances; -1: none. */
MEMOI int64_t memoi_clocks_at(const memoi_clocks* clocks, int64_t s, int64_t u, int64_t i) {
    const memoi_advances* advances = &clocks->advances[s * clocks->n + u];
    int64_t k = advances->n;
    if (s == u) return i;
    while (k > 0 && advances->list[k - 1].index >= i) k--; /* seldom far back */
    return k > 0 ? advances->list[k - 1].key : -1;
}

/* From request i on, stream `to` comes after all that stream `from` enqueued before request
 * `record`. */
MEMOI memo_status memoi_clocks_wait(memoi_clocks* clocks, int64_t i, int64_t to, int64_t from,
                                    int64_t record, memo_error* error) {
    for (int64_t u = 0; u < clocks->n; u++) {
        memoi_advances* advances = &clocks->advances[to * clocks->n + u];
        const int64_t clock = memoi_clocks_at(clocks, from, u, record);
        if (u == to || clock <= memoi_clocks_at(clocks, to, u, INT64_MAX)) continue;
        if (!memob_grow(&advances->list, advances->n, 1, sizeof(memob_keyed)))
            return memob_no_memory(error, "the order of streams");
        MEMO_ASSERT(clock <= i);                                                   /* 1 */
        MEMO_ASSERT(!advances->n || (advances->list[advances->n - 1].index <= i && /* 1 */
                                     advances->list[advances->n - 1].key < clock));
        advances->list[advances->n++] = memob_keyed_of(clock, i);
    }
    return MEMO_STATUS_OK;
}

/* Makes the bought waits right before request i, at `time`: it advances clocks from i - 1 on. */
MEMOI memo_status memoi_clocks_buy(memoi_clocks* clocks, int64_t i, int64_t time,
                                   memo_error* error) {
    const memo_plan* buyer = clocks->buyer;
    memo_status status = MEMO_STATUS_OK;
    for (; buyer && clocks->next_wait < buyer->n_waits && !status; clocks->next_wait++) {
        const memo_wait* wait = &buyer->waits[clocks->next_wait];
        if (buyer->buffers[wait->requested].begin > time) break;
        status = memoi_clocks_wait(clocks, i - 1, wait->to, wait->from,
                                   clocks->request_at[buyer->buffers[wait->freed].end], error);
    }
    return status;
}

MEMOI memo_status memoi_clocks_run(memoi_clocks* clocks, const memo_trace* trace,
                                   memo_error* error) {
    const memob_map* events = &memoi_trace_book_of(trace)->events;
    int64_t time = 0;
    memob_arrays* arrays = &clocks->arrays;
    clocks->advances = MEMOB_ARRAY(arrays, memoi_advances, clocks->n * clocks->n);
    clocks->latest = MEMOB_ARRAY(arrays, int64_t, trace->n_requests);
    clocks->starts = MEMOB_ARRAY(arrays, uint64_t, trace->n_requests);
    clocks->mallocs = MEMOB_ARRAY(arrays, memob_keyed, trace->n_buffers);
    clocks->request_at = MEMOB_ARRAY(arrays, int64_t, trace->n_requests);
    if (arrays->failed) return memob_no_memory(error, "the order of streams");

    /* In the order of enqueueing: a wait takes over the clock that the event's stream had at the
     * latest record. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        const memo_request* request = &trace->requests[i];
        int64_t s = request->stream, origin = memob_request_origin(trace, i);
        memo_status status = MEMO_STATUS_OK;
        if (request->kind == MEMO_REQUEST_MALLOC || request->kind == MEMO_REQUEST_FREE) {
            status = memoi_clocks_buy(clocks, i, time, error);
            clocks->request_at[time++] = i;
        }
        if (request->kind == MEMO_REQUEST_MALLOC) {
            clocks->starts[i] = (uint64_t)1 << s;
            clocks->latest[i] = -1;
        } else if (request->kind == MEMO_REQUEST_USE) {
            /* A stream that uses the buffer before a wait for the owner's request may use the
             * buffer directly after the request. */
            int64_t owner = trace->requests[origin].stream;
            clocks->latest[i] = clocks->latest[origin];
            clocks->latest[origin] = i;
            if (s != owner && memoi_clocks_at(clocks, s, owner, i) < origin)
                clocks->starts[origin] |= (uint64_t)1 << s;
        } else if (request->kind == MEMO_REQUEST_RECORD) {
            clocks->latest[memob_map_get(events, request->id)] = i;
        } else if (request->kind == MEMO_REQUEST_WAIT) {
            const int64_t record = clocks->latest[memob_map_get(events, request->id)];
            status = memoi_clocks_wait(clocks, i, s, trace->requests[record].stream, record, error);
        }
        if (status) return status;
    }
    MEMO_ASSERT(!clocks->buyer || clocks->next_wait == clocks->buyer->n_waits); /* 5 */
    return MEMO_STATUS_OK;
}

/* The lane of a set of streams, created if necessary; -1: no memory. */
MEMOI int64_t memoi_clocks_lane_find(memoi_clocks* clocks, uint64_t streams) {
    const int64_t n = clocks->n_lanes, first = __builtin_ctzll(streams);
    MEMO_ASSERT(streams); /* 2 */
    for (int64_t lane = 0; lane < n; lane++)
        if (clocks->lanes[lane].streams == streams) return lane;
    if (!memob_grow(&clocks->lanes, n, 1, sizeof(memoi_lane))) return -1;
    clocks->lanes[n].streams = streams;
    clocks->lanes[n].name = (int32_t)(streams >> first == 1 ? first : MEMOB_STREAMS + n);
    return clocks->n_lanes++;
}

/* Gives each buffer a lane, and each lane its mallocs in order.  Buffers without bytes, and buffers
 * that live from 0 on, are not listed. */
MEMOI memo_status memoi_clocks_lanes(memoi_clocks* clocks, const memo_trace* trace,
                                     const int64_t* number, memo_plan* plan, memo_error* error) {
    int64_t lane, n = 0;

    /* Equal sets of streams share a lane. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_buffer* buffer = &plan->buffers[number[i]];
        if (trace->requests[i].kind != MEMO_REQUEST_MALLOC) continue;
        lane = memoi_clocks_lane_find(clocks, clocks->starts[i]);
        if (lane < 0) return memob_no_memory(error, "the order of streams");
        buffer->lane = clocks->lanes[lane].name;
        if (buffer->size_bytes == 0 ||
            (buffer->memory_class == MEMO_CLASS_PERSISTENT && buffer->begin >= plan->body_begin))
            continue;
        clocks->mallocs[n++] = memob_keyed_of(lane, i);
    }

    memob_keyed_sort(clocks->mallocs, n);
    while (n-- > 0) {
        lane = clocks->mallocs[n].key;
        MEMO_ASSERT(!clocks->lanes[lane].n || clocks->lanes[lane].first == n + 1); /* 2 */
        clocks->lanes[lane].first = n;
        clocks->lanes[lane].n++;
        clocks->mallocs[n].key = clocks->mallocs[n].index;
    }
    return MEMO_STATUS_OK;
}

/* How many of n entries, in the order of keys, have a key up to this one. */
MEMOI int64_t memoi_clocks_count_up_to(const memob_keyed* list, int64_t n, int64_t key) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list[middle].key > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The request from which on stream s comes after request `use` on stream used_by; INT64_MAX:
 * never. */
MEMOI int64_t memoi_clocks_behind(const memoi_clocks* clocks, int64_t s, int64_t used_by,
                                  int64_t use) {
    const memoi_advances* advances = &clocks->advances[s * clocks->n + used_by];
    int64_t k;
    if (s == used_by) return use;
    k = memoi_clocks_count_up_to(advances->list, advances->n, use - 1);
    return k < advances->n ? advances->list[k].index : INT64_MAX;
}

/* Adds the holds of the buffer that request i frees. */
MEMOI memo_status memoi_plan_hold(memo_plan* plan, const memoi_clocks* clocks,
                                  const memo_trace* trace, const int64_t* number, int64_t i,
                                  memo_error* error) {
    const int64_t origin = memob_request_origin(trace, i), buffer = number[origin];
    int64_t behind[MEMOB_STREAMS], s, k, use;

    /* The request from which on each stream comes after all uses. */
    for (s = 0; s < clocks->n; s++)
        behind[s] = memoi_clocks_behind(clocks, s, plan->buffers[buffer].stream, i);
    for (use = clocks->latest[origin]; use >= 0; use = clocks->latest[use]) {
        int64_t used_by = trace->requests[use].stream;
        for (s = 0; s < clocks->n; s++)
            behind[s] = memob_max(behind[s], memoi_clocks_behind(clocks, s, used_by, use));
    }

    /* A lane comes after them when its last stream does.  Mallocs between the free and then, up to
     * the last, are held; a lane seldom has one. */
    for (k = 0; k < clocks->n_lanes; k++) {
        const memoi_lane* lane = &clocks->lanes[k];
        const memob_keyed *mallocs = clocks->mallocs + lane->first, *last;
        const int64_t next = memoi_clocks_count_up_to(mallocs, lane->n, i);
        uint64_t streams = lane->streams;
        int64_t at = 0;
        for (; streams; streams &= streams - 1)
            at = memob_max(at, behind[__builtin_ctzll(streams)]);
        if (next == lane->n || at < mallocs[next].index) continue;
        if (!memob_grow(&plan->holds, plan->n_holds, 1, sizeof(memo_hold)))
            return memob_no_memory(error, "the order of streams");
        last = mallocs + memoi_clocks_count_up_to(mallocs, lane->n, at) - 1;
        MEMO_ASSERT(last >= mallocs + next && last->index <= at);                           /* 3 */
        MEMO_ASSERT(plan->buffers[number[last->index]].begin >= plan->buffers[buffer].end); /* 3 */
        plan->holds[plan->n_holds].buffer = buffer;
        plan->holds[plan->n_holds].lane = lane->name;
        plan->holds[plan->n_holds++].until = plan->buffers[number[last->index]].begin + 1;
    }
    return MEMO_STATUS_OK;
}

/* Sets lanes and holds.  number: of each request that is a malloc, its buffer. */
MEMOI memo_status memoi_plan_streams(memo_plan* plan, const memo_trace* trace,
                                     const int64_t* number, const memo_plan* buyer,
                                     memo_error* error) {
    memoi_clocks clocks = MEMO_ZERO(memoi_clocks);
    memo_status status;
    clocks.buyer = buyer;
    for (int64_t i = 0; i < trace->n_requests; i++)
        clocks.n = memob_max(clocks.n, trace->requests[i].stream + 1);
    for (int64_t i = 0; buyer && i < buyer->n_waits; i++)
        clocks.n = memob_max(clocks.n, memob_max(buyer->waits[i].from, buyer->waits[i].to) + 1);
    if (clocks.n <= 1) return MEMO_STATUS_OK;
    status = memoi_clocks_run(&clocks, trace, error);
    if (!status) status = memoi_clocks_lanes(&clocks, trace, number, plan, error);
    for (int64_t i = 0; i < trace->n_requests && !status; i++) {
        int64_t buffer = number[memob_max(memob_request_origin(trace, i), 0)];
        if (trace->requests[i].kind == MEMO_REQUEST_FREE && plan->buffers[buffer].size_bytes > 0 &&
            plan->buffers[buffer].memory_class != MEMO_CLASS_PERSISTENT)
            status = memoi_plan_hold(plan, &clocks, trace, number, i, error);
    }

    for (int64_t i = 0; clocks.advances && i < clocks.n * clocks.n; i++)
        MEMO_FREE(clocks.advances[i].list);
    MEMO_FREE(clocks.lanes);
    memob_arrays_free(&clocks.arrays);
    return status;
}

/* Sets lifetimes by the order of requests alone. */
MEMOI void memoi_plan_fill(memo_plan* plan, const memo_trace* trace, int64_t* number) {
    int64_t time = 0, n = 0, has_body = 0;

    /* Each malloc and each free takes a moment. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        const memo_request* request = &trace->requests[i];
        if (request->kind == MEMO_REQUEST_MALLOC) {
            memo_buffer* buffer = &plan->buffers[n];
            number[i] = n++;
            buffer->id = request->id;
            buffer->size_bytes = request->size_bytes;
            buffer->begin = time++;
            buffer->end = -1;
            buffer->stream = buffer->lane = request->stream;
            buffer->memory_class = request->memory_class;
        } else if (request->kind == MEMO_REQUEST_FREE) {
            MEMO_ASSERT(plan->buffers[number[memob_request_origin(trace, i)]].end == -1); /* 4 */
            plan->buffers[number[memob_request_origin(trace, i)]].end = time++;
        } else if (request->kind == MEMO_REQUEST_MARK && !has_body) {
            memo_mark mark = memob_request_mark(trace, i);
            if (mark.phase == MEMO_PHASE_ITERATION && !mark.is_end) {
                plan->body_begin = time;
                has_body = 1;
            }
        }
    }
    MEMO_ASSERT(n == plan->n_buffers); /* 4 */
    plan->n_times = time;
}

/* Finds skeletal buffers by the marks of layers, from the last request to the first. */
MEMOI void memoi_plan_classify(memo_plan* plan, const memo_trace* trace, const int64_t* number) {
    int64_t time = plan->n_times, next_backward = INT64_MAX; /* a time */
    int is_forward = 0;
    for (int64_t i = trace->n_requests - 1; i >= 0; i--) {
        const memo_request_kind kind = trace->requests[i].kind;
        const memo_mark mark = memob_request_mark(trace, i);
        memo_buffer* buffer = &plan->buffers[number[i]]; /* of a malloc */
        if (mark.phase == MEMO_PHASE_FORWARD) is_forward = mark.is_end;
        if (mark.phase > MEMO_PHASE_FORWARD) next_backward = time;
        time -= kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
        if (kind == MEMO_REQUEST_MALLOC && buffer->memory_class == MEMO_CLASS_TRANSIENT &&
            is_forward && buffer->end >= next_backward)
            buffer->memory_class = MEMO_CLASS_SKELETAL;
    }
    MEMO_ASSERT(time == 0); /* 4 */
}

MEMOI memo_status memob_plan_of_other_trace(memo_error* error) {
    return MEMOB_INVALID(error, "plan: its buffers are not those of the trace; pass the trace that "
                                "the plan was made from");
}

/* The plan of a trace.  With a buyer, a plan of the same trace, its waits shorten holds. */
MEMOI memo_status memob_plan_make(const memo_trace* trace, int64_t alignment_bytes,
                                  const memo_plan* buyer, memo_plan** plan, memo_error* error) {
    int64_t* number; /* of each request that is a malloc: its buffer */
    memo_status status =
        memo_plan_create(trace->n_buffers, 0, alignment_bytes ? alignment_bytes : 512, plan, error);
    if (status) return status;

    /* Lifetimes and holds by the order of requests. */
    number = (int64_t*)memob_calloc(trace->n_requests, 8);
    if (number) {
        memoi_plan_fill(*plan, trace, number);
        memoi_plan_classify(*plan, trace, number);
        if (buyer && (buyer->n_buffers != trace->n_buffers || buyer->n_times != (*plan)->n_times))
            status = memob_plan_of_other_trace(error);
        if (!status) status = memoi_plan_streams(*plan, trace, number, buyer, error);
        MEMO_FREE(number);
    } else {
        status = memob_no_memory(error, "a plan");
    }

    /* Persistent buffers outlive their frees, because the body repeats. */
    for (int64_t i = 0; i < (*plan)->n_buffers && !status; i++) {
        memo_buffer* buffer = &(*plan)->buffers[i];
        int is_before = buffer->begin < (*plan)->body_begin;
        if (is_before && buffer->end < 0) buffer->memory_class = MEMO_CLASS_PERSISTENT;
        if (buffer->end < 0 || buffer->memory_class == MEMO_CLASS_PERSISTENT)
            buffer->end = (*plan)->n_times;
        if (buffer->memory_class == MEMO_CLASS_PERSISTENT && !is_before) buffer->begin = 0;
    }
    if (!status) status = memo_plan_prepare(*plan, error);
    if (status) {
        memo_plan_destroy(*plan);
        *plan = NULL;
    }
    return status;
}

memo_status memo_plan_from_trace(const memo_trace* trace, int64_t alignment_bytes, memo_plan** plan,
                                 memo_error* error) {
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "trace", trace);
    return memob_plan_make(trace, alignment_bytes, NULL, plan, error);
}

/* ---- >>plan validation --------------------------------------------------------------------------
 * Knows: a plan alone.  Knows nothing of planners, and shares no code with them.
 *
 * 1. A culprit is a buffer of the plan, or -1.
 * 2. The buffers of a lane are looked at from the first on that begins at a time or later. */

MEMOI memo_status memoi_plan_check_offsets(const memo_plan* plan, int64_t* culprit,
                                           memo_error* error) {
    int64_t peak = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        const int64_t most = MEMOB_BYTES_MAX - memob_buffer_bytes(plan, i);
        if (!memob_is_within(buffer->offset_bytes, 0, most) ||
            buffer->offset_bytes % memob_buffer_alignment(plan, i))
            return memoi_plan_buffer_error(
                plan, i, culprit, error,
                "its offset is negative, not aligned, or ends beyond 2^62");
        peak = memob_max(peak, buffer->offset_bytes + memob_buffer_bytes(plan, i));
    }
    if (plan->peak_bytes != peak)
        return MEMOB_INVALID(error, "plan.peak_bytes: wrong (%lld); offsets and sizes give %lld",
                             (long long)plan->peak_bytes, (long long)peak);
    if (plan->proof == MEMO_PROOF_OPTIMAL && peak < plan->lower_bound_bytes)
        return MEMOB_INVALID(error, "plan.peak_bytes: below the lower bound");
    return MEMO_STATUS_OK;
}

/* The first buffer of a lane that begins at `time` or later; lanes lists buffers by lane, then
 * begin. */
MEMOI int64_t memoi_plan_lanes_find(const memo_plan* plan, const memob_keyed* lanes, int32_t lane,
                                    int64_t time) {
    int64_t low = 0, high = plan->n_buffers;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (lanes[middle].key > lane ||
            (lanes[middle].key == lane && plan->buffers[lanes[middle].index].begin >= time))
            high = middle;
        else
            low = middle + 1;
    }
    MEMO_ASSERT(low == plan->n_buffers || lanes[low].key > lane || /* 2 */
                plan->buffers[lanes[low].index].begin >= time);
    MEMO_ASSERT(low == 0 || lanes[low - 1].key < lane || /* 2 */
                plan->buffers[lanes[low - 1].index].begin < time);
    return low;
}

/* No buffer shares a byte with a buffer that it is held against; with check_offsets 0, no fixed
 * buffer with another. */
MEMOI memo_status memob_plan_check_holds(const memo_plan* plan, int check_offsets, int64_t* culprit,
                                         memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t k;
    memob_keyed* lanes = (memob_keyed*)memob_calloc(plan->n_buffers, sizeof(memob_keyed));
    if (!lanes) return memob_no_memory(error, "validating a plan");
    for (int64_t i = 0; i < plan->n_buffers; i++)
        lanes[i] = memob_keyed_of(plan->buffers[i].lane, i);
    qsort(lanes, (size_t)plan->n_buffers, sizeof(memob_keyed), memob_keyed_compare);

    /* Each hold against the buffers of its lane that begin while the hold lasts. */
    for (int64_t i = 0; i < plan->n_holds && !status; i++) {
        const memo_hold* hold = &plan->holds[i];
        const memo_buffer* held = &plan->buffers[hold->buffer];
        k = memoi_plan_lanes_find(plan, lanes, hold->lane, held->end);
        for (; k < plan->n_buffers && lanes[k].key == hold->lane && !status; k++) {
            const memo_buffer* other = &plan->buffers[lanes[k].index];
            if (other->begin >= hold->until) break;
            if (held->size_bytes == 0 || other->size_bytes == 0 ||
                !(check_offsets || (held->is_fixed && other->is_fixed)) ||
                !memoi_plan_overlap(plan, hold->buffer, memob_buffer_bytes(plan, hold->buffer),
                                    lanes[k].index, memob_buffer_bytes(plan, lanes[k].index)))
                continue;
            *culprit = lanes[k].index;
            MEMO_ASSERT(*culprit >= 0 && *culprit < plan->n_buffers); /* 1 */
            status =
                MEMOB_INVALID(error,
                              "buffers %lld (id %lld) and %lld (id %lld) share bytes: lane %d may "
                              "not reuse the first before time %lld, and the second begins at %lld",
                              (long long)hold->buffer, (long long)held->id,
                              (long long)lanes[k].index, (long long)other->id, (int)hold->lane,
                              (long long)hold->until, (long long)other->begin);
        }
    }
    MEMO_FREE(lanes);
    return status;
}

/* Checks a plan; with check_offsets 0, only the problem. */
MEMOI memo_status memoi_plan_verify(const memo_plan* plan, int check_offsets, int64_t* culprit,
                                    memo_error* error) {
    int64_t bound;
    memo_status status = memoi_plan_check(plan, culprit, error);
    if (!status) status = memoi_plan_check_order(plan, culprit, error);
    if (status) return status;

    /* Order, times and offsets of each buffer. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        if (i > 0 && plan->buffers[i].begin < plan->buffers[i - 1].begin)
            return memoi_plan_buffer_error(
                plan, i, culprit, error,
                "it begins before the previous buffer; memo_plan_prepare sorts buffers");
        if (plan->buffers[i].end > plan->n_times)
            return memoi_plan_buffer_error(plan, i, culprit, error, "it ends after the last time");
    }
    status = memob_check_integer("plan", "body_begin", plan->body_begin, 0, plan->n_times, error);
    if (status) return status;
    if (check_offsets) status = memoi_plan_check_offsets(plan, culprit, error);
    if (!status) status = memoi_plan_sweep(plan, check_offsets, &bound, culprit, error);

    /* The bound last: the sweep has computed it. */
    if (!status && check_offsets && plan->n_holds > 0)
        status = memob_plan_check_holds(plan, 1, culprit, error);
    if (!status && bound != plan->lower_bound_bytes) {
        *culprit = -1;
        status = MEMOB_INVALID(
            error, "plan.lower_bound_bytes: wrong (%lld); lifetimes and sizes give %lld",
            (long long)plan->lower_bound_bytes, (long long)bound);
    }
    return status;
}

memo_status memo_plan_validate(const memo_plan* plan, memo_error* error) {
    int64_t culprit;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    if (plan->proof != MEMO_PROOF_FEASIBLE && plan->proof != MEMO_PROOF_OPTIMAL)
        return MEMOB_INVALID(error, "plan: it has no offsets; call memo_plan_solve first");
    return memoi_plan_verify(plan, 1, &culprit, error);
}

/* ---- >>plan file --------------------------------------------------------------------------------
 * Knows: the text of a plan.  Knows nothing of requests.
 *
 * 1. A plan has a line for each value of its head and each buffer, gap, hold and wait alone. */

static const char* const memoi_proof_names[] = {"none", "feasible", "optimal"};
MEMOB_TABLE_OF(MEMO_N_PROOFS, memoi_proof_names);

static const memob_value memoi_plan_head_values[] = {
    MEMOB_NUMBER("alignment", memo_plan, alignment_bytes),
    MEMOB_NUMBER("times", memo_plan, n_times),
    MEMOB_NUMBER("body", memo_plan, body_begin),
    MEMOB_NUMBER("peak", memo_plan, peak_bytes),
    MEMOB_NUMBER("bound", memo_plan, lower_bound_bytes),
    MEMOB_WORD("proof", memo_plan, proof, memoi_proof_names),
    MEMOB_VALUE("engine", MEMOB_VALUE_NAME, memo_plan, engine, 0, 16),
    MEMOB_VALUE("buffers", MEMOB_VALUE_INT64, memo_plan, n_buffers, 0, MEMOB_BYTES_MAX / 4),
    MEMOB_VALUE("gaps", MEMOB_VALUE_INT64, memo_plan, n_gaps, 0, MEMOB_BYTES_MAX / 4),
    MEMOB_VALUE("holds", MEMOB_VALUE_INT64, memo_plan, n_holds, 0, MEMOB_BYTES_MAX / 4),
    MEMOB_VALUE("waits", MEMOB_VALUE_INT64, memo_plan, n_waits, 0, MEMOB_BYTES_MAX / 4)};
static const memob_value memoi_plan_buffer_values[] = {
    MEMOB_NUMBER("id", memo_buffer, id),
    MEMOB_NUMBER("begin", memo_buffer, begin),
    MEMOB_NUMBER("end", memo_buffer, end),
    MEMOB_NUMBER("size", memo_buffer, size_bytes),
    MEMOB_NUMBER("offset", memo_buffer, offset_bytes),
    MEMOB_NUMBER("alignment", memo_buffer, alignment_bytes),
    MEMOB_VALUE("fixed", MEMOB_VALUE_INT32, memo_buffer, is_fixed, 0, 1),
    MEMOB_VALUE("stream", MEMOB_VALUE_INT32, memo_buffer, stream, 0, MEMOB_STREAMS - 1),
    MEMOB_VALUE("lane", MEMOB_VALUE_INT32, memo_buffer, lane, 0, INT32_MAX),
    MEMOB_WORD("class", memo_buffer, memory_class, memob_class_names)};
static const memob_value memoi_plan_gap_values[] = {MEMOB_NUMBER("buffer", memo_gap, buffer),
                                                    MEMOB_NUMBER("begin", memo_gap, begin),
                                                    MEMOB_NUMBER("end", memo_gap, end)};
static const memob_value memoi_plan_hold_values[] = {
    MEMOB_NUMBER("buffer", memo_hold, buffer),
    MEMOB_VALUE("lane", MEMOB_VALUE_INT32, memo_hold, lane, 0, INT32_MAX),
    MEMOB_NUMBER("until", memo_hold, until)};
static const memob_value memoi_plan_wait_values[] = {
    MEMOB_NUMBER("freed", memo_wait, freed), MEMOB_NUMBER("requested", memo_wait, requested),
    MEMOB_VALUE("from", MEMOB_VALUE_INT32, memo_wait, from, 0, MEMOB_STREAMS - 1),
    MEMOB_VALUE("to", MEMOB_VALUE_INT32, memo_wait, to, 0, MEMOB_STREAMS - 1),
    MEMOB_VALUE("cost", MEMOB_VALUE_FEMTOSECONDS, memo_wait, cost_s, 0, MEMOB_SECONDS_MOST)};
static const memob_record memoi_plan_buffer_record = {"buffer", memoi_plan_buffer_values, 10, 0};
static const memob_record memoi_plan_gap_record = {"gap", memoi_plan_gap_values, 3, 0};
static const memob_record memoi_plan_hold_record = {"hold", memoi_plan_hold_values, 3, 0};
static const memob_record memoi_plan_wait_record = {"wait", memoi_plan_wait_values, 5, 0};

/* The head, in fixed order: a line has one value, whose name is its word. */
MEMOI memo_status memoi_plan_head(memob_lines* lines, memo_plan* plan) {
    memo_status status = MEMO_STATUS_OK;
    for (size_t k = 0; k < sizeof memoi_plan_head_values / sizeof(memob_value) && !status; k++) {
        memob_record record = {memoi_plan_head_values[k].what, &memoi_plan_head_values[k], 1, 0};
        status = memob_line(lines, &record, plan);
    }
    return status;
}

MEMOI memo_status memoi_plan_body(memob_lines* lines, const memo_plan* plan) {
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < plan->n_buffers && !status; i++)
        status = memob_line(lines, &memoi_plan_buffer_record, &plan->buffers[i]);
    for (int64_t i = 0; i < plan->n_gaps && !status; i++)
        status = memob_line(lines, &memoi_plan_gap_record, &plan->gaps[i]);
    for (int64_t i = 0; i < plan->n_holds && !status; i++)
        status = memob_line(lines, &memoi_plan_hold_record, &plan->holds[i]);
    for (int64_t i = 0; i < plan->n_waits && !status; i++)
        status = memob_line(lines, &memoi_plan_wait_record, &plan->waits[i]);
    MEMO_ASSERT(status || /* 1 */
                lines->n == 1 + (int64_t)(sizeof memoi_plan_head_values / sizeof(memob_value)) +
                                plan->n_buffers + plan->n_gaps + plan->n_holds + plan->n_waits);
    return status;
}

memo_status memo_plan_write(const memo_plan* plan, const char* path, memo_error* error) {
    memo_text text = MEMO_ZERO(memo_text);
    memob_lines lines = {&text, NULL, 1, error};
    memo_plan head;
    memo_status status;
    int64_t culprit;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    MEMOB_REFUSE_NULL(error, "path", path);
    head = *plan;
    /* A plan that is not solved yet is written too, as a problem. */
    status = plan->proof == MEMO_PROOF_NONE ? memoi_plan_verify(plan, 0, &culprit, error)
                                            : memo_plan_validate(plan, error);
    memo_text_put(&text, "memo plan 1\n");
    if (!status) status = memoi_plan_head(&lines, &head);
    if (!status) status = memoi_plan_body(&lines, plan);
    return memob_write_lines(&text, lines.n, path, status, error);
}

/* Reads buffers, gaps, holds and waits, then checks the plan; an error has the line of its
 * buffer. */
MEMOI memo_status memoi_plan_parse_body(memob_lines* lines, const memo_plan* plan) {
    memob_reader *reader = lines->reader, begin = *reader;
    memo_status status = memoi_plan_body(lines, plan);
    int64_t culprit = -1;
    memo_error reason;
    if (status) return status;
    if (memob_next_entry(reader))
        return MEMOB_BAD_LINE(reader, lines->error,
                              "there are more lines than `buffers`, `gaps`, `holds` and `waits` "
                              "state");
    status = memoi_plan_verify(plan, plan->proof != MEMO_PROOF_NONE, &culprit, &reason);
    if (!status) return MEMO_STATUS_OK;
    for (int64_t i = 0; i <= culprit; i++) (void)memob_next_entry(&begin);
    return memoi_line_error(culprit < 0 ? reader : &begin, lines->error,
                            status == MEMO_STATUS_INVALID_ARGUMENT ? MEMO_STATUS_FORMAT : status,
                            "not a valid plan: %s", reason.message);
}

MEMOI memo_status memoi_plan_parse(memob_reader* reader, memo_plan** plan, memo_error* error) {
    int64_t n_lines;
    memob_lines lines = {NULL, reader, 1, error};
    memo_error reason;
    memo_plan head = MEMO_ZERO(memo_plan), *made;
    memo_status status = memob_read_frame(reader, "plan", 1, 0, error);
    if (!status) status = memoi_plan_head(&lines, &head);
    if (status) return status;

    /* Counts are bounded by the file, so that a false count cannot exhaust memory. */
    n_lines = head.n_buffers + head.n_gaps + head.n_holds + head.n_waits;
    if (n_lines > reader->end - reader->next)
        return MEMOB_BAD_LINE(
            reader, error,
            "%lld buffers, %lld gaps, %lld holds and %lld waits do not fit in the rest of the file",
            (long long)head.n_buffers, (long long)head.n_gaps, (long long)head.n_holds,
            (long long)head.n_waits);
    status = memob_check_count(reader, lines.n + n_lines, error);
    if (status) return status;
    status = memoi_plan_check_alignment(head.alignment_bytes, &reason);
    if (status) return memob_reader_result(reader, status, &reason, error);

    status = memo_plan_create(head.n_buffers, head.n_gaps, head.alignment_bytes, &made, error);
    if (status) return status;
    head.buffers = made->buffers;
    head.gaps = made->gaps;
    *made = head;
    made->holds = (memo_hold*)memob_calloc(made->n_holds, sizeof(memo_hold));
    made->waits = (memo_wait*)memob_calloc(made->n_waits, sizeof(memo_wait));
    status = made->holds && made->waits ? memoi_plan_parse_body(&lines, made)
                                        : memob_no_memory(error, "a plan");
    if (status)
        memo_plan_destroy(made);
    else
        *plan = made;
    return status;
}

memo_status memo_plan_read(const char* path, memo_plan** plan, memo_error* error) {
    memob_reader reader;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "path", path);
    status = memob_reader_open(&reader, path, error);
    if (!status) status = memoi_plan_parse(&reader, plan, error);
    memob_reader_close(&reader);
    return status;
}

/* ---- >>device -----------------------------------------------------------------------------------
 * Knows: the table of functions.  Knows nothing of what runs on it.
 *
 * 1. A table that is taken was long enough for all functions that every engine calls. */

/* Copies the caller's table.  Functions that a shorter, older table does not have become NULL.  It
 * refuses a table without the functions that every engine calls.  what names the table in messages,
 * such as "memo_swap_desc.device". */
MEMOI memo_status memob_device_take(memo_device* taken, const memo_device* device, const char* what,
                                    memo_error* error) {
    size_t known_bytes = sizeof *taken;
    const char* missing = NULL;
    memset(taken, 0, sizeof *taken);
    if (!device) return MEMOB_INVALID(error, "%s: NULL; pass a device", what);
    if (device->struct_bytes < (int64_t)offsetof(memo_device, annotate))
        return MEMOB_INVALID(error,
                             "%s.struct_bytes: too small (%lld); set it to sizeof(memo_device), at "
                             "least %lld, and fill the table",
                             what, (long long)device->struct_bytes,
                             (long long)offsetof(memo_device, annotate));

    if (device->struct_bytes < (int64_t)known_bytes) known_bytes = (size_t)device->struct_bytes;
    memcpy(taken, device, known_bytes);
    taken->struct_bytes = (int64_t)sizeof *taken;
    MEMO_ASSERT(known_bytes >= offsetof(memo_device, annotate)); /* 1 */

    /* The functions that every engine calls; the others may be NULL. */
#define MEMOI_DEVICE_MISSING(function)                                                             \
    if (!missing && !taken->function) missing = #function;
    MEMOB_DEVICE_NEEDS(MEMOI_DEVICE_MISSING)
    if (missing)
        return MEMOB_INVALID(error,
                             "%s.%s: NULL; set it, or start from a copy of another device's table",
                             what, missing);
    return MEMO_STATUS_OK;
}

/* Copies bytes of the device to the host, or back, and waits. */
MEMOI memo_status memob_copy_now(const memo_device* device, memo_stream stream, void* on_device,
                                 void* on_host, int64_t n_bytes, int is_back, memo_error* error) {
    const memo_copy_kind kind = is_back ? MEMO_COPY_TO_DEVICE : MEMO_COPY_TO_HOST;
    const memo_status status = memo_copy(device, stream, kind, is_back ? on_device : on_host,
                                         is_back ? on_host : on_device, n_bytes, error);
    return status ? status : memo_stream_synchronize(device, stream, error);
}

MEMOI memo_range memob_range_at(const void* address, int64_t size_bytes) {
    const uint64_t begin = (uint64_t)(uintptr_t)address;
    const memo_range range = {begin, begin + (uint64_t)(size_bytes > 0 ? size_bytes : 0)};
    return range;
}

/* ---- >>poison -----------------------------------------------------------------------------------
 * Knows: bytes that nobody may read or write, and how the host reaches bytes of a device.  Knows
 * nothing of whose bytes they are.
 *
 * 1. An image is as far from a multiple of 8 as its bytes, so that poison looks the same there.
 * 2. A part fits in the image, and a sweep ends with its last byte. */

/* NaN in every number of f64, f32 and f16, and in every second one of bf16, whose others are
 * 2.7e37.  At least every second number is a signaling NaN or none: arithmetic gives it other
 * bytes, so that a tensor that is updated in place changes.  It is repeated from each multiple of 8
 * on; `poison` has eight bytes from the address on. */
MEMOI void memoi_poison_word(const char* address, unsigned char poison[8]) {
    const uint64_t word = MEMOB_POISON;
    unsigned char bytes[8];
    memcpy(bytes, &word, sizeof bytes);
    for (int i = 0; i < 8; i++) poison[i] = bytes[((uintptr_t)address + (uintptr_t)i) % 8];
}

MEMOI void memob_poison(char* bytes, int64_t n_bytes) {
    unsigned char poison[8];
    int64_t i = 0;
    memoi_poison_word(bytes, poison);
    for (; i + 8 <= n_bytes; i += 8) memcpy(bytes + i, poison, 8);
    if (i < n_bytes) memcpy(bytes + i, poison, (size_t)(n_bytes - i));
}

/* How many of the first bytes are poison. */
MEMOI int64_t memoi_poisoned(const char* bytes, int64_t n_bytes) {
    unsigned char poison[8];
    int64_t i = 0;
    memoi_poison_word(bytes, poison);
    while (i + 8 <= n_bytes && !memcmp(bytes + i, poison, 8)) i += 8;
    while (i < n_bytes && (unsigned char)bytes[i] == poison[i % 8]) i++;
    return i;
}

/* A hash of bytes for comparisons in this process, a word at a time.  Turning the word spreads
 * differences of high bits, such as signs. */
MEMOI uint64_t memob_digest(const char* bytes, int64_t n_bytes) {
    uint64_t hash = 14695981039346656037u ^ (uint64_t)n_bytes, word;
    for (; n_bytes > 0; n_bytes -= 8, bytes += 8) {
        word = 0;
        memcpy(&word, bytes, (size_t)memob_min(n_bytes, 8));
        hash ^= word;
        hash = (hash << 29 | hash >> 35) * 0x9e3779b97f4a7c15u;
    }
    return hash ^ hash >> 32;
}

/* Are two numbers, f32 or f64, made of poison by arithmetic: a signaling NaN that became quiet, or
 * a quiet one elsewhere?  One could be chance in a tensor of integers. */
MEMOI int memoi_is_of_poison(const char* bytes, int64_t n_bytes) {
    const char* end = bytes + n_bytes;
    int n = 0;
    for (; end - bytes >= 4; bytes += 4) {
        uint32_t word;
        memcpy(&word, bytes, sizeof word);
        word &= 0x7fffffff; /* without its sign */
        n += word == 0x7fe07da0 || word == 0x7ff97da0 ||
             (word == 0x7ff17da0 && (uintptr_t)bytes % 8 == (MEMOB_IS_BIG_ENDIAN ? 4 : 0));
    }
    return n > 1;
}

MEMOI memo_row_content memob_row_content(const char* row, int64_t row_bytes) {
    memo_row_content found;
    found.digest = memob_digest(row, row_bytes);
    found.n_poisoned = memoi_poisoned(row, row_bytes);
    found.is_of_poison = memoi_is_of_poison(row, row_bytes);
    return found;
}

/* Poisons bytes of a device, and looks at them, part by part through pinned memory.  Each call
 * first waits for the streams that compute. */
typedef struct memob_probe {
    memo_device device;           /* all zero: the bytes are on the host */
    const memo_stream* computing; /* the caller's */
    int32_t n_computing;
    memo_stream stream;
    void* image;
} memob_probe;
enum { MEMOI_PROBE_BYTES = 1 << 20 };

/* device NULL: none.  memob_probe_destroy frees whatever was taken. */
MEMOI memo_status memob_probe_create(memob_probe* p, const memo_device* device, const char* what,
                                     const memo_stream* computing, int32_t n_computing,
                                     memo_error* error) {
    memo_status status;
    memset(p, 0, sizeof *p);
    if (!device) return MEMO_STATUS_OK;
    status = memob_device_take(&p->device, device, what, error);
    if (status) {
        memset(p, 0, sizeof *p);
        return status;
    }
    p->computing = computing;
    p->n_computing = n_computing;
    status = memo_stream_create(&p->device, "check", 0, &p->stream, error);
    return status ? status : memo_host_alloc(&p->device, MEMOI_PROBE_BYTES + 8, &p->image, error);
}

MEMOI void memob_probe_destroy(memob_probe* p) {
    if (p->image) memo_host_free(&p->device, p->image, NULL);
    if (p->stream) memo_stream_destroy(&p->device, p->stream, NULL);
    memset(p, 0, sizeof *p);
}

MEMOI memo_status memoi_probe_wait(memob_probe* p, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = 0; i < p->n_computing && !status; i++)
        status = memo_stream_synchronize(&p->device, p->computing[i], error);
    return status;
}

/* Where the host finds the first *n of n_bytes, with the same distance to a multiple of 8. */
MEMOI char* memoi_probe_part(const memob_probe* p, char* bytes, int64_t n_bytes, int64_t* n) {
    *n = p->image ? memob_min(n_bytes, MEMOI_PROBE_BYTES) : n_bytes;
    return p->image ? (char*)p->image + (uintptr_t)bytes % 8 : bytes;
}

/* Copies a part from the device, or to it, and waits. */
MEMOI memo_status memoi_probe_copy(memob_probe* p, char* bytes, int64_t n, int is_back,
                                   memo_error* error) {
    int64_t n_part;
    char* image = memoi_probe_part(p, bytes, n, &n_part);
    if (!p->image) return MEMO_STATUS_OK;
    MEMO_ASSERT(n_part == n);                                  /* 2 */
    MEMO_ASSERT((uintptr_t)image % 8 == (uintptr_t)bytes % 8); /* 1 */
    return memob_copy_now(&p->device, p->stream, bytes, image, n, is_back, error);
}

/* is_fill: poisons the bytes.  Otherwise *n_poisoned is how many of the first are poison. */
MEMOI memo_status memob_probe_sweep(memob_probe* p, char* bytes, int64_t n_bytes, int is_fill,
                                    int64_t* n_poisoned, memo_error* error) {
    memo_status status = n_bytes ? memoi_probe_wait(p, error) : MEMO_STATUS_OK;
    int64_t at = 0, n, found;
    for (; at < n_bytes && !status; at += n) {
        char* image = memoi_probe_part(p, bytes + at, n_bytes - at, &n);
        if (is_fill) memob_poison(image, n);
        status = memoi_probe_copy(p, bytes + at, n, is_fill, error);
        if (status || is_fill) continue;
        MEMO_ASSERT(n_poisoned && at + n <= n_bytes); /* 2 */
        found = memoi_poisoned(image, n);
        *n_poisoned = at + found;
        if (found < n) return status;
    }
    return status;
}

/* Hashes the bytes.  *is_of_poison: poison, or numbers made of poison by arithmetic, are among
 * them. */
MEMOI memo_status memob_probe_hash(memob_probe* p, char* bytes, int64_t n_bytes, uint64_t* hash,
                                   int* is_of_poison, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0, n;
    *hash = 0;
    *is_of_poison = 0;
    if (n_bytes) status = memoi_probe_wait(p, error);
    for (; at < n_bytes && !status; at += n) {
        const char* image = memoi_probe_part(p, bytes + at, n_bytes - at, &n);
        status = memoi_probe_copy(p, bytes + at, n, 0, error);
        if (status) break;
        *hash = 31 * *hash + memob_digest(image, n);
        *is_of_poison |= memoi_poisoned(image, n) >= 8 || memoi_is_of_poison(image, n);
    }
    MEMO_ASSERT(status || at == n_bytes); /* 2 */
    return status;
}

/* ---- >>arena ------------------------------------------------------------------------------------
 * Knows: the struct of an arena, its blocks, how a device gives and takes them, and the regions of
 * a checked arena.  Knows nothing of which request comes next, and of how a plan was found.
 *
 * 1. The index of blocks has the live ones alone, by address.
 * 2. live_bytes is the sum of the live blocks' sizes, at most peak_bytes.
 * 3. In recording, a live block has its memory from the device.
 * 4. Addresses of a dry run are multiples of MEMOB_DEVICE_ALIGNMENT, a micro-batch's behind those
 *    that live on.
 * 5. The used bytes of a region lie in its room, which is at least as large as its request. */

/* A block taken from the device while recording, or pretended to be. */
typedef struct memoi_block {
    void* address; /* NULL: freed */
    int64_t size_bytes;
    int64_t id;  /* in the trace; -1: not in it */
    void* taken; /* from the device; NULL: given back, or never taken */
} memoi_block;

/* In a checked arena: the bytes around a request.  The first used_bytes are the trainer's, the rest
 * is poison. */
typedef struct memoi_region {
    char* begin;
    int64_t room_bytes, used_bytes;
} memoi_region;

typedef struct memoi_blocks {
    memoi_block* list;        /* in the order of requests */
    int64_t n, n_before_body; /* those of the micro-batch come last */
    int64_t live_bytes, peak_bytes;
    memob_map index; /* address -> index in list */
} memoi_blocks;

/* A buffer of the plan in replay. */
typedef struct memoi_slot {
    char* address;
    int64_t size_bytes;
    int64_t first;  /* slot with this address; at most one of them is live */
    int64_t holder; /* of the first: the slot that lived here last */
    int32_t is_live;
} memoi_slot;

/* Half of a bought wait: the record, due once the event before `at` has happened, or the wait, due
 * before the event `at`, which is a malloc. */
typedef struct memoi_step {
    int64_t at; /* among memo_arena.events */
    int32_t is_wait;
    memo_stream stream;
    memo_event event;
} memoi_step;

typedef enum memoi_arena_state {
    MEMOI_ARENA_BEFORE = 0, /* no micro-batch yet: requests are persistent */
    MEMOI_ARENA_INSIDE,
    MEMOI_ARENA_BETWEEN
} memoi_arena_state;

struct memo_arena {
    const memo_device* device;
    const memo_plan* plan; /* NULL: recording */
    memo_trace* trace;     /* NULL once the first micro-batch is recorded, and in replay */
    int64_t n_requests;    /* served so far */
    memoi_arena_state state;
    memoi_blocks blocks;

    /* Recording. */
    uint64_t dry_address, dry_address_begin; /* next one of a dry run; what it was at begin */

    char* memory; /* the block of a replay, or what a dry run writes to */
    int64_t memory_bytes;

    /* Checked: a region for each block or slot, and what looks at them. */
    int32_t is_checked;
    memoi_region* regions;
    memob_probe probe;

    /* Replay. */
    void* own_memory; /* what the device gave for the block; NULL: the user's */
    int64_t reserved_bytes;
    /* Planned mallocs and frees, in order.  Index: a malloc's is that of the buffer + n_buffers, a
     * free's is that of the buffer.  A free has happened if the buffer is not live. */
    memob_keyed* events;
    int64_t n_events, body_event, n_buffers;
    int64_t cursor;
    int64_t n_body_requests;
    memoi_step* steps; /* in order; each wait has two and shares their event */
    int64_t n_steps, next_step;
    memoi_slot* slots;
    memob_map addresses; /* address -> first slot */
    memob_arrays arrays; /* events, steps, slots */
};

/* --- blocks of the device --- */

MEMOI int64_t memoi_arena_address_key(const void* address) { return (int64_t)(uintptr_t)address; }

/* Addresses of a dry run start here: no program has memory there. */
#define MEMOI_DRY_ADDRESS ((uint64_t)1 << 48)

MEMOI memo_status memoi_arena_dry_alloc(memo_arena* arena, int64_t size_bytes, void** address,
                                        memo_error* error) {
    uint64_t bytes = (uint64_t)memob_align_up(size_bytes + !size_bytes, MEMOB_DEVICE_ALIGNMENT);
    const int64_t begin = (arena->n_requests + 1) * MEMOB_DEVICE_ALIGNMENT -
                          (int64_t)((uintptr_t)arena->memory % MEMOB_DEVICE_ALIGNMENT);
    if (arena->memory && size_bytes <= arena->memory_bytes - begin) {
        *address = arena->memory + begin;
        MEMO_ASSERT((uintptr_t)*address % MEMOB_DEVICE_ALIGNMENT == 0); /* 4 */
        return MEMO_STATUS_OK;
    }
    if (arena->dry_address > (uint64_t)UINTPTR_MAX - bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "dry run: no addresses are left for %lld bytes",
                              (long long)size_bytes);
    *address = (void*)(uintptr_t)arena->dry_address;
    MEMO_ASSERT(arena->dry_address % MEMOB_DEVICE_ALIGNMENT == 0); /* 4 */
    MEMO_ASSERT(arena->dry_address >= arena->dry_address_begin);   /* 4 */
    arena->dry_address += bytes;
    return MEMO_STATUS_OK;
}

/* The block is no longer live; the device has its memory still. */
MEMOI void memoi_arena_block_end(memo_arena* arena, int64_t i) {
    memoi_blocks* blocks = &arena->blocks;
    memoi_block* block = &blocks->list[i];
    if (!block->address) return;
    MEMO_ASSERT(memob_map_get(&blocks->index, memoi_arena_address_key(block->address)) ==
                i); /* 1 */
    memob_map_remove(&blocks->index, memoi_arena_address_key(block->address));
    blocks->live_bytes -= block->size_bytes;
    MEMO_ASSERT(blocks->live_bytes >= 0); /* 2 */
    block->address = NULL;
}

MEMOI memo_status memoi_arena_block_free(memo_arena* arena, int64_t i, memo_error* error) {
    memoi_block* block = &arena->blocks.list[i];
    void* taken = block->taken;
    MEMO_ASSERT(!arena->device || taken || !block->address); /* 3 */
    memoi_arena_block_end(arena, i);
    block->taken = NULL;
    if (arena->is_checked) arena->regions[i].room_bytes = 0;
    return taken ? memo_device_free(arena->device, taken, error) : MEMO_STATUS_OK;
}

/* Frees all blocks but the first n, whatever fails, and returns the first error. */
MEMOI memo_status memoi_arena_blocks_drop(memo_arena* arena, int64_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    while (arena->blocks.n > n) {
        const memo_status s =
            memoi_arena_block_free(arena, --arena->blocks.n, status ? NULL : error);
        if (!status) status = s;
    }
    MEMO_ASSERT(arena->blocks.n > 0 || arena->blocks.live_bytes == 0); /* 2 */
    return status;
}

/* --- checks --- */

/* Bytes of a request and its guard: a size given in numbers of 4 bytes is found. */
MEMOI int64_t memoi_arena_room(int64_t size_bytes, int64_t alignment_bytes) {
    return size_bytes > (MEMOB_BYTES_MAX - alignment_bytes) / 4
               ? MEMOB_BYTES_MAX
               : memob_align_up(4 * size_bytes, alignment_bytes);
}

/* Nobody wrote to the region but to its used bytes, of which used_bytes stay or begin; the others
 * become poison.  i: of the block or slot. */
MEMOI memo_status memoi_arena_look(memo_arena* arena, int64_t i, int64_t used_bytes,
                                   memo_error* error) {
    memoi_region* r = &arena->regions[i];
    char* behind = r->begin + r->used_bytes;
    const int64_t n = r->room_bytes - r->used_bytes, was_used = r->used_bytes;
    const int64_t kept = memob_min(used_bytes, was_used);
    int64_t n_poisoned = n;
    memo_status status;
    if (!r->room_bytes) return MEMO_STATUS_OK;
    MEMO_ASSERT(memob_max(used_bytes, was_used) <= r->room_bytes); /* 5 */
    status = memob_probe_sweep(&arena->probe, behind, n, 0, &n_poisoned, error);
    if (!status && (n_poisoned < n || used_bytes < was_used))
        status =
            memob_probe_sweep(&arena->probe, r->begin + kept, r->room_bytes - kept, 1, NULL, error);
    if (status) return status;
    r->used_bytes = used_bytes;
    if (n_poisoned == n) return status;
    return MEMOB_INVALID(
        error,
        "checked arena: buffer %lld of %lld bytes (id %lld): something writes to byte %lld%s",
        (long long)i, (long long)(was_used ? was_used : r->room_bytes / 4),
        (long long)(arena->plan ? arena->plan->buffers[i].id : arena->blocks.list[i].id),
        (long long)(was_used + n_poisoned),
        was_used ? ", behind its end; its size is too small, or was given in numbers, not bytes"
                 : " while it is free; it was freed too early, or its address was kept");
}

/* Looks at all regions, whatever it finds, and returns the first error.  is_over: buffers of the
 * micro-batch end. */
MEMOI memo_status memoi_arena_look_at_all(memo_arena* arena, int is_over, memo_error* error) {
    const int64_t n = arena->plan ? arena->n_buffers : arena->blocks.n;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < n && arena->is_checked; i++) {
        const int is_body = arena->plan ? arena->plan->buffers[i].begin >= arena->plan->body_begin
                                        : i >= arena->blocks.n_before_body;
        const memo_status s = memoi_arena_look(
            arena, i, is_over && is_body ? 0 : arena->regions[i].used_bytes, status ? NULL : error);
        if (!status) status = s;
    }
    return status;
}

/* ---- >>arena creation ---------------------------------------------------------------------------
 * Knows: a plan, the device, and the slots that follow from both.  Knows nothing of what is
 * requested when.
 *
 * 1. Events are in order, frees before mallocs of the same time, those of the body last.
 * 2. A bought wait is two steps with one event, of which the record is due first.
 * 3. Slots lie in the memory, at aligned addresses; `first` is the first slot at the address.
 * 4. Regions follow each other, and their sum is what a checked arena takes. */

MEMOI memo_status memoi_arena_check(const memo_arena_desc* desc, memo_error* error) {
    memo_status status;
    if (desc->device && (!desc->device->device_alloc || !desc->device->device_free))
        return MEMOB_INVALID(
            error, "memo_arena_desc.device: device_alloc or device_free is NULL; set both");
    if (desc->n_streams < 0 || (desc->n_streams && !desc->streams))
        return MEMOB_INVALID(error, "memo_arena_desc.n_streams: %d without streams; set both, or 0",
                             (int)desc->n_streams);
    if (!desc->plan == !desc->trace)
        return MEMOB_INVALID(error,
                             "memo_arena_desc: set either trace, to record, or plan, to replay");

    /* Recording: an empty trace. */
    if (desc->trace) {
        if (desc->memory && desc->device)
            return MEMOB_INVALID(
                error, "memo_arena_desc.memory: not used while recording on a device; set one");
        if (desc->trace->n_requests)
            return MEMOB_INVALID(
                error, "memo_arena_desc.trace: it already has %lld requests; pass an empty trace",
                (long long)desc->trace->n_requests);
        return MEMO_STATUS_OK;
    }

    /* Replay: memory, and a valid plan. */
    if (!desc->device && !desc->memory)
        return MEMOB_INVALID(
            error, "memo_arena_desc: device and memory are NULL; replay needs one of them");
    status = memo_plan_validate(desc->plan, error);
    for (int64_t i = 0; i < desc->plan->n_waits && !status; i++) {
        const memo_wait* wait = &desc->plan->waits[i];
        if (!desc->device || !desc->device->event_wait || !desc->streams ||
            memob_max(wait->from, wait->to) >= desc->n_streams)
            status = MEMOB_INVALID(error,
                                   "memo_arena_desc.streams: the plan buys a wait of stream %d for "
                                   "stream %d; pass both streams, and a device with events",
                                   (int)wait->to, (int)wait->from);
    }
    return status;
}

/* The order of requests and frees in replay, which follows from the lifetimes. */
MEMOI memo_status memoi_arena_events(memo_arena* arena, memo_error* error) {
    const memo_plan* plan = arena->plan;
    const int64_t n = arena->n_buffers;
    memob_keyed* list = MEMOB_ARRAY(&arena->arrays, memob_keyed, 2 * n + 1);
    arena->events = list;
    if (!list) return memob_no_memory(error, "an arena");

    /* Frees come first: lifetimes are half-open.  Persistent buffers are requested before
     * the body, and their frees are not planned: they may come at any time. */
    for (int64_t i = 0; i < n; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        const int is_persistent = buffer->memory_class == MEMO_CLASS_PERSISTENT;
        list[arena->n_events++] = memob_keyed_of(
            is_persistent ? memob_min(buffer->begin, plan->body_begin - 1) : buffer->begin, n + i);
        if (!is_persistent) list[arena->n_events++] = memob_keyed_of(buffer->end, i);
    }
    qsort(list, (size_t)arena->n_events, sizeof(memob_keyed), memob_keyed_compare);
    list[arena->n_events].index = n; /* behind the last: no free */

    /* Two requests of the body at one time would leave their order open. */
    for (int64_t i = 0; i < arena->n_events; i++) {
        const memob_keyed* event = &list[i];
        const int in_body = event->key >= plan->body_begin;
        if (in_body && i > 0 && event[-1].index >= n && event[-1].key == event->key)
            return MEMOB_INVALID(
                error,
                "buffers %lld and %lld begin at the same time (%lld), so their order of "
                "requests is ambiguous; replay a plan made by memo_plan_from_trace",
                (long long)(event[-1].index - n), (long long)(event->index - n),
                (long long)event->key);
        MEMO_ASSERT(i == 0 || memob_keyed_compare(event - 1, event) < 0); /* 1 */
        MEMO_ASSERT(in_body || i == arena->body_event);                   /* 1 */
        arena->body_event += !in_body;
    }
    return MEMO_STATUS_OK;
}

MEMOI int memoi_arena_compare_steps(const void* a, const void* b) {
    const memoi_step* x = (const memoi_step*)a;
    const memoi_step* y = (const memoi_step*)b;
    return x->at != y->at ? memob_compare(x->at, y->at) : x->is_wait - y->is_wait;
}

/* The waits that the plan buys, as steps between events. */
MEMOI memo_status memoi_arena_buy(memo_arena* arena, const memo_stream* streams,
                                  memo_error* error) {
    const memo_plan* plan = arena->plan;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    int64_t* place = MEMOB_ARRAY(&arrays, int64_t, 2 * arena->n_buffers); /* of an event's index */
    memo_status status = MEMO_STATUS_OK;
    arena->steps = MEMOB_ARRAY(&arena->arrays, memoi_step, 2 * plan->n_waits);
    if (!place || !arena->steps) status = memob_no_memory(error, "an arena");
    for (int64_t i = 0; i < arena->n_events && !status; i++) place[arena->events[i].index] = i;

    /* A wait is two steps: an event is recorded after the free, and awaited before the request. */
    for (int64_t i = 0; i < plan->n_waits && !status; i++) {
        const memo_wait* wait = &plan->waits[i];
        const int64_t requested = arena->n_buffers + wait->requested;
        memoi_step record = {place[wait->freed] + 1, 0, streams[wait->from], NULL};
        memoi_step awaited = {place[requested], 1, streams[wait->to], NULL};
        status = memo_event_create_untimed(arena->device, &record.event, error);
        if (status) break;
        MEMO_ASSERT(record.at <= awaited.at && record.at > 0); /* 2 */
        awaited.event = record.event;
        arena->steps[arena->n_steps++] = record;
        arena->steps[arena->n_steps++] = awaited;
    }
    if (arena->steps)
        qsort(arena->steps, (size_t)arena->n_steps, sizeof(memoi_step), memoi_arena_compare_steps);
    MEMO_ASSERT(status || arena->n_steps == 2 * plan->n_waits); /* 2 */
    memob_arrays_free(&arrays);
    return status;
}

MEMOI memo_status memoi_arena_slots(memo_arena* arena, memo_error* error) {
    const memo_plan* plan = arena->plan;
    memo_status status = MEMO_STATUS_OK;
    int64_t at = 0;
    arena->slots = MEMOB_ARRAY(&arena->arrays, memoi_slot, plan->n_buffers);
    if (!arena->slots) return memob_no_memory(error, "an arena");

    for (int64_t i = 0; i < plan->n_buffers; i++) {
        memoi_slot* slot = &arena->slots[i];
        slot->size_bytes = plan->buffers[i].size_bytes;
        /* A request without bytes gets an address that no other request has: the address of its
         * slot. */
        slot->address =
            slot->size_bytes ? arena->memory + plan->buffers[i].offset_bytes : (char*)slot;
        if (slot->size_bytes && arena->is_checked) {
            memoi_region* r = &arena->regions[i];
            slot->address = r->begin = arena->memory + at;
            at += r->room_bytes;
            status = memob_probe_sweep(&arena->probe, r->begin, r->room_bytes, 1, NULL, error);
            if (status) return status;
        }

        MEMO_ASSERT(arena->is_checked || /* 3 */
                    plan->buffers[i].offset_bytes + slot->size_bytes <= arena->reserved_bytes);
        MEMO_ASSERT(
            !slot->size_bytes || /* 3 */
            (uintptr_t)slot->address %
                    (uintptr_t)memob_max(plan->alignment_bytes, plan->buffers[i].alignment_bytes) ==
                0);
        slot->first = memob_map_get(&arena->addresses, memoi_arena_address_key(slot->address));
        MEMO_ASSERT(slot->first < i && /* 3 */
                    (slot->first < 0 || arena->slots[slot->first].address == slot->address));
        if (slot->first >= 0) continue;
        slot->first = i;
        if (!memob_map_put(&arena->addresses, memoi_arena_address_key(slot->address), i))
            return memob_no_memory(error, "an arena");
    }
    MEMO_ASSERT(!arena->is_checked || at == arena->reserved_bytes); /* 4 */
    return MEMO_STATUS_OK;
}

/* Sizes of regions, which follow each other.  Returns their sum. */
MEMOI int64_t memoi_arena_size_regions(memo_arena* arena, int64_t alignment_bytes) {
    int64_t sum = 0;
    for (int64_t i = 0; i < arena->n_buffers; i++) {
        const int64_t room = memoi_arena_room(arena->plan->buffers[i].size_bytes, alignment_bytes);
        arena->regions[i].room_bytes = memob_min(room, MEMOB_BYTES_MAX - sum);
        sum += arena->regions[i].room_bytes;
    }
    return sum;
}

MEMOI memo_status memoi_arena_take_memory(memo_arena* arena, const memo_arena_desc* desc,
                                          memo_error* error) {
    const memo_device* device = desc->device;
    const char* what = arena->is_checked ? "a checked arena" : "the plan";
    int64_t needed = arena->plan->peak_bytes, alignment = arena->plan->alignment_bytes;
    memo_error reason;
    memo_status status;
    char name[32];
    for (int64_t i = 0; i < arena->plan->n_buffers; i++)
        alignment = memob_max(alignment, arena->plan->buffers[i].alignment_bytes);
    if (arena->is_checked)
        needed = memoi_arena_size_regions(arena, memob_max(alignment, MEMOB_DEVICE_ALIGNMENT));
    arena->reserved_bytes = needed;

    /* The caller's memory must suffice. */
    if (arena->memory) {
        if (desc->memory_bytes < needed)
            return MEMOB_INVALID(
                error, "memo_arena_desc.memory_bytes: too small (%lld); %s needs %lld bytes",
                (long long)desc->memory_bytes, what, (long long)needed);
        if ((uintptr_t)desc->memory % (uintptr_t)alignment)
            return MEMOB_INVALID(
                error, "memo_arena_desc.memory: not aligned (%p); the plan needs %lld bytes",
                desc->memory, (long long)alignment);
        return MEMO_STATUS_OK;
    }

    /* The device's memory, with room to align it. */
    if (needed == 0) return MEMO_STATUS_OK;
    if (alignment > MEMOB_DEVICE_ALIGNMENT) needed += alignment;
    reason.message[0] = 0;
    status = memo_device_alloc(device, needed, &arena->own_memory, &reason);
    if (status) {
        int64_t free_bytes = -1, total_bytes = 0;
        char free_name[32], there[96] = "";
        arena->own_memory = NULL;
        /* Free bytes are stated only if they explain the failure: a device without a capacity does
         * not know how much memory the machine has. */
        if (device->memory_info && !memo_memory_info(device, &free_bytes, &total_bytes, NULL) &&
            free_bytes < needed)
            snprintf(there, sizeof there, ", %s (%lld bytes) are free",
                     memob_bytes_text(free_name, (double)free_bytes), (long long)free_bytes);
        return memo_error_set(error, status, "%s needs %s (%lld bytes) in one block%s: %s", what,
                              memob_bytes_text(name, (double)needed), (long long)needed, there,
                              reason.message);
    }

    arena->memory = (char*)arena->own_memory;
    if ((uintptr_t)arena->memory % (uintptr_t)alignment)
        arena->memory += (uintptr_t)alignment - (uintptr_t)arena->memory % (uintptr_t)alignment;
    return MEMO_STATUS_OK;
}

/* With a plan the arena has memory, slots and, if the plan buys waits, events.  What is made of an
 * arena that fails is given back by memo_arena_destroy. */
memo_status memo_arena_create(const memo_arena_desc* desc, memo_arena** arena, memo_error* error) {
    memo_arena* made;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    *arena = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memoi_arena_check(desc, error);
    if (status) return status;
    made = (memo_arena*)memob_calloc(1, sizeof(memo_arena));
    if (!made) return memob_no_memory(error, "an arena");

    made->device = desc->device;
    made->plan = desc->plan;
    made->trace = desc->trace;
    made->memory = (char*)desc->memory;
    made->memory_bytes = desc->memory_bytes;
    made->n_buffers = desc->plan ? desc->plan->n_buffers : 0;
    made->is_checked = desc->is_checked && (desc->plan || desc->device);
    made->dry_address = made->dry_address_begin = MEMOI_DRY_ADDRESS;

    if (made->is_checked)
        status = memob_probe_create(&made->probe, desc->device, "memo_arena_desc.device",
                                    desc->streams, desc->n_streams, error);
    if (made->is_checked && made->plan && !status) {
        made->regions = MEMOB_ARRAY(&made->arrays, memoi_region, made->n_buffers);
        if (!made->regions) status = memob_no_memory(error, "an arena");
    }
    if (made->plan && !status) {
        status = memoi_arena_events(made, error);
        if (!status) status = memoi_arena_take_memory(made, desc, error);
        if (!status) status = memoi_arena_slots(made, error);
        if (!status && made->plan->n_waits > 0)
            status = memoi_arena_buy(made, desc->streams, error);
    }

    if (status)
        memo_arena_destroy(made);
    else
        *arena = made;
    return status;
}

void memo_arena_destroy(memo_arena* arena) {
    if (!arena) return;
    (void)memoi_arena_blocks_drop(arena, 0, NULL);
    for (int64_t i = 0; i < arena->n_steps; i++)
        if (arena->steps[i].is_wait) memo_event_destroy(arena->device, arena->steps[i].event, NULL);
    if (arena->own_memory) memo_device_free(arena->device, arena->own_memory, NULL);
    memob_probe_destroy(&arena->probe);
    if (!arena->plan) MEMO_FREE(arena->regions);
    memob_map_free(&arena->blocks.index);
    memob_map_free(&arena->addresses);
    MEMO_FREE(arena->blocks.list);
    memob_arrays_free(&arena->arrays);
    MEMO_FREE(arena);
}

/* ---- >>arena requests ---------------------------------------------------------------------------
 * Knows: micro-batches, the next planned request, and divergence.  Knows nothing of how offsets
 * were found.
 *
 * 1. A micro-batch begins with the blocks from before the body alone; its own come behind them.
 * 2. The cursor is at an event or behind the last; inside a micro-batch at one of the body.
 * 3. A slot is free when it is served; so are all slots that share bytes with it.
 * 4. A request is served behind all steps that are due, its waits included.
 * 5. What lives in a recorded trace when a micro-batch ends was requested before the first one.
 * 6. The last of the trace's buffers is the block that was recorded last. */

/* Is this a planned free that has not happened? */
MEMOI int memoi_arena_is_due(const memo_arena* arena, int64_t event) {
    const int64_t index = arena->events[event].index;
    return index < arena->n_buffers && arena->slots[index].is_live;
}

/* Moves the cursor over planned frees that have happened. */
MEMOI void memoi_arena_skip(memo_arena* arena) {
    while (arena->cursor < arena->n_events &&
           arena->events[arena->cursor].index < arena->n_buffers &&
           !memoi_arena_is_due(arena, arena->cursor))
        arena->cursor++;
}

memo_status memo_arena_begin(memo_arena* arena, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t n_early = 0;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (arena->state == MEMOI_ARENA_INSIDE)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_arena_begin: a micro-batch is open; end it first");
    for (int64_t i = 0; i < arena->body_event && arena->state == MEMOI_ARENA_BEFORE; i++)
        n_early += memoi_arena_is_due(arena, i);
    if (n_early)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_arena_begin: %lld buffers are live that the plan frees before "
                              "the first micro-batch; free them, their bytes are reused",
                              (long long)n_early);
    if (arena->trace) status = memo_trace_mark(arena->trace, "iteration begin", error);
    if (status) return status;

    /* The outputs of the micro-batch before end. */
    if (arena->state == MEMOI_ARENA_BETWEEN) {
        status = memoi_arena_look_at_all(arena, 1, error);
        if (!status) status = memoi_arena_blocks_drop(arena, arena->blocks.n_before_body, error);
        if (status) return status;
    }
    MEMO_ASSERT(arena->state == MEMOI_ARENA_BEFORE || /* 1 */
                arena->blocks.n == arena->blocks.n_before_body);
    arena->dry_address_begin = arena->dry_address;
    arena->blocks.n_before_body = arena->blocks.n;
    arena->cursor = arena->body_event;
    arena->next_step = 0;
    arena->n_body_requests = 0;
    arena->state = MEMOI_ARENA_INSIDE;
    return MEMO_STATUS_OK;
}

/* Ends what is left of the micro-batch, which is no longer open.  Its bytes stay. */
MEMOI void memoi_arena_close(memo_arena* arena) {
    memoi_arena_skip(arena);
    MEMO_ASSERT(arena->cursor >= arena->body_event && arena->cursor <= arena->n_events); /* 2 */
    for (int64_t i = arena->body_event; i < arena->cursor && arena->cursor < arena->n_events; i++)
        arena->slots[arena->events[i].index % arena->n_buffers].is_live = 0;
    for (int64_t i = arena->blocks.n_before_body; i < arena->blocks.n; i++)
        memoi_arena_block_end(arena, i);
    arena->dry_address = arena->dry_address_begin;
    arena->state = MEMOI_ARENA_BETWEEN;
}

memo_status memo_arena_end(memo_arena* arena, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (arena->state != MEMOI_ARENA_INSIDE)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "memo_arena_end: no micro-batch is open; call memo_arena_begin first");
    for (int64_t i = arena->blocks.n - 1; i >= arena->blocks.n_before_body && arena->trace; i--) {
        memo_status status = MEMO_STATUS_OK;
        if (arena->blocks.list[i].address)
            status = memo_trace_free(arena->trace, arena->blocks.list[i].id, error);
        if (status) return status;
        memoi_arena_block_end(arena, i);
    }
    if (arena->trace) {
        memo_status status = memo_trace_mark(arena->trace, "iteration end", error);
        if (status) return status;
        MEMO_ASSERT(arena->trace->n_live <= arena->blocks.n_before_body); /* 5 */
        arena->trace = NULL;                                              /* recorded */
    }
    memoi_arena_close(arena);
    return memoi_arena_look_at_all(arena, 0, error);
}

/* Abandons the current micro-batch: frees the buffers.  A recording ends, and its trace is of no
 * use.  The next call is memo_arena_begin. */
MEMOI void memob_arena_abandon(memo_arena* arena) {
    if (arena->state != MEMOI_ARENA_INSIDE) return;
    memoi_arena_close(arena);
    (void)memoi_arena_blocks_drop(arena, arena->blocks.n_before_body, NULL);
    arena->trace = NULL;
}

/* --- requests, recorded --- */

/* Takes a block from the device and lists it, in the trace too. */
MEMOI memo_status memoi_arena_record_alloc(memo_arena* arena, int64_t size_bytes, int32_t stream,
                                           void** address, memo_error* error) {
    memoi_blocks* blocks = &arena->blocks;
    memoi_block block = {NULL, size_bytes, arena->trace ? arena->trace->n_buffers : -1, NULL};
    const int64_t room =
        arena->is_checked ? memoi_arena_room(size_bytes, MEMOB_DEVICE_ALIGNMENT) : 0;
    memo_status status;
    if (!memob_grow(&blocks->list, blocks->n, 1, sizeof(memoi_block)) ||
        (arena->is_checked && !memob_grow(&arena->regions, blocks->n, 1, sizeof(memoi_region))))
        return memob_no_memory(error, "the arena's list of blocks");
    if (size_bytes > MEMOB_BYTES_MAX - blocks->live_bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "size: live sizes sum to more than 2^62 bytes; free some first");
    status = arena->device
                 ? memo_device_alloc(arena->device, memob_max(room, size_bytes + !size_bytes),
                                     address, error)
                 : memoi_arena_dry_alloc(arena, size_bytes, address, error);
    if (status) return status;
    if (arena->is_checked) {
        const memoi_region region = {(char*)*address, room, size_bytes};
        arena->regions[blocks->n] = region;
        status = memob_probe_sweep(&arena->probe, region.begin, room, 1, NULL, error);
    }

    if (!status && !memob_map_put(&blocks->index, memoi_arena_address_key(*address), blocks->n))
        status = memob_no_memory(error, "the arena's list of blocks");
    if (status) {
        if (arena->device) memo_device_free(arena->device, *address, NULL);
        return status;
    }
    block.address = *address;
    block.taken = arena->device ? *address : NULL;
    blocks->list[blocks->n++] = block;
    blocks->live_bytes += size_bytes;
    blocks->peak_bytes = memob_max(blocks->peak_bytes, blocks->live_bytes);
    MEMO_ASSERT(blocks->n_before_body < blocks->n); /* 1 */
    if (arena->trace) {
        status = memo_trace_malloc(arena->trace, block.id, size_bytes,
                                   arena->state == MEMOI_ARENA_BEFORE ? MEMO_CLASS_PERSISTENT
                                                                      : MEMO_CLASS_TRANSIENT,
                                   stream, error);
        MEMO_ASSERT(status || arena->trace->n_buffers == block.id + 1); /* 6 */
        if (status) memoi_arena_block_free(arena, blocks->n - 1, NULL);
    }
    arena->n_requests += !status;
    return status;
}

/* --- requests, replayed ---
 *
 * A request is served from the plan only if all planned events before it have happened or can no
 * longer happen (a planned free of a buffer that is not live).  So live buffers are at their
 * planned addresses and never overlap, whatever the trainer does. */

/* Enqueues the steps that are due before the event at the cursor: records, and waits if it is
 * requested. */
MEMOI memo_status memoi_arena_steps(memo_arena* arena, int is_requested, memo_error* error) {
    for (; arena->next_step < arena->n_steps && arena->state == MEMOI_ARENA_INSIDE;
         arena->next_step++) {
        const memoi_step* step = &arena->steps[arena->next_step];
        memo_status status;
        MEMO_ASSERT(arena->next_step == 0 || step[-1].at <= step->at); /* 4 */
        if (step->at > arena->cursor || (step->is_wait && !is_requested)) break;
        status = step->is_wait ? memo_event_wait(arena->device, step->event, step->stream, error)
                               : memo_event_record(arena->device, step->event, step->stream, error);
        if (status) return status;
    }
    return MEMO_STATUS_OK;
}

/* The error of a request other than the planned one. */
MEMOI memo_status memoi_arena_diverge(const memo_arena* arena, int64_t end, int64_t size_bytes,
                                      memo_error* error) {
    char planned[128] = "the plan has no more requests";
    if (arena->cursor < end) {
        const int64_t index = arena->events[arena->cursor].index, n = arena->n_buffers;
        const memo_buffer* buffer = &arena->plan->buffers[index % n];
        snprintf(planned, sizeof planned, "the plan %s buffer %lld of %lld bytes (id %lld)%s",
                 index < n ? "first frees" : "has", (long long)(index % n),
                 (long long)buffer->size_bytes, (long long)buffer->id, index < n ? "" : " here");
    }
    return memo_error_set(error, MEMO_STATUS_DIVERGED,
                          "request %lld %s asks for %lld bytes, but %s; record and plan again",
                          (long long)arena->n_body_requests,
                          arena->state == MEMOI_ARENA_INSIDE ? "of the micro-batch"
                                                             : "before the micro-batches",
                          (long long)size_bytes, planned);
}

/* For the assertion: of the live slots, as many as share a byte with slot i.  Large plans are not
 * looked at, since it looks at all slots. */
MEMOI int64_t memoi_arena_n_sharing(const memo_arena* arena, int64_t i) {
    const memoi_slot* slot = &arena->slots[i];
    const int64_t n = arena->n_buffers <= 1000 ? arena->n_buffers : 0;
    int64_t n_sharing = 0;
    for (int64_t k = 0; k < n; k++) {
        const memoi_slot* other = &arena->slots[k];
        n_sharing += other->is_live && other->address < slot->address + slot->size_bytes &&
                     slot->address < other->address + other->size_bytes;
    }
    return n_sharing;
}

MEMOI memo_status memoi_arena_replay_alloc(memo_arena* arena, int64_t size_bytes, void** address,
                                           memo_error* error) {
    int64_t end = arena->state == MEMOI_ARENA_BEFORE ? arena->body_event : arena->n_events;
    int64_t buffer;
    memoi_slot* slot;
    memo_status status = MEMO_STATUS_OK;
    memoi_arena_skip(arena);
    MEMO_ASSERT(arena->cursor <= arena->n_events); /* 2 */
    buffer = arena->events[arena->cursor].index - arena->n_buffers;
    if (arena->cursor >= end || buffer < 0 || size_bytes > arena->slots[buffer].size_bytes)
        return memoi_arena_diverge(arena, end, size_bytes, error);
    if (arena->n_steps > 0) status = memoi_arena_steps(arena, 1, error);
    if (status) return status;
    MEMO_ASSERT(arena->state != MEMOI_ARENA_INSIDE || arena->next_step == arena->n_steps || /* 4 */
                arena->steps[arena->next_step].at > arena->cursor);
    slot = &arena->slots[buffer];
    MEMO_ASSERT(!slot->is_live);                            /* 3 */
    MEMO_ASSERT(memoi_arena_n_sharing(arena, buffer) == 0); /* 3 */
    slot->is_live = 1;
    arena->slots[slot->first].holder = buffer;
    *address = slot->address;
    arena->cursor++;
    arena->n_body_requests++;
    arena->n_requests++;
    return arena->is_checked ? memoi_arena_look(arena, buffer, size_bytes, error) : MEMO_STATUS_OK;
}

/* The live slot at an address, or NULL: the slot of the next planned free, or another slot if the
 * free is early or late. */
MEMOI memoi_slot* memoi_arena_find_slot(const memo_arena* arena, const void* address) {
    const int64_t next = arena->events[arena->cursor].index;
    memoi_slot* slot = next < arena->n_buffers ? &arena->slots[next] : NULL;
    if (!slot || slot->address != address) {
        int64_t first = memob_map_get(&arena->addresses, memoi_arena_address_key(address));
        slot = first < 0 ? NULL : &arena->slots[arena->slots[first].holder];
    }
    return slot && slot->is_live && slot->address == address ? slot : NULL;
}

/* --- requests --- */

memo_status memo_arena_alloc(memo_arena* arena, int64_t size_bytes, int32_t stream, void** address,
                             memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    MEMOB_REFUSE_NULL(error, "address", address);
    if (!memob_is_within(size_bytes, 0, MEMOB_BYTES_MAX))
        return memob_check_integer("arena", "size_bytes", size_bytes, 0, MEMOB_BYTES_MAX, error);
    if (arena->state == MEMOI_ARENA_BETWEEN)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "request between micro-batches; call memo_arena_begin first");
    return arena->plan ? memoi_arena_replay_alloc(arena, size_bytes, address, error)
                       : memoi_arena_record_alloc(arena, size_bytes, stream, address, error);
}

/* A block of the device, while recording. */
MEMOI memo_status memoi_arena_find_block(const memo_arena* arena, const void* address,
                                         const char* what, int64_t* i, memo_error* error) {
    *i = memob_map_get(&arena->blocks.index, memoi_arena_address_key(address));
    if (*i >= 0 && address) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error,
                         "%s of %p: not a live buffer of this arena; pass an address of "
                         "memo_arena_alloc, and free each buffer once",
                         what, address);
}

memo_status memo_arena_free(memo_arena* arena, void* address, memo_error* error) {
    memoi_slot* slot = NULL;
    int64_t i;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (arena->plan) {
        memoi_arena_skip(arena);
        slot = memoi_arena_find_slot(arena, address);
    }

    /* In replay the slot keeps its place. */
    if (slot) {
        slot->is_live = 0;
        status = MEMO_STATUS_OK;
        if (arena->n_steps > 0) {
            memoi_arena_skip(arena);
            status = memoi_arena_steps(arena, 0, error);
        }
        return status || !arena->is_checked
                   ? status
                   : memoi_arena_look(arena, slot - arena->slots, 0, error);
    }

    /* Checked: the device keeps the bytes, so that whoever still uses them is found. */
    status = memoi_arena_find_block(arena, address, "free", &i, error);
    if (!status && arena->trace)
        status = memo_trace_free(arena->trace, arena->blocks.list[i].id, error);
    if (status) return status;
    if (!arena->is_checked) return memoi_arena_block_free(arena, i, error);
    memoi_arena_block_end(arena, i);
    return memoi_arena_look(arena, i, 0, error);
}

memo_status memo_arena_use(memo_arena* arena, void* address, int32_t stream, memo_error* error) {
    memo_status status;
    int64_t i;
    MEMOB_REFUSE_NULL(error, "arena", arena);
    if (!arena->trace) return MEMO_STATUS_OK;
    status = memoi_arena_find_block(arena, address, "use", &i, error);
    return status ? status : memo_trace_use(arena->trace, arena->blocks.list[i].id, stream, error);
}

memo_status memo_arena_record(memo_arena* arena, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    return arena->trace ? memo_trace_record(arena->trace, event, stream, error) : MEMO_STATUS_OK;
}

memo_status memo_arena_wait(memo_arena* arena, int64_t event, int32_t stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    return arena->trace ? memo_trace_wait(arena->trace, event, stream, error) : MEMO_STATUS_OK;
}

memo_status memo_arena_mark(memo_arena* arena, const char* text, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "arena", arena);
    return arena->trace ? memo_trace_mark(arena->trace, text, error) : MEMO_STATUS_OK;
}

memo_arena_stats memo_arena_get_stats(const memo_arena* arena) {
    memo_arena_stats stats = MEMO_ZERO(memo_arena_stats);
    if (!arena) return stats;
    stats.n_requests = arena->n_requests;
    stats.reserved_bytes = arena->plan ? arena->reserved_bytes : arena->blocks.peak_bytes;
    return stats;
}

/* ---- >>host device ------------------------------------------------------------------------------
 * Knows: threads, counters, the device table.  Knows nothing of traces, plans or swapping.
 *
 * 1. Counters are even but for the sleepers' bit, and never go back.
 * 2. Operations in a queue take at most its places, or there is one alone; and the STOP of a stream
 *    that ends.
 * 3. An event has a mark for each stream that recorded it; the latest one has a stream.
 * 4. A wait ends after its record; the clock of a worker never goes back.
 * 5. What is reused was destroyed before; what is stopped is live.
 * 6. Bytes used of a memory are at least 0, at most its capacity and its peak.
 * 7. A copy stays inside its rows.
 *
 * Who writes what.  The caller's thread fills a stream's queue, numbers the records of events and
 * does all bookkeeping of memory.  A stream's worker empties the queue and completes the events
 * recorded on it.  The two meet in counters; what else is shared is relaxed and orders nothing. */
#ifndef MEMO_NO_HOST_DEVICE

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#define MEMOI_HOST_MAGIC                0x6d656d6f686f7374u /* "memohost" */
#define MEMOI_HOST_QUEUE_OPERATIONS     1024                /* about as many as CUDA takes */
#define MEMOI_HOST_QUEUE_OPERATIONS_MAX ((int64_t)1 << 24)
#define MEMOI_HOST_PLACE_ARGS_BYTES     64     /* of args in the first place; those of a copy */
#define MEMOI_HOST_CHUNK_BYTES          262144 /* a copy looks at its rate at least this often */
#define MEMOI_HOST_CHUNK_S              1e-3   /* and this often */
#define MEMOI_HOST_NAP_S                2e-4   /* shorter sleeps than this are saved up */

/* 1: threads sleep on a futex.  syscall() is not in POSIX; without a declaration threads poll. */
#if defined(__linux__) && defined(SYS_futex) && (defined(__USE_MISC) || !defined(__GLIBC__))
#define MEMOB_HAS_FUTEX 1
#else
#define MEMOB_HAS_FUTEX 0
#endif

/* --- counter ---
 *
 * A counter is the only way in which two threads meet.  One thread sets it, in steps of two that
 * wrap; any number wait for it.  Bit 0: somebody sleeps on it.
 *
 * The sleepers' bit is part of the counted word.  Setting it fails if the counter moves meanwhile,
 * and moving the counter clears it, so no wake-up is missed.  Waiters read relaxed until they have
 * reached their target, so that they order nothing else. */

/* Compares a value that was loaded before, without any ordering. */
MEMOI int memob_counter_is_past(uint32_t value, uint32_t target) {
    return (value & ~1u) - target < 0x80000000u;
}

/* Wakes the sleepers of a counter that was `before`. */
MEMOI void memob_counter_wake(uint32_t* counter, uint32_t before) {
#if MEMOB_HAS_FUTEX
    if (before & 1)
        syscall(SYS_futex, counter, 1 | 128 /* wake, private */, INT32_MAX, NULL, NULL, 0);
#else
    (void)counter;
    (void)before;
#endif
}

/* Sleeps while the counter is value, at most limit_ns. */
MEMOI void memob_counter_sleep(uint32_t* counter, uint32_t value, int64_t limit_ns) {
#if MEMOB_HAS_FUTEX
    struct timespec limit = memoi_timespec(limit_ns);
    if (MEMOB_TURN(waits())) return;
    if ((value & 1) || __atomic_compare_exchange_n(counter, &value, value | 1, 0, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED))
        syscall(SYS_futex, counter, 0 | 128 /* wait, private */, value | 1, &limit, NULL, 0);
#else
    (void)counter;
    (void)value;
    (void)limit_ns;
    memob_sleep_until(memob_now_ns() + 100000);
#endif
}

/* Releases, and wakes sleepers. */
MEMOI void memob_counter_set(uint32_t* counter, uint32_t value) {
    const uint32_t before = __atomic_exchange_n(counter, value, __ATOMIC_RELEASE);
    MEMO_ASSERT(!(value & 1));                               /* 1 */
    MEMO_ASSERT(memob_counter_is_past(value, before & ~1u)); /* 1 */
    memob_counter_wake(counter, before);
}

/* Acquires if it returns 1. */
MEMOI int memob_counter_reached(const uint32_t* counter, uint32_t target) {
    if (!memob_counter_is_past(__atomic_load_n(counter, __ATOMIC_RELAXED), target)) return 0;
    (void)__atomic_load_n(counter, __ATOMIC_ACQUIRE);
    return 1;
}

MEMOI void memoi_host_counter_wait(uint32_t* counter, uint32_t target) {
    int64_t n_tries = 0;
    for (; !memob_counter_reached(counter, target); n_tries++) {
        const uint32_t value = __atomic_load_n(counter, __ATOMIC_RELAXED);
        if (n_tries < MEMOB_SPINS)
            memob_spin_pause();
        else if (!memob_counter_is_past(value, target))
            memob_counter_sleep(counter, value, 1000000000);
    }
}

/* --- what the device is made of --- */

/* The records of one event on one stream.  A stream completes its records in order, so a wait for a
 * record is a wait for a counter; a record on another stream must not end that wait.  Records take
 * turns with several counters: otherwise a wait that comes late would see later records too, and be
 * ordered after more than the wait asked for. */
#define MEMOI_HOST_TURNS 16
typedef struct memoi_host_mark {
    struct memoi_host_mark* next;
    const struct memoi_host_stream* stream; /* NULL: still free */
    uint32_t enqueued;                   /* the caller's: number of the latest record, times two */
    uint32_t counters[MEMOI_HOST_TURNS]; /* the worker's */
    int64_t time_ns; /* of the latest completion; waits on other streams read any later one */
} memoi_host_mark;

MEMOI uint32_t* memoi_host_counter(memoi_host_mark* mark, uint32_t target) {
    return &mark->counters[target / 2 % MEMOI_HOST_TURNS];
}

/* Every stream and event begins with it. */
typedef struct memoi_host_made {
    struct memoi_host* host; /* the device that made it */
    int32_t is_live;
} memoi_host_made;

/* Destroyed events stay in the device for reuse: queues may still name them. */
typedef struct memoi_host_event {
    memoi_host_made made;
    struct memoi_host_event* next_free; /* of the destroyed */
    memoi_host_mark first_mark;
    memoi_host_mark* latest; /* NULL: never recorded */
} memoi_host_event;

typedef enum memoi_host_op_kind {
    MEMOI_HOST_CALL,
    MEMOI_HOST_RECORD,
    MEMOI_HOST_WAIT,
    MEMOI_HOST_STOP
} memoi_host_op_kind;

/* The first place of an operation; its args go on in the next places. */
typedef struct memoi_host_op {
    memoi_host_op_kind kind;
    int32_t n_places;
    int64_t enqueued_ns;
    memo_host_function function; /* CALL */
    uint32_t target;             /* RECORD, WAIT: number of the record, times two */
    union {
        char bytes[MEMOI_HOST_PLACE_ARGS_BYTES]; /* CALL */
        memoi_host_mark* mark;                   /* RECORD, WAIT */
        long double aligned_for_numbers;
    } args;
} memoi_host_op;

MEMOI int32_t memoi_host_places(int64_t args_bytes) {
    const int64_t place_bytes = (int64_t)sizeof(memoi_host_op);
    return (int32_t)((args_bytes - MEMOI_HOST_PLACE_ARGS_BYTES + 2 * place_bytes - 1) /
                     place_bytes);
}
#define MEMOI_HOST_PLACES_MAX ((int64_t)memoi_host_places(MEMO_HOST_ARGS_BYTES))

/* All of them, not only the ones in the first place. */
MEMOI char* memoi_host_args(memoi_host_op* op) { return (char*)op + offsetof(memoi_host_op, args); }

typedef struct memoi_host_stream {
    memoi_host_made made;
    struct memoi_host_stream* next; /* of all; destroyed streams stay for reuse: events name them */
    char name[32];
    pthread_t thread;
    /* A ring of n_places.  An operation that begins at one of the last goes on behind the end. */
    memoi_host_op* places;
    int64_t n_places;

    /* The caller's side of the queue. */
    int64_t tail_index;
    uint32_t tail_position;
    uint32_t seen_head; /* as of the last time that the queue looked full */
    char apart1[64];    /* the two sides write to cache lines of their own */
    uint32_t tail;      /* counter */
    char apart2[64];
    uint32_t head;    /* counter */
    uint32_t drained; /* counter: the head when the queue was last empty.  Who waits for an empty
                       * queue waits for this counter, and is not woken by each operation. */

    /* The worker's clock: when the next operation may begin.  Events read this clock.  Operations
     * with a given duration count from it, so a worker that wakes up late does not slow them. */
    int64_t ready_ns;
} memoi_host_stream;

typedef struct memoi_host_memory {
    const char* name;
    memo_status status_when_full;
    int64_t capacity_bytes; /* 0: no limit */
    int64_t used_bytes, peak_bytes;
    memob_map sizes; /* from address */
} memoi_host_memory;

typedef struct memoi_host {
    uint64_t magic;
    memo_device table;
    int64_t queue_operations, stack_bytes;
    memoi_host_memory device_memory, host_memory;
    memoi_host_stream* streams;
    memoi_host_event* free_events;
    memob_arrays arrays; /* streams, events and marks, which live as long as the device */

    /* By memo_copy_kind; relaxed. */
    double bytes_per_s[2];
    int64_t copied_bytes[2];
    int32_t n_copies[2]; /* in progress, if there is a rate */

    memob_failure failure;
} memoi_host;

/* --- what the workers do --- */

typedef struct memoi_host_sleep_args {
    memoi_host_stream* stream;
    double duration_s;
} memoi_host_sleep_args;

MEMOI memo_status memoi_host_run_sleep(void* args, memo_error* error) {
    const memoi_host_sleep_args* sleep = (const memoi_host_sleep_args*)args;
    (void)error;
    sleep->stream->ready_ns += (int64_t)(sleep->duration_s * 1e9);
    memob_sleep_until(sleep->stream->ready_ns);
    return MEMO_STATUS_OK;
}

typedef struct memoi_host_fill_args {
    void* address;
    int64_t size_bytes;
    int32_t byte_value;
} memoi_host_fill_args;

MEMOI memo_status memoi_host_run_fill(void* args, memo_error* error) {
    const memoi_host_fill_args* fill = (const memoi_host_fill_args*)args;
    (void)error;
    if (fill->size_bytes) memset(fill->address, fill->byte_value, (size_t)fill->size_bytes);
    return MEMO_STATUS_OK;
}

typedef struct memoi_host_copy_args {
    memoi_host_stream* stream;
    memo_copy_kind kind;
    char* to;
    const char* from;
    int64_t to_stride_bytes, from_stride_bytes, row_bytes, n_rows;
} memoi_host_copy_args;

/* Bytes [begin, end) of the rows laid end to end. */
MEMOI void memoi_host_copy_part(const memoi_host_copy_args* copy, int64_t begin, int64_t end) {
    MEMO_ASSERT(begin >= 0 && end <= copy->row_bytes * copy->n_rows); /* 7 */
    while (begin < end) {
        int64_t row = begin / copy->row_bytes, column = begin % copy->row_bytes;
        int64_t n = memob_min(copy->row_bytes - column, end - begin);
        memcpy(copy->to + row * copy->to_stride_bytes + column,
               copy->from + row * copy->from_stride_bytes + column, (size_t)n);
        begin += n;
    }
}

/* Copies in one direction share its rate equally. */
MEMOI void memoi_host_copy_slowly(const memoi_host_copy_args* copy, int way, int64_t total_bytes) {
    memoi_host* host = copy->stream->made.host;
    const int64_t start_ns = copy->stream->ready_ns;
    int64_t done_bytes = 0, busy_ns = 0, begin_ns, now_ns;
    double due_s = 0; /* after the start; grows by exact amounts, so late wake-ups do not add up */
    __atomic_fetch_add(&host->n_copies[way], 1, __ATOMIC_RELAXED);
    while (done_bytes < total_bytes) {
        int32_t n_copies = __atomic_load_n(&host->n_copies[way], __ATOMIC_RELAXED);
        double rate = host->bytes_per_s[way] / n_copies;
        int64_t n = MEMOI_HOST_CHUNK_BYTES;
        MEMO_ASSERT(n_copies > 0); /* this one at least */
        if (rate * MEMOI_HOST_CHUNK_S < (double)n) n = 1 + (int64_t)(rate * MEMOI_HOST_CHUNK_S);
        n = memob_min(n, total_bytes - done_bytes);

        begin_ns = memob_now_ns();
        memoi_host_copy_part(copy, done_bytes, done_bytes + n);
        now_ns = memob_now_ns();
        busy_ns += now_ns - begin_ns;
        done_bytes += n;
        due_s += (double)n / rate;
        if (due_s - (double)(now_ns - start_ns) * 1e-9 > MEMOI_HOST_NAP_S ||
            done_bytes == total_bytes)
            memob_sleep_until(start_ns + (int64_t)(due_s * 1e9));
    }
    __atomic_fetch_sub(&host->n_copies[way], 1, __ATOMIC_RELAXED);

    /* Memory may be slower than the rate. */
    copy->stream->ready_ns = start_ns + memob_max(busy_ns, (int64_t)(due_s * 1e9));
}

MEMOI memo_status memoi_host_run_copy(void* args, memo_error* error) {
    const memoi_host_copy_args* copy = (const memoi_host_copy_args*)args;
    memoi_host* host = copy->stream->made.host;
    int64_t total_bytes = copy->row_bytes * copy->n_rows;
    int way = copy->kind == MEMO_COPY_TO_DEVICE;
    int is_on_device = copy->kind == MEMO_COPY_ON_DEVICE;
    (void)error;
    if (!is_on_device && host->bytes_per_s[way] > 0)
        memoi_host_copy_slowly(copy, way, total_bytes);
    else
        memoi_host_copy_part(copy, 0, total_bytes);
    if (!is_on_device) __atomic_fetch_add(&host->copied_bytes[way], total_bytes, __ATOMIC_RELAXED);
    return MEMO_STATUS_OK;
}

MEMOI void* memoi_host_worker(void* argument) {
    memoi_host_stream* stream = (memoi_host_stream*)argument;
    uint32_t position = 0;
    int64_t index = 0;
#if defined(__linux__)
    prctl(PR_SET_NAME, (unsigned long)(uintptr_t)stream->name, 0UL, 0UL, 0UL);
    /* The default of 50 us would lengthen each sleep. */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif

    (void)MEMOB_TURN(begins());

    /* Until the queue is stopped. */
    for (;;) {
        memoi_host_op* op = &stream->places[index];
        if (!memob_counter_reached(&stream->tail, position + 2))
            memob_counter_set(&stream->drained, position);
        memoi_host_counter_wait(&stream->tail, position + 2);
        if (op->kind == MEMOI_HOST_STOP) break;
        (void)MEMOB_TURN(waits()); /* any other thread may be faster */
        stream->ready_ns = memob_max(stream->ready_ns, op->enqueued_ns);
        MEMO_ASSERT(op->kind <= MEMOI_HOST_WAIT);

        /* A record is completed even after a failure: other streams may wait for it. */
        if (op->kind == MEMOI_HOST_RECORD) {
            __atomic_store_n(&op->args.mark->time_ns, stream->ready_ns, __ATOMIC_RELAXED);
            memob_counter_set(memoi_host_counter(op->args.mark, op->target), op->target);
        } else if (op->kind == MEMOI_HOST_WAIT) {
            memoi_host_counter_wait(memoi_host_counter(op->args.mark, op->target), op->target);
            MEMO_ASSERT(memob_counter_reached(memoi_host_counter(op->args.mark, op->target),
                                              op->target)); /* 4 */
            stream->ready_ns = memob_max(
                stream->ready_ns, __atomic_load_n(&op->args.mark->time_ns, __ATOMIC_RELAXED));
        } else if (!memob_failure_is_kept(&stream->made.host->failure)) {
            const int64_t begin_ns = stream->ready_ns;
            memo_error error = MEMO_ZERO(memo_error);
            const memo_status status = op->function(memoi_host_args(op), &error);
            if (status)
                memob_failure_keep(&stream->made.host->failure, status, "stream %s: %.400s",
                                   stream->name,
                                   error.message[0] ? error.message : memo_status_name(status));
            MEMO_ASSERT(stream->ready_ns >= begin_ns); /* 4 */
            if (stream->ready_ns == begin_ns) stream->ready_ns = memob_now_ns();
        }

        /* The places in the queue are free for the caller's thread. */
        position += 2 * (uint32_t)op->n_places;
        index += op->n_places;
        if (index >= stream->n_places) index -= stream->n_places;
        memob_counter_set(&stream->head, position);
    }
    (void)MEMOB_TURN(ends());
    return NULL;
}

/* --- what the caller's thread does --- */

MEMOI memo_status memoi_host_status(void* context, memo_error* error) {
    return memob_failure_status(&((memoi_host*)context)->failure, error);
}

/* Checks a stream or event of the caller's; what: which. */
MEMOI memo_status memoi_host_check(const void* host, const void* handle, const char* what,
                                   memo_error* error) {
    const memoi_host_made* made = (const memoi_host_made*)handle;
    if (made && made->host == host && made->is_live) return MEMO_STATUS_OK;
    if (!made)
        return MEMOB_INVALID(error, "%s: NULL; pass %s %s of this host device", what,
                             *what == 'e' ? "an" : "a", what);
    return MEMOB_INVALID(error,
                         "%s: destroyed or of another device (%p); pass %s %s of this host device",
                         what, handle, *what == 'e' ? "an" : "a", what);
}

/* Gives the next places in the queue, which memoi_host_commit hands to the worker. */
MEMOI memo_status memoi_host_reserve(memoi_host_stream* stream, int64_t args_bytes,
                                     memoi_host_op** op, memo_error* error) {
    const int64_t n_most = stream->made.host->queue_operations;
    const int32_t n_places = memoi_host_places(args_bytes);
    /* The head when there is room; an operation that takes more than all places waits for all. */
    const uint32_t least =
        stream->tail_position - 2 * (uint32_t)(memob_max(n_most, n_places) - n_places);
    memo_status status = memoi_host_status(stream->made.host, error);
    if (status) return status;
    if (!memob_counter_is_past(stream->seen_head, least)) {
        memoi_host_counter_wait(&stream->head, least);
        stream->seen_head = __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE) & ~1u;
    }
    MEMO_ASSERT(memob_counter_is_past(stream->seen_head, least));                  /* 2 */
    MEMO_ASSERT(stream->tail_index >= 0 && stream->tail_index < stream->n_places); /* 2 */
    *op = &stream->places[stream->tail_index];
    (*op)->n_places = n_places;
    (*op)->enqueued_ns = memob_now_ns();
    return MEMO_STATUS_OK;
}

MEMOI void memoi_host_commit(memoi_host_stream* stream, const memoi_host_op* op) {
    stream->tail_position += 2 * (uint32_t)op->n_places;
    stream->tail_index += op->n_places;
    if (stream->tail_index >= stream->n_places) stream->tail_index -= stream->n_places;
    memob_counter_set(&stream->tail, stream->tail_position);
    (void)MEMOB_TURN(waits());
}

MEMOI memo_status memoi_host_call(const void* host, memo_stream handle, memo_host_function function,
                                  const void* args, int64_t args_bytes, memo_error* error) {
    memoi_host_stream* stream = (memoi_host_stream*)handle;
    memoi_host_op* op;
    memo_status status = memoi_host_check(host, stream, "stream", error);
    if (!status) status = memoi_host_reserve(stream, args_bytes, &op, error);
    if (status) return status;
    op->kind = MEMOI_HOST_CALL;
    op->function = function;
    if (args_bytes) memcpy(memoi_host_args(op), args, (size_t)args_bytes);
    memoi_host_commit(stream, op);
    return MEMO_STATUS_OK;
}

/* --- memory --- */

MEMOI memo_status memoi_host_memory_alloc(memoi_host_memory* memory, int64_t size_bytes,
                                          void** address, memo_error* error) {
    int64_t counted_bytes;
    char asked[32], left[32], all[32];
    *address = NULL;
    if (size_bytes < 0)
        return MEMOB_INVALID(error, "%s memory: negative size (%lld); 0 or more are valid",
                             memory->name, (long long)size_bytes);

    /* The capacity counts whole alignments, and is a hard limit. */
    memob_bytes_text(asked, (double)size_bytes);
    if (size_bytes > MEMOB_BYTES_MAX)
        return memo_error_set(error, memory->status_when_full,
                              "%s memory: %s requested; the limit is 2^62 bytes", memory->name,
                              asked);
    counted_bytes = memob_align_up(size_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (memory->capacity_bytes && counted_bytes > memory->capacity_bytes - memory->used_bytes) {
        int64_t free_bytes = memory->capacity_bytes - memory->used_bytes;
        return memo_error_set(error, memory->status_when_full,
                              "%s memory: %s (%lld bytes) requested, %s (%lld bytes) free of %s",
                              memory->name, asked, (long long)size_bytes,
                              memob_bytes_text(left, (double)free_bytes), (long long)free_bytes,
                              memob_bytes_text(all, (double)memory->capacity_bytes));
    }

    /* The machine may have less than the capacity. */
    if (counted_bytes > MEMOB_BYTES_MAX - memory->used_bytes ||
        posix_memalign(address, MEMOB_DEVICE_ALIGNMENT, size_bytes ? (size_t)size_bytes : 1)) {
        *address = NULL;
        return memo_error_set(error, memory->status_when_full,
                              "%s memory: %s (%lld bytes) requested; the machine has less",
                              memory->name, asked, (long long)size_bytes);
    }
    if (!memob_map_put(&memory->sizes, (int64_t)(uintptr_t)*address, counted_bytes)) {
        free(*address);
        *address = NULL;
        return memob_no_memory(error, "the sizes of allocations");
    }

    memory->used_bytes += counted_bytes;
    memory->peak_bytes = memob_max(memory->peak_bytes, memory->used_bytes);
    MEMO_ASSERT(!memory->capacity_bytes || memory->used_bytes <= memory->capacity_bytes); /* 6 */
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_host_memory_free(memoi_host_memory* memory, void* address,
                                         memo_error* error) {
    int64_t key = (int64_t)(uintptr_t)address, counted_bytes;
    if (!address) return MEMO_STATUS_OK;
    counted_bytes = memob_map_get(&memory->sizes, key);
    if (counted_bytes < 0)
        return MEMOB_INVALID(error, "%s memory: %p is not allocated; free each address once",
                             memory->name, address);
    memob_map_remove(&memory->sizes, key);
    memory->used_bytes -= counted_bytes;
    MEMO_ASSERT(memory->used_bytes >= 0); /* 6 */
    free(address);
    return MEMO_STATUS_OK;
}

MEMOI void memoi_host_memory_destroy(memoi_host_memory* memory) {
    for (int64_t i = 0; i < memory->sizes.capacity; i++)
        if (memory->sizes.values[i] >= 0) free((void*)(uintptr_t)memory->sizes.keys[i]);
    memob_map_free(&memory->sizes);
}

#define MEMOI_HOST_MEMORY(which)                                                                   \
    MEMOI memo_status memoi_host_##which##_alloc(void* context, int64_t n_bytes, void** address,   \
                                                 memo_error* error) {                              \
        return memoi_host_memory_alloc(&((memoi_host*)context)->which##_memory, n_bytes, address,  \
                                       error);                                                     \
    }                                                                                              \
    MEMOI memo_status memoi_host_##which##_free(void* context, void* address, memo_error* error) { \
        return memoi_host_memory_free(&((memoi_host*)context)->which##_memory, address, error);    \
    }
MEMOI_HOST_MEMORY(device)
MEMOI_HOST_MEMORY(host)

MEMOI memo_status memoi_host_memory_info(void* context, int64_t* free_bytes, int64_t* total_bytes,
                                         memo_error* error) {
    const memoi_host_memory* memory = &((memoi_host*)context)->device_memory;
    *total_bytes = memory->capacity_bytes ? memory->capacity_bytes : MEMOB_BYTES_MAX;
    *free_bytes = *total_bytes - memory->used_bytes;
    return memoi_host_status(context, error);
}

/* --- streams --- */

MEMOI memo_status memoi_host_stream_create(void* context, const char* name, int32_t priority,
                                           memo_stream* handle, memo_error* error) {
    memoi_host* host = (memoi_host*)context;
    memoi_host_stream* stream = host->streams;
    memo_status status = memoi_host_status(host, error);
    (void)priority;
    *handle = NULL;
    if (status) return status;

    /* A destroyed stream is reused, because events may still refer to it. */
    while (stream && stream->made.is_live) stream = stream->next;
    if (!stream) {
        stream = MEMOB_ARRAY(&host->arrays, memoi_host_stream, 1);
        if (!stream) return memob_no_memory(error, "a stream");
        stream->made.host = host;
        stream->next = host->streams;
        host->streams = stream;
    }

    MEMO_ASSERT(!stream->made.is_live && stream->made.host == host); /* 5 */

    /* An empty queue, with one more place for STOP.  Not zeroed: a queue never filled never touches
     * its pages. */
    stream->n_places = memob_max(host->queue_operations, MEMOI_HOST_PLACES_MAX) + 1;
    stream->places = (memoi_host_op*)MEMO_MALLOC(
        (size_t)(stream->n_places + MEMOI_HOST_PLACES_MAX - 1) * sizeof(memoi_host_op));
    if (!stream->places) return memob_no_memory(error, "the queue of a stream");
    stream->tail_index = stream->ready_ns = 0;
    stream->tail_position = stream->seen_head = stream->tail = stream->head = stream->drained = 0;
    snprintf(stream->name, sizeof stream->name, "%.31s", name ? name : "stream");

    /* The worker last: it runs at once. */
    if (memob_thread_create(&stream->thread, host->stack_bytes, memoi_host_worker, stream)) {
        MEMO_FREE(stream->places);
        return memo_error_set(
            error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
            "stream %s: the system cannot create another thread; use fewer streams, or a smaller "
            "memo_host_device_desc.stack_bytes",
            stream->name);
    }
    (void)MEMOB_TURN(creates());
    stream->made.is_live = 1;
    *handle = (memo_stream)stream;
    return MEMO_STATUS_OK;
}

MEMOI void memoi_host_stream_stop(memoi_host_stream* stream) {
    memoi_host_op* stop = &stream->places[stream->tail_index]; /* there is always room for it */
    MEMO_ASSERT(stream->made.is_live);                         /* 5 */
    stop->kind = MEMOI_HOST_STOP;
    stop->n_places = 1;
    memoi_host_commit(stream, stop);
}

MEMOI void memoi_host_stream_join(memoi_host_stream* stream) {
    (void)MEMOB_TURN(joins(stream->thread));
    pthread_join(stream->thread, NULL);
    MEMO_FREE(stream->places);
    stream->made.is_live = 0;
}

MEMOI memo_status memoi_host_stream_destroy(void* context, memo_stream handle, memo_error* error) {
    memoi_host_stream* stream = (memoi_host_stream*)handle;
    memo_status status = MEMO_STATUS_OK;
    if (stream) status = memoi_host_check(context, stream, "stream", error);
    if (!stream || status) return status;
    memoi_host_stream_stop(stream);
    memoi_host_stream_join(stream);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_host_stream_synchronize(void* context, memo_stream handle,
                                                memo_error* error) {
    memoi_host_stream* stream = (memoi_host_stream*)handle;
    memo_status status = memoi_host_check(context, stream, "stream", error);
    if (status) return status;
    memoi_host_counter_wait(&stream->drained, stream->tail_position);
    return memoi_host_status(context, error);
}

/* --- events --- */

MEMOI memo_status memoi_host_event_create(void* context, memo_event* handle, memo_error* error) {
    memoi_host* host = (memoi_host*)context;
    memoi_host_event* event = host->free_events;
    memo_status status = memoi_host_status(host, error);
    *handle = NULL;
    if (status) return status;
    if (event) {
        host->free_events = event->next_free;
    } else {
        event = MEMOB_ARRAY(&host->arrays, memoi_host_event, 1);
        if (!event) return memob_no_memory(error, "an event");
        event->made.host = host;
    }
    MEMO_ASSERT(!event->made.is_live && event->made.host == host); /* 5 */
    event->made.is_live = 1;
    event->latest = NULL;
    *handle = (memo_event)event;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_host_event_destroy(void* context, memo_event handle, memo_error* error) {
    memoi_host* host = (memoi_host*)context;
    memoi_host_event* event = (memoi_host_event*)handle;
    memo_status status = MEMO_STATUS_OK;
    if (event) status = memoi_host_check(host, event, "event", error);
    if (!event || status) return status;
    event->made.is_live = 0;
    event->next_free = host->free_events;
    host->free_events = event;
    return MEMO_STATUS_OK;
}

/* The event's mark on stream; the first record on a second stream makes one.  NULL: no memory. */
MEMOI memoi_host_mark* memoi_host_find_mark(memoi_host_event* event,
                                            const memoi_host_stream* stream) {
    memoi_host_mark* mark = &event->first_mark;
    while (mark->stream && mark->stream != stream && mark->next) mark = mark->next;
    if (mark->stream && mark->stream != stream) {
        MEMO_ASSERT(!mark->next); /* 3 */
        mark->next = MEMOB_ARRAY(&event->made.host->arrays, memoi_host_mark, 1);
        mark = mark->next;
    }
    if (mark) mark->stream = stream;
    return mark;
}

/* A record, or a wait for the latest record. */
MEMOI memo_status memoi_host_order(void* host, memoi_host_op_kind kind, memo_event event_handle,
                                   memo_stream stream_handle, memo_error* error) {
    memoi_host_event* event = (memoi_host_event*)event_handle;
    memoi_host_stream* stream = (memoi_host_stream*)stream_handle;
    memoi_host_op* op;
    /* A stream may wait for another device's event. */
    const void* made = kind == MEMOI_HOST_WAIT && event ? event->made.host : host;
    memo_status status = memoi_host_check(made, event, "event", error);
    if (!status) status = memoi_host_check(host, stream, "stream", error);
    if (!status && kind == MEMOI_HOST_WAIT && !event->latest) return memoi_host_status(host, error);
    if (!status) status = memoi_host_reserve(stream, 0, &op, error);
    if (status) return status;
    if (kind == MEMOI_HOST_RECORD) {
        memoi_host_mark* mark = memoi_host_find_mark(event, stream);
        if (!mark) return memob_no_memory(error, "an event on one more stream");
        mark->enqueued += 2;
        event->latest = mark;
    }
    MEMO_ASSERT(event->latest && event->latest->stream); /* 3 */
    op->kind = kind;
    op->args.mark = event->latest;
    op->target = event->latest->enqueued;
    memoi_host_commit(stream, op);
    return MEMO_STATUS_OK;
}
MEMOI memo_status memoi_host_event_record(void* context, memo_event event, memo_stream stream,
                                          memo_error* error) {
    return memoi_host_order(context, MEMOI_HOST_RECORD, event, stream, error);
}
MEMOI memo_status memoi_host_event_wait(void* context, memo_event event, memo_stream stream,
                                        memo_error* error) {
    return memoi_host_order(context, MEMOI_HOST_WAIT, event, stream, error);
}

MEMOI int memoi_host_event_is_done(const memoi_host_event* event) {
    memoi_host_mark* mark = event->latest;
    return !mark || memob_counter_reached(memoi_host_counter(mark, mark->enqueued), mark->enqueued);
}

MEMOI memo_status memoi_host_event_query(void* context, memo_event handle, int32_t* is_done,
                                         memo_error* error) {
    memoi_host_event* event = (memoi_host_event*)handle;
    memo_status status = memoi_host_check(context, event, "event", error);
    if (status) return status;
    *is_done = memoi_host_event_is_done(event);
    return memoi_host_status(context, error);
}

MEMOI memo_status memoi_host_event_synchronize(void* context, memo_event handle,
                                               memo_error* error) {
    memoi_host_event* event = (memoi_host_event*)handle;
    memo_status status = memoi_host_check(context, event, "event", error);
    if (status) return status;
    if (event->latest)
        memoi_host_counter_wait(memoi_host_counter(event->latest, event->latest->enqueued),
                                event->latest->enqueued);
    return memoi_host_status(context, error);
}

MEMOI memo_status memoi_host_event_elapsed(void* context, memo_event begin_handle,
                                           memo_event end_handle, double* elapsed_s,
                                           memo_error* error) {
    memoi_host_event *begin = (memoi_host_event*)begin_handle, *end = (memoi_host_event*)end_handle;
    memo_status status = memoi_host_status(context, error);
    if (!status) status = memoi_host_check(context, begin, "event", error);
    if (!status) status = memoi_host_check(context, end, "event", error);
    if (status) return status;
    if (!begin->latest || !end->latest)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "event_elapsed: the %s event was never recorded; record it first",
                              begin->latest ? "second" : "first");
    if (!memoi_host_event_is_done(begin) || !memoi_host_event_is_done(end))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "event_elapsed: the %s event is not done; synchronize first",
                              memoi_host_event_is_done(begin) ? "second" : "first");
    *elapsed_s = (double)(end->latest->time_ns - begin->latest->time_ns) * 1e-9;
    return MEMO_STATUS_OK;
}

/* --- copies --- */

MEMOI memo_status memoi_host_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                       void* to, int64_t to_stride_bytes, const void* from,
                                       int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows,
                                       memo_error* error) {
    memoi_host_copy_args copy = {
        (memoi_host_stream*)stream, kind,      (char*)to, (const char*)from, to_stride_bytes,
        from_stride_bytes,          row_bytes, n_rows};
    /* Everything is checked here: an operation that fails later fails the whole device. */
    memo_status status = memob_check_copy(kind, to, to_stride_bytes, from, from_stride_bytes,
                                          row_bytes, n_rows, error);
    if (status) return status;

    /* Rows that touch are one long row. */
    if (to_stride_bytes == row_bytes && from_stride_bytes == row_bytes) {
        copy.row_bytes = row_bytes * n_rows;
        copy.n_rows = 1;
    }
    return memoi_host_call(context, stream, memoi_host_run_copy, &copy, sizeof copy, error);
}

MEMOI memo_status memoi_host_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                  const void* from, int64_t size_bytes, memo_error* error) {
    return memoi_host_copy_rows(context, stream, kind, to, size_bytes, from, size_bytes, size_bytes,
                                1, error);
}

MEMOI memo_status memoi_host_fill(void* context, memo_stream stream, void* address,
                                  int32_t byte_value, int64_t size_bytes, memo_error* error) {
    const memoi_host_fill_args fill = {address, size_bytes, byte_value};
    if (size_bytes < 0 || (!address && size_bytes))
        return MEMOB_INVALID(
            error,
            "fill: invalid range (%lld bytes at %p); 0 or more bytes at an address are valid",
            (long long)size_bytes, address);
    return memoi_host_call(context, stream, memoi_host_run_fill, &fill, sizeof fill, error);
}

/* --- host functions --- */

MEMOI memo_status memoi_host_run_call(void* args, memo_error* error) {
    const memo_host_call* call = *(memo_host_call**)args;
    return call->function(call->argument, error);
}

MEMOI memo_status memoi_host_row_kernel(void* context, memo_stream stream,
                                        const memo_row_call* call, memo_error* error) {
    return memoi_host_call(context, stream, call->function, call->args, call->args_bytes, error);
}

MEMOI memo_status memoi_host_launch_host(void* context, memo_stream stream, memo_host_call* call,
                                         memo_error* error) {
    return memoi_host_call(context, stream, memoi_host_run_call, &call, sizeof call, error);
}

/* --- the device --- */

/* NULL: memo_host_device_create did not make the device.  A context is only looked at if some
 * function of the table is of this device: that of another may be a number. */
MEMOI memoi_host* memoi_host_of(const memo_device* device, memo_error* error) {
#define MEMOI_HOST_HAS(function) || device->function == memoi_host_##function
    const int is_host = device && (0 MEMOB_DEVICE_NEEDS(MEMOI_HOST_HAS));
    memoi_host* host = is_host ? (memoi_host*)device->context : NULL;
    if (host && host->magic == MEMOI_HOST_MAGIC) return host;
    MEMOB_INVALID(error, "device: not a host device; create it with memo_host_device_create");
    return NULL;
}

/* Errors: INVALID_ARGUMENT unless memo_host_device_create made the device. */
MEMOI memo_status memob_check_host_device(const memo_device* device, memo_error* error) {
    return memoi_host_of(device, error) ? MEMO_STATUS_OK : MEMO_STATUS_INVALID_ARGUMENT;
}

/* Limits that the workers' arithmetic needs. */
MEMOI memo_status memoi_host_check_desc(const memo_host_device_desc* desc, memo_error* error) {
    static const char name[] = "memo_host_device_desc";
    const memob_bounds fields[] = {
        {"device_memory_bytes", desc->device_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"host_memory_bytes", desc->host_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"queue_operations", desc->queue_operations, 0, MEMOI_HOST_QUEUE_OPERATIONS_MAX},
        {"stack_bytes", desc->stack_bytes, 0, MEMOB_BYTES_MAX}};
    memo_status status = MEMOB_CHECK_FIELDS(name, fields, error);
    if (!status)
        status = memob_check_rate(name, "to_host_bytes_per_s", desc->to_host_bytes_per_s, error);
    if (!status)
        status =
            memob_check_rate(name, "to_device_bytes_per_s", desc->to_device_bytes_per_s, error);
    return status;
}

/* Rows are computed by functions of this file.  A compiler that may reorder sums finds 1 here, and
 * one that ignores the sign of zero leaves -0 as it is. */
MEMOI memo_status memoi_host_check_math(memo_error* error) {
#ifndef MEMO_ALLOW_FAST_MATH
    volatile double large = 1e30, small = 1, negative = -0.0;
    const double a = large, b = small, zero = negative, sum = zero + 0.0;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((a + b) - a > 0 || bits != 0)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "memo.h: the implementation is compiled with -ffast-math, -Ofast or a part of these, "
            "which breaks NaN, infinity and -0 in rows; compile the implementation in a file of "
            "its own without this option");
#endif
    (void)error;
    return MEMO_STATUS_OK;
}

memo_status memo_host_device_create(const memo_host_device_desc* desc, memo_device** device,
                                    memo_error* error) {
    memoi_host* host;
    memo_device* table;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "device", device);
    *device = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memoi_host_check_desc(desc, error);
    if (!status) status = memoi_host_check_math(error);
    if (status) return status;

    host = (memoi_host*)memob_calloc(1, sizeof *host);
    if (!host) return memob_no_memory(error, "a host device");
    host->magic = MEMOI_HOST_MAGIC;
    host->queue_operations =
        desc->queue_operations ? desc->queue_operations : MEMOI_HOST_QUEUE_OPERATIONS;
    host->stack_bytes = desc->stack_bytes;
    host->device_memory.name = "device";
    host->device_memory.status_when_full = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    host->device_memory.capacity_bytes = desc->device_memory_bytes;
    host->host_memory.name = "host";
    host->host_memory.status_when_full = MEMO_STATUS_OUT_OF_HOST_MEMORY;
    host->host_memory.capacity_bytes = desc->host_memory_bytes;
    host->bytes_per_s[MEMO_COPY_TO_HOST] = desc->to_host_bytes_per_s;
    host->bytes_per_s[MEMO_COPY_TO_DEVICE] = desc->to_device_bytes_per_s;

    /* The table that callers get. */
    table = &host->table;
    table->struct_bytes = (int64_t)sizeof *table;
    table->name = "host";
    table->context = host;
#define MEMOI_HOST_SET(function) table->function = memoi_host_##function;
    MEMOB_DEVICE_FUNCTIONS(MEMOI_HOST_SET)
    table->row_kernel = memoi_host_row_kernel;
    table->launch_host = memoi_host_launch_host;
    *device = table;
    return MEMO_STATUS_OK;
}

void memo_host_device_destroy(memo_device* device) {
    memoi_host* host = memoi_host_of(device, NULL);
    memoi_host_stream* stream;
    if (!host) return;

    /* Stop all before joining any: they may wait for each other. */
    for (stream = host->streams; stream; stream = stream->next)
        if (stream->made.is_live) memoi_host_stream_stop(stream);

    for (stream = host->streams; stream; stream = stream->next)
        if (stream->made.is_live) memoi_host_stream_join(stream);

    /* Events and memory last: workers use both. */
    memob_arrays_free(&host->arrays);
    memoi_host_memory_destroy(&host->device_memory);
    memoi_host_memory_destroy(&host->host_memory);
    host->magic = 0;
    MEMO_FREE(host);
}

memo_status memo_host_device_launch(memo_device* device, memo_stream stream,
                                    memo_host_function function, const void* args,
                                    int64_t args_bytes, memo_error* error) {
    memoi_host* host;
    MEMOB_REFUSE_NULL(error, "device", device);
    MEMOB_REFUSE_NULL(error, "function", function);
    host = memoi_host_of(device, error);
    if (!host) return MEMO_STATUS_INVALID_ARGUMENT;
    if (!memob_is_within(args_bytes, 0, MEMO_HOST_ARGS_BYTES) || (!args && args_bytes))
        return MEMOB_INVALID(
            error,
            "launch: %lld bytes of args at %p; at most %d are copied, pass a pointer to more",
            (long long)args_bytes, args, MEMO_HOST_ARGS_BYTES);
    return memoi_host_call(host, stream, function, args, args_bytes, error);
}

memo_status memo_host_device_sleep(memo_device* device, memo_stream stream, double duration_s,
                                   memo_error* error) {
    memoi_host* host;
    const memoi_host_sleep_args sleep = {(memoi_host_stream*)stream, duration_s};
    MEMOB_REFUSE_NULL(error, "device", device);
    host = memoi_host_of(device, error);
    if (!host || memob_check_real("sleep", "duration_s", duration_s, 0, 1e9, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    return memoi_host_call(host, stream, memoi_host_run_sleep, &sleep, sizeof sleep, error);
}

memo_host_device_stats memo_host_device_get_stats(const memo_device* device) {
    const memoi_host* host = memoi_host_of(device, NULL);
    memo_host_device_stats stats = MEMO_ZERO(memo_host_device_stats);
    if (!host) return stats;
    stats.device_bytes = host->device_memory.used_bytes;
    stats.device_peak_bytes = host->device_memory.peak_bytes;
    stats.host_bytes = host->host_memory.used_bytes;
    stats.host_peak_bytes = host->host_memory.peak_bytes;
    stats.to_host_bytes = __atomic_load_n(&host->copied_bytes[MEMO_COPY_TO_HOST], __ATOMIC_RELAXED);
    stats.to_device_bytes =
        __atomic_load_n(&host->copied_bytes[MEMO_COPY_TO_DEVICE], __ATOMIC_RELAXED);
    return stats;
}

#endif /* MEMO_NO_HOST_DEVICE */

/* ---- >>bulk -------------------------------------------------------------------------------------
 * Knows: that several threads copy and clear host memory faster than one, and touch its pages.
 * Knows nothing of what the memory is for.
 *
 * 1. Parts follow each other and cover all bytes. */

#define MEMOB_BULK_THREADS 16
#ifndef MEMOB_BULK_PART_BYTES
#define MEMOB_BULK_PART_BYTES ((int64_t)32 << 20) /* the least that is worth a thread */
#endif

typedef struct memoi_bulk {
    char* to;
    const char* from; /* NULL: zero bytes */
    int64_t n_bytes;
} memoi_bulk;

MEMOI void* memoi_bulk_run(void* argument) {
    const memoi_bulk* part = (const memoi_bulk*)argument;
    if (part->from)
        memcpy(part->to, part->from, (size_t)part->n_bytes);
    else
        memset(part->to, 0, (size_t)part->n_bytes);
    return NULL;
}

/* Copies bytes, or with from NULL sets them to zero. */
MEMOI void memob_bulk_copy(char* to, const char* from, int64_t n_bytes) {
    const int64_t most_bytes =
        memob_max(memob_align_up((n_bytes + MEMOB_BULK_THREADS - 1) / MEMOB_BULK_THREADS, 4096),
                  MEMOB_BULK_PART_BYTES);
    memoi_bulk parts[MEMOB_BULK_THREADS];
    int32_t n = 0, is_started[MEMOB_BULK_THREADS] = {0};
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t threads[MEMOB_BULK_THREADS];
#endif
    for (int64_t at = 0; at < n_bytes; at += most_bytes) {
        const memoi_bulk part = {to + at, from ? from + at : NULL,
                                 memob_min(most_bytes, n_bytes - at)};
        MEMO_ASSERT(n < MEMOB_BULK_THREADS); /* 1 */
        parts[n++] = part;
    }

    /* The first part, and any without a thread, on this thread. */
    for (int32_t k = n - 1; k >= 0; k--) {
#ifndef MEMO_NO_HOST_DEVICE
        is_started[k] = k && !memob_thread_create(&threads[k], 0, memoi_bulk_run, &parts[k]);
#endif
        if (!is_started[k]) (void)memoi_bulk_run(&parts[k]);
    }
#ifndef MEMO_NO_HOST_DEVICE
    for (int32_t k = 1; k < n; k++)
        if (is_started[k]) pthread_join(threads[k], NULL);
#endif
}

/* ---- >>spill file -------------------------------------------------------------------------------
 * Knows: the third tier: an unnamed file, its reads and writes as operations, and reads by a
 * function of the caller.  Knows nothing of what the bytes are.
 *
 * 1. Addresses in the file and sizes of operations are multiples of MEMOB_SPILL_ALIGNMENT.
 * 2. The parts of an operation follow each other and cover it; each begins at such a multiple.
 * 3. A part that ended without an error has no bytes left.
 * 4. The file's descriptor is not one of the standard streams'. */

/* Bytes.  Sizes and offsets in the file are multiples of it, so that the page cache can be
 * bypassed. */
#define MEMOB_SPILL_ALIGNMENT 4096

/* The first byte of files, where schedules number bytes. */
#define MEMOB_SPILL_FILE_BASE ((uint64_t)1 << 63)

typedef struct memob_spill_file {
    int fd; /* -1: none */
    double bytes_per_s;
    char directory[160]; /* for messages; may be cut short */
} memob_spill_file;

/* Copies bytes [at, at + n_bytes) of a state to `to`. */
typedef memo_status (*memob_fetch_function)(void* user, int32_t layer, int32_t state, int64_t at,
                                            void* to, int64_t n_bytes, memo_error* error);

/* A state that a function gives in place of the file. */
typedef struct memob_fetch {
    memob_fetch_function function;
    void* user;
    int32_t layer, state;
    int64_t size_bytes; /* of the state; 0: the file */
} memob_fetch;

/* Bytes that go to the file or come back.  It may be enqueued any number of times. */
typedef struct memob_spill_op {
    memo_host_call call;
    const memob_spill_file* file;
    char* address;
    int64_t offset, n_bytes;
    int32_t is_write;
    memob_fetch fetch; /* of a read at `offset` of the state, whose last page may be short */
} memob_spill_op;

MEMOI memo_status memoi_spill_run(void* op, memo_error* error);

MEMOI void memob_spill_op_init(memob_spill_op* op, const memob_spill_file* file, int is_write,
                               char* address, int64_t offset, int64_t n_bytes) {
    const memob_spill_op made = {
        {memoi_spill_run, op, NULL}, file, address, offset, n_bytes, is_write,
        MEMO_ZERO(memob_fetch)};
    MEMO_ASSERT(offset >= 0 && offset % MEMOB_SPILL_ALIGNMENT == 0);   /* 1 */
    MEMO_ASSERT(n_bytes >= 0 && n_bytes % MEMOB_SPILL_ALIGNMENT == 0); /* 1 */
    *op = made;
}

/* Bytes of an operation that a function gives. */
MEMOI memo_status memoi_spill_fetch(const memob_spill_op* op, int64_t begin, int64_t n_bytes,
                                    memo_error* error) {
    const memob_fetch* from = &op->fetch;
    const int64_t at = op->offset + begin;
    return from->function(from->user, from->layer, from->state, at, op->address + begin,
                          memob_min(n_bytes, from->size_bytes - at), error);
}

#if defined(_WIN32)
MEMOI memo_status memob_spill_create(memob_spill_file* file, const char* directory, int64_t n_bytes,
                                     double bytes_per_s, char* memory, memo_error* error) {
    (void)n_bytes, (void)bytes_per_s, (void)memory;
    file->fd = -1;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "spill_directory %s: not supported on Windows; NULL is", directory);
}
MEMOI memo_status memoi_spill_run(void* argument, memo_error* error) {
    const memob_spill_op* op = (const memob_spill_op*)argument;
    return op->fetch.size_bytes
               ? memoi_spill_fetch(op, 0, op->n_bytes, error)
               : memo_error_set(error, MEMO_STATUS_UNSUPPORTED, "not supported on Windows");
}
#else
/* A macro of GNU's alone; glibc has it under two names. */
#if defined(O_DIRECT)
#define MEMOI_SPILL_DIRECT O_DIRECT
#elif defined(__O_DIRECT)
#define MEMOI_SPILL_DIRECT __O_DIRECT
#endif

MEMOI memo_status memoi_spill_error(const memob_spill_file* file, const char* what, int64_t n_bytes,
                                    int64_t offset, const char* why, memo_error* error) {
    char size[32];
    return memo_error_set(error, MEMO_STATUS_IO, "spill_directory %s: %s %s at byte %lld: %s",
                          file->directory, what, memob_bytes_text(size, (double)n_bytes),
                          (long long)offset, why);
}

/* Bytes of an operation. */
typedef struct memoi_spill_part {
    const memob_spill_op* op;
    int64_t begin, n_bytes;
    memo_error error; /* its status OK: none */
} memoi_spill_part;

/* Reads or writes all bytes of a part, in as many calls as that takes. */
MEMOI void* memoi_spill_run_part(void* argument) {
    memoi_spill_part* part = (memoi_spill_part*)argument;
    const memob_spill_op* op = part->op;
    const int64_t most_bytes = (int64_t)1 << 30; /* of one call */
    if (op->fetch.size_bytes) {
        part->error.status = memoi_spill_fetch(op, part->begin, part->n_bytes, &part->error);
        if (!part->error.status) part->n_bytes = 0;
    }
    while (part->n_bytes > 0 && !part->error.status) {
        char* address = op->address + part->begin;
        const int64_t offset = op->offset + part->begin;
        const size_t n = (size_t)memob_min(part->n_bytes, most_bytes);
        const ssize_t n_passed = op->is_write ? pwrite(op->file->fd, address, n, (off_t)offset)
                                              : pread(op->file->fd, address, n, (off_t)offset);
        if (n_passed < 0 && errno == EINTR) continue;
        if (n_passed <= 0) {
            memoi_spill_error(op->file, op->is_write ? "writing" : "reading", part->n_bytes, offset,
                              n_passed ? strerror(errno) : "the file ends there", &part->error);
            return NULL;
        }
        part->begin += n_passed;
        part->n_bytes -= n_passed;
    }
    return NULL;
}

/* If these bytes went through the page cache, drop these pages. */
MEMOI memo_status memoi_spill_uncache(const memob_spill_op* op, memo_error* error) {
    const int fd = op->file->fd;
#if defined(MEMOI_SPILL_DIRECT)
    if (fcntl(fd, F_GETFL) & MEMOI_SPILL_DIRECT) return MEMO_STATUS_OK;
#endif
#if defined(POSIX_FADV_DONTNEED)
    if (op->is_write && fsync(fd)) /* pages not written yet do not leave */
        return memoi_spill_error(op->file, "writing", op->n_bytes, op->offset, strerror(errno),
                                 error);
    (void)posix_fadvise(fd, (off_t)op->offset, (off_t)op->n_bytes, POSIX_FADV_DONTNEED);
#else
    (void)fd, (void)error;
#endif
    return MEMO_STATUS_OK;
}

/* Large operations are split into parts, several in flight at once: a single call does not keep an
 * array of disks busy, and one processor does not fill a file in memory fast enough. */
enum { MEMOI_SPILL_THREADS = 4 };
#define MEMOI_SPILL_PART_BYTES ((int64_t)16 << 20) /* at least, to be worth a thread */

MEMOI memo_status memoi_spill_run_parts(const memob_spill_op* op, memo_error* error) {
    memoi_spill_part parts[MEMOI_SPILL_THREADS];
    int64_t part_bytes = memob_align_up(
        (op->n_bytes + MEMOI_SPILL_THREADS - 1) / MEMOI_SPILL_THREADS, MEMOB_SPILL_ALIGNMENT);
    int64_t begin = 0;
    int32_t n = 0, k, is_started[MEMOI_SPILL_THREADS] = {0};
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t threads[MEMOI_SPILL_THREADS];
#endif
    if (part_bytes < MEMOI_SPILL_PART_BYTES) part_bytes = MEMOI_SPILL_PART_BYTES;
    while (begin < op->n_bytes) {
        const memoi_spill_part part = {op, begin, memob_min(part_bytes, op->n_bytes - begin),
                                       MEMO_ZERO(memo_error)};
        MEMO_ASSERT(n < MEMOI_SPILL_THREADS && begin % MEMOB_SPILL_ALIGNMENT == 0); /* 2 */
        begin += part.n_bytes;
        parts[n++] = part;
    }
    MEMO_ASSERT(begin == op->n_bytes); /* 2 */

    /* The first part, and any without a thread, on this thread. */
    for (k = n - 1; k >= 0; k--) {
#ifndef MEMO_NO_HOST_DEVICE
        is_started[k] = k && !memob_thread_create(&threads[k], 0, memoi_spill_run_part, &parts[k]);
#endif
        if (!is_started[k]) (void)memoi_spill_run_part(&parts[k]);
    }
#ifndef MEMO_NO_HOST_DEVICE
    for (k = 1; k < n; k++)
        if (is_started[k]) pthread_join(threads[k], NULL);
#endif
    for (k = 0; k < n; k++) {
        MEMO_ASSERT(!parts[k].n_bytes == !parts[k].error.status); /* 3 */
        if (parts[k].error.status)
            return memo_error_set(error, parts[k].error.status, "%s", parts[k].error.message);
    }
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_spill_run(void* argument, memo_error* error) {
    const memob_spill_op* op = (const memob_spill_op*)argument;
    const memob_spill_file* file = op->file;
    int64_t begin_ns = memob_now_ns();
    memo_status status = memoi_spill_run_parts(op, error);
    if (op->fetch.size_bytes) return status;
    if (!status) status = memoi_spill_uncache(op, error);
    if (!status && file->bytes_per_s > 0) {
        double pace_s = (double)op->n_bytes / file->bytes_per_s;
        memob_sleep_until(begin_ns + (int64_t)(1e9 * (pace_s < 1e9 ? pace_s : 1e9)));
    }
    return status;
}

/* Opens a file and removes its name at once; -1: see errno. */
MEMOI int memoi_spill_open(const char* directory) {
    char path[MEMOI_PATH_BYTES + 32];
    int fd;
    snprintf(path, sizeof path, "%s/memo-spill-XXXXXX", directory);
    fd = mkstemp(path);
    if (fd >= 0) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        (void)unlink(path);
    }
    return memoi_file_descriptor_from_3(fd);
}

/* Room for all bytes now; an errno. */
MEMOI int memoi_spill_reserve(int fd, int64_t n_bytes) {
    int code = EINTR;
    if (memoi_file_is_too_large(n_bytes)) return EFBIG;
#if !defined(__APPLE__)
    while (code == EINTR) code = posix_fallocate(fd, 0, (off_t)n_bytes);
    if (code != EOPNOTSUPP && code != EINVAL && code != ENOSYS) return code;
#endif
    return ftruncate(fd, (off_t)n_bytes) ? errno : 0; /* a file system that reserves nothing */
}

/* Creates an unnamed file of n_bytes, reserves the bytes, and writes and reads
 * MEMOB_SPILL_ALIGNMENT bytes of zeroed memory as a trial.  bytes_per_s: limit of reads and writes,
 * 0: none.  Destroy the file also after a failure.  Errors: IO. */
MEMOI memo_status memob_spill_create(memob_spill_file* file, const char* directory, int64_t n_bytes,
                                     double bytes_per_s, char* memory, memo_error* error) {
    const int64_t trial_bytes = MEMOB_SPILL_ALIGNMENT;
    memob_spill_op trial[2];
    int code, flags, is_direct = 0;
    snprintf(file->directory, sizeof file->directory, "%s", directory ? directory : "");
    file->bytes_per_s = bytes_per_s;
    file->fd = memoi_spill_open(directory);
    if (file->fd < 0)
        return memoi_spill_error(file, "creating a file of", n_bytes, 0, strerror(errno), error);
    MEMO_ASSERT(file->fd > STDERR_FILENO); /* 4 */

    /* Reserve all bytes, so that a full disk is found before the first step. */
    code = memoi_spill_reserve(file->fd, n_bytes);
    if (code) {
        char size[32];
        return memo_error_set(
            error, MEMO_STATUS_IO,
            "spill_directory %s: no room for a file of %s (%s); a folder on another "
            "disk, or a lower disk_bytes of a session, would work",
            file->directory, memob_bytes_text(size, (double)n_bytes), strerror(code));
    }

    /* A trial shows whether the page cache can be bypassed with this memory and file system.  If
     * not, another one shows whether the file works. */
    memset(memory, 0, (size_t)trial_bytes);
    flags = fcntl(file->fd, F_GETFL);
#if defined(MEMOI_SPILL_DIRECT)
    is_direct = flags >= 0 && fcntl(file->fd, F_SETFL, flags | MEMOI_SPILL_DIRECT) == 0;
#elif defined(F_NOCACHE)
    (void)fcntl(file->fd, F_NOCACHE, 1);
#endif
    memob_spill_op_init(&trial[0], file, 1, memory, 0, trial_bytes);
    memob_spill_op_init(&trial[1], file, 0, memory, 0, trial_bytes);
    for (;; is_direct = 0) {
        memo_error* reported = is_direct ? NULL : error;
        memo_status status = memoi_spill_run_parts(&trial[0], reported);
        if (!status) status = memoi_spill_run_parts(&trial[1], reported);
        if (!status || !is_direct) return status;
        (void)fcntl(file->fd, F_SETFL, flags);
    }
}

#endif

MEMOI void memob_spill_destroy(memob_spill_file* file) {
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

/* Enqueues op on stream, and announces it to a recorder.  Errors: the device's. */
MEMOI memo_status memob_spill_launch(const memo_device* device, memo_stream stream,
                                     memob_spill_op* op, memo_error* error) {
    const memo_range on_host = memob_range_at(op->address, op->n_bytes);
    /* Files that are open at the same time need different names. */
    const uint64_t base = MEMOB_SPILL_FILE_BASE + ((uint64_t)(op->file->fd + 1) << 48);
    const memo_range in_file = {base + (uint64_t)op->offset,
                                base + (uint64_t)(op->offset + op->n_bytes)};
    memo_op_desc what = MEMO_ZERO(memo_op_desc);
    memo_status status;
    what.name = op->is_write ? "to file" : "from file";
    if (op->fetch.size_bytes) what.name = "fetch";
    what.link_bytes = op->n_bytes;
    what.reads = op->is_write ? &on_host : &in_file;
    what.writes = op->is_write ? &in_file : &on_host;
    what.n_reads = !op->fetch.size_bytes; /* the caller's bytes, to which nobody writes */
    what.n_writes = 1;
    status = memo_annotate(device, stream, &what, error);
    return status ? status : memo_launch_host(device, stream, &op->call, error);
}

/* ---- >>list -------------------------------------------------------------------------------------
 * Knows: in which order a step computes.  Knows nothing of bytes.
 *
 * A step is everything between two updates, one update included.  A visit is computed between a
 * begin and its end: a pass of a layer, or of one slice of it.  Layers are 0: FIRST, 1 to n, and
 * n + 1: LAST, which computes its forward in the visit of its backward, but for evaluations.
 *
 * A round is all turns once: a micro-batch, a group, or all micro-batches of an order.  Five rounds
 * stand for any number: first, second, middle, which repeats, last but one, last.  These are the
 * phases of a step, with the pass of updates.  Fewer rounds leave phases out.  What a step may do
 * beside its plan, other rounds and an evaluation, are phases as well: they lie behind the step.
 *
 * 1. A layer has at most one update in a phase: before its first forward (deferred), or behind its
 *    last backward (fused).
 * 2. Gradients of a layer begin in its first backward of the step. */

typedef enum memob_pass {
    MEMOB_FORWARD = 0,
    MEMOB_BACKWARD,
    MEMOB_UPDATE,
    MEMOB_N_PASSES
} memob_pass;

typedef enum memob_phase {
    MEMOB_ONLY = 0, /* the only round of a step */
    MEMOB_FIRST,
    MEMOB_SECOND,
    MEMOB_MIDDLE,
    MEMOB_LAST_BUT_ONE,
    MEMOB_LAST,
    MEMOB_UPDATES, /* of all layers, without a round */
    MEMOB_EVALUATION,
    MEMOB_N_PHASES
} memob_phase;

typedef struct memob_visit {
    int32_t pass, layer, slice;
    int32_t row;     /* its number among visits of layers in the round; -1: it is none */
    uint8_t begins;  /* gradients of the layer begin */
    uint8_t on_host; /* an update there */
} memob_visit;

typedef struct memob_list_desc {
    const int32_t* turns; /* c: forwards of chunk c, -1 - c: its backwards; NULL: a micro-batch */
    int32_t n_turns, n_chunks;
    int32_t n_layers; /* n, a multiple of n_chunks */
    int32_t n_slices, n_rounds;
    int32_t update_at; /* memo_update_at */
    int32_t updates_on_host;
    int32_t has_states; /* 0: visits of layers alone, of one round, and of an evaluation */
} memob_list_desc;

typedef struct memob_list {
    memob_list_desc desc;
    memob_visit* visits;
    int32_t begin[MEMOB_N_PHASES], end[MEMOB_N_PHASES]; /* of visits; the same: there is none */
    int32_t n_visits, n_of_step;
    int32_t n_rows; /* visits of layers of the latest round */
    memob_arrays arrays;
} memob_list;

/* Do updates come inside the last backward of a step? */
MEMOI int memob_update_is_fused(int32_t update_at) { return update_at == MEMO_UPDATE_FUSED; }

/* A forward or a backward of a place, or a chunk. */
MEMOI int32_t memob_turn_of(int32_t turn) { return turn < 0 ? -1 - turn : turn; }

/* Without an array, counts. */
MEMOI void memoi_list_add(memob_list* list, int32_t pass, int32_t layer, int32_t slice,
                          int begins) {
    const int is_update = pass == MEMOB_UPDATE, on_host = is_update && list->desc.updates_on_host;
    const int has_rows = !is_update && memob_is_within(layer, 1, list->desc.n_layers);
    const int32_t row = has_rows ? list->n_rows : -1;
    const memob_visit visit = {pass, layer, slice, row, (uint8_t)begins, (uint8_t)on_host};
    if (!has_rows && !list->desc.has_states) return;
    if (list->visits) list->visits[list->n_visits] = visit;
    list->n_visits++;
    list->n_rows += has_rows;
}

/* Is none of turns [k, end) the same? */
MEMOI int memoi_list_is_only(const memob_list_desc* d, int32_t turn, int32_t k, int32_t end) {
    while (k < end && d->turns[k] != turn) k++;
    return k == end;
}

/* Forwards of a chunk.  defers: each layer's update comes before. */
MEMOI void memoi_list_forwards(memob_list* list, int32_t chunk, int defers) {
    const memob_list_desc* d = &list->desc;
    const int32_t each = d->n_layers / d->n_chunks, begin = 1 + chunk * each;
    for (int32_t l = chunk ? begin : 0; l < begin + each; l++) {
        if (defers) memoi_list_add(list, MEMOB_UPDATE, l, 0, 0);
        for (int32_t s = 0; s < (l ? d->n_slices : 1); s++)
            memoi_list_add(list, MEMOB_FORWARD, l, s, 0);
    }
}

/* Backwards of a chunk.  begins: the first of the step; fuses: each layer's update comes behind. */
MEMOI void memoi_list_backwards(memob_list* list, int32_t chunk, int begins, int defers,
                                int fuses) {
    const memob_list_desc* d = &list->desc;
    const int32_t each = d->n_layers / d->n_chunks, begin = 1 + chunk * each, n = d->n_layers;
    if (chunk == d->n_chunks - 1 && defers) memoi_list_add(list, MEMOB_UPDATE, n + 1, 0, 0);
    if (chunk == d->n_chunks - 1) memoi_list_add(list, MEMOB_BACKWARD, n + 1, 0, begins);
    for (int32_t l = begin + each - 1; l >= begin; l--) {
        for (int32_t s = d->n_slices - 1; s >= 0; s--)
            memoi_list_add(list, MEMOB_BACKWARD, l, s, begins && s == d->n_slices - 1);
        if (fuses && l == n) memoi_list_add(list, MEMOB_UPDATE, n + 1, 0, 0); /* in use till now */
        if (fuses) memoi_list_add(list, MEMOB_UPDATE, l, 0, 0);
    }
    if (!chunk) memoi_list_add(list, MEMOB_BACKWARD, 0, 0, 0); /* begun beside layer 1 */
    if (!chunk && fuses) memoi_list_add(list, MEMOB_UPDATE, 0, 0, 0);
}

MEMOI void memoi_list_round(memob_list* list, int32_t phase) {
    static const int32_t one[] = {0, -1};
    memob_list_desc* d = &list->desc;
    const int is_first = phase == MEMOB_ONLY || phase == MEMOB_FIRST;
    const int is_last = phase == MEMOB_ONLY || phase == MEMOB_LAST;
    if (!d->turns) d->turns = one, d->n_turns = 2;
    for (int32_t k = 0; k < d->n_turns; k++) {
        const int32_t turn = d->turns[k];
        const int begins = is_first && memoi_list_is_only(d, turn, 0, k);
        const int ends = is_last && memoi_list_is_only(d, turn, k + 1, d->n_turns);
        const int defers = begins && d->update_at == MEMO_UPDATE_DEFERRED;
        if (turn >= 0)
            memoi_list_forwards(list, turn, defers);
        else
            memoi_list_backwards(list, memob_turn_of(turn), begins, defers,
                                 ends && memob_update_is_fused(d->update_at));
    }
}

/* The visits of a phase, behind those before. */
MEMOI void memoi_list_phase(memob_list* list, int32_t phase) {
    const memob_list_desc* d = &list->desc;
    const int32_t n_chunks = d->has_states ? d->n_chunks : 1; /* rows: of one place */
    list->begin[phase] = list->n_visits;
    list->n_rows = 0;
    if (phase == MEMOB_EVALUATION) {
        for (int32_t chunk = 0; chunk < n_chunks; chunk++) memoi_list_forwards(list, chunk, 0);
        memoi_list_add(list, MEMOB_FORWARD, d->n_layers + 1, 0, 0);
    } else if (phase == MEMOB_UPDATES) {
        for (int32_t l = 0; l < d->n_layers + 2; l++) memoi_list_add(list, MEMOB_UPDATE, l, 0, 0);
    } else {
        memoi_list_round(list, phase);
    }
    list->end[phase] = list->n_visits;
}

/* Is the phase in the planned step? */
MEMOI int memoi_list_has(const memob_list_desc* d, int32_t phase) {
    static const char rounds[][MEMOB_N_PHASES] = {{1, 0, 0, 0, 0, 0, 0, 0}, /* one */
                                                  {0, 1, 0, 0, 0, 1, 0, 0}, /* two */
                                                  {0, 1, 0, 1, 0, 1, 0, 0},
                                                  {0, 1, 1, 0, 1, 1, 0, 0},
                                                  {0, 1, 1, 1, 1, 1, 0, 0}}; /* five and more */
    MEMO_ASSERT(d->n_rounds > 0);
    if (phase == MEMOB_UPDATES) return d->update_at == MEMO_UPDATE_PASS;
    return rounds[memob_min(d->n_rounds, 5) - 1][phase];
}

/* Has the list visits of the phase beside its step? */
MEMOI int memoi_list_has_beside(const memob_list_desc* d, int32_t phase) {
    if (memoi_list_has(d, phase) || phase == MEMOB_SECOND || phase == MEMOB_LAST_BUT_ONE) return 0;
    return d->has_states || phase == MEMOB_EVALUATION;
}

/* Which phase round k is, of a step that may have more or fewer than are planned. */
MEMOI int32_t memoi_list_phase_of(const memob_list_desc* d, int32_t k, int more_follow) {
    if (!k) return more_follow ? MEMOB_FIRST : MEMOB_ONLY;
    if (!more_follow) return MEMOB_LAST;
    if (d->n_rounds > 3 && k == 1) return MEMOB_SECOND;
    return d->n_rounds > 3 && k == d->n_rounds - 2 ? MEMOB_LAST_BUT_ONE : MEMOB_MIDDLE;
}

/* How many visits of [v + 1, end) copies behind visit v may wait for: the slices of a layer, with
 * an update before. */
MEMOI int32_t memoi_list_n_spread(const memob_list* list, int32_t v, int32_t end) {
    const memob_visit* visits = list->visits;
    int32_t k = v + 1, first;
    if (k < end && visits[k].pass == MEMOB_UPDATE) k++;
    first = k;
    while (k < end && visits[k].pass == visits[first].pass &&
           visits[k].layer == visits[first].layer)
        k++;
    return k > first + 1 ? k - v - 1 : 0;
}

MEMOI void memoi_list_free(memob_list* list) {
    memob_arrays_free(&list->arrays);
    memset(list, 0, sizeof *list);
}

/* turns are not copied.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_list_make(const memob_list_desc* desc, memob_list* list,
                                  memo_error* error) {
    memset(list, 0, sizeof *list);
    list->desc = *desc;
    for (int is_counted = 0; is_counted < 2; is_counted++) {
        if (is_counted) {
            list->visits = MEMOB_ARRAY(&list->arrays, memob_visit, list->n_visits);
            if (list->arrays.failed) return memob_no_memory(error, "the visits of a step");
        }
        list->n_visits = 0;
        for (int is_beside = 0; is_beside < 2; is_beside++) {
            for (int32_t phase = 0; phase < MEMOB_N_PHASES; phase++)
                if (is_beside ? memoi_list_has_beside(desc, phase) : memoi_list_has(desc, phase))
                    memoi_list_phase(list, phase);
            if (!is_beside) list->n_of_step = list->n_visits;
        }
    }
    return MEMO_STATUS_OK;
}

/* ---- >>waits ------------------------------------------------------------------------------------
 * Knows: which operation of another stream an operation must wait for.  Knows nothing of what
 * operations do.
 *
 * Each stream runs its operations in the order in which they are enqueued; an operation has its
 * number when all of it is.  Bytes are cells.  A cell keeps, of each stream, the latest operation
 * that wrote it and the latest that used it at all; an operation keeps, of each stream, the latest
 * operation that surely comes before it (its clock).  Several laws may share streams: then they
 * share numbers and clocks, and have cells of their own.
 *
 * 1. Two operations that touch a cell, one writing it, are in order: by stream, or by waits.
 * 2. No wait follows from the stream's past and the other waits of the operation.  This is exact:
 *    the last part of a path to an operation is its stream's past or one of its waits, and both
 *    were added before.
 * 3. Cells and clocks stay over lists and abandoned steps.  Memory is bounded: clocks of the latest
 *    operations of each stream only; a clock that was overwritten implies nothing.
 * 4. Cells and clocks name operations that were added; a kept clock of operation k names k.
 * 5. A stream waits for other streams, and none of them knows of an operation that the stream has
 *    not had. */

/* The streams of a step.  Copies are on the two in the middle; FILE also runs updates on the
 * host. */
enum {
    MEMOB_STREAM_COMPUTE,
    MEMOB_STREAM_TO_HOST,
    MEMOB_STREAM_TO_DEVICE,
    MEMOB_STREAM_FILE,
    MEMOB_N_STREAMS
};

/* Numbers of operations of each stream, from 1 on; 0: none. */
typedef struct memob_numbers {
    int64_t of[MEMOB_N_STREAMS];
} memob_numbers;
typedef char memoi_numbers_fit[MEMOB_N_STREAMS == 4 ? 1 : -1]; /* functions without a loop */

/* The later operation of each stream.  No loop: at -O2 compilers keep it, and bytes with 20 cells
 * then take twice as long. */
MEMOI void memob_numbers_raise(memob_numbers* a, const memob_numbers* b) {
    a->of[0] = memob_max(a->of[0], b->of[0]);
    a->of[1] = memob_max(a->of[1], b->of[1]);
    a->of[2] = memob_max(a->of[2], b->of[2]);
    a->of[3] = memob_max(a->of[3], b->of[3]);
}

typedef struct memob_cell {
    memob_numbers wrote, used;
} memob_cell;

/* Start from all zero. */
#define MEMOB_CLOCKS_KEPT 1024 /* of the latest operations of each stream */
typedef struct memob_waits {
    /* What comes before all that the stream will be given; of itself: its operations so far. */
    memob_numbers now[MEMOB_N_STREAMS];
    /* The clock of operation k is at k % MEMOB_CLOCKS_KEPT. */
    memob_numbers clocks[MEMOB_N_STREAMS][MEMOB_CLOCKS_KEPT];
} memob_waits;

/* The clock of an operation; NULL: it is no longer kept. */
MEMOI const memob_numbers* memoi_waits_clock(const memob_waits* waits, int32_t stream, int64_t k) {
    const memob_numbers* clock = &waits->clocks[stream][(uint64_t)k % MEMOB_CLOCKS_KEPT];
    MEMO_ASSERT(k > 0 && k <= waits->now[stream].of[stream]); /* 4 */
    if (k + MEMOB_CLOCKS_KEPT <= waits->now[stream].of[stream]) return NULL;
    MEMO_ASSERT(clock->of[stream] == k); /* 3, 4 */
    return clock;
}

/* Adds what an operation conflicts with: of each stream the latest.  touches: 2 * cell, + 1 if it
 * writes the cell. */
MEMOI void memob_cells_need(const memob_cell* cells, const int32_t* touches, int32_t n_touches,
                            memob_numbers* need) {
    for (int32_t k = 0; k < n_touches; k++) {
        const memob_cell* cell = &cells[touches[k] >> 1];
        memob_numbers_raise(need, touches[k] & 1 ? &cell->used : &cell->wrote);
    }
}

MEMOI void memob_cells_mark(memob_cell* cells, const int32_t* touches, int32_t n_touches,
                            int32_t stream, int64_t number) {
    for (int32_t k = 0; k < n_touches; k++) {
        memob_cell* cell = &cells[touches[k] >> 1];
        cell->used.of[stream] = number;
        if (touches[k] & 1) cell->wrote.of[stream] = number;
    }
}

/* Drops a number that the stream's past implies.  1: it stays. */
MEMOI int memoi_waits_drop(int64_t* number, int64_t past) {
    if (*number > past) return 1;
    *number = 0;
    return 0;
}

/* Leaves what the stream must wait for: drops what its past implies, then what another wait
 * implies.  0: nothing is left.  The first part has no loop, as memob_numbers_raise. */
MEMOI int memob_waits_reduce(const memob_waits* waits, int32_t stream, memob_numbers* need) {
    const memob_numbers* now = &waits->now[stream];
    const int n_needs =
        memoi_waits_drop(&need->of[0], now->of[0]) + memoi_waits_drop(&need->of[1], now->of[1]) +
        memoi_waits_drop(&need->of[2], now->of[2]) + memoi_waits_drop(&need->of[3], now->of[3]);
    for (int32_t s = 0; s < MEMOB_N_STREAMS && n_needs > 1; s++) {
        const memob_numbers* clock = need->of[s] ? memoi_waits_clock(waits, s, need->of[s]) : NULL;
        for (int32_t other = 0; other < MEMOB_N_STREAMS && clock; other++)
            if (other != s && need->of[other] <= clock->of[other]) need->of[other] = 0;
    }
    return n_needs;
}

/* From now on the stream waits for an operation of another, and for what comes before that. */
MEMOI void memob_waits_raise(memob_waits* waits, int32_t stream, int32_t other, int64_t number) {
    const memob_numbers* clock = memoi_waits_clock(waits, other, number);
    memob_numbers* now = &waits->now[stream];
    MEMO_ASSERT(stream != other && (!clock || clock->of[stream] <= now->of[stream])); /* 5 */
    MEMO_ASSERT(now->of[other] < number);                                             /* 2 */
    now->of[other] = number;
    if (clock) memob_numbers_raise(now, clock);
}

/* The stream was given all of an operation.  Returns the operation's number in its stream. */
MEMOI int64_t memob_waits_end(memob_waits* waits, int32_t stream) {
    memob_numbers* now = &waits->now[stream];
    const int64_t number = now->of[stream] + 1;
    memob_numbers* clock = &waits->clocks[stream][(uint64_t)number % MEMOB_CLOCKS_KEPT];
    *clock = *now;
    clock->of[stream] = now->of[stream] = number;
    return number;
}

/* --- records of events --- */

/* Sinks record an event behind operations that are awaited.  The events of a stream take turns; a
 * wait for an event that was recorded again waits for a later operation of the stream, which was
 * enqueued before. */
#define MEMOB_RECORDS 64 /* that are kept; a power of two */
typedef struct memob_records {
    uint32_t next;                  /* event */
    int64_t numbers[MEMOB_RECORDS]; /* of operations, by event; 0: not recorded yet */
} memob_records;

/* The event that is recorded next, behind an operation. */
MEMOI inline int32_t memob_records_add(memob_records* records, int64_t number) {
    const int32_t event = (int32_t)(records->next++ % MEMOB_RECORDS);
    records->numbers[event] = number;
    return event;
}

/* The event of the first kept record behind an operation; -1: there is none yet. */
MEMOI int32_t memob_records_find(const memob_records* records, int64_t number) {
    int32_t found = -1;
    for (uint32_t k = 1; k <= MEMOB_RECORDS; k++) {
        const uint32_t event = (records->next - k) % MEMOB_RECORDS;
        if (records->numbers[event] < number) break;
        found = (int32_t)event;
    }
    return found;
}

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

/* ---- >>law --------------------------------------------------------------------------------------
 * Knows: which bytes travel when.  Knows nothing of devices, of times, and of what visits compute.
 *
 * An item is bytes, in slots, and the visits that use them.  A stay is consecutive uses of an item
 * at one address, until another item uses any of its bytes, or the item is used elsewhere.  A
 * transfer is a load or a store of a stay.  An operation is a visit, or transfers that are enqueued
 * together.
 * The law makes the operations of a sequence of lists:
 *
 * 1. A stay is loaded if its first use reads, and the item has a value: of the stay before, or of a
 *    list before.  It is not loaded if the first use writes all, or makes the bytes again.
 * 2. A stay is stored if it changed the item and the item's next stay is loaded, rewrites the item,
 *    or reads on the host.  A copy of another item's value is not stored if the store of that item
 *    is at the same place on the host.
 * 3. A store is enqueued behind the last visit that changes the stay.
 * 4. A load is enqueued behind the latest of three: the visit that last used its bytes, the visit
 *    behind which the item's store is, and the last use of the stay before.  First loads of the
 *    first list come before its visits; of another list, at the end of the list before.
 *    Transfers that would be behind one visit may be spread over the visits that follow, each at
 *    the latest in front of the visit that waits for it.
 * 5. Behind one visit come stores in the order in which a visit waits for them: it uses the item
 *    again, or the bytes for another item; ties by the bytes' last use, since that frees them, then
 *    by the item's next use.  Then come loads in the order of their first uses; of equal ones first
 *    those whose bytes no store must free.  Last ties go by the number of the item.
 * 6. Items without slots have no transfers.
 * 7. Transfers of one operation have the same visits before and after, so they share a wait and an
 *    event; and windows of their own in front of the file.
 *
 * Windows.  An item whose home is the file has a window on the host, which other items may share.
 * A write to the file follows a store, unless the window keeps the bytes until their last load.  A
 * read comes behind the transfer that frees the window.  An item that lives on is always written,
 * and read before each load, because another list may use the window in between. */

/* How a visit uses an item. */
typedef enum memob_use_how {
    MEMOB_USE_READ = 0,
    MEMOB_USE_CHANGE, /* reads and changes */
    MEMOB_USE_WRITE,  /* writes all bytes, reads none */
    MEMOB_USE_MAKE,   /* reads; as the first use of a stay, makes the bytes again (recomputes
                         them); not of items that live on */
    MEMOB_USE_REWRITE /* writes all bytes, but may be left out: then the value before stays.  Of
                          items that live on */
} memob_use_how;

/* The use needs the item's bytes. */
MEMOI int memoi_use_reads(int32_t how) { return how == MEMOB_USE_READ || how == MEMOB_USE_CHANGE; }

#define MEMOB_HOST_DEFAULT (-1)

typedef struct memob_use {
    int32_t visit, item;
    int32_t how;
    int32_t is_on_host; /* the visit uses the item's bytes on the host: an update there */
    int64_t at;         /* offset on the device */
    int64_t host;       /* CHANGE, WRITE: offset on the host where this version waits;
                           MEMOB_HOST_DEFAULT: the item's */
    int32_t n_slots;    /* on the device at this offset; 0: the item's */
} memob_use;

typedef struct memob_item {
    int32_t n_slots;  /* on the device; 0: it does not travel */
    int32_t n_host;   /* slots on the host, and in the file */
    int32_t lives_on; /* from list to list; its first value lies on the host, or in its file */
    int32_t copy_of;  /* -1, or the item whose value it has; see 2 */
    int64_t host;
    int64_t file; /* offset of its home in the file, of which host is a window; -1: none */
} memob_item;

/* What is enqueued. */
typedef enum memob_op_kind {
    MEMOB_OP_VISIT = 0, /* its parts: the items that the visit makes */
    MEMOB_OP_STORE,     /* device to host */
    MEMOB_OP_LOAD,      /* host to device */
    MEMOB_OP_WRITE,     /* host to file */
    MEMOB_OP_READ,      /* file to host */
    MEMOB_N_OP_KINDS
} memob_op_kind;

/* A copy of an item between device and host, or between its window and the file. */
typedef struct memob_part {
    int32_t item;
    int64_t at, away;        /* offsets in the nearer and the farther memory */
    int32_t n_slots, n_host; /* on the device, on the host or in the file */
    int32_t is_idle; /* 1: updates alone use the item from here to its next load; see >>step */
} memob_part;

typedef struct memob_op {
    int32_t kind, stream;
    int32_t visit; /* the visit, or the one behind which it is enqueued; -1: before the list */
    /* What is enqueued with a store (0) or a load (1), and how many visits that count come before
     * the one that waits for it.  Copies of two laws are enqueued in that order. */
    int32_t is_load, need;
    int32_t list;
    int32_t first_part, n_parts;
    int32_t first_touch, n_touches; /* see memob_cells_need */
} memob_op;

typedef struct memob_law_desc {
    int32_t n_visits;
    /* NULL, or (n_visits).  1: the visit runs on the stream of the file, not on compute. */
    const char* on_host;
    const memob_item* items;
    int32_t n_items;
    const memob_use* uses; /* in order of visits; each item once a visit; no two share a byte */
    int32_t n_uses;
    /* (n_lists): their numbers, 0 to 31; NULL: all are 0. */
    const int32_t* lists;
    /* (n_visits): the lists with the visit, bit k for number k; NULL: all lists have all visits */
    const uint32_t* in_lists;
    /* NULL, or (n_visits).  Transfers that are due behind the visit are spread over so many visits,
     * by bytes, each way for itself. */
    const int32_t* n_spread;
    const int64_t* item_bytes; /* (n_items) */
    const char* counts;        /* NULL, or (n_visits): 1: the visit counts for memob_op.need */
    int32_t n_lists;           /* 0: 1 */
    /* Addresses and sizes are slots, below these numbers on the device, on the host and in the
     * file.  A slot is bytes of the same items, and a cell of the law. */
    int32_t n_slots[MEMO_N_TIERS];
    /* NULL, or memory that many laws share, one after the other: then each is made in the law
     * before, or in one that is all zero.  The caller frees it. */
    memob_arrays* work;
} memob_law_desc;

typedef struct memob_law {
    int32_t n_lists, n_ops, n_cells, n_parts, n_touches;
    int32_t* begin; /* (n_lists + 1): operations of each list, in the order of enqueueing */
    memob_op* ops;
    memob_part* parts;
    int32_t* touches;
    int32_t* visit_ops; /* (n_lists, n_visits): the operation of a visit; -1: not in the list */
    int32_t* first_use; /* (n_visits + 1): of each visit, in desc.uses */
    int32_t n_visits;
    memob_arrays arrays;
} memob_law;

MEMOI void memob_law_free(memob_law* law) {
    memob_arrays_free(&law->arrays);
    memset(law, 0, sizeof *law);
}

/* --- stays --- */

#define MEMOI_ON_HOST ((int64_t)1 << 60)
#define MEMOI_IN_FILE ((int64_t)1 << 61)

/* Times are list * n_visits + visit; -1: none. */
typedef struct memoi_stay {
    int32_t item, how;            /* how: of the first use */
    int32_t first, last, changed; /* uses; changed: the latest change */
    int32_t before, after;  /* the latest use of its bytes before; the first after by others */
    int32_t previous, next; /* stays of the item */
    int32_t value;          /* the latest change of the item before */
    int32_t copied;         /* copy_of: the other item's stay then */
    int32_t is_on_host, is_loaded, is_stored;
    int64_t at, host;
    int32_t displaced; /* the stay of the use before; -1: none */
    int32_t n_slots;
} memoi_stay;

/* A transfer.  What has the same numbers, but for `item`, is one operation. */
typedef struct memoi_due {
    int32_t slot;  /* 0: before all lists; t + 1: behind the visit of time t */
    int32_t order; /* 0: store, 1: load */
    int32_t need;  /* first use of the stay that it is for */
    int32_t free_s
        [2]; /* store: last use of the bytes, next of the item; load: last use before, value */
    int32_t item;
    int64_t at, host;
    int32_t n_slots;
    int32_t is_behind; /* load: a store takes away what lies there */
} memoi_due;

/* A law in the making. */
typedef struct memoi_maker {
    const memob_law_desc* desc;
    memob_law* law;
    int32_t list, visit; /* of the operations that are added */
    memoi_stay* stays;
    int32_t n_stays;
    char* begins; /* (n_lists, n_uses): the use begins a stay on the device, anew */
    memoi_due* due;
    int32_t n_due;
    /* Loads of items with homes in the file: the first whose read comes behind each transfer, and
     * the next one behind the same; -1: none. */
    int32_t *first_read, *next_read;
    char* is_read;   /* stores of such items: what they bring to the window is read from the file */
    int32_t* latest; /* (n_items): the item's latest stay; -1 */
    int32_t *owners, *used; /* of a cell: the latest stay; the latest use */
    int64_t touches_most, parts_most, ops_most;
    int32_t* n_counted;  /* (n_visits + 1): visits before each that count */
    int32_t has_windows; /* items have homes in the file */
    memob_arrays arrays;
} memoi_maker;

/* Orders the copies due at the same slot. */
MEMOI int memoi_due_compare(const memoi_due* a, const memoi_due* b) {
    if (a->order != b->order) return memob_compare(a->order, b->order);
    if (a->need != b->need) return memob_compare(a->need, b->need);
    if (a->is_behind != b->is_behind) return memob_compare(a->is_behind, b->is_behind);
    for (int k = 0; k < 2 && !a->order; k++)
        if (a->free_s[k] != b->free_s[k]) return memob_compare(a->free_s[k], b->free_s[k]);
    return memob_compare(a->item, b->item);
}

MEMOI int memoi_due_together(const memoi_due* a, const memoi_due* b) {
    return a->slot == b->slot && a->order == b->order && a->need == b->need &&
           a->is_behind == b->is_behind && a->free_s[0] == b->free_s[0] &&
           a->free_s[1] == b->free_s[1];
}

/* Does the item's window in front of the file overlap that of one of n transfers? */
MEMOI int memoi_due_shares_window(const memob_law_desc* desc, const memoi_due* due, int32_t n,
                                  const memob_item* item) {
    for (int32_t k = 0; k < n && item->file >= 0; k++) {
        const memob_item* other = &desc->items[due[k].item];
        if (other->file >= 0 && other->host < item->host + item->n_host &&
            item->host < other->host + other->n_host)
            return 1;
    }
    return 0;
}

/* The number of a slot in all memories. */
MEMOI int64_t memoi_cell_at(const memob_law_desc* desc, int64_t at) {
    const int32_t* n_slots = desc->n_slots;
    if (at & MEMOI_IN_FILE) return n_slots[0] + n_slots[1] + (at ^ MEMOI_IN_FILE);
    return at & MEMOI_ON_HOST ? n_slots[0] + (at ^ MEMOI_ON_HOST) : at;
}

MEMOI int memoi_law_has(const memob_law_desc* desc, int32_t list, int32_t visit) {
    const int32_t number = desc->lists ? desc->lists[list] : 0;
    return !desc->in_lists || desc->in_lists[visit] >> number & 1;
}

/* Where a use finds its bytes. */
MEMOI int64_t memoi_use_at(const memob_item* item, const memob_use* use) {
    return use->is_on_host ? MEMOI_ON_HOST + item->host : use->at;
}

/* How many slots a use has where it finds its bytes. */
MEMOI int32_t memoi_use_slots(const memob_item* item, const memob_use* use) {
    if (use->is_on_host) return item->n_host;
    return use->n_slots ? use->n_slots : item->n_slots;
}

/* A use begins a stay at an address behind the item's stay k (-1: none).  before: the latest use of
 * its bytes, by stay `displaced`.  Returns the new stay. */
MEMOI int32_t memoi_law_begin_stay(memoi_maker* m, const memob_use* use, int32_t k, int64_t at,
                                   int32_t time, int32_t before, int32_t displaced) {
    const memob_item* item = &m->desc->items[use->item];
    const int32_t copied = item->copy_of < 0 ? -1 : m->latest[item->copy_of];
    memoi_stay fresh = {use->item, use->how, time, time, -1,        before,
                        -1,        k,        -1,   -1,   copied,    use->is_on_host,
                        0,         0,        at,   -1,   displaced, memoi_use_slots(item, use)};
    if (k >= 0) {
        memoi_stay* s = &m->stays[k];
        fresh.value = s->changed >= 0 ? s->changed : s->value;
        fresh.host = s->host;
        s->next = m->n_stays;
    }
    m->stays[m->n_stays] = fresh;
    m->latest[use->item] = m->n_stays;
    return m->n_stays++;
}

/* A use begins a stay, or the item's latest stay goes on.  list_time: of the list's first visit. */
MEMOI void memoi_law_use(memoi_maker* m, int32_t use_number, int32_t time, int32_t list_time,
                         char* begins) {
    const memob_use* use = &m->desc->uses[use_number];
    const memob_item* item = &m->desc->items[use->item];
    const int64_t at = memoi_use_at(item, use);
    const int64_t begin = memoi_cell_at(m->desc, at);
    const int64_t end = begin + memoi_use_slots(item, use);
    int32_t k = m->latest[use->item], before = -1, displaced = -1;
    int goes_on;

    /* What does not live on ends with its list. */
    if (k >= 0 && !item->lives_on && m->stays[k].first < list_time) k = -1;
    goes_on = k >= 0 && m->stays[k].at == at;
    for (int64_t c = begin; c < end; c++) {
        MEMO_ASSERT(m->used[c] < time); /* no two items of a visit share a byte */
        goes_on &= m->owners[c] == k;
        if (m->used[c] <= before) continue;
        before = m->used[c];
        displaced = m->owners[c];
    }
    if (!goes_on) {
        k = memoi_law_begin_stay(m, use, k, at, time, before, displaced);
        begins[use_number] = !use->is_on_host;
    }

    for (int64_t c = begin; c < end; c++) {
        const int32_t owner = m->owners[c];
        if (owner >= 0 && owner != k && m->stays[owner].after < 0) m->stays[owner].after = time;
        m->owners[c] = k;
        m->used[c] = time;
    }
    m->stays[k].last = time;
    if (use->how == MEMOB_USE_READ || (use->how == MEMOB_USE_MAKE && goes_on)) return;
    m->stays[k].changed = time;
    if (use->how == MEMOB_USE_WRITE && item->copy_of >= 0) /* it has another value from here on */
        m->stays[k].copied = m->latest[item->copy_of];
    if (use->how != MEMOB_USE_MAKE) m->stays[k].host = use->host;
}

/* All stays, in order of their first uses. */
MEMOI memo_status memoi_law_find_stays(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    const int64_t n_uses = d->n_uses, n_cells = (int64_t)d->n_slots[0] + d->n_slots[1];
    int32_t* first_use = MEMOB_ARRAY(&m->law->arrays, int32_t, (int64_t)d->n_visits + 1);
    m->latest = MEMOB_ARRAY(&m->arrays, int32_t, d->n_items);
    m->stays = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_stay, m->law->n_lists * n_uses);
    m->begins = MEMOB_ARRAY(&m->arrays, char, m->law->n_lists* n_uses);
    m->owners = MEMOB_ARRAY(&m->arrays, int32_t, n_cells);
    m->used = MEMOB_ARRAY(&m->arrays, int32_t, n_cells);
    m->law->first_use = first_use;
    if (m->arrays.failed || !first_use) return memob_no_memory(error, "the stays of a step");

    /* Slots of the device, and of what is updated on the host. */
    for (int32_t u = 0; u < d->n_uses; u++) {
        const memob_use* use = &d->uses[u];
        const memob_item* item MEMO_UNUSED = &d->items[use->item];
        MEMO_ASSERT(use->visit >= 0 && use->visit < d->n_visits &&
                    (!u || use->visit >= d->uses[u - 1].visit));
        MEMO_ASSERT(!use->is_on_host || (item->lives_on && item->file < 0));
        MEMO_ASSERT(!item->lives_on || use->how != MEMOB_USE_MAKE);
        MEMO_ASSERT(use->at >= 0 &&
                    (use->is_on_host || use->at + memoi_use_slots(item, use) <= d->n_slots[0]));
        MEMO_ASSERT(item->host >= 0 && item->host + item->n_host <= d->n_slots[1]);
        first_use[use->visit + 1] = u + 1;
    }
    for (int32_t v = 0; v < d->n_visits; v++)
        if (first_use[v + 1] < first_use[v]) first_use[v + 1] = first_use[v];
    for (int32_t i = 0; i < d->n_items; i++) m->latest[i] = -1;
    for (int64_t c = 0; c < n_cells; c++) m->owners[c] = m->used[c] = -1;

    for (int32_t list = 0; list < m->law->n_lists; list++) {
        const int32_t begin = list * d->n_visits;
        char* begins = m->begins + list * n_uses;
        for (int32_t v = 0; v < d->n_visits; v++)
            for (int32_t u = first_use[v], end = first_use[v + 1];
                 u < end && memoi_law_has(d, list, v); u++)
                if (d->items[d->uses[u].item].n_slots)
                    memoi_law_use(m, u, begin + v, begin, begins);
    }
    return MEMO_STATUS_OK;
}

/* Where the version that a stay leaves waits on the host. */
MEMOI int64_t memoi_stay_host(const memoi_maker* m, const memoi_stay* stay) {
    return stay->host >= 0 ? stay->host : m->desc->items[stay->item].host;
}

/* Is the stay a copy of a value that another stay stores at the same place? */
MEMOI int memoi_stay_is_served(const memoi_maker* m, const memoi_stay* stay) {
    const memoi_stay* other = stay->copied < 0 ? NULL : &m->stays[stay->copied];
    if (other && other->first == stay->changed) /* the value is that of the stay before */
        other = other->previous < 0 ? NULL : &m->stays[other->previous];
    return other && other->last < stay->changed && other->is_stored &&
           other->first / m->desc->n_visits == stay->changed / m->desc->n_visits &&
           memoi_stay_host(m, other) == memoi_stay_host(m, stay);
}

MEMOI void memoi_law_add_due(memoi_maker* m, int32_t order, const memoi_stay* stay, int32_t time,
                             int32_t need, int32_t free_0, int32_t free_1) {
    const memob_item* item MEMO_UNUSED = &m->desc->items[stay->item];
    const int32_t n_visits MEMO_UNUSED = m->desc->n_visits;
    const memoi_stay* version = order && stay->previous >= 0 ? &m->stays[stay->previous] : stay;
    const memoi_due due = {time + 1,
                           order,
                           need,
                           {free_0, free_1},
                           stay->item,
                           stay->at,
                           memoi_stay_host(m, version),
                           stay->n_slots,
                           order && stay->displaced >= 0 && m->stays[stay->displaced].is_stored};
    MEMO_ASSERT(time < m->law->n_lists * n_visits);
    MEMO_ASSERT(!order || memoi_use_reads(stay->how));                        /* 1 */
    MEMO_ASSERT(order || stay->changed >= 0);                                 /* 2 */
    MEMO_ASSERT(order || (time >= stay->first && time <= stay->last));        /* 3 */
    MEMO_ASSERT(!order || time < stay->first);                                /* 4 */
    MEMO_ASSERT(item->n_slots > 0);                                           /* 6 */
    MEMO_ASSERT(item->file < 0 || memoi_stay_host(m, version) == item->host); /* its window */
    MEMO_ASSERT(m->n_due < 2 * m->n_stays); /* a store and a load of each */
    m->due[m->n_due++] = due;
}

/* Sorts by slot, then by memoi_due_compare: few are of one slot. */
MEMOI memo_status memoi_law_sort_dues(memoi_maker* m, memo_error* error) {
    const int32_t n_slots = m->law->n_lists * m->desc->n_visits + 1;
    const memoi_due* dues = m->due;
    memoi_due* sorted = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_due, m->n_due);
    int32_t* first = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)n_slots + 1);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t k = 0; k < m->n_due; k++) first[dues[k].slot + 1]++;
    for (int32_t slot = 0; slot < n_slots; slot++) first[slot + 1] += first[slot];
    for (int32_t k = 0; k < m->n_due; k++) sorted[first[dues[k].slot]++] = dues[k];

    /* Now first is the end of each slot. */
    for (int32_t slot = 0, begin = 0; slot < n_slots; begin = first[slot++]) {
        for (int32_t k = begin + 1; k < first[slot]; k++) {
            const memoi_due due = sorted[k];
            int32_t to = k;
            while (to > begin && memoi_due_compare(&due, &sorted[to - 1]) < 0) {
                sorted[to] = sorted[to - 1];
                to--;
            }
            sorted[to] = due;
        }
        for (int32_t k = begin + 1; k < first[slot]; k++)
            MEMO_ASSERT(memoi_due_compare(&sorted[k - 1], &sorted[k]) <= 0); /* 5 */
    }
    m->due = sorted;
    return MEMO_STATUS_OK;
}

/* A store comes at its slot, and a load behind the stores that free its bytes, and that of its
 * value, `later` visits later, if it can.  stored: of each slot of the device and the host, the
 * slot of the latest store. */
MEMOI void memoi_law_follow_stores(const memob_law_desc* d, memoi_due* due, int later,
                                   int32_t* stored) {
    const memob_item* item = &d->items[due->item];
    const int64_t begin[] = {due->at, d->n_slots[0] + due->host};
    const int64_t end[] = {begin[0] + due->n_slots, begin[1] + item->n_host};
    for (int k = 0; k < 2; k++)
        for (int64_t c = begin[k]; c < end[k]; c++) {
            if (due->order)
                due->slot = (int32_t)memob_max(due->slot, memob_min(stored[c] + later, due->need));
            else
                stored[c] = (int32_t)memob_max(due->slot, stored[c]);
        }
}

/* Spreads the transfers of each slot, stores and loads in their order.  Stores through windows are
 * not spread. */
MEMOI memo_status memoi_law_spread(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    int32_t* stored;
    if (!d->n_spread) return MEMO_STATUS_OK;
    stored = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)d->n_slots[0] + d->n_slots[1]);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t first = 0, end; first < m->n_due; first = end) {
        const int32_t slot = m->due[first].slot;
        const int32_t n_spread = slot ? d->n_spread[(slot - 1) % d->n_visits] : 0;
        double all_bytes[2] = {1e-9, 1e-9}, n_bytes[2] = {0, 0};
        for (end = first; end < m->n_due && m->due[end].slot == slot; end++)
            all_bytes[m->due[end].order] += (double)d->item_bytes[m->due[end].item];
        for (int32_t k = first; k < end; k++) {
            memoi_due* due = &m->due[k];
            const int32_t order = due->order;
            if (order || d->items[due->item].file < 0)
                due->slot += (int32_t)(n_spread * (n_bytes[order] / all_bytes[order]));
            due->slot = (int32_t)memob_min(due->slot, due->need);
            n_bytes[order] += (double)d->item_bytes[due->item];
            memoi_law_follow_stores(d, due, n_spread > 0, stored);
            MEMO_ASSERT(due->slot <= due->need); /* 3, 4 */
        }
    }
    return memoi_law_sort_dues(m, error);
}

/* Which stays are loaded and stored, and behind which visit.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memoi_law_find_transfers(memoi_maker* m, memo_error* error) {
    m->due = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_due, 2 * (int64_t)m->n_stays);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t k = 0; k < m->n_stays; k++) {
        memoi_stay* s = &m->stays[k];
        const int reads = memoi_use_reads(s->how);
        if (reads && s->previous < 0 && !m->desc->items[s->item].lives_on)
            return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "memob_law_desc.uses: visit %d reads item %d, which no visit has "
                                  "written; let its first use be WRITE",
                                  (int)(s->first % m->desc->n_visits), (int)s->item);
        s->is_loaded = reads && !s->is_on_host;
        if ((reads || s->how == MEMOB_USE_REWRITE) && s->previous >= 0 &&
            !m->stays[s->previous].is_on_host)
            m->stays[s->previous].is_stored = m->stays[s->previous].changed >= 0;
    }

    /* Stays that are displaced come before, so it is known whether they are stored. */
    for (int32_t k = 0; k < m->n_stays; k++) {
        memoi_stay* s = &m->stays[k];
        const int32_t next = s->next < 0 ? INT32_MAX : m->stays[s->next].first;
        const memoi_stay* previous = s->previous < 0 ? NULL : &m->stays[s->previous];
        int32_t behind = (int32_t)memob_max(s->before, s->value); /* a load */
        if (previous && m->desc->items[s->item].lives_on)
            behind = (int32_t)memob_max(behind, previous->last);
        if (s->is_stored && memoi_stay_is_served(m, s)) s->is_stored = 0;
        if (s->is_stored)
            memoi_law_add_due(m, 0, s, s->changed,
                              (int32_t)memob_min(next, s->after < 0 ? INT32_MAX : s->after),
                              s->last, next);
        if (s->is_loaded) memoi_law_add_due(m, 1, s, behind, s->first, s->before, s->value);
    }
    if (memoi_law_sort_dues(m, error)) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    return memoi_law_spread(m, error);
}

/* ---- >>law operations ---------------------------------------------------------------------------
 * Knows: in which order visits and transfers are enqueued, and which cells they touch.  Knows
 * nothing of why bytes travel: that is >>law, whose numbers 7 and 8 are asserted here.  Also:
 *
 * 1. Operations, parts and touches fit into arrays that are sized by uses and transfers.
 * 2. What is read from the file was written there, in a transfer before. */

MEMOI memob_op* memoi_law_add_op(memoi_maker* m, int32_t kind) {
    static const int32_t streams[] = {MEMOB_STREAM_COMPUTE, MEMOB_STREAM_TO_HOST,
                                      MEMOB_STREAM_TO_DEVICE, MEMOB_STREAM_FILE, MEMOB_STREAM_FILE};
    MEMOB_TABLE_OF(MEMOB_N_OP_KINDS, streams);
    memob_op* op = &m->law->ops[m->law->n_ops++];
    MEMO_ASSERT(m->law->n_ops <= m->ops_most); /* 1 */
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->stream = streams[kind];
    op->list = m->list;
    op->visit = m->visit;
    op->first_part = m->law->n_parts;
    op->first_touch = m->law->n_touches;
    if (kind == MEMOB_OP_VISIT && m->desc->on_host && m->desc->on_host[op->visit])
        op->stream = MEMOB_STREAM_FILE;
    return op;
}

MEMOI void memoi_law_add_part(memoi_maker* m, memob_op* op, int32_t item, int64_t at, int64_t away,
                              int32_t n_slots) {
    const memob_part part = {item, at, away, n_slots, m->desc->items[item].n_host, 0};
    MEMO_ASSERT(m->law->n_parts < m->parts_most); /* 1 */
    m->law->parts[m->law->n_parts++] = part;
    op->n_parts++;
}

/* Slots that an operation reads or writes. */
MEMOI void memoi_law_touch(memoi_maker* m, memob_op* op, int32_t writes, int64_t at, int32_t n) {
    memob_law* law = m->law;
    int32_t touch = 2 * (int32_t)memoi_cell_at(m->desc, at) + writes;
    for (int32_t k = 0; k < n; k++, touch += 2) {
        MEMO_ASSERT(law->n_touches < m->touches_most && touch < 2 * law->n_cells); /* 1 */
        law->touches[law->n_touches++] = touch;
        op->n_touches++;
    }
}

/* The bytes of copies. */
MEMOI void memoi_law_end_op(memoi_maker* m, memob_op* op) {
    static const int64_t tiers[] = {0, MEMOI_ON_HOST, MEMOI_IN_FILE};
    MEMOB_TABLE_OF(MEMO_N_TIERS, tiers);
    const int is_file = op->kind == MEMOB_OP_WRITE || op->kind == MEMOB_OP_READ;
    const int leaves = op->kind == MEMOB_OP_STORE || op->kind == MEMOB_OP_WRITE;
    for (int32_t writes = 0; writes < 2; writes++) {
        const int is_away = writes == leaves;
        const int64_t tier = tiers[is_file + is_away];
        for (int32_t k = 0; k < op->n_parts; k++) {
            const memob_part* part = &m->law->parts[op->first_part + k];
            memoi_law_touch(m, op, writes, tier + (is_away ? part->away : part->at),
                            tier ? part->n_host : part->n_slots);
        }
    }
}

/* A visit: the items that it makes, and the bytes of its uses.  The first use of a stay writes,
 * even if it reads: rows that were not stored are made again there, and a load before it, for which
 * it would wait, may have no bytes in this micro-batch. */
MEMOI void memoi_law_add_visit(memoi_maker* m) {
    const memob_law_desc* d = m->desc;
    const char* begins = &m->begins[(int64_t)m->list * d->n_uses];
    memob_op* op = memoi_law_add_op(m, MEMOB_OP_VISIT);
    m->law->visit_ops[(int64_t)m->list * d->n_visits + m->visit] = (int32_t)(op - m->law->ops);
    for (int32_t u = m->law->first_use[m->visit]; u < m->law->first_use[m->visit + 1]; u++) {
        const memob_use* use = &d->uses[u];
        const memob_item* item = &d->items[use->item];
        const int may_write = use->how != MEMOB_USE_READ && use->how != MEMOB_USE_MAKE;
        if (!item->n_slots) continue;
        if (begins[u] && use->how == MEMOB_USE_MAKE)
            memoi_law_add_part(m, op, use->item, use->at, use->at, memoi_use_slots(item, use));
        memoi_law_touch(m, op, may_write || begins[u], memoi_use_at(item, use),
                        memoi_use_slots(item, use));
    }
}

/* --- transfers --- */

/* Visits before a time that count. */
MEMOI int32_t memoi_law_count(const memoi_maker* m, int32_t time) {
    const int32_t n = m->desc->n_visits;
    return time / n * m->n_counted[n] + m->n_counted[time % n];
}

/* An operation that a transfer is, or that comes with it. */
MEMOI memob_op* memoi_law_add_transfer(memoi_maker* m, int32_t kind, const memoi_due* due) {
    memob_op* op = memoi_law_add_op(m, kind);
    op->is_load = due->order;
    op->need = due->need;
    if (due->need < INT32_MAX)
        op->need = memoi_law_count(m, due->need) - memoi_law_count(m, due->slot);
    return op;
}

/* An operation of transfers, or of copies between windows and their homes in the file. */
MEMOI void memoi_law_copy(memoi_maker* m, int32_t kind, const memoi_due* due, int32_t n) {
    const int is_file = kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ;
    memob_op* op = NULL;
    for (int32_t k = 0; k < n; k++) {
        const memob_item* item = &m->desc->items[due[k].item];
        MEMO_ASSERT(memoi_due_together(due, &due[k])); /* 7 */
        if (is_file && item->file < 0) continue;
        if (is_file && !item->lives_on && !(kind == MEMOB_OP_WRITE && m->is_read[&due[k] - m->due]))
            continue; /* reads: memoi_law_read_behind */
        if (!op) op = memoi_law_add_transfer(m, kind, due);
        memoi_law_add_part(m, op, due[k].item, is_file ? due[k].host : due[k].at,
                           is_file ? item->file : due[k].host, due[k].n_slots);
    }
    if (op) memoi_law_end_op(m, op);
}

/* Finds behind which transfer each load is read from the file: the latest that uses its window. */
MEMOI memo_status memoi_law_find_reads(memoi_maker* m, memo_error* error) {
    int32_t* latest = MEMOB_ARRAY(&m->arrays, int32_t, m->desc->n_slots[1]); /* 1 + a transfer */
    int32_t* stored = MEMOB_ARRAY(&m->arrays, int32_t, m->desc->n_items);    /* 1 + its latest */
    m->first_read = MEMOB_ARRAY_OF_ANY(&m->arrays, int32_t, m->n_due);
    m->next_read = MEMOB_ARRAY_OF_ANY(&m->arrays, int32_t, m->n_due);
    m->is_read = MEMOB_ARRAY(&m->arrays, char, m->n_due);
    if (m->arrays.failed) return memob_no_memory(error, "the windows of a step");
    for (int32_t k = 0; k < m->n_due; k++) {
        const memob_item* item = &m->desc->items[m->due[k].item];
        int32_t before = -1, is_there = 1;
        m->first_read[k] = m->next_read[k] = -1;
        if (item->file < 0) continue;
        for (int64_t h = item->host; h < item->host + item->n_host; h++) {
            before = (int32_t)memob_max(before, latest[h] - 1);
            is_there &= latest[h] > 0 && m->due[latest[h] - 1].item == m->due[k].item;
            latest[h] = k + 1;
        }
        if (item->lives_on) continue; /* memoi_law_copy reads before each load */
        if (!m->due[k].order) stored[m->due[k].item] = k + 1;
        if (!m->due[k].order || is_there) continue;
        MEMO_ASSERT(before >= 0 && stored[m->due[k].item]); /* 2 */
        m->is_read[stored[m->due[k].item] - 1] = 1;
        m->next_read[k] = m->first_read[before];
        m->first_read[before] = k;
    }
    return MEMO_STATUS_OK;
}

/* Reads what comes into the windows that n transfers have freed. */
MEMOI void memoi_law_read_behind(memoi_maker* m, const memoi_due* due, int32_t n) {
    memob_op* op = NULL;
    for (int32_t k = 0; k < n; k++)
        for (int32_t r = m->first_read[due + k - m->due]; r >= 0; r = m->next_read[r]) {
            const memob_item* item = &m->desc->items[m->due[r].item];
            if (!op) op = memoi_law_add_transfer(m, MEMOB_OP_READ, due);
            memoi_law_add_part(m, op, m->due[r].item, item->host, item->file, m->due[r].n_slots);
        }
    if (op) memoi_law_end_op(m, op);
}

/* Transfers that are enqueued together. */
MEMOI void memoi_law_transfer(memoi_maker* m, const memoi_due* due, int32_t n) {
    if (due->order && m->has_windows) memoi_law_copy(m, MEMOB_OP_READ, due, n);
    memoi_law_copy(m, due->order ? MEMOB_OP_LOAD : MEMOB_OP_STORE, due, n);
    if (!due->order && m->has_windows) memoi_law_copy(m, MEMOB_OP_WRITE, due, n);
    if (m->has_windows) memoi_law_read_behind(m, due, n);
}

/* All operations in the order of enqueueing. */
MEMOI void memoi_law_walk(memoi_maker* m) {
    const int32_t n = m->desc->n_visits;
    int32_t k = 0;
    m->law->n_ops = m->law->n_parts = m->law->n_touches = 0;
    m->list = 0;
    m->visit = -1;

    for (int32_t slot = 0; slot <= m->law->n_lists * n; slot++, m->visit++) {
        if (m->visit == n) { /* the list before has ended */
            m->visit = 0;
            m->law->begin[++m->list] = m->law->n_ops;
        }
        if (slot) m->law->visit_ops[slot - 1] = -1;
        if (slot && memoi_law_has(m->desc, m->list, m->visit)) memoi_law_add_visit(m);
        while (k < m->n_due && m->due[k].slot == slot) {
            int32_t end = k + 1;
            while (end < m->n_due && memoi_due_together(&m->due[k], &m->due[end]) &&
                   !memoi_due_shares_window(m->desc, &m->due[k], end - k,
                                            &m->desc->items[m->due[end].item]))
                end++;
            memoi_law_transfer(m, &m->due[k], end - k);
            k = end;
        }
    }
    m->law->begin[m->law->n_lists] = m->law->n_ops;
}

MEMOI memo_status memoi_law_find_ops(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    memob_law* law = m->law;
    const int64_t n_times = (int64_t)law->n_lists * d->n_visits;
    const int64_t n_refs = (int64_t)law->n_lists * d->n_uses;
    int64_t n_each; /* operations of a transfer, at most */
    for (int32_t i = 0; i < d->n_items; i++) m->has_windows |= d->items[i].file >= 0;
    n_each = 1 + m->has_windows;

    m->ops_most = n_times + n_each * m->n_due;
    m->parts_most = n_refs + n_each * m->n_due;
    law->ops = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_op, m->ops_most);
    law->parts = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_part, m->parts_most);
    for (int32_t u = 0; u < d->n_uses; u++)
        m->touches_most +=
            (int64_t)law->n_lists * memoi_use_slots(&d->items[d->uses[u].item], &d->uses[u]);
    for (int32_t k = 0; k < m->n_due; k++)
        m->touches_most +=
            2 * n_each * memob_max(m->due[k].n_slots, d->items[m->due[k].item].n_host);
    law->n_cells = d->n_slots[0] + d->n_slots[1] + d->n_slots[2];
    law->touches = MEMOB_ARRAY_OF_ANY(&law->arrays, int32_t, m->touches_most);
    law->begin = MEMOB_ARRAY(&law->arrays, int32_t, law->n_lists + 1);
    law->visit_ops = MEMOB_ARRAY(&law->arrays, int32_t, n_times);
    m->n_counted = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)d->n_visits + 1);

    if (m->arrays.failed || law->arrays.failed) return memob_no_memory(error, "the law of a step");
    if (m->has_windows && memoi_law_find_reads(m, error)) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    for (int32_t v = 0; v < d->n_visits; v++)
        m->n_counted[v + 1] = m->n_counted[v] + (!d->counts || d->counts[v]);
    memoi_law_walk(m);
    return MEMO_STATUS_OK;
}

/* Makes the operations of all lists.  Arrays of desc are not used afterwards.  Errors:
 * INVALID_ARGUMENT (an item is read before it is written), OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_law_make(const memob_law_desc* desc, memob_law* law, memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memoi_maker maker;
    memo_status status;
    memset(&maker, 0, sizeof maker);
    if (desc->work) {
        arrays = law->arrays;
        memoi_arrays_rewind(&arrays);
        memoi_arrays_rewind(desc->work);
        maker.arrays = *desc->work;
    }
    memset(law, 0, sizeof *law);
    law->arrays = arrays;
    maker.desc = desc;
    maker.law = law;
    law->n_lists = (int32_t)memob_max(desc->n_lists, 1);
    law->n_visits = desc->n_visits;
    MEMO_ASSERT(desc->n_visits > 0);

    status = memoi_law_find_stays(&maker, error);
    if (!status) status = memoi_law_find_transfers(&maker, error);
    if (!status) status = memoi_law_find_ops(&maker, error);
    if (desc->work)
        *desc->work = maker.arrays;
    else
        memob_arrays_free(&maker.arrays);
    if (status) memob_law_free(law);
    return status;
}

/* --- for laws that are made once --- */

/* The touches of a cell so far, as a node of a tree; its next touch leads to another node. */
typedef struct memoi_cell_path {
    int32_t ops[2], next[2]; /* by an operation that reads, or writes: the latest, and its node */
} memoi_cell_path;

/* The node behind a path's next touch.  Nodes are numbered as they are made. */
MEMOI int32_t memoi_cell_follow(memoi_cell_path* paths, int32_t path, int32_t op, int32_t writes,
                                int32_t* n_paths) {
    memoi_cell_path* p = &paths[path];
    if (p->ops[writes] != op) {
        p->ops[writes] = op;
        p->next[writes] = (*n_paths)++;
    }
    return p->next[writes];
}

/* Cells that the same operations touch in the same way become one, and those that one stream alone
 * uses are left out; waits and times stay the same.  Only operations [from, to) are enqueued, and
 * keep their touches.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_law_join_cells(memob_law* law, int32_t from, int32_t to,
                                       memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memoi_cell_path* paths = MEMOB_ARRAY(&arrays, memoi_cell_path, (int64_t)law->n_touches + 1);
    int32_t* path_of = MEMOB_ARRAY(&arrays, int32_t, law->n_cells);
    uint8_t* streams = MEMOB_ARRAY(&arrays, uint8_t, law->n_cells); /* bit s: stream s uses it */
    int32_t n_paths = 1, n_cells = 0, n_touches = 0;
    memo_status status = MEMO_STATUS_OK;
    const int32_t n_ops = arrays.failed ? 0 : law->n_ops;
    for (int32_t k = 0; k < n_ops; k++) {
        if (k < from || k >= to) law->ops[k].n_touches = 0;
        for (int32_t i = 0; i < law->ops[k].n_touches; i++) {
            const int32_t touch = law->touches[law->ops[k].first_touch + i];
            path_of[touch >> 1] =
                memoi_cell_follow(paths, path_of[touch >> 1], k + 1, touch & 1, &n_paths);
            streams[touch >> 1] |= (uint8_t)(1 << law->ops[k].stream);
        }
    }

    /* The first cell of each path stays, and path_of becomes its new number, from 1 on.  The others
     * have 0. */
    for (int32_t c = 0; c < law->n_cells && n_ops; c++) {
        memoi_cell_path* path = &paths[path_of[c]];
        const int is_shared = (streams[c] & (streams[c] - 1)) != 0;
        path_of[c] = is_shared && path->ops[0] >= 0 ? ++n_cells : 0;
        path->ops[0] = -1;
    }
    for (int32_t k = 0; k < n_ops; k++) {
        memob_op* op = &law->ops[k];
        const int32_t *touch = law->touches + op->first_touch, *end = touch + op->n_touches;
        op->first_touch = n_touches;
        for (; touch < end; touch++)
            if (path_of[*touch >> 1])
                law->touches[n_touches++] = 2 * (path_of[*touch >> 1] - 1) + (*touch & 1);
        op->n_touches = n_touches - op->first_touch;
    }
    law->n_touches = n_touches;
    law->n_cells = n_cells;
    if (arrays.failed) status = memob_no_memory(error, "the cells of a step");
    memob_arrays_free(&arrays);
    return status;
}

/* ---- >>clock ------------------------------------------------------------------------------------
 * Knows: until when streams are busy, when the latest uses of bytes end, and how long copies take.
 * Knows nothing of what computes.
 *
 * The planner's sink of laws: every prediction is a walk on this clock.  An operation begins when
 * its stream is free, and when the operations before have ended that touch its bytes, if either
 * writes.  Waits that follow from others change no time, so nobody looks for them.
 *
 * Copies slow computation while both run, and copies of both ways add up.  So computation needs to
 * know when the copies run that were enqueued before it.
 *
 * 1. What is enqueued has its end at once, which nothing changes that comes later.
 * 2. Time never goes back: not that of a stream, and not that of bytes. */

/* What copies, uses of the file, and updates on the host cost. */
typedef struct memob_rates {
    double copy_s;            /* of each copy, in addition to the bytes */
    double bytes_per_s[2][2]; /* of copies, of the file: out, back; 0: they take no time */
    double update_host_s_per_byte, fetch_s_per_byte;
    double slowdown_s_per_byte[2]; /* of computation, by copies beside it: to the host, back */
} memob_rates;

/* Copies of one way that may run beside computation: spans of time, oldest first.  If there are
 * more, the latest become one. */
#define MEMOB_BESIDE_MOST 16
typedef struct memob_beside {
    double loss; /* of the speed of computation, while copies of this way run: a share */
    int32_t first, n;
    double begin_s[MEMOB_BESIDE_MOST], end_s[MEMOB_BESIDE_MOST];
} memob_beside;

/* Start from all zero, but for rates. */
typedef struct memob_clock {
    const memob_rates* rates;
    double time_s[MEMOB_N_STREAMS]; /* until then the stream is busy, or waits */
    double stall_s;                 /* computation has waited for so long */
    double late_s; /* how much later operations begin than computation enqueues them, summed */
    int32_t computes_on_host; /* the calling thread computes, so it enqueues when it has computed */
    memob_beside beside[2];   /* copies to the host, back; empty if they slow nothing */
    double copied_bytes[2];   /* to the host, back */
} memob_clock;

/* Bytes of a law. */
typedef struct memob_clock_cell {
    double used_s, wrote_s;
} memob_clock_cell;

MEMOI void memoi_clock_wait(memob_clock* c, int32_t stream, double time_s) {
    if (time_s <= c->time_s[stream]) return;
    if (stream == MEMOB_STREAM_COMPUTE) c->stall_s += time_s - c->time_s[stream];
    c->time_s[stream] = time_s;
}

/* Every stream waits for all that the others were given. */
MEMOI void memoi_clock_join(memob_clock* c) {
    for (int32_t s = 1; s < MEMOB_N_STREAMS; s++) memoi_clock_wait(c, 0, c->time_s[s]);
    for (int32_t s = 1; s < MEMOB_N_STREAMS; s++) memoi_clock_wait(c, s, c->time_s[0]);
}

MEMOI void memob_clock_add(memob_clock* c, int32_t stream, double span_s) {
    MEMO_ASSERT(span_s >= 0); /* 2 */
    c->late_s += c->time_s[stream] - c->time_s[MEMOB_STREAM_COMPUTE];
    c->time_s[stream] += span_s;
}

/* Copies run in [begin_s, end_s).  Those that follow each other at once are one span. */
MEMOI void memob_beside_add(memob_beside* beside, double begin_s, double end_s) {
    const int32_t last = (beside->first + beside->n + MEMOB_BESIDE_MOST - 1) % MEMOB_BESIDE_MOST;
    int32_t next = last;
    if (beside->loss <= 0 || end_s <= begin_s) return;
    if (!beside->n || (begin_s > beside->end_s[last] && beside->n < MEMOB_BESIDE_MOST)) {
        next = (beside->first + beside->n++) % MEMOB_BESIDE_MOST;
        beside->begin_s[next] = begin_s;
    }
    beside->end_s[next] = end_s;
}

/* When computation ends that begins at now_s and takes time_s alone.  Forgets copies that are over
 * then, since later computation begins later. */
MEMOI double memob_beside_end(memob_beside* beside, double now_s, double time_s) {
    while (time_s > 0) {
        double speed = 1, until_s = -1; /* speed and copies change then; -1: never */
        for (int way = 0; way < 2; way++) {
            memob_beside* b = &beside[way];
            double change_s;
            while (b->n && b->end_s[b->first] <= now_s) {
                b->first = (b->first + 1) % MEMOB_BESIDE_MOST;
                b->n--;
            }
            if (!b->n) continue;
            change_s = b->begin_s[b->first];
            if (change_s <= now_s) {
                change_s = b->end_s[b->first];
                speed -= b->loss;
            }
            if (until_s < 0 || change_s < until_s) until_s = change_s;
        }
        if (speed > 0 && (until_s < 0 || now_s + time_s / speed <= until_s))
            return now_s + time_s / speed;
        if (speed > 0) time_s -= (until_s - now_s) * speed;
        now_s = until_s;
    }
    return now_s;
}

/* Copies of an operation of a law; or a use of the file, read or write.  Each has a start, which
 * does not use the link, and they share bytes. */
MEMOI void memoi_clock_copy(memob_clock* c, int32_t kind, int32_t n_copies, int64_t n_bytes) {
    const int is_file = kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ;
    const int is_back = kind == MEMOB_OP_LOAD || kind == MEMOB_OP_READ;
    const int32_t streams[2] = {MEMOB_STREAM_TO_HOST + is_back, MEMOB_STREAM_FILE};
    const double rate = c->rates->bytes_per_s[is_file][is_back];
    const double bytes_s = rate > 0 ? (double)n_bytes / rate : 0;
    const double begin_s = c->time_s[streams[is_file]];
    if (!is_file) c->copied_bytes[is_back] += (double)n_bytes;
    if (!n_copies) return;
    memob_clock_add(c, streams[is_file], (is_file ? 0 : n_copies * c->rates->copy_s) + bytes_s);
    if (is_file) return;
    c->beside[is_back].loss = c->rates->slowdown_s_per_byte[is_back] * rate;
    memob_beside_add(&c->beside[is_back], begin_s, c->time_s[streams[is_file]]);
}

/* A function of the caller gives bytes. */
MEMOI void memoi_clock_fetch(memob_clock* c, int64_t n_bytes) {
    memob_clock_add(c, MEMOB_STREAM_FILE, c->rates->fetch_s_per_byte * (double)n_bytes);
}

/* Computation, beside the copies that were enqueued so far. */
MEMOI void memob_clock_compute(memob_clock* c, double time_s) {
    const double now_s = c->time_s[MEMOB_STREAM_COMPUTE];
    memob_clock_add(c, MEMOB_STREAM_COMPUTE, memob_beside_end(c->beside, now_s, time_s) - now_s);
}

/* An operation of a law waits for those before. */
MEMOI void memob_clock_begin(memob_clock* c, const memob_clock_cell* cells, const memob_law* law,
                             const memob_op* op) {
    const int32_t* touches = law->touches + op->first_touch;
    double need_s = c->computes_on_host ? c->time_s[MEMOB_STREAM_COMPUTE] : 0;
    for (int32_t k = 0; k < op->n_touches; k++) {
        const memob_clock_cell* cell = &cells[touches[k] >> 1];
        const double before_s = touches[k] & 1 ? cell->used_s : cell->wrote_s;
        if (before_s > need_s) need_s = before_s;
    }
    memoi_clock_wait(c, op->stream, need_s);
}

MEMOI void memob_clock_end(const memob_clock* c, memob_clock_cell* cells, const memob_law* law,
                           const memob_op* op) {
    const int32_t* touches = law->touches + op->first_touch;
    const double end_s = c->time_s[op->stream];
    for (int32_t k = 0; k < op->n_touches; k++) {
        memob_clock_cell* cell = &cells[touches[k] >> 1];
        MEMO_ASSERT(end_s >= (touches[k] & 1 ? cell->used_s : cell->wrote_s)); /* 2 */
        if (end_s > cell->used_s) cell->used_s = end_s;
        if ((touches[k] & 1) && end_s > cell->wrote_s) cell->wrote_s = end_s;
        MEMO_ASSERT(end_s <= cell->used_s && cell->wrote_s <= cell->used_s); /* 1 */
    }
}

/* ---- >>sink -------------------------------------------------------------------------------------
 * Knows: how operations of a law wait for each other, on a device or on a clock.  Knows nothing of
 * what they move.
 *
 * An engine enqueues operations in the order of a law, or leaves some out.  Waits come from what
 * was enqueued, so they are right in every order.
 *
 * 1. An event that is waited for was recorded behind the operation that is meant. */

typedef struct memob_sink {
    memob_engine engine; /* events: MEMOB_RECORDS of each stream */
    memob_waits* waits;
    memob_records records[MEMOB_N_STREAMS];
    int32_t has_failed;       /* the last call */
    const memob_law* entered; /* the latest of states; NULL: none */
    /* A planner's: operations pass on this clock, and there are neither waits nor events. */
    memob_clock* clock;
} memob_sink;

/* A law whose operations a sink gets, and what is known of its bytes. */
typedef struct memob_sink_law {
    const memob_law* law;
    memob_cell* cells;             /* (law->n_cells) */
    memob_clock_cell* clock_cells; /* the same on a clock */
} memob_sink_law;

/* An operation.  A visit may be of two laws, which have no byte in common. */
typedef struct memob_sink_op {
    int32_t n; /* laws; 0: none has bytes of it */
    const memob_sink_law* of[2];
    const memob_op* ops[2];
} memob_sink_op;

/* Streams 1 to n_streams, as memob_engine_take_streams, with the events of these and of compute.
 * What is there stays.  A clock needs none.  Errors: OUT_OF_HOST_MEMORY, the device's. */
MEMOI memo_status memoi_sink_take_streams(memob_sink* sink, int32_t n_streams, memo_error* error) {
    memob_engine* e = &sink->engine;
    const int32_t n_events = n_streams ? (n_streams + 1) * MEMOB_RECORDS : 0;
    memo_status status;
    if (sink->clock || !n_streams) return MEMO_STATUS_OK;
    if (!sink->waits) {
        sink->waits = MEMOB_ARRAY(&e->arrays, memob_waits, 1);
        e->events = MEMOB_ARRAY(&e->arrays, memo_event, MEMOB_N_STREAMS * MEMOB_RECORDS);
        if (e->arrays.failed) return memob_no_memory(error, "the waits and events of an engine");
    }
    status = memob_engine_take_streams(e, n_streams, error);
    for (; e->n_events < n_events && !status; e->n_events += !status)
        status = memo_event_create_untimed(&e->device, &e->events[e->n_events], error);
    return status;
}

MEMOI void memob_sink_free(memob_sink* sink) {
    memob_engine_release(&sink->engine);
    memob_arrays_free(&sink->engine.arrays);
}

/* 1: the calling thread computes in place of the stream, so what it computed is done. */
MEMOI int memoi_sink_is_host(const memob_sink* sink, int32_t stream) {
    return stream == MEMOB_STREAM_COMPUTE && sink->engine.computes_on_host;
}

/* Behind operation `number`, the stream's latest.  Returns which of its events; -1: none. */
MEMOI inline int32_t memoi_sink_record(memob_sink* sink, int32_t stream, int64_t number) {
    memob_engine* e = &sink->engine;
    int32_t event;
    if (e->status || memoi_sink_is_host(sink, stream)) return -1;
    event = memob_records_add(&sink->records[stream], number);
    memob_engine_record(e, stream, stream * MEMOB_RECORDS + event);
    return event;
}

MEMOI void memoi_sink_wait(memob_sink* sink, int32_t stream, const memob_numbers* wait) {
    memob_engine* e = &sink->engine;
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        if (!wait->of[s] || e->status) continue;
        if (!memoi_sink_is_host(sink, s)) {
            int32_t event = memob_records_find(&sink->records[s], wait->of[s]);
            if (event < 0) event = memoi_sink_record(sink, s, sink->waits->now[s].of[s]);
            if (e->status) return;
            MEMO_ASSERT(sink->records[s].numbers[event] >= wait->of[s]); /* 1 */
            event += s * MEMOB_RECORDS;
            e->status =
                memoi_sink_is_host(sink, stream)
                    ? memo_event_synchronize(&e->device, e->events[event], e->error)
                    : memo_event_wait(&e->device, e->events[event], e->streams[stream], e->error);
        }
        if (!e->status) memob_waits_raise(sink->waits, stream, s, wait->of[s]);
    }
}

/* Nothing of the law's bytes was enqueued. */
MEMOI void memob_sink_forget(const memob_sink_law* of) {
    const size_t n = (size_t)of->law->n_cells;
    if (of->clock_cells)
        memset(of->clock_cells, 0, n * sizeof *of->clock_cells);
    else
        memset(of->cells, 0, n * sizeof *of->cells);
}

/* Adds what a law has of an operation, if it has bytes. */
MEMOI void memoi_sink_add(const memob_sink* sink, memob_sink_op* op, const memob_sink_law* of,
                          const memob_op* as) {
    if (!as->n_touches || !(sink->clock || sink->engine.n_events)) return;
    MEMO_ASSERT(!op->n || op->ops[0]->stream == as->stream);
    op->of[op->n] = of;
    op->ops[op->n++] = as;
}

/* What an operation must wait for, of all that was enqueued; 0: for nothing.  wait: all zero. */
MEMOI int memoi_sink_need(const memob_sink* sink, const memob_sink_op* op, memob_numbers* wait) {
    if (!op->n) return 0;
    for (int32_t k = 0; k < op->n; k++)
        memob_cells_need(op->of[k]->cells, op->of[k]->law->touches + op->ops[k]->first_touch,
                         op->ops[k]->n_touches, wait);
    return memob_waits_reduce(sink->waits, op->ops[0]->stream, wait);
}

/* An operation begins, when those before are over for which it waits. */
MEMOI void memoi_sink_begin(memob_sink* sink, const memob_sink_op* op) {
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    if (sink->clock) {
        for (int32_t k = 0; k < op->n; k++)
            memob_clock_begin(sink->clock, op->of[k]->clock_cells, op->of[k]->law, op->ops[k]);
        return;
    }
    if (memoi_sink_need(sink, op, &wait)) memoi_sink_wait(sink, op->ops[0]->stream, &wait);
    MEMO_ASSERT(sink->engine.status || !memoi_sink_need(sink, op, &wait)); /* 1 of >>waits */
}

/* All of it is enqueued, and others will wait for it: by one number, whatever laws it is of. */
MEMOI void memoi_sink_end(memob_sink* sink, const memob_sink_op* op) {
    const int32_t stream = op->n ? op->ops[0]->stream : -1;
    const int64_t number = sink->clock || !op->n ? 0 : memob_waits_end(sink->waits, stream);
    for (int32_t k = 0; k < op->n; k++) {
        const memob_sink_law* of = op->of[k];
        const memob_op* as = op->ops[k];
        if (sink->clock)
            memob_clock_end(sink->clock, of->clock_cells, of->law, as);
        else
            memob_cells_mark(of->cells, of->law->touches + as->first_touch, as->n_touches, stream,
                             number);
    }
    if (number) (void)memoi_sink_record(sink, stream, number);
}

/* A stream waits for all that the trainer has given another. */
MEMOI void memoi_sink_follow(memob_sink* sink, int32_t stream, int32_t other) {
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    if (sink->clock) {
        memoi_clock_wait(sink->clock, stream, sink->clock->time_s[other]);
        return;
    }
    wait.of[other] = memob_waits_end(sink->waits, other);
    memoi_sink_wait(sink, stream, &wait);
}

/* Every stream waits for all that the others were given. */
MEMOI void memoi_sink_join(memob_sink* sink) {
    memob_numbers all = MEMO_ZERO(memob_numbers);
    if (sink->clock) memoi_clock_join(sink->clock);
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        if (s * MEMOB_RECORDS >= sink->engine.n_events) continue;
        all.of[s] = memob_waits_end(sink->waits, s);
        (void)memoi_sink_record(sink, s, all.of[s]);
    }
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        memob_numbers others = all;
        others.of[s] = 0;
        if (all.of[s]) memoi_sink_wait(sink, s, &others);
    }
    if (!sink->engine.status) sink->has_failed = 0;
}

/* Begins a call.  After a failed one, or an abandoned step, waits that the law counts on may be
 * missing, so the streams join. */
MEMOI void memoi_sink_call(memob_sink* sink, memo_error* error) {
    memob_engine_call(&sink->engine, error);
    if (sink->has_failed) memoi_sink_join(sink);
}

/* ---- >>snapshot ---------------------------------------------------------------------------------
 * Knows: a thread that writes items one after the other, and which items it has not written yet.
 * Knows nothing of what items are, where they lie, and what changes them.
 *
 * While an item is left, its bytes at home stay as they are: a stream that would change them is
 * held by a function of the host, a thread waits.
 *
 * 1. Nobody frees a snapshot whose thread runs. */

typedef struct memob_hold {
    memo_host_call call;
    struct memob_snapshot* of;
    int32_t item;
} memob_hold;

typedef struct memob_snapshot {
    memo_status (*write)(void* user, int32_t item, memo_error* error); /* an item */
    void* user;
    memob_hold* holds; /* (n_items) */
    char* is_left;     /* (n_items): the item is not written yet */
    int32_t* order;    /* (n_order): items to write */
    int32_t n_items, n_order;
    int32_t n_left;  /* of the order */
    int32_t is_open; /* begun, and not finished */
    memo_error error;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t thread;
    int32_t has_thread;
    pthread_mutex_t mutex; /* of is_left */
    pthread_cond_t is_written;
#endif
    memob_arrays arrays;
} memob_snapshot;

MEMOI int32_t memob_snapshot_n_left(const memob_snapshot* snapshot) {
    return __atomic_load_n(&snapshot->n_left, __ATOMIC_ACQUIRE);
}

/* Waits until the item is written. */
MEMOI void memob_snapshot_wait(memob_snapshot* snapshot, int32_t item) {
    if (!memob_snapshot_n_left(snapshot)) return;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_mutex_lock(&snapshot->mutex);
    while (snapshot->is_left[item]) pthread_cond_wait(&snapshot->is_written, &snapshot->mutex);
    pthread_mutex_unlock(&snapshot->mutex);
#else
    (void)item;
#endif
}

MEMOI memo_status memoi_hold_run(void* argument, memo_error* error) {
    const memob_hold* hold = (const memob_hold*)argument;
    (void)error;
    memob_snapshot_wait(hold->of, hold->item);
    return MEMO_STATUS_OK;
}

/* What is enqueued on the stream from now on waits until the item is written. */
MEMOI void memoi_snapshot_hold(memob_snapshot* snapshot, memob_engine* e, int32_t stream,
                               int32_t item) {
    int is_left = 0;
    if (!snapshot || !memob_snapshot_n_left(snapshot) || e->status) return;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_mutex_lock(&snapshot->mutex);
    is_left = snapshot->is_left[item];
    pthread_mutex_unlock(&snapshot->mutex);
#endif
    if (!is_left) return;
    if (e->device.launch_host)
        e->status =
            memo_launch_host(&e->device, e->streams[stream], &snapshot->holds[item].call, e->error);
    else
        memob_snapshot_wait(snapshot, item);
}

/* Writes the items in order.  After an error the others are given up. */
MEMOI void* memoi_snapshot_run(void* argument) {
    memob_snapshot* snapshot = (memob_snapshot*)argument;
    for (int32_t k = 0; k < snapshot->n_order; k++) {
        const int32_t item = snapshot->order[k];
        memo_error* error = &snapshot->error;
        if (!error->status) error->status = snapshot->write(snapshot->user, item, error);
#ifndef MEMO_NO_HOST_DEVICE
        pthread_mutex_lock(&snapshot->mutex);
#endif
        snapshot->is_left[item] = 0;
        __atomic_fetch_sub(&snapshot->n_left, 1, __ATOMIC_RELEASE);
#ifndef MEMO_NO_HOST_DEVICE
        pthread_cond_broadcast(&snapshot->is_written);
        pthread_mutex_unlock(&snapshot->mutex);
#endif
    }
    return NULL;
}

/* Memory for a snapshot of up to n_items, once.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_snapshot_make(memob_snapshot* snapshot, int32_t n_items,
                                      memo_error* error) {
    if (snapshot->n_items) return MEMO_STATUS_OK;
    snapshot->holds = MEMOB_ARRAY(&snapshot->arrays, memob_hold, n_items);
    snapshot->is_left = MEMOB_ARRAY(&snapshot->arrays, char, n_items);
    snapshot->order = MEMOB_ARRAY(&snapshot->arrays, int32_t, n_items);
    if (snapshot->arrays.failed) {
        memob_arrays_free(&snapshot->arrays);
        return memob_no_memory(error, "a snapshot");
    }
    for (int32_t i = 0; i < n_items; i++) {
        const memob_hold hold = {{memoi_hold_run, &snapshot->holds[i], NULL}, snapshot, i};
        snapshot->holds[i] = hold;
    }
    snapshot->n_items = n_items;
#ifndef MEMO_NO_HOST_DEVICE
    pthread_mutex_init(&snapshot->mutex, NULL);
    pthread_cond_init(&snapshot->is_written, NULL);
#endif
    return MEMO_STATUS_OK;
}

/* Writes the items of the order, by a thread; without one, now. */
MEMOI void memoi_snapshot_begin(memob_snapshot* snapshot) {
    MEMO_ASSERT(!snapshot->is_open); /* 1 */
    memset(&snapshot->error, 0, sizeof snapshot->error);
    for (int32_t k = 0; k < snapshot->n_order; k++) snapshot->is_left[snapshot->order[k]] = 1;
    snapshot->n_left = snapshot->n_order;
    snapshot->is_open = 1;
#ifndef MEMO_NO_HOST_DEVICE
    snapshot->has_thread = !memob_thread_create(&snapshot->thread, 0, memoi_snapshot_run, snapshot);
    if (snapshot->has_thread) return;
#endif
    (void)memoi_snapshot_run(snapshot);
}

/* Waits for the thread.  Errors: of `write`. */
MEMOI memo_status memoi_snapshot_finish(memob_snapshot* snapshot, memo_error* error) {
    if (!snapshot->is_open) return MEMO_STATUS_OK;
#ifndef MEMO_NO_HOST_DEVICE
    if (snapshot->has_thread) pthread_join(snapshot->thread, NULL);
    snapshot->has_thread = 0;
#endif
    snapshot->is_open = 0;
    if (snapshot->error.status && error) *error = snapshot->error;
    return snapshot->error.status;
}

MEMOI void memoi_snapshot_free(memob_snapshot* snapshot) {
    MEMO_ASSERT(!snapshot->is_open); /* 1 */
#ifndef MEMO_NO_HOST_DEVICE
    if (snapshot->n_items) {
        pthread_mutex_destroy(&snapshot->mutex);
        pthread_cond_destroy(&snapshot->is_written);
    }
#endif
    memob_arrays_free(&snapshot->arrays);
}

/* ---- >>moves ------------------------------------------------------------------------------------
 * Knows: where the bytes of a law's items lie, and how its operations copy them.  Knows nothing of
 * the order of operations, and of what items are.
 *
 * 1. Copies lie in the device's and the host's memory; writes and reads of the file in the file. */

/* What a step leaves out of an item: nothing; its update, so what the update alone uses does not
 * come, and nothing goes; all uses. */
enum { MEMOB_LEAVES_NOTHING = 0, MEMOB_LEAVES_UPDATE, MEMOB_LEAVES_ALL };

/* Bytes that one copy moves. */
typedef struct memob_move {
    int64_t device, host; /* offsets, from the begin of the item's slots */
    int64_t n_bytes;
    int64_t first_row, row_bytes; /* of the micro-batch, which may have fewer rows; row_bytes 0:
                                     always all bytes */
} memob_move;

typedef struct memob_moves {
    const int64_t* n_bytes;    /* (n_items): that move of the whole item */
    const int64_t* file_bytes; /* (n_items): of the item in the file */
    const int32_t* n_copies;   /* (n_items): in which they move; NULL: one each */

    /* What a device needs, and a clock does not. */
    memob_memory* memory;
    int64_t sizes[MEMO_N_TIERS];        /* of the memory */
    const memob_move* pieces;           /* of each item, one behind the other */
    const int32_t* first_piece;         /* (n_items + 1) */
    const int64_t *device_at, *host_at; /* of each slot: its begin; NULL: pieces have it */
    const int64_t* file_at;             /* (n_items); -1: a function of the caller gives the item */
    int64_t n_rows;                     /* of this micro-batch */
    const uint8_t* leaves;              /* (n_items): MEMOB_LEAVES_, of this step; NULL: nothing */
    memob_snapshot* snapshot;           /* whose bytes stores and writes wait for; NULL: none */
} memob_moves;

/* What a micro-batch of n_rows moves. */
MEMOI int64_t memoi_piece_bytes(const memob_move* piece, int64_t n_rows) {
    const int64_t n_bytes = (n_rows - piece->first_row) * piece->row_bytes;
    return piece->row_bytes ? memob_min(piece->n_bytes, n_bytes) : piece->n_bytes;
}

/* 1: a function of the caller gives the item, in place of the file. */
MEMOI int memoi_moves_fetch(const memob_moves* moves, int32_t item) {
    return moves->file_at && moves->file_at[item] < 0;
}

/* What the step leaves out of an item. */
MEMOI int memoi_moves_leaves(const uint8_t* leaves, int32_t item) {
    return leaves ? leaves[item] : (int)MEMOB_LEAVES_NOTHING;
}

/* 1: the step leaves this copy out. */
MEMOI int memoi_moves_leave(const uint8_t* leaves, int32_t kind, const memob_part* part) {
    const int of = memoi_moves_leaves(leaves, part->item);
    const int brings = kind == MEMOB_OP_LOAD || kind == MEMOB_OP_READ;
    return of == MEMOB_LEAVES_ALL || (of && (!brings || part->is_idle));
}

/* Enqueues a write or a read of an item, all of its rows. */
MEMOI void memoi_moves_use_file(memob_engine* e, const memob_moves* moves, int32_t kind,
                                const memob_part* part) {
    const int64_t n_bytes = moves->file_bytes[part->item];
    const int64_t begin = memob_max(moves->file_at[part->item], 0);
    const int64_t host = moves->host_at ? moves->host_at[part->at]
                                        : moves->pieces[moves->first_piece[part->item]].host;
    if (!n_bytes) return;
    MEMO_ASSERT(memoi_moves_fetch(moves, part->item) ||
                begin + n_bytes <= moves->sizes[MEMO_TIER_FILE]); /* 1 */
    memob_engine_use_file(e, moves->memory, 2 * (int64_t)part->item + (kind == MEMOB_OP_READ),
                          kind == MEMOB_OP_WRITE, host, begin, n_bytes);
}

/* Copies the rows of an item that this micro-batch has.  Inlined: a layer has many. */
MEMOI inline void memoi_moves_copy(memob_engine* e, const memob_moves* moves, int32_t kind,
                                   const memob_part* part) {
    const int64_t device_at = moves->device_at ? moves->device_at[part->at] : 0;
    const int64_t host_at = moves->host_at ? moves->host_at[part->away] : 0;
    const memob_move* piece = &moves->pieces[moves->first_piece[part->item]];
    const memob_move* end = &moves->pieces[moves->first_piece[part->item + 1]];
    for (; piece < end; piece++) {
        const int64_t device = device_at + piece->device, host = host_at + piece->host;
        const int64_t n_bytes = memoi_piece_bytes(piece, moves->n_rows);
        if (n_bytes <= 0) continue;
        MEMO_ASSERT(device >= 0 && device + n_bytes <= moves->sizes[MEMO_TIER_DEVICE]); /* 1 */
        MEMO_ASSERT(host >= 0 && host + n_bytes <= moves->sizes[MEMO_TIER_HOST]);       /* 1 */
        memob_engine_copy(e, moves->memory, kind == MEMOB_OP_LOAD, device, host, n_bytes);
    }
}

/* What changes an item's home waits until a snapshot has written it. */
MEMOI void memoi_moves_hold(memob_sink* sink, const memob_moves* moves, int32_t kind,
                            int32_t item) {
    const int has_file = moves->file_at && moves->file_at[item] >= 0;
    if (kind == MEMOB_OP_WRITE)
        memoi_snapshot_hold(moves->snapshot, &sink->engine, MEMOB_STREAM_FILE, item);
    else if (kind == MEMOB_OP_STORE && !has_file)
        memoi_snapshot_hold(moves->snapshot, &sink->engine, MEMOB_STREAM_TO_HOST, item);
}

/* Copies an item, or uses the file, on a stream or on a clock. */
MEMOI void memoi_moves_item(memob_sink* sink, const memob_moves* moves, int32_t kind,
                            const memob_part* part) {
    const int is_file = kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ;
    if (moves->snapshot && moves->snapshot->is_open)
        memoi_moves_hold(sink, moves, kind, part->item);
    if (sink->clock && is_file && memoi_moves_fetch(moves, part->item))
        memoi_clock_fetch(sink->clock, moves->file_bytes[part->item]);
    else if (sink->clock)
        memoi_clock_copy(sink->clock, kind, moves->n_copies ? moves->n_copies[part->item] : 1,
                         (is_file ? moves->file_bytes : moves->n_bytes)[part->item]);
    else if (is_file)
        memoi_moves_use_file(&sink->engine, moves, kind, part);
    else
        memoi_moves_copy(&sink->engine, moves, kind, part);
}

/* 1: this micro-batch has bytes of the item, and moves them. */
MEMOI int memoi_moves_have(const memob_sink* sink, const memob_moves* moves, int32_t kind,
                           const memob_part* part) {
    const int32_t item = part->item;
    if (memoi_moves_leave(moves->leaves, kind, part)) return 0;
    if (kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ) return moves->file_bytes[item] > 0;
    if (sink->clock) return moves->n_bytes[item] > 0;
    for (int32_t k = moves->first_piece[item]; k < moves->first_piece[item + 1]; k++)
        if (memoi_piece_bytes(&moves->pieces[k], moves->n_rows) > 0) return 1;
    return 0;
}

/* Enqueues an operation that copies.  One without bytes in this micro-batch is left out, so that
 * shorter micro-batches, and rows known late, need no law of their own. */
MEMOI void memoi_moves_enqueue(memob_sink* sink, const memob_sink_law* of, const memob_moves* moves,
                               const memob_op* op) {
    const memob_part *part = &of->law->parts[op->first_part], *end = part + op->n_parts;
    memob_sink_op as = MEMO_ZERO(memob_sink_op);
    while (part < end && !memoi_moves_have(sink, moves, op->kind, part)) part++;
    if (part == end) return;
    memoi_sink_add(sink, &as, of, op);
    memoi_sink_begin(sink, &as);
    for (; part < end; part++)
        if (!memoi_moves_leave(moves->leaves, op->kind, part))
            memoi_moves_item(sink, moves, op->kind, part);
    memoi_sink_end(sink, &as);
}

/* ---- >>step -------------------------------------------------------------------------------------
 * Knows: where the trainer is in the list of a step, and what lies on the device there.  Knows
 * nothing of what visits compute, and of what items are.
 *
 * A cursor stands in the list.  Begin and end of a visit advance it, and enqueue the copies of the
 * law behind the visit.  The planned step follows itself.  Whatever else the trainer does is a
 * jump: to another phase of the step, or to one beside it.  A phase takes items as given: those
 * that its visits use, or its copies store, before they are loaded or written.  A jump copies the
 * difference: what is newer on the device, and not taken as newer, is stored; what is taken, and
 * not there, is loaded.
 *
 * What lies on the device follows from what a phase takes and the operations since, so nobody
 * keeps owners.
 *
 * A step may leave items out, or their updates.  It goes by the same law, without the copies of
 * these items.  Another choice of items is a jump.
 *
 * Two laws.  States live from step to step, and have the law of a step.  Rows live in a round, and
 * have the law of a round, in two tables: forwards alone, and all visits.  They share no byte.  A
 * visit of both is one operation.  Behind it come the copies of both: stores, then loads, those
 * first for which a visit waits first; of equal ones those of rows.
 *
 * 1. A visit finds there what it reads.
 * 2. What is overwritten is not newer than its home.
 * 3. A phase that is entered has a law; visits come in the order of its list.  Two are open at
 *    most, the older first; with states, one.
 * 4. What was played was begun. */

/* Where the value of an item is. */
enum {
    MEMOB_IS_AWAY = 0,
    MEMOB_IS_THERE,
    MEMOB_IS_NEWER, /* there than at home */
    /* With one of these, where a phase takes it: for updates alone, or for a store behind one. */
    MEMOB_IS_IDLE = 4
};

/* Slots of the device, each of which is bytes of the same states. */
typedef struct memob_spot {
    int32_t at, n_slots;
} memob_spot;

/* A state of a layer. */
typedef struct memob_state_bytes {
    /* Offsets on the device; streamed: on the host; spilled: in the file, through a place on the
     * host; -1: not in the file. */
    int64_t at[MEMO_N_TIERS], n_bytes;
    memob_spot spot;
} memob_state_bytes;

/* What lies on the device, for all steps with the same items. */
typedef struct memob_there {
    uint8_t* lies;     /* (n_items) */
    int32_t* in_slot;  /* (slots of the device): 1 + the item there */
    memob_spot* spots; /* (n_of_layer): where a shared item lies, if it does */
    char* pending;     /* (layers): the layer's update waits */
    uint8_t* leaves;   /* (n_items): MEMOB_LEAVES_, of this step; NULL: nothing */
} memob_there;

/* How long visits wait for copies, if that is measured. */
typedef struct memob_stalls {
    int32_t* waited;   /* (n_visits): the visit waited, and its marks are recorded */
    memo_event* marks; /* 2 n_visits, before and after each wait; NULL: the thread computes */
    double host_s[2];  /* then: of forward and backward, this micro-batch */
    int32_t is_known;  /* all visits of a round were completed */
} memob_stalls;

/* The law of a round's rows, see `Two laws`. */
typedef struct memob_step_rows {
    memob_sink_law of;
    memob_moves moves;
    memob_stalls* stalls; /* NULL: not measured */
} memob_step_rows;

typedef struct memob_step_desc {
    memob_list* list; /* the step takes it */
    /* States; without, all is NULL and 0. */
    const memob_item* items;
    const memob_state_bytes* bytes; /* (n_items): tiers and sizes */
    const char* ends;               /* (n_items): the value ends with an update that reads it */
    memob_moves moves;
    int32_t n_items, n_of_layer; /* items; of a layer, one behind the other */
    /* (n_of_layer): the item that several layers share, each at a spot of its own; -1: none. */
    const int32_t* shared;
    int32_t n_slots[MEMO_N_TIERS];
    const memob_use* uses; /* of all visits of the list */
    int32_t n_uses;
    memob_sink* sink;
    const memob_there* there;
} memob_step_desc;

/* The law of the planned step, or of a phase beside it. */
typedef struct memob_step_law {
    memob_law law;
    memob_sink_law of; /* the same, for a sink */
    memob_use* uses;   /* their visits count from first_visit of the list */
    char* is_idle;     /* of each use: updates alone use the item behind it, to its next load */
    int32_t first_visit, list;
} memob_step_law;

typedef struct memob_step {
    memob_step_desc desc;
    memob_list list;
    memob_step_law laws[MEMOB_N_PHASES]; /* 0: of the planned step; then those beside it */
    int32_t n_laws, law_of[MEMOB_N_PHASES];
    int32_t begin[MEMOB_N_PHASES], end[MEMOB_N_PHASES]; /* operations of each phase */
    uint8_t* takes;                                     /* (phases and none, n_items): MEMOB_IS_ */
    memob_spot* takes_at;                               /* (phases and none, n_of_layer): shared */
    int32_t phase; /* -1: none, and `lies` says what is there */
    int32_t op; /* the visit that comes next, or is open; begin of the phase: it is not entered */
    int32_t played; /* `lies` has the operations of the phase before this one; -1: of others */
    int32_t n_open, is_entered;
    int32_t n_begun, n_ended; /* visits of layers in the round */
    memob_step_rows* rows;    /* of the round; NULL: none moves */
    memob_there there;        /* the desc's */
    struct memob_step* next;  /* another one, with the same items */
    memob_arrays arrays;
} memob_step;

/* The law of the phase. */
MEMOI const memob_step_law* memoi_step_law_of(const memob_step* step, int32_t phase) {
    return &step->laws[step->law_of[phase]];
}

/* --- what lies there --- */

MEMOI void memoi_step_clear(memob_step* step) {
    memset(step->there.lies, MEMOB_IS_AWAY, (size_t)step->desc.n_items);
    memset(step->there.in_slot, 0, (size_t)step->desc.n_slots[0] * sizeof *step->there.in_slot);
}

/* Which of the spots of shared items is the item's; NULL: it is not shared. */
MEMOI memob_spot* memoi_step_shared(const memob_step* step, memob_spot* spots, int32_t item) {
    const int32_t k = step->desc.shared ? item % step->desc.n_of_layer : 0;
    return step->desc.shared && step->desc.shared[k] == item ? &spots[k] : NULL;
}

/* Where the item lies, if it does. */
MEMOI memob_spot memoi_step_lies_at(const memob_step* step, int32_t item) {
    const memob_spot* shared = memoi_step_shared(step, step->there.spots, item);
    return shared ? *shared : step->desc.bytes[item].spot;
}

/* Where a phase that takes the item takes it. */
MEMOI memob_spot memoi_step_takes_at(const memob_step* step, int32_t phase, int32_t item) {
    const memob_spot* shared =
        memoi_step_shared(step, step->takes_at + (int64_t)phase * step->desc.n_of_layer, item);
    return shared ? *shared : step->desc.bytes[item].spot;
}

/* Where a use finds its item on the device. */
MEMOI memob_spot memoi_step_use_at(const memob_step* step, const memob_use* use) {
    const memob_spot spot = {(int32_t)use->at, memoi_use_slots(&step->desc.items[use->item], use)};
    return spot;
}

/* The item no longer lies where it did. */
MEMOI void memoi_step_take_away(memob_step* step, int32_t item) {
    const memob_spot spot = memoi_step_lies_at(step, item);
    for (int32_t slot = spot.at; slot < spot.at + spot.n_slots; slot++)
        if (step->there.in_slot[slot] == item + 1) step->there.in_slot[slot] = 0;
}

/* From now on the item lies there; others in its slots do not. */
MEMOI void memoi_step_put(memob_step* step, int32_t item, memob_spot spot, int is_newer) {
    memob_spot* shared = memoi_step_shared(step, step->there.spots, item);
    if (shared) {
        if (shared->at != spot.at) memoi_step_take_away(step, item);
        *shared = spot;
    }
    for (int32_t slot = spot.at; slot < spot.at + spot.n_slots; slot++) {
        const int32_t other = step->there.in_slot[slot] - 1;
        if (other >= 0 && other != item) {
            MEMO_ASSERT(step->there.lies[other] != MEMOB_IS_NEWER); /* 2 */
            step->there.lies[other] = MEMOB_IS_AWAY;
        }
        step->there.in_slot[slot] = item + 1;
    }
    if (is_newer || !step->there.lies[item])
        step->there.lies[item] = is_newer ? MEMOB_IS_NEWER : MEMOB_IS_THERE;
}

/* What a phase takes of an item in this step: MEMOB_IS_. */
MEMOI int memoi_step_takes(const memob_step* step, int32_t phase, int32_t item) {
    const int takes = step->takes[(int64_t)phase * step->desc.n_items + item];
    const int leaves = memoi_moves_leaves(step->there.leaves, item);
    if (!leaves) return takes & ~MEMOB_IS_IDLE;
    if (leaves == MEMOB_LEAVES_ALL || takes & MEMOB_IS_IDLE) return MEMOB_IS_AWAY;
    return (int)memob_min(takes, MEMOB_IS_THERE);
}

/* Where a copy between device and host finds its item on the device. */
MEMOI memob_spot memoi_part_at(const memob_part* part) {
    const memob_spot spot = {(int32_t)part->at, part->n_slots};
    return spot;
}

/* What an operation leaves. */
MEMOI void memoi_step_play(memob_step* step, const memob_step_law* of, const memob_op* op) {
    const memob_law* law = &of->law;
    int is_update;
    for (int32_t k = op->first_part; k < op->first_part + op->n_parts; k++) {
        const int32_t item = law->parts[k].item;
        const int32_t stores = step->desc.items[item].file < 0 ? MEMOB_OP_STORE : MEMOB_OP_WRITE;
        if (memoi_moves_leave(step->there.leaves, op->kind, &law->parts[k])) continue;
        if (op->kind == MEMOB_OP_LOAD) memoi_step_put(step, item, memoi_part_at(&law->parts[k]), 0);
        if (op->kind == stores && step->there.lies[item]) step->there.lies[item] = MEMOB_IS_THERE;
    }
    if (op->kind != MEMOB_OP_VISIT) return;
    is_update = step->list.visits[of->first_visit + op->visit].pass == MEMOB_UPDATE;
    for (int32_t u = law->first_use[op->visit]; u < law->first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        const int leaves = memoi_moves_leaves(step->there.leaves, use->item);
        if (!step->desc.items[use->item].n_slots) continue;
        if (leaves == MEMOB_LEAVES_ALL || (leaves && is_update)) continue;
        if (use->is_on_host)
            step->there.lies[use->item] = MEMOB_IS_AWAY; /* it is older */
        else
            memoi_step_put(step, use->item, memoi_step_use_at(step, use),
                           use->how != MEMOB_USE_READ);
        if (is_update && step->desc.ends[use->item] && step->there.lies[use->item])
            step->there.lies[use->item] = MEMOB_IS_THERE; /* nobody reads it any more */
    }
}

/* Plays operations [from, to). */
MEMOI void memoi_step_play_all(memob_step* step, const memob_step_law* of, int32_t from,
                               int32_t to) {
    for (int32_t k = from; k < to; k++) memoi_step_play(step, of, &of->law.ops[k]);
}

/* What lies there where the cursor stands.  An open visit may have left all that it leaves.  In a
 * phase it goes on from where it was found last, because each of many updates may look. */
MEMOI void memoi_step_find_lies(memob_step* step) {
    const int32_t end = step->op + step->n_open;
    if (step->phase < 0) return;
    if (step->played < 0) {
        memoi_step_clear(step);
        for (int32_t i = 0; i < step->desc.n_items; i++) {
            const int takes = memoi_step_takes(step, step->phase, i);
            if (takes)
                memoi_step_put(step, i, memoi_step_takes_at(step, step->phase, i),
                               takes == MEMOB_IS_NEWER);
        }
        step->played = step->begin[step->phase];
    }
    MEMO_ASSERT(step->played <= end); /* 4 */
    memoi_step_play_all(step, memoi_step_law_of(step, step->phase), step->played, end);
    step->played = end;
}

/* --- what a phase takes --- */

/* Marks what operation k is the first to use: known; taken if it was there. */
MEMOI void memoi_step_take(memob_step* step, const memob_step_law* of, int32_t k, char* known,
                           const uint8_t* lies, int32_t phase) {
    const memob_op* op = &of->law.ops[k];
    uint8_t* takes = step->takes + (int64_t)phase * step->desc.n_items;
    memob_spot* takes_at = step->takes_at + (int64_t)phase * step->desc.n_of_layer;
    memob_spot* shared;
    for (int32_t p = op->first_part; p < op->first_part + op->n_parts; p++) {
        const int32_t item = of->law.parts[p].item;
        if (op->kind == MEMOB_OP_STORE && !known[item]) {
            takes[item] = lies[item] | (of->law.parts[p].is_idle ? MEMOB_IS_IDLE : 0);
            shared = memoi_step_shared(step, takes_at, item);
            if (shared) *shared = memoi_part_at(&of->law.parts[p]);
        }
        if (op->kind == MEMOB_OP_STORE || op->kind == MEMOB_OP_LOAD) known[item] = 1;
    }
    if (op->kind != MEMOB_OP_VISIT) return;
    for (int32_t u = of->law.first_use[op->visit]; u < of->law.first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        if (!step->desc.items[use->item].n_slots || known[use->item]) continue;
        known[use->item] = 1;
        shared = memoi_step_shared(step, takes_at, use->item);
        if (shared) *shared = memoi_step_use_at(step, use);
        if (!use->is_on_host && use->how != MEMOB_USE_WRITE)
            takes[use->item] = lies[use->item] | (of->is_idle[u] ? MEMOB_IS_IDLE : 0);
        MEMO_ASSERT(use->is_on_host || !memoi_use_reads(use->how) || takes[use->item]); /* 1 */
    }
}

/* The operations before a phase leave what lies there when the phase begins.  The operations from
 * there on decide which of these items the phase takes: to the end of the planned step, and on from
 * the step's begin. */
MEMOI void memoi_step_find_takes(memob_step* step, int32_t phase, char* known, uint8_t* lies) {
    const memob_step_law* of = memoi_step_law_of(step, phase);
    const int32_t n = step->desc.n_items, begin = step->begin[phase];
    const int32_t end = of->list ? of->law.begin[2] : step->end[phase];
    memoi_step_clear(step);
    memoi_step_play_all(step, of, 0, begin);
    memcpy(lies, step->there.lies, (size_t)n);
    memset(known, 0, (size_t)n);
    for (int32_t k = begin; k < end; k++) memoi_step_take(step, of, k, known, lies, phase);
    for (int32_t k = of->list ? of->law.begin[1] : begin; k < begin; k++)
        memoi_step_take(step, of, k, known, lies, phase);
}

/* --- creation --- */

/* Behind a phase beside the step anything may come: a visit of its own reads each item, but values
 * that an update in the phase has ended. */
MEMOI void memoi_step_read_all(const memob_step* step, memob_law_desc* desc, memob_use* uses) {
    const memob_step_desc* d = &step->desc;
    const int32_t n_uses = desc->n_uses;
    for (int32_t i = 0; i < d->n_items; i++) {
        const memob_use use = {desc->n_visits,     i, MEMOB_USE_READ, 0, d->bytes[i].spot.at,
                               MEMOB_HOST_DEFAULT, 0};
        int is_over = 0; /* its last use is that of its update */
        for (int32_t u = 0; u < n_uses && d->ends[i]; u++)
            if (uses[u].item == i) is_over = uses[u].how == MEMOB_USE_READ;
        if (is_over || !d->items[i].n_slots) continue;
        uses[desc->n_uses++] = use;
        desc->n_visits++;
    }
}

/* Goes back through the operations of the law that run, and marks behind which ones updates alone
 * use an item.  n_visits: of the list.  idle: (2 n_items), of what follows, for the item, and for
 * its next load. */
MEMOI void memoi_step_find_idle(memob_step* step, memob_step_law* of, int32_t n_visits,
                                char* idle) {
    const int64_t n = step->desc.n_items;
    for (int32_t k = of->law.begin[of->list + 1] - 1; k >= of->law.begin[of->list]; k--) {
        const memob_op* op = &of->law.ops[k];
        const int32_t v = op->visit;
        int is_update;
        for (int32_t p = op->first_part; p < op->first_part + op->n_parts; p++) {
            memob_part* part = &of->law.parts[p];
            part->is_idle = idle[part->item + n * (op->kind == MEMOB_OP_READ)];
            if (op->kind != MEMOB_OP_LOAD) continue;
            idle[part->item + n] = (char)part->is_idle;
            idle[part->item] = 1;
        }
        if (op->kind != MEMOB_OP_VISIT) continue;
        is_update = v < n_visits && step->list.visits[of->first_visit + v].pass == MEMOB_UPDATE;
        for (int32_t u = of->law.first_use[v]; u < of->law.first_use[v + 1]; u++) {
            of->is_idle[u] = (char)(is_update && idle[of->uses[u].item]);
            if (!is_update) idle[of->uses[u].item] = 0;
        }
    }
}

/* The operation of a visit of the list. */
MEMOI int32_t memoi_step_op_of(const memob_step_law* of, int32_t visit) {
    return of->law.visit_ops[(int64_t)of->list * of->law.n_visits + visit - of->first_visit];
}

/* The law of visits [begin, end) of the list: of three steps in a row, of which the second is
 * behind one and in front of one; or of a phase beside the step. */
MEMOI memo_status memoi_step_make_law(memob_step* step, int32_t begin, int32_t end, int is_beside,
                                      memo_error* error) {
    const memob_step_desc* d = &step->desc;
    memob_step_law* of = &step->laws[step->n_laws++];
    char* on_host = MEMOB_ARRAY(&step->arrays, char, end - begin + d->n_items);
    int32_t* n_spread = MEMOB_ARRAY(&step->arrays, int32_t, end - begin + d->n_items);
    char* counts = MEMOB_ARRAY(&step->arrays, char, end - begin + d->n_items);
    char* idle = MEMOB_ARRAY(&step->arrays, char, 2 * (int64_t)d->n_items);
    memob_law_desc desc;
    memo_status status;
    int32_t from = 0, to = 0;
    memset(&desc, 0, sizeof desc);
    of->first_visit = begin;
    of->list = !is_beside;
    of->uses = MEMOB_ARRAY(&step->arrays, memob_use, d->n_uses + d->n_items);
    of->is_idle = MEMOB_ARRAY(&step->arrays, char, d->n_uses + d->n_items);
    if (step->arrays.failed) return memob_no_memory(error, "the laws of a step");

    for (int32_t u = 0; u < d->n_uses; u++) {
        if (!memob_is_within(d->uses[u].visit, begin, end - 1)) continue;
        of->uses[desc.n_uses] = d->uses[u];
        of->uses[desc.n_uses++].visit -= begin;
    }
    for (int32_t v = begin; v < end; v++) {
        on_host[v - begin] = (char)step->list.visits[v].on_host;
        n_spread[v - begin] = memoi_list_n_spread(&step->list, v, end);
        counts[v - begin] = step->list.visits[v].row >= 0;
    }
    desc.n_visits = end - begin;
    if (is_beside) memoi_step_read_all(step, &desc, of->uses);

    desc.on_host = on_host;
    desc.items = d->items;
    desc.n_items = d->n_items;
    desc.uses = of->uses;
    desc.n_lists = is_beside ? 1 : 3;
    desc.n_spread = step->list.desc.n_slices > 1 ? n_spread : NULL;
    desc.item_bytes = d->moves.n_bytes;
    desc.counts = counts;
    memcpy(desc.n_slots, d->n_slots, sizeof desc.n_slots);
    status = memob_law_make(&desc, &of->law, error);
    for (int k = 0; k <= of->list && !status && !d->sink->clock; k++) /* the step follows itself */
        memoi_step_find_idle(step, of, end - begin, idle);
    if (!status && is_beside) { /* from its first visit to its last */
        from = memoi_step_op_of(of, begin);
        to = memoi_step_op_of(of, end - 1) + 1;
    } else if (!status) {
        from = of->law.begin[1];
        to = of->law.begin[2];
    }
    if (!status) status = memoi_law_join_cells(&of->law, from, to, error);
    of->of.law = &of->law;
    if (!status && d->sink->clock)
        of->of.clock_cells = MEMOB_ARRAY(&step->arrays, memob_clock_cell, of->law.n_cells);
    else if (!status)
        of->of.cells = MEMOB_ARRAY(&step->arrays, memob_cell, of->law.n_cells);
    return !status && step->arrays.failed ? memob_no_memory(error, "the laws of a step") : status;
}

MEMOI void memob_step_free(memob_step* step) {
    for (int32_t k = 0; k < step->n_laws; k++) memob_law_free(&step->laws[k].law);
    memoi_list_free(&step->list);
    memob_arrays_free(&step->arrays);
    memset(step, 0, sizeof *step);
}

/* desc's arrays outlive the step, but for uses.  A planner's step has the planned phases alone.
 * Free the step also after a failure.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_step_make(const memob_step_desc* desc, memob_step* step,
                                  memo_error* error) {
    const int64_t n = desc->n_items;
    memo_status status;
    uint8_t* lies;
    char* known;
    memset(step, 0, sizeof *step);
    step->desc = *desc;
    step->list = *desc->list;
    memset(desc->list, 0, sizeof *desc->list);
    step->phase = -1;
    step->takes = MEMOB_ARRAY(&step->arrays, uint8_t, (MEMOB_N_PHASES + 1) * n);
    step->takes_at =
        MEMOB_ARRAY(&step->arrays, memob_spot, (MEMOB_N_PHASES + 1) * (int64_t)desc->n_of_layer);
    step->there.spots = MEMOB_ARRAY(&step->arrays, memob_spot, desc->n_of_layer);
    step->there.lies = MEMOB_ARRAY(&step->arrays, uint8_t, n); /* until phases are known */
    step->there.in_slot = MEMOB_ARRAY(&step->arrays, int32_t, desc->n_slots[0]);
    lies = MEMOB_ARRAY(&step->arrays, uint8_t, n);
    known = MEMOB_ARRAY(&step->arrays, char, n);
    if (step->arrays.failed) return memob_no_memory(error, "the cursor of a step");

    status = memoi_step_make_law(step, 0, step->list.n_of_step, 0, error);
    for (int32_t phase = 0; phase < MEMOB_N_PHASES && !status; phase++) {
        const int32_t first = step->list.begin[phase], end = step->list.end[phase];
        const int is_beside = first >= step->list.n_of_step;
        const memob_step_law* of;
        if (first == end || (is_beside && desc->sink->clock)) continue;
        if (is_beside) status = memoi_step_make_law(step, first, end, 1, error);
        if (status) return status;
        step->law_of[phase] = is_beside ? step->n_laws - 1 : 0;
        of = memoi_step_law_of(step, phase);
        step->begin[phase] = memoi_step_op_of(of, first);
        step->end[phase] = is_beside ? memoi_step_op_of(of, end - 1) + 1 : of->law.begin[2];
        if (end < step->list.n_of_step) step->end[phase] = memoi_step_op_of(of, end);
        memoi_step_find_takes(step, phase, known, lies);
    }
    if (desc->there) step->there = *desc->there;
    return status;
}

/* ---- >>cursor -----------------------------------------------------------------------------------
 * Knows: how the cursor of a step goes through visits and jumps, and in which order copies are
 * enqueued.  Knows nothing of what visits compute, and of what items are.  Numbers are those of
 * >>step. */

/* --- copies --- */

/* Which copy is enqueued first: see `Two laws`. */
MEMOI int memoi_step_is_sooner(const memob_op* a, const memob_op* b) {
    return a->is_load != b->is_load ? a->is_load < b->is_load : a->need <= b->need;
}

/* The next copy of a law, up to `end`; NULL: its next visit, or none. */
MEMOI const memob_op* memoi_step_copy_at(const memob_op* op, const memob_op* end) {
    return op < end && op->kind != MEMOB_OP_VISIT ? op : NULL;
}

/* Moves an item home from where it lies, or from there to a spot, behind and before all else. */
MEMOI void memoi_step_move(memob_step* step, int32_t item, int is_load, memob_spot spot,
                           int* n_moved) {
    static const int32_t kinds[2][2] = {{MEMOB_OP_STORE, MEMOB_OP_WRITE},
                                        {MEMOB_OP_READ, MEMOB_OP_LOAD}};
    memob_sink* sink = step->desc.sink;
    const int has_file = step->desc.items[item].file >= 0;
    if (sink->engine.status) return;
    if (!(*n_moved)++) memoi_sink_join(sink);
    if (is_load) memoi_step_put(step, item, spot, 0);
    for (int k = 0; k < 2 && !sink->engine.status; k++) {
        const memob_item* of = &step->desc.items[item];
        const memob_part part = {item, spot.at, of->host, spot.n_slots, of->n_host, 0};
        if (!has_file && k != is_load) continue;
        memoi_moves_item(sink, &step->desc.moves, kinds[is_load][k], &part);
        if (has_file && !sink->engine.status) memoi_sink_join(sink);
    }

    /* A load that fails has taken the bytes of others all the same. */
    if (!sink->engine.status)
        step->there.lies[item] = MEMOB_IS_THERE;
    else if (is_load)
        step->there.lies[item] = MEMOB_IS_AWAY;
}

/* From now on `lies` says what is there. */
MEMOI void memoi_step_park(memob_step* step) {
    memoi_step_find_lies(step);
    step->phase = -1;
    step->n_open = step->is_entered = 0;
}

/* 1: the item does not lie where a phase takes it. */
MEMOI int memoi_step_is_elsewhere(const memob_step* step, int32_t phase, int32_t item) {
    return memoi_step_lies_at(step, item).at != memoi_step_takes_at(step, phase, item).at;
}

/* Leaves the phase for another; MEMOB_N_PHASES: for none. */
MEMOI void memoi_step_jump(memob_step* step, int32_t phase) {
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    memoi_step_park(step);
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (step->there.lies[i] == MEMOB_IS_NEWER &&
            (memoi_step_takes(step, phase, i) != MEMOB_IS_NEWER ||
             memoi_step_is_elsewhere(step, phase, i)))
            memoi_step_move(step, i, 0, memoi_step_lies_at(step, i), &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink); /* loads take their bytes */
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (memoi_step_takes(step, phase, i) &&
            (!step->there.lies[i] || memoi_step_is_elsewhere(step, phase, i)))
            memoi_step_move(step, i, 1, memoi_step_takes_at(step, phase, i), &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
}

MEMOI memo_status memoi_step_finish(memob_step* step) {
    memob_sink* sink = step->desc.sink;
    sink->has_failed |= sink->engine.status != MEMO_STATUS_OK;
    return sink->engine.status;
}

/* --- the cursor --- */

/* The visit k behind the one that comes next, or is open; NULL: the phase is over. */
MEMOI const memob_visit* memoi_step_visit_at(const memob_step* step, int32_t k) {
    const memob_step_law* of;
    if (step->phase < 0 || !step->is_entered || step->op + k >= step->end[step->phase]) return NULL;
    of = memoi_step_law_of(step, step->phase);
    MEMO_ASSERT(of->law.ops[step->op + k].kind == MEMOB_OP_VISIT); /* 3 */
    return &step->list.visits[of->first_visit + of->law.ops[step->op + k].visit];
}
MEMOI const memob_visit* memoi_step_visit(const memob_step* step) {
    return memoi_step_visit_at(step, 0);
}

/* What the law of rows has of a visit; NULL: nothing. */
MEMOI const memob_op* memoi_step_rows_op(const memob_step* step, const memob_visit* visit) {
    const memob_law* law = step->rows ? step->rows->of.law : NULL;
    int32_t list, k;
    if (!law || visit->row < 0) return NULL;
    list = law->n_lists - 1 - (step->phase == MEMOB_EVALUATION);
    k = law->visit_ops[(int64_t)list * law->n_visits + visit->row];
    MEMO_ASSERT(law->ops[k].kind == MEMOB_OP_VISIT && law->ops[k].list == list); /* 3 */
    return &law->ops[k];
}

/* A visit as an operation of both laws. */
MEMOI memob_sink_op memoi_step_both(const memob_step* step, const memob_step_law* of,
                                    const memob_op* op, const memob_op* of_rows) {
    memob_sink_op both = MEMO_ZERO(memob_sink_op);
    memoi_sink_add(step->desc.sink, &both, &of->of, op);
    if (of_rows) memoi_sink_add(step->desc.sink, &both, &step->rows->of, of_rows);
    return both;
}

/* Enters a phase, which has visits.  rows: NULL, or their law, if the phase is a round.  Errors:
 * the device's. */
MEMOI memo_status memob_step_go(memob_step* step, int32_t phase, memob_step_rows* rows,
                                memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, phase);
    memob_sink* sink = step->desc.sink;
    MEMO_ASSERT(step->begin[phase] < step->end[phase] && !step->n_open); /* 3 */
    memoi_sink_call(sink, error);
    if (step->phase != phase || step->is_entered) memoi_step_jump(step, phase);
    if (sink->entered != &of->law && step->desc.n_items && !sink->engine.status)
        memoi_sink_join(sink); /* its cells know nothing of copies under way */
    if (sink->engine.status) return memoi_step_finish(step);
    sink->entered = &of->law;
    step->rows = rows;
    if (rows && rows->stalls) memset(rows->stalls->host_s, 0, sizeof rows->stalls->host_s);
    step->phase = phase;
    step->op = step->begin[phase];
    step->played = -1;
    step->n_begun = step->n_ended = 0;
    step->is_entered = 1;
    return MEMO_STATUS_OK;
}

/* Begins a visit, and measures how long it waits. */
MEMOI void memoi_step_measure(memob_step* step, const memob_visit* visit, const memob_sink_op* op) {
    memob_sink* sink = step->desc.sink;
    memob_engine* e = &sink->engine;
    memob_stalls* stalls = step->rows->stalls;
    const memo_event* marks = stalls->marks ? stalls->marks + 2 * visit->row : NULL;
    const memo_stream compute = e->streams[MEMOB_STREAM_COMPUTE];
    const int64_t begin_ns = memob_now_ns();
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    stalls->waited[visit->row] = memoi_sink_need(sink, op, &wait);
    if (!stalls->waited[visit->row]) return;
    if (marks) e->status = memo_event_record(&e->device, marks[0], compute, e->error);
    memoi_sink_wait(sink, MEMOB_STREAM_COMPUTE, &wait);
    if (marks && !e->status) e->status = memo_event_record(&e->device, marks[1], compute, e->error);
    if (!marks) stalls->host_s[visit->pass] += 1e-9 * (double)(memob_now_ns() - begin_ns);
}

/* Opens the visit that comes next, behind those that are open.  Errors: the device's. */
MEMOI memo_status memob_step_begin(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_visit* visit = memoi_step_visit_at(step, step->n_open);
    const memob_op* of_rows = visit ? memoi_step_rows_op(step, visit) : NULL;
    memob_sink* sink = step->desc.sink;
    memob_sink_op op;
    MEMO_ASSERT(visit && step->n_open < (step->desc.n_items ? 1 : 2)); /* 3 */
    op = memoi_step_both(step, of, &of->law.ops[step->op + step->n_open], of_rows);
    memoi_sink_call(sink, error);
    if (!sink->engine.status && of_rows && step->rows->stalls)
        memoi_step_measure(step, visit, &op);
    else if (!sink->engine.status)
        memoi_sink_begin(sink, &op);
    if (sink->engine.status) return memoi_step_finish(step);
    step->n_open++;
    step->n_begun += visit->row >= 0;
    return memoi_step_finish(step);
}

/* Enqueues the copies behind a visit: of states from step->op on, and of rows behind of_rows.
 * Where one fails, step->op stands. */
MEMOI void memoi_step_copies(memob_step* step, const memob_step_law* of, const memob_op* of_rows) {
    const memob_law* law = of_rows ? step->rows->of.law : NULL;
    const memob_op* end = of->law.ops + step->end[step->phase];
    const memob_op *rows = of_rows, *rows_end = NULL;
    memob_sink* sink = step->desc.sink;
    if (of_rows) {
        rows = of_rows + 1;
        rows_end = law->ops + law->begin[of_rows->list + 1];
    }
    while (!sink->engine.status) {
        const memob_op* state = memoi_step_copy_at(of->law.ops + step->op, end);
        const memob_op* row = rows ? memoi_step_copy_at(rows, rows_end) : NULL;
        if (row && (!state || memoi_step_is_sooner(row, state))) {
            memoi_moves_enqueue(sink, &step->rows->of, &step->rows->moves, row);
            rows++;
        } else if (state) {
            memoi_moves_enqueue(sink, &of->of, &step->desc.moves, state);
            step->op += !sink->engine.status;
        } else {
            return;
        }
    }
}

/* Ends the older open visit, and enqueues the copies behind it.  Errors: the device's. */
MEMOI memo_status memob_step_end(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_visit* visit = memoi_step_visit(step);
    const memob_op* of_rows = memoi_step_rows_op(step, visit);
    memob_sink* sink = step->desc.sink;
    memob_sink_op op;
    int32_t next;
    MEMO_ASSERT(step->n_open); /* 3 */
    op = memoi_step_both(step, of, &of->law.ops[step->op], of_rows);
    memoi_sink_call(sink, error);
    if (!sink->engine.status) memoi_sink_end(sink, &op);
    if (sink->engine.status) return memoi_step_finish(step);
    step->n_open--;
    step->n_ended += visit->row >= 0;
    step->op++;
    if (of_rows && !(sink->clock || sink->engine.n_events)) of_rows = NULL; /* nothing moves */
    memoi_step_copies(step, of, of_rows);
    if (sink->engine.status) return memoi_step_finish(step);
    if (step->op < step->end[step->phase]) return MEMO_STATUS_OK;

    /* The phase is over.  Behind one of the planned step comes the next; at its end the first. */
    step->is_entered = 0;
    if (step->rows && step->rows->stalls && step->phase != MEMOB_EVALUATION)
        step->rows->stalls->is_known = 1;
    if (step->law_of[step->phase]) {
        memoi_step_park(step);
        return MEMO_STATUS_OK;
    }
    next = step->phase;
    do next = (next + 1) % MEMOB_N_PHASES;
    while (step->law_of[next] || step->begin[next] == step->end[next]);
    step->phase = next;
    step->op = step->begin[next];
    step->played = -1;
    return MEMO_STATUS_OK;
}

/* Before an update that may leave bytes as they are: what it would write lies there.  Then the
 * update begins. */
MEMOI memo_status memoi_step_begin_with(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_op* op = &of->law.ops[step->op];
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    MEMO_ASSERT(memoi_step_visit(step)->pass == MEMOB_UPDATE && !step->n_open); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_find_lies(step);
    for (int32_t u = of->law.first_use[op->visit]; u < of->law.first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        const int leaves = memoi_moves_leaves(step->there.leaves, use->item);
        if (leaves == MEMOB_LEAVES_ALL || (leaves && of->is_idle[u])) continue;
        if (use->how == MEMOB_USE_REWRITE && !use->is_on_host && !step->there.lies[use->item] &&
            step->desc.items[use->item].n_slots)
            memoi_step_move(step, use->item, 1, memoi_step_use_at(step, use), &n_moved);
    }
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
    if (!memoi_step_finish(step)) return memob_step_begin(step, error);
    step->phase = -1; /* lies says what is there */
    return sink->engine.status;
}

/* In place of an update that is not run. */
MEMOI memo_status memoi_step_pass(memob_step* step, memo_error* error) {
    const memo_status status = memoi_step_begin_with(step, error);
    return status ? status : memob_step_end(step, error);
}

/* Between phases: the item is at home, and with `drops` nowhere else.  Streams may still move it.
 * Errors: the device's. */
MEMOI memo_status memoi_step_bring_home(memob_step* step, int32_t item, int drops,
                                        memo_error* error) {
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    MEMO_ASSERT(!step->is_entered); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_park(step);
    if (step->there.lies[item] == MEMOB_IS_NEWER)
        memoi_step_move(step, item, 0, memoi_step_lies_at(step, item), &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
    if (drops && !sink->engine.status) step->there.lies[item] = MEMOB_IS_AWAY;
    return memoi_step_finish(step);
}

/* Between phases: all items are at home, and nowhere else.  Streams may still move them.  Errors:
 * the device's. */
MEMOI memo_status memoi_step_leave(memob_step* step, memo_error* error) {
    memob_sink* sink = step->desc.sink;
    MEMO_ASSERT(!step->is_entered); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_jump(step, MEMOB_N_PHASES);
    if (!sink->engine.status) memoi_step_clear(step);
    return memoi_step_finish(step);
}

/* Behind memob_step_abandon: streams join, if they have not.  Errors: the device's. */
MEMOI memo_status memob_step_settle(memob_step* step, memo_error* error) {
    memoi_sink_call(step->desc.sink, error);
    return step->desc.sink->engine.status;
}

/* All that was enqueued is over, and nothing lies on the device. */
MEMOI void memob_step_reset(memob_step* step) {
    memoi_step_park(step);
    memoi_step_clear(step);
    for (int32_t k = 0; k < step->n_laws; k++) {
        const memob_step_law* of = &step->laws[k];
        memob_sink_forget(&of->of);
    }
    step->desc.sink->entered = NULL;
    step->desc.sink->has_failed = 0;
}

/* A load that has failed half-way has taken the bytes of others. */
MEMOI void memoi_step_drop_load(memob_step* step) {
    const memob_law* law;
    const memob_op* op;
    if (!step->is_entered || step->phase < 0) return;
    law = &memoi_step_law_of(step, step->phase)->law;
    op = &law->ops[step->op];
    if (op->kind != MEMOB_OP_LOAD) return;
    for (int32_t k = op->first_part; k < op->first_part + op->n_parts; k++) {
        if (memoi_moves_leave(step->there.leaves, op->kind, &law->parts[k])) continue;
        memoi_step_put(step, law->parts[k].item, memoi_part_at(&law->parts[k]), 0);
        step->there.lies[law->parts[k].item] = MEMOB_IS_AWAY;
    }
}

/* After an error, or in place of the rest of a step.  Nobody needs values that end with an update,
 * unless the layer's update waits. */
MEMOI void memob_step_abandon(memob_step* step) {
    memoi_step_find_lies(step);
    memoi_step_drop_load(step);
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (step->desc.ends[i] && step->there.lies[i] &&
            !step->there.pending[i / step->desc.n_of_layer])
            step->there.lies[i] = MEMOB_IS_THERE;
    if (step->rows && step->rows->stalls) step->rows->stalls->is_known = 0;
    step->phase = -1;
    step->n_open = step->is_entered = step->n_begun = step->n_ended = 0;
    step->desc.sink->has_failed = 1;
}

/* ---- >>swap rows --------------------------------------------------------------------------------
 * Knows: tensors, tiles, which rows each layer swaps and recomputes.  Knows nothing of
 * addresses. */

#define MEMOB_KINDS_MAX 32

/* The computation of one pass of one step. */
typedef struct memob_row_visit {
    int32_t pass, layer; /* layer: a step */
    int32_t odd;         /* the rounding buffer of the step */
    int32_t forward;     /* of a backward: the visit that is its forward */
    int32_t ends;        /* of a turn whose backward begins with the loss */
} memob_row_visit;

/* One tensor of one layer; the ranges of moved and recomputed rows may be empty. */
typedef struct memob_swap_place {
    int64_t row_bytes;
    int64_t offset; /* of row 0, in device memory; in a sum: from the border of its part */
    int64_t moved_begin, moved_end;
    int64_t recompute_begin, recompute_end;
    int64_t host_offset; /* of the moved rows, in the layer's part of host memory; is_layer: in all
                            of it */
    int32_t is_layer;    /* rows count from the layer's, not the slice's, row 0 */
    /* LATE_ROWS: the moved rows are the surplus; host_offset is in all of host memory. */
    int32_t is_routed, is_recomputed, is_followed; /* 1: by another step with the tensor */
    int64_t n_routed, stack_begin, stack_end;
} memob_swap_place;

/* What the tensors of a layer amount to, without offsets. */
typedef struct memob_swap_sum {
    int32_t uses_layer;    /* tensors with LAYER rows, in the region of even or odd layers */
    int32_t uses_routed;   /* tensors with LATE_ROWS */
    int32_t routed_before; /* the step before that has LATE_ROWS; -1: none, or this has none */
    int32_t returns;       /* the pack's rows leave, and come back */
    int32_t n_layer_copies, n_routed_copies;
    int64_t moved_bytes;          /* but for LAYER tensors; 0: not moved */
    int64_t host_bytes;           /* of its part of host memory */
    int64_t host_begin;           /* of that part, or of the layer's window */
    int32_t window;               /* of a layer in the file; -1: it stays on the host */
    int64_t file_bytes;           /* that it takes there, or would take */
    int64_t layer_bytes;          /* moved of LAYER tensors */
    int64_t routed_bytes;         /* moved of the surplus, if all steps have as many rows */
    int64_t input_bytes;          /* of moved_bytes: of the INPUT tensor of a slice */
    int32_t is_pack_overwritten;  /* by a later layer */
    double recompute_s, packed_s; /* of tensors that all kinds have; of packed ones */
    /* Bytes of the packed tensors, which only some kinds have: all rows; rows that lie beyond the
     * swapped rows (even layers high, odd layers low).  cut_: the tensor, split into swapped and
     * recomputed rows, that recomputes most. */
    int64_t pack_bytes, free_bytes, cut_bytes, cut_free_bytes;
    /* If the pack moves, as all of it does; host_bytes begins with those of rows. */
    int64_t pack_moved_bytes, pack_host_bytes;
} memob_swap_sum;

/* What becomes of a tensor's rows between forward and backward of a step: they are overwritten;
 * swapped rows leave, and come back. */
enum { MEMOI_SWAP_OVERWRITTEN = 1, MEMOI_SWAP_RETURNS = 2 };

typedef struct memob_swap_placement {
    memo_swap_sizes sizes;
    int32_t n_layers, n_tensors;
    memob_swap_place* places;     /* (n_layers, n_tensors) */
    memob_row_visit* visits;      /* (n_visits) */
    int32_t n_visits, n_forwards; /* n_forwards: of a place, before its backwards */
    memob_swap_sum* sums;         /* (n_layers) */
    int64_t* moves; /* (n_tensors, n_layers): bytes that move of the tensor in a rounding buffer; 0:
                       it stays there; -1: it has none there */
    char* lost; /* (n_tensors + 1, n_layers): of rows in rounding buffers: MEMOI_SWAP_OVERWRITTEN,
                       _RETURNS; the last: of the tensor that is added, or of the packs */
    int64_t* tiles;        /* (n_layers): of the tensor that is placed, or of the packs */
    int32_t n_host_layers; /* places for layers in host memory, with the windows of others */
    int32_t n_windows;     /* of n_host_layers; 0: no layer goes to the file */
    int64_t window_bytes;  /* of each */
    int32_t n_classes;     /* see memoi_swap_find_classes */
    int32_t* class_of;     /* (n_tensors): -1: it has no rows in rounding buffers */
    int32_t n_slices;      /* of a layer, */
    int32_t n_of_batch;    /* and of a micro-batch in a layer */
    int32_t has_loss;      /* in visits of the last layer; 0: between forwards and backwards */
    int32_t finds_outputs; /* the last layer's backward finds its EDGE rows of the forward */
    int64_t slice_rows, tile_rows;
    int64_t routed_rows_layer, routed_rows_all, n_routed; /* n_routed: of this micro-batch so far */
    struct memob_swap_items* items; /* an engine's, with the surplus of late rows; NULL: none */
    int32_t handed, input;    /* the tensors EDGE, if it moves, and INPUT of slices; -1: none */
    int64_t handed_row_bytes; /* 0: none */
    int64_t fixed_host_bytes; /* at the begin of host memory: LAYER and EDGE rows */
    int64_t handed_begin;     /* of the EDGE rows of a layer, in host memory */
    memob_arrays arrays;      /* all of these */
} memob_swap_placement;

MEMOI const char* memoi_swap_desc_name(const memo_swap_desc* desc) {
    return desc->desc_name ? desc->desc_name : "memo_swap_desc";
}
#define MEMOI_INVALID(desc, format, ...)                                                           \
    MEMOB_INVALID(error, "%s." format, memoi_swap_desc_name(desc), __VA_ARGS__)

/* --- the table of rows --- */

/* The item whose recomputation makes item t: the last before it that is not WITH, or t itself. */
MEMOI int32_t memob_item_leader(const memo_item* items, int32_t t) {
    while (t > 0 && items[t].away == MEMO_WITH) t--;
    return t;
}

/* 1: recomputation makes the rows, or some of them. */
MEMOI int memob_is_recomputed(int32_t away) { return away == MEMO_ROWS || away == MEMO_WHOLE; }

/* Steps of a micro-batch in flight. */
MEMOI int32_t memob_swap_place_steps(const memo_swap_desc* desc) {
    return (int32_t)(desc->n_layers / memob_max(desc->n_places, 1));
}

/* Slices of a micro-batch in a layer. */
MEMOI int32_t memob_swap_batch_slices(const memo_swap_desc* desc) {
    return (int32_t)(memob_max(desc->n_slices, 1) / memob_max(desc->n_group, 1));
}

/* 1: the step uses the odd rounding buffer.  The last step of a place and that of the next place
 * use both, because a forward of one comes before a backward of the other. */
MEMOI int32_t memoi_swap_is_odd(const memo_swap_desc* desc, int32_t step) {
    const int32_t n = memob_swap_place_steps(desc);
    return (step / n + step % n) & 1;
}

/* 1: the last layer's backward finds its EDGE rows of the forward.  In an order the loss alone
 * reads them; without one the trainer writes the gradient that it has received. */
MEMOI int memoi_swap_finds_outputs(const memo_swap_desc* desc) {
    return !desc->order || desc->has_loss;
}

/* 1: slices or places overwrite EDGE rows that come back. */
MEMOI int memoi_swap_hands(const memo_swap_desc* desc) {
    return desc->n_slices > 1 || (desc->n_places > 1 && memoi_swap_finds_outputs(desc));
}

/* Steps that may be open at a time. */
MEMOI int32_t memob_swap_open_most(const memo_swap_desc* desc) {
    return desc->n_slices > 1 || desc->routed_rows_layer || desc->order ? 1 : 2;
}

/* 0 without layer_kinds. */
MEMOI int32_t memob_layer_kind(const memo_swap_desc* desc, int32_t layer) {
    return desc->layer_kinds ? desc->layer_kinds[layer] : 0;
}

/* Rows of all slices of a micro-batch in a layer. */
MEMOI int64_t memob_swap_layer_rows(const memo_swap_desc* desc) {
    return desc->layer_rows ? desc->layer_rows : memob_swap_batch_slices(desc) * desc->n_rows;
}

/* SLICE to CARRIED: of the leader of item t. */
MEMOI int32_t memob_item_scope(const memo_swap_desc* desc, int32_t t) {
    return desc->tensors[memob_item_leader(desc->tensors, t)].scope;
}

/* 1: a micro-batch has slices, and tensor t is of the layer. */
MEMOI int memob_swap_is_layer(const memo_swap_desc* desc, int32_t t) {
    return memob_swap_batch_slices(desc) > 1 && memob_item_scope(desc, t) == MEMO_LAYER;
}

/* KEEP to WHOLE: what item t does, or what its leader does. */
MEMOI int32_t memob_item_away(const memo_swap_desc* desc, int32_t t) {
    const int32_t away = desc->tensors[memob_item_leader(desc->tensors, t)].away;
    return memob_is_recomputed(away) && memob_swap_is_layer(desc, t) ? MEMO_MOVE : away;
}

/* 1: how many rows tensor t has is known late. */
MEMOI int memob_tensor_is_routed(const memo_swap_desc* desc, int32_t t) {
    return desc->tensors[t].row_bytes &&
           desc->tensors[memob_item_leader(desc->tensors, t)].is & MEMO_LATE_ROWS;
}

/* Rows of row_bytes that a step has of tensor t, at most.  A CARRIED tensor is one row, as if it
 * were of the slice's first token: slices without tokens have none. */
MEMOI int64_t memob_tensor_rows(const memo_swap_desc* desc, int32_t t) {
    const memo_item* item = &desc->tensors[memob_item_leader(desc->tensors, t)];
    if (item->scope == MEMO_CARRIED) return 1;
    return item->is & MEMO_LATE_ROWS ? desc->routed_rows_layer : desc->n_rows;
}

/* 1: some items are only of some kinds. */
MEMOI int memob_swap_has_kinds(const memo_swap_desc* desc) {
    int32_t t = 0;
    while (t < desc->n_tensors && !desc->tensors[t].kinds) t++;
    return t < desc->n_tensors;
}

/* 1: the layer has bytes of tensor t. */
MEMOI int memob_layer_has(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    const uint32_t kinds = desc->tensors[t].kinds;
    return desc->tensors[t].row_bytes && (!kinds || kinds >> memob_layer_kind(desc, layer) & 1);
}

/* Late rows of each step if all have as many. */
MEMOI int64_t memob_swap_routed_rows(const memo_swap_desc* desc, int32_t t) {
    int32_t n = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) n += memob_layer_has(desc, layer, t);
    return memob_min(desc->routed_rows_all / memob_max(n, 1), desc->routed_rows_layer);
}

MEMOI const char* memob_tensor_name(const memo_item* tensor) {
    return tensor->name ? tensor->name : "unnamed";
}

/* Rows of a tile, at most n_rows. */
MEMOI int64_t memob_swap_tile_rows(const memo_swap_desc* desc) {
    return memob_min(desc->tile_rows ? desc->tile_rows : 1, desc->n_rows);
}

MEMOI int64_t memob_swap_n_tiles(const memo_swap_desc* desc) {
    return (desc->n_rows - 1) / memob_swap_tile_rows(desc) + 1;
}

/* Rows that a layer swaps with n_tiles tiles.  The last tile may be short: even layers swap the
 * last tile last, odd layers first. */
MEMOI int64_t memob_swap_rows_of_tiles(const memo_swap_desc* desc, int32_t layer, int64_t n_tiles) {
    const int64_t tile_rows = memob_swap_tile_rows(desc);
    if (n_tiles == 0) return 0;
    return memoi_swap_is_odd(desc, layer)
               ? desc->n_rows - (memob_swap_n_tiles(desc) - n_tiles) * tile_rows
               : memob_min(n_tiles * tile_rows, desc->n_rows);
}

MEMOI int64_t memoi_swap_tiles_of_alpha(const memo_swap_desc* desc) {
    int64_t n_tiles = memob_swap_n_tiles(desc);
    double n_swapped = desc->alpha * (double)n_tiles + 0.5;
    return n_swapped >= (double)n_tiles ? n_tiles : (int64_t)n_swapped;
}

/* Rows that a layer swaps of tensor t, by the table of rows or by alpha; or MEMO_ROWS_KEPT, as if a
 * tensor that it lacks, and an EDGE, were kept with 0 bytes. */
MEMOI int64_t memoi_swap_cell(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    if (!memob_layer_has(desc, layer, t)) return MEMO_ROWS_KEPT;
    if (desc->tensors[t].scope == MEMO_EDGE) return MEMO_ROWS_KEPT;
    if (desc->rows) return desc->rows[(int64_t)layer * desc->n_tensors + t];
    switch (memob_item_away(desc, t)) {
    case MEMO_KEEP: return MEMO_ROWS_KEPT;
    case MEMO_ROWS:
        if (memob_tensor_is_routed(desc, t)) return 0;
        return memob_swap_rows_of_tiles(desc, layer, memoi_swap_tiles_of_alpha(desc));
    default: return desc->n_rows;
    }
}

/* The same in tiles.  A short last tile counts as one. */
MEMOI int64_t memob_swap_tiles(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    const int64_t rows = memoi_swap_cell(desc, layer, t), tile_rows = memob_swap_tile_rows(desc);
    return rows == MEMO_ROWS_KEPT ? MEMO_ROWS_KEPT : (rows + tile_rows - 1) / tile_rows;
}

/* Returns why item t may not swap so many of its rows; NULL: it may. */
MEMOI const char* memoi_swap_away_fault(const memo_swap_desc* desc, int32_t t, int64_t swapped) {
    switch (memob_item_away(desc, t)) {
    case MEMO_KEEP: return "is MEMO_KEEP; MEMO_ROWS_KEPT is valid";
    case MEMO_ROWS:
        return swapped && memob_tensor_is_routed(desc, t)
                   ? "is MEMO_ROWS, known late; 0 and MEMO_ROWS_KEPT are valid"
                   : NULL;
    case MEMO_WHOLE:
        return swapped > 0 && swapped < desc->n_rows ? "is MEMO_WHOLE; swap all rows or none"
                                                     : NULL;
    default:
        if (swapped == desc->n_rows) return NULL;
        return memob_swap_is_layer(desc, t)
                   ? "is of all slices of the layer, so it is not recomputed; swap all rows or "
                     "keep "
                     "them"
                   : "is MEMO_MOVE, so it cannot be recomputed; swap all rows or keep them";
    }
}

/* Returns why a number of swapped rows is no number of tiles; NULL: it is one. */
MEMOI const char* memoi_swap_tiles_fault(const memo_swap_desc* desc, int32_t layer,
                                         int64_t swapped) {
    const int64_t n = desc->n_rows;
    int64_t border;
    if (!memob_is_within(swapped, 0, n))
        return "is out of range; 0 to n_rows and MEMO_ROWS_KEPT are valid";
    border = memoi_swap_is_odd(desc, layer) ? n - swapped : swapped;
    return border < n && border % memob_swap_tile_rows(desc)
               ? "splits a tile; the border between swapped and recomputed rows must be a "
                 "multiple of tile_rows"
               : NULL;
}

MEMOI memo_status memoi_swap_check_cell(const memo_swap_desc* desc, int32_t layer, int32_t t,
                                        memo_error* error) {
    int64_t n = desc->n_rows, tile = memob_swap_tile_rows(desc);
    int64_t swapped = memoi_swap_cell(desc, layer, t);
    const int32_t leader = memob_item_leader(desc->tensors, t);
    const char* why = NULL;
    if (swapped != MEMO_ROWS_KEPT) {
        why = memoi_swap_tiles_fault(desc, layer, swapped);
        if (!why) why = memoi_swap_away_fault(desc, t, swapped);
    }
    if (!why && memoi_swap_cell(desc, layer, leader) != swapped)
        why = "differs from the tensor that it is recomputed with; give both the same rows";
    if (!why && memob_swap_is_layer(desc, t) &&
        memoi_swap_cell(desc, layer - layer % memob_swap_batch_slices(desc), t) != swapped)
        why = "is MEMO_LAYER; swap or keep it in all slices of the layer";

    if (!why || !memob_layer_has(desc, layer, t)) return MEMO_STATUS_OK;
    return MEMOI_INVALID(desc,
                         "rows: layer %d, tensor %d (%s) %s (%lld of %lld rows, tile_rows %lld)",
                         (int)layer, (int)t, memob_tensor_name(&desc->tensors[t]), why,
                         (long long)swapped, (long long)n, (long long)tile);
}

/* The choices of an item that do not work together; NULL: they do. */
MEMOI const char* memoi_swap_choices_fault(const memo_item* item) {
    const int stays_or_moves = item->away == MEMO_KEEP || item->away == MEMO_MOVE;
    const memob_rule rules[] = {
        {!memob_is_within(item->away, 0, MEMO_N_AWAYS - 1),
         "away is invalid; MEMO_KEEP, MEMO_MOVE, MEMO_ROWS, MEMO_WHOLE and MEMO_WITH are valid"},
        {!memob_is_within(item->scope, 0, MEMO_N_SCOPES - 1),
         "scope is invalid; MEMO_SLICE, MEMO_LAYER, MEMO_EDGE, MEMO_INPUT and MEMO_CARRIED are "
         "valid"},
        {item->is & ~(MEMO_LATE_ROWS | MEMO_BY_BACKWARD),
         "is: invalid; sums of MEMO_LATE_ROWS and MEMO_BY_BACKWARD are valid"},
        {item->away == MEMO_WITH && (item->scope || item->is),
         "a MEMO_WITH item has the scope and the rows of the item before it; 0, 0 works"},
        {item->scope == MEMO_EDGE && item->away != MEMO_MOVE,
         "a MEMO_EDGE is handed on; MEMO_MOVE works"},
        {(item->scope == MEMO_INPUT || item->scope == MEMO_CARRIED) && !stays_or_moves,
         "a copy that the trainer makes cannot be recomputed; MEMO_MOVE and MEMO_KEEP work"},
        {(item->is & MEMO_LATE_ROWS) &&
             (item->scope || (item->away != MEMO_MOVE && item->away != MEMO_ROWS)),
         "MEMO_LATE_ROWS works with MEMO_MOVE and MEMO_ROWS, and with MEMO_SLICE"},
        {(item->is & MEMO_BY_BACKWARD) && !memob_is_recomputed(item->away),
         "MEMO_BY_BACKWARD works with MEMO_ROWS and MEMO_WHOLE, which are recomputed"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* What is made with another has its layers and its number of rows.  NULL: it has. */
MEMOI const char* memoi_swap_with_fault(const memo_swap_desc* desc, int32_t t) {
    const int32_t leader = memob_item_leader(desc->tensors, t);
    const memo_item* item = &desc->tensors[leader];
    if (desc->tensors[t].away != MEMO_WITH) return NULL;
    if (leader == t) return "MEMO_WITH needs an item before it that is made with it";
    if ((!item->row_bytes && desc->tensors[t].row_bytes) || item->kinds != desc->tensors[t].kinds)
        return "MEMO_WITH needs an item before it that has bytes and the same kinds";
    if (item->is & MEMO_LATE_ROWS || item->scope == MEMO_EDGE || item->scope == MEMO_INPUT)
        return "the MEMO_EDGE, MEMO_INPUT or MEMO_LATE_ROWS before it is made alone; MEMO_MOVE and "
               "MEMO_KEEP work";
    return NULL;
}

/* *which: the EDGE or INPUT before t, or -1; becomes t. */
MEMOI const char* memoi_swap_only_fault(const memo_swap_desc* desc, int32_t t, int32_t* which) {
    if (*which >= 0 || desc->tensors[t].kinds)
        return "MEMO_EDGE and MEMO_INPUT are each of one item of all layers; give it no kinds, and "
               "other items another scope";
    *which = t;
    return NULL;
}

/* other: an item with late rows, or t; its kinds are those of t. */
MEMOI memo_status memoi_swap_check_routed(const memo_swap_desc* desc, int32_t t, int32_t other,
                                          memo_error* error) {
    const memo_item* item = &desc->tensors[t];
    if (desc->routed_rows_layer >= 1 && desc->routed_rows_all >= desc->routed_rows_layer &&
        desc->routed_rows_all <= MEMOB_BYTES_MAX / 8 / item->row_bytes &&
        desc->tensors[t].kinds == desc->tensors[other].kinds)
        return MEMO_STATUS_OK;
    return MEMOI_INVALID(
        desc,
        "routed_rows_layer: %lld, routed_rows_all %lld, tensors[%d] (%s): invalid; 1 "
        "to routed_rows_all rows are valid, and the same kinds for all MEMO_LATE_ROWS",
        (long long)desc->routed_rows_layer, (long long)desc->routed_rows_all, (int)t,
        memob_tensor_name(item));
}

MEMOI memo_status memoi_swap_check_tensors(const memo_swap_desc* desc, memo_error* error) {
    int32_t edge = -1, input = -1, late = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const memo_item* item = &desc->tensors[t];
        memo_status status = MEMO_STATUS_OK;
        const char* why = memoi_swap_choices_fault(item);
        if (item->row_bytes < 0)
            return MEMOI_INVALID(
                desc,
                "tensors[%d].row_bytes (%s): negative (%lld); 0 means that the tensor is absent",
                (int)t, memob_tensor_name(item), (long long)item->row_bytes);

        if (!why && item->row_bytes && item->scope == MEMO_EDGE)
            why = memoi_swap_only_fault(desc, t, &edge);
        if (!why && item->row_bytes && item->scope == MEMO_INPUT)
            why = memoi_swap_only_fault(desc, t, &input);
        if (!why) why = memoi_swap_with_fault(desc, t);
        if (why)
            return MEMOI_INVALID(desc, "tensors[%d] (%s): %s (away %d, scope %d, is %d)", (int)t,
                                 memob_tensor_name(item), why, (int)item->away, (int)item->scope,
                                 (int)item->is);
        if (!item->row_bytes || !(item->is & MEMO_LATE_ROWS)) continue;
        status = memoi_swap_check_routed(desc, t, late < 0 ? t : late, error);
        if (status) return status;
        late = t;
    }

    /* INPUT is a copy of EDGE. */
    if (edge >= 0 && input >= 0 && desc->tensors[edge].row_bytes != desc->tensors[input].row_bytes)
        return MEMOI_INVALID(
            desc,
            "tensors[%d].row_bytes (%s): %lld, but the MEMO_EDGE, of which it is a "
            "copy, has %lld; give both the same",
            (int)input, memob_tensor_name(&desc->tensors[input]),
            (long long)desc->tensors[input].row_bytes, (long long)desc->tensors[edge].row_bytes);
    return MEMO_STATUS_OK;
}

/* A slice must be whole tiles; only the last may be shorter. */
MEMOI memo_status memoi_swap_check_slices(const memo_swap_desc* desc, memo_error* error) {
    const char* const name = memoi_swap_desc_name(desc);
    const int64_t n = desc->n_slices, rows = desc->n_rows, n_group = memob_max(desc->n_group, 1);
    memo_status status;
    if ((status = memob_check_integer(name, "n_slices", n, 0, desc->n_layers, error)) ||
        (status = memob_check_integer(name, "n_group", desc->n_group, 0, memob_max(n, 1), error)) ||
        (status = memob_check_integer(name, "layer_rows", desc->layer_rows, 0, INT64_MAX, error)))
        return status;

    if (n > 1 && memob_swap_place_steps(desc) % n)
        return MEMOI_INVALID(desc,
                             "n_layers: %d steps are not whole layers of %d slices; set it to "
                             "n_slices times the layers",
                             (int)memob_swap_place_steps(desc), (int)n);
    if (n > 1 && n % n_group)
        return MEMOI_INVALID(desc,
                             "n_slices: %d slices of a layer are not those of %d micro-batches "
                             "(n_group); a multiple would work",
                             (int)n, (int)n_group);
    if (n > n_group && desc->tile_rows && rows % desc->tile_rows)
        return MEMOI_INVALID(
            desc,
            "n_rows: slices of %lld rows split a tile of %lld; a multiple of tile_rows would work",
            (long long)rows, (long long)desc->tile_rows);
    if (desc->layer_rows && (n <= n_group ? desc->layer_rows != rows
                                          : (desc->layer_rows - 1) / rows != n / n_group - 1))
        return MEMOI_INVALID(desc,
                             "layer_rows: %lld rows are not %lld slices of %lld rows, of which the "
                             "last may be shorter",
                             (long long)desc->layer_rows, (long long)memob_max(n / n_group, 1),
                             (long long)rows);
    return MEMO_STATUS_OK;
}

/* Returns why a place's forwards and backwards do not alternate in the order; NULL: they do. */
MEMOI const char* memoi_swap_place_fault(const memo_swap_desc* desc, int32_t place) {
    int32_t n_used = 0;
    for (int32_t k = 0; k < desc->n_order; k++) {
        const int32_t turn = desc->order[k];
        if (turn < -desc->n_places || turn >= desc->n_places)
            return "names a place that n_places lacks";
        if (memob_turn_of(turn) != place) continue;
        if (n_used % 2 == 0 && turn != place) return "has a backward of a place without a forward";
        if (n_used % 2 == 1 && turn == place)
            return "has two forwards of a place without a backward between";
        n_used++;
    }
    if (!n_used) return "leaves out a place";
    return n_used % 2 ? "ends before the last backward of a place" : NULL;
}

/* Returns what is wrong with the order of turns; NULL: nothing. */
MEMOI const char* memoi_swap_order_fault(const memo_swap_desc* desc) {
    const char* why = NULL;
    if (!desc->order || desc->n_order > INT32_MAX / 8 / memob_swap_place_steps(desc))
        return "is NULL or too long";
    for (int32_t place = 0; place < desc->n_places && !why; place++)
        why = memoi_swap_place_fault(desc, place);
    if (why) return why;

    /* These features assume that backwards come in the reverse order of forwards. */
    for (int32_t t = 0; t < desc->n_tensors && desc->tensors; t++)
        if (memob_tensor_is_routed(desc, t)) return "does not work with MEMO_LATE_ROWS";
    if (desc->n_group > 1) return "does not work with n_group above 1";
    return NULL;
}

/* Forwards and backwards of each place must alternate. */
MEMOI memo_status memoi_swap_check_order(const memo_swap_desc* desc, memo_error* error) {
    const char* why;
    if (desc->n_places <= 1 && !desc->order) return MEMO_STATUS_OK;
    if (desc->n_places < 1 || desc->n_layers % desc->n_places)
        return MEMOI_INVALID(desc,
                             "n_places: %d, but n_layers, which counts the layers of all places, "
                             "is %d; a divisor works",
                             (int)desc->n_places, (int)desc->n_layers);
    why = memoi_swap_order_fault(desc);
    if (!why) return MEMO_STATUS_OK;
    return MEMOI_INVALID(desc, "order: %s (%d turns of %d places)", why, (int)desc->n_order,
                         (int)desc->n_places);
}

/* Errors: INVALID_ARGUMENT. */
MEMOI memo_status memob_swap_check_desc(const memo_swap_desc* desc, memo_error* error) {
    const char* const name = memoi_swap_desc_name(desc);
    const int32_t n_slices = desc->n_slices > 1 ? desc->n_slices : 1;
    const memob_bounds fields[] = {{"n_layers", desc->n_layers, 1, INT32_MAX},
                                   {"n_rows", desc->n_rows, 1, INT64_MAX},
                                   {"n_tensors", desc->n_tensors, 1, INT32_MAX},
                                   {"tile_rows", desc->tile_rows, 0, INT64_MAX},
                                   {"n_host_layers", desc->n_host_layers, 0, INT32_MAX}};
    memo_status status = MEMOB_CHECK_FIELDS(name, fields, error);
    if (!status && !desc->rows) status = memob_check_real(name, "alpha", desc->alpha, 0, 1, error);
    if (!status)
        status = memob_check_rate(name, "spill_bytes_per_s", desc->spill_bytes_per_s, error);
    if (status) return status;
    if (!desc->tensors)
        return MEMOB_INVALID(error, "%s.tensors: NULL; pass n_tensors tensors", name);
    for (int32_t layer = 0; layer < desc->n_layers && desc->layer_kinds; layer++)
        if (!memob_is_within(desc->layer_kinds[layer], 0, MEMOB_KINDS_MAX - 1))
            return MEMOI_INVALID(desc, "layer_kinds[%d]: out of range (%d); 0 to %d are valid",
                                 (int)layer, (int)desc->layer_kinds[layer], MEMOB_KINDS_MAX - 1);
        else if (layer % n_slices && desc->layer_kinds[layer] != desc->layer_kinds[layer - 1])
            return MEMOI_INVALID(desc,
                                 "layer_kinds[%d]: %d, but the slice before it has %d; give all "
                                 "slices of a layer the same kind",
                                 (int)layer, (int)desc->layer_kinds[layer],
                                 (int)desc->layer_kinds[layer - 1]);

    if (desc->spill_directory && !*desc->spill_directory) /* the root folder */
        return MEMOB_INVALID(error,
                             "%s.spill_directory: an empty string; NULL (no file), \".\" and other "
                             "folders are valid",
                             name);
    /* Tensors first: the other checks read the tables by their numbers. */
    status = memoi_swap_check_tensors(desc, error);
    if (!status) status = memoi_swap_check_order(desc, error);
    return status ? status : memoi_swap_check_slices(desc, error);
}

/* Fills a table of rows (n_layers, n_tensors) from desc->alpha. */
MEMOI memo_status memob_swap_fill_rows(const memo_swap_desc* desc, int64_t* rows,
                                       memo_error* error) {
    memo_swap_desc by_alpha = *desc;
    memo_status status;
    by_alpha.rows = NULL;
    status = memob_swap_check_desc(&by_alpha, error);
    for (int32_t layer = 0; layer < desc->n_layers && !status; layer++)
        for (int32_t t = 0; t < desc->n_tensors; t++)
            *rows++ = memoi_swap_cell(&by_alpha, layer, t);
    return status;
}

/* ---- >>swap places ------------------------------------------------------------------------------
 * Knows: the order of steps, where the rows of each step lie on the device and on the host, and how
 * long their recomputation takes.  Knows nothing of streams, and of when rows go to the file.
 *
 * Steps.  A step is what is computed at once: slice i % n_slices of layer i / n_slices of place
 * step / n, with n steps of a place and i = step % n.  "Layer" then means step, here and in every
 * call of the engine.  Without an order there is one place.  In a group the slices of a layer are
 * those of n_group micro-batches.  Even and odd steps are those whose place + i is even or odd;
 * even and odd layers, those whose place + layer is.
 *
 * LAYER rows of all slices lie at one address, in a region of even and a region of odd layers.
 * They leave with their slice, and stay on the device until another layer needs the region.
 * In the backward slice s no longer needs the rows of later slices; the rows of slice s make room
 * for the layer that comes next there.  These rows never spill.
 *
 * EDGE rows of a slice lie at two addresses, of even and odd steps; between two layers they wait on
 * the host.  So do the last outputs; in an order only those that the loss reads, of each place.
 * With one slice the addresses are of even and odd places, and rows leave between turns alone.  The
 * host stores INPUT once: the rows that EDGE leaves come back as INPUT, unless layers spill, or the
 * layer is the first of its place.
 *
 * Tensors that only some kinds of layers have share an area, the pack, instead of a region each:
 * an even layer's tensors lie at the bottom, swapped rows first, an odd layer's at the top, swapped
 * rows last.  B is the bytes of a layer's tensors there, R the part beyond the swapped rows.  The
 * area takes the largest B + B' - min(R, R') of an even and an odd layer that follow each other
 * there.
 *
 * LATE_ROWS.  If a plan keeps the rows of k of n steps, the item has a stack for k A / n rows, with
 * A = routed_rows_all, and behind it a scratch of routed_rows_layer rows.  Rows of a step begin
 * where rows of the step before end, at most at the end of the stack.  Rows in the scratch are the
 * surplus, except in the last step.
 *
 * The file.  If host memory has fewer places than layers move, the last two places (or the only
 * one) are windows.  Layers without a place have their homes in the file, and take turns in the
 * windows.  A layer that comes back before another layer uses its window is not written.  The file
 * takes classes: tensors with rows in the same steps.
 *
 * 1. A backward comes behind a forward of its place.
 * 2. Rows lie in the region of their tensor, or in that of a layer that keeps them.
 * 3. The tensors of a pack lie in the area of packs.
 * 4. Late rows begin in their stack, behind those of an earlier step.
 * 5. The INPUT tensor is alone in its class. */

/* Rows that a step computes if the micro-batch has n_rows; 0: an empty slice. */
MEMOI int64_t memob_swap_step_rows(const memob_swap_placement* placement, int32_t step,
                                   int64_t n_rows) {
    const int64_t left = n_rows - step % placement->n_of_batch * placement->slice_rows;
    return memob_max(0, memob_min(left, placement->slice_rows));
}

/* 1: the step is of the last layer of its place. */
MEMOI int memoi_swap_is_last(const memob_swap_placement* placement, int32_t step) {
    return step % placement->n_forwards >= placement->n_forwards - placement->n_slices;
}

/* 1: a turn of backwards begins with the visit, and the loss comes before. */
MEMOI int memob_swap_is_between(const memob_swap_placement* placement, int32_t k) {
    const memob_row_visit* visit = &placement->visits[k];
    return visit->pass == MEMOB_BACKWARD && k % placement->n_forwards == 0 && visit->ends &&
           !placement->has_loss;
}

/* 1: a micro-batch has its loss in the visit, the first of its backward. */
MEMOI int memob_swap_has_loss(const memob_swap_placement* placement, int32_t k) {
    const memob_row_visit* visit = &placement->visits[k];
    return placement->has_loss && visit->pass == MEMOB_BACKWARD && visit->ends &&
           memoi_swap_is_last(placement, visit->layer) &&
           visit->layer % placement->n_of_batch == placement->n_of_batch - 1;
}

/* 1: the loss is computed in the visit (is_begun 1): in that of LAST, whose states it uses, or with
 * has_loss in the last layer's backward of each micro-batch; or, without states, before the last
 * layer's backward begins (is_begun 0). */
MEMOI int memob_swap_computes_between(const memob_swap_placement* placement,
                                      const memob_visit* visit, int has_states, int is_begun) {
    if (!is_begun)
        return visit->row >= 0 && !has_states && memob_swap_is_between(placement, visit->row);
    if (visit->row < 0)
        return visit->pass == MEMOB_BACKWARD && visit->layer > 0 && !placement->has_loss;
    return memob_swap_has_loss(placement, visit->row);
}

/* 1: a turn begins, and the trainer writes the EDGE rows of the visit; 0: they are there. */
MEMOI int memob_swap_is_edge_new(const memob_swap_placement* placement,
                                 const memob_row_visit* visit) {
    const int32_t i = visit->layer;
    if (visit->pass != MEMOB_BACKWARD) return i % placement->n_forwards < placement->n_slices;
    return memoi_swap_is_last(placement, i) && !(visit->ends && placement->finds_outputs);
}

/* 1: the layer of the step uses the odd region of LAYER rows. */
MEMOI int32_t memoi_swap_is_odd_layer(const memob_swap_placement* placement, int32_t step) {
    const int32_t n = placement->n_forwards;
    return (step / n + step % n / placement->n_of_batch) & 1;
}

/* 1: EDGE rows of the step lie at the odd of two addresses. */
MEMOI int32_t memoi_swap_is_odd_edge(const memob_swap_placement* placement, int32_t step) {
    const int32_t n = placement->n_forwards;
    return (step / n + (placement->n_slices > 1 ? step % n : 0)) & 1;
}

MEMOI int32_t memoi_swap_count_visits(const memo_swap_desc* desc) {
    return desc->order ? desc->n_order * memob_swap_place_steps(desc) : 2 * desc->n_layers;
}

/* What does not depend on rows of (n_visits): the order of steps. */
MEMOI void memoi_swap_list_visits(const memo_swap_desc* desc, memob_swap_placement* p) {
    static const int32_t one[] = {0, -1};
    const int32_t *order = desc->order ? desc->order : one, n = memob_swap_place_steps(desc);
    int32_t before;
    p->n_visits = memoi_swap_count_visits(desc);
    p->n_forwards = n;
    for (int32_t k = 0; k < p->n_visits; k++) {
        memob_row_visit* visit = &p->visits[k];
        const int32_t turn = order[k / n], is_backward = turn < 0;
        const int32_t place = memob_turn_of(turn), i = is_backward ? n - 1 - k % n : k % n;
        visit->pass = is_backward ? MEMOB_BACKWARD : MEMOB_FORWARD;
        visit->layer = place * n + i;
        visit->odd = memoi_swap_is_odd(desc, visit->layer);
        visit->ends = !desc->ends || desc->ends[k / n];
        for (before = k / n - 1; is_backward && order[before] != place; before--)
            MEMO_ASSERT(before > 0); /* 1 */
        visit->forward = is_backward ? before * n + i : k;
    }
}

/* The region of a tensor in bytes: swapped by even layers | recomputed | swapped by odd layers.
 * Row 0 must be aligned.  So the swapped rows of even layers end up to 511 bytes before the first
 * border, and those of odd layers begin up to 511 bytes after the second.  The recomputed bytes
 * between belong to the layer that uses the buffer. */
typedef struct memob_swap_region {
    int64_t even_bytes, scratch_bytes, odd_bytes;
    int64_t begin;       /* offset in device memory */
    int64_t whole_bytes; /* of all rows; LAYER: of all slices; EDGE: of all of a layer that wait */
    int64_t n_kept;      /* layers that keep the tensor, outside */
    int64_t n_fixed;     /* times that all rows lie at the begin of host memory */
} memob_swap_region;

/* The layer recomputes the rows that it does not swap: even layers swap their first rows, odd
 * layers their last. */
MEMOI void memoi_swap_recompute(const memo_swap_desc* desc, int32_t layer, int64_t swapped,
                                memob_swap_place* place) {
    if (swapped == desc->n_rows) return;
    place->recompute_begin = memoi_swap_is_odd(desc, layer) ? 0 : swapped;
    place->recompute_end = place->recompute_begin + desc->n_rows - swapped;
}

/* Sets for each layer of a micro-batch whether another one overwrites its LAYER rows between
 * forward and backward. */
MEMOI void memoi_swap_find_layers(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                                  const memob_swap_placement* order, char* all_lost) {
    const int32_t n_slices = order->n_of_batch;
    int32_t owners[2] = {-1, -1}, since[2] = {-1, -1}; /* of each region: a layer; its visit */
    memset(all_lost, 0, (size_t)(order->n_layers / n_slices));
    for (int32_t k = 0; k < order->n_visits; k += n_slices) { /* slices follow each other */
        const memob_row_visit* visit = &order->visits[k];
        const int32_t layer = visit->layer / n_slices;
        const int32_t odd = memoi_swap_is_odd_layer(order, visit->layer);
        if (!memob_layer_has(desc, visit->layer, t) || tiles[layer * n_slices] == MEMO_ROWS_KEPT)
            continue;
        if (owners[odd] != layer) since[odd] = k;
        owners[odd] = layer;
        if (visit->pass == MEMOB_BACKWARD) all_lost[layer] |= since[odd] > visit->forward;
    }
}

/* A tensor of scope LAYER: two regions of all its rows, of even and odd layers; in a group the
 * layers of each micro-batch count.  Rows move that another layer overwrites. */
MEMOI void memoi_swap_sum_layer(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                                int sign, const memob_swap_placement* order,
                                memob_swap_region* region, memob_swap_sum* sums,
                                memob_swap_place* places) {
    const int64_t n = desc->n_rows, n_all = memob_swap_layer_rows(desc);
    const int32_t n_slices = memob_swap_batch_slices(desc);
    char* is_lost = order->lost + (int64_t)desc->n_tensors * desc->n_layers;
    memoi_swap_find_layers(desc, t, tiles, order, is_lost);
    for (int32_t step = desc->n_layers - 1; step >= 0; step--) {
        const int32_t slice = step % n_slices;
        const int64_t n_moved = memob_min(n_all - slice * n, n);
        if (!memob_layer_has(desc, step, t)) continue;
        if (tiles[step - slice] == MEMO_ROWS_KEPT) {
            region->n_kept += !slice;
            continue;
        }
        sums[step].uses_layer += sign;
        *(memoi_swap_is_odd_layer(order, step) ? &region->odd_bytes : &region->even_bytes) =
            region->whole_bytes;
        if (!is_lost[step / n_slices]) continue;
        sums[step].layer_bytes += sign * n_moved * desc->tensors[t].row_bytes;
        sums[step].n_layer_copies += sign;
        region->n_fixed += !slice;
        if (!places) continue;
        places[(int64_t)step * desc->n_tensors].moved_begin = slice * n;
        places[(int64_t)step * desc->n_tensors].moved_end = slice * n + n_moved;
    }
}

/* A tensor with LATE_ROWS: a stack of the kept rows, scratch, and room on the host
 * for what the stack cannot hold.  Each step may waste an alignment of the stack. */
MEMOI void memoi_swap_sum_routed(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                                 const double* all_s, double call_s, int sign,
                                 memob_swap_region* region, memob_swap_sum* sums,
                                 memob_swap_place* places) {
    const int is_moved = memob_item_away(desc, t) == MEMO_MOVE;
    const int64_t row_bytes = desc->tensors[t].row_bytes, n_rows = memob_swap_routed_rows(desc, t);
    int64_t waste_bytes, most_rows, most_bytes;
    int32_t n = 0, n_kept = 0, k = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        if (!memob_layer_has(desc, layer, t)) continue;
        n++;
        n_kept += tiles[layer] == MEMO_ROWS_KEPT;
    }

    if (!n) return;
    waste_bytes = row_bytes + n * (int64_t)MEMOB_DEVICE_ALIGNMENT;
    most_rows = desc->routed_rows_all / n < desc->routed_rows_layer ? desc->routed_rows_all
                                                                    : n * desc->routed_rows_layer;
    most_bytes = memob_align_up(most_rows * row_bytes, MEMOB_DEVICE_ALIGNMENT);

    /* With all rows kept the stack holds the most that there can be. */
    region->n_kept = 0;
    region->even_bytes = n_kept * memob_align_up(n_rows * row_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (n_kept == n)
        region->even_bytes = memob_align_up(most_bytes + waste_bytes, MEMOB_DEVICE_ALIGNMENT);
    else
        region->scratch_bytes =
            memob_align_up(desc->routed_rows_layer * row_bytes, MEMOB_DEVICE_ALIGNMENT);
    region->n_fixed = is_moved && n_kept < n;
    region->whole_bytes = memob_align_up(
        memob_min(most_bytes, memob_max(most_bytes - region->even_bytes, 0) + waste_bytes),
        MEMOB_DEVICE_ALIGNMENT);

    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        memob_swap_sum* sum = &sums[layer];
        if (!memob_layer_has(desc, layer, t)) continue;
        sum->uses_routed += sign;
        if (places) {
            memob_swap_place* place = &places[(int64_t)layer * desc->n_tensors];
            place->is_routed = 1;
            place->is_recomputed = !is_moved;
            place->is_followed = k + 1 < n;
        }
        k++;
        if (k <= n_kept || k == n) continue;
        if (is_moved && n_rows) sum->n_routed_copies += sign;
        if (is_moved) sum->routed_bytes += sign * n_rows * row_bytes;
        if (!is_moved && all_s && n_rows) sum->recompute_s += sign * (all_s[layer] + call_s);
    }
}

/* Sets for each step whether the tensor's rows are overwritten between forward and backward.
 * Swapped rows move then: another step swaps rows in the same buffer.  Other rows are recomputed:
 * another step also recomputes rows; or swaps rows in the same buffer, because recomputed rows may
 * begin before the border.  Tensors with the same rows get the same answer, so that one
 * recomputation serves all of these tensors. */
MEMOI void memoi_swap_find_overwritten(const memob_swap_placement* order, const int64_t* tiles,
                                       int64_t n_tiles, char* all_lost) {
    int32_t k, cut = -1, whole[2] = {-1, -1}, swapped[2] = {-1, -1}; /* the latest visits */
    memset(all_lost, 0, (size_t)order->n_layers);
    for (k = 0; k < order->n_visits; k++) {
        const memob_row_visit* visit = &order->visits[k];
        const int64_t n = tiles[visit->layer];
        if (n == MEMO_ROWS_KEPT) continue;
        if (visit->pass == MEMOB_BACKWARD) {
            char* lost = &all_lost[visit->layer];
            if (cut > visit->forward || (n && whole[visit->odd] > visit->forward))
                *lost |= MEMOI_SWAP_OVERWRITTEN;
            if (n && swapped[visit->odd] > visit->forward) *lost |= MEMOI_SWAP_RETURNS;
        }
        *(n < n_tiles ? &cut : &whole[visit->odd]) = k;
        if (n) swapped[visit->odd] = k;
    }
}

/* Bytes of a tensor in a step that swaps so many of its tiles. */
typedef struct memoi_swap_cut {
    int64_t tiles;
    int64_t swapped, moved; /* rows; moved: of the step's own */
    int64_t recomputed_bytes, own_bytes, host_bytes;
    double others; /* the share of the step's rows that it recomputes */
} memoi_swap_cut;

MEMOI void memoi_swap_find_cut(const memo_swap_desc* desc, int32_t t, int32_t layer, int64_t tiles,
                               memoi_swap_cut* cut) {
    const int64_t n = memob_tensor_rows(desc, t), row_bytes = desc->tensors[t].row_bytes;
    const int is_odd = memoi_swap_is_odd(desc, layer);
    const int32_t n_slices = memob_swap_batch_slices(desc);
    const int64_t n_own = memob_swap_layer_rows(desc) - (n_slices - 1) * n;
    cut->tiles = tiles;
    cut->swapped =
        tiles == memob_swap_n_tiles(desc) ? n : memob_swap_rows_of_tiles(desc, layer, tiles);
    cut->recomputed_bytes = (n - cut->swapped) * row_bytes;
    cut->own_bytes = cut->swapped * row_bytes; /* of an odd layer: behind the second border */
    if (cut->swapped && is_odd) cut->own_bytes += cut->recomputed_bytes % MEMOB_DEVICE_ALIGNMENT;
    cut->own_bytes = memob_align_up(cut->own_bytes, MEMOB_DEVICE_ALIGNMENT);

    /* The last slice may have fewer rows, but not a smaller state. */
    cut->moved = cut->swapped;
    cut->others = (double)(n - cut->swapped) / (double)n;
    if (memob_item_scope(desc, t) != MEMO_CARRIED && n_slices > 1 && (layer + 1) % n_slices == 0) {
        cut->moved =
            is_odd ? memob_max(n_own - (n - cut->swapped), 0) : memob_min(n_own, cut->swapped);
        cut->others = (double)(n_own - cut->moved) / (double)n_own;
    }
    cut->host_bytes = memob_align_up(cut->moved * row_bytes, MEMOB_DEVICE_ALIGNMENT);
}

/* Adds a step of a tensor in rounding buffers to its sum, or takes it away (sign -1).  lost: what
 * becomes of the rows.  Returns the bytes that move. */
MEMOI int64_t memoi_swap_sum_cut(const memo_swap_desc* desc, int32_t t, const memoi_swap_cut* cut,
                                 int lost, double recompute_s, int sign, memob_swap_sum* sum) {
    const int is_packed = desc->tensors[t].kinds != 0;
    const int is_input = desc->tensors[t].scope == MEMO_INPUT && desc->n_slices > 1;
    const int64_t moved_bytes = cut->moved * desc->tensors[t].row_bytes;

    /* What is recomputed; of packs memoi_swap_sum_packs decides. */
    if (lost & MEMOI_SWAP_OVERWRITTEN && cut->swapped < memob_tensor_rows(desc, t))
        *(is_packed ? &sum->packed_s : &sum->recompute_s) += sign * recompute_s;
    if (!cut->swapped || !(lost & MEMOI_SWAP_RETURNS)) return 0;

    /* What is moved.  A pack moves as a whole: see memob_swap_end_sums. */
    if (is_input) sum->input_bytes += sign * moved_bytes;
    *(is_packed ? &sum->pack_moved_bytes : &sum->moved_bytes) += sign * moved_bytes;
    *(is_packed ? &sum->pack_host_bytes : &sum->host_bytes) += sign * cut->host_bytes;
    return moved_bytes;
}

/* Where the rows of a step lie, before the step is added to its sum.  Offsets begin at the first
 * border of the region. */
MEMOI void memoi_swap_place_cut(const memo_swap_desc* desc, int32_t t, int32_t layer,
                                const memoi_swap_cut* cut, int lost, memob_swap_sum* sum,
                                memob_swap_place* place) {
    const int is_odd = memoi_swap_is_odd(desc, layer);
    const int is_packed = desc->tensors[t].kinds != 0;
    const int64_t n = memob_tensor_rows(desc, t);
    if (lost & MEMOI_SWAP_OVERWRITTEN && !is_packed && cut->swapped < n)
        memoi_swap_recompute(desc, layer, cut->swapped, place);
    if (!cut->swapped) return;
    place->offset = is_odd ? cut->recomputed_bytes % MEMOB_DEVICE_ALIGNMENT - cut->recomputed_bytes
                           : -cut->own_bytes;
    if (!(lost & MEMOI_SWAP_RETURNS)) return;
    place->moved_begin = is_odd ? n - cut->swapped : 0;
    place->moved_end = place->moved_begin + cut->moved;
    place->host_offset = is_packed ? sum->pack_host_bytes : sum->host_bytes;
}

/* Adds a step of a packed tensor to what its pack takes. */
MEMOI void memoi_swap_pack_cut(const memoi_swap_cut* cut, int64_t all_bytes, memob_swap_sum* sum) {
    sum->pack_bytes += all_bytes;
    if (!cut->swapped) sum->free_bytes += all_bytes;
    if (cut->swapped && cut->recomputed_bytes > sum->cut_bytes) {
        sum->cut_bytes = cut->recomputed_bytes;
        sum->cut_free_bytes = all_bytes - cut->own_bytes;
    }
}

/* Time to recompute what a step does not swap; all_s NULL: none. */
MEMOI double memoi_swap_cut_s(const memoi_swap_cut* cut, const double* all_s, int32_t layer,
                              double call_s) {
    return all_s ? call_s * (cut->others > 0) + all_s[layer] * cut->others : 0;
}

/* Adds the steps of a tensor in rounding buffers. */
MEMOI void memoi_swap_sum_rows(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                               const int64_t* before, const double* all_s, double call_s,
                               const memob_swap_placement* order, memob_swap_region* region,
                               memob_swap_sum* sums, memob_swap_place* places) {
    const int is_packed = desc->tensors[t].kinds != 0;
    const int32_t n = desc->n_layers, n_slices = memob_swap_batch_slices(desc);
    int64_t* moves = order->moves + (int64_t)t * n;
    char *lost = order->lost + (int64_t)t * n,
         *is_lost = order->lost + (int64_t)desc->n_tensors * n;
    memoi_swap_cut cuts[2][2]; /* of the latest even and odd step, which most repeat; before */
    if (is_packed)
        memset(is_lost, MEMOI_SWAP_OVERWRITTEN | MEMOI_SWAP_RETURNS, (size_t)n);
    else
        memoi_swap_find_overwritten(order, tiles, memob_swap_n_tiles(desc), is_lost);
    for (int k = 0; k < 4; k++) cuts[k / 2][k % 2].tiles = MEMO_ROWS_KEPT;

    for (int32_t layer = n - 1; layer >= 0; layer--) {
        const int is_odd = memoi_swap_is_odd(desc, layer);
        const int is_last = n_slices > 1 && (layer + 1) % n_slices == 0;
        const int is_same =
            before && before[layer] == tiles[layer] && lost[layer] == is_lost[layer];
        memoi_swap_cut *cut = &cuts[0][is_odd], *old = &cuts[1][is_odd];
        memob_swap_sum* sum = &sums[layer];
        if (is_packed && !memob_layer_has(desc, layer, t)) continue;
        if (!is_same && before && before[layer] != MEMO_ROWS_KEPT) {
            if (before[layer] != old->tiles || is_last)
                memoi_swap_find_cut(desc, t, layer, before[layer], old);
            (void)memoi_swap_sum_cut(desc, t, old, lost[layer],
                                     memoi_swap_cut_s(old, all_s, layer, call_s), -1, sum);
            if (is_last) old->tiles = MEMO_ROWS_KEPT; /* of no other */
        }
        lost[layer] = is_lost[layer];
        if (tiles[layer] == MEMO_ROWS_KEPT) {
            region->n_kept++;
            moves[layer] = -1;
            continue;
        }

        if (tiles[layer] != cut->tiles || is_last)
            memoi_swap_find_cut(desc, t, layer, tiles[layer], cut);
        if (is_last) cut->tiles = MEMO_ROWS_KEPT;
        if (is_packed) {
            memoi_swap_pack_cut(cut, region->whole_bytes, sum);
        } else {
            int64_t* most = is_odd ? &region->odd_bytes : &region->even_bytes;
            *most = memob_max(*most, cut->own_bytes);
            region->scratch_bytes = memob_max(region->scratch_bytes, cut->recomputed_bytes);
        }
        if (is_same) continue;
        if (places)
            memoi_swap_place_cut(desc, t, layer, cut, is_lost[layer], sum,
                                 &places[(int64_t)layer * desc->n_tensors]);
        moves[layer] = memoi_swap_sum_cut(desc, t, cut, is_lost[layer],
                                          memoi_swap_cut_s(cut, all_s, layer, call_s), 1, sum);
        if (!cut->swapped) moves[layer] = -1;
    }
    region->scratch_bytes = memob_align_up(region->scratch_bytes, MEMOB_DEVICE_ALIGNMENT);
}

/* Adds tensor t to the sums of all layers; returns the region of t.  tiles: the tiles that each
 * layer swaps, or MEMO_ROWS_KEPT; an EDGE has none.  before: NULL, or the tiles that were
 * added to these sums last, of a tensor that all kinds have: the sums change by the difference.
 * all_s: time to recompute all rows of each layer, in addition to call_s; NULL: no time.  order:
 * the visits.  places: of t from layer 0 on, n_tensors apart; NULL: none. */
MEMOI memob_swap_region memob_swap_sum_tensor(const memo_swap_desc* desc, int32_t t,
                                              const int64_t* tiles, const int64_t* before,
                                              const double* all_s, double call_s,
                                              const memob_swap_placement* order,
                                              memob_swap_sum* sums, memob_swap_place* places) {
    const int64_t row_bytes = desc->tensors[t].row_bytes;
    const int64_t n_all = memob_swap_layer_rows(desc);
    const int64_t n_batches = memob_max(desc->n_group, 1) *
                              (memoi_swap_finds_outputs(desc) ? memob_max(desc->n_places, 1) : 1);
    const int is_layer = memob_swap_is_layer(desc, t);
    const int is_handed = desc->tensors[t].scope == MEMO_EDGE;
    memob_swap_region region = MEMO_ZERO(memob_swap_region), old = MEMO_ZERO(memob_swap_region);
    region.whole_bytes = memob_align_up((is_layer ? n_all : memob_tensor_rows(desc, t)) * row_bytes,
                                        MEMOB_DEVICE_ALIGNMENT);
    if (is_handed)
        region.whole_bytes = memob_align_up(n_batches * n_all * row_bytes, MEMOB_DEVICE_ALIGNMENT);
    old.whole_bytes = region.whole_bytes;

    /* An EDGE that does not move has one address in all layers.  Otherwise even and odd slices
     * have, or places, and all of a layer wait on the host: its output, or a gradient. */
    if (is_handed) {
        const int64_t slice_bytes =
            memob_align_up(memob_tensor_rows(desc, t) * row_bytes, MEMOB_DEVICE_ALIGNMENT);
        region.n_fixed = memoi_swap_hands(desc);
        region.even_bytes = slice_bytes;
        region.odd_bytes = region.n_fixed * slice_bytes;
    } else if (is_layer) {
        if (before) memoi_swap_sum_layer(desc, t, before, -1, order, &old, sums, NULL);
        memoi_swap_sum_layer(desc, t, tiles, 1, order, &region, sums, places);
    } else if (memob_tensor_is_routed(desc, t)) {
        if (before) memoi_swap_sum_routed(desc, t, before, all_s, call_s, -1, &old, sums, NULL);
        memoi_swap_sum_routed(desc, t, tiles, all_s, call_s, 1, &region, sums, places);
    } else {
        memoi_swap_sum_rows(desc, t, tiles, before, all_s, call_s, order, &region, sums, places);
    }
    return region;
}

/* What the packs of two visits take of the area together; at -1: none, or one of the same
 * buffer. */
MEMOI int64_t memoi_swap_pair_packs(const memob_swap_placement* p, int32_t k, int32_t at) {
    const memob_swap_sum *sum = &p->sums[p->visits[k].layer], *other;
    if (at < 0 || p->visits[at].odd == p->visits[k].odd) return 0;
    other = &p->sums[p->visits[at].layer];
    if (!other->pack_bytes) return 0;
    return sum->pack_bytes + other->pack_bytes - memob_min(sum->free_bytes, other->free_bytes);
}

/* Which packs other visits overwrite before the backward of the pack.  Returns the bytes of the
 * area of packs: the most that an even and an odd layer need at once. */
MEMOI int64_t memoi_swap_sum_packs(const memob_swap_placement* p) {
    const memob_row_visit* visits = p->visits;
    int64_t area_bytes = 0;
    int32_t last[2] = {-1, -1}, before[2] = {-1, -1}; /* in each buffer; in the other before that */
    for (int32_t layer = 0; layer < p->n_layers; layer++) {
        memob_swap_sum* sum = &p->sums[layer];
        if (!sum->pack_bytes) continue;
        sum->free_bytes += sum->cut_free_bytes;
        area_bytes = memob_max(area_bytes, sum->pack_bytes);
    }

    /* Rows of a forward stay until they have left.  Rows of a backward come back from the last
     * visit of the buffer on, while rows there before still leave and other visits compute. */
    for (int32_t k = 0; k < p->n_visits; k++) {
        const int32_t odd = visits[k].odd;
        const int32_t left[2] = {last[!odd], visits[k].pass == MEMOB_BACKWARD ? before[odd] : -1};
        if (!p->sums[visits[k].layer].pack_bytes) continue;
        for (int32_t q = 0; q < 2; q++)
            if (left[q] >= 0 && visits[left[q]].pass != MEMOB_BACKWARD)
                area_bytes = memob_max(area_bytes, memoi_swap_pair_packs(p, k, left[q]));
        for (int32_t q = last[odd] + 1; q < k && visits[k].pass == MEMOB_BACKWARD; q++)
            area_bytes = memob_max(area_bytes, memoi_swap_pair_packs(p, k, q));
        before[odd] = last[!odd];
        last[odd] = k;
    }

    for (int32_t k = 0; k < p->n_visits; k++) {
        const memob_row_visit* visit = &p->visits[k];
        memob_swap_sum* sum = &p->sums[visit->layer];
        if (visit->pass != MEMOB_BACKWARD || !sum->pack_bytes || sum->is_pack_overwritten) continue;
        for (int32_t q = visit->forward + 1; q < k && !sum->is_pack_overwritten; q++) {
            const int64_t n_bytes = p->sums[p->visits[q].layer].pack_bytes;
            sum->is_pack_overwritten = n_bytes && (p->visits[q].odd == visit->odd ||
                                                   sum->pack_bytes > area_bytes - n_bytes);
        }
        if (sum->is_pack_overwritten) sum->recompute_s += sum->packed_s;
    }
    return area_bytes;
}

/* After all tensors: a pack moves if another pack uses its buffer between its forward and its
 * backward.  Returns the bytes of the packs. */
MEMOI int64_t memob_swap_end_sums(const memo_swap_desc* desc, memob_swap_placement* p) {
    char* lost = p->lost + (int64_t)p->n_tensors * p->n_layers;
    int64_t pack_bytes;
    if (!memob_swap_has_kinds(desc)) return 0;
    pack_bytes = memoi_swap_sum_packs(p);
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        p->tiles[layer] = p->sums[layer].pack_bytes ? 1 : MEMO_ROWS_KEPT;
    memoi_swap_find_overwritten(p, p->tiles, 1, lost);
    for (int32_t layer = 0; layer < p->n_layers; layer++) {
        memob_swap_sum* sum = &p->sums[layer];
        sum->returns = (lost[layer] & MEMOI_SWAP_RETURNS) != 0;
        if (!sum->returns) continue;
        sum->moved_bytes += sum->pack_moved_bytes;
        sum->host_bytes += sum->pack_host_bytes;
    }
    return pack_bytes;
}

/* --- classes and places on the host --- */

/* A step of the placement has the tensor's rows in a rounding buffer. */
MEMOI int memoi_swap_has_slot(const memob_swap_placement* p, int32_t t, int32_t step) {
    return p->moves[(int64_t)t * p->n_layers + step] >= 0;
}

/* Tensors with rows in the same steps are a class; all packed ones are, since a pack moves as a
 * whole.  INPUT is a class of its own. */
MEMOI void memoi_swap_find_classes(const memo_swap_desc* desc, memob_swap_placement* p) {
    p->n_classes = 0;
    for (int32_t t = 0; t < desc->n_tensors; t++) p->class_of[t] = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const int is_packed = desc->tensors[t].kinds != 0;
        int32_t step = 0, same = -1;
        while (step < p->n_layers && !memoi_swap_has_slot(p, t, step)) step++;
        if (step == p->n_layers) continue;
        for (int32_t u = 0; u < t && same < 0 && t != p->input; u++) {
            if (p->class_of[u] < 0 || u == p->input) continue;
            if (is_packed != (desc->tensors[u].kinds != 0)) continue;
            for (step = 0; step < p->n_layers && !is_packed; step++)
                if (memoi_swap_has_slot(p, t, step) != memoi_swap_has_slot(p, u, step)) break;
            if (is_packed || step == p->n_layers) same = u;
        }
        p->class_of[t] = same < 0 ? p->n_classes++ : p->class_of[same];
        MEMO_ASSERT(same < 0 || (t != p->input && same != p->input)); /* 5 */
    }
}

/* Bytes of a class in the file, whole pages. */
MEMOI int64_t memoi_swap_file_bytes(const memo_swap_desc* desc, const memob_swap_placement* p,
                                    int32_t class_number, int32_t step) {
    int64_t n_bytes = 0;
    for (int32_t t = 0; t < p->n_tensors; t++) {
        if (p->class_of[t] != class_number) continue;
        if (desc->tensors[t].kinds && !p->sums[step].returns) continue;
        n_bytes += memob_align_up(memob_max(p->moves[(int64_t)t * p->n_layers + step], 0),
                                  MEMOB_DEVICE_ALIGNMENT);
    }
    return memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT);
}

#define MEMOI_SWAP_WINDOWS 2

/* Bytes of windows, in which each class has its own, and of the moved layers in the file. */
MEMOI void memoi_swap_size_windows(const memo_swap_desc* desc, memob_swap_placement* p) {
    memoi_swap_find_classes(desc, p);
    p->window_bytes = 0;
    for (int32_t step = 0; step < p->n_layers; step++) p->sums[step].file_bytes = 0;
    for (int32_t c = 0; c < p->n_classes; c++) {
        int64_t most_bytes = 0;
        for (int32_t step = 0; step < p->n_layers; step++) {
            int64_t n_bytes;
            if (!p->sums[step].moved_bytes) continue;
            n_bytes = memoi_swap_file_bytes(desc, p, c, step);
            p->sums[step].file_bytes += n_bytes;
            most_bytes = memob_max(most_bytes, n_bytes);
        }
        p->window_bytes += most_bytes;
    }
}

/* With so many places in host memory: which of the moved layers go to the file, evenly spread, and
 * what host memory and the file take. */
MEMOI void memoi_swap_take_places(int64_t n_places, memob_swap_placement* p) {
    memo_swap_sizes* sizes = &p->sizes;
    const int64_t n_moved = sizes->n_swapped_layers;
    int64_t n_file = 0, k = 0, at = p->fixed_host_bytes;
    p->n_host_layers = (int32_t)n_places;
    p->n_windows = n_places < n_moved ? (int32_t)memob_min(n_places, MEMOI_SWAP_WINDOWS) : 0;
    if (p->n_windows) n_file = n_moved - n_places + p->n_windows;
    sizes->n_spilled_layers = 0;
    sizes->spill_bytes = 0;
    for (int32_t step = 0; step < p->n_layers; step++) {
        memob_swap_sum* sum = &p->sums[step];
        sum->window = -1;
        sum->host_begin = at;
        if (!sum->moved_bytes) continue;
        if (n_file * ++k / n_moved == sizes->n_spilled_layers) {
            at += sum->host_bytes;
            continue;
        }
        sum->window = sizes->n_spilled_layers++ % p->n_windows;
        sizes->spill_bytes += sum->file_bytes;
    }

    if (p->n_windows) at = memob_align_up(at, MEMOB_SPILL_ALIGNMENT);
    for (int32_t step = 0; step < p->n_layers && p->n_windows; step++)
        if (p->sums[step].window >= 0)
            p->sums[step].host_begin = at + p->sums[step].window * p->window_bytes;
    sizes->host_bytes = at + p->n_windows * p->window_bytes;
}

/* Finds places in host memory for the moved layers.  host_bytes 0: n_places, or (0) one for each
 * layer.  Otherwise a bisection finds how many fit, at least one.  If layers move unlike bytes, a
 * larger number may also fit: other layers then have the places. */
MEMOI void memob_swap_find_places(const memo_swap_desc* desc, int64_t host_bytes, int64_t n_places,
                                  memob_swap_placement* p) {
    int32_t n_moved = 0, low = 1, high;
    for (int32_t step = 0; step < p->n_layers; step++) n_moved += p->sums[step].moved_bytes > 0;
    p->sizes.n_swapped_layers = n_moved;
    memoi_swap_take_places(n_moved, p);
    if (host_bytes ? p->sizes.host_bytes <= host_bytes : !n_places || n_places >= n_moved) return;
    memoi_swap_size_windows(desc, p);
    for (high = n_moved; host_bytes && low + 1 < high;) {
        const int32_t middle = low + (high - low) / 2;
        memoi_swap_take_places(middle, p);
        *(p->sizes.host_bytes <= host_bytes ? &low : &high) = middle;
    }
    memoi_swap_take_places(host_bytes ? low : n_places, p);
}

/* With this limit no sum of bytes overflows: all layers have the tensors at most three times, on
 * the device, on the host and in the file, and align them. */
MEMOI memo_status memoi_swap_check_bytes(const memo_swap_desc* desc, memo_error* error) {
    int64_t left = MEMOB_BYTES_MAX / 16;
    for (int32_t t = 0; t < desc->n_tensors && left >= 0; t++) {
        const int is_routed = memob_tensor_is_routed(desc, t);
        const int64_t n_rows = is_routed ? desc->routed_rows_all : desc->n_rows;
        const int64_t count = is_routed ? 1 : desc->n_layers,
                      row_bytes = desc->tensors[t].row_bytes;
        if (row_bytes > left / desc->n_layers || n_rows > left / (count * row_bytes + 1))
            left = -1;
        else
            left -=
                n_rows * count * row_bytes + 2 * MEMOB_DEVICE_ALIGNMENT * (int64_t)desc->n_layers;
    }
    if (left >= 0) return MEMO_STATUS_OK;
    return MEMOI_INVALID(desc, "n_rows: %lld rows of these tensors in %d layers exceed 2^58 bytes",
                         (long long)desc->n_rows, (int)desc->n_layers);
}

/* Part of a pack: tensors swapped whole, cut in two, recomputed whole; MEMOI_SWAP_PARTS: none. */
#define MEMOI_SWAP_PARTS 4
MEMOI int memoi_swap_part_of(const memo_swap_desc* desc, int32_t layer, int32_t t, int32_t last) {
    int64_t swapped = memoi_swap_cell(desc, layer, t);
    if (!desc->tensors[t].kinds || swapped == MEMO_ROWS_KEPT || memob_swap_is_layer(desc, t) ||
        memob_tensor_is_routed(desc, t))
        return MEMOI_SWAP_PARTS;
    if (swapped == desc->n_rows) return 0;
    if (swapped == 0) return 3;
    return t == last ? 2 : 1;
}

/* Sets the offsets of a pack that begins there. */
MEMOI void memoi_swap_pack_layer(const memo_swap_desc* desc, int32_t layer, int64_t begin,
                                 memob_swap_place* places) {
    int64_t n = desc->n_rows, most = -1;
    int32_t last = -1;

    /* The tensor that recomputes most lies last among the tensors cut in two, so that its rows are
     * free. */
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        int64_t others = (n - memoi_swap_cell(desc, layer, t)) * desc->tensors[t].row_bytes;
        if (memoi_swap_part_of(desc, layer, t, -1) != 1 || others <= most) continue;
        most = others;
        last = t;
    }

    /* Even layers: swapped rows first.  Odd layers: the mirror image. */
    for (int k = 0; k < MEMOI_SWAP_PARTS; k++)
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            if (memoi_swap_part_of(desc, layer, t, last) !=
                (memoi_swap_is_odd(desc, layer) ? MEMOI_SWAP_PARTS - 1 - k : k))
                continue;
            places[t].offset = begin;
            begin += memob_align_up(memob_tensor_rows(desc, t) * desc->tensors[t].row_bytes,
                                    MEMOB_DEVICE_ALIGNMENT);
        }
}

/* Appends the area of the tensors that only some kinds have, and sets the offsets of these tensors
 * in every layer that does not keep them. */
MEMOI void memoi_swap_place_packs(const memo_swap_desc* desc, memob_swap_placement* placement) {
    const int64_t begin = placement->sizes.device_bytes;
    const int64_t area_bytes = memob_swap_end_sums(desc, placement);
    placement->sizes.device_bytes += area_bytes;
    for (int32_t layer = 0; layer < desc->n_layers && area_bytes; layer++) {
        const memob_swap_sum* sum = &placement->sums[layer];
        memob_swap_place* places = &placement->places[(int64_t)layer * desc->n_tensors];
        memoi_swap_pack_layer(
            desc, layer,
            begin + (memoi_swap_is_odd(desc, layer) ? area_bytes - sum->pack_bytes : 0), places);
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            if (memoi_swap_part_of(desc, layer, t, -1) == MEMOI_SWAP_PARTS) continue;
            MEMO_ASSERT(places[t].offset >= begin && /* 3 */
                        places[t].offset +
                                memob_tensor_rows(desc, t) * desc->tensors[t].row_bytes <=
                            begin + area_bytes);
            if (sum->is_pack_overwritten)
                memoi_swap_recompute(desc, layer, memoi_swap_cell(desc, layer, t), &places[t]);
            if (!sum->returns) places[t].moved_end = places[t].moved_begin;
            places[t].host_offset += sum->host_bytes - sum->pack_host_bytes;
        }
    }
}

/* Appends a tensor, and sets its offsets in every layer. */
MEMOI void memoi_swap_place_tensor(const memo_swap_desc* desc, int32_t t,
                                   memob_swap_placement* placement) {
    const int is_layer = memob_swap_is_layer(desc, t);
    const int is_handed = desc->tensors[t].scope == MEMO_EDGE;
    int64_t *total = &placement->sizes.device_bytes, *fixed = &placement->fixed_host_bytes;
    const int is_packed MEMO_UNUSED = desc->tensors[t].kinds && !is_layer;
    const int64_t all_bytes MEMO_UNUSED =
        (is_layer ? memob_swap_layer_rows(desc) : memob_tensor_rows(desc, t)) *
        desc->tensors[t].row_bytes;
    int64_t* tiles = placement->tiles;
    memob_swap_place* places = &placement->places[t];
    memob_swap_region region;
    int is_odd;
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        tiles[layer] = memob_swap_tiles(desc, layer, t);
    region =
        memob_swap_sum_tensor(desc, t, tiles, NULL, NULL, 0, placement, placement->sums, places);
    region.begin = *total;
    *total += region.even_bytes + region.scratch_bytes + region.odd_bytes;

    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        memob_swap_place* place = &places[(int64_t)layer * desc->n_tensors];
        if (!place->row_bytes) continue;
        place->is_layer = is_layer;
        if (place->is_routed) {
            place->offset = place->stack_begin = region.begin;
            place->stack_end = region.begin + region.even_bytes;
            place->host_offset = *fixed;
            continue;
        }
        is_odd = memoi_swap_is_odd(desc, layer);
        if (is_layer) is_odd = memoi_swap_is_odd_layer(placement, layer);
        if (is_handed) is_odd = memoi_swap_is_odd_edge(placement, layer);
        if (is_handed || (is_layer && tiles[layer] != MEMO_ROWS_KEPT)) {
            place->offset = region.begin + (is_odd && region.odd_bytes ? region.even_bytes : 0);
        } else if (tiles[layer] != MEMO_ROWS_KEPT) {
            place->offset += region.begin + region.even_bytes;
            if (tiles[layer] && is_odd) place->offset += region.scratch_bytes;
        } else if (is_layer && layer % placement->n_of_batch) {
            place->offset = place[-desc->n_tensors].offset;
        } else {
            place->offset = *total;
            *total += region.whole_bytes;
        }
        MEMO_ASSERT((is_packed && tiles[layer] != MEMO_ROWS_KEPT) || /* 2 */
                    (place->offset >= region.begin && place->offset + all_bytes <= *total));
        if (!is_layer || place->moved_end == place->moved_begin) continue;

        /* Slices follow each other. */
        place->host_offset = *fixed + place->moved_begin * place->row_bytes;
        if ((layer + 1) % placement->n_of_batch == 0) *fixed += region.whole_bytes;
    }
    if (is_handed) placement->handed_begin = *fixed;
    if (region.n_fixed && !is_layer) *fixed += region.whole_bytes;
}

MEMOI void memoi_swap_place_rows(const memo_swap_desc* desc, memob_swap_placement* placement) {
    placement->handed = placement->input = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const memo_item* tensor = &desc->tensors[t];
        if (!tensor->row_bytes) continue;
        memoi_swap_place_tensor(desc, t, placement);
        if (tensor->scope == MEMO_INPUT && desc->n_slices > 1) placement->input = t;
        if (tensor->scope != MEMO_EDGE || !memoi_swap_hands(desc)) continue;
        placement->handed = t;
        placement->handed_row_bytes = tensor->row_bytes;
    }
    placement->fixed_host_bytes =
        memob_align_up(placement->fixed_host_bytes, MEMOB_SPILL_ALIGNMENT);
    memoi_swap_place_packs(desc, placement);
}

/* Places the moved layers in host memory, and sums up what they move.  Which late rows follow
 * which. */
MEMOI void memoi_swap_place_on_host(const memo_swap_desc* desc, int64_t host_bytes,
                                    memob_swap_placement* placement) {
    memo_swap_sizes* sizes = &placement->sizes;
    int32_t routed = -1;
    memob_swap_find_places(desc, host_bytes, desc->n_host_layers, placement);
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        memob_swap_sum* sum = &placement->sums[layer];
        const int64_t n_bytes = sum->moved_bytes + sum->layer_bytes + sum->routed_bytes;
        sizes->swapped_bytes += n_bytes;
        sizes->layer_swapped_bytes = memob_max(sizes->layer_swapped_bytes, n_bytes);
        sum->routed_before = sum->uses_routed ? routed : -1;
        if (sum->uses_routed) routed = layer;
    }
}

MEMOI const memob_swap_place* memob_swap_place_of(const memob_swap_placement* placement,
                                                  int32_t step, int32_t t) {
    MEMO_ASSERT(step >= 0 && step < placement->n_layers && t >= 0 && t < placement->n_tensors);
    return &placement->places[(int64_t)step * placement->n_tensors + t];
}

/* The step has so many late rows.  They begin where rows of the step before end.  Rows behind
 * the stack are the surplus, unless no later step uses the scratch or no backward follows. */
MEMOI void memoi_swap_route(memob_swap_placement* placement, int32_t step, int64_t n_rows,
                            int is_forward_only) {
    const int32_t routed_before = placement->sums[step].routed_before;
    for (int32_t t = 0; t < placement->n_tensors; t++) {
        const int64_t at = (int64_t)step * placement->n_tensors + t;
        memob_swap_place *place = &placement->places[at], *before = NULL;
        int64_t n_kept, *range;
        if (!place->is_routed) continue;
        if (routed_before >= 0 && !is_forward_only)
            before = &placement->places[(int64_t)routed_before * placement->n_tensors + t];

        place->n_routed = n_rows;
        place->offset = place->stack_begin;
        if (before) {
            const int64_t end = before->offset + before->n_routed * before->row_bytes;
            place->offset =
                memob_min(memob_align_up(end, MEMOB_DEVICE_ALIGNMENT), place->stack_end);
            place->host_offset =
                before->host_offset + (before->moved_end - before->moved_begin) * before->row_bytes;
        }

        MEMO_ASSERT(routed_before < step && /* 4 */
                    memob_is_within(place->offset, place->stack_begin, place->stack_end));
        n_kept = memob_min(n_rows, (place->stack_end - place->offset) / place->row_bytes);
        if (place->is_recomputed && n_kept < n_rows)
            n_kept -= n_kept % placement->tile_rows; /* recomputed by whole tiles */
        if (is_forward_only || !place->is_followed) n_kept = n_rows;
        place->moved_begin = place->moved_end = 0;
        place->recompute_begin = place->recompute_end = n_rows;
        range = place->is_recomputed ? &place->recompute_begin : &place->moved_begin;
        range[0] = n_kept, range[1] = n_rows;
    }
}

MEMOI void memob_swap_placement_free(memob_swap_placement* placement) {
    memob_arrays_free(&placement->arrays);
    memset(placement, 0, sizeof *placement);
}

/* ---- >>swap items -------------------------------------------------------------------------------
 * Knows: which rows of a step share bytes, on the device and on the host.  Knows nothing of how
 * offsets are found, of streams and of times.
 *
 * The law of a micro-batch, or of all that are in flight, for the engine and for the planner's
 * clock.  An item is what moves together of a step: rows of the tensors that use the rounding
 * buffers in the same steps (a class), LAYER rows, the surplus of LATE_ROWS, EDGE rows of a
 * slice of a place.  Items lie at numbers of slots instead of offsets, one byte each: all rows
 * that a slot holds at different times share bytes.
 *
 * 1. A class has a slot for even and one for odd steps; so have EDGE rows.  A slice of LAYER rows
 *    has a slot for even and one for odd layers.  The surplus has one slot, the scratch.
 * 2. The host keeps the INPUT of a step where it keeps the EDGE rows of the layer before, unless
 *    the step goes to the file, or is of the first layer of its place.
 * 3. Steps that share a window on the host share its slots, one for each class.
 * 4. An item's bytes move only if its rows are used.
 * 5. Uses come in the order of visits and fit into the list; each names an item, a visit and a slot
 *    that there are. */

typedef struct memob_swap_items {
    int32_t n_steps, n_of_batch; /* n_of_batch: slices of a micro-batch in a layer */
    int32_t n_classes;
    int32_t input; /* the class of the INPUT tensor; -1: none */
    int32_t n_items, n_uses, n_uses_most, n_visits;
    uint32_t* in_lists; /* (n_visits) */
    memob_item* items;
    memob_use* uses;
    int64_t* n_bytes;    /* (n_items): that move, of whole steps; 0: none, even if others use the
                           slot */
    int64_t* file_bytes; /* (n_items): of the item in the file */
    int32_t* n_copies;   /* (n_items): in which they move */
    char* uses_of;       /* (n_items): memoi_swap_use_kind; all that the law depends on */
    /* An engine's; NULL: not made. */
    memob_move* pieces;           /* of each item, one behind the other */
    int32_t* first_piece;         /* (n_items + 1) */
    int64_t *device_at, *host_at; /* of each slot: its begin; the host has one for each item */
    int64_t* file_at;             /* (n_classes, n_steps): of each item in the file */
    memob_arrays arrays;
} memob_swap_items;

/* The items: of each class all steps, then LAYER and late rows of all steps, then EDGE rows of
 * each slice of each place. */
typedef enum memob_swap_item_kind {
    MEMOB_SWAP_ITEM_CLASS = 0,
    MEMOB_SWAP_ITEM_LAYER,
    MEMOB_SWAP_ITEM_LATE,
    MEMOB_SWAP_ITEM_EDGE
} memob_swap_item_kind;

MEMOI memob_swap_item_kind memoi_swap_item_kind_of(const memob_swap_items* it, int32_t item) {
    const int32_t k = item / it->n_steps - it->n_classes;
    MEMO_ASSERT(item >= 0 && item < it->n_items);
    if (k < 0) return MEMOB_SWAP_ITEM_CLASS;
    if (k == 0) return MEMOB_SWAP_ITEM_LAYER;
    return k == 1 ? MEMOB_SWAP_ITEM_LATE : MEMOB_SWAP_ITEM_EDGE;
}

/* Tables of the law. */
enum { MEMOB_SWAP_FORWARD_ONLY, MEMOB_SWAP_BOTH };

/* How visits use an item; 0: not. */
enum {
    MEMOI_SWAP_USED = 1,
    MEMOI_SWAP_MOVED = 2,
    MEMOI_SWAP_SHARED = 4,
    MEMOI_SWAP_IN_FILE = 8 /* times 1 + window */
};

/* Slots of rows in rounding buffers, LAYER rows, the surplus and EDGE rows. */
MEMOI int32_t memoi_swap_device_slots(const memob_swap_items* it) {
    return 2 * it->n_classes + 2 * it->n_of_batch + 3;
}

MEMOI void memoi_swap_add_use(memob_swap_items* it, int32_t visit, int32_t item, int32_t how,
                              int64_t at, int64_t host) {
    const memob_use use = {visit, item, how, 0, at, host, 0};
    MEMO_ASSERT(it->n_uses < it->n_uses_most);                           /* 5 */
    MEMO_ASSERT(item >= 0 && item < it->n_items && it->uses_of[item]);   /* 5 */
    MEMO_ASSERT(at >= 0 && at < memoi_swap_device_slots(it));            /* 1, 5 */
    MEMO_ASSERT(!it->n_uses || it->uses[it->n_uses - 1].visit <= visit); /* 5 */
    it->uses[it->n_uses++] = use;
}

/* EDGE rows of a layer: slices, of all places if outputs wait for the backward. */
MEMOI int32_t memoi_swap_n_edges(const memob_swap_placement* p) {
    return (p->finds_outputs ? p->n_layers / p->n_forwards : 1) * p->n_slices;
}

/* Those of a step. */
MEMOI int32_t memoi_swap_edge_of(const memob_swap_placement* p, int32_t step) {
    return (p->finds_outputs ? step / p->n_forwards : 0) * p->n_slices + step % p->n_slices;
}

/* The EDGE rows of a visit. */
MEMOI void memoi_swap_use_edge(const memob_swap_placement* p, memob_swap_items* it, int32_t k,
                               int64_t at) {
    const memob_row_visit* visit = &p->visits[k];
    const int32_t i = visit->layer, next = i + p->n_slices; /* the slice in the next layer */
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    const int is_shared = !is_backward && !memoi_swap_is_last(p, i) && it->input >= 0 &&
                          it->uses_of[it->input * p->n_layers + next] & MEMOI_SWAP_SHARED;
    memoi_swap_add_use(it, k, (it->n_classes + 2) * p->n_layers + memoi_swap_edge_of(p, i),
                       memob_swap_is_edge_new(p, visit) ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE,
                       at + memoi_swap_is_odd_edge(p, i),
                       is_shared ? it->items[it->input * p->n_layers + next].host : -1);
}

/* The LAYER rows of a visit.  They come back before the last slice, which is the first of a
 * backward, and are free when the backward of their own slice is over; the waits are those of uses
 * by all slices.  With places another turn may bring back its rows behind a forward, which has read
 * those of all slices then. */
MEMOI void memoi_swap_use_layer(const memob_swap_placement* p, memob_swap_items* it, int32_t k,
                                int64_t at) {
    const memob_row_visit* visit = &p->visits[k];
    const int32_t i = visit->layer, n_slices = p->n_of_batch, slice = i % n_slices;
    const int32_t odd = memoi_swap_is_odd_layer(p, i);
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    const int is_of_all = slice == n_slices - 1 && (is_backward || p->n_forwards < p->n_layers);
    for (int32_t s = slice; s >= (is_of_all ? 0 : slice); s--) {
        const int32_t item = it->n_classes * p->n_layers + i - slice + s;
        int32_t how = it->uses_of[item] & MEMOI_SWAP_MOVED ? MEMOB_USE_READ : MEMOB_USE_MAKE;
        if (!is_backward) how = s == slice ? MEMOB_USE_WRITE : MEMOB_USE_READ;
        if (it->uses_of[item]) memoi_swap_add_use(it, k, item, how, at + odd * n_slices + s, -1);
    }
}

/* What a visit uses. */
MEMOI void memoi_swap_use_items(const memob_swap_placement* p, memob_swap_items* it, int32_t k) {
    const memob_row_visit* visit = &p->visits[k];
    const int32_t i = visit->layer, n = p->n_layers, routed = (it->n_classes + 1) * n;
    const int32_t read = visit->pass == MEMOB_BACKWARD ? MEMOB_USE_READ : MEMOB_USE_WRITE;
    const int32_t make = visit->pass == MEMOB_BACKWARD ? MEMOB_USE_MAKE : MEMOB_USE_WRITE;
    const int64_t layer_at = 2 * (int64_t)it->n_classes, routed_at = layer_at + 2 * p->n_of_batch;

    for (int32_t c = 0; c < it->n_classes; c++) {
        const char uses = it->uses_of[c * n + i];
        if (uses)
            memoi_swap_add_use(it, k, c * n + i, uses & MEMOI_SWAP_MOVED ? read : make,
                               2 * c + visit->odd, -1);
    }

    memoi_swap_use_layer(p, it, k, layer_at);
    if (it->uses_of[routed + i]) memoi_swap_add_use(it, k, routed + i, read, routed_at, -1);
    if (p->handed >= 0) memoi_swap_use_edge(p, it, k, routed_at + 1);
}

MEMOI void memob_swap_items_free(memob_swap_items* it) {
    memob_arrays_free(&it->arrays);
    memset(it, 0, sizeof *it);
}

MEMOI void memoi_swap_add_rows(const memo_swap_desc* desc, const memob_swap_placement* p, int32_t t,
                               memob_swap_items* it) {
    const int32_t n = p->n_layers, first = p->class_of[t] * n;
    const int is_packed = desc->tensors[t].kinds != 0;
    const int64_t* moves = p->moves + (int64_t)t * n;
    for (int32_t step = 0; step < n && p->class_of[t] >= 0; step++) {
        char* uses = &it->uses_of[first + step];
        if (moves[step] >= 0 || (is_packed && p->sums[step].pack_bytes)) *uses |= MEMOI_SWAP_USED;
        if (moves[step] <= 0) continue;
        *uses |= MEMOI_SWAP_MOVED;
        it->n_bytes[first + step] += moves[step];
        it->n_copies[first + step]++;
    }
}

/* Sums up the bytes of the items, and how they are used. */
MEMOI void memoi_swap_sum_items(const memo_swap_desc* desc, const memob_swap_placement* p,
                                memob_swap_items* it) {
    const int32_t n = p->n_layers;
    int is_routed = 0;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        is_routed |= memob_tensor_is_routed(desc, t) && memob_item_away(desc, t) == MEMO_MOVE;
        memoi_swap_add_rows(desc, p, t, it);
    }
    for (int32_t step = p->n_slices; step < n && it->input >= 0; step++)
        if (p->handed >= 0 && p->sums[step].input_bytes && p->sums[step].window < 0) /* 2 */
            it->uses_of[it->input * n + step] |= MEMOI_SWAP_SHARED;
    for (int32_t k = 0; k < it->n_classes * n; k++) {
        if (!it->uses_of[k] || p->sums[k % n].window < 0) continue;
        it->uses_of[k] |= (char)(MEMOI_SWAP_IN_FILE * (1 + p->sums[k % n].window));
        it->file_bytes[k] = memoi_swap_file_bytes(desc, p, k / n, k % n);
    }
    for (int32_t step = 0, k = it->n_classes * n; step < n; step++, k++) {
        const memob_swap_sum* sum = &p->sums[step];
        if (sum->uses_layer)
            it->uses_of[k] = MEMOI_SWAP_USED | (sum->layer_bytes ? MEMOI_SWAP_MOVED : 0);
        it->n_bytes[k] = sum->layer_bytes;
        it->n_copies[k] = sum->n_layer_copies;
        it->uses_of[k + n] = is_routed && sum->uses_routed > 0;
        it->n_bytes[k + n] = sum->routed_bytes;
        it->n_copies[k + n] = sum->n_routed_copies;
    }

    /* What moves is used; the surplus and EDGE rows may be used without. */
    for (int32_t k = 0; k < (it->n_classes + 1) * n; k++)
        MEMO_ASSERT(!it->n_bytes[k] || it->uses_of[k] & MEMOI_SWAP_MOVED); /* 4 */
    for (int32_t edge = 0, k = (it->n_classes + 2) * n; edge < memoi_swap_n_edges(p); edge++, k++) {
        it->uses_of[k] = p->handed >= 0;
        it->n_bytes[k] =
            memob_swap_step_rows(p, edge, memob_swap_layer_rows(desc)) * p->handed_row_bytes;
        it->n_copies[k] = 1;
    }
}

/* it: all zero, or made before, whose memory is used again.  The law's visits, items and uses are
 * made by memob_swap_items_law.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_items_make(const memo_swap_desc* desc, memob_swap_placement* p,
                                        memob_swap_items* it, memo_error* error) {
    memob_arrays arrays = it->arrays;
    memoi_arrays_rewind(&arrays);
    memset(it, 0, sizeof *it);
    it->arrays = arrays;
    it->n_steps = p->n_layers;
    it->n_of_batch = p->n_of_batch;
    it->n_visits = p->n_visits;
    memoi_swap_find_classes(desc, p);
    it->n_classes = p->n_classes;
    it->input = p->input < 0 ? -1 : p->class_of[p->input];
    it->n_items = (it->n_classes + 2) * it->n_steps + memoi_swap_n_edges(p);
    it->n_bytes = MEMOB_ARRAY(&it->arrays, int64_t, it->n_items);
    it->file_bytes = MEMOB_ARRAY(&it->arrays, int64_t, it->n_items);
    it->n_copies = MEMOB_ARRAY(&it->arrays, int32_t, it->n_items);
    it->uses_of = MEMOB_ARRAY(&it->arrays, char, it->n_items);
    if (it->arrays.failed) {
        memob_swap_items_free(it);
        return memob_no_memory(error, "the items of a step");
    }
    memoi_swap_sum_items(desc, p, it);
    return MEMO_STATUS_OK;
}

/* Slots of the host for classes.  A clock needs few: a load waits for its store by the slot of the
 * device that both use, unless steps share a window, or the store is that of EDGE rows. */
MEMOI int32_t memoi_swap_class_hosts(const memob_swap_placement* p, const memob_swap_items* it,
                                     int is_clock) {
    if (!is_clock || p->n_windows) return it->n_classes * p->n_layers;
    return it->input < 0 ? 0 : p->n_layers;
}

/* Fills in items, visits and uses for the law.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_swap_list_uses(const memob_swap_placement* p, memob_swap_items* it,
                                       int is_clock, memo_error* error) {
    const int32_t n = p->n_layers, n_rows = it->n_classes * n;
    const int32_t n_hosts = memoi_swap_class_hosts(p, it, is_clock);
    int32_t first[MEMOI_SWAP_WINDOWS]; /* step in each window */
    it->in_lists = MEMOB_ARRAY_OF_ANY(&it->arrays, uint32_t, p->n_visits);
    it->items = MEMOB_ARRAY_OF_ANY(&it->arrays, memob_item, it->n_items);
    /* Each visit uses at most one item of each class, of LAYER and EDGE rows and of the surplus;
     * once in a layer a visit uses LAYER rows of all slices. */
    it->n_uses_most = p->n_visits * (it->n_classes + 4);
    it->uses = MEMOB_ARRAY_OF_ANY(&it->arrays, memob_use, it->n_uses_most);
    if (it->arrays.failed) return memob_no_memory(error, "the uses of a step");
    for (int32_t step = n - 1; step >= 0; step--)
        if (p->sums[step].window >= 0) first[p->sums[step].window] = step;
    for (int32_t c = 0, k = 0; c < it->n_classes; c++)
        for (int32_t step = 0; step < n; step++, k++) {
            const int32_t copy_of = c == it->input && p->handed >= 0
                                        ? n_rows + 2 * n + memoi_swap_edge_of(p, step)
                                        : -1;
            MEMO_ASSERT(copy_of < 0 || /* 2 */
                        memoi_swap_item_kind_of(it, copy_of) == MEMOB_SWAP_ITEM_EDGE);
            const int32_t window = p->sums[step].window;
            memob_item item = {
                it->uses_of[k] != 0, 1, 0, copy_of, window < 0 ? k : c * n + first[window],
                window < 0 ? -1 : k};
            if (n_hosts < n_rows) {
                item.n_host = c == it->input;
                item.host = item.n_host * step;
            }
            it->items[k] = item;
        }
    for (int32_t k = n_rows; k < it->n_items; k++) {
        const memob_item item = {it->uses_of[k] != 0, 1, 0, -1, k - n_rows + n_hosts, -1};
        it->items[k] = item;
    }

    /* A forward alone has the first forwards. */
    for (int32_t k = 0; k < p->n_visits; k++) {
        it->in_lists[k] = 1u << MEMOB_SWAP_BOTH | (uint32_t)(k < p->n_forwards)
                                                      << MEMOB_SWAP_FORWARD_ONLY;
        memoi_swap_use_items(p, it, k);
    }
    return MEMO_STATUS_OK;
}

/* The law of the items.  Its tables: forwards alone, then forwards and backwards.  work: the second
 * alone, without events; see memob_law_desc.  Errors: as memob_law_make. */
MEMOI memo_status memob_swap_items_law(memob_swap_items* it, const memob_swap_placement* p,
                                       memob_arrays* work, memob_law* law, memo_error* error) {
    static const int32_t lists[] = {MEMOB_SWAP_FORWARD_ONLY, MEMOB_SWAP_BOTH};
    memob_law_desc desc;
    memo_status status = memoi_swap_list_uses(p, it, work != NULL, error);
    if (status) return status;
    memset(&desc, 0, sizeof desc);
    desc.in_lists = it->in_lists;
    desc.n_visits = it->n_visits;
    desc.items = it->items;
    desc.n_items = it->n_items;
    desc.uses = it->uses;
    desc.n_uses = it->n_uses;
    desc.lists = lists + (work != NULL);
    desc.n_lists = 2 - (work != NULL);
    desc.work = work;
    desc.n_slots[0] = memoi_swap_device_slots(it);
    desc.n_slots[1] =
        it->n_items - it->n_classes * it->n_steps + memoi_swap_class_hosts(p, it, work != NULL);
    desc.n_slots[2] = p->n_windows ? it->n_classes * it->n_steps : 0;
    return memob_law_make(&desc, law, error);
}

/* --- pieces --- */

/* The tensor's rows move with items of the kind. */
MEMOI int memoi_swap_is_of(memob_swap_item_kind kind, int is_of_class,
                           const memob_swap_place* place) {
    switch (kind) {
    case MEMOB_SWAP_ITEM_CLASS: return is_of_class;
    case MEMOB_SWAP_ITEM_LAYER: return place->is_layer;
    case MEMOB_SWAP_ITEM_LATE: return place->is_routed;
    case MEMOB_SWAP_ITEM_EDGE: break;
    }
    return 0;
}

/* Writes the pieces of an item behind those of the items before.  LATE_ROWS have pieces when their
 * step has been routed. */
MEMOI void memoi_swap_items_cut(const memob_swap_placement* p, memob_swap_items* it, int32_t item) {
    const memob_swap_item_kind kind = memoi_swap_item_kind_of(it, item);
    const int32_t step = item % it->n_steps, slice = step % p->n_of_batch;
    const int64_t slice_row = slice * p->slice_rows;
    int64_t in_window = 0;
    memob_move* piece = &it->pieces[it->first_piece[item]];
    if (kind == MEMOB_SWAP_ITEM_EDGE) {
        const memob_move rows = {0, 0, p->slice_rows * p->handed_row_bytes, slice_row,
                                 p->handed_row_bytes};
        *piece++ = rows;
    }

    for (int32_t t = 0; t < p->n_tensors && kind != MEMOB_SWAP_ITEM_EDGE; t++) {
        const memob_swap_place* place = memob_swap_place_of(p, step, t);
        const int64_t row_bytes = place->row_bytes;
        const int64_t n_bytes = (place->moved_end - place->moved_begin) * row_bytes;
        memob_move rows = {place->offset + place->moved_begin * row_bytes, place->host_offset,
                           n_bytes, place->moved_begin, row_bytes};
        if (!memoi_swap_is_of(kind, p->class_of[t] == item / it->n_steps, place)) continue;
        if (kind == MEMOB_SWAP_ITEM_CLASS) rows.first_row += slice_row;
        if (t == p->input) rows.host = 0; /* 2 */
        if (kind == MEMOB_SWAP_ITEM_CLASS && p->sums[step].window >= 0) rows.host = in_window;
        if (kind == MEMOB_SWAP_ITEM_LATE) rows.row_bytes = 0; /* the surplus */
        in_window += memob_align_up(n_bytes, MEMOB_DEVICE_ALIGNMENT);
        *piece++ = rows;
    }

    it->first_piece[item + 1] = (int32_t)(piece - it->pieces);
    MEMO_ASSERT(kind != MEMOB_SWAP_ITEM_CLASS || p->sums[step].window < 0 || /* 3 */
                in_window <= it->file_bytes[item]);
}

/* Where slots begin, and the pieces of all items.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_swap_find_pieces(const memo_swap_desc* desc, const memob_swap_placement* p,
                                         memob_swap_items* it, memo_error* error) {
    const int32_t n = it->n_steps, n_slots = memoi_swap_device_slots(it);
    const int32_t n_edges = memoi_swap_n_edges(p);
    int64_t in_window = 0, in_file = 0;
    it->pieces = MEMOB_ARRAY(&it->arrays, memob_move, (int64_t)n * p->n_tensors + n_edges);
    it->first_piece = MEMOB_ARRAY(&it->arrays, int32_t, it->n_items + 1);
    it->device_at = MEMOB_ARRAY(&it->arrays, int64_t, n_slots);
    it->host_at = MEMOB_ARRAY(&it->arrays, int64_t, it->n_items);
    it->file_at = MEMOB_ARRAY(&it->arrays, int64_t, (int64_t)it->n_classes * n);
    if (it->arrays.failed) return memob_no_memory(error, "the pieces of a step");

    for (int32_t k = 0, c = 0; c < it->n_classes; c++) {
        int64_t most_bytes = 0;
        for (int32_t step = 0; step < n; step++, k++) {
            it->host_at[k] = p->sums[step].host_begin;
            if (p->sums[step].window < 0) continue;
            it->host_at[k] += in_window;
            it->file_at[k] = in_file;
            in_file += it->file_bytes[k];
            most_bytes = memob_max(most_bytes, it->file_bytes[k]);
        }
        in_window += most_bytes;
    }
    MEMO_ASSERT(in_window <= p->window_bytes && in_file == p->sizes.spill_bytes); /* 3 */
    for (int32_t step = 0; step < n && it->input >= 0; step++)
        if (p->sums[step].window < 0)
            it->host_at[it->input * n + step] +=
                memob_swap_place_of(p, step, p->input)->host_offset;
    if (p->handed >= 0) {
        const int64_t even_at = memob_swap_place_of(p, 0, p->handed)->offset;
        it->device_at[n_slots - 2] = even_at;
        it->device_at[n_slots - 1] =
            even_at + memob_align_up(p->slice_rows * p->handed_row_bytes, MEMOB_DEVICE_ALIGNMENT);
    }
    for (int32_t edge = 0; edge < n_edges; edge++)
        it->host_at[(it->n_classes + 2) * n + edge] =
            p->handed_begin + (edge / p->n_of_batch * memob_swap_layer_rows(desc) +
                               edge % p->n_of_batch * p->slice_rows) *
                                  p->handed_row_bytes;
    for (int32_t k = 0; k < it->n_items; k++) memoi_swap_items_cut(p, it, k);
    return MEMO_STATUS_OK;
}

/* --- for a step --- */

/* The rows of a step, for a clock. */
MEMOI memob_moves memob_swap_moves(const memob_swap_items* it) {
    memob_moves moves = MEMO_ZERO(memob_moves);
    moves.n_bytes = it->n_bytes;
    moves.file_bytes = it->file_bytes;
    moves.n_copies = it->n_copies;
    return moves;
}

/* The step of rows without states: one round, and beside it forwards alone.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_make_step(const memo_swap_desc* desc, const memob_swap_placement* p,
                                       memob_sink* sink, memob_step* step, memo_error* error) {
    const int32_t n_places = p->n_layers / p->n_forwards, n_layers = p->n_layers / p->n_slices;
    const memob_list_desc list_desc = {
        desc->order, desc->n_order, n_places, n_layers, p->n_slices, 1, MEMO_UPDATE_PASS, 0, 0};
    memob_step_desc step_desc;
    memob_list list;
    memo_status status = memoi_list_make(&list_desc, &list, error);
    memset(&step_desc, 0, sizeof step_desc);
    step_desc.list = &list;
    step_desc.sink = sink;
    if (!status) status = memoi_step_make(&step_desc, step, error);
    MEMO_ASSERT(status || step->list.end[MEMOB_ONLY] == p->n_visits);
    memoi_list_free(&list);
    return status;
}

/* Visits of a round; of forwards alone. */
MEMOI int32_t memoi_swap_n_visits(const memob_swap_placement* p, int is_forward_only) {
    return is_forward_only ? p->n_forwards : p->n_visits;
}

/* The visit of a layer that begins or ends next, of those before `end`; NULL: none may.  At most
 * n_open_most are open, of one pass; the older one ends first. */
MEMOI const memob_row_visit* memob_swap_due(const memob_swap_placement* p, const memob_step* step,
                                            int is_end, int32_t end, int32_t n_open_most) {
    const memob_row_visit *older = &p->visits[step->n_ended], *next = &p->visits[step->n_begun];
    const int32_t n_open = step->n_begun - step->n_ended;
    if (is_end) return n_open > 0 ? older : NULL;
    return n_open < n_open_most && step->n_begun < end && next->pass == older->pass ? next : NULL;
}

/* The step has so many late rows: pieces of its surplus follow. */
MEMOI void memoi_swap_route_items(memob_swap_placement* p, int32_t step, int64_t n_rows,
                                  int is_forward_only) {
    memob_swap_items* it = p->items;
    memoi_swap_route(p, step, n_rows, is_forward_only);
    if (it) memoi_swap_items_cut(p, it, (it->n_classes + 1) * it->n_steps + step);
}

/* The forward of a step begins: it has no late rows yet. */
MEMOI void memob_swap_route_none(memob_swap_placement* p, int32_t step, int is_forward_only) {
    if (!p->routed_rows_layer) return;
    if (step == 0) p->n_routed = 0;
    memoi_swap_route_items(p, step, 0, is_forward_only);
}

/* The step whose forward is open has so many late rows.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memob_swap_set_routed(memob_swap_placement* p, int32_t step, int64_t n_rows,
                                        int is_forward_only, memo_error* error) {
    const memob_bounds bounds[] = {{"n_rows", n_rows, 0, p->routed_rows_layer},
                                   {"n_rows so far", p->n_routed + n_rows, 0, p->routed_rows_all}};
    const memo_status status = MEMOB_CHECK_FIELDS("memo_session_set_routed", bounds, error);
    if (status) return status;
    p->n_routed += n_rows;
    memoi_swap_route_items(p, step, n_rows, is_forward_only);
    return MEMO_STATUS_OK;
}

/* --- placements --- */

/* Every offset and size that follows from desc.  host_bytes 0: with desc->n_host_layers places;
 * otherwise with the number that memob_swap_find_places finds.  One place remains even if it does
 * not fit: compare sizes.host_bytes.  Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_placement_make(const memo_swap_desc* desc, int64_t host_bytes,
                                            memob_swap_placement* placement, memo_error* error) {
    memo_status status = memob_swap_check_desc(desc, error);
    memob_arrays* a;
    memset(placement, 0, sizeof *placement);
    placement->n_layers = desc->n_layers;
    placement->n_tensors = desc->n_tensors;
    placement->n_slices = (int32_t)memob_max(desc->n_slices, 1);
    placement->n_of_batch = (int32_t)memob_max(memob_swap_batch_slices(desc), 1);
    placement->has_loss = desc->has_loss || placement->n_slices > placement->n_of_batch;
    placement->finds_outputs = memoi_swap_finds_outputs(desc);
    placement->slice_rows = desc->n_rows;
    placement->tile_rows = memob_max(desc->tile_rows, 1);
    placement->routed_rows_layer = desc->routed_rows_layer;
    placement->routed_rows_all = desc->routed_rows_all;
    if (!status) status = memoi_swap_check_bytes(desc, error);
    for (int32_t layer = 0; layer < desc->n_layers && !status; layer++)
        for (int32_t t = 0; t < desc->n_tensors && !status; t++)
            status = memoi_swap_check_cell(desc, layer, t, error);
    if (status) return status;

    a = &placement->arrays;
    placement->places = MEMOB_ARRAY(a, memob_swap_place, (int64_t)desc->n_layers * desc->n_tensors);
    placement->visits = MEMOB_ARRAY(a, memob_row_visit, memoi_swap_count_visits(desc));
    placement->sums = MEMOB_ARRAY(a, memob_swap_sum, desc->n_layers);
    placement->lost = MEMOB_ARRAY(a, char, (int64_t)desc->n_layers*(desc->n_tensors + 1));
    placement->tiles = MEMOB_ARRAY(a, int64_t, desc->n_layers);
    placement->class_of = MEMOB_ARRAY(a, int32_t, desc->n_tensors);
    placement->moves = MEMOB_ARRAY(a, int64_t, (int64_t)desc->n_layers * desc->n_tensors);
    if (a->failed) {
        memob_swap_placement_free(placement);
        return memob_no_memory(error, "the table of skeletal tensors");
    }
    memoi_swap_list_visits(desc, placement);
    for (int64_t k = 0; k < (int64_t)desc->n_layers * desc->n_tensors; k++)
        placement->moves[k] = -1;

    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        int64_t layer_bytes = 0;
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            memob_swap_place* place = &placement->places[(int64_t)layer * desc->n_tensors + t];
            place->recompute_begin = place->recompute_end = desc->n_rows; /* nothing, yet */
            if (memob_layer_has(desc, layer, t)) place->row_bytes = desc->tensors[t].row_bytes;
            layer_bytes += memob_tensor_rows(desc, t) * place->row_bytes;
        }
        placement->sizes.layer_bytes = memob_max(placement->sizes.layer_bytes, layer_bytes);
    }
    if (!desc->rows)
        placement->sizes.alpha =
            (double)memob_swap_rows_of_tiles(desc, 0, memoi_swap_tiles_of_alpha(desc)) /
            (double)desc->n_rows;
    memoi_swap_place_rows(desc, placement);
    memoi_swap_place_on_host(desc, host_bytes, placement);
    return MEMO_STATUS_OK;
}

/* Also writes to desc how many places host_bytes have room for; 0: no limit. */
MEMOI memo_status memob_swap_placement_fit(memo_swap_desc* desc, int64_t host_bytes,
                                           memob_swap_placement* placement, memo_error* error) {
    memo_status status;
    desc->n_host_layers = 0;
    status = memob_swap_placement_make(desc, host_bytes, placement, error);
    if (!status && placement->n_windows) desc->n_host_layers = placement->n_host_layers;
    return status;
}

memo_status memo_swap_desc_get_sizes(const memo_swap_desc* desc, memo_swap_sizes* sizes,
                                     memo_error* error) {
    memob_swap_placement placement;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sizes", sizes);
    status = memob_swap_placement_make(desc, 0, &placement, error);
    if (!status) *sizes = placement.sizes;
    memob_swap_placement_free(&placement);
    return status;
}

/* ---- >>swap engine ------------------------------------------------------------------------------
 * Knows: memory, streams and events of rows, and which call of a trainer is legal now.  Knows
 * nothing of the order of operations, and of what the trainer computes.
 *
 * An engine goes through the cursor of a step of rows alone.  A session with streamed states gives
 * its rows to the cursor of the states, and the engine uses streams, waits and events of these. */

struct memo_swap {
    memob_sink own_sink; /* memory.spill_ops: (items of rows, 2); NULL: none is spilled */
    memob_sink* sink;    /* own_sink, or the one whose streams it uses */
    memob_swap_items items;
    memob_law law; /* of them */
    memob_step_rows rows;
    memob_step step; /* of rows alone */
    memob_stalls stalls;
    memob_swap_placement* placement; /* own_placement, or a session's, which outlives the engine */
    memob_swap_placement own_placement;
    int64_t n_rows_most;
    int32_t is_forward_only; /* only EDGE rows are moved, and no backward follows */
    int32_t n_open_most;
};

/* --- what does not change --- */

void* memo_swap_get_address(const memo_swap* swap, int32_t layer, int32_t tensor) {
    const memob_swap_place* place;
    if (!swap) return NULL;
    place = memob_swap_place_of(swap->placement, layer, tensor);
    return place->row_bytes && (!place->is_routed || place->n_routed)
               ? swap->own_sink.engine.memory.device + place->offset
               : NULL;
}

void memo_swap_get_recompute_rows(const memo_swap* swap, int32_t layer, int32_t tensor,
                                  int64_t* begin, int64_t* end) {
    const memob_swap_place* place;
    int64_t n_rows;
    if (!swap || !begin || !end) return;
    place = memob_swap_place_of(swap->placement, layer, tensor);
    n_rows = place->is_routed
                 ? place->n_routed
                 : memob_swap_step_rows(swap->placement, layer, swap->rows.moves.n_rows);
    *begin = memob_min(place->recompute_begin, n_rows);
    *end = memob_min(place->recompute_end, n_rows);
    if (*begin == *end) *begin = *end = n_rows;
}

/* --- creation --- */

void memo_swap_destroy(memo_swap* swap) {
    if (!swap) return;
    for (int32_t i = 0; swap->stalls.marks && i < 2 * swap->placement->n_visits; i++)
        if (swap->stalls.marks[i])
            memo_event_destroy(&swap->own_sink.engine.device, swap->stalls.marks[i], NULL);
    if (swap->placement) swap->placement->items = NULL;
    memob_step_free(&swap->step);
    memob_sink_free(&swap->own_sink);
    memob_law_free(&swap->law);
    memob_swap_items_free(&swap->items);
    memob_swap_placement_free(&swap->own_placement);
    MEMO_FREE(swap);
}

MEMOI memo_status memoi_swap_check_spill(const memo_swap* swap, const memo_swap_desc* desc,
                                         memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    if (!sizes->n_spilled_layers) return MEMO_STATUS_OK;
    if (!desc->spill_directory)
        return MEMOI_INVALID(desc,
                             "spill_directory: NULL, but with n_host_layers %d, %d of %d swapped "
                             "layers go to a file; set it",
                             (int)desc->n_host_layers, (int)sizes->n_spilled_layers,
                             (int)sizes->n_swapped_layers);
    return memob_engine_check_launch(&swap->own_sink.engine, memoi_swap_desc_name(desc),
                                     "the spill file", error);
}

/* What the law of the rows needs to run. */
MEMOI void memoi_swap_take_rows(memo_swap* swap, const memo_swap_desc* desc) {
    memob_moves* moves = &swap->rows.moves;
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    swap->rows.of.law = &swap->law;
    *moves = memob_swap_moves(&swap->items);
    moves->memory = &swap->own_sink.engine.memory;
    moves->sizes[MEMO_TIER_DEVICE] = sizes->device_bytes;
    moves->sizes[MEMO_TIER_HOST] = sizes->host_bytes;
    moves->sizes[MEMO_TIER_FILE] = sizes->spill_bytes;
    moves->pieces = swap->items.pieces;
    moves->first_piece = swap->items.first_piece;
    moves->device_at = swap->items.device_at;
    moves->host_at = swap->items.host_at;
    moves->file_at = swap->items.file_at;
    moves->n_rows = swap->n_rows_most = memob_swap_layer_rows(desc);
    swap->placement->items = &swap->items;
    if (desc->is_timed) swap->rows.stalls = &swap->stalls;
}

/* Allocates all that the engine needs; memo_swap_destroy frees any part of it. */
MEMOI memo_status memoi_swap_acquire(memo_swap* swap, const memo_swap_desc* desc,
                                     memo_error* error) {
    const memo_swap_sizes* sizes = &swap->placement->sizes;
    const int64_t n_spilled = sizes->n_spilled_layers, n_visits = swap->placement->n_visits;
    const int has_marks = desc->is_timed && !desc->computes_on_host;
    memob_engine* e = &swap->own_sink.engine;
    memo_status status;
    int64_t windows_bytes;
    int32_t n_streams = 0;
    if (sizes->host_bytes) n_streams = n_spilled ? MEMOB_STREAM_FILE : MEMOB_STREAM_TO_DEVICE;
    status = memoi_law_join_cells(&swap->law, 0, swap->law.n_ops, error);
    if (status) return status;
    swap->rows.of.cells = MEMOB_ARRAY(&e->arrays, memob_cell, swap->law.n_cells);
    e->memory.spill_ops =
        MEMOB_ARRAY(&e->arrays, memob_spill_op,
                    n_spilled ? 2 * (int64_t)swap->items.n_classes * swap->items.n_steps : 0);
    swap->stalls.waited = MEMOB_ARRAY(&e->arrays, int32_t, n_visits);
    if (has_marks) swap->stalls.marks = MEMOB_ARRAY(&e->arrays, memo_event, 2 * n_visits);
    if (e->arrays.failed) return memob_no_memory(error, "the visits of a swap engine");

    status = memob_engine_acquire(e, memoi_swap_desc_name(desc), sizes->device_bytes,
                                  sizes->host_bytes, error);
    if (!status) status = memoi_sink_take_streams(swap->sink, n_streams, error);
    for (int32_t s = MEMOB_STREAM_TO_HOST; s < MEMOB_N_STREAMS && swap->sink != &swap->own_sink;
         s++) {
        e->streams[s] = swap->sink->engine.streams[s]; /* whose copies use the memory */
        e->borrowed |= 1 << s;
    }
    for (int64_t i = 0; has_marks && i < 2 * n_visits && !status; i++)
        status = memo_event_create(&e->device, &swap->stalls.marks[i], error);
    if (!status && n_spilled && desc->spill_directory)
        status = memob_spill_create(&e->memory.file, desc->spill_directory, sizes->spill_bytes,
                                    desc->spill_bytes_per_s, e->memory.host, error);

    /* Bytes that no copy fills are written too, so initialize them. */
    windows_bytes = swap->placement->n_windows * swap->placement->window_bytes;
    if (!status && e->memory.file.fd >= 0)
        memset(e->memory.host + sizes->host_bytes - windows_bytes, 0, (size_t)windows_bytes);
    return status;
}

/* As memo_swap_create.  is_dry: for a device that runs nothing.  Memory is not touched, and without
 * spill_directory there is no file.  placement: NULL, or that of desc.  base: NULL, or the sink
 * whose streams the engine uses.  Both outlive the engine. */
MEMOI memo_status memob_swap_create(const memo_swap_desc* desc, int is_dry,
                                    memob_swap_placement* placement, memob_sink* base,
                                    memo_swap** result, memo_error* error) {
    memo_device device;
    memo_swap* swap;
    memo_status status = memob_device_take(&device, desc->device, "memo_swap_desc.device", error);
    *result = NULL;
    if (status) return status;
    swap = (memo_swap*)memob_calloc(1, sizeof *swap);
    if (!swap) return memob_no_memory(error, "a swap engine");

    memob_engine_begin(&swap->own_sink.engine, &device, desc->compute_stream,
                       desc->computes_on_host, desc->device_memory, desc->host_memory);
    swap->sink = base ? base : &swap->own_sink;
    swap->n_open_most = memob_swap_open_most(desc);
    swap->placement = placement ? placement : &swap->own_placement;

    /* Sizes and conditions first, then memory, streams and events. */
    if (!placement) status = memob_swap_placement_make(desc, 0, swap->placement, error);
    if (!status) status = memob_swap_items_make(desc, swap->placement, &swap->items, error);
    if (!status)
        status = memob_swap_items_law(&swap->items, swap->placement, NULL, &swap->law, error);
    if (!status) status = memoi_swap_find_pieces(desc, swap->placement, &swap->items, error);
    if (!status) memoi_swap_take_rows(swap, desc);
    if (!status)
        status = memob_swap_make_step(desc, swap->placement, swap->sink, &swap->step, error);
    if (!status && !is_dry) status = memoi_swap_check_spill(swap, desc, error);
    if (!status) status = memoi_swap_acquire(swap, desc, error);
    if (status) {
        memo_swap_destroy(swap);
        return status;
    }
    *result = swap;
    return MEMO_STATUS_OK;
}

memo_status memo_swap_create(const memo_swap_desc* desc, memo_swap** swap, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    *swap = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    return memob_swap_create(desc, 0, NULL, NULL, swap, error);
}

/* --- a step --- */

/* Is this call of a trainer legal now?  A layer may begin while the one before it is still open. */
MEMOI memo_status memoi_swap_expect(const memo_swap* swap, int is_backward, int is_end,
                                    int32_t layer, memo_error* error) {
    static const char* const names[2][2] = {{"forward_begin", "forward_end"},
                                            {"backward_begin", "backward_end"}};
    const memob_step* step = &swap->step;
    const memob_row_visit* older = &swap->placement->visits[step->n_ended];
    const memob_row_visit* due = memob_swap_due(
        swap->placement, step, is_end, memoi_swap_n_visits(swap->placement, swap->is_forward_only),
        swap->n_open_most);
    if (due && due->pass == is_backward && due->layer == layer) return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INVALID_STATE,
        "memo_swap_%s(%d) is out of order; memo_swap_%s(%d) comes next, or memo_swap_abandon to "
        "start again",
        names[is_backward][is_end], (int)layer, names[older->pass][step->n_open > 0],
        (int)older->layer);
}

memo_status memo_swap_set_rows(memo_swap* swap, int64_t n_rows, int is_forward_only,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    if (memob_check_integer("memo_swap_set_rows", "n_rows", n_rows, 1, swap->n_rows_most, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (swap->step.is_entered)
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "memo_swap_set_rows: a micro-batch is open; end it, or call memo_swap_abandon first");
    swap->rows.moves.n_rows = n_rows;
    swap->is_forward_only = is_forward_only;
    return MEMO_STATUS_OK;
}

/* A trainer without a session begins or ends a layer. */
MEMOI memo_status memob_swap_visit(memo_swap* swap, int is_backward, int is_end, int32_t layer,
                                   memo_error* error) {
    memob_step* step = &swap->step;
    memo_status status;
    if (!step->is_entered) step->n_begun = step->n_ended = 0; /* a new one begins */
    status = memoi_swap_expect(swap, is_backward, is_end, layer, error);
    if (status) return status;
    if (is_end) return memob_step_end(step, error);
    if (!is_backward) memob_swap_route_none(swap->placement, layer, swap->is_forward_only);
    if (!step->is_entered)
        status = memob_step_go(step, swap->is_forward_only ? MEMOB_EVALUATION : MEMOB_ONLY,
                               &swap->rows, error);
    return status ? status : memob_step_begin(step, error);
}

memo_status memo_swap_forward_begin(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 0, 0, layer, error);
}
memo_status memo_swap_forward_end(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 0, 1, layer, error);
}
memo_status memo_swap_backward_begin(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 1, 0, layer, error);
}
memo_status memo_swap_backward_end(memo_swap* swap, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    return memob_swap_visit(swap, 1, 1, layer, error);
}

memo_status memo_swap_abandon(memo_swap* swap, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "swap", swap);
    memob_step_abandon(&swap->step);
    return memob_step_settle(&swap->step, error);
}

memo_status memo_swap_get_stats(memo_swap* swap, memo_swap_stats* stats, memo_error* error) {
    const memob_engine* e;
    const memob_stalls* stalls;
    double stall_s[2];
    MEMOB_REFUSE_NULL(error, "swap", swap);
    MEMOB_REFUSE_NULL(error, "stats", stats);
    e = &swap->own_sink.engine;
    stalls = &swap->stalls;
    for (int32_t k = 0; k < 2; k++) stall_s[k] = stalls->is_known ? stalls->host_s[k] : 0;
    for (int32_t k = 0; stalls->marks && stalls->is_known && k < swap->placement->n_visits; k++) {
        double waited_s = 0;
        memo_status status;
        if (!stalls->waited[k]) continue;
        status = memo_event_elapsed(&e->device, stalls->marks[2 * k], stalls->marks[2 * k + 1],
                                    &waited_s, error);
        if (status) return status;
        stall_s[swap->placement->visits[k].pass] += waited_s;
    }
    stats->to_host_bytes = e->memory.copied_bytes[0];
    stats->to_device_bytes = e->memory.copied_bytes[1];
    stats->to_file_bytes = e->memory.file_bytes[0];
    stats->from_file_bytes = e->memory.file_bytes[1];
    stats->forward_stall_s = stall_s[0];
    stats->backward_stall_s = stall_s[1];
    return MEMO_STATUS_OK;
}

/* ---- >>states places ----------------------------------------------------------------------------
 * Knows: the struct of the engine, where states lie on each tier, and which states a pass uses.
 * Knows nothing of the order of a step.
 *
 * A resident state stays on the device.  A streamed state lies in pinned host memory; its bytes
 * come to the device before a visit of its layer uses them, and go back after one has changed them.
 *
 * Layers with streamed states use two places on the device in turn, so the states of one layer
 * travel while another layer computes.  One place begins at the bottom of an area and one at its
 * top; the area is as large as any two neighbors together.  A place has all states of a layer:
 * those of the optimizer are free all through the backward, so the first updates find theirs there.
 * What all layers share (an embedding) is a layer of its own kind.
 *
 * Third tier: a file.  Spilled states pass through two places on the host, one for each place on
 * the device.  So do FETCHED ones, which lie nowhere in memo's memory: a function of the caller
 * takes the place of the file.
 *
 * Shared states are of their lowest layer.  What only the update uses is that layer's alone, as if
 * it were not shared.  Others that are streamed have a stay in each layer's place, first of all,
 * and so an address by layer.  Neighbors that share a state have it in one place, as they are open
 * at once.
 *
 * Update on the host.  States that only the update uses never leave the host, and have no place on
 * the device.
 *
 * 1. A state is one of the table's.
 * 2. What a place holds of a layer lies in the area of places. */

/* Takes bytes [at, at + n_bytes) of a state. */
typedef memo_status (*memob_write_function)(void* user, int32_t layer, int32_t state, int64_t at,
                                            const void* bytes, int64_t n_bytes, memo_error* error);

/* What the trainer does.  A failure of `update` or `look` ends the visit. */
typedef struct memob_states_trainer {
    memo_status (*update)(void* user, int32_t layer); /* enqueues the update of a layer */
    /* NULL, or called behind each begin and before each end of a layer's pass or update, but for
     * the begin of a fused update on the device. */
    memo_status (*look)(void* user, int32_t pass, int32_t layer, int is_end);
    /* NULL: `update` is called.  Otherwise the engine calls this function for each layer on a
     * thread of the device, by launch_host on the file's stream.  All states that the update uses
     * are then streamed and not spilled; they are at memob_states_get_host_address.  The function
     * may run as late as the next forward of the layer, so what changes from step to step, such as
     * a step number, belongs in a state. */
    memo_status (*update_host)(void* user, int32_t layer, memo_error* error);
    memob_fetch_function fetch; /* gives FETCHED states, from threads of the device, too */
    void* user;                 /* the first argument of all */
} memob_states_trainer;

/* Start from all zero. */
typedef struct memob_states_desc {
    const memo_device* device; /* checked; may be NULL unless an engine is created */
    memo_stream compute_stream;
    int32_t computes_on_host; /* as in memo_swap_desc */
    const memo_state* states; /* copied; at most MEMO_STATES_MAX */
    int32_t n_states, n_layers;
    const int32_t* layer_kinds; /* (n_layers), copied: 0 to 31; NULL: all layers are of kind 0 */
    const uint32_t* streamed;   /* (n_layers), copied.  Bit s: state s is streamed; NULL: none */
    /* Likewise: those of them that lie in a file; NULL: none.  Bits of FETCHED ones do nothing. */
    const uint32_t* spilled;
    const char* spill_directory; /* of the file, as in memo_swap_desc, as the next */
    double spill_bytes_per_s;
    int32_t update_at; /* memo_update_at; 0: PASS.  On the host DEFERRED is PASS, too */
    /* (n_turns), copied: the turns of an order, c: forwards of chunk c, -1 - c: its backwards.  The
     * layers between the first and the last are n_chunks equal parts.  NULL: a micro-batch at a
     * time. */
    const int32_t* turns;
    int32_t n_turns, n_chunks;
    void *device_memory, *host_memory; /* as in memo_swap_desc */
    memob_states_trainer trainer;
} memob_states_desc;

typedef struct memob_states_sizes {
    int64_t bytes[MEMO_N_TIERS][MEMO_OWNER_PLACES + 1]; /* the next are sums of them */
    int64_t device_bytes;                               /* resident_bytes + the area of places */
    int64_t host_bytes;                                 /* pinned */
    int64_t resident_bytes, fetched_bytes; /* the second: of the first, of FETCHED states */
    int64_t spill_bytes;                   /* of the file */
    uint64_t digest; /* of the states of layers that are streamed, and of those in the file */
} memob_states_sizes;

typedef struct memob_states_layer {
    uint32_t has, streamed, spilled; /* bit s: state s.  spilled: also FETCHED ones that stream */
    /* SHARED ones: of a lower layer, which updates them; that a higher layer's backward begins. */
    uint32_t lent, begun, on_top; /* the last: those that are streamed, and lie in place 1 */
    int32_t place;                /* 0 or 1; -1: nothing is streamed */
    int32_t has_gradients;        /* a backward of this step has ended */
    int32_t open_pass;            /* 1 + memob_pass; 0: the layer is closed */
} memob_states_layer;

/* The update of a layer on the host. */
typedef struct memob_states_update {
    memo_host_call call;
    struct memob_states* states;
    int32_t layer;
} memob_states_update;

typedef struct memob_states {
    memob_sink sink; /* memory.spill_ops: (n_layers, n_states, 2); NULL: nothing has windows */
    int32_t update_at, n_layers, n_states; /* update_at: memo_update_at */
    int32_t* turns;                        /* of the desc */
    int32_t n_turns, n_chunks;
    memo_state states[MEMO_STATES_MAX];
    uint32_t gradients, updated;      /* which states they are */
    uint32_t made;                    /* the update writes all their bytes */
    uint32_t fetched;                 /* the caller's function gives them */
    uint32_t alone;                   /* a forward of no backward reads them, too */
    uint32_t shared;                  /* one copy for all layers */
    uint32_t used_by[MEMOB_N_PASSES]; /* (memob_pass): which states each pass uses, and gradients */
    uint32_t hosted;                  /* those that never leave the host */
    int32_t home[MEMO_STATES_MAX];    /* of SHARED ones: their lowest layer */
    int32_t shared_items[MEMO_STATES_MAX]; /* of SHARED ones that are streamed; -1: none */
    int64_t shared_at[MEMO_STATES_MAX];    /* where they lie in a place */
    memob_states_trainer trainer;
    memob_states_update* updates; /* (n_layers); NULL: not on the host */
    memob_states_layer* layers;   /* (n_layers) */
    memob_state_bytes* bytes;     /* (n_layers, n_states): the law's items */
    memob_states_sizes sizes;

    /* Items, l * n_states + s: state s of layer l. */
    memob_item* items;
    char* ends; /* 1: a gradient, whose value ends with the update */
    int32_t n_slots[MEMO_N_TIERS];
    int64_t* slot_at; /* of each slot of the device: its begin */
    memob_moves moves;
    memob_there there;
    memob_step* steps; /* of each number of slices and rounds: where a step is */

    /* The step that is under way. */
    memob_step* step;                  /* the latest; NULL: none yet */
    int32_t round;                     /* rounds of it so far */
    int32_t n_rounds, n_rounds_before; /* of the latest whole step, and of the one before */
    int32_t is_running;                /* visits are under way: of a round, or of updates alone */
    int32_t is_alone;                  /* the second */
    int32_t is_last, is_forward_only;  /* of the latest round */
    int32_t n_updates;                 /* begun in it, or in the latest updates alone */
    int32_t is_due;                    /* the update comes next */
    int32_t n_pending;                 /* layers whose update is deferred, and has not begun */
    int32_t is_filling;     /* the update fills states, and may leave bytes as they are */
    uint32_t* masks;        /* (n_layers): the states that this step uses */
    int32_t n_updating;     /* layers that it updates */
    int32_t passes_updates; /* deferred updates: none runs in this step */
    memob_snapshot snapshot;
    memob_write_function snapshot_write; /* with trainer.user */
    char* kept_bytes; /* room for a piece of the file, then resident states; NULL: no snapshot */
    int64_t* kept_at; /* (n_items): of resident states */
    int64_t n_unseen; /* updates since all streams were synchronized without an error */
} memob_states;

/* Are these the uses of a state? */
MEMOI int memoi_states_are_uses(uint32_t uses) {
    const uint32_t frozen = MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD;
    uses &= ~(uint32_t)MEMO_STATE_SHARED;
    if (uses & MEMO_STATE_ALONE) uses = (uses & ~(uint32_t)MEMO_STATE_ALONE) | MEMO_STATE_FORWARD;
    if (uses & MEMO_STATE_UPDATE)
        uses &= ~(uint32_t)MEMO_STATE_MADE;
    else if (uses & frozen)
        uses &= ~(uint32_t)MEMO_STATE_FETCHED;
    return uses > 0 && uses <= MEMO_STATE_GRADIENT;
}

/* The sizes and uses of states; all else of a desc is a session's.  With this limit no sum of bytes
 * overflows. */
MEMOI memo_status memoi_states_check_desc(const memob_states_desc* desc, memo_error* error) {
    for (int32_t i = 0; i < desc->n_states; i++) {
        const memo_state* state = &desc->states[i];
        if (!memob_is_within(state->size_bytes, 0, MEMOB_BYTES_MAX / desc->n_layers / 64))
            return MEMOB_INVALID(
                error,
                "memo_session_desc.states[%d].size_bytes: %lld bytes in each of %d "
                "layers; 0 to 2^56 in all are valid",
                (int)i, (long long)state->size_bytes, (int)desc->n_layers);
        if (!memoi_states_are_uses(state->uses))
            return MEMOB_INVALID(error,
                                 "memo_session_desc.states[%d].uses: %u; with or without _SHARED a "
                                 "sum of "
                                 "MEMO_STATE_FORWARD, _BACKWARD, _ALONE and _UPDATE, with _UPDATE "
                                 "also _MADE, without it also _FETCHED, or MEMO_STATE_GRADIENT "
                                 "and no other, is valid",
                                 (int)i, (unsigned)state->uses);
    }
    return MEMO_STATUS_OK;
}

/* Bytes that the update of a layer uses. */
MEMOI double memob_states_update_bytes(const memob_states* states, int32_t layer) {
    const memob_states_layer* l = &states->layers[layer];
    const uint32_t used = l->has & ~l->lent & (states->updated | states->gradients);
    double n_bytes = 0;
    for (int32_t s = 0; s < states->n_states; s++)
        if (used >> s & 1) n_bytes += (double)states->states[s].size_bytes;
    return n_bytes;
}

MEMOI memob_state_bytes* memoi_states_bytes(const memob_states* states, int32_t layer,
                                            int32_t state) {
    MEMO_ASSERT(layer >= 0 && layer < states->n_layers && state >= 0 && /* 1 */
                state < states->n_states);
    return &states->bytes[(int64_t)layer * states->n_states + state];
}

/* The layer whose bytes they are: of a SHARED state the lowest that has it. */
MEMOI int32_t memob_states_home(const memob_states* states, int32_t layer, int32_t state) {
    return states->layers[layer].lent >> state & 1 ? states->home[state] : layer;
}

MEMOI memo_owner memoi_states_owner(const memo_state* state) {
    if (state->uses & MEMO_STATE_GRADIENT) return MEMO_OWNER_GRADIENTS;
    return state->uses & (MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD | MEMO_STATE_ALONE)
               ? MEMO_OWNER_WEIGHTS
               : MEMO_OWNER_OPTIMIZER;
}

/* 1: states pass through windows on the host: spilled or FETCHED ones. */
MEMOI int memoi_states_have_windows(const memob_states* states) {
    return states->sizes.bytes[MEMO_TIER_HOST][MEMO_OWNER_PLACES] > 0;
}

/* The SHARED states of a layer that are streamed. */
MEMOI uint32_t memoi_states_travel(const memob_states* states, int32_t layer) {
    return states->layers[layer].streamed & states->shared;
}

/* Which of them lie in place 1. */
MEMOI uint32_t memoi_states_on_top(const memob_states* states, int32_t layer) {
    const uint32_t travel = memoi_states_travel(states, layer);
    const uint32_t stay = layer ? travel & memoi_states_travel(states, layer - 1) : 0;
    const uint32_t below = layer ? states->layers[layer - 1].on_top & stay : 0;
    return below | (states->layers[layer].place == 1 ? travel & ~stay : 0);
}

/* The bytes of a layer's place before its own states: for those that it shares, or the layer below
 * does. */
MEMOI int64_t memoi_states_shared_bytes(const memob_states* states, int32_t layer) {
    const memob_states_layer* of = &states->layers[layer];
    const uint32_t travel = memoi_states_travel(states, layer);
    const uint32_t below = layer ? memoi_states_travel(states, layer - 1) & ~travel : 0;
    const uint32_t on_top = of->on_top | (below ? below & of[-1].on_top : 0);
    uint32_t here = (travel | below) & (of->place == 1 ? on_top : ~on_top);
    int64_t end = 0;
    for (; here && of->place >= 0; here &= here - 1) {
        const int32_t s = __builtin_ctz(here);
        const int64_t size_bytes = states->states[s].size_bytes;
        end = memob_max(end,
                        states->shared_at[s] + memob_align_up(size_bytes, MEMOB_DEVICE_ALIGNMENT));
    }
    return end;
}

/* Which SHARED states are streamed: those that are in all layers that have them.  Where they lie in
 * a place. */
MEMOI void memoi_states_find_shared(memob_states* states) {
    int64_t at = 0;
    uint32_t stay = states->n_layers > 3 ? 0 : ~0u; /* FIRST, one layer and LAST are open at once */
    for (int32_t l = 0; l < states->n_layers; l++)
        stay |= states->layers[l].has & ~states->layers[l].streamed;
    for (int32_t l = 0; l < states->n_layers; l++)
        states->layers[l].streamed &= ~(states->shared & stay);
    for (int32_t s = 0; s < states->n_states; s++) {
        const int32_t home = states->shared >> s & 1 ? states->home[s] : -1;
        states->shared_items[s] = -1;
        if (home < 0 || !(states->layers[home].streamed >> s & 1)) continue;
        states->shared_items[s] = home * states->n_states + s;
        states->shared_at[s] = at;
        at += memob_align_up(states->states[s].size_bytes, MEMOB_DEVICE_ALIGNMENT);
    }
}

/* Offsets in places become offsets in memory.  begin, area: of the areas on the device and on the
 * host, and their bytes. */
MEMOI void memoi_states_settle(memob_states* states, const int64_t* begin, const int64_t* area) {
    for (int32_t l = 0; l < states->n_layers; l++) {
        const memob_states_layer* layer = &states->layers[l];
        const uint32_t travels = memoi_states_travel(states, l);
        for (int32_t s = 0; s < states->n_states; s++) {
            const int64_t size_bytes = states->states[s].size_bytes;
            int64_t* at = memoi_states_bytes(states, l, s)->at;
            for (int32_t k = 0; k < 2; k++) {
                const int64_t alignment = k ? MEMOB_SPILL_ALIGNMENT : MEMOB_DEVICE_ALIGNMENT;
                const int64_t bytes = memob_align_up(size_bytes, alignment);
                if (!((k ? layer->spilled : layer->streamed) >> s & 1)) continue;
                if (!k && travels >> s & 1 ? layer->on_top >> s & 1 : layer->place == 1)
                    at[k] = area[k] - at[k] - bytes;
                MEMO_ASSERT(states->hosted >> s & 1 || /* 2 */
                            memob_is_within(at[k], 0, area[k] - bytes));
                at[k] += begin[k];
            }
        }
    }
}

/* Gives each state its offsets, and each layer its place, in an area behind the resident states:
 * place 0 begins at the bottom, place 1 at the top, so that a large layer reaches into the bytes of
 * layers that are not its neighbors. */
MEMOI void memoi_states_lay_out(memob_states* states) {
    int64_t stays[MEMO_N_TIERS] = {0}; /* of each tier, as the next */
    int64_t before[2] = {0, 0}, area[2] = {0, 0};
    memob_states_sizes* sizes = &states->sizes;
    int32_t n_streamed = 0;
    for (int32_t l = 0; l < states->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        const uint32_t travels = memoi_states_travel(states, l);
        int64_t in_place[2] = {0, 0};
        layer->place = layer->streamed & ~states->hosted ? n_streamed++ & 1 : -1;
        layer->on_top = memoi_states_on_top(states, l);
        in_place[0] = memoi_states_shared_bytes(states, l);
        for (int32_t s = 0; s < states->n_states; s++) {
            const memo_state* state = &states->states[s];
            const int64_t bytes[2] = {memob_align_up(state->size_bytes, MEMOB_DEVICE_ALIGNMENT),
                                      memob_align_up(state->size_bytes, MEMOB_SPILL_ALIGNMENT)};
            const int is_spilled = (int)(layer->spilled >> s & 1);
            const int32_t tier = (int)(layer->streamed >> s & 1) + is_spilled; /* where it stays */
            const int64_t stays_bytes =
                layer->spilled & states->fetched & 1u << s ? 0 : bytes[is_spilled];
            memob_state_bytes* of = memoi_states_bytes(states, l, s);
            of->at[MEMO_TIER_FILE] = is_spilled && stays_bytes ? stays[2] : -1;
            if (travels >> s & 1) of->at[0] = states->shared_at[s];
            if (!(layer->has & ~layer->lent & 1u << s)) continue;
            of->n_bytes = state->size_bytes;
            sizes->bytes[tier][memoi_states_owner(state)] += stays_bytes;
            for (int32_t k = travels >> s & 1; k < 2; k++)
                of->at[k] = k < tier ? in_place[k] : stays[k];
            stays[tier] += stays_bytes;
            sizes->fetched_bytes += stays_bytes * (int64_t)(states->fetched >> s & 1) * !tier;
            if (tier && !((states->hosted | travels) >> s & 1)) in_place[0] += bytes[0];
            if (is_spilled) in_place[1] += bytes[1];
        }
        for (int32_t k = 0; k < 2 && layer->place >= 0; k++) {
            area[k] = memob_max(area[k], before[k] + in_place[k]);
            before[k] = in_place[k];
        }
    }

    for (int32_t k = 0; k < 2; k++) {
        const int64_t begin = stays[k];
        if (k && area[1]) stays[1] = memob_align_up(stays[1], MEMOB_SPILL_ALIGNMENT);
        sizes->bytes[k][MEMO_OWNER_PLACES] = stays[k] - begin + area[k];
    }
    memoi_states_settle(states, stays, area);
    sizes->resident_bytes = stays[0];
    sizes->device_bytes = stays[0] + area[0];
    sizes->host_bytes = stays[1] + area[1];
    sizes->spill_bytes = stays[2];
}

/* SHARED states lie where their lowest layer has them, but for those on the device that travel. */
MEMOI void memoi_states_lend(memob_states* states) {
    for (int32_t k = 0; k < states->n_layers * states->n_states; k++) {
        const int32_t l = k / states->n_states, s = k % states->n_states;
        const int64_t device_at = states->bytes[k].at[0];
        if (!(states->layers[l].has & states->layers[l].lent & 1u << s)) continue;
        states->bytes[k] = *memoi_states_bytes(states, states->home[s], s);
        if (states->shared_items[s] >= 0) states->bytes[k].at[0] = device_at;
    }
}

MEMOI memo_status memoi_states_run_update(void* update, memo_error* error) {
    const memob_states_update* u = (const memob_states_update*)update;
    return u->states->trainer.update_host(u->states->trainer.user, u->layer, error);
}

/* Prepares updates on the host.  What they use must lie there. */
MEMOI memo_status memoi_states_take_updates(memob_states* states, const memob_states_desc* desc,
                                            memo_error* error) {
    for (int32_t s = 0; s < desc->n_states; s++)
        if ((desc->states[s].uses & ~(uint32_t)MEMO_STATE_MADE) == MEMO_STATE_UPDATE)
            states->hosted |= 1u << s;

    for (int32_t l = 0; l < desc->n_layers; l++) {
        const memob_states_layer* layer = &states->layers[l];
        const uint32_t used = layer->has & (states->updated | states->gradients);
        const memob_states_update update = {
            {memoi_states_run_update, &states->updates[l], NULL}, states, l};
        if (used & (~layer->streamed | layer->spilled))
            return MEMOB_INVALID(
                error,
                "memo_session_desc.update_host: layer %d has states for the update "
                "that are not streamed, or that are spilled; stream all of them, "
                "and spill none",
                (int)l);
        states->updates[l] = update;
    }
    return MEMO_STATUS_OK;
}

/* A SHARED state, which some layers have. */
MEMOI void memoi_states_share(memob_states* states, int32_t s) {
    const uint32_t bit = 1u << s;
    int32_t home = -1, top = -1;
    for (int32_t l = 0; l < states->n_layers; l++) {
        if (!(states->layers[l].has & bit)) continue;
        if (home < 0) home = l;
        top = l;
    }
    states->home[s] = home;
    states->shared |=
        bit & (states->used_by[MEMOB_FORWARD] | states->used_by[MEMOB_BACKWARD] | states->alone);
    for (int32_t l = home + 1; home >= 0 && l < states->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        layer->lent |= layer->has & bit;
        if (!(states->shared & bit)) layer->has &= ~bit;
    }
    for (int32_t l = 0; l < top; l++)
        states->layers[l].begun |= states->shared & states->layers[l].has & bit;
}

/* Which layer has which state, and where. */
MEMOI void memoi_states_take_table(memob_states* states, const memob_states_desc* desc) {
    static const uint32_t of_pass[] = {MEMO_STATE_FORWARD,
                                       MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT,
                                       MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT};
    MEMOB_TABLE_OF(MEMOB_N_PASSES, of_pass);
    for (int32_t s = 0; s < desc->n_states; s++) {
        const memo_state* state = &desc->states[s];
        states->states[s] = *state;
        for (int32_t pass = 0; pass < MEMOB_N_PASSES; pass++)
            if (state->uses & of_pass[pass]) states->used_by[pass] |= 1u << s;
        if (state->uses & MEMO_STATE_GRADIENT) states->gradients |= 1u << s;
        if (state->uses & MEMO_STATE_UPDATE) states->updated |= 1u << s;
        if (state->uses & MEMO_STATE_MADE) states->made |= 1u << s;
        if (state->uses & MEMO_STATE_FETCHED) states->fetched |= 1u << s;
        if (state->uses & MEMO_STATE_ALONE) states->alone |= 1u << s;
        for (int32_t l = 0; l < desc->n_layers && state->size_bytes; l++)
            if (!state->kinds || state->kinds >> (desc->layer_kinds ? desc->layer_kinds[l] : 0) & 1)
                states->layers[l].has |= 1u << s;
        if (state->uses & MEMO_STATE_SHARED) memoi_states_share(states, s);
    }

    for (int32_t l = 0; l < desc->n_layers && desc->streamed; l++) {
        memob_states_layer* layer = &states->layers[l];
        layer->streamed = desc->streamed[l] & layer->has;
    }
    memoi_states_find_shared(states);
    for (int32_t l = 0; l < desc->n_layers; l++) {
        memob_states_layer* layer = &states->layers[l];
        layer->spilled = layer->streamed & ~layer->lent &
                         (states->fetched | (desc->spilled ? desc->spilled[l] : 0));
    }
}

/* Fills in all that needs no device; *states is zero. */
MEMOI memo_status memob_states_init(memob_states* states, const memob_states_desc* desc,
                                    memo_error* error) {
    const int on_host = desc->trainer.update_host != NULL;
    memob_engine* e = &states->sink.engine;
    memo_status status = memoi_states_check_desc(desc, error);
    if (status) return status;
    states->n_layers = desc->n_layers;
    states->n_states = desc->n_states;
    states->update_at = (int32_t)memob_max(desc->update_at, MEMO_UPDATE_PASS);
    states->trainer = desc->trainer;
    if (on_host && desc->update_at == MEMO_UPDATE_DEFERRED) states->update_at = MEMO_UPDATE_PASS;
    states->n_turns = desc->turns ? desc->n_turns : 0;
    states->n_chunks = (int32_t)memob_max(desc->n_chunks, 1);
    states->turns = MEMOB_ARRAY(&e->arrays, int32_t, states->n_turns);
    states->layers = MEMOB_ARRAY(&e->arrays, memob_states_layer, desc->n_layers);
    states->masks = MEMOB_ARRAY(&e->arrays, uint32_t, desc->n_layers);
    states->bytes =
        MEMOB_ARRAY(&e->arrays, memob_state_bytes, (int64_t)desc->n_layers * desc->n_states);
    if (on_host) states->updates = MEMOB_ARRAY(&e->arrays, memob_states_update, desc->n_layers);
    if (e->arrays.failed) return memob_no_memory(error, "the places of states");
    for (int32_t k = 0; k < states->n_turns; k++) states->turns[k] = desc->turns[k];
    for (int32_t l = 0; l < desc->n_layers; l++) states->masks[l] = ~0u;
    states->n_updating = desc->n_layers;

    memoi_states_take_table(states, desc);
    if (on_host) {
        status = memoi_states_take_updates(states, desc, error);
        if (status) return status;
    }
    memoi_states_lay_out(states);
    memoi_states_lend(states);
    if (memoi_states_have_windows(states)) {
        e->memory.spill_ops =
            MEMOB_ARRAY(&e->arrays, memob_spill_op, (int64_t)desc->n_layers * desc->n_states * 2);
        if (!e->memory.spill_ops) return memob_no_memory(error, "the reads and writes of states");
    }
    return MEMO_STATUS_OK;
}

/* Waits for the snapshot, and frees what it has kept.  Errors: of `write`. */
MEMOI memo_status memob_states_finish_snapshot(memob_states* states, memo_error* error) {
    const memo_status status = memoi_snapshot_finish(&states->snapshot, error);
    MEMO_FREE(states->kept_bytes);
    states->kept_bytes = NULL;
    return status;
}

MEMOI void memob_states_free(memob_states* states) {
    for (memob_step* step = states->steps; step; step = states->steps) {
        states->steps = step->next;
        memob_step_free(step);
        MEMO_FREE(step);
    }
    MEMOB_IGNORE(memob_states_finish_snapshot(states, NULL));
    memoi_snapshot_free(&states->snapshot);
    memob_sink_free(&states->sink);
}

/* Errors: INVALID_ARGUMENT, also for sums above 2^62. */
MEMOI memo_status memob_states_get_sizes(const memob_states_desc* desc, memob_states_sizes* sizes,
                                         memo_error* error) {
    memob_states states = MEMO_ZERO(memob_states);
    const memo_status status = memob_states_init(&states, desc, error);
    for (int32_t l = 0; l < states.n_layers && !status; l++) {
        const uint32_t bits[2] = {states.layers[l].streamed, states.layers[l].spilled};
        const uint64_t digest = memob_digest((const char*)bits, (int64_t)sizeof bits);
        states.sizes.digest = 31 * states.sizes.digest + digest;
    }
    if (!status) *sizes = states.sizes;
    memob_states_free(&states);
    return status;
}

/* Addresses between begin and end of the layer, and in pinned host memory for update_host; they
 * never change.  NULL: the layer lacks the state, or has it elsewhere. */
MEMOI void* memob_states_get_address(const memob_states* states, int32_t layer, int32_t state) {
    const int64_t offset = memoi_states_bytes(states, layer, state)->at[0];
    const uint32_t has = states->layers[layer].has & ~states->hosted;
    return has >> state & 1 ? memob_at(states->sink.engine.memory.device, offset) : NULL;
}
MEMOI void* memob_states_get_host_address(const memob_states* states, int32_t layer,
                                          int32_t state) {
    const memob_states_layer* l = &states->layers[memob_states_home(states, layer, state)];
    const int64_t offset = memoi_states_bytes(states, layer, state)->at[1];
    return l->streamed & ~l->spilled & 1u << state ? states->sink.engine.memory.host + offset
                                                   : NULL;
}

/* ---- >>states items -----------------------------------------------------------------------------
 * Knows: which states a visit uses, and which bytes these states share.  Knows nothing of the order
 * of visits, and of streams.
 *
 * FIRST is also used beside layer 1, and LAST, which computes its forward in the visit of its
 * backward, beside the backward of the layer before it.  Item l * n_states + s is state s of layer
 * l.
 *
 * 1. No two layers that one visit uses have the same place; what they share has one address. */

/* The states of a layer that a pass uses on the device, wherever they lie.  is_alone: of a forward
 * of no backward. */
MEMOI uint32_t memoi_states_used(const memob_states* states, int32_t pass, int32_t layer,
                                 int is_alone) {
    uint32_t used = states->used_by[pass];
    if (is_alone && pass == MEMOB_FORWARD) used |= states->alone;
    if (pass == MEMOB_BACKWARD && layer == states->n_layers - 1) /* with its forward */
        used |= states->used_by[MEMOB_FORWARD];
    if (pass == MEMOB_UPDATE) used &= ~states->layers[layer].lent;
    if (pass == MEMOB_UPDATE && states->updates) return 0;
    return used & states->layers[layer].has;
}

/* The same of a visit that is open, in this step. */
MEMOI uint32_t memob_states_used(const memob_states* states, int32_t pass, int32_t layer) {
    const int is_alone = states->is_running && states->is_forward_only;
    return memoi_states_used(states, pass, layer, is_alone) & states->masks[layer];
}

/* 1: this step updates the layer: it uses a gradient of it, or the layer never has one. */
MEMOI int memoi_states_is_updated(const memob_states* states, int32_t layer) {
    const uint32_t gradients = states->layers[layer].has & states->gradients;
    return !gradients || gradients & states->masks[layer];
}

/* The bytes of items on the device (tier 0) or the host (1) as slots, each of which is of the same
 * items.  Sets begin and end of each item, and on the device those of SHARED states in each layer;
 * begins: NULL, or where each slot begins.  borders: (n_items, 2), scratch.  Returns how many slots
 * there are. */
MEMOI int32_t memoi_states_find_slots(const memob_states* states, int32_t tier,
                                      memob_keyed* borders, int32_t* slots, int64_t* begins) {
    const int32_t n_items = states->n_layers * states->n_states;
    int64_t n = 0;
    int32_t slot = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const memob_state_bytes* of = &states->bytes[i];
        const memob_states_layer* layer = &states->layers[i / states->n_states];
        const uint32_t moves = layer->streamed & ~(states->hosted | (tier ? layer->lent : 0));
        if (!(moves >> i % states->n_states & 1)) continue; /* it has no slots */
        borders[n++] = memob_keyed_of(of->at[tier], 2 * (int64_t)i);
        borders[n++] = memob_keyed_of(of->at[tier] + of->n_bytes, 2 * (int64_t)i + 1);
    }

    /* Equal addresses are one border. */
    memob_keyed_sort(borders, n);
    for (int64_t k = 0; k < n; k++) {
        MEMO_ASSERT(!k || borders[k - 1].key <= borders[k].key);
        slot += k && borders[k - 1].key < borders[k].key;
        slots[borders[k].index] = slot;
        if (begins) begins[slot] = borders[k].key;
    }
    return n ? slot + 1 : 0;
}

/* What copies of items move: each is one piece.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_find_moves(memob_states* states, memo_error* error) {
    const int32_t n_items = states->n_layers * states->n_states;
    memob_arrays* arrays = &states->sink.engine.arrays;
    memob_move* pieces = MEMOB_ARRAY(arrays, memob_move, n_items);
    int32_t* first_piece = MEMOB_ARRAY(arrays, int32_t, n_items + 1);
    int64_t* n_bytes = MEMOB_ARRAY(arrays, int64_t, n_items);
    int64_t* file_bytes = MEMOB_ARRAY(arrays, int64_t, n_items);
    int64_t* file_at = MEMOB_ARRAY(arrays, int64_t, n_items);
    const memob_states_sizes* sizes = &states->sizes;
    const memob_moves moves = {n_bytes,
                               file_bytes,
                               NULL,
                               &states->sink.engine.memory,
                               {sizes->device_bytes, sizes->host_bytes, sizes->spill_bytes},
                               pieces,
                               first_piece,
                               states->slot_at,
                               NULL,
                               file_at,
                               0,
                               states->there.leaves,
                               &states->snapshot};
    if (arrays->failed) return memob_no_memory(error, "the bytes of states");

    states->moves = moves;
    for (int32_t i = 0; i < n_items; i++) {
        const memob_state_bytes* of = &states->bytes[i];
        const memob_move piece = {0, of->at[1], of->n_bytes, 0, 0};
        pieces[i] = piece;
        first_piece[i + 1] = i + 1;
        n_bytes[i] = of->n_bytes;
        file_bytes[i] = memob_align_up(of->n_bytes, MEMOB_SPILL_ALIGNMENT);
        file_at[i] = of->at[2];
    }
    return MEMO_STATUS_OK;
}

/* Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_states_make_items(memob_states* states, memo_error* error) {
    const int32_t n_items = states->n_layers * states->n_states;
    memob_arrays* arrays = &states->sink.engine.arrays;
    memob_keyed* borders = MEMOB_ARRAY(arrays, memob_keyed, 2 * (int64_t)n_items);
    int32_t* on_device = MEMOB_ARRAY(arrays, int32_t, 2 * (int64_t)n_items);
    int32_t* on_host = MEMOB_ARRAY(arrays, int32_t, 2 * (int64_t)n_items);
    states->items = MEMOB_ARRAY(arrays, memob_item, n_items);
    states->ends = MEMOB_ARRAY(arrays, char, n_items);
    states->slot_at = MEMOB_ARRAY(arrays, int64_t, 2 * (int64_t)n_items + 1);
    if (arrays->failed) return memob_no_memory(error, "the items of states");
    states->n_slots[0] = memoi_states_find_slots(states, 0, borders, on_device, states->slot_at);
    states->n_slots[1] = memoi_states_find_slots(states, 1, borders, on_host, NULL);
    for (int32_t i = 0; i < n_items; i++) {
        const memob_states_layer* layer = &states->layers[i / states->n_states];
        const uint32_t bit = 1u << i % states->n_states;
        const int is_spilled = (layer->spilled & bit) != 0;
        const memob_spot spot = {on_device[2 * i], on_device[2 * i + 1] - on_device[2 * i]};
        const memob_item item = {layer->lent & bit ? 0 : spot.n_slots,
                                 on_host[2 * i + 1] - on_host[2 * i],
                                 1,
                                 -1,
                                 on_host[2 * i],
                                 is_spilled ? states->n_slots[2] : -1};
        MEMO_ASSERT(item.n_slots >= 0 && item.n_host >= 0);
        states->items[i] = item;
        states->bytes[i].spot = spot;
        states->ends[i] = (char)(states->gradients >> i % states->n_states & 1);
        if (is_spilled) states->n_slots[2] += item.n_host;
    }

    /* What lies on the device: nothing so far. */
    states->there.lies = MEMOB_ARRAY(arrays, uint8_t, n_items);
    states->there.in_slot = MEMOB_ARRAY(arrays, int32_t, states->n_slots[0]);
    states->there.spots = MEMOB_ARRAY(arrays, memob_spot, states->n_states);
    states->there.pending = MEMOB_ARRAY(arrays, char, states->n_layers);
    states->there.leaves = MEMOB_ARRAY(arrays, uint8_t, n_items);
    if (arrays->failed) return memob_no_memory(error, "the items of states");
    return memoi_states_find_moves(states, error);
}

/* --- uses of a list's visits --- */

/* Appends how a visit uses the states of a layer, behind its uses from `first` on.  Layers that are
 * open at once use a SHARED state at one address, so it is one use, of the visit's own layer. */
MEMOI void memoi_states_use(const memob_states* states, const memob_list* list, int32_t k,
                            int32_t layer, int begins, int32_t first, memob_use* uses,
                            int32_t* n_uses) {
    const memob_visit* visit = &list->visits[k];
    const int32_t pass = visit->pass;
    const int is_alone = k >= list->begin[MEMOB_EVALUATION] && k < list->end[MEMOB_EVALUATION];
    uint32_t used =
        visit->on_host ? states->used_by[pass] : memoi_states_used(states, pass, layer, is_alone);
    used &= states->layers[layer].streamed & ~states->hosted;
    for (; used; used &= used - 1) {
        const int32_t s = __builtin_ctz(used);
        const memob_spot spot = memoi_states_bytes(states, layer, s)->spot;
        const int32_t item = memob_states_home(states, layer, s) * states->n_states + s;
        const int is_gradient = (int)(states->gradients >> s & 1);
        const int is_new = begins && !(states->layers[layer].begun >> s & 1);
        memob_use use = {
            k, item, MEMOB_USE_READ, visit->on_host, spot.at, MEMOB_HOST_DEFAULT, spot.n_slots};
        int32_t same = states->shared_items[s] == item ? first : *n_uses;

        while (same < *n_uses && uses[same].item != item) same++;
        if (same < *n_uses) {
            MEMO_ASSERT(uses[same].at == use.at); /* 1 */
            continue;
        }
        if (is_gradient && pass == MEMOB_BACKWARD)
            use.how = is_new ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE;
        else if (pass == MEMOB_UPDATE && states->made >> s & 1)
            use.how = MEMOB_USE_REWRITE;
        else if (pass == MEMOB_UPDATE && states->updated >> s & 1)
            use.how = MEMOB_USE_CHANGE;
        uses[(*n_uses)++] = use;
    }
}

/* The layers whose states a visit uses: its own; beside layer 1 FIRST, and beside the backward of
 * the layer before it LAST.  Returns how many. */
MEMOI int32_t memob_states_beside(const memob_visit* visit, int32_t n_layers, int32_t layers[3]) {
    int32_t n = 0;
    layers[n++] = visit->layer;
    if (visit->layer == 1 && visit->pass != MEMOB_UPDATE) layers[n++] = 0;
    if (visit->layer == n_layers - 2 && visit->pass == MEMOB_BACKWARD) layers[n++] = n_layers - 1;
    return n;
}

/* How all visits of a list use states.  The first and the last slice of a layer stand for all.
 * uses: room for 2 n_states of each visit. */
MEMOI void memoi_states_list_uses(const memob_states* states, const memob_list* list,
                                  memob_use* uses, int32_t* n_uses) {
    *n_uses = 0;
    for (int32_t k = 0; k < list->n_visits; k++) {
        const memob_visit* visit = &list->visits[k];
        int32_t layers[3];
        const int32_t n = memob_states_beside(visit, states->n_layers, layers), first = *n_uses;
        if (visit->row >= 0 && visit->slice && visit->slice < list->desc.n_slices - 1) continue;
        for (int32_t i = 0; i < n; i++) /* LAST has begun in a visit of its own */
            memoi_states_use(states, list, k, layers[i], visit->begins && layers[i] <= visit->layer,
                             first, uses, n_uses);
    }
}

/* Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_make_step(memob_states* states, int32_t n_slices, int32_t n_rounds,
                                         memob_step* step, memo_error* error) {
    const memob_list_desc list_desc = {states->n_turns ? states->turns : NULL,
                                       states->n_turns,
                                       states->n_chunks,
                                       states->n_layers - 2,
                                       n_slices,
                                       n_rounds,
                                       states->update_at,
                                       states->updates != NULL,
                                       1};
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_step_desc desc;
    memob_list list;
    memo_status status = memoi_list_make(&list_desc, &list, error);
    memob_use* uses =
        MEMOB_ARRAY(&arrays, memob_use, 2 * (int64_t)states->n_states * list.n_visits);
    memset(&desc, 0, sizeof desc);
    if (!status && !uses) status = memob_no_memory(error, "the uses of states");

    if (!status) {
        memoi_states_list_uses(states, &list, uses, &desc.n_uses);
        desc.list = &list;
        desc.items = states->items;
        desc.bytes = states->bytes;
        desc.ends = states->ends;
        if (states->shared) desc.shared = states->shared_items;
        desc.moves = states->moves;
        desc.n_items = states->n_layers * states->n_states;
        desc.n_of_layer = states->n_states;
        memcpy(desc.n_slots, states->n_slots, sizeof desc.n_slots);
        desc.uses = uses;
        desc.sink = &states->sink;
        desc.there = &states->there;
        status = memoi_step_make(&desc, step, error);
    }
    memoi_list_free(&list);
    memob_arrays_free(&arrays);
    return status;
}

/* The step of micro-batches with n_slices of a layer, n_rounds of them between two updates.  It is
 * made when it is asked for first.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_states_get_step(memob_states* states, int32_t n_slices, int32_t n_rounds,
                                        memob_step** result, memo_error* error) {
    memob_step* step = states->steps;
    memo_status status;
    for (; step; step = step->next)
        if (step->list.desc.n_slices == n_slices && step->list.desc.n_rounds == n_rounds) break;
    *result = step;
    if (step) return MEMO_STATUS_OK;
    step = (memob_step*)memob_calloc(1, sizeof *step);
    if (!step) return memob_no_memory(error, "the step of states");
    status = memoi_states_make_step(states, n_slices, n_rounds, step, error);
    if (status) {
        memob_step_free(step);
        MEMO_FREE(step);
        return status;
    }
    step->next = states->steps;
    states->steps = *result = step;
    return MEMO_STATUS_OK;
}

/* ---- >>states -----------------------------------------------------------------------------------
 * Knows: which visits of a step a call of the trainer brings, how updates run, and how the caller
 * reads and writes states.  Knows nothing of why bytes travel, of what rows are, and of what the
 * trainer computes.
 *
 * Sessions, the planner's clock and memo_swap_generate go through the cursor of a step with these
 * functions.
 *
 *   FIRST   is used from the begin of a turn on.  Its backward begins behind that of layer 1, and
 *           ends with the turn.
 *   LAST    begins behind the forward of the last layer, or with a turn of backwards.
 *   updates  run where the cursor shows them: deferred ones before a layer's visit, fused ones
 *           behind it.  If none waits, the cursor passes them.
 *
 * 1. Visits come in the order of the cursor's list.
 * 2. Gradients that begin are those of no step. */

/* --- creation --- */

MEMOI void memob_states_destroy(memob_states* states) {
    if (!states) return;
    memob_states_free(states);
    MEMO_FREE(states);
}

/* A use of n_bytes of a state from offset_bytes on in the file, or by the caller's function. */
MEMOI void memoi_states_make_op(memob_states* states, int32_t layer, int32_t state, int is_write,
                                int64_t offset_bytes, int64_t n_bytes, memob_spill_op* op) {
    memob_memory* memory = &states->sink.engine.memory;
    const int64_t* at = memoi_states_bytes(states, layer, state)->at;
    const memob_fetch fetch = {states->trainer.fetch, states->trainer.user, layer, state,
                               states->states[state].size_bytes};
    memob_spill_op_init(op, &memory->file, is_write, memory->host + at[1] + offset_bytes,
                        memob_max(at[2], 0) + offset_bytes,
                        memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT));
    if (states->fetched >> state & 1) op->fetch = fetch;
}

/* FETCHED states that are streamed: their reads. */
MEMOI void memoi_states_make_fetches(memob_states* states) {
    memob_spill_op* ops = states->sink.engine.memory.spill_ops;
    for (int32_t k = 0; k < states->n_layers * states->n_states && states->fetched; k++) {
        const int32_t layer = k / states->n_states, s = k % states->n_states;
        if (states->layers[layer].spilled & states->fetched & 1u << s)
            memoi_states_make_op(states, layer, s, 0, 0, states->states[s].size_bytes,
                                 &ops[2 * (int64_t)k + 1]);
    }
}

/* FETCHED states that stay on the device, by the calling thread, through memory of its own. */
MEMOI memo_status memob_states_fetch(memob_states* states, memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    const int64_t most_bytes = (int64_t)1 << 22; /* a multiple of MEMOB_SPILL_ALIGNMENT */
    char* bytes = states->fetched ? (char*)MEMO_MALLOC((size_t)most_bytes) : NULL;
    memo_status status = MEMO_STATUS_OK;
    if (states->fetched && !bytes) return memob_no_memory(error, "bytes of FETCHED states");
    for (int32_t k = 0; k < states->n_layers * states->n_states && states->fetched; k++) {
        const int32_t layer = k / states->n_states, s = k % states->n_states;
        const memob_states_layer* l = &states->layers[layer];
        const int stays = (int)((l->has & ~(l->streamed | l->lent) & states->fetched) >> s & 1);
        const int64_t size_bytes = stays ? states->states[s].size_bytes : 0;
        for (int64_t at = 0; at < size_bytes && !status; at += most_bytes) {
            const int64_t n_bytes = memob_min(size_bytes - at, most_bytes);
            status =
                states->trainer.fetch(states->trainer.user, layer, s, at, bytes, n_bytes, error);
            if (!status)
                status = memob_copy_now(&e->device, e->streams[MEMOB_STREAM_TO_DEVICE],
                                        e->memory.device + states->bytes[k].at[0] + at, bytes,
                                        n_bytes, 1, error);
        }
    }
    MEMO_FREE(bytes);
    return status;
}

/* Takes memory, file, streams and events; memob_states_destroy frees any part of them. */
MEMOI memo_status memoi_states_acquire(memob_states* states, const memob_states_desc* desc,
                                       int is_dry, memo_error* error) {
    static const char name[] = "memo_session_desc";
    const memob_states_sizes* sizes = &states->sizes;
    const int has_file = sizes->spill_bytes > 0, has_windows = memoi_states_have_windows(states);
    const int launches = has_windows || states->updates;
    const char* const launched[] = {"update_host", "MEMO_STATE_FETCHED", "the spill file"};
    memob_engine* e = &states->sink.engine;
    memo_stream filling;
    memo_status status = MEMO_STATUS_OK;
    if (has_file && !desc->spill_directory && !is_dry)
        return MEMOB_INVALID(error,
                             "memo_session_desc.spill_directory: NULL, but spilled has bits");
    status = memob_states_make_items(states, error);
    if (launches && !status)
        status = memob_engine_check_launch(e, name, launched[has_windows + has_file], error);
    if (!status)
        status = memob_engine_acquire(e, name, sizes->device_bytes, sizes->host_bytes, error);
    if (!status) status = memoi_sink_take_streams(&states->sink, launches ? 3 : 2, error);
    if (status) return status;
    memoi_states_make_fetches(states);

    /* All states but FETCHED ones are zero at first, as a new file is. */
    if (is_dry) return status;
    if (sizes->host_bytes) memob_bulk_copy(e->memory.host, NULL, sizes->host_bytes);
    if (has_file)
        status = memob_spill_create(
            &e->memory.file, desc->spill_directory, sizes->spill_bytes, desc->spill_bytes_per_s,
            e->memory.host + sizes->host_bytes - MEMOB_SPILL_ALIGNMENT, error);
    filling = e->streams[MEMOB_STREAM_TO_DEVICE];
    if (!status && sizes->resident_bytes)
        status = memo_fill(&e->device, filling, e->memory.device, 0, sizes->resident_bytes, error);
    if (!status) status = memo_stream_synchronize(&e->device, filling, error);
    return status ? status : memob_states_fetch(states, error);
}

/* All states but FETCHED ones are zero bytes at first.  is_dry: as for memob_swap_create.  Errors:
 * INVALID_ARGUMENT,
 * OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, UNSUPPORTED (update_host, but no launch_host), the
 * device's; of a file as memo_swap_create. */
MEMOI memo_status memob_states_create(const memob_states_desc* desc, int is_dry,
                                      memob_states** result, memo_error* error) {
    memob_states* states = (memob_states*)memob_calloc(1, sizeof *states);
    memo_status status;
    *result = NULL;
    if (!states) return memob_no_memory(error, "an engine of states");
    memob_engine_begin(&states->sink.engine, desc->device, desc->compute_stream,
                       desc->computes_on_host, desc->device_memory, desc->host_memory);
    status = memob_states_init(states, desc, error);
    if (!status) status = memoi_states_acquire(states, desc, is_dry, error);
    if (status) {
        memob_states_destroy(states);
        return status;
    }
    *result = states;
    return MEMO_STATUS_OK;
}

/* --- visits --- */

/* The visit that comes next, or is open. */
MEMOI int memoi_states_shows(const memob_states* states, int32_t pass) {
    const memob_visit* visit = memoi_step_visit(states->step);
    return visit && visit->pass == pass;
}

/* Announces the update of a layer on the host, which reads gradients and changes all other
 * states. */
MEMOI void memoi_states_annotate(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    const uint32_t used = states->layers[layer].has & (states->updated | states->gradients);
    memo_range reads[MEMO_STATES_MAX], writes[MEMO_STATES_MAX];
    memo_op_desc what = MEMO_ZERO(memo_op_desc);
    for (int32_t s = 0; s < states->n_states; s++) {
        if (!(used >> s & 1)) continue;
        reads[what.n_reads] = memob_range_at(memob_states_get_host_address(states, layer, s),
                                             states->states[s].size_bytes);
        if (states->updated >> s & 1) writes[what.n_writes++] = reads[what.n_reads];
        what.n_reads++;
    }
    what.name = "update on host";
    what.link_bytes = (int64_t)memob_states_update_bytes(states, layer);
    what.reads = reads;
    what.writes = writes;
    e->status = memo_annotate(&e->device, e->streams[MEMOB_STREAM_FILE], &what, e->error);
}

/* Gradients of a new step begin at zero. */
MEMOI void memoi_states_clear(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    uint32_t fresh = states->sink.clock ? 0 : states->gradients & states->masks[layer];
    fresh &= ~states->layers[layer].begun;
    MEMO_ASSERT(!states->layers[layer].has_gradients); /* 2 */
    for (; fresh && !e->status; fresh &= fresh - 1) {
        const int32_t s = __builtin_ctz(fresh);
        void* address = memob_states_get_address(states, layer, s);
        if (!address) continue;
        if (e->computes_on_host)
            memset(address, 0, (size_t)states->states[s].size_bytes);
        else
            e->status = memo_fill(&e->device, e->streams[MEMOB_STREAM_COMPUTE], address, 0,
                                  states->states[s].size_bytes, e->error);
    }
}

/* The visit that comes next begins. */
MEMOI memo_status memoi_states_go(memob_states* states, int32_t pass, int32_t layer,
                                  memo_error* error) {
    memob_step* step = states->step;
    const memob_visit* visit = memoi_step_visit(step);
    memo_status status;
    MEMO_ASSERT(visit && visit->pass == pass && visit->layer == layer); /* 1 */
    (void)layer;
    status = memob_step_begin(step, error);
    if (status || !visit->begins) return status;
    memoi_states_clear(states, visit->layer);
    if (visit->layer == 1) memoi_states_clear(states, 0);
    return memoi_step_finish(step);
}

/* A layer has begun a pass, or is about to end it. */
MEMOI memo_status memoi_states_look(memob_states* states, int32_t pass, int32_t layer, int is_end) {
    const memob_states_trainer* t = &states->trainer;
    memo_status status = MEMO_STATUS_OK;
    states->layers[layer].open_pass = 1 + pass;
    if (t->look) status = t->look(t->user, pass, layer, is_end);
    if (is_end) states->layers[layer].open_pass = 0;
    return status;
}

/* The stream of the file runs the update of an open visit, when the device has stored what it
 * uses. */
MEMOI memo_status memoi_states_launch_update(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    memob_clock* clock = states->sink.clock;
    if (clock) {
        memob_clock_add(clock, MEMOB_STREAM_FILE,
                        clock->rates->update_host_s_per_byte *
                            memob_states_update_bytes(states, layer));
        return MEMO_STATUS_OK;
    }
    for (int32_t s = 0; s < states->n_states; s++)
        if ((states->layers[layer].has & states->updated) >> s & 1)
            memoi_snapshot_hold(&states->snapshot, e, MEMOB_STREAM_FILE,
                                layer * states->n_states + s);
    if (e->device.annotate) memoi_states_annotate(states, layer);
    if (!e->status)
        e->status = memo_launch_host(&e->device, e->streams[MEMOB_STREAM_FILE],
                                     &states->updates[layer].call, e->error);
    return memoi_step_finish(states->step);
}

/* The update that comes next, if it waits. */
MEMOI memo_status memoi_states_update(memob_states* states, memo_error* error) {
    memob_step* step = states->step;
    const int32_t layer = memoi_step_visit(step)->layer;
    memob_states_layer* of = &states->layers[layer];
    const int on_host = states->updates != NULL, is_alone = states->is_alone;
    const int is_fused = !is_alone && memob_update_is_fused(states->update_at);
    memo_status status = MEMO_STATUS_OK;
    if (!(is_fused ? memoi_states_is_updated(states, layer) : states->there.pending[layer])) {
        of->has_gradients = 0;
        return memoi_step_pass(step, error);
    }

    /* Updates on the host also use what the trainer has computed since the backward: a norm. */
    if (on_host) status = memoi_states_look(states, MEMOB_UPDATE, layer, 0);
    if (on_host && is_alone && !states->n_updates && !status) {
        memoi_sink_call(&states->sink, error);
        memoi_sink_follow(&states->sink, MEMOB_STREAM_FILE, MEMOB_STREAM_COMPUTE);
        status = memoi_step_finish(step);
    }
    if (!status)
        status =
            states->is_filling ? memoi_step_begin_with(step, error) : memob_step_begin(step, error);
    if (status) return status;
    states->n_unseen += !states->n_updates++;
    states->n_pending -= states->n_pending > 0;
    states->there.pending[layer] = 0;

    if (on_host)
        status = memoi_states_launch_update(states, layer);
    else
        status = memoi_states_look(states, MEMOB_UPDATE, layer, 0);
    if (!on_host && !status) status = states->trainer.update(states->trainer.user, layer);
    if (!on_host && !status) status = memoi_states_look(states, MEMOB_UPDATE, layer, 1);
    if (!status) status = memob_step_end(step, error);
    if (status) return status;
    states->layers[layer].has_gradients = 0;
    return on_host ? memoi_states_look(states, MEMOB_UPDATE, layer, 1) : status;
}

/* All updates that come next. */
MEMOI memo_status memoi_states_updates(memob_states* states, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    while (!status && memoi_states_shows(states, MEMOB_UPDATE))
        status = memoi_states_update(states, error);
    return status;
}

/* --- a round --- */

/* 1: both masks choose the same states.  b: NULL for all states. */
MEMOI int memob_states_are_same(const memob_states* states, const uint32_t* a, const uint32_t* b) {
    uint32_t others = 0;
    for (int32_t l = 0; l < states->n_layers; l++)
        others |= (a[l] ^ (b ? b[l] : ~0u)) & states->layers[l].has;
    return !others;
}

/* What the step leaves out, by its masks, and by whether any update runs in it. */
MEMOI void memoi_states_choose(memob_states* states) {
    states->n_updating = 0;
    for (int32_t l = 0; l < states->n_layers; l++) {
        uint8_t* leaves = states->there.leaves + (int64_t)l * states->n_states;
        const int is_updated = memoi_states_is_updated(states, l);
        states->n_updating += is_updated;
        for (int32_t s = 0; s < states->n_states; s++) {
            const int is_passed = states->passes_updates && !(states->gradients >> s & 1);
            leaves[s] = MEMOB_LEAVES_ALL;
            if (states->masks[l] >> s & 1)
                leaves[s] = is_updated && !is_passed ? MEMOB_LEAVES_NOTHING : MEMOB_LEAVES_UPDATE;
        }
    }
}

/* What the rounds from now on use; masks: (n_layers), or NULL for all.  No layer is open, and no
 * update waits. */
MEMOI void memob_states_take_masks(memob_states* states, const uint32_t* masks) {
    if (memob_states_are_same(states, states->masks, masks)) return;
    MEMO_ASSERT(!states->is_running && !states->n_pending);
    if (states->step) memoi_step_park(states->step); /* by what it has left out */
    for (int32_t l = 0; l < states->n_layers; l++) states->masks[l] = masks ? masks[l] : ~0u;
    memoi_states_choose(states);
}

/* 1: no update runs in the step that begins, as none is pending, so what they alone use does not
 * travel.  No layer is open. */
MEMOI void memob_states_pass_updates(memob_states* states, int32_t passes) {
    if (states->passes_updates == passes) return;
    MEMO_ASSERT(!states->is_running);
    if (states->step) memoi_step_park(states->step);
    states->passes_updates = passes;
    memoi_states_choose(states);
}

/* Begins a round: a micro-batch, or all turns of an order.  Fetches what its first layers need.
 * rows: NULL, or the law of those that move in it.  is_last: the update comes behind it, or in it.
 * is_forward_only: an evaluation, and no updates are pending.  Errors: the device's; then comes
 * memob_states_abandon, as behind every error of a visit. */
MEMOI memo_status memob_states_begin_round(memob_states* states, memob_step* step,
                                           memob_step_rows* rows, int is_last, int is_forward_only,
                                           memo_error* error) {
    const int32_t phase = is_forward_only
                              ? (int32_t)MEMOB_EVALUATION
                              : memoi_list_phase_of(&step->list.desc, states->round, !is_last);
    MEMO_ASSERT(!states->is_running && !(is_forward_only && states->n_pending));
    if (states->step && states->step != step) memoi_step_park(states->step);
    states->step = step;
    states->is_running = 1;
    states->is_last = is_last;
    states->is_forward_only = is_forward_only;
    states->n_updates = 0;
    return memob_step_go(step, phase, rows, error);
}

/* A turn or a layer begins.  FIRST or LAST, if it is open, ends, and deferred updates come
 * before. */
MEMOI memo_status memoi_states_open(memob_states* states, int32_t pass, int32_t layer,
                                    memo_error* error) {
    memo_status status =
        states->step->n_open ? memob_step_end(states->step, error) : MEMO_STATUS_OK;
    if (!status) status = memoi_states_updates(states, error);
    if (!status) status = memoi_states_go(states, pass, layer, error);
    return status ? status : memoi_states_look(states, pass, layer, 0);
}

/* A micro-batch, or a turn of an order, begins with FIRST or LAST.  turn: as in memob_states_desc;
 * without an order 0. */
MEMOI memo_status memob_states_begin_turn(memob_states* states, int32_t turn, memo_error* error) {
    if (turn == 0) return memoi_states_open(states, MEMOB_FORWARD, 0, error);
    if (turn != -states->n_chunks) return MEMO_STATUS_OK;
    return memoi_states_open(states, MEMOB_BACKWARD, states->n_layers - 1, error);
}

/* LAST begins behind the last layer: in an evaluation its forward, else its forward and its
 * backward. */
MEMOI memo_status memoi_states_begin_last(memob_states* states, memo_error* error) {
    const int32_t last = states->n_layers - 1;
    memo_status status;
    if (states->is_forward_only) return memoi_states_open(states, MEMOB_FORWARD, last, error);
    status = memoi_states_updates(states, error);
    if (!status) status = memoi_states_go(states, MEMOB_BACKWARD, last, error);
    for (int is_end = 0; is_end < 2 && !status; is_end++)
        status = memoi_states_look(states, MEMOB_FORWARD, last, is_end);
    return status ? status : memoi_states_look(states, MEMOB_BACKWARD, last, 0);
}

/* The last slice of a layer's forward ends. */
MEMOI memo_status memoi_states_end_forward(memob_states* states, int32_t layer, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (layer == 1) status = memoi_states_look(states, MEMOB_FORWARD, 0, 1);
    if (!status) status = memoi_states_look(states, MEMOB_FORWARD, layer, 1);
    if (!status) status = memob_step_end(states->step, error);
    if (status || layer < states->n_layers - 2) return status;
    return states->n_turns && !states->is_forward_only ? status
                                                       : memoi_states_begin_last(states, error);
}

/* A backward of a layer ends, and its update runs, if it is fused. */
MEMOI memo_status memoi_states_end_visit(memob_states* states, int32_t layer, memo_error* error) {
    const memo_status status = memob_step_end(states->step, error);
    if (status) return status;
    states->layers[layer].has_gradients = 1;
    if (layer == states->n_layers - 2) states->layers[layer + 1].has_gradients = 1;
    return memob_update_is_fused(states->update_at) ? memoi_states_updates(states, error) : status;
}

/* The last slice of a layer's backward ends. */
MEMOI memo_status memoi_states_end_backward(memob_states* states, int32_t layer,
                                            memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (layer == states->n_layers - 2)
        status = memoi_states_look(states, MEMOB_BACKWARD, layer + 1, 1);
    if (!status) status = memoi_states_look(states, MEMOB_BACKWARD, layer, 1);
    if (!status) status = memoi_states_end_visit(states, layer, error);
    return status || layer > 1 ? status : memoi_states_go(states, MEMOB_BACKWARD, 0, error);
}

/* A slice of a layer begins or ends, counted in layers of all chunks. */
MEMOI memo_status memob_states_visit(memob_states* states, int32_t pass, int32_t slice, int is_end,
                                     memo_error* error) {
    const int32_t n = states->step->list.desc.n_slices, layer = slice / n + 1;
    const int32_t n_begun = pass == MEMOB_BACKWARD ? n - 1 - slice % n : slice % n;
    memo_status status;
    if (is_end && n_begun < n - 1) return memob_step_end(states->step, error);
    if (is_end)
        return pass == MEMOB_BACKWARD ? memoi_states_end_backward(states, layer, error)
                                      : memoi_states_end_forward(states, layer, error);
    if (n_begun) return memoi_states_go(states, pass, layer, error);
    status = memoi_states_open(states, pass, layer, error);
    if (status || pass == MEMOB_FORWARD || layer > 1) return status;
    return memoi_states_look(states, MEMOB_BACKWARD, 0, 0);
}

/* All visits of the round are over. */
MEMOI void memoi_states_end_round(memob_states* states) {
    const int is_fused = memob_update_is_fused(states->update_at);
    states->is_running = 0;
    if (states->is_forward_only) return;
    if (states->is_last) {
        states->n_rounds_before = states->n_rounds;
        states->n_rounds = states->round + 1;
    }
    states->round = states->is_last && is_fused ? 0 : states->round + 1;
    states->is_due = states->is_last && !is_fused;
}

/* A micro-batch, or a turn, ends. */
MEMOI memo_status memob_states_end_turn(memob_states* states, int32_t turn, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (states->is_forward_only) {
        status = memoi_states_look(states, MEMOB_FORWARD, states->n_layers - 1, 1);
        if (!status) status = memob_step_end(states->step, error);
    } else if (!states->n_turns || turn == -1) {
        status = memoi_states_look(states, MEMOB_BACKWARD, 0, 1);
        if (!status) status = memoi_states_end_visit(states, 0, error);
    }
    if (!status && !memoi_step_visit(states->step)) memoi_states_end_round(states);
    return status;
}

/* --- a step --- */

/* The updates of the step's layers wait. */
MEMOI void memoi_states_wait(memob_states* states) {
    for (int32_t l = 0; l < states->n_layers; l++)
        states->there.pending[l] = (char)memoi_states_is_updated(states, l);
}

/* Instead of an update: each layer is updated before its next forward. */
MEMOI void memob_states_defer(memob_states* states) {
    MEMO_ASSERT(states->update_at == MEMO_UPDATE_DEFERRED && !states->n_pending);
    memoi_states_wait(states);
    states->n_pending = states->n_updating;
    states->is_due = states->round = 0;
}

/* Updates all layers, or ends deferred updates that are pending.  Errors: the device's. */
MEMOI memo_status memob_states_update_all(memob_states* states, memo_error* error) {
    memo_status status;
    MEMO_ASSERT(!states->is_running);
    if (!states->step) states->step = states->steps;
    memob_states_pass_updates(states, 0);
    if (!states->n_pending) memoi_states_wait(states);
    states->is_running = states->is_alone = 1;
    states->n_updates = 0;
    status = memob_step_go(states->step, MEMOB_UPDATES, NULL, error);
    if (!status) status = memoi_states_updates(states, error);
    if (!status) states->is_running = states->is_alone = states->is_due = states->round = 0;
    return status;
}

/* Abandons a step: gradients begin at zero again, and memob_states_begin_round comes next.  Updates
 * that are pending stay so, layer by layer, with their gradients, unless they ran in a pass, or one
 * of them has failed.  Returns INVALID_STATE if the states must be set again: the update has
 * changed some layers but not all, or the device reports a failed operation (without waiting), and
 * an update has begun since the last transfer.  The words follow those of the failure.  After it
 * transfers return the device's error, never bytes of two steps. */
MEMOI memo_status memob_states_abandon(memob_states* states, memo_error* error) {
    const memob_step* step = states->step;
    const int is_updating = step && step->n_open && memoi_states_shows(states, MEMOB_UPDATE);
    const int is_between =
        !states->is_alone && !is_updating && states->update_at == MEMO_UPDATE_DEFERRED;
    const int32_t n_updates = states->is_running && !is_between ? states->n_updates : 0;

    /* No layer is open, and gradients wait for pending updates alone. */
    if (n_updates) states->n_pending = 0;
    if (!states->n_pending) memset(states->there.pending, 0, (size_t)states->n_layers);
    for (int32_t l = 0; l < states->n_layers; l++) {
        states->layers[l].has_gradients &= states->there.pending[l];
        states->layers[l].open_pass = 0;
    }
    if (step) memob_step_abandon(states->step);
    states->is_running = states->is_alone = states->is_due = states->round = 0;
    if (states->n_unseen && memo_device_status(&states->sink.engine.device, NULL))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "resident states are lost after %lld updates since states were read "
                              "or written, and some streamed ones are older than others; set the "
                              "states of all layers again, in a new session",
                              (long long)states->n_unseen);
    if (!n_updates) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "the update has changed %d of %d layers; set the states of all layers "
                          "again",
                          (int)n_updates, (int)states->n_updating);
}

/* Forgets what lies on the device, as in a new engine.  All that was enqueued is over. */
MEMOI void memob_states_reset(memob_states* states) {
    states->n_unseen = states->n_pending = 0;
    (void)memob_states_abandon(states, NULL);
    for (memob_step* step = states->steps; step; step = step->next) memob_step_reset(step);
}

/* --- without a trainer --- */

/* Goes through a round.  `compute` is called for each visit but updates: before it begins, with
 * is_begun 0, and between its begin and its end.  states: NULL, or those of the step. */
MEMOI memo_status memob_states_walk(memob_states* states, memob_step* step, memob_step_rows* rows,
                                    int is_last,
                                    memo_status (*compute)(void* user, const memob_visit* visit,
                                                           int is_begun),
                                    void* user, memo_error* error) {
    memo_status status = states ? memob_states_begin_round(states, step, rows, is_last, 0, error)
                                : memob_step_go(step, MEMOB_ONLY, rows, error);
    const memob_visit* visit;
    while (!status && (visit = memoi_step_visit(step)) != NULL) {
        if (visit->pass == MEMOB_UPDATE) {
            status = memoi_states_update(states, error);
            continue;
        }
        status = compute(user, visit, 0);
        if (!status)
            status = states ? memoi_states_go(states, visit->pass, visit->layer, error)
                            : memob_step_begin(step, error);
        if (!status) status = compute(user, visit, 1);
        if (!status) status = memob_step_end(step, error);
    }
    if (states && !status) memoi_states_end_round(states);
    return status;
}

/* The update behind the last round of a step.  Errors: the device's. */
MEMOI memo_status memob_states_end_step(memob_states* states, memo_error* error) {
    if (states->update_at == MEMO_UPDATE_DEFERRED) memob_states_defer(states);
    return states->is_due ? memob_states_update_all(states, error) : MEMO_STATUS_OK;
}

/* --- from and to the caller --- */

/* Writes the blocks with these bytes of a spilled state to the file, or reads them, now; those of a
 * FETCHED state are only read. */
MEMOI void memoi_states_pass_file(memob_states* states, int32_t layer, int32_t state, int is_read,
                                  int64_t offset_bytes, int64_t n_bytes) {
    memob_engine* e = &states->sink.engine;
    const int64_t begin = offset_bytes / MEMOB_SPILL_ALIGNMENT * MEMOB_SPILL_ALIGNMENT;
    memob_spill_op op;
    if (e->status || !(states->layers[layer].spilled >> state & 1)) return;
    memoi_states_make_op(states, layer, state, !is_read, begin, offset_bytes + n_bytes - begin,
                         &op);
    e->status = memoi_spill_run(&op, e->error);
}

/* Waits for computation, copies and updates on the host. */
MEMOI memo_status memob_states_synchronize(memob_states* states, memo_error* error) {
    const memo_status status = memob_engine_synchronize(&states->sink.engine, error);
    if (!status) states->n_unseen = 0;
    return status;
}

/* Copies bytes of a resident state from `at` on the device, or there, and waits; from NULL: sets
 * them to zero. */
MEMOI memo_status memoi_states_copy_resident(const memob_states* states, int is_out, int64_t at,
                                             void* bytes, int64_t n_bytes, memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    const memo_stream stream = e->streams[is_out ? MEMOB_STREAM_TO_HOST : MEMOB_STREAM_TO_DEVICE];
    char* on_device = e->memory.device + at;
    memo_status status;
    if (bytes) return memob_copy_now(&e->device, stream, on_device, bytes, n_bytes, !is_out, error);
    status = memo_fill(&e->device, stream, on_device, 0, n_bytes, error);
    return status ? status : memo_stream_synchronize(&e->device, stream, error);
}

/* Between rounds: streamed states are at home, and copies are over. */
MEMOI memo_status memob_states_leave(memob_states* states, memo_error* error) {
    const memo_status status =
        states->step ? memoi_step_leave(states->step, error) : MEMO_STATUS_OK;
    return status ? status : memob_states_synchronize(states, error);
}

/* Gradients that have no meaning, and what the caller gives again. */
MEMOI uint32_t memob_states_worthless(const memob_states* states) {
    int has_gradients = states->n_pending > 0;
    for (int32_t l = 0; l < states->n_layers; l++) has_gradients |= states->layers[l].has_gradients;
    return states->fetched | (has_gradients ? 0 : states->gradients);
}

/* Copies resident states but those left out to `kept`, one behind the other, or from there; NULL:
 * nothing moves.  at: NULL, or (n_items), where each lies there.  *n_bytes: of all. */
MEMOI memo_status memob_states_keep(const memob_states* states, memo_stream stream, char* kept,
                                    int is_back, uint32_t left_out, int64_t* at, int64_t* n_bytes,
                                    memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    memo_status status = MEMO_STATUS_OK;
    *n_bytes = 0;
    for (int32_t k = 0; k < states->n_layers * states->n_states && !status; k++) {
        const memob_states_layer* of = &states->layers[k / states->n_states];
        const uint32_t stays = of->has & ~(of->streamed | of->lent | left_out);
        const int64_t size_bytes = states->bytes[k].n_bytes;
        if (!(stays >> k % states->n_states & 1)) continue;
        if (kept && size_bytes)
            status = memob_copy_now(&e->device, stream, e->memory.device + states->bytes[k].at[0],
                                    kept + *n_bytes, size_bytes, is_back, error);
        if (at) at[k] = *n_bytes;
        *n_bytes += size_bytes;
    }
    return status;
}

/* Waits for computation and copies, then copies bytes of a state from where they lie, or there;
 * from NULL: sets them to zero.  A layer that lacks the state has none.  Needs no room on the
 * device.  Errors: INVALID_STATE (a layer is open), INVALID_ARGUMENT (outside of the state), the
 * device's. */
MEMOI memo_status memob_states_transfer(memob_states* states, int32_t layer, int32_t state,
                                        int is_out, int64_t offset_bytes, void* bytes,
                                        int64_t n_bytes, memo_error* error) {
    const char* const name = is_out ? "memo_session_read_state" : "memo_session_write_state";
    memob_engine* e = &states->sink.engine;
    const memob_state_bytes* of;
    const int64_t size_bytes = states->states[state].size_bytes;
    const uint32_t bit = 1u << state;
    memo_status status;
    int32_t item;
    char* on_host;
    if (states->is_running)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "%s: a layer is open; end it first",
                              name);
    if (!((states->layers[layer].has | states->layers[layer].lent) & bit)) return MEMO_STATUS_OK;
    layer = memob_states_home(states, layer, state);
    item = layer * states->n_states + state;
    of = memoi_states_bytes(states, layer, state);
    if (!memob_is_within(n_bytes, 0, size_bytes) ||
        !memob_is_within(offset_bytes, 0, size_bytes - n_bytes))
        return MEMOB_INVALID(
            error, "%s: offset_bytes: %lld bytes from byte %lld; state %d has %lld bytes", name,
            (long long)n_bytes, (long long)offset_bytes, (int)state, (long long)size_bytes);
    status = memob_states_synchronize(states, error);
    if (status || !n_bytes) return status;

    if (!(states->layers[layer].streamed & bit))
        return memoi_states_copy_resident(states, is_out, of->at[0] + offset_bytes, bytes, n_bytes,
                                          error);

    /* Streamed: on the host, when what is newer has left the device. */
    on_host = e->memory.host + of->at[1] + offset_bytes;
    if (!is_out) memob_snapshot_wait(&states->snapshot, item);
    if (states->step) status = memoi_step_bring_home(states->step, item, !is_out, error);
    if (!status) status = memob_states_synchronize(states, error);
    if (status) return status;
    memoi_sink_call(&states->sink, error);
    memoi_states_pass_file(states, layer, state, 1, offset_bytes, n_bytes);
    if (!e->status && bytes)
        memcpy(is_out ? bytes : on_host, is_out ? on_host : bytes, (size_t)n_bytes);
    else if (!e->status)
        memset(on_host, 0, (size_t)n_bytes);
    if (!is_out) memoi_states_pass_file(states, layer, state, 0, offset_bytes, n_bytes);
    return e->status;
}

/* ---- >>states snapshot --------------------------------------------------------------------------
 * Knows: which bytes of states a snapshot has, and where they lie.  Knows nothing of who changes
 * them meanwhile. */

#define MEMOI_SNAPSHOT_PIECE ((int64_t)1 << 22) /* of a file; a multiple of a page */

/* Bytes before what is kept: a piece, with room to align it; 0: there is no file. */
MEMOI int64_t memoi_snapshot_room(const memob_states* states) {
    return states->sizes.spill_bytes ? MEMOI_SNAPSHOT_PIECE + MEMOB_SPILL_ALIGNMENT : 0;
}

/* Writes a state: what was kept of a resident one, or its home. */
MEMOI memo_status memoi_states_write(void* of, int32_t item, memo_error* error) {
    const memob_states* states = (const memob_states*)of;
    const memob_memory* memory = &states->sink.engine.memory;
    const int32_t layer = item / states->n_states, s = item % states->n_states;
    const memob_states_layer* l = &states->layers[layer];
    const memob_state_bytes* bytes = &states->bytes[item];
    const int is_streamed = (int)(l->streamed >> s & 1), is_spilled = (int)(l->spilled >> s & 1);
    const char* home =
        is_streamed ? memory->host + bytes->at[1]
                    : states->kept_bytes + memoi_snapshot_room(states) + states->kept_at[item];
    const int64_t most_bytes = is_spilled ? MEMOI_SNAPSHOT_PIECE : memob_max(bytes->n_bytes, 1);
    memo_status status = MEMO_STATUS_OK;

    for (int64_t at = 0; at < bytes->n_bytes && !status; at += most_bytes) {
        const int64_t n_bytes = memob_min(bytes->n_bytes - at, most_bytes);
        const char* from = home + at;
        if (is_spilled) {
            const uintptr_t begin = (uintptr_t)states->kept_bytes;
            char* piece =
                states->kept_bytes + (MEMOB_SPILL_ALIGNMENT - begin % MEMOB_SPILL_ALIGNMENT);
            memob_spill_op op;
            memob_spill_op_init(&op, &memory->file, 0, piece, bytes->at[2] + at,
                                memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT));
            status = memoi_spill_run(&op, error);
            from = piece;
        }
        if (!status)
            status =
                states->snapshot_write(states->trainer.user, layer, s, at, from, n_bytes, error);
    }
    return status;
}

/* Copies of resident states, and room for a piece of the file. */
MEMOI memo_status memoi_states_keep_snapshot(memob_states* states, memo_error* error) {
    const uint32_t left_out = states->fetched | states->gradients;
    const memo_stream stream = states->sink.engine.streams[MEMOB_STREAM_TO_HOST];
    const int64_t room_bytes = memoi_snapshot_room(states);
    int64_t n_bytes = 0;
    memo_status status =
        memob_states_keep(states, stream, NULL, 0, left_out, states->kept_at, &n_bytes, error);
    if (status) return status;
    states->kept_bytes = (char*)MEMO_MALLOC((size_t)memob_max(room_bytes + n_bytes, 1));
    if (!states->kept_bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "memo_session_snapshot: no host memory for %lld bytes of states that "
                              "stay on the device",
                              (long long)n_bytes);
    return memob_states_keep(states, stream, states->kept_bytes + room_bytes, 0, left_out,
                             states->kept_at, &n_bytes, error);
}

/* Between rounds, while no update is pending: begins to write all states but gradients and FETCHED
 * ones, those first that the next step changes first.  Errors: OUT_OF_HOST_MEMORY, the device's. */
MEMOI memo_status memob_states_take_snapshot(memob_states* states, memob_write_function write,
                                             memo_error* error) {
    const int32_t n_items = states->n_layers * states->n_states;
    const int is_fused = memob_update_is_fused(states->update_at);
    memob_snapshot* snapshot = &states->snapshot;
    memo_status status;
    MEMO_ASSERT(!states->is_running && !states->n_pending);
    status = memob_states_leave(states, error);
    if (!status) status = memoi_snapshot_make(snapshot, n_items, error);
    if (!status && !states->kept_at) {
        states->kept_at = MEMOB_ARRAY(&snapshot->arrays, int64_t, n_items);
        if (!states->kept_at) status = memob_no_memory(error, "a snapshot");
    }
    if (!status) status = memoi_states_keep_snapshot(states, error);
    if (status) {
        MEMOB_IGNORE(memob_states_finish_snapshot(states, NULL));
        return status;
    }

    snapshot->write = memoi_states_write;
    snapshot->user = states;
    states->snapshot_write = write;
    snapshot->n_order = 0;
    for (int32_t k = 0; k < n_items; k++) {
        const int32_t item = is_fused ? n_items - 1 - k : k;
        const memob_states_layer* of = &states->layers[item / states->n_states];
        const uint32_t written = of->has & ~(of->lent | states->fetched | states->gradients);
        if (written >> item % states->n_states & 1) snapshot->order[snapshot->n_order++] = item;
    }
    memoi_snapshot_begin(snapshot);
    return status;
}

#endif /* MEMO_IMPLEMENTATION */
