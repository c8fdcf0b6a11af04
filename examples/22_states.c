/* 22_states.c - one budget for activations, weights, gradients and moments.
 *
 * The trainer is a stack of MLP blocks, x = x + gelu(x W1) W2, over an embedding, with Adam.  First
 * everything stays on the device.  Then the budget is below the states alone: they lie on the host
 * and come to the device layer by layer.  Both runs end with the same bits.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/22_states.c -o 22_states -lpthread -lm
 * Expected output:
 *     keep      every tensor stays on the device
 *     plan      device 6.8 MiB (2 buffers, optimal), host 0 B, 0 B of rows moved each way
 *     device    weights 1.1 MiB, gradients 1.1 MiB, optimizer 2.2 MiB, activations 2.2 MiB
 *     rows      layers    kept  swapped  recomputed   of 128 in tiles of 32; the last swapped and recomputed rows stay on the device
 *               0-7          0      128           0   inp
 *               0-7          0        0         128   hidden, gelu
 *     limit     ...
 *     predicted ... ms a step, of which ...
 *     plan      device 1.3 MiB of 1.3 MiB (2 buffers, optimal), host 4.7 MiB, ... to the host and ... back in a step
 *     device    places of states 1.0 MiB, activations 320 KiB
 *     host      weights 1.1 MiB, gradients 1.1 MiB, optimizer 2.2 MiB, activations 192 KiB
 *     weights   bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 8, T = 128, C = 64, V = 8 * C, TILE = 32, N_STEPS = 5, W = 8 * C * C };
static float x[T * C], dx[T * C]; /* between layers, (T, C) */

enum { INP, HIDDEN, GELU, N_ACTS };
static const memo_item acts[N_ACTS] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                       MEMO_ITEM("hidden", 16 * C, MEMO_ROWS),
                                       MEMO_ITEM("gelu", 16 * C, MEMO_ROWS)};

/* Of each layer, W1 (C, 4C) and W2 (4C, C) in one; and of the embedding (V, C), as large. */
enum { WEIGHTS, GRADS, MOMENTS, N_STATES };
static const uint32_t all = MEMO_STATE_FIRST | 1; /* the embedding, and layers of kind 0 */
static const memo_state states[N_STATES] = {{"weights", 4 * W, MEMO_STATE_WEIGHTS, all},
                                            {"grads", 4 * W, MEMO_STATE_GRADIENT, all},
                                            {"moments", 8 * W, MEMO_STATE_UPDATE, all}};
#define ACT(l, act)     ((float*)memo_session_get_address(session, l, act))
#define STATE(l, state) ((float*)memo_session_get_state(session, l, state))

static void matmul(float* c, const float* a, const float* b, int64_t rows, int k, int n) {
    for (int64_t r = 0; r < rows; r++) /* c (rows, n) += a (rows, k) b (k, n) */
        for (int i = 0; i < k; i++)
            for (int j = 0; j < n; j++) c[r * n + j] += a[r * k + i] * b[i * n + j];
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t act, int64_t begin,
                      int64_t end) {
    float *hidden = ACT(l, HIDDEN), *gelu = ACT(l, GELU);
    (void)user;
    if (act == HIDDEN) {
        memset(hidden + begin * 4 * C, 0, (size_t)(end - begin) * 4 * C * sizeof(float));
        matmul(hidden + begin * 4 * C, ACT(l, INP) + begin * C, STATE(l, WEIGHTS), end - begin, C,
               4 * C);
    }
    for (int64_t i = begin * 4 * C; i < end * 4 * C && act == GELU; i++)
        gelu[i] = hidden[i] / (1 + expf(-hidden[i]));
}

