/* degrees_plan.c - predicts tensor model parallelism: the time of overlapped schedules, and the
 * best degree of each block.
 *
 *   degrees_plan --forward 2,3,2,3 --recompute 2,3,2,3 --backward 4,6,4,6 --comm 2,2,2,2
 *
 * prints the makespans of two sub-batches.
 *
 *   degrees_plan --estimate 32,4096,4096,64 --cluster h100 --gpus 32 --profile-output FILE
 *
 * plans degrees for a GPT from the data sheets of a cluster, and writes the estimated profile.
 *
 *   degrees_plan --degrees-profile FILE
 *
 * plans degrees from a profile.  degrees_plan --help lists all options.
 *
 * Replace the estimates of a profile by what all ranks measure, for each degree d:
 *
 *   degree_comms_create(world, d, next, ...)                 the groups of d, and across to the
 *                                                            next larger degree
 *   measure_collective(comms.tensor, ..., ALL_REDUCE, ...)   C and CB: of a part's rows x hidden elements
 *   measure_collective(comms.data, ..., ALL_REDUCE, ...)     GRADIENTS: of the block's share of the weights
 *   measure_collective(comms.across, ..., ALL_GATHER, ...)   gather d next: of a part's rows x hidden elements
 *   event_elapsed around the block's functions, no comm      F: forward; X: recompute, backward and weights
 *   memory_info, or the plan of the arena                    STATE, SAVED, RUNTIME
 *
 * If two degrees are not adjacent, their gather uses the communicator across between these two.
 * examples/measure_collective.h measures a collective.
 *
 * Exit status: 0, 1 if no plan exists or a file cannot be written, 2 for a mistake in the command
 * line or a file.
 *
 * Build:  cc -std=c99 -O2 -I. examples/tools/degrees_plan.c -o degrees_plan -lpthread -lm */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#include "extras/memo_layout.h"
#include "extras/memo_look.h"

#include "clusters.h"
#include "degrees_model.h"
#include "degrees_profile.h"
#include "tool_files.h"

#include <stddef.h>

#define MAX_BLOCKS 4096
#define N_PARTS    2

static const char help[] =
    "usage: degrees_plan --forward F,... --recompute R,... --backward B,... --comm C,... "
    "[--timeline OUT]\n"
    "       degrees_plan --degrees-profile FILE [--output OUT]\n"
    "       degrees_plan --estimate LAYERS,HIDDEN,SEQUENCE,BATCH --cluster NAME --gpus N\n"
    "                    [--profile-output OUT] [--output OUT]\n"
    "\n"
    "Time of overlapped schedules.  Each block (attention, MLP, attention, MLP, ...) computes two\n"
    "sub-batches.  The lists have a time for one sub-batch in each block, in any one unit.  All\n"
    "lists have the same even number of times.\n"
    "  --forward F,...    forward computation\n"
    "  --recompute R,...  recomputation in the backward pass\n"
    "  --backward B,...   backward computation\n"
    "  --comm C,...       the all-reduce that ends each of these\n"
    "  --timeline OUT     writes a timeline of the forward pass and of backward_fine, in Chrome\n"
    "                     trace format (chrome://tracing, Perfetto)\n"
    "prints the makespan of six schedules:\n"
    "  forward_default, backward_default      each operation waits for the one before\n"
    "  forward_pipelined, backward_pipelined  the all-reduce of one sub-batch overlaps the\n"
    "                                         computation of the other\n"
    "  backward_cross                         recomputation also overlaps the backward\n"
    "  backward_fine                          as before, and recomputation needs no all-reduce\n"
    "\n"
    "A tensor-parallel degree for each block.\n"
    "  --degrees-profile FILE  times and bytes of each block at each degree (its format is\n"
    "                          in examples/tools/degrees_profile.h)\n"
    "  --estimate LAYERS,HIDDEN,SEQUENCE,BATCH   instead of a profile: a GPT, tokens of a\n"
    "                          sequence, sequences of the global batch\n"
    "  --cluster NAME          figures of its GPUs:";
