#pragma once
#include "plan/profile.h"
#include "plan/session/slices.h"
#include "plan/session/open.h"
/* --- >>session measure ---
 * Knows: micro-batches that run, and their spans.  Knows nothing of plans. */

/* Rows of a tensor that a step had; the mean if they are routed. */
MEMOI double memoi_session_mean_rows(const memo_session* s, int32_t t) {
    double n_rows = 0, n = 0;
    if (!memob_tensor_is_routed(s->steps, t)) return (double)s->steps->n_rows;
    for (int32_t step = 0; step < s->n_steps; step++) {
        n += memob_layer_has(s->steps, step, t);
        n_rows += (double)memoi_session_place(s, step, t)->n_routed;
    }
    return fmax(n_rows / fmax(n, 1), 1);
}

/* The line through the times of slices by least squares: the time of a slice in the middle, and the
 * growth towards the end.  The median of each slice over layers of a kind counts, so that a single
 * slow layer does not.  The last layer's backward may hold the loss of the slice. */
MEMOI void memoi_session_fit(const memo_session* s, int32_t kind, int32_t what, double* middle_s,
                             double* growth_s) {
    const int32_t n_slices = s->n_slices, last = s->n_steps / n_slices - 1;
    const int has_loss = what == MEMO_PASS_BACKWARD && n_slices > 1 && last > 0;
    double n = 0, sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0, spread, slope_s = 0;

    /* Least squares, a line through the medians of the slices. */
    for (int32_t slice = 0; slice < n_slices; slice++) {
        const double rows = (double)memoi_session_rows(s, slice); /* the last may be short */
        const double x =
            (2.0 * slice * (double)s->steps->n_rows + rows) / (double)s->steps->layer_rows - 1;
        double y;
        int32_t n_times = 0;
        for (int32_t layer = 0; layer <= last - has_loss; layer++) {
            const int32_t step = layer * n_slices + slice;
            const double* span_s = memoi_session_span(s, step, what);
            if (span_s && memob_layer_kind(s->steps, step) == kind)
                s->layers_s[n_times++] = *span_s;
        }
        if (!n_times) continue;
        y = memoi_profile_median(s->layers_s, n_times) * ((double)s->steps->n_rows / rows);
        n += 1;
        sum_x += x;
        sum_y += y;
        sum_xx += x * x;
        sum_xy += x * y;
    }

    spread = n * sum_xx - sum_x * sum_x;
    if (spread > 0) slope_s = fmax((n * sum_xy - sum_x * sum_y) / spread, 0);
    *middle_s = n > 0 ? (sum_y - slope_s * sum_x) / n : 0;
    *growth_s = fmin(slope_s, *middle_s);
}

/* The times of the current shape, from its spans.  All times are of the buffers as declared. */
MEMOI void memoi_session_read_times(const memo_session* s, memo_profile* times) {
    static const memo_pass passes[] = {MEMO_PASS_FORWARD, MEMO_PASS_BACKWARD, MEMO_PASS_WEIGHTS};
    double none_s[MEMO_PROFILE_KINDS_MAX];
    double* const of_pass_s[] = {times->forward_s, times->backward_s, times->weights_s};
    double* const growths_s[] = {times->forward_growth_s, times->backward_growth_s, none_s};
    double rest_s = *memoi_session_span(s, s->n_steps - 1, MEMO_PASS_BETWEEN);
    const int waits = s->timing.plan && s->steps->order; /* for other stages, in some layers */
    for (int32_t k = 0; k < times->n_kinds; k++) {
        for (int32_t t = 0; t < s->desc.n_tensors; t++) { /* with another one: nothing; never: -1 */
            double *row_s = &times->tensors[t].recompute_s_per_row[k],
                   *growth_s = &times->tensors[t].recompute_growth_s_per_row[k];
            if (!memoi_rule_recomputes(memob_tensor_rule(s->steps->tensors, t))) continue;
            memoi_session_fit(s, k, MEMOI_SPAN_TENSOR + t, row_s, growth_s);
            *row_s /= memoi_session_mean_rows(s, t);
            *growth_s /= memoi_session_mean_rows(s, t);
        }
    }

    /* What layers take beyond the times of their kinds: embeddings of the first layer, losses in
     * the last one's backward.  The times of a profile then add up to the micro-batch. */
    for (int i = 0; i < 3; i++) {
        for (int32_t k = 0; k < times->n_kinds; k++)
            memoi_session_fit(s, k, (int32_t)passes[i], &of_pass_s[i][k], &growths_s[i][k]);
        for (int32_t step = 0; step < s->n_steps && !waits; step++) {
            const int32_t k = memob_layer_kind(s->steps, step);
            rest_s += *memoi_session_span(s, step, (int32_t)passes[i]) -
                      memob_swap_slice_s(s->steps, step, of_pass_s[i][k], growths_s[i][k]);
        }
        for (int32_t k = 0; k < times->n_kinds; k++)
            of_pass_s[i][k] = fmax(of_pass_s[i][k] - memoi_session_slower_s(s, passes[i], k), 0);
    }
    rest_s = fmax(rest_s, 0) - memoi_session_slower_s(s, MEMO_PASS_BETWEEN, 0);
    times->between_s = fmax(rest_s, 0);
}

