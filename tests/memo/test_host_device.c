/* test_host_device.c - the host device: the promises of chapter 4 of memo.h for every device, and
 * of chapter 6 for this one. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include "scarce.h"
#include "signals.h"
#include "turns.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "stats.h"
#include "owned.h"
#include "orders.h"
#include "at_once.h"

#include <sys/wait.h>
#include <time.h>

#define MS          1e-3
#define MAX_STREAMS 8

/* A device with streams; most tests need no more. */
typedef struct {
    memo_device* device;
    const memo_device* d; /* the same, for calls through the table */
    void* context;
    memo_stream streams[MAX_STREAMS];
    memo_event event, other; /* not recorded yet */
} rig;

static rig rig_begin(const memo_host_device_desc* desc, int n_streams) {
    rig r = {.device = new_device(desc ? *desc : MEMO_ZERO(memo_host_device_desc))};
    r.d = r.device;
    r.context = r.device->context;
    for (int i = 0; i < n_streams; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        r.streams[i] = new_stream(r.d, name);
    }
    r.event = new_event(r.d);
    r.other = new_event(r.d);
    return r;
}

static void rig_end(rig* r) { memo_host_device_destroy(r->device); }
#define own_rig OWNED(rig_end) rig

/* --- functions for streams --- */

static memo_status set_value(void* args, memo_error* e) {
    int64_t* const* target = (int64_t* const*)args;
    (void)e;
    **target = 1;
    return MEMO_STATUS_OK;
}

static memo_status expect_value(void* args, memo_error* e) {
    int64_t* const* target = (int64_t* const*)args;
    return **target == 1 ? MEMO_STATUS_OK
                         : memo_error_set(e, MEMO_STATUS_DEVICE, "ran before what it waits for");
}

typedef struct {
    int64_t* log;
    int64_t* n_log;
    int64_t value;
} append_args;

static memo_status append(void* args, memo_error* e) {
    const append_args* a = (const append_args*)args;
    (void)e;
    a->log[(*a->n_log)++] = a->value;
    return MEMO_STATUS_OK;
}

static memo_status fail_with_message(MEMO_UNUSED void* args, memo_error* e) {
    return memo_error_set(e, MEMO_STATUS_DIVERGED, "the cat sat on layer %d", 7);
}

static memo_status fail_silently(MEMO_UNUSED void* args, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_DEVICE;
}

/* Runs until the test opens the gate, so that later operations stay in the queue. */
static memo_status pass_gate(void* args, memo_error* e) {
    int32_t* const* gate = (int32_t* const*)args;
    (void)e;
    while (!__atomic_load_n(*gate, __ATOMIC_ACQUIRE)) memob_sleep_until(memob_now_ns() + 50000);
    return MEMO_STATUS_OK;
}

/* set_value or expect_value on a stream. */
static void launch(rig* r, int stream, memo_host_function function, int64_t* value) {
    CHECK_OK(memo_host_device_launch(r->device, r->streams[stream], function, &value, sizeof value,
                                     &error));
}

static void close_with_gate(rig* r, int stream, int32_t* gate) {
    CHECK_OK(memo_host_device_launch(r->device, r->streams[stream], pass_gate, &gate, sizeof gate,
                                     &error));
}

/* --- memory --- */

