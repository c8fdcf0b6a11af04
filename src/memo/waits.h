#pragma once
#include "memo/base.h"
/* ---- >>waits ------------------------------------------------------------------------------------
 * Knows: which operation of another stream an operation must wait for.  Knows nothing of what
 * operations do.
 *
 * Operations are added in the order in which they are enqueued; each stream runs its operations in
 * that order.  Bytes are cells.  A cell keeps, of each stream, the latest operation that wrote it
 * and the latest that used it at all; an operation keeps, of each stream, the latest operation that
 * surely comes before it (its clock).
 *
 * 1. Two operations that touch a cell, one writing it, are in order: by stream, or by waits.
 * 2. No wait follows from the stream's past and the other waits of the operation.  This is exact:
 *    the last part of a path to an operation is its stream's past or one of its waits, and both
 *    were added before.
 * 3. Cells and clocks stay over lists and abandoned steps.  memory is bounded: clocks of the latest
 *    operations of each stream only; a clock that was overwritten implies nothing.
 * 4. Cells and clocks name operations that were added; a kept clock of operation k names k.
 * 5. A stream's clock never goes back, and no operation waits for its own stream. */

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

/* The later operation of each stream.  No loop: at -O2 compilers keep it, and bytes with 20 cells
 * then take twice as long. */
MEMOI void memoi_numbers_raise(memob_numbers* a, const memob_numbers* b) {
    a->of[0] = memob_max(a->of[0], b->of[0]);
    a->of[1] = memob_max(a->of[1], b->of[1]);
    a->of[2] = memob_max(a->of[2], b->of[2]);
    a->of[3] = memob_max(a->of[3], b->of[3]);
}

typedef struct memoi_cell {
    memob_numbers wrote, used;
} memoi_cell;

typedef struct memob_waits {
    memoi_cell* cells;
    int32_t n_cells;
    int64_t n[MEMOB_N_STREAMS];             /* operations so far */
    int64_t mask[MEMOB_N_STREAMS];          /* kept clocks of a stream, minus 1 */
    memob_numbers* clocks[MEMOB_N_STREAMS]; /* of operation k: at k & mask */
    memob_arrays arrays;
} memob_waits;

/* n_kept: how many operations of each stream keep their clocks at least.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_waits_make(memob_waits* waits, int32_t n_cells, const int64_t* n_kept,
                                   memo_error* error) {
    memset(waits, 0, sizeof *waits);
    waits->n_cells = n_cells;
    waits->cells = MEMOB_ARRAY(&waits->arrays, memoi_cell, n_cells);
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        int64_t n = 4;
        while (n <= n_kept[s]) n *= 2;
        waits->mask[s] = n - 1;
        waits->clocks[s] = MEMOB_ARRAY(&waits->arrays, memob_numbers, n);
    }
    return waits->arrays.failed ? memob_no_memory(error, "the clocks of a step") : MEMO_STATUS_OK;
}

MEMOI void memob_waits_free(memob_waits* waits) {
    memob_arrays_free(&waits->arrays);
    memset(waits, 0, sizeof *waits);
}

/* As if nothing had been added: all of it is over. */
MEMOI void memoi_waits_reset(memob_waits* waits) {
    memset(waits->cells, 0, (size_t)waits->n_cells * sizeof *waits->cells);
    memset(waits->n, 0, sizeof waits->n);
}

/* The clock of an operation; NULL: it is no longer kept. */
MEMOI const memob_numbers* memoi_waits_clock(const memob_waits* waits, int32_t stream, int64_t k) {
    const memob_numbers* clock = &waits->clocks[stream][k & waits->mask[stream]];
    MEMO_ASSERT(k > 0 && k <= waits->n[stream]); /* 4 */
    if (k + waits->mask[stream] < waits->n[stream]) return NULL;
    MEMO_ASSERT(clock->of[stream] == k); /* 3, 4 */
    return clock;
}

/* Adds an operation that touches cells: 2 * cell, + 1 if it writes the cell.  Sets for each stream
 * the operation to wait for; 0: none.  Returns the operation's number in its stream. */
