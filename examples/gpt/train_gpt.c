/* train_gpt.c - a byte-level GPT learns from text inside a memory budget that could not hold it.
 *
 *     gcc -std=c99 -O3 -I. -Iexamples examples/gpt/train_gpt.c examples/gpt/memo.c -o train_gpt \
 *         -lpthread -lm
 *         faster with   -DGPT_BLAS -lopenblas    and   -DMEMO_LP_SOLVE -llpsolve55
 *     ./train_gpt --help
 *
 * A run has four phases on a host device of the given capacity.  It profiles one layer to plan rows.
 * It runs the first steps under every policy and compares the results bitwise.  It trains the model.
 * It records one step, proves that the step has no race, and draws its timeline.
 *
 *     train_options.h   the command line          train_text.h     bytes, windows, entropies
 *     train_plan.h      what fits, which rows      train_report.h   progress, pictures
 *     train_profile.h   times that are not measured   train_refuse.h   what would fit instead
 *     train_device.h    a rank's device and its kernels: host, or a GPU (-DTRAIN_CUDA)
 *     train_compute.h   threads, OpenBLAS's kernels
 *     train_ranks.h     several ranks: threads, or processes: MPI (mpicc -DTRAIN_MPI), GPUs over NCCL
 *     train_launch.h    a process's place among those that torchrun, mpirun or srun started
 *     gpt.h             the model on memo; lists the files that implement it
 *     README.md         all files in reading order, options by task */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_look.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "gpt_generate.h"
#include "gpt_model.h"
#include "gpt_checkpoint.h"
#include "tools/tool_files.h"
#include "train_device.h"
#include "train_options.h"
#include "train_picture.h"
#include "train_plan.h"
#include "train_profile.h"
#include "train_ranks.h"
#include "train_refuse.h"
#include "train_report.h"
#include "train_text.h"

/* Ctrl-C sets it, and loops over steps read it.  A second Ctrl-C ends the program at once. */
static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

static memo_status no_memory(const char* what, memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %s", what);
}

/* What the first options.compare steps of a policy show. */
typedef struct comparison {
    char alpha[16]; /* fraction of the rows that are swapped */
    char shortage[160];
    int64_t device_peak_bytes, host_peak_bytes, moved_bytes; /* moved in a step */
    double step_s, stall_s;                                  /* medians over steps */
    double layers_s;    /* the same, for forward and backward only */
    double predicted_s; /* the planner's prediction of layers_s; 0: none */
    double* losses;
    uint64_t* digests; /* of the gradients */
} comparison;

typedef struct job {
    train_options options;
    train_text text;
    memo_step_plan* plans[N_POLICIES]; /* by policy; NULL: not needed yet */
    char why_slices[256]; /* why the rows of a slice were chosen; empty: they were not */
    step_memory memory;   /* of keeping every activation, and of the plan */
    memo_profile profile;
    int has_profile;
    int64_t room;             /* of a GPU beside libraries */
    double begin_s;           /* when the program began */
    comparison* compared;     /* (policies) */
    memo_policy first_policy; /* that runs */
    double* losses;           /* of steps n_resumed to n_done, nats per token */
    int64_t n_done, n_losses; /* n_losses: capacity of losses */
    int64_t n_resumed;        /* steps before this run, whose losses are unknown */
    FILE* loss_log;
} job;

/* ---- a run: on each rank a device, a model on it, and its steps ------------------------------ */

enum {
    RUN_LIFTED = 1,   /* without capacities: a reference if the budget is too small */
    RUN_TIMED = 2,    /* measure forward, backward and stalls by events, without synchronizing */
    RUN_COMPARED = 4, /* the first steps of every policy */
    RUN_TRAINED = 8   /* the job itself, and one step recorded */
};

/* Of forward and backward of a step. */
typedef struct step_times {
    double layers_s, stall_s, recompute_s;
} step_times;

typedef struct run {
    thread_rank* rank;
    train_options options; /* of the job, with fewer steps after choose_steps */
    memo_policy policy;
    int flags;
    memo_mesh* mesh;
    memo_recorder* recorder; /* paused until a step is recorded; NULL: none is */
    train_device device;
    gpt_model* model;
    int32_t *tokens, *targets; /* (batch, sequence), of all ranks */
    memo_event marks[2];       /* around forward and backward of a step; RUN_TIMED */
    step_times times;          /* of the last step; RUN_TIMED */
    double keys_seen;          /* by the tokens of all micro-batches */
    int64_t n_micro_batches;
    int is_graph;    /* steps are staged, and then run as a graph */
    int reports;     /* this rank prints and fills results for its process */
    int stops;       /* some rank was interrupted before the end of the last step */
    int64_t n_steps; /* of the job, that are done */
} run;

static void run_destroy(run* r) {
    int i;
    if (r->mesh) (void)train_register(r->mesh, NULL, NULL);
    gpt_destroy(r->model);
    for (i = 0; i < 2; i++)
        if (r->marks[i]) memo_event_destroy(r->device.device, r->marks[i], NULL);
    memo_mesh_destroy(r->mesh);
    memo_recorder_destroy(r->recorder);
    train_device_close(&r->device);
    free(r->tokens);
    free(r->targets);
    memset(r, 0, sizeof *r);
}

static memo_status run_create_recorder(run* r, memo_error* error) {
    memo_recorder_desc desc = memo_recorder_desc_default();
    memo_status status;
    desc.device = r->device.device;
    desc.is_timed = 1;
    status = memo_recorder_create(&desc, &r->recorder, error);
    if (!status) memo_recorder_pause(r->recorder);
    return status;
}

/* A job on all ranks: a policy that is planned, or *profile is measured. */
typedef struct run_call {
    job* j;
    memo_policy policy;
    int flags;
    memo_status (*function)(run* r, job* j, memo_error* error); /* NULL: measures */
} run_call;

static memo_status run_create(run* r, thread_rank* rank, const run_call* call, memo_error* error) {
    train_options* o = &r->options;
    const int is_lifted = (call->flags & RUN_LIFTED) != 0;
    memo_mesh_desc degrees;
    memo_session_desc session;
    memo_profile profile;
    size_t n_rows;
    gpt_desc desc;
    memo_status status;
    int i;

    /* Rank and tokens. */
    memset(r, 0, sizeof *r);
    *o = call->j->options;
    n_rows = (size_t)(o->batch * o->sequence);
    degrees = train_mesh_desc(o);
    r->rank = rank;
    r->policy = call->policy;
    r->flags = call->flags;
    r->reports = train_rank_reports(rank);
    r->is_graph = o->is_graph && !(r->flags & RUN_TIMED); /* events need calls */
    r->tokens = (int32_t*)malloc(n_rows * sizeof *r->tokens);
    r->targets = (int32_t*)malloc(n_rows * sizeof *r->targets);
    status =
        r->tokens && r->targets ? MEMO_STATUS_OK : no_memory("the tokens of a micro-batch", error);

    /* What the model runs on. */
    if (!status) status = memo_mesh_create(rank->comm, &degrees, &r->mesh, error);
    if (!status)
        status = train_device_open(&r->device, o, rank, is_lifted ? 0 : o->device_memory,
                                   is_lifted ? 0 : o->host_memory, error);
    if (!status && r->is_graph) train_watch_graphs(r->device.device);
    if (!status && (r->flags & RUN_TRAINED) && o->output) status = run_create_recorder(r, error);
    for (i = 0; i < 2 && !status && (r->flags & RUN_TIMED); i++)
        status = memo_event_create(r->device.device, &r->marks[i], error);

    /* The model. */
    session = train_session(o, (memo_policy)o->policy);
    session.is_timed = (r->flags & RUN_TIMED) != 0;
    if (o->ranks > 1) session.agree = train_agree;
    session.user = rank;
    memset(&desc, 0, sizeof desc);
    desc.config = train_config(o);
    desc.plan = call->j->plans[call->policy];
    desc.kernels = &r->device.kernels;
    desc.device = r->recorder ? memo_recorder_get_device(r->recorder) : r->device.device;
    desc.mesh = r->mesh;
    desc.n_micro_batches = o->accumulate;
    desc.session = &session;
    if (!status && call->function) status = gpt_create(&desc, &r->model, error);
    if (!status && call->function && o->is_registered && o->ranks > 1)
        status = train_register(r->mesh, r->device.device, error);
    if (!status && !call->function) {
        status = gpt_measure(&desc, &profile, error);
        if (!status && r->reports) call->j->profile = profile;
    }
    return status;
}

