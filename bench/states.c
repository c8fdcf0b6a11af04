/* bench/states.c - measures the time that streamed states cost.  In a chain of layers, computation
 * sleeps and copies are throttled, so that overlap can be measured on any machine with two cores.
 *
 *   cc -O2 -I. bench/states.c -lpthread -lm && ./a.out [REPETITIONS] [MICRO-BATCHES]
 *
 * A copy of a layer's weights takes from a quarter to all of the time of the layer's forward.  For
 * each rate and each place of the update, the bench plans steps of so many micro-batches (1) with
 * measured times: once all states stay
 * on the device, and once the budget is the least that works.  It prints both steps (medians of
 * alternating runs), their ratio beside the planned one, and how far the planned step is off: at
 * most 3 % on a quiet machine.  Where the planned ratio says that copies hide, the measured one
 * should be at most 1.05. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "check.h"
#include "median.h"
#include "../tests/support/session_times.h"

#include <time.h>

#define N_LAYERS        8
#define N_STEPS         4     /* of a run, after one that warms up */
#define STATE_BYTES     98304 /* of weights and of gradients of a layer; moments take twice as many */
#define FORWARD_S       0.012
#define BACKWARD_S      0.024
#define UPDATE_S        0.004
#define UPDATE_HOST_S   0.006
#define REPETITIONS_MAX 51

static int32_t n_micro_batches; /* of a step */

static const memo_item activation = MEMO_ITEM("activation", 64, MEMO_KEEP);
static const memo_state states[] = {{"weights", STATE_BYTES, MEMO_STATE_WEIGHTS, 0},
                                    {"gradients", STATE_BYTES, MEMO_STATE_GRADIENT, 0},
                                    {"moments", 2 * STATE_BYTES, MEMO_STATE_UPDATE, 0}};

/* The chain and its device. */
typedef struct chain {
    memo_device* host;
    memo_stream stream;
} chain;

static void compute(const chain* c, double duration_s) {
    check(memo_host_device_sleep(c->host, c->stream, duration_s, &error));
}
static void forward(void* user, memo_session* session, int32_t layer) {
    (void)session, (void)layer;
    compute((const chain*)user, FORWARD_S);
}
static void backward(void* user, memo_session* session, int32_t layer) {
    (void)session, (void)layer;
    compute((const chain*)user, BACKWARD_S);
}
static void update(void* user, memo_session* session, int32_t layer) {
    (void)session;
    if (layer >= 0 && layer < N_LAYERS) compute((const chain*)user, UPDATE_S);
}
static void update_host(void* user, int32_t layer, void* const* states_of_layer) {
    const struct timespec duration = {0, (long)(1e9 * UPDATE_HOST_S)};
    (void)user, (void)states_of_layer;
    if (layer >= 0 && layer < N_LAYERS) nanosleep(&duration, NULL);
}

/* A throttled device, and the session of one way to update. */
static memo_session_desc open_chain(chain* c, double bytes_per_s, memo_update on, int is_fused) {
    memo_host_device_desc host = {0};
    memo_session_desc desc = {0};
    host.to_host_bytes_per_s = host.to_device_bytes_per_s = bytes_per_s;
    check(memo_host_device_create(&host, &c->host, &error));
    check(memo_stream_create(c->host, "compute", 0, &c->stream, &error));
    desc.device = c->host;
    desc.compute_stream = c->stream;
    desc.tensors = &activation;
    desc.n_tensors = 1;
    desc.n_layers = N_LAYERS;
    desc.n_rows = 128;
    desc.policy = MEMO_POLICY_KEEP;
    desc.states = states;
    desc.n_states = 3;
    desc.micro_batches = n_micro_batches;
    desc.user = c;
    desc.forward = forward;
    desc.backward = backward;
    desc.update = update;
    desc.update_host = update_host;
    desc.update_on = on;
    desc.update_may = is_fused ? MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS : 0;
    return desc;
}

static void run_step(memo_session* session) {
    for (int32_t i = 0; i < n_micro_batches; i++) {
        memo_batch batch = {0};
        batch.more_follow = i < n_micro_batches - 1;
        check(memo_session_run(session, &batch, &error));
    }
    check(memo_session_update(session, &error));
}

