/* layout_plan - how should these GPUs share this model?
 *
 *   layout_plan [options]; layout_plan --help lists them
 *
 * Prints every legal layout (data, pipeline, tensor, ulysses, ring, ZeRO stage, activations), the
 * fastest that fits first, with predicted memory, bytes sent inside and between nodes, step time
 * and MFU.
 *
 * Build:   cc -std=c99 -O2 -I. examples/tools/layout_plan.c -o layout_plan -lpthread -lm
 * Try:     build/examples/layout_plan --model llama3-8b --gpus 16 --sequence 80K --cluster h100
 *          build/examples/layout_plan --model llama3-8b --gpus 16 --explain 1,1,16,1,1 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#include "extras/memo_layout.h"

#include "layout_runs.h"
#include "tool_files.h"

/* ---- options --------------------------------------------------------------------------------- */

typedef struct preset {
    const char* name;
    memo_parallel_model model;
} preset;
static const preset presets[] = {
    {"llama2-7b", {32, 4096, 11008, 32, 32, 0, 0, 3, 0, 32000, 0, 0, 0}},
    {"llama3-8b", {32, 4096, 14336, 32, 8, 0, 0, 3, 0, 128256, 0, 0, 0}},
    {"llama3-70b", {80, 8192, 28672, 64, 8, 0, 0, 3, 0, 128256, 0, 0, 0}},
    {"llama3-405b", {126, 16384, 53248, 128, 8, 0, 0, 3, 0, 128256, 0, 0, 0}},
    {"gpt-7b", {32, 4096, 16384, 32, 32, 0, 0, 2, 0, 50257, 0, 0, 0}},
    {"gpt-13b", {40, 5120, 20480, 40, 40, 0, 0, 2, 0, 50257, 0, 0, 0}},
    {"gpt-30b", {48, 7168, 28672, 56, 56, 0, 0, 2, 0, 50257, 0, 0, 0}},
    {"gpt-65b", {80, 8192, 32768, 64, 64, 0, 0, 2, 0, 50257, 0, 0, 0}}};
enum { N_PRESETS = sizeof presets / sizeof *presets };

typedef struct options {
    memo_parallel_desc desc;
    const preset* model;
    const cluster_preset* cluster;
    cluster_kernel kernel;
    int activations, zero; /* -1: all */
    int rounds_gradients, is_explained, is_published;
    int32_t expert_ranks;
    int64_t n_top;
    memo_parallel_layout explained;
} options;

