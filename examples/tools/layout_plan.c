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

#define GIB 1073741824.0

/* ---- options --------------------------------------------------------------------------------- */

/* Values as the user enters them, in the units of --help. */
typedef struct numbers {
    double layers, hidden, ffn, ffn_matrices, heads, kv_heads, head_size, v_head_size;
    double vocabulary, n_experts, active_experts, latent, expert_ranks, sequence, batch,
        micro_batch;
    double gpus, per_node, memory, flops, gemm, attention_forward, attention_backward, link, nic;
    double latency, deviation, processors, memory_bandwidth, host_memory, host_link, shared_bus;
    double zero, max_pipeline, chunks, ulysses_groups, loss_tile, mlp_tile, window, document, top;
} numbers;

typedef struct options {
    numbers n;
    int activations; /* -1: all */
    int kv_heads_must_divide, rounds_gradients, optimizer_on_host, has_zero;
    int is_explained, is_published;
    const cluster_preset* cluster;
    memo_parallel_layout explained;
} options;

typedef struct preset {
    const char* name;
    double layers, hidden, ffn, ffn_matrices, heads, kv_heads, vocabulary;
} preset;
static const preset presets[] = {{"llama2-7b", 32, 4096, 11008, 3, 32, 32, 32000},
                                 {"llama3-8b", 32, 4096, 14336, 3, 32, 8, 128256},
                                 {"llama3-70b", 80, 8192, 28672, 3, 64, 8, 128256},
                                 {"llama3-405b", 126, 16384, 53248, 3, 128, 8, 128256},
                                 {"gpt-7b", 32, 4096, 16384, 2, 32, 32, 50257},
                                 {"gpt-13b", 40, 5120, 20480, 2, 40, 40, 50257},
                                 {"gpt-30b", 48, 7168, 28672, 2, 56, 56, 50257},
                                 {"gpt-65b", 80, 8192, 32768, 2, 64, 64, 50257}};
enum { N_PRESETS = sizeof presets / sizeof *presets };

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
        "  --speed-deviation D     standard deviation of the GPUs' speed, of its mean (0.0133)\n"
        "  --latency US            start of a collective (20)\n"
        "  --memory-bandwidth GB/S bandwidth of a GPU's memory, for merges of ring blocks (1500)\n"
        "  --host-memory GIB       pinned memory of a node; 0: no swapping (0)\n"
        "  --host-link GB/S        bandwidth of a GPU to the host, each way (10)\n"
        "\n"
        "  --zero 0|1|2|3          considers only this stage of ZeRO\n"
        "  --activations keep|recompute|swap|offload\n"
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

