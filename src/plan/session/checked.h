#pragma once
#include "memo/poison.h"
#include "memo/swap_engine.h"
#include "plan/session/agreement.h"
#include "plan/session/states.h"
/* --- >>session checked ---
 * Knows: tensors and buffers of a checked session, where the engine has their rows, and
 * which rows are recomputed.  Knows nothing of when rows move, and of how a plan is found.
 *
 * Two layers are open at most, so a checked session computes in two *slots* beside the engine's
 * memory.  In a slot each tensor lies between guards.  All bytes are poison unless a layer is
 * open there: readers of a layer that has ended get NaN, and the next layer finds what was written.
 * The end of a forward copies the slot to the engine; the begin of a backward takes back what the
 * engine has, and recomputes the rest.
 *
 * Buffers of a micro-batch lie in memory of their own, too, at twice their planned offset, so that
 * behind each buffer lie as many bytes that nobody may write.  What belongs to no buffer is poison.
 * There are two such halves.  A buffer lies in the half where the last buffer with these bytes did
 * not lie, so that the old address stays poison for a while.
 *
 * Slots and halves change places once, after the first backward, or with a plan by measured times:
 * an address that was kept from before is then of no layer that is open.
 *
 * 1. The rows of a tensor lie between the guards of the tensor.
 * 2. Only rows that have a hash are compared.
 * 3. The image of a slot has room for the bytes that are looked at.
 * 4. A buffer and as many bytes behind it lie in a half; the list has room for each. */

#define MEMOI_STATE_GUARD (1 << 20) /* at most */
#define MEMOI_HANDS_ON                                                                             \
    "a layer hands rows on in a buffer of the trainer, which the next layer copies into its own "  \
    "tensor"

/* Where the step is computed: after the move, where its neighbors were. */
MEMOI char* memoi_checked_slot(const memo_session* s, int32_t step) {
    return s->checked.slots + ((step & 1) ^ s->checked.is_moved) * s->checked.slot_bytes;
}

/* 0: the layer lacks the tensor, or the tensor is an EDGE and need not stay. */
MEMOI int64_t memoi_checked_row_bytes(const memo_session* s, int32_t step, int32_t t) {
    if (s->steps->tensors[t].scope == MEMO_EDGE) return 0;
    return memoi_session_place(s, step, t)->row_bytes;
}

/* Most rows of a tensor in a slice of n rows. */
MEMOI int64_t memoi_session_most_rows(const memo_session* s, int32_t t, int64_t n) {
    if (memob_tensor_is_routed(s->steps, t))
        return memoi_session_share(&s->desc, s->desc.routed_rows_layer, n);
    return memob_item_scope(s->steps, t) == MEMO_CARRIED ? memob_min(n, 1) : n;
}
/* Rows of the tensor in this step of this micro-batch. */
MEMOI int64_t memoi_session_tensor_rows(const memo_session* s, int32_t step, int32_t t) {
    return memob_tensor_is_routed(s->steps, t)
               ? memoi_session_place(s, step, t)->n_routed
               : memoi_session_most_rows(s, t, memoi_session_rows(s, step));
}

/* Logs what this plan has passed, because silence may mean that nothing was checked. */
MEMOI void memoi_checked_destroy(memo_session* s) {
    memoi_checked* c = &s->checked;
    if (c->slots && c->n_trained)
        memob_session_log(s, "session: %d micro-batches passed all checks", (int)c->n_trained);
    memob_engine_release(&c->engine);
    memob_arrays_free(&c->arrays);
    memset(c, 0, sizeof *c);
}

/* States of open visits lie beside each other, with guards.  Returns how many bytes they take, with
 * room for what is written behind the last guard. */
MEMOI int64_t memoi_checked_place_states(memo_session* s) {
    memoi_checked* c = &s->checked;
    int64_t at = 0, most = 0;
    for (int32_t i = 0; i < s->desc.n_states; i++)
        most = memob_max(most, s->desc.states[i].size_bytes);
    most = memob_align_up(most, MEMOI_GUARD);
    c->guard_bytes = memob_min(most, MEMOI_STATE_GUARD);
    for (int32_t i = 0; i < s->desc.n_states; i++) {
        c->states_at[i] = at;
        at += memob_align_up(s->desc.states[i].size_bytes, MEMOI_GUARD) + c->guard_bytes;
    }
    c->states_bytes = at;
    return 2 * at + most;
}

