/* cudnn_attention.h - cuDNN's fused attention in bf16: forward with statistics, and backward.
 * Graphs are built once for each shape; a call that needs too much workspace is divided into groups
 * of heads.  The last part computes the blocks of memo_sp.h's attention over ranks.
 *
 * Shared by 13_cudnn_attention.cu, bench/cuda_chain.cu and the trainer (gpt/kernels/cudnn.cu).  Include
 * memo_cuda.cuh first.  cudnn_graphs.h knows cudnn-frontend.  Knows nothing of layers. */
#ifndef CUDNN_ATTENTION_H
#define CUDNN_ATTENTION_H

#include "warps.h"
#include "cudnn_graphs.h"
#include "memo_sp.h"

#include <math.h>
#include <string.h>
#include <vector>

/* A shape divided into calls of the same number of heads: whole key heads, and the query heads that
 * read them. */
struct attention_call {
    attention_shape shape; /* of one call */
    const attention_plan* plan;
    int64_t n_calls;
    attention_shape whole;     /* of all heads */
    mutable int64_t n_checked; /* calls whose results were compared with exact rows */
};
struct attention_sample;

struct attention_plans {
    cudnnHandle_t handle = nullptr;
    std::map<attention_shape, attention_plan> built;
    std::map<attention_shape, attention_call> prepared; /* by the shape of all heads */
    attention_sample* samples = nullptr; /* (ATTENTION_SAMPLES), pinned; NULL: none is compared */
};

static inline memo_status attention_failed(memo_error* error, const std::string& why) {
    return memo_error_set(error, MEMO_STATUS_DEVICE, "cuDNN: %.300s", why.c_str());
}

/* The plan stays valid as long as c. */
static inline memo_status attention_find(attention_plans* c, const attention_shape& s,
                                         const attention_plan** result, memo_error* error) {
    auto found = c->built.find(s);
    if (found == c->built.end()) {
        attention_plan p;
        const std::string why = attention_build(c->handle, s, &p);
        if (!why.empty()) return attention_failed(error, why);
        found = c->built.emplace(s, p).first;
    }
    *result = &found->second;
    return MEMO_STATUS_OK;
}

static inline memo_status attention_run(const attention_plans* c, const attention_plan* p,
                                        std::unordered_map<int64_t, void*>& addresses,
                                        void* workspace, cudaStream_t stream, memo_error* error) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (p->copies_lengths &&
        memo_cuda_check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing", error))
        return error->status;
    if (capture != cudaStreamCaptureStatusNone)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention: a graph of a number of keys that 128 does not "
                              "divide; cuDNN 9.15.1 or later, or no graph, would work");
    cudnnStatus_t code = cudnnSetStream(c->handle, stream);
    if (code != CUDNN_STATUS_SUCCESS)
        return attention_failed(error, std::string("cudnnSetStream: ") + cudnnGetErrorString(code));
    const std::string why = attention_execute(c->handle, p, addresses, workspace);
    return why.empty() ? MEMO_STATUS_OK : attention_failed(error, why);
}

/* ---- groups of heads ------------------------------------------------------------------------- */

/* Memory of one call: results that lie alone, then cuDNN's workspace.  base NULL: only n_bytes. */
struct attention_scratch {
    float* stats;
    uint16_t *out, *d_q, *d_k, *d_v; /* NULL if they lie in the caller's rows */
    int64_t* begins;                 /* of documents: (ATTENTION_N_BEGINS, documents + 1) */
    int32_t* lengths;
    char* workspace;
    int64_t n_bytes; /* without the workspace */
};
static inline attention_scratch attention_carve(const attention_shape& s, char* base) {
    attention_scratch m = {};
    auto take = [&](int64_t n_bytes) {
        char* address = base ? base + m.n_bytes : nullptr;
        m.n_bytes += (n_bytes + 511) / 512 * 512;
        return address;
    };
    const int64_t n_q = s.b * s.h_q * s.n_q, n_k = s.b * s.h_k * s.n_k;
    m.stats = (float*)(void*)take(n_q * 4);
    if (!s.q_result.row) m.out = (uint16_t*)(void*)take(n_q * s.d * 2);
    if (!s.q_result.row && s.is_backward) m.d_q = (uint16_t*)(void*)take(n_q * s.d * 2);
    if (!s.k_result.row && s.is_backward) {
        m.d_k = (uint16_t*)(void*)take(n_k * s.d * 2);
        m.d_v = (uint16_t*)(void*)take(n_k * s.d * 2);
    }
    if (s.documents) {
        m.begins = (int64_t*)(void*)take(ATTENTION_N_BEGINS * (s.documents + 1) * 8);
        m.lengths = (int32_t*)(void*)take(s.documents * 4);
    }
    m.workspace = base ? base + m.n_bytes : nullptr;
    return m;
}

/* The sizes of a shape. */
static inline cudnn_call attention_sizes(const attention_shape& s) {
    cudnn_call c = {};
    c.b = s.b;
    c.n_q = s.n_q;
    c.n_k = s.n_k;
    c.h_q = s.h_q;
    c.h_k = s.h_k;
    c.d = s.d;
    c.is_backward = s.is_backward;
    c.is_deterministic = s.is_deterministic;
    c.has_alone_q_results = !s.q_result.row;
    c.has_alone_k_results = !s.k_result.row;
    c.documents = s.documents;
    return c;
}
static inline int64_t attention_workspace_bytes(const attention_shape& s) {
    const cudnn_call c = attention_sizes(s);
    return cudnn_workspace_bytes(&c);
}

static inline attention_shape attention_divide(const attention_shape& s, int64_t n_calls) {
    attention_shape part = s;
    part.h_q = s.h_q / n_calls;
    part.h_k = s.h_k / n_calls;
    return part;
}

/* Memory for a shape: see cudnn_scratch.h. */
static inline int64_t attention_scratch_bytes(const attention_shape& s, int64_t limit_bytes) {
    const cudnn_call c = attention_sizes(s);
    return cudnn_scratch_bytes(&c, limit_bytes);
}

