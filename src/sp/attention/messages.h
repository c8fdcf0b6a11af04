#pragma once
#include "sp/attention/pairs.h"
/* ---- >>messages ---------------------------------------------------------------------------------
 * Knows: how many rows each rank reads of whom, and what it computes with them.  Knows nothing of
 * positions, heads or streams.
 *
 * The messages of all ranks are one list, in turns.  In a turn a rank sends keys to at most one
 * rank and gets some from at most one, and so with contributions.  A rank takes no part in a turn
 * in which it has no message.  Each rank makes the same list from the same numbers; times are
 * integers.
 *
 * 1. The stretches of a pool ascend without gaps from its first row to its last.
 * 2. Every step finds room: two sets of a rank's rows hold any step beside the one before.
 * 3. A message has a later turn than all that it waits for, so no two ranks wait for each other. */

/* Rows of keys that arrive, and contributions to gradients that leave, lie in pools, where there is
 * room.  Contributions that arrive are added at once, and share a place behind those that leave. */
enum { MEMOI_POOL_KEYS = 0, MEMOI_POOL_GRADIENTS, MEMOI_N_POOLS };

/* Where rows of a step lie in a pool, and the last earlier step whose rows lay there; 0: none. */
typedef struct memoi_exchange_room {
    int64_t row;
    int32_t after;
} memoi_exchange_room;

/* Keys that an owner sends to a reader; the contribution to their gradients comes back. */
typedef struct memoi_ring_message {
    int32_t owner, reader;
    int32_t step;                 /* of the reader, which computes with them */
    int32_t after[MEMOI_N_POOLS]; /* of its steps, the last one whose rows lay in the same room */
    int32_t turns[3];             /* of keys in forward and in backward, of the contribution */
    int64_t n_rows, work;
} memoi_ring_message;

/* What a message does in a pass: its keys travel, or the contribution to their gradients. */
typedef struct memoi_messages_event {
    int32_t turn, message, is_given;
} memoi_messages_event;

/* A backward computes this part of own keys first, while the first keys arrive, and the rest last,
 * while contributions leave. */
enum { MEMOI_OWN_FIRST_PART = 3 };

typedef struct memoi_messages {
    const memoi_shape* shape;
    int32_t n_ranks;
    int64_t n_rows, work;             /* of all ranks; work with own keys, too */
    const int64_t *rows_of, *work_of; /* (n_ranks, n_ranks): of a reader with keys of an owner */
    int64_t row_time;                 /* of a row of keys on a link */
    int64_t given_time;               /* of a row of a contribution */
    int64_t lead;                     /* messages of a turn may differ so much in start */
    /* (first_of_rank[n_ranks]): those of reader r, in the order of its steps, from first_of_rank[r]
     * on. */
    memoi_ring_message* list;
    int32_t* first_of_rank;
    memoi_messages_event* events[2]; /* of forward, of backward, by turns */
} memoi_messages;

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

/* The last step whose rows lie in [begin, end), which meets stretch i. */
MEMOI int32_t memoi_pool_last_step(const memoi_pool* pool, int32_t i, int64_t begin, int64_t end) {
    const memoi_pool_stretch* s = pool->stretches;
    int32_t step = 0;
    while (i > 0 && s[i - 1].end > begin) i--;
    for (; i < pool->n && s[i].begin < end; i++)
        if (s[i].end > begin && s[i].step > step) step = s[i].step;
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
    for (int32_t i = 0; i < pool->n; i++) /* 1 */
        MEMO_ASSERT(s[i].begin < s[i].end && s[i].begin == (i ? s[i - 1].end : 0));
    MEMO_ASSERT(s[pool->n - 1].end == pool->n_rows); /* 1 */
}

/* Do `next` rows lie before [row, row + n) of a pool of n_rows, or behind? */
MEMOI int memoi_pool_has_beside(int64_t n_rows, int64_t row, int64_t n, int64_t next) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    return row >= next || (n_rows - next) / unit * unit >= row + n;
}

