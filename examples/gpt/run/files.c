#include "gpt/run/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "gpt/run/plan.h"
#include "gpt/run/ranks.h"
#include "gpt/show/picture.h"
#include "gpt/show/report.h"
#include "tools/tool_files.h"

/* ---- before the run ------------------------------------------------------------------------- */

memo_status bad_path(const char* name, const char* path, const char* fault, memo_error* error) {
    return memo_error_set(error, MEMO_STATUS_IO, "%s %.300s: cannot be %s: %s", name, path, fault,
                          strerror(errno));
}

/* The option would work with another name. */
static memo_status bad_name(const char* name, const char* path, const char* why,
                            memo_error* error) {
    return gpt_invalid(error, "%s %.300s: %s; another name would work", name, path, why);
}

int is_writable(const char* folder) {
    struct stat info;
    if (stat(folder, &info) || S_ISDIR(info.st_mode)) return access(folder, W_OK | X_OK) == 0;
    errno = ENOTDIR;
    return 0;
}

memo_status make_directory(const char* name, const char* path, int is_test, memo_error* error) {
    char part[1024];
    size_t n_parent = *path == '/';
    struct stat info;
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (stat(part, &info) == 0) {
            n_parent = i;
        } else if (errno == ENOENT && is_test) {
            part[n_parent] = 0;
            return is_writable(n_parent ? part : ".") ? MEMO_STATUS_OK
                                                      : bad_path(name, path, "made", error);
        } else if (errno != ENOENT || (mkdir(part, 0777) && errno != EEXIST)) {
            return bad_path(name, path, "made", error);
        }
    }
    return is_writable(path) ? MEMO_STATUS_OK : bad_path(name, path, "written", error);
}

/* Files in --output.  README.md says what is in them.  The last: if times are known. */
#define N_OUTPUTS 9
static const char* const output_files[] = {"report.html", "loss.svg",     "memory.svg",
                                           "plan.svg",    "timeline.svg", "timeline.json",
                                           "step.trace",  "step.plan",    "step.profile"};
MEMOB_TABLE_OF(N_OUTPUTS, output_files);

const char* output_path(const job* j, const char* name) {
    return path_text(j->options.output, name);
}

