#include "gpt/run/run.h"

#include "gpt/run/plan.h"
#include "gpt/run/ranks.h"
#include "gpt/show/report.h"
#include "gpt/show/statistics.h"
#include "tools/tool_files.h"

/* ---- number of steps ------------------------------------------------------------------------ */

/* Measures the median time of three steps, after one that touches all memory first. */
static memo_status time_steps(run* r, const job* j, double* step_s, memo_error* error) {
    enum { N = 3 };
    double times_s[N], loss;
    memo_status status = run_step(r, j, 0, &loss, error);
    for (int i = 0; i < N && !status; i++) {
        status = run_step(r, j, i + 1, &loss, error);
        times_s[i] = r->step_s;
    }
    *step_s = status ? 0 : median(times_s, N);
    return status ? status : gpt_restart(r->model, error);
}

double predicted_step_s(const memo_step_plan* plan) {
    return plan && plan->times ? plan->times->step_s : 0;
}

memo_status choose_steps(run* r, job* j, memo_error* error) {
    train_options* o = &r->options;
    const double slack = 1.3; /* other policies are slower, and steps vary */
    const double first_s = predicted_step_s(j->plans[r->policy]);
    const double chosen_s = predicted_step_s(j->plans[o->policy]);
    const double n_steps = (double)train_n_policies(o) + 4; /* with layers measured again */
    double step_s, left_s, n;
    int64_t shared_ns[2];
    if (!o->seconds) return MEMO_STATUS_OK;
    memo_status status = time_steps(r, j, &step_s, error);
    if (!status && first_s > 0 && chosen_s > first_s) step_s *= chosen_s / first_s;
    shared_ns[0] = (int64_t)(1e9 * step_s);
    shared_ns[1] = (int64_t)(1e9 * (clock_s() - j->begin_s));
    if (!status) status = train_agree(r->rank, shared_ns, 2, error);
    if (status || r->stops) return status;

    step_s = 1e-9 * (double)shared_ns[0];
    left_s = (double)o->seconds - 1e-9 * (double)shared_ns[1];
    n = left_s / 2 / (slack * step_s * n_steps);
    if (o->compare && n < (double)o->compare) o->compare = n > 2 ? (int64_t)(n / 2) * 2 : 1;
    left_s -= slack * step_s * n_steps * (double)o->compare;
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
    memo_swap_stats stats;
    const memo_session_info info = memo_session_get_info(gpt_session(r->model));
    memo_status status = memo_swap_get_stats(info.swap, &stats, error);
    *n_bytes = info.states_to_host_bytes + info.states_to_device_bytes;
    if (!status) *n_bytes += stats.to_host_bytes + stats.to_device_bytes;
    return status;
}

/* Policies take turns of two steps.  The first brings the policy's memory back into the caches, and
 * only the second is timed, unless a policy takes a single step. */
enum { TURN_STEPS = 2 };
static int64_t n_timed(const job* j) {
    return j->options.compare > 1 ? j->options.compare / TURN_STEPS : 1;
}

/* Whether layers are measured again in each round. */
static int predicts_again(const job* j) {
    return j->is_measured && j->at_once && n_timed(j) >= ROUNDS_TO_TELL;
}

/* The digests do not count as step, and are those of the reporting rank. */
static memo_status compare_step(run* r, job* j, int64_t step, memo_error* error) {
    comparison* row = &j->compared[r->policy];
    const int64_t at = step / TURN_STEPS; /* the last step of a turn counts */
    int64_t moved[2];
    double begin_s, aside_s, loss = 0;
    memo_status status = run_get_moved(r, &moved[0], error);
    begin_s = clock_s();
    if (!status) status = run_gradients(r, j, step, error);
    if (!status) status = gpt_wait(r->model, error);
    aside_s = clock_s();
    if (!status && r->reports) status = gpt_digest_gradients(r->model, &row->digests[step], error);
    aside_s = clock_s() - aside_s;
    if (!status) status = run_update(r, step, &loss, error);
    begin_s += aside_s;

    if (!status && r->reports && at < n_timed(j)) {
        row->step_s[at] = clock_s() - begin_s;
        row->stall_s[at] = r->stall_s;
    }
    if (!status) status = run_get_moved(r, &moved[1], error);
    if (status || !r->reports) return status;
    row->losses[step] = loss;
    row->moved_bytes = moved[1] - moved[0];
    train_device_peaks(&r->device, &row->device_peak_bytes, &row->host_peak_bytes);
    return MEMO_STATUS_OK;
}

