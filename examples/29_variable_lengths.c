/* 29_variable_lengths.c - micro-batches of any length in one block of memory: a shape for each
 * range of lengths.
 *
 * A shape has its own plan: the shorter it is, the less is swapped and recomputed.  A micro-batch
 * takes the smallest shape that has room, and states its own number of rows.  Weights
 * in session memory have one address under every shape.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/29_variable_lengths.c -o 29_variable_lengths -lpthread -lm
 * Expected output:
 *     up to 1024 rows: device ... KiB, ... KiB moved
 *     up to  256 rows: device ... KiB, ... KiB moved
 *     up to   64 rows: device ... KiB, 0 KiB moved
 *     three sessions would take ... KiB, one takes ... KiB
 *     10 micro-batches of 13 to 1000 rows: gradients are bitwise those of one shape
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 16, T = 1024, C = 32, TILE = 32, N_BATCHES = 10 };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};
static const memo_shape shapes[] = {{T, 0}, {256, 0}, {64, 0}};
static const memo_session_buffer buffers[] = {
    {"weights", L * sizeof(float), 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0}};
static const int lengths[N_BATCHES] = {1000, 13, 64, 250, 700, 65, 31, 512, 128, 257};
static float d_w[L], x[T * C], d_x[T * C];

static float* at(memo_session* session, int32_t l, int32_t tensor) {
    return (float*)memo_session_get_address(session, l, tensor);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    float *inp = at(session, l, INP), *hidden = at(session, l, tensor);
    const float w = ((float*)memo_session_get_buffer(session, 0))[l];
    for (int64_t i = begin * C; i < end * C; i++) hidden[i] = tanhf(w * inp[i]);
    (void)user;
}
static void forward(void* user, memo_session* session, int32_t l) {
    const int64_t rows = memo_session_get_batch(session).n_rows, n = rows * C;
    for (int64_t i = 0; i < n && l == 0; i++) x[i] = sinf((float)i);
    memcpy(at(session, l, INP), x, (size_t)n * sizeof *x);
    recompute(user, session, l, HIDDEN, 0, rows);
    for (int64_t i = 0; i < n; i++) x[i] += at(session, l, HIDDEN)[i];
}
static void backward(void* user, memo_session* session, int32_t l) {
    const int64_t n = memo_session_get_batch(session).n_rows * C;
    const float *inp = at(session, l, INP), *hidden = at(session, l, HIDDEN);
    const float w = ((float*)memo_session_get_buffer(session, 0))[l];
    for (int64_t i = 0; i < n; i++) {
        if (l == L - 1) d_x[i] = x[i] / (float)n; /* of half the mean square */
        const float d = d_x[i] * (1 - hidden[i] * hidden[i]);
        d_w[l] += d * inp[i];
        d_x[i] += d * w;
    }
    (void)user;
}

/* Runs all micro-batches; each takes the last of n_shapes that has room. */
static memo_status train(int32_t n_shapes, memo_error* error) {
    memo_session_desc desc = {0};
    memo_session* session;
    int64_t sum = 0, most = 0;
    desc.tensors = acts, desc.n_tensors = 2, desc.buffers = buffers, desc.n_buffers = 1;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE, desc.device_bytes = 1 << 20;
    desc.shapes = shapes, desc.n_shapes = n_shapes;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    memo_status status = memo_session_create(&desc, &session, error);
    if (status) return status;
    float* w = (float*)memo_session_get_buffer(session, 0);
    for (int l = 0; l < L; l++) w[l] = -0.1f;
    const memo_session_info info = memo_session_get_info(session);
    for (const memo_step_plan* p = info.plan; p && n_shapes > 1; p = p->next) {
        printf("up to %4d rows: device %d KiB, %d KiB moved\n", (int)p->shape.n_rows,
               (int)(p->device_bytes >> 10), (int)(p->sizes.swapped_bytes >> 10));
        sum += p->device_bytes;
        if (p->device_bytes > most) most = p->device_bytes;
    }
    if (sum)
        printf("three sessions would take %d KiB, one takes %d KiB\n", (int)(sum >> 10),
               (int)(most >> 10));
    memset(d_w, 0, sizeof d_w);
    for (int i = 0; i < N_BATCHES && !status; i++) {
        memo_batch batch = {.n_rows = lengths[i], .shape = n_shapes - 1};
        while (shapes[batch.shape].n_rows < batch.n_rows) batch.shape--;
        status = memo_session_run(session, &batch, error);
    }
    memo_session_destroy(session);
    return status;
}

int main(void) {
    float kept[L];
    memo_error error;
    memo_status status = train(1, &error);
    memcpy(kept, d_w, sizeof kept);
    if (!status) status = train(3, &error);
    if (status) {
        fprintf(stderr, "29_variable_lengths: %s\n", error.message);
        return 1;
    }
    printf("%d micro-batches of 13 to 1000 rows: gradients %s those of one shape\n", N_BATCHES,
           memcmp(kept, d_w, sizeof kept) ? "DIFFER from" : "are bitwise");
    return memcmp(kept, d_w, sizeof kept) != 0;
}
