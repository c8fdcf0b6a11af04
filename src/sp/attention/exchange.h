#pragma once
#include "sp/shardings.h"
#include "sp/attention/launches.h"
#include "sp/attention/shape.h"
/* ---- >>exchange plans ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, and the masks.  Knows nothing of tensors, heads or streams.
 *
 * 1. Rows are added to pieces in ascending order; pieces stay apart and few enough.
 * 2. The stretches of a pool ascend without gaps from its first row to its last.
 * 3. Every step finds room: two sets of a rank's rows hold any step beside the one before.
 * 4. The exchanges of a pass bring the keys of every step.
 * 5. Pieces have as many runs as their rank at most, and one more each. */

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
    int32_t q_begin, q_end; /* runs of queries that read */
    int64_t n_rows;         /* with these gaps */
    int64_t narrowest;      /* no gap between two pieces is narrower */
} memoi_exchange_pieces;

/* Positions that a run of queries sees, without a gap. */
typedef struct memoi_exchange_sight {
    int64_t begin, end;
    int32_t run;
} memoi_exchange_sight;

/* Step s of a sequence: some runs of queries, from row q_row on, against keys, which arrive behind
 * those of earlier sequences.  Without segments nothing is computed. */
typedef struct memoi_exchange_step {
    const memo_run *q_runs, *k_runs;
    int32_t n_q_runs, n_k_runs;
    int64_t q_row, n_q_rows, k_row, n_k_rows;
    memoi_block_segments seen; /* of these rows */
} memoi_exchange_step;

/* Rows of keys that arrive, and contributions to gradients that leave, lie in pools, where there is
 * room.  Contributions that arrive are added at once, and share a place behind those that leave. */
enum { MEMOI_POOL_KEYS = 0, MEMOI_POOL_GRADIENTS, MEMOI_N_POOLS };

/* Where rows of a step lie in a pool, and the last earlier step whose rows lay there; 0: none. */
typedef struct memoi_exchange_room {
    int64_t row;
    int32_t after;
} memoi_exchange_room;

/* One group of messages: brings the keys of step k and returns what step `given` contributed to
 * gradients; 0: neither. */
typedef struct memoi_exchange_turn {
    int32_t k, given;
} memoi_exchange_turn;

/* The plan of one rank. */
struct memo_exchange {
    memo_sp_attention* attention;
    memoi_shape shape; /* the attention's, with tokens */
    memoi_shape_tokens tokens[2];
    memob_arrays arrays;
    /* The segments of each part and level, which count as a mask each: of positions, those of mask
     * m from first_seen[m]. */
    memo_segment* seen;
    int64_t* first_seen; /* (n_parts * n_levels + 1) */
    int32_t n_levels;
    int64_t window; /* of the causal mask that is made here; 0: none */
    memo_launch_kind launches;
    int64_t n_words;              /* device arrays of all steps' segments */
    void* given_memory;           /* for these, of the caller; NULL: the flight has it */
    struct memoi_flight* flight;  /* NULL: not begun */
    struct memo_exchange* next;   /* of those that no stream uses */
    int32_t has_begun, has_ended; /* ranks have met; destroyed */
    memo_label agreed;            /* digests of all that ranks must agree on, except the pass */
    int32_t has_sinks;
    /* Steps in which no rank reads anything are left out. */
    int32_t last_step;
    int64_t first_unset;        /* rows of queries from here on are not all set by step 0 */
    int64_t most_runs;          /* of a rank */
    int32_t* distances;         /* (ring): step s reads the keys of rank - distances[s] */
    int64_t* n_rows;            /* (2, ring) of all sequences, by distance: sent; received */
    memoi_exchange_step* steps; /* (ring, n_parts, n_levels) */
    /* (MEMOI_N_POOLS, ring + 1) by steps; behind the last step the contribution to the own keys,
     * if others contribute, too (has_others). */
    memoi_exchange_room* rooms;
    int32_t has_others;
    int64_t taken_row; /* where contributions arrive */
    /* (2): of forward, of backward, in the order in which all ranks enqueue them. */
    memoi_exchange_turn* turns[2];
    int32_t n_turns[2];
    memoi_exchange_pieces* pieces; /* (2, ring, n_parts) by distance: that this rank sends, gets */
    /* Positions that runs of queries see: of rank r and mask m from
     * first_sight[m * n_lookers + r]. */
    memoi_exchange_sight* sights;
    int64_t* first_sight; /* (n_parts * n_levels * n_lookers + 1) */
    /* Ranks of the whole ring.  This plan's rank 0 is first_looker of them. */
    int32_t n_lookers, first_looker;
    memo_run* piece_runs; /* (ring, n_parts, most runs): positions of the rows that arrive */
    /* A ring over nodes has plans of rings within this rank's node.  Number d is for keys of the
     * node d before, held by the rank at the owner's place.  This plan has no steps then. */
    struct memo_exchange* of_nodes;  /* (n_nodes); NULL: one node */
    memoi_exchange_pieces* crossing; /* (2, n_nodes): own rows that go d nodes on; rows held here */
    int32_t is_held;                 /* step 0 reads rows of another node */
    int32_t has_own_work;            /* step 0 computes */
};