static memo_status compare_turn(run* r, job* j, memo_error* error) {
    const int64_t begin = j->round * TURN_STEPS;
    const int64_t end = gpt_min(begin + TURN_STEPS, j->options.compare);
    memo_status status = MEMO_STATUS_OK;
    for (int64_t step = begin; step < end && !status && !r->stops; step++)
        status = compare_step(r, j, step, error);
    return status;
}

static spread spread_of_steps(const job* j, const double* values) {
    memcpy(j->scratch, values, (size_t)n_timed(j) * sizeof *j->scratch);
    return spread_of(j->scratch, n_timed(j));
}

/* Writes why times cannot tell policies apart; nothing if they can.  Rounds may be few, or those of
 * a policy may differ by half. */
static void put_why_no_times(const job* j, memo_text* t) {
    const int64_t n = n_timed(j);
    double most = FACTOR_OF_NOISE, from_s = 0, to_s = 0;
    const char* noisiest = NULL;
    if (n < ROUNDS_TO_TELL)
        memo_text_put(t, "%lld timed round%s cannot tell policies apart; --compare %d%s has %d",
                      (long long)n, n == 1 ? "" : "s", ROUNDS_TO_TELL * TURN_STEPS,
                      j->options.seconds ? " with more --seconds" : "", ROUNDS_TO_TELL);
    for (int i = 0; i < train_n_policies(&j->options) && n >= ROUNDS_TO_TELL; i++) {
        memcpy(j->scratch, j->compared[policy_order[i]].step_s, (size_t)n * sizeof *j->scratch);
        const double factor = spread_factor(j->scratch, n);
        if (factor < most) continue;
        most = factor;
        from_s = j->scratch[1], to_s = j->scratch[n - 2];
        noisiest = memo_policy_name(policy_order[i]);
    }
    if (noisiest)
        memo_text_put(t,
                      "steps of %s take %.1f to %.1f ms, so the machine does other work, too; "
                      "without that work the table has times",
                      noisiest, 1e3 * from_s, 1e3 * to_s);
}

/* Round by round, because the machine's speed drifts. */
static void put_predictions(const job* j, memo_text* t) {
    for (int i = 0; i < train_n_policies(&j->options); i++) {
        const comparison* row = &j->compared[policy_order[i]];
        if (!(*row->predicted_s > 0)) continue;
        const double predicted_s = spread_of_steps(j, row->predicted_s).median;
        const double step_s = spread_of_steps(j, row->step_s).median;
        memo_text_put(t,
                      "%-10s predicted %.1f ms a step, measured %.1f ms "
                      "(%+.1f%% in the median of rounds)\n",
                      memo_policy_name(policy_order[i]), 1e3 * predicted_s, 1e3 * step_s,
                      100 * (ratio_of(row->step_s, row->predicted_s, n_timed(j), j->scratch) - 1));
    }
}

/* Times of a policy, with quartiles and stalls. */
static const char* times_text(const job* j, const comparison* row) {
    const spread step_s = spread_of_steps(j, row->step_s);
    return text_of(" %7.1f ms %6.1f to %5.1f %6.1f ms", 1e3 * step_s.median, 1e3 * step_s.low,
                   1e3 * step_s.high, 1e3 * spread_of_steps(j, row->stall_s).median);
}

/* Writes the table, and what follows from it.  Returns whether all losses and gradients have the
 * same bits. */
