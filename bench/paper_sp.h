/* paper_sp.h - "A Unified Sequence Parallelism Approach for Long Context Generative AI": its
 * Tables 3 to 7 and its seven tips, from a cost model of 4D layouts.
 *
 * The cost model (chapter "a layout") knows a model's shape, a cluster and a layout; it does not
 * know the paper.  Symbols of the paper: L or S tokens of a sequence, d hidden size, bs batch, G
 * query heads of a key/value head, P parameters, N GPUs, hc heads. */
#ifndef PAPER_SP_H
#define PAPER_SP_H

#include "paper_common.h"

/* ---- a model, a cluster, a layout ------------------------------------------------------------ */

typedef struct layout_model {
    const char* name;
    int n_layers, hidden, ffn, query_heads, kv_heads;
    double vocabulary;
} layout_model;

typedef struct layout_cluster {
    int n_gpus, gpus_per_node;
    double device_bytes;
    double peak_flops, gemm_efficiency, attention_forward_efficiency, attention_backward_efficiency;
    double link_bytes_per_s; /* of one GPU inside a node, each way */
    double nic_bytes_per_s;  /* of one GPU between nodes, each way */
    int is_shared_bus;       /* PCIe: the n - 1 flows of an all-to-all share one link */
    double collective_s;     /* start of a collective or hop */
    double block_s;          /* start of one block of ring attention */
    double merge_bytes;      /* moved by its merge into the running output, an element of it */
    double memory_bytes_per_s;
} layout_cluster;

typedef struct layout_4d {
    int data, pipeline, tensor, ulysses, ring;
    int zero_stage; /* 0 to 3, over the ulysses x ring x data ranks */
} layout_4d;

/* Elements of one layer's matrices: q and output, k and v, gate, up and down. */
static inline double layout_layer_parameters(const layout_model* m) {
    double h = m->hidden;
    return 2 * h * h + 2 * h * h * m->kv_heads / m->query_heads + 3 * h * m->ffn;
}
/* P, embedding and classifier untied. */
static inline double layout_parameters(const layout_model* m) {
    return m->n_layers * layout_layer_parameters(m) + 2 * m->vocabulary * m->hidden;
}

static inline int layout_sequence_degree(layout_4d l) { return l.ulysses * l.ring; }
static inline int layout_zero_group(layout_4d l) { return layout_sequence_degree(l) * l.data; }

/* Rank of a GPU by its place in each group, lowest first: tensor, ulysses, ring, data, pipeline.
 * rank = t + T (u + U (r + R (d + D p))) */
static inline int layout_rank(layout_4d l, int t, int u, int r, int d, int p) {
    return t + l.tensor * (u + l.ulysses * (r + l.ring * (d + l.data * p)));
}

/* NULL, or in words why the layout cannot be. */
static inline const char* layout_refusal(const layout_model* m, const layout_cluster* c,
                                         layout_4d l, int batch, char* text, size_t size) {
    int heads = l.tensor * l.ulysses;
    if (l.data * l.pipeline * l.tensor * l.ulysses * l.ring != c->n_gpus) {
        (void)snprintf(text, size, "the degrees multiply to %d, there are %d GPUs",
                       l.data * l.pipeline * heads * l.ring, c->n_gpus);
    } else if (l.tensor > m->kv_heads) {
        (void)snprintf(text, size, "tensor degree %d is above the %d key/value heads", l.tensor,
                       m->kv_heads);
    } else if (m->kv_heads % heads != 0) {
        (void)snprintf(text, size, "tensor x ulysses = %d does not divide the %d key/value heads",
                       heads, m->kv_heads);
    } else if (batch % l.data != 0) {
        (void)snprintf(text, size, "data degree %d does not divide the batch of %d", l.data, batch);
    } else if (m->n_layers % l.pipeline != 0) {
        (void)snprintf(text, size, "pipeline degree %d does not divide the %d layers", l.pipeline,
                       m->n_layers);
    } else {
        return NULL;
    }
    return text;
}

/* ZeRO-1 where ranks beyond data parallelism hold the same parameters: tip 3. */
static inline int layout_default_zero_stage(layout_4d l) {
    return layout_sequence_degree(l) > 1 ? 1 : 0;
}

