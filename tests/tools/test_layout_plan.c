/* test_layout_plan.c - the planner of layouts against a list by brute force, independent formulas
 * and tips of the paper; the tool layout_plan. */
#define main layout_plan_main
#include "tools/layout_plan.c"
#undef main

#include "owned.h"

/* ---- cases ----------------------------------------------------------------------------------- */

static memo_parallel_model make_model(int layers, int hidden, int ffn, int q_heads, int kv_heads,
                                      int64_t vocabulary) {
    const memo_parallel_model m = {layers, hidden, ffn,        q_heads, kv_heads, 0, 0,
                                   0,      0,      vocabulary, 0,       0,        0};
    return m;
}
static memo_parallel_model llama2_7b(void) { return make_model(32, 4096, 11008, 32, 32, 32000); }
static memo_parallel_model llama3_8b(void) { return make_model(32, 4096, 14336, 32, 8, 128256); }

/* The paper's nodes of 8 A800, and its attention: one group of heads, keys go round. */
static memo_parallel_desc make_case(memo_parallel_model model, int n_gpus, int64_t sequence,
                                    int64_t batch) {
    memo_parallel_desc d = {.model = model,
                            .cluster.n_gpus = n_gpus,
                            .cluster.gpus_per_node = 8,
                            .cluster.device_bytes = (int64_t)80 << 30,
                            .cluster.peak_flops_per_s = 312e12,
                            .cluster.link_bytes_per_s = 150e9,
                            .cluster.nic_bytes_per_s = 20e9,
                            .cluster.device_memory_bytes_per_s = 1.5e12};
    d.cluster.collective_s = d.cluster.block_s = 20e-6;
    d.cluster.host_bytes = (int64_t)1000 << 30;
    d.cluster.host_bytes_per_s = 10e9;
    d.sequence = sequence;
    d.global_batch = batch;
    d.excludes_attention_memory = d.max_ulysses_groups = 1;
    return d;
}

static memo_parallel_layout make_layout(int data, int pipeline, int tensor, int ulysses, int ring,
                                        int zero) {
    const memo_parallel_layout l = {data, pipeline,           tensor, ring, ulysses,
                                    zero, MEMO_PARALLEL_KEEP, 1,      1};
    return l;
}

static memo_parallel_prediction predict(const memo_parallel_desc* d,
                                        const memo_parallel_layout* l) {
    memo_parallel_prediction p;
    CHECK_OK(memo_parallel_predict(d, l, &p, &error));
    return p;
}

static memo_parallel_list* list_of(const memo_parallel_desc* d) {
    memo_parallel_list* list = NULL;
    CHECK_OK(memo_plan_layouts(d, &list, &error));
    return list;
}

static memo_parallel_attention attend(const memo_parallel_desc* d, const memo_parallel_layout* l,
                                      int is_backward) {
    memo_parallel_prediction p = predict(d, l);
    return is_backward ? p.backward : p.forward;
}

static int64_t pick(const int64_t* values, int n) { return values[memo_test_int(0, n - 1)]; }

static memo_parallel_desc random_case(void) {
    static const int64_t gpus[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 30, 32, 48, 64};
    static const int64_t nodes[] = {1, 2, 4, 6, 8, 16};
    static const int64_t kv[] = {1, 2, 3, 4, 6, 8}, groups[] = {1, 2, 3, 4, 8};
    static const int64_t layers[] = {1, 2, 3, 4, 6, 8, 12, 24};
    int kv_heads = (int)pick(kv, 6), q_heads = kv_heads * (int)pick(groups, 5);
    memo_parallel_model m =
        make_model((int)pick(layers, 8), q_heads * 16 * (int)memo_test_int(1, 4),
                   (int)memo_test_int(0, 6) * 96, q_heads, kv_heads, memo_test_int(0, 50000));
    memo_parallel_desc d =
        make_case(m, (int)pick(gpus, 13), memo_test_int(1, 40000), memo_test_int(1, 24));
    d.model.n_ffn_matrices = (int32_t)memo_test_int(2, 3);
    d.model.is_tied = (int32_t)memo_test_int(0, 1);
    d.model.head_size = memo_test_int(0, 1) ? 0 : (int32_t)memo_test_int(8, 160);
    d.model.v_head_size = memo_test_int(0, 1) ? 0 : (int32_t)memo_test_int(8, 160);
    d.cluster.gpus_per_node = (int32_t)pick(nodes, 6);
    d.cluster.device_bytes = memo_test_int(1, 4000) << 20;
    d.cluster.host_bytes = memo_test_int(0, 3) ? memo_test_int(1, 40000) << 20 : 0;
    d.cluster.is_shared_bus = (int32_t)memo_test_int(0, 1);
    d.micro_batch = memo_test_int(1, 3);
    d.kv_heads_must_divide = memo_test_int(0, 3) == 0;
    d.is_contiguous = memo_test_int(0, 3) == 0;
    d.excludes_attention_memory = (int32_t)memo_test_int(0, 1);
    return d;
}

/* Some legal layout of a random case; 0 if 200 random ones are not. */
static int random_legal(memo_parallel_desc* d, memo_parallel_layout* l) {
    int32_t* const degrees[] = {&l->data, &l->pipeline, &l->tensor, &l->ulysses, &l->ring};
    *d = random_case();
    for (int trial = 0; trial < 200; trial++) {
        int32_t left = d->cluster.n_gpus, first = (int32_t)memo_test_int(0, 4);
        memo_parallel_prediction p;
        for (int i = 0; i < 5; i++) { /* the last one takes the rest */
            int32_t* degree = degrees[(first + i) % 5];
            do *degree = i < 4 ? (int32_t)memo_test_int(1, left) : left;
            while (left % *degree);
            left /= *degree;
        }
        l->zero_stage = (int32_t)memo_test_int(0, 3);
        l->activations = (memo_parallel_activations)memo_test_int(0, 4);
        l->experts = 1;
        l->chunks = l->pipeline > 1 ? (int32_t)memo_test_int(0, 4) : 0;
        if (memo_parallel_predict(d, l, &p, NULL) == MEMO_STATUS_OK) return 1;
    }
    return 0;
}

/* ---- stages ---------------------------------------------------------------------------------- */

static int chunks_of(const memo_parallel_layout* l) { return l->chunks > 1 ? l->chunks : 1; }

/* Layers of each stage: whole chunks, of which stages give back a layer in turn. */
static int layers_of(const memo_parallel_desc* d, const memo_parallel_layout* l, int stage) {
    const int pipeline = l->pipeline, n_chunks = pipeline * chunks_of(l), n = d->model.n_layers;
    const int whole = (n + n_chunks - 1) / n_chunks;
    int given = whole * n_chunks - n, mine = whole * chunks_of(l);
    for (int turn = 0; given > 0; turn++, given--) {
        const int k = turn % pipeline;
        mine -= stage == (k == 0 ? 0 : k == 1 ? pipeline - 1 : k - 1);
    }
    return mine;
}