static int put_comparison(const job* j, memo_text* t) {
    const comparison* keep = &j->compared[MEMO_POLICY_KEEP];
    const int64_t n = j->options.compare;
    memo_text why_no_times = {0};
    int are_equal = 1;
    put_why_no_times(j, &why_no_times);
    const int tells = !why_no_times.n_bytes;
    memo_text_put(
        t,
        "%lld step%s of every policy, %s, each from the initial parameters; %sloss difference is "
        "in nats per token\n",
        (long long)n, n == 1 ? "" : "s",
        j->at_once ? "by turns of two" : "one policy after another for lack of memory",
        tells ? "times are medians of every second step, with quartiles; " : "");
    memo_text_put(
        t,
        "policy    %s  alpha  device peak   host peak  moved/step  loss diff  gradients  budget\n",
        tells ? "  step time   quartiles, ms     stall" : "");
    for (int i = 0; i < train_n_policies(&j->options); i++) {
        const memo_policy policy = policy_order[i];
        const comparison* row = &j->compared[policy];
        const int has_same_gradients =
            !memcmp(row->digests, keep->digests, (size_t)n * sizeof *row->digests);
        double difference = 0;
        for (int64_t step = 0; step < n; step++)
            difference = fmax(difference, fabs(row->losses[step] - keep->losses[step]));
        memo_text_put(t, "%-10s%s %6s %12s %11s %11s %10g  %-9s  %s%s\n", memo_policy_name(policy),
                      tells ? times_text(j, row) : "",
                      alpha_name(&j->options, policy, j->plans[policy]),
                      bytes_name(row->device_peak_bytes), bytes_name(row->host_peak_bytes),
                      bytes_name(row->moved_bytes), difference,
                      policy == MEMO_POLICY_KEEP ? "reference"
                      : has_same_gradients       ? "equal"
                                                 : "DIFFER",
                      row->is_short ? plan_shortage(&j->options, j->plans[policy]) : "fits",
                      row->is_short ? "; run without limit" : "");
        are_equal &= has_same_gradients &&
                     !memcmp(row->losses, keep->losses, (size_t)n * sizeof *row->losses);
    }

    if (tells) put_predictions(j, t);
    if (!tells) memo_text_put(t, "no times  %s\n", why_no_times.data ? why_no_times.data : "");
    memo_text_free(&why_no_times);
    if (are_equal)
        memo_text_put(t, "All losses and all gradients of these steps%s are bitwise the same.\n",
                      j->options.zero && j->options.ranks > 1 ? ", rank 0's part of them," : "");
    return are_equal;
}

static memo_status end_comparison(job* j, memo_error* error) {
    const int are_equal = put_comparison(j, &j->told);
    if (j->told.failed) return gpt_no_memory("--compare", error);
    printf("\n%s", j->told.data);
    if (!are_equal)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "the policies disagree: losses or gradients differ");
    return tool_flush(error);
}

/* All policies are planned. */
static memo_status begin_comparison(job* j, memo_error* error) {
    train_options* o = &j->options;
    if (o->compare > o->steps) o->compare = o->steps;
    j->compared = (comparison*)calloc(MEMO_N_POLICIES, sizeof *j->compared);
    j->scratch = (double*)malloc((size_t)o->compare * sizeof *j->scratch);
    if (!j->compared || !j->scratch) return gpt_no_memory("--compare", error);
    for (int i = 0; i < train_n_policies(o); i++) {
        const memo_policy policy = policy_order[i];
        comparison* row = &j->compared[policy];
        row->step_s = (double*)calloc((size_t)(4 * o->compare), sizeof *row->step_s);
        row->digests = (uint64_t*)calloc((size_t)o->compare, sizeof *row->digests);
        if (!row->step_s || !row->digests) return gpt_no_memory("--compare", error);
        row->stall_s = row->step_s + o->compare;
        row->predicted_s = row->stall_s + o->compare;
        row->losses = row->predicted_s + o->compare;
        row->is_short = *plan_shortage(o, j->plans[policy]) != 0;
        for (int64_t at = 0; at < n_timed(j); at++)
            row->predicted_s[at] = predicted_step_s(j->plans[policy]);
        j->plans[policy]->fits = 1; /* beyond the budget it runs on a device without limits */
    }
    return MEMO_STATUS_OK;
}

