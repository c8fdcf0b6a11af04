/* blocks.c - compares simulated and measured times of overlapped schedules: computation sleeps,
 * links have a rate.
 *
 *   build/bench/blocks [MS]     MS: milliseconds in a unit of time (default 5)
 *
 * Ranks are threads.  Each computation is an operation of the host device that takes time but no
 * processor.  Each all-reduce takes its bytes / the link's rate.  The figures therefore show the
 * schedule and the engine that runs it: events, queues and the launching thread.  Two cores are
 * enough.
 *
 *   simulated   memo_schedule_simulate of the engine's schedule, forward and backward of two layers
 *   measured    the time until all streams are done: the fastest run, because other programs only
 *               add time
 *   busy        busy time of the compute stream / makespan, simulated and measured by a recorder
 *
 *   parts       the best number of parts of the batch, from all-reduces that the ranks measure
 *               (measure_collective.h): for the message above, and for one whose time is nearly all
 *               latency
 *
 * Exit status 1, which fails make bench, if a measured time differs by more than 10 % from the
 * simulation, or if the four schedules have another order than simulated.  On a busy machine
 * sleepers wake late; use a larger unit.
 *
 * The last table is only simulated: one sequence, split in two, against two sequences. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "block_parts.h"
#include "median.h"
#include "measure_collective.h"

#include <stdio.h>
#include <time.h>

#define N_RANKS  2
#define N_BLOCKS 4
#define N_PARTS  2
#define N_RUNS   5
#define COUNT    (64 << 10) /* of a message */
#define N_SIZES  4

/* Measured, up to a message of the whole batch. */
static const int64_t sizes[N_SIZES] = {64, COUNT / 4, COUNT, N_PARTS* COUNT};

typedef struct bench {
    memo_block_times times[N_BLOCKS * N_PARTS];
    memo_blocks_schedule_desc schedule;
    int has_weights;
} bench;

typedef struct rank {
    const bench* b;
    memo_device* device;
    memo_comm* comm;
    memo_stream stream;
    float* buffers[2 * N_PARTS];
    double measured_s[N_RUNS], busy, collective_s[N_SIZES];
    memo_status status;
    memo_error error;
} rank;

/* ---- a block that sleeps ---- */

static const memo_block_times* times_of(const rank* r, const memo_block_call* call) {
    return &r->b->times[call->block * N_PARTS + call->part];
}
static memo_status sleep_for(rank* r, const memo_block_call* call, double duration_s,
                             memo_error* error) {
    return memo_host_device_sleep(r->device, call->stream, duration_s, error);
}
static memo_status forward(void* context, const memo_block_call* call, memo_error* error) {
    rank* r = (rank*)context;
    return sleep_for(r, call, times_of(r, call)->forward_s, error);
}
static memo_status recompute(void* context, const memo_block_call* call, memo_error* error) {
    rank* r = (rank*)context;
    return sleep_for(r, call, times_of(r, call)->recompute_s, error);
}
static memo_status backward(void* context, const memo_block_call* call, memo_error* error) {
    rank* r = (rank*)context;
    return sleep_for(r, call, times_of(r, call)->backward_s, error);
}
static memo_status weights(void* context, const memo_block_call* call, memo_error* error) {
    rank* r = (rank*)context;
    return sleep_for(r, call, times_of(r, call)->weights_s, error);
}

static memo_blocks_desc desc_of(rank* r, const memo_device* device, memo_block_buffers* buffers) {
    memo_blocks_desc desc = {0};
    memset(buffers, 0, N_PARTS * sizeof *buffers);
    for (int s = 0; s < N_PARTS; s++) {
        buffers[s].output = r->buffers[2 * s];
        buffers[s].gradient = r->buffers[2 * s + 1];
        buffers[s].count = COUNT;
    }
    desc.device = device;
    desc.compute_stream = r->stream;
    desc.comm = r->comm;
    desc.type = MEMO_TYPE_F32;
    desc.schedule = r->b->schedule;
    desc.buffers = buffers;
    desc.functions.context = r;
    desc.functions.forward = forward;
    desc.functions.recompute = recompute;
    desc.functions.backward = backward;
    if (r->b->has_weights) desc.functions.weights = weights;
    return desc;
}