/* Takes three layers and four times the buffers on the device, and two layers pinned, beside the
 * budgets.  If times are known, another plan was open, whose addresses the trainer may
 * have kept. */
MEMOI memo_status memoi_checked_create(memo_session* s, memo_error* error) {
    memoi_checked* c = &s->checked;
    const int32_t n = s->desc.n_tensors;
    memob_engine* e = &c->engine;
    memo_status status;
    int64_t at = MEMOI_GUARD, n_requests = 0, n_found, found_bytes, states_bytes, device_bytes;
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        n_requests = memob_max(n_requests, plan->addresses->n_buffers);
        c->memory_bytes = memob_max(c->memory_bytes, 4 * plan->bytes[0][MEMO_OWNER_MICRO_BATCH]);
    }

    c->most_rows =
        memob_max(s->desc.slice_rows,
                  memoi_session_share(&s->desc, s->desc.routed_rows_layer, s->desc.slice_rows));
    c->buffers = MEMOB_ARRAY(&c->arrays, memoi_checked_buffer, n_requests);
    c->offsets = MEMOB_ARRAY(&c->arrays, int64_t, n + 1);
    c->hashes = MEMOB_ARRAY(&c->arrays, uint64_t, s->most_steps * c->most_rows * n);
    c->states =
        MEMOB_ARRAY(&c->arrays, uint64_t, (int64_t)s->states_desc.n_layers * s->desc.n_states);
    c->states_at = MEMOB_ARRAY(&c->arrays, int64_t, s->desc.n_states);
    c->guards = MEMOB_ARRAY(&c->arrays, uint64_t, s->desc.n_states);
    c->lies_of = MEMOB_ARRAY(&c->arrays, int32_t, s->desc.n_states);
    c->n_open = MEMOB_ARRAY(&c->arrays, int32_t, s->desc.n_states);
    if (c->arrays.failed) return memob_no_memory(error, "the hashes of a checked session");

    for (int32_t t = 0; t < n; t++) {
        c->offsets[t] = at;
        at = memob_align_up(at + memoi_session_most_rows(s, t, s->desc.slice_rows) *
                                     s->steps->tensors[t].row_bytes,
                            MEMOI_GUARD) +
             MEMOI_GUARD;
    }
    c->offsets[n] = c->slot_bytes = at;

    /* The device may look at rows itself. */
    n_found = memob_max(c->most_rows, at / MEMOI_SWEPT_BYTES + 1);
    found_bytes = MEMO_DEVICE_HAS(s->device, inspect)
                      ? memob_align_up(n_found * (int64_t)sizeof *c->found, MEMOI_GUARD)
                      : 0;
    if (!found_bytes) c->found = MEMOB_ARRAY(&c->arrays, memo_row_content, n_found);
    if (c->arrays.failed) return memob_no_memory(error, "the rows of a checked session");

    states_bytes = memoi_checked_place_states(s);
    device_bytes = 3 * at + c->memory_bytes + found_bytes + states_bytes;
    memob_engine_begin(e, s->device, NULL, 0, NULL, NULL);
    status = memob_engine_acquire(e, "", device_bytes, at + MEMOI_GUARD + found_bytes, error);
    c->stream = s->desc.compute_stream;
    if (!status && s->desc.computes_on_host) {
        status = memob_engine_take_streams(e, MEMOB_STREAM_TO_HOST, error);
        c->stream = e->streams[MEMOB_STREAM_TO_HOST];
    }
    c->image = e->memory.host;
    c->is_moved = s->timing.is_known;
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        memo_error_set(
            error, status,
            "a checked session takes %lld bytes of the device beside device_bytes; lower "
            "device_bytes, or set is_checked and MEMO_CHECK to 0",
            (long long)device_bytes);
    if (status) return status;
    c->slots = e->memory.device;
    c->memory = c->slots + (c->memory_bytes ? 3 : 2) * at;
    c->states_memory = c->slots + device_bytes - states_bytes;
    if (!found_bytes) return status;
    c->found = (memo_row_content*)(void*)(c->image + at + MEMOI_GUARD);
    c->seen = (memo_row_content*)(void*)(e->memory.device + 3 * at + c->memory_bytes);
    return status;
}

/* Copies all rows but the recomputed between a slot and the engine's memory.  LAYER tensors are
 * computed in the engine's memory, so that their rows always go to the slot. */
