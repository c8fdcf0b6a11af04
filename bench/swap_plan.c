/* bench/swap_plan.c - measures the predictions and the choices of the swap planner.  In a chain of
 * layers, computation sleeps and copies are throttled, so that overlap can be measured on any
 * machine with two cores.
 *
 *   cc -O2 -I. bench/swap_plan.c -lpthread -lm
 *   ./a.out [REPETITIONS]      measures
 *   ./a.out predict            predicts only; with -DMEMO_LP_SOLVE beside a solver
 *   ./a.out kinds              the same for layers of several kinds
 *
 * predict: prints the predicted step of stacks of a 7B layer's shape beside a linear program that no plan
 * undercuts, unless layers skip the rounding buffers.  It fails if the plans of a stack take 0.5 % more in the
 * mean.
 *
 * Measurement: two lengths, two bandwidths and three capacities; then little host memory, with a
 * file on a disk half and a fifth as fast as the link.  In each case the bench profiles the device,
 * plans rows and runs the plan.  It also runs every fixed plan of a grid that fits.  The grid has
 * five alphas, and every choice of kept, swapped or recomputed for whole tensors, with as many
 * layers on the host as fit.  It prints the predicted and the measured step (medians, all plans in
 * turn) and the best of the grid.  It fails if the prediction differs by more than 10 %, or if the
 * plan takes 3 % more than the best of the grid. */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
#include "check.h"
#include "median.h"
#include "tests/plan/gpt_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_LAYERS        5
#define N_TENSORS       4
#define N_PLANS_MAX     40
#define REPETITIONS_MAX 31

/* The folder of the spill file. */
static const char* folder(void) {
    const char* name = getenv("TMPDIR");
    return name && *name ? name : "/tmp";
}

/* Input, attention output, q with k and v, and the MLP's: sizes as in a GPT layer.  The time of
 * attention grows with the square of the length. */
static const memo_item tensors[N_TENSORS] = {
    MEMO_ITEM("input", 64, MEMO_MOVE), MEMO_ITEM("qkv", 192, MEMO_ROWS),
    MEMO_ITEM("attention", 64, MEMO_WHOLE), MEMO_ITEM("mlp", 512, MEMO_ROWS)};
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

static memo_status compute(trainer* t, double duration_s) {
    return memo_host_device_sleep(t->host, t->compute, duration_s, &error);
}

/* How long this computation takes: the median. */
static double time_of(trainer* t, double duration_s, int repetitions) {
    double times_s[REPETITIONS_MAX];
    memo_event begin, end;
    check(memo_event_create(t->host, &begin, &error));
    check(memo_event_create(t->host, &end, &error));
    for (int i = 0; i < repetitions; i++) {
        check(memo_event_record(t->host, begin, t->compute, &error));
        check(compute(t, duration_s));
        check(memo_event_record(t->host, end, t->compute, &error));
        check(memo_event_synchronize(t->host, end, &error));
        check(memo_event_elapsed(t->host, begin, end, &times_s[i], &error));
    }
    memo_event_destroy(t->host, begin, NULL);
    memo_event_destroy(t->host, end, NULL);
    return median(times_s, repetitions);
}

