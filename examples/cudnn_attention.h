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
    int32_t* lengths;                /* (2, documents): of queries; of keys */
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
        m.lengths = (int32_t*)(void*)take(2 * s.documents * 4);
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
/* The rows that packed sequences have; the others stay as they are.  n 0: all rows. */
struct attention_ranges {
    const int64_t* begins; /* (n + 1), not descending */
    const int32_t* counts;
    int64_t n;
};
/* The sequence of a row; -1: none. */
__device__ static inline int64_t attention_sequence(const attention_ranges& r, int64_t row) {
    int64_t first = 0, last = r.n; /* the last one that begins there or before */
    while (first < last) {
        const int64_t middle = (first + last) / 2;
        if (r.begins[middle] <= row)
            first = middle + 1;
        else
            last = middle;
    }
    return first && row - r.begins[first - 1] < r.counts[first - 1] ? first - 1 : -1;
}
__device__ static inline bool attention_has(const attention_ranges& r, int64_t row) {
    return !r.n || attention_sequence(r, row) >= 0;
}
static inline attention_ranges attention_ranges_of(const attention_shape& s,
                                                   const attention_scratch& m, bool is_k) {
    const int64_t of_rows = (is_k ? ATTENTION_ROWS_K : ATTENTION_ROWS_Q) - ATTENTION_BEGINS_Q;
    return {m.begins + of_rows * (s.documents + 1), m.lengths + is_k * s.documents, s.documents};
}
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
                                            placed_rows r, attention_ranges ranges, int64_t n_rows,
                                            bool adds) {
    const int in_row = (int)(r.h * r.d), lane = (int)(threadIdx.x % 32) * ATTENTION_PUT;
    WARPS_EACH_THREAD(thread, n_rows * 32) {
        const int64_t i = thread / 32, base = i / r.n * r.batch + i % r.n * r.row;
        if (!attention_has(ranges, i)) continue;
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
__global__ static void attention_lse_kernel(float* lse, float* stats, placed_rows r,
                                            attention_ranges ranges, int64_t total,
                                            bool is_to_rows) {
    WARPS_EACH_THREAD(x, total) {
        if (!attention_has(ranges, x / r.h)) continue;
        float* at = ranges.n ? lse + x / r.h * r.row + x % r.h
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
                                            attention_ranges ranges, int64_t total) {
    WARPS_EACH_THREAD(thread, total * 32) {
        const int64_t x = thread / 32, i = x / r.h;
        if (!attention_has(ranges, i)) continue;
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
                                        const uint16_t* from, const attention_shape& s,
                                        const attention_scratch& m, bool is_k, attention_rows rows,
                                        bool adds, memo_error* error) {
    const placed_rows r = {is_k ? s.n_k : s.n_q, is_k ? s.h_k : s.h_q, s.d, rows.row, rows.batch};
    if (((uintptr_t)to | (uintptr_t)(rows.row * 2) | (uintptr_t)(rows.batch * 2)) % 16)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "cuDNN's attention: rows at %p with strides of %lld and %lld elements; "
            "multiples of 16 bytes would work",
            to, (long long)rows.row, (long long)rows.batch);
    return warps_launch(stream, s.b * r.n * 32, error, attention_put_kernel, to, type, from, r,
                        attention_ranges_of(s, m, is_k), s.b * r.n, adds);
}
static inline memo_status attention_turn_lse(cudaStream_t stream, float* lse,
                                             const attention_shape& s, const attention_scratch& m,
                                             attention_rows rows, bool is_to_rows,
                                             memo_error* error) {
    const placed_rows r = {s.n_q, s.h_q, 1, rows.row, rows.batch};
    const int64_t total = s.b * s.h_q * s.n_q;
    return warps_launch(stream, total, error, attention_lse_kernel, lse, m.stats, r,
                        attention_ranges_of(s, m, false), total, is_to_rows);
}

/* The sequences that a call packs, in device memory: documents, whose keys are their own, or those
 * of a launch. */
struct attention_packed {
    const int64_t* documents; /* begins, as many as the graph has, and their end; NULL: a launch */
    const int32_t *q_begins, *q_counts, *k_begins, *k_counts; /* of n sequences; others are empty */
    int64_t n, n_all;
    int64_t rows[ATTENTION_N_BEGINS]; /* elements */
};
__global__ static void attention_packed_kernel(attention_packed p, int64_t* begins,
                                               int32_t* lengths) {
    WARPS_EACH_THREAD(i, p.n_all + 1) {
        const int64_t k = p.documents || i < p.n ? i : p.n; /* behind the last one: its end */
        const int64_t q_begin = p.documents ? p.documents[k] : p.q_begins[k];
        const int64_t k_begin = p.documents ? q_begin : p.k_begins[k];
        for (int x = 0; x < ATTENTION_N_BEGINS; x++) {
            const int uid = ATTENTION_BEGINS_Q + x;
            const bool is_k =
                uid == ATTENTION_BEGINS_K || uid == ATTENTION_BEGINS_D_K || uid == ATTENTION_ROWS_K;
            begins[x * (p.n_all + 1) + i] = (is_k ? k_begin : q_begin) * p.rows[x];
        }
        if (i == p.n_all) continue;
        int32_t n_q = 0, n_k = 0;
        if (p.documents)
            n_q = n_k = (int32_t)(p.documents[i + 1] - p.documents[i]);
        else if (i < p.n) {
            n_q = p.q_counts[i];
            n_k = p.k_counts[i];
        }
        lengths[i] = n_q;
        lengths[p.n_all + i] = n_k;
    }
}

/* Sets what a call packs: s.documents documents, or the sequences of a launch. */
static inline memo_status attention_set_packed(cudaStream_t stream, const attention_shape& s,
                                               const int64_t* documents, const memo_launch* launch,
                                               const attention_scratch& m,
                                               std::unordered_map<int64_t, void*>* addresses,
                                               memo_error* error) {
    attention_packed p = {documents,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr,
                          0,
                          s.documents,
                          {s.q.row, s.k.row, s.q_result.row ? s.q_result.row : s.h_q * s.d,
                           s.k_result.row ? s.k_result.row : s.h_k * s.d, s.h_q, 1, 1}};
    if (!s.documents) return MEMO_STATUS_OK;
    if (launch) {
        p.q_begins = launch->q_begins;
        p.q_counts = launch->q_counts;
        p.k_begins = launch->k_begins;
        p.k_counts = launch->k_counts;
        p.n = launch->n;
    }
    if (warps_launch(stream, p.n_all + 1, error, attention_packed_kernel, p, m.begins, m.lengths))
        return error->status;
    (*addresses)[ATTENTION_LENGTHS_Q] = m.lengths;
    (*addresses)[ATTENTION_LENGTHS_K] = m.lengths + s.documents;
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
    int64_t group, window;                            /* a query sees as many keys; 0: all */
    bool is_causal;
    attention_ranges of_q, of_k; /* of packed sequences */
    float scale;
};
/* A sequence: its queries and its keys, rows. */
struct attention_rectangle {
    int64_t q_begin, q_end, k_begin, k_end;
};
/* That of a row of queries or keys; empty: none. */
__device__ static inline attention_rectangle attention_rectangle_of(const attention_operands& o,
                                                                    int64_t row, bool is_k) {
    attention_rectangle at = {0, o.at_q.n, 0, o.at_k.n};
    if (!o.of_q.n) return at;
    const int64_t s = attention_sequence(is_k ? o.of_k : o.of_q, row);
    if (s < 0) return {0, 0, 0, 0};
    at.q_begin = o.of_q.begins[s];
    at.q_end = at.q_begin + o.of_q.counts[s];
    at.k_begin = o.of_k.begins[s];
    at.k_end = at.k_begin + o.of_k.counts[s];
    return at;
}
/* By how many rows the last key that a query sees is behind the query. */
__device__ static inline int64_t attention_ahead(const attention_rectangle& r) {
    return r.k_end - r.q_end;
}
__device__ static inline float attention_stat(const attention_operands& o, int64_t b, int64_t h,
                                              int64_t i) {
    return o.stats[o.of_q.n ? i * o.at_q.h + h : (b * o.at_q.h + h) * o.at_q.n + i];
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
        const attention_rectangle r = attention_rectangle_of(o, i, false);
        const int64_t n_keys = o.is_causal && r.k_end ? i + attention_ahead(r) + 1 : r.k_end;
        const int64_t least = o.window ? n_keys - o.window : 0;
        const int64_t first = least > r.k_begin ? least : r.k_begin;
        const bool is_there = r.q_begin < r.q_end; /* else the result holds anything */
        const warps_head q = attention_row(o.q, o.at_q, b, i, h);
        warps_head d_out = {}, sum = {};
        float max = -INFINITY, weight = 0, squares = 0, delta = 0;
        if (o.d_out && is_there) {
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
            attention_write(samples[sample].row[0],
                            is_there ? attention_row(result, o.at_out, b, i, h) : warps_head{});
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
        const attention_rectangle r = attention_rectangle_of(o, j, true);
        const bool is_there = r.k_begin < r.k_end;
        warps_head k = {}, v = {}, sum_k = {}, sum_v = {};
        float squares_k = 0, squares_v = 0;
        int64_t begin = r.q_begin, end = r.q_end;
        const int64_t same = j - attention_ahead(r); /* the query whose last key this is */
        if (o.is_causal && same > begin) begin = same;
        if (o.window && same + o.window < end) end = same + o.window;
        if (is_there) {
            k = attention_row(o.k, o.at_k, b, j, g);
            v = attention_row(o.v, o.at_k, b, j, g);
        }
        for (int64_t h = g * o.group; h < (g + 1) * o.group; h++)
            for (int64_t i = begin + warp; i < end; i += n_team) {
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
        for (int is_v = 0; is_v < 2; is_v++)
            attention_write(samples[sample].row[is_v],
                            is_there ? attention_row(is_v ? d_v : d_k, o.at_d_k, b, j, g)
                                     : warps_head{});
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
    o.is_causal = s.is_causal;
    o.window = s.window;
    for (int is_k = 0; is_k < 2; is_k++) {
        attention_ranges* of = is_k ? &o.of_k : &o.of_q;
        of->begins = (const int64_t*)addresses[is_k ? ATTENTION_ROWS_K : ATTENTION_ROWS_Q];
        of->counts = (const int32_t*)addresses[is_k ? ATTENTION_LENGTHS_K : ATTENTION_LENGTHS_Q];
        of->n = s.documents;
    }
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
 * A launch of one sequence, causal or whole, is a dense call if its shape was prepared: the blocks
 * of a zigzag without padding have two such shapes, and without a ring there is one.  Any other
 * launch is a call of ragged tensors (cuDNN 9.6, below Hopper 9.18.1), whose graph has room for
 * more sequences; those that it lacks are empty, which takes cuDNN 9.25.  A launch with another
 * window than was prepared, with more sequences, or before 9.25 with fewer, fails with
 * MEMO_STATUS_UNSUPPORTED, unless attention_blocks.otherwise computes it.
 *
 * cuDNN writes bf16.  memo merges and adds in fp32, so each block's result is rounded once.
 * cuDNN's backward reads the output only for the row sums of d_out * output.  row_dots holds these
 * sums for the final output.  The backward therefore receives d_out * row_dots / |d_out|^2 as
 * output, which has the same row sums. */

struct attention_blocks {
    attention_plans* plans;
    bool is_deterministic;
    char* scratch; /* shared by all blocks, which run one after the other */
    /* Computes what cuDNN cannot, as exact_attention.h does; zeros: it is refused. */
    memo_attention otherwise;
};

/* Of a block's heads. */
static inline attention_shape attention_block_shape(const memo_attention_block& b, bool is_backward,
                                                    bool is_deterministic) {
    attention_shape s = {};
    s.b = b.n_batch;
    s.h_q = b.n_q_heads;
    s.h_k = b.n_kv_heads;
    s.d = b.head_size;
    s.q = s.d_out = {b.q_row_stride, b.q_batch_stride};
    s.k = {b.k_row_stride, b.k_batch_stride};
    s.scale = b.scale;
    s.is_backward = is_backward;
    s.is_deterministic = is_backward && is_deterministic;
    return s;
}

/* Of packed sequences of one sequence of the batch: rows of a rank. */
static inline void attention_pack_shape(attention_shape* s, int64_t n_q, int64_t n_k,
                                        int64_t documents) {
    s->b = 1;
    s->n_q = n_q;
    s->n_k = n_k;
    s->q.batch = s->d_out.batch = n_q * s->q.row;
    s->k.batch = n_k * s->k.row;
    s->documents = documents;
    s->ends_late = s->is_causal;
}

static inline int64_t attention_count_rows(const memo_run* runs, int32_t n_runs) {
    int64_t n = 0;
    for (int32_t i = 0; i < n_runs; i++) n += runs[i].count;
    return n;
}

/* Before 9.25 results of empty sequences, and of others beside them, are NaN: a graph then takes as
 * many sequences as it has room for. */
static inline bool attention_takes_empty() { return cudnnGetVersion() >= 92500; }

/* The prepared shape for a launch, dense or with as few sequences as possible; NULL: none. */
static inline const attention_call* attention_choose_call(const attention_blocks* c,
                                                          const memo_attention_block& b,
                                                          const memo_launch& l, bool is_backward) {
    attention_shape s = attention_block_shape(b, is_backward, c->is_deterministic);
    const int64_t n_q = attention_count_rows(b.q_runs, b.n_q_runs);
    const int64_t n_k = attention_count_rows(b.k_runs, b.n_k_runs);
    const attention_call* best = nullptr;
    if (l.from_top || l.right > 0 || (l.right < 0 && l.left >= 0)) return nullptr;
    s.is_causal = l.right == 0 || l.max_q == 1; /* a single query sees the last key */
    s.window = l.left >= 0 && l.left + 1 < l.max_k ? l.left + 1 : 0;

    s.n_q = l.max_q;
    s.n_k = l.max_k;
    const auto dense = c->plans->prepared.find(s);
    if (l.n == 1 && dense != c->plans->prepared.end()) return &dense->second;
    for (const auto& each : c->plans->prepared) {
        const attention_shape& of = each.first;
        attention_shape packed = s;
        attention_pack_shape(&packed, of.n_q, of.n_k, of.documents);
        if (packed < of || of < packed || of.documents < l.n || of.n_q < n_q || of.n_k < n_k)
            continue;
        if (of.documents > l.n && !attention_takes_empty()) continue;
        if (!best || of.documents < best->whole.documents) best = &each.second;
    }
    return best;
}

/* What cuDNN does not have at all; NULL: it may have a block. */
static inline const char* attention_lacks(const memo_attention_block& b) {
    if (b.type != MEMO_TYPE_BF16) return "a type other than bf16";
    if (b.v_head_size != b.head_size)
        return "heads of v of another size; pad the smaller ones with zeros";
    if (b.softcap != 0) return "a softcap; take 0, or a kernel that has it";
    return nullptr;
}

/* What the other attention gets of a block: a launch. */
static inline memo_status attention_compute_otherwise(const attention_blocks* c, memo_stream memo,
                                                      const memo_attention_block* b,
                                                      const memo_launch& l, bool is_backward,
                                                      memo_error* error) {
    const memo_attention_function function =
        is_backward ? c->otherwise.backward : c->otherwise.forward;
    const char* lacks = attention_lacks(*b);
    memo_attention_block part = *b;
    part.segments = {};
    part.segments.n = l.n_segments;
    part.segments.host = l.segments;
    if (function) return function(c->otherwise.user, memo, &part, error);
    if (!lacks && !attention_takes_empty())
        lacks =
            "a call for this mask, as prepared, and before 9.25 none with fewer sequences; take "
            "cuDNN 9.25 or attention_blocks.otherwise";
    if (!lacks) lacks = "a call for this mask, as prepared; take attention_blocks.otherwise";
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "cuDNN's attention does not have %s (%d sequences, left %d, right %d)",
                          lacks, (int)l.n, (int)l.left, (int)l.right);
}

/* Where the rows of a call begin. */
struct attention_origin {
    int64_t q, k, lse; /* elements */
};

static inline memo_status attention_run_forward(const attention_blocks* c, cudaStream_t stream,
                                                const memo_attention_block* b, const memo_launch& l,
                                                const attention_call* call, attention_origin at,
                                                memo_error* error) {
    const attention_shape& s = call->shape;
    const attention_scratch m = attention_carve(s, c->scratch);
    for (int64_t i = 0; i < call->n_calls; i++) {
        const int64_t q_at = at.q + i * s.h_q * s.d, k_at = at.k + i * s.h_k * s.d;
        std::unordered_map<int64_t, void*> addresses = {
            {ATTENTION_Q, (uint16_t*)(uintptr_t)b->q + q_at},
            {ATTENTION_K, (uint16_t*)(uintptr_t)b->k + k_at},
            {ATTENTION_V, (uint16_t*)(uintptr_t)b->v + k_at},
            {ATTENTION_OUT, m.out},
            {ATTENTION_STATS, m.stats}};
        if (attention_set_packed(stream, s, nullptr, &l, m, &addresses, error) ||
            attention_run_call(c->plans, call, i, addresses, m.workspace, stream, error) ||
            attention_put(stream, b->out + q_at, MEMO_TYPE_F32, m.out, s, m, false,
                          {b->out_row_stride, b->out_batch_stride}, false, error) ||
            attention_turn_lse(stream, b->lse + at.lse + i * s.h_q, s, m,
                               {b->lse_row_stride, b->lse_batch_stride}, true, error))
            return error->status;
    }
    return MEMO_STATUS_OK;
}

static inline memo_status attention_run_backward(const attention_blocks* c, cudaStream_t stream,
                                                 const memo_attention_block* b,
                                                 const memo_launch& l, const attention_call* call,
                                                 attention_origin at, memo_error* error) {
    const attention_rows q_rows = {b->q_row_stride, b->q_batch_stride};
    const attention_rows k_rows = {b->k_row_stride, b->k_batch_stride};
    const attention_rows lse_rows = {b->lse_row_stride, b->lse_batch_stride};
    const attention_shape& s = call->shape;
    const attention_scratch m = attention_carve(s, c->scratch);
    const placed_rows of_d_out = {s.n_q, s.h_q, s.d, q_rows.row, q_rows.batch};
    const placed_rows of_lse = {s.n_q, s.h_q, 1, lse_rows.row, lse_rows.batch};
    const int64_t n_lse = s.b * s.h_q * s.n_q;
    for (int64_t i = 0; i < call->n_calls; i++) {
        const int64_t q_at = at.q + i * s.h_q * s.d, k_at = at.k + i * s.h_k * s.d;
        const uint16_t* d_out = (const uint16_t*)b->d_out + q_at;
        float* lse = b->lse + at.lse + i * s.h_q;
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
        if (attention_set_packed(stream, s, nullptr, &l, m, &addresses, error) ||
            attention_turn_lse(stream, lse, s, m, lse_rows, false, error) ||
            warps_launch(stream, n_lse * 32, error, attention_out_kernel, m.out, d_out,
                         b->row_dots + at.lse + i * s.h_q, of_d_out, of_lse,
                         attention_ranges_of(s, m, false), n_lse) ||
            attention_run_call(c->plans, call, i, addresses, m.workspace, stream, error) ||
            attention_put(stream, b->d_q + q_at, MEMO_TYPE_F32, m.d_q, s, m, false, q_rows, true,
                          error) ||
            attention_put(stream, b->d_k + k_at, MEMO_TYPE_F32, m.d_k, s, m, true, k_rows, true,
                          error) ||
            attention_put(stream, b->d_v + k_at, MEMO_TYPE_F32, m.d_v, s, m, true, k_rows, true,
                          error))
            return error->status;
    }
    return MEMO_STATUS_OK;
}

/* Each launch of a block.  Sequences of a batch have the same segments: a dense call has all of
 * them, a ragged one has one. */
static inline memo_status attention_run_block(void* user, memo_stream memo,
                                              const memo_attention_block* b, bool is_backward,
                                              memo_error* error) {
    const attention_blocks* c = (const attention_blocks*)user;
    const cudaStream_t stream = memo_cuda_stream(memo);
    for (int32_t i = 0; i < b->segments.n_launches; i++) {
        const memo_launch& l = b->segments.launches[i];
        const attention_call* call =
            attention_lacks(*b) ? nullptr : attention_choose_call(c, *b, l, is_backward);
        if (!call && attention_compute_otherwise(c, memo, b, l, is_backward, error))
            return error->status;
        for (int64_t k = 0; call && k < (call->whole.documents ? b->n_batch : 1); k++) {
            const memo_segment& first = *l.segments;
            attention_origin at = {k * b->q_batch_stride, k * b->k_batch_stride,
                                   k * b->lse_batch_stride};
            if (!call->whole.documents)
                at = {first.q_begin * b->q_row_stride, first.k_begin * b->k_row_stride,
                      first.q_begin * b->lse_row_stride};
            if ((is_backward ? attention_run_backward : attention_run_forward)(c, stream, b, l,
                                                                               call, at, error))
                return error->status;
        }
    }
    return MEMO_STATUS_OK;
}

static inline memo_status attention_block_forward(void* user, memo_stream memo,
                                                  const memo_attention_block* b,
                                                  memo_error* error) {
    return attention_run_block(user, memo, b, false, error);
}
static inline memo_status attention_block_backward(void* user, memo_stream memo,
                                                   const memo_attention_block* b,
                                                   memo_error* error) {
    return attention_run_block(user, memo, b, true, error);
}

static inline memo_attention attention_over_ranks(attention_blocks* blocks) {
    memo_attention a = {};
    a.forward = attention_block_forward;
    a.backward = attention_block_backward;
    a.user = blocks;
    a.launches = MEMO_LAUNCHES_RAGGED;
    return a;
}

/* The blocks of a rank: n_q rows of queries, n_k of keys. */
struct attention_block_rows {
    int64_t n_q, n_k;
    bool is_causal;
    int64_t window, documents; /* 0: dense */
};

/* Appends the shapes of a rank's own heads, which query heads that share a key head unevenly
 * divide. */
static inline void attention_shapes_of_heads(const memo_sp_attention_desc& desc,
                                             const memo_ulysses_heads& own, bool is_deterministic,
                                             const std::vector<attention_block_rows>& blocks,
                                             std::vector<attention_shape>* shapes) {
    const int32_t group = desc.n_q_heads / desc.n_kv_heads, end = own.first_q + own.n_q;
    for (int32_t q = own.first_q, next; q < end; q = next) {
        memo_attention_block b = {};
        next = q % group || end - q < group ? (q / group + 1) * group : end / group * group;
        if (next > end) next = end;
        b.n_batch = desc.n_batch > 1 && desc.n_masks <= 1 ? desc.n_batch : 1;
        b.n_q_heads = next - q;
        b.n_kv_heads = (next - 1) / group - q / group + 1;
        b.head_size = desc.head_size;
        b.scale = desc.scale != 0 ? desc.scale : (float)(1 / sqrt((double)desc.head_size));
        b.q_row_stride = (int64_t)own.n_q * desc.head_size;
        b.k_row_stride = (int64_t)own.n_kv * desc.head_size;
        b.q_batch_stride = desc.sharding.ring_tokens * b.q_row_stride;
        for (const attention_block_rows& rows : blocks)
            for (int is_backward = 0; is_backward < 2; is_backward++) {
                b.k_batch_stride = rows.n_k * b.k_row_stride;
                attention_shape s = attention_block_shape(b, is_backward != 0, is_deterministic);
                s.n_q = rows.n_q;
                s.n_k = rows.n_k;
                s.is_causal = rows.is_causal;
                s.window = rows.window;
                if (rows.documents) attention_pack_shape(&s, rows.n_q, rows.n_k, rows.documents);
                shapes->push_back(s);
            }
    }
}

/* The calls of any rank: dense ones of a causal mask over a zigzag without padding, or of whole
 * sequences by heads; otherwise ragged ones.  window, documents: of the masks that calls get, 0 for
 * none. */
static inline std::vector<attention_block_rows>
attention_blocks_of(const memo_sp_attention_desc& desc, int64_t window, int64_t documents) {
    const memo_sharding& sharding = desc.sharding;
    const int64_t n = sharding.ring_tokens,
                  n_keys = desc.key_sharding.local_tokens ? desc.key_sharding.ring_tokens : n;
    const bool has_ring = sharding.ring > 1; /* without one, a rank has all rows of its heads */
    const int64_t most = cudnn_most_sequences(sharding.ring, documents);
    if (window >= n_keys) window = 0; /* cuts nothing */
    if (!documents && !(has_ring && window) && !desc.key_sharding.slice_tokens &&
        sharding.padded_tokens == sharding.n_tokens &&
        (!has_ring || sharding.kind == MEMO_SHARDING_ZIGZAG)) {
        std::vector<attention_block_rows> dense = {{n, n_keys, true, window, 0}};
        if (has_ring) dense.push_back({n, n / 2, false, 0, 0}); /* keys of earlier ranks */
        if (has_ring) dense.push_back({n / 2, n, false, 0, 0}); /* of later ones */
        return dense;
    }
    std::vector<attention_block_rows> ragged = {{n, n_keys, true, 0, most}};
    if (has_ring) ragged.push_back({n, n_keys, false, 0, most});
    if (window) ragged.push_back({n, n_keys, true, window, most});
    return ragged;
}

static inline memo_status attention_shapes_over_ranks(const memo_sp_attention_desc& desc,
                                                      bool is_deterministic, int64_t window,
                                                      int64_t documents,
                                                      std::vector<attention_shape>* shapes,
                                                      memo_error* error) {
    const std::vector<attention_block_rows> blocks = attention_blocks_of(desc, window, documents);
    memo_sp_attention_desc of_rank = desc;
    memo_sp_attention_sizes sizes;
    const int32_t n_groups =
        desc.sharding.ulysses > 1 && desc.ulysses_groups > 1 ? desc.ulysses_groups : 1;
    if (desc.type != MEMO_TYPE_BF16)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention over ranks: takes bf16 only (%s)",
                              memo_type_name(desc.type));
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
        attention_shapes_of_heads(desc, sizes.heads, is_deterministic, blocks, shapes);
    }
    return MEMO_STATUS_OK;
}

#endif
