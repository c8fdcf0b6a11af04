/* train_llama_memo.c - train_llama.c with memo: weights, gradients, moments and activations in one budget.
 *
 *     cc -O2 -I../.. train_llama_memo.c -o train_llama_memo -lpthread -lm
 *     ./train_llama_memo FILE LOSSES WEIGHTS BYTES     BYTES on the device; 0: the least that works
 *     ./train_llama_memo FILE                          checks the port, and prints the table of tensors as seen
 *
 * The edits are marked `memo 1` to `memo 5`; port.sh compares losses and weights of both bit by bit. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#include "extras/memo_check.h"
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
static params p; /* the first weights, and the last */
#define FLOATS(part) ((long)(sizeof(part) / sizeof(float)))

/* memo 1: weights, gradients and moments are states, of the parts before, in and behind the layers. */
enum { W, G, MOMENTS, N_OF_PART };
#define STATES(part, name, kinds)                                                                  \
    {name "_w", sizeof(part), MEMO_STATE_WEIGHTS, kinds},                                          \
        {name "_g", sizeof(part), MEMO_STATE_GRADIENT, kinds}, {                                   \
        name "_m", 2 * sizeof(part), MEMO_STATE_UPDATE, kinds                                      \
    }
static const memo_state states[] = {STATES(first, "first", MEMO_STATE_FIRST),
                                    STATES(layer, "layer", 0),
                                    STATES(last, "last", MEMO_STATE_LAST)};
enum { N_STATES = sizeof states / sizeof *states };
static int state_of(int l) { return (l < 0 ? 0 : l < L ? 1 : 2) * N_OF_PART; }
#define STATE(l, state) memo_session_get_state(session, l, state_of(l) + (state))

/* ---- what the forward leaves for the backward ---- */

typedef struct acts {
    float *inp, *norm1, *q, *k, *v, *att, *mid, *norm2, *gate, *up,
        *act; /* (T, C), (T, K), (T, F) */
} acts;
/* memo 2: they were one array for all layers.  The order is that of the struct. */
enum { INP, NORM1, Q, K_, V_, ATT, MID, NORM2, GATE, UP, ACT, N_ACTS };
static memo_item items[N_ACTS] = {
    MEMO_ITEM("inp", 4 * C, MEMO_MOVE),  MEMO_ITEM("norm1", 4 * C, MEMO_ROWS),
    MEMO_ITEM("q", 4 * C, MEMO_ROWS),    MEMO_ITEM("k", 4 * K, MEMO_ROWS),
    MEMO_ITEM("v", 4 * K, MEMO_ROWS),    MEMO_ITEM("att", 4 * C, MEMO_WHOLE),
    MEMO_ITEM("mid", 4 * C, MEMO_ROWS),  MEMO_ITEM("norm2", 4 * C, MEMO_ROWS),
    MEMO_ITEM("gate", 4 * F, MEMO_ROWS), MEMO_ITEM("up", 4 * F, MEMO_ROWS),
    MEMO_ITEM("act", 4 * F, MEMO_ROWS)};
static acts acts_of(memo_session* session, int l) {
    acts of;
    memo_session_get_addresses(session, l, 0, (void**)&of);
    return of;
}

/* Between layers (T, C); of the loss. */
static float x[T * C], dx[T * C], normed[T * C], logits[T * V];
static unsigned char* tokens; /* T and one */
static double loss;
typedef struct of_step { /* what an update needs of its step, whenever it runs */
    int step;
    float rate, clip;
} of_step;
static of_step now;
static double squares[L + 2]; /* of the gradients of each part; the last backward writes them */
static unsigned char text[N_STEPS * N_BATCHES * T + 1];

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

