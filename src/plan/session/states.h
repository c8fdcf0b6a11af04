#pragma once
#include "memo/poison.h"
#include "memo/swap_engine.h"
#include "plan/session/agreement.h"
#include "plan/session/slowing.h"
/* --- >>session states ---
 * Knows: the states of a session that runs: who uses them when, which calls are legal, what a
 * failure has damaged, and what a checked session sees.  Knows nothing of what rows are, and of how
 * many states are streamed. */

/* In a checked session no pass writes to a state that the pass only reads, nobody writes to the
 * states of a closed layer, the gradients of a step begin at zero, and an update changes all layers
 * or none. */
#define MEMOI_HASH_ZERO 1 /* all bytes are 0 */

#define MEMOI_GUARD       512
#define MEMOI_SWEPT_BYTES 4096 /* that one thread of a device looks at */

MEMOI void memoi_checked_watch(memo_session* s, memob_watched what, int32_t step, int is_end) {
    if (s->watch && s->checked.slots && !s->error.status) s->watch(s, what, step, is_end);
}

/* 0: the session has failed; so say the other functions of a checked session. */
MEMOI int memob_checked_copy(memo_session* s, char* on_device, char* on_host, int64_t n_bytes,
                             int is_back) {
    return memoi_session_is_ok(s, memob_copy_now(s->device, s->checked.stream, on_device, on_host,
                                                 n_bytes, is_back, &s->call_error));
}

/* Leaves in c->found what rows of the session's device memory hold, and waits. */
MEMOI int memoi_checked_view(memo_session* s, char* bytes, int64_t row_bytes, int64_t n_rows) {
    memoi_checked* c = &s->checked;
    char* image = c->image + (uintptr_t)bytes % 8;
    memo_status status;
    MEMO_ASSERT(n_rows * row_bytes <= c->slot_bytes); /* 3 */
    if (n_rows <= 0) return 1;
    if (c->seen) {
        status = s->device->inspect(s->device->context, c->stream, bytes, row_bytes, n_rows,
                                    c->seen, &s->call_error);
        if (!memoi_session_is_ok(s, status)) return 0;
        return memob_checked_copy(s, (char*)c->seen, (char*)c->found,
                                  n_rows * (int64_t)sizeof *c->found, 0);
    }
    if (!memob_checked_copy(s, bytes, image, n_rows * row_bytes, 0)) return 0;
    for (int64_t row = 0; row < n_rows; row++)
        c->found[row] = memob_row_content(image + row * row_bytes, row_bytes);
    return 1;
}

/* Fills bytes of the session's memory with poison.  A part comes from the host, and doubles. */
MEMOI void memoi_checked_fill(memo_session* s, char* bytes, int64_t n_bytes) {
    const memoi_checked* c = &s->checked;
    int64_t at = memob_min(n_bytes, memob_min(c->slot_bytes, 1 << 20) / 8 * 8), n;
    char* image;
    if (!c->slots || n_bytes <= 0 || s->error.status) return;
    image = c->image + (uintptr_t)bytes % 8;
    memob_poison(image, at);
    if (!memob_checked_copy(s, bytes, image, at, 1)) return;
    for (; at < n_bytes && !s->error.status; at += n) {
        n = memob_min(at, n_bytes - at);
        (void)memoi_session_is_ok(s, memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE,
                                               bytes + at, bytes, n, &s->call_error));
    }
    if (!s->error.status)
        (void)memoi_session_is_ok(s, memo_stream_synchronize(s->device, c->stream, &s->call_error));
}

/* Returns how many of the first bytes of the session's memory are poison. */
MEMOI int64_t memoi_checked_sweep(memo_session* s, char* bytes, int64_t n_bytes) {
    const memoi_checked* c = &s->checked;
    int64_t at = 0, n, n_rows, row_bytes;
    for (; c->slots && at < n_bytes && !s->error.status; at += n) {
        n = memob_min(n_bytes - at, c->slot_bytes);
        row_bytes = memob_min(n, MEMOI_SWEPT_BYTES);
        n_rows = n / row_bytes;
        n = n_rows * row_bytes;
        if (!memoi_checked_view(s, bytes + at, row_bytes, n_rows)) break;
        for (int64_t row = 0; row < n_rows; row++)
            if (c->found[row].n_poisoned < row_bytes)
                return at + row * row_bytes + c->found[row].n_poisoned;
    }
    return n_bytes;
}

MEMOI uint64_t memob_checked_hash(memo_session* s, char* address, int64_t size_bytes, int on_host) {
    const memoi_checked* c = &s->checked;
    uint64_t hash = 0;
    int64_t n;
    int is_zero = 1;
    for (int64_t at = 0; at < size_bytes && !s->error.status; at += n) {
        const char* image = on_host ? address + at : c->image;
        n = memob_min(size_bytes - at, c->slot_bytes);
        if (!on_host && !memob_checked_copy(s, address + at, c->image, n, 0)) break;
        for (int64_t k = 0; k < n && is_zero; k++) is_zero = !image[k];
        hash = 31 * hash + memob_digest(image, n);
    }
    return is_zero ? MEMOI_HASH_ZERO : hash | 2;
}
/* 1: a layer is open that finds the state in memory of the checked session. */
MEMOI int memoi_checked_has(const memo_session* s, int32_t layer, int32_t i) {
    return s->checked.lies_of[i] == memob_states_home(s->states, layer, i) + 1;
}

/* Where a state lies: during a visit in memory of the checked session. */
MEMOI void* memob_checked_state_address(const memo_session* s, int32_t layer, int32_t i) {
    const memoi_checked* c = &s->checked;
    return c->slots && memoi_checked_has(s, layer, i)
               ? c->states_memory + c->states_at[i]
               : memob_states_get_address(s->states, layer, i);
}

