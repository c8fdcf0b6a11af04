/* paper_oases.h - "Automated Tensor Model Parallelism with Overlapped Communication for Efficient
 * Foundation Model Training" (Oases): the throughput of its four schedules and the plans of its
 * planner, computed and printed beside the published figures.
 *
 * A model of L layers is K = 2L blocks: attention (even index here), FFN (odd).  Of each block and
 * each of two sub-batches: f forward, r recompute, b backward, c the all-reduce that ends it. */
#ifndef PAPER_OASES_H
#define PAPER_OASES_H

#include "paper_common.h"
#include "tools/degrees_model.h"

/* ---- published figures ----------------------------------------------------------------------- */

#define OASES_N_GPUS     32
#define OASES_TOKENS     1024 /* of a sequence */
#define OASES_MAX_BLOCKS 64

typedef enum oases_schedule {
    OASES_DEFAULT,   /* Megatron */
    OASES_PIPELINED, /* Merak */
    OASES_CROSS,     /* cross-pass */
    OASES_FINE,      /* cross-pass with fine-grained recomputation */
    OASES_N_SCHEDULES
} oases_schedule;
static const char* const oases_schedule_names[OASES_N_SCHEDULES] = {"Megatron", "Merak", "cross",
                                                                    "+ fine"};

typedef struct oases_row {
    int is_nvlink; /* between GPUs 0-1 and 2-3 of a node; otherwise PCIe only */
    int hidden, n_layers, degree, data, batch;
    double throughput[OASES_N_SCHEDULES + 1]; /* Table 3, k tokens/s; last: with the planner */
    double sm_percent;                  /* Table 2, Megatron: share of the step that computes */
    int low_degree, n_low, high_degree; /* Table 6: the first n_low layers, the others */
} oases_row;

/* Tables 2, 3 and 6; settings from Table 4. */
#define OASES_N_ROWS 6
static const oases_row oases_rows[OASES_N_ROWS] = {
    {1, 2048, 24, 4, 8, 128, {31.4, 37.3, 41.2, 43.9, 50.9}, 47.2, 2, 8, 4},
    {1, 4096, 16, 4, 8, 32, {18.1, 21.5, 22.6, 23.8, 25.2}, 57.5, 2, 10, 4},
    {1, 8192, 8, 8, 4, 8, {5.6, 6.9, 7.7, 8.9, 9.1}, 37.4, 4, 2, 8},
    {0, 2048, 24, 4, 8, 128, {23.0, 29.2, 32.6, 42.5, 44.7}, 36.4, 2, 8, 4},
    {0, 4096, 16, 4, 8, 32, {14.0, 17.9, 22.4, 23.8, 24.3}, 47.4, 2, 10, 4},
    {0, 8192, 8, 8, 4, 8, {5.3, 6.2, 7.7, 8.9, 9.0}, 32.5, 4, 2, 8}};

/* ---- constants ------------------------------------------------------------------------------- */

#define OASES_N_DEGREES 3
static const int32_t oases_degrees[OASES_N_DEGREES] = {2, 4, 8};

typedef struct oases_hardware {
    double flops; /* FLOP/s that a block reaches */
    /* Bytes a second of an all-reduce over 2, 4, 8 GPUs, without and with NVLink. */
    double bus_3090[OASES_N_DEGREES], bus_nvlink[OASES_N_DEGREES];
    double step_s; /* latency of one of its 2 (d - 1) steps */
    double vocabulary;
    double overlap_slowdown; /* both streams are slower by this factor while both are busy */
    double device_bytes;
} oases_hardware;

