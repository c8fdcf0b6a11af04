/* 13_cudnn_attention.cu - uses cuDNN's attention as the local attention of memo_sp.h: bf16, causal
 * and full blocks.
 *
 * The blocks are those of cudnn_attention.h, which states what it refuses and how it rounds.  A
 * ring has three shapes, forward and backward; cuDNN's graphs for them are built before the first
 * step, and their memory is allocated then.
 *
 * On Hopper cuDNN's backward sums d_q in no fixed order: bits differ between runs.
 * attention_blocks.is_deterministic fixes it with a workspace that grows with the square of the
 * length.
 *
 * This program has one rank and compares its attention with a plain loop on the host.
 *
 * Build (CUDNN is the folder of cudnn-frontend, headers only: github.com/NVIDIA/cudnn-frontend;
 * make -f .ci/checks.mk test-cuda CUDNN=... compiles it too, which takes minutes):
 *     nvcc -arch=native -std=c++17 -I. -I$CUDNN/include examples/13_cudnn_attention.cu -lcudnn -lnvrtc \
 *         -o 13_cudnn_attention
 * Expected output:
 *     relative errors: out 0.00..., d_q 0.00..., d_k 0.00..., d_v 0.00...
 */
#define MEMO_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_cuda.cuh"

#include "cudnn_attention.h"

#include <algorithm>
#include <cuda_bf16.h>

using bf16 = __nv_bfloat16;

/* ---- before the first step ---- */

/* Builds all graphs, in memory that all blocks share. */
static memo_status prepare(const memo_sp_attention_desc* desc, attention_blocks* c,
                           memo_error* error) {
    const int64_t limit_bytes = (int64_t)1 << 30;
    std::vector<attention_shape> shapes;
    int64_t n_bytes = 0;
    if (cudnnCreate(&c->plans->handle) != CUDNN_STATUS_SUCCESS)
        return attention_failed(error, "cudnnCreate: failed");
    if (attention_shapes_over_ranks(*desc, c->is_deterministic, 0, 0, &shapes, error))
        return error->status;
    for (const attention_shape& s : shapes)
        n_bytes = std::max(n_bytes, attention_scratch_bytes(s, limit_bytes));
    if (memo_cuda_check(cudaMalloc((void**)&c->scratch, (size_t)n_bytes), "cudaMalloc", error))
        return error->status;
    for (const attention_shape& s : shapes)
        if (attention_prepare(c->plans, s, n_bytes, error)) return error->status;
    return MEMO_STATUS_OK;
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

static memo_status check(memo_device* device, attention_blocks* c, memo_error* error) {
    memo_sharding_desc sharding = {};
    memo_sp_attention_desc desc = {};
    memo_sp_attention_tensors t = {};
    memo_exchange_desc exchange_desc = {};
    memo_sp_attention* attention = NULL;
    memo_exchange* exchange = NULL;
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
    desc.attention = attention_over_ranks(c);

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
    if (memo_sharding_make(&sharding, &desc.sharding, error) || prepare(&desc, c, error) ||
        memo_stream_create(device, "compute", 0, &desc.stream, error) ||
        memo_sp_attention_create(&desc, &attention, error) ||
        memo_exchange_create(attention, &exchange_desc, &exchange, error) ||
        memo_sp_attention_forward(attention, exchange, &t, error) ||
        memo_sp_attention_backward(attention, exchange, &t, error) ||
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

    printf("relative errors: out %.4f, d_q %.4f, d_k %.4f, d_v %.4f\n", worst[0], worst[1],
           worst[2], worst[3]);
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    return MEMO_STATUS_OK;
}

int main() {
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    attention_plans plans;
    attention_blocks c = {&plans, false, NULL, {}};
    memo_error error;
    memo_status status = memo_cuda_device_create(&desc, &device, &error);
    if (!status) status = check(device, &c, &error);
    if (status) fprintf(stderr, "13_cudnn_attention: %s\n", error.message);
    cudaFree(c.scratch);
    if (plans.handle) cudnnDestroy(plans.handle);
    memo_cuda_device_destroy(device);
    return status ? 1 : 0;
}
