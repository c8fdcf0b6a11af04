/* paper_sp.h - "A Unified Sequence Parallelism Approach for Long Context Generative AI": its
 * Tables 2 to 7 and its seven tips, from the cost model of layouts in memo_layout.h.
 *
 * Knows: the paper's tables, clusters and sentences.  Knows nothing of how a layout is costed.
 * Symbols of the paper: L or S tokens of a sequence, d hidden size, bs batch, G query heads of a
 * key/value head, P parameters, N GPUs, hc heads. */
#ifndef PAPER_SP_H
#define PAPER_SP_H

#include "paper_common.h"

/* ---- the paper's tables ---------------------------------------------------------------------- */

typedef struct sp_model {
    const char* name;
    memo_parallel_model shape;
} sp_model;
static const sp_model sp_llama2_7b = {"LLAMA2-7B",
                                      {32, 4096, 11008, 32, 32, 0, 0, 0, 0, 32000, 0, 0, 0}};
static const sp_model sp_llama3_8b = {"LLAMA3-8B",
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
static const sp_model sp_attention_model = {"attention",
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

/* ---- constants: eight A800 or A100 of a node; eight L20 on PCIe ------------------------------ */

typedef memo_parallel_cluster sp_cluster;
#define AT(field) offsetof(sp_cluster, field)
/* clang-format off */
static const paper_constant sp_a800_constants[] = {
    {"A800 and A100 peak", 312, "TFLOP/s", STATED, "MFU = figure / 312",
     AT(peak_flops_per_s), 1e12},
    {"GEMM efficiency", 0.75, "of peak", ASSUMED, "large bf16 GEMMs", AT(gemm_efficiency), 1},
    {"attention efficiency, forward", 0.60, "of peak", ASSUMED, "of the causal half",
     AT(attention_forward_efficiency), 1},
    {"attention efficiency, backward", 0.55, "of peak", ASSUMED, "of the causal half",
     AT(attention_backward_efficiency), 1},
    {"NVLink of one GPU, each way", 150, "GB/s", ASSUMED, "400 GB/s stated: 75 % of 200 each way",
     AT(link_bytes_per_s), PAPER_GB},
    {"NIC of one GPU, each way", 20, "GB/s", ASSUMED, "1.6 Tb/s a node stated: 80 % of 25 a GPU",
     AT(nic_bytes_per_s), PAPER_GB},
    {"NICs of a group with part of a node", 1, "", FITTED, "on Table 6's tensor-2 rows", 0, 0},
    {"start of a collective or hop", 20, "us", ASSUMED, "NCCL", AT(collective_s), 1e-6},
    {"start of a ring block", 20, "us", ASSUMED, "kernel launches", AT(block_s), 1e-6},
    {"merge of a ring block", 30, "B", FITTED, "an element; by hand, on Table 5's rings",
     AT(merge_bytes), 1},
    {"gradients of K, V on the ring", 2, "B", ASSUMED, "bf16, as K and V", 0, 0},
    {"A800 memory", 1.5, "TB/s", ASSUMED, "75 % of 2.0", AT(device_memory_bytes_per_s), 1e12},
    {"device memory", 80, "GiB", STATED, "Section 5.2", 0, 0},
    {"parameters, gradients, optimizer", 18, "B", ASSUMED,
     "2 + 4, and 12 shared by ZeRO-1; logits 6", 0, 0}};
static const paper_constant sp_l20_constants[] = {
    {"L20 peak", 119.5, "TFLOP/s", ASSUMED, "data sheet, dense fp16", AT(peak_flops_per_s), 1e12},
    {"L20 attention efficiency, forward", 0.85, "of peak", FITTED, "by hand, on Table 4 at 128K",
     AT(attention_forward_efficiency), 1},
    {"L20 PCIe of one GPU, each way", 8, "GB/s", FITTED, "by hand, on Table 4; all-to-all: /(n-1)",
     AT(link_bytes_per_s), PAPER_GB},
    {"L20 memory", 0.65, "TB/s", ASSUMED, "75 % of 0.864", AT(device_memory_bytes_per_s), 1e12}};
/* clang-format on */
#undef AT

static void sp_print_constants(void) {
    paper_print("  Unified sequence parallelism\n");
    paper_print_constants(sp_a800_constants, PAPER_N(sp_a800_constants), NULL);
    paper_print_constants(sp_l20_constants, PAPER_N(sp_l20_constants), NULL);
}

/* ---- layouts, as the planner takes them ------------------------------------------------------ */

/* The paper's conditions: degrees divide the heads, and the ring sends gradients in bf16. */
static memo_parallel_desc sp_desc(const sp_model* m, int n_gpus, double length_k, int batch) {
    memo_parallel_desc desc = MEMO_ZERO(memo_parallel_desc);
    desc.model = m->shape;
    desc.cluster.n_gpus = n_gpus;
    desc.cluster.gpus_per_node = 8;
    desc.cluster.device_bytes = (int64_t)(80 * PAPER_GIB);
    paper_set_constants(&desc.cluster, sp_a800_constants, PAPER_N(sp_a800_constants));
    desc.sequence = (int64_t)(length_k * PAPER_K);
    desc.global_batch = batch;
    desc.kv_heads_must_divide = 1;
    desc.kv_gradient_bytes = 2;
    desc.excludes_attention_memory = desc.max_ulysses_groups = 1;
    return desc;
}

/* Activations are kept.  ZeRO's stage is 1, but one rank shards nothing. */
static memo_parallel_layout sp_layout(int data, int tensor, int ulysses, int ring) {
    const int zero_stage = data * ulysses * ring > 1;
    const memo_parallel_layout l = {data, 1, tensor, ring, ulysses, zero_stage, MEMO_PARALLEL_KEEP,
                                    1,    1};
    return l;
}

/* All zero if the planner refuses the layout: then no criterion is met. */
static memo_parallel_prediction sp_predict(memo_parallel_desc desc, memo_parallel_layout l) {
    memo_parallel_prediction prediction;
    if (memo_parallel_predict(&desc, &l, &prediction, NULL))
        memset(&prediction, 0, sizeof prediction);
    return prediction;
}

/* The longest sequence, in whole K, that fits. */
static double sp_longest_k(int n_gpus, memo_parallel_layout l) {
    int low = 0, high = 1 << 20; /* low fits, high does not; memory grows with the length */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (sp_predict(sp_desc(&sp_llama3_8b, n_gpus, middle, l.data), l).fits)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The paper's units of communication of a block on 8 GPUs: activations in bs L d / degree ... */
static double sp_activation_units(const sp_model* m, memo_parallel_kind kind) {
    const memo_parallel_model* s = &m->shape;
    const int is_tensor = kind == MEMO_PARALLEL_TENSOR, n = 8;
    memo_parallel_desc desc = sp_desc(m, n, 64, 1);
    double bytes =
        sp_predict(desc, sp_layout(1, is_tensor ? n : 1, is_tensor ? 1 : n, 1)).sent_bytes[kind] /
        s->n_layers;
    /* The paper leaves out the row dots, of fp32. */
    if (!is_tensor) bytes -= 4.0 * (double)desc.sequence / n * s->n_q_heads * (n - 1) / n;
    /* All-gathers and reduce-scatters move the whole tensor, an all-to-all a rank's share. */
    return bytes / (2.0 * (double)desc.sequence * s->hidden) * (is_tensor ? 1 : n) * n / (n - 1);
}
/* ... and parameters with gradients: 6 d^2 a pass, an all-gather or a reduce-scatter. */
static double sp_parameter_units(int zero_stage) {
    static const sp_model one = {"one layer", {1, 4096, 4096, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0}};
    memo_parallel_layout ring = sp_layout(1, 1, 1, 8);
    memo_parallel_prediction p;
    ring.zero_stage = zero_stage;
    p = sp_predict(sp_desc(&one, 8, 64, 1), ring);
    return 6 *
           (p.sent_bytes[MEMO_PARALLEL_GRADIENTS] / 4 +
            p.sent_bytes[MEMO_PARALLEL_PARAMETERS] / 2) /
           (memo_parallel_parameters(&one.shape) * 7 / 8);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* TFLOP/s of a GPU, by the paper's count: 6 P' per token, P' without the embedding, and 12 S h per
 * layer for full attention. */
static double sp_tflops(const sp_model* m, int n_gpus, const sp_row* row,
                        memo_parallel_prediction* p) {
    const memo_parallel_model* s = &m->shape;
    double tokens = row->length_k * PAPER_K;
    double weights =
        s->n_layers * memo_parallel_layer_parameters(s) + (double)s->vocabulary * s->hidden;
    double flops = row->batch * tokens * (6 * weights + 12.0 * s->n_layers * tokens * s->hidden);
    *p = sp_predict(sp_desc(m, n_gpus, row->length_k, row->batch),
                    sp_layout(row->data, row->tensor, row->ulysses, row->ring));
    return flops / p->time.step_s / n_gpus / 1e12;
}

/* Prints the rows; returns how many of them fit by the memory formula. */
static int sp_print_rows(const char* title, const sp_model* m, int n_gpus, const sp_row* rows,
                         int n_rows) {
    int n_fit = 0;
    paper_print("\n%s: %s on %d A800, TFLOP/s per GPU, terms in seconds of a step\n"
                "  length batch data layout    published predicted  resid     GEMM  attn.   ring "
                "ulysses tensor"
                "  ZeRO-1    GiB\n",
                title, m->name, n_gpus);
    for (const sp_row* r = rows; r < rows + n_rows; r++) {
        memo_parallel_prediction p;
        double predicted = sp_tflops(m, n_gpus, r, &p);
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

typedef struct sp_score {
    double spearman, by_length, error_percent;
} sp_score;

static sp_score sp_score_rows(const sp_model* m, int n_gpus, const sp_row* rows, int n_rows) {
    double predicted[PAPER_MAX], published[PAPER_MAX], length[PAPER_MAX], residuals[PAPER_MAX];
    memo_parallel_prediction p;
    sp_score score;
    for (int i = 0; i < n_rows; i++) {
        predicted[i] = sp_tflops(m, n_gpus, &rows[i], &p);
        published[i] = rows[i].tflops;
        length[i] = rows[i].length_k;
        residuals[i] = 100 * (predicted[i] / published[i] - 1);
    }
    score.spearman = paper_spearman(predicted, published, n_rows);
    score.by_length = paper_spearman(length, published, n_rows);
    score.error_percent = paper_mean_absolute(residuals, n_rows);
    return score;
}

/* Table 5 on one node, Table 6 on two, and Table 6's rows of one length: printed, and criteria. */
static void sp_report_scores(void) {
    static const struct {
        const char *name, *criterion;
        const sp_model* model;
        int n_gpus;
        const sp_row* rows;
        int n_rows;
        double least;
    } tables[] = {
        {"Table 5, 9 rows", "Table 5", &sp_llama2_7b, 8, sp_table5, SP_N_TABLE5, 0.8},
        {"Table 6, 26 rows", "Table 6, 26 rows", &sp_llama3_8b, 16, sp_table6, SP_N_TABLE6, 0.85},
        {"Table 6, 64K", "Table 6, 64K", &sp_llama3_8b, 16, sp_table6, 11, 0.7},
        {"Table 6, 80K", "Table 6, 80K", &sp_llama3_8b, 16, sp_table6 + 11, 11, 0.7}};
    paper_print("\n");
    for (int i = 0; i < PAPER_N(tables); i++) {
        sp_score s =
            sp_score_rows(tables[i].model, tables[i].n_gpus, tables[i].rows, tables[i].n_rows);
        paper_print("  %-20s Spearman %.2f (by length alone %.2f), mean error %.1f %%\n",
                    tables[i].name, s.spearman, s.by_length, s.error_percent);
        paper_criterion(s.spearman >= tables[i].least, "%s: Spearman %.2f >= %.2f",
                        tables[i].criterion, s.spearman, tables[i].least);
    }
    paper_print(
        "  Layouts read tensor-ulysses-ring.\n"
        "  Tensor-2 rows: the gradient group holds half of a node's GPUs and gets one NIC, a rule "
        "found on this table\n  and not confirmed elsewhere.\n"
        "  Table 7: the figure at 190K repeats the one at 160K and is suspect.\n");
}

/* Attention alone.  The degree of order counts, not the rates: the efficiencies are assumed. */
static void sp_report_attention(void) {
    double mean = 0;
    paper_print(
        "\nTables 3 and 4: attention alone on 8 GPUs, iterations/s; terms in ms of an iteration\n"
        "                        ulysses ring layout     published predicted   resid   compute   "
        "hops  "
        "blocks  all-to-all\n");

    for (int table = 0; table < SP_N_ATTENTION; table++) {
        const sp_attention_table* t = &sp_attention_tables[table];
        memo_parallel_desc desc = sp_desc(&sp_attention_model, 8, t->length_k, 1);
        double predicted[2 * SP_N_DEGREES], published[2 * SP_N_DEGREES], spearman;
        if (table >= 2) { /* L20 */
            paper_set_constants(&desc.cluster, sp_l20_constants, PAPER_N(sp_l20_constants));
            desc.cluster.is_shared_bus = 1;
        }
        for (int n = 0; n < 2 * SP_N_DEGREES; n++) {
            const int is_balanced = n % 2, ulysses = sp_degrees[n / 2];
            memo_parallel_prediction p;
            desc.is_contiguous = !is_balanced;
            p = sp_predict(desc, sp_layout(1, 1, ulysses, 8 / ulysses));
            if (!t->has_backward) memset(&p.backward, 0, sizeof p.backward);
            const double compute_s = p.forward.compute_s + p.backward.compute_s;
            const double hops_s = p.forward.hops_s + p.backward.hops_s;
            const double blocks_s = p.forward.blocks_s + p.backward.blocks_s;
            const double all_to_all_s = p.forward.all_to_all_s + p.backward.all_to_all_s;
            predicted[n] = 1 / (compute_s + hops_s + blocks_s + all_to_all_s);
            published[n] = t->iterations[n / 2][is_balanced];
            paper_print("  %-13s %4.0fK  %7d %4d %-9s %10.3f %9.3f  %+5.0f %%  %8.2f %6.2f %7.2f  "
                        "%10.2f\n",
                        t->name, t->length_k, ulysses, 8 / ulysses,
                        is_balanced ? "balanced" : "basic", published[n], predicted[n],
                        100 * (predicted[n] / published[n] - 1), 1e3 * compute_s, 1e3 * hops_s,
                        1e3 * blocks_s, 1e3 * all_to_all_s);
        }

        spearman = paper_spearman(predicted, published, 2 * SP_N_DEGREES);
        mean += spearman / SP_N_ATTENTION;
        paper_print("  %-13s %4.0fK, %s: Spearman %.2f\n", t->name, t->length_k,
                    t->has_backward ? "forward and backward" : "forward", spearman);
    }

    paper_print("  mean of the five: %.2f\n", mean);
    paper_criterion(mean >= 0.7, "Tables 3 and 4: mean Spearman %.2f >= 0.70", mean);
}

static void sp_report_memory(int n_ran_right) {
    const int n_ran = SP_N_TABLE5 + SP_N_TABLE6 + SP_N_TABLE7;
    int n_oom_right = 0;
    paper_print(
        "\nMemory: what did not run, on 80 GiB\n  model      length micro-batch ulysses ring  "
        "  GiB\n");
    for (const sp_memory_statement* s = sp_oom; s < sp_oom + SP_N_OOM; s++) {
        const sp_model* m = s->is_llama3 ? &sp_llama3_8b : &sp_llama2_7b;
        memo_parallel_desc desc = sp_desc(m, s->ulysses * s->ring, s->length_k, s->micro_batch);
        memo_parallel_prediction p;
        desc.micro_batch = s->micro_batch;
        p = sp_predict(desc, sp_layout(1, 1, s->ulysses, s->ring));
        paper_print("  %-10s %5.0fK %11d %7d %4d  %5.1f %s  %s\n", m->name, s->length_k,
                    s->micro_batch, s->ulysses, s->ring, p.memory.device_bytes / PAPER_GIB,
                    !p.fits ? "out of memory" : "would run: MISS", s->where);
        n_oom_right += !p.fits && p.memory.device_bytes > 0;
    }
    paper_criterion(n_ran_right == n_ran && n_oom_right == SP_N_OOM,
                    "memory: %d of %d rows that ran fit; %d of %d rows out of memory do not",
                    n_ran_right, n_ran, n_oom_right, SP_N_OOM);
}

/* ---- the seven tips, as sentences that the cost model makes true or not ---------------------- */

/* Legal layouts with activations kept and the default ZeRO stage, sorted by time. */
static memo_parallel_list* sp_list(int n_gpus, double length_k, int batch, int max_pipeline) {
    memo_parallel_desc desc = sp_desc(&sp_llama3_8b, n_gpus, length_k, batch);
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

static void sp_tip1(void) {
    int n_listed = 0, is_mixed = 1;
    char best[2][16];
    for (int at = 0; at < 2; at++) {
        memo_parallel_list* list = sp_list(16, 64 + 16 * at, 1, 1);
        int ulysses = 0, ring = 0; /* of the best layout */
        for (int64_t i = 0; list && i < list->n_legal; i++) {
            const memo_parallel_layout* l = &list->entries[i].layout;
            if (l->tensor > 1 || l->data > 1) continue;
            n_listed += l->ulysses <= 8;
            if (!ring) ulysses = l->ulysses, ring = l->ring;
        }
        is_mixed &= ulysses > 1 && ring > 1;
        (void)snprintf(best[at], sizeof best[at], "%dx%d", ulysses, ring);
        memo_parallel_list_destroy(list);
    }
    paper_criterion(n_listed == 8 && is_mixed,
                    "tip 1: 16 GPUs: %d of 4 ulysses x ring pairs listed; best SP-only layout %s "
                    "at 64K, %s at 80K",
                    n_listed / 2, best[0], best[1]);
}

static void sp_tip2(void) {
    double least = 1e9;
    for (double k = 4; k <= 32; k *= 2) {
        memo_parallel_desc desc = sp_desc(&sp_llama2_7b, 8, k, 8);
        double data_s = sp_predict(desc, sp_layout(8, 1, 1, 1)).time.step_s;
        for (int u = 1; u <= 8; u *= 2)
            for (desc.micro_batch = 1; desc.micro_batch <= 8; desc.micro_batch *= 2)
                least = paper_min(least,
                                  sp_predict(desc, sp_layout(1, 1, u, 8 / u)).time.step_s / data_s);
    }
    paper_criterion(least > 1,
                    "tip 2: LLAMA2-7B, batch 8, 8 GPUs, 4K to 32K: any SP layout takes at least "
                    "%.3f of data 8's time",
                    least);
}

static void sp_tip3(void) {
    const memo_parallel_layout l = sp_layout(2, 2, 2, 4);
    memo_parallel_prediction p = sp_predict(sp_desc(&sp_llama3_8b, 32, 64, 2), l);
    const double local = memo_parallel_parameters(&sp_llama3_8b.shape) / 2;
    const int group = (int)memo_parallel_zero_group(&l);
    int is_right = group == 16 && fabs(p.memory.optimizer_bytes - 12 * local / 16) < 1 &&
                   memo_parallel_zero_default(&l) >= 1;
    for (int stage = 0; stage <= 3; stage++)
        is_right &= fabs(sp_parameter_units(stage) - (stage < 3 ? 12 : 18)) < 1e-9;
    paper_criterion(is_right,
                    "tip 3: sp 8 x dp 2: ZeRO group %d, optimizer 12 P_local/%d; %.0f d^2 sent, "
                    "ZeRO-3 %.0f; default with sp > 1: %d",
                    group, group, sp_parameter_units(1), sp_parameter_units(3),
                    (int)memo_parallel_zero_default(&l));
}

static void sp_tip4(void) {
    const memo_parallel_layout ring = sp_layout(1, 1, 1, 8);
    const double with_groups = sp_activation_units(&sp_llama3_8b, MEMO_PARALLEL_ULYSSES);
    const double without = sp_activation_units(&sp_llama2_7b, MEMO_PARALLEL_ULYSSES);
    const double tensor = sp_activation_units(&sp_llama3_8b, MEMO_PARALLEL_TENSOR);
    const double ratio =
        sp_predict(sp_desc(&sp_llama3_8b, 8, 64, 1), ring).sent_bytes[MEMO_PARALLEL_RING] /
        sp_predict(sp_desc(&sp_llama2_7b, 8, 64, 1), ring).sent_bytes[MEMO_PARALLEL_RING];
    paper_criterion(fabs(with_groups - 5) < 1e-9 && fabs(without - 8) < 1e-9 &&
                        fabs(tensor - 8) < 1e-9 && fabs(ratio - 0.25) < 1e-9,
                    "tip 4: units of bs L d: ulysses %.0f (LLAMA3, G = 4), %.0f (LLAMA2, G = 1), "
                    "tensor-sp %.0f; ring bytes, G = 4 : 1, %.2f",
                    with_groups, without, tensor, ratio);
}

static void sp_tip5(void) {
    memo_parallel_layout sequence = sp_layout(1, 1, 8, 2);
    const double mixed = sp_longest_k(16, sp_layout(1, 8, 1, 2));
    const double zero1 = sp_longest_k(16, sequence);
    double zero3;
    sequence.zero_stage = 3;
    zero3 = sp_longest_k(16, sequence);
    paper_criterion(zero1 < mixed && fabs(zero3 / mixed - 1) <= 0.05,
                    "tip 5: 16 GPUs, LLAMA3-8B, longest: SP + ZeRO-1 %.0fK < tensor 8 x ring 2 "
                    "%.0fK; SP + ZeRO-3 %.0fK (%+.1f %%)",
                    zero1, mixed, zero3, 100 * (zero3 / mixed - 1));
}

static void sp_tip6(void) {
    const memo_parallel_desc desc = sp_desc(&sp_llama3_8b, 16, 64, 1);
    const memo_parallel_layout tensor = sp_layout(1, 16, 1, 1);
    memo_parallel_prediction p;
    memo_error error = {MEMO_STATUS_OK, 0, "tensor 16 is not refused"};
    const int is_refused = memo_parallel_predict(&desc, &tensor, &p, &error) != MEMO_STATUS_OK;
    double longest[3];
    for (int i = 0; i < 3; i++) {
        memo_parallel_layout ring = sp_layout(1, 1, 8, 2 << i);
        ring.zero_stage = 3;
        longest[i] = sp_longest_k(16 << i, ring);
    }
    paper_criterion(is_refused && longest[1] > longest[0] && longest[2] > longest[1],
                    "tip 6: %.*s; ulysses 8 with ZeRO-3: %.0fK, %.0fK, %.0fK on 16, 32, 64",
                    (int)strcspn(error.message, ","), error.message, longest[0], longest[1],
                    longest[2]);
}

/* Every rank must occur once, and a group that fits in a node must stay in it. */
static void sp_tip7(void) {
    memo_parallel_list* list = sp_list(64, 64, 64, 4);
    const int n = list ? (int)list->n_legal : 0;
    int n_bad = 0;
    for (int i = 0; i < n; i++) {
        const memo_parallel_layout* l = &list->entries[i].layout;
        const int group = l->tensor * l->ulysses;
        char seen[64] = {0};
        for (int k = 0; k < 64; k++) { /* the place in each group, the tensor group's first */
            const int rest = k / group, outer = rest / l->ring;
            int64_t rank = memo_parallel_rank(l, k % l->tensor, k / l->tensor % l->ulysses,
                                              rest % l->ring, outer % l->data, outer / l->data);
            int64_t first =
                memo_parallel_rank(l, 0, 0, rest % l->ring, outer % l->data, outer / l->data);
            n_bad += rank < 0 || rank >= 64 || seen[rank]++;
            n_bad += 8 % group == 0 && rank / 8 != first / 8;
        }
    }
    memo_parallel_list_destroy(list);
    paper_criterion(n > 0 && n_bad == 0,
                    "tip 7: rank = t + T(u + U(r + R(d + D p))): %d layouts of 64 GPUs, %d ranks "
                    "twice or groups across nodes",
                    n, n_bad);
}

static void sp_report(void) {
    static void (*const tips[7])(void) = {sp_tip1, sp_tip2, sp_tip3, sp_tip4,
                                          sp_tip5, sp_tip6, sp_tip7};
    static const double lengths_k[3] = {8, 32, 64};
    int n_fit;

    /* The tables; each adds its criteria. */
    sp_report_attention();
    n_fit = sp_print_rows("Table 5", &sp_llama2_7b, 8, sp_table5, SP_N_TABLE5);
    n_fit += sp_print_rows("Table 6", &sp_llama3_8b, 16, sp_table6, SP_N_TABLE6);
    n_fit += sp_print_rows("Table 7, not scored", &sp_llama3_8b, 16, sp_table7, SP_N_TABLE7);
    sp_report_scores();
    sp_report_memory(n_fit);
    paper_print(
        "\nTable 2: activations sent by SP over parameters sent by ZeRO, d = 4096; published 1.33, "
        "5.33, 10.67\n  predicted");
    for (int i = 0; i < 3; i++)
        paper_print(" %.2f at %.0fK%s",
                    sp_activation_units(&sp_llama2_7b, MEMO_PARALLEL_ULYSSES) * lengths_k[i] *
                        PAPER_K / sp_parameter_units(1) / 4096,
                    lengths_k[i], i < 2 ? "," : "\n");

    for (int i = 0; i < 7; i++) tips[i]();
    paper_print_criteria("Unified sequence parallelism");
}

#endif /* PAPER_SP_H */
