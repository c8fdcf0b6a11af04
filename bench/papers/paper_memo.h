/* paper_memo.h - "Efficiently Training 7B LLM with 1 Million Sequence Length on 8 GPUs" (MEMO): its
 * tables of model FLOPs utilization (MFU), out-of-memory verdicts and swapped fractions, computed
 * from one table of constants and printed beside the published figures.
 *
 * Symbols of the paper: n layers, h hidden size, s tokens of a sequence, V vocabulary, P
 * parameters, alpha the swapped fraction of the rows, B the bandwidth to host memory.  TP, CP, DP,
 * PP: degrees of tensor, context, data and pipeline parallelism.  bf16: 2 bytes an element. */
#ifndef PAPER_MEMO_H
#define PAPER_MEMO_H

#include "paper_common.h"
#include "tools/caching_model.h"
#include "tools/clusters.h"
#include "tools/trace_layers.h"

/* ---- published figures ----------------------------------------------------------------------- */

/* Values in place of an alpha or an MFU: the paper reports that the run failed. */
#define SWAP_OOM  (-1.0) /* device memory exhausted */
#define SWAP_OOHM (-2.0) /* host memory exhausted */
#define SWAP_NONE (-3.0) /* not planned */

/* Of as many cells one is planned by the library, which takes most of the time of the tables; and
 * how many were. */
static int swap_plan_every = 1, swap_n_planned;

#define SWAP_N_LENGTHS 12
static const double swap_lengths_k[SWAP_N_LENGTHS] = {64,  128, 256,  384,  512,  640,
                                                      768, 896, 1024, 1152, 1280, 1408};

typedef struct swap_layout {
    int tensor, context, data, pipeline;
} swap_layout;

typedef struct swap_cell {
    swap_layout layout;
    double alpha, mfu; /* mfu in per cent; 0 if the program did not run */
} swap_cell;

typedef struct swap_model {
    const char* name;
    int n_layers, hidden, n_gpus;
    swap_cell cells[SWAP_N_LENGTHS];
} swap_model;

/* Table 2: feed-forward size 4h, vocabulary 50257.  Appendix A, Table 7: layout and alpha; a cell
 * that failed has the layout of the one before.  Table 3, rows "Memo": MFU. */
#define SWAP_N_MODELS 4
/* clang-format off */
static const swap_model swap_models[SWAP_N_MODELS] = {
    {"7B", 32, 4096, 8,
     {{{2, 2, 2, 1}, 0, 52.34},     {{4, 2, 1, 1}, 0, 50.96},     {{4, 2, 1, 1}, 1, 53.62},
      {{4, 2, 1, 1}, 0.5, 53.04},   {{4, 2, 1, 1}, 0.125, 51.84}, {{4, 2, 1, 1}, 0.125, 52.59},
      {{4, 2, 1, 1}, 0, 51.89},     {{4, 2, 1, 1}, 0, 52.71},     {{8, 1, 1, 1}, 0, 52.30},
      {{8, 1, 1, 1}, SWAP_OOM, 0},  {{8, 1, 1, 1}, SWAP_OOM, 0},  {{8, 1, 1, 1}, SWAP_OOM, 0}}},
    {"13B", 40, 5120, 16,
     {{{2, 2, 4, 1}, 0, 52.65},     {{4, 2, 2, 1}, 0, 50.93},     {{4, 2, 2, 1}, 0, 51.22},
      {{4, 2, 1, 2}, 0, 51.91},     {{4, 4, 1, 1}, 0.5, 52.40},   {{4, 4, 1, 1}, 0.125, 52.13},
      {{4, 4, 1, 1}, 0.125, 51.71}, {{4, 4, 1, 1}, 0, 51.76},     {{4, 4, 1, 1}, 0, 52.06},
      {{4, 4, 1, 1}, 0, 51.74},     {{4, 4, 1, 1}, 0, 51.78},     {{4, 4, 1, 1}, 0, 52.10}}},
    {"30B", 48, 7168, 32,
     {{{4, 1, 8, 1}, 0, 52.12},     {{8, 1, 4, 1}, 0, 49.66},     {{8, 2, 2, 1}, 0, 50.00},
      {{8, 2, 2, 1}, 0, 50.69},     {{8, 2, 2, 1}, 0, 51.06},     {{8, 4, 1, 1}, 0.25, 51.72},
      {{8, 4, 1, 1}, 0.125, 51.18}, {{8, 4, 1, 1}, 0.125, 51.50}, {{8, 4, 1, 1}, 0.125, 51.24},
      {{8, 4, 1, 1}, 0.125, 51.73}, {{8, 4, 1, 1}, 0, 51.59},     {{8, 4, 1, 1}, SWAP_OOHM, 0}}},
    {"65B", 80, 8192, 64,
     {{{8, 1, 8, 1}, 0, 47.80},     {{4, 4, 4, 1}, 0, 48.61},     {{8, 4, 2, 1}, 0, 49.87},
      {{8, 8, 1, 1}, 0.25, 48.85},  {{8, 8, 1, 1}, 0.25, 49.71},  {{8, 8, 1, 1}, 0.25, 50.05},
      {{8, 8, 1, 1}, 0.25, 51.16},  {{8, 8, 1, 1}, 0.125, 51.05}, {{8, 8, 1, 1}, 0.125, 51.27},
      {{8, 8, 1, 1}, 0, 51.20},     {{8, 8, 1, 1}, 0, 51.42},     {{8, 8, 1, 1}, 0, 51.45}}}};
/* clang-format on */

/* Table 4, 7B, TP 4, CP 2, per cent. */
#define SWAP_N_ABLATION 8
typedef enum swap_policy {
    SWAP_RECOMPUTE, /* full recomputation from each layer's input, with a memory plan */
    SWAP_FULL,      /* alpha = 1 */
    SWAP_ALPHA,     /* MEMO: layer input and attention output whole, of the others a fraction */
    SWAP_N_PUBLISHED,
    SWAP_KEEP = SWAP_N_PUBLISHED /* everything stays on the device; not in the paper's table */
} swap_policy;
static const char* const swap_policy_names[SWAP_N_PUBLISHED] = {"recompute + plan",
                                                                "full swap + plan", "MEMO"};
static const swap_layout swap_ablation_layout = {4, 2, 1, 1};
static const double swap_ablation_mfu[SWAP_N_PUBLISHED][SWAP_N_ABLATION] = {
    {42.91, 43.17, 42.05, 42.49, 41.90, 42.15, SWAP_OOM, SWAP_OOM},
    {37.40, 46.33, 53.62, SWAP_OOHM, SWAP_OOHM, SWAP_OOHM, SWAP_OOHM, SWAP_OOHM},
    {47.99, 50.96, 53.62, 53.04, 51.84, 52.59, 51.89, 52.71}};
static const double swap_unplanned_mfu[SWAP_N_ABLATION] = {41.19,    23.00,    29.07,    25.67,
                                                           SWAP_OOM, SWAP_OOM, SWAP_OOM, SWAP_OOM};
static const double swap_reorganizations[SWAP_N_ABLATION] = {NAN, 6, 16, NAN, NAN, NAN, NAN, NAN};

/* Figures 1(b), 7 and 12(a): 7B, TP 8; GPUs against the longest length. */
#define SWAP_PUBLISHED_HIDDEN_K    192.0 /* the forward pass hides full offloading from here */
#define SWAP_PUBLISHED_ATTENTION_K 576.0 /* attention above 90 % of the forward pass */
#define SWAP_N_SCALES              4
static const int swap_scale_gpus[SWAP_N_SCALES] = {8, 16, 32, 64};
static const double swap_scale_longest_k[SWAP_N_SCALES] = {1024, 2048, 4096, 8192};

/* One H200: the MFU and memory of a GPT of the 7B shape with eight layers, measured with weights
 * and AdamW states in bf16; NAN: not measured. */
