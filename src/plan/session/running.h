#pragma once
#include "memo/arena_creation.h"
#include "memo/arena_requests.h"
#include "plan/session/checked.h"
/* --- >>session running ---
 * Knows: the plan that runs, arena, engines, the trainer's functions.  Knows nothing of how a plan
 * is found.
 *
 * 1. Two steps are open at most, the older first.
 * 2. The engine's visit is of the session's step. */

/* The first step of a layer of this turn, unless another step of the layer is open. */
MEMOI int32_t memoi_session_open_step(const memo_session* s, int32_t layer) {
    const int32_t step = memoi_session_step(s, layer), open = memoi_session_open(s);
    return open > step && open < step + s->n_slices ? open : step;
}

/* Where a tensor of a layer lies; NULL if it is absent, or after an error.  is_needed: then that is
 * an error of a checked session. */
MEMOI void* memoi_session_find(const memo_session* constant, int32_t layer, int32_t tensor,
                               int is_needed) {
    memo_session* s = (memo_session*)(uintptr_t)constant; /* which gets the error */
    const memob_swap_place* place;
    const memo_item* of;
    int32_t step;
    if (!memoi_session_is_in(s, "address: layer", layer, s->desc.n_layers - 1) ||
        !memoi_session_is_in(s, "address: tensor", tensor, s->desc.n_tensors - 1))
        return NULL;
    if (!memoi_session_has_layer(s, layer)) {
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_ARGUMENT,
                           "memo_session_get_address: layer %d is not of chunk %d, which this turn "
                           "computes; take its addresses in a turn of its chunk",
                           (int)layer, (int)s->batch.turn.chunk);
        return NULL;
    }

    of = &s->steps->tensors[tensor];
    step = memoi_session_open_step(s, layer);
    place = memoi_session_place(s, step, tensor);
    if (is_needed && memob_tensor_is_routed(s->steps, tensor) && memoi_session_is_forward(s) &&
        !s->is_routed)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_get_address: layer %d, tensor `%s`: its rows are not "
                           "known; call memo_session_set_routed first",
                           (int)layer, of->name);
    if (s->checked.slots && memoi_checked_row_bytes(s, step, tensor) && !place->is_layer)
        return memoi_checked_slot(s, step) + s->checked.offsets[tensor];
    if (place->row_bytes && s->part->base) return s->part->base + place->offset;
    if (!is_needed || !s->checked.slots) return NULL;
    MEMOI_SESSION_FAIL(
        s, MEMO_STATUS_INVALID_ARGUMENT,
        "checked session: memo_session_get_address: layer %d is of kind %d, which lacks tensor "
        "`%s` of %lld bytes a row; do not use it there, or change layer_kinds or its kinds",
        (int)layer, (int)memob_layer_kind(s->steps, step), of->name, (long long)of->row_bytes);
    return s->checked.slots + 2 * s->checked.slot_bytes; /* kernels harm nothing there */
}

void* memo_session_get_address(const memo_session* s, int32_t layer, int32_t tensor) {
    return s ? memoi_session_find(s, layer, tensor, 1) : NULL;
}

void memo_session_get_addresses(const memo_session* constant, int32_t layer, int64_t row,
                                void** first) {
    memo_session* s = (memo_session*)(uintptr_t)constant;
    memo_slice slice;
    int64_t n_rows;
    if (!s || !first) return;
    slice = memoi_session_slice(s);
    n_rows = slice.end - slice.begin;
    if (row < 0 || row >= n_rows) {
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_ARGUMENT,
                           "memo_session_get_addresses: row: out of range (%lld); 0 to %lld are "
                           "valid%s",
                           (long long)row, (long long)(n_rows - 1),
                           s->n_slices > 1 ? ", counted from the first row of the open slice; rows "
                                             "of the micro-batch are valid in LAYER tensors alone"
                                           : "");
        row = 0;
    }
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const int32_t scope = memob_item_scope(s->steps, t), away = memob_item_away(s->steps, t);
        first[t] = memoi_session_find(s, layer, t, 0);
        if (first[t] && scope != MEMO_CARRIED && !memob_tensor_is_routed(s->steps, t) &&
            (scope != MEMO_LAYER || memob_is_recomputed(away)))
            first[t] = (char*)first[t] + row * s->steps->tensors[t].row_bytes;
    }
}

/* Bytes of a buffer of so many rows. */
MEMOI int64_t memoi_session_buffer_bytes(const memo_session* s, int32_t buffer, int64_t n_rows) {
    return s->desc.buffers[buffer].size_bytes + s->desc.buffers[buffer].row_bytes * n_rows;
}

/* In a group a buffer that lives across layers has a part of so many bytes for each micro-batch. */
MEMOI int64_t memoi_session_part_bytes(const memo_session* s, int32_t buffer) {
    const memo_session_buffer* b = &s->desc.buffers[buffer];
    if (memoi_buffer_is_each(b) || b->first == MEMO_PASS_SESSION || memoi_session_n_group(s) == 1)
        return 0;
    return memob_min(memob_align_up(memoi_session_buffer_bytes(s, buffer, s->batch.n_rows),
                                    MEMOB_DEVICE_ALIGNMENT),
                     MEMOB_BYTES_MAX / memoi_session_n_group(s)); /* no sum overflows */
}

