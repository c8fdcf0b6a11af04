/* bench/slices.c - steps in slices: predicted and measured, beside the run without slices.
 *
 *   cc -O2 -I. bench/slices.c -lpthread -lm
 *   ./a.out [REPETITIONS]
 *
 * Causal layers on a host device whose copies have a limited rate.  In each case a session
 * measures, plans and runs a model in slices, and another one, if that fits, the same model
 * without.  All is repeated in turn; times are medians.
 *   sleep   Computation sleeps, so that a busy machine disturbs little: times of the clock.
 *   work    Computation is real: processor time of the stream that computes.  Copies do not count,
 *           and stalls neither.
 * It fails if a step in slices differs by more than 5 % from its prediction, or takes more than
 * 1.05 of the step without slices that has the same memory. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1
#include <time.h>

/* The clock of a stream that works is its processor time. */
static __thread int works;
static int bench_clock(clockid_t id, struct timespec* time) {
    return clock_gettime(works ? CLOCK_THREAD_CPUTIME_ID : id, time);
}
#define clock_gettime bench_clock
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "check.h"
#include "median.h"
#include "../tests/support/session_times.h"

enum { N_LAYERS = 4, C = 16, REPETITIONS_MAX = 31 };
enum { HANDED, INPUT, K, V, Q, ATTENTION, MLP, N_TENSORS };
static const memo_item tensors[N_TENSORS] = {MEMO_ITEM("handed", 16 * C, MEMO_MOVE, MEMO_EDGE),
                                             MEMO_ITEM("input", 16 * C, MEMO_MOVE, MEMO_INPUT),
                                             MEMO_ITEM("k", 4 * C, MEMO_MOVE, MEMO_LAYER),
                                             MEMO_ITEM("v", 4 * C, MEMO_MOVE, MEMO_LAYER),
                                             MEMO_ITEM("q", 16 * C, MEMO_ROWS),
                                             MEMO_ITEM("attention", 16 * C, MEMO_WHOLE),
                                             MEMO_ITEM("mlp", 64 * C, MEMO_ROWS)};