MEMOI const memoi_exchange_step* memoi_exchange_step_of(const memo_exchange* plan, int32_t s,
                                                        int32_t mask) {
    return &plan->steps[(int64_t)s * plan->shape.n_parts * plan->n_levels + mask];
}
MEMOI int64_t* memoi_exchange_rows_of(const memo_exchange* plan, int is_receive, int32_t s) {
    return &plan->n_rows[is_receive * plan->shape.sharding.ring + plan->distances[s]];
}
MEMOI memoi_exchange_pieces* memoi_exchange_pieces_of(const memo_exchange* plan, int is_receive,
                                                      int32_t distance, int32_t part) {
    const int64_t rd = plan->shape.sharding.ring;
    return &plan->pieces[(is_receive * rd + distance) * plan->shape.n_parts + part];
}

MEMOI const memoi_exchange_pieces* memoi_exchange_crossing_of(const memo_exchange* plan,
                                                              int is_receive, int32_t d) {
    return &plan->crossing[is_receive * plan->shape.n_nodes + d];
}

MEMOI const memoi_exchange_room* memoi_exchange_room_of(const memo_exchange* plan, int pool,
                                                        int32_t s) {
    return &plan->rooms[pool * ((int64_t)plan->shape.sharding.ring + 1) + s];
}

/* --- pools --- */

#ifndef MEMOI_POOL_ALIGNMENT /* tests set it */
#define MEMOI_POOL_ALIGNMENT                                                                       \
    8 /* rows of a step begin at a multiple, so that kernels can load them */
#endif

/* Rows [begin, end) of a pool, where the rows of a step were last; 0: none. */
typedef struct memoi_pool_stretch {
    int64_t begin, end;
    int32_t step;
} memoi_pool_stretch;

typedef struct memoi_pool {
    int64_t n_rows;
    memoi_pool_stretch* stretches; /* ascending, without gaps */
    int32_t n;
} memoi_pool;

/* Rows of a pool.  Two sets of a rank's rows always leave room for the next step beside the present
 * one.  Rounded contributions are computed elsewhere. */
MEMOI int64_t memoi_pool_rows(const memoi_shape* shape, int pool) {
    const int64_t n = shape->n_batch * shape->key_sharding.ring_tokens;
    const int n_sets = 2 + (pool == MEMOI_POOL_GRADIENTS && shape->carried_type == MEMO_TYPE_F32);
    return n_sets * memob_align_up(n, MEMOI_POOL_ALIGNMENT);
}

/* The last step whose rows lie in [begin, end). */
MEMOI int32_t memoi_pool_last_step(const memoi_pool* pool, int64_t begin, int64_t end) {
    int32_t step = 0;
    for (int32_t i = 0; i < pool->n && pool->stretches[i].begin < end; i++)
        if (pool->stretches[i].end > begin && pool->stretches[i].step > step)
            step = pool->stretches[i].step;
    return step;
}

/* Cuts the stretch that a row is in; returns the index of the one that begins there. */
MEMOI int32_t memoi_pool_cut(memoi_pool* pool, int64_t row) {
    memoi_pool_stretch* s = pool->stretches;
    while (s - pool->stretches < pool->n && s->end <= row) s++;
    if (s - pool->stretches < pool->n && s->begin < row) {
        memmove(s + 1, s, (size_t)(pool->stretches + pool->n++ - s) * sizeof *s);
        s->end = row;
        (++s)->begin = row;
    }
    return (int32_t)(s - pool->stretches);
}

