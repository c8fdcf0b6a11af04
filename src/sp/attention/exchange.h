#pragma once
#include "sp/shardings.h"
#include "sp/attention/launches.h"
#include "sp/attention/clock.h"
#include "sp/attention/pairs.h"
/* ---- >>exchange plans ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, the masks, and the list of messages.  Knows nothing of
 * tensors, heads or streams.
 *
 * 1. Pieces have as many runs as their rank at most, and one more each.
 * 2. What a reader reads of held rows is among these.
 * 3. A number of held rows is one that this rank holds. */

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

/* Rows of another node's rank that this rank holds for its own node, and where they lie in the
 * pools of held rows. */
typedef struct memoi_exchange_held {
    int32_t owner;
    int32_t own_step; /* this rank's that reads them; 0: none */
    int64_t n_rows, row;
} memoi_exchange_held;

/* One group of messages of this rank.  Within the node it brings the keys of step k, sends keys to
 * a reader, returns what step `given` contributed to gradients, takes what a giver contributed;
 * keys are own, or held as number read_of, and so are gradients.  Between nodes k and `given` are
 * numbers of held rows, which come and whose sum returns; reader and giver are nodes.  0, or
 * rank -1: none. */
typedef struct memoi_exchange_turn {
    int32_t k, given;
    int32_t reader, giver, read_of, given_of;
    int32_t number; /* ascends, and is the same on all ranks that take part */
    int32_t gate;   /* the step before which it may not begin; 0: the start */
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
    int32_t* owners;            /* (last_step + 1): step s reads the keys of owners[s] */
    int32_t* held_of;           /* (last_step + 1): held here as this number; 0: they are not */
    int64_t* n_rows;            /* (2, ring) of all sequences, by rank: sent to it; read of it */
    memoi_exchange_step* steps; /* (last_step + 1, n_parts, n_levels), and behind these: */
    int32_t splits_own;         /* two steps more: a backward does step 0 in two */
    /* (MEMOI_N_POOLS, last_step + 2) by steps; behind the last step the contribution to the own
     * keys, if others contribute, too (has_others). */
    memoi_exchange_room* rooms;
    int32_t has_others;
    int64_t taken_row; /* where contributions arrive */
    /* (2): of forward, of backward, in the order in which they are enqueued. */
    memoi_exchange_turn* turns[2];
    int32_t n_turns[2];
    /* (3, ring, n_parts) by rank: rows that this rank sends from its own, reads, gets. */
    memoi_exchange_pieces* pieces;
    /* Positions that runs of this rank's queries see: of mask m from first_sight[m]. */
    memoi_exchange_sight* sights;
    int64_t* first_sight; /* (n_parts * n_levels + 1) */
    memoi_pairs pairs;    /* while the plan is made */
    memo_run*
        piece_runs; /* (last_step + 1, n_parts, most runs): positions of the rows that arrive */
    /* Over nodes: own rows that cross (n_nodes, n_parts), and how many; all rows of others that
     * this node reads (ring, n_parts); of those held here what readers read, as they lie (n_nodes
     * of owners, places of readers, n_parts). */
    memoi_exchange_pieces *crossing, *whole, *read;
    int64_t* crossing_rows;    /* (n_nodes) */
    int32_t crosses;           /* to any node */
    memoi_exchange_held* held; /* (n_held), in the order in which they come */
    int32_t n_held;
    int32_t has_own_work; /* step 0 computes, or what a split leaves of it */
};

