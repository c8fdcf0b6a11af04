#pragma once
#include "memo/bulk.h"
#include "memo/states_items.h"
/* ---- >>states -----------------------------------------------------------------------------------
 * Knows: which visits of a step a call of the trainer brings, how updates run, and how the caller
 * reads and writes states.  Knows nothing of why bytes travel, of what rows are, and of what the
 * trainer computes.
 *
 * Sessions, the planner's clock and memo_swap_generate go through the cursor of a step with these
 * functions.
 *
 *   FIRST   is used from the begin of a turn on.  Its backward begins behind that of layer 1, and
 *           ends with the turn.
 *   LAST    begins behind the forward of the last layer, or with a turn of backwards.
 *   updates  run where the cursor shows them: deferred ones before a layer's visit, fused ones
 *           behind it.  If none waits, the cursor passes them.
 *
 * 1. Visits come in the order of the cursor's list.
 * 2. Gradients that begin are those of no step. */

/* --- creation --- */

MEMOI void memob_states_destroy(memob_states* states) {
    if (!states) return;
    memob_states_free(states);
    MEMO_FREE(states);
}

/* A use of n_bytes of a state from offset_bytes on in the file, or by the caller's function. */
MEMOI void memoi_states_make_op(memob_states* states, int32_t layer, int32_t state, int is_write,
                                int64_t offset_bytes, int64_t n_bytes, memob_spill_op* op) {
    memob_memory* memory = &states->sink.engine.memory;
    const int64_t* at = memoi_states_bytes(states, layer, state)->at;
    const memob_fetch fetch = {states->trainer.fetch, states->trainer.user, layer, state,
                               states->states[state].size_bytes};
    memob_spill_op_init(op, &memory->file, is_write, memory->host + at[1] + offset_bytes,
                        memob_max(at[2], 0) + offset_bytes,
                        memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT));
    if (states->fetched >> state & 1) op->fetch = fetch;
}

/* FETCHED states that are streamed: their reads. */
MEMOI void memoi_states_make_fetches(memob_states* states) {
    memob_spill_op* ops = states->sink.engine.memory.spill_ops;
    for (int32_t k = 0; k < states->n_layers * states->n_states && states->fetched; k++) {
        const int32_t layer = k / states->n_states, s = k % states->n_states;
        if (states->layers[layer].spilled & states->fetched & 1u << s)
            memoi_states_make_op(states, layer, s, 0, 0, states->states[s].size_bytes,
                                 &ops[2 * (int64_t)k + 1]);
    }
}

/* FETCHED states that stay on the device, by the calling thread, through memory of its own. */
MEMOI memo_status memob_states_fetch(memob_states* states, memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    const int64_t most_bytes = (int64_t)1 << 22; /* a multiple of MEMOB_SPILL_ALIGNMENT */
    char* bytes = states->fetched ? (char*)MEMO_MALLOC((size_t)most_bytes) : NULL;
    memo_status status = MEMO_STATUS_OK;
    if (states->fetched && !bytes) return memob_no_memory(error, "bytes of FETCHED states");
    for (int32_t k = 0; k < states->n_layers * states->n_states && states->fetched; k++) {
        const int32_t layer = k / states->n_states, s = k % states->n_states;
        const memob_states_layer* l = &states->layers[layer];
        const int stays = (int)((l->has & ~(l->streamed | l->lent) & states->fetched) >> s & 1);
        const int64_t size_bytes = stays ? states->states[s].size_bytes : 0;
        for (int64_t at = 0; at < size_bytes && !status; at += most_bytes) {
            const int64_t n_bytes = memob_min(size_bytes - at, most_bytes);
            status =
                states->trainer.fetch(states->trainer.user, layer, s, at, bytes, n_bytes, error);
            if (!status)
                status = memob_copy_now(&e->device, e->streams[MEMOB_STREAM_TO_DEVICE],
                                        e->memory.device + states->bytes[k].at[0] + at, bytes,
                                        n_bytes, 1, error);
        }
    }
    MEMO_FREE(bytes);
    return status;
}