/* Measures copies and the file within the budgets.  Larger copies measure the rate better, but
 * their buffers must fit beside the trainer's. */
MEMOI memo_status memoi_session_measure_copies(memo_session* s, memo_profile* profile,
                                               memo_error* error) {
    const memo_session_desc* desc = &s->desc;
    const int has_file = /* and room to time it */
        desc->spill_directory && desc->host_bytes >= 2 * MEMOB_SPILL_ALIGNMENT;
    int64_t n_bytes = (int64_t)32 << 20, needed_bytes;
    memo_status status;
    if (desc->device_bytes) n_bytes = memob_min(n_bytes, desc->device_bytes / 4);
    if (desc->host_bytes) n_bytes = memob_min(n_bytes, desc->host_bytes / 4);
    n_bytes = memob_max(n_bytes, 64);
    memoi_session_log(s, "session: measuring copies up to %lld bytes", (long long)n_bytes);
    needed_bytes = 2 * memob_align_up(n_bytes, has_file ? MEMOB_SPILL_ALIGNMENT : 1); /* of each */
    status = memoi_profile_measure(
        s->device, n_bytes, has_file ? desc->spill_directory : NULL, desc->spill_bytes_per_s,
        needed_bytes <= desc->device_bytes ? desc->device_memory : NULL,
        needed_bytes <= desc->host_bytes ? desc->host_memory : NULL, profile, error);
    return memoi_session_verdict(desc, status, error);
}

/* Of the forward's or the backward's spans of all steps: the first times, or the second. */
MEMOI double memoi_session_sum_spans(const memo_session* s, int is_backward, int which) {
    double sum_s = 0;
    for (int32_t step = 0; step < s->n_steps; step++)
        sum_s += memoi_session_span(s, step,
                                    is_backward ? MEMO_PASS_BACKWARD : MEMO_PASS_FORWARD)[which];
    return sum_s;
}

/* Takes what copies beside the micro-batches need.  If there is no memory, nothing is copied.  The
 * copies of a step take 0.7 of an average step of the first micro-batch.  Copies of few bytes would
 * show what the start of a copy costs. */