/* The time of a micro-batch, or a buffer's life, in words. */
MEMOI const char* memoi_session_when(char text[48], memo_pass pass, int32_t layer) {
    const char* name = memoi_pass_names[pass];
    if (!memoi_pass_has_layers(pass)) return name;
    if (layer < 0)
        snprintf(text, 48, "a layer's %s", name);
    else
        snprintf(text, 48, "the %s of layer %d", name, (int)layer);
    return text;
}

/* The arena frees what is left at the end of a micro-batch; outputs may be read until the next. */
void* memo_session_get_buffer(const memo_session* constant, int32_t buffer) {
    memo_session* s = (memo_session*)(uintptr_t)constant;
    const memo_session_buffer* b;
    void* address = NULL;
    char text[3][48];
    memo_pass now;
    int32_t open;
    if (!s || !memoi_session_is_in(s, "buffer: buffer", buffer, s->desc.n_buffers - 1)) return NULL;

    b = s->desc.buffers + buffer;
    if (s->is_running || b->first == MEMO_PASS_SESSION ||
        (b->last == MEMO_PASS_AFTER && !s->error.status))
        address = s->buffer_addresses[buffer];
    if (address)
        return memob_at(address,
                        memoi_session_micro_batch(s) * memoi_session_part_bytes(s, buffer));
    if (!s->checked.slots || !memoi_session_buffer_bytes(s, buffer, 1)) return NULL;

    open = memoi_session_open(s);
    if (!s->is_running)
        now = MEMO_PASS_AFTER;
    else if (memoi_session_is_forward(s))
        now = MEMO_PASS_FORWARD;
    else
        now = memoi_session_n_ended(s) > (s->steps->order ? 0 : s->n_turn_steps) || open >= 0
                  ? MEMO_PASS_BACKWARD
                  : MEMO_PASS_BETWEEN;
    MEMOI_SESSION_FAIL(
        s, MEMO_STATUS_INVALID_STATE,
        "checked session: memo_session_get_buffer: `%.40s` does not live in %s; it is declared "
        "from the begin of %s to the end of %s%s, so change its life or take it there",
        memob_session_name(b->name),
        memoi_session_when(text[0], now, open < 0 ? -1 : memob_session_layer(s, open)),
        memoi_session_when(text[1], b->first, b->first_layer),
        b->first_layer < 0 ? "that layer" : memoi_session_when(text[2], b->last, b->last_layer),
        b->kinds ? ", in some kinds of layers" : "");
    return s->checked.memory; /* a kernel goes on, and the micro-batch has failed */
}

/* Requests bytes at their planned address.  A plan that is being made gets the request. */
MEMOI void* memoi_session_request(memo_session* s, int64_t size_bytes, const char* name) {
    void* address = NULL;
    memo_status status;
    if (s->error.status) return NULL;
    if (!s->is_open && name && !strchr(name, '\n')) /* names in pictures of a plan */
        (void)memoi_session_is_ok(s, memo_arena_mark(s->part->arena, name, &s->call_error));
    status = memo_arena_alloc(s->part->arena, size_bytes, 0, &address, &s->call_error);
    if (status == MEMO_STATUS_DIVERGED)
        MEMOI_SESSION_FAIL(s, status,
                           "memo_session_desc.buffers: `%.40s` of %lld bytes begins where the plan "
                           "has another buffer; end a layer before the next begins",
                           memob_session_name(name), (long long)size_bytes);
    if (!memoi_session_is_ok(s, status)) return address;
    return memoi_checked_request(s, address, size_bytes, name);
}

MEMOI void memoi_session_free(memo_session* s, void* address) {
    if (s->error.status || !address) return;
    address = memoi_checked_release(s, address);
    (void)memoi_session_is_ok(s, memo_arena_free(s->part->arena, address, &s->call_error));
}

/* Requests a declared buffer whose life begins. */
MEMOI void memoi_session_begin_life(memo_session* s, int32_t i) {
    const memo_session_buffer* b = &s->desc.buffers[i];
    const int is_slice = b->first_layer == MEMO_EACH_SLICE;
    int64_t n_rows, n_bytes;

    if (memoi_buffer_is_each(b) && s->buffer_addresses[i]) {
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_desc.buffers[%d]: `%.40s` lives in each layer, but two "
                           "layers are open; end one first",
                           (int)i, memob_session_name(b->name));
        return;
    }
    n_rows = is_slice ? memob_min(s->desc.slice_rows, s->batch.n_rows) : s->batch.n_rows;
    n_bytes = memoi_session_buffer_bytes(s, i, n_rows);
    n_bytes = memob_min(n_bytes + (memoi_session_n_group(s) - 1) * memoi_session_part_bytes(s, i),
                        MEMOB_BYTES_MAX);
    s->buffer_addresses[i] = memoi_session_request(s, n_bytes, b->name);
}

