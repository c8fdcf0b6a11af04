/* bench/swap_plan.c - measures the predictions and the choices of the swap planner.  In a chain of
 * layers, computation sleeps and copies are throttled, so that overlap can be measured on any machine
 * with two cores.
 *
 *   cc -O2 -I. bench/swap_plan.c -lpthread -lm
 *   ./a.out [REPETITIONS]      measures
 *   ./a.out predict            predicts only
 *
 * predict: prints the predicted step beside the program's bound, for stacks of a 7B layer's shape.  The
 * bound holds for tables in which all layers are alike, so other tables may take less.  It fails if a
 * plan of 8 layers or more takes 0.5 % more than the bound.
 *
 * Measurement: two lengths, two bandwidths and three capacities; then little host memory, with a file on a
 * disk half and a fifth as fast as the link.  In each case the bench profiles the device, plans rows and
 * runs the plan.  It also runs every fixed plan of a grid that fits.  The grid has five alphas, and every
 * choice of kept, swapped or recomputed for whole tensors, with as many layers on the host as fit.  It
 * prints the predicted and the measured step (medians, all plans in turn) and the best of the grid.  It
 * fails if the prediction differs by more than 10 %, or if the plan takes 3 % more than the best of the
 * grid. */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "tests/gpt_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_LAYERS        5
#define N_TENSORS       4
#define N_PLANS_MAX     40
#define REPETITIONS_MAX 31

static memo_error error;

static void check(memo_status status) {
    if (!status) return;
    fprintf(stderr, "bench/swap_plan: %s\n", error.message);
    exit(1);
}

/* The folder of the spill file. */
static const char* folder(void) {
    const char* name = getenv("TMPDIR");
    return name && *name ? name : "/tmp";
}

static double median(double* values, int n) {
    qsort(values, (size_t)n, sizeof(double), memob_compare_doubles);
    return values[n / 2];
}

/* Input, attention output, q with k and v, and the MLP's: sizes as in a GPT layer.  The time of
 * attention grows with the square of the length. */
static const memo_tensor tensors[N_TENSORS] = {{"input", 64, MEMO_TENSOR_SWAPPED, 0},
                                               {"qkv", 192, MEMO_TENSOR_ROWS, 0},
                                               {"attention", 64, MEMO_TENSOR_WHOLE, 0},
                                               {"mlp", 512, MEMO_TENSOR_ROWS, 0}};
#define LAYER_ROW_BYTES (64 + 192 + 64 + 512)

/* The trainer: its stream, and the durations of its work. */
typedef struct trainer {
    memo_device* host;
    memo_stream compute;
    int64_t n_rows;
    double forward_s, backward_s, recompute_s[N_TENSORS]; /* of all rows; negative: impossible */
} trainer;

static void trainer_set_length(trainer* t, int64_t n_rows) {
    double length = (double)n_rows / 512, attention_s = 0.003 * length * length;
    t->n_rows = n_rows;
    t->forward_s = 0.007 * length + attention_s;
    t->backward_s = 2 * t->forward_s;
    t->recompute_s[0] = -1;
    t->recompute_s[1] = 0.0015 * length;
    t->recompute_s[2] = attention_s;
    t->recompute_s[3] = 0.003 * length;
}

static memo_status trainer_forward(void* user, memo_error* e) {
    trainer* t = (trainer*)user;
    return memo_host_device_sleep(t->host, t->compute, t->forward_s, e);
}
static memo_status trainer_backward(void* user, memo_error* e) {
    trainer* t = (trainer*)user;
    return memo_host_device_sleep(t->host, t->compute, t->backward_s, e);
}
static memo_status trainer_recompute(void* user, int32_t tensor, memo_error* e) {
    trainer* t = (trainer*)user;
    if (t->recompute_s[tensor] < 0)
        return memo_error_set(e, MEMO_STATUS_UNSUPPORTED, "not recomputed");
    return memo_host_device_sleep(t->host, t->compute, t->recompute_s[tensor], e);
}

