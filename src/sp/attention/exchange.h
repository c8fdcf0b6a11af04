#pragma once
#include "sp/attention/masks.h"
#include "sp/attention/shape.h"
/* ---- >>exchange plans ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, and the masks.  Knows nothing of tensors, heads or streams. */

/* Rows [begin, end) of a sequence. */
typedef struct memoi_exchange_rows {
    int64_t begin, end;
} memoi_exchange_rows;

/* Rows of an owner's keys that a reader reads: ranges, ascending.  Of more ranges the narrowest
 * gaps are read, too. */
enum { MEMOI_PIECES_MAX = 64 };
typedef struct memoi_exchange_pieces {
    memoi_exchange_rows rows[MEMOI_PIECES_MAX + 1]; /* one more while rows are added */
    int32_t n;
    int32_t q_begin, q_end;   /* runs of queries that read */
    int64_t n_rows, n_needed; /* with and without these gaps */
    int64_t narrowest;        /* no gap between two pieces is narrower */
} memoi_exchange_pieces;

/* Step s of a sequence: some runs of queries, from row q_row on, against keys, which arrive behind
 * those of earlier sequences.  n_q_runs 0: nothing. */
typedef struct memoi_exchange_step {
    const memo_run *q_runs, *k_runs;
    int32_t n_q_runs, n_k_runs;
    int64_t q_row, n_q_rows, k_row, n_k_rows;
} memoi_exchange_step;

/* Of one rank. */
struct memo_exchange {
    memo_sp_attention* attention;
    memoi_shape shape; /* the attention's, with tokens */
    memoi_shape_tokens tokens[2];
    memob_arrays arrays;
    memo_mask* masks;  /* (n_parts), complete */
    memo_label agreed; /* digests of all that ranks must agree on, except the pass */
    int32_t has_sinks;
    /* Steps in which no rank reads anything are left out. */
    int32_t last_step;
    int64_t most_runs;             /* of a rank */
    int32_t* distances;            /* (ring): step s reads the keys of rank - distances[s] */
    int64_t* n_rows;               /* (2, ring) of all sequences, by steps: sent; received */
    memoi_exchange_step* steps;    /* (ring, n_parts) */
    memoi_exchange_pieces* pieces; /* (2, ring, n_parts) by distance: that this rank sends, gets */
    memoi_exchange_rows* sees; /* (n_parts, ring, most runs): positions that runs of queries see */
    memo_run* piece_runs;      /* (ring, n_parts, most runs): positions of the rows that arrive */
};

MEMOI const memoi_exchange_step* memoi_exchange_step_of(const memo_exchange* plan, int32_t s,
                                                        int32_t part) {
    return &plan->steps[(int64_t)s * plan->shape.n_parts + part];
}
MEMOI int64_t* memoi_exchange_rows_of(const memo_exchange* plan, int is_receive, int32_t s) {
    return &plan->n_rows[is_receive * plan->shape.sharding.ring + s];
}
MEMOI memoi_exchange_pieces* memoi_exchange_pieces_of(const memo_exchange* plan, int is_receive,
                                                      int32_t distance, int32_t part) {
    const int64_t rd = plan->shape.sharding.ring;
    return &plan->pieces[(is_receive * rd + distance) * plan->shape.n_parts + part];
}

/* --- runs --- */

MEMOI void memoi_exchange_take_tokens(memoi_shape_tokens* tokens, const memo_sharding* sharding,
                                      memob_arrays* arrays) {
    tokens->sharding = *sharding;
    for (int32_t r = 0; r < sharding->ring; r++)
        tokens->max_runs = memob_max(tokens->max_runs, memoi_sharding_ring_runs(sharding, r, NULL));
    tokens->runs = MEMOB_ARRAY(arrays, memo_run, sharding->ring * tokens->max_runs);
    tokens->n_runs = MEMOB_ARRAY(arrays, int32_t, sharding->ring);
    for (int32_t r = 0; r < sharding->ring && !arrays->failed; r++)
        tokens->n_runs[r] =
            memoi_sharding_ring_runs(sharding, r, tokens->runs + r * tokens->max_runs);
}

/* --- steps --- */

/* The number of rows of the first n runs. */
MEMOI int64_t memoi_exchange_runs_rows(const memo_run* runs, int32_t n) {
    int64_t rows = 0;
    for (int32_t k = 0; k < n; k++) rows += runs[k].count;
    return rows;
}