static void print_help(FILE* out) {
    fputs("usage: layout_plan [options]\n"
          "\n"
          "  --model NAME            the shape of:",
          out);
    for (int i = 0; i < N_PRESETS; i++) fprintf(out, " %s", presets[i].name);
    fputs(
        "\n"
        "                          (default llama3-8b)\n"
        "  --layers N --hidden N --ffn N --ffn-matrices 2|3 --heads N --kv-heads N --head-size N\n"
        "  --v-head-size N --vocabulary N --experts N --active-experts N --latent N\n"
        "                          each replaces a figure of the model, in any order\n"
        "  --sequence TOKENS       tokens of a sequence; 64K is 65536 (default 64K)\n"
        "  --batch N               sequences of a step (default 1)\n"
        "  --micro-batch N         sequences at a time on each replica (default 1)\n"
        "  --loss-tile BYTES       the loss is computed in tiles of rows, and BYTES of logits\n"
        "                          exist at once; 64M is 2^26; 0: logits of all rows (default 0)\n"
        "  --mlp-tile BYTES        recomputed layers compute the MLP in tiles of rows, and BYTES "
        "of\n"
        "                          its columns exist at once (default 0: of all rows)\n"
        "  --window N --document N keys that a query sees at most, and tokens of a document on\n"
        "                          average (default 0: all before it)\n"
        "\n"
        "  --gpus N                GPUs of the cluster (default 8)\n"
        "  --cluster NAME          GPUs and their nodes:",
        out);
    for (int i = 0; i < N_CLUSTERS; i++) fprintf(out, " %s", clusters[i].name);
    fputs(
        "\n"
        "                          (default a800).  The options below replace a figure of the\n"
        "                          cluster, in any order; the figures of a800 are in parentheses\n"
        "  --per-node N            GPUs of a node (8)\n"
        "  --memory GIB            memory of a GPU (80)\n"
        "  --flops TFLOPS          peak of a GPU (312)\n"
        "  --gemm E --attention-forward E --attention-backward E\n"
        "                          fractions of the peak that they reach (0.75, 0.6, 0.55; h100\n"
        "                          and h200: measured, by the keys in sight)\n"
        "  --processors N          multiprocessors of a GPU: products take whole waves of tiles;\n"
        "                          0: products of any shape run alike (108)\n"
        "  --link GB/S --nic GB/S  bandwidth of a GPU, each way, inside and between nodes (150, "
        "20)\n"
        "  --shared-bus 0|1        1: all flows of an all-to-all inside a node share one link (0)\n"
        "  --attention-kernel NAME rates of attention on h100 and h200: cudnn (measured), or "
        "triton,\n"
        "                          FlashAttention 1 as of 2023 (default cudnn)\n"
        "  --row-traffic X         bytes of row kernels over those of fused ones: 1.8 if a "
        "framework\n"
        "                          runs each operation by itself (1)\n"
        "  --tensor-copies N       copies of a tensor beside each collective of tensor "
        "parallelism:\n"
        "                          1 with torch's along the sequence (0)\n"
        "  --speed-deviation D     standard deviation of the GPUs' speed, of its mean (0.0133)\n"
        "  --latency US            start of a collective (20)\n"
        "  --memory-bandwidth GB/S bandwidth of a GPU's memory, for merges of ring blocks (1500)\n"
        "  --host-memory GIB       pinned memory of a node; 0: no swapping (0)\n"
        "  --host-link GB/S        bandwidth of a GPU to the host, each way (10)\n"
        "\n"
        "  --zero 0|1|2|3          considers only this stage of ZeRO\n"
        "  --activations keep|recompute|selective|swap|offload\n"
        "                          considers only this way to treat activations\n"
        "  --optimizer-on-host     the optimizer is on the host\n"
        "  --max-pipeline N        most pipeline stages; 0: any number (default 0)\n"
        "  --chunks N              most chunks of layers of a pipeline stage, interleaved with "
        "the\n"
        "                          other stages: powers of two; with --explain, this number\n"
        "                          (default 1)\n"
        "  --expert-ranks N        with --explain, ranks that share the experts (default 1)\n"
        "  --ulysses-groups N      most groups of heads; 0: as many as help (default 0).  The\n"
        "                          all-to-all of one group overlaps the attention of another; the\n"
        "                          fastest number that fits is used.  With a ring, a group has\n"
        "                          whole key heads: with one of them per rank nothing overlaps\n"
        "  --rounds-gradients      the ring sends the gradients of keys and values in bf16, not\n"
        "                          fp32\n"
        "  --kv-heads-must-divide  no key/value heads on several ranks, no uneven heads\n"
        "  --top N                 rows to print; 0: all (default 20)\n"
        "  --explain D,P,T,U,R     prints the terms of one layout (data, pipeline, tensor, "
        "ulysses,\n"
        "                          ring), or why it is illegal\n"
        "  --published             prints published runs beside their predictions, with and\n"
        "                          without each mechanism of the model\n"
        "\n"
        "Exit status: 0; 1 nothing fits, or the layout to explain is illegal; 2 a mistake in the\n"
        "command line, or output that cannot be written\n",
        out);
}

/* Reads a number from 0; "64K" and "1M" are powers of 1024. */
static int parse_number(const char* text, double* value) {
    char* end;
    if (!(*text >= '0' && *text <= '9') && *text != '.') return 0;
    *value = strtod(text, &end);
    if (end == text) return 0;
    if (*end == 'K')
        *value *= 1024, end++;
    else if (*end == 'M')
        *value *= 1024 * 1024, end++;
    return *end == 0;
}

/* In the option's range; whole if it has no unit. */
static int read_number(const tool_option* option, const char* value, double* number) {
    return parse_number(value, number) && *number >= option->least && *number <= option->most &&
           (option->unit > 0 || floor(*number) >= *number);
}
static int read_int32(const tool_option* option, const char* value) {
    double number;
    if (!read_number(option, value, &number)) return 0;
    *(int32_t*)option->to = (int32_t)number;
    return 1;
}
static int read_int64(const tool_option* option, const char* value) {
    double number;
    if (!read_number(option, value, &number)) return 0;
    if (option->unit > 0) number *= option->unit;
    *(int64_t*)option->to = (int64_t)fmin(number, 9e18);
    return 1;
}
static int read_real(const tool_option* option, const char* value) {
    double number;
    if (!read_number(option, value, &number)) return 0;
    *(double*)option->to = number * option->unit;
    return 1;
}

