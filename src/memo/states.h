#pragma once
#include "memo/states_items.h"
/* ---- >>states -----------------------------------------------------------------------------------
 * Knows: which visit is open, what lies on the device, which copies of the law are left, and how
 * the caller reads and writes states.  Knows nothing of why bytes travel, of rows, and of what the
 * trainer computes.
 *
 * Sessions, the planner's clock and memo_swap_generate run this engine, a sink of the law of
 * >>states items.  When a list begins, the engine takes the law's operations of the list and of the
 * list that will follow, and leaves out the copies of what lies on the device already.  If another
 * list follows (updates after a micro-batch that was not the last, an abandoned step), first all
 * that is newer on the device goes to the host, and the streams join.
 *
 * Copies are enqueued in the law's order, but those that no open visit waits for come between the
 * slices of its layer, each way in its own order.
 *
 * 1. A visit finds on the device what it reads.
 * 2. What is overwritten is not newer than the host's bytes, or spent.
 * 3. No copy to the device brings bytes that are older than those there.
 * 4. Visits come in the order of their list; see the head of >>states items. */

/* --- creation --- */

/* 0: to the host; 1: to the device; 2: a visit. */
MEMOI int32_t memoi_states_way(const memob_states* states, int32_t k) {
    const int32_t kind = states->sink.law.ops[k].kind;
    if (kind == MEMOB_OP_VISIT) return 2;
    return kind == MEMOB_OP_LOAD || kind == MEMOB_OP_READ;
}

/* After memob_states_init: what a step needs.  n_streams: as for memoi_sink_prepare.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_states_prepare(memob_states* states, int32_t n_streams, memo_error* error) {
    memo_status status = memoi_states_make_items(states, error);
    if (!status) status = memoi_states_find_pieces(states, error);
    if (!status) status = memoi_states_make_law(states, error);
    return status ? status : memoi_sink_prepare(&states->sink, NULL, n_streams, error);
}

MEMOI void memob_states_destroy(memob_states* states) {
    if (!states) return;
    memob_states_free(states);
    MEMO_FREE(states);
}

/* Takes memory, file, streams and events; memob_states_destroy frees any part of them. */
MEMOI memo_status memoi_states_acquire(memob_states* states, const memob_states_desc* desc,
                                       int is_dry, memo_error* error) {
    static const char name[] = "memo_session_desc";
    const memob_states_sizes* sizes = &states->sizes;
    const int has_file = sizes->spill_bytes > 0, launches = has_file || states->updates;
    const int32_t n_copying = sizes->host_bytes ? 3 : 0;
    memob_engine* e = &states->sink.engine;
    memo_stream filling;
    memo_status status = MEMO_STATUS_OK;
    if (has_file && !desc->spill_directory && !is_dry)
        return MEMOB_INVALID(error,
                             "memo_session_desc.spill_directory: NULL, but spilled has bits");
    status = memob_states_prepare(states, launches ? (int32_t)MEMOB_N_STREAMS : n_copying, error);
    if (launches && !status)
        status =
            memob_engine_check_launch(e, name, has_file ? "the spill file" : "update_host", error);
    if (!status)
        status = memob_engine_acquire(e, name, sizes->device_bytes, sizes->host_bytes, NULL,
                                      launches ? 3 : 2, error);
    if (status) return status;

    /* All states are zero at first, as a new file is. */
    if (is_dry) return status;
    if (sizes->host_bytes) memset(e->host_memory, 0, (size_t)sizes->host_bytes);
    if (has_file)
        status = memob_spill_create(
            &e->file, desc->spill_directory, sizes->spill_bytes, desc->spill_bytes_per_s,
            e->host_memory + sizes->host_bytes - MEMOB_SPILL_ALIGNMENT, error);
    filling = e->streams[MEMOB_STREAM_TO_DEVICE];
    if (!status && sizes->resident_bytes)
        status = memo_fill(&e->device, filling, e->device_memory, 0, sizes->resident_bytes, error);
    return status ? status : memo_stream_synchronize(&e->device, filling, error);
}

/* All states are zero bytes at first.  is_dry: as for memob_swap_create.  Errors: INVALID_ARGUMENT,
 * OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, UNSUPPORTED (update_host, but no launch_host), the
 * device's; of a file as memo_swap_create. */
MEMOI memo_status memob_states_create(const memob_states_desc* desc, int is_dry,
                                      memob_states** result, memo_error* error) {
    memob_states* states = (memob_states*)memob_calloc(1, sizeof *states);
    memo_status status;
    *result = NULL;
    if (!states) return memob_no_memory(error, "an engine of states");
    memob_engine_begin(&states->sink.engine, desc->device, desc->compute_stream,
                       desc->computes_on_host, desc->device_memory, desc->host_memory);
    status = memob_states_init(states, desc, error);
    if (!status) status = memoi_states_acquire(states, desc, is_dry, error);
    if (status) {
        memob_states_destroy(states);
        return status;
    }
    *result = states;
    return MEMO_STATUS_OK;
}