/* Takes n rows that no step has had yet, behind those that one had; 0: there are too few. */
MEMOI int memoi_pool_take_new(memoi_pool* pool, int64_t n, int64_t next, int32_t step,
                              memoi_exchange_room* room) {
    memoi_pool_stretch* s = &pool->stretches[pool->n - 1];
    const int64_t row = memob_align_up(s->begin, MEMOI_POOL_ALIGNMENT);
    const int has_room = memoi_pool_has_beside(pool->n_rows, row, n, next);
    const memoi_pool_stretch taken = {row, row + n, step}, rest = {row + n, pool->n_rows, 0};
    if (s->step || row + n > pool->n_rows || !has_room) return 0;
    room->row = row;
    room->after = 0;
    if (s->begin < row) {
        (s++)->end = row;
        pool->n++;
    }
    *s++ = taken;
    if (rest.begin < rest.end) {
        *s = rest;
        pool->n++;
    }
    return 1;
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
        if (!n || memoi_pool_take_new(pool, n, next, s, &rooms[s])) continue;
        for (int32_t i = 0; i < 2 * pool->n && cost; i++) {
            const memoi_pool_stretch* at = &pool->stretches[i / 2];
            const int64_t row =
                i % 2 ? memob_max(at->end - n, 0) / unit * unit : memob_align_up(at->begin, unit);
            const int has_room = memoi_pool_has_beside(n_rows, row, n, next);
            const int32_t after =
                row + n > n_rows ? 0 : memoi_pool_last_step(pool, i / 2, row, row + n);
            const int32_t cost_here = has_room ? after : (int32_t)memob_max(after, s - 1);
            if (row + n > n_rows || cost_here >= cost) continue;
            cost = cost_here;
            rooms[s].row = row;
            rooms[s].after = after;
        }
        MEMO_ASSERT(cost < INT32_MAX); /* 2 */
        memoi_pool_take(pool, rooms[s].row, rooms[s].row + n, s);
    }
}

/* The rooms of a rank that gets sizes[1 .. n - 1] rows, and to which at most `most` return.
 * Returns the row of the latter. */
MEMOI int64_t memoi_messages_lay(const memoi_shape* shape, memoi_pool* pool, int64_t* sizes,
                                 int32_t n, int64_t most, memoi_exchange_room* rooms) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const int64_t taken_row = (memoi_pool_rows(shape, MEMOI_POOL_GRADIENTS) - most) / unit * unit;
    memoi_pool_lay(pool, memoi_pool_rows(shape, MEMOI_POOL_KEYS), sizes, n, rooms);
    sizes[n] = most && shape->carried_type == MEMO_TYPE_F32
                   ? shape->n_batch * shape->key_sharding.ring_tokens
                   : 0;
    memoi_pool_lay(pool, taken_row, sizes, n + 1, rooms + n + 1);
    return taken_row;
}

/* --- the list --- */

MEMOI int32_t memoi_messages_count(const memoi_messages* m) { return m->first_of_rank[m->n_ranks]; }
MEMOI int32_t memoi_messages_steps(const memoi_messages* m, int32_t reader) {
    return m->first_of_rank[reader + 1] - m->first_of_rank[reader];
}
MEMOI memoi_ring_message* memoi_messages_of(const memoi_messages* m, int32_t reader, int32_t step) {
    return &m->list[m->first_of_rank[reader] + step - 1];
}

/* The next message of the list, if the reader reads anything of the owner. */
MEMOI void memoi_messages_add(memoi_messages* m, int32_t owner, int32_t reader) {
    const int64_t at = (int64_t)reader * m->n_ranks + owner;
    memoi_ring_message* message = &m->list[m->first_of_rank[reader + 1]];
    if (!m->rows_of[at] || owner == reader) return;
    message->owner = owner;
    message->reader = reader;
    message->step = ++m->first_of_rank[reader + 1] - m->first_of_rank[reader];
    message->n_rows = m->rows_of[at];
    message->work = m->work_of[at];
}

/* The most rows that return to an owner at once. */
MEMOI int64_t memoi_messages_most(const memoi_messages* m, int32_t owner) {
    int64_t most = 0;
    for (int32_t r = 0; r < m->n_ranks; r++)
        if (r != owner) most = memob_max(most, m->rows_of[(int64_t)r * m->n_ranks + owner]);
    return most;
}

/* The time of work in a pass. */
MEMOI int64_t memoi_messages_cost(int64_t work, int is_backward) {
    return is_backward ? work * 5 / 2 : work;
}