MEMOI void memoi_pool_take(memoi_pool* pool, int64_t begin, int64_t end, int32_t step) {
    const int32_t first = memoi_pool_cut(pool, begin), next = memoi_pool_cut(pool, end);
    memoi_pool_stretch* s = pool->stretches + first;
    s->end = end;
    s->step = step;
    memmove(s + 1, pool->stretches + next, (size_t)(pool->n - next) * sizeof *s);
    pool->n -= next - first - 1;
    s = pool->stretches;
    for (int32_t i = 0; i < pool->n; i++) /* 2 */
        MEMO_ASSERT(s[i].begin < s[i].end && s[i].begin == (i ? s[i - 1].end : 0));
    MEMO_ASSERT(s[pool->n - 1].end == pool->n_rows); /* 2 */
}

/* Finds rooms for sizes[1 .. n_steps - 1] rows: each where the last user is as early as possible,
 * and the next step has room beside it. */
MEMOI void memoi_pool_lay(memoi_pool* pool, int64_t n_rows, const int64_t* sizes, int32_t n_steps,
                          memoi_exchange_room* rooms) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const memoi_pool_stretch all = {0, n_rows, 0};
    pool->n_rows = n_rows;
    pool->n = 1;
    pool->stretches[0] = all;
    for (int32_t s = 1; s < n_steps; s++) {
        const int64_t n = sizes[s], next = s + 1 < n_steps ? sizes[s + 1] : 0;
        int32_t cost = INT32_MAX;
        rooms[s].row = rooms[s].after = 0;
        for (int32_t i = 0; i < 2 * pool->n && cost && n; i++) {
            const memoi_pool_stretch* at = &pool->stretches[i / 2];
            const int64_t row =
                i % 2 ? memob_max(at->end - n, 0) / unit * unit : memob_align_up(at->begin, unit);
            const int has_room = row >= next || (n_rows - next) / unit * unit >= row + n;
            const int32_t after = row + n > n_rows ? 0 : memoi_pool_last_step(pool, row, row + n);
            const int32_t cost_here = has_room ? after : (int32_t)memob_max(after, s - 1);
            if (row + n > n_rows || cost_here >= cost) continue;
            cost = cost_here;
            rooms[s].row = row;
            rooms[s].after = after;
        }
        MEMO_ASSERT(!n || cost < INT32_MAX); /* 3 */
        if (n) memoi_pool_take(pool, rooms[s].row, rooms[s].row + n, s);
    }
}

/* --- runs --- */

/* Without padding, which is behind the other rows of a rank. */
MEMOI void memoi_exchange_take_tokens(memoi_shape_tokens* tokens, const memo_sharding* sharding,
                                      memob_arrays* arrays) {
    tokens->sharding = *sharding;
    for (int32_t r = 0; r < sharding->ring; r++)
        tokens->max_runs = memob_max(tokens->max_runs, memoi_sharding_ring_runs(sharding, r, NULL));
    tokens->runs = MEMOB_ARRAY(arrays, memo_run, sharding->ring * tokens->max_runs);
    tokens->n_runs = MEMOB_ARRAY(arrays, int32_t, sharding->ring);
    for (int32_t r = 0; r < sharding->ring && !arrays->failed; r++) {
        memo_run* runs = tokens->runs + r * tokens->max_runs;
        int32_t n = memoi_sharding_ring_runs(sharding, r, runs);
        while (n && runs[n - 1].start >= sharding->n_tokens) n--;
        if (n) runs[n - 1].count = memoi_sharding_run_below(&runs[n - 1], sharding->n_tokens);
        tokens->n_runs[r] = n;
    }
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
            MEMO_ASSERT(n_made <= n + p->n); /* 5 */
            for (; k < n && row + runs[k].count <= at; k++) row += runs[k].count;
            *run = runs[k];
            run->start += at - row;
            run->count = memob_min(row + runs[k].count, p->rows[i].end) - at;
            at += run->count;
        }
    }
    return n_made;
}

/* --- what each rank reads --- */

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