MEMOI uint64_t memoi_checked_hash_state(memo_session* s, int32_t layer, int32_t i, int on_host) {
    char* address = (char*)(on_host ? memob_states_get_host_address(s->states, layer, i)
                                    : memob_checked_state_address(s, layer, i));
    if (on_host) (void)memoi_session_is_ok(s, memob_states_synchronize(s->states, &s->call_error));
    return memob_checked_hash(s, address, s->desc.states[i].size_bytes, on_host);
}

/* The number of a state among those of all layers; SHARED ones are of their lowest layer. */
MEMOI int64_t memoi_session_item(const memo_session* s, int32_t layer, int32_t state) {
    return (int64_t)memob_states_home(s->states, layer, state) * s->desc.n_states + state;
}

/* What a checked session sees of a layer's states when a pass begins, or is about to end. */
typedef struct memoi_checked_glance {
    int32_t pass, layer, is_end;
    int is_fresh;            /* gradients begin at zero */
    int on_host;             /* an update there */
    int32_t blamed;          /* the latest state */
    int is_due;              /* gradients are not zero */
    int is_changed, has_old; /* updated states did change; there are any */
} memoi_checked_glance;

/* The states that the pass uses, and those that nobody may write meanwhile. */
MEMOI uint32_t memoi_checked_visited(const memo_session* s, const memoi_checked_glance* view) {
    const memob_states* states = s->states;
    const memob_states_layer* of = &states->layers[view->layer];
    const int is_begin_of_update = view->pass == MEMOB_UPDATE && !view->is_end;
    const uint32_t used = memob_states_used(states, view->pass, view->layer) & ~states->hosted;
    uint32_t visited = ~of->streamed | used;
    if (view->on_host) visited = states->updated | (view->is_end ? states->gradients : 0);
    if (is_begin_of_update && !view->on_host) visited &= ~states->made;
    if (view->pass == MEMOB_UPDATE) visited &= ~of->lent;
    if (s->is_filling || (view->is_fresh && view->pass == MEMOB_FORWARD))
        visited &= ~states->gradients;
    return of->has & visited &
           ~(states->gradients & (~states->masks[view->layer] | states->shared));
}

/* The states of a layer that its update changes. */
MEMOI uint32_t memoi_checked_updated(const memo_session* s, int32_t layer) {
    const memob_states_layer* of = &s->states->layers[layer];
    return of->has & ~of->lent & s->states->updated;
}

/* Looks at a state.  Returns what is wrong; NULL: nothing, or the session has failed. */
MEMOI const char* memoi_checked_state(memo_session* s, memoi_checked_glance* view, int32_t i) {
    const uint32_t uses = s->desc.states[i].uses;
    const int is_gradient = (uses & MEMO_STATE_GRADIENT) != 0;
    const int is_update = view->pass == MEMOB_UPDATE;
    const int is_written =
        is_gradient ? view->pass != MEMOB_FORWARD : is_update && (uses & MEMO_STATE_UPDATE);
    const int is_zero_due = is_gradient && view->is_fresh;
    /* What an update makes anew does not show whether it ran: its place had any bytes. */
    const int is_old = !is_gradient && is_written && !(uses & MEMO_STATE_MADE) &&
                       s->states->masks[view->layer] >> i & 1;
    uint64_t* known = &s->checked.states[memoi_session_item(s, view->layer, i)];
    const uint64_t before = *known;
    const uint64_t hash = memoi_checked_hash_state(s, view->layer, i, view->on_host);
    if (s->error.status) return NULL;
    view->blamed = i;
    view->is_due |= is_gradient && before != MEMOI_HASH_ZERO &&
                    (memoi_checked_updated(s, view->layer) & s->states->masks[view->layer]);
    view->is_changed |= is_old && hash != before;
    view->has_old |= is_old;
    *known = is_gradient && is_update && view->is_end ? 0 : hash;

    if (is_zero_due && hash != MEMOI_HASH_ZERO)
        return "not zero when the first backward of a step begins; the device's fill failed, or "
               "something writes to it";
    if (!view->is_end && before && !is_zero_due && hash != before)
        return uses & MEMO_STATE_FETCHED
                   ? "its bytes are not those of before; desc.fetch must give the same bytes each "
                     "time, and nothing may write to them"
                   : "it changed while its layer was closed; write only in passes that may, or "
                     "with memo_session_write_state";
    if (view->is_end && !is_written && hash != before)
        return "the pass wrote to it, but may only read it; add the pass to its uses, or write "
               "to another state";
    return NULL;
}

/* An update changes all layers or none: a learning rate of 0 changes none.  If not, view is of the
 * layer and the state that were missed. */
MEMOI const char* memoi_checked_missed(memo_session* s, memoi_checked_glance* view) {
    memoi_checked* c = &s->checked;
    if (!view->is_end || view->pass != MEMOB_UPDATE || !view->is_due || !view->has_old) return NULL;
    c->n_updated += view->is_changed;
    if (!view->is_changed) c->n_missed = view->layer + 1;
    if (!c->n_updated || !c->n_missed) return NULL;
    view->layer = c->n_missed - 1;
    view->blamed = __builtin_ctz(memoi_checked_updated(s, view->layer));
    return "not changed, although gradients of the layer are not zero, and other layers "
           "change; update each layer";
}

#define MEMOI_GUARD_BYTE 0x3f /* a number in every type: a NaN would hide what is added to it */

