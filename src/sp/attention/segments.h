#pragma once
#include "sp/comm.h"
/* ---- >>segments ---------------------------------------------------------------------------------
 * Knows: lists of segments, and runs of positions.  Knows nothing of masks, ranks or devices.
 *
 * 1. Segments are built from queries in ascending order, each of which sees a key.
 * 2. Neither end of the keys of a level descends from a query to the next. */

/* How the ends of the keys move from a query to the next: 0 or 1. */
MEMOI int memoi_segment_moves_begin(const memo_segment* s) {
    return s->type == MEMO_SEGMENT_INVERSE || s->type == MEMO_SEGMENT_BAND;
}
MEMOI int memoi_segment_moves_end(const memo_segment* s) {
    return s->type == MEMO_SEGMENT_CAUSAL || s->type == MEMO_SEGMENT_BAND;
}

void memo_segment_keys(const memo_segment* s, int64_t q, int64_t* begin, int64_t* end) {
    *begin = s->k_begin + (memoi_segment_moves_begin(s) ? q - s->q_begin : 0);
    *end = s->k_end - (memoi_segment_moves_end(s) ? s->q_end - 1 - q : 0);
}

/* --- from queries to segments --- */

/* A list of segments, level by level, the last of which may be open. */
typedef struct memoi_segment_list {
    memo_segment* list;         /* NULL: segments are only counted */
    int64_t n;                  /* closed ones */
    memo_segment open;          /* without k_end and type */
    int64_t n_rows;             /* queries of the open one; 0: none is open */
    int64_t begin, end;         /* the keys of the last query */
    int moves_begin, moves_end; /* from the open one's second query on */
} memoi_segment_list;

/* Before the first segment of a level; the segments of earlier ones are closed. */
MEMOI void memoi_segments_begin(memoi_segment_list* x, int32_t level) {
    x->open.level = level;
    x->open.q_end = x->begin = x->end = 0;
}

MEMOI void memoi_segments_close(memoi_segment_list* x) {
    if (!x->n_rows) return;
    x->open.k_end = x->end;
    x->open.type = MEMO_SEGMENT_FULL;
    if (x->n_rows > 1) x->open.type = (memo_segment_type)(x->moves_end + 2 * x->moves_begin);
    if (x->list) x->list[x->n] = x->open;
    x->n++;
    x->n_rows = 0;
}

MEMOI void memoi_segments_open(memoi_segment_list* x, int64_t q, int64_t begin, int64_t end) {
    x->open.q_begin = q;
    x->open.q_end = q + 1;
    x->open.k_begin = x->begin = begin;
    x->end = end;
    x->n_rows = 1;
}

/* Adds query q, which sees the keys [begin, end). */
MEMOI void memoi_segments_add(memoi_segment_list* x, int64_t q, int64_t begin, int64_t end) {
    const int64_t by_begin = begin - x->begin, by_end = end - x->end;
    int is_next = x->n_rows && q == x->open.q_end && by_begin <= 1 && by_end <= 1;
    int is_alike = by_begin == x->moves_begin && by_end == x->moves_end;
    MEMO_ASSERT(begin < end && q >= x->open.q_end); /* 1 */
    MEMO_ASSERT(by_begin >= 0 && by_end >= 0);      /* 2 */
    if (by_begin && by_end && x->end - x->begin == 1)
        is_next = 0; /* documents of one token are not a band */

    /* The last row of a band belongs to what follows: it is the first row of a document there. */
    if (is_next && !is_alike && x->n_rows > 1 && x->moves_begin && x->moves_end) {
        const int64_t last_begin = x->begin--, last_end = x->end--;
        x->open.q_end--;
        x->n_rows--;
        memoi_segments_close(x);
        memoi_segments_open(x, q - 1, last_begin, last_end);
    }

    if (is_next && (x->n_rows == 1 || is_alike)) {
        x->moves_begin = (int)by_begin;
        x->moves_end = (int)by_end;
        x->open.q_end++;
        x->n_rows++;
        x->begin = begin;
        x->end = end;
        return;
    }
    memoi_segments_close(x);
    memoi_segments_open(x, q, begin, end);
}

