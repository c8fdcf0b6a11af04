/* 19_gpt.cu - 19_gpt.c on a GPU: the same transformer, text and sums.  A thread computes an
 * element, or a row.
 *
 *     19_gpt [FILE [MIB]]        defaults: its own source, 0.9
 *
 * Parameters and moments are the trainer's own memory, activations and scratch the session's.  It
 * trains twice, with every activation kept and within MIB, and compares all losses and parameters.
 * memo 1 to 4 mark what memo adds, as there.
 *
 * Build:
 *     nvcc -arch=native -I. examples/19_gpt.cu -o 19_gpt
 * Expected output (run on stand-ins for CUDA, not on a GPU yet; the plan within MIB depends on the
 * machine):
 *     every activation kept
 *     ...
 *     within 0.9 MiB
 *     ...
 *     losses and parameters bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_cuda.cuh"
#include <stdio.h>
#include <stdlib.h>

/* Layers, sequences, tokens of each, channels, heads, words (bytes); rows are tokens of all
 * sequences. */
enum { L = 6, B = 2, T = 128, C = 32, NH = 4, V = 256, N = B * T, HS = C / NH };
#ifndef N_STEPS
#define N_STEPS 20
#endif

/* ---- parameters ---- */

typedef struct layer_params {
    float norm1[2][C], qkv[3 * C][C], qkv_bias[3 * C], proj[C][C], proj_bias[C]; /* (out, in) */
    float norm2[2][C], up[4 * C][C], up_bias[4 * C], down[C][4 * C], down_bias[C];
} layer_params;

typedef struct params {
    float words[V][C], places[T][C]; /* words is also the classifier */
    layer_params layers[L];
    float norm[2][C]; /* norms: weight, bias */
} params;
enum { N_PARAMS = sizeof(params) / sizeof(float) };

/* memo 1: the activations of a layer, one row a token.  They were one array for all layers. */
static const memo_item acts[] = {
    MEMO_ITEM("inp", 4 * C, MEMO_MOVE),    /* (N, C) */
    MEMO_ITEM("norm1", 4 * C, MEMO_ROWS),  /* (N, C) */
    MEMO_ITEM("qkv", 12 * C, MEMO_ROWS),   /* (N, 3C) */
    MEMO_ITEM("att", 4 * C, MEMO_WHOLE),   /* (N, C): costs most, so all of it or nothing */
    MEMO_ITEM("middle", 4 * C, MEMO_ROWS), /* (N, C): inp + proj(att) */
    MEMO_ITEM("norm2", 4 * C, MEMO_ROWS),  /* (N, C) */
    MEMO_ITEM("up", 16 * C, MEMO_ROWS),    /* (N, 4C) */
    MEMO_ITEM("gelu", 16 * C, MEMO_ROWS)}; /* (N, 4C) */
enum { INP, NORM1, QKV, ATT, MIDDLE, NORM2, UP, GELU, N_ACTS };

struct layer_acts { /* the same as pointers, in the order of the table */
    float *inp, *norm1, *qkv, *att, *middle, *norm2, *up, *gelu;
};

