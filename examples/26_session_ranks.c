/* 26_session_ranks.c - data parallelism: each of three ranks has a session, a third of the tokens
 * and another budget.
 *
 * Sessions need one function of the trainer, a maximum of integers over ranks.  All ranks then plan
 * with the least budget and the longest times, and swap the same rows, so that none waits for
 * another.  After a micro-batch the trainer adds up gradients.  Ranks are threads here.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/26_session_ranks.c -o 26_session_ranks -lpthread -lm
 * Expected output:
 *     rank 0: budget 500 KiB, the session takes ... KiB
 *     rank 1: budget 400 KiB, the session takes ... KiB
 *     rank 2: budget 600 KiB, the session takes ... KiB
 *     all ranks swap the same rows; gradients are bitwise those of three ranks that keep everything
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#include <stdio.h>
#include "thread_ranks.h"

enum { N_RANKS = 3, L = 16, T = 512, C = 32, TILE = 64, N = T * C };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};
static const int64_t budgets[N_RANKS] = {500 << 10, 400 << 10, 600 << 10};

typedef struct trainer {
    thread_rank* rank;
    int64_t device_bytes; /* 0: everything is kept */
    float w[L], d_w[L], x[N], d_x[N];
    int64_t planned_bytes, digest; /* of the table of rows */
} trainer;

/* Each value becomes its maximum over the ranks; with MPI one call of MPI_Allreduce. */
static memo_status agree(void* user, int64_t* values, int64_t n, memo_error* error) {
    const thread_rank* r = ((trainer*)user)->rank;
    memo_status status = memo_all_reduce(r->comm, r->stream, values, values, n, MEMO_TYPE_I64,
                                         MEMO_REDUCTION_MAX, error);
    return status ? status : memo_stream_synchronize(r->device, r->stream, error);
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    const float* inp = (const float*)memo_session_get_address(session, l, INP);
    float* hidden = (float*)memo_session_get_address(session, l, tensor);
    for (int64_t i = begin * C; i < end * C; i++)
        hidden[i] = tanhf(((trainer*)user)->w[l] * inp[i]);
}
static void forward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    for (int i = 0; i < N && l == 0; i++) t->x[i] = sinf((float)(i + N * t->rank->comm->rank));
    memcpy(memo_session_get_address(session, l, INP), t->x, sizeof t->x);
    recompute(user, session, l, HIDDEN, 0, T);
    const float* hidden = (const float*)memo_session_get_address(session, l, HIDDEN);
    for (int i = 0; i < N; i++) t->x[i] += hidden[i];
}
static void backward(void* user, memo_session* session, int32_t l) {
    trainer* t = (trainer*)user;
    const float* inp = (const float*)memo_session_get_address(session, l, INP);
    const float* hidden = (const float*)memo_session_get_address(session, l, HIDDEN);
    for (int i = 0; i < N; i++) {
        if (l == L - 1) t->d_x[i] = t->x[i] / (N_RANKS * N); /* of half the mean square */
        const float d = t->d_x[i] * (1 - hidden[i] * hidden[i]);
        t->d_w[l] += d * inp[i];
        t->d_x[i] += d * t->w[l];
    }
}

/* On each rank: a session, steps, and the sum of gradients. */
enum { N_STEPS = 6 };
static memo_status train(thread_rank* r, memo_error* error) {
    trainer* t = (trainer*)r->user + r->comm->rank;
    memo_session_desc desc = {0};
    memo_session* session;
    memo_status status;
    t->rank = r;
    desc.device = r->device, desc.computes_on_host = 1, desc.agree = agree;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE, desc.device_bytes = t->device_bytes;
    desc.user = t, desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    for (int l = 0; l < L; l++) t->w[l] = -0.1f, t->d_w[l] = 0;
    if ((status = memo_session_create(&desc, &session, error))) return status;
    for (int i = 0; i < N_STEPS && !status; i++) {
        status = memo_session_run(session, NULL, error);
        /* Ranks meet where a step ends: there all plan, by the times of the slowest. */
        if (!status) status = memo_session_update(session, error);
    }
    const memo_session_info info = memo_session_get_info(session);
    t->planned_bytes = info.plan->device_bytes;
    for (int i = 0; i < 2 * L; i++) t->digest = 31 * t->digest % 1000003 + info.plan->swap.rows[i];
    if (!status)
        status = memo_all_reduce(r->comm, r->stream, t->d_w, t->d_w, L, MEMO_TYPE_F32,
                                 MEMO_REDUCTION_SUM, error);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
    memo_session_destroy(session);
    return status;
}

int main(void) {
    static trainer kept[N_RANKS], small[N_RANKS];
    memo_error error;
    int is_same = 1;
    for (int i = 0; i < N_RANKS; i++) small[i].device_bytes = budgets[i];
    if (thread_ranks_run(N_RANKS, train, kept, &error) ||
        thread_ranks_run(N_RANKS, train, small, &error)) {
        fprintf(stderr, "26_session_ranks: %s\n", error.message);
        return 1;
    }
    for (int i = 0; i < N_RANKS; i++) {
        printf("rank %d: budget %d KiB, the session takes %d KiB\n", i, (int)(budgets[i] >> 10),
               (int)(small[i].planned_bytes >> 10));
        is_same &= small[i].digest == small[0].digest &&
                   !memcmp(small[i].d_w, kept[0].d_w, sizeof kept[0].d_w);
    }
    puts(is_same ? "all ranks swap the same rows; gradients are bitwise those of three ranks that "
                   "keep everything"
                 : "rows or gradients DIFFER");
    return !is_same;
}