MEMOI const memoi_exchange_step* memoi_exchange_step_of(const memo_exchange* plan, int32_t s,
                                                        int32_t mask) {
    return &plan->steps[(int64_t)s * plan->shape.n_parts * plan->n_levels + mask];
}
/* The rows of all sequences that a rank is sent, or sends. */
MEMOI int64_t* memoi_exchange_rows_of(const memo_exchange* plan, int is_receive, int32_t rank) {
    return &plan->n_rows[is_receive * plan->shape.sharding.ring + rank];
}
enum { MEMOI_PIECES_SENT = 0, MEMOI_PIECES_READ, MEMOI_PIECES_GOT };
MEMOI memoi_exchange_pieces* memoi_exchange_pieces_of(const memo_exchange* plan, int which,
                                                      int32_t rank, int32_t part) {
    const int64_t rd = plan->shape.sharding.ring;
    return &plan->pieces[(which * rd + rank) * plan->shape.n_parts + part];
}

/* Ranks of a node. */
MEMOI int32_t memoi_exchange_places(const memo_exchange* plan) {
    return plan->shape.sharding.ring / plan->shape.n_nodes;
}
MEMOI const memoi_exchange_held* memoi_exchange_held_of(const memo_exchange* plan, int32_t number) {
    MEMO_ASSERT(number > 0 && number <= plan->n_held); /* 3 */
    return &plan->held[number - 1];
}
/* All rows of a number, of the owner's; what a reader reads of them, as they lie. */
MEMOI const memoi_exchange_pieces* memoi_exchange_whole_of(const memo_exchange* plan,
                                                           int32_t number) {
    return &plan->whole[memoi_exchange_held_of(plan, number)->owner * plan->shape.n_parts];
}
MEMOI memoi_exchange_pieces* memoi_exchange_read_of(const memo_exchange* plan, int32_t owner,
                                                    int32_t reader) {
    const int32_t per = memoi_exchange_places(plan);
    return &plan->read[(owner / per * per + reader % per) * plan->shape.n_parts];
}

MEMOI const memoi_exchange_room* memoi_exchange_room_of(const memo_exchange* plan, int pool,
                                                        int32_t s) {
    return &plan->rooms[pool * ((int64_t)plan->last_step + 2) + s];
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
            MEMO_ASSERT(n_made <= n + p->n); /* 1 */
            for (; k < n && row + runs[k].count <= at; k++) row += runs[k].count;
            *run = runs[k];
            run->start += at - row;
            run->count = memob_min(row + runs[k].count, p->rows[i].end) - at;
            at += run->count;
        }
    }
    return n_made;
}

/* --- what this rank sees --- */

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

/* Finds what the queries of this rank see. */
MEMOI void memoi_exchange_look(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t n_masks = shape->n_parts * plan->n_levels;
    int32_t n_runs;
    const memo_run* runs = memoi_shape_runs(shape, 0, shape->ring_rank, &n_runs);
    plan->first_sight = MEMOB_ARRAY(&plan->arrays, int64_t, (int64_t)n_masks + 1);
    for (int is_filled = 0; is_filled < 2 && !plan->arrays.failed; is_filled++) {
        int64_t n = 0;
        for (int32_t mask = 0; mask < n_masks; mask++) {
            plan->first_sight[mask] = n;
            for (int32_t k = 0; k < n_runs; k++)
                n += memoi_exchange_look_at(plan, mask, &runs[k], k,
                                            is_filled ? plan->sights + n : NULL);
        }
        plan->first_sight[n_masks] = n;
        if (!is_filled) plan->sights = MEMOB_ARRAY(&plan->arrays, memoi_exchange_sight, n + 1);
    }
}

/* The runs [*begin, *end) of this rank's queries that see keys of an owner under a mask, from the
 * first such run to the last.  Runs of queries ascend, and so do the ends of what queries see. */
MEMOI void memoi_exchange_find_readers(const memo_exchange* plan, int32_t mask,
                                       const memo_run* keys, int32_t n_keys, int32_t* begin,
                                       int32_t* end) {
    int32_t k = 0;
    *begin = *end = 0;
    for (int64_t s = plan->first_sight[mask]; s < plan->first_sight[mask + 1]; s++) {
        const memoi_exchange_sight* sight = &plan->sights[s];
        while (k < n_keys && keys[k].start + keys[k].count <= sight->begin) k++;
        if (k == n_keys || keys[k].start >= sight->end) continue;
        if (!*end) *begin = sight->run;
        *end = sight->run + 1;
    }
}

