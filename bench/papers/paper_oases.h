/* paper_oases.h - "Automated Tensor Model Parallelism with Overlapped Communication for Efficient
 * Foundation Model Training" (Oases): the throughput of its four schedules and the plans of its
 * planner, computed and printed beside the published figures.
 *
 * A model of L layers is K = 2L blocks: attention (even index here), FFN (odd).  Of each block and
 * each of two sub-batches: f forward, r recompute, b backward, c the all-reduce that ends it. */
#ifndef PAPER_OASES_H
#define PAPER_OASES_H

#include "paper_common.h"

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
static const int oases_degrees[OASES_N_DEGREES] = {2, 4, 8};

typedef struct oases_hardware {
    double flops;                            /* FLOP/s that a block reaches */
    double bus_bytes_per_s[OASES_N_DEGREES]; /* of an all-reduce over 2, 4, 8 GPUs */
    double step_s;                           /* latency of one of its 2 (d - 1) steps */
    double vocabulary;
    double overlap_slowdown; /* both streams are slower by this factor while both are busy */
} oases_hardware;

static inline oases_hardware oases_3090(int is_nvlink) {
    oases_hardware hw;
    hw.flops = 0.35 * 71e12;
    hw.bus_bytes_per_s[0] = is_nvlink ? 45e9 : 5e9;
    hw.bus_bytes_per_s[1] = is_nvlink ? 6e9 : 4e9;
    hw.bus_bytes_per_s[2] = 3e9;
    hw.step_s = 10e-6;
    hw.vocabulary = 51200;
    hw.overlap_slowdown = 1.3;
    return hw;
}

static inline int oases_degree_index(int degree) { return degree == 2 ? 0 : degree == 4 ? 1 : 2; }

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct oases_blocks {
    int n; /* K */
    double f[OASES_MAX_BLOCKS], r[OASES_MAX_BLOCKS], b[OASES_MAX_BLOCKS], c[OASES_MAX_BLOCKS];
} oases_blocks;

/* Tokens of one sub-batch on a group of `degree`: t_d = B d s / (2 N). */
static inline double oases_tokens(const oases_row* row, int degree) {
    return (double)row->batch * degree * OASES_TOKENS / (2 * OASES_N_GPUS);
}

/* FLOPs of a block's forward pass on one GPU, one sub-batch: attention 8 t h^2 + 4 t s h (its
 * softmax was not fused, the masked half is computed), FFN 16 t h^2. */
static inline double oases_block_flops(const oases_row* row, int degree, int block) {
    double t = oases_tokens(row, degree), h = row->hidden;
    return (block % 2 == 0 ? 8 * t * h * h + 4 * t * OASES_TOKENS * h : 16 * t * h * h) / degree;
}

/* Bytes an all-reduce moves over the bus: 2 (d - 1) / d of the message. */
static inline double oases_bus_bytes(const oases_row* row, int degree) {
    return 2.0 * (degree - 1) / degree * oases_tokens(row, degree) * row->hidden * 2;
}

static inline double oases_all_reduce_s(const oases_row* row, const oases_hardware* hw,
                                        int degree) {
    return oases_bus_bytes(row, degree) / hw->bus_bytes_per_s[oases_degree_index(degree)] +
           2 * (degree - 1) * hw->step_s;
}

/* The classifier: both sub-batches, forward and backward. */
static inline double oases_head_flops(const oases_row* row, int degree) {
    return 2 * 6 * oases_tokens(row, degree) * row->hidden / degree;
}

static inline oases_blocks oases_make_blocks(const oases_row* row, const oases_hardware* hw,
                                             int degree) {
    oases_blocks blocks;
    blocks.n = 2 * row->n_layers;
    for (int i = 0; i < blocks.n; i++) {
        blocks.f[i] = oases_block_flops(row, degree, i) / hw->flops;
        blocks.r[i] = blocks.f[i]; /* as published; the last GEMM need not be recomputed */
        blocks.b[i] = 2 * blocks.f[i];
        blocks.c[i] = oases_all_reduce_s(row, hw, degree);
    }
    return blocks;
}

/* ---- makespans ------------------------------------------------------------------------------- */

