/* 05_three_edits.cu - makes the three edits of 05_three_edits.c on a GPU, with a stream.
 *
 * The trainer is a stack of MLP blocks, out = inp + gelu(inp W1) W2.  It runs twice, with and
 * without a budget, and compares the gradients.
 *
 * Build:
 *     nvcc -arch=native -I. examples/05_three_edits.cu -o 05_three_edits
 * Expected output (the plan within the budget depends on the machine):
 *     keep      every tensor stays on the device
 *     plan      device 340 MiB of ... (13 buffers, optimal), host 0 B, 0 B of rows moved each way
 *     device    activations 288 MiB, the whole session 32.0 MiB, parts of a micro-batch 20.0 MiB
 *     rows      layers    kept  swapped  recomputed   of 4096 in tiles of 256; the last swapped and recomputed rows stay on the device
 *               ...
 *     plan      device ... of 128 MiB (..., optimal), host ..., ... in a step
 *     device    activations ..., the whole session 32.0 MiB, parts of a micro-batch 20.0 MiB
 *     host      activations ...
 *     gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_cuda.cuh"
#include <stdio.h>
#include <stdlib.h>

enum { L = 8, T = 4096, C = 256, TILE = 256 }; /* layers, tokens, channels, rows of a tile */
enum { W = 4 * C * C, N_PARAMS = 2 * L * W };  /* W1 (C, 4C) and W2 (4C, C) of each layer */
static float *params, *grads;                  /* (L, 2, W) */
static cudaStream_t stream;

/* Edit 1: describe a layer's activations.  They were float* acts, 9 C per token. */
enum { INP, HIDDEN, GELU, N_ACTS };
static const memo_item acts[N_ACTS] = {
    MEMO_ITEM("inp", sizeof(float) * C, MEMO_MOVE),        /* (T, C): swapped */
    MEMO_ITEM("hidden", sizeof(float) * 4 * C, MEMO_ROWS), /* (T, 4C): swapped or recomputed */
    MEMO_ITEM("gelu", sizeof(float) * 4 * C, MEMO_ROWS)};  /* (T, 4C) */
#define ACT(l, act) ((float*)memo_session_get_address(session, l, act)) /* was acts + l * size */

/* Other buffers, with their first and last use; they were cudaMalloc. */
enum { PARAMS, GRADS, OUT, DOUT, DHIDDEN, N_BUFFERS };
static const memo_session_buffer buffers[N_BUFFERS] = {
    {"params", sizeof(float) * N_PARAMS, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"grads", sizeof(float) * N_PARAMS, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"out", 0, sizeof(float) * C, MEMO_PASS_FORWARD, 0, MEMO_PASS_BETWEEN, 0, 0},
    {"dout", 0, sizeof(float) * C, MEMO_PASS_FORWARD, 0, MEMO_PASS_BACKWARD, 0, 0},
    {"dhidden", 0, sizeof(float) * 4 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD,
     0, 0}};
#define BUFFER(b) ((float*)memo_session_get_buffer(session, b))

/* c (m, n) = beta c + a (m, k) b (k, n); ta, tb: the array holds the transpose.  Each thread
 * computes one element, so that the bits of a row do not depend on the other rows. */
__global__ static void product(float* c, const float* a, int ta, const float* b, int tb, int64_t m,
                               int64_t n, int64_t k, float beta) {
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t i = at / n, j = at % n;
    float sum = 0;
    if (i >= m) return;
    for (int64_t r = 0; r < k; r++)
        sum += (ta ? a[r * m + i] : a[i * k + r]) * (tb ? b[j * k + r] : b[r * n + j]);
    c[at] = beta * c[at] + sum;
}
__global__ static void gelu_of(float* gelu, const float* hidden) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    gelu[i] = hidden[i] / (1 + expf(-hidden[i]));
}
__global__ static void gelu_gradient(float* d, const float* hidden) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float s = 1 / (1 + expf(-hidden[i]));
    d[i] *= s * (1 + hidden[i] * (1 - s));
}
__global__ static void fill(float* to, float size, float step) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = size * cosf(step * (float)i);
}
/* The first call that fails is kept.  A kernel has a thread for each of n elements; all sizes
 * divide. */