#ifndef MEMOI_EXCHANGE_SEARCH           /* tests set it */
#define MEMOI_EXCHANGE_SEARCH (1 << 18) /* runs to look at in a plan: some milliseconds */
#endif

/* The positions that a run of queries sees under a mask, without a gap each.  Returns how many. */
MEMOI int64_t memoi_exchange_look_at(const memo_exchange* plan, int64_t mask, const memo_run* run,
                                     int32_t k, memoi_exchange_sight* sights) {
    const memo_segment* list = plan->seen + plan->first_seen[mask];
    const int64_t n = plan->first_seen[mask + 1] - plan->first_seen[mask];
    const int64_t end = run->start + run->count;
    memoi_exchange_sight sight = {0, 0, k};
    int64_t n_sights = 0;
    for (int64_t i = memoi_segments_first(list, n, run->start); i < n && list[i].q_begin < end;
         i++) {
        int64_t low, high, unused;
        memo_segment_keys(&list[i], memob_max(run->start, list[i].q_begin), &low, &unused);
        memo_segment_keys(&list[i], memob_min(end, list[i].q_end) - 1, &unused, &high);
        if (!n_sights || low > sight.end) {
            sight.begin = low;
            n_sights++;
        }
        sight.end = high;
        if (sights) sights[n_sights - 1] = sight;
    }
    return n_sights;
}

/* Finds what the queries of all ranks see. */
MEMOI void memoi_exchange_look(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int64_t n_ranks = (int64_t)shape->n_parts * plan->n_levels * plan->n_lookers;
    plan->first_sight = MEMOB_ARRAY(&plan->arrays, int64_t, n_ranks + 1);
    for (int is_filled = 0; is_filled < 2 && !plan->arrays.failed; is_filled++) {
        int64_t n = 0;
        for (int64_t r = 0; r < n_ranks; r++) {
            int32_t n_runs;
            const memo_run* runs =
                memoi_shape_runs(shape, 0, (int32_t)(r % plan->n_lookers), &n_runs);
            plan->first_sight[r] = n;
            for (int32_t k = 0; k < n_runs; k++)
                n += memoi_exchange_look_at(plan, r / plan->n_lookers, &runs[k], k,
                                            is_filled ? plan->sights + n : NULL);
        }
        plan->first_sight[n_ranks] = n;
        if (!is_filled) plan->sights = MEMOB_ARRAY(&plan->arrays, memoi_exchange_sight, n + 1);
    }
}

/* A group has up to 4 messages for each piece of a sequence, of k and of v, sent and received, and
 * 2 of gradients.  NCCL is known to hang with more than 256. */
MEMOI int32_t memoi_exchange_most(const memoi_shape* shape) {
    return (int32_t)memob_max(memob_min(254 / 4 / shape->n_batch, MEMOI_PIECES_MAX), 1);
}

/* What a reader reads of an owner's keys under a mask.  Runs of queries ascend, and so do the ends
 * of what queries see.  So a run of keys that ends before, or was read to its end, is done. */
MEMOI memoi_exchange_pieces memoi_exchange_read_mask(const memo_exchange* plan, int32_t mask,
                                                     int32_t owner, int32_t reader) {
    const memoi_shape* shape = &plan->shape;
    const int32_t most = memoi_exchange_most(shape);
    const int64_t* first_sight =
        plan->first_sight + (int64_t)mask * plan->n_lookers + plan->first_looker + reader;
    int32_t n_runs, k = 0, i;
    const memo_run* runs = memoi_shape_runs(shape, 1, owner, &n_runs);
    memoi_exchange_pieces p = MEMO_ZERO(memoi_exchange_pieces);
    int64_t first = 0, latest = -1, row, begin, end; /* first: row of run k */

    for (int64_t s = first_sight[0]; s < first_sight[1]; s++) {
        const int64_t low = plan->sights[s].begin, high = plan->sights[s].end;
        for (; k < n_runs; first += runs[k++].count)
            if (runs[k].start + runs[k].count > low &&
                (!p.n || p.rows[p.n - 1].end < first + runs[k].count))
                break;
        for (i = k, row = first; i < n_runs && runs[i].start < high; row += runs[i++].count) {
            begin = memoi_sharding_run_below(&runs[i], low);
            end = memoi_sharding_run_below(&runs[i], high);
            if (begin >= end) continue;
            memoi_exchange_add_rows(&p, most, row + begin, row + end);
            latest = runs[i].start + end - 1;
        }
        if (latest < low) continue;
        if (!p.q_end) p.q_begin = plan->sights[s].run;
        p.q_end = plan->sights[s].run + 1;
    }
    return p;
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
    p->q_begin = own.q_begin;
    p->q_end = own.q_end;
}

