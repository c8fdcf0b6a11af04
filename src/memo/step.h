#pragma once
#include "memo/list.h"
#include "memo/sink.h"
/* ---- >>step -------------------------------------------------------------------------------------
 * Knows: where the trainer is in the list of a step, and what lies on the device there.  Knows
 * nothing of what visits compute.
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
 * 1. A visit finds there what it reads.
 * 2. What is overwritten is not newer than its home.
 * 3. A phase that is entered has a law; visits come in the order of its list. */

/* Where the value of an item is. */
enum { MEMOB_IS_AWAY = 0, MEMOB_IS_THERE, MEMOB_IS_NEWER /* there than at home */ };

/* A state of a layer. */
typedef struct memob_state_bytes {
    /* Offsets on the device; streamed: on the host; spilled: in the file, through a place on the
     * host; -1: not in the file. */
    int64_t at[MEMO_N_TIERS], n_bytes;
    int32_t first_piece; /* of the device's bytes, each of which is of the same states */
} memob_state_bytes;

/* Copies an item between the device and its home, in two parts if that is the file.  Inlined: a
 * layer has many. */
MEMOI inline void memoi_state_copy(memob_engine* e, const memob_state_bytes* of, int32_t kind,
                                   int32_t item) {
    if (kind == MEMOB_OP_LOAD || kind == MEMOB_OP_STORE)
        memob_engine_copy(e, kind == MEMOB_OP_LOAD, of->at[0], of->at[1], of->n_bytes);
    else
        memob_engine_use_file(e, 2 * (int64_t)item + (kind == MEMOB_OP_READ),
                              kind == MEMOB_OP_WRITE, of->at[1], of->at[2],
                              memob_align_up(of->n_bytes, MEMOB_SPILL_ALIGNMENT));
}

/* What lies on the device, for all steps with the same items. */
typedef struct memob_there {
    uint8_t* lies;    /* (n_items) */
    int32_t* in_slot; /* (slots of the device): 1 + the item there */
    char* pending;    /* (layers): the layer's update waits */
} memob_there;

typedef struct memob_step_desc {
    memob_list* list; /* the step takes it */
    const memob_item* items;
    const memob_state_bytes* bytes; /* (n_items): tiers and sizes */
    const char* ends;               /* (n_items): the value ends with an update that reads it */
    int32_t n_items, n_of_layer;    /* items; of a layer, one behind the other */
    int32_t n_slots[MEMO_N_TIERS];
    const memob_use* uses; /* of all visits of the list */
    int32_t n_uses;
    memob_sink* sink; /* its streams, waits and events; the step sets its law and cells */
    const memob_there* there;
} memob_step_desc;

/* The law of the planned step, or of a phase beside it. */
typedef struct memob_step_law {
    memob_law law;
    memob_use* uses; /* their visits count from first_visit of the list */
    int32_t first_visit, list;
    memob_cell* cells;             /* (law.n_cells) */
    memob_clock_cell* clock_cells; /* the same of a planner's */
} memob_step_law;