MEMOI void memoi_session_begin_beside(memo_session* s, const memo_profile* profile) {
    const memo_profile_transfer* copy = &profile->copies[1];
    const double copies_s[] = {copy->out_s, copy->back_s};
    memoi_beside* b = &s->beside;
    memob_engine* e = &b->engine;
    double steps_bytes[2], n_bytes = 16 << 20, host_bytes = 64 << 20;
    int64_t device_end = 0, host_end = 0; /* of the session's memory */
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        device_end = memob_max(device_end, plan->device_bytes);
        host_end = memob_max(host_end, plan->host_bytes);
    }
    device_end = memob_align_up(device_end, MEMOB_DEVICE_ALIGNMENT);
    host_end = memob_align_up(host_end, MEMOB_DEVICE_ALIGNMENT);
    if (s->desc.device_bytes) n_bytes = fmin(n_bytes, (double)(s->desc.device_bytes - device_end));
    if (s->desc.host_bytes) host_bytes = fmin(host_bytes, (double)(s->desc.host_bytes - host_end));
    n_bytes = fmin(n_bytes, host_bytes) / 2; /* each direction has its own, as they run at once */

    for (int32_t pass = 0; pass < 2; pass++) {
        const double sum_s = memoi_session_sum_spans(s, pass, 0);
        if (copies_s[pass] * 1e14 < (double)copy->size_bytes) return; /* the clock sees no copies */
        steps_bytes[pass] = 0.7 * sum_s / s->n_steps / copies_s[pass] * (double)copy->size_bytes;
        n_bytes = fmin(n_bytes, steps_bytes[pass]);
    }
    if (n_bytes < MEMOI_PROFILE_SMALL_BYTES) return;
    b->size_bytes = (int64_t)n_bytes;
    b->n_places = (int64_t)host_bytes / (2 * b->size_bytes);
    for (int32_t pass = 0; pass < 2; pass++)
        b->n_copies[pass] = (int32_t)fmin(steps_bytes[pass] / (double)b->size_bytes, 1000);

    memob_engine_begin(e, s->device, s->desc.compute_stream, s->desc.computes_on_host);
    e->events = &b->begun;
    e->n_events = 1;
    if (s->desc.device_memory) e->device_memory = (char*)s->desc.device_memory + device_end;
    if (s->desc.host_memory) e->host_memory = (char*)s->desc.host_memory + host_end;
    if (memob_engine_acquire(e, "", 2 * b->size_bytes, 2 * b->n_places * b->size_bytes, NULL, 2,
                             NULL))
        b->size_bytes = 0;
    else /* the system gives it now */
        memset(e->host_memory, 0, (size_t)(2 * b->n_places * b->size_bytes));
}

/* The median of every times_s[first], times_s[first + stride], up to n times. */
MEMOI double memoi_session_median(const double* times_s, int32_t first, int32_t stride, int32_t n) {
    double chosen_s[MEMOI_SESSION_REPETITIONS];
    int32_t n_chosen = 0;
    for (int32_t i = first; i < n; i += stride) chosen_s[n_chosen++] = times_s[i];
    return memoi_profile_median(chosen_s, n_chosen);
}

/* Gives each span two medians of its times in n micro-batches: in micro-batches without copies, and
 * in every second micro-batch, which recomputes half of the rows beside copies.  If no copies ran,
 * layers count in all micro-batches.  Layers that are late now and then make the median micro-batch
 * longer than the sum of the layers' medians.  The medians grow in this ratio. */
MEMOI void memoi_session_take_medians(const memo_session* s, int32_t n) {
    const int64_t n_spans = (int64_t)s->n_steps * MEMOI_SPANS_MAX;
    const int32_t layer_stride = s->beside.size_bytes ? 2 : 1;
    double sums_s[MEMOI_SESSION_REPETITIONS] = {0}, medians_s[2] = {0, 0}, ratios[2];
    for (int64_t k = 0; k < n_spans; k++) {
        double *span_s = s->spans_s + k * MEMOI_SESSION_REPETITIONS, of_span_s[2];
        const int is_layer = memoi_pass_has_layers(k % MEMOI_SPANS_MAX);
        for (int32_t i = 0; i < n && is_layer; i++) sums_s[i] += span_s[i];
        for (int32_t i = 0; i < 2; i++) {
            const int32_t stride = is_layer ? layer_stride : 2;
            of_span_s[i] = memoi_session_median(span_s, i % stride, stride, n);
            if (is_layer) medians_s[i] += of_span_s[i];
        }
        memcpy(span_s, of_span_s, sizeof of_span_s);
    }

    for (int32_t i = 0; i < 2; i++) {
        const double sum_s = memoi_session_median(sums_s, i % layer_stride, layer_stride, n);
        ratios[i] = medians_s[i] > 0 ? sum_s / medians_s[i] : 1;
    }
    for (int64_t k = 0; k < n_spans; k++)
        for (int32_t i = 0; i < 2 && memoi_pass_has_layers(k % MEMOI_SPANS_MAX); i++)
            s->spans_s[k * MEMOI_SESSION_REPETITIONS + i] *= ratios[i];
}

