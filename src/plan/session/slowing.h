#pragma once
#include "memo/engine.h"
#include "plan/profile.h"
#include "plan/session/state.h"
/* --- >>session slowing ---
 * Knows: how much copies slow computation, found in the timed steps.  Knows nothing of plans.
 *
 * Each layer is timed alone: it begins when no copy is under way.  From the second micro-batch on
 * two of three layers run beside copies of known bytes, one way, whose memory no one else uses.
 * What a layer takes longer than alone, over the bytes, is the slowdown; the median of the layers
 * counts, if all but an eighth are slower, for else it is noise.  Then spans beside copies lose
 * what the copies cost, so that all are times alone.
 *
 * 1. Copies are over when their layer ends, for all that the compute stream does then. */

/* At most, beside a pass of a layer: more would fill a stream's queue before the layer is in its
 * own. */
#define MEMOI_SLOWING_COPIES 256
#define MEMOI_SLOWING_BYTES  ((int64_t)128 << 20) /* of a copy, at most */
#define MEMOI_SLOWING_SHARE  0.8                  /* of a pass, that copies take */
#define MEMOI_SLOWING_MOST   0.5                  /* of the speed of computation, that they cost */

/* An event, two streams and memory for a copy: of the budgets, beside the first plan.  Without room
 * nothing is measured.  host_bytes: of rows. */
MEMOI void memoi_slowing_create(memo_session* s, int64_t device_bytes, int64_t host_bytes) {
    memoi_slowing* slowing = &s->timing.slowing;
    memob_engine* e = &slowing->engine;
    const int64_t rows_bytes = memob_align_up(host_bytes, MEMOB_DEVICE_ALIGNMENT);
    const int64_t room_bytes = s->desc.host_bytes - rows_bytes - s->states_sizes.host_bytes;
    int64_t n_bytes;
    slowing->at = memob_align_up(device_bytes, MEMOB_DEVICE_ALIGNMENT);
    n_bytes = memob_min(MEMOI_SLOWING_BYTES, s->memory_bytes - slowing->at);
    if (s->desc.host_bytes || s->desc.host_memory) n_bytes = memob_min(n_bytes, room_bytes);
    n_bytes = n_bytes / MEMOB_DEVICE_ALIGNMENT * MEMOB_DEVICE_ALIGNMENT;
    if (n_bytes <= 0 || s->desc.computes_on_host) return;

    memob_engine_begin(e, s->device, s->desc.compute_stream, 0, (char*)s->device_memory,
                       s->desc.host_memory ? (char*)s->host_memory + rows_bytes : NULL);
    e->events = &slowing->event;
    e->n_events = 1;
    if (memob_engine_acquire(e, "memo_session_desc", 0, n_bytes, NULL) ||
        memob_engine_take_streams(e, MEMOB_STREAM_TO_DEVICE, NULL) ||
        memo_event_create_untimed(s->device, &slowing->event, NULL))
        return;
    slowing->n_bytes = n_bytes;
}

MEMOI void memoi_slowing_destroy(memo_session* s) {
    memob_engine_release(&s->timing.slowing.engine);
    memset(&s->timing.slowing, 0, sizeof s->timing.slowing);
}

/* One stream waits for what another was given. */
MEMOI void memoi_slowing_follow(memo_session* s, memo_stream stream, memo_stream other) {
    const memo_event event = s->timing.slowing.event;
    if (!memoi_session_is_ok(s, memo_event_record(s->device, event, other, &s->call_error))) return;
    (void)memoi_session_is_ok(s, memo_event_wait(s->device, event, stream, &s->call_error));
}

/* 1: this micro-batch is timed, and there is memory for copies. */
MEMOI int memoi_slowing_is_on(const memo_session* s) {
    return s->spans_s && s->timing.slowing.n_bytes && !s->error.status;
}

/* What is computed next runs beside no copy. */
MEMOI void memoi_slowing_separate(memo_session* s) {
    const memob_engine* e;
    if (!memoi_slowing_is_on(s)) return;
    e = &s->part->step->desc.sink->engine;
    for (int32_t k = MEMOB_STREAM_TO_HOST; k <= MEMOB_STREAM_TO_DEVICE && !s->error.status; k++)
        if (e->streams[k]) memoi_slowing_follow(s, s->desc.compute_stream, e->streams[k]);
}

/* A pass of a layer is about to be computed.  Beside copies, if it is a turn of such; they end
 * before it, if it takes as long as the first time.  A place of an order has several visits, of
 * which each would need its time. */