static const char help_end[] =
    "\n"
    "  --gpus N                a power of two; degrees are the powers of two up to N\n"
    "  --profile-output OUT    writes the estimate as a profile\n"
    "  --output OUT            writes a file for the trainer's --degrees\n"
    "prints the degrees in runs and for each block, the step's time in seconds, a lower bound "
    "over\n"
    "all plans that fit, bytes of memory, whether the plan is optimal, and seconds to solve.\n"
    "\n"
    "Exit status: 0 done; 1 no plan exists, or a file cannot be written; 2 a mistake in the "
    "command\n"
    "line or in a file.\n";

typedef struct options {
    memo_block_times times[MAX_BLOCKS * N_PARTS];
    int n_blocks[4]; /* forward, recompute, backward, comm; 0: not given */
    const char *timeline, *profile, *output;
    const char *estimate, *cluster, *gpus, *profile_output;
    degrees_model model; /* of --estimate */
} options;

static const struct {
    const char* name;
    size_t offset; /* of the value in options */
} value_options[] = {{"--timeline", offsetof(options, timeline)},
                     {"--degrees-profile", offsetof(options, profile)},
                     {"--output", offsetof(options, output)},
                     {"--estimate", offsetof(options, estimate)},
                     {"--cluster", offsetof(options, cluster)},
                     {"--gpus", offsetof(options, gpus)},
                     {"--profile-output", offsetof(options, profile_output)}};
enum { N_VALUE_OPTIONS = sizeof value_options / sizeof *value_options };

static const char* const list_names[] = {"--forward", "--recompute", "--backward", "--comm"};

static int mistake(const char* format, ...) MEMO_PRINTF(1, 2);
static int mistake(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "degrees_plan: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "; --help lists the options\n");
    va_end(arguments);
    return 2;
}

/* Accepts only a plain time: digits, a point, an exponent. */
static int is_number(const char* text, size_t length) {
    return length > 0 && strspn(text, "0123456789.eE+-") >= length;
}

static int parse_list(options* o, int list, const char* text) {
    const char* at = text;
    if (o->n_blocks[list]) return mistake("%s: given twice", list_names[list]);
    for (;;) {
        size_t length = strcspn(at, ",");
        char* end;
        double value = is_number(at, length) ? strtod(at, &end) : -1;
        int block = o->n_blocks[list], s;
        if (!is_number(at, length) || end != at + length || !(value >= 0 && value <= 1e15))
            return mistake("%s: `%.*s` is not a time, a number from 0 to 1e15", list_names[list],
                           length < 40 ? (int)length : 40, at);
        if (block == MAX_BLOCKS)
            return mistake("%s: more than %d blocks", list_names[list], MAX_BLOCKS);
        for (s = 0; s < N_PARTS; s++) {
            memo_block_times* t = &o->times[block * N_PARTS + s];
            *(list == 0   ? &t->forward_s
              : list == 1 ? &t->recompute_s
              : list == 2 ? &t->backward_s
                          : &t->reduce_s) = value;
        }
        o->n_blocks[list]++;
        if (!at[length]) return 0;
        at += length + 1;
    }
}

static int parse_options(options* o, int argc, char** argv) {
    int k, code;
    for (int i = 1; i < argc; i += 2) {
        const char* value = i + 1 < argc ? argv[i + 1] : NULL;
        const char** text = NULL;
        for (k = 0; k < N_VALUE_OPTIONS; k++)
            if (!strcmp(argv[i], value_options[k].name))
                text = (const char**)((char*)o + value_options[k].offset);
        for (k = 0; k < 4 && strcmp(argv[i], list_names[k]); k++) continue;
        if (k == 4 && !text) return mistake("%.60s: unknown option", argv[i]);
        if (!value || !*value || !strncmp(value, "--", 2)) return mistake("%s: no value", argv[i]);
        if (text && *text) return mistake("%s: given twice", argv[i]);
        if (text)
            *text = value;
        else if ((code = parse_list(o, k, value)) != 0)
            return code;
    }
    return 0;
}