static memo_status run_on_rank(thread_rank* rank, memo_error* error) {
    const run_call* call = (const run_call*)rank->user;
    run r;
    memo_status status = run_create(&r, rank, call, error);
    if (!status && call->function) status = call->function(&r, call->j, error);
    if (status) memo_comm_abort(rank->comm); /* streams may wait for messages that never arrive */
    run_destroy(&r);
    return status;
}

/* Runs a new model of a planned policy on each rank; only the reporting rank changes the job.  function
 * NULL: measures job.profile instead. */
static memo_status run_on_ranks(job* j, memo_policy policy, int flags,
                                memo_status (*function)(run* r, job* j, memo_error* error),
                                memo_error* error) {
    const train_options* o = &j->options;
    memo_host_device_desc desc = memo_host_device_desc_default();
    run_call call;
    call.j = j;
    call.policy = policy;
    call.flags = flags;
    call.function = function;
    if (!(flags & RUN_LIFTED)) {
        desc.device_memory_bytes = o->device_memory;
        desc.host_memory_bytes = o->host_memory;
    }
    desc.to_host_bytes_per_s = (double)o->link_bandwidth;
    desc.to_device_bytes_per_s = (double)o->link_bandwidth;
    return train_ranks_run(&desc, (int32_t)o->ranks, run_on_rank, &call, error);
}

static memo_status run_mark(run* r, int i, memo_error* error) {
    if (!(r->flags & RUN_TIMED)) return MEMO_STATUS_OK;
    return memo_event_record(r->device.device, r->marks[i], gpt_compute_stream(r->model), error);
}

/* Reads the times of a step that has ended.  Stalls are those of its last micro-batch, times their
 * number. */
static memo_status run_read_times(run* r, memo_error* error) {
    memo_session_info info;
    memo_swap_stats stats;
    memo_status status;
    if (!(r->flags & RUN_TIMED)) return MEMO_STATUS_OK;
    status =
        memo_event_elapsed(r->device.device, r->marks[0], r->marks[1], &r->times.layers_s, error);
    memo_session_get_info(gpt_session(r->model), &info);
    if (!status) status = memo_swap_get_stats(info.swap, &stats, error);
    if (!status)
        r->times.stall_s =
            (double)r->options.accumulate * (stats.forward_stall_s + stats.backward_stall_s);
    return status;
}

/* Keys that a token sees on average, half of its own included. */
static double train_keys_seen(const train_options* o, const int32_t* tokens) {
    const gpt_config config = train_config(o);
    const double window = (double)(o->window ? o->window : o->sequence);
    int64_t i, n = 0;
    double sum = 0;
    if (!o->documents) return gpt_keys_seen(&config);
    for (i = 0; i < o->batch * o->sequence; i++, n++) {
        if (i % o->sequence == 0 || tokens[i - 1] == o->separator) n = 0;
        sum += (double)n + 0.5 < window ? (double)n + 0.5 : window;
    }
    return sum / (double)(o->batch * o->sequence);
}

/* Runs, or stages, forward and backward of all micro-batches of a step. */
static memo_status run_gradients(run* r, const job* j, int64_t step, memo_error* error) {
    const train_options* o = &r->options;
    double loss_scale = 1.0 / (double)(o->accumulate * o->batch * o->sequence);
    int64_t m;
    memo_status status = run_mark(r, 0, error);
    for (m = 0; m < o->accumulate && !status; m++) {
        train_text_windows(&j->text, o->seed, step, m, o->batch, o->sequence, r->tokens,
                           r->targets);
        r->keys_seen += train_keys_seen(o, r->tokens);
        r->n_micro_batches++;
        status = (r->is_graph ? gpt_stage_micro_batch : gpt_micro_batch)(
            r->model, r->tokens, r->targets, step, m, loss_scale, error);
    }
    return status ? status : run_mark(r, 1, error);
}

/* A cosine from the largest rate to a tenth of it, after a short linear start. */
static double learning_rate(const train_options* o, int64_t step) {
    const double pi = 3.14159265358979323846;
    int64_t n_warm = o->steps / 20 < 100 ? o->steps / 20 : 100;
    double done = (double)(step - n_warm) / (double)(o->steps - n_warm);
    if (step < n_warm) return o->learning_rate * (double)(step + 1) / (double)n_warm;
    return o->learning_rate * (0.1 + 0.45 * (1 + cos(pi * done)));
}

static memo_status run_update(run* r, int64_t step, double* loss, memo_error* error) {
    gpt_update_desc desc;
    double gradient_norm;
    memo_status status;
    memset(&desc, 0, sizeof desc);
    desc.learning_rate = learning_rate(&r->options, step);
    desc.beta1 = 0.9;
    desc.beta2 = 0.99;
    desc.epsilon = 1e-8;
    desc.weight_decay = 0.01;
    desc.clip = 1;
    desc.vote = interrupted;
    status =
        (r->is_graph ? gpt_run_staged : gpt_update)(r->model, &desc, loss, &gradient_norm, error);
    if (!status) status = run_read_times(r, error);
    if (!status && gpt_votes(r->model) > 0) r->stops = 1;
    if (!status && *loss - *loss != 0)
        status =
            memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                           "the loss of step %lld is not finite; try a --learning-rate below %g",
                           (long long)step + 1, r->options.learning_rate);
    return status;
}

static memo_status run_step(run* r, const job* j, int64_t step, double* loss, memo_error* error) {
    memo_status status = run_gradients(r, j, step, error);
    return status ? status : run_update(r, step, loss, error);
}

/* ---- rehearsal: what libraries take beside an arena --------------------------------------------- */

#ifdef TRAIN_CUDA
/* A step, and then the least room of all GPUs.  The rank's communicators still exist. */
static memo_status rehearse_on_rank(run* r, job* j, memo_error* error) {
    int64_t room = 0;
    double loss;
    memo_status status = run_step(r, j, 0, &loss, error);
    if (!status) status = train_device_room(&r->device, &room, error);
    room = -room;
    if (!status)
        status =
            train_collective(r->rank, MEMO_COLLECTIVE_ALL_REDUCE, &room, 1, MEMO_TYPE_I64, error);
    if (r->reports) j->room = -room;
    return status;
}