/* Every legal layout, at most `capacity` of them; pipeline degrees up to max_pipeline. */
static inline int layout_enumerate(const layout_model* m, const layout_cluster* c, int batch,
                                   int max_pipeline, layout_4d* layouts, int capacity) {
    int n = 0, n_gpus = c->n_gpus;
    layout_4d l;
    char reason[128];
    l.zero_stage = 0;
    for (l.pipeline = 1; l.pipeline <= max_pipeline; l.pipeline++)
        for (l.data = 1; l.data <= n_gpus; l.data++)
            for (l.tensor = 1; l.tensor <= n_gpus; l.tensor++)
                for (l.ulysses = 1; l.ulysses <= n_gpus; l.ulysses++) {
                    int product = l.pipeline * l.data * l.tensor * l.ulysses;
                    if (product > n_gpus || n_gpus % product != 0) continue;
                    l.ring = n_gpus / product;
                    l.zero_stage = layout_default_zero_stage(l);
                    if (n < capacity && !layout_refusal(m, c, l, batch, reason, sizeof reason))
                        layouts[n++] = l;
                }
    return n;
}

/* ---- memory ---- */

/* 12 P_local / (sp dp) from ZeRO-1 on: fp32 parameters and two moments. */
static inline double layout_optimizer_bytes(const layout_model* m, layout_4d l) {
    double local = layout_parameters(m) / (l.tensor * l.pipeline);
    return 12 * local / (l.zero_stage >= 1 ? layout_zero_group(l) : 1);
}

/* Bytes of a rank: bf16 parameters, fp32 gradients, optimizer, activations of all layers (input,
 * two norms, q, attention output, residual: 6 h; k and v: 2 h / G; gate, up and their product: 3
 * ffn; all bf16), logits at 6 B. */
static inline double layout_memory_bytes(const layout_model* m, layout_4d l, double tokens,
                                         int micro_batch) {
    double local = layout_parameters(m) / (l.tensor * l.pipeline), group = layout_zero_group(l);
    double local_tokens = tokens * micro_batch / (l.tensor * layout_sequence_degree(l));
    double layer_elements =
        6.0 * m->hidden + 2.0 * m->hidden * m->kv_heads / m->query_heads + 3.0 * m->ffn;
    double states = (l.zero_stage >= 3 ? 2 * local / group : 2 * local) +
                    (l.zero_stage >= 2 ? 4 * local / group : 4 * local) +
                    layout_optimizer_bytes(m, l);
    /* ZeRO-3 gathers a layer while another is in use. */
    if (l.zero_stage >= 3) states += 2 * 2 * layout_layer_parameters(m) / l.tensor;
    /* A pipeline stage has 1 / pipeline of the layers, of `pipeline` micro-batches. */
    return states + local_tokens * (m->n_layers * 2.0 * layer_elements + 6 * m->vocabulary);
}

/* The longest sequence, in whole K, that fits. */
static inline double layout_longest_k(const layout_model* m, const layout_cluster* c, layout_4d l) {
    double k = 0;
    while (k < 1e5 && layout_memory_bytes(m, l, (k + 1) * PAPER_K, 1) <= c->device_bytes) k++;
    return k;
}

/* ---- bytes sent ---- */

/* Elements a block's parameters and gradients put on the wire, in the paper's unit of O(d^2): a
 * pass (all-gather or reduce-scatter) counts 6 d^2. */
static inline double layout_parameter_units(int zero_stage) {
    int passes = zero_stage >= 3 ? 3 : 2;
    return 6.0 * passes;
}

/* Activations sent by a block, forward and backward, in units of bs L d over the degree. */
static inline double layout_ulysses_units(const layout_model* m) {
    return 4 + 4.0 * m->kv_heads / m->query_heads; /* q, o and their gradients; k, v and theirs */
}
static inline double layout_tensor_units(void) { return 8; } /* 4 all-gathers, 4 reduce-scatters */
static inline double layout_ring_hop_bytes(const layout_model* m, layout_4d l, double tokens,
                                           int micro_batch) {
    return 2 * 2 * tokens * micro_batch / l.ring * m->hidden * m->kv_heads / m->query_heads /
           (l.tensor * l.ulysses);
}

