/* test_device.cu - the device table of memo_cuda.cuh, pinned memory and phantom memory.
 *
 * It runs on a GPU, or with -DFAKE_CUDA and --wrap=madvise on the runtime of fake_cuda.cpp, which
 * keeps everything in host memory and can be made to fail. */
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "../support/signals.h"

#ifndef LINKED /* with the implementations of the other tests */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#define MEMO_CUDA_IMPLEMENTATION
#define MEMOI_CUDA_PIECE_BYTES ((int64_t)16 << 20) /* so that copies here meet borders of pieces */
#include "memo_sp.h"
#include "memo_cuda.cuh"

#include "cuda_test.h"

#ifdef FAKE_CUDA
#include "fake_cuda.h"
#endif

#include <sys/stat.h>
#include <sys/wait.h>

#define MIB ((int64_t)1 << 20)

/* The getter as a value, for CHECK. */
static memo_cuda_device_stats cuda_device_stats(const memo_device* device) {
    const memo_cuda_device_stats stats = memo_cuda_device_get_stats(device);
    return stats;
}

/* --- streams and events --- */

TEST(creates_streams_of_each_priority) {
    NEED_RIG(device);
    int least = 0, greatest = 0, k;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
    for (k = -2; k <= 10; k++) {
        int priority = 99, expected = k < 0 ? least : least - k < greatest ? greatest : least - k;
        memo_stream stream;
        CHECK_OK(memo_stream_create(device, "one", k, &stream, &error));
        CHECK(cudaStreamGetPriority(memo_cuda_stream(stream), &priority) == cudaSuccess);
        CHECK_CASE(priority == expected, "priority %d is CUDA's %d, not %d", k, priority, expected);
        CHECK_OK(memo_stream_destroy(device, stream, &error));
    }
    CHECK_OK(memo_stream_destroy(device, NULL, &error));
}

TEST(waits_and_times_events) {
    NEED_RIG(d);
    double elapsed_s = -1;
    int32_t is_done = 0;
    CHECK_OK(memo_event_wait(d, d.event, d.stream, &error)); /* never recorded: no wait */
    CHECK_ERROR(memo_event_elapsed(d, d.event, d.later, &elapsed_s, &error), INVALID_STATE,
                "cudaErrorInvalidResourceHandle");
    CHECK(strstr(error.message, ", memo_cuda.cuh:") != NULL);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK_OK(memo_event_record(d, d.event, d.stream, &error));
    CHECK_OK(memo_event_wait(d, d.event, d.other, &error));
    CHECK_OK(memo_event_record(d, d.later, d.other, &error));
    CHECK_OK(memo_event_synchronize(d, d.later, &error));
    CHECK_OK(memo_event_query(d, d.later, &is_done, &error));
    CHECK(is_done == 1);
    CHECK_OK(memo_event_elapsed(d, d.event, d.later, &elapsed_s, &error));
    CHECK(elapsed_s >= 0);
    CHECK_OK(memo_device_status(d, &error));
    CHECK_OK(memo_event_destroy(d, d.event, &error));
    CHECK_OK(memo_stream_destroy(d, d.other, &error));
    d.event = NULL;
    d.other = NULL;
}

/* A copy on a stream forked by an event: the capture is valid only if the stream is joined
 * again. */
TEST(captures_forked_streams_that_are_joined) {
    NEED_RIG(d);
    cudaStream_t stream = memo_cuda_stream(d.stream);
    void *memory, *host;
    CHECK_OK(memo_device_alloc(d, 4096, &memory, &error));
    CHECK_OK(memo_host_alloc(d, 4096, &host, &error));
    for (int is_joined = 0; is_joined < 2; is_joined++) {
        cudaGraph_t graph = NULL;
        cudaError_t expected = is_joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
        CHECK_OK(memo_fill(d, d.stream, memory, 5, 4096, &error));
        CHECK_OK(memo_event_record(d, d.event, d.stream, &error));
        CHECK_OK(memo_event_wait(d, d.event, d.other, &error));
        CHECK_OK(memo_copy(d, d.other, MEMO_COPY_TO_HOST, host, memory, 4096, &error));
        CHECK_OK(memo_event_record(d, d.later, d.other, &error));
        if (is_joined) CHECK_OK(memo_event_wait(d, d.later, d.stream, &error));
        CHECK(cudaStreamEndCapture(stream, &graph) == expected);
        (void)cudaGetLastError();
        CHECK((graph != NULL) == is_joined);
        if (graph) {
            cudaGraphExec_t exec = NULL;
            memset(host, 0, 4096);
            CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
            CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
            CHECK_OK(memo_stream_synchronize(d, d.stream, &error));
            CHECK(((char*)host)[0] == 5 && ((char*)host)[4095] == 5);
            CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
            CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        }
    }
}

/* --- memory and copies --- */

/* Host functions take their turn in a stream; the first that fails fails the device. */
static pthread_t host_function_thread;
static memo_status add_one(void* argument, memo_error* e) {
    host_function_thread = pthread_self();
    if (++*(int*)argument < 4) return MEMO_STATUS_OK;
    return memo_error_set(e, MEMO_STATUS_IO, "the fourth");
}

TEST(host_functions_take_their_turn) {
    NEED_RIG(d);
    void* host = NULL;
    int n_calls = 0, k;
    memo_host_call call = {add_one, &n_calls, NULL};
    CHECK_OK(memo_host_alloc(d, 64, &host, &error));
    for (k = 0; k < 3; k++) CHECK_OK(memo_launch_host(d, d.stream, &call, &error));
    CHECK_OK(memo_event_record(d, d.event, d.stream, &error));
    CHECK_OK(memo_event_synchronize(d, d.event, &error));
    CHECK(n_calls == 3);
    CHECK(!pthread_equal(host_function_thread, pthread_self()));
    CHECK_OK(memo_launch_host(d, d.stream, &call, &error));
#define FAILED(call)                                                                               \
    error.message[0] = 0;                                                                          \
    CHECK_ERROR(call, IO, "the fourth")
    FAILED(memo_stream_synchronize(d, d.stream, &error));
    FAILED(memo_event_synchronize(d, d.event, &error));
    FAILED(memo_launch_host(d, d.stream, &call, &error));
    FAILED(memo_event_record(d, d.event, d.stream, &error));
    FAILED(memo_event_wait(d, d.event, d.stream, &error));
    FAILED(memo_copy(d, d.stream, MEMO_COPY_TO_HOST, host, host, 8, &error));
    FAILED(memo_fill(d, d.stream, host, 0, 8, &error));
    FAILED(memo_device_status(d, &error));
#undef FAILED
    CHECK(n_calls == 4);
    CHECK_OK(memo_host_free(d, host, &error));
}

/* CUDA waits for all streams when it takes memory back, so none is given back for its alignment. */
typedef struct held_call {
    int is_released, is_late;
} held_call;
static memo_status hold(void* argument, memo_error* e) {
    held_call* held = (held_call*)argument;
    int n_ms = 0;
    (void)e;
    while (!__atomic_load_n(&held->is_released, __ATOMIC_ACQUIRE) && n_ms++ < 5000) usleep(1000);
    held->is_late = n_ms > 5000;
    return MEMO_STATUS_OK;
}

TEST(allocations_wait_for_no_stream) {
    NEED_RIG(d);
    held_call held = {0, 0};
    memo_host_call call = {hold, &held, NULL};
    void *blocks[8], *host;
    CHECK_OK(memo_launch_host(d, d.stream, &call, &error));
    for (int k = 0; k < 8; k++) {
        CHECK_OK(memo_device_alloc(d, 100 + 1000 * k, &blocks[k], &error));
        CHECK((uintptr_t)blocks[k] % 512 == 0);
    }
    CHECK_OK(memo_host_alloc(d, 64, &host, &error));
    __atomic_store_n(&held.is_released, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_stream_synchronize(d, d.stream, &error));
    CHECK(!held.is_late);
    for (int k = 0; k < 8; k++) CHECK_OK(memo_device_free(d, blocks[k], &error));
    CHECK_OK(memo_host_free(d, host, &error));
}

/* A slow function delays its own stream only, and the next copy reads its result, also in a
 * replayed graph. */
static memo_status write_slowly(void* argument, memo_error* e) {
    (void)e;
    usleep(20000);
    ++*(int*)argument;
    return MEMO_STATUS_OK;
}

