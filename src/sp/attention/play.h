#pragma once
#include "sp/attention/messages.h"
/* ---- >>order of messages ------------------------------------------------------------------------
 * Knows: messages and crossings, their times and rooms, as integers.  Knows nothing of positions,
 * heads or streams.
 *
 * A pass is played once: next is always what can begin first.  A rank sends and receives one
 * message at a time, within its node and between nodes at once.
 *
 * 1. Something can begin while anything is left. */

/* A link of a rank. */
typedef struct memoi_play_port {
    int64_t sends, receives, turn_start; /* free from these times on; of its last turn */
    int32_t turn, has[4];                /* in it received and sent: keys, contributions */
} memoi_play_port;

typedef struct memoi_play_rank {
    memoi_play_port links[MEMOI_N_LINKS];
    int64_t computes;                       /* it is free from this time on */
    int32_t n_brought, n_computed, n_given; /* its steps, so far */
    int32_t oldest;                         /* step whose rows may still be in the pool */
    int64_t used, freed;       /* rows that the pool ever had; without those from `oldest` on */
    int32_t n_near, n_ready;   /* messages not brought: of its node; of crossings that are there */
    int32_t n_crossed, n_sums; /* crossings that came to it; of which all contributions have */
} memoi_play_rank;

/* What is known of a message, or INT64_MAX. */
typedef struct memoi_play_step {
    int64_t arrived, computed, left; /* keys; what is computed with them; its contribution */
    int32_t level;                   /* of what is computed: the last turn that it waits for */
} memoi_play_step;
typedef struct memoi_play_crossing {
    int64_t crossed, used, summed, released; /* used, summed: by readers so far */
    int32_t n_used, n_summed, used_level, sum_level, released_level;
} memoi_play_crossing;

/* A rank as a reader, or as one who holds rows, and what it can begin next. */
typedef struct memoi_play_actor {
    int64_t start, later; /* of what starts at the same time the one with less `later` is first */
    int32_t index, is_given; /* of what */
    int32_t at;              /* in heap */
} memoi_play_actor;

/* An actor in the heap, with what it was placed by. */
typedef struct memoi_play_place {
    int64_t start, later;
    int32_t actor;
} memoi_play_place;

typedef struct memoi_play {
    memoi_messages* m;
    int is_backward, is_fixed; /* the order of steps and crossings is given */
    memoi_play_rank* ranks;
    memoi_play_step* steps;
    memoi_play_crossing* crossings;
    int32_t *near, *ready; /* messages of each rank that are not brought */
    int32_t* sums;         /* crossings of each rank */
    memoi_play_actor* actors;
    memoi_play_place* heap; /* of actors; the first one has the earliest start */
    int32_t n_heap;
    int32_t n_left;
    int64_t pool_rows[2]; /* of keys, of held keys */
} memoi_play;

/* A rank looks at so many messages of a kind. */
enum { MEMOI_MESSAGES_LOOK = 3 };

MEMOI int64_t memoi_play_pool_rows(const memoi_ring_message* x) {
    return memoi_messages_is_own(x) ? 0 : memob_align_up(x->n_rows, MEMOI_POOL_ALIGNMENT);
}
MEMOI int32_t memoi_play_of(const memoi_play* p, int32_t r, int32_t k) {
    return p->m->order[p->m->first_of_rank[r] + k];
}
/* When a message may begin, by its link. */
MEMOI int64_t memoi_play_link(const memoi_play* p, int link, int32_t from, int32_t to) {
    return memob_max(p->ranks[from].links[link].sends, p->ranks[to].links[link].receives);
}

/* --- rooms --- */

/* When there is room for the keys of a message more.  The first play finds the order that makes
 * rooms, with rows that leave as they came. */
MEMOI int64_t memoi_play_room(const memoi_play* p, const memoi_ring_message* x) {
    const memoi_play_rank* rank = &p->ranks[x->reader];
    int64_t freed = rank->freed, at = 0;
    if (p->is_fixed) {
        const int32_t after = x->after[MEMOI_POOL_KEYS];
        if (after > rank->n_computed) return INT64_MAX;
        return after ? p->steps[memoi_play_of(p, x->reader, after - 1)].computed : 0;
    }
    for (int32_t k = rank->oldest; rank->used - freed + memoi_play_pool_rows(x) > p->pool_rows[0];
         k++) {
        const int32_t i = memoi_play_of(p, x->reader, k);
        freed += memoi_play_pool_rows(&p->m->list[i]);
        at = p->steps[i].computed;
    }
    return at;
}

