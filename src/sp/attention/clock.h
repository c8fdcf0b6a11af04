#pragma once
#include "sp/comm.h"
#include "sp/attention/distances.h"
#include "sp/attention/play.h"
/* ---- >>clock of messages ------------------------------------------------------------------------
 * Knows: a list of messages in turns.  Knows nothing of how the list was found.
 *
 * The time of a pass: a turn begins when all its messages of a rank may, and its other ends. */

/* A rank in a turn. */
typedef struct memoi_clock_rank {
    int64_t computed, exchanged[MEMOI_N_LINKS]; /* ends of what it did last */
    int32_t n_steps;                            /* computed so far */
    int64_t begin, start, out; /* of the present turn: when it may, and does; the time of what it
                                  sends */
    int32_t turn;              /* that these are of */
} memoi_clock_rank;

typedef struct memoi_clock {
    const memoi_messages* m;
    int is_backward;
    memoi_clock_rank* ranks;
    int64_t *arrived, *computed, *left;          /* of messages, as in memoi_play_step */
    int64_t *crossed, *used, *summed, *released; /* of crossings */
    int32_t *in_turn, n_in_turn;                 /* ranks of the present turn */
} memoi_clock;

/* Whom something travels from and to. */
typedef struct memoi_clock_way {
    int32_t from, to;
    int64_t time; /* on the link */
} memoi_clock_way;

MEMOI memoi_clock_way memoi_clock_way_of(const memoi_messages* m,
                                         const memoi_messages_event* event) {
    const int link = event->turn % MEMOI_N_LINKS;
    const int64_t time = m->times[link][event->is_given];
    memoi_clock_way way;
    int32_t from, to;
    if (link == MEMOI_LINK_NODES) {
        from = m->crossings[event->index].owner;
        to = m->crossings[event->index].holder;
        way.time = m->crossings[event->index].n_rows * time;
    } else {
        from = m->list[event->index].source;
        to = m->list[event->index].reader;
        way.time = from == to ? 0 : m->list[event->index].n_rows * time;
    }
    way.from = event->is_given ? to : from;
    way.to = event->is_given ? from : to;
    return way;
}

/* The end of a step of a reader, and of all before it. */
MEMOI int64_t memoi_clock_compute(memoi_clock* p, int32_t r, int32_t step) {
    const memoi_messages* m = p->m;
    memoi_clock_rank* rank = &p->ranks[r];
    const int32_t* order = m->order + m->first_of_rank[r] - 1;
    while (rank->n_steps < step) {
        const int32_t i = order[++rank->n_steps];
        const memoi_ring_message* x = &m->list[i];
        const int32_t after = p->is_backward ? x->after[MEMOI_POOL_GRADIENTS] : 0;
        const int64_t arrived = memoi_messages_is_own(x) ? p->crossed[x->crossing] : p->arrived[i];
        rank->computed = memob_max(rank->computed, arrived);
        if (after) rank->computed = memob_max(rank->computed, p->left[order[after]]);
        rank->computed += memoi_messages_cost(x->work, p->is_backward);
        p->computed[i] = rank->computed;
    }
    return step ? p->computed[order[step]] : 0;
}

/* When the room of a crossing is free of those before. */
MEMOI int64_t memoi_clock_room(memoi_clock* p, const memoi_ring_crossing* x) {
    const memoi_messages* m = p->m;
    const int32_t* held = m->held + m->first_of_holder[x->holder];
    int64_t at = 0;
    for (int32_t k = 0; k < x->number - 1; k++) {
        const memoi_ring_crossing* before = &m->crossings[held[k]];
        if (!memoi_messages_overlap(before, x->row, x->n_rows)) continue;
        at = memob_max(at, memob_max(p->used[held[k]], p->released[held[k]]));
        for (int32_t i = before->first; i < before->first + before->n_readers; i++) {
            const memoi_ring_message* by = &m->list[m->of_crossings[i]];
            if (memoi_messages_is_own(by))
                at = memob_max(at, memoi_clock_compute(p, x->holder, by->step));
        }
    }
    return at;
}

/* When each end of a message may begin it: {from, to}. */
MEMOI void memoi_clock_gates(memoi_clock* p, const memoi_messages_event* event, int64_t gates[2]) {
    const memoi_messages* m = p->m;
    gates[0] = gates[1] = 0;
    if (event->turn % MEMOI_N_LINKS == MEMOI_LINK_NODES) {
        const memoi_ring_crossing* x = &m->crossings[event->index];
        if (!event->is_given) gates[1] = memoi_clock_room(p, x);
        if (event->is_given) gates[0] = p->summed[event->index];
    } else {
        const memoi_ring_message* x = &m->list[event->index];
        if (!event->is_given) {
            if (x->crossing >= 0) gates[0] = p->crossed[x->crossing];
            gates[1] = memoi_clock_compute(p, x->reader, x->after[MEMOI_POOL_KEYS]);
        } else {
            gates[0] = memoi_clock_compute(p, x->reader, x->step);
            if (x->crossing < 0) gates[1] = memoi_messages_own_first(m, x->owner, 1);
        }
    }
}