static int read_model(const tool_option* option, const char* value) {
    int k = 0;
    while (k < N_PRESETS && strcmp(value, presets[k].name)) k++;
    if (k < N_PRESETS) *(const preset**)option->to = &presets[k];
    return k < N_PRESETS;
}
static int read_cluster(const tool_option* option, const char* value) {
    const int k = cluster_find(value);
    if (k < N_CLUSTERS) *(const cluster_preset**)option->to = &clusters[k];
    return k < N_CLUSTERS;
}
static int read_kernel(const tool_option* option, const char* value) {
    *(cluster_kernel*)option->to = strcmp(value, "triton") ? CLUSTER_CUDNN : CLUSTER_TRITON;
    return !strcmp(value, "cudnn") || !strcmp(value, "triton");
}
static int read_activations(const tool_option* option, const char* value) {
    int k = 0;
    while (k < MEMO_PARALLEL_N_ACTIVATIONS &&
           strcmp(value, memo_parallel_activations_name((memo_parallel_activations)k)))
        k++;
    *(int*)option->to = k;
    return k < MEMO_PARALLEL_N_ACTIVATIONS;
}
static int read_layout(const tool_option* option, const char* text) {
    options* o = (options*)option->to;
    memo_parallel_layout* l = &o->explained;
    int32_t* const degrees[] = {&l->data, &l->pipeline, &l->tensor, &l->ulysses, &l->ring};
    o->is_explained = 1;
    for (int i = 0; i < 5; i++) {
        char* end;
        long degree;
        if (!(*text >= '0' && *text <= '9')) return 0;
        degree = strtol(text, &end, 10);
        if (degree > 1 << 20 || *end != (i < 4 ? ',' : 0)) return 0;
        *degrees[i] = (int32_t)degree;
        text = end + 1;
    }
    return 1;
}

