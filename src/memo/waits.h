#pragma once
#include "memo/base.h"
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