#define AT(field)         offsetof(oases_hardware, field)
#define OASES_NO_PEER     "all-reduce bus bandwidth, no peer access"
#define OASES_PEAK_TFLOPS 71
/* clang-format off */
static const paper_constant oases_constants[] = {
    {"RTX 3090 peak", OASES_PEAK_TFLOPS, "TFLOP/s", ASSUMED, "data sheet, fp16 with fp32 sums",
     0, 0},
    {"efficiency of a block", 0.35, "of peak", ASSUMED, "unfused layers and softmax",
     AT(flops), OASES_PEAK_TFLOPS * 1e12},
    {"3090: bus of 2 GPUs", 5, "GB/s", ASSUMED, OASES_NO_PEER, AT(bus_3090[0]), PAPER_GB},
    {"3090: bus of 4 GPUs", 4, "GB/s", ASSUMED, OASES_NO_PEER, AT(bus_3090[1]), PAPER_GB},
    {"NVLink: bus of 2 GPUs", 45, "GB/s", ASSUMED, "900 Gb/s stated: 80 % of 56 each way",
     AT(bus_nvlink[0]), PAPER_GB},
    {"NVLink: bus of 4 GPUs", 6, "GB/s", ASSUMED, "two PCIe hops in the ring",
     AT(bus_nvlink[1]), PAPER_GB},
    {"both: bus of 8 GPUs", 3, "GB/s", ASSUMED, "100 Gb/s a node stated: 24 % of 12.5",
     AT(bus_3090[2]), PAPER_GB},
    {"step of a collective", 10, "us", ASSUMED, "NCCL", AT(step_s), 1e-6},
    {"vocabulary", 51200, "", ASSUMED, "GPT's, padded; not published", AT(vocabulary), 1},
    {"overlap slowdown", 1.3, "times", FITTED, "by hand, on these rows; 1.0 beside",
     AT(overlap_slowdown), 1},
    {"device memory", 24, "GiB", STATED, "Appendix B", AT(device_bytes), PAPER_GIB}};
/* clang-format on */
#undef AT

static oases_hardware oases_stated(void) {
    oases_hardware hw;
    paper_set_constants(&hw, oases_constants, PAPER_N(oases_constants));
    hw.bus_nvlink[2] = hw.bus_3090[2];
    return hw;
}

static int oases_degree_index(int degree) { return degree == 2 ? 0 : degree == 4 ? 1 : 2; }
static double* oases_bus(oases_hardware* hw, const oases_row* row) {
    return row->is_nvlink ? hw->bus_nvlink : hw->bus_3090;
}

/* ---- costs of blocks ------------------------------------------------------------------------- */

/* Tokens of one sub-batch on a group of the row's degree: t_d = B d s / (2 N). */
static double oases_tokens(const oases_row* row) {
    return (double)row->batch * row->degree * OASES_TOKENS / (2 * OASES_N_GPUS);
}

/* FLOPs of a block's forward pass on one GPU, one sub-batch: attention 8 t h^2 + 4 t s h (its
 * softmax was not fused, the masked half is computed), FFN 16 t h^2.  t / d is the same for every
 * degree. */
static double oases_block_flops(const oases_row* row, int block) {
    double t = oases_tokens(row) / row->degree, h = row->hidden;
    return block % 2 == 0 ? 8 * t * h * h + 4 * t * OASES_TOKENS * h : 16 * t * h * h;
}

/* The classifier: both sub-batches, forward and backward. */
static double oases_head_flops(const oases_row* row, const oases_hardware* hw) {
    return 2 * 6 * oases_tokens(row) * row->hidden * hw->vocabulary / row->degree;
}

/* Two numbers of the Megatron row, throughput and the share of the step in which its GPUs compute,
 * give two constants: FLOP/s and bus bandwidth. */
static oases_hardware oases_calibrated(const oases_row* row) {
    oases_hardware hw = oases_stated();
    const int d = row->degree, n_reduces = 2 * 3 * 2 * row->n_layers; /* of both sub-batches */
    double step = row->batch * OASES_TOKENS / (row->throughput[OASES_DEFAULT] * 1e3);
    double compute = step * row->sm_percent / 100, comm = step - compute;
    double flops = oases_head_flops(row, &hw);
    for (int i = 0; i < 2 * row->n_layers; i++) flops += 2 * 4 * oases_block_flops(row, i);
    hw.flops = flops / compute;
    comm -= n_reduces * 2 * (d - 1) * hw.step_s;
    /* An all-reduce moves 2 (d - 1) / d of its fp16 message. */
    oases_bus(&hw, row)[oases_degree_index(d)] =
        n_reduces * 2.0 * (d - 1) / d * oases_tokens(row) * row->hidden * 2 / comm;
    return hw;
}

/* The costs of degrees_model.h for one sub-batch, but as published: attention computes the masked
 * half too, and recomputation repeats the last product.  has_gradients: the data-parallel
 * all-reduce, which the paper's planner leaves out.  NULL: no memory. */