/* Kernels, cuBLASLt, cuDNN and NCCL's channels take device memory when they are first used, which would be after the
 * arena has all of it.  A step of one layer and few tokens uses them before the plan is made.  The plan gets what is
 * left then, less what preparing the kernels takes for a while, and the reserve. */
static memo_status rehearse(job* j, memo_error* error) {
    const int64_t unit = 2 * j->options.ring * j->options.ulysses;
    const int64_t least = gpt_round_up(gpt_min(j->options.tile, 256) * 2, unit);
    const gpt_config config = train_config(&j->options);
    const gpt_shapes shapes = gpt_shapes_make(&config);
    const gpt_share share = gpt_share_make(&config, NULL);
    const gpt_shapes all = gpt_shapes_of_attention(shapes, &config, &share);
    int64_t beside;
    job small = *j;
    train_device device;
    memo_step_plan** plan = &small.plans[MEMO_POLICY_KEEP];
    memo_status status;
    if (j->options.device_memory) return MEMO_STATUS_OK;
    small.options.sequence = gpt_min(j->options.sequence, least);
    if (!j->options.block_degrees) small.options.layers = 1;
    small.options.accumulate = 1;
    small.options.is_graph = 0;
    small.options.attention_memory = 0;
    if ((status = train_plan(&small.options, MEMO_POLICY_KEEP, NULL, plan, error))) return status;
    (*plan)->fits = 1;
    status = run_on_ranks(&small, MEMO_POLICY_KEEP, RUN_LIFTED, rehearse_on_rank, error);
    memo_step_plan_destroy(*plan);
    if (!status) status = train_device_plan(&device, &j->options, error);
    if (status) return status;
    beside = train_device_check_bytes(&device, &all) + j->options.reserve;
    train_device_close(&device);
    j->options.device_memory = small.room > beside ? small.room - beside : 1;
    printf(
        "room      %s of the GPU beside libraries%s%s; %s of it for checks before the first step "
        "and --reserve\n",
        bytes_name((double)small.room), j->options.ranks > 1 ? ", NCCL's world with " : "",
        j->options.ranks > 1 ? bytes_name((double)train_world_bytes()) : "",
        bytes_name((double)beside));
    return MEMO_STATUS_OK;
}
#else
static memo_status rehearse(job* j, memo_error* error) {
    (void)j;
    (void)error;
    return MEMO_STATUS_OK;
}
#endif

/* ---- setting up ----------------------------------------------------------------------------- */

static memo_status bad_directory(const char* path, const char* fault, memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_IO, "--output %.300s: cannot be %s: %s", path, fault,
                          strerror(errno));
}

/* With its parents. */
static memo_status make_directory(const char* path, memo_error* error) {
    char part[1024];
    size_t i, n = strlen(path);
    struct stat info;
    for (i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) == 0 || (stat(part, &info) == 0 && S_ISDIR(info.st_mode))) continue;
        return bad_directory(path, "made", error);
    }
    return MEMO_STATUS_OK;
}

/* Checks that the directory exists and is writable, or that it can be created.  Another run may
 * create it at the same time, so the test creates the first missing part under another name. */
static memo_status check_directory(const char* path, memo_error* error) {
    char part[1024 + 32];
    size_t i, n = strlen(path), n_parent = 0;
    struct stat info;
    for (i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (stat(part, &info)) break;
        n_parent = i;
    }
    if (i > n) {
        errno = ENOTDIR;
        if (S_ISDIR(info.st_mode) && access(path, W_OK | X_OK) == 0) return MEMO_STATUS_OK;
        return bad_directory(path, "written", error);
    }
    if (errno != ENOENT) return bad_directory(path, "made", error);
    memcpy(part, path, n_parent);
    snprintf(part + n_parent, 32, "%s.memo-%ld", n_parent ? "/" : "", (long)getpid());
    if (mkdir(part, 0777)) return bad_directory(path, "made", error);
    rmdir(part);
    return MEMO_STATUS_OK;
}

/* Files in --output, and their contents. */
#define N_OUTPUTS 8
static const char* const output_files[N_OUTPUTS][2] = {
    {"loss.svg", "loss over steps, beside the entropies of the text"},
    {"plan.svg", "address over time of every buffer of a micro-batch"},
    {"step.svg", "one step: streams, and device memory beside keeping every activation"},
    {"timeline.svg", "what each stream did in one step"},
    {"timeline.json", "the same, for chrome://tracing or ui.perfetto.dev"},
    {"step.trace", "the memory requests of a micro-batch"},
    {"step.plan", "their addresses"},
    {"step.profile", "times of a layer and of copies, for --profile"}}; /* if they were measured */

static const char* output_path(const job* j, const char* name, char* path, size_t n_path) {
    snprintf(path, n_path, "%s/%s", j->options.output, name);
    return path;
}

/* Checks that no output file is also an input, or another output. */
static memo_status check_files(const job* j, memo_error* error) {
    const train_options* o = &j->options;
    char paths[N_OUTPUTS][1024], sources[96];
    int n = 0, n_texts, i;
    memo_status status;
    tool_file* files;
    glob_t found;

    train_text_find_sources(&found, sources);
    n_texts = o->n_text_files ? (int)o->n_text_files : (int)found.gl_pathc;
    files = (tool_file*)calloc((size_t)n_texts + N_OUTPUTS + 5, sizeof(tool_file));
    if (!files) {
        globfree(&found);
        return no_memory("the names of files", error);
    }

    /* Inputs. */
    for (; n < n_texts; n++) {
        files[n].option = o->n_text_files ? "--text" : "the text";
        files[n].path = o->n_text_files ? o->text_files[n] : found.gl_pathv[n];
    }
    files[n].option = "--degrees";
    files[n++].path = o->degrees;
    files[n].option = "--profile";
    files[n++].path = o->profile;
    files[n].option = "--resume"; /* which --save may replace */
    if (!o->save || !o->resume || strcmp(o->save, o->resume)) files[n++].path = o->resume;

    /* Outputs. */
    files[n].option = "--loss-log";
    files[n].path = o->loss_log;
    files[n++].is_output = 1;
    files[n].option = "--save";
    files[n].path = o->save;
    files[n++].is_output = 1;
    for (i = 0; i < N_OUTPUTS && o->output; i++, n++) {
        files[n].option = "--output";
        files[n].path = output_path(j, output_files[i][0], paths[i], sizeof paths[i]);
        files[n].is_output = 1;
    }

    status = tool_check_files(files, n, error);
    free(files);
    globfree(&found);
    return status;
}

static memo_status bad_loss_log(const train_options* o, memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_IO, "--loss-log %.300s: cannot be written: %s",
                          o->loss_log, strerror(errno));
}

static int loss_log_is_in_output(const train_options* o) {
    size_t n = o->output ? strlen(o->output) : 0;
    return o->output && !strncmp(o->loss_log, o->output, n) && o->loss_log[n] == '/';
}

