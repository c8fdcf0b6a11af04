/* 19_gpt.c - a whole transformer in one file: it learns to write the text of a file, byte by byte,
 * in the memory that you allow.
 *
 *     19_gpt [FILE [MIB]]        defaults: its own source, 0.8
 *
 * Attention, norms and an MLP in L layers; AdamW; every kernel is a plain loop.  It trains twice,
 * with every activation kept and within MIB for activations and scratch, and compares all losses
 * and parameters.  What memo adds is marked memo 1 to 4; the rest is the trainer as it was.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/19_gpt.c -o 19_gpt -lpthread -lm
 * Expected output:
 *     every activation kept
 *     step  1  loss 5.5...
 *     step 10  loss ...
 *     step 20  loss ...
 *     device 3.12 MiB, host 0.00 MiB, 0.00 MiB moved each way
 *     within 0.8 MiB
 *     step  1  loss 5.5...
 *     step 10  loss ...
 *     step 20  loss ...
 *     device 0... MiB, host ... MiB, ... MiB moved each way
 *     losses and parameters bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>
#include <stdlib.h>

/* Layers, sequences, tokens of each, channels, heads, words (bytes); rows are tokens of all
 * sequences. */
enum { L = 6, B = 2, T = 128, C = 32, NH = 4, V = 256, N = B * T, HS = C / NH, N_STEPS = 20 };

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

/* The same as pointers, in the order of the table. */
typedef struct layer_acts {
    float *inp, *norm1, *qkv, *att, *middle, *norm2, *up, *gelu;
} layer_acts;

/* Scratch of a backward, which the session plans as well. */
static const memo_session_buffer buffers[] = {
    {"d_up", 0, 16 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};

typedef struct trainer {
    params p, d, m, v;           /* parameters, gradients, moments */
    float x[N][C], d_x[N][C];    /* between layers */
    const unsigned char* tokens; /* of this step, N and one */
    float loss;
} trainer;

/* ---- kernels: rows [begin, end) of an output; a row does not depend on the others' number ---- */

/* out (N, n_out) = inp (N, n_in) weight^T + bias */
static void product(float* out, const float* inp, const float* weight, const float* bias, int n_in,
                    int n_out, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++)
        for (int o = 0; o < n_out; o++) {
            float sum = bias[o];
            for (int i = 0; i < n_in; i++) sum += inp[r * n_in + i] * weight[o * n_in + i];
            out[r * n_out + o] = sum;
        }
}

/* Adds to d_inp, d_weight and d_bias. */
static void product_backward(float* d_inp, float* d_weight, float* d_bias, const float* d_out,
                             const float* inp, const float* weight, int n_in, int n_out) {
    for (int r = 0; r < N; r++)
        for (int o = 0; o < n_out; o++) {
            float d = d_out[r * n_out + o];
            d_bias[o] += d;
            for (int i = 0; i < n_in; i++) {
                d_inp[r * n_in + i] += d * weight[o * n_in + i];
                d_weight[o * n_in + i] += d * inp[r * n_in + i];
            }
        }
}

static void mean_and_scale(const float* row, float* mean, float* scale) {
    float sum = 0, squares = 0;
    for (int c = 0; c < C; c++) sum += row[c];
    *mean = sum / C;
    for (int c = 0; c < C; c++) squares += (row[c] - *mean) * (row[c] - *mean);
    *scale = 1 / sqrtf(squares / C + 1e-5f);
}

static void norm(float* out, const float* inp, const float* w, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
        float mean, scale;
        mean_and_scale(inp + r * C, &mean, &scale);
        for (int c = 0; c < C; c++)
            out[r * C + c] = (inp[r * C + c] - mean) * scale * w[c] + w[C + c];
    }
}

/* Adds to d_inp and d_w. */
static void norm_backward(float* d_inp, float* d_w, const float* d_out, const float* inp,
                          const float* w) {
    for (int r = 0; r < N; r++, d_inp += C, d_out += C, inp += C) {
        float mean, scale, sum = 0, dot = 0;
        mean_and_scale(inp, &mean, &scale);
        for (int c = 0; c < C; c++) {
            float unit = (inp[c] - mean) * scale, d = d_out[c] * w[c];
            d_w[c] += d_out[c] * unit;
            d_w[C + c] += d_out[c];
            sum += d / C;
            dot += d * unit / C;
        }
        for (int c = 0; c < C; c++)
            d_inp[c] += (d_out[c] * w[c] - sum - (inp[c] - mean) * scale * dot) * scale;
    }
}

