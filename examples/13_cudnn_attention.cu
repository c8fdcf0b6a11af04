/* 13_cudnn_attention.cu - uses cuDNN's attention as the local attention of memo_sp.h: bf16, causal and full blocks.
 *
 * A zigzag without padding, window, prefix or documents has two kinds of blocks: the rank's own keys, causal by rows, and keys of
 * other ranks, all of them visible.  Other masks fail with MEMO_STATUS_UNSUPPORTED.  The first use of a shape builds a
 * graph of cuDNN (a ring has three shapes, forward and backward), so the first step allocates.
 *
 * cuDNN writes bf16.  memo merges and adds in fp32, so each block's result is rounded once.  cuDNN's backward reads the
 * output only for the row sums of d_out * output.  row_dots holds these sums for the final output.  The backward
 * therefore receives d_out * row_dots / |d_out|^2 as output, which has the same row sums.
 *
 * On Hopper cuDNN's backward sums d_q in no fixed order: bits differ between runs.  attention_shape.is_deterministic
 * fixes it with a workspace that grows with the square of the length.
 *
 * This program has one rank and compares its attention with a plain loop on the host.  It has not run yet.
 *
 * Build (CUDNN is the folder of cudnn-frontend, headers only: github.com/NVIDIA/cudnn-frontend; make test-cuda
 * CUDNN=... compiles it too, which takes minutes):
 *     nvcc -arch=native -std=c++17 -I. -I$CUDNN/include examples/13_cudnn_attention.cu -lcudnn -lnvrtc \
 *         -o 13_cudnn_attention
 * Expected output:
 *     relative errors: out 0.00..., d_q 0.00..., d_k 0.00..., d_v 0.00...; a window is refused
 */
#define MEMO_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"

#include "cudnn_attention.h"

#include <cuda_bf16.h>
#include <vector>

using bf16 = __nv_bfloat16;

struct cudnn_attention {
    attention_plans plans;
    std::vector<void*> scratch; /* cudaMalloc */
    std::vector<int64_t> scratch_bytes;
};

/* Buffer i, of at least n_bytes.  A smaller buffer is freed after the device has used it. */
static memo_status take_scratch(cudnn_attention* c, size_t i, int64_t n_bytes, void** address,
                                memo_error* error) {
    if (c->scratch.size() <= i) {
        c->scratch.resize(i + 1, nullptr);
        c->scratch_bytes.resize(i + 1, 0);
    }
    if (c->scratch_bytes[i] < n_bytes) {
        cudaFree(c->scratch[i]); /* waits */
        c->scratch[i] = nullptr;
        c->scratch_bytes[i] = 0;
        if (memo_cuda_check(cudaMalloc(&c->scratch[i], (size_t)n_bytes), "cudaMalloc", error))
            return error->status;
        c->scratch_bytes[i] = n_bytes;
    }
    *address = c->scratch[i];
    return MEMO_STATUS_OK;
}

/* ---- between cuDNN's layout and memo's ---- */

/* Rows in memo's layout: (b, n, h, d) at b * batch + i * row + h * d. */
struct placed_rows {
    int64_t n, h, d, row, batch;
};
__device__ static int64_t place(const placed_rows& r, int64_t x) { /* x-th of (b, n, h, d) */
    int64_t in_row = r.h * r.d, i = x / in_row;
    return i / r.n * r.batch + i % r.n * r.row + x % in_row;
}

/* to = or += from (b, n, h, d) */
__global__ static void put(float* to, const bf16* from, placed_rows r, int64_t total, bool adds) {
    for (int64_t x = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; x < total;
         x += (int64_t)gridDim.x * blockDim.x) {
        float value = __bfloat162float(from[x]), *at = to + place(r, x);
        *at = adds ? *at + value : value;
    }
}

/* memo's (b, n, h), at b * batch + i * row + h, from or to cuDNN's (b, h, n). */
__global__ static void turn_lse(float* memo, float* cudnn, int64_t n, int64_t h, int64_t row,
                                int64_t batch, int64_t total, bool is_to_memo) {
    int64_t x = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (x >= total) return;
    float* at = memo + x / (n * h) * batch + x % n * row + x / n % h;
    if (is_to_memo)
        *at = cudnn[x];
    else
        cudnn[x] = *at;
}