/* When rows of a pool of held keys are free of all crossings that came before; level: the last turn
 * that this takes. */
MEMOI int64_t memoi_play_rows_free(const memoi_play* p, int32_t holder, int64_t row, int64_t n_rows,
                                   int32_t* level) {
    const int32_t* held = p->m->held + p->m->first_of_holder[holder];
    int64_t at = 0;
    *level = 0;
    for (int32_t k = 0; k < p->ranks[holder].n_crossed; k++) {
        const memoi_play_crossing* c = &p->crossings[held[k]];
        if (!memoi_messages_overlap(&p->m->crossings[held[k]], row, n_rows)) continue;
        at = memob_max(at, c->released);
        *level = (int32_t)memob_max(*level, c->released_level);
    }
    return at;
}

/* When there is room for a crossing more, and where: as low as is first free. */
MEMOI int64_t memoi_play_held_room(const memoi_play* p, const memoi_ring_crossing* x, int64_t* row,
                                   int32_t* level) {
    const int32_t* held = p->m->held + p->m->first_of_holder[x->holder];
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    int64_t at = INT64_MAX;
    *row = x->row;
    if (p->is_backward) return memoi_play_rows_free(p, x->holder, x->row, x->n_rows, level);
    for (int32_t k = -1; k < p->ranks[x->holder].n_crossed; k++) {
        const memoi_ring_crossing* c = k < 0 ? NULL : &p->m->crossings[held[k]];
        const int64_t here = c ? memob_align_up(c->row + c->n_rows, unit) : 0;
        int32_t level_here;
        int64_t free_at;
        if (here + x->n_rows > p->pool_rows[1]) continue;
        free_at = memoi_play_rows_free(p, x->holder, here, x->n_rows, &level_here);
        if (free_at > at || (free_at == at && here >= *row)) continue;
        at = free_at;
        *row = here;
        *level = level_here;
    }
    return at;
}

/* --- what can begin first --- */

MEMOI void memoi_play_offer(memoi_play_actor* actor, int64_t start, int32_t index, int is_given) {
    if (start >= actor->start) return;
    actor->start = start;
    actor->index = index;
    actor->is_given = is_given;
}

MEMOI void memoi_play_look_at(const memoi_play* p, memoi_play_actor* actor, int32_t i) {
    const memoi_ring_message* x = &p->m->list[i];
    int64_t at = x->crossing < 0 ? 0 : p->crossings[x->crossing].crossed;
    if (!memoi_messages_is_own(x)) {
        at = memob_max(at, memoi_play_link(p, MEMOI_LINK_RING, x->source, x->reader));
        if (at >= actor->start) return;
        at = memob_max(at, memoi_play_room(p, x));
    }
    memoi_play_offer(actor, at, i, 0);
}

/* What a reader can do next. */
MEMOI void memoi_play_look_reader(const memoi_play* p, memoi_play_actor* actor, int32_t r) {
    const memoi_play_rank* rank = &p->ranks[r];
    const int32_t first = p->m->first_of_rank[r];
    if (p->is_backward && rank->n_given < rank->n_computed) {
        const int32_t i = memoi_play_of(p, r, rank->n_given);
        const memoi_ring_message* x = &p->m->list[i];
        int64_t at = p->steps[i].computed;
        if (!memoi_messages_is_own(x))
            at = memob_max(at, memoi_play_link(p, MEMOI_LINK_RING, r, x->source));
        if (x->crossing < 0) at = memob_max(at, memoi_messages_own_first(p->m, x->owner, 1));
        memoi_play_offer(actor, at, i, 1);
    }
    if (p->is_fixed) {
        if (rank->n_brought < memoi_messages_steps(p->m, r))
            memoi_play_look_at(p, actor, memoi_play_of(p, r, rank->n_brought));
        return;
    }
    for (int32_t k = 0; k < rank->n_near && k < MEMOI_MESSAGES_LOOK; k++)
        memoi_play_look_at(p, actor, p->near[first + k]);
    for (int32_t k = 0; k < rank->n_ready && k < MEMOI_MESSAGES_LOOK; k++)
        memoi_play_look_at(p, actor, p->ready[first + k]);
}

