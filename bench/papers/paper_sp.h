/* paper_sp.h - "A Unified Sequence Parallelism Approach for Long Context Generative AI": its
 * Tables 3 to 7 and its seven tips, from the cost model of layouts in memo_layout.h.
 *
 * Knows: the paper's tables, clusters and sentences.  Knows nothing of how a layout is costed.
 * Symbols of the paper: L or S tokens of a sequence, d hidden size, bs batch, G query heads of a
 * key/value head, P parameters, N GPUs, hc heads. */
#ifndef PAPER_SP_H
#define PAPER_SP_H

#include "paper_common.h"

/* ---- the paper's layouts, as the planner takes them ------------------------------------------ */

typedef struct layout_model {
    const char* name;
    memo_parallel_model shape;
} layout_model;

typedef memo_parallel_cluster layout_cluster;

/* Its activations are kept. */
static inline memo_parallel_layout layout_of(int data, int pipeline, int tensor, int ulysses,
                                             int ring, int zero_stage) {
    const memo_parallel_layout l = {data,       pipeline,           tensor, ring, ulysses,
                                    zero_stage, MEMO_PARALLEL_KEEP, 1,      1};
    return l;
}

/* The paper's conditions: degrees divide the heads, and the ring sends gradients in bf16. */
static inline memo_parallel_desc layout_desc(const layout_model* m, const layout_cluster* c,
                                             double tokens, int batch, int micro_batch) {
    memo_parallel_desc desc = MEMO_ZERO(memo_parallel_desc);
    desc.model = m->shape;
    desc.cluster = *c;
    desc.sequence = (int64_t)tokens;
    desc.global_batch = batch;
    desc.micro_batch = micro_batch;
    desc.kv_heads_must_divide = 1;
    desc.kv_gradient_bytes = 2;
    desc.excludes_attention_memory = desc.max_ulysses_groups = 1;
    return desc;
}

/* All zero, with a printed message, if the planner refuses the layout. */
static inline memo_parallel_prediction layout_predict(const layout_model* m,
                                                      const layout_cluster* c,
                                                      memo_parallel_layout l, double tokens,
                                                      int batch, int micro_batch) {
    memo_parallel_desc desc = layout_desc(m, c, tokens, batch, micro_batch);
    memo_parallel_prediction prediction;
    memo_error error;
    if (memo_parallel_predict(&desc, &l, &prediction, &error))
        paper_print("  refused: %s\n", error.message);
    return prediction;
}

/* NULL, or the reason why the layout is illegal. */
static inline const char* layout_refusal(const layout_model* m, const layout_cluster* c,
                                         memo_parallel_layout l, int batch, char* text,
                                         size_t size) {
    memo_parallel_desc desc = layout_desc(m, c, 65536, batch, 1);
    memo_parallel_prediction p;
    memo_error error;
    if (!memo_parallel_predict(&desc, &l, &p, &error)) return NULL;
    (void)snprintf(text, size, "%.*s", (int)size - 1, error.message);
    return text;
}

/* The longest sequence, in whole K, that fits. */
static inline double layout_longest_k(const layout_model* m, const layout_cluster* c,
                                      memo_parallel_layout l) {
    memo_parallel_desc desc = layout_desc(m, c, 0, l.data, 1);
    memo_parallel_prediction p;
    int64_t low = 0, high = 1 << 20; /* low fit, high do not; memory grows with the length */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        desc.sequence = middle * (int64_t)PAPER_K;
        if (!memo_parallel_predict(&desc, &l, &p, NULL) && p.fits)
            low = middle;
        else
            high = middle;
    }
    return (double)low;
}

/* The paper's units of communication of a block: activations in bs L d / degree ... */
static inline double layout_activation_units(const layout_model* m, memo_parallel_kind kind,
                                             int degree) {
    memo_parallel_layout row = layout_of(1, 1, 1, 1, 1, 0);
    memo_parallel_prediction p;
    layout_cluster c;
    memset(&c, 0, sizeof c);
    c.n_gpus = c.gpus_per_node = degree;
    c.device_bytes = 1;
    c.peak_flops_per_s = c.link_bytes_per_s = 1;
    *(kind == MEMO_PARALLEL_TENSOR ? &row.tensor : &row.ulysses) = degree;
    p = layout_predict(m, &c, row, 65536, 1, 1);
    /* The paper leaves out the row dots, of fp32. */
    if (kind == MEMO_PARALLEL_ULYSSES)
        p.sent_bytes[kind] -=
            m->shape.n_layers * 4.0 * 65536 / degree * m->shape.n_q_heads * (degree - 1) / degree;
    /* All-gathers and reduce-scatters move the whole tensor, an all-to-all a rank's share. */
    return p.sent_bytes[kind] / m->shape.n_layers / (2.0 * 65536 * m->shape.hidden) *
           (kind == MEMO_PARALLEL_TENSOR ? 1 : degree) * degree / (degree - 1);
}
/* ... and parameters with gradients: 6 d^2 a pass, an all-gather or a reduce-scatter. */
static inline double layout_parameter_units(int zero_stage) {
    static const layout_model one = {"one layer", {1, 4096, 4096, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0}};
    memo_parallel_layout row = layout_of(1, 1, 1, 1, 8, 0);
    memo_parallel_prediction p;
    layout_cluster c;
    double stay;
    memset(&c, 0, sizeof c);
    c.n_gpus = c.gpus_per_node = 8;
    c.device_bytes = 1;
    c.peak_flops_per_s = c.link_bytes_per_s = 1;
    row.zero_stage = zero_stage;
    p = layout_predict(&one, &c, row, 65536, 1, 1);
    stay = memo_parallel_parameters(&one.shape) * 7 / 8;
    return 6 *
           (p.sent_bytes[MEMO_PARALLEL_GRADIENTS] / 4 +
            p.sent_bytes[MEMO_PARALLEL_PARAMETERS] / 2) /
           stay;
}