/* The time of own keys, and how much of it is spent before those of others. */
MEMOI int64_t memoi_messages_own(const memoi_messages* m, int32_t r, int is_backward) {
    return memoi_messages_cost(m->work_of[(int64_t)r * m->n_ranks + r], is_backward);
}
MEMOI int64_t memoi_messages_own_first(const memoi_messages* m, int32_t r, int is_backward) {
    return memoi_messages_own(m, r, is_backward) / (is_backward ? MEMOI_OWN_FIRST_PART : 1);
}

/* Finds the rooms of all ranks, for the order that their steps have. */
MEMOI void memoi_messages_find_rooms(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, n + 1);
    memoi_exchange_room* rooms = MEMOB_ARRAY(scratch, memoi_exchange_room, 2 * (n + 1));
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * n + 5);
    for (int32_t r = 0; r < n && !scratch->failed; r++) {
        const int32_t n_steps = memoi_messages_steps(m, r);
        for (int32_t k = 1; k <= n_steps; k++) sizes[k] = memoi_messages_of(m, r, k)->n_rows;
        (void)memoi_messages_lay(m->shape, &pool, sizes, n_steps + 1, memoi_messages_most(m, r),
                                 rooms);
        for (int32_t k = 1; k <= n_steps; k++) {
            memoi_ring_message* message = memoi_messages_of(m, r, k);
            message->after[MEMOI_POOL_KEYS] = rooms[k].after;
            message->after[MEMOI_POOL_GRADIENTS] = rooms[n_steps + 2 + k].after;
        }
    }
}

/* --- the order by distance --- */

/* Contributions that keys may overtake; what waits for them then is gradients alone. */
enum { MEMOI_TURNS_OVERTAKEN = 4 };

/* All messages of a distance have a turn.  Keys of distance k come behind contribution behind[k].
 * Keys and a contribution that may begin at the same time, on the rank that gets room last, share a
 * turn.  turns: (2, n) of the keys and of the contributions of a distance. */
MEMOI void memoi_messages_join_turns(int32_t n, int is_backward, const int32_t* gates,
                                     const int32_t* behind, int32_t* turns) {
    int32_t turn = -1, k = 1, given = 0, gate = 0; /* of the last turn */
    for (int32_t t = 0; t < (is_backward ? n : 1); t++) {
        if (t) {
            if (turn < 0 || given || gate != t) turn++;
            turns[n + t] = turn;
            given = 1;
        }
        for (; k < n && (!is_backward || behind[k] <= t); k++) {
            turns[k] = ++turn;
            given = 0;
            gate = gates[k];
        }
    }
    MEMO_ASSERT(k == n); /* 3 */
}

/* Keys lie behind the contributions that must leave before the step that gives them room, and two
 * steps more, which would wait else.  ranks: (n_ranks) of distances in the order of turns. */
MEMOI void memoi_messages_take_distances(memoi_messages* m, const int32_t* order,
                                         memob_arrays* scratch) {
    const int32_t n = m->n_ranks;
    int32_t* gates = MEMOB_ARRAY(scratch, int32_t, n);
    int32_t* behind = MEMOB_ARRAY(scratch, int32_t, n);
    int32_t* turns = MEMOB_ARRAY(scratch, int32_t, 2 * (int64_t)n);
    int32_t* places = MEMOB_ARRAY(scratch, int32_t, (int64_t)n + 1); /* in order, of steps */
    if (scratch->failed) return;
    for (int32_t r = 0; r < n; r++) {
        int32_t last = 0, s = 1; /* contributions before steps below s */
        for (int32_t k = 1; k <= memoi_messages_steps(m, r); k++) {
            const memoi_ring_message* message = memoi_messages_of(m, r, k);
            const int32_t after = message->after[MEMOI_POOL_KEYS];
            const int32_t place = places[k] = order[(r - message->owner + n) % n];
            for (; s <= after + 2 && s < k; s++)
                last = (int32_t)memob_max(last,
                                          memoi_messages_of(m, r, s)->after[MEMOI_POOL_GRADIENTS]);
            gates[place] = (int32_t)memob_max(gates[place], places[after]);
            behind[place] = (int32_t)memob_max(
                behind[place], places[memob_max(after - MEMOI_TURNS_OVERTAKEN, last)]);
        }
    }

    for (int i = 0; i < 2; i++) {
        memoi_messages_join_turns(n, i, gates, behind, turns);
        for (int32_t k = 0; k < memoi_messages_count(m); k++) {
            memoi_ring_message* message = &m->list[k];
            const int32_t place = order[(message->reader - message->owner + n) % n];
            message->turns[i] = turns[place];
            if (i) message->turns[2] = turns[n + place];
        }
    }
}