/* ---- time ---- */

/* A group whose members are `stride` ranks apart.  Within a node: the GPU's link.  Beyond: every
 * GPU of the node drives its own NIC if all of them belong to the group, else the group gets one.
 */
static inline double layout_ring_bandwidth(const layout_cluster* c, int degree, int stride) {
    int members_here;
    if (degree * stride <= c->gpus_per_node) return c->link_bytes_per_s;
    members_here = c->gpus_per_node / stride;
    if (members_here == c->gpus_per_node)
        return paper_min(c->link_bytes_per_s, c->gpus_per_node * c->nic_bytes_per_s);
    return c->nic_bytes_per_s;
}

/* Attention on ulysses x ring ranks, of one layer, in seconds. */
typedef struct layout_attention {
    double compute, exposed_hops, blocks, all_to_all;
} layout_attention;

/* is_balanced 0: contiguous chunks, the last rank sees all blocks in full. */
static inline layout_attention layout_attention_pass(const layout_model* m, const layout_cluster* c,
                                                     layout_4d l, double tokens, int micro_batch,
                                                     int is_backward, int is_balanced) {
    layout_attention a = {0, 0, 0, 0};
    double h = m->hidden, n_ranks = l.tensor * layout_sequence_degree(l);
    double flops = c->peak_flops * (is_backward ? c->attention_backward_efficiency
                                                : c->attention_forward_efficiency);
    double whole = (is_backward ? 5 : 2) * tokens * tokens * micro_batch * h / n_ranks / flops;
    double bytes = 2 * tokens * micro_batch * h / n_ranks; /* one tensor of a rank */
    double hop, step = whole / l.ring;
    int i;
    hop = layout_ring_hop_bytes(m, l, tokens, micro_batch) * (is_backward ? 2 : 1);
    hop = hop / (l.ring * l.tensor * l.ulysses > c->gpus_per_node ? c->nic_bytes_per_s
                                                                  : c->link_bytes_per_s) +
          c->collective_s;
    for (i = 0; i < l.ring; i++) {
        /* A balanced step costs half a block of scores; the last rank of a plain ring does whole
         * blocks after its own. */
        double compute = is_balanced || i == 0 ? step : 2 * step;
        a.compute += compute;
        /* The next K and V travel meanwhile; on the way back dK and dV make one hop more. */
        if (i + 1 < l.ring)
            a.exposed_hops += paper_max(0, hop - compute);
        else if (is_backward && l.ring > 1)
            a.exposed_hops += hop / 2;
    }
    if (l.ring > 1)
        a.blocks = l.ring * (c->block_s + c->merge_bytes * bytes / 2 / c->memory_bytes_per_s);
    if (l.ulysses > 1) {
        double link =
            l.tensor * l.ulysses > c->gpus_per_node ? c->nic_bytes_per_s : c->link_bytes_per_s;
        if (c->is_shared_bus) link /= l.ulysses - 1;
        a.all_to_all = layout_ulysses_units(m) / 2 * bytes * (l.ulysses - 1) / l.ulysses / link +
                       4 * c->collective_s;
    }
    return a;
}

/* Where the time of a step goes, in seconds. */
typedef struct layout_terms {
    double gemm, attention, ring, ulysses, tensor, zero, bubble, total;
} layout_terms;

