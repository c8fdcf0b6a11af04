/* train_files.h - the files of a run: checked before it begins, opened, and written at its end. */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "gpt_checkpoint.h"
#include "train_run.h"

/* ---- before the run ------------------------------------------------------------------------- */

/* fault: made, read or written. */
static memo_status bad_path(const char* name, const char* path, const char* fault,
                            memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_IO, "%s %.300s: cannot be %s: %s", name, path, fault,
                          strerror(errno));
}

/* Makes the directory of --output with its parents.  is_test: only tests that it is writable, or
 * that it could be made.  Another run may make it at the same time, so the test makes the first
 * missing part under another name. */
static memo_status make_directory(const char* path, int is_test, memo_error* error) {
    char part[1024 + 32];
    size_t n_parent = 0;
    struct stat info;
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (stat(part, &info) == 0) {
            n_parent = i;
        } else if (errno == ENOENT && is_test) {
            snprintf(part + n_parent, 32, "%s.memo-%ld", n_parent ? "/" : "", (long)getpid());
            return mkdir(part, 0777) || rmdir(part) ? bad_path("--output", path, "made", error)
                                                    : MEMO_STATUS_OK;
        } else if (errno != ENOENT || (mkdir(part, 0777) && errno != EEXIST)) {
            return bad_path("--output", path, "made", error);
        }
    }
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        errno = ENOTDIR;
    else if (access(path, W_OK | X_OK) == 0)
        return MEMO_STATUS_OK;
    return bad_path("--output", path, "written", error);
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
    char paths[N_OUTPUTS][1024];
    /* --save may replace the file of --resume. */
    const int replaces = o->save && o->resume && !strcmp(o->save, o->resume);
    const tool_file given[] = {{"--degrees", o->degrees, 0},
                               {"--profile", o->profile, 0},
                               {"--resume", replaces ? NULL : o->resume, 0},
                               {"--loss-log", o->loss_log, 1},
                               {"--save", o->save, 1}};
    enum { N_GIVEN = sizeof given / sizeof *given };
    const int n_texts = (int)j->text.n_files;
    int n = 0;
    tool_file* files = (tool_file*)calloc((size_t)n_texts + N_OUTPUTS + N_GIVEN, sizeof(tool_file));
    if (!files) return no_memory("the names of files", error);
    for (; n < n_texts; n++) {
        files[n].option = *j->text.sources ? "the text" : "--text";
        files[n].path = j->text.files[n];
    }
    memcpy(files + n, given, sizeof given);
    n += N_GIVEN;
    for (int i = 0; i < N_OUTPUTS && o->output; i++, n++) {
        files[n].option = "--output";
        files[n].path = output_path(j, output_files[i][0], paths[i], sizeof paths[i]);
        files[n].is_output = 1;
    }

    memo_status status = tool_check_files(files, n, error);
    free(files);
    return status;
}

static int loss_log_is_in_output(const train_options* o) {
    size_t n = o->output ? strlen(o->output) : 0;
    return o->output && !strncmp(o->loss_log, o->output, n) && o->loss_log[n] == '/';
}

/* Opens the output of an option `name`, in this place.  A pipe or a device is opened only once,
 * later. */
