/* bench/batches.c - rings over batches of documents: simulated time over the ideal, and the time to
 * plan.
 *
 *   cc -O2 -I. bench/batches.c -lpthread -lm && ./a.out [RING [DOCUMENTS [ROW [SEED]]]]
 *
 * Each case is 131,072 tokens in documents of log-normal lengths, on a ring, flat or in nodes of 8.
 * What every rank's engine enqueues is recorded on paper and simulated.  RING 0 and DOCUMENTS 0: all
 * (8 to 128; 100 to 10,000).  All links have a fixed speed, so a sharding that sends fewer rows
 * gains by it: a row of keys takes as long as ROW pairs of a query and a key (10; 0: no time),
 * between nodes 10 times that.  (An H100 that does 500 TFLOP/s and sends 370 GB/s, with 4 query
 * heads a key head: about 340.)
 *
 *   ideal      visible pairs / ranks * time of a pair: perfect balance, no communication
 *   busiest    pairs of the rank with most / the mean: what the sharding loses
 *   links      time in which a rank receives keys / ideal: the mean of all ranks, of the slower link
 *   plan ms    processor time of memo_exchange_create on one rank, the least of 3
 *   forward    simulated makespan / ideal; backward: the same, with 2.5 times the work and keys'
 *              gradients in fp32 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "bench/ring_schedule.h"
#include "bench/check.h"
#include "bench/median.h"

enum { N_TOKENS = 131072, WINDOW = 1024, FAMILY = 9 /* a prompt and its answers */ };
enum { ROW_BYTES = 2 * 2 * 128 /* bf16 */, NODES_SLOWER = 10 };

/* CROSS: queries of a document see all keys of another, whose length has nothing to do with it. */
typedef enum kind { CAUSAL, WINDOWS, TREES, CROSS, N_KINDS } kind;
static const char* const kind_names[] = {"causal", "windows", "trees", "cross"};

typedef struct batch {
    kind mask_kind;
    int32_t ring, n_nodes;
    int64_t n_documents, *begins, *parents, *key_begins;
    memo_sp_attention_desc desc;
    memo_mask mask;
    double n_pairs, busiest;
} batch;

/* Nearly normal: the sum of 12 uniform numbers. */
static double next_normal(uint64_t* seed) {
    double normal = -6;
    for (int k = 0; k < 12; k++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        normal += (double)(*seed >> 40) / (1 << 24);
    }
    return normal;
}

/* Documents of log-normal lengths; the first of `family` ones is longer.  Returns where they begin. */
static int64_t* made_begins(int64_t n, double deviation, int64_t family, uint64_t* seed) {
    double *weights = (double*)calloc((size_t)n, sizeof *weights), all = 0, so_far = 0;
    int64_t* begins = (int64_t*)calloc((size_t)n + 1, sizeof *begins);
    if (!weights || !begins) exit(1);
    for (int64_t i = 0; i < n; i++) {
        weights[i] = exp(deviation * next_normal(seed)) * (family && i % family == 0 ? 4 : 1);
        all += weights[i];
    }
    for (int64_t i = 0; i < n; i++) {
        so_far += weights[i];
        begins[i + 1] = i + 1 < n ? (int64_t)(N_TOKENS * so_far / all) : (int64_t)N_TOKENS;
    }
    free(weights);
    return begins;
}

static memo_mask made_cross(const batch* b) {
    memo_mask mask = {NULL, 0};
    memo_segment* list = (memo_segment*)calloc((size_t)b->n_documents + 1, sizeof *list);
    if (!list) exit(1);
    check(
        memo_mask_cross(b->begins, b->key_begins, b->n_documents, list, &mask.n_segments, &error));
    mask.segments = list;
    return mask;
}