static double stage_parameters(const memo_parallel_desc* d, const memo_parallel_layout* l,
                               int stage) {
    const double vocabulary = (double)d->model.vocabulary * d->model.hidden;
    const int is_first = stage == 0, is_last = stage == l->pipeline - 1;
    return (layers_of(d, l, stage) * memo_parallel_layer_parameters(&d->model) +
            (is_first && is_last && d->model.is_tied ? 1 : is_first + is_last) * vocabulary) /
           l->tensor;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Written from the rules, not from the planner. */
static int is_legal(const memo_parallel_desc* d, int data, int pipeline, int tensor, int ulysses,
                    int ring, int zero, int activations, int chunks) {
    const memo_parallel_model* m = &d->model;
    int64_t micro = d->micro_batch ? d->micro_batch : 1;
    int is_split = tensor <= m->n_kv_heads && m->n_kv_heads % tensor == 0 && m->ffn % tensor == 0;
    int is_headed = tensor * ulysses <= m->n_q_heads &&
                    (!d->kv_heads_must_divide || m->n_kv_heads % (tensor * ulysses) == 0);
    int is_long = d->sequence >= 2 * tensor * ulysses * ring;
    int is_batched = d->global_batch % ((int64_t)data * micro) == 0;
    int most = m->n_layers + (m->vocabulary > 0 ? 2 : 0);
    int is_staged = (pipeline == 1 && chunks == 1) || (pipeline > 1 && pipeline * chunks <= most);
    int whole = (m->n_layers + pipeline * chunks - 1) / (pipeline * chunks) * chunks;
    int is_sharded = zero == 0 || data * ulysses * ring > 1;
    /* The first stage has fewest layers. */
    int n_first = whole - (whole * pipeline - m->n_layers + pipeline - 1) / pipeline;
    int has_host = d->cluster.host_bytes > 0;
    int is_swapped = activations < 3 || (has_host && (n_first > 2 || activations == 4));
    return is_split && is_headed && is_long && is_batched && is_staged && is_sharded && is_swapped;
}

static int64_t layout_code(const memo_parallel_layout* l) {
    return (((((((int64_t)l->data * 128 + l->pipeline) * 128 + l->tensor) * 128 + l->ulysses) *
                  128 +
              l->ring) *
                 8 +
             l->chunks) *
                4 +
            l->zero_stage) *
               8 +
           (int64_t)l->activations;
}

static int compare_codes(const void* left, const void* right) {
    int64_t a = *(const int64_t*)left, b = *(const int64_t*)right;
    return (a > b) - (a < b);
}

/* Ways to write n as a product of k numbers. */
static int n_products(int n, int k) {
    int sum = k == 1;
    for (int first = 1; first <= n && k > 1; first++)
        if (n % first == 0) sum += n_products(n / first, k - 1);
    return sum;
}

/* The same every time, the fastest first and then the smallest. */
TEST(lists_are_whole_and_sorted) {
    for (int round = 0; round < 60; round++) {
        memo_parallel_desc desc = random_case();
        desc.max_chunks = memo_test_int(0, 1) ? 5 : 0;
        own_list *list = list_of(&desc), *again = list_of(&desc);
        int n = desc.cluster.n_gpus;
        IN_CASE("round %d", round);
        int64_t n_expected, n_legal = 0, *codes;
        /* Of 1, 2 and 4 chunks, layouts without a pipeline have one number. */
        n_expected =
            4 * MEMO_PARALLEL_N_ACTIVATIONS *
            (desc.max_chunks ? 3 * n_products(n, 5) - 2 * n_products(n, 4) : n_products(n, 5));
        codes = (int64_t*)calloc((size_t)list->n_entries, sizeof *codes);
        for (int64_t i = 0; i < list->n_entries; i++) {
            const memo_parallel_entry* e = &list->entries[i];
            const memo_parallel_layout* l = &e->layout;
            int legal = is_legal(&desc, l->data, l->pipeline, l->tensor, l->ulysses, l->ring,
                                 l->zero_stage, (int)l->activations, l->chunks);
            CHECK_IS(l->data * l->pipeline * l->tensor * l->ulysses * l->ring, ==, n);
            CHECK_CASE(legal == (e->reason[0] == 0), "%d-%d-%d-%d-%d zero %d act %d: %s",
                       (int)l->data, (int)l->pipeline, (int)l->tensor, (int)l->ulysses,
                       (int)l->ring, (int)l->zero_stage, (int)l->activations, e->reason);
            CHECK_IS(legal, ==, (i < list->n_legal));
            CHECK(!legal || e->prediction.fits == (i < list->n_fitting));
            n_legal += legal;
            codes[i] = layout_code(l);
            CHECK_IS(codes[i], ==, layout_code(&again->entries[i].layout));
            if (i == 0 || i == list->n_fitting || i >= list->n_legal) continue;
            CHECK(e->prediction.time.step_s > e[-1].prediction.time.step_s ||
                  (e->prediction.time.step_s >= e[-1].prediction.time.step_s &&
                   e->prediction.memory.device_bytes >= e[-1].prediction.memory.device_bytes));
        }
        CHECK_IS(n_legal, ==, list->n_legal);
        qsort(codes, (size_t)list->n_entries, sizeof *codes, compare_codes);
        for (int64_t i = 1; i < list->n_entries; i++) CHECK_IS(codes[i], !=, codes[i - 1]);
        CHECK_IS(list->n_entries, ==, n_expected);
        free(codes);
    }
    memo_parallel_list_destroy(NULL);
}

TEST(lists_can_be_narrowed) {
    memo_parallel_desc desc = make_case(llama3_8b(), 32, 65536, 8);
    desc.zero_stages = 1u << 1 | 1u << 3;
    desc.activations = 1u << MEMO_PARALLEL_SWAP;
    desc.max_pipeline = 4;
    own_list* list = list_of(&desc);
    /* 2^5 over five degrees: 126 ways, 21 + 6 of them with 8 stages or more (2^2 over four degrees,
     * and less). */
    CHECK_IS(list->n_entries, ==, 2 * (126 - 10 - 4 - 1));
    for (int64_t i = 0; i < list->n_entries; i++) {
        const memo_parallel_layout* l = &list->entries[i].layout;
        CHECK(l->zero_stage % 2 == 1 && l->activations == MEMO_PARALLEL_SWAP && l->pipeline <= 4);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const memo_parallel_desc* desc, memo_parallel_layout l, const char* words) {
    memo_parallel_prediction p;
    CHECK_ERROR(memo_parallel_predict(desc, &l, &p, &error), INFEASIBLE, words);
    CHECK_IS(p.fits, ==, 0);
}

TEST(layouts_are_refused_in_words) {
    memo_parallel_desc d = make_case(llama3_8b(), 16, 65536, 1);
    refused(&d, make_layout(0, 1, 1, 1, 16, 1), "data: out of range (0)");
    refused(&d, make_layout(1, 1, 1, 1, -16, 1), "ring: out of range (-16)");
    refused(&d, make_layout(1, 1, 2, 2, 2, 1), "is 8; the product must be the number of GPUs, 16");
    refused(&d, make_layout(65536, 65536, 65536, 65536, 65536, 1),
            "the product must be the number of GPUs, 16");
    refused(&d, make_layout(1, 1, 16, 1, 1, 0), "above the 8 key/value heads");
    refused(&d, make_layout(16, 1, 1, 1, 1, 1), "does not divide the 1 sequences of the batch");
    refused(&d, make_layout(1, 16, 1, 1, 1, 1), "zero_stage: 1 has nothing to shard");
    refused(&d, make_layout(1, 1, 1, 1, 16, 4), "zero_stage: out of range (4)");
    memo_parallel_layout l = make_layout(1, 16, 1, 1, 1, 0);
    l.chunks = 3;
    refused(&d, l, "pipeline x chunks: 48 is above the 32 layers, embedding and classifier");
    d.model.n_layers = 46;
    (void)predict(&d, &l);
    d.model.vocabulary = 0;
    refused(&d, l, "pipeline x chunks: 48 is above the 46 layers;");
    l.chunks = -1;
    refused(&d, l, "chunks: -1 of a stage");
    l = make_layout(1, 1, 1, 8, 2, 1);
    l.chunks = 2;
    refused(&d, l, "chunks: 2 of a stage, of 1 stages");
    d = make_case(llama3_8b(), 16, 65536, 1);
    d.global_batch = 6;
    d.micro_batch = 2;
    refused(&d, make_layout(2, 8, 1, 1, 1, 1), "micro_batch: 2 does not divide the 3 sequences");
    d.global_batch = d.micro_batch = 1;
    l = make_layout(1, 16, 1, 1, 1, 0);
    l.activations = MEMO_PARALLEL_SWAP;
    refused(&d, l, "swap needs 3 layers a pipeline stage (2)");
    l = make_layout(1, 1, 1, 1, 16, 1);
    l.activations = MEMO_PARALLEL_SWAP;
    d.cluster.host_bytes = 0;
    refused(&d, l, "set cluster.host_bytes");
    l.activations = (memo_parallel_activations)7;
    refused(&d, l, "activations: not a memo_parallel_activations (7)");
    d.sequence = 31;
    refused(&d, make_layout(1, 1, 1, 1, 16, 1), "sequence: too short (31 tokens)");
    d = make_case(llama3_8b(), 64, 65536, 1);
    refused(&d, make_layout(1, 1, 1, 64, 1, 1), "so 32 ranks have none");
    refused(&d, make_layout(1, 1, 2, 32, 1, 1), "above the 16 query heads of a tensor rank");
    d = make_case(llama3_8b(), 12, 65536, 1);
    refused(&d, make_layout(1, 1, 3, 4, 1, 1), "3 does not divide the 8 key/value heads");
    d = make_case(llama3_8b(), 2, 65536, 1);
    d.model.ffn = 11111;
    refused(&d, make_layout(1, 1, 2, 1, 1, 0), "11111 columns");
}

/* The paper's rule, and the rule of memo_sp.h. */
TEST(few_key_heads_are_replicated_or_refused) {
    memo_parallel_desc d = make_case(llama3_8b(), 16, 65536, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 16, 1, 1), eight = make_layout(1, 1, 1, 8, 2, 1);
    memo_parallel_prediction p = predict(&d, &l), q = predict(&d, &eight);
    /* 16 ranks read one key head each; twice as many rows of k and v as the model has. */
    double head = 2.0 * 65536 / 16 * 128, sent = head * (30 + 2 * 15 + 30);
    sent += head * (30 + 2 * 2 * 15 + 30); /* dK, dV in fp32 */
    sent += 4.0 * 65536 / 16 * 30;         /* row dots */
    CHECK_IS(fabs(p.sent_bytes[MEMO_PARALLEL_ULYSSES] / (32 * sent) - 1), <, 1e-12);
    CHECK_IS(p.memory.activations_bytes, >, q.memory.activations_bytes);
    d.kv_heads_must_divide = 1;
    refused(&d, l, "tensor x ulysses: 16 does not divide the 8 key/value heads");
    refused(&d, l, "heads on several ranks");
    (void)predict(&d, &eight);
    d.cluster.n_gpus = 3;
    refused(&d, make_layout(1, 1, 1, 3, 1, 1), "uneven heads");
    d.kv_heads_must_divide = 0;
    l = make_layout(1, 1, 1, 3, 1, 1);
    p = predict(&d, &l);
    l = make_layout(1, 1, 1, 1, 3, 1);
    d.cluster.block_s = 0;
    d.cluster.device_memory_bytes_per_s = 0;
    q = predict(&d, &l);
    /* 11 of the 32 heads on the busiest of three ranks. */
    CHECK_IS(fabs(p.time.attention_s / q.time.attention_s - 11 * 3 / 32.0), <, 1e-9);
}

TEST(descs_are_checked) {
    const memo_parallel_desc good = make_case(llama3_8b(), 16, 65536, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 2, 1);
    memo_parallel_prediction p;
    memo_parallel_list* list;
#define CHECK_FIELD(field, value, words)                                                           \
    do {                                                                                           \
        memo_parallel_desc bad = good;                                                             \
        bad.field = value;                                                                         \
        CHECK_ERROR(memo_parallel_predict(&bad, &l, &p, &error), INVALID_ARGUMENT, words);         \
        CHECK(memo_plan_layouts(&bad, &list, &error) == MEMO_STATUS_INVALID_ARGUMENT && !list);    \
    } while (0)
    CHECK_FIELD(model.n_layers, 0, "model.n_layers");
    CHECK_FIELD(model.hidden, -1, "model.hidden");
    CHECK_FIELD(model.n_kv_heads, 5, "does not divide the 32 query heads");
    CHECK_FIELD(model.hidden, 4097, "head_size");
    CHECK_FIELD(model.n_ffn_matrices, 4, "n_ffn_matrices");
    CHECK_FIELD(cluster.n_gpus, 0, "cluster.n_gpus");
    CHECK_FIELD(cluster.peak_flops_per_s, memo_test_nan(), "peak_flops_per_s");
    CHECK_FIELD(cluster.gemm_efficiency, 1.5, "gemm_efficiency");
    CHECK_FIELD(cluster.nic_bytes_per_s, 0, "nic_bytes_per_s");
    CHECK_FIELD(cluster.link_bytes_per_s, HUGE_VAL, "link_bytes_per_s");
    CHECK_FIELD(sequence, 0, "sequence");
    CHECK_FIELD(global_batch, -1, "global_batch");
    CHECK_FIELD(element_bytes, -2,
                "element_bytes: out of range (-2); 1e-09 to 1000 or 0 are valid");
    CHECK_FIELD(cluster.gemm_efficiency, 1e-300, "(1e-300); 1e-09 to 1 or 0 are valid");
    CHECK_FIELD(cluster.attention_forward_efficiency, 1e-300, "(1e-300)");
    CHECK_FIELD(cluster.attention_backward_efficiency, 1e-300, "(1e-300)");
    CHECK_FIELD(cluster.device_memory_bytes_per_s, 1e-300, "(1e-300)");
    CHECK_FIELD(cluster.host_bytes_per_s, 1e-300, "(1e-300)");
    CHECK_FIELD(cluster.link_bytes_per_s, 2e18, "(2e+18); 1 to 1e+18 are valid");
    CHECK_FIELD(cluster.n_gpus, 2000000, "cluster.n_gpus: out of range (2000000); 1 to 1048576");
    {
        memo_parallel_desc many = good;
        many.cluster.n_gpus = 720720;
        CHECK(memo_plan_layouts(&many, &list, &error) == MEMO_STATUS_INVALID_ARGUMENT && !list);
        CHECK(strstr(error.message, "720720 GPUs have"));
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static int near(double a, double b) {
    return fabs(a - b) <= 1e-9 * (fabs(a) > fabs(b) ? fabs(a) : fabs(b));
}

/* Elements of a row that the busiest ulysses rank sends, one head at a time: who reads head h, and
 * who has its rows.  size is of q and k, v_size of v and the output. */
static double ulysses_heads_sent(int q_heads, int kv_heads, int ulysses, double size, double v_size,
                                 int is_backward, double replica_scale) {
    double most = 0;
    for (int me = 0; me < ulysses; me++) {
        double sent = 0;
        for (int you = 0; you < ulysses; you++) {
            int is_read[512] = {0};
            if (you == me) continue;
            for (int h = 0; h < q_heads; h++) {
                /* The largest u with u Hq / ud, rounded down, not above h. */
                int owner = ulysses - 1;
                while ((int64_t)owner * q_heads / ulysses > h) owner--;
                /* dO and its row dot, of fp32; or q */
                if (owner == you) sent += is_backward ? v_size + 2 : size;
                if (owner == me) /* dQ, or the output: my heads of your rows */
                    sent += is_backward ? size : v_size;
                if (owner == (is_backward ? me : you)) is_read[h / (q_heads / kv_heads)] = 1;
            }
            for (int k = 0; k < kv_heads; k++)
                sent += is_read[k] * (size + v_size) * (is_backward ? replica_scale : 1);
        }
        if (sent > most) most = sent;
    }
    return most;
}

static int is_replicated(int q_heads, int kv_heads, int ulysses) {
    for (int u = 1; u < ulysses; u++)
        if ((int64_t)u * q_heads / ulysses % (q_heads / kv_heads)) return 1;
    return 0;
}

TEST(bytes_sent_are_the_formulas) {
    int n = 0;
    for (int round = 0; round < 900; round++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        double S, h, head, v_head, N, T, U, R, micros, runs, layers, n_most, P, stay, tensor,
            ulysses, ring, kv, most_kv = 0;
        int q, k;
        if (!random_legal(&d, &l) || l.activations != MEMO_PARALLEL_KEEP) continue;
        n++;
        IN_CASE("round %d", round);
        memo_parallel_prediction p = predict(&d, &l);
        S = (double)d.sequence * (double)d.micro_batch;
        h = d.model.hidden;
        head = d.model.head_size ? d.model.head_size : h / d.model.n_q_heads;
        v_head = d.model.v_head_size ? d.model.v_head_size : head;
        T = l.tensor, U = l.ulysses, R = l.ring, N = U * R * l.data;
        micros = (double)d.global_batch / (double)d.micro_batch / l.data;
        runs = l.chunks > 1 ? ceil(micros / l.pipeline) : micros;
        layers = floor(p.time.attention_s / (p.forward.compute_s + p.backward.compute_s) + 0.5);
        n_most = 0;
        for (int at = 0; at < l.pipeline; at++) n_most = fmax(n_most, layers_of(&d, &l, at));
        CHECK(near(layers, n_most * micros) ||
              near(layers, layers_of(&d, &l, l.pipeline - 1) * micros));
        tensor = 8 * layers * 2 * S / (U * R) * h * (T - 1) / T;
        q = d.model.n_q_heads / l.tensor;
        k = d.model.n_kv_heads / l.tensor;
        double scale = is_replicated(q, k, l.ulysses) ? 2 : 1;
        ulysses = layers * 2 * S / (U * R) *
                  (ulysses_heads_sent(q, k, l.ulysses, head, v_head, 0, scale) +
                   ulysses_heads_sent(q, k, l.ulysses, head, v_head, 1, scale));
        for (int u = 0; u < l.ulysses; u++) {
            int first = (int)((int64_t)u * q / l.ulysses) / (q / k);
            int last = ((int)((int64_t)(u + 1) * q / l.ulysses) - 1) / (q / k);
            if (last - first + 1 > most_kv) most_kv = last - first + 1;
        }
        kv = S / R * most_kv * (head + v_head); /* elements of a rank's keys and values */
        ring = layers * (2 * (2 * kv) + 4 * kv) * (R - 1);
        P = 0;
        for (int at = 0; at < l.pipeline; at++) P = fmax(P, stage_parameters(&d, &l, at));
        stay = P * (N - 1) / N;
        CHECK(near(p.sent_bytes[MEMO_PARALLEL_TENSOR], tensor));
        CHECK(near(p.sent_bytes[MEMO_PARALLEL_ULYSSES], ulysses));
        CHECK(near(p.sent_bytes[MEMO_PARALLEL_RING], ring));
        const double gathers = l.zero_stage == 0 ? 0 : l.zero_stage == 3 ? 2 * micros : 1;
        const double sums = l.zero_stage == 0 ? 2 : l.zero_stage == 1 ? 1 : runs;
        CHECK(near(p.sent_bytes[MEMO_PARALLEL_GRADIENTS], 4 * stay * sums));
        CHECK(near(p.sent_bytes[MEMO_PARALLEL_PARAMETERS], 2 * stay * gathers));
        const double pipeline = micros * fmax(l.chunks, 1) * 2 * 2 * S / (T * U * R) * h;
        CHECK(near(p.sent_bytes[MEMO_PARALLEL_PIPELINE], l.pipeline > 1 ? pipeline : 0));
        CHECK(p.sent_bytes[MEMO_PARALLEL_HOST] <= 0 && p.alpha <= 0);
    }
    CHECK_IS(n, >, 100);
}

/* Heads of 192 and 128 against 160 and 160, which have the same sum: memory, products of attention,
 * and bytes sent by Ulysses and the ring.  Attention's forward costs the same, its backward 3 x 192
 * + 2 x 128 instead of 5 x 160. */
TEST(values_may_have_another_head_size) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 65536, 1), latent;
    memo_parallel_layout l = make_layout(1, 1, 1, 4, 2, 1);
    d.model.head_size = 160;
    latent = d;
    latent.model.head_size = 192;
    latent.model.v_head_size = 128;
    memo_parallel_prediction p = predict(&d, &l);
    memo_parallel_prediction q = predict(&latent, &l);
    CHECK(near(p.memory.device_bytes, q.memory.device_bytes));
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_RING], q.sent_bytes[MEMO_PARALLEL_RING]));
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_ULYSSES], q.sent_bytes[MEMO_PARALLEL_ULYSSES]));
    CHECK(near(p.flops, q.flops));
    CHECK(near(p.forward.compute_s, q.forward.compute_s));
    CHECK(near(p.backward.compute_s * 832 / 800, q.backward.compute_s));
    l.activations = MEMO_PARALLEL_RECOMPUTE; /* q, k, v and the output again */
    p = predict(&d, &l);
    q = predict(&latent, &l);
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_ULYSSES], q.sent_bytes[MEMO_PARALLEL_ULYSSES]));
    latent.model.v_head_size = -1;
    CHECK_IS(memo_parallel_predict(&latent, &l, &p, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

TEST(recomputing_sends_the_forward_again) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 65536, 2);
    memo_parallel_layout l = make_layout(1, 1, 2, 2, 2, 1), again = l;
    memo_parallel_prediction p = predict(&d, &l), q;
    again.activations = MEMO_PARALLEL_RECOMPUTE;
    q = predict(&d, &again);
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_TENSOR], 1.5 * p.sent_bytes[MEMO_PARALLEL_TENSOR]));
    /* The forward is half of all but the row dots: of 16 heads of each of 2 x 32768 rows over 2
     * ranks. */
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_ULYSSES], 1.5 * p.sent_bytes[MEMO_PARALLEL_ULYSSES] -
                                                        0.5 * 2 * 32 * 4 * 65536 / 4.0 * 16 / 2));
    /* KV each way at 2 B, dKV at 4 B: 8 bytes; and KV again. */
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_RING], 5.0 / 4 * p.sent_bytes[MEMO_PARALLEL_RING]));
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_GRADIENTS], p.sent_bytes[MEMO_PARALLEL_GRADIENTS]));
    CHECK(q.time.recompute_s > 0 && q.time.step_s > p.time.step_s);
    CHECK_IS(q.memory.activations_bytes, <, p.memory.activations_bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* 6 P / T + 12 P / N + tokens (layers * 34 h or 32 h + 6 V), which has every statement of the paper
 * right. */
TEST(memory_is_the_papers) {
    static const int degrees[4][3] = {{1, 8, 2}, {4, 2, 2}, {8, 1, 2}, {1, 1, 16}};
    for (int i = 0; i < 4; i++) {
        memo_parallel_desc d = make_case(llama3_8b(), 16, 65536, 1);
        memo_parallel_layout l = make_layout(1, 1, degrees[i][0], degrees[i][1], degrees[i][2], 1);
        memo_parallel_prediction p = predict(&d, &l);
        double P = 32 * (2.0 * 4096 * 4096 * 1.25 + 3.0 * 4096 * 14336) + 2.0 * 128256 * 4096;
        double T = degrees[i][0], tokens = 65536 / 16.0;
        CHECK(near(p.memory.device_bytes,
                   6 * P / T + 12 * P / 16 + tokens * (32 * 34.0 * 4096 + 6 * 128256.0)));
        CHECK(near(p.memory.activations_bytes, tokens * 32 * 34.0 * 4096));
    }
}

/* Buffers of attention are those of memo_sp.h, on the rank that needs most, in each
 * group. */
TEST(attention_memory_is_that_of_memo_sp) {
    int n_predicted = 0, n_grouped = 0;
    for (int n = 0; n < 3000; n++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        memo_sp_attention_desc a = {0};
        memo_sp_attention_sizes sizes;
        int64_t most = 0;
        if (!random_legal(&d, &l) || l.ulysses * l.ring == 1) continue;
        d.sequence = memo_test_int(2 * l.ring * l.ulysses * l.tensor, 500000);
        d.excludes_attention_memory = 0;
        d.max_ulysses_groups = (int32_t)memo_test_int(0, 8);
        d.element_bytes = memo_test_int(0, 2) ? 2 : 4;
        d.kv_gradient_bytes = memo_test_int(0, 1) ? 4 : d.element_bytes;
        memo_parallel_prediction p = predict(&d, &l);
        memo_sharding_desc sharding = {.kind = d.is_contiguous ? MEMO_SHARDING_PLAIN
                                                               : MEMO_SHARDING_ZIGZAG,
                                       .ring = l.ring,
                                       .ulysses = l.ulysses,
                                       .n_tokens = d.sequence};
        CHECK_OK(memo_sharding_make(&sharding, &a.sharding, &error));
        a.n_batch = (int32_t)d.micro_batch;
        a.n_q_heads = d.model.n_q_heads / l.tensor;
        a.n_kv_heads = d.model.n_kv_heads / l.tensor;
        a.head_size = d.model.head_size ? d.model.head_size : d.model.hidden / d.model.n_q_heads;
        a.v_head_size = d.model.v_head_size;
        a.type = d.element_bytes < 4 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
        a.rounds_gradients = d.kv_gradient_bytes < 4;
        a.ulysses_groups = p.ulysses_groups;
        for (a.ulysses_rank = 0; a.ulysses_rank < l.ulysses; a.ulysses_rank++) {
            CHECK_OK(memo_sp_attention_desc_get_sizes(&a, &sizes, &error));
            if (sizes.device_bytes > most) most = sizes.device_bytes;
        }
        n_predicted++;
        n_grouped += p.ulysses_groups > 1;
        CHECK_CASE(near((double)most, p.memory.attention_bytes),
                   "%d tokens, ring %d ulysses %d tensor %d, heads %d/%d, %g bytes, %d groups: "
                   "%lld, predicted %.0f",
                   (int)d.sequence, (int)l.ring, (int)l.ulysses, (int)l.tensor, (int)a.n_q_heads,
                   (int)a.n_kv_heads, d.element_bytes, (int)p.ulysses_groups, (long long)most,
                   p.memory.attention_bytes);
    }
    CHECK(n_predicted > 500 && n_grouped > 30);
}

/* A long sequence: more groups take less memory and more time; of the numbers that fit the fastest
 * is taken. */
TEST(the_fastest_groups_that_fit_are_taken) {
    memo_parallel_desc d = make_case(llama2_7b(), 8, 1024, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 1, 1);
    d.excludes_attention_memory = 0;
    memo_parallel_prediction whole = predict(&d, &l);
    double last_s = whole.time.step_s;
    d.max_ulysses_groups = 4;
    memo_parallel_prediction p =
        predict(&d, &l); /* so short that starts cost more than what is hidden */
    CHECK(p.ulysses_groups == 1 && near(p.time.step_s, whole.time.step_s));
    for (int n = 2; n <= 4; n *= 2) {
        d.cluster.device_bytes = (int64_t)(p.memory.device_bytes - 1);
        p = predict(&d, &l);
        CHECK_IS(p.ulysses_groups, ==, n);
        CHECK(p.fits && p.time.step_s > last_s);
        last_s = p.time.step_s;
    }
}

/* Llama 3 8B at ulysses 8 has one key head a rank: without a ring its four query heads make groups,
 * which each get the key head; with one they do not. */
TEST(query_heads_of_a_key_head_make_groups) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 1 << 17, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 1, 1);
    memo_parallel_prediction whole = predict(&d, &l), p;
    d.max_ulysses_groups = 0;
    p = predict(&d, &l);
    CHECK_IS(p.ulysses_groups, ==, 4);
    CHECK(p.time.ulysses_s < 0.6 * whole.time.ulysses_s);
    d.cluster.n_gpus = 16;
    l.ring = 2;
    CHECK_IS(predict(&d, &l).ulysses_groups, ==, 1);
}