/* The weights of token r for the tokens before it in its sequence, in head h; returns their
 * number. */
static int weights_of(float* weights, const float* qkv, int64_t r, int h) {
    int n = (int)(r % T) + 1;
    const float* q = qkv + r * 3 * C + h * HS;
    float most = -1e30f, sum = 0;
    for (int k = 0; k < n; k++) {
        const float* key = qkv + (r - r % T + k) * 3 * C + C + h * HS;
        weights[k] = 0;
        for (int i = 0; i < HS; i++) weights[k] += q[i] * key[i];
        weights[k] /= sqrtf(HS);
        most = fmaxf(most, weights[k]);
    }
    for (int k = 0; k < n; k++) sum += weights[k] = expf(weights[k] - most);
    for (int k = 0; k < n; k++) weights[k] /= sum;
    return n;
}

static void attention(float* out, const float* qkv, int64_t begin, int64_t end) {
    float weights[T];
    for (int64_t r = begin; r < end; r++)
        for (int h = 0; h < NH; h++) {
            int n = weights_of(weights, qkv, r, h);
            float* o = out + r * C + h * HS;
            memset(o, 0, HS * sizeof(float));
            for (int k = 0; k < n; k++) {
                const float* value = qkv + (r - r % T + k) * 3 * C + 2 * C + h * HS;
                for (int i = 0; i < HS; i++) o[i] += weights[k] * value[i];
            }
        }
}

/* Adds to d_qkv. */
static void attention_backward(float* d_qkv, const float* d_out, const float* qkv) {
    float weights[T], d_weights[T];
    for (int r = 0; r < N; r++)
        for (int h = 0; h < NH; h++) {
            const int first = r - r % T, n = weights_of(weights, qkv, r, h);
            const float* d = d_out + r * C + h * HS;
            float dot = 0;
            for (int k = 0; k < n; k++) {
                int value = (first + k) * 3 * C + 2 * C + h * HS;
                d_weights[k] = 0;
                for (int i = 0; i < HS; i++) {
                    d_weights[k] += d[i] * qkv[value + i];
                    d_qkv[value + i] += weights[k] * d[i];
                }
                dot += weights[k] * d_weights[k];
            }
            for (int k = 0; k < n; k++) {
                int q = r * 3 * C + h * HS, key = (first + k) * 3 * C + C + h * HS;
                float d_score = weights[k] * (d_weights[k] - dot) / sqrtf(HS);
                for (int i = 0; i < HS; i++) {
                    d_qkv[q + i] += d_score * qkv[key + i];
                    d_qkv[key + i] += d_score * qkv[q + i];
                }
            }
        }
}

static void add(float* out, const float* inp, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) out[i] += inp[i];
}

static void gelu(float* out, const float* inp, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) out[i] = inp[i] / (1 + expf(-1.702f * inp[i]));
}

static void gelu_backward(float* d, const float* inp, int64_t n) { /* in place */
    for (int64_t i = 0; i < n; i++) {
        float s = 1 / (1 + expf(-1.702f * inp[i]));
        d[i] *= s * (1 + 1.702f * inp[i] * (1 - s));
    }
}

/* ---- a layer ---- */

/* memo 2: rows [begin, end) of one activation from those before it.  The forward calls it for all
 * rows, the session for the rows that it did not keep. */
static void compute_rows(void* user, memo_session* session, int32_t l, int32_t act, int64_t begin,
                         int64_t end) {
    const layer_params* p = &((trainer*)user)->p.layers[l];
    layer_acts a;
    memo_session_get_addresses(session, l, 0, (void**)&a);
    switch (act) {
    case NORM1: norm(a.norm1, a.inp, *p->norm1, begin, end); break;
    case QKV: product(a.qkv, a.norm1, *p->qkv, p->qkv_bias, C, 3 * C, begin, end); break;
    case ATT: attention(a.att, a.qkv, begin, end); break;
    case MIDDLE:
        product(a.middle, a.att, *p->proj, p->proj_bias, C, C, begin, end);
        add(a.middle, a.inp, begin * C, end * C);
        break;
    case NORM2: norm(a.norm2, a.middle, *p->norm2, begin, end); break;
    case UP: product(a.up, a.norm2, *p->up, p->up_bias, C, 4 * C, begin, end); break;
    case GELU: gelu(a.gelu, a.up, begin * 4 * C, end * 4 * C); break;
    }
}

