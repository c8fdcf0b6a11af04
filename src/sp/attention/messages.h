#pragma once
#include "sp/attention/pools.h"
/* ---- >>messages ---------------------------------------------------------------------------------
 * Knows: how many rows each rank reads of whom, and what it computes with them.  Knows nothing of
 * positions, heads, streams or times.
 *
 * The messages of all ranks are one list, in turns.  In a turn a rank sends keys to at most one
 * rank and gets some from at most one, and so with contributions.  A rank takes no part in a turn
 * in which it has no message.  Each rank makes the same list from the same numbers.
 *
 * Over nodes a row crosses to a node once.  The rank at the owner's place holds the rows that
 * anybody in its node reads, and adds up the contributions to their gradients.  So there are four
 * kinds of messages: keys from the owner or who holds them to the reader, and a contribution back;
 * rows that cross from the owner to who holds them, and their sum back.  The latter two are on a
 * stream of their own.  Who holds rows and reads them sends itself nothing.
 *
 * A message has a later turn than all that it waits for, and a rank enqueues turns of both streams
 * in their order, so no two ranks wait for each other. */

/* Keys of an owner that a reader reads; the contribution to their gradients goes back. */
typedef struct memoi_ring_message {
    int32_t owner, reader;
    int32_t source;   /* the owner, or who holds these keys for the reader's node */
    int32_t crossing; /* whose rows they are; -1: the owner's */
    int32_t step;     /* of the reader, which computes with them */
    int32_t after[2]; /* by pools: of its steps, the last one whose rows lay in the same room */
    int32_t turns[3]; /* of keys in forward and in backward, of the contribution */
    int64_t n_rows, work;
} memoi_ring_message;

/* Rows of an owner that cross to another node. */
typedef struct memoi_ring_crossing {
    int32_t owner, holder;
    int32_t number;           /* of those of the holder, in the order in which they come; from 1 */
    int32_t first, n_readers; /* of_crossings[first .. first + n_readers - 1] read them */
    int32_t turns[3];         /* of rows in forward and in backward, of the sum */
    int64_t n_rows, row;      /* row: of their room */
} memoi_ring_crossing;

/* What travels in a turn: a message, or a crossing, or its contribution or sum. */
typedef struct memoi_messages_event {
    int32_t turn, index; /* turn: MEMOI_N_LINKS * turn + link */
    int32_t is_given;
} memoi_messages_event;

/* The streams of messages, and the links under them. */
enum { MEMOI_LINK_RING = 0, MEMOI_LINK_NODES, MEMOI_N_LINKS };

/* A backward computes this part of own keys first, while the first keys arrive, and the rest last,
 * while contributions leave. */
enum { MEMOI_OWN_FIRST_PART = 3 };

typedef struct memoi_messages {
    const memoi_shape* shape;
    int32_t n_ranks, n_nodes;
    int64_t n_rows, work;             /* of all ranks; work with own keys, too */
    const int64_t *rows_of, *work_of; /* (n_ranks, n_ranks): of a reader with keys of an owner */
    const int64_t* crossing_rows;     /* (n_ranks, n_nodes): of an owner that a node reads */
    const char* is_whole;             /* (n_ranks): own keys are one segment; NULL: none are */
    int64_t times[MEMOI_N_LINKS][2];  /* of a row on a link: of keys, of a contribution */
    int64_t lead;                     /* messages of a turn may differ so much in start */
    /* In the order of steps, list[order[i]]; those of reader r from first_of_rank[r] on.  Crossings
     * in the order in which they come, from first_of_holder[r] on. */
    memoi_ring_message* list;
    int32_t *order, *first_of_rank;
    memoi_ring_crossing* crossings;
    int32_t *held, *first_of_holder, *of_crossings;
    memoi_messages_event* events[2]; /* of forward, of backward, by turns */
    int32_t n_events[2];
} memoi_messages;