TEST(memory_is_counted_and_capped) {
    int64_t free_bytes = -1, total_bytes = -1;
    void *a = NULL, *b = NULL, *c = NULL, *h = NULL;
    memo_host_device_desc desc = {.device_memory_bytes = 4096, .host_memory_bytes = 1024};
    own_rig r = rig_begin(&desc, 0);
    CHECK_OK(memo_device_alloc(r.d, 1, &a, &error));
    CHECK_OK(memo_device_alloc(r.d, 513, &b, &error));
    CHECK(a && b && (uintptr_t)a % 512 == 0 && (uintptr_t)b % 512 == 0);
    CHECK_OK(memo_memory_info(r.d, &free_bytes, &total_bytes, &error));
    CHECK(total_bytes == 4096 && free_bytes == 4096 - 1536);

    c = &r;
    CHECK_IS(memo_device_alloc(r.d, 2561, &c, &error), ==, MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    CHECK(c == NULL && error.status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    CHECK_TEXT(error.message, "2561 bytes");
    CHECK_TEXT(error.message, "2560 bytes");
    CHECK_TEXT(error.message, "4.0 KiB");
    CHECK_OK(memo_device_alloc(r.d, 2560, &c, &error));
    CHECK_OK(memo_device_free(r.d, b, &error));
    CHECK_IS(memo_device_free(r.d, b, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_device_free(r.d, (char*)c + 512, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_host_free(r.d, c, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_device_free(r.d, NULL, NULL));

    CHECK_IS(memo_host_alloc(r.d, 1025, &h, &error), ==, MEMO_STATUS_OUT_OF_HOST_MEMORY);
    CHECK_OK(memo_host_alloc(r.d, 1024, &h, &error));
    memo_host_device_stats stats = host_device_stats(r.device);
    CHECK(stats.device_bytes == 512 + 2560 && stats.device_peak_bytes == 4096);
    CHECK(stats.host_bytes == 1024 && stats.host_peak_bytes == 1024);
    CHECK_OK(memo_host_free(r.d, h, &error));
    CHECK_IS(memo_device_alloc(r.d, -1, &b, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_device_alloc(r.d, INT64_MAX, &b, &error), ==, MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    /* Nothing but c and a is left, and destroy frees them. */
}

TEST(empty_allocations_are_distinct) {
    own_rig r = rig_begin(NULL, 0);
    void* addresses[3];
    for (int i = 0; i < 3; i++) CHECK_OK(memo_device_alloc(r.d, 0, &addresses[i], &error));
    CHECK(addresses[0] && addresses[0] != addresses[1] && addresses[1] != addresses[2] &&
          addresses[0] != addresses[2]);
    for (int i = 0; i < 3; i++) CHECK_OK(memo_device_free(r.d, addresses[i], &error));
    CHECK_IS(host_device_stats(r.device).device_bytes, ==, 0);
}

TEST(many_allocations_come_and_go) {
    enum { N = 64 };
    own_rig r = rig_begin(NULL, 0);
    void* addresses[N];
    int64_t sizes[N], sum = 0, peak = 0;
    int i;
    memset(addresses, 0, sizeof addresses);
    memset(sizes, 0, sizeof sizes);
    for (int round = 0; round < 3000; round++) {
        i = (int)memo_test_int(0, N - 1);
        if (addresses[i]) {
            CHECK_OK(memo_device_free(r.d, addresses[i], &error));
            addresses[i] = NULL;
            sum -= sizes[i];
        } else {
            int64_t size = memo_test_int(0, 5000);
            CHECK_OK(memo_device_alloc(r.d, size, &addresses[i], &error));
            sizes[i] = (size + 511) / 512 * 512;
            sum += sizes[i];
            if (sum > peak) peak = sum;
        }
    }
    CHECK_IS(host_device_stats(r.device).device_bytes, ==, sum);
    CHECK_IS(host_device_stats(r.device).device_peak_bytes, ==, peak);
}

/* --- copies --- */

TEST(copies_go_both_ways) {
    enum { N = 100000 };
    own_rig r = rig_begin(NULL, 1);
    void *on_host = NULL, *on_device = NULL, *twin = NULL, *back = NULL;
    int n_wrong = 0;
    CHECK_OK(memo_host_alloc(r.d, N, &on_host, &error));
    CHECK_OK(memo_host_alloc(r.d, N, &back, &error));
    CHECK_OK(memo_device_alloc(r.d, N, &on_device, &error));
    CHECK_OK(memo_device_alloc(r.d, N, &twin, &error));
    for (int i = 0; i < N; i++) ((char*)on_host)[i] = (char)(i * 31);
    CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_DEVICE, on_device, on_host, N, &error));
    CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_ON_DEVICE, twin, on_device, N, &error));
    CHECK_OK(memo_fill(r.d, r.streams[0], twin, 0x5a, 10, &error));
    CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, back, twin, N, &error));
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    for (int i = 0; i < N; i++) n_wrong += ((char*)back)[i] != (i < 10 ? 0x5a : (char)(i * 31));
    CHECK_IS(n_wrong, ==, 0);
    memo_host_device_stats stats = host_device_stats(r.device);
    CHECK(stats.to_device_bytes == N && stats.to_host_bytes == N);
}

TEST(rows_keep_their_strides) {
    memo_host_device_desc desc = {0};
    desc.to_host_bytes_per_s = 1e9; /* slow enough to be cut into chunks */
    own_rig r = rig_begin(&desc, 1);
    for (int round = 0; round < 60; round++) {
        int64_t n_rows = memo_test_int(0, 40), row = memo_test_int(0, round % 20 ? 300 : 60000);
        int64_t to_stride = row + memo_test_int(0, 1) * memo_test_int(0, 50);
        int64_t from_stride = row + memo_test_int(0, 1) * memo_test_int(0, 50), i, k, n_wrong = 0;
        own_memory char* to = (char*)calloc((size_t)(n_rows * to_stride) + 1, 1);
        own_memory char* from = (char*)malloc((size_t)(n_rows * from_stride) + 1);
        for (i = 0; i < n_rows * from_stride; i++) from[i] = (char)(memo_test_random() | 1);
        CHECK_OK(memo_copy_rows(r.d, r.streams[0], (memo_copy_kind)(round % 3), to, to_stride, from,
                                from_stride, row, n_rows, &error));
        CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
        for (i = 0; i < n_rows; i++)
            for (k = 0; k < to_stride; k++)
                n_wrong += to[i * to_stride + k] != (k < row ? from[i * from_stride + k] : 0);
        CHECK_CASE(n_wrong == 0, "%lld bytes wrong", (long long)n_wrong);
    }
}

/* --- streams and events --- */

TEST(a_stream_keeps_order) {
    enum { N = 20000 };
    own_memory int64_t* log = (int64_t*)calloc(N, sizeof *log);
    int64_t n_log = 0, n_wrong = 0;
    memo_host_device_desc desc = {.queue_operations = 37}; /* wraps often, and is full often */
    own_rig r = rig_begin(&desc, 1);
    for (int64_t i = 0; i < N; i++) {
        append_args args = {.log = log, .n_log = &n_log, .value = i};
        CHECK_OK(
            memo_host_device_launch(r.device, r.streams[0], append, &args, sizeof args, &error));
    }
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    CHECK_IS(n_log, ==, N);
    for (int64_t i = 0; i < N; i++) n_wrong += log[i] != i;
    CHECK_IS(n_wrong, ==, 0);
}

static memo_status check_args(void* args, memo_error* e) {
    for (int i = 0; i < MEMO_HOST_ARGS_BYTES; i++)
        if (((unsigned char*)args)[i] != i % 251)
            return memo_error_set(e, MEMO_STATUS_DEVICE, "byte %d of args", i);
    return MEMO_STATUS_OK;
}

TEST(args_are_copied_at_launch) {
    own_rig r = rig_begin(NULL, 1);
    unsigned char args[MEMO_HOST_ARGS_BYTES];
    int32_t gate = 0;
    for (int i = 0; i < MEMO_HOST_ARGS_BYTES; i++) args[i] = (unsigned char)(i % 251);
    close_with_gate(&r, 0, &gate);
    CHECK_OK(
        memo_host_device_launch(r.device, r.streams[0], check_args, args, sizeof args, &error));
    memset(args, 0, sizeof args);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
}

static void wait_for_a_stream(MEMO_UNUSED int argument) {
    own_rig r = rig_begin(NULL, 2);
    int64_t value = 0;
    CHECK_OK(memo_host_device_sleep(r.device, r.streams[0], 20 * MS, &error));
    launch(&r, 0, set_value, &value);
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[1], &error));
    launch(&r, 1, expect_value, &value);
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[1], &error));
    CHECK_IS(value, ==, 1);
}
TEST(a_wait_orders_two_streams) { in_orders(wait_for_a_stream, 0); }

TEST(an_event_never_recorded_holds_nobody) {
    own_rig r = rig_begin(NULL, 1);
    int32_t is_done = 0;
    double elapsed_s;
    CHECK_OK(memo_event_query(r.d, r.event, &is_done, &error));
    CHECK_IS(is_done, ==, 1);
    CHECK_OK(memo_event_synchronize(r.d, r.event, &error));
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    CHECK_FAILS(memo_event_elapsed(r.d, r.event, r.event, &elapsed_s, &error), INVALID_STATE);
}