/* A rank takes part in the present turn, behind a time. */
MEMOI memoi_clock_rank* memoi_clock_take_part(memoi_clock* p, int32_t r, int32_t turn,
                                              int64_t gate) {
    memoi_clock_rank* rank = &p->ranks[r];
    if (rank->turn != turn + 1) {
        rank->turn = turn + 1;
        rank->begin = rank->exchanged[turn % MEMOI_N_LINKS];
        rank->out = 0;
        p->in_turn[p->n_in_turn++] = r;
    }
    rank->begin = memob_max(rank->begin, gate);
    return rank;
}

/* What an event brought is there. */
MEMOI void memoi_clock_note(memoi_clock* p, const memoi_messages_event* event, int64_t at) {
    const int is_of_nodes = event->turn % MEMOI_N_LINKS == MEMOI_LINK_NODES;
    const int32_t c = is_of_nodes ? event->index : p->m->list[event->index].crossing;
    if (is_of_nodes) {
        (event->is_given ? p->released : p->crossed)[c] = at;
        return;
    }
    (event->is_given ? p->left : p->arrived)[event->index] = at;
    if (c < 0) return;
    if (event->is_given) p->summed[c] = memob_max(p->summed[c], at);
    if (!event->is_given) p->used[c] = memob_max(p->used[c], at);
}

/* A turn of n events: both ends of a message begin, what ranks send leaves, and arrives. */
MEMOI void memoi_clock_exchange(memoi_clock* p, const memoi_messages_event* events, int32_t n) {
    const int link = events->turn % MEMOI_N_LINKS;
    p->n_in_turn = 0;

    /* When each end may begin. */
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = memoi_clock_way_of(p->m, &events[i]);
        int64_t gates[2];
        memoi_clock_gates(p, &events[i], gates);
        memoi_clock_take_part(p, way.from, events->turn, gates[0])->out += way.time;
        (void)memoi_clock_take_part(p, way.to, events->turn, gates[1]);
    }
    for (int32_t k = 0; k < p->n_in_turn; k++)
        p->ranks[p->in_turn[k]].start = p->ranks[p->in_turn[k]].begin;
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = memoi_clock_way_of(p->m, &events[i]);
        memoi_clock_rank *a = &p->ranks[way.from], *b = &p->ranks[way.to];
        a->start = memob_max(a->start, b->begin);
        b->start = memob_max(b->start, a->begin);
    }

    /* When what a rank sends has left, and what it receives is there. */
    for (int32_t k = 0; k < p->n_in_turn; k++) {
        memoi_clock_rank* rank = &p->ranks[p->in_turn[k]];
        rank->exchanged[link] = rank->start + rank->out;
    }
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = memoi_clock_way_of(p->m, &events[i]);
        const memoi_clock_rank* from = &p->ranks[way.from];
        memoi_clock_rank* to = &p->ranks[way.to];
        to->exchanged[link] = memob_max(to->exchanged[link], from->start + from->out);
    }
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = memoi_clock_way_of(p->m, &events[i]);
        memoi_clock_note(
            p, &events[i],
            memob_max(p->ranks[way.from].exchanged[link], p->ranks[way.to].exchanged[link]));
    }
}

/* The events of a pass by turns. */
MEMOI void memoi_messages_sort(memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = memoi_messages_count(m), n_crossings = memoi_messages_crossings(m);
    const int32_t n_most = (n + n_crossings) * (1 + is_backward);
    memoi_messages_event* events = MEMOB_ARRAY(scratch, memoi_messages_event, n_most + 1);
    memoi_messages_event* all = MEMOB_ARRAY(scratch, memoi_messages_event, n_most + 1);
    memob_keyed* order = MEMOB_ARRAY(scratch, memob_keyed, n_most + 1);
    int32_t n_events = 0;
    if (scratch->failed) return;
    for (int is_given = 0; is_given <= is_backward; is_given++) {
        for (int32_t i = 0; i < n; i++) {
            const memoi_messages_event event = {
                m->list[i].turns[is_backward + is_given] * MEMOI_N_LINKS + MEMOI_LINK_RING, i,
                is_given};
            if (is_given || !memoi_messages_is_own(&m->list[i])) all[n_events++] = event;
        }
        for (int32_t c = 0; c < n_crossings; c++) {
            const memoi_messages_event event = {
                m->crossings[c].turns[is_backward + is_given] * MEMOI_N_LINKS + MEMOI_LINK_NODES, c,
                is_given};
            all[n_events++] = event;
        }
    }

    for (int32_t i = 0; i < n_events; i++) order[i] = memob_keyed_of(all[i].turn, i);
    memob_keyed_sort(order, n_events);
    for (int32_t i = 0; i < n_events; i++) events[i] = all[order[i].index];
    m->events[is_backward] = events;
    m->n_events[is_backward] = n_events;
}

