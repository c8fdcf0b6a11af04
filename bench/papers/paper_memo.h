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
#include "tools/trace_layers.h"

/* ---- published figures ----------------------------------------------------------------------- */

/* Values in place of an alpha: the paper reports that the run failed. */
#define SWAP_OOM  (-1.0) /* device memory exhausted */
#define SWAP_OOHM (-2.0) /* host memory exhausted */
#define SWAP_NONE (-3.0) /* not planned */

/* Of as many cells one is planned by the library, which takes most of the time of the tables. */
static int swap_plan_every = 1;

#define SWAP_N_LENGTHS 12
static const double swap_lengths_k[SWAP_N_LENGTHS] = {64,  128, 256,  384,  512,  640,
                                                      768, 896, 1024, 1152, 1280, 1408};

typedef struct swap_layout {
    int tensor, context, data, pipeline;
} swap_layout;

typedef struct swap_model {
    const char* name;
    int n_layers, hidden, n_gpus;
} swap_model;

/* Table 2: feed-forward size 4h, vocabulary 50257. */
#define SWAP_N_MODELS   4
#define SWAP_VOCABULARY 50257.0
static const swap_model swap_models[SWAP_N_MODELS] = {
    {"7B", 32, 4096, 8}, {"13B", 40, 5120, 16}, {"30B", 48, 7168, 32}, {"65B", 80, 8192, 64}};

/* Appendix A, Table 7. */
/* clang-format off */
static const swap_layout swap_published_layout[SWAP_N_MODELS][SWAP_N_LENGTHS] = {
    {{2, 2, 2, 1}, {4, 2, 1, 1}, {4, 2, 1, 1}, {4, 2, 1, 1}, {4, 2, 1, 1}, {4, 2, 1, 1},
     {4, 2, 1, 1}, {4, 2, 1, 1}, {8, 1, 1, 1}, {8, 1, 1, 1}, {8, 1, 1, 1}, {8, 1, 1, 1}},
    {{2, 2, 4, 1}, {4, 2, 2, 1}, {4, 2, 2, 1}, {4, 2, 1, 2}, {4, 4, 1, 1}, {4, 4, 1, 1},
     {4, 4, 1, 1}, {4, 4, 1, 1}, {4, 4, 1, 1}, {4, 4, 1, 1}, {4, 4, 1, 1}, {4, 4, 1, 1}},
    {{4, 1, 8, 1}, {8, 1, 4, 1}, {8, 2, 2, 1}, {8, 2, 2, 1}, {8, 2, 2, 1}, {8, 4, 1, 1},
     {8, 4, 1, 1}, {8, 4, 1, 1}, {8, 4, 1, 1}, {8, 4, 1, 1}, {8, 4, 1, 1}, {8, 4, 1, 1}},
    {{8, 1, 8, 1}, {4, 4, 4, 1}, {8, 4, 2, 1}, {8, 8, 1, 1}, {8, 8, 1, 1}, {8, 8, 1, 1},
     {8, 8, 1, 1}, {8, 8, 1, 1}, {8, 8, 1, 1}, {8, 8, 1, 1}, {8, 8, 1, 1}, {8, 8, 1, 1}}};
/* clang-format on */
static const double swap_published_alpha[SWAP_N_MODELS][SWAP_N_LENGTHS] = {
    {0, 0, 1, 0.5, 0.125, 0.125, 0, 0, 0, SWAP_OOM, SWAP_OOM, SWAP_OOM},
    {0, 0, 0, 0, 0.5, 0.125, 0.125, 0, 0, 0, 0, 0},
    {0, 0, 0, 0, 0, 0.25, 0.125, 0.125, 0.125, 0.125, 0, SWAP_OOHM},
    {0, 0, 0, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0, 0, 0}};
/* Table 3, rows "Memo", per cent; 0 if the program did not run. */
static const double swap_published_mfu[SWAP_N_MODELS][SWAP_N_LENGTHS] = {
    {52.34, 50.96, 53.62, 53.04, 51.84, 52.59, 51.89, 52.71, 52.30, 0, 0, 0},
    {52.65, 50.93, 51.22, 51.91, 52.40, 52.13, 51.71, 51.76, 52.06, 51.74, 51.78, 52.10},
    {52.12, 49.66, 50.00, 50.69, 51.06, 51.72, 51.18, 51.50, 51.24, 51.73, 51.59, 0},
    {47.80, 48.61, 49.87, 48.85, 49.71, 50.05, 51.16, 51.05, 51.27, 51.20, 51.42, 51.45}};

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
static const char* const swap_reorganizations[SWAP_N_ABLATION] = {"", "6", "16", "",
                                                                  "", "",  "",   ""};

/* Figures 1(b), 7 and 12(a): 7B, TP 8; GPUs against the longest length. */
#define SWAP_PUBLISHED_HIDDEN_K    192.0 /* the forward pass hides full offloading from here */
#define SWAP_PUBLISHED_ATTENTION_K 576.0 /* attention above 90 % of the forward pass */
#define SWAP_N_SCALES              4
static const int swap_scale_gpus[SWAP_N_SCALES] = {8, 16, 32, 64};
static const double swap_scale_longest_k[SWAP_N_SCALES] = {1024, 2048, 4096, 8192};

/* ---- hardware: all constants ----------------------------------------------------------------- */

typedef struct swap_attention_rate {
    double tokens, forward_flops, backward_flops; /* FLOP/s of the causal half; 2 and 5 products */
} swap_attention_rate;