/* Runs a micro-batch of the current shape, and an update if the micro-batch ends the step.  Reads
 * the spans. */
MEMOI memo_status memoi_session_time_batch(memo_session* s, int32_t repetition, int more_follow,
                                           memo_error* error) {
    const int64_t n_spans = (int64_t)s->n_steps * MEMOI_SPANS_MAX;
    memo_status status;
    s->repetition = repetition;
    for (int64_t k = 0; k < n_spans; k++)
        s->spans_s[k * MEMOI_SESSION_REPETITIONS + repetition] = 0;
    status = memoi_session_run_all(s, s->batch.shape, more_follow, error);
    if (!status && !more_follow) status = memo_session_update(s, error);
    if (!status && !s->desc.computes_on_host)
        status = memo_stream_synchronize(s->device, s->desc.compute_stream, error);
    for (int32_t k = 0; k < 2 * MEMOI_SPANS_MAX && !status; k++)
        status = memoi_session_read_timer(s, &s->timers[k], error);
    return status;
}

/* Leaves out of the backward what it has recomputed itself, which is also timed alone. */
MEMOI void memoi_session_leave_out(const memo_session* s) {
    for (int32_t step = 0; step < s->n_steps; step++) {
        double* backward_s = memoi_session_span(s, step, MEMO_PASS_BACKWARD);
        for (int32_t t = 0; t < s->desc.n_tensors; t++) {
            const double* span_s = memoi_session_span(s, step, MEMOI_SPAN_TENSOR + t);
            const int64_t n_rows = memoi_session_tensor_rows(s, step, t);
            int64_t begin = 0, end = 0;
            if (!span_s || !n_rows) continue;
            memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
            for (int32_t i = 0; i < 2; i++)
                backward_s[i] =
                    fmax(0, backward_s[i] - span_s[0] * (double)(end - begin) / (double)n_rows);
        }
    }
}

/* Runs a micro-batch to warm up, checked if the session is, and several more.  Copies run beside
 * every second one. */
MEMOI memo_status memoi_session_time_spans(memo_session* s, const memo_profile* profile,
                                           memo_error* error) {
    const double begin_s = memob_now_s(), measure_s = s->desc.measure_s > 0 ? s->desc.measure_s : 3;
    int32_t n = 1;
    int64_t values[2];
    memo_status status = MEMO_STATUS_OK;
    memoi_session_log(s, "session: measuring layers and recomputation");
    if (s->desc.is_checked) status = memoi_inspector_create(s, error);
    status = memoi_session_verdict(&s->desc, status, error);
    for (int32_t run = -1; run < n && !status; run++) {
        status = memoi_session_time_batch(s, run < 0 ? 0 : run, 1, error);
        if (run >= 0) continue;

        /* By default as many as take 3 s, because a processor that was idle takes up to a second to
         * reach its speed.  Two are enough if the first takes over 5 s.  All ranks must run as
         * many, because layers may contain collectives. */
        values[1] = (int64_t)(1e3 * (memob_now_s() - begin_s)) + 1;
        status = memoi_session_agree(&s->desc, status, values, 2, error);
        n = values[1] > 5000 ? 2
                             : (int32_t)fmax(4, fmin(1e3 * measure_s / (double)values[1],
                                                     MEMOI_SESSION_REPETITIONS));
        if (!status)
            memoi_session_log(s, "session: measuring %d micro-batches of about %.1f s", (int)n,
                              1e-3 * (double)values[1]);
        if (!status) memoi_inspector_retire(s); /* the others measure; no kernel runs */
        /* A few micro-batches show nothing of what copies slow. */
        if (!status && n >= 6) memoi_session_begin_beside(s, profile);
    }

    if (!status) memoi_session_take_medians(s, n);
    if (!status && s->desc.backward_recomputes) memoi_session_leave_out(s);
    return status;
}