/* A step of `batch` sequences; micro_batch of them at a time on each replica. */
static inline layout_terms layout_step(const layout_model* m, const layout_cluster* c, layout_4d l,
                                       double tokens, int batch, int micro_batch) {
    layout_terms t;
    double h = m->hidden, n_layers = (double)m->n_layers / l.pipeline;
    double n_ranks = l.tensor * layout_sequence_degree(l);
    double n_micro = (double)batch / (l.data * micro_batch);
    double rows = tokens * micro_batch;
    layout_attention forward = layout_attention_pass(m, c, l, tokens, micro_batch, 0, 1);
    layout_attention backward = layout_attention_pass(m, c, l, tokens, micro_batch, 1, 1);
    double group = layout_zero_group(l), passes, pass_bytes;
    double weights = n_layers * layout_layer_parameters(m) + m->vocabulary * h / l.pipeline;
    t.gemm = 6 * weights * rows / n_ranks / (c->peak_flops * c->gemm_efficiency);
    t.attention = n_layers * (forward.compute + backward.compute);
    t.ring = n_layers *
             (forward.exposed_hops + forward.blocks + backward.exposed_hops + backward.blocks);
    t.ulysses = n_layers * (forward.all_to_all + backward.all_to_all);
    t.tensor = 0;
    if (l.tensor > 1) {
        double bytes = 2 * rows / layout_sequence_degree(l) * h; /* of the gathered tensor */
        double link = l.tensor > c->gpus_per_node ? c->nic_bytes_per_s : c->link_bytes_per_s;
        t.tensor = n_layers * layout_tensor_units() *
                   (bytes * (l.tensor - 1) / l.tensor / link + c->collective_s);
    }
    t.bubble = (t.gemm + t.attention + t.ring + t.ulysses + t.tensor) * (l.pipeline - 1);
    t.gemm *= n_micro;
    t.attention *= n_micro;
    t.ring *= n_micro;
    t.ulysses *= n_micro;
    t.tensor *= n_micro;
    /* fp32 gradients once a step, bf16 parameters once; ZeRO-3 gathers them for each pass instead.
     */
    pass_bytes = layout_parameters(m) / (l.tensor * l.pipeline) * (group - 1) / group;
    passes = 4 + 2 * (l.zero_stage >= 3 ? 2 * n_micro : 1);
    t.zero = passes * pass_bytes / layout_ring_bandwidth(c, (int)group, l.tensor);
    t.total = t.gemm + t.attention + t.ring + t.ulysses + t.tensor + t.zero + t.bubble;
    return t;
}

/* ---- the paper's tables ---------------------------------------------------------------------- */

static const layout_model sp_llama2_7b = {"LLAMA2-7B", 32, 4096, 11008, 32, 32, 32000};
static const layout_model sp_llama3_8b = {"LLAMA3-8B", 32, 4096, 14336, 32, 8, 128256};

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
static const layout_model sp_attention_model = {"attention", 1, 4096, 0, 32, 8, 0};

/* What the text and the tables say ran or did not. */
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
    c.device_bytes = 80 * PAPER_GIB;
    c.peak_flops = 312e12;
    c.gemm_efficiency = 0.75;
    c.attention_forward_efficiency = 0.60;
    c.attention_backward_efficiency = 0.55;
    c.link_bytes_per_s = 150e9;
    c.nic_bytes_per_s = 20e9;
    c.memory_bytes_per_s = 1.5e12;
    c.collective_s = 20e-6;
    c.block_s = 20e-6;
    c.merge_bytes = 30;
    return c;
}

/* Eight L20 on PCIe; what is not set here is as above. */
static inline layout_cluster sp_l20(void) {
    layout_cluster c = sp_a800(8);
    c.device_bytes = 48 * PAPER_GIB;
    c.peak_flops = 119.5e12;
    c.attention_forward_efficiency = 0.85;
    c.attention_backward_efficiency = 0.75;
    c.link_bytes_per_s = 8e9;
    c.is_shared_bus = 1;
    c.memory_bytes_per_s = 0.65e12;
    return c;
}

/* ---- reports --------------------------------------------------------------------------------- */

