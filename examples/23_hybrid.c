/* 23_hybrid.c - attention, a gated recurrence and a mixture of experts in one model, in slices,
 * inside a budget: every policy gives the same bits.
 *
 * Layers are of three kinds, h += f(h):
 *
 *     recurrence   S = g S + (1 - g) v,  f = S              g = sigmoid(W0 h), v = W1 h
 *     attention    f = attention(q, k, v) of a document     q, k, v = W0 h, W1 h, W2 h
 *     experts      f = p U relu(D h) of the best expert     p = softmax(W0 h)
 *
 * A slice of rows is computed at a time.  Later slices read keys and values (LAYER) and go on with
 * S; each slice keeps the S that it began with (CARRIED).  Documents begin at any row.  Sessions
 * train for three steps on devices of the planned memory, the last in the smallest budget.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/23_hybrid.c -o 23_hybrid -lpthread -lm
 * Expected output:
 *     keep      of 250 rows  device 177.5 KiB, moved   0.0 KiB, loss 1.0741
 *     keep      of  32 rows  device 178.5 KiB, moved   0.0 KiB, loss 1.0741
 *     recompute of  32 rows  device 108.5 KiB, moved   0.0 KiB, loss 1.0741
 *     swap      of  32 rows  device  57.5 KiB, moved 113.2 KiB, loss 1.0741
 *     memo      of  32 rows  device  55.5 KiB, moved  80... KiB, loss 1.0741
 *     weights, gradients and loss: 4 of 4 in slices have the bits of the first
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 6, C = 8, E = 4, ROWS = 250, SLICE = 32, DOCUMENT = 45, STEPS = 3 };
enum { N_W = 1 + 2 * E, N_VALUES = L * N_W * C * C }; /* matrices of a layer; weights */
enum { RECURRENCE, ATTENTION, EXPERTS };
static const int32_t layer_kinds[L] = {RECURRENCE, ATTENTION, EXPERTS,
                                       RECURRENCE, ATTENTION, EXPERTS};

enum { R = 1 << RECURRENCE, A = 1 << ATTENTION, X = 1 << EXPERTS };
enum { H, INPUT, STATE, GATE, VALUE, K, V, Q, P, UP, N_TENSORS };
static const memo_item tensors[N_TENSORS] = {
    MEMO_ITEM("h", 4 * C, MEMO_MOVE, MEMO_EDGE),      /* in the backward: its gradient */
    MEMO_ITEM("input", 4 * C, MEMO_MOVE, MEMO_INPUT), /* h as the layer found it */
    MEMO_ITEM("state", 4 * C, MEMO_MOVE, MEMO_CARRIED, 0,
              R), /* S as the slice found it: bytes of a slice */
    MEMO_ITEM("gate", 4 * C, MEMO_ROWS, 0, 0, R),
    MEMO_ITEM("value", 4 * C, MEMO_ROWS, 0, 0, R),
    MEMO_ITEM("k", 4 * C, MEMO_MOVE, MEMO_LAYER, 0, A), /* later slices read them */
    MEMO_ITEM("v", 4 * C, MEMO_MOVE, MEMO_LAYER, 0, A),
    MEMO_ITEM("q", 4 * C, MEMO_ROWS, 0, 0, A),
    MEMO_ITEM("p", 4 * E, MEMO_ROWS, 0, 0, X),
    MEMO_ITEM("up", 4 * C, MEMO_ROWS, 0, 0, X)};

/* Each is of one kind of layers.  The first three pass from slice to slice. */
enum { S_NOW, D_S, D_KV, S_BEFORE, SHARES, N_BUFFERS };
static const memo_session_buffer buffers[N_BUFFERS] = {
    {"S", 4 * C, 0, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, R},
    {"gradient of S", 4 * C, 0, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, R},
    {"gradients of k, v", 0, 8 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, A},
    {"S of rows", 4 * C, 4 * C, MEMO_PASS_BACKWARD, MEMO_EACH_SLICE, MEMO_PASS_BACKWARD, 0, R},
    {"shares", 8 * DOCUMENT, 0, MEMO_PASS_BACKWARD, MEMO_EACH_SLICE, MEMO_PASS_BACKWARD, 0, A}};

typedef struct rows { /* the addresses of a row, in the order of the table */
    float *h, *input, *state, *gate, *value, *k, *v, *q, *p, *up;
} rows;

