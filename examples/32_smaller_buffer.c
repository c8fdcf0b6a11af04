/* 32_smaller_buffer.c - chooses between more memory and more time by the predicted step: logits of
 * all rows at once, or of fewer rows at a time.
 *
 * Each layer computes out = inp + tanh(w inp) for T tokens of C channels.  A classifier of V
 * classes computes the loss between forward and backward.  Its logits are a declared buffer: a
 * plan for each size shows which leaves the shorter step, because a smaller buffer leaves room for
 * rows that would travel to the host.  A classifier that adds up its gradients row by row has the
 * same bits with each size.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/32_smaller_buffer.c -o 32_smaller_buffer -lpthread -lm
 * Expected output:
 *     all memory  logits of 512 rows at a time,    0 KiB swapped, 26.8 ms predicted
 *     1300 KiB    logits of 512 rows at a time,  256 KiB swapped, 26.8 ms predicted
 *      800 KiB    logits of 128 rows at a time,  376 KiB swapped, 27.0 ms predicted
 *      400 KiB    logits of 128 rows at a time,  384 KiB swapped, 29.4 ms predicted
 *     gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 8, T = 512, C = 32, V = 256, TILE = 64 };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};

/* Rows of logits at a time, and the seconds that a step then takes in addition. */
enum { LOGITS, N_SIZES = 3 };
static const struct {
    int n_rows;
    double slower_s;
} sizes[N_SIZES] = {{T, 0}, {128, 0.1e-3}, {32, 0.8e-3}};

typedef struct parameters {
    float w[L], classes[V * C];
} parameters;
static parameters params, gradients;
static float x[T * C], d_x[T * C]; /* between layers */
static int n_logits;               /* rows at a time */

static float* at(memo_session* session, int32_t l, int32_t tensor) {
    return (float*)memo_session_get_address(session, l, tensor);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    const float* inp = at(session, l, INP);
    float* hidden = at(session, l, tensor);
    for (int64_t i = begin * C; i < end * C; i++) hidden[i] = tanhf(params.w[l] * inp[i]);
    (void)user;
}
static void forward(void* user, memo_session* session, int32_t l) {
    for (int i = 0; i < T * C && l == 0; i++) x[i] = sinf((float)i);
    memcpy(at(session, l, INP), x, sizeof x);
    recompute(user, session, l, HIDDEN, 0, T);
    for (int i = 0; i < T * C; i++) x[i] += at(session, l, HIDDEN)[i];
}

/* Rows [begin, end): logits, softmax, and the gradients of the mean cross-entropy. */
static void classify(float* logits, int begin, int end) {
    for (int t = begin; t < end; t++, logits += V) {
        float sum = 0;
        for (int v = 0; v < V; v++) {
            logits[v] = 0;
            for (int c = 0; c < C; c++) logits[v] += x[t * C + c] * params.classes[v * C + c];
            sum += expf(logits[v]);
        }
        for (int v = 0; v < V; v++) {
            const float d = (expf(logits[v]) / sum - (float)(v == t % V)) / T;
            for (int c = 0; c < C; c++) {
                gradients.classes[v * C + c] += d * x[t * C + c];
                d_x[t * C + c] += d * params.classes[v * C + c];
            }
        }
    }
}

/* The loss. */
static void between(void* user, memo_session* session) {
    float* logits = (float*)memo_session_get_buffer(session, LOGITS);
    memset(d_x, 0, sizeof d_x);
    for (int t = 0; t < T; t += n_logits) classify(logits, t, t + n_logits);
    (void)user;
}
static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = at(session, l, INP), *hidden = at(session, l, HIDDEN);
    for (int i = 0; i < T * C; i++) {
        const float d = d_x[i] * (1 - hidden[i] * hidden[i]);
        gradients.w[l] += d * inp[i];
        d_x[i] += d * params.w[l];
    }
    (void)user;
}

/* A layer takes 0.7 ms forward and 1.4 ms backward, the classifier 10 ms; copies go at 90 MB/s. */
static const memo_profile* times(int size) {
    static memo_profile p;
    p.n_rows = T, p.n_kinds = 1, p.n_tensors = 2;
    p.forward_s[0] = 0.7e-3, p.backward_s[0] = 1.4e-3, p.between_s = 10e-3 + sizes[size].slower_s;
    for (int t = 0; t < 2; t++) {
        strcpy(p.tensors[t].name, acts[t].name);
        p.tensors[t].recompute_s_per_row[0] = t == INP ? -1 : 0.4e-3 / T;
    }
    p.copies[1].size_bytes = 1 << 20;
    p.copies[1].out_s = p.copies[1].back_s = (1 << 20) / 90e6;
    return &p;
}

/* Plans with each size of the logits.  *best: the one with the shortest step. */
static memo_status choose(memo_session_desc* desc, memo_session_buffer* logits, int* best,
                          memo_error* error) {
    double best_s = HUGE_VAL;
    *best = N_SIZES - 1;
    for (int k = 0; k < N_SIZES; k++) {
        memo_step_plan* plan;
        logits->size_bytes = (int64_t)sizes[k].n_rows * 4 * V;
        if (memo_session_plan(desc, times(k), &plan, error)) return error->status;
        if (plan->fits && plan->times->step_s < best_s) best_s = plan->times->step_s, *best = k;
        memo_step_plan_destroy(plan);
    }
    logits->size_bytes = (int64_t)sizes[*best].n_rows * 4 * V;
    n_logits = sizes[*best].n_rows;
    return MEMO_STATUS_OK;
}

/* Plans and trains for a step; device_bytes 0: all memory. */
static memo_status train(int64_t device_bytes, memo_error* error) {
    memo_session_buffer logits = {"logits", 0, 0, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BETWEEN, 0, 0};
    memo_session_desc desc = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    memo_status status;
    int best;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE, desc.device_bytes = device_bytes;
    desc.forward = forward, desc.between = between, desc.backward = backward;
    desc.recompute = recompute;
    desc.buffers = &logits, desc.n_buffers = 1;
    status = choose(&desc, &logits, &best, error);
    if (!status) status = memo_session_plan(&desc, times(best), &plan, error);
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    memset(&gradients, 0, sizeof gradients);
    if (!status) status = memo_session_run(session, NULL, error);
    if (!status && device_bytes)
        printf("%4d KiB    ", (int)(device_bytes >> 10));
    else if (!status)
        printf("all memory  ");
    if (!status)
        printf("logits of %3d rows at a time, %4d KiB swapped, %.1f ms predicted\n", n_logits,
               (int)(plan->sizes.swapped_bytes >> 10), 1e3 * plan->times->step_s);
    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    static const int budgets_kib[] = {0, 1300, 800, 400};
    static parameters kept;
    memo_error error;
    int is_same = 1;
    for (int l = 0; l < L; l++) params.w[l] = -0.1f;
    for (int i = 0; i < V * C; i++) params.classes[i] = cosf((float)i) / C;
    for (int k = 0; k < 4; k++) {
        if (train((int64_t)budgets_kib[k] << 10, &error))
            return fprintf(stderr, "32_smaller_buffer: %s\n", error.message), 1;
        if (k == 0) kept = gradients;
        is_same = is_same && !memcmp(&kept, &gradients, sizeof kept);
    }
    printf("gradients %s\n", is_same ? "bitwise the same" : "differ");
    return !is_same;
}