/* Step 0 has all queries of level 0.  All levels of a part have the keys that any of them reads. */
MEMOI void memoi_exchange_make_step(memo_exchange* plan, int32_t s, int32_t mask) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, owner = plan->owners[s], part = mask / plan->n_levels;
    const int is_first = mask % plan->n_levels == 0;
    const int has_all = !s && is_first;
    memoi_exchange_step* r = &plan->steps[((int64_t)s * shape->n_parts) * plan->n_levels + mask];
    r->q_runs = memoi_shape_runs(shape, 0, me, &r->n_q_runs);
    r->k_runs = memoi_shape_runs(shape, 1, owner, &r->n_k_runs);
    if (s) { /* pieces arrive one after another */
        memo_run* runs = plan->piece_runs + ((int64_t)s * shape->n_parts + part) *
                                                (plan->most_runs + MEMOI_PIECES_MAX);
        r->n_k_runs = memoi_exchange_runs_of(memoi_exchange_pieces_of(plan, 1, owner, part),
                                             r->k_runs, r->n_k_runs, runs);
        r->k_runs = runs;
    }
    if (!has_all) {
        int32_t begin, end;
        memoi_exchange_find_readers(plan, mask, r->k_runs, r->n_k_runs, &begin, &end);
        r->q_row = memoi_exchange_runs_rows(r->q_runs, begin);
        r->q_runs += begin;
        r->n_q_runs = end - begin;
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

/* --- own keys in two steps --- */

/* Twice the pairs of the first n queries of a segment. */
MEMOI int64_t memoi_exchange_pairs_of(const memo_segment* s, int64_t n) {
    int64_t first, last, begin, end, of_first;
    if (!n) return 0;
    memo_segment_keys(s, s->q_begin, &begin, &end);
    of_first = end - begin;
    memo_segment_keys(s, s->q_begin + n - 1, &first, &last);
    return n * (of_first + last - first);
}

/* Rows of queries that do the first part of a step's work; where a segment ends if one ends near.
 * A single segment stays whole: it is one call, for which a library may have a shape prepared. */
MEMOI int64_t memoi_exchange_first_rows(const memo_segment* list, int32_t n, int64_t n_rows) {
    int64_t all = 0, so_far = 0, wanted, low = 0, high;
    int32_t i = 0;
    for (int32_t k = 0; k < n; k++)
        all += memoi_exchange_pairs_of(&list[k], list[k].q_end - list[k].q_begin);
    wanted = all / MEMOI_OWN_FIRST_PART;
    for (; i < n; i++) {
        const int64_t more = memoi_exchange_pairs_of(&list[i], list[i].q_end - list[i].q_begin);
        if (so_far + more >= wanted) break;
        so_far += more;
    }
    if (n == 1) return 0; /* one call is not cut */
    if (i == n) return n_rows;
    if (wanted - so_far <= all / 16) return list[i].q_begin;

    high = list[i].q_end - list[i].q_begin;
    if (so_far + memoi_exchange_pairs_of(&list[i], high) - wanted <= all / 16) return list[i].q_end;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (so_far + memoi_exchange_pairs_of(&list[i], middle) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return list[i].q_begin + low;
}

/* Rows [begin, end) of the queries of a step; whole: the runs of the step. */
MEMOI void memoi_exchange_cut_step(memo_exchange* plan, int32_t mask,
                                   const memoi_exchange_step* whole, int64_t begin, int64_t end,
                                   memoi_exchange_step* r) {
    memo_run* runs = MEMOB_ARRAY(&plan->arrays, memo_run, whole->n_q_runs + 1);
    int64_t row = 0;
    *r = *whole;
    r->seen = MEMO_ZERO(memoi_block_segments);
    r->q_runs = runs;
    r->q_row += begin;
    r->n_q_runs = 0;
    for (int32_t k = 0; k < whole->n_q_runs && runs; row += whole->q_runs[k++].count) {
        const int64_t from = memob_max(begin - row, 0);
        const int64_t n = memob_min(end - row, whole->q_runs[k].count) - from;
        if (n <= 0) continue;
        runs[r->n_q_runs].start = whole->q_runs[k].start + from;
        runs[r->n_q_runs++].count = n;
    }
    r->n_q_rows = end - begin;
    if (!runs || begin == end) return;
    memoi_block_segments_make(
        plan->seen + plan->first_seen[mask], plan->first_seen[mask + 1] - plan->first_seen[mask],
        r->q_runs, r->n_q_runs, r->k_runs, r->n_k_runs, plan->launches, &plan->arrays, &r->seen);
}

/* A backward computes a part of step 0 before the first keys arrive, and the rest last. */
MEMOI void memoi_exchange_split_own(memo_exchange* plan) {
    const int32_t n_masks = plan->shape.n_parts * plan->n_levels;
    plan->splits_own = plan->has_own_work && plan->shape.sharding.ring > 1;
    if (!plan->splits_own) return;
    plan->has_own_work = 0;
    for (int32_t mask = 0; mask < n_masks && !plan->arrays.failed; mask++) {
        memoi_exchange_step* parts = plan->steps + (plan->last_step + 1) * (int64_t)n_masks + mask;
        const memoi_exchange_step* whole = &plan->steps[mask];
        const int64_t n = memoi_exchange_first_rows(whole->seen.segments.host,
                                                    whole->seen.segments.n, whole->n_q_rows);
        memoi_exchange_cut_step(plan, mask, whole, 0, n, parts);
        memoi_exchange_cut_step(plan, mask, whole, n, whole->n_q_rows, parts + n_masks);
        plan->has_own_work |= parts[n_masks].seen.segments.n;
    }
}

/* --- what each rank reads --- */

/* This rank sends rows of a reader's, or gets them. */
MEMOI void memoi_exchange_keep(memo_exchange* plan, int32_t part, int32_t reader, int32_t owner,
                               const memoi_exchange_pieces* p) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, per = memoi_exchange_places(plan);
    const int64_t n_rows = shape->n_batch / shape->n_parts * p->n_rows;
    const int is_near = reader / per == owner / per;
    if (reader == me) {
        *memoi_exchange_pieces_of(plan, MEMOI_PIECES_READ, owner, part) = *p;
        *memoi_exchange_rows_of(plan, 1, owner) += n_rows;
    }
    if (owner == me && is_near) {
        *memoi_exchange_pieces_of(plan, MEMOI_PIECES_SENT, reader, part) = *p;
        *memoi_exchange_rows_of(plan, 0, reader) += n_rows;
    }
    if (!is_near && reader / per == me / per && owner % per == me % per)
        memoi_exchange_read_of(plan, owner, reader)[part] = *p;
}

/* What all readers of a node read of others' keys. */
MEMOI void memoi_exchange_cross(memo_exchange* plan, int32_t part, int32_t node,
                                memoi_exchange_pieces* read, int64_t* crossing_rows) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, per = memoi_exchange_places(plan);
    for (int32_t owner = 0; owner < shape->sharding.ring; owner++) {
        memoi_exchange_pieces* p = &read[owner];
        if (!p->n) continue;
        memoi_exchange_close_gaps(p, plan->pairs.most);
        crossing_rows[owner * shape->n_nodes + node] += shape->n_batch / shape->n_parts * p->n_rows;
        if (owner == me) plan->crossing[node * shape->n_parts + part] = *p;
        if (node == me / per) plan->whole[owner * shape->n_parts + part] = *p;
        p->n = 0;
        p->n_rows = p->narrowest = 0;
    }
}