typedef struct trainer {
    float w[L][N_W][C][C], d_w[L][N_W][C][C];
    double loss; /* of this step */
} trainer;

/* out = w in, n values */
static void multiply(float* out, const float* in, float (*w)[C], int n) {
    for (int i = 0; i < n; i++) {
        out[i] = 0;
        for (int j = 0; j < C; j++) out[i] += w[i][j] * in[j];
    }
}
static void multiply_back(float* d_in, float (*d_w)[C], const float* d_out, const float* in,
                          float (*w)[C], int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < C; j++) d_in[j] += w[i][j] * d_out[i], d_w[i][j] += d_out[i] * in[j];
}
static void softmax(float* x, int64_t n) {
    float most = x[0], sum = 0;
    for (int64_t j = 1; j < n; j++) most = fmaxf(most, x[j]);
    for (int64_t j = 0; j < n; j++) sum += x[j] = expf(x[j] - most);
    for (int64_t j = 0; j < n; j++) x[j] /= sum;
}
static int best(const float* p) {
    int e = 0;
    for (int i = 1; i < E; i++) e = p[i] > p[e] ? i : e;
    return e;
}
/* The shares of the rows of a document, where k begins, in its row n - 1. */
static void attend(float* share, const float* q, const float* k, int64_t n) {
    memset(share, 0, (size_t)n * sizeof *share);
    for (int64_t j = 0; j < n * C; j++) share[j / C] += q[j % C] * k[j];
    softmax(share, n);
}
/* S after row i of the sequence; documents begin with S = 0. */
static void carry(float* s, const float* gate, const float* value, int64_t i) {
    for (int c = 0; c < C; c++)
        s[c] = (i % DOCUMENT ? gate[c] * s[c] : 0) + (1 - gate[c]) * value[c];
}

/* Rows [begin, end) of the open slice, in the forward too. */
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    float(*w)[C][C] = ((trainer*)user)->w[l];
    for (int64_t r = begin; r < end; r++) {
        rows a;
        memo_session_get_addresses(session, l, r, (void**)&a);
        if (tensor == GATE) multiply(a.gate, a.input, w[0], C);
        for (int c = 0; c < C && tensor == GATE; c++) a.gate[c] = 1 / (1 + expf(-a.gate[c]));
        if (tensor == VALUE) multiply(a.value, a.input, w[1], C);
        if (tensor == Q) multiply(a.q, a.input, w[0], C);
        if (tensor == P) multiply(a.p, a.input, w[0], E), softmax(a.p, E);
        if (tensor == UP) multiply(a.up, a.input, w[1 + best(a.p)], C);
    }
}

/* One call for each slice: rows [begin, end) of the sequence. */
static void forward(void* user, memo_session* session, int32_t l) {
    const int kind = layer_kinds[l];
    float(*w)[C][C] = ((trainer*)user)->w[l], share[DOCUMENT], relu[C];
    float* s = kind == RECURRENCE ? memo_session_get_buffer(session, S_NOW) : NULL;
    const memo_slice slice = memo_session_get_slice(session);
    const int64_t begin = slice.begin, end = slice.end;
    rows a;
    for (int64_t i = begin; i < end; i++) {
        float f[C] = {0};
        memo_session_get_addresses(session, l, i - begin, (void**)&a);
        for (int c = 0; c < C && l == 0; c++) a.h[c] = sinf((float)(i * C + c));
        memcpy(a.input, a.h, C * sizeof *a.h);
        for (int tensor = GATE; tensor < N_TENSORS; tensor++)
            if (tensors[tensor].kinds >> kind & 1)
                recompute(user, session, l, tensor, i - begin, i - begin + 1);
        if (kind == RECURRENCE) {
            if (i == 0) memset(s, 0, C * sizeof *s);
            if (i == begin) memcpy(a.state, s, C * sizeof *s);
            carry(s, a.gate, a.value, i);
            memcpy(f, s, sizeof f);
        } else if (kind == ATTENTION) { /* k and v begin with row 0 of the sequence */
            const int64_t first = i - i % DOCUMENT;
            multiply(a.k + i * C, a.input, w[1], C);
            multiply(a.v + i * C, a.input, w[2], C);
            attend(share, a.q, a.k + first * C, i + 1 - first);
            for (int64_t j = first; j <= i; j++)
                for (int c = 0; c < C; c++) f[c] += share[j - first] * a.v[j * C + c];
        } else {
            for (int c = 0; c < C; c++) relu[c] = fmaxf(a.up[c], 0);
            multiply(f, relu, w[1 + E + best(a.p)], C);
            for (int c = 0; c < C; c++) f[c] *= a.p[best(a.p)];
        }
        for (int c = 0; c < C; c++) a.h[c] += f[c];
    }
}

