#include "gpt/run/run.h"

#include <signal.h>

#include "gpt/model/lora.h"
#include "gpt/run/files.h"
#include "gpt/run/plan.h"
#include "gpt/run/ranks.h"
#include "gpt/show/report.h"

volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void catch_signal(int signal_number, int is_once) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)((is_once ? SA_RESETHAND : 0) | SA_RESTART);
    sigaction(signal_number, &action, NULL);
}

void catch_signals(void) {
    catch_signal(SIGTERM, 1);
    catch_signal(SIGQUIT, 1);
    catch_signal(SIGXCPU, 0);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) catch_signal(SIGHUP, 1);
    if (signal(SIGPIPE, SIG_IGN) != SIG_IGN) catch_signal(SIGPIPE, 0);
}

static void run_destroy(run* r) {
    gpt_destroy(r->model);
    memo_mesh_destroy(r->mesh);
    memo_recorder_destroy(r->recorder);
    train_device_close(&r->device);
    free(r->tokens);
    memset(r, 0, sizeof *r);
}

static memo_status run_create_recorder(run* r, memo_error* error) {
    memo_recorder_desc desc = MEMO_ZERO(memo_recorder_desc);
    desc.device = r->device.device;
    desc.is_timed = 1;
    memo_status status = memo_recorder_create(&desc, &r->recorder, error);
    if (!status) memo_recorder_pause(r->recorder);
    return status;
}

/* Times count from the second step on.  A few steps tell the times of long ones, and drifts.  Two
 * are enough, so that a short run trains by its plan, too. */
int32_t run_timed_steps(const job* j) {
    const gpt_config own = train_config(&j->options), config = gpt_base_config(&own);
    const double flops =
        6.0 * (double)gpt_n_rows(&config) * (double)gpt_n_parameters_of_token(&config);
    const int64_t n_steps = last_step(&j->options) - j->resumed.step;
    const int64_t n = j->has_profile || flops > 1e12 ? 3 : 12;
    if (j->options.compare) return 1 + (int32_t)n;
    return 1 + (int32_t)gpt_min(n, n_steps > 8 ? n_steps / 4 : 2);
}

memo_status run_load_weights(run* r, const job* j, memo_error* error) {
    memo_error reason;
    const int is_adapter = r->options.architecture.lora.rank > 0;
    const gpt_stored* from = is_adapter ? &j->adapter : &j->weights;
    const char* option = is_adapter ? "--adapter" : "--model";
    const memo_status status = from->n_tensors && !r->options.resume
                                   ? gpt_load_weights(r->model, from, &reason)
                                   : MEMO_STATUS_OK;
    if (status == MEMO_STATUS_FORMAT) return gpt_invalid(error, "%s %s", option, reason.message);
    return status ? memo_error_set(error, status, "%s %s", option, reason.message) : status;
}

