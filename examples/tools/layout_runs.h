/* layout_runs.h - published training runs that no constant of memo_layout.h is fitted to, and what
 * each mechanism of the model earns on them; and the table of MPT, to which three rates are fitted.
 *
 * Rates are measured (cluster_rates_of), bandwidths are of data sheets (clusters.h).  Single
 * translation unit: everything is static. */
#ifndef LAYOUT_RUNS_H
#define LAYOUT_RUNS_H

#include "clusters.h"

#define GIB 1073741824.0

typedef struct published_run {
    const char *name, *source;
    memo_parallel_model model;
    int64_t sequence, batch, micro_batch; /* micro_batch 0: 1 */
    int32_t n_gpus;
    memo_parallel_layout layout;
    double host_gib; /* of a node */
    double mlp_tile_bytes;
    int32_t optimizer_on_host;
    double mfu_percent, step_s, tokens_per_s; /* tokens: of a GPU; 0: not published */
    double memory_bandwidth;                  /* GB/s of a GPU; 0: the preset's */
    double speed;                             /* of the measured rates; 0: 1 */
    double tensor_copies;
} published_run;

/* Qwen3 8B and Llama 3 as their configurations on Hugging Face; GPT-3 175B as in its paper. */
#define RUN_LLAMA3_405B                                                                            \
    { 126, 16384, 53248, 128, 8, 128, 128, 3, 0, 128256, 0, 0, 0 }
#define RUN_LLAMA3_70B                                                                             \
    { 80, 8192, 28672, 64, 8, 128, 128, 3, 0, 128256, 0, 0, 0 }
#define RUN_LLAMA3_8B                                                                              \
    { 32, 4096, 14336, 32, 8, 128, 128, 3, 0, 128256, 0, 0, 0 }
#define RUN_QWEN3_8B                                                                               \
    { 36, 4096, 12288, 32, 8, 128, 128, 3, 0, 151936, 0, 0, 0 }
#define RUN_GPT3_175B                                                                              \
    { 96, 12288, 49152, 96, 96, 128, 128, 2, 1, 51200, 0, 0, 0 }