/* A wait refers to the latest record before it; later records, on any stream, do not matter. */
TEST(a_wait_means_the_record_before_it) {
    own_rig r = rig_begin(NULL, 4);
    int32_t gate0 = 0, gate1 = 0, is_done = -1;

    /* A later record that is not reached does not hold an earlier wait. */
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[2], &error));
    close_with_gate(&r, 0, &gate0);
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[2], &error));
    CHECK_OK(memo_event_query(r.d, r.event, &is_done, &error));
    CHECK_IS(is_done, ==, 0);

    /* A later record on another stream, reached first, does not satisfy it. */
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[2], &error));
    CHECK_OK(memo_event_record(r.d, r.other, r.streams[2], &error));
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[1], &error));
    CHECK_OK(memo_event_synchronize(r.d, r.event, &error));
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[3], &error));
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[3], &error));
    CHECK_OK(memo_event_query(r.d, r.other, &is_done, &error));
    CHECK_IS(is_done, ==, 0);
    __atomic_store_n(&gate0, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_event_synchronize(r.d, r.other, &error));

    /* Recorded again on an earlier stream: the latest record counts. */
    close_with_gate(&r, 0, &gate1);
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_event_query(r.d, r.event, &is_done, &error));
    CHECK_IS(is_done, ==, 0);
    __atomic_store_n(&gate1, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_event_synchronize(r.d, r.event, &error));
    CHECK_OK(memo_event_query(r.d, r.event, &is_done, &error));
    CHECK_IS(is_done, ==, 1);
}

TEST(a_destroyed_event_still_orders) {
    own_rig r = rig_begin(NULL, 2);
    int64_t value = 0;
    int32_t gate = 0, is_done = -1;
    close_with_gate(&r, 0, &gate);
    launch(&r, 0, set_value, &value);
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[1], &error));
    launch(&r, 1, expect_value, &value);
    CHECK_OK(memo_event_destroy(r.d, r.event, &error));
    CHECK_IS(memo_event_record(r.d, r.event, r.streams[0], &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    memo_event next = new_event(r.d);
    CHECK_OK(memo_event_query(r.d, next, &is_done, &error));
    CHECK_IS(is_done, ==, 1); /* new, though it may be the old one's place */
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[1], &error));
}

/* Tests of time run in turns, so that no result depends on the machine, and by its clock, where
 * only lower bounds hold.  A thread may come hundreds of turns late. */
static void in_time(void (*test)(int argument), int64_t tick_ns) {
    test(0);
    in_timed_orders(test, 0, tick_ns);
}
static double at_most(double s) { return turns_state.is_on ? s : HUGE_VAL; }

static void pass_time(MEMO_UNUSED int argument) {
    own_rig r = rig_begin(NULL, 1);
    int32_t gate = 0;
    double elapsed_s = -1;
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    close_with_gate(&r, 0, &gate);
    CHECK_OK(memo_host_device_sleep(r.device, r.streams[0], 20 * MS, &error));
    CHECK_OK(memo_event_record(r.d, r.other, r.streams[0], &error));
    CHECK_IS(memo_event_elapsed(r.d, r.event, r.other, &elapsed_s, &error), ==,
             MEMO_STATUS_INVALID_STATE);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CHECK_OK(memo_event_synchronize(r.d, r.other, &error));
    CHECK_OK(memo_event_elapsed(r.d, r.event, r.other, &elapsed_s, &error));
    CHECK_CASE(elapsed_s >= 20 * MS && elapsed_s < at_most(22 * MS), "%g s", elapsed_s);
    CHECK_OK(memo_event_elapsed(r.d, r.other, r.event, &elapsed_s, &error));
    CHECK_IS(elapsed_s, <=, -20 * MS);
}
TEST(time_passes_between_events) { in_time(pass_time, 2000); }

static void fill_a_queue(MEMO_UNUSED int argument) {
    for (int64_t capacity = 1; capacity <= 3; capacity++) {
        double start_s = now_s();
        memo_host_device_desc desc = {.queue_operations = capacity};
        rig r = rig_begin(&desc, 1);
        for (int64_t i = 0; i < 8; i++)
            CHECK_OK(memo_host_device_sleep(r.device, r.streams[0], 1 * MS, &error));
        CHECK_IS(now_s() - start_s, >=, (double)(8 - capacity) * MS);
        rig_end(&r); /* also if the queue is full */
        CHECK_IS(now_s() - start_s, >=, 8 * MS);
        CHECK_IS(now_s() - start_s, <, at_most(10 * MS));
    }
}
TEST(a_full_queue_holds_the_caller) { in_time(fill_a_queue, 1000); }

/* Args whose first numbers are their size and the operation's number; every byte counts. */
static int64_t n_sized;
static memo_status check_size(void* args, memo_error* e) {
    const int64_t* head = (const int64_t*)args;
    for (int64_t i = 16; i < head[0]; i++)
        if (((unsigned char*)args)[i] != (head[1] * 7 + i) % 251)
            return memo_error_set(e, MEMO_STATUS_DEVICE, "byte %lld of args", (long long)i);
    return head[1] == n_sized++ ? MEMO_STATUS_OK
                                : memo_error_set(e, MEMO_STATUS_DEVICE, "out of order");
}
static void launch_size(rig* r, int64_t number, int64_t n_bytes) {
    union {
        int64_t head[2];
        unsigned char bytes[MEMO_HOST_ARGS_BYTES];
    } args;
    for (int64_t i = 16; i < n_bytes; i++) args.bytes[i] = (unsigned char)((number * 7 + i) % 251);
    args.head[0] = n_bytes;
    args.head[1] = number;
    CHECK_OK(memo_host_device_launch(r->device, r->streams[0], check_size, &args, n_bytes, &error));
}

/* Operations of all sizes go round the queue, also if one takes more than all its places. */
static void launch_all_sizes(int queue_operations) {
    memo_host_device_desc desc = {.queue_operations = queue_operations};
    own_rig r = rig_begin(&desc, 1);
    const int64_t n_mallocs = mallocs_done;
    n_sized = 0;
    for (int k = 0; k < 60; k++)
        launch_size(&r, k, memo_test_int(0, 3) ? memo_test_int(16, MEMO_HOST_ARGS_BYTES) : 16);
    if (memo_test_int(0, 1)) CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    CHECK_IS(mallocs_done, ==, n_mallocs);
}
TEST(operations_of_all_sizes_go_round_the_queue) {
    static const int capacities[] = {1, 2, 6, 7, 8, 9, 13, 20};
    for (int k = 0; k < 8; k++) in_orders(launch_all_sizes, capacities[k]);
    CHECK_IS(n_sized, ==, 60);
}

