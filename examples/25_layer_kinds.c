/* 25_layer_kinds.c - layers of two kinds, of which one has a tensor that the other lacks.
 *
 * A plain layer computes out = inp + tanh(w inp), a gated one out = inp + tanh(w inp) sigmoid(inp).
 * The gate is a tensor of gated layers alone, so plain layers take no memory for it.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/25_layer_kinds.c -o 25_layer_kinds -lpthread -lm
 * Expected output:
 *     everything kept             0 KiB swapped, 27.3 ms predicted
 *     a gate in every layer    ... KiB swapped, ... ms predicted
 *     two kinds                ... KiB swapped, ... ms predicted
 *     gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 12, T = 512, C = 32, TILE = 64, N = T * C };
enum { PLAIN, GATED, N_KINDS, INP = 0, HIDDEN, GATE, N_ACTS };
static memo_item acts[N_ACTS] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS),
                                 MEMO_ITEM("gate", 4 * C, MEMO_ROWS)};

static int32_t layer_kinds[L], has_kinds; /* 0: plain layers have a gate, too, and compute it */
static float w[L], d_w[L], x[N], d_x[N];

static float* at(memo_session* session, int32_t l, int32_t tensor) {
    return (float*)memo_session_get_address(session, l, tensor);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    float *inp = at(session, l, INP), *out = at(session, l, tensor);
    for (int64_t i = begin * C; i < end * C; i++)
        out[i] = tensor == HIDDEN ? tanhf(w[l] * inp[i]) : 1 / (1 + expf(-inp[i]));
    (void)user;
}
static void forward(void* user, memo_session* session, int32_t l) {
    const int is_gated = layer_kinds[l] == GATED;
    for (int i = 0; i < N && l == 0; i++) x[i] = sinf((float)i);
    memcpy(at(session, l, INP), x, sizeof x);
    recompute(user, session, l, HIDDEN, 0, T);
    if (is_gated || !has_kinds) recompute(user, session, l, GATE, 0, T);
    for (int i = 0; i < N; i++)
        x[i] += at(session, l, HIDDEN)[i] * (is_gated ? at(session, l, GATE)[i] : 1);
}
static void backward(void* user, memo_session* session, int32_t l) {
    const int is_gated = layer_kinds[l] == GATED;
    float *inp = at(session, l, INP), *hidden = at(session, l, HIDDEN);
    for (int i = 0; i < N; i++) {
        if (l == L - 1) d_x[i] = x[i] / N; /* of half the mean square */
        float gate = is_gated ? at(session, l, GATE)[i] : 1,
              d = d_x[i] * gate * (1 - hidden[i] * hidden[i]);
        d_w[l] += d * inp[i];
        d_x[i] += d * w[l] + (is_gated ? d_x[i] * hidden[i] * gate * (1 - gate) : 0);
    }
    (void)user;
}

/* Of a layer: 0.7 ms forward, 1.4 ms backward, and a quarter more if it is gated; 90 MB/s. */
static const memo_profile* times(void) {
    static memo_profile p;
    p.n_rows = T, p.n_kinds = N_KINDS, p.n_tensors = N_ACTS;
    for (int k = 0; k < N_KINDS; k++) {
        p.backward_s[k] = 2 * (p.forward_s[k] = 0.7e-3 * (1 + k / 4.0));
        for (int t = 0; t < N_ACTS; t++) {
            strcpy(p.tensors[t].name, acts[t].name);
            p.tensors[t].recompute_s_per_row[k] = t == INP ? -1 : 0.4e-3 / T;
        }
    }
    p.copies[1].size_bytes = 1 << 20;
    p.copies[1].out_s = p.copies[1].back_s = (1 << 20) / 90e6;
    return &p;
}

/* Plans and trains for a step; device_bytes 0: everything is kept. */
static memo_status train(const char* name, int64_t device_bytes, memo_error* error) {
    memo_session_desc desc = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    desc.tensors = acts, desc.n_tensors = N_ACTS, desc.layer_kinds = layer_kinds;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE, desc.device_bytes = device_bytes;
    acts[GATE].kinds = has_kinds ? 1 << GATED : 0; /* 0: every kind has it */
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    memo_status status = memo_session_plan(&desc, times(), &plan, error);
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    memset(d_w, 0, sizeof d_w);
    if (!status) status = memo_session_run(session, NULL, error);
    if (!status)
        printf("%-24s %4d KiB swapped, %.1f ms predicted\n", name,
               (int)(plan->sizes.swapped_bytes >> 10), 1e3 * plan->times->step_s);
    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    static const char* const names[] = {"everything kept", "a gate in every layer", "two kinds"};
    float kept[L];
    memo_error error;
    for (int l = 0; l < L; l++) w[l] = -0.1f, layer_kinds[l] = l % 3 == 1 ? GATED : PLAIN;
    for (int k = 0; k < 3; k++) {
        has_kinds = k != 1;
        if (train(names[k], k ? 800 << 10 : 0, &error))
            return fprintf(stderr, "25_layer_kinds: %s\n", error.message), 1;
        if (k == 0) memcpy(kept, d_w, sizeof kept);
    }
    printf("gradients %s\n", memcmp(kept, d_w, sizeof kept) ? "differ" : "bitwise the same");
    return memcmp(kept, d_w, sizeof kept) != 0;
}