static inline void sp_print_constants(void) {
    layout_cluster a = sp_a800(16), l = sp_l20();
    paper_constant c[] = {
        {"A800 and A100 peak", a.peak_flops / 1e12, "TFLOP/s", PAPER_STATED, "MFU = figure / 312"},
        {"GEMM efficiency", a.gemm_efficiency, "of peak", PAPER_ASSUMED, "large bf16 GEMMs"},
        {"attention efficiency, forward", a.attention_forward_efficiency, "of peak", PAPER_ASSUMED,
         "of the causal half"},
        {"attention efficiency, backward", a.attention_backward_efficiency, "of peak",
         PAPER_ASSUMED, "of the causal half"},
        {"NVLink of one GPU, each way", a.link_bytes_per_s / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "400 GB/s stated: 75 % of 200 each way"},
        {"NIC of one GPU, each way", a.nic_bytes_per_s / PAPER_GB, "GB/s", PAPER_ASSUMED,
         "1.6 Tb/s a node stated: 80 % of 25 a GPU"},
        {"NICs of a group with part of a node", 1, "", PAPER_FITTED, "on Table 6's tensor-2 rows"},
        {"start of a collective or hop", a.collective_s * 1e6, "us", PAPER_ASSUMED, "NCCL"},
        {"start of a ring block", a.block_s * 1e6, "us", PAPER_ASSUMED, "kernel launches"},
        {"merge of a ring block", a.merge_bytes, "B", PAPER_FITTED,
         "an element; by hand, on Table 5's rings"},
        {"A800 memory", a.memory_bytes_per_s / 1e12, "TB/s", PAPER_ASSUMED, "75 % of 2.0"},
        {"device memory", a.device_bytes / PAPER_GIB, "GiB", PAPER_STATED, "Section 5.2"},
        {"parameters, gradients, optimizer", 18, "B", PAPER_ASSUMED,
         "2 + 4, and 12 shared by ZeRO-1; logits 6"},
        {"L20 peak", l.peak_flops / 1e12, "TFLOP/s", PAPER_ASSUMED, "data sheet, dense fp16"},
        {"L20 attention efficiency, forward", l.attention_forward_efficiency, "of peak",
         PAPER_FITTED, "by hand, on Table 4 at 128K"},
        {"L20 PCIe of one GPU, each way", l.link_bytes_per_s / PAPER_GB, "GB/s", PAPER_FITTED,
         "by hand, on Table 4; all-to-all: /(n-1)"},
        {"L20 memory", l.memory_bytes_per_s / 1e12, "TB/s", PAPER_ASSUMED, "75 % of 0.864"}};
    paper_print_constants("Unified sequence parallelism", c, (int)(sizeof c / sizeof *c));
}

static inline layout_4d sp_row_layout(const sp_row* row) {
    layout_4d l;
    l.data = row->data;
    l.pipeline = 1;
    l.tensor = row->tensor;
    l.ulysses = row->ulysses;
    l.ring = row->ring;
    l.zero_stage = 1;
    return l;
}

/* As the paper counts: 6 P' a token, P' without the embedding, and attention in full, 12 S h a
 * layer. */
static inline double sp_flops(const layout_model* m, const sp_row* row) {
    double tokens = row->length_k * PAPER_K;
    double weights = m->n_layers * layout_layer_parameters(m) + m->vocabulary * m->hidden;
    return row->batch * tokens * (6 * weights + 12.0 * m->n_layers * tokens * m->hidden);
}

static inline double sp_predicted_tflops(const layout_model* m, const layout_cluster* c,
                                         const sp_row* row, layout_terms* terms) {
    *terms = layout_step(m, c, sp_row_layout(row), row->length_k * PAPER_K, row->batch, 1);
    return sp_flops(m, row) / terms->total / c->n_gpus / 1e12;
}

typedef struct sp_score {
    double spearman, by_length, error_percent;
} sp_score;

static inline sp_score sp_score_rows(const layout_model* m, const layout_cluster* c,
                                     const sp_row* rows, int n_rows) {
    double predicted[PAPER_MAX], published[PAPER_MAX], length[PAPER_MAX], residuals[PAPER_MAX];
    layout_terms terms;
    sp_score score;
    int i;
    for (i = 0; i < n_rows; i++) {
        predicted[i] = sp_predicted_tflops(m, c, &rows[i], &terms);
        published[i] = rows[i].tflops;
        length[i] = rows[i].length_k;
        residuals[i] = 100 * (predicted[i] / published[i] - 1);
    }
    score.spearman = paper_spearman(predicted, published, n_rows);
    score.by_length = paper_spearman(length, published, n_rows);
    score.error_percent = paper_mean_absolute(residuals, n_rows);
    return score;
}

