/* cudnn_frontend.h - a cuDNN without a GPU, found instead of cudnn-frontend's header: attention on
 * the host, as operations of fake_cuda.h's streams.  It has the functions that
 * examples/cudnn_attention.h uses.
 *
 * The order of its sums differs from that of the trainer's own kernels: keys from the last to the
 * first, probabilities in bf16.  As on a GPU, a backward that is not deterministic gives other bits
 * in every run, and a deterministic one needs a workspace that grows with the product of queries
 * and keys.  Each run overwrites its whole workspace.
 *
 * Misuse is printed and counted: strides that overlap, missing or misaligned addresses, a missing
 * workspace, a graph that is built while fake_cudnn_forbids_builds is set, graphs between two
 * runs of a handle that take more than FAKE_CUDNN_MOST_S to build.  Their time is counted, and
 * nobody waits: 1 s a graph, 3 s of a deterministic backward. */
#ifndef FAKE_CUDNN_FRONTEND_H
#define FAKE_CUDNN_FRONTEND_H

#include "fake_cuda.h"

#include "memo.h"

#include <algorithm>
#include <array>
#include <math.h>
#include <memory>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

static int fake_cudnn_n_builds, fake_cudnn_n_runs, fake_cudnn_n_misuses;
static int fake_cudnn_forbids_builds, fake_cudnn_version = 92500;
static int64_t fake_cudnn_head_bytes; /* more workspace for each key head, so that few fit */

static int64_t fake_cudnn_wraps; /* the index at which any tensor's overflows; 0: never */
/* Queries of a call from which on its d_q is wrong, as with cuDNN 9.19 and a million tokens; 0:
 * never.  At first of the environment. */
static int64_t fake_cudnn_wrong_from =
    getenv("FAKE_CUDNN_WRONG_FROM") ? atoll(getenv("FAKE_CUDNN_WRONG_FROM")) : 0;

/* ---- cudnn.h ---- */

typedef struct fake_cudnn_handle {
    cudaStream_t stream;
    int built_s; /* by its graphs since its latest run */
} * cudnnHandle_t;
enum { FAKE_CUDNN_MOST_S = 60 };
typedef enum { CUDNN_STATUS_SUCCESS, CUDNN_STATUS_BAD_PARAM } cudnnStatus_t;

static inline cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    *handle = new fake_cudnn_handle();
    return CUDNN_STATUS_SUCCESS;
}
static inline cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}
static inline cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    if (!handle) return CUDNN_STATUS_BAD_PARAM;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
static inline size_t cudnnGetVersion(void) { return (size_t)fake_cudnn_version; }
static inline const char* cudnnGetErrorString(cudnnStatus_t) { return "CUDNN_STATUS_BAD_PARAM"; }

/* ---- attention ---- */

static inline void fake_cudnn_misused(const std::string& how) {
    printf("# fake cuDNN: %s\n", how.c_str());
    fake_cudnn_n_misuses++;
}

/* A tensor of an operation that runs. */
struct fake_cudnn_view {
    void* address;
    int64_t dim[4], stride[4];
    const int64_t* begins; /* of documents, in elements; NULL: batches lie a stride apart */
    float load(int64_t b, int64_t h, int64_t n, int64_t e) const {
        return memo_f32_from_bf16(((const uint16_t*)address)[at(b, h, n, e)]);
    }
    void store(int64_t b, int64_t h, int64_t n, int64_t e, float value) const {
        ((uint16_t*)address)[at(b, h, n, e)] = memo_bf16_from_f32(value);
    }
    float* stat(int64_t b, int64_t h, int64_t n) const { return (float*)address + at(b, h, n, 0); }
    int64_t at(int64_t b, int64_t h, int64_t n, int64_t e) const {
        const int64_t i =
            (begins ? begins[b] : b * stride[0]) + h * stride[1] + n * stride[2] + e * stride[3];
        return fake_cudnn_wraps ? i % fake_cudnn_wraps : i;
    }
};

struct fake_cudnn_operation {
    fake_cudnn_view q, k, v, out, stats, d_out, d_q, d_k, d_v;
    float scale;
    int64_t ahead;                        /* query i sees keys up to i + ahead */
    bool is_bottom_right;                 /* of documents: the last query sees the last key */
    int64_t window;                       /* as many; 0: all */
    const int32_t *q_lengths, *k_lengths; /* of documents */
    bool takes_empty;                     /* documents of no queries */
    int64_t width;
    int64_t
        /* not 0, of a backward that is not deterministic: the key that d_q's sums begin with */
        turn;
};

static inline float fake_cudnn_bf16(float value) {
    return memo_f32_from_bf16(memo_bf16_from_f32(value));
}