typedef struct memob_step {
    memob_step_desc desc;
    memob_list list;
    memob_step_law laws[MEMOB_N_PHASES]; /* 0: of the planned step; then those beside it */
    int32_t n_laws, law_of[MEMOB_N_PHASES];
    int32_t begin[MEMOB_N_PHASES], end[MEMOB_N_PHASES]; /* operations of each phase */
    uint8_t* takes;                                     /* (phases and none, n_items): MEMOB_IS_ */
    int32_t phase; /* -1: none, and `lies` says what is there */
    int32_t op; /* the visit that comes next, or is open; begin of the phase: it is not entered */
    int32_t is_open, is_entered;
    int64_t n_before;        /* see memoi_sink_begin */
    memob_there there;       /* the desc's */
    int64_t* item_bytes;     /* (n_items) */
    struct memob_step* next; /* another one, with the same items */
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

/* From now on the item lies there; others in its slots do not. */
MEMOI void memoi_step_put(memob_step* step, int32_t item, int64_t at, int is_newer) {
    for (int64_t slot = at; slot < at + step->desc.items[item].n_slots; slot++) {
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

/* What an operation leaves. */
MEMOI void memoi_step_play(memob_step* step, const memob_step_law* of, const memob_op* op) {
    const memob_law* law = &of->law;
    int is_update;
    for (int32_t k = op->first_part; k < op->first_part + op->n_parts; k++) {
        const int32_t item = law->parts[k].item;
        const int32_t stores = step->desc.items[item].file < 0 ? MEMOB_OP_STORE : MEMOB_OP_WRITE;
        if (op->kind == MEMOB_OP_LOAD) memoi_step_put(step, item, law->parts[k].at, 0);
        if (op->kind == stores && step->there.lies[item]) step->there.lies[item] = MEMOB_IS_THERE;
    }
    if (op->kind != MEMOB_OP_VISIT) return;
    is_update = step->list.visits[of->first_visit + op->visit].pass == MEMOB_UPDATE;
    for (int32_t u = law->first_use[op->visit]; u < law->first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        if (!step->desc.items[use->item].n_slots) continue;
        if (use->is_on_host)
            step->there.lies[use->item] = MEMOB_IS_AWAY; /* it is older */
        else
            memoi_step_put(step, use->item, use->at, use->how != MEMOB_USE_READ);
        if (is_update && step->desc.ends[use->item] && step->there.lies[use->item])
            step->there.lies[use->item] = MEMOB_IS_THERE; /* nobody reads it any more */
    }
}

/* Plays operations [from, to). */
MEMOI void memoi_step_play_all(memob_step* step, const memob_step_law* of, int32_t from,
                               int32_t to) {
    for (int32_t k = from; k < to; k++) memoi_step_play(step, of, &of->law.ops[k]);
}

/* What lies there where the cursor stands.  An open visit may have left all that it leaves. */
MEMOI void memoi_step_find_lies(memob_step* step) {
    const memob_step_law* of;
    if (step->phase < 0) return;
    of = memoi_step_law_of(step, step->phase);
    memoi_step_clear(step);
    for (int32_t i = 0; i < step->desc.n_items; i++) {
        const int takes = step->takes[(int64_t)step->phase * step->desc.n_items + i];
        if (takes)
            memoi_step_put(step, i, step->desc.bytes[i].first_piece, takes == MEMOB_IS_NEWER);
    }
    memoi_step_play_all(step, of, step->begin[step->phase], step->op + step->is_open);
}

/* --- what a phase takes --- */

/* Marks what operation k is the first to use: known; taken if it was there. */
MEMOI void memoi_step_take(memob_step* step, const memob_step_law* of, int32_t k, char* known,
                           const uint8_t* lies, uint8_t* takes) {
    const memob_op* op = &of->law.ops[k];
    for (int32_t p = op->first_part; p < op->first_part + op->n_parts; p++) {
        const int32_t item = of->law.parts[p].item;
        if (op->kind == MEMOB_OP_STORE && !known[item]) takes[item] = lies[item];
        if (op->kind == MEMOB_OP_STORE || op->kind == MEMOB_OP_LOAD) known[item] = 1;
    }
    if (op->kind != MEMOB_OP_VISIT) return;
    for (int32_t u = of->law.first_use[op->visit]; u < of->law.first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        if (!step->desc.items[use->item].n_slots || known[use->item]) continue;
        known[use->item] = 1;
        if (!use->is_on_host && use->how != MEMOB_USE_WRITE) takes[use->item] = lies[use->item];
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
    uint8_t* takes = step->takes + (int64_t)phase * n;
    memoi_step_clear(step);
    memoi_step_play_all(step, of, 0, begin);
    memcpy(lies, step->there.lies, (size_t)n);
    memset(known, 0, (size_t)n);
    for (int32_t k = begin; k < end; k++) memoi_step_take(step, of, k, known, lies, takes);
    for (int32_t k = of->list ? of->law.begin[1] : begin; k < begin; k++)
        memoi_step_take(step, of, k, known, lies, takes);
}

/* --- creation --- */

/* Behind a phase beside the step anything may come: a visit of its own reads each item, but values
 * that an update in the phase has ended. */
MEMOI void memoi_step_read_all(const memob_step* step, memob_law_desc* desc, memob_use* uses) {
    const memob_step_desc* d = &step->desc;
    const int32_t n_uses = desc->n_uses;
    for (int32_t i = 0; i < d->n_items; i++) {
        const memob_use use = {desc->n_visits,    i, MEMOB_USE_READ, 0, d->bytes[i].first_piece,
                               MEMOB_HOST_DEFAULT};
        int is_over = 0; /* its last use is that of its update */
        for (int32_t u = 0; u < n_uses && d->ends[i]; u++)
            if (uses[u].item == i) is_over = uses[u].how == MEMOB_USE_READ;
        if (is_over || !d->items[i].n_slots) continue;
        uses[desc->n_uses++] = use;
        desc->n_visits++;
    }
}

/* The law of visits [begin, end) of the list: of three steps in a row, of which the second is
 * behind one and in front of one; or of a phase beside the step. */
MEMOI memo_status memoi_step_make_law(memob_step* step, int32_t begin, int32_t end, int is_beside,
                                      memo_error* error) {
    const memob_step_desc* d = &step->desc;
    memob_step_law* of = &step->laws[step->n_laws++];
    char* on_host = MEMOB_ARRAY(&step->arrays, char, end - begin + d->n_items);
    int32_t* n_spread = MEMOB_ARRAY(&step->arrays, int32_t, end - begin + d->n_items);
    memob_law_desc desc;
    memo_status status;
    memset(&desc, 0, sizeof desc);
    of->first_visit = begin;
    of->list = !is_beside;
    of->uses = MEMOB_ARRAY(&step->arrays, memob_use, d->n_uses + d->n_items);
    if (step->arrays.failed) return memob_no_memory(error, "the laws of a step");

    for (int32_t u = 0; u < d->n_uses; u++) {
        if (!memob_is_within(d->uses[u].visit, begin, end - 1)) continue;
        of->uses[desc.n_uses] = d->uses[u];
        of->uses[desc.n_uses++].visit -= begin;
    }
    for (int32_t v = begin; v < end; v++) {
        on_host[v - begin] = (char)step->list.visits[v].on_host;
        n_spread[v - begin] = memoi_list_n_spread(&step->list, v, end);
    }
    desc.n_visits = end - begin;
    if (is_beside) memoi_step_read_all(step, &desc, of->uses);

    desc.on_host = on_host;
    desc.items = d->items;
    desc.n_items = d->n_items;
    desc.uses = of->uses;
    desc.n_lists = is_beside ? 1 : 3;
    desc.n_spread = step->list.desc.n_slices > 1 ? n_spread : NULL;
    desc.item_bytes = step->item_bytes;
    memcpy(desc.n_slots, d->n_slots, sizeof desc.n_slots);
    status = memob_law_make(&desc, &of->law, error);
    if (!status) status = memoi_law_join_cells(&of->law, error);
    if (!status && d->sink->clock)
        of->clock_cells = MEMOB_ARRAY(&step->arrays, memob_clock_cell, of->law.n_cells);
    else if (!status)
        of->cells = MEMOB_ARRAY(&step->arrays, memob_cell, of->law.n_cells);
    return !status && step->arrays.failed ? memob_no_memory(error, "the laws of a step") : status;
}

/* The operation of a visit of the list. */
MEMOI int32_t memoi_step_op_of(const memob_step_law* of, int32_t visit) {
    return of->law.visit_ops[(int64_t)of->list * of->law.n_visits + visit - of->first_visit];
}

MEMOI void memoi_step_free(memob_step* step) {
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
    step->there.lies = MEMOB_ARRAY(&step->arrays, uint8_t, n); /* until phases are known */
    step->there.in_slot = MEMOB_ARRAY(&step->arrays, int32_t, desc->n_slots[0]);
    lies = MEMOB_ARRAY(&step->arrays, uint8_t, n);
    step->item_bytes = MEMOB_ARRAY(&step->arrays, int64_t, n);
    known = MEMOB_ARRAY(&step->arrays, char, n);
    if (step->arrays.failed) return memob_no_memory(error, "the cursor of a step");
    for (int64_t i = 0; i < n; i++) step->item_bytes[i] = desc->bytes[i].n_bytes;

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
    step->there = *desc->there;
    return status;
}

/* --- copies --- */

MEMOI void memoi_step_copy(memob_step* step, int32_t kind, int32_t item) {
    memoi_state_copy(&step->desc.sink->engine, &step->desc.bytes[item], kind, item);
}

/* Enqueues a copy of the law. */
MEMOI void memoi_step_enqueue(memob_step* step, const memob_step_law* of, const memob_op* op) {
    const int64_t n_before = memoi_sink_begin(step->desc.sink, op);
    for (int32_t k = 0; k < op->n_parts; k++)
        memoi_step_copy(step, op->kind, of->law.parts[op->first_part + k].item);
    memoi_sink_end(step->desc.sink, op, n_before);
}

/* Moves an item home, or from there, behind and before all else. */
MEMOI void memoi_step_move(memob_step* step, int32_t item, int is_load, int* n_moved) {
    static const int32_t kinds[2][2] = {{MEMOB_OP_STORE, MEMOB_OP_WRITE},
                                        {MEMOB_OP_READ, MEMOB_OP_LOAD}};
    memob_sink* sink = step->desc.sink;
    const int has_file = step->desc.items[item].file >= 0;
    if (sink->engine.status) return;
    if (!(*n_moved)++) memoi_sink_join(sink);
    if (is_load) memoi_step_put(step, item, step->desc.bytes[item].first_piece, 0);
    for (int k = 0; k < 2 && !sink->engine.status; k++) {
        if (!has_file && k != is_load) continue;
        memoi_step_copy(step, kinds[is_load][k], item);
        if (has_file && !sink->engine.status) memoi_sink_join(sink);
    }

    /* A load that fails has taken the bytes of others all the same. */
    if (!sink->engine.status)
        step->there.lies[item] = MEMOB_IS_THERE;
    else if (is_load)
        step->there.lies[item] = MEMOB_IS_AWAY;
}

/* From now on `lies` says what is there. */
MEMOI void memoi_step_park(memob_step* step) {
    memoi_step_find_lies(step);
    step->phase = -1;
    step->is_open = step->is_entered = 0;
}

/* Leaves the phase for another; MEMOB_N_PHASES: for none. */
MEMOI void memoi_step_jump(memob_step* step, int32_t phase) {
    const uint8_t* takes = step->takes + (int64_t)phase * step->desc.n_items;
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    memoi_step_park(step);
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (step->there.lies[i] == MEMOB_IS_NEWER && takes[i] != MEMOB_IS_NEWER)
            memoi_step_move(step, i, 0, &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink); /* loads take their bytes */
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (takes[i] && !step->there.lies[i]) memoi_step_move(step, i, 1, &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
}

MEMOI memo_status memoi_step_finish(memob_step* step) {
    memob_sink* sink = step->desc.sink;
    sink->has_failed |= sink->engine.status != MEMO_STATUS_OK;
    return sink->engine.status;
}

/* --- the cursor --- */

/* The visit that comes next, or is open; NULL: the phase is over. */
MEMOI const memob_visit* memoi_step_visit(const memob_step* step) {
    const memob_step_law* of;
    if (step->phase < 0 || !step->is_entered) return NULL;
    of = memoi_step_law_of(step, step->phase);
    return &step->list.visits[of->first_visit + of->law.ops[step->op].visit];
}

/* Enters a phase, which has visits.  Errors: the device's. */
MEMOI memo_status memoi_step_go(memob_step* step, int32_t phase, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, phase);
    memob_sink* sink = step->desc.sink;
    MEMO_ASSERT(step->begin[phase] < step->end[phase] && !step->is_open); /* 3 */
    memoi_sink_call(sink, error);
    if (step->phase != phase || step->is_entered) memoi_step_jump(step, phase);
    if (sink->law != &of->law && !sink->engine.status)
        memoi_sink_join(sink); /* its cells know nothing of copies under way */
    if (sink->engine.status) return memoi_step_finish(step);
    sink->law = &of->law;
    sink->cells = of->cells;
    sink->clock_cells = of->clock_cells;
    step->phase = phase;
    step->op = step->begin[phase];
    step->is_entered = 1;
    return MEMO_STATUS_OK;
}

/* Opens the visit that comes next.  Errors: the device's. */
MEMOI memo_status memoi_step_begin(memob_step* step, memo_error* error) {
    memob_sink* sink = step->desc.sink;
    const memob_op* op = &sink->law->ops[step->op];
    MEMO_ASSERT(step->is_entered && !step->is_open); /* 3 */
    memoi_sink_call(sink, error);
    if (!sink->engine.status && op->n_touches) step->n_before = memoi_sink_begin(sink, op);
    step->is_open = !sink->engine.status;
    return memoi_step_finish(step);
}

/* Ends the open visit, and enqueues the copies behind it. */
MEMOI memo_status memoi_step_end(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    memob_sink* sink = step->desc.sink;
    const memob_op* op = &of->law.ops[step->op];
    const int32_t end = step->end[step->phase];
    int32_t next;
    MEMO_ASSERT(step->is_open && op->kind == MEMOB_OP_VISIT); /* 3 */
    memoi_sink_call(sink, error);
    if (!sink->engine.status && op->n_touches) memoi_sink_end(sink, op, step->n_before);
    if (sink->engine.status) return memoi_step_finish(step);
    step->is_open = 0;
    for (step->op++; step->op < end && of->law.ops[step->op].kind != MEMOB_OP_VISIT; step->op++) {
        memoi_step_enqueue(step, of, &of->law.ops[step->op]);
        if (sink->engine.status) return memoi_step_finish(step);
    }
    if (step->op < end) return MEMO_STATUS_OK;

    /* The phase is over.  Behind one of the planned step comes the next; at its end the first. */
    step->is_entered = 0;
    if (step->law_of[step->phase]) {
        memoi_step_park(step);
        return MEMO_STATUS_OK;
    }
    next = step->phase;
    do next = (next + 1) % MEMOB_N_PHASES;
    while (step->law_of[next] || step->begin[next] == step->end[next]);
    step->phase = next;
    step->op = step->begin[next];
    return MEMO_STATUS_OK;
}

/* Before an update that may leave bytes as they are: what it would write lies there.  Then the
 * update begins. */
MEMOI memo_status memoi_step_begin_with(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_op* op = &of->law.ops[step->op];
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    MEMO_ASSERT(memoi_step_visit(step)->pass == MEMOB_UPDATE && !step->is_open); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_find_lies(step);
    for (int32_t u = of->law.first_use[op->visit]; u < of->law.first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        if (use->how == MEMOB_USE_REWRITE && !use->is_on_host && !step->there.lies[use->item] &&
            step->desc.items[use->item].n_slots)
            memoi_step_move(step, use->item, 1, &n_moved);
    }
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
    if (!memoi_step_finish(step)) return memoi_step_begin(step, error);
    step->phase = -1; /* lies says what is there */
    return sink->engine.status;
}

/* In place of an update that is not run. */
MEMOI memo_status memoi_step_pass(memob_step* step, memo_error* error) {
    const memo_status status = memoi_step_begin_with(step, error);
    return status ? status : memoi_step_end(step, error);
}

/* The updates of all layers wait. */
MEMOI void memoi_step_defer(memob_step* step) {
    memset(step->there.pending, 1, (size_t)step->list.desc.n_layers + 2);
}

/* Between phases: the item is at home, and with `drops` nowhere else.  Streams may still move it.
 * Errors: the device's. */
MEMOI memo_status memoi_step_bring_home(memob_step* step, int32_t item, int drops,
                                        memo_error* error) {
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    MEMO_ASSERT(!step->is_entered); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_park(step);
    if (step->there.lies[item] == MEMOB_IS_NEWER) memoi_step_move(step, item, 0, &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
    if (drops && !sink->engine.status) step->there.lies[item] = MEMOB_IS_AWAY;
    return memoi_step_finish(step);
}

/* All that was enqueued is over, and nothing lies on the device. */
MEMOI void memoi_step_reset(memob_step* step) {
    memoi_step_park(step);
    memoi_step_clear(step);
    for (int32_t k = 0; k < step->n_laws; k++) {
        const memob_step_law* of = &step->laws[k];
        if (of->clock_cells)
            memset(of->clock_cells, 0, (size_t)of->law.n_cells * sizeof *of->clock_cells);
        else
            memset(of->cells, 0, (size_t)of->law.n_cells * sizeof *of->cells);
    }
    step->desc.sink->has_failed = 0;
}

/* A load that has failed half-way has taken the bytes of others. */
MEMOI void memoi_step_drop_load(memob_step* step) {
    const memob_law* law = step->desc.sink->law;
    const memob_op* op;
    if (!step->is_entered) return;
    op = &law->ops[step->op];
    if (op->kind != MEMOB_OP_LOAD) return;
    for (int32_t k = op->first_part; k < op->first_part + op->n_parts; k++) {
        memoi_step_put(step, law->parts[k].item, law->parts[k].at, 0);
        step->there.lies[law->parts[k].item] = MEMOB_IS_AWAY;
    }
}

/* After an error, or in place of the rest of a step.  Nobody needs values that end with an update,
 * unless the layer's update waits. */
MEMOI void memoi_step_abandon(memob_step* step) {
    memoi_step_find_lies(step);
    memoi_step_drop_load(step);
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (step->desc.ends[i] && step->there.lies[i] &&
            !step->there.pending[i / step->desc.n_of_layer])
            step->there.lies[i] = MEMOB_IS_THERE;
    step->phase = -1;
    step->is_open = step->is_entered = 0;
    step->desc.sink->has_failed = 1;
}