/* 128256 logits of 2 bytes a row on two tensor ranks; logits of all rows take 6. */
TEST(a_loss_in_tiles_needs_a_tile) {
    static const double tiles[] = {64 << 20, 1, 1e15}; /* some rows, less than one, more than all */
    memo_parallel_desc d = make_case(llama3_8b(), 8, 65536, 1);
    memo_parallel_layout l = make_layout(1, 1, 2, 4, 1, 1);
    memo_parallel_prediction all = predict(&d, &l), p;
    double expected[3];
    expected[0] = 64 << 20;
    expected[1] = 128256 / 2 * 2;
    expected[2] = 65536.0 / 8 * 128256 * 6;
    CHECK(near(all.memory.logits_bytes, expected[2]));
    for (int i = 0; i < 3; i++) {
        d.loss_tile_bytes = tiles[i];
        p = predict(&d, &l);
        CHECK(near(p.memory.logits_bytes, expected[i]));
        CHECK(near(p.memory.device_bytes,
                   all.memory.device_bytes - all.memory.logits_bytes + expected[i]));
    }
    d.loss_tile_bytes = -1;
    CHECK_IS(memo_parallel_predict(&d, &l, &p, NULL), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

TEST(memory_is_the_sum_of_its_parts) {
    int n = 0;
    for (int round = 0; round < 400; round++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        int here;
        if (!random_legal(&d, &l)) continue;
        n++;
        memo_parallel_prediction p = predict(&d, &l);
        double N = (double)l.data * l.ulysses * l.ring, P = 0;
        for (int at = 0; at < l.pipeline; at++) {
            const double stage = stage_parameters(&d, &l, at);
            if (near(p.memory.parameters_bytes, 2 * stage / (l.zero_stage >= 3 ? N : 1))) P = stage;
        }
        here =
            d.cluster.n_gpus < d.cluster.gpus_per_node ? d.cluster.n_gpus : d.cluster.gpus_per_node;
        double host = (double)d.cluster.host_bytes / here;
        CHECK(near(p.memory.device_bytes, p.memory.parameters_bytes + p.memory.gathered_bytes +
                                              p.memory.gradients_bytes + p.memory.optimizer_bytes +
                                              p.memory.activations_bytes + p.memory.logits_bytes +
                                              p.memory.attention_bytes));
        CHECK_IS((p.memory.attention_bytes > 0), ==,
                 (!d.excludes_attention_memory && l.ulysses * l.ring > 1));
        CHECK(near(p.memory.parameters_bytes, 2 * P / (l.zero_stage >= 3 ? N : 1)));
        CHECK(near(p.memory.gradients_bytes, 4 * P / (l.zero_stage >= 2 ? N : 1)));
        CHECK(near(p.memory.optimizer_bytes, 12 * P / (l.zero_stage >= 1 ? N : 1)));
        double chunk = l.zero_stage > 1 && l.chunks > 1 ? 4 * P / l.chunks : 0;
        CHECK(near(p.memory.gathered_bytes,
                   chunk + (l.zero_stage < 3
                                ? 0
                                : 4 * memo_parallel_layer_parameters(&d.model) / l.tensor)));
        CHECK(p.memory.host_bytes > 0 || l.activations != MEMO_PARALLEL_SWAP);
        CHECK(p.memory.host_bytes <= 0 || l.activations >= MEMO_PARALLEL_SWAP);
        CHECK_IS(p.fits, ==,
                 (p.memory.device_bytes <= (double)d.cluster.device_bytes &&
                  p.memory.host_bytes <= host));
        CHECK(p.alpha >= 0 && p.alpha <= 1 && p.memory.activations_bytes >= 0);
        CHECK(near(p.time.step_s, p.time.gemm_s + p.time.attention_s + p.time.recompute_s +
                                      p.time.tensor_s + p.time.ulysses_s + p.time.ring_s +
                                      p.time.pipeline_s + p.time.host_s + p.time.zero_s +
                                      p.time.bubble_s));
        CHECK(p.mfu > 0 && p.mfu < 1);
    }
    CHECK_CASE(n > 200, "%d", n);
}

/* Twice the GPUs, in any one degree: no GPU holds more. */
TEST(memory_shrinks_with_every_degree) {
    int n = 0;
    for (int round = 0; round < 500; round++) {
        memo_parallel_desc d, larger;
        memo_parallel_layout l;
        if (!random_legal(&d, &l) || l.activations >= MEMO_PARALLEL_SWAP) continue;
        d.excludes_attention_memory = 1; /* one rank of a ring has no buffers, two have */
        double before = predict(&d, &l).memory.device_bytes;
        larger = d;
        larger.cluster.n_gpus *= 2;
        for (int degree = 0; degree < 5; degree++) {
            memo_parallel_layout twice = l;
            memo_parallel_prediction p;
            *(degree == 0   ? &twice.data
              : degree == 1 ? &twice.pipeline
              : degree == 2 ? &twice.tensor
              : degree == 3 ? &twice.ulysses
                            : &twice.ring) *= 2;
            if (memo_parallel_predict(&larger, &twice, &p, NULL)) continue;
            /* Of uneven stages, more may hold more. */
            if (degree == 1 && d.model.n_layers % (twice.pipeline * chunks_of(&l))) continue;
            n++;
            IN_CASE("round %d, degree %d", round, degree);
            CHECK_IS(p.memory.device_bytes, <=, before * (1 + 1e-12));
        }
    }
    CHECK_CASE(n > 300, "%d", n);
}

TEST(parameters_are_counted) {
    memo_parallel_model m = llama3_8b();
    /* As published, less 65 norms. */
    CHECK(near(memo_parallel_parameters(&m), 8030261248.0 - 65 * 4096));
    CHECK(near(memo_parallel_layer_parameters(&m), 2.5 * 4096 * 4096 + 3.0 * 4096 * 14336));
    m.is_tied = 1;
    CHECK(near(memo_parallel_parameters(&m),
               32 * memo_parallel_layer_parameters(&m) + 128256.0 * 4096));
    m.head_size = 64;
    m.n_ffn_matrices = 2;
    CHECK(near(memo_parallel_layer_parameters(&m), 1.25 * 4096 * 4096 + 2.0 * 4096 * 14336));
    m.v_head_size = 128; /* Wv and Wo are twice as large */
    CHECK(near(memo_parallel_layer_parameters(&m), 1.875 * 4096 * 4096 + 2.0 * 4096 * 14336));
}

/* The first of four stages holds four micro-batches of its eight layers, or all if there are
 * fewer. */
TEST(pipelines_hold_their_micro_batches) {
    memo_parallel_desc d = make_case(llama3_8b(), 4, 4096, 8);
    memo_parallel_layout l = make_layout(1, 4, 1, 1, 1, 0);
    double unit = 4096 * 34.0 * 4096, row = 2.0 * 4096, whole = row * 8192, others = row * 61440;
    d.loss_tile_bytes = 1; /* else the last stage has most, for its logits */
    CHECK(near(predict(&d, &l).memory.activations_bytes, unit * 8 * 4));
    d.global_batch = 3;
    CHECK(near(predict(&d, &l).memory.activations_bytes, unit * 8 * 3));
    l.activations = MEMO_PARALLEL_RECOMPUTE;
    CHECK(near(predict(&d, &l).memory.activations_bytes, unit + row * 4096 * 8 * 3));
    l.activations = MEMO_PARALLEL_SWAP;
    d.global_batch = 8;
    d.cluster.host_bytes_per_s = 1e15;
    d.cluster.host_bytes = (int64_t)(4 * 4 * 6 * (whole + 0.25 * others));
    memo_parallel_prediction p = predict(&d, &l);
    CHECK_CASE(fabs(p.alpha - 0.25) < 1.0 / 2048, "%.6f", p.alpha);
    CHECK_IS(p.memory.host_bytes, <=, (double)d.cluster.host_bytes / 4);
    CHECK(near(p.memory.host_bytes, 4 * 6 * (whole + p.alpha * others)));
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_HOST], 8 * 6 * (whole + p.alpha * others)));
}

