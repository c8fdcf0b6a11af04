/* 24_scan_ranks.c - a recurrence over ranks: each has consecutive tokens of a sequence, and passes
 * on a state instead of keys and values.
 *
 * The layer is a head of Mamba-2: S = a S + v k^T and o = S q, with a gate a for each token.  Here
 * k = q = a short convolution of the input x, and v = x.  The loss is the sum of o squared / 2.
 * Four ranks, threads of this process, give the outputs and gradients of one rank.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/24_scan_ranks.c -o 24_scan_ranks -lpthread -lm
 * Expected output:
 *     1000 tokens: 4 ranks send 3152 bytes; same outputs and gradients as 1 rank
 *     4000 tokens: 4 ranks send 3152 bytes; same outputs and gradients as 1 rank
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>
#include <stdlib.h>
#include "thread_ranks.h"

enum { C = 8, WIDTH = 4, HALO = WIDTH - 1, S = C * C, MOST = 4000 };
static const float filter[WIDTH] = {0.5f, 0.25f, -0.25f, 0.125f};

typedef struct job {
    int64_t n_tokens, sent_bytes[4];
    float x[MOST][C], gate[MOST]; /* of all ranks; the gates are logarithms */
    float o[MOST][C], d_x[MOST][C], d_gate[MOST];
} job;

/* A rank's rows of a layer. */
typedef struct layer {
    job* j;
    memo_device* device;
    int64_t begin, n;
    float halo[HALO][C], d_halo[HALO][C], state[S], d_state[S];
    float k[MOST][C], d_k[MOST][C], states[MOST][S]; /* states: after each row */
} layer;

/* k from x, or the gradient of x from that of k. */
static void convolve(layer* l, int is_backward) {
    for (int64_t t = 0; t < l->n; t++)
        for (int64_t w = 0; w < WIDTH; w++) {
            const int64_t from = t - w;
            const float* x = from < 0 ? l->halo[HALO + from] : l->j->x[l->begin + from];
            float* d_x = from < 0 ? l->d_halo[HALO + from] : l->j->d_x[l->begin + from];
            for (int i = 0; i < C && !is_backward; i++) l->k[t][i] += filter[w] * x[i];
            for (int i = 0; i < C && is_backward; i++) d_x[i] += filter[w] * l->d_k[t][i];
        }
}

/* A row takes the state on. */
static void step(const layer* l, int64_t t, const float* from, float* to) {
    const float *v = l->j->x[l->begin + t], *k = l->k[t], a = expf(l->j->gate[l->begin + t]);
    for (int i = 0; i < S; i++) to[i] = a * from[i] + v[i / C] * k[i % C];
}

/* The gradient of the state: from after a row to before it.  adds: also gradients of the row. */
static void step_back(layer* l, int64_t t, float* d, int adds) {
    const int64_t at = l->begin + t;
    const float *v = l->j->x[at], *k = l->k[t], *o = l->j->o[at], a = expf(l->j->gate[at]);
    const float* before = t ? l->states[t - 1] : l->state;
    for (int i = 0; i < S; i++) {
        d[i] += o[i / C] * k[i % C]; /* of o = S k; do is o */
        if (adds) {
            l->d_k[t][i % C] += o[i / C] * l->states[t][i] + v[i / C] * d[i];
            l->j->d_x[at][i / C] += k[i % C] * d[i];
            l->j->d_gate[at] += a * before[i] * d[i];
        }
        d[i] *= a;
    }
}

/* The functions of the scan; they run when the stream gets there. */
typedef struct task {
    layer* l;
    memo_scan_call call;
} task;

static memo_status summarize_now(void* p, memo_error* error) {
    const task* k = p;
    (void)error;
    memset(k->call.b, 0, S * sizeof *k->call.b);
    for (int64_t t = 0; t < k->l->n && !k->call.is_backward; t++)
        step(k->l, t, k->call.b, k->call.b);
    for (int64_t t = k->l->n - 1; t >= 0 && k->call.is_backward; t--)
        step_back(k->l, t, k->call.b, 0);
    if (!k->call.m) return MEMO_STATUS_OK;
    k->call.m[0] = 0; /* the logarithm of the product of gates: the product may underflow */
    for (int64_t t = 0; t < k->l->n; t++) k->call.m[0] += k->l->j->gate[k->l->begin + t];
    return MEMO_STATUS_OK;
}