/* By how much copies slow steps; at most by the time of the copies. */
MEMOI void memoi_session_read_slowdown(const memo_session* s, memo_profile* profile) {
    const memo_profile_transfer* copy = &profile->copies[1];
    const memoi_beside* b = &s->beside;
    for (int32_t pass = 0; pass < 2 && b->size_bytes; pass++) {
        const double n_bytes = (double)b->size_bytes * b->n_copies[pass] * s->n_steps;
        const double most_s = (pass ? copy->back_s : copy->out_s) / (double)copy->size_bytes;
        const double slower_s =
            memoi_session_sum_spans(s, pass, 1) - memoi_session_sum_spans(s, pass, 0);
        profile->slowdown_s_per_byte[pass] = fmin(fmax(slower_s, 0) / n_bytes, most_s);
    }
}

/* The fixed cost of a call: where the lines through half of the rows and all rows meet 0 rows, the
 * median of all.  The times of rows are without it. */
MEMOI void memoi_session_read_calls(const memo_session* s, memo_profile* profile) {
    double calls_s[MEMO_PROFILE_TENSORS_MAX];
    int32_t n_calls = 0;
    for (int32_t t = 0; t < s->desc.n_tensors; t++) {
        double all_s = 0, first_s = 0, n_rows = 0, n_first = 0, n = 0;
        for (int32_t step = 0; step < s->n_steps; step++) {
            const int64_t rows = memoi_session_rows(s, step);
            const double* span_s = memoi_session_span(s, step, MEMOI_SPAN_TENSOR + t);
            if (!span_s) continue;
            n += 1;
            n_rows += (double)rows;
            n_first += (double)memoi_session_first_rows(s, t, rows);
            all_s += span_s[0];
            first_s += span_s[1];
        }
        if (n_first >= n_rows) continue;
        all_s -= (all_s - first_s) * n_rows / (n_rows - n_first); /* at 0 rows */
        calls_s[n_calls++] = fmax(0, all_s / n);
    }

    if (!n_calls) return;
    profile->recompute_call_s = memoi_profile_median(calls_s, n_calls);
    for (int32_t t = 0; t < profile->n_tensors; t++)
        for (int32_t k = 0; k < profile->n_kinds; k++) {
            double* row_s = &profile->tensors[t].recompute_s_per_row[k];
            if (*row_s > 0)
                *row_s = fmax(0, *row_s - profile->recompute_call_s / (double)profile->n_rows);
        }
}

/* Times an update after another one that warms up, in seconds of a byte that it uses. */
MEMOI memo_status memoi_session_time_update(memo_session* s, memo_profile* profile,
                                            memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    double sum_s = 0, n_bytes = 0;
    for (int32_t run = 0; run < 2 && !status;
         run++) /* the medians of the other spans are in the first */
        status = memoi_session_time_batch(s, 1, 0, error);
    for (int32_t layer = 0; layer < s->desc.n_layers && !status; layer++)
        sum_s += memoi_session_span(s, layer * s->n_slices, MEMOI_SPAN_UPDATE)[1];
    for (int32_t what = MEMOI_SPAN_UPDATE_FIRST; what <= MEMOI_SPAN_UPDATE_LAST && !status; what++)
        sum_s += memoi_session_span(s, 0, what)[1];
    for (int32_t layer = 0; layer < s->states_desc.n_layers; layer++)
        n_bytes += memob_states_update_bytes(s->states, layer);
    if (n_bytes > 0) profile->update_s_per_byte = fmax(sum_s, 0) / n_bytes;
    return status;
}