/* rank, policy and flags are set. */
static memo_status run_create(run* r, job* j, memo_error* error) {
    train_options* o = &r->options;
    const int is_lifted = (r->flags & RUN_LIFTED) != 0;
    const int times = (r->flags & RUN_TIMES) != 0, is_trial = times && !(r->flags & RUN_TRAINED);
    gpt_desc desc = {0};

    /* Rank and tokens. */
    *o = j->options;
    if (is_trial) o->accumulate = 1;
    desc.config = train_config(o);
    const memo_mesh_desc degrees = gpt_mesh_desc(&desc.config);
    size_t n_rows = (size_t)(o->batch * o->sequence);
    r->reports = train_rank_reports(r->rank);
    r->is_graph = o->is_graph && !is_trial && !(r->flags & RUN_TIMED); /* events need calls */
    r->tokens = (int32_t*)malloc(2 * n_rows * sizeof *r->tokens);
    if (!r->tokens) return gpt_no_memory("the tokens of a micro-batch", error);
    r->targets = r->tokens + n_rows;

    /* What the model runs on. */
    memo_status status = memo_mesh_create(r->rank->comm, &degrees, &r->mesh, error);
    if (!status)
        status = train_device_open(&r->device, o, r->rank, is_lifted ? 0 : o->device_memory,
                                   is_lifted ? 0 : o->host_memory, error);
#ifdef TRAIN_NCCL
    if (!status && r->is_graph) train_watch_graphs(r->device.device);
#endif
    if (!status && (r->flags & RUN_TRAINED) && o->output) status = run_create_recorder(r, error);
    if (status) return status;

    /* The model. */
    memo_session_desc session = train_session(o, (memo_policy)o->policy);
    session.is_timed = (r->flags & RUN_TIMED) != 0;
    if (times) session.timed_steps = run_timed_steps(j);
    if (times && !is_trial && !session.device_bytes && j->plans[MEMO_POLICY_KEEP])
        session.device_bytes = j->plans[MEMO_POLICY_KEEP]->device_bytes; /* it may use no more */
    if (o->ranks > 1) session.agree = train_agree;
    session.user = r->rank;
    if (r->reports) session.log = starting_log();
    desc.plan = times ? NULL : j->plans[r->policy];
    desc.kernels = &r->device.kernels;
    desc.device = r->recorder ? memo_recorder_get_device(r->recorder) : r->device.device;
    desc.mesh = r->mesh;
    desc.frozen = &j->weights;
    desc.n_micro_batches = o->accumulate;
    desc.session = &session;
    if (is_trial) session.policy = MEMO_POLICY_RECOMPUTE; /* pins no rows */
    status = gpt_create(&desc, &r->model, error);
    if (is_trial && status == MEMO_STATUS_INFEASIBLE) {
        session.policy = (memo_policy)o->policy;
        status = gpt_create(&desc, &r->model, error);
    }
    if (!status) status = run_load_weights(r, j, error);
    if (!status && r->is_graph && !times) status = gpt_use_graph(r->model, 1, error);
    starting_end(session.log);
    return status;
}

static memo_status call_on_rank(thread_rank* rank, memo_error* error) {
    team* t = (team*)rank->user;
    run* r = &t->runs[rank - t->ranks.ranks];
    train_device_enter(&r->device);
    memo_status status = t->function(r, t->j, error);
    if (r->reports && r->stops) interrupted = t->j->stops = 1;
    return status;
}

memo_status team_call(team* t, memo_status (*function)(run* r, job* j, memo_error* error),
                      memo_error* error) {
    t->function = function;
    return thread_ranks_call(&t->ranks, call_on_rank, t, error);
}

void team_close(team* t) {
    for (int32_t i = 0; i < t->ranks.n; i++) run_destroy(&t->runs[i]);
    if (t->ranks.n) train_ranks_close(&t->ranks);
    memset(t, 0, sizeof *t);
}

memo_status team_open(team* t, job* j, memo_policy policy, int flags, memo_error* error) {
    const train_options* o = &j->options;
    memo_host_device_desc desc = MEMO_ZERO(memo_host_device_desc);
    memset(t, 0, sizeof *t);
    t->j = j;
    if (!(flags & RUN_LIFTED)) {
        desc.device_memory_bytes = o->device_memory;
        desc.host_memory_bytes = o->host_memory;
    }
    desc.to_host_bytes_per_s = (double)o->link_bandwidth;
    desc.to_device_bytes_per_s = (double)o->link_bandwidth;
    memo_status status = train_ranks_open(&t->ranks, &desc, (int32_t)o->ranks, error);
    for (int32_t i = 0; i < t->ranks.n; i++) {
        t->runs[i].rank = &t->ranks.ranks[i];
        t->runs[i].policy = policy;
        t->runs[i].flags = flags;
    }
    if (!status) status = team_call(t, run_create, error);
    if (status) team_close(t);
    return status;
}