/* Llama 3 405B: 126 layers in 16 stages of eight chunks, where the first and the last chunk have
 * the embedding and the classifier only, and in eight stages. */
TEST(stages_may_be_uneven) {
    memo_parallel_desc d = make_case(make_model(126, 16384, 53248, 128, 8, 128256), 128, 8192, 16);
    memo_parallel_layout l = make_layout(1, 16, 8, 1, 1, 0);
    const double unit = 2 * 8192 / 8.0 * (4.0 * 16384 + 256 * 136 + 3 * 53248);
    double layer = memo_parallel_layer_parameters(&d.model) / 8, edge = 128256.0 * 16384 / 8;
    memo_parallel_prediction one = predict(&d, &l), p;
    /* The second stage holds 15 micro-batches of 8 layers, the first 16 of 7. */
    CHECK(near(one.memory.activations_bytes, unit * 8 * 15));
    CHECK(near(one.memory.parameters_bytes, 2 * 8 * layer) && one.memory.logits_bytes <= 0);
    l.chunks = 8;
    p = predict(&d, &l);
    CHECK(near(p.memory.activations_bytes, unit * 8 * 16)); /* 141 of 128 chunks: all */
    CHECK(p.time.bubble_s < one.time.bubble_s / 7 && p.time.bubble_s > one.time.bubble_s / 8);
    CHECK(p.time.step_s < one.time.step_s && near(p.flops, one.flops));
    l = make_layout(2, 8, 8, 1, 1, 0); /* the last stage: 15 layers and the classifier */
    p = predict(&d, &l);
    CHECK(near(p.time.gemm_s, 8 * 6 * 8192 * fmax(15 * layer + edge, 16 * layer) / 234e12));
    CHECK(near(p.memory.activations_bytes, unit * 15 * 8));
    d.model.n_layers = 3; /* stages of one layer, one layer, and the classifier alone */
    d.cluster.n_gpus = 40;
    l = make_layout(1, 5, 8, 1, 1, 0);
    CHECK(near(predict(&d, &l).time.gemm_s, 16 * 6 * 8192 * fmax(layer, edge) / 234e12));
}

/* A pipeline by events: each stage runs its operations in the order of Megatron's schedules, 1F1B
 * or interleaved, as soon as the neighbor's operation is done.  Returns the step's end and the most
 * chunks that a stage holds. */
static double run_pipeline(int pipeline, int chunks, int n_micro, double (*forward_s)[64],
                           int held[64]) {
    enum { N_UNITS = 512 };
    static double done[2][64][N_UNITS]; /* forward, backward */
    const int n = n_micro * chunks;
    double free_s[64] = {0}, end_s = 0;
    int at[64] = {0}, left = 2 * n * pipeline;
    memset(done, 0, sizeof done);
    memset(held, 0, 64 * sizeof held[0]);
    while (left > 0)
        for (int s = 0; s < pipeline; s++) {
            int warm =
                chunks > 1 ? 2 * (pipeline - s - 1) + (chunks - 1) * pipeline : pipeline - s - 1;
            if (warm > n) warm = n;
            if (at[s] == 2 * n) continue;
            /* Operation at[s]: warm forwards, then forward and backward in turn, then the rest. */
            const int after = at[s] - warm, both = 2 * (n - warm);
            const int is_backward = after >= 0 && (after >= both || after % 2);
            const int k = after < 0       ? at[s]
                          : after >= both ? n - warm + after - both
                          : is_backward   ? after / 2
                                          : warm + after / 2;
            int chunk = k / pipeline % chunks;
            const int micro = k / (pipeline * chunks) * pipeline + k % pipeline;
            double ready_s;
            if (chunks == 1) chunk = 0;
            const int m = chunks == 1 ? k : micro;
            if (is_backward) chunk = chunks - 1 - chunk;
            const int unit = m * chunks + chunk;
            if (!is_backward)
                ready_s = s > 0       ? done[0][s - 1][unit]
                          : chunk > 0 ? done[0][pipeline - 1][unit - 1]
                                      : 1e-30;
            else
                ready_s = s < pipeline - 1     ? done[1][s + 1][unit]
                          : chunk < chunks - 1 ? done[1][0][unit + 1]
                                               : done[0][s][unit];
            if (ready_s <= 0) continue; /* not yet */
            free_s[s] =
                fmax(free_s[s], ready_s) + (is_backward ? 2 : 1) * forward_s[s][chunk] + 1e-30;
            done[is_backward][s][unit] = free_s[s];
            at[s]++;
            left--;
            const int n_held = is_backward ? 0 : after < 0 ? at[s] : warm + 1;
            if (n_held > held[s]) held[s] = n_held;
        }
    for (int s = 0; s < pipeline; s++) end_s = fmax(end_s, free_s[s]);
    return end_s;
}

/* Products alone, whose backward takes twice the forward.  Equal stages match exactly; uneven ones
 * differ by the order of operations: with as many micro-batches as stages by up to 0.17 in 24,000
 * cases, else by less. */
TEST(bubbles_match_a_run_of_the_schedule) {
    int n_equal = 0, n_uneven = 0;
    for (int round = 0; round < 400; round++) {
        const int pipeline = (int)memo_test_int(2, 8), chunks = (int)memo_test_int(1, 4);
        const int n_micro = pipeline * (int)memo_test_int(1, 4);
        memo_parallel_desc d =
            make_case(make_model(pipeline * chunks * (int)memo_test_int(1, 5) -
                                     (int)memo_test_int(0, 1) * (int)memo_test_int(0, 7),
                                 64, 4096, 1, 1, memo_test_int(0, 1) * memo_test_int(1, 4000)),
                      pipeline, 64, n_micro);
        memo_parallel_layout l = make_layout(1, pipeline, 1, 1, 1, 0);
        memo_parallel_prediction p;
        double forward_s[64][64], layer_s, run_s, ratio;
        int held[64], is_equal = d.model.vocabulary == 0;
        l.chunks = chunks;
        d.cluster.link_bytes_per_s = 1e18;
        d.cluster.collective_s = 0;
        d.cluster.attention_forward_efficiency = d.cluster.attention_backward_efficiency = 1;
        if (memo_parallel_predict(&d, &l, &p, NULL)) continue;
        /* The layers of each chunk; the first stage gives up those of its first chunks. */
        layer_s = 2 * memo_parallel_layer_parameters(&d.model) * 64 / 234e12;
        for (int s = 0; s < pipeline; s++) {
            const int mine = layers_of(&d, &l, s), whole = (mine + chunks - 1) / chunks;
            is_equal &= whole * chunks * pipeline == d.model.n_layers;
            for (int c = 0; c < chunks; c++) {
                const int turn = s == 0 ? c : chunks - 1 - c; /* first to give up */
                const int has = whole - (turn < whole * chunks - mine);
                forward_s[s][c] =
                    (has + (s == pipeline - 1 && c == chunks - 1) * (double)d.model.vocabulary *
                               64 / memo_parallel_layer_parameters(&d.model)) *
                    layer_s;
            }
        }
        run_s = run_pipeline(pipeline, chunks, n_micro, forward_s, held);
        ratio = (p.time.gemm_s + p.time.bubble_s * p.time.gemm_s /
                                     (p.time.step_s - p.time.bubble_s - p.time.zero_s)) /
                run_s;
        n_equal += is_equal;
        n_uneven += !is_equal;
        IN_CASE("round %d: %d stages of %d chunks, %d layers, %d micro-batches", round, pipeline,
                chunks, d.model.n_layers, n_micro);
        const double least = n_micro > pipeline ? 0.85 : 0.8, most = n_micro > pipeline ? 1.1 : 1.2;
        CHECK_IS(ratio, >, is_equal ? 1 - 1e-6 : least);
        CHECK_IS(ratio, <, is_equal ? 1 + 1e-6 : most);
        d.micro_batch = 1;
        for (int s = 0; s < pipeline; s++) {
            const memoi_parallel_stage stage = memoi_parallel_stage_of(&d, &l, s);
            CHECK_IS(fabs(held[s] - stage.n_held * chunks), <, 1e-6);
            CHECK(near(stage.n_layers, layers_of(&d, &l, s)));
        }
    }
    CHECK_CASE(n_equal > 20 && n_uneven > 50, "%d, %d", n_equal, n_uneven);
}

/* More chunks shorten the bubble, and more micro-batches its part of the step. */
TEST(bubbles_shrink_with_chunks_and_micro_batches) {
    memo_parallel_desc d = make_case(llama3_8b(), 4, 4096, 4);
    memo_parallel_layout l = make_layout(1, 4, 1, 1, 1, 0);
    double last_s = HUGE_VAL, last_part = 1;
    for (l.chunks = 1; l.chunks <= 8; l.chunks *= 2) {
        memo_parallel_prediction p = predict(&d, &l);
        CHECK(p.time.bubble_s < last_s && p.mfu > 0);
        last_s = p.time.bubble_s;
    }
    for (l.chunks = 2; d.global_batch <= 64; d.global_batch *= 2) {
        memo_parallel_prediction p = predict(&d, &l);
        CHECK_IS(p.time.bubble_s / p.time.step_s, <, last_part);
        last_part = p.time.bubble_s / p.time.step_s;
    }
}

/* ---- swapping -------------------------------------------------------------------------------- */

/* In the paper's unit, 2 s h bytes: 16 a layer, 18 + 14 alpha in two rounding buffers and a
 * scratch. */