/* What a rank can do next between nodes: rows that it will hold, or a sum that returns. */
MEMOI void memoi_play_look_holder(const memoi_play* p, memoi_play_actor* actor, int32_t r) {
    const memoi_messages* m = p->m;
    const memoi_play_rank* rank = &p->ranks[r];
    const int32_t first = m->first_of_holder[r], n = m->first_of_holder[r + 1] - first;
    const int32_t looks = p->is_fixed ? 1 : MEMOI_MESSAGES_LOOK;
    for (int32_t k = rank->n_crossed; k < n && k < rank->n_crossed + looks; k++) {
        const memoi_ring_crossing* x = &m->crossings[m->held[first + k]];
        int64_t at = memoi_play_link(p, MEMOI_LINK_NODES, x->owner, r), row;
        int32_t level;
        if (at >= actor->start) continue;
        memoi_play_offer(actor, memob_max(at, memoi_play_held_room(p, x, &row, &level)),
                         m->held[first + k], 0);
    }
    if (rank->n_sums) {
        const int32_t c = p->sums[first];
        const int32_t owner = m->crossings[c].owner;
        memoi_play_offer(
            actor,
            memob_max(p->crossings[c].summed, memoi_play_link(p, MEMOI_LINK_NODES, r, owner)), c,
            1);
    }
}

/* Is the link of what an actor begins free at its start?  Others may have taken it since the actor
 * looked; nothing else makes a start later. */
MEMOI int memoi_play_is_free(const memoi_play* p, int32_t a) {
    const memoi_play_actor* actor = &p->actors[a];
    const int link = a % 2 ? MEMOI_LINK_NODES : MEMOI_LINK_RING;
    const int32_t r = a / 2;
    int32_t other;
    if (a % 2) {
        other = p->m->crossings[actor->index].owner;
    } else {
        if (memoi_messages_is_own(&p->m->list[actor->index])) return 1;
        other = p->m->list[actor->index].source;
    }
    return memoi_play_link(p, link, actor->is_given ? r : other, actor->is_given ? other : r) <=
           actor->start;
}

/* Of what can begin at the same time, rows that cross are first; then the rank that has least to
 * compute. */
MEMOI void memoi_play_look(const memoi_play* p, int32_t a) {
    memoi_play_actor* actor = &p->actors[a];
    actor->start = INT64_MAX;
    (a % 2 ? memoi_play_look_holder : memoi_play_look_reader)(p, actor, a / 2);
    actor->later = a % 2 ? actor->is_given - 1 : p->ranks[a / 2].computes;
}

MEMOI int memoi_play_is_before(const memoi_play_place* x, const memoi_play_place* y) {
    if (x->start != y->start) return x->start < y->start;
    return x->later != y->later ? x->later < y->later : x->actor < y->actor;
}
MEMOI void memoi_play_put(memoi_play* p, int32_t i, memoi_play_place place) {
    p->heap[i] = place;
    p->actors[place.actor].at = i;
}
MEMOI void memoi_play_sift(memoi_play* p, int32_t a) {
    const memoi_play_actor* actor = &p->actors[a];
    const memoi_play_place place = {actor->start, actor->later, a};
    const memoi_play_place* heap = p->heap;
    int32_t i = actor->at;
    while (i && memoi_play_is_before(&place, &heap[(i - 1) / 2])) {
        memoi_play_put(p, i, heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= p->n_heap) break;
        child += child + 1 < p->n_heap && memoi_play_is_before(&heap[child + 1], &heap[child]);
        if (!memoi_play_is_before(&heap[child], &place)) break;
        memoi_play_put(p, i, heap[child]);
        i = child;
    }
    memoi_play_put(p, i, place);
}
/* What an actor begins next, or when, may have changed. */
MEMOI void memoi_play_look_again(memoi_play* p, int32_t a) {
    memoi_play_look(p, a);
    memoi_play_sift(p, a);
}

