#pragma once
#include "memo/list.h"
#include "memo/moves.h"
/* ---- >>step -------------------------------------------------------------------------------------
 * Knows: where the trainer is in the list of a step, and what lies on the device there.  Knows
 * nothing of what visits compute, and of what items are.
 *
 * A cursor stands in the list.  Begin and end of a visit advance it, and enqueue the copies of the
 * law behind the visit.  The planned step follows itself.  Whatever else the trainer does is a
 * jump: to another phase of the step, or to one beside it.  A phase takes items as given: those
 * that its visits use, or its copies store, before they are loaded or written.  A jump copies the
 * difference: what is newer on the device, and not taken as newer, is stored; what is taken, and
 * not there, is loaded.
 *
 * What lies on the device follows from what a phase takes and the operations since, so nobody
 * keeps owners.
 *
 * A step may leave items out, or their updates.  It goes by the same law, without the copies of
 * these items.  Another choice of items is a jump.
 *
 * Two laws.  States live from step to step, and have the law of a step.  Rows live in a round, and
 * have the law of a round, in two tables: forwards alone, and all visits.  They share no byte.  A
 * visit of both is one operation.  Behind it come the copies of both: stores, then loads, those
 * first for which a visit waits first; of equal ones those of rows.
 *
 * 1. A visit finds there what it reads.
 * 2. What is overwritten is not newer than its home.
 * 3. A phase that is entered has a law; visits come in the order of its list.  Two are open at
 *    most, the older first; with states, one.
 * 4. What was played was begun. */

/* Where the value of an item is. */
enum {
    MEMOB_IS_AWAY = 0,
    MEMOB_IS_THERE,
    MEMOB_IS_NEWER, /* there than at home */
    /* With one of these, where a phase takes it: for updates alone, or for a store behind one. */
    MEMOB_IS_IDLE = 4
};

/* Slots of the device, each of which is bytes of the same states. */
typedef struct memob_spot {
    int32_t at, n_slots;
} memob_spot;

/* A state of a layer. */
typedef struct memob_state_bytes {
    /* Offsets on the device; streamed: on the host; spilled: in the file, through a place on the
     * host; -1: not in the file. */
    int64_t at[MEMO_N_TIERS], n_bytes;
    memob_spot spot;
} memob_state_bytes;

/* What lies on the device, for all steps with the same items. */
typedef struct memob_there {
    uint8_t* lies;     /* (n_items) */
    int32_t* in_slot;  /* (slots of the device): 1 + the item there */
    memob_spot* spots; /* (n_of_layer): where a shared item lies, if it does */
    char* pending;     /* (layers): the layer's update waits */
    uint8_t* leaves;   /* (n_items): MEMOB_LEAVES_, of this step; NULL: nothing */
} memob_there;

/* How long visits wait for copies, if that is measured. */
typedef struct memob_stalls {
    int32_t* waited;   /* (n_visits): the visit waited, and its marks are recorded */
    memo_event* marks; /* 2 n_visits, before and after each wait; NULL: the thread computes */
    double host_s[2];  /* then: of forward and backward, this micro-batch */
    int32_t is_known;  /* all visits of a round were completed */
} memob_stalls;

/* The law of a round's rows, see `Two laws`. */
typedef struct memob_step_rows {
    memob_sink_law of;
    memob_moves moves;
    memob_stalls* stalls; /* NULL: not measured */
} memob_step_rows;

typedef struct memob_step_desc {
    memob_list* list; /* the step takes it */
    /* States; without, all is NULL and 0. */
    const memob_item* items;
    const memob_state_bytes* bytes; /* (n_items): tiers and sizes */
    const char* ends;               /* (n_items): the value ends with an update that reads it */
    memob_moves moves;
    int32_t n_items, n_of_layer; /* items; of a layer, one behind the other */
    /* (n_of_layer): the item that several layers share, each at a spot of its own; -1: none. */
    const int32_t* shared;
    int32_t n_slots[MEMO_N_TIERS];
    const memob_use* uses; /* of all visits of the list */
    int32_t n_uses;
    memob_sink* sink;
    const memob_there* there;
} memob_step_desc;