static memo_status compose_now(void* p, memo_error* error) {
    const memo_scan_call* c = &((const task*)p)->call;
    (void)error;
    for (int i = 0; i < S; i++) c->b[i] = expf(c->then_m[0]) * c->first_b[i] + c->then_b[i];
    if (c->m) c->m[0] = c->first_m[0] + c->then_m[0];
    return MEMO_STATUS_OK;
}

static memo_status run_now(void* p, memo_error* error) {
    const task* k = p;
    layer* l = k->l;
    float d[S];
    (void)error;
    memcpy(d, k->call.state, sizeof d);
    for (int64_t t = 0; t < l->n && !k->call.is_backward; t++) {
        step(l, t, t ? l->states[t - 1] : d, l->states[t]);
        for (int i = 0; i < S; i++)
            l->j->o[l->begin + t][i / C] += l->states[t][i] * l->k[t][i % C];
    }
    for (int64_t t = l->n - 1; t >= 0 && k->call.is_backward; t--) step_back(l, t, d, 1);
    return MEMO_STATUS_OK;
}

#define LAUNCH(name)                                                                               \
    static memo_status name(void* p, const memo_scan_call* call, memo_error* error) {              \
        const task args = {p, *call};                                                              \
        return memo_host_device_launch(args.l->device, call->stream, name##_now, &args,            \
                                       sizeof args, error);                                        \
    }
LAUNCH(summarize)
LAUNCH(compose)
LAUNCH(run)

static memo_status rank_main(thread_rank* r, memo_error* error) {
    layer* l = calloc(1, sizeof *l);
    memo_scan_desc desc = {0};
    memo_scan_tensors forward = {NULL, l->state, NULL}, backward = {NULL, l->d_state, NULL};
    memo_scan* scan = NULL;
    int64_t begins[5];
    memo_status status;
    l->j = r->user;
    l->device = r->device;
    for (int i = 0; i <= r->comm->size; i++) begins[i] = l->j->n_tokens * i / r->comm->size;
    l->begin = begins[r->comm->rank];
    l->n = begins[r->comm->rank + 1] - l->begin;
    desc.device = r->device;
    desc.stream = r->stream;
    desc.comm = r->comm;
    desc.m_count = 1;
    desc.b_count = S;
    desc.functions = (memo_scan_functions){l, summarize, compose, run};
    desc.halo_rows = HALO;
    desc.halo_columns = C;

    status = memo_scan_create(&desc, &scan, error);
    if (!status) status = memo_scan_set_rows(scan, begins, NULL, 0, error);

    if (!status) status = memo_scan_halo_forward(scan, l->j->x[l->begin], l->halo, error);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
    if (!status) convolve(l, 0);
    if (!status) status = memo_scan_forward(scan, &forward, error);
    if (!status) status = memo_scan_backward(scan, &backward, error);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, error);
    if (!status) convolve(l, 1);
    if (!status) status = memo_scan_halo_backward(scan, l->d_halo, l->j->d_x[l->begin], error);
    memo_scan_destroy(scan); /* waits for the stream */
    l->j->sent_bytes[r->comm->rank] = r->comm->sent_bytes;
    free(l);
    return status;
}

/* The largest difference over the largest number. */
static double difference(const float* a, const float* b, int64_t n) {
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)a[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    }
    return worst / largest;
}

int main(void) {
    static job jobs[2]; /* one rank, four ranks */
    memo_error error;
    for (int64_t n = MOST / 4; n <= MOST; n *= 4) {
        int64_t sent_bytes = 0;
        double worst;
        for (int k = 0; k < 2; k++) {
            job* j = &jobs[k];
            memset(j, 0, sizeof *j);
            j->n_tokens = n;
            for (int64_t i = 0; i < n * C; i++) j->x[i / C][i % C] = sinf((float)(i * i % 1009));
            for (int64_t t = 0; t < n; t++) j->gate[t] = -0.1f * (float)(t % 7);
            if (thread_ranks_run(k ? 4 : 1, rank_main, j, &error)) {
                fprintf(stderr, "24_scan_ranks: %s\n", error.message);
                return 1;
            }
            for (int i = 0; i < 4; i++) sent_bytes += j->sent_bytes[i];
        }
        worst = fmax(difference(jobs[0].o[0], jobs[1].o[0], n * C),
                     fmax(difference(jobs[0].d_x[0], jobs[1].d_x[0], n * C),
                          difference(jobs[0].d_gate, jobs[1].d_gate, n)));
        printf("%d tokens: 4 ranks send %d bytes; %s outputs and gradients as 1 rank\n", (int)n,
               (int)sent_bytes, worst > 1e-5 ? "OTHER" : "same");
    }
    return 0;
}
