#pragma once
#include "plan/session/session.h"
/* --- >>session state ---
 * Knows: the first error of a micro-batch, or of a call that plans or opens; the current shape and
 * its steps; spans, which events of the device time.  Knows nothing of arenas, of what moves when,
 * and of the trainer's functions.
 *
 * 1. A span is of a step and of a kind of span that there are.
 * 2. A micro-batch is timed only while there is room for its spans.
 * 3. The current shape is one of the desc's.
 * 4. A turn has whole layers, and the steps of a plan are those of whole turns. */

/* status: of a call that got s->call_error.  The first error stays. */
MEMOI MEMOB_NOINLINE int memoi_session_is_ok(memo_session* s, memo_status status) {
    if (status && (!s->error.status || s->is_reported)) {
        s->is_reported = 0;
        s->error = s->call_error;
        s->error.status = status;
    }
    return !status;
}

void memo_session_fail(memo_session* s, memo_status status, const char* message) {
    if (!s) return;
    if (message && message[0])
        (void)memo_error_set(&s->call_error, status, "%s", message);
    else
        (void)memo_error_set(&s->call_error, status, "memo_session_fail: %s, without a message",
                             memo_status_name(status));
    (void)memoi_session_is_ok(s, status);
}

/* Forgets the errors that a call has returned.  An error between two micro-batches stays, so that
 * the next one fails with it. */
MEMOI void memoi_session_forget(memo_session* s) {
    if (s->is_reported) memset(&s->error, 0, sizeof s->error);
    s->is_reported = 0;
}

/* Ends a call that returns the session's error. */
MEMOI memo_status memoi_session_report(memo_session* s, memo_error* error) {
    s->is_reported = 1;
    if (s->error.status && error) *error = s->error;
    return s->error.status;
}

/* Makes an error of the session's own. */
#define MEMOI_SESSION_FAIL(s, status, ...)                                                         \
    ((void)memoi_session_is_ok(s, memo_error_set(&(s)->call_error, status, __VA_ARGS__)))

/* status: of a call that got s->call_error, while the session plans or opens.  The first failure
 * stays; what would do harm behind it returns at once. */
MEMOI MEMOB_NOINLINE void memoi_keep(memo_session* s, memo_status status) {
    if (!status || s->failure.status) return;
    s->failure = s->call_error;
    s->failure.status = status;
}

/* Begins a call that plans for an open session. */
MEMOI void memoi_session_begin_call(memo_session* s) {
    s->failure.status = MEMO_STATUS_OK;
    s->all_failed = 0;
}
/* Ends a call that plans or opens a session, with its failure. */
MEMOI memo_status memoi_session_end_call(const memo_session* s, memo_error* error) {
    if (s->failure.status && error) *error = s->failure;
    return s->failure.status;
}

/* Is an argument of memo_session_get_... in 0 to most?  If not, that is the session's error. */
MEMOI MEMOB_NOINLINE int memoi_session_is_in(const memo_session* s, const char* argument,
                                             int64_t value, int64_t most) {
    if (value >= 0 && value <= most && !s->kept_bytes) return 1;
    if (s->kept_bytes)
        MEMOI_SESSION_FAIL((memo_session*)(uintptr_t)s, MEMO_STATUS_INVALID_STATE,
                           "memo_session_get_%s: %s", argument, MEMOB_ASLEEP);
    else
        MEMOI_SESSION_FAIL((memo_session*)(uintptr_t)s, MEMO_STATUS_INVALID_ARGUMENT,
                           "memo_session_get_%s: out of range (%lld); 0 to %lld are valid",
                           argument, (long long)value, (long long)most);
    return 0;
}

/* The caller's values may be gone: a batch has the session's copy of them. */
memo_batch memo_session_get_batch(const memo_session* s) {
    memo_batch batch = MEMO_ZERO(memo_batch);
    if (!s) return batch;
    batch = s->batch;
    batch.values = s->values[s->is_deferred].bytes;
    batch.values_bytes = MEMO_BATCH_VALUES_MAX;
    batch.states = s->states ? s->states->masks : NULL;
    return batch;
}

/* Values of the micro-batch (0), or of updates (1): maybe copies of memo_session_get_batch. */
MEMOI void memoi_session_put_values(memo_session* s, int of, const void* values, int64_t n_bytes) {
    char* bytes = s->values[of].bytes;
    if (n_bytes) memmove(bytes, values, (size_t)n_bytes);
    memset(bytes + n_bytes, 0, sizeof s->values[of].bytes - (size_t)n_bytes);
    if (s->desc.is_checked) memob_poison(bytes + n_bytes, MEMO_BATCH_VALUES_MAX - n_bytes);
}