/* --- what begins --- */

/* The turn of what begins at this time, behind turn `level`: the present one of both ranks, if they
 * have no such message in it. */
MEMOI int32_t memoi_play_turn(memoi_play* p, int link, int32_t from, int32_t to, int is_given,
                              int64_t at, int32_t level) {
    const int32_t ends[2] = {to, from};
    int32_t turn = level + 1;
    for (int i = 0; i < 2; i++) {
        const memoi_play_port* x = &p->ranks[ends[i]].links[link];
        const int is_full = x->has[2 * is_given + i] || at - x->turn_start > p->m->lead;
        turn = (int32_t)memob_max(turn, x->turn + is_full);
    }
    for (int i = 0; i < 2; i++) {
        memoi_play_port* x = &p->ranks[ends[i]].links[link];
        if (x->turn != turn) {
            memset(x->has, 0, sizeof x->has);
            x->turn_start = at;
        }
        x->turn = turn;
        x->has[2 * is_given + i] = 1;
    }
    return turn;
}

/* Takes an entry from a queue of n + 1. */
MEMOI void memoi_play_take(int32_t* queue, int32_t n, int32_t entry) {
    int32_t k = 0;
    while (queue[k] != entry) k++;
    memmove(queue + k, queue + k + 1, (size_t)(n - k) * sizeof *queue);
}

/* A reader has read rows of a crossing. */
MEMOI void memoi_play_use(memoi_play* p, int32_t c, int64_t at, int32_t level) {
    memoi_play_crossing* x = &p->crossings[c];
    x->used = memob_max(x->used, at);
    x->used_level = (int32_t)memob_max(x->used_level, level);
    if (++x->n_used < p->m->crossings[c].n_readers || p->is_backward) return;
    x->released = x->used;
    x->released_level = x->used_level;
    memoi_play_look_again(p, 2 * p->m->crossings[c].holder + 1);
}

/* The steps that have their keys, and room for what they contribute. */
MEMOI void memoi_play_compute(memoi_play* p, int32_t r) {
    memoi_play_rank* rank = &p->ranks[r];
    while (rank->n_computed < rank->n_brought) {
        const int32_t i = memoi_play_of(p, r, rank->n_computed);
        const memoi_ring_message* x = &p->m->list[i];
        const int32_t after = p->is_backward ? x->after[MEMOI_POOL_GRADIENTS] : 0;
        memoi_play_step* step = &p->steps[i];
        step->level = x->turns[p->is_backward];
        if (after > rank->n_given) return;
        if (after) {
            const int32_t before = memoi_play_of(p, r, after - 1);
            step->level = (int32_t)memob_max(step->level, p->m->list[before].turns[2]);
            rank->computes = memob_max(rank->computes, p->steps[before].left);
        }
        if (rank->n_computed)
            step->level = (int32_t)memob_max(
                step->level, p->steps[memoi_play_of(p, r, rank->n_computed - 1)].level);
        rank->computes =
            memob_max(rank->computes, step->arrived) + memoi_messages_cost(x->work, p->is_backward);
        step->computed = rank->computes;
        rank->n_computed++;
        if (memoi_messages_is_own(x)) memoi_play_use(p, x->crossing, step->computed, step->level);
    }
}