MEMOI int memoi_checked_exchange(memo_session* s, int32_t step, int is_back) {
    const memoi_checked* c = &s->checked;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        const memob_swap_place* place = memoi_session_place(s, step, t);
        const int64_t row_bytes = memoi_checked_row_bytes(s, step, t);
        const int64_t bounds[4] = {0, memob_min(place->recompute_begin, n),
                                   memob_min(place->recompute_end, n), n};
        char* slot = memoi_checked_slot(s, step) + c->offsets[t];
        char* engine = s->part->base + place->offset;
        MEMO_ASSERT(n * row_bytes <= c->offsets[t + 1] - MEMOI_GUARD - c->offsets[t]); /* 1 */
        if (place->is_layer) engine += step % s->n_of_batch * s->steps->n_rows * row_bytes;
        for (int32_t part = 0; part < 4 && !status; part += 2) {
            const int64_t at = bounds[part] * row_bytes, end = bounds[part + 1] * row_bytes;
            const int is_to_slot = is_back || place->is_layer;
            if (at < end)
                status = memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE,
                                   (is_to_slot ? slot : engine) + at,
                                   (is_to_slot ? engine : slot) + at, end - at, &s->call_error);
        }
    }
    if (!status) status = memo_stream_synchronize(s->device, c->stream, &s->call_error);
    return memoi_session_is_ok(s, status);
}

/* Hashes of the rows of tensor t in a step; 0: nothing was written. */
MEMOI uint64_t* memoi_checked_hashes(const memo_session* s, int32_t step, int32_t t) {
    return s->checked.hashes + ((int64_t)step * s->desc.n_tensors + t) * s->checked.most_rows;
}

/* The first row in [begin, end) of the slot that differs from the forward's, which is c->found[0]
 * then; end: none.  is_forward: these are the forward's; the first row that is computed from
 * poison. */
MEMOI int64_t memoi_checked_first(memo_session* s, int32_t step, int32_t t, int64_t begin,
                                  int64_t end, int is_forward) {
    memoi_checked* c = &s->checked;
    uint64_t* hashes = memoi_checked_hashes(s, step, t);
    const int64_t row_bytes = memoi_checked_row_bytes(s, step, t);
    char* rows = memoi_checked_slot(s, step) + c->offsets[t] + begin * row_bytes;
    MEMO_ASSERT(begin >= 0 && end <= c->most_rows && step < s->most_steps); /* 2 */
    if (!memoi_checked_view(s, rows, row_bytes, end - begin)) return end;
    for (int64_t i = 0; begin < end; begin++, i++) {
        const memo_row_content* row = &c->found[i];
        const uint64_t hash = row->n_poisoned < row_bytes ? row->digest : 0;
        if (is_forward) hashes[begin] = hash;
        if (hash == hashes[begin] && !(is_forward && row->is_of_poison)) continue;
        c->found[0] = *row;
        break;
    }
    return begin;
}

/* A row of a slot differs from the forward's.  why NULL: it was recomputed, and is c->found[0]. */
MEMOI memo_status memoi_checked_blame(memo_session* s, int32_t step, int32_t t, int64_t row,
                                      const char* why) {
    static const char* const guesses[] = {
        "recompute gives it other bytes than the forward; it must compute the same rows by "
        "the same operations, or tile_rows is too small, or the table has another order, or "
        "weights or tensors before it changed since; if no tensor before it gives it, "
        "declare it MEMO_MOVE",
        "recompute did not write it; recompute it, declare it MEMO_WITH behind the tensor "
        "that it is computed with, or declare it MEMO_MOVE",
        "recompute writes it, but the forward had not when the layer ended; give layers that "
        "lack it another kind, compute on compute_stream, or set memo_batch.n_rows"};
    const int is_new = !memoi_checked_hashes(s, step, t)[row];
    const int is_poison = s->checked.found[0].n_poisoned == memoi_checked_row_bytes(s, step, t);
    if (!why) why = guesses[is_new ? 2 : is_poison];
    return memo_error_set(&s->call_error, MEMO_STATUS_INVALID_ARGUMENT,
                          "checked session: layer %d, tensor `%s`, row %lld: %s",
                          (int)memob_session_layer(s, step), s->steps->tensors[t].name,
                          (long long)(step % s->n_of_batch * s->steps->n_rows + row), why);
}