/* Called where the backward of a slice of the last layer begins: the gradient replaces h. */
static void loss(void* user, memo_session* session) {
    float* h = memo_session_get_address(session, L - 1, H);
    const memo_slice slice = memo_session_get_slice(session);
    for (int64_t i = (slice.end - slice.begin) * C - 1; i >= 0; i--) {
        ((trainer*)user)->loss += 0.5 * h[i] * h[i] / ROWS;
        h[i] /= ROWS;
    }
}

/* Row i of the sequence.  s: the state before it; a->h: the gradient of h. */
static void recurrence_back(trainer* t, int32_t l, int64_t i, const rows* a, const float* s,
                            float* d_s) {
    float d_gate[C], d_value[C];
    for (int c = 0; c < C; c++) {
        const float before = i % DOCUMENT ? s[c] : 0;
        d_s[c] += a->h[c];
        d_gate[c] = d_s[c] * (before - a->value[c]) * a->gate[c] * (1 - a->gate[c]);
        d_value[c] = d_s[c] * (1 - a->gate[c]);
        d_s[c] *= i % DOCUMENT ? a->gate[c] : 0;
    }
    multiply_back(a->h, t->d_w[l][0], d_gate, a->input, t->w[l][0], C);
    multiply_back(a->h, t->d_w[l][1], d_value, a->input, t->w[l][1], C);
}

/* Row n - 1 of a document, where k, v and their gradients begin. */
static void attention_back(trainer* t, int32_t l, int64_t n, const rows* a, const float* k,
                           const float* v, float* d_k, float* d_v, float* share) {
    float d_q[C] = {0}, *d_share = share + DOCUMENT, sum = 0;
    attend(share, a->q, k, n);
    for (int64_t j = 0; j < n; j++) {
        d_share[j] = 0;
        for (int c = 0; c < C; c++) {
            d_share[j] += a->h[c] * v[j * C + c];
            d_v[j * C + c] += share[j] * a->h[c];
        }
        sum += share[j] * d_share[j];
    }
    for (int64_t j = 0; j < n * C; j++) {
        d_q[j % C] += share[j / C] * (d_share[j / C] - sum) * k[j];
        d_k[j] += share[j / C] * (d_share[j / C] - sum) * a->q[j % C];
    }
    multiply_back(a->h, t->d_w[l][0], d_q, a->input, t->w[l][0], C); /* no earlier row adds to */
    multiply_back(a->h, t->d_w[l][1], d_k + (n - 1) * C, a->input, t->w[l][1], C); /* d_k, d_v */
    multiply_back(a->h, t->d_w[l][2], d_v + (n - 1) * C, a->input, t->w[l][2], C);
}

static void experts_back(trainer* t, int32_t l, const rows* a) {
    const int e = best(a->p), down = 1 + E + e;
    float f[C], relu[C], d_f[C], d_up[C] = {0}, d_p = 0, d_score[E];
    for (int c = 0; c < C; c++) relu[c] = fmaxf(a->up[c], 0);
    multiply(f, relu, t->w[l][down], C);
    for (int c = 0; c < C; c++) d_p += a->h[c] * f[c], d_f[c] = a->h[c] * a->p[e];
    multiply_back(d_up, t->d_w[l][down], d_f, relu, t->w[l][down], C);
    for (int c = 0; c < C; c++) d_up[c] = a->up[c] > 0 ? d_up[c] : 0;
    for (int x = 0; x < E; x++) d_score[x] = d_p * a->p[e] * ((float)(x == e) - a->p[x]);
    multiply_back(a->h, t->d_w[l][1 + e], d_up, a->input, t->w[l][1 + e], C);
    multiply_back(a->h, t->d_w[l][0], d_score, a->input, t->w[l][0], E);
}