/* --- what lies on the device --- */

/* 1: all bytes of the item do. */
MEMOI int memoi_states_is_there(const memob_states* states, int32_t item) {
    const memob_state_bytes* of = &states->bytes[item];
    for (int32_t p = of->first_piece; p < of->end_piece; p++)
        if (states->owners[p] != item) return 0;
    return 1;
}

/* From now on the item lies there.  1: it did before. */
MEMOI int memoi_states_put(memob_states* states, int32_t item) {
    const memob_state_bytes* of = &states->bytes[item];
    int was_there = 1;
    for (int32_t p = of->first_piece; p < of->end_piece; p++) {
        const int32_t owner = states->owners[p];
        MEMO_ASSERT(owner < 0 || owner == item || !states->bytes[owner].is_newer); /* 2 */
        was_there &= owner == item;
        states->owners[p] = item;
    }
    return was_there;
}

/* Its bytes there are nobody's. */
MEMOI void memoi_states_drop(memob_states* states, int32_t item) {
    memob_state_bytes* of = &states->bytes[item];
    for (int32_t p = of->first_piece; p < of->end_piece; p++)
        if (states->owners[p] == item) states->owners[p] = -1;
    of->is_newer = 0;
}

/* --- operations --- */

/* Has this copy of an item nothing to do?  A load puts the item there. */
MEMOI int memoi_states_is_done(memob_states* states, int32_t kind, int32_t item) {
    if (kind == MEMOB_OP_LOAD) return memoi_states_put(states, item);
    if (kind == MEMOB_OP_READ) return memoi_states_is_there(states, item);
    return !states->bytes[item].is_newer;
}

/* Copies an item, which a load has put there; or writes or reads the file. */
MEMOI inline void memoi_states_copy(memob_states* states, int32_t kind, int32_t item) {
    memob_state_bytes* of = &states->bytes[item];
    memob_engine* e = &states->sink.engine;
    MEMO_ASSERT(kind != MEMOB_OP_LOAD || !of->is_newer); /* 3 */
    memoi_state_copy(e, of, kind, item);
    if (e->status) {
        if (kind == MEMOB_OP_LOAD) memoi_states_drop(states, item);
    } else if (kind != MEMOB_OP_STORE || of->at[MEMO_TIER_FILE] < 0)
        of->is_newer = 0;
}

/* Enqueues what is left of a copy.  Nothing has failed so far. */
MEMOI void memoi_states_enqueue(memob_states* states, int32_t k) {
    memob_sink* sink = &states->sink;
    const memob_op* op = &sink->law.ops[k];
    const memob_part *part = &sink->law.parts[op->first_part], *end = part + op->n_parts;
    const int32_t kind = op->kind;
    int64_t n_before = -1;
    MEMO_ASSERT(!sink->engine.status);
    for (; part < end; part++) {
        const int32_t item = part->item;
        if (memoi_states_is_done(states, kind, item)) continue;
        if (n_before < 0) n_before = memoi_sink_begin(sink, op);
        memoi_states_copy(states, kind, item);
        if (sink->engine.status) break;
    }
    if (n_before >= 0) memoi_sink_end(sink, op, n_before);
}

/* The copies before `end` that are left, in order. */
MEMOI void memoi_states_enqueue_until(memob_states* states, int32_t end) {
    int32_t k = (int32_t)memob_min(states->due[0], states->due[1]);
    for (; k < end && !states->sink.engine.status; k++) {
        const int32_t way = memoi_states_way(states, k);
        if (way < 2 && k >= states->due[way]) memoi_states_enqueue(states, k);
    }
    for (int32_t way = 0; way < 2; way++)
        states->due[way] = (int32_t)memob_max(states->due[way], end);
}

/* 1: both operations touch a byte, and either writes. */
MEMOI int memoi_states_conflict(const memob_states* states, int32_t a, int32_t b) {
    const memob_law* law = &states->sink.law;
    const memob_op *of_a = &law->ops[a], *of_b = &law->ops[b];
    for (int32_t i = of_a->first_touch; i < of_a->first_touch + of_a->n_touches; i++)
        for (int32_t k = of_b->first_touch; k < of_b->first_touch + of_b->n_touches; k++)
            if (law->touches[i] >> 1 == law->touches[k] >> 1 &&
                (law->touches[i] | law->touches[k]) & 1)
                return 1;
    return 0;
}

