#pragma once
#include "memo/law.h"
/* ---- >>clock ------------------------------------------------------------------------------------
 * Knows: how long operations take, and when they begin.  Knows nothing of memory.
 *
 * A sink of the law: the seconds of a step, for predictions and for the planner.  An operation
 * begins when its stream and its waits are done.
 *
 * 1. Streams run their operations one after the other; streams run beside each other.
 * 2. Copies to the host and to the device may share a limit.  The copy that is enqueued later then
 *    has what the earlier copies of the other direction leave of it.
 * 3. Computation takes longer for each byte that is copied meanwhile. */

/* Zero means no time. */
typedef struct memob_costs {
    const double* visit_s; /* (n_visits) */
    const double* make_s;  /* (n_items): to make an item again; NULL: 0 */
    double copy_s;         /* of each copy, in addition to the bytes */
    double file_s;         /* of each read and write of the file, likewise */
    double to_host_bytes_per_s, to_device_bytes_per_s;
    double both_bytes_per_s; /* most of both directions together; 0: no limit */
    double to_file_bytes_per_s, from_file_bytes_per_s;
    double slowdown_s_per_byte[2]; /* of computation, for bytes to the host, to the device */
    /* Called for each operation in the order of enqueueing; may be NULL. */
    void (*see)(void* user, const memob_op* op, double begin_s, double end_s);
    void* user;
} memob_costs;

/* Of a step that follows other steps. */
typedef struct memob_step_times {
    double step_s;  /* from its end to the end of the next */
    double first_s; /* of the first list */
    double compute_s;
    double stall_s[MEMOB_N_STREAMS]; /* computation waits for this stream */
    double busy_s[MEMOB_N_STREAMS];
    int64_t n_bytes[5]; /* by memob_op_kind: bytes that travel */
} memob_step_times;

typedef struct memoi_clock_span {
    double begin_s, end_s;
    double bytes_per_s;
} memoi_clock_span;

typedef struct memoi_clock {
    const memob_law* law;
    const memob_costs* costs;
    memob_waits waits;
    memoi_clock_span* spans[MEMOB_N_STREAMS]; /* of operation k: at k & waits.mask */
    double now_s[MEMOB_N_STREAMS];
    memob_step_times times;
    memob_arrays arrays;
} memoi_clock;

/* The earliest kept span of a stream that ends after time_s. */
MEMOI int64_t memoi_clock_first_after(const memoi_clock* c, int32_t stream, double time_s) {
    const int64_t mask = c->waits.mask[stream];
    int64_t k = c->waits.n[stream];
    while (k > 0 && k + mask > c->waits.n[stream] && c->spans[stream][k & mask].end_s > time_s) k--;
    return k + 1;
}

/* Seconds of [begin_s, end_s) in which a stream works. */
MEMOI double memoi_clock_overlap(const memoi_clock* c, int32_t stream, double begin_s,
                                 double end_s) {
    double sum_s = 0;
    for (int64_t k = memoi_clock_first_after(c, stream, begin_s); k <= c->waits.n[stream]; k++) {
        const memoi_clock_span* span = &c->spans[stream][k & c->waits.mask[stream]];
        const double from_s = span->begin_s > begin_s ? span->begin_s : begin_s;
        const double to_s = span->end_s < end_s ? span->end_s : end_s;
        if (to_s > from_s) sum_s += to_s - from_s;
    }
    return sum_s;
}

/* When bytes have crossed the link, from begin_s on, beside what is on its way in the other
 * direction. */
MEMOI double memoi_clock_cross(const memoi_clock* c, int32_t stream, double begin_s,
                               double n_bytes) {
    const int32_t other =
        stream == MEMOB_STREAM_TO_HOST ? MEMOB_STREAM_TO_DEVICE : MEMOB_STREAM_TO_HOST;
    const double rate = stream == MEMOB_STREAM_TO_HOST ? c->costs->to_host_bytes_per_s
                                                       : c->costs->to_device_bytes_per_s;
    const double limit = c->costs->both_bytes_per_s;
    if (rate <= 0) return begin_s;
    for (int64_t k = limit > 0 ? memoi_clock_first_after(c, other, begin_s) : INT64_MAX;
         k <= c->waits.n[other]; k++) {
        const memoi_clock_span* span = &c->spans[other][k & c->waits.mask[other]];
        double left = limit - span->bytes_per_s, done;
        if (left > rate || span->bytes_per_s <= 0) left = rate;
        if (left < limit / 4) left = limit / 4; /* nobody starves */

        /* Alone until the other copy begins, then beside it. */
        if (span->begin_s > begin_s) {
            done = (span->begin_s - begin_s) * rate;
            if (done >= n_bytes) break;
            n_bytes -= done;
            begin_s = span->begin_s;
        }
        done = (span->end_s - begin_s) * left;
        if (done >= n_bytes) return begin_s + n_bytes / left;
        n_bytes -= done;
        begin_s = span->end_s;
    }
    return begin_s + n_bytes / rate;
}

MEMOI double memoi_clock_file(double bytes_per_s, int64_t n_bytes) {
    return bytes_per_s > 0 ? (double)n_bytes / bytes_per_s : 0;
}

