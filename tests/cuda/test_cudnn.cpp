/* test_cudnn.cpp - cuDNN's attention in the trainer and over ranks, on stand-ins for CUDA and
 * cuDNN: against the trainer's own kernels, and against the dense fp64 reference of the tests of
 * memo_sp.h.  The model with it is in test_gpt.cu. */
#include "emulated_grid.h"

#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"
#include "memo_plan.h"

#include "fake_cublaslt.h"
#define ATTENTION_SAMPLES    9
#define ATTENTION_WARP_TERMS 8 /* so that several warps share a row of few */
#include "gpt/kernels/cuda.cu"
#include "gpt/kernels/cudnn.cu"
#include "exact_attention.h"

#include "thread_ranks.h"

static memo_attention ranks_attention(const memo_sp_attention_desc* desc, memo_device* device);
#define CASE_ATTENTION(desc, device) ranks_attention(desc, device)
#include "../sp/sp_attention_cases.h"

static memo_error error;

/* ---- one rank: the trainer's own kernels do the same ---- */

struct one_call {
    gpt_attention_args args;
    std::vector<uint16_t> q, k, v, out, dout, dq, dk, dv;
    std::vector<float> lse, delta;
    std::vector<int64_t> begins; /* of documents */
};

static void fill_random(std::vector<uint16_t>* x, int64_t n) {
    x->resize((size_t)n);
    for (uint16_t& e : *x) e = memo_bf16_from_f32((float)memo_test_int(-1000, 1000) / 700.0f);
}

static void one_call_make(one_call* c, const gpt_attention_shape& s, int64_t batch) {
    const int64_t n_q = batch * (s.sequence - s.first) * s.n_heads;
    const int64_t n_k = batch * s.sequence * s.n_kv_heads * s.head_size;
    for (auto* x : {&c->q, &c->out, &c->dout, &c->dq}) fill_random(x, n_q * s.head_size);
    for (auto* x : {&c->k, &c->v, &c->dk, &c->dv}) fill_random(x, n_k);
    for (auto* x : {&c->dk, &c->dv}) {
        const std::vector<uint16_t> of_bf16 = *x;
        if (!s.sums) continue;
        x->assign((size_t)(2 * n_k), 0); /* the same numbers as floats */
        for (int64_t i = 0; i < n_k; i++)
            ((float*)(void*)x->data())[i] = memo_f32_from_bf16(of_bf16[(size_t)i]);
    }
    c->lse.resize((size_t)n_q);
    c->delta.resize((size_t)n_q);
    for (int64_t b = 0; b < batch && s.documents; b++) {
        std::vector<int64_t> begins((size_t)s.documents + 1);
        for (int64_t& begin : begins) begin = memo_test_int(0, s.sequence);
        std::sort(begins.begin(), begins.end());
        begins[0] = 0;
        begins.back() = s.sequence;
        c->begins.insert(c->begins.end(), begins.begin(), begins.end());
    }
}

static gpt_attention_args args_of(one_call* c, const gpt_attention_shape& s, int64_t batch) {
    gpt_attention_args a = {};
    a.shape = s;
    a.batch = batch;
    a.q = c->q.data();
    a.k = c->k.data();
    a.v = c->v.data();
    a.out = c->out.data();
    a.lse = c->lse.data();
    a.dout = c->dout.data();
    a.dq = c->dq.data();
    a.dk = c->dk.data();
    a.dv = c->dv.data();
    a.delta = c->delta.data();
    a.begins = c->begins.data();
    return a;
}

static gpt_shapes shapes_of(const gpt_attention_shape& s, int64_t batch) {
    gpt_shapes shapes = {};
    shapes.type = MEMO_TYPE_BF16;
    shapes.attention[0].shape = s;
    shapes.attention[0].batch = batch;
    shapes.n_attention = 1;
    return shapes;
}