/* Divides a shape into as few calls as fit in n_bytes, and builds their graph.  Building takes
 * seconds: no graph is built of a call that is expected not to fit, and of a single key head, which
 * cannot be divided, none whose scores alone do not fit. */
static inline memo_status attention_prepare(attention_plans* c, const attention_shape& s,
                                            int64_t n_bytes, memo_error* error) {
    int64_t needed = 0;
    memo_status status = MEMO_STATUS_OK;
    if (c->prepared.count(s)) return MEMO_STATUS_OK;
    for (int64_t n_calls = 1; n_calls <= s.h_k; n_calls++) {
        attention_call call = {attention_divide(s, n_calls), nullptr, n_calls, s, 0};
        if (s.h_k % n_calls) continue;
        const cudnn_call sizes = attention_sizes(call.shape);
        needed = attention_carve(call.shape, nullptr).n_bytes +
                 (n_calls < s.h_k ? cudnn_workspace_bytes(&sizes) : cudnn_scores_bytes(&sizes, 1));
        if (needed > n_bytes) continue;
        status = attention_find(c, call.shape, &call.plan, error);
        if (status) continue; /* fewer heads may work */
        needed = attention_carve(call.shape, nullptr).n_bytes + call.plan->workspace_bytes;
        if (needed > n_bytes) continue;
        c->prepared.emplace(s, call);
        return MEMO_STATUS_OK;
    }
    if (status) return status;
    return memo_error_set(
        error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
        "cuDNN's attention: %lld queries of one key head%s need %lld bytes of "
        "scratch memory%s; %lld are set aside",
        (long long)s.n_q, s.documents ? ", as many for each document," : "", (long long)needed,
        s.is_backward && s.is_deterministic ? " for a deterministic backward" : "",
        (long long)n_bytes);
}

/* Builds nothing. */
static inline memo_status attention_get(const attention_plans* c, const attention_shape& s,
                                        const attention_call** call, memo_error* error) {
    auto found = c->prepared.find(s);
    if (found == c->prepared.end())
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "cuDNN's attention: %s of %lld queries, %lld keys, %lld and %lld "
                              "heads of %lld was not prepared",
                              s.is_backward ? "the backward" : "the forward", (long long)s.n_q,
                              (long long)s.n_k, (long long)s.h_q, (long long)s.h_k, (long long)s.d);
    *call = &found->second;
    return MEMO_STATUS_OK;
}

/* ---- between cuDNN's layout and rows --------------------------------------------------------- */

/* Element (b, n, h, d) lies at b * batch + n * row + h * d. */
struct placed_rows {
    int64_t n, h, d, row, batch;
};
__device__ static inline int64_t attention_at(const placed_rows& r, int64_t x) { /* x-th of all */
    const int64_t in_row = r.h * r.d, i = x / in_row;
    return i / r.n * r.batch + i % r.n * r.row + x % in_row;
}

/* to = or += from (b, n, h, d).  A warp a row (b, n), 8 elements a lane at a time, which cuDNN's
 * head sizes are multiples of.  A lane loads ATTENTION_AHEAD times before it stores.  Addresses are
 * multiples of 16 bytes. */
