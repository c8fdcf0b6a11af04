/* calls.c - measures the host time of each call of the swap engine and of a session, beside the
 * calls that a trainer makes anyway: an empty kernel, an asynchronous copy, an event.
 *
 *   cc -O2 -I. bench/calls.c -lpthread -lm && ./a.out [STEPS]          on the host device
 *   nvcc -O3 -std=c++17 -I. -x cu bench/calls.c -o calls && ./calls    on a GPU
 *
 * A layer has 64 KiB of rows, as the time of a call does not depend on its bytes.  Each step ends
 * with a synchronization, so that no queue is full.  Every call is timed alone, by the clock of the
 * first row, whose own time is part of each row.  Baselines and engine take turns within every
 * layer.  The last column is the ratio of medians to the empty kernel (on the host device: an empty
 * function on a stream).  The file is in TMPDIR, or in /tmp. */
#ifdef __CUDACC__
#define MEMO_CUDA_IMPLEMENTATION
#endif
#ifndef LINKED /* with an implementation compiled before */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#endif
#ifdef __CUDACC__
#include "memo_cuda.cuh"
#endif
#include "memo_plan.h"

#include "cuda_bench.h"

enum {
    N_LAYERS = 32,
    N_ROWS = 256,
    TILE_ROWS = 16,
    N_TENSORS = 3,
    N_HOST_LAYERS = 4, /* with a file: the other layers spill */
    N_WARM_UPS = 3,
    STEPS_MAX = 10000,
    SCRATCH_BYTES = 1 << 16,
    COPY_BYTES = 1 << 16
};

static const memo_item tensors[N_TENSORS] = {MEMO_ITEM("input", 16, MEMO_MOVE),
                                             MEMO_ITEM("attention", 16, MEMO_WHOLE),
                                             MEMO_ITEM("others", 224, MEMO_ROWS)};
static const memo_session_buffer scratch = {
    "scratch", SCRATCH_BYTES, 0, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0};

/* --- times --- */

typedef enum call {
    CLOCK,
    LAUNCH,
    COPY,
    RECORD,
    WAIT,
    FORWARD_BEGIN,
    FORWARD_END,
    BACKWARD_BEGIN,
    BACKWARD_END,
    LAYER,
    BUFFER,
    N_CALLS
} call;

static double* times[N_CALLS]; /* microseconds */
static int n_times[N_CALLS];
static int is_counted; /* 0: warms up */

static void add_time(call which, int64_t begin_ns) {
    if (is_counted) times[which][n_times[which]++] = (double)(memob_now_ns() - begin_ns) * 1e-3;
}
#define TIMED(which, statement)                                                                    \
    do {                                                                                           \
        const int64_t begin_ns = memob_now_ns();                                                   \
        statement;                                                                                 \
        add_time(which, begin_ns);                                                                 \
    } while (0)

/* Empty for all calls. */
static void begin_times(int n_steps) {
    for (int c = 0; c < N_CALLS; c++) {
        n_times[c] = 0;
        if (!times[c]) times[c] = (double*)memob_calloc(2 * (int64_t)n_steps * N_LAYERS, 8);
        if (!times[c]) exit(1);
    }
}

/* Sorts. */
static double median_of(call which) { return median(times[which], n_times[which]); }

/* The four calls of a layer, whose backward follows much later. */
static void add_layers(int n_steps) {
    for (int step = 0; step < n_steps; step++)
        for (int layer = 0; layer < N_LAYERS; layer++) {
            const int forward = step * N_LAYERS + layer;
            const int backward = step * N_LAYERS + N_LAYERS - 1 - layer;
            times[LAYER][n_times[LAYER]++] =
                times[FORWARD_BEGIN][forward] + times[FORWARD_END][forward] +
                times[BACKWARD_BEGIN][backward] + times[BACKWARD_END][backward];
        }
}

static void print_row(const char* name, call which) {
    const double middle = median_of(which);
    printf("| %s | %.2f | %.2f | %.2f |\n", name, middle,
           times[which][(int)(0.99 * (n_times[which] - 1))], middle / median_of(LAUNCH));
}