/* cuDNN's attention, prepared for one call. */
struct hook {
    gpt_cudnn* cudnn = NULL;
    gpt_cuda_attention attention;
    std::vector<char> scratch;
    memo_status status;
    hook(const gpt_shapes& shapes, int64_t scratch_bytes) {
        const gpt_cudnn_desc desc = {1, scratch_bytes};
        CHECK_OK(gpt_cudnn_create(&desc, &cudnn, &error));
        attention = gpt_cudnn_attention(cudnn);
        scratch.resize((size_t)attention.scratch_bytes(cudnn, &shapes) + 512);
        status = attention.prepare(cudnn, &shapes, NULL, memory(), &error);
    }
    ~hook() { gpt_cudnn_destroy(cudnn); }
    void* memory() { return (void*)(((uintptr_t)scratch.data() + 511) / 512 * 512); }
    memo_status run(gpt_kind kind, const gpt_attention_args& a, cudaStream_t on = NULL) {
        return attention.enqueue(cudnn, (memo_stream)on, kind, &a, memory(), &error);
    }
};

static void expect_close(const char* name, const std::vector<uint16_t>& x,
                         const std::vector<uint16_t>& y, memo_type type = MEMO_TYPE_BF16) {
    double off = 0, norm = 0;
    for (size_t i = 0; i < x.size() * 2 / (size_t)memo_type_bytes(type); i++) {
        const double a = gpt_load(x.data(), type, (int64_t)i);
        const double b = gpt_load(y.data(), type, (int64_t)i);
        off += (a - b) * (a - b);
        norm += b * b;
    }
    CHECK_CASE(sqrt(off) <= 0.01 * sqrt(norm), "%s is off by %.3g of %.3g", name, sqrt(off),
               sqrt(norm));
}

static gpt_attention_shape random_shape(void) {
    gpt_attention_shape s;
    s.sequence = memo_test_int(2, 16);
    s.first = memo_test_int(0, 2) ? 0 : memo_test_int(0, s.sequence - 1);
    s.n_kv_heads = memo_test_int(1, 4);
    s.n_heads = s.n_kv_heads * memo_test_int(1, 3);
    s.head_size = 8 * memo_test_int(1, 3);
    s.sums = (int32_t)memo_test_int(0, 1);
    s.adds = s.sums && memo_test_int(0, 1);
    s.window = memo_test_int(0, 1) ? memo_test_int(1, s.sequence) : 0;
    s.documents = !s.first && memo_test_int(0, 1) ? memo_test_int(1, 200) : 0;
    return s;
}

TEST(it_is_the_trainer_s_own_but_for_rounding) {
    gpt_cuda_kernels own = {};
    own.type = MEMO_TYPE_BF16;
    for (int k = 0; k < 16; k++) {
        const gpt_attention_shape s = random_shape();
        const int64_t batch = memo_test_int(1, 3);
        one_call x, y;
        one_call_make(&x, s, batch);
        y = x;
        fake_cudnn_head_bytes = k % 2 ? (int64_t)6 << 20 : 0; /* calls of one key head, or of all */
        hook cudnn(shapes_of(s, batch), k % 2);
        CHECK_OK(cudnn.status);
        const gpt_attention_args to_x = args_of(&x, s, batch), to_y = args_of(&y, s, batch);
        for (gpt_kind kind : {GPT_KIND_ATTENTION, GPT_KIND_ATTENTION_BACKWARD}) {
            const int n_runs = fake_cudnn_n_runs;
            CHECK_OK(cudnn.run(kind, to_x));
            CHECK_IS(fake_cudnn_n_runs - n_runs, ==,
                     (k % 2 ? s.n_kv_heads : 1) * (s.documents ? batch : 1));
            CHECK_OK(gpt_cuda_attend(&own, NULL, kind, &to_y, &error));
            if (kind != GPT_KIND_ATTENTION) break;
            expect_close("out", x.out, y.out);
            for (size_t i = 0; i < x.lse.size(); i++)
                CHECK_IS(fabs((double)x.lse[i] - (double)y.lse[i]), <, 1e-4);
            x.out = y.out;
            x.lse = y.lse;
        }
        expect_close("dq", x.dq, y.dq);
        expect_close("dk", x.dk, y.dk, s.sums ? MEMO_TYPE_F32 : MEMO_TYPE_BF16);
        expect_close("dv", x.dv, y.dv, s.sums ? MEMO_TYPE_F32 : MEMO_TYPE_BF16);

        /* Written over k and v they have the same bits. */
        gpt_attention_args in_place = to_x;
        in_place.dk = x.k.data();
        in_place.dv = x.v.data();
        if (!s.sums) CHECK_OK(cudnn.run(GPT_KIND_ATTENTION_BACKWARD, in_place));
        CHECK(s.sums || (x.k == x.dk && x.v == x.dv));
        in_place = to_y;
        in_place.dk = y.k.data();
        in_place.dv = y.v.data();
        if (!s.sums)
            CHECK_OK(gpt_cuda_attend(&own, NULL, GPT_KIND_ATTENTION_BACKWARD, &in_place, &error));
        CHECK(s.sums || (y.k == y.dk && y.v == y.dv));
    }
    fake_cudnn_head_bytes = 0;
    CHECK_IS(fake_cudnn_n_misuses, ==, 0);
}

