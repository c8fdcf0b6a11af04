#pragma once
#include "sp/attention/segments.h"
#include "sp/attention/shape.h"
/* ---- >>pairs of ranks ---------------------------------------------------------------------------
 * Knows: the runs of readers and of owners, and the masks.  Knows nothing of steps or messages.
 *
 * 1. Rows are added to pieces in ascending order; pieces stay apart and few enough.
 * 2. No key is seen by fewer than no queries. */

/* Rows [begin, end) of a sequence. */
typedef struct memoi_exchange_rows {
    int64_t begin, end;
} memoi_exchange_rows;

/* Rows of an owner's keys that a reader reads: ranges, ascending.  Of more ranges the narrowest
 * gaps are read, too. */
enum { MEMOI_PIECES_MAX = 64 };
typedef struct memoi_exchange_pieces {
    int32_t n;
    int64_t n_rows;                                 /* with these gaps */
    int64_t narrowest;                              /* no gap between two pieces is narrower */
    memoi_exchange_rows rows[MEMOI_PIECES_MAX + 1]; /* one more while rows are added */
} memoi_exchange_pieces;

/* A run of an owner's keys, in rows from `row` on. */
typedef struct memoi_pairs_run {
    int64_t start, end, row;
    int32_t owner;
} memoi_pairs_run;

/* At position `at` the number of queries that see a key jumps; behind it the number grows by
 * `slope` more from key to key. */
typedef struct memoi_pairs_bend {
    int64_t at, jump, slope;
} memoi_pairs_bend;

/* What the queries of a reader see of each owner's keys. */
typedef struct memoi_pairs {
    const memo_segment* seen; /* as in memo_exchange */
    const int64_t* first_seen;
    int32_t n_levels, n_ranks;
    int32_t most; /* pieces */
    const memoi_shape_tokens *queries, *keys;
    memoi_pairs_run* runs; /* of all owners, by position */
    int64_t n_runs;
    int32_t shift; /* work is counted in units of 2^shift tokens */
    /* The reader that was asked for last, by owner: rows, and twice the pairs. */
    memoi_exchange_pieces* pieces;
    int64_t* work;
    /* Scratch; the readers of all views share it. */
    memoi_pairs_bend* bends;
    memob_keyed *order, *sorted;
    int32_t* places;
} memoi_pairs;

/* --- pieces --- */

/* Adds rows that do not begin before those of p.  Of more than `most` pieces the two with the
 * narrowest gap become one. */
MEMOI void memoi_exchange_add_rows(memoi_exchange_pieces* p, int32_t most, int64_t begin,
                                   int64_t end) {
    memoi_exchange_rows* rows = p->rows;
    const int64_t last = p->n ? rows[p->n - 1].end : -1;
    int32_t narrowest = p->n - 1; /* the gap behind this piece */
    MEMO_ASSERT(begin < end && (!p->n || begin >= rows[p->n - 1].begin)); /* 1 */
    if (begin <= last) { /* the last piece goes on */
        p->n_rows += memob_max(end - last, 0);
        rows[p->n - 1].end = memob_max(end, last);
        return;
    }
    rows[p->n].begin = begin;
    rows[p->n++].end = end;
    p->n_rows += end - begin;
    MEMO_ASSERT(p->n <= most + 1); /* 1 */
    if (p->n <= most) return;

    /* The new gap is closed, unless another is narrower. */
    if (begin - last > p->narrowest) {
        for (int32_t k = narrowest = 0; k + 2 < p->n; k++)
            if (rows[k + 1].begin - rows[k].end < rows[narrowest + 1].begin - rows[narrowest].end)
                narrowest = k;
        p->narrowest = rows[narrowest + 1].begin - rows[narrowest].end;
        if (begin - last <= p->narrowest) narrowest = p->n - 2;
    }
    p->n_rows += rows[narrowest + 1].begin - rows[narrowest].end;
    rows[narrowest].end = rows[narrowest + 1].end;
    p->n--;
    for (int32_t k = narrowest + 1; k < p->n; k++) rows[k] = rows[k + 1];
}

/* Adds rows of other pieces. */
MEMOI void memoi_exchange_unite(memoi_exchange_pieces* p, const memoi_exchange_pieces* other,
                                int32_t most) {
    const memoi_exchange_pieces own = *p;
    memset(p, 0, sizeof *p);
    for (int32_t i = 0, k = 0; i < own.n || k < other->n;) {
        const int is_own =
            k == other->n || (i < own.n && own.rows[i].begin <= other->rows[k].begin);
        const memoi_exchange_rows* rows = is_own ? &own.rows[i++] : &other->rows[k++];
        memoi_exchange_add_rows(p, most, rows->begin, rows->end);
    }
}