/* Gaps that were not closed must be worth their messages. */
MEMOI void memoi_exchange_close_gaps(memoi_exchange_pieces* p, int32_t most) {
    const int64_t n = p->n ? p->rows[p->n - 1].end - p->rows[0].begin : 0;
    if (p->n < most || p->n_rows <= n / 8 * 7) return;
    p->rows[0].end = p->rows[p->n - 1].end;
    p->n_rows = n;
    p->n = 1;
}

/* What a reader reads of an owner's keys, under all masks of a part. */
MEMOI memoi_exchange_pieces memoi_exchange_read(const memo_exchange* plan, int32_t part,
                                                int32_t owner, int32_t reader) {
    const int32_t most = memoi_exchange_most(&plan->shape), first = part * plan->n_levels;
    memoi_exchange_pieces p = memoi_exchange_read_mask(plan, first, owner, reader);
    for (int32_t i = 1; i < plan->n_levels; i++) {
        const memoi_exchange_pieces level =
            memoi_exchange_read_mask(plan, first + i, owner, reader);
        memoi_exchange_unite(&p, &level, most);
    }
    memoi_exchange_close_gaps(&p, most);
    return p;
}

/* Step 0 has all queries of level 0, unless its keys are of another node.  All levels of a part
 * have the keys that any of them reads. */
MEMOI void memoi_exchange_make_step(memo_exchange* plan, int32_t s, int32_t mask) {
    const memoi_shape* shape = &plan->shape;
    const int32_t rd = shape->sharding.ring, me = shape->ring_rank, distance = plan->distances[s];
    const int32_t owner = (me - distance + rd) % rd, part = mask / plan->n_levels;
    const int is_first = mask % plan->n_levels == 0;
    const int has_all = !s && is_first && !plan->is_held;
    memoi_exchange_pieces p = *memoi_exchange_pieces_of(plan, 1, distance, part);
    memoi_exchange_step* r = &plan->steps[((int64_t)s * shape->n_parts) * plan->n_levels + mask];
    r->q_runs = memoi_shape_runs(shape, 0, me, &r->n_q_runs);
    r->k_runs = memoi_shape_runs(shape, 1, owner, &r->n_k_runs);
    if (s) { /* pieces arrive one after another */
        memo_run* runs = plan->piece_runs + ((int64_t)s * shape->n_parts + part) *
                                                (plan->most_runs + MEMOI_PIECES_MAX);
        r->n_k_runs = memoi_exchange_runs_of(&p, r->k_runs, r->n_k_runs, runs);
        r->k_runs = runs;
    }
    if (!has_all) {
        if (!s || plan->n_levels > 1) p = memoi_exchange_read_mask(plan, mask, owner, me);
        r->q_row = memoi_exchange_runs_rows(r->q_runs, p.q_begin);
        r->q_runs += p.q_begin;
        r->n_q_runs = p.q_end - p.q_begin;
    }
    r->n_q_rows = memoi_exchange_runs_rows(r->q_runs, r->n_q_runs);
    r->n_k_rows = memoi_exchange_runs_rows(r->k_runs, r->n_k_runs);
    r->k_row = mask ? r[-1].k_row + is_first * r[-1].n_k_rows : 0;

    memoi_block_segments_make(
        plan->seen + plan->first_seen[mask], plan->first_seen[mask + 1] - plan->first_seen[mask],
        r->q_runs, r->n_q_runs, r->k_runs, r->n_k_runs, plan->launches, &plan->arrays, &r->seen);
    plan->has_own_work |= !s && r->seen.segments.n;
    if (!s && is_first) plan->first_unset = memob_min(plan->first_unset, r->seen.first_row);
}

/* --- turns --- */

/* Contributions that keys may overtake; what waits for them then is gradients alone. */
enum { MEMOI_TURNS_OVERTAKEN = 4 };