/* ---- the paper's tables ---------------------------------------------------------------------- */

static const layout_model sp_llama2_7b = {"LLAMA2-7B",
                                          {32, 4096, 11008, 32, 32, 0, 0, 0, 0, 32000, 0, 0, 0}};
static const layout_model sp_llama3_8b = {"LLAMA3-8B",
                                          {32, 4096, 14336, 32, 8, 0, 0, 0, 0, 128256, 0, 0, 0}};

typedef struct sp_row {
    double length_k;
    int batch, data, tensor, ulysses, ring;
    double tflops; /* published, per GPU; 0: out of memory */
} sp_row;

#define SP_N_TABLE5 9
static const sp_row sp_table5[SP_N_TABLE5] = {
    {64, 1, 1, 4, 2, 1, 260.2},  {64, 1, 1, 4, 1, 2, 255},    {64, 1, 1, 8, 1, 1, 238.9},
    {30, 16, 1, 1, 8, 1, 250.6}, {30, 16, 1, 2, 4, 1, 239.2}, {30, 16, 2, 4, 1, 1, 230.1},
    {30, 16, 1, 2, 1, 4, 226.6}, {30, 16, 1, 1, 1, 8, 218},   {30, 16, 1, 8, 1, 1, 198}};

#define SP_N_TABLE6 26
static const sp_row sp_table6[SP_N_TABLE6] = {
    {64, 1, 1, 1, 8, 2, 220.3},  {64, 1, 1, 1, 4, 4, 222.2},  {64, 1, 1, 1, 2, 8, 209.2},
    {64, 1, 1, 1, 1, 16, 196.9}, {64, 1, 1, 8, 1, 2, 209.7},  {64, 1, 1, 4, 2, 2, 197.9},
    {64, 1, 1, 4, 1, 4, 198.1},  {64, 1, 1, 2, 4, 2, 141.7},  {64, 1, 1, 2, 2, 4, 144.4},
    {64, 1, 1, 2, 1, 8, 163.8},  {64, 2, 2, 8, 1, 1, 228.2},  {80, 1, 1, 1, 8, 2, 245.4},
    {80, 1, 1, 1, 4, 4, 247.8},  {80, 1, 1, 1, 2, 8, 233.2},  {80, 1, 1, 1, 1, 16, 221.1},
    {80, 1, 1, 8, 1, 2, 226.6},  {80, 1, 1, 4, 2, 2, 228.8},  {80, 1, 1, 4, 1, 4, 216.8},
    {80, 1, 1, 2, 4, 2, 184.8},  {80, 1, 1, 2, 2, 4, 184.4},  {80, 1, 1, 2, 1, 8, 201.6},
    {80, 2, 2, 8, 1, 1, 240.3},  {120, 1, 1, 8, 1, 2, 254.5}, {120, 1, 1, 4, 2, 2, 266},
    {120, 1, 1, 4, 1, 4, 263.3}, {120, 1, 1, 2, 4, 2, 238.3}};

#define SP_N_TABLE7 5
static const sp_row sp_table7[SP_N_TABLE7] = {{160, 1, 1, 4, 2, 2, 284.5},
                                              {160, 1, 1, 8, 1, 2, 280.9},
                                              {160, 1, 1, 4, 1, 4, 285.8},
                                              {190, 1, 1, 4, 1, 4, 285.8},
                                              {208, 1, 1, 8, 1, 2, 269.8}};

/* Table 3, 8 x A100 NVLink, and Table 4, 8 x L20 PCIe: attention alone, iterations a second, batch
 * 1, 32 heads, 8 key/value heads of 128; ulysses 8, 4, 2, 1 and ring = 8 / ulysses; basic and
 * balanced. */