MEMOI int64_t memoi_checked_guard_bytes(const memo_session* s, int32_t i) {
    const int64_t size_bytes = s->desc.states[i].size_bytes;
    return memob_align_up(size_bytes, MEMOI_GUARD) - size_bytes + s->checked.guard_bytes;
}

MEMOI uint64_t memoi_checked_hash_guard(memo_session* s, int32_t i) {
    const memoi_checked* c = &s->checked;
    return memob_checked_hash(s, c->states_memory + c->states_at[i] + s->desc.states[i].size_bytes,
                              memoi_checked_guard_bytes(s, i), 0);
}

/* 1: eight bytes of a state are poison, or numbers are made of poison. */
MEMOI int memoi_checked_is_poisoned(memo_session* s, char* bytes, int64_t n_bytes) {
    const memoi_checked* c = &s->checked;
    int64_t n;
    for (int64_t at = 0; at < n_bytes; at += n) {
        n = memob_min(n_bytes - at, c->slot_bytes / 8 * 8);
        if (!memob_checked_copy(s, bytes + at, c->image, n, 0)) return 0;
        if (memob_row_content(c->image, n).is_of_poison) return 1;
        for (int64_t k = 0; k + 8 <= n; k += 8)
            if (memob_row_content(c->image + k, 8).n_poisoned == 8) return 1;
    }
    return 0;
}

/* A state gets another place than in the visit before, with a guard behind it.  from: its bytes;
 * NULL: they are poison.  Returns what is wrong; NULL: nothing, or the session has failed. */
MEMOI const char* memob_checked_place(memo_session* s, int32_t layer, int32_t i, const void* from,
                                      memo_copy_kind kind) {
    memoi_checked* c = &s->checked;
    const int64_t size_bytes = s->desc.states[i].size_bytes;
    const int64_t guard_bytes = memoi_checked_guard_bytes(s, i);
    char* at;
    memo_status status;
    if (!c->is_swept) memoi_checked_fill(s, c->states_memory, 2 * c->states_bytes);
    c->is_swept = 1;
    c->states_at[i] = (c->states_at[i] + c->states_bytes) % (2 * c->states_bytes);
    at = c->states_memory + c->states_at[i];
    if (memoi_checked_sweep(s, at, size_bytes + guard_bytes) < size_bytes + guard_bytes)
        return "something has written to where it lay in an earlier visit; take its address anew "
               "in each visit";

    status = memo_fill(s->device, c->stream, at + size_bytes, MEMOI_GUARD_BYTE, guard_bytes,
                       &s->call_error);
    if (!status && from)
        status = memo_copy(s->device, c->stream, kind, at, from, size_bytes, &s->call_error);
    if (!status) status = memo_stream_synchronize(s->device, c->stream, &s->call_error);
    (void)memoi_session_is_ok(s, status);
    c->guards[i] = memoi_checked_hash_guard(s, i);
    c->lies_of[i] = memob_states_home(s->states, layer, i) + 1;
    return NULL;
}

/* A state leaves its place.  Who kept an address finds poison. */
MEMOI void memob_checked_leave(memo_session* s, int32_t i) {
    memoi_checked* c = &s->checked;
    c->lies_of[i] = 0;
    memoi_checked_fill(s, c->states_memory + c->states_at[i],
                       s->desc.states[i].size_bytes + memoi_checked_guard_bytes(s, i));
}

/* A visit finds its states between guards, SHARED ones where another layer has them, which is open.
 * What an update makes anew is poison before.  Returns what is wrong; NULL: nothing, or the session
 * has failed. */
MEMOI const char* memoi_checked_take_states(memo_session* s, memoi_checked_glance* view) {
    const int is_update = view->pass == MEMOB_UPDATE && !s->is_filling;
    uint32_t used = memob_states_used(s->states, view->pass, view->layer);
    const char* why = NULL;
    for (; used && !why && !s->error.status; used &= used - 1) {
        const int32_t i = view->blamed = __builtin_ctz(used);
        const int is_made = is_update && s->states->made >> i & 1;
        if (memoi_checked_has(s, view->layer, i) && s->checked.n_open[i]++) continue;
        s->checked.n_open[i] = 1;
        why = memob_checked_place(
            s, view->layer, i, is_made ? NULL : memob_states_get_address(s->states, view->layer, i),
            MEMO_COPY_ON_DEVICE);
    }
    return why;
}

/* What a visit has written goes back. */
MEMOI void memoi_checked_return_states(memo_session* s, const memoi_checked_glance* view) {
    const memoi_checked* c = &s->checked;
    const uint32_t written[] = {0, s->states->gradients, s->states->updated}; /* by pass */
    uint32_t used = memob_states_used(s->states, view->pass, view->layer);
    for (; used && !s->error.status; used &= used - 1) {
        const int32_t i = __builtin_ctz(used);
        memo_status status = MEMO_STATUS_OK;
        if (--c->n_open[i]) continue;
        if (written[view->pass] >> i & 1)
            status = memo_copy(s->device, c->stream, MEMO_COPY_ON_DEVICE,
                               memob_states_get_address(s->states, view->layer, i),
                               c->states_memory + c->states_at[i], s->desc.states[i].size_bytes,
                               &s->call_error);
        if (memoi_session_is_ok(s, status)) memob_checked_leave(s, i);
    }
}