/* The file is written aside, and read only after planning. */
static memo_status check_saved(const train_options* o, memo_error* error) {
    char aside[1024];
    FILE* file = o->resume ? fopen(o->resume, "rb") : NULL;
    if (o->resume && !file)
        return memo_error_set(error, MEMO_STATUS_IO, "--resume %.300s: cannot be read: %s",
                              o->resume, strerror(errno));
    if (file) fclose(file);
    if (!o->save) return MEMO_STATUS_OK;
    snprintf(aside, sizeof aside, "%s.part", o->save);
    file = fopen(aside, "ab");
    if (!file)
        return memo_error_set(error, MEMO_STATUS_IO, "--save %.300s: cannot be written: %s",
                              o->save, strerror(errno));
    fclose(file);
    remove(aside);
    return MEMO_STATUS_OK;
}

/* Checks all outputs before the run plans and measures.  Changes no file and leaves none behind. */
static memo_status check_outputs(const job* j, memo_error* error) {
    const train_options* o = &j->options;
    memo_status status = MEMO_STATUS_OK;
    struct stat info;
    int exists;
    FILE* file;
    if (!train_is_first()) return status;
    if (o->output) status = check_directory(o->output, error);
    if (!status) status = check_files(j, error);
    if (!status) status = check_saved(o, error);
    if (status || !o->loss_log || loss_log_is_in_output(o)) return status;

    /* A pipe or a device is opened only once. */
    exists = stat(o->loss_log, &info) == 0;
    if (exists && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return MEMO_STATUS_OK;
    file = fopen(o->loss_log, exists ? "r+b" : "wb");
    if (!file) return bad_loss_log(o, error);
    fclose(file);
    if (!exists) remove(o->loss_log);
    return MEMO_STATUS_OK;
}

/* The last step before training, so that an earlier error leaves no files behind.  --output is
 * created when it is written, or now for a loss log in it. */
static memo_status open_outputs(job* j, memo_error* error) {
    const train_options* o = &j->options;
    memo_status status = MEMO_STATUS_OK;
    if (!train_is_first() || !o->loss_log) return status;
    if (loss_log_is_in_output(o)) status = make_directory(o->output, error);
    if (status) return status;
    j->loss_log = fopen(o->loss_log, "wb");
    return j->loss_log ? MEMO_STATUS_OK : bad_loss_log(o, error);
}

static void print_text(const job* j) {
    if (j->text.vocabulary) {
        printf("text      random tokens below %lld\n", (long long)j->text.vocabulary);
        return;
    }
    printf("text      %lld bytes of %lld file%s", (long long)j->text.n_bytes,
           (long long)j->text.n_files, j->text.n_files == 1 ? "" : "s");
    if (*j->text.sources) printf(", the project's own sources:%s", j->text.sources);
    printf("\nentropy   %.3f nats per byte; %.3f for one who knows the byte before\n",
           j->text.unigram_nats, j->text.bigram_nats);
}

static void print_model(const train_options* o) {
    gpt_config config = train_config(o);
    config.tensor = 1; /* of all ranks */
    config.degrees = NULL;
    printf("model     %lld layers of %lld, %lld heads (%lld of keys and values)%s: %.2f million "
           "parameters\n",
           (long long)o->layers, (long long)o->hidden, (long long)o->heads, (long long)o->kv_heads,
           config.mlp == GPT_MLP_SWIGLU ? ", SwiGLU" : "",
           1e-6 * (double)gpt_n_parameters(&config));
    printf("step      %lld x %lld sequences of %lld tokens, dropout %g, seed %lld\n",
           (long long)o->accumulate, (long long)o->batch, (long long)o->sequence, o->dropout,
           (long long)o->seed);
    if (o->window || o->documents) {
        printf("attention ");
        if (o->window)
            printf("to the last %lld tokens%s", (long long)o->window, o->documents ? ", " : "");
        if (o->documents)
            printf("within documents, at most %lld a sequence, that end with %lld",
                   (long long)o->documents, (long long)o->separator);
        printf("\n");
    }
    printf("budget    %sdevice %s, host %s, copies ", o->ranks > 1 ? "of each rank: " : "",
           o->device_memory ? bytes_name((double)o->device_memory) : "unlimited",
           o->host_memory ? bytes_name((double)o->host_memory) : "unlimited");
    if (o->link_bandwidth)
        printf("%.4g GB/s each way", 1e-9 * (double)o->link_bandwidth);
    else
        printf("as fast as memory");
    if (o->spill && o->host_memory)
        printf(", a file in %s for what the host cannot hold", o->spill);
    printf("\n");
}

static void print_keep(const train_options* o, int64_t keep_bytes) {
    printf("keep      keeping every activation would need %s of device memory",
           bytes_name((double)keep_bytes));
    if (o->device_memory)
        printf(", %.1f times the budget", (double)keep_bytes / (double)o->device_memory);
    printf("\n");
}

static void print_slices(const job* j) {
    if (*j->why_slices)
        printf("slices    of %lld rows, because %s\n", (long long)j->options.slice_rows,
               j->why_slices);
}

static void print_run(const train_options* o) {
    printf("run       ");
    if (o->compare)
        printf("%lld step%s of every policy compared, ", (long long)o->compare,
               o->compare == 1 ? "" : "s");
    printf("%s%lld step%s trained%s", o->seconds ? "up to " : "", (long long)o->steps,
           o->steps == 1 ? "" : "s", o->is_graph ? " by a CUDA graph" : "");
    if (o->sample) printf(", %lld bytes generated", (long long)o->sample);
    if (o->output) printf(", one step recorded");
    printf("\n");
}

static memo_status check_spill(const train_options* o, memo_error* error) {
    struct stat info;
    if (!o->spill) return MEMO_STATUS_OK;
    if (stat(o->spill, &info) == 0 && !S_ISDIR(info.st_mode))
        errno = ENOTDIR;
    else if (access(o->spill, W_OK | X_OK) == 0)
        return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_IO, "--spill %.300s: no file can be made there: %s",
                          o->spill, strerror(errno));
}

/* ---- plans: each policy once, from one profile ------------------------------------------------- */

/* Plans a policy, unless it is planned. */
static memo_status plan_policy(job* j, int policy, memo_error* error) {
    const memo_profile* profile = j->has_profile ? &j->profile : NULL;
    return j->plans[policy]
               ? MEMO_STATUS_OK
               : train_plan(&j->options, (memo_policy)policy, profile, &j->plans[policy], error);
}

static void forget_plans(job* j) {
    int policy;
    for (policy = 0; policy < N_POLICIES; policy++) {
        memo_step_plan_destroy(j->plans[policy]);
        j->plans[policy] = NULL;
    }
}

/* The times that are known without measuring: of --profile, estimates, or those beside a saved run
 * unless they are those of other micro-batches. */
static memo_status find_profile(job* j, memo_error* error) {
    train_options o = j->options;
    char path[1024];
    memo_status status = MEMO_STATUS_OK;
    if (o.profile) {
        status = read_profile(&o, &j->profile, error);
    } else if (o.is_dry_run) {
        estimate_profile(&o, &j->profile);
    } else {
        snprintf(path, sizeof path, "%s.profile", o.resume ? o.resume : "");
        o.profile = path;
        if (!o.resume || access(path, R_OK) || read_profile(&o, &j->profile, NULL))
            return MEMO_STATUS_OK;
    }
    j->has_profile = !status;
    return status;
}