/* Makespan of one pass, by the library's schedule of two sub-batches; -1 on failure. */
static inline double oases_simulate(const oases_blocks* k, oases_schedule schedule,
                                    int is_backward) {
    static const memo_blocks_order orders[OASES_N_SCHEDULES] = {
        MEMO_BLOCKS_DEFAULT, MEMO_BLOCKS_PIPELINED, MEMO_BLOCKS_CROSS, MEMO_BLOCKS_FINE};
    memo_blocks_schedule_desc desc = MEMO_ZERO(memo_blocks_schedule_desc);
    memo_block_times times[2 * OASES_MAX_BLOCKS];
    memo_schedule* pass = NULL;
    memo_simulation* simulation = NULL;
    double makespan = -1;
    memo_status status;

    memset(times, 0, sizeof times);
    for (int i = 0; i < 2 * k->n; i++) {
        times[i].forward_s = k->f[i / 2];
        times[i].recompute_s = k->r[i / 2];
        times[i].backward_s = k->b[i / 2];
        times[i].reduce_s = k->c[i / 2];
    }

    desc.order = orders[schedule];
    desc.n_blocks = k->n;
    status = memo_blocks_generate(
        &desc, times, is_backward ? MEMO_BLOCKS_BACKWARD : MEMO_BLOCKS_FORWARD, &pass, NULL);
    if (!status) status = memo_schedule_simulate(pass, &simulation, NULL);
    if (!status) makespan = simulation->makespan_s;

    memo_simulation_destroy(simulation);
    memo_schedule_destroy(pass);
    return makespan;
}

/* Seconds of forward and backward.  The overlapped part is longer, because both streams are slower
 * while both are busy. */
static inline double oases_makespan(const oases_blocks* k, oases_schedule schedule,
                                    double slowdown) {
    double makespan = oases_simulate(k, schedule, 0) + oases_simulate(k, schedule, 1), busy = 0;
    int n_reduced = schedule == OASES_FINE ? 2 : 3;
    if (schedule == OASES_DEFAULT) return makespan;
    for (int i = 0; i < k->n; i++) busy += 2 * (k->f[i] + k->r[i] + k->b[i] + n_reduced * k->c[i]);
    return makespan + (slowdown - 1) * paper_max(0, busy - makespan);
}

/* k tokens/s of all GPUs. */
static inline double oases_throughput(const oases_row* row, const oases_hardware* hw,
                                      oases_schedule schedule, double slowdown) {
    oases_blocks blocks = oases_make_blocks(row, hw, row->degree);
    double step = oases_makespan(&blocks, schedule, slowdown) +
                  oases_head_flops(row, row->degree) * hw->vocabulary / hw->flops;
    return (double)row->batch * OASES_TOKENS / step / 1e3;
}

/* Two numbers of the Megatron row, throughput and the share of the step in which its GPUs compute,
 * give two constants: FLOP/s and bus bandwidth. */
static inline oases_hardware oases_calibrated(const oases_row* row) {
    oases_hardware hw = oases_3090(row->is_nvlink);
    double step = row->batch * OASES_TOKENS / (row->throughput[OASES_DEFAULT] * 1e3);
    double compute = step * row->sm_percent / 100, comm = step - compute;
    double flops = oases_head_flops(row, row->degree) * hw.vocabulary;
    int i, at = oases_degree_index(row->degree), n_blocks = 2 * row->n_layers;
    for (i = 0; i < n_blocks; i++) flops += 2 * 4 * oases_block_flops(row, row->degree, i);
    hw.flops = flops / compute;
    comm -= 2 * 3 * n_blocks * 2 * (row->degree - 1) * hw.step_s;
    hw.bus_bytes_per_s[at] = 2 * 3 * n_blocks * oases_bus_bytes(row, row->degree) / comm;
    return hw;
}

/* ---- the planner: a degree for every block --------------------------------------------------- */

/* The library's problem (memo_layout.h), with the costs of oases_make_blocks for one sub-batch.
 * The cost of an overlapped block does not include the slowdown, because the paper's planner
 * ignores it. */
typedef struct oases_problem {
    memo_degrees_problem degrees;
    memo_degree_cost costs[OASES_MAX_BLOCKS * OASES_N_DEGREES];
} oases_problem;

