/* memo_look.h - look at what runs on streams: check for races, simulate, record, draw, inject
 * faults.
 *
 * What people run beside a trainer.  Uses the public functions of memo.h; no header that a trainer
 * needs includes memo_look.h.
 *
 * EXAMPLE.  A program of your own, checked from a file (build/examples/check_schedule does more).
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_LOOK_IMPLEMENTATION        // in the same unit
 *     #include "extras/memo_look.h"           // includes memo.h; link with -lpthread -lm
 *
 *     int main(void) {
 *         memo_schedule* schedule = NULL;
 *         memo_check* check = NULL;
 *         memo_simulation* simulation = NULL;
 *         memo_error error;
 *         char why[512];
 *         int64_t i;
 *         memo_status status = memo_schedule_read("step.schedule", &schedule, &error);
 *         if (!status) status = memo_schedule_check(schedule, &check, &error);
 *         for (i = 0; !status && i < check->n_races; i++)
 *             printf("%s\n", memo_race_explain(schedule, &check->races[i], why, sizeof why));
 *         if (!status) status = memo_schedule_simulate(schedule, &simulation, &error);
 *         if (!status) printf("makespan %.3f ms\n", simulation->makespan_s * 1e3);
 *         if (!status)
 *             status = memo_schedule_write_svg(schedule, simulation, "a step", "step.svg", &error);
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         memo_simulation_destroy(simulation);
 *         memo_check_destroy(check);
 *         memo_schedule_destroy(schedule);
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * CHAPTERS
 *   1 schedule                   operations on streams, as data and in words
 *   2 check                      races and redundant waits; a plan against its streams
 *   3 simulation and comparison  makespan and stalls; promised and recorded
 *   4 pictures                   a timeline, a plan
 *   5 files of schedules
 *   6 recorder                   a device that records what it passes on
 *   7 faults                     a device that fails at a call, and delays streams
 *   8 engines                    a step of the swap engine, and of blocks, as a schedule
 * The implementation begins with a table of its rooms and the words to search for.
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_LOOK_H
#define MEMO_LOOK_H

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_look.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 schedule: operations on streams, as data -------------------------------------------------
 *
 * The list of all that a thread enqueues, in order: operations (RUN), event records, waits, and
 * host synchronizations.  A stream runs its operations in this order, one at a time.  A recorder
 * writes down the schedule of a real run (chapter 6), a generator predicts one (chapter 8). */

typedef enum memo_op_kind {
    MEMO_OP_RUN = 0,
    MEMO_OP_RECORD, /* event on stream */
    MEMO_OP_WAIT,   /* stream waits for the latest record of event */
    MEMO_OP_SYNC,   /* the host waits for all of stream, or for the latest record of event;
                       everything enqueued later, on any stream, comes after */
    MEMO_N_OP_KINDS
} memo_op_kind;

typedef struct memo_op {
    memo_op_kind kind;
    int32_t stream;                         /* SYNC of an event: -1 */
    int32_t event;                          /* RECORD, WAIT, SYNC of an event; -1: none */
    int64_t first_range, n_reads, n_writes; /* in memo_schedule.ranges, reads first */
    int64_t link_bytes;                     /* that a RUN moves */
    double duration_s;
    double start_s, end_s; /* measured by a recorder; both 0 otherwise */
    int64_t name;          /* offset in memo_schedule.text */
} memo_op;

/* Bytes with a name, for messages. */
typedef struct memo_named_bytes {
    memo_range bytes;
    int64_t name;
} memo_named_bytes;

/* A name is an offset in text. */
typedef struct memo_schedule {
    memo_op* ops;
    int64_t n_ops;
    int64_t* streams; /* their names */
    int32_t n_streams;
    int64_t* events; /* their names; 0: none */
    int32_t n_events;
    memo_range* ranges;
    int64_t n_ranges;
    memo_named_bytes* named;
    int64_t n_named;
    char* text; /* each name, followed by a zero byte */
    int64_t text_bytes;
} memo_schedule;

/* Building.  Streams and events are numbered from 0, in the order of the calls.  On failure the
 * schedule is unchanged.  Errors: INVALID_ARGUMENT (an index that was never added; a range that
 * ends before the begin; a negative size or duration), OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_create(memo_schedule** schedule, memo_error* error);
MEMO_API void memo_schedule_destroy(memo_schedule* schedule);
MEMO_TRY memo_status memo_schedule_add_stream(memo_schedule* schedule, const char* name,
                                              int32_t* stream, memo_error* error);
MEMO_TRY memo_status memo_schedule_add_event(memo_schedule* schedule, int32_t* event,
                                             memo_error* error);
MEMO_TRY memo_status memo_schedule_add_op(memo_schedule* schedule, const memo_op_desc* op,
                                          memo_error* error);
/* Adds a RECORD or WAIT, or a SYNC: of event, or with event -1 of stream. */
MEMO_TRY memo_status memo_schedule_add_order(memo_schedule* schedule, memo_op_kind kind,
                                             int32_t event, int32_t stream, memo_error* error);

/* In words. */

/* The name of an op: the operation's, or "record", "wait" or "sync"; never NULL. */
MEMO_API const char* memo_schedule_op_name(const memo_schedule* schedule, int64_t op);

/* Rename an operation (RUN), and name bytes, so that messages show the name instead of addresses.
 * Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_name_op(memo_schedule* schedule, int64_t op, const char* name,
                                           memo_error* error);
MEMO_TRY memo_status memo_schedule_name_bytes(memo_schedule* schedule, memo_range bytes,
                                              const char* name, memo_error* error);
/* Writes an op in words, truncated to n_bytes, and returns buffer: `"gemm" (operation 7, on
 * compute)`, `wait for event 3 (operation 8, on compute)`. */
MEMO_API const char* memo_schedule_describe(const memo_schedule* schedule, int64_t op, char* buffer,
                                            size_t n_bytes);

/* ---- 2 check: races and redundant waits ------------------------------------------------------ */

/* The check proves order without running.  One operation happens before another if a path of stream
 * order and events leads from the first to the second.  Two operations that touch the same byte are
 * a race if at least one writes and no path connects both. */
typedef struct memo_race {
    int64_t first, second; /* indices of ops, first enqueued first */
    memo_range range;      /* bytes they share */
} memo_race;

typedef struct memo_check {
    /* For each operation, only the latest conflicting operation per stream is listed; earlier
     * operations follow transitively.  Ordered by second, then first. */
    memo_race* races;
    int64_t n_races;
    /* Ops of kind WAIT; each can be removed alone without adding a race. */
    int64_t* redundant_waits;
    int64_t n_redundant_waits;
    int64_t* unrecorded_waits; /* WAIT and SYNC ops for an event that was not recorded before */
    int64_t n_unrecorded_waits;
    int64_t n_waits;
    int64_t n_conflicts; /* pairs compared: (an operation, the latest of another stream) */
} memo_check;

/* Creates *check, which memo_check_destroy frees.  Returns OK even if there are races: read
 * n_races.  Errors: OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_check(const memo_schedule* schedule, memo_check** check,
                                         memo_error* error);
MEMO_API void memo_check_destroy(memo_check* check);
/* Writes a race in words and returns buffer: both operations, the bytes, why no path connects both,
 * and the missing wait.  Truncated to n_bytes; 512 are enough for usual names. */
MEMO_API const char* memo_race_explain(const memo_schedule* schedule, const memo_race* race,
                                       char* buffer, size_t n_bytes);

/* Is the plan safe on the streams of its trace? Two buffers may share a byte only if all work on
 * the first comes before all work on the second, by the order of each stream and the waits between
 * streams, bought waits included.  A persistent buffer that the body requests counts as requested
 * first of all.  Lifetimes and gaps of the plan are ignored.  The proof uses nothing that
 * memo_plan_from_trace computed.  The proof takes as long as two checks of a schedule of the
 * requests.  Errors: INVALID_ARGUMENT (the two buffers, and the stream without a wait; or the
 * plan's buffers do not match the trace), OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_plan_check(const memo_plan* plan, const memo_trace* trace,
                                     memo_error* error);

/* ---- 3 simulation and comparison ------------------------------------------------------------- */

typedef struct memo_simulation {
    /* For each op.  A WAIT starts when the stream reaches the wait and ends when the stream
     * continues; so does a SYNC for the host. */
    double* start_s;
    double* end_s;
    double makespan_s;
    double* busy_s;  /* of each stream: time inside operations */
    double* stall_s; /* of each stream */
} memo_simulation;

/* start(op) is the latest of: the end of the previous op on its stream, the record it waits for,
 * host synchronization.  A RUN ends duration_s later.  Enqueueing takes no time.
 * Errors: INVALID_ARGUMENT (times overflow a double), OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_simulate(const memo_schedule* schedule,
                                            memo_simulation** simulation, memo_error* error);
/* The same figures from measured times; the first start is 0.  Errors: INVALID_STATE (nothing was
 * measured), OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_measured(const memo_schedule* schedule,
                                            memo_simulation** simulation, memo_error* error);
MEMO_API void memo_simulation_destroy(memo_simulation* simulation);

/* Do two schedules match in kinds, names, names of streams and sizes of ranges, and does each wait
 * see the same record?  Numbers of events may differ.
 * Errors: INVALID_ARGUMENT naming the first op that differs, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_compare(const memo_schedule* promised,
                                           const memo_schedule* recorded, memo_error* error);

/* ---- 4 pictures ------------------------------------------------------------------------------ */

/* Draw a timeline, one row per stream, from a simulation or measurement: in Chrome trace format
 * (for chrome://tracing or Perfetto), or as SVG with the busy share of the makespan,
 * without streams where nothing runs.  Errors: IO, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_schedule_write_chrome(const memo_schedule* schedule,
                                                const memo_simulation* times, const char* path,
                                                memo_error* error);
MEMO_TRY memo_status memo_schedule_write_svg(const memo_schedule* schedule,
                                             const memo_simulation* times, const char* title,
                                             const char* path, memo_error* error);

/* Draws address over time as SVG: one rectangle per buffer, colored by class, with hover text; peak
 * and lower bound as lines.  trace may be NULL; if it has marks, phases are named.  Errors: IO,
 * OUT_OF_HOST_MEMORY, INVALID_STATE (no offsets). */
MEMO_TRY memo_status memo_plan_write_svg(const memo_plan* plan, const memo_trace* trace,
                                         const char* title, const char* path, memo_error* error);

/* ---- 5 files of schedules -------------------------------------------------------------------- */

/* Files.  Text, in the order of enqueueing:
 *
 *   memo schedule 1                   the first and last line are optional, as for traces
 *   # comment
 *   stream NAME
 *   buffer NAME BYTES                 placed after all buffers above, from 0
 *   buffer NAME RANGE                 another name for these bytes
 *   run NAME STREAM [reads RANGE...] [writes RANGE...] [takes NANOSECONDS]
 *   record EVENT STREAM
 *   wait EVENT STREAM
 *   sync STREAM                       the host waits for all of the stream
 *   sync event EVENT                  the host waits for the latest record of the event
 *   end OPERATIONS CHECKSUM           so that a damaged file is refused
 *
 * RANGE is A..B (bytes [A, B), decimal or 0x and hexadecimal), the NAME of a buffer, or NAME+A..B
 * inside that buffer.  NAME is a word, or text in double quotes with \ before a quote or backslash.
 * A quoted name is never a keyword or number.  Declare streams and buffers before their use; a
 * buffer may be declared again.  memo_schedule_write writes names, order, ranges and durations, and
 * nothing else.  If streams or events have the same name,
 * later names get a number appended; an event without a name is its number.  Paths and errors: as
 * for traces. */
MEMO_TRY memo_status memo_schedule_read(const char* path, memo_schedule** schedule,
                                        memo_error* error);
MEMO_TRY memo_status memo_schedule_write(const memo_schedule* schedule, const char* path,
                                         memo_error* error);

/* ---- 6 recorder: what was really enqueued -------------------------------------------------------
 *
 * A device that passes every call on to another device and records the call in a schedule.  The
 * recorder sees the bytes of copies; announce your own launches with device->annotate.  Recording
 * may allocate; on failure the call that was passed on returns OUT_OF_HOST_MEMORY.
 *
 *   copy, copy_rows, fill     RUN named "to host", "to device", "on device" or "fill"; link_bytes
 *                             is the size; a range per row, or one if rows touch
 *   annotate                  RUN with name, duration, ranges and sizes of the desc; ends at the
 *                             next call for the stream, synchronization or query
 *   launch_host               passed on; announce the work yourself
 *   event_record, event_wait  RECORD, WAIT
 *   synchronize               SYNC; also an event_query that finds a recorded event done
 *
 * A stream that was not created through the recorder is called "stream K" until named.
 *
 * Streams and events of your own can be recorded too: on CUDA a memo_stream is a cudaStream_t and a
 * memo_event is a cudaEvent_t.  Call the recorder's device instead of CUDA for copies, records and
 * waits, and announce each launch with a line:
 *
 *   memo_event_wait(device, (memo_event)loaded, (memo_stream)s, &error);
 *   MEMO_ANNOTATE(device, (memo_stream)s, "relu", &error, memo_reads(x, n), memo_writes(y, n));
 *   relu<<<blocks, threads, 0, s>>>(y, x);
 *
 * Check the schedule in the program, or write a file for build/examples/check_schedule. */

/* Bytes that a launch reads, or bytes that it writes and may read. */
typedef struct memo_access {
    memo_range bytes;
    int32_t is_written;
} memo_access;
MEMO_FUNCTION memo_access memoi_access_of(const void* address, int64_t size_bytes,
                                          int32_t is_written) {
    memo_access access;
    memcpy(&access.bytes.begin, &address, sizeof address);
    access.bytes.end = access.bytes.begin + MEMO_CAST(uint64_t, size_bytes > 0 ? size_bytes : 0);
    access.is_written = is_written;
    return access;
}
MEMO_FUNCTION memo_access memo_reads(const void* address, int64_t size_bytes) {
    return memoi_access_of(address, size_bytes, 0);
}
MEMO_FUNCTION memo_access memo_writes(const void* address, int64_t size_bytes) {
    return memoi_access_of(address, size_bytes, 1);
}

/* memo_annotate of an operation with 1 to 16 accesses; returns a memo_status. */
#define MEMO_ANNOTATE(device, stream, name, error, ...)                                            \
    memo_annotate_accesses(                                                                        \
        device, stream, name, error,                                                               \
        MEMOI_COUNT_OF(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),     \
        __VA_ARGS__)
#define MEMOI_COUNT_OF(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
/* Called by the macro; n_accesses values of type memo_access follow. */
MEMO_TRY memo_status memo_annotate_accesses(const memo_device* device, memo_stream stream,
                                            const char* name, memo_error* error, int n_accesses,
                                            ...);

typedef struct memo_recorder memo_recorder;

typedef struct memo_recorder_desc {
    const memo_device* device; /* borrowed until destroy */
    /* 1: there is no device.  What an engine of memo enqueues is only recorded: nothing is
     * allocated (pass numbers as memory), copied or computed. */
    int32_t on_paper;
    /* 1: measure start_s and end_s of operations and waits with events, and set duration_s if it is
     * 0, so that the schedule can be simulated. */
    int32_t is_timed;
} memo_recorder_desc;

MEMO_TRY memo_status memo_recorder_create(const memo_recorder_desc* desc, memo_recorder** recorder,
                                          memo_error* error);
MEMO_API void memo_recorder_destroy(memo_recorder* recorder);
/* The device that records.  Use it instead of desc->device, until destroy. */
MEMO_API memo_device* memo_recorder_get_device(memo_recorder* recorder);
MEMO_TRY memo_status memo_recorder_name_stream(memo_recorder* recorder, memo_stream stream,
                                               const char* name, memo_error* error);
/* Pause and resume recording, to record only the steps of interest.  Synchronize all streams before
 * both.  Calls in between are not recorded, and resume adds a SYNC of every stream.
 * memo_recorder_get_schedule returns errors of both. */
MEMO_API void memo_recorder_pause(memo_recorder* recorder);
MEMO_API void memo_recorder_resume(memo_recorder* recorder);
/* Reads measured times.  The recorder owns the schedule.  Synchronize all streams first.
 * Errors: the device's, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_recorder_get_schedule(memo_recorder* recorder, memo_schedule** schedule,
                                                memo_error* error);

/* ---- 7 faults: a device that fails at a call ----------------------------------------------------
 *
 * A device around a device that fails a chosen call and delays streams, to test a trainer.  Fail
 * every call in turn (examples/20_inject_faults.c is complete):
 *
 *     memo_status status;
 *     int64_t k = 1;
 *     do {
 *         memo_faults faults;
 *         memo_faults_init(&faults, device);
 *         faults.failing_call = k++;
 *         status = train(&faults.device, &error); // instead of device
 *     } while (status); // until a run makes fewer than k calls
 *
 * All calls of memo_device are counted, except calls whose failure nobody reads: to free, to
 * destroy, and to synchronize with error NULL.  These are passed on.  A call that fails does
 * nothing, but a synchronization waits first, as in CUDA.  Delays change no result if events order
 * the streams; if a wait is missing, delays do.
 *
 * A trainer launches its own work on the inner device, which memo_host_device_launch requires. */

typedef struct memo_faults {
    memo_device device; /* the table to pass on; the struct must outlive the table, and not move */

    /* Set these while no call is under way.  All are 0 after memo_faults_init. */
    int64_t failing_call; /* the number of the call that fails, from 1; 0: none */
    /* The enqueued operation fails when the stream gets there; the call itself returns OK, unless
     * that was earlier.  Without effect on a call that enqueues nothing, and on a device without
     * launch_host. */
    int32_t is_late;
    /* Every second operation, on average, waits before it begins: a random time up to this, on the
     * stream, or in the calling thread on a device without launch_host. */
    double delay_s;
    uint64_t seed; /* of delays */

    /* Read these.  Calls are counted over all threads. */
    int64_t n_calls;    /* so far; set to 0 to count again */
    const char* failed; /* the function that failed last, such as "event_record"; NULL: none */

    /* Private. */
    memo_device inner;
    memo_host_call late_call, delay_call;
    uint64_t n_delays;
} memo_faults;

/* Fills *faults with a device that passes every call on to inner, until fields above are set.  The
 * device has the functions that inner has, and takes no memory.  A call that is made to fail
 * returns DEVICE, with the message "FUNCTION: call K fails on purpose". */
MEMO_API void memo_faults_init(memo_faults* faults, const memo_device* inner);

/* ---- 8 engines as schedules ------------------------------------------------------------------ */

#ifdef MEMO_PLAN_H /* with memo_plan.h, included before */

/* Predicts all that the engine enqueues for desc->swap in n_steps steps, with the times of
 * desc->profile (NULL: all 0): a real engine makes them on a device that only writes operations
 * down.  The streams are "compute" and, if rows move, "to host" and "to device"; if layers spill,
 * "file".  The schedule has the engine's copies, reads and writes ("to file", "from file"), events
 * and waits; and the trainer's operations of each layer: "forward", "recompute" for each tensor
 * with rows to recompute, "backward"; "update" or "update on host" of each layer; and "between" if
 * between_s is above 0.  desc's budgets and turns are not used.  Bytes are numbered: device memory
 * from 512, host memory from 2^62, files from 2^63.  Bytes of states follow those of rows.
 * Ignored: device, streams, computes_on_host, memory and spill_directory of both descs.  Errors:
 * INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_swap_generate(const memo_swap_plan_desc* desc, int32_t n_steps,
                                        memo_schedule** schedule, memo_error* error);

#endif

#ifdef MEMO_SP_H /* with memo_sp.h, included before */

/* Times of a part of a block; the Oases paper's F, R, B and C. */
typedef struct memo_block_times {
    double forward_s;
    double recompute_s; /* without the last product if nothing reads it */
    double backward_s;  /* of input and weights; with MEMO_BLOCKS_WEIGHTS, of the input only */
    double weights_s;   /* with MEMO_BLOCKS_WEIGHTS only */
    double reduce_s;
} memo_block_times;

/* Passes of blocks; both: their sum.  WEIGHTS: functions.weights computes their gradients. */
enum { MEMO_BLOCKS_FORWARD = 1, MEMO_BLOCKS_BACKWARD = 2, MEMO_BLOCKS_WEIGHTS = 4 };

/* Predicts all that memo_blocks enqueues in passes over all layers, on the streams "compute" and
 * "comm".  times (n_blocks, n_parts); NULL: all 0.  Names: F1a, R1a, B1a and W1a (weights) are
 * block 1, part a; cF1a and so on are their collectives; end-a is where the trainer takes over.
 * The buffers of part s are bytes 2 s + 1 and 2 s + 2.  Errors: INVALID_ARGUMENT,
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_blocks_generate(const memo_blocks_schedule_desc* desc,
                                          const memo_block_times* times, int32_t passes,
                                          memo_schedule** schedule, memo_error* error);

#endif

#ifdef __cplusplus
}
#endif

#endif /* MEMO_LOOK_H */

/* ==== implementation ======================================================================== */

/* ROOMS, each with the words to search for.  A room uses public functions, memob_ ones of
 * memo.h, and the rooms above it.
 *
 *     >>schedule             operations and names
 *     >>names                names of operations, streams, events and bytes
 *     >>schedule order       what each operation comes directly after
 *     >>schedule check       races and redundant waits
 *     >>race explanation     a race in words
 *     >>plan check           a plan against the streams of its trace
 *     >>simulation           start and end of each operation
 *     >>schedule comparison  promised and recorded
 *     >>svg pieces           rectangles, lines and text of pictures
 *     >>timeline             Chrome trace and SVG
 *     >>plan picture         address over time
 *     >>schedule file        its text
 *     >>passed calls         the functions of a device around another
 *     >>recorder             a device that records what it passes on, or only that
 *     >>faults               a device that fails at a call, and delays streams
 *     >>swap schedule        a step of the swap engine as a schedule
 *     >>blocks schedule      passes of overlapped blocks as a schedule */
#if defined(MEMO_LOOK_IMPLEMENTATION) && !defined(MEMO_LOOK_IMPLEMENTATION_DONE)
#define MEMO_LOOK_IMPLEMENTATION_DONE

#ifndef MEMO_IMPLEMENTATION_DONE
#error "memo_look.h: define MEMO_IMPLEMENTATION in the same translation unit, before its include"
#endif

/* ---- >>schedule ---------------------------------------------------------------------------------
 * Knows: operations on streams, byte ranges, time.  Knows nothing of devices or of what is
 * computed. */

/* Appends a name to the text of a schedule.  Returns its offset; -1: no memory. */
MEMOI int64_t memoi_schedule_add_text(memo_schedule* schedule, const char* text) {
    int64_t offset = schedule->text_bytes, n_bytes = (int64_t)strlen(text) + 1;
    if (!memob_grow(&schedule->text, offset, n_bytes, 1)) return -1;
    memcpy(schedule->text + offset, text, (size_t)n_bytes);
    schedule->text_bytes += n_bytes;
    return offset;
}

memo_status memo_schedule_create(memo_schedule** schedule, memo_error* error) {
    memo_schedule* made = (memo_schedule*)memob_calloc(1, sizeof(memo_schedule));
    *schedule = made;
    /* No array is NULL.  Text begins with the name of operations without one. */
    if (made && memob_grow(&made->ops, 0, 1, sizeof(memo_op)) &&
        memob_grow(&made->streams, 0, 1, sizeof(int64_t)) &&
        memob_grow(&made->events, 0, 1, sizeof(int64_t)) &&
        memob_grow(&made->ranges, 0, 1, sizeof(memo_range)) &&
        memob_grow(&made->named, 0, 1, sizeof(memo_named_bytes)) &&
        memoi_schedule_add_text(made, "run") == 0)
        return MEMO_STATUS_OK;
    memo_schedule_destroy(made);
    *schedule = NULL;
    return memob_no_memory(error, "a schedule");
}