/* The copies that operation k, a visit or a copy, must find enqueued, and those before them. */
MEMOI void memoi_states_enqueue_before(memob_states* states, int32_t k) {
    int32_t i = k - 1, first = (int32_t)memob_min(states->due[0], states->due[1]);
    for (; i >= first; i--) {
        const int32_t way = memoi_states_way(states, i);
        if (way < 2 && i >= states->due[way] && memoi_states_conflict(states, i, k)) break;
    }
    memoi_states_enqueue_until(states, i + 1);
}

/* Bytes of the copies of a way that are left up to the next visit. */
MEMOI double memoi_states_due_bytes(const memob_states* states, int32_t way) {
    const memob_law* law = &states->sink.law;
    double n_bytes = 0;
    for (int32_t k = states->due[way]; k < states->op; k++) {
        const memob_part* part = &law->parts[law->ops[k].first_part];
        const memob_part* end = part + law->ops[k].n_parts;
        if (memoi_states_way(states, k) != way) continue;
        for (; part < end; part++) n_bytes += (double)states->bytes[part->item].n_bytes;
    }
    return n_bytes;
}

/* A layer with slices begins one of them, and so many have begun before.  The copies of each way
 * that are left then are spread over the slices by their bytes, so that copies of rows between them
 * are not late.  If they take no longer than the layer, they end with it. */
MEMOI void memoi_states_enqueue_share(memob_states* states, int32_t n_begun) {
    for (int32_t way = 0; way < 2; way++) {
        double left_bytes = memoi_states_due_bytes(states, way);
        if (!n_begun) states->due_bytes[way] = left_bytes;
        while (left_bytes > 0 && !states->sink.engine.status &&
               (states->due_bytes[way] - left_bytes) * states->n_slices <=
                   states->due_bytes[way] * n_begun) {
            const int32_t k = states->due[way];
            if (memoi_states_way(states, k) == way) {
                memoi_states_enqueue_before(states, k);
                if (!states->sink.engine.status) memoi_states_enqueue(states, k);
            }
            states->due[way] = k + 1;
            left_bytes = memoi_states_due_bytes(states, way);
        }
    }
}

/* Moves n items behind and before all else: those that are newer to their homes, or those that are
 * not there from their homes. */
MEMOI void memoi_states_move(memob_states* states, int32_t item, int32_t n, int is_load) {
    static const int32_t kinds[2][2] = {{MEMOB_OP_STORE, MEMOB_OP_WRITE},
                                        {MEMOB_OP_READ, MEMOB_OP_LOAD}};
    memob_engine* e = &states->sink.engine;
    int32_t n_moved = 0;
    for (const int32_t end = item + n; item < end && !e->status; item++) {
        const int has_file = states->bytes[item].at[MEMO_TIER_FILE] >= 0;
        if (memoi_states_is_done(states, kinds[is_load][is_load], item)) continue;
        if (!n_moved++) memoi_sink_join(&states->sink);
        for (int k = 0; k < 2 && !e->status; k++)
            if (has_file || k == is_load) {
                memoi_states_copy(states, kinds[is_load][k], item);
                if (has_file && !e->status) memoi_sink_join(&states->sink);
            }
    }
    if (n_moved && !e->status) memoi_sink_join(&states->sink);
}

/* --- visits --- */

MEMOI const memob_visit* memoi_states_visit(const memob_states* states) {
    MEMO_ASSERT(states->list && states->op < states->end); /* 4 */
    return &states->items.visits[states->sink.law.ops[states->op].visit];
}

/* Copies are due up to the next visit.  They may wait for its slices, but not at the end of a
 * list. */
MEMOI void memoi_states_pass_copies(memob_states* states) {
    while (states->op < states->end && memoi_states_way(states, states->op) < 2) states->op++;
    if (!states->is_spread || states->op == states->end)
        memoi_states_enqueue_until(states, states->op);
}

/* A list begins, which `next` will follow. */
MEMOI void memoi_states_enter(memob_states* states, int32_t list, int32_t next) {
    const int32_t table = states->items.table_of[list][next];
    MEMO_ASSERT(table > 0 && !states->is_visiting); /* 4; 3 of >>states items */
    if (states->next != list) memoi_states_move(states, 0, states->n_layers * states->n_states, 0);
    if (states->sink.engine.status) return;
    states->list = list;
    states->next = next;
    states->op = states->due[0] = states->due[1] = states->sink.law.begin[3 * (table - 1)];
    states->end = states->sink.law.begin[3 * (table - 1) + 2];
    states->n_updates = 0;
    memoi_states_pass_copies(states);
    memoi_states_enqueue_until(states, states->op);
}

/* The last visit of a list is over.  A forward that is not followed by a backward is an
 * evaluation. */
