/* check_schedule - is there a race in this schedule, and which wait is missing or redundant?
 *
 *   check_schedule FILE [options]; check_schedule --help lists them
 *
 * FILE is a schedule as memo_look.h (chapter 5) describes it: written by hand, by
 * memo_schedule_write from a recorded program, or by any other program; "-" is standard input.
 *
 * Build:   cc -std=c99 -O2 -I. examples/tools/check_schedule.c -o check_schedule -lpthread -lm
 * Try:     build/examples/check_schedule tests/races/torchtune-1867.faulty.schedule --svg race.svg */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
#include "tool_files.h"

typedef struct options {
    const char *file, *svg, *chrome; /* NULL: not given */
} options;

static void print_help(void) {
    puts(
        "usage: check_schedule FILE [options]\n"
        "\n"
        "FILE is a schedule of operations on streams (memo_look.h, chapter 5); - is standard "
        "input.\n"
        "Prints each race with its diagnosis, and each wait that is redundant or has no record.\n"
        "\n"
        "  --svg OUT     draws the simulated timeline, with the operations in a race marked\n"
        "  --chrome OUT  writes the timeline for chrome://tracing and Perfetto\n"
        "\n"
        "Exit status: 0 no race; 1 a race; 2 a mistake in the command line or the file, or output\n"
        "that cannot be written");
}

/* Returns 0, or the exit status; -1 for help. */
static int parse_options(int argc, char** argv, options* o) {
    const tool_option known[] = {TOOL_OUTPUT("--svg", &o->svg),
                                 TOOL_OUTPUT("--chrome", &o->chrome)};
    memset(o, 0, sizeof *o);
    return tool_read_options(stderr, "check_schedule", argc, argv, known, 2, &o->file);
}

static void print_waits(const memo_schedule* schedule, const char* what, const int64_t* waits,
                        int64_t n_waits) {
    char text[512];
    for (int64_t i = 0; i < n_waits; i++)
        printf("%s: %s\n", what, memo_schedule_describe(schedule, waits[i], text, sizeof text));
}

static void print_check(const memo_schedule* schedule, const memo_check* check) {
    char text[2048];
    printf("operations: %lld\n", (long long)schedule->n_ops);
    printf("streams: %d\n", (int)schedule->n_streams);
    printf("waits: %lld\n", (long long)check->n_waits);
    printf("pairs_in_conflict: %lld\n", (long long)check->n_conflicts);
    printf("races: %lld\n", (long long)check->n_races);
    for (int64_t i = 0; i < check->n_races; i++)
        printf("race: %s\n", memo_race_explain(schedule, &check->races[i], text, sizeof text));
    print_waits(schedule, "unrecorded", check->unrecorded_waits, check->n_unrecorded_waits);
    print_waits(schedule, "redundant", check->redundant_waits, check->n_redundant_waits);
}

/* Renames to "race: NAME": the timeline gives one color to operations with the same word before the
 * colon. */
static memo_status mark_race(memo_schedule* schedule, int64_t op, memo_error* error) {
    const char* name = memo_schedule_op_name(schedule, op);
    char marked[256];
    if (!strncmp(name, "race: ", 6)) return MEMO_STATUS_OK;
    snprintf(marked, sizeof marked, "race: %s", name);
    return memo_schedule_name_op(schedule, op, marked, error);
}

static memo_status draw(const options* o, memo_schedule* schedule, const memo_check* check,
                        memo_error* error) {
    memo_simulation* times = NULL;
    memo_status status = MEMO_STATUS_OK;
    double sum_s = 0;
    for (int64_t i = 0; i < schedule->n_ops; i++) sum_s += schedule->ops[i].duration_s;
    for (int64_t i = 0; i < schedule->n_ops && sum_s == 0;
         i++) /* the file contains only the order */
        if (schedule->ops[i].kind == MEMO_OP_RUN) schedule->ops[i].duration_s = 1e-3;
    for (int64_t i = 0; i < check->n_races && !status; i++) {
        status = mark_race(schedule, check->races[i].first, error);
        if (!status) status = mark_race(schedule, check->races[i].second, error);
    }
    if (!status) status = memo_schedule_simulate(schedule, &times, error);
    if (!status && o->svg)
        status = memo_schedule_write_svg(schedule, times, o->file, o->svg, error);
    if (!status && o->chrome)
        status = memo_schedule_write_chrome(schedule, times, o->chrome, error);
    memo_simulation_destroy(times);
    return status;
}

int main(int argc, char** argv) {
    memo_schedule* schedule = NULL;
    memo_check* check = NULL;
    options o;
    memo_error error;
    memo_status status;
    int result;

    tool_keep_standard_streams();
    result = parse_options(argc, argv, &o);
    if (result < 0) {
        if (result == TOOL_VERSION) tool_print_version(stdout, "check_schedule");
        if (result == TOOL_HELP) print_help();
        if (!tool_flush(&error)) return 0;
        fprintf(stderr, "check_schedule: %s\n", error.message);
        return 2;
    }
    if (result) return result;

    /* The result is flushed first, so that a full disk is noticed before files are written. */
    status = memo_schedule_read(o.file, &schedule, &error);
    if (!status) status = memo_schedule_check(schedule, &check, &error);
    if (!status) {
        print_check(schedule, check);
        status = tool_flush(&error);
    }
    if (!status && (o.svg || o.chrome)) status = draw(&o, schedule, check, &error);
    if (status) fprintf(stderr, "check_schedule: %s\n", error.message);
    result = status ? 2 : check->n_races > 0;

    memo_check_destroy(check);
    memo_schedule_destroy(schedule);
    return result;
}
