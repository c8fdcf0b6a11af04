/* 31_routed_rows.c - an expert computes some rows of a layer, and how many is known only when the
 * layer has routed them.
 *
 * A layer's expert computes out = inp + mean of tanh(w inp) for the rows that the router sends to
 * it; other rows pass.  The tensor "hidden" has rows for these alone.  A micro-batch may route at
 * most 60 % of all rows of all layers; a single layer may still route each of its rows.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/31_routed_rows.c -o 31_routed_rows -lpthread -lm
 * Expected output:
 *     all layers route all rows  4613 KiB of device memory
 *     60 % of all rows, kept     2974 KiB of device memory
 *     60 %, a budget of 1 MiB    1024 KiB of device memory
 *     8 layers routed 130 to 258 of 512 rows; gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 8, T = 512, C = 32, H = 8 * C, TILE = 64, INP = 0, HIDDEN, N_ACTS };
static const memo_item acts[N_ACTS] = {
    MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
    MEMO_ITEM("hidden", 4 * H, MEMO_MOVE, MEMO_SLICE, MEMO_LATE_ROWS)};
static float w[L], d_w[L], x[T][C], d_x[T][C];
static int64_t n_routed[L];

/* The router; the backward finds the same rows again. */
static int is_routed(int32_t l, const float* inp) { return sinf(9 * inp[0] + (float)l) > 0.3f; }

/* Rows [begin, end) of hidden; hidden: of row 0. */
static void compute(int32_t l, const float* inp, float* hidden, int64_t begin, int64_t end) {
    int64_t row = 0;
    for (int t = 0; t < T && row < end; t++, inp += C) {
        if (!is_routed(l, inp)) continue;
        for (int j = 0; j < H && row >= begin; j++)
            hidden[row * H + j] = tanhf(w[l] * inp[j % C] * (float)(1 + j / C));
        row++;
    }
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    const float* inp = memo_session_get_address(session, l, INP);
    (void)user;
    compute(l, inp, memo_session_get_address(session, l, tensor), begin, end);
}

static void forward(void* user, memo_session* session, int32_t l) {
    const float* inp = memo_session_get_address(session, l, INP);
    const float* row;
    int64_t n = 0;
    (void)user;
    for (int i = 0; i < T * C && l == 0; i++) x[i / C][i % C] = sinf((float)i);
    memcpy(memo_session_get_address(session, l, INP), x, sizeof x);
    for (int t = 0; t < T; t++) n += is_routed(l, x[t]);
    memo_session_set_routed(session, l, n); /* before hidden's address is used */
    n_routed[l] = n;

    row = memo_session_get_address(session, l, HIDDEN);
    compute(l, inp, memo_session_get_address(session, l, HIDDEN), 0, n);
    for (int t = 0; t < T; t++) {
        if (!is_routed(l, inp + t * C)) continue;
        for (int j = 0; j < H; j++) x[t][j % C] += row[j] * C / H;
        row += H;
    }
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float* inp = memo_session_get_address(session, l, INP);
    const float* row = memo_session_get_address(session, l, HIDDEN);
    (void)user;
    if (l == L - 1) memcpy(d_x, x, sizeof x); /* of half the sum of squares */
    for (int t = 0; t < T; t++, inp += C) {
        float d_inp[C] = {0};
        if (!is_routed(l, inp)) continue;
        for (int j = 0; j < H; j++) {
            const float d = d_x[t][j % C] * C / H * (1 - row[j] * row[j]) * (float)(1 + j / C);
            d_w[l] += d * inp[j % C];
            d_inp[j % C] += d * w[l];
        }
        for (int i = 0; i < C; i++) d_x[t][i] += d_inp[i];
        row += H;
    }
}

/* Plans and trains for a step.  routed_rows_all: of all layers, at most; device_bytes 0: all that
 * is needed. */
static memo_status train(const char* name, int64_t routed_rows_all, int64_t device_bytes,
                         memo_error* error) {
    memo_session_desc desc = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    desc.tensors = acts, desc.n_tensors = N_ACTS, desc.device_bytes = device_bytes;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    desc.routed_rows_layer = T, desc.routed_rows_all = routed_rows_all;
    if (!device_bytes) desc.policy = MEMO_POLICY_KEEP;
    memo_status status = memo_session_plan(&desc, NULL, &plan, error);
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    memset(d_w, 0, sizeof d_w);
    if (!status) status = memo_session_run(session, NULL, error);
    if (!status) printf("%-26s %4d KiB of device memory\n", name, (int)(plan->device_bytes >> 10));
    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    static const char* const names[] = {"all layers route all rows", "60 % of all rows, kept",
                                        "60 %, a budget of 1 MiB"};
    float kept[L];
    memo_error error;
    int64_t least = T, most = 0;
    for (int l = 0; l < L; l++) w[l] = 0.1f * (float)(l + 1);
    for (int k = 0; k < 3; k++) {
        if (train(names[k], k ? L * T * 6 / 10 : L * T, k < 2 ? 0 : 1 << 20, &error))
            return fprintf(stderr, "31_routed_rows: %s\n", error.message), 1;
        if (k == 0) memcpy(kept, d_w, sizeof kept);
    }
    for (int l = 0; l < L; l++) {
        if (n_routed[l] < least) least = n_routed[l];
        if (n_routed[l] > most) most = n_routed[l];
    }
    printf("%d layers routed %d to %d of %d rows; gradients %s\n", L, (int)least, (int)most, T,
           memcmp(kept, d_w, sizeof kept) ? "differ" : "bitwise the same");
    return memcmp(kept, d_w, sizeof kept) != 0;
}