/* AllGather(p -> q) = (1 - d_p / d_q) t_{d_q} h 2 / bw + (d_q / d_p - 1) latency, d_p < d_q */
static inline double oases_gather_s(const oases_row* row, const oases_hardware* hw, int p, int q) {
    double ratio = (double)oases_degrees[q] / oases_degrees[p];
    return (1 - 1 / ratio) * oases_tokens(row, oases_degrees[q]) * row->hidden * 2 /
               hw->bus_bytes_per_s[q] +
           (ratio - 1) * hw->step_s;
}

/* state: 16 B a parameter; saved: the input of each block, of both sub-batches; runtime, fp16: four
 * tensors of h and four of the block's inner width. */
static inline memo_degree_cost oases_block_cost(const oases_row* row, const oases_hardware* hw,
                                                const oases_blocks* k, int block, int p) {
    double d = oases_degrees[p], tokens = oases_tokens(row, oases_degrees[p]), h = row->hidden;
    double parameters = (block % 2 == 0 ? 4.0 : 8.0) * h * h, n_replicas = OASES_N_GPUS / d;
    double width = (block % 2 == 0 ? 3.0 : 4.0) * h / d;
    memo_degree_cost cost;
    cost.forward_s = k->f[block];
    cost.backward_s = k->r[block] + k->b[block];
    cost.forward_collective_s = cost.backward_collective_s = k->c[block];
    cost.gradient_s = 2 * (n_replicas - 1) / n_replicas * parameters / d * 2 /
                      hw->bus_bytes_per_s[2]; /* fp16, between nodes */
    cost.state_bytes = (int64_t)(16 * parameters / d);
    cost.saved_bytes = (int64_t)(2 * tokens * h * 2);
    cost.runtime_bytes = (int64_t)(2 * tokens * 4 * (h + width));
    return cost;
}

/* Embedding and head stay at the row's own degree.  has_gradient_term: the data-parallel
 * all-reduce, which the paper's planner leaves out. */
static inline void oases_set_problem(oases_problem* problem, const oases_row* row,
                                     const oases_hardware* hw, int has_gradient_term) {
    memo_degrees_problem* degrees = &problem->degrees;
    memset(problem, 0, sizeof *problem);
    degrees->costs = problem->costs;
    degrees->n_blocks = 2 * row->n_layers;
    degrees->n_degrees = OASES_N_DEGREES;
    degrees->boundary_degree = row->degree;
    degrees->has_gradients = has_gradient_term;
    for (int p = 0; p < OASES_N_DEGREES; p++) {
        oases_blocks blocks = oases_make_blocks(row, hw, oases_degrees[p]);
        degrees->degrees[p] = oases_degrees[p];
        for (int q = p + 1; q < OASES_N_DEGREES; q++)
            degrees->gather_s[p][q] = oases_gather_s(row, hw, p, q);
        for (int i = 0; i < blocks.n; i++)
            problem->costs[i * OASES_N_DEGREES + p] = oases_block_cost(row, hw, &blocks, i, p);
    }
}

/* Seconds of a plan; *bytes: its memory. */
static inline double oases_plan_s(const oases_problem* problem, const int32_t* degrees,
                                  int64_t* bytes) {
    double cost_s = 0;
    return memo_degrees_evaluate(&problem->degrees, degrees, &cost_s, bytes, NULL)
               ? (double)INFINITY /* no plan has degrees that the problem lacks */
               : cost_s;
}

/* ---- reports --------------------------------------------------------------------------------- */

#define OASES_DEVICE_BYTES (24 * PAPER_GIB)

static inline const char* oases_cluster_name(const oases_row* row) {
    return row->is_nvlink ? "NVLink" : "3090";
}