/* An output (b, n, h, d) whose row sums with d_out are row_dots.  One warp per row and head. */
__global__ static void make_out(bf16* out, const bf16* d_out, const float* row_dots, placed_rows r,
                                int64_t lse_row, int64_t lse_batch, int64_t total) {
    int64_t x = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32, i = x / r.h, e;
    if (x >= total) return;
    const bf16* from = d_out + place(r, x * r.d);
    float dot = row_dots[i / r.n * lse_batch + i % r.n * lse_row + x % r.h], norm = 0;
    for (e = threadIdx.x % 32; e < r.d; e += 32)
        norm += __bfloat162float(from[e]) * __bfloat162float(from[e]);
    for (int k = 16; k; k /= 2) norm += __shfl_xor_sync(0xffffffff, norm, k);
    for (e = threadIdx.x % 32; e < r.d; e += 32)
        out[x * r.d + e] =
            __float2bfloat16(norm > 0 ? __bfloat162float(from[e]) * (dot / norm) : 0);
}

/* ---- the local attention ---- */

static int64_t count_rows(const memo_run* runs, int32_t n_runs, int64_t* last) {
    int64_t n = 0;
    for (int32_t i = 0; i < n_runs; i++) {
        n += runs[i].count;
        *last = runs[i].start + (runs[i].count - 1) * runs[i].stride;
    }
    return n;
}

/* Causal by rows, or whole; else refused. */
static memo_status classify(const memo_attention_block* b, attention_shape* s, memo_error* error) {
    int64_t q_last = 0, k_last = 0;
    s->n_q = count_rows(b->q_runs, b->n_q_runs, &q_last);
    s->n_k = count_rows(b->k_runs, b->n_k_runs, &k_last);
    bool is_own = b->n_q_runs == b->n_k_runs &&
                  !memcmp(b->q_runs, b->k_runs, (size_t)b->n_q_runs * sizeof(memo_run));
    if (b->type != MEMO_TYPE_BF16)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED, "cuDNN's attention: %s, not bf16",
                              memo_type_name(b->type));
    if (b->v_head_size != b->head_size)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "cuDNN's attention: heads of %d for q and k, %d for v; pad the smaller "
            "ones with zeros",
            (int)b->head_size, (int)b->v_head_size);
    if (b->softcap != 0)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention: softcap %g; take 0, or a kernel that has it",
                              (double)b->softcap);
    if (b->mask.window_before || b->mask.window_after || b->mask.prefixes ||
        b->mask.document_begins)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "cuDNN's attention: a window, prefix or documents; take a causal or a full mask");
    if (b->mask.n_keys && b->mask.n_keys != b->mask.n_tokens && b->mask.kind != MEMO_MASK_FULL)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention: keys of another length; take a full mask");
    if (q_last >= b->mask.n_tokens ||
        k_last >= (b->mask.n_keys ? b->mask.n_keys : b->mask.n_tokens))
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "cuDNN's attention: the sharding has padding; take a length that 2 x "
                              "ring x ulysses divides");

    s->is_causal = b->mask.kind == MEMO_MASK_CAUSAL && is_own;
    if (b->mask.kind == MEMO_MASK_CAUSAL && !is_own && k_last > b->q_runs[0].start)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "cuDNN's attention: a block that is neither causal by rows nor whole; "
            "take the zigzag sharding");
    return MEMO_STATUS_OK;
}