/* Where a visit ends: has a state been written behind, or made of what has no value?  NULL: no. */
MEMOI const char* memoi_checked_harm(memo_session* s, memoi_checked_glance* view) {
    const memoi_checked* c = &s->checked;
    const int is_update = view->pass == MEMOB_UPDATE && !s->is_filling;
    uint32_t used = memob_states_used(s->states, view->pass, view->layer);
    for (; used && !s->error.status; used &= used - 1) {
        const int32_t i = view->blamed = __builtin_ctz(used);
        if (memoi_checked_hash_guard(s, i) != c->guards[i])
            return "something writes behind it; its size_bytes is too small";
        if (is_update && s->states->updated >> i & 1 &&
            memoi_checked_is_poisoned(s, c->states_memory + c->states_at[i],
                                      s->desc.states[i].size_bytes))
            return "the update computes it from bytes without a value: of a MEMO_STATE_MADE state, "
                   "which it must write and not read, of an address kept from another visit, of a "
                   "tensor or buffer that has ended, or behind memo_batch.values_bytes; or it "
                   "leaves bytes of a MADE state out";
    }
    return NULL;
}

/* A layer has begun a pass, or is about to end it. */
MEMOI void memoi_checked_visit(memo_session* s, int32_t pass, int32_t layer, int is_end) {
    static const char* const names[] = {"forward", "backward", "update"};
    MEMOB_TABLE_OF(MEMOB_N_PASSES, names);
    const int is_fresh =
        !s->states->layers[layer].has_gradients && (pass == MEMOB_FORWARD || !is_end);
    memoi_checked_glance view = {
        pass, layer, is_end, is_fresh, pass == MEMOB_UPDATE && s->states->updates, 0, 0, 0, 0};
    const char* why = NULL;
    uint32_t visited;
    if (!s->checked.slots) return;
    visited = memoi_checked_visited(s, &view);
    if (is_end) why = memoi_checked_harm(s, &view);
    for (; visited && !why; visited &= visited - 1)
        why = memoi_checked_state(s, &view, __builtin_ctz(visited));
    if (!why) why = memoi_checked_missed(s, &view);
    if (!why && !is_end) why = memoi_checked_take_states(s, &view);
    if (!why && pass == MEMOB_UPDATE) memoi_checked_watch(s, MEMOB_WATCH_UPDATE, layer, is_end);
    if (!why && is_end) memoi_checked_return_states(s, &view);
    if (why)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_ARGUMENT,
                           "checked session: layer %d, state `%.32s`, %s: %s", (int)view.layer - 1,
                           memob_session_name(s->desc.states[view.blamed].name), names[pass], why);
}

/* The open visit does not bring the state, or the layer is closed: an error under every plan. */
MEMOI MEMOB_NOINLINE void memoi_session_lacks_state(memo_session* s, int32_t layer, int32_t state) {
    static const char* const passes[] = {"forward", "backward", "update"};
    static const char* const uses[] = {"FORWARD", "BACKWARD", "UPDATE"};
    const int32_t pass = s->states->layers[layer + 1].open_pass - 1;
    char why[128];
    MEMOB_TABLE_OF(MEMOB_N_PASSES, passes);
    MEMOB_TABLE_OF(MEMOB_N_PASSES, uses);
    snprintf(why, sizeof why,
             "the layer is not open; take addresses between its begin and its end");
    if (pass >= 0 && (pass != MEMOB_UPDATE || !s->states->updates))
        snprintf(why, sizeof why, "the %s does not use it; add MEMO_STATE_%s to its uses",
                 passes[pass], uses[pass]);
    MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                       "memo_session_get_state: layer %d, state `%.32s`: %s, or copy its bytes by "
                       "memo_session_read_state",
                       (int)layer, memob_session_name(s->desc.states[state].name), why);
    memob_session_log(s, "session: %s", s->call_error.message);
}

void* memo_session_get_state(const memo_session* s, int32_t layer, int32_t state) {
    const memob_states_layer* of;
    uint32_t there;
    if (!s || !memoi_session_is_in(s, "state: layer", (int64_t)layer + 1, s->desc.n_layers + 1) ||
        !memoi_session_is_in(s, "state: state", state, s->desc.n_states - 1) || !s->states)
        return NULL;
    of = &s->states->layers[layer + 1];
    if (s->is_filling && s->states->updates &&
        ((s->states->updated | s->states->gradients) >> state & 1))
        return memob_states_get_host_address(s->states, layer + 1, state);
    there = of->open_pass ? memob_states_used(s->states, of->open_pass - 1, layer + 1) : 0;
    if (there >> state & 1) return memob_checked_state_address(s, layer + 1, state);
    if (of->open_pass == 1 + MEMOB_UPDATE && of->lent >> state & 1) return NULL;
    if (of->has & s->states->masks[layer + 1] & 1u << state)
        memoi_session_lacks_state((memo_session*)(uintptr_t)s, layer, state);
    return NULL;
}

/* The trainer updates a layer on the device. */
MEMOI memo_status memoi_session_update_layer(void* session, int32_t layer) {
    memo_session* s = (memo_session*)session;
    const int was_deferred = s->is_deferred;
    int32_t step;
    const int32_t span = memoi_session_update_span(s, layer, &step);
    s->is_deferred |= s->is_running && s->states->update_at == MEMO_UPDATE_DEFERRED;
    memoi_slowing_separate(s);
    memoi_session_mark(s, step, span, 0);
    s->desc.update(s->desc.user, s, layer - 1);
    memoi_session_mark(s, step, span, 1);
    s->is_deferred = was_deferred;
    return s->error.status;
}

/* The last layer's backward is looked at when LAST ends: before either is updated. */
MEMOI memo_status memoi_session_look(void* session, int32_t pass, int32_t layer, int is_end) {
    memo_session* s = (memo_session*)session;
    const int ends_backward = is_end && pass == MEMOB_BACKWARD;
    if (!ends_backward || layer != s->desc.n_layers) memoi_checked_visit(s, pass, layer, is_end);
    if (ends_backward && layer > s->desc.n_layers) memoi_checked_visit(s, pass, layer - 1, is_end);
    return s->error.status;
}