TEST(swapping_is_memos) {
    memo_parallel_desc d = make_case(make_model(32, 4096, 16384, 32, 32, 50257), 8, 262144, 1);
    memo_parallel_layout l = make_layout(1, 1, 4, 1, 2, 1);
    double u = 2.0 * 262144 * 4096 / 8, whole = 2 * u, others = 14 * u, row = 1.5 * 8 / 262144,
           forward_s;
    d.model.n_ffn_matrices = 2;
    CHECK(near(predict(&d, &l).memory.activations_bytes, 32 * 16 * u));
    l.activations = MEMO_PARALLEL_RECOMPUTE;
    CHECK(near(predict(&d, &l).memory.activations_bytes, (32 + 16) * u));
    l.activations = MEMO_PARALLEL_SWAP;
    memo_parallel_prediction p = predict(&d, &l);
    CHECK(p.alpha > 0 && p.fits);
    CHECK(near(p.memory.activations_bytes, (18 + 14 * p.alpha) * u));
    CHECK(near(p.memory.host_bytes, 30 * (whole + p.alpha * others)));
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_HOST], p.memory.host_bytes));
    CHECK_IS(p.time.host_s, <, 1e-9);
    /* A slower link, less host memory and a smaller device each lower alpha exactly to their
     * limit. */
    d.cluster.host_bytes = (int64_t)8 * 30 * (int64_t)(whole + 0.25 * others);
    CHECK_IS(fabs(predict(&d, &l).alpha - 0.25), <, row);
    d.cluster.host_bytes = (int64_t)4000 << 30;
    d.cluster.device_bytes = (int64_t)(p.memory.device_bytes + (0.125 - p.alpha) * others);
    CHECK_IS(fabs(predict(&d, &l).alpha - 0.125), <, row);
    d.cluster.device_bytes = (int64_t)80 << 30;
    /* The forward of a layer: attention, products, and four collectives of the tensor group. */
    forward_s = 24.0 * 4096 * 4096 * 262144 / 8 / (0.75 * 312e12) + p.forward.compute_s +
                p.forward.hops_s + p.forward.blocks_s +
                4 * (2.0 * 131072 * 4096 * 3 / 4 / 150e9 + 20e-6);
    d.cluster.host_bytes_per_s = (whole + 0.5 * others) / forward_s;
    p = predict(&d, &l);
    CHECK_CASE(fabs(p.alpha - 0.5) < row, "%.9f", p.alpha);
    /* The other rows of 31 layers again: products without the last (16 of 24), three
     * collectives. */
    CHECK(near(p.time.recompute_s, (1 - p.alpha) * 31 *
                                       (16.0 * 4096 * 4096 * 262144 / 8 / (0.75 * 312e12) +
                                        3 * (2.0 * 131072 * 4096 * 3 / 4 / 150e9 + 20e-6))));
    /* Slower than the layer even at alpha 0: it stalls. */
    d.cluster.host_bytes_per_s = 0.5 * whole / forward_s;
    p = predict(&d, &l);
    CHECK(p.alpha <= 0 && p.time.host_s >= 30 * 0.999 * forward_s);
    /* Not even alpha 0 fits the host. */
    d.cluster.host_bytes_per_s = 10e9;
    d.cluster.host_bytes = 1 << 20;
    p = predict(&d, &l);
    CHECK(p.alpha <= 0 && !p.fits);
}

/* q, k and v of the recomputed rows travel again, the output does not. */
TEST(swapping_sends_to_heads_again) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 65536, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 1, 1);
    memo_parallel_prediction kept = predict(&d, &l), p;
    double weights = memo_parallel_layer_parameters(&d.model), again, forward, dots;
    l.activations = MEMO_PARALLEL_SWAP;
    d.cluster.host_bytes_per_s = 3e9;
    p = predict(&d, &l);
    CHECK_IS(p.alpha, <, 1);
    again = (1 - p.alpha) * 31;
    dots = 4.0 * 65536 / 8 * 32 * 7 / 8; /* fp32, of the other ranks' heads, in each backward */
    forward = (kept.sent_bytes[MEMO_PARALLEL_ULYSSES] - 32 * dots) / 64;
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_ULYSSES], (64 + again * 48 / 80) * forward + 32 * dots));
    CHECK(
        near(p.time.recompute_s, again * (2 * (weights - 4096.0 * 14336) * 8192 / (0.75 * 312e12) +
                                          p.forward.all_to_all_s * 48 / 80)));
}

TEST(swapping_without_stalls_beats_recomputation) {
    int n = 0;
    for (int round = 0; round < 300; round++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        if (!random_legal(&d, &l) || l.activations != MEMO_PARALLEL_SWAP) continue;
        memo_parallel_prediction swap = predict(&d, &l);
        l.activations = MEMO_PARALLEL_RECOMPUTE;
        memo_parallel_prediction recompute = predict(&d, &l);
        l.activations = MEMO_PARALLEL_KEEP;
        memo_parallel_prediction keep = predict(&d, &l);
        CHECK(keep.time.step_s <= swap.time.step_s && keep.time.step_s < recompute.time.step_s);
        if (swap.time.host_s > 0) continue;
        n++;
        CHECK_IS(swap.time.step_s, <, recompute.time.step_s);
    }
    CHECK_CASE(n > 5, "%d", n);
}

/* ---- time ------------------------------------------------------------------------------------ */

TEST(terms_match_their_formulas) {
    memo_parallel_desc d = make_case(llama3_8b(), 32, 65536, 8);
    memo_parallel_layout l = make_layout(2, 2, 2, 2, 2, 1);
    memo_parallel_prediction p = predict(&d, &l);
    double rows = 65536 / 8.0, weights = 32 * (2.5 * 4096 * 4096 + 3.0 * 4096 * 14336), S = 65536;
    double tensor = 2 * 65536 / 4.0 * 4096 / 2;
    CHECK(near(p.time.gemm_s, 4 * 6 * rows * (weights / 2 + 128256.0 * 4096) / (0.75 * 312e12)));
    CHECK(near(p.time.attention_s, 4 * 16 * (2 / 0.6 + 5 / 0.55) * S * rows * 4096 / 312e12));
    CHECK(near(p.time.tensor_s, 4 * 16 * 8 * (tensor / 150e9 + 20e-6)));
    CHECK(near(p.time.pipeline_s, 4 * 2 * (2 * rows * 4096 / 20e9 + 20e-6)));
    CHECK(near(p.time.ring_s, 4 * 16 *
                                  (p.forward.hops_s + p.forward.blocks_s + p.backward.hops_s +
                                   p.backward.blocks_s)));
    CHECK(near(p.time.ulysses_s, 4 * 16 * (p.forward.all_to_all_s + p.backward.all_to_all_s)));
    /* The classifier's stage is busiest.  It waits for the first stage with one of four
     * micro-batches. */
    CHECK(near(p.time.bubble_s, (p.time.step_s - p.time.zero_s - p.time.bubble_s) / 4 -
                                    6 * rows * 128256.0 * 4096 / (0.75 * 312e12)));
    CHECK(near(p.flops, 8 * S * (6 * (weights + 128256.0 * 4096) + 6 * 32 * S * 4096)));
    CHECK(near(p.mfu, p.flops / (32 * 312e12 * p.time.step_s)));
    /* ZeRO: tensor 2 leaves a group half of each node's GPUs, and one NIC. */
    CHECK(near(p.time.zero_s, (4 + 2) * memo_parallel_parameters(&d.model) / 4 * 7 / 8 / 20e9));
    CHECK(p.leaves_node[MEMO_PARALLEL_GRADIENTS] && p.leaves_node[MEMO_PARALLEL_PIPELINE]);
    CHECK(!p.leaves_node[MEMO_PARALLEL_TENSOR] && !p.leaves_node[MEMO_PARALLEL_ULYSSES] &&
          !p.leaves_node[MEMO_PARALLEL_RING]);
}

static char tool_out[200000], tool_err[4096];
static int tool(const char* line);
static int n_lines(const char* text);

/* ---- published runs, and what the model has for them ----------------------------------------- */

/* Every published run fits, and its MFU and step are within 15 %. */
TEST(published_runs_are_within_15_percent) {
    for (int i = 0; i < N_RUNS; i++) {
        const published_run* run = &published_runs[i];
        memo_parallel_prediction p, without;
        CHECK_OK(run_predict(run, RUN_ALL, &p, &error));
        IN_CASE("%s: %.1f GiB, %.1f %%, %.1f s", run->name, p.memory.device_bytes / GIB,
                100 * p.mfu, p.time.step_s);
        CHECK(p.fits);
        if (run->mfu_percent > 0) CHECK_IS(fabs(100 * p.mfu / run->mfu_percent - 1), <=, 0.15);
        if (run->step_s > 0) CHECK_IS(fabs(p.time.step_s / run->step_s - 1), <=, 0.15);
        if (run->tokens_per_s > 0)
            CHECK_IS(fabs(100 * p.mfu / run_published_mfu(run) - 1), <=, 0.15);
        for (int k = 1; k < RUN_N_MECHANISMS; k++) {
            CHECK_OK(run_predict(run, (run_mechanism)k, &without, &error));
            CHECK(without.time.step_s > 0);
        }
    }
    CHECK(tool("--published") == 0 && n_lines(tool_out) == N_RUNS + 3 + N_MPT_RUNS + 4 &&
          !tool_err[0]);
}

/* The table of MPT, 1B to 70B and 1K to 64K tokens.  The run of 30B at 8K is predicted 20 % too
 * fast, as its own rows at 1K, 2K and 4K say (mpt_of_neighbours): what slows it is in none of them.
 * It takes 74 of 80 GiB, more than all others, where PyTorch's allocator begins to free and map
 * memory again.  The table's A100s of 80 GiB lose as much from 4K to 8K (51 to 39 % of their peak),
 * and 13B loses nothing, so it is no rate of a GPU. */
TEST(runs_of_mpt_are_within_15_percent) {
    double sum = 0;
    for (int i = 0; i < N_MPT_RUNS; i++) {
        const mpt_run* run = &mpt_runs[i];
        double tokens_per_s, memory_gib;
        CHECK_OK(mpt_predict(run, &tokens_per_s, &memory_gib, &error));
        IN_CASE("MPT %s, %d tokens, %d GPUs: %.0f tokens/s, %.1f GiB", run->name,
                (int)run->sequence, (int)run->n_gpus, tokens_per_s, memory_gib);
        const double off = fabs(tokens_per_s / run->tokens_per_s - 1);
        CHECK(memory_gib < 80);
        sum += off;
        if (run->hidden == 7168 && run->sequence == 8192) {
            CHECK_IS(mpt_of_neighbours(), >, 1.15 * run->tokens_per_s);
            CHECK_IS(fabs(tokens_per_s / mpt_of_neighbours() - 1), <=, 0.02);
        } else {
            CHECK_IS(off, <=, 0.15);
        }
    }
    CHECK_IS(sum / N_MPT_RUNS, <=, 0.05);
}

/* A copy reads and writes the whole tensor beside each of four collectives a pass. */
TEST(collectives_along_the_sequence_copy) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 8192, 8);
    memo_parallel_layout l = make_layout(1, 1, 8, 1, 1, 0);
    l.activations = MEMO_PARALLEL_KEEP;
    d.cluster.device_memory_bytes_per_s = 1.5e12;
    const memo_parallel_prediction without = predict(&d, &l);
    const double tensor_bytes = 2.0 * 8192 * d.model.hidden;
    d.cluster.tensor_copies = 1.5;
    const memo_parallel_prediction with = predict(&d, &l);
    const double n_collectives = 2 * 4.0 * d.model.n_layers * 8;
    const double expected = n_collectives * 1.5 * 2 * tensor_bytes / 1.5e12;
    CHECK_IS(fabs((with.time.tensor_s - without.time.tensor_s) / expected - 1), <, 1e-9);
    CHECK(with.sent_bytes[MEMO_PARALLEL_TENSOR] == without.sent_bytes[MEMO_PARALLEL_TENSOR]);
    l = make_layout(8, 1, 1, 1, 1, 1);
    CHECK(predict(&d, &l).time.tensor_s == 0);
}

/* Between keeping and recomputing all: memory, time, and what is sent. */
TEST(selective_recomputation_is_between_the_others) {
    int n = 0;
    for (int i = 0; i < 4000 && n < 300; i++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        memo_parallel_prediction p[3];
        if (!random_legal(&d, &l) || l.activations >= MEMO_PARALLEL_SWAP) continue;
        d.mlp_tile_bytes = 0;
        for (int k = 0; k < 3; k++) {
            static const memo_parallel_activations ways[] = {
                MEMO_PARALLEL_KEEP, MEMO_PARALLEL_SELECTIVE, MEMO_PARALLEL_RECOMPUTE};
            l.activations = ways[k];
            CHECK_OK(memo_parallel_predict(&d, &l, &p[k], &error));
        }
        n++;
        IN_CASE("layout %d", n);
        CHECK(p[0].time.recompute_s <= 0 && p[1].time.recompute_s <= p[2].time.recompute_s);
        CHECK(p[1].time.recompute_s > 0);
        CHECK(p[2].memory.activations_bytes <= p[1].memory.activations_bytes);
        CHECK(p[0].sent_bytes[MEMO_PARALLEL_TENSOR] <= p[1].sent_bytes[MEMO_PARALLEL_TENSOR] &&
              p[1].sent_bytes[MEMO_PARALLEL_TENSOR] <= p[2].sent_bytes[MEMO_PARALLEL_TENSOR]);
        CHECK(p[1].sent_bytes[MEMO_PARALLEL_RING] <= p[0].sent_bytes[MEMO_PARALLEL_RING]);
    }
    CHECK_IS(n, ==, 300);
}

/* The last tile of each processor, dealt one by one to the processor that is free first. */
static double tiles_end(int n_processors, int64_t n_tiles, double tile_s) {
    double free_s[256] = {0}, end_s = 0;
    for (int64_t i = 0; i < n_tiles; i++) {
        int first = 0;
        for (int k = 1; k < n_processors; k++)
            if (free_s[k] < free_s[first]) first = k;
        free_s[first] += tile_s;
        end_s = fmax(end_s, free_s[first]);
    }
    return end_s;
}

