/* train_llama.c - trains a small Llama on the bytes of a file, in plain C: RMS norms, rotary positions, grouped
 * queries, SwiGLU, AdamW with gradients clipped by their norm, micro-batches, a schedule of the rate.
 *
 *     cc -O2 train_llama.c -o train_llama -lm && ./train_llama FILE LOSSES WEIGHTS
 *
 * Writes the losses, and the weights, in all bits.  train_llama_memo.c is the same with memo. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 6,
    T = 64,
    C = 48,
    HEADS = 4,
    GROUPS = 2,
    H = C / HEADS,
    K = GROUPS * H,
    F = 128,
    V = 256
};
enum { N_STEPS = 8, N_BATCHES = 2 };

/* ---- parameters: three parts ---- */

typedef struct layer {
    float norm1[C], wq[C * C], wk[K * C], wv[K * C], wo[C * C]; /* (out, in) */
    float norm2[C], gate[F * C], up[F * C], down[C * F];
} layer;
typedef struct first {
    float words[V * C];
} first;
typedef struct last {
    float norm[C], head[V * C];
} last;
typedef struct params {
    first first;
    layer layers[L];
    last last;
} params;
static params p, d, m, v; /* weights, gradients, moments */

/* ---- what the forward leaves for the backward ---- */

typedef struct acts {
    float *inp, *norm1, *q, *k, *v, *att, *mid, *norm2, *gate, *up,
        *act; /* (T, C), (T, K), (T, F) */
} acts;
enum { ROW = 6 * C + 2 * K + 3 * F };
static float memory[L][T * ROW];
static acts acts_of(int l) {
    float* a = memory[l];
    acts of;
    of.inp = a, of.norm1 = a += T * C, of.q = a += T * C, of.k = a += T * C, of.v = a += T * K;
    of.att = a += T * K, of.mid = a += T * C, of.norm2 = a += T * C, of.gate = a += T * C;
    of.up = a += T * F, of.act = a + T * F;
    return of;
}

/* Between layers (T, C); of the loss. */
static float x[T * C], dx[T * C], normed[T * C], logits[T * V];
static unsigned char* tokens; /* T and one */
static double loss;

/* ---- kernels: rows [begin, end) ---- */

static void product(float* out, const float* in, const float* w, int n_in, int n_out, long begin,
                    long end) {
    for (long r = begin; r < end; r++)
        for (int o = 0; o < n_out; o++) {
            float sum = 0;
            for (int i = 0; i < n_in; i++) sum += in[r * n_in + i] * w[o * n_in + i];
            out[r * n_out + o] = sum;
        }
}
/* Adds to d_in and d_w. */
static void product_backward(float* d_in, float* d_w, const float* d_out, const float* in,
                             const float* w, int n_in, int n_out) {
    for (int r = 0; r < T; r++)
        for (int o = 0; o < n_out; o++)
            for (int i = 0; i < n_in; i++) {
                d_in[r * n_in + i] += d_out[r * n_out + o] * w[o * n_in + i];
                d_w[o * n_in + i] += d_out[r * n_out + o] * in[r * n_in + i];
            }
}

static float scale_of(const float* in) {
    float sum = 0;
    for (int i = 0; i < C; i++) sum += in[i] * in[i];
    return 1 / sqrtf(sum / C + 1e-5f);
}
static void norm(float* out, const float* in, const float* w, long begin, long end) {
    for (long r = begin; r < end; r++) {
        const float scale = scale_of(in + r * C);
        for (int i = 0; i < C; i++) out[r * C + i] = in[r * C + i] * scale * w[i];
    }
}
/* Adds to d_in and d_w. */
static void norm_backward(float* d_in, float* d_w, const float* d_out, const float* in,
                          const float* w) {
    for (int r = 0; r < T; r++, d_in += C, d_out += C, in += C) {
        const float scale = scale_of(in);
        float dot = 0;
        for (int i = 0; i < C; i++) dot += d_out[i] * w[i] * in[i];
        for (int i = 0; i < C; i++) {
            d_w[i] += d_out[i] * in[i] * scale;
            d_in[i] += scale * (d_out[i] * w[i] - in[i] * dot * scale * scale / C);
        }
    }
}

/* Turns pairs of numbers by the position, or back. */
static void rope(float* a, int n, int back, long begin, long end) {
    for (long r = begin; r < end; r++)
        for (int i = 0; i < n; i += 2) {
            const float angle = (float)r * powf(10000, -(float)(i % H) / H);
            const float c = cosf(angle), s = back ? -sinf(angle) : sinf(angle);
            float *at = a + r * n + i, first = at[0];
            at[0] = first * c - at[1] * s;
            at[1] = first * s + at[1] * c;
        }
}