#define SWAP_N_H200        5
#define SWAP_N_H200_MODELS 2
static const double swap_h200_lengths_k[SWAP_N_H200] = {64, 128, 256, 512, 1024};
static const double swap_h200_ceiling[SWAP_N_H200] = {55.4, 51.4, 49.1, 47.8, 47.0};
static const double swap_h200_keep_mfu[SWAP_N_H200] = {53.6, SWAP_OOM, SWAP_OOM, NAN, NAN};
static const double swap_h200_recompute_mfu[SWAP_N_H200] = {43.5, 40.6, 38.2, NAN, NAN};
static const double swap_h200_keep_gib[SWAP_N_H200] = {82, NAN, NAN, NAN, NAN};
static const double swap_h200_recompute_gib[SWAP_N_H200] = {26, 40, 68, NAN, NAN};
static const swap_layout swap_one_gpu = {1, 1, 1, 1};
static const swap_model swap_h200_models[SWAP_N_H200_MODELS] = {
    {"7B shape, 8 layers", 8, 4096, 1, {{{0, 0, 0, 0}, 0, 0}}},
    {"7B, 32 layers", 32, 4096, 1, {{{0, 0, 0, 0}, 0, 0}}}};

/* ---- hardware: all constants ----------------------------------------------------------------- */

typedef struct swap_hardware {
    double peak_flops;              /* the 100 % of MFU */
    cluster_rates rates;            /* of peak_flops; attention: of the causal half */
    const cluster_preset* measured; /* or the rates that clusters.h has of this GPU */
    double pcie_bytes_per_s;        /* B, of one GPU, each way */
    double nvlink_bytes_per_s;      /* of one GPU, each way */
    double nic_bytes_per_s;         /* of one GPU, each way */
    double gpus_per_node;
    double device_bytes, device_reserve_bytes;
    double host_bytes_per_node, host_usable; /* usable: fraction */
    double bytes_per_logit;
    double classifier_tokens; /* rows of a chunk of the classifier; 0: one chunk */
    double is_host_rounded;   /* each pinned tensor takes a power of two */
    double parameter_bytes, gradient_bytes, optimizer_bytes; /* of one parameter */
    double n_micro_batches;                                  /* of one step and replica */
    double vocabulary;
} swap_hardware;

/* The four fitted ones are the start of the fit. */
#define AT(field) offsetof(swap_hardware, field)
#define SWAP_FIT  FITTED, "Table 4's planned rows, 16 values"
/* clang-format off */
static const paper_constant swap_a800_constants[] = {
    {"peak", 312, "TFLOP/s", STATED, "Section 5.1", AT(peak_flops), 1e12},
    {"GEMM efficiency", 0.7, "of peak", SWAP_FIT, AT(rates.products), 1},
    {"attention efficiency, forward", 0.7, "of peak", SWAP_FIT, AT(rates.forward), 1},
    {"attention efficiency, backward", 0.6, "of peak", SWAP_FIT, AT(rates.backward), 1},
    {"PCIe of one GPU, effective", 12, "GB/s", SWAP_FIT, AT(pcie_bytes_per_s), PAPER_GB},
    {"PCIe of one GPU", 32, "GB/s", STATED, "Section 5.1; only printed beside", 0, 0},
    {"NVLink of one GPU, each way", 160, "GB/s", ASSUMED, "400 GB/s stated: 80 % of 200 each way",
     AT(nvlink_bytes_per_s), PAPER_GB},
    {"InfiniBand of one GPU, each way", 20, "GB/s", ASSUMED, "200 a node stated: 80 % of 25 a GPU",
     AT(nic_bytes_per_s), PAPER_GB},
    {"GPUs of a node", 8, "", STATED, "Section 5.1", AT(gpus_per_node), 1},
    {"micro-batches of a step", 16, "", ASSUMED, "share out bubble and gradient exchange",
     AT(n_micro_batches), 1},
    {"device memory", 80, "GiB", STATED, "Section 5.1", AT(device_bytes), PAPER_GIB},
    {"device reserve", 4, "GiB", ASSUMED, "CUDA, NCCL; interval printed below",
     AT(device_reserve_bytes), PAPER_GIB},
    {"host memory of a node", 2, "TB", STATED, "Section 5.1", AT(host_bytes_per_node), 1e12},
    {"usable host memory", 0.6, "fraction", ASSUMED, "interval printed below", AT(host_usable), 1},
    {"bytes of a logit", 6, "B", ASSUMED, "bf16 and fp32; interval printed below",
     AT(bytes_per_logit), 1},
    {"parameter + gradient + optimizer", 2 + 4 + 12, "B", ASSUMED,
     "2 + 4 + 12, the last shared by ZeRO-1", 0, 0},
    {"vocabulary", 50257, "", STATED, "Table 2", AT(vocabulary), 1}};

/* Measured on one H200, except for what is assumed; its rates are those of clusters.h. */
static const paper_constant swap_h200_constants[] = {
    {"peak", 989, "TFLOP/s", ASSUMED, "data sheet, dense bf16", AT(peak_flops), 1e12},
    {"GEMM", 721, "TFLOP/s", MEASURED, "65536 x 4096 x 16384", 0, 0},
    {"attention at 64K, forward", 601, "TFLOP/s", MEASURED,
     "649 at 16K, 555 at 128K; between by log s", 0, 0},
    {"attention at 64K, backward", 520, "TFLOP/s", MEASURED,
     "353 at 16K, 526 at 128K; between by log s", 0, 0},
    {"PCIe, each way", 55.3, "GB/s", MEASURED, "pinned", AT(pcie_bytes_per_s), PAPER_GB},
    {"device memory", 139, "GiB", MEASURED, "", AT(device_bytes), PAPER_GIB},
    {"device reserve", 4, "GiB", ASSUMED, "as above", AT(device_reserve_bytes), PAPER_GIB},
    {"host memory", 125, "GiB", MEASURED, "", AT(host_bytes_per_node), PAPER_GIB},
    {"usable host memory", 0.9, "fraction", ASSUMED, "the system needs some", AT(host_usable), 1},
    {"rows of a classifier chunk", 8192, "tokens", ASSUMED, "long runs need it in chunks",
     AT(classifier_tokens), 1},
    {"parameter + gradient + optimizer", 2 + 2 + 4, "B", ASSUMED,
     "2 + 2 + 4: all bf16, as in the runs", 0, 0}};
/* clang-format on */
#undef AT

static swap_hardware swap_a800(void) {
    swap_hardware hw;
    memset(&hw, 0, sizeof hw);
    paper_set_constants(&hw, swap_a800_constants, PAPER_N(swap_a800_constants));
    hw.parameter_bytes = 2, hw.gradient_bytes = 4, hw.optimizer_bytes = 12;
    return hw;
}

static swap_hardware swap_h200(void) {
    swap_hardware hw;
    memset(&hw, 0, sizeof hw);
    paper_set_constants(&hw, swap_h200_constants, PAPER_N(swap_h200_constants));
    hw.measured = &clusters[cluster_find("h200")];
    hw.nvlink_bytes_per_s = hw.nic_bytes_per_s = 1e12; /* one GPU: nothing is sent */
    hw.gpus_per_node = hw.n_micro_batches = 1;
    hw.bytes_per_logit = 6;
    hw.parameter_bytes = hw.gradient_bytes = 2, hw.optimizer_bytes = 4;
    hw.vocabulary = 50304;
    return hw;
}

/* ---- the model of a step --------------------------------------------------------------------- */

/* A sequence of so many tokens on a layout. */
typedef struct swap_case {
    const swap_hardware* hw;
    const swap_model* model;
    swap_layout layout;
    double tokens;
} swap_case;

static swap_case swap_case_of(const swap_hardware* hw, const swap_model* model, swap_layout layout,
                              double k) {
    const swap_case c = {hw, model, layout, k * PAPER_K};
    return c;
}

/* P = 12 n h^2 + V h */
static double swap_parameters(swap_case c) {
    const double h = c.model->hidden;
    return 12.0 * c.model->n_layers * h * h + c.hw->vocabulary * h;
}

/* u = 2 s h / (TP CP): the bytes of one s x h tensor on one GPU. */
static double swap_unit_bytes(swap_case c) {
    return 2 * c.tokens * c.model->hidden / (c.layout.tensor * c.layout.context);
}

static int swap_n_gpus(swap_case c) {
    return c.layout.tensor * c.layout.context * c.layout.data * c.layout.pipeline;
}