/* What each rank reads of each, and with which pieces this rank takes part.  Sets rows_of and
 * work_of: (ring, ring) of a reader with keys of an owner; and crossing_rows: (ring, n_nodes). */
MEMOI void memoi_exchange_read(memo_exchange* plan, int64_t* rows_of, int64_t* work_of,
                               int64_t* crossing_rows, memob_arrays* scratch) {
    const memoi_shape* shape = &plan->shape;
    const int32_t rd = shape->sharding.ring, per = memoi_exchange_places(plan);
    const int64_t each = shape->n_batch / shape->n_parts;
    memoi_exchange_pieces* read = MEMOB_ARRAY(scratch, memoi_exchange_pieces, rd);
    memoi_pairs* pairs = &plan->pairs;
    for (int32_t i = 0; i < shape->n_parts * rd && !scratch->failed; i++) {
        const int32_t part = i / rd, reader = i % rd;
        memoi_pairs_ask(pairs, part, reader);
        for (int32_t owner = 0; owner < rd; owner++) {
            const memoi_exchange_pieces* p = &pairs->pieces[owner];
            work_of[(int64_t)reader * rd + owner] += each * pairs->work[owner];
            if (owner == reader || !p->n) continue;
            rows_of[(int64_t)reader * rd + owner] += each * p->n_rows;
            memoi_exchange_keep(plan, part, reader, owner, p);
            if (owner / per != reader / per) memoi_exchange_unite(&read[owner], p, pairs->most);
        }
        if (reader % per == per - 1)
            memoi_exchange_cross(plan, part, reader / per, read, crossing_rows);
    }
}