/* All on nodes of eight H100 of 80 GB. */
static const published_run published_runs[] = {
    /* The Llama 3 Herd of Models, arXiv 2407.21783, Table 4: TP, CP, PP, DP and the batch.  FSDP
     * shards optimizer and gradients (section 3.3.2).  The paper does not state the chunks: 126
     * layers, one less in the first and the last stage, are 16 stages of eight chunks of a
     * layer. */
    {.name = "Llama 3 405B, 8K, 16,384 GPUs",
     .source = "arXiv 2407.21783, Table 4",
     .model = RUN_LLAMA3_405B,
     .sequence = 8192,
     .batch = 2048,
     .n_gpus = 16384,
     .layout = {128, 16, 8, 1, 1, 2, MEMO_PARALLEL_KEEP, 8, 1},
     .mfu_percent = 41},
    {.name = "Llama 3 405B, 8K, 8,192 GPUs",
     .source = "arXiv 2407.21783, Table 4",
     .model = RUN_LLAMA3_405B,
     .sequence = 8192,
     .batch = 2048,
     .n_gpus = 8192,
     .layout = {64, 16, 8, 1, 1, 2, MEMO_PARALLEL_KEEP, 8, 1},
     .mfu_percent = 43},
    {.name = "Llama 3 405B, 128K, 16,384 GPUs",
     .source = "arXiv 2407.21783, Table 4",
     .model = RUN_LLAMA3_405B,
     .sequence = 131072,
     .batch = 128,
     .n_gpus = 16384,
     .layout = {8, 16, 8, 16, 1, 2, MEMO_PARALLEL_KEEP, 8, 1},
     .mfu_percent = 38},
    /* trl #6846 and release 1.13.0 (380 s), transformers #48324 (34.7 % at 373 s): FSDP2 over eight
     * ranks of a ring, every layer recomputed from an input on the host, a loss in chunks. */
    {.name = "Qwen3 8B, 1M, 8 GPUs",
     .source = "trl #6846, transformers #48324",
     .model = RUN_QWEN3_8B,
     .sequence = 1048576,
     .batch = 1,
     .n_gpus = 8,
     .layout = {1, 1, 1, 8, 1, 3, MEMO_PARALLEL_OFFLOAD, 1, 1},
     .host_gib = 2048,
     .mfu_percent = 34.7,
     .step_s = 380},
    /* Arctic Long Sequence Training, arXiv 2506.13996: ZeRO-3, the optimizer and the layer inputs
     * on the host, Ulysses over eight ranks, MLP and loss in tiles.  It ran. */
    {.name = "Llama 3 8B, 3.7M, 8 GPUs",
     .source = "arXiv 2506.13996, abstract",
     .model = RUN_LLAMA3_8B,
     .sequence = 3700000,
     .batch = 1,
     .n_gpus = 8,
     .layout = {1, 1, 1, 1, 8, 3, MEMO_PARALLEL_OFFLOAD, 1, 1},
     .host_gib = 2048,
     .mlp_tile_bytes = 268435456,
     .optimizer_on_host = 1},
    /* 47 %: README of Megatron-LM, strong scaling of the 175B model, its largest figure.  TP 4 and
     * PP 8 for 128 to 512 GPUs: its parallelism guide.  Six chunks, a micro-batch of 2 and 2,048
     * sequences of 2,048 tokens: NeMo 24.12, performance of GPT3-175B on 512 GPUs. */
    {.name = "GPT-3 175B, 2K, 512 GPUs",
     .source = "Megatron-LM, README; NeMo 24.12",
     .model = RUN_GPT3_175B,
     .sequence = 2048,
     .batch = 2048,
     .micro_batch = 2,
     .n_gpus = 512,
     .layout = {16, 8, 4, 1, 1, 1, MEMO_PARALLEL_KEEP, 6, 1},
     .mfu_percent = 47},
    /* torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3: FSDP, compiled,
     * every second product computed again.  HBM2e of 2.4 TB/s.  GPUs limited to 500 of 700 W: 0.85
     * of the rates is assumed.  Uncompiled runs reach 0.86 of these. */
    {.name = "Llama 3.1 8B, 8K, 8 GPUs",
     .source = "torchtitan, 2024-12, table 1",
     .model = RUN_LLAMA3_8B,
     .sequence = 8192,
     .batch = 16,
     .micro_batch = 2,
     .n_gpus = 8,
     .layout = {8, 1, 1, 1, 1, 3, MEMO_PARALLEL_SELECTIVE, 1, 1},
     .tokens_per_s = 6667,
     .memory_bandwidth = 1800,
     .speed = 0.85},
    {.name = "Llama 3.1 8B, 8K, 128 GPUs",
     .source = "torchtitan, 2024-12, table 3",
     .model = RUN_LLAMA3_8B,
     .sequence = 8192,
     .batch = 256,
     .micro_batch = 2,
     .n_gpus = 128,
     .layout = {128, 1, 1, 1, 1, 3, MEMO_PARALLEL_SELECTIVE, 1, 1},
     .tokens_per_s = 6514,
     .memory_bandwidth = 1800,
     .speed = 0.85},
    /* torchtitan, benchmarks of June 2025 of asynchronous TP: the plain TP beside it, in bf16, on the
     * same GPUs; FSDP 8 and 32; a batch of 12 and 16 for each rank of FSDP.  Tensors are (batch,
     * sequence, hidden), and torch's all_gather_tensor and reduce_scatter_tensor
     * (torch/distributed/_functional_collectives.py) work along dimension 0: along the sequence
     * they cut the whole tensor and put it together again, a copy each. */
    {.name = "Llama 3.1 8B, TP 8, 64 GPUs",
     .source = "torchtitan, 2025-06, TP",
     .model = RUN_LLAMA3_8B,
     .sequence = 8192,
     .batch = 96,
     .micro_batch = 12,
     .n_gpus = 64,
     .layout = {8, 1, 8, 1, 1, 3, MEMO_PARALLEL_SELECTIVE, 1, 1},
     .tokens_per_s = 4378,
     .memory_bandwidth = 1800,
     .speed = 0.85,
     .tensor_copies = 1},
    {.name = "Llama 3.1 70B, TP 8, 256 GPUs",
     .source = "torchtitan, 2025-06, TP",
     .model = RUN_LLAMA3_70B,
     .sequence = 8192,
     .batch = 512,
     .micro_batch = 16,
     .n_gpus = 256,
     .layout = {32, 1, 8, 1, 1, 3, MEMO_PARALLEL_RECOMPUTE, 1, 1},
     .tokens_per_s = 597.3,
     .memory_bandwidth = 1800,
     .speed = 0.85,
     .tensor_copies = 1}};