/* Adds n queries of one kind: from the second on, the ends move by these numbers. */
MEMOI void memoi_segments_add_rows(memoi_segment_list* x, int64_t q, int64_t n, int64_t begin,
                                   int64_t end, int moves_begin, int moves_end) {
    for (int64_t i = 0; i < n; i++, begin += moves_begin, end += moves_end) {
        const int64_t more = n - 1 - i;
        memoi_segments_add(x, q + i, begin, end);
        if (x->n_rows < 2 || x->moves_begin != moves_begin || x->moves_end != moves_end) continue;
        x->open.q_end += more; /* all others join */
        x->n_rows += more;
        x->begin += moves_begin * more;
        x->end += moves_end * more;
        MEMO_ASSERT(x->begin < x->end); /* 1 */
        return;
    }
}

/* The first segment of a level that ends behind query q. */
MEMOI int64_t memoi_segments_first(const memo_segment* list, int64_t n, int64_t q) {
    int64_t first = 0;
    while (first < n) {
        const int64_t middle = (first + n) / 2;
        if (list[middle].q_end <= q)
            first = middle + 1;
        else
            n = middle;
    }
    return first;
}

/* --- from positions to rows --- */

/* An end of the keys that walks over runs of keys: positions ascend, so it passes each run once. */
typedef struct memoi_segments_end {
    const memo_run *run, *last;
    int64_t row; /* of the run */
} memoi_segments_end;

/* The first row at a position or behind it. */
MEMOI int64_t memoi_segments_row(memoi_segments_end* e, int64_t position) {
    while (e->run < e->last && e->run->start + e->run->count <= position) e->row += e->run++->count;
    return e->row + (e->run < e->last ? memob_max(position - e->run->start, 0) : 0);
}

/* After memoi_segments_row: for how many queries the row moves alike, and how. */
MEMOI int64_t memoi_segments_reach(const memoi_segments_end* e, int64_t position, int moves,
                                   int* moves_row) {
    *moves_row = 0;
    if (!moves || e->run == e->last) return INT64_MAX;
    if (position < e->run->start) return e->run->start - position;
    *moves_row = 1;
    return e->run->start + e->run->count - position;
}

/* The queries at positions [at, to), from row q on, of a segment s of positions. */
MEMOI void memoi_segments_add_part(memoi_segment_list* x, const memo_segment* s, int64_t at,
                                   int64_t to, int64_t q, memoi_segments_end ends[2]) {
    while (at < to) {
        int64_t begin, end, first, last, n;
        int moves_first, moves_last;
        memo_segment_keys(s, at, &begin, &end);
        first = memoi_segments_row(&ends[0], begin);
        last = memoi_segments_row(&ends[1], end);
        n = memob_min(
            memoi_segments_reach(&ends[0], begin, memoi_segment_moves_begin(s), &moves_first),
            memoi_segments_reach(&ends[1], end, memoi_segment_moves_end(s), &moves_last));
        n = memob_min(n, to - at);
        if (first < last)
            memoi_segments_add_rows(x, q, n, first, last, moves_first, moves_last);
        else if (moves_last)
            n = 1; /* the next query sees a key */
        at += n;
        q += n;
    }
}

/* The segments of a block: rows of query runs against rows of key runs, under one level of a mask.
 * Returns their number; list NULL: only that.  O(runs + segments of the mask). */
MEMOI int64_t memoi_segments_derive(const memo_segment* seen, int64_t n_seen, const memo_run* q,
                                    int32_t n_q, const memo_run* k, int32_t n_k,
                                    memo_segment* list) {
    const memoi_segments_end begin = {k, k + n_k, 0};
    memoi_segments_end ends[2] = {begin, begin};
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    int64_t row = 0, first = n_q ? memoi_segments_first(seen, n_seen, q->start) : 0;
    x.list = list;
    x.open.level = n_seen ? seen->level : 0;
    for (int32_t r = 0; r < n_q; row += q[r++].count) {
        const int64_t q_end = q[r].start + q[r].count;
        while (first < n_seen && seen[first].q_end <= q[r].start) first++;
        for (int64_t i = first; i < n_seen && seen[i].q_begin < q_end; i++) {
            const int64_t at = memob_max(q[r].start, seen[i].q_begin);
            memoi_segments_add_part(&x, &seen[i], at, memob_min(q_end, seen[i].q_end),
                                    row + at - q[r].start, ends);
        }
    }
    memoi_segments_close(&x);
    return x.n;
}
