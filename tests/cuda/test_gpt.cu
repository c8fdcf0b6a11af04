/* The trainer's model with the kernels of gpt/kernels/cuda.cu: close to the host's, and bitwise
 * equal under every policy.  With a C++ compiler they run thread by thread on the CPU, on stand-ins
 * for CUDA, cuBLASLt and cuDNN.  With nvcc, -DTEST_CUDNN adds the tests with cuDNN. */
#ifndef __CUDACC__
#include "emulated_grid.h"
#endif

#include <vector>

#ifndef LINKED /* with the implementations of the other tests */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include "memo_plan.h"

#ifdef __CUDACC__
static int64_t emulated_n_launches;
#else
#include "fake_cublaslt.h"

/* So that products are cut, as those of a million tokens: at rows whose widest matrix has exactly
 * as many elements. */
#define GPT_CUDA_ELEMENTS ((int64_t)fake_lt_elements)
enum { N_ELEMENTS = 13 * 64 };
#endif
#include "gpt/kernels/cuda.cu"
#if !defined(__CUDACC__) || defined(TEST_CUDNN)
#define HAS_CUDNN
#ifndef __CUDACC__
#define ATTENTION_SAMPLES 5 /* an emulated grid is slow */
#endif
#include "gpt/kernels/cudnn.cu"
#endif

#include "../trainer/gpt_test.h"
#include "cuda_test.h"
#include "../trainer/lora_test.h"

enum { N_STEPS = 2, N_ACCUMULATED = 1 };

typedef struct history {
    double loss[N_STEPS], norm[N_STEPS];
    uint64_t digests[N_STEPS];
    std::vector<float> gradients; /* of the first step */
} history;

/* Of models with adapters. */
static gpt_stored frozen;
static double* adapters;

static memo_status train(gpt_model* model, const gpt_config* config, history* h) {
    memo_status status = MEMO_STATUS_OK;
    if (config->lora.rank) lora_set(model, adapters);
    h->gradients.resize((size_t)gpt_n_parameters(config));
    for (int64_t step = 0; step < N_STEPS && !status; step++)
        status =
            gpt_test_step(model, config, step, N_ACCUMULATED, step ? NULL : h->gradients.data(),
                          &h->digests[step], &h->loss[step], &h->norm[step], &error);
    return status;
}

static history on_the_host(gpt_config config) {
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    history h = {};
    gpt_test_run run;
    desc.frozen = &frozen;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (run.model) CHECK_OK(train(run.model, &config, &h));
    gpt_test_close(&run);
    return h;
}

/* Attention instead of the built-in one; context NULL: none. */
static gpt_cuda_attention instead;

/* An operation alone: the kernels for a GPU read its arguments only. */
template <typename arguments> static const gpt_op* op_of(gpt_kind kind, const arguments& args) {
    static gpt_op op;
    op = gpt_op_make("test", kind);
    memcpy((void*)&op.args, &args, sizeof args);
    return &op;
}

/* Kernels for a GPU, and perhaps a model with them. */
struct on_cuda {
    gpt_cuda_kernels* cuda = NULL;
    gpt_kernels kernels = {};
    gpt_model* model = NULL;

    on_cuda() {
        CHECK_OK(gpt_cuda_kernels_create(instead.context ? &instead : NULL, &cuda, &error));
        if (cuda) kernels = gpt_cuda_kernels_table(cuda);
    }
    on_cuda(gpt_desc desc, memo_device* device) : on_cuda() {
        desc.kernels = &kernels;
        desc.device = device;
        CHECK_OK(gpt_create(&desc, &model, &error));
    }
    ~on_cuda() {
        gpt_destroy(model);
        gpt_cuda_kernels_destroy(cuda);
    }
    on_cuda(const on_cuda&) = delete;
};

/* rows: NULL keeps everything. */
static history on_the_gpu(memo_device* device, gpt_config config, const int64_t* rows,
                          void (*created)(void)) {
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    history h = {};
    desc.rows = rows;
    desc.frozen = &frozen;
    on_cuda gpu(desc, device);
    if (created) created();
    if (gpu.model) CHECK_OK(train(gpu.model, &config, &h));
    return h;
}

/* A row's tensors are computed in stages.  All tensors of odd, or of even stages are recomputed,
 * each from stored rows. */
static const int64_t* rows_of_stages(const gpt_config* config, int is_even) {
    static const int stages[GPT_N_TENSORS] = {0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8};
    const int32_t n_tensors = gpt_n_tensors(config);
    int64_t* rows = gpt_test_table();
    memo_item tensors[GPT_N_TENSORS];
    gpt_fill_tensors(config, tensors);
    for (int64_t i = 0; i < config->n_layers * gpt_n_slices(config) * n_tensors; i++) {
        const int stage = stages[i % n_tensors],
                  is_lost = gpt_is_lost(config, tensors, (int32_t)(i % n_tensors));
        rows[i] = is_lost || stage % 2 == is_even ? MEMO_ROWS_KEPT : 0;
    }
    return rows;
}

static void check_rows(memo_device* device, gpt_config config, const char* name,
                       const int64_t* rows, const history& keep) {
    const history h = on_the_gpu(device, config, rows, NULL);
    CHECK_CASE(!memcmp(h.loss, keep.loss, sizeof h.loss) &&
                   !memcmp(h.norm, keep.norm, sizeof h.norm) &&
                   !memcmp(h.digests, keep.digests, sizeof h.digests),
               "%s: losses %.17g, %.17g instead of %.17g, %.17g", name, h.loss[0], h.loss[1],
               keep.loss[0], keep.loss[1]);
}