/* A step of a plan, in steps that follow each other as in training. */
static double measure(const memo_session_desc* desc, const memo_step_plan* plan) {
    memo_session* session;
    double begin_s = 0;
    check(memo_session_open(desc, plan, &session, &error));
    for (int step = 0; step <= N_STEPS; step++) {
        run_step(session);
        check(memo_stream_synchronize(desc->device, desc->compute_stream, &error));
        if (step == 0) begin_s = memob_now_s();
    }
    begin_s = (memob_now_s() - begin_s) / N_STEPS;
    memo_session_destroy(session);
    return begin_s;
}

static double planned_s(const memo_step_plan* plan) { return plan->times->step_s; }

static void compare(const char* name, double copy_over_forward, memo_update on, int is_fused,
                    int repetitions) {
    double stays_s[REPETITIONS_MAX], streams_s[REPETITIONS_MAX], ratio[REPETITIONS_MAX];
    memo_profile* profile = (memo_profile*)calloc(1, sizeof *profile);
    memo_step_plan *stays = NULL, *streams = NULL;
    memo_session_desc least, all;
    chain c;
    if (!profile) exit(1);
    least = open_chain(&c, STATE_BYTES / (copy_over_forward * FORWARD_S), on, is_fused);
    all = least;
    check(session_times(&least, profile, &error));
    check(memo_session_get_least(&least, &least.device_bytes, &error));
    check(memo_session_plan(&least, profile, &streams, &error));
    all.update_on = MEMO_UPDATE_DEVICE;
    check(session_times(&all, profile, &error));
    check(memo_session_plan(&all, profile, &stays, &error));

    /* Both alternate, so that they see the same machine. */
    for (int k = 0; k < repetitions; k++) {
        stays_s[k] = measure(&all, stays);
        streams_s[k] = measure(&least, streams);
        ratio[k] = streams_s[k] / stays_s[k];
    }
    printf("%-14s %5.2f | %9.1f %9.1f %7.2f%% | %9.1f %9.1f %7.2f%% | %6.3f %6.3f\n", name,
           copy_over_forward, 1e3 * planned_s(stays), 1e3 * median(stays_s, repetitions),
           100 * (planned_s(stays) / median(stays_s, repetitions) - 1), 1e3 * planned_s(streams),
           1e3 * median(streams_s, repetitions),
           100 * (planned_s(streams) / median(streams_s, repetitions) - 1),
           planned_s(streams) / planned_s(stays), median(ratio, repetitions));
    fflush(stdout);
    memo_step_plan_destroy(stays);
    memo_step_plan_destroy(streams);
    free(profile);
    memo_stream_destroy(c.host, c.stream, NULL);
    memo_host_device_destroy(c.host);
}

int main(int argc, char** argv) {
    static const double copies[] = {0.25, 0.5, 0.75, 1};
    bench_help(argc, argv, "[REPETITIONS]");
    const int repetitions = (int)bench_number(argc, argv, 1, 5, 1, REPETITIONS_MAX);
    n_micro_batches = (int32_t)bench_number(argc, argv, 2, 1, 1, 64);

    printf(
        "States, host device: %d layers, forward %.0f ms, backward %.0f ms, update %.0f ms, on the "
        "host %.0f ms;\n%d micro-batches a step; medians of %d runs of %d steps.  copy: time of "
        "copying a layer's weights "
        "or gradients / forward time; moments\ntake twice as long.  stays: on the device; "
        "streams: with the least device memory\n\n",
        N_LAYERS, FORWARD_S * 1e3, BACKWARD_S * 1e3, UPDATE_S * 1e3, UPDATE_HOST_S * 1e3,
        (int)n_micro_batches, repetitions, N_STEPS);
    printf("%-20s | %28s | %28s | %13s\n%-14s %5s", "", "stays, ms", "streams, ms", "ratio",
           "update", "copy");
    for (size_t i = 0; i < 2; i++) printf(" | %9s %9s %8s", "planned", "measured", "off");
    printf(" | %6s %6s\n", "plan", "run");
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        compare("device, fused", copies[i], MEMO_UPDATE_DEVICE, 1, repetitions);
        compare("device", copies[i], MEMO_UPDATE_DEVICE, 0, repetitions);
        compare("host", copies[i], MEMO_UPDATE_HOST, 0, repetitions);
    }
    return 0;
}