/* memo 3: rows of one tensor, from those before. */
static void recompute(void* user, memo_session* session, int32_t l, int32_t item, int64_t begin,
                      int64_t end) {
    const acts a = acts_of(session, l);
    const layer* w = STATE(l, W);
    (void)user;
    switch (item) {
    case NORM1: norm(a.norm1, a.inp, w->norm1, begin, end); break;
    case Q: product(a.q, a.norm1, w->wq, C, C, begin, end), rope(a.q, C, 0, begin, end); break;
    case K_: product(a.k, a.norm1, w->wk, C, K, begin, end), rope(a.k, K, 0, begin, end); break;
    case V_: product(a.v, a.norm1, w->wv, C, K, begin, end); break;
    case ATT: attention(a.att, a.q, a.k, a.v); break;
    case MID:
        product(a.mid, a.att, w->wo, C, C, begin, end);
        for (long i = begin * C; i < end * C; i++) a.mid[i] += a.inp[i];
        break;
    case NORM2: norm(a.norm2, a.mid, w->norm2, begin, end); break;
    case GATE: product(a.gate, a.norm2, w->gate, C, F, begin, end); break;
    case UP: product(a.up, a.norm2, w->up, C, F, begin, end); break;
    case ACT:
        for (long i = begin * F; i < end * F; i++)
            a.act[i] = a.gate[i] / (1 + expf(-a.gate[i])) * a.up[i];
    }
}

static void embed(memo_session* session);
static void layer_forward(void* user, memo_session* session, int32_t l) {
    const acts a = acts_of(session, l);
    const layer* w = STATE(l, W);
    if (l == 0) embed(session);
    memcpy(a.inp, x, sizeof x);
    for (int item = NORM1; item < N_ACTS; item++) recompute(user, session, l, item, 0, T);
    product(x, a.act, w->down, F, C, 0, T);
    for (int i = 0; i < T * C; i++) x[i] += a.mid[i];
}

static double square_of(const float* g, long n);
static void embed_backward(memo_session* session);
static void layer_backward(void* user, memo_session* session, int32_t l) {
    static float d_act[T * F], d_gate[T * F], d_up[T * F], d_norm[T * C], d_att[T * C], d_q[T * C],
        d_k[T * K], d_v[T * K];
    const acts a = acts_of(session, l);
    const layer* w = STATE(l, W);
    layer* g = STATE(l, G);
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
    if (l == 0) embed_backward(session);
    squares[1 + l] = square_of((float*)g, FLOATS(layer));
    (void)user;
}

/* ---- before and behind the layers ---- */

static void embed(memo_session* session) {
    const first* w = STATE(MEMO_LAYER_FIRST, W);
    for (int t = 0; t < T; t++) memcpy(x + t * C, w->words + tokens[t] * C, C * sizeof *x);
}
static void embed_backward(memo_session* session) {
    first* g = STATE(MEMO_LAYER_FIRST, G);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < C; i++) g->words[tokens[t] * C + i] += dx[t * C + i];
    squares[0] = square_of((float*)g, FLOATS(first));
}