/* No row of n has been written. */
MEMOI int memoi_checked_is_unwritten(const memo_session* s, int32_t step, int32_t t, int64_t n) {
    const uint64_t* hashes = memoi_checked_hashes(s, step, t);
    int64_t row = 0;
    while (row < n && !hashes[row]) row++;
    return n > 0 && row == n && memoi_checked_row_bytes(s, step, t) > 0;
}

/* Is all of a slot poison behind the n_rows rows of a tensor? */
MEMOI int memoi_checked_ends(memo_session* s, int32_t step, int32_t t, int64_t* n_rows) {
    const memoi_checked* c = &s->checked;
    int64_t behind, n_bytes;
    *n_rows = memob_tensor_is_routed(s->steps, t) ? memoi_session_tensor_rows(s, step, t)
                                                  : memoi_session_most_rows(s, t, s->steps->n_rows);
    behind = c->offsets[t] + *n_rows * s->steps->tensors[t].row_bytes;
    n_bytes = c->offsets[t + 1] - behind;
    return memoi_checked_sweep(s, memoi_checked_slot(s, step) + behind, n_bytes) == n_bytes;
}

/* After which computation of a layer its slot is looked at. */
typedef enum memoi_checked_after {
    MEMOI_CHECKED_FORWARD,
    MEMOI_CHECKED_RECOMPUTATION,
    MEMOI_CHECKED_BACKWARD,
    MEMOI_N_CHECKED
} memoi_checked_after;

/* Looks at a slot.  Nobody wrote behind the rows of a tensor.  The forward's rows are hashed, and
 * the rows that the backward gets must have the same bytes. */
MEMOI int memoi_checked_look(memo_session* s, int32_t step, memoi_checked_after after) {
    static const char* const names[] = {"forward", "recomputation", "backward"};
    MEMOB_TABLE_OF(MEMOI_N_CHECKED, names);
    const memoi_checked* c = &s->checked;
    const int is_forward = after == MEMOI_CHECKED_FORWARD;

    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const memo_item* tensor = &s->steps->tensors[t];
        int64_t n_rows;
        if (memoi_checked_ends(s, step, t, &n_rows)) continue;
        MEMOI_SESSION_FAIL(
            s, MEMO_STATUS_INVALID_ARGUMENT,
            "checked session: layer %d, tensor `%s`, row %lld: the %s wrote behind "
            "its %lld rows of %lld bytes; %s",
            (int)memob_session_layer(s, step), tensor->name, (long long)n_rows, names[after],
            (long long)n_rows, (long long)tensor->row_bytes,
            memob_tensor_is_routed(s->steps, t)
                ? "call memo_session_set_routed with all rows before they are written"
                : "row_bytes or n_rows is too small, or the table has another order than "
                  "the kernels");
        return 0;
    }

    if (s->error.status || after == MEMOI_CHECKED_BACKWARD) return !s->error.status;
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        const int is_by_rows = memob_is_recomputed(memob_item_away(s->steps, t)) &&
                               !memob_tensor_is_routed(s->steps, t);
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        const int64_t row = memoi_checked_first(s, step, t, 0, n, is_forward);
        const char* why = NULL;
        int64_t begin = 0, end = n;
        if (row == n && is_forward && !s->batch.is_forward_only && !s->part->skipped[step] &&
            memoi_checked_is_unwritten(s, step, t, n)) {
            MEMOI_SESSION_FAIL(
                s, MEMO_STATUS_INVALID_ARGUMENT,
                "checked session: the forward of layer %d wrote nothing into `%s`: a forgotten or "
                "cached address, bytes of a tensor that has ended, or a layer that lacks the "
                "tensor; call memo_session_get_address each time, give such layers another kind, "
                "and call memo_session_skip_layer if one is left out on purpose; " MEMOI_HANDS_ON,
                (int)memob_session_layer(s, step), s->steps->tensors[t].name);
            return 0;
        }
        if (row == n) continue;
        if (!is_forward && (!s->spans_s || !is_by_rows))
            memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
        if (is_forward)
            why = c->n_trained
                      ? "its weights or its input are NaN since the micro-batch before: the "
                        "backward read bytes never written, or of a tensor or buffer that has ended"
                      : "it is computed from bytes never written, or of a tensor or buffer that "
                        "has ended";
        else if (row < begin || row >= end)
            why = "it came back with other bytes; something writes to memory of the session";
        if (why || s->spans_s || !memoi_session_is_by_backward(s, t))
            return memoi_session_is_ok(s, memoi_checked_blame(s, step, t, row, why));
    }
    return !s->error.status;
}