/* ---- what prepare refuses, and what a step does not do ---- */

/* Indices that overflow are found in each result the first time that a shape runs, by head and by
 * tensor. */
TEST(wrong_rows_are_found) {
    const gpt_attention_shape s = {0, 40, 4, 2, 8, 0, 0, 0, 0};
    one_call x;
    one_call_make(&x, s, 1);
    for (gpt_kind kind : {GPT_KIND_ATTENTION, GPT_KIND_ATTENTION_BACKWARD}) {
        hook cudnn(shapes_of(s, 1), 0);
        const int64_t n_elements = s.sequence * s.n_heads * s.head_size;
        for (int64_t wraps : {n_elements * 7 / 8 / 8 * 8, n_elements / 4, (int64_t)0}) {
            fake_cudnn_wraps = wraps;
            const memo_status status = cudnn.run(kind, args_of(&x, s, 1));
            CHECK_IS(status, ==, wraps ? MEMO_STATUS_UNSUPPORTED : MEMO_STATUS_OK);
            if (wraps) CHECK(strstr(error.message, "times as far from exact rows") != NULL);
        }
        fake_cudnn_wraps = n_elements / 4; /* it has been compared */
        if (kind == GPT_KIND_ATTENTION_BACKWARD) CHECK_OK(cudnn.run(kind, args_of(&x, s, 1)));
        fake_cudnn_wraps = 0;
        CHECK_OK(cudnn.run(GPT_KIND_ATTENTION, args_of(&x, s, 1))); /* for the backward */
    }
}

TEST(a_step_refuses_what_it_cannot_run) {
    gpt_attention_shape s = {0, 12, 2, 2, 8, 0, 0, 0, 0};
    one_call x;
    cudaStream_t stream;
    cudaGraph_t graph;
    one_call_make(&x, s, 2);
    fake_cudnn_version = 91500;
    hook cudnn(shapes_of(s, 1), 0);
    const int n_built = fake_cudnn_n_builds;
    CHECK_OK(cudnn.run(GPT_KIND_ATTENTION, args_of(&x, s, 1)));
    CHECK_ERROR(cudnn.run(GPT_KIND_ATTENTION, args_of(&x, s, 2)), INVALID_STATE, "not prepared");
    CHECK_IS(fake_cudnn_n_builds, ==, n_built);

    /* A graph of this version's backward would read memory that is gone when it runs. */
    CHECK(!cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) &&
          !cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK_ERROR(cudnn.run(GPT_KIND_ATTENTION_BACKWARD, args_of(&x, s, 1), stream), UNSUPPORTED,
                "9.15.1 or later");
    CHECK(!cudaStreamEndCapture(stream, &graph) && !cudaGraphDestroy(graph) &&
          !cudaStreamDestroy(stream));
    fake_cudnn_version = 92500;
}

TEST(documents_and_parts_of_a_sequence_are_refused) {
    const gpt_attention_shape s = {6, 12, 2, 1, 8, 0, 0, 0, 3};
    CHECK_ERROR(hook(shapes_of(s, 1), 0).status, UNSUPPORTED, "sub-batches of whole sequences");
}