static memo_status check_file(const char* name, const char* path, const char* place,
                              memo_error* error) {
    struct stat info;
    const int exists = stat(place, &info) == 0;
    FILE* file;
    if (exists && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return MEMO_STATUS_OK;
    file = fopen(place, exists ? "r+b" : "wb");
    if (!file) return bad_path(name, path, "written", error);
    fclose(file);
    if (!exists) remove(place);
    return MEMO_STATUS_OK;
}

static int64_t last_step(const train_options* o) {
    return o->stop ? gpt_min(o->stop, o->steps) : o->steps;
}

static memo_status check_resume(const train_options* o, memo_error* error) {
    const gpt_config config = train_config(o);
    gpt_file_head head;
    memo_error reason;
    if (gpt_check_checkpoint(&config, o->resume, &head, &reason))
        return gpt_invalid(error, "--resume %s", reason.message);
    if (head.step < last_step(o)) return MEMO_STATUS_OK;
    return gpt_invalid(error,
                       "--resume %.300s: saved after step %lld; --steps or --stop above that would "
                       "continue",
                       o->resume, (long long)head.step);
}

/* The disk must have room for the file that is written aside. */
static memo_status check_save_room(const train_options* o, memo_error* error) {
    const gpt_config config = train_config(o);
    const int64_t n_bytes = gpt_checkpoint_bytes(&config);
    char folder[1024];
    gpt_file_folder(o->save, folder, sizeof folder);
    if (n_bytes <= bytes_free(folder)) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "--save %.300s: a file of %s does not fit into %s of free space; another "
                          "folder would work",
                          o->save, bytes_name((double)n_bytes),
                          bytes_name((double)bytes_free(folder)));
}

/* Checks all files before the run plans and measures.  Changes none and leaves none behind. */
static memo_status check_outputs(const job* j, memo_error* error) {
    const train_options* o = &j->options;
    memo_status status = o->resume ? check_resume(o, error) : MEMO_STATUS_OK;
    struct stat info;
    char aside[1024];
    if (status || !train_is_first()) return status;
    if (o->output) status = make_directory(o->output, 1, error);
    if (!status) status = check_files(j, error);
    snprintf(aside, sizeof aside, "%s.part", o->save ? o->save : "");
    if (!status && o->save && stat(o->save, &info) == 0 && !S_ISREG(info.st_mode))
        status = gpt_invalid(error, "--save %.300s: not a regular file; another name would work",
                             o->save);
    if (!status && o->save) status = check_file("--save", o->save, aside, error);
    if (!status && o->save) status = check_save_room(o, error);
    if (!status && o->loss_log && !loss_log_is_in_output(o))
        status = check_file("--loss-log", o->loss_log, o->loss_log, error);
    return status;
}

/* The last step before training, so that an earlier error leaves no files behind.  --output is
 * created when it is written, or now for a loss log in it. */
static memo_status open_outputs(job* j, memo_error* error) {
    const train_options* o = &j->options;
    memo_status status = MEMO_STATUS_OK;
    if (!train_is_first() || !o->loss_log) return status;
    if (loss_log_is_in_output(o)) status = make_directory(o->output, 0, error);
    if (status) return status;
    j->loss_log = fopen(o->loss_log, "wb");
    return j->loss_log ? MEMO_STATUS_OK : bad_path("--loss-log", o->loss_log, "written", error);
}

/* ---- pictures ------------------------------------------------------------------------------- */

static memo_status write_outputs(const job* j, memo_error* error) {
    const memo_step_plan* plan = j->plans[j->options.policy];
    loss_chart chart = {0};
    char path[1024], title[128], loss_title[128];

    snprintf(title, sizeof title, "Memory plan of one micro-batch, policy %s, peak %s",
             policy_names[j->options.policy], bytes_name((double)plan->addresses->peak_bytes));
    chart.losses = j->losses;
    chart.n_steps = j->n_done - j->n_resumed;
    chart.unigram_nats = j->text.unigram_nats;
    chart.bigram_nats = j->text.bigram_nats;
    snprintf(loss_title, sizeof loss_title, "Loss over training, policy %s in %s of device memory",
             policy_names[j->options.policy], bytes_name((double)plan->device_bytes));

    memo_status status = memo_plan_write_svg(plan->addresses, plan->trace, title,
                                             output_path(j, "plan.svg", path, sizeof path), error);
    if (!status)
        status = loss_chart_write(&chart, loss_title, output_path(j, "loss.svg", path, sizeof path),
                                  error);
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
    printf("\n");
    for (int i = 0; i < N_OUTPUTS - !j->has_profile; i++)
        printf("%s/%-14s %s\n", j->options.output, output_files[i][0], output_files[i][1]);
}

#endif
