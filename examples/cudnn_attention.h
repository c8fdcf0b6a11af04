/* cudnn_attention.h - cuDNN's fused attention in bf16: forward with statistics, and backward, built once per shape.
 * Shared by 13_cudnn_attention.cu and bench/cuda_chain.cu.  Include memo_cuda.cuh first.
 * Knows: cudnn-frontend.  Knows nothing of rings and layers. */
#ifndef CUDNN_ATTENTION_H
#define CUDNN_ATTENTION_H

#include <cudnn_frontend.h>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

/* Element (b, h, n, d) lies at b * batch + n * row + h * head_size + d. */
struct attention_rows {
    int64_t row, batch;
};

/* A graph is built for one shape. */
struct attention_shape {
    int64_t b, n_q, n_k, h_q, h_k, d;
    attention_rows q, k;                /* q; k and v */
    attention_rows d_out;               /* backward only */
    attention_rows q_result, k_result;  /* out and d_q; d_k and d_v */
    float scale;                        /* of the scores */
    bool is_causal;                     /* row i sees keys 0 to i */
    bool is_backward, is_deterministic; /* the latter of the backward only */

    auto key() const {
        return std::tie(b, n_q, n_k, h_q, h_k, d, q.row, q.batch, k.row, k.batch, d_out.row,
                        d_out.batch, q_result.row, q_result.batch, k_result.row, k_result.batch,
                        scale, is_causal, is_backward, is_deterministic);
    }
    bool operator<(const attention_shape& other) const { return key() < other.key(); }
};

/* Keys of the addresses that attention_run gets.  Statistics are fp32 (b, h_q, n_q): the LSE of each row. */
enum {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_STATS,
    ATTENTION_D_OUT,
    ATTENTION_D_Q,
    ATTENTION_D_K,
    ATTENTION_D_V
};

struct attention_plan {
    std::shared_ptr<cudnn_frontend::graph::Graph> graph;
    int64_t workspace_bytes = 0;
};

struct attention_plans {
    cudnnHandle_t handle = nullptr;
    std::map<attention_shape, attention_plan> built;
};

static memo_status attention_failed(memo_error* error, const char* what, const std::string& why) {
    return memo_error_set(error, MEMO_STATUS_DEVICE, "cuDNN: %s: %.300s", what, why.c_str());
}

/* Sets what a tensor of n_heads x n rows is, whether the graph reads or makes it. */
static void attention_place(cudnn_frontend::graph::Tensor_attributes& t, int64_t uid,
                            const attention_shape& s, bool is_k, const attention_rows& rows) {
    t.set_uid(uid)
        .set_dim({s.b, is_k ? s.h_k : s.h_q, is_k ? s.n_k : s.n_q, s.d})
        .set_stride({rows.batch, s.d, rows.row, 1});
}

static memo_status attention_build(const attention_plans* c, const attention_shape& s,
                                   attention_plan* p, memo_error* error) {
    namespace fe = cudnn_frontend;
    p->graph = std::make_shared<fe::graph::Graph>();
    fe::graph::Graph& g = *p->graph;
    g.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto input = [&](int64_t uid, const char* name, bool is_k, const attention_rows& rows) {
        fe::graph::Tensor_attributes t;
        attention_place(t.set_name(name), uid, s, is_k, rows);
        return g.tensor(t);
    };
    auto q = input(ATTENTION_Q, "q", false, s.q);
    auto k = input(ATTENTION_K, "k", true, s.k), v = input(ATTENTION_V, "v", true, s.k);

    /* The node, and where its results lie. */
    if (!s.is_backward) {
        auto [out, stats] = g.sdpa(q, k, v,
                                   fe::graph::SDPA_attributes()
                                       .set_name("attention")
                                       .set_generate_stats(true)
                                       .set_causal_mask(s.is_causal)
                                       .set_attn_scale(s.scale));
        attention_place(out->set_output(true), ATTENTION_OUT, s, false, s.q_result);
        stats->set_output(true).set_uid(ATTENTION_STATS).set_data_type(fe::DataType_t::FLOAT);
    } else {
        auto out = input(ATTENTION_OUT, "out", false, s.q_result);
        auto d_out = input(ATTENTION_D_OUT, "d_out", false, s.d_out);
        auto stats = g.tensor(fe::graph::Tensor_attributes()
                                  .set_name("stats")
                                  .set_uid(ATTENTION_STATS)
                                  .set_dim({s.b, s.h_q, s.n_q, 1})
                                  .set_stride({s.h_q * s.n_q, s.n_q, 1, 1})
                                  .set_data_type(fe::DataType_t::FLOAT));
        auto [d_q, d_k, d_v] =
            g.sdpa_backward(q, k, v, out, d_out, stats,
                            fe::graph::SDPA_backward_attributes()
                                .set_name("attention backward")
                                .set_causal_mask(s.is_causal)
                                .set_attn_scale(s.scale)
                                .set_deterministic_algorithm(s.is_deterministic));
        attention_place(d_q->set_output(true), ATTENTION_D_Q, s, false, s.q_result);
        attention_place(d_k->set_output(true), ATTENTION_D_K, s, true, s.k_result);
        attention_place(d_v->set_output(true), ATTENTION_D_V, s, true, s.k_result);
    }

    /* A kernel for it. */
    auto built = g.build(c->handle, {fe::HeurMode_t::A});
    auto status = built.is_good() ? g.get_workspace_size(p->workspace_bytes) : built;
    if (status.is_bad())
        return attention_failed(error, "no kernel for this shape", status.get_message());
    return MEMO_STATUS_OK;
}

/* The plan stays valid as long as c. */
static memo_status attention_find(attention_plans* c, const attention_shape& s,
                                  const attention_plan** result, memo_error* error) {
    auto found = c->built.find(s);
    if (found == c->built.end()) {
        attention_plan p;
        if (attention_build(c, s, &p, error)) return error->status;
        found = c->built.emplace(s, p).first;
    }
    *result = &found->second;
    return MEMO_STATUS_OK;
}

static memo_status attention_run(const attention_plans* c, const attention_plan* p,
                                 std::unordered_map<int64_t, void*>& addresses, void* workspace,
                                 cudaStream_t stream, memo_error* error) {
    cudnnStatus_t code = cudnnSetStream(c->handle, stream);
    if (code != CUDNN_STATUS_SUCCESS)
        return attention_failed(error, "cudnnSetStream", cudnnGetErrorString(code));
    auto status = p->graph->execute(c->handle, addresses, workspace);
    if (status.is_bad()) return attention_failed(error, "execute", status.get_message());
    return MEMO_STATUS_OK;
}

#endif