/* The law of the planned step, or of a phase beside it. */
typedef struct memob_step_law {
    memob_law law;
    memob_sink_law of; /* the same, for a sink */
    memob_use* uses;   /* their visits count from first_visit of the list */
    char* is_idle;     /* of each use: updates alone use the item behind it, to its next load */
    int32_t first_visit, list;
} memob_step_law;

typedef struct memob_step {
    memob_step_desc desc;
    memob_list list;
    memob_step_law laws[MEMOB_N_PHASES]; /* 0: of the planned step; then those beside it */
    int32_t n_laws, law_of[MEMOB_N_PHASES];
    int32_t begin[MEMOB_N_PHASES], end[MEMOB_N_PHASES]; /* operations of each phase */
    uint8_t* takes;                                     /* (phases and none, n_items): MEMOB_IS_ */
    memob_spot* takes_at;                               /* (phases and none, n_of_layer): shared */
    int32_t phase; /* -1: none, and `lies` says what is there */
    int32_t op; /* the visit that comes next, or is open; begin of the phase: it is not entered */
    int32_t played; /* `lies` has the operations of the phase before this one; -1: of others */
    int32_t n_open, is_entered;
    int32_t n_begun, n_ended; /* visits of layers in the round */
    memob_step_rows* rows;    /* of the round; NULL: none moves */
    memob_there there;        /* the desc's */
    struct memob_step* next;  /* another one, with the same items */
    memob_arrays arrays;
} memob_step;

/* The law of the phase. */
MEMOI const memob_step_law* memoi_step_law_of(const memob_step* step, int32_t phase) {
    return &step->laws[step->law_of[phase]];
}

/* --- what lies there --- */

MEMOI void memoi_step_clear(memob_step* step) {
    memset(step->there.lies, MEMOB_IS_AWAY, (size_t)step->desc.n_items);
    memset(step->there.in_slot, 0, (size_t)step->desc.n_slots[0] * sizeof *step->there.in_slot);
}

/* Which of the spots of shared items is the item's; NULL: it is not shared. */
MEMOI memob_spot* memoi_step_shared(const memob_step* step, memob_spot* spots, int32_t item) {
    const int32_t k = step->desc.shared ? item % step->desc.n_of_layer : 0;
    return step->desc.shared && step->desc.shared[k] == item ? &spots[k] : NULL;
}

/* Where the item lies, if it does. */
MEMOI memob_spot memoi_step_lies_at(const memob_step* step, int32_t item) {
    const memob_spot* shared = memoi_step_shared(step, step->there.spots, item);
    return shared ? *shared : step->desc.bytes[item].spot;
}

/* Where a phase that takes the item takes it. */
MEMOI memob_spot memoi_step_takes_at(const memob_step* step, int32_t phase, int32_t item) {
    const memob_spot* shared =
        memoi_step_shared(step, step->takes_at + (int64_t)phase * step->desc.n_of_layer, item);
    return shared ? *shared : step->desc.bytes[item].spot;
}

/* Where a use finds its item on the device. */
MEMOI memob_spot memoi_step_use_at(const memob_step* step, const memob_use* use) {
    const memob_spot spot = {(int32_t)use->at, memoi_use_slots(&step->desc.items[use->item], use)};
    return spot;
}

/* The item no longer lies where it did. */
MEMOI void memoi_step_take_away(memob_step* step, int32_t item) {
    const memob_spot spot = memoi_step_lies_at(step, item);
    for (int32_t slot = spot.at; slot < spot.at + spot.n_slots; slot++)
        if (step->there.in_slot[slot] == item + 1) step->there.in_slot[slot] = 0;
}