/* Takes memory, file, streams and events; memob_states_destroy frees any part of them. */
MEMOI memo_status memoi_states_acquire(memob_states* states, const memob_states_desc* desc,
                                       int is_dry, memo_error* error) {
    static const char name[] = "memo_session_desc";
    const memob_states_sizes* sizes = &states->sizes;
    const int has_file = sizes->spill_bytes > 0, has_windows = memoi_states_have_windows(states);
    const int launches = has_windows || states->updates;
    const char* const launched[] = {"update_host", "MEMO_STATE_FETCHED", "the spill file"};
    memob_engine* e = &states->sink.engine;
    memo_stream filling;
    memo_status status = MEMO_STATUS_OK;
    if (has_file && !desc->spill_directory && !is_dry)
        return MEMOB_INVALID(error,
                             "memo_session_desc.spill_directory: NULL, but spilled has bits");
    status = memob_states_make_items(states, error);
    if (launches && !status)
        status = memob_engine_check_launch(e, name, launched[has_windows + has_file], error);
    if (!status)
        status = memob_engine_acquire(e, name, sizes->device_bytes, sizes->host_bytes, error);
    if (!status) status = memoi_sink_take_streams(&states->sink, launches ? 3 : 2, error);
    if (status) return status;
    memoi_states_make_fetches(states);

    /* All states but FETCHED ones are zero at first, as a new file is. */
    if (is_dry) return status;
    if (sizes->host_bytes) memob_bulk_copy(e->memory.host, NULL, sizes->host_bytes);
    if (has_file)
        status = memob_spill_create(
            &e->memory.file, desc->spill_directory, sizes->spill_bytes, desc->spill_bytes_per_s,
            e->memory.host + sizes->host_bytes - MEMOB_SPILL_ALIGNMENT, error);
    filling = e->streams[MEMOB_STREAM_TO_DEVICE];
    if (!status && sizes->resident_bytes)
        status = memo_fill(&e->device, filling, e->memory.device, 0, sizes->resident_bytes, error);
    if (!status) status = memo_stream_synchronize(&e->device, filling, error);
    return status ? status : memob_states_fetch(states, error);
}

/* All states but FETCHED ones are zero bytes at first.  is_dry: as for memob_swap_create.  Errors:
 * INVALID_ARGUMENT,
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

/* --- visits --- */