/* Pieces of rows as these lie where rows of `whole` lie one after another. */
MEMOI void memoi_exchange_place(const memoi_exchange_pieces* whole, int32_t most,
                                const memoi_exchange_pieces* p, memoi_exchange_pieces* placed) {
    int64_t row = 0;
    placed->n = 0;
    placed->n_rows = placed->narrowest = 0;
    for (int32_t i = 0, k = 0; i < p->n; i++) {
        int64_t begin;
        for (; whole->rows[k].end <= p->rows[i].begin; k++)
            row += whole->rows[k].end - whole->rows[k].begin;
        MEMO_ASSERT(whole->rows[k].begin <= p->rows[i].begin &&
                    p->rows[i].end <= whole->rows[k].end); /* 2 */
        begin = row + p->rows[i].begin - whole->rows[k].begin;
        memoi_exchange_add_rows(placed, most, begin, begin + p->rows[i].end - p->rows[i].begin);
    }
}

/* What comes from held rows lies as they do.  Who holds rows computes with all of them. */
MEMOI void memoi_exchange_place_all(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, per = memoi_exchange_places(plan);
    const int32_t n_parts = shape->n_parts, most = plan->pairs.most;
    for (int32_t i = 0; i < shape->sharding.ring * n_parts; i++) {
        const int32_t owner = i / n_parts, part = i % n_parts;
        memoi_exchange_pieces* p = memoi_exchange_pieces_of(plan, MEMOI_PIECES_READ, owner, part);
        const memoi_exchange_pieces* whole = &plan->whole[i];
        if (owner / per == me / per) continue;
        for (int32_t r = 0; r < per && owner % per == me % per; r++) {
            memoi_exchange_pieces* read = memoi_exchange_read_of(plan, owner, r) + part;
            const memoi_exchange_pieces of_owner = *read;
            memoi_exchange_place(whole, most, &of_owner, read);
        }
        memoi_exchange_place(whole, most, p,
                             memoi_exchange_pieces_of(plan, MEMOI_PIECES_GOT, owner, part));
        if (owner % per != me % per || !*memoi_exchange_rows_of(plan, 1, owner)) continue;
        *memoi_exchange_rows_of(plan, 1, owner) +=
            shape->n_batch / n_parts * (whole->n_rows - p->n_rows);
        *p = *whole;
        memoi_exchange_place(whole, most, whole, memoi_exchange_read_of(plan, owner, me) + part);
    }
}