/* The rows that move in the micro-batch; NULL: none.  A forward alone moves what slices hand on,
 * and nothing without slices. */
MEMOI memob_step_rows* memoi_session_moved(const memo_session* s) {
    return s->part->swap && (!s->batch.is_forward_only || s->n_slices > 1) ? &s->part->swap->rows
                                                                           : NULL;
}

/* States and rows of a step come, or may leave. */
MEMOI void memoi_session_visit(memo_session* s, int is_backward, int32_t step, int is_end) {
    const int32_t pass = is_backward ? MEMOB_BACKWARD : MEMOB_FORWARD;
    const int32_t of_layers = step - s->first_step + s->first_layer * s->n_slices;
    memo_status status;
    if (s->error.status) return;
    if (s->states)
        status = memob_states_visit(s->states, pass, of_layers, is_end, &s->call_error);
    else
        status = (is_end ? memob_step_end : memob_step_begin)(s->part->step, &s->call_error);
    (void)memoi_session_is_ok(s, status);
}

/* Updates all layers, in a pass. */
MEMOI void memoi_session_pass_updates(memo_session* s) {
    s->checked.n_updated = s->checked.n_missed = 0;
    s->is_deferred = s->states->n_pending > 0 || s->has_update_values;
    (void)memoi_session_is_ok(s, memob_states_update_all(s->states, &s->call_error));
    s->is_deferred = 0;
}

/* The turn of states that is open; 0 without an order. */
MEMOI int32_t memoi_session_states_turn(const memo_session* s) {
    return s->steps->order ? s->states->turns[s->next_turn] : 0;
}

/* All states but gradients must be set again.  lost: why, and that. */
MEMOI void memoi_session_lose_states(memo_session* s, const memo_error* lost) {
    const int64_t n_states = (int64_t)s->states_desc.n_layers * s->desc.n_states;
    snprintf(s->lost, sizeof s->lost, "%.95s", lost->message);
    memset(s->whole, 0, 2 * (size_t)n_states * sizeof *s->whole);
}

/* Gradients are lost.  If states are, too, the error has the causes, each once, and ends with what
 * to do.  Returns whether they are. */
MEMOI int memoi_session_abandon_states(memo_session* s) {
    memo_error lost;
    const memo_status status = memob_states_abandon(s->states, &lost);
    const memo_status of_device =
        status ? memo_device_status(s->device, &s->call_error) : MEMO_STATUS_OK;
    const int64_t n_states = (int64_t)s->states_desc.n_layers * s->desc.n_states;
    if (s->is_reported) memoi_session_forget(s);
    if (status && !of_device) memoi_session_lose_states(s, &lost);
    if (status && !strstr(s->error.message, lost.message)) { /* it may be abandoned again */
        if (!memoi_session_is_ok(s, of_device)) memob_error_add(&s->error, s->call_error.message);
        if (s->error.status) memob_error_add(&s->error, lost.message);
        s->call_error = lost;
        (void)memoi_session_is_ok(s, status);
    }
    if (s->checked.states) {
        memset(s->checked.states, 0, (size_t)n_states * sizeof *s->checked.states);
        memset(s->checked.lies_of, 0, (size_t)s->desc.n_states * sizeof *s->checked.lies_of);
        memset(s->checked.n_open, 0, (size_t)s->desc.n_states * sizeof *s->checked.n_open);
        s->checked.is_swept = 0;
    }
    return status != MEMO_STATUS_OK;
}

/* A micro-batch has failed, or has no backward. */
MEMOI void memoi_session_lose_gradients(memo_session* s) {
    if (memoi_session_abandon_states(s) || !s->is_part) return;
    if (s->error.status) memob_error_add(&s->error, "run the whole step again");
    s->is_again = 1;
    s->is_part = 0;
}

/* 1: backwards since the last update have left gradients. */
MEMOI int memoi_session_has_part(const memo_session* s) { return s->states->round > 0; }

#define MEMOI_GRADIENTS_LOST                                                                       \
    "a micro-batch of the step has failed, so its gradients are lost; call "                       \
    "memo_session_skip_update, then run the whole step again"

#define MEMOI_MAY_BE_UPDATED                                                                       \
    "update_may has MEMO_MAY_FUSE, so a plan may have updated in the last backward; call "         \
    "memo_session_update"

/* 1: the last micro-batch of a step is, and its update comes next. */
MEMOI int memoi_session_is_over(const memo_session* s) { return s->is_fused || s->states->is_due; }