/* Reads a whole number from 1 to 2^40; 0 for anything else. */
static int64_t count_of(const char* text, char** end) {
    long long value = *text >= '0' && *text <= '9' ? strtoll(text, end, 10) : 0;
    return value >= 1 && value <= 1LL << 40 ? value : 0;
}

/* Fills o->model: the four sizes of --estimate, and the figures of the cluster. */
static int estimate_model(options* o) {
    const double flops_share =
        0.7; /* of the peak; layout_plan: 0.75 matrix products, 0.6 attention */
    const double latency_s = 20e-6; /* as in layout_plan */
    degrees_model* model = &o->model;
    const cluster_preset* c;
    int64_t counts[4] = {0, 0, 0, 0}, n_gpus, d;
    char* end = NULL;
    int i = cluster_find(o->cluster), k;
    const char* at = o->estimate;

    /* What the user wrote. */
    if (i == N_CLUSTERS) return mistake("--cluster: no such preset (%.60s)", o->cluster);
    c = &clusters[i];
    n_gpus = count_of(o->gpus, &end);
    if (!n_gpus || *end || (n_gpus & (n_gpus - 1)) || n_gpus > 1 << 15)
        return mistake("--gpus: not a power of two up to 32768 (%.60s)", o->gpus);
    for (k = 0; k < 4; k++) {
        counts[k] = count_of(at, &end);
        if (!counts[k] || *end != (k < 3 ? ',' : 0))
            return mistake(
                "--estimate is four numbers from 1, LAYERS,HIDDEN,SEQUENCE,BATCH, not %.60s",
                o->estimate);
        at = end + 1;
    }
    if (counts[0] > MAX_BLOCKS / 2 || counts[1] > 1 << 24)
        return mistake("--estimate: at most %d layers and a hidden size of %d", MAX_BLOCKS / 2,
                       1 << 24);

    /* A group within a node has its links; a larger one is as fast as its network. */
    memset(model, 0, sizeof *model);
    model->n_layers = (int32_t)counts[0];
    model->hidden = (int32_t)counts[1];
    model->sequence = counts[2];
    model->batch = counts[3];
    model->n_gpus = (int32_t)n_gpus;
    for (d = 1; d <= n_gpus && model->n_degrees < MEMO_DEGREES_MAX; d *= 2) {
        model->degrees[model->n_degrees] = (int32_t)d;
        model->bandwidth_bytes_per_s[model->n_degrees++] =
            1e9 * ((double)d <= c->per_node ? c->link : c->nic);
    }
    model->data_bandwidth_bytes_per_s = 1e9 * ((double)n_gpus <= c->per_node ? c->link : c->nic);
    model->latency_s = latency_s;
    model->flops_per_s = 1e12 * flops_share * c->flops;
    model->memory_bytes = (int64_t)c->memory << 30;
    return 0;
}

static int check_files(const options* o) {
    const tool_file files[] = {{"--degrees-profile", o->profile, 0},
                               {"--output", o->output, 1},
                               {"--timeline", o->timeline, 1},
                               {"--profile-output", o->profile_output, 1}};
    memo_error error;
    return tool_check_files(files, 4, &error) ? mistake("%s", error.message) : 0;
}