/* Keys leave for their reader; in the first play they become those of its next step. */
MEMOI void memoi_play_bring(memoi_play* p, int32_t i, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_message* x = &m->list[i];
    const int32_t r = x->reader, first = m->first_of_rank[r];
    memoi_play_rank* rank = &p->ranks[r];
    memoi_play_step* step = &p->steps[i];
    const int32_t after = p->is_fixed ? x->after[MEMOI_POOL_KEYS] : rank->n_brought;
    int32_t level = after ? p->steps[memoi_play_of(p, r, after - 1)].level : 0;
    step->arrived = start;
    if (x->crossing >= 0)
        level = (int32_t)memob_max(level, m->crossings[x->crossing].turns[p->is_backward]);
    if (!p->is_fixed) {
        memoi_play_take((x->crossing < 0 ? p->near : p->ready) + first,
                        x->crossing < 0 ? --rank->n_near : --rank->n_ready, i);
        m->order[first + rank->n_brought] = i;
    }

    /* It travels, and a row that has crossed may be passed on. */
    x->step = ++rank->n_brought;
    x->turns[p->is_backward] = level;
    if (!memoi_messages_is_own(x)) {
        x->turns[p->is_backward] =
            memoi_play_turn(p, MEMOI_LINK_RING, x->source, r, 0, start, level);
        step->arrived += x->n_rows * m->times[MEMOI_LINK_RING][0];
        rank->links[MEMOI_LINK_RING].receives = step->arrived;
        p->ranks[x->source].links[MEMOI_LINK_RING].sends = step->arrived;
        if (x->crossing >= 0)
            memoi_play_use(p, x->crossing, step->arrived, x->turns[p->is_backward]);
    }
    if (p->is_fixed) return;

    /* Rooms of what is computed by then are free. */
    rank->used += memoi_play_pool_rows(x);
    while (rank->oldest < rank->n_computed) {
        const int32_t oldest = memoi_play_of(p, r, rank->oldest);
        if (p->steps[oldest].computed > start) break;
        rank->freed += memoi_play_pool_rows(&m->list[oldest]);
        rank->oldest++;
    }
}

/* A contribution leaves. */
MEMOI void memoi_play_give(memoi_play* p, int32_t i, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_message* x = &m->list[i];
    memoi_play_rank* rank = &p->ranks[x->reader];
    memoi_play_crossing* c = &p->crossings[memob_max(x->crossing, 0)];
    rank->n_given++;
    x->turns[2] =
        memoi_play_turn(p, MEMOI_LINK_RING, x->reader, x->source, 1, start, p->steps[i].level);
    p->steps[i].left = start;
    if (!memoi_messages_is_own(x)) {
        p->steps[i].left += x->n_rows * m->times[MEMOI_LINK_RING][1];
        rank->links[MEMOI_LINK_RING].sends = p->steps[i].left;
        p->ranks[x->source].links[MEMOI_LINK_RING].receives = p->steps[i].left;
    }
    if (x->crossing < 0) return;
    c->summed = memob_max(c->summed, p->steps[i].left);
    c->sum_level = (int32_t)memob_max(c->sum_level, x->turns[2]);
    if (++c->n_summed < m->crossings[x->crossing].n_readers) return;
    p->sums[m->first_of_holder[x->source] + p->ranks[x->source].n_sums++] = x->crossing;
    memoi_play_look_again(p, 2 * x->source + 1);
}

/* Rows cross to who will hold them; their readers may get them. */
MEMOI void memoi_play_cross(memoi_play* p, int32_t c, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_crossing* x = &m->crossings[c];
    memoi_play_rank* rank = &p->ranks[x->holder];
    int32_t *held = m->held + m->first_of_holder[x->holder], level = 0, k = rank->n_crossed;
    (void)memoi_play_held_room(p, x, &x->row, &level);
    while (held[k] != c) k++;
    for (; k > rank->n_crossed; k--) held[k] = held[k - 1];
    held[rank->n_crossed++] = c;
    x->number = rank->n_crossed;
    x->turns[p->is_backward] =
        memoi_play_turn(p, MEMOI_LINK_NODES, x->owner, x->holder, 0, start, level);
    p->crossings[c].crossed = start + x->n_rows * m->times[MEMOI_LINK_NODES][0];
    rank->links[MEMOI_LINK_NODES].receives = p->crossings[c].crossed;
    p->ranks[x->owner].links[MEMOI_LINK_NODES].sends = p->crossings[c].crossed;
    for (k = x->first; k < x->first + x->n_readers; k++) {
        const int32_t i = m->of_crossings[k], reader = m->list[i].reader;
        if (!p->is_fixed) p->ready[m->first_of_rank[reader] + p->ranks[reader].n_ready++] = i;
        memoi_play_look_again(p, 2 * reader);
    }
}