/* Scratch of a backward, which the session plans as well. */
static const memo_session_buffer buffers[] = {
    {"d_up", 0, 16 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
    {"d_norm", 0, 4 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};

/* On the device, where the host only takes addresses; and in pinned memory, for what a step
 * sends. */
typedef struct trainer {
    params p, d, m, v;        /* parameters, gradients, moments */
    float x[N][C], d_x[N][C]; /* between layers */
    float out[N][C], logits[N][V], losses[N];
    int tokens[N + 1];
} trainer;

static cudaStream_t stream;

/* ---- kernels: one thread an element; a row's result does not depend on their number ---------- */

static memo_error failed; /* the first call that did */
#define CHECKED(function, ...)                                                                     \
    do {                                                                                           \
        const cudaError_t code_ = function(__VA_ARGS__);                                           \
        if (!failed.status) (void)memo_cuda_check(code_, #function, &failed);                      \
    } while (0)

template <typename... Parameters, typename... Arguments>
static void launch(int64_t n, void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((n + 127) / 128));
    config.blockDim = dim3(128);
    config.stream = stream;
    if (n > 0) CHECKED(cudaLaunchKernelEx, &config, kernel, arguments...);
}
#define THREAD(i, n)                                                                               \
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                              \
    if (i >= (n)) return

/* out (rows, n_out) = inp (rows, n_in) weight^T + bias, + add (rows, n_out) unless NULL */
__global__ static void product(float* out, const float* inp, const float* weight, const float* bias,
                               const float* add, int64_t rows, int64_t n_in, int64_t n_out) {
    THREAD(at, rows * n_out);
    const int64_t r = at / n_out, o = at % n_out;
    float sum = bias ? bias[o] : 0;
    for (int64_t i = 0; i < n_in; i++) sum += inp[r * n_in + i] * weight[o * n_in + i];
    out[at] = add ? sum + add[at] : sum;
}
/* d_inp (N, n_in) = d_out (N, n_out) weight; d_inp may be the product's input */
__global__ static void product_inputs(float* d_inp, const float* d_out, const float* weight,
                                      int64_t n_in, int64_t n_out) {
    THREAD(at, N * n_in);
    const int64_t r = at / n_in, i = at % n_in;
    float sum = 0;
    for (int64_t o = 0; o < n_out; o++) sum += d_out[r * n_out + o] * weight[o * n_in + i];
    d_inp[at] = sum;
}
/* d_weight (n_out, n_in) += d_out^T inp, d_bias += the sum of d_out's rows */
__global__ static void product_weights(float* d_weight, float* d_bias, const float* d_out,
                                       const float* inp, int64_t n_in, int64_t n_out) {
    THREAD(at, n_out * n_in);
    const int64_t o = at / n_in, i = at % n_in;
    float sum = 0, bias = 0;
    for (int64_t r = 0; r < N; r++) {
        sum += d_out[r * n_out + o] * inp[r * n_in + i];
        bias += d_out[r * n_out + o];
    }
    d_weight[at] += sum;
    if (i == 0 && d_bias) d_bias[o] += bias;
}

__device__ static void mean_and_scale(const float* row, float* mean, float* scale) {
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < C; c++) sum += row[c];
    *mean = sum / C;
    for (int64_t c = 0; c < C; c++) squares += (row[c] - *mean) * (row[c] - *mean);
    *scale = 1 / sqrtf(squares / C + 1e-5f);
}
__global__ static void norm(float* out, const float* inp, const float* w, int64_t rows) {
    THREAD(r, rows);
    float mean, scale;
    mean_and_scale(inp + r * C, &mean, &scale);
    for (int64_t c = 0; c < C; c++)
        out[r * C + c] = (inp[r * C + c] - mean) * scale * w[c] + w[C + c];
}
/* Adds to d_inp (N threads) and d_w (C threads). */
__global__ static void norm_backward(float* d_inp, float* d_w, const float* d_out, const float* inp,
                                     const float* w) {
    THREAD(at, N + C);
    const int64_t first = at < N ? at : 0, end = at < N ? at + 1 : (int64_t)N, own = at - N;
    for (int64_t r = first; r < end; r++) {
        float mean, scale, sum = 0, dot = 0;
        mean_and_scale(inp + r * C, &mean, &scale);
        if (own >= 0) {
            d_w[own] += d_out[r * C + own] * (inp[r * C + own] - mean) * scale;
            d_w[C + own] += d_out[r * C + own];
            continue;
        }
        for (int64_t c = 0; c < C; c++) {
            sum += d_out[r * C + c] * w[c] / C;
            dot += d_out[r * C + c] * w[c] * (inp[r * C + c] - mean) * scale / C;
        }
        for (int64_t c = 0; c < C; c++)
            d_inp[r * C + c] +=
                (d_out[r * C + c] * w[c] - sum - (inp[r * C + c] - mean) * scale * dot) * scale;
    }
}

/* The weights of token r for the tokens before it in its sequence, in head h; returns their
 * number. */
__device__ static int64_t weights_of(float* weights, const float* qkv, int64_t r, int64_t h) {
    const int64_t n = r % T + 1;
    const float* q = qkv + r * 3 * C + h * HS;
    float most = -1e30f, sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const float* key = qkv + (r - r % T + k) * 3 * C + C + h * HS;
        weights[k] = 0;
        for (int64_t i = 0; i < HS; i++) weights[k] += q[i] * key[i];
        weights[k] /= sqrtf(HS);
        most = fmaxf(most, weights[k]);
    }
    for (int64_t k = 0; k < n; k++) sum += weights[k] = expf(weights[k] - most);
    for (int64_t k = 0; k < n; k++) weights[k] /= sum;
    return n;
}
__global__ static void attention(float* out, const float* qkv) {
    THREAD(at, N * NH);
    const int64_t r = at / NH, h = at % NH;
    float weights[T];
    const int64_t n = weights_of(weights, qkv, r, h);
    for (int64_t i = 0; i < HS; i++) {
        float sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += weights[k] * qkv[(r - r % T + k) * 3 * C + 2 * C + h * HS + i];
        out[r * C + h * HS + i] = sum;
    }
}
/* Adds to d_qkv.  A thread has a sequence and a head: keys add up over their queries. */
__global__ static void attention_backward(float* d_qkv, const float* d_out, const float* qkv) {
    THREAD(at, B * NH);
    const int64_t first = at / NH * T, h = at % NH;
    float weights[T], d_weights[T];
    for (int64_t r = first; r < first + T; r++) {
        const int64_t n = weights_of(weights, qkv, r, h);
        const float* d = d_out + r * C + h * HS;
        float dot = 0;
        for (int64_t k = 0; k < n; k++) {
            const int64_t value = (first + k) * 3 * C + 2 * C + h * HS;
            d_weights[k] = 0;
            for (int64_t i = 0; i < HS; i++) {
                d_weights[k] += d[i] * qkv[value + i];
                d_qkv[value + i] += weights[k] * d[i];
            }
            dot += weights[k] * d_weights[k];
        }
        for (int64_t k = 0; k < n; k++) {
            const int64_t q = r * 3 * C + h * HS, key = (first + k) * 3 * C + C + h * HS;
            const float d_score = weights[k] * (d_weights[k] - dot) / sqrtf(HS);
            for (int64_t i = 0; i < HS; i++) {
                d_qkv[q + i] += d_score * qkv[key + i];
                d_qkv[key + i] += d_score * qkv[q + i];
            }
        }
    }
}