static double swap_link(swap_case c, double n_gpus) {
    return n_gpus > c.hw->gpus_per_node ? c.hw->nic_bytes_per_s : c.hw->nvlink_bytes_per_s;
}

/* Seconds of one layer and of the head on one GPU, for one sequence.  The forward has the four
 * collectives of Megatron's sequence parallelism, each an all-gather or reduce-scatter of s h / CP
 * elements.  Recomputation gives the rows that were not swapped: all but the second FFN matrix (8
 * of 24 s h^2) and attention, with three of the four collectives. */
typedef struct swap_layer {
    double attention, ring; /* of the forward: 2 s^2 h, and the exposed part of K's and V's hops */
    double forward, backward, recompute;
    double head; /* classifier, forward and backward */
} swap_layer;

static swap_layer swap_layer_times(swap_case c) {
    const cluster_rates rates =
        c.hw->measured ? cluster_rates_of(c.hw->measured, c.tokens) : c.hw->rates;
    const double h = c.model->hidden, s = c.tokens, context = c.layout.context;
    const double n_shards = c.layout.tensor * c.layout.context;
    const double peak = n_shards * c.hw->peak_flops, gemm = 24 * s * h * h / peak / rates.products;
    const double backward = 5 * s * s * h / peak / rates.backward; /* attention's */
    const double collective = (c.layout.tensor - 1.0) / c.layout.tensor * 2 * s * h / context /
                              swap_link(c, c.layout.tensor);
    /* A hop carries K and V, in the backward also dK and dV; it is hidden behind 1/CP of the
     * work. */
    const double hop = 2 * swap_unit_bytes(c) / swap_link(c, n_shards);
    swap_layer layer;
    layer.attention = 2 * s * s * h / peak / rates.forward;
    layer.ring = (context - 1) * paper_max(0, hop - layer.attention / context);
    layer.head = 6 * s * h * c.hw->vocabulary / peak / rates.products;
    layer.forward = gemm + layer.attention + layer.ring + 4 * collective;
    layer.backward = 2 * gemm + backward +
                     (context - 1) * paper_max(0, 2 * hop - backward / context) + 4 * collective;
    layer.recompute = gemm * 16 / 24 + 3 * collective;
    return layer;
}

typedef struct swap_schedule {
    int n_layers;
    double forward, backward, recompute, head, offload, fetch; /* of one layer, seconds */
    int n_resident; /* last layers that recompute nothing: 2; 1 if the others share a buffer */
} swap_schedule;

#define SWAP_MAX_LAYERS 128

/* Three streams: compute, offload, fetch.  Layer i uses rounding buffer i % 2: the forward of layer
 * i + 2 waits for the offload of layer i, the fetch of layer i for the backward of layer i + 2. */
static double swap_simulate(const swap_schedule* s) {
    double offloaded[SWAP_MAX_LAYERS], freed[SWAP_MAX_LAYERS];
    double compute = 0, offload = 0, fetch = 0;
    int n_swapped = s->n_layers - 2;
    for (int i = 0; i < s->n_layers; i++) {
        if (i >= 2) compute = paper_max(compute, offloaded[i - 2]);
        compute += s->forward;
        if (i < n_swapped) offload = paper_max(offload, compute) + s->offload;
        offloaded[i] = offload;
    }
    compute += s->head;
    for (int i = s->n_layers - 1; i >= 0; i--) {
        if (i < n_swapped) {
            fetch = paper_max(fetch, paper_max(freed[i + 2], offloaded[i])) + s->fetch;
            compute = paper_max(compute, fetch);
        }
        if (i < s->n_layers - s->n_resident) compute += s->recompute;
        compute += s->backward;
        freed[i] = compute;
    }
    return compute;
}

/* Seconds of one micro-batch on every replica.  The layers of a stage take `time`; the pipeline's
 * bubble and the exchange of gradients (ZeRO-1: reduce-scatter, then all-gather of parameters) are
 * divided among the micro-batches of a step. */
static double swap_shared_s(swap_case c, double time) {
    const double group = c.layout.data * c.layout.context;
    const double exchange = (c.hw->gradient_bytes + c.hw->parameter_bytes) * swap_parameters(c) /
                            (c.layout.tensor * c.layout.pipeline) * (group - 1) / group /
                            swap_link(c, c.layout.tensor * group);
    return time * (1 + (c.layout.pipeline - 1) / c.hw->n_micro_batches) +
           exchange / c.hw->n_micro_batches;
}

static double swap_micro_batch_s(swap_case c, swap_policy policy, double alpha) {
    const swap_layer layer = swap_layer_times(c);
    const int n_layers = c.model->n_layers / c.layout.pipeline;
    const int n_forwards = policy == SWAP_KEEP ? 1 : 2;
    swap_schedule s = {n_layers, layer.forward, layer.backward, 0, layer.head, 0, 0, 2};
    if (policy == SWAP_FULL) alpha = 1;
    if (policy == SWAP_KEEP || policy == SWAP_RECOMPUTE)
        return swap_shared_s(c, n_layers * (n_forwards * s.forward + s.backward) + s.head);
    s.recompute = (1 - alpha) * layer.recompute;
    s.offload = s.fetch = (2 + 14 * alpha) * swap_unit_bytes(c) / c.hw->pcie_bytes_per_s;
    s.n_resident = alpha > 0 ? 2 : 1;
    return swap_shared_s(c, swap_simulate(&s));
}

/* Per cent of the peak: 6 s P + 6 n h s^2 a sample. */
static double swap_mfu_of(swap_case c, double micro_batch_s) {
    const double flops = 6 * c.tokens * swap_parameters(c) +
                         6.0 * c.model->n_layers * c.model->hidden * c.tokens * c.tokens;
    return 100 * flops * c.layout.data / (micro_batch_s * swap_n_gpus(c) * c.hw->peak_flops);
}
static double swap_mfu_percent(swap_case c, swap_policy policy, double alpha) {
    return swap_mfu_of(c, swap_micro_batch_s(c, policy, alpha));
}

/* ---- memory ---- */

/* Parameters, gradients, and the optimizer's states, which ZeRO-1 shards. */
static double swap_states_bytes(swap_case c) {
    return swap_parameters(c) / (c.layout.tensor * c.layout.pipeline) *
           (c.hw->parameter_bytes + c.hw->gradient_bytes +
            c.hw->optimizer_bytes / (c.layout.data * c.layout.context));
}

static double swap_device_bytes(swap_case c, swap_policy policy, double alpha) {
    const double u = swap_unit_bytes(c);
    const double columns = ceil(c.hw->vocabulary / (128.0 * c.layout.tensor)) * 128; /* padded */
    double rows = c.tokens / c.layout.context;
    double skeletal = policy == SWAP_ALPHA && alpha <= 0 ? 18 : 32;
    if (policy == SWAP_KEEP) skeletal = 16 * c.model->n_layers;
    if (policy == SWAP_RECOMPUTE) skeletal = c.model->n_layers + 16;
    if (c.hw->classifier_tokens > 0) rows = paper_min(rows, c.hw->classifier_tokens);
    return swap_states_bytes(c) + skeletal * u +
           paper_max(c.hw->bytes_per_logit * rows * columns + u, (9 + 2 * c.layout.tensor) * u);
}

static double swap_pinned_bytes(const swap_hardware* hw, double bytes) {
    return hw->is_host_rounded > 0 && bytes > 0 ? pow(2, ceil(log(bytes) / log(2) - 1e-9)) : bytes;
}

/* (n - 2)(S_input + S_attn + alpha S_others), of all GPUs of a node.  The others are six tensors of
 * u bytes (norm, q, k, v, residual, norm) and two of 4u (the MLP's). */
static double swap_host_bytes(swap_case c, swap_policy policy, double alpha) {
    const double u = swap_unit_bytes(c);
    if (policy == SWAP_RECOMPUTE || policy == SWAP_KEEP) return 0;
    if (policy == SWAP_FULL) alpha = 1;
    return paper_min(swap_n_gpus(c), c.hw->gpus_per_node) * (c.model->n_layers - 2) *
           (2 * swap_pinned_bytes(c.hw, u) + 6 * swap_pinned_bytes(c.hw, alpha * u) +
            2 * swap_pinned_bytes(c.hw, 4 * alpha * u));
}