/* The order of exchanges, the same on all ranks, so that no two ranks wait for each other: keys of
 * step k behind contribution behind[k].  Keys and a contribution that may begin at the same time,
 * on the rank that gets room last, share an exchange. */
MEMOI void memoi_exchange_make_turns(memo_exchange* plan, int is_backward, const int32_t* gates,
                                     const int32_t* behind) {
    memoi_exchange_turn* turns = plan->turns[is_backward];
    int32_t n = 0, k = 1;
    for (int32_t t = 0; t <= (is_backward ? plan->last_step : 0); t++) {
        if (t) {
            n += !n || turns[n - 1].given || gates[turns[n - 1].k] != t;
            turns[n - 1].given = t;
        }
        for (; k <= plan->last_step && (!is_backward || behind[k] <= t); k++) turns[n++].k = k;
    }
    MEMO_ASSERT(k == plan->last_step + 1); /* 4 */
    plan->n_turns[is_backward] = n;
}

/* The rooms of a rank that gets sizes[1 .. last_step] rows, and to which at most `most` return.
 * Returns the row of the latter. */
MEMOI int64_t memoi_exchange_lay(const memo_exchange* plan, memoi_pool* pool, int64_t* sizes,
                                 int64_t most, memoi_exchange_room* rooms) {
    const memoi_shape* shape = &plan->shape;
    const int32_t n = plan->last_step + 1;
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const int64_t taken_row = (memoi_pool_rows(shape, MEMOI_POOL_GRADIENTS) - most) / unit * unit;
    memoi_pool_lay(pool, memoi_pool_rows(shape, MEMOI_POOL_KEYS), sizes, n, rooms);
    sizes[n] = most && shape->carried_type == MEMO_TYPE_F32
                   ? shape->n_batch * shape->key_sharding.ring_tokens
                   : 0;
    memoi_pool_lay(pool, taken_row, sizes, n + 1, rooms + shape->sharding.ring + 1);
    return taken_row;
}

/* counts: (ring, ring), the rows that each reader reads of the keys at a distance; NULL: not known,
 * and every rank assumes that two steps fill a pool. */
MEMOI void memoi_exchange_make_rooms(memo_exchange* plan, const int64_t* counts,
                                     memob_arrays* scratch) {
    const int32_t rd = plan->shape.sharding.ring, n = plan->last_step + 1;
    int64_t most = 0, *sizes = MEMOB_ARRAY(scratch, int64_t, (int64_t)n + 1);
    int32_t* gates = MEMOB_ARRAY(scratch, int32_t, n);
    int32_t* behind = MEMOB_ARRAY(scratch, int32_t, n);
    memoi_exchange_room* others = MEMOB_ARRAY(scratch, memoi_exchange_room, 2 * ((int64_t)rd + 1));
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * (int64_t)n + 5);
    if (scratch->failed) return;
    for (int32_t s = 1; s < n; s++) {
        sizes[s] = *memoi_exchange_rows_of(plan, 1, s);
        most = memob_max(most, *memoi_exchange_rows_of(plan, 0, s));
        gates[s] = behind[s] = counts ? 0 : (int32_t)memob_max(s - 2, 0);
    }
    plan->has_others = most > 0;
    plan->taken_row = memoi_exchange_lay(plan, &pool, sizes, most, plan->rooms);

    /* Keys lie behind the contributions that must leave before the step that gives them room, and
     * two steps more, which would wait else. */
    for (int32_t r = 0; r < rd && counts; r++) {
        most = 0;
        for (int32_t s = 1; s < n; s++) {
            const int64_t* count = &counts[(int64_t)plan->distances[s] * rd];
            sizes[s] = count[r];
            most = memob_max(most, count[(r + plan->distances[s]) % rd]);
        }
        (void)memoi_exchange_lay(plan, &pool, sizes, most, others);
        for (int32_t k = 1; k < n; k++) {
            const int32_t after = others[k].after;
            int32_t last = (int32_t)memob_max(after - MEMOI_TURNS_OVERTAKEN, 0);
            for (int32_t s = 1; s <= after + 2 && s < k; s++)
                last = (int32_t)memob_max(last, others[rd + 1 + s].after);
            gates[k] = (int32_t)memob_max(gates[k], after);
            behind[k] = (int32_t)memob_max(behind[k], last);
        }
    }
    memoi_exchange_make_turns(plan, 0, gates, behind);
    memoi_exchange_make_turns(plan, 1, gates, behind);
}