/* The last slice comes first. */
static void backward(void* user, memo_session* session, int32_t l) {
    float* buffer[N_BUFFERS] = {NULL};
    const int64_t n = memo_session_get_batch(session).n_rows;
    const memo_slice slice = memo_session_get_slice(session);
    const int64_t begin = slice.begin, end = slice.end;
    int64_t at;
    rows a;
    for (int64_t i = D_S; i < N_BUFFERS; i++)
        if (buffers[i].kinds >> layer_kinds[l] & 1)
            buffer[i] = memo_session_get_buffer(session, (int32_t)i);
    if (end == n && buffer[D_S]) memset(buffer[D_S], 0, C * sizeof(float));
    if (end == n && buffer[D_KV]) memset(buffer[D_KV], 0, 2 * (size_t)(n * C) * sizeof(float));
    for (int64_t i = begin; i < end && layer_kinds[l] == RECURRENCE;
         i++) { /* S before each row again */
        float* s = buffer[S_BEFORE] + (i - begin) * C;
        memo_session_get_addresses(session, l, i - begin, (void**)&a);
        if (i == begin) memcpy(s, a.state, C * sizeof *s);
        memcpy(s + C, s, C * sizeof *s);
        carry(s + C, a.gate, a.value, i);
    }

    for (int64_t i = end - 1; i >= begin; i--) {
        memo_session_get_addresses(session, l, i - begin, (void**)&a);
        at = (i - i % DOCUMENT) * C;
        if (layer_kinds[l] == RECURRENCE)
            recurrence_back(user, l, i, &a, buffer[S_BEFORE] + (i - begin) * C, buffer[D_S]);
        else if (layer_kinds[l] == ATTENTION)
            attention_back(user, l, i % DOCUMENT + 1, &a, a.k + at, a.v + at, buffer[D_KV] + at,
                           buffer[D_KV] + n * C + at, buffer[SHARES]);
        else
            experts_back(user, l, &a);
    }
}

/* Trains on a device that has no more memory than planned; prints a line.  With MEMO_CHECK=1 a
 * session takes more. */
static memo_status train(trainer* t, memo_session_desc desc, memo_error* error) {
    memo_host_device_desc host = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    memo_device* device = NULL;
    float *w = &t->w[0][0][0][0], *d_w = &t->d_w[0][0][0][0];
    memo_status status = memo_session_plan(&desc, NULL, &plan, error);
    if (status) return status;
    if (!getenv("MEMO_CHECK")) host.device_memory_bytes = plan->device_bytes;
    status = memo_host_device_create(&host, &device, error);
    desc.user = t, desc.device = device, desc.computes_on_host = 1;
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    for (int i = 0; i < N_VALUES; i++) w[i] = 0.2f * sinf(1.0f + 7 * (float)i);
    for (int step = 0; step < STEPS && !status; step++) {
        t->loss = 0;
        memset(t->d_w, 0, sizeof t->d_w);
        status = memo_session_run(session, NULL, error);
        for (int i = 0; i < N_VALUES; i++) w[i] -= 0.1f * d_w[i];
    }
    if (!status)
        printf("%-9s of %3d rows  device %5.1f KiB, moved %5.1f KiB, loss %.4f\n",
               memo_policy_name(desc.policy), (int)desc.slice_rows,
               (double)plan->device_bytes / 1024, (double)plan->sizes.swapped_bytes / 1024,
               t->loss);
    memo_session_destroy(session);
    memo_host_device_destroy(device);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    static trainer first, t;
    memo_session_desc desc = {0};
    memo_status status = MEMO_STATUS_OK;
    memo_error error;
    int n_same = 0;
    desc.tensors = tensors, desc.n_tensors = N_TENSORS, desc.n_layers = L, desc.n_rows = ROWS;
    desc.layer_kinds = layer_kinds, desc.buffers = buffers, desc.n_buffers = N_BUFFERS;
    desc.forward = forward, desc.loss = loss, desc.backward = backward, desc.recompute = recompute;
    for (int run = 0; run < 5 && !status; run++) {
        desc.slice_rows = run ? SLICE : ROWS; /* the first computes layers at once */
        desc.policy = run ? (memo_policy)(run % 4) : MEMO_POLICY_KEEP; /* MEMO is 0, the last */
        if (desc.policy == MEMO_POLICY_MEMO)
            status = memo_session_get_least(&desc, &desc.device_bytes, &error);
        if (!status) status = train(run ? &t : &first, desc, &error);
        n_same += run && !memcmp(&t, &first, sizeof t);
    }
    if (status) fprintf(stderr, "%s\n", error.message);
    printf("weights, gradients and loss: %d of 4 in slices have the bits of the first\n", n_same);
    return status || n_same < 4;
}