/* Requests or frees the declared buffers whose life begins or ends here. */
MEMOI void memoi_session_bound_lives(memo_session* s, memo_pass pass, int32_t step, int is_end) {
    const int32_t layer = memob_session_layer(s, step);
    const int is_last_slice = (pass == MEMO_PASS_FORWARD) == is_end;
    const int64_t now = memoi_session_moment(pass, layer, s->desc.n_layers);
    for (int32_t i = 0; i < s->desc.n_buffers; i++) {
        const memo_session_buffer* b = &s->desc.buffers[i];
        const int is_each = memoi_buffer_is_each(b), is_slice = b->first_layer == MEMO_EACH_SLICE;
        const memo_pass of = is_end && !is_each ? b->last : b->first;
        const int32_t n_slices = is_each ? s->n_of_batch : s->n_slices;
        int32_t at = is_end ? b->last_layer : b->first_layer;
        if (is_each) at = layer;
        if (memoi_session_moment(of, at, s->desc.n_layers) != now) continue;
        if (!memoi_buffer_is_of(b, memob_layer_kind(s->steps, step))) continue;
        if (is_end && b->first == MEMO_PASS_SESSION) continue;
        if (memoi_pass_has_layers(pass) && !is_slice &&
            step % n_slices != (is_last_slice ? n_slices - 1 : 0))
            continue; /* the layer goes on */

        if (is_end) {
            memoi_session_free(s, s->buffer_addresses[i]);
            s->buffer_addresses[i] = NULL;
        } else
            memoi_session_begin_life(s, i);
    }
}

/* Is the forward of the layer open?  If not, that is an error of the call. */
MEMOI int memoi_session_is_in_forward(memo_session* s, const char* call, int32_t layer) {
    const int32_t step = memoi_session_open(s);
    if (s->error.status) return 0;
    if (step >= 0 && memob_session_layer(s, step) == layer && memoi_session_is_forward(s)) return 1;
    MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                       "memo_session_%s: layer %d: its forward is not open; call it between begin "
                       "and end of the forward",
                       call, (int)layer);
    return 0;
}

void memo_session_set_routed(memo_session* s, int32_t layer, int64_t n_rows) {
    if (s && memoi_session_is_in_forward(s, "set_routed", layer))
        s->is_routed = memoi_session_is_ok(
            s, memob_swap_set_routed(&s->part->placement, memoi_session_open(s), n_rows,
                                     s->batch.is_forward_only, &s->call_error));
}

void memo_session_skip_layer(memo_session* s, int32_t layer) {
    if (s && memoi_session_is_in_forward(s, "skip_layer", layer))
        s->part->skipped[memoi_session_open(s)] = 1;
}

/* After an error, and if a micro-batch ends without a backward. */
MEMOI void memoi_session_give_up(memo_session* s, int is_failed) {
    memoi_slowing_end(s);
    if (is_failed) {
        memob_arena_abandon(s->part->arena);
        s->next_turn = 0;
    }
    if (!s->states && s->part->step->is_entered && !s->next_turn) {
        memob_step_abandon(s->part->step);
        (void)memoi_session_is_ok(s, memob_step_settle(s->part->step, &s->call_error));
    }
    if (s->states && !s->states->is_due && (is_failed || (s->states->is_running && !s->next_turn)))
        memoi_session_lose_gradients(s);
    s->is_running = 0;
}

/* After all forwards of a micro-batch.  In an order: before its first backward. */
MEMOI void memoi_session_begin_between(memo_session* s) {
    memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 0);
    memoi_session_bound_lives(s, MEMO_PASS_BETWEEN, s->first_step, 0);
}

/* Is s->batch the next turn? Other shapes have none, but must leave micro-batches in flight.
 * before: the turn before. */
MEMOI memo_status memoi_session_check_turn(memo_session* s, const memo_batch* before,
                                           memo_error* error) {
    const int32_t shape = s->next_turn ? before->shape : s->batch.shape;
    const int is_other =
        s->next_turn && (s->batch.shape != shape || s->batch.n_rows != before->n_rows);
    const memo_turn* next;
    const char* why;
    if (!is_other && !s->parts[s->batch.shape].plan->n_order) return MEMO_STATUS_OK;
    next = &s->parts[shape].plan->order[s->next_turn];
    const memob_rule rules[] = {
        {is_other, "shape and n_rows must be those of the micro-batches in flight"},
        {s->batch.is_forward_only, "is_forward_only is 1; use a shape that is_forward_only"},
        {s->next_turn && s->batch.more_follow != before->more_follow,
         "more_follow must be that of the first turn"},
        {memcmp(&s->batch.turn, next, sizeof *next) != 0, "it is another turn"}};
    why = MEMOB_FIRST_FAULT(rules);
    if (!why) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "memo_batch: %s; the next turn is order[%d], the %s of micro-batch %d, "
                          "chunk %d, in shape %d",
                          why, (int)s->next_turn, memoi_pass_names[next->pass],
                          (int)next->micro_batch, (int)next->chunk, (int)shape);
}