/* Returns whether plans need times that are not known.  Keeping everything is fastest and needs none,
 * but --compare states the times of all policies. */
static memo_status needs_profile(job* j, int* needs, memo_error* error) {
    const train_options* o = &j->options;
    const int compares_all = o->compare && train_n_policies(o) == N_POLICIES;
    memo_status status = MEMO_STATUS_OK;
    *needs = 0;
    if (j->has_profile || o->alpha >= 0) return status;
    *needs = compares_all || o->policy == MEMO_POLICY_ALPHA;
    if (*needs || o->policy != MEMO_POLICY_MEMO) return status;
    status = plan_policy(j, MEMO_POLICY_KEEP, error);
    *needs = !status && !j->plans[MEMO_POLICY_KEEP]->fits;
    return status;
}

static memo_status measure_profile(job* j, memo_error* error) {
    memo_status status = check_measurement(&j->options, error);
    if (!status) status = run_on_ranks(j, MEMO_POLICY_KEEP, 0, NULL, error);
    j->has_profile = !status;
    return status;
}

/* Takes the largest slices that fit, if all rows at once do not: `plan`.  They depend on sizes alone, not on
 * times, so that a run that is resumed takes them again. */
static memo_status choose_slices(job* j, const memo_step_plan* plan, memo_error* error) {
    train_options* o = &j->options;
    char shortage[160];
    const int64_t n_rows = train_slices_that_fit(o);
    if (!n_rows) return refuse(o, plan, error);
    o->slice_rows = n_rows;
    snprintf(j->why_slices, sizeof j->why_slices, "all rows at once do not fit: %s",
             plan_shortage(plan, shortage, sizeof shortage));
    forget_plans(j);
    return find_profile(j, error);
}

/* Plans the policy of the run, from measured times where it needs them. */
static memo_status plan_run(job* j, memo_error* error) {
    memo_step_plan* const* plan = &j->plans[j->options.policy];
    memo_status measured = MEMO_STATUS_OK, status;
    memo_error why;
    int needs;
    status = needs_profile(j, &needs, error);
    if (!status && needs) measured = measure_profile(j, &why);
    if (!status && (!measured || measured == MEMO_STATUS_INFEASIBLE))
        status = plan_policy(j, (int)j->options.policy, error);
    if (!status && *plan && !(*plan)->fits) {
        status = choose_slices(j, *plan, error);
        return status ? status : plan_run(j, error);
    }
    return status || !measured ? status : memo_error_set(error, measured, "%s", why.message);
}

/* Loads text and profile, and plans.  Nothing is trained or written yet. */
static memo_status prepare(job* j, memo_error* error) {
    const train_options* o = &j->options;
    int needs = 0;
    memo_status status = o->is_random ? MEMO_STATUS_OK
                                      : train_text_load(&j->text, o->text_files, o->n_text_files,
                                                        o->sequence, error);
    if (o->is_random) train_text_random(&j->text, o->vocabulary);
    if (!status) status = check_spill(o, error);
    if (!status) status = find_profile(j, error);
    if (!status) status = rehearse(j, error);
    if (!status) status = needs_profile(j, &needs, error);
    if (!status && !needs) status = plan_run(j, error); /* a refusal prints nothing else */
    if (status) return status;

    print_text(j);
    print_model(o);
    print_ranks(o);
    train_device_print(o, train_n_started() ? 1 : o->ranks);
    print_run(o);
    fflush(stdout);
    if (needs) status = plan_run(j, error);
    if (!status) status = plan_policy(j, MEMO_POLICY_KEEP, error);
    if (!status) status = check_spill_room(o, j->plans[o->policy], error);
    if (status) return status;

    j->memory.n_layers = (int32_t)o->layers;
    j->memory.keep_bytes = j->plans[MEMO_POLICY_KEEP]->device_bytes;
    j->memory.activation_bytes = j->plans[MEMO_POLICY_KEEP]->activation_bytes;
    j->memory.plan_bytes = j->plans[o->policy]->device_bytes;
    print_keep(o, j->memory.keep_bytes);
    if (o->is_demo) print_longest(o);
    print_slices(j);
    if (needs) print_profile(&j->profile);
    print_choice(o, (memo_policy)o->policy, j->plans[o->policy], j->has_profile);
    print_plan(o, (memo_policy)o->policy, j->plans[o->policy]);
    fflush(stdout);
    return MEMO_STATUS_OK;
}

/* ---- number of steps ------------------------------------------------------------------------ */

