#pragma once
#include "plan/profile.h"
#include "plan/session/advice.h"
#include "plan/session/open.h"
/* --- >>session times ---
 * Knows: the spans of micro-batches that have run, how copies are measured, and the profile that
 * follows from both.  Knows nothing of when micro-batches run.
 *
 * 1. A span has as many times as micro-batches were timed, for which there is room. */

/* Rows of a tensor that a step had; the mean if they are late. */
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
 * slow layer does not.  The last layer's backward, in each place, may hold the loss of the
 * slice. */
MEMOI void memoi_session_fit(const memo_session* s, int32_t kind, int32_t what, double* middle_s,
                             double* growth_s) {
    const int32_t n_slices = s->n_slices, n_of_place = memoi_session_turn_layers(s);
    const int has_loss = what == MEMOI_SPAN_BACKWARD && n_slices > 1 && n_of_place > 1;
    double n = 0, sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0, spread, slope_s = 0;

    /* Least squares, a line through the medians of the slices. */
    for (int32_t slice = 0; slice < n_slices; slice++) {
        const double rows = (double)memoi_session_rows(s, slice); /* the last may be short */
        const double x = (2.0 * (slice % s->n_of_batch) * (double)s->steps->n_rows + rows) /
                             (double)s->steps->layer_rows -
                         1;
        double y;
        int32_t n_times = 0;
        for (int32_t layer = 0; layer < s->n_steps / n_slices; layer++) {
            const int32_t step = layer * n_slices + slice;
            const double* span_s = memoi_session_span(s, step, what);
            if (has_loss && (layer + 1) % n_of_place == 0) continue;
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

/* The times of the current shape, from its spans. */
MEMOI void memoi_session_read_times(const memo_session* s, memo_profile* times) {
    static const memo_pass passes[] = {MEMO_PASS_FORWARD, MEMO_PASS_BACKWARD};
    double* const of_pass_s[] = {times->forward_s, times->backward_s};
    double* const growths_s[] = {times->forward_growth_s, times->backward_growth_s};
    double rest_s = *memoi_session_span(s, s->n_steps - 1, MEMOI_SPAN_BETWEEN);
    const int waits = s->steps->order != NULL; /* for other stages, in some layers */
    for (int32_t k = 0; k < times->n_kinds; k++) {
        for (int32_t t = 0; t < s->desc.n_tensors; t++) { /* with another one: nothing; never: -1 */
            double *row_s = &times->tensors[t].recompute_s_per_row[k],
                   *growth_s = &times->tensors[t].recompute_growth_s_per_row[k];
            if (!memob_is_recomputed(memob_item_away(s->steps, t))) continue;
            memoi_session_fit(s, k, MEMOI_SPAN_TENSOR + t, row_s, growth_s);
            *row_s /= memoi_session_mean_rows(s, t);
            *growth_s /= memoi_session_mean_rows(s, t);
        }
    }

    /* What layers take beyond the times of their kinds: embeddings of the first layer, losses in
     * the last one's backward.  The times of a profile then add up to the micro-batch. */
    for (int i = 0; i < 2; i++) {
        for (int32_t k = 0; k < times->n_kinds; k++)
            memoi_session_fit(s, k, memoi_span_of_pass[passes[i]], &of_pass_s[i][k],
                              &growths_s[i][k]);
        for (int32_t step = 0; step < s->n_steps && !waits; step++) {
            const int32_t k = memob_layer_kind(s->steps, step);
            rest_s += *memoi_session_span(s, step, memoi_span_of_pass[passes[i]]) -
                      memoi_rows_slice_s(s->steps, step, of_pass_s[i][k], growths_s[i][k]);
        }
    }
    times->between_s = fmax(rest_s, 0) / memoi_session_n_group(s);
}

/* The largest state that desc.fetch gives, of the first layer that has it, if states may stream. */
MEMOI memob_fetch memoi_session_find_fetch(const memo_session* s) {
    const memob_states_desc* d = &s->states_desc;
    memob_fetch most = {d->trainer.fetch, d->trainer.user, 0, 0, 0};
    for (int32_t k = 0; k < d->n_layers * d->n_states && !s->desc.states_stay; k++) {
        const memo_state* state = &d->states[k % d->n_states];
        const uint32_t kind = state->kinds >> d->layer_kinds[k / d->n_states] & 1;
        if (!(state->uses & MEMO_STATE_FETCHED && kind) || state->size_bytes <= most.size_bytes)
            continue;
        most.layer = k / d->n_states;
        most.state = k % d->n_states;
        most.size_bytes = state->size_bytes;
    }
    return most;
}

/* Measures copies and the third tier within the budgets.  Large copies measure the rate better, but
 * their buffers must fit beside the trainer's. */
MEMOI void memoi_session_measure_copies(memo_session* s, memo_profile* profile) {
    const memo_session_desc* desc = &s->desc;
    const int has_file = /* and room to time it */
        desc->spill_directory && desc->host_bytes >= 2 * MEMOB_SPILL_ALIGNMENT;
    const memob_fetch fetch = memoi_session_find_fetch(s);
    int64_t n_bytes = (int64_t)32 << 20, on_host_bytes;
    if (desc->device_bytes) n_bytes = memob_min(n_bytes, desc->device_bytes / 4);
    if (desc->host_bytes) n_bytes = memob_min(n_bytes, desc->host_bytes / 4);
    n_bytes = memob_max(n_bytes, 64);
    memob_session_log(s, "session: measuring copies up to %lld bytes", (long long)n_bytes);
    on_host_bytes =
        2 * memob_align_up(n_bytes, has_file || fetch.size_bytes ? MEMOB_SPILL_ALIGNMENT : 1);
    memoi_keep(s,
               memoi_profile_measure(s->device, n_bytes, has_file ? desc->spill_directory : NULL,
                                     desc->spill_bytes_per_s, &fetch,
                                     2 * n_bytes <= desc->device_bytes ? desc->device_memory : NULL,
                                     on_host_bytes <= desc->host_bytes ? desc->host_memory : NULL,
                                     profile, &s->call_error));
    memoi_session_settle(s);
}

/* The median of every times_s[first], times_s[first + stride], up to n times. */
MEMOI double memoi_session_median(const double* times_s, int32_t first, int32_t stride, int32_t n) {
    double chosen_s[MEMOI_SESSION_REPETITIONS];
    int32_t n_chosen = 0;
    for (int32_t i = first; i < n; i += stride) chosen_s[n_chosen++] = times_s[i];
    return memoi_profile_median(chosen_s, n_chosen);
}

/* Gives each span of a layer the median of its times in n micro-batches, and each other span two:
 * of the even micro-batches, and of the odd ones, which time recomputation of half of the rows.
 * Layers that are late now and then make the median micro-batch longer than the sum of the layers'
 * medians.  The medians grow in this ratio. */
MEMOI void memoi_session_take_medians(const memo_session* s, int32_t n) {
    const int64_t n_spans = (int64_t)s->n_steps * MEMOI_SPANS_MAX;
    double sums_s[MEMOI_SESSION_REPETITIONS] = {0}, sum_s = 0, ratio;
    MEMO_ASSERT(n > 0 && n <= MEMOI_SESSION_REPETITIONS); /* 1 */
    for (int64_t k = 0; k < n_spans; k++) {
        double *span_s = s->spans_s + k * MEMOI_SESSION_REPETITIONS, odd_s;
        const int is_layer = memoi_span_is_of_layer(k % MEMOI_SPANS_MAX);
        for (int32_t i = 0; i < n && is_layer; i++) sums_s[i] += span_s[i];
        odd_s = is_layer ? 0 : memoi_session_median(span_s, 1, 2, n);
        span_s[0] = memoi_session_median(span_s, 0, is_layer ? 1 : 2, n);
        span_s[1] = odd_s;
        if (is_layer) sum_s += span_s[0];
    }

    ratio = sum_s > 0 ? memoi_session_median(sums_s, 0, 1, n) / sum_s : 1;
    for (int64_t k = 0; k < n_spans; k++)
        if (memoi_span_is_of_layer(k % MEMOI_SPANS_MAX))
            s->spans_s[k * MEMOI_SESSION_REPETITIONS] *= ratio;
}

/* Leaves out of the backward what it has recomputed itself, which is also timed alone. */
MEMOI void memoi_session_leave_out(const memo_session* s) {
    for (int32_t step = 0; step < s->n_steps; step++) {
        double* backward_s = memoi_session_span(s, step, MEMOI_SPAN_BACKWARD);
        for (int32_t t = 0; t < s->desc.n_tensors; t++) {
            const double* span_s = memoi_session_span(s, step, MEMOI_SPAN_TENSOR + t);
            const int64_t n_rows = memoi_session_tensor_rows(s, step, t);
            int64_t begin = 0, end = 0;
            if (!span_s || !n_rows || !memoi_session_is_by_backward(s, t)) continue;
            memo_swap_get_recompute_rows(s->part->swap, step, t, &begin, &end);
            *backward_s = fmax(0, *backward_s - span_s[0] * (double)(end - begin) / (double)n_rows);
        }
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