static void step(trainer* t, memo_swap* swap) {
    int32_t layer, k;
    for (layer = 0; layer < N_LAYERS; layer++) {
        check(memo_swap_forward_begin(swap, layer, &error));
        check(trainer_forward(t, &error));
        check(memo_swap_forward_end(swap, layer, &error));
    }
    for (layer = N_LAYERS - 1; layer >= 0; layer--) {
        double recompute_s = 0;
        check(memo_swap_backward_begin(swap, layer, &error));
        for (k = 0; k < N_TENSORS; k++) {
            int64_t begin, end;
            memo_swap_get_recompute_rows(swap, layer, k, &begin, &end);
            recompute_s += t->recompute_s[k] * (double)(end - begin) / (double)t->n_rows;
        }
        if (recompute_s > 0)
            check(memo_host_device_sleep(t->host, t->compute, recompute_s, &error));
        check(trainer_backward(t, &error));
        check(memo_swap_backward_end(swap, layer, &error));
    }
}

/* One step of a plan, after one that warms up. */
static double measure(trainer* t, const memo_swap_desc* desc) {
    const memo_device* device = t->host;
    memo_swap* swap;
    memo_event begin, end;
    double elapsed_s;
    check(memo_swap_create(desc, &swap, &error));
    check(memo_event_create(device, &begin, &error));
    check(memo_event_create(device, &end, &error));
    step(t, swap);
    check(memo_stream_synchronize(device, t->compute, &error));
    check(memo_event_record(device, begin, t->compute, &error));
    step(t, swap);
    check(memo_event_record(device, end, t->compute, &error));
    check(memo_stream_synchronize(device, t->compute, &error));
    check(memo_event_elapsed(device, begin, end, &elapsed_s, &error));
    memo_event_destroy(device, begin, NULL);
    memo_event_destroy(device, end, NULL);
    memo_swap_destroy(swap);
    return elapsed_s;
}

/* ---- the plans of a point ---------------------------------------------------------------------- */

typedef struct fixed_plan {
    char name[48];
    memo_swap_desc desc;
    int64_t rows[N_LAYERS * N_TENSORS];
    double steps_s[REPETITIONS_MAX];
} fixed_plan;

/* With as many layers on the host as fit, where there is a file for the others. */
static int fits(memo_swap_desc* desc, int64_t device_bytes, int64_t host_bytes) {
    memo_swap_sizes sizes;
    desc->n_host_layers = 0;
    if (desc->spill_directory) (void)memo_swap_desc_fit_host(desc, host_bytes, &error);
    check(memo_swap_desc_get_sizes(desc, &sizes, &error));
    return sizes.device_bytes <= device_bytes && sizes.host_bytes <= host_bytes;
}

/* Five alphas, and every choice of a place for each whole tensor but the input, which is swapped. */
static int make_grid(const memo_swap_desc* desc, int64_t device_bytes, int64_t host_bytes,
                     fixed_plan* plans) {
    static const char* const words[] = {"keep", "swap", "recompute"};
    int n = 0, k, layer, t;

    /* One alpha for all tensors. */
    for (k = 0; k < 5; k++) {
        fixed_plan* plan = &plans[n];
        plan->desc = *desc;
        plan->desc.alpha = k / 4.0;
        snprintf(plan->name, sizeof plan->name, "alpha %.2f", k / 4.0);
        n += fits(&plan->desc, device_bytes, host_bytes);
    }

    /* Each tensor but the input kept, swapped or recomputed. */
    for (k = 0; k < 27; k++) {
        fixed_plan* plan = &plans[n];
        int places[N_TENSORS];
        places[0] = 1;
        places[1] = k % 3;
        places[2] = k / 3 % 3;
        places[3] = k / 9;
        plan->desc = *desc;
        plan->desc.rows = plan->rows;
        for (layer = 0; layer < N_LAYERS; layer++) {
            for (t = 0; t < N_TENSORS; t++)
                plan->rows[layer * N_TENSORS + t] = places[t] == 0   ? MEMO_ROWS_KEPT
                                                    : places[t] == 1 ? desc->n_rows
                                                                     : 0;
        }

        snprintf(plan->name, sizeof plan->name, "%s %s %s", words[places[1]], words[places[2]],
                 words[places[3]]);
        n += fits(&plan->desc, device_bytes, host_bytes);
    }
    return n;
}