#define SP_N_ATTENTION 5
#define SP_N_DEGREES   4
typedef struct sp_attention_table {
    const char* name;
    double length_k;
    int has_backward; /* the printed "forward only" at 128K on A100 would be 51 TFLOP/s */
    double iterations[SP_N_DEGREES][2];
} sp_attention_table;
static const int sp_degrees[SP_N_DEGREES] = {8, 4, 2, 1};
static const sp_attention_table sp_attention_tables[SP_N_ATTENTION] = {
    {"Table 3, A100",
     32,
     0,
     {{135.569, 136.375}, {103.525, 132.979}, {91.365, 132.979}, {81.985, 113.79}}},
    {"Table 3, A100", 128, 1, {{2.782, 2.785}, {2.024, 2.771}, {1.73, 2.89}, {1.628, 2.91}}},
    {"Table 4, L20",
     8,
     0,
     {{57.346, 57.098}, {153.134, 152.189}, {415.5, 454.93}, {358.595, 361.969}}},
    {"Table 4, L20",
     32,
     0,
     {{15.229, 14.262}, {28.584, 32.818}, {44.348, 62.754}, {40.478, 58.377}}},
    {"Table 4, L20", 128, 0, {{2.563, 2.586}, {3.217, 4.235}, {3.399, 5.476}, {3.131, 5.186}}}};
static const layout_model sp_attention_model = {"attention",
                                                {1, 4096, 0, 32, 8, 0, 0, 0, 0, 0, 0, 0, 0}};

/* Runs that the text and the tables report as successful or out of memory. */
typedef struct sp_memory_statement {
    int is_llama3;
    double length_k;
    int micro_batch, ulysses, ring; /* sequence parallelism only */
    const char* where;
} sp_memory_statement;
#define SP_N_OOM 13
static const sp_memory_statement sp_oom[SP_N_OOM] = {
    {0, 64, 1, 8, 1, "Table 5's text"},        {1, 120, 1, 8, 2, "Table 6's text"},
    {1, 120, 1, 4, 4, "Table 6's text"},       {1, 120, 1, 2, 8, "Table 6's text"},
    {1, 120, 1, 1, 16, "Table 6's text"},      {1, 64, 2, 8, 2, "Section 5.4, batch 2"},
    {1, 64, 2, 4, 4, "Section 5.4, batch 2"},  {1, 64, 2, 2, 8, "Section 5.4, batch 2"},
    {1, 64, 2, 1, 16, "Section 5.4, batch 2"}, {1, 80, 2, 8, 2, "Section 5.4, batch 2"},
    {1, 80, 2, 4, 4, "Section 5.4, batch 2"},  {1, 80, 2, 2, 8, "Section 5.4, batch 2"},
    {1, 80, 2, 1, 16, "Section 5.4, batch 2"}};

static inline layout_cluster sp_a800(int n_gpus) {
    layout_cluster c;
    memset(&c, 0, sizeof c);
    c.n_gpus = n_gpus;
    c.gpus_per_node = 8;
    c.device_bytes = (int64_t)(80 * PAPER_GIB);
    c.peak_flops_per_s = 312e12;
    c.gemm_efficiency = 0.75;
    c.attention_forward_efficiency = 0.60;
    c.attention_backward_efficiency = 0.55;
    c.link_bytes_per_s = 150e9;
    c.nic_bytes_per_s = 20e9;
    c.device_memory_bytes_per_s = 1.5e12;
    c.collective_s = 20e-6;
    c.block_s = 20e-6;
    c.merge_bytes = 30;
    return c;
}

/* Eight L20 on PCIe; fields not set here are as above. */
static inline layout_cluster sp_l20(void) {
    layout_cluster c = sp_a800(8);
    c.device_bytes = (int64_t)(48 * PAPER_GIB);
    c.peak_flops_per_s = 119.5e12;
    c.attention_forward_efficiency = 0.85;
    c.attention_backward_efficiency = 0.75;
    c.link_bytes_per_s = 8e9;
    c.is_shared_bus = 1;
    c.device_memory_bytes_per_s = 0.65e12;
    return c;
}

/* ---- reports --------------------------------------------------------------------------------- */

