#pragma once
#include "memo/clock.h"
#include "memo/engine.h"
#include "memo/law_ops.h"
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