MEMOI int32_t memoi_messages_count(const memoi_messages* m) { return m->first_of_rank[m->n_ranks]; }
MEMOI int32_t memoi_messages_crossings(const memoi_messages* m) {
    return m->first_of_holder[m->n_ranks];
}
MEMOI int32_t memoi_messages_steps(const memoi_messages* m, int32_t reader) {
    return m->first_of_rank[reader + 1] - m->first_of_rank[reader];
}
MEMOI memoi_ring_message* memoi_messages_of(const memoi_messages* m, int32_t reader, int32_t step) {
    return &m->list[m->order[m->first_of_rank[reader] + step - 1]];
}
/* A reader reads the rows of a crossing where it holds them. */
MEMOI int memoi_messages_is_own(const memoi_ring_message* x) { return x->source == x->reader; }

/* The time of work in a pass. */
MEMOI int64_t memoi_messages_cost(int64_t work, int is_backward) {
    return is_backward ? work * 5 / 2 : work;
}

/* The time of own keys, and how much of it is spent before those of others. */
MEMOI int64_t memoi_messages_own(const memoi_messages* m, int32_t r, int is_backward) {
    return memoi_messages_cost(m->work_of[(int64_t)r * m->n_ranks + r], is_backward);
}
MEMOI int64_t memoi_messages_own_first(const memoi_messages* m, int32_t r, int is_backward) {
    const int64_t own = memoi_messages_own(m, r, is_backward);
    if (!is_backward) return own;
    return m->is_whole && m->is_whole[r] ? 0 : own / MEMOI_OWN_FIRST_PART;
}

/* --- creation --- */

/* The crossings of all owners, by holders.  at: (n_ranks, n_nodes), where they are; -1: none. */
MEMOI void memoi_messages_add_crossings(memoi_messages* m, int32_t* at, memob_arrays* arrays) {
    const int32_t n = m->n_ranks, per = n / m->n_nodes, n_all = n * m->n_nodes;
    int32_t n_crossings = 0;
    for (int32_t i = 0; i < n_all && m->crossing_rows; i++) n_crossings += m->crossing_rows[i] > 0;
    m->crossings = MEMOB_ARRAY(arrays, memoi_ring_crossing, n_crossings + 1);
    m->held = MEMOB_ARRAY(arrays, int32_t, n_crossings + 1);
    m->first_of_holder = MEMOB_ARRAY(arrays, int32_t, n + 1);
    if (arrays->failed) return;
    n_crossings = 0;
    for (int32_t holder = 0; holder < n; holder++) {
        m->first_of_holder[holder] = n_crossings;
        for (int32_t owner = holder % per; owner < n; owner += per) {
            const int32_t k = owner * m->n_nodes + holder / per;
            at[k] = -1;
            if (!m->crossing_rows || !m->crossing_rows[k]) continue;
            at[k] = n_crossings;
            m->crossings[n_crossings].owner = owner;
            m->crossings[n_crossings].holder = holder;
            m->crossings[n_crossings++].n_rows = m->crossing_rows[k];
        }
    }
    m->first_of_holder[n] = n_crossings;
}