/* Distances with fewest rows come first, as in a pool that others fill. */
MEMOI void memoi_messages_by_distance(memoi_messages* m, memob_arrays* scratch) {
    const int32_t n = m->n_ranks;
    memob_keyed* distances = MEMOB_ARRAY(scratch, memob_keyed, n);
    int32_t* order = MEMOB_ARRAY(scratch, int32_t, n); /* place of a distance */
    if (scratch->failed) return;
    for (int32_t d = 0; d < n; d++) {
        distances[d].index = d;
        for (int32_t r = 0; r < n && d; r++)
            distances[d].key += m->rows_of[(int64_t)r * n + (r - d + n) % n];
    }
    memob_keyed_sort(distances, n);
    for (int32_t i = 0; i < n; i++) order[distances[i].index] = i;
    for (int32_t r = 0; r < n; r++) {
        m->first_of_rank[r + 1] = m->first_of_rank[r];
        for (int32_t i = 0; i < n; i++)
            memoi_messages_add(m, (r - (int32_t)distances[i].index + n) % n, r);
    }
    memoi_messages_find_rooms(m, scratch);
    memoi_messages_take_distances(m, order, scratch);
}

/* --- the order by time --- */

/* A rank as messages are put in order. */
typedef struct memoi_messages_rank {
    int64_t sends, receives, computes;      /* it is free from these times on */
    int64_t start;                          /* when its next message may begin */
    int32_t next, is_given;                 /* which message, from its first one; a contribution? */
    int32_t n_brought, n_computed, n_given; /* its steps, so far */
    int32_t oldest;                         /* step whose rows may still be in the pool */
    int64_t used, freed;  /* rows that the pool ever had; without those from `oldest` on */
    int32_t turn, has[4]; /* its last one; received and sent: keys, contributions */
    int64_t turn_start;
} memoi_messages_rank;

typedef struct memoi_messages_play {
    memoi_messages* m;
    int is_backward;
    memoi_messages_rank* ranks;
    int64_t* ends;   /* of steps, as in list */
    int32_t* levels; /* of steps, the last turn that one waits for */
    int32_t* heap;   /* of ranks, the first one has the earliest start */
    int32_t n_heap;
    int64_t pool_rows;
} memoi_messages_play;

/* A rank looks at so many messages. */
enum { MEMOI_MESSAGES_LOOK = 3 };

MEMOI int64_t memoi_messages_pool_rows(const memoi_ring_message* message) {
    return memob_align_up(message->n_rows, MEMOI_POOL_ALIGNMENT);
}

/* When the pool has room for a message more; forward finds the order that makes rooms. */
MEMOI int64_t memoi_messages_room_at(const memoi_messages_play* p,
                                     const memoi_ring_message* message) {
    const memoi_messages_rank* rank = &p->ranks[message->reader];
    const int32_t first = p->m->first_of_rank[message->reader];
    const int64_t n = memoi_messages_pool_rows(message);
    int64_t freed = rank->freed, at = 0;
    if (p->is_backward) {
        const int32_t after = message->after[MEMOI_POOL_KEYS];
        if (after > rank->n_computed) return INT64_MAX;
        return after ? p->ends[first + after - 1] : 0;
    }
    for (int32_t s = rank->oldest; rank->used - freed + n > p->pool_rows; s++) {
        freed += memoi_messages_pool_rows(&p->m->list[first + s]);
        at = p->ends[first + s];
    }
    return at;
}