memo_status check_files(const job* j, memo_error* error) {
    const train_options* o = &j->options;
    /* --save may replace the file of --resume. */
    const int replaces = o->save && o->resume && tool_is_same_file(o->save, o->resume);
    const char* resume = replaces ? NULL : o->resume;
    /* So may --write-model those of --adapter. */
    const gpt_config config = train_config(o);
    const gpt_weight_files written = gpt_weight_files_of(&config);
    const int adapts = o->adapter && o->write_model &&
                       tool_is_same_file(path_text(o->adapter, written.weights),
                                         path_text(o->write_model, written.weights));
    const char* adapter = adapts ? NULL : o->adapter;
    const tool_file given[] = {{"--degrees", o->degrees, 0},
                               {"--profile", o->profile, 0},
                               {"--resume", resume, 0},
                               {"--tokens", o->tokens, 0},
                               {"--model", path_text(o->model, "config.json"), 0},
                               {"--model", path_text(o->model, "model.safetensors"), 0},
                               {"--adapter", path_text(adapter, "adapter_config.json"), 0},
                               {"--adapter", path_text(adapter, "adapter_model.safetensors"), 0},
                               {"--write-model", path_text(o->write_model, written.config), 1},
                               {"--write-model", path_text(o->write_model, written.weights), 1},
                               {"--resume", path_text(resume, ".profile"), 0},
                               {"--loss-log", o->loss_log, 1},
                               {"--save", o->save, 1},
                               {"--save", path_text(o->save, ".profile"), 1},
                               {"--save", path_text(o->save, ".lock"), 1}};
    enum { N_GIVEN = sizeof given / sizeof *given };
    const int n_texts = (int)j->text.n_files;
    int n = 0;
    tool_file* files = (tool_file*)calloc((size_t)n_texts + N_OUTPUTS + N_GIVEN, sizeof(tool_file));
    if (!files) return gpt_no_memory("the names of files", error);
    for (; n < n_texts; n++) {
        files[n].option = j->text.is_own ? "the text" : "--text";
        files[n].path = j->text.files[n];
    }
    memcpy(files + n, given, sizeof given);
    n += N_GIVEN;
    for (int i = 0; i < N_OUTPUTS && o->output; i++, n++) {
        files[n].option = "--output";
        files[n].path = output_path(j, output_files[i]);
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

/* Locks a loss log until it is closed.  A file system without locks has none.  kind: of flock. */
static memo_status lock_log(int file, int kind, const char* path, memo_error* error) {
    if (flock(file, kind | LOCK_NB) == 0 || errno != EWOULDBLOCK) return MEMO_STATUS_OK;
    return bad_name("--loss-log", path, "another run writes to this file", error);
}

/* Tests that a file of an option can be written.  A new file gets some bytes, and is removed; so
 * does a device get an empty line, but for a terminal.  A pipe is opened only once, later. */
static memo_status probe_file(const char* name, const char* path, memo_error* error) {
    static const char line[] = "1 5.5451774444795623 0x1.62e42fefa39efp+2\n";
    struct stat info;
    const int exists = stat(path, &info) == 0;
    const int is_device = exists && S_ISCHR(info.st_mode);
    if (exists && !is_device && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return MEMO_STATUS_OK;
    if (!exists && lstat(path, &info) == 0) return bad_name(name, path, "a link to no file", error);

    const int flags = O_WRONLY | O_NONBLOCK | O_CLOEXEC | (exists ? 0 : O_CREAT | O_EXCL);
    const int file = open(path, flags, 0600);
    if (file < 0) return bad_path(name, path, "written", error);
    const int is_full = is_device ? !isatty(file) && write(file, "\n", 1) < 0
                        : exists  ? 0
                                  : write(file, line, sizeof line - 1) < 0;
    memo_status status = is_full ? bad_path(name, path, "written", error) : MEMO_STATUS_OK;
    if (!status && !strcmp(name, "--loss-log")) status = lock_log(file, LOCK_SH, path, error);
    close(file);
    if (!exists) unlink(path);
    return status;
}

int64_t last_step(const train_options* o) {
    return o->stop ? gpt_min(o->stop, o->steps) : o->steps;
}

/* ---- what a run resumes ---------------------------------------------------------------------- */

/* Options on which the next steps depend.  A checkpoint keeps them and the text's digest. */
enum { N_KEPT = GPT_RUN_NUMBERS - 1 };
static const char* const kept_options[] = {
    "--steps",  "--learning-rate", "--seq",       "--batch", "--accumulate", "--dropout",
    "--window", "--documents",     "--separator", "--tile",  "--clip-by"};
MEMOB_TABLE_OF(N_KEPT, kept_options);

void kept_numbers(train_options o, const train_text* text, int64_t kept[GPT_RUN_NUMBERS]) {
    for (int i = 0; i < N_KEPT; i++) {
        const train_option* of = option_find(kept_options[i]);
        memcpy(&kept[i], (char*)&o + of->field, sizeof kept[i]);
    }
    kept[N_KEPT] = (int64_t)text->digest;
}

/* 0 of an option whose values begin above 0: it was not given. */
static int is_given(const train_option* o, int64_t number) { return number || !(o->low > 0); }

static void put_kept(const train_option* o, int64_t number, memo_text* text) {
    const char* name = o->kind == OPTION_NAME && number >= 0 ? option_name(o, number) : NULL;
    double real;
    memcpy(&real, &number, sizeof real);
    if (o->kind == OPTION_REAL)
        memo_text_put(text, "%.9g", real);
    else if (o->kind == OPTION_NAME)
        memo_text_put(text, "%s", name ? name : "?");
    else if (is_given(o, number))
        memo_text_put(text, "%lld", (long long)number);
    else
        memo_text_put(text, "none");
}

void put_changes(const job* j, memo_text* text) {
    int64_t now[GPT_RUN_NUMBERS];
    kept_numbers(j->options, &j->text, now);
    for (int i = 0; i < GPT_RUN_NUMBERS; i++) {
        if (now[i] == j->resumed.run[i]) continue;
        if (text->n_bytes) memo_text_put(text, ", ");
        if (i == N_KEPT) {
            memo_text_put(text, "another text");
            continue;
        }
        const train_option* o = option_find(kept_options[i]);
        const int was_given = is_given(o, j->resumed.run[i]);
        memo_text_put(text, was_given ? "%s " : "no %s", o->name);
        if (was_given) put_kept(o, j->resumed.run[i], text);
        memo_text_put(text, " (now ");
        put_kept(o, now[i], text);
        memo_text_put(text, ")");
    }
}

/* Reads the head, and in the first process all of the file. */
static memo_status check_resume(job* j, memo_error* error) {
    const train_options* o = &j->options;
    const gpt_config config = train_config(o);
    memo_text changes = {0};
    memo_error reason;
    memo_status status = MEMO_STATUS_OK;
    if (gpt_check_checkpoint(&config, o->resume, train_is_first(), &j->resumed, &reason))
        return gpt_invalid(error, "--resume %s", reason.message);
    put_changes(j, &changes);
    if (changes.n_bytes && !o->takes_changes)
        status = gpt_invalid(error,
                             "--resume %.300s: the saved run had %s; --resume-with-changes would "
                             "continue with other values",
                             o->resume, changes.data);
    memo_text_free(&changes);
    if (status || j->resumed.step < last_step(o)) return status;
    return gpt_invalid(error,
                       "--resume %.300s: saved after step %lld; --steps or --stop above that would "
                       "continue",
                       o->resume, (long long)j->resumed.step);
}

/* Returns the bytes of a loss log that a run continues: its lines up to the step that was saved.
 * -1: the file is no loss log. */
static int64_t loss_log_kept(FILE* log, int64_t step) {
    char line[128], *rest;
    int64_t at = 0;
    while (fgets(line, sizeof line, log)) {
        const long long n = strtoll(line, &rest, 10);
        const int is_whole = strchr(line, '\n') != NULL;
        if (rest == line || n < 1 || (*rest != ' ' && (is_whole || *rest))) return -1;
        if (!is_whole || n > step) break; /* a run was killed within a line */
        at = (int64_t)ftello(log);
    }
    return at;
}

/* Opens a log that is there, at the end of what is kept of it.  Cuts nothing yet. */
static memo_status open_old_log(job* j, memo_error* error) {
    const char* path = j->options.loss_log;
    j->loss_log = fopen(path, "r+b");
    if (!j->loss_log) return bad_path("--loss-log", path, "written", error);
    memo_status status = lock_log(fileno(j->loss_log), LOCK_EX, path, error);
    if (status) return status;
    const int64_t kept = loss_log_kept(j->loss_log, j->resumed.step);
    if (kept >= 0 && fseeko(j->loss_log, (off_t)kept, SEEK_SET) == 0) return MEMO_STATUS_OK;
    return bad_name("--loss-log", path, "holds no losses that could be continued", error);
}

/* ---- what a run saves ------------------------------------------------------------------------ */

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
                          o->save, bytes_name(n_bytes), bytes_name(bytes_free(folder)));
}

/* The file of a link is replaced, not the link.  Each process finds the same file. */
static memo_status find_save(job* j, memo_error* error) {
    const char* path = j->options.save;
    struct stat info;
    j->save.path = path;
    if (lstat(path, &info) || !S_ISLNK(info.st_mode)) return MEMO_STATUS_OK;
    j->save.path = j->save_path = realpath(path, NULL);
    return j->save_path ? MEMO_STATUS_OK : bad_name("--save", path, "a link to no file", error);
}

/* No other run may save to the file.  Its folder, the file and the profile can be written. */
static memo_status check_save(job* j, memo_error* error) {
    const char* path = j->save.path;
    struct stat info;
    memo_error reason;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return bad_name("--save", path, "not a regular file", error);
    memo_status status = gpt_lock_checkpoint(path, &j->lock, &j->save.aside, &reason);
    if (status) return memo_error_set(error, status, "--save %s", reason.message);
    status = probe_file("--save", path, error);
    if (!status) status = probe_file("--save", path_text(path, ".profile"), error);
    return status ? status : check_save_room(&j->options, error);
}

/* ---- the model that a run writes -------------------------------------------------------------- */

/* Its folder may be made later.  Transformers would read the files of an index instead. */
static memo_status check_model(job* j, memo_error* error) {
    const char* folder = j->options.write_model;
    const char* index = path_text(folder, "model.safetensors.index.json");
    const gpt_config config = train_config(&j->options);
    const int64_t n_bytes = gpt_weights_bytes(&config);
    const gpt_weight_files files = gpt_weight_files_of(&config);
    const char* const names[] = {files.config, files.weights};
    struct stat info;
    memo_status status = make_directory("--write-model", folder, 1, error);
    if (status || stat(folder, &info)) return status;
    if (!config.lora.rank && stat(index, &info) == 0)
        return bad_name("--write-model", folder, "has a model.safetensors.index.json", error);
    if (n_bytes > bytes_free(folder))
        return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                              "--write-model %.300s: %s do not fit into %s of free space; another "
                              "folder would work",
                              folder, bytes_name(n_bytes), bytes_name(bytes_free(folder)));

    /* Those of another training, which nobody else has. */
    if (config.lora.rank && !j->options.adapter && !j->options.resume &&
        stat(path_text(folder, files.weights), &info) == 0)
        return gpt_invalid(error,
                           "--write-model %.300s: has adapters already; --adapter %.300s would "
                           "train them further, and another name would keep them",
                           folder, folder);
    for (int i = 0; i < 2 && !status; i++) {
        const char* path = path_text(folder, names[i]);
        if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
            return bad_name("--write-model", path, "not a regular file", error);
        status = probe_file("--write-model", path, error);
    }
    return status;
}