/* What each reader reads of others, by owners. */
MEMOI void memoi_messages_add_all(memoi_messages* m, memob_arrays* arrays) {
    const int32_t n = m->n_ranks, per = n / m->n_nodes;
    int32_t n_messages = 0, n_read = 0, *at;
    for (int64_t i = 0; i < (int64_t)n * n; i++) n_messages += m->rows_of[i] > 0;
    m->list = MEMOB_ARRAY(arrays, memoi_ring_message, n_messages + 1);
    m->order = MEMOB_ARRAY(arrays, int32_t, n_messages + 1);
    m->of_crossings = MEMOB_ARRAY(arrays, int32_t, n_messages + 1);
    m->first_of_rank = MEMOB_ARRAY(arrays, int32_t, n + 1);
    at = MEMOB_ARRAY(arrays, int32_t, (int64_t)n * m->n_nodes);
    if (!arrays->failed) memoi_messages_add_crossings(m, at, arrays);
    if (arrays->failed) return;

    n_messages = 0;
    for (int32_t r = 0; r < n; r++) {
        m->first_of_rank[r] = n_messages;
        for (int32_t owner = 0; owner < n; owner++) {
            const int64_t k = (int64_t)r * n + owner;
            memoi_ring_message* x = &m->list[n_messages];
            if (!m->rows_of[k] || owner == r) continue;
            x->owner = x->source = owner;
            x->reader = r;
            x->crossing = owner / per == r / per ? -1 : at[owner * m->n_nodes + r / per];
            x->n_rows = m->rows_of[k];
            x->work = m->work_of[k];
            n_messages++;
            if (x->crossing < 0) continue;
            x->source = m->crossings[x->crossing].holder;
            m->crossings[x->crossing].n_readers++;
            if (memoi_messages_is_own(x)) x->n_rows = m->crossings[x->crossing].n_rows;
        }
    }
    m->first_of_rank[n] = n_messages;

    /* The readers of each crossing. */
    for (int32_t c = 0; c < memoi_messages_crossings(m); c++) {
        m->crossings[c].first = n_read;
        n_read += m->crossings[c].n_readers;
        m->crossings[c].n_readers = 0;
    }
    for (int32_t i = 0; i < n_messages; i++) {
        memoi_ring_crossing* c = &m->crossings[memob_max(m->list[i].crossing, 0)];
        if (m->list[i].crossing >= 0) m->of_crossings[c->first + c->n_readers++] = i;
    }
}

MEMOI void* memoi_messages_copy_of(const void* array, int64_t n, size_t n_bytes,
                                   memob_arrays* arrays) {
    void* copy = memob_arrays_add(arrays, n, n_bytes);
    if (copy) memcpy(copy, array, (size_t)n * n_bytes);
    return copy;
}

/* A list that may get another order. */
MEMOI void memoi_messages_copy(const memoi_messages* m, memoi_messages* copy,
                               memob_arrays* arrays) {
    const int64_t n = memoi_messages_count(m) + 1, n_crossings = memoi_messages_crossings(m) + 1;
    *copy = *m;
    copy->list = (memoi_ring_message*)memoi_messages_copy_of(m->list, n, sizeof *m->list, arrays);
    copy->order = (int32_t*)memoi_messages_copy_of(m->order, n, sizeof *m->order, arrays);
    copy->crossings = (memoi_ring_crossing*)memoi_messages_copy_of(m->crossings, n_crossings,
                                                                   sizeof *m->crossings, arrays);
    copy->held = (int32_t*)memoi_messages_copy_of(m->held, n_crossings, sizeof *m->held, arrays);
}

/* Puts messages of readers, or crossings of holders, in the order of keys: of index. */
MEMOI void memoi_messages_put(memoi_messages* m, int is_held, memob_keyed* keys, int32_t n,
                              memob_arrays* scratch) {
    int32_t* next = MEMOB_ARRAY(scratch, int32_t, m->n_ranks);
    const int32_t* first = is_held ? m->first_of_holder : m->first_of_rank;
    if (scratch->failed) return;
    memob_keyed_sort(keys, n);
    for (int32_t i = 0; i < n; i++) {
        const int32_t k = (int32_t)keys[i].index;
        const int32_t r = is_held ? m->crossings[k].holder : m->list[k].reader;
        (is_held ? m->held : m->order)[first[r] + next[r]++] = k;
    }
}

/* Fewest rows first, then by distance. */
MEMOI void memoi_messages_by_rows(memoi_messages* m, memob_arrays* scratch) {
    const int32_t n = m->n_ranks, n_messages = memoi_messages_count(m);
    const int32_t n_crossings = memoi_messages_crossings(m);
    memob_keyed* keys = MEMOB_ARRAY(scratch, memob_keyed, memob_max(n_messages, n_crossings) + 1);
    if (scratch->failed) return;
    for (int32_t i = 0; i < n_messages; i++) {
        const memoi_ring_message* x = &m->list[i];
        keys[i] = memob_keyed_of(x->n_rows * n + (x->reader - x->owner + n) % n, i);
    }
    memoi_messages_put(m, 0, keys, n_messages, scratch);
    for (int32_t c = 0; c < n_crossings; c++) {
        const memoi_ring_crossing* x = &m->crossings[c];
        keys[c] = memob_keyed_of(x->n_rows * n + (x->holder - x->owner + n) % n, c);
    }
    memoi_messages_put(m, 1, keys, n_crossings, scratch);
}