/* Against the host, then policies against each other. */
static void check_model(gpt_config config, double loss_tolerance, double gradient_tolerance) {
    NEED_RIG(device);
    const history host = on_the_host(config), keep = on_the_gpu(device, config, NULL, NULL);
    const double difference = gpt_test_distance(keep.gradients.data(), host.gradients.data(),
                                                (int64_t)host.gradients.size());
    printf("# loss %.3g, gradient %.3g from the host's\n", fabs(keep.loss[0] / host.loss[0] - 1),
           difference);
    CHECK_CASE(fabs(keep.loss[0] / host.loss[0] - 1) < loss_tolerance, "%g instead of %g",
               keep.loss[0], host.loss[0]);
    CHECK_IS(difference, <, gradient_tolerance);
    CHECK_IS(fabs(keep.norm[0] / host.norm[0] - 1), <, gradient_tolerance);
    CHECK_IS(fabs(keep.loss[1] / host.loss[1] - 1), <, 100 * loss_tolerance);
    for (int policy = MEMO_POLICY_RECOMPUTE; policy <= MEMO_POLICY_ALPHA; policy++) {
        const gpt_desc desc = gpt_test_desc(config, (memo_policy)policy, 0.5);
        check_rows(device, config, memo_policy_name((memo_policy)policy), desc.rows, keep);
    }
    check_rows(device, config, "odd stages", rows_of_stages(&config, 0), keep);
    check_rows(device, config, "even stages", rows_of_stages(&config, 1), keep);
}

static gpt_config config_of(memo_type type, int32_t hidden, int64_t sequence, int64_t batch) {
    gpt_config config = gpt_test_config(2, hidden, 2, 1, sequence, batch, 4, 0.1);
    config.type = type;
    return config;
}

TEST(f32_is_the_host_but_for_rounding) {
    check_model(with_masks(config_of(MEMO_TYPE_F32, 16, 19, 1), 8, 19), 1e-6, 2e-5);
}
TEST(bf16_is_the_host_but_for_rounding) {
    check_model(config_of(MEMO_TYPE_BF16, 16, 13, 2), 1e-4, 3e-2);
}
/* No row begins at a multiple of 16 bytes. */
TEST(odd_widths_work) { check_model(config_of(MEMO_TYPE_BF16, 12, 11, 1), 1e-4, 3e-2); }

TEST(swiglu_is_the_host_but_for_rounding) {
    gpt_config config = config_of(MEMO_TYPE_BF16, 16, 13, 2);
    config.mlp = GPT_MLP_SWIGLU;
    check_model(config, 1e-4, 3e-2);
    config = config_of(MEMO_TYPE_F32, 6, 11, 1); /* an odd number of pairs of 8 */
    config.n_heads = config.n_kv_heads = 1;
    config.mlp = GPT_MLP_SWIGLU;
    check_model(config, 1e-6, 2e-5);
}
/* What published models have beside. */
TEST(biases_norms_of_heads_and_a_tied_table_are_the_host_but_for_rounding) {
    gpt_config config = with_head_norms(with_biases(config_of(MEMO_TYPE_F32, 16, 11, 1)));
    config = with_tied_tables(with_rope(with_head_size(config, 24), GPT_ROPE_LLAMA3));
    check_model(config, 1e-5, 1e-4);
    config.type = MEMO_TYPE_BF16;
    check_model(config, 1e-4, 3e-2);
}
/* More of them than a row chooses, and one for all rows. */
TEST(experts_are_the_host_but_for_rounding) {
    check_model(with_experts(config_of(MEMO_TYPE_F32, 16, 37, 1), 5, 2, 1), 1e-5, 1e-4);
    check_model(with_experts(config_of(MEMO_TYPE_F32, 12, 11, 1), 2, 1, 0), 1e-5, 1e-4);
    check_model(with_experts(config_of(MEMO_TYPE_BF16, 16, 13, 1), 4, 3, 0), 1e-4, 3e-2);
}
TEST(adapters_are_the_host_but_for_rounding) {
    for (int k = 0; k < 3; k++) {
        gpt_config config = with_head_norms(config_of(MEMO_TYPE_F32, 16, 11, 1));
        config.is_tied = k == 1;
        if (k == 2) config.type = MEMO_TYPE_BF16;
        config = with_adapters(config, k == 1 ? 3 : 8, 8, k == 1 ? LORA_Q | LORA_V | LORA_UP : 0);
        const gpt_config base = gpt_base_config(&config);
        double* values = lora_random(&base);
        adapters = lora_random(&config);
        frozen = lora_freeze(&base, values);
        check_model(config, k == 2 ? 1e-4 : 1e-5, k == 2 ? 3e-2 : 1e-4);
        lora_thaw(&frozen);
        free(values);
        free(adapters);
    }
}
/* Three updates of any gradients, with moments in bf16. */
TEST(states_in_bf16_are_the_host_but_for_rounding) {
    enum { N = 300 };
    struct arrays {
        float parameters[N], gradients[N];
        uint16_t moments1[N], moments2[N];
        double squares;
        gpt_update_values values;
    };
    NEED_RIG(device);
    on_cuda gpt;
    gpt_adamw_args a = {};
    arrays host = {};
    void* pinned = NULL; /* the GPU reads and writes through */
    CHECK_OK(memo_host_alloc(device, (int64_t)sizeof host, &pinned, &error));
    for (int i = 0; i < N; i++) host.parameters[i] = (float)memo_test_real();
    for (int i = 0; i < N; i++) host.gradients[i] = (float)memo_test_real() - 0.5f;
    host.squares = 9;
    host.values.adamw = {0.01, 0.9, 0.99, 1e-8, 0.1, 0};
    host.values.clip = 1;
    memcpy(pinned, &host, sizeof host);

    arrays* gpu = (arrays*)pinned;
    a.parameters = gpu->parameters;
    a.gradients = gpu->gradients;
    a.moments1 = gpu->moments1;
    a.moments2 = gpu->moments2;
    a.kept = a.summed = MEMO_TYPE_F32;
    a.states = MEMO_TYPE_BF16;
    a.squares = &gpu->squares;
    a.values = &gpu->values;
    a.decays = 1;
    a.rounding = {5, 77};
    a.n = N;
    gpt_adamw_args on_host = a;
    on_host.parameters = host.parameters;
    on_host.gradients = host.gradients;
    on_host.moments1 = host.moments1;
    on_host.moments2 = host.moments2;
    on_host.squares = &host.squares;
    on_host.values = &host.values;
    for (int i = 0; i < 3; i++) {
        host.values.adamw.update = ++gpu->values.adamw.update;
        CHECK_OK(gpt.kernels.enqueue(gpt.cuda, device.stream, op_of(GPT_KIND_ADAMW, a), &error));
        CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
        gpt_adamw(&on_host, 0, N);
    }
    for (int i = 0; i < N; i++) {
        const float m = memo_f32_from_bf16(host.moments1[i]),
                    v = memo_f32_from_bf16(host.moments2[i]);
        CHECK_IS(fabsf(gpu->parameters[i] - host.parameters[i]), <=,
                 1e-4f); /* a moment may round the other way */
        CHECK_IS(fabsf(memo_f32_from_bf16(gpu->moments1[i]) - m), <=, fabsf(m) / 128);
        CHECK_IS(fabsf(memo_f32_from_bf16(gpu->moments2[i]) - v), <=, fabsf(v) / 128);
        CHECK(m != 0 && v != 0);
#ifndef __CUDACC__ /* no product fuses with a sum: the same bits, rounded alike */
        CHECK_IS(gpu->moments1[i], ==, host.moments1[i]);
        CHECK_IS(gpu->moments2[i], ==, host.moments2[i]);
#endif
    }
}