/* ---- turns of the policies ------------------------------------------------------------------ */

/* Chooses the number of steps, and whether all policies can be open at once: if the memory of
 * every rank has room for the others beside the one that is open. */
static memo_status prepare_turns(run* r, job* j, memo_error* error) {
    int64_t device_bytes = 0, host_bytes = 0, lacks;
    memo_status status = choose_steps(r, j, error);
    for (int i = 0; i < train_n_policies(&j->options); i++) {
        const memo_policy policy = policy_order[i];
        if (policy == r->policy) continue;
        device_bytes += j->plans[policy]->device_bytes;
        host_bytes += j->plans[policy]->host_bytes;
    }
    lacks = !train_device_has_room(&r->options, device_bytes, host_bytes);
    if (!status && !r->stops) status = train_agree(r->rank, &lacks, 1, error);
    if (r->reports) j->at_once = !lacks;
    return status;
}

/* Times layers again, and predicts the same rows for this round: a machine drifts by more than the
 * predictions err.  Copies keep their times. */
static memo_status predict_again(job* j, memo_error* error) {
    const memo_profile first = j->profile;
    memo_status status = time_layers(j, error);
    memo_profile now = j->profile;
    j->profile = first;
    memcpy(now.copies, first.copies, sizeof now.copies);

    for (int i = 0; i < train_n_policies(&j->options) && !status; i++) {
        const memo_policy policy = policy_order[i];
        memo_step_plan* plan = j->plans[policy];
        train_options o = j->options;
        o.states_stay |= !plan->n_streamed;
        status = train_plan(&o, policy, 0, &now, plan, &plan, error);
        if (!status) j->compared[policy].predicted_s[j->round] = predicted_step_s(plan);
        if (!status) memo_step_plan_destroy(plan);
    }
    return status;
}

/* Takes the steps of n open policies, in another order each round, so that a drift of the machine
 * is the same for all. */
static memo_status take_turns(job* j, const int* policies, int n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (j->round = 0; j->round * TURN_STEPS < j->options.compare && !status && !j->stops;
         j->round++) {
        if (predicts_again(j)) status = predict_again(j, error);
        for (int i = 0; i < n && !status && !j->stops; i++)
            status = team_call(&j->teams[policies[turn(j->round, i, n)]], compare_turn, error);
    }
    return status;
}

memo_status compare_policies(job* j, int is_shared, memo_error* error) {
    const train_options* o = &j->options;
    const int n = train_n_policies(o), chosen = (int)o->policy;
    int policies[N_POLICIES], begin, end;
    memo_status status = begin_comparison(j, error);
    for (int i = 0, k = 0; k < n; k++)
        if (policy_order[k] != (memo_policy)chosen) policies[i++] = (int)policy_order[k];
    policies[n - 1] = chosen;

    for (begin = 0; begin < n && !status && !j->stops; begin = end) {
        for (end = begin; end < n && !status && !j->stops && (end == begin || j->at_once); end++) {
            const int policy = policies[end];
            int flags = RUN_TIMED | (j->compared[policy].is_short ? RUN_LIFTED : 0);
            if (policy == chosen && is_shared) flags |= RUN_TRAINED;
            status = team_open(&j->teams[policy], j, (memo_policy)policy, flags, error);
            if (!status && end == 0) status = team_call(&j->teams[policy], prepare_turns, error);
        }
        if (!status) status = take_turns(j, policies + begin, end - begin, error);
        for (int i = begin; i < end; i++)
            if (policies[i] != chosen || !is_shared) team_close(&j->teams[policies[i]]);
    }
    return status || j->stops ? status : end_comparison(j, error);
}