/* Measures the median time of three steps, after one that touches all memory first. */
static memo_status time_steps(run* r, const job* j, double* step_s, memo_error* error) {
    enum { N = 3 };
    double times_s[N], loss, begin_s;
    memo_status status = run_step(r, j, 0, &loss, error);
    int i;
    for (i = 0; i < N && !status; i++) {
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
 * if a step is slow, the comparison.  It measures steps of the first policy that runs; a step of the
 * chosen one takes as much longer as predicted.  All ranks take the first rank's figures. */
static memo_status choose_steps(run* r, job* j, memo_error* error) {
    train_options* o = &r->options;
    const double slack = 1.3; /* other policies are slower, and steps vary */
    const double predicted_s = predicted_times(o, j->plans[o->policy]).layers_s;
    double shared[2], step_s, left_s, n;
    memo_status status;
    if (!o->seconds || r->policy != j->first_policy) return MEMO_STATUS_OK;
    status = time_steps(r, j, &shared[0], error);
    if (!status && r->times.layers_s > 0 && predicted_s > r->times.layers_s)
        shared[0] += predicted_s - r->times.layers_s;
    shared[1] = clock_s() - j->begin_s;
    if (!status) status = train_share(r->rank, shared, (int64_t)sizeof shared, error);
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
    printf("steps     %lld, to end within %lld s: one takes %.0f ms\n", (long long)o->steps,
           (long long)o->seconds, 1e3 * step_s);
    return MEMO_STATUS_OK;
}

/* ---- comparison of the policies ------------------------------------------------------------- */

static memo_status run_get_moved(run* r, int64_t* n_bytes, memo_error* error) {
    memo_session_info info;
    memo_swap_stats stats;
    memo_status status;
    memo_session_get_info(gpt_session(r->model), &info);
    status = memo_swap_get_stats(info.swap, &stats, error);
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

/* Are all gradients of a policy those of keep? */
static int has_same_gradients(const job* j, const comparison* row) {
    return !memcmp(row->digests, j->compared->digests,
                   (size_t)j->options.compare * sizeof *row->digests);
}

static void print_comparison(const job* j) {
    const int64_t n = j->options.compare;
    int policy;
    printf("\n%lld step%s of every policy, each from the initial parameters; time and stall are "
           "medians "
           "of a step, loss difference is in nats per token\n",
           (long long)n, n == 1 ? "" : "s");
    printf("policy      alpha  device peak   host peak  moved/step   step time     stall  "
           "loss diff  gradients  budget\n");
    for (policy = 0; policy < train_n_policies(&j->options); policy++) {
        const comparison* row = &j->compared[policy];
        double difference = 0;
        int64_t step;
        for (step = 0; step < n; step++)
            difference = fmax(difference, fabs(row->losses[step] - j->compared->losses[step]));
        printf("%-10s %6s %12s %11s %11s %8.1f ms %6.1f ms %10g  %-9s  %s%s\n",
               policy_names[policy], row->alpha, bytes_name((double)row->device_peak_bytes),
               bytes_name((double)row->host_peak_bytes), bytes_name((double)row->moved_bytes),
               1e3 * row->step_s, 1e3 * row->stall_s, difference,
               policy == 0                  ? "reference"
               : has_same_gradients(j, row) ? "equal"
                                            : "DIFFER",
               *row->shortage ? row->shortage : "fits",
               *row->shortage ? "; run without limit" : "");
    }

    /* Of planned rows. */
    for (policy = 0; policy < train_n_policies(&j->options); policy++) {
        const comparison* row = &j->compared[policy];
        if (row->predicted_s > 0)
            printf("%-10s predicted %.1f ms for forward and backward of a step, measured %.1f ms\n",
                   policy_names[policy], 1e3 * row->predicted_s, 1e3 * row->layers_s);
    }
}

/* Prints the table.  All losses and gradients must have the same bits. */
static memo_status end_comparison(const job* j, memo_error* error) {
    const train_options* o = &j->options;
    const size_t n_bytes = (size_t)o->compare * sizeof(double);
    int policy, are_equal = 1;
    print_comparison(j);
    for (policy = 0; policy < train_n_policies(o); policy++)
        are_equal &= has_same_gradients(j, &j->compared[policy]) &&
                     !memcmp(j->compared[policy].losses, j->compared->losses, n_bytes);
    if (!are_equal)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "the policies disagree: losses or gradients differ");
    printf("All losses and all gradients of these steps%s are bitwise the same.\n",
           o->zero && o->ranks > 1 ? ", rank 0's part of them," : "");
    fflush(stdout);
    return MEMO_STATUS_OK;
}

static memo_status begin_comparison(job* j, memo_error* error) {
    train_options* o = &j->options;
    int policy;
    memo_status status = MEMO_STATUS_OK;
    if (o->compare > o->steps) o->compare = o->steps;
    j->compared = (comparison*)calloc(N_POLICIES, sizeof *j->compared);
    if (!j->compared) return no_memory("--compare", error);
    for (policy = 0; policy < train_n_policies(o) && !status; policy++) {
        comparison* row = &j->compared[policy];
        row->losses = (double*)calloc((size_t)o->compare, sizeof *row->losses);
        row->digests = (uint64_t*)calloc((size_t)o->compare, sizeof *row->digests);
        if (!row->losses || !row->digests) return no_memory("--compare", error);
        status = plan_policy(j, policy, error);
        if (status) return status;
        plan_shortage(j->plans[policy], row->shortage, sizeof row->shortage);
        alpha_name(o, (memo_policy)policy, j->plans[policy], row->alpha, sizeof row->alpha);
        row->predicted_s = predicted_times(o, j->plans[policy]).layers_s;
        j->plans[policy]->fits = 1; /* beyond the budget it runs on a device without limits */
    }
    return status;
}

/* ---- training ------------------------------------------------------------------------------- */

static memo_status log_loss(job* j, int64_t step, double loss, memo_error* error) {
    const int64_t at = step - j->n_resumed;
    if (at >= j->n_losses) {
        int64_t n = 2 * at + 64;
        double* larger = (double*)realloc(j->losses, (size_t)n * sizeof *larger);
        if (!larger) return no_memory("the losses", error);
        j->losses = larger;
        j->n_losses = n;
    }
    j->losses[at] = loss;
    j->n_done = step + 1;
    if (!j->loss_log) return MEMO_STATUS_OK;
    fprintf(j->loss_log, "%lld %.17g %a\n", (long long)step + 1, loss, loss);
    if (fflush(j->loss_log) == 0) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_IO, "--loss-log %.300s: cannot be written: %s",
                          j->options.loss_log, strerror(errno));
}

/* Floating-point operations of a step by 6 s P + 6 n h s^2 a sequence, with P parameters and n layers, as the
 * MEMO paper counts them: a token sees s / 2 keys on average, or fewer. */
static void print_rate(const train_options* o, double keys_seen, double step_s) {
    gpt_config whole = train_config(o);
    const double n_sequences = (double)(o->accumulate * o->batch), s = (double)o->sequence;
    double flops;
    whole.tensor = 1; /* of all ranks */
    whole.degrees = NULL;
    flops =
        n_sequences * 6 * s *
        ((double)gpt_n_parameters(&whole) + 2 * (double)o->layers * (double)o->hidden * keys_seen);
    printf("rate      %.5g tokens/s, %.4g TFLOP/s by 6 s P + ", n_sequences * s / step_s,
           1e-12 * flops / step_s);
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

static int64_t last_step(const train_options* o) {
    return o->stop ? gpt_min(o->stop, o->steps) : o->steps;
}

/* The times of the last steps, for their medians. */
enum { N_TIMED = 64 };
typedef struct last_times {
    double layers_s[N_TIMED], stall_s[N_TIMED];
    int64_t n; /* of the steps added; counts again from 0 after the first step */
} last_times;

static void last_times_add(last_times* last, const step_times* times) {
    last->layers_s[last->n % N_TIMED] = times->layers_s;
    last->stall_s[last->n++ % N_TIMED] = times->stall_s;
}

/* The plan's times of a step beside the measured ones.  A graph has no events inside. */
static void print_prediction(const job* j, last_times* last, double step_s) {
    const int64_t n = gpt_min(last->n, N_TIMED);
    const step_times predicted = predicted_times(&j->options, j->plans[j->options.policy]);
    if (!(predicted.layers_s > 0)) return;
    printf(
        "predicted %.1f ms for forward and backward of a step, stalled %.1f ms, recomputing %.1f "
        "ms; measured ",
        1e3 * predicted.layers_s, 1e3 * predicted.stall_s, 1e3 * predicted.recompute_s);
    if (n)
        printf("%.1f ms, stalled %.1f ms\n", 1e3 * median(last->layers_s, n),
               1e3 * median(last->stall_s, n));
    else
        printf("%.1f ms with the update\n", 1e3 * step_s);
}

/* Continues after the steps of the saved run. */
static memo_status resume(run* r, job* j, int64_t* step, memo_error* error) {
    const train_options* o = &r->options;
    memo_error reason;
    memo_status status = gpt_read_checkpoint(r->model, o->resume, step, &reason);
    if (status) return memo_error_set(error, status, "--resume %s", reason.message);
    if (*step >= last_step(o))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "--resume %.300s: saved after step %lld; --steps or --stop above that "
            "would continue",
            o->resume, (long long)*step);
    if (!r->reports) return MEMO_STATUS_OK;
    j->n_resumed = *step;
    printf("resume    %s, after step %lld\n", o->resume, (long long)*step);
    return MEMO_STATUS_OK;
}

/* The profile is only a convenience, but an error of its file is one of the disk. */
static memo_status save(run* r, const job* j, int64_t step, memo_error* error) {
    const train_options* o = &j->options;
    memo_error reason;
    char path[1024];
    memo_status status = gpt_write_checkpoint(r->model, o->save, step, &reason);
    if (!status && r->reports && j->has_profile) {
        snprintf(path, sizeof path, "%s.profile", o->save);
        status = memo_profile_write(&j->profile, path, &reason);
    }
    return status ? memo_error_set(error, status, "--save %s", reason.message) : MEMO_STATUS_OK;
}

static memo_status train(run* r, job* j, memo_error* error) {
    const train_options* o = &r->options;
    const int64_t n_first = r->is_graph ? 2 : 1, n_steps = last_step(o);
    last_times last;
    int64_t sent[2];
    memo_status status = MEMO_STATUS_OK;
    progress shown;
    int64_t step = 0, first = 0, n_saved = -1;
    double loss, first_s = 0, step_s;
    last.n = 0;
    if (o->resume && (status = resume(r, j, &first, error))) return status;
    if (r->reports) train_device_print_products(&r->device);
    if (r->reports) printf("\n");
    r->keys_seen = 0;
    r->n_micro_batches = 0;
    train_sent_bytes(r->mesh, r->model, sent);
    progress_begin(&shown, first, n_steps, o->accumulate * o->batch * o->sequence);
    for (step = first; step < n_steps && !status && !r->stops; step++) {
        status = run_step(r, j, step, &loss, error);
        if (step + 1 == first + n_first) first_s = clock_s() - shown.begin_s;
        if (step == first + 1) last.n = 0; /* the first step counts only if it is alone */
        if (r->flags & RUN_TIMED) last_times_add(&last, &r->times);
        if (!status && r->reports) status = log_loss(j, step, loss, error);
        if (!status && r->reports) progress_show(&shown, step, loss);
        if (!status && o->save_every && (step + 1) % o->save_every == 0)
            status = save(r, j, n_saved = step + 1, error);
    }
    if (r->reports) progress_end(&shown);
    if (!status && o->save && n_saved != step) status = save(r, j, step, error);
    if (status) return status;
    r->n_steps = step;
    step -= first; /* of this run */

    /* The first step loads kernels, and the second captures the graph; they count only if they are
     * alone. */
    step_s = clock_s() - shown.begin_s;
    if (step > n_first)
        step_s = (step_s - first_s) / (double)(step - n_first);
    else if (step)
        step_s /= (double)step;
    if (r->reports && step) print_rate(o, r->keys_seen / (double)r->n_micro_batches, step_s);
    if (r->reports && step) print_prediction(j, &last, step_s);
    /* A replay's messages are not counted. */
    return train_report_ranks(r->rank, &r->device, r->mesh, r->model, o, sent, step_s,
                              r->is_graph ? gpt_min(step, n_first) : step, error);
}

static void print_loss(const job* j) {
    const int64_t n_losses = j->n_done - j->n_resumed;
    int64_t n = n_losses / 20 > 0 ? n_losses / 20 : 1, i;
    double sum = 0, mean;
    for (i = n_losses - n; i < n_losses; i++) sum += j->losses[i];
    mean = sum / (double)n;
    printf("\nloss, mean of the last %lld step%s   %.3f nats per %s\n", (long long)n,
           n == 1 ? "" : "s", mean, j->text.vocabulary ? "token" : "byte");
    if (j->text.vocabulary) {
        printf("a uniform guess                %.3f nats per token\n", j->text.unigram_nats);
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
    int64_t n_prompt = o->sequence < 64 ? o->sequence : 64, n = n_prompt, n_all;
    int64_t begin =
        (int64_t)(train_mix((uint64_t)o->seed) % (uint64_t)(j->text.n_bytes - n_prompt));
    uint8_t* bytes = (uint8_t*)malloc((size_t)(n_prompt + o->sample));
    memo_status status = MEMO_STATUS_OK;
    if (!bytes) return no_memory("--sample", error);

    while (begin > 0 && j->text.bytes[begin - 1] != '\n') begin--;
    memcpy(bytes, j->text.bytes + begin, (size_t)n_prompt);
    for (n_all = n_prompt + o->sample; n < n_all && !status && !(interrupted && o->ranks == 1);) {
        int64_t n_new = gpt_min(N_PIECE, n_all - n);
        status = gpt_generate(r->model, bytes, n, 0.8, train_mix((uint64_t)(o->seed + n)),
                              bytes + n, n_new, error);
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
    char path[1024], title[128];
    memo_status status = memo_schedule_measured(schedule, &times, error);
    snprintf(title, sizeof title, "One training step, policy %s, measured",
             policy_names[j->options.policy]);
    if (!status) status = make_directory(j->options.output, error);
    if (!status)
        status = memo_schedule_write_chrome(
            schedule, times, output_path(j, "timeline.json", path, sizeof path), error);
    if (!status)
        status = memo_schedule_write_svg(schedule, times, title,
                                         output_path(j, "timeline.svg", path, sizeof path), error);
    if (!status)
        status = step_picture_write(schedule, times, &j->memory, title,
                                    output_path(j, "step.svg", path, sizeof path), error);
    memo_simulation_destroy(times);
    return status;
}

/* Records a step more than were trained. */
static memo_status record_step(run* r, job* j, memo_error* error) {
    memo_schedule* schedule = NULL;
    double loss;
    memo_status status;
    r->is_graph = 0;
    memo_recorder_resume(r->recorder);
    status = run_step(r, j, r->n_steps, &loss, error);
    if (!status) status = memo_recorder_get_schedule(r->recorder, &schedule, error);
    if (status || !r->reports) return status;
    status = check_schedule(schedule, error);
    return status || !train_is_first() ? status : draw_schedule(j, schedule, error);
}

/* ---- pictures ------------------------------------------------------------------------------- */

static memo_status write_outputs(const job* j, memo_error* error) {
    const memo_step_plan* plan = j->plans[j->options.policy];
    loss_chart chart;
    char path[1024], title[128], loss_title[128];
    memo_status status;

    snprintf(title, sizeof title, "Memory plan of one micro-batch, policy %s, peak %s",
             policy_names[j->options.policy], bytes_name((double)plan->addresses->peak_bytes));
    memset(&chart, 0, sizeof chart);
    chart.losses = j->losses;
    chart.n_steps = j->n_done - j->n_resumed;
    chart.unigram_nats = j->text.unigram_nats;
    chart.bigram_nats = j->text.bigram_nats;
    snprintf(loss_title, sizeof loss_title, "Loss over training, policy %s in %s of device memory",
             policy_names[j->options.policy], bytes_name((double)plan->device_bytes));
    chart.title = loss_title;

    status = memo_plan_write_svg(plan->addresses, plan->trace, title,
                                 output_path(j, "plan.svg", path, sizeof path), error);
    if (!status)
        status = loss_chart_write(&chart, output_path(j, "loss.svg", path, sizeof path), error);
    if (!status)
        status =
            memo_trace_write(plan->trace, output_path(j, "step.trace", path, sizeof path), error);
    if (!status)
        status =
            memo_plan_write(plan->addresses, output_path(j, "step.plan", path, sizeof path), error);
    if (!status && j->has_profile)
        status = memo_profile_write(&j->profile, output_path(j, "step.profile", path, sizeof path),
                                    error);
    return status;
}

static void print_outputs(const job* j) {
    int i;
    printf("\n");
    for (i = 0; i < N_OUTPUTS - !j->has_profile; i++)
        printf("%s/%-14s %s\n", j->options.output, output_files[i][0], output_files[i][1]);
}

/* ---- the program ---------------------------------------------------------------------------- */

/* Plans every policy.  It needs no text and measures nothing, so only memory limits the plans. */
static memo_status dry_run(job* j, memo_error* error) {
    const train_options* o = &j->options;
    const memo_policy policy = (memo_policy)o->policy;
    const gpt_config config = train_config(o);
    const memo_step_plan* plan;
    memo_error refusal;
    memo_status status = MEMO_STATUS_OK, refused;
    int i;
    if (o->n_text_files)
        status = train_text_load(&j->text, o->text_files, o->n_text_files, o->sequence, error);
    if (!status) status = find_profile(j, error);
    if (!status) status = plan_run(j, error);
    if (status && (status != MEMO_STATUS_INFEASIBLE || !j->plans[policy])) return status;
    refused = status;
    refusal = *error;
    status = MEMO_STATUS_OK;

    plan = j->plans[policy];
    print_model(o);
    print_ranks(o);
    print_slices(j);
    if (o->profile)
        print_profile(&j->profile);
    else if (plan_needs_times(o, policy, plan))
        print_estimate(o);
    print_choice(o, policy, plan, o->profile || o->link_bandwidth > 0);
    print_plan(o, policy, plan);
    if (plan->times && plan->fits && o->flops > 0)
        print_rate(o, gpt_keys_seen(&config), (double)o->accumulate * plan->times->step_s);
    /* Each length is a plan: not for every budget. */
    if ((o->cluster || o->slice_rows) && o->device_memory && !gpt_is_mixed(&config) &&
        o->ring * o->ulysses == 1)
        print_longest(o);
    for (i = 0; i < train_n_policies(o) && !status; i++) status = plan_policy(j, i, error);
    if (!status) print_policies(o, j->plans);
    return status || !refused ? status : memo_error_set(error, refused, "%s", refusal.message);
}

/* Training repeats the steps of the comparison. */
static memo_status check_training(const job* j, memo_error* error) {
    const int64_t n = gpt_min(j->options.compare, j->n_done);
    if (!j->compared || memcmp(j->losses, j->compared->losses, (size_t)n * sizeof *j->losses) == 0)
        return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INVALID_STATE,
        "training and the comparison disagree: the losses of the first %lld steps "
        "differ",
        (long long)n);
}

/* What is done with a policy's session: its steps are compared; the chosen policy is the last, and trained. */
static memo_status run_policy(run* r, job* j, memo_error* error) {
    const train_options* o = &r->options;
    memo_status status = choose_steps(r, j, error);
    if (!status && !r->stops && (r->flags & RUN_COMPARED)) {
        status = compare_steps(r, j, error);
        if (!status && !r->stops && r->policy == (memo_policy)o->policy && r->reports)
            status = end_comparison(j, error);
        if (!status) status = gpt_restart(r->model, error);
    }
    if (!status && !r->stops && (r->flags & RUN_TRAINED)) {
        status = train(r, j, error);
        if (!status && !r->stops && r->reports) print_loss(j);
        if (!status && !r->stops && o->sample && (r->reports || o->tensor > 1))
            status = print_sample(j, r, error);
        if (!status && !r->stops && o->output) status = record_step(r, j, error);
    }
    if (r->reports && r->stops) interrupted = 1;
    return status;
}

/* Opens a session of each compared policy, and one to train.  A graph needs one of its own, because a timed
 * session cannot be captured. */
static memo_status work(job* j, memo_error* error) {
    const train_options* o = &j->options;
    const int chosen = (int)o->policy, shares = o->compare && !o->is_graph;
    const int trained = RUN_TRAINED | (shares ? RUN_COMPARED : 0) | (o->is_graph ? 0 : RUN_TIMED);
    memo_status status = MEMO_STATUS_OK;
    int policy;
    if (train_n_started()) signal(SIGTERM, on_interrupt); /* launchers send it after Ctrl-C */
    if (o->compare) status = begin_comparison(j, error);
    j->first_policy = (memo_policy)(o->compare && chosen == 0 ? 1 : o->compare ? 0 : chosen);
    for (policy = 0; policy < train_n_policies(o) && o->compare; policy++) {
        const int flags = RUN_TIMED | RUN_COMPARED;
        if (status || interrupted || (policy == chosen && shares)) continue;
        status = run_on_ranks(j, (memo_policy)policy,
                              *j->compared[policy].shortage ? flags | RUN_LIFTED : flags,
                              run_policy, error);
    }
    if (!status && !interrupted)
        status = run_on_ranks(j, (memo_policy)chosen, trained, run_policy, error);
    if (!status) status = check_training(j, error);
    if (!status && !interrupted && o->output && train_is_first()) status = write_outputs(j, error);
    if (!status && !interrupted && o->output) print_outputs(j);
    return status;
}

/* An error before training is an error of the command line: 2.  Later errors: 1. */
static int exit_code_of(memo_status status, int is_training) {
    if (interrupted) return 130;
    if (!status) return 0;
    return !is_training && (status == MEMO_STATUS_INVALID_ARGUMENT || status == MEMO_STATUS_IO ||
                            status == MEMO_STATUS_UNSUPPORTED || status == MEMO_STATUS_INFEASIBLE)
               ? 2
               : 1;
}

static void job_destroy(job* j) {
    int policy;
    forget_plans(j);
    train_text_free(&j->text);
    free(j->losses);
    for (policy = 0; policy < N_POLICIES && j->compared; policy++) {
        free(j->compared[policy].losses);
        free(j->compared[policy].digests);
    }
    free(j->compared);
    memo_degrees_free(j->options.block_degrees);
    if (j->loss_log) fclose(j->loss_log);
}

int main(int argc, char** argv) {
    job j;
    memo_error error;
    memo_status status;
    struct sigaction action;
    int is_training = 0, code;

    tool_keep_standard_streams();
    memset(&j, 0, sizeof j);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit fails the write instead */
    train_device_choose(argv);
    j.begin_s = clock_s();

    /* Options. */
    status = train_ranks_begin(&argc, &argv, &error);
    if (!status) status = train_parse(argc, argv, &j.options, &error);
    if (!status && !j.options.is_help) status = train_check_ranks(&j.options, &error);
    if (!status && !j.options.is_help) status = train_device_check(&j.options, &error);
    if (!status && !j.options.is_help) status = train_check_effects(&j.options, &error);

    /* Help, a plan, or a run. */
    if (!status && j.options.is_help) {
        train_print_help();
    } else if (!status && j.options.is_dry_run) {
        status = dry_run(&j, &error);
    } else if (!status) {
        status =
            train_device_begin(train_n_started() ? 1 : j.options.ranks, j.options.ranks, &error);
        if (!status) status = check_outputs(&j, &error);
        if (!status) status = prepare(&j, &error);
        if (!status && !interrupted) status = open_outputs(&j, &error);
        is_training = !status;
        if (!status && !interrupted) status = work(&j, &error);
    }

    if (!status) status = tool_flush(&error);
    code = exit_code_of(status, is_training);
    if (!status && interrupted && train_is_first())
        fprintf(stderr, "train_gpt: interrupted after step %lld\n", (long long)j.n_done);
    job_destroy(&j);
    train_device_end();
    return train_device_exit(train_ranks_end(code, status, error.message));
}