enum { ATTENTION_PUT = 8, ATTENTION_AHEAD = 2 };
struct alignas(16) attention_words {
    uint32_t w[4];
};
__device__ static inline float attention_half(const attention_words& words, int k) {
    const uint32_t bits = k % 2 ? words.w[k / 2] & 0xffff0000u : words.w[k / 2] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
__device__ static inline void attention_put_words(void* to, memo_type type, int64_t at,
                                                  const attention_words& from,
                                                  const attention_words old[2], bool adds) {
    attention_words y[2] = {};
    for (int k = 0; k < ATTENTION_PUT; k++) {
        const float value = attention_half(from, k);
        float before = 0, sum;
        if (type == MEMO_TYPE_F32)
            memcpy(&before, &old[k / 4].w[k % 4], sizeof before);
        else
            before = attention_half(old[0], k);
        sum = adds ? before + value : value;
        if (type == MEMO_TYPE_F32)
            memcpy(&y[k / 4].w[k % 4], &sum, sizeof sum);
        else
            y[0].w[k / 2] |= (uint32_t)memo_bf16_from_f32(sum) << 16 * (k % 2);
    }
    if (type == MEMO_TYPE_F32) {
        *(attention_words*)((float*)to + at) = y[0];
        *(attention_words*)((float*)to + at + 4) = y[1];
    } else {
        *(attention_words*)((uint16_t*)to + at) = adds ? y[0] : from;
    }
}
__global__ static void attention_put_kernel(void* to, memo_type type, const uint16_t* from,
                                            placed_rows r, int64_t n_rows, bool adds) {
    const int in_row = (int)(r.h * r.d), lane = (int)(threadIdx.x % 32) * ATTENTION_PUT;
    WARPS_EACH_THREAD(thread, n_rows * 32) {
        const int64_t i = thread / 32, base = i / r.n * r.batch + i % r.n * r.row;
        for (int c = lane; c < in_row; c += ATTENTION_AHEAD * 32 * ATTENTION_PUT) {
            attention_words words[ATTENTION_AHEAD], old[ATTENTION_AHEAD][2] = {};
            for (int k = 0; k < ATTENTION_AHEAD; k++) {
                const int at = c + k * 32 * ATTENTION_PUT;
                if (at >= in_row) continue;
                words[k] = *(const attention_words*)(from + i * in_row + at);
                if (!adds) continue;
                if (type == MEMO_TYPE_F32) {
                    old[k][0] = *(const attention_words*)((const float*)to + base + at);
                    old[k][1] = *(const attention_words*)((const float*)to + base + at + 4);
                } else {
                    old[k][0] = *(const attention_words*)((const uint16_t*)to + base + at);
                }
            }
            for (int k = 0; k < ATTENTION_AHEAD; k++) {
                const int at = c + k * 32 * ATTENTION_PUT;
                if (at < in_row) attention_put_words(to, type, base + at, words[k], old[k], adds);
            }
        }
    }
}

/* LSE of rows (b, n, h), at b * batch + i * row + h, from or to cuDNN's (b, h, n), or of documents
 * (n, h). */
__global__ static void attention_lse_kernel(float* lse, float* stats, placed_rows r, int64_t total,
                                            bool is_to_rows, bool has_documents) {
    WARPS_EACH_THREAD(x, total) {
        float* at = has_documents
                        ? lse + x / r.h * r.row + x % r.h
                        : lse + x / (r.n * r.h) * r.batch + x % r.n * r.row + x / r.n % r.h;
        if (is_to_rows)
            *at = stats[x];
        else
            stats[x] = *at;
    }
}

/* An output (b, n, h, d) whose row sums with d_out are row_dots, placed as lse.  One warp per row
 * and head. */
__global__ static void attention_out_kernel(uint16_t* out, const uint16_t* d_out,
                                            const float* row_dots, placed_rows r, placed_rows lse,
                                            int64_t total) {
    WARPS_EACH_THREAD(thread, total * 32) {
        const int64_t x = thread / 32, i = x / r.h;
        const uint16_t* from = d_out + attention_at(r, x * r.d);
        const float dot = row_dots[i / r.n * lse.batch + i % r.n * lse.row + x % r.h];
        float norm = 0;
        for (int64_t e = threadIdx.x % 32; e < r.d; e += 32)
            norm += memo_f32_from_bf16(from[e]) * memo_f32_from_bf16(from[e]);
        norm = warps_sum(norm);
        for (int64_t e = threadIdx.x % 32; e < r.d; e += 32)
            out[x * r.d + e] =
                memo_bf16_from_f32(norm > 0 ? memo_f32_from_bf16(from[e]) * (dot / norm) : 0.0f);
    }
}

/* to = or += the contiguous rows of one call. */
static inline memo_status attention_put(cudaStream_t stream, void* to, memo_type type,
                                        const uint16_t* from, const attention_shape& s, bool is_k,
                                        attention_rows rows, bool adds, memo_error* error) {
    const placed_rows r = {is_k ? s.n_k : s.n_q, is_k ? s.h_k : s.h_q, s.d, rows.row, rows.batch};
    if (((uintptr_t)to | (uintptr_t)(rows.row * 2) | (uintptr_t)(rows.batch * 2)) % 16)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "cuDNN's attention: rows at %p with strides of %lld and %lld elements; "
            "multiples of 16 bytes would work",
            to, (long long)rows.row, (long long)rows.batch);
    return warps_launch(stream, s.b * r.n * 32, error, attention_put_kernel, to, type, from, r,
                        s.b * r.n, adds);
}
static inline memo_status attention_turn_lse(cudaStream_t stream, float* lse, float* stats,
                                             const attention_shape& s, attention_rows rows,
                                             bool is_to_rows, memo_error* error) {
    const placed_rows r = {s.n_q, s.h_q, 1, rows.row, rows.batch};
    const int64_t total = s.b * s.h_q * s.n_q;
    return warps_launch(stream, total, error, attention_lse_kernel, lse, stats, r, total,
                        is_to_rows, s.documents > 0);
}

/* Documents of a call: a part of them, which the kernel gets by value, so that no host memory has
 * to stay. */
enum { ATTENTION_DOCUMENTS = 128 };
struct attention_documents {
    int64_t first, n, n_all; /* of this part; of the graph, which has as many or more */
    int64_t rows[ATTENTION_N_BEGINS];
    int64_t begins[ATTENTION_DOCUMENTS + 1];
    const int64_t* on_device; /* instead of begins: of all documents */
};
__global__ static void attention_documents_kernel(attention_documents d, int64_t* begins,
                                                  int32_t* lengths) {
    WARPS_EACH_THREAD(i, d.n) {
        const int64_t begin = d.on_device ? d.on_device[i] : d.begins[i];
        const int64_t end = d.on_device ? d.on_device[i + 1] : d.begins[i + 1];
        for (int k = 0; k < ATTENTION_N_BEGINS; k++) {
            int64_t* at = begins + k * (d.n_all + 1) + d.first;
            at[i] = begin * d.rows[k];
            if (d.first + i + 1 == d.n_all) at[i + 1] = end * d.rows[k];
        }
        lengths[d.first + i] = (int32_t)(end - begin);
    }
}

/* Sets the documents of a call; those that it lacks are empty.  begins NULL: one.  n 0: begins lie
 * on the device, s.documents + 1 of them. */
static inline memo_status attention_set_documents(cudaStream_t stream, const attention_shape& s,
                                                  const int64_t* begins, int64_t n,
                                                  const attention_scratch& m,
                                                  std::unordered_map<int64_t, void*>* addresses,
                                                  memo_error* error) {
    const int64_t rows[ATTENTION_N_BEGINS] = {s.q.row,
                                              s.k.row,
                                              s.q_result.row ? s.q_result.row : s.h_q * s.d,
                                              s.k_result.row ? s.k_result.row : s.h_k * s.d,
                                              s.h_q,
                                              1};
    attention_documents d;
    if (!s.documents) return MEMO_STATUS_OK;
    d.n_all = s.documents;
    d.on_device = n ? nullptr : begins;
    memcpy(d.rows, rows, sizeof rows);
    if (d.on_device) {
        d.first = 0;
        d.n = s.documents;
        if (warps_launch(stream, d.n, error, attention_documents_kernel, d, m.begins, m.lengths))
            return error->status;
    }
    for (d.first = 0; d.first < s.documents && !d.on_device; d.first += d.n) {
        d.n = s.documents - d.first < ATTENTION_DOCUMENTS ? s.documents - d.first
                                                          : (int64_t)ATTENTION_DOCUMENTS;
        for (int64_t i = 0; i <= d.n; i++) {
            const int64_t document = d.first + i;
            d.begins[i] = begins ? begins[document < n ? document : n] : document ? s.n_q : 0;
        }
        if (warps_launch(stream, d.n, error, attention_documents_kernel, d, m.begins, m.lengths))
            return error->status;
    }
    (*addresses)[ATTENTION_LENGTHS] = m.lengths;
    for (int64_t k = 0; k < ATTENTION_N_BEGINS; k++)
        (*addresses)[ATTENTION_BEGINS_Q + k] = m.begins + k * (s.documents + 1);
    return MEMO_STATUS_OK;
}