/* --- the part of this rank --- */

/* The step behind which rows may come to the place of others. */
MEMOI int32_t memoi_exchange_held_gate(const memo_exchange* plan, int32_t number) {
    const memoi_exchange_held* held = memoi_exchange_held_of(plan, number);
    int32_t gate = 0;
    for (const memoi_exchange_held* x = plan->held; x < held; x++)
        if (x->row < held->row + held->n_rows && held->row < x->row + x->n_rows)
            gate = (int32_t)memob_max(gate, x->own_step);
    return gate;
}

MEMOI void memoi_exchange_take_near(const memoi_messages* m, const memoi_ring_message* x,
                                    int is_given, int32_t me, memoi_exchange_turn* turn) {
    const int32_t of = x->crossing < 0 ? 0 : m->crossings[x->crossing].number;
    if (x->reader == me) {
        const int32_t gate = is_given ? x->step : x->after[MEMOI_POOL_KEYS];
        *(is_given ? &turn->given : &turn->k) = x->step;
        turn->gate = (int32_t)memob_max(turn->gate, gate);
    }
    if (x->source == me) {
        *(is_given ? &turn->giver : &turn->reader) = x->reader;
        *(is_given ? &turn->given_of : &turn->read_of) = of;
    }
}
MEMOI void memoi_exchange_take_far(const memo_exchange* plan, const memoi_ring_crossing* x,
                                   int is_given, memoi_exchange_turn* turn) {
    const int32_t me = plan->shape.ring_rank;
    if (x->holder == me) *(is_given ? &turn->given : &turn->k) = x->number;
    if (x->holder == me && !is_given)
        turn->gate = (int32_t)memob_max(turn->gate, memoi_exchange_held_gate(plan, x->number));
    if (x->owner == me)
        *(is_given ? &turn->giver : &turn->reader) = x->holder / memoi_exchange_places(plan);
}

/* The turns of this rank, of those of all. */
MEMOI void memoi_exchange_take_turns(memo_exchange* plan, const memoi_messages* m) {
    const int32_t me = plan->shape.ring_rank;
    for (int pass = 0; pass < 2 && !plan->arrays.failed; pass++) {
        memoi_exchange_turn* turn = MEMOB_ARRAY(&plan->arrays, memoi_exchange_turn,
                                                4 * ((int64_t)m->n_ranks + m->n_nodes) + 1);
        plan->turns[pass] = turn;
        for (int32_t i = 0; i < m->n_events[pass] && turn; i++) {
            const memoi_messages_event* event = &m->events[pass][i];
            const int is_far = event->turn % MEMOI_N_LINKS == MEMOI_LINK_NODES;
            const memoi_ring_message* x = is_far ? NULL : &m->list[event->index];
            const memoi_ring_crossing* c = is_far ? &m->crossings[event->index] : NULL;
            if (is_far ? c->owner != me && c->holder != me : x->reader != me && x->source != me)
                continue;
            if (!plan->n_turns[pass] || turn->number != event->turn) {
                turn = &plan->turns[pass][plan->n_turns[pass]++];
                turn->reader = turn->giver = -1;
                turn->number = event->turn;
            }
            if (is_far)
                memoi_exchange_take_far(plan, c, event->is_given, turn);
            else
                memoi_exchange_take_near(m, x, event->is_given, me, turn);
        }
    }
}