/* Checks that the options fit together. */
static int check_options(options* o) {
    int k, has_lists = 0;
    const char* alone = o->cluster          ? "--cluster"
                        : o->gpus           ? "--gpus"
                        : o->profile_output ? "--profile-output"
                                            : NULL;
    for (k = 0; k < 4; k++) has_lists |= o->n_blocks[k] > 0;

    /* Options that need others, or exclude them. */
    if (!has_lists && !o->profile && !o->estimate)
        return mistake("four lists, a --degrees-profile or an --estimate are needed");
    if (o->profile && o->estimate)
        return mistake("--degrees-profile and --estimate: one of the two is enough");
    if (!o->profile && !o->estimate && o->output)
        return mistake("--output needs --degrees-profile or --estimate");
    if (!o->estimate && alone) return mistake("%s needs --estimate", alone);
    if (o->estimate && (!o->cluster || !o->gpus))
        return mistake("--estimate needs --cluster and --gpus");
    if (!has_lists && o->timeline) return mistake("--timeline needs the four lists");

    /* The lists must have the same number of blocks, two per layer. */
    for (k = 0; k < 4 && has_lists; k++) {
        if (!o->n_blocks[k]) return mistake("%s is missing", list_names[k]);
        if (o->n_blocks[k] != o->n_blocks[0])
            return mistake("%s has %d times, %s has %d", list_names[k], o->n_blocks[k],
                           list_names[0], o->n_blocks[0]);
    }
    if (has_lists && o->n_blocks[0] % 2)
        return mistake("%d blocks; a layer has two, attention and MLP", o->n_blocks[0]);

    k = o->estimate ? estimate_model(o) : 0;
    return k ? k : check_files(o);
}

/* Writes the shortest decimal, without an exponent, that reads back as the same number.  value
 * >= 0. */
static void print_number(const char* key, double value) {
    char text[40], digits[24];
    int n_digits = 1, exponent;
    do snprintf(text, sizeof text, "%.*e", n_digits - 1, value);
    while (strtod(text, NULL) != value && n_digits++ < 17);
    exponent = atoi(strchr(text, 'e') + 1);
    digits[0] = text[0];
    for (int i = 1; i < n_digits; i++) digits[i] = text[i + 1]; /* behind the point */
    printf("%s: ", key);
    if (exponent < 0) printf("0.");
    for (int i = exponent < 0 ? exponent + 1 : 0; i < n_digits || i <= exponent; i++) {
        if (i > 0 && i == exponent + 1) putchar('.');
        putchar(i >= 0 && i < n_digits ? digits[i] : '0');
    }
    putchar('\n');
}

/* Prints the makespan of these passes as key; without a key, writes them as the timeline. */
static memo_status simulate(const options* o, const char* key, memo_blocks_order order,
                            int32_t passes, memo_error* error) {
    memo_blocks_schedule_desc desc = {0};
    memo_schedule* schedule;
    memo_simulation* simulation = NULL;
    memo_status status;
    desc.order = order;
    desc.n_blocks = o->n_blocks[0];
    desc.n_parts = N_PARTS;
    status = memo_blocks_generate(&desc, o->times, passes, &schedule, error);
    if (!status) status = memo_schedule_simulate(schedule, &simulation, error);
    if (!status && key) print_number(key, simulation->makespan_s);
    if (!status && !key)
        status = memo_schedule_write_chrome(schedule, simulation, o->timeline, error);
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
    return status;
}

/* The timeline has both passes on the same streams, one after the other. */
static memo_status print_makespans(const options* o, memo_error* error) {
    static const struct {
        const char* key;
        memo_blocks_order order;
        int32_t passes;
    } lines[] = {{"forward_default", MEMO_BLOCKS_DEFAULT, MEMO_BLOCKS_FORWARD},
                 {"forward_pipelined", MEMO_BLOCKS_PIPELINED, MEMO_BLOCKS_FORWARD},
                 {"backward_default", MEMO_BLOCKS_DEFAULT, MEMO_BLOCKS_BACKWARD},
                 {"backward_pipelined", MEMO_BLOCKS_PIPELINED, MEMO_BLOCKS_BACKWARD},
                 {"backward_cross", MEMO_BLOCKS_CROSS, MEMO_BLOCKS_BACKWARD},
                 {"backward_fine", MEMO_BLOCKS_FINE, MEMO_BLOCKS_BACKWARD},
                 {NULL, MEMO_BLOCKS_FINE, MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD}};
    const int n_lines = o->timeline ? 7 : 6;
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < n_lines && !status; k++)
        status = simulate(o, lines[k].key, lines[k].order, lines[k].passes, error);
    return status;
}