__global__ static void gelu(float* out, const float* inp, int64_t n) {
    THREAD(i, n);
    out[i] = inp[i] / (1 + expf(-1.702f * inp[i]));
}
__global__ static void gelu_backward(float* d, const float* inp, int64_t n) { /* in place */
    THREAD(i, n);
    const float s = 1 / (1 + expf(-1.702f * inp[i]));
    d[i] *= s * (1 + 1.702f * inp[i] * (1 - s));
}

__global__ static void embed(float* x, const params* p, const int* tokens) {
    THREAD(i, N * C);
    x[i] = p->words[tokens[i / C]][i % C] + p->places[i / C % T][i % C];
}
/* A thread has a column: tokens and places that repeat add up. */
__global__ static void embed_backward(params* d, const float* d_x, const int* tokens) {
    THREAD(c, C);
    for (int64_t r = 0; r < N; r++) {
        d->words[tokens[r]][c] += d_x[r * C + c];
        d->places[r % T][c] += d_x[r * C + c];
    }
}
/* The loss of each token; the logits become the gradient of their mean. */
__global__ static void classify(float* losses, float* logits, const int* tokens) {
    THREAD(r, N);
    float most = -1e30f, sum = 0;
    for (int64_t w = 0; w < V; w++) most = fmaxf(most, logits[r * V + w]);
    for (int64_t w = 0; w < V; w++) sum += expf(logits[r * V + w] - most);
    losses[r] = logf(sum) + most - logits[r * V + tokens[r + 1]];
    for (int64_t w = 0; w < V; w++)
        logits[r * V + w] = (expf(logits[r * V + w] - most) / sum - (w == tokens[r + 1])) / N;
}
__global__ static void adamw(float* p, const float* d, float* m, float* v, int step) {
    THREAD(i, N_PARAMS);
    m[i] = 0.9f * m[i] + 0.1f * d[i];
    v[i] = 0.99f * v[i] + 0.01f * d[i] * d[i];
    p[i] -= 5e-3f * (m[i] / (1 - powf(0.9f, (float)step)) /
                         (sqrtf(v[i] / (1 - powf(0.99f, (float)step))) + 1e-8f) +
                     0.01f * p[i]);
}

