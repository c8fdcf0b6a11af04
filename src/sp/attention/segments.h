#pragma once
#include "sp/attention/masks.h"
/* ---- >>segments ---------------------------------------------------------------------------------
 * Knows: what queries see, as segments of positions and of rows.  Knows nothing of ranks, shardings
 * or devices.
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

/* A list of segments of one level, the last of which may be open. */
typedef struct memoi_segment_list {
    memo_segment* list;         /* NULL: segments are only counted */
    int64_t n;                  /* closed ones */
    memo_segment open;          /* without k_end and type */
    int64_t n_rows;             /* queries of the open one; 0: none is open */
    int64_t begin, end;         /* the keys of the last query */
    int moves_begin, moves_end; /* from the open one's second query on */
} memoi_segment_list;

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

/* --- segments of positions --- */

/* An end of the keys: `offset` positions behind the query's own, or without a limit. */
typedef struct memoi_segments_limit {
    int is_set;
    int64_t offset;
} memoi_segments_limit;

/* Adds queries at own positions [own, last_own), counted like keys; number q - own is theirs.  Each
 * sees the keys of [first, last) that the limits leave. */
MEMOI void memoi_segments_add_limited(memoi_segment_list* x, int64_t q, int64_t own,
                                      int64_t last_own, int64_t first, int64_t last,
                                      memoi_segments_limit from, memoi_segments_limit to) {
    while (own < last_own && first < last) {
        const int64_t low = from.is_set ? own + from.offset : first;
        const int64_t high = to.is_set ? own + to.offset : last;
        const int64_t begin = memob_max(low, first), end = memob_min(high, last);
        const int moves_begin = from.is_set && low >= first, moves_end = to.is_set && high < last;
        int64_t n = last_own - own;
        if (low < first) n = memob_min(n, first - low);
        if (moves_end) n = memob_min(n, last - high);
        if (moves_begin && !moves_end && begin < end) n = memob_min(n, end - begin);
        if (begin >= end && high <= first) n = memob_min(n, first - high + 1);
        if (begin < end) memoi_segments_add_rows(x, q, n, begin, end, moves_begin, moves_end);
        q += n;
        own += n;
    }
}

/* The queries of a mask within their documents; of level 1 those that see some of the first keys of
 * their document, which the window has left. */
MEMOI void memoi_segments_add_documents(memoi_segment_list* x, const memo_mask* mask,
                                        int64_t n_first_keys) {
    const int64_t before = memob_min(mask->window_before, MEMOB_BYTES_MAX);
    const int64_t after = memob_min(memoi_mask_after(mask), MEMOB_BYTES_MAX);
    const int64_t first_own = mask->first_query, end_own = first_own + mask->n_tokens;
    const int64_t n_keys = mask->n_keys ? mask->n_keys : memob_max(end_own, 0);
    const memoi_segments_limit none = {0, 0}, from = {before > 0, 1 - before};
    const memoi_segments_limit to = {after > 0, after}, left = {1, 1 - before};
    for (int64_t d = 0; d < (mask->document_begins ? mask->n_documents : 1); d++) {
        const int64_t* document = mask->document_begins ? mask->document_begins + d : NULL;
        const int64_t own = document ? memob_max(document[0], first_own) : first_own;
        const int64_t last_own = document ? memob_min(document[1], end_own) : end_own;
        const int64_t first = document ? document[0] : 0, last = document ? document[1] : n_keys;
        if (!n_first_keys)
            memoi_segments_add_limited(x, own - first_own, own, last_own, first, last, from, to);
        else if (before)
            memoi_segments_add_limited(x, own - first_own, own, last_own, first,
                                       memob_min(first + n_first_keys, last), none, left);
    }
}

/* The queries of all documents that have an ancestor at a depth. */
MEMOI void memoi_segments_add_ancestors(memoi_segment_list* x, const memo_mask* mask,
                                        int32_t depth) {
    const int64_t *begins = mask->document_begins, *parents = mask->document_parents;
    for (int64_t i = 0; i < mask->n_documents; i++) {
        int64_t ancestor = i;
        int32_t n = memoi_mask_depth(mask, i);
        if (n <= depth) continue;
        for (; n > depth; n--) ancestor = parents[ancestor];
        if (begins[ancestor] < begins[ancestor + 1])
            memoi_segments_add_rows(x, begins[i], begins[i + 1] - begins[i], begins[ancestor],
                                    begins[ancestor + 1], 0, 0);
    }
}

/* One level of a mask.  Returns the number of segments. */
MEMOI int64_t memoi_segments_of_mask(const memo_mask* mask, int32_t level, int64_t n_first_keys,
                                     memo_segment* list) {
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    x.list = list;
    x.open.level = level;
    if (level && mask->document_parents)
        memoi_segments_add_ancestors(&x, mask, level - 1);
    else if (!mask->key_first)
        memoi_segments_add_documents(&x, mask, level ? n_first_keys : 0);
    for (int64_t q = 0; q < mask->n_tokens && mask->key_first; q++)
        if (mask->key_first[q] < mask->key_end[q])
            memoi_segments_add(&x, q, mask->key_first[q], mask->key_end[q]);
    memoi_segments_close(&x);
    return x.n;
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
    int64_t row = 0, first = 0, last = n_seen;
    x.list = list;
    x.open.level = n_seen ? seen->level : 0;

    /* The first segment that ends behind the first query. */
    while (n_q && first < last) {
        const int64_t middle = (first + last) / 2;
        if (seen[middle].q_end <= q->start)
            first = middle + 1;
        else
            last = middle;
    }

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