/* Chooses the message of a rank that can begin first. */
MEMOI void memoi_messages_look(memoi_messages_play* p, int32_t r) {
    memoi_messages_rank* rank = &p->ranks[r];
    const int32_t first = p->m->first_of_rank[r], n = memoi_messages_steps(p->m, r);
    const int32_t looks = p->is_backward ? 1 : MEMOI_MESSAGES_LOOK;
    const int32_t end = (int32_t)memob_min(n, rank->n_brought + looks);
    rank->start = INT64_MAX;
    if (p->is_backward && rank->n_given < rank->n_computed) {
        const memoi_ring_message* given = &p->m->list[first + rank->n_given];
        rank->start = memob_max(memob_max(p->ends[first + rank->n_given], rank->sends),
                                memob_max(p->ranks[given->owner].receives,
                                          memoi_messages_own_first(p->m, given->owner, 1)));
        rank->is_given = 1;
    }
    for (int32_t i = rank->n_brought; i < end; i++) {
        const memoi_ring_message* message = &p->m->list[first + i];
        int64_t at = memob_max(rank->receives, p->ranks[message->owner].sends);
        if (at >= rank->start) continue;
        at = memob_max(at, memoi_messages_room_at(p, message));
        if (at >= rank->start) continue;
        rank->start = at;
        rank->next = i;
        rank->is_given = 0;
    }
}

/* Among messages that can begin at the same time: that of the rank that has least to compute. */
MEMOI int memoi_messages_is_before(const memoi_messages_play* p, int32_t a, int32_t b) {
    const memoi_messages_rank *x = &p->ranks[a], *y = &p->ranks[b];
    if (x->start != y->start) return x->start < y->start;
    return x->computes != y->computes ? x->computes < y->computes : a < b;
}
MEMOI void memoi_messages_sift(memoi_messages_play* p, int32_t i) {
    int32_t* heap = p->heap;
    for (;;) {
        const int32_t r = heap[i];
        int32_t child = 2 * i + 1;
        if (child >= p->n_heap) return;
        child += child + 1 < p->n_heap && memoi_messages_is_before(p, heap[child + 1], heap[child]);
        if (!memoi_messages_is_before(p, heap[child], r)) return;
        heap[i] = heap[child];
        heap[child] = r;
        i = child;
    }
}

/* The turn of a message that begins at this time, behind turn `level`: the present one of both
 * ranks, if they have no such message in it. */
MEMOI int32_t memoi_messages_turn(memoi_messages_play* p, int32_t from, int32_t to, int is_given,
                                  int64_t at, int32_t level) {
    const int32_t ends[2] = {to, from};
    int32_t turn = level + 1;
    for (int i = 0; i < 2; i++) {
        const memoi_messages_rank* rank = &p->ranks[ends[i]];
        const int is_full = rank->has[2 * is_given + i] || at - rank->turn_start > p->m->lead;
        turn = (int32_t)memob_max(turn, rank->turn + is_full);
    }
    for (int i = 0; i < 2; i++) {
        memoi_messages_rank* rank = &p->ranks[ends[i]];
        if (rank->turn != turn) {
            memset(rank->has, 0, sizeof rank->has);
            rank->turn_start = at;
        }
        rank->turn = turn;
        rank->has[2 * is_given + i] = 1;
    }
    return turn;
}

/* The steps that have their keys, and room for what they contribute. */
MEMOI void memoi_messages_advance(memoi_messages_play* p, int32_t r) {
    memoi_messages_rank* rank = &p->ranks[r];
    const int32_t first = p->m->first_of_rank[r];
    while (rank->n_computed < rank->n_brought) {
        const int32_t i = first + rank->n_computed;
        const memoi_ring_message* message = &p->m->list[i];
        const int32_t after = p->is_backward ? message->after[MEMOI_POOL_GRADIENTS] : 0;
        int32_t level = message->turns[p->is_backward];
        if (after > rank->n_given) return;
        if (after) level = (int32_t)memob_max(level, p->m->list[first + after - 1].turns[2]);
        if (rank->n_computed) level = (int32_t)memob_max(level, p->levels[i - 1]);
        rank->computes = memob_max(rank->computes, p->ends[i]); /* the keys are there */
        rank->computes += memoi_messages_cost(message->work, p->is_backward);
        p->ends[i] = rank->computes;
        p->levels[i] = level;
        rank->n_computed++;
    }
}

/* A contribution leaves. */
MEMOI void memoi_messages_give(memoi_messages_play* p, int32_t r) {
    memoi_messages_rank* rank = &p->ranks[r];
    const int32_t i = p->m->first_of_rank[r] + rank->n_given++;
    memoi_ring_message* message = &p->m->list[i];
    message->turns[2] = memoi_messages_turn(p, r, message->owner, 1, rank->start, p->levels[i]);
    rank->sends = p->ranks[message->owner].receives =
        rank->start + message->n_rows * p->m->given_time;
}