enum { N_RUNS = sizeof published_runs / sizeof *published_runs };

/* Mechanisms that a prediction may leave out. */
typedef enum run_mechanism {
    RUN_ALL,
    RUN_NO_RATES,      /* products and attention at 0.75, 0.6 and 0.55 of the peak */
    RUN_NO_SHAPES,     /* products of any shape at the same rate, no row kernels */
    RUN_NO_CHUNKS,     /* stages are not interleaved */
    RUN_NO_HOST,       /* layer inputs and the optimizer on the device */
    RUN_NO_TILES,      /* MLP of all rows at once */
    RUN_NO_OVERLAP,    /* no all-to-all is hidden */
    RUN_NO_STRAGGLERS, /* all GPUs are equally fast */
    RUN_NO_COPIES,     /* collectives of tensor parallelism copy nothing */
    RUN_N_MECHANISMS
} run_mechanism;
static const char* const run_mechanisms[] = {"all",   "rates",   "shapes",     "chunks", "host",
                                             "tiles", "overlap", "stragglers", "copies"};

/* GPUs of this kind, without host memory; rates are those that cluster_rates_of has for all. */
static inline memo_parallel_cluster cluster_of_preset(const cluster_preset* preset) {
    memo_parallel_cluster c = MEMO_ZERO(memo_parallel_cluster);
    c.gpus_per_node = (int32_t)preset->per_node;
    c.is_shared_bus = (int32_t)preset->shared_bus;
    c.device_bytes = (int64_t)(preset->memory * GIB);
    c.peak_flops_per_s = preset->flops * 1e12;
    c.n_processors = (int32_t)preset->processors;
    c.speed_deviation = CLUSTER_SPEED_DEVIATION;
    c.link_bytes_per_s = preset->link * 1e9;
    c.nic_bytes_per_s = preset->nic * 1e9;
    c.device_memory_bytes_per_s = preset->memory_bandwidth * 1e9;
    c.host_bytes_per_s = fmin(preset->to_host, preset->to_device) * 1e9;
    c.collective_s = c.block_s = 20e-6;
    return c;
}