/* Makes the folder; no other run may write to it. */
static memo_status open_model(job* j, memo_error* error) {
    const char* folder = j->options.write_model;
    const gpt_config config = train_config(&j->options);
    memo_error reason;
    memo_status status = make_directory("--write-model", folder, 0, error);
    if (status) return status;
    status = gpt_lock_checkpoint(path_text(folder, gpt_weight_files_of(&config).weights),
                                 &j->model_lock, &j->model_aside, &reason);
    return status ? memo_error_set(error, status, "--write-model %s", reason.message) : status;
}

/* ---- before and at the begin ----------------------------------------------------------------- */

memo_status check_outputs(job* j, memo_error* error) {
    const train_options* o = &j->options;
    struct stat info;
    memo_status status = o->resume ? check_resume(j, error) : MEMO_STATUS_OK;
    if (!status && o->save) status = find_save(j, error);
    if (!status && o->write_model && !(j->model_text = train_config_text(o, error)))
        status = error->status;
    if (status || !train_is_first()) return status;

    if (o->output) status = make_directory("--output", o->output, 1, error);
    for (int i = 0; i < N_OUTPUTS && o->output && !status; i++) {
        const char* path = output_path(j, output_files[i]);
        if (stat(path, &info) == 0) status = probe_file("--output", path, error);
    }
    if (!status && o->write_model) status = check_model(j, error);
    if (!status && o->save) status = check_save(j, error);
    if (status || !o->loss_log) return status;
    if (o->resume && stat(o->loss_log, &info) == 0 && S_ISREG(info.st_mode))
        return open_old_log(j, error);
    return loss_log_is_in_output(o) ? status : probe_file("--loss-log", o->loss_log, error);
}