static memo_degrees_problem* oases_problem(const oases_row* row, oases_hardware hw,
                                           int has_gradients) {
    degrees_model model = MEMO_ZERO(degrees_model);
    memo_degrees_problem* problem;
    model.n_layers = row->n_layers;
    model.hidden = row->hidden;
    model.sequence = OASES_TOKENS;
    model.batch = row->batch;
    model.n_gpus = OASES_N_GPUS;
    model.n_degrees = OASES_N_DEGREES;
    memcpy(model.degrees, oases_degrees, sizeof oases_degrees);
    memcpy(model.bandwidth_bytes_per_s, oases_bus(&hw, row), sizeof hw.bus_3090);
    model.data_bandwidth_bytes_per_s = has_gradients ? oases_bus(&hw, row)[2] : 0;
    model.latency_s = hw.step_s;
    model.flops_per_s = hw.flops;
    model.boundary_degree = row->degree;
    if (degrees_problem_from_model(&model, &problem, NULL)) return NULL;
    for (int i = 0; i < problem->n_blocks * OASES_N_DEGREES; i++) {
        memo_degree_cost* cost = &problem->costs[i];
        cost->forward_s = oases_block_flops(row, i / OASES_N_DEGREES) / hw.flops;
        cost->backward_s = 3 * cost->forward_s;
    }
    return problem;
}

/* ---- makespans ------------------------------------------------------------------------------- */

/* Makespan of one pass, by the library's schedule of two sub-batches; -1 on failure. */
static double oases_simulate(const memo_block_times* times, int n_blocks, oases_schedule schedule,
                             int is_backward) {
    static const memo_blocks_order orders[OASES_N_SCHEDULES] = {
        MEMO_BLOCKS_DEFAULT, MEMO_BLOCKS_PIPELINED, MEMO_BLOCKS_CROSS, MEMO_BLOCKS_FINE};
    memo_blocks_schedule_desc desc = MEMO_ZERO(memo_blocks_schedule_desc);
    memo_schedule* pass = NULL;
    memo_simulation* simulation = NULL;
    double makespan = -1;
    desc.order = orders[schedule];
    desc.n_blocks = n_blocks;
    if (!memo_blocks_generate(
            &desc, times, is_backward ? MEMO_BLOCKS_BACKWARD : MEMO_BLOCKS_FORWARD, &pass, NULL) &&
        !memo_schedule_simulate(pass, &simulation, NULL))
        makespan = simulation->makespan_s;
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(pass);
    return makespan;
}

/* k tokens/s of all GPUs.  The overlapped part is longer by the slowdown, because both streams are
 * slower while both are busy. */
static double oases_throughput(const oases_row* row, const oases_hardware* hw,
                               oases_schedule schedule, double slowdown) {
    memo_degrees_problem* problem = oases_problem(row, *hw, 0);
    memo_block_times times[2 * OASES_MAX_BLOCKS];
    const int n_blocks = 2 * row->n_layers, n_reduced = schedule == OASES_FINE ? 2 : 3;
    double step = oases_head_flops(row, hw) / hw->flops, makespan, busy = 0;
    if (!problem) return -1;
    memset(times, 0, sizeof times);
    for (int i = 0; i < 2 * n_blocks; i++) {
        const memo_degree_cost* cost =
            &problem->costs[i / 2 * OASES_N_DEGREES + oases_degree_index(row->degree)];
        times[i].forward_s = times[i].recompute_s = cost->forward_s;
        times[i].backward_s = 2 * cost->forward_s;
        times[i].reduce_s = cost->forward_collective_s;
        busy += 4 * cost->forward_s + n_reduced * cost->forward_collective_s;
    }
    MEMO_FREE(problem);
    makespan =
        oases_simulate(times, n_blocks, schedule, 0) + oases_simulate(times, n_blocks, schedule, 1);
    if (schedule != OASES_DEFAULT) step += (slowdown - 1) * paper_max(0, busy - makespan);
    return (double)row->batch * OASES_TOKENS / (step + makespan) / 1e3;
}

/* Two layers whose six makespans are known: c = 2 and c = 5. */
static int oases_n_right_makespans(void) {
    static const double expected[2][6] = {{36, 22, 92, 68, 62, 62}, {60, 42, 140, 98, 78, 65}};
    memo_block_times times[8];
    int n_right = 0;
    for (int i = 0; i < 2; i++) {
        memset(times, 0, sizeof times);
        for (int k = 0; k < 8; k++) {
            times[k].forward_s = times[k].recompute_s = k / 2 % 2 ? 3 : 2;
            times[k].backward_s = k / 2 % 2 ? 6 : 4;
            times[k].reduce_s = i == 0 ? 2 : 5;
        }
        for (int j = 0; j < 6; j++) /* forward: the first two schedules differ */
            n_right += fabs(oases_simulate(times, 4, (oases_schedule)(j < 2 ? j : j - 2), j >= 2) -
                            expected[i][j]) < 1e-9;
    }
    return n_right;
}

/* ---- reports --------------------------------------------------------------------------------- */

