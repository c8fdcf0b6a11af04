/* 40_sleep.c - a trainer and a generator share one device that holds only one of them.
 *
 * Each round of reinforcement learning generates with the newest weights, then trains on what was
 * generated.  While the generator runs, the training session sleeps: its device memory is free.  A
 * second trainer never sleeps, on a device with room for both.  Both end with the same weights.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/40_sleep.c -o 40_sleep -lpthread -lm
 * Expected output:
 *     device    420 KiB; the session takes 416 KiB, the generator 260 KiB
 *     asleep    at most 288 KiB of host memory, 0 KiB of the device
 *     awake     device memory: 260 KiB (266240 bytes) requested, ... free of 420 KiB
 *     weights   bitwise the same
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include <stdio.h>

enum { L = 4, T = 64, C = 64, W = 8192, ROUNDS = 3 };
enum { GENERATOR_BYTES = 260 << 10, SMALL_BYTES = 420 << 10 };
enum { INP };
enum { WEIGHTS, GRADS, MOMENTS };
static const memo_item acts[] = {MEMO_ITEM("inp", 4 * C, MEMO_MOVE)};
static const memo_state states[] = {{"weights", 4 * W, MEMO_STATE_WEIGHTS, 0},
                                    {"grads", 4 * W, MEMO_STATE_GRADIENT, 0},
                                    {"moments", 4 * W, MEMO_STATE_UPDATE, 0}};
static float prompt[T * C]; /* what the generator has made */

static void forward(void* user, memo_session* session, int32_t l) {
    float* inp = (float*)memo_session_get_address(session, l, INP);
    const float* w = (const float*)memo_session_get_state(session, l, WEIGHTS);
    (void)user;
    for (int i = 0; i < T * C; i++) inp[i] = prompt[i] * w[i % W];
}
static void backward(void* user, memo_session* session, int32_t l) {
    const float* inp = (const float*)memo_session_get_address(session, l, INP);
    float* g = (float*)memo_session_get_state(session, l, GRADS);
    (void)user;
    for (int i = 0; i < T * C; i++) g[i % W] += inp[i];
}
static void update(void* user, memo_session* session, int32_t l) {
    float* w = (float*)memo_session_get_state(session, l, WEIGHTS);
    float* m = (float*)memo_session_get_state(session, l, MOMENTS);
    const float* g = (const float*)memo_session_get_state(session, l, GRADS);
    (void)user;
    for (int i = 0; w && i < W; i++) {
        m[i] = 0.9f * m[i] + g[i];
        w[i] -= 0.01f * m[i];
    }
}

/* What a generator would make of the newest weights. */
static memo_status generate(memo_session* session, memo_error* error) {
    float weights[C];
    const memo_status status =
        memo_session_read_state(session, 0, WEIGHTS, 0, weights, 4 * C, error);
    for (int i = 0; i < T * C && !status; i++)
        prompt[i] = 1 + 0.1f * (float)(i % 7) * weights[i % C];
    return status;
}

/* The same, with memory of the device for the generator's own weights and its cache. */
static memo_status generate_there(memo_device* device, memo_session* session, memo_error* error) {
    void* memory;
    memo_status status = generate(session, error);
    if (!status) status = memo_session_sleep(session, error);
    if (!status) status = memo_device_alloc(device, GENERATOR_BYTES, &memory, error);
    if (!status) status = memo_device_free(device, memory, error); /* ... generate ... */
    return status ? status : memo_session_wake(session, error);
}

static memo_status train(int64_t device_bytes, int shares, float* weights, memo_error* error) {
    const memo_host_device_desc capacity = {.device_memory_bytes = device_bytes};
    memo_session_desc desc = {0};
    memo_session* session = NULL;
    memo_device* device;
    memo_status status = memo_host_device_create(&capacity, &device, error);
    if (status) return status;
    desc.device = device, desc.computes_on_host = 1;
    desc.tensors = acts, desc.n_tensors = 1, desc.n_layers = L, desc.n_rows = T;
    desc.states = states, desc.n_states = 3;
    desc.forward = forward, desc.backward = backward, desc.update = update;
    status = memo_session_create(&desc, &session, error);
    for (int i = 0; i < W; i++) weights[i] = 0.5f + 0.001f * (float)(i % 100);
    for (int l = 0; l < L && !status; l++)
        status = memo_session_write_state(session, l, WEIGHTS, 0, weights, 4 * W, error);

    for (int round = 0; round < ROUNDS && !status; round++) {
        status = shares ? generate_there(device, session, error) : generate(session, error);
        if (!status) status = memo_session_run(session, NULL, error);
        if (!status) status = memo_session_update(session, error);
    }

    for (int l = 0; l < L && !status; l++)
        status = memo_session_read_state(session, l, WEIGHTS, 0, weights + l * W, 4 * W, error);
    if (!status && shares) {
        const memo_step_plan* plan = memo_session_get_info(session).plan;
        void* memory;
        printf("device    %d KiB; the session takes %lld KiB, the generator %d KiB\n",
               SMALL_BYTES >> 10, (long long)(plan->device_bytes >> 10), GENERATOR_BYTES >> 10);
        printf("asleep    at most %lld KiB of host memory, 0 KiB of the device\n",
               (long long)(plan->sleep_bytes >> 10));
        if (memo_device_alloc(device, GENERATOR_BYTES, &memory, error))
            printf("awake     %s\n", error->message);
    }
    memo_session_destroy(session);
    memo_host_device_destroy(device);
    return status;
}

int main(void) {
    static float shared[L * W], alone[L * W];
    memo_error error;
    if (train(SMALL_BYTES, 1, shared, &error) || train(4 * SMALL_BYTES, 0, alone, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("weights   %s\n", memcmp(shared, alone, sizeof shared) ? "DIFFER" : "bitwise the same");
    return memcmp(shared, alone, sizeof shared) != 0;
}