/* Returns 0, or the exit status; -1 for help. */
static int parse_options(int argc, char** argv, options* o, FILE* err) {
    memo_parallel_desc* desc = &o->desc;
    memo_parallel_model* m = &desc->model;
    memo_parallel_cluster* c = &desc->cluster;
    const tool_option known[] = {
        TOOL_VALUE("--model", read_model, &o->model, "no such preset"),
        TOOL_VALUE("--cluster", read_cluster, &o->cluster, "no such preset"),
        TOOL_NUMBER("--layers", read_int32, &m->n_layers, 1, 1e6, 0),
        TOOL_NUMBER("--hidden", read_int32, &m->hidden, 1, 1e8, 0),
        TOOL_NUMBER("--ffn", read_int32, &m->ffn, 0, 1e9, 0),
        TOOL_NUMBER("--ffn-matrices", read_int32, &m->n_ffn_matrices, 2, 3, 0),
        TOOL_NUMBER("--heads", read_int32, &m->n_q_heads, 1, 1e6, 0),
        TOOL_NUMBER("--kv-heads", read_int32, &m->n_kv_heads, 1, 1e6, 0),
        TOOL_NUMBER("--head-size", read_int32, &m->head_size, 0, 1e6, 0),
        TOOL_NUMBER("--v-head-size", read_int32, &m->v_head_size, 0, 1e6, 0),
        TOOL_NUMBER("--vocabulary", read_int64, &m->vocabulary, 0, 1e12, 0),
        TOOL_NUMBER("--experts", read_int32, &m->n_experts, 0, 1e6, 0),
        TOOL_NUMBER("--active-experts", read_int32, &m->n_active_experts, 0, 1e6, 0),
        TOOL_NUMBER("--latent", read_int32, &m->latent_size, 0, 1 << 24, 0),
        TOOL_NUMBER("--expert-ranks", read_int32, &o->expert_ranks, 1, 1 << 20, 0),
        TOOL_NUMBER("--sequence", read_int64, &desc->sequence, 1, 1e12, 0),
        TOOL_NUMBER("--batch", read_int64, &desc->global_batch, 1, 1e12, 0),
        TOOL_NUMBER("--micro-batch", read_int64, &desc->micro_batch, 1, 1e12, 0),
        TOOL_NUMBER("--gpus", read_int32, &c->n_gpus, 1, 1 << 20, 0),
        TOOL_NUMBER("--per-node", read_int32, &c->gpus_per_node, 1, 1 << 20, 0),
        TOOL_NUMBER("--memory", read_int64, &c->device_bytes, 0.001, 1e8, GIB),
        TOOL_NUMBER("--flops", read_real, &c->peak_flops_per_s, 0.001, 1e9, 1e12),
        TOOL_NUMBER("--gemm", read_real, &c->gemm_efficiency, 0.001, 1, 1),
        TOOL_NUMBER("--attention-forward", read_real, &c->attention_forward_efficiency, 0.001, 1,
                    1),
        TOOL_NUMBER("--attention-backward", read_real, &c->attention_backward_efficiency, 0.001, 1,
                    1),
        TOOL_NUMBER("--link", read_real, &c->link_bytes_per_s, 0.001, 1e9, 1e9),
        TOOL_NUMBER("--nic", read_real, &c->nic_bytes_per_s, 0.001, 1e9, 1e9),
        TOOL_NUMBER("--latency", read_real, &c->collective_s, 0, 1e9, 1e-6),
        TOOL_NUMBER("--processors", read_int32, &c->n_processors, 0, 1e6, 0),
        TOOL_NUMBER("--speed-deviation", read_real, &c->speed_deviation, 0, 1, 1),
        TOOL_NUMBER("--row-traffic", read_real, &c->row_traffic, 0, 1000, 1),
        TOOL_NUMBER("--tensor-copies", read_real, &c->tensor_copies, 0, 1000, 1),
        TOOL_VALUE("--attention-kernel", read_kernel, &o->kernel, "not cudnn or triton"),
        TOOL_NUMBER("--mlp-tile", read_real, &desc->mlp_tile_bytes, 0, 1e18, 1),
        TOOL_NUMBER("--window", read_int64, &desc->window, 0, 1e12, 0),
        TOOL_NUMBER("--document", read_int64, &desc->document, 0, 1e12, 0),
        TOOL_NUMBER("--memory-bandwidth", read_real, &c->device_memory_bytes_per_s, 0.001, 1e9,
                    1e9),
        TOOL_NUMBER("--host-memory", read_int64, &c->host_bytes, 0, 1e8, GIB),
        TOOL_NUMBER("--host-link", read_real, &c->host_bytes_per_s, 0.001, 1e9, 1e9),
        TOOL_NUMBER("--shared-bus", read_int32, &c->is_shared_bus, 0, 1, 0),
        TOOL_NUMBER("--zero", read_int32, &o->zero, 0, 3, 0),
        TOOL_NUMBER("--max-pipeline", read_int32, &desc->max_pipeline, 0, 1 << 20, 0),
        TOOL_NUMBER("--chunks", read_int32, &desc->max_chunks, 1, 1 << 20, 0),
        TOOL_NUMBER("--loss-tile", read_real, &desc->loss_tile_bytes, 0, 1e18, 1),
        TOOL_NUMBER("--ulysses-groups", read_int32, &desc->max_ulysses_groups, 0, 1e6, 0),
        TOOL_NUMBER("--top", read_int64, &o->n_top, 0, 1e9, 0),
        TOOL_VALUE("--activations", read_activations, &o->activations,
                   "not keep, recompute, selective, swap or offload"),
        TOOL_VALUE("--explain", read_layout, o, "not five degrees, such as 1,1,2,4,1"),
        TOOL_FLAG("--kv-heads-must-divide", &desc->kv_heads_must_divide),
        TOOL_FLAG("--optimizer-on-host", &desc->optimizer_on_host),
        TOOL_FLAG("--rounds-gradients", &o->rounds_gradients),
        TOOL_FLAG("--published", &o->is_published)};
    int status = 0;
    memset(o, 0, sizeof *o);
    o->model = &presets[1];
    o->cluster = &clusters[0];

    /* Twice, because figures of a preset must not replace those of options before it. */
    for (int round = 0; round < 2 && !status; round++) {
        memset(desc, 0, sizeof *desc);
        desc->model = o->model->model;
        desc->cluster = cluster_of_preset(o->cluster);
        desc->sequence = 65536;
        desc->cluster.n_gpus = 8;
        desc->global_batch = desc->micro_batch = desc->max_chunks = o->expert_ranks = 1;
        o->n_top = 20;
        o->zero = o->activations = -1;
        status = tool_read_options(err, "layout_plan", argc, argv, known,
                                   (int)(sizeof known / sizeof *known), NULL);
    }
    return status;
}