static inline memo_status run_predict(const published_run* run, run_mechanism without,
                                      memo_parallel_prediction* prediction, memo_error* error) {
    const cluster_preset* preset = &clusters[cluster_find("h100")];
    memo_parallel_desc desc = MEMO_ZERO(memo_parallel_desc);
    memo_parallel_layout layout = run->layout;
    const cluster_rates rates =
        cluster_rates_of(without == RUN_NO_RATES ? NULL : preset, (double)run->sequence);
    desc.cluster = cluster_of_preset(preset);
    desc.cluster.n_gpus = run->n_gpus;
    desc.cluster.host_bytes = (int64_t)(run->host_gib * GIB);
    desc.cluster.gemm_efficiency = rates.products;
    desc.cluster.attention_forward_efficiency = rates.forward;
    desc.cluster.attention_backward_efficiency = rates.backward;
    if (run->speed > 0) {
        desc.cluster.gemm_efficiency *= run->speed;
        desc.cluster.attention_forward_efficiency *= run->speed;
        desc.cluster.attention_backward_efficiency *= run->speed;
    }
    if (run->memory_bandwidth > 0)
        desc.cluster.device_memory_bytes_per_s = run->memory_bandwidth * 1e9;
    desc.cluster.tensor_copies = without == RUN_NO_COPIES ? 0 : run->tensor_copies;
    if (without == RUN_NO_STRAGGLERS) desc.cluster.speed_deviation = 0;
    if (without == RUN_NO_SHAPES) desc.cluster.n_processors = 0;
    desc.model = run->model;
    desc.sequence = run->sequence;
    desc.global_batch = run->batch;
    desc.micro_batch = run->micro_batch;
    desc.loss_tile_bytes = 268435456;
    desc.mlp_tile_bytes = without == RUN_NO_TILES ? 0 : run->mlp_tile_bytes;
    desc.optimizer_on_host = without == RUN_NO_HOST ? 0 : run->optimizer_on_host;
    desc.max_ulysses_groups = without == RUN_NO_OVERLAP;
    if (without == RUN_NO_CHUNKS) layout.chunks = 1;
    if (without == RUN_NO_HOST && layout.activations == MEMO_PARALLEL_OFFLOAD)
        layout.activations = MEMO_PARALLEL_RECOMPUTE;
    return memo_parallel_predict(&desc, &layout, prediction, error);
}

/* MFU in percent of a published number of tokens, with the flops that a prediction counts. */
static inline double run_published_mfu(const published_run* run) {
    memo_parallel_prediction p;
    memo_error error;
    if (run_predict(run, RUN_ALL, &p, &error)) return 0;
    return 100 * p.mfu * run->tokens_per_s * run->n_gpus * p.time.step_s /
           ((double)run->sequence * (double)run->batch);
}

/* ---- MPT ---- */

/* mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 80GB BF16: FSDP over all GPUs,
 * uncompiled, attention in Triton (FlashAttention 1), vocabulary 50368.  Rows of 1B and more, of 1K
 * to 64K tokens.  Three numbers are fitted to these rows: 220 and 160 TFLOP/s of attention
 * (CLUSTER_TRITON), and MPT_ROW_TRAFFIC. */
