#pragma once
#include "sp/attention/messages.h"
/* ---- >>distances --------------------------------------------------------------------------------
 * Knows: messages and crossings, their rows and rooms, as integers.  Knows nothing of times.
 *
 * All messages of a distance have one turn, in which every rank sends to one and receives from one:
 * where all ranks have as many rows, none waits for another.  A distance between nodes is followed
 * by the distances within a node.
 *
 * 1. Every distance has a turn. */

typedef struct memoi_distances {
    int32_t *places, *of;   /* of distances in the order; of messages, their distance's place */
    int32_t *gates, *room;  /* keys of a place come when the step of place `gates` gives them room;
                               behind contributions up to `room` */
    int32_t* held_room;     /* (n_nodes): rows that cross, behind all of a place */
    int32_t *turns, *given; /* of the keys and of the contributions of a place */
    int32_t *crossed, *sum; /* (n_nodes): of rows that cross and of their sums */
} memoi_distances;

/* Contributions that keys may overtake; what waits for them then is gradients alone. */
enum { MEMOI_TURNS_OVERTAKEN = 4 };

/* Distances of fewest rows first, as in a pool that others fill; of nodes, and in these of ranks.
 * The own node is first, and held rows are first who holds them computes with. */
MEMOI void memoi_distances_order(memoi_messages* m, memoi_distances* d, memob_arrays* scratch) {
    const int32_t n = m->n_ranks, n_nodes = m->n_nodes, per = n / n_nodes;
    const int32_t n_messages = memoi_messages_count(m), n_crossings = memoi_messages_crossings(m);
    memob_keyed* keys = MEMOB_ARRAY(scratch, memob_keyed, memob_max(n_messages, n_crossings) + 1);
    memob_keyed* of_nodes = MEMOB_ARRAY(scratch, memob_keyed, n_nodes);
    memob_keyed* within = MEMOB_ARRAY(scratch, memob_keyed, per);
    int64_t* rows = MEMOB_ARRAY(scratch, int64_t, n);
    if (scratch->failed) return;
    for (int32_t i = 0; i < n_messages; i++) {
        const memoi_ring_message* x = &m->list[i];
        const int32_t far = (x->reader / per - x->owner / per + n_nodes) % n_nodes;
        d->of[i] = far * per + (x->reader % per - x->owner % per + per) % per;
        if (!memoi_messages_is_own(x)) rows[d->of[i]] += x->n_rows;
        if (far) of_nodes[far].key += x->n_rows;
    }
    for (int32_t k = 0; k < n_nodes; k++) of_nodes[k].index = k;
    memob_keyed_sort(of_nodes, n_nodes);
    for (int32_t i = 0; i < n_nodes; i++) {
        const int32_t first = (int32_t)of_nodes[i].index * per;
        for (int32_t k = 0; k < per; k++) within[k] = memob_keyed_of(rows[first + k], k);
        memob_keyed_sort(within, per);
        for (int32_t k = 0; k < per; k++) d->places[first + within[k].index] = i * per + k;
    }

    for (int32_t i = 0; i < n_messages; i++) {
        d->of[i] = d->places[d->of[i]];
        keys[i] = memob_keyed_of(d->of[i], i);
    }
    memoi_messages_put(m, 0, keys, n_messages, scratch);
    for (int32_t c = 0; c < n_crossings; c++) {
        const memoi_ring_crossing* x = &m->crossings[c];
        const int32_t far = (x->holder / per - x->owner / per + n_nodes) % n_nodes;
        keys[c] = memob_keyed_of(d->places[far * per], c);
    }
    memoi_messages_put(m, 1, keys, n_crossings, scratch);
}

/* The rooms of all rows that a rank holds. */
MEMOI void memoi_distances_hold(memoi_messages* m, memoi_distances* d, memob_arrays* scratch) {
    const int32_t n_nodes = m->n_nodes, per = m->n_ranks / n_nodes;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, (int64_t)n_nodes + 1);
    memoi_exchange_room* rooms = MEMOB_ARRAY(scratch, memoi_exchange_room, (int64_t)n_nodes + 1);
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * (int64_t)n_nodes + 5);
    for (int32_t r = 0; r < m->n_ranks && !scratch->failed; r++) {
        const int32_t* held = m->held + m->first_of_holder[r] - 1;
        const int32_t n = m->first_of_holder[r + 1] - m->first_of_holder[r] + 1;
        for (int32_t k = 1; k < n; k++) sizes[k] = m->crossings[held[k]].n_rows;
        memoi_pool_lay(&pool, memoi_pool_rows(m->shape, MEMOI_POOL_HELD), sizes, n, rooms);
        for (int32_t k = 1; k < n; k++) {
            memoi_ring_crossing* x = &m->crossings[held[k]];
            const int32_t far = d->of[m->of_crossings[x->first]] / per, after = rooms[k].after;
            x->row = rooms[k].row;
            x->number = k;
            if (!after) continue;
            x = &m->crossings[held[after]]; /* all of its distance between nodes */
            d->held_room[far] = (int32_t)memob_max(
                d->held_room[far], d->of[m->of_crossings[x->first]] / per * per + per - 1);
        }
    }
}

