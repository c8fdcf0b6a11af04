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
    memob_engine engine;  /* events: MEMOB_RECORDS of each stream */
    const memob_law* law; /* the one whose operations come */
    memob_waits* waits;   /* its own, or those of the sink whose streams it uses */
    memob_cell* cells;    /* (law->n_cells) */
    memob_records records[MEMOB_N_STREAMS];
    int32_t has_failed; /* the last call */
    /* A planner's: the engine enqueues on this clock, and there are neither waits nor events. */
    memob_clock* clock;
    memob_clock_cell* clock_cells; /* (law->n_cells) */
} memob_sink;

/* Waits, and the events of its streams; a clock needs none.  base: NULL, or the sink whose streams
 * it uses.  n_streams: 4 with the file's, 3 without, 0: none is used.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_sink_prepare(memob_sink* sink, const memob_sink* base, int32_t n_streams,
                                     memo_error* error) {
    memob_engine* e = &sink->engine;
    if (sink->clock) return MEMO_STATUS_OK;
    sink->waits = base ? base->waits : MEMOB_ARRAY(&e->arrays, memob_waits, 1);
    e->n_events = n_streams * MEMOB_RECORDS;
    e->events = MEMOB_ARRAY(&e->arrays, memo_event, e->n_events);
    return e->arrays.failed ? memob_no_memory(error, "the waits and events of an engine")
                            : MEMO_STATUS_OK;
}

MEMOI void memoi_sink_free(memob_sink* sink) {
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

/* What an operation must wait for, of all that was enqueued; 0: for nothing.  wait: all zero. */
MEMOI int memoi_sink_need(const memob_sink* sink, const memob_op* op, memob_numbers* wait) {
    memob_cells_need(sink->cells, sink->law->touches + op->first_touch, op->n_touches, wait);
    return memob_waits_reduce(sink->waits, op->stream, wait);
}

/* An operation begins, when those before are over for which it waits.  Returns how many operations
 * its stream has had. */
MEMOI int64_t memoi_sink_begin(memob_sink* sink, const memob_op* op) {
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    if (sink->clock) {
        memob_clock_begin(sink->clock, sink->clock_cells, sink->law, op);
        return 0;
    }
    if (memoi_sink_need(sink, op, &wait)) memoi_sink_wait(sink, op->stream, &wait);
    MEMO_ASSERT(sink->engine.status || !memoi_sink_need(sink, op, &wait)); /* 1 of >>waits */
    return sink->waits->now[op->stream].of[op->stream];
}

/* All of it is enqueued, and others will wait for it.  n_before: operations of its stream when it
 * began.  If more have ended since, as the rows of a layer inside the layer's states, it has ended
 * with the last of them. */
MEMOI void memoi_sink_end(memob_sink* sink, const memob_op* op, int64_t n_before) {
    int64_t number;
    if (sink->clock) {
        memob_clock_end(sink->clock, sink->clock_cells, sink->law, op);
        return;
    }
    number = sink->waits->now[op->stream].of[op->stream];
    if (number == n_before) number = memob_waits_end(sink->waits, op->stream);
    memob_cells_mark(sink->cells, sink->law->touches + op->first_touch, op->n_touches, op->stream,
                     number);
    (void)memoi_sink_record(sink, op->stream, number);
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
