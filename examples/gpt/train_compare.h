/* train_compare.h - the first steps of a policy: timed for --seconds, and compared with those of
 * others. */
#ifndef TRAIN_COMPARE_H
#define TRAIN_COMPARE_H

#include "train_run.h"

/* ---- number of steps ------------------------------------------------------------------------ */

/* Measures the median time of three steps, after one that touches all memory first. */
static memo_status time_steps(run* r, const job* j, double* step_s, memo_error* error) {
    enum { N = 3 };
    double times_s[N], loss, begin_s;
    memo_status status = run_step(r, j, 0, &loss, error);
    for (int i = 0; i < N && !status; i++) {
        begin_s = clock_s();
        status = run_step(r, j, i + 1, &loss, error);
        times_s[i] = clock_s() - begin_s;
    }
    *step_s = status ? 0 : median(times_s, N);
    return status ? status : gpt_restart(r->model, error);
}

/* For forward and backward of a step; zeros without a prediction. */
static step_times predicted_times(const train_options* o, const memo_step_plan* plan) {
    const double n = (double)o->accumulate;
    step_times times;
    memset(&times, 0, sizeof times);
    if (!plan->times) return times;
    times.layers_s = n * plan->times->step_s;
    times.stall_s = n * plan->times->stall_s;
    times.recompute_s = n * plan->times->recompute_s;
    return times;
}

/* Shortens the run to --seconds, so that it ends in time on any machine.  It reduces the steps and,
 * if a step is slow, the comparison.  It measures steps of the first policy that runs; a step of
 * the chosen one takes longer in the ratio of their predictions.  All ranks take the first rank's
 * figures. */
static memo_status choose_steps(run* r, job* j, memo_error* error) {
    train_options* o = &r->options;
    const double slack = 1.3; /* other policies are slower, and steps vary */
    const double first_s = predicted_times(o, j->plans[r->policy]).layers_s;
    const double chosen_s = predicted_times(o, j->plans[o->policy]).layers_s;
    double shared[2], step_s, left_s, n;
    if (!o->seconds || r->policy != j->first_policy) return MEMO_STATUS_OK;
    memo_status status = time_steps(r, j, &shared[0], error);
    if (!status && first_s > 0 && chosen_s > first_s) shared[0] *= chosen_s / first_s;
    shared[1] = clock_s() - j->begin_s;
    if (!status)
        status = train_collective(r->rank, MEMO_COLLECTIVE_BROADCAST, shared,
                                  (int64_t)sizeof shared, MEMO_TYPE_U8, error);
    if (status || r->stops) return status;

    step_s = shared[0];
    left_s = (double)o->seconds - shared[1];
    n = left_s / 3 / (slack * step_s * (double)train_n_policies(o));
    if (o->compare && n < (double)o->compare) o->compare = n > 1 ? (int64_t)n : 1;
    left_s -= slack * step_s * (double)(train_n_policies(o) * o->compare);
    if (o->output) left_s -= slack * step_s;
    n = left_s / (slack * step_s);
    if (n < (double)o->steps) o->steps = n > 20 ? (int64_t)n : gpt_min(20, o->steps);
    if (!r->reports) return MEMO_STATUS_OK;
    j->options.steps = o->steps;
    j->options.compare = o->compare;
    printf("steps     %lld, to end within %lld s: one takes %.0f ms\n", o->steps, o->seconds,
           1e3 * step_s);
    return MEMO_STATUS_OK;
}

/* ---- comparison of the policies ------------------------------------------------------------- */

static memo_status run_get_moved(run* r, int64_t* n_bytes, memo_error* error) {
    memo_session_info info;
    memo_swap_stats stats;
    memo_session_get_info(gpt_session(r->model), &info);
    memo_status status = memo_swap_get_stats(info.swap, &stats, error);
    *n_bytes = status ? 0 : stats.to_host_bytes + stats.to_device_bytes;
    return status;
}