/* Steps with fewest rows come first, as in a pool that others fill. */
MEMOI void memoi_exchange_sort_steps(memo_exchange* plan, const int64_t* counts,
                                     memob_arrays* scratch) {
    const int32_t rd = plan->shape.sharding.ring, n = plan->last_step;
    memob_keyed* order = MEMOB_ARRAY(scratch, memob_keyed, n);
    for (int32_t i = 0; i < n && !scratch->failed; i++) {
        order[i].index = plan->distances[1 + i];
        for (int32_t r = 0; r < rd; r++) order[i].key += counts[order[i].index * rd + r];
    }
    if (!scratch->failed) memob_keyed_sort(order, n);
    for (int32_t i = 0; i < n && !scratch->failed; i++)
        plan->distances[1 + i] = (int32_t)order[i].index;
}

/* What passes need, once the tokens and the masks are there.  All ranks must find the same steps
 * and turns, so each finds what all ranks read.  If that takes too long, no step is left out. */
MEMOI void memoi_exchange_make(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, n_masks = shape->n_parts * plan->n_levels;
    const int64_t rd = shape->sharding.ring, each = plan->most_runs * rd * n_masks;
    const int finds_all = each * rd <= MEMOI_EXCHANGE_SEARCH;
    memob_arrays *arrays = &plan->arrays, scratch = MEMO_ZERO(memob_arrays);
    int64_t* counts = finds_all ? MEMOB_ARRAY(&scratch, int64_t, rd * rd) : NULL;
    int32_t s, n;
    plan->first_unset = shape->sharding.ring_tokens;
    plan->steps = MEMOB_ARRAY(arrays, memoi_exchange_step, rd * n_masks);
    plan->distances = MEMOB_ARRAY(arrays, int32_t, rd);
    plan->n_rows = MEMOB_ARRAY(arrays, int64_t, 2 * rd);
    plan->rooms = MEMOB_ARRAY(arrays, memoi_exchange_room, MEMOI_N_POOLS * (rd + 1));
    for (int32_t i = 0; i < 2; i++)
        plan->turns[i] = MEMOB_ARRAY(arrays, memoi_exchange_turn, 2 * rd);
    plan->pieces = MEMOB_ARRAY(arrays, memoi_exchange_pieces, 2 * rd * shape->n_parts);
    arrays->failed |= scratch.failed;

    /* Which steps there are, and what travels. */
    for (s = n = 1; s < rd && !arrays->failed; s++) {
        int64_t n_rows = !finds_all;
        for (int32_t owner = 0; owner < rd; owner++) {
            const int32_t reader = (int32_t)((owner + s) % rd);
            if (!finds_all && owner != me && reader != me) continue;
            for (int32_t part = 0; part < shape->n_parts; part++) {
                const memoi_exchange_pieces p = memoi_exchange_read(plan, part, owner, reader);
                const int64_t n_read = p.n_rows * (shape->n_batch / shape->n_parts);
                n_rows += n_read;
                if (counts) counts[s * rd + reader] += n_read;
                for (int i = 0; i < 2; i++) { /* sent; got */
                    if ((i ? reader : owner) != me) continue;
                    *memoi_exchange_pieces_of(plan, i, s, part) = p;
                    plan->n_rows[i * rd + s] += n_read;
                }
            }
        }
        if (n_rows) plan->distances[n++] = s;
    }
    plan->last_step = n - 1;
    if (counts && !scratch.failed) memoi_exchange_sort_steps(plan, counts, &scratch);
    arrays->failed |= scratch.failed;

    plan->piece_runs = MEMOB_ARRAY(
        arrays, memo_run, (int64_t)n * shape->n_parts * (plan->most_runs + MEMOI_PIECES_MAX));
    for (int32_t mask = 0; mask < n_masks && !arrays->failed; mask++)
        for (s = 0; s < n && !arrays->failed; s++) memoi_exchange_make_step(plan, s, mask);
    if (!arrays->failed) memoi_exchange_make_rooms(plan, counts, &scratch);
    arrays->failed |= scratch.failed;
    memob_arrays_free(&scratch);
}