static int refuse(FILE* err, const char* option, const char* what, const char* value) {
    return tool_refuse(err, "layout_plan", option, what, value);
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

static int parse_layout(const char* text, memo_parallel_layout* l) {
    int32_t* degrees[5];
    degrees[0] = &l->data;
    degrees[1] = &l->pipeline;
    degrees[2] = &l->tensor;
    degrees[3] = &l->ulysses;
    degrees[4] = &l->ring;
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

static void take_preset(numbers* n, const preset* p) {
    n->layers = p->layers;
    n->hidden = p->hidden;
    n->ffn = p->ffn;
    n->ffn_matrices = p->ffn_matrices;
    n->heads = p->heads;
    n->kv_heads = p->kv_heads;
    n->vocabulary = p->vocabulary;
}

static void take_cluster(numbers* n, const cluster_preset* c) {
    n->per_node = c->per_node;
    n->memory = c->memory;
    n->flops = c->flops;
    n->link = c->link;
    n->nic = c->nic;
    n->processors = c->processors;
    n->memory_bandwidth = c->memory_bandwidth;
    n->host_link = c->host_link;
    n->shared_bus = c->shared_bus;
}

/* Returns 0, or the exit status; -1 for help. */
static int parse_options(int argc, char** argv, options* o, FILE* err) {
    numbers* n = &o->n;
    const struct {
        const char* name;
        double *value, low, high; /* in the option's unit */
        int is_whole;
    } known[] = {{"--layers", &n->layers, 1, 1e6, 1},
                 {"--hidden", &n->hidden, 1, 1e8, 1},
                 {"--ffn", &n->ffn, 0, 1e9, 1},
                 {"--ffn-matrices", &n->ffn_matrices, 2, 3, 1},
                 {"--heads", &n->heads, 1, 1e6, 1},
                 {"--kv-heads", &n->kv_heads, 1, 1e6, 1},
                 {"--head-size", &n->head_size, 0, 1e6, 1},
                 {"--v-head-size", &n->v_head_size, 0, 1e6, 1},
                 {"--vocabulary", &n->vocabulary, 0, 1e12, 1},
                 {"--experts", &n->n_experts, 0, 1e6, 1},
                 {"--active-experts", &n->active_experts, 0, 1e6, 1},
                 {"--latent", &n->latent, 0, 1 << 24, 1},
                 {"--expert-ranks", &n->expert_ranks, 1, 1 << 20, 1},
                 {"--sequence", &n->sequence, 1, 1e12, 1},
                 {"--batch", &n->batch, 1, 1e12, 1},
                 {"--micro-batch", &n->micro_batch, 1, 1e12, 1},
                 {"--gpus", &n->gpus, 1, 1 << 20, 1},
                 {"--per-node", &n->per_node, 1, 1 << 20, 1},
                 {"--memory", &n->memory, 0.001, 1e8, 0},
                 {"--flops", &n->flops, 0.001, 1e9, 0},
                 {"--gemm", &n->gemm, 0.001, 1, 0},
                 {"--attention-forward", &n->attention_forward, 0.001, 1, 0},
                 {"--attention-backward", &n->attention_backward, 0.001, 1, 0},
                 {"--link", &n->link, 0.001, 1e9, 0},
                 {"--nic", &n->nic, 0.001, 1e9, 0},
                 {"--latency", &n->latency, 0, 1e9, 0},
                 {"--processors", &n->processors, 0, 1e6, 1},
                 {"--speed-deviation", &n->deviation, 0, 1, 0},
                 {"--mlp-tile", &n->mlp_tile, 0, 1e18, 0},
                 {"--window", &n->window, 0, 1e12, 1},
                 {"--document", &n->document, 0, 1e12, 1},
                 {"--memory-bandwidth", &n->memory_bandwidth, 0.001, 1e9, 0},
                 {"--host-memory", &n->host_memory, 0, 1e8, 0},
                 {"--host-link", &n->host_link, 0.001, 1e9, 0},
                 {"--shared-bus", &n->shared_bus, 0, 1, 1},
                 {"--zero", &n->zero, 0, 3, 1},
                 {"--max-pipeline", &n->max_pipeline, 0, 1 << 20, 1},
                 {"--chunks", &n->chunks, 1, 1 << 20, 1},
                 {"--loss-tile", &n->loss_tile, 0, 1e18, 0},
                 {"--ulysses-groups", &n->ulysses_groups, 0, 1e6, 1},
                 {"--top", &n->top, 0, 1e9, 1}};
    const int n_known = (int)(sizeof known / sizeof *known);
    int j;

    /* Defaults. */
    memset(o, 0, sizeof *o);
    take_preset(n, &presets[1]);
    n->sequence = 65536;
    n->gpus = 8;
    o->cluster = &clusters[0];
    take_cluster(n, o->cluster);
    n->latency = n->top = 20;
    n->deviation = CLUSTER_SPEED_DEVIATION;
    n->batch = n->micro_batch = n->chunks = n->expert_ranks = 1;
    o->activations = -1;

    /* Reads the presets first, so that the order of the options does not matter. */
    for (int i = 1; i + 1 < argc; i++) {
        if (!strncmp(argv[i + 1], "--", 2)) continue;
        if (!strcmp(argv[i], "--model")) {
            for (j = 0; j < N_PRESETS && strcmp(argv[i + 1], presets[j].name); j++) continue;
            if (j == N_PRESETS) return refuse(err, "--model", "no such preset", argv[i + 1]);
            take_preset(n, &presets[j]);
        } else if (!strcmp(argv[i], "--cluster")) {
            j = cluster_find(argv[i + 1]);
            if (j == N_CLUSTERS) return refuse(err, "--cluster", "no such preset", argv[i + 1]);
            o->cluster = &clusters[j];
            take_cluster(n, o->cluster);
        }
    }

    /* The options. */
    for (int i = 1; i < argc; i++) {
        const char* name = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(name, "--help") || !strcmp(name, "-h")) return -1;
        if (!strcmp(name, "--kv-heads-must-divide")) {
            o->kv_heads_must_divide = 1;
            continue;
        }
        if (!strcmp(name, "--rounds-gradients")) {
            o->rounds_gradients = 1;
            continue;
        }
        if (!strcmp(name, "--optimizer-on-host")) {
            o->optimizer_on_host = 1;
            continue;
        }
        if (!strcmp(name, "--published")) {
            o->is_published = 1;
            continue;
        }
        for (j = 0; j < n_known && strcmp(name, known[j].name); j++) continue;
        if (j == n_known && strcmp(name, "--model") && strcmp(name, "--cluster") &&
            strcmp(name, "--activations") && strcmp(name, "--explain"))
            return refuse(err, name, "unknown option", NULL);
        if (!value || !strncmp(value, "--", 2)) return refuse(err, name, "no value", NULL);

        i++;
        if (j < n_known) {
            char what[100];
            (void)snprintf(what, sizeof what, "not a %snumber from %.15g to %.15g",
                           known[j].is_whole ? "whole " : "", known[j].low, known[j].high);
            if (!parse_number(value, known[j].value) || *known[j].value < known[j].low ||
                *known[j].value > known[j].high ||
                (known[j].is_whole && floor(*known[j].value) < *known[j].value))
                return refuse(err, name, what, value);
            o->has_zero |= known[j].value == &n->zero;
        } else if (!strcmp(name, "--activations")) {
            for (j = 0; j < MEMO_PARALLEL_N_ACTIVATIONS; j++)
                if (!strcmp(value, memo_parallel_activations_name((memo_parallel_activations)j)))
                    o->activations = j;
            if (o->activations < 0)
                return refuse(err, name, "not keep, recompute, swap or offload", value);
        } else if (!strcmp(name, "--explain")) {
            o->is_explained = 1;
            if (!parse_layout(value, &o->explained))
                return refuse(err, name, "not five degrees, such as 1,1,2,4,1", value);
        }
    }
    return 0;
}

static memo_parallel_desc make_desc(const options* o) {
    memo_parallel_desc desc = {0};
    const numbers* n = &o->n;
    const double keys = n->window > 0 ? fmin(n->window, n->sequence) : n->sequence;
    const cluster_rates rates =
        cluster_rates_of(o->cluster, n->document > 0 ? fmin(n->document, keys) : keys);

    /* The model and the cluster. */
    desc.model.n_layers = (int32_t)n->layers;
    desc.model.hidden = (int32_t)n->hidden;
    desc.model.ffn = (int32_t)n->ffn;
    desc.model.n_ffn_matrices = (int32_t)n->ffn_matrices;
    desc.model.n_q_heads = (int32_t)n->heads;
    desc.model.n_kv_heads = (int32_t)n->kv_heads;
    desc.model.head_size = (int32_t)n->head_size;
    desc.model.v_head_size = (int32_t)n->v_head_size;
    desc.model.vocabulary = (int64_t)n->vocabulary;
    desc.model.n_experts = (int32_t)n->n_experts;
    desc.model.n_active_experts = (int32_t)n->active_experts;
    desc.model.latent_size = (int32_t)n->latent;
    desc.cluster.n_gpus = (int32_t)n->gpus;
    desc.cluster.gpus_per_node = (int32_t)n->per_node;
    desc.cluster.is_shared_bus = (int32_t)n->shared_bus;
    desc.cluster.device_bytes = (int64_t)(n->memory * GIB < 9e18 ? n->memory * GIB : 9e18);
    desc.cluster.peak_flops_per_s = n->flops * 1e12;
    desc.cluster.gemm_efficiency = n->gemm > 0 ? n->gemm : rates.products;
    desc.cluster.attention_forward_efficiency =
        n->attention_forward > 0 ? n->attention_forward : rates.forward;
    desc.cluster.attention_backward_efficiency =
        n->attention_backward > 0 ? n->attention_backward : rates.backward;
    desc.cluster.n_processors = (int32_t)n->processors;
    desc.cluster.speed_deviation = n->deviation;
    desc.cluster.link_bytes_per_s = n->link * 1e9;
    desc.cluster.nic_bytes_per_s = n->nic * 1e9;
    desc.cluster.collective_s = desc.cluster.block_s = n->latency * 1e-6;
    desc.cluster.device_memory_bytes_per_s = n->memory_bandwidth * 1e9;
    desc.cluster.host_bytes = (int64_t)(n->host_memory * GIB < 9e18 ? n->host_memory * GIB : 9e18);
    desc.cluster.host_bytes_per_s = n->host_link * 1e9;

    /* The step. */
    desc.sequence = (int64_t)n->sequence;
    desc.global_batch = (int64_t)n->batch;
    desc.micro_batch = (int64_t)n->micro_batch;
    desc.loss_tile_bytes = n->loss_tile;
    desc.mlp_tile_bytes = n->mlp_tile;
    desc.window = (int64_t)n->window;
    desc.document = (int64_t)n->document;
    desc.optimizer_on_host = o->optimizer_on_host;
    desc.kv_heads_must_divide = o->kv_heads_must_divide;
    if (o->rounds_gradients) desc.kv_gradient_bytes = 2;

    /* Without these options, the planner chooses. */
    if (o->has_zero) desc.zero_stages = 1u << (int)n->zero;
    if (o->activations >= 0) desc.activations = 1u << o->activations;
    desc.max_pipeline = (int32_t)n->max_pipeline;
    desc.max_chunks = (int32_t)n->chunks;
    desc.max_ulysses_groups = (int32_t)n->ulysses_groups;
    return desc;
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

static int explain(const memo_parallel_desc* desc, const options* o, FILE* out, FILE* err) {
    memo_parallel_layout l = o->explained;
    memo_parallel_prediction p;
    memo_error error;
    memo_status status;

    l.zero_stage = o->has_zero ? (int32_t)o->n.zero : memo_parallel_zero_default(&l);
    l.chunks = (int32_t)o->n.chunks;
    l.experts = (int32_t)o->n.expert_ranks;
    l.activations =
        o->activations >= 0 ? (memo_parallel_activations)o->activations : MEMO_PARALLEL_KEEP;
    status = memo_parallel_predict(desc, &l, &p, &error);

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
            p.memory.logits_bytes / GIB, p.memory.device_bytes / GIB, o->n.memory,
            p.fits ? "fits" : "does not fit");

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

static int print_list(const memo_parallel_desc* desc, const options* o, FILE* out, FILE* err) {
    memo_parallel_list* list;
    memo_error error;
    int64_t n;
    int status;
    if (memo_plan_layouts(desc, &list, &error)) return refuse_desc(err, &error);
    n = o->n.top > 0 && (double)list->n_legal > o->n.top ? (int64_t)o->n.top : list->n_legal;
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
    memo_parallel_desc desc;
    options o;
    int status = parse_options(argc, argv, &o, err);
    if (status < 0) {
        print_help(out);
        return 0;
    }
    if (status) return status;
    if (o.is_published) {
        runs_print(out);
        return 0;
    }
    desc = make_desc(&o);
    return o.is_explained ? explain(&desc, &o, out, err) : print_list(&desc, &o, out, err);
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