MEMOI void memoi_slowing_begin(memo_session* s, int32_t step, int is_backward) {
    const int32_t turn = (step + s->repetition) % 3, way = turn - 1; /* turn 0: no copies */
    const int32_t what = is_backward ? MEMOI_SPAN_BACKWARD : MEMOI_SPAN_FORWARD;
    memoi_slowing* slowing = &s->timing.slowing;
    const memo_profile_transfer* copy;
    const double* span_s;
    memob_engine* e = &slowing->engine;
    double copy_s, n_bytes, scale;
    if (!memoi_slowing_is_on(s) || !s->repetition || way < 0 || s->steps->order) return;

    /* So many bytes. */
    copy = &s->timing.profiles->copies[1];
    span_s = memoi_session_span(s, step, what);
    scale = memoi_session_scale(s, step, what);
    copy_s = way ? copy->back_s : copy->out_s;
    if (copy_s <= 0) return;
    n_bytes = MEMOI_SLOWING_SHARE * span_s[0] / scale * ((double)copy->size_bytes / copy_s);
    n_bytes = fmin(n_bytes, MEMOI_SLOWING_COPIES * (double)slowing->n_bytes);
    if (n_bytes > (double)slowing->n_bytes)
        n_bytes = floor(n_bytes / (double)slowing->n_bytes) * (double)slowing->n_bytes;
    if (!(n_bytes >= MEMOB_DEVICE_ALIGNMENT)) return;

    /* They begin with the layer. */
    memoi_slowing_follow(s, e->streams[MEMOB_STREAM_TO_HOST + way], s->desc.compute_stream);
    memob_engine_call(e, &s->call_error);
    e->memory.device = (char*)s->device_memory; /* which may have slept */
    for (double left = n_bytes; left >= 1 && !s->error.status; left -= (double)slowing->n_bytes)
        memob_engine_copy(e, &e->memory, way, slowing->at, 0,
                          (int64_t)fmin(left, (double)slowing->n_bytes));
    (void)memoi_session_is_ok(s, e->status);
    slowing->is_open = 1 + way;
    memoi_session_span(s, step, MEMOI_SPAN_BESIDE + is_backward)[s->repetition] =
        (way ? -1 : 1) * floor(n_bytes) * scale;
}

/* The pass has been computed, or has failed. */
MEMOI void memoi_slowing_end(memo_session* s) {
    memoi_slowing* slowing = &s->timing.slowing;
    if (!slowing->is_open) return;
    memoi_slowing_follow(s, s->desc.compute_stream,
                         slowing->engine.streams[MEMOB_STREAM_TO_HOST + slowing->is_open - 1]);
    slowing->is_open = 0; /* 1 */
}

/* Seconds of a byte alone. */
MEMOI double memoi_slowing_byte_s(const memo_session* s, int32_t way) {
    const memo_profile_transfer* copy = &s->timing.profiles->copies[1];
    return (way ? copy->back_s : copy->out_s) / (double)memob_max(copy->size_bytes, 1);
}

/* Seconds by which bytes one way made a step longer, summed, and the bytes.  A pass that took less
 * than half as long as its copies does not count: its layer was skipped, or had few rows.  To leave
 * out any that took less would leave those that noise made long. */
MEMOI double memoi_slowing_of_step(const memo_session* s, int32_t step, int32_t way, int32_t n,
                                   double* n_bytes) {
    const double byte_s = memoi_slowing_byte_s(s, way);
    double slower_s = 0;
    *n_bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        const double* beside = memoi_session_span(s, step, MEMOI_SPAN_BESIDE + pass);
        const double* span_s =
            memoi_session_span(s, step, pass ? MEMOI_SPAN_BACKWARD : MEMOI_SPAN_FORWARD);
        double alone_s[MEMOI_SESSION_REPETITIONS], median_s;
        int32_t n_alone = 0;
        for (int32_t i = 0; i < n; i++)
            if (beside[i] == 0) alone_s[n_alone++] = span_s[i];
        median_s = memoi_profile_median(alone_s, n_alone);
        for (int32_t i = 0; i < n; i++) {
            const double most = span_s[i] / byte_s; /* that may have been copied */
            if ((way ? -beside[i] : beside[i]) <= 0 || fabs(beside[i]) > 2 * most) continue;
            slower_s += span_s[i] - median_s;
            *n_bytes += fmin(fabs(beside[i]), most);
        }
    }
    return slower_s;
}

/* The slowdown of the current shape, from its spans of n micro-batches, which become those of
 * layers alone.  A way that was not measured is as the other. */
MEMOI void memoi_slowing_read(const memo_session* s, int32_t n, memo_profile* profile) {
    double* slowdown = profile->slowdown_s_per_byte;
    int32_t n_steps[2] = {0, 0};
    slowdown[0] = slowdown[1] = 0;
    if (!s->timing.slowing.n_bytes) return;
    for (int32_t way = 0; way < 2; way++) {
        for (int32_t step = 0; step < s->n_steps; step++) {
            double n_bytes;
            const double slower_s = memoi_slowing_of_step(s, step, way, n, &n_bytes);
            if (n_bytes > 0) s->layers_s[n_steps[way]++] = slower_s / n_bytes;
        }
        if (!n_steps[way]) continue;
        slowdown[way] = fmin(memoi_profile_median(s->layers_s, n_steps[way]), /* sorts them */
                             MEMOI_SLOWING_MOST * memoi_slowing_byte_s(s, way));
        if (s->layers_s[n_steps[way] / 8] <= 0) slowdown[way] = 0;
    }
    for (int32_t way = 0; way < 2; way++)
        if (!n_steps[way]) slowdown[way] = slowdown[!way];

    for (int32_t step = 0; step < s->n_steps; step++)
        for (int pass = 0; pass < 2; pass++) {
            const double* beside = memoi_session_span(s, step, MEMOI_SPAN_BESIDE + pass);
            double* span_s =
                memoi_session_span(s, step, pass ? MEMOI_SPAN_BACKWARD : MEMOI_SPAN_FORWARD);
            for (int32_t i = 0; i < n; i++)
                span_s[i] = fmax(0, span_s[i] - slowdown[beside[i] < 0] * fabs(beside[i]));
        }
}
