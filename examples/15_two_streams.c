/* 15_two_streams.c - plans a step on two streams, and predicts the swap engine.
 *
 * Stream 1 reads x, which stream 0 requested.  After x is freed, y may have its bytes only if
 * stream 0 has waited for stream 1.  The step does not wait, so the plan keeps them apart.  A
 * simulation shows that a wait would take no time, so the plan may buy it, and memo_arena makes it
 * (memo_arena_desc.streams).  The second part generates and simulates the schedule of the swap
 * engine, records the engine with empty layers, and compares both (memo.h, chapters 2, 5, 7 and 9).
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/15_two_streams.c -o 15_two_streams -lpthread -lm
 * Expected output:
 *     2 MiB without a wait; one that takes 0.0 ms is bought: 1 MiB
 *     4 layers: 13.0 ms predicted, the copies hidden; the engine does what was predicted
 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "extras/memo_pack.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include <stdio.h>

enum { MIB = 1 << 20, N_LAYERS = 4, N_ROWS = 1024, ROW_BYTES = 1024 };

/* How much longer the step takes if stream 0 waits for stream 1 before it writes y. */
static memo_status price_wait(double* cost_s, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    *cost_s = 0;
    for (int with_wait = 0; with_wait < 2 && !status; with_wait++) {
        memo_op_desc write = {0}, read = write, other = write;
        memo_schedule* schedule = NULL;
        memo_simulation* simulation = NULL;
        int32_t written, has_read;
        write.duration_s = read.duration_s = 1e-3;
        other.duration_s = 2e-3;
        status = memo_schedule_create(&schedule, error);
        if (!status) status = memo_schedule_add_stream(schedule, "stream 0", &write.stream, error);
        if (!status) status = memo_schedule_add_stream(schedule, "stream 1", &read.stream, error);
        if (!status) status = memo_schedule_add_event(schedule, &written, error);
        if (!status) status = memo_schedule_add_event(schedule, &has_read, error);
        other.stream = write.stream;

        if (!status) status = memo_schedule_add_op(schedule, &write, error); /* x */
        if (!status)
            status =
                memo_schedule_add_order(schedule, MEMO_OP_RECORD, written, write.stream, error);
        if (!status)
            status = memo_schedule_add_order(schedule, MEMO_OP_WAIT, written, read.stream, error);
        if (!status) status = memo_schedule_add_op(schedule, &read, error);
        if (!status) status = memo_schedule_add_op(schedule, &other, error);
        if (!status && with_wait)
            status =
                memo_schedule_add_order(schedule, MEMO_OP_RECORD, has_read, read.stream, error);
        if (!status && with_wait)
            status = memo_schedule_add_order(schedule, MEMO_OP_WAIT, has_read, write.stream, error);
        if (!status) status = memo_schedule_add_op(schedule, &write, error); /* y */

        if (!status) status = memo_schedule_simulate(schedule, &simulation, error);
        if (!status) *cost_s += with_wait ? simulation->makespan_s : -simulation->makespan_s;
        memo_simulation_destroy(simulation);
        memo_schedule_destroy(schedule);
    }
    return status;
}