/* Keys leave, those of step next of the rank; in forward they become those of the next step. */
MEMOI void memoi_messages_bring(memoi_messages_play* p, int32_t r) {
    memoi_messages* m = p->m;
    memoi_messages_rank* rank = &p->ranks[r];
    memoi_ring_message* list = m->list + m->first_of_rank[r];
    const memoi_ring_message chosen = list[rank->next];
    memoi_ring_message* message = &list[rank->n_brought];
    const int32_t after = p->is_backward ? chosen.after[MEMOI_POOL_KEYS] : 0;
    const int32_t level = after ? p->levels[m->first_of_rank[r] + after - 1] : 0;
    memmove(message + 1, message, (size_t)(rank->next - rank->n_brought) * sizeof chosen);
    *message = chosen;
    message->step = ++rank->n_brought;
    message->turns[p->is_backward] =
        memoi_messages_turn(p, message->owner, r, 0, rank->start, level);
    rank->receives = p->ranks[message->owner].sends = rank->start + message->n_rows * m->row_time;
    p->ends[m->first_of_rank[r] + rank->n_brought - 1] = rank->receives;
    if (p->is_backward) return;
    rank->used += memoi_messages_pool_rows(message);
    while (rank->oldest < rank->n_computed &&
           p->ends[m->first_of_rank[r] + rank->oldest] <= rank->start)
        rank->freed += memoi_messages_pool_rows(&list[rank->oldest++]);
}

/* Plays a pass once: next is always the message that can begin first.  Forward orders the steps of
 * each rank, too. */
MEMOI void memoi_messages_play_pass(memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = m->n_ranks, n_messages = memoi_messages_count(m);
    memoi_messages_play p = MEMO_ZERO(memoi_messages_play);
    p.m = m;
    p.is_backward = is_backward;
    p.ranks = MEMOB_ARRAY(scratch, memoi_messages_rank, n);
    p.ends = MEMOB_ARRAY(scratch, int64_t, n_messages);
    p.levels = MEMOB_ARRAY(scratch, int32_t, n_messages);
    p.heap = MEMOB_ARRAY(scratch, int32_t, n);
    p.pool_rows = memoi_pool_rows(m->shape, MEMOI_POOL_KEYS);
    if (scratch->failed) return;
    for (int32_t r = 0; r < n; r++) {
        p.ranks[r].computes = memoi_messages_own_first(m, r, is_backward);
        memoi_messages_look(&p, r);
        if (memoi_messages_steps(m, r)) p.heap[p.n_heap++] = r;
    }
    for (int32_t i = p.n_heap; i-- > 0;) memoi_messages_sift(&p, i);

    while (p.n_heap) {
        const int32_t r = p.heap[0], n_steps = memoi_messages_steps(m, r);
        memoi_messages_rank* rank = &p.ranks[r];
        const int64_t start = rank->start;
        memoi_messages_look(&p, r); /* others may have taken its owner since */
        if (rank->start == start) {
            MEMO_ASSERT(start < INT64_MAX); /* 3 */
            (rank->is_given ? memoi_messages_give : memoi_messages_bring)(&p, r);
            memoi_messages_advance(&p, r);
            if ((is_backward ? rank->n_given : rank->n_brought) == n_steps)
                p.heap[0] = p.heap[--p.n_heap];
            else
                memoi_messages_look(&p, r);
        }
        memoi_messages_sift(&p, 0);
    }
}

/* The messages of each reader, those of few rows first, then by distance; then as they begin. */
MEMOI void memoi_messages_by_time(memoi_messages* m, memob_arrays* scratch) {
    const int32_t n = m->n_ranks;
    memob_keyed* order = MEMOB_ARRAY(scratch, memob_keyed, n);
    for (int32_t r = 0; r < n && order; r++) {
        for (int32_t d = 0; d < n; d++)
            order[d] = memob_keyed_of(m->rows_of[(int64_t)r * n + (r - d + n) % n], d);
        memob_keyed_sort(order, n);
        m->first_of_rank[r + 1] = m->first_of_rank[r];
        for (int32_t i = 0; i < n; i++)
            memoi_messages_add(m, (r - (int32_t)order[i].index + n) % n, r);
    }
    if (!scratch->failed) memoi_messages_play_pass(m, 0, scratch);
    if (!scratch->failed) memoi_messages_find_rooms(m, scratch);
    if (!scratch->failed) memoi_messages_play_pass(m, 1, scratch);
}