/* From now on the item lies there; others in its slots do not. */
MEMOI void memoi_step_put(memob_step* step, int32_t item, memob_spot spot, int is_newer) {
    memob_spot* shared = memoi_step_shared(step, step->there.spots, item);
    if (shared) {
        if (shared->at != spot.at) memoi_step_take_away(step, item);
        *shared = spot;
    }
    for (int32_t slot = spot.at; slot < spot.at + spot.n_slots; slot++) {
        const int32_t other = step->there.in_slot[slot] - 1;
        if (other >= 0 && other != item) {
            MEMO_ASSERT(step->there.lies[other] != MEMOB_IS_NEWER); /* 2 */
            step->there.lies[other] = MEMOB_IS_AWAY;
        }
        step->there.in_slot[slot] = item + 1;
    }
    if (is_newer || !step->there.lies[item])
        step->there.lies[item] = is_newer ? MEMOB_IS_NEWER : MEMOB_IS_THERE;
}

/* What a phase takes of an item in this step: MEMOB_IS_. */
MEMOI int memoi_step_takes(const memob_step* step, int32_t phase, int32_t item) {
    const int takes = step->takes[(int64_t)phase * step->desc.n_items + item];
    const int leaves = memoi_moves_leaves(step->there.leaves, item);
    if (!leaves) return takes & ~MEMOB_IS_IDLE;
    if (leaves == MEMOB_LEAVES_ALL || takes & MEMOB_IS_IDLE) return MEMOB_IS_AWAY;
    return (int)memob_min(takes, MEMOB_IS_THERE);
}

/* Where a copy between device and host finds its item on the device. */
MEMOI memob_spot memoi_part_at(const memob_part* part) {
    const memob_spot spot = {(int32_t)part->at, part->n_slots};
    return spot;
}

/* What an operation leaves. */
MEMOI void memoi_step_play(memob_step* step, const memob_step_law* of, const memob_op* op) {
    const memob_law* law = &of->law;
    int is_update;
    for (int32_t k = op->first_part; k < op->first_part + op->n_parts; k++) {
        const int32_t item = law->parts[k].item;
        const int32_t stores = step->desc.items[item].file < 0 ? MEMOB_OP_STORE : MEMOB_OP_WRITE;
        if (memoi_moves_leave(step->there.leaves, op->kind, &law->parts[k])) continue;
        if (op->kind == MEMOB_OP_LOAD) memoi_step_put(step, item, memoi_part_at(&law->parts[k]), 0);
        if (op->kind == stores && step->there.lies[item]) step->there.lies[item] = MEMOB_IS_THERE;
    }
    if (op->kind != MEMOB_OP_VISIT) return;
    is_update = step->list.visits[of->first_visit + op->visit].pass == MEMOB_UPDATE;
    for (int32_t u = law->first_use[op->visit]; u < law->first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        const int leaves = memoi_moves_leaves(step->there.leaves, use->item);
        if (!step->desc.items[use->item].n_slots) continue;
        if (leaves == MEMOB_LEAVES_ALL || (leaves && is_update)) continue;
        if (use->is_on_host)
            step->there.lies[use->item] = MEMOB_IS_AWAY; /* it is older */
        else
            memoi_step_put(step, use->item, memoi_step_use_at(step, use),
                           use->how != MEMOB_USE_READ);
        if (is_update && step->desc.ends[use->item] && step->there.lies[use->item])
            step->there.lies[use->item] = MEMOB_IS_THERE; /* nobody reads it any more */
    }
}

/* Plays operations [from, to). */
MEMOI void memoi_step_play_all(memob_step* step, const memob_step_law* of, int32_t from,
                               int32_t to) {
    for (int32_t k = from; k < to; k++) memoi_step_play(step, of, &of->law.ops[k]);
}

/* What lies there where the cursor stands.  An open visit may have left all that it leaves.  In a
 * phase it goes on from where it was found last, because each of many updates may look. */