/* A checked session that times nothing moves its layers once, so that it sees addresses that were
 * kept from the first training step. */
MEMOI void memoi_session_move(memo_session* s) {
    memoi_checked* c = &s->checked;
    if (!c->slots || c->is_moved || !c->n_trained || s->next_turn || s->timing.plan) return;
    c->is_moved = 1;
    if (s->desc.planned) s->desc.planned(s->desc.user, s, s->parts[0].plan);
}

/* Checks the batch that begins, and fills in its rows.  before: the batch of the turn before. */
MEMOI memo_status memoi_session_check_batch(memo_session* s, const memo_batch* before) {
    memo_batch* batch = &s->batch;
    memo_error* error = &s->call_error;
    const char* why;
    memo_status status = MEMO_STATUS_OK;
    if (s->kept_bytes)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_begin: %s",
                              MEMOB_ASLEEP);

    status =
        memob_check_integer("memo_batch", "shape", batch->shape, 0, s->desc.n_shapes - 1, error);
    if (!status) {
        const memo_step_plan* plan = s->parts[batch->shape].plan;
        batch->is_forward_only |= plan->shape.is_forward_only;
        if (!batch->n_rows) batch->n_rows = plan->swap.layer_rows;
        status = memob_check_integer("memo_batch", "n_rows", batch->n_rows, 1,
                                     plan->swap.layer_rows, error);
    }
    if (!status && batch->values)
        status = memob_check_integer("memo_batch", "values_bytes", batch->values_bytes, 0,
                                     MEMO_BATCH_VALUES_MAX, error);
    if (!status && s->desc.n_order) status = memoi_session_check_turn(s, before, error);
    why = status ? NULL : memoi_session_check_masks(s);
    if (why)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "memo_batch.states: %s", why);
    why = !status && s->states && !s->next_turn ? memoi_session_owes(s) : NULL;
    return why ? memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_begin: %s", why)
               : status;
}

/* What the turn before has left in the arena ends. */
MEMOI void memoi_session_end_lives(memo_session* s) {
    for (int32_t i = 0; i < s->desc.n_buffers; i++) {
        if (s->desc.buffers[i].first == MEMO_PASS_SESSION) continue;
        if (s->next_turn) memoi_session_free(s, s->buffer_addresses[i]);
        s->buffer_addresses[i] = NULL;
    }
}

/* The layers and steps of the batch's turn. */
MEMOI void memoi_session_take_turn(memo_session* s) {
    if (!s->steps->order) return;
    s->first_layer = s->batch.turn.chunk * memoi_session_turn_layers(s);
    s->first_step = memob_turn_of(s->steps->order[s->next_turn]) * s->n_turn_steps;
}

/* 1: `between` begins the turn. */
MEMOI int memoi_session_begins_between(const memo_session* s) {
    return memoi_session_is_turn(s, MEMO_PASS_BACKWARD) &&
           s->batch.turn.chunk == s->part->plan->n_chunks - 1;
}

int memo_session_begin(memo_session* s, const memo_batch* batch) {
    memo_batch before;
    memo_status status;
    if (!s) return 0;
    before = s->batch;
    if (s->is_in_run) {
        memo_session_fail(s, MEMO_STATUS_INVALID_STATE,
                          "memo_session_begin: called inside memo_session_run, which begins and "
                          "ends a micro-batch itself");
        return 0;
    }

    if (s->is_running) {
        memoi_session_give_up(s, 1);
        s->is_reported = 1; /* nobody asks any more */
    }
    memoi_session_forget(s);
    if (s->error.status) { /* of a call between micro-batches: this one does not begin */
        if (s->next_turn) memoi_session_give_up(s, 1);
        return 0;
    }
    memset(&s->batch, 0, sizeof s->batch);
    if (batch) s->batch = *batch;
    if (!s->desc.n_order) memset(&s->batch.turn, 0, sizeof s->batch.turn);

    status = memoi_session_check_batch(s, &before);
    if (status) { /* what is refused changes nothing */
        (void)memoi_session_is_ok(s, status);
        s->batch = before;
        return 0;
    }
    if (!memoi_session_time_begin(s)) return 0;
    if (s->states && !s->next_turn) s->is_part = memoi_session_has_part(s);
    memoi_session_move(s);
    memoi_session_use_shape(s, s->batch.shape);
    memoi_session_time_batch_begin(s);
    if (s->batch.values) memoi_session_put_values(s, 0, s->batch.values, s->batch.values_bytes);
    memoi_session_take_turn(s);
    memoi_session_end_lives(s);
    memoi_checked_fill(s, s->checked.slots, 2 * s->checked.slot_bytes);

    /* The first turn begins for all. */
    if (!s->next_turn) {
        if (s->part->swap)
            status = memo_swap_set_rows(s->part->swap, s->batch.n_rows, s->batch.is_forward_only,
                                        &s->call_error);
        s->checked.n_buffers = 0;
        memoi_checked_fill(s, s->checked.memory, s->checked.memory_bytes);
        if (!status) status = memo_arena_begin(s->part->arena, &s->call_error); /* fails last */
    }
    s->is_running = memoi_session_is_ok(s, status);
    if (s->batch.is_forward_only) memoi_checked_watch(s, MEMOB_WATCH_FORWARD_ALONE, 0, 0);
    if (s->is_running) memoi_session_begin_round(s);
    if (s->is_running && memoi_session_begins_between(s)) memoi_session_begin_between(s);
    return !s->error.status;
}