static unsigned n_blocks(int64_t n, int64_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

static memo_status run(void* user, memo_stream memo, const memo_attention_block* b,
                       bool is_backward, memo_error* error) {
    cudnn_attention* c = (cudnn_attention*)user;
    cudaStream_t stream = memo_cuda_stream(memo);
    attention_shape s = {};
    const attention_plan* p;
    void *stats, *out, *d_q = nullptr, *d_k = nullptr, *d_v = nullptr, *workspace;

    /* cuDNN's results are contiguous rows. */
    s.b = b->n_batch;
    s.h_q = b->n_q_heads;
    s.h_k = b->n_kv_heads;
    s.d = b->head_size;
    s.scale = b->scale;
    s.is_backward = is_backward;
    if (classify(b, &s, error)) return error->status;
    s.q = s.d_out = {b->q_row_stride, b->q_batch_stride};
    s.k = {b->k_row_stride, b->k_batch_stride};
    s.q_result = {s.h_q * s.d, s.n_q * s.h_q * s.d};
    s.k_result = {s.h_k * s.d, s.n_k * s.h_k * s.d};
    if (attention_find(&c->plans, s, &p, error)) return error->status;

    int64_t n_lse = s.b * s.h_q * s.n_q, total_q = n_lse * s.d, total_k = s.b * s.h_k * s.n_k * s.d;
    if (take_scratch(c, 0, n_lse * 4, &stats, error) ||
        take_scratch(c, 1, total_q * 2, &out, error) ||
        take_scratch(c, 2, p->workspace_bytes + 1, &workspace, error) ||
        (is_backward && (take_scratch(c, 3, total_q * 2, &d_q, error) ||
                         take_scratch(c, 4, total_k * 2, &d_k, error) ||
                         take_scratch(c, 5, total_k * 2, &d_v, error))))
        return error->status;
    placed_rows q_rows = {s.n_q, s.h_q, s.d, s.q.row, s.q.batch};
    placed_rows k_rows = {s.n_k, s.h_k, s.d, s.k.row, s.k.batch};
    std::unordered_map<int64_t, void*> pack = {{ATTENTION_Q, (void*)b->q},
                                               {ATTENTION_K, (void*)b->k},
                                               {ATTENTION_V, (void*)b->v},
                                               {ATTENTION_OUT, out},
                                               {ATTENTION_STATS, stats}};
    if (is_backward) {
        turn_lse<<<n_blocks(n_lse, 256), 256, 0, stream>>>(b->lse, (float*)stats, s.n_q, s.h_q,
                                                           b->lse_row_stride, b->lse_batch_stride,
                                                           n_lse, false);
        make_out<<<n_blocks(n_lse, 8), 256, 0, stream>>>((bf16*)out, (const bf16*)b->d_out,
                                                         b->row_dots, q_rows, b->lse_row_stride,
                                                         b->lse_batch_stride, n_lse);
        pack.insert({{ATTENTION_D_OUT, (void*)b->d_out},
                     {ATTENTION_D_Q, d_q},
                     {ATTENTION_D_K, d_k},
                     {ATTENTION_D_V, d_v}});
    }
    if (attention_run(&c->plans, p, pack, workspace, stream, error)) return error->status;
    if (is_backward) {
        put<<<1024, 256, 0, stream>>>(b->d_q, (const bf16*)d_q, q_rows, total_q, true);
        put<<<1024, 256, 0, stream>>>(b->d_k, (const bf16*)d_k, k_rows, total_k, true);
        put<<<1024, 256, 0, stream>>>(b->d_v, (const bf16*)d_v, k_rows, total_k, true);
    } else {
        put<<<1024, 256, 0, stream>>>(b->out, (const bf16*)out, q_rows, total_q, false);
        turn_lse<<<n_blocks(n_lse, 256), 256, 0, stream>>>(b->lse, (float*)stats, s.n_q, s.h_q,
                                                           b->lse_row_stride, b->lse_batch_stride,
                                                           n_lse, true);
    }
    return memo_cuda_check(cudaGetLastError(), "kernels around cuDNN", error);
}

static memo_status forward(void* user, memo_stream stream, const memo_attention_block* block,
                           memo_error* error) {
    return run(user, stream, block, false, error);
}
static memo_status backward(void* user, memo_stream stream, const memo_attention_block* block,
                            memo_error* error) {
    return run(user, stream, block, true, error);
}

/* ---- one rank, checked ---- */

enum { N = 256, H_Q = 4, H_K = 2, D = 64 };

/* Output and gradients of the whole sequence in double; all (N, heads, D). */
static void reference(const std::vector<bf16>* in, std::vector<double>* to) {
    auto at = [&](int t, int i, int h, int e) {
        return (double)__bfloat162float(
            in[t][(size_t)((i * (t == 1 || t == 2 ? H_K : H_Q) + h) * D + e)]);
    };
    for (int t = 0; t < 4; t++) to[t].assign((size_t)(N * (t < 2 ? H_Q : H_K) * D), 0);

    for (int h = 0; h < H_Q; h++)
        for (int i = 0; i < N; i++) {
            int g = h / (H_Q / H_K);
            std::vector<double> p((size_t)i + 1);
            double sum = 0, dot = 0;
            for (int j = 0; j <= i; j++) {
                double score = 0;

                for (int e = 0; e < D; e++) score += at(0, i, h, e) * at(1, j, g, e);
                sum += p[(size_t)j] = exp(score / 8);
            }

            /* The gradients of row i. */
            for (int j = 0; j <= i; j++) {
                p[(size_t)j] /= sum;
                for (int e = 0; e < D; e++)
                    to[0][(size_t)((i * H_Q + h) * D + e)] += p[(size_t)j] * at(2, j, g, e);
            }
            for (int e = 0; e < D; e++)
                dot += to[0][(size_t)((i * H_Q + h) * D + e)] * at(3, i, h, e);
            for (int j = 0; j <= i; j++) {
                double d_p = 0;
                for (int e = 0; e < D; e++) d_p += at(3, i, h, e) * at(2, j, g, e);
                double d_s = p[(size_t)j] * (d_p - dot) / 8;
                for (int e = 0; e < D; e++) {
                    to[1][(size_t)((i * H_Q + h) * D + e)] += d_s * at(1, j, g, e);
                    to[2][(size_t)((j * H_K + g) * D + e)] += d_s * at(0, i, h, e);
                    to[3][(size_t)((j * H_K + g) * D + e)] += p[(size_t)j] * at(3, i, h, e);
                }
            }
        }
}

static memo_status check(memo_device* device, cudnn_attention* c, memo_error* error) {
    memo_sharding_desc sharding = memo_sharding_desc_default();
    memo_sp_attention_desc desc = memo_sp_attention_desc_default();
    memo_sp_attention_tensors t = {};
    memo_mask mask = memo_mask_default();
    memo_sp_attention* attention = NULL;
    std::vector<bf16> in[4]; /* q, k, v, d_out */
    std::vector<double> expected[4];
    bf16* rows[8]; /* q, k, v, d_out, out, d_q, d_k, d_v; managed memory */
    float* lse;
    double worst[4];

    sharding.n_tokens = N;
    desc.device = device;
    desc.n_q_heads = H_Q;
    desc.n_kv_heads = H_K;
    desc.head_size = D;
    desc.type = MEMO_TYPE_BF16;
    desc.attention.forward = forward;
    desc.attention.backward = backward;
    desc.attention.user = c;

    /* Inputs of an obvious pattern, for cuDNN and for the reference. */
    for (int i = 0; i < 8; i++)
        if (memo_cuda_check(cudaMallocManaged(&rows[i], N * H_Q * D * sizeof(bf16)), "rows", error))
            return error->status;
    if (memo_cuda_check(cudaMallocManaged(&lse, N * H_Q * sizeof(float)), "lse", error))
        return error->status;
    for (int i = 0; i < 4; i++)
        for (int x = 0; x < N * (i == 1 || i == 2 ? H_K : H_Q) * D; x++) {
            in[i].push_back(__float2bfloat16((float)((x * 7919ll + i * 104729) % 2003) / 1001 - 1));
            rows[i][x] = in[i].back();
        }
    reference(in, expected);

    t.q = rows[0];
    t.k = rows[1];
    t.v = rows[2];
    t.d_out = rows[3];
    t.out = rows[4];
    t.d_q = rows[5];
    t.d_k = rows[6];
    t.d_v = rows[7];
    t.lse = lse;
    if (memo_sharding_make(&sharding, &desc.sharding, error) ||
        memo_stream_create(device, "compute", 0, &desc.stream, error) ||
        memo_sp_attention_create(&desc, &attention, error) ||
        memo_sp_attention_forward(attention, &t, &mask, error) ||
        memo_sp_attention_backward(attention, &t, &mask, error) ||
        memo_stream_synchronize(device, desc.stream, error))
        return error->status;

    /* Relative errors in the Frobenius norm. */
    for (int i = 0; i < 4; i++) {
        double off = 0, norm = 0;
        for (size_t x = 0; x < expected[i].size(); x++) {
            double e = expected[i][x], d = (double)__bfloat162float(rows[4 + i][x]) - e;
            off += d * d;
            norm += e * e;
        }
        worst[i] = sqrt(off / norm);
        if (!(worst[i] < 0.01))
            return memo_error_set(error, MEMO_STATUS_DEVICE, "tensor %d is off by %g", i, worst[i]);
    }

    /* cuDNN's blocks have no window: the attention must refuse it. */
    mask.window_before = 5;
    bool is_refused =
        memo_sp_attention_forward(attention, &t, &mask, error) == MEMO_STATUS_UNSUPPORTED;
    printf("relative errors: out %.4f, d_q %.4f, d_k %.4f, d_v %.4f; a window is %s\n", worst[0],
           worst[1], worst[2], worst[3], is_refused ? "refused" : "NOT refused");
    memo_sp_attention_destroy(attention);
    return MEMO_STATUS_OK;
}

int main() {
    memo_cuda_device_desc desc = memo_cuda_device_desc_default();
    memo_device* device = NULL;
    cudnn_attention c;
    memo_error error;
    memo_status status = memo_cuda_device_create(&desc, &device, &error);
    if (!status && cudnnCreate(&c.plans.handle) != CUDNN_STATUS_SUCCESS)
        status = memo_error_set(&error, MEMO_STATUS_DEVICE, "cudnnCreate failed");
    if (!status) status = check(device, &c, &error);
    if (status) fprintf(stderr, "13_cudnn_attention: %s\n", error.message);
    for (void* buffer : c.scratch) cudaFree(buffer);
    if (c.plans.handle) cudnnDestroy(c.plans.handle);
    memo_cuda_device_destroy(device);
    return status != MEMO_STATUS_OK;
}