static void forward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    const layer_params* p = &t->p.layers[l];
    layer_acts a;
    memo_session_get_addresses(session, l, 0, (void**)&a);
    for (int r = 0; r < N && l == 0; r++)
        for (int c = 0; c < C; c++)
            t->x[r][c] = t->p.words[t->tokens[r]][c] + t->p.places[r % T][c];
    memcpy(a.inp, t->x, sizeof t->x);
    for (int act = NORM1; act < N_ACTS; act++) compute_rows(t, session, l, act, 0, N);
    product(*t->x, a.gelu, *p->down, p->down_bias, 4 * C, C, 0, N);
    add(*t->x, a.middle, 0, N * C);
}

static void backward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    const layer_params* p = &t->p.layers[l];
    layer_params* d = &t->d.layers[l];
    float* d_up =
        (float*)memo_session_get_buffer(session, 0); /* (N, 4C), then (N, 3C) and (N, C) */
    float *d_qkv = d_up, *d_att = d_up + 3 * N * C;
    static float d_norm[N][C];
    layer_acts a;
    memo_session_get_addresses(session, l, 0, (void**)&a);

    /* x = middle + down(gelu(up(norm2(middle)))) */
    memset(d_up, 0, sizeof(float) * 4 * N * C);
    product_backward(d_up, *d->down, d->down_bias, *t->d_x, a.gelu, *p->down, 4 * C, C);
    gelu_backward(d_up, a.up, 4 * N * C);
    memset(d_norm, 0, sizeof d_norm);
    product_backward(*d_norm, *d->up, d->up_bias, d_up, a.norm2, *p->up, C, 4 * C);
    norm_backward(*t->d_x, *d->norm2, *d_norm, a.middle, *p->norm2);

    /* middle = inp + proj(att(qkv(norm1(inp)))) */
    memset(d_up, 0, sizeof(float) * 4 * N * C);
    product_backward(d_att, *d->proj, d->proj_bias, *t->d_x, a.att, *p->proj, C, C);
    attention_backward(d_qkv, d_att, a.qkv);
    memset(d_norm, 0, sizeof d_norm);
    product_backward(*d_norm, *d->qkv, d->qkv_bias, d_qkv, a.norm1, *p->qkv, C, 3 * C);
    norm_backward(*t->d_x, *d->norm1, *d_norm, a.inp, *p->norm1);

    for (int r = 0; r < N && l == 0; r++) {
        add(t->d.words[t->tokens[r]], t->d_x[r], 0, C);
        add(t->d.places[r % T], t->d_x[r], 0, C);
    }
}

/* Classifier and mean loss, and the gradient of both, token by token. */
static void between(void* user, memo_session* session) {
    static float out[N][C], d_out[N][C];
    trainer* t = (trainer*)user;
    norm(*out, *t->x, *t->p.norm, 0, N);
    memset(d_out, 0, sizeof d_out);
    t->loss = 0;
    for (int r = 0; r < N; r++) {
        float logits[V], most = -1e30f, sum = 0;
        for (int w = 0; w < V; w++) {
            logits[w] = 0;
            for (int c = 0; c < C; c++) logits[w] += out[r][c] * t->p.words[w][c];
            most = fmaxf(most, logits[w]);
        }
        for (int w = 0; w < V; w++) sum += expf(logits[w] - most);
        t->loss += (logf(sum) + most - logits[t->tokens[r + 1]]) / N;
        for (int w = 0; w < V; w++) {
            float d = (expf(logits[w] - most) / sum - (w == t->tokens[r + 1])) / N;
            for (int c = 0; c < C; c++) {
                d_out[r][c] += d * t->p.words[w][c];
                t->d.words[w][c] += d * out[r][c];
            }
        }
    }
    memset(t->d_x, 0, sizeof t->d_x);
    norm_backward(*t->d_x, *t->d.norm, *d_out, *t->x, *t->p.norm);
    (void)session;
}

/* ---- training ---- */