/* The message is cuDNN's own; F32 and too little scratch memory have messages of their own. */
TEST(what_cudnn_lacks_is_refused) {
    gpt_attention_shape s = {0, 12, 2, 1, 12, 0, 0, 0, 0};
    gpt_shapes shapes = shapes_of(s, 1);
    CHECK_ERROR(hook(shapes, 0).status, DEVICE, "multiple of 8");
    shapes.type = MEMO_TYPE_F32;
    CHECK_ERROR(hook(shapes, 0).status, UNSUPPORTED, "takes bf16 only (f32)");

    attention_plans plans;
    attention_shape small = {};
    cudnnCreate(&plans.handle);
    small.b = 1;
    small.n_q = small.n_k = 100;
    small.h_q = small.h_k = 3;
    small.d = 8;
    small.q = small.k = small.d_out = {24, 2400};
    small.is_backward = true;
    CHECK_ERROR(attention_prepare(&plans, small, 1000, &error), OUT_OF_DEVICE_MEMORY,
                "1000 are set aside");

    /* No graph is built whose scores alone do not fit. */
    attention_shape scores = small;
    scores.is_deterministic = true;
    int n_builds = fake_cudnn_n_builds;
    CHECK_ERROR(attention_prepare(&plans, scores, 20000, &error), OUT_OF_DEVICE_MEMORY, "need 2");
    CHECK_IS(fake_cudnn_n_builds, ==, n_builds);
    scores.documents = 7;
    n_builds = fake_cudnn_n_builds;
    CHECK_ERROR(attention_prepare(&plans, scores, 120000, &error), OUT_OF_DEVICE_MEMORY,
                "as many for each document, need");
    CHECK_IS(fake_cudnn_n_builds, ==, n_builds);
    const attention_call* call = NULL;
    const int64_t two_heads = attention_scratch_bytes(small, 1) / 3 * 2;
    CHECK_OK(attention_prepare(&plans, small, two_heads, &error));
    CHECK_OK(attention_get(&plans, small, &call, &error));
    CHECK(call && call->n_calls >= 1 && call->shape.h_k * call->n_calls == 3);
    cudnnDestroy(plans.handle);
}

/* A graph is built for each shape only once its division is expected to fit. */
TEST(divisions_are_rejected_before_their_graphs) {
    attention_plans plans;
    attention_shape s = {};
    const attention_call* call = NULL;
    cudnnCreate(&plans.handle);
    s.b = 1;
    s.n_q = s.n_k = 256;
    s.h_q = s.h_k = 64;
    s.d = 64;
    s.q = s.k = s.d_out = {4096, 1 << 20};
    s.is_backward = s.is_deterministic = true;
    const int n_builds = fake_cudnn_n_builds;
    CHECK_OK(attention_prepare(&plans, s, attention_scratch_bytes(s, 14 << 20), &error));
    CHECK_OK(attention_get(&plans, s, &call, &error));
    CHECK(call && call->n_calls > 2);
    CHECK_IS(fake_cudnn_n_builds, ==, n_builds + 1);
    cudnnDestroy(plans.handle);
}

/* The stand-in counts the time that graphs take to build, so that building many shows. */
TEST(graphs_take_time_to_build) {
    for (int is_deterministic = 0; is_deterministic < 2; is_deterministic++) {
        const int n_misuses = fake_cudnn_n_misuses;
        const int n_most = (int)FAKE_CUDNN_MOST_S / (is_deterministic ? 3 : 1);
        attention_plans plans;
        attention_shape s = {};
        cudnnCreate(&plans.handle);
        s.b = s.h_q = s.h_k = 1;
        s.d = 8;
        s.q = s.k = s.d_out = {8, 1 << 20};
        s.is_backward = is_deterministic;
        s.is_deterministic = is_deterministic;
        for (int i = 0; i < n_most + 2; i++) {
            s.n_q = s.n_k = 16 + i;
            CHECK_OK(attention_prepare(&plans, s, attention_scratch_bytes(s, 1 << 20), &error));
            CHECK_OK(attention_prepare(&plans, s, attention_scratch_bytes(s, 1 << 20), &error));
            CHECK_IS(fake_cudnn_n_misuses, ==, n_misuses + (i >= n_most));
        }
        CHECK_IS(plans.handle->built_s, ==, (n_most + 2) * (is_deterministic ? 3 : 1));
        cudnnDestroy(plans.handle);
        fake_cudnn_n_misuses = n_misuses;
    }
}