/* Keys lie behind the contributions that must leave before the step that gives them room, and two
 * steps more, which would wait else. */
MEMOI void memoi_distances_find_gates(memoi_messages* m, memoi_distances* d) {
    for (int32_t r = 0; r < m->n_ranks; r++) {
        const int32_t* order = m->order + m->first_of_rank[r] - 1;
        int32_t last = 0, s = 1; /* contributions before steps below s */
        for (int32_t k = 1; k <= memoi_messages_steps(m, r); k++) {
            memoi_ring_message* x = &m->list[order[k]];
            const int32_t after = x->after[MEMOI_POOL_KEYS], place = d->of[order[k]];
            const int32_t overtaken = after - MEMOI_TURNS_OVERTAKEN;
            int32_t behind;
            x->step = k;
            for (; s <= after + 2 && s < k; s++)
                last = (int32_t)memob_max(last, m->list[order[s]].after[MEMOI_POOL_GRADIENTS]);
            behind = (int32_t)memob_max(overtaken, last);
            if (after) d->gates[place] = (int32_t)memob_max(d->gates[place], d->of[order[after]]);
            if (behind > 0)
                d->room[place] = (int32_t)memob_max(d->room[place], d->of[order[behind]]);
        }
    }
}

/* Turns of all distances.  Keys and a contribution that may begin at the same time, on the rank
 * that gets room last, share a turn. */
MEMOI void memoi_distances_count(const memoi_messages* m, int is_backward, memoi_distances* d) {
    const int32_t n = m->n_ranks, n_nodes = m->n_nodes, per = n / n_nodes;
    int32_t turn = -1, k = 1, given = 1, gate = 0; /* of the last turn */
    int32_t far = -1, c = 1; /* the last turn between nodes; the next of these */
    for (int32_t t = 0; t < (is_backward ? n : 1); t++) {
        /* A contribution, and the sum that it ends. */
        if (t) {
            if (given || gate != t) turn++;
            d->given[t] = turn;
            given = 1;
            if (t >= per && t % per == per - 1)
                d->sum[t / per] = far = (int32_t)memob_max(far + 1, turn);
        }

        /* Rows that cross, and keys, that have room behind it. */
        for (;;) {
            for (; c < n_nodes && d->held_room[c] <= (is_backward ? t : k - 1); c++)
                d->crossed[c] = far = (int32_t)memob_max(far + 1, turn);
            if (k == n || k / per >= c || (is_backward && d->room[k] > t)) break;
            if (k >= per && turn <= d->crossed[k / per]) {
                turn = d->crossed[k / per];
                given = 1;
            }
            if (k < per || k % per) { /* held keys do not travel to who holds them */
                d->turns[k] = ++turn;
                given = 0;
                gate = d->gates[k];
            }
            k++;
        }
    }
    MEMO_ASSERT(k == n && c == n_nodes); /* 1 */
}

/* The list by distances. */
MEMOI void memoi_messages_by_distance(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks, n_nodes = m->n_nodes, per = n / n_nodes;
    memoi_distances d;
    d.places = MEMOB_ARRAY(scratch, int32_t, 5 * n + 3 * n_nodes);
    d.of = MEMOB_ARRAY(scratch, int32_t, memoi_messages_count(m) + 1);
    if (scratch->failed) return;
    d.gates = d.places + n;
    d.room = d.gates + n;
    d.turns = d.room + n;
    d.given = d.turns + n;
    d.held_room = d.given + n;
    d.crossed = d.held_room + n_nodes;
    d.sum = d.crossed + n_nodes;

    /* Turns need rooms, and rooms the order. */
    memoi_distances_order(m, &d, scratch);
    if (!scratch->failed) memoi_messages_find_rooms(m, scratch);
    if (!scratch->failed) memoi_distances_hold(m, &d, scratch);
    if (scratch->failed) return;
    memoi_distances_find_gates(m, &d);
    for (int i = 0; i < 2; i++) {
        memoi_distances_count(m, i, &d);
        for (int32_t k = 0; k < memoi_messages_count(m); k++) {
            m->list[k].turns[i] = d.turns[d.of[k]];
            if (i) m->list[k].turns[2] = d.given[d.of[k]];
        }
        for (int32_t k = 0; k < memoi_messages_crossings(m); k++) {
            memoi_ring_crossing* x = &m->crossings[k];
            const int32_t far = d.of[m->of_crossings[x->first]] / (int32_t)per;
            x->turns[i] = d.crossed[far];
            if (i) x->turns[2] = d.sum[far];
        }
    }
}