/* The shardings and the mask. */
static void make_batch(batch* b, uint64_t seed) {
    const int is_tree = b->mask_kind == TREES;
    memo_sharding_desc sharding = {0};
    memo_mask_desc mask = {0};
    b->begins = made_begins(b->n_documents, is_tree ? 0.5 : 1.2, is_tree ? FAMILY : 0, &seed);
    b->parents = (int64_t*)calloc((size_t)b->n_documents, sizeof *b->parents);
    if (!b->parents) exit(1);
    for (int64_t i = 0; i < b->n_documents; i++)
        b->parents[i] = i % FAMILY ? i / FAMILY * FAMILY : -1;
    sharding.kind = MEMO_SHARDING_DOCUMENTS;
    sharding.ring = b->ring;
    sharding.n_tokens = mask.n_tokens = N_TOKENS;
    sharding.document_begins = mask.document_begins = b->begins;
    sharding.n_documents = mask.n_documents = b->n_documents;
    if (is_tree) sharding.document_parents = mask.document_parents = b->parents;
    if (b->mask_kind == WINDOWS) mask.window_before = WINDOW;
    if (b->mask_kind == CROSS) {
        sharding.document_begins = b->key_begins = made_begins(b->n_documents, 1.2, 0, &seed);
        check(memo_sharding_make(&sharding, &b->desc.key_sharding, &error));
        sharding.document_begins = b->begins;
    }
    b->mask = b->mask_kind == CROSS ? made_cross(b) : made_mask(&mask);
    if (b->mask_kind == WINDOWS || b->mask_kind == CROSS) {
        sharding.segments = b->mask.segments;
        sharding.n_segments = b->mask.n_segments;
    }
    check(memo_sharding_make(&sharding, &b->desc.sharding, &error));
    b->desc.n_q_heads = b->desc.n_kv_heads = 1;
    b->desc.head_size = 128;
    b->desc.type = MEMO_TYPE_BF16;
    b->desc.n_nodes = b->n_nodes;
    b->desc.has_levels = b->mask_kind == TREES;
}

static void free_batch(batch* b) {
    memo_sharding_free(&b->desc.sharding);
    if (b->key_begins) memo_sharding_free(&b->desc.key_sharding);
    free(b->key_begins);
    made_mask_free(&b->mask);
    free(b->begins);
    free(b->parents);
}

static memo_status attend_nothing(void* user, memo_stream stream, const memo_attention_block* block,
                                  memo_error* e) {
    (void)user, (void)stream, (void)block, (void)e;
    return MEMO_STATUS_OK;
}

/* Plans the exchange of one rank. */
static double plan_s(const batch* b) {
    static ring_paper paper;
    const int32_t rank = b->ring / 2, n = b->ring / b->n_nodes;
    memo_recorder_desc recorder_desc = {0};
    memo_sp_attention_desc desc = b->desc;
    memo_exchange_desc exchange_desc = {0};
    memo_recorder* recorder = NULL;
    memo_sp_attention* attention = NULL;
    memo_exchange* exchange = NULL;
    memo_comm ring = ring_paper_comm(&paper, rank, b->ring);
    memo_comm nodes = ring_paper_comm(&paper, rank / n, b->n_nodes);
    double best_s = 1e9;
    recorder_desc.on_paper = 1;
    check(memo_recorder_create(&recorder_desc, &recorder, &error));
    memo_recorder_pause(recorder);
    desc.device = memo_recorder_get_device(recorder);
    desc.ring = &ring;
    desc.nodes = b->n_nodes > 1 ? &nodes : NULL;
    desc.attention.forward = desc.attention.backward = attend_nothing;
    desc.device_memory = (void*)((uintptr_t)1 << 40); /* never accessed */
    check(memo_stream_create(desc.device, "compute", 0, &desc.stream, &error));
    check(memo_sp_attention_create(&desc, &attention, &error));
    exchange_desc.masks = &b->mask;
    for (int k = 0; k < 3; k++) {
        const clock_t begin = clock();
        check(memo_exchange_create(attention, &exchange_desc, &exchange, &error));
        best_s = fmin(best_s, (double)(clock() - begin) / CLOCKS_PER_SEC);
        memo_exchange_destroy(exchange);
    }
    memo_sp_attention_destroy(attention);
    memo_recorder_destroy(recorder);
    return best_s;
}

/* The mean bytes that a rank sends within its node, and to others; the time of the rank that
 * computes longest. */
typedef struct load {
    double ring_bytes, nodes_bytes, busiest_s;
    int64_t n_groups; /* of messages, on all ranks */
} load;

static load load_of(const batch* b, const memo_schedule* schedule) {
    load all = {0, 0, 0, 0};
    double computed_s[RING_SCHEDULE_RANKS] = {0};
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        const char* name = schedule->text + op->name;
        if (op->kind != MEMO_OP_RUN) continue;
        if (!strncmp(name, "ring exchange", 13)) all.ring_bytes += (double)op->link_bytes / b->ring;
        if (!strncmp(name, "node ", 5)) all.nodes_bytes += (double)op->link_bytes / b->ring;
        all.n_groups += op->link_bytes > 0;
        if (!strncmp(name, "attention", 9)) {
            const char* stream = schedule->text + schedule->streams[op->stream];
            computed_s[atoi(strrchr(stream, ' '))] += op->duration_s;
        }
    }
    for (int32_t r = 0; r < b->ring; r++) all.busiest_s = fmax(all.busiest_s, computed_s[r]);
    return all;
}