/* The steps of this rank, and what it holds. */
MEMOI void memoi_exchange_take_steps(memo_exchange* plan, const memoi_messages* m) {
    const int32_t me = plan->shape.ring_rank;
    plan->owners[0] = me;
    for (int32_t k = 0; k < plan->n_held; k++) {
        const memoi_ring_crossing* c = &m->crossings[m->held[m->first_of_holder[me] + k]];
        plan->held[k].owner = c->owner;
        plan->held[k].n_rows = c->n_rows;
        plan->held[k].row = c->row;
    }
    for (int32_t s = 1; s <= plan->last_step; s++) {
        const memoi_ring_message* x = memoi_messages_of(m, me, s);
        plan->owners[s] = x->owner;
        if (!memoi_messages_is_own(x)) continue;
        plan->held_of[s] = m->crossings[x->crossing].number;
        plan->held[plan->held_of[s] - 1].own_step = s;
    }
}

MEMOI void memoi_exchange_make_rooms(memo_exchange* plan, const memoi_messages* m,
                                     memob_arrays* scratch) {
    const int32_t me = plan->shape.ring_rank, n = plan->last_step + 1;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, 2 * ((int64_t)n + 1));
    int64_t* returns = MEMOB_ARRAY(scratch, int64_t, m->n_ranks);
    char* has_others = MEMOB_ARRAY(scratch, char, m->n_ranks);
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * (int64_t)n + 5);
    if (scratch->failed) return;
    memoi_messages_find_returns(m, returns, has_others);
    plan->has_others = has_others[me];
    plan->taken_row = memoi_messages_lay(
        &plan->shape, &pool, sizes, sizes + n + 1, n,
        memoi_messages_sizes(m, me, returns, has_others, sizes, sizes + n + 1), plan->rooms);
}

/* Which ranks' own keys are one segment, which a backward does not cut. */
MEMOI void memoi_exchange_find_whole(const memo_exchange* plan, char* is_whole) {
    const memoi_shape* shape = &plan->shape;
    const int64_t* first = plan->first_seen;
    for (int32_t r = 0; r < shape->sharding.ring; r++) {
        int32_t n_q, n_k;
        const memo_run* q = memoi_shape_runs(shape, 0, r, &n_q);
        const memo_run* k = memoi_shape_runs(shape, 1, r, &n_k);
        is_whole[r] = 1;
        /* Most ranks with several segments have them in their first runs. */
        for (int32_t i = 0; i < 2 * shape->n_parts * plan->n_levels && is_whole[r]; i++) {
            const int64_t at = first[i / 2], n = first[i / 2 + 1] - at;
            const int32_t n_runs = i % 2 ? n_q : (int32_t)memob_min(n_q, 4);
            is_whole[r] = memoi_segments_derive(plan->seen + at, n, q, n_runs, k, n_k, NULL) < 2;
        }
    }
}

/* The list of messages.  All ranks must find the same, so each finds what all ranks read. */
MEMOI void memoi_exchange_make_list(memo_exchange* plan, memoi_messages* m, memob_arrays* scratch) {
    const memoi_shape* shape = &plan->shape;
    const int64_t rd = shape->sharding.ring;
    int64_t* rows_of = MEMOB_ARRAY(scratch, int64_t, rd * rd);
    int64_t* work_of = MEMOB_ARRAY(scratch, int64_t, rd * rd);
    int64_t* crossing_rows = MEMOB_ARRAY(scratch, int64_t, rd * shape->n_nodes);
    char* is_whole = MEMOB_ARRAY(scratch, char, rd);
    memoi_pairs_take_keys(&plan->pairs, memoi_shape_tokens_of(shape, 1), scratch);
    if (!scratch->failed) memoi_exchange_read(plan, rows_of, work_of, crossing_rows, scratch);
    if (scratch->failed) return;
    if (shape->n_nodes > 1) memoi_exchange_place_all(plan);
    memoi_exchange_find_whole(plan, is_whole);
    for (int32_t node = 0; node < shape->n_nodes; node++) {
        plan->crossing_rows[node] = crossing_rows[shape->ring_rank * shape->n_nodes + node];
        plan->crosses |= plan->crossing_rows[node] > 0;
    }
    m->shape = shape;
    m->n_ranks = (int32_t)rd;
    m->n_nodes = shape->n_nodes;
    m->rows_of = rows_of;
    m->work_of = work_of;
    m->crossing_rows = crossing_rows;
    m->is_whole = is_whole;
    memoi_messages_make(m, scratch);
}