/* 0: runs; otherwise SWAP_OOM or SWAP_OOHM.  Host memory first, because it fails before any
 * step. */
static double swap_verdict(swap_case c, swap_policy policy, double alpha) {
    if (swap_host_bytes(c, policy, alpha) > c.hw->host_usable * c.hw->host_bytes_per_node)
        return SWAP_OOHM;
    return swap_device_bytes(c, policy, alpha) > c.hw->device_bytes - c.hw->device_reserve_bytes
               ? SWAP_OOM
               : 0;
}

/* The MFU, or the verdict. */
static double swap_mfu_or_verdict(swap_case c, swap_policy policy, double alpha) {
    const double verdict = swap_verdict(c, policy, alpha);
    return verdict < 0 ? verdict : swap_mfu_percent(c, policy, alpha);
}

/* ---- alpha ---- */

/* The paper's program, equations (1) to (3), in closed form: B and T_layer, then M_CPU. */
static double swap_paper_alpha(swap_case c) {
    const double u = swap_unit_bytes(c), none = swap_host_bytes(c, SWAP_ALPHA, 0);
    const double by_time =
        (c.hw->pcie_bytes_per_s * swap_layer_times(c).forward - 2 * u) / (14 * u);
    const double by_host = (c.hw->host_usable * c.hw->host_bytes_per_node - none) /
                           (swap_host_bytes(c, SWAP_ALPHA, 1) - none);
    return paper_max(0, paper_min(1, paper_min(by_time, by_host)));
}

/* Down to the values that the paper uses: 0, 1/8, 1/4, 1/2, 1. */
static double swap_alpha_down(double alpha) {
    double down = 1;
    while (down >= 0.125 && alpha < down - 1e-9) down /= 2;
    return down >= 0.125 ? down : 0;
}

/* To the nearest of them: the next one is twice as large; above 0 it is 1/8. */
static double swap_alpha_nearest(double alpha) {
    const double down = swap_alpha_down(alpha);
    const double up = down > 0 ? paper_min(1, 2 * down) : 0.125;
    return up - alpha > alpha - down ? down : up;
}

/* The alpha, of steps of 1/64, with the shortest simulated step among those that fit; -1: none. */
static double swap_best_alpha(swap_case c) {
    double best = -1, best_s = 0;
    for (double alpha = 0; alpha <= 1; alpha += 1 / 64.0) {
        double time;
        if (swap_verdict(c, SWAP_ALPHA, alpha) < 0) continue;
        time = swap_micro_batch_s(c, SWAP_ALPHA, alpha);
        if (best < 0 || time < best_s) best = alpha, best_s = time;
    }
    return best;
}

/* Seconds of one micro-batch on every replica by memo_plan_swap's plan; negative: the verdict.
 * Times, link and capacities are the paper's, for three tensors: the layer's input, the attention
 * output and the others.  The attention output is recomputed whole, in the time of its forward, or
 * not at all.  Device memory is counted as the engine uses it: recomputed rows of all layers share
 * a scratch.  The paper's program counts 18 u at alpha = 0 and 32 u above, and the layers of all
 * pipeline stages.  Host memory is not rounded. */
static double swap_planned_s(swap_case c) {
    static const char* const names[3] = {"input", "attention", "others"};
    static const int32_t away[3] = {MEMO_MOVE, MEMO_WHOLE, MEMO_ROWS};
    const swap_layer layer = swap_layer_times(c);
    const double seconds[3] = {-1, layer.attention + layer.ring, layer.recompute};
    memo_item tensors[3];
    memo_profile times = MEMO_ZERO(memo_profile);
    memo_swap_desc swap = MEMO_ZERO(memo_swap_desc);
    memo_swap_plan_desc desc = MEMO_ZERO(memo_swap_plan_desc);
    memo_swap_plan* plan;
    memo_error error;
    double time;
    static int n_cells;
    if (n_cells++ % swap_plan_every) return SWAP_NONE;
    swap_n_planned++;

    /* The three tensors, and their times; the input cannot be recomputed. */
    memset(tensors, 0, sizeof tensors);
    swap.tensors = tensors;
    times.n_tensors = swap.n_tensors = 3;
    swap.n_layers = c.model->n_layers / c.layout.pipeline;
    times.n_rows = swap.n_rows = (int64_t)(c.tokens / c.layout.context);
    swap.tile_rows = swap.n_rows / 64;
    for (int t = 0; t < 3; t++) {
        tensors[t].name = names[t];
        tensors[t].row_bytes = 2 * (int64_t)c.model->hidden / c.layout.tensor * (t < 2 ? 1 : 14);
        tensors[t].away = away[t];
        strcpy(times.tensors[t].name, names[t]);
        times.tensors[t].recompute_s_per_row[0] = t ? seconds[t] / (double)swap.n_rows : -1;
    }
    times.n_kinds = 1;
    times.forward_s[0] = layer.forward;
    times.backward_s[0] = layer.backward;
    times.between_s = layer.head;
    times.copies[1].size_bytes = 1 << 30;
    times.copies[1].out_s = times.copies[1].back_s = (1 << 30) / c.hw->pcie_bytes_per_s;

    /* The program's memory less what it counts for activations at alpha = 0. */
    desc.swap = &swap;
    desc.profile = &times;
    desc.device_bytes = (int64_t)(c.hw->device_bytes - c.hw->device_reserve_bytes +
                                  18 * swap_unit_bytes(c) - swap_device_bytes(c, SWAP_ALPHA, 0));
    desc.host_bytes = (int64_t)(c.hw->host_usable * c.hw->host_bytes_per_node /
                                paper_min(swap_n_gpus(c), c.hw->gpus_per_node) *
                                (swap.n_layers - 2) / (c.model->n_layers - 2));
    if (desc.device_bytes <= 0) return SWAP_OOM;
    if (memo_plan_swap(&desc, &plan, &error))
        return strstr(error.message, "host") ? SWAP_OOHM : SWAP_OOM;
    time = plan->step_s;
    memo_swap_plan_destroy(plan);
    return swap_shared_s(c, time);
}

/* ---- the fit: Table 4's planned rows ---- */

static double swap_ablation_alpha(int i) { return i ? swap_models[0].cells[i].alpha : 0; }
static swap_case swap_ablation(const swap_hardware* hw, int i) {
    return swap_case_of(hw, &swap_models[0], swap_ablation_layout, swap_lengths_k[i]);
}

/* Full swapping and MEMO are the same run at 256K: one value, not two. */
static int swap_fit_residuals(const swap_hardware* hw, double* residuals) {
    int n = 0;
    for (int policy = 0; policy < SWAP_N_PUBLISHED; policy++)
        for (int i = 0; i < SWAP_N_ABLATION; i++) {
            const double published = swap_ablation_mfu[policy][i], alpha = swap_ablation_alpha(i);
            if (published > 0 && !(policy == SWAP_FULL && alpha >= 1))
                residuals[n++] =
                    swap_mfu_percent(swap_ablation(hw, i), (swap_policy)policy, alpha) - published;
        }
    return n;
}

static double swap_fit_error(const swap_hardware* hw) {
    double residuals[PAPER_MAX], sum = 0;
    const int n = swap_fit_residuals(hw, residuals);
    for (int i = 0; i < n; i++) sum += residuals[i] * residuals[i];
    return sum / n;
}

/* Least squares over the sixteen values; nothing is fitted after this.  Of the steps along one or
 * two of the four constants the first that helps is taken; if none helps, steps are halved. */
#define SWAP_N_FITTED 4
static void swap_fit(swap_hardware* hw) {
    double* const v[SWAP_N_FITTED] = {&hw->rates.products, &hw->rates.forward, &hw->rates.backward,
                                      &hw->pcie_bytes_per_s};
    double least = swap_fit_error(hw);
    for (double step = 0.1; step > 1e-8; step /= 2)
        for (int i = 0; i < 81;) { /* -1, 0 or 1 step along each */
            double old[SWAP_N_FITTED], error;
            for (int k = 0, digits = i; k < SWAP_N_FITTED; k++, digits /= 3) {
                old[k] = *v[k];
                *v[k] *= 1 + step * (digits % 3 - 1);
            }
            error = swap_fit_error(hw);
            if (error < least)
                least = error, i = 0;
            else
                i++;
            for (int k = 0; k < SWAP_N_FITTED && i; k++) *v[k] = old[k];
        }
}