/* Wrong rows are found in the first, the middle and the last slice; others are not compared. */
TEST(three_slices_are_compared) {
    gpt_attention_shape s = {0, 40, 2, 2, 8, 0, 0, 0, 0};
    gpt_shapes shapes = shapes_of(s, 1);
    one_call x;
    one_call_make(&x, s, 1);
    for (int i = 0; i < 5; i++) {
        shapes.attention[i].shape = s;
        shapes.attention[i].shape.first = i * 8;
        shapes.attention[i].shape.sequence = (i + 1) * 8;
        shapes.attention[i].batch = 1;
    }
    shapes.n_attention = 5;
    for (int i = 0; i < 5; i++) {
        hook cudnn(shapes, 0);
        fake_cudnn_wraps = 64;
        const memo_status status =
            cudnn.run(GPT_KIND_ATTENTION, args_of(&x, shapes.attention[i].shape, 1));
        CHECK_IS(status, ==, i % 2 ? MEMO_STATUS_OK : MEMO_STATUS_UNSUPPORTED);
        fake_cudnn_wraps = 0;
        CHECK_OK(cudnn.run(GPT_KIND_ATTENTION, args_of(&x, shapes.attention[i].shape, 1)));
    }
}

/* Memory that the user sets aside is used whole, and less than a key head is expected to need is
 * not taken. */
TEST(scratch_memory_can_be_set) {
    const gpt_attention_shape s = {0, 12, 4, 2, 8, 0, 0, 0, 0};
    const int64_t large = (int64_t)100 << 20;
    fake_cudnn_head_bytes = (int64_t)40 << 20;
    CHECK_IS(hook(shapes_of(s, 1), 0).status, ==, MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    CHECK_ERROR(hook(shapes_of(s, 1), 1).status, OUT_OF_DEVICE_MEMORY, "--attention-memory");
    CHECK_OK(hook(shapes_of(s, 1), large).status);
    fake_cudnn_head_bytes = 0;
    CHECK_IS(hook(shapes_of(s, 1), large).scratch.size(), ==, (size_t)large + 512);
}

/* The stated memory: no more than the limit where groups of heads fit in it, otherwise what a key
 * head needs. */
TEST(scratch_memory_is_bounded) {
    const int64_t limit = (int64_t)2 << 30;
    const cudnn_call most = {1, 1 << 24, 1 << 24, 4096, 1, 256, 1, 1, 1, 1, 1 << 20};
    CHECK_IS(cudnn_scratch_bytes(&most, limit), >, (int64_t)1e18);
    for (int64_t n = 1024; n <= 1 << 20; n *= 4)
        for (int is_deterministic = 0; is_deterministic < 2; is_deterministic++) {
            attention_shape s = {}, one;
            s.b = 1;
            s.n_q = s.n_k = n;
            s.h_q = 32;
            s.h_k = 8;
            s.d = 128;
            s.q = s.k = s.q_result = s.k_result = {4096, 4096 * n};
            s.is_backward = true;
            s.is_deterministic = is_deterministic != 0;
            one = attention_divide(s, 8);
            const int64_t n_bytes = attention_scratch_bytes(s, limit);
            const int64_t least =
                attention_carve(one, NULL).n_bytes + attention_workspace_bytes(one);
            CHECK_IS(n_bytes, >=, least);
            CHECK_IS(n_bytes, <=, std::max(limit, least));
        }
}

/* ---- over ranks ---- */

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static attention_plans ranks_plans;
static attention_blocks ranks_blocks;
static int64_t ranks_window, ranks_documents; /* of the masks of a case */
static std::vector<char> ranks_scratch;
static bool ranks_are_exact; /* exact_attention.h's, without cuDNN */

struct ranks_args {
    memo_attention_block block;
    int is_backward;
};
static memo_status ranks_compute(void* user, memo_error* why) {
    ranks_args* a = (ranks_args*)user;
    const memo_attention exact = exact_attention();
    const memo_attention cudnn = attention_over_ranks(&ranks_blocks);
    const memo_attention& used = ranks_are_exact ? exact : cudnn;
    pthread_mutex_lock(&one_at_a_time); /* the stand-ins and the scratch memory serve one thread */
    const memo_status status =
        (a->is_backward ? used.backward : used.forward)(used.user, NULL, &a->block, why);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}
static memo_status ranks_enqueue(void* device, memo_stream stream,
                                 const memo_attention_block* block, int is_backward,
                                 memo_error* why) {
    ranks_args args = {*block, is_backward};
    return memo_host_device_launch((memo_device*)device, stream, ranks_compute, &args, sizeof args,
                                   why);
}
static memo_status ranks_forward(void* device, memo_stream stream,
                                 const memo_attention_block* block, memo_error* why) {
    return ranks_enqueue(device, stream, block, 0, why);
}
static memo_status ranks_backward(void* device, memo_stream stream,
                                  const memo_attention_block* block, memo_error* why) {
    return ranks_enqueue(device, stream, block, 1, why);
}

/* cuDNN's attention on the memory of a host device, prepared for what the desc will call. */
static memo_attention ranks_attention(const memo_sp_attention_desc* desc, memo_device* device) {
    memo_attention attention = {ranks_forward, ranks_backward, device, MEMO_LAUNCHES_RAGGED};
    std::vector<attention_shape> shapes;
    int64_t n_bytes = 0;
    if (ranks_are_exact) return attention;
    pthread_mutex_lock(&one_at_a_time);
    CHECK_OK(
        attention_shapes_over_ranks(*desc, true, ranks_window, ranks_documents, &shapes, &error));
    for (const attention_shape& s : shapes)
        n_bytes = std::max(n_bytes, attention_scratch_bytes(s, 1));
    if (ranks_scratch.size() < (size_t)n_bytes + 512) ranks_scratch.resize((size_t)n_bytes + 512);
    static attention_sample samples[ATTENTION_SAMPLES];
    ranks_plans.samples = samples;
    ranks_blocks.plans = &ranks_plans;
    ranks_blocks.is_deterministic = true;
    ranks_blocks.scratch = (char*)(((uintptr_t)ranks_scratch.data() + 511) / 512 * 512);
    for (const attention_shape& s : shapes)
        CHECK_OK(attention_prepare(&ranks_plans, s, n_bytes, &error));
    pthread_mutex_unlock(&one_at_a_time);
    return attention;
}
/* cuDNN of a test's ranks. */
struct ranks_cudnn {
    ranks_cudnn() { cudnnCreate(&ranks_plans.handle); }
    ~ranks_cudnn() {
        report_worst();
        CHECK_IS(fake_cudnn_n_misuses, ==, 0);
        cudnnDestroy(ranks_plans.handle);
        ranks_plans.built.clear();
        ranks_plans.prepared.clear();
    }
};

/* Ranks that share heads evenly and not, in calls of one key head each. */
TEST(over_ranks_it_is_the_reference_but_for_rounding) {
    static const int32_t degrees[][2] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 3}, {4, 2}};
    static const int32_t heads[][2] = {{4, 2}, {6, 3}, {6, 1}, {8, 4}};
    const ranks_cudnn cudnn;
    fake_cudnn_head_bytes = (int64_t)6 << 20;
    for (const auto& d : degrees)
        for (const auto& h : heads) {
            attention_case c = case_of(d[0], d[1], 2 * d[0] * d[1] * 3, h[0], h[1], 8);
            c.type = MEMO_TYPE_BF16;
            if (d[0] == 1 && memo_test_int(0, 1)) c.sharding = MEMO_SHARDING_PLAIN;
            c.n_batch = 1 + (int32_t)memo_test_int(0, 1);
            c.sends_again = (int32_t)memo_test_int(0, 1);
            if (h[1] % (2 * d[1]) == 0) c.ulysses_groups = 2;
            expect_right(&c, 6e-3, 1.2e-2, NULL);
        }
    fake_cudnn_head_bytes = 0;
}