static inline void oases_print_constants(void) {
    oases_hardware pcie = oases_3090(0), nvlink = oases_3090(1);
    const char* bus = "all-reduce bus bandwidth, no peer access";
    paper_constant c[] = {
        {"RTX 3090 peak", 71, "TFLOP/s", PAPER_ASSUMED, "data sheet, fp16 with fp32 sums", 0, 0},
        {"efficiency of a block", pcie.flops / 71e12, "of peak", PAPER_ASSUMED,
         "unfused layers and softmax", 0, 0},
        {"3090: bus of 2 GPUs", pcie.bus_bytes_per_s[0] / PAPER_GB, "GB/s", PAPER_ASSUMED, bus, 0,
         0},
        {"3090: bus of 4 GPUs", pcie.bus_bytes_per_s[1] / PAPER_GB, "GB/s", PAPER_ASSUMED, bus, 0,
         0},
        {"NVLink: bus of 2 GPUs", nvlink.bus_bytes_per_s[0] / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "900 Gb/s stated: 80 % of 56 each way", 0, 0},
        {"NVLink: bus of 4 GPUs", nvlink.bus_bytes_per_s[1] / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "two PCIe hops in the ring", 0, 0},
        {"both: bus of 8 GPUs", pcie.bus_bytes_per_s[2] / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "100 Gb/s a node stated: 24 % of 12.5", 0, 0},
        {"step of a collective", pcie.step_s * 1e6, "us", PAPER_ASSUMED, "NCCL", 0, 0},
        {"vocabulary", pcie.vocabulary, "", PAPER_ASSUMED, "GPT's, padded; not published", 0, 0},
        {"overlap slowdown", pcie.overlap_slowdown, "times", PAPER_FITTED,
         "by hand, on these rows; 1.0 beside", 0, 0},
        {"device memory", OASES_DEVICE_BYTES / PAPER_GIB, "GiB", PAPER_STATED, "Appendix B", 0, 0}};

    paper_constant d[2 * OASES_N_ROWS];
    char names[2 * OASES_N_ROWS][64];

    paper_print_constants("Oases", c, PAPER_N(c), NULL);

    /* The calibrated tables have two fitted constants per row. */
    for (int i = 0; i < OASES_N_ROWS; i++) {
        const oases_row* row = &oases_rows[i];
        oases_hardware hw = oases_calibrated(row);
        (void)snprintf(names[2 * i], sizeof names[0], "%s %dx%d: rate of a block",
                       oases_cluster_name(row), row->hidden, row->n_layers);
        (void)snprintf(names[2 * i + 1], sizeof names[0], "%s %dx%d: bus of %d GPUs",
                       oases_cluster_name(row), row->hidden, row->n_layers, row->degree);
        for (int j = 0; j < 2; j++) {
            paper_constant* k = &d[2 * i + j];
            k->name = names[2 * i + j];
            k->value = j == 0 ? hw.flops / 1e12
                              : hw.bus_bytes_per_s[oases_degree_index(row->degree)] / PAPER_GB;
            k->unit = j == 0 ? "TFLOP/s" : "GB/s";
            k->origin = PAPER_FITTED;
            k->scale = 0;
            k->source = "Megatron's throughput and SM efficiency";
        }
    }

    paper_print_constants("Oases, calibrated tables only", d, 2 * OASES_N_ROWS, NULL);
}

typedef struct oases_results {
    int n_ordered[2][2]; /* rows in the published order; stated or calibrated; without or with
                            slowdown */
    double bias_percent[2][2], error_percent[2][2]; /* of the three overlapped schedules */
    int n_equal_plans[2];                           /* stated or calibrated */
    int n_slower_than_uniform;
} oases_results;

/* 1 if no schedule is more than 0.5 % slower than the previous one. */
static inline int oases_is_ordered(const double* throughput, int* n_ties) {
    int is_ordered = 1;
    *n_ties = 0;
    for (int s = 1; s < OASES_N_SCHEDULES; s++) {
        double ratio = throughput[s] / throughput[s - 1];
        if (ratio < 0.995)
            is_ordered = 0;
        else if (ratio <= 1.005)
            ++*n_ties;
    }
    return is_ordered;
}