/* 1: an order has turns left.  A turn must have computed its layers. */
MEMOI int memoi_session_pass_turn(memo_session* s) {
    const int32_t n = s->n_turn_steps, n_passed = memoi_session_n_ended(s);
    if (!s->steps->order || s->error.status) return 0;
    if (n_passed < n)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_end: the %s of micro-batch %d, chunk %d, has computed %d "
                           "of its %d layers; compute all of them in a turn",
                           memoi_pass_names[s->batch.turn.pass], (int)s->batch.turn.micro_batch,
                           (int)s->batch.turn.chunk, (int)(n_passed / s->n_slices),
                           (int)memoi_session_turn_layers(s));
    else if (++s->next_turn == s->part->plan->n_order)
        s->next_turn = 0;
    return s->next_turn > 0 && !s->error.status;
}

memo_status memo_session_end(memo_session* s, memo_error* error) {
    int32_t open;
    int is_trained;
    MEMOB_REFUSE_NULL(error, "session", s);
    s->is_in_run = 0; /* also after a longjmp out of memo_session_run */
    if (!s->is_running) {
        if (!s->error.status)
            memo_session_fail(s, MEMO_STATUS_INVALID_STATE,
                              "memo_session_end: no micro-batch is under way; call "
                              "memo_session_begin first");
        return memoi_session_report(s, error);
    }

    open = memoi_session_open(s);
    if (open >= 0)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_end: layer %d is still open; end each layer that begins",
                           (int)memob_session_layer(s, open));
    memoi_checked_verify(s, 0, s->checked.memory_bytes);
    if (s->batch.is_forward_only) memoi_checked_watch(s, MEMOB_WATCH_FORWARD_ALONE, 0, 1);
    memoi_session_end_states(s);

    is_trained = memoi_session_n_ended(s) == memoi_session_n_visits(s) &&
                 !s->batch.is_forward_only && !memoi_session_is_turn(s, MEMO_PASS_FORWARD);
    if (!memoi_session_pass_turn(s) && !s->error.status)
        (void)memoi_session_is_ok(s, memo_arena_end(s->part->arena, &s->call_error));
    s->checked.n_trained += is_trained && !s->error.status;
    memoi_session_time_batch_end(s);
    memoi_session_give_up(s, s->error.status != MEMO_STATUS_OK);
    return memoi_session_report(s, error);
}

/* Checks every layer call.  Returns the step that it is of, or -1 after an error. */
MEMOI int32_t memoi_session_enter(memo_session* s, int32_t layer, memo_pass pass, int is_end) {
    static const char* const points[] = {"begin", "end"};
    static const memo_pass passes[] = {MEMO_PASS_FORWARD, MEMO_PASS_BACKWARD};
    const memob_swap_placement* p = &s->part->placement;
    const memob_step* at = s->part->step;
    const int32_t end = s->next_turn * s->n_turn_steps + memoi_session_n_visits(s);
    const int32_t n_open_most = s->states ? 1 : memob_swap_open_most(s->steps);
    const memob_row_visit* due;
    const char* why = NULL;
    memo_status status = MEMO_STATUS_INVALID_STATE;
    char text[96];
    if (s->error.status) return -1;

    due = s->is_running ? memob_swap_due(p, at, is_end, end, n_open_most) : NULL;
    if (layer < 0 || layer >= s->desc.n_layers) {
        why = "out of range; n_layers is too small, or the loop too long";
        status = MEMO_STATUS_INVALID_ARGUMENT;
    } else if (!s->is_running) {
        why = "outside begin and end";
    } else if (s->batch.is_forward_only && pass == MEMO_PASS_BACKWARD) {
        why = "memo_batch.is_forward_only is 1, or the shape's; see memo_session_get_batch";
    } else if (at->n_ended == end) {
        why = "all layers of the pass are over; call memo_session_end";
    } else if (!due || pass != passes[due->pass] || layer != memob_session_layer(s, due->layer)) {
        const memob_row_visit* older = &p->visits[at->n_ended];
        snprintf(text, sizeof text, "out of order; %s %s of layer %d comes next%s",
                 memoi_pass_names[passes[older->pass]], points[at->n_begun > at->n_ended],
                 (int)memob_session_layer(s, older->layer),
                 s->n_slices > 1 ? ", once for each slice" : "");
        why = text;
    }

    if (why)
        MEMOI_SESSION_FAIL(s, status, "memo_session: %s %s of layer %d of %d: %s",
                           memoi_pass_names[pass], points[is_end], (int)layer,
                           (int)s->desc.n_layers, why);
    return s->error.status ? -1 : due->layer;
}