/* The time of a pass. */
MEMOI int64_t memoi_messages_time(const memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = m->n_ranks;
    const int64_t n_messages = memoi_messages_count(m) + 1;
    const int64_t n_crossings = memoi_messages_crossings(m) + 1;
    const memoi_messages_event* events = m->events[is_backward];
    memoi_clock p = MEMO_ZERO(memoi_clock);
    int64_t end = 0;
    p.m = m;
    p.is_backward = is_backward;
    p.ranks = MEMOB_ARRAY(scratch, memoi_clock_rank, n);
    p.arrived = MEMOB_ARRAY(scratch, int64_t, 3 * n_messages);
    p.crossed = MEMOB_ARRAY(scratch, int64_t, 4 * n_crossings);
    p.in_turn = MEMOB_ARRAY(scratch, int32_t, n);
    if (scratch->failed) return 0;
    p.computed = p.arrived + n_messages;
    p.left = p.computed + n_messages;
    p.used = p.crossed + n_crossings;
    p.summed = p.used + n_crossings;
    p.released = p.summed + n_crossings;

    for (int32_t r = 0; r < n; r++)
        p.ranks[r].computed = memoi_messages_own_first(m, r, is_backward);
    for (int32_t i = 0, next; i < m->n_events[is_backward]; i = next) {
        for (next = i; next < m->n_events[is_backward] && events[next].turn == events[i].turn;)
            next++;
        memoi_clock_exchange(&p, events + i, next - i);
    }
    for (int32_t r = 0; r < n; r++) {
        (void)memoi_clock_compute(&p, r, memoi_messages_steps(m, r));
        p.ranks[r].computed +=
            memoi_messages_own(m, r, is_backward) - memoi_messages_own_first(m, r, is_backward);
        end = memob_max(end, p.ranks[r].computed);
        for (int link = 0; link < MEMOI_N_LINKS; link++)
            end = memob_max(end, p.ranks[r].exchanged[link]);
    }
    return end;
}

/* --- the choice --- */

/* Receiving is taken for this part of a forward, in the mean of the ranks; links between nodes for
 * so much slower. */
enum { MEMOI_LINKS_PART = 6, MEMOI_NODES_SLOWER = 10 };

/* Orders of a list: turns by distance; by time; steps by distance, turns by time. */
enum { MEMOI_ORDER_DISTANCES = 0, MEMOI_ORDER_TIME, MEMOI_ORDER_STEPS, MEMOI_N_LIST_ORDERS };

MEMOI void memoi_messages_put_in_order(memoi_messages* m, int order, memob_arrays* scratch) {
    const int is_by_time = order == MEMOI_ORDER_TIME;
    memoi_messages_add_all(m, scratch);
    if (scratch->failed) return;
    (is_by_time ? memoi_messages_by_rows : memoi_messages_by_distance)(m, scratch);
    for (int i = 0; i < 2 && order != MEMOI_ORDER_DISTANCES && !scratch->failed; i++) {
        memoi_play_pass(m, i, i || !is_by_time, scratch);
        if (!i && is_by_time && !scratch->failed) memoi_messages_find_rooms(m, scratch);
    }
    for (int i = 0; i < 2 && !scratch->failed; i++) memoi_messages_sort(m, i, scratch);
}

/* The time of the rank that computes longest, in both passes. */
MEMOI int64_t memoi_messages_busiest(const memoi_messages* m) {
    int64_t most = 0;
    for (int64_t r = 0; r < m->n_ranks; r++) {
        int64_t work = 0;
        for (int64_t owner = 0; owner < m->n_ranks; owner++)
            work += m->work_of[r * m->n_ranks + owner];
        most = memob_max(most, memoi_messages_cost(work, 0) + memoi_messages_cost(work, 1));
    }
    return most;
}

/* The order that takes least in both passes is the list.  The others are not tried once the busiest
 * rank hardly waits. */
MEMOI void memoi_messages_make(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    memoi_messages best = *m;
    const int64_t busiest = memoi_messages_busiest(m), bound = busiest + busiest / 100;
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < n * n; i++) {
        m->n_rows += m->rows_of[i];
        m->work += m->work_of[i];
    }
    m->times[0][0] = m->n_rows ? m->work / MEMOI_LINKS_PART / m->n_rows : 0;
    m->times[1][0] = MEMOI_NODES_SLOWER * m->times[0][0];
    for (int link = 0; link < MEMOI_N_LINKS; link++)
        m->times[link][1] = m->times[link][0] * (memo_type_bytes(m->shape->carried_type) /
                                                 memo_type_bytes(m->shape->type));
    m->lead = m->work / n / 100;

    for (int order = 0; order < MEMOI_N_LIST_ORDERS && least > bound; order++) {
        memoi_messages made = *m;
        int64_t time = 0;
        memoi_messages_put_in_order(&made, order, scratch);
        for (int i = 0; i < 2 && !scratch->failed; i++)
            time += memoi_messages_time(&made, i, scratch);
        if (scratch->failed) return;
        if (time < least) best = made;
        least = memob_min(least, time);
    }
    *m = best;
}