/* A queue is full when all its places are taken, not earlier: this test ends.  Then it still takes
 * the end of its stream. */
TEST(a_queue_has_its_places) {
    for (int round = 0; round < 30; round++) {
        const int64_t capacity = round ? memo_test_int(8, 60) : 1024;
        memo_host_device_desc desc = {.queue_operations = round ? capacity : 0};
        own_rig r = rig_begin(&desc, 1);
        int64_t n_left = memo_test_int(1, 30), number = 0;
        int32_t gate = 0;
        n_sized = 0;
        for (; n_left > 0; n_left--) launch_size(&r, number++, memo_test_int(16, 640));
        CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
        close_with_gate(&r, 0, &gate);
        for (n_left = capacity - 1; n_left > 0;) {
            const int64_t n = memo_test_int(1, n_left < 7 ? n_left : 7);
            launch_size(&r, number++, memo_test_int(n > 1 ? 96 * n - 127 : 16, 96 * n - 32));
            n_left -= n;
        }
        CHECK_IS(n_sized, <, number);
        __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
        if (round % 2) CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    }
}

TEST(a_stream_takes_little_memory) {
    own_rig r = rig_begin(NULL, 0);
    const int64_t n_bytes = mallocs_bytes;
    r.streams[0] = new_stream(r.d, "s");
    CHECK_CASE(mallocs_bytes - n_bytes < 112 << 10, "%lld bytes",
               (long long)(mallocs_bytes - n_bytes));
}

TEST(many_short_streams) {
    own_rig r = rig_begin(NULL, 1);
    int64_t value = 0;
    int64_t* target = &value;
    for (int64_t i = 0; i < 100; i++) {
        memo_stream stream = NULL;
        char name[64];
        value = 0;
        snprintf(name, sizeof name, "short stream %lld with a long name", (long long)i);
        CHECK_OK(memo_stream_create(r.d, i % 3 ? name : NULL, (int32_t)i, &stream, &error));
        CHECK_OK(
            memo_host_device_launch(r.device, stream, set_value, &target, sizeof target, &error));
        CHECK_OK(memo_event_record(r.d, r.event, stream, &error));
        CHECK_OK(memo_event_wait(r.d, r.event, r.streams[0], &error));
        launch(&r, 0, expect_value, &value);
        if (i % 10) { /* some are left to the device */
            CHECK_OK(memo_stream_destroy(r.d, stream, &error));
            CHECK_IS(value, ==, 1);
            CHECK_FAILS(memo_stream_synchronize(r.d, stream, &error), INVALID_ARGUMENT);
        }
        CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    }
}

/* --- errors --- */