static void scores_of(float* s, const float* q, const float* k, int r, int h) {
    float most = -1e30f, sum = 0;
    for (int t = 0; t <= r; t++) {
        s[t] = 0;
        for (int i = 0; i < H; i++)
            s[t] += q[r * C + h * H + i] * k[t * K + h / (HEADS / GROUPS) * H + i];
        s[t] /= sqrtf(H);
        most = fmaxf(most, s[t]);
    }
    for (int t = 0; t <= r; t++) sum += s[t] = expf(s[t] - most);
    for (int t = 0; t <= r; t++) s[t] /= sum;
}
static void attention(float* out, const float* q, const float* k, const float* v) {
    float s[T];
    for (int r = 0; r < T; r++)
        for (int h = 0; h < HEADS; h++) {
            scores_of(s, q, k, r, h);
            for (int i = 0; i < H; i++) {
                float sum = 0;
                for (int t = 0; t <= r; t++) sum += s[t] * v[t * K + h / (HEADS / GROUPS) * H + i];
                out[r * C + h * H + i] = sum;
            }
        }
}
/* Adds to d_q, d_k and d_v. */
static void attention_backward(float* d_q, float* d_k, float* d_v, const float* d_out,
                               const float* q, const float* k, const float* v) {
    float s[T], d_s[T];
    for (int r = 0; r < T; r++)
        for (int h = 0; h < HEADS; h++) {
            const int g = h / (HEADS / GROUPS) * H;
            float dot = 0;
            scores_of(s, q, k, r, h);
            for (int t = 0; t <= r; t++) {
                d_s[t] = 0;
                for (int i = 0; i < H; i++) {
                    d_s[t] += d_out[r * C + h * H + i] * v[t * K + g + i];
                    d_v[t * K + g + i] += s[t] * d_out[r * C + h * H + i];
                }
                dot += s[t] * d_s[t];
            }
            for (int t = 0; t <= r; t++)
                for (int i = 0; i < H; i++) {
                    const float of = s[t] * (d_s[t] - dot) / sqrtf(H);
                    d_q[r * C + h * H + i] += of * k[t * K + g + i];
                    d_k[t * K + g + i] += of * q[r * C + h * H + i];
                }
        }
}

/* ---- a layer ---- */

static void layer_forward(int l) {
    const acts a = acts_of(l);
    const layer* w = &p.layers[l];
    memcpy(a.inp, x, sizeof x);
    norm(a.norm1, a.inp, w->norm1, 0, T);
    product(a.q, a.norm1, w->wq, C, C, 0, T), rope(a.q, C, 0, 0, T);
    product(a.k, a.norm1, w->wk, C, K, 0, T), rope(a.k, K, 0, 0, T);
    product(a.v, a.norm1, w->wv, C, K, 0, T);
    attention(a.att, a.q, a.k, a.v);
    product(a.mid, a.att, w->wo, C, C, 0, T);
    for (int i = 0; i < T * C; i++) a.mid[i] += a.inp[i];
    norm(a.norm2, a.mid, w->norm2, 0, T);
    product(a.gate, a.norm2, w->gate, C, F, 0, T);
    product(a.up, a.norm2, w->up, C, F, 0, T);
    for (int i = 0; i < T * F; i++) a.act[i] = a.gate[i] / (1 + expf(-a.gate[i])) * a.up[i];
    product(x, a.act, w->down, F, C, 0, T);
    for (int i = 0; i < T * C; i++) x[i] += a.mid[i];
}

static void layer_backward(int l) {
    static float d_act[T * F], d_gate[T * F], d_up[T * F], d_norm[T * C], d_att[T * C], d_q[T * C],
        d_k[T * K], d_v[T * K];
    const acts a = acts_of(l);
    const layer* w = &p.layers[l];
    layer* g = &d.layers[l];
    memset(d_act, 0, sizeof d_act), memset(d_norm, 0, sizeof d_norm),
        memset(d_att, 0, sizeof d_att);
    memset(d_q, 0, sizeof d_q), memset(d_k, 0, sizeof d_k), memset(d_v, 0, sizeof d_v);
    product_backward(d_act, g->down, dx, a.act, w->down, F, C);
    for (int i = 0; i < T * F; i++) {
        const float s = 1 / (1 + expf(-a.gate[i]));
        d_up[i] = d_act[i] * a.gate[i] * s;
        d_gate[i] = d_act[i] * a.up[i] * s * (1 + a.gate[i] * (1 - s));
    }
    product_backward(d_norm, g->gate, d_gate, a.norm2, w->gate, C, F);
    product_backward(d_norm, g->up, d_up, a.norm2, w->up, C, F);
    norm_backward(dx, g->norm2, d_norm, a.mid, w->norm2);

    product_backward(d_att, g->wo, dx, a.att, w->wo, C, C);
    attention_backward(d_q, d_k, d_v, d_att, a.q, a.k, a.v);
    rope(d_q, C, 1, 0, T), rope(d_k, K, 1, 0, T);
    memset(d_norm, 0, sizeof d_norm);
    product_backward(d_norm, g->wq, d_q, a.norm1, w->wq, C, C);
    product_backward(d_norm, g->wk, d_k, a.norm1, w->wk, C, K);
    product_backward(d_norm, g->wv, d_v, a.norm1, w->wv, C, K);
    norm_backward(dx, g->norm1, d_norm, a.inp, w->norm1);
}

