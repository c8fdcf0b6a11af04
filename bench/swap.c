/* bench/swap.c - measures the time that swapping costs.  In a chain of layers, computation sleeps
 * and copies are throttled, so that overlap can be measured on any machine with two cores.
 *
 *   cc -O2 -I. bench/swap.c -lpthread -lm && ./a.out [REPETITIONS]
 *
 * Copies take from half to twice the time of a layer's forward.  For each, it prints the step if
 * everything is kept and if rows are swapped (medians of alternating steps), and their ratio.  It
 * also prints the stall of the compute stream, measured by events and simulated from the recorded
 * schedule. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
#include "check.h"
#include "median.h"

#include <stdio.h>
#include <stdlib.h>

#define N_LAYERS        8
#define N_ROWS          1024
#define ROW_BYTES       64 /* a tensor of width 1 has 64 KiB; a layer has 16 widths */
#define FORWARD_S       0.012
#define BACKWARD_S      0.024
#define REPETITIONS_MAX 101

typedef struct run {
    double step_s, stall_s, simulated_step_s, simulated_stall_s;
} run;

/* A layer's computation: a sleep on the compute stream, announced with its duration. */
static void compute(memo_device* host, const memo_device* device, memo_stream stream,
                    const char* name, double duration_s) {
    memo_op_desc what = {0};
    if (duration_s <= 0) return;
    what.name = name;
    what.duration_s = duration_s;
    if (device->annotate) check(memo_annotate(device, stream, &what, &error));
    check(memo_host_device_sleep(host, stream, duration_s, &error));
}

static void step(memo_device* host, const memo_device* device, memo_stream stream, memo_swap* swap,
                 double recompute_s) {
    for (int32_t layer = 0; layer < N_LAYERS; layer++) {
        check(memo_swap_forward_begin(swap, layer, &error));
        compute(host, device, stream, "forward", FORWARD_S);
        check(memo_swap_forward_end(swap, layer, &error));
    }
    for (int32_t layer = N_LAYERS - 1; layer >= 0; layer--) {
        int64_t begin, end;
        check(memo_swap_backward_begin(swap, layer, &error));
        memo_swap_get_recompute_rows(swap, layer, 2, &begin, &end);
        compute(host, device, stream, "recompute", begin < end ? recompute_s : 0);
        compute(host, device, stream, "backward", BACKWARD_S);
        check(memo_swap_backward_end(swap, layer, &error));
    }
}

/* Simulates what the recorder saw, with copies as fast as the host device was told to make them. */
static void simulate(memo_schedule* schedule, double bytes_per_s, run* result) {
    memo_simulation* simulation;
    for (int64_t i = 0; i < schedule->n_ops; i++)
        schedule->ops[i].duration_s += (double)schedule->ops[i].link_bytes / bytes_per_s;
    check(memo_schedule_simulate(schedule, &simulation, &error));
    result->simulated_step_s = simulation->makespan_s;
    for (int64_t i = 0; i < schedule->n_streams; i++)
        if (strcmp(schedule->text + schedule->streams[i], "compute") == 0)
            result->simulated_stall_s = simulation->stall_s[i];
    memo_simulation_destroy(simulation);
}