/* What passes need, once the tokens and the masks are there. */
MEMOI void memoi_exchange_make(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, n_masks = shape->n_parts * plan->n_levels;
    const int64_t rd = shape->sharding.ring, n_parts = shape->n_parts;
    const int64_t is_over_nodes = shape->n_nodes > 1;
    const memoi_shape_tokens* queries = memoi_shape_tokens_of(shape, 0);
    memob_arrays *arrays = &plan->arrays, scratch = MEMO_ZERO(memob_arrays);
    memoi_messages m = MEMO_ZERO(memoi_messages);
    memoi_pairs* pairs = &plan->pairs;
    int32_t s, n;
    pairs->seen = plan->seen;
    pairs->first_seen = plan->first_seen;
    pairs->n_levels = plan->n_levels;
    pairs->n_ranks = shape->sharding.ring;
    pairs->most = memoi_pairs_most(shape);
    pairs->queries = queries;
    memoi_pairs_take_masks(pairs, shape->n_parts, queries->max_runs,
                           memob_max(shape->sharding.n_tokens, shape->key_sharding.n_tokens),
                           &scratch);
    plan->first_unset = shape->sharding.ring_tokens;
    plan->n_rows = MEMOB_ARRAY(arrays, int64_t, 2 * rd);
    plan->pieces = MEMOB_ARRAY(arrays, memoi_exchange_pieces, (2 + is_over_nodes) * rd * n_parts);
    plan->crossing_rows = MEMOB_ARRAY(arrays, int64_t, shape->n_nodes);
    plan->crossing =
        MEMOB_ARRAY(arrays, memoi_exchange_pieces, is_over_nodes * shape->n_nodes * n_parts);
    plan->whole = MEMOB_ARRAY(arrays, memoi_exchange_pieces, is_over_nodes * rd * n_parts);
    plan->read = MEMOB_ARRAY(arrays, memoi_exchange_pieces, is_over_nodes * rd * n_parts);
    if (!arrays->failed) memoi_exchange_make_list(plan, &m, &scratch);
    arrays->failed |= scratch.failed;

    /* This rank's part. */
    n = arrays->failed ? 1 : 1 + memoi_messages_steps(&m, me);
    plan->last_step = n - 1;
    plan->n_held = arrays->failed ? 0 : m.first_of_holder[me + 1] - m.first_of_holder[me];
    plan->owners = MEMOB_ARRAY(arrays, int32_t, n);
    plan->held_of = MEMOB_ARRAY(arrays, int32_t, n);
    plan->held = MEMOB_ARRAY(arrays, memoi_exchange_held, plan->n_held);
    plan->steps = MEMOB_ARRAY(arrays, memoi_exchange_step, ((int64_t)n + 2) * n_masks);
    plan->rooms = MEMOB_ARRAY(arrays, memoi_exchange_room, 2 * ((int64_t)n + 1));
    plan->piece_runs =
        MEMOB_ARRAY(arrays, memo_run, n * n_parts * (plan->most_runs + MEMOI_PIECES_MAX));
    if (!arrays->failed) {
        memoi_exchange_take_steps(plan, &m);
        memoi_exchange_take_turns(plan, &m);
    }
    for (int32_t mask = 0; mask < n_masks && !arrays->failed; mask++)
        for (s = 0; s < n && !arrays->failed; s++) memoi_exchange_make_step(plan, s, mask);
    if (!arrays->failed) memoi_exchange_split_own(plan);
    if (!arrays->failed) memoi_exchange_make_rooms(plan, &m, &scratch);
    arrays->failed |= scratch.failed;
    memob_arrays_free(&scratch);
}