/* Nobody wrote to the slot since another layer, or the forward of this layer, ended there.  In the
 * backward the slot gets what the engine has; all other rows are poison until they are
 * recomputed. */
MEMOI void memoi_checked_open(memo_session* s, int32_t step, int is_backward) {
    const memoi_checked* c = &s->checked;
    const int32_t other = is_backward ? step + 2 : step - 2;
    const int32_t closed = other >= 0 && other < s->n_steps ? other : step;
    int64_t i = memoi_checked_sweep(s, memoi_checked_slot(s, step), c->slot_bytes);
    int32_t t = 0;
    if (s->error.status) return;
    if (i < c->slot_bytes) {
        while (i >= c->offsets[t + 1]) t++;
        i = memob_max(i - c->offsets[t], 0) / memob_max(s->steps->tensors[t].row_bytes, 1);
        (void)memoi_session_is_ok(
            s, memoi_checked_blame(
                   s, closed, t, i,
                   "its bytes changed after the layer had ended; a kernel of "
                   "another layer, or on another stream, writes there; " MEMOI_HANDS_ON));
    } else if (is_backward) {
        (void)memoi_checked_exchange(s, step, 1);
    }
}

/* EDGE rows that a turn begins with are poison until the trainer writes them. */
MEMOI void memoi_checked_open_edge(memo_session* s, const memob_row_visit* visit) {
    const memob_swap_placement* p = &s->part->placement;
    const memob_swap_place* place;
    if (p->handed < 0 || !memob_swap_is_edge_new(p, visit)) return;
    place = memoi_session_place(s, visit->layer, p->handed);
    memoi_checked_fill(s, s->part->base + place->offset,
                       memoi_session_rows(s, visit->layer) * place->row_bytes);
}

/* After a forward the rows go to the engine.  Nobody uses a layer that has ended: it is poison. */
MEMOI void memoi_checked_layer_end(memo_session* s, int32_t step, memo_pass pass) {
    const int is_forward = pass == MEMO_PASS_FORWARD, leaves = is_forward && s->part->swap;
    memoi_checked_watch(s, is_forward ? MEMOB_WATCH_FORWARD : MEMOB_WATCH_BACKWARD, step, 1);
    if ((!leaves || memoi_checked_exchange(s, step, 0)) &&
        memoi_checked_look(s, step, is_forward ? MEMOI_CHECKED_FORWARD : MEMOI_CHECKED_BACKWARD))
        memoi_checked_fill(s, memoi_checked_slot(s, step), s->checked.slot_bytes);
}

/* Which tensor's call recomputes u?  -1: none; LAYER tensors do not lie in the slot. */
MEMOI int32_t memoi_checked_caller(const memo_session* s, int32_t step, int32_t u) {
    const int32_t t = memob_item_leader(s->steps->tensors, u);
    return memob_swap_is_layer(s->steps, u) || !memoi_session_recomputes(s, step, t) ? -1 : t;
}

/* Copies a slot to the third, or back. */
MEMOI int memoi_checked_save(memo_session* s, int32_t step, int is_back) {
    const memoi_checked* c = &s->checked;
    char *slot = memoi_checked_slot(s, step), *saved = c->slots + 2 * c->slot_bytes;
    memo_status status =
        memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE, is_back ? slot : saved,
                  is_back ? saved : slot, c->slot_bytes, &s->call_error);
    if (!status) status = memo_stream_synchronize(s->device, c->stream, &s->call_error);
    return memoi_session_is_ok(s, status);
}

#define MEMOI_CHECKED_RUNS 4

/* Rows of run i, of at most MEMOI_CHECKED_RUNS tiles among n rows: the first tile, the last, and
 * some between.  0: there are not so many. */
MEMOI int memob_checked_run(int64_t n, int64_t tile_rows, int32_t i, int64_t* begin, int64_t* end) {
    const int64_t last = (n - 1) / tile_rows, n_runs = memob_min(MEMOI_CHECKED_RUNS, last + 1);
    *begin = i * last / memob_max(n_runs - 1, 1) * tile_rows;
    *end = memob_min(*begin + tile_rows, n);
    return i >= 0 && i < n_runs;
}

/* Does recomputation by runs of so many rows give the forward's bits to tensor t and to tensors
 * recomputed with t, and leave the bytes behind their rows alone?  Else s->call_error names a row.
 * A few runs are tried; the slot is as before afterwards, although kernels that compute whole
 * tiles write behind a shorter run. */