static inline float fake_cudnn_dot(const fake_cudnn_view& x, int64_t n, int64_t hx,
                                   const fake_cudnn_view& y, int64_t m, int64_t hy, int64_t b) {
    float sum = 0;
    for (int64_t e = x.dim[3]; e-- > 0;) sum += x.load(b, hx, n, e) * y.load(b, hy, m, e);
    return sum;
}

/* Of sequence b, whose rows are as many as its length. */
static inline int64_t fake_cudnn_n_q(const fake_cudnn_operation& o, int64_t b) {
    return o.q_lengths ? o.q_lengths[b] : o.q.dim[2];
}
static inline int64_t fake_cudnn_n_k(const fake_cudnn_operation& o, int64_t b) {
    return o.k_lengths ? o.k_lengths[b] : o.k.dim[2];
}
static inline int64_t fake_cudnn_n_seen(const fake_cudnn_operation& o, int64_t b, int64_t query) {
    const int64_t n_k = fake_cudnn_n_k(o, b);
    const int64_t ahead = o.is_bottom_right ? n_k - fake_cudnn_n_q(o, b) : o.ahead;
    return std::min(n_k, query + ahead + 1);
}
static inline int64_t fake_cudnn_first_seen(const fake_cudnn_operation& o, int64_t b,
                                            int64_t query) {
    return o.window ? std::max<int64_t>(0, fake_cudnn_n_seen(o, b, query) - o.window) : 0;
}

static inline void fake_cudnn_forward(const fake_cudnn_operation& o) {
    const int64_t group = o.q.dim[1] / o.k.dim[1], d = o.q.dim[3];
    for (int64_t b = 0; b < o.q.dim[0]; b++)
        for (int64_t h = 0; h < o.q.dim[1]; h++)
            for (int64_t i = 0; i < fake_cudnn_n_q(o, b); i++) {
                const int64_t n = fake_cudnn_n_seen(o, b, i);
                const int64_t first = fake_cudnn_first_seen(o, b, i);
                std::vector<float> p((size_t)n), out((size_t)d);
                float max = -INFINITY, sum = 0;
                for (int64_t j = first; j < n; j++) {
                    p[(size_t)j] = o.scale * fake_cudnn_dot(o.q, i, h, o.k, j, h / group, b);
                    max = fmaxf(max, p[(size_t)j]);
                }
                for (int64_t end = n; end > first; end -= o.width) {
                    float part = 0;
                    for (int64_t j = end; j-- > std::max<int64_t>(first, end - o.width);)
                        part += p[(size_t)j] = expf(p[(size_t)j] - max);
                    sum += part;
                }
                for (int64_t j = n; j-- > first;)
                    for (int64_t e = 0; e < d; e++)
                        out[(size_t)e] +=
                            fake_cudnn_bf16(p[(size_t)j]) * o.v.load(b, h / group, j, e);
                for (int64_t e = 0; e < d; e++) o.out.store(b, h, i, e, out[(size_t)e] / sum);
                *o.stats.stat(b, h, i) = max + logf(sum);
            }
}

/* The gradients of key head g of sequence b. */
static inline void fake_cudnn_backward_head(const fake_cudnn_operation& o, int64_t b, int64_t g) {
    const int64_t group = o.q.dim[1] / o.k.dim[1], d = o.q.dim[3], n_k = o.k.dim[2];
    std::vector<float> d_k((size_t)(n_k * d)), d_v((size_t)(n_k * d)), d_q((size_t)d);
    for (int64_t h = g * group; h < (g + 1) * group; h++)
        for (int64_t i = 0; i < fake_cudnn_n_q(o, b); i++) {
            const float delta = fake_cudnn_dot(o.d_out, i, h, o.out, i, h, b);
            const float lse = *o.stats.stat(b, h, i);
            const int64_t first = fake_cudnn_first_seen(o, b, i);
            const int64_t n = fake_cudnn_n_seen(o, b, i) - first;
            std::fill(d_q.begin(), d_q.end(), 0.0f);
            for (int64_t c = n; c-- > 0;) {
                const int64_t j = first + (c + o.turn) % n;
                const float p = expf(o.scale * fake_cudnn_dot(o.q, i, h, o.k, j, g, b) - lse);
                const float dp = fake_cudnn_dot(o.d_out, i, h, o.v, j, g, b);
                const float ds = fake_cudnn_bf16(p * (dp - delta)) * o.scale;
                for (int64_t e = 0; e < d; e++) {
                    d_q[(size_t)e] += ds * o.k.load(b, g, j, e);
                    if (o.turn)
                        d_q[(size_t)e] = fake_cudnn_bf16(d_q[(size_t)e]); /* so that it shows */
                    d_k[(size_t)(j * d + e)] += ds * o.q.load(b, h, i, e);
                    d_v[(size_t)(j * d + e)] += fake_cudnn_bf16(p) * o.d_out.load(b, h, i, e);
                }
            }
            const bool is_wrong = fake_cudnn_wrong_from && o.q.dim[2] >= fake_cudnn_wrong_from;
            for (int64_t e = 0; e < d; e++)
                o.d_q.store(b, h, i, e, d_q[(size_t)e] + (is_wrong ? 1000.0f : 0.0f));
        }
    for (int64_t j = 0; j < fake_cudnn_n_k(o, b); j++)
        for (int64_t e = 0; e < d; e++) {
            o.d_k.store(b, g, j, e, d_k[(size_t)(j * d + e)]);
            o.d_v.store(b, g, j, e, d_v[(size_t)(j * d + e)]);
        }
}