MEMOI void memoi_step_find_lies(memob_step* step) {
    const int32_t end = step->op + step->n_open;
    if (step->phase < 0) return;
    if (step->played < 0) {
        memoi_step_clear(step);
        for (int32_t i = 0; i < step->desc.n_items; i++) {
            const int takes = memoi_step_takes(step, step->phase, i);
            if (takes)
                memoi_step_put(step, i, memoi_step_takes_at(step, step->phase, i),
                               takes == MEMOB_IS_NEWER);
        }
        step->played = step->begin[step->phase];
    }
    MEMO_ASSERT(step->played <= end); /* 4 */
    memoi_step_play_all(step, memoi_step_law_of(step, step->phase), step->played, end);
    step->played = end;
}

/* --- what a phase takes --- */

/* Marks what operation k is the first to use: known; taken if it was there. */
MEMOI void memoi_step_take(memob_step* step, const memob_step_law* of, int32_t k, char* known,
                           const uint8_t* lies, int32_t phase) {
    const memob_op* op = &of->law.ops[k];
    uint8_t* takes = step->takes + (int64_t)phase * step->desc.n_items;
    memob_spot* takes_at = step->takes_at + (int64_t)phase * step->desc.n_of_layer;
    memob_spot* shared;
    for (int32_t p = op->first_part; p < op->first_part + op->n_parts; p++) {
        const int32_t item = of->law.parts[p].item;
        if (op->kind == MEMOB_OP_STORE && !known[item]) {
            takes[item] = lies[item] | (of->law.parts[p].is_idle ? MEMOB_IS_IDLE : 0);
            shared = memoi_step_shared(step, takes_at, item);
            if (shared) *shared = memoi_part_at(&of->law.parts[p]);
        }
        if (op->kind == MEMOB_OP_STORE || op->kind == MEMOB_OP_LOAD) known[item] = 1;
    }
    if (op->kind != MEMOB_OP_VISIT) return;
    for (int32_t u = of->law.first_use[op->visit]; u < of->law.first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        if (!step->desc.items[use->item].n_slots || known[use->item]) continue;
        known[use->item] = 1;
        shared = memoi_step_shared(step, takes_at, use->item);
        if (shared) *shared = memoi_step_use_at(step, use);
        if (!use->is_on_host && use->how != MEMOB_USE_WRITE)
            takes[use->item] = lies[use->item] | (of->is_idle[u] ? MEMOB_IS_IDLE : 0);
        MEMO_ASSERT(use->is_on_host || !memoi_use_reads(use->how) || takes[use->item]); /* 1 */
    }
}

/* The operations before a phase leave what lies there when the phase begins.  The operations from
 * there on decide which of these items the phase takes: to the end of the planned step, and on from
 * the step's begin. */
MEMOI void memoi_step_find_takes(memob_step* step, int32_t phase, char* known, uint8_t* lies) {
    const memob_step_law* of = memoi_step_law_of(step, phase);
    const int32_t n = step->desc.n_items, begin = step->begin[phase];
    const int32_t end = of->list ? of->law.begin[2] : step->end[phase];
    memoi_step_clear(step);
    memoi_step_play_all(step, of, 0, begin);
    memcpy(lies, step->there.lies, (size_t)n);
    memset(known, 0, (size_t)n);
    for (int32_t k = begin; k < end; k++) memoi_step_take(step, of, k, known, lies, phase);
    for (int32_t k = of->list ? of->law.begin[1] : begin; k < begin; k++)
        memoi_step_take(step, of, k, known, lies, phase);
}

/* --- creation --- */

/* Behind a phase beside the step anything may come: a visit of its own reads each item, but values
 * that an update in the phase has ended. */
MEMOI void memoi_step_read_all(const memob_step* step, memob_law_desc* desc, memob_use* uses) {
    const memob_step_desc* d = &step->desc;
    const int32_t n_uses = desc->n_uses;
    for (int32_t i = 0; i < d->n_items; i++) {
        const memob_use use = {desc->n_visits,     i, MEMOB_USE_READ, 0, d->bytes[i].spot.at,
                               MEMOB_HOST_DEFAULT, 0};
        int is_over = 0; /* its last use is that of its update */
        for (int32_t u = 0; u < n_uses && d->ends[i]; u++)
            if (uses[u].item == i) is_over = uses[u].how == MEMOB_USE_READ;
        if (is_over || !d->items[i].n_slots) continue;
        uses[desc->n_uses++] = use;
        desc->n_visits++;
    }
}