TEST(products_take_whole_waves_or_their_bytes) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 65536, 1);
    int n_waves = 0, n_bytes = 0;
    d.cluster.gemm_efficiency = 0.5;
    d.element_bytes = 2;
    for (int round = 0; round < 300; round++) {
        const int64_t rows = memo_test_int(1, 6000), columns = memo_test_int(1, 6000);
        const int64_t inner = memo_test_int(1, 6000);
        const double flops = 156e12, ideal_s = 2.0 * (double)(rows * columns * inner) / flops;
        double best_s = HUGE_VAL, product_s, bytes_s;
        const int n = (int)memo_test_int(1, 150);
        d.cluster.n_processors = 0;
        product_s = memoi_parallel_product_s(&d, (double)rows, (double)columns, (double)inner, 2);
        CHECK(near(product_s, ideal_s));
        d.cluster.n_processors = n;
        product_s = memoi_parallel_product_s(&d, (double)rows, (double)columns, (double)inner, 2);
        for (int width = 128; width <= 256; width += 128) {
            const int64_t tiles = (rows + 127) / 128 * ((columns + width - 1) / width);
            int64_t parts = n / tiles < inner / 512 ? n / tiles : inner / 512;
            if (parts < 1) parts = 1;
            best_s = fmin(
                best_s, tiles_end(n, tiles * parts,
                                  2.0 * 128 * width * (double)inner / (double)parts / (flops / n)));
        }
        bytes_s = 2.0 * (double)(rows * inner + inner * columns + rows * columns) / 1.5e12;
        n_waves += best_s > bytes_s;
        n_bytes += best_s < bytes_s;
        CHECK_IS(fabs(product_s / fmax(best_s, bytes_s) - 1), <, 1e-9);
        CHECK(product_s >= ideal_s * (1 - 1e-12));
    }
    CHECK_CASE(n_waves > 50 && n_bytes > 5, "%d, %d", n_waves, n_bytes);
}

/* 128 tokens a rank leave most processors idle: they add gradients of all weights. */
TEST(few_tokens_are_inefficient) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 1024, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 1, 1);
    double last = 0;
    d.cluster.collective_s = 0;
    double alike = predict(&d, &l).time.gemm_s;
    d.cluster.n_processors = 108;
    CHECK_IS(predict(&d, &l).time.gemm_s, >, 2.5 * alike);
    for (; d.sequence <= 1 << 14; d.sequence *= 2) { /* longer is more efficient */
        double mfu = predict(&d, &l).mfu;
        CHECK_IS(mfu, >, last);
        last = mfu;
    }
    d.sequence = 65536; /* 8192 rows a rank: little is lost */
    double slow = predict(&d, &l).time.gemm_s;
    d.cluster.n_processors = 0;
    CHECK(slow < 1.1 * predict(&d, &l).time.gemm_s);
}

/* Layer inputs on the host, MLP in tiles, and an optimizer on the host. */
TEST(offloading_needs_a_layer_and_the_link) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 262144, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 1, 3);
    const double row = 2 * 262144 / 8.0, ffn = row * 3 * 14336, layer = row * 34 / 2 * 4096;
    const double shard = memo_parallel_parameters(&d.model) / 8;
    l.activations = MEMO_PARALLEL_RECOMPUTE;
    memo_parallel_prediction p = predict(&d, &l);
    CHECK(near(p.memory.activations_bytes, 32 * row * 4096 + layer));
    d.mlp_tile_bytes = 1e6;
    CHECK(near(predict(&d, &l).memory.activations_bytes, 32 * row * 4096 + layer - ffn + 1e6));
    d.mlp_tile_bytes = 1e15; /* more than all rows */
    CHECK(near(predict(&d, &l).memory.activations_bytes, p.memory.activations_bytes));
    d.mlp_tile_bytes = 0;
    l.activations = MEMO_PARALLEL_OFFLOAD;
    memo_parallel_prediction q = predict(&d, &l);
    CHECK(near(q.memory.activations_bytes, row * 4096 + layer));
    CHECK(near(q.memory.host_bytes, 30 * row * 4096) && q.alpha <= 0);
    CHECK(near(q.time.recompute_s, p.time.recompute_s) && q.time.host_s <= 0);
    CHECK(near(q.time.step_s, p.time.step_s));
    d.cluster.host_bytes_per_s = 1e8; /* slower than a layer: stalls, forward and backward */
    q = predict(&d, &l);
    CHECK(q.time.host_s > 0 && q.time.step_s > p.time.step_s);
    d.cluster.host_bytes_per_s = 10e9;
    d.optimizer_on_host = 1;
    q = predict(&d, &l);
    CHECK(near(q.memory.host_bytes, 30 * row * 4096 + 12 * shard));
    CHECK(q.memory.optimizer_bytes <= 0 && near(q.time.update_s, 6 * shard / 10e9));
    CHECK(near(q.memory.device_bytes, p.memory.device_bytes - 12 * shard - 31 * row * 4096));
    d.cluster.host_bytes = 0;
    l.activations = MEMO_PARALLEL_KEEP;
    refused(&d, l, "optimizer_on_host: needs host memory");
    d.optimizer_on_host = 0;
    l.activations = MEMO_PARALLEL_OFFLOAD;
    refused(&d, l, "activations: offload needs host memory");
}

/* Qwen3 30B-A3B: 128 experts of 768 columns, of which a token takes 8; published as 30.5 billion
 * parameters, 3.3 of them active. */
TEST(experts_are_shared_among_ranks) {
    memo_parallel_desc d = make_case(make_model(48, 2048, 768, 32, 4, 151936), 8, 65536, 1), one;
    memo_parallel_layout l = make_layout(1, 1, 1, 8, 1, 1);
    const double mlp = 3.0 * 2048 * 768, rows = 65536 / 8.0, sent = 2 * rows * 8 * 2048 * 7 / 8;
    const double vocabulary = 151936.0 * 2048;
    d.model.head_size = 128;
    d.model.n_experts = 128;
    d.model.n_active_experts = 8;
    double all = memo_parallel_parameters(&d.model), layer, active;
    layer = memo_parallel_layer_parameters(&d.model) - 128 * mlp;
    active = 48 * (layer + 8 * mlp) + 2 * vocabulary;
    CHECK(fabs(all / 30.5e9 - 1) < 0.01 && fabs(active / 3.3e9 - 1) < 0.02);
    memo_parallel_prediction p = predict(&d, &l);
    CHECK(near(p.flops, 65536 * (6 * (active - vocabulary) + 6.0 * 48 * 65536 * 4096)));
    CHECK(near(p.memory.parameters_bytes, 2 * all) && p.time.experts_s <= 0);
    l.experts = 8;
    memo_parallel_prediction q = predict(&d, &l);
    CHECK(near(q.memory.parameters_bytes, 2 * (all - 48 * 112 * mlp)));
    CHECK(near(q.memory.optimizer_bytes, 12 * (all - 48 * 128 * mlp) / 8 + 12 * 48 * 16 * mlp));
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_EXPERTS], 48 * 4 * sent));
    CHECK(near(q.time.experts_s, 48 * 4 * (sent / 150e9 + 20e-6)) && q.time.zero_s < p.time.zero_s);
    CHECK(near(q.memory.activations_bytes, p.memory.activations_bytes) && near(q.flops, p.flops));
    CHECK(near(q.time.gemm_s, p.time.gemm_s)); /* at any shape alike */
    d.cluster.n_processors = 108;              /* more rows for each of fewer experts: no slower */
    d.sequence = 8192;
    one = d;
    l.experts = 1;
    p = predict(&one, &l);
    l.experts = 8;
    q = predict(&d, &l);
    CHECK_IS(q.time.gemm_s, <, 0.9 * p.time.gemm_s);
    l.activations = MEMO_PARALLEL_RECOMPUTE; /* to the experts and back again */
    CHECK(near(predict(&d, &l).sent_bytes[MEMO_PARALLEL_EXPERTS],
               1.5 * q.sent_bytes[MEMO_PARALLEL_EXPERTS]));
    l.experts = 3;
    refused(&d, l, "experts: 3 does not divide the 128 experts and the 8 ranks");
    d.model.n_experts = d.model.n_active_experts = 0;
    l.experts = 2;
    refused(&d, l, "experts: 2 does not divide the 0 experts");
    d.model.n_active_experts = 2;
    CHECK_ERROR(memo_parallel_predict(&d, &l, &p, &error), INVALID_ARGUMENT, "n_active_experts");
    one.zero_stages = 1;
    one.activations = 1u << MEMO_PARALLEL_KEEP;
    own_list* list = list_of(&one); /* ranks of experts: powers of two up to the group */
    int n_expected = 0;
    for (int group = 1; group <= 8; group *= 2)
        for (int k = 1; k <= group; k *= 2)
            n_expected += n_products(group, 3) * n_products(8 / group, 2);
    CHECK_IS(list->n_entries, ==, n_expected);
}

/* DeepSeek-V2's attention: latent rows of 576 instead of 128 heads of 192 + 128. */
TEST(latent_rows_travel_instead_of_keys) {
    memo_parallel_desc d = make_case(make_model(4, 5120, 12288, 128, 128, 0), 8, 131072, 1), keys;
    memo_parallel_layout l = make_layout(1, 1, 1, 1, 8, 1);
    d.model.head_size = 192;
    d.model.v_head_size = 128;
    d.excludes_attention_memory = 0;
    keys = d;
    d.model.latent_size = 576;
    memo_parallel_prediction p = predict(&keys, &l);
    memo_parallel_prediction q = predict(&d, &l);
    CHECK(near(p.sent_bytes[MEMO_PARALLEL_RING] / q.sent_bytes[MEMO_PARALLEL_RING],
               128.0 * 320 / 576));
    CHECK(
        near(memo_parallel_layer_parameters(&keys.model) - memo_parallel_layer_parameters(&d.model),
             5120.0 * 128 * 320 - 576 * (5120 + 128.0 * 320)));
    CHECK(q.memory.activations_bytes < p.memory.activations_bytes && q.time.step_s < p.time.step_s);
    memo_sp_attention_desc a = {0};
    memo_sharding_desc sharding = {.kind = MEMO_SHARDING_ZIGZAG, .ring = 8, .n_tokens = 131072};
    CHECK_OK(memo_sharding_make(&sharding, &a.sharding, &error));
    a.n_q_heads = a.n_kv_heads = 128;
    a.head_size = 192;
    a.v_head_size = 128;
    a.latent.size = 576;
    a.type = MEMO_TYPE_BF16;
    memo_sp_attention_sizes sizes;
    CHECK_OK(memo_sp_attention_desc_get_sizes(&a, &sizes, &error));
    CHECK(near(q.memory.attention_bytes, (double)sizes.device_bytes));
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_RING], 4 * 4 * (7.0 * 16384 * 576 * 2)));
    l = make_layout(1, 1, 1, 8, 1, 1); /* every rank reads all latent rows */
    q = predict(&d, &l);
    double row = 2 * 131072 / 8.0, out = row * 112 * 128, query = row * 112 * 192;
    CHECK(near(q.sent_bytes[MEMO_PARALLEL_ULYSSES],
               4 * (2 * out + 2 * query + row * 112 * 2 + row * 7 * 576 * 3)));
}

/* The mean number of keys that a query sees, one query at a time. */
TEST(masks_leave_keys_out) {
    for (int round = 0; round < 50; round++) {
        const int64_t document = memo_test_int(1, 3000), n_documents = memo_test_int(1, 4);
        const int64_t window = memo_test_int(0, 4000), n = document * n_documents;
        memo_parallel_desc d = make_case(llama3_8b(), 4, n, 1), all;
        memo_parallel_layout l = make_layout(1, 1, 1, 1, 4, 1);
        memo_parallel_prediction p, q;
        double seen = 0;
        if (n < 8) continue;
        all = d;
        for (int64_t i = 0; i < n; i++) {
            const double before = (double)(i % document) + 0.5;
            seen += window > 0 && before > (double)window ? (double)window : before;
        }
        d.window = window;
        d.document = document;
        p = predict(&all, &l);
        q = predict(&d, &l);
        IN_CASE("round %d: documents of %d, window %d", round, (int)document, (int)window);
        seen /= 0.5 * (double)n * (double)n;
        CHECK_IS(fabs(q.time.attention_s / p.time.attention_s / seen - 1), <, 2e-3);
        CHECK(q.flops <= p.flops && q.time.step_s <= p.time.step_s);
        CHECK(q.sent_bytes[MEMO_PARALLEL_RING] <= p.sent_bytes[MEMO_PARALLEL_RING]);
    }
    memo_parallel_desc d = make_case(llama3_8b(), 16, 131072, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 1, 16, 1);
    double all = predict(&d, &l).sent_bytes[MEMO_PARALLEL_RING];
    d.window = 4096; /* of 15 x 8192 keys, those before two pieces */
    CHECK(near(predict(&d, &l).sent_bytes[MEMO_PARALLEL_RING], all * 2 * 4096 / (15 * 8192)));
}

/* More GPUs wait for a slower one, and a step never gets faster by anything that costs time. */
TEST(times_are_monotonic) {
    int n = 0;
    for (int round = 0; round < 200; round++) {
        memo_parallel_desc d, worse;
        memo_parallel_layout l;
        if (!random_legal(&d, &l)) continue;
        d.cluster.n_processors = (int32_t)memo_test_int(0, 1) * 108;
        d.cluster.speed_deviation = 0.01 * (double)memo_test_int(0, 3);
        d.window = memo_test_int(0, 3) ? 0 : memo_test_int(1, 5000);
        memo_parallel_prediction p = predict(&d, &l);
        n++;
        CHECK((p.time.straggler_s > 0) == (d.cluster.speed_deviation > 0 && d.cluster.n_gpus > 1));
        for (int k = 0; k < 5; k++) {
            worse = d;
            if (k == 0) worse.cluster.speed_deviation += 0.01;
            if (k == 1) worse.cluster.link_bytes_per_s /= 2;
            if (k == 2) worse.cluster.gemm_efficiency = 0.5;
            if (k == 3) worse.cluster.collective_s *= 2;
            if (k == 4) worse.cluster.nic_bytes_per_s /= 2;
            if (l.activations == MEMO_PARALLEL_SWAP && k) continue; /* slower hides more copies */
            IN_CASE("round %d, %d", round, k);
            CHECK_IS(predict(&worse, &l).time.step_s, >=, p.time.step_s * (1 - 1e-9));
        }
    }
    CHECK_IS(n, >, 100);
    double last = 0;
    for (int gpus = 1; gpus < 1 << 20; gpus *= 2) {
        CHECK(memoi_parallel_expected_most(gpus) >= last);
        last = memoi_parallel_expected_most(gpus);
    }
    CHECK(last > 4.5 && last < 5.5);
}

