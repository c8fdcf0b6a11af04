#pragma once
#include "sp/shardings.h"
#include "sp/attention/launches.h"
#include "sp/attention/messages.h"
/* ---- >>exchange plans ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, the masks, and the list of messages.  Knows nothing of
 * tensors, heads or streams.
 *
 * 1. Pieces have as many runs as their rank at most, and one more each.
 * 2. A plan has the rows that all ranks planned with. */

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

/* One group of messages of this rank: brings the keys of step k, sends keys to a reader, returns
 * what step `given` contributed to gradients, takes what a giver contributed.  0, or rank -1:
 * none. */
typedef struct memoi_exchange_turn {
    int32_t k, given;
    int32_t reader, giver;
    int32_t number; /* the same on all ranks that take part */
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
    int32_t* owners;            /* (last_step + 1): step s reads the keys of owners[s] */
    int64_t* n_rows;            /* (2, ring) of all sequences, by rank: sent to it; received */
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
    memoi_exchange_pieces* pieces; /* (2, ring, n_parts) by rank: that this rank sends, gets */
    /* Positions that runs of this rank's queries see: of mask m from first_sight[m]. */
    memoi_exchange_sight* sights;
    int64_t* first_sight; /* (n_parts * n_levels + 1) */
    memoi_pairs pairs;    /* while the plan is made */
    memo_run*
        piece_runs; /* (last_step + 1, n_parts, most runs): positions of the rows that arrive */
    /* A ring over nodes has plans of rings within this rank's node.  Number d is for keys of the
     * node d before, held by the rank at the owner's place.  This plan has no steps then. */
    struct memo_exchange* of_nodes;  /* (n_nodes); NULL: one node */
    memoi_exchange_pieces* crossing; /* (2, n_nodes): own rows that go d nodes on; rows held here */
    int32_t is_held;                 /* step 0 reads rows of another node */
    int32_t first_number;            /* of its exchanges, which count through rings of a node */
    int32_t has_own_work;            /* step 0 computes, or what a split leaves of it */
};

MEMOI const memoi_exchange_step* memoi_exchange_step_of(const memo_exchange* plan, int32_t s,
                                                        int32_t mask) {
    return &plan->steps[(int64_t)s * plan->shape.n_parts * plan->n_levels + mask];
}
/* The rows of all sequences that a rank is sent, or sends. */
MEMOI int64_t* memoi_exchange_rows_of(const memo_exchange* plan, int is_receive, int32_t rank) {
    return &plan->n_rows[is_receive * plan->shape.sharding.ring + rank];
}
MEMOI memoi_exchange_pieces* memoi_exchange_pieces_of(const memo_exchange* plan, int is_receive,
                                                      int32_t rank, int32_t part) {
    const int64_t rd = plan->shape.sharding.ring;
    return &plan->pieces[(is_receive * rd + rank) * plan->shape.n_parts + part];
}

MEMOI const memoi_exchange_pieces* memoi_exchange_crossing_of(const memo_exchange* plan,
                                                              int is_receive, int32_t d) {
    return &plan->crossing[is_receive * plan->shape.n_nodes + d];
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

/* --- what each rank reads --- */

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

/* Step 0 has all queries of level 0, unless its keys are of another node.  All levels of a part
 * have the keys that any of them reads. */
MEMOI void memoi_exchange_make_step(memo_exchange* plan, int32_t s, int32_t mask) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, owner = plan->owners[s], part = mask / plan->n_levels;
    const int is_first = mask % plan->n_levels == 0;
    const int has_all = !s && is_first && !plan->is_held;
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
    plan->splits_own = plan->has_own_work && !plan->is_held && plan->shape.sharding.ring > 1;
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

/* --- the plan of a rank --- */

/* What each rank reads of each, and with which pieces this rank takes part.  Sets rows_of and
 * work_of: (ring, ring) of a reader with keys of an owner. */
MEMOI void memoi_exchange_read(memo_exchange* plan, int64_t* rows_of, int64_t* work_of) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, rd = shape->sharding.ring;
    const int64_t each = shape->n_batch / shape->n_parts;
    memoi_pairs* pairs = &plan->pairs;
    for (int32_t part = 0; part < shape->n_parts; part++)
        for (int32_t reader = 0; reader < rd; reader++) {
            memoi_pairs_ask(pairs, part, reader);
            for (int32_t owner = 0; owner < rd; owner++) {
                const int64_t at = (int64_t)reader * rd + owner;
                const memoi_exchange_pieces* p = &pairs->pieces[owner];
                work_of[at] += each * pairs->work[owner];
                if (owner == reader) continue;
                rows_of[at] += each * p->n_rows;
                for (int i = 0; i < 2; i++) { /* sent; got */
                    if ((i ? reader : owner) != me) continue;
                    *memoi_exchange_pieces_of(plan, i, i ? owner : reader, part) = *p;
                    *memoi_exchange_rows_of(plan, i, i ? owner : reader) += each * p->n_rows;
                }
            }
        }
}