#define LAYER_ROW_BYTES (120 * C)
static const memo_session_buffer buffers[] = {{"gradients of k and v", 0, 8 * C, MEMO_PASS_BACKWARD,
                                               MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};

static double worst_prediction, worst_step;

typedef struct model {
    memo_device* host;
    memo_stream compute;
    int64_t n_rows;
    int is_real;
    double row_s, pair_s; /* of a row's products, and of a row with one before it */
} model;

/* Rows [begin, end) of the sequence: how often the products of a row, and its attention. */
typedef struct work {
    float *k, *v, *out;
    int64_t begin, end;
    int32_t n_products, n_attentions;
} work;

static memo_status run_work(void* args, memo_error* unused) {
    const work* w = args;
    static const float weights[C][C] = {{0.5f}, {0.25f, 0.125f}};
    (void)unused;
    works = 1;
    for (int64_t i = w->begin; i < w->end; i++) {
        float* out = w->out + (i - w->begin) * C;
        for (int n = 0; n < w->n_products; n++)
            for (int c = 0; c < C; c++) {
                float sum = 1;
                for (int d = 0; d < C; d++) sum += weights[c][d] * out[d];
                out[c] = 0.5f * sum;
            }
        for (int n = 0; n < w->n_attentions; n++)
            for (int64_t j = 0; j <= i; j++) {
                float share = 0;
                for (int c = 0; c < C; c++) share += out[c] * w->k[j * C + c];
                share *= 1e-6f;
                for (int c = 0; c < C; c++) out[c] += share * w->v[j * C + c];
            }
        for (int c = 0; c < C; c++) w->k[i * C + c] = w->v[i * C + c] = 0.1f * (float)(c + 1);
    }
    return MEMO_STATUS_OK;
}

/* Enqueues the work of rows [begin, end) of the sequence, which lie at `t` of the layer. */
static void compute(model* m, memo_session* s, int32_t layer, int32_t t, int64_t begin, int64_t end,
                    int64_t first, int32_t n_products, int32_t n_attentions) {
    const double n = (double)(end - begin), pairs = n * (double)(begin + end) / 2;
    work w;
    w.k = memo_session_get_address(s, layer, K);
    w.v = memo_session_get_address(s, layer, V);
    w.out = (float*)memo_session_get_address(s, layer, t) + (begin - first) * C;
    w.begin = begin;
    w.end = end;
    w.n_products = n_products;
    w.n_attentions = n_attentions;
    check(m->is_real ? memo_host_device_launch(m->host, m->compute, run_work, &w, sizeof w, &error)
                     : memo_host_device_sleep(
                           m->host, m->compute,
                           n_products * n * m->row_s + n_attentions * pairs * m->pair_s, &error));
}

static void forward(void* user, memo_session* s, int32_t layer) {
    const memo_slice slice = memo_session_get_slice(s);
    compute(user, s, layer, ATTENTION, slice.begin, slice.end, slice.begin, 24, 2);
}
static void backward(void* user, memo_session* s, int32_t layer) {
    const memo_slice slice = memo_session_get_slice(s);
    compute(user, s, layer, ATTENTION, slice.begin, slice.end, slice.begin, 48, 5);
}
static void recompute(void* user, memo_session* s, int32_t layer, int32_t t, int64_t first,
                      int64_t last) {
    const int64_t begin = memo_session_get_slice(s).begin;
    compute(user, s, layer, t, begin + first, begin + last, begin,
            t == ATTENTION ? 0
            : t == Q       ? 4
                           : 10,
            t == ATTENTION ? 2 : 0);
}

/* The session of a plan, or NULL if none fits. */
static memo_session* open_session(model* m, int64_t slice_rows, int64_t device_bytes,
                                  int64_t host_bytes, memo_step_plan** plan) {
    memo_session_desc desc = {0};
    memo_session* session = NULL;
    memo_profile profile;
    memo_status status;
    *plan = NULL;
    desc.device = m->host;
    desc.compute_stream = m->compute;
    desc.tensors = tensors;
    desc.n_tensors = N_TENSORS;
    desc.n_layers = N_LAYERS;
    desc.n_rows = m->n_rows;
    desc.tile_rows = 64;
    desc.slice_rows = slice_rows;
    desc.buffers = buffers;
    desc.n_buffers = 1;
    desc.user = m;
    desc.forward = forward;
    desc.backward = backward;
    desc.recompute = recompute;
    desc.device_bytes = device_bytes;
    desc.host_bytes = host_bytes;
    status = session_times(&desc, &profile, &error);
    if (status == MEMO_STATUS_INFEASIBLE) return NULL;
    check(status);
    check(memo_session_plan(&desc, &profile, plan, &error));
    if ((*plan)->fits) check(memo_session_open(&desc, *plan, &session, &error));
    return session;
}

/* One step.  Both events are on the stream that computes. */
static double time_step(model* m, memo_session* session) {
    memo_event begin, end;
    double elapsed_s;
    check(memo_event_create(m->host, &begin, &error));
    check(memo_event_create(m->host, &end, &error));
    check(memo_event_record(m->host, begin, m->compute, &error));
    check(memo_session_run(session, NULL, &error));
    check(memo_event_record(m->host, end, m->compute, &error));
    check(memo_event_synchronize(m->host, end, &error));
    check(memo_event_elapsed(m->host, begin, end, &elapsed_s, &error));
    memo_event_destroy(m->host, begin, NULL);
    memo_event_destroy(m->host, end, NULL);
    return elapsed_s;
}

/* Predicted and measured steps in turn, so that what else the machine does disturbs both alike. */
static void run_case(int is_real, double copy, double device_layers, double host_layers,
                     int64_t slice_rows, int repetitions) {
    enum { PREDICTED, MEASURED, RATIO, STALL, UNSLICED, N_FIGURES };
    const int64_t n_rows = is_real ? 3072 : 8192, layer_bytes = n_rows * LAYER_ROW_BYTES;
    const int64_t device_bytes = (int64_t)(device_layers * (double)layer_bytes);
    const int64_t host_bytes = (int64_t)(host_layers * (double)layer_bytes);
    const double forward_s = is_real ? 0.12 : 0.1; /* real work: about so much */
    memo_host_device_desc host = {0};
    double figures[N_FIGURES][REPETITIONS_MAX];
    memo_step_plan *whole_plan, *plan;
    memo_session *whole, *session;
    model m;

    memset(&m, 0, sizeof m);
    m.is_real = is_real;
    m.n_rows = n_rows;
    m.row_s = 0.5 * forward_s / 24 / (double)n_rows;
    m.pair_s = 0.5 * forward_s / ((double)n_rows * (double)n_rows);
    host.to_host_bytes_per_s = host.to_device_bytes_per_s = (double)layer_bytes / copy / forward_s;
    check(memo_host_device_create(&host, &m.host, &error));
    check(memo_stream_create(m.host, "compute", 0, &m.compute, &error));
    whole = open_session(&m, n_rows, device_bytes, host_bytes, &whole_plan);
    for (int i = 0; i < repetitions; i++) {
        session = open_session(&m, slice_rows, device_bytes, host_bytes, &plan);
        if (!session) {
            fprintf(stderr, "bench/slices: no plan fits\n");
            exit(1);
        }
        (void)time_step(&m, session);
        figures[MEASURED][i] = time_step(&m, session);
        figures[STALL][i] = plan->times->stall_s;
        figures[PREDICTED][i] = plan->times->step_s - (is_real ? plan->times->stall_s : 0);
        figures[RATIO][i] = figures[MEASURED][i] / figures[PREDICTED][i];
        figures[UNSLICED][i] = 0;
        if (whole) (void)time_step(&m, whole);
        if (whole) figures[UNSLICED][i] = time_step(&m, whole);
        memo_session_destroy(session);
        memo_step_plan_destroy(plan);
    }
    for (int i = 0; i < N_FIGURES; i++) figures[i][0] = median(figures[i], repetitions);

    printf("%-5s %5lld %5lld %5.2f %6.1f %6.1f | %9.1f %9.1f %6.3f %7.1f | %9.1f %6.3f\n",
           is_real ? "work" : "sleep", (long long)n_rows, (long long)slice_rows, copy,
           device_layers, host_layers, 1e3 * figures[PREDICTED][0], 1e3 * figures[MEASURED][0],
           figures[RATIO][0], 1e3 * figures[STALL][0], 1e3 * figures[UNSLICED][0],
           whole ? figures[MEASURED][0] / figures[UNSLICED][0] : 0);
    fflush(stdout);
    worst_prediction = fmax(worst_prediction, fabs(figures[RATIO][0] - 1));
    if (whole) worst_step = fmax(worst_step, figures[MEASURED][0] / figures[UNSLICED][0]);
    memo_session_destroy(whole);
    memo_step_plan_destroy(whole_plan);
    memo_stream_destroy(m.host, m.compute, NULL);
    memo_host_device_destroy(m.host);
}

int main(int argc, char** argv) {
    /* Copying all rows of a layer / its forward; memory in layers; rows of a slice. */
    static const struct {
        int is_real;
        double copy, device_layers, host_layers;
        int64_t slice_rows;
    } cases[] = {{0, 0.7, 1.6, 3, 1024},   {0, 0.7, 0.9, 3, 1024}, {0, 1.6, 1.6, 3, 1024},
                 {0, 0.7, 1.6, 1.2, 2048}, {0, 3.0, 0.9, 3, 1024}, {1, 0.7, 1.6, 3, 1024},
                 {1, 1.6, 1.6, 3, 1024}};
    bench_help(argc, argv, "[REPETITIONS]");
    const int repetitions = (int)bench_number(argc, argv, 1, 3, 1, REPETITIONS_MAX);
    printf("Steps in slices, host device: %d layers of %d bytes per row, medians of %d.\n"
           "copy: time of copying a layer / its forward.  Memory in layers.  stall: predicted.  "
           "unsliced: with the\nsame memory; 0: does not fit.  Times in ms.\n\n",
           N_LAYERS, LAYER_ROW_BYTES, repetitions);
    printf("%-5s %5s %5s %5s %6s %6s | %9s %9s %6s %7s | %9s %6s\n", "", "rows", "slice", "copy",
           "device", "host", "predicted", "measured", "ratio", "stall", "unsliced", "ratio");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run_case(cases[i].is_real, cases[i].copy, cases[i].device_layers, cases[i].host_layers,
                 cases[i].slice_rows, repetitions);
    printf("\nthe prediction differs by at most %.1f %% (limit 5); slices take at most %.3f of the "
           "run without (limit 1.05)\n",
           100 * worst_prediction, worst_step);
    return worst_prediction > 0.05 || worst_step > 1.05;
}