MEMOI void memoi_states_leave(memob_states* states) {
    const int32_t list = states->list, next = states->next;
    const int is_forward =
        list == MEMOB_STATES_FORWARD || (list == MEMOB_STATES_UPDATE_FORWARD && !states->n_turns);
    states->list = MEMOB_STATES_NOTHING;
    if (is_forward && next != MEMOB_STATES_FORWARD) {
        memoi_states_enter(states, next, states->behind);
        if (states->sink.engine.status) states->list = next; /* until it is abandoned */
    } else
        states->is_due = next == MEMOB_STATES_UPDATE || next == MEMOB_STATES_UPDATE_FORWARD;
}

/* The open visit ends: what it has changed, and the copies behind it. */
MEMOI void memoi_states_close(memob_states* states) {
    const memob_states_items* it = &states->items;
    const memob_law* law = &states->sink.law;
    const memob_op* op = &law->ops[states->op];
    const memob_use* end = &it->uses[law->first_use[op->visit + 1]];
    if (!states->is_visiting || states->sink.engine.status) return;
    states->is_visiting = 0;
    for (const memob_use* use = &it->uses[law->first_use[op->visit]]; use < end; use++) {
        if (use->how == MEMOB_USE_READ) continue;
        if (use->is_on_host)
            memoi_states_drop(states, use->item); /* older */
        else
            states->bytes[use->item].is_newer = use->how != MEMOB_USE_SPEND;
    }
    if (op->n_touches) memoi_sink_end(&states->sink, op, states->n_before);
    states->op++;
    memoi_states_pass_copies(states);
    if (!states->sink.engine.status && states->op == states->end) memoi_states_leave(states);
}

/* Announces the update of a layer on the host, which reads gradients and changes all other
 * states. */
MEMOI void memoi_states_annotate(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    const uint32_t used = states->layers[layer].has & (states->updated | states->gradients);
    memo_range reads[MEMO_STATES_MAX], writes[MEMO_STATES_MAX];
    memo_op_desc what = MEMO_ZERO(memo_op_desc);
    for (int32_t s = 0; s < states->n_states; s++) {
        if (!(used >> s & 1)) continue;
        reads[what.n_reads] = memob_range_at(memob_states_get_host_address(states, layer, s),
                                             states->states[s].size_bytes);
        if (states->updated >> s & 1) writes[what.n_writes++] = reads[what.n_reads];
        what.n_reads++;
    }
    what.name = "update on host";
    what.link_bytes = (int64_t)memob_states_update_bytes(states, layer);
    what.reads = reads;
    what.writes = writes;
    e->status = memo_annotate(&e->device, e->streams[MEMOB_STREAM_FILE], &what, e->error);
}

/* Opens the visit that comes next, with the waits that it needs.  An update on the host runs then,
 * when the device has stored what it uses. */
MEMOI void memoi_states_open(memob_states* states) {
    const memob_states_items* it = &states->items;
    const memob_law* law = &states->sink.law;
    const memob_op* op = &law->ops[states->op];
    const memob_use* first = &it->uses[law->first_use[op->visit]];
    const memob_use* end = &it->uses[law->first_use[op->visit + 1]];
    const memob_visit* visit = memoi_states_visit(states);
    const int on_host = op->stream == MEMOB_STREAM_FILE;
    memob_sink* sink = &states->sink;
    memob_engine* e = &sink->engine;
    memoi_states_enqueue_before(states, states->op);
    if (e->status) return;

    /* What the visit writes is there from now on. */
    for (const memob_use* use = first; use < end && !on_host; use++) {
        if (use->how != MEMOB_USE_WRITE) continue;
        if (!states->is_filling || visit->pass != MEMOB_UPDATE)
            memoi_states_put(states, use->item);
        else
            memoi_states_move(states, use->item, 1, 1);
    }
    if (e->status) return;

    /* Updates on the host also use what the trainer has computed since the backward: a norm. */
    if (on_host && states->list == MEMOB_STATES_UPDATE && !states->n_updates)
        memoi_sink_follow(sink, op->stream, MEMOB_STREAM_COMPUTE);
    states->n_before = memoi_sink_begin(sink, op);
    for (const memob_use* use = first; use < end; use++)
        MEMO_ASSERT(on_host || memoi_states_is_there(states, use->item)); /* 1 */
    if (on_host && !e->status && e->device.annotate) memoi_states_annotate(states, visit->layer);
    if (on_host && !e->status)
        e->status = memo_launch_host(&e->device, e->streams[MEMOB_STREAM_FILE],
                                     &states->updates[visit->layer].call, e->error);
    if (e->status) return;
    states->is_visiting = 1;
    if (visit->pass != MEMOB_UPDATE || states->n_updates++) return;
    states->n_unseen++;
    states->is_pending = 0;
}

/* The visit of a layer opens when the one before has ended. */
MEMOI void memoi_states_go(memob_states* states, int32_t pass, int32_t layer) {
    memoi_states_close(states);
    if (states->sink.engine.status) return;
    MEMO_ASSERT(memoi_states_visit(states)->pass == pass);   /* 4 */
    MEMO_ASSERT(memoi_states_visit(states)->layer == layer); /* 4 */
    (void)pass, (void)layer;
    memoi_states_open(states);
}