/* ---- cudnn_frontend.h ---- */

namespace cudnn_frontend {

enum class DataType_t { NOT_SET, FLOAT, BFLOAT16, INT32, INT64 };
enum class HeurMode_t { A, B, FALLBACK };

struct error_object {
    std::string message; /* empty: good */
    bool is_good() const { return message.empty(); }
    bool is_bad() const { return !message.empty(); }
    std::string get_message() const { return message; }
};
using error_t = error_object;

namespace graph {

#define FAKE_CUDNN_SETTER(owner, name, field)                                                      \
    owner& name(decltype(field) value) {                                                           \
        field = value;                                                                             \
        return *(owner*)this;                                                                      \
    }

struct Tensor_attributes {
    std::string name;
    int64_t uid = 0;
    std::vector<int64_t> dim, stride;
    DataType_t type = DataType_t::NOT_SET;
    bool is_output = false;
    std::shared_ptr<Tensor_attributes> begins;
    FAKE_CUDNN_SETTER(Tensor_attributes, set_ragged_offset, begins)
    FAKE_CUDNN_SETTER(Tensor_attributes, set_name, name)
    FAKE_CUDNN_SETTER(Tensor_attributes, set_uid, uid)
    FAKE_CUDNN_SETTER(Tensor_attributes, set_dim, dim)
    FAKE_CUDNN_SETTER(Tensor_attributes, set_stride, stride)
    FAKE_CUDNN_SETTER(Tensor_attributes, set_data_type, type)
    FAKE_CUDNN_SETTER(Tensor_attributes, set_output, is_output)
};

template <typename T> struct fake_attention_attributes {
    bool is_top_left = false, is_bottom_right = false, makes_stats = false;
    bool is_deterministic = false;
    float scale = 1;
    int window = 0;
    bool is_padded = false;
    std::shared_ptr<Tensor_attributes> q_lengths, kv_lengths;
    FAKE_CUDNN_SETTER(T, set_sliding_window_length, window)
    FAKE_CUDNN_SETTER(T, set_padding_mask, is_padded)
    FAKE_CUDNN_SETTER(T, set_seq_len_q, q_lengths)
    FAKE_CUDNN_SETTER(T, set_seq_len_kv, kv_lengths)
    T& set_name(const std::string&) { return *(T*)this; }
    FAKE_CUDNN_SETTER(T, set_causal_mask, is_top_left)
    FAKE_CUDNN_SETTER(T, set_causal_mask_bottom_right, is_bottom_right)
    FAKE_CUDNN_SETTER(T, set_attn_scale, scale)
};
struct SDPA_attributes : fake_attention_attributes<SDPA_attributes> {
    FAKE_CUDNN_SETTER(SDPA_attributes, set_generate_stats, makes_stats)
};
struct SDPA_backward_attributes : fake_attention_attributes<SDPA_backward_attributes> {
    FAKE_CUDNN_SETTER(SDPA_backward_attributes, set_deterministic_algorithm, is_deterministic)
    int64_t most_rows =
        0; /* of all sequences; without it the workspace is for as many of the longest */
    FAKE_CUDNN_SETTER(SDPA_backward_attributes, set_max_total_seq_len_q, most_rows)
    SDPA_backward_attributes& set_max_total_seq_len_kv(int64_t) { return *this; }
};

class Graph {
    typedef std::shared_ptr<Tensor_attributes> tensor_ptr;
    /* q, k, v, out, stats; backward: d_out, d_q, d_k, d_v too */
    std::vector<tensor_ptr> tensors;
    bool is_backward = false, is_built = false, is_deterministic = false;
    bool is_top_left = false, is_bottom_right = false;
    float scale = 1;
    DataType_t io = DataType_t::NOT_SET;
    int64_t workspace_bytes = 0, window = 0, most_rows = 0;
    bool is_padded = false;
    tensor_ptr q_lengths, k_lengths;