/* Takes the first steps of a policy.  Digests of the gradients are those of the reporting rank. */
static memo_status compare_steps(run* r, job* j, memo_error* error) {
    comparison* row = &j->compared[r->policy];
    int64_t n = r->options.compare, step, moved[2];
    double* step_s = (double*)calloc((size_t)(3 * n), sizeof *step_s);
    double *stall_s = step_s + n, *layers_s = stall_s + n;
    memo_status status = run_get_moved(r, &moved[0], error);
    if (!step_s) status = no_memory("--compare", error);

    /* The digests do not count as step. */
    for (step = 0; step < n && !status && !r->stops; step++) {
        double begin_s = clock_s(), aside_s, loss;
        status = run_gradients(r, j, step, error);
        if (!status) status = gpt_reduce(r->model, error);
        if (!status) status = gpt_wait(r->model, error);
        aside_s = clock_s();
        if (!status && r->reports)
            status = gpt_digest_gradients(r->model, &row->digests[step], error);
        aside_s = clock_s() - aside_s;
        if (!status) status = run_update(r, step, &loss, error);
        if (!status && r->reports) row->losses[step] = loss;
        step_s[step] = clock_s() - begin_s - aside_s;
        stall_s[step] = r->times.stall_s;
        layers_s[step] = r->times.layers_s;
    }

    if (!status) status = run_get_moved(r, &moved[1], error);
    if (!status && r->reports) {
        row->step_s = median(step_s, n);
        row->stall_s = median(stall_s, n);
        row->layers_s = median(layers_s, n);
        row->moved_bytes = (moved[1] - moved[0]) / n;
        train_device_peaks(&r->device, &row->device_peak_bytes, &row->host_peak_bytes);
    }
    free(step_s);
    return status;
}

/* Returns whether all losses and gradients have the same bits. */
static int print_comparison(const job* j) {
    const int64_t n = j->options.compare;
    int are_equal = 1;
    printf("\n%lld step%s of every policy, each from the initial parameters; time and stall are "
           "medians "
           "of a step, loss difference is in nats per token\n",
           (long long)n, n == 1 ? "" : "s");
    printf("policy      alpha  device peak   host peak  moved/step   step time     stall  "
           "loss diff  gradients  budget\n");
    for (int policy = 0; policy < train_n_policies(&j->options); policy++) {
        const comparison* row = &j->compared[policy];
        const int has_same_gradients =
            !memcmp(row->digests, j->compared->digests, (size_t)n * sizeof *row->digests);
        double difference = 0;
        for (int64_t step = 0; step < n; step++)
            difference = fmax(difference, fabs(row->losses[step] - j->compared->losses[step]));
        printf("%-10s %6s %12s %11s %11s %8.1f ms %6.1f ms %10g  %-9s  %s%s\n",
               policy_names[policy], row->alpha, bytes_name((double)row->device_peak_bytes),
               bytes_name((double)row->host_peak_bytes), bytes_name((double)row->moved_bytes),
               1e3 * row->step_s, 1e3 * row->stall_s, difference,
               policy == 0          ? "reference"
               : has_same_gradients ? "equal"
                                    : "DIFFER",
               *row->shortage ? row->shortage : "fits",
               *row->shortage ? "; run without limit" : "");
        are_equal &= has_same_gradients &&
                     !memcmp(row->losses, j->compared->losses, (size_t)n * sizeof *row->losses);
    }

    /* Of planned rows. */
    for (int policy = 0; policy < train_n_policies(&j->options); policy++) {
        const comparison* row = &j->compared[policy];
        if (row->predicted_s > 0)
            printf("%-10s predicted %.1f ms for forward and backward of a step, measured %.1f ms\n",
                   policy_names[policy], 1e3 * row->predicted_s, 1e3 * row->layers_s);
    }
    return are_equal;
}

static memo_status end_comparison(const job* j, memo_error* error) {
    const train_options* o = &j->options;
    if (!print_comparison(j))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "the policies disagree: losses or gradients differ");
    printf("All losses and all gradients of these steps%s are bitwise the same.\n",
           o->zero && o->ranks > 1 ? ", rank 0's part of them," : "");
    fflush(stdout);
    return MEMO_STATUS_OK;
}

/* All policies are planned. */
static memo_status begin_comparison(job* j, memo_error* error) {
    train_options* o = &j->options;
    if (o->compare > o->steps) o->compare = o->steps;
    j->compared = (comparison*)calloc(N_POLICIES, sizeof *j->compared);
    if (!j->compared) return no_memory("--compare", error);
    for (int policy = 0; policy < train_n_policies(o); policy++) {
        comparison* row = &j->compared[policy];
        row->losses = (double*)calloc((size_t)o->compare, sizeof *row->losses);
        row->digests = (uint64_t*)calloc((size_t)o->compare, sizeof *row->digests);
        if (!row->losses || !row->digests) return no_memory("--compare", error);
        plan_shortage(j->plans[policy], row->shortage, sizeof row->shortage);
        alpha_name(o, (memo_policy)policy, j->plans[policy], row->alpha, sizeof row->alpha);
        row->predicted_s = predicted_times(o, j->plans[policy]).layers_s;
        j->plans[policy]->fits = 1; /* beyond the budget it runs on a device without limits */
    }
    return MEMO_STATUS_OK;
}

#endif