/* The visit that comes next, or is open. */
MEMOI int memoi_states_shows(const memob_states* states, int32_t pass) {
    const memob_visit* visit = memoi_step_visit(states->step);
    return visit && visit->pass == pass;
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

/* Gradients of a new step begin at zero. */
MEMOI void memoi_states_clear(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    uint32_t fresh = states->sink.clock ? 0 : states->gradients & states->masks[layer];
    fresh &= ~states->layers[layer].begun;
    MEMO_ASSERT(!states->layers[layer].has_gradients); /* 2 */
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

/* The visit that comes next begins. */
MEMOI memo_status memoi_states_go(memob_states* states, int32_t pass, int32_t layer,
                                  memo_error* error) {
    memob_step* step = states->step;
    const memob_visit* visit = memoi_step_visit(step);
    memo_status status;
    MEMO_ASSERT(visit && visit->pass == pass && visit->layer == layer); /* 1 */
    (void)layer;
    status = memob_step_begin(step, error);
    if (status || !visit->begins) return status;
    memoi_states_clear(states, visit->layer);
    if (visit->layer == 1) memoi_states_clear(states, 0);
    return memoi_step_finish(step);
}

/* A layer has begun a pass, or is about to end it. */
MEMOI memo_status memoi_states_look(memob_states* states, int32_t pass, int32_t layer, int is_end) {
    const memob_states_trainer* t = &states->trainer;
    memo_status status = MEMO_STATUS_OK;
    states->layers[layer].open_pass = 1 + pass;
    if (t->look) status = t->look(t->user, pass, layer, is_end);
    if (is_end) states->layers[layer].open_pass = 0;
    return status;
}

/* The stream of the file runs the update of an open visit, when the device has stored what it
 * uses. */
MEMOI memo_status memoi_states_launch_update(memob_states* states, int32_t layer) {
    memob_engine* e = &states->sink.engine;
    memob_clock* clock = states->sink.clock;
    if (clock) {
        memob_clock_add(clock, MEMOB_STREAM_FILE,
                        clock->rates->update_host_s_per_byte *
                            memob_states_update_bytes(states, layer));
        return MEMO_STATUS_OK;
    }
    for (int32_t s = 0; s < states->n_states; s++)
        if ((states->layers[layer].has & states->updated) >> s & 1)
            memoi_snapshot_hold(&states->snapshot, e, MEMOB_STREAM_FILE,
                                layer * states->n_states + s);
    if (e->device.annotate) memoi_states_annotate(states, layer);
    if (!e->status)
        e->status = memo_launch_host(&e->device, e->streams[MEMOB_STREAM_FILE],
                                     &states->updates[layer].call, e->error);
    return memoi_step_finish(states->step);
}

/* The update that comes next, if it waits. */
MEMOI memo_status memoi_states_update(memob_states* states, memo_error* error) {
    memob_step* step = states->step;
    const int32_t layer = memoi_step_visit(step)->layer;
    memob_states_layer* of = &states->layers[layer];
    const int on_host = states->updates != NULL, is_alone = states->is_alone;
    const int is_fused = !is_alone && memob_update_is_fused(states->update_at);
    memo_status status = MEMO_STATUS_OK;
    if (!(is_fused ? memoi_states_is_updated(states, layer) : states->there.pending[layer])) {
        of->has_gradients = 0;
        return memoi_step_pass(step, error);
    }

    /* Updates on the host also use what the trainer has computed since the backward: a norm. */
    if (on_host) status = memoi_states_look(states, MEMOB_UPDATE, layer, 0);
    if (on_host && is_alone && !states->n_updates && !status) {
        memoi_sink_call(&states->sink, error);
        memoi_sink_follow(&states->sink, MEMOB_STREAM_FILE, MEMOB_STREAM_COMPUTE);
        status = memoi_step_finish(step);
    }
    if (!status)
        status =
            states->is_filling ? memoi_step_begin_with(step, error) : memob_step_begin(step, error);
    if (status) return status;
    states->n_unseen += !states->n_updates++;
    states->n_pending -= states->n_pending > 0;
    states->there.pending[layer] = 0;

    if (on_host)
        status = memoi_states_launch_update(states, layer);
    else
        status = memoi_states_look(states, MEMOB_UPDATE, layer, 0);
    if (!on_host && !status) status = states->trainer.update(states->trainer.user, layer);
    if (!on_host && !status) status = memoi_states_look(states, MEMOB_UPDATE, layer, 1);
    if (!status) status = memob_step_end(step, error);
    if (status) return status;
    states->layers[layer].has_gradients = 0;
    return on_host ? memoi_states_look(states, MEMOB_UPDATE, layer, 1) : status;
}

/* All updates that come next. */
MEMOI memo_status memoi_states_updates(memob_states* states, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    while (!status && memoi_states_shows(states, MEMOB_UPDATE))
        status = memoi_states_update(states, error);
    return status;
}

/* --- a round --- */

/* 1: both masks choose the same states.  b: NULL for all states. */
MEMOI int memob_states_are_same(const memob_states* states, const uint32_t* a, const uint32_t* b) {
    uint32_t others = 0;
    for (int32_t l = 0; l < states->n_layers; l++)
        others |= (a[l] ^ (b ? b[l] : ~0u)) & states->layers[l].has;
    return !others;
}

/* What the step leaves out, by its masks, and by whether any update runs in it. */
MEMOI void memoi_states_choose(memob_states* states) {
    states->n_updating = 0;
    for (int32_t l = 0; l < states->n_layers; l++) {
        uint8_t* leaves = states->there.leaves + (int64_t)l * states->n_states;
        const int is_updated = memoi_states_is_updated(states, l);
        states->n_updating += is_updated;
        for (int32_t s = 0; s < states->n_states; s++) {
            const int is_passed = states->passes_updates && !(states->gradients >> s & 1);
            leaves[s] = MEMOB_LEAVES_ALL;
            if (states->masks[l] >> s & 1)
                leaves[s] = is_updated && !is_passed ? MEMOB_LEAVES_NOTHING : MEMOB_LEAVES_UPDATE;
        }
    }
}

/* What the rounds from now on use; masks: (n_layers), or NULL for all.  No layer is open, and no
 * update waits. */
MEMOI void memob_states_take_masks(memob_states* states, const uint32_t* masks) {
    if (memob_states_are_same(states, states->masks, masks)) return;
    MEMO_ASSERT(!states->is_running && !states->n_pending);
    if (states->step) memoi_step_park(states->step); /* by what it has left out */
    for (int32_t l = 0; l < states->n_layers; l++) states->masks[l] = masks ? masks[l] : ~0u;
    memoi_states_choose(states);
}

/* 1: no update runs in the step that begins, as none is pending, so what they alone use does not
 * travel.  No layer is open. */
MEMOI void memob_states_pass_updates(memob_states* states, int32_t passes) {
    if (states->passes_updates == passes) return;
    MEMO_ASSERT(!states->is_running);
    if (states->step) memoi_step_park(states->step);
    states->passes_updates = passes;
    memoi_states_choose(states);
}

/* Begins a round: a micro-batch, or all turns of an order.  Fetches what its first layers need.
 * rows: NULL, or the law of those that move in it.  is_last: the update comes behind it, or in it.
 * is_forward_only: an evaluation, and no updates are pending.  Errors: the device's; then comes
 * memob_states_abandon, as behind every error of a visit. */
MEMOI memo_status memob_states_begin_round(memob_states* states, memob_step* step,
                                           memob_step_rows* rows, int is_last, int is_forward_only,
                                           memo_error* error) {
    const int32_t phase = is_forward_only
                              ? (int32_t)MEMOB_EVALUATION
                              : memoi_list_phase_of(&step->list.desc, states->round, !is_last);
    MEMO_ASSERT(!states->is_running && !(is_forward_only && states->n_pending));
    if (states->step && states->step != step) memoi_step_park(states->step);
    states->step = step;
    states->is_running = 1;
    states->is_last = is_last;
    states->is_forward_only = is_forward_only;
    states->n_updates = 0;
    return memob_step_go(step, phase, rows, error);
}

/* A turn or a layer begins.  FIRST or LAST, if it is open, ends, and deferred updates come
 * before. */
MEMOI memo_status memoi_states_open(memob_states* states, int32_t pass, int32_t layer,
                                    memo_error* error) {
    memo_status status =
        states->step->n_open ? memob_step_end(states->step, error) : MEMO_STATUS_OK;
    if (!status) status = memoi_states_updates(states, error);
    if (!status) status = memoi_states_go(states, pass, layer, error);
    return status ? status : memoi_states_look(states, pass, layer, 0);
}

/* A micro-batch, or a turn of an order, begins with FIRST or LAST.  turn: as in memob_states_desc;
 * without an order 0. */
MEMOI memo_status memob_states_begin_turn(memob_states* states, int32_t turn, memo_error* error) {
    if (turn == 0) return memoi_states_open(states, MEMOB_FORWARD, 0, error);
    if (turn != -states->n_chunks) return MEMO_STATUS_OK;
    return memoi_states_open(states, MEMOB_BACKWARD, states->n_layers - 1, error);
}

/* LAST begins behind the last layer: in an evaluation its forward, else its forward and its
 * backward. */
MEMOI memo_status memoi_states_begin_last(memob_states* states, memo_error* error) {
    const int32_t last = states->n_layers - 1;
    memo_status status;
    if (states->is_forward_only) return memoi_states_open(states, MEMOB_FORWARD, last, error);
    status = memoi_states_updates(states, error);
    if (!status) status = memoi_states_go(states, MEMOB_BACKWARD, last, error);
    for (int is_end = 0; is_end < 2 && !status; is_end++)
        status = memoi_states_look(states, MEMOB_FORWARD, last, is_end);
    return status ? status : memoi_states_look(states, MEMOB_BACKWARD, last, 0);
}

/* The last slice of a layer's forward ends. */
MEMOI memo_status memoi_states_end_forward(memob_states* states, int32_t layer, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (layer == 1) status = memoi_states_look(states, MEMOB_FORWARD, 0, 1);
    if (!status) status = memoi_states_look(states, MEMOB_FORWARD, layer, 1);
    if (!status) status = memob_step_end(states->step, error);
    if (status || layer < states->n_layers - 2) return status;
    return states->n_turns && !states->is_forward_only ? status
                                                       : memoi_states_begin_last(states, error);
}

/* A backward of a layer ends, and its update runs, if it is fused. */
MEMOI memo_status memoi_states_end_visit(memob_states* states, int32_t layer, memo_error* error) {
    const memo_status status = memob_step_end(states->step, error);
    if (status) return status;
    states->layers[layer].has_gradients = 1;
    if (layer == states->n_layers - 2) states->layers[layer + 1].has_gradients = 1;
    return memob_update_is_fused(states->update_at) ? memoi_states_updates(states, error) : status;
}

/* The last slice of a layer's backward ends. */
MEMOI memo_status memoi_states_end_backward(memob_states* states, int32_t layer,
                                            memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (layer == states->n_layers - 2)
        status = memoi_states_look(states, MEMOB_BACKWARD, layer + 1, 1);
    if (!status) status = memoi_states_look(states, MEMOB_BACKWARD, layer, 1);
    if (!status) status = memoi_states_end_visit(states, layer, error);
    return status || layer > 1 ? status : memoi_states_go(states, MEMOB_BACKWARD, 0, error);
}

/* A slice of a layer begins or ends, counted in layers of all chunks. */
MEMOI memo_status memob_states_visit(memob_states* states, int32_t pass, int32_t slice, int is_end,
                                     memo_error* error) {
    const int32_t n = states->step->list.desc.n_slices, layer = slice / n + 1;
    const int32_t n_begun = pass == MEMOB_BACKWARD ? n - 1 - slice % n : slice % n;
    memo_status status;
    if (is_end && n_begun < n - 1) return memob_step_end(states->step, error);
    if (is_end)
        return pass == MEMOB_BACKWARD ? memoi_states_end_backward(states, layer, error)
                                      : memoi_states_end_forward(states, layer, error);
    if (n_begun) return memoi_states_go(states, pass, layer, error);
    status = memoi_states_open(states, pass, layer, error);
    if (status || pass == MEMOB_FORWARD || layer > 1) return status;
    return memoi_states_look(states, MEMOB_BACKWARD, 0, 0);
}

/* All visits of the round are over. */
MEMOI void memoi_states_end_round(memob_states* states) {
    const int is_fused = memob_update_is_fused(states->update_at);
    states->is_running = 0;
    if (states->is_forward_only) return;
    if (states->is_last) {
        states->n_rounds_before = states->n_rounds;
        states->n_rounds = states->round + 1;
    }
    states->round = states->is_last && is_fused ? 0 : states->round + 1;
    states->is_due = states->is_last && !is_fused;
}

/* A micro-batch, or a turn, ends. */
MEMOI memo_status memob_states_end_turn(memob_states* states, int32_t turn, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (states->is_forward_only) {
        status = memoi_states_look(states, MEMOB_FORWARD, states->n_layers - 1, 1);
        if (!status) status = memob_step_end(states->step, error);
    } else if (!states->n_turns || turn == -1) {
        status = memoi_states_look(states, MEMOB_BACKWARD, 0, 1);
        if (!status) status = memoi_states_end_visit(states, 0, error);
    }
    if (!status && !memoi_step_visit(states->step)) memoi_states_end_round(states);
    return status;
}

/* --- a step --- */

/* The updates of the step's layers wait. */
MEMOI void memoi_states_wait(memob_states* states) {
    for (int32_t l = 0; l < states->n_layers; l++)
        states->there.pending[l] = (char)memoi_states_is_updated(states, l);
}

/* Instead of an update: each layer is updated before its next forward. */
MEMOI void memob_states_defer(memob_states* states) {
    MEMO_ASSERT(states->update_at == MEMO_UPDATE_DEFERRED && !states->n_pending);
    memoi_states_wait(states);
    states->n_pending = states->n_updating;
    states->is_due = states->round = 0;
}

/* Updates all layers, or ends deferred updates that are pending.  Errors: the device's. */
MEMOI memo_status memob_states_update_all(memob_states* states, memo_error* error) {
    memo_status status;
    MEMO_ASSERT(!states->is_running);
    if (!states->step) states->step = states->steps;
    memob_states_pass_updates(states, 0);
    if (!states->n_pending) memoi_states_wait(states);
    states->is_running = states->is_alone = 1;
    states->n_updates = 0;
    status = memob_step_go(states->step, MEMOB_UPDATES, NULL, error);
    if (!status) status = memoi_states_updates(states, error);
    if (!status) states->is_running = states->is_alone = states->is_due = states->round = 0;
    return status;
}

/* Abandons a step: gradients begin at zero again, and memob_states_begin_round comes next.  Updates
 * that are pending stay so, layer by layer, with their gradients, unless they ran in a pass, or one
 * of them has failed.  Returns INVALID_STATE if the states must be set again: the update has
 * changed some layers but not all, or the device reports a failed operation (without waiting), and
 * an update has begun since the last transfer.  The words follow those of the failure.  After it
 * transfers return the device's error, never bytes of two steps. */
MEMOI memo_status memob_states_abandon(memob_states* states, memo_error* error) {
    const memob_step* step = states->step;
    const int is_updating = step && step->n_open && memoi_states_shows(states, MEMOB_UPDATE);
    const int is_between =
        !states->is_alone && !is_updating && states->update_at == MEMO_UPDATE_DEFERRED;
    const int32_t n_updates = states->is_running && !is_between ? states->n_updates : 0;

    /* No layer is open, and gradients wait for pending updates alone. */
    if (n_updates) states->n_pending = 0;
    if (!states->n_pending) memset(states->there.pending, 0, (size_t)states->n_layers);
    for (int32_t l = 0; l < states->n_layers; l++) {
        states->layers[l].has_gradients &= states->there.pending[l];
        states->layers[l].open_pass = 0;
    }
    if (step) memob_step_abandon(states->step);
    states->is_running = states->is_alone = states->is_due = states->round = 0;
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
                          (int)n_updates, (int)states->n_updating);
}

/* Forgets what lies on the device, as in a new engine.  All that was enqueued is over. */
MEMOI void memob_states_reset(memob_states* states) {
    states->n_unseen = states->n_pending = 0;
    (void)memob_states_abandon(states, NULL);
    for (memob_step* step = states->steps; step; step = step->next) memob_step_reset(step);
}

/* --- without a trainer --- */

/* Goes through a round.  `compute` is called for each visit but updates: before it begins, with
 * is_begun 0, and between its begin and its end.  states: NULL, or those of the step. */
MEMOI memo_status memob_states_walk(memob_states* states, memob_step* step, memob_step_rows* rows,
                                    int is_last,
                                    memo_status (*compute)(void* user, const memob_visit* visit,
                                                           int is_begun),
                                    void* user, memo_error* error) {
    memo_status status = states ? memob_states_begin_round(states, step, rows, is_last, 0, error)
                                : memob_step_go(step, MEMOB_ONLY, rows, error);
    const memob_visit* visit;
    while (!status && (visit = memoi_step_visit(step)) != NULL) {
        if (visit->pass == MEMOB_UPDATE) {
            status = memoi_states_update(states, error);
            continue;
        }
        status = compute(user, visit, 0);
        if (!status)
            status = states ? memoi_states_go(states, visit->pass, visit->layer, error)
                            : memob_step_begin(step, error);
        if (!status) status = compute(user, visit, 1);
        if (!status) status = memob_step_end(step, error);
    }
    if (states && !status) memoi_states_end_round(states);
    return status;
}

/* The update behind the last round of a step.  Errors: the device's. */
MEMOI memo_status memob_states_end_step(memob_states* states, memo_error* error) {
    if (states->update_at == MEMO_UPDATE_DEFERRED) memob_states_defer(states);
    return states->is_due ? memob_states_update_all(states, error) : MEMO_STATUS_OK;
}

/* --- from and to the caller --- */

/* Writes the blocks with these bytes of a spilled state to the file, or reads them, now; those of a
 * FETCHED state are only read. */
MEMOI void memoi_states_pass_file(memob_states* states, int32_t layer, int32_t state, int is_read,
                                  int64_t offset_bytes, int64_t n_bytes) {
    memob_engine* e = &states->sink.engine;
    const int64_t begin = offset_bytes / MEMOB_SPILL_ALIGNMENT * MEMOB_SPILL_ALIGNMENT;
    memob_spill_op op;
    if (e->status || !(states->layers[layer].spilled >> state & 1)) return;
    memoi_states_make_op(states, layer, state, !is_read, begin, offset_bytes + n_bytes - begin,
                         &op);
    e->status = memoi_spill_run(&op, e->error);
}

/* Waits for computation, copies and updates on the host. */
MEMOI memo_status memob_states_synchronize(memob_states* states, memo_error* error) {
    const memo_status status = memob_engine_synchronize(&states->sink.engine, error);
    if (!status) states->n_unseen = 0;
    return status;
}

/* Copies bytes of a resident state from `at` on the device, or there, and waits; from NULL: sets
 * them to zero. */
MEMOI memo_status memoi_states_copy_resident(const memob_states* states, int is_out, int64_t at,
                                             void* bytes, int64_t n_bytes, memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    const memo_stream stream = e->streams[is_out ? MEMOB_STREAM_TO_HOST : MEMOB_STREAM_TO_DEVICE];
    char* on_device = e->memory.device + at;
    memo_status status;
    if (bytes) return memob_copy_now(&e->device, stream, on_device, bytes, n_bytes, !is_out, error);
    status = memo_fill(&e->device, stream, on_device, 0, n_bytes, error);
    return status ? status : memo_stream_synchronize(&e->device, stream, error);
}

/* Between rounds: streamed states are at home, and copies are over. */
MEMOI memo_status memob_states_leave(memob_states* states, memo_error* error) {
    const memo_status status =
        states->step ? memoi_step_leave(states->step, error) : MEMO_STATUS_OK;
    return status ? status : memob_states_synchronize(states, error);
}

/* Gradients that have no meaning, and what the caller gives again. */
MEMOI uint32_t memob_states_worthless(const memob_states* states) {
    int has_gradients = states->n_pending > 0;
    for (int32_t l = 0; l < states->n_layers; l++) has_gradients |= states->layers[l].has_gradients;
    return states->fetched | (has_gradients ? 0 : states->gradients);
}

/* Copies resident states but those left out to `kept`, one behind the other, or from there; NULL:
 * nothing moves.  at: NULL, or (n_items), where each lies there.  *n_bytes: of all. */
MEMOI memo_status memob_states_keep(const memob_states* states, memo_stream stream, char* kept,
                                    int is_back, uint32_t left_out, int64_t* at, int64_t* n_bytes,
                                    memo_error* error) {
    const memob_engine* e = &states->sink.engine;
    memo_status status = MEMO_STATUS_OK;
    *n_bytes = 0;
    for (int32_t k = 0; k < states->n_layers * states->n_states && !status; k++) {
        const memob_states_layer* of = &states->layers[k / states->n_states];
        const uint32_t stays = of->has & ~(of->streamed | of->lent | left_out);
        const int64_t size_bytes = states->bytes[k].n_bytes;
        if (!(stays >> k % states->n_states & 1)) continue;
        if (kept && size_bytes)
            status = memob_copy_now(&e->device, stream, e->memory.device + states->bytes[k].at[0],
                                    kept + *n_bytes, size_bytes, is_back, error);
        if (at) at[k] = *n_bytes;
        *n_bytes += size_bytes;
    }
    return status;
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
    const memob_state_bytes* of;
    const int64_t size_bytes = states->states[state].size_bytes;
    const uint32_t bit = 1u << state;
    memo_status status;
    int32_t item;
    char* on_host;
    if (states->is_running)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "%s: a layer is open; end it first",
                              name);
    if (!((states->layers[layer].has | states->layers[layer].lent) & bit)) return MEMO_STATUS_OK;
    layer = memob_states_home(states, layer, state);
    item = layer * states->n_states + state;
    of = memoi_states_bytes(states, layer, state);
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
    on_host = e->memory.host + of->at[1] + offset_bytes;
    if (!is_out) memob_snapshot_wait(&states->snapshot, item);
    if (states->step) status = memoi_step_bring_home(states->step, item, !is_out, error);
    if (!status) status = memob_states_synchronize(states, error);
    if (status) return status;
    memoi_sink_call(&states->sink, error);
    memoi_states_pass_file(states, layer, state, 1, offset_bytes, n_bytes);
    if (!e->status && bytes)
        memcpy(is_out ? bytes : on_host, is_out ? on_host : bytes, (size_t)n_bytes);
    else if (!e->status)
        memset(on_host, 0, (size_t)n_bytes);
    if (!is_out) memoi_states_pass_file(states, layer, state, 0, offset_bytes, n_bytes);
    return e->status;
}