/* About half of the rows of a tensor; all if they are one tile, or if the tensor is whole. */
MEMOI int64_t memoi_session_first_rows(const memo_session* s, int32_t t, int64_t n_rows) {
    const int64_t half = memob_align_up((n_rows + 1) / 2, memob_swap_tile_rows(s->steps));
    return s->steps->tensors[t].away == MEMO_ROWS && !memob_tensor_is_routed(s->steps, t)
               ? memob_min(half, n_rows)
               : n_rows;
}

/* Recomputes the rows that the engine did not bring back.  If they are timed: all, in odd
 * repetitions in two parts, of which the first is timed. */
MEMOI void memoi_session_recompute(memo_session* s, int32_t step) {
    if (s->part->skipped[step]) return;
    for (int32_t t = 0; t < s->desc.n_tensors && !s->error.status; t++) {
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        int64_t begin = 0, end = n;
        if (!memoi_session_recomputes(s, step, t)) continue;
        if (!s->spans_s && memoi_session_is_by_backward(s, t)) continue;
        if (!s->spans_s) memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
        if (begin == end) continue;
        if (s->spans_s && s->repetition % 2) end = memoi_session_first_rows(s, t, end);
        memoi_session_mark(s, step, MEMOI_SPAN_TENSOR + t, 0);
        s->desc.recompute(s->desc.user, s, memob_session_layer(s, step), t, begin, end);
        memoi_session_mark(s, step, MEMOI_SPAN_TENSOR + t, 1);
        if (s->spans_s && end < n)
            s->desc.recompute(s->desc.user, s, memob_session_layer(s, step), t, end, n);
    }
}

/* 1: it is the last of a forward of all layers. */
MEMOI int memoi_session_is_last(const memo_session* s, int32_t step) {
    return step % s->n_slices == s->n_slices - 1 &&
           memob_session_layer(s, step) == s->desc.n_layers - 1;
}

/* Gets the rows of a step into place, in the backward. */
MEMOI int memoi_session_layer_begin(memo_session* s, int32_t layer, memo_pass pass) {
    const int32_t step = memoi_session_enter(s, layer, pass, 0);
    const int is_backward = pass == MEMO_PASS_BACKWARD;
    const memob_row_visit* visit;
    int32_t older;
    if (step < 0) return 0;

    /* Buffers, states and rows. */
    if (is_backward && memoi_session_is_last(s, step)) {
        memoi_session_bound_lives(s, MEMO_PASS_BETWEEN, step, 1);
        memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 1);
    }
    memoi_session_bound_lives(s, pass, step, 0);
    older = memoi_session_open(s);
    if (older >= 0) /* it has its own times */
        memoi_session_mark(s, older, memoi_span_of_pass[pass], 1);
    if (!is_backward) memob_swap_route_none(&s->part->placement, step, s->batch.is_forward_only);
    s->is_routed = 0;
    if (!is_backward) s->part->skipped[step] = 0;
    memoi_session_visit(s, is_backward, step, 0);
    if (s->error.status) return 0;
    visit = &s->part->placement.visits[s->part->step->n_begun - 1];
    MEMO_ASSERT(visit->layer == step); /* 2 */
    if (memoi_session_moved(s) && s->checked.slots) memoi_checked_open_edge(s, visit);

    /* What runs before the layer. */
    memoi_slowing_separate(s);
    if (s->checked.slots) memoi_checked_open(s, step, is_backward);
    if (is_backward) {
        memoi_session_recompute(s, step);
        if (s->checked.slots) memoi_checked_backward_begin(s, step);
    }
    if (older < 0) memoi_slowing_begin(s, step, is_backward);
    memoi_session_mark(s, older < 0 ? step : older, memoi_span_of_pass[pass], 0); /* it goes on */
    return !s->error.status && memoi_session_rows(s, step) > 0;
}

/* The rows leave, in the forward. */
MEMOI void memoi_session_layer_end(memo_session* s, int32_t layer, memo_pass pass) {
    const int32_t step = memoi_session_enter(s, layer, pass, 1);
    const int is_backward = pass == MEMO_PASS_BACKWARD;
    int32_t open;
    if (step < 0) return;
    memoi_session_mark(s, step, memoi_span_of_pass[pass], 1);
    memoi_slowing_end(s);
    if (s->checked.slots) memoi_checked_layer_end(s, step, pass);
    memoi_session_visit(s, is_backward, step, 1);
    if (s->error.status) return; /* the layer stays open, so that the engine abandons it */
    memoi_session_bound_lives(s, pass, step, 1);
    if (!is_backward && !s->steps->order && memoi_session_is_last(s, step))
        memoi_session_begin_between(s);
    open = memoi_session_open(s);
    if (open >= 0) memoi_session_mark(s, open, memoi_span_of_pass[pass], 0);
}