/* Makes a shape the current one. */
MEMOI void memoi_session_use_shape(memo_session* s, int32_t shape) {
    MEMO_ASSERT(shape >= 0 && shape < s->desc.n_shapes); /* 3 */
    s->part = &s->parts[shape];
    s->batch.shape = shape;
    s->steps = &s->part->plan->swap;
    s->n_steps = s->steps->n_layers;
    s->n_slices = s->steps->n_slices;
    s->n_of_batch = memob_swap_batch_slices(s->steps);
    s->n_turn_steps = s->n_steps / (s->steps->order ? s->steps->n_places : 1);
    s->first_step = s->first_layer = 0;
    MEMO_ASSERT(s->n_steps % s->n_turn_steps == 0 && s->n_turn_steps % s->n_slices == 0); /* 4 */
}

/* 1: a turn of an order that is of this pass. */
MEMOI int memoi_session_is_turn(const memo_session* s, memo_pass pass) {
    return s->steps->order && s->batch.turn.pass == pass;
}
MEMOI int32_t memoi_session_turn_layers(const memo_session* s) {
    return s->n_turn_steps / s->n_slices;
}
/* Steps of the turn that have ended; without an order, of both passes. */
MEMOI int32_t memoi_session_n_ended(const memo_session* s) {
    return s->part->step->n_ended - s->next_turn * s->n_turn_steps;
}
/* Steps of the turn, or of the micro-batch. */
MEMOI int32_t memoi_session_n_visits(const memo_session* s) {
    return s->n_turn_steps * (s->steps->order || s->batch.is_forward_only ? 1 : 2);
}
/* The open step, of two the older; -1: none. */
MEMOI int32_t memoi_session_open(const memo_session* s) {
    const memob_step* step = s->part->step;
    return s->is_running && step->n_ended < step->n_begun
               ? s->part->placement.visits[step->n_ended].layer
               : -1;
}
/* 1: the forward is not over. */
MEMOI int memoi_session_is_forward(const memo_session* s) {
    return memoi_session_is_turn(s, MEMO_PASS_FORWARD) ||
           (!s->steps->order && memoi_session_n_ended(s) < s->n_turn_steps);
}

/* Rows of a step in this micro-batch. */
MEMOI int64_t memoi_session_rows(const memo_session* s, int32_t step) {
    return memob_swap_step_rows(&s->part->placement, step, s->batch.n_rows);
}

/* Where the rows of a tensor of a step lie in the engine's memory. */
MEMOI const memob_swap_place* memoi_session_place(const memo_session* s, int32_t step, int32_t t) {
    return memob_swap_place_of(&s->part->placement, step, t);
}

/* The layer of a step of this turn, or of a step with its number in another place. */
MEMOI int32_t memob_session_layer(const memo_session* s, int32_t step) {
    return s->first_layer + step % s->n_turn_steps / s->n_slices;
}
/* The first step of a layer of this turn. */
MEMOI int32_t memoi_session_step(const memo_session* s, int32_t layer) {
    return s->first_step + (layer - s->first_layer) * s->n_slices;
}
/* 1: this turn computes the layer. */
MEMOI int memoi_session_has_layer(const memo_session* s, int32_t layer) {
    return layer >= s->first_layer && layer - s->first_layer < memoi_session_turn_layers(s);
}

/* Micro-batches of a call; forwards begin with the last of them, backwards with the first. */
MEMOI int32_t memoi_session_n_group(const memo_session* s) { return s->n_slices / s->n_of_batch; }

/* The micro-batch of the group that the open layer computes; the first if no layer is open. */
MEMOI int32_t memoi_session_micro_batch(const memo_session* s) {
    const int32_t open = memoi_session_open(s);
    const int32_t n_before = open >= 0 ? open % s->n_slices : s->n_slices - 1;
    return memoi_session_n_group(s) - 1 - n_before / s->n_of_batch;
}

/* All tensors with late rows have as many rows in a step. */
MEMOI int64_t memoi_session_n_routed(const memo_session* s, int32_t step) {
    for (int32_t t = 0; t < s->desc.n_tensors && s->steps->routed_rows_layer; t++)
        if (memob_tensor_is_routed(s->steps, t)) return memoi_session_place(s, step, t)->n_routed;
    return 0;
}