memo_status open_outputs(job* j, memo_error* error) {
    const train_options* o = &j->options;
    const off_t kept = j->loss_log ? ftello(j->loss_log) : 0;
    struct stat info;
    memo_status status = MEMO_STATUS_OK;
    if (train_is_first() && o->write_model) status = open_model(j, error);
    if (status || !train_is_first() || !o->loss_log) return status;
    if (loss_log_is_in_output(o)) status = make_directory("--output", o->output, 0, error);
    if (status) return status;

    /* The lines of another run are cut only under the lock. */
    if (!j->loss_log) {
        j->loss_log = fopen(o->loss_log, "ab");
        if (j->loss_log) status = lock_log(fileno(j->loss_log), LOCK_EX, o->loss_log, error);
    }
    if (status) return status;
    if (!j->loss_log || fstat(fileno(j->loss_log), &info) ||
        (S_ISREG(info.st_mode) && ftruncate(fileno(j->loss_log), kept)))
        return bad_path("--loss-log", o->loss_log, "written", error);
    return status;
}

/* ---- pictures, and the page that shows them -------------------------------------------------- */

#define PAGE_BYTES 1900000 /* a picture that exceeds them stays a file */

/* Text as it is printed, behind what to see in it. */
static void page_put_text(memo_text* page, const char* title, const char* about,
                          const memo_text* printed) {
    if (!printed->n_bytes) return;
    memo_text_put(page, "<h2>%s</h2>\n<p>%s</p>\n<pre>\n", title, about);
    memo_text_put_xml(page, printed->data);
    memo_text_put(page, "</pre>\n");
}

