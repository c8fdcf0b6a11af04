/* 28_spill.c - spills to disk: host memory too small for the rows that leave the device.
 *
 * Layers that do not fit in host memory go on to an unnamed file in a folder, and come back before
 * their backward.  The first layers spill, whose rows wait longest.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/28_spill.c -o 28_spill -lpthread -lm
 * Expected output:
 *     everything kept      device 1024 KiB, host   0 KiB, file    0 KiB
 *     inputs are swapped   device   96 KiB, host 448 KiB, file    0 KiB
 *     200 KiB of host      memo_session_desc.host_bytes: policy alpha needs 448 KiB, 248 KiB ...
 *     and a file           device   96 KiB, host 192 KiB, file  320 KiB
 *     gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 16, T = 256, C = 32, N = T * C };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};
static float w[L], d_w[L], x[N], d_x[N];

static float* at(memo_session* session, int32_t l, int32_t tensor) {
    return (float*)memo_session_get_address(session, l, tensor);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    float *inp = at(session, l, INP), *hidden = at(session, l, tensor);
    for (int64_t i = begin * C; i < end * C; i++) hidden[i] = tanhf(w[l] * inp[i]);
    (void)user;
}
static void forward(void* user, memo_session* session, int32_t l) {
    for (int i = 0; i < N && l == 0; i++) x[i] = sinf((float)i);
    memcpy(at(session, l, INP), x, sizeof x);
    recompute(user, session, l, HIDDEN, 0, T);
    for (int i = 0; i < N; i++) x[i] += at(session, l, HIDDEN)[i];
}
static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = at(session, l, INP), *hidden = at(session, l, HIDDEN);
    for (int i = 0; i < N; i++) {
        if (l == L - 1) d_x[i] = x[i] / N; /* of half the mean square */
        const float d = d_x[i] * (1 - hidden[i] * hidden[i]);
        d_w[l] += d * inp[i];
        d_x[i] += d * w[l];
    }
    (void)user;
}

/* A session with budgets, and a micro-batch.  A budget that is too small is printed. */
static memo_status train(const char* name, memo_policy policy, int64_t host_bytes,
                         const char* folder, memo_error* error) {
    memo_session_desc desc = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    desc.policy = policy, desc.alpha = 0; /* recompute what can be */
    desc.host_bytes = host_bytes, desc.spill_directory = folder;
    memo_status status = memo_session_plan(&desc, NULL, &plan, error);
    if (!status && !plan->fits) {
        printf("%-20s %s\n", name, plan->shortage);
        memo_step_plan_destroy(plan);
        return status;
    }
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    memset(d_w, 0, sizeof d_w);
    if (!status) status = memo_session_run(session, NULL, error);
    if (!status)
        printf("%-20s device %4d KiB, host %3d KiB, file %4d KiB\n", name,
               (int)(plan->device_bytes >> 10), (int)(plan->host_bytes >> 10),
               (int)(plan->sizes.spill_bytes >> 10));
    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    float kept[L];
    memo_error error;
    for (int l = 0; l < L; l++) w[l] = -0.1f;
    memo_status status = train("everything kept", MEMO_POLICY_KEEP, 0, NULL, &error);
    memcpy(kept, d_w, sizeof kept);
    if (!status) status = train("inputs are swapped", MEMO_POLICY_ALPHA, 0, NULL, &error);
    if (!status) status = train("200 KiB of host", MEMO_POLICY_ALPHA, 200 << 10, NULL, &error);
    if (!status) status = train("and a file", MEMO_POLICY_ALPHA, 200 << 10, ".", &error);
    if (status) {
        fprintf(stderr, "28_spill: %s\n", error.message);
        return 1;
    }
    printf("gradients %s\n", memcmp(kept, d_w, sizeof kept) ? "differ" : "bitwise the same");
    return memcmp(kept, d_w, sizeof kept) != 0;
}