/* The sum of contributions returns. */
MEMOI void memoi_play_return(memoi_play* p, int32_t c, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_crossing* x = &m->crossings[c];
    memoi_play_rank* rank = &p->ranks[x->holder];
    memoi_play_crossing* of = &p->crossings[c];
    memoi_play_take(p->sums + m->first_of_holder[x->holder], --rank->n_sums, c);
    x->turns[2] =
        memoi_play_turn(p, MEMOI_LINK_NODES, x->holder, x->owner, 1, start, of->sum_level);
    of->released = start + x->n_rows * m->times[MEMOI_LINK_NODES][1];
    of->released_level = x->turns[2];
    rank->links[MEMOI_LINK_NODES].sends = of->released;
    p->ranks[x->owner].links[MEMOI_LINK_NODES].receives = of->released;
}

/* --- a pass --- */

/* Nothing has travelled, and every rank looks for its first message. */
MEMOI void memoi_play_begin(memoi_play* p, memob_arrays* scratch) {
    const memoi_messages* m = p->m;
    const int32_t n = m->n_ranks, n_messages = memoi_messages_count(m);
    const int32_t n_crossings = memoi_messages_crossings(m);
    p->ranks = MEMOB_ARRAY(scratch, memoi_play_rank, n);
    p->steps = MEMOB_ARRAY(scratch, memoi_play_step, n_messages + 1);
    p->crossings = MEMOB_ARRAY(scratch, memoi_play_crossing, n_crossings + 1);
    p->near = MEMOB_ARRAY(scratch, int32_t, n_messages + 1);
    p->ready = MEMOB_ARRAY(scratch, int32_t, n_messages + 1);
    p->sums = MEMOB_ARRAY(scratch, int32_t, n_crossings + 1);
    p->actors = MEMOB_ARRAY(scratch, memoi_play_actor, 2 * (int64_t)n);
    p->heap = MEMOB_ARRAY(scratch, memoi_play_place, 2 * (int64_t)n);
    p->pool_rows[0] = memoi_pool_rows(m->shape, MEMOI_POOL_KEYS);
    p->pool_rows[1] = memoi_pool_rows(m->shape, MEMOI_POOL_HELD);
    if (scratch->failed) return;

    p->n_left = (n_messages + n_crossings) * (1 + p->is_backward);
    for (int32_t c = 0; c < n_crossings; c++)
        p->crossings[c].crossed = p->crossings[c].released = INT64_MAX;
    for (int32_t r = 0; r < n; r++) {
        p->ranks[r].computes = memoi_messages_own_first(m, r, p->is_backward);
        for (int32_t k = m->first_of_rank[r]; k < m->first_of_rank[r + 1] && !p->is_fixed; k++)
            if (m->list[m->order[k]].crossing < 0)
                p->near[m->first_of_rank[r] + p->ranks[r].n_near++] = m->order[k];
    }
    for (int32_t a = 0; a < 2 * n; a++) {
        const int32_t* first = (a % 2 ? m->first_of_holder : m->first_of_rank) + a / 2;
        if (first[0] == first[1]) continue;
        p->actors[a].at = p->n_heap++;
        memoi_play_look_again(p, a);
    }
}

/* Plays a pass.  If the order of steps is not fixed, it sets that, and crossings' rooms. */
MEMOI void memoi_play_pass(memoi_messages* m, int is_backward, int is_fixed,
                           memob_arrays* scratch) {
    memoi_play p = MEMO_ZERO(memoi_play);
    p.m = m;
    p.is_backward = is_backward;
    p.is_fixed = is_fixed;
    memoi_play_begin(&p, scratch);
    while (p.n_left && !scratch->failed) {
        const int32_t a = p.heap[0].actor;
        memoi_play_actor* actor = &p.actors[a];
        const int64_t start = actor->start;
        if (memoi_play_is_free(&p, a)) {
            MEMO_ASSERT(start < INT64_MAX); /* 1 */
            p.n_left--;
            if (a % 2)
                (actor->is_given ? memoi_play_return : memoi_play_cross)(&p, actor->index, start);
            else
                (actor->is_given ? memoi_play_give : memoi_play_bring)(&p, actor->index, start);
            if (a % 2 == 0) memoi_play_compute(&p, a / 2);
        }
        memoi_play_look_again(&p, a);
    }
}