TEST(a_failure_surfaces_and_nothing_hangs) {
    own_rig r = rig_begin(NULL, 3);
    memo_event unused;
    memo_stream stream;
    void* memory = NULL;
    int64_t value = 0;
    int64_t* target = &value;
    int32_t gate = 0, is_done = 0;
    int64_t a, b;
    double elapsed_s;
    CHECK_OK(memo_device_status(r.d, &error));
    close_with_gate(&r, 0, &gate);
    CHECK_OK(memo_host_device_launch(r.device, r.streams[0], fail_with_message, NULL, 0, &error));
    launch(&r, 0, set_value, &value);
    CHECK_OK(memo_host_device_sleep(r.device, r.streams[0], 1000, &error));
    CHECK_OK(memo_event_record(r.d, r.event, r.streams[0], &error));
    CHECK_OK(memo_event_wait(r.d, r.event, r.streams[1], &error));
    CHECK_OK(memo_host_device_launch(r.device, r.streams[1], fail_silently, NULL, 0, &error));
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CHECK_IS(memo_stream_synchronize(r.d, r.streams[1], &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_CASE(strcmp(error.message, "stream s0: the cat sat on layer 7") == 0, "%s",
               error.message);
    CHECK_IS(error.status, ==, MEMO_STATUS_DIVERGED);
    CHECK_IS(memo_stream_synchronize(r.d, r.streams[0], NULL), ==, MEMO_STATUS_DIVERGED);
    CHECK_IS(value, ==, 0);

    /* Everything says so from now on, */
    CHECK_IS(memo_device_status(r.d, &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_IS(memo_event_synchronize(r.d, r.event, &error), ==, MEMO_STATUS_DIVERGED);
    CHECK(memo_event_query(r.d, r.event, &is_done, &error) == MEMO_STATUS_DIVERGED && is_done);
    CHECK_IS(memo_event_elapsed(r.d, r.event, r.event, &elapsed_s, &error), ==,
             MEMO_STATUS_DIVERGED);
    CHECK_IS(memo_event_record(r.d, r.event, r.streams[2], &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_IS(memo_event_wait(r.d, r.event, r.streams[2], &error), ==, MEMO_STATUS_DIVERGED);
    CHECK(memo_event_create(r.d, &unused, &error) == MEMO_STATUS_DIVERGED && !unused);
    CHECK(memo_stream_create(r.d, "x", 0, &stream, &error) == MEMO_STATUS_DIVERGED && !stream);
    CHECK_IS(memo_fill(r.d, r.streams[2], &a, 0, 8, &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_FAILS(memo_copy(r.d, r.streams[2], MEMO_COPY_TO_HOST, &a, &b, 8, &error), DIVERGED);
    CHECK_IS(memo_memory_info(r.d, &a, &b, &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_IS(memo_host_device_sleep(r.device, r.streams[2], 0, &error), ==, MEMO_STATUS_DIVERGED);
    CHECK_FAILS(
        memo_host_device_launch(r.device, r.streams[2], set_value, &target, sizeof target, &error),
        DIVERGED);
    /* except calls that clean up. */
    CHECK_OK(memo_device_alloc(r.d, 100, &memory, &error));
    CHECK_OK(memo_device_free(r.d, memory, &error));
    CHECK_OK(memo_event_destroy(r.d, r.event, &error));
    CHECK_OK(memo_stream_destroy(r.d, r.streams[0], &error));
}

/* Synchronizing any stream that failed returns an error, in any order of failures. */
TEST(several_streams_fail_at_once) {
    for (int round = 0; round < 20; round++) {
        own_rig r = rig_begin(NULL, 3);
        int32_t gate = 0;
        for (int i = 0; i < 3; i++) close_with_gate(&r, i, &gate);
        for (int i = 0; i < 3; i++)
            CHECK_OK(
                memo_host_device_launch(r.device, r.streams[i], fail_silently, NULL, 0, &error));
        __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
        for (int i = 2; i >= 0; i--)
            CHECK_ERROR(memo_stream_synchronize(r.d, r.streams[i], &error), DEVICE, "device error");
    }
}

/* All calls that request bookkeeping memory. */
static memo_status build_something(memo_error* e) {
    memo_host_device_desc desc = {0};
    memo_device* device = NULL; /* its memory goes with it */
    memo_stream streams[2];
    memo_event event;
    void* address;
    memo_status status = memo_host_device_create(&desc, &device, e);
    if (status) return status;
    if ((status = memo_stream_create(device, "a", 0, &streams[0], e)) == 0 &&
        (status = memo_stream_create(device, "b", 0, &streams[1], e)) == 0 &&
        (status = memo_event_create(device, &event, e)) == 0 &&
        (status = memo_event_record(device, event, streams[0], e)) == 0 &&
        (status = memo_event_record(device, event, streams[1], e)) == 0)
        status = memo_device_alloc(device, 100, &address, e);
    memo_host_device_destroy(device);
    return status;
}

TEST(running_out_of_bookkeeping_memory) {
    memo_status status = MEMO_STATUS_OK;
    refusal r = {0};
    while (next_refusal(&r, status)) status = build_something(&error);
    CHECK_CASE(r.n_failed > 5 && r.n_failed < 50, "%lld requests", (long long)r.n_failed);
}

/* Positions and generations exceed 2^32 on a long-lived stream. */
TEST(counters_wrap) {
    uint32_t counter = 0xfffffffcu;
    CHECK(memob_counter_reached(&counter, 0xfffffffcu));
    CHECK(memob_counter_reached(&counter, 0xfffffff0u));
    CHECK(!memob_counter_reached(&counter, 0xfffffffeu));
    CHECK(!memob_counter_reached(&counter, 2));
    memob_counter_set(&counter, 2);
    CHECK(memob_counter_reached(&counter, 0xfffffffeu));
    CHECK(memob_counter_reached(&counter, 2));
    counter |= 1; /* somebody sleeps: the same count */
    CHECK(memob_counter_reached(&counter, 2));
    CHECK(!memob_counter_reached(&counter, 4));
}

/* Touches n pieces of 64 KiB of its stack; returns n. */
static int64_t touch_stack(int64_t n) {
    volatile char piece[1 << 16];
    for (size_t i = 0; i < sizeof piece; i += 4096) piece[i] = 1;
    return n ? touch_stack(n - 1) + piece[4096] : 0;
}
static memo_status touch_mib(void* args, memo_error* e) {
    const int64_t n = *(int64_t*)args * 16;
    return touch_stack(n) == n ? MEMO_STATUS_OK : memo_error_set(e, MEMO_STATUS_DEVICE, "stack");
}

/* The system's default, set here to 128 KiB, is not what a stream gets. */
TEST(functions_have_the_stack_of_the_desc) {
    const memo_host_device_desc huge = {.stack_bytes = MEMOB_BYTES_MAX};
    const memo_host_device_desc descs[] = {{0}, {.stack_bytes = (44 << 20) - 12345}};
    const int64_t touched_mib[] = {7, 40};
    memo_stream stream;
#if defined(__linux__)
    pthread_attr_t before, small;
    CHECK(!pthread_getattr_default_np(&before) && !pthread_attr_init(&small));
    CHECK(!pthread_attr_setstacksize(&small, 128 << 10) && !pthread_setattr_default_np(&small));
#endif
    for (int i = 0; i < 2; i++) {
        own_rig r = rig_begin(&descs[i], 1);
        CHECK_OK(memo_host_device_launch(r.device, r.streams[0], touch_mib, &touched_mib[i],
                                         sizeof touched_mib[i], &error));
        CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    }
#if defined(__linux__)
    CHECK(!pthread_setattr_default_np(&before));
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&small);
#endif

    own_rig none = rig_begin(&huge, 0);
    CHECK(memo_stream_create(none.d, "huge", 0, &stream, &error) == MEMO_STATUS_OUT_OF_HOST_MEMORY);
    CHECK(!stream && strstr(error.message, "stack_bytes"));
}

TEST(streams_take_no_signals) {
    own_rig r = rig_begin(NULL, 0);
    CHECK_SIGNALS(2, for (int k = 0; k < 2; k++) r.streams[k] = new_stream(r.d, "s"));
}

/* A signal that a program blocks after its streams exist waits for the program.  The program is the
 * child of one with streams, and makes its own. */
TEST(a_program_takes_its_signals_itself) {
#ifdef MEMO_TEST_TSAN /* which allows no threads in such a child */
    own_rig parent = rig_begin(NULL, 0);
#else
    own_rig parent = rig_begin(NULL, 1);
#endif
    int result = -1;
    pid_t child = fork();
    if (child == 0) {
        own_rig r = rig_begin(NULL, 2);
        int64_t value = 0;
        sigset_t set;
        launch(&r, 0, set_value, &value);
        CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        kill(getpid(), SIGTERM);
        _exit(sigwait(&set, &result) || result != SIGTERM || value != 1);
    }
    CHECK(child > 0 && waitpid(child, &result, 0) == child);
    CHECK_CASE(WIFEXITED(result) && WEXITSTATUS(result) == 0, "status %d", result);
}

TEST(arguments_are_checked) {
    const memo_host_device_desc bad[] = {{.device_memory_bytes = -1},
                                         {.to_host_bytes_per_s = -1},
                                         {.to_device_bytes_per_s = memo_test_nan()},
                                         {.queue_operations = -1},
                                         {.stack_bytes = -1}};
    own_rig r = rig_begin(NULL, 1);
    own_rig other = rig_begin(NULL, 1);
    memo_device* device;
    uint64_t no_context[8];
    char bytes[16];
    int32_t is_done;
    memset(no_context, 0, sizeof no_context);
#define INVALID(call) CHECK((call) == MEMO_STATUS_INVALID_ARGUMENT)
    for (int i = 0; i < 5; i++) {
        INVALID(memo_host_device_create(&bad[i], &device, &error));
        CHECK(device == NULL);
    }
    INVALID(memo_host_device_create(NULL, &device, &error));

    memo_device foreign = {0};
    INVALID(memo_host_device_launch(&foreign, r.streams[0], set_value, NULL, 0, &error));
    foreign.context = no_context;
    INVALID(memo_host_device_launch(&foreign, r.streams[0], set_value, NULL, 0, &error));
    INVALID(memo_host_device_sleep(&foreign, r.streams[0], 0, &error));
    CHECK_IS(host_device_stats(&foreign).device_bytes, ==, 0);
    memo_host_device_destroy(&foreign);
    memo_host_device_destroy(NULL);

    INVALID(memo_host_device_launch(r.device, NULL, set_value, NULL, 0, &error));
    INVALID(memo_host_device_launch(r.device, other.streams[0], set_value, NULL, 0, &error));
    INVALID(memo_host_device_launch(r.device, r.streams[0], NULL, NULL, 0, &error));
    INVALID(memo_host_device_launch(r.device, r.streams[0], set_value, NULL, 8, &error));
    INVALID(memo_host_device_launch(r.device, r.streams[0], set_value, bytes, -1, &error));
    INVALID(memo_host_device_launch(r.device, r.streams[0], set_value, bytes,
                                    MEMO_HOST_ARGS_BYTES + 1, &error));
    INVALID(memo_host_device_sleep(r.device, r.streams[0], -1, &error));
    INVALID(memo_host_device_sleep(r.device, r.streams[0], memo_test_nan(), &error));
    INVALID(memo_event_record(r.d, NULL, r.streams[0], &error));
    INVALID(memo_event_record(r.d, r.event, NULL, &error));
    INVALID(memo_event_record(r.d, other.event, r.streams[0], &error));
    CHECK_OK(memo_event_wait(r.d, other.event, r.streams[0], &error)); /* as in CUDA */
    INVALID(memo_event_wait(r.d, r.event, other.streams[0], &error));
    INVALID(memo_event_query(r.d, other.event, &is_done, &error));
    INVALID(memo_stream_synchronize(r.d, other.streams[0], &error));
    INVALID(memo_stream_destroy(r.d, other.streams[0], &error));
    INVALID(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, bytes, NULL, 1, &error));
    INVALID(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, bytes, bytes + 8, -1, &error));
    INVALID(memo_copy(r.d, r.streams[0], (memo_copy_kind)3, bytes, bytes + 8, 1, &error));
    INVALID(
        memo_copy_rows(r.d, r.streams[0], MEMO_COPY_TO_HOST, bytes, 2, bytes + 8, 4, 4, 2, &error));
    INVALID(memo_copy_rows(r.d, r.streams[0], MEMO_COPY_TO_HOST, bytes, INT64_MAX, bytes, INT64_MAX,
                           INT64_MAX, 3, &error));
    INVALID(memo_fill(r.d, r.streams[0], NULL, 0, 1, &error));
    INVALID(memo_fill(r.d, r.streams[0], bytes, 0, -1, &error));
#undef INVALID
    /* None of it made the device fail, and nothing at all is fine. */
    CHECK_OK(memo_fill(r.d, r.streams[0], NULL, 0, 0, &error));
    CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, NULL, NULL, 0, &error));
    CHECK_OK(memo_stream_destroy(r.d, NULL, &error));
    CHECK_OK(memo_event_destroy(r.d, NULL, &error));
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    CHECK(r.d->struct_bytes == (int64_t)sizeof(memo_device) && strcmp(r.d->name, "host") == 0);
    CHECK(r.d->annotate == NULL);
}

/* --- time --- */

/* Time from the start until stream is done. */
static double finish(rig* r, double start_s, int stream) {
    CHECK_OK(memo_stream_synchronize(r->d, r->streams[stream], &error));
    return now_s() - start_s;
}

static void sleep_on_streams(MEMO_UNUSED int argument) {
    own_rig r = rig_begin(NULL, 8);
    double elapsed_s;
    double start_s = now_s();
    for (int i = 0; i < 8; i++) {
        CHECK_OK(memo_host_device_sleep(r.device, r.streams[i], 3 * MS, &error));
        CHECK_OK(memo_host_device_sleep(r.device, r.streams[i], 1 * MS, &error));
    }
    for (int i = 0; i < 8; i++) elapsed_s = finish(&r, start_s, i);
    CHECK_CASE(elapsed_s >= 4 * MS && elapsed_s < at_most(14 * MS), "%g s", elapsed_s);
}
TEST(sleeps_overlap_on_streams) { in_time(sleep_on_streams, 1000); }

static void copy_for_a_time(MEMO_UNUSED int argument) {
    enum { N = 400000 };
    own_memory char* a = (char*)calloc(N, 1);
    own_memory char* b = (char*)calloc(N, 1);
    own_memory char* c = (char*)calloc(N, 1);
    memo_host_device_desc desc = {.to_host_bytes_per_s = 100e6,
                                  .to_device_bytes_per_s = 50e6}; /* 4 ms */
    own_rig r = rig_begin(&desc, 3);
    double start_s = now_s();
    CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, a, b, N, &error));
    double elapsed_s = finish(&r, start_s, 0);
    CHECK_CASE(elapsed_s >= 4 * MS && elapsed_s < at_most(4.4 * MS), "to host: %g s", elapsed_s);

    start_s = now_s();
    CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_DEVICE, b, a, N, &error));
    elapsed_s = finish(&r, start_s, 0);
    CHECK_CASE(elapsed_s >= 8 * MS && elapsed_s < at_most(8.8 * MS), "to device: %g s", elapsed_s);

    /* Rows cost their own bytes, not their strides'. */
    start_s = now_s();
    CHECK_OK(
        memo_copy_rows(r.d, r.streams[0], MEMO_COPY_TO_HOST, a, 4000, b, 4000, 1000, 100, &error));
    elapsed_s = finish(&r, start_s, 0);
    CHECK_CASE(elapsed_s >= 1 * MS && elapsed_s < at_most(1.5 * MS), "rows: %g s", elapsed_s);

    /* Two streams in one direction share it: a copy by the rate takes 8 ms for both.  A thread that
     * wakes up late shares for less. */
    int n_tries = 0;
    for (elapsed_s = 0; elapsed_s < 7 * MS && n_tries < 20; n_tries++) {
        start_s = now_s();
        CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, a, b, N, &error));
        CHECK_OK(memo_copy(r.d, r.streams[1], MEMO_COPY_TO_HOST, c, b, N, &error));
        finish(&r, start_s, 0);
        elapsed_s = finish(&r, start_s, 1);
    }
    CHECK_CASE(elapsed_s >= 7 * MS && elapsed_s < at_most(8.8 * MS), "shared: %g s", elapsed_s);
    CHECK_IS(host_device_stats(r.device).to_host_bytes, ==,
             (1 + 2 * n_tries) * (int64_t)N + 100000);
}
TEST(copies_take_their_time) { in_time(copy_for_a_time, 1000); }