/* Prints the rows; returns how many of them the memory formula lets run. */
static inline int sp_print_rows(const char* title, const layout_model* m, const layout_cluster* c,
                                const sp_row* rows, int n_rows) {
    int i, n_fit = 0;
    paper_print("\n%s: %s on %d A800, TFLOP/s per GPU, terms in seconds of a step\n"
                "  length batch data layout    published predicted  resid     GEMM  attn.   ring "
                "ulysses tensor"
                "  ZeRO-1    GiB\n",
                title, m->name, c->n_gpus);
    for (i = 0; i < n_rows; i++) {
        const sp_row* r = &rows[i];
        layout_terms t;
        double predicted = sp_predicted_tflops(m, c, r, &t);
        double bytes = layout_memory_bytes(m, sp_row_layout(r), r->length_k * PAPER_K, 1);
        char layout[32];
        (void)snprintf(layout, sizeof layout, "%d-%d-%d", r->tensor, r->ulysses, r->ring);
        paper_print(
            "  %5.0fK %5d %4d  %-9s %8.1f  %8.1f  %+5.1f %%  %6.2f %6.2f %6.2f  %6.2f %6.2f  %6.2f "
            " %5.1f\n",
            r->length_k, r->batch, r->data, layout, r->tflops, predicted,
            100 * (predicted / r->tflops - 1), t.gemm, t.attention, t.ring, t.ulysses, t.tensor,
            t.zero, bytes / PAPER_GIB);
        n_fit += bytes <= c->device_bytes;
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
static inline double sp_attention_s(const layout_cluster* c, layout_4d l, double tokens,
                                    int has_backward, int is_balanced, layout_attention* sum) {
    layout_attention a =
        layout_attention_pass(&sp_attention_model, c, l, tokens, 1, 0, is_balanced);
    if (has_backward) {
        layout_attention b =
            layout_attention_pass(&sp_attention_model, c, l, tokens, 1, 1, is_balanced);
        a.compute += b.compute;
        a.exposed_hops += b.exposed_hops;
        a.blocks += b.blocks;
        a.all_to_all += b.all_to_all;
    }
    *sum = a;
    return a.compute + a.exposed_hops + a.blocks + a.all_to_all;
}

static inline void sp_report_attention(sp_results* r) {
    int table, i, balanced;
    r->attention_mean = 0;
    paper_print(
        "\nTables 3 and 4: attention alone on 8 GPUs, iterations/s; terms in ms of an iteration\n"
        "                        ulysses ring layout     published predicted   resid   compute   "
        "hops  "
        "blocks  all-to-all\n");
    for (table = 0; table < SP_N_ATTENTION; table++) {
        const sp_attention_table* t = &sp_attention_tables[table];
        layout_cluster c = table < 2 ? sp_a800(8) : sp_l20();
        double predicted[2 * SP_N_DEGREES], published[2 * SP_N_DEGREES];
        int n = 0;
        for (i = 0; i < SP_N_DEGREES; i++)
            for (balanced = 0; balanced < 2; balanced++, n++) {
                layout_4d l = {1, 1, 1, 0, 0, 0};
                layout_attention a;
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
                    1e3 * a.compute, 1e3 * a.exposed_hops, 1e3 * a.blocks, 1e3 * a.all_to_all);
            }
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
    int i;
    paper_print(
        "\nMemory: what did not run, on %.0f GiB\n  model      length micro-batch ulysses ring  "
        "  GiB\n",
        sp_a800(8).device_bytes / PAPER_GIB);
    for (i = 0; i < SP_N_OOM; i++) {
        const sp_memory_statement* s = &sp_oom[i];
        const layout_model* m = s->is_llama3 ? &sp_llama3_8b : &sp_llama2_7b;
        layout_4d l = {1, 1, 1, 0, 0, 1};
        double bytes;
        l.ulysses = s->ulysses;
        l.ring = s->ring;
        bytes = layout_memory_bytes(m, l, s->length_k * PAPER_K, s->micro_batch);
        paper_print("  %-10s %5.0fK %11d %7d %4d  %5.1f %s  %s\n", m->name, s->length_k,
                    s->micro_batch, s->ulysses, s->ring, bytes / PAPER_GIB,
                    bytes > sp_a800(8).device_bytes ? "out of memory" : "would run: MISS",
                    s->where);
        r->n_oom_right += bytes > sp_a800(8).device_bytes;
    }
}

/* ---- the seven tips, as sentences that the cost model makes true or not ---- */

static inline double sp_time(const layout_model* m, const layout_cluster* c, layout_4d l,
                             double length_k, int batch, int micro_batch) {
    return layout_step(m, c, l, length_k * PAPER_K, batch, micro_batch).total;
}

static inline int sp_tip1(char* text, size_t size) {
    layout_cluster c = sp_a800(16);
    layout_4d layouts[512];
    int n = layout_enumerate(&sp_llama3_8b, &c, 1, 1, layouts, 512);
    int i, u, n_listed = 0, is_mixed = 1, at;
    char best[2][16];
    for (u = 1; u <= 8; u *= 2)
        for (i = 0; i < n; i++)
            n_listed += layouts[i].tensor == 1 && layouts[i].data == 1 && layouts[i].ulysses == u &&
                        layouts[i].ring == 16 / u;
    for (at = 0; at < 2; at++) {
        int first = -1;
        for (i = 0; i < n; i++) {
            if (layouts[i].tensor > 1 || layouts[i].data > 1) continue;
            if (first < 0 || sp_time(&sp_llama3_8b, &c, layouts[i], 64 + 16 * at, 1, 1) <
                                 sp_time(&sp_llama3_8b, &c, layouts[first], 64 + 16 * at, 1, 1))
                first = i;
        }
        is_mixed = is_mixed && first >= 0 && layouts[first].ulysses > 1 && layouts[first].ring > 1;
        (void)snprintf(best[at], sizeof best[at], "%dx%d", first < 0 ? 0 : layouts[first].ulysses,
                       first < 0 ? 0 : layouts[first].ring);
    }
    (void)snprintf(text, size,
                   "tip 1: 16 GPUs: %d of 4 ulysses x ring pairs listed; best SP-only layout %s at "
                   "64K, %s at 80K",
                   n_listed, best[0], best[1]);
    return n_listed == 4 && is_mixed;
}

static inline int sp_tip2(char* text, size_t size) {
    layout_cluster c = sp_a800(8);
    double k, least = 1e9;
    int u, micro;
    for (k = 4; k <= 32; k *= 2)
        for (u = 1; u <= 8; u *= 2)
            for (micro = 1; micro <= 8; micro *= 2) {
                layout_4d data = {8, 1, 1, 1, 1, 1}, sequence = {1, 1, 1, 1, 1, 1};
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
    layout_4d l = {2, 1, 2, 2, 4, 1};
    double local = layout_parameters(&sp_llama3_8b) / 2;
    int group = layout_zero_group(l);
    int is_group =
        group == 16 && fabs(layout_optimizer_bytes(&sp_llama3_8b, l) - 12 * local / 16) < 1;
    int is_traffic = fabs(layout_parameter_units(0) - 12) < 1e-9 &&
                     fabs(layout_parameter_units(1) - 12) < 1e-9 &&
                     fabs(layout_parameter_units(2) - 12) < 1e-9 &&
                     fabs(layout_parameter_units(3) - 18) < 1e-9;
    (void)snprintf(text, size,
                   "tip 3: sp 8 x dp 2: ZeRO group %d, optimizer 12 P_local/%d; %.0f d^2 sent, "
                   "ZeRO-3 %.0f; default with sp > 1: %d",
                   group, group, layout_parameter_units(1), layout_parameter_units(3),
                   layout_default_zero_stage(l));
    return is_group && is_traffic && layout_default_zero_stage(l) >= 1;
}

static inline int sp_tip4(char* text, size_t size) {
    layout_4d ring = {1, 1, 1, 1, 8, 1};
    double ratio = layout_ring_hop_bytes(&sp_llama3_8b, ring, 65536, 1) /
                   layout_ring_hop_bytes(&sp_llama2_7b, ring, 65536, 1);
    (void)snprintf(
        text, size,
        "tip 4: units of bs L d: ulysses %.0f (LLAMA3, G = 4), %.0f (LLAMA2, G = 1), tensor-sp "
        "%.0f; ring bytes, G = 4 : 1, %.2f",
        layout_ulysses_units(&sp_llama3_8b), layout_ulysses_units(&sp_llama2_7b),
        layout_tensor_units(), ratio);
    return fabs(layout_ulysses_units(&sp_llama3_8b) - 5) < 1e-9 &&
           fabs(layout_ulysses_units(&sp_llama2_7b) - 8) < 1e-9 && fabs(ratio - 0.25) < 1e-9;
}

static inline int sp_tip5(char* text, size_t size) {
    layout_cluster c = sp_a800(16);
    layout_4d sequence = {1, 1, 1, 8, 2, 1}, tensor = {1, 1, 8, 1, 2, 1};
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
    layout_4d refused = {1, 1, 16, 1, 1, 1}, l = {1, 1, 1, 8, 0, 3};
    double longest[3];
    char reason[128] = "";
    int i, is_refused;
    is_refused = layout_refusal(&sp_llama3_8b, &c, refused, 1, reason, sizeof reason) != NULL;
    for (i = 0; i < 3; i++) {
        layout_cluster grown = sp_a800(16 << i);
        l.ring = 2 << i;
        longest[i] = layout_longest_k(&sp_llama3_8b, &grown, l);
    }
    (void)snprintf(
        text, size, "tip 6: %s; ulysses 8 with ZeRO-3: %.0fK, %.0fK, %.0fK on 16, 32, 64",
        is_refused ? reason : "tensor 16 is not refused", longest[0], longest[1], longest[2]);
    return is_refused && longest[1] > longest[0] && longest[2] > longest[1];
}

static inline int sp_tip7(char* text, size_t size) {
    layout_cluster c = sp_a800(64);
    layout_4d layouts[512];
    int n = layout_enumerate(&sp_llama3_8b, &c, 64, 4, layouts, 512), i, n_bad = 0;
    for (i = 0; i < n; i++) {
        layout_4d l = layouts[i];
        int t, u, r, d, p;
        char seen[64] = {0};
        for (p = 0; p < l.pipeline; p++)
            for (d = 0; d < l.data; d++)
                for (r = 0; r < l.ring; r++) {
                    int node = layout_rank(l, 0, 0, r, d, p) / c.gpus_per_node;
                    for (u = 0; u < l.ulysses; u++)
                        for (t = 0; t < l.tensor; t++) {
                            int rank = layout_rank(l, t, u, r, d, p);
                            if (rank < 0 || rank >= c.n_gpus || seen[rank]++) n_bad++;
                            n_bad += c.gpus_per_node % (l.tensor * l.ulysses) == 0 &&
                                     rank / c.gpus_per_node != node;
                        }
                }
    }
    (void)snprintf(
        text, size,
        "tip 7: rank = t + T(u + U(r + R(d + D p))): %d layouts of 64 GPUs, %d ranks twice or "
        "groups across nodes",
        n, n_bad);
    return n > 0 && n_bad == 0;
}

static inline sp_results sp_report(paper_criteria* criteria) {
    static int (*const tips[7])(char*, size_t) = {sp_tip1, sp_tip2, sp_tip3, sp_tip4,
                                                  sp_tip5, sp_tip6, sp_tip7};
    layout_cluster node = sp_a800(8), two_nodes = sp_a800(16);
    sp_results r;
    char text[160];
    int i;
    memset(&r, 0, sizeof r);
    sp_report_attention(&r);
    r.n_ran = SP_N_TABLE5 + SP_N_TABLE6 + SP_N_TABLE7;
    r.n_ran_right = sp_print_rows("Table 5", &sp_llama2_7b, &node, sp_table5, SP_N_TABLE5);
    r.n_ran_right += sp_print_rows("Table 6", &sp_llama3_8b, &two_nodes, sp_table6, SP_N_TABLE6);
    r.n_ran_right +=
        sp_print_rows("Table 7, not scored", &sp_llama3_8b, &two_nodes, sp_table7, SP_N_TABLE7);
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
    for (i = 0; i < 3; i++) {
        static const double k[3] = {8, 32, 64};
        paper_print(" %.2f at %.0fK%s",
                    layout_ulysses_units(&sp_llama2_7b) * k[i] * PAPER_K /
                        layout_parameter_units(1) / 4096,
                    k[i], i < 2 ? "," : "\n");
    }
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
                    "memory: %d of %d rows that ran fit, %d of %d that did not do not",
                    r.n_ran_right, r.n_ran, r.n_oom_right, SP_N_OOM);
    for (i = 0; i < 7; i++) {
        r.is_tip[i] = tips[i](text, sizeof text);
        paper_criterion(criteria, r.is_tip[i], "%s", text);
    }
    return r;
}

#endif /* PAPER_SP_H */