MEMOI int memoi_checked_keeps_bits(memo_session* s, int32_t step, int32_t t, int64_t tile_rows) {
    const memoi_checked* c = &s->checked;
    const int64_t n = memoi_session_tensor_rows(s, step, t);
    int64_t begin, end;
    char* slot = memoi_checked_slot(s, step);
    int keeps = 1;

    /* Before, these and later tensors are poison, so no run finds bytes that it must not read.  The
     * last run is first, so no run finds the rows before its own. */
    if (!memoi_checked_save(s, step, 0)) return 0;
    for (int32_t u = 0; u < s->desc.n_tensors; u++)
        if (memoi_checked_caller(s, step, u) >= t)
            memoi_checked_fill(s, slot + c->offsets[u],
                               memoi_session_tensor_rows(s, step, u) *
                                   memoi_checked_row_bytes(s, step, u));
    if (s->error.status) return 0;
    for (int32_t i = MEMOI_CHECKED_RUNS - 1; i >= 0; i--)
        if (memob_checked_run(n, tile_rows, i, &begin, &end))
            s->desc.recompute(s->desc.user, s, memob_session_layer(s, step), t, begin, end);

    for (int32_t u = 0; u < s->desc.n_tensors && keeps; u++) {
        if (memoi_checked_caller(s, step, u) != t) continue;
        for (int32_t i = 0; keeps && memob_checked_run(n, tile_rows, i, &begin, &end); i++) {
            const int64_t row = memoi_checked_first(s, step, u, begin, end, 0);
            keeps = row == end;
            if (!keeps) (void)memoi_checked_blame(s, step, u, row, NULL);
        }
    }
    for (int32_t u = 0; u < s->desc.n_tensors && keeps; u++) {
        int64_t n_rows;
        keeps = memoi_checked_caller(s, step, u) != t || memoi_checked_ends(s, step, u, &n_rows);
        if (!keeps)
            (void)memoi_checked_blame(s, step, u, n_rows,
                                      "recompute writes behind the rows that it is given; compute "
                                      "only these, or set tile_rows to what a kernel computes");
    }
    return memoi_checked_save(s, step, 1) && keeps;
}

/* Does recompute give each tensor of each kind its bits?  Also the least tile_rows that does. */
MEMOI void memoi_checked_test_tiles(memo_session* s, int32_t step) {
    const int64_t given = memob_swap_tile_rows(s->steps);
    for (int32_t t = 0; t < s->desc.n_tensors && !s->error.status; t++) {
        const memo_item* tensor = &s->steps->tensors[t];
        const int64_t n = memoi_session_tensor_rows(s, step, t);
        int64_t least = tensor->away == MEMO_WHOLE ? n : 1;
        int keeps;
        if (!n || !memoi_session_recomputes(s, step, t) || memoi_session_is_by_backward(s, t))
            continue;
        while (!(keeps = memoi_checked_keeps_bits(s, step, t, least)) && least < n)
            least = memob_min(2 * least, n);
        if (s->error.status) return;

        if (!keeps) {
            (void)memoi_session_is_ok(s, MEMO_STATUS_INVALID_ARGUMENT); /* s->call_error */
            return;
        }
        if (tensor->away == MEMO_WHOLE) continue;
        memob_session_log(s, "session: tensor `%s` keeps its bits in tiles of %lld rows",
                          tensor->name, (long long)least);

        if (memoi_checked_keeps_bits(s, step, t, given) || s->error.status) continue;
        MEMOI_SESSION_FAIL(
            s, MEMO_STATUS_INVALID_ARGUMENT,
            least < n
                ? "checked session: tensor `%s` has other bits if it is recomputed "
                  "in tiles of %lld rows, or they write behind these; check row_bytes (larger "
                  "than what the kernel writes?); if it is right, tile_rows of %lld would "
                  "work"
                : "checked session: tensor `%s` has other bits if it is recomputed "
                  "in tiles of %lld rows, but not if all %lld are; compute rows from "
                  "`begin`, check row_bytes, or make it WHOLE",
            tensor->name, (long long)given, (long long)least);
    }
}