static const char* const oases_from[2] = {"stated constants", "calibrated"};

static const char* oases_cluster_name(const oases_row* row) {
    return row->is_nvlink ? "NVLink" : "3090";
}

static void oases_print_constants(void) {
    paper_print("  Oases\n");
    paper_print_constants(oases_constants, PAPER_N(oases_constants), NULL);

    /* The calibrated tables have two fitted constants per row. */
    paper_print("  Oases, calibrated tables only\n");
    for (int i = 0; i < 2 * OASES_N_ROWS; i++) {
        const oases_row* row = &oases_rows[i / 2];
        oases_hardware hw = oases_calibrated(row);
        double bus = oases_bus(&hw, row)[oases_degree_index(row->degree)];
        char what[32] = "rate of a block", name[64];
        if (i % 2) (void)snprintf(what, sizeof what, "bus of %d GPUs", row->degree);
        (void)snprintf(name, sizeof name, "%s %dx%d: %s", oases_cluster_name(row), row->hidden,
                       row->n_layers, what);
        const paper_constant c = {
            name,   i % 2 ? bus / PAPER_GB : hw.flops / 1e12,  i % 2 ? "GB/s" : "TFLOP/s",
            FITTED, "Megatron's throughput and SM efficiency", 0,
            0};
        paper_print_constants(&c, 1, NULL);
    }
}

/* Four schedules of each row.  A row is in the published order if no schedule is more than 0.5 %
 * slower than the previous one. */
static void oases_report_schedules(int is_calibrated, double slowdown) {
    double residuals[OASES_N_ROWS * OASES_N_SCHEDULES], bias = 0;
    int n = 0, n_ordered = 0;
    paper_print(
        "\nTable 3: k tokens/s on 32 RTX 3090, %s, overlap slowdown %.1f; published, predicted, "
        "residual\n  cluster  h x layers ",
        is_calibrated ? "calibrated on Megatron" : "from stated constants", slowdown);
    for (int s = 0; s < OASES_N_SCHEDULES; s++) paper_print(" | %-18s", oases_schedule_names[s]);
    paper_print("\n");

    for (int i = 0; i < OASES_N_ROWS; i++) {
        const oases_row* row = &oases_rows[i];
        oases_hardware hw = is_calibrated ? oases_calibrated(row) : oases_stated();
        double previous = 0;
        int is_tie = 0, is_ordered = 1;
        paper_print("  %-8s %5dx%-4d ", oases_cluster_name(row), row->hidden, row->n_layers);
        for (int s = 0; s < OASES_N_SCHEDULES; s++) {
            double predicted = oases_throughput(row, &hw, (oases_schedule)s, slowdown);
            double residual = 100 * (predicted / row->throughput[s] - 1);
            if (fabs(residual) < 0.5) residual = 0;
            paper_print(" | %5.1f %5.1f %+4.0f %%", row->throughput[s], predicted, residual);
            is_ordered &= predicted >= 0.995 * previous;
            is_tie |= predicted >= 0.995 * previous && predicted <= 1.005 * previous;
            previous = predicted;

            /* The default schedule is what the calibration fits, so its residual says nothing. */
            if (s == OASES_DEFAULT) continue;
            residuals[n++] = residual;
            bias += residual;
        }
        n_ordered += is_ordered;
        paper_print("%s%s\n", is_ordered ? "" : " order!", is_tie ? " tie" : "");
    }

    paper_print(
        "  in the published order: %d of %d rows; overlapped schedules: mean residual %+.1f %%, "
        "mean absolute %.1f %%\n",
        n_ordered, OASES_N_ROWS, bias / n, paper_mean_absolute(residuals, n));
    paper_criterion(n_ordered == OASES_N_ROWS,
                    "four schedules in the published order, %s, slowdown %.1f: %d of %d rows",
                    oases_from[is_calibrated], slowdown, n_ordered, OASES_N_ROWS);
}

/* "[2]*8+[4]*16", in layers. */
static const char* oases_plan_text(const int32_t* degrees, int n_blocks, char text[128]) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0, j; i < n_blocks && used + 24 < 128; i = j) {
        for (j = i; j < n_blocks && degrees[j] == degrees[i];) j++;
        used += (size_t)snprintf(text + used, 128 - used, "%s[%d]*%g", i > 0 ? "+" : "",
                                 (int)degrees[i], (j - i) / 2.0);
    }
    return text;
}