MEMOI memo_slice memoi_session_slice(const memo_session* s) {
    const int32_t open = memoi_session_open(s);
    const int32_t of_batch = open >= 0 ? open % s->n_of_batch : 0;
    memo_slice slice;
    slice.begin = memob_min(of_batch * s->steps->n_rows, s->batch.n_rows);
    slice.end = slice.begin + memoi_session_rows(s, of_batch);
    slice.n_slices = s->n_slices;
    slice.micro_batch = memoi_session_micro_batch(s);
    slice.n_routed = open >= 0 ? memoi_session_n_routed(s, open) : 0;
    return slice;
}
memo_slice memo_session_get_slice(const memo_session* s) {
    return s ? memoi_session_slice(s) : MEMO_ZERO(memo_slice);
}

/* Does the tensor need its own call of recompute? */
MEMOI int memoi_session_recomputes(const memo_session* s, int32_t step, int32_t t) {
    return s->steps->tensors[t].away != MEMO_WITH &&
           memob_is_recomputed(memob_item_away(s->steps, t)) && memob_layer_has(s->steps, step, t);
}

/* 1: the backward recomputes the tensor itself, and `recompute` does so only to be timed. */
MEMOI int memoi_session_is_by_backward(const memo_session* s, int32_t t) {
    const memo_item* tensors = s->steps->tensors;
    return tensors[memob_item_leader(tensors, t)].is & MEMO_BY_BACKWARD;
}

/* The times of a span; NULL: it is not timed. */
MEMOI MEMOB_NOINLINE double* memoi_session_span(const memo_session* s, int32_t step, int32_t what) {
    const int32_t t = what - MEMOI_SPAN_TENSOR;
    if (!s->spans_s || (what == MEMOI_SPAN_BETWEEN && step != s->n_steps - 1)) return NULL;
    if (t >= 0 && t < MEMO_PROFILE_TENSORS_MAX && !memoi_session_recomputes(s, step, t))
        return NULL;
    MEMO_ASSERT(step >= 0 && step < s->n_steps && what < MEMOI_SPANS_MAX); /* 1 */
    return s->spans_s + ((int64_t)step * MEMOI_SPANS_MAX + what) * MEMOI_SESSION_REPETITIONS;
}

/* The span of the update of an engine's layer, and its step. */
MEMOI int32_t memoi_session_update_span(const memo_session* s, int32_t layer, int32_t* step) {
    *step = 0;
    if (layer == 0) return MEMOI_SPAN_UPDATE_FIRST;
    if (layer > s->desc.n_layers) return MEMOI_SPAN_UPDATE_LAST;
    *step = (layer - 1) * s->n_slices;
    return MEMOI_SPAN_UPDATE;
}

/* A micro-batch of fewer rows than its shape counts in proportion; updates take the same time. */
MEMOI double memoi_session_scale(const memo_session* s, int32_t step, int32_t what) {
    const double rows = (double)memoi_session_rows(s, step);
    if (what == MEMOI_SPAN_UPDATE || what >= MEMOI_SPAN_UPDATE_FIRST) return 1;
    if (what == MEMOI_SPAN_BETWEEN) return (double)s->steps->layer_rows / (double)s->batch.n_rows;
    return (double)memob_swap_step_rows(&s->part->placement, step, s->steps->layer_rows) / rows;
}

/* Waits for the span that a timer measured last, and adds it. */
MEMOI memo_status memoi_session_read_timer(memo_session* s, memoi_timer* timer, memo_error* error) {
    memo_status status;
    double took_s = 0;
    if (!timer->span_s) return MEMO_STATUS_OK;
    status = memo_event_synchronize(s->device, timer->events[1], error);
    if (!status)
        status = memo_event_elapsed(s->device, timer->events[0], timer->events[1], &took_s, error);
    *timer->span_s += took_s * timer->scale;
    timer->span_s = NULL;
    return status;
}

/* Waits for all spans that were measured. */
MEMOI memo_status memoi_session_read_timers(memo_session* s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < s->n_timers && !status; k++)
        status = memoi_session_read_timer(s, &s->timers[k], error);
    return status;
}

/* Begins or ends a span, or a part of one: parts add up.  The host waits if there are more spans
 * than timers. */
MEMOI void memoi_session_mark(memo_session* s, int32_t step, int32_t what, int is_end) {
    double* span_s = memoi_session_span(s, step, what);
    memoi_timer* timer;
    memo_status status = MEMO_STATUS_OK;
    if (!span_s || s->error.status) return;
    MEMO_ASSERT(s->repetition < MEMOI_SESSION_REPETITIONS); /* 2 */
    span_s += s->repetition;
    if (s->desc.computes_on_host) {
        *span_s += (is_end ? memob_now_s() : -memob_now_s()) * memoi_session_scale(s, step, what);
        return;
    }
    if (!is_end) {
        s->open_timers[what] = s->next_timer;
        s->next_timer = (s->next_timer + 1) % s->n_timers;
    }
    timer = &s->timers[s->open_timers[what]];
    if (!is_end) status = memoi_session_read_timer(s, timer, &s->call_error);
    if (!status)
        status = memo_event_record(s->device, timer->events[is_end], s->desc.compute_stream,
                                   &s->call_error);
    if (is_end) {
        timer->span_s = span_s;
        timer->scale = memoi_session_scale(s, step, what);
    }
    (void)memoi_session_is_ok(s, status);
}