int memo_session_forward_begin(memo_session* s, int32_t layer) {
    return s && memoi_session_layer_begin(s, layer, MEMO_PASS_FORWARD);
}
void memo_session_forward_end(memo_session* s, int32_t layer) {
    if (s) memoi_session_layer_end(s, layer, MEMO_PASS_FORWARD);
}
int memo_session_backward_begin(memo_session* s, int32_t layer) {
    return s && memoi_session_layer_begin(s, layer, MEMO_PASS_BACKWARD);
}
void memo_session_backward_end(memo_session* s, int32_t layer) {
    if (s) memoi_session_layer_end(s, layer, MEMO_PASS_BACKWARD);
}

/* The loss of the open step.  In an order its time is no layer's, whose median it would change. */
MEMOI void memoi_session_run_loss(memo_session* s) {
    const int32_t open = memoi_session_open(s);
    if (!s->steps->order) {
        s->desc.loss(s->desc.user, s);
        return;
    }
    memoi_session_mark(s, open, MEMOI_SPAN_BACKWARD, 1);
    memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 0);
    s->desc.loss(s->desc.user, s);
    memoi_session_mark(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN, 1);
    memoi_session_mark(s, open, MEMOI_SPAN_BACKWARD, 0);
}

/* A pass of all layers of a micro-batch, or of a turn. */
MEMOI void memoi_session_run_pass(memo_session* s, memo_pass pass) {
    const memo_session_desc* desc = &s->desc;
    const int is_forward = pass == MEMO_PASS_FORWARD;
    const int32_t n = s->n_turn_steps;
    for (int32_t k = 0; k < n; k++) {
        const int32_t step = s->first_step + (is_forward ? k : n - 1 - k);
        const int32_t layer = memob_session_layer(s, step);
        const int has_loss = desc->loss && layer == desc->n_layers - 1;
        if (memoi_session_layer_begin(s, layer, pass)) {
            if (has_loss && !is_forward) memoi_session_run_loss(s);
            if (is_forward)
                desc->forward(desc->user, s, layer);
            else
                desc->backward(desc->user, s, layer);
            if (has_loss && s->batch.is_forward_only) desc->loss(desc->user, s);
        }
        memoi_session_layer_end(s, layer, pass);
    }
}

/* The step if the trainer gives none. */
MEMOI void memoi_session_run_layers(void* user, memo_session* s) {
    if (!memoi_session_is_turn(s, MEMO_PASS_BACKWARD)) memoi_session_run_pass(s, MEMO_PASS_FORWARD);
    if (memoi_session_is_turn(s, MEMO_PASS_FORWARD)) return;
    if (s->desc.between && !s->error.status && memoi_session_has_layer(s, s->desc.n_layers - 1))
        s->desc.between(user, s);
    if (!s->batch.is_forward_only) memoi_session_run_pass(s, MEMO_PASS_BACKWARD);
}

memo_status memo_session_run(memo_session* s, const memo_batch* batch, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    if (s->is_running) /* which goes on */
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_run: called inside a micro-batch; call it after "
                              "memo_session_run or memo_session_end of the other has returned");
    (void)memo_session_begin(s, batch);
    s->is_in_run = !s->error.status;
    if (s->is_in_run) (s->desc.step ? s->desc.step : memoi_session_run_layers)(s->desc.user, s);
    return memo_session_end(s, error);
}

/* The arena of the current shape.  The engine's memory and buffers of SESSION live as long as the
 * arena. */
MEMOI void memoi_session_start_arena(memo_session* s, const memo_arena_desc* desc) {
    memoi_session_part* part = s->part;
    s->is_reported = 1;
    memoi_session_forget(s);
    s->batch.n_rows = s->desc.n_rows;
    if (s->failure.status) return;
    memoi_keep(s, memo_arena_create(desc, &part->arena, &s->call_error));
    if (s->failure.status) return;
    part->base = (char*)memoi_session_request(s, memob_max(part->placement.sizes.device_bytes, 1),
                                              "activations between forward and backward");
    if (s->states_sizes.device_bytes)
        s->states_desc.device_memory =
            memoi_session_request(s, s->states_sizes.device_bytes, "states");
    memoi_session_bound_lives(s, MEMO_PASS_SESSION, 0, 0);
    memoi_keep(s, memoi_session_report(s, &s->call_error));
}

/* The same in the session's memory. */
MEMOI void memoi_session_open_arena(memo_session* s) {
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    desc.device = s->device;
    desc.plan = s->part->plan->addresses;
    desc.memory = s->device_memory;
    desc.memory_bytes = s->memory_bytes;
    memoi_session_start_arena(s, &desc);
}

/* --- the requests of a plan --- */

