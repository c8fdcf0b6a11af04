/* test_step.cu - a training step with swaps on a GPU: its bits equal those of keeping everything,
 * eagerly and as a graph; nothing inside it allocates or synchronizes; the arena reserves the
 * plan's peak.
 *
 * The linker intercepts calls that must not happen (see SYMBOL below), so that the CUDA runtime may
 * be linked statically.  Calls of the driver are seen when their addresses are looked up:
 *   nvcc ... -Xlinker --wrap=cudaMalloc,--wrap=cudaFree,... tests/cuda/test_step.cu
 * With -DFAKE_CUDA and fake_cuda.cpp all of it runs without a GPU. */
#ifndef LINKED /* with the implementations of the other tests */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"
#include "memo_plan.h"
#include "extras/memo_look.h"

#include "cuda_test.h"
#include "../support/stats.h"

#include <set>
#include <string>
#include <sys/mman.h>

#ifdef FAKE_CUDA
#include "fake_cuda.h"
#endif

/* --- forbidden calls: they allocate, create or wait ---
 *
 * All of them that memo_cuda.cuh makes anywhere; others are missing in fake_cuda.cpp. */

static int64_t n_forbidden;
static std::set<std::string> forbidden; /* their names */

static void count(const char* name) {
    n_forbidden++;
    forbidden.insert(name);
}
static void count_anew(void) {
    n_forbidden = 0;
    forbidden.clear();
}
#define CHECK_NONE_FORBIDDEN(what)                                                                 \
    CHECK_CASE(n_forbidden == 0, "%s: %d calls, one of %s", what, (int)n_forbidden,                \
               forbidden.empty() ? "" : forbidden.begin()->c_str())