/* The turns of this rank, of those of all. */
MEMOI void memoi_exchange_take_turns(memo_exchange* plan, const memoi_messages* m) {
    const int32_t me = plan->shape.ring_rank;
    for (int pass = 0; pass < 2 && !plan->arrays.failed; pass++) {
        memoi_exchange_turn* turn =
            MEMOB_ARRAY(&plan->arrays, memoi_exchange_turn, 4 * (int64_t)m->n_ranks + 1);
        plan->turns[pass] = turn;
        for (int32_t i = 0; i < memoi_messages_count(m) * (1 + pass) && turn; i++) {
            const memoi_messages_event* event = &m->events[pass][i];
            const memoi_ring_message* x = &m->list[event->message];
            if (x->reader != me && x->owner != me) continue;
            if (!plan->n_turns[pass] || turn->number != event->turn) {
                turn = &plan->turns[pass][plan->n_turns[pass]++];
                turn->reader = turn->giver = -1;
                turn->number = event->turn;
            }
            if (x->reader == me) *(event->is_given ? &turn->given : &turn->k) = x->step;
            if (x->owner == me) *(event->is_given ? &turn->giver : &turn->reader) = x->reader;
        }
    }
}

MEMOI void memoi_exchange_make_rooms(memo_exchange* plan, memob_arrays* scratch) {
    const int32_t n = plan->last_step + 1;
    int64_t most = 0, *sizes = MEMOB_ARRAY(scratch, int64_t, (int64_t)n + 1);
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * (int64_t)n + 5);
    if (scratch->failed) return;
    for (int32_t s = 1; s < n; s++) sizes[s] = *memoi_exchange_rows_of(plan, 1, plan->owners[s]);
    for (int32_t r = 0; r < plan->shape.sharding.ring; r++)
        most = memob_max(most, *memoi_exchange_rows_of(plan, 0, r));
    plan->has_others = most > 0;
    plan->taken_row = memoi_messages_lay(&plan->shape, &pool, sizes, n, most, plan->rooms);
}

/* What passes need, once the tokens and the masks are there.  All ranks must find the same list of
 * messages, so each finds what all ranks read. */
MEMOI void memoi_exchange_make(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, n_masks = shape->n_parts * plan->n_levels;
    const int64_t rd = shape->sharding.ring;
    memob_arrays *arrays = &plan->arrays, scratch = MEMO_ZERO(memob_arrays);
    memoi_messages m = MEMO_ZERO(memoi_messages);
    int64_t* rows_of = MEMOB_ARRAY(&scratch, int64_t, rd * rd);
    int64_t* work_of = MEMOB_ARRAY(&scratch, int64_t, rd * rd);
    int32_t s, n;
    plan->first_unset = shape->sharding.ring_tokens;
    plan->n_rows = MEMOB_ARRAY(arrays, int64_t, 2 * rd);
    plan->pieces = MEMOB_ARRAY(arrays, memoi_exchange_pieces, 2 * rd * shape->n_parts);
    memoi_pairs_take_keys(&plan->pairs, memoi_shape_tokens_of(shape, 1), &scratch);
    arrays->failed |= scratch.failed;
    if (!arrays->failed) {
        memoi_exchange_read(plan, rows_of, work_of);
        m.shape = shape;
        m.n_ranks = (int32_t)rd;
        m.rows_of = rows_of;
        m.work_of = work_of;
        memoi_messages_make(&m, &scratch);
    }
    arrays->failed |= scratch.failed;

    /* This rank's part. */
    n = arrays->failed ? 1 : 1 + memoi_messages_steps(&m, me);
    plan->last_step = n - 1;
    plan->owners = MEMOB_ARRAY(arrays, int32_t, n);
    plan->steps = MEMOB_ARRAY(arrays, memoi_exchange_step, ((int64_t)n + 2) * n_masks);
    plan->rooms = MEMOB_ARRAY(arrays, memoi_exchange_room, MEMOI_N_POOLS * ((int64_t)n + 1));
    plan->piece_runs = MEMOB_ARRAY(
        arrays, memo_run, (int64_t)n * shape->n_parts * (plan->most_runs + MEMOI_PIECES_MAX));
    if (!arrays->failed) {
        plan->owners[0] = me;
        for (s = 1; s < n; s++) plan->owners[s] = memoi_messages_of(&m, me, s)->owner;
        memoi_exchange_take_turns(plan, &m);
    }
    for (int32_t mask = 0; mask < n_masks && !arrays->failed; mask++)
        for (s = 0; s < n && !arrays->failed; s++) memoi_exchange_make_step(plan, s, mask);
    if (!arrays->failed) memoi_exchange_split_own(plan);
    if (!arrays->failed) memoi_exchange_make_rooms(plan, &scratch);
    arrays->failed |= scratch.failed;
    memob_arrays_free(&scratch);
}

/* --- rings over nodes --- */

/* The plan of a ring within a node, for the keys of the ranks of a node. */
MEMOI void memoi_exchange_view(const memo_exchange* plan, int32_t readers, int32_t owners,
                               memo_exchange* view) {
    const int32_t n = plan->shape.sharding.ring / plan->shape.n_nodes;
    *view = *plan;
    view->arrays = MEMO_ZERO(memob_arrays);
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
    view->pairs.n_ranks = n;
    view->pairs.queries = &view->tokens[0];
}

