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
    memob_engine engine; /* events: those of each stream */
    memob_law law;
    memob_waits waits;
    memob_records records;
    int32_t first_event[MEMOB_N_STREAMS];
    int32_t has_failed; /* the last call */
    /* A planner's: the engine enqueues on this clock, and there are neither waits nor events. */
    memob_clock* clock;
    memob_clock_cell* cells; /* (law.n_cells) */
} memob_sink;

/* How many operations back waits look, so that each finds its own event.  A list may follow itself;
 * the waits of the last one repeat from its third time on. */
MEMOI void memoi_sink_count_records(memob_sink* sink) {
    const memob_law* law = &sink->law;
    memob_numbers wait;
    for (int32_t i = 0; i < 2 * law->n_lists + 1; i++) {
        const int32_t list = (int32_t)memob_min(i / 2, law->n_lists - 1);
        for (int32_t k = law->begin[list]; k < law->begin[list + 1]; k++) {
            (void)memob_law_add(law, &sink->waits, k, &wait);
            for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
                int32_t* n = &sink->records.n_events[s];
                if (wait.of[s]) *n = (int32_t)memob_max(*n, sink->waits.n[s] - wait.of[s] + 1);
            }
        }
    }
    memoi_waits_reset(&sink->waits);
}

/* For a law that was made: waits, and the events of its streams, or what a clock needs.
 * n_streams: 4 with the file's, 3 without, 0: none is used.  n_records: of a stream that are kept;
 * 0: as many as waits look back.  The engine's first two events are the compute stream's.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_sink_prepare(memob_sink* sink, int32_t n_streams, int32_t n_records,
                                     memo_error* error) {
    memob_engine* e = &sink->engine;
    memo_status status = memoi_law_join_cells(&sink->law, error);
    if (status) return status;
    if (sink->clock)
        sink->cells = MEMOB_ARRAY(&e->arrays, memob_clock_cell, sink->law.n_cells);
    else
        status = memob_waits_make(&sink->waits, sink->law.n_cells, sink->law.n_kept, error);
    if (!status && !sink->clock && !n_records) memoi_sink_count_records(sink);
    for (int32_t s = 0; s < n_streams && !sink->clock; s++) {
        const int64_t n = memob_max(n_records, sink->records.n_events[s]);
        sink->first_event[s] = e->n_events;
        sink->records.n_events[s] = (int32_t)memob_max(memob_min(n, MEMOB_RECORDS_MAX), 1);
        e->n_events += (int32_t)memob_max(sink->records.n_events[s], s ? 1 : 2);
    }
    e->events = MEMOB_ARRAY(&e->arrays, memo_event, e->n_events);
    if (status || !e->arrays.failed) return status;
    return memob_no_memory(error, "the events of an engine");
}

MEMOI void memoi_sink_free(memob_sink* sink) {
    memob_engine_release(&sink->engine);
    memob_arrays_free(&sink->engine.arrays);
    memob_law_free(&sink->law);
    memob_waits_free(&sink->waits);
}

/* Returns the event of the stream; -1: none is recorded. */
MEMOI int32_t memoi_sink_record(memob_sink* sink, int32_t stream, int64_t number) {
    memob_engine* e = &sink->engine;
    int32_t event;
    if (stream == MEMOB_STREAM_COMPUTE && e->computes_on_host) return -1;
    if (e->status) return -1;
    event = memoi_records_add(&sink->records, stream, number);
    memob_engine_record(e, stream, sink->first_event[stream] + event);
    return event;
}

/* Makes a stream wait for the operations.  If the calling thread computes, what it computed is
 * done. */
MEMOI void memoi_sink_wait(memob_sink* sink, int32_t stream, const memob_numbers* wait) {
    memob_engine* e = &sink->engine;
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        int32_t event;
        if (!wait->of[s] || (s == MEMOB_STREAM_COMPUTE && e->computes_on_host)) continue;
        event = memoi_records_find(&sink->records, s, wait->of[s]);
        if (event < 0) /* another list awaits it than the law has seen, or a call has failed */
            event = memoi_sink_record(sink, s, sink->waits.n[s]);
        if (!e->status) memoi_engine_wait(e, stream, sink->first_event[s] + event);
    }
}

/* Operation k begins, when those before are over for which it waits.  Returns its number. */
MEMOI int64_t memoi_sink_begin(memob_sink* sink, int32_t k) {
    const memob_op* op = &sink->law.ops[k];
    memob_numbers wait;
    int64_t number = 0;
    if (sink->clock) {
        memob_clock_begin(sink->clock, sink->cells, &sink->law, op);
        return number;
    }
    number = memob_law_add(&sink->law, &sink->waits, k, &wait);
    memoi_sink_wait(sink, op->stream, &wait);
    return number;
}

/* All of it is enqueued, and others will wait for it. */
MEMOI void memoi_sink_end(memob_sink* sink, int32_t k, int64_t number) {
    const memob_op* op = &sink->law.ops[k];
    if (sink->clock)
        memob_clock_end(sink->clock, sink->cells, &sink->law, op);
    else
        (void)memoi_sink_record(sink, op->stream, number);
}

/* A stream waits for all that the trainer has given another. */
MEMOI void memoi_sink_follow(memob_sink* sink, int32_t stream, int32_t other) {
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    if (sink->clock) {
        memoi_clock_follow(sink->clock, stream, other);
        return;
    }
    if (other == MEMOB_STREAM_COMPUTE && sink->engine.computes_on_host) return;
    wait.of[other] = memoi_waits_follow(&sink->waits, stream, other);
    memoi_sink_wait(sink, stream, &wait);
}

/* Every stream waits for all that the others were given. */
MEMOI void memoi_sink_join(memob_sink* sink) {
    memob_engine* e = &sink->engine;
    int32_t events[MEMOB_N_STREAMS];
    if (sink->clock) memoi_clock_join(sink->clock);
    for (int32_t s = 0; s < MEMOB_N_STREAMS && e->n_events; s++) {
        const int is_there = s ? e->streams[s] != NULL : !e->computes_on_host;
        events[s] = is_there ? memoi_sink_record(sink, s, sink->waits.n[s]) : -1;
    }
    for (int32_t s = 0; s < MEMOB_N_STREAMS && e->n_events; s++)
        for (int32_t other = 0; other < MEMOB_N_STREAMS && !e->status; other++)
            if (other != s && events[other] >= 0 && (s == MEMOB_STREAM_COMPUTE || e->streams[s]))
                memoi_engine_wait(e, s, sink->first_event[other] + events[other]);
    if (e->status) return;
    if (!sink->clock) memoi_waits_join(&sink->waits);
    sink->has_failed = 0;
}

/* As if nothing had been enqueued: all of it is over. */
MEMOI void memoi_sink_reset(memob_sink* sink) {
    if (sink->clock) {
        memset(sink->cells, 0, (size_t)sink->law.n_cells * sizeof *sink->cells);
        return;
    }
    memoi_waits_reset(&sink->waits);
    memset(sink->records.n, 0, sizeof sink->records.n);
    sink->has_failed = 0;
}

/* Begins a call.  After a failed one, or an abandoned step, waits that the law counts on may be
 * missing, so the streams join. */
MEMOI void memoi_sink_call(memob_sink* sink, memo_error* error) {
    memob_engine_call(&sink->engine, error);
    if (sink->has_failed) memoi_sink_join(sink);
}