/* ---- verdicts ---- */

/* Does any layout of these GPUs hold one sequence at alpha = 0?  *found: the first, largest TP
 * first. */
static int swap_runs_somehow(const swap_hardware* hw, const swap_model* model, int n_gpus, double k,
                             swap_layout* found) {
    for (int tensor = (int)hw->gpus_per_node; tensor >= 1; tensor /= 2)
        for (int pipeline = 1; pipeline <= n_gpus / tensor; pipeline *= 2) {
            const swap_layout layout = {tensor, n_gpus / (tensor * pipeline), 1, pipeline};
            if (model->n_layers % pipeline != 0) continue;
            if (swap_verdict(swap_case_of(hw, model, layout, k), SWAP_ALPHA, 0) < 0) continue;
            *found = layout;
            return 1;
        }
    return 0;
}

static swap_case swap_case_at(const swap_hardware* hw, const swap_model* model, int i) {
    return swap_case_of(hw, model, model->cells[i].layout, swap_lengths_k[i]);
}

/* The verdict on one cell of Table 3, for the published layout, or for any layout if none is
 * published. */
static double swap_cell_verdict(const swap_hardware* hw, const swap_model* m, int i) {
    const double alpha = m->cells[i].alpha;
    swap_layout layout;
    if (alpha >= 0) return swap_verdict(swap_case_at(hw, m, i), SWAP_ALPHA, alpha);
    return swap_runs_somehow(hw, m, m->n_gpus, swap_lengths_k[i], &layout) ? 0 : SWAP_OOM;
}

static int swap_same_verdict(double a, double b) {
    return (a >= 0 && b >= 0) || (a < 0 && b < 0 && fabs(a - b) < 0.5);
}

static int swap_n_right_ablation(const swap_hardware* hw) {
    int n = 0;
    for (int policy = 0; policy < SWAP_N_PUBLISHED; policy++)
        for (int i = 0; i < SWAP_N_ABLATION; i++)
            n += swap_same_verdict(
                swap_verdict(swap_ablation(hw, i), (swap_policy)policy, swap_ablation_alpha(i)),
                swap_ablation_mfu[policy][i]);
    return n;
}
static int swap_n_right_cells(const swap_hardware* hw, const swap_model* m) {
    int n = 0;
    for (int i = 0; i < SWAP_N_LENGTHS; i++)
        n += swap_same_verdict(swap_cell_verdict(hw, m, i), m->cells[i].alpha);
    return n;
}

/* The range of one constant, around its value, in which all 24 verdicts of Table 4 and the 12 of
 * Table 3's 7B row are right, if the other constants keep their values. */
typedef struct swap_interval {
    double low, high;
} swap_interval;

static int swap_all_right(const swap_hardware* hw) {
    return swap_n_right_ablation(hw) == SWAP_N_PUBLISHED * SWAP_N_ABLATION &&
           swap_n_right_cells(hw, &swap_models[0]) == SWAP_N_LENGTHS;
}

static swap_interval swap_right_interval(swap_hardware* hw, double* constant, double step,
                                         double low, double high) {
    double nominal = *constant;
    swap_interval interval = {nominal, nominal};
    for (; *constant >= low && swap_all_right(hw); *constant -= step) interval.low = *constant;
    for (*constant = nominal; *constant <= high && swap_all_right(hw); *constant += step)
        interval.high = *constant;
    *constant = nominal;
    return interval;
}

/* Least length, in K, whose forward pass of a layer hides its full offload: Figure 1(b). */
static double swap_offload_s(swap_case c) {
    return 16 * swap_unit_bytes(c) / c.hw->pcie_bytes_per_s;
}
static double swap_hidden_from_k(swap_case c) {
    for (c.tokens = PAPER_K; c.tokens < 4096 * PAPER_K; c.tokens += PAPER_K)
        if (swap_offload_s(c) <= swap_layer_times(c).forward) break;
    return c.tokens / PAPER_K;
}

/* Attention's per cent of a layer's forward pass (Figure 7). */
static double swap_attention_percent(swap_case c) {
    return 100 * (swap_layer_times(c).attention / swap_layer_times(c).forward);
}

/* Longest length at alpha = 0 that any layout of the GPUs holds, by steps; in K. */
static double swap_longest_k(const swap_hardware* hw, const swap_model* model, int n_gpus,
                             double step_k, swap_layout* layout) {
    double k = step_k;
    while (k < 1e6 && swap_runs_somehow(hw, model, n_gpus, k, layout)) k += step_k;
    return k - step_k;
}

/* ---- Table 4's first row: a caching allocator ------------------------------------------------ */

/* Full recomputation on one GPU: 8 layers of the 7B's width, the classifier in eighths. */
#define SWAP_TRACE            "tests/data/gpt-h4096-n8-s64k-recompute.trace"
#define SWAP_TRACE_TOKENS     ((int64_t)65536)
#define SWAP_TRACE_VOCABULARY ((int64_t)50304)

/* Does tensor parallelism send these u bytes?  It sends row-parallel outputs, to which the residual
 * is added next, and gradients of column-parallel inputs, followed by the gradient of W_qkv or
 * W_1. */
static int swap_is_reduced(const memo_request* r, int64_t u, int64_t hidden) {
    int64_t next = r[1].size_bytes;
    if (r->size_bytes != u || r[1].kind != MEMO_REQUEST_MALLOC) return 0;
    return next == 6 * hidden * hidden || next == 8 * hidden * hidden ||
           (next == u && r[2].kind == MEMO_REQUEST_FREE && r[2].id == r->id);
}

/* A rank's iteration: the recorded one with 32 layers and sizes scaled to `tokens`.  Tensors that
 * are reduced are TP times larger, each of the eight passes has logits of all rows, and gradients
 * are left out because they are counted among the states.  Stream 1 sends reduced tensors and QKV;
 * stream 0 waits for it at the end of each layer.  NULL if the trace cannot be read or memory is
 * short. */
static memo_trace* swap_unplanned_trace(double tokens) {
    int64_t h = swap_models[0].hidden, u = 2 * SWAP_TRACE_TOKENS * h, i, end = 0;
    int64_t chunk = SWAP_TRACE_TOKENS / 8 * SWAP_TRACE_VOCABULARY;
    double scale = swap_unit_bytes(swap_case_of(NULL, &swap_models[0], swap_ablation_layout,
                                                tokens / PAPER_K)) /
                   (double)u;
    memo_trace *recorded = NULL, *t = NULL, *made = NULL;
    int is_bad = memo_trace_read(SWAP_TRACE, &recorded, NULL) ||
                 trace_apply_layers(recorded, swap_models[0].n_layers, &t, NULL) ||
                 memo_trace_create(&made, NULL);

    for (i = 0; !is_bad && i < t->n_requests; i++)
        if (memob_request_mark(t, i).phase == MEMO_PHASE_BACKWARD) end = i;

    /* Buffers that live at the end of the backward pass, or begin later, are gradients or the
     * optimizer's. */
    for (i = end; !is_bad && i < t->n_requests; i++) {
        int64_t origin = memob_request_origin(t, i);
        if (origin > end || (origin >= 0 && t->requests[origin].size_bytes != u))
            t->requests[origin].memory_class = MEMO_CLASS_PERSISTENT;
    }

    /* Copy the requests of the step with scaled sizes. */
    for (i = 0; !is_bad && i < t->n_requests; i++) {
        const memo_request* r = &t->requests[i];
        memo_mark mark = memob_request_mark(t, i);
        int64_t origin = memob_request_origin(t, i);
        if (origin >= 0 && t->requests[origin].memory_class == MEMO_CLASS_PERSISTENT) continue;
        if (r->kind == MEMO_REQUEST_MALLOC) {
            int is_reduced = i + 2 < t->n_requests && swap_is_reduced(r, u, h);
            int is_logits = r->size_bytes == 2 * chunk || r->size_bytes == 4 * chunk;
            double times = is_reduced ? swap_ablation_layout.tensor : is_logits ? 8 : 1;
            is_bad |=
                memo_trace_malloc(made, r->id, (int64_t)(scale * times * (double)r->size_bytes),
                                  r->memory_class, 0, NULL) != 0;

            /* Stream 1 uses the block after stream 0 has written it. */
            if (!is_reduced && r->size_bytes != 3 * u) continue;
            is_bad |= memo_trace_record(made, 1, 0, NULL) || memo_trace_wait(made, 1, 1, NULL) ||
                      memo_trace_use(made, r->id, 1, NULL);
        } else if (r->kind == MEMO_REQUEST_FREE) {
            is_bad |= memo_trace_free(made, r->id, NULL) != 0;
        } else if (mark.phase == MEMO_PHASE_ITERATION) {
            is_bad |= memo_trace_mark(made, t->text + r->id, NULL) != 0;
        } else if (mark.is_end) {
            is_bad |= memo_trace_record(made, 0, 1, NULL) || memo_trace_wait(made, 0, 0, NULL);
        }
    }

    memo_trace_destroy(t);
    memo_trace_destroy(recorded);
    if (is_bad) memo_trace_destroy(made);
    return is_bad ? NULL : made;
}