/* ---- a layer ---- */

static void product_of(float* out, const float* inp, const float* weight, const float* bias,
                       const float* add, int64_t rows, int64_t n_in, int64_t n_out) {
    launch(rows * n_out, product, out, inp, weight, bias, add, rows, n_in, n_out);
}

/* memo 2: rows [begin, end) of one activation from those before it.  The forward calls it for all
 * rows, the session for the rows that it did not keep. */
static void compute_rows(void* user, memo_session* session, int32_t l, int32_t act, int64_t begin,
                         int64_t end) {
    const layer_params* p = &((trainer*)user)->p.layers[l];
    const int64_t n = end - begin;
    layer_acts a;
    memo_session_get_addresses(session, l, begin, (void**)&a);
    switch (act) {
    case NORM1: launch(n, norm, a.norm1, a.inp, *p->norm1, n); break;
    case QKV: product_of(a.qkv, a.norm1, *p->qkv, p->qkv_bias, 0, n, C, 3 * C); break;
    case ATT: launch(N * NH, attention, a.att, a.qkv); break;
    case MIDDLE: product_of(a.middle, a.att, *p->proj, p->proj_bias, a.inp, n, C, C); break;
    case NORM2: launch(n, norm, a.norm2, a.middle, *p->norm2, n); break;
    case UP: product_of(a.up, a.norm2, *p->up, p->up_bias, 0, n, C, 4 * C); break;
    case GELU: launch(n * 4 * C, gelu, a.gelu, a.up, n * 4 * C); break;
    }
}

static void forward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    const layer_params* p = &t->p.layers[l];
    layer_acts a;
    memo_session_get_addresses(session, l, 0, (void**)&a);
    if (l == 0) launch(N * C, embed, *t->x, &t->p, t->tokens);
    CHECKED(cudaMemcpyAsync, a.inp, t->x, sizeof t->x, cudaMemcpyDeviceToDevice, stream);
    for (int act = NORM1; act < N_ACTS; act++) compute_rows(t, session, l, act, 0, N);
    product_of(*t->x, a.gelu, *p->down, p->down_bias, a.middle, N, 4 * C, C);
}

static void product_backward(float* d_inp, float* d_weight, float* d_bias, const float* d_out,
                             const float* inp, const float* weight, int64_t n_in, int64_t n_out) {
    launch(n_out * n_in, product_weights, d_weight, d_bias, d_out, inp, n_in, n_out);
    launch(N * n_in, product_inputs, d_inp, d_out, weight, n_in, n_out);
}