static memo_status page_put_picture(const job* j, memo_text* page, const char* title,
                                    const char* about, const char* name, memo_error* error) {
    char* bytes = NULL;
    int64_t n_bytes = 0;
    memo_status status = tool_append_file(output_path(j, name), &bytes, &n_bytes, error);
    if (!status && page->n_bytes + n_bytes > PAGE_BYTES)
        memo_text_put(page, "<h2>%s</h2>\n<p>too large for this page: %s</p>\n", title, name);
    else if (!status)
        memo_text_put(page, "<h2>%s</h2>\n<p>%s</p>\n<div>%s</div>\n", title, about, bytes);
    free(bytes);
    return status;
}

/* Dark: paper, ink, weak ink and lines of the page and of its pictures; colors with a meaning stay,
 * or get a lighter shade where they are lines. */
static const char page_style[] =
    "body{font:15px Helvetica,Arial,sans-serif;max-width:1200px;margin:0 auto;padding:16px}"
    "pre{font-size:13px;overflow-x:auto}svg{width:100%;height:auto}"
    "@media(max-width:600px){pre{font-size:11px}div{overflow-x:auto}svg{min-width:800px}}"
    "@media(prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#dde1e6;--weak:#a3abb5;"
    "--line:#39414a}body{color:var(--ink);background:var(--paper)}"
    "svg,svg .h,svg .name,text[fill='#111']{fill:var(--ink)}svg .m,svg .s,svg .tick,text[fill="
    "'#555']{fill:var(--weak)}svg>rect[fill='white'],svg>rect[fill^='#fff']{fill:var(--paper)}"
    "rect[fill='#f6f7f9']{fill:#1d2126}rect[fill='#dadada']{fill:#59626d}svg .b,svg .tear{stroke:"
    "var(--paper)}svg .axis,svg .phase,line[stroke='#222']{stroke:var(--weak)}svg .grid,"
    "line[stroke='#e4e4e4'],line[stroke='#d9dce1']{stroke:var(--line)}[stroke='#9dbbe0']{stroke:"
    "#4a6285}[stroke='#1f4e9c']{stroke:#8ab4f8}text[fill='#b3261e']{fill:#ff8a80}"
    "[stroke='#b3261e']{stroke:#ff8a80}text[fill='#17693f']{fill:#6fcf97}"
    "[stroke='#17693f']{stroke:#6fcf97}rect[fill='#1f3b63']{stroke:#8fa8cc}}";