static memo_error failed;
#define CHECKED(call)                                                                              \
    do {                                                                                           \
        const cudaError_t code_ = call;                                                            \
        if (!failed.status) (void)memo_cuda_check(code_, #call, &failed);                          \
    } while (0)
#define LAUNCH(n, kernel, ...)                                                                     \
    kernel<<<(unsigned int)((int64_t)(n) / 256), 256, 0, stream>>>(__VA_ARGS__);                   \
    CHECKED(cudaGetLastError())

static void hidden_forward(memo_session* session, int32_t l, int64_t begin, int64_t end) {
    LAUNCH((end - begin) * 4 * C, product, ACT(l, HIDDEN) + begin * 4 * C, ACT(l, INP) + begin * C,
           0, params + 2 * l * W, 0, end - begin, 4 * C, C, 0);
}
static void gelu_forward(memo_session* session, int32_t l, int64_t begin, int64_t end) {
    LAUNCH((end - begin) * 4 * C, gelu_of, ACT(l, GELU) + begin * 4 * C,
           ACT(l, HIDDEN) + begin * 4 * C);
}

/* Edit 2: the layers take their addresses from the session, and one function computes rows
 * again. */
static void forward(void* user, memo_session* session, int32_t l) {
    float *out = BUFFER(OUT), *dout = BUFFER(DOUT);
    (void)user;
    if (l == 0) {
        LAUNCH(T * C, fill, out, 1, 0.7f);
        LAUNCH(T * C, fill, dout, 1.0f / T, 0);
    }
    CHECKED(
        cudaMemcpyAsync(ACT(l, INP), out, sizeof(float) * T * C, cudaMemcpyDeviceToDevice, stream));
    hidden_forward(session, l, 0, T);
    gelu_forward(session, l, 0, T);
    LAUNCH(T * C, product, out, ACT(l, GELU), 0, params + (2 * l + 1) * W, 0, T, C, 4 * C, 1);
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t act, int64_t begin,
                      int64_t end) {
    (void)user;
    if (act == HIDDEN) hidden_forward(session, l, begin, end);
    if (act == GELU) gelu_forward(session, l, begin, end);
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float *w1 = params + 2 * l * W, *w2 = w1 + W;
    float *dw1 = grads + 2 * l * W, *dw2 = dw1 + W;
    float *dout = BUFFER(DOUT), *dhidden = BUFFER(DHIDDEN);
    (void)user;
    LAUNCH(W, product, dw2, ACT(l, GELU), 1, dout, 0, 4 * C, C, T, 1);
    LAUNCH(T * 4 * C, product, dhidden, dout, 0, w2, 1, T, 4 * C, C, 0);
    LAUNCH(T * 4 * C, gelu_gradient, dhidden, ACT(l, HIDDEN));
    LAUNCH(W, product, dw1, ACT(l, INP), 1, dhidden, 0, C, 4 * C, T, 1);
    LAUNCH(T * C, product, dout, dhidden, 0, w1, 1, T, C, 4 * C, 1);
}

/* Edit 3: create the session and run. */
static memo_status train(const memo_device* device, memo_stream compute, int64_t device_bytes,
                         float* gradients, memo_error* error) {
    memo_session_desc desc = {};
    memo_session* session;
    memo_text report = {NULL, 0, 0, 0};
    memo_status status;
    desc.device = device, desc.compute_stream = compute;
    desc.tensors = acts, desc.n_tensors = N_ACTS;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    desc.buffers = buffers, desc.n_buffers = N_BUFFERS;
    desc.device_bytes = device_bytes;
    if ((status = memo_session_create(&desc, &session, error))) return status;
    params = BUFFER(PARAMS), grads = BUFFER(GRADS); /* under every plan */
    LAUNCH(N_PARAMS, fill, params, 0.05f, 37);
    CHECKED(cudaMemsetAsync(grads, 0, sizeof(float) * N_PARAMS, stream));
    for (int i = 0; i < 6 && !status; i++) {
        status = memo_session_run(session, NULL, error);
        if (!status && failed.status) *error = failed, status = failed.status;
    }
    /* Four steps have been timed: the plan is by their times. */
    const memo_session_info info = memo_session_get_info(session);
    memo_step_plan_put(info.plan, &report);
    if (!status) status = memo_text_write(&report, "-", error);
    if (!status)
        status = memo_copy(device, compute, MEMO_COPY_TO_HOST, gradients, grads,
                           sizeof(float) * N_PARAMS, error);
    if (!status) status = memo_stream_synchronize(device, compute, error);
    memo_session_destroy(session);
    return status;
}

int main(void) {
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    memo_stream compute = NULL;
    memo_error error;
    float* gradients[2] = {(float*)malloc(sizeof(float) * N_PARAMS),
                           (float*)malloc(sizeof(float) * N_PARAMS)};
    int differ = 1;

    memo_status status = memo_cuda_device_create(&desc, &device, &error);
    if (!status && (!gradients[0] || !gradients[1]))
        status = memo_error_set(&error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory");
    if (!status) status = memo_stream_create(device, "compute", 0, &compute, &error);
    stream = memo_cuda_stream(compute);
    if (!status) status = train(device, compute, 0, gradients[0], &error); /* no budget: all kept */
    if (!status) status = train(device, compute, (int64_t)128 << 20, gradients[1], &error);

    if (status) {
        fprintf(stderr, "05_three_edits: %s\n", error.message);
    } else {
        differ = memcmp(gradients[0], gradients[1], sizeof(float) * N_PARAMS) != 0;
        printf("gradients %s\n", differ ? "differ" : "bitwise the same");
    }

    if (compute) memo_stream_destroy(device, compute, NULL);
    memo_cuda_device_destroy(device);
    free(gradients[0]);
    free(gradients[1]);
    return differ;
}