/* Goes back through the operations of the law that run, and marks behind which ones updates alone
 * use an item.  n_visits: of the list.  idle: (2 n_items), of what follows, for the item, and for
 * its next load. */
MEMOI void memoi_step_find_idle(memob_step* step, memob_step_law* of, int32_t n_visits,
                                char* idle) {
    const int64_t n = step->desc.n_items;
    for (int32_t k = of->law.begin[of->list + 1] - 1; k >= of->law.begin[of->list]; k--) {
        const memob_op* op = &of->law.ops[k];
        const int32_t v = op->visit;
        int is_update;
        for (int32_t p = op->first_part; p < op->first_part + op->n_parts; p++) {
            memob_part* part = &of->law.parts[p];
            part->is_idle = idle[part->item + n * (op->kind == MEMOB_OP_READ)];
            if (op->kind != MEMOB_OP_LOAD) continue;
            idle[part->item + n] = (char)part->is_idle;
            idle[part->item] = 1;
        }
        if (op->kind != MEMOB_OP_VISIT) continue;
        is_update = v < n_visits && step->list.visits[of->first_visit + v].pass == MEMOB_UPDATE;
        for (int32_t u = of->law.first_use[v]; u < of->law.first_use[v + 1]; u++) {
            of->is_idle[u] = (char)(is_update && idle[of->uses[u].item]);
            if (!is_update) idle[of->uses[u].item] = 0;
        }
    }
}

/* The operation of a visit of the list. */
MEMOI int32_t memoi_step_op_of(const memob_step_law* of, int32_t visit) {
    return of->law.visit_ops[(int64_t)of->list * of->law.n_visits + visit - of->first_visit];
}

/* The law of visits [begin, end) of the list: of three steps in a row, of which the second is
 * behind one and in front of one; or of a phase beside the step. */
MEMOI memo_status memoi_step_make_law(memob_step* step, int32_t begin, int32_t end, int is_beside,
                                      memo_error* error) {
    const memob_step_desc* d = &step->desc;
    memob_step_law* of = &step->laws[step->n_laws++];
    char* on_host = MEMOB_ARRAY(&step->arrays, char, end - begin + d->n_items);
    int32_t* n_spread = MEMOB_ARRAY(&step->arrays, int32_t, end - begin + d->n_items);
    char* counts = MEMOB_ARRAY(&step->arrays, char, end - begin + d->n_items);
    char* idle = MEMOB_ARRAY(&step->arrays, char, 2 * (int64_t)d->n_items);
    memob_law_desc desc;
    memo_status status;
    int32_t from = 0, to = 0;
    memset(&desc, 0, sizeof desc);
    of->first_visit = begin;
    of->list = !is_beside;
    of->uses = MEMOB_ARRAY(&step->arrays, memob_use, d->n_uses + d->n_items);
    of->is_idle = MEMOB_ARRAY(&step->arrays, char, d->n_uses + d->n_items);
    if (step->arrays.failed) return memob_no_memory(error, "the laws of a step");

    for (int32_t u = 0; u < d->n_uses; u++) {
        if (!memob_is_within(d->uses[u].visit, begin, end - 1)) continue;
        of->uses[desc.n_uses] = d->uses[u];
        of->uses[desc.n_uses++].visit -= begin;
    }
    for (int32_t v = begin; v < end; v++) {
        on_host[v - begin] = (char)step->list.visits[v].on_host;
        n_spread[v - begin] = memoi_list_n_spread(&step->list, v, end);
        counts[v - begin] = step->list.visits[v].row >= 0;
    }
    desc.n_visits = end - begin;
    if (is_beside) memoi_step_read_all(step, &desc, of->uses);

    desc.on_host = on_host;
    desc.items = d->items;
    desc.n_items = d->n_items;
    desc.uses = of->uses;
    desc.n_lists = is_beside ? 1 : 3;
    desc.n_spread = step->list.desc.n_slices > 1 ? n_spread : NULL;
    desc.item_bytes = d->moves.n_bytes;
    desc.counts = counts;
    memcpy(desc.n_slots, d->n_slots, sizeof desc.n_slots);
    status = memob_law_make(&desc, &of->law, error);
    for (int k = 0; k <= of->list && !status && !d->sink->clock; k++) /* the step follows itself */
        memoi_step_find_idle(step, of, end - begin, idle);
    if (!status && is_beside) { /* from its first visit to its last */
        from = memoi_step_op_of(of, begin);
        to = memoi_step_op_of(of, end - 1) + 1;
    } else if (!status) {
        from = of->law.begin[1];
        to = of->law.begin[2];
    }
    if (!status) status = memoi_law_join_cells(&of->law, from, to, error);
    of->of.law = &of->law;
    if (!status && d->sink->clock)
        of->of.clock_cells = MEMOB_ARRAY(&step->arrays, memob_clock_cell, of->law.n_cells);
    else if (!status)
        of->of.cells = MEMOB_ARRAY(&step->arrays, memob_cell, of->law.n_cells);
    return !status && step->arrays.failed ? memob_no_memory(error, "the laws of a step") : status;
}