/* When an operation that begins at begin_s ends. */
MEMOI double memoi_clock_end(memoi_clock* c, const memob_op* op, double begin_s) {
    const memob_costs* costs = c->costs;
    double span_s;
    switch (op->kind) {
    case MEMOB_OP_STORE:
    case MEMOB_OP_LOAD:
        return memoi_clock_cross(c, op->stream, begin_s + costs->copy_s * op->n_parts,
                                 (double)op->n_bytes);
    case MEMOB_OP_WRITE:
        return begin_s + costs->file_s * op->n_parts +
               memoi_clock_file(costs->to_file_bytes_per_s, op->n_bytes);
    case MEMOB_OP_READ:
        return begin_s + costs->file_s * op->n_parts +
               memoi_clock_file(costs->from_file_bytes_per_s, op->n_bytes);
    default: break;
    }

    span_s = costs->visit_s[op->visit];
    for (int32_t k = 0; k < op->n_parts && costs->make_s; k++)
        span_s += costs->make_s[c->law->parts[op->first_part + k].item];
    if (op->stream != MEMOB_STREAM_COMPUTE) return begin_s + span_s;
    for (int32_t k = 0; k < 2; k++) {
        const double rate = k ? costs->to_device_bytes_per_s : costs->to_host_bytes_per_s;
        if (costs->slowdown_s_per_byte[k] > 0 && rate > 0)
            span_s += costs->slowdown_s_per_byte[k] * rate *
                      memoi_clock_overlap(c, k ? MEMOB_STREAM_TO_DEVICE : MEMOB_STREAM_TO_HOST,
                                          begin_s, begin_s + span_s);
    }
    return begin_s + span_s;
}

MEMOI void memoi_clock_add(memoi_clock* c, int32_t number, int is_counted) {
    const memob_op* op = &c->law->ops[number];
    const int32_t stream = op->stream;
    memob_step_times* times = &c->times;
    memob_numbers wait;
    memoi_clock_span* span;
    const int64_t k = memob_law_add(c->law, &c->waits, number, &wait);
    double begin_s = c->now_s[stream], end_s;
    int32_t last = -1;
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        const double done_s = wait.of[s] ? c->spans[s][wait.of[s] & c->waits.mask[s]].end_s : 0;
        if (done_s <= begin_s) continue;
        begin_s = done_s;
        last = s;
    }

    /* Its own span is not yet among those of its stream. */
    span = &c->spans[stream][k & c->waits.mask[stream]];
    span->begin_s = span->end_s = begin_s;
    end_s = memoi_clock_end(c, op, begin_s);
    span->end_s = end_s;
    span->bytes_per_s = end_s > begin_s ? (double)op->n_bytes / (end_s - begin_s) : 0;
    if (c->costs->see) c->costs->see(c->costs->user, op, begin_s, end_s);
    if (is_counted) {
        if (stream == MEMOB_STREAM_COMPUTE) {
            times->compute_s += end_s - begin_s;
            if (last >= 0) times->stall_s[last] += begin_s - c->now_s[stream];
        }
        times->busy_s[stream] += end_s - begin_s;
        if (op->kind != MEMOB_OP_VISIT) times->n_bytes[op->kind] += op->n_bytes;
    }
    c->now_s[stream] = end_s;
}

/* The end of computation in a list. */
MEMOI double memoi_clock_list(memoi_clock* c, int32_t list, int is_counted) {
    for (int32_t k = c->law->begin[list]; k < c->law->begin[list + 1]; k++)
        memoi_clock_add(c, k, is_counted);
    return c->now_s[MEMOB_STREAM_COMPUTE];
}

#define MEMOI_CLOCK_REPEATS 8

/* Walks all lists, then repeats the last one until its seconds repeat.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_clock_run(const memob_law* law, const memob_costs* costs,
                                  memob_step_times* times, memo_error* error) {
    memoi_clock c;
    double end_s = 0, before_s = -1;
    memo_status status;
    memset(&c, 0, sizeof c);
    c.law = law;
    c.costs = costs;
    status = memob_waits_make(&c.waits, law->n_cells, law->n_kept, error);
    for (int32_t s = 0; s < MEMOB_N_STREAMS && !status; s++)
        c.spans[s] = MEMOB_ARRAY(&c.arrays, memoi_clock_span, c.waits.mask[s] + 1);
    if (!status && c.arrays.failed) status = memob_no_memory(error, "the clock of a step");

    for (int32_t k = 0; !status && k < law->n_lists - 1; k++) {
        end_s = memoi_clock_list(&c, k, 0);
        if (!k) c.times.first_s = end_s;
    }
    for (int32_t k = 0; !status && k < MEMOI_CLOCK_REPEATS; k++) {
        const double first_s = c.times.first_s;
        double now_s;
        memset(&c.times, 0, sizeof c.times);
        c.times.first_s = first_s;
        now_s = memoi_clock_list(&c, law->n_lists - 1, 1);
        c.times.step_s = now_s - end_s;
        if (!k && law->n_lists == 1) c.times.first_s = now_s;
        if (k > 1 && fabs(c.times.step_s - before_s) <= 1e-9 * c.times.step_s) break;
        before_s = c.times.step_s;
        end_s = now_s;
    }
    *times = c.times;
    memob_arrays_free(&c.arrays);
    memob_waits_free(&c.waits);
    return status;
}

/* Seconds of a step of n micro-batches one after the other, from those of 1, 2 and 3: what a step
 * begins and ends with, and a middle that repeats. */
MEMOI double memob_clock_extend(const double* steps_s, int32_t n) {
    return n <= 3 ? steps_s[n - 1] : steps_s[2] + (n - 3) * (steps_s[2] - steps_s[1]);
}