/* --- time --- */

/* A rank in a pass. */
typedef struct memoi_messages_clock {
    int64_t exchanged, computed;     /* ends of what it did last */
    int32_t n_steps;                 /* computed so far */
    int64_t begin, start, sent, out; /* of the present turn; the time of what it sends */
    int32_t turn;                    /* that these are of */
} memoi_messages_clock;

typedef struct memoi_messages_pass {
    const memoi_messages* m;
    int is_backward;
    memoi_messages_clock* clocks;
    int64_t *arrived, *computed, *left; /* as in list: keys; what is computed; its contribution */
    int32_t* in_turn;                   /* ranks of the present turn */
    int32_t n_in_turn;
} memoi_messages_pass;

/* The end of a step of a reader, and of all before it. */
MEMOI int64_t memoi_messages_compute(memoi_messages_pass* p, int32_t r, int32_t step) {
    const memoi_messages* m = p->m;
    memoi_messages_clock* clock = &p->clocks[r];
    const int32_t first = m->first_of_rank[r] - 1;
    while (clock->n_steps < step) {
        const int32_t s = ++clock->n_steps;
        const memoi_ring_message* message = &m->list[first + s];
        const int32_t after = p->is_backward ? message->after[MEMOI_POOL_GRADIENTS] : 0;
        clock->computed = memob_max(clock->computed, p->arrived[first + s]);
        if (after) clock->computed = memob_max(clock->computed, p->left[first + after]);
        clock->computed += memoi_messages_cost(message->work, p->is_backward);
        p->computed[first + s] = clock->computed;
    }
    return step ? p->computed[first + step] : 0;
}

/* A rank takes part in the present turn, behind a time. */
MEMOI memoi_messages_clock* memoi_messages_take_part(memoi_messages_pass* p, int32_t r,
                                                     int32_t turn, int64_t gate) {
    memoi_messages_clock* clock = &p->clocks[r];
    if (clock->turn != turn + 1) {
        clock->turn = turn + 1;
        clock->begin = clock->exchanged;
        clock->out = 0;
        p->in_turn[p->n_in_turn++] = r;
    }
    clock->begin = memob_max(clock->begin, gate);
    return clock;
}

/* A turn of n events: both ends of a message begin, what ranks send leaves, and arrives. */
MEMOI void memoi_messages_exchange(memoi_messages_pass* p, const memoi_messages_event* events,
                                   int32_t n) {
    const memoi_messages* m = p->m;
    p->n_in_turn = 0;

    /* When each end may begin. */
    for (int32_t i = 0; i < n; i++) {
        const memoi_ring_message* x = &m->list[events[i].message];
        const int is_given = events[i].is_given;
        const int64_t gate =
            memoi_messages_compute(p, x->reader, is_given ? x->step : x->after[MEMOI_POOL_KEYS]);
        memoi_messages_clock* reader = memoi_messages_take_part(p, x->reader, events->turn, gate);
        memoi_messages_clock* owner = memoi_messages_take_part(
            p, x->owner, events->turn, is_given ? memoi_messages_own_first(m, x->owner, 1) : 0);
        (is_given ? reader : owner)->out += x->n_rows * (is_given ? m->given_time : m->row_time);
    }
    for (int32_t k = 0; k < p->n_in_turn; k++)
        p->clocks[p->in_turn[k]].start = p->clocks[p->in_turn[k]].begin;
    for (int32_t i = 0; i < n; i++) {
        const memoi_ring_message* x = &m->list[events[i].message];
        memoi_messages_clock *a = &p->clocks[x->owner], *b = &p->clocks[x->reader];
        a->start = memob_max(a->start, b->begin);
        b->start = memob_max(b->start, a->begin);
    }

    /* When what a rank sends has left, and what it receives is there. */
    for (int32_t k = 0; k < p->n_in_turn; k++) {
        memoi_messages_clock* clock = &p->clocks[p->in_turn[k]];
        clock->exchanged = clock->sent = clock->start + clock->out;
    }
    for (int32_t i = 0; i < n; i++) {
        const memoi_ring_message* x = &m->list[events[i].message];
        memoi_messages_clock* from = &p->clocks[events[i].is_given ? x->reader : x->owner];
        memoi_messages_clock* to = &p->clocks[events[i].is_given ? x->owner : x->reader];
        to->exchanged = memob_max(to->exchanged, from->sent);
    }
    for (int32_t i = 0; i < n; i++)
        (events[i].is_given ? p->left : p->arrived)[events[i].message] =
            p->clocks[m->list[events[i].message].reader].exchanged;
}