MEMOI void memob_step_free(memob_step* step) {
    for (int32_t k = 0; k < step->n_laws; k++) memob_law_free(&step->laws[k].law);
    memoi_list_free(&step->list);
    memob_arrays_free(&step->arrays);
    memset(step, 0, sizeof *step);
}

/* desc's arrays outlive the step, but for uses.  A planner's step has the planned phases alone.
 * Free the step also after a failure.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_step_make(const memob_step_desc* desc, memob_step* step,
                                  memo_error* error) {
    const int64_t n = desc->n_items;
    memo_status status;
    uint8_t* lies;
    char* known;
    memset(step, 0, sizeof *step);
    step->desc = *desc;
    step->list = *desc->list;
    memset(desc->list, 0, sizeof *desc->list);
    step->phase = -1;
    step->takes = MEMOB_ARRAY(&step->arrays, uint8_t, (MEMOB_N_PHASES + 1) * n);
    step->takes_at =
        MEMOB_ARRAY(&step->arrays, memob_spot, (MEMOB_N_PHASES + 1) * (int64_t)desc->n_of_layer);
    step->there.spots = MEMOB_ARRAY(&step->arrays, memob_spot, desc->n_of_layer);
    step->there.lies = MEMOB_ARRAY(&step->arrays, uint8_t, n); /* until phases are known */
    step->there.in_slot = MEMOB_ARRAY(&step->arrays, int32_t, desc->n_slots[0]);
    lies = MEMOB_ARRAY(&step->arrays, uint8_t, n);
    known = MEMOB_ARRAY(&step->arrays, char, n);
    if (step->arrays.failed) return memob_no_memory(error, "the cursor of a step");

    status = memoi_step_make_law(step, 0, step->list.n_of_step, 0, error);
    for (int32_t phase = 0; phase < MEMOB_N_PHASES && !status; phase++) {
        const int32_t first = step->list.begin[phase], end = step->list.end[phase];
        const int is_beside = first >= step->list.n_of_step;
        const memob_step_law* of;
        if (first == end || (is_beside && desc->sink->clock)) continue;
        if (is_beside) status = memoi_step_make_law(step, first, end, 1, error);
        if (status) return status;
        step->law_of[phase] = is_beside ? step->n_laws - 1 : 0;
        of = memoi_step_law_of(step, phase);
        step->begin[phase] = memoi_step_op_of(of, first);
        step->end[phase] = is_beside ? memoi_step_op_of(of, end - 1) + 1 : of->law.begin[2];
        if (end < step->list.n_of_step) step->end[phase] = memoi_step_op_of(of, end);
        memoi_step_find_takes(step, phase, known, lies);
    }
    if (desc->there) step->there = *desc->there;
    return status;
}
