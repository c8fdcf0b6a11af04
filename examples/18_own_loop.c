/* 18_own_loop.c - keeps the trainer's own loop: micro-batches of different lengths, a buffer in
 * each backward, a forward alone for validation, and the times of the first steps in a file, by
 * which the next start plans at once.
 *
 * Each layer computes out = inp + tanh(w inp) for T tokens of C channels, with one parameter w.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/18_own_loop.c -o 18_own_loop -lpthread -lm
 * Expected output:
 *     planned    device ... KiB of 400 KiB, ... KiB moved to the host
 *     validation loss 0.0155
 *     by file    device ... KiB of 400 KiB, ... KiB moved to the host
 *     validation loss 0.0155
 *     parameters bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 16, T = 512, C = 32, TILE = 64 };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};
static const memo_session_buffer buffers[] = {
    {"slope", 0, 4 * C, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};

/* Each shape has a plan.  All share one block of memory, as large as the largest needs. */
enum { LONG, SHORT, VALIDATION, N_SHAPES };
static const memo_shape shapes[N_SHAPES] = {{T, 0}, {200, 0}, {T, 1}}; /* 1: no backward */

typedef struct trainer {
    float w[L], d_w[L];
    float x[T * C], d_x[T * C]; /* between layers */
    float loss;
} trainer;

static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    const float* inp = (const float*)memo_session_get_address(session, l, INP);
    float* hidden = (float*)memo_session_get_address(session, l, HIDDEN);
    const float w = ((const trainer*)user)->w[l];
    for (int64_t i = begin * C; i < end * C && tensor == HIDDEN; i++) hidden[i] = tanhf(w * inp[i]);
}

/* A micro-batch.  The session runs it dry, too: then the begin calls return 0. */
static void step(void* user, memo_session* session) {
    trainer* t = (trainer*)user;
    const memo_batch batch = memo_session_get_batch(session);
    const int64_t n = batch.n_rows * C;
    for (int64_t i = 0; i < n; i++) t->x[i] = sinf((float)i);
    for (int32_t l = 0; l < L; l++) {
        if (memo_session_forward_begin(session, l)) {
            const float* hidden = (const float*)memo_session_get_address(session, l, HIDDEN);
            memcpy(memo_session_get_address(session, l, INP), t->x, (size_t)n * sizeof(float));
            recompute(t, session, l, HIDDEN, 0, batch.n_rows);
            for (int64_t i = 0; i < n; i++) t->x[i] += hidden[i];
        }
        memo_session_forward_end(session, l);
    }

    t->loss = 0; /* the mean square */
    for (int64_t i = 0; i < n; i++) {
        t->loss += t->x[i] * t->x[i] / (float)n;
        t->d_x[i] = 2 * t->x[i] / (float)n;
    }
    for (int32_t l = L - 1; l >= 0 && !batch.is_forward_only; l--) {
        if (memo_session_backward_begin(session, l)) {
            float* slope = (float*)memo_session_get_buffer(session, 0);
            const float* inp = (const float*)memo_session_get_address(session, l, INP);
            const float* hidden = (const float*)memo_session_get_address(session, l, HIDDEN);
            for (int64_t i = 0; i < n; i++) slope[i] = t->d_x[i] * (1 - hidden[i] * hidden[i]);
            for (int64_t i = 0; i < n; i++) t->d_w[l] += slope[i] * inp[i];
            for (int64_t i = 0; i < n; i++) t->d_x[i] += t->w[l] * slope[i];
        }
        memo_session_backward_end(session, l);
    }
}

/* The session times the first training steps, writes the times, and plans again.  If the file is
 * there, nothing is timed. */
static memo_status run(trainer* t, const char* path, memo_error* error) {
    static const memo_batch batches[] = {{.shape = LONG},
                                         {.shape = SHORT},
                                         {.shape = LONG},
                                         {.n_rows = 77, .shape = SHORT},
                                         {.shape = VALIDATION}};
    memo_session_desc desc = {0};
    const memo_step_plan* plan;
    memo_session* session = NULL;
    memo_status status;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE;
    desc.shapes = shapes, desc.n_shapes = N_SHAPES, desc.buffers = buffers, desc.n_buffers = 1;
    desc.user = t, desc.step = step, desc.recompute = recompute;
    desc.profile_path = path, desc.timed_steps = 5;
    desc.device_bytes = 400 << 10;
    for (int l = 0; l < L; l++) t->w[l] = -0.1f;
    status = memo_session_create(&desc, &session, error);
    for (int i = 0; i < 10 && !status; i++) {
        memset(t->d_w, 0, sizeof t->d_w);
        memo_session_begin(session, &batches[i % 5]);
        step(t, session);
        status = memo_session_end(session, error); /* of any call since the begin */
        for (int l = 0; l < L && !status; l++) t->w[l] -= 0.01f * t->d_w[l];
    }
    if (!status) {
        plan = memo_session_get_info(session).plan;
        printf("device %d KiB of 400 KiB, %d KiB moved to the host\nvalidation loss %.4f\n",
               (int)(plan->device_bytes >> 10), (int)(plan->sizes.swapped_bytes >> 10),
               (double)t->loss);
    }
    memo_session_destroy(session);
    return status;
}

int main(void) {
    static trainer first, second;
    static const char path[] = "18_own_loop.profile";
    memo_error error;
    char of_shape[64];
    memo_status status;
    printf("planned    ");
    status = run(&first, path, &error);
    if (!status) printf("by file    ");
    if (!status) status = run(&second, path, &error);
    for (int k = 0; k < N_SHAPES; k++) {
        snprintf(of_shape, sizeof of_shape, k ? "%s.%d" : "%s", path, k);
        (void)remove(of_shape);
    }
    if (status) {
        fprintf(stderr, "18_own_loop: %s\n", error.message);
        return 1;
    }
    printf("parameters %s\n",
           memcmp(first.w, second.w, sizeof first.w) ? "differ" : "bitwise the same");
    return memcmp(first.w, second.w, sizeof first.w) != 0;
}
