/* 33_pipeline.c - a pipeline of four stages with micro-batches in flight, in the order 1F1B.
 *
 * Each stage is a thread with a session of three layers.  Its order lists the turns of a step:
 * forwards (F) and backwards (B) of six micro-batches.  The session plans memory for the
 * micro-batches in flight, swaps or recomputes the rows that do not fit, and refuses a turn that is
 * not the next.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/33_pipeline.c -o 33_pipeline -lpthread -lm
 * Expected output:
 *     stage 0: F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5; ... of 256 KiB
 *     stage 1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5; ... of 256 KiB
 *     stage 2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5; ... of 256 KiB
 *     stage 3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5; ... of 256 KiB
 *     gradients are bitwise those of one stage that keeps everything
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#include <stdio.h>
#include "thread_ranks.h"

enum { LAYERS = 12, M = 6, T = 256, C = 16, N = T * C, BUDGET = 256 << 10, N_TURNS = 2 * M };
enum { INP, HIDDEN }; /* tensors */
enum { X, D_X };      /* buffers */
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};

/* Of a stage. */
typedef struct stage {
    int64_t device_bytes; /* 0: no limit */
    int32_t number, n_stages, n_layers;
    memo_turn order[N_TURNS];
    float w[LAYERS], d_w[LAYERS];
    /* For outputs, and for gradients, which go the other way: neither waits for the other. */
    memo_comm* comms[2];
    memo_stream streams[2];
    float sent[2][N];
    thread_rank* rank;
    int64_t planned_bytes;
} stage;

/* 1F1B: later stages have fewer micro-batches in flight. */
static void list_turns(stage* s) {
    int32_t ahead = s->n_stages - 1 - s->number, n = 0;
    for (int32_t i = 0; i < M + ahead; i++) {
        if (i < M) s->order[n++] = (memo_turn){i, 0, MEMO_PASS_FORWARD};
        if (i >= ahead) s->order[n++] = (memo_turn){i - ahead, 0, MEMO_PASS_BACKWARD};
    }
}

/* Messages between two stages are in the order of micro-batches, in each direction. */
static int32_t is_alone(const stage* s, int32_t to) { return to < 0 || to >= s->n_stages; }
static void receive(stage* s, memo_session* session, int is_back, float* to) {
    const int32_t from = s->number + (is_back ? 1 : -1);
    memo_error error;
    memo_status status;
    if (is_alone(s, from)) return;
    status =
        memo_receive(s->comms[is_back], s->streams[is_back], to, N, MEMO_TYPE_F32, from, &error);
    if (!status) status = memo_stream_synchronize(s->rank->device, s->streams[is_back], &error);
    if (status) memo_session_fail(session, status, error.message);
}
static void send(stage* s, memo_session* session, int is_back, const float* from) {
    const int32_t to = s->number + (is_back ? -1 : 1);
    float* sent = s->sent[is_back];
    memo_error error;
    memo_status status;
    if (is_alone(s, to)) return;
    status = memo_stream_synchronize(s->rank->device, s->streams[is_back], &error);
    if (!status) memcpy(sent, from, N * sizeof *sent); /* the buffer ends with the turn */
    if (!status)
        status =
            memo_send(s->comms[is_back], s->streams[is_back], sent, N, MEMO_TYPE_F32, to, &error);
    if (status) memo_session_fail(session, status, error.message);
}

static float* tensor(memo_session* session, int32_t l, int32_t t) {
    return (float*)memo_session_get_address(session, l, t);
}
static float* buffer(memo_session* session, int32_t b) {
    return (float*)memo_session_get_buffer(session, b);
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t t, int64_t begin,
                      int64_t end) {
    const float *inp = tensor(session, l, INP), w = ((stage*)user)->w[l];
    float* hidden = tensor(session, l, t);
    for (int64_t i = begin * C; i < end * C; i++) hidden[i] = tanhf(w * inp[i]);
}
static void forward(void* user, memo_session* session, int32_t l) {
    stage* s = (stage*)user;
    const int32_t micro_batch = memo_session_get_batch(session).turn.micro_batch;
    float* x = buffer(session, X);
    for (int i = 0; i < N && l == 0 && s->number == 0; i++)
        x[i] = sinf((float)(i + N * micro_batch));
    if (l == 0) receive(s, session, 0, x);
    memcpy(tensor(session, l, INP), x, N * sizeof *x);
    recompute(user, session, l, HIDDEN, 0, T);
    for (int i = 0; i < N; i++) x[i] += tensor(session, l, HIDDEN)[i];
    if (l == s->n_layers - 1) send(s, session, 0, x);
}
/* The loss is half the mean square of the last output, which is the sum of both tensors. */
static void backward(void* user, memo_session* session, int32_t l) {
    stage* s = (stage*)user;
    const float *inp = tensor(session, l, INP), *hidden = tensor(session, l, HIDDEN);
    float* d_x = buffer(session, D_X);
    if (l == s->n_layers - 1) receive(s, session, 1, d_x);
    for (int i = 0; i < N && l == s->n_layers - 1 && s->number == s->n_stages - 1; i++)
        d_x[i] = (inp[i] + hidden[i]) / (M * N);
    for (int i = 0; i < N; i++) {
        const float d = d_x[i] * (1 - hidden[i] * hidden[i]);
        s->d_w[l] += d * inp[i];
        d_x[i] += d * s->w[l];
    }
    if (l == 0) send(s, session, 1, d_x);
}

