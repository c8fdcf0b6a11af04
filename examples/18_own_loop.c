/* 18_own_loop.c - keeps the trainer's own loop: micro-batches of different lengths, a buffer for a part of the step, a
 * forward alone for validation, and a plan that the next start reads from a file.
 *
 * Each layer computes out = inp + tanh(w inp) for T tokens of C channels, with one parameter w.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/18_own_loop.c -o 18_own_loop -lpthread -lm
 * Expected output:
 *     planned    device ... KiB of 400 KiB, ... KiB moved to the host
 *     validation loss 0.0163
 *     from file  device ... KiB of 400 KiB, ... KiB moved to the host
 *     validation loss 0.0163
 *     parameters bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 16, T = 512, C = 32, TILE = 64 };
enum { INP, HIDDEN };
static const memo_tensor acts[] = {{"inp", 4 * C, MEMO_TENSOR_SWAPPED, 0},
                                   {"hidden", 4 * C, MEMO_TENSOR_ROWS, 0}};

typedef struct trainer {
    float w[L], d_w[L];
    float x[T * C], d_x[T * C]; /* between layers */
    float loss;
} trainer;

static void hidden_rows(const trainer* t, memo_session* session, int32_t l, int64_t begin,
                        int64_t end) {
    const float* inp = (const float*)memo_session_get_address(session, l, INP);
    float* hidden = (float*)memo_session_get_address(session, l, HIDDEN);
    for (int64_t i = begin * C; i < end * C; i++) hidden[i] = tanhf(t->w[l] * inp[i]);
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    if (tensor == HIDDEN) hidden_rows((const trainer*)user, session, l, begin, end);
}

/* Returns before the backward if there is none.  The begin calls return 0 in a dry run. */
static void pass(trainer* t, memo_session* session, int has_backward) {
    int64_t n = memo_session_get_n_rows(session), i;
    int32_t l;
    for (i = 0; i < n * C && memo_session_computes(session); i++) t->x[i] = sinf((float)i);
    for (l = 0; l < L; l++) {
        if (memo_session_forward_begin(session, l)) {
            float* inp = (float*)memo_session_get_address(session, l, INP);
            const float* hidden = (const float*)memo_session_get_address(session, l, HIDDEN);
            memcpy(inp, t->x, (size_t)n * C * sizeof(float));
            hidden_rows(t, session, l, 0, n);
            for (i = 0; i < n * C; i++) t->x[i] += hidden[i];
        }
        memo_session_forward_end(session, l);
    }

    /* The loss is the mean square. */
    t->loss = 0;
    for (i = 0; i < n * C && memo_session_computes(session); i++) {
        t->loss += t->x[i] * t->x[i] / (float)(n * C);
        t->d_x[i] = 2 * t->x[i] / (float)(n * C);
    }
    for (l = L - 1; l >= 0 && has_backward; l--) {
        float* slope = (float*)memo_session_alloc(session, (int64_t)sizeof(float) * n * C);
        if (memo_session_backward_begin(session, l)) {
            const float* inp = (const float*)memo_session_get_address(session, l, INP);
            const float* hidden = (const float*)memo_session_get_address(session, l, HIDDEN);
            for (i = 0; i < n * C; i++) slope[i] = t->d_x[i] * (1 - hidden[i] * hidden[i]);
            for (i = 0; i < n * C; i++) t->d_w[l] += slope[i] * inp[i];
            for (i = 0; i < n * C; i++) t->d_x[i] += t->w[l] * slope[i];
        }
        memo_session_backward_end(session, l);
        memo_session_free(session, slope);
    }
}

/* What the session runs dry and measures: the largest micro-batch, forward and backward. */
static void step(void* user, memo_session* session) { pass((trainer*)user, session, 1); }

static memo_status train(trainer* t, memo_session* session, memo_error* error) {
    static const memo_batch batches[] = {{T, 0}, {200, 0}, {T, 0}, {77, 0}};
    static const memo_batch validation = {T, 1}; /* a forward alone moves nothing */
    memo_status status = MEMO_STATUS_OK;
    for (int i = 0; i < 4 && !status; i++) {
        memset(t->d_w, 0, sizeof t->d_w);
        if (memo_session_begin(session, &batches[i])) pass(t, session, 1);
        status = memo_session_end(session, error);
        for (int l = 0; l < L && !status; l++) t->w[l] -= 0.01f * t->d_w[l];
    }
    if (status) return status;
    if (memo_session_begin(session, &validation)) pass(t, session, 0);
    return memo_session_end(session, error);
}

/* Measures and plans; writes the plan, or reads the one that is there. */
static memo_status make_plan(const memo_session_desc* desc, const char* path, int is_there,
                             memo_step_plan** plan, memo_error* error) {
    memo_profile profile;
    memo_status status;
    if (is_there) return memo_step_plan_read(desc, path, plan, error);
    status = memo_session_measure(desc, &profile, error);
    if (!status) status = memo_session_plan(desc, &profile, plan, error);
    return status ? status : memo_step_plan_write(*plan, path, error);
}

static memo_status run(trainer* t, const char* path, int is_there, memo_error* error) {
    memo_session_desc desc = memo_session_desc_default();
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    memo_status status;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE;
    desc.user = t, desc.step = step, desc.recompute = recompute;
    desc.device_bytes = 400 << 10;
    status = make_plan(&desc, path, is_there, &plan, error);
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    if (!status)
        printf("%s device %d KiB of 400 KiB, %d KiB moved to the host\n",
               is_there ? "from file " : "planned   ", (int)(plan->device_bytes >> 10),
               (int)(plan->sizes.swapped_bytes >> 10));

    /* Measuring leaves garbage in gradients, until the first micro-batch clears them. */
    for (int l = 0; l < L; l++) t->w[l] = -0.1f;
    if (!status) status = train(t, session, error);
    if (!status) printf("validation loss %.4f\n", (double)t->loss);
    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    return status;
}

int main(void) {
    static trainer first, second;
    static const char path[] = "18_own_loop.plan";
    memo_error error;
    memo_status status = run(&first, path, 0, &error);
    if (!status) status = run(&second, path, 1, &error);
    remove(path);
    if (status) {
        fprintf(stderr, "18_own_loop: %s\n", error.message);
        return 1;
    }
    printf("parameters %s\n",
           memcmp(first.w, second.w, sizeof first.w) ? "differ" : "bitwise the same");
    return memcmp(first.w, second.w, sizeof first.w) != 0;
}
