/* 21_slices.c - a sequence in slices: on the device only keys, values and their gradients grow
 * with the length.
 *
 * Layers of causal attention, h += attention(q, k, v) with q, k, v = h times a matrix.  A slice of
 * rows is computed at a time.  Only keys and values, which later slices read, and their gradients
 * live for all rows of a layer.  The host device has exactly the memory that is planned.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/21_slices.c -o 21_slices -lpthread -lm
 * Expected output:
 *     128  rows at once:          device 44.0 KiB, of which 24 KiB for keys, values, ...
 *     128  rows in slices of 32:  device 30.0 KiB, of which 24 KiB for keys, values, ...
 *     2048 rows in slices of 32:  device 390.0 KiB, of which 384 KiB for keys, values, ...
 *     forward: the same bits in slices; largest difference of a gradient: ...
 *     16 times the rows: the rest of the device memory is the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 4, C = 8, MOST = 2048 };
enum { H, INPUT, K, V, Q, N_TENSORS };
static const memo_item tensors[N_TENSORS] = {
    MEMO_ITEM("h", 4 * C, MEMO_MOVE, MEMO_EDGE),      /* in the backward: its gradient */
    MEMO_ITEM("input", 4 * C, MEMO_MOVE, MEMO_INPUT), /* h as the layer found it */
    MEMO_ITEM("k", 4 * C, MEMO_MOVE, MEMO_LAYER),     /* later slices read them */
    MEMO_ITEM("v", 4 * C, MEMO_MOVE, MEMO_LAYER), MEMO_ITEM("q", 4 * C, MEMO_ROWS)};
/* Every slice adds to the gradients of keys and values. */
static const memo_session_buffer buffers[] = {{"gradients of k and v", 0, 8 * C, MEMO_PASS_BACKWARD,
                                               MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};

typedef struct trainer {
    float w[L][3][C][C], d_w[L][3][C][C]; /* of q, k, v */
    double loss;
    float output[MOST][C];
    int64_t device_bytes, layer_bytes;
} trainer;

static void multiply(float* out, const float* in, float (*w)[C]) {
    for (int i = 0; i < C; i++) {
        out[i] = 0;
        for (int j = 0; j < C; j++) out[i] += w[i][j] * in[j];
    }
}
static void multiply_back(float* d_in, float (*d_w)[C], const float* d_out, const float* in,
                          float (*w)[C]) {
    for (int i = 0; i < C; i++)
        for (int j = 0; j < C; j++) d_in[j] += w[i][j] * d_out[i], d_w[i][j] += d_out[i] * in[j];
}

/* Shares of rows 0 to i in row i. */
static void attend(float* share, const float* q, float (*k)[C], int64_t i) {
    float sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        share[j] = 0;
        for (int c = 0; c < C; c++) share[j] += q[c] * k[j][c];
        sum += share[j] = expf(share[j]);
    }
    for (int64_t j = 0; j <= i; j++) share[j] /= sum;
}

static void recompute(void* user, memo_session* session, int32_t l, int32_t tensor, int64_t begin,
                      int64_t end) {
    float *input = memo_session_get_address(session, l, INPUT),
          *q = memo_session_get_address(session, l, Q);
    for (int64_t r = begin; r < end && tensor == Q; r++)
        multiply(q + r * C, input + r * C, ((trainer*)user)->w[l][0]);
}

/* One call for each slice: rows [begin, end) of the sequence, rows 0 to end - begin of h, input and
 * q. */
static void forward(void* user, memo_session* session, int32_t l) {
    trainer* t = user;
    float *h = memo_session_get_address(session, l, H),
          *input = memo_session_get_address(session, l, INPUT);
    float(*k)[C] = memo_session_get_address(session, l, K),
    (*v)[C] = memo_session_get_address(session, l, V);
    float* q = memo_session_get_address(session, l, Q);
    static float share[MOST];
    const memo_slice slice = memo_session_get_slice(session);
    const int64_t begin = slice.begin, end = slice.end;
    for (int64_t i = begin; i < end && l == 0; i++)
        for (int c = 0; c < C; c++) h[(i - begin) * C + c] = sinf((float)(i * C + c));
    memcpy(input, h, (size_t)(end - begin) * C * sizeof *h);
    recompute(user, session, l, Q, 0, end - begin);
    for (int64_t i = begin; i < end; i++, input += C, q += C, h += C) {
        multiply(k[i], input, t->w[l][1]);
        multiply(v[i], input, t->w[l][2]);
        attend(share, q, k, i);
        for (int64_t j = 0; j <= i; j++)
            for (int c = 0; c < C; c++) h[c] += share[j] * v[j][c];
        if (l == L - 1) memcpy(t->output[i], h, sizeof t->output[i]);
    }
}

/* The last slice comes first.  h holds the gradient; in the last layer the output, whose gradient
 * it is here. */