#define MPT_ROW_TRAFFIC 1.8
typedef struct mpt_run {
    const char* name;
    int32_t n_layers, hidden, n_heads, sequence, n_gpus, micro_batch, batch, recomputes;
    double tokens_per_s; /* of a GPU */
} mpt_run;
static const mpt_run mpt_runs[] = {{"70b", 80, 8192, 64, 2048, 64, 8, 2048, 1, 1039},
                                   {"70b", 80, 8192, 64, 2048, 32, 2, 1024, 1, 882},
                                   {"30b", 48, 7168, 56, 8192, 8, 1, 168, 1, 1384},
                                   {"30b", 48, 7168, 56, 4096, 8, 1, 168, 1, 1802},
                                   {"30b", 48, 7168, 56, 2048, 32, 14, 1344, 1, 2308},
                                   {"30b", 48, 7168, 56, 2048, 16, 10, 480, 1, 2263},
                                   {"30b", 48, 7168, 56, 2048, 8, 3, 504, 1, 2002},
                                   {"30b", 48, 7168, 56, 1024, 8, 6, 1008, 1, 2084},
                                   {"13b", 40, 5120, 40, 32768, 8, 1, 24, 1, 1976},
                                   {"13b", 40, 5120, 40, 16384, 8, 3, 72, 1, 2985},
                                   {"13b", 40, 5120, 40, 4096, 8, 10, 240, 1, 4717},
                                   {"13b", 40, 5120, 40, 2048, 64, 2, 128, 0, 4800},
                                   {"13b", 40, 5120, 40, 2048, 8, 2, 16, 0, 4792},
                                   {"13b", 40, 5120, 40, 1024, 8, 40, 960, 1, 5502},
                                   {"7b", 32, 4096, 32, 65536, 8, 1, 16, 1, 1956},
                                   {"7b", 32, 4096, 32, 32768, 8, 2, 32, 1, 3318},
                                   {"7b", 32, 4096, 32, 8192, 8, 8, 128, 1, 6935},
                                   {"7b", 32, 4096, 32, 4096, 8, 16, 256, 1, 8611},
                                   {"7b", 32, 4096, 32, 2048, 8, 6, 48, 0, 10643},
                                   {"7b", 32, 4096, 32, 1024, 8, 64, 1024, 1, 10203},
                                   {"3b", 32, 2560, 20, 65536, 8, 1, 16, 1, 3262},
                                   {"3b", 32, 2560, 20, 32768, 8, 3, 144, 1, 5873},
                                   {"3b", 32, 2560, 20, 16384, 8, 1, 48, 0, 11152},
                                   {"3b", 32, 2560, 20, 8192, 8, 3, 144, 0, 16578},
                                   {"3b", 32, 2560, 20, 4096, 8, 5, 240, 0, 20964},
                                   {"3b", 32, 2560, 20, 2048, 64, 6, 1152, 0, 22525},
                                   {"3b", 32, 2560, 20, 2048, 16, 10, 480, 0, 24142},
                                   {"3b", 32, 2560, 20, 1024, 8, 20, 960, 0, 27046},
                                   {"1b", 24, 2048, 16, 65536, 8, 1, 16, 1, 5506},
                                   {"1b", 24, 2048, 16, 32768, 8, 1, 32, 0, 12025},
                                   {"1b", 24, 2048, 16, 16384, 8, 2, 64, 0, 19649},
                                   {"1b", 24, 2048, 16, 8192, 8, 3, 96, 0, 29157},
                                   {"1b", 24, 2048, 16, 4096, 8, 7, 224, 0, 38535},
                                   {"1b", 24, 2048, 16, 2048, 64, 20, 1280, 0, 44402},
                                   {"1b", 24, 2048, 16, 2048, 8, 14, 112, 0, 45455},
                                   {"1b", 24, 2048, 16, 1024, 8, 18, 576, 0, 48910}};
enum { N_MPT_RUNS = sizeof mpt_runs / sizeof *mpt_runs };

/* The predicted tokens per second of a GPU; memory_gib: of a GPU. */
static inline memo_status mpt_predict(const mpt_run* run, double* tokens_per_s, double* memory_gib,
                                      memo_error* error) {
    const cluster_preset* preset = &clusters[cluster_find("h100")];
    const cluster_rates rates = cluster_kernel_rates(CLUSTER_TRITON, preset, (double)run->sequence);
    const memo_parallel_layout layout = {
        run->n_gpus, 1, 1, 1, 1, 3, run->recomputes ? MEMO_PARALLEL_RECOMPUTE : MEMO_PARALLEL_KEEP,
        1,           1};
    const int64_t each = (int64_t)run->micro_batch * run->n_gpus;
    memo_parallel_desc desc = MEMO_ZERO(memo_parallel_desc);
    memo_parallel_prediction p;
    desc.cluster = cluster_of_preset(preset);
    desc.cluster.n_gpus = run->n_gpus;
    desc.cluster.gemm_efficiency = rates.products;
    desc.cluster.attention_forward_efficiency = rates.forward;
    desc.cluster.attention_backward_efficiency = rates.backward;
    desc.cluster.row_traffic = MPT_ROW_TRAFFIC;
    desc.model.n_layers = run->n_layers;
    desc.model.hidden = run->hidden;
    desc.model.ffn = 4 * run->hidden;
    desc.model.n_ffn_matrices = 2;
    desc.model.n_q_heads = desc.model.n_kv_heads = run->n_heads;
    desc.model.is_tied = 1;
    desc.model.vocabulary = 50368;
    desc.sequence = run->sequence;
    desc.micro_batch = run->micro_batch;
    desc.global_batch = (run->batch + each / 2) / each * each; /* whole micro-batches */
    if (memo_parallel_predict(&desc, &layout, &p, error)) return error->status;
    *tokens_per_s = (double)desc.global_batch * run->sequence / p.time.step_s / run->n_gpus;
    *memory_gib = p.memory.device_bytes / GIB;
    return MEMO_STATUS_OK;
}