/* The makespan of a pass, over the ideal. */
static double simulate(const batch* b, int is_backward, const ring_costs* costs, load* measured) {
    memo_schedule* schedule = NULL;
    memo_simulation* simulation = NULL;
    double makespan_s;
    check(memo_schedule_create(&schedule, &error));
    check(ring_schedule(&b->desc, &b->mask, is_backward, costs, schedule, &error));
    check(memo_schedule_simulate(schedule, &simulation, &error));
    makespan_s = simulation->makespan_s;
    if (measured) *measured = load_of(b, schedule);
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
    return makespan_s;
}

/* The time in which a rank receives, in seconds. */
static double links_s(const ring_costs* costs, const load* sent) {
    const double ring =
        costs->ring_bytes_per_s > 0 ? sent->ring_bytes / costs->ring_bytes_per_s : 0;
    const double nodes =
        costs->nodes_bytes_per_s > 0 ? sent->nodes_bytes / costs->nodes_bytes_per_s : 0;
    return fmax(ring, nodes);
}

static void report(int32_t ring, int32_t n_nodes, kind mask_kind, int64_t n_documents, double row,
                   uint64_t seed, double worst[2]) {
    batch b = {0};
    ring_costs costs;
    load sent;
    double ratios[2], ideal_s;
    b.ring = ring;
    b.n_nodes = n_nodes;
    b.mask_kind = mask_kind;
    b.n_documents = n_documents;
    make_batch(&b, seed);
    memset(&costs, 0, sizeof costs);
    costs.forward_s_per_score = 1e-9;
    costs.backward_s_per_score = 2.5e-9;
    ideal_s = count_pairs_of(b.mask.segments, b.mask.n_segments) / ring * costs.forward_s_per_score;

    if (row > 0) costs.ring_bytes_per_s = ROW_BYTES / (row * costs.forward_s_per_score);
    if (row > 0) costs.nodes_bytes_per_s = costs.ring_bytes_per_s / NODES_SLOWER;
    for (int k = 0; k < 2; k++) {
        ratios[k] = simulate(&b, k, &costs, k ? NULL : &sent) / ideal_s / (k ? 2.5 : 1);
        worst[k] = fmax(worst[k], ratios[k]);
    }
    printf("%4d  %5d  %-7s  %9lld  %6lld  %7.3f  %5.3f  %8.2f  %7.3f  %8.3f\n", (int)ring,
           (int)n_nodes, kind_names[mask_kind], (long long)n_documents, (long long)sent.n_groups,
           sent.busiest_s / ideal_s, links_s(&costs, &sent) / ideal_s, 1e3 * plan_s(&b), ratios[0],
           ratios[1]);
    fflush(stdout);
    free_batch(&b);
}

int main(int argc, char** argv) {
    static const int64_t documents[] = {100, 1000, 5000, 10000};
    double worst[2] = {0, 0};
    bench_help(argc, argv, "[RING [DOCUMENTS [ROW [SEED]]]]");
    const int32_t only_ring = (int32_t)bench_number(argc, argv, 1, 0, 0, RING_SCHEDULE_RANKS);
    const int64_t only_documents = (int64_t)bench_number(argc, argv, 2, 0, 0, 100000);
    const double row = bench_number(argc, argv, 3, 10, 0, 1e6);
    const uint64_t seed = (uint64_t)bench_number(argc, argv, 4, 1, 0, 1e9);
    printf("131,072 tokens; a row takes %g pairs; simulated time over the ideal\n\n"
           "ring  nodes  mask     documents  groups  busiest  links   plan ms  forward  backward\n",
           row);
    for (int32_t ring = 8; ring <= RING_SCHEDULE_RANKS; ring *= 2)
        for (int i = 0; i < 2 * N_KINDS * 4; i++) {
            const int32_t n_nodes = i / (N_KINDS * 4) ? ring / 8 : 1;
            const int64_t n_documents = documents[i % 4];
            if (only_ring && ring != only_ring) continue;
            if (only_documents && n_documents != only_documents) continue;
            if (i >= N_KINDS * 4 && n_nodes == 1) continue;
            report(ring, n_nodes, (kind)(i / 4 % N_KINDS), n_documents, row, seed, worst);
        }
    printf("\nworst: forward %.3f, backward %.3f\n", worst[0], worst[1]);
    return 0;
}