static void print_table(const char* title, const char* prefix, int has_scratch) {
    static const char* const names[] = {"forward_begin", "forward_end", "backward_begin",
                                        "backward_end"};
    char name[64];
    printf("### %s\n\n| call | median us | 99 %% us | of a launch |\n|---|---|---|---|\n", title);
    print_row("clock, alone", CLOCK);
#ifdef __CUDACC__
    print_row("empty kernel", LAUNCH);
    print_row("cudaMemcpyAsync, 64 KiB", COPY);
    print_row("cudaEventRecord", RECORD);
    print_row("cudaStreamWaitEvent", WAIT);
#else
    print_row("empty function on a stream", LAUNCH);
    print_row("memo_copy, 64 KiB", COPY);
    print_row("memo_event_record", RECORD);
    print_row("memo_event_wait", WAIT);
#endif
    for (int c = 0; c < 4; c++) {
        snprintf(name, sizeof name, "%s_%s", prefix, names[c]);
        print_row(name, (call)(FORWARD_BEGIN + c));
    }
    print_row("these four, of a layer", LAYER);
    if (has_scratch) {
        print_row("memo_session_get_buffer", BUFFER);
    }
    printf("\n");
    fflush(stdout);
}

/* --- the baselines --- */

typedef struct bench {
    memo_device* device;
    memo_stream compute, copies; /* copies: of the baseline */
    memo_event event;
    void *on_device, *on_host;
    memo_host_call empty;
} bench;

#ifdef __CUDACC__
__global__ static void empty_kernel(void) {}
static void launch(bench* b) { empty_kernel<<<1, 1, 0, memo_cuda_stream(b->compute)>>>(); }
static void copy(bench* b) {
    CHECK_CUDA(cudaMemcpyAsync(b->on_host, b->on_device, COPY_BYTES, cudaMemcpyDeviceToHost,
                               memo_cuda_stream(b->copies)));
}
static void record_event(bench* b) {
    CHECK_CUDA(cudaEventRecord(memo_cuda_event(b->event), memo_cuda_stream(b->copies)));
}
static void wait_for_event(bench* b) {
    CHECK_CUDA(cudaStreamWaitEvent(memo_cuda_stream(b->copies), memo_cuda_event(b->event), 0));
}
#else
static memo_status do_nothing(void* argument, memo_error* why) {
    (void)argument, (void)why;
    return MEMO_STATUS_OK;
}
static void launch(bench* b) { check(memo_launch_host(b->device, b->compute, &b->empty, &error)); }
static void copy(bench* b) {
    check(memo_copy(b->device, b->copies, MEMO_COPY_TO_HOST, b->on_host, b->on_device, COPY_BYTES,
                    &error));
}
static void record_event(bench* b) {
    check(memo_event_record(b->device, b->event, b->copies, &error));
}
static void wait_for_event(bench* b) {
    check(memo_event_wait(b->device, b->event, b->copies, &error));
}
#endif

/* The layer's computation is the empty kernel; the copy and its event go beside it. */
static void run_baselines(bench* b) {
    TIMED(CLOCK, (void)0);
    TIMED(LAUNCH, launch(b));
    TIMED(COPY, copy(b));
    TIMED(RECORD, record_event(b));
    TIMED(WAIT, wait_for_event(b));
}

static void bench_create(bench* b) {
    memset(b, 0, sizeof *b);
    b->device = new_device();
    b->compute = new_stream(b->device, "compute", 0);
    b->copies = new_stream(b->device, "copies", 0);
    check(memo_event_create_untimed(b->device, &b->event, &error));
    b->on_device = device_memory(b->device, COPY_BYTES);
    b->on_host = host_memory(b->device, COPY_BYTES);
#ifndef __CUDACC__
    b->empty.function = do_nothing;
#endif
}

static void bench_destroy(bench* b) {
    check(memo_host_free(b->device, b->on_host, &error));
    check(memo_device_free(b->device, b->on_device, &error));
    check(memo_event_destroy(b->device, b->event, &error));
    check(memo_stream_destroy(b->device, b->copies, &error));
    check(memo_stream_destroy(b->device, b->compute, &error));
    destroy_device(b->device);
}

static void finish_step(bench* b) {
    check(memo_stream_synchronize(b->device, b->compute, &error));
    check(memo_stream_synchronize(b->device, b->copies, &error));
}

/* --- the swap engine --- */