/* ---- before and behind the layers ---- */

static void embed(void) {
    for (int t = 0; t < T; t++) memcpy(x + t * C, p.first.words + tokens[t] * C, C * sizeof *x);
}
static void embed_backward(void) {
    for (int t = 0; t < T; t++)
        for (int i = 0; i < C; i++) d.first.words[tokens[t] * C + i] += dx[t * C + i];
}

/* The loss, and its gradient. */
static void finish(void) {
    static float d_normed[T * C];
    const last* w = &p.last;
    last* g = &d.last;
    norm(normed, x, w->norm, 0, T);
    product(logits, normed, w->head, C, V, 0, T);
    for (int t = 0; t < T; t++) {
        float *row = logits + t * V, most = -1e30f, sum = 0;
        for (int i = 0; i < V; i++) most = fmaxf(most, row[i]);
        for (int i = 0; i < V; i++) sum += row[i] = expf(row[i] - most);
        for (int i = 0; i < V; i++) row[i] /= sum;
        loss -= log(row[tokens[t + 1]]) / (T * N_BATCHES);
        row[tokens[t + 1]] -= 1;
        for (int i = 0; i < V; i++) row[i] /= T * N_BATCHES;
    }
    memset(d_normed, 0, sizeof d_normed), memset(dx, 0, sizeof dx);
    product_backward(d_normed, g->head, logits, normed, w->head, C, V);
    norm_backward(dx, g->norm, d_normed, x, w->norm);
}

/* ---- a step ---- */

static double square_of(const float* g, long n) {
    double sum = 0;
    for (long i = 0; i < n; i++) sum += (double)g[i] * g[i];
    return sum;
}

static void adamw(float* w, const float* g, float* m, float* v, long n, float rate, float clip,
                  int step) {
    const float of_m = 1 - powf(0.9f, (float)step), of_v = 1 - powf(0.95f, (float)step);
    for (long i = 0; i < n; i++) {
        const float of = clip * g[i];
        m[i] = 0.9f * m[i] + 0.1f * of;
        v[i] = 0.95f * v[i] + 0.05f * of * of;
        w[i] -= rate * (m[i] / of_m / (sqrtf(v[i] / of_v) + 1e-8f) + 0.1f * w[i]);
    }
}
#define FLOATS(part) ((long)(sizeof(part) / sizeof(float)))

static float rate_of(int step) { /* warm-up, then a cosine */
    return 3e-3f * (step < 3 ? (float)step / 3 : 0.5f + 0.5f * cosf((float)(step - 3) / N_STEPS));
}

static void train_step(unsigned char* text, int step) {
    double square = 0;
    float clip;
    loss = 0;
    memset(&d, 0, sizeof d);
    for (int k = 0; k < N_BATCHES; k++) {
        tokens = text + ((step - 1) * N_BATCHES + k) * T;
        embed();
        for (int l = 0; l < L; l++) layer_forward(l);
        finish();
        for (int l = L - 1; l >= 0; l--) layer_backward(l);
        embed_backward();
    }
    square = square_of((float*)&d.first, FLOATS(first));
    for (int l = 0; l < L; l++) square += square_of((float*)&d.layers[l], FLOATS(layer));
    square += square_of((float*)&d.last, FLOATS(last));
    clip = square > 1 ? 1 / (float)sqrt(square) : 1;
    adamw((float*)&p, (float*)&d, (float*)&m, (float*)&v, FLOATS(params), rate_of(step), clip,
          step);
}

static void init(float* w, long n) {
    unsigned random = 1;
    for (long i = 0; i < n; i++)
        w[i] = 0.1f * ((float)((random = random * 1664525 + 1013904223) >> 8) / (1 << 24) - 0.5f);
    for (int l = 0; l < L; l++)
        for (int i = 0; i < C; i++) p.layers[l].norm1[i] += 1, p.layers[l].norm2[i] += 1;
    for (int i = 0; i < C; i++) p.last.norm[i] += 1;
}

int main(int argc, char** argv) {
    static unsigned char text[N_STEPS * N_BATCHES * T + 1];
    FILE* file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (!file || fread(text, 1, sizeof text, file) < sizeof text)
        return fprintf(stderr, "usage: %s FILE LOSSES WEIGHTS   (a file of %d bytes or more)\n",
                       argv[0], (int)sizeof text),
               2;
    fclose(file);
    init((float*)&p, FLOATS(params));
    file = fopen(argv[2], "w");
    for (int step = 1; step <= N_STEPS && file; step++) {
        train_step(text, step);
        fprintf(file, "%a\n", loss);
    }
    if (!file || fclose(file) || !(file = fopen(argv[3], "wb"))) return perror(argv[0]), 1;
    fwrite(&p, sizeof p, 1, file);
    printf("%ld bytes of weights, gradients and moments, %ld of activations; loss %.4f\n",
           (long)(4 * sizeof p), (long)sizeof memory, loss);
    return fclose(file) != 0;
}
