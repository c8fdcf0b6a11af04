/* pair.c - measures the host time of a pair of begin and end with 24 streamed states a layer.
 *
 *   cc -O2 -I. bench/pair.c -lpthread -lm && ./a.out [TIMES]
 *
 * Steps of 32 layers whose weights, gradients and moments (eight of each) all leave the device, on
 * a device that enqueues nothing, so that only memo's own time is left.  A step has 96 pairs:
 * forward, backward, update.  It prints the shortest of so many TIMES (200) of 20 steps, and what a
 * pair enqueues.  Other programs do not change the number of instructions:
 *
 *   valgrind --tool=callgrind --toggle-collect=run_steps ./a.out 10 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "check.h"
#include "median.h"

enum { N_LAYERS = 32, N_STATES = 24, N_STEPS = 20 };

static int64_t n_enqueued;

static memo_status no_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                           const void* from, int64_t size_bytes, memo_error* e) {
    (void)context, (void)stream, (void)kind, (void)to, (void)from, (void)size_bytes, (void)e;
    n_enqueued++;
    return MEMO_STATUS_OK;
}

static memo_status no_event(void* context, memo_event event, memo_stream stream, memo_error* e) {
    (void)context, (void)event, (void)stream, (void)e;
    n_enqueued++;
    return MEMO_STATUS_OK;
}

static memo_status no_fill(void* context, memo_stream stream, void* address, int32_t byte_value,
                           int64_t size_bytes, memo_error* e) {
    (void)context, (void)stream, (void)address, (void)byte_value, (void)size_bytes, (void)e;
    n_enqueued++;
    return MEMO_STATUS_OK;
}

static void no_layer(void* user, memo_session* session, int32_t layer) {
    (void)user, (void)session, (void)layer;
}

#if defined(__GNUC__)
__attribute__((noinline))
#endif
static void
run_steps(memo_session* session, int n) {
    for (int i = 0; i < n; i++) {
        check(memo_session_run(session, NULL, &error));
        check(memo_session_update(session, &error));
    }
}

int main(int argc, char** argv) {
    static const memo_item activation = MEMO_ITEM("activation", 64, MEMO_KEEP);
    static const uint32_t uses[] = {MEMO_STATE_WEIGHTS, MEMO_STATE_GRADIENT, MEMO_STATE_UPDATE};
    static char names[N_STATES][8];
    const int n_times = (int)bench_number(argc, argv, 1, 200, 1, 1000000);
    const memo_host_device_desc host_desc = {0};
    memo_state states[N_STATES];
    memo_session_desc desc = {0};
    memo_device *host = NULL, device;
    memo_step_plan* plan = NULL;
    memo_session* session = NULL;
    double least_s = HUGE_VAL;
    check(memo_host_device_create(&host_desc, &host, &error));
    device = *host;
    device.copy = no_copy;
    device.fill = no_fill;
    device.event_record = device.event_wait = no_event;

    for (int i = 0; i < N_STATES; i++) {
        snprintf(names[i], sizeof names[i], "state%d", i);
        states[i] = (memo_state){names[i], 4096, uses[i % 3], 0};
    }
    desc.device = &device;
    check(memo_stream_create(host, "compute", 0, &desc.compute_stream, &error));
    desc.tensors = &activation;
    desc.n_tensors = 1;
    desc.n_layers = N_LAYERS;
    desc.n_rows = 128;
    desc.policy = MEMO_POLICY_KEEP;
    desc.states = states;
    desc.n_states = N_STATES;
    desc.forward = desc.backward = desc.update = no_layer;

    check(memo_session_get_least(&desc, &desc.device_bytes, &error));
    check(memo_session_plan(&desc, NULL, &plan, &error));
    check(memo_session_open(&desc, plan, &session, &error));
    run_steps(session, 3);
    for (int i = 0; i < n_times; i++) {
        const double begin_s = memob_now_s();
        n_enqueued = 0;
        run_steps(session, N_STEPS);
        least_s = fmin(least_s, memob_now_s() - begin_s);
    }
    printf("%d states of %lld layers leave the device: %.0f ns a pair, which enqueues %.1f copies, "
           "fills, waits and records\n",
           N_STATES, (long long)plan->n_streamed / N_STATES,
           1e9 * least_s / N_STEPS / (3 * N_LAYERS), (double)n_enqueued / N_STEPS / (3 * N_LAYERS));

    memo_session_destroy(session);
    memo_step_plan_destroy(plan);
    check(memo_stream_destroy(host, desc.compute_stream, &error));
    memo_host_device_destroy(host);
    return 0;
}