static memo_swap_desc describe(bench* b, int has_file) {
    memo_swap_desc desc = MEMO_ZERO(memo_swap_desc);
    const char* folder = getenv("TMPDIR");
    desc.device = b->device;
    desc.compute_stream = b->compute;
    desc.tensors = tensors;
    desc.n_tensors = N_TENSORS;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    desc.tile_rows = TILE_ROWS;
    desc.alpha = 0.5;
    if (!has_file) return desc;
    desc.n_host_layers = N_HOST_LAYERS;
    desc.spill_directory = folder && *folder ? folder : "/tmp";
    return desc;
}

static void run_engine(bench* b, int n_steps, int has_file) {
    memo_swap_desc desc = describe(b, has_file);
    memo_swap* swap;
    check(memo_swap_create(&desc, &swap, &error));
    begin_times(n_steps);
    for (int step = -N_WARM_UPS; step < n_steps; step++) {
        is_counted = step >= 0;
        for (int layer = 0; layer < N_LAYERS; layer++) {
            TIMED(FORWARD_BEGIN, check(memo_swap_forward_begin(swap, layer, &error)));
            run_baselines(b);
            TIMED(FORWARD_END, check(memo_swap_forward_end(swap, layer, &error)));
        }
        for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
            TIMED(BACKWARD_BEGIN, check(memo_swap_backward_begin(swap, layer, &error)));
            run_baselines(b);
            TIMED(BACKWARD_END, check(memo_swap_backward_end(swap, layer, &error)));
        }
        finish_step(b);
    }
    memo_swap_destroy(swap);
    add_layers(n_steps);
    print_table(has_file ? "Swap engine, most layers in a file" : "Swap engine", "memo_swap", 0);
}

/* --- a session --- */

static void step_of_session(void* user, memo_session* session) {
    bench* b = (bench*)user;
    int computes;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        TIMED(FORWARD_BEGIN, computes = memo_session_forward_begin(session, layer));
        if (computes) run_baselines(b);
        TIMED(FORWARD_END, memo_session_forward_end(session, layer));
    }
    for (int layer = N_LAYERS - 1; layer >= 0; layer--) {
        TIMED(BACKWARD_BEGIN, computes = memo_session_backward_begin(session, layer));
        TIMED(BUFFER, (void)memo_session_get_buffer(session, 0));
        if (computes) run_baselines(b);
        TIMED(BACKWARD_END, memo_session_backward_end(session, layer));
    }
}

static void recompute_nothing(void* user, memo_session* session, int32_t layer, int32_t tensor,
                              int64_t begin, int64_t end) {
    (void)user, (void)session, (void)layer, (void)tensor, (void)begin, (void)end;
}

static void run_session(bench* b, int n_steps) {
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    memo_session* session;
    desc.device = b->device;
    desc.compute_stream = b->compute;
    desc.tensors = tensors;
    desc.n_tensors = N_TENSORS;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    desc.tile_rows = TILE_ROWS;
    desc.policy = MEMO_POLICY_ALPHA;
    desc.alpha = 0.5;
    desc.user = b;
    desc.step = step_of_session;
    desc.buffers = &scratch;
    desc.n_buffers = 1;
    desc.recompute = recompute_nothing;
    is_counted = 0;
    check(memo_session_create(&desc, &session, &error));
    begin_times(n_steps);
    for (int step = -N_WARM_UPS; step < n_steps; step++) {
        is_counted = step >= 0;
        check(memo_session_run(session, NULL, &error));
        finish_step(b);
    }
    memo_session_destroy(session);
    add_layers(n_steps);
    print_table("Session", "memo_session", 1);
}

int main(int argc, char** argv) {
    bench_help(argc, argv, "[STEPS]");
    const int n_steps = (int)bench_number(argc, argv, 1, 200, 1, STEPS_MAX);
    bench b;
    bench_create(&b);
    printf("Host time of a call: %d steps of %d layers, alpha 0.5.\n\n", n_steps, N_LAYERS);
    run_engine(&b, n_steps, 0);
    run_engine(&b, n_steps, 1);
    run_session(&b, n_steps);
    bench_destroy(&b);
    for (int c = 0; c < N_CALLS; c++) MEMO_FREE(times[c]);
    return 0;
}