typedef struct outcome {
    double worst_prediction, worst_choice;
} outcome;

/* disk_bytes_per_s 0: no file. */
static void run_point(trainer* t, const memo_profile* profile, const char* what,
                      int64_t device_bytes, int64_t host_bytes, double disk_bytes_per_s,
                      int repetitions, outcome* worst) {
    static fixed_plan plans[N_PLANS_MAX];
    memo_swap_desc desc = memo_swap_desc_default();
    memo_swap_plan_desc plan_desc = memo_swap_plan_desc_default();
    memo_kind_times times;
    double recompute_s_per_row[N_TENSORS];
    memo_swap_plan* plan;
    double chosen_s, best_s = 0, off;
    int n, i, k, best = 0;

    /* The engine's desc, without rows. */
    desc.device = t->host;
    desc.compute_stream = t->compute;
    desc.tensors = tensors;
    desc.n_tensors = N_TENSORS;
    desc.n_layers = N_LAYERS;
    desc.n_rows = t->n_rows;
    desc.tile_rows = 32;
    if (disk_bytes_per_s > 0) desc.spill_directory = folder();
    desc.spill_bytes_per_s = disk_bytes_per_s;

    /* The plan from the profile. */
    plan_desc.swap = &desc;
    plan_desc.device_bytes = device_bytes;
    plan_desc.host_bytes = host_bytes;
    plan_desc.spill_bytes = disk_bytes_per_s > 0 ? (int64_t)1 << 30 : 0;
    check(memo_swap_plan_use_profile(&plan_desc, &times, recompute_s_per_row, profile, &error));
    check(memo_plan_swap(&plan_desc, &plan, &error));

    /* The plan is measured last among the fixed plans, and in turn with them. */
    n = make_grid(&desc, device_bytes, host_bytes, plans);
    plans[n].desc = desc;
    memo_swap_plan_apply(plan, &plans[n].desc);
    for (k = 0; k < repetitions; k++)
        for (i = 0; i <= n; i++) plans[i].steps_s[k] = measure(t, &plans[i].desc);
    chosen_s = median(plans[n].steps_s, repetitions);
    for (i = 0; i < n; i++) {
        double step_s = median(plans[i].steps_s, repetitions);
        if (i > 0 && step_s >= best_s) continue;
        best_s = step_s;
        best = i;
    }

    printf("%5lld %5.2f %-14s %4.0f %5.0f %5.0f | %9.1f %9.1f %8.3f | %9.1f %9.3f  %-26s %s\n",
           (long long)t->n_rows,
           (double)t->n_rows * LAYER_ROW_BYTES / plan_desc.to_host_bytes_per_s / times.forward_s,
           what, (double)device_bytes / 1024, (double)host_bytes / 1024,
           (double)plan->spill_bytes / 1024, plan->step_s * 1e3, chosen_s * 1e3,
           chosen_s / plan->step_s, n ? best_s * 1e3 : 0, n ? chosen_s / best_s : 0,
           n ? plans[best].name : "none fits", plan->reason);
    fflush(stdout);

    off = fabs(chosen_s / plan->step_s - 1);
    if (off > worst->worst_prediction) worst->worst_prediction = off;
    if (n && chosen_s / best_s - 1 > worst->worst_choice)
        worst->worst_choice = chosen_s / best_s - 1;
    memo_swap_plan_destroy(plan);
}

/* At length 512 a copy of a layer takes copy_over_forward times its forward.  The disk has
 * disk_over_link of the link's rate; 0: no disk. */