/* What depends on several options. */
static void finish_desc(options* o) {
    memo_parallel_desc* desc = &o->desc;
    memo_parallel_cluster* c = &desc->cluster;
    const double sequence = (double)desc->sequence;
    const double window = desc->window > 0 ? fmin((double)desc->window, sequence) : sequence;
    const cluster_rates rates = cluster_kernel_rates(
        o->kernel, o->cluster, desc->document > 0 ? fmin((double)desc->document, window) : window);
    if (c->gemm_efficiency <= 0) c->gemm_efficiency = rates.products;
    if (c->attention_forward_efficiency <= 0) c->attention_forward_efficiency = rates.forward;
    if (c->attention_backward_efficiency <= 0) c->attention_backward_efficiency = rates.backward;
    c->block_s = c->collective_s;
    if (o->rounds_gradients) desc->kv_gradient_bytes = 2;

    /* Without these options, the planner chooses. */
    if (o->zero >= 0) desc->zero_stages = 1u << o->zero;
    if (o->activations >= 0) desc->activations = 1u << o->activations;
}

/* Replaces the planner's field names by options. */
static void print_reason(FILE* out, const char* message) {
    static const char* const names[][2] = {{"model.n_kv_heads", "--kv-heads"},
                                           {"model.head_size", "--head-size"},
                                           {"kv_heads_must_divide", "--kv-heads-must-divide"}};
    enum { N_NAMES = sizeof names / sizeof *names };
    while (*message) {
        int k = 0;
        while (k < N_NAMES && strncmp(message, names[k][0], strlen(names[k][0]))) k++;
        if (k < N_NAMES)
            fputs(names[k][1], out);
        else
            fputc(*message, out);
        message += k < N_NAMES ? strlen(names[k][0]) : 1;
    }
}

static int refuse_desc(FILE* err, const memo_error* error) {
    fprintf(err, "layout_plan: ");
    print_reason(err, error->message);
    fprintf(err, "; --help lists the options\n");
    return 2;
}

/* ---- one layout ------------------------------------------------------------------------------ */

static int explain(const options* o, FILE* out, FILE* err) {
    memo_parallel_layout l = o->explained;
    memo_parallel_prediction p;
    memo_error error;
    memo_status status;

    l.zero_stage = o->zero >= 0 ? o->zero : memo_parallel_zero_default(&l);
    l.chunks = o->desc.max_chunks;
    l.experts = o->expert_ranks;
    l.activations =
        o->activations >= 0 ? (memo_parallel_activations)o->activations : MEMO_PARALLEL_KEEP;
    status = memo_parallel_predict(&o->desc, &l, &p, &error);

    /* An illegal layout is a result, not bad input. */
    if (status == MEMO_STATUS_INFEASIBLE) {
        fprintf(out, "illegal: ");
        print_reason(out, error.message);
        fprintf(out, "\n");
        return 1;
    }
    if (status) return refuse_desc(err, &error);
    fprintf(out,
            "legal: data %d, pipeline %d, tensor %d, ulysses %d, ring %d, ZeRO %d, activations %s",
            (int)l.data, (int)l.pipeline, (int)l.tensor, (int)l.ulysses, (int)l.ring,
            (int)l.zero_stage, memo_parallel_activations_name(l.activations));
    if (l.activations == MEMO_PARALLEL_SWAP) fprintf(out, ", alpha %.3f", p.alpha);
    if (l.chunks > 1) fprintf(out, ", %d chunks a stage", (int)l.chunks);
    if (p.ulysses_groups > 1) fprintf(out, ", %d groups of heads", (int)p.ulysses_groups);
    fprintf(out,
            "\nmemory, GiB of a GPU: parameters %.2f, gathered %.2f, gradients %.2f, optimizer "
            "%.2f, activations %.2f, attention %.2f, logits %.2f; %.2f of %.2f: %s\n",
            p.memory.parameters_bytes / GIB, p.memory.gathered_bytes / GIB,
            p.memory.gradients_bytes / GIB, p.memory.optimizer_bytes / GIB,
            p.memory.activations_bytes / GIB, p.memory.attention_bytes / GIB,
            p.memory.logits_bytes / GIB, p.memory.device_bytes / GIB,
            (double)o->desc.cluster.device_bytes / GIB, p.fits ? "fits" : "does not fit");

    if (p.memory.host_bytes > 0)
        fprintf(out, "host: %.2f GiB of a GPU\n", p.memory.host_bytes / GIB);

    fprintf(out, "sent, GB of a rank and step:");
    for (int kind = 0; kind < MEMO_PARALLEL_N_KINDS; kind++)
        fprintf(out, "%s %s %.3f%s", kind ? "," : "",
                memo_parallel_kind_name((memo_parallel_kind)kind), p.sent_bytes[kind] / 1e9,
                p.leaves_node[kind] ? " (between nodes)" : "");
    fprintf(
        out,
        "\ntime, s of a step: GEMM %.4f, attention %.4f, rows %.4f, recomputed %.4f, tensor %.4f, "
        "ulysses %.4f, ring %.4f, experts %.4f, pipeline %.4f, host %.4f, ZeRO %.4f, update %.4f, "
        "bubble %.4f, "
        "stragglers %.4f; "
        "%.4f\nMFU: %.1f %%\n",
        p.time.gemm_s, p.time.attention_s, p.time.rows_s, p.time.recompute_s, p.time.tensor_s,
        p.time.ulysses_s, p.time.ring_s, p.time.experts_s, p.time.pipeline_s, p.time.host_s,
        p.time.zero_s, p.time.update_s, p.time.bubble_s, p.time.straggler_s, p.time.step_s,
        100 * p.mfu);
    return 0;
}