void memo_schedule_destroy(memo_schedule* schedule) {
    if (!schedule) return;
    MEMO_FREE(schedule->ops);
    MEMO_FREE(schedule->streams);
    MEMO_FREE(schedule->events);
    MEMO_FREE(schedule->ranges);
    MEMO_FREE(schedule->named);
    MEMO_FREE(schedule->text);
    MEMO_FREE(schedule);
}

MEMOI memo_status memoi_schedule_has_stream(const memo_schedule* schedule, int32_t stream,
                                            memo_error* error) {
    return memob_check_integer("schedule", "stream", stream, 0, schedule->n_streams - 1, error);
}

memo_status memo_schedule_add_stream(memo_schedule* schedule, const char* name, int32_t* stream,
                                     memo_error* error) {
    int64_t text;
    if (!name) return MEMOB_INVALID(error, "stream: the name is NULL; pass a name");
    if (schedule->n_streams == INT32_MAX ||
        !memob_grow(&schedule->streams, schedule->n_streams, 1, sizeof(int64_t)) ||
        (text = memoi_schedule_add_text(schedule, name)) < 0)
        return memob_no_memory(error, "a stream of a schedule");
    *stream = schedule->n_streams++;
    schedule->streams[*stream] = text;
    return MEMO_STATUS_OK;
}