MEMOI memo_status memoi_states_finish(memob_states* states) {
    states->sink.has_failed |= states->sink.engine.status != MEMO_STATUS_OK;
    return states->sink.engine.status;
}

/* --- a step --- */

/* 1: the update comes next. */
MEMOI int memob_states_is_due(const memob_states* states) {
    return states->is_due || states->list == MEMOB_STATES_UPDATE;
}

/* 1: a micro-batch is open. */
MEMOI int memob_states_is_open(const memob_states* states) {
    return states->list != MEMOB_STATES_NOTHING && states->list != MEMOB_STATES_UPDATE;
}

/* Instead of an update: each layer is updated before its next forward. */
MEMOI void memob_states_defer(memob_states* states) {
    MEMO_ASSERT(states->update_at == MEMO_UPDATE_DEFERRED && !states->is_pending && !states->list);
    states->is_due = 0;
    states->is_pending = 1;
}

/* Begins a micro-batch, or an order, and fetches what its first layers need.  n_slices: of a layer.
 * is_last: the update comes after its backward, or in it.  is_forward_only: no backward follows,
 * and no updates are pending.  Errors: the device's. */
MEMOI memo_status memob_states_set_batch(memob_states* states, int32_t n_slices, int is_last,
                                         int is_forward_only, memo_error* error) {
    const int32_t last[] = {MEMOB_STATES_NOTHING, MEMOB_STATES_UPDATE,
                            states->n_turns ? MEMOB_STATES_FUSED : MEMOB_STATES_FORWARD,
                            MEMOB_STATES_UPDATE_FORWARD};
    MEMOB_TABLE_OF(MEMO_N_UPDATE_MOMENTS, last);
    const int32_t more = states->n_turns ? MEMOB_STATES_MORE_BACKWARD : MEMOB_STATES_FORWARD;
    const int32_t forward = states->is_pending ? MEMOB_STATES_UPDATE_FORWARD : MEMOB_STATES_FORWARD;
    const int is_more = states->layers[0].has_gradients && !states->is_pending;
    const int is_fused = is_last && states->update_at == MEMO_UPDATE_FUSED;
    int32_t backward = is_more ? MEMOB_STATES_MORE_BACKWARD : MEMOB_STATES_BACKWARD;
    if (is_fused) backward = is_more ? MEMOB_STATES_MORE_FUSED : MEMOB_STATES_FUSED;
    MEMO_ASSERT(!states->list && !(is_forward_only && states->is_pending));
    memoi_sink_call(&states->sink, error);
    states->n_slices = n_slices;
    states->is_spread = n_slices > 1 && !states->sizes.spill_bytes; /* windows have an order */
    states->is_forward_only = is_forward_only;
    states->behind = is_last ? last[states->update_at] : more;
    if (!states->sink.engine.status && states->n_turns && !is_forward_only)
        memoi_states_enter(states, states->is_pending ? forward : backward, states->behind);
    else if (!states->sink.engine.status)
        memoi_states_enter(states, forward, is_forward_only ? MEMOB_STATES_FORWARD : backward);
    return memoi_states_finish(states);
}

/* Gradients of a new step begin at zero. */
MEMOI void memoi_states_clear(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    uint32_t fresh = states->layers[layer].has_gradients ? 0 : states->gradients;
    for (; fresh && !e->status; fresh &= fresh - 1) {
        const int32_t s = __builtin_ctz(fresh);
        void* address = memob_states_get_address(states, layer, s);
        if (!address) continue;
        if (e->computes_on_host)
            memset(address, 0, (size_t)states->states[s].size_bytes);
        else
            e->status = memo_fill(&e->device, e->streams[MEMOB_STREAM_COMPUTE], address, 0,
                                  states->states[s].size_bytes, e->error);
    }
}

/* Begin and end enclose what the trainer enqueues for a layer of a pass: FORWARD, BACKWARD or
 * UPDATE.  Sessions have checked the order, that of the head of >>states items: FIRST ends its
 * forward behind the begin of layer 1, and begins its backward behind that of layer 1; LAST ends
 * its backward before the layer before it does.  A deferred update is a visit of its own, before
 * the layer's forward; a fused one begins, and ends with the backward.  An update may also follow a
 * micro-batch that was not the last, and ends deferred updates that are pending.  Errors: the
 * device's; then comes memob_states_abandon. */