static inline void sp_print_constants(void) {
    layout_cluster a = sp_a800(16), l = sp_l20();
    paper_constant c[] = {
        {"A800 and A100 peak", a.peak_flops_per_s / 1e12, "TFLOP/s", PAPER_STATED,
         "MFU = figure / 312", 0, 0},
        {"GEMM efficiency", a.gemm_efficiency, "of peak", PAPER_ASSUMED, "large bf16 GEMMs", 0, 0},
        {"attention efficiency, forward", a.attention_forward_efficiency, "of peak", PAPER_ASSUMED,
         "of the causal half", 0, 0},
        {"attention efficiency, backward", a.attention_backward_efficiency, "of peak",
         PAPER_ASSUMED, "of the causal half", 0, 0},
        {"NVLink of one GPU, each way", a.link_bytes_per_s / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "400 GB/s stated: 75 % of 200 each way", 0, 0},
        {"NIC of one GPU, each way", a.nic_bytes_per_s / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "1.6 Tb/s a node stated: 80 % of 25 a GPU", 0, 0},
        {"NICs of a group with part of a node", 1, "", PAPER_FITTED, "on Table 6's tensor-2 rows",
         0, 0},
        {"start of a collective or hop", a.collective_s * 1e6, "us", PAPER_ASSUMED, "NCCL", 0, 0},
        {"start of a ring block", a.block_s * 1e6, "us", PAPER_ASSUMED, "kernel launches", 0, 0},
        {"merge of a ring block", a.merge_bytes, "B", PAPER_FITTED,
         "an element; by hand, on Table 5's rings", 0, 0},
        {"gradients of K, V on the ring", 2, "B", PAPER_ASSUMED, "bf16, as K and V", 0, 0},
        {"A800 memory", a.device_memory_bytes_per_s / 1e12, "TB/s", PAPER_ASSUMED, "75 % of 2.0", 0,
         0},
        {"device memory", (double)a.device_bytes / PAPER_GIB, "GiB", PAPER_STATED, "Section 5.2", 0,
         0},
        {"parameters, gradients, optimizer", 18, "B", PAPER_ASSUMED,
         "2 + 4, and 12 shared by ZeRO-1; logits 6", 0, 0},
        {"L20 peak", l.peak_flops_per_s / 1e12, "TFLOP/s", PAPER_ASSUMED, "data sheet, dense fp16",
         0, 0},
        {"L20 attention efficiency, forward", l.attention_forward_efficiency, "of peak",
         PAPER_FITTED, "by hand, on Table 4 at 128K", 0, 0},
        {"L20 PCIe of one GPU, each way", l.link_bytes_per_s / PAPER_GB, "GB/s", PAPER_FITTED,
         "by hand, on Table 4; all-to-all: /(n-1)", 0, 0},
        {"L20 memory", l.device_memory_bytes_per_s / 1e12, "TB/s", PAPER_ASSUMED, "75 % of 0.864",
         0, 0}};

    paper_print_constants("Unified sequence parallelism", c, PAPER_N(c), NULL);
}

static inline memo_parallel_layout sp_row_layout(const sp_row* r) { /* one rank shards nothing */
    return layout_of(r->data, 1, r->tensor, r->ulysses, r->ring,
                     r->data * r->ulysses * r->ring > 1);
}

/* The paper's count: 6 P' per token, P' without the embedding, and 12 S h per layer for full
 * attention. */
static inline double sp_flops(const layout_model* m, const sp_row* row) {
    double tokens = row->length_k * PAPER_K;
    const memo_parallel_model* s = &m->shape;
    double weights =
        s->n_layers * memo_parallel_layer_parameters(s) + (double)s->vocabulary * s->hidden;
    return row->batch * tokens * (6 * weights + 12.0 * s->n_layers * tokens * s->hidden);
}

static inline double sp_predicted_tflops(const layout_model* m, const layout_cluster* c,
                                         const sp_row* row, memo_parallel_prediction* p) {
    *p = layout_predict(m, c, sp_row_layout(row), row->length_k * PAPER_K, row->batch, 1);
    return sp_flops(m, row) / p->time.step_s / c->n_gpus / 1e12;
}

typedef struct sp_score {
    double spearman, by_length, error_percent;
} sp_score;

static inline sp_score sp_score_rows(const layout_model* m, const layout_cluster* c,
                                     const sp_row* rows, int n_rows) {
    double predicted[PAPER_MAX], published[PAPER_MAX], length[PAPER_MAX], residuals[PAPER_MAX];
    memo_parallel_prediction p;
    sp_score score;
    for (int i = 0; i < n_rows; i++) {
        predicted[i] = sp_predicted_tflops(m, c, &rows[i], &p);
        published[i] = rows[i].tflops;
        length[i] = rows[i].length_k;
        residuals[i] = 100 * (predicted[i] / published[i] - 1);
    }
    score.spearman = paper_spearman(predicted, published, n_rows);
    score.by_length = paper_spearman(length, published, n_rows);
    score.error_percent = paper_mean_absolute(residuals, n_rows);
    return score;
}

/* Prints the rows; returns how many of them fit by the memory formula. */
static inline int sp_print_rows(const char* title, const layout_model* m, const layout_cluster* c,
                                const sp_row* rows, int n_rows) {
    int n_fit = 0;
    paper_print("\n%s: %s on %d A800, TFLOP/s per GPU, terms in seconds of a step\n"
                "  length batch data layout    published predicted  resid     GEMM  attn.   ring "
                "ulysses tensor"
                "  ZeRO-1    GiB\n",
                title, m->name, c->n_gpus);
    for (int i = 0; i < n_rows; i++) {
        const sp_row* r = &rows[i];
        memo_parallel_prediction p;
        double predicted = sp_predicted_tflops(m, c, r, &p);
        char layout[32];
        (void)snprintf(layout, sizeof layout, "%d-%d-%d", r->tensor, r->ulysses, r->ring);
        paper_print(
            "  %5.0fK %5d %4d  %-9s %8.1f  %8.1f  %+5.1f %%  %6.2f %6.2f %6.2f  %6.2f %6.2f  %6.2f "
            " %5.1f\n",
            r->length_k, r->batch, r->data, layout, r->tflops, predicted,
            100 * (predicted / r->tflops - 1), p.time.gemm_s, p.time.attention_s, p.time.ring_s,
            p.time.ulysses_s, p.time.tensor_s, p.time.zero_s, p.memory.device_bytes / PAPER_GIB);
        n_fit += p.fits;
    }
    return n_fit;
}