static void forward(void* user, memo_session* session, int32_t l) {
    for (int t = 0; t < T && l == 0; t++) /* row t of the embedding is token t's */
        memcpy(x + t * C, STATE(MEMO_LAYER_FIRST, WEIGHTS) + t * C, C * sizeof(float));
    memcpy(ACT(l, INP), x, sizeof x);
    recompute(user, session, l, HIDDEN, 0, T);
    recompute(user, session, l, GELU, 0, T);
    matmul(x, ACT(l, GELU), STATE(l, WEIGHTS) + 4 * C * C, T, 4 * C, C);
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = ACT(l, INP), *hidden = ACT(l, HIDDEN), *gelu = ACT(l, GELU);
    const float *w1 = STATE(l, WEIGHTS), *w2 = w1 + 4 * C * C;
    float *d1 = STATE(l, GRADS), *d2 = d1 + 4 * C * C; /* zero when a step begins */
    for (int i = 0; i < T * C && l == L - 1; i++)      /* the target is a wave */
        dx[i] = (x[i] - sinf((float)i)) / T;
    for (int t = 0; t < T; t++, inp += C, hidden += 4 * C, gelu += 4 * C) {
        float d_hidden[4 * C], *d = dx + t * C;
        for (int j = 0; j < 4 * C; j++) {
            float s = 1 / (1 + expf(-hidden[j])), sum = 0;
            for (int c = 0; c < C; c++) sum += d[c] * w2[j * C + c];
            for (int c = 0; c < C; c++) d2[j * C + c] += gelu[j] * d[c];
            d_hidden[j] = sum * s * (1 + hidden[j] * (1 - s));
        }
        for (int c = 0; c < C; c++)
            for (int j = 0; j < 4 * C; j++) {
                d[c] += d_hidden[j] * w1[c * 4 * C + j];
                d1[c * 4 * C + j] += d_hidden[j] * inp[c];
            }
    }
    for (int i = 0; i < T * C && l == 0; i++) STATE(MEMO_LAYER_FIRST, GRADS)[i] += dx[i];
    (void)user;
}

/* Adam, for the embedding and each layer, when its gradients are complete.  The step comes from the
 * micro-batch: with MEMO_MAY_DEFER an update may run in the next step's forward. */
static void update(void* user, memo_session* session, int32_t l) {
    float *w = STATE(l, WEIGHTS), *g = STATE(l, GRADS), *m = STATE(l, MOMENTS), *v = m + W;
    const int step = *(const int*)memo_session_get_batch(session).values; /* from 1 on */
    const float of_m = 1 - powf(0.9f, (float)step), of_v = 1 - powf(0.99f, (float)step);
    for (int i = 0; w && i < W; i++) { /* no states of what follows the last layer */
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.99f * v[i] + 0.01f * g[i] * g[i];
        w[i] -= 0.002f * (m[i] / of_m) / (sqrtf(v[i] / of_v) + 1e-8f);
    }
    (void)user;
}

/* All weights between the session and an array; the embedding is first. */
static memo_status copy_weights(memo_session* session, float* w, int reads, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int l = MEMO_LAYER_FIRST; l < L && !status; l++, w += W)
        status = reads ? memo_session_read_state(session, l, WEIGHTS, 0, w, 4 * W, error)
                       : memo_session_write_state(session, l, WEIGHTS, 0, w, 4 * W, error);
    return status;
}

static memo_status train(int64_t device_bytes, float* weights, memo_error* error) {
    memo_session_desc desc = {0};
    memo_session* session;
    memo_text report = {NULL, 0, 0, 0};
    memo_batch batch = {0};
    memo_status status;
    int step;
    desc.tensors = acts, desc.n_tensors = N_ACTS, desc.states = states, desc.n_states = N_STATES;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE, desc.device_bytes = device_bytes;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    desc.update = update;
    desc.update_may = MEMO_MAY_FUSE; /* when a layer's backward ends: no norm is needed */
    if ((status = memo_session_create(&desc, &session, error))) return status;
    status = copy_weights(session, weights, 0, error);      /* states are zero until then */
    batch.values = &step, batch.values_bytes = sizeof step; /* copied in each micro-batch */
    for (step = 1; step <= N_STEPS && !status; step++) {
        status = memo_session_run(session, &batch, error);
        if (!status) status = memo_session_update(session, error);
    }
    if (!status) status = copy_weights(session, weights, 1, error);
    /* Of the steps behind the four that are timed. */
    const memo_session_info info = memo_session_get_info(session);
    memo_step_plan_put(info.plan, &report);
    if (!status) status = memo_text_write(&report, "-", error);
    memo_session_destroy(session);
    return status;
}

int main(void) {
    static float kept[(L + 1) * W], streamed[(L + 1) * W];
    memo_error error;
    for (int i = 0; i < (L + 1) * W; i++) kept[i] = streamed[i] = 0.03f * cosf(37 * (float)i);

    memo_status status = train(0, kept, &error); /* no budget: all stays on the device */
    if (!status) status = train(1344 << 10, streamed, &error); /* the smallest budget that works */
    const int differ = memcmp(kept, streamed, sizeof kept) != 0;
    printf("weights   %s\n", status ? error.message : differ ? "differ" : "bitwise the same");
    return status || differ;
}