/* What the rows of 30B on eight GPUs say of 8K, without this model: seconds of a micro-batch of m
 * sequences of s tokens are linear in m s (products), linear in m s^2 (attention) and constant
 * (parameters that travel), by the rows of 1K, 2K and 4K tokens. */
static inline double mpt_of_neighbours(void) {
    const double* t;
    double seconds[3], linear, quadratic, constant;
    static const double rows[][3] = {{6, 1024, 2084}, {3, 2048, 2002}, {1, 4096, 1802}};
    for (int i = 0; i < 3; i++) seconds[i] = rows[i][0] * rows[i][1] / rows[i][2];
    t = seconds; /* two micro-batches of 6,144 tokens, one of 4,096 */
    quadratic = (t[1] - t[0]) / (6144.0 * 1024);
    linear = (t[0] - t[2] - quadratic * (6144.0 * 1024 - 4096.0 * 4096)) / 2048;
    constant = t[0] - linear * 6144 - quadratic * 6144 * 1024;
    return 8192 / (constant + linear * 8192 + quadratic * 8192 * 8192);
}

static inline void mpt_print(FILE* out) {
    fprintf(out,
            "\nMPT: tokens/s of a GPU, published and predicted\n%-5s %9s %5s %9s %9s %6s %6s\n",
            "model", "sequence", "GPUs", "published", "predicted", "off %", "GiB");
    for (int i = 0; i < N_MPT_RUNS; i++) {
        const mpt_run* run = &mpt_runs[i];
        double tokens_per_s = 0, memory_gib = 0;
        memo_error error;
        if (mpt_predict(run, &tokens_per_s, &memory_gib, &error)) continue;
        fprintf(out, "%-5s %9d %5d %9.0f %9.0f %+6.1f %6.1f\n", run->name, (int)run->sequence,
                (int)run->n_gpus, run->tokens_per_s, tokens_per_s,
                100 * (tokens_per_s / run->tokens_per_s - 1), memory_gib);
    }
    fprintf(
        out,
        "30b at 8192 by its rows at 1024, 2048 and 4096 alone: %.0f, so that the published number "
        "contradicts these rows\n",
        mpt_of_neighbours());
}

/* Published and predicted MFU, memory of a GPU, and the prediction without each mechanism. */
static inline void runs_print(FILE* out) {
    fprintf(out, "MFU %%, published and predicted; and without:\n%-32s %9s %9s %8s", "",
            "published", "predicted", "GiB");
    for (int k = 1; k < RUN_N_MECHANISMS; k++) fprintf(out, " %8s", run_mechanisms[k]);
    fputs("  source\n", out);
    for (int i = 0; i < N_RUNS; i++) {
        const published_run* run = &published_runs[i];
        fprintf(out, "%-32s ", run->name);
        if (run->mfu_percent > 0)
            fprintf(out, "%9.1f", run->mfu_percent);
        else if (run->tokens_per_s > 0)
            fprintf(out, "%9.1f", run_published_mfu(run));
        else
            fprintf(out, "%9s", "it ran");
        for (int k = 0; k < RUN_N_MECHANISMS; k++) {
            memo_parallel_prediction p;
            memo_error error;
            if (run_predict(run, (run_mechanism)k, &p, &error))
                fprintf(out, " %8s", "illegal");
            else
                fprintf(out, " %*.1f%s", k ? 7 : 8, 100 * p.mfu, p.fits ? " " : "*");
            if (k == 0) fprintf(out, " %8.1f", p.memory.device_bytes / GIB);
        }
        fprintf(out, "  %s\n", run->source);
    }
    fputs("*: does not fit in 80 GiB\n", out);
    mpt_print(out);
}

#endif