static memo_status open_links(stage* s, memo_error* error) {
    static const char* const names[] = {"outputs", "gradients"};
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < 2 && !status; k++) {
        status = memo_comm_split(s->rank->comm, 0, s->number, names[k], &s->comms[k], error);
        if (!status)
            status = memo_stream_create(s->rank->device, names[k], 0, &s->streams[k], error);
    }
    return status;
}

/* A step of a stage: all turns of its order. */
static memo_status train(thread_rank* r, memo_error* error) {
    stage* s = (stage*)r->user + r->comm->rank;
    const int32_t last = LAYERS / r->comm->size - 1;
    const memo_session_buffer buffers[] = {
        {"x", 0, 4 * C, MEMO_PASS_FORWARD, 0, MEMO_PASS_FORWARD, last, 0},
        {"d_x", 0, 4 * C, MEMO_PASS_BACKWARD, last, MEMO_PASS_BACKWARD, 0, 0}};
    memo_session_desc desc = {0};
    memo_session_info info;
    memo_session* session = NULL;
    memo_status status;
    s->rank = r, s->number = r->comm->rank, s->n_stages = r->comm->size, s->n_layers = last + 1;
    for (int l = 0; l <= last; l++) s->w[l] = -0.1f;
    list_turns(s);
    desc.device = r->device, desc.computes_on_host = 1, desc.device_bytes = s->device_bytes;
    desc.tensors = acts, desc.n_tensors = 2, desc.n_layers = s->n_layers, desc.n_rows = T;
    desc.tile_rows = 32, desc.order = s->order, desc.n_order = N_TURNS;
    desc.buffers = buffers, desc.n_buffers = 2, desc.user = s, desc.forward = forward,
    desc.backward = backward, desc.recompute = recompute;

    status = open_links(s, error);
    if (!status) status = memo_session_create(&desc, &session, error);
    if (!status) info = memo_session_get_info(session);
    if (!status) s->planned_bytes = info.plan->device_bytes;
    for (int32_t k = 0; k < N_TURNS && !status; k++) {
        const memo_batch batch = {.turn = s->order[k]};
        status = memo_session_run(session, &batch, error);
    }
    memo_session_destroy(session);
    for (int k = 0; k < 2; k++) {
        if (s->streams[k]) (void)memo_stream_destroy(r->device, s->streams[k], NULL);
        memo_comm_destroy(s->comms[k]);
    }
    return status;
}

int main(void) {
    enum { STAGES = 4 };
    static stage one, stages[STAGES];
    memo_error error;
    int is_same = 1;
    for (int i = 0; i < STAGES; i++) stages[i].device_bytes = BUDGET;
    if (thread_ranks_run(1, train, &one, &error) ||
        thread_ranks_run(STAGES, train, stages, &error)) {
        fprintf(stderr, "33_pipeline: %s\n", error.message);
        return 1;
    }
    for (int i = 0; i < STAGES; i++) {
        const stage* s = &stages[i];
        printf("stage %d:", i);
        for (int k = 0; k < N_TURNS; k++)
            printf(" %c%d", " F B"[s->order[k].pass], (int)s -> order[k].micro_batch);
        printf("; %d of %d KiB\n", (int)(s->planned_bytes >> 10), BUDGET >> 10);
        is_same &= !memcmp(s->d_w, one.d_w + i * s->n_layers, (size_t)s->n_layers * sizeof *s->d_w);
    }
    puts(is_same ? "gradients are bitwise those of one stage that keeps everything"
                 : "gradients DIFFER");
    return !is_same;
}
