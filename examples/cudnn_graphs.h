/* cudnn_graphs.h - cuDNN's graphs of attention: the only functions that need cudnn-frontend, whose
 * headers take minutes to compile.
 *
 * Programs that include cudnn_attention.h have these functions as static ones.  Several programs
 * may share them: compile this file once with -DATTENTION_GRAPHS, as C++, and the programs with
 * -DATTENTION_LINKED, which then need cudnn.h alone.  bench/device.sh pack does. */
#ifndef CUDNN_GRAPHS_H
#define CUDNN_GRAPHS_H

#include "cudnn_scratch.h"

#ifdef ATTENTION_LINKED
#include <cudnn.h>
namespace cudnn_frontend {
namespace graph {
class Graph;
}
} // namespace cudnn_frontend
#else
#include <cudnn_frontend.h>
#endif
#if defined(ATTENTION_LINKED) || defined(ATTENTION_GRAPHS)
#define ATTENTION_FUNCTION
#else
#define ATTENTION_FUNCTION static inline
#endif
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

/* Element (b, h, n, d) lies at b * batch + n * row + h * head_size + d.  row 0: the rows hold the
 * heads of one call, and nothing lies between them. */
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
    bool is_causal;                     /* row i sees keys 0 to n_k - n_q + i */
    bool is_backward, is_deterministic; /* the latter of the backward only */
    /* window: row i sees as many keys at most, the last one that it sees included; 0: all.
     * documents: the most sequences that are packed (b 1); a row sees its own only; 0: one.
     * ends_late: packed sequences may have more keys than queries. */
    int64_t window, documents;
    bool ends_late;

    auto key() const {
        return std::tie(b, n_q, n_k, h_q, h_k, d, q.row, q.batch, k.row, k.batch, d_out.row,
                        d_out.batch, q_result.row, q_result.batch, k_result.row, k_result.batch,
                        scale, is_causal, is_backward, is_deterministic, window, documents,
                        ends_late);
    }
    bool operator<(const attention_shape& other) const { return key() < other.key(); }
};

/* Keys of the addresses that attention_run gets.  Statistics are fp32 (b, h_q, n_q): the LSE of
 * each row. */
enum {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_STATS,
    ATTENTION_D_OUT,
    ATTENTION_D_Q,
    ATTENTION_D_K,
    ATTENTION_D_V,
    /* Of documents: how many queries and keys they have, and where each begins in tensors of other
     * rows, in elements. */
    ATTENTION_LENGTHS_Q,
    ATTENTION_LENGTHS_K,
    ATTENTION_BEGINS_Q,
    ATTENTION_BEGINS_K,
    ATTENTION_BEGINS_OUT,
    ATTENTION_BEGINS_D_K,
    ATTENTION_BEGINS_STATS,
    ATTENTION_ROWS_Q, /* rows: for kernels around cuDNN's */
    ATTENTION_ROWS_K
};
enum { ATTENTION_N_BEGINS = ATTENTION_ROWS_K - ATTENTION_BEGINS_Q + 1 };
static_assert((int)ATTENTION_N_BEGINS == (int)CUDNN_N_BEGINS, "cudnn_scratch.h counts them");

struct attention_plan {
    std::shared_ptr<cudnn_frontend::graph::Graph> graph;
    int64_t workspace_bytes = 0;
    bool copies_lengths = false; /* from host memory that is freed before a CUDA graph runs */
};

/* Builds the graph of a shape.  Both functions return why they failed; empty: they did not. */
ATTENTION_FUNCTION std::string attention_build(cudnnHandle_t handle, const attention_shape& s,
                                               attention_plan* p);
/* Enqueues the graph on the stream of the handle. */
ATTENTION_FUNCTION std::string attention_execute(cudnnHandle_t handle, const attention_plan* p,
                                                 std::unordered_map<int64_t, void*>& addresses,
                                                 void* workspace);

#ifndef ATTENTION_LINKED

/* Sets what a tensor of n_heads x n rows is, whether the graph reads or makes it. */
static inline void attention_place(cudnn_frontend::graph::Tensor_attributes& t, int64_t uid,
                                   const attention_shape& s, bool is_k,
                                   const attention_rows& rows) {
    const int64_t h = is_k ? s.h_k : s.h_q, n = is_k ? s.n_k : s.n_q;
    const int64_t row = rows.row ? rows.row : h * s.d, batch = rows.row ? rows.batch : n * row;
    t.set_uid(uid).set_dim({s.documents ? s.documents : s.b, h, n, s.d});
    t.set_stride({s.documents ? n * row : batch, s.d, row, 1});
}