/* ---- rows computed again ------------------------------------------------------------------------
 *
 * A library whose indices overflow writes wrong numbers, and the loss of a first step does not show
 * them.  The first time that a call runs, rows of its results are computed again from the same
 * operands, exactly and slowly, and compared; of slices, which differ in their keys, only in the
 * first, the middle and the last.  Rounding explains a distance of 2^-9 of a row, and 2^-9 of the
 * length that a sum's terms have if their directions are random; several times as much is an error.
 *
 * A team of warps shares the terms of a row, since one warp would take a minute for the keys of a
 * long sequence.  The host adds the parts. */

#ifndef ATTENTION_SAMPLES
#define ATTENTION_SAMPLES 32 /* rows of each result */
#endif
#ifndef ATTENTION_WARP_TERMS
#define ATTENTION_WARP_TERMS 256 /* of a row's sum, for which another warp is worthwhile */
#endif

/* The operands of a call. */
struct attention_operands {
    const uint16_t *q, *k, *v, *out, *d_out;
    const float* stats;
    placed_rows at_q, at_k, at_d_out, at_out, at_d_k; /* at_out: d_q, too */
    int64_t group, ahead;                             /* query i sees keys up to i + ahead */
    int64_t window;                                   /* as many; 0: all */
    const int64_t* begins; /* of documents, which end at the last; NULL: one */
    int64_t n_documents;
    float scale;
};
/* The rows of i's document. */
__device__ static inline void attention_document(const attention_operands& o, int64_t i,
                                                 int64_t* begin, int64_t* end) {
    *begin = 0;
    *end = o.at_k.n;
    for (int64_t d = 0; d < o.n_documents; d++) {
        if (i < o.begins[d] || i >= o.begins[d + 1]) continue;
        *begin = o.begins[d];
        *end = o.begins[d + 1];
    }
}
__device__ static inline float attention_stat(const attention_operands& o, int64_t b, int64_t h,
                                              int64_t i) {
    return o.stats[o.begins ? i * o.at_q.h + h : (b * o.at_q.h + h) * o.at_q.n + i];
}
enum { ATTENTION_TEAM_MAX = 64 };

/* Up to two rows of the library, and the parts of their exact sums: of terms that are factors of
 * e^-max.  squares: of the terms.  weight: of a softmax; 0: the factors are final. */
struct attention_part {
    float sum[2][WARPS_HEAD], squares[2], max, weight;
};
struct attention_sample {
    float row[2][WARPS_HEAD];
    attention_part parts[ATTENTION_TEAM_MAX];
};
static inline int64_t attention_team(int64_t n_terms) {
    const int64_t n = n_terms / ATTENTION_WARP_TERMS;
    return n < 1 ? 1 : n < ATTENTION_TEAM_MAX ? n : (int64_t)ATTENTION_TEAM_MAX;
}

__device__ static inline warps_head attention_row(const uint16_t* x, const placed_rows& r,
                                                  int64_t b, int64_t n, int64_t h) {
    return warps_load(x, MEMO_TYPE_BF16, b * r.batch + n * r.row + h * r.d, r.d);
}
__device__ static inline void attention_write(float* to, const warps_head& row) {
    warps_store(to, MEMO_TYPE_F32, 0, WARPS_HEAD, row, false);
}
/* How far row k of the library is from the exact one, in units of what is allowed. */
static inline double attention_off(const attention_sample& s, int k, int64_t n_team) {
    double max = -INFINITY, weight = 0, squares = 0, size = 0, off = 0;
    for (int64_t w = 0; w < n_team; w++) max = fmax(max, (double)s.parts[w].max);
    std::vector<double> factors;
    for (int64_t w = 0; w < n_team; w++) {
        const double f = exp(s.parts[w].max - max);
        factors.push_back(f);
        weight += f * s.parts[w].weight;
        squares += f * f * s.parts[w].squares[k];
    }
    if (weight == 0) weight = 1;
    for (int e = 0; e < WARPS_HEAD; e++) {
        double sum = 0;
        for (int64_t w = 0; w < n_team; w++)
            sum += factors[(size_t)w] * s.parts[w].sum[k][e] / weight;
        size += sum * sum;
        off += (sum - s.row[k][e]) * (sum - s.row[k][e]);
    }
    if (!(size < INFINITY)) return 0; /* the operands are not finite: the loss will say so */
    off = sqrt(off) / (sqrt(squares) / weight / 32 + sqrt(size) / 64 + 1e-20);
    return off < INFINITY ? off : INFINITY;
}

/* The item of sample s: spread over all, and not always of the same head. */
__device__ static inline int64_t attention_choose(int64_t s, int64_t n_samples, int64_t total) {
    const int64_t begin = total / n_samples * s,
                  n = s + 1 < n_samples ? total / n_samples : total - begin;
    return begin + (s + 1 < n_samples ? s * 7919 % n : n - 1);
}