/* The end of the last group, by events: when each group has arrived, is computed, has left. */
static double groups_end_s(int n, double arrive_s, double compute_s, double leave_s) {
    double arrived[64], computed[64], left[64];
    for (int g = 0; g < n;
         g++) { /* the stream of exchanges: 0 arrives, 1 arrives, 0 leaves, 2 arrives, ... */
        double free_s = g == 0 ? 0 : g == 1 ? arrived[0] : left[g - 2];
        arrived[g] = free_s + arrive_s;
        if (g > 0) {
            computed[g - 1] = fmax(arrived[g - 1], g > 1 ? computed[g - 2] : 0) + compute_s;
            left[g - 1] = fmax(arrived[g], computed[g - 1]) + leave_s;
        }
    }
    computed[n - 1] = fmax(arrived[n - 1], n > 1 ? computed[n - 2] : 0) + compute_s;
    left[n - 1] = fmax(n > 1 ? left[n - 2] : 0, computed[n - 1]) + leave_s;
    return left[n - 1];
}

TEST(groups_of_heads_hide_the_all_to_all) {
    static const int64_t lengths[] = {1024, 8192, 65536, 1 << 20};
    for (int i = 0; i < 4; i++)
        for (int ring = 1; ring <= 2; ring++) {
            memo_parallel_desc d = make_case(llama2_7b(), 8 * ring, lengths[i], 1);
            memo_parallel_layout l = make_layout(1, 1, 1, 8, ring, 1);
            memo_parallel_attention whole[2], grouped[2];
            /* A rank's share of a tensor, of which 7 of 8 parts leave; 4 heads of a rank. */
            double S = (double)lengths[i], part = 2 * S / (8 * ring) * 4096 * 7 / 8 / 150e9;
            double dots = 4 * S / (8 * ring) * 32 * 7 / 8 / 150e9; /* leave with dO */
            double best_s = HUGE_VAL;
            int best = 0;
            memo_parallel_prediction none = predict(&d, &l);
            whole[0] = none.forward;
            whole[1] = none.backward;
            CHECK_IS(none.ulysses_groups, ==, 1);
            for (int n = 1; n <= 4; n *= 2) {
                double sum_s = 0;
                for (int way = 0; way < 2; way++) {
                    const memo_parallel_attention* a = &whole[way];
                    /* What is started once for each group instead of once. */
                    double starts_s = ring == 1 ? (n > 1 ? n * 20e-6 : 0) : (n - 1) * ring * 20e-6;
                    double hops_s = a->hops_s; /* of rings, the home of dK and dV */
                    if (ring > 1 && way) hops_s += (n - 1) * 20e-6;
                    sum_s += groups_end_s(n, (way ? 1 : 3) * (part / n + 20e-6) + way * dots / n,
                                          (a->compute_s + hops_s + a->blocks_s + starts_s) / n,
                                          (way ? 3 : 1) * (part / n + 20e-6));
                }
                if (sum_s < best_s) {
                    best_s = sum_s;
                    best = n;
                }
            }
            d.max_ulysses_groups = 100;
            memo_parallel_prediction p = predict(&d, &l);
            grouped[0] = p.forward;
            grouped[1] = p.backward;
            if (ring == 1 || whole[0].hops_s + whole[1].hops_s < 1e-3) {
                double sum_s = 0;
                for (int way = 0; way < 2; way++)
                    sum_s += grouped[way].compute_s + grouped[way].all_to_all_s +
                             grouped[way].hops_s + grouped[way].blocks_s;
                IN_CASE("%d tokens, ring %d", (int)lengths[i], ring);
                CHECK_IS(p.ulysses_groups, ==, best);
                CHECK_IS(fabs(sum_s / best_s - 1), <, 1e-9);
            }
            CHECK(p.time.step_s <= none.time.step_s * (1 + 1e-9));
            CHECK(memcmp(p.sent_bytes, none.sent_bytes, sizeof p.sent_bytes) == 0);
            if (lengths[i] == 1 << 20) CHECK(p.ulysses_groups == 4);
            d.max_ulysses_groups = 2;
            CHECK(predict(&d, &l).ulysses_groups <= 2);
        }
}

TEST(groups_of_heads_never_lose) {
    int n_smaller = 0, n_larger = 0;
    for (int k = 0; k < 1000; k++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        if (!random_legal(&d, &l)) continue;
        if (l.activations == MEMO_PARALLEL_SWAP) continue; /* less time may hide fewer swaps */
        d.excludes_attention_memory = 0;
        memo_parallel_prediction without = predict(&d, &l);
        d.max_ulysses_groups = (int32_t)memo_test_int(1, 8);
        memo_parallel_prediction with = predict(&d, &l);
        CHECK(with.ulysses_groups >= 1 && with.ulysses_groups <= d.max_ulysses_groups);
        CHECK(l.ulysses > 1 || with.ulysses_groups == 1);
        CHECK(with.fits > without.fits || with.time.step_s <= without.time.step_s * (1 + 1e-9));
        CHECK(near(with.memory.device_bytes - with.memory.attention_bytes,
                   without.memory.device_bytes - without.memory.attention_bytes));
        CHECK_IS(with.fits, >=, without.fits);
        n_smaller += with.memory.attention_bytes < without.memory.attention_bytes;
        n_larger += with.memory.attention_bytes > without.memory.attention_bytes;
    }
    CHECK(n_smaller + n_larger > 10);
}

TEST(attention_matches_its_formulas) {
    memo_parallel_desc d = make_case(llama3_8b(), 8, 65536, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 2, 4, 1);
    double S = 65536, elements = S / 4 * 16 * 128, kv = 2 * 2 * S / 4 * 4 * 128;
    double sent = 2 * S / 8 * 128 * 80 / 2;
    memo_parallel_attention a = attend(&d, &l, 0);
    memo_parallel_attention b = attend(&d, &l, 1);
    CHECK(near(a.compute_s, 2 * S * elements / (0.6 * 312e12)));
    CHECK(near(b.compute_s, 5 * S * elements / (0.55 * 312e12)));
    /* Hops are hidden, except the last one of dK and dV in fp32. */
    CHECK(a.hops_s <= 0 && near(b.hops_s, 2 * kv / 150e9 + 20e-6));
    CHECK(near(a.blocks_s, 4 * (20e-6 + 30 * elements / 1.5e12)) && near(b.blocks_s, a.blocks_s));
    CHECK(near(a.all_to_all_s, sent / 150e9 + 4 * 20e-6));
    CHECK(near(b.all_to_all_s, a.all_to_all_s + 4 * S / 8 * 32 / 2 / 150e9)); /* row dots */
    l = make_layout(1, 1, 1, 8, 1, 1);
    sent = 2 * S / 8 * 128 * 80 * 7 / 8;
    a = attend(&d, &l, 0);
    CHECK(near(a.all_to_all_s, sent / 150e9 + 4 * 20e-6) && a.hops_s <= 0 && a.blocks_s <= 0);
    /* Over PCIe the seven flows share the link. */
    d.cluster.is_shared_bus = 1;
    a = attend(&d, &l, 0);
    CHECK(near(a.all_to_all_s, 7 * sent / 150e9 + 4 * 20e-6));
}

/* Groups of three do not tile nodes of eight. */
TEST(groups_that_straddle_nodes_use_the_nic) {
    memo_parallel_desc d = make_case(make_model(4, 1536, 1536, 12, 6, 0), 24, 8192, 8);
    memo_parallel_layout l = make_layout(8, 1, 3, 1, 1, 1);
    memo_parallel_prediction p = predict(&d, &l);
    double bytes = 2 * 8192.0 * 1536 * 2 / 3;
    CHECK(p.leaves_node[MEMO_PARALLEL_TENSOR]);
    CHECK(near(p.time.tensor_s, 4 * 8 * (bytes / 20e9 + 20e-6)));
    d.cluster.gpus_per_node = 12;
    p = predict(&d, &l);
    CHECK(!p.leaves_node[MEMO_PARALLEL_TENSOR] && p.leaves_node[MEMO_PARALLEL_GRADIENTS]);
    CHECK(near(p.time.tensor_s, 4 * 8 * (bytes / 150e9 + 20e-6)));
    d.cluster.gpus_per_node = 8;
    d.cluster.n_gpus = 6;
    l = make_layout(2, 1, 3, 1, 1, 1);
    p = predict(&d, &l);
    CHECK(!p.leaves_node[MEMO_PARALLEL_TENSOR] && !p.leaves_node[MEMO_PARALLEL_GRADIENTS]);
}

/* A ring whose hops are longer than its blocks waits for the difference. */
TEST(hops_hide_behind_blocks) {
    memo_parallel_desc d = make_case(llama2_7b(), 8, 8192, 1);
    memo_parallel_layout l = make_layout(1, 1, 1, 1, 8, 1);
    d.cluster.collective_s = 0;
    d.cluster.link_bytes_per_s = 1e15;
    memo_parallel_attention fast = attend(&d, &l, 0);
    CHECK_IS(fast.hops_s, <=, 0);
    d.cluster.link_bytes_per_s = 2 * 2 * 1024 * 4096 / (3 * fast.compute_s / 8);
    memo_parallel_attention slow = attend(&d, &l, 0);
    CHECK(near(slow.hops_s, 7 * 2 * fast.compute_s / 8));
    /* Contiguous pieces: the last of 8 ranks does 15 halves, not 8. */
    d.is_contiguous = 1;
    memo_parallel_attention plain = attend(&d, &l, 0);
    CHECK(near(plain.compute_s, fast.compute_s * 15 / 8));
}

TEST(extreme_cases_stay_finite) {
    memo_parallel_desc d = make_case(llama3_8b(), 1 << 20, (int64_t)1 << 40, 1 << 20);
    d.zero_stages = 1u << 3;
    d.cluster.gpus_per_node = 72;
    d.cluster.host_bytes = (int64_t)1 << 59;
    own_list* list = list_of(&d);
    CHECK_IS(list->n_legal, >, 0);
    for (int64_t i = 0; i < list->n_legal; i++) {
        const memo_parallel_prediction* p = &list->entries[i].prediction;
        CHECK(p->time.step_s > 0 && p->time.step_s < 1e30 && p->memory.device_bytes > 0 &&
              p->memory.device_bytes < 1e30);
    }
    memo_parallel_list_destroy(list);
    d = make_case(make_model(1, 1, 0, 1, 1, 0), 1, 2, 1);
    list = list_of(&d);
    CHECK(list->n_fitting == 4 && list->n_entries == 20);
}

/* Whatever the desc allows: no term is infinite, none is no number. */
TEST(any_case_stays_finite) {
    int n_predicted = 0;
    for (int n = 0; n < 3000; n++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        memo_parallel_prediction p;
        double* const extreme[] = {&d.cluster.gemm_efficiency,
                                   &d.cluster.attention_forward_efficiency,
                                   &d.cluster.attention_backward_efficiency,
                                   &d.cluster.peak_flops_per_s,
                                   &d.cluster.link_bytes_per_s,
                                   &d.cluster.nic_bytes_per_s,
                                   &d.cluster.device_memory_bytes_per_s,
                                   &d.cluster.collective_s,
                                   &d.cluster.block_s,
                                   &d.cluster.host_bytes_per_s,
                                   &d.element_bytes,
                                   &d.optimizer_bytes,
                                   &d.cluster.merge_bytes,
                                   &d.cluster.tensor_copies,
                                   &d.kv_gradient_bytes};
        if (!random_legal(&d, &l)) continue;
        for (int k = 0; k < 15; k++)
            if (memo_test_int(0, 5) == 0)
                *extreme[k] = pow(10, (double)(memo_test_int(0, 1) ? memo_test_int(-330, 30)
                                                                   : memo_test_int(-9, 0)));
        if (memo_test_int(0, 5) == 0) { /* more sequences than 32 bits count */
            d.micro_batch <<= 33;
            d.global_batch <<= 33;
        }
        if (memo_parallel_predict(&d, &l, &p, &error)) {
            /* 10^-330 is 0, and a host link of 0 cannot swap or offload. */
            int is_without_host = l.activations >= MEMO_PARALLEL_SWAP &&
                                  !(d.cluster.host_bytes_per_s > 0) &&
                                  error.status == MEMO_STATUS_INFEASIBLE;
            CHECK_CASE(error.status == MEMO_STATUS_INVALID_ARGUMENT || is_without_host, "%s",
                       error.message);
            continue;
        }
        n_predicted++;
        CHECK(p.time.step_s > 0 && p.time.step_s < 1e300 && p.mfu >= 0 && p.mfu <= 1);
        CHECK(p.memory.device_bytes >= 0 && p.memory.device_bytes < 1e300);
        CHECK(p.alpha >= 0 && p.alpha <= 1 && p.flops < 1e300);
        CHECK(p.time.bubble_s >= 0 && p.time.host_s >= 0 && p.time.ring_s >= 0);
    }
    CHECK_IS(n_predicted, >, 100);
}

/* ---- tips of the paper; test_paper_tables has all seven ------------------------------------- */

/* LLAMA2-7B, batch 8, 8 GPUs, 4K to 32K: data 8 is faster than any SP layout of the same ZeRO
 * stage. */