/* Three updates with moments of 8 bits: whole blocks, and a short one at the end; wide accesses, and
 * at addresses that allow none. */
static void check_blocks(cuda_rig& device, memo_type kept, memo_type summed, int64_t at) {
    enum { N = 2 * GPT_BLOCK + 77, ROOM = N + 16 };
    struct arrays {
        float parameters[ROOM], gradients[ROOM], scales[3][2];
        uint8_t moments1[ROOM], moments2[ROOM];
        double squares;
        gpt_update_values values;
    };
    on_cuda gpt;
    arrays host = {};
    void* pinned = NULL;
    CHECK_OK(memo_host_alloc(device, (int64_t)sizeof host, &pinned, &error));
    arrays* gpu = (arrays*)pinned;
    for (int i = 0; i < ROOM; i++) gpt_store(host.parameters, kept, i, (float)memo_test_real());
    for (int i = 0; i < ROOM; i++)
        gpt_store(host.gradients, summed, i, (float)pow(10, -5 * memo_test_real()));
    host.squares = 9;
    host.values.adamw = {0.01, 0.9, 0.99, 1e-8, 0.1, 0};
    host.values.clip = 1;
    memcpy(pinned, &host, sizeof host);

    gpt_adamw_args args[2] = {};
    for (int k = 0; k < 2; k++) {
        arrays* of = k ? &host : gpu;
        args[k].parameters = (char*)of->parameters + at * memo_type_bytes(kept);
        args[k].gradients = (char*)of->gradients + at * memo_type_bytes(summed);
        args[k].moments1 = of->moments1 + at;
        args[k].moments2 = of->moments2 + at;
        args[k].scales = of->scales;
        args[k].kept = kept;
        args[k].summed = summed;
        args[k].states = MEMO_TYPE_U8;
        args[k].squares = &of->squares;
        args[k].values = &of->values;
        args[k].decays = 1;
        args[k].rounding = {5, 77};
        args[k].n = N;
    }
    for (int i = 0; i < 3; i++) {
        host.values.adamw.update = ++gpu->values.adamw.update;
        CHECK_OK(
            gpt.kernels.enqueue(gpt.cuda, device.stream, op_of(GPT_KIND_ADAMW, args[0]), &error));
        CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
        gpt_adamw(&args[1], 0, N);
    }
    for (int b = 0; b < 3; b++)
        for (int k = 0; k < 2; k++)
            CHECK_IS(fabsf(gpu->scales[b][k] / host.scales[b][k] - 1), <, 1e-2f);
    for (int i = 0; i < ROOM; i++) /* a moment may round the other way */
        CHECK_IS(fabsf(gpt_load(gpu->parameters, kept, i) - gpt_load(host.parameters, kept, i)), <=,
                 0.03f);
#ifndef __CUDACC__ /* no product fuses with a sum: the same bits, rounded alike, and none beside */
    CHECK(!memcmp(gpu, &host, sizeof host));
#endif
    CHECK_OK(memo_host_free(device, pinned, &error));
}
TEST(states_of_8_bits_are_the_host_but_for_rounding) {
    NEED_RIG(device);
    for (int64_t at = 0; at < 2; at++) {
        check_blocks(device, MEMO_TYPE_BF16, MEMO_TYPE_BF16, at);
        check_blocks(device, MEMO_TYPE_F32, MEMO_TYPE_BF16, at);
    }
}

/* Gradients in bf16, no master weights, moments in bf16 or 8 bits: losses near the host's, and the
 * same bits under other rows. */