/* Before a backward: every row has the bytes that the forward gave it. */
MEMOI void memoi_checked_backward_begin(memo_session* s, int32_t step) {
    memoi_checked* c = &s->checked;
    const uint32_t kind = 1u << memob_layer_kind(s->steps, step);
    if (s->error.status || !memoi_checked_look(s, step, MEMOI_CHECKED_RECOMPUTATION)) return;
    memoi_checked_watch(s, MEMOB_WATCH_BACKWARD, step, 0);
    if (s->error.status || (c->kinds & kind) || step % s->n_slices || s->part->skipped[step])
        return;
    c->kinds |= kind;
    memoi_checked_watch(s, MEMOB_WATCH_RECOMPUTATION, step, 0);
    memoi_checked_test_tiles(s, step);
    memoi_checked_watch(s, MEMOB_WATCH_RECOMPUTATION, step, 1);
}

/* Bytes [begin, end) must be poison; those of a buffer that lives may have any value. */
MEMOI void memoi_checked_verify(memo_session* s, int64_t begin, int64_t end) {
    const memoi_checked* c = &s->checked;
    if (!c->slots) return;
    while ((begin += memoi_checked_sweep(s, c->memory + begin, end - begin)) < end) {
        const memoi_checked_buffer *b = NULL, *moved = NULL; /* the last in this half; in any */
        int64_t in = 0;
        for (int64_t i = 0; i < c->n_buffers; i++) {
            const memoi_checked_buffer* of = &c->buffers[i];
            if ((begin - of->at + c->memory_bytes) % (c->memory_bytes / 2) >= 2 * of->n_bytes)
                continue;
            moved = of;
            if (of->at <= begin && begin < of->at + 2 * of->n_bytes) b = of;
        }

        if (b) in = begin - b->at;
        if (b && b->address && in < b->n_bytes) {
            begin = b->at + b->n_bytes;
            continue;
        }

        if (!b) b = moved;
        MEMOI_SESSION_FAIL(
            s, MEMO_STATUS_INVALID_ARGUMENT,
            "checked session: buffer `%s` of %lld bytes: something writes %s",
            b && b->name ? b->name : "memo_session_alloc", (long long)(b ? b->n_bytes : 0),
            b && in >= b->n_bytes
                ? "behind it; its size is too small"
                : "to it after it has ended; its last pass or layer comes too early (the backward "
                  "ends with layer 0), or its address was kept");
        return;
    }
}

/* Where a buffer lies that the arena has at an address. */
MEMOI void* memoi_checked_request(memo_session* s, void* address, int64_t n_bytes,
                                  const char* name) {
    memoi_checked* c = &s->checked;
    const memo_step_plan* plan = s->part->plan;
    const int64_t half = c->memory_bytes / 2;
    int is_behind = c->is_moved;
    memoi_checked_buffer* b;
    if (!c->slots || !s->is_running || s->error.status || n_bytes <= 0) return address;
    MEMO_ASSERT(c->n_buffers < plan->addresses->n_buffers); /* 4 */
    b = &c->buffers[c->n_buffers];
    b->address = address;
    b->name = name;
    b->n_bytes = n_bytes;
    b->at = 2 * ((char*)address - (char*)s->device_memory - plan->device_bytes +
                 plan->bytes[0][MEMO_OWNER_MICRO_BATCH]);
    MEMO_ASSERT(b->at >= 0 && b->at + 2 * n_bytes <= half); /* 4 */
    for (int64_t i = c->n_buffers - 1; i >= 0; i--) {
        const int64_t before = c->buffers[i].at % half;
        if (before >= b->at + 2 * n_bytes || b->at >= before + 2 * c->buffers[i].n_bytes) continue;
        is_behind = c->buffers[i].at < half;
        break;
    }
    if (is_behind) b->at += half;
    memoi_checked_verify(s, b->at, b->at + 2 * n_bytes);
    c->n_buffers++;
    return c->memory + b->at;
}

/* The arena's address of a buffer that ends. */
MEMOI void* memoi_checked_release(memo_session* s, void* address) {
    memoi_checked* c = &s->checked;
    for (int64_t i = c->n_buffers - 1; i >= 0; i--) {
        memoi_checked_buffer* b = &c->buffers[i];
        void* own = b->address;
        if (!own || c->memory + b->at != (char*)address) continue;
        memoi_checked_verify(s, b->at + b->n_bytes, b->at + 2 * b->n_bytes);
        memoi_checked_fill(s, (char*)address, 2 * b->n_bytes);
        b->address = NULL;
        return own;
    }
    return address;
}