/* Windows, packed documents, some of them empty, and both, by heads; more documents are prepared
 * than a mask has. */
TEST(windows_and_documents_are_the_reference_but_for_rounding) {
    const ranks_cudnn cudnn;
    for (int k = 0; k < 12; k++) {
        const int32_t ulysses = 1 + k % 2;
        attention_case c = case_of(1, ulysses, 2 * 13, 4, 2, 8);
        c.type = MEMO_TYPE_BF16;
        c.sharding = MEMO_SHARDING_PLAIN;
        c.sends_again = (int32_t)memo_test_int(0, 1);
        if (k % 3 != 1) {
            c.window = memo_test_int(1, 30);
            c.window_after = -1;
        }
        if (k % 3) {
            c.n_documents = memo_test_int(1, 4);
            for (int64_t d = 1; d < c.n_documents; d++)
                c.document_begins[d] = memo_test_int(c.document_begins[d - 1], c.n_tokens);
            c.document_begins[c.n_documents] = c.n_tokens;
        }
        ranks_window = c.window;
        ranks_documents = c.n_documents ? c.n_documents + memo_test_int(0, 2) : 0;
        expect_right(&c, 6e-3, 1.2e-2, NULL);
    }
    ranks_window = ranks_documents = 0;
}

/* Exact attention that counts its calls. */
static int n_otherwise;
static memo_status otherwise_forward(void*, memo_stream stream, const memo_attention_block* b,
                                     memo_error* why) {
    n_otherwise++;
    return exact_forward(NULL, stream, b, why);
}
static memo_status otherwise_backward(void*, memo_stream stream, const memo_attention_block* b,
                                      memo_error* why) {
    n_otherwise++;
    return exact_backward(NULL, stream, b, why);
}