static run measure(int32_t whole, int32_t others, double alpha, double bytes_per_s,
                   double recompute_s) {
    static const int widths[] = {1, 1, 14};
    memo_host_device_desc host_desc = {0};
    memo_recorder_desc recorder_desc = {0};
    memo_swap_desc desc = {0};
    memo_item tensors[3];
    memo_device* host;
    memo_recorder* recorder;
    const memo_device* device;
    memo_swap* swap;
    memo_swap_stats stats;
    memo_stream stream;
    memo_event begin, end;
    memo_schedule* schedule;
    run result;

    /* A throttled device under a recorder. */
    host_desc.to_host_bytes_per_s = host_desc.to_device_bytes_per_s = bytes_per_s;
    check(memo_host_device_create(&host_desc, &host, &error));
    recorder_desc.device = host;
    check(memo_recorder_create(&recorder_desc, &recorder, &error));
    device = memo_recorder_get_device(recorder);
    check(memo_stream_create(device, "compute", 0, &stream, &error));
    check(memo_event_create(host, &begin, &error));
    check(memo_event_create(host, &end, &error));

    /* Three tensors: two of one width, and one 14 times as wide. */
    memset(tensors, 0, sizeof tensors);
    for (int t = 0; t < 3; t++) {
        tensors[t].name = t < 2 ? "whole" : "others";
        tensors[t].row_bytes = ROW_BYTES * widths[t];
        tensors[t].away = t < 2 ? whole : others;
    }
    desc.device = device;
    desc.compute_stream = stream;
    desc.tensors = tensors;
    desc.n_tensors = 3;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    desc.alpha = alpha;
    desc.is_timed = 1;
    check(memo_swap_create(&desc, &swap, &error));

    /* The recorder sees only the second step. */
    memo_recorder_pause(recorder);
    step(host, device, stream, swap, recompute_s); /* warms up */
    check(memo_stream_synchronize(host, stream, &error));
    memo_recorder_resume(recorder);
    check(memo_event_record(host, begin, stream, &error));
    step(host, device, stream, swap, recompute_s);
    check(memo_event_record(host, end, stream, &error));
    check(memo_stream_synchronize(host, stream, &error));

    check(memo_event_elapsed(host, begin, end, &result.step_s, &error));
    check(memo_swap_get_stats(swap, &stats, &error));
    result.stall_s = stats.forward_stall_s + stats.backward_stall_s;
    check(memo_recorder_get_schedule(recorder, &schedule, &error));
    simulate(schedule, bytes_per_s, &result);

    memo_swap_destroy(swap);
    memo_event_destroy(host, begin, NULL);
    memo_event_destroy(host, end, NULL);
    memo_stream_destroy(device, stream, NULL);
    memo_recorder_destroy(recorder);
    memo_host_device_destroy(host);
    return result;
}

int main(int argc, char** argv) {
    static const struct {
        double copy_over_forward, alpha;
    } rows[] = {{0.5, 1}, {0.8, 1}, {0.95, 1},  {1.25, 1}, {1.5, 1},
                {2, 1},   {2, 0.5}, {2, 0.375}, {2, 0}};
    const double layer_bytes = 16.0 * N_ROWS * ROW_BYTES;
    bench_help(argc, argv, "[REPETITIONS]");
    const int repetitions = (int)bench_number(argc, argv, 1, 5, 1, REPETITIONS_MAX);

    printf("Swap engine, host device: %d layers of %.0f KiB, forward %.0f ms, backward %.0f ms, "
           "recomputing all rows %.0f ms,\nthe same rate both ways, medians of %d.  copy: time of "
           "copying a layer / forward time.  stall: of the compute stream.\n\n",
           N_LAYERS, layer_bytes / 1024, FORWARD_S * 1e3, BACKWARD_S * 1e3, FORWARD_S * 1e3,
           repetitions);
    printf("%6s %6s | %9s %9s %10s | %9s %10s | %9s %10s\n", "copy", "alpha", "keep ms", "swap ms",
           "swap/keep", "stall ms", "simulated", "step ms", "simulated");

    /* Keep and swap alternate, so that both see the same machine. */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double keep_s[REPETITIONS_MAX], swap_s[REPETITIONS_MAX], stall_s[REPETITIONS_MAX];
        double ratio[REPETITIONS_MAX];
        double bytes_per_s = layer_bytes / (rows[i].copy_over_forward * FORWARD_S);
        double recompute_s = (1 - rows[i].alpha) * FORWARD_S;
        run swapped;
        for (int k = 0; k < repetitions; k++) {
            keep_s[k] = measure(MEMO_KEEP, MEMO_KEEP, 0, bytes_per_s, 0).step_s;
            swapped = measure(MEMO_WHOLE, MEMO_ROWS, rows[i].alpha, bytes_per_s, recompute_s);
            swap_s[k] = swapped.step_s;
            stall_s[k] = swapped.stall_s;
            ratio[k] = swap_s[k] / keep_s[k];
        }

        printf("%6.2f %6.3f | %9.1f %9.1f %10.4f | %9.1f %10.1f | %9.1f %10.1f\n",
               rows[i].copy_over_forward, rows[i].alpha, median(keep_s, repetitions) * 1e3,
               median(swap_s, repetitions) * 1e3, median(ratio, repetitions),
               median(stall_s, repetitions) * 1e3, swapped.simulated_stall_s * 1e3,
               median(swap_s, repetitions) * 1e3, swapped.simulated_step_s * 1e3);
        fflush(stdout);
    }
    return 0;
}