TEST(models_without_master_weights_work) {
    NEED_RIG(device);
    for (int k = 0; k < 3; k++) {
        gpt_config config = config_of(k == 2 ? MEMO_TYPE_F32 : MEMO_TYPE_BF16, 16, 13, 2);
        config.is_pure = 1;
        config.states = k ? MEMO_TYPE_U8 : MEMO_TYPE_BF16;
        const history host = on_the_host(config), keep = on_the_gpu(device, config, NULL, NULL);
        CHECK_IS(fabs(keep.loss[0] / host.loss[0] - 1), <, 1e-4);
        CHECK_IS(fabs(keep.norm[0] / host.norm[0] - 1), <, 3e-2);
        CHECK_IS(fabs(keep.loss[1] / host.loss[1] - 1), <, 1e-2);
        check_rows(device, config, "odd stages", rows_of_stages(&config, 0), keep);
    }
}

/* ---- kernels on rows: each way that a kernel may read them ---- */

enum { N_ROWS = 70, N_TOKENS = 5 }; /* more rows than a warp looks at; tokens that come again */

/* Arrays in pinned memory, which a GPU reads and writes, of the type of a model. */
struct row_memory {
    memo_device* device;
    memo_type type;
    void* pinned;
    char* at;
    row_memory(memo_device* of, memo_type t, int64_t n_bytes) : device(of), type(t), pinned(NULL) {
        CHECK_OK(memo_host_alloc(device, n_bytes, &pinned, &error));
        at = (char*)pinned;
    }
    ~row_memory() { CHECK_OK(memo_host_free(device, pinned, &error)); }
    void* take(int64_t n_bytes) {
        void* taken = at;
        at += (n_bytes + 63) / 64 * 64;
        return taken;
    }
    void* take_random(int64_t n) {
        void* x = take(n * memo_type_bytes(type));
        for (int64_t i = 0; i < n; i++) gpt_store(x, type, i, (float)memo_test_real() * 2 - 1);
        return x;
    }
    std::vector<double> values(const void* x, memo_type t, int64_t n) const {
        std::vector<double> all;
        for (int64_t i = 0; i < n; i++) all.push_back(gpt_load(x, t, i));
        return all;
    }
};

static void check_near(const char* what, memo_type type, int64_t hidden, const void* x,
                       const std::vector<double>& exact, double tolerance) {
    double largest = 0, off = 0;
    for (double value : exact) largest = fmax(largest, fabs(value));
    for (size_t i = 0; i < exact.size(); i++)
        off = memo_test_worst(off, fabs((double)gpt_load(x, type, (int64_t)i) - exact[i]));
    CHECK_CASE(off <= tolerance * largest, "%s of %d columns, %s: off by %.3g of %.3g", what,
               (int)hidden, memo_type_name(type), off, largest);
}