/* Ragged calls, in any sharding, of lengths that divide nothing.  Causal documents need no other
 * attention; of windows a launch may have a limit that was not prepared. */
TEST(rings_of_windows_and_documents_are_the_reference_but_for_rounding) {
    const ranks_cudnn cudnn;
    int n_windows = 0, n_calls = 0;
    ranks_blocks.otherwise.forward = otherwise_forward;
    ranks_blocks.otherwise.backward = otherwise_backward;
    for (int k = 0; k < 18; k++) {
        attention_case c = case_of(1 + k % 4, 1 + k / 4 % 2, memo_test_int(k % 4 + 1, 60), 4, 2, 8);
        c.type = MEMO_TYPE_BF16;
        c.sharding = (memo_sharding_kind)(k % 3);
        c.n_batch = 1 + (int32_t)memo_test_int(0, 1);
        c.sends_again = (int32_t)memo_test_int(0, 1);
        if (k % 2) {
            c.window = memo_test_int(1, 30);
            c.window_after = -1;
        }
        if (k % 4 > 1 || c.sharding == MEMO_SHARDING_DOCUMENTS) {
            c.n_documents = memo_test_int(1, 6);
            for (int64_t d = 1; d < c.n_documents; d++)
                c.document_begins[d] = memo_test_int(c.document_begins[d - 1], c.n_tokens);
            c.document_begins[c.n_documents] = c.n_tokens;
        }
        IN_CASE("case %d", k);
        ranks_window = c.window;
        ranks_documents = c.n_documents;
        n_otherwise = 0;
        const int n_runs = fake_cudnn_n_runs;
        expect_right(&c, 6e-3, 1.2e-2, NULL);
        n_windows += n_otherwise;
        n_calls += fake_cudnn_n_runs - n_runs;
        CHECK(c.window || n_otherwise == 0);
    }
    printf("# %d calls of cuDNN, %d of another attention\n", n_calls, n_windows);
    CHECK_IS(n_windows * 3, <, n_calls);
    ranks_blocks.otherwise = memo_attention();
    ranks_window = ranks_documents = 0;
}

/* Empty sequences are NaN there: another attention computes launches of fewer than were prepared,
 * or an error says what would. */
TEST(cudnn_before_9_25_gets_no_empty_sequence) {
    const ranks_cudnn cudnn;
    fake_cudnn_version = 92400;
    for (int k = 0; k < 4; k++) {
        attention_case c = case_of(1 + k % 2, 1 + k / 2, 40, 4, 2, 8);
        c.type = MEMO_TYPE_BF16;
        c.sharding = MEMO_SHARDING_DOCUMENTS;
        c.n_documents = 3;
        c.document_begins[1] = memo_test_int(1, 15);
        c.document_begins[2] = memo_test_int(16, 39);
        c.document_begins[3] = c.n_tokens;
        IN_CASE("case %d", k);
        ranks_documents = 6;
        n_otherwise = 0;
        ranks_blocks.otherwise.forward = otherwise_forward;
        ranks_blocks.otherwise.backward = otherwise_backward;
        expect_right(&c, 6e-3, 1.2e-2, NULL);
        CHECK_IS(n_otherwise, >, 0);
    }
    ranks_blocks.otherwise = memo_attention();

    const memo_segment all = {0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0};
    memo_launch launch = {};
    memo_attention_block block = {};
    launch.n = launch.n_segments = 1;
    launch.segments = &all;
    launch.left = -1;
    block.type = MEMO_TYPE_BF16;
    block.segments.n_launches = 1;
    block.segments.launches = &launch;
    block.head_size = block.v_head_size = 8;
    CHECK_ERROR(attention_block_forward(&ranks_blocks, NULL, &block, &error), UNSUPPORTED,
                "take cuDNN 9.25 or attention_blocks.otherwise");
    fake_cudnn_version = 92500;
    ranks_documents = 0;
}

