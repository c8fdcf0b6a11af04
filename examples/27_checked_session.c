/* 27_checked_session.c - a table of tensors as seen; two planted mistakes, and what finds them.
 *
 * A port may begin with all tensors MEMO_KEEP: memo_session_describe prints the table to paste.
 *
 * Each layer computes out = inp + tanh(w inp) for T tokens of C channels.  The first mistake:
 * recompute always begins with row 0.  The second: the backward of a layer reads tanh(w inp) of the
 * next layer, which has ended.  Training goes on with other gradients, without a word.
 * A checked session (is_checked, or MEMO_CHECK=1 in the environment) looks at every layer while it
 * trains, and says what is wrong; what a backward reads of an ended layer is NaN there.
 * memo_session_verify compares gradients before training, also those of a checked run, and finds
 * both.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/27_checked_session.c -o 27_checked_session -lpthread -lm
 * Expected output:
 *     ... As seen in a micro-batch of 256 rows.
 *      * tensor           written by layers      rows written     backward recompute
 *      * inp              0-15                   256              reads it no
 *      * hidden           0-15                   256              reads it gives it in runs of 1
 *     ...
 *     static const memo_item tensors[] = {
 *         MEMO_ITEM("inp", 128, MEMO_MOVE), // MEMO_KEEP
 *         MEMO_ITEM("hidden", 128, MEMO_ROWS), // MEMO_KEEP
 *     };
 *     no mistake: trains, gradients are right
 *         verify: right
 *         checked: right
 *     recompute begins with row 0: trains, gradients are WRONG
 *         verify: checked session: tensor `hidden` has other bits if it is recomputed in tiles ...
 *         checked: checked session: tensor `hidden` has other bits if it is recomputed in tiles ...
 *     backward reads an ended layer: trains, gradients are WRONG
 *         verify: memo_session_verify: output `d_w`, layer 0, number 0 (byte 0 of 4): a checked ...
 *         checked: right
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CHECK_IMPLEMENTATION
#include "extras/memo_check.h"
#include <stdio.h>

enum { L = 16, T = 256, C = 32, TILE = 32, N = T * C };
enum { INP, HIDDEN };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE),
                                 MEMO_ITEM("hidden", 4 * C, MEMO_ROWS)};
static float w[L], d_w[L], x[N], d_x[N];
enum { NONE, FIRST_ROW, ENDED_LAYER, N_MISTAKES };
static int mistake;

static float* at(memo_session* session, int32_t l, int32_t tensor) {
    return (float*)memo_session_get_address(session, l, tensor);
}
static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    float *inp = at(session, l, INP), *hidden = at(session, l, tensor);
    if (mistake == FIRST_ROW) end -= begin, begin = 0;
    for (int64_t i = begin * C; i < end * C; i++) hidden[i] = tanhf(w[l] * inp[i]);
    (void)user;
}
static void forward(void* user, memo_session* session, int32_t l) {
    for (int i = 0; i < N && l == 0; i++) x[i] = sinf((float)i);
    memcpy(at(session, l, INP), x, sizeof x);
    recompute(user, session, l, HIDDEN, 0, T);
    for (int i = 0; i < N; i++) x[i] += at(session, l, HIDDEN)[i];
}
static void backward(void* user, memo_session* session, int32_t l) {
    const int32_t read = mistake == ENDED_LAYER && l + 1 < L ? l + 1 : l;
    const float *inp = at(session, l, INP), *hidden = at(session, read, HIDDEN);
    for (int i = 0; i < N; i++) {
        if (l == L - 1) d_x[i] = x[i] / N; /* of half the mean square */
        const float d = d_x[i] * (1 - hidden[i] * hidden[i]);
        d_w[l] += d * inp[i];
        d_x[i] += d * w[l];
    }
    (void)user;
}

static memo_status train(const memo_session_desc* desc, memo_error* error) {
    memo_session* session;
    memo_status status = memo_session_create(desc, &session, error);
    if (status) return status;
    memset(d_w, 0, sizeof d_w);
    status = memo_session_run(session, NULL, error);
    memo_session_destroy(session);
    return status;
}

int main(void) {
    static const char* const names[] = {"no mistake", "recompute begins with row 0",
                                        "backward reads an ended layer"};
    static const memo_verify_output outputs[] = {{"d_w", d_w, sizeof d_w, MEMO_TYPE_F32, L}};
    memo_session_desc desc = {0};
    memo_verify_desc check = {0};
    memo_item kept[2] = {acts[INP], acts[HIDDEN]};
    memo_text table = {NULL, 0, 0, 0};
    float right[N_MISTAKES][L];
    memo_error error;
    int n_wrong = 0;
    desc.tensors = acts, desc.n_tensors = 2;
    desc.n_layers = L, desc.n_rows = T, desc.tile_rows = TILE;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    check.outputs = outputs, check.n_outputs = 1;
    desc.policy = MEMO_POLICY_ALPHA, desc.alpha = 0.5; /* the same plan always */
    for (int l = 0; l < L; l++) w[l] = -0.1f;

    kept[INP].away = kept[HIDDEN].away = MEMO_KEEP;
    desc.tensors = kept;
    memo_status status = memo_session_describe(&desc, &check, &table, &error);
    if (!status) status = memo_text_write(&table, "-", &error);
    if (status) return fprintf(stderr, "%s\n", error.message), 1;
    desc.tensors = acts;

    for (int k = 0; k < N_MISTAKES; k++) {
        mistake = k;
        desc.is_checked = 0;
        if (train(&desc, &error)) return fprintf(stderr, "%s\n", error.message), 1;
        memcpy(right[k], d_w, sizeof d_w);
        const int is_right = !memcmp(right[k], right[0], sizeof d_w);
        printf("%s: trains, gradients are %s\n", names[k], is_right ? "right" : "WRONG");
        const int is_verified = !memo_session_verify(&desc, &check, &error);
        printf("    verify: %s\n", is_verified ? "right" : error.message);
        desc.is_checked = 1;
        const int is_checked = !train(&desc, &error);
        printf("    checked: %s\n", is_checked ? "right" : error.message);
        n_wrong +=
            is_right != (k == NONE) || is_verified != is_right || is_checked != (k != FIRST_ROW);
    }
    return n_wrong > 0;
}
