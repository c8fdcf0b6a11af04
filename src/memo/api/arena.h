#pragma once
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