static void backward(void* user, memo_session* session, int32_t l) {
    trainer* t = user;
    float *d_h = memo_session_get_address(session, l, H),
          *input = memo_session_get_address(session, l, INPUT);
    float(*k)[C] = memo_session_get_address(session, l, K),
    (*v)[C] = memo_session_get_address(session, l, V);
    float* q = memo_session_get_address(session, l, Q);
    const int64_t n = memo_session_get_batch(session).n_rows;
    float(*d_k)[C] = memo_session_get_buffer(session, 0), (*d_v)[C] = d_k + n;
    static float share[MOST], d_share[MOST];
    const memo_slice slice = memo_session_get_slice(session);
    const int64_t begin = slice.begin, end = slice.end;
    if (end == n) memset(d_k, 0, 2 * (size_t)n * sizeof *d_k);
    for (int64_t i = end - 1; i >= begin; i--) {
        float *d = d_h + (i - begin) * C, *in = input + (i - begin) * C, d_q[C] = {0}, sum = 0;
        for (int c = 0; c < C && l == L - 1; c++) t->loss += 0.5 * d[c] * d[c] / (double)n;
        attend(share, q + (i - begin) * C, k, i);
        for (int64_t j = 0; j <= i; j++) {
            d_share[j] = 0;
            for (int c = 0; c < C; c++) d_share[j] += d[c] * v[j][c], d_v[j][c] += share[j] * d[c];
            sum += share[j] * d_share[j];
        }
        for (int64_t j = 0; j <= i; j++)
            for (int c = 0; c < C; c++) {
                d_q[c] += share[j] * (d_share[j] - sum) * k[j][c];
                d_k[j][c] += share[j] * (d_share[j] - sum) * q[(i - begin) * C + c];
            }
        multiply_back(d, t->d_w[l][0], d_q, in,
                      t->w[l][0]); /* no earlier row adds to d_k[i] and d_v[i] */
        multiply_back(d, t->d_w[l][1], d_k[i], in, t->w[l][1]);
        multiply_back(d, t->d_w[l][2], d_v[i], in, t->w[l][2]);
    }
}

/* A step of n rows in slices, on a device that has no more memory than planned; with MEMO_CHECK=1 a
 * session takes more. */
static memo_status run(trainer* t, int64_t n, int64_t slice_rows, memo_error* error) {
    memo_session_desc desc = {0};
    memo_host_device_desc host = {0};
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    memo_device* device = NULL;
    memo_status status;
    desc.tensors = tensors;
    desc.n_tensors = N_TENSORS;
    desc.n_layers = L;
    desc.n_rows = n;
    desc.slice_rows = slice_rows;
    desc.buffers = buffers;
    desc.n_buffers = 1;
    desc.policy = MEMO_POLICY_SWAP;
    desc.user = t;
    desc.forward = forward;
    desc.backward = backward;
    desc.recompute = recompute;
    for (int i = 0; i < L * 3 * C * C; i++)
        (&t->w[0][0][0][0])[i] = 0.3f * sinf(1.0f + 7 * (float)i);
    if ((status = memo_session_plan(&desc, NULL, &plan, error))) return status;
    t->device_bytes = plan->device_bytes;
    if (!getenv("MEMO_CHECK")) host.device_memory_bytes = plan->device_bytes;
    t->layer_bytes = (2 * 8 + 8) * C * n; /* keys and values of two layers, gradients of one */
    status = memo_host_device_create(&host, &device, error);
    desc.device = device;
    desc.computes_on_host = 1;
    if (!status) status = memo_session_open(&desc, plan, &session, error);
    if (!status) status = memo_session_run(session, NULL, error);
    memo_session_destroy(session);
    memo_host_device_destroy(device);
    memo_step_plan_destroy(plan);
    if (status) return status;
    printf("%-4d rows ", (int)n);
    printf(slice_rows < n ? "in slices of %d: " : "at once:         ", (int)slice_rows);
    printf(" device %.1f KiB, of which %.4g KiB for keys, values, gradients; loss %.6f\n",
           (double)t->device_bytes / 1024, (double)t->layer_bytes / 1024, t->loss);
    return MEMO_STATUS_OK;
}

int main(void) {
    static trainer whole, sliced, large;
    memo_error error;
    if (run(&whole, 128, 128, &error) || run(&sliced, 128, 32, &error) ||
        run(&large, MOST, 32, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    float most = 0;
    for (int i = 0; i < L * 3 * C * C; i++)
        most = fmaxf(most, fabsf((&whole.d_w[0][0][0][0])[i] - (&sliced.d_w[0][0][0][0])[i]));
    const int is_equal = !memcmp(whole.output, sliced.output, sizeof whole.output);
    const int64_t rest = sliced.device_bytes - sliced.layer_bytes,
                  rest_large = large.device_bytes - large.layer_bytes;
    printf("forward: %s bits in slices; largest difference of a gradient: %g\n",
           is_equal ? "the same" : "OTHER", most);
    printf("16 times the rows: the rest of the device memory is %s\n",
           rest == rest_large ? "the same" : "LARGER");
    return !is_equal || rest != rest_large;
}