/* The driver's functions have no symbols to wrap, so a look-up returns a twin that counts. */
template <int K> struct driver_call {
    static void* real;
    static const char* name;
    template <typename R, typename... A> static R counted(A... arguments) {
        count(name);
        return ((R(*)(A...))real)(arguments...);
    }
    template <typename R, typename... A> static void* twin_of(R (*)(A...)) {
        return (void*)(R(*)(A...))counted<R, A...>;
    }
    template <typename F> static void take(const char* name_, const char* symbol, void** function) {
        if (strcmp(name_, symbol) || !*function) return;
        name = name_;
        real = *function;
        *function = twin_of((F) nullptr);
    }
};
template <int K> void* driver_call<K>::real;
template <int K> const char* driver_call<K>::name;
#define DRIVER_CALL(function)                                                                      \
    driver_call<__LINE__>::take<decltype(&function)>(#function, symbol, address)

extern "C" {
#define SYMBOL(name, parameters, arguments)                                                        \
    cudaError_t __real_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters {                                                         \
        count(#name);                                                                              \
        return __real_##name arguments;                                                            \
    }
SYMBOL(cudaMalloc, (void** address, size_t n_bytes), (address, n_bytes))
SYMBOL(cudaMallocAsync, (void** address, size_t n, cudaStream_t stream), (address, n, stream))
SYMBOL(cudaFree, (void* address), (address))
SYMBOL(cudaFreeAsync, (void* address, cudaStream_t stream), (address, stream))
SYMBOL(cudaHostAlloc, (void** address, size_t n_bytes, unsigned flags), (address, n_bytes, flags))
SYMBOL(cudaFreeHost, (void* address), (address))
SYMBOL(cudaHostRegister, (void* address, size_t n_bytes, unsigned flags), (address, n_bytes, flags))
SYMBOL(cudaHostUnregister, (void* address), (address))
SYMBOL(cudaDeviceSynchronize, (void), ())
SYMBOL(cudaStreamSynchronize, (cudaStream_t stream), (stream))
SYMBOL(cudaEventSynchronize, (cudaEvent_t event), (event))
SYMBOL(cudaMemset, (void* address, int value, size_t n), (address, value, n))
SYMBOL(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags))
SYMBOL(cudaStreamCreateWithPriority, (cudaStream_t * s, unsigned flags, int k), (s, flags, k))
SYMBOL(cudaStreamDestroy, (cudaStream_t stream), (stream))
SYMBOL(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
SYMBOL(cudaEventDestroy, (cudaEvent_t event), (event))

static void count_driver_calls(const char* symbol, void** address) {
    DRIVER_CALL(cuMemCreate);
    DRIVER_CALL(cuMemRelease);
    DRIVER_CALL(cuMemAddressReserve);
    DRIVER_CALL(cuMemAddressFree);
    DRIVER_CALL(cuMemMap);
    DRIVER_CALL(cuMemUnmap);
    DRIVER_CALL(cuMemSetAccess);
}
#if CUDART_VERSION >= 12050
#define QUESTION                                                                                   \
    (const char* symbol, void** address, unsigned version, unsigned long long flags,               \
     cudaDriverEntryPointQueryResult* result)
#define SYMBOL_OF_QUESTIONS(name)                                                                  \
    cudaError_t __real_##name QUESTION;                                                            \
    cudaError_t __wrap_##name QUESTION;                                                            \
    cudaError_t __wrap_##name QUESTION {                                                           \
        cudaError_t code = __real_##name(symbol, address, version, flags, result);                 \
        count(#name);                                                                              \
        if (code == cudaSuccess) count_driver_calls(symbol, address);                              \
        return code;                                                                               \
    }
SYMBOL_OF_QUESTIONS(cudaGetDriverEntryPointByVersion)
#endif
}

/* --- the model: layers that keep x and sin(x), gradients that need both --- */

#ifdef FAKE_CUDA
enum { N_LAYERS = 7, N_ROWS = 640, ROW = 32 };
#else
enum { N_LAYERS = 7, N_ROWS = 8192, ROW = 256 };
#endif

/* Kernels are objects, so that the fake can run them too: rows first, first + step, ..., of one
 * column. */
#define KERNEL __host__ __device__ void operator()(int64_t first, int64_t step, int column) const

struct start {
    float *value, *gradient;
    KERNEL {
        for (int64_t row = first; row < N_ROWS; row += step) {
            value[row * ROW + column] = (float)((row * 37 + column) % 1000) * 0.01f;
            gradient[row * ROW + column] = 1;
        }
    }
};
struct forward {
    float *x, *sine;
    float* value;
    KERNEL {
        for (int64_t row = first; row < N_ROWS; row += step) {
            float v = value[row * ROW + column], s = sinf(v);
            x[row * ROW + column] = v;
            sine[row * ROW + column] = s;
            value[row * ROW + column] = v + 0.25f * s * s;
        }
    }
};
struct recompute {
    float *x, *sine;
    int64_t begin, end;
    KERNEL {
        for (int64_t row = begin + first; row < end; row += step)
            sine[row * ROW + column] = sinf(x[row * ROW + column]);
    }
};
struct backward {
    float *x, *sine;
    float* gradient;
    KERNEL {
        for (int64_t row = first; row < N_ROWS; row += step)
            gradient[row * ROW + column] *=
                1 + 0.5f * sine[row * ROW + column] * cosf(x[row * ROW + column]);
    }
};

#ifdef FAKE_CUDA
template <typename Kernel> static void launch(Kernel kernel, memo_stream stream) {
    fake_enqueue(memo_cuda_stream(stream), [=] {
        for (int column = 0; column < ROW; column++) kernel(0, 1, column);
    });
}
#else
template <typename Kernel> __global__ static void run(Kernel kernel) {
    kernel(blockIdx.x, gridDim.x, (int)threadIdx.x);
}
template <typename Kernel> static void launch(Kernel kernel, memo_stream stream) {
    run<<<256, ROW, 0, memo_cuda_stream(stream)>>>(kernel);
}
#endif

static double delay_s; /* of models; 0: none */

struct model {
    memo_device *owned, *device; /* CUDA's; the one around it, if any */
    memo_recorder* recorder = NULL;
    memo_faults delays;
    memo_stream compute = NULL;
    memo_swap* swap = NULL;
    float *value = NULL, *gradient = NULL;
    float* result = NULL; /* both, on the host */

    model(int32_t x_away, int32_t sine_away, double alpha, int32_t n_host_layers = 0,
          int is_timed = 0);
    ~model();
    model(const model&) = delete;
};
#define NEED_MODEL(m, ...)                                                                         \
    model m(__VA_ARGS__);                                                                          \
    if (!m.result) SKIP(NO_GPU)

enum { RESULT_BYTES = 2 * N_ROWS * ROW * (int)sizeof(float) };

/* What is about to run, for the recorder. */
static void announce(const model* m, const char* what, int32_t layer) {
    memo_op_desc op = {};
    char name[32];
    if (!m->device->annotate) return;
    snprintf(name, sizeof name, "%s %d", what, (int)layer);
    op.name = name;
    CHECK_OK(memo_annotate(m->device, m->compute, &op, &error));
}

static float* rows_of(const model* m, int32_t layer, int32_t tensor) {
    return (float*)memo_swap_get_address(m->swap, layer, tensor);
}

static memo_status step(model* m) {
    launch(start{m->value, m->gradient}, m->compute);
    for (int32_t i = 0; i < N_LAYERS; i++) {
        float *x = rows_of(m, i, 0), *s = rows_of(m, i, 1);
        if (memo_swap_forward_begin(m->swap, i, &error)) return error.status;
        announce(m, "forward", i);
        launch(forward{x, s, m->value}, m->compute);
        if (memo_swap_forward_end(m->swap, i, &error)) return error.status;
    }
    for (int32_t i = N_LAYERS - 1; i >= 0; i--) {
        float *x = rows_of(m, i, 0), *s = rows_of(m, i, 1);
        int64_t begin, end;
        if (memo_swap_backward_begin(m->swap, i, &error)) return error.status;
        memo_swap_get_recompute_rows(m->swap, i, 1, &begin, &end);
        announce(m, "backward", i);
        if (begin < end) launch(recompute{x, s, begin, end}, m->compute);
        launch(backward{x, s, m->gradient}, m->compute);
        if (memo_swap_backward_end(m->swap, i, &error)) return error.status;
    }
    return memo_cuda_check(cudaGetLastError(), "a kernel of the step", &error);
}

model::model(int32_t x_away, int32_t sine_away, double alpha, int32_t n_host_layers, int is_timed)
    : owned(open_device()), device(owned) {
    memo_item tensors[] = {MEMO_ITEM("x", ROW * sizeof(float), x_away),
                           MEMO_ITEM("sine", ROW * sizeof(float), sine_away)};
    memo_swap_desc desc = {};
    if (!device) return;
    if (is_timed) {
        memo_recorder_desc recorder_desc = {};
        recorder_desc.device = owned;
        recorder_desc.is_timed = 1;
        CHECK_OK(memo_recorder_create(&recorder_desc, &recorder, &error));
        device = memo_recorder_get_device(recorder);
    }
    memo_faults_init(&delays, owned);
    delays.delay_s = delay_s;
    if (delay_s > 0) device = &delays.device;
    CHECK_OK(memo_stream_create(device, "compute", 0, &compute, &error));
    desc.device = device;
    desc.compute_stream = compute;
    desc.tensors = tensors;
    desc.n_tensors = 2;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    desc.tile_rows = 64;
    desc.alpha = alpha;
    desc.n_host_layers = n_host_layers;
    desc.is_timed = is_timed;
    desc.spill_directory = memo_test_folder();
    CHECK_OK(memo_swap_create(&desc, &swap, &error));
    CHECK_OK(memo_device_alloc(device, RESULT_BYTES, (void**)&value, &error));
    gradient = value + N_ROWS * ROW;
    if (swap) CHECK_OK(memo_host_alloc(device, RESULT_BYTES, (void**)&result, &error));
}

model::~model() {
    if (compute) IGNORE(memo_stream_synchronize(device, compute, NULL));
    memo_swap_destroy(swap);
    if (compute) memo_stream_destroy(device, compute, NULL);
    memo_recorder_destroy(recorder);
    memo_cuda_device_destroy(owned);
}

static void read_result(model* m) {
    CHECK_OK(memo_copy(m->device, m->compute, MEMO_COPY_TO_HOST, m->result, m->value, RESULT_BYTES,
                       &error));
    CHECK_OK(memo_stream_synchronize(m->device, m->compute, &error));
    CHECK_OK(memo_device_status(m->device, &error));
}

static const float* kept_result(void) { /* NULL: no GPU */
    static float result[RESULT_BYTES / sizeof(float)];
    model m(MEMO_KEEP, MEMO_KEEP, 0);
    if (!m.result) return NULL;
    CHECK_OK(step(&m));
    read_result(&m);
    memcpy(result, m.result, RESULT_BYTES);
    return result;
}

/* --- tests --- */

static const double alphas[] = {0, 0.37, 1};
static const int32_t host_layers[] = {0, 1, 2}; /* 0: nothing goes on to a file */

TEST(swapping_gives_the_bits_of_keeping) {
    const float* kept = kept_result();
    if (!kept) SKIP(NO_GPU);
    CHECK(kept[RESULT_BYTES / sizeof(float) - 1] != 0);
    for (double alpha : alphas)
        for (int32_t n_host_layers : host_layers) {
            model m(MEMO_MOVE, MEMO_ROWS, alpha, n_host_layers);
            for (int k = 0; k < 3; k++) {
                CHECK_OK(step(&m));
                read_result(&m);
                CHECK_CASE(memcmp(kept, m.result, RESULT_BYTES) == 0,
                           "alpha %g, %d layers on the host, step %d", alpha, (int)n_host_layers,
                           k);
            }
        }
}

/* Else a step that calls them could pass. */
TEST(forbidden_calls_are_seen) {
    static const char* const names[] = {
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaFreeHost",
        "cudaHostRegister",
        "cudaHostUnregister",
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaStreamCreateWithPriority",
        "cudaStreamDestroy",
        "cudaEventCreateWithFlags",
        "cudaEventDestroy",
#if CUDART_VERSION >= 12050
        "cudaGetDriverEntryPointByVersion",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemAddressReserve",
        "cuMemAddressFree",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
#endif
    };
    memo_cuda_device_desc desc = {};
    memo_device* phantom = NULL;
    memo_stream stream;
    memo_event event;
    void *memory, *small, *large;
    count_anew();
    NEED_DEVICE(device);
    CHECK_OK(memo_stream_create(device, "s", 0, &stream, &error));
    CHECK_OK(memo_event_create(device, &event, &error));
    CHECK_OK(memo_device_alloc(device, 4096, &memory, &error));
    CHECK_OK(memo_host_alloc(device, 4096, &small, &error));
    CHECK_OK(memo_host_alloc(device, 4 << 20, &large, &error));
    desc.phantom_bytes = (int64_t)64 << 20;
    CHECK_OK(memo_cuda_device_create(&desc, &phantom, &error));
    memo_cuda_device_destroy(phantom);
    CHECK_OK(memo_event_record(device, event, stream, &error));
    CHECK_OK(memo_event_synchronize(device, event, &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));
    CHECK_OK(memo_event_destroy(device, event, &error));
    CHECK_OK(memo_stream_destroy(device, stream, &error));
    memo_cuda_device_destroy(device);
    for (const char* name : names) CHECK_CASE(forbidden.count(name), "%s was not seen", name);
}

TEST(a_step_neither_allocates_nor_synchronizes) {
    NEED_MODEL(m, MEMO_MOVE, MEMO_ROWS, 0.5, 2);
    count_anew();
    for (int k = 0; k < 3; k++) CHECK_OK(step(&m));
    CHECK_NONE_FORBIDDEN("three steps");
    read_result(&m);
}

/* One memo_host_call of the delays is in flight on every stream. */
TEST(delays_on_every_stream_change_no_bits) {
    const float* kept = kept_result();
    if (!kept) SKIP(NO_GPU);
    delay_s = 2e-4;
    model m(MEMO_MOVE, MEMO_ROWS, 0.5, 2);
    delay_s = 0;
    for (int k = 0; k < 4; k++) {
        m.delays.seed = memo_test_random();
        count_anew();
        CHECK_OK(step(&m));
        if (k) CHECK_NONE_FORBIDDEN("a step with delays");
        read_result(&m);
        CHECK_CASE(memcmp(kept, m.result, RESULT_BYTES) == 0, "step %d", k);
    }
    CHECK(m.delays.n_delays > 100);

    /* A call that fails late, behind delays, ends the wait for the step. */
    m.delays.is_late = 1;
    m.delays.failing_call = m.delays.n_calls + memo_test_int(1, 20);
    IGNORE(step(&m));
    CHECK_ERROR(memo_stream_synchronize(m.owned, m.compute, &error), DEVICE, "late");
}

TEST(a_graph_gives_the_same_bits) {
    const float* kept = kept_result();
    if (!kept) SKIP(NO_GPU);
    for (double alpha : alphas) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec = NULL;
        struct timespec begin, end;
        double launch_us = 0;
        model m(MEMO_MOVE, MEMO_ROWS, alpha, alpha < 1 ? 2 : 0);
        cudaStream_t stream = memo_cuda_stream(m.compute);
        if (alpha > 0) { /* the engine's events were recorded outside of the capture before */
            CHECK_OK(step(&m));
            read_result(&m);
        }
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
        count_anew();
        CHECK_OK(step(&m));
        CHECK_OK(memo_device_status(m.device, &error)); /* may be asked at any time */
        CHECK_NONE_FORBIDDEN("capturing");
        CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
        CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        for (int k = 0; k < 3 && exec; k++) {
            CHECK_OK(memo_fill(m.device, m.compute, m.value, 0xff, RESULT_BYTES, &error));
            CHECK_OK(memo_stream_synchronize(m.device, m.compute, &error));
            count_anew();
            clock_gettime(CLOCK_MONOTONIC, &begin);
            CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
            clock_gettime(CLOCK_MONOTONIC, &end);
            launch_us = (double)(end.tv_sec - begin.tv_sec) * 1e6 +
                        (double)(end.tv_nsec - begin.tv_nsec) * 1e-3;
            CHECK_NONE_FORBIDDEN("a replay");
            read_result(&m);
            CHECK_CASE(memcmp(kept, m.result, RESULT_BYTES) == 0, "alpha %g, replay %d", alpha, k);
        }
        printf("# alpha %g: launching the graph took the host %.1f us\n", alpha, launch_us);
        CHECK_OK(step(&m)); /* and the engine goes on as if nothing had been */
        read_result(&m);
        CHECK(memcmp(kept, m.result, RESULT_BYTES) == 0);
        if (exec) cudaGraphExecDestroy(exec);
        if (graph) cudaGraphDestroy(graph);
    }
}

/* How long the compute stream waits before each layer, by events and by simulation; both are
 * drawn. */
TEST(the_waits_of_each_layer_are_measured) {
    const double link_bytes_per_s = 50e9;
    memo_schedule* schedule;
    memo_simulation *measured = NULL, *simulated = NULL;
    memo_swap_stats stats;
    double sum_s = 0, engine_s;
    int32_t n_waits = 0;
    char path[250];
    NEED_MODEL(m, MEMO_MOVE, MEMO_ROWS, 1, 0, 1);
    CHECK_OK(step(&m));
    CHECK(memo_swap_get_stats(m.swap, &stats, &error) == MEMO_STATUS_OK ||
          error.status == MEMO_STATUS_INVALID_STATE); /* done already, or not yet */
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_OK(memo_stream_synchronize(m.device, m.compute, &error));
    CHECK_OK(memo_swap_get_stats(m.swap, &stats, &error));
    CHECK_OK(memo_recorder_get_schedule(m.recorder, &schedule, &error));
    CHECK_OK(memo_schedule_measured(schedule, &measured, &error));
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        memo_op* op = &schedule->ops[i];
        if (op->kind != MEMO_OP_RUN || op->link_bytes == 0) continue;
        op->duration_s = (double)op->link_bytes / link_bytes_per_s;
    }
    CHECK_OK(memo_schedule_simulate(schedule, &simulated, &error));
    if (!measured || !simulated) return;
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        const memo_op* op = &schedule->ops[i];
        int64_t next = i + 1;
        if (op->kind != MEMO_OP_WAIT ||
            strcmp(schedule->text + schedule->streams[op->stream], "compute"))
            continue;
        while (next < schedule->n_ops && (schedule->ops[next].kind != MEMO_OP_RUN ||
                                          schedule->ops[next].stream != op->stream))
            next++;
        if (next == schedule->n_ops) continue;
        n_waits++;
        sum_s += measured->end_s[i] - measured->start_s[i];
        printf("# before %-10s waited %7.1f us, simulated %7.1f us\n",
               memo_schedule_op_name(schedule, next),
               (measured->end_s[i] - measured->start_s[i]) * 1e6,
               (simulated->end_s[i] - simulated->start_s[i]) * 1e6);
    }
    /* Layers 2 to 6 wait for their buffer, layers 4 to 0 for their rows. */
    CHECK_CASE(n_waits == 10, "%d waits", (int)n_waits);
    /* The engine's events are around the recorder's; a comparison of times decides nothing. */
    engine_s = stats.forward_stall_s + stats.backward_stall_s;
    printf("# in all %.1f us by the recorder, %.1f us by the engine\n", sum_s * 1e6,
           engine_s * 1e6);
    CHECK(sum_s >= 0 && engine_s >= 0);
    for (memo_simulation* times : {measured, simulated}) {
        memo_test_path(path, "step.json");
        CHECK_OK(memo_schedule_write_chrome(schedule, times, path, &error));
        remove(path);
    }
    memo_simulation_destroy(measured);
    memo_simulation_destroy(simulated);
}