/* Names a moment, for plans and pictures. */
MEMOI void memoi_session_name_moment(memo_session* s, memo_pass pass, int32_t step, int is_end) {
    char text[96];
    snprintf(text, sizeof text, "layer %d %s %s", (int)step, memoi_pass_names[pass],
             is_end ? "end" : "begin");
    (void)memoi_session_is_ok(s, memo_arena_mark(s->part->arena, text, &s->call_error));
}

/* The lives of buffers in a pass of all layers, or of a turn. */
MEMOI void memoi_session_list_pass(memo_session* s, memo_pass pass) {
    const int is_backward = pass == MEMO_PASS_BACKWARD;
    const int32_t n = s->n_turn_steps;
    for (int32_t k = 0; k < n; k++) {
        const int32_t step = s->first_step + (is_backward ? n - 1 - k : k);
        memoi_session_name_moment(s, pass, step, 0);
        if (is_backward && memoi_session_is_last(s, step))
            memoi_session_bound_lives(s, MEMO_PASS_BETWEEN, step, 1);
        memoi_session_bound_lives(s, pass, step, 0);
        memoi_session_name_moment(s, pass, step, 1);
        memoi_session_bound_lives(s, pass, step, 1);
        if (!is_backward && !s->steps->order && memoi_session_is_last(s, step))
            memoi_session_begin_between(s);
    }
}

/* The lives of buffers in a micro-batch, or in all turns of an order, as running has them. */
MEMOI void memoi_session_list_lives(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    s->batch.n_rows = plan->swap.layer_rows;
    (void)memoi_session_is_ok(s, memo_arena_begin(s->part->arena, &s->call_error));
    for (int32_t k = 0; k < memob_max(plan->n_order, 1); k++) {
        s->next_turn = k;
        if (plan->n_order) s->batch.turn = plan->order[k];
        memoi_session_take_turn(s);
        memoi_session_end_lives(s);
        if (memoi_session_begins_between(s)) memoi_session_begin_between(s);
        if (!memoi_session_is_turn(s, MEMO_PASS_BACKWARD))
            memoi_session_list_pass(s, MEMO_PASS_FORWARD);
        if (!memoi_session_is_turn(s, MEMO_PASS_FORWARD) && !plan->shape.is_forward_only)
            memoi_session_list_pass(s, MEMO_PASS_BACKWARD);
    }
    s->next_turn = 0;
    if (!s->error.status)
        (void)memoi_session_is_ok(s, memo_arena_end(s->part->arena, &s->call_error));
    memoi_keep(s, memoi_session_report(s, &s->call_error));
}

/* Ends what belongs to the open plan, but for states and the device's memory. */
MEMOI void memoi_session_stop(memo_session* s) {
    memoi_checked_destroy(s);
    for (int32_t k = MEMO_SHAPES_MAX - 1; k >= 0; k--) { /* later ones use the first's streams */
        memoi_session_part* part = &s->parts[k];
        memo_swap_destroy(part->swap);
        memob_step_free(&part->own_step);
        memob_sink_free(&part->own_sink);
        part->step = NULL;
        memo_arena_destroy(part->arena);
        memob_swap_placement_free(&part->placement);
        MEMO_FREE(part->skipped);
        part->swap = NULL;
        part->arena = NULL;
        part->skipped = NULL;
    }
    if (s->host_memory && !s->desc.host_memory)
        MEMOB_IGNORE(memo_host_free(s->device, s->host_memory, NULL));
    s->host_memory = NULL;
}

void memo_session_destroy(memo_session* s) {
    if (!s) return;
    if (s->is_open && !s->desc.computes_on_host) /* steps may still run */
        MEMOB_IGNORE(memo_stream_synchronize(s->device, s->desc.compute_stream, NULL));
    memoi_slowing_destroy(s);
    memoi_session_destroy_timers(s);
    memob_arrays_free(&s->arrays);
    memoi_session_stop(s);
    memob_states_destroy(s->states); /* whose streams the engines above use */
    memob_arrays_free(&s->kept);
    MEMO_FREE(s->kept_bytes);
    if (s->sleep_stream) memo_stream_destroy(s->device, s->sleep_stream, NULL);
    if (s->device_memory && !s->desc.device_memory)
        memo_device_free(s->device, s->device_memory, NULL);
    memo_step_plan_destroy(s->own_plan);
    MEMO_FREE(s->timing.profiles);
#ifndef MEMO_NO_HOST_DEVICE
    memo_host_device_destroy(s->own_device);
#endif
    MEMO_FREE(s);
}

memo_session_info memo_session_get_info(const memo_session* s) {
    memo_session_info info = MEMO_ZERO(memo_session_info);
    if (!s) return info;
    info.plan = s->part->plan;
    info.arena = s->part->arena;
    info.swap = s->part->swap;
    info.n_unwritten = s->states ? memob_snapshot_n_left(&s->states->snapshot) : 0;
    info.states_to_host_bytes = s->states ? s->states->sink.engine.memory.copied_bytes[0] : 0;
    info.states_to_device_bytes = s->states ? s->states->sink.engine.memory.copied_bytes[1] : 0;
    return info;
}