/* The runs of pieces of n runs; returns their number. */
MEMOI int32_t memoi_exchange_runs_of(const memoi_exchange_pieces* p, const memo_run* runs,
                                     int32_t n, memo_run* made) {
    int64_t row = 0; /* of run k */
    int32_t n_made = 0, k = 0;
    for (int32_t i = 0; i < p->n; i++) {
        int64_t at = p->rows[i].begin;
        while (at < p->rows[i].end) {
            memo_run* run = &made[n_made++];
            for (; k < n && row + runs[k].count <= at; k++) row += runs[k].count;
            *run = runs[k];
            run->start += at - row;
            run->count = memob_min(row + runs[k].count, p->rows[i].end) - at;
            at += run->count;
        }
    }
    return n_made;
}

/* Step 0 has all queries, because it sets every row. */
MEMOI void memoi_exchange_make_step(const memo_exchange* plan, int32_t s, int32_t part) {
    const memoi_shape* shape = &plan->shape;
    const int32_t rd = shape->sharding.ring, me = shape->ring_rank, distance = plan->distances[s];
    const memoi_exchange_pieces* p = memoi_exchange_pieces_of(plan, 1, distance, part);
    memoi_exchange_step* r = &plan->steps[(int64_t)s * shape->n_parts + part];
    r->q_runs = memoi_shape_runs(shape, 0, me, &r->n_q_runs);
    r->k_runs = memoi_shape_runs(shape, 1, (me - distance + rd) % rd, &r->n_k_runs);
    if (s) { /* pieces arrive one after another */
        memo_run* runs = plan->piece_runs + ((int64_t)s * shape->n_parts + part) *
                                                (plan->most_runs + MEMOI_PIECES_MAX);
        r->n_k_runs = memoi_exchange_runs_of(p, r->k_runs, r->n_k_runs, runs);
        r->k_runs = runs;
        r->q_row = memoi_exchange_runs_rows(r->q_runs, p->q_begin);
        r->q_runs += p->q_begin;
        r->n_q_runs = p->q_end - p->q_begin;
    }
    r->n_q_rows = memoi_exchange_runs_rows(r->q_runs, r->n_q_runs);
    r->n_k_rows = memoi_exchange_runs_rows(r->k_runs, r->n_k_runs);
    r->k_row = part ? r[-1].k_row + r[-1].n_k_rows : 0;
}

/* --- what each rank reads --- */

/* Adds rows that do not begin before those of p.  Of more than `most` pieces the two with the
 * narrowest gap become one. */
