#pragma once
#include "memo/step.h"
/* ---- >>cursor -----------------------------------------------------------------------------------
 * Knows: how the cursor of a step goes through visits and jumps, and in which order copies are
 * enqueued.  Knows nothing of what visits compute, and of what items are.  Numbers are those of
 * >>step. */

/* --- copies --- */

/* Which copy is enqueued first: see `Two laws`. */
MEMOI int memoi_step_is_sooner(const memob_op* a, const memob_op* b) {
    return a->is_load != b->is_load ? a->is_load < b->is_load : a->need <= b->need;
}

/* The next copy of a law, up to `end`; NULL: its next visit, or none. */
MEMOI const memob_op* memoi_step_copy_at(const memob_op* op, const memob_op* end) {
    return op < end && op->kind != MEMOB_OP_VISIT ? op : NULL;
}

/* Moves an item home from where it lies, or from there to a spot, behind and before all else. */
MEMOI void memoi_step_move(memob_step* step, int32_t item, int is_load, memob_spot spot,
                           int* n_moved) {
    static const int32_t kinds[2][2] = {{MEMOB_OP_STORE, MEMOB_OP_WRITE},
                                        {MEMOB_OP_READ, MEMOB_OP_LOAD}};
    memob_sink* sink = step->desc.sink;
    const int has_file = step->desc.items[item].file >= 0;
    if (sink->engine.status) return;
    if (!(*n_moved)++) memoi_sink_join(sink);
    if (is_load) memoi_step_put(step, item, spot, 0);
    for (int k = 0; k < 2 && !sink->engine.status; k++) {
        const memob_item* of = &step->desc.items[item];
        const memob_part part = {item, spot.at, of->host, spot.n_slots, of->n_host, 0};
        if (!has_file && k != is_load) continue;
        memoi_moves_item(sink, &step->desc.moves, kinds[is_load][k], &part);
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
    step->n_open = step->is_entered = 0;
}

/* 1: the item does not lie where a phase takes it. */
MEMOI int memoi_step_is_elsewhere(const memob_step* step, int32_t phase, int32_t item) {
    return memoi_step_lies_at(step, item).at != memoi_step_takes_at(step, phase, item).at;
}

/* Leaves the phase for another; MEMOB_N_PHASES: for none. */
MEMOI void memoi_step_jump(memob_step* step, int32_t phase) {
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    memoi_step_park(step);
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (step->there.lies[i] == MEMOB_IS_NEWER &&
            (memoi_step_takes(step, phase, i) != MEMOB_IS_NEWER ||
             memoi_step_is_elsewhere(step, phase, i)))
            memoi_step_move(step, i, 0, memoi_step_lies_at(step, i), &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink); /* loads take their bytes */
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (memoi_step_takes(step, phase, i) &&
            (!step->there.lies[i] || memoi_step_is_elsewhere(step, phase, i)))
            memoi_step_move(step, i, 1, memoi_step_takes_at(step, phase, i), &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
}

MEMOI memo_status memoi_step_finish(memob_step* step) {
    memob_sink* sink = step->desc.sink;
    sink->has_failed |= sink->engine.status != MEMO_STATUS_OK;
    return sink->engine.status;
}

/* --- the cursor --- */

/* The visit k behind the one that comes next, or is open; NULL: the phase is over. */
MEMOI const memob_visit* memoi_step_visit_at(const memob_step* step, int32_t k) {
    const memob_step_law* of;
    if (step->phase < 0 || !step->is_entered || step->op + k >= step->end[step->phase]) return NULL;
    of = memoi_step_law_of(step, step->phase);
    MEMO_ASSERT(of->law.ops[step->op + k].kind == MEMOB_OP_VISIT); /* 3 */
    return &step->list.visits[of->first_visit + of->law.ops[step->op + k].visit];
}
MEMOI const memob_visit* memoi_step_visit(const memob_step* step) {
    return memoi_step_visit_at(step, 0);
}

/* What the law of rows has of a visit; NULL: nothing. */
MEMOI const memob_op* memoi_step_rows_op(const memob_step* step, const memob_visit* visit) {
    const memob_law* law = step->rows ? step->rows->of.law : NULL;
    int32_t list, k;
    if (!law || visit->row < 0) return NULL;
    list = law->n_lists - 1 - (step->phase == MEMOB_EVALUATION);
    k = law->visit_ops[(int64_t)list * law->n_visits + visit->row];
    MEMO_ASSERT(law->ops[k].kind == MEMOB_OP_VISIT && law->ops[k].list == list); /* 3 */
    return &law->ops[k];
}

/* A visit as an operation of both laws. */
MEMOI memob_sink_op memoi_step_both(const memob_step* step, const memob_step_law* of,
                                    const memob_op* op, const memob_op* of_rows) {
    memob_sink_op both = MEMO_ZERO(memob_sink_op);
    memoi_sink_add(step->desc.sink, &both, &of->of, op);
    if (of_rows) memoi_sink_add(step->desc.sink, &both, &step->rows->of, of_rows);
    return both;
}

/* Enters a phase, which has visits.  rows: NULL, or their law, if the phase is a round.  Errors:
 * the device's. */
MEMOI memo_status memob_step_go(memob_step* step, int32_t phase, memob_step_rows* rows,
                                memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, phase);
    memob_sink* sink = step->desc.sink;
    MEMO_ASSERT(step->begin[phase] < step->end[phase] && !step->n_open); /* 3 */
    memoi_sink_call(sink, error);
    if (step->phase != phase || step->is_entered) memoi_step_jump(step, phase);
    if (sink->entered != &of->law && step->desc.n_items && !sink->engine.status)
        memoi_sink_join(sink); /* its cells know nothing of copies under way */
    if (sink->engine.status) return memoi_step_finish(step);
    sink->entered = &of->law;
    step->rows = rows;
    if (rows && rows->stalls) memset(rows->stalls->host_s, 0, sizeof rows->stalls->host_s);
    step->phase = phase;
    step->op = step->begin[phase];
    step->played = -1;
    step->n_begun = step->n_ended = 0;
    step->is_entered = 1;
    return MEMO_STATUS_OK;
}

/* Begins a visit, and measures how long it waits. */
MEMOI void memoi_step_measure(memob_step* step, const memob_visit* visit, const memob_sink_op* op) {
    memob_sink* sink = step->desc.sink;
    memob_engine* e = &sink->engine;
    memob_stalls* stalls = step->rows->stalls;
    const memo_event* marks = stalls->marks ? stalls->marks + 2 * visit->row : NULL;
    const memo_stream compute = e->streams[MEMOB_STREAM_COMPUTE];
    const int64_t begin_ns = memob_now_ns();
    memob_numbers wait = MEMO_ZERO(memob_numbers);
    stalls->waited[visit->row] = memoi_sink_need(sink, op, &wait);
    if (!stalls->waited[visit->row]) return;
    if (marks) e->status = memo_event_record(&e->device, marks[0], compute, e->error);
    memoi_sink_wait(sink, MEMOB_STREAM_COMPUTE, &wait);
    if (marks && !e->status) e->status = memo_event_record(&e->device, marks[1], compute, e->error);
    if (!marks) stalls->host_s[visit->pass] += 1e-9 * (double)(memob_now_ns() - begin_ns);
}

/* Opens the visit that comes next, behind those that are open.  Errors: the device's. */
MEMOI memo_status memob_step_begin(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_visit* visit = memoi_step_visit_at(step, step->n_open);
    const memob_op* of_rows = visit ? memoi_step_rows_op(step, visit) : NULL;
    memob_sink* sink = step->desc.sink;
    memob_sink_op op;
    MEMO_ASSERT(visit && step->n_open < (step->desc.n_items ? 1 : 2)); /* 3 */
    op = memoi_step_both(step, of, &of->law.ops[step->op + step->n_open], of_rows);
    memoi_sink_call(sink, error);
    if (!sink->engine.status && of_rows && step->rows->stalls)
        memoi_step_measure(step, visit, &op);
    else if (!sink->engine.status)
        memoi_sink_begin(sink, &op);
    if (sink->engine.status) return memoi_step_finish(step);
    step->n_open++;
    step->n_begun += visit->row >= 0;
    return memoi_step_finish(step);
}

/* Enqueues the copies behind a visit: of states from step->op on, and of rows behind of_rows.
 * Where one fails, step->op stands. */
MEMOI void memoi_step_copies(memob_step* step, const memob_step_law* of, const memob_op* of_rows) {
    const memob_law* law = of_rows ? step->rows->of.law : NULL;
    const memob_op* end = of->law.ops + step->end[step->phase];
    const memob_op *rows = of_rows, *rows_end = NULL;
    memob_sink* sink = step->desc.sink;
    if (of_rows) {
        rows = of_rows + 1;
        rows_end = law->ops + law->begin[of_rows->list + 1];
    }
    while (!sink->engine.status) {
        const memob_op* state = memoi_step_copy_at(of->law.ops + step->op, end);
        const memob_op* row = rows ? memoi_step_copy_at(rows, rows_end) : NULL;
        if (row && (!state || memoi_step_is_sooner(row, state))) {
            memoi_moves_enqueue(sink, &step->rows->of, &step->rows->moves, row);
            rows++;
        } else if (state) {
            memoi_moves_enqueue(sink, &of->of, &step->desc.moves, state);
            step->op += !sink->engine.status;
        } else {
            return;
        }
    }
}

/* Ends the older open visit, and enqueues the copies behind it.  Errors: the device's. */
MEMOI memo_status memob_step_end(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_visit* visit = memoi_step_visit(step);
    const memob_op* of_rows = memoi_step_rows_op(step, visit);
    memob_sink* sink = step->desc.sink;
    memob_sink_op op;
    int32_t next;
    MEMO_ASSERT(step->n_open); /* 3 */
    op = memoi_step_both(step, of, &of->law.ops[step->op], of_rows);
    memoi_sink_call(sink, error);
    if (!sink->engine.status) memoi_sink_end(sink, &op);
    if (sink->engine.status) return memoi_step_finish(step);
    step->n_open--;
    step->n_ended += visit->row >= 0;
    step->op++;
    if (of_rows && !(sink->clock || sink->engine.n_events)) of_rows = NULL; /* nothing moves */
    memoi_step_copies(step, of, of_rows);
    if (sink->engine.status) return memoi_step_finish(step);
    if (step->op < step->end[step->phase]) return MEMO_STATUS_OK;

    /* The phase is over.  Behind one of the planned step comes the next; at its end the first. */
    step->is_entered = 0;
    if (step->rows && step->rows->stalls && step->phase != MEMOB_EVALUATION)
        step->rows->stalls->is_known = 1;
    if (step->law_of[step->phase]) {
        memoi_step_park(step);
        return MEMO_STATUS_OK;
    }
    next = step->phase;
    do next = (next + 1) % MEMOB_N_PHASES;
    while (step->law_of[next] || step->begin[next] == step->end[next]);
    step->phase = next;
    step->op = step->begin[next];
    step->played = -1;
    return MEMO_STATUS_OK;
}

/* Before an update that may leave bytes as they are: what it would write lies there.  Then the
 * update begins. */
MEMOI memo_status memoi_step_begin_with(memob_step* step, memo_error* error) {
    const memob_step_law* of = memoi_step_law_of(step, step->phase);
    const memob_op* op = &of->law.ops[step->op];
    memob_sink* sink = step->desc.sink;
    int n_moved = 0;
    MEMO_ASSERT(memoi_step_visit(step)->pass == MEMOB_UPDATE && !step->n_open); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_find_lies(step);
    for (int32_t u = of->law.first_use[op->visit]; u < of->law.first_use[op->visit + 1]; u++) {
        const memob_use* use = &of->uses[u];
        const int leaves = memoi_moves_leaves(step->there.leaves, use->item);
        if (leaves == MEMOB_LEAVES_ALL || (leaves && of->is_idle[u])) continue;
        if (use->how == MEMOB_USE_REWRITE && !use->is_on_host && !step->there.lies[use->item] &&
            step->desc.items[use->item].n_slots)
            memoi_step_move(step, use->item, 1, memoi_step_use_at(step, use), &n_moved);
    }
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
    if (!memoi_step_finish(step)) return memob_step_begin(step, error);
    step->phase = -1; /* lies says what is there */
    return sink->engine.status;
}

/* In place of an update that is not run. */
MEMOI memo_status memoi_step_pass(memob_step* step, memo_error* error) {
    const memo_status status = memoi_step_begin_with(step, error);
    return status ? status : memob_step_end(step, error);
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
    if (step->there.lies[item] == MEMOB_IS_NEWER)
        memoi_step_move(step, item, 0, memoi_step_lies_at(step, item), &n_moved);
    if (n_moved && !sink->engine.status) memoi_sink_join(sink);
    if (drops && !sink->engine.status) step->there.lies[item] = MEMOB_IS_AWAY;
    return memoi_step_finish(step);
}

/* Between phases: all items are at home, and nowhere else.  Streams may still move them.  Errors:
 * the device's. */
MEMOI memo_status memoi_step_leave(memob_step* step, memo_error* error) {
    memob_sink* sink = step->desc.sink;
    MEMO_ASSERT(!step->is_entered); /* 3 */
    memoi_sink_call(sink, error);
    memoi_step_jump(step, MEMOB_N_PHASES);
    if (!sink->engine.status) memoi_step_clear(step);
    return memoi_step_finish(step);
}

/* Behind memob_step_abandon: streams join, if they have not.  Errors: the device's. */
MEMOI memo_status memob_step_settle(memob_step* step, memo_error* error) {
    memoi_sink_call(step->desc.sink, error);
    return step->desc.sink->engine.status;
}

/* All that was enqueued is over, and nothing lies on the device. */
MEMOI void memob_step_reset(memob_step* step) {
    memoi_step_park(step);
    memoi_step_clear(step);
    for (int32_t k = 0; k < step->n_laws; k++) {
        const memob_step_law* of = &step->laws[k];
        memob_sink_forget(&of->of);
    }
    step->desc.sink->entered = NULL;
    step->desc.sink->has_failed = 0;
}

/* A load that has failed half-way has taken the bytes of others. */
MEMOI void memoi_step_drop_load(memob_step* step) {
    const memob_law* law;
    const memob_op* op;
    if (!step->is_entered || step->phase < 0) return;
    law = &memoi_step_law_of(step, step->phase)->law;
    op = &law->ops[step->op];
    if (op->kind != MEMOB_OP_LOAD) return;
    for (int32_t k = op->first_part; k < op->first_part + op->n_parts; k++) {
        if (memoi_moves_leave(step->there.leaves, op->kind, &law->parts[k])) continue;
        memoi_step_put(step, law->parts[k].item, memoi_part_at(&law->parts[k]), 0);
        step->there.lies[law->parts[k].item] = MEMOB_IS_AWAY;
    }
}

/* After an error, or in place of the rest of a step.  Nobody needs values that end with an update,
 * unless the layer's update waits. */
MEMOI void memob_step_abandon(memob_step* step) {
    memoi_step_find_lies(step);
    memoi_step_drop_load(step);
    for (int32_t i = 0; i < step->desc.n_items; i++)
        if (step->desc.ends[i] && step->there.lies[i] &&
            !step->there.pending[i / step->desc.n_of_layer])
            step->there.lies[i] = MEMOB_IS_THERE;
    if (step->rows && step->rows->stalls) step->rows->stalls->is_known = 0;
    step->phase = -1;
    step->n_open = step->is_entered = step->n_begun = step->n_ended = 0;
    step->desc.sink->has_failed = 1;
}