/* Copies and sleeps in a row take the sum of their times, however late threads wake up: each here
 * may be shorter than a thread is late. */
static void run_short_operations(MEMO_UNUSED int argument) {
    enum { N_COPIES = 20, N_BYTES = 5000, N_SLEEPS = 20 };
    memo_event events[3];
    double copies_s, sleeps_s;
    own_memory char* a = (char*)calloc(N_BYTES, 1);
    own_memory char* b = (char*)calloc(N_BYTES, 1);
    memo_host_device_desc desc = {.to_host_bytes_per_s = 100e6}; /* 50 us a copy */
    own_rig r = rig_begin(&desc, 1);
    for (int i = 0; i < 3; i++) CHECK_OK(memo_event_create(r.d, &events[i], &error));

    CHECK_OK(memo_event_record(r.d, events[0], r.streams[0], &error));
    for (int i = 0; i < N_COPIES; i++)
        CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, a, b, N_BYTES, &error));
    CHECK_OK(memo_event_record(r.d, events[1], r.streams[0], &error));
    for (int i = 0; i < N_SLEEPS; i++)
        CHECK_OK(memo_host_device_sleep(r.device, r.streams[0], 20e-6, &error));
    CHECK_OK(memo_event_record(r.d, events[2], r.streams[0], &error));
    CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
    CHECK_OK(memo_event_elapsed(r.d, events[0], events[1], &copies_s, &error));
    CHECK_OK(memo_event_elapsed(r.d, events[1], events[2], &sleeps_s, &error));
    CHECK_CASE(copies_s >= 1 * MS * 0.999 && copies_s < at_most(1.2 * MS), "%g s", copies_s);
    CHECK_CASE(sleeps_s >= 0.4 * MS * 0.999 && sleeps_s < at_most(0.6 * MS), "%g s", sleeps_s);
    for (int i = 0; i < 3; i++) CHECK_OK(memo_event_destroy(r.d, events[i], &error));
}
TEST(short_operations_in_a_row_take_their_sum) { in_time(run_short_operations, 100); }