/* A team of warps a query and its head: out, or with d_out, d_q. */
__global__ static void attention_check_queries_kernel(attention_operands o, const uint16_t* result,
                                                      attention_sample* samples, int64_t n_samples,
                                                      int64_t n_team, int64_t total) {
    WARPS_EACH_THREAD(thread, n_samples * n_team * 32) {
        const int64_t sample = thread / 32 / n_team, warp = thread / 32 % n_team;
        const int64_t x = attention_choose(sample, n_samples, total), h = x % o.at_q.h;
        const int64_t i = x / o.at_q.h % o.at_q.n, b = x / o.at_q.h / o.at_q.n;
        int64_t first, n_keys;
        attention_document(o, i, &first, &n_keys);
        if (i + o.ahead + 1 < n_keys) n_keys = i + o.ahead + 1;
        if (o.window && n_keys - o.window > first) first = n_keys - o.window;
        const warps_head q = attention_row(o.q, o.at_q, b, i, h);
        warps_head d_out = {}, sum = {};
        float max = -INFINITY, weight = 0, squares = 0, delta = 0;
        if (o.d_out) {
            d_out = attention_row(o.d_out, o.at_d_out, b, i, h);
            delta = warps_dot(d_out, attention_row(o.out, o.at_out, b, i, h));
            max = attention_stat(o, b, h, i);
        }
        for (int64_t j = first + warp; j < n_keys; j += n_team) {
            const warps_head k = attention_row(o.k, o.at_k, b, j, h / o.group);
            const warps_head v = attention_row(o.v, o.at_k, b, j, h / o.group);
            const float score = o.scale * warps_dot(q, k);
            if (o.d_out) {
                const float p = o.scale * expf(score - max), dp = warps_dot(d_out, v);
                const float size = p * (fabsf(dp) + fabsf(delta));
                warps_add(&sum, p * (dp - delta), k);
                squares += size * size * warps_dot(k, k);
            } else {
                const float larger = fmaxf(max, score), shrink = expf(max - larger);
                const float p = expf(score - larger);
                for (float& e : sum.v) e *= shrink;
                warps_add(&sum, p, v);
                weight = weight * shrink + p;
                squares = squares * shrink * shrink + p * p * warps_dot(v, v);
                max = larger;
            }
        }
        attention_part* part = &samples[sample].parts[warp];
        attention_write(part->sum[0], sum);
        part->squares[0] = squares;
        part->max = o.d_out ? 0 : max;
        part->weight = weight;
        if (warp == 0)
            attention_write(samples[sample].row[0], attention_row(result, o.at_out, b, i, h));
    }
}

/* A team of warps a key and its head: d_k and d_v. */
__global__ static void attention_check_keys_kernel(attention_operands o, const uint16_t* d_k,
                                                   const uint16_t* d_v, attention_sample* samples,
                                                   int64_t n_samples, int64_t n_team,
                                                   int64_t total) {
    WARPS_EACH_THREAD(thread, n_samples * n_team * 32) {
        const int64_t sample = thread / 32 / n_team, warp = thread / 32 % n_team;
        const int64_t x = attention_choose(sample, n_samples, total), g = x % o.at_k.h;
        const int64_t j = x / o.at_k.h % o.at_k.n, b = x / o.at_k.h / o.at_k.n;
        const warps_head k = attention_row(o.k, o.at_k, b, j, g);
        const warps_head v = attention_row(o.v, o.at_k, b, j, g);
        warps_head sum_k = {}, sum_v = {};
        float squares_k = 0, squares_v = 0;
        int64_t begin, end;
        attention_document(o, j, &begin, &end);
        if (!o.begins || end > o.at_q.n) end = o.at_q.n;
        if (o.window && j - o.ahead + o.window < end) end = j - o.ahead + o.window;
        for (int64_t h = g * o.group; h < (g + 1) * o.group; h++)
            for (int64_t i = (j > o.ahead ? j - o.ahead : 0) + warp; i < end; i += n_team) {
                const warps_head q = attention_row(o.q, o.at_q, b, i, h);
                const warps_head d_out = attention_row(o.d_out, o.at_d_out, b, i, h);
                const float delta = warps_dot(d_out, attention_row(o.out, o.at_out, b, i, h));
                const float p = expf(o.scale * warps_dot(q, k) - attention_stat(o, b, h, i));
                const float dp = warps_dot(d_out, v);
                const float size = o.scale * p * (fabsf(dp) + fabsf(delta));
                warps_add(&sum_k, o.scale * p * (dp - delta), q);
                warps_add(&sum_v, p, d_out);
                squares_k += size * size * warps_dot(q, q);
                squares_v += p * p * warps_dot(d_out, d_out);
            }
        attention_part* part = &samples[sample].parts[warp];
        attention_write(part->sum[0], sum_k);
        attention_write(part->sum[1], sum_v);
        part->squares[0] = squares_k;
        part->squares[1] = squares_v;
        part->max = part->weight = 0;
        if (warp) continue;
        attention_write(samples[sample].row[0], attention_row(d_k, o.at_d_k, b, j, g));
        attention_write(samples[sample].row[1], attention_row(d_v, o.at_d_k, b, j, g));
    }
}

static inline placed_rows attention_placed(const attention_shape& s, bool is_k,
                                           const attention_rows& rows) {
    const int64_t h = is_k ? s.h_k : s.h_q, n = is_k ? s.n_k : s.n_q, row = h * s.d;
    return {n, h, s.d, rows.row ? rows.row : row, rows.row ? rows.batch : n * row};
}

/* Waits, and fails if a sampled row is off. */
static inline memo_status attention_read_off(const attention_plans* c, const attention_shape& s,
                                             const char* what, int n_rows, int64_t n_samples,
                                             int64_t n_team, cudaStream_t stream,
                                             memo_error* error) {
    double worst = 0;
    if (memo_cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", error))
        return error->status;
    for (int64_t i = 0; i < n_samples * n_rows; i++)
        worst = fmax(worst, attention_off(c->samples[i / n_rows], (int)(i % n_rows), n_team));
    if (worst <= 1) return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_UNSUPPORTED,
        "cuDNN's attention: %s of %lld queries, %lld keys and %lld heads is %.3g "
        "times as far from exact rows as rounding explains; slices of fewer queries, "
        "fewer tokens a rank, another cuDNN, or a program built without CUDNN=, "
        "would work",
        what, (long long)s.n_q, (long long)s.n_k, (long long)s.h_q, worst);
}

/* Of slices, the first, the middle and the last are compared. */
static inline bool attention_is_compared(const attention_plans* c, const attention_shape& s) {
    int64_t n_before = 0, n = 0;
    for (const auto& each : c->prepared) {
        attention_shape other = each.first;
        other.n_k = s.n_k;
        other.k.batch = s.k.batch;
        other.k_result.batch = s.k_result.batch;
        if (other < s || s < other) continue;
        n++;
        n_before += each.first.n_k < s.n_k;
    }
    return n_before == 0 || n_before == n / 2 || n_before == n - 1;
}