static memo_status run_once(rank* r, memo_blocks* blocks, double* measured_s, memo_error* error) {
    memo_device* d = r->device;
    double begin_s;
    if (memo_barrier(r->comm, r->stream, error) || memo_stream_synchronize(d, r->stream, error))
        return error->status;
    begin_s = memob_now_s();
    if (memo_blocks_forward(blocks, MEMO_ALL_LAYERS, error) ||
        memo_blocks_backward(blocks, MEMO_ALL_LAYERS, error) ||
        memo_stream_synchronize(d, r->stream, error))
        return error->status;
    *measured_s = memob_now_s() - begin_s;
    return MEMO_STATUS_OK;
}

/* Runs once more under a recorder, which puts events around every operation. */
static memo_status run_recorded(rank* r, memo_error* error) {
    memo_recorder_desc recorder_desc = {0};
    memo_recorder* recorder;
    memo_blocks* blocks = NULL;
    memo_block_buffers buffers[N_PARTS];
    memo_blocks_desc desc;
    double ignored_s;
    memo_status status;

    recorder_desc.device = r->device;
    recorder_desc.is_timed = 1;
    status = memo_recorder_create(&recorder_desc, &recorder, error);
    if (status) return status;

    /* The engine enqueues on the recorder, which passes everything on to the device. */
    desc = desc_of(r, memo_recorder_get_device(recorder), buffers);
    status = memo_recorder_name_stream(recorder, r->stream, "compute", error);
    if (!status) status = memo_blocks_create(&desc, &blocks, error);
    if (!status) status = run_once(r, blocks, &ignored_s, error);

    /* Busy: the compute stream's share of the measured makespan. */
    if (!status) {
        memo_schedule* recorded;
        memo_simulation* measured = NULL;
        status = memo_recorder_get_schedule(recorder, &recorded, error);
        if (!status) status = memo_schedule_measured(recorded, &measured, error);
        if (!status) r->busy = measured->busy_s[0] / measured->makespan_s;
        memo_simulation_destroy(measured);
    }

    memo_blocks_destroy(blocks);
    memo_recorder_destroy(recorder);
    return status;
}

static memo_status run_all(rank* r, memo_error* error) {
    memo_device* d = r->device;
    memo_blocks* blocks = NULL;
    memo_block_buffers buffers[N_PARTS];
    memo_blocks_desc desc;
    void* address;
    memo_status status = memo_stream_create(d, "compute", 0, &r->stream, error);
    for (int k = 0; k < 2 * N_PARTS && !status; k++) {
        status = memo_device_alloc(d, COUNT * sizeof(float), &address, error);
        if (status) break;
        r->buffers[k] = (float*)address;
        memset(address, 0, COUNT * sizeof(float));
    }
    if (!status)
        status = measure_collective(r->comm, d, r->stream, MEMO_COLLECTIVE_ALL_REDUCE,
                                    MEMO_TYPE_F32, sizes, N_SIZES, r->collective_s, error);
    if (status) return status;
    desc = desc_of(r, d, buffers);
    status = memo_blocks_create(&desc, &blocks, error);
    for (int k = 0; k < N_RUNS && !status; k++)
        status = run_once(r, blocks, &r->measured_s[k], error);
    memo_blocks_destroy(blocks);
    return status ? status : run_recorded(r, error);
}

static void* rank_main(void* argument) {
    rank* r = (rank*)argument;
    r->status = run_all(r, &r->error);
    if (r->status) memo_comm_abort(r->comm);
    return NULL;
}

