#include "gpt/run/run.h"

#include "gpt/model/lora.h"
#include "gpt/run/files.h"
#include "gpt/run/plan.h"
#include "gpt/run/ranks.h"
#include "gpt/show/report.h"
#include "gpt/show/statistics.h"
#include "tools/tool_files.h"

/* ---- training ------------------------------------------------------------------------------- */

/* A log that cannot be written is an error at the end: the steps go on. */
static memo_status log_loss(job* j, int64_t step, double loss, memo_error* error) {
    const int64_t at = step - j->n_resumed;
    if (at >= j->n_losses) {
        int64_t n = 2 * at + 64;
        double* larger = (double*)realloc(j->losses, (size_t)n * sizeof *larger);
        if (!larger) return gpt_no_memory("the losses", error);
        j->losses = larger;
        j->n_losses = n;
    }
    j->losses[at] = loss;
    j->n_done = step + 1;
    if (!j->loss_log) return MEMO_STATUS_OK;
    fprintf(j->loss_log, "%lld %.17g %a\n", (long long)step + 1, loss, loss);
    if (fflush(j->loss_log) == 0) return MEMO_STATUS_OK;
    bad_path("--loss-log", j->options.loss_log, "written", &j->log_failure);
    fclose(j->loss_log);
    j->loss_log = NULL;
    return MEMO_STATUS_OK;
}

void print_rate(const train_options* o, double step_s) {
    const gpt_config config = train_config(o), whole = gpt_whole_config(&config),
                     base = gpt_base_config(&whole);
    const double keys_seen = gpt_keys_seen(&config);
    const double n_sequences = (double)(o->accumulate * o->batch), s = (double)o->sequence;
    /* Frozen weights have no gradients: two products instead of three. */
    const double products = config.lora.rank ? 4 * (double)gpt_n_parameters_of_token(&base) +
                                                   6 * (double)gpt_n_parameters(&whole)
                                             : 6 * (double)gpt_n_parameters_of_token(&whole);
    double flops = n_sequences * s *
                   (products + 12 * (double)o->layers * (double)gpt_q_columns(&config) * keys_seen);
    printf("rate      %.5g tokens/s, %.4g TFLOP/s by %s + ", n_sequences * s / step_s,
           1e-12 * flops / step_s, config.lora.rank ? "4 s P + 6 s A" : "6 s P");
    if (2 * keys_seen < s)
        printf("12 n h s k, k = %.5g keys of a token", keys_seen);
    else
        printf("6 n h s^2");
    if (o->flops > 0)
        printf(": MFU %.3g%% of %g TFLOP/s%s",
               100e-12 * flops / step_s / o->flops / (double)o->ranks, o->flops,
               o->ranks > 1 ? " a rank" : "");
    printf("\n");
}

/* The times of the last steps, for their medians. */
enum { N_TIMED = 64 };
typedef struct last_times {
    double step_s[N_TIMED], stall_s[N_TIMED];
    int64_t n; /* of the steps added; counts again from 0 after the first step */
} last_times;

/* The predicted times of a step beside the measured ones, unless the comparison has them, or says
 * why times tell nothing.  A graph has no events inside. */
static void print_prediction(const job* j, last_times* last, double step_s) {
    const int64_t n = gpt_min(last->n, N_TIMED);
    if (!(predicted_step_s(j->plan) > 0) || j->is_measured) return;
    const memo_swap_plan* predicted = j->plan->times;
    printf("predicted %.1f ms a step, stalled %.1f ms, recomputing %.1f ms; measured ",
           1e3 * predicted->step_s, 1e3 * predicted->stall_s, 1e3 * predicted->recompute_s);
    if (!n) {
        printf("%.1f ms\n", 1e3 * step_s);
        return;
    }
    printf("%.1f ms, stalled %.1f ms\n", 1e3 * median(last->step_s, n),
           1e3 * median(last->stall_s, n));
}

/* The bytes that this rank has sent so far, and those to tensor ranks. */
static void sent_bytes(const run* r, int64_t sent[2]) {
    const memo_mesh* mesh = r->mesh;
    sent[1] = gpt_tensor_bytes(r->model);
    sent[0] =
        mesh->gradient->sent_bytes + mesh->ring->sent_bytes + mesh->ulysses->sent_bytes + sent[1];
}

/* Prints the most memory of a rank, and its traffic since `sent`.  All ranks call it, after the same
 * number of steps; waits. */