/* ---- all layouts ----------------------------------------------------------------------------- */

static void print_entry(const memo_parallel_entry* entry, FILE* out) {
    const memo_parallel_layout* l = &entry->layout;
    const memo_parallel_prediction* p = &entry->prediction;
    double inside = 0, between = 0;
    char groups[20] = "";
    if (p->ulysses_groups > 1)
        (void)snprintf(groups, sizeof groups, "groups %d", (int)p->ulysses_groups);
    for (int kind = 0; kind < MEMO_PARALLEL_N_KINDS; kind++) {
        if (kind == MEMO_PARALLEL_HOST) continue;
        *(p->leaves_node[kind] ? &between : &inside) += p->sent_bytes[kind];
    }
    fprintf(out,
            "%4d %4d %6d %7d %6d %7d %4d %4d %-11s %-9s %6.1f %8.1f %10.2f %8.2f %9.3f %5.1f%s\n",
            (int)l->data, (int)l->pipeline, (int)l->chunks, (int)l->experts, (int)l->tensor,
            (int)l->ulysses, (int)l->ring, (int)l->zero_stage,
            memo_parallel_activations_name(l->activations), groups, p->memory.device_bytes / GIB,
            p->memory.host_bytes / GIB, inside / 1e9, between / 1e9, p->time.step_s, 100 * p->mfu,
            p->fits ? "" : "  does not fit");
}

static int print_list(const options* o, FILE* out, FILE* err) {
    memo_parallel_list* list;
    memo_error error;
    int64_t n;
    int status;
    if (memo_plan_layouts(&o->desc, &list, &error)) return refuse_desc(err, &error);
    n = o->n_top > 0 && list->n_legal > o->n_top ? o->n_top : list->n_legal;
    fprintf(out, "data pipe chunks experts tensor ulysses ring ZeRO activations attention    GiB "
                 "host GiB  GB inside  between    step s MFU %%\n");
    for (int64_t i = 0; i < n; i++) print_entry(&list->entries[i], out);
    fprintf(
        out,
        "%lld layouts: %lld fit, %lld do not, %lld are illegal (--explain D,P,T,U,R says why)\n",
        (long long)list->n_entries, (long long)list->n_fitting,
        (long long)(list->n_legal - list->n_fitting), (long long)(list->n_entries - list->n_legal));
    status = list->n_fitting == 0;
    memo_parallel_list_destroy(list);
    return status;
}

static int layout_plan(int argc, char** argv, FILE* out, FILE* err) {
    options o;
    int status = parse_options(argc, argv, &o, err);
    if (status < 0) {
        if (status == TOOL_VERSION) tool_print_version(out, "layout_plan");
        if (status == TOOL_HELP) print_help(out);
        return 0;
    }
    if (status) return status;
    if (o.is_published) {
        runs_print(out);
        return 0;
    }
    finish_desc(&o);
    return o.is_explained ? explain(&o, out, err) : print_list(&o, out, err);
}

int main(int argc, char** argv) {
    memo_error error;
    int code;
    tool_keep_standard_streams();
    code = layout_plan(argc, argv, stdout, stderr);
    if (!tool_flush(&error)) return code;
    fprintf(stderr, "layout_plan: %s\n", error.message);
    return 2;
}