static inline void oases_report_schedules(int is_calibrated, int has_slowdown, oases_results* r) {
    double residuals[OASES_N_ROWS * OASES_N_SCHEDULES], bias = 0;
    int n = 0, n_ordered = 0;
    double slowdown = has_slowdown ? oases_3090(0).overlap_slowdown : 1;
    paper_print(
        "\nTable 3: k tokens/s on 32 RTX 3090, %s, overlap slowdown %.1f; published, predicted, "
        "residual\n  cluster  h x layers ",
        is_calibrated ? "calibrated on Megatron" : "from stated constants", slowdown);
    for (int s = 0; s < OASES_N_SCHEDULES; s++) paper_print(" | %-18s", oases_schedule_names[s]);
    paper_print("\n");

    for (int i = 0; i < OASES_N_ROWS; i++) {
        const oases_row* row = &oases_rows[i];
        oases_hardware hw = is_calibrated ? oases_calibrated(row) : oases_3090(row->is_nvlink);
        double predicted[OASES_N_SCHEDULES];
        int n_ties, is_ordered;
        paper_print("  %-8s %5dx%-4d ", oases_cluster_name(row), row->hidden, row->n_layers);
        for (int s = 0; s < OASES_N_SCHEDULES; s++) {
            double residual;
            predicted[s] = oases_throughput(row, &hw, (oases_schedule)s, slowdown);
            residual = 100 * (predicted[s] / row->throughput[s] - 1);
            if (fabs(residual) < 0.5) residual = 0;
            paper_print(" | %5.1f %5.1f %+4.0f %%", row->throughput[s], predicted[s], residual);

            /* The default schedule is what the calibration fits, so its residual says nothing. */
            if (s == OASES_DEFAULT) continue;
            residuals[n++] = residual;
            bias += residual;
        }

        is_ordered = oases_is_ordered(predicted, &n_ties);
        n_ordered += is_ordered;
        paper_print("%s%s\n", is_ordered ? "" : " order!", n_ties > 0 ? " tie" : "");
    }

    r->n_ordered[is_calibrated][has_slowdown] = n_ordered;
    r->bias_percent[is_calibrated][has_slowdown] = bias / n;
    r->error_percent[is_calibrated][has_slowdown] = paper_mean_absolute(residuals, n);
    paper_print(
        "  in the published order: %d of %d rows; overlapped schedules: mean residual %+.1f %%, "
        "mean "
        "absolute %.1f %%\n",
        n_ordered, OASES_N_ROWS, bias / n, r->error_percent[is_calibrated][has_slowdown]);
}

/* "[2]*8+[4]*16", in layers. */
static inline const char* oases_plan_text(const int32_t* degrees, int n_blocks, char text[128]) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0, j; i < n_blocks && used + 24 < 128; i = j) {
        for (j = i; j < n_blocks && degrees[j] == degrees[i];) j++;
        used += (size_t)snprintf(text + used, 128 - used, "%s[%d]*%g", i > 0 ? "+" : "",
                                 (int)degrees[i], (j - i) / 2.0);
    }
    return text;
}

/* The published plan and ours under a memory limit; memory_bytes 0: the bytes of the published
 * plan. */
static inline int oases_report_plans(int is_calibrated, double memory_bytes, int has_gradient_term,
                                     oases_results* r) {
    int n_equal = 0;
    paper_print(
        "\nTable 6: plans, %s, limit %s, %s gradient all-reduce; ms in the planner's model\n",
        is_calibrated ? "calibrated" : "stated constants",
        memory_bytes > 0 ? "24 GiB" : "as the published plan", has_gradient_term ? "with" : "no");
    paper_print("  %-8s %-12s %-8s %-14s %-19s %9s %9s %8s   %s\n", "cluster", "h x layers",
                "limit GB", "published", "own plan", "uniform", "published", "own",
                "gain (published)");

    for (int i = 0; i < OASES_N_ROWS; i++) {
        const oases_row* row = &oases_rows[i];
        const int n = 2 * row->n_layers;
        oases_hardware hw = is_calibrated ? oases_calibrated(row) : oases_3090(row->is_nvlink);
        int32_t own[OASES_MAX_BLOCKS], published[OASES_MAX_BLOCKS], uniform[OASES_MAX_BLOCKS];
        oases_problem problem;
        memo_degrees_plan plan = MEMO_ZERO(memo_degrees_plan);
        char text[2][128];
        double uniform_s, published_s;
        int64_t bytes, limit_bytes;
        int is_feasible;

        /* The published plan, the uniform one and the optimum have the same problem. */
        oases_set_problem(&problem, row, &hw, has_gradient_term);
        for (int j = 0; j < n; j++) {
            published[j] = j / 2 < row->n_low ? row->low_degree : row->high_degree;
            uniform[j] = row->degree;
        }
        uniform_s = oases_plan_s(&problem, uniform, &bytes);
        published_s = oases_plan_s(&problem, published, &limit_bytes);
        if (memory_bytes > 0) limit_bytes = (int64_t)memory_bytes;
        problem.degrees.memory_bytes = limit_bytes;
        is_feasible = !memo_degrees_solve(&problem.degrees, 0, own, &plan, NULL);

        n_equal += is_feasible && !memcmp(own, published, (size_t)n * sizeof *own);
        r->n_slower_than_uniform += !is_feasible || plan.step_s > uniform_s * (1 + 1e-12);
        paper_print("  %-8s %5dx%-6d %8.1f %-14s %-19s %9.1f %9.1f %8.1f   %5.3f (%.3f)\n",
                    oases_cluster_name(row), row->hidden, row->n_layers,
                    (double)limit_bytes / PAPER_GB, oases_plan_text(published, n, text[0]),
                    is_feasible ? oases_plan_text(own, n, text[1]) : "none fits", 1e3 * uniform_s,
                    1e3 * published_s, 1e3 * plan.step_s, uniform_s / plan.step_s,
                    row->throughput[OASES_N_SCHEDULES] / row->throughput[OASES_FINE]);
    }

    if (memory_bytes <= 0)
        paper_print("  equal to the published plan: %d of %d\n", n_equal, OASES_N_ROWS);
    return n_equal;
}