/* What else comes before a micro-batch; NULL: nothing. */
MEMOI const char* memoi_session_owes(const memo_session* s) {
    const memob_rule rules[] = {{*s->lost != 0, s->lost},
                                {s->is_again && !s->batch.is_forward_only, MEMOI_GRADIENTS_LOST},
                                {memoi_session_is_over(s),
                                 "the last micro-batch of a step is over; memo_session_update "
                                 "comes next, or memo_session_skip_update"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* What is wrong with the masks of the batch; NULL: nothing.  All micro-batches of a step use the
 * same states. */
MEMOI const char* memoi_session_check_masks(const memo_session* s) {
    const uint32_t* masks = s->batch.states;
    if (!s->states) return masks ? "the session has no states" : NULL;
    for (int32_t k = 0; k < s->states->n_layers * s->desc.n_states && masks; k++) {
        const int32_t l = k / s->desc.n_states, i = k % s->desc.n_states;
        if (s->states->layers[l].lent >> i & 1 && (masks[l] ^ masks[s->states->home[i]]) >> i & 1)
            return "a SHARED state is used in some layers, and left out in others; all that have "
                   "it use it, or none";
    }
    if (s->batch.is_forward_only || (!s->next_turn && !memoi_session_has_part(s)) ||
        memob_states_are_same(s->states, s->masks, masks))
        return NULL;
    return "not those of the first micro-batch of this step; all of a step use the same states";
}

/* A micro-batch begins, or the first turn of an order, for all.  Updates that are pending run by
 * the masks of their own step. */
MEMOI void memoi_session_begin_list(memo_session* s) {
    const int is_forward_only = s->batch.is_forward_only;
    const uint32_t* masks = s->batch.states;
    if (s->states->n_pending &&
        (is_forward_only || !memob_states_are_same(s->states, s->states->masks, masks))) {
        memoi_session_pass_updates(s);
        if (s->error.status) memoi_session_abandon_states(s);
    }
    if (s->error.status) return;
    memob_states_take_masks(s->states, masks);
    if (!is_forward_only && !memoi_session_has_part(s))
        memob_states_pass_updates(s->states, s->states->update_at == MEMO_UPDATE_DEFERRED &&
                                                 !s->states->updates && !s->states->n_pending);
    if (!is_forward_only)
        memcpy(s->masks, s->states->masks, (size_t)s->states->n_layers * sizeof *s->masks);
    s->is_fused = 0;
    s->checked.n_updated = s->checked.n_missed = 0;
    (void)memoi_session_is_ok(
        s, memob_states_begin_round(s->states, s->part->step, memoi_session_moved(s),
                                    !s->batch.more_follow, is_forward_only, &s->call_error));
}

/* A micro-batch begins, or a turn. */
MEMOI void memoi_session_begin_round(memo_session* s) {
    const int32_t phase = s->batch.is_forward_only ? MEMOB_EVALUATION : MEMOB_ONLY;
    if (s->error.status) return;
    if (!s->next_turn && s->states)
        memoi_session_begin_list(s);
    else if (!s->next_turn)
        (void)memoi_session_is_ok(
            s, memob_step_go(s->part->step, phase, memoi_session_moved(s), &s->call_error));
    if (!s->states || s->error.status) return;
    (void)memoi_session_is_ok(
        s, memob_states_begin_turn(s->states, memoi_session_states_turn(s), &s->call_error));
}

/* The same ends, if all its layers have computed. */
MEMOI void memoi_session_end_states(memo_session* s) {
    if (!s->states || s->error.status || memoi_session_n_ended(s) != memoi_session_n_visits(s))
        return;
    s->is_fused =
        memoi_session_is_ok(
            s, memob_states_end_turn(s->states, memoi_session_states_turn(s), &s->call_error)) &&
        memob_update_is_fused(s->states->update_at) && !s->states->is_running &&
        !s->batch.is_forward_only && !s->batch.more_follow;
}

/* Why a call of states is not legal now; NULL: it is.  A plan may fuse the update, or not: what is
 * legal does not depend on that. */
MEMOI const char* memoi_session_refuses(const memo_session* s, memoi_states_call call) {
    const int sets_values = call == MEMOI_CALL_SET_UPDATE_VALUES;
    const int is_update = call == MEMOI_CALL_UPDATE || sets_values;
    const int may_fuse = (s->desc.update_may & MEMO_MAY_FUSE) != 0;
    const int is_over = s->states && memoi_session_is_over(s);
    const int is_early = is_update && s->states && !is_over;

    const memob_rule rules[] = {
        {s->kept_bytes != NULL, MEMOB_ASLEEP},
        {s->is_running, "a micro-batch is open; end it first"},
        {s->next_turn != 0, "micro-batches are in flight; run the turns that are left"},
        {sets_values && may_fuse,
         "update_may has MEMO_MAY_FUSE, so a plan may update in the last backward, before these "
         "values are known; leave it out, or give values of the step before in memo_batch.values"},
        {!s->states &&
             (sets_values || call == MEMOI_CALL_SNAPSHOT || (is_update && !s->desc.agree)),
         "the session has no states"},
        {*s->lost && call != MEMOI_CALL_FILL_STATES, s->lost},
        {is_over && call == MEMOI_CALL_SKIP_UPDATE && may_fuse,
         MEMOI_MAY_BE_UPDATED ", and leave out MEMO_MAY_FUSE to skip updates"},
        {is_over && (call == MEMOI_CALL_FILL_STATES || call == MEMOI_CALL_SNAPSHOT) && may_fuse,
         MEMOI_MAY_BE_UPDATED " first"},
        {s->states && call == MEMOI_CALL_SNAPSHOT && s->states->snapshot.is_open,
         "a snapshot is under way; memo_session_finish_snapshot comes next"},
        {is_early && s->is_again, MEMOI_GRADIENTS_LOST},
        {is_early && memoi_session_has_part(s),
         "more_follow was 1 in the latest micro-batch; run the last one with 0, or call "
         "memo_session_skip_update"},
        {is_early, "no step of states is over; run its last micro-batch first"}};
    return MEMOB_FIRST_FAULT(rules);
}

MEMOI memo_status memoi_session_check_call(memo_session* s, memoi_states_call call,
                                           memo_error* error) {
    static const char* const names[] = {
        "update", "skip_update", "flush", "fill_states", "set_update_values", "sleep", "snapshot"};
    MEMOB_TABLE_OF(MEMOI_N_CALLS, names);
    const char* const why = memoi_session_refuses(s, call);
    if (why)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_%s: %s", names[call],
                              why);
    /* An error of a call between micro-batches is returned, and nothing changes, whatever the plan;
     * but ranks meet in this call. */
    memoi_session_forget(s);
    return s->error.status && !s->desc.agree ? memoi_session_report(s, error) : MEMO_STATUS_OK;
}

MEMOI memo_status memoi_session_update_all(memo_session* s, memo_error* error) {
    memoi_session_forget(s);
    if (!s->error.status) memoi_session_pass_updates(s);
    if (s->error.status) memoi_session_abandon_states(s);
    return memoi_session_report(s, error);
}

#define MEMOI_SESSION_ROUNDS 8 /* numbers of micro-batches that get a step of their own */

/* Two steps had another number of micro-batches than planned: streamed states travel by steps of
 * that number from now on, with the same bits.  Without memory for such a step all goes on. */
MEMOI void memoi_session_take_rounds(memo_session* s) {
    const int32_t n = s->states->n_rounds;
    if (!s->states->sizes.host_bytes || n != s->states->n_rounds_before ||
        n == s->parts->step->list.desc.n_rounds || s->n_rounds_taken == MEMOI_SESSION_ROUNDS)
        return;
    s->n_rounds_taken++;
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        memob_step* step = NULL;
        const int32_t n_slices = s->parts[k].step->list.desc.n_slices;
        if (!memob_states_get_step(s->states, n_slices, n, &step, &s->call_error))
            s->parts[k].step = step;
    }
    if (!s->steps->order)
        memob_session_log(
            s,
            "session: steps have %d micro-batches, and micro_batches is %d, for which "
            "the plan is made",
            (int)(n * memoi_session_n_group(s)), (int)s->desc.micro_batches);
}

/* The trainer ends a step.  In a checked session, and before ranks plan again, they compare how
 * many of their steps were skipped, because gradients are sums over ranks. */
MEMOI memo_status memoi_session_take_end(memo_session* s, int is_skipped, memo_error* error) {
    memoi_timing* t = &s->timing;
    memo_status status = MEMO_STATUS_OK;
    int64_t values[3] = {0};
    t->n_skipped += is_skipped;
    values[1] = t->n_skipped;
    values[2] = -values[1];
    if (s->desc.agree && (memoi_session_is_due(s) || s->desc.is_checked))
        status = memoi_session_agree(&s->desc, s->error.status, values, 3, &s->call_error);
    if (!s->error.status) (void)memoi_session_is_ok(s, status); /* the step's own error stays */
    if (!s->error.status && values[1] != -values[2])
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_INVALID_STATE,
                           "of %d steps this rank has skipped %d, ranks %lld to %lld: weights "
                           "differ; let all ranks call memo_session_skip_update, or none",
                           (int)t->n_ended + 1, (int)t->n_skipped, (long long)-values[2],
                           (long long)values[1]);
    memoi_session_end_step(s, !s->error.status);
    return memoi_session_report(s, error);
}