/* Gaps that were not closed must be worth their messages. */
MEMOI void memoi_exchange_close_gaps(memoi_exchange_pieces* p, int32_t most) {
    const int64_t n = p->n ? p->rows[p->n - 1].end - p->rows[0].begin : 0;
    if (p->n < most || p->n_rows <= n / 8 * 7) return;
    p->rows[0].end = p->rows[p->n - 1].end;
    p->n_rows = n;
    p->n = 1;
}

/* A group has up to 4 messages for each piece of a sequence, of k and of v, sent and received, and
 * 2 of gradients.  NCCL is known to hang with more than 256. */
MEMOI int32_t memoi_pairs_most(const memoi_shape* shape) {
    return (int32_t)memob_max(memob_min(254 / 4 / shape->n_batch, MEMOI_PIECES_MAX), 1);
}

/* --- creation --- */

/* The runs of n owners, in the order of their positions. */
MEMOI void memoi_pairs_take_keys(memoi_pairs* p, const memoi_shape_tokens* keys,
                                 memob_arrays* arrays) {
    memob_keyed* order;
    memoi_pairs_run* runs;
    int64_t n = 0;
    for (int32_t owner = 0; owner < p->n_ranks; owner++) n += keys->n_runs[owner];
    p->keys = keys;
    p->runs = MEMOB_ARRAY(arrays, memoi_pairs_run, n + 1);
    p->n_runs = n;
    order = MEMOB_ARRAY(arrays, memob_keyed, n);
    runs = MEMOB_ARRAY(arrays, memoi_pairs_run, n);
    if (arrays->failed) return;

    n = 0;
    for (int32_t owner = 0; owner < p->n_ranks; owner++) {
        const memo_run* own = keys->runs + owner * keys->max_runs;
        int64_t row = 0;
        for (int32_t k = 0; k < keys->n_runs[owner]; row += own[k++].count) {
            runs[n].start = own[k].start;
            runs[n].end = own[k].start + own[k].count;
            runs[n].row = row;
            runs[n].owner = owner;
            order[n] = memob_keyed_of(own[k].start, n);
            n++;
        }
    }
    memob_keyed_sort(order, n);
    for (int64_t i = 0; i < n; i++) p->runs[i] = runs[order[i].index];
    p->runs[n].start = p->runs[n].end = INT64_MAX;
}

/* For readers with at most max_runs runs, under masks of n_parts parts. */
MEMOI void memoi_pairs_take_masks(memoi_pairs* p, int32_t n_parts, int64_t max_runs,
                                  int64_t n_tokens, memob_arrays* arrays) {
    int64_t most = 0;
    for (int32_t part = 0; part < n_parts; part++)
        most = memob_max(most, p->first_seen[(part + 1) * p->n_levels] -
                                   p->first_seen[part * p->n_levels]);
    most = 4 * (most + p->n_levels * max_runs); /* a run and a segment: 2 ends, each with 2 bends */
    while (n_tokens >> p->shift >> 22) p->shift++;
    p->bends = MEMOB_ARRAY(arrays, memoi_pairs_bend, most + 1);
    p->order = MEMOB_ARRAY(arrays, memob_keyed, most + 1);
    p->sorted = MEMOB_ARRAY(arrays, memob_keyed, most + 1);
    p->places = MEMOB_ARRAY(arrays, int32_t, most + 3);
    p->pieces = MEMOB_ARRAY(arrays, memoi_exchange_pieces, p->n_ranks);
    p->work = MEMOB_ARRAY(arrays, int64_t, p->n_ranks);
}

/* --- what a reader reads --- */

MEMOI int64_t memoi_pairs_add_bend(memoi_pairs* p, int64_t n, int64_t at, int64_t jump,
                                   int64_t slope) {
    p->bends[n].at = at;
    p->bends[n].jump = jump;
    p->bends[n].slope = slope;
    p->order[n] = memob_keyed_of(at, n);
    return n + 1;
}

/* n_queries see the keys from `at` on (sign 1), or none of these any more (-1); each query from one
 * key later than the query before, if it moves. */