/* Two layers whose six makespans are known: c = 2 and c = 5. */
static inline int oases_n_right_makespans(void) {
    static const double expected[2][6] = {{36, 22, 92, 68, 62, 62}, {60, 42, 140, 98, 78, 65}};
    oases_blocks k = {4, {2, 3, 2, 3}, {2, 3, 2, 3}, {4, 6, 4, 6}, {2, 2, 2, 2}};
    int n_right = 0;
    for (int i = 0; i < 2; i++) {
        double got[6];
        for (int j = 0; j < 4; j++) k.c[j] = i == 0 ? 2 : 5;
        got[0] = oases_simulate(&k, OASES_DEFAULT, 0);
        got[1] = oases_simulate(&k, OASES_PIPELINED, 0);
        for (int j = 0; j < 4; j++) got[2 + j] = oases_simulate(&k, (oases_schedule)j, 1);
        for (int j = 0; j < 6; j++) n_right += fabs(got[j] - expected[i][j]) < 1e-9;
    }
    return n_right;
}

static inline oases_results oases_report(paper_criteria* criteria) {
    static const char* const names[2] = {"stated constants", "calibrated"};
    oases_results r;
    int i, j, n_right = oases_n_right_makespans();

    /* The tables; each fills its results. */
    memset(&r, 0, sizeof r);
    for (i = 0; i < 2; i++)
        for (j = 0; j < 2; j++) oases_report_schedules(i, j, &r);
    paper_print(
        "  The slowdown stretches the time in which computation and communication run at once.\n");
    for (i = 0; i < 2; i++) r.n_equal_plans[i] = oases_report_plans(i, 0, 0, &r);
    (void)oases_report_plans(1, OASES_DEVICE_BYTES, 0, &r);
    (void)oases_report_plans(1, OASES_DEVICE_BYTES, 1, &r);
    paper_print(
        "  gain: uniform over own; in brackets the published throughput with the planner over that "
        "without.\n");

    /* The criteria of these results. */
    paper_print("\nOases: criteria\n");
    paper_criterion(criteria, n_right == 12, "makespans of the test vector: %d of 12", n_right);
    for (i = 0; i < 2; i++) {
        for (j = 0; j < 2; j++) {
            paper_criterion(criteria, r.n_ordered[i][j] == OASES_N_ROWS,
                            "four schedules in the published order, %s, slowdown %.1f: "
                            "%d of %d rows",
                            names[i], j ? oases_3090(0).overlap_slowdown : 1.0, r.n_ordered[i][j],
                            OASES_N_ROWS);
        }
    }
    for (i = 0; i < 2; i++) {
        paper_criterion(criteria, r.n_equal_plans[i] >= 5,
                        "plans equal to the published ones, %s: %d of %d (>= 5)", names[i],
                        r.n_equal_plans[i], OASES_N_ROWS);
    }

    paper_criterion(criteria, r.n_slower_than_uniform == 0,
                    "plans slower than the uniform one in the planner's model: %d",
                    r.n_slower_than_uniform);
    return r;
}

#endif /* PAPER_OASES_H */