typedef struct sp_results {
    double attention_spearman[SP_N_ATTENTION], attention_mean;
    sp_score table5, table6, table6_64k, table6_80k;
    int n_ran, n_ran_right, n_oom_right;
    int is_tip[7];
} sp_results;

/* Seconds of one iteration of attention alone. */
static inline double sp_attention_s(const layout_cluster* c, memo_parallel_layout l, double tokens,
                                    int has_backward, int is_balanced,
                                    memo_parallel_attention* sum) {
    memo_parallel_desc desc = layout_desc(&sp_attention_model, c, tokens, 1, 1);
    memo_parallel_prediction p;
    desc.is_contiguous = !is_balanced;
    memset(sum, 0, sizeof *sum);
    if (memo_parallel_predict(&desc, &l, &p, NULL)) return INFINITY; /* no row has such degrees */
    *sum = p.forward;
    if (has_backward) {
        sum->compute_s += p.backward.compute_s;
        sum->hops_s += p.backward.hops_s;
        sum->blocks_s += p.backward.blocks_s;
        sum->all_to_all_s += p.backward.all_to_all_s;
    }
    return sum->compute_s + sum->hops_s + sum->blocks_s + sum->all_to_all_s;
}

static inline void sp_report_attention(sp_results* r) {
    r->attention_mean = 0;
    paper_print(
        "\nTables 3 and 4: attention alone on 8 GPUs, iterations/s; terms in ms of an iteration\n"
        "                        ulysses ring layout     published predicted   resid   compute   "
        "hops  "
        "blocks  all-to-all\n");

    for (int table = 0; table < SP_N_ATTENTION; table++) {
        const sp_attention_table* t = &sp_attention_tables[table];
        layout_cluster c = table < 2 ? sp_a800(8) : sp_l20();
        double predicted[2 * SP_N_DEGREES], published[2 * SP_N_DEGREES];
        int n = 0;
        for (int i = 0; i < SP_N_DEGREES; i++)
            for (int balanced = 0; balanced < 2; balanced++, n++) {
                memo_parallel_layout l = layout_of(1, 1, 1, 0, 0, 0);
                memo_parallel_attention a;
                l.ulysses = sp_degrees[i];
                l.ring = 8 / l.ulysses;
                predicted[n] =
                    1 / sp_attention_s(&c, l, t->length_k * PAPER_K, t->has_backward, balanced, &a);
                published[n] = t->iterations[i][balanced];
                paper_print(
                    "  %-13s %4.0fK  %7d %4d %-9s %10.3f %9.3f  %+5.0f %%  %8.2f %6.2f %7.2f  "
                    "%10.2f\n",
                    t->name, t->length_k, l.ulysses, l.ring, balanced ? "balanced" : "basic",
                    published[n], predicted[n], 100 * (predicted[n] / published[n] - 1),
                    1e3 * a.compute_s, 1e3 * a.hops_s, 1e3 * a.blocks_s, 1e3 * a.all_to_all_s);
            }

        /* The degree of order counts, not the rates: the efficiencies are assumed. */
        r->attention_spearman[table] = paper_spearman(predicted, published, n);
        r->attention_mean += r->attention_spearman[table] / SP_N_ATTENTION;
        paper_print("  %-13s %4.0fK, %s: Spearman %.2f\n", t->name, t->length_k,
                    t->has_backward ? "forward and backward" : "forward",
                    r->attention_spearman[table]);
    }

    paper_print("  mean of the five: %.2f\n", r->attention_mean);
}

static inline void sp_print_score(const char* name, sp_score s) {
    paper_print("  %-20s Spearman %.2f (by length alone %.2f), mean error %.1f %%\n", name,
                s.spearman, s.by_length, s.error_percent);
}