/* ---- reports --------------------------------------------------------------------------------- */

static void swap_print_constants(const swap_hardware* hw, const swap_hardware* h200) {
    paper_print("  MEMO, A800 nodes\n");
    paper_print_constants(swap_a800_constants, PAPER_N(swap_a800_constants), hw);
    paper_print("  MEMO, one H200\n");
    paper_print_constants(swap_h200_constants, PAPER_N(swap_h200_constants), h200);
}

/* A cell of seven columns: a number, a verdict, or nothing for NAN. */
static const char* swap_cell_text(double value, char text[32], const char* format) {
    if (value < SWAP_OOHM) return "-";
    if (value < -1.5) return "oohm";
    if (value < -0.5) return "oom";
    (void)snprintf(text, 32, format, value);
    return isnan(value) ? "" : text;
}
static const char* swap_verdict_text(double verdict) {
    return verdict < -1.5 ? "oohm" : verdict < 0 ? "oom" : "runs";
}

static void swap_print_lengths(const char* label, const double* lengths_k, int n) {
    paper_print("  %-20s", label);
    for (int i = 0; i < n; i++) paper_print(" %6.0fK", lengths_k[i]);
    paper_print("\n");
}

/* A row whose cell i is a value, by the index i. */
#define SWAP_ROW(label, n, format, value)                                                          \
    do {                                                                                           \
        char text_[32];                                                                            \
        paper_print("  %-20s", label);                                                             \
        for (int i = 0; i < (n); i++) paper_print(" %7s", swap_cell_text(value, text_, format));   \
        paper_print("\n");                                                                         \
    } while (0)

/* Predicted minus published, if both ran. */
#define SWAP_RESIDUALS(n, predicted, published)                                                    \
    do {                                                                                           \
        paper_print("  %-20s", "  residual, points");                                              \
        for (int i = 0; i < (n); i++) swap_print_residual(predicted, published);                   \
        paper_print("\n");                                                                         \
    } while (0)
static void swap_print_residual(double predicted, double published) {
    if (published > 0 && predicted > 0)
        paper_print(" %+7.2f", predicted - published);
    else
        paper_print(" %7s", "");
}

/* Reorganizations in the fourth iteration, with frees deferred to the layer's end, or as long as
 * possible.  unplanned: statistics of both, of each length.  Returns how many were replayed. */
static int swap_report_unplanned(const swap_hardware* hw,
                                 caching_stats unplanned[2 * SWAP_N_ABLATION]) {
    caching_desc desc;
    int n = 0, is_bad = 0;
    desc.capacity_bytes = (int64_t)(hw->device_bytes - hw->device_reserve_bytes -
                                    swap_states_bytes(swap_ablation(hw, 0)));
    desc.n_iterations = 4;
    paper_print("  %-20s", "  predicted");
    for (int i = 0; i < 2 * SWAP_N_ABLATION && !is_bad; i++) {
        memo_trace* trace = swap_unplanned_trace(swap_lengths_k[i / 2] * PAPER_K);
        char text[32];
        desc.deferral = i % 2 ? CACHING_LATE : CACHING_ORDERED;
        is_bad = !trace || caching_replay(trace, &desc, &unplanned[i], NULL);
        memo_trace_destroy(trace);
        if (is_bad) break;
        (void)snprintf(text, sizeof text, "%lld", (long long)unplanned[i].n_retries_last);
        paper_print(i % 2 ? "-%-3s" : " %3s", unplanned[i].refused_request < 0 ? text : "oom");
        n++;
    }
    paper_print(
        "%s\n    assumed, as the real request sequence is unpublished: one GPU's trace scaled "
        "to a rank and to 32 layers,\n    logits of all rows at once, a model of PyTorch's "
        "allocator; frees of what is sent wait for the layer's end -\n    for the allocator's "
        "own wait on all streams; no criterion\n",
        is_bad ? " not computed: " SWAP_TRACE " cannot be read" : "");
    return n;
}

static void swap_report_ablation(const swap_hardware* hw) {
    enum { N = SWAP_N_ABLATION };
    swap_hardware stated = *hw;
    caching_stats unplanned[2 * N];
    double residuals[PAPER_MAX], error;
    const int n_fitted = swap_fit_residuals(hw, residuals), n_right = swap_n_right_ablation(hw);
    stated.pcie_bytes_per_s = 32e9;

    /* The published row without a plan, beside a replay of it. */
    paper_print("\nTable 4: MFU in %% of 312 TFLOP/s; 7B, 8 A800, TP 4, CP 2\n");
    swap_print_lengths("", swap_lengths_k, N);
    SWAP_ROW("recompute, no plan", N, "%.2f", swap_unplanned_mfu[i]);
    SWAP_ROW("  reorganizations", N, "%.0f", swap_reorganizations[i]);
    (void)swap_report_unplanned(hw, unplanned);

    /* Each policy: published, predicted, residual; full swapping once more at the stated bandwidth,
     * which the fit contradicts. */
    for (int k = 0; k < SWAP_N_PUBLISHED; k++) {
        const double* published = swap_ablation_mfu[k];
        SWAP_ROW(swap_policy_names[k], N, "%.2f", published[i]);
        for (int is_stated = 0; is_stated <= (k == SWAP_FULL); is_stated++) {
            const swap_hardware* with = is_stated ? &stated : hw;
            double row[N];
            for (int i = 0; i < N; i++)
                row[i] = swap_mfu_or_verdict(swap_ablation(with, i), (swap_policy)k,
                                             swap_ablation_alpha(i));
            SWAP_ROW(is_stated ? "  at stated 32 GB/s" : "  predicted", N, "%.2f", row[i]);
            SWAP_RESIDUALS(N, row[i], published[i]);
        }
    }

    error = paper_mean_absolute(residuals, n_fitted);
    paper_print("  mean absolute error over the %d fitted values (256K counted once): %.2f points; "
                "%d of %d verdicts right\n",
                n_fitted, error, n_right, SWAP_N_PUBLISHED * N);
    paper_criterion(n_right == 24, "%d of 24 verdicts of Table 4's planned rows", n_right);
    paper_criterion(error <= 0.75, "MFU error on Table 4's %d values: %.2f <= 0.75 points",
                    n_fitted, error);
}