static void check_row_kernels(const cuda_rig& device, memo_type type, int64_t hidden) {
    const int64_t n = N_ROWS, size = memo_type_bytes(type);
    const double rounding = type == MEMO_TYPE_BF16 ? 8e-3 : 2e-6;
    on_cuda gpt;
    gpt_cuda_kernels* cuda = gpt.cuda;
    row_memory m(device, type, 40 * n * hidden * 4 + (1 << 16));
    cuda->type = type;
    cuda->partials = (double*)m.take(GPT_CUDA_PARTIALS * 8);
    cuda->lanes = (double*)m.take(64 * 8);
    cuda->rows = (char*)m.take(n * 8 + hidden * 8);
    auto run = [&](gpt_kind kind, const auto* args) {
        CHECK_OK(gpt_cuda_enqueue(cuda, device.stream, op_of(kind, *args), &error));
        CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
    };

    /* Norm, of all rows and of one: the same bits. */
    gpt_norm_args norm = {};
    void *x = m.take_random(n * hidden), *y = m.take(n * hidden * size), *rstd = m.take(n * 4);
    norm.x = x;
    norm.y = y;
    norm.rstd = rstd;
    norm.weight = m.take_random(hidden);
    norm.rows = {0, n};
    norm.hidden = hidden;
    norm.epsilon = 1e-5;
    run(GPT_KIND_NORM, &norm);
    const std::vector<double> xs = m.values(x, type, n * hidden),
                              w = m.values(norm.weight, type, hidden);
    std::vector<double> exact, rstds;
    for (int64_t row = 0; row < n; row++) {
        double squares = 0;
        for (int64_t c = 0; c < hidden; c++) squares += xs[row * hidden + c] * xs[row * hidden + c];
        rstds.push_back(1 / sqrt(squares / (double)hidden + 1e-5));
        for (int64_t c = 0; c < hidden; c++)
            exact.push_back(xs[row * hidden + c] * rstds[row] * w[c]);
    }
    check_near("norm", type, hidden, y, exact, rounding);
    gpt_norm_args one = norm;
    one.x = (char*)x + 7 * hidden * size;
    one.y = m.take(hidden * size);
    one.rstd = m.take(4);
    one.rows = {7, 8};
    run(GPT_KIND_NORM, &one);
    CHECK(!memcmp(one.y, (char*)y + 7 * hidden * size, (size_t)(hidden * size)));

    /* Its backward: y becomes the gradient. */
    norm.dx = m.take_random(n * hidden);
    norm.dweight = m.take(hidden * 4);
    memset(norm.dweight, 0, (size_t)hidden * 4);
    const std::vector<double> dys = m.values(y, type, n * hidden),
                              old = m.values(norm.dx, type, n * hidden);
    std::vector<double> dweight((size_t)hidden);
    run(GPT_KIND_NORM_BACKWARD, &norm);
    for (int64_t row = 0; row < n; row++) {
        double along = 0;
        for (int64_t c = 0; c < hidden; c++)
            along += dys[row * hidden + c] * w[c] * xs[row * hidden + c];
        for (int64_t c = 0; c < hidden; c++) {
            const int64_t i = row * hidden + c;
            dweight[c] += dys[i] * xs[i] * rstds[row];
            exact[i] = old[i] + dys[i] * w[c] * rstds[row] -
                       xs[i] * along / (double)hidden * pow(rstds[row], 3);
        }
    }
    check_near("dx of norm", type, hidden, norm.dx, exact, rounding);
    check_near("dweight of norm", MEMO_TYPE_F32, hidden, norm.dweight, dweight, 1e-5);

    /* A bias, in place, and its gradient. */
    gpt_bias_args bias = {};
    bias.y = y;
    bias.bias = norm.weight;
    bias.dbias = norm.dweight;
    bias.rows = {0, n};
    bias.n_columns = hidden;
    run(GPT_KIND_BIAS_BACKWARD, &bias);
    run(GPT_KIND_BIAS, &bias);
    for (int64_t i = 0; i < n * hidden; i++) {
        dweight[i % hidden] += dys[i];
        exact[i] = dys[i] + w[i % hidden];
    }
    check_near("a bias", type, hidden, y, exact, rounding);
    check_near("the gradient of a bias", MEMO_TYPE_F32, hidden, norm.dweight, dweight, 1e-5);

    /* The embedding's gradient: rows of few tokens, in runs and in turn. */
    gpt_tokens_args tokens = {};
    int32_t* list = (int32_t*)m.take(n * 4);
    for (int64_t row = 0; row < n; row++)
        list[row] = (int32_t)(row < 40 ? row / 9 : memo_test_int(0, N_TOKENS - 1)) % N_TOKENS;
    for (int64_t row = 0; row < n; row += 3) list[row] += GPT_CUDA_OWNERS; /* of the same warp */
    const int64_t vocabulary = GPT_CUDA_OWNERS + N_TOKENS;
    std::vector<float> sums((size_t)(vocabulary * hidden));
    for (float& value : sums) value = (float)memo_test_real();
    std::vector<double> dtable(sums.begin(), sums.end());
    row_memory table(device, MEMO_TYPE_F32, (int64_t)sums.size() * 4 + 16);
    tokens.dtable = table.take((int64_t)sums.size() * 4);
    memcpy(tokens.dtable, sums.data(), sums.size() * 4);
    tokens.x = x;
    tokens.tokens = list;
    tokens.rows = {0, n};
    tokens.n_columns = hidden;
    run(GPT_KIND_EMBEDDING_BACKWARD, &tokens);
    for (int64_t row = 0; row < n; row++)
        for (int64_t c = 0; c < hidden; c++) dtable[list[row] * hidden + c] += xs[row * hidden + c];
    check_near("the table's gradient", MEMO_TYPE_F32, hidden, tokens.dtable, dtable, 1e-6);

    /* Cross-entropy of rows of logits, one of them padding. */
    gpt_batch_values values = {0, 0, 0.5};
    int64_t* numbers = (int64_t*)m.take(n * 8);
    void* logits = m.take_random(n * hidden);
    for (int64_t i = 0; i < n * hidden; i += 5)
        gpt_store(logits, type, i, (float)memo_test_int(-30, 30));
    for (int64_t row = 0; row < n; row++) numbers[row] = row == 4 ? -1 : row;
    for (int64_t row = 0; row < n; row++) list[row] = (int32_t)memo_test_int(0, hidden - 1);
    memcpy(m.at, &values, sizeof values);
    tokens.values = (const gpt_batch_values*)m.take(sizeof values);
    tokens.losses = (double*)m.take(n * 8);
    const gpt_loss_args total = {tokens.losses, (double*)m.take(8), n};
    *total.loss = 1;
    for (int j = 0; j < GPT_LANES; j++) cuda->lanes[j] = 0;
    tokens.x = logits;
    tokens.token_numbers = numbers;
    const std::vector<double> before = m.values(logits, type, n * hidden);
    double loss = 1;
    run(GPT_KIND_CROSS_ENTROPY, &tokens);
    run(GPT_KIND_LOSS, &total);
    for (int64_t row = 0; row < n; row++) {
        double max = -INFINITY, sum = 0;
        for (int64_t c = 0; c < hidden; c++) max = fmax(max, before[row * hidden + c]);
        for (int64_t c = 0; c < hidden; c++) sum += exp(before[row * hidden + c] - max);
        for (int64_t c = 0; c < hidden; c++)
            exact[row * hidden + c] =
                row == 4 ? 0 : 0.5 * (exp(before[row * hidden + c] - max) / sum - (c == list[row]));
        if (row != 4) loss += 0.5 * (log(sum) + max - before[row * hidden + list[row]]);
    }
    check_near("the gradient of logits", type, hidden, logits, exact, rounding);
    CHECK_IS(fabs(*total.loss / loss - 1), <, 1e-6);

    /* The sum of squares from an address that is no multiple of 16 bytes too. */
    for (int64_t begin = 0; begin < 3; begin++) {
        const float* from = (const float*)tokens.dtable + begin;
        gpt_squares_args squares = {from, cuda->lanes, MEMO_TYPE_F32, (int64_t)sums.size() - 5};
        double of_gpu = 0, of_host = 0;
        for (int j = 0; j < GPT_LANES; j++) cuda->lanes[j] = 0;
        run(GPT_KIND_SQUARES, &squares);
        for (int j = 0; j < GPT_LANES; j++) of_gpu += cuda->lanes[j];
        for (int64_t i = 0; i < squares.n; i++) of_host += (double)from[i] * (double)from[i];
        CHECK_IS(fabs(of_gpu / of_host - 1), <, 1e-12);
    }
}