ATTENTION_FUNCTION std::string attention_build(cudnnHandle_t handle, const attention_shape& s,
                                               attention_plan* p) {
    namespace fe = cudnn_frontend;
    p->graph = std::make_shared<fe::graph::Graph>();
    fe::graph::Graph& g = *p->graph;
    g.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const bool ends_late = s.is_causal && (s.n_q < s.n_k || s.ends_late);
    /* What documents need; none otherwise. */
    std::map<int64_t, std::shared_ptr<fe::graph::Tensor_attributes>> of_documents;
    for (int64_t uid = ATTENTION_LENGTHS_Q; s.documents && uid < ATTENTION_ROWS_Q; uid++) {
        const bool is_length = uid < ATTENTION_BEGINS_Q;
        of_documents[uid] =
            g.tensor(fe::graph::Tensor_attributes()
                         .set_name("documents")
                         .set_uid(uid)
                         .set_dim({s.documents + !is_length, 1, 1, 1})
                         .set_stride({1, 1, 1, 1})
                         .set_data_type(is_length ? fe::DataType_t::INT32 : fe::DataType_t::INT64));
    }
    auto begin = [&](fe::graph::Tensor_attributes& t, int64_t uid) {
        if (s.documents) t.set_ragged_offset(of_documents[uid]);
    };
    auto mask = [&](auto attributes) {
        attributes.set_causal_mask(s.is_causal && !ends_late)
            .set_causal_mask_bottom_right(ends_late)
            .set_attn_scale(s.scale);
        if (s.window) attributes.set_sliding_window_length((int)s.window);
        if (s.documents)
            attributes.set_padding_mask(true)
                .set_seq_len_q(of_documents[ATTENTION_LENGTHS_Q])
                .set_seq_len_kv(of_documents[ATTENTION_LENGTHS_K]);
        return attributes;
    };
    auto input = [&](int64_t uid, const char* name, bool is_k, const attention_rows& rows,
                     int64_t begins) {
        fe::graph::Tensor_attributes t;
        attention_place(t.set_name(name), uid, s, is_k, rows);
        begin(t, begins);
        return g.tensor(t);
    };
    auto q = input(ATTENTION_Q, "q", false, s.q, ATTENTION_BEGINS_Q);
    auto k = input(ATTENTION_K, "k", true, s.k, ATTENTION_BEGINS_K);
    auto v = input(ATTENTION_V, "v", true, s.k, ATTENTION_BEGINS_K);

    /* The node, and where its results lie. */
    if (!s.is_backward) {
        auto [out, stats] = g.sdpa(
            q, k, v,
            mask(fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true)));
        attention_place(out->set_output(true), ATTENTION_OUT, s, false, s.q_result);
        begin(*out, ATTENTION_BEGINS_OUT);
        stats->set_output(true).set_uid(ATTENTION_STATS).set_data_type(fe::DataType_t::FLOAT);
        if (s.documents)
            stats->set_dim({s.documents, s.h_q, s.n_q, 1}).set_stride({s.h_q * s.n_q, 1, s.h_q, 1});
        begin(*stats, ATTENTION_BEGINS_STATS);
    } else {
        auto out = input(ATTENTION_OUT, "out", false, s.q_result, ATTENTION_BEGINS_OUT);
        auto d_out = input(ATTENTION_D_OUT, "d_out", false, s.d_out, ATTENTION_BEGINS_Q);
        fe::graph::Tensor_attributes t;
        t.set_name("stats").set_uid(ATTENTION_STATS).set_data_type(fe::DataType_t::FLOAT);
        t.set_dim({s.documents ? s.documents : s.b, s.h_q, s.n_q, 1});
        if (s.documents)
            t.set_stride({s.h_q * s.n_q, 1, s.h_q, 1});
        else
            t.set_stride({s.h_q * s.n_q, s.n_q, 1, 1});
        begin(t, ATTENTION_BEGINS_STATS);
        auto stats = g.tensor(t);
        auto attributes = mask(fe::graph::SDPA_backward_attributes()
                                   .set_name("attention backward")
                                   .set_deterministic_algorithm(s.is_deterministic));
        if (s.documents) attributes.set_max_total_seq_len_q(s.n_q).set_max_total_seq_len_kv(s.n_k);
        auto [d_q, d_k, d_v] = g.sdpa_backward(q, k, v, out, d_out, stats, attributes);
        attention_place(d_q->set_output(true), ATTENTION_D_Q, s, false, s.q_result);
        attention_place(d_k->set_output(true), ATTENTION_D_K, s, true, s.k_result);
        attention_place(d_v->set_output(true), ATTENTION_D_V, s, true, s.k_result);
        begin(*d_q, ATTENTION_BEGINS_OUT);
        begin(*d_k, ATTENTION_BEGINS_D_K);
        begin(*d_v, ATTENTION_BEGINS_D_K);
    }

    /* A kernel for it. */
    auto built = g.build(handle, {fe::HeurMode_t::A});
    auto status = built.is_good() ? g.get_workspace_size(p->workspace_bytes) : built;
    if (status.is_bad()) return "no kernel for this shape: " + status.get_message();
    /* cudnn-frontend then pads the keys, with lengths that each call copies. */
    p->copies_lengths =
        s.is_backward && !s.documents && s.n_k % 128 != 0 && cudnnGetVersion() <= 91500;
    return "";
}

ATTENTION_FUNCTION std::string attention_execute(cudnnHandle_t handle, const attention_plan* p,
                                                 std::unordered_map<int64_t, void*>& addresses,
                                                 void* workspace) {
    auto status = p->graph->execute(handle, addresses, workspace);
    return status.is_bad() ? "execute: " + status.get_message() : "";
}

#endif /* ATTENTION_LINKED */
#endif