/* Times updates on the host in memory of a layer's size, after one that warms up. */
MEMOI memo_status memoi_session_time_host(memo_session* s, memo_profile* profile,
                                          memo_error* error) {
    const uint32_t used = s->states->updated | s->states->gradients;
    char* trial[MEMO_STATES_MAX] = {NULL};
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    double n_bytes = 0, begin_s = 0;
    memo_status status = memob_states_synchronize(s->states, error);
    for (int32_t i = 0; i < s->desc.n_states && !status; i++)
        if (used >> i & 1) trial[i] = MEMOB_ARRAY(&arrays, char, s->states_table[i].size_bytes);
    if (arrays.failed) status = memob_no_memory(error, "a layer's states");

    s->host_trial = trial;
    for (int32_t layer = -1; layer < s->desc.n_layers && !status; layer++) {
        if (layer > 0 && memob_now_s() - begin_s > 1) break;
        s->desc.update_host(s->desc.user, s, (int32_t)memob_max(layer, 0));
        if (layer < 0) begin_s = memob_now_s();
        if (layer >= 0) n_bytes += memob_states_update_bytes(s->states, layer + 1);
    }
    if (n_bytes > 0) profile->update_host_s_per_byte = (memob_now_s() - begin_s) / n_bytes;
    s->host_trial = NULL;
    memob_arrays_free(&arrays);
    return status;
}

/* Copies the outputs to bytes, or back, in the order of the compute stream, and waits.  Copies of a
 * device take pinned memory, a piece at a time; if there is none left they take bytes itself. */
MEMOI memo_status memoi_session_copy_outputs(const memo_session* s, char* bytes, int is_back,
                                             memo_error* error) {
    const int64_t most = (int64_t)1 << 20;
    memo_status status = MEMO_STATUS_OK, freed;
    void* pinned = NULL;
    if (!s->desc.computes_on_host && memo_host_alloc(s->device, most, &pinned, NULL)) pinned = NULL;
    for (int32_t i = 0; i < s->desc.n_outputs && !status; i++) {
        const int64_t size_bytes = s->desc.outputs[i].size_bytes;
        char* output = (char*)s->desc.outputs[i].address;
        int64_t n_bytes;
        for (int64_t at = 0; at < size_bytes && !status; at += n_bytes, bytes += n_bytes) {
            void* piece = pinned ? pinned : bytes;
            n_bytes = memob_min(size_bytes - at, pinned ? most : size_bytes);
            if (s->desc.computes_on_host) {
                memcpy(is_back ? output : bytes, is_back ? bytes : output, (size_t)n_bytes);
                continue;
            }
            if (is_back && pinned) memcpy(pinned, bytes, (size_t)n_bytes);
            status = memoi_session_copy(s, s->desc.compute_stream, output + at, piece, n_bytes,
                                        is_back, error);
            if (!status && !is_back && pinned) memcpy(bytes, pinned, (size_t)n_bytes);
        }
    }

    freed = pinned ? memo_host_free(s->device, pinned, status ? NULL : error) : MEMO_STATUS_OK;
    return status ? status : freed;
}

/* Takes host memory for the outputs and fills it. */
MEMOI memo_status memoi_session_save_outputs(memo_session* s, memo_error* error) {
    int64_t n_bytes = 0;
    char* saved;
    memo_status status;
    for (int32_t i = 0; i < s->desc.n_outputs; i++) n_bytes += s->desc.outputs[i].size_bytes;
    saved = MEMOB_ARRAY(&s->arrays, char, n_bytes);
    if (!saved) return memob_no_memory(error, "the outputs of a micro-batch");
    status = memoi_session_copy_outputs(s, saved, 0, error);
    if (!status) s->saved = saved;
    return status;
}

/* The trainer's own number of all that its update reads; 0: it has none. */
MEMOI double memoi_session_norm(const memo_session_desc* desc) {
    return desc->norm ? desc->norm(desc->user) : 0;
}
/* Does it still have its value from before runs that are no training? */
MEMOI memo_status memoi_session_check_norm(const memo_session_desc* desc, double before,
                                           memo_error* error) {
    const double now = memoi_session_norm(desc);
    if (memcmp(&before, &now, sizeof now) == 0) return MEMO_STATUS_OK;
    return MEMOB_INVALID(
        error,
        "memo_session_desc.outputs: norm was %.9g and is %.9g, now that the outputs have the bytes "
        "again that they had before measuring; list what else a micro-batch changes and the update "
        "reads, or let norm be the same for the same bytes",
        before, now);
}

