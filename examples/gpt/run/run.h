/* run.h - a job, and a run of it: on each rank a device, a model with an open session, and
 * its steps. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include <signal.h>
#include <stdio.h>

#include "extras/memo_look.h"
#include "gpt/model/checkpoint.h"
#include "gpt/run/device.h"
#include "gpt/run/model.h"
#include "gpt/run/text.h"

/* Ctrl-C sets it, and loops over steps read it. */
extern volatile sig_atomic_t interrupted;

/* A signal of this kind interrupts.  A second one ends the program at once if is_once. */
void catch_signal(int signal_number, int is_once);

/* Before a file is made: no signal leaves one behind, and each ends the run as Ctrl-C does.  nohup
 * stays.  A broken pipe and the limit of processor time come again while the run saves. */
void catch_signals(void);

/* What the first options.compare steps of a policy show. */
typedef struct comparison {
    int is_short; /* of device or host memory: it runs without limit */
    int64_t device_peak_bytes, host_peak_bytes, moved_bytes; /* moved in a step */
    /* Of the steps that are timed.  predicted_s: of step_s, by the planner; 0: not predicted. */
    double *step_s, *stall_s, *predicted_s;
    double* losses;
    uint64_t* digests; /* of the gradients */
} comparison;

typedef struct job {
    train_options options;
    train_text text;
    memo_step_plan* plans[MEMO_N_POLICIES]; /* by policy; NULL: not needed yet */
    const memo_step_plan* plan;             /* of the run: of plans, or own_plan */
    memo_step_plan own_plan; /* of the run's session; what it points to is the session's */
    struct team* teams;      /* (policies) */
    char why_slices[512];    /* why the rows of a slice were chosen; empty: they were not */
    memo_profile profile;
    int has_profile, is_measured; /* is_measured: the profile, for the comparison */
    int64_t room;                 /* of a GPU beside libraries */
    double tried_s;               /* a step of what was tried */
    double begin_s;               /* when the program began */
    comparison* compared;         /* (policies) */
    double* scratch;              /* (options.compare): for medians */
    int64_t round;                /* of the comparison */
    int at_once;                  /* the compared policies are open at the same time */
    memo_text told;               /* what the run prints of the comparison, and the page repeats */
    int stops;                    /* all ranks end because some rank was interrupted */
    double* losses;               /* of steps n_resumed to n_done, nats per token */
    int64_t n_done, n_losses;     /* n_losses: capacity of losses */
    int64_t n_resumed;            /* steps before this run, whose losses are unknown */
    FILE* loss_log;
    gpt_file_head resumed;     /* of --resume */
    gpt_save save;             /* its path and aside; of --save */
    char* save_path;           /* NULL: --save */
    gpt_lock lock;             /* in the first process */
    gpt_stored weights;        /* of --model; n_tensors 0: none */
    gpt_stored adapter;        /* of --adapter; likewise */
    char* model_text;          /* config.json of --write-model */
    int64_t model_aside;       /* as save.aside */
    gpt_lock model_lock;       /* in the first process */
    memo_error log_failure;    /* of --loss-log, which does not end the training */
    memo_error output_failure; /* of standard output, which ends it as Ctrl-C does */
} job;

enum {
    RUN_LIFTED = 1, /* without capacities: a reference if the budget is too small */
    RUN_TIMED = 2,  /* measure steps, and stalls by events, without synchronizing */
    RUN_TIMES = 4,  /* the session times the first steps, and plans; no plan is given */
    RUN_TRAINED = 8 /* the job itself, and one step recorded */
};

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
    double step_s, stall_s;    /* of the last step, its update included; RUN_TIMED */
    int is_graph;              /* steps are staged, and then run as a graph */
    int reports;               /* this rank prints and fills results for its process */
    int stops;                 /* some rank was interrupted before the end of the last step */
    int64_t n_steps;           /* of the job, that are done */
    int64_t asides[2];         /* gpt_save.aside of --save and of --write-model */
} run;

/* A planned policy of a job on the ranks of this process. */
typedef struct team {
    thread_ranks ranks; /* n 0: closed */
    run runs[THREAD_RANKS_MAX];
    job* j;
    memo_status (*function)(run* r, job* j, memo_error* error); /* of the current call */
} team;

/* Calls function on each rank; only the reporting rank changes the job. */
memo_status team_call(team* t, memo_status (*function)(run* r, job* j, memo_error* error),
                      memo_error* error);

/* Does nothing if the team is closed. */
void team_close(team* t);

/* Opens a new model of a planned policy on each rank. */
memo_status team_open(team* t, job* j, memo_policy policy, int flags, memo_error* error);

/* Sets the parameters from the files of --model, or of --adapter, unless the run resumes another. */
memo_status run_load_weights(run* r, const job* j, memo_error* error);

/* Runs, or stages, forward and backward of all micro-batches of a step. */
memo_status run_gradients(run* r, const job* j, int64_t step, memo_error* error);
memo_status run_update(run* r, int64_t step, double* loss, memo_error* error);

memo_status run_step(run* r, const job* j, int64_t step, double* loss, memo_error* error);

/* Times the first steps, of one micro-batch each, in a session that ends: for plans of several
 * policies.  Sets job.profile, unless the run stops. */
memo_status time_layers(job* j, memo_error* error);

/* Sets job.plan to the plan that the run's session has open.  The reporting rank calls it. */
void run_take_plan(const run* r, job* j);
/* How many steps of a run are timed; the next one plans. */
int32_t run_timed_steps(const job* j);

/* ---- compare.c: the first steps of a policy, timed for --seconds, and compared --------------- */

/* The predicted time of a step; 0: none is predicted. */
double predicted_step_s(const memo_step_plan* plan);

/* Shortens the run to --seconds, so that it ends in time on any machine.  It reduces the steps and,
 * if a step is slow, the comparison.  The first policy that is open calls it; a step of the chosen
 * one takes longer in the ratio of their predictions.  All ranks take the slowest rank's
 * figures. */
memo_status choose_steps(run* r, job* j, memo_error* error);

/* Compares all policies.  The chosen one is the last and, if is_shared, stays open. */
memo_status compare_policies(job* j, int is_shared, memo_error* error);

/* ---- loop.c: steps, their losses and rate, checkpoints, generated text, one recorded step ---- */

/* Floating-point operations of a step by 6 s P + 6 n h s^2 a sequence, with P parameters and n
 * layers, as the MEMO paper counts them: a token sees s / 2 keys on average, or fewer: with
 * documents, as if they were as many as allowed and equally long. */
void print_rate(const train_options* o, double step_s);

/* Trains by an open session, which begins again if it was compared. */
memo_status train_chosen(run* r, job* j, memo_error* error);

#endif
