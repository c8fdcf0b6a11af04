/* 15_two_streams.c - plans a step on two streams, and predicts the swap engine.
 *
 * Stream 1 reads x, which stream 0 requested.  After x is freed, y may have its bytes only if stream 0 has waited for
 * stream 1.  Without the wait the plan keeps them apart.  The second part generates and simulates the schedule of the
 * swap engine, records the engine with empty layers, and compares both (memo.h, chapters 2, 5, 7 and 9).
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/15_two_streams.c -o 15_two_streams -lpthread -lm
 * Expected output:
 *     with the wait 1 MiB, without it 2 MiB
 *     4 layers: 13.0 ms predicted, the copies hidden; the engine does what was predicted
 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include <stdio.h>

enum { MIB = 1 << 20, N_LAYERS = 4, N_ROWS = 1024, ROW_BYTES = 1024 };

/* The peak of a step on two streams. */
static memo_status peak_of(int with_wait, int64_t* peak_bytes, memo_error* error) {
    memo_arena_desc desc = memo_arena_desc_default();
    memo_arena* arena = NULL;
    memo_plan* plan = NULL;
    void *x, *y;
    memo_status status = memo_trace_create(&desc.trace, error);
    if (!status) status = memo_arena_create(&desc, &arena, error); /* no device: a dry run */

    /* Record the step. */
    if (!status) status = memo_arena_begin(arena, error);
    if (!status) status = memo_arena_alloc(arena, MIB, 0, &x, error);
    if (!status) status = memo_arena_use(arena, x, 1, error); /* a kernel on stream 1 reads x */
    if (!status && with_wait) status = memo_arena_record(arena, 0, 1, error);
    if (!status && with_wait) status = memo_arena_wait(arena, 0, 0, error);
    if (!status) status = memo_arena_free(arena, x, error);
    if (!status) status = memo_arena_alloc(arena, MIB, 0, &y, error);
    if (!status) status = memo_arena_free(arena, y, error);
    if (!status) status = memo_arena_end(arena, error);

    /* Plan it. */
    if (!status) status = memo_plan_from_trace(desc.trace, 0, &plan, error);
    if (!status) status = memo_plan_solve(plan, NULL, error);
    if (!status) status = memo_plan_check(plan, desc.trace, error); /* safe on its streams */
    if (!status) *peak_bytes = plan->peak_bytes;

    memo_plan_destroy(plan);
    memo_arena_destroy(arena);
    memo_trace_destroy(desc.trace);
    return status;
}

/* A micro-batch whose layers announce operations without computing. */
static memo_status micro_batch(const memo_swap_desc* desc, memo_swap* swap, memo_error* error) {
    int64_t bytes = (int64_t)N_ROWS * ROW_BYTES;
    memo_status status = MEMO_STATUS_OK;
    int i;
    for (i = 0; i < N_LAYERS && !status; i++) {
        status = memo_swap_forward_begin(swap, i, error);
        if (!status)
            status = MEMO_ANNOTATE(desc->device, desc->compute_stream, "forward", error,
                                   memo_writes(memo_swap_get_address(swap, i, 0), bytes));
        if (!status) status = memo_swap_forward_end(swap, i, error);
    }
    for (i = N_LAYERS - 1; i >= 0 && !status; i--) {
        status = memo_swap_backward_begin(swap, i, error);
        if (!status)
            status = MEMO_ANNOTATE(desc->device, desc->compute_stream, "backward", error,
                                   memo_reads(memo_swap_get_address(swap, i, 0), bytes));
        if (!status) status = memo_swap_backward_end(swap, i, error);
    }
    return status;
}

/* Predicts the engine's step, then records one and compares both. */
static memo_status predict(memo_device* host, double* makespan_s, memo_error* error) {
    static const memo_kind_times layer = {1e-3, 2e-3, NULL, {0, 0}, {0, 0}};
    memo_tensor tensor = {"input", ROW_BYTES, MEMO_TENSOR_SWAPPED, 0};
    memo_swap_desc desc = memo_swap_desc_default();
    memo_swap_times times = memo_swap_times_default();
    memo_recorder_desc recorder_desc = memo_recorder_desc_default();
    memo_recorder* recorder = NULL;
    memo_schedule *promised = NULL, *recorded;
    memo_simulation* simulation = NULL;
    memo_swap* swap = NULL;
    memo_status status;

    desc.tensors = &tensor;
    desc.n_tensors = 1;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    times.kinds = &layer;
    times.between_s = 1e-3;
    times.to_host_bytes_per_s = times.to_device_bytes_per_s = 10e9;

    /* The prediction, with a classifier between forward and backward. */
    status = memo_swap_generate(&desc, &times, &promised, error);
    if (!status) status = memo_schedule_simulate(promised, &simulation, error);
    if (!status) *makespan_s = simulation->makespan_s;
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(promised);
    promised = NULL;

    /* The recorded step has no classifier. */
    times.between_s = 0;
    if (!status) status = memo_swap_generate(&desc, &times, &promised, error);
    recorder_desc.device = host;
    if (!status) status = memo_recorder_create(&recorder_desc, &recorder, error);
    if (!status) {
        desc.device = memo_recorder_get_device(recorder);
        status = memo_stream_create(desc.device, "compute", 0, &desc.compute_stream, error);
    }

    if (!status) status = memo_swap_create(&desc, &swap, error);
    if (!status) status = micro_batch(&desc, swap, error);
    if (!status) status = memo_recorder_get_schedule(recorder, &recorded, error);
    if (!status) status = memo_schedule_compare(promised, recorded, error);

    memo_swap_destroy(swap);
    memo_recorder_destroy(recorder);
    memo_schedule_destroy(promised);
    return status;
}

int main(void) {
    memo_host_device_desc host_desc = memo_host_device_desc_default();
    memo_device* host = NULL;
    memo_error error;
    int64_t with = 0, without = 0;
    double makespan_s = 0;
    memo_status status = peak_of(1, &with, &error);
    if (!status) status = peak_of(0, &without, &error);
    if (!status)
        printf("with the wait %d MiB, without it %d MiB\n", (int)(with / MIB),
               (int)(without / MIB));

    if (!status) status = memo_host_device_create(&host_desc, &host, &error);
    if (!status) status = predict(host, &makespan_s, &error);
    if (!status)
        printf("%d layers: %.1f ms predicted, the copies hidden; the engine does what was "
               "predicted\n",
               N_LAYERS, makespan_s * 1e3);
    if (status) fprintf(stderr, "15_two_streams: %s\n", error.message);
    memo_host_device_destroy(host);
    return status ? 1 : 0;
}