static void adamw(trainer* t, int step) {
    float *p = (float*)&t->p, *d = (float*)&t->d, *m = (float*)&t->m, *v = (float*)&t->v;
    for (int i = 0; i < N_PARAMS; i++) {
        m[i] = 0.9f * m[i] + 0.1f * d[i];
        v[i] = 0.99f * v[i] + 0.01f * d[i] * d[i];
        p[i] -= 5e-3f * (m[i] / (1 - powf(0.9f, (float)step)) /
                             (sqrtf(v[i] / (1 - powf(0.99f, (float)step))) + 1e-8f) +
                         0.01f * p[i]);
    }
}

static void init(trainer* t) {
    uint32_t random = 1;
    float* p = (float*)&t->p;
    memset(t, 0, sizeof *t);
    for (int i = 0; i < N_PARAMS; i++) {
        random = random * 1664525 + 1013904223;
        p[i] = 0.1f * ((float)(random >> 8) / (1 << 24) - 0.5f);
    }
    for (int l = 0; l < L; l++)
        for (int c = 0; c < C; c++) t->p.layers[l].norm1[0][c] = t->p.layers[l].norm2[0][c] = 1;
    for (int c = 0; c < C; c++) t->p.norm[0][c] = 1;
}

static memo_status train(trainer* t, const memo_text* text, int64_t device_bytes, float* losses,
                         memo_error* error) {
    memo_session_desc desc = {0};
    memo_session* session = NULL;
    memo_session_info info;
    memo_status status;

    /* memo 3: the session. */
    desc.tensors = acts, desc.n_tensors = N_ACTS;
    desc.n_layers = L, desc.n_rows = N, desc.tile_rows = 16;
    desc.user = t, desc.recompute = compute_rows;
    desc.forward = forward, desc.between = between, desc.backward = backward;
    desc.buffers = buffers, desc.n_buffers = 1;
    desc.device_bytes = device_bytes;
    init(t);
    status = memo_session_create(&desc, &session, error);
    if (status) return status;
    for (int step = 1; step <= N_STEPS && !status; step++) {
        int64_t begin = (int64_t)(step - 1) * N % (text->n_bytes - N);
        t->tokens = (const unsigned char*)text->data + begin;
        memset(&t->d, 0, sizeof t->d);
        status = memo_session_run(session, NULL, error); /* memo 4: was the loops over layers */
        if (status) break;
        adamw(t, step);
        losses[step - 1] = t->loss;
        if (step == 1 || step % 10 == 0) printf("step %2d  loss %.4f\n", step, (double)t->loss);
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

/* The bytes of a file, at least N + 1. */
static int read_text(const char* path, memo_text* text) {
    FILE* file = fopen(path, "rb");
    int c;
    while (file && (c = getc(file)) != EOF && !text->failed) {
        char byte = (char)c;
        memo_text_put(text, "%c", byte ? byte : ' ');
    }
    if (file) fclose(file);
    if (text->n_bytes > N && !text->failed) return 1;
    fprintf(stderr, "19_gpt: %s: %s; `19_gpt FILE` reads another text\n", path,
            !file          ? "cannot be read: by default it is read from memo's root"
            : text->failed ? "no memory for it"
                           : "too short to learn from");
    return 0;
}

int main(int argc, char** argv) {
    static trainer kept, small;
    const char* path = argc > 1 ? argv[1] : "examples/19_gpt.c";
    double mib = argc > 2 ? atof(argv[2]) : 0.8;
    float losses[2][N_STEPS];
    memo_text text = {NULL, 0, 0, 0};
    memo_error error;
    memo_status status;
    int is_same;
    if (argc > 3 || *path == '-' || !(mib > 0) || mib > 1e6) {
        fprintf(stderr, "usage: 19_gpt [FILE [MIB]]   MIB above 0; 0.8 is the default\n");
        return 2;
    }
    if (!read_text(path, &text)) return 1;

    printf("every activation kept\n");
    status = train(&kept, &text, 0, losses[0], &error);
    if (!status) printf("within %g MiB\n", mib);
    if (!status) status = train(&small, &text, (int64_t)(mib * (1 << 20)), losses[1], &error);
    memo_text_free(&text);
    if (status) {
        fprintf(stderr, "19_gpt: %s\n", error.message);
        return 1;
    }
    is_same = !memcmp(losses[0], losses[1], sizeof losses[0]) &&
              !memcmp(&kept.p, &small.p, sizeof kept.p);
    printf("losses and parameters %s\n", is_same ? "bitwise the same" : "differ");
    return !is_same;
}