MEMOI int64_t memoi_waits_add(memob_waits* waits, int32_t stream, const int32_t* touches,
                              int32_t n_touches, memob_numbers* wait) {
    const int64_t number = waits->n[stream] + 1;
    const memob_numbers* clocks[MEMOB_N_STREAMS];
    memob_numbers* clock;
    memob_numbers need = MEMO_ZERO(memob_numbers), now = MEMO_ZERO(memob_numbers);
    int32_t s, other, n_needs = 0;

    /* What it conflicts with, of each stream the latest. */
    for (int32_t k = 0; k < n_touches; k++) {
        memoi_cell* cell = &waits->cells[touches[k] >> 1];
        MEMO_ASSERT((uint32_t)touches[k] >> 1 < (uint32_t)waits->n_cells);
        memoi_numbers_raise(&need, touches[k] & 1 ? &cell->used : &cell->wrote);
        cell->used.of[stream] = number;
        if (touches[k] & 1) cell->wrote.of[stream] = number;
    }

    /* Drop what the stream's past implies, then what another wait implies. */
    if (number > 1) now = waits->clocks[stream][(number - 1) & waits->mask[stream]];
    MEMO_ASSERT(now.of[stream] == number - 1); /* 4 */
    for (s = 0; s < MEMOB_N_STREAMS; s++) {
        if (s == stream || need.of[s] <= now.of[s]) need.of[s] = 0;
        wait->of[s] = need.of[s];
        clocks[s] = need.of[s] ? memoi_waits_clock(waits, s, need.of[s]) : NULL;
        n_needs += need.of[s] != 0;
    }
    for (s = 0; s < MEMOB_N_STREAMS && n_needs > 1; s++)
        for (other = 0; other < MEMOB_N_STREAMS && need.of[s]; other++)
            if (other != s && clocks[other] && clocks[other]->of[s] >= need.of[s]) wait->of[s] = 0;

    /* Its clock. */
    for (s = 0; s < MEMOB_N_STREAMS && n_needs; s++) {
        if (!wait->of[s]) continue;
        MEMO_ASSERT(now.of[s] < wait->of[s]); /* 2 */
        now.of[s] = memob_max(now.of[s], wait->of[s]);
        if (clocks[s]) memoi_numbers_raise(&now, clocks[s]);
    }
    for (s = 0; s < MEMOB_N_STREAMS; s++) MEMO_ASSERT(need.of[s] <= now.of[s]); /* 1 */
    MEMO_ASSERT(now.of[stream] < number);                                       /* 5 */
    MEMO_ASSERT(!wait->of[stream]);                                             /* 5 */
    waits->n[stream] = number;
    clock = &waits->clocks[stream][number & waits->mask[stream]];
    *clock = now;
    clock->of[stream] = number; /* a copy of all waits for the parts that were just written */
    return number;
}

/* Every stream has waited for all that the others were given: an operation of each, behind which
 * nothing before it is awaited any more.  Its event may be gone, as after a failed capture. */
MEMOI void memoi_waits_join(memob_waits* waits) {
    memob_numbers all;
    memcpy(all.of, waits->n, sizeof all.of);
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        memob_numbers* clock = &waits->clocks[s][(all.of[s] + 1) & waits->mask[s]];
        *clock = all;
        clock->of[s] = ++waits->n[s];
    }
}

/* A stream waits for all that another was given so far, whatever it touches: an operation of each.
 * Returns the number of the other's. */
MEMOI int64_t memoi_waits_follow(memob_waits* waits, int32_t stream, int32_t other) {
    memob_numbers none;
    const int64_t number = memoi_waits_add(waits, other, NULL, 0, &none);
    const int64_t follower = memoi_waits_add(waits, stream, NULL, 0, &none);
    const memob_numbers* clock = memoi_waits_clock(waits, other, number);
    memob_numbers* now = &waits->clocks[stream][follower & waits->mask[stream]];
    MEMO_ASSERT(stream != other && clock->of[stream] < follower); /* 5 */
    memoi_numbers_raise(now, clock);
    return number;
}

/* --- records of events --- */

/* Sinks record an event behind operations that are awaited.  A few events of each stream take
 * turns; a wait for an event that was recorded again waits for a later operation of the stream,
 * which was enqueued before. */
#define MEMOB_RECORDS_MAX 64
typedef struct memob_records {
    int32_t n_events[MEMOB_N_STREAMS];                   /* 1 to MEMOB_RECORDS_MAX */
    int64_t n[MEMOB_N_STREAMS];                          /* records so far */
    int64_t numbers[MEMOB_N_STREAMS][MEMOB_RECORDS_MAX]; /* of operations, by event */
} memob_records;

/* The event to record behind everything that the stream has been given so far. */
MEMOI int32_t memoi_records_add(memob_records* records, int32_t stream, int64_t number) {
    const int32_t event = (int32_t)(records->n[stream]++ % records->n_events[stream]);
    records->numbers[stream][event] = number;
    return event;
}

/* The event of the first kept record behind an operation; -1: there is none yet. */
MEMOI int32_t memoi_records_find(const memob_records* records, int32_t stream, int64_t number) {
    const int32_t n = records->n_events[stream];
    int32_t found = -1;
    for (int64_t r = records->n[stream] - 1; r >= 0 && r >= records->n[stream] - n; r--) {
        if (records->numbers[stream][r % n] < number) break;
        found = (int32_t)(r % n);
    }
    return found;
}