static void backward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    const layer_params* p = &t->p.layers[l];
    layer_params* d = &t->d.layers[l];
    float* d_up = (float*)memo_session_get_buffer(session, 0); /* (N, 4C), then (N, 3C), (N, C) */
    float* d_norm = (float*)memo_session_get_buffer(session, 1);
    float *d_qkv = d_up, *d_att = d_up + 3 * N * C;
    layer_acts a;
    memo_session_get_addresses(session, l, 0, (void**)&a);

    /* x = middle + down(gelu(up(norm2(middle)))) */
    product_backward(d_up, *d->down, d->down_bias, *t->d_x, a.gelu, *p->down, 4 * C, C);
    launch(4 * N * C, gelu_backward, d_up, a.up, 4 * N * C);
    product_backward(d_norm, *d->up, d->up_bias, d_up, a.norm2, *p->up, C, 4 * C);
    launch(N + C, norm_backward, *t->d_x, *d->norm2, d_norm, a.middle, *p->norm2);

    /* middle = inp + proj(att(qkv(norm1(inp)))) */
    product_backward(d_att, *d->proj, d->proj_bias, *t->d_x, a.att, *p->proj, C, C);
    CHECKED(cudaMemsetAsync, d_qkv, 0, sizeof(float) * 3 * N * C, stream);
    launch(B * NH, attention_backward, d_qkv, d_att, a.qkv);
    product_backward(d_norm, *d->qkv, d->qkv_bias, d_qkv, a.norm1, *p->qkv, C, 3 * C);
    launch(N + C, norm_backward, *t->d_x, *d->norm1, d_norm, a.inp, *p->norm1);
    if (l == 0) launch(C, embed_backward, &t->d, *t->d_x, t->tokens);
}

/* Classifier and losses, and their gradients. */
static void between(void* user, memo_session*) {
    trainer* t = (trainer*)user;
    launch(N, norm, *t->out, *t->x, *t->p.norm, N);
    product_of(*t->logits, *t->out, *t->p.words, NULL, NULL, N, C, V);
    launch(N, classify, t->losses, *t->logits, t->tokens);
    product_backward(*t->out, *t->d.words, NULL, *t->logits, *t->out, *t->p.words, C, V);
    CHECKED(cudaMemsetAsync, t->d_x, 0, sizeof t->d_x, stream);
    launch(N + C, norm_backward, *t->d_x, *t->d.norm, *t->out, *t->x, *t->p.norm);
}

/* ---- training ---- */

static void init(params* p) {
    uint32_t random = 1;
    for (int i = 0; i < N_PARAMS; i++) {
        random = random * 1664525 + 1013904223;
        ((float*)p)[i] = 0.1f * ((float)(random >> 8) / (1 << 24) - 0.5f);
    }
    for (int l = 0; l < L; l++)
        for (int c = 0; c < C; c++) p->layers[l].norm1[0][c] = p->layers[l].norm2[0][c] = 1;
    for (int c = 0; c < C; c++) p->norm[0][c] = 1;
}

/* The tokens of a step, from 1, and the one behind them. */
static void load_tokens(trainer* t, trainer* post, const memo_text* text, int step) {
    const int64_t begin = (int64_t)(step - 1) * N % (text->n_bytes - N);
    for (int i = 0; i <= N; i++) post->tokens[i] = (unsigned char)text->data[begin + i];
    CHECKED(cudaMemcpyAsync, t->tokens, post->tokens, sizeof t->tokens, cudaMemcpyHostToDevice,
            stream);
}

