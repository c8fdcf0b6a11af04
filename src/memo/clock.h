#pragma once
#include "memo/law.h"
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