/* The page refers to no other file.  It is XML, too: a parser can check that it is well formed. */
static memo_status page_write(const job* j, memo_error* error) {
    static const char* const pictures[][3] = {
        {"Device memory", "memory.svg",
         "Who has which bytes of the device while a micro-batch runs."},
        {"Timeline", "timeline.svg",
         "One recorded step, so its makespan is not the median above. A row is a stream, a bar an "
         "operation: compute runs layers while the others copy rows between device and host. Bars "
         "\xe2\x80\x9con device\xe2\x80\x9d copy within the device, such as a layer's input. "
         "Gray lines are waits."},
        {"Addresses", "plan.svg",
         "Each buffer of a micro-batch at its planned address, from its request to its release."},
        {"Loss", "loss.svg", "What the model has learned, in any budget the same."}};
    const train_options* o = &j->options;
    memo_text page = {0}, plan = {0};
    memo_status status = MEMO_STATUS_OK;
    memo_text_put(&page,
                  "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><title>A training "
                  "run with memo</title>\n<style>%s</style></head><body>\n"
                  "<h1>A training run with memo</h1>\n"
                  "<p>%lld layers of %lld, %lld x %lld tokens a micro-batch, %lld steps, policy %s",
                  page_style, o->layers, o->hidden, o->batch, o->sequence, (long long)j->n_done,
                  memo_policy_name((memo_policy)o->policy));
    memo_text_put_xml(&page, j->plan->times ? text_of(": %s", j->plan->times->reason) : "");
    memo_text_put(&page, ".</p>\n");

    page_put_text(&page, "Policies",
                  "Ways to bring activations to the backward, on the same steps.", &j->told);
    memo_step_plan_put(j->plan, &plan);
    page_put_text(
        &page, "Plan",
        "How many rows of which tensor each layer keeps, swaps and recomputes, and the step "
        "that this predicts.",
        &plan);
    memo_text_free(&plan);
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures && !status; i++)
        status = page_put_picture(j, &page, pictures[i][0], pictures[i][2], pictures[i][1], error);
    memo_text_put(&page, "</body></html>\n");
    if (!status) return memo_text_write(&page, output_path(j, "report.html"), error);
    memo_text_free(&page);
    return status;
}

memo_status write_outputs(const job* j, memo_error* error) {
    const memo_step_plan* plan = j->plan;
    const char* policy = memo_policy_name((memo_policy)j->options.policy);
    memo_status status =
        memo_plan_write_svg(plan->addresses, plan->trace,
                            text_of("Memory plan of one micro-batch, policy %s, peak %s", policy,
                                    bytes_name(plan->addresses->peak_bytes)),
                            output_path(j, "plan.svg"), error);
    if (!status) status = memory_picture_write(plan, output_path(j, "memory.svg"), error);
    if (!status)
        status = loss_picture_write(j->losses, j->n_done - j->n_resumed, j->text.unigram_nats,
                                    j->text.bigram_nats,
                                    text_of("Loss over training, policy %s in %s of device memory",
                                            policy, bytes_name(plan->device_bytes)),
                                    output_path(j, "loss.svg"), error);
    if (!status) status = memo_trace_write(plan->trace, output_path(j, "step.trace"), error);
    if (!status) status = memo_plan_write(plan->addresses, output_path(j, "step.plan"), error);
    if (!status && j->has_profile)
        status = memo_profile_write(&j->profile, output_path(j, "step.profile"), error);
    return status ? status : page_write(j, error);
}

void print_outputs(const job* j) {
    printf("\n%s/%s shows the run on one page; beside it are", j->options.output, output_files[0]);
    for (int i = 1; i < N_OUTPUTS - !j->has_profile; i++)
        printf("%s %s", i > 1 ? "," : "", output_files[i]);
    printf("\n");
}