MEMOI memo_status memoi_states_begin(memob_states* states, int32_t pass, int32_t layer,
                                     memo_error* error) {
    memob_sink* sink = &states->sink;
    memoi_sink_call(sink, error);
    if (!sink->engine.status && pass == MEMOB_UPDATE && !states->list)
        memoi_states_enter(states, MEMOB_STATES_UPDATE,
                           states->n_turns ? MEMOB_STATES_BACKWARD : MEMOB_STATES_FORWARD);
    if (!sink->engine.status && !(pass == MEMOB_BACKWARD && !layer) &&
        !(pass == MEMOB_UPDATE && states->updates))
        memoi_states_go(states, pass, layer);
    if (pass == MEMOB_BACKWARD) memoi_states_clear(states, layer);
    return memoi_states_finish(states);
}

/* updates: the layer's update ends, too. */
MEMOI memo_status memoi_states_end(memob_states* states, int32_t pass, int32_t layer, int updates,
                                   memo_error* error) {
    memoi_sink_call(&states->sink, error);
    if (states->sink.engine.status || (pass == MEMOB_FORWARD && !layer))
        return memoi_states_finish(states);
    if (updates && states->updates) memoi_states_go(states, MEMOB_UPDATE, layer);
    if (updates || !(pass == MEMOB_BACKWARD && layer == states->n_layers - 1))
        memoi_states_close(states);
    if (states->sink.engine.status) return memoi_states_finish(states);
    if (pass != MEMOB_FORWARD) states->layers[layer].has_gradients = !updates;
    if (pass == MEMOB_BACKWARD && layer == 1) memoi_states_go(states, MEMOB_BACKWARD, 0);
    return memoi_states_finish(states);
}

MEMOI memo_status memoi_states_look(const memob_states* states, int32_t pass, int32_t layer,
                                    int is_end) {
    const memob_states_trainer* t = &states->trainer;
    return t->look ? t->look(t->user, pass, layer, is_end) : MEMO_STATUS_OK;
}

/* The update of a layer in a pass.  A pass of updates has begun it; on the host the engine makes
 * it. */
MEMOI memo_status memoi_states_update(memob_states* states, int32_t pass, int32_t layer, int is_end,
                                      memo_error* error) {
    const int on_host = states->updates != NULL;
    memo_status status = MEMO_STATUS_OK;
    if (!on_host && pass != MEMOB_UPDATE)
        status = memoi_states_begin(states, MEMOB_UPDATE, layer, error);
    if (!status && (on_host || !is_end)) status = memoi_states_look(states, MEMOB_UPDATE, layer, 0);
    if (status || on_host) return status;
    status = states->trainer.update(states->trainer.user, layer);
    if (!status) status = memoi_states_look(states, MEMOB_UPDATE, layer, 1);
    return status || is_end ? status : memoi_states_end(states, MEMOB_UPDATE, layer, 1, error);
}

/* 1: the layer's update is the visit behind the open one. */
MEMOI int memoi_states_updates_next(const memob_states* states, int32_t layer) {
    int32_t k = states->op + states->is_visiting;
    const memob_visit* visit;
    if (states->update_at == MEMO_UPDATE_PASS || !states->list) return 0;
    while (k < states->end && memoi_states_way(states, k) < 2) k++;
    visit = &states->items.visits[k < states->end ? states->sink.law.ops[k].visit : 0];
    return visit->pass == MEMOB_UPDATE && visit->layer == layer;
}

/* A layer's pass begins or ends, with the update if it is time: before the end of a pass of updates
 * or of a fused backward, before the begin of a visit if it is deferred. */
MEMOI memo_status memob_states_visit(memob_states* states, int32_t pass, int32_t layer, int is_end,
                                     memo_error* error) {
    const int on_host = states->updates != NULL;
    const int updates = pass == MEMOB_UPDATE ? is_end : memoi_states_updates_next(states, layer);
    memo_status status = MEMO_STATUS_OK;
    if (is_end && pass != MEMOB_UPDATE) status = memoi_states_look(states, pass, layer, 1);
    if (!status && updates) status = memoi_states_update(states, pass, layer, is_end, error);
    if (!status)
        status = is_end ? memoi_states_end(states, pass, layer, updates, error)
                        : memoi_states_begin(states, pass, layer, error);

    /* An update on the host begins and ends with the end of its pass. */
    if (status) return status;
    if (is_end)
        return updates && on_host ? memoi_states_look(states, MEMOB_UPDATE, layer, 1) : status;
    return on_host && pass == MEMOB_UPDATE ? status : memoi_states_look(states, pass, layer, 0);
}

/* Abandons a step: gradients begin at zero again, and memob_states_set_batch comes next.  Updates
 * that are pending stay so if none has begun, with their gradients.  Returns INVALID_STATE if the
 * states must be set again: the update has changed some layers but not all, or the device reports a
 * failed operation (without waiting), and an update has begun since the last transfer.  The words
 * follow those of the failure.  After it transfers return the device's error, never bytes of two
 * steps. */