    template <typename T> void take(const T& attributes) {
        window = attributes.window;
        is_padded = attributes.is_padded;
        q_lengths = attributes.q_lengths;
        k_lengths = attributes.kv_lengths;
        if (is_padded && (!q_lengths || !k_lengths))
            fake_cudnn_misused("a padding mask without lengths");
        is_top_left = attributes.is_top_left;
        is_bottom_right = attributes.is_bottom_right;
        is_deterministic = attributes.is_deterministic;
        scale = attributes.scale;
    }
    static tensor_ptr output() { return std::make_shared<Tensor_attributes>(); }

    /* No two elements of a tensor share an address, and elements of a head lie side by side. */
    static bool is_placed(const Tensor_attributes& t, bool is_stats) {
        std::vector<std::pair<int64_t, int64_t>> order; /* stride, dim */
        int64_t least = 1;
        if (t.dim.size() != 4 || t.stride.size() != 4 || (!is_stats && t.stride[3] != 1))
            return false;
        for (size_t i = 0; i < 4; i++)
            if (t.dim[i] > 1) order.push_back({t.stride[i], t.dim[i]});
        std::sort(order.begin(), order.end());
        for (const auto& one : order) {
            if (one.first < least) return false;
            least = one.first * one.second;
        }
        return true;
    }

    std::string find_fault() const {
        const std::vector<int64_t>&q = tensors[0]->dim, &k = tensors[1]->dim;
        if (io != DataType_t::BFLOAT16) return "the type is not bf16";
        for (size_t i = 0; i < tensors.size(); i++) {
            const bool is_k = i == 1 || i == 2 || i > 6, is_stats = i == 4;
            const Tensor_attributes& t = *tensors[i];
            std::vector<int64_t> dim = is_k ? k : q;
            if (is_stats) dim[3] = 1;
            if (!t.begins != !is_padded) return "documents of some tensors only";
            if (t.begins &&
                (t.begins->type != DataType_t::INT64 || t.begins->dim[0] != t.dim[0] + 1))
                return "begins of documents must be one more than these, of 64 bits";
            if (!is_placed(t, is_stats)) return "strides of a tensor overlap or are missing";
            if (t.dim != dim) return "a tensor has other dimensions";
            if ((t.type == DataType_t::FLOAT) != is_stats) return "statistics must be fp32";
            for (size_t other = 0; other < i; other++)
                if (!t.uid || tensors[other]->uid == t.uid) return "two tensors have one uid";
        }
        return "";
    }

    /* What the real library does not have. */
    std::string find_limit() const {
        const std::vector<int64_t>&q = tensors[0]->dim, &k = tensors[1]->dim;
        if (q[3] % 8 != 0) return "hidden_dim should be multiple of 8";
        if (q[1] % k[1] != 0) return "number of heads for query must be a multiple of keys'";
        if (is_bottom_right && q[2] > k[2])
            return "Bottom right causal mask does not support max_s_q > max_s_kv";
        if (window && !is_top_left && !is_bottom_right)
            return "a sliding window needs a causal mask";
        if (is_backward && q[2] == 1 && k[2] == 1) return "s_q = s_kv = 1 is not supported.";
        return "";
    }

  public:
    FAKE_CUDNN_SETTER(Graph, set_io_data_type, io)
    Graph& set_intermediate_data_type(DataType_t) { return *this; }
    Graph& set_compute_data_type(DataType_t) { return *this; }
    tensor_ptr tensor(const Tensor_attributes& t) { return std::make_shared<Tensor_attributes>(t); }

    std::array<tensor_ptr, 2> sdpa(tensor_ptr q, tensor_ptr k, tensor_ptr v,
                                   const SDPA_attributes& attributes) {
        tensors = {q, k, v, output(), output()};
        take(attributes);
        if (!attributes.makes_stats) fake_cudnn_misused("a forward without statistics");
        return {tensors[3], tensors[4]};
    }
    std::array<tensor_ptr, 3> sdpa_backward(tensor_ptr q, tensor_ptr k, tensor_ptr v,
                                            tensor_ptr out, tensor_ptr d_out, tensor_ptr stats,
                                            const SDPA_backward_attributes& attributes) {
        tensors = {q, k, v, out, stats, d_out, output(), output(), output()};
        take(attributes);
        most_rows = attributes.most_rows;
        is_backward = true;
        return {tensors[6], tensors[7], tensors[8]};
    }