/* Returns the losses of all steps, and the parameters in post. */
static memo_status train(trainer* t, trainer* post, const memo_device* device, memo_stream compute,
                         const memo_text* text, int64_t device_bytes, float* losses,
                         memo_error* error) {
    memo_session_desc desc = {};
    memo_session* session = NULL;
    memo_session_info info;

    /* memo 3: the session. */
    desc.device = device, desc.compute_stream = compute;
    desc.tensors = acts, desc.n_tensors = N_ACTS;
    desc.n_layers = L, desc.n_rows = N, desc.tile_rows = 16;
    desc.user = t, desc.recompute = compute_rows;
    desc.forward = forward, desc.between = between, desc.backward = backward;
    desc.buffers = buffers, desc.n_buffers = 2;
    desc.device_bytes = device_bytes;
    init(&post->p);
    CHECKED(cudaMemsetAsync, t, 0, sizeof *t, stream);
    CHECKED(cudaMemcpyAsync, &t->p, &post->p, sizeof t->p, cudaMemcpyHostToDevice, stream);
    load_tokens(t, post, text, 1);
    memo_status status = memo_session_create(&desc, &session, error);
    if (status) return status;
    for (int step = 1; step <= N_STEPS && !status; step++) {
        load_tokens(t, post, text, step);
        CHECKED(cudaMemsetAsync, &t->d, 0, sizeof t->d, stream);
        status = memo_session_run(session, NULL, error); /* memo 4: was the loops over layers */
        if (status) break;
        launch(N_PARAMS, adamw, (float*)&t->p, (float*)&t->d, (float*)&t->m, (float*)&t->v, step);
        CHECKED(cudaMemcpyAsync, post->losses, t->losses, sizeof t->losses, cudaMemcpyDeviceToHost,
                stream);
        CHECKED(cudaMemcpyAsync, &post->p, &t->p, sizeof t->p, cudaMemcpyDeviceToHost, stream);
        status = memo_stream_synchronize(device, compute, error);
        if (!status && failed.status) *error = failed, status = failed.status;
        losses[step - 1] = 0;
        for (int r = 0; r < N; r++) losses[step - 1] += post->losses[r] / N;
        if (step == 1 || step % 10 == 0)
            printf("step %2d  loss %.4f\n", step, (double)losses[step - 1]);
    }
    if (!status) { /* the plan that the first steps, which are timed, have led to */
        info = memo_session_get_info(session);
        printf("device %.2f MiB, host %.2f MiB, %.2f MiB moved each way\n",
               (double)info.plan->device_bytes / (1 << 20),
               (double)info.plan->host_bytes / (1 << 20),
               (double)info.plan->sizes.swapped_bytes / (1 << 20));
    }
    memo_session_destroy(session);
    return status;
}

int main(int argc, char** argv) {
    static params kept;
    const double mib = argc > 2 ? atof(argv[2]) : 0.9;
    float losses[2][N_STEPS];
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    memo_stream compute = NULL;
    memo_text text = {NULL, 0, 0, 0};
    memo_error error;
    trainer *t = NULL, *post = NULL; /* on the device; pinned */
    const char* path = argc > 1 ? argv[1] : "examples/19_gpt.cu";
    FILE* file = fopen(path, "rb");
    for (int c; file && (c = getc(file)) != EOF && !text.failed;)
        memo_text_put(&text, "%c", c ? c : ' ');
    if (file) fclose(file);
    if (argc > 3 || !(mib > 0) || mib > 1e6) {
        fprintf(stderr, "usage: 19_gpt [FILE [MIB]]   MIB above 0; 0.9 is the default\n");
        return 2;
    }
    if (text.n_bytes <= N || text.failed) {
        fprintf(stderr, "19_gpt: %s: %s; `19_gpt FILE` reads another text\n", path,
                !file         ? "cannot be read: by default it is read from memo's root"
                : text.failed ? "no memory for it"
                              : "too short to learn from");
        return 1;
    }

    memo_status status = memo_cuda_device_create(&desc, &device, &error);
    if (!status) status = memo_stream_create(device, "compute", 0, &compute, &error);
    stream = memo_cuda_stream(compute);
    if (!status) status = memo_device_alloc(device, sizeof *t, (void**)&t, &error);
    if (!status) status = memo_host_alloc(device, sizeof *post, (void**)&post, &error);
    for (int k = 0; k < 2 && !status; k++) {
        if (k == 0) printf("every activation kept\n");
        if (k == 1) printf("within %g MiB\n", mib);
        if (k == 1) kept = post->p;
        status = train(t, post, device, compute, &text, (int64_t)(k * mib * (1 << 20)), losses[k],
                       &error);
    }
    const int is_same = !status && !memcmp(losses[0], losses[1], sizeof losses[0]) &&
                        !memcmp(&kept, &post->p, sizeof kept);

    if (t) memo_device_free(device, t, NULL);
    if (post) memo_host_free(device, post, NULL);
    if (compute) memo_stream_destroy(device, compute, NULL);
    memo_cuda_device_destroy(device);
    memo_text_free(&text);
    if (status)
        fprintf(stderr, "19_gpt: %s\n", error.message);
    else
        printf("losses and parameters %s\n", is_same ? "bitwise the same" : "differ");
    return !is_same;
}