memo_status memo_session_update(memo_session* s, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_UPDATE, error);
    if (status) return status;
    if (!s->states) return memoi_session_take_end(s, 0, error);
    memoi_checked_watch(s, MEMOB_WATCH_STEP, 0, 0);
    if (!s->is_fused && s->states->update_at != MEMO_UPDATE_DEFERRED)
        status = memoi_session_update_all(s, error);
    else if (!s->is_fused) {
        memob_states_defer(s->states);
        if (!s->has_update_values) s->values[1] = s->values[0];
    }
    s->is_fused = s->has_update_values = 0;

    if (!status) memoi_session_take_rounds(s);
    return memoi_session_take_end(s, 0, error);
}

memo_status memo_session_set_update_values(memo_session* s, const void* values, int64_t n_bytes,
                                           memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    if (n_bytes) MEMOB_REFUSE_NULL(error, "values", values);
    if (memob_check_integer("memo_session_set_update_values", "n_bytes", n_bytes, 0,
                            MEMO_BATCH_VALUES_MAX, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    status = memoi_session_check_call(s, MEMOI_CALL_SET_UPDATE_VALUES, error);
    if (status) return status;
    memoi_session_put_values(s, 1, values, n_bytes);
    s->has_update_values = 1;
    return status;
}

memo_status memo_session_flush(memo_session* s, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_FLUSH, error);
    if (status || !s->states || !s->states->n_pending) return status;
    return memoi_session_update_all(s, error);
}

/* Updates that are pending are of the step before, whose gradients are not dropped. */
memo_status memo_session_skip_update(memo_session* s, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    status = memoi_session_check_call(s, MEMOI_CALL_SKIP_UPDATE, error);
    if (status || !memoi_session_is_told(s)) return status;
    if (s->states && !s->states->n_pending) memoi_session_abandon_states(s);
    s->is_again = s->has_update_values = 0;
    return memoi_session_take_end(s, 1, error);
}

memo_status memo_session_fill_states(memo_session* s,
                                     void (*fill)(void* user, memo_session* session, int32_t layer),
                                     memo_error* error) {
    void (*update)(void*, memo_session*, int32_t);
    memo_error lost;
    int32_t n_filled = 0;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "fill", fill);
    status = memoi_session_check_call(s, MEMOI_CALL_FILL_STATES, error);
    if (!status && s->states && !*s->lost) status = memo_session_flush(s, error);
    if (status || !s->states) return status;
    update = s->desc.update;
    memoi_session_abandon_states(s);
    s->is_again = s->is_fused = s->has_update_values = 0;
    *s->lost = 0;
    memob_states_take_masks(s->states, NULL);
    s->is_filling = 1;
    if (!s->states->updates) {
        s->states->is_filling = 1;
        s->desc.update = fill;
        status = memoi_session_update_all(s, error);
        s->desc.update = update;
        s->states->is_filling = 0;
        s->is_filling = 0;
        return status;
    }

    /* Fill what lies on the host, when nobody uses it or writes it out.  What lies on the device is
     * then older. */
    memoi_session_forget(s);
    (void)memoi_session_is_ok(s, memob_states_synchronize(s->states, &s->call_error));
    for (int32_t i = 0; i < s->states->snapshot.n_items; i++)
        memob_snapshot_wait(&s->states->snapshot, i);
    if (!s->error.status) memob_states_reset(s->states);
    for (; n_filled < s->states_desc.n_layers && !s->error.status; n_filled++)
        fill(s->desc.user, s, n_filled - 1);
    s->is_filling = 0;
    (void)memoi_session_is_ok(s, memob_states_synchronize(s->states, &s->call_error));
    if (s->error.status && n_filled) {
        (void)memo_error_set(
            &lost, MEMO_STATUS_INVALID_STATE,
            "fill has set up to %d of %d layers; set the states of all layers again", (int)n_filled,
            (int)s->states_desc.n_layers);
        memoi_session_lose_states(s, &lost);
        memob_error_add(&s->error, lost.message);
    }
    return memoi_session_report(s, error);
}