static void run_device(int64_t n_rows, double copy_over_forward, double disk_over_link,
                       int repetitions, outcome* worst) {
    static const struct {
        const char* what;
        double device_layers, host_layers; /* capacities, in whole layers */
        int32_t has_disk;
    } capacities[] = {{"little of both", 1.6, 1.2, 0},
                      {"little host", 2.6, 1.2, 0},
                      {"enough host", 1.9, 3, 0},
                      {"host and disk", 2.1, 1.2, 1}};
    memo_host_device_desc host_desc = memo_host_device_desc_default();
    memo_profile_desc profile_desc = memo_profile_desc_default();
    memo_profile profile;
    trainer t;
    double layer_bytes = (double)n_rows * LAYER_ROW_BYTES, disk_bytes_per_s;
    size_t i;

    /* The rate of copies is set at length 512, so that it does not depend on n_rows. */
    memset(&t, 0, sizeof t);
    trainer_set_length(&t, 512);
    host_desc.to_host_bytes_per_s = host_desc.to_device_bytes_per_s =
        512.0 * LAYER_ROW_BYTES / (copy_over_forward * t.forward_s);
    disk_bytes_per_s = disk_over_link * host_desc.to_host_bytes_per_s;
    trainer_set_length(&t, n_rows);
    check(memo_host_device_create(&host_desc, &t.host, &error));
    check(memo_stream_create(t.host, "compute", 0, &t.compute, &error));

    /* Measure a profile on this device. */
    profile_desc.device = t.host;
    profile_desc.compute_stream = t.compute;
    profile_desc.forward = trainer_forward;
    profile_desc.backward = trainer_backward;
    profile_desc.recompute = trainer_recompute;
    profile_desc.user = &t;
    profile_desc.tensors = tensors;
    profile_desc.n_tensors = N_TENSORS;
    profile_desc.n_rows = n_rows;
    profile_desc.largest_copy_bytes = 256 * 1024;
    profile_desc.n_repetitions = repetitions;
    profile_desc.spill_directory = disk_over_link > 0 ? folder() : NULL;
    profile_desc.spill_bytes_per_s = disk_bytes_per_s;
    check(memo_profile_measure(&profile_desc, &profile, &error));

    for (i = 0; i < sizeof capacities / sizeof capacities[0]; i++)
        if (capacities[i].has_disk == (disk_over_link > 0))
            run_point(&t, &profile, capacities[i].what,
                      (int64_t)(capacities[i].device_layers * layer_bytes),
                      (int64_t)(capacities[i].host_layers * layer_bytes), disk_bytes_per_s,
                      repetitions, worst);

    memo_stream_destroy(t.host, t.compute, NULL);
    memo_host_device_destroy(t.host);
}

/* ---- predictions ------------------------------------------------------------------------------- */

/* Prints the excess over the bound in a grid of capacities; returns the largest. */
static double predict_stack(int32_t n_layers, int64_t n_rows, int has_file) {
    static const double hosts[] = {0.15, 0.5, 1}; /* of all layers */
    const double devices[] = {1.25, 1.6, 2.1, n_layers < 8 ? 1.8 : 0.3 * n_layers}; /* in layers */
    memo_tensor gpt[GPT_TENSORS];
    double per_row[GPT_TENSORS], layer_bytes = 0, most = 0, sum = 0, begin_s, slowest_s = 0;
    memo_kind_times times;
    memo_swap_desc swap;
    memo_swap_plan_desc desc;
    int i, k, t, n = 0, n_below = 0;

    gpt_layers(gpt, per_row, &times, &swap, &desc, n_layers, n_rows);
    desc.to_file_bytes_per_s = 6e9;
    desc.from_file_bytes_per_s = 10e9;
    for (t = 0; t < GPT_TENSORS; t++) layer_bytes += (double)(gpt[t].row_bytes * n_rows);

    /* All pairs of capacities; those that no plan fits are skipped. */
    for (i = 0; i < 4; i++)
        for (k = 0; k < (has_file ? 2 : 3); k++) {
            memo_swap_plan* plan = NULL;
            double excess;
            desc.device_bytes = (int64_t)(devices[i] * layer_bytes);
            desc.host_bytes = (int64_t)(hosts[k] * n_layers * layer_bytes) + 1;
            desc.spill_bytes = has_file ? (int64_t)(10 * n_layers * layer_bytes) : 0;
            begin_s = (double)clock() / CLOCKS_PER_SEC;
            if (memo_plan_swap(&desc, &plan, &error)) continue;
            begin_s = (double)clock() / CLOCKS_PER_SEC - begin_s;
            if (begin_s > slowest_s) slowest_s = begin_s;
            excess = plan->step_s / plan->program_s - 1;
            n++;
            sum += excess > 0 ? excess : 0;
            n_below += excess < 0;
            if (excess > most) most = excess;
            memo_swap_plan_destroy(plan);
        }

    printf("%6d %7lld %4s %6d | %8.3f %8.3f %6d | %8.2f\n", (int)n_layers, (long long)n_rows,
           has_file ? "yes" : "no", n, n ? 100 * sum / n : 0, 100 * most, n_below, slowest_s);
    fflush(stdout);
    return most;
}