/* The loss, and its gradient. */
static void finish(void* user, memo_session* session) {
    static float d_normed[T * C];
    const last* w = STATE(L, W);
    last* g = STATE(L, G);
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
    squares[L + 1] = square_of((float*)g, FLOATS(last));
    (void)user;
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
/* memo 4: AdamW of a part. */
static void update(void* user, memo_session* session, int32_t l) {
    const long n = l < 0 ? FLOATS(first) : l < L ? FLOATS(layer) : FLOATS(last);
    of_step of;
    float* moments = STATE(l, MOMENTS);
    memcpy(&of, memo_session_get_batch(session).values, sizeof of);
    adamw(STATE(l, W), STATE(l, G), moments, moments + n, n, of.rate, of.clip, of.step);
    (void)user;
}

static float rate_of(int step) { /* warm-up, then a cosine */
    return 3e-3f * (step < 3 ? (float)step / 3 : 0.5f + 0.5f * cosf((float)(step - 3) / N_STEPS));
}

static memo_status train_step(void* user, memo_session* session, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    double square = 0;
    (void)user;
    loss = 0;
    now.rate = rate_of(++now.step);
    for (int k = 0; k < N_BATCHES && !status; k++) {
        memo_batch batch = {0};
        batch.more_follow = k < N_BATCHES - 1;
        batch.values = &now, batch.values_bytes = sizeof now;
        tokens = text + ((now.step - 1) * N_BATCHES + k) * T;
        status = memo_session_run(session, &batch, error);
    }
    for (int part = 0; part < L + 2; part++) square += squares[part];
    now.clip = square > 1 ? 1 / (float)sqrt(square) : 1;
    if (!status) status = memo_session_set_update_values(session, &now, sizeof now, error);
    return status ? status : memo_session_update(session, error);
}

/* All weights between the session and p. */
static memo_status copy_weights(memo_session* session, int reads, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    char* at = (char*)&p;
    for (int l = MEMO_LAYER_FIRST; l <= L && !status; l++) {
        const int64_t n = states[state_of(l)].size_bytes;
        status = reads ? memo_session_read_state(session, l, state_of(l), 0, at, n, error)
                       : memo_session_write_state(session, l, state_of(l), 0, at, n, error);
        at += n;
    }
    return status;
}

static void init(float* w, long n) {
    unsigned random = 1;
    for (long i = 0; i < n; i++)
        w[i] = 0.1f * ((float)((random = random * 1664525 + 1013904223) >> 8) / (1 << 24) - 0.5f);
    for (int l = 0; l < L; l++)
        for (int i = 0; i < C; i++) p.layers[l].norm1[i] += 1, p.layers[l].norm2[i] += 1;
    for (int i = 0; i < C; i++) p.last.norm[i] += 1;
}

/* memo 5: the session, and its check. */
static memo_session_desc make_desc(void) {
    memo_session_desc desc = {0};
    desc.tensors = items, desc.n_tensors = N_ACTS, desc.states = states, desc.n_states = N_STATES;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = 8, desc.micro_batches = N_BATCHES;
    desc.forward = layer_forward, desc.between = finish, desc.backward = layer_backward;
    desc.recompute = recompute, desc.update = update;
    desc.update_may = MEMO_MAY_DEFER; /* the norm of the step does not allow MEMO_MAY_FUSE */
    return desc;
}

static memo_status check_port(memo_error* error) {
    const memo_verify_output outputs[] = {{"now", &now, sizeof now, MEMO_TYPE_I32, 0},
                                          {"squares", squares, sizeof squares, MEMO_TYPE_F64, 0},
                                          {"loss", &loss, sizeof loss, MEMO_TYPE_F64, 0}};
    memo_session_desc desc = make_desc();
    memo_verify_desc check = {0};
    memo_text table = {NULL, 0, 0, 0};
    memo_status status;
    check.outputs = outputs, check.n_outputs = 3, check.train = train_step;
    tokens = text;
    status = memo_session_verify(&desc, &check, error);
    for (int i = 0; i < N_ACTS; i++) items[i].away = MEMO_KEEP;
    if (!status) status = memo_session_describe(&desc, &check, &table, error);
    return status ? status : memo_text_write(&table, "-", error);
}

static memo_status train(const char* path, int64_t device_bytes, memo_error* error) {
    memo_session_desc desc = make_desc();
    memo_session* session = NULL;
    FILE* file = fopen(path, "w");
    memo_status status = MEMO_STATUS_OK;
    if (!file) return memo_error_set(error, MEMO_STATUS_IO, "%s: cannot be written", path);
    if (!device_bytes) status = memo_session_get_least(&desc, &device_bytes, error);
    desc.device_bytes = device_bytes;
    if (!status) status = memo_session_create(&desc, &session, error);
    if (!status) status = copy_weights(session, 0, error);
    for (int k = 0; k < N_STEPS && !status; k++) {
        status = train_step(NULL, session, error);
        fprintf(file, "%a\n", loss);
    }
    if (!status) status = copy_weights(session, 1, error);
    if (!status) {
        const memo_step_plan* plan = memo_session_get_info(session).plan;
        printf("%lld bytes on the device, %lld on the host; loss %.4f\n",
               (long long)plan->device_bytes, (long long)plan->host_bytes, loss);
    }
    memo_session_destroy(session);
    fclose(file);
    return status;
}

int main(int argc, char** argv) {
    FILE* file = argc == 2 || argc == 5 ? fopen(argv[1], "rb") : NULL;
    memo_error error;
    if (!file || fread(text, 1, sizeof text, file) < sizeof text)
        return fprintf(stderr,
                       "usage: %s FILE [LOSSES WEIGHTS BYTES]   (a file of %d bytes or more)\n",
                       argv[0], (int)sizeof text),
               2;
    fclose(file);
    init((float*)&p, FLOATS(params));
    if (argc == 2 ? check_port(&error) : train(argv[2], atoll(argv[4]), &error))
        return fprintf(stderr, "%s\n", error.message), 1;
    if (argc == 2) return 0;
    if (!(file = fopen(argv[3], "wb"))) return perror(argv[0]), 1;
    fwrite(&p, sizeof p, 1, file);
    return fclose(file) != 0;
}