static memo_status report_ranks(const run* r, const int64_t sent[2], double step_s, int64_t n_steps,
                                memo_error* error) {
    const train_options* o = &r->options;
    int64_t most[3], host_bytes; /* the device's peak, and bytes sent */
    if (o->ranks == 1 || n_steps < 1) return MEMO_STATUS_OK;
    train_device_peaks(&r->device, &most[0], &host_bytes);
    sent_bytes(r, &most[1]);
    for (int i = 0; i < 2; i++) most[1 + i] = (most[1 + i] - sent[i] + n_steps / 2) / n_steps;
    memo_status status = train_agree(r->rank, most, 3, error);
    if (status || !r->reports) return status;
    printf(
        "ranks     a step took %.1f ms, %.0f tokens/s of all; a rank has a device peak up to %s, "
        "and sends up to %s a step",
        1e3 * step_s, (double)(o->accumulate * o->batch * o->sequence) / step_s,
        bytes_name(most[0]), bytes_name(most[1]));
    if (o->tensor > 1) printf(", %s to tensor ranks", bytes_name(most[2]));
    printf("\n");
    return MEMO_STATUS_OK;
}

/* Continues after the steps of the saved run. */
static memo_status resume(run* r, job* j, int64_t* step, memo_error* error) {
    const train_options* o = &r->options;
    memo_error reason;
    memo_status status = gpt_read_checkpoint(r->model, o->resume, j->resumed.digest, step, &reason);
    if (status) return memo_error_set(error, status, "--resume %s", reason.message);
    if (!r->reports) return MEMO_STATUS_OK;
    j->n_resumed = *step;
    memo_text changes = {0};
    put_changes(j, &changes);
    printf("resume    %s, after step %lld%s%s\n", o->resume, (long long)*step,
           changes.n_bytes ? "; it had " : "", changes.n_bytes ? changes.data : "");
    memo_text_free(&changes);
    return MEMO_STATUS_OK;
}

/* The profile is only a convenience, but an error of its file is one of the disk. */
static memo_status save(run* r, const job* j, int64_t step, memo_error* error) {
    memo_error reason;
    gpt_save save = j->save;
    save.aside = r->asides[0];
    kept_numbers(r->options, &j->text, save.run);
    memo_status status = gpt_write_checkpoint(r->model, &save, step, &reason);
    if (!status && r->reports && train_is_first() && j->has_profile)
        status = memo_profile_write(&j->profile, path_text(save.path, ".profile"), &reason);
    return status ? memo_error_set(error, status, "--save %s", reason.message) : MEMO_STATUS_OK;
}

static memo_status write_model(run* r, const job* j, memo_error* error) {
    memo_error reason;
    const memo_status status =
        gpt_save_weights(r->model, r->options.write_model, j->model_text, r->asides[1], &reason);
    return status ? memo_error_set(error, status, "--write-model %s", reason.message) : status;
}

/* The timed steps are over: prints the plan that follows from them, between two lines of progress.
 * A graph can hold the steps from now on. */
static memo_status train_by_plan(run* r, job* j, const progress* shown, memo_error* error) {
    memo_status status = r->is_graph ? gpt_use_graph(r->model, 1, error) : MEMO_STATUS_OK;
    if (status || !r->reports) return status;
    if (!memo_session_get_profile(gpt_session(r->model), 0, &j->profile, NULL)) {
        j->has_profile = 1;
        j->profile.length = r->options.sequence;
    }
    run_take_plan(r, j);
    progress_end(shown);
    if (j->has_profile) print_profile(&r->options, &j->profile);
    print_choice(&r->options, j->plan, j->has_profile);
    print_plan(&r->options, (memo_policy)r->options.policy, j->plan);
    return status;
}