/* The peaks of the step: with its own waits, and if the plan may buy one of this cost. */
static memo_status plan_step(double cost_s, int64_t peaks_bytes[2], memo_error* error) {
    memo_arena_desc desc = {0};
    memo_plan_desc plan_desc = {0};
    memo_wait offer = {0, 1, 1, 0, 0}; /* after the free of x, before the request of y */
    memo_arena* arena = NULL;
    memo_plan* plan = NULL;
    void *x, *y;
    memo_status status = memo_trace_create(&desc.trace, error);
    if (!status) status = memo_arena_create(&desc, &arena, error); /* no device: a dry run */

    /* Record the step. */
    if (!status) status = memo_arena_begin(arena, error);
    if (!status) status = memo_arena_alloc(arena, MIB, 0, &x, error);
    if (!status) status = memo_arena_record(arena, 0, 0, error);
    if (!status) status = memo_arena_wait(arena, 0, 1, error);
    if (!status) status = memo_arena_use(arena, x, 1, error); /* a kernel on stream 1 reads x */
    if (!status) status = memo_arena_free(arena, x, error);
    if (!status) status = memo_arena_alloc(arena, MIB, 0, &y, error);
    if (!status) status = memo_arena_free(arena, y, error);
    if (!status) status = memo_arena_end(arena, error);

    /* Plan it. */
    if (!status) status = memo_plan_from_trace(desc.trace, 0, &plan, error);
    if (!status) status = memo_plan_solve(plan, NULL, error);
    if (!status) peaks_bytes[0] = plan->peak_bytes;

    offer.cost_s = cost_s;
    plan_desc.trace = desc.trace;
    plan_desc.offers = &offer;
    plan_desc.n_offers = cost_s > 0 ? 0 : 1; /* only what is free */
    if (!status) status = memo_plan_solve(plan, &plan_desc, error);
    if (!status) status = memo_plan_check(plan, desc.trace, error); /* safe on its streams */
    if (!status) peaks_bytes[1] = plan->peak_bytes;

    memo_plan_destroy(plan);
    memo_arena_destroy(arena);
    memo_trace_destroy(desc.trace);
    return status;
}

/* A micro-batch whose layers announce operations without computing. */
static memo_status micro_batch(const memo_swap_desc* desc, memo_swap* swap, memo_error* error) {
    int64_t bytes = (int64_t)N_ROWS * ROW_BYTES;
    memo_status status = MEMO_STATUS_OK;
    for (int i = 0; i < N_LAYERS && !status; i++) {
        status = memo_swap_forward_begin(swap, i, error);
        if (!status)
            status = MEMO_ANNOTATE(desc->device, desc->compute_stream, "forward", error,
                                   memo_writes(memo_swap_get_address(swap, i, 0), bytes));
        if (!status) status = memo_swap_forward_end(swap, i, error);
    }
    for (int i = N_LAYERS - 1; i >= 0 && !status; i--) {
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
    static memo_profile times; /* 36 KB of zeros */
    memo_item tensor = MEMO_ITEM("input", ROW_BYTES, MEMO_MOVE);
    memo_swap_desc desc = {0};
    memo_swap_plan_desc step = {0};
    memo_recorder_desc recorder_desc = {0};
    memo_recorder* recorder = NULL;
    memo_schedule *promised = NULL, *recorded;
    memo_simulation* simulation = NULL;
    memo_swap* swap = NULL;
    memo_status status;

    desc.tensors = &tensor;
    desc.n_tensors = 1;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    times.n_rows = N_ROWS;
    times.forward_s[0] = 1e-3;
    times.backward_s[0] = 2e-3;
    times.between_s = 1e-3;
    times.copies[1].size_bytes = 10000; /* 10 GB/s */
    times.copies[1].out_s = times.copies[1].back_s = 1e-6;
    step.swap = &desc;
    step.profile = &times;

    /* The prediction, with a classifier between forward and backward. */
    status = memo_swap_generate(&step, 1, &promised, error);
    if (!status) status = memo_schedule_simulate(promised, &simulation, error);
    if (!status) *makespan_s = simulation->makespan_s;
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(promised);
    promised = NULL;

    /* The recorded step has no classifier. */
    times.between_s = 0;
    if (!status) status = memo_swap_generate(&step, 1, &promised, error);
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
    memo_host_device_desc host_desc = {0};
    memo_device* host = NULL;
    memo_error error;
    int64_t peaks_bytes[2] = {0, 0};
    double makespan_s = 0, cost_s = 0;
    memo_status status = price_wait(&cost_s, &error);
    if (!status) status = plan_step(cost_s, peaks_bytes, &error);
    if (!status)
        printf("%d MiB without a wait; one that takes %.1f ms is bought: %d MiB\n",
               (int)(peaks_bytes[0] / MIB), cost_s * 1e3, (int)(peaks_bytes[1] / MIB));

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
