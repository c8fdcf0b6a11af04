/* 38_clipping.c - gradients are clipped by their norm, whenever the plan updates.
 *
 * A step has two micro-batches.  The backward of the last one leaves each layer's sum of squares in
 * memory of the trainer.  It writes the sum, and adds nothing up: an update that waits for the next
 * step still reads what its own step has left.  Three recipes:
 *
 *     layer    each layer is clipped by its own norm, in `update`.  Any moment is right.
 *     step     all layers are clipped by the norm of this step, which is known when the last backward
 *              is over: memo_session_set_update_values.  The update may wait, but not come sooner.
 *     before   all layers are clipped by the norm of the step before, in memo_batch.values.  Any
 *              moment is right; it is another training.
 *
 * Each recipe trains with everything on the device, then in the least budget with every moment of the
 * update that is right for it.  All runs of a recipe end with the same bits.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/38_clipping.c -o 38_clipping -lpthread -lm
 * Expected output:
 *     layer     in a pass, deferred, fused: weights bitwise the same
 *     step      in a pass, deferred: weights bitwise the same; fused is refused
 *     before    in a pass, deferred, fused: weights bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 6, T = 64, C = 32, W = 4096, N_STEPS = 6, N_BATCHES = 2 };
enum { LAYER, STEP, BEFORE, N_RECIPES };
enum { WEIGHTS, GRADS, MOMENTS, N_STATES };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE)};
static const memo_state states[N_STATES] = {{"weights", 4 * W, MEMO_STATE_WEIGHTS, 0},
                                            {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
                                            {"moments", 4 * W, MEMO_STATE_UPDATE, 0}};
static float x[T * C], dx[T * C]; /* between layers, (T, C) */
static double squares[L];         /* of each layer's gradients, of the last step */
static int recipe, batch_number;

#define STATE(l, state) ((float*)memo_session_get_state(session, l, state))

static void forward(void* user, memo_session* session, int32_t l) {
    float *inp = memo_session_get_address(session, l, 0), *w = STATE(l, WEIGHTS);
    for (int i = 0; i < T * C && l == 0; i++) x[i] = sinf(0.3f * (float)(i + batch_number));
    memcpy(inp, x, sizeof x);
    for (int i = 0; i < T * C; i++) x[i] += tanhf(inp[i] * w[i % W]);
    (void)user;
}

static void backward(void* user, memo_session* session, int32_t l) {
    const float *inp = memo_session_get_address(session, l, 0), *w = STATE(l, WEIGHTS);
    float* g = STATE(l, GRADS); /* zero when a step begins */
    for (int i = 0; i < T * C; i++) {
        const float y = tanhf(inp[i] * w[i % W]), d = l == L - 1 ? x[i] : dx[i];
        g[i % W] += d * (1 - y * y) * inp[i];
        dx[i] = d + d * (1 - y * y) * w[i % W];
    }
    squares[l] = 0;
    for (int i = 0; i < W; i++) squares[l] += (double)g[i] * g[i];
    (void)user;
}

/* The largest norm is 1. */
static float scale_of(double square) { return square > 1 ? 1 / sqrtf((float)square) : 1; }

static void update(void* user, memo_session* session, int32_t l) {
    float *w = STATE(l, WEIGHTS), *g = STATE(l, GRADS), *m = STATE(l, MOMENTS), scale;
    double square = 0;
    if (!w) return; /* the layers before the first and behind the last have no states */
    for (int i = 0; i < W && recipe == LAYER; i++) square += (double)g[i] * g[i];
    scale =
        recipe == LAYER ? scale_of(square) : *(const float*)memo_session_get_batch(session).values;
    for (int i = 0; i < W; i++) {
        m[i] = 0.9f * m[i] + scale * g[i];
        w[i] -= 0.05f * m[i];
    }
    (void)user;
}

/* A step.  *scale: of the step before, then of this one. */
static memo_status train_step(memo_session* session, float* scale, memo_error* error) {
    double square = 0;
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < N_BATCHES && !status; k++, batch_number++) {
        memo_batch batch = {0};
        batch.more_follow = k < N_BATCHES - 1;
        if (recipe == BEFORE) batch.values = scale, batch.values_bytes = sizeof *scale;
        status = memo_session_run(session, &batch, error);
    }
    for (int l = 0; l < L; l++) square += squares[l]; /* over ranks, too, if there are several */
    *scale = scale_of(square);
    if (!status && recipe == STEP)
        status = memo_session_set_update_values(session, scale, sizeof *scale, error);
    return status ? status : memo_session_update(session, error);
}

/* is_least: in the least budget, with the update at the moment `may`; otherwise everything stays on
 * the device. */
static memo_status train(int is_least, int32_t may, float weights[L][W], memo_error* error) {
    memo_session_desc desc = {0};
    memo_session* session;
    memo_status status = MEMO_STATUS_OK;
    float scale = 1;
    desc.tensors = acts, desc.n_tensors = 1, desc.states = states, desc.n_states = N_STATES;
    desc.n_layers = L, desc.n_rows = T, desc.micro_batches = N_BATCHES;
    desc.forward = forward, desc.backward = backward, desc.update = update;
    desc.update_may = may;
    desc.timed_steps = -1; /* so small a model needs no times */
    if (is_least) status = memo_session_get_least(&desc, &desc.device_bytes, error);
    if (!status) status = memo_session_create(&desc, &session, error);
    if (status) return status;

    batch_number = 0;
    for (int l = 0; l < L && !status; l++) {
        for (int i = 0; i < W; i++) weights[l][i] = 0.2f + 0.1f * cosf((float)(i + l));
        status = memo_session_write_state(session, l, WEIGHTS, 0, weights[l], 4 * W, error);
    }
    for (int k = 0; k < N_STEPS && !status; k++) status = train_step(session, &scale, error);
    for (int l = 0; l < L && !status; l++)
        status = memo_session_read_state(session, l, WEIGHTS, 0, weights[l], 4 * W, error);
    memo_session_destroy(session);
    return status;
}

int main(void) {
    static const char* const recipes[N_RECIPES] = {"layer", "step", "before"};
    static const char* const moments[] = {"in a pass", "deferred", "fused"};
    static const int32_t may[] = {0, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS,
                                  MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS};
    static float kept[L][W], streamed[L][W];
    memo_error error;
    int n_other = 0;
    for (recipe = 0; recipe < N_RECIPES; recipe++) {
        memo_status status = train(0, 0, kept, &error);
        for (int k = 0; k < (recipe == STEP ? 2 : 3) && !status; k++) {
            printf(k ? "%s %s" : "%-9s %s", k ? "," : recipes[recipe], moments[k]);
            status = train(1, may[k], streamed, &error);
            n_other += memcmp(kept, streamed, sizeof kept) != 0;
        }
        if (status) return fprintf(stderr, "\n%s\n", error.message), 1;
        printf(": weights %s", n_other ? "differ" : "bitwise the same");
        if (recipe == STEP && train(1, may[2], streamed, &error) == MEMO_STATUS_INVALID_STATE)
            printf("; fused is refused");
        printf("\n");
    }
    return n_other != 0;
}