static memo_status train(run* r, job* j, memo_error* error) {
    const train_options* o = &r->options;
    const int64_t n_steps = last_step(o);
    int is_timing = (r->flags & RUN_TIMES) != 0;
    int64_t n_first = r->is_graph && !is_timing ? 2 : 1;
    last_times last;
    int64_t sent[2];
    memo_status status = MEMO_STATUS_OK;
    int64_t step = 0, first = 0, n_saved = -1, n_counted = 0;
    double loss, counted_s, step_s;
    last.n = 0;
    if (o->resume && (status = resume(r, j, &first, error))) return status;
    r->asides[0] = j->save.aside; /* the first process has the names of the files aside */
    r->asides[1] = j->model_aside;
    if ((o->save || o->write_model) && train_place.size > 1 &&
        (status = train_agree(r->rank, r->asides, 2, error)))
        return status;
    if (r->reports) printf("\n");
    sent_bytes(r, sent);
    progress shown = {first,     n_steps, o->accumulate * o->batch * o->sequence,
                      clock_s(), 0,       isatty(STDOUT_FILENO)};
    counted_s = shown.begin_s;
    for (step = first; step < n_steps && !status && !r->stops; step++) {
        const double begin_s = clock_s();
        status = run_step(r, j, step, &loss, error);

        /* The first step loads kernels; one ends with a plan, and the next is the first by it, in
         * which a graph is captured.  They count only if they are alone. */
        const int plans = is_timing && !gpt_is_timing(r->model);
        if (plans) is_timing = 0, n_first = step + 2 - first;
        if (plans || step == first + n_first) {
            counted_s = begin_s;
            last.n = n_counted = 0;
        }
        n_counted++;
        if (r->flags & RUN_TIMED) {
            last.step_s[last.n % N_TIMED] = r->step_s;
            last.stall_s[last.n++ % N_TIMED] = r->stall_s;
        }
        if (!status && r->reports) status = log_loss(j, step, loss, error);
        if (!status && r->reports) progress_show(&shown, step, loss);
        if (!status && plans) status = train_by_plan(r, j, &shown, error);
        if (r->reports && !interrupted && tool_flush(&j->output_failure)) interrupted = 1;
        if (status || !o->save_every || (step + 1) % o->save_every) continue;
        status = save(r, j, n_saved = step + 1, error);
        /* The disk's error may pass.  Ranks cannot continue after an error of one. */
        if (status != MEMO_STATUS_IO || o->ranks > 1) continue;
        fprintf(stderr, "train_gpt: %s; the run goes on\n", error->message);
        status = MEMO_STATUS_OK;
        n_saved = -1; /* it is tried again */
    }
    if (r->reports) progress_end(&shown);
    if (!status && o->save && n_saved != step) status = save(r, j, step, error);
    if (!status && o->write_model) status = write_model(r, j, error);
    if (status) return status;
    r->n_steps = step;
    step -= first; /* of this run */

    step_s = (clock_s() - counted_s) / (double)(n_counted ? n_counted : 1);
    if (r->reports && step) print_rate(o, step_s);
    if (r->reports && step) print_prediction(j, &last, step_s);
    /* A replay's messages are not counted. */
    return report_ranks(r, sent, step_s, r->is_graph ? gpt_min(step, n_first) : step, error);
}

static void print_loss(const job* j) {
    const int64_t n_losses = j->n_done - j->n_resumed;
    int64_t n = n_losses / 20 > 0 ? n_losses / 20 : 1;
    double sum = 0, mean;
    for (int64_t i = n_losses - n; i < n_losses; i++) sum += j->losses[i];
    mean = sum / (double)n;
    printf("\nloss, mean of the last %lld step%s   %.3f nats per %s\n", (long long)n,
           n == 1 ? "" : "s", mean, j->text.vocabulary || j->text.tokens.bytes ? "token" : "byte");
    if (j->text.vocabulary) {
        printf("a uniform guess                %.3f nats per token\n", j->text.unigram_nats);
        return;
    }
    if (j->text.tokens.bytes) {
        printf("the tokens' unigram entropy    %.3f nats per token\n", j->text.unigram_nats);
        return;
    }
    printf("the text's unigram entropy     %.3f nats per byte\n", j->text.unigram_nats);
    printf("the text's bigram entropy      %.3f nats per byte%s\n", j->text.bigram_nats,
           mean < j->text.bigram_nats ? ", which the model beats" : "");
}

/* Continues the text from the start of a line with generated bytes.  All tensor ranks call it,
 * because each has a share of the parameters.  It generates in pieces, so that a single rank can
 * react to Ctrl-C; several ranks would have to agree. */
