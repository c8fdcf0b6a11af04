/* 39_fetched_weights.c - trains adapters on frozen weights that stay in their file.
 *
 * Each layer computes x = x + tanh(x W + (x A) B).  W is frozen and lies in a mapped file, as bf16;
 * memo keeps no copy of it, but calls `fetch`, which decodes what a layer needs.  A and B are
 * trained.  First everything stays on the device, then as little as possible.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/39_fetched_weights.c -o 39_fetched_weights -lpthread -lm
 * Expected output:
 *     all on the device   device 288 KiB, pinned   0 KiB; W is decoded  8 times
 *     the least           device 168 KiB, pinned  64 KiB; W is decoded 50 times
 *     pinned for W         32 KiB: two windows
 *     adapters            bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>
#include <sys/mman.h>

enum { L = 8, T = 32, C = 64, R = 4, N = T * C, N_STEPS = 4 };
enum { HEAD = 1001 }; /* bytes of another program at the beginning of the file */
static float x[N], dx[N];

enum { INP, TANH };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("tanh", 4 * C, MEMO_MOVE)};
enum { BASE, ADAPTERS, GRADS, N_STATES }; /* W (C, C); A (C, R) and B (R, C) in one */
static const memo_state states[N_STATES] = {
    {"base", 4 * C* C, MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD | MEMO_STATE_FETCHED, 0},
    {"adapters", 8 * C* R, MEMO_STATE_WEIGHTS, 0},
    {"grads", 8 * C* R, MEMO_STATE_GRADIENT, 0}};
#define ACT(l, act)     ((float*)memo_session_get_address(session, l, act))
#define STATE(l, state) ((float*)memo_session_get_state(session, l, state))

static const char* mapped;
static int n_decoded; /* layers; of small states one after the other */

/* W of each layer, (C, C) numbers of bf16.  Another program may have written the file. */
static int write_and_map(void) {
    FILE* file = tmpfile();
    for (int k = 0; k < HEAD && file; k++) putc('#', file);
    for (int k = 0; k < L * C * C && file; k++) {
        const float w = 0.1f * cosf(37 * (float)k);
        fwrite((const char*)&w + 2, 1, 2, file); /* its upper half, in memory of little endian */
    }
    if (!file || fflush(file)) return 0;
    mapped = (const char*)mmap(NULL, HEAD + 2 * L * C * C, PROT_READ, MAP_SHARED, fileno(file), 0);
    return mapped != MAP_FAILED;
}

/* Bytes of W as the trainer wants them: fp32. */
static memo_status fetch(void* user, int32_t l, int32_t state, int64_t at, void* to,
                         int64_t n_bytes, memo_error* error) {
    const char* from = mapped + HEAD + 2 * (l * C * C + at / 4);
    memset(to, 0, (size_t)n_bytes);
    for (int64_t i = 0; i < n_bytes / 4; i++) memcpy((char*)to + 4 * i + 2, from + 2 * i, 2);
    n_decoded++;
    (void)user, (void)state, (void)error;
    return MEMO_STATUS_OK;
}

/* c (T, n) += a (T, k) b (k, n); is_t: b is (n, k) */
static void matmul(float* c, const float* a, const float* b, int k, int n, int is_t) {
    for (int t = 0; t < T; t++)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < n; j++)
                c[t * n + j] += a[t * k + i] * (is_t ? b[j * k + i] : b[i * n + j]);
}

static void forward(void* user, memo_session* session, int32_t l) {
    float *y = ACT(l, TANH), *a = STATE(l, ADAPTERS), low[T * R] = {0};
    for (int i = 0; i < N && l == 0; i++) x[i] = sinf((float)i);
    memcpy(ACT(l, INP), x, sizeof x);
    memset(y, 0, sizeof x);
    matmul(y, x, STATE(l, BASE), C, C, 0);
    matmul(low, x, a, C, R, 0);
    matmul(y, low, a + C * R, R, C, 0);
    for (int i = 0; i < N; i++) x[i] += y[i] = tanhf(y[i]);
    (void)user;
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = ACT(l, INP), *y = ACT(l, TANH), *a = STATE(l, ADAPTERS);
    float *g = STATE(l, GRADS), d[N], low[T * R] = {0}, d_low[T * R] = {0};
    for (int i = 0; i < N; i++) {
        if (l == L - 1) dx[i] = (x[i] - 1) / N; /* the target is 1 */
        d[i] = dx[i] * (1 - y[i] * y[i]);
    }
    matmul(low, inp, a, C, R, 0);
    matmul(d_low, d, a + C * R, C, R, 1);
    for (int i = 0; i < T * C * R; i++) { /* of row t, column c and rank r */
        const int t = i / (C * R), c = i / R % C, r = i % R;
        g[c * R + r] += inp[t * C + c] * d_low[t * R + r];
        g[C * R + r * C + c] += low[t * R + r] * d[t * C + c];
    }
    matmul(dx, d, STATE(l, BASE), C, C, 1);
    matmul(dx, d_low, a, R, C, 1);
    (void)user;
}

static void update(void* user, memo_session* session, int32_t l) {
    float *a = STATE(l, ADAPTERS), *g = STATE(l, GRADS);
    for (int i = 0; a && i < 2 * C * R; i++) a[i] -= g[i];
    (void)user;
}

static memo_status train(const char* name, int is_least, float* adapters, memo_error* error) {
    memo_session_desc desc = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    memo_status status = MEMO_STATUS_OK;
    desc.tensors = acts, desc.n_tensors = 2, desc.states = states, desc.n_states = N_STATES;
    desc.n_layers = L, desc.n_rows = T, desc.policy = MEMO_POLICY_KEEP;
    desc.forward = forward, desc.backward = backward, desc.update = update, desc.fetch = fetch;
    if (is_least) status = memo_session_get_least(&desc, &desc.device_bytes, error);
    if (!status) status = memo_session_plan(&desc, NULL, &plan, error);
    n_decoded = 0;
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    for (int l = 0; l < L && !status; l++) /* A begins small, B as zero */
        status = memo_session_write_state(session, l, ADAPTERS, 0, adapters, 4 * C * R, error);
    for (int step = 0; step < N_STEPS && !status; step++) {
        status = memo_session_run(session, NULL, error);
        if (!status) status = memo_session_update(session, error);
    }
    for (int l = 0; l < L && !status; l++)
        status = memo_session_read_state(session, l, ADAPTERS, 0, adapters + l * 2 * C * R,
                                         8 * C * R, error);
    if (!status)
        printf("%-19s device %3d KiB, pinned %3d KiB; W is decoded %2d times\n", name,
               (int)(plan->device_bytes >> 10), (int)(plan->host_bytes >> 10), n_decoded);
    if (!status && is_least)
        printf("pinned for W        %3d KiB: two windows\n",
               (int)(plan->bytes[MEMO_TIER_HOST][MEMO_OWNER_PLACES] >> 10));
    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    static float kept[L * 2 * C * R], least[L * 2 * C * R];
    memo_error error;
    if (!write_and_map()) return 1;
    for (int i = 0; i < C * R; i++) kept[i] = least[i] = 0.1f * sinf((float)i);
    memo_status status = train("all on the device", 0, kept, &error);
    if (!status) status = train("the least", 1, least, &error);
    if (status) return fprintf(stderr, "39_fetched_weights: %s\n", error.message), 1;
    const int differ = memcmp(kept, least, sizeof kept) != 0;
    printf("adapters            %s\n", differ ? "differ" : "bitwise the same");
    return differ;
}