/* An allocation in the middle spoils a capture; the engine goes on without it. */
TEST(a_spoiled_capture_is_left_behind) {
    const float* kept = kept_result();
    cudaGraph_t graph = NULL;
    void* memory;
    NEED_MODEL(m, MEMO_MOVE, MEMO_ROWS, 0.5, 2);
    cudaStream_t stream = memo_cuda_stream(m.compute);
    CHECK_OK(step(&m));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK_OK(memo_swap_forward_begin(m.swap, 0, &error));
    CHECK_OK(memo_swap_forward_end(m.swap, 0, &error));
    CHECK_ERROR(memo_device_alloc(m.device, 4096, &memory, &error), DEVICE,
                "cudaErrorStreamCaptureUnsupported");
    CHECK_OK(memo_swap_forward_begin(m.swap, 1, &error));
    CHECK_ERROR(memo_swap_forward_end(m.swap, 1, &error), DEVICE,
                "cudaErrorStreamCaptureInvalidated");
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
    (void)cudaGetLastError();
    CHECK_OK(memo_swap_abandon(m.swap, &error));
    CHECK_OK(step(&m));
    read_result(&m);
    CHECK(memcmp(kept, m.result, RESULT_BYTES) == 0);
}

TEST(the_arena_reserves_the_plan_s_peak) {
    NEED_RIG(device);
    memo_arena_desc desc = {};
    memo_trace* trace = NULL;
    memo_plan* plan = NULL;
    memo_arena* arena = NULL;
    memo_cuda_device_stats before, after;
    void* served[8];
    CHECK_OK(memo_trace_create(&trace, &error));
    for (int64_t id = 0; id < 8; id++)
        CHECK_OK(
            memo_trace_malloc(trace, id, 10000000 + id * 777, MEMO_CLASS_TRANSIENT, 0, &error));
    for (int64_t id = 0; id < 8; id++) CHECK_OK(memo_trace_free(trace, id, &error));
    CHECK_OK(memo_plan_from_trace(trace, 0, &plan, &error));
    CHECK_OK(memo_plan_solve(plan, NULL, &error));
    desc.device = device;
    desc.plan = plan;
    before = memo_cuda_device_get_stats(device);
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    after = memo_cuda_device_get_stats(device);
    CHECK_CASE(after.device_bytes - before.device_bytes == plan->peak_bytes,
               "%lld bytes, the peak is %lld",
               (long long)(after.device_bytes - before.device_bytes), (long long)plan->peak_bytes);
    count_anew();
    for (int step = 0; step < 3; step++) {
        CHECK_OK(memo_arena_begin(arena, &error));
        for (int64_t id = 0; id < 8; id++)
            CHECK_OK(memo_arena_alloc(arena, 10000000 + id * 777, 0, &served[id], &error));
        for (int64_t id = 0; id < 8; id++) CHECK_OK(memo_arena_free(arena, served[id], &error));
        CHECK_OK(memo_arena_end(arena, &error));
    }
    CHECK_NONE_FORBIDDEN("three steps with an arena");
    CHECK(arena_stats(arena).n_requests == 24);
    memo_arena_destroy(arena);
    memo_plan_destroy(plan);
    memo_trace_destroy(trace);
}

#ifdef FAKE_CUDA
/* Copies that nothing waits for come too late. */
TEST(late_copies_give_the_same_bits) {
    fake_set_late(1);
    swapping_gives_the_bits_of_keeping();
    a_graph_gives_the_same_bits();
    a_spoiled_capture_is_left_behind();
    fake_set_late(0);
}

/* The runtime refuses what drivers do; test_device.cu has smaller pieces. */
TEST(a_piece_of_pinned_memory_can_be_registered) {
    void* piece = mmap(NULL, (size_t)MEMOI_CUDA_PIECE_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (piece == MAP_FAILED) SKIP("no room for a piece's addresses; raise ulimit -v");
    CHECK(cudaHostRegister(piece, (size_t)MEMOI_CUDA_PIECE_BYTES,
                           cudaHostRegisterPortable | cudaHostRegisterMapped) == cudaSuccess);
    CHECK(cudaHostUnregister(piece) == cudaSuccess);
    munmap(piece, (size_t)MEMOI_CUDA_PIECE_BYTES);
}
#endif