/* measured: the slowest rank of the fastest run. */
static memo_status measure(const bench* b, double bytes_per_s, double* measured_s, double* busy,
                           double* collective_s, memo_error* error) {
    memo_host_device_desc device_desc = {0};
    memo_comm_threads_desc comm_desc = {0};
    memo_device* devices[N_RANKS];
    memo_comm* comms[N_RANKS];
    pthread_t threads[N_RANKS];
    rank ranks[N_RANKS];
    double run_s;
    int i;
    memo_status status = MEMO_STATUS_OK;

    /* Every rank has a device; the links between them have the given rate. */
    memset(ranks, 0, sizeof ranks);

    for (i = 0; i < N_RANKS; i++) {
        status = memo_host_device_create(&device_desc, &devices[i], error);
        if (status) return status; /* the program ends */
    }
    comm_desc.n_ranks = N_RANKS;
    comm_desc.devices = devices;
    comm_desc.bytes_per_s = bytes_per_s;
    status = memo_comm_create_threads(&comm_desc, comms, error);
    if (status) return status;
    for (i = 0; i < N_RANKS; i++) {
        ranks[i].b = b;
        ranks[i].device = devices[i];
        ranks[i].comm = comms[i];
        if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]))
            return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no thread");
    }

    for (i = 0; i < N_RANKS; i++) pthread_join(threads[i], NULL);

    /* Report the first rank that failed. */
    for (i = 0; i < N_RANKS; i++) {
        if (ranks[i].status && !status) {
            status = ranks[i].status;
            *error = ranks[i].error;
        }
        memo_comm_destroy(comms[i]);
    }
    for (i = 0; i < N_RANKS; i++) memo_host_device_destroy(devices[i]);

    /* A run lasts as long as its slowest rank. */
    *measured_s = INFINITY;
    for (int k = 0; k < N_RUNS; k++) {
        for (run_s = 0, i = 0; i < N_RANKS; i++) run_s = fmax(run_s, ranks[i].measured_s[k]);
        *measured_s = fmin(*measured_s, run_s);
    }
    *busy = ranks[0].busy;
    memcpy(collective_s, ranks[0].collective_s, sizeof ranks[0].collective_s);
    return status;
}

static int32_t passes_of(const bench* b) {
    return MEMO_BLOCKS_FORWARD | MEMO_BLOCKS_BACKWARD | (b->has_weights ? MEMO_BLOCKS_WEIGHTS : 0);
}

static memo_status simulate(const bench* b, double* makespan_s, double* busy, memo_error* error) {
    memo_schedule* schedule;
    memo_simulation* simulation = NULL;
    memo_status status =
        memo_blocks_generate(&b->schedule, b->times, passes_of(b), &schedule, error);
    if (!status) status = memo_schedule_simulate(schedule, &simulation, error);
    if (!status) {
        *makespan_s = simulation->makespan_s;
        *busy = simulation->busy_s[0] / simulation->makespan_s;
    }
    memo_simulation_destroy(simulation);
    memo_schedule_destroy(schedule);
    return status;
}

/* The best number of parts of the whole batch, with the measured times of its collectives. */
static void report_parts(const bench* b, const double* collective_s) {
    static const int32_t shown[] = {N_SIZES - 1, 0};
    int64_t bytes[N_SIZES];
    block_overhead overhead = {0, 0};

    /* A line through the measured times gives the overhead of a collective. */
    for (int k = 0; k < N_SIZES; k++) bytes[k] = sizes[k] * (int64_t)sizeof(float);
    overhead.collective_s = block_latency(bytes, collective_s, N_SIZES);
    overhead.operation_s = overhead.collective_s;

    /* The largest message and the smallest one; computation shrinks with the message. */
    for (int k = 0; k < 2; k++) {
        memo_block_times times[N_BLOCKS];
        int32_t n_parts = 0;
        memo_error error;
        double scale = collective_s[shown[k]] / collective_s[N_SIZES - 1];
        for (int i = 0; i < N_BLOCKS;
             i++) { /* the parts together; computation shrinks with the message */
            const memo_block_times* part = &b->times[i * N_PARTS];
            times[i] = *part;
            times[i].forward_s = N_PARTS * scale * part->forward_s;
            times[i].recompute_s = N_PARTS * scale * part->recompute_s;
            times[i].backward_s = N_PARTS * scale * part->backward_s;
            times[i].weights_s = N_PARTS * scale * part->weights_s;
            times[i].reduce_s = collective_s[shown[k]];
        }

        if (block_best_parts(&b->schedule, times, passes_of(b), &overhead, 8, &n_parts, NULL,
                             &error)) {
            fprintf(stderr, "blocks: %s\n", error.message);
            exit(1);
        }
        printf("all-reduce of %lld bytes: %.3f ms, of 0 bytes %.3f ms: best in %d parts\n",
               (long long)bytes[shown[k]], 1e3 * collective_s[shown[k]],
               1e3 * overhead.collective_s, (int)n_parts);
    }
}

/* Measures four orders; returns how many differ by more than 10 % from the simulation, or rank
 * otherwise. */