/* Seconds of a plan; *bytes: its memory. */
static double oases_plan_s(const memo_degrees_problem* problem, const int32_t* degrees,
                           int64_t* bytes) {
    double cost_s = 0;
    return memo_degrees_evaluate(problem, degrees, &cost_s, bytes, NULL)
               ? (double)INFINITY /* no plan has degrees that the problem lacks */
               : cost_s;
}

/* The published plan and ours under a memory limit; memory_bytes 0: the bytes of the published
 * plan.  Returns how many plans are slower than the uniform one. */
static int oases_report_plans(int is_calibrated, double memory_bytes, int has_gradients) {
    int n_equal = 0, n_slower = 0;
    paper_print(
        "\nTable 6: plans, %s, limit %s, %s gradient all-reduce; ms in the planner's model\n",
        oases_from[is_calibrated], memory_bytes > 0 ? "24 GiB" : "as the published plan",
        has_gradients ? "with" : "no");
    paper_print("  %-8s %-12s %-8s %-14s %-19s %9s %9s %8s   %s\n", "cluster", "h x layers",
                "limit GB", "published", "own plan", "uniform", "published", "own",
                "gain (published)");

    for (int i = 0; i < OASES_N_ROWS; i++) {
        const oases_row* row = &oases_rows[i];
        const int n = 2 * row->n_layers;
        int32_t own[OASES_MAX_BLOCKS], published[OASES_MAX_BLOCKS], uniform[OASES_MAX_BLOCKS];
        memo_degrees_problem* problem = oases_problem(
            row, is_calibrated ? oases_calibrated(row) : oases_stated(), has_gradients);
        memo_degrees_plan plan = MEMO_ZERO(memo_degrees_plan);
        char text[2][128] = {"", "none fits"};
        double uniform_s, published_s;
        int64_t bytes, limit_bytes;
        if (!problem) return OASES_N_ROWS;

        /* The published plan, the uniform one and the optimum have the same problem. */
        for (int j = 0; j < n; j++) {
            published[j] = j / 2 < row->n_low ? row->low_degree : row->high_degree;
            uniform[j] = row->degree;
        }
        uniform_s = oases_plan_s(problem, uniform, &bytes);
        published_s = oases_plan_s(problem, published, &limit_bytes);
        if (memory_bytes > 0) limit_bytes = (int64_t)memory_bytes;
        problem->memory_bytes = limit_bytes;
        if (!memo_degrees_solve(problem, 0, own, &plan, NULL)) {
            n_equal += !memcmp(own, published, (size_t)n * sizeof *own);
            (void)oases_plan_text(own, n, text[1]);
        }
        MEMO_FREE(problem);

        n_slower += !(plan.step_s > 0 && plan.step_s <= uniform_s * (1 + 1e-12));
        paper_print("  %-8s %5dx%-6d %8.1f %-14s %-19s %9.1f %9.1f %8.1f   %5.3f (%.3f)\n",
                    oases_cluster_name(row), row->hidden, row->n_layers,
                    (double)limit_bytes / PAPER_GB, oases_plan_text(published, n, text[0]), text[1],
                    1e3 * uniform_s, 1e3 * published_s, 1e3 * plan.step_s, uniform_s / plan.step_s,
                    row->throughput[OASES_N_SCHEDULES] / row->throughput[OASES_FINE]);
    }

    if (memory_bytes > 0) return n_slower;
    paper_print("  equal to the published plan: %d of %d\n", n_equal, OASES_N_ROWS);
    paper_criterion(n_equal >= 5, "plans equal to the published ones, %s: %d of %d (>= 5)",
                    oases_from[is_calibrated], n_equal, OASES_N_ROWS);
    return n_slower;
}

static void oases_report(void) {
    const oases_hardware hw = oases_stated();
    int n_right = oases_n_right_makespans(), n_slower = 0;
    paper_criterion(n_right == 12, "makespans of the test vector: %d of 12", n_right);
    for (int i = 0; i < 4; i++) oases_report_schedules(i / 2, i % 2 ? hw.overlap_slowdown : 1);
    paper_print(
        "  The slowdown stretches the time in which computation and communication run at once.\n");
    for (int i = 0; i < 2; i++) n_slower += oases_report_plans(i, 0, 0);
    for (int i = 0; i < 2; i++) n_slower += oases_report_plans(1, hw.device_bytes, i);
    paper_print(
        "  gain: uniform over own; in brackets the published throughput with the planner over that "
        "without.\n");
    paper_criterion(n_slower == 0, "plans slower than the uniform one in the planner's model: %d",
                    n_slower);
    paper_print_criteria("Oases");
}

#endif /* PAPER_OASES_H */