static inline void sp_report_memory(sp_results* r) {
    layout_cluster node = sp_a800(8);
    paper_print(
        "\nMemory: what did not run, on %.0f GiB\n  model      length micro-batch ulysses ring  "
        "  GiB\n",
        (double)node.device_bytes / PAPER_GIB);
    for (int i = 0; i < SP_N_OOM; i++) {
        const sp_memory_statement* s = &sp_oom[i];
        const layout_model* m = s->is_llama3 ? &sp_llama3_8b : &sp_llama2_7b;
        memo_parallel_layout l = layout_of(1, 1, 1, 0, 0, 1);
        layout_cluster c = sp_a800(s->ulysses * s->ring);
        memo_parallel_prediction p;
        l.ulysses = s->ulysses;
        l.ring = s->ring;
        p = layout_predict(m, &c, l, s->length_k * PAPER_K, s->micro_batch, s->micro_batch);
        paper_print("  %-10s %5.0fK %11d %7d %4d  %5.1f %s  %s\n", m->name, s->length_k,
                    s->micro_batch, s->ulysses, s->ring, p.memory.device_bytes / PAPER_GIB,
                    !p.fits ? "out of memory" : "would run: MISS", s->where);
        r->n_oom_right += !p.fits;
    }
}

/* ---- the seven tips, as sentences that the cost model makes true or not ---- */

static inline double sp_time(const layout_model* m, const layout_cluster* c, memo_parallel_layout l,
                             double length_k, int batch, int micro_batch) {
    return layout_predict(m, c, l, length_k * PAPER_K, batch, micro_batch).time.step_s;
}

/* Legal layouts with activations kept and the default ZeRO stage. */
static inline memo_parallel_list* sp_list(const layout_model* m, const layout_cluster* c,
                                          double length_k, int batch, int max_pipeline) {
    memo_parallel_desc desc = layout_desc(m, c, length_k * PAPER_K, batch, 1);
    memo_parallel_list* list;
    int64_t n = 0;
    desc.zero_stages = 1u << 0 | 1u << 1;
    desc.activations = 1u << MEMO_PARALLEL_KEEP;
    desc.max_pipeline = max_pipeline;
    if (memo_plan_layouts(&desc, &list, NULL)) return NULL;
    for (int64_t i = 0; i < list->n_legal; i++)
        if (list->entries[i].layout.zero_stage ==
            memo_parallel_zero_default(&list->entries[i].layout))
            list->entries[n++] = list->entries[i];
    list->n_legal = n;
    return list;
}

static inline int sp_tip1(char* text, size_t size) {
    layout_cluster c = sp_a800(16);
    int n_listed = 0, is_mixed = 1;
    char best[2][16];
    for (int at = 0; at < 2; at++) {
        memo_parallel_list* list = sp_list(&sp_llama3_8b, &c, 64 + 16 * at, 1, 1);
        const memo_parallel_layout* first = NULL; /* the list is sorted by time */
        for (int64_t i = 0; list && i < list->n_legal; i++) {
            const memo_parallel_layout* l = &list->entries[i].layout;
            if (l->tensor > 1 || l->data > 1) continue;
            n_listed += l->ulysses <= 8;
            if (!first) first = l;
        }
        is_mixed = is_mixed && first && first->ulysses > 1 && first->ring > 1;
        (void)snprintf(best[at], sizeof best[at], "%dx%d", first ? (int)first->ulysses : 0,
                       first ? (int)first->ring : 0);
        memo_parallel_list_destroy(list);
    }
    (void)snprintf(text, size,
                   "tip 1: 16 GPUs: %d of 4 ulysses x ring pairs listed; best SP-only layout %s at "
                   "64K, %s at 80K",
                   n_listed / 2, best[0], best[1]);
    return n_listed == 8 && is_mixed;
}

static inline int sp_tip2(char* text, size_t size) {
    layout_cluster c = sp_a800(8);
    double k, least = 1e9;
    for (k = 4; k <= 32; k *= 2)
        for (int u = 1; u <= 8; u *= 2)
            for (int micro = 1; micro <= 8; micro *= 2) {
                memo_parallel_layout data = layout_of(8, 1, 1, 1, 1, 1),
                                     sequence = layout_of(1, 1, 1, 1, 1, 1);
                sequence.ulysses = u;
                sequence.ring = 8 / u;
                least = paper_min(least, sp_time(&sp_llama2_7b, &c, sequence, k, 8, micro) /
                                             sp_time(&sp_llama2_7b, &c, data, k, 8, 1));
            }
    (void)snprintf(
        text, size,
        "tip 2: LLAMA2-7B, batch 8, 8 GPUs, 4K to 32K: any SP layout takes at least %.3f of "
        "data 8's time",
        least);
    return least > 1;
}

static inline int sp_tip3(char* text, size_t size) {
    const memo_parallel_layout l = layout_of(2, 1, 2, 2, 4, 1);
    layout_cluster c = sp_a800(32);
    memo_parallel_prediction p = layout_predict(&sp_llama3_8b, &c, l, 65536, 2, 1);
    double local = memo_parallel_parameters(&sp_llama3_8b.shape) / 2;
    int group = (int)memo_parallel_zero_group(&l);
    int is_group = group == 16 && fabs(p.memory.optimizer_bytes - 12 * local / 16) < 1;
    int is_traffic = fabs(layout_parameter_units(0) - 12) < 1e-9 &&
                     fabs(layout_parameter_units(1) - 12) < 1e-9 &&
                     fabs(layout_parameter_units(2) - 12) < 1e-9 &&
                     fabs(layout_parameter_units(3) - 18) < 1e-9;
    (void)snprintf(text, size,
                   "tip 3: sp 8 x dp 2: ZeRO group %d, optimizer 12 P_local/%d; %.0f d^2 sent, "
                   "ZeRO-3 %.0f; default with sp > 1: %d",
                   group, group, layout_parameter_units(1), layout_parameter_units(3),
                   (int)memo_parallel_zero_default(&l));
    return is_group && is_traffic && memo_parallel_zero_default(&l) >= 1;
}

