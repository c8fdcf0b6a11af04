#pragma once
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
