/* 20_inject_faults.c - tests how a trainer uses memo: every call of the device fails once, then
 * streams are delayed at random.
 *
 * A failed call must end the step with a status, leak nothing, and leave a session whose next step
 * is right.  Delays must change no bit: a missing wait does.  Each layer computes x = x + tanh(w x)
 * on a stream, with one parameter w.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/20_inject_faults.c -o 20_inject_faults -lpthread -lm
 * Expected output:
 *     faults  ... calls failed in turn, ... of them in the step: each a status, nothing leaked
 *     again   ... steps after a fault: gradients bitwise the same
 *     delays  20 runs: gradients bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include <stdio.h>

/* ---- the trainer ----------------------------------------------------------------------------- */

enum { L = 4, T = 64, C = 8, TILE = 8 };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),     /* (T, C) */
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)}; /* (T, C) */

typedef struct trainer {
    memo_device* host; /* runs the kernels */
    memo_stream stream;
    float w[L], d_w[L], x[T * C], d_x[T * C];
} trainer;

enum { START, FORWARD, RECOMPUTE, LOSS, BACKWARD };
typedef struct job {
    trainer* t;
    int kernel;
    float *inp, *hidden;
    int32_t l;
    int64_t begin, end; /* elements */
} job;

static memo_status run(void* arguments, memo_error* error) {
    const job* j = (const job*)arguments;
    trainer* t = j->t;
    (void)error;
    for (int64_t i = j->begin; i < j->end; i++) {
        if (j->kernel == START) t->x[i] = sinf((float)i);
        if (j->kernel == FORWARD) j->inp[i] = t->x[i];
        if (j->kernel == FORWARD || j->kernel == RECOMPUTE)
            j->hidden[i] = tanhf(t->w[j->l] * j->inp[i]);
        if (j->kernel == FORWARD) t->x[i] += j->hidden[i];
        if (j->kernel == LOSS) t->d_x[i] = 2 * t->x[i];
        if (j->kernel == BACKWARD) {
            float slope = t->d_x[i] * (1 - j->hidden[i] * j->hidden[i]);
            t->d_w[j->l] += slope * j->inp[i];
            t->d_x[i] += t->w[j->l] * slope;
        }
    }
    return MEMO_STATUS_OK;
}

static void launch(trainer* t, memo_session* session, int kernel, int32_t l, int64_t begin,
                   int64_t end) {
    job j = {t, kernel, NULL, NULL, l, begin * C, end * C};
    memo_error error;
    memo_status status;
    j.inp = (float*)memo_session_get_address(session, l, INP);
    j.hidden = (float*)memo_session_get_address(session, l, HIDDEN);
    status = memo_host_device_launch(t->host, t->stream, run, &j, sizeof j, &error);
    if (status) memo_session_fail(session, status, error.message);
}

static void forward(void* user, memo_session* session, int32_t l) {
    if (l == 0) launch((trainer*)user, session, START, l, 0, T);
    launch((trainer*)user, session, FORWARD, l, 0, T);
}
static void between(void* user, memo_session* session) {
    launch((trainer*)user, session, LOSS, 0, 0, T);
}
static void backward(void* user, memo_session* session, int32_t l) {
    launch((trainer*)user, session, BACKWARD, l, 0, T);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    if (tensor == HIDDEN) launch((trainer*)user, session, RECOMPUTE, l, begin, end);
}

static memo_status step(trainer* t, memo_session* session, memo_error* error) {
    /* A failed step may have left kernels on the stream, which write d_w. */
    memo_status status = memo_stream_synchronize(t->host, t->stream, error);
    if (status) return status;
    memset(t->d_w, 0, sizeof t->d_w);
    status = memo_session_run(session, 0, error);
    return status ? status : memo_stream_synchronize(t->host, t->stream, error);
}

/* The whole trainer on a device: `device` for memo, t->host for its own kernels. */
static memo_status open_trainer(trainer* t, const memo_device* device, memo_session** session,
                                memo_error* error) {
    memo_session_desc desc = {0};
    static int64_t rows[L][2]; /* of each layer, inp is swapped and hidden half recomputed */
    for (int l = 0; l < L; l++) t->w[l] = -0.1f, rows[l][INP] = T, rows[l][HIDDEN] = T / 2;
    desc.device = device, desc.compute_stream = t->stream;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE;
    desc.user = t;
    desc.forward = forward, desc.between = between, desc.backward = backward;
    desc.recompute = recompute;
    desc.policy = MEMO_POLICY_ROWS, desc.rows = &rows[0][0];
    return memo_session_create(&desc, session, error);
}

/* ---- its test -------------------------------------------------------------------------------- */

/* Exits with the message if it does not hold. */
static void require(int holds, const char* what, const memo_error* error) {
    if (holds) return;
    fprintf(stderr, "20_inject_faults: %s (%s)\n", what, error->message);
    exit(1);
}

typedef struct result {
    int64_t n_calls;    /* of the device */
    memo_status status; /* of the first step, or of the creation */
    int is_again;       /* a second step followed the first, which failed */
    float d_w[L];       /* of the last step */
} result;

static result train(int64_t failing_call, double delay_s, uint64_t seed) {
    static trainer t;
    memo_host_device_desc desc = {0};
    memo_session* session = NULL;
    memo_faults faults;
    memo_error error = {MEMO_STATUS_OK, 0, ""};
    result r = {0, MEMO_STATUS_OK, 0, {0}};
    require(!memo_host_device_create(&desc, &t.host, &error), "no host device", &error);
    require(!memo_stream_create(t.host, "compute", 0, &t.stream, &error), "no stream", &error);
    memo_faults_init(&faults, t.host);
    faults.failing_call = failing_call;
    faults.delay_s = delay_s;
    faults.seed = seed;

    r.status = open_trainer(&t, &faults.device, &session, &error);
    if (!r.status) r.status = step(&t, session, &error);
    r.n_calls = faults.n_calls;
    require(r.status ? faults.failed && strstr(error.message, "on purpose") != NULL
                     : !faults.failed,
            "the status hides or invents a fault", &error);

    /* The fault does not last, so the session must be able to continue. */
    r.is_again = r.status && session;
    if (r.is_again) require(!step(&t, session, &error), "no step after a fault", &error);
    memcpy(r.d_w, t.d_w, sizeof r.d_w);
    memo_session_destroy(session);
    const memo_host_device_stats stats = memo_host_device_get_stats(t.host);
    require(!stats.device_bytes && !stats.host_bytes, "memory is leaked", &error);
    memo_host_device_destroy(t.host);
    return r;
}

int main(void) {
    const memo_error none = {MEMO_STATUS_OK, 0, ""};
    result right = train(0, 0, 0), r;
    int64_t k, n_again = 0;
    for (k = 1; (r = train(k, 0, 0)).status; k++) {
        n_again += r.is_again;
        require(!r.is_again || !memcmp(r.d_w, right.d_w, sizeof r.d_w), "other gradients after it",
                &none);
    }
    require(k == r.n_calls + 1, "a fault was ignored", &none);
    require(n_again > 0, "no call of the step failed", &none);
    printf(
        "faults  %d calls failed in turn, %d of them in the step: each a status, nothing leaked\n",
        (int)k - 1, (int)n_again);
    printf("again   %d steps after a fault: gradients bitwise the same\n", (int)n_again);

    for (int seed = 0; seed < 20; seed++) {
        r = train(0, 1e-4, (uint64_t)seed);
        require(!r.status && !memcmp(r.d_w, right.d_w, sizeof r.d_w), "delays change gradients",
                &none);
    }
    printf("delays  20 runs: gradients bitwise the same\n");
    return 0;
}