/* --- the first training steps are timed --- */

/* Micro-batches of a planned step, or groups of them, or all of an order. */
MEMOI int32_t memob_session_n_rounds(const memo_session* s) {
    return (int32_t)memob_max(s->desc.micro_batches / memoi_session_n_group(s), 1);
}

/* 1: calls of the trainer end steps: memo_session_update or memo_session_skip_update, so that ranks
 * meet there, however many micro-batches each has.  0: the session counts micro-batches. */
MEMOI int memoi_session_is_told(const memo_session* s) {
    return s->states || s->desc.agree != NULL;
}

/* 1: the session plans again behind the step that ends. */
MEMOI int memoi_session_is_due(const memo_session* s) {
    return s->timing.plan && s->timing.n_ended + 1 >= s->timing.due;
}

/* A step has ended, also if it has failed: ranks count alike. */
MEMOI void memoi_session_end_step(memo_session* s, int may_plan) {
    const int is_due = memoi_session_is_due(s);
    s->timing.n_ended++;
    if (is_due && may_plan) s->timing.plan(s);
}

/* A micro-batch is about to begin.  0: the session is lost. */
MEMOI int memoi_session_time_begin(memo_session* s) {
    memoi_timing* t = &s->timing;
    if (t->plan && !s->batch.is_forward_only && !s->next_turn) {
        const int begins = t->n_batches && t->n_batches % memob_session_n_rounds(s) == 0;
        if (begins && !memoi_session_is_told(s)) memoi_session_end_step(s, 1);
        if (++t->n_batches == 64 && !t->n_ended && memoi_session_is_told(s))
            memob_session_log(s, "session: it plans by the times of steps when it knows their end: "
                                 "call memo_session_update behind each step, on all ranks");
    }
    if (t->is_lost)
        MEMOI_SESSION_FAIL(s, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                           "memo_session_begin: memory was lost while the session planned again");
    return !t->is_lost;
}

/* The events of timers, before the first span that is timed. */
MEMOI memo_status memoi_session_create_timers(memo_session* s) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < 2 * s->n_timers && !status; k++) {
        memo_event* event = &s->timers[k / 2].events[k % 2];
        if (!*event) status = memo_event_create(s->device, event, NULL);
    }
    return status;
}
MEMOI void memoi_session_destroy_timers(memo_session* s) {
    for (int32_t k = 0; k < 2 * s->n_timers; k++)
        if (s->timers[k / 2].events[k % 2])
            memo_event_destroy(s->device, s->timers[k / 2].events[k % 2], NULL);
    s->timers = NULL; /* of s->arrays */
    s->n_timers = s->next_timer = 0;
}

/* Times this micro-batch, behind the first step, if it has half of its shape's rows or more, and
 * all slices. */
MEMOI void memoi_session_time_batch_begin(memo_session* s) {
    memoi_timing* t = &s->timing;
    memoi_session_part* part = s->part;
    const int is_whole = !s->batch.is_forward_only && 2 * s->batch.n_rows >= s->steps->layer_rows &&
                         s->batch.n_rows > (s->n_of_batch - 1) * s->steps->n_rows;
    if (!t->plan || s->next_turn) return;
    for (int32_t k = 0; k < s->n_timers && t->is_open; k++) /* it was abandoned */
        s->timers[k].span_s = NULL;
    (void)memoi_session_is_ok(s, memoi_session_read_timers(s, &s->call_error));
    s->spans_s = NULL;
    t->is_open = is_whole && t->n_ended && part->n_timed < MEMOI_SESSION_REPETITIONS &&
                 !memoi_session_create_timers(s);
    if (!t->is_open) return;
    s->spans_s = part->spans_s;
    s->repetition = part->n_timed;
    for (int64_t k = 0; k < (int64_t)s->n_steps * MEMOI_SPANS_MAX; k++)
        part->spans_s[k * MEMOI_SESSION_REPETITIONS + s->repetition] = 0;
}

/* It counts if it has ended without an error.  The update behind it is timed with it. */
MEMOI void memoi_session_time_batch_end(memo_session* s) {
    const int is_over = s->part->step->n_ended == s->part->placement.n_visits;
    if (!s->timing.is_open || s->error.status || !is_over) return;
    s->timing.is_open = 0;
    s->part->n_timed++;
}