/* Layers are of different steps until all states but gradients have been set.  Pieces of a state
 * add up if each adjoins those before. */
MEMOI void memoi_session_find_whole(memo_session* s, int32_t layer, int32_t state, int64_t begin,
                                    int64_t end) {
    const int32_t n_states = s->desc.n_states;
    int64_t* set = &s->whole[2 * memoi_session_item(s, layer, state)];
    const int adjoins = begin <= set[1] && end >= set[0];
    int32_t n_left = 0;
    set[0] = adjoins ? memob_min(begin, set[0]) : begin;
    set[1] = adjoins ? memob_max(end, set[1]) : end;
    for (int64_t k = 0; k < (int64_t)s->states_desc.n_layers * n_states; k++) {
        const memob_states_layer* of = &s->states->layers[k / n_states];
        const int64_t n_bytes = s->whole[2 * k + 1] - s->whole[2 * k];
        const uint32_t left = of->has & ~(of->lent | s->states->gradients | s->states->fetched);
        n_left += (left >> k % n_states & 1) && n_bytes < s->desc.states[k % n_states].size_bytes;
    }
    if (!n_left) *s->lost = 0;
}

/* Reads bytes of a state, or writes them. */
MEMOI memo_status memoi_session_transfer(memo_session* s, int32_t layer, int32_t state, int reads,
                                         int64_t offset_bytes, void* bytes, int64_t n_bytes,
                                         memo_error* error) {
    const memob_rule rules[] = {
        {s->kept_bytes != NULL, MEMOB_ASLEEP},
        {!s->states, "the session has no states"},
        {s->is_running || s->next_turn,
         "states are read and written between micro-batches, while none is in flight"}};
    const char* const why = MEMOB_FIRST_FAULT(rules);
    memo_status status;
    if (why) return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session: %s", why);

    if (memoi_session_is_over(s) && s->desc.update_may & MEMO_MAY_FUSE)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_%s_state: %s first",
                              reads ? "read" : "write", MEMOI_MAY_BE_UPDATED);
    if (memob_check_integer("memo_session", "layer", layer, -1, s->desc.n_layers, error) ||
        memob_check_integer("memo_session", "state", state, 0, s->desc.n_states - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!reads && s->desc.states[state].uses & MEMO_STATE_GRADIENT)
        return MEMOB_INVALID(error,
                             "memo_session_write_state: state %d is a gradient, which a backward "
                             "sets to zero; write it between begin and end of a backward",
                             (int)state);

    if (reads && s->desc.states[state].uses & MEMO_STATE_GRADIENT && !*s->lost &&
        !memoi_session_is_over(s) && !memoi_session_has_part(s))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_read_state: state `%.32s` is a gradient, which has no "
                              "bytes before the first backward of a step; read it between a "
                              "micro-batch and the update",
                              memob_session_name(s->desc.states[state].name));

    if (!reads && s->desc.states[state].uses & MEMO_STATE_FETCHED)
        return MEMOB_INVALID(error,
                             "memo_session_write_state: state %d is FETCHED: its bytes are what "
                             "desc.fetch gives, each time the same; change them in a new session",
                             (int)state);

    /* Pending updates end before, which know what they leave. */
    if (reads && *s->lost)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE, "memo_session_read_state: %s",
                              s->lost);
    status = *s->lost ? MEMO_STATUS_OK : memo_session_flush(s, error);
    if (!reads && s->checked.states) s->checked.states[memoi_session_item(s, layer + 1, state)] = 0;
    if (!status)
        status = memob_states_transfer(s->states, layer + 1, state, reads, offset_bytes, bytes,
                                       n_bytes, error);
    if (!status && *s->lost)
        memoi_session_find_whole(s, layer + 1, state, offset_bytes, offset_bytes + n_bytes);
    return status;
}

memo_status memo_session_read_state(memo_session* s, int32_t layer, int32_t state,
                                    int64_t offset_bytes, void* bytes, int64_t n_bytes,
                                    memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    if (n_bytes) MEMOB_REFUSE_NULL(error, "bytes", bytes);
    return memoi_session_transfer(s, layer, state, 1, offset_bytes, bytes, n_bytes, error);
}
memo_status memo_session_write_state(memo_session* s, int32_t layer, int32_t state,
                                     int64_t offset_bytes, const void* bytes, int64_t n_bytes,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    return memoi_session_transfer(s, layer, state, 0, offset_bytes, (void*)(uintptr_t)bytes,
                                  n_bytes, error);
}