memo_status memo_schedule_add_event(memo_schedule* schedule, int32_t* event, memo_error* error) {
    if (schedule->n_events == INT32_MAX ||
        !memob_grow(&schedule->events, schedule->n_events, 1, sizeof(int64_t)))
        return memob_no_memory(error, "an event of a schedule");
    *event = schedule->n_events++;
    schedule->events[*event] = 0;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_schedule_check_ranges(const char* name, const char* what,
                                              const memo_range* ranges, int64_t n_ranges,
                                              memo_error* error) {
    if (n_ranges < 0 || (n_ranges && !ranges))
        return MEMOB_INVALID(error, "%s: %lld %s ranges%s", name, (long long)n_ranges, what,
                             ranges ? "" : " at NULL");
    for (int64_t i = 0; i < n_ranges; i++)
        if (ranges[i].begin > ranges[i].end)
            return MEMOB_INVALID(error, "%s: %s range %lld ends before it begins", name, what,
                                 (long long)i);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_schedule_check_desc(const memo_schedule* schedule, const memo_op_desc* desc,
                                            const char* name, memo_error* error) {
    if (memoi_schedule_has_stream(schedule, desc->stream, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    if (!memob_is_in(desc->duration_s, 0, MEMOB_DOUBLE_MAX))
        return MEMOB_INVALID(error, "%s.duration_s: must be finite and 0 or more", name);
    if (memob_check_integer(name, "link_bytes", desc->link_bytes, 0, INT64_MAX, error) ||
        memoi_schedule_check_ranges(name, "read", desc->reads, desc->n_reads, error) ||
        memoi_schedule_check_ranges(name, "written", desc->writes, desc->n_writes, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    return MEMO_STATUS_OK;
}

/* Appends an operation; the caller has made room. */
MEMOI memo_op* memoi_schedule_push(memo_schedule* schedule, memo_op_kind kind, int32_t stream,
                                   int32_t event) {
    memo_op* op = &schedule->ops[schedule->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->stream = stream;
    op->event = event;
    return op;
}

memo_status memo_schedule_add_op(memo_schedule* schedule, const memo_op_desc* desc,
                                 memo_error* error) {
    const char* name = desc->name ? desc->name : "run";
    int64_t n_ranges, text = 0;
    memo_op* op;
    if (memoi_schedule_check_desc(schedule, desc, name, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    n_ranges = desc->n_reads + desc->n_writes; /* only of counts that passed */
    if (!memob_grow(&schedule->ops, schedule->n_ops, 1, sizeof(memo_op)) ||
        !memob_grow(&schedule->ranges, schedule->n_ranges, n_ranges, sizeof(memo_range)) ||
        (desc->name && (text = memoi_schedule_add_text(schedule, name)) < 0))
        return memob_no_memory(error, "an operation of a schedule");

    /* Nothing fails from here on, so a failed call changes nothing. */
    op = memoi_schedule_push(schedule, MEMO_OP_RUN, desc->stream, -1);
    op->link_bytes = desc->link_bytes;
    op->duration_s = desc->duration_s;
    op->name = text;

    /* Ranges go to the end of the schedule's array. */
    op->first_range = schedule->n_ranges;
    op->n_reads = desc->n_reads;
    op->n_writes = desc->n_writes;
    if (desc->n_reads)
        memcpy(schedule->ranges + schedule->n_ranges, desc->reads,
               (size_t)desc->n_reads * sizeof(memo_range));
    if (desc->n_writes)
        memcpy(schedule->ranges + schedule->n_ranges + desc->n_reads, desc->writes,
               (size_t)desc->n_writes * sizeof(memo_range));
    schedule->n_ranges += n_ranges;
    return MEMO_STATUS_OK;
}

memo_status memo_schedule_add_order(memo_schedule* schedule, memo_op_kind kind, int32_t event,
                                    int32_t stream, memo_error* error) {
    const int has_event = kind != MEMO_OP_SYNC || event >= 0;
    const int has_stream = kind != MEMO_OP_SYNC || event < 0;
    if (memob_check_integer("schedule", "kind", kind, MEMO_OP_RECORD, MEMO_N_OP_KINDS - 1, error) ||
        (has_event &&
         memob_check_integer("schedule", "event", event, 0, schedule->n_events - 1, error)) ||
        (has_stream && memoi_schedule_has_stream(schedule, stream, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!memob_grow(&schedule->ops, schedule->n_ops, 1, sizeof(memo_op)))
        return memob_no_memory(error, "an operation of a schedule");
    (void)memoi_schedule_push(schedule, kind, has_stream ? stream : -1, has_event ? event : -1);
    return MEMO_STATUS_OK;
}

/* ---- >>names ------------------------------------------------------------------------------------
 * Knows: operations, streams, events and bytes in words.  Knows nothing of their order. */

/* A line of a file begins with the word of its operation, or with stream or buffer. */
static const char* const memoi_op_words[] = {"run", "record", "wait", "sync"};
MEMOB_TABLE_OF(MEMO_N_OP_KINDS, memoi_op_words);

const char* memo_schedule_op_name(const memo_schedule* schedule, int64_t op) {
    const memo_op_kind kind = schedule->ops[op].kind;
    return kind == MEMO_OP_RUN ? schedule->text + schedule->ops[op].name : memoi_op_words[kind];
}

memo_status memo_schedule_name_op(memo_schedule* schedule, int64_t op, const char* name,
                                  memo_error* error) {
    int64_t text;
    if (!name || op < 0 || op >= schedule->n_ops || schedule->ops[op].kind != MEMO_OP_RUN)
        return MEMOB_INVALID(error, "op %lld: out of range, or its name is NULL", (long long)op);
    text = memoi_schedule_add_text(schedule, name);
    if (text < 0) return memob_no_memory(error, "a name");
    schedule->ops[op].name = text;
    return MEMO_STATUS_OK;
}

memo_status memo_schedule_name_bytes(memo_schedule* schedule, memo_range bytes, const char* name,
                                     memo_error* error) {
    memo_named_bytes added;
    if (!name) return MEMOB_INVALID(error, "bytes: the name is NULL; pass a name");
    if (bytes.begin > bytes.end)
        return MEMOB_INVALID(error, "%s: its bytes end before they begin", name);
    added.bytes = bytes;
    if (!memob_grow(&schedule->named, schedule->n_named, 1, sizeof added) ||
        (added.name = memoi_schedule_add_text(schedule, name)) < 0)
        return memob_no_memory(error, "a name");
    schedule->named[schedule->n_named++] = added;
    return MEMO_STATUS_OK;
}

MEMOI const char* memoi_schedule_stream_name(const memo_schedule* schedule, int32_t stream) {
    return schedule->text + schedule->streams[stream];
}

/* Its name, or its number in a buffer of 16 bytes. */
MEMOI const char* memoi_schedule_event_name(const memo_schedule* schedule, int32_t event,
                                            char* number) {
    snprintf(number, 16, "%d", (int)event);
    return schedule->events[event] ? schedule->text + schedule->events[event] : number;
}

/* In quotes if it has blanks or could be mistaken for something else. */
MEMOI void memoi_schedule_put_quoted(memo_text* text, const char* name, int is_quoted) {
    memo_text_put(text, is_quoted || strchr(name, ' ') || !*name ? "\"%s\"" : "%s", name);
}

MEMOI void memoi_schedule_put_stream(memo_text* text, const memo_schedule* schedule, int64_t op) {
    memoi_schedule_put_quoted(text, memoi_schedule_stream_name(schedule, schedule->ops[op].stream),
                              0);
}

MEMOI void memoi_schedule_put_event(memo_text* text, const memo_schedule* schedule, int64_t op) {
    char number[16];
    memo_text_put(text, "event ");
    memoi_schedule_put_quoted(
        text, memoi_schedule_event_name(schedule, schedule->ops[op].event, number), 0);
}

/* " (operation 7, on compute)" */
MEMOI void memoi_schedule_put_place(memo_text* text, const memo_schedule* schedule, int64_t op) {
    memo_text_put(text, " (operation %lld", (long long)op);
    if (schedule->ops[op].stream >= 0) {
        memo_text_put(text, ", on ");
        memoi_schedule_put_stream(text, schedule, op);
    }
    memo_text_put(text, ")");
}

MEMOI void memoi_schedule_put_op(memo_text* text, const memo_schedule* schedule, int64_t op) {
    memoi_schedule_put_quoted(text, memo_schedule_op_name(schedule, op),
                              schedule->ops[op].kind == MEMO_OP_RUN);
    if (schedule->ops[op].event >= 0) {
        memo_text_put(text, schedule->ops[op].kind == MEMO_OP_RECORD ? " of " : " for ");
        memoi_schedule_put_event(text, schedule, op);
    }
    memoi_schedule_put_place(text, schedule, op);
}

/* Moves text into a buffer, cut to its size, and returns the buffer. */
MEMOI const char* memoi_schedule_take_text(memo_text* text, char* buffer, size_t n_bytes) {
    snprintf(buffer, n_bytes, "%s", text->data ? text->data : "");
    memo_text_free(text);
    return buffer;
}

const char* memo_schedule_describe(const memo_schedule* schedule, int64_t op, char* buffer,
                                   size_t n_bytes) {
    memo_text text = MEMO_ZERO(memo_text);
    memoi_schedule_put_op(&text, schedule, op);
    return memoi_schedule_take_text(&text, buffer, n_bytes);
}

/* ---- >>schedule order ---------------------------------------------------------------------------
 * Knows: which operation comes directly after which.  Knows nothing of bytes. */

/* An op comes after the previous op of its stream (a SYNC of a stream after the last op), after the
 * previous SYNC, and after the record that it waits for. */
enum { MEMOI_AFTER_STREAM, MEMOI_AFTER_HOST, MEMOI_AFTER_RECORD, MEMOI_AFTERS };

/* Fills order (n_ops, MEMOI_AFTERS) with indices of ops, -1: none.  Its memory is in arrays, which
 * the caller frees, also after a failure. */
MEMOI memo_status memoi_order_make(const memo_schedule* schedule, int64_t** order,
                                   memob_arrays* arrays, memo_error* error) {
    int64_t sync = -1, *last, *recorded;
    last = MEMOB_ARRAY(arrays, int64_t, schedule->n_streams);
    recorded = MEMOB_ARRAY(arrays, int64_t, schedule->n_events);
    *order = MEMOB_ARRAY(arrays, int64_t, MEMOI_AFTERS * schedule->n_ops);
    if (arrays->failed) return memob_no_memory(error, "the order of a schedule");

    for (int64_t i = 0; i < schedule->n_streams; i++) last[i] = -1;
    for (int64_t i = 0; i < schedule->n_events; i++) recorded[i] = -1;

    /* In the order of enqueueing, keeping the last op of each stream and the last record of each
     * event. */
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        int64_t* after = *order + MEMOI_AFTERS * i;
        int waits = op->event >= 0 && op->kind != MEMO_OP_RECORD;
        after[MEMOI_AFTER_STREAM] = op->stream >= 0 ? last[op->stream] : -1;
        after[MEMOI_AFTER_HOST] = sync;
        after[MEMOI_AFTER_RECORD] = waits ? recorded[op->event] : -1;
        if (op->kind == MEMO_OP_SYNC) {
            sync = i;
            continue;
        }
        last[op->stream] = i;
        if (op->kind == MEMO_OP_RECORD) recorded[op->event] = i;
    }
    return MEMO_STATUS_OK;
}

/* ---- >>schedule check ---------------------------------------------------------------------------
 * Knows: ranges of bytes, and reachability.  Knows nothing of time.
 *
 * Vector clocks.  clock[b][s] is the latest op on stream s that happens before op b or is b, -1:
 * none.  The ops of a stream run in the order of enqueueing, so a happens before b if and only if
 * clock[b][stream of a] >= a.
 *
 * Races.  For each op b and each stream s that is not its own, only the latest op a of s before b
 * that conflicts with b is examined: an earlier one on s happens before a, so it cannot race unless
 * a does.
 *
 * Redundant waits.  needed[b][s] is the latest op of s that conflicts with b and happens before b.
 * Without a wait clocks can only fall.  The wait is necessary if and only if some clock[b][s] falls
 * below needed[b][s]: then that conflict is not ordered.  Other conflicts of b on s are with
 * earlier ops than needed[b][s], so they need no more. */

/* A cell is the bytes between two neighboring ends of ranges. */
typedef struct memoi_cells {
    int64_t begin, end;
} memoi_cells;

typedef struct memoi_checker {
    const memo_schedule* schedule;
    int races_only; /* not waits */
    memo_check* check;
    int64_t* order;
    int64_t n_streams;
    int64_t* clock;    /* n_ops rows of n_streams */
    int64_t* needed;   /* the same */
    int64_t* lower;    /* the same clocks without one wait; valid if lowered is that wait + 1 */
    int64_t* lowered;  /* an op */
    int64_t* last_use; /* of each op: the last op that comes directly after it */
    uint64_t* ends;    /* begins and ends of all ranges, sorted, each once */
    int64_t n_ends;
    /* [0]: what an op touches, [1]: what of this it writes.  Of each op, from its first_range on:
     * cells, sorted and disjoint. */
    memoi_cells* cells[2];
    int64_t* n_cells[2]; /* an op */
    int64_t* last[2];    /* of each cell: the last op of one stream, + 1; 0: none */
    memob_arrays arrays; /* all of these */
} memoi_checker;

MEMOI int memoi_checker_compare_u64(const void* a, const void* b) {
    uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
    return (x > y) - (x < y);
}

MEMOI int memoi_checker_compare_races(const void* a, const void* b) {
    const memo_race *x = (const memo_race*)a, *y = (const memo_race*)b;
    return x->second != y->second ? memob_compare(x->second, y->second)
                                  : memob_compare(x->first, y->first);
}

/* The clock of op i from those before it, without the wait `without` (-1: none). */
MEMOI void memoi_checker_clock(const memoi_checker* c, int64_t i, int64_t without, int64_t* row) {
    const memo_op* op = &c->schedule->ops[i];
    for (int64_t s = 0; s < c->n_streams; s++) row[s] = -1;
    for (int k = 0; k < MEMOI_AFTERS; k++) {
        const int64_t before = c->order[MEMOI_AFTERS * i + k];
        const int64_t* other;
        if (before < 0 || (k == MEMOI_AFTER_RECORD && i == without)) continue;
        other = (c->lowered[before] == without + 1 ? c->lower : c->clock) + before * c->n_streams;
        for (int64_t s = 0; s < c->n_streams; s++) row[s] = memob_max(row[s], other[s]);
    }
    if (op->kind != MEMO_OP_SYNC) row[op->stream] = i; /* a SYNC is the host's */
}

/* The first cells that two lists share; 0: none. */
MEMOI int memoi_checker_meet(const memoi_cells* a, int64_t n_a, const memoi_cells* b, int64_t n_b,
                             memoi_cells* shared) {
    while (n_a && n_b) {
        shared->begin = memob_max(a->begin, b->begin);
        shared->end = memob_min(a->end, b->end);
        if (shared->begin < shared->end) return 1;
        if (a->end < b->end) {
            a++;
            n_a--;
        } else {
            b++;
            n_b--;
        }
    }
    return 0;
}

/* The first bytes that ops a and b share, one of them writing; 0: none. */
MEMOI int memoi_checker_conflict(const memoi_checker* c, int64_t a, int64_t b, memo_range* shared) {
    int64_t at_a = c->schedule->ops[a].first_range, at_b = c->schedule->ops[b].first_range;
    memoi_cells cells = {0, 0}, other;
    int found = 0;
    for (int k = 0; k < 2; k++) {
        if (!memoi_checker_meet(c->cells[k] + at_a, c->n_cells[k][a], c->cells[!k] + at_b,
                                c->n_cells[!k][b], &other) ||
            (found && other.begin >= cells.begin))
            continue;
        cells = other;
        found = 1;
    }
    if (!found) return 0;
    shared->begin = c->ends[cells.begin];
    shared->end = c->ends[cells.end];
    return 1;
}

/* The cell that begins at an end of a range. */
MEMOI int64_t memoi_checker_cell(const memoi_checker* c, uint64_t end) {
    return (const uint64_t*)bsearch(&end, c->ends, (size_t)c->n_ends, sizeof end,
                                    memoi_checker_compare_u64) -
           c->ends;
}

/* The cells of ranges, sorted and merged; returns the length of the list. */
MEMOI int64_t memoi_checker_list_cells(const memoi_checker* c, const memo_range* ranges,
                                       int64_t n_ranges, memoi_cells* list) {
    int64_t n = 0, n_merged = 0;
    for (int64_t i = 0; i < n_ranges; i++) {
        if (ranges[i].begin == ranges[i].end) continue;
        list[n].begin = memoi_checker_cell(c, ranges[i].begin);
        list[n++].end = memoi_checker_cell(c, ranges[i].end);
    }
    if (n) qsort(list, (size_t)n, sizeof(memoi_cells), memob_keyed_compare); /* by begin */
    for (int64_t i = 0; i < n; i++) {
        if (!n_merged || list[i].begin > list[n_merged - 1].end)
            list[n_merged++] = list[i];
        else
            list[n_merged - 1].end = memob_max(list[n_merged - 1].end, list[i].end);
    }
    return n_merged;
}

/* Op b (not on stream) against the ops of stream before it. */
MEMOI int memoi_checker_check_op(memoi_checker* c, int64_t b, int64_t stream) {
    const memo_schedule* schedule = c->schedule;
    const memo_op* op = &schedule->ops[b];
    int64_t latest = -1, ordered = c->clock[b * c->n_streams + stream];
    memo_range shared;

    /* The latest op of the stream that conflicts: reads against writes, writes against all. */
    for (int64_t k = 0; k < 2; k++)
        for (int64_t i = 0; i < c->n_cells[k][b]; i++) {
            const memoi_cells* cells = &c->cells[k][op->first_range + i];
            for (int64_t cell = cells->begin; cell < cells->end; cell++)
                latest = memob_max(latest, c->last[!k][cell] - 1);
        }
    if (latest < 0) return 1;
    c->check->n_conflicts++;

    /* Not ordered before b: a race.  Then look for the latest conflict that is ordered, which the
     * redundant waits must keep. */
    if (latest > ordered) {
        memo_race* race;
        if (!memob_grow(&c->check->races, c->check->n_races, 1, sizeof(memo_race))) return 0;
        race = &c->check->races[c->check->n_races++];
        race->first = latest;
        race->second = b;
        memoi_checker_conflict(c, latest, b, &race->range);
        for (latest = ordered; latest >= 0 && !c->races_only; latest--) {
            const memo_op* a = &schedule->ops[latest];
            if (a->kind == MEMO_OP_RUN && a->stream == stream &&
                memoi_checker_conflict(c, latest, b, &shared))
                break;
        }
    }
    c->needed[b * c->n_streams + stream] = latest;
    return 1;
}

/* Fills races and needed. */
MEMOI int memoi_checker_check_conflicts(memoi_checker* c) {
    const memo_schedule* schedule = c->schedule;
    for (int64_t i = 0; i < schedule->n_ops * c->n_streams; i++) c->needed[i] = -1;

    /* One stream at a time: its last touches take little room. */
    for (int64_t stream = 0; stream < c->n_streams; stream++) {
        for (int64_t w = 0; w < 2; w++) memset(c->last[w], 0, (size_t)c->n_ends * sizeof(int64_t));
        for (int64_t i = 0; i < schedule->n_ops; i++) {
            const memo_op* op = &schedule->ops[i];
            if (op->kind != MEMO_OP_RUN) continue;
            if (op->stream != stream) {
                if (!memoi_checker_check_op(c, i, stream)) return 0;
                continue;
            }
            for (int64_t w = 0; w < 2; w++)
                for (int64_t k = 0; k < c->n_cells[w][i]; k++) {
                    const memoi_cells* cells = &c->cells[w][op->first_range + k];
                    for (int64_t cell = cells->begin; cell < cells->end; cell++)
                        c->last[w][cell] = i + 1;
                }
        }
    }

    if (c->check->n_races)
        qsort(c->check->races, (size_t)c->check->n_races, sizeof(memo_race),
              memoi_checker_compare_races);
    return 1;
}

/* Does every ordered conflict stay ordered without this wait?  Only ops whose clocks fall are
 * visited. */
MEMOI int memoi_checker_wait_is_redundant(memoi_checker* c, int64_t wait) {
    int64_t reach = wait;
    for (int64_t i = wait; i <= reach; i++) {
        int64_t *row = c->lower + i * c->n_streams, *needed = c->needed + i * c->n_streams;
        int is_touched = i == wait;
        for (int k = 0; k < MEMOI_AFTERS && !is_touched; k++) {
            const int64_t before = c->order[MEMOI_AFTERS * i + k];
            is_touched = before >= 0 && c->lowered[before] == wait + 1;
        }
        if (!is_touched) continue;
        memoi_checker_clock(c, i, wait, row);
        if (!memcmp(row, c->clock + i * c->n_streams, (size_t)c->n_streams * sizeof(int64_t)))
            continue;
        for (int64_t s = 0; s < c->n_streams; s++)
            if (row[s] < needed[s]) return 0;
        c->lowered[i] = wait + 1;
        reach = memob_max(reach, c->last_use[i]);
    }
    return 1;
}

/* Arrays, and the cells of each op. */
MEMOI int memoi_checker_prepare(memoi_checker* c) {
    const memo_schedule* schedule = c->schedule;
    memob_arrays* arrays = &c->arrays;
    int64_t n_ranges = schedule->n_ranges, n_clocks;
    if (schedule->n_ops > MEMOB_BYTES_MAX / 64 / (c->n_streams + 1)) return 0;
    n_clocks = schedule->n_ops * c->n_streams;
    c->clock = MEMOB_ARRAY(arrays, int64_t, n_clocks);
    c->needed = MEMOB_ARRAY(arrays, int64_t, n_clocks);
    c->lower = MEMOB_ARRAY(arrays, int64_t, n_clocks);
    c->lowered = MEMOB_ARRAY(arrays, int64_t, schedule->n_ops);
    c->last_use = MEMOB_ARRAY(arrays, int64_t, schedule->n_ops);
    c->ends = MEMOB_ARRAY(arrays, uint64_t, 2 * n_ranges);
    for (int64_t k = 0; k < 2; k++) {
        c->last[k] = MEMOB_ARRAY(arrays, int64_t, 2 * n_ranges);
        c->cells[k] = MEMOB_ARRAY(arrays, memoi_cells, n_ranges);
        c->n_cells[k] = MEMOB_ARRAY(arrays, int64_t, schedule->n_ops);
    }
    c->check->redundant_waits = (int64_t*)memob_calloc(schedule->n_ops, sizeof(int64_t));
    c->check->unrecorded_waits = (int64_t*)memob_calloc(schedule->n_ops, sizeof(int64_t));
    if (arrays->failed || !c->check->redundant_waits || !c->check->unrecorded_waits) return 0;

    /* All ends, each once; between neighbors lie the cells. */
    for (int64_t i = 0; i < n_ranges; i++) {
        c->ends[2 * i] = schedule->ranges[i].begin;
        c->ends[2 * i + 1] = schedule->ranges[i].end;
    }
    qsort(c->ends, (size_t)(2 * n_ranges), sizeof(uint64_t), memoi_checker_compare_u64);
    for (int64_t i = 0; i < 2 * n_ranges; i++)
        if (!i || c->ends[i] != c->ends[i - 1]) c->ends[c->n_ends++] = c->ends[i];
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        for (int64_t k = 0; k < 2; k++) {
            const int64_t first = op->first_range + (k ? op->n_reads : 0);
            c->n_cells[k][i] = memoi_checker_list_cells(c, schedule->ranges + first,
                                                        op->n_writes + (k ? 0 : op->n_reads),
                                                        c->cells[k] + op->first_range);
        }
    }
    return 1;
}

MEMOI int memoi_checker_run(memoi_checker* c) {
    const memo_schedule* schedule = c->schedule;
    memo_check* check = c->check;
    if (!memoi_checker_prepare(c)) return 0;

    /* Order, then conflicts. */
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        memoi_checker_clock(c, i, -2, c->clock + i * c->n_streams);
        for (int k = 0; k < MEMOI_AFTERS; k++) {
            const int64_t before = c->order[MEMOI_AFTERS * i + k];
            if (before >= 0) c->last_use[before] = i;
        }
    }
    if (!memoi_checker_check_conflicts(c)) return 0;

    /* Waits: for nothing, or without need. */
    for (int64_t i = 0; i < schedule->n_ops && !c->races_only; i++) {
        const memo_op* op = &schedule->ops[i];
        if (op->event >= 0 && op->kind != MEMO_OP_RECORD &&
            c->order[MEMOI_AFTERS * i + MEMOI_AFTER_RECORD] < 0)
            check->unrecorded_waits[check->n_unrecorded_waits++] = i;
        if (op->kind != MEMO_OP_WAIT) continue;
        check->n_waits++;
        if (memoi_checker_wait_is_redundant(c, i))
            check->redundant_waits[check->n_redundant_waits++] = i;
    }
    return 1;
}

MEMOI memo_status memoi_check(const memo_schedule* schedule, int races_only, memo_check** check,
                              memo_error* error) {
    memoi_checker c = MEMO_ZERO(memoi_checker);
    int is_done;
    c.schedule = schedule;
    c.races_only = races_only;
    c.n_streams = schedule->n_streams;
    c.check = (memo_check*)memob_calloc(1, sizeof(memo_check));
    is_done =
        c.check && !memoi_order_make(schedule, &c.order, &c.arrays, NULL) && memoi_checker_run(&c);
    memob_arrays_free(&c.arrays);
    if (!is_done) memo_check_destroy(c.check);
    *check = is_done ? c.check : NULL;
    return is_done ? MEMO_STATUS_OK : memob_no_memory(error, "the check of a schedule");
}

memo_status memo_schedule_check(const memo_schedule* schedule, memo_check** check,
                                memo_error* error) {
    return memoi_check(schedule, 0, check, error);
}

void memo_check_destroy(memo_check* check) {
    if (!check) return;
    MEMO_FREE(check->races);
    MEMO_FREE(check->redundant_waits);
    MEMO_FREE(check->unrecorded_waits);
    MEMO_FREE(check);
}

/* ---- >>race explanation -------------------------------------------------------------------------
 * Knows: a race, and the wait that would prevent it.  Knows nothing of how races are found. */

/* The last op of a kind before op i, of event and on a stream of op `on` (-1: any); -1: none. */
MEMOI int64_t memoi_race_last_before(const memo_schedule* schedule, memo_op_kind kind,
                                     int32_t event, int64_t on, int64_t i) {
    for (i--; i >= 0; i--) {
        const memo_op* op = &schedule->ops[i];
        if (op->kind == kind && (event < 0 || op->event == event) &&
            (on < 0 || schedule->ops[on].stream == op->stream))
            break;
    }
    return i;
}

MEMOI int64_t memoi_race_record_before(const memo_schedule* schedule, int32_t event, int64_t i) {
    return memoi_race_last_before(schedule, MEMO_OP_RECORD, event, -1, i);
}

/* A record after the first operation that would order the race if the stream of the second waited
 * for it; -1: none.  Any would do.  If that stream waits for its event elsewhere (*wait), this is
 * probably the intended one. */
MEMOI int64_t memoi_race_missed_record(const memo_schedule* schedule, const memo_race* race,
                                       int64_t* wait) {
    int64_t record = -1;
    int n_candidates = 64; /* each looks through all waits */
    *wait = -1;
    for (int64_t i = race->first + 1; i < race->second && n_candidates && *wait < 0; i++) {
        if (schedule->ops[i].kind != MEMO_OP_RECORD ||
            schedule->ops[i].stream != schedule->ops[race->first].stream)
            continue;
        *wait = memoi_race_last_before(schedule, MEMO_OP_WAIT, schedule->ops[i].event, race->second,
                                       race->second);
        if (record < 0 || *wait >= 0) record = i;
        n_candidates--;
    }
    return record;
}

MEMOI int memoi_race_op_writes(const memo_schedule* schedule, int64_t op, memo_range bytes) {
    const memo_range* written = schedule->ranges + schedule->ops[op].first_range;
    written += schedule->ops[op].n_reads;
    for (int64_t k = 0; k < schedule->ops[op].n_writes; k++)
        if (written[k].begin < bytes.end && bytes.begin < written[k].end) return 1;
    return 0;
}

/* "bytes 0..512 of act", of the smallest named bytes around them; else addresses. */
MEMOI void memoi_race_put_bytes(memo_text* text, const memo_schedule* schedule, memo_range bytes) {
    const memo_named_bytes* around = NULL;
    for (int64_t i = 0; i < schedule->n_named; i++) {
        const memo_range* b = &schedule->named[i].bytes;
        if (b->begin <= bytes.begin && b->end >= bytes.end &&
            (!around || b->end - b->begin < around->bytes.end - around->bytes.begin))
            around = &schedule->named[i];
    }
    memo_text_put(text, around ? "bytes %llu..%llu" : "bytes 0x%llx..0x%llx",
                  (unsigned long long)(bytes.begin - (around ? around->bytes.begin : 0)),
                  (unsigned long long)(bytes.end - (around ? around->bytes.begin : 0)));
    if (!around) return;
    memo_text_put(text, " of ");
    memoi_schedule_put_quoted(text, schedule->text + around->name, 0);
}

/* "its second record (operation 7, on d2h)" */
MEMOI void memoi_race_put_record(memo_text* text, const memo_schedule* schedule, int64_t record) {
    static const char* const ordinals[] = {"first", "second", "third", "fourth", "fifth"};
    int64_t i = record, number = 1;
    while ((i = memoi_race_record_before(schedule, schedule->ops[record].event, i)) >= 0) number++;
    if (number <= 5)
        memo_text_put(text, "its %s record", ordinals[number - 1]);
    else
        memo_text_put(text, "its record number %lld", (long long)number);
    memoi_schedule_put_place(text, schedule, record);
}

/* Why the second operation does not come after the first, and what the wait that fixes it waits
 * for. */
MEMOI void memoi_race_put_reason(memo_text* text, const memo_schedule* schedule,
                                 const memo_race* race) {
    int64_t wait, record = memoi_race_missed_record(schedule, race, &wait), last, seen, until;
    int is_replaced = wait > record;
    if (record < 0) {
        memo_text_put(text, "no event is recorded on ");
        memoi_schedule_put_stream(text, schedule, race->first);
        memo_text_put(text, " between the two");
    } else {
        memoi_schedule_put_stream(text, schedule, race->second);
        memo_text_put(text, is_replaced ? " waits for " : " never waits for ");
        memoi_schedule_put_event(text, schedule, record);
        memo_text_put(text, is_replaced ? " too late, after " : " after ");
        if (is_replaced) {
            memoi_race_put_record(
                text, schedule,
                memoi_race_record_before(schedule, schedule->ops[record].event, wait));
            memo_text_put(text, " has replaced ");
        }
        memoi_race_put_record(text, schedule, record);
    }

    /* The existing wait shows which wait was assumed to suffice. */
    last = memoi_race_last_before(schedule, MEMO_OP_WAIT, -1, race->second, race->second);
    if (last >= 0 && last != wait) {
        seen = memoi_race_record_before(schedule, schedule->ops[last].event, last);
        memo_text_put(text, "; the last wait of ");
        memoi_schedule_put_stream(text, schedule, last);
        memo_text_put(text, " is for ");
        memoi_schedule_put_event(text, schedule, last);
        memo_text_put(text, seen < 0 ? ", never recorded before" : ", recorded");
        if (seen >= 0 && seen < race->first &&
            schedule->ops[seen].stream == schedule->ops[race->first].stream)
            memo_text_put(text, " too early");
        if (seen >= 0) memoi_schedule_put_place(text, schedule, seen);
    }

    /* The next record of the event would replace the one to wait for. */
    memo_text_put(text, "; fix: ");
    until = race->second;
    if (record < 0) {
        memo_text_put(text, "record an event after operation %lld and ", (long long)race->first);
        record = race->first;
    } else {
        for (until = record + 1; until < race->second; until++)
            if (schedule->ops[until].kind == MEMO_OP_RECORD &&
                schedule->ops[until].event == schedule->ops[record].event)
                break;
    }
    memo_text_put(text, "let ");
    memoi_schedule_put_stream(text, schedule, race->second);
    memo_text_put(text, " wait for it between operations %lld and %lld", (long long)record,
                  (long long)until);
}

const char* memo_race_explain(const memo_schedule* schedule, const memo_race* race, char* buffer,
                              size_t n_bytes) {
    memo_text text = MEMO_ZERO(memo_text);
    memoi_schedule_put_op(&text, schedule, race->second);
    memo_text_put(&text, memoi_race_op_writes(schedule, race->second, race->range) ? " writes "
                                                                                   : " reads ");
    memoi_race_put_bytes(&text, schedule, race->range);
    memo_text_put(&text, " that ");
    memoi_schedule_put_op(&text, schedule, race->first);
    memo_text_put(&text,
                  memoi_race_op_writes(schedule, race->first, race->range) ? " writes" : " reads");
    memo_text_put(&text, "; no path: ");
    memoi_race_put_reason(&text, schedule, race);
    return memoi_schedule_take_text(&text, buffer, n_bytes);
}

/* ---- >>plan check -------------------------------------------------------------------------------
 * Knows: offsets, and the order of requests on streams.  Knows nothing of lifetimes and holds, or
 * of anything else that memo_plan_from_trace has computed.
 *
 * The requests become operations of a schedule, which >>schedule check examines twice.  First each
 * malloc writes a byte of its own, which uses read: a race is a stream that uses the buffer without
 * waiting for its request, so it may use it directly after the request.
 *
 * Then a malloc reads the place of its buffer, on each stream that may use it directly, and each
 * later request writes the place.  A malloc in a race follows a buffer that is still in use.  It is
 * repeated on a stream that nothing waits for: in a race with it, an older buffer ends.  On another
 * such stream persistent buffers that the body requests are written first of all: in replay they
 * are requested before the body. */

typedef struct memoi_places {
    const memo_plan* plan;
    const memo_trace* trace;
    memo_schedule* schedule; /* its streams: the trace's, then the two that nothing waits for */
    int32_t n_streams;       /* of the trace */
    int is_second;           /* the schedule of places */
    int64_t body;            /* the mark that begins the body; -1: there is none */
    int64_t* buffers;        /* of each request that is a malloc */
    uint64_t* early;         /* of each buffer: streams that may use it directly */
    uint8_t* ends;           /* of each buffer: it is freed, and not persistent */
    memob_map events;
    memob_arrays arrays;
    memo_status status; /* after a failure nothing is added */
    memo_error* error;
} memoi_places;

MEMOI int memoi_places_is_lifted(const memoi_places* p, int64_t i) {
    const memo_request* request = &p->trace->requests[i];
    return request->kind == MEMO_REQUEST_MALLOC && i > p->body &&
           request->memory_class == MEMO_CLASS_PERSISTENT;
}

/* An operation of buffer b: its malloc, or a later request. */
MEMOI void memoi_places_add(memoi_places* p, int32_t stream, int64_t b, int is_malloc) {
    memo_op_desc op = MEMO_ZERO(memo_op_desc);
    memo_range place;
    place.begin = (uint64_t)(p->is_second ? p->plan->buffers[b].offset_bytes : b);
    place.end = place.begin + (uint64_t)(p->is_second ? memob_buffer_bytes(p->plan, b) : 1);
    op.stream = stream;
    op.link_bytes = b;
    op.reads = op.writes = &place;
    op.n_reads = is_malloc == p->is_second;
    op.n_writes = !op.n_reads;
    if (!p->status) p->status = memo_schedule_add_op(p->schedule, &op, p->error);
}

/* The bought waits of buffer b: makes them at its malloc, or their records at its free. */
MEMOI void memoi_places_buy(memoi_places* p, int64_t b, int is_free) {
    for (int32_t w = 0; w < p->plan->n_waits && !p->status; w++) {
        const memo_wait* wait = &p->plan->waits[w];
        if (is_free && wait->freed == b)
            p->status =
                memo_schedule_add_order(p->schedule, MEMO_OP_RECORD, w, wait->from, p->error);
        if (!is_free && wait->requested == b)
            p->status = memo_schedule_add_order(p->schedule, MEMO_OP_WAIT, w, wait->to, p->error);
    }
}

/* A record or a wait of an event, which exists from its first one on. */
MEMOI void memoi_places_order(memoi_places* p, const memo_request* request) {
    int32_t event = (int32_t)memob_map_get(&p->events, request->id);
    if (event < 0) {
        p->status = memo_schedule_add_event(p->schedule, &event, p->error);
        if (!p->status && !memob_map_put(&p->events, request->id, event))
            p->status = memob_no_memory(p->error, "checking a plan");
    }
    if (!p->status)
        p->status = memo_schedule_add_order(
            p->schedule, request->kind == MEMO_REQUEST_RECORD ? MEMO_OP_RECORD : MEMO_OP_WAIT,
            event, request->stream, p->error);
}

MEMOI void memoi_places_request(memoi_places* p, int64_t i) {
    const memo_request* request = &p->trace->requests[i];
    const int64_t origin = memob_request_origin(p->trace, i);
    const memo_request* malloced = &p->trace->requests[origin < 0 ? i : origin];
    const int64_t b = origin < 0 ? -1 : p->buffers[origin];
    switch (request->kind) {
    case MEMO_REQUEST_MARK: break;
    case MEMO_REQUEST_MALLOC:
        memoi_places_buy(p, b, 0);
        for (int32_t s = 0; s <= p->n_streams; s++)
            if (s == request->stream ||
                (p->is_second && (s == p->n_streams || p->early[b] >> s & 1)))
                memoi_places_add(p, s, b, 1);
        break;
    case MEMO_REQUEST_USE: memoi_places_add(p, request->stream, b, 0); break;
    case MEMO_REQUEST_FREE:
        p->ends[b] = malloced->memory_class != MEMO_CLASS_PERSISTENT;
        memoi_places_add(p, malloced->stream, b, 0);
        memoi_places_buy(p, b, 1);
        break;
    default: memoi_places_order(p, request); break;
    }
}

MEMOI void memoi_places_walk(memoi_places* p) {
    const int64_t n_requests = p->trace->n_requests;
    int32_t none;
    p->status = memo_schedule_create(&p->schedule, p->error);
    for (int64_t i = 0; i < p->n_streams + 2 && !p->status; i++)
        p->status = memo_schedule_add_stream(p->schedule, "", &none, p->error);
    for (int64_t i = 0; i < p->plan->n_waits && !p->status; i++)
        p->status = memo_schedule_add_event(p->schedule, &none, p->error);
    for (int64_t i = 0; i < n_requests && p->is_second; i++)
        if (memoi_places_is_lifted(p, i)) memoi_places_add(p, p->n_streams + 1, p->buffers[i], 0);
    for (int64_t i = 0; i < n_requests && !p->status; i++) memoi_places_request(p, i);

    /* Buffers that never end block their place for ever. */
    for (int64_t k = 0; k < p->plan->n_buffers && p->is_second; k++)
        if (!p->ends[k]) memoi_places_add(p, 0, k, 0);
}

/* Races of the first schedule become early streams.  Of the second, the first one between two
 * buffers is an error. */
MEMOI memo_status memoi_places_judge(memoi_places* p, const memo_check* check, memo_error* error) {
    for (int64_t i = 0; i < check->n_races; i++) {
        const memo_op* before = &p->schedule->ops[check->races[i].first];
        const memo_op* after = &p->schedule->ops[check->races[i].second];
        int64_t first = before->link_bytes, second = after->link_bytes;
        int32_t stream = after->stream;

        if (!p->is_second) {
            p->early[second] |= (uint64_t)1 << stream;
            continue;
        }
        if (first == second || stream >= p->n_streams ||
            (!after->n_reads && before->stream != p->n_streams))
            continue;
        if (before->stream == p->n_streams) { /* the second is malloced before the first ends */
            second = first;
            first = after->link_bytes;
            stream = before[-1].stream; /* its operation before this one */
        }

        return MEMOB_INVALID(
            error,
            "buffers %lld (id %lld) and %lld (id %lld) share bytes, and stream %d may use the "
            "second before all uses of the first are done",
            (long long)first, (long long)p->plan->buffers[first].id, (long long)second,
            (long long)p->plan->buffers[second].id, (int)stream);
    }
    return MEMO_STATUS_OK;
}

/* Finds the malloc of each buffer of the plan.  Position by position, both must agree. */
MEMOI memo_status memoi_places_match(memoi_places* p, memo_error* error) {
    const memo_trace* trace = p->trace;
    int64_t n = 0, time;

    /* The order that memo_plan_from_trace gives its buffers: first those that begin at 0. */
    for (int is_later = 0; is_later < 2; is_later++)
        for (int64_t i = time = 0; i < trace->n_requests; i++) {
            const memo_request* request = &trace->requests[i];
            const memo_buffer* buffer = &p->plan->buffers[n];
            time += request->kind == MEMO_REQUEST_MALLOC || request->kind == MEMO_REQUEST_FREE;
            if (request->kind != MEMO_REQUEST_MALLOC ||
                (time == 1 || memoi_places_is_lifted(p, i)) == is_later)
                continue;
            if (buffer->id != request->id || buffer->size_bytes < request->size_bytes)
                return MEMOB_INVALID(
                    error,
                    "plan.buffers[%lld]: id %lld of %lld bytes does not match the trace's id %lld "
                    "of %lld bytes; plan this trace",
                    (long long)n, (long long)buffer->id, (long long)buffer->size_bytes,
                    (long long)request->id, (long long)request->size_bytes);
            p->buffers[i] = n++;
        }
    return MEMO_STATUS_OK;
}

/* Streams, the body, and waits in range. */
MEMOI memo_status memoi_places_create(memoi_places* p, memo_error* error) {
    const int64_t n_buffers = p->trace->n_buffers;
    int64_t n_streams = 1;
    p->body = -1;
    for (int64_t i = 0; i < p->trace->n_requests; i++) {
        memo_mark mark = memob_request_mark(p->trace, i);
        if (p->body < 0 && mark.phase == MEMO_PHASE_ITERATION && !mark.is_end) p->body = i;
        n_streams = memob_max(n_streams, (int64_t)p->trace->requests[i].stream + 1);
    }

    p->buffers = MEMOB_ARRAY(&p->arrays, int64_t, p->trace->n_requests);
    p->early = MEMOB_ARRAY(&p->arrays, uint64_t, n_buffers);
    p->ends = MEMOB_ARRAY(&p->arrays, uint8_t, n_buffers);
    if (p->arrays.failed) return memob_no_memory(error, "checking a plan");
    for (int64_t i = 0; i < p->plan->n_waits; i++) {
        const memo_wait* wait = &p->plan->waits[i];
        n_streams = memob_max(n_streams, 1 + memob_max(wait->from, wait->to));
        if (wait->freed < 0 || wait->freed >= n_buffers || wait->requested < 0 ||
            wait->requested >= n_buffers || wait->from < 0 || wait->to < 0 ||
            n_streams > MEMOB_STREAMS)
            return MEMOB_INVALID(error,
                                 "plan.waits[%lld]: a buffer or stream is out of range; "
                                 "memo_plan_validate checks the plan",
                                 (long long)i);
    }
    p->n_streams = (int32_t)n_streams;
    return MEMO_STATUS_OK;
}

memo_status memo_plan_check(const memo_plan* plan, const memo_trace* trace, memo_error* error) {
    memoi_places p = MEMO_ZERO(memoi_places);
    if (plan->n_buffers != trace->n_buffers)
        return MEMOB_INVALID(
            error, "plan.n_buffers: %lld do not match the %lld of the trace; plan this trace",
            (long long)plan->n_buffers, (long long)trace->n_buffers);
    p.plan = plan;
    p.trace = trace;
    p.error = error;
    p.status = memoi_places_create(&p, error);
    if (!p.status) p.status = memoi_places_match(&p, error);
    for (; p.is_second < 2 && !p.status; p.is_second++) {
        memo_check* check = NULL;
        memoi_places_walk(&p);
        if (!p.status) p.status = memoi_check(p.schedule, 1, &check, error);
        if (!p.status) p.status = memoi_places_judge(&p, check, error);
        memo_check_destroy(check);
        memo_schedule_destroy(p.schedule);
        memob_map_free(&p.events);
    }
    memob_arrays_free(&p.arrays);
    return p.status;
}

/* ---- >>simulation -------------------------------------------------------------------------------
 * Knows: durations and order.  Knows nothing of bytes. */

/* start_s owns the memory of all arrays, and of two numbers for each stream behind them. */
MEMOI memo_status memoi_simulation_create(const memo_schedule* schedule, memo_simulation** result,
                                          memo_error* error) {
    const int64_t n_ops = schedule->n_ops, n_streams = schedule->n_streams;
    memo_simulation* simulation = (memo_simulation*)memob_calloc(1, sizeof(memo_simulation));
    *result = simulation;
    if (simulation)
        simulation->start_s = (double*)memob_calloc(2 * n_ops + 4 * n_streams, sizeof(double));
    if (!simulation || !simulation->start_s) return memob_no_memory(error, "a simulation");
    simulation->end_s = simulation->start_s + n_ops;
    simulation->busy_s = simulation->end_s + n_ops;
    simulation->stall_s = simulation->busy_s + n_streams;
    return MEMO_STATUS_OK;
}

void memo_simulation_destroy(memo_simulation* simulation) {
    if (simulation) MEMO_FREE(simulation->start_s);
    MEMO_FREE(simulation);
}

/* The figures that follow from start_s and end_s. */
MEMOI void memoi_simulation_sum(const memo_schedule* schedule, memo_simulation* simulation) {
    double *first = simulation->stall_s + schedule->n_streams, *last = first + schedule->n_streams;
    /* Makespan, and busy time of each stream. */
    for (int64_t i = 0; i < schedule->n_streams; i++) first[i] = -1;
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        double start = simulation->start_s[i], end = simulation->end_s[i];
        if (end > simulation->makespan_s) simulation->makespan_s = end;
        if (op->kind != MEMO_OP_RUN) continue;
        if (first[op->stream] < 0) first[op->stream] = start;
        last[op->stream] = end;
        simulation->busy_s[op->stream] += end - start;
    }

    /* A stall is idle time between the first start and the last end. */
    for (int64_t i = 0; i < schedule->n_streams; i++) {
        double stall = last[i] - first[i] - simulation->busy_s[i];
        simulation->stall_s[i] = first[i] >= 0 && stall > 0 ? stall : 0;
    }
}

/* An op that takes no time: it is reached after the ops before it, and passes with those it waits
 * for. */
MEMOI void memoi_simulation_pass_op(const memo_schedule* schedule, const int64_t* order,
                                    memo_simulation* simulation, int64_t i) {
    const memo_op* op = &schedule->ops[i];
    double reached = 0, passed = 0;
    for (int k = 0; k < MEMOI_AFTERS; k++) {
        const int64_t before = order[MEMOI_AFTERS * i + k];
        const int holds =
            k == MEMOI_AFTER_RECORD || (k == MEMOI_AFTER_STREAM && op->kind == MEMO_OP_SYNC);
        if (before < 0) continue;
        passed = fmax(passed, simulation->end_s[before]);
        if (!holds) reached = fmax(reached, simulation->end_s[before]);
    }
    simulation->start_s[i] = reached;
    simulation->end_s[i] = passed;
}

MEMOI int memoi_simulation_is_measured(const memo_op* op) {
    return op->start_s != 0 || op->end_s != 0;
}

/* Sets all times: measured ones, counted from *first_s, or with first_s NULL by durations.  An op
 * comes after ops that were enqueued before it, so one pass is enough. */
MEMOI memo_status memoi_simulation_make(const memo_schedule* schedule, const double* first_s,
                                        memo_simulation** simulation, memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memo_simulation* result = NULL;
    int64_t* order;
    memo_status status = memoi_order_make(schedule, &order, &arrays, error);
    if (!status) status = memoi_simulation_create(schedule, &result, error);
    for (int64_t i = 0; !status && i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        memoi_simulation_pass_op(schedule, order, result, i);
        if (first_s && memoi_simulation_is_measured(op)) {
            result->start_s[i] = op->start_s - *first_s;
            result->end_s[i] = op->end_s - *first_s;
        } else if (!first_s && op->kind == MEMO_OP_RUN) {
            result->end_s[i] += op->duration_s;
        }
    }
    if (!status) memoi_simulation_sum(schedule, result);
    if (!status && !memob_is_in(result->makespan_s, 0, MEMOB_DOUBLE_MAX))
        status = MEMOB_INVALID(error, "duration_s: their sum overflows a double");

    memob_arrays_free(&arrays);
    if (status) {
        memo_simulation_destroy(result);
        result = NULL;
    }
    *simulation = result;
    return status;
}

memo_status memo_schedule_simulate(const memo_schedule* schedule, memo_simulation** simulation,
                                   memo_error* error) {
    *simulation = NULL;
    /* The caller may have changed the public fields. */
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (!memob_is_in(schedule->ops[i].duration_s, 0, MEMOB_DOUBLE_MAX))
            return MEMOB_INVALID(error, "op %lld (%s): duration_s must be finite and 0 or more",
                                 (long long)i, memo_schedule_op_name(schedule, i));
    return memoi_simulation_make(schedule, NULL, simulation, error);
}

memo_status memo_schedule_measured(const memo_schedule* schedule, memo_simulation** simulation,
                                   memo_error* error) {
    double first_s = 0;
    int64_t n_measured = 0;
    *simulation = NULL;
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        if (!memoi_simulation_is_measured(op)) continue;
        if (!n_measured++ || op->start_s < first_s) first_s = op->start_s;
    }
    if (!n_measured)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "schedule: it has no measured times; set "
                              "memo_recorder_desc.is_timed, and use memo_recorder_get_schedule");
    return memoi_simulation_make(schedule, &first_s, simulation, error);
}

/* ---- >>schedule comparison ----------------------------------------------------------------------
 * Knows: two schedules.  Knows nothing of their times. */

/* How op i of two schedules differs, in a few words; NULL: it does not. */
MEMOI const char* memoi_comparison_op_difference(const memo_schedule* a, const int64_t* order_a,
                                                 const memo_schedule* b, const int64_t* order_b,
                                                 int64_t i) {
    const memo_op *x = &a->ops[i], *y = &b->ops[i];
    const int64_t record = MEMOI_AFTERS * i + MEMOI_AFTER_RECORD;
    if (x->kind != y->kind) return "kind";
    if (strcmp(memo_schedule_op_name(a, i), memo_schedule_op_name(b, i))) return "name";
    if ((x->stream < 0) != (y->stream < 0)) return "kind of sync";
    if (x->stream >= 0 &&
        strcmp(memoi_schedule_stream_name(a, x->stream), memoi_schedule_stream_name(b, y->stream)))
        return "stream";
    if (order_a[record] != order_b[record]) return "record waited for";
    if (x->n_reads != y->n_reads || x->n_writes != y->n_writes) return "number of ranges";
    for (int64_t k = 0; k < x->n_reads + x->n_writes; k++) {
        const memo_range* r = &a->ranges[x->first_range + k];
        const memo_range* q = &b->ranges[y->first_range + k];
        if (r->end - r->begin != q->end - q->begin) return "size of a range";
    }
    return NULL;
}

memo_status memo_schedule_compare(const memo_schedule* promised, const memo_schedule* recorded,
                                  memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    int64_t *order_p, *order_r;
    memo_status status = memoi_order_make(promised, &order_p, &arrays, error);
    char name_p[160], name_r[160];
    int64_t i, n = memob_min(promised->n_ops, recorded->n_ops);
    if (!status) status = memoi_order_make(recorded, &order_r, &arrays, error);

    /* The first op that differs explains more than the number of ops. */
    for (i = 0; i < n && !status; i++) {
        const char* what = memoi_comparison_op_difference(promised, order_p, recorded, order_r, i);
        if (what)
            status = MEMOB_INVALID(error, "op %lld differs in its %s: promised %s; recorded %s",
                                   (long long)i, what,
                                   memo_schedule_describe(promised, i, name_p, sizeof name_p),
                                   memo_schedule_describe(recorded, i, name_r, sizeof name_r));
    }
    if (!status && promised->n_ops != recorded->n_ops)
        status =
            MEMOB_INVALID(error, "%s is only in the %s schedule: promised %lld ops, recorded %lld",
                          memo_schedule_describe(promised->n_ops > n ? promised : recorded, n,
                                                 name_p, sizeof name_p),
                          promised->n_ops > n ? "promised" : "recorded", (long long)promised->n_ops,
                          (long long)recorded->n_ops);

    memob_arrays_free(&arrays);
    return status;
}

/* ---- >>svg pieces -------------------------------------------------------------------------------
 * Knows: rectangles, lines and text of SVG.  Knows nothing of what is drawn.  Attributes begin
 * with a blank, or are empty. */

MEMOI void memoi_svg_set_points(memo_text* text, int64_t begin) {
    for (; begin < text->n_bytes; begin++)
        if (text->data[begin] == ',') text->data[begin] = '.';
}
/* memo_text_put with a decimal point in every locale.  Nothing else may have a comma. */
#define MEMOI_PUT_NUMBERS(text, ...)                                                               \
    do {                                                                                           \
        const int64_t memoi_begin = (text)->n_bytes;                                               \
        memo_text_put(text, __VA_ARGS__);                                                          \
        memoi_svg_set_points(text, memoi_begin);                                                   \
    } while (0)

#define MEMOI_SVG_WIDTH 1200

MEMOI void memoi_svg_begin(memo_text* text, double height, const char* style) {
    memo_text_put(text,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
                  "viewBox=\"0 0 %d %.0f\" font-family=\"Helvetica, Arial, sans-serif\" "
                  "font-size=\"12\" fill=\"#333\">\n<style>%s</style>\n"
                  "<rect fill=\"#fff\" width=\"100%%\" height=\"100%%\"/>\n",
                  MEMOI_SVG_WIDTH, height, MEMOI_SVG_WIDTH, height, style);
}

/* Without its closing "/>", so that a title can follow. */
MEMOI void memoi_svg_put_rect(memo_text* text, uint32_t color, double x, double y, double width,
                              double height) {
    MEMOI_PUT_NUMBERS(text,
                      "<rect fill=\"#%06x\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"",
                      (unsigned)color, x, y, width, height);
}

MEMOI void memoi_svg_put_line(memo_text* text, const char* attributes, double x1, double y1,
                              double x2, double y2) {
    MEMOI_PUT_NUMBERS(text, "<line%s x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\"/>\n",
                      attributes, x1, y1, x2, y2);
}

/* The first n_bytes of label, and what follows them. */
MEMOI void memoi_svg_put_part(memo_text* text, const char* attributes, double x, double y,
                              const char* label, int64_t n_bytes, const char* behind) {
    MEMOI_PUT_NUMBERS(text, "<text%s x=\"%.2f\" y=\"%.2f\">", attributes, x, y);
    memob_text_put_escaped(text, label, n_bytes, 0);
    memo_text_put(text, "%s</text>\n", behind);
}
MEMOI void memoi_svg_put_label(memo_text* text, const char* attributes, double x, double y,
                               const char* label) {
    memoi_svg_put_part(text, attributes, x, y, label, (int64_t)strlen(label), "");
}

/* A number, and what follows it. */
MEMOI void memoi_svg_put_value(memo_text* text, const char* attributes, double x, double y,
                               double value, int decimals, const char* behind) {
    MEMOI_PUT_NUMBERS(text, "<text%s x=\"%.2f\" y=\"%.2f\">%.*f%s</text>\n", attributes, x, y,
                      decimals, value, behind);
}

/* Step of an axis: 1, 2 or 5 times a power of ten, about n steps in range. */
MEMOI double memoi_svg_nice_step(double range, double n) {
    double step = pow(10.0, floor(log10(range / n)));
    if (step * n * 5 < range) return step * 10;
    if (step * n * 2 < range) return step * 5;
    return step * n < range ? step * 2 : step;
}

/* Estimated width of text in Helvetica and similar fonts, a little too wide.  Continuation bytes of
 * UTF-8 have no width. */
MEMOI double memoi_svg_text_width(const char* s, int64_t n_bytes, double font_size) {
    double width = 0;
    for (int64_t i = 0; i < n_bytes; i++) {
        if (((unsigned char)s[i] & 0xc0) == 0x80) continue;
        if (strchr(" .,:;'|!()fijlrtI", s[i]))
            width += 0.36;
        else
            width += s[i] >= 'A' && s[i] <= 'Z' ? 0.72 : 0.6;
    }
    return width * font_size;
}

/* ---- >>timeline ---------------------------------------------------------------------------------
 * Knows: a schedule with times, as Chrome trace or SVG.  Knows nothing of where the times come
 * from. */

/* Ops that have a place of their own in a timeline: what runs, and waits that hold their stream. */
MEMOI int memoi_timeline_is_drawn(const memo_schedule* schedule, const memo_simulation* times,
                                  int64_t i) {
    memo_op_kind kind = schedule->ops[i].kind;
    return kind == MEMO_OP_RUN || (kind == MEMO_OP_WAIT && times->end_s[i] > times->start_s[i]);
}

memo_status memo_schedule_write_chrome(const memo_schedule* schedule, const memo_simulation* times,
                                       const char* path, memo_error* error) {
    memo_text text = MEMO_ZERO(memo_text);

    /* A named row per stream, in the order of the streams. */
    memo_text_put(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,"
                         "\"args\":{\"name\":\"streams\"}}");
    for (int64_t i = 0; i < schedule->n_streams; i++) {
        memo_text_put(&text,
                      ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
                      "\"args\":{\"name\":\"",
                      (int)i);
        memo_text_put_json(&text, memoi_schedule_stream_name(schedule, (int32_t)i));
        memo_text_put(&text,
                      "\"}},\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
                      "\"args\":{\"sort_index\":%d}}",
                      (int)i, (int)i);
    }

    /* A bar per operation; a wait is a bar too. */
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        int64_t read_bytes = 0, written_bytes = 0;
        if (!memoi_timeline_is_drawn(schedule, times, i)) continue;
        for (int64_t k = 0; k < op->n_reads + op->n_writes; k++) {
            const memo_range* range = &schedule->ranges[op->first_range + k];
            *(k < op->n_reads ? &read_bytes : &written_bytes) +=
                (int64_t)(range->end - range->begin);
        }
        memo_text_put(&text, ",\n{\"name\":\"");
        memo_text_put_json(&text, memo_schedule_op_name(schedule, i));
        memo_text_put(&text, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":",
                      op->kind == MEMO_OP_RUN ? "run" : "wait", (int)op->stream);
        MEMOI_PUT_NUMBERS(&text, "%.3f", times->start_s[i] * 1e6);
        memo_text_put(&text, ",\"dur\":");
        MEMOI_PUT_NUMBERS(&text, "%.3f", (times->end_s[i] - times->start_s[i]) * 1e6);
        memo_text_put(&text,
                      ",\"args\":{\"op\":%lld,\"link_bytes\":%lld,\"read_bytes\":%lld,"
                      "\"written_bytes\":%lld}}",
                      (long long)i, (long long)op->link_bytes, (long long)read_bytes,
                      (long long)written_bytes);
    }

    memo_text_put(&text, "\n]}\n");
    return memo_text_write(&text, path, error);
}

/* Length in bytes of the part that names of one kind share: all before a number, a bracket or a
 * colon.  "forward 3: up" and "forward: loss" are "forward", "B4a" is "B". */
MEMOI int64_t memoi_timeline_family(const char* name) {
    int64_t n = 0;
    while (name[n] && !(name[n] >= '0' && name[n] <= '9') && name[n] != '(' && name[n] != ':') n++;
    while (n && (name[n - 1] == ' ' || name[n - 1] == '_' || name[n - 1] == '-')) n--;
    return n ? n : (int64_t)strlen(name);
}

typedef struct memoi_family_color {
    const char* name;
    int64_t length;
    uint32_t color;
    const char* says; /* in the legend; NULL: the name */
    int rank;         /* in the legend */
} memoi_family_color;

#define MEMOI_FAMILIES_MAX 24

typedef struct memoi_legend {
    memoi_family_color families[MEMOI_FAMILIES_MAX];
    int n, n_others;
} memoi_legend;

/* The color of a name's family, which it adds if it is new.  Usual names have the same color in
 * every picture, others the next one. */
MEMOI uint32_t memoi_timeline_color(memoi_legend* legend, const char* name) {
    static const struct {
        const char* name;
        uint32_t color;
        const char* says;
        int rank;
    } usual[] = {{"forward", 0x4c78a8, NULL, 0},
                 {"F", 0x4c78a8, NULL, 0},
                 {"backward", 0xd1605e, NULL, 2},
                 {"B", 0xd1605e, NULL, 2},
                 {"recompute", 0xf0a04b, NULL, 3},
                 {"R", 0xf0a04b, NULL, 3},
                 {"to host", 0x59a14f, "copy to the host", 6},
                 {"to device", 0x3a9a9b, "copy to the device", 7},
                 {"on device", 0x8f6fae, "copy within the device", 8},
                 {"fill", 0xa6a6a6, "fill with a value", 9},
                 {"run", 0x7f8c99, NULL, 5}};
    static const uint32_t others[] = {0xb279a2, 0x9c755f, 0x6b6ecf, 0x8ca252, 0xbd9e39,
                                      0xad494a, 0x5b8db8, 0xd6a5c9, 0x7b4173, 0x8dd3c7};
    const int64_t length = memoi_timeline_family(name);
    memoi_family_color* family = legend->families;
    int i;
    for (i = 0; i < legend->n; i++, family++)
        if (family->length == length && memcmp(family->name, name, (size_t)length) == 0) break;
    if (i == MEMOI_FAMILIES_MAX) return family[-1].color;
    if (i < legend->n) return family->color;

    family->name = name;
    family->length = length;
    family->rank = 4; /* of the trainer's own: a loss, an update */
    for (i = 0; i < (int)(sizeof usual / sizeof usual[0]) && !family->color; i++) {
        if (strlen(usual[i].name) != (size_t)length || memcmp(name, usual[i].name, (size_t)length))
            continue;
        family->color = usual[i].color;
        family->says = usual[i].says;
        family->rank = usual[i].rank;
    }
    if (!family->color)
        family->color = others[legend->n_others++ % (int)(sizeof others / sizeof others[0])];
    legend->n++;
    return family->color;
}

/* Attributes of a name in a bar: black or white, whichever reads better on color. */
MEMOI const char* memoi_timeline_ink(uint32_t color) {
    uint32_t luminance =
        299 * (color >> 16) + 587 * ((color >> 8) & 255) + 114 * (color & 255); /* of 255000 */
    return luminance > 150000 ? " class=\"n\" fill=\"#1c1c1c\"" : " class=\"n\" fill=\"#fff\"";
}

/* The unit in which a time is readable: *per_s of it are a second. */
MEMOI const char* memoi_timeline_unit(double time_s, double* per_s) {
    static const char* const units[] = {"s", "ms", "\xc2\xb5s"};
    static const double rates[] = {1, 1e3, 1e6};
    const int k = (time_s < 1) + (time_s < 1e-3);
    *per_s = rates[k];
    return units[k];
}

/* "12.3 ms": three digits. */
MEMOI void memoi_timeline_put_time(memo_text* text, double time_s) {
    double per_s, value;
    const char* unit = memoi_timeline_unit(time_s, &per_s);
    value = time_s * per_s;
    MEMOI_PUT_NUMBERS(text, "%.*f %s", (value < 10) + (value < 100), value, unit);
}

/* Positions in the picture, in pixels. */
typedef struct memoi_timeline {
    const memo_schedule* schedule;
    const memo_simulation* times;
    memo_text text;
    memoi_legend legend;
    double left;        /* of time 0 */
    double top, bottom; /* of the rows */
    double* rows;       /* the top of a stream's row; 0: nothing runs there */
    double scale;       /* pixels a second */
} memoi_timeline;

#define MEMOI_ROW_HEIGHT    36
#define MEMOI_BAR_HEIGHT    26
#define MEMOI_LEGEND_HEIGHT 20

/* The name if it fits, else the number at its end ("forward 12": "12"), else nothing. */
MEMOI void memoi_timeline_draw_bar_name(memoi_timeline* t, const char* name, double x, double y,
                                        double width, uint32_t color) {
    const char* last = strrchr(name, ' ');
    if (memoi_svg_text_width(name, (int64_t)strlen(name), 11) + 6 > width)
        name = last && last[1] >= '0' && last[1] <= '9' ? last + 1 : "";
    if (!*name || memoi_svg_text_width(name, (int64_t)strlen(name), 11) + 4 > width) return;
    memoi_svg_put_label(&t->text, memoi_timeline_ink(color), x + width / 2,
                        y + MEMOI_BAR_HEIGHT / 2.0 + 4, name);
}

MEMOI void memoi_timeline_draw_op(memoi_timeline* t, int64_t i) {
    const memo_op* op = &t->schedule->ops[i];
    const char* name = memo_schedule_op_name(t->schedule, i);
    double start = t->times->start_s[i], duration = t->times->end_s[i] - start;
    double x = t->left + start * t->scale, width = duration * t->scale;
    double y = t->rows[op->stream] + (MEMOI_ROW_HEIGHT - MEMOI_BAR_HEIGHT) / 2.0;
    int is_wait = op->kind == MEMO_OP_WAIT;
    uint32_t color = is_wait ? 0xdadada : memoi_timeline_color(&t->legend, name);
    char bytes[32];
    if (is_wait) /* a thin line: the stream waits */
        memoi_svg_put_rect(&t->text, color, x, y + MEMOI_BAR_HEIGHT / 2.0 - 2, width, 4);
    else /* a gap between neighbors, if there is room */
        memoi_svg_put_rect(&t->text, color, x, y, width > 3 ? width - 0.6 : fmax(width, 0.6),
                           MEMOI_BAR_HEIGHT);

    /* Hover text, then the name if it fits. */
    memo_text_put(&t->text, "%s><title>", !is_wait && width > 8 ? " rx=\"2\"" : "");
    memo_text_put_xml(&t->text, name);
    memo_text_put(&t->text, "\nstart ");
    memoi_timeline_put_time(&t->text, start);
    memo_text_put(&t->text, "\nduration ");
    memoi_timeline_put_time(&t->text, duration);
    if (op->link_bytes)
        memo_text_put(&t->text, "\n%s", memob_bytes_text(bytes, (double)op->link_bytes));
    memo_text_put(&t->text, "</title></rect>\n");
    if (!is_wait) memoi_timeline_draw_bar_name(t, name, x, y, width, color);
}

/* Gives a row to each stream where something runs.  0: no memory. */
MEMOI int memoi_timeline_make_rows(memoi_timeline* t) {
    const memo_schedule* schedule = t->schedule;
    t->rows = (double*)memob_calloc(schedule->n_streams, sizeof(double));
    if (!t->rows) return 0;
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (memoi_timeline_is_drawn(schedule, t->times, i)) t->rows[schedule->ops[i].stream] = 1;
    t->bottom = t->top;
    for (int32_t i = 0; i < schedule->n_streams; i++) {
        if (t->rows[i] <= 0) continue;
        t->rows[i] = t->bottom;
        t->bottom += MEMOI_ROW_HEIGHT;
    }
    return 1;
}

/* Rows of alternating shade, names at the left, shares at the right. */
MEMOI void memoi_timeline_draw_rows(memoi_timeline* t) {
    const memo_schedule* schedule = t->schedule;
    for (int32_t i = 0; i < schedule->n_streams; i++) {
        const char* name = memoi_schedule_stream_name(schedule, i);
        double y = t->rows[i], middle = y + MEMOI_ROW_HEIGHT / 2.0 + 4;
        double makespan = t->times->makespan_s;
        double share = makespan > 0 ? t->times->busy_s[i] / makespan * 100 : 0;
        int64_t n = (int64_t)strlen(name);
        int is_cut = memoi_svg_text_width(name, n, 12) > t->left - 36;
        if (y <= 0) continue;
        while (n && memoi_svg_text_width(name, n, 12) + (is_cut ? 12 : 0) > t->left - 36) n--;
        while (n && ((unsigned char)name[n] & 0xc0) == 0x80) n--; /* not inside a letter */
        memoi_svg_put_rect(&t->text,
                           fmod(y - t->top, 2 * MEMOI_ROW_HEIGHT) > 0 ? 0xffffff : 0xf6f7f9, 0, y,
                           MEMOI_SVG_WIDTH, MEMOI_ROW_HEIGHT);
        memo_text_put(&t->text, "/>\n");
        memoi_svg_put_part(&t->text, "", 16, middle, name, n, is_cut ? "\xe2\x80\xa6" : "");
        memoi_svg_put_value(&t->text, " class=\"r\"", MEMOI_SVG_WIDTH - 16, middle, share,
                            share < 99.95 && share > 0 ? 1 : 0, " %");
    }
}

/* Lines at round times, at most a dozen. */
MEMOI void memoi_timeline_draw_axis(memoi_timeline* t) {
    double makespan = t->times->makespan_s, factor, step, time;
    char first[16];
    int decimals;
    snprintf(first, sizeof first, " %s", memoi_timeline_unit(makespan, &factor));
    if (!(makespan > 0)) return;
    step = memoi_svg_nice_step(makespan * factor, 10);
    decimals = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    for (int i = 0; (time = i * step) <= makespan * factor * (1 + 1e-9); i++) {
        double x = t->left + time / factor * t->scale;
        memoi_svg_put_line(&t->text, " stroke=\"#d9dce1\"", x, t->top, x, t->bottom + 4);
        memoi_svg_put_value(&t->text, " class=\"m\"", x, t->bottom + 18, time, i ? decimals : 0,
                            i ? "" : first);
    }
}

/* Kinds of operations, computation before copies, in up to two rows. */
MEMOI void memoi_timeline_draw_legend(memoi_timeline* t, double y) {
    const double end = y + MEMOI_LEGEND_HEIGHT;
    double x = t->left;
    for (int rank = 0; rank < 10; rank++)
        for (int i = 0; i < t->legend.n; i++) {
            const memoi_family_color* family = &t->legend.families[i];
            const char* says = family->says ? family->says : family->name;
            const int64_t n = family->says ? (int64_t)strlen(says) : family->length;
            const double width = 18 + memoi_svg_text_width(says, n, 12) + 16;
            if (family->rank != rank) continue;
            if (x + width > MEMOI_SVG_WIDTH - 16) {
                x = t->left;
                y += MEMOI_LEGEND_HEIGHT;
            }
            if (y > end) return;
            memoi_svg_put_rect(&t->text, family->color, x, y - 10, 12, 12);
            memo_text_put(&t->text, " rx=\"2\"/>");
            memoi_svg_put_part(&t->text, "", x + 18, y, says, n, "");
            x += width;
        }
}

memo_status memo_schedule_write_svg(const memo_schedule* schedule, const memo_simulation* times,
                                    const char* title, const char* path, memo_error* error) {
    memoi_timeline timeline = MEMO_ZERO(memoi_timeline), *t = &timeline;

    t->schedule = schedule;
    t->times = times;
    t->top = 72;
    if (!memoi_timeline_make_rows(t)) return memob_no_memory(error, "the rows of a timeline");

    /* The left margin fits the longest name of a row. */
    t->left = 100;
    for (int64_t i = 0; i < schedule->n_streams; i++) {
        const char* name = memoi_schedule_stream_name(schedule, (int32_t)i);
        double width = memoi_svg_text_width(name, (int64_t)strlen(name), 12) + 40;
        if (t->rows[i] > 0) t->left = fmin(240, fmax(t->left, width));
    }
    t->scale =
        times->makespan_s > 1e-300 ? (MEMOI_SVG_WIDTH - 84 - t->left) / times->makespan_s : 0;

    /* Head: title and figures. */
    memoi_svg_begin(&t->text, t->bottom + 60 + MEMOI_LEGEND_HEIGHT,
                    ".n{font-size:11px;text-anchor:middle;pointer-events:none}"
                    ".m{text-anchor:middle;fill:#666}.r{text-anchor:end}"
                    ".h{font-size:16px;font-weight:bold;fill:#111}.s{fill:#666}");
    memoi_svg_put_label(&t->text, " class=\"h\"", 16, 28, title ? title : "Timeline");
    memo_text_put(&t->text, "<text class=\"s\" x=\"16\" y=\"48\">makespan ");
    memoi_timeline_put_time(&t->text, times->makespan_s);
    memo_text_put(&t->text, ".  A row is a stream, a box an operation; a thin line is a wait for "
                            "another stream</text>\n");
    memoi_svg_put_label(&t->text, " class=\"r s\"", MEMOI_SVG_WIDTH - 16, t->top - 8, "busy");

    /* Bars come after rows and axis, which they cover. */
    memoi_timeline_draw_rows(t);
    memoi_timeline_draw_axis(t);
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (memoi_timeline_is_drawn(schedule, times, i)) memoi_timeline_draw_op(t, i);
    memoi_timeline_draw_legend(t, t->bottom + 44);
    memo_text_put(&t->text, "</svg>\n");
    MEMO_FREE(t->rows);
    return memo_text_write(&t->text, path, error);
}

/* ---- >>plan picture -----------------------------------------------------------------------------
 * Knows: a plan as rectangles, phases from marks.  Knows nothing of how the offsets were found. */

typedef struct memoi_picture {
    memo_text text;
    double left, right, top, bottom; /* of the plot, in pixels */
    double n_times, n_bytes;         /* of both axes */
    double fold_bytes, fold_y;       /* addresses below are compressed; 0: none are */
} memoi_picture;

MEMOI double memoi_picture_x(const memoi_picture* picture, double time) {
    return picture->left + (picture->right - picture->left) * time / picture->n_times;
}
MEMOI double memoi_picture_y(const memoi_picture* picture, double bytes) {
    const double fold = picture->fold_bytes;
    if (bytes < fold) return picture->bottom - (picture->bottom - picture->fold_y) * bytes / fold;
    return picture->fold_y -
           (picture->fold_y - picture->top) * (bytes - fold) / (picture->n_bytes - fold);
}

/* Buffers that live all the time would leave the others a thin stripe.  If persistent buffers have
 * the lower half of the addresses, they get a quarter of the picture. */
MEMOI void memoi_picture_fold(memoi_picture* picture, const memo_plan* plan) {
    double lowest = picture->n_bytes;
    for (int64_t i = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].memory_class != MEMO_CLASS_PERSISTENT)
            lowest = fmin(lowest, (double)plan->buffers[i].offset_bytes);
    picture->fold_y = picture->bottom;
    if (lowest < 0.5 * picture->n_bytes || lowest == picture->n_bytes) return;
    picture->fold_bytes = lowest;
    picture->fold_y -= 0.25 * (picture->bottom - picture->top);
}

/* Grid lines at round addresses from begin to end, in this unit. */
MEMOI void memoi_picture_grid(memoi_picture* picture, double begin, double end, double unit,
                              double n_lines) {
    const double step = memoi_svg_nice_step((end - begin) / unit, n_lines);
    double value;
    for (value = ceil(begin / unit / step) * step; value * unit <= end; value += step) {
        const double y = memoi_picture_y(picture, value * unit);
        memoi_svg_put_line(&picture->text, " class=\"grid\"", picture->left, y, picture->right, y);
        memoi_svg_put_value(&picture->text, " class=\"tick\" text-anchor=\"end\"",
                            picture->left - 8, y + 4, value, step < 0.1 ? 2 : step < 1, "");
    }
}

MEMOI void memoi_picture_axes(memoi_picture* picture) {
    static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    memo_text* text = &picture->text;
    double unit = 1, step, value;
    int n_unit = 0;
    while (picture->n_bytes >= 2 * unit * 1024 && n_unit < 5) {
        unit *= 1024;
        n_unit++;
    }

    memoi_picture_grid(picture, picture->fold_bytes, picture->n_bytes, unit, 8);
    if (picture->fold_bytes > 0) memoi_picture_grid(picture, 0, picture->fold_bytes, unit, 3);

    /* Ticks at whole times. */
    step = fmax(1, memoi_svg_nice_step(picture->n_times, 10));
    for (value = 0; value <= picture->n_times; value += step) {
        double x = memoi_picture_x(picture, value);
        memoi_svg_put_line(text, " class=\"axis\"", x, picture->bottom, x, picture->bottom + 5);
        memoi_svg_put_value(text, " class=\"tick\" text-anchor=\"middle\"", x, picture->bottom + 19,
                            value, 0, "");
    }

    /* Names of both axes. */
    memoi_svg_put_label(text, " class=\"name\" text-anchor=\"middle\"",
                        (picture->left + picture->right) / 2, picture->bottom + 42,
                        "time (mallocs and frees)");
    MEMOI_PUT_NUMBERS(text,
                      "<text class=\"name\" text-anchor=\"middle\" transform=\"translate(28 "
                      "%.1f) rotate(-90)\">address (%s)</text>\n",
                      (picture->top + picture->bottom) / 2, units[n_unit]);
}

static const uint32_t memoi_class_colors[] = {0xc9b458, 0x4f7fb5, 0x9aa3ad};
MEMOB_TABLE_OF(MEMO_N_CLASSES, memoi_class_colors);

/* Draws a piece of a buffer.  Of pieces too narrow to distinguish, only the first is drawn. */
MEMOI void memoi_picture_piece(memoi_picture* picture, const memo_plan* plan,
                               const memob_piece* piece, memob_map* drawn) {
    const memo_buffer* buffer = &plan->buffers[piece->buffer];
    double x = memoi_picture_x(picture, (double)piece->begin);
    double width = memoi_picture_x(picture, (double)piece->end) - x;
    double y = memoi_picture_y(picture, (double)buffer->offset_bytes + (double)piece->bytes);
    double height = memoi_picture_y(picture, (double)buffer->offset_bytes) - y;
    char bytes[32];

    /* Invisible pieces would only make the file large. */
    if (height < 0.2) return;
    if (width < 0.2) {
        int64_t place =
            ((int64_t)(x * 4) * 10000 + (int64_t)(y * 2)) * 10000 + (int64_t)(height * 2);
        if (memob_map_get(drawn, place) >= 0) return;
        memob_map_put(drawn, place, 1); /* if this fails, a piece is drawn twice */
        width = 0.2;
    }

    memoi_svg_put_rect(&picture->text, memoi_class_colors[buffer->memory_class], x, y, width,
                       height);
    memo_text_put(
        &picture->text,
        "%s><title>buffer %lld: %s (%lld bytes)\nlives [%lld, %lld), offset %lld\n%s, stream "
        "%d%s</title></rect>\n",
        width > 3 && height > 3 ? " class=\"b\"" : "", (long long)buffer->id,
        memob_bytes_text(bytes, (double)buffer->size_bytes), (long long)buffer->size_bytes,
        (long long)piece->begin, (long long)piece->end, (long long)buffer->offset_bytes,
        memob_class_names[buffer->memory_class], (int)buffer->stream,
        buffer->is_fixed ? ", fixed" : "");
}

MEMOI memo_status memoi_picture_pieces(memoi_picture* picture, const memo_plan* plan,
                                       memo_error* error) {
    memob_piece* pieces =
        (memob_piece*)memob_calloc(plan->n_buffers + plan->n_gaps, sizeof(memob_piece));
    memob_map drawn = MEMO_ZERO(memob_map);
    int64_t n;
    if (!pieces) return memob_no_memory(error, "a picture");
    n = memob_plan_pieces(plan, pieces);
    for (int64_t i = 0; i < n; i++) memoi_picture_piece(picture, plan, &pieces[i], &drawn);
    memob_map_free(&drawn);
    MEMO_FREE(pieces);
    return MEMO_STATUS_OK;
}

/* A band above the plot, with its label if it is label_width pixels wide; a thin band without a
 * label. */
MEMOI void memoi_picture_band(memoi_picture* picture, uint32_t color, double begin, double end,
                              double y, double label_width, const char* label, const char* hover) {
    double x = memoi_picture_x(picture, begin), width = memoi_picture_x(picture, end) - x;
    if (width < 0.2) return;
    memoi_svg_put_rect(&picture->text, color, x, label[0] ? y : y + 12, width, label[0] ? 15 : 3);
    memo_text_put(&picture->text, "><title>%s, [%.0f, %.0f)</title></rect>\n", hover, begin, end);
    if (width < label_width || !label[0]) return;
    memoi_svg_put_label(&picture->text, " class=\"band\"", x + width / 2, y + 11.5, label);
}

/* Light shades of the colors that a timeline has for the same phases. */
static const uint32_t memoi_phase_colors[][2] = {
    {0, 0}, {0, 0}, {0xd3e0ee, 0xb4cbe4}, {0xfbdcae, 0xf5c47e}, {0xf2c9c3, 0xe8aea6}};
MEMOB_TABLE_OF(MEMO_N_PHASES, memoi_phase_colors);

/* A marked layer. */
typedef struct memoi_look_span {
    double begin, end;
    int64_t layer;
    memo_phase phase;
} memoi_look_span;

/* Lists marked layers by their ends, at most one for each request; returns how many. */
MEMOI int64_t memoi_picture_spans(const memoi_picture* picture, const memo_trace* trace,
                                  memoi_look_span* spans) {
    double time = 0, begins[MEMO_N_PHASES] = {0};
    int64_t n = 0;
    for (int64_t i = 0; i < trace->n_requests && time <= picture->n_times; i++) {
        const memo_request_kind kind = trace->requests[i].kind;
        const memo_mark mark = memob_request_mark(trace, i);
        time += kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
        if (mark.layer < 0) continue;
        if (mark.is_end && begins[mark.phase] > 0) {
            spans[n].begin = begins[mark.phase] - 1;
            spans[n].end = time;
            spans[n].layer = mark.layer;
            spans[n++].phase = mark.phase;
        }
        begins[mark.phase] = mark.is_end ? 0 : 1 + time;
    }
    return n;
}

/* Two rows of bands above the plot.  The phases: one band for each run of layers of the same pass,
 * and lines through the plot at its ends.  Below them the layers. */
MEMOI memo_status memoi_picture_phases(memoi_picture* picture, const memo_trace* trace,
                                       memo_error* error) {
    static const memo_phase phases[] = {MEMO_PHASE_FORWARD, MEMO_PHASE_BACKWARD,
                                        MEMO_PHASE_RECOMPUTE}; /* the last lies over the others */
    static const char* const rows[] = {"phase", "layer"};
    memoi_look_span* spans =
        (memoi_look_span*)memob_calloc(trace->n_requests, sizeof(memoi_look_span));
    double y = picture->top - 38, label_width = 3;
    const int64_t n_phases = sizeof phases / sizeof *phases;
    int64_t k, n, last = 1;
    if (!spans) return memob_no_memory(error, "a picture");
    n = memoi_picture_spans(picture, trace, spans);
    for (int64_t i = 0; i < n; i = k) {
        memoi_look_span run = spans[i];
        for (k = i + 1; k < n; k++) {
            if (spans[k].phase == MEMO_PHASE_RECOMPUTE) continue;
            if (run.phase != spans[k].phase) break;
            run.end = spans[k].end;
        }
        if (run.phase == MEMO_PHASE_RECOMPUTE) continue;
        memoi_picture_band(picture, memoi_phase_colors[run.phase][1], run.begin, run.end, y, 64,
                           memob_phase_names[run.phase], memob_phase_names[run.phase]);
        for (int is_end = 0; is_end < 2; is_end++) {
            const double x = memoi_picture_x(picture, is_end ? run.end : run.begin);
            memoi_svg_put_line(&picture->text, " class=\"phase\"", x, picture->top, x,
                               picture->bottom);
        }
    }

    /* All layers get a label, or none: the longest must fit. */
    for (int64_t i = 0; i < n; i++) last = memob_max(last, spans[i].layer);
    for (; last > 0; last /= 10) label_width += 6.4;
    for (k = 0; k < n_phases; k++)
        for (int64_t i = 0; i < n; i++) {
            const memoi_look_span* span = &spans[i];
            char label[24], hover[64];
            if (span->phase != phases[k]) continue;
            snprintf(label, sizeof label, "%lld", (long long)span->layer);
            snprintf(hover, sizeof hover, "layer %s %s", label, memob_phase_names[span->phase]);
            memoi_picture_band(picture, memoi_phase_colors[span->phase][span->layer % 2],
                               span->begin, span->end, y + 17, label_width,
                               span->phase == MEMO_PHASE_RECOMPUTE ? "" : label, hover);
        }
    for (int64_t i = 0; i < 2; i++)
        memoi_svg_put_label(&picture->text, " class=\"tick\" text-anchor=\"end\"",
                            picture->left - 8, y + 12 + 17 * (double)i, rows[i]);
    MEMO_FREE(spans);
    return MEMO_STATUS_OK;
}

MEMOI void memoi_picture_level(memoi_picture* picture, const char* what, const char* color,
                               const char* dash, int64_t bytes, double label_y) {
    char attributes[96], size[32];
    double y = memoi_picture_y(picture, (double)bytes);
    snprintf(attributes, sizeof attributes, " stroke=\"%.16s\" stroke-width=\"1.4\"%.40s", color,
             dash);
    memoi_svg_put_line(&picture->text, attributes, picture->left, y, picture->right + 6, y);
    snprintf(attributes, sizeof attributes, " class=\"level\" fill=\"%.16s\"", color);
    memoi_svg_put_label(&picture->text, attributes, picture->right + 11, label_y + 4, what);
    memoi_svg_put_label(&picture->text, attributes, picture->right + 11, label_y + 19,
                        memob_bytes_text(size, (double)bytes));
}

/* Names of buffers: a mark without phase directly before a malloc, written if it fits. */
MEMOI void memoi_picture_names(memoi_picture* picture, const memo_plan* plan,
                               const memo_trace* trace) {
    const char* name = NULL;
    int64_t b = 0, time = 0;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        const memo_request* request = &trace->requests[i];
        if (request->kind == MEMO_REQUEST_MARK) {
            name = trace->text + request->id;
            if (memo_mark_parse(name).phase != MEMO_PHASE_NONE) name = NULL;
            continue;
        }

        /* Buffers are in the order of mallocs, so one pass finds each. */
        while (b < plan->n_buffers && plan->buffers[b].begin < time) b++;
        if (name && request->kind == MEMO_REQUEST_MALLOC && b < plan->n_buffers &&
            plan->buffers[b].id == request->id) {
            const memo_buffer* buffer = &plan->buffers[b];
            double left = memoi_picture_x(picture, (double)buffer->begin);
            double right = memoi_picture_x(picture, (double)buffer->end);
            double low = memoi_picture_y(picture, (double)buffer->offset_bytes);
            double high = memoi_picture_y(picture, (double)buffer->offset_bytes +
                                                       (double)memob_buffer_bytes(plan, b));
            if (low - high > 14 &&
                right - left > memoi_svg_text_width(name, (int64_t)strlen(name), 12) + 8) {
                memoi_svg_put_label(&picture->text, " class=\"inside\"", (left + right) / 2,
                                    (low + high) / 2 + 4, name);
            }
        }

        name = NULL;
        time += request->kind == MEMO_REQUEST_MALLOC || request->kind == MEMO_REQUEST_FREE;
    }
}

/* A zigzag across both axes where the scale changes, and the reason beside it. */
MEMOI void memoi_picture_tear(memoi_picture* picture) {
    const double y = picture->fold_y;
    char size[32];
    double x;
    if (picture->fold_bytes <= 0) return;
    memo_text_put(&picture->text, "<path class=\"tear\" d=\"");
    for (x = picture->left - 6; x <= picture->right + 6; x += 6)
        MEMOI_PUT_NUMBERS(&picture->text, x < picture->left ? "M%.0f %.0f" : "L%.0f %.0f", x,
                          y + ((int)((x - picture->left) / 6) % 2 ? 3 : -3));
    memo_text_put(&picture->text, "\"/>\n");
    memoi_svg_put_label(&picture->text, " class=\"level\" fill=\"#555\"", picture->right + 11,
                        y + 18, "compressed");
    memo_text_put(&picture->text,
                  "<text class=\"level\" fill=\"#555\" x=\"%.0f\" y=\"%.0f\">below %s</text>\n",
                  picture->right + 11, y + 33, memob_bytes_text(size, picture->fold_bytes));
}

/* Peak and lower bound as lines; their labels do not overlap. */
MEMOI void memoi_picture_levels(memoi_picture* picture, const memo_plan* plan) {
    double peak_y = memoi_picture_y(picture, (double)plan->peak_bytes);
    double bound_y = memoi_picture_y(picture, (double)plan->lower_bound_bytes);
    int is_met = memob_plan_bound(plan) == plan->peak_bytes;
    memoi_picture_level(picture, is_met ? "peak = lower bound" : "peak", "#b3261e", "",
                        plan->peak_bytes, peak_y);
    if (is_met) return;
    memoi_picture_level(picture, "lower bound", "#17693f", " stroke-dasharray=\"6 4\"",
                        plan->lower_bound_bytes, bound_y < peak_y + 36 ? peak_y + 36 : bound_y);
}

MEMOI void memoi_picture_head(memoi_picture* picture, const memo_plan* plan, const char* title) {
    memo_text* text = &picture->text;
    char peak[32], bound[32];
    const int64_t bound_bytes = memob_plan_bound(plan);
    const double gap =
        bound_bytes ? 100.0 * (double)(plan->peak_bytes - bound_bytes) / (double)bound_bytes : 0;
    double x = 1084;
    memoi_svg_begin(text, 700,
                    ".b{stroke:#fff;stroke-width:.5}.grid{stroke:#e3e6ea}.axis{stroke:#555}"
                    ".phase{stroke:#333;stroke-opacity:.35;stroke-dasharray:2 3}"
                    ".tick{font-size:12px;fill:#555}.name{font-size:13px;fill:#333}"
                    ".band{font-size:11px;fill:#222;text-anchor:middle}.level{font-size:12px}"
                    ".inside{font-size:12px;fill:#222;text-anchor:middle;pointer-events:none}"
                    ".tear{fill:none;stroke:#fff;stroke-width:3}");
    /* Title and figures. */
    memoi_svg_put_label(text, " font-size=\"19\" fill=\"#111\"", 30, 34,
                        title ? title : "memory plan");
    memo_text_put(text,
                  "<text class=\"name\" x=\"30\" y=\"56\">%lld buffers, peak %s, lower bound %s, "
                  "gap ",
                  (long long)plan->n_buffers, memob_bytes_text(peak, (double)plan->peak_bytes),
                  memob_bytes_text(bound, (double)bound_bytes));
    MEMOI_PUT_NUMBERS(text, "%.2f", gap);
    memo_text_put(text, "%% (%s, ", plan->proof == MEMO_PROOF_OPTIMAL ? "optimal" : "valid");
    memo_text_put_xml(text, plan->engine);
    memo_text_put(text, ")</text>\n");

    /* Legend of the classes that occur, from right to left. */
    for (int i = MEMO_N_CLASSES - 1; i >= 0; i--) {
        int64_t b = 0;
        while (b < plan->n_buffers && (int)plan->buffers[b].memory_class != i) b++;
        if (b == plan->n_buffers) continue;
        memoi_svg_put_rect(text, memoi_class_colors[i], x, 23, 13, 13);
        memo_text_put(text, "/>");
        memoi_svg_put_label(text, " class=\"name\"", x + 18, 34, memob_class_names[i]);
        x -= 100;
    }
}

memo_status memo_plan_write_svg(const memo_plan* plan, const memo_trace* trace, const char* title,
                                const char* path, memo_error* error) {
    memoi_picture picture = MEMO_ZERO(memoi_picture);
    memo_status status;
    int has_phases = 0;
    if (plan->proof == MEMO_PROOF_NONE)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "plan: it has no offsets to draw; call memo_plan_solve first");

    /* Bands of phases need room above the plot. */
    for (int64_t i = 0; trace && i < trace->n_requests && !has_phases; i++)
        has_phases = memob_request_mark(trace, i).layer >= 0;
    picture.left = 96;
    picture.right = 1060;
    picture.top = has_phases ? 112 : 78;
    picture.bottom = 640;
    picture.n_times = plan->n_times > 0 ? (double)plan->n_times : 1;
    picture.n_bytes = fmax(8, (double)memob_max(plan->peak_bytes, plan->lower_bound_bytes));
    memoi_picture_fold(&picture, plan);
    picture.n_bytes += 0.03 * (picture.n_bytes - picture.fold_bytes);

    /* Later elements cover earlier ones: names and axes come after the pieces. */
    memoi_picture_head(&picture, plan, title);
    memoi_picture_axes(&picture);
    status = memoi_picture_pieces(&picture, plan, error);
    if (!status && trace) memoi_picture_names(&picture, plan, trace);
    if (!status && has_phases) status = memoi_picture_phases(&picture, trace, error);
    if (status) {
        memo_text_free(&picture.text);
        return status;
    }
    memoi_svg_put_line(&picture.text, " class=\"axis\"", picture.left, picture.top, picture.left,
                       picture.bottom);
    memoi_svg_put_line(&picture.text, " class=\"axis\"", picture.left, picture.bottom,
                       picture.right, picture.bottom);
    memoi_picture_tear(&picture);
    memoi_picture_levels(&picture, plan);
    memo_text_put(&picture.text, "</svg>\n");
    return memo_text_write(&picture.text, path, error);
}

/* ---- >>schedule file ----------------------------------------------------------------------------
 * Knows: the text of a schedule.  Knows nothing of its meaning. */

/* --- names with numbers --- */

typedef struct memoi_name {
    int64_t text, number;
} memoi_name;

typedef struct memoi_names {
    memo_text text;   /* each ended by a zero */
    memoi_name* list; /* where they begin in text */
    int64_t n;
    memob_map places; /* a name's hash, or the next free key, to its place in list */
} memoi_names;

MEMOI void memoi_names_free(memoi_names* names) {
    memo_text_free(&names->text);
    MEMO_FREE(names->list);
    memob_map_free(&names->places);
}

/* Finds a name.  It is added with this number if it is new, unless that is -1.  NULL: there is
 * none, or no memory. */
MEMOI memoi_name* memoi_names_get(memoi_names* names, const char* word, int64_t number) {
    uint64_t key = memob_hash(word, (int64_t)strlen(word));
    memoi_name* name;
    int64_t i;
    for (; (i = memob_map_get(&names->places, (int64_t)key)) >= 0; key++)
        if (!strcmp(names->text.data + names->list[i].text, word)) return &names->list[i];
    if (number < 0 || !memob_grow(&names->list, names->n, 1, sizeof *name)) return NULL;
    name = &names->list[names->n];
    name->text = names->text.n_bytes;
    name->number = number;
    memo_text_put(&names->text, "%s%c", word, 0);
    if (names->text.failed || !memob_map_put(&names->places, (int64_t)key, names->n)) return NULL;
    names->n++;
    return name;
}

/* --- reading --- */

typedef struct memoi_schedule_reader {
    memob_reader reader;
    memo_schedule* schedule;
    memo_error* error;
    memoi_names streams, events, buffers;
    uint64_t next_byte; /* after all buffers */
    char* text;         /* of the line: words without quotes, each ended by a zero */
    int64_t n_text, text_capacity;
    memo_range* ranges[2]; /* of a run: reads, writes */
    char* word;            /* the current one; NULL at the end of the line */
    char* rest;            /* what follows the current one's quotes; NULL: it has none */
} memoi_schedule_reader;

/* A fault of the current word. */
MEMOI memo_status memoi_schedule_bad_word(const memoi_schedule_reader* r, const char* fault) {
    if (!r->word) return MEMOB_BAD_LINE(&r->reader, r->error, "the line is too short: %s", fault);
    return MEMOB_BAD_LINE(&r->reader, r->error, "`%.60s`: %s", r->word, fault);
}

/* The entry of a word, which gets this number if it is new. */
MEMOI memo_status memoi_schedule_declare(const memoi_schedule_reader* r, memoi_names* names,
                                         const char* word, int64_t number, memoi_name** name) {
    *name = memoi_names_get(names, word, number);
    return *name ? MEMO_STATUS_OK : memob_no_memory(r->error, "a name");
}

/* Moves to the next word of the line. */
MEMOI memo_status memoi_schedule_next_token(memoi_schedule_reader* r) {
    const char *p = r->reader.word + r->reader.length, *stop = r->reader.stop;
    char* to = r->text + r->n_text; /* room was made for the line */
    int is_open;
    while (p < stop && (*p == ' ' || *p == '\t')) p++;
    r->word = p < stop ? to : NULL;
    r->rest = NULL;
    is_open = p < stop && *p == '"';
    for (p += is_open; p < stop && (is_open || (*p != ' ' && *p != '\t')); p++) {
        if (is_open && *p == '"') {
            is_open = 0;
            *to++ = 0;
            r->rest = to;
            continue;
        }
        if (is_open && *p == '\\' && p + 1 < stop) p++;
        *to++ = *p == '\t' ? ' ' : *p;
    }
    *to++ = 0;
    r->n_text = to - r->text;
    r->reader.word = p;
    r->reader.length = 0;
    return is_open ? memoi_schedule_bad_word(r, "a quote is not closed") : MEMO_STATUS_OK;
}

/* Moves to the next word, which must be there and whole. */
MEMOI memo_status memoi_schedule_expect_token(memoi_schedule_reader* r, const char* what) {
    memo_status status = memoi_schedule_next_token(r);
    if (!status && (!r->word || (r->rest && *r->rest))) status = memoi_schedule_bad_word(r, what);
    return status;
}

MEMOI int memoi_schedule_is_keyword(const memoi_schedule_reader* r, const char* keyword) {
    return !r->rest && !strcmp(r->word, keyword);
}

/* The current word names a stream. */
MEMOI memo_status memoi_schedule_token_stream(memoi_schedule_reader* r, int32_t* stream) {
    const memoi_name* name = memoi_names_get(&r->streams, r->word, -1);
    if (!name) return memoi_schedule_bad_word(r, "no such stream is declared above");
    *stream = (int32_t)name->number;
    return MEMO_STATUS_OK;
}

/* An event exists from its first use on. */
MEMOI memo_status memoi_schedule_expect_event(memoi_schedule_reader* r, int32_t* event) {
    const int32_t n = r->schedule->n_events;
    memoi_name* name;
    memo_status status = memoi_schedule_expect_token(r, "an event is expected");
    if (!status) status = memoi_schedule_declare(r, &r->events, r->word, n, &name);
    if (status) return status;
    *event = (int32_t)name->number;
    if (*event < n) return MEMO_STATUS_OK;
    status = memo_schedule_add_event(r->schedule, event, r->error);
    if (status) return status;
    r->schedule->events[n] = memoi_schedule_add_text(r->schedule, r->word);
    return r->schedule->events[n] < 0 ? memob_no_memory(r->error, "a name") : MEMO_STATUS_OK;
}

/* Decimal, or 0x and hexadecimal, up to `stop`. */
MEMOI int memoi_schedule_address(const char* word, const char* stop, uint64_t* value) {
    char* end;
    errno = 0;
    *value = 0;
    if (*word < '0' || *word > '9') return 0; /* strtoull takes a sign */
    *value = strtoull(word, &end, word[0] == '0' && word[1] == 'x' ? 16 : 10);
    return end == stop && !errno;
}

/* The current word is such a number. */
MEMOI int memoi_schedule_token_number(const memoi_schedule_reader* r, uint64_t* value) {
    return memoi_schedule_address(r->word, r->word + strlen(r->word), value);
}

/* The current word is A..B, NAME or NAME+A..B. */
MEMOI memo_status memoi_schedule_token_range(memoi_schedule_reader* r, memo_range* range) {
    memo_range whole = {0, UINT64_MAX};
    char *part = r->word, *dots;
    const memoi_name* name;
    if (r->rest || *r->word < '0' || *r->word > '9') {
        part = r->rest ? r->rest : strchr(r->word, '+');
        if (part && *part == '+') *part++ = 0; /* ends the name here */
        name = memoi_names_get(&r->buffers, r->word, -1);
        if (!name) return memoi_schedule_bad_word(r, "no such buffer is declared above");
        whole = r->schedule->named[name->number].bytes;
        *range = whole;
        if (!part || !*part) return MEMO_STATUS_OK;
    }
    dots = strstr(part, "..");
    if (!dots || !memoi_schedule_address(part, dots, &range->begin) ||
        !memoi_schedule_address(dots + 2, dots + strlen(dots), &range->end) ||
        range->begin > range->end || range->end > whole.end - whole.begin)
        return memoi_schedule_bad_word(
            r, "a range must be A..B, NAME or NAME+A..B, A <= B, inside the buffer");
    range->begin += whole.begin;
    range->end += whole.begin;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_schedule_parse_stream(memoi_schedule_reader* r) {
    int32_t stream = r->schedule->n_streams;
    memoi_name* name;
    memo_status status = memoi_schedule_expect_token(r, "a stream has a name");
    if (!status) status = memoi_schedule_declare(r, &r->streams, r->word, stream, &name);
    if (!status && name->number < stream) status = memoi_schedule_bad_word(r, "declared twice");
    return status ? status : memo_schedule_add_stream(r->schedule, r->word, &stream, r->error);
}

MEMOI memo_status memoi_schedule_parse_buffer(memoi_schedule_reader* r) {
    memo_range bytes = {r->next_byte, r->next_byte};
    uint64_t size_bytes = 0;
    memoi_name* name;
    char* word;
    memo_status status = memoi_schedule_expect_token(r, "a buffer has a name");
    if (status) return status;
    word = r->word;
    status = memoi_schedule_next_token(r);
    if (!status && !r->word) status = memoi_schedule_bad_word(r, "a buffer has a size or a range");
    if (status) return status;
    if (r->rest || !memoi_schedule_token_number(r, &size_bytes))
        status = memoi_schedule_token_range(r, &bytes);
    else if (size_bytes > UINT64_MAX - bytes.begin)
        status = memoi_schedule_bad_word(r, "too large");
    else
        bytes.end += size_bytes;

    /* Declared again: another from here on. */
    if (!status) status = memoi_schedule_declare(r, &r->buffers, word, r->schedule->n_named, &name);
    if (status) return status;
    name->number = r->schedule->n_named;
    if (bytes.end > r->next_byte) r->next_byte = bytes.end;
    return memo_schedule_name_bytes(r->schedule, bytes, word, r->error);
}

MEMOI memo_status memoi_schedule_parse_run(memoi_schedule_reader* r) {
    memo_op_desc desc = MEMO_ZERO(memo_op_desc);
    int64_t n_ranges[2] = {0, 0};
    int list = -1; /* of ranges that the current word belongs to; -1: none */
    memo_error reason;
    memo_status status = memoi_schedule_expect_token(r, "an operation has a name");
    desc.name = r->word;
    if (!status) status = memoi_schedule_expect_token(r, "a stream is expected");
    if (!status) status = memoi_schedule_token_stream(r, &desc.stream);

    /* Each keyword opens a list or takes a number. */
    while (!status && !(status = memoi_schedule_next_token(r)) && r->word) {
        uint64_t takes = 0;
        if (memoi_schedule_is_keyword(r, "reads")) {
            list = 0;
        } else if (memoi_schedule_is_keyword(r, "writes")) {
            list = 1;
        } else if (memoi_schedule_is_keyword(r, "takes")) {
            status = memoi_schedule_expect_token(r, "nanoseconds are expected");
            if (!status && !memoi_schedule_token_number(r, &takes))
                status = memoi_schedule_bad_word(r, "no number of nanoseconds");
            if (!status) desc.duration_s = (double)takes / 1e9;
        } else if (list < 0) {
            status = memoi_schedule_bad_word(r, "reads, writes or takes is expected");
        } else {
            memo_range** ranges = &r->ranges[list];
            status = memob_grow(ranges, n_ranges[list], 1, sizeof(memo_range))
                         ? memoi_schedule_token_range(r, *ranges + n_ranges[list]++)
                         : memob_no_memory(r->error, "a line");
        }
    }
    if (status) return status;

    /* memo_schedule_add_op checks the rest; its message gets the line. */
    desc.reads = r->ranges[0];
    desc.n_reads = n_ranges[0];
    desc.writes = r->ranges[1];
    desc.n_writes = n_ranges[1];
    status = memo_schedule_add_op(r->schedule, &desc, &reason);
    return memob_reader_result(&r->reader, status, &reason, r->error);
}

/* record EVENT STREAM, wait EVENT STREAM, sync STREAM, sync event EVENT */
MEMOI memo_status memoi_schedule_parse_order(memoi_schedule_reader* r, memo_op_kind kind) {
    int32_t event = -1, stream = -1;
    memo_status status = MEMO_STATUS_OK;
    if (kind != MEMO_OP_SYNC) status = memoi_schedule_expect_event(r, &event);
    if (!status) status = memoi_schedule_expect_token(r, "a stream is expected");
    if (status) return status;
    status = kind == MEMO_OP_SYNC && memoi_schedule_is_keyword(r, "event")
                 ? memoi_schedule_expect_event(r, &event)
                 : memoi_schedule_token_stream(r, &stream);
    if (status) return status;
    return memo_schedule_add_order(r->schedule, kind, event, stream, r->error);
}

/* The reader is at the first word of the line. */
MEMOI memo_status memoi_schedule_parse_line(memoi_schedule_reader* r) {
    memo_status status;
    const char* p;
    char shown[40];
    int k = 0;

    /* A binary file is reported as such, also if its first word is valid. */
    for (p = r->reader.line; p < r->reader.stop; p++)
        if ((unsigned char)*p < ' ' && *p != '\t')
            return MEMOB_BAD_LINE(&r->reader, r->error,
                                  "control character (%d): the file is not text", (int)*p);

    /* Words are unquoted into one buffer. */
    r->n_text = 0; /* a word of n bytes needs at most n + 2 */
    if (!memob_reserve(&r->text, &r->text_capacity, 3 * (r->reader.stop - r->reader.line) + 8, 1))
        return memob_no_memory(r->error, "a line");

    while (k < MEMO_N_OP_KINDS && !memob_word_is(&r->reader, memoi_op_words[k])) k++;
    if (k == MEMO_OP_RUN)
        status = memoi_schedule_parse_run(r);
    else if (k < MEMO_N_OP_KINDS)
        status = memoi_schedule_parse_order(r, (memo_op_kind)k);
    else if (memob_word_is(&r->reader, "stream"))
        status = memoi_schedule_parse_stream(r);
    else if (memob_word_is(&r->reader, "buffer"))
        status = memoi_schedule_parse_buffer(r);
    else
        return MEMOB_BAD_LINE(
            &r->reader, r->error,
            "unknown line `%s`; stream, buffer, run, record, wait and sync are valid",
            memob_word_text(shown, &r->reader));
    return status ? status : memob_expect_line_end(&r->reader, r->error);
}

MEMOI memo_status memoi_schedule_parse(const memob_reader* reader, memo_schedule** schedule,
                                       memo_error* error) {
    memoi_schedule_reader r = MEMO_ZERO(memoi_schedule_reader);
    memo_status status;
    r.reader = *reader;
    r.error = error;
    status = memo_schedule_create(&r.schedule, error);
    if (!status) status = memob_read_frame(&r.reader, "schedule", 1, 1, error);
    while (!status && memob_next_entry(&r.reader)) status = memoi_schedule_parse_line(&r);
    if (!status) status = memob_check_count(&r.reader, r.schedule->n_ops, error);
    memoi_names_free(&r.streams);
    memoi_names_free(&r.events);
    memoi_names_free(&r.buffers);
    MEMO_FREE(r.text);
    MEMO_FREE(r.ranges[0]);
    MEMO_FREE(r.ranges[1]);
    if (status)
        memo_schedule_destroy(r.schedule);
    else
        *schedule = r.schedule;
    return status;
}

memo_status memo_schedule_read(const char* path, memo_schedule** schedule, memo_error* error) {
    memob_reader reader;
    memo_status status = memob_reader_open(&reader, path, error);
    *schedule = NULL;
    if (!status) status = memoi_schedule_parse(&reader, schedule, error);
    memob_reader_close(&reader);
    return status;
}

/* --- writing --- */

typedef struct memoi_schedule_writer {
    const memo_schedule* schedule;
    memo_text text;
    memoi_names streams, events; /* as they are written, by number */
} memoi_schedule_writer;

/* A blank and a name after a quote, which keeps it from being read as a keyword or a number. */
MEMOI void memoi_schedule_begin_name(memo_text* text, const char* name) {
    memo_text_put(text, " \"");
    for (; *name; name++)
        if ((unsigned char)*name >= 32)
            memo_text_put(text, *name == '"' || *name == '\\' ? "\\%c" : "%c", *name);
}

/* Adds the next name.  One that the reader would take for another's gets its number appended, more
 * than once if necessary.  0: no memory. */
MEMOI int memoi_schedule_take_name(memoi_names* names, const char* name) {
    const int64_t number = names->n;
    memo_text text = MEMO_ZERO(memo_text);
    int is_done;
    memoi_schedule_begin_name(&text, name);
    while (!text.failed && memoi_names_get(names, text.data, -1))
        memo_text_put(&text, " #%lld", (long long)number);
    is_done = !text.failed && memoi_names_get(names, text.data, number);
    memo_text_free(&text);
    return is_done;
}

MEMOI void memoi_schedule_put_taken(memo_text* text, const memoi_names* names, int64_t number) {
    memo_text_put(text, "%s\"", names->text.data + names->list[number].text);
}

MEMOI void memoi_schedule_put_op_line(memoi_schedule_writer* w, const memo_op* op) {
    const memo_schedule* schedule = w->schedule;
    const memo_range* ranges = schedule->ranges + op->first_range;
    memo_text* text = &w->text;
    memo_text_put(text, "%s", memoi_op_words[op->kind]);
    if (op->kind == MEMO_OP_RUN) {
        memoi_schedule_begin_name(text, schedule->text + op->name);
        memo_text_put(text, "\"");
    }
    if (op->kind == MEMO_OP_SYNC && op->event >= 0) memo_text_put(text, " event");
    if (op->event >= 0) memoi_schedule_put_taken(text, &w->events, op->event);
    if (op->stream >= 0) memoi_schedule_put_taken(text, &w->streams, op->stream);
    for (int64_t k = 0; k < op->n_reads + op->n_writes; k++) {
        if (k == 0 || k == op->n_reads) memo_text_put(text, k < op->n_reads ? " reads" : " writes");
        memo_text_put(text, " 0x%llx..0x%llx", (unsigned long long)ranges[k].begin,
                      (unsigned long long)ranges[k].end);
    }
    if (op->duration_s > 0)
        memo_text_put(text, " takes %.0f", op->duration_s < 1e9 ? op->duration_s * 1e9 : 1e18);
    memo_text_put(text, "\n");
}

memo_status memo_schedule_write(const memo_schedule* schedule, const char* path,
                                memo_error* error) {
    const memo_named_bytes* named = schedule->named;
    memoi_schedule_writer w = MEMO_ZERO(memoi_schedule_writer);
    char number[16];
    int is_done = 1;
    w.schedule = schedule;
    memo_text_put(&w.text, "memo schedule 1\n");

    /* A name that is taken already gets its number appended. */
    for (int64_t i = 0; i < schedule->n_events && is_done; i++)
        is_done = memoi_schedule_take_name(&w.events,
                                           memoi_schedule_event_name(schedule, (int32_t)i, number));
    for (int64_t i = 0; i < schedule->n_streams && is_done; i++) {
        is_done =
            memoi_schedule_take_name(&w.streams, memoi_schedule_stream_name(schedule, (int32_t)i));
        memo_text_put(&w.text, "stream");
        if (is_done) memoi_schedule_put_taken(&w.text, &w.streams, i);
        memo_text_put(&w.text, "\n");
    }

    for (int64_t i = 0; i < schedule->n_named; i++) {
        memo_text_put(&w.text, "buffer");
        memoi_schedule_begin_name(&w.text, schedule->text + named[i].name);
        memo_text_put(&w.text, "\" 0x%llx..0x%llx\n", (unsigned long long)named[i].bytes.begin,
                      (unsigned long long)named[i].bytes.end);
    }

    for (int64_t i = 0; i < schedule->n_ops && is_done; i++)
        memoi_schedule_put_op_line(&w, &schedule->ops[i]);
    memoi_names_free(&w.streams);
    memoi_names_free(&w.events);
    return memob_write_lines(&w.text, schedule->n_ops, path,
                             is_done ? MEMO_STATUS_OK : memob_no_memory(error, "names"), error);
}

/* ---- >>passed calls -----------------------------------------------------------------------------
 * Knows: the functions of memo_device.  Knows nothing of what a device around another adds. */

/* The functions with their parameters between context and error, and these as arguments.  C: calls,
 * W: waits, E: what enqueues, R: releases.  A recorder only passes the first ones on. */
#define MEMOI_AROUND_PASSED(C, E, R)                                                               \
    C(device_alloc, (int64_t n, void** address, ), (n, address, ))                                 \
    C(host_alloc, (int64_t n, void** address, ), (n, address, ))                                   \
    C(memory_info, (int64_t * left, int64_t * total, ), (left, total, ))                           \
    C(event_elapsed, (memo_event begin, memo_event end, double* s, ), (begin, end, s, ))           \
    C(status, (), ())                                                                              \
    E(launch_host, (memo_stream stream, memo_host_call * call, ), (stream, call, ))                \
    E(row_kernel, (memo_stream stream, const memo_row_call* call, ), (stream, call, ))             \
    R(device_free, (void* address, ), (address, ))                                                 \
    R(host_free, (void* address, ), (address, ))
#define MEMOI_AROUND_RECORDED(C, W, E, R)                                                          \
    C(stream_create, (const char* name, int32_t priority, memo_stream* stream, ),                  \
      (name, priority, stream, ))                                                                  \
    C(event_create, (memo_event * event, ), (event, ))                                             \
    C(event_create_untimed, (memo_event * event, ), (event, ))                                     \
    C(event_query, (memo_event event, int32_t * is_done, ), (event, is_done, ))                    \
    C(annotate, (memo_stream stream, const struct memo_op_desc* op, ), (stream, op, ))             \
    W(stream_synchronize, (memo_stream stream, ), (stream, ))                                      \
    W(event_synchronize, (memo_event event, ), (event, ))                                          \
    E(event_wait, (memo_event event, memo_stream stream, ), (event, stream, ))                     \
    E(copy, (memo_stream stream, memo_copy_kind kind, void* to, const void* from, int64_t n, ),    \
      (stream, kind, to, from, n, ))                                                               \
    E(copy_rows,                                                                                   \
      (memo_stream stream, memo_copy_kind kind, void* to, int64_t to_stride, const void* from,     \
       int64_t from_stride, int64_t row_bytes, int64_t n_rows, ),                                  \
      (stream, kind, to, to_stride, from, from_stride, row_bytes, n_rows, ))                       \
    E(fill, (memo_stream stream, void* to, int32_t value, int64_t n, ), (stream, to, value, n, ))  \
    R(event_destroy, (memo_event event, ), (event, ))
#define MEMOI_AROUND_EVENT_RECORD(E)                                                               \
    E(event_record, (memo_event event, memo_stream stream, ), (event, stream, ))

#define MEMOI_UNPACK(...) __VA_ARGS__
/* Defines a function of a device `self` around self->inner: before, the inner function if there is
 * one and nothing failed, and the result, an expression that reads `status`. */
#define MEMOI_AROUND(prefix, type, function, parameters, arguments, before, result)                \
    MEMOI memo_status memoi_##prefix##_##function(void* context,                                   \
                                                  MEMOI_UNPACK parameters memo_error* error) {     \
        type* self = (type*)context;                                                               \
        memo_status status = before;                                                               \
        if (!status && self->inner.function)                                                       \
            status = self->inner.function(self->inner.context, MEMOI_UNPACK arguments error);      \
        return result;                                                                             \
    }

/* ---- >>recorder ---------------------------------------------------------------------------------
 * Knows: a device to pass calls on to, a schedule to append to.  Knows nothing of what the calls
 * are for. */

/* An event of the inner device at the begin or end of an op. */
typedef struct memoi_stamp {
    memo_event event;
    int64_t op;
    int32_t is_end;
} memoi_stamp;

/* Where the latest record of an event was made; OUTSIDE: while paused, and resume's SYNC stands for
 * it. */
enum { MEMOI_RECORD_NONE, MEMOI_RECORD_INSIDE, MEMOI_RECORD_OUTSIDE };

struct memo_recorder {
    memo_device device; /* what the user gets; its context is this recorder */
    memo_device inner;  /* on paper: without functions */
    memo_schedule* schedule;
    int32_t is_timed, is_paused, on_paper;
    memob_map streams;    /* handle to index */
    memob_map events;     /* handle to index */
    memo_stream* handles; /* of each stream of the schedule */
    int64_t* open;        /* of each stream: the annotated op that lasts still, -1: none */
    int8_t* known;        /* of each event of the schedule: where it was recorded */
    memoi_stamp* stamps;  /* in the order of ops; not read yet */
    memo_range* rows;     /* of a copy_rows that is being appended: from, then to */
    int64_t n_stamps, rows_capacity;
    memo_event base;    /* time 0; NULL: nothing was timed yet */
    memo_error failure; /* of pause and resume, which cannot return it */
    intptr_t n_handles; /* on paper: streams and events so far */
};

MEMOI int64_t memoi_rec_key(const void* handle) { return (int64_t)(intptr_t)handle; }

/* --- streams, events and timing --- */

MEMOI memo_status memoi_rec_add_stream(memo_recorder* r, memo_stream handle, const char* name,
                                       int32_t* index, memo_error* error) {
    const int64_t n = r->schedule->n_streams;
    char number[32];
    memo_status status;
    if (!memob_grow(&r->handles, n, 1, sizeof(memo_stream)) ||
        !memob_grow(&r->open, n, 1, sizeof(int64_t)) ||
        !memob_map_put(&r->streams, memoi_rec_key(handle), n))
        return memob_no_memory(error, "a recorded stream");
    snprintf(number, sizeof number, "stream %d", (int)n);
    status = memo_schedule_add_stream(r->schedule, name ? name : number, index, error);
    if (status) {
        memob_map_remove(&r->streams, memoi_rec_key(handle));
        return status;
    }
    r->handles[*index] = handle;
    r->open[*index] = -1;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_rec_stream(memo_recorder* r, memo_stream handle, int32_t* index,
                                   memo_error* error) {
    int64_t known = memob_map_get(&r->streams, memoi_rec_key(handle));
    if (known < 0) return memoi_rec_add_stream(r, handle, NULL, index, error);
    *index = (int32_t)known;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_rec_event(memo_recorder* r, memo_event handle, int32_t* event,
                                  memo_error* error) {
    const int64_t known = memob_map_get(&r->events, memoi_rec_key(handle));
    const int64_t n = r->schedule->n_events;
    memo_status status;
    *event = (int32_t)known;
    if (known >= 0) return MEMO_STATUS_OK;
    if (!memob_grow(&r->known, n, 1, 1) || !memob_map_put(&r->events, memoi_rec_key(handle), n))
        return memob_no_memory(error, "a recorded event");
    status = memo_schedule_add_event(r->schedule, event, error);
    if (status) memob_map_remove(&r->events, memoi_rec_key(handle));
    return status;
}

/* Creates an event and records it on stream; on failure there is none. */
MEMOI memo_status memoi_rec_mark(memo_recorder* r, memo_stream stream, memo_event* event,
                                 memo_error* error) {
    memo_status status = memo_event_create(&r->inner, event, error);
    if (!status) {
        status = memo_event_record(&r->inner, *event, stream, error);
        if (status) memo_event_destroy(&r->inner, *event, NULL);
    }
    if (status) *event = NULL;
    return status;
}

/* Stamps the begin or end of op, if recording is timed. */
MEMOI memo_status memoi_rec_stamp(memo_recorder* r, memo_stream stream, int64_t op, int is_end,
                                  memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memoi_stamp* stamp;
    if (!r->is_timed || r->is_paused) return MEMO_STATUS_OK;
    if (!memob_grow(&r->stamps, r->n_stamps, 1, sizeof *stamp))
        return memob_no_memory(error, "timing events");
    stamp = &r->stamps[r->n_stamps];
    stamp->op = op;
    stamp->is_end = is_end;
    if (!r->base) status = memoi_rec_mark(r, stream, &r->base, error);
    if (!status) status = memoi_rec_mark(r, stream, &stamp->event, error);
    r->n_stamps += !status;
    return status;
}

/* Drops the stamps of op and of later ones. */
MEMOI void memoi_rec_drop(memo_recorder* r, int64_t op) {
    while (r->n_stamps && r->stamps[r->n_stamps - 1].op >= op)
        memo_event_destroy(&r->inner, r->stamps[--r->n_stamps].event, NULL);
}

/* The annotated op of this stream ends here. */
MEMOI memo_status memoi_rec_close(memo_recorder* r, int32_t stream, memo_error* error) {
    int64_t op = r->open[stream];
    if (op < 0) return MEMO_STATUS_OK;
    r->open[stream] = -1;
    return memoi_rec_stamp(r, r->handles[stream], op, 1, error);
}

MEMOI memo_status memoi_rec_close_all(memo_recorder* r, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t stream = 0; !status && stream < r->schedule->n_streams; stream++)
        status = memoi_rec_close(r, stream, error);
    return status;
}

/* --- an operation in three steps: begin, pass it on, end --- */

MEMOI memo_status memoi_rec_begin(memo_recorder* r, memo_stream handle, int is_stamped,
                                  memo_error* error) {
    int32_t stream = 0;
    memo_status status = MEMO_STATUS_OK;
    if (r->is_paused) return status;
    status = memoi_rec_stream(r, handle, &stream, error);
    if (!status) status = memoi_rec_close(r, stream, error);
    if (!status && is_stamped) status = memoi_rec_stamp(r, handle, r->schedule->n_ops, 0, error);
    return status;
}

/* status: so far.  What was not enqueued is not recorded.  event: waited for; -1: an operation. */
MEMOI memo_status memoi_rec_end(memo_recorder* r, memo_stream handle, memo_op_desc* desc,
                                int32_t event, memo_status status, memo_error* error) {
    const int64_t op = r->schedule->n_ops;
    if (r->is_paused) return status;
    if (!status) status = memoi_rec_stream(r, handle, &desc->stream, error);
    if (!status) status = memoi_rec_stamp(r, handle, op, 1, error);
    if (!status)
        status = event >= 0 ? memo_schedule_add_order(r->schedule, MEMO_OP_WAIT, event,
                                                      desc->stream, error)
                            : memo_schedule_add_op(r->schedule, desc, error);
    if (status) memoi_rec_drop(r, op);
    return status;
}

/* --- what follows each call; status: of the call --- */

/* Streams are known by name while paused too. */
MEMOI memo_status memoi_rec_after_stream_create(memo_recorder* r, const char* name,
                                                int32_t priority, memo_stream* stream,
                                                memo_status status, memo_error* error) {
    int32_t index = 0;
    (void)priority;
    if (status) return status;
    if (r->on_paper) *stream = (memo_stream)++r->n_handles;
    status = memoi_rec_add_stream(r, *stream, name, &index, error);
    if (!status) return MEMO_STATUS_OK;
    if (!r->on_paper) memo_stream_destroy(&r->inner, *stream, NULL);
    *stream = NULL;
    return status;
}

/* A handle that is created or destroyed has no records: its value may come again. */
MEMOI memo_status memoi_rec_after_event_destroy(memo_recorder* r, memo_event event,
                                                memo_status status, memo_error* error) {
    (void)error;
    if (!status) memob_map_remove(&r->events, memoi_rec_key(event));
    return status;
}
MEMOI memo_status memoi_rec_after_event_create(memo_recorder* r, memo_event* event,
                                               memo_status status, memo_error* error) {
    if (r->on_paper) *event = (memo_event)++r->n_handles;
    return memoi_rec_after_event_destroy(r, *event, status, error);
}
MEMOI memo_status memoi_rec_after_event_create_untimed(memo_recorder* r, memo_event* event,
                                                       memo_status status, memo_error* error) {
    return memoi_rec_after_event_create(r, event, status, error);
}

MEMOI memo_status memoi_rec_after_stream_synchronize(memo_recorder* r, memo_stream stream,
                                                     memo_status status, memo_error* error) {
    int32_t index = 0;
    if (status || r->is_paused) return status;
    status = memoi_rec_stream(r, stream, &index, error);
    if (status) return status;
    return memo_schedule_add_order(r->schedule, MEMO_OP_SYNC, -1, index, error);
}

/* The host has seen that event is done. */
MEMOI memo_status memoi_rec_after_event_synchronize(memo_recorder* r, memo_event event,
                                                    memo_status status, memo_error* error) {
    int32_t known = 0;
    if (status || r->is_paused) return status;
    status = memoi_rec_event(r, event, &known, error);
    if (status || r->known[known] == MEMOI_RECORD_OUTSIDE) return status;
    return memo_schedule_add_order(r->schedule, MEMO_OP_SYNC, known, -1, error);
}

/* A query of an event that was never recorded is valid; a wait for it is reported. */
MEMOI memo_status memoi_rec_after_event_query(memo_recorder* r, memo_event event, int32_t* is_done,
                                              memo_status status, memo_error* error) {
    const int64_t known = memob_map_get(&r->events, memoi_rec_key(event));
    if (r->on_paper) *is_done = 1;
    if (status || !*is_done || known < 0 || r->known[known] == MEMOI_RECORD_NONE) return status;
    return memoi_rec_after_event_synchronize(r, event, status, error);
}

MEMOI memo_status memoi_rec_after_event_record(memo_recorder* r, memo_event event,
                                               memo_stream stream, memo_status status,
                                               memo_error* error) {
    int32_t index = 0, known = 0;
    if (!status) status = memoi_rec_stream(r, stream, &index, error);
    if (!status) status = memoi_rec_event(r, event, &known, error);
    if (status) return status;
    r->known[known] = r->is_paused ? MEMOI_RECORD_OUTSIDE : MEMOI_RECORD_INSIDE;
    if (r->is_paused) return MEMO_STATUS_OK;
    return memo_schedule_add_order(r->schedule, MEMO_OP_RECORD, known, index, error);
}

MEMOI memo_status memoi_rec_after_event_wait(memo_recorder* r, memo_event event, memo_stream stream,
                                             memo_status status, memo_error* error) {
    memo_op_desc none = MEMO_ZERO(memo_op_desc);
    int32_t known = 0;
    if (!status && !r->is_paused) status = memoi_rec_event(r, event, &known, error);
    if (status || r->is_paused || r->known[known] != MEMOI_RECORD_OUTSIDE)
        return memoi_rec_end(r, stream, &none, known, status, error);
    memoi_rec_drop(r, r->schedule->n_ops);
    return MEMO_STATUS_OK;
}

/* Fills at most n_rows ranges, one for each row, or a single one if rows touch.  Returns how
 * many. */
MEMOI int64_t memoi_rec_row_ranges(memo_range* ranges, const void* address, int64_t stride_bytes,
                                   int64_t row_bytes, int64_t n_rows) {
    if (stride_bytes == row_bytes && n_rows > 0) {
        ranges[0] = memob_range_at(address, row_bytes * n_rows);
        return 1;
    }
    for (int64_t row = 0; row < n_rows; row++)
        ranges[row] = memob_range_at((const char*)address + row * stride_bytes, row_bytes);
    return n_rows;
}

MEMOI memo_status memoi_rec_after_copy_rows(memo_recorder* r, memo_stream stream,
                                            memo_copy_kind kind, void* to, int64_t to_stride,
                                            const void* from, int64_t from_stride,
                                            int64_t row_bytes, int64_t n_rows, memo_status status,
                                            memo_error* error) {
    static const char* const names[] = {"to host", "to device", "on device"};
    MEMOB_TABLE_OF(MEMO_N_COPY_KINDS, names);
    memo_op_desc desc = MEMO_ZERO(memo_op_desc);
    const int64_t n = memob_max(n_rows, 1);
    if (!status && !r->is_paused) { /* the inner device has checked the sizes */
        if (n > MEMOB_BYTES_MAX / 64 ||
            !memob_reserve(&r->rows, &r->rows_capacity, 2 * n, sizeof(memo_range))) {
            status = memob_no_memory(error, "the rows of a recorded copy");
        } else {
            desc.reads = r->rows;
            desc.n_reads = memoi_rec_row_ranges(r->rows, from, from_stride, row_bytes, n_rows);
            desc.writes = r->rows + n;
            desc.n_writes = memoi_rec_row_ranges(r->rows + n, to, to_stride, row_bytes, n_rows);
            desc.name = (unsigned)kind < 3 ? names[kind] : "copy";
            desc.link_bytes = row_bytes * n_rows;
        }
    }
    return memoi_rec_end(r, stream, &desc, -1, status, error);
}
MEMOI memo_status memoi_rec_after_copy(memo_recorder* r, memo_stream stream, memo_copy_kind kind,
                                       void* to, const void* from, int64_t n, memo_status status,
                                       memo_error* error) {
    return memoi_rec_after_copy_rows(r, stream, kind, to, n, from, n, n, 1, status, error);
}

MEMOI memo_status memoi_rec_after_fill(memo_recorder* r, memo_stream stream, void* to,
                                       int32_t value, int64_t n, memo_status status,
                                       memo_error* error) {
    memo_op_desc desc = MEMO_ZERO(memo_op_desc);
    memo_range written = memob_range_at(to, n);
    (void)value;
    desc.name = "fill";
    desc.link_bytes = n;
    desc.writes = &written;
    desc.n_writes = 1;
    return memoi_rec_end(r, stream, &desc, -1, status, error);
}

MEMOI memo_status memoi_rec_after_annotate(memo_recorder* r, memo_stream stream,
                                           const struct memo_op_desc* op, memo_status status,
                                           memo_error* error) {
    memo_op_desc desc = *op;
    const int64_t i = r->schedule->n_ops;
    if (!status) status = memoi_rec_begin(r, stream, 1, error);
    if (!status && !r->is_paused) status = memoi_rec_stream(r, stream, &desc.stream, error);
    if (status || r->is_paused) return status;
    status = memo_schedule_add_op(r->schedule, &desc, error);
    if (status)
        memoi_rec_drop(r, i);
    else
        r->open[desc.stream] = i;
    return status;
}

/* --- the table --- */

#define MEMOI_REC_AROUND(function, parameters, arguments, before, result)                          \
    MEMOI_AROUND(rec, memo_recorder, function, parameters, arguments, before, result)
#define MEMOI_REC_PASS(function, parameters, arguments)                                            \
    MEMOI_REC_AROUND(function, parameters, arguments, MEMO_STATUS_OK, status)
#define MEMOI_REC_AFTER(function, parameters, arguments, before)                                   \
    MEMOI_REC_AROUND(function, parameters, arguments, before,                                      \
                     memoi_rec_after_##function(self, MEMOI_UNPACK arguments status, error))
#define MEMOI_REC_CALL(function, parameters, arguments)                                            \
    MEMOI_REC_AFTER(function, parameters, arguments, MEMO_STATUS_OK)
#define MEMOI_REC_WAIT(function, parameters, arguments)                                            \
    MEMOI_REC_AFTER(function, parameters, arguments, memoi_rec_close_all(self, error))
#define MEMOI_REC_ENQUEUE(function, parameters, arguments)                                         \
    MEMOI_REC_AFTER(function, parameters, arguments, memoi_rec_begin(self, stream, 1, error))
#define MEMOI_REC_RECORD(function, parameters, arguments)                                          \
    MEMOI_REC_AFTER(function, parameters, arguments, memoi_rec_begin(self, stream, 0, error))
MEMOI_AROUND_PASSED(MEMOI_REC_PASS, MEMOI_REC_PASS, MEMOI_REC_PASS)
MEMOI_AROUND_RECORDED(MEMOI_REC_CALL, MEMOI_REC_WAIT, MEMOI_REC_ENQUEUE, MEMOI_REC_CALL)
MEMOI_AROUND_EVENT_RECORD(MEMOI_REC_RECORD)

/* A stream is destroyed even if its open operation cannot be closed. */
MEMOI memo_status memoi_rec_stream_destroy(void* context, memo_stream stream, memo_error* error) {
    memo_recorder* r = (memo_recorder*)context;
    int64_t index = memob_map_get(&r->streams, memoi_rec_key(stream));
    memo_status status = MEMO_STATUS_OK, closed = MEMO_STATUS_OK;
    if (index >= 0) closed = memoi_rec_close(r, (int32_t)index, error);
    if (!r->on_paper) status = memo_stream_destroy(&r->inner, stream, error);
    if (!status)
        memob_map_remove(&r->streams, memoi_rec_key(stream)); /* the handle may come again */
    return status ? status : closed;
}

memo_status memo_annotate_accesses(const memo_device* device, memo_stream stream, const char* name,
                                   memo_error* error, int n_accesses, ...) {
    memo_op_desc op = MEMO_ZERO(memo_op_desc);
    memo_range ranges[2][16]; /* read, written */
    va_list accesses;
    if (!device->annotate) return MEMO_STATUS_OK;
    op.name = name;
    op.reads = ranges[0];
    op.writes = ranges[1];
    va_start(accesses, n_accesses);
    for (int i = 0; i < n_accesses; i++) {
        memo_access access = va_arg(accesses, memo_access);
        ranges[access.is_written][access.is_written ? op.n_writes++ : op.n_reads++] = access.bytes;
    }
    va_end(accesses);
    return memo_annotate(device, stream, &op, error);
}

/* --- the recorder itself --- */

memo_status memo_recorder_create(const memo_recorder_desc* desc, memo_recorder** recorder,
                                 memo_error* error) {
    memo_recorder* r;
    memo_device* device;
    memo_status status = MEMO_STATUS_OK;
    *recorder = NULL;
    r = (memo_recorder*)memob_calloc(1, sizeof(memo_recorder));
    if (!r) return memob_no_memory(error, "a recorder");
    r->on_paper = desc->on_paper;
    r->inner.name = "paper";
    if (!r->on_paper)
        status = memob_device_take(&r->inner, desc->device, "memo_recorder_desc.device", error);
    if (!status) status = memo_schedule_create(&r->schedule, error);
    if (status) {
        MEMO_FREE(r);
        return status;
    }

    /* Every function of the table is passed on; optional ones only if the inner device has them. */
    r->is_timed = desc->is_timed && !r->on_paper;
    device = &r->device;
    device->struct_bytes = sizeof(memo_device);
    device->name = r->inner.name;
    device->context = r;
    if (!r->on_paper) device->inner = &r->inner;
#define MEMOI_REC_SET(function)                                                                    \
    if (r->on_paper || r->inner.function) device->function = memoi_rec_##function;
    MEMOB_DEVICE_FUNCTIONS(MEMOI_REC_SET)
    MEMOB_DEVICE_OPTIONS(MEMOI_REC_SET)
    device->annotate = memoi_rec_annotate;
    *recorder = r;
    return MEMO_STATUS_OK;
}

void memo_recorder_destroy(memo_recorder* recorder) {
    memo_recorder* r = recorder;
    if (!r) return;
    memoi_rec_drop(r, 0);
    if (r->base) memo_event_destroy(&r->inner, r->base, NULL);
    memo_schedule_destroy(r->schedule);
    memob_map_free(&r->streams);
    memob_map_free(&r->events);
    MEMO_FREE(r->handles);
    MEMO_FREE(r->open);
    MEMO_FREE(r->known);
    MEMO_FREE(r->stamps);
    MEMO_FREE(r->rows);
    MEMO_FREE(r);
}

memo_device* memo_recorder_get_device(memo_recorder* recorder) { return &recorder->device; }

memo_status memo_recorder_name_stream(memo_recorder* recorder, memo_stream stream, const char* name,
                                      memo_error* error) {
    int64_t known = memob_map_get(&recorder->streams, memoi_rec_key(stream)), text;
    int32_t index;
    if (!name) return MEMOB_INVALID(error, "stream: the name is NULL; pass a name");
    if (known < 0) return memoi_rec_add_stream(recorder, stream, name, &index, error);
    text = memoi_schedule_add_text(recorder->schedule, name);
    if (text < 0) return memob_no_memory(error, "the name of a stream");
    recorder->schedule->streams[known] = text;
    return MEMO_STATUS_OK;
}

void memo_recorder_pause(memo_recorder* recorder) {
    if (recorder->is_paused || recorder->failure.status) return;
    (void)memoi_rec_close_all(recorder, &recorder->failure);
    recorder->is_paused = 1;
}

void memo_recorder_resume(memo_recorder* recorder) {
    memo_recorder* r = recorder;
    memo_status status = MEMO_STATUS_OK;
    if (!r->is_paused || r->failure.status) return;
    r->is_paused = 0;
    for (int32_t stream = 0; !status && stream < r->schedule->n_streams; stream++)
        status = memo_schedule_add_order(r->schedule, MEMO_OP_SYNC, -1, stream, &r->failure);
}

MEMOI memo_status memoi_rec_read_stamp(memo_recorder* r, const memoi_stamp* stamp,
                                       memo_error* error) {
    memo_op* op = &r->schedule->ops[stamp->op];
    memo_status status = memo_event_elapsed(&r->inner, r->base, stamp->event,
                                            stamp->is_end ? &op->end_s : &op->start_s, error);
    if (status || !stamp->is_end) return status;
    if (op->end_s < op->start_s) op->end_s = op->start_s; /* clocks of finite resolution */
    if (op->kind == MEMO_OP_RUN && op->duration_s == 0) op->duration_s = op->end_s - op->start_s;
    return MEMO_STATUS_OK;
}

memo_status memo_recorder_get_schedule(memo_recorder* recorder, memo_schedule** schedule,
                                       memo_error* error) {
    memo_recorder* r = recorder;
    memo_status status = MEMO_STATUS_OK;
    *schedule = NULL;
    if (r->failure.status)
        return memo_error_set(error, r->failure.status, "%s", r->failure.message);
    for (int64_t i = 0; i < r->schedule->n_streams && !status; i++) {
        int is_open = r->open[i] >= 0 && r->n_stamps;
        status = memoi_rec_close(r, (int32_t)i, error);
        /* Its end was recorded just now, after the caller synchronized. */
        if (!status && is_open)
            status = memo_event_synchronize(&r->inner, r->stamps[r->n_stamps - 1].event, error);
    }
    for (int64_t i = 0; i < r->n_stamps && !status; i++)
        status = memoi_rec_read_stamp(r, &r->stamps[i], error);
    if (!status) memoi_rec_drop(r, 0);
    if (!status) *schedule = r->schedule;
    return status;
}

/* Destroys the recorder; if status is OK, its schedule is the caller's.  Returns status. */
MEMOI memo_status memoi_rec_finish(memo_recorder* r, memo_status status, memo_schedule** schedule) {
    if (!status) *schedule = r->schedule;
    if (!status) r->schedule = NULL;
    memo_recorder_destroy(r);
    return status;
}

/* ---- >>faults -----------------------------------------------------------------------------------
 * Knows: the number of a call, and which is to fail.  Knows nothing of what the calls are for. */

/* Counts a call.  DEVICE: it is made to fail. */
MEMOI memo_status memoi_faults_count(memo_faults* f, const char* function, memo_error* error) {
    int64_t k = __atomic_add_fetch(&f->n_calls, 1, __ATOMIC_RELAXED);
    if (k != f->failing_call) return MEMO_STATUS_OK;
    __atomic_store_n(&f->failed, function, __ATOMIC_RELAXED);
    return memo_error_set(error, MEMO_STATUS_DEVICE, "%s: call %lld fails on purpose", function,
                          (long long)k);
}

MEMOI memo_status memoi_faults_fail_late(void* argument, memo_error* error) {
    memo_faults* f = (memo_faults*)argument;
    return memo_error_set(error, MEMO_STATUS_DEVICE, "%s: call %lld fails on purpose, late",
                          f->failed, (long long)f->failing_call);
}

/* Sleeps in every second call, by a random number of its own. */
MEMOI memo_status memoi_faults_delay(void* argument, memo_error* error) {
    memo_faults* f = (memo_faults*)argument;
    uint64_t state = f->seed + __atomic_add_fetch(&f->n_delays, 1, __ATOMIC_RELAXED);
    const uint64_t z = memob_random(&state);
    (void)error;
    if (z & 1)
        memob_sleep_until(memob_now_ns() +
                          (int64_t)(f->delay_s * 1e9 * (double)(z >> 11) / 9007199254740992.0));
    return MEMO_STATUS_OK;
}

/* Before a call that enqueues.  If it is made to fail late, the failure is enqueued. */
MEMOI memo_status memoi_faults_enqueue(memo_faults* f, memo_stream stream, const char* function,
                                       memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (f->delay_s > 0)
        status = f->inner.launch_host ? memo_launch_host(&f->inner, stream, &f->delay_call, error)
                                      : memoi_faults_delay(f, error);
    if (status) return status;
    status = memoi_faults_count(f, function, error);
    /* The call itself follows the failure: without its record or wait, operations of other streams
     * could pass it before it happens. */
    return status && f->is_late && f->inner.launch_host
               ? memo_launch_host(&f->inner, stream, &f->late_call, error)
               : status;
}

#define MEMOI_FAULTS_CALL(function, parameters, arguments)                                         \
    MEMOI_AROUND(faults, memo_faults, function, parameters, arguments,                             \
                 memoi_faults_count(self, #function, error), status)
#define MEMOI_FAULTS_WAIT(function, parameters, arguments)                                         \
    MEMOI_AROUND(faults, memo_faults, function, parameters, arguments, MEMO_STATUS_OK,             \
                 status || !error ? status : memoi_faults_count(self, #function, error))
#define MEMOI_FAULTS_ENQUEUE(function, parameters, arguments)                                      \
    MEMOI_AROUND(faults, memo_faults, function, parameters, arguments,                             \
                 memoi_faults_enqueue(self, stream, #function, error), status)
#define MEMOI_FAULTS_RELEASE(function, parameters, arguments)                                      \
    MEMOI_AROUND(faults, memo_faults, function, parameters, arguments, MEMO_STATUS_OK, status)
MEMOI_AROUND_PASSED(MEMOI_FAULTS_CALL, MEMOI_FAULTS_ENQUEUE, MEMOI_FAULTS_RELEASE)
MEMOI_AROUND_RECORDED(MEMOI_FAULTS_CALL, MEMOI_FAULTS_WAIT, MEMOI_FAULTS_ENQUEUE,
                      MEMOI_FAULTS_RELEASE)
MEMOI_AROUND_EVENT_RECORD(MEMOI_FAULTS_ENQUEUE)
MEMOI_FAULTS_RELEASE(stream_destroy, (memo_stream stream, ), (stream, ))

void memo_faults_init(memo_faults* faults, const memo_device* inner) {
    memo_faults* f = faults;
    memset(f, 0, sizeof *f);
    memcpy(&f->inner, inner, (size_t)memob_min(inner->struct_bytes, (int64_t)sizeof f->inner));
    f->late_call.function = memoi_faults_fail_late;
    f->delay_call.function = memoi_faults_delay;
    f->late_call.argument = f->delay_call.argument = f;

    f->device.struct_bytes = (int64_t)sizeof f->device;
    f->device.name = f->inner.name;
    f->device.context = f;
    f->device.inner = &f->inner;
#define MEMOI_FAULTS_SET(function)                                                                 \
    if (f->inner.function) f->device.function = memoi_faults_##function;
    MEMOB_DEVICE_FUNCTIONS(MEMOI_FAULTS_SET)
    MEMOB_DEVICE_OPTIONS(MEMOI_FAULTS_SET)
}

/* ---- >>swap schedule ----------------------------------------------------------------------------
 * Knows: a recorder on paper, and what a trainer computes.  Knows nothing of the engine's copies
 * and waits. */
#ifdef MEMO_PLAN_IMPLEMENTATION_DONE

/* Numbering of bytes: device memory, host memory; the file begins at MEMOB_SPILL_FILE_BASE.  No
 * range begins at 0. */
#define MEMOI_SWAP_DEVICE_BASE MEMOB_DEVICE_ALIGNMENT
#define MEMOI_SWAP_HOST_BASE   ((uint64_t)1 << 62)

/* After a failure, whose status it keeps, it adds nothing more. */
typedef struct memoi_swap_generator {
    const memo_device* device; /* of a recorder */
    memo_swap_desc desc;
    memo_swap_plan_desc costs; /* of desc */
    memob_rates rates;
    memo_swap* swap;
    memob_states* states; /* NULL: none */
    memo_status status;
    memo_error* error;
    memo_range* ranges; /* 2 n_tensors, and the states of open layers */
    int64_t n_ranges;
    int32_t open[3], n_open; /* layers whose states the visit uses */
} memoi_swap_generator;

/* --- what a trainer enqueues --- */

/* Appends rows [begin, end) of a tensor; nothing if the step lacks it. */
MEMOI void memoi_swap_generate_range(memoi_swap_generator* g, int32_t step, int32_t t,
                                     int64_t begin, int64_t end) {
    const char* address = (const char*)memo_swap_get_address(g->swap, step, t);
    const int64_t row_bytes = g->desc.tensors[t].row_bytes;
    if (address && begin < end)
        g->ranges[g->n_ranges++] =
            memob_range_at(address + begin * row_bytes, (end - begin) * row_bytes);
}

/* An operation on the ranges, the first n_reads of which it reads. */
MEMOI void memoi_swap_generate_compute(memoi_swap_generator* g, const char* name, double duration_s,
                                       int64_t n_reads) {
    memo_op_desc op = MEMO_ZERO(memo_op_desc);
    op.name = name;
    op.duration_s = duration_s;
    op.reads = g->ranges;
    op.writes = g->ranges + n_reads;
    op.n_reads = n_reads;
    op.n_writes = g->n_ranges - n_reads;
    if (!g->status) g->status = memo_annotate(g->device, g->desc.compute_stream, &op, g->error);
    g->n_ranges = 0;
}

/* Appends the states of a layer with one of these uses. */
MEMOI void memoi_swap_generate_states(memoi_swap_generator* g, int32_t layer, uint32_t uses) {
    for (int32_t i = 0; i < g->states->n_states; i++) {
        const void* address = memob_states_get_address(g->states, layer, i);
        if (address && g->states->states[i].uses & uses)
            g->ranges[g->n_ranges++] = memob_range_at(address, g->states->states[i].size_bytes);
    }
}

/* Appends what a pass reads, or writes, of the states of all open layers. */
MEMOI void memoi_swap_generate_open(memoi_swap_generator* g, int is_backward, int writes) {
    const uint32_t reads =
        is_backward ? MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT : (uint32_t)MEMO_STATE_FORWARD;
    const uint32_t uses = writes ? reads & MEMO_STATE_GRADIENT : reads;
    for (int32_t i = 0; g->states && i < g->n_open; i++)
        memoi_swap_generate_states(g, g->open[i], uses);
}

/* A step on all its bytes: a forward writes its own rows, a backward reads them, recomputed ones
 * too.  Both read the LAYER rows of earlier slices and update EDGE rows. */
MEMOI void memoi_swap_generate_layer(memoi_swap_generator* g, int32_t step, int is_backward) {
    const memo_swap_desc* desc = &g->desc;
    const int64_t first = step % memob_swap_batch_slices(desc) * desc->n_rows;
    double time_s;
    const int64_t n = memob_max(0, memob_min(memob_swap_layer_rows(desc) - first, desc->n_rows));
    int64_t begin = 0, end = 0, n_reads = 0;
    for (int32_t t = 0; t < desc->n_tensors && is_backward; t++) {
        const int64_t n_all = memob_tensor_is_routed(desc, t) ? memob_swap_routed_rows(desc, t) : n;
        memo_swap_get_recompute_rows(g->swap, step, t, &begin, &end);
        if (begin == end || !memo_swap_get_address(g->swap, step, t)) continue;
        memoi_swap_generate_open(g, 1, 0);
        n_reads = g->n_ranges;
        memoi_swap_generate_range(g, step, t, begin, end);
        time_s = memob_rows_recompute_s(&g->costs, step, t, n_all) * (double)(end - begin) /
                 (double)n_all;
        if (desc->tensors[t].away != MEMO_WITH) time_s += g->costs.profile->recompute_call_s;
        memoi_swap_generate_compute(g, "recompute", time_s, n_reads);
    }

    for (int32_t writes = 0; writes < 2; writes++) {
        memoi_swap_generate_open(g, is_backward, writes);
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            begin = end = 0;
            if (!memob_swap_is_layer(desc, t)) {
                if (writes == (!is_backward || desc->tensors[t].scope == MEMO_EDGE))
                    end = memob_tensor_is_routed(desc, t)
                              ? memob_swap_routed_rows(desc, t)
                              : memob_min(n, memob_tensor_rows(desc, t));
            } else if (!writes) {
                end = first + (is_backward ? n : 0);
            } else if (!is_backward) {
                begin = first;
                end = first + n;
            }
            memoi_swap_generate_range(g, step, t, begin, end);
        }
        if (!writes) n_reads = g->n_ranges;
    }
    time_s = memob_rows_pass_s(&g->costs, step, is_backward);
    memoi_swap_generate_compute(g, is_backward ? "backward" : "forward", time_s, n_reads);
}

/* --- what a trainer does, see memob_states_walk --- */

/* As many rows in all layers. */
MEMOI void memoi_swap_generate_routed(memoi_swap_generator* g, int32_t step) {
    const memo_swap_desc* desc = &g->desc;
    memob_swap_route_none(g->swap->placement, step, 0);
    for (int32_t t = 0; t < desc->n_tensors && !g->status; t++)
        if (memob_tensor_is_routed(desc, t) && memob_layer_has(desc, step, t)) {
            g->status = memob_swap_set_routed(g->swap->placement, step,
                                              memob_swap_routed_rows(desc, t), 0, g->error);
            break;
        }
}

MEMOI memo_status memoi_swap_generate_visit(void* generator, const memob_visit* visit,
                                            int is_begun) {
    memoi_swap_generator* g = (memoi_swap_generator*)generator;
    const memob_swap_placement* placement = g->swap->placement;
    const double between_s = g->costs.profile->between_s;
    if (between_s > 0 && memob_swap_computes_between(placement, visit, g->states != NULL, is_begun))
        memoi_swap_generate_compute(g, "between", between_s, 0);
    if (!is_begun || visit->row < 0) return g->status;

    if (g->states) g->n_open = memob_states_beside(visit, g->states->n_layers, g->open);
    if (visit->pass == MEMOB_FORWARD)
        memoi_swap_generate_routed(g, placement->visits[visit->row].layer);
    memoi_swap_generate_layer(g, placement->visits[visit->row].layer, visit->pass);
    return g->status;
}

MEMOI memo_status memoi_swap_generate_update(void* generator, int32_t layer) {
    memoi_swap_generator* g = (memoi_swap_generator*)generator;
    int64_t n_reads;
    memoi_swap_generate_states(g, layer, MEMO_STATE_GRADIENT);
    n_reads = g->n_ranges;
    memoi_swap_generate_states(g, layer, MEMO_STATE_UPDATE);
    memoi_swap_generate_compute(
        g, "update",
        g->costs.profile->update_s_per_byte * memob_states_update_bytes(g->states, layer), n_reads);
    return g->status;
}

/* What moves bytes takes its time. */
MEMOI void memoi_swap_generate_times(const memob_rates* rates, memo_schedule* schedule) {
    static const char* const names[] = {"to file", "from file", "to host", "to device"};
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        memo_op* op = &schedule->ops[i];
        const char* name = memo_schedule_op_name(schedule, i);
        const double n_bytes = (double)op->link_bytes;
        if (!strcmp(name, "update on host"))
            op->duration_s = n_bytes * rates->update_host_s_per_byte;
        if (!strcmp(name, "fetch")) op->duration_s = n_bytes * rates->fetch_s_per_byte;
        for (int k = 0; k < 4; k++) {
            const double rate = rates->bytes_per_s[k < 2][k % 2];
            if (strcmp(name, names[k]) || !op->link_bytes) continue;
            op->duration_s = (k < 2 ? 0 : rates->copy_s) + (rate > 0 ? n_bytes / rate : 0);
        }
    }
}

/* Copies slow computation: operations of the compute stream, the first, get the time that they take
 * beside the copies that were enqueued before them. */
MEMOI memo_status memoi_swap_generate_slowdown(const memo_profile* profile,
                                               const memob_rates* rates, memo_schedule* schedule,
                                               memo_error* error) {
    static const char* const names[] = {"to host", "to device"};
    memob_beside beside[2] = {MEMO_ZERO(memob_beside), MEMO_ZERO(memob_beside)};
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memo_simulation* times = NULL;
    int64_t* order;
    memo_status status;
    for (int way = 0; way < 2; way++)
        beside[way].loss = profile->slowdown_s_per_byte[way] * rates->bytes_per_s[0][way];
    if (beside[0].loss <= 0 && beside[1].loss <= 0) return MEMO_STATUS_OK;
    status = memoi_order_make(schedule, &order, &arrays, error);
    if (!status) status = memoi_simulation_create(schedule, &times, error);

    /* One pass, as a simulation: what is enqueued later changes nothing. */
    for (int64_t i = 0; !status && i < schedule->n_ops; i++) {
        memo_op* op = &schedule->ops[i];
        double start_s;
        memoi_simulation_pass_op(schedule, order, times, i);
        if (op->kind != MEMO_OP_RUN) continue;
        start_s = times->end_s[i];
        if (op->stream == 0)
            op->duration_s = memob_beside_end(beside, start_s, op->duration_s) - start_s;
        times->end_s[i] += op->duration_s;
        for (int way = 0; way < 2; way++)
            if (!strcmp(memo_schedule_op_name(schedule, i), names[way]))
                memob_beside_add(&beside[way], start_s, times->end_s[i]);
    }
    memob_arrays_free(&arrays);
    memo_simulation_destroy(times);
    return status;
}

/* The engine of states, whose bytes follow those of rows.  Both use the same streams. */
MEMOI memo_status memoi_swap_generate_engine(memoi_swap_generator* g,
                                             const memob_states_desc* given) {
    memob_states_desc desc = *given;
    memo_swap_sizes rows;
    memo_status status = memo_swap_desc_get_sizes(&g->desc, &rows, g->error);
    desc.device = g->device;
    desc.compute_stream = g->desc.compute_stream;
    desc.computes_on_host = 0;
    desc.trainer.update = memoi_swap_generate_update;
    desc.trainer.look = NULL;
    desc.trainer.user = g;
    if (!status) {
        desc.device_memory = (char*)g->desc.device_memory +
                             memob_align_up(rows.device_bytes, MEMOB_DEVICE_ALIGNMENT);
        desc.host_memory =
            (char*)g->desc.host_memory + memob_align_up(rows.host_bytes, MEMOB_SPILL_ALIGNMENT);
        status = memob_states_create(&desc, 1, &g->states, g->error);
    }
    return status;
}

memo_status memo_swap_generate(const memo_swap_plan_desc* desc, int32_t n_steps,
                               memo_schedule** schedule, memo_error* error) {
    static memo_profile none;
    memo_recorder_desc recorder_desc = MEMO_ZERO(memo_recorder_desc);
    memo_recorder* recorder;
    memoi_swap_generator g = MEMO_ZERO(memoi_swap_generator);
    memob_step* step = NULL;
    int32_t i, n = memob_rows_n_batches(desc);
    *schedule = NULL;
    recorder_desc.on_paper = 1;
    g.status = memo_recorder_create(&recorder_desc, &recorder, error);
    if (g.status) return g.status;
    g.device = memo_recorder_get_device(recorder);
    g.costs = *desc;
    if (!desc->profile) g.costs.profile = &none;
    g.rates = memob_rows_find_rates(g.costs.profile);
    g.error = error;

    /* The real engine; its memory is a number, and a stream computes. */
    g.desc = *desc->swap;
    g.desc.device = g.device;
    g.desc.computes_on_host = 0;
    g.desc.device_memory = (void*)(uintptr_t)MEMOI_SWAP_DEVICE_BASE;
    g.desc.host_memory = (void*)(uintptr_t)MEMOI_SWAP_HOST_BASE;
    g.desc.spill_directory = NULL;
    g.status = memo_stream_create(g.device, "compute", 0, &g.desc.compute_stream, error);
    if (!g.status && desc->states) g.status = memoi_swap_generate_engine(&g, desc->states);
    if (!g.status)
        g.status =
            memob_swap_create(&g.desc, 1, NULL, g.states ? &g.states->sink : NULL, &g.swap, error);
    if (!g.status) {
        g.ranges = (memo_range*)memob_calloc(2 * (int64_t)g.desc.n_tensors + 6 * MEMO_STATES_MAX,
                                             sizeof(memo_range));
        if (!g.ranges) g.status = memob_no_memory(error, "the schedule of a step");
    }

    if (!g.status) step = &g.swap->step;
    if (!g.status && g.states)
        g.status = memob_states_get_step(g.states, g.swap->placement->n_slices, n, &step, error);
    for (i = 0; i < n * memob_max(1, n_steps) && !g.status; i++) {
        const int is_last = i % n == n - 1;
        g.status = memob_states_walk(g.states, step, &g.swap->rows, is_last,
                                     memoi_swap_generate_visit, &g, error);
        if (!g.status && is_last && g.states) g.status = memob_states_end_step(g.states, error);
    }
    if (!g.status) memoi_swap_generate_times(&g.rates, recorder->schedule);
    if (!g.status)
        g.status =
            memoi_swap_generate_slowdown(g.costs.profile, &g.rates, recorder->schedule, error);
    MEMO_FREE(g.ranges);
    memo_recorder_pause(recorder); /* the end of the engine is not part of the step */
    memo_swap_destroy(g.swap);
    memob_states_destroy(g.states);
    return memoi_rec_finish(recorder, g.status, schedule);
}

#endif /* MEMO_PLAN_IMPLEMENTATION_DONE */

/* ---- >>blocks schedule --------------------------------------------------------------------------
 * Knows: a recorder on paper, and how long a trainer's functions take.  Knows nothing of orders and
 * waits. */
#ifdef MEMO_SP_H

typedef struct memoi_blocks_generator {
    memo_recorder* recorder;
    const memo_block_times* times; /* NULL: all 0 */
    int32_t n_parts;
    int64_t place; /* of the latest function in times */
} memoi_blocks_generator;

/* The latest operation, which has just been announced, takes duration_s. */
MEMOI memo_status memoi_blocks_generate_time(memoi_blocks_generator* g, double duration_s,
                                             memo_error* error) {
    memo_schedule* schedule = g->recorder->schedule;
    if (!(duration_s >= 0 && duration_s <= 1e300))
        return MEMOB_INVALID(error,
                             "memo_block_times: negative or not a number (block %d, part %d); use "
                             "times of at least 0",
                             (int)(g->place / g->n_parts) + 1, (int)(g->place % g->n_parts) + 1);
    if (!g->recorder->is_paused) schedule->ops[schedule->n_ops - 1].duration_s = duration_s;
    return MEMO_STATUS_OK;
}

#define MEMOI_BLOCKS_GENERATE(function)                                                            \
    MEMOI memo_status memoi_blocks_generate_##function(void* context, const memo_block_call* call, \
                                                       memo_error* error) {                        \
        memoi_blocks_generator* g = (memoi_blocks_generator*)context;                              \
        g->place = (int64_t)call->block * g->n_parts + call->part;                                 \
        return memoi_blocks_generate_time(g, g->times ? g->times[g->place].function##_s : 0,       \
                                          error);                                                  \
    }
MEMOI_BLOCKS_GENERATE(forward)
MEMOI_BLOCKS_GENERATE(recompute)
MEMOI_BLOCKS_GENERATE(backward)
MEMOI_BLOCKS_GENERATE(weights)
/* The collective of the latest function. */
MEMOI memo_status memoi_blocks_generate_collective(memo_comm* comm, memo_stream stream,
                                                   const memo_collective_call* call,
                                                   memo_error* error) {
    memoi_blocks_generator* g = (memoi_blocks_generator*)comm->context;
    (void)stream, (void)call;
    return memoi_blocks_generate_time(g, g->times ? g->times[g->place].reduce_s : 0, error);
}

/* On a recorder that pauses in passes that are not wanted. */
MEMOI memo_status memoi_blocks_generate_passes(memo_recorder* recorder,
                                               const memo_blocks_desc* desc, int32_t passes,
                                               memo_error* error) {
    memo_blocks* blocks;
    memo_status status = memo_blocks_create(desc, &blocks, error);
    recorder->is_paused = !(passes & MEMO_BLOCKS_FORWARD);
    if (!status) status = memo_blocks_forward(blocks, MEMO_ALL_LAYERS, error);
    recorder->is_paused = 0;
    if (!status && (passes & MEMO_BLOCKS_BACKWARD))
        status = memo_blocks_backward(blocks, MEMO_ALL_LAYERS, error);
    memo_recorder_pause(recorder); /* the end of the engine is not part of the passes */
    memo_blocks_destroy(blocks);
    return status;
}

memo_status memo_blocks_generate(const memo_blocks_schedule_desc* desc,
                                 const memo_block_times* times, int32_t passes,
                                 memo_schedule** schedule, memo_error* error) {
    /* More parts than these are refused. */
    const int64_t n_parts = desc->n_parts ? memob_min(desc->n_parts, 1 << 20) : 2;
    memo_recorder_desc recorder_desc = MEMO_ZERO(memo_recorder_desc);
    memo_blocks_desc run = MEMO_ZERO(memo_blocks_desc);
    memo_block_functions* functions = &run.functions;
    memo_block_buffers* buffers;
    memoi_blocks_generator g = MEMO_ZERO(memoi_blocks_generator);
    memo_comm comm = MEMO_ZERO(memo_comm);
    memo_status status;
    *schedule = NULL;
    g.times = times;
    g.n_parts = (int32_t)n_parts;

    /* A rank alone; each buffer is a byte. */
    comm.size = 1;
    comm.context = functions->context = &g;
    comm.collective = memoi_blocks_generate_collective;
    functions->forward = memoi_blocks_generate_forward;
    functions->recompute = memoi_blocks_generate_recompute;
    functions->backward = memoi_blocks_generate_backward;
    if (passes & MEMO_BLOCKS_WEIGHTS) functions->weights = memoi_blocks_generate_weights;
    buffers = (memo_block_buffers*)memob_calloc(memob_max(n_parts, 1), sizeof *buffers);
    if (!buffers) return memob_no_memory(error, "the schedule of blocks");
    for (int64_t i = 0; i < n_parts; i++) {
        buffers[i].output = (void*)(uintptr_t)(2 * i + 1);
        buffers[i].gradient = (void*)(uintptr_t)(2 * i + 2);
        buffers[i].count = 1;
    }
    run.comm = &comm;
    run.type = MEMO_TYPE_U8;
    run.schedule = *desc;
    run.buffers = buffers;

    /* The real engine. */
    recorder_desc.on_paper = 1;
    status = memo_recorder_create(&recorder_desc, &g.recorder, error);
    if (!status) {
        run.device = memo_recorder_get_device(g.recorder);
        status = memo_stream_create(run.device, "compute", 0, &run.compute_stream, error);
    }
    if (!status) status = memoi_blocks_generate_passes(g.recorder, &run, passes, error);
    MEMO_FREE(buffers);
    return memoi_rec_finish(g.recorder, status, schedule);
}

#endif /* MEMO_SP_H */

#endif /* MEMO_LOOK_IMPLEMENTATION */