    error_t build(cudnnHandle_t handle, const std::vector<HeurMode_t>&) {
        const std::vector<int64_t>&q = tensors[0]->dim, &k = tensors[1]->dim;
        fake_cudnn_n_builds++;
        if (fake_cudnn_forbids_builds) fake_cudnn_misused("a graph is built during a step");
        if (!handle) return {"no handle"};
        const int before_s = handle->built_s;
        handle->built_s += is_deterministic ? 3 : 1;
        if (before_s <= FAKE_CUDNN_MOST_S && handle->built_s > FAKE_CUDNN_MOST_S)
            fake_cudnn_misused("the graphs before a run took more than " +
                               std::to_string((int)FAKE_CUDNN_MOST_S) + " s to build");
        if (!is_backward && tensors[4]->dim.empty())
            tensors[4]->set_dim({q[0], q[1], q[2], 1}).set_stride({q[1] * q[2], q[2], 1, 1});
        const std::string fault = find_fault(), limit = find_limit();
        if (!fault.empty()) {
            fake_cudnn_misused(fault);
            return {fault};
        }
        if (!limit.empty()) return {limit};
        if (!fake_load("cuDNN")) return {"no device memory for the kernel"};

        const int64_t n_q = (q[2] + 63) / 64 * 64, n_k = (k[2] + 63) / 64 * 64;
        const int64_t n_rows = most_rows ? most_rows : q[0] * q[2];
        workspace_bytes = is_backward ? n_rows * q[1] * (4 * q[3] + 8) : 16;
        workspace_bytes += k[1] * fake_cudnn_head_bytes;
        if (is_deterministic) workspace_bytes += q[0] * q[1] * n_q * n_k * 2;
        is_built = true;
        return {};
    }

    error_t get_workspace_size(int64_t& n_bytes) const {
        n_bytes = workspace_bytes;
        return is_built ? error_t() : error_t{"the graph is not built"};
    }

    error_t execute(cudnnHandle_t handle, std::unordered_map<int64_t, void*>& addresses,
                    void* workspace) const {
        fake_cudnn_operation o = {};
        fake_cudnn_view* const views[] = {&o.q,     &o.k,   &o.v,   &o.out, &o.stats,
                                          &o.d_out, &o.d_q, &o.d_k, &o.d_v};
        const int64_t n_bytes = workspace_bytes;
        const bool backward = is_backward;
        handle->built_s = 0;
        if (!is_built) return {"the graph is not built"};
        if (!workspace) fake_cudnn_misused("no workspace");
        for (size_t i = 0; i < tensors.size(); i++) {
            auto found = addresses.find(tensors[i]->uid);
            if (found == addresses.end() || !found->second) return {"a tensor has no address"};
            if ((uintptr_t)found->second % 16)
                fake_cudnn_misused("an address is no multiple of 16");
            views[i]->address = found->second;
            if (tensors[i]->begins) {
                auto begins = addresses.find(tensors[i]->begins->uid);
                if (begins == addresses.end()) return {"documents have no begins"};
                views[i]->begins = (const int64_t*)begins->second;
            }
            for (size_t k = 0; k < 4; k++) {
                views[i]->dim[k] = tensors[i]->dim[k];
                views[i]->stride[k] = tensors[i]->stride[k];
            }
        }
        if (is_padded) {
            o.q_lengths = (const int32_t*)addresses[q_lengths->uid];
            o.k_lengths = (const int32_t*)addresses[k_lengths->uid];
            o.takes_empty = fake_cudnn_version >= 92500;
        }
        o.is_bottom_right = is_bottom_right;
        o.window = window;
        o.scale = scale;
        o.ahead = is_top_left ? 0 : is_bottom_right ? o.k.dim[2] - o.q.dim[2] : o.k.dim[2];
        o.width = 3;
        o.turn = is_deterministic ? 0 : 1 + fake_cudnn_n_runs;
        fake_cudnn_n_runs++;
        fake_enqueue(handle->stream, [=] {
            memset(workspace, 0xa5, (size_t)n_bytes);
            for (int64_t b = 0; o.q_lengths && !o.takes_empty && b < o.q.dim[0]; b++)
                if (!o.q_lengths[b]) fake_cudnn_misused("an empty sequence before 9.25");
            if (!backward)
                fake_cudnn_forward(o);
            else
                for (int64_t b = 0; b < o.k.dim[0]; b++)
                    for (int64_t g = 0; g < o.k.dim[1]; g++) fake_cudnn_backward_head(o, b, g);
        });
        return {};
    }
};

} // namespace graph
} // namespace cudnn_frontend

#endif
