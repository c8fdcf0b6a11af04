/* 05_three_edits.c - adds memo to a trainer of plain C, shaped like llm.c, by three numbered edits.
 *
 * The trainer is a stack of MLP blocks, out = inp + gelu(inp W1) W2, and computes on the calling
 * thread.  Before the edits its activations were one array, and two loops called its layers.  It
 * runs twice, without and with a budget.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/05_three_edits.c -o 05_three_edits -lpthread -lm
 * Expected output:
 *     keep      every tensor stays on the device
 *     plan      device 4.5 MiB (1 buffer, optimal), host 0 B, 0 B of rows moved each way
 *     device    activations 4.5 MiB
 *     rows      layers    kept  swapped  recomputed   of 512 in tiles of 64; the last swapped and recomputed rows stay on the device
 *               0-7          0      512           0   inp
 *               0-7          0        0         512   hidden, gelu
 *     limit     ...
 *     predicted ... ms a step, of which ...
 *     plan      device 640 KiB of 640 KiB (1 buffer, optimal), host 384 KiB, 384 KiB to the host and 384 KiB back in a step
 *     device    activations 640 KiB
 *     host      activations 384 KiB
 *     gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 8, T = 512, C = 32, TILE = 64 }; /* layers, tokens, channels, rows of one product */
static float params[L][2][4 * C * C], grads[L][2][4 * C * C]; /* W1 (C, 4C) and W2 (4C, C) */
static float out[T * C], dout[T * C];                         /* between layers, (T, C) */

/* Edit 1: describe a layer's activations.  They were float* acts, 9 C per token. */
enum { INP, HIDDEN, GELU, N_ACTS };
static const memo_item acts[N_ACTS] = {
    MEMO_ITEM("inp", sizeof(float) * C, MEMO_MOVE),        /* (T, C): swapped */
    MEMO_ITEM("hidden", sizeof(float) * 4 * C, MEMO_ROWS), /* (T, 4C): swapped or recomputed */
    MEMO_ITEM("gelu", sizeof(float) * 4 * C, MEMO_ROWS)};  /* (T, 4C) */
#define ACT(l, act) ((float*)memo_session_get_address(session, l, act)) /* was acts + l * size */

static void matmul(float* c, const float* a, const float* b, int64_t rows, int k, int n) {
    for (int64_t r = 0; r < rows; r++) /* c (rows, n) += a (rows, k) b (k, n) */
        for (int i = 0; i < k; i++)
            for (int j = 0; j < n; j++) c[r * n + j] += a[r * k + i] * b[i * n + j];
}

static void hidden_forward(float* hidden, const float* inp, int l, int64_t begin, int64_t end) {
    memset(hidden + begin * 4 * C, 0, (size_t)(end - begin) * 4 * C * sizeof(float));
    matmul(hidden + begin * 4 * C, inp + begin * C, params[l][0], end - begin, C, 4 * C);
}

static void gelu_forward(float* gelu, const float* hidden, int64_t begin, int64_t end) {
    for (int64_t i = begin * 4 * C; i < end * 4 * C; i++)
        gelu[i] = hidden[i] / (1 + expf(-hidden[i]));
}

/* Edit 2: layers take their addresses from the session, and one function computes rows again. */
static void forward(void* user, memo_session* session, int32_t l) {
    float *inp = ACT(l, INP), *hidden = ACT(l, HIDDEN), *gelu = ACT(l, GELU);
    for (int i = 0; i < T * C && l == 0; i++) out[i] = sinf((float)i), dout[i] = 1.0f / T;
    memcpy(inp, out, sizeof out);
    hidden_forward(hidden, inp, l, 0, T);
    gelu_forward(gelu, hidden, 0, T);
    matmul(out, gelu, params[l][1], T, 4 * C, C);
    (void)user;
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t act, int64_t begin,
                      int64_t end) {
    if (act == HIDDEN) hidden_forward(ACT(l, HIDDEN), ACT(l, INP), l, begin, end);
    if (act == GELU) gelu_forward(ACT(l, GELU), ACT(l, HIDDEN), begin, end);
    (void)user;
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = ACT(l, INP), *hidden = ACT(l, HIDDEN), *gelu = ACT(l, GELU);
    for (int t = 0; t < T; t++, inp += C, hidden += 4 * C, gelu += 4 * C) {
        float dhidden[4 * C], *d = dout + t * C;
        for (int j = 0; j < 4 * C; j++) {
            float s = 1 / (1 + expf(-hidden[j])), sum = 0;
            for (int c = 0; c < C; c++) {
                sum += d[c] * params[l][1][j * C + c];
                grads[l][1][j * C + c] += gelu[j] * d[c];
            }
            dhidden[j] = sum * s * (1 + hidden[j] * (1 - s));
        }
        for (int c = 0; c < C; c++)
            for (int j = 0; j < 4 * C; j++) {
                d[c] += dhidden[j] * params[l][0][c * 4 * C + j];
                grads[l][0][c * 4 * C + j] += dhidden[j] * inp[c];
            }
    }
    (void)user;
}

/* Edit 3: create the session and run. */
static memo_status train(int64_t device_bytes, int n_steps, memo_error* error) {
    memo_session_desc desc = {0};
    memo_session* session;
    memo_text report = {NULL, 0, 0, 0};
    memo_status status;
    desc.tensors = acts, desc.n_tensors = N_ACTS;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE, desc.device_bytes = device_bytes;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    if ((status = memo_session_create(&desc, &session, error))) return status;
    memset(grads, 0, sizeof grads);
    for (int i = 0; i < n_steps && !status; i++) status = memo_session_run(session, NULL, error);
    /* Four steps have been timed: the plan is by their times. */
    const memo_session_info info = memo_session_get_info(session);
    memo_step_plan_put(info.plan, &report);
    if (!status) status = memo_text_write(&report, "-", error);
    memo_session_destroy(session);
    return status;
}

int main(void) {
    static float kept[L][2][4 * C * C];
    memo_error error;
    for (int i = 0; i < L * 8 * C * C; i++) (&params[0][0][0])[i] = 0.05f * cosf(37 * (float)i);

    memo_status status = train(0, 6, &error); /* no budget: everything is kept */
    memcpy(kept, grads, sizeof kept);
    if (!status) status = train(640 << 10, 6, &error); /* the smallest budget that works */
    if (status) {
        fprintf(stderr, "05_three_edits: %s\n", error.message);
        return 1;
    }
    printf("gradients %s\n", memcmp(kept, grads, sizeof kept) ? "differ" : "bitwise the same");
    return memcmp(kept, grads, sizeof kept) != 0;
}