TEST(rows_of_every_width_are_right) {
    NEED_RIG(device);
    for (int64_t hidden : {8, 30, 264, 1032, 2056})
        check_row_kernels(device, MEMO_TYPE_BF16, hidden);
    check_row_kernels(device, MEMO_TYPE_F32, 264);
}

TEST(sums_stay_float_in_bf16) {
    NEED_RIG(device);
    on_cuda gpt;
    gpt_test_check_sums(device, &gpt.kernels);
}

/* ---- a step as a graph ---- */

/* Steps of a graph's test: whatever changes from one to the next changes. */
enum { N_GRAPH_STEPS = 4, N_GRAPH_ACCUMULATED = 2 };

typedef struct graph_history {
    double loss[N_GRAPH_STEPS], norm[N_GRAPH_STEPS];
    std::vector<uint8_t> parameters[N_GRAPH_STEPS]; /* after the step */
} graph_history;

/* By calls, or staged and then run. */
static memo_status graph_step(gpt_model* model, const gpt_config* config, int64_t step,
                              int is_graph, graph_history* h) {
    const int64_t n = config->batch * config->sequence;
    gpt_update_values update = {{0.001, 0.9, 0.99, 1e-8, 0.1, 0}, 0.5, 0};
    memo_status status = gpt_use_graph(model, is_graph, &error);
    update.adamw.learning_rate *= (double)(N_GRAPH_STEPS - step);
    update.clip = step % 2 ? 0.1 : 0.5;
    update.adamw.weight_decay += 0.1 * (double)step;
    update.vote = (double)step;
    for (int64_t m = 0; m < N_GRAPH_ACCUMULATED && !status; m++) {
        const uint8_t* tokens = gpt_test_text() + (step * N_GRAPH_ACCUMULATED + m) * n;
        status = gpt_micro_batch(model, tokens, tokens + 1, step, m, (1 + (double)step) / (double)n,
                                 &error);
    }
    if (!status) status = gpt_test_update(model, &update, &h->loss[step], &h->norm[step], &error);
    if (status) return status;
    CHECK_IS(gpt_votes(model), ==, (double)step);
    CHECK_IS(h->norm[step], >, update.clip); /* else clipping would not be compared */
    h->parameters[step].resize((size_t)(gpt_n_parameters(config) * memo_type_bytes(config->type)));
    return gpt_get_parameters(model, h->parameters[step].data(), &error);
}

/* Bit s of graph_steps: step s is staged.  n_failing_copy: step 1 fails at this copy first, and is
 * repeated; 0: it does not. */
static graph_history graph_steps_of(memo_device* device, gpt_config config, memo_policy policy,
                                    unsigned graph_steps, int n_failing_copy) {
    gpt_desc desc = gpt_test_desc(config, policy, 0.5);
    graph_history h = {};
    desc.n_micro_batches = N_GRAPH_ACCUMULATED;
    on_cuda gpu(desc, device);
    gpt_model* model = gpu.model;
    for (int64_t step = 0; step < N_GRAPH_STEPS && model; step++) {
        const int is_graph = graph_steps >> step & 1;
#ifndef __CUDACC__
        if (step == 1 && n_failing_copy) {
            fake_fail("cudaMemcpyAsync", n_failing_copy, cudaErrorInvalidValue);
            CHECK_IS(graph_step(model, &config, step, is_graph, &h), ==, MEMO_STATUS_DEVICE);
            CHECK_OK(gpt_test_discard(model, NULL, &error));
        }
        const int64_t n_products = fake_lt_n_products, is_replay = is_graph && model->graph;
#else
        (void)n_failing_copy;
#endif
        CHECK_OK(graph_step(model, &config, step, is_graph, &h));
#ifndef __CUDACC__
        CHECK_IS(fake_lt_n_products == n_products, ==, is_replay);
#endif
    }
    CHECK_IS(model && model->graph, ==, graph_steps > 1);
    return h;
}

static void check_graph(memo_device* device, gpt_config config, memo_policy policy,
                        unsigned graph_steps, int n_failing_copy) {
    const graph_history calls = graph_steps_of(device, config, policy, 0, 0);
    const graph_history graph = graph_steps_of(device, config, policy, graph_steps, n_failing_copy);
    for (int s = 0; s < N_GRAPH_STEPS; s++)
        CHECK_CASE(graph.loss[s] == calls.loss[s] && graph.norm[s] == calls.norm[s] &&
                       graph.parameters[s] == calls.parameters[s],
                   "policy %d, step %d: loss %.17g instead of %.17g, norm %.17g instead of %.17g%s",
                   policy, s, graph.loss[s], calls.loss[s], graph.norm[s], calls.norm[s],
                   graph.parameters[s] == calls.parameters[s] ? "" : ", other parameters");
}

/* Losses, norms and parameters, while dropout, learning rate, clipping, decay and loss scale
 * change. */
TEST(a_graph_gives_the_bits_of_calls) {
    NEED_RIG(device);
    gpt_config config = config_of(MEMO_TYPE_BF16, 16, 5, 1);
    config.n_layers = 3;
    config = with_masks(config, 4, 5); /* other documents in each replay */
    for (int policy = MEMO_POLICY_KEEP; policy <= MEMO_POLICY_ALPHA; policy++)
        check_graph(device, config, (memo_policy)policy, 0xf, 0);
    check_graph(device, config, MEMO_POLICY_SWAP, 0xa, 0); /* calls in between */
}

#ifndef __CUDACC__
/* A capture that fails at its first copy, or in the middle of the layers, leaves a model that goes
 * on. */