static int report(double unit_s, double collective, int has_weights) {
    double simulated[4], measured[4];
    int n_bad = 0;
    const double bytes = 2.0 * (N_RANKS - 1) / N_RANKS * COUNT * sizeof(float);

    printf("\nf = r = (2,3,2,3), b = (4,6,4,6)%s, c = %g, in units of %g ms; %d ranks, 2 parts\n",
           has_weights ? ", half of b for the weights" : "", collective, 1e3 * unit_s, N_RANKS);
    printf("%-10s %12s %12s %8s   %s\n", "order", "simulated ms", "measured ms", "ratio",
           "busy simulated, measured");
    for (int order = 0; order < 4; order++) {
        bench b;
        double busy = 0, measured_busy = 0, collective_s[N_SIZES];
        memo_error error;

        /* Attention takes 2 units and the MLP 3; the backward takes twice as long. */
        memset(&b, 0, sizeof b);
        b.has_weights = has_weights;
        b.schedule.order = (memo_blocks_order)order;
        b.schedule.n_blocks = N_BLOCKS;
        b.schedule.n_parts = N_PARTS;
        for (int i = 0; i < N_BLOCKS * N_PARTS; i++) {
            int is_mlp = i / N_PARTS % 2;
            memo_block_times* t = &b.times[i];
            t->forward_s = t->recompute_s = (is_mlp ? 3 : 2) * unit_s;
            t->backward_s = (is_mlp ? 6 : 4) * unit_s;
            t->weights_s = t->backward_s / 2;
            if (has_weights) t->backward_s /= 2;
            t->reduce_s = collective * unit_s;
        }

        if (simulate(&b, &simulated[order], &busy, &error) ||
            measure(&b, bytes / (collective * unit_s), &measured[order], &measured_busy,
                    collective_s, &error)) {
            fprintf(stderr, "blocks: %s\n", error.message);
            exit(1);
        }

        /* An order counts as bad if its time or its rank among the orders is off. */
        printf("%-10s %12.1f %12.1f %8.3f   %.2f, %.2f\n", memo_blocks_order_name(b.schedule.order),
               1e3 * simulated[order], 1e3 * measured[order], measured[order] / simulated[order],
               busy, measured_busy);
        n_bad += fabs(measured[order] / simulated[order] - 1) > 0.1;
        for (int i = 0; i < order; i++)
            n_bad += (simulated[i] > 1.02 * simulated[order]) && measured[i] <= measured[order];
        if (order == MEMO_BLOCKS_FINE) report_parts(&b, collective_s);
    }
    return n_bad;
}

/* Two sequences, or two halves of one.  Pairs of tokens take half of attention's time; the second
 * half of a causal sequence has three quarters of the pairs. */
static void report_sequence(double collective) {
    static const char* const names[] = {"two sequences", "halves of one"};

    printf("\nsimulated, c = %g: units of time%24s %8s %8s %8s\n", collective, "default",
           "pipelined", "cross", "fine");
    for (int splits = 0; splits < 2; splits++) {
        printf("%-36s", names[splits]);
        for (int order = 0; order < 4; order++) {
            bench b;
            double makespan = 0, busy;
            memo_error error;
            memset(&b, 0, sizeof b);
            b.schedule.order = (memo_blocks_order)order;
            b.schedule.n_blocks = N_BLOCKS;
            b.schedule.n_parts = N_PARTS;
            b.schedule.splits_sequence = splits;

            /* Attention's time depends on the pairs of tokens in each part. */
            for (int i = 0; i < N_BLOCKS * N_PARTS; i++) {
                int is_mlp = i / N_PARTS % 2;
                double pairs = !splits ? 1 : i % N_PARTS ? 1.5 : 0.5;
                memo_block_times* t = &b.times[i];
                t->forward_s = t->recompute_s = is_mlp ? 3 : 1 + pairs;
                t->backward_s = is_mlp ? 6 : 2 + 2 * pairs;
                t->reduce_s = collective;
            }

            if (simulate(&b, &makespan, &busy, &error)) {
                fprintf(stderr, "blocks: %s\n", error.message);
                exit(1);
            }
            printf(order ? " %8.1f" : " %18.1f", makespan);
        }
        printf("\n");
    }
}

int main(int argc, char** argv) {
    bench_help(argc, argv, "[MS]");
    const double unit_s = 1e-3 * bench_number(argc, argv, 1, 5, 1e-3, 1e4);
    int n_bad;
    n_bad = report(unit_s, 2, 0);
    n_bad += report(unit_s, 5, 0);
    n_bad += report(unit_s, 5, 1);
    printf("\nwithin 10 %% of the simulation and in its order: %s (%d exceptions)\n",
           n_bad ? "no" : "yes", n_bad);
    report_sequence(2);
    report_sequence(5);
    return n_bad > 0;
}
