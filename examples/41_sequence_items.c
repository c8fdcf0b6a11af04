/* 41_sequence_items.c - attention over two ranks whose saved tensors are in the session's budget.
 *
 * Attention over ranks keeps the log-sum-exps of each layer, and q, k and v by heads, from forward
 * to backward.  As items of a session they leave the device like other activations.  Each layer is
 * x + attention(x); it runs once with everything on the device, and once in the least memory.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/41_sequence_items.c -o 41_sequence_items -lpthread -lm
 * Expected output:
 *     of a layer and a rank: lse 1.0 KiB, q, k and v by heads 24.0 KiB
 *     everything stays: 0.32 MiB on the device
 *     the least:        0.08 MiB on the device
 *     the gradients of both are bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#include <stdio.h>
#include "host_attention.h"
#include "thread_ranks.h"

enum { N_RANKS = 2, L = 8, TOKENS = 128, LOCAL = TOKENS / N_RANKS, HEADS = 4, HEAD_SIZE = 8 };
enum { ROW = HEADS * HEAD_SIZE, N = LOCAL * ROW };
enum { INP, OUT, LSE, SAVED, N_TENSORS }; /* SAVED is LSE + 1 */

typedef struct trainer {
    thread_rank* rank;
    memo_sequence* sequence;
    memo_sequence_batch* batch;
    memo_item items[N_TENSORS];
    float x[N], d[N], d_q[N], d_k[N], d_v[N]; /* the host device takes any memory */
    float kept[N];                            /* the gradient with everything on the device */
    int64_t device_bytes[2];
    int is_same;
} trainer;
static trainer trainers[N_RANKS];

static memo_sp_attention_tensors tensors_of(memo_session* session, int32_t layer) {
    memo_sp_attention_tensors t = {0};
    t.q = t.k = t.v = memo_session_get_address(session, layer, INP);
    t.out = memo_session_get_address(session, layer, OUT);
    t.lse = (float*)memo_session_get_address(session, layer, LSE);
    t.saved = memo_session_get_address(session, layer, SAVED);
    return t;
}

/* to += from */
static memo_status add(const trainer* t, float* to, const float* from, memo_error* error) {
    const memo_add_desc desc = {to, to, from, MEMO_TYPE_F32, MEMO_TYPE_F32, MEMO_TYPE_F32, 1, N,
                                0,  0,  0};
    return memo_row_add(t->rank->device, t->rank->stream, &desc, error);
}

static void forward(void* user, memo_session* session, int32_t layer) {
    trainer* t = (trainer*)user;
    const memo_sp_attention_tensors tensors = tensors_of(session, layer);
    memo_error error;
    memo_status status =
        memo_copy(t->rank->device, t->rank->stream, MEMO_COPY_ON_DEVICE,
                  memo_session_get_address(session, layer, INP), t->x, sizeof t->x, &error);
    if (!status) status = memo_sequence_batch_attend(t->batch, layer, &tensors, &error);
    if (!status) status = add(t, t->x, (const float*)tensors.out, &error);
    if (status) memo_session_fail(session, status, error.message);
}

static void backward(void* user, memo_session* session, int32_t layer) {
    trainer* t = (trainer*)user;
    memo_sp_attention_tensors tensors = tensors_of(session, layer);
    memo_error error;
    tensors.d_out = t->d;
    tensors.d_q = t->d_q, tensors.d_k = t->d_k, tensors.d_v = t->d_v;
    memo_status status = memo_sequence_batch_attend_backward(t->batch, layer, &tensors, &error);
    if (!status) status = add(t, t->d, t->d_q, &error); /* q, k and v are the input */
    if (!status) status = add(t, t->d, t->d_k, &error);
    if (!status) status = add(t, t->d, t->d_v, &error);
    if (status) memo_session_fail(session, status, error.message);
}

/* Two micro-batches of a session.  run 0: everything stays on the device; 1: the least memory. */
static memo_status train(trainer* t, int run, memo_error* error) {
    memo_session_desc desc = {0};
    memo_session* session = NULL;
    desc.device = t->rank->device, desc.compute_stream = t->rank->stream;
    desc.tensors = t->items, desc.n_tensors = N_TENSORS;
    desc.n_layers = L, desc.n_rows = LOCAL;
    desc.policy = run ? MEMO_POLICY_SWAP : MEMO_POLICY_KEEP;
    desc.user = t, desc.forward = forward, desc.backward = backward;
    memo_status status = MEMO_STATUS_OK;
    if (run) status = memo_session_get_least(&desc, &desc.device_bytes, error);
    if (!status) status = memo_session_create(&desc, &session, error);
    if (!status) t->device_bytes[run] = memo_session_get_info(session).plan->device_bytes;

    for (int step = 0; step < 2 && !status; step++) {
        const memo_sequence_batch_desc whole = {0}; /* one document */
        for (int i = 0; i < N; i++) {
            t->x[i] = sinf((float)(i + N * t->rank->comm->rank));
            t->d[i] = 1.0f / N;
        }
        status = memo_sequence_batch_create(t->sequence, &whole, &t->batch, error);
        if (!status) status = memo_session_run(session, NULL, error);
        if (!status) status = memo_stream_synchronize(t->rank->device, t->rank->stream, error);
        memo_sequence_batch_destroy(t->batch);
        t->batch = NULL;
    }
    memo_session_destroy(session);
    if (!run) memcpy(t->kept, t->d, sizeof t->d);
    t->is_same = !memcmp(t->kept, t->d, sizeof t->d);
    return status;
}

static memo_status run_rank(thread_rank* r, memo_error* error) {
    static const memo_item inp = MEMO_ITEM("inp", 4 * ROW, MEMO_MOVE);
    static const memo_item out = MEMO_ITEM("out", 4 * ROW, MEMO_MOVE);
    trainer* t = &trainers[r->comm->rank];
    host_attention state = {r->device, 0};
    memo_sequence_desc desc = {0};
    desc.device = r->device, desc.stream = r->stream;
    desc.comm = r->comm, desc.ulysses = N_RANKS;
    desc.n_tokens = TOKENS, desc.n_layers = L;
    desc.n_q_heads = desc.n_kv_heads = HEADS, desc.head_size = HEAD_SIZE;
    desc.attention = host_attention_functions(&state);
    desc.n_in_flight = -1; /* the session keeps what passes keep */
    t->rank = r;
    memo_status status = memo_sequence_create(&desc, &t->sequence, error);

    t->items[INP] = inp, t->items[OUT] = out;
    memo_sequence_get_items(t->sequence, &t->items[LSE]);
    for (int run = 0; run < 2 && !status; run++) status = train(t, run, error);
    memo_sequence_destroy(t->sequence);
    return status;
}

int main(void) {
    const trainer* t = &trainers[0];
    memo_error error;
    if (thread_ranks_run(N_RANKS, run_rank, NULL, &error)) {
        fprintf(stderr, "41_sequence_items: %s\n", error.message);
        return 1;
    }
    const int is_same = trainers[0].is_same && trainers[1].is_same;
    printf("of a layer and a rank: lse %.1f KiB, q, k and v by heads %.1f KiB\n",
           (double)(t->items[LSE].row_bytes * LOCAL) / 1024,
           (double)(t->items[SAVED].row_bytes * LOCAL) / 1024);
    printf("everything stays: %.2f MiB on the device\n", (double)t->device_bytes[0] / (1 << 20));
    printf("the least:        %.2f MiB on the device\n", (double)t->device_bytes[1] / (1 << 20));
    printf("the gradients of both are %s\n", is_same ? "bitwise the same" : "NOT the same");
    return !is_same;
}