static memo_status print_sample(const job* j, run* r, memo_error* error) {
    enum { N_PIECE = 64 };
    const train_options* o = &j->options;
    int64_t n_prompt = o->sequence < 64 ? o->sequence : 64, n = n_prompt;
    int64_t begin = (int64_t)(gpt_mix((uint64_t)o->seed) % (uint64_t)(j->text.n_bytes - n_prompt));
    uint8_t* bytes = (uint8_t*)malloc((size_t)(n_prompt + o->sample));
    memo_status status = MEMO_STATUS_OK;
    if (!bytes) return gpt_no_memory("--sample", error);

    while (begin > 0 && j->text.bytes[begin - 1] != '\n') begin--;
    memcpy(bytes, j->text.bytes + begin, (size_t)n_prompt);
    for (int64_t n_all = n_prompt + o->sample;
         n < n_all && !status && !(interrupted && o->ranks == 1);) {
        int64_t n_new = gpt_min(N_PIECE, n_all - n);
        status = gpt_generate(r->model, bytes, n, 0.8, gpt_mix((uint64_t)(o->seed + n)), bytes + n,
                              n_new, error);
        n += n_new;
    }

    if (!status && r->reports) {
        printf("\n%lld bytes of the text:\n", (long long)n_prompt);
        print_bytes(bytes, n_prompt);
        printf("and %lld more, generated:\n", (long long)(n - n_prompt));
        print_bytes(bytes + n_prompt, n - n_prompt);
    }
    free(bytes);
    return status;
}

/* ---- one recorded step: its order proven, its timeline drawn -------------------------------- */

static memo_status check_schedule(const memo_schedule* schedule, memo_error* error) {
    memo_check* check = NULL;
    char why[480];
    memo_status status = memo_schedule_check(schedule, &check, error);
    if (status) return status;
    printf("\nordering of one recorded step: %lld operations, %lld waits, %lld pairs in conflict, "
           "%lld races, %lld redundant waits\n",
           (long long)schedule->n_ops, (long long)check->n_waits, (long long)check->n_conflicts,
           (long long)check->n_races, (long long)check->n_redundant_waits);
    if (check->n_races)
        status = memo_error_set(error, MEMO_STATUS_INVALID_STATE, "a race: %s",
                                memo_race_explain(schedule, check->races, why, sizeof why));
    memo_check_destroy(check);
    return status;
}

static memo_status draw_schedule(const job* j, const memo_schedule* schedule, memo_error* error) {
    memo_simulation* times = NULL;
    const char* title =
        text_of("One training step, policy %s, measured: %s of device memory, "
                "instead of %s with every activation kept",
                memo_policy_name((memo_policy)j->options.policy), bytes_name(j->plan->device_bytes),
                bytes_name(j->plans[MEMO_POLICY_KEEP]->device_bytes));
    memo_status status = memo_schedule_measured(schedule, &times, error);
    if (!status) status = make_directory("--output", j->options.output, 0, error);
    if (!status)
        status =
            memo_schedule_write_chrome(schedule, times, output_path(j, "timeline.json"), error);
    if (!status)
        status =
            memo_schedule_write_svg(schedule, times, title, output_path(j, "timeline.svg"), error);
    memo_simulation_destroy(times);
    return status;
}

/* Records a step more than were trained: without copies of states of other steps, whose waits are
 * not recorded, and with all of its own. */
static memo_status record_step(run* r, job* j, memo_error* error) {
    memo_schedule* schedule = NULL;
    const int is_timing = gpt_is_timing(r->model);
    double loss;
    memo_status status = gpt_wait_for_states(r->model, error);
    if (!status) status = gpt_use_graph(r->model, 0, error);
    if (status) return status;
    memo_recorder_resume(r->recorder);
    status = run_step(r, j, r->n_steps, &loss, error);
    if (!status) status = gpt_wait_for_states(r->model, error);
    if (!status) status = memo_recorder_get_schedule(r->recorder, &schedule, error);
    if (status || !r->reports) return status;
    if (is_timing && !gpt_is_timing(r->model)) run_take_plan(r, j); /* the one before is gone */
    status = check_schedule(schedule, error);
    return status || !train_is_first() ? status : draw_schedule(j, schedule, error);
}

/* The session that was compared begins again. */
memo_status train_chosen(run* r, job* j, memo_error* error) {
    const train_options* o = &r->options;
    const int begins_again = o->compare && !o->is_graph;
    memo_status status = begins_again ? gpt_restart(r->model, error) : MEMO_STATUS_OK;
    if (!status && begins_again) status = run_load_weights(r, j, error);
    if (!status) status = train(r, j, error);
    if (!status && !r->stops && r->reports) print_loss(j);
    if (!status && !r->stops && o->sample && (r->reports || o->tensor > 1))
        status = print_sample(j, r, error);
    if (!status && !r->stops && o->output) status = record_step(r, j, error);
    return status;
}