/* Runs call number i of a shape, and compares its rows the first time. */
static inline memo_status attention_run_call(const attention_plans* c, const attention_call* call,
                                             int64_t i,
                                             std::unordered_map<int64_t, void*>& addresses,
                                             void* workspace, cudaStream_t stream,
                                             memo_error* error) {
    const attention_shape& s = call->shape;
    const int64_t n_queries = s.b * s.n_q * s.h_q, n_keys = s.b * s.n_k * s.h_k;
    const int64_t n_q = n_queries < ATTENTION_SAMPLES ? n_queries : ATTENTION_SAMPLES;
    const int64_t n_k = n_keys < ATTENTION_SAMPLES ? n_keys : ATTENTION_SAMPLES;
    const int64_t team_q = attention_team(s.n_k), team_k = attention_team(s.n_q);
    auto at = [&](int64_t uid) { return (uint16_t*)addresses[uid]; };
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    attention_operands o;
    if (attention_run(c, call->plan, addresses, workspace, stream, error)) return error->status;
    if (!c->samples || i != call->n_checked || s.d > WARPS_HEAD ||
        !attention_is_compared(c, call->whole))
        return MEMO_STATUS_OK;
    if (memo_cuda_check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing", error))
        return error->status;
    if (capture != cudaStreamCaptureStatusNone) return MEMO_STATUS_OK; /* nothing runs now */

    o.q = at(ATTENTION_Q);
    o.k = at(ATTENTION_K);
    o.v = at(ATTENTION_V);
    o.out = at(ATTENTION_OUT);
    o.d_out = s.is_backward ? at(ATTENTION_D_OUT) : nullptr;
    o.stats = (const float*)addresses[ATTENTION_STATS];
    o.at_q = attention_placed(s, false, s.q);
    o.at_k = attention_placed(s, true, s.k);
    o.at_d_out = attention_placed(s, false, s.d_out);
    o.at_out = attention_placed(s, false, s.q_result);
    o.at_d_k = attention_placed(s, true, s.k_result);
    o.group = s.h_q / s.h_k;
    o.ahead = s.is_causal ? s.n_k - s.n_q : s.n_k;
    o.window = s.window;
    o.begins = s.documents ? (const int64_t*)addresses[ATTENTION_BEGINS] : nullptr;
    o.n_documents = s.documents;
    o.scale = s.scale;
    if (warps_launch(stream, n_q * team_q * 32, error, attention_check_queries_kernel, o,
                     (const uint16_t*)at(s.is_backward ? ATTENTION_D_Q : ATTENTION_OUT), c->samples,
                     n_q, team_q, n_queries) ||
        attention_read_off(c, s, s.is_backward ? "d_q" : "the output", 1, n_q, team_q, stream,
                           error))
        return error->status;
    if (s.is_backward &&
        (warps_launch(stream, n_k * team_k * 32, error, attention_check_keys_kernel, o,
                      (const uint16_t*)at(ATTENTION_D_K), (const uint16_t*)at(ATTENTION_D_V),
                      c->samples, n_k, team_k, n_keys) ||
         attention_read_off(c, s, "d_k or d_v", 2, n_k, team_k, stream, error)))
        return error->status;
    call->n_checked++;
    return MEMO_STATUS_OK;
}

/* ---- the local attention of memo_sp.h -----------------------------------------------------------
 *
 * A zigzag without padding has two kinds of blocks: the rank's own keys, causal by rows, and keys
 * of other ranks, all of them visible.  Without a ring only the first kind exists, for any
 * sharding; a window and packed documents then work, by cuDNN's sliding windows and ragged
 * sequences (cuDNN 9.6).  So do causal slices, whose queries are the last ones of the keys.  Other
 * masks fail with MEMO_STATUS_UNSUPPORTED, unless attention_blocks.otherwise computes them.
 *
 * cuDNN writes bf16.  memo merges and adds in fp32, so each block's result is rounded once.
 * cuDNN's backward reads the output only for the row sums of d_out * output.  row_dots holds these
 * sums for the final output.  The backward therefore receives d_out * row_dots / |d_out|^2 as
 * output, which has the same row sums. */

struct attention_blocks {
    attention_plans* plans;
    bool is_deterministic;
    int64_t documents; /* the most that a mask packs, as prepared; 0: none */
    char* scratch;     /* shared by all blocks, which run one after the other */
    /* Computes the blocks that cuDNN cannot, as exact_attention.h does; zeros: they are refused. */
    memo_attention otherwise;
};

static inline attention_shape attention_block_shape(const memo_attention_block& b, int64_t n_q,
                                                    int64_t n_k, bool is_causal, bool is_backward,
                                                    bool is_deterministic) {
    attention_shape s = {};
    s.b = b.n_batch;
    s.n_q = n_q;
    s.n_k = n_k;
    s.h_q = b.n_q_heads;
    s.h_k = b.n_kv_heads;
    s.d = b.head_size;
    s.q = s.d_out = {b.q_row_stride, b.q_batch_stride};
    s.k = {b.k_row_stride, b.k_batch_stride};
    s.scale = b.scale;
    s.is_causal = is_causal;
    s.is_backward = is_backward;
    s.is_deterministic = is_backward && is_deterministic;
    return s;
}

static inline int64_t attention_count_rows(const memo_run* runs, int32_t n_runs, int64_t* last) {
    int64_t n = 0;
    for (int32_t i = 0; i < n_runs; i++) {
        n += runs[i].count;
        *last = runs[i].start + runs[i].count - 1;
    }
    return n;
}

/* Causal by rows, or whole; else refused. */
static inline memo_status attention_classify(const memo_attention_block* b,
                                             const attention_blocks* c, bool is_backward,
                                             attention_shape* s, memo_error* error) {
    const char* unsupported = nullptr;
    int64_t q_last = 0, k_last = 0;
    const int64_t n_q = attention_count_rows(b->q_runs, b->n_q_runs, &q_last);
    const int64_t n_k = attention_count_rows(b->k_runs, b->n_k_runs, &k_last);
    const int64_t own = b->mask.first_query; /* the first position of queries */
    const int64_t n_keys = b->mask.n_keys ? b->mask.n_keys : own + b->mask.n_tokens;
    const bool is_causal = b->mask.kind == MEMO_MASK_CAUSAL;
    /* The last query sees the last key, and each query before it a key less. */
    const bool is_own =
        own ? b->n_q_runs == 1 && b->n_k_runs == 1 && own + q_last == k_last && n_q <= n_k
            : b->n_q_runs == b->n_k_runs &&
                  !memcmp(b->q_runs, b->k_runs, (size_t)b->n_q_runs * sizeof(memo_run));
    if (b->type != MEMO_TYPE_BF16)
        unsupported = "a type other than bf16";
    else if (b->v_head_size != b->head_size)
        unsupported = "heads of v of another size; pad the smaller ones with zeros";
    else if (b->softcap != 0)
        unsupported = "a softcap; take 0, or a kernel that has it";
    else if (b->mask.window_after || b->mask.key_first)
        unsupported = "a window after, or key_first; take a causal or a full mask";
    else if ((b->mask.window_before || b->mask.document_begins) &&
             !(is_causal && is_own && b->n_q_runs == 1 && !own))
        unsupported = "a window or documents over a ring or in slices; take Ulysses, and a causal "
                      "mask";
    else if (b->mask.document_begins && (b->n_batch > 1 || b->mask.n_documents > c->documents))
        unsupported = "documents of several sequences, or more than were prepared";
    else if (is_causal && n_keys != own + b->mask.n_tokens)
        unsupported = "keys of another length; take a full mask";
    else if (q_last >= b->mask.n_tokens || k_last >= n_keys)
        unsupported =
            "a sharding with padding; take a length that 2 x ring x ulysses divides (without a "
            "ring: ulysses)";
    else if (is_causal && !is_own && k_last > own + b->q_runs[0].start)
        unsupported = "a block that is neither causal by rows nor whole; take the zigzag sharding";
    if (unsupported)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED, "cuDNN's attention does not have %s",
                              unsupported);
    *s = attention_block_shape(*b, n_q, n_k, is_causal && is_own, is_backward, c->is_deterministic);
    s->window = b->mask.window_before;
    s->documents = c->documents;
    return MEMO_STATUS_OK;
}