/* Reads the stalls of a step that has ended: those of its last group, times their number. */
static memo_status run_read_stalls(run* r, memo_error* error) {
    memo_swap_stats stats;
    if (!(r->flags & RUN_TIMED)) return MEMO_STATUS_OK;
    const memo_session_info info = memo_session_get_info(gpt_session(r->model));
    memo_status status = memo_swap_get_stats(info.swap, &stats, error);
    if (!status)
        r->stall_s = (double)(r->options.accumulate / info.plan->n_group) *
                     (stats.forward_stall_s + stats.backward_stall_s);
    return status;
}

/* A cosine from the largest rate to a tenth of it, after a linear start: of a twentieth of the
 * steps, at most 100; in shorter runs of 20 steps, and of half of fewer than 40. */
static double learning_rate(const train_options* o, int64_t step) {
    const double pi = 3.14159265358979323846;
    int64_t n_warm = o->steps < 40 ? o->steps / 2 : o->steps < 400 ? 20 : o->steps / 20;
    if (n_warm > 100) n_warm = 100;
    double done = (double)(step - n_warm) / (double)(o->steps - n_warm);
    if (step < n_warm) return o->learning_rate * (double)(step + 1) / (double)n_warm;
    return o->learning_rate * (0.1 + 0.45 * (1 + cos(pi * done)));
}

static gpt_update_values update_values(const train_options* o, int64_t step) {
    const gpt_update_values values = {
        {learning_rate(o, step), 0.9, 0.99, 1e-8, 0.01, 0}, 1, interrupted};
    return values;
}

memo_status run_gradients(run* r, const job* j, int64_t step, memo_error* error) {
    const train_options* o = &r->options;
    double loss_scale = 1.0 / (double)(o->accumulate * o->batch * o->sequence);
    const gpt_update_values values = update_values(o, step);
    memo_status status = MEMO_STATUS_OK;
    gpt_set_update(r->model, &values);
    for (int64_t m = 0; m < o->accumulate && !status; m++) {
        train_text_windows(&j->text, o->seed, step, m, o->batch, o->sequence, r->tokens,
                           r->targets);
        status = gpt_micro_batch(r->model, r->tokens, r->targets, step, m, loss_scale, error);
    }
    return status;
}

memo_status run_update(run* r, int64_t step, double* loss, memo_error* error) {
    const gpt_update_values values = update_values(&r->options, step);
    memo_status status = gpt_update(r->model, &values, loss, error);
    if (!status) status = run_read_stalls(r, error);
    if (!status && gpt_votes(r->model) > 0) r->stops = 1;
    if (!status && *loss - *loss != 0)
        status =
            memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                           "the loss of step %lld is not finite; try a --learning-rate below %g",
                           (long long)step + 1, r->options.learning_rate);
    return status;
}

memo_status run_step(run* r, const job* j, int64_t step, double* loss, memo_error* error) {
    const double begin_s = clock_s();
    memo_status status = run_gradients(r, j, step, error);
    if (!status) status = run_update(r, step, loss, error);
    r->step_s = clock_s() - begin_s;
    return status;
}

static memo_status run_time_layers(run* r, job* j, memo_error* error) {
    const int32_t n = run_timed_steps(j);
    memo_profile profile;
    double loss;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t step = 0; step < n && !status && !r->stops; step++) /* the last one plans */
        status = run_step(r, j, step, &loss, error);
    if (!status && !r->stops)
        status = memo_session_get_profile(gpt_session(r->model), 0, &profile, error);
    profile.length = r->options.sequence;
    if (!status && !r->stops && r->reports) j->profile = profile;
    return status;
}

void run_take_plan(const run* r, job* j) {
    const memo_session_info info = memo_session_get_info(gpt_session(r->model));
    j->own_plan = *info.plan;
    train_add_staged(&j->options, &j->own_plan);
    j->plan = &j->own_plan;
}

memo_status time_layers(job* j, memo_error* error) {
    static team timed;
    memo_status status = team_open(&timed, j, MEMO_POLICY_KEEP, RUN_TIMES, error);
    if (!status) status = team_call(&timed, run_time_layers, error);
    team_close(&timed);
    return status;
}