static inline int sp_tip4(char* text, size_t size) {
    layout_cluster c = sp_a800(8);
    memo_parallel_layout ring = layout_of(1, 1, 1, 1, 8, 1);
    double with_groups = layout_activation_units(&sp_llama3_8b, MEMO_PARALLEL_ULYSSES, 8);
    double without = layout_activation_units(&sp_llama2_7b, MEMO_PARALLEL_ULYSSES, 8);
    double tensor = layout_activation_units(&sp_llama3_8b, MEMO_PARALLEL_TENSOR, 8);
    double ratio =
        layout_predict(&sp_llama3_8b, &c, ring, 65536, 1, 1).sent_bytes[MEMO_PARALLEL_RING] /
        layout_predict(&sp_llama2_7b, &c, ring, 65536, 1, 1).sent_bytes[MEMO_PARALLEL_RING];
    (void)snprintf(
        text, size,
        "tip 4: units of bs L d: ulysses %.0f (LLAMA3, G = 4), %.0f (LLAMA2, G = 1), tensor-sp "
        "%.0f; ring bytes, G = 4 : 1, %.2f",
        with_groups, without, tensor, ratio);
    return fabs(with_groups - 5) < 1e-9 && fabs(without - 8) < 1e-9 && fabs(tensor - 8) < 1e-9 &&
           fabs(ratio - 0.25) < 1e-9;
}

static inline int sp_tip5(char* text, size_t size) {
    layout_cluster c = sp_a800(16);
    memo_parallel_layout sequence = layout_of(1, 1, 1, 8, 2, 1),
                         tensor = layout_of(1, 1, 8, 1, 2, 1);
    double zero1 = layout_longest_k(&sp_llama3_8b, &c, sequence), zero3, mixed;
    sequence.zero_stage = 3;
    zero3 = layout_longest_k(&sp_llama3_8b, &c, sequence);
    mixed = layout_longest_k(&sp_llama3_8b, &c, tensor);
    (void)snprintf(
        text, size,
        "tip 5: 16 GPUs, LLAMA3-8B, longest: SP + ZeRO-1 %.0fK < tensor 8 x ring 2 %.0fK; SP + "
        "ZeRO-3 %.0fK (%+.1f %%)",
        zero1, mixed, zero3, 100 * (zero3 / mixed - 1));
    return zero1 < mixed && fabs(zero3 / mixed - 1) <= 0.05;
}

static inline int sp_tip6(char* text, size_t size) {
    layout_cluster c = sp_a800(16);
    memo_parallel_layout refused = layout_of(1, 1, 16, 1, 1, 1), l = layout_of(1, 1, 1, 8, 0, 3);
    double longest[3];
    char reason[128] = "tensor 16 is not refused";
    int is_refused;
    is_refused = layout_refusal(&sp_llama3_8b, &c, refused, 1, reason, sizeof reason) != NULL;
    for (int i = 0; i < 3; i++) {
        layout_cluster grown = sp_a800(16 << i);
        l.ring = 2 << i;
        longest[i] = layout_longest_k(&sp_llama3_8b, &grown, l);
    }
    (void)snprintf(text, size,
                   "tip 6: %.*s; ulysses 8 with ZeRO-3: %.0fK, %.0fK, %.0fK on 16, 32, 64",
                   (int)strcspn(reason, ","), reason, longest[0], longest[1], longest[2]);
    return is_refused && longest[1] > longest[0] && longest[2] > longest[1];
}

static inline int sp_tip7(char* text, size_t size) {
    layout_cluster c = sp_a800(64);
    memo_parallel_list* list = sp_list(&sp_llama3_8b, &c, 64, 64, 4);
    int64_t n = list ? list->n_legal : 0, n_bad = 0;

    /* Every rank must occur once, and a group that fits in a node must stay in it. */
    for (int64_t i = 0; i < n; i++) {
        const memo_parallel_layout* l = &list->entries[i].layout;
        char seen[64] = {0};
        for (int p = 0; p < l->pipeline; p++)
            for (int d = 0; d < l->data; d++)
                for (int r = 0; r < l->ring; r++) {
                    int64_t node = memo_parallel_rank(l, 0, 0, r, d, p) / c.gpus_per_node;
                    for (int u = 0; u < l->ulysses; u++)
                        for (int t = 0; t < l->tensor; t++) {
                            int64_t rank = memo_parallel_rank(l, t, u, r, d, p);
                            if (rank < 0 || rank >= c.n_gpus || seen[rank]++) n_bad++;
                            n_bad += c.gpus_per_node % (l->tensor * l->ulysses) == 0 &&
                                     rank / c.gpus_per_node != node;
                        }
                }
    }

    memo_parallel_list_destroy(list);
    (void)snprintf(
        text, size,
        "tip 7: rank = t + T(u + U(r + R(d + D p))): %d layouts of 64 GPUs, %d ranks twice or "
        "groups across nodes",
        (int)n, (int)n_bad);
    return n > 0 && n_bad == 0;
}