/* The events of a pass by turns. */
MEMOI void memoi_messages_sort(memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = memoi_messages_count(m), n_events = n * (1 + is_backward);
    memoi_messages_event* events = MEMOB_ARRAY(scratch, memoi_messages_event, n_events);
    memob_keyed* order = MEMOB_ARRAY(scratch, memob_keyed, n_events);
    if (scratch->failed) return;
    for (int32_t i = 0; i < n_events; i++)
        order[i] = memob_keyed_of(m->list[i % n].turns[is_backward + i / n], i);
    memob_keyed_sort(order, n_events);
    for (int32_t i = 0; i < n_events; i++) {
        events[i].turn = (int32_t)order[i].key;
        events[i].message = (int32_t)order[i].index % n;
        events[i].is_given = order[i].index >= n;
    }
    m->events[is_backward] = events;
}

/* The time of a pass. */
MEMOI int64_t memoi_messages_time(const memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = m->n_ranks, n_messages = memoi_messages_count(m);
    const int32_t n_events = n_messages * (1 + is_backward);
    const memoi_messages_event* events = m->events[is_backward];
    memoi_messages_pass p = MEMO_ZERO(memoi_messages_pass);
    int64_t end = 0;
    p.m = m;
    p.is_backward = is_backward;
    p.clocks = MEMOB_ARRAY(scratch, memoi_messages_clock, n);
    p.arrived = MEMOB_ARRAY(scratch, int64_t, n_messages);
    p.computed = MEMOB_ARRAY(scratch, int64_t, n_messages);
    p.left = MEMOB_ARRAY(scratch, int64_t, n_messages);
    p.in_turn = MEMOB_ARRAY(scratch, int32_t, n);
    if (scratch->failed) return 0;

    for (int32_t r = 0; r < n; r++)
        p.clocks[r].computed = memoi_messages_own_first(m, r, is_backward);
    for (int32_t i = 0, next; i < n_events; i = next) {
        for (next = i; next < n_events && events[next].turn == events[i].turn;) next++;
        memoi_messages_exchange(&p, events + i, next - i);
    }
    for (int32_t r = 0; r < n; r++) {
        (void)memoi_messages_compute(&p, r, memoi_messages_steps(m, r));
        p.clocks[r].computed +=
            memoi_messages_own(m, r, is_backward) - memoi_messages_own_first(m, r, is_backward);
        end = memob_max(end, memob_max(p.clocks[r].computed, p.clocks[r].exchanged));
    }
    return end;
}

/* --- the choice --- */

/* Receiving is taken for this part of a forward, in the mean of the ranks. */
enum { MEMOI_LINKS_PART = 6 };

/* The order by time and that by distance; the one that takes less in both passes is the list. */
MEMOI void memoi_messages_make(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    memoi_messages best = *m;
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < n * n; i++) {
        m->n_rows += m->rows_of[i];
        m->work += m->work_of[i];
    }
    m->row_time = m->n_rows ? m->work / MEMOI_LINKS_PART / m->n_rows : 0;
    m->given_time =
        m->row_time * (memo_type_bytes(m->shape->carried_type) / memo_type_bytes(m->shape->type));
    m->lead = m->work / n / 100;

    for (int by_time = 0; by_time < 2; by_time++) {
        memoi_messages made = *m;
        int64_t time = 0;
        made.list = MEMOB_ARRAY(scratch, memoi_ring_message, n * n + 1);
        made.first_of_rank = MEMOB_ARRAY(scratch, int32_t, n + 1);
        if (scratch->failed) return;
        (by_time ? memoi_messages_by_time : memoi_messages_by_distance)(&made, scratch);
        for (int i = 0; i < 2 && !scratch->failed; i++) {
            memoi_messages_sort(&made, i, scratch);
            if (!scratch->failed) time += memoi_messages_time(&made, i, scratch);
        }
        if (scratch->failed) return;
        if (time < least) best = made;
        least = memob_min(least, time);
    }
    *m = best;
}