TEST(a_failed_capture_can_be_repeated) {
    NEED_RIG(device);
    gpt_config config = config_of(MEMO_TYPE_F32, 16, 5, 1);
    const int n_objects = fake_n_objects();
    config.n_layers = 4;
    for (int n : {1, 2, 7, 40}) check_graph(device, config, MEMO_POLICY_SWAP, 0xf, n);
    CHECK_IS(fake_n_objects(), ==, n_objects);
}

TEST(a_graph_gives_the_bits_of_calls_on_late_streams) {
    fake_set_late(1);
    a_graph_gives_the_bits_of_calls();
    fake_set_late(0);
}

/* Call by call the host waits once a step, at its end: not for loss, clipping or step number.  The
 * second wait would fail. */
TEST(a_step_waits_once) {
    NEED_RIG(device);
    gpt_config config = config_of(MEMO_TYPE_BF16, 16, 5, 1);
    const gpt_update_values update = {{0.001, 0.9, 0.99, 1e-8, 0.1, 0}, 0.5, 0};
    const uint8_t text[6] = {0};
    double loss;
    config.n_layers = 3;
    for (int policy = MEMO_POLICY_KEEP; policy <= MEMO_POLICY_SWAP; policy++) {
        gpt_desc desc = gpt_test_desc(config, (memo_policy)policy, 0);
        desc.n_micro_batches = 2;
        on_cuda gpu(desc, device);
        fake_fail("cudaStreamSynchronize", 2, cudaErrorInvalidValue);
        fake_fail("cudaEventSynchronize", 1, cudaErrorInvalidValue);
        fake_fail("cudaDeviceSynchronize", 1, cudaErrorInvalidValue);
        for (int64_t m = 0; m < 2; m++)
            CHECK_OK(gpt_micro_batch(gpu.model, text, text + 1, 0, m, 0.1, &error));
        CHECK_OK(gpt_update(gpu.model, &update, &loss, &error));
        CHECK_IS(gpt_wait(gpu.model, &error), ==, MEMO_STATUS_DEVICE);
        fake_forget_failures();
    }
}

/* Another number of micro-batches than the graph's is refused, and so are kernels without
 * graphs. */