TEST(host_functions_can_be_captured_and_are_waited_for) {
    NEED_RIG(d);
    cudaStream_t stream = memo_cuda_stream(d.stream);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *host, *memory;
    int* numbers;
    CHECK_OK(memo_host_alloc(d, 4096, &host, &error));
    CHECK_OK(memo_device_alloc(d, 4096, &memory, &error));
    numbers = (int*)host;
    numbers[0] = numbers[1] = 0;
    memo_host_call call = {write_slowly, numbers, NULL};
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK_OK(memo_launch_host(d, d.stream, &call, &error)); /* for the first time */
    CHECK_OK(memo_copy(d, d.stream, MEMO_COPY_TO_DEVICE, memory, numbers, 4, &error));
    CHECK_OK(memo_copy(d, d.stream, MEMO_COPY_TO_HOST, numbers + 1, memory, 4, &error));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int k = 1; k <= 3; k++) {
        CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
        CHECK_OK(memo_stream_synchronize(d, d.stream, &error));
        CHECK_CASE(numbers[0] == k && numbers[1] == k, "%d and %d, not %d", numbers[0], numbers[1],
                   k);
    }
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
}

/* Several functions wait for the worker at once, and each stream goes on behind its own. */
TEST(host_functions_of_several_streams_wait_for_each_other) {
    enum { N = 4 };
    NEED_RIG(d);
    memo_stream streams[N];
    memo_host_call calls[N];
    int numbers[N] = {0}, k, round;
    for (k = 0; k < N; k++) {
        const memo_host_call call = {write_slowly, &numbers[k], NULL};
        calls[k] = call;
        CHECK_OK(memo_stream_create(d, "host functions", 0, &streams[k], &error));
    }
    for (round = 1; round <= 3; round++) {
        for (k = 0; k < N; k++) CHECK_OK(memo_launch_host(d, streams[k], &calls[k], &error));
        for (k = 0; k < N; k++) {
            CHECK_OK(memo_stream_synchronize(d, streams[k], &error));
            CHECK_CASE(numbers[k] == round, "stream %d: %d, not %d", k, numbers[k], round);
        }
    }
    for (k = 0; k < N; k++) CHECK_OK(memo_stream_destroy(d, streams[k], &error));
}

/* Functions end one by one, when they may. */
static int32_t n_entered, n_allowed;
static memo_status pass_when_allowed(void*, memo_error*) {
    const int32_t number = __atomic_add_fetch(&n_entered, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&n_allowed, __ATOMIC_SEQ_CST) < number) usleep(50);
    return MEMO_STATUS_OK;
}
/* Waits until n functions have begun, so that the ones before have ended. */
static void await_entered(int32_t n) {
    while (__atomic_load_n(&n_entered, __ATOMIC_SEQ_CST) < n) usleep(50);
}
static int count_done(memo_device* device, const memo_event* events, int n) {
    int n_done = 0;
    int32_t is_done = 0;
    for (int k = 0; k < n; k++) {
        CHECK_OK(memo_event_query(device, events[k], &is_done, &error));
        n_done += is_done;
    }
    return n_done;
}

/* One call is in flight on several streams at once: each stream goes on behind its own launch. */
TEST(one_call_is_in_flight_on_several_streams) {
    enum { N = 3 };
    NEED_RIG(d);
    memo_host_call call = {pass_when_allowed, NULL, NULL};
    memo_stream streams[N];
    memo_event events[N];
    n_entered = n_allowed = 0;
    for (int k = 0; k < N; k++) {
        CHECK_OK(memo_stream_create(d, "host functions", 0, &streams[k], &error));
        CHECK_OK(memo_event_create(d, &events[k], &error));
    }
    for (int round = 0; round < 3; round++) { /* the lanes of the first round serve the others */
        for (int k = 0; k < N; k++) {
            CHECK_OK(memo_launch_host(d, streams[k], &call, &error));
            CHECK_OK(memo_event_record(d, events[k], streams[k], &error));
        }
        for (int k = 0; k < N; k++) {
            await_entered(round * N + k + 1);
            while (count_done(d, events, N) < k) usleep(50);
            CHECK_CASE(count_done(d, events, N) == k, "%d streams went on, not %d",
                       count_done(d, events, N), k);
            __atomic_add_fetch(&n_allowed, 1, __ATOMIC_SEQ_CST);
        }
        for (int k = 0; k < N; k++) CHECK_OK(memo_stream_synchronize(d, streams[k], &error));
    }
    CHECK(n_entered == 3 * N);

    /* Many launches on each, enqueued ahead. */
    n_allowed = INT32_MAX;
    for (int k = 0; k < 200 * N; k++) CHECK_OK(memo_launch_host(d, streams[k % N], &call, &error));
    for (int k = 0; k < N; k++) CHECK_OK(memo_stream_synchronize(d, streams[k], &error));
    CHECK_CASE(n_entered == 203 * N, "%d functions ran, not %d", (int)n_entered, 203 * N);
    for (int k = 0; k < N; k++) {
        CHECK_OK(memo_event_destroy(d, events[k], &error));
        CHECK_OK(memo_stream_destroy(d, streams[k], &error));
    }
}

/* A graph is replayed on another stream while the stream that it was captured from has the same
 * call in flight: both launches run, and neither stream goes on before its own. */
TEST(a_graph_and_its_stream_may_have_one_call_in_flight) {
    NEED_RIG(d);
    cudaStream_t stream = memo_cuda_stream(d.stream);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    memo_host_call call = {pass_when_allowed, NULL, NULL};
    const memo_event events[] = {d.event, d.later};
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK_OK(memo_launch_host(d, d.stream, &call, &error));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    n_entered = n_allowed = 0;
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 2; k++) {
            if (k == round)
                CHECK_OK(memo_launch_host(d, d.stream, &call, &error));
            else
                CHECK(cudaGraphLaunch(exec, memo_cuda_stream(d.other)) == cudaSuccess);
            CHECK_OK(memo_event_record(d, events[k], k == round ? d.stream : d.other, &error));
            await_entered(2 * round + 1);
        }
        CHECK(count_done(d, events, 2) == 0);
        __atomic_add_fetch(&n_allowed, 1, __ATOMIC_SEQ_CST);
        await_entered(2 * round + 2);
        CHECK(count_done(d, events, 2) <= 1);
        __atomic_add_fetch(&n_allowed, 1, __ATOMIC_SEQ_CST);
        CHECK_OK(memo_stream_synchronize(d, d.stream, &error));
        CHECK_OK(memo_stream_synchronize(d, d.other, &error));
        CHECK_CASE(n_entered == 2 * round + 2, "%d functions ran", (int)n_entered);
    }
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
}

/* The worker of host functions, and threads that touch pinned memory. */
TEST(threads_take_no_signals) {
    NEED_RIG(d);
    int n_calls = 0;
    memo_host_call call = {add_one, &n_calls, NULL};
    void* memory;
    CHECK_SIGNALS(1, CHECK_OK(memo_launch_host(d, d.stream, &call, &error)));
    CHECK_OK(memo_stream_synchronize(d, d.stream, &error));
    CHECK_SIGNALS(1, CHECK_OK(memo_host_alloc(d, 64 * MIB, &memory, &error)));
    CHECK_OK(memo_host_free(d, memory, &error));
}

/* What fails elsewhere, a communicator's watchdog for one, is returned by every call; the first
 * failure counts. */
TEST(a_device_can_be_failed_from_outside) {
    NEED_RIG(device);
    memo_error why, later;
    memo_error_set(&why, MEMO_STATUS_COMM, "rank 3 is lost");
    memo_error_set(&later, MEMO_STATUS_IO, "and more");
    CHECK_OK(memo_stream_synchronize(device, NULL, &error));
    memo_device around = *device.device; /* such as a recorder's */
    int64_t other[64] = {0};
    around.context = other;
    around.inner = device;
    memo_cuda_device_destroy(&around);
    memo_cuda_device_fail(&around, &why);
    memo_cuda_device_fail(device, &later);
    CHECK(memo_stream_synchronize(device, NULL, &error) == MEMO_STATUS_COMM);
    CHECK(strcmp(error.message, "rank 3 is lost") == 0);
    CHECK(memo_device_status(device, &error) == MEMO_STATUS_COMM);
}