static inline memo_status attention_block_forward(void* user, memo_stream memo,
                                                  const memo_attention_block* b,
                                                  memo_error* error) {
    const attention_blocks* c = (const attention_blocks*)user;
    const cudaStream_t stream = memo_cuda_stream(memo);
    const attention_call* call = nullptr;
    attention_shape whole;
    if (attention_classify(b, c, false, &whole, error))
        return c->otherwise.forward ? c->otherwise.forward(c->otherwise.user, memo, b, error)
                                    : error->status;
    if (attention_get(c->plans, whole, &call, error)) return error->status;
    const attention_shape& s = call->shape;
    const attention_scratch m = attention_carve(s, c->scratch);
    for (int64_t i = 0; i < call->n_calls; i++) {
        const int64_t q_at = i * s.h_q * s.d, k_at = i * s.h_k * s.d;
        std::unordered_map<int64_t, void*> addresses = {
            {ATTENTION_Q, (uint16_t*)(uintptr_t)b->q + q_at},
            {ATTENTION_K, (uint16_t*)(uintptr_t)b->k + k_at},
            {ATTENTION_V, (uint16_t*)(uintptr_t)b->v + k_at},
            {ATTENTION_OUT, m.out},
            {ATTENTION_STATS, m.stats}};
        if (attention_set_documents(stream, s, b->mask.document_begins, b->mask.n_documents, m,
                                    &addresses, error) ||
            attention_run_call(c->plans, call, i, addresses, m.workspace, stream, error) ||
            attention_put(stream, b->out + q_at, MEMO_TYPE_F32, m.out, s, false,
                          {b->out_row_stride, b->out_batch_stride}, false, error) ||
            attention_turn_lse(stream, b->lse + i * s.h_q, m.stats, s,
                               {b->lse_row_stride, b->lse_batch_stride}, true, error))
            return error->status;
    }
    return MEMO_STATUS_OK;
}

static inline memo_status attention_block_backward(void* user, memo_stream memo,
                                                   const memo_attention_block* b,
                                                   memo_error* error) {
    const attention_blocks* c = (const attention_blocks*)user;
    const cudaStream_t stream = memo_cuda_stream(memo);
    const attention_rows q_rows = {b->q_row_stride, b->q_batch_stride};
    const attention_rows k_rows = {b->k_row_stride, b->k_batch_stride};
    const attention_rows lse_rows = {b->lse_row_stride, b->lse_batch_stride};
    const attention_call* call = nullptr;
    attention_shape whole;
    if (attention_classify(b, c, true, &whole, error))
        return c->otherwise.backward ? c->otherwise.backward(c->otherwise.user, memo, b, error)
                                     : error->status;
    if (attention_get(c->plans, whole, &call, error)) return error->status;
    const attention_shape& s = call->shape;
    const attention_scratch m = attention_carve(s, c->scratch);
    const placed_rows of_d_out = {s.n_q, s.h_q, s.d, q_rows.row, q_rows.batch};
    const placed_rows of_lse = {s.n_q, s.h_q, 1, lse_rows.row, lse_rows.batch};
    const int64_t n_lse = s.b * s.h_q * s.n_q;
    for (int64_t i = 0; i < call->n_calls; i++) {
        const int64_t q_at = i * s.h_q * s.d, k_at = i * s.h_k * s.d;
        const uint16_t* d_out = (const uint16_t*)b->d_out + q_at;
        float* lse = b->lse + i * s.h_q;
        std::unordered_map<int64_t, void*> addresses = {
            {ATTENTION_Q, (uint16_t*)(uintptr_t)b->q + q_at},
            {ATTENTION_K, (uint16_t*)(uintptr_t)b->k + k_at},
            {ATTENTION_V, (uint16_t*)(uintptr_t)b->v + k_at},
            {ATTENTION_OUT, m.out},
            {ATTENTION_STATS, m.stats},
            {ATTENTION_D_OUT, (uint16_t*)(uintptr_t)d_out},
            {ATTENTION_D_Q, m.d_q},
            {ATTENTION_D_K, m.d_k},
            {ATTENTION_D_V, m.d_v}};
        if (attention_set_documents(stream, s, b->mask.document_begins, b->mask.n_documents, m,
                                    &addresses, error) ||
            attention_turn_lse(stream, lse, m.stats, s, lse_rows, false, error) ||
            warps_launch(stream, n_lse * 32, error, attention_out_kernel, m.out, d_out,
                         b->row_dots + i * s.h_q, of_d_out, of_lse, n_lse) ||
            attention_run_call(c->plans, call, i, addresses, m.workspace, stream, error) ||
            attention_put(stream, b->d_q + q_at, MEMO_TYPE_F32, m.d_q, s, false, q_rows, true,
                          error) ||
            attention_put(stream, b->d_k + k_at, MEMO_TYPE_F32, m.d_k, s, true, k_rows, true,
                          error) ||
            attention_put(stream, b->d_v + k_at, MEMO_TYPE_F32, m.d_v, s, true, k_rows, true,
                          error))
            return error->status;
    }
    return MEMO_STATUS_OK;
}