typedef struct swap_hardware {
    double peak_flops;        /* the 100 % of MFU */
    double gemm_efficiency;   /* of peak_flops */
    double n_attention_rates; /* one: any length; more: by the logarithm of the length */
    swap_attention_rate attention[3];
    double pcie_bytes_per_s;   /* B, of one GPU, each way */
    double nvlink_bytes_per_s; /* of one GPU, each way */
    double nic_bytes_per_s;    /* of one GPU, each way */
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

/* What is printed, and where it goes.  The four fitted ones are the start of the fit. */
#define SWAP_AT(field) offsetof(swap_hardware, field)
#define SWAP_FIT(name, value, unit, field, scale)                                                  \
    { name, value, unit, PAPER_FITTED, "Table 4's planned rows, 16 values", SWAP_AT(field), scale }
static const paper_constant swap_a800_constants[] = {
    {"peak", 312, "TFLOP/s", PAPER_STATED, "Section 5.1", SWAP_AT(peak_flops), 1e12},
    SWAP_FIT("GEMM efficiency", 0.7, "of peak", gemm_efficiency, 1),
    SWAP_FIT("attention efficiency, forward", 0.7, "of peak", attention[0].forward_flops, 312e12),
    SWAP_FIT("attention efficiency, backward", 0.6, "of peak", attention[0].backward_flops, 312e12),
    SWAP_FIT("PCIe of one GPU, effective", 12, "GB/s", pcie_bytes_per_s, PAPER_GB),
    {"PCIe of one GPU", 32, "GB/s", PAPER_STATED, "Section 5.1; only printed beside", 0, 0},
    {"NVLink of one GPU, each way", 160, "GB/s", PAPER_ASSUMED,
     "400 GB/s stated: 80 % of 200 each way", SWAP_AT(nvlink_bytes_per_s), PAPER_GB},
    {"InfiniBand of one GPU, each way", 20, "GB/s", PAPER_ASSUMED,
     "200 a node stated: 80 % of 25 a GPU", SWAP_AT(nic_bytes_per_s), PAPER_GB},
    {"GPUs of a node", 8, "", PAPER_STATED, "Section 5.1", SWAP_AT(gpus_per_node), 1},
    {"micro-batches of a step", 16, "", PAPER_ASSUMED, "share out bubble and gradient exchange",
     SWAP_AT(n_micro_batches), 1},
    {"device memory", 80, "GiB", PAPER_STATED, "Section 5.1", SWAP_AT(device_bytes), PAPER_GIB},
    {"device reserve", 4, "GiB", PAPER_ASSUMED, "CUDA, NCCL; interval printed below",
     SWAP_AT(device_reserve_bytes), PAPER_GIB},
    {"host memory of a node", 2, "TB", PAPER_STATED, "Section 5.1", SWAP_AT(host_bytes_per_node),
     1e12},
    {"usable host memory", 0.6, "fraction", PAPER_ASSUMED, "interval printed below",
     SWAP_AT(host_usable), 1},
    {"bytes of a logit", 6, "B", PAPER_ASSUMED, "bf16 and fp32; interval printed below",
     SWAP_AT(bytes_per_logit), 1},
    {"parameter + gradient + optimizer", 2 + 4 + 12, "B", PAPER_ASSUMED,
     "2 + 4 + 12, the last shared by ZeRO-1", 0, 0},
    {"vocabulary", SWAP_VOCABULARY, "", PAPER_STATED, "Table 2", SWAP_AT(vocabulary), 1}};

/* Measured on one H200, but for what is assumed. */
static const paper_constant swap_h200_constants[] = {
    {"peak", 989, "TFLOP/s", PAPER_ASSUMED, "data sheet, dense bf16", SWAP_AT(peak_flops), 1e12},
    {"GEMM", 721, "TFLOP/s", PAPER_MEASURED, "65536 x 4096 x 16384", SWAP_AT(gemm_efficiency),
     1 / 989.0},
    {"attention at 64K, forward", 601, "TFLOP/s", PAPER_MEASURED,
     "649 at 16K, 555 at 128K; between by log s", SWAP_AT(attention[1].forward_flops), 1e12},
    {"attention at 64K, backward", 520, "TFLOP/s", PAPER_MEASURED,
     "353 at 16K, 526 at 128K; between by log s", SWAP_AT(attention[1].backward_flops), 1e12},
    {"PCIe, each way", 55.3, "GB/s", PAPER_MEASURED, "pinned", SWAP_AT(pcie_bytes_per_s), PAPER_GB},
    {"device memory", 139, "GiB", PAPER_MEASURED, "", SWAP_AT(device_bytes), PAPER_GIB},
    {"device reserve", 4, "GiB", PAPER_ASSUMED, "as above", SWAP_AT(device_reserve_bytes),
     PAPER_GIB},
    {"host memory", 125, "GiB", PAPER_MEASURED, "", SWAP_AT(host_bytes_per_node), PAPER_GIB},
    {"usable host memory", 0.9, "fraction", PAPER_ASSUMED, "the system needs some",
     SWAP_AT(host_usable), 1},
    {"rows of a classifier chunk", 8192, "tokens", PAPER_ASSUMED, "long runs need it in chunks",
     SWAP_AT(classifier_tokens), 1},
    {"parameter + gradient + optimizer", 2 + 2 + 4, "B", PAPER_ASSUMED,
     "2 + 2 + 4: all bf16, as in the runs", 0, 0}};

static inline swap_hardware swap_a800(void) {
    swap_hardware hw;
    memset(&hw, 0, sizeof hw);
    PAPER_SET_CONSTANTS(&hw, swap_a800_constants);
    hw.n_attention_rates = 1;
    hw.parameter_bytes = 2, hw.gradient_bytes = 4, hw.optimizer_bytes = 12;
    return hw;
}

static inline swap_hardware swap_h200(void) {
    static const swap_attention_rate attention[3] = {{16 * PAPER_K, 649e12, 353e12},
                                                     {64 * PAPER_K, 0, 0}, /* a constant */
                                                     {128 * PAPER_K, 555e12, 526e12}};
    swap_hardware hw;
    memset(&hw, 0, sizeof hw);
    memcpy(hw.attention, attention, sizeof attention);
    PAPER_SET_CONSTANTS(&hw, swap_h200_constants);
    hw.n_attention_rates = 3;
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

static inline swap_case swap_case_of(const swap_hardware* hw, const swap_model* model,
                                     swap_layout layout, double k) {
    const swap_case c = {hw, model, layout, k * PAPER_K};
    return c;
}

/* P = 12 n h^2 + V h */
static inline double swap_parameters(swap_case c) {
    return 12.0 * c.model->n_layers * c.model->hidden * (double)c.model->hidden +
           c.hw->vocabulary * c.model->hidden;
}

/* u = 2 s h / (TP CP): the bytes of one s x h tensor on one GPU. */
static inline double swap_unit_bytes(swap_case c) {
    return 2 * c.tokens * c.model->hidden / (c.layout.tensor * c.layout.context);
}

static inline int swap_n_gpus(swap_case c) {
    return c.layout.tensor * c.layout.context * c.layout.data * c.layout.pipeline;
}

static inline double swap_link(swap_case c, double n_gpus) {
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

static inline swap_layer swap_layer_times(swap_case c) {
    const swap_attention_rate* r = c.hw->attention;
    const double h = c.model->hidden, s = c.tokens, context = c.layout.context;
    const double n_shards = c.layout.tensor * c.layout.context;
    const double flops = c.hw->peak_flops * c.hw->gemm_efficiency;
    double rates[2], t, gemm, attention, ring, hop, collective;
    swap_layer layer;
    while (r + 2 < c.hw->attention + (int)c.hw->n_attention_rates && s > r[1].tokens) r++;
    rates[0] = r->forward_flops, rates[1] = r->backward_flops;
    if (c.hw->n_attention_rates >= 2) {
        t = paper_max(0, paper_min(1, log(s / r[0].tokens) / log(r[1].tokens / r[0].tokens)));
        rates[0] += t * (r[1].forward_flops - rates[0]);
        rates[1] += t * (r[1].backward_flops - rates[1]);
    }

    gemm = 24 * s * h * h / n_shards / flops;
    layer.attention = 2 * s * s * h / n_shards / rates[0];
    attention = 5 * s * s * h / n_shards / rates[1];
    collective = (c.layout.tensor - 1.0) / c.layout.tensor * 2 * s * h / context /
                 swap_link(c, c.layout.tensor);
    /* A hop carries K and V, in the backward also dK and dV; it is hidden behind 1/CP of the
     * work. */
    hop = 2 * swap_unit_bytes(c) / swap_link(c, n_shards);
    layer.ring = (context - 1) * paper_max(0, hop - layer.attention / context);
    ring = (context - 1) * paper_max(0, 2 * hop - attention / context);
    layer.head = 6 * s * h * c.hw->vocabulary / n_shards / flops;
    layer.forward = gemm + layer.attention + layer.ring + 4 * collective;
    layer.backward = 2 * gemm + attention + ring + 4 * collective;
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
static inline double swap_simulate(const swap_schedule* s) {
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
static inline double swap_shared_s(swap_case c, double time) {
    const double group = c.layout.data * c.layout.context;
    const double exchange = (c.hw->gradient_bytes + c.hw->parameter_bytes) * swap_parameters(c) /
                            (c.layout.tensor * c.layout.pipeline) * (group - 1) / group /
                            swap_link(c, c.layout.tensor * group);
    return time * (1 + (c.layout.pipeline - 1) / c.hw->n_micro_batches) +
           exchange / c.hw->n_micro_batches;
}

static inline double swap_micro_batch_s(swap_case c, swap_policy policy, double alpha) {
    const swap_layer layer = swap_layer_times(c);
    swap_schedule s;
    s.n_layers = c.model->n_layers / c.layout.pipeline;
    s.forward = layer.forward, s.backward = layer.backward, s.head = layer.head;
    if (policy == SWAP_FULL) alpha = 1;
    if (policy == SWAP_KEEP || policy == SWAP_RECOMPUTE)
        return swap_shared_s(
            c, s.n_layers * ((policy == SWAP_KEEP ? 1 : 2) * s.forward + s.backward) + s.head);
    s.recompute = (1 - alpha) * layer.recompute;
    s.offload = s.fetch = (2 + 14 * alpha) * swap_unit_bytes(c) / c.hw->pcie_bytes_per_s;
    s.n_resident = alpha > 0 ? 2 : 1;
    return swap_shared_s(c, swap_simulate(&s));
}

/* Per cent of the peak: 6 s P + 6 n h s^2 a sample. */
static inline double swap_mfu_of(swap_case c, double micro_batch_s) {
    const double flops = 6 * c.tokens * swap_parameters(c) +
                         6.0 * c.model->n_layers * c.model->hidden * c.tokens * c.tokens;
    return 100 * flops * c.layout.data / (micro_batch_s * swap_n_gpus(c) * c.hw->peak_flops);
}
static inline double swap_mfu_percent(swap_case c, swap_policy policy, double alpha) {
    return swap_mfu_of(c, swap_micro_batch_s(c, policy, alpha));
}

/* ---- memory ---- */

/* Parameters, gradients, and the optimizer's states, which ZeRO-1 shards. */
static inline double swap_states_bytes(swap_case c) {
    return swap_parameters(c) / (c.layout.tensor * c.layout.pipeline) *
           (c.hw->parameter_bytes + c.hw->gradient_bytes +
            c.hw->optimizer_bytes / (c.layout.data * c.layout.context));
}

static inline double swap_device_bytes(swap_case c, swap_policy policy, double alpha) {
    const double u = swap_unit_bytes(c);
    const double columns = ceil(c.hw->vocabulary / (128.0 * c.layout.tensor)) * 128; /* padded */
    double rows = c.tokens / c.layout.context,
           skeletal = policy == SWAP_ALPHA && alpha <= 0 ? 18 : 32;
    if (policy == SWAP_KEEP) skeletal = 16 * c.model->n_layers;
    if (policy == SWAP_RECOMPUTE) skeletal = c.model->n_layers + 16;
    if (c.hw->classifier_tokens > 0) rows = paper_min(rows, c.hw->classifier_tokens);
    return swap_states_bytes(c) + skeletal * u +
           paper_max(c.hw->bytes_per_logit * rows * columns + u, (9 + 2 * c.layout.tensor) * u);
}

static inline double swap_pinned_bytes(const swap_hardware* hw, double bytes) {
    return hw->is_host_rounded > 0 && bytes > 0 ? pow(2, ceil(log(bytes) / log(2) - 1e-9)) : bytes;
}

/* (n - 2)(S_input + S_attn + alpha S_others), of all GPUs of a node.  The others are six tensors of
 * u bytes (norm, q, k, v, residual, norm) and two of 4u (the MLP's). */
static inline double swap_host_bytes(swap_case c, swap_policy policy, double alpha) {
    const double u = swap_unit_bytes(c);
    if (policy == SWAP_RECOMPUTE || policy == SWAP_KEEP) return 0;
    if (policy == SWAP_FULL) alpha = 1;
    return paper_min(swap_n_gpus(c), c.hw->gpus_per_node) * (c.model->n_layers - 2) *
           (2 * swap_pinned_bytes(c.hw, u) + 6 * swap_pinned_bytes(c.hw, alpha * u) +
            2 * swap_pinned_bytes(c.hw, 4 * alpha * u));
}

/* 0: runs; otherwise SWAP_OOM or SWAP_OOHM.  Host memory first, because it fails before any
 * step. */
static inline double swap_verdict(swap_case c, swap_policy policy, double alpha) {
    if (swap_host_bytes(c, policy, alpha) > c.hw->host_usable * c.hw->host_bytes_per_node)
        return SWAP_OOHM;
    return swap_device_bytes(c, policy, alpha) > c.hw->device_bytes - c.hw->device_reserve_bytes
               ? SWAP_OOM
               : 0;
}

/* The MFU, or the verdict. */
static inline double swap_mfu_or_verdict(swap_case c, swap_policy policy, double alpha) {
    const double verdict = swap_verdict(c, policy, alpha);
    return verdict < 0 ? verdict : swap_mfu_percent(c, policy, alpha);
}

/* ---- alpha ---- */

/* The paper's program, equations (1) to (3), in closed form: B and T_layer, then M_CPU. */
static inline double swap_paper_alpha(swap_case c) {
    const double u = swap_unit_bytes(c), none = swap_host_bytes(c, SWAP_ALPHA, 0);
    const double by_time =
        (c.hw->pcie_bytes_per_s * swap_layer_times(c).forward - 2 * u) / (14 * u);
    const double by_host = (c.hw->host_usable * c.hw->host_bytes_per_node - none) /
                           (swap_host_bytes(c, SWAP_ALPHA, 1) - none);
    return paper_max(0, paper_min(1, paper_min(by_time, by_host)));
}

/* Down to the values that the paper uses: 0, 1/8, 1/4, 1/2, 1. */
static inline double swap_alpha_on_grid(double alpha) {
    static const double grid[] = {1, 0.5, 0.25, 0.125};
    for (int i = 0; i < 4; i++)
        if (alpha >= grid[i] - 1e-9) return grid[i];
    return 0;
}

/* The alpha, of steps of 1/64, with the shortest simulated step among those that fit; -1: none. */
static inline double swap_best_alpha(swap_case c) {
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
static inline double swap_planned_s(swap_case c) {
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

static inline double swap_ablation_alpha(int i) { return i == 0 ? 0 : swap_published_alpha[0][i]; }
static inline swap_case swap_ablation(const swap_hardware* hw, int i) {
    return swap_case_of(hw, &swap_models[0], swap_ablation_layout, swap_lengths_k[i]);
}

/* Full swapping and MEMO are the same run at 256K: one value, not two. */
static inline int swap_fit_residuals(const swap_hardware* hw, double* residuals) {
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

static inline void swap_set_fitted(swap_hardware* hw, const double* v) {
    hw->gemm_efficiency = v[0];
    hw->attention[0].forward_flops = v[1] * hw->peak_flops;
    hw->attention[0].backward_flops = v[2] * hw->peak_flops;
    hw->pcie_bytes_per_s = v[3] * PAPER_GB;
}

static inline double swap_fit_objective(const double* variables, void* user) {
    swap_hardware* hw = (swap_hardware*)user;
    double residuals[PAPER_MAX], sum = 0;
    int n;
    swap_set_fitted(hw, variables);
    n = swap_fit_residuals(hw, residuals);
    for (int i = 0; i < n; i++) sum += residuals[i] * residuals[i];
    return sum / n;
}

/* Least squares over the sixteen values; nothing is fitted after this. */
static inline void swap_fit(swap_hardware* hw) {
    double v[4];
    v[0] = hw->gemm_efficiency;
    v[1] = hw->attention[0].forward_flops / hw->peak_flops;
    v[2] = hw->attention[0].backward_flops / hw->peak_flops;
    v[3] = hw->pcie_bytes_per_s / PAPER_GB;
    paper_minimize(v, 4, swap_fit_objective, hw);
    swap_set_fitted(hw, v);
}

/* ---- verdicts ---- */

/* Does any layout of these GPUs hold one sequence at alpha = 0?  *found: the first, largest TP
 * first. */
static inline int swap_runs_somehow(const swap_hardware* hw, const swap_model* model, int n_gpus,
                                    double k, swap_layout* found) {
    for (int tensor = (int)hw->gpus_per_node; tensor >= 1; tensor /= 2)
        for (int pipeline = 1; pipeline <= n_gpus / tensor; pipeline *= 2) {
            const swap_layout layout = {tensor, n_gpus / (tensor * pipeline), 1, pipeline};
            if (tensor * pipeline > n_gpus || model->n_layers % pipeline != 0) continue;
            if (swap_verdict(swap_case_of(hw, model, layout, k), SWAP_ALPHA, 0) < 0) continue;
            *found = layout;
            return 1;
        }
    return 0;
}

static inline swap_case swap_cell(const swap_hardware* hw, int model, int i) {
    return swap_case_of(hw, &swap_models[model], swap_published_layout[model][i],
                        swap_lengths_k[i]);
}

/* The verdict on one cell of Table 3, for the published layout, or for any layout if none is
 * published. */
static inline double swap_cell_verdict(const swap_hardware* hw, int model, int i) {
    const swap_model* m = &swap_models[model];
    const double alpha = swap_published_alpha[model][i];
    swap_layout layout;
    if (alpha >= 0) return swap_verdict(swap_cell(hw, model, i), SWAP_ALPHA, alpha);
    return swap_runs_somehow(hw, m, m->n_gpus, swap_lengths_k[i], &layout) ? 0 : SWAP_OOM;
}

static inline int swap_same_verdict(double a, double b) {
    return (a >= 0 && b >= 0) || (a < 0 && b < 0 && fabs(a - b) < 0.5);
}

static inline int swap_n_right_ablation(const swap_hardware* hw) {
    int n = 0;
    for (int k = 0; k < SWAP_N_PUBLISHED * SWAP_N_ABLATION; k++) {
        const int i = k % SWAP_N_ABLATION, policy = k / SWAP_N_ABLATION;
        n += swap_same_verdict(
            swap_verdict(swap_ablation(hw, i), (swap_policy)policy, swap_ablation_alpha(i)),
            swap_ablation_mfu[policy][i]);
    }
    return n;
}
static inline int swap_n_right_cells(const swap_hardware* hw, int model) {
    int n = 0;
    for (int i = 0; i < SWAP_N_LENGTHS; i++)
        n += swap_same_verdict(swap_cell_verdict(hw, model, i), swap_published_alpha[model][i]);
    return n;
}

/* The range of one constant, around its value, in which all 24 verdicts of Table 4 and the 12 of
 * Table 3's 7B row are right, if the other constants keep their values. */
typedef struct swap_interval {
    double low, high;
} swap_interval;

static inline int swap_all_right(const swap_hardware* hw) {
    return swap_n_right_ablation(hw) == SWAP_N_PUBLISHED * SWAP_N_ABLATION &&
           swap_n_right_cells(hw, 0) == SWAP_N_LENGTHS;
}

static inline swap_interval swap_right_interval(swap_hardware* hw, double* constant, double step,
                                                double low, double high) {
    double nominal = *constant;
    swap_interval interval;
    interval.low = interval.high = nominal;
    for (; *constant >= low && swap_all_right(hw); *constant -= step) interval.low = *constant;
    for (*constant = nominal; *constant <= high && swap_all_right(hw); *constant += step)
        interval.high = *constant;
    *constant = nominal;
    return interval;
}

/* Least length, in K, whose forward pass of a layer hides its full offload: Figure 1(b). */
static inline double swap_offload_s(swap_case c) {
    return 16 * swap_unit_bytes(c) / c.hw->pcie_bytes_per_s;
}
static inline double swap_hidden_from_k(swap_case c) {
    double k = 1;
    for (; k < 4096; k++) {
        c.tokens = k * PAPER_K;
        if (swap_offload_s(c) <= swap_layer_times(c).forward) break;
    }
    return k;
}

/* Attention's per cent of a layer's forward pass (Figure 7). */
static inline double swap_attention_percent(swap_case c) {
    return 100 * (swap_layer_times(c).attention / swap_layer_times(c).forward);
}

/* Longest length at alpha = 0 that any layout of the GPUs holds, by steps; in K. */
static inline double swap_longest_k(const swap_hardware* hw, const swap_model* model, int n_gpus,
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
static inline int swap_is_reduced(const memo_request* r, int64_t u, int64_t hidden) {
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
static inline memo_trace* swap_unplanned_trace(double tokens) {
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

/* ---- one H200 -------------------------------------------------------------------------------- */

/* Measured on one H200: rates of GEMM, attention and copies, and the MFU of a GPT of the 7B shape
 * with eight layers (vocabulary 50304, weights and AdamW states in bf16). */
#define SWAP_N_H200 5
static const double swap_h200_lengths_k[SWAP_N_H200] = {64, 128, 256, 512, 1024};
static const double swap_h200_ceiling[SWAP_N_H200] = {55.4, 51.4, 49.1, 47.8, 47.0};
static const double swap_h200_keep_mfu[SWAP_N_H200] = {53.6, SWAP_OOM, SWAP_OOM, 0, 0};
static const double swap_h200_recompute_mfu[SWAP_N_H200] = {43.5, 40.6, 38.2, 0, 0};
static const double swap_h200_keep_gib[SWAP_N_H200] = {82, 0, 0, 0, 0};
static const double swap_h200_recompute_gib[SWAP_N_H200] = {26, 40, 68, 0, 0};
static const swap_layout swap_one_gpu = {1, 1, 1, 1};
#define SWAP_N_H200_MODELS 2
static const swap_model swap_h200_models[SWAP_N_H200_MODELS] = {{"7B shape, 8 layers", 8, 4096, 1},
                                                                {"7B, 32 layers", 32, 4096, 1}};

/* ---- reports --------------------------------------------------------------------------------- */

static inline void swap_print_constants(const swap_hardware* hw, const swap_hardware* h200) {
    PAPER_PRINT_CONSTANTS("MEMO, A800 nodes", swap_a800_constants, hw);
    PAPER_PRINT_CONSTANTS("MEMO, one H200", swap_h200_constants, h200);
}

/* The figures that the criteria check. */
typedef struct swap_results {
    double ablation_error, cells_error, model_error[SWAP_N_MODELS]; /* MFU, points, mean absolute */
    int n_fitted, n_cells;
    int n_right_ablation, n_right_7b; /* verdicts, of 24 and 12 */
    swap_interval reserve_gib, logit_bytes, host_fraction, host_fraction_rounded;
    double swap_64k_stated_pcie; /* MFU of full swapping at 64K with 32 GB/s */
    double swap_64k_fitted_pcie;
    double hidden_from_k;
    int n_alpha_floor, n_alpha_nearest; /* cells where the program gives the published alpha */
    int n_alpha_best;                   /* n_alpha_floor at the most favorable usable host memory */
    int n_plan_compared;                /* cells whose published alpha fits */
    int n_plan_longer;    /* of these: the best alpha's step is longer than the published one's */
    int n_planned;        /* of these: memo_plan_swap planned the cell */
    int n_planned_longer; /* of these: its step is longer than the published alpha's */
    int n_unplanned;      /* replays of Table 4's first row, one per length and deferral */
    caching_stats unplanned[2 * SWAP_N_ABLATION];
} swap_results;

/* A cell of seven columns: a number, a verdict, or nothing for NAN. */
static inline const char* swap_cell_text(double value, char text[32], const char* format) {
    if (value < SWAP_OOHM) return "-";
    if (value < -1.5) return "oohm";
    if (value < -0.5) return "oom";
    (void)snprintf(text, 32, format, value);
    return isnan(value) ? "" : text;
}
static inline void swap_print_cell(double value, const char* format) {
    char text[32];
    paper_print(" %7s", swap_cell_text(value, text, format));
}
static inline void swap_print_label(const char* label) { paper_print("  %-20s", label); }

static inline void swap_print_lengths(const char* label, const double* lengths_k, int n) {
    swap_print_label(label);
    for (int i = 0; i < n; i++) paper_print(" %6.0fK", lengths_k[i]);
    paper_print("\n");
}

/* A row whose cell i is a value, by the index i. */
#define SWAP_ROW(label, n, format, value)                                                          \
    do {                                                                                           \
        swap_print_label(label);                                                                   \
        for (int i = 0; i < (n); i++) swap_print_cell(value, format);                              \
        paper_print("\n");                                                                         \
    } while (0)

/* Predicted minus published, if both ran. */
static inline void swap_print_residuals(const double* values, const double* published, int n) {
    swap_print_label("  residual, points");
    for (int i = 0; i < n; i++) {
        if (published[i] > 0 && values[i] > 0)
            paper_print(" %+7.2f", values[i] - published[i]);
        else
            swap_print_cell((double)NAN, "");
    }
    paper_print("\n");
}

/* Reorganizations in the fourth iteration, with frees deferred to the layer's end, or as long as
 * possible. */
static inline void swap_report_unplanned(const swap_hardware* hw, swap_results* r) {
    caching_desc desc;
    int is_bad = 0;
    desc.capacity_bytes = (int64_t)(hw->device_bytes - hw->device_reserve_bytes -
                                    swap_states_bytes(swap_ablation(hw, 0)));
    desc.n_iterations = 4;
    paper_print("\n");
    swap_print_label("  predicted");
    for (int i = 0; i < 2 * SWAP_N_ABLATION && !is_bad; i++) {
        caching_stats* s = &r->unplanned[i];
        memo_trace* trace = swap_unplanned_trace(swap_lengths_k[i / 2] * PAPER_K);
        char text[32];
        desc.deferral = i % 2 ? CACHING_LATE : CACHING_ORDERED;
        is_bad = !trace || caching_replay(trace, &desc, s, NULL);
        memo_trace_destroy(trace);
        (void)snprintf(text, sizeof text, "%lld", (long long)s->n_retries_last);
        if (!is_bad) paper_print(i % 2 ? "-%-3s" : " %3s", s->refused_request < 0 ? text : "oom");
        r->n_unplanned += !is_bad;
    }
    paper_print(
        "%s\n    assumed, as the real request sequence is unpublished: one GPU's trace scaled "
        "to a rank and to 32 layers,\n    logits of all rows at once, a model of PyTorch's "
        "allocator; frees of what is sent wait for the layer's end -\n    for the allocator's "
        "own wait on all streams; no criterion\n",
        is_bad ? " not computed: " SWAP_TRACE " cannot be read" : "");
}

static inline void swap_report_ablation(const swap_hardware* hw, swap_results* r) {
    enum { N = SWAP_N_ABLATION };
    swap_hardware stated = *hw;
    double row[N], residuals[PAPER_MAX];

    /* The published row without a plan, beside a replay of it. */
    stated.pcie_bytes_per_s = 32e9;
    paper_print("\nTable 4: MFU in %% of 312 TFLOP/s; 7B, 8 A800, TP 4, CP 2\n");
    swap_print_lengths("", swap_lengths_k, N);
    SWAP_ROW("recompute, no plan", N, "%.2f", swap_unplanned_mfu[i]);
    swap_print_label("  reorganizations");
    for (int i = 0; i < N; i++) paper_print(" %7s", swap_reorganizations[i]);
    swap_report_unplanned(hw, r);

    /* Each policy: published, predicted, residual; full swapping once more at the stated bandwidth,
     * which the fit contradicts. */
    for (int policy = 0; policy < SWAP_N_PUBLISHED; policy++) {
        SWAP_ROW(swap_policy_names[policy], N, "%.2f", swap_ablation_mfu[policy][i]);
        for (int is_stated = 0; is_stated <= (policy == SWAP_FULL); is_stated++) {
            for (int i = 0; i < N; i++)
                row[i] = swap_mfu_or_verdict(swap_ablation(is_stated ? &stated : hw, i),
                                             (swap_policy)policy, swap_ablation_alpha(i));
            if (policy == SWAP_FULL)
                *(is_stated ? &r->swap_64k_stated_pcie : &r->swap_64k_fitted_pcie) = row[0];
            SWAP_ROW(is_stated ? "  at stated 32 GB/s" : "  predicted", N, "%.2f", row[i]);
            swap_print_residuals(row, swap_ablation_mfu[policy], N);
        }
    }

    r->n_fitted = swap_fit_residuals(hw, residuals);
    r->ablation_error = paper_mean_absolute(residuals, r->n_fitted);
    r->n_right_ablation = swap_n_right_ablation(hw);
    paper_print("  mean absolute error over the %d fitted values (256K counted once): %.2f points; "
                "%d of %d verdicts right\n",
                r->n_fitted, r->ablation_error, r->n_right_ablation, SWAP_N_PUBLISHED * N);
}

static inline void swap_report_cells(const swap_hardware* hw, swap_results* r) {
    enum { N = SWAP_N_LENGTHS };
    double row[N], all[PAPER_MAX];
    paper_print(
        "\nTable 3, MEMO: MFU in %% of 312 TFLOP/s on the published layouts (TP/CP/DP/PP) with the "
        "published alpha; nothing refitted\n");
    r->n_cells = 0;
    for (int model = 0; model < SWAP_N_MODELS; model++) {
        const swap_model* m = &swap_models[model];
        const double *published = swap_published_mfu[model], *alpha = swap_published_alpha[model];
        double* residuals = all + r->n_cells;
        char text[32];
        int n = 0, n_right = swap_n_right_cells(hw, model);
        (void)snprintf(text, sizeof text, "%s on %d GPUs", m->name, m->n_gpus);
        swap_print_lengths(text, swap_lengths_k, N);
        swap_print_label("  layout");
        for (int i = 0; i < N; i++) {
            swap_layout l = swap_published_layout[model][i];
            if (alpha[i] < 0)
                paper_print(" %7s", "any");
            else
                paper_print(" %d/%d/%d/%d", l.tensor, l.context, l.data, l.pipeline);
        }
        paper_print("\n");

        /* The prediction on the published layout with the published alpha. */
        SWAP_ROW("  alpha", N, "%.3f", alpha[i]);
        for (int i = 0; i < N; i++) {
            row[i] = alpha[i];
            if (alpha[i] < 0) continue;
            row[i] = swap_mfu_percent(swap_cell(hw, model, i), SWAP_ALPHA, alpha[i]);
            residuals[n++] = row[i] - published[i];
        }
        r->n_cells += n;
        SWAP_ROW("  published", N, "%.2f", published[i] > 0 ? published[i] : row[i]);
        SWAP_ROW("  predicted", N, "%.2f", published[i] > 0 ? row[i] : (double)NAN);
        swap_print_residuals(row, published, N);

        /* The verdicts need no published figure, so they cover all cells. */
        swap_print_label("  verdict");
        for (int i = 0; i < N; i++) {
            const double verdict = swap_cell_verdict(hw, model, i);
            paper_print(" %6s%s", verdict < 0 ? swap_cell_text(verdict, text, "%.0f") : "runs",
                        swap_same_verdict(verdict, alpha[i]) ? " " : "!");
        }
        r->model_error[model] = paper_mean_absolute(residuals, n);
        paper_print(
            "\n  mean absolute error over %d cells: %.2f points; %d of %d verdicts right%s\n", n,
            r->model_error[model], n_right, N, n_right < N ? " (! marks the others)" : "");
    }

    r->n_right_7b = swap_n_right_cells(hw, 0);
    r->cells_error = paper_mean_absolute(all, r->n_cells);
    paper_print("  mean absolute error over all %d cells: %.2f points\n", r->n_cells,
                r->cells_error);
}

/* The range of each assumed constant in which none of the 36 verdicts changes. */
static inline void swap_report_intervals(const swap_hardware* hw, swap_results* r) {
    swap_hardware trial = *hw;
    swap_interval i = swap_right_interval(&trial, &trial.device_reserve_bytes, 0.01 * PAPER_GIB, 0,
                                          trial.device_bytes);
    r->reserve_gib.low = i.low / PAPER_GIB;
    r->reserve_gib.high = i.high / PAPER_GIB;
    r->logit_bytes = swap_right_interval(&trial, &trial.bytes_per_logit, 0.01, 0, 20);
    r->host_fraction = swap_right_interval(&trial, &trial.host_usable, 0.001, 0, 4);
    trial.is_host_rounded = 1;
    trial.host_usable = 0.9;
    r->host_fraction_rounded = swap_right_interval(&trial, &trial.host_usable, 0.001, 0, 4);
    paper_print(
        "\nTable 4's 24 verdicts and the 12 of Table 3's 7B row hold while, the other constants "
        "unchanged:\n"
        "  device reserve        %6.2f to %6.2f GiB\n"
        "  bytes of a logit      %6.2f to %6.2f B\n"
        "  usable host memory    %6.3f to %6.3f of 2 TB\n"
        "    or, with each pinned tensor rounded up to a power of two, %.3f to %.3f of 2 TB\n",
        r->reserve_gib.low, r->reserve_gib.high, r->logit_bytes.low, r->logit_bytes.high,
        r->host_fraction.low, r->host_fraction.high, r->host_fraction_rounded.low,
        r->host_fraction_rounded.high);
}

/* Cells in which the paper's program, rounded down, gives the published alpha. */
static inline int swap_n_alpha_equal(const swap_hardware* hw) {
    int n = 0;
    for (int k = 0; k < SWAP_N_MODELS * SWAP_N_LENGTHS; k++) {
        const int model = k / SWAP_N_LENGTHS, i = k % SWAP_N_LENGTHS;
        const double alpha = swap_published_alpha[model][i];
        n += alpha >= 0 &&
             fabs(alpha - swap_alpha_on_grid(swap_paper_alpha(swap_cell(hw, model, i)))) < 1e-9;
    }
    return n;
}

/* To the nearest value of the grid: the next one is twice as large; above 0 it is 1/8. */
static inline double swap_nearest_alpha(double alpha) {
    const double down = swap_alpha_on_grid(alpha);
    const double up = down > 0 ? paper_min(1, 2 * down) : 0.125;
    return up - alpha > alpha - down ? down : up;
}

static inline void swap_report_alpha(const swap_hardware* hw, swap_results* r) {
    enum { N = SWAP_N_LENGTHS };
    swap_hardware trial = *hw;
    paper_print(
        "\nTable 7: the fraction alpha of the rows that is swapped, on the published layouts\n"
        "  published | the paper's program, closed form | the alpha with the shortest simulated "
        "step (steps of 1/64) |\n  memo_plan_swap's plan of three tensors (input, attention "
        "output, others) in the memory that the engine needs\n");

    /* The count at the assumed host memory, and the largest in the interval that the verdicts
     * allow. */
    r->n_alpha_floor = r->n_alpha_best = swap_n_alpha_equal(hw);
    for (trial.host_usable = r->host_fraction.low; trial.host_usable <= r->host_fraction.high;
         trial.host_usable += 0.001)
        r->n_alpha_best = (int)paper_max(r->n_alpha_best, swap_n_alpha_equal(&trial));

    for (int model = 0; model < SWAP_N_MODELS; model++) {
        double program[N], best[N], gain[N], planned[N];
        const double* alpha = swap_published_alpha[model];
        swap_print_lengths(swap_models[model].name, swap_lengths_k, N);
        for (int i = 0; i < N; i++) {
            const swap_case c = swap_cell(hw, model, i);
            double published_s;
            program[i] = best[i] = gain[i] = planned[i] = alpha[i];
            if (alpha[i] < 0) continue;
            planned[i] = swap_planned_s(c);
            program[i] = swap_paper_alpha(c);
            best[i] = swap_best_alpha(c);
            r->n_alpha_nearest += fabs(swap_nearest_alpha(program[i]) - alpha[i]) < 1e-9;
            gain[i] = swap_verdict(c, SWAP_ALPHA, alpha[i]);
            if (gain[i] < 0) continue;

            /* Savings are relative to the step with the published alpha. */
            r->n_plan_compared++;
            published_s = swap_micro_batch_s(c, SWAP_ALPHA, alpha[i]);
            gain[i] = 100 * (published_s / swap_micro_batch_s(c, SWAP_ALPHA, best[i]) - 1);
            r->n_plan_longer += gain[i] < -1e-9;
            if (planned[i] < SWAP_OOHM) continue;
            r->n_planned++;
            if (planned[i] >= 0) planned[i] = 100 * (published_s / planned[i] - 1);
            r->n_planned_longer += planned[i] < -1e-9;
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
        r->n_alpha_floor, r->n_cells, r->n_alpha_best, r->n_alpha_nearest, r->n_plan_compared,
        r->n_plan_longer, r->n_planned_longer);
}

static inline void swap_report_figures(const swap_hardware* hw, swap_results* r) {
    static const swap_layout tensor8 = {8, 1, 1, 1}, on64 = {8, 8, 1, 1};
    static const double lengths_k[8] = {64, 128, 192, 256, 384, 576, 768, 1024};
    const swap_model* m = &swap_models[0];
    double row_k[4], alpha[4];
#define SWAP_AT_LENGTH swap_case_of(hw, m, tensor8, lengths_k[i])
    r->hidden_from_k = swap_hidden_from_k(swap_case_of(hw, m, tensor8, 1));
    paper_print(
        "\nFigure 1(b), 7B, TP 8: the forward pass of a layer hides its full offload from %.0fK "
        "(published %.0fK: %+.0f %%)\n",
        r->hidden_from_k, SWAP_PUBLISHED_HIDDEN_K,
        100 * (r->hidden_from_k / SWAP_PUBLISHED_HIDDEN_K - 1));
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
    for (int i = 0; i < 4; i++) {
        row_k[i] = 1024 << i;
        alpha[i] = swap_best_alpha(swap_case_of(hw, m, on64, row_k[i]));
    }
    swap_print_lengths("", row_k, 4);
    SWAP_ROW("  alpha", 4, "%.3f", alpha[i]);
    SWAP_ROW("  MFU, %", 4, "%.2f",
             swap_mfu_percent(swap_case_of(hw, m, on64, row_k[i]), SWAP_ALPHA, alpha[i]));
}

/* The same tables for one H200, beside the figures that were measured with eight layers. */
static inline void swap_report_h200(const swap_hardware* hw) {
    static const char* const names[] = {"full recomputation", "full swapping", "paper's program",
                                        "keep everything"};
    enum { N = SWAP_N_H200 };
    for (int model = 0; model < SWAP_N_H200_MODELS; model++) {
        const swap_model* m = &swap_h200_models[model];
        double program[N], best[N], planned[N];
        swap_case c[N];
        swap_layout layout;
        for (int i = 0; i < N; i++) {
            c[i] = swap_case_of(hw, m, swap_one_gpu, swap_h200_lengths_k[i]);
            program[i] = swap_paper_alpha(c[i]);
        }
        paper_print("\nOne H200, %s: MFU in %% of 989 TFLOP/s\n", m->name);
        swap_print_lengths("", swap_h200_lengths_k, N);
        if (model == 0) SWAP_ROW("stated ceiling", N, "%.1f", swap_h200_ceiling[i]);
        SWAP_ROW("ceiling, predicted", N, "%.1f", swap_mfu_percent(c[i], SWAP_KEEP, 0));

        for (int k = 0; k <= SWAP_KEEP; k++) {
            const swap_policy policy = (swap_policy)k;
            const int is_kept = k == SWAP_KEEP;
            const double* measured = is_kept ? swap_h200_keep_mfu : swap_h200_recompute_mfu;
            const double* gib = is_kept ? swap_h200_keep_gib : swap_h200_recompute_gib;
            SWAP_ROW(names[k], N, "%.1f", swap_mfu_or_verdict(c[i], policy, program[i]));
            if (k == SWAP_ALPHA) SWAP_ROW("  alpha", N, "%.3f", program[i]);
            if (model || !(is_kept || k == SWAP_RECOMPUTE)) continue;
            SWAP_ROW("  measured", N, "%.1f", fabs(measured[i]) > 0 ? measured[i] : (double)NAN);
            SWAP_ROW("  device GiB", N, "%.0f", swap_device_bytes(c[i], policy, 0) / PAPER_GIB);
            SWAP_ROW("  measured GiB", N, "%.0f", gib[i] > 0 ? gib[i] : (double)NAN);
        }

        /* The best alpha, then the library's plan. */
        for (int i = 0; i < N; i++) best[i] = swap_best_alpha(c[i]);
        SWAP_ROW("shortest step", N, "%.1f",
                 swap_mfu_or_verdict(c[i], SWAP_ALPHA, paper_max(0, best[i])));
        SWAP_ROW("  alpha", N, "%.3f", best[i] < 0 ? swap_verdict(c[i], SWAP_ALPHA, 0) : best[i]);
        for (int i = 0; i < N; i++) planned[i] = swap_planned_s(c[i]);
        SWAP_ROW("memo_plan_swap", N, "%.1f",
                 planned[i] >= 0 ? swap_mfu_of(c[i], planned[i]) : planned[i]);
        SWAP_ROW("attention share, %", N, "%.1f", swap_attention_percent(c[i]));
        paper_print("  The forward pass hides full offloading from %.0fK; the longest length at "
                    "alpha = 0, in steps of 16K, is %.0fK.\n",
                    swap_hidden_from_k(c[0]), swap_longest_k(hw, m, 1, 16, &layout));
    }
}

static inline swap_results swap_report(const swap_hardware* hw, const swap_hardware* h200,
                                       paper_criteria* criteria) {
    swap_results r;

    /* The tables; each fills its results. */
    memset(&r, 0, sizeof r);
    swap_report_ablation(hw, &r);
    swap_report_cells(hw, &r);
    swap_report_intervals(hw, &r);
    swap_report_alpha(hw, &r);
    swap_report_figures(hw, &r);
    swap_report_h200(h200);

    /* The criteria of these results. */
    paper_print("\nMEMO: criteria\n");
    paper_criterion(criteria, r.n_right_ablation == 24,
                    "%d of 24 verdicts of Table 4's planned rows", r.n_right_ablation);
    paper_criterion(criteria, r.n_right_7b == 12, "%d of 12 verdicts of Table 3's 7B row",
                    r.n_right_7b);
    paper_criterion(criteria, r.ablation_error <= 0.75,
                    "MFU error on Table 4's %d values: %.2f <= 0.75 points", r.n_fitted,
                    r.ablation_error);
    paper_criterion(criteria, r.cells_error <= 1.25,
                    "MFU error on Table 3's %d MEMO cells: %.2f <= 1.25 points", r.n_cells,
                    r.cells_error);
    for (int i = 0; i < SWAP_N_MODELS; i++)
        paper_criterion(criteria, r.model_error[i] <= 2, "MFU error, %s: %.2f <= 2 points",
                        swap_models[i].name, r.model_error[i]);
    paper_criterion(criteria, fabs(r.hidden_from_k / SWAP_PUBLISHED_HIDDEN_K - 1) <= 0.25,
                    "Figure 1(b): %.0fK within 25 %% of 192K", r.hidden_from_k);
    paper_criterion(criteria, r.n_plan_longer == 0,
                    "shortest step longer than the published alpha's: in %d of %d (by "
                    "construction: searched too)",
                    r.n_plan_longer, r.n_plan_compared);
    paper_criterion(criteria, r.n_planned_longer == 0,
                    "memo_plan_swap's step longer than the published alpha's: in %d of %d",
                    r.n_planned_longer, r.n_plan_compared);

    /* Wrong verdicts are listed, and are no criterion. */
    for (int i = 0; i < SWAP_N_MODELS; i++) {
        for (int j = 0; j < SWAP_N_LENGTHS; j++)
            if (!swap_same_verdict(swap_cell_verdict(hw, i, j), swap_published_alpha[i][j])) {
                char published[32], predicted[32];
                double verdict = swap_cell_verdict(hw, i, j);
                paper_print(
                    "  [miss] not a criterion: Table 3's %s at %.0fK, published %s, predicted %s\n",
                    swap_models[i].name, swap_lengths_k[j],
                    swap_published_alpha[i][j] < 0
                        ? swap_cell_text(swap_published_alpha[i][j], published, "%.0f")
                        : "runs",
                    verdict < 0 ? swap_cell_text(verdict, predicted, "%.0f") : "runs");
            }
    }
    return r;
}

#endif /* PAPER_MEMO_H */