static void swap_report_cells(const swap_hardware* hw) {
    enum { N = SWAP_N_LENGTHS };
    double residuals[PAPER_MAX], error;
    int n = 0;
    paper_print(
        "\nTable 3, MEMO: MFU in %% of 312 TFLOP/s on the published layouts (TP/CP/DP/PP) with the "
        "published alpha; nothing refitted\n");
    for (const swap_model* m = swap_models; m < swap_models + SWAP_N_MODELS; m++) {
        const swap_cell* cell = m->cells;
        const int first = n, n_right = swap_n_right_cells(hw, m);
        double row[N];
        char text[32];
        (void)snprintf(text, sizeof text, "%s on %d GPUs", m->name, m->n_gpus);
        swap_print_lengths(text, swap_lengths_k, N);
        paper_print("  %-20s", "  layout");
        for (int i = 0; i < N; i++) {
            const swap_layout l = cell[i].layout;
            (void)snprintf(text, sizeof text, "%d/%d/%d/%d", l.tensor, l.context, l.data,
                           l.pipeline);
            paper_print(" %7s", cell[i].alpha < 0 ? "any" : text);
        }
        paper_print("\n");

        /* The prediction on the published layout with the published alpha. */
        for (int i = 0; i < N; i++) {
            row[i] = NAN;
            if (cell[i].alpha < 0) continue;
            row[i] = swap_mfu_percent(swap_case_at(hw, m, i), SWAP_ALPHA, cell[i].alpha);
            residuals[n++] = row[i] - cell[i].mfu;
        }
        SWAP_ROW("  alpha", N, "%.3f", cell[i].alpha);
        SWAP_ROW("  published", N, "%.2f", cell[i].alpha < 0 ? cell[i].alpha : cell[i].mfu);
        SWAP_ROW("  predicted", N, "%.2f", row[i]);
        SWAP_RESIDUALS(N, row[i], cell[i].mfu);

        /* The verdicts need no published figure, so they cover all cells. */
        paper_print("  %-20s", "  verdict");
        for (int i = 0; i < N; i++) {
            const double verdict = swap_cell_verdict(hw, m, i);
            paper_print(" %6s%s", swap_verdict_text(verdict),
                        swap_same_verdict(verdict, cell[i].alpha) ? " " : "!");
        }
        error = paper_mean_absolute(residuals + first, n - first);
        paper_print(
            "\n  mean absolute error over %d cells: %.2f points; %d of %d verdicts right%s\n",
            n - first, error, n_right, N, n_right < N ? " (! marks the others)" : "");
        if (m == swap_models)
            paper_criterion(n_right == N, "%d of 12 verdicts of Table 3's 7B row", n_right);
        paper_criterion(error <= 2, "MFU error, %s: %.2f <= 2 points", m->name, error);
    }

    error = paper_mean_absolute(residuals, n);
    paper_print("  mean absolute error over all %d cells: %.2f points\n", n, error);
    paper_criterion(error <= 1.25, "MFU error on Table 3's %d MEMO cells: %.2f <= 1.25 points", n,
                    error);
}

/* The range of each assumed constant in which none of the 36 verdicts changes. */
typedef struct swap_intervals {
    swap_interval reserve, logit_bytes, host_fraction, host_fraction_rounded;
} swap_intervals;

static swap_intervals swap_find_intervals(const swap_hardware* hw) {
    swap_hardware trial = *hw;
    swap_intervals i;
    i.reserve = swap_right_interval(&trial, &trial.device_reserve_bytes, 0.01 * PAPER_GIB, 0,
                                    trial.device_bytes);
    i.logit_bytes = swap_right_interval(&trial, &trial.bytes_per_logit, 0.01, 0, 20);
    i.host_fraction = swap_right_interval(&trial, &trial.host_usable, 0.001, 0, 4);
    trial.is_host_rounded = 1;
    trial.host_usable = 0.9;
    i.host_fraction_rounded = swap_right_interval(&trial, &trial.host_usable, 0.001, 0, 4);
    return i;
}

static void swap_report_intervals(swap_intervals i) {
    paper_print(
        "\nTable 4's 24 verdicts and the 12 of Table 3's 7B row hold while, the other constants "
        "unchanged:\n"
        "  device reserve        %6.2f to %6.2f GiB\n"
        "  bytes of a logit      %6.2f to %6.2f B\n"
        "  usable host memory    %6.3f to %6.3f of 2 TB\n"
        "    or, with each pinned tensor rounded up to a power of two, %.3f to %.3f of 2 TB\n",
        i.reserve.low / PAPER_GIB, i.reserve.high / PAPER_GIB, i.logit_bytes.low,
        i.logit_bytes.high, i.host_fraction.low, i.host_fraction.high, i.host_fraction_rounded.low,
        i.host_fraction_rounded.high);
}

/* Cells in which the paper's program, rounded, gives the published alpha. */
static int swap_n_alpha_equal(const swap_hardware* hw, double (*round)(double)) {
    int n = 0;
    for (int k = 0; k < SWAP_N_MODELS * SWAP_N_LENGTHS; k++) {
        const swap_model* m = &swap_models[k / SWAP_N_LENGTHS];
        const int i = k % SWAP_N_LENGTHS;
        n += m->cells[i].alpha >= 0 &&
             fabs(m->cells[i].alpha - round(swap_paper_alpha(swap_case_at(hw, m, i)))) < 1e-9;
    }
    return n;
}

static void swap_report_alpha(const swap_hardware* hw, swap_interval host_fraction) {
    enum { N = SWAP_N_LENGTHS };
    swap_hardware trial = *hw;
    int n_best = swap_n_alpha_equal(hw, swap_alpha_down), n_cells = 0;
    int n_fit = 0, n_longer = 0, n_planned_longer = 0;
    paper_print(
        "\nTable 7: the fraction alpha of the rows that is swapped, on the published layouts\n"
        "  published | the paper's program, closed form | the alpha with the shortest simulated "
        "step (steps of 1/64) |\n  memo_plan_swap's plan of three tensors (input, attention "
        "output, others) in the memory that the engine needs\n");

    /* The largest count in the interval that the verdicts allow. */
    for (trial.host_usable = host_fraction.low; trial.host_usable <= host_fraction.high;
         trial.host_usable += 0.001)
        n_best = (int)paper_max(n_best, swap_n_alpha_equal(&trial, swap_alpha_down));

    for (const swap_model* m = swap_models; m < swap_models + SWAP_N_MODELS; m++) {
        double alpha[N], program[N], best[N], gain[N], planned[N];
        swap_print_lengths(m->name, swap_lengths_k, N);
        for (int i = 0; i < N; i++) {
            const swap_case c = swap_case_at(hw, m, i);
            double published_s;
            alpha[i] = program[i] = best[i] = gain[i] = planned[i] = m->cells[i].alpha;
            if (alpha[i] < 0) continue;
            n_cells++;
            planned[i] = swap_planned_s(c);
            program[i] = swap_paper_alpha(c);
            best[i] = swap_best_alpha(c);
            gain[i] = swap_verdict(c, SWAP_ALPHA, alpha[i]);
            if (gain[i] < 0) continue;

            /* Savings are relative to the step with the published alpha. */
            n_fit++;
            published_s = swap_micro_batch_s(c, SWAP_ALPHA, alpha[i]);
            gain[i] = 100 * (published_s / swap_micro_batch_s(c, SWAP_ALPHA, best[i]) - 1);
            n_longer += gain[i] < -1e-9;
            if (planned[i] < SWAP_OOHM) continue;
            if (planned[i] >= 0) planned[i] = 100 * (published_s / planned[i] - 1);
            n_planned_longer += planned[i] < -1e-9;
        }
        SWAP_ROW("  published", N, "%.3f", alpha[i]);
        SWAP_ROW("  paper's program", N, "%.3f", program[i]);
        SWAP_ROW("  shortest step", N, "%.3f", best[i]);
        SWAP_ROW("  it saves, %", N, "%.1f", gain[i]);
        SWAP_ROW("  our plan saves, %", N, "%.1f", planned[i]);
    }

    paper_print(
        "  The program, rounded down to 0, 1/8, 1/4, 1/2, 1, gives the published alpha in %d of "
        "%d cells; in at most %d\n"
        "  for any usable host memory that the verdicts allow; rounded to the nearest in %d.\n"
        "  The published alpha fits in %d cells; the shortest step is longer than with it in "
        "%d of them, our plan's in %d.\n",
        swap_n_alpha_equal(hw, swap_alpha_down), n_cells, n_best,
        swap_n_alpha_equal(hw, swap_alpha_nearest), n_fit, n_longer, n_planned_longer);
    paper_criterion(n_longer == 0,
                    "shortest step longer than the published alpha's: in %d of %d (by "
                    "construction: searched too)",
                    n_longer, n_fit);
    paper_criterion(n_planned_longer == 0,
                    "memo_plan_swap's step longer than the published alpha's: in %d of %d",
                    n_planned_longer, n_fit);
}