static void step(trainer* t, memo_swap* swap) {
    for (int32_t layer = 0; layer < N_LAYERS; layer++) {
        check(memo_swap_forward_begin(swap, layer, &error));
        check(compute(t, t->forward_s));
        check(memo_swap_forward_end(swap, layer, &error));
    }
    for (int32_t layer = N_LAYERS - 1; layer >= 0; layer--) {
        double recompute_s = 0;
        check(memo_swap_backward_begin(swap, layer, &error));
        for (int32_t k = 0; k < N_TENSORS; k++) {
            int64_t begin, end;
            memo_swap_get_recompute_rows(swap, layer, k, &begin, &end);
            recompute_s += t->recompute_s[k] * (double)(end - begin) / (double)t->n_rows;
        }
        if (recompute_s > 0) check(compute(t, recompute_s));
        check(compute(t, t->backward_s));
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

/* ---- the plans of a point -------------------------------------------------------------------- */

typedef struct fixed_plan {
    char name[48];
    memo_swap_desc desc;
    int64_t rows[N_LAYERS * N_TENSORS];
    double steps_s[REPETITIONS_MAX];
} fixed_plan;

/* With as many layers on the host as fit, where there is a file for the others. */
static int fits(memo_swap_desc* desc, int64_t device_bytes, int64_t host_bytes) {
    memob_swap_placement placement;
    memo_swap_sizes sizes;
    desc->n_host_layers = 0;
    if (desc->spill_directory) {
        check(memob_swap_placement_fit(desc, host_bytes, &placement, &error));
        memob_swap_placement_free(&placement);
    }
    check(memo_swap_desc_get_sizes(desc, &sizes, &error));
    return sizes.device_bytes <= device_bytes && sizes.host_bytes <= host_bytes;
}

/* Five alphas, and every choice of a place for each whole tensor but the input, which is
 * swapped. */
static int make_grid(const memo_swap_desc* desc, int64_t device_bytes, int64_t host_bytes,
                     fixed_plan* plans) {
    static const char* const words[] = {"keep", "swap", "recompute"};
    int n = 0;

    /* One alpha for all tensors. */
    for (int k = 0; k < 5; k++) {
        fixed_plan* plan = &plans[n];
        plan->desc = *desc;
        plan->desc.alpha = k / 4.0;
        snprintf(plan->name, sizeof plan->name, "alpha %.2f", k / 4.0);
        n += fits(&plan->desc, device_bytes, host_bytes);
    }

    /* Each tensor but the input kept, swapped or recomputed. */
    for (int k = 0; k < 27; k++) {
        fixed_plan* plan = &plans[n];
        int places[N_TENSORS];
        places[0] = 1;
        places[1] = k % 3;
        places[2] = k / 3 % 3;
        places[3] = k / 9;
        plan->desc = *desc;
        plan->desc.rows = plan->rows;
        for (int layer = 0; layer < N_LAYERS; layer++) {
            for (int t = 0; t < N_TENSORS; t++)
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
    memo_swap_desc desc = {0};
    memo_swap_plan_desc plan_desc = {0};
    memo_swap_plan* plan;
    double chosen_s, best_s = 0, off;
    int n, best = 0;

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
    plan_desc.profile = profile;
    plan_desc.device_bytes = device_bytes;
    plan_desc.host_bytes = host_bytes;
    plan_desc.spill_bytes = disk_bytes_per_s > 0 ? (int64_t)1 << 30 : 0;
    check(memo_plan_swap(&plan_desc, &plan, &error));

    /* The plan is measured last among the fixed plans, and in turn with them. */
    n = make_grid(&desc, device_bytes, host_bytes, plans);
    plans[n].desc = desc;
    plans[n].desc.rows = plan->rows;
    plans[n].desc.alpha = plan->alpha;
    plans[n].desc.n_host_layers = plan->n_host_layers;
    for (int k = 0; k < repetitions; k++)
        for (int i = 0; i <= n; i++) plans[i].steps_s[k] = measure(t, &plans[i].desc);
    chosen_s = median(plans[n].steps_s, repetitions);
    for (int i = 0; i < n; i++) {
        double step_s = median(plans[i].steps_s, repetitions);
        if (i > 0 && step_s >= best_s) continue;
        best_s = step_s;
        best = i;
    }

    printf("%5lld %5.2f %-14s %4.0f %5.0f %5.0f | %9.1f %9.1f %8.3f | %9.1f %9.3f  %-26s %s\n",
           (long long)t->n_rows,
           (double)t->n_rows * LAYER_ROW_BYTES / memob_rows_find_rates(profile).bytes_per_s[0][0] /
               profile->forward_s[0],
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
    memo_host_device_desc host_desc = {0};
    const char* directory = disk_over_link > 0 ? folder() : NULL;
    memo_profile profile;
    trainer t;
    double layer_bytes = (double)n_rows * LAYER_ROW_BYTES, disk_bytes_per_s;

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
    memset(&profile, 0, sizeof profile);
    check(memoi_profile_measure(t.host, 256 * 1024, directory, disk_bytes_per_s, NULL, NULL, NULL,
                                &profile, &error));
    profile.n_rows = n_rows;
    profile.n_kinds = 1;
    profile.n_tensors = N_TENSORS;
    profile.forward_s[0] = time_of(&t, t.forward_s, repetitions);
    profile.backward_s[0] = time_of(&t, t.backward_s, repetitions);
    for (size_t i = 0; i < N_TENSORS; i++) {
        snprintf(profile.tensors[i].name, sizeof profile.tensors[i].name, "%s", tensors[i].name);
        profile.tensors[i].recompute_s_per_row[0] =
            t.recompute_s[i] < 0 ? -1 : time_of(&t, t.recompute_s[i], repetitions) / (double)n_rows;
    }

    for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++)
        if (capacities[i].has_disk == (disk_over_link > 0))
            run_point(&t, &profile, capacities[i].what,
                      (int64_t)(capacities[i].device_layers * layer_bytes),
                      (int64_t)(capacities[i].host_layers * layer_bytes), disk_bytes_per_s,
                      repetitions, worst);

    memo_stream_destroy(t.host, t.compute, NULL);
    memo_host_device_destroy(t.host);
}

/* ---- layers of several kinds ------------------------------------------------------------------- */

enum { KINDS_TENSORS_MAX = 13, KINDS_LAYERS_MAX = 200, KINDS_MAX = 3 };

typedef struct kinds_case {
    const char* name;
    memo_item tensors[KINDS_TENSORS_MAX];
    int32_t layer_kinds[KINDS_LAYERS_MAX];
    memo_profile times;
    memo_swap_desc swap;
    memo_swap_plan_desc desc;
} kinds_case;

static void add_tensor(kinds_case* c, const char* name, int64_t row_bytes, int32_t away,
                       uint32_t kinds, double us) {
    int32_t t = c->swap.n_tensors++;
    c->tensors[t].name = name;
    c->tensors[t].row_bytes = row_bytes;
    c->tensors[t].away = away;
    c->tensors[t].kinds = kinds;
    c->times.n_tensors = t + 1;
    strcpy(c->times.tensors[t].name, name);
    for (int32_t k = 0; k < KINDS_MAX; k++)
        c->times.tensors[t].recompute_s_per_row[k] = us < 0 ? -1 : 1e-6 * us;
}

/* Attention's share of a layer's time grows with the keys that a query sees. */
static void set_kind(kinds_case* c, int32_t kind, double us, double attention_us,
                     int32_t attention) {
    memo_profile* times = &c->times;
    times->forward_s[kind] = 1e-6 * (us + attention_us) * (double)c->swap.n_rows;
    times->backward_s[kind] = 1e-6 * (2 * us + 2.5 * attention_us) * (double)c->swap.n_rows;
    if (attention >= 0) times->tensors[attention].recompute_s_per_row[kind] = 1e-6 * attention_us;
}

/* Four stacks of the width of a 7B model. */
static void make_kinds(kinds_case* c, int which, int32_t n_layers, int64_t n_rows) {
    const double attention_us = 0.92 * (double)n_rows / 65536;
    memset(c, 0, sizeof *c);
    c->swap = MEMO_ZERO(memo_swap_desc);
    c->desc = MEMO_ZERO(memo_swap_plan_desc);
    c->swap.n_layers = n_layers;
    c->swap.n_rows = n_rows;
    c->swap.tile_rows = 1024;
    add_tensor(c, "input", 8192, MEMO_MOVE, 0, -1);
    switch (which) {
    case 0: /* local and global attention, 5 to 1 */
        c->name = "local, global 5:1";
        add_tensor(c, "qkv", 24576, MEMO_ROWS, 0, 0.15);
        add_tensor(c, "attention", 8320, MEMO_WHOLE, 0, 0);
        add_tensor(c, "middle", 16384, MEMO_ROWS, 0, 0.05);
        add_tensor(c, "up", 65536, MEMO_ROWS, 0, 0.2);
        set_kind(c, 0, 0.57, 0.1, 2);
        set_kind(c, 1, 0.57, attention_us, 2);
        for (int32_t l = 0; l < n_layers; l++) c->layer_kinds[l] = l % 6 == 5;
        break;
    case 1: /* dense layers first, then experts */
        c->name = "dense, experts";
        add_tensor(c, "qkv", 24576, MEMO_ROWS, 0, 0.15);
        add_tensor(c, "attention", 8320, MEMO_WHOLE, 0, attention_us);
        add_tensor(c, "up", 65536, MEMO_ROWS, 1, 0.2);
        add_tensor(c, "routed", 16384, MEMO_WHOLE, 2, 0.1);
        add_tensor(c, "experts", 32768, MEMO_ROWS, 2, 0.15);
        set_kind(c, 0, 0.57, attention_us, -1);
        set_kind(c, 1, 0.45, attention_us, -1);
        for (int32_t l = 0; l < n_layers; l++) c->layer_kinds[l] = l >= 3;
        break;
    case 2: /* state-space layers, each eighth one attention */
        c->name = "states, attention";
        add_tensor(c, "mixed", 49152, MEMO_ROWS, 1, 0.25);
        add_tensor(c, "states", 16384, MEMO_WHOLE, 1, 0.1);
        add_tensor(c, "qkv", 24576, MEMO_ROWS, 2, 0.15);
        add_tensor(c, "attention", 8320, MEMO_WHOLE, 2, attention_us);
        add_tensor(c, "up", 65536, MEMO_ROWS, 2, 0.2);
        set_kind(c, 0, 0.45, 0, -1);
        set_kind(c, 1, 0.57, attention_us, -1);
        for (int32_t l = 0; l < n_layers; l++) c->layer_kinds[l] = l % 8 == 4;
        break;
    default: /* an encoder and a decoder */
        c->name = "encoder, decoder";
        add_tensor(c, "qkv", 24576, MEMO_ROWS, 0, 0.15);
        add_tensor(c, "attention", 8320, MEMO_WHOLE, 0, attention_us);
        add_tensor(c, "cross", 16384, MEMO_ROWS, 2, 0.1);
        add_tensor(c, "crossed", 8320, MEMO_WHOLE, 2, attention_us);
        add_tensor(c, "up", 65536, MEMO_ROWS, 0, 0.2);
        set_kind(c, 0, 0.57, attention_us, -1);
        set_kind(c, 1, 0.8, 2 * attention_us, -1);
        for (int32_t l = 0; l < n_layers; l++) c->layer_kinds[l] = l >= n_layers / 2;
    }
    c->swap.tensors = c->tensors;
    c->swap.layer_kinds = c->layer_kinds;
    c->desc.swap = &c->swap;
    c->desc.profile = &c->times;
    c->times.n_rows = n_rows;
    c->times.n_kinds = KINDS_MAX;
    c->times.between_s = 0.05;
    set_rates(&c->times.copies[1], 55e9, 55e9);
    set_copy_s(&c->times, 5e-6);
}

static int kinds_has(const kinds_case* c, int32_t l, int32_t t) {
    return !c->tensors[t].kinds || c->tensors[t].kinds >> c->layer_kinds[l] & 1;
}

static double kinds_bytes(const kinds_case* c, int32_t l) {
    double sum = 0;
    for (int32_t t = 0; t < c->swap.n_tensors; t++)
        if (kinds_has(c, l, t)) sum += (double)(c->tensors[t].row_bytes * c->swap.n_rows);
    return sum;
}

#ifdef MEMO_LP_SOLVE
typedef struct kinds_program {
    lprec* lp;
    double values[4 * KINDS_TENSORS_MAX + 8];
    int columns[4 * KINDS_TENSORS_MAX + 8];
    int n;
} kinds_program;

static void kinds_term(kinds_program* f, double value, int column) {
    f->values[f->n] = value;
    f->columns[f->n++] = column;
}
static void kinds_row(kinds_program* f, int relation, double bound) {
    if (!add_constraintex(f->lp, f->n, f->values, f->columns, relation, bound)) exit(1);
    f->n = 0;
}

/* The least step over shares: kept, swapped and recomputed of each tensor of each layer apart, with
 * a start time for each operation.  Layers may keep a part of a tensor, so no table is shorter if
 * each layer waits for the one two before it.  -1: no solution. */
static double kinds_solver_s(const kinds_case* c) {
    const memo_swap_plan_desc* d = &c->desc;
    const double unit = (double)c->swap.n_rows * 8192; /* of bytes */
    int n = c->swap.n_layers, n_t = c->swap.n_tensors, t, k, result;
    int shares = 1, parts = shares + 3 * n * n_t, area = parts + 3 * n_t, forward = area + 1;
    int backward = forward + n, store = backward + n, load = store + n, step = load + n;
    double value = -1, bytes;
    kinds_program f;
#define SHARE(layer, tensor, which) (shares + 3 * ((layer)*n_t + (tensor)) + (which))
#define BYTES(tensor)               ((double)c->tensors[tensor].row_bytes * (double)c->swap.n_rows / unit)
#define KIND(layer)                 c->layer_kinds[layer]
    f.n = 0;
    f.lp = make_lp(0, step);
    set_verbose(f.lp, 0);
    set_minim(f.lp);
    set_add_rowmode(f.lp, TRUE);

    /* Shares, and the parts of each region: even, recomputed, odd. */
    for (int l = 0; l < n; l++)
        for (t = 0; t < n_t; t++) {
            if (!kinds_has(c, l, t)) continue;
            for (k = 0; k < 3; k++) kinds_term(&f, 1, SHARE(l, t, k));
            kinds_row(&f, EQ, 1);
            if (c->tensors[t].away == MEMO_MOVE) {
                kinds_term(&f, 1, SHARE(l, t, 2));
                kinds_row(&f, LE, 0);
            }
            for (k = 1; k < 3 && !c->tensors[t].kinds; k++) {
                kinds_term(&f, 1, SHARE(l, t, k));
                kinds_term(&f, -1, parts + 3 * t + (k == 2 ? 1 : l % 2 ? 2 : 0));
                kinds_row(&f, LE, 0);
            }
        }

    /* The area: what one neighbor swaps and all of the other. */
    for (int l = 0; l < n; l++)
        for (k = -1; k <= 1; k++) {
            if (l + k < 0 || l + k >= n) continue;
            for (t = 0; t < n_t; t++) {
                if (!c->tensors[t].kinds) continue;
                if (kinds_has(c, l, t)) {
                    kinds_term(&f, BYTES(t), SHARE(l, t, 1));
                    kinds_term(&f, BYTES(t), SHARE(l, t, 2));
                }
                if (k && kinds_has(c, l + k, t)) kinds_term(&f, BYTES(t), SHARE(l + k, t, 1));
            }
            kinds_term(&f, -1, area);
            kinds_row(&f, LE, 0);
        }
    set_add_rowmode(f.lp, FALSE);

    /* Budgets. */
    {
        double* row = (double*)calloc((size_t)step + 1, sizeof(double));
        if (!row) exit(1);
        for (int l = 0; l < n; l++)
            for (t = 0; t < n_t; t++) row[SHARE(l, t, 0)] = BYTES(t) * kinds_has(c, l, t);
        for (t = 0; t < n_t; t++)
            for (k = 0; k < 3; k++) row[parts + 3 * t + k] = c->tensors[t].kinds ? 0 : BYTES(t);
        row[area] = 1;
        add_constraint(f.lp, row, LE, (double)d->device_bytes / unit);
        memset(row, 0, ((size_t)step + 1) * sizeof(double));
        for (int l = 0; l < n - 2; l++)
            for (t = 0; t < n_t; t++) row[SHARE(l, t, 1)] = BYTES(t) * kinds_has(c, l, t);
        if (d->host_bytes) add_constraint(f.lp, row, LE, (double)d->host_bytes / unit);
        free(row);
    }

/* later >= earlier + fixed_s + what layer i copies (1) or recomputes (2) */
#define AFTER(later, earlier, fixed_s, what, i)                                                    \
    do {                                                                                           \
        kinds_term(&f, 1, later);                                                                  \
        kinds_term(&f, -1, earlier);                                                               \
        for (t = 0; t < n_t && what; t++) {                                                        \
            if (!kinds_has(c, i, t)) continue;                                                     \
            if (what == 2 && c->tensors[t].away == MEMO_MOVE) continue;                            \
            kinds_term(&f,                                                                         \
                       what == 1 ? -BYTES(t) * unit / 55e9                                         \
                                 : -c->times.tensors[t].recompute_s_per_row[KIND(i)] *             \
                                       (double)c->swap.n_rows,                                     \
                       SHARE(i, t, what));                                                         \
        }                                                                                          \
        kinds_row(&f, GE, fixed_s);                                                                \
    } while (0)
    for (int l = 0; l < n; l++) {
        int moved = l < n - 2, recomputes = l + 1 < n - 1 ? 2 : 0;
        if (l > 0) AFTER(forward + l, forward + l - 1, c->times.forward_s[KIND(l - 1)], 0, 0);
        if (l >= 2) AFTER(forward + l, store + l - 2, 0, 1, l - 2);
        if (moved) AFTER(store + l, forward + l, c->times.forward_s[KIND(l)], 0, 0);
        if (moved && l > 0) AFTER(store + l, store + l - 1, 0, 1, l - 1);
        if (l + 1 < n)
            AFTER(backward + l, backward + l + 1, c->times.backward_s[KIND(l + 1)], recomputes,
                  l + 1);
        if (moved) AFTER(backward + l, load + l, 0, 1, l);
        recomputes = l + 2 < n - 1 ? 2 : 0;
        if (moved)
            AFTER(load + l, backward + l + 2, c->times.backward_s[KIND(l + 2)], recomputes, l + 2);
        if (moved && l < n - 3) AFTER(load + l, load + l + 1, 0, 1, l + 1);
    }
    AFTER(backward + n - 1, forward + n - 1, c->times.forward_s[KIND(n - 1)] + c->times.between_s,
          0, 0);
    k = n > 1 ? 2 : 0;
    AFTER(step, backward, c->times.backward_s[KIND(0)], k, 0);
#undef AFTER
#undef KIND
#undef BYTES
#undef SHARE
    bytes = 1;
    set_obj_fnex(f.lp, 1, &bytes, &step);
    set_timeout(f.lp, 60);
    result = solve(f.lp);
    if (result == OPTIMAL) value = get_objective(f.lp);
    delete_lp(f.lp);
    return value;
}
#else
static double kinds_solver_s(const kinds_case* c) {
    (void)c;
    return -1;
}
#endif

/* Plans beside the solver: percent above its steps, and processor time. */
typedef struct gaps {
    double sum, most, slowest_s;
    int n, n_below;
} gaps;

/* Adds a problem that a plan fits. */
static void add_gap(gaps* g, kinds_case* c) {
    memo_swap_plan* plan = NULL;
    double begin_s = (double)clock() / CLOCKS_PER_SEC, solver_s;
    if (memo_plan_swap(&c->desc, &plan, &error)) return;
    g->slowest_s = fmax(g->slowest_s, (double)clock() / CLOCKS_PER_SEC - begin_s);
    solver_s = kinds_solver_s(c);
    if (solver_s > 0) {
        const double percent = 100 * (plan->step_s / solver_s - 1);
        g->n++;
        g->sum += fmax(percent, 0);
        g->n_below += percent < 0;
        g->most = fmax(g->most, percent);
    }
    memo_swap_plan_destroy(plan);
}

/* Ends a line with them; returns the mean. */
static double print_gaps(const gaps* g) {
    const double mean = g->n ? g->sum / g->n : 0;
    printf(" %6d | %8.3f %8.3f %6d | %8.2f\n", g->n, mean, g->most, g->n_below, g->slowest_s);
    fflush(stdout);
    return mean;
}

/* Prints the steps of a stack under four pairs of capacities; returns the mean excess over the
 * solver's, in percent. */
static double predict_kinds(int which, int32_t n_layers, int64_t n_rows) {
    static const double devices[] = {1.3, 1.7, 2.4, 6}, hosts[] = {0.5, 0.2, 0.8, 0.3};
    static kinds_case c;
    gaps g = {0};
    for (int i = 0; i < 4; i++) {
        double all = 0, largest = 0;
        make_kinds(&c, which, n_layers, n_rows);
        for (int32_t l = 0; l < n_layers; l++) {
            all += kinds_bytes(&c, l);
            if (kinds_bytes(&c, l) > largest) largest = kinds_bytes(&c, l);
        }
        c.desc.device_bytes = (int64_t)(devices[i] * largest);
        c.desc.host_bytes = (int64_t)(hosts[i] * all);
        add_gap(&g, &c);
    }
    printf("%-18s %6d %7lld", c.name, (int)n_layers, (long long)n_rows);
    return print_gaps(&g);
}

static int kinds(void) {
    static const int32_t stacks[] = {12, 32, 62};
    double most = 0;
    printf("Predicted steps of layers of several kinds: percent above lp_solve's linear program "
           "with a start\ntime for each operation and shares for each layer apart, mean and most "
           "over capacities; plans\nbelow it; seconds of the slowest plan.\n\n");
    printf("%-18s %6s %7s %6s | %8s %8s %6s | %8s\n", "kinds", "layers", "rows", "plans", "mean %",
           "most %", "below", "plan s");
    for (int which = 0; which < 4; which++)
        for (int i = 0; i < 3; i++)
            for (int64_t n_rows = 65536; n_rows <= 262144; n_rows *= 4) {
                double here = predict_kinds(which, stacks[i], n_rows);
                if (here > most) most = here;
            }
    for (int which = 0; which < 4; which++) (void)predict_kinds(which, KINDS_LAYERS_MAX, 65536);
    printf("\nin the mean at most %.3f %% above the solver (0.5 allowed)\n", most);
    return most > 0.5;
}

/* ---- predictions ------------------------------------------------------------------------------- */

/* Prints the excess over the solver's step in a grid of capacities; returns the mean. */
static double predict_stack(int32_t n_layers, int64_t n_rows) {
    static const double hosts[] = {0.15, 0.5, 1};              /* of all layers */
    const double devices[] = {1.25, 1.6, 2.1, 0.3 * n_layers}; /* in layers */
    static kinds_case c;
    double layer_bytes = 0;
    gaps g = {0};

    memset(&c, 0, sizeof c);
    gpt_layers(c.tensors, &c.times, &c.swap, &c.desc, n_layers, n_rows);
    for (int t = 0; t < GPT_TENSORS; t++) {
        layer_bytes += (double)(c.tensors[t].row_bytes * n_rows);
        if (c.tensors[t].away == MEMO_WITH)
            c.times.tensors[t].recompute_s_per_row[0] = 0; /* its leader's time counts */
    }

    /* All pairs of capacities; those that no plan fits are skipped. */
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            c.desc.device_bytes = (int64_t)(devices[i] * layer_bytes);
            c.desc.host_bytes = (int64_t)(hosts[k] * n_layers * layer_bytes) + 1;
            add_gap(&g, &c);
        }

    printf("%6d %7lld", (int)n_layers, (long long)n_rows);
    return print_gaps(&g);
}

/* The planner's own law of a step beside the same step as a schedule, simulated: processor time of
 * one score.  The planner scores 100,000 tables. */
static void print_law(void) {
    const int n_scores = 2000, n_simulations = 50;
    memo_item gpt[GPT_TENSORS];
    double score_s, simulate_s;
    memo_profile times;
    memo_swap_desc swap;
    memo_swap_plan_desc desc;
    memoi_rows_planner p;
    clock_t begin;
    gpt_layers(gpt, &times, &swap, &desc, 32, 65536);
    swap.alpha = 0.5;
    check(memoi_rows_create(&desc, &p, &error));
    begin = clock();
    for (int i = 0; i < n_scores; i++) {
        memoi_rows_set_alpha(&p, i % p.n_tiles);
        memoi_rows_score_trial(&p);
    }
    score_s = (double)(clock() - begin) / CLOCKS_PER_SEC / n_scores;
    memoi_rows_destroy(&p);
    begin = clock();
    for (int i = 0; i < n_simulations; i++) {
        memo_schedule* schedule;
        memo_simulation* simulation;
        check(memo_swap_generate(&desc, 1, &schedule, &error));
        check(memo_schedule_simulate(schedule, &simulation, &error));
        memo_simulation_destroy(simulation);
        memo_schedule_destroy(schedule);
    }
    simulate_s = (double)(clock() - begin) / CLOCKS_PER_SEC / n_simulations;
    printf(
        "\na score takes %.1f us; the step as a schedule, simulated, takes %.0f us: %.0f times\n",
        1e6 * score_s, 1e6 * simulate_s, simulate_s / score_s);
}

static int predict(void) {
    static const int32_t stacks[] = {8, 16, 32, 56};
    double most = 0;
    printf("Predicted steps of a 7B layer's shape: percent above lp_solve's linear program, as for "
           "layers of several kinds,\n"
           "mean and most over capacities; plans below it; seconds of the slowest plan.\n\n");
    printf("%6s %7s %6s | %8s %8s %6s | %8s\n", "layers", "rows", "plans", "mean %", "most %",
           "below", "plan s");
    for (int i = 0; i < 4; i++)
        for (int64_t n_rows = 65536; n_rows <= 262144; n_rows *= 2) {
            double here = predict_stack(stacks[i], n_rows);
            if (here > most) most = here;
        }
    printf("\nin the mean at most %.3f %% above the solver (0.5 allowed)\n", most);
    print_law();
    return most > 0.5;
}

int main(int argc, char** argv) {
    static const int64_t lengths[] = {512, 1024};
    static const double copies[] = {0.7, 1.6}, disks[] = {0, 0.5, 0.2};
    outcome worst;
    bench_help(argc, argv, "[REPETITIONS | predict | kinds]");
    if (argc > 1 && strcmp(argv[1], "predict") == 0) return predict();
    if (argc > 1 && strcmp(argv[1], "kinds") == 0) return kinds();

    const int repetitions = (int)bench_number(argc, argv, 1, 3, 1, REPETITIONS_MAX);
    memset(&worst, 0, sizeof worst);

    printf(
        "Swap planner, host device: %d layers of %d bytes per row, medians of %d.\ncopy: time of "
        "copying a layer / forward time.  Capacities in KiB; file: bytes of the plan there.  "
        "grid: the best fixed plan, measured in turn with the plan; its words are for qkv, "
        "attention, mlp.\n\n",
        N_LAYERS, LAYER_ROW_BYTES, repetitions);
    printf("%5s %5s %-14s %4s %5s %5s | %9s %9s %8s | %9s %9s\n", "rows", "copy", "memory", "dev.",
           "host", "file", "predicted", "plan ms", "ratio", "grid ms", "plan/grid");

    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 2; k++)
                run_device(lengths[i], copies[k], disks[d], repetitions, &worst);

    printf(
        "\nthe prediction differs by at most %.1f %% (limit 10); the plan is slower than the best "
        "of the grid by at most %.1f %% (limit 3)\n",
        100 * worst.worst_prediction, 100 * worst.worst_choice);
    return worst.worst_prediction > 0.1 || worst.worst_choice > 0.03;
}