/* --- rooms --- */

/* The rooms of a rank that gets keys[1 .. n - 1] rows, and contributes given[1 .. n - 1]; given[n]:
 * of its own contribution, if that is computed apart.  At most `most` rows return to it at once.
 * Returns the row of these. */
MEMOI int64_t memoi_messages_lay(const memoi_shape* shape, memoi_pool* pool, const int64_t* keys,
                                 const int64_t* given, int32_t n, int64_t most,
                                 memoi_exchange_room* rooms) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const int64_t taken_row = (memoi_pool_rows(shape, MEMOI_POOL_GRADIENTS) - most) / unit * unit;
    memoi_pool_lay(pool, memoi_pool_rows(shape, MEMOI_POOL_KEYS), keys, n, rooms);
    memoi_pool_lay(pool, taken_row, given, n + 1, rooms + n + 1);
    return taken_row;
}

/* What a rank lays: its steps, own contribution and what returns at once.  Arrays of its steps + 2.
 * Returns the latter. */
MEMOI int64_t memoi_messages_sizes(const memoi_messages* m, int32_t r, const int64_t* returns,
                                   const char* has_others, int64_t* keys, int64_t* given) {
    const int32_t n = memoi_messages_steps(m, r) + 1;
    for (int32_t k = 1; k < n; k++) {
        const memoi_ring_message* x = memoi_messages_of(m, r, k);
        given[k] = x->n_rows;
        keys[k] = memoi_messages_is_own(x) ? 0 : x->n_rows;
    }
    given[n] = has_others[r] && m->shape->carried_type == MEMO_TYPE_F32
                   ? m->shape->n_batch * m->shape->key_sharding.ring_tokens
                   : 0;
    return returns[r];
}

/* The most rows that return to each rank at once within its node, and whether others of its node
 * contribute to its own keys. */
MEMOI void memoi_messages_find_returns(const memoi_messages* m, int64_t* returns,
                                       char* has_others) {
    for (int32_t i = 0; i < memoi_messages_count(m); i++) {
        const memoi_ring_message* x = &m->list[i];
        has_others[x->owner] |= x->crossing < 0;
        if (!memoi_messages_is_own(x))
            returns[x->source] = memob_max(returns[x->source], x->n_rows);
    }
}

/* Finds the rooms of all ranks, for the order that their steps have. */
MEMOI void memoi_messages_find_rooms(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, 2 * (n + 2));
    int64_t* returns = MEMOB_ARRAY(scratch, int64_t, n);
    char* has_others = MEMOB_ARRAY(scratch, char, n);
    memoi_exchange_room* rooms = MEMOB_ARRAY(scratch, memoi_exchange_room, 2 * (n + 1));
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * n + 5);
    if (scratch->failed) return;
    memoi_messages_find_returns(m, returns, has_others);
    for (int32_t r = 0; r < n; r++) {
        const int32_t n_steps = memoi_messages_steps(m, r);
        const int64_t most = memoi_messages_sizes(m, r, returns, has_others, sizes, sizes + n + 2);
        (void)memoi_messages_lay(m->shape, &pool, sizes, sizes + n + 2, n_steps + 1, most, rooms);
        for (int32_t k = 1; k <= n_steps; k++) {
            memoi_ring_message* message = memoi_messages_of(m, r, k);
            message->after[MEMOI_POOL_KEYS] = rooms[k].after;
            message->after[MEMOI_POOL_GRADIENTS] = rooms[n_steps + 2 + k].after;
        }
    }
}

/* Do rooms for rows that cross lie in the same place? */
MEMOI int memoi_messages_overlap(const memoi_ring_crossing* a, int64_t row, int64_t n_rows) {
    return a->row < row + n_rows && row < a->row + a->n_rows;
}