TEST(copies_rows_each_way) {
    NEED_RIG(device);
    const memo_stream stream = device.stream;
    enum { BYTES = 1 << 16 };
    static char expected[BYTES];
    void *on_device, *from, *to;
    CHECK_OK(memo_device_alloc(device, BYTES, &on_device, &error));
    CHECK_OK(memo_host_alloc(device, BYTES, &from, &error));
    CHECK_OK(memo_host_alloc(device, BYTES, &to, &error));
    CHECK((uintptr_t)on_device % 512 == 0 && (uintptr_t)from % 512 == 0);
    for (int c = 0; c < 100; c++) {
        int64_t row_bytes = memo_test_int(0, 300), n_rows = memo_test_int(0, 50), row, i;
        int64_t stride = row_bytes + memo_test_int(0, 1) * memo_test_int(0, 300);
        int64_t back = row_bytes + memo_test_int(0, 1) * memo_test_int(0, 300);
        for (i = 0; i < BYTES; i++) ((char*)from)[i] = (char)memo_test_random();
        memset(to, 0x55, BYTES);
        memset(expected, 0x55, BYTES);
        CHECK_OK(memo_fill(device, stream, on_device, 0x11, BYTES, &error));
        CHECK_OK(memo_copy_rows(device, stream, MEMO_COPY_TO_DEVICE, on_device, row_bytes, from,
                                stride, row_bytes, n_rows, &error));
        CHECK_OK(memo_copy(device, stream, MEMO_COPY_ON_DEVICE, (char*)on_device + BYTES / 2,
                           on_device, row_bytes * n_rows, &error));
        CHECK_OK(memo_copy_rows(device, stream, MEMO_COPY_TO_HOST, to, back,
                                (char*)on_device + BYTES / 2, row_bytes, row_bytes, n_rows,
                                &error));
        CHECK_OK(memo_stream_synchronize(device, stream, &error));
        for (row = 0; row < n_rows; row++)
            memcpy(expected + row * back, (char*)from + row * stride, (size_t)row_bytes);
        CHECK_CASE(memcmp(expected, to, BYTES) == 0, "%d rows of %d", (int)n_rows, (int)row_bytes);
    }
    CHECK_FAILS(memo_copy(device, stream, MEMO_COPY_TO_HOST, NULL, on_device, 1, &error),
                INVALID_ARGUMENT);
    CHECK_FAILS(
        memo_copy_rows(device, stream, MEMO_COPY_TO_HOST, to, 4, on_device, 8, 8, 2, &error),
        INVALID_ARGUMENT);
    CHECK(memo_fill(device, stream, on_device, 0, -1, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_host_free(device, to, &error));
    CHECK(memo_host_free(device, to, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(memo_device_free(device, from, &error) == MEMO_STATUS_INVALID_ARGUMENT);
}

TEST(copies_rows_of_pinned_memory) {
    NEED_RIG(device);
    const memo_stream stream = device.stream;
    const int64_t size = 70 * MIB + 4096, row = 3 * MIB + 40;
    void *pinned, *on_device;
    unsigned char* bytes;
    int64_t i, n_wrong = 0;
    CHECK_OK(memo_host_alloc(device, size, &pinned, &error));
    CHECK_OK(memo_device_alloc(device, size, &on_device, &error));
    CHECK(cuda_device_stats(device).host_bytes == size);
    CHECK(cuda_device_stats(device).host_kind != MEMO_CUDA_HOST_CUDA);
    printf("# host_kind %d\n", (int)cuda_device_stats(device).host_kind);
    bytes = (unsigned char*)pinned;
    for (i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 31 >> 8);
    CHECK_OK(memo_copy(device, stream, MEMO_COPY_TO_DEVICE, on_device, pinned, size, &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));
    memset(pinned, 0, (size_t)size);
    /* Strided on the host. */
    CHECK_OK(memo_copy_rows(device, stream, MEMO_COPY_TO_HOST, pinned, row + 100, on_device,
                            row + 100, row, size / (row + 100), &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));
    for (i = 0; i < size / (row + 100) * (row + 100); i++)
        n_wrong += bytes[i] != (i % (row + 100) < row ? (unsigned char)(i * 31 >> 8) : 0);
    CHECK_CASE(n_wrong == 0, "%lld bytes", (long long)n_wrong);

    /* Giving pinned memory back waits for a copy that is under way. */
    CHECK_OK(memo_copy(device, stream, MEMO_COPY_TO_DEVICE, on_device, pinned, size, &error));
    CHECK_OK(memo_host_free(device, pinned, &error));
}

TEST(errors_name_call_and_place) {
    NEED_RIG(device);
    void* address = (void*)1;
    int64_t free_bytes = 0, total_bytes = 0;
    CHECK_OK(memo_memory_info(device, &free_bytes, &total_bytes, &error));
    CHECK(free_bytes > 0 && free_bytes <= total_bytes);
    CHECK_FAILS(memo_device_alloc(device, (int64_t)1 << 50, &address, &error),
                OUT_OF_DEVICE_MEMORY);
    CHECK(address == NULL && strstr(error.message, "cudaMalloc: cudaErrorMemoryAllocation") &&
          strstr(error.message, "1.0 PiB") && strstr(error.message, " free of ") &&
          strstr(error.message, ", memo_cuda.cuh:"));
    CHECK(cudaPeekAtLastError() == cudaSuccess); /* the trainer's next check must not find it */
    CHECK_ERROR(memo_host_alloc(device, (int64_t)1 << 50, &address, &error), OUT_OF_HOST_MEMORY,
                "available");
    CHECK(memo_device_alloc(device, -1, &address, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(memo_cuda_check(cudaErrorInvalidValue, "cudaThis", &error) == MEMO_STATUS_DEVICE);
    CHECK(strstr(error.message, "cudaThis: cudaErrorInvalidValue (") &&
          strstr(error.message, "), test_device.cu:"));
    CHECK_OK(memo_device_status(device, &error));
}

/* --- the share of host memory --- */

static void write_text(const char* folder, const char* name, const char* text) {
    char path[400], *slash;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (slash = strchr(path + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE* file = fopen(path, "w");
    CHECK(file != NULL);
    if (!file) return;
    fputs(text, file);
    fclose(file);
}

/* The smallest limit of a process's control group and its parents, v1 and v2; cached files do not
 * count as used. */
TEST(control_groups_limit_the_share) {
    char folder[250], command[300], groups[300];
    static const struct {
        const char* groups; /* of the process */
        int64_t total, available;
    } cases[] = {
        {"0::/user/job\n", 100000, 77000},
        {"0::/user\n", 500000, 40000},
        {"0::/user/job/free\n", 100000, 77000},
        {"0::/elsewhere/in/the/host\n", 900000, 800000}, /* the mount's root alone */
        {"4:memory:/old\n", 60000, 50000},
        {"7:cpu,memory,pids:/old\n0::/\n", 60000, 50000},
        {"4:hugetlb:/old\n3:name=memory:/old\n", 1000000, 900000},
        {"nonsense\n", 1000000, 900000},
        {NULL, 1000000, 900000},
    };
    memo_test_path(folder, "groups");
    CHECK(mkdir(folder, 0700) == 0);
    write_text(folder, "memory.max", "900000\n");
    write_text(folder, "memory.current", "100000\n");
    write_text(folder, "user/memory.max", "500000\n");
    write_text(folder, "user/memory.current", "460000\n");
    write_text(folder, "user/job/memory.max", "100000\n");
    write_text(folder, "user/job/memory.current", "30000\n");
    write_text(folder, "user/job/memory.stat",
               "anon 20000\ninactive_file 4000\nactive_file 3000\n");
    write_text(folder, "user/job/free/memory.max", "max\n");
    write_text(folder, "memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    write_text(folder, "memory/old/memory.limit_in_bytes", "60000\n");
    write_text(folder, "memory/old/memory.usage_in_bytes", "20000\n");
    write_text(folder, "memory/old/memory.stat",
               "inactive_file 1\ntotal_inactive_file 6000\ntotal_active_file 4000\n");
    snprintf(groups, sizeof groups, "%s/groups", folder);
    for (const auto& each : cases) {
        memoi_cuda_room room = {1000000, 900000};
        remove(groups);
        if (each.groups) write_text(folder, "groups", each.groups);
        memoi_cuda_groups_room(groups, folder, &room);
        /* The group around a job counts, too: user has 40000 left. */
        int64_t available = each.available == 77000 ? 40000 : each.available;
        CHECK_CASE(room.total_bytes == each.total && room.available_bytes == available,
                   "%s: %lld of %lld", each.groups ? each.groups : "no file",
                   (long long)room.available_bytes, (long long)room.total_bytes);
    }
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    CHECK(system(command) == 0);
}

static int n_logged;
static void count_log(void* user, const char* message) {
    (void)user, (void)message;
    n_logged++;
}

/* The limit is refused, logged or ignored.  It is divided by the ranks of a host, even if others
 * have taken more. */
TEST(host_memory_is_shared_by_ranks) {
    static const struct {
        int32_t local_ranks;
        const char* environment;
        int64_t held, size;
        int is_refused;
    } cases[] = {{1, NULL, 0, 800, 0}, {1, NULL, 0, 801, 1},   {2, NULL, 0, 500, 0},
                 {2, NULL, 0, 501, 1}, {2, NULL, 400, 100, 0}, {2, NULL, 400, 101, 1},
                 {8, NULL, 0, 125, 0}, {8, NULL, 0, 126, 1},   {0, "8", 0, 125, 0},
                 {0, "8", 0, 126, 1},  {0, "", 0, 800, 0},     {2, "8", 0, 500, 0}};
    static memoi_cuda cuda;
    memoi_cuda_room room = {1000, 800}, unknown = {-1, -1};
    char* before = getenv("LOCAL_WORLD_SIZE");
    CHECK_OK(memoi_cuda_check_room(&cuda, unknown, (int64_t)1 << 60, &error));
    for (const auto& each : cases) {
        if (each.environment) setenv("LOCAL_WORLD_SIZE", each.environment, 1);
        cuda.desc.local_ranks = each.local_ranks;
        cuda.stats.host_bytes = each.held;
        memo_status status = memoi_cuda_check_room(&cuda, room, each.size, &error);
        CHECK_CASE(status == (each.is_refused ? MEMO_STATUS_OUT_OF_HOST_MEMORY : MEMO_STATUS_OK),
                   "%d ranks, %d held, %d requested: %s", (int)each.local_ranks, (int)each.held,
                   (int)each.size, memo_status_name(status));
        unsetenv("LOCAL_WORLD_SIZE");
    }
    if (before) setenv("LOCAL_WORLD_SIZE", before, 1);
}

TEST(host_limits_can_be_lifted) {
    memo_cuda_device_desc desc = {};
    for (int limit = MEMO_CUDA_HOST_REFUSE; limit <= MEMO_CUDA_HOST_IGNORE; limit++) {
        memo_device* device = NULL;
        void* address = NULL;
        desc.host_limit = (memo_cuda_host_limit)limit;
        desc.local_ranks = 1 << 30; /* nothing is left for one */
        desc.log.write = count_log;
        n_logged = 0;
        if (memo_cuda_device_create(&desc, &device, &error)) SKIP(NO_GPU);
        memo_status status = memo_host_alloc(device, 1 << 20, &address, &error);
        CHECK((status == MEMO_STATUS_OUT_OF_HOST_MEMORY) == (limit == MEMO_CUDA_HOST_REFUSE));
        CHECK((status == MEMO_STATUS_OK) == (address != NULL));
        CHECK(n_logged == (limit == MEMO_CUDA_HOST_WARN));
        memo_cuda_device_destroy(device);
    }
    desc.host_limit = (memo_cuda_host_limit)3;
    memo_device* device = NULL;
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_INVALID_ARGUMENT);
}

TEST(memory_has_a_capacity_and_a_peak) {
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    void *a, *b;
    int64_t free_bytes, total_bytes;
    desc.device_memory_bytes = 8 * MIB;
    desc.host_memory_bytes = 4 * MIB;
    if (memo_cuda_device_create(&desc, &device, &error)) SKIP(NO_GPU);
    CHECK_OK(memo_memory_info(device, &free_bytes, &total_bytes, &error));
    CHECK(free_bytes == 8 * MIB && total_bytes == 8 * MIB);
    CHECK_OK(memo_device_alloc(device, 5 * MIB, &a, &error));
    CHECK_ERROR(memo_device_alloc(device, 4 * MIB, &b, &error), OUT_OF_DEVICE_MEMORY,
                "device_memory_bytes");
    CHECK_OK(memo_memory_info(device, &free_bytes, &total_bytes, &error));
    CHECK(free_bytes == 3 * MIB && total_bytes == 8 * MIB);
    CHECK_OK(memo_device_alloc(device, 3 * MIB, &b, &error));
    CHECK_OK(memo_device_free(device, a, &error));
    CHECK_OK(memo_host_alloc(device, 3 * MIB, &a, &error));
    CHECK_ERROR(memo_host_alloc(device, MIB + 1, &b, &error), OUT_OF_HOST_MEMORY,
                "host_memory_bytes");
    CHECK_OK(memo_host_free(device, a, &error));
    CHECK_OK(memo_host_alloc(device, MIB, &a, &error));
    const memo_cuda_device_stats stats = memo_cuda_device_get_stats(device);
    CHECK(stats.device_bytes == 3 * MIB && stats.device_peak_bytes == 8 * MIB);
    CHECK(stats.host_bytes == MIB && stats.host_peak_bytes == 3 * MIB);
    memo_cuda_device_destroy(device);
    desc.host_memory_bytes = -1;
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_INVALID_ARGUMENT);
}

/* An event without timing orders streams, and fails with a message if its time is requested. */
TEST(untimed_events_have_no_time) {
    NEED_RIG(d);
    memo_event untimed;
    double elapsed_s;
    CHECK_OK(memo_event_create_untimed(d, &untimed, &error));
    CHECK_OK(memo_event_record(d, untimed, NULL, &error));
    CHECK_OK(memo_event_record(d, d.event, NULL, &error));
    CHECK_OK(memo_event_synchronize(d, untimed, &error));
    CHECK_OK(memo_event_synchronize(d, d.event, &error));
    CHECK_OK(memo_event_elapsed(d, d.event, d.event, &elapsed_s, &error));
    CHECK_ERROR(memo_event_elapsed(d, untimed, d.event, &elapsed_s, &error), INVALID_STATE,
                "no timing");
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK_OK(memo_event_destroy(d, untimed, &error));
}

TEST(refuses_wrong_descs) {
    memo_cuda_device_desc desc = {};
    memo_host_device_desc host_desc = {};
    memo_device *device = NULL, *host = NULL;
    desc.host_threads = -1;
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc = MEMO_ZERO(memo_cuda_device_desc);
    desc.phantom_bytes = -1;
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc.phantom_bytes = MIB;
    desc.phantom_chunk_bytes = (int64_t)1 << 62;
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc = MEMO_ZERO(memo_cuda_device_desc);
    desc.ordinal = 1000;
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_UNSUPPORTED && !device);
    CHECK(memo_cuda_device_create(NULL, &device, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    desc = MEMO_ZERO(memo_cuda_device_desc);
    CHECK_ERROR(memo_cuda_device_create(&desc, NULL, &error), INVALID_ARGUMENT,
                "memo_cuda_device_create: device: NULL");
    memo_cuda_device_destroy(NULL);
    CHECK_OK(memo_host_device_create(&host_desc, &host, &error));
    memo_cuda_device_destroy(host); /* not a CUDA device: does nothing */
    CHECK(cuda_device_stats(host).device_bytes == 0);
    memo_host_device_destroy(host);
}

/* --- phantom memory --- */

/* 2 TiB of addresses. */
TEST(phantom_memory_repeats_one_chunk) {
    NEED_RIG(device);
    memo_cuda_device_desc desc = {};
    memo_device* made = NULL;
    unsigned char* host;
    void *memory, *address = NULL;
    int64_t free_before, free_after, total, n_bytes, chunk = (int64_t)1 << 30;
    CHECK_OK(memo_memory_info(device, &free_before, &total, &error));
    desc.phantom_bytes = ((int64_t)2 << 40) - 5;
    desc.phantom_chunk_bytes = chunk;
    n_bytes = desc.phantom_bytes - MIB;
    CHECK_OK(memo_cuda_device_create(&desc, &made, &error));
    if (!made) return;
#ifdef FAKE_CUDA
    CHECK(fake_are_pages_exportable());
    CHECK_OK(memo_memory_info(device, &free_after, &total, &error));
    CHECK(free_before - free_after <= 2 * chunk); /* on a GPU others allocate, too */
#endif
    CHECK_OK(memo_memory_info(made, &free_after, &total, &error));
    CHECK(free_after == total && total >= desc.phantom_bytes && total % chunk == 0);
    cuda_rig phantom(made);
    CHECK_OK(memo_host_alloc(phantom, 64, &memory, &error));
    CHECK_OK(memo_device_alloc(phantom, n_bytes, &address, &error));
    if (!address) return;
    host = (unsigned char*)memory;
    CHECK_OK(memo_fill(phantom, phantom.stream, (char*)address + n_bytes - 20, 7, 10, &error));
    CHECK_OK(memo_copy(phantom, phantom.stream, MEMO_COPY_TO_HOST, host,
                       (char*)address + 2 * chunk + (n_bytes - 20) % chunk, 10, &error));
    CHECK_OK(memo_stream_synchronize(phantom, phantom.stream, &error));
    CHECK(host[0] == 7 && host[9] == 7);
}

/* --- recording --- */

/* A few layers' worth of requests, some freed late. */
static void run_requests(const memo_device* device, memo_trace* trace) {
    memo_arena_desc desc = {};
    memo_arena* arena = NULL;
    void* live[40];
    int64_t k, n_live = 0;
    desc.device = device;
    desc.trace = trace;
    CHECK_OK(memo_arena_create(&desc, &arena, &error));
    if (!arena) return;
    CHECK_OK(memo_arena_alloc(arena, 3 * MIB, 0, &live[n_live++], &error));
    CHECK_OK(memo_arena_begin(arena, &error));
    for (k = 0; k < 60; k++) {
        if (n_live < 30 && (n_live == 1 || memo_test_int(0, 2))) {
            CHECK_OK(
                memo_arena_alloc(arena, memo_test_int(0, 3 * MIB), 0, &live[n_live++], &error));
        } else {
            int64_t which = memo_test_int(1, n_live - 1);
            CHECK_OK(memo_arena_free(arena, live[which], &error));
            live[which] = live[--n_live];
        }
    }
    while (n_live > 1) CHECK_OK(memo_arena_free(arena, live[--n_live], &error));
    CHECK_OK(memo_arena_end(arena, &error));
    CHECK_OK(memo_arena_free(arena, live[0], &error));
    memo_arena_destroy(arena);
}

TEST(phantom_records_what_a_real_run_records) {
    NEED_RIG(device);
    memo_cuda_device_desc desc = {};
    memo_device* phantom = NULL;
    memo_trace *real_trace, *phantom_trace;
    int64_t k, free_bytes, total_bytes;
    void *a, *b, *c;
    desc.phantom_bytes = 200 * MIB;
    desc.phantom_chunk_bytes = 4 * MIB;
    CHECK_OK(memo_cuda_device_create(&desc, &phantom, &error));
    if (!phantom) return;
    CHECK(strcmp(phantom->name, "cuda phantom") == 0);
    CHECK_OK(memo_trace_create(&real_trace, &error));
    CHECK_OK(memo_trace_create(&phantom_trace, &error));
    memo_test.state = 7;
    run_requests(device, real_trace);
    memo_test.state = 7;
    run_requests(phantom, phantom_trace);
    CHECK(real_trace->n_requests == phantom_trace->n_requests && real_trace->n_requests > 50);
    for (k = 0; k < real_trace->n_requests && k < phantom_trace->n_requests; k++) {
        const memo_request *x = &real_trace->requests[k], *y = &phantom_trace->requests[k];
        CHECK(x->kind == y->kind && x->id == y->id && x->size_bytes == y->size_bytes &&
              x->stream == y->stream && x->memory_class == y->memory_class);
    }
    /* Gaps are used again, and a request that does not fit is an error. */
    CHECK_OK(memo_device_alloc(phantom, 100 * MIB, &a, &error));
    CHECK_OK(memo_device_alloc(phantom, 100 * MIB, &b, &error));
    CHECK_ERROR(memo_device_alloc(phantom, 1, &c, &error), OUT_OF_DEVICE_MEMORY, "phantom_bytes");
    CHECK_OK(memo_memory_info(phantom, &free_bytes, &total_bytes, &error));
    CHECK(free_bytes == 0 && total_bytes == 200 * MIB);
    CHECK_OK(memo_device_free(phantom, a, &error));
    CHECK_OK(memo_device_alloc(phantom, 60 * MIB, &c, &error));
    CHECK(c == a);
    CHECK_OK(memo_device_alloc(phantom, 40 * MIB, &a, &error));
    CHECK((char*)a == (char*)c + 60 * MIB);
    memo_trace_destroy(real_trace);
    memo_trace_destroy(phantom_trace);
    memo_cuda_device_destroy(phantom);
}

/* --- tests that need a runtime that fails on demand --- */
/* A host function that ends when it is told to. */
static memo_status wait_for_flag(void* argument, memo_error*) {
    while (!__atomic_load_n((int*)argument, __ATOMIC_SEQ_CST)) usleep(100);
    return MEMO_STATUS_OK;
}
/* Streams whose events have not come after so many tries. */
static int n_stopped_streams(const memo_device* device, const memo_event* events, int n,
                             int n_tries) {
    int32_t is_done;
    int n_stopped = n;
    for (int k = 0; k < n_tries && n_stopped; k++, usleep(1000)) {
        n_stopped = 0;
        for (int i = 0; i < n; i++) {
            CHECK_OK(memo_event_query(device, events[i], &is_done, &error));
            n_stopped += !is_done;
        }
    }
    return n_stopped;
}

static int n_crowds;
static void count_crowds(void*, const char* message) {
    n_crowds += strstr(message, " hardware queues, so a wait") != NULL;
}

/* A wait for a file stops streams only after a line in the log says that it may. */
TEST(twelve_busy_streams_and_a_wait_for_a_file) {
    enum { N = 12 };
    for (int n_queues = 8; n_queues <= 32; n_queues += 24) {
        memo_cuda_device_desc desc = {};
        memo_device* device = NULL;
        memo_stream streams[N];
        memo_event events[N];
        void* memory;
        int flag = 0, n_stopped;
        memo_host_call call = {wait_for_flag, &flag, NULL};
#ifdef FAKE_CUDA
        fake_set_hardware_queues(n_queues);
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", n_queues == 8 ? "8" : "32", 1);
#else
        const char* given = getenv("CUDA_DEVICE_MAX_CONNECTIONS"); /* which CUDA reads once */
        if (n_queues > 8) break;
        if (given) n_queues = atoi(given);
#endif
        desc.log.write = count_crowds;
        n_crowds = 0;
        if (memo_cuda_device_create(&desc, &device, &error)) SKIP(NO_GPU);
        CHECK_OK(memo_device_alloc(device, 4096, &memory, &error));
        for (int i = 0; i < N; i++) {
            CHECK_OK(memo_stream_create(device, "busy", 0, &streams[i], &error));
            CHECK_OK(memo_event_create(device, &events[i], &error));
        }
        CHECK(n_crowds == 0); /* nothing waits yet */

        /* The last stream waits; all others have work behind that. */
        CHECK_OK(memo_launch_host(device, streams[N - 1], &call, &error));
        for (int i = 0; i < N - 1; i++) {
            CHECK_OK(memo_fill(device, streams[i], (char*)memory + 64 * i, 0, 64, &error));
            CHECK_OK(memo_event_record(device, events[i], streams[i], &error));
        }
        n_stopped = n_stopped_streams(device, events, N - 1, N > n_queues ? 100 : 60000);
        printf("# of %d streams beside the one that waits, %d are stopped\n", N - 1, n_stopped);
#ifdef FAKE_CUDA
        CHECK((n_stopped > 0) == (n_queues == 8));
#endif
        CHECK(n_crowds == (N > n_queues));
        CHECK(n_stopped == 0 || n_crowds);
        __atomic_store_n(&flag, 1, __ATOMIC_SEQ_CST);
        for (int i = 0; i < N; i++) {
            CHECK_OK(memo_stream_synchronize(device, streams[i], &error));
            CHECK_OK(memo_event_destroy(device, events[i], &error));
            CHECK_OK(memo_stream_destroy(device, streams[i], &error));
        }
        CHECK_OK(memo_device_free(device, memory, &error));
        memo_cuda_device_destroy(device);
#ifdef FAKE_CUDA
        unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
        fake_set_hardware_queues(0);
#endif
    }
}

#ifdef FAKE_CUDA

/* "Not ready" is an answer: the trainer's next check of a kernel must not find it. */
TEST(not_ready_is_no_error) {
    NEED_RIG(d);
    std::atomic<bool> may_end(false);
    double elapsed_s;
    int32_t is_done = 0;
    cudaLaunchConfig_t nothing = {};
    nothing.gridDim = nothing.blockDim = dim3(1, 1, 1);
    CHECK_OK(memo_event_query(d, d.event, &is_done, &error));
    CHECK(is_done == 1); /* nothing to wait for */
    fake_enqueue_until(NULL, [&] { return may_end.load(); });
    CHECK_OK(memo_event_record(d, d.event, NULL, &error));
    CHECK_OK(memo_event_record(d, d.later, NULL, &error));
    CHECK_ERROR(memo_event_elapsed(d, d.event, d.later, &elapsed_s, &error), INVALID_STATE,
                "synchronize first");
    CHECK(cudaGetLastError() == cudaSuccess);
    for (int k = 0; k < 2; k++) {
        CHECK_OK(memo_event_query(d, d.event, &is_done, &error));
        CHECK(is_done == 0 && cudaGetLastError() == cudaSuccess);
    }
    CHECK_OK(memo_device_status(d, &error));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaEventQuery(memo_cuda_event(d.later)) == cudaErrorNotReady); /* the trainer asks */
    CHECK_OK(memo_device_status(d, &error));
    CHECK(cudaGetLastError() == cudaErrorNotReady); /* its own business */
    may_end = true;
    CHECK_OK(memo_event_synchronize(d, d.later, &error));
    CHECK_OK(memo_event_query(d, d.event, &is_done, &error));
    CHECK(is_done == 1);
    CHECK_OK(memo_event_elapsed(d, d.event, d.later, &elapsed_s, &error));
    /* The trainer's launch failed and it has not looked yet: memo neither reports nor takes
     * that. */
    fake_fail("kernel", 1, cudaErrorInvalidConfiguration);
    (void)cudaLaunchKernelExC(&nothing, NULL, NULL);
    CHECK_OK(memo_device_status(d, &error));
    CHECK_OK(memo_event_record(d, d.event, NULL, &error));
    CHECK_OK(memo_event_query(d, d.event, &is_done, &error));
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    fake_fail("kernel", 1, cudaErrorInvalidConfiguration);
    (void)cudaLaunchKernelExC(&nothing, NULL, NULL);
    CHECK(memo_cuda_check(cudaErrorInvalidValue, "another", &error) == MEMO_STATUS_DEVICE);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK_OK(memo_event_destroy(d, d.later, &error));
    CHECK(memo_event_destroy(d, d.later, &error) == MEMO_STATUS_DEVICE);
    d.later = NULL;
}

/* Every kind of call on a device of GPU 1; `stays` looks at the thread after each. */
static void check_each_call(int64_t phantom_bytes, const std::function<void(void)>& stays) {
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    memo_stream stream, other;
    memo_event event;
    void *memory, *host;
    int number = 0;
    memo_host_call call = {write_slowly, &number, NULL};
    desc.ordinal = 1;
    desc.phantom_bytes = phantom_bytes;
#define STAYS(call)                                                                                \
    CHECK_OK(call);                                                                                \
    stays()
    STAYS(memo_cuda_device_create(&desc, &device, &error));
    STAYS(memo_stream_create(device, "s", 0, &stream, &error));
    STAYS(memo_stream_create(device, "other", 0, &other, &error));
    CHECK(fake_device_of(memo_cuda_stream(stream)) == 1);
    STAYS(memo_event_create(device, &event, &error));
    STAYS(memo_device_alloc(device, 4096, &memory, &error));
    STAYS(memo_host_alloc(device, 64 * MIB, &host, &error));
    STAYS(memo_copy(device, stream, MEMO_COPY_TO_HOST, host, memory, 4096, &error));
    STAYS(memo_fill(device, stream, memory, 0, 4096, &error));
    STAYS(memo_launch_host(device, stream, &call, &error));
    STAYS(memo_event_record(device, event, stream, &error));
    STAYS(memo_event_wait(device, event, other, &error));
    STAYS(memo_event_synchronize(device, event, &error));
    STAYS(memo_stream_synchronize(device, stream, &error));
    STAYS(memo_device_status(device, &error));
    STAYS(memo_event_destroy(device, event, &error));
    STAYS(memo_stream_destroy(device, stream, &error));
    STAYS(memo_stream_destroy(device, other, &error));
    STAYS(memo_host_free(device, host, &error));
    STAYS(memo_device_free(device, memory, &error));
#undef STAYS
    memo_cuda_device_destroy(device);
    stays();
    CHECK(fake_n_objects() == 0);
}

/* A device other than the thread's: everything is created there, and the thread keeps its own. */
TEST(the_thread_s_device_stays) {
    for (int64_t phantom_bytes : {(int64_t)0, 64 * MIB})
        check_each_call(phantom_bytes, [] {
            int ordinal = -1;
            CHECK(cudaGetDevice(&ordinal) == cudaSuccess && ordinal == 0);
        });
}

/* Nothing is made on GPU 0 for a rank that works on GPU 1, and a caller's own context, or none, is
 * there again. */
TEST(the_thread_s_context_stays) {
    for (int is_foreign = 0; is_foreign < 2; is_foreign++) {
        fake_forget_contexts();
        fake_set_foreign_context(is_foreign);
        check_each_call(64 * MIB, [=] {
            CHECK(fake_is_foreign_context() == is_foreign &&
                  fake_is_without_context() == !is_foreign);
        });
        CHECK(fake_has_context(1) && !fake_has_context(0));
        fake_set_foreign_context(0);
    }
}

TEST(without_stream_waits_cuda_s_thread_runs_host_functions) {
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    memo_host_call call = {write_slowly, NULL, NULL};
    int number = 0;
    call.argument = &number;
    desc.log.write = count_log;
    n_logged = 0;
    fake_set_wait_value(0);
    CHECK_OK(memo_cuda_device_create(&desc, &device, &error));
    CHECK(n_logged == 1);
    CHECK_OK(memo_launch_host(device, NULL, &call, &error));
    CHECK_OK(memo_stream_synchronize(device, NULL, &error));
    CHECK(number == 1);
    memo_cuda_device_destroy(device);
    fake_set_wait_value(1);
}

TEST(one_hardware_queue_is_logged) {
    memo_cuda_device_desc desc = {};
    desc.log.write = count_log;
    for (int n = 1; n <= 8; n += 7) {
        memo_device* device = NULL;
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", n == 1 ? "1" : "8", 1);
        n_logged = 0;
        CHECK_OK(memo_cuda_device_create(&desc, &device, &error));
        CHECK(n_logged == (n == 1));
        memo_cuda_device_destroy(device);
    }
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

/* The child has no page of it, so nothing is copied; the parent's stay. */
TEST(fork_leaves_registered_memory_alone) {
    NEED_RIG(device);
    void* address;
    unsigned char resident;
    CHECK_OK(memo_host_alloc(device, 8 * MIB, &address, &error));
    pid_t child = fork();
    if (child == 0) _exit(mincore(address, 4096, &resident) == 0 || errno != ENOMEM);
    int result = -1;
    CHECK(child > 0 && waitpid(child, &result, 0) == child);
    CHECK(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    CHECK(mincore(address, 4096, &resident) == 0);
}

/* Another thread, which has not called CUDA before: the driver's functions need more than its
 * device's number. */
TEST(any_thread_can_make_phantom_memory) {
    std::thread other([] {
        memo_cuda_device_desc desc = {};
        memo_device* device = NULL;
        desc.phantom_bytes = 64 * MIB;
        CHECK_OK(memo_cuda_device_create(&desc, &device, &error));
        std::thread last([device] { memo_cuda_device_destroy(device); });
        last.join();
    });
    other.join();
    CHECK_CASE(fake_n_objects() == 0, "%d objects left", fake_n_objects());
}

TEST(late_streams_are_waited_for) {
    fake_set_late(1);
    waits_and_times_events();
    captures_forked_streams_that_are_joined();
    host_functions_take_their_turn();
    host_functions_can_be_captured_and_are_waited_for();
    copies_rows_each_way();
    copies_rows_of_pinned_memory();
    phantom_memory_repeats_one_chunk();
    fake_set_late(0);
}

static char log_text[4096];
static void keep_log(void* user, const char* message) {
    (void)user;
    snprintf(log_text + strlen(log_text), sizeof log_text - strlen(log_text), "%s\n", message);
}

/* Addresses that this process has taken. */
static int64_t address_space_bytes(void) {
    long long n_pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%lld", &n_pages) != 1) n_pages = 0;
    fclose(file);
    return n_pages * sysconf(_SC_PAGESIZE);
}

/* Says in log_text how it pins. */
static memo_device* open_logging_device(int32_t host_threads) {
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    desc.host_threads = host_threads;
    desc.log.write = keep_log;
    CHECK_OK(memo_cuda_device_create(&desc, &device, &error));
    log_text[0] = 0;
    return device;
}

TEST(pinning_that_fails_leaves_nothing) {
    void* address = NULL;
    int64_t before_bytes = address_space_bytes();
    for (int round = 1; round <= 4; round++) {
        cuda_rig device(open_logging_device(0));
        fake_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation);
        CHECK_OK(memo_host_alloc(device, 128 * MIB, &address, &error));
        CHECK(cuda_device_stats(device).host_kind == MEMO_CUDA_HOST_CUDA);
        CHECK(fake_n_registered() == 0 && fake_n_host_allocs() == 1);
        CHECK(strstr(log_text, "cudaHostRegister: cudaErrorMemoryAllocation") &&
              strstr(log_text, "using cudaHostAlloc"));
        CHECK_OK(memo_host_free(device, address, &error));
        CHECK(fake_n_host_allocs() == 0);
        /* Where cudaHostAlloc refuses too, both reasons are told. */
        fake_fail("cudaHostRegister", 1, cudaErrorInvalidValue);
        fake_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
        CHECK_FAILS(memo_host_alloc(device, 128 * MIB, &address, &error), OUT_OF_HOST_MEMORY);
        CHECK(!address && strstr(error.message, "cudaHostAlloc") &&
              strstr(error.message, "cudaHostRegister: cudaErrorInvalidValue"));
        CHECK(fake_n_registered() == 0 && fake_n_host_allocs() == 0);
    }
    fake_forget_failures();
    /* Eight times 128 MiB were mapped; stacks of threads may be kept. */
    CHECK_CASE(address_space_bytes() - before_bytes < 100 * MIB, "%lld MiB more than before",
               (long long)((address_space_bytes() - before_bytes) / MIB));
}

/* A caller may read a state into any memory. */
TEST(memory_that_is_not_pinned_is_copied) {
    cuda_rig device(open_logging_device(0));
    std::vector<char> from(3 * MIB), to(3 * MIB);
    void* on_device;
    for (size_t k = 0; k < from.size(); k++) from[k] = (char)(k * 31 + 7);
    const std::vector<char> value(from);
    CHECK_OK(memo_device_alloc(device, 3 * MIB, &on_device, &error));
    CHECK_OK(memo_copy(device, device.stream, MEMO_COPY_TO_DEVICE, on_device, from.data(), 3 * MIB,
                       &error));
    CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
    CHECK_OK(
        memo_copy(device, device.stream, MEMO_COPY_TO_HOST, to.data(), on_device, 3 * MIB, &error));
    CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
    CHECK(to == value);
    CHECK_OK(memo_device_free(device, on_device, &error));
}

/* A driver refuses large registrations, so that they are made in pieces.  If one is refused, none is
 * left. */
TEST(large_memory_is_pinned_in_pieces) {
    cuda_rig device(open_logging_device(0));
    void *address = NULL, *on_device;
    fake_set_register_limit(32 * MIB);
    CHECK_OK(memo_host_alloc(device, 70 * MIB, &address, &error));
    CHECK(cuda_device_stats(device).host_kind != MEMO_CUDA_HOST_CUDA);
    CHECK_CASE(fake_n_registered() == 5, "%d pieces", fake_n_registered());
    CHECK(!fake_is_pinned((char*)address + 15 * MIB, 2 * MIB));
    fake_set_register_limit((size_t)1 << 39);

    /* All of it in one copy, and rows that lie over a border, end at one, or are longer than one. */
    CHECK_OK(memo_device_alloc(device, 70 * MIB, &on_device, &error));
    for (int64_t row : {70 * MIB, 4 * MIB, 5 * MIB - 4096, 33 * MIB}) {
        const int64_t n = 70 * MIB / row;
        int64_t n_wrong = 0;
        for (int64_t k = 0; k < 70 * MIB / 8; k++) ((int64_t*)address)[k] = k * 17 + row;
        CHECK_OK(memo_copy_rows(device, device.stream, MEMO_COPY_TO_DEVICE, on_device, row - 64,
                                address, row, row - 64, n, &error));
        CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
        memset(address, 0, (size_t)(70 * MIB));
        CHECK_OK(memo_copy_rows(device, device.stream, MEMO_COPY_TO_HOST, address, row, on_device,
                                row - 64, row - 64, n, &error));
        CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
        for (int64_t k = 0; k < n * row / 8; k++)
            n_wrong += ((int64_t*)address)[k] != (k * 8 % row < row - 64 ? k * 17 + row : 0);
        CHECK_CASE(n_wrong == 0, "%lld numbers, rows of %lld", (long long)n_wrong, (long long)row);
    }
    CHECK_OK(memo_host_free(device, address, &error));
    CHECK(fake_n_registered() == 0);

    for (int k = 1; k <= 5; k++) {
        fake_fail("cudaHostRegister", k, cudaErrorMemoryAllocation);
        CHECK_OK(memo_host_alloc(device, 70 * MIB, &address, &error));
        CHECK(cuda_device_stats(device).host_kind == MEMO_CUDA_HOST_CUDA);
        CHECK_CASE(fake_n_registered() == 0, "%d pieces after call %d", fake_n_registered(), k);
        CHECK_OK(memo_host_free(device, address, &error));
    }
    fake_forget_failures();
}

/* If the device cannot be waited for, a copy may still use pinned memory. */
TEST(memory_that_may_be_in_use_stays_pinned) {
    memo_device* device = open_logging_device(0);
    void* address = NULL;
    CHECK_OK(memo_host_alloc(device, 40 * MIB, &address, &error));
    fake_fail("cudaDeviceSynchronize", 1, cudaErrorUnknown);
    CHECK_FAILS(memo_host_free(device, address, &error), DEVICE);
    CHECK(fake_n_registered() == 3 && cuda_device_stats(device).host_bytes == 40 * MIB);
    memset(address, 1, (size_t)(40 * MIB));
    CHECK_OK(memo_host_free(device, address, &error));
    CHECK(fake_n_registered() == 0 && cuda_device_stats(device).host_bytes == 0);

    /* At the end it stays mapped, and the log says so. */
    CHECK_OK(memo_host_alloc(device, 40 * MIB, &address, &error));
    fake_break(cudaErrorIllegalAddress);
    memo_cuda_device_destroy(device);
    fake_break(cudaSuccess);
    (void)cudaGetLastError();
    CHECK_CASE(strstr(log_text, "40.0 MiB stay mapped"), "%s", log_text);
    memset(address, 1, (size_t)(40 * MIB));
    fake_abandon();
}

/* Replaces the system's madvise (see test_cuda.sh).  From the k-th call on there are no pages, as
 * in a container with a lower limit; negative: an old system without this advice. */
static int refuse_pages_at;
/* Slowly, so that each thread gets its part; who they were. */
static int is_touch_slow;
static std::mutex touching;
static std::set<pthread_t> touched_by;
extern "C" {
int __real_madvise(void* address, size_t n_bytes, int advice);
int __wrap_madvise(void* address, size_t n_bytes, int advice);
int __wrap_madvise(void* address, size_t n_bytes, int advice) {
    const int populate_write = 23;
    if (refuse_pages_at > 1)
        refuse_pages_at -= advice == populate_write;
    else if (refuse_pages_at && advice == populate_write) {
        errno = refuse_pages_at > 0 ? EFAULT : EINVAL;
        return -1;
    }
    if (is_touch_slow && advice == populate_write) {
        usleep(700000);
        std::lock_guard<std::mutex> lock(touching);
        touched_by.insert(pthread_self());
    }
    return __real_madvise(address, n_bytes, advice);
}
}

TEST(memory_that_kernels_could_not_reach_is_not_registered) {
    void* address = NULL;
    fake_set_same_pointers(0);
    NEED_RIG(device);
    CHECK_OK(memo_host_alloc(device, 64 * MIB, &address, &error));
    CHECK(cuda_device_stats(device).host_kind == MEMO_CUDA_HOST_CUDA);
    CHECK(fake_n_registered() == 0 && fake_n_host_allocs() == 1);
    fake_set_same_pointers(1);
}

TEST(long_pinning_is_reported_and_shared) {
    cuda_rig device(open_logging_device(4));
    void* address = NULL;
    is_touch_slow = 1;
    CHECK_OK(memo_host_alloc(device, 256 * MIB, &address, &error)); /* two turns of four threads */
    is_touch_slow = 0;
    CHECK_CASE(strstr(log_text, "pinning 256 MiB: ") && strstr(log_text, " touched after "), "%s",
               log_text);
    CHECK_CASE(touched_by.size() == 4, "%d threads", (int)touched_by.size());
    CHECK(cuda_device_stats(device).host_alloc_s > 1.2);
}

TEST(pages_that_are_missing_are_an_error) {
    cuda_rig device(open_logging_device(1));
    void* address = NULL;
    for (int k = 1; k <= 4; k++) {
        log_text[0] = 0;
        refuse_pages_at = k;
        CHECK_OK(memo_host_alloc(device, 128 * MIB, &address, &error));
        CHECK(cuda_device_stats(device).host_kind == MEMO_CUDA_HOST_CUDA);
        CHECK_CASE(strstr(log_text, "the system has no pages for them"), "%s", log_text);
        CHECK(fake_n_registered() == 0 && fake_n_host_allocs() == 1);
        CHECK_OK(memo_host_free(device, address, &error));
    }
    for (refuse_pages_at = -1; refuse_pages_at <= 0; refuse_pages_at++) {
        CHECK_OK(memo_host_alloc(device, 128 * MIB, &address, &error));
        CHECK(cuda_device_stats(device).host_kind != MEMO_CUDA_HOST_CUDA);
    }
    refuse_pages_at = 0;
}

TEST(creating_fails_at_each_call) {
    static const char* const calls[] = {"cudaGetDeviceCount",
                                        "cudaGetDriverEntryPointByVersion",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuCtxGetCurrent",
                                        "cuCtxSetCurrent",
                                        "cudaDeviceGetAttribute",
                                        "cudaStreamCreateWithFlags",
                                        "cudaHostAlloc",
                                        "cuMemCreate",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess"};
    memo_cuda_device_desc desc = {};
    memo_device* device = NULL;
    desc.phantom_bytes = 64 * MIB;
    desc.phantom_chunk_bytes = 16 * MIB;
    fake_set_virtual_memory(0);
    CHECK_ERROR(memo_cuda_device_create(&desc, &device, &error), UNSUPPORTED, "phantom_bytes");
    fake_set_virtual_memory(1);
    for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
        fake_set_foreign_context(0);
        fake_fail(calls[k], strcmp(calls[k], "cuMemMap") == 0 ? 3 : 1, cudaErrorUnknown);
        CHECK_CASE(memo_cuda_device_create(&desc, &device, &error) != MEMO_STATUS_OK && !device,
                   "%s", calls[k]);
        CHECK_CASE(strstr(error.message, calls[k]) != NULL, "%s: %s", calls[k], error.message);
        CHECK_CASE(fake_n_objects() == 0, "%s leaves %d objects", calls[k], fake_n_objects());
        fake_forget_failures();
    }
    /* Pinned memory of the device's own is host memory too. */
    fake_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
    CHECK(memo_cuda_device_create(&desc, &device, &error) == MEMO_STATUS_OUT_OF_HOST_MEMORY);
    fake_forget_failures();
}

TEST(later_calls_report_their_failure) {
    NEED_RIG(d);
    void *memory, *host;
    int n_done = 0;
    memo_host_call call = {add_one, &n_done, NULL};
    CHECK_OK(memo_device_alloc(d, 4096, &memory, &error));
    CHECK_OK(memo_host_alloc(d, 4096, &host, &error));
#define FAILS(function, call)                                                                      \
    fake_fail(function, 1, cudaErrorIllegalAddress);                                               \
    CHECK_ERROR(call, DEVICE, function ": cudaErrorIllegalAddress (");                             \
    CHECK(strstr(error.message, "memo_cuda.cuh:") != NULL)
    FAILS("cudaMemcpyAsync", memo_copy(d, d.stream, MEMO_COPY_TO_HOST, host, memory, 64, &error));
    FAILS("cudaMemcpy2DAsync",
          memo_copy_rows(d, d.stream, MEMO_COPY_TO_DEVICE, memory, 16, host, 8, 8, 4, &error));
    FAILS("cudaMemsetAsync", memo_fill(d, d.stream, memory, 0, 64, &error));
    FAILS("cudaLaunchHostFunc", memo_launch_host(d, d.stream, &call, &error));
    fake_fail("cuStreamWaitValue32", 1, cudaErrorIllegalAddress);
    n_done = 0;
    CHECK(memo_launch_host(d, d.stream, &call, &error) == MEMO_STATUS_DEVICE);
    FAILS("cudaEventRecord", memo_event_record(d, d.event, d.stream, &error));
    FAILS("cudaStreamWaitEvent", memo_event_wait(d, d.event, d.stream, &error));
    FAILS("cudaEventSynchronize", memo_event_synchronize(d, d.event, &error));
    FAILS("cudaStreamSynchronize", memo_stream_synchronize(d, d.stream, &error));
#undef FAILS
    fake_fail("cuStreamQuery", 1, cudaErrorIllegalAddress);
    CHECK_ERROR(memo_device_status(d, &error), DEVICE, "cuStreamQuery: CUDA_ERROR_AS_TOLD");
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_OK(memo_device_status(d, &error));
}
/* After an error that CUDA keeps every call says so, and destroying ends; also when the runtime is
 * unloaded. */
TEST(destroying_ends_whatever_cuda_says) {
    static const cudaError_t kept[] = {cudaErrorIllegalAddress, cudaErrorCudartUnloading};
    for (cudaError_t code : kept) {
        NEED_DEVICE(device);
        memo_cuda_device_desc desc = {};
        memo_device* phantom = NULL;
        void *memory, *small, *large;
        CHECK_OK(memo_device_alloc(device, 4096, &memory, &error));
        CHECK_OK(memo_host_alloc(device, 4096, &small, &error));
        CHECK_OK(memo_host_alloc(device, 64 * MIB, &large, &error));
        desc.phantom_bytes = 64 * MIB;
        desc.phantom_chunk_bytes = 16 * MIB;
        CHECK_OK(memo_cuda_device_create(&desc, &phantom, &error));
        fake_break(code);
        CHECK(memo_device_status(device, &error) == MEMO_STATUS_DEVICE);
        CHECK(memo_fill(device, NULL, memory, 0, 64, &error) == MEMO_STATUS_DEVICE);
        CHECK(memo_device_free(device, memory, &error) == MEMO_STATUS_DEVICE);
        memo_cuda_device_destroy(phantom);
        memo_cuda_device_destroy(device);
        fake_break(cudaSuccess);
        (void)cudaGetLastError();
    }
    fake_abandon(); /* memory that CUDA kept */
}

/* Strides above the limit of one call, and rows that cross borders: the fake refuses them like
 * CUDA. */
TEST(long_strides_go_row_by_row) {
    NEED_RIG(device);
    void *memory, *host;
    CHECK_OK(memo_device_alloc(device, 40 * MIB, &memory, &error));
    CHECK_OK(memo_host_alloc(device, 40 * MIB, &host, &error));
    for (int64_t k = 0; k < 4; k++) memset((char*)host + k * 10 * MIB, (int)k + 1, 100);
    fake_set_max_pitch(MIB);
    memo_cuda_device_destroy(open_device()); /* the limit is read when a device is made */
    ((memoi_cuda*)device.device->context)->max_pitch_bytes = (size_t)MIB;
    CHECK_OK(memo_copy_rows(device, device.stream, MEMO_COPY_TO_DEVICE, memory, 200, host, 10 * MIB,
                            100, 4, &error));
    CHECK_OK(memo_stream_synchronize(device, device.stream, &error));
    for (int64_t k = 0; k < 4; k++)
        CHECK(((char*)memory)[200 * k] == k + 1 && ((char*)memory)[200 * k + 99] == k + 1);
    fake_set_max_pitch(2147483647);
}

/* CUDA does not give the last free bytes away, and the first kernel takes memory of its module. */
TEST(memory_that_is_free_cannot_all_be_taken) {
    NEED_DEVICE(device);
    static float numbers[4];
    memo_add_desc cast = {};
    int64_t before_bytes, after_bytes, total_bytes;
    void* memory;
    fake_set_library_bytes(20 * MIB);
    CHECK_OK(memo_memory_info(device, &before_bytes, &total_bytes, &error));
    CHECK_ERROR(memo_device_alloc(device, before_bytes, &memory, &error), OUT_OF_DEVICE_MEMORY,
                "the last of which CUDA does not give away");
    cast.to = numbers;
    cast.a = numbers;
    cast.n_columns = 1;
    CHECK_OK(memo_row_cast(device, NULL, &cast, &error));
    CHECK_OK(memo_memory_info(device, &after_bytes, &total_bytes, &error));
    CHECK_IS(after_bytes, ==, before_bytes - 20 * MIB);
    fake_set_library_bytes(0);
    memo_cuda_device_destroy(device);
}

TEST(kernels_are_launched_with_enough_threads) {
    NEED_DEVICE(device);
    static float numbers[4];
    memo_add_desc cast = {};
    memo_merge_desc merge = {};
    cast.to = numbers;
    cast.a = numbers;
    cast.n_columns = ((int64_t)1 << 31) + 8;
    CHECK_OK(memo_row_cast(device, NULL, &cast, &error));
    CHECK(fake_grid() == 32 * 132); /* the fake has 132 processors */
    cast.n_columns = 1;
    CHECK_OK(memo_row_cast(device, NULL, &cast, &error));
    CHECK(fake_grid() == 1);
    cast.n_columns = -1;
    CHECK(memo_row_cast(device, NULL, &cast, &error) == MEMO_STATUS_INVALID_ARGUMENT);
    merge.out = merge.lse = numbers;
    merge.part_out = numbers;
    merge.part_lse = numbers;
    merge.n_rows = 33;
    merge.n_columns = 1;
    CHECK_OK(memo_row_merge(device, NULL, &merge, &error));
    CHECK(fake_grid() == 2);
    fake_fail("kernel", 1, cudaErrorInvalidConfiguration);
    CHECK_ERROR(memo_row_merge(device, NULL, &merge, &error), DEVICE,
                "cudaLaunchKernelEx: cudaErrorInvalidConfiguration");
    memo_cuda_device_destroy(device);
}

/* Of all tests above. */
TEST(nothing_is_left) { CHECK_CASE(fake_n_objects() == 0, "%d objects left", fake_n_objects()); }

#endif