memo_status memo_session_measure(const memo_session_desc* desc, memo_profile* profile,
                                 memo_error* error) {
    memo_session_desc own;
    memo_profile copies;
    memo_step_plan* plan = NULL;
    memo_session* s = NULL;
    double norm = 0;
    memo_status status = memob_check_given("memo_session_measure", "desc", desc, error);
    memo_status given = MEMO_STATUS_OK;
    if (status) return status;
    own = *desc;
    memset(&copies, 0, sizeof copies);
    own.n_outputs = memoi_session_outputs(desc);
    if (memoi_session_chooses(desc)) { /* slices of the largest size that fits by estimated times */
        status = memo_session_plan(&own, NULL, &plan, error);
        if (!status) own.slice_rows = plan->slice_rows;
    }

    /* Times do not depend on the policy.  Nothing is swapped if that fits, because pinning memory
     * takes long. */
    own.policy = MEMO_POLICY_RECOMPUTE;
    own.update_may = desc->update_may & MEMO_MAY_FUSE ? desc->update_may & ~MEMO_MAY_DEFER : 0;
    for (int32_t k = 0; k < 2 && !status && !(k && memoi_step_plan_fits(plan)); k++) {
        memo_step_plan_destroy(plan);
        status = memoi_session_plan_shapes(NULL, &own, NULL, &plan, error);
        own.policy = MEMO_POLICY_MEMO;
    }
    if (!status) status = memoi_session_make(&own, plan, 0, &s, error);
    if (!status) status = memoi_session_measure_copies(s, &copies, error);
    if (!status) {
        s->spans_s = (double*)memob_arrays_add(&s->arrays, s->most_steps * MEMOI_SPANS_MAX,
                                               MEMOI_SESSION_REPETITIONS * sizeof(double));
        s->layers_s = MEMOB_ARRAY(&s->arrays, double, s->most_steps);
        status = s->arrays.failed ? memob_no_memory(error, "the times of a profile")
                                  : memoi_session_start(s, error);
        if (!status) status = memoi_session_save_outputs(s, error);
        if (!status) norm = memoi_session_norm(desc);
        status = memoi_session_verdict(desc, status, error);
    }
    for (int32_t k = 0; !status && k < s->desc.n_shapes; k++) {
        memset(&profile[k], 0, sizeof *profile);
        if (s->parts[k].plan->shape.is_forward_only) continue;
        profile[k] = copies;
        memoi_session_turn(s, k);
        memoi_session_guess(s, &profile[k]);
        if (desc->measuring) desc->measuring(desc->user, s, 1);
        status = memoi_session_time_spans(s, &copies, error);
        if (!status) {
            memoi_session_read_times(s, &profile[k]);
            memoi_session_read_slowdown(s, &profile[k]);
            memoi_session_read_calls(s, &profile[k]);
        }
        memob_engine_release(&s->beside.engine);
        memset(&s->beside, 0, sizeof s->beside);
        if (!status && s->states) status = memoi_session_time_update(s, &profile[k], error);
        if (!status && s->states && s->desc.update_host)
            status = memoi_session_time_host(s, &profile[k], error);
        if (desc->measuring) desc->measuring(desc->user, s, 0);
        status = memoi_session_agree_profile(desc, status, &profile[k], error);
    }
    if (s && s->saved) given = memoi_session_copy_outputs(s, s->saved, 1, status ? NULL : error);
    if (!status && !given) given = memoi_session_check_norm(desc, norm, error);
    if (!status) status = memoi_session_verdict(desc, given, error);
    memo_session_destroy(s);
    memo_step_plan_destroy(plan);
    return status;
}