static int predict(void) {
    static const int32_t stacks[] = {2, 4, 8, 16, 32, 56};
    double most = 0;
    int i, has_file;
    int64_t n_rows;
    printf("Predicted steps of a 7B layer's shape: percent above the bound, mean and most over\n"
           "capacities; plans below it; seconds of the slowest plan.\n\n");
    printf("%6s %7s %4s %6s | %8s %8s %6s | %8s\n", "layers", "rows", "file", "plans", "mean %",
           "most %", "below", "plan s");
    for (i = 0; i < 6; i++)
        for (n_rows = 65536; n_rows <= 262144; n_rows *= 2)
            for (has_file = 0; has_file < (stacks[i] < 8 ? 1 : 2); has_file++) {
                double here = predict_stack(stacks[i], n_rows, has_file);
                if (stacks[i] >= 8 && here > most) most = here;
            }
    printf("\nfrom 8 layers on at most %.3f %% above the bound (0.5 allowed)\n", 100 * most);
    return most > 0.005;
}

int main(int argc, char** argv) {
    static const int64_t lengths[] = {512, 1024};
    static const double copies[] = {0.7, 1.6}, disks[] = {0, 0.5, 0.2};
    int repetitions = argc > 1 ? atoi(argv[1]) : 3, i, k, d;
    outcome worst;
    if (argc > 1 && strcmp(argv[1], "predict") == 0) return predict();

    memset(&worst, 0, sizeof worst);
    if (repetitions < 1 || repetitions > REPETITIONS_MAX) {
        fprintf(stderr, "bench/swap_plan: repetitions must be 1 to %d\n", REPETITIONS_MAX);
        return 2;
    }

    printf(
        "Swap planner, host device: %d layers of %d bytes per row, medians of %d.\ncopy: time of "
        "copying a layer / forward time.  Capacities in KiB; file: bytes of the plan there.  "
        "grid: the best fixed plan, measured in turn with the plan; its words are for qkv, "
        "attention, mlp.\n\n",
        N_LAYERS, LAYER_ROW_BYTES, repetitions);
    printf("%5s %5s %-14s %4s %5s %5s | %9s %9s %8s | %9s %9s\n", "rows", "copy", "memory", "dev.",
           "host", "file", "predicted", "plan ms", "ratio", "grid ms", "plan/grid");

    for (d = 0; d < 3; d++)
        for (i = 0; i < 2; i++)
            for (k = 0; k < 2; k++)
                run_device(lengths[i], copies[k], disks[d], repetitions, &worst);

    printf(
        "\nthe prediction differs by at most %.1f %% (limit 10); the plan is slower than the best "
        "of the grid by at most %.1f %% (limit 3)\n",
        100 * worst.worst_prediction, 100 * worst.worst_choice);
    return worst.worst_prediction > 0.1 || worst.worst_choice > 0.03;
}