/* What all readers of a node read of owners' keys, in any sequence of the batch. */
MEMOI void memoi_exchange_read_node(memo_exchange* view, memoi_exchange_pieces* read) {
    memoi_pairs* pairs = &view->pairs;
    memob_arrays scratch = MEMO_ZERO(memob_arrays);
    const int32_t n = view->shape.sharding.ring;
    memoi_pairs_take_keys(pairs, &view->tokens[1], &scratch);
    view->arrays.failed |= scratch.failed;
    for (int32_t i = 0; i < view->shape.n_parts * n && !view->arrays.failed; i++) {
        memoi_pairs_ask(pairs, i / n, i % n);
        for (int32_t owner = 0; owner < n; owner++)
            memoi_exchange_unite(&read[owner], &pairs->pieces[owner], pairs->most);
    }
    for (int32_t owner = 0; owner < n; owner++)
        memoi_exchange_close_gaps(&read[owner], pairs->most);
    memob_arrays_free(&scratch);
}

/* Keys of the ring are now the rows that cross to it, one after another.  read: of its owners. */
MEMOI void memoi_exchange_hold(memo_exchange* ring, const memoi_exchange_pieces* read) {
    memoi_shape_tokens *tokens = &ring->tokens[1], all = *tokens;
    const int32_t n = ring->shape.sharding.ring;
    const int64_t max_runs = all.max_runs + MEMOI_PIECES_MAX;
    memo_run* runs = MEMOB_ARRAY(&ring->arrays, memo_run, n * max_runs);
    int32_t* n_runs = MEMOB_ARRAY(&ring->arrays, int32_t, n);
    for (int32_t owner = 0; owner < n && !ring->arrays.failed; owner++)
        n_runs[owner] = memoi_exchange_runs_of(&read[owner], all.runs + owner * all.max_runs,
                                               all.n_runs[owner], runs + owner * max_runs);
    tokens->runs = runs;
    tokens->n_runs = n_runs;
    tokens->max_runs = max_runs;
    ring->most_runs += MEMOI_PIECES_MAX;
    ring->is_held = 1;
}

MEMOI void memoi_exchange_make_nodes(memo_exchange* plan) {
    const int32_t n_nodes = plan->shape.n_nodes, n = plan->shape.sharding.ring / n_nodes;
    const int32_t node = plan->shape.ring_rank / n, place = plan->shape.ring_rank % n;
    memob_arrays scratch = MEMO_ZERO(memob_arrays);
    memo_exchange* rings = MEMOB_ARRAY(&plan->arrays, memo_exchange, n_nodes);
    memoi_exchange_pieces* read =
        MEMOB_ARRAY(&scratch, memoi_exchange_pieces, 2 * (int64_t)n); /* here; of own keys */
    plan->crossing = MEMOB_ARRAY(&plan->arrays, memoi_exchange_pieces, 2 * (int64_t)n_nodes);
    plan->arrays.failed |= scratch.failed;

    for (int32_t d = 0; d < n_nodes && !plan->arrays.failed; d++) {
        memo_exchange* ring = &rings[d];
        memset(read, 0, 2 * (size_t)n * sizeof *read);
        if (d) {
            memoi_exchange_view(plan, (node + d) % n_nodes, node, ring);
            memoi_exchange_read_node(ring, read + n);
            plan->arrays.failed |= ring->arrays.failed;
            plan->crossing[d] = read[n + place];
        }
        memoi_exchange_view(plan, node, (node - d + n_nodes) % n_nodes, ring);
        ring->first_number = 2 * d * n * n;
        if (d) {
            memoi_exchange_read_node(ring, read);
            plan->crossing[n_nodes + d] = read[place];
            if (!ring->arrays.failed) memoi_exchange_hold(ring, read);
        }
        if (!ring->arrays.failed) memoi_exchange_make(ring);
        plan->arrays.failed |= ring->arrays.failed;
    }
    plan->of_nodes = rings;
    memob_arrays_free(&scratch);
}

/* The plan of this rank, for the tokens and the masks that it has. */
MEMOI void memoi_exchange_make_all(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const memoi_shape_tokens* queries = memoi_shape_tokens_of(shape, 0);
    memob_arrays scratch = MEMO_ZERO(memob_arrays);
    memoi_pairs* pairs = &plan->pairs;
    pairs->seen = plan->seen;
    pairs->first_seen = plan->first_seen;
    pairs->n_levels = plan->n_levels;
    pairs->n_ranks = shape->sharding.ring;
    pairs->most = memoi_pairs_most(shape);
    pairs->queries = queries;
    memoi_pairs_take_masks(pairs, shape->n_parts, queries->max_runs,
                           memob_max(shape->sharding.n_tokens, shape->key_sharding.n_tokens),
                           &scratch);
    plan->arrays.failed |= scratch.failed;
    if (!plan->arrays.failed)
        (shape->n_nodes > 1 ? memoi_exchange_make_nodes : memoi_exchange_make)(plan);
    memob_arrays_free(&scratch);
}