static void swap_report_figures(const swap_hardware* hw) {
    static const swap_layout tensor8 = {8, 1, 1, 1}, on64 = {8, 8, 1, 1};
    static const double lengths_k[8] = {64, 128, 192, 256, 384, 576, 768, 1024};
    static const double long_k[4] = {1024, 2048, 4096, 8192};
    const swap_model* m = &swap_models[0];
    const double hidden_k = swap_hidden_from_k(swap_case_of(hw, m, tensor8, 1));
    const double miss = hidden_k / SWAP_PUBLISHED_HIDDEN_K - 1;
#define SWAP_AT_LENGTH swap_case_of(hw, m, tensor8, lengths_k[i])
#define SWAP_ON_64     swap_case_of(hw, m, on64, long_k[i])
    paper_print(
        "\nFigure 1(b), 7B, TP 8: the forward pass of a layer hides its full offload from %.0fK "
        "(published %.0fK: %+.0f %%)\n",
        hidden_k, SWAP_PUBLISHED_HIDDEN_K, 100 * miss);
    paper_criterion(fabs(miss) <= 0.25, "Figure 1(b): %.0fK within 25 %% of 192K", hidden_k);
    swap_print_lengths("ms of a layer", lengths_k, 8);
    SWAP_ROW("  attention", 8, "%.1f", 1e3 * swap_layer_times(SWAP_AT_LENGTH).attention);
    SWAP_ROW("  forward", 8, "%.1f", 1e3 * swap_layer_times(SWAP_AT_LENGTH).forward);
    SWAP_ROW("  full offload", 8, "%.1f", 1e3 * swap_offload_s(SWAP_AT_LENGTH));
    paper_print("\nFigure 7, 7B, TP 8: attention's share of a layer's forward pass (published: "
                "above 90 %% beyond %.0fK)\n",
                SWAP_PUBLISHED_ATTENTION_K);
    swap_print_lengths("", lengths_k, 8);
    SWAP_ROW("  share, %", 8, "%.1f", swap_attention_percent(SWAP_AT_LENGTH));

    paper_print(
        "\nFigure 12(a) and (b), 7B: longest length at alpha = 0 in steps of 128K, and MFU there "
        "with the shortest step\n"
        "  GPUs   published  predicted  TP/CP/DP/PP     MFU (published: above 50 %%)\n");
    for (int i = 0; i < SWAP_N_SCALES; i++) {
        swap_layout l = {0, 0, 0, 0};
        const double k = swap_longest_k(hw, m, swap_scale_gpus[i], 128, &l);
        const swap_case c = swap_case_of(hw, m, l, k);
        paper_print("  %4d   %8.0fK  %8.0fK  %2d/%2d/%2d/%2d    %5.2f %%\n", swap_scale_gpus[i],
                    swap_scale_longest_k[i], k, l.tensor, l.context, l.data, l.pipeline,
                    swap_mfu_percent(c, SWAP_ALPHA, swap_best_alpha(c)));
    }

    paper_print("\nFigure 12(c), 7B on 64 GPUs, TP 8, CP 8 (published: above 50 %% throughout)\n");
    swap_print_lengths("", long_k, 4);
    SWAP_ROW("  alpha", 4, "%.3f", swap_best_alpha(SWAP_ON_64));
    SWAP_ROW("  MFU, %", 4, "%.2f",
             swap_mfu_percent(SWAP_ON_64, SWAP_ALPHA, swap_best_alpha(SWAP_ON_64)));
}

/* The same tables for one H200, beside the figures that were measured with eight layers. */
static void swap_report_h200(const swap_hardware* hw) {
    enum { N = SWAP_N_H200 };
    for (const swap_model* m = swap_h200_models; m < swap_h200_models + SWAP_N_H200_MODELS; m++) {
        const int is_measured = m == swap_h200_models;
        double program[N], best[N], planned[N];
        swap_case c[N];
        swap_layout layout;
        for (int i = 0; i < N; i++) {
            c[i] = swap_case_of(hw, m, swap_one_gpu, swap_h200_lengths_k[i]);
            program[i] = swap_paper_alpha(c[i]);
            best[i] = swap_best_alpha(c[i]);
            planned[i] = swap_planned_s(c[i]);
        }
        paper_print("\nOne H200, %s: MFU in %% of 989 TFLOP/s\n", m->name);
        swap_print_lengths("", swap_h200_lengths_k, N);
        if (is_measured) SWAP_ROW("stated ceiling", N, "%.1f", swap_h200_ceiling[i]);
        SWAP_ROW("ceiling, predicted", N, "%.1f", swap_mfu_percent(c[i], SWAP_KEEP, 0));

        for (int k = 0; k <= SWAP_KEEP; k++) {
            static const char* const names[] = {"full recomputation", "full swapping",
                                                "paper's program", "keep everything"};
            const swap_policy policy = (swap_policy)k;
            const double* mfu = k == SWAP_KEEP ? swap_h200_keep_mfu : swap_h200_recompute_mfu;
            const double* gib = k == SWAP_KEEP ? swap_h200_keep_gib : swap_h200_recompute_gib;
            SWAP_ROW(names[k], N, "%.1f", swap_mfu_or_verdict(c[i], policy, program[i]));
            if (k == SWAP_ALPHA) SWAP_ROW("  alpha", N, "%.3f", program[i]);
            if (!is_measured || k == SWAP_FULL || k == SWAP_ALPHA) continue;
            SWAP_ROW("  measured", N, "%.1f", mfu[i]);
            SWAP_ROW("  device GiB", N, "%.0f", swap_device_bytes(c[i], policy, 0) / PAPER_GIB);
            SWAP_ROW("  measured GiB", N, "%.0f", gib[i]);
        }

        /* The best alpha, then the library's plan. */
        SWAP_ROW("shortest step", N, "%.1f",
                 swap_mfu_or_verdict(c[i], SWAP_ALPHA, paper_max(0, best[i])));
        SWAP_ROW("  alpha", N, "%.3f", best[i] < 0 ? swap_verdict(c[i], SWAP_ALPHA, 0) : best[i]);
        SWAP_ROW("memo_plan_swap", N, "%.1f",
                 planned[i] >= 0 ? swap_mfu_of(c[i], planned[i]) : planned[i]);
        SWAP_ROW("attention share, %", N, "%.1f", swap_attention_percent(c[i]));
        paper_print("  The forward pass hides full offloading from %.0fK; the longest length at "
                    "alpha = 0, in steps of 16K, is %.0fK.\n",
                    swap_hidden_from_k(c[0]), swap_longest_k(hw, m, 1, 16, &layout));
    }
}

static void swap_report(const swap_hardware* hw, const swap_hardware* h200) {
    const swap_intervals intervals = swap_find_intervals(hw);
    swap_report_ablation(hw);
    swap_report_cells(hw);
    swap_report_intervals(intervals);
    swap_report_alpha(hw, intervals.host_fraction);
    swap_report_figures(hw);
    swap_report_h200(h200);
    paper_print_criteria("MEMO");

    /* Wrong verdicts are listed, and are no criterion. */
    for (int k = 0; k < SWAP_N_MODELS * SWAP_N_LENGTHS; k++) {
        const swap_model* m = &swap_models[k / SWAP_N_LENGTHS];
        const int i = k % SWAP_N_LENGTHS;
        const double verdict = swap_cell_verdict(hw, m, i);
        if (!swap_same_verdict(verdict, m->cells[i].alpha))
            paper_print(
                "  [miss] not a criterion: Table 3's %s at %.0fK, published %s, predicted %s\n",
                m->name, swap_lengths_k[i], swap_verdict_text(m->cells[i].alpha),
                swap_verdict_text(verdict));
    }
}

#endif /* PAPER_MEMO_H */