/* Queries are the last ones of their keys. */
TEST(slices_are_the_reference_but_for_rounding) {
    const ranks_cudnn cudnn;
    for (int k = 0; k < 4; k++) {
        attention_case c = case_of(1, 1 + k % 2, 2 * 13, 4, 2, 8);
        c.type = MEMO_TYPE_BF16;
        c.sharding = c.key_sharding = MEMO_SHARDING_PLAIN;
        c.first_query = 2 * memo_test_int(1, 20);
        c.n_keys = c.first_query + c.n_tokens;
        expect_right(&c, 6e-3, 1.2e-2, NULL);
    }
}

/* Any type, sharding and mask: exact_attention.h, which computes what cuDNN cannot. */
TEST(exact_attention_is_the_reference) {
    static const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};
    static const memo_sharding_kind shardings[] = {MEMO_SHARDING_PLAIN, MEMO_SHARDING_ZIGZAG};
    ranks_are_exact = true;
    for (int k = 0; k < 16; k++) {
        attention_case c = case_of(1 + k % 3, 1 + k % 2, memo_test_int(1, 50), 4, 2, 20);
        c.v_head_size = (int32_t)memo_test_int(1, 40);
        c.type = types[memo_test_int(0, 2)];
        c.sharding = shardings[memo_test_int(0, 1)];
        c.mask = memo_test_int(0, 3) ? MEMO_MASK_CAUSAL : MEMO_MASK_FULL;
        c.n_batch = 1 + (int32_t)memo_test_int(0, 1);
        c.has_intervals = k % 4 == 0;
        if (k % 4 == 1) c.window = memo_test_int(1, 60);
        if (k % 4 == 2) {
            c.n_documents = memo_test_int(1, 4);
            for (int64_t d = 1; d < c.n_documents; d++)
                c.document_begins[d] = memo_test_int(c.document_begins[d - 1], c.n_tokens);
            c.document_begins[c.n_documents] = c.n_tokens;
        }
        if (!memo_test_int(0, 2)) c.softcap = 3;
        if (!memo_test_int(0, 3)) c.spread = 8; /* one key dominates */
        expect_close(&c, 6e-3, 1.2e-2, NULL);
    }
    ranks_are_exact = false;
}

/* With attention_blocks.otherwise a mask that cuDNN lacks works, after cuDNN's own. */
TEST(what_cudnn_lacks_is_computed_otherwise) {
    const ranks_cudnn cudnn;
    attention_case c = case_of(1, 2, 2 * 13, 4, 2, 8);
    c.type = MEMO_TYPE_BF16;
    c.sharding = MEMO_SHARDING_PLAIN;
    ranks_blocks.otherwise = exact_attention();
    expect_right(&c, 6e-3, 1.2e-2, NULL);
    c.has_intervals = 1;
    expect_right(&c, 6e-3, 1.2e-2, NULL);
    ranks_blocks.otherwise = memo_attention();
}

/* For `ring` x `ulysses` ranks; NULL: it works. */
static void check_shapes(memo_sp_attention_desc desc, int32_t ring, int32_t ulysses,
                         int64_t n_tokens, int64_t window, int64_t documents, const char* refusal) {
    memo_sharding_desc sharding = {};
    std::vector<attention_shape> shapes;
    sharding.ring = ring;
    sharding.ulysses = ulysses;
    sharding.n_tokens = n_tokens;
    desc.type = MEMO_TYPE_BF16;
    CHECK_OK(memo_sharding_make(&sharding, &desc.sharding, &error));
    const memo_status status =
        attention_shapes_over_ranks(desc, false, window, documents, &shapes, &error);
    CHECK_IS(status, ==, refusal ? MEMO_STATUS_UNSUPPORTED : MEMO_STATUS_OK);
    CHECK_CASE(!refusal || strstr(error.message, refusal), "%s", error.message);
}

/* One key head of a rank cannot be divided. */
TEST(groups_that_differ_are_refused) {
    memo_sp_attention_desc desc = {};
    desc.n_q_heads = 8;
    desc.n_kv_heads = 2;
    desc.head_size = 8;
    desc.ulysses_groups = 2;
    check_shapes(desc, 1, 2, 32, 0, 0, "2 groups do not divide the");
    desc.n_kv_heads = 4;
    check_shapes(desc, 1, 2, 32, 0, 0, NULL);
}