static inline sp_results sp_report(paper_criteria* criteria) {
    static int (*const tips[7])(char*, size_t) = {sp_tip1, sp_tip2, sp_tip3, sp_tip4,
                                                  sp_tip5, sp_tip6, sp_tip7};
    layout_cluster node = sp_a800(8), two_nodes = sp_a800(16);
    sp_results r;
    char text[160];

    /* The tables; each fills its results. */
    memset(&r, 0, sizeof r);
    sp_report_attention(&r);
    r.n_ran = SP_N_TABLE5 + SP_N_TABLE6 + SP_N_TABLE7;
    r.n_ran_right = sp_print_rows("Table 5", &sp_llama2_7b, &node, sp_table5, SP_N_TABLE5);
    r.n_ran_right += sp_print_rows("Table 6", &sp_llama3_8b, &two_nodes, sp_table6, SP_N_TABLE6);
    r.n_ran_right +=
        sp_print_rows("Table 7, not scored", &sp_llama3_8b, &two_nodes, sp_table7, SP_N_TABLE7);

    /* Scores of the tables with enough rows. */
    r.table5 = sp_score_rows(&sp_llama2_7b, &node, sp_table5, SP_N_TABLE5);
    r.table6 = sp_score_rows(&sp_llama3_8b, &two_nodes, sp_table6, SP_N_TABLE6);
    r.table6_64k = sp_score_rows(&sp_llama3_8b, &two_nodes, sp_table6, 11);
    r.table6_80k = sp_score_rows(&sp_llama3_8b, &two_nodes, sp_table6 + 11, 11);
    paper_print("\n");
    sp_print_score("Table 5, 9 rows", r.table5);
    sp_print_score("Table 6, 26 rows", r.table6);
    sp_print_score("Table 6, 64K", r.table6_64k);
    sp_print_score("Table 6, 80K", r.table6_80k);
    paper_print(
        "  Layouts read tensor-ulysses-ring.\n"
        "  Tensor-2 rows: the gradient group holds half of a node's GPUs and gets one NIC, a rule "
        "found on this table\n  and not confirmed elsewhere.\n"
        "  Table 7: the figure at 190K repeats the one at 160K and is suspect.\n");

    sp_report_memory(&r);
    paper_print(
        "\nTable 2: activations sent by SP over parameters sent by ZeRO, d = 4096; published 1.33, "
        "5.33, 10.67\n  predicted");
    for (int i = 0; i < 3; i++) {
        static const double k[3] = {8, 32, 64};
        paper_print(" %.2f at %.0fK%s",
                    layout_activation_units(&sp_llama2_7b, MEMO_PARALLEL_ULYSSES, 8) * k[i] *
                        PAPER_K / layout_parameter_units(1) / 4096,
                    k[i], i < 2 ? "," : "\n");
    }

    /* The criteria of these results. */
    paper_print("\nUnified sequence parallelism: criteria\n");
    paper_criterion(criteria, r.attention_mean >= 0.7, "Tables 3 and 4: mean Spearman %.2f >= 0.70",
                    r.attention_mean);
    paper_criterion(criteria, r.table5.spearman >= 0.8, "Table 5: Spearman %.2f >= 0.80",
                    r.table5.spearman);
    paper_criterion(criteria, r.table6.spearman >= 0.85, "Table 6, 26 rows: Spearman %.2f >= 0.85",
                    r.table6.spearman);
    paper_criterion(criteria, r.table6_64k.spearman >= 0.7, "Table 6, 64K: Spearman %.2f >= 0.70",
                    r.table6_64k.spearman);
    paper_criterion(criteria, r.table6_80k.spearman >= 0.7, "Table 6, 80K: Spearman %.2f >= 0.70",
                    r.table6_80k.spearman);
    paper_criterion(criteria, r.n_ran_right == r.n_ran && r.n_oom_right == SP_N_OOM,
                    "memory: %d of %d rows that ran fit; %d of %d rows out of memory do not",
                    r.n_ran_right, r.n_ran, r.n_oom_right, SP_N_OOM);
    for (int i = 0; i < 7; i++) {
        r.is_tip[i] = tips[i](text, sizeof text);
        paper_criterion(criteria, r.is_tip[i], "%s", text);
    }
    return r;
}

#endif /* PAPER_SP_H */