MEMOI memo_status memob_states_abandon(memob_states* states, memo_error* error) {
    /* With turns deferred updates are over before their list is. */
    const int is_updating = states->is_visiting && memoi_states_visit(states)->pass == MEMOB_UPDATE;
    const int is_whole = states->list == MEMOB_STATES_UPDATE_FORWARD && !is_updating &&
                         states->n_updates == states->n_layers;
    const int32_t n_updates = states->list && !is_whole ? states->n_updates : 0;
    for (int32_t l = 0; l < states->n_layers && !states->is_pending; l++) {
        states->layers[l].has_gradients = 0;
        for (int32_t s = 0; s < states->n_states; s++)
            if (states->gradients >> s & 1) memoi_states_drop(states, l * states->n_states + s);
    }

    /* No list is under way. */
    states->list = states->next = MEMOB_STATES_NOTHING;
    states->is_visiting = states->is_due = 0;
    states->sink.has_failed = 1;
    if (states->n_unseen && memo_device_status(&states->sink.engine.device, NULL))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "resident states are lost after %lld updates since states were read "
                              "or written, and some streamed ones are older than others; set the "
                              "states of all layers again, in a new session",
                              (long long)states->n_unseen);
    if (!n_updates) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "the update has changed %d of %d layers; set the states of all layers "
                          "again",
                          (int)n_updates, (int)states->n_layers);
}

/* Forgets what lies on the device, as in a new engine.  All that was enqueued is over. */
MEMOI void memob_states_reset(memob_states* states) {
    states->n_unseen = states->is_pending = 0;
    (void)memob_states_abandon(states, NULL);
    for (int32_t i = 0; i < states->n_layers * states->n_states; i++) memoi_states_drop(states, i);
    memoi_sink_reset(&states->sink);
}

/* --- both engines --- */

/* What a layer brings and releases, and with it the engine's first and last layer. */
MEMOI memo_status memoi_states_turn_layer(memob_states* states, int32_t pass, int32_t layer,
                                          int is_end, memo_error* error) {
    const int32_t last = states->n_layers - 1;
    const int is_first = layer == 1, is_last = layer == last - 1;
    const int is_backward = pass == MEMOB_BACKWARD;
    memo_status status = MEMO_STATUS_OK;
    if (is_end && (is_backward ? is_last : is_first))
        status = memob_states_visit(states, pass, is_backward ? last : 0, 1, error);
    if (!status) status = memob_states_visit(states, pass, layer, is_end, error);
    if (!status && !is_end && is_backward && is_first)
        status = memob_states_visit(states, pass, 0, 0, error);

    /* LAST behind the last layer. */
    if (status || !is_end || is_backward || !is_last) return status;
    if (states->n_turns && !states->is_forward_only) return status;
    status = memob_states_visit(states, pass, last, 0, error);
    if (status || states->is_forward_only) return status;
    status = memob_states_visit(states, pass, last, 1, error);
    return status ? status : memob_states_visit(states, MEMOB_BACKWARD, last, 0, error);
}

/* A micro-batch, or a turn of an order, begins with FIRST or LAST, or ends with either.  turn: as
 * in memob_states_desc; without an order 0. */
MEMOI memo_status memob_states_begin_turn(memob_states* states, int32_t turn, memo_error* error) {
    if (turn == 0) return memob_states_visit(states, MEMOB_FORWARD, 0, 0, error);
    if (turn != -states->n_chunks) return MEMO_STATUS_OK;
    return memob_states_visit(states, MEMOB_BACKWARD, states->n_layers - 1, 0, error);
}
MEMOI memo_status memob_states_end_turn(memob_states* states, int32_t turn, memo_error* error) {
    if (states->is_forward_only)
        return memob_states_visit(states, MEMOB_FORWARD, states->n_layers - 1, 1, error);
    if (states->n_turns && turn != -1) return MEMO_STATUS_OK;
    return memob_states_visit(states, MEMOB_BACKWARD, 0, 1, error);
}

/* A step begins or ends: its layer, if it is the first or the last, and a share of the copies.  The
 * step counts layers of all chunks, not of places. */
MEMOI memo_status memob_states_step(memob_states* states, int32_t pass, int32_t step, int is_end,
                                    memo_error* error) {
    const int32_t n = states->n_slices, slice = step % n;
    const int32_t n_begun = pass == MEMOB_BACKWARD ? n - 1 - slice : slice;
    memo_status status = MEMO_STATUS_OK;
    if (n_begun == (is_end ? n - 1 : 0))
        status = memoi_states_turn_layer(states, pass, step / n + 1, is_end, error);
    if (status || is_end || !states->is_spread) return status;
    memoi_sink_call(&states->sink, error);
    memoi_states_enqueue_share(states, n_begun);
    return memoi_states_finish(states);
}