/* --- rings over nodes --- */

/* The plan of a ring within a node, for the keys of the ranks of a node. */
MEMOI void memoi_exchange_view(const memo_exchange* plan, int32_t readers, int32_t owners,
                               memo_exchange* view) {
    const int32_t n = plan->n_lookers / plan->shape.n_nodes;
    *view = *plan;
    view->arrays = MEMO_ZERO(memob_arrays);
    view->first_looker = readers * n;
    view->shape.sharding.ring = view->shape.key_sharding.ring = n;
    view->shape.ring_rank %= n;
    view->shape.n_nodes = view->shape.has_key_sharding = 1;
    for (int32_t i = 0; i < 2; i++) {
        const int64_t first = (int64_t)(i ? owners : readers) * n;
        view->tokens[i] = *memoi_shape_tokens_of(&plan->shape, i);
        view->tokens[i].runs += first * view->tokens[i].max_runs;
        view->tokens[i].n_runs += first;
    }
    view->shape.tokens = view->tokens;
}

/* What all readers of a node read of an owner's keys, in any sequence of the batch. */
MEMOI memoi_exchange_pieces memoi_exchange_read_node(const memo_exchange* view, int32_t owner) {
    const int32_t most = memoi_exchange_most(&view->shape);
    memoi_exchange_pieces p = MEMO_ZERO(memoi_exchange_pieces);
    for (int32_t part = 0; part < view->shape.n_parts; part++)
        for (int32_t reader = 0; reader < view->shape.sharding.ring; reader++) {
            const memoi_exchange_pieces read = memoi_exchange_read(view, part, owner, reader);
            memoi_exchange_unite(&p, &read, most);
        }
    memoi_exchange_close_gaps(&p, most);
    return p;
}

/* Keys of the ring are now the rows that cross to it, one after another. */
MEMOI void memoi_exchange_hold(memo_exchange* ring, memoi_exchange_pieces* own) {
    memoi_shape_tokens *tokens = &ring->tokens[1], all = *tokens;
    const int32_t n = ring->shape.sharding.ring;
    const int64_t max_runs = all.max_runs + MEMOI_PIECES_MAX;
    memo_run* runs = MEMOB_ARRAY(&ring->arrays, memo_run, n * max_runs);
    int32_t* n_runs = MEMOB_ARRAY(&ring->arrays, int32_t, n);
    for (int32_t owner = 0; owner < n && !ring->arrays.failed; owner++) {
        const memoi_exchange_pieces p = memoi_exchange_read_node(ring, owner);
        n_runs[owner] = memoi_exchange_runs_of(&p, all.runs + owner * all.max_runs,
                                               all.n_runs[owner], runs + owner * max_runs);
        if (owner == ring->shape.ring_rank) *own = p;
    }
    tokens->runs = runs;
    tokens->n_runs = n_runs;
    tokens->max_runs = max_runs;
    ring->most_runs += MEMOI_PIECES_MAX;
    ring->is_held = 1;
}

MEMOI void memoi_exchange_make_nodes(memo_exchange* plan) {
    const int32_t n = plan->shape.n_nodes, me = plan->shape.ring_rank;
    const int32_t node = me / (plan->n_lookers / n), place = me % (plan->n_lookers / n);
    memo_exchange* rings = MEMOB_ARRAY(&plan->arrays, memo_exchange, n);
    plan->crossing = MEMOB_ARRAY(&plan->arrays, memoi_exchange_pieces, 2 * (int64_t)n);
    for (int32_t d = 0; d < n && !plan->arrays.failed; d++) {
        memo_exchange* ring = &rings[d];
        if (d) {
            memoi_exchange_view(plan, (node + d) % n, node, ring);
            plan->crossing[d] = memoi_exchange_read_node(ring, place);
        }
        memoi_exchange_view(plan, node, (node - d + n) % n, ring);
        if (d) memoi_exchange_hold(ring, &plan->crossing[n + d]);
        if (!ring->arrays.failed) memoi_exchange_make(ring);
        plan->arrays.failed |= ring->arrays.failed;
    }
    plan->of_nodes = rings;
}