TEST(what_is_no_graph_is_refused) {
    const gpt_config config = config_of(MEMO_TYPE_F32, 16, 13, 1);
    const gpt_update_values update = {{0.001, 0.9, 0.99, 1e-8, 0.1, 0}, 0.5, 0};
    const uint8_t text[14] = {0};
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    gpt_test_run run;
    double loss;
    NEED_RIG(device);
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    CHECK_IS(gpt_use_graph(run.model, 1, &error), ==, MEMO_STATUS_UNSUPPORTED);
    gpt_test_close(&run);

    desc.n_micro_batches = 2;
    on_cuda gpu(desc, device);
    gpt_model* model = gpu.model;
    CHECK_OK(gpt_use_graph(model, 1, &error));
    CHECK_OK(gpt_micro_batch(model, text, text + 1, 0, 0, 1, &error));
    CHECK_IS(gpt_update(model, &update, &loss, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_FAILS(gpt_micro_batch(model, text, text + 1, 0, 0, 1, &error), INVALID_ARGUMENT);
    CHECK_OK(gpt_micro_batch(model, text, text + 1, 0, 1, 1, &error));
    CHECK_FAILS(gpt_micro_batch(model, text, text + 1, 0, 2, 1, &error), INVALID_ARGUMENT);
    CHECK_OK(gpt_update(model, &update, &loss, &error));
}
#endif

TEST(slices_with_an_mlp_in_chunks_work) {
    gpt_config config = config_of(MEMO_TYPE_BF16, 16, 13, 2);
    config.mlp_rows = 8;
    config.slice_rows = 12;
    check_model(config, 1e-4, 3e-2);
}

#ifdef HAS_CUDNN
static gpt_cudnn* begin_cudnn(int32_t is_deterministic, int64_t scratch_bytes) {
    const gpt_cudnn_desc desc = {is_deterministic, scratch_bytes};
    gpt_cudnn* cudnn = NULL;
    CHECK_OK(gpt_cudnn_create(&desc, &cudnn, &error));
    instead = gpt_cudnn_attention(cudnn);
    return cudnn;
}
static void end_cudnn(gpt_cudnn* cudnn) {
    memset(&instead, 0, sizeof instead);
    gpt_cudnn_destroy(cudnn);
}

/* Heads of 8; key heads that are shared and not. */
static gpt_config config_for_cudnn(int32_t n_kv_heads, int64_t sequence, int64_t batch) {
    gpt_config config = gpt_test_config(2, 32, 4, n_kv_heads, sequence, batch, 4, 0.1);
    config.type = MEMO_TYPE_BF16;
    return config;
}

TEST(with_cudnn_it_is_the_host_but_for_rounding) {
    gpt_cudnn* cudnn = begin_cudnn(1, 0);
    check_model(with_masks(config_for_cudnn(2, 13, 2), 6, 13), 2e-4, 3e-2);
    gpt_config in_slices = config_for_cudnn(4, 19, 2);
    in_slices.window = 9;
    in_slices.slice_rows = 16; /* one of them has the end of a sequence and the begin of the next */
    check_model(in_slices, 2e-4, 3e-2);
    end_cudnn(cudnn);
}

TEST(groups_of_heads_give_the_same_bits) {
    NEED_RIG(device);
    const gpt_config config = config_for_cudnn(2, 19, 2);
    gpt_cudnn* cudnn = begin_cudnn(1, 0);
    const gpt_shapes shapes = gpt_shapes_make(&config);
    const int64_t whole_bytes = instead.scratch_bytes(instead.context, &shapes);
    const history whole = on_the_gpu(device, config, NULL, NULL);
    end_cudnn(cudnn);
#ifndef __CUDACC__
    fake_cudnn_head_bytes = (int64_t)6 << 20; /* more than one head has no room */
    const int n_runs = fake_cudnn_n_runs;
#endif
    cudnn = begin_cudnn(1, 1);
    CHECK_IS(instead.scratch_bytes(instead.context, &shapes), <, whole_bytes);
    const history grouped = on_the_gpu(device, config, NULL, NULL);
    CHECK(!memcmp(grouped.digests, whole.digests, sizeof whole.digests));
#ifndef __CUDACC__
    /* Forward and backward of 2 layers, by 2 key heads. */
    CHECK_IS(fake_cudnn_n_runs - n_runs, ==, N_STEPS * N_ACCUMULATED * 2 * 2 * 2);
    fake_cudnn_head_bytes = 0;
#endif
    end_cudnn(cudnn);
}
#endif

#ifndef __CUDACC__
static int n_built;
static void forbid_builds(void) {
    n_built = fake_cudnn_n_builds;
    fake_cudnn_forbids_builds = 1;
}

/* A step builds no graph, and the stand-in has not been misused.  Gradients that are not
 * deterministic differ, so that equal ones mean something. */
TEST(cudnn_is_ready_before_the_first_step) {
    NEED_RIG(device);
    const gpt_config config = config_for_cudnn(2, 13, 2);
    history runs[2];
    for (int32_t is_deterministic = 0; is_deterministic < 2; is_deterministic++) {
        for (history& run : runs) {
            gpt_cudnn* cudnn = begin_cudnn(is_deterministic, 0);
            run = on_the_gpu(device, config, NULL, forbid_builds);
            fake_cudnn_forbids_builds = 0;
            CHECK_IS(fake_cudnn_n_builds, ==, n_built);
            CHECK_IS(n_built, >, 0);
            end_cudnn(cudnn);
        }
        CHECK_IS(runs[0].loss[0], ==, runs[1].loss[0]);
        CHECK_IS(!memcmp(runs[0].digests, runs[1].digests, sizeof runs[0].digests), ==,
                 is_deterministic);
    }
    CHECK_IS(fake_cudnn_n_misuses, ==, 0);
}

/* No sum has the order of blocks, warps or lanes, which another draw changes. */
TEST(every_order_of_the_grid_gives_the_same_bits) {
    NEED_RIG(device);
    const gpt_config configs[] = {with_masks(config_of(MEMO_TYPE_F32, 16, 19, 1), 8, 19),
                                  config_of(MEMO_TYPE_BF16, 32, 13, 2)};
    for (const gpt_config& config : configs) {
        emulated_is_in_order = true;
        const history in_order = on_the_gpu(device, config, NULL, NULL);
        emulated_is_in_order = false;
        for (int k = 0; k < 2; k++) {
            (void)memo_test_random();
            check_rows(device, config, "another order", NULL, in_order);
        }
    }
}

/* A product is cut so that no matrix of rows has as many elements as fail. */
TEST(products_are_cut_below_the_limit) {
    fake_lt_n_too_long = 0;
    check_model(config_of(MEMO_TYPE_BF16, 16, 13, 2), 1e-4, 3e-2); /* 26 x 64 elements */
    CHECK_IS(fake_lt_n_too_long, ==, 0);
}

TEST(a_library_that_only_splits_sums_is_refused) {
    on_cuda gpt;
    gpt_linear_args a = {};
    a.rows.end = a.tile_rows = a.n_outputs = a.n_inputs = 4;
    fake_lt_offers_bad_ones_only = 2;
    CHECK_ERROR(gpt_cuda_enqueue(gpt.cuda, NULL, op_of(GPT_KIND_LINEAR, a), &error), UNSUPPORTED,
                "none of 0 algorithms multiplies 4 rows");
    fake_lt_offers_bad_ones_only = 0;
}

/* An algorithm that fails on the device is not followed by others: the device's error stays. */
TEST(a_product_that_fails_later_is_the_device_s_error) {
    on_cuda gpt;
    alignas(256) uint16_t x[64] = {0}, weight[64] = {0}, y[64];
    gpt_linear_args a = {};
    a.x = x;
    a.weight = weight;
    a.y = y;
    a.rows.end = a.tile_rows = a.n_outputs = a.n_inputs = 8;
    fake_lt_offers_failing = 2;
    CHECK_OK(gpt_cuda_enqueue(gpt.cuda, NULL, op_of(GPT_KIND_LINEAR, a), &error));
    a.rows.end = a.tile_rows = 4;
    CHECK_ERROR(gpt_cuda_enqueue(gpt.cuda, NULL, op_of(GPT_KIND_LINEAR, a), &error), DEVICE,
                "cudaErrorIllegalAddress");
    fake_lt_offers_failing = 0;
    fake_break(cudaSuccess);
    (void)cudaGetLastError();
}

/* Products whose algorithms look at the number of rows, or fail, give every policy the same
 * bits. */
TEST(products_in_tiles_give_policies_the_same_bits) {
    gpt_config config = config_of(MEMO_TYPE_BF16, 16, 13, 2);
    fake_lt_offers_bad_ones_only = 1;
    check_model(config, 1e-4, 3e-2);
    fake_lt_offers_bad_ones_only = 0;
    fake_lt_offers_failing = 1;
    check_model(config, 1e-4, 3e-2);
    fake_lt_offers_failing = 0;
}

__attribute__((constructor)) static void limit_products(void) { fake_lt_elements = N_ELEMENTS; }
#endif