/* Prints "2*16+4*32": runs of blocks with one degree. */
static void print_degrees(const int32_t* degrees, int32_t n_blocks) {
    int32_t end;
    printf("degrees:");
    for (int32_t begin = 0; begin < n_blocks; begin = end) {
        for (end = begin; end < n_blocks && degrees[end] == degrees[begin];) end++;
        printf("%s%d*%d", begin ? "+" : " ", (int)degrees[begin], (int)(end - begin));
    }
    printf("\n");
    for (int32_t begin = 0; begin < n_blocks; begin++)
        printf("block_%d: %d\n", (int)begin, (int)degrees[begin]);
}

static memo_status plan_degrees(const memo_degrees_problem* problem, const options* o,
                                memo_error* error) {
    static int32_t degrees[MEMO_DEGREES_BLOCKS_MAX];
    memo_degrees_plan plan;
    memo_status status = memo_degrees_solve(problem, 0, degrees, &plan, error);
    if (status) return status;
    print_degrees(degrees, problem->n_blocks);
    print_number("step_s", plan.step_s);
    print_number("lower_bound_s", plan.lower_bound_s);
    printf("memory_bytes: %lld\n", (long long)plan.memory_bytes);
    printf("optimal: %d\n", plan.proof == MEMO_PROOF_OPTIMAL);
    printf("solve_s: %.6f\n", plan.solve_s);
    return o->output ? memo_degrees_write(degrees, problem->n_blocks, o->output, error)
                     : MEMO_STATUS_OK;
}

static void print_help(void) {
    fputs(help, stdout);
    for (int i = 0; i < N_CLUSTERS; i++) printf(" %s", clusters[i].name);
    fputs(help_end, stdout);
}

/* An unreadable or invalid file is a mistake of the caller. */
static int exit_code(memo_status status, int is_reading) {
    if (!status) return 0;
    return status == MEMO_STATUS_FORMAT || status == MEMO_STATUS_VERSION ||
                   status == MEMO_STATUS_UNSUPPORTED || (status == MEMO_STATUS_IO && is_reading)
               ? 2
               : 1;
}

int main(int argc, char** argv) {
    static options o;
    memo_degrees_problem* problem = NULL;
    memo_error error;
    memo_status status = MEMO_STATUS_OK;
    int code, is_reading = 0, is_help = 0, is_version = 0;

    tool_keep_standard_streams();
    for (int i = 1; i < argc; i++) is_help |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
    for (int i = 1; i < argc; i++) is_version |= !strcmp(argv[i], "--version");
    code = is_help || is_version ? 0 : parse_options(&o, argc, argv);
    if (!code && !is_help && !is_version) code = check_options(&o);
    if (code) return code;
    if (is_help) print_help();
    if (is_version && !is_help) tool_print_version(stdout, "degrees_plan");

    if (o.n_blocks[0]) status = print_makespans(&o, &error);

    if (!status && o.profile) {
        status = profile_read(o.profile, &problem, &error);
        is_reading = status != MEMO_STATUS_OK;
        if (!status) status = plan_degrees(problem, &o, &error);
        MEMO_FREE(problem);
    }

    if (!status && o.estimate) {
        status = degrees_problem_from_model(&o.model, &problem, &error);
        if (!status && o.profile_output) status = profile_write(problem, o.profile_output, &error);
        if (!status) status = plan_degrees(problem, &o, &error);
        MEMO_FREE(problem);
    }

    if (status) fprintf(stderr, "degrees_plan: %s\n", error.message);
    code = exit_code(status, is_reading);
    if (!tool_flush(&error)) return code;
    fprintf(stderr, "degrees_plan: %s\n", error.message);
    return 1;
}
