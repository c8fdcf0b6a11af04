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
    struct memoi_clock_way* ways;                /* of its events */
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
        p->ways[i] = way;
        memoi_clock_gates(p, &events[i], gates);
        memoi_clock_take_part(p, way.from, events->turn, gates[0])->out += way.time;
        (void)memoi_clock_take_part(p, way.to, events->turn, gates[1]);
    }
    for (int32_t k = 0; k < p->n_in_turn; k++)
        p->ranks[p->in_turn[k]].start = p->ranks[p->in_turn[k]].begin;
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = p->ways[i];
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
        const memoi_clock_way way = p->ways[i];
        const memoi_clock_rank* from = &p->ranks[way.from];
        memoi_clock_rank* to = &p->ranks[way.to];
        to->exchanged[link] = memob_max(to->exchanged[link], from->start + from->out);
    }
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = p->ways[i];
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
    p.ways = MEMOB_ARRAY(scratch, memoi_clock_way, 2 * (int64_t)n); /* keys and contributions */
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

/* Orders of a list: turns by distance; steps by distance, turns by time; both by time. */
enum { MEMOI_ORDER_DISTANCES = 0, MEMOI_ORDER_STEPS, MEMOI_ORDER_TIME, MEMOI_N_LIST_ORDERS };

/* A pass of a list by distance gets another order.  A forward comes first: it makes rooms.  Turns
 * follow from the rooms that steps have then: those of a play, which counts free rows alone, may
 * let two messages share a turn of which one has no room for long. */
MEMOI void memoi_messages_put_in_order(memoi_messages* m, int order, int is_backward,
                                       memob_arrays* scratch) {
    const int makes_steps = order == MEMOI_ORDER_TIME && !is_backward;
    if (makes_steps) memoi_messages_by_rows(m, scratch);
    if (order != MEMOI_ORDER_DISTANCES && !scratch->failed)
        memoi_play_pass(m, is_backward, !makes_steps, scratch);
    if (makes_steps && !scratch->failed) {
        memoi_messages_find_rooms(m, scratch);
        if (!scratch->failed) memoi_play_pass(m, 0, 1, scratch); /* rooms may be free later */
    }
    if (!scratch->failed) memoi_messages_sort(m, is_backward, scratch);
}

/* What each rank and link is busy with in a pass.  Keys and contributions may arrive at once. */
typedef struct memoi_clock_load {
    int64_t computes, sends[MEMOI_N_LINKS], receives[MEMOI_N_LINKS][2];
} memoi_clock_load;

MEMOI void memoi_clock_add_load(const memoi_messages* m, int link, int32_t from, int32_t to,
                                int64_t n_rows, int is_backward, memoi_clock_load* loads) {
    for (int is_given = 0; is_given <= is_backward && from != to; is_given++) {
        const int64_t time = n_rows * m->times[link][is_given];
        loads[is_given ? to : from].sends[link] += time;
        loads[is_given ? from : to].receives[link][is_given] += time;
    }
}

/* No order of a pass takes less: the time of the rank that computes, sends or receives longest. */
MEMOI int64_t memoi_messages_least(const memoi_messages* m, int is_backward,
                                   memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    memoi_clock_load* loads = MEMOB_ARRAY(scratch, memoi_clock_load, n);
    int64_t most = 0;
    if (scratch->failed) return 0;
    for (int32_t i = 0; i < memoi_messages_count(m); i++) {
        const memoi_ring_message* x = &m->list[i];
        memoi_clock_add_load(m, MEMOI_LINK_RING, x->source, x->reader, x->n_rows, is_backward,
                             loads);
        loads[x->reader].computes += memoi_messages_cost(x->work, is_backward);
    }
    for (int32_t i = 0; i < memoi_messages_crossings(m); i++) {
        const memoi_ring_crossing* x = &m->crossings[i];
        memoi_clock_add_load(m, MEMOI_LINK_NODES, x->owner, x->holder, x->n_rows, is_backward,
                             loads);
    }
    for (int32_t r = 0; r < n; r++) {
        const memoi_clock_load* load = &loads[r];
        most = memob_max(most, load->computes + memoi_messages_own(m, r, is_backward));
        for (int link = 0; link < MEMOI_N_LINKS; link++) {
            most = memob_max(most, load->sends[link]);
            most = memob_max(most, memob_max(load->receives[link][0], load->receives[link][1]));
        }
    }
    return most;
}

/* An order of a list, made so far. */
typedef struct memoi_messages_trial {
    memoi_messages list;
    int32_t n_passes; /* made */
    int64_t least;    /* time of these, and the least of the others */
} memoi_messages_trial;

/* Makes one pass more. */
MEMOI void memoi_messages_try(const memoi_messages* by_distance, int order, const int64_t least[2],
                              memoi_messages_trial* trial, memob_arrays* scratch) {
    const int pass = trial->n_passes++;
    if (!pass) memoi_messages_copy(by_distance, &trial->list, scratch);
    if (!scratch->failed) memoi_messages_put_in_order(&trial->list, order, pass, scratch);
    if (!scratch->failed)
        trial->least += memoi_messages_time(&trial->list, pass, scratch) - least[pass];
}

/* The order that takes least in both passes is the list, or one that takes a hundredth more than
 * any can.  What takes longer already than another order may is not made further. */
MEMOI void memoi_messages_choose(memoi_messages* m, memob_arrays* scratch) {
    const int64_t least[2] = {memoi_messages_least(m, 0, scratch),
                              memoi_messages_least(m, 1, scratch)};
    const int64_t enough = least[0] + least[1] + (least[0] + least[1]) / 100;
    memoi_messages_trial trials[MEMOI_N_LIST_ORDERS];
    int best = 0;
    for (int i = 0; i < MEMOI_N_LIST_ORDERS; i++) {
        trials[i].n_passes = 0;
        trials[i].least = least[0] + least[1];
    }
    while (trials[best].n_passes < 2) {
        memoi_messages_try(m, best, least, &trials[best], scratch);
        if (scratch->failed) return;
        best = 0;
        for (int i = 1; i < MEMOI_N_LIST_ORDERS; i++) {
            const int64_t a = memob_max(trials[i].least, enough);
            const int64_t b = memob_max(trials[best].least, enough);
            if (a < b || (a == b && trials[i].n_passes > trials[best].n_passes)) best = i;
        }
    }
    *m = trials[best].list;
}

MEMOI void memoi_messages_make(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
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
    memoi_messages_add_all(m, scratch);
    if (!scratch->failed) memoi_messages_by_distance(m, scratch);
    if (!scratch->failed) memoi_messages_choose(m, scratch);
}