/* A stream that had nothing to do gains no time: its next copy takes as long as any. */
TEST(an_idle_stream_saves_no_time) {
    enum { N = 500000 };
    own_memory char* a = (char*)calloc(N, 1);
    own_memory char* b = (char*)calloc(N, 1);
    memo_host_device_desc desc = {.to_host_bytes_per_s = 50e6}; /* 10 ms */
    own_rig r = rig_begin(&desc, 2);
    for (int i = 0; i < 3; i++) {
        memob_sleep_until(memob_now_ns() + 20000000);
        const double start_s = now_s();
        CHECK_OK(memo_copy(r.d, r.streams[0], MEMO_COPY_TO_HOST, a, b, N, &error));
        CHECK_OK(memo_stream_synchronize(r.d, r.streams[0], &error));
        CHECK_CASE(now_s() - start_s >= 10 * MS, "copy %d: %g s", i, now_s() - start_s);
    }
}

/* --- several devices --- */

TEST(devices_do_not_know_each_other) {
    rig a = rig_begin(NULL, 2), b = rig_begin(NULL, 2);
    void* memory = NULL;
    int64_t value = 0;
    CHECK_OK(memo_host_device_launch(a.device, a.streams[0], fail_silently, NULL, 0, &error));
    CHECK_IS(memo_stream_synchronize(a.d, a.streams[0], &error), ==, MEMO_STATUS_DEVICE);
    launch(&b, 0, set_value, &value);
    CHECK_OK(memo_stream_synchronize(b.d, b.streams[0], &error));
    CHECK_IS(value, ==, 1);
    CHECK_OK(memo_device_alloc(a.d, 512, &memory, &error));
    CHECK_IS(memo_device_free(b.d, memory, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(host_device_stats(b.device).device_bytes, ==, 0);
    rig_end(&a);
    launch(&b, 1, set_value, &value);
    CHECK_OK(memo_stream_synchronize(b.d, b.streams[1], &error));
    rig_end(&b);
}

/* --- random work ---
 *
 * Cells hold versions.  Each operation checks the versions that it reads and writes a new one, so
 * that the values show an operation that runs too early or too late, and a race detector finds it
 * in any case.  The clock of a stream counts, for every stream, the operations that precede its
 * next one.  A wait is enqueued if an operation needs one that the clock lacks, and sometimes
 * without need. */

enum { N_STREAMS = 4, N_CELLS = 10, N_EVENTS = 3, N_WORDS = 24, MAX_READS = 3 };

typedef struct {
    int64_t words[N_WORDS];
} cell;

typedef struct {
    const cell* reads[MAX_READS];
    int64_t versions[MAX_READS];
    cell* write;
    int64_t version;
    int32_t n_reads;
    int32_t nap_us;
} work;

static memo_status do_work(void* args, memo_error* e) {
    const work* w = (const work*)args;
    if (w->nap_us) memob_sleep_until(memob_now_ns() + 1000 * w->nap_us);
    for (int i = 0; i < w->n_reads; i++)
        for (int k = 0; k < N_WORDS; k++)
            if (w->reads[i]->words[k] != w->versions[i])
                return memo_error_set(e, MEMO_STATUS_DEVICE, "version %lld where %lld was due",
                                      (long long)w->reads[i]->words[k], (long long)w->versions[i]);
    for (int k = 0; k < N_WORDS; k++) w->write->words[k] = w->version;
    return MEMO_STATUS_OK;
}

typedef struct {
    int64_t of[N_STREAMS];
} vector_clock;

static void join(vector_clock* into, const vector_clock* from) {
    for (int i = 0; i < N_STREAMS; i++)
        if (from->of[i] > into->of[i]) into->of[i] = from->of[i];
}

typedef struct {
    rig r;
    memo_event events[N_EVENTS];
    int32_t recorded[N_EVENTS];
    vector_clock at_record[N_EVENTS], knows[N_STREAMS];
} world;

static void record(world* w, int event, int stream) {
    CHECK_OK(w->r.d->event_record(w->r.context, w->events[event], w->r.streams[stream], &error));
    w->recorded[event] = 1;
    w->at_record[event] = w->knows[stream];
}

static void wait_for(world* w, int event, int stream) {
    CHECK_OK(w->r.d->event_wait(w->r.context, w->events[event], w->r.streams[stream], &error));
    if (w->recorded[event]) join(&w->knows[stream], &w->at_record[event]);
}

/* stream must come after operation number n of another. */
static void need(world* w, int stream, int other, int64_t n) {
    int event;
    if (w->knows[stream].of[other] >= n) return;
    for (event = 0; event < N_EVENTS; event++)
        if (w->recorded[event] && w->at_record[event].of[other] >= n && memo_test_int(0, 3)) break;
    if (event == N_EVENTS) {
        event = (int)memo_test_int(0, N_EVENTS - 1);
        record(w, event, other);
    }
    wait_for(w, event, stream);
}

/* is_held: everything is enqueued before anything runs. */
static void random_work(int64_t n_operations, int64_t queue_operations, int32_t is_held) {
    cell cells[N_CELLS];
    int64_t version[N_CELLS], last_write[N_CELLS], last_read[N_CELLS][N_STREAMS], n;
    int writer[N_CELLS], i, k;
    int32_t gate = !is_held;
    memset(cells, 0, sizeof cells);
    memset(version, 0, sizeof version);
    memset(writer, 0, sizeof writer);
    memset(last_write, 0, sizeof last_write);
    memset(last_read, 0, sizeof last_read);
    memo_host_device_desc desc = {.queue_operations = queue_operations};
    world w = {.r = rig_begin(&desc, N_STREAMS)};
    for (i = 0; i < N_STREAMS && is_held; i++) close_with_gate(&w.r, i, &gate);
    for (i = 0; i < N_EVENTS; i++) CHECK_OK(w.r.d->event_create(w.r.context, &w.events[i], &error));
    for (n = 1; n <= n_operations; n++) {
        int s = (int)memo_test_int(0, N_STREAMS - 1), target = (int)memo_test_int(0, N_CELLS - 1);
        int is_copy = memo_test_int(0, 4) == 0;
        int reads[MAX_READS];
        work args = {.n_reads = is_copy ? 1 : (int32_t)memo_test_int(0, MAX_READS)};
        for (i = 0; i < args.n_reads; i++) {
            do reads[i] = (int)memo_test_int(0, N_CELLS - 1);
            while (is_copy && reads[i] == target);
            need(&w, s, writer[reads[i]], last_write[reads[i]]);
            args.reads[i] = &cells[reads[i]];
            args.versions[i] = version[reads[i]];
        }
        need(&w, s, writer[target], last_write[target]);
        for (k = 0; k < N_STREAMS; k++) need(&w, s, k, last_read[target][k]);
        if (is_copy) {
            version[target] = version[reads[0]];
            CHECK_OK(w.r.d->copy(w.r.context, w.r.streams[s], (memo_copy_kind)memo_test_int(0, 2),
                                 &cells[target], &cells[reads[0]], sizeof(cell), &error));
        } else {
            version[target] = args.version = n;
            args.write = &cells[target];
            args.nap_us = memo_test_int(0, 15) ? 0 : (int32_t)memo_test_int(1, 60);
            CHECK_OK(memo_host_device_launch(w.r.device, w.r.streams[s], do_work, &args,
                                             sizeof args, &error));
        }
        w.knows[s].of[s] = n; /* n grows on every stream, so it serves as each stream's own count */
        writer[target] = s;
        last_write[target] = n;
        for (k = 0; k < N_STREAMS; k++) last_read[target][k] = 0;
        for (i = 0; i < args.n_reads; i++) last_read[reads[i]][s] = n;

        if (memo_test_int(0, 9) == 0)
            record(&w, (int)memo_test_int(0, N_EVENTS - 1), (int)memo_test_int(0, N_STREAMS - 1));
        if (memo_test_int(0, 19) == 0)
            wait_for(&w, (int)memo_test_int(0, N_EVENTS - 1), (int)memo_test_int(0, N_STREAMS - 1));
        if (!is_held && memo_test_int(0, 199) == 0) {
            int event = (int)memo_test_int(0, N_EVENTS - 1);
            int32_t is_done = 0;
            CHECK_OK(w.r.d->event_synchronize(w.r.context, w.events[event], &error));
            CHECK_OK(w.r.d->event_query(w.r.context, w.events[event], &is_done, &error));
            CHECK_IS(is_done, ==, 1);
        }
        if (memo_test_int(0, 49) == 0) { /* its place may serve the next one at once */
            int event = (int)memo_test_int(0, N_EVENTS - 1);
            CHECK_OK(w.r.d->event_destroy(w.r.context, w.events[event], &error));
            CHECK_OK(w.r.d->event_create(w.r.context, &w.events[event], &error));
            w.recorded[event] = 0;
        }
    }
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    for (i = 0; i < N_STREAMS; i++)
        CHECK_OK(w.r.d->stream_synchronize(w.r.context, w.r.streams[i], &error));
    for (i = 0; i < N_CELLS; i++)
        for (k = 0; k < N_WORDS; k++) CHECK_IS(cells[i].words[k], ==, version[i]);
    rig_end(&w.r);
}

TEST(random_work_keeps_order) {
    for (int round = 0; round < 8; round++)
        random_work(1500, round % 2 ? 0 : memo_test_int(1, 40), 0);
}

TEST(random_work_keeps_order_when_held) {
    for (int round = 0; round < 8; round++) random_work(500, 0, 1);
}

/* Functions of the host device refuse the device of somebody else. */
TEST(another_device_is_refused) {
    static uint64_t own[512];
    own_rig r = rig_begin(NULL, 1);
    memo_device other = *r.device;
    other.context = own;
    CHECK_ERROR(memo_host_device_launch(&other, r.streams[0], set_value, NULL, 0, &error),
                INVALID_ARGUMENT, "device: not a host device; create it with memo_host_device_cr");
    CHECK_ERROR(memo_host_device_sleep(&other, r.streams[0], 0, &error), INVALID_ARGUMENT,
                "device: not a host device");
    memo_host_device_destroy(&other); /* does nothing */
    CHECK_IS(memo_host_device_get_stats(&other).device_bytes, ==, 0);

    /* The context of another device may be a number, at which nobody looks. */
    other = at_once_device();
    other.context = (void*)(uintptr_t)1;
    CHECK_ERROR(memo_host_device_launch(&other, r.streams[0], set_value, NULL, 0, &error),
                INVALID_ARGUMENT, "device: not a host device");
    CHECK_IS(memo_host_device_get_stats(&other).device_bytes, ==, 0);
    memo_host_device_destroy(&other);
}
