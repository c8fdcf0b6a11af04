/* bench/llmc_paper.c - llm.c's bf16 trainer in a session, planned on paper: no GPU runs.
 *
 *   make build/bench/llmc_paper && build/bench/llmc_paper [STEP_MS]
 *
 * The tensors are those of examples/llmc/train_gpt2_cuda.patch at -e d12 -b 8 -t 1024 -r 1.  Times come from
 * one measured number, the original's step (24.7 ms on an H200, bench/results/h200.md): its products run at
 * the step's mean rate, and kernels without products at half of the memory's bandwidth.  So what products
 * take again is counted at the rate of the whole trainer, which is below the rate of a product alone.
 * Copies have the measured 55.3 GB/s each way.  Prints the step's ratio beside a step that keeps all. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { LAYERS = 12, C = 768, NH = 12, T = 1024, ROWS = 8 * T, VOCABULARY = 50257, MIB = 1 << 20 };

static const double bandwidth = 2.4e12; /* half of 4.8 TB/s */
static double flops_per_s;              /* of products, the mean of the step */

/* Seconds of a row: multiplications of a product, and bytes that kernels read and write. */
static double row_s(double multiplications, double n_bytes) {
    return 2 * multiplications / flops_per_s + n_bytes / bandwidth;
}

static const struct {
    memo_item tensor;
    double multiplications, n_bytes; /* of a row, to compute it again */
} acts[] = {
    {MEMO_ITEM("inp", 2 * C, MEMO_MOVE), 0, 0},
    {MEMO_ITEM("ln1", 2 * C, MEMO_ROWS), 0, 4 * C},
    {MEMO_ITEM("ln1_mean", 4, MEMO_WITH), 0, 0},
    {MEMO_ITEM("ln1_rstd", 4, MEMO_WITH), 0, 0},
    {MEMO_ITEM("qkvr", 6 * C, MEMO_WHOLE), 3.0 * C* C, 18 * C}, /* product, permutation */
    {MEMO_ITEM("att", 2 * NH * T, MEMO_WHOLE), (double)C* T, 8.0 * NH* T}, /* product, softmax */
    {MEMO_ITEM("atty", 2 * C, MEMO_WHOLE), (double)C* T, 6 * C},
    {MEMO_ITEM("residual2", 2 * C, MEMO_WHOLE), (double)C* C, 10 * C},
    {MEMO_ITEM("ln2", 2 * C, MEMO_ROWS), 0, 4 * C},
    {MEMO_ITEM("ln2_mean", 4, MEMO_WITH), 0, 0},
    {MEMO_ITEM("ln2_rstd", 4, MEMO_WITH), 0, 0},
    {MEMO_ITEM("fch", 8 * C, MEMO_WHOLE), 4.0 * C* C, 8 * C}};
enum { N_ACTS = sizeof acts / sizeof acts[0] };

/* Forward products of a row in a layer, in multiplications. */
static const double of_layer = 12.0 * C * C + 2.0 * C * T;

static void fill_profile(memo_profile* profile, double step_s) {
    const double head = (double)C * VOCABULARY;
    memset(profile, 0, sizeof *profile);
    flops_per_s = 2 * 3 * ROWS * (LAYERS * of_layer + head) / step_s;
    profile->n_rows = ROWS, profile->n_kinds = 1, profile->n_tensors = N_ACTS;
    profile->forward_s[0] = 2 * ROWS * of_layer / flops_per_s;
    profile->backward_s[0] = 2 * profile->forward_s[0];
    profile->between_s = 2 * 3 * ROWS * head / flops_per_s;
    for (int t = 0; t < N_ACTS; t++) {
        const double s = row_s(acts[t].multiplications, acts[t].n_bytes);
        snprintf(profile->tensors[t].name, sizeof profile->tensors[t].name, "%s",
                 acts[t].tensor.name);
        profile->tensors[t].recompute_s_per_row[0] = s > 0                              ? s
                                                     : acts[t].tensor.away == MEMO_WITH ? 0
                                                                                        : -1;
    }
    profile->copies[1].size_bytes = 64 * MIB;
    profile->copies[1].out_s = profile->copies[1].back_s = 64 * MIB / 55.3e9;
}

int main(int argc, char** argv) {
    const double step_s = (argc > 1 ? atof(argv[1]) : 24.7) * 1e-3,
                 parts[] = {1, 0.8, 0.6, 0.45, 0.35};
    static memo_profile profile;
    memo_item tensors[N_ACTS];
    memo_session_desc desc = {0};
    double all_bytes = 0, keep_s = 0;
    memo_error error;
    if (!(step_s > 0)) return fprintf(stderr, "llmc_paper: STEP_MS above 0 would work\n"), 2;
    fill_profile(&profile, step_s);
    for (int t = 0; t < N_ACTS; t++) {
        tensors[t] = acts[t].tensor;
        all_bytes += (double)tensors[t].row_bytes * ROWS * LAYERS;
    }
    desc.tensors = tensors, desc.n_tensors = N_ACTS;
    desc.n_layers = LAYERS, desc.n_rows = ROWS, desc.tile_rows = 128;
    printf("activations %.0f MiB, products at %.0f TFLOP/s\n", all_bytes / MIB,
           1e-12 * flops_per_s);
    for (int k = 0; k < (int)(sizeof parts / sizeof *parts); k++) {
        memo_step_plan* plan;
        desc.device_bytes = (int64_t)(parts[k] * all_bytes) + (k == 0) * MIB;
        if (memo_session_plan(&desc, &profile, &plan, &error))
            return fprintf(stderr, "llmc_paper: %s\n", error.message), 1;
        if (k == 0) keep_s = plan->times->step_s;
        if (!plan->fits)
            printf("%.2f: %s\n", parts[k], plan->shortage);
        else
            printf("%.2f: %.0f MiB on the device, %.0f on the host, %.2f ms, %.3f of keeping all; "
                   "%s\n",
                   parts[k], (double)plan->device_bytes / MIB, (double)plan->host_bytes / MIB,
                   1e3 * plan->times->step_s, plan->times->step_s / keep_s, plan->times->reason);
        memo_step_plan_destroy(plan);
    }
    return 0;
}