MEMOI void memoi_exchange_add_rows(memoi_exchange_pieces* p, int32_t most, int64_t begin,
                                   int64_t end) {
    memoi_exchange_rows* rows = p->rows;
    const int64_t last = p->n ? rows[p->n - 1].end : -1;
    int32_t narrowest = p->n - 1; /* the gap behind this piece */
    p->n_needed += memob_max(end - memob_max(begin, last), 0);
    if (begin <= last) { /* the last piece goes on */
        p->n_rows += memob_max(end - last, 0);
        rows[p->n - 1].end = memob_max(end, last);
        return;
    }
    rows[p->n].begin = begin;
    rows[p->n++].end = end;
    p->n_rows += end - begin;
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

#ifndef MEMOI_EXCHANGE_SEARCH           /* tests set it */
#define MEMOI_EXCHANGE_SEARCH (1 << 18) /* runs to look at in a plan: some milliseconds */
#endif

MEMOI memoi_exchange_rows* memoi_exchange_sees_of(const memo_exchange* plan, int32_t part,
                                                  int32_t rank) {
    return plan->sees + ((int64_t)part * plan->shape.sharding.ring + rank) * plan->most_runs;
}
/* What a reader reads of an owner's keys.  Runs of queries ascend, and so do the ends of what
 * queries see.  So a run of keys that ends before, or was read to its end, is done. */
MEMOI memoi_exchange_pieces memoi_exchange_read(const memo_exchange* plan, int32_t part,
                                                int32_t owner, int32_t reader) {
    const memoi_shape* shape = &plan->shape;
    /* A group has a message for each piece of a sequence. */
    const int32_t most = (int32_t)memob_max(memob_min(256 / shape->n_batch, MEMOI_PIECES_MAX), 4);
    const int32_t n_q_runs = memoi_shape_tokens_of(shape, 0)->n_runs[reader];
    int32_t n_runs, k = 0, i;
    const memo_run* runs = memoi_shape_runs(shape, 1, owner, &n_runs);
    const memoi_exchange_rows* sees = memoi_exchange_sees_of(plan, part, reader);
    memoi_exchange_pieces p = MEMO_ZERO(memoi_exchange_pieces);
    int64_t first = 0, latest = -1, row, begin, end; /* first: row of run k */
    for (int32_t q = 0; q < n_q_runs; q++) {
        const int64_t low = sees[q].begin, high = sees[q].end;
        if (low >= high) continue;
        for (; k < n_runs; first += runs[k++].count)
            if (runs[k].start + runs[k].count > low &&
                (!p.n || p.rows[p.n - 1].end < first + runs[k].count))
                break;
        for (i = k, row = first; i < n_runs && runs[i].start < high; row += runs[i++].count) {
            memoi_mask_run_interval(&runs[i], low, high, &begin, &end);
            if (begin >= end) continue;
            memoi_exchange_add_rows(&p, most, row + begin, row + end);
            latest = runs[i].start + end - 1;
        }
        if (latest < low) continue;
        if (!p.q_end) p.q_begin = q;
        p.q_end = q + 1;
    }

    /* Gaps that were not closed must be worth their messages. */
    row = p.n ? p.rows[p.n - 1].end - p.rows[0].begin : 0;
    if (p.n == most && p.n_rows > row / 8 * 7) {
        p.rows[0].end = p.rows[p.n - 1].end;
        p.n_rows = row;
        p.n = 1;
    }
    return p;
}

/* What passes need, once the tokens and the masks are there.  All ranks must find the same steps:
 * so, if this rank neither sends nor gets anything, the search goes on among the others.  If that
 * takes too long, no step is left out. */
MEMOI void memoi_exchange_make(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t rd = shape->sharding.ring, me = shape->ring_rank;
    const int64_t each = plan->most_runs * rd * shape->n_parts;
    const int finds_all = each * rd <= MEMOI_EXCHANGE_SEARCH;
    int32_t s, n;
    plan->sees = MEMOB_ARRAY(&plan->arrays, memoi_exchange_rows, each);
    for (int32_t part = 0; part < shape->n_parts && plan->sees; part++)
        for (int32_t r = 0; r < rd; r++) {
            memoi_exchange_rows* sees = memoi_exchange_sees_of(plan, part, r);
            const memo_run* runs = memoi_shape_runs(shape, 0, r, &n);
            for (int32_t i = 0; i < n; i++)
                memoi_mask_run_sees(&plan->masks[part], &runs[i], &sees[i].begin, &sees[i].end);
        }
    if (!plan->sees) return;

    /* Which steps there are, and what travels. */
    for (s = n = 1; s < rd; s++) {
        int64_t n_rows = !finds_all;
        for (int32_t i = 0; i <= rd && (i < 2 || !n_rows); i++) {
            const int32_t owner = (me + (i ? i - 1 : rd - s)) % rd;
            for (int32_t part = 0; part < shape->n_parts; part++) {
                const memoi_exchange_pieces p =
                    memoi_exchange_read(plan, part, owner, (owner + s) % rd);
                n_rows += p.n_rows;
                if (i >= 2) continue;
                *memoi_exchange_pieces_of(plan, !i, s, part) = p;
                *memoi_exchange_rows_of(plan, !i, n) +=
                    p.n_rows * (shape->n_batch / shape->n_parts);
            }
        }
        if (n_rows) plan->distances[n++] = s;
    }
    plan->last_step = n - 1;

    plan->piece_runs =
        MEMOB_ARRAY(&plan->arrays, memo_run,
                    (int64_t)n * shape->n_parts * (plan->most_runs + MEMOI_PIECES_MAX));
    for (int32_t part = 0; part < shape->n_parts && !plan->arrays.failed; part++)
        for (s = 0; s < n; s++) memoi_exchange_make_step(plan, s, part);
}

void memo_exchange_get_info(const memo_exchange* plan, memo_exchange_info* info) {
    const memoi_shape* shape = &plan->shape;
    const int64_t n = (int64_t)shape->sharding.ring * shape->n_parts;
    const int64_t each = shape->n_batch / shape->n_parts;
    memset(info, 0, sizeof *info);
    info->n_steps = plan->last_step + 1;
    for (int64_t i = 0; i < 2 * n; i++) { /* that this rank sends; that it gets */
        info->sent_rows[i / n] += each * plan->pieces[i].n_rows;
        info->needed_rows[i / n] += each * plan->pieces[i].n_needed;
    }
}