static inline memo_attention attention_over_ranks(attention_blocks* blocks) {
    memo_attention a = {};
    a.forward = attention_block_forward;
    a.backward = attention_block_backward;
    a.user = blocks;
    return a;
}

/* Appends the shapes of a rank's own heads, which query heads that share a key head unevenly
 * divide. */
static inline void attention_shapes_of_heads(const memo_sp_attention_desc& desc,
                                             const memo_ulysses_heads& own, bool is_deterministic,
                                             int64_t window, int64_t documents,
                                             std::vector<attention_shape>* shapes) {
    const int64_t n = desc.sharding.ring_tokens,
                  n_keys = desc.key_sharding.local_tokens ? desc.key_sharding.ring_tokens : n;
    const int32_t group = desc.n_q_heads / desc.n_kv_heads, end = own.first_q + own.n_q;
    const bool has_others = desc.sharding.ring > 1;
    for (int32_t q = own.first_q, next; q < end; q = next) {
        memo_attention_block b = {};
        next = q % group || end - q < group ? (q / group + 1) * group : end / group * group;
        if (next > end) next = end;
        b.n_batch = desc.n_batch > 1 ? desc.n_batch : 1;
        b.n_q_heads = next - q;
        b.n_kv_heads = (next - 1) / group - q / group + 1;
        b.head_size = desc.head_size;
        b.scale = desc.scale != 0 ? desc.scale : (float)(1 / sqrt((double)desc.head_size));
        b.q_row_stride = (int64_t)own.n_q * desc.head_size;
        b.k_row_stride = (int64_t)own.n_kv * desc.head_size;
        b.q_batch_stride = n * b.q_row_stride;
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            auto add = [&](int64_t n_q, int64_t n_k, bool is_causal) {
                b.k_batch_stride = n_k * b.k_row_stride;
                shapes->push_back(attention_block_shape(b, n_q, n_k, is_causal, is_backward != 0,
                                                        is_deterministic));
                shapes->back().window = window;
                shapes->back().documents = documents;
            };
            add(n, n_keys, true);                 /* queries are the last ones of their keys */
            if (has_others) add(n, n / 2, false); /* keys of earlier ranks */
            if (has_others) add(n / 2, n, false); /* of later ones */
        }
    }
}

/* The blocks of a causal mask, of any rank: of a zigzag over a ring, or of whole sequences by
 * heads.  window, documents: of the masks that calls get, 0 for none. */
static inline memo_status attention_shapes_over_ranks(const memo_sp_attention_desc& desc,
                                                      bool is_deterministic, int64_t window,
                                                      int64_t documents,
                                                      std::vector<attention_shape>* shapes,
                                                      memo_error* error) {
    memo_sp_attention_desc of_rank = desc;
    memo_sp_attention_sizes sizes;
    const int32_t n_groups =
        desc.sharding.ulysses > 1 && desc.ulysses_groups > 1 ? desc.ulysses_groups : 1;
    const bool has_ring =
        desc.sharding.ring > 1; /* without one, a rank has all rows of its heads */
    if (desc.type != MEMO_TYPE_BF16 || (has_ring && desc.sharding.kind != MEMO_SHARDING_ZIGZAG) ||
        desc.sharding.padded_tokens != desc.sharding.n_tokens)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention over ranks: takes bf16, and a %s of a length "
                              "that %sulysses divides (%lld tokens)",
                              has_ring ? "zigzag" : "sequence", has_ring ? "2 x ring x " : "",
                              (long long)desc.sharding.n_tokens);
    if (desc.key_sharding.slice_tokens)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention over ranks: takes no slices that ranks share; all "
                              "rows at once would work");
    if ((window || documents) && (has_ring || (documents && desc.n_batch > 1)))
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention over ranks: takes windows and documents of one "
                              "sequence at a time, without a ring; Ulysses works");
    for (int32_t u = 0; u < desc.sharding.ulysses; u++) {
        of_rank.ulysses_rank = u;
        if (memo_sp_attention_desc_get_sizes(&of_rank, &sizes, error)) return error->status;
        if (n_groups > 1 &&
            (sizes.heads.n_kv % n_groups ||
             sizes.heads.n_q != sizes.heads.n_kv * (desc.n_q_heads / desc.n_kv_heads)))
            return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                                  "cuDNN's attention over ranks: %d groups do not divide the %d "
                                  "key heads of a rank evenly; ulysses_groups = 1 would work",
                                  n_groups, sizes.heads.n_kv);
        sizes.heads.n_q /= n_groups;
        sizes.heads.n_kv /= n_groups;
        attention_shapes_of_heads(desc, sizes.heads, is_deterministic, window, documents, shapes);
    }
    return MEMO_STATUS_OK;
}

#endif