/* --- from and to the caller --- */

/* Writes the blocks with these bytes of a spilled state to the file, or reads them, now. */
MEMOI void memoi_states_pass_file(memob_states* states, int32_t layer, int32_t state, int is_read,
                                  int64_t offset_bytes, int64_t n_bytes) {
    memob_engine* e = &states->sink.engine;
    const int64_t begin = offset_bytes / MEMOB_SPILL_ALIGNMENT * MEMOB_SPILL_ALIGNMENT;
    const int64_t* at = memoi_states_bytes(states, layer, state)->at;
    memob_spill_op op;
    if (e->status || !(states->layers[layer].spilled >> state & 1)) return;
    memob_spill_op_init(&op, &e->file, !is_read, e->host_memory + at[1] + begin, at[2] + begin,
                        memob_align_up(offset_bytes + n_bytes - begin, MEMOB_SPILL_ALIGNMENT));
    e->status = memoi_spill_run(&op, e->error);
}

/* Waits for computation, copies and updates on the host. */
MEMOI memo_status memob_states_synchronize(memob_states* states, memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < MEMOB_N_STREAMS && !status; k++)
        if (k == MEMOB_STREAM_COMPUTE ? !e->computes_on_host : e->streams[k] != NULL)
            status = memo_stream_synchronize(&e->device, e->streams[k], error);
    if (!status) states->n_unseen = 0;
    return status;
}

/* Copies bytes of a resident state from `at` on the device, or there, and waits; from NULL: sets
 * them to zero. */
MEMOI memo_status memoi_states_copy_resident(const memob_states* states, int is_out, int64_t at,
                                             void* bytes, int64_t n_bytes, memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    const memo_stream stream = e->streams[is_out ? MEMOB_STREAM_TO_HOST : MEMOB_STREAM_TO_DEVICE];
    char* on_device = e->device_memory + at;
    memo_status status;
    if (bytes) return memob_copy_now(&e->device, stream, on_device, bytes, n_bytes, !is_out, error);
    status = memo_fill(&e->device, stream, on_device, 0, n_bytes, error);
    return status ? status : memo_stream_synchronize(&e->device, stream, error);
}

/* Waits for computation and copies, then copies bytes of a state from where they lie, or there;
 * from NULL: sets them to zero.  A layer that lacks the state has none.  Needs no room on the
 * device.  Errors: INVALID_STATE (a layer is open), INVALID_ARGUMENT (outside of the state), the
 * device's. */
MEMOI memo_status memob_states_transfer(memob_states* states, int32_t layer, int32_t state,
                                        int is_out, int64_t offset_bytes, void* bytes,
                                        int64_t n_bytes, memo_error* error) {
    const char* const name = is_out ? "memo_session_read_state" : "memo_session_write_state";
    memob_engine* e = &states->sink.engine;
    const memob_state_bytes* of = memoi_states_bytes(states, layer, state);
    const int64_t size_bytes = states->states[state].size_bytes;
    const uint32_t bit = 1u << state;
    memo_status status;
    const int32_t item = layer * states->n_states + state;
    char* on_host;
    if (states->is_visiting)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "%s: a layer is open; end it first",
                              name);
    if (!(states->layers[layer].has & bit)) return MEMO_STATUS_OK;
    if (!memob_is_within(n_bytes, 0, size_bytes) ||
        !memob_is_within(offset_bytes, 0, size_bytes - n_bytes))
        return MEMOB_INVALID(
            error, "%s: offset_bytes: %lld bytes from byte %lld; state %d has %lld bytes", name,
            (long long)n_bytes, (long long)offset_bytes, (int)state, (long long)size_bytes);
    status = memob_states_synchronize(states, error);
    if (status || !n_bytes) return status;

    if (!(states->layers[layer].streamed & bit))
        return memoi_states_copy_resident(states, is_out, of->at[0] + offset_bytes, bytes, n_bytes,
                                          error);

    /* Streamed: on the host, when what is newer has left the device. */
    on_host = e->host_memory + of->at[1] + offset_bytes;
    memoi_sink_call(&states->sink, error);
    if (!e->status && of->is_newer) {
        memoi_states_move(states, item, 1, 0);
        if (!e->status) e->status = memob_states_synchronize(states, error);
    }
    if (!e->status && !is_out) memoi_states_drop(states, item);
    memoi_states_pass_file(states, layer, state, 1, offset_bytes, n_bytes);
    if (!e->status && bytes)
        memcpy(is_out ? bytes : on_host, is_out ? on_host : bytes, (size_t)n_bytes);
    else if (!e->status)
        memset(on_host, 0, (size_t)n_bytes);
    if (!is_out) memoi_states_pass_file(states, layer, state, 0, offset_bytes, n_bytes);
    return e->status;
}