MEMOI int64_t memoi_pairs_add_end(memoi_pairs* p, int64_t n, int64_t at, int64_t n_queries,
                                  int moves, int64_t sign) {
    if (!moves) return memoi_pairs_add_bend(p, n, at, sign * n_queries, 0);
    n = memoi_pairs_add_bend(p, n, at, sign, sign);
    return memoi_pairs_add_bend(p, n, at + n_queries, -sign, -sign);
}

/* How many of the reader's queries see each key.  Returns the number of bends. */
MEMOI int64_t memoi_pairs_bend_at(memoi_pairs* p, int32_t part, int32_t reader) {
    const memo_run* runs = p->queries->runs + reader * p->queries->max_runs;
    int64_t n = 0;
    for (int32_t mask = part * p->n_levels; mask < (part + 1) * p->n_levels; mask++) {
        const memo_segment *end = p->seen + p->first_seen[mask + 1], *s = p->seen;
        s += p->first_seen[mask];
        for (int32_t k = 0; k < p->queries->n_runs[reader]; k++) {
            const int64_t last = runs[k].start + runs[k].count;
            s += memoi_segments_first(s, end - s, runs[k].start);
            for (const memo_segment* at = s; at < end && at->q_begin < last; at++) {
                const int64_t q = memob_max(runs[k].start, at->q_begin);
                const int64_t n_queries = memob_min(last, at->q_end) - q;
                int64_t low, high;
                memo_segment_keys(at, q, &low, &high);
                n = memoi_pairs_add_end(p, n, low, n_queries, at->type & 2, 1);
                n = memoi_pairs_add_end(p, n, high, n_queries, at->type & 1, -1);
            }
        }
    }
    return n;
}

/* Keys [begin, end) are seen: the first one by `value` queries, each next one by `slope` more.
 * k: the first run that may have any. */
MEMOI int64_t memoi_pairs_read(memoi_pairs* p, int64_t k, int64_t begin, int64_t end, int64_t value,
                               int64_t slope) {
    const int64_t at = begin;
    MEMO_ASSERT(value >= 0); /* 2 */
    if (!value && slope > 0) begin++;
    if (slope < 0) end = memob_min(end, begin + (value - slope - 1) / -slope);
    if (begin >= end) return k;
    if (p->runs[k].end <= begin) { /* one of [k, last] ends behind begin */
        int64_t last = p->n_runs;
        while (k < last) {
            const int64_t middle = (k + last) / 2;
            if (p->runs[middle].end <= begin)
                k = middle + 1;
            else
                last = middle;
        }
    }
    for (int64_t i = k; p->runs[i].start < end; i++) {
        const memoi_pairs_run* run = &p->runs[i];
        const int64_t from = memob_max(run->start, begin), to = memob_min(run->end, end);
        const int64_t both = 2 * value + slope * (from + to - 1 - 2 * at); /* first and last key */
        p->work[run->owner] += (both >> p->shift) * ((to - from) >> p->shift);
        memoi_exchange_add_rows(&p->pieces[run->owner], p->most, run->row + from - run->start,
                                run->row + to - run->start);
    }
    return k;
}

/* Finds what a reader reads under the masks of a part. */
MEMOI void memoi_pairs_ask(memoi_pairs* p, int32_t part, int32_t reader) {
    const int64_t n = memoi_pairs_bend_at(p, part, reader);
    int64_t value = 0, slope = 0, largest = 0, k = 0;
    int is_sorted = 1;
    for (int32_t owner = 0; owner < p->n_ranks; owner++) {
        p->pieces[owner].n = 0;
        p->pieces[owner].n_rows = p->pieces[owner].narrowest = p->work[owner] = 0;
    }
    for (int64_t i = 0; i < n; i++) {
        largest = memob_max(largest, p->order[i].key);
        is_sorted &= !i || p->order[i - 1].key <= p->order[i].key;
    }
    if (!is_sorted) memob_digits_sort(p->order, n, 0, largest, p->sorted, p->places);
    for (int64_t i = 0; i < n; i++) {
        const memoi_pairs_bend* bend = &p->bends[p->order[i].index];
        const int64_t next = i + 1 < n ? p->order[i + 1].key : bend->at;
        value += bend->jump;
        slope += bend->slope;
        if (next == bend->at) continue;
        if (value || slope) k = memoi_pairs_read(p, k, bend->at, next, value, slope);
        value += slope * (next - bend->at);
    }
    for (int32_t owner = 0; owner < p->n_ranks; owner++)
        memoi_exchange_close_gaps(&p->pieces[owner], p->most);
}