TEST(tip_2_data_before_sequence) {
    for (int64_t k = 4; k <= 32; k *= 2)
        for (int64_t micro = 1; micro <= 8; micro *= 2) {
            memo_parallel_desc d = make_case(llama2_7b(), 8, k * 1024, 8), one = d;
            d.micro_batch = micro;
            own_list* list = list_of(&d);
            for (int64_t i = 0; i < list->n_legal; i++) {
                const memo_parallel_entry* e = &list->entries[i];
                memo_parallel_layout data = make_layout(8, 1, 1, 1, 1, e->layout.zero_stage);
                if (e->layout.ulysses * e->layout.ring == 1 || e->layout.tensor > 1 ||
                    e->layout.pipeline > 1)
                    continue;
                data.activations = e->layout.activations;
                CHECK_CASE(predict(&one, &data).time.step_s < e->prediction.time.step_s,
                           "%lldK, ulysses %d, ring %d, micro-batch %lld, ZeRO %d, %s",
                           (long long)k, (int)e->layout.ulysses, (int)e->layout.ring,
                           (long long)micro, (int)e->layout.zero_stage,
                           memo_parallel_activations_name(e->layout.activations));
            }
        }
}

/* The ZeRO group has sp * dp ranks; with sp > 1 the default is ZeRO >= 1.  test_paper_tables has the
 * traffic. */
TEST(tip_3_zero_spans_sequence_and_data) {
    for (int round = 0; round < 300; round++) {
        memo_parallel_desc d;
        memo_parallel_layout l;
        if (!random_legal(&d, &l)) continue;
        double group = (double)l.ulysses * l.ring * l.data;
        CHECK(near((double)memo_parallel_zero_group(&l), group));
        CHECK_IS((memo_parallel_zero_default(&l) >= 1), ==, (l.ulysses * l.ring > 1));
    }
}

/* rank = t + T*(u + U*(r + R*(d + D*p))); with T*U dividing the GPUs of a node no tensor or ulysses
 * group leaves it. */
TEST(tip_7_inner_groups_stay_in_a_node) {
    memo_parallel_desc d = make_case(llama3_8b(), 64, 65536, 64);
    d.zero_stages = 1;
    d.activations = 1u << MEMO_PARALLEL_KEEP;
    own_list* list = list_of(&d);
    CHECK_IS(list->n_legal, >, 100);
    for (int64_t i = 0; i < list->n_legal; i++) {
        const memo_parallel_entry* e = &list->entries[i];
        const memo_parallel_layout* l = &e->layout;
        int seen[64] = {0}, t, u, r, k, p, leaves = 0;
        for (p = 0; p < l->pipeline; p++)
            for (k = 0; k < l->data; k++)
                for (r = 0; r < l->ring; r++)
                    for (u = 0; u < l->ulysses; u++)
                        for (t = 0; t < l->tensor; t++) {
                            int64_t rank = memo_parallel_rank(l, t, u, r, k, p);
                            CHECK_IS(rank, ==,
                                     t + l->tensor *
                                             (u + l->ulysses * (r + l->ring * (k + l->data * p))));
                            CHECK(rank >= 0 && rank < 64 && !seen[rank]++);
                            leaves |= rank / 8 != memo_parallel_rank(l, 0, 0, r, k, p) / 8;
                        }
        if (8 % (l->tensor * l->ulysses) == 0) CHECK(!leaves);
        CHECK_IS((e->prediction.leaves_node[MEMO_PARALLEL_TENSOR] ||
                  e->prediction.leaves_node[MEMO_PARALLEL_ULYSSES]),
                 ==, leaves);
    }
}

/* ---- the tool -------------------------------------------------------------------------------- */

static void read_back(FILE* file, char* text, size_t size) {
    rewind(file);
    size_t n = fread(text, 1, size - 1, file);
    text[n] = 0;
    (void)fclose(file);
}

/* Runs the tool with the words of a line. */
static int tool(const char* line) {
    char words[512], *argv[40], name[] = "layout_plan", *word;
    FILE *out = tmpfile(), *err = tmpfile();
    int argc = 0, status = -1;
    (void)snprintf(words, sizeof words, "%s", line);
    argv[argc++] = name;
    for (word = strtok(words, " "); word && argc < 39; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    if (out && err) {
        status = layout_plan(argc, argv, out, err);
        read_back(out, tool_out, sizeof tool_out);
        read_back(err, tool_err, sizeof tool_err);
    }
    return status;
}

static int n_lines(const char* text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

/* A run of the tool: its exit status and its words; then words that it prints or, after "!", does
 * not. */
static void tool_prints(const char* const (*cases)[3], size_t n) {
    for (size_t i = 0; i < n; i++) {
        CHECK_CASE(tool(cases[i][0] + 2) == cases[i][0][0] - '0', "%s: %s", cases[i][0], tool_err);
        for (size_t k = 1; k < 3 && cases[i][k]; k++) {
            const int is_absent = cases[i][k][0] == '!';
            CHECK_CASE((strstr(tool_out, cases[i][k] + is_absent) == NULL) == is_absent,
                       "%s: %s: %s", cases[i][0], cases[i][k], tool_out);
        }
    }
}

TEST(tool_prints_the_list) {
    static const char* const cases[][3] = {
        {"0 --model llama2-7b --gpus 8 --sequence 64K --top 0", " keep        groups 4 "},
        {"1 --gpus 8 --memory 1 --top 0", "does not fit", " 0 fit"},
        /* The preset comes first wherever it stands. */
        {"1 --layers 2 --model gpt-7b --explain 1,8,1,1,1", "is above the 2 layers"},
        {"0 --gpus 8 --model gpt-7b --batch 8 --chunks 4 --top 0", "   1    2      4       1 "}};
    tool_prints(cases, sizeof cases / sizeof *cases);
    CHECK(tool("--gpus 16 --sequence 80K --host-memory 1000") == 0 && !tool_err[0]);
    CHECK(n_lines(tool_out) == 22 && strstr(tool_out, "MFU"));
    CHECK(strstr(tool_out, "1400 layouts"));
    CHECK_IS(
        tool("--model llama2-7b --gpus 8 --zero 1 --activations swap --host-memory 2000 --top 3"),
        ==, 0);
    CHECK(n_lines(tool_out) == 5 && strstr(tool_out, "swap") && !strstr(tool_out, "keep"));
    CHECK(tool("--help") == 0 && strstr(tool_out, "--explain D,P,T,U,R") && !tool_err[0]);
}

/* A preset equals its figures given one by one; any figure can be overridden, before or after the
 * preset. */
TEST(tool_takes_clusters) {
    static const int processors[] = {108, 108, 132, 132, 148, 82};
    static const char* const figures[][2] = {
        {"a800", "--per-node 8 --memory 80 --flops 312 --link 150 --nic 20 --memory-bandwidth 1500 "
                 "--host-link 10 --shared-bus 0"},
        {"a100", "--per-node 8 --memory 80 --flops 312 --link 225 --nic 20 --memory-bandwidth 1500 "
                 "--host-link 12 --shared-bus 0"},
        {"h100", "--per-node 8 --memory 80 --flops 989 --link 337 --nic 40 --memory-bandwidth 2500 "
                 "--host-link 48 --shared-bus 0"},
        {"h200", "--per-node 8 --memory 139 --flops 989 --link 337 --nic 40 --memory-bandwidth "
                 "3600 --host-link 48 --shared-bus 0"},
        {"b200", "--per-node 8 --memory 180 --flops 2250 --link 675 --nic 40 --memory-bandwidth "
                 "6000 --host-link 48 --shared-bus 0"},
        {"3090-pcie", "--per-node 4 --memory 24 --flops 71 --link 4 --nic 3 --memory-bandwidth 700 "
                      "--host-link 12 --shared-bus 1"}};
    static const char rest[] = "--gpus 16 --host-memory 1000 --top 0";
    static const char rates[] = "--gemm %.17g --attention-forward %.17g --attention-backward %.17g "
                                "--processors %d";
    static char expected[sizeof tool_out], other[sizeof tool_out];
    char line[512];
    *other = 0;
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++) {
        const cluster_rates r = cluster_rates_of(&clusters[cluster_find(figures[k][0])], 65536);
        char all[400];
        const int n = snprintf(all, sizeof all, "%s ", figures[k][1]);
        snprintf(all + n, sizeof all - (size_t)n, rates, r.products, r.forward, r.backward,
                 processors[k]);
        snprintf(line, sizeof line, "%s %s", rest, all);
        CHECK_IS(tool(line), <, 2);
        strcpy(expected, tool_out);
        snprintf(line, sizeof line, "%s --cluster %s", rest, figures[k][0]);
        CHECK_IS(tool(line), <, 2);
        CHECK_CASE(!strcmp(tool_out, expected) && strcmp(tool_out, other), "%s", figures[k][0]);
        strcpy(other, expected);
        snprintf(line, sizeof line, "--flops 100 %s --cluster %s --memory 50", rest, figures[k][0]);
        CHECK_IS(tool(line), <, 2);
        strcpy(expected, tool_out);
        snprintf(line, sizeof line, "%s %s --flops 100 --memory 50", rest, all);
        CHECK(tool(line) < 2 && !strcmp(tool_out, expected));
    }
}

#define FEW_KEYS "0 --gpus 4 --layers 2 --kv-heads 1 --sequence 8K --explain 1,1,1,1,4"

TEST(tool_explains) {
    static const char* const cases[][3] = {
        {"1 --gpus 16 --explain 1,1,16,1,1", "illegal: tensor: 16 is above the 8 key/value heads"},
        {"1 --gpus 16 --explain 1,1,1,16,1 --kv-heads-must-divide",
         "does not divide the 8 key/value heads", "and --kv-heads-must-divide forbids"},
        {"0 --gpus 16 --explain 1,1,1,8,2",
         "legal: data 1, pipeline 1, tensor 1, ulysses 8, ring 2, ZeRO 1",
         "attention 0.28, logits 2.94; 70.70 of 80.00: fits"},
        {"0 --gpus 16 --explain 1,1,1,8,2 --loss-tile 64M", "logits 0.06"},
        {"0 --gpus 16 --explain 1,1,1,8,2 --activations swap --host-memory 900 --zero 3",
         "alpha 0.", "ZeRO 3"},
        {"0 --model llama3-405b --gpus 128 --batch 16 --explain 1,16,8,1,1 --chunks 8",
         "pipeline 16,", "8 chunks a stage"},
        {"0 --model llama2-7b --sequence 16K --explain 1,1,1,8,1",
         "activations keep, 4 groups of heads\n"},
        {"0 --experts 64 --active-experts 4 --ffn 1024 --expert-ranks 8 --explain 8,1,1,1,1 "
         "--batch 8",
         "experts 240.518,", "experts 1.6060,"},
        {FEW_KEYS " --ulysses-groups 1", "ring 0.025"},
        {FEW_KEYS " --rounds-gradients", "ring 0.019"}};
    tool_prints(cases, sizeof cases / sizeof *cases);
}

/* Exit status 2, nothing on standard output, and one line with these words. */
TEST(tool_refuses_in_words) {
    static const char* const cases[][2] = {
        {"--foo", "--foo: unknown option"},
        {"16", "16: unknown option"},
        {"--gpus", "--gpus: no value"},
        {"--gpus x", "--gpus: not a whole number from 1 to 1048576 (x)"},
        {"--gpus 1.5", "--gpus: not a whole number from 1 to 1048576 (1.5)"},
        {"--gpus -8", "(-8)"},
        {"--memory nan", "--memory: not a number from 0.001 to 100000000 (nan)"},
        {"--link 1e99", "(1e99)"},
        {"--gpus 5000000000", "to 1048576 (5000000000)"},
        {"--gpus 0", "--gpus: not a whole number from 1 to 1048576 (0)"},
        {"--gemm 2", "--gemm: not a number from 0.001 to 1 (2)"},
        {"--gemm 1e-320", "--gemm: not a number from 0.001 to 1 (1e-320)"},
        {"--nic 0 --gpus 16", "--nic: not a number from 0.001 to 1000000000 (0)"},
        {"--kv-heads 3", "--kv-heads: 3 does not divide the 32 query heads"},
        {"--hidden 4097", "--head-size: not set"},
        {"--kv-heads 3 --explain 1,1,1,1,8", "--kv-heads: 3 does not divide"},
        {"--gpus --top 3", "--gpus: no value"},
        {"--model gpt-8b", "no such preset (gpt-8b)"},
        {"--model", "--model: no value"},
        {"--cluster --gpus 3", "--cluster: no value"},
        {"--cluster v100", "--cluster: no such preset (v100)"},
        {"--shared-bus 2", "--shared-bus: not a whole number from 0 to 1 (2)"},
        {"--ulysses-groups -1", "--ulysses-groups: not a whole number from 0 to 1000000 (-1)"},
        {"--zero 4", "--zero: not a whole number from 0 to 3 (4)"},
        {"--activations all",
         "--activations: not keep, recompute, selective, swap or offload (all)"},
        {"--explain 1,2,3", "--explain: not five degrees"},
        {"--explain 1,2,3,4,x", "--explain: not five degrees"},
        {"--explain 1,2,3,4,5,6", "--explain: not five degrees"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        IN_CASE("%s", cases[i][0]);
        CHECK(tool(cases[i][0]) == 2 && !tool_out[0] && n_lines(tool_err) == 1);
        CHECK_TEXT(tool_err, cases[i][1]);
    }
}
