/* test_recorder.c - chapter 6 of memo_look.h: a recorder around a fake device with a known clock,
 * and around the host device. */
#include "scarce.h"
#include "turns.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
#include "owned.h"
#include "orders.h"

/* --- a device that does everything at once and only pretends that it takes time: 1 byte a second
 * --- */

struct memo_stream_handle {
    double now; /* end of the operations enqueued so far */
    int is_used;
};
struct memo_event_handle {
    double at;
    int is_used, is_recorded;
};

typedef struct fake {
    memo_device device;
    struct memo_stream_handle streams[8];
    struct memo_event_handle events[512];
    double host_now;
    double record_s; /* that a stream takes to record an event */
    int n_calls, n_annotated, elapsed_fails, copy_fails;
} fake;

#define FAKE(function, ...)                                                                        \
    static memo_status fake_##function(MEMO_UNUSED void* context, __VA_ARGS__,                     \
                                       MEMO_UNUSED memo_error* e)

FAKE(alloc, int64_t size_bytes, void** address) {
    ((fake*)context)->n_calls++;
    *address = malloc((size_t)size_bytes);
    return *address ? MEMO_STATUS_OK : MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
}
FAKE(free, void* address) {
    ((fake*)context)->n_calls++;
    free(address);
    return MEMO_STATUS_OK;
}
FAKE(info, int64_t* free_bytes, int64_t* total_bytes) {
    *free_bytes = 1;
    *total_bytes = 2;
    return MEMO_STATUS_OK;
}
FAKE(stream_create, MEMO_UNUSED const char* name, MEMO_UNUSED int32_t priority,
     memo_stream* stream) {
    fake* f = (fake*)context;
    for (int i = 0; i < 8; i++) {
        if (f->streams[i].is_used) continue;
        f->streams[i].is_used = 1;
        f->streams[i].now = f->host_now;
        *stream = &f->streams[i];
        return MEMO_STATUS_OK;
    }
    return memo_error_set(e, MEMO_STATUS_DEVICE, "no stream is left");
}
FAKE(stream_destroy, memo_stream stream) {
    stream->is_used = 0;
    return MEMO_STATUS_OK;
}
FAKE(stream_synchronize, memo_stream stream) {
    fake* f = (fake*)context;
    if (stream->now > f->host_now) f->host_now = stream->now;
    return MEMO_STATUS_OK;
}
FAKE(event_create, memo_event* event) {
    fake* f = (fake*)context;
    for (int i = 0; i < 512; i++) {
        if (f->events[i].is_used) continue;
        f->events[i].is_used = 1;
        f->events[i].is_recorded = 0;
        *event = &f->events[i];
        return MEMO_STATUS_OK;
    }
    return memo_error_set(e, MEMO_STATUS_DEVICE, "no event is left");
}
FAKE(event_destroy, memo_event event) {
    CHECK(event->is_used);
    event->is_used = 0;
    return MEMO_STATUS_OK;
}
static double fake_reach(fake* f, memo_stream stream) { /* nothing starts before it is enqueued */
    if (stream->now < f->host_now) stream->now = f->host_now;
    return stream->now;
}
FAKE(event_record, memo_event event, memo_stream stream) {
    CHECK(event->is_used);
    event->at = stream->now = fake_reach((fake*)context, stream) + ((fake*)context)->record_s;
    event->is_recorded = 1;
    return MEMO_STATUS_OK;
}
FAKE(event_wait, memo_event event, memo_stream stream) {
    fake_reach((fake*)context, stream);
    if (event->is_recorded && event->at > stream->now) stream->now = event->at;
    return MEMO_STATUS_OK;
}
FAKE(event_query, memo_event event, int32_t* is_done) {
    *is_done = !event->is_recorded || event->at <= ((fake*)context)->host_now;
    return MEMO_STATUS_OK;
}
FAKE(event_synchronize, memo_event event) {
    fake* f = (fake*)context;
    if (event->is_recorded && event->at > f->host_now) f->host_now = event->at;
    return MEMO_STATUS_OK;
}
FAKE(event_elapsed, memo_event begin, memo_event end, double* elapsed_s) {
    fake* f = (fake*)context;
    if (f->elapsed_fails || !begin->is_recorded || !end->is_recorded || end->at > f->host_now)
        return memo_error_set(e, MEMO_STATUS_DEVICE, "not done yet");
    *elapsed_s = end->at - begin->at;
    return MEMO_STATUS_OK;
}
FAKE(copy, memo_stream stream, MEMO_UNUSED memo_copy_kind kind, void* to, const void* from,
     int64_t size_bytes) {
    fake* f = (fake*)context;
    f->n_calls++;
    if (f->copy_fails) return memo_error_set(e, MEMO_STATUS_DEVICE, "copying fails");
    memmove(to, from, (size_t)size_bytes);
    stream->now = fake_reach(f, stream) + (double)size_bytes;
    return MEMO_STATUS_OK;
}
FAKE(copy_rows, memo_stream stream, memo_copy_kind kind, void* to, int64_t to_stride_bytes,
     const void* from, int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows) {
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < n_rows && !status; i++)
        status = fake_copy(context, stream, kind, (char*)to + i * to_stride_bytes,
                           (const char*)from + i * from_stride_bytes, row_bytes, e);
    return status;
}
FAKE(fill, memo_stream stream, void* address, int32_t byte_value, int64_t size_bytes) {
    fake* f = (fake*)context;
    memset(address, byte_value, (size_t)size_bytes);
    stream->now = fake_reach(f, stream) + (double)size_bytes;
    return MEMO_STATUS_OK;
}
static memo_status fake_status(MEMO_UNUSED void* context, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
FAKE(annotate, MEMO_UNUSED memo_stream stream, MEMO_UNUSED const struct memo_op_desc* op) {
    ((fake*)context)->n_annotated++;
    return MEMO_STATUS_OK;
}
/* A launch that bypasses the table. */
static void fake_launch(fake* f, memo_stream stream, double duration_s) {
    stream->now = fake_reach(f, stream) + duration_s;
}

static fake* fake_create(int has_annotate) {
    fake* f = (fake*)calloc(1, sizeof(fake));
    memo_device* d = &f->device;
    f->host_now = 1000;
    d->struct_bytes = sizeof *d;
    d->name = "fake";
    d->context = f;
    d->device_alloc = d->host_alloc = fake_alloc;
    d->device_free = d->host_free = fake_free;
    d->memory_info = fake_info;
    d->stream_create = fake_stream_create;
    d->stream_destroy = fake_stream_destroy;
    d->stream_synchronize = fake_stream_synchronize;
    d->event_create = fake_event_create;
    d->event_destroy = fake_event_destroy;
    d->event_record = fake_event_record;
    d->event_wait = fake_event_wait;
    d->event_query = fake_event_query;
    d->event_synchronize = fake_event_synchronize;
    d->event_elapsed = fake_event_elapsed;
    d->copy = fake_copy;
    d->copy_rows = fake_copy_rows;
    d->fill = fake_fill;
    d->status = fake_status;
    d->annotate = has_annotate ? fake_annotate : NULL;
    return f;
}

static int n_events_used(const fake* f) {
    int n = 0;
    for (int i = 0; i < 512; i++) n += f->events[i].is_used;
    return n;
}

/* A recorder around a fake device, with two streams and an event. */
typedef struct rig {
    fake* f;
    memo_recorder* recorder;
    memo_device* d;
    memo_stream compute, copy;
    memo_event event;
} rig;

static rig rig_open(int has_annotate, int is_timed) {
    rig g = {.f = fake_create(has_annotate)};
    g.recorder = new_recorder((memo_recorder_desc){.device = &g.f->device, .is_timed = is_timed});
    g.d = memo_recorder_get_device(g.recorder);
    CHECK_OK(memo_stream_create(g.d, "compute", 0, &g.compute, &error));
    CHECK_OK(memo_stream_create(g.d, "copy", 0, &g.copy, &error));
    CHECK_OK(memo_event_create(g.d, &g.event, &error));
    return g;
}

static void rig_close(rig* g) {
    memo_recorder_destroy(g->recorder);
    CHECK_IS(n_events_used(g->f), ==, 1); /* the rig's own */
    free(g->f);
}
#define own_rig OWNED(rig_close) rig

static memo_schedule* rig_schedule(const rig* g) { return recorded(g->recorder); }

static int is_op(const memo_schedule* s, int64_t i, memo_op_kind kind, const char* name,
                 int32_t stream) {
    return i < s->n_ops && s->ops[i].kind == kind && s->ops[i].stream == stream &&
           strcmp(memo_schedule_op_name(s, i), name) == 0;
}

static int is_range(const memo_schedule* s, int64_t op, int64_t k, const void* address,
                    int64_t size_bytes) {
    const memo_range* range = &s->ranges[s->ops[op].first_range + k];
    return range->begin == (uint64_t)(uintptr_t)address &&
           range->end == range->begin + (uint64_t)size_bytes;
}

/* --- recorded operations --- */

TEST(calls_become_a_schedule) {
    own_rig g = rig_open(0, 0);
    fake* f = g.f;
    memo_device* d = g.d;
    memo_stream other;
    memo_range range;
    char a[64] = "from here", b[64] = "";
    void* memory;
    int64_t free_bytes, total_bytes;
    int32_t is_done;
    CHECK(d->struct_bytes == (int64_t)sizeof(memo_device) && strcmp(d->name, "fake") == 0);
    CHECK_OK(memo_device_alloc(d, 8, &memory, &error));
    CHECK_OK(memo_device_free(d, memory, &error));
    CHECK_OK(memo_host_alloc(d, 8, &memory, &error));
    CHECK_OK(memo_host_free(d, memory, &error));
    CHECK_IS(f->n_calls, ==, 4);
    CHECK_OK(memo_memory_info(d, &free_bytes, &total_bytes, &error));
    CHECK_OK(d->status(d->context, &error));
    CHECK(free_bytes == 1 && total_bytes == 2);
    CHECK_OK(f->device.stream_create(f, "other", 0, &other, &error)); /* not through the recorder */
    CHECK_OK(memo_event_query(d, g.event, &is_done, &error));
    CHECK(is_done);
    memo_op_desc desc = {.name = "forward 0", .writes = &range, .n_writes = 1};
    range.begin = (uint64_t)(uintptr_t)a;
    range.end = range.begin + 10;
    CHECK_OK(memo_annotate(d, g.compute, &desc, &error));               /* 0 */
    CHECK_OK(memo_event_record(d, g.event, g.compute, &error));         /* 1 */
    CHECK_OK(memo_event_wait(d, g.event, other, &error));               /* 2 */
    CHECK_OK(memo_copy(d, other, MEMO_COPY_TO_HOST, b, a, 10, &error)); /* 3 */
    CHECK_IS(strcmp(b, "from here"), ==, 0);
    CHECK_OK(memo_stream_synchronize(d, other, &error));                                   /* 4 */
    CHECK_OK(memo_copy(d, g.compute, MEMO_COPY_TO_DEVICE, a, b, 10, &error));              /* 5 */
    CHECK_OK(memo_copy_rows(d, g.compute, MEMO_COPY_ON_DEVICE, a, 8, b, 4, 4, 3, &error)); /* 6 */
    CHECK_OK(memo_fill(d, g.compute, a, 7, 64, &error));                                   /* 7 */
    CHECK_IS(a[63], ==, 7);
    CHECK_OK(memo_event_record(d, g.event, g.compute, &error)); /* 8 */
    CHECK_OK(memo_event_query(d, g.event, &is_done, &error));
    CHECK(!is_done);
    CHECK_OK(memo_event_synchronize(d, g.event, &error));     /* 9 */
    CHECK_OK(memo_event_query(d, g.event, &is_done, &error)); /* 10 */
    CHECK(is_done);
    f->copy_fails = 1;
    CHECK_IS(memo_copy(d, g.compute, MEMO_COPY_TO_DEVICE, a, b, 10, &error), ==,
             MEMO_STATUS_DEVICE);
    CHECK_IS(strcmp(error.message, "copying fails"), ==, 0);
    memo_schedule* s = rig_schedule(&g);
    CHECK(s->n_ops == 11 && s->n_streams == 3 && s->n_events == 1);
    CHECK_IS(strcmp(s->text + s->streams[0], "compute"), ==, 0);
    CHECK_IS(strcmp(s->text + s->streams[2], "stream 2"), ==, 0);
    CHECK(is_op(s, 0, MEMO_OP_RUN, "forward 0", 0));
    CHECK(s->ops[0].n_writes == 1 && is_range(s, 0, 0, a, 10));
    CHECK(is_op(s, 1, MEMO_OP_RECORD, "record", 0) && s->ops[1].event == 0);
    CHECK(is_op(s, 2, MEMO_OP_WAIT, "wait", 2) && s->ops[2].event == 0);
    CHECK(is_op(s, 3, MEMO_OP_RUN, "to host", 2) && s->ops[3].link_bytes == 10);
    CHECK(s->ops[3].n_reads == 1 && is_range(s, 3, 0, a, 10) && is_range(s, 3, 1, b, 10));
    CHECK(is_op(s, 4, MEMO_OP_SYNC, "sync", 2) && s->ops[4].event == -1);
    CHECK(is_op(s, 5, MEMO_OP_RUN, "to device", 0));
    CHECK(is_op(s, 6, MEMO_OP_RUN, "on device", 0) && s->ops[6].link_bytes == 12);
    CHECK(s->ops[6].n_reads == 1 && is_range(s, 6, 0, b, 12)); /* rows that touch */
    CHECK(s->ops[6].n_writes == 3 && is_range(s, 6, 2, a + 8, 4));
    CHECK(is_op(s, 7, MEMO_OP_RUN, "fill", 0) && s->ops[7].n_reads == 0 &&
          is_range(s, 7, 0, a, 64));
    CHECK(is_op(s, 8, MEMO_OP_RECORD, "record", 0));
    CHECK(is_op(s, 9, MEMO_OP_SYNC, "sync", -1) && s->ops[9].event == 0);
    CHECK(is_op(s, 10, MEMO_OP_SYNC, "sync", -1));
    CHECK_OK(memo_recorder_name_stream(g.recorder, other, "copy", &error));
    CHECK_IS(strcmp(s->text + s->streams[2], "copy"), ==, 0);
    CHECK_FAILS(memo_recorder_name_stream(g.recorder, other, NULL, &error), INVALID_ARGUMENT);
    memo_recorder_destroy(NULL);
}

/* One line for a launch; it does nothing without a recorder. */
TEST(launches_are_annotated_in_a_line) {
    own_rig g = rig_open(0, 0);
    char x[64], y[64];
    CHECK_OK(MEMO_ANNOTATE(g.d, g.compute, "fill", &error, memo_writes(y, 64)));
    CHECK_OK(MEMO_ANNOTATE(g.d, g.compute, "gemm", &error, memo_reads(x, 16), memo_writes(y, 8),
                           memo_reads(x + 32, 4), memo_writes(x, -1)));
    CHECK_OK(MEMO_ANNOTATE(g.d, g.compute, "all", &error, memo_reads(x, 1), memo_reads(x + 1, 1),
                           memo_reads(x + 2, 1), memo_reads(x + 3, 1), memo_reads(x + 4, 1),
                           memo_reads(x + 5, 1), memo_reads(x + 6, 1), memo_reads(x + 7, 1),
                           memo_reads(x + 8, 1), memo_reads(x + 9, 1), memo_reads(x + 10, 1),
                           memo_reads(x + 11, 1), memo_reads(x + 12, 1), memo_reads(x + 13, 1),
                           memo_reads(x + 14, 1), memo_reads(x + 15, 1)));
    memo_schedule* s = rig_schedule(&g);
    CHECK(s->n_ops == 3 && is_op(s, 0, MEMO_OP_RUN, "fill", 0) && s->ops[0].n_reads == 0);
    CHECK(s->ops[0].n_writes == 1 && is_range(s, 0, 0, y, 64));
    CHECK(is_op(s, 1, MEMO_OP_RUN, "gemm", 0));
    CHECK(s->ops[1].n_reads == 2 && s->ops[1].n_writes == 2);
    CHECK(is_range(s, 1, 0, x, 16) && is_range(s, 1, 1, x + 32, 4));
    CHECK(is_range(s, 1, 2, y, 8) && is_range(s, 1, 3, x, 0));
    CHECK(s->ops[2].n_reads == 16 && s->ops[2].n_writes == 0);
    for (int k = 0; k < 16; k++) CHECK(is_range(s, 2, k, x + k, 1));
    g.f->device.annotate = NULL;
    CHECK_OK(MEMO_ANNOTATE(&g.f->device, g.compute, "nothing", &error, memo_reads(x, 16)));
    CHECK_IS(g.f->n_annotated, ==, 0);
}

TEST(a_missing_wait_is_found) {
    for (int with_wait = 0; with_wait < 2; with_wait++) {
        own_rig g = rig_open(0, 0);
        char a[16], b[16];
        CHECK_OK(memo_fill(g.d, g.compute, a, 1, 16, &error));
        CHECK_OK(memo_event_record(g.d, g.event, g.compute, &error));
        if (with_wait) CHECK_OK(memo_event_wait(g.d, g.event, g.copy, &error));
        CHECK_OK(memo_copy(g.d, g.copy, MEMO_COPY_TO_HOST, b, a, 16, &error));
        own_check* check = check_of(rig_schedule(&g));
        CHECK(check->n_races == !with_wait && check->n_redundant_waits == 0);
    }
}

TEST(handles_may_come_again) {
    own_rig g = rig_open(0, 0);
    memo_device* d = g.d;
    CHECK_OK(memo_event_record(d, g.event, g.compute, &error));
    CHECK_OK(memo_event_destroy(d, g.event, &error));
    memo_event again = new_event(d);
    CHECK_IS(again, ==, g.event);
    CHECK_OK(memo_event_wait(d, again, g.compute, &error)); /* another event, never recorded */
    CHECK_OK(memo_stream_destroy(d, g.compute, &error));
    memo_stream second = new_stream(d, "second");
    CHECK_IS(second, ==, g.compute);
    CHECK_OK(memo_event_record(d, again, second, &error));
    memo_schedule* s = rig_schedule(&g);
    CHECK(s->n_streams == 3 && s->n_events == 2 && s->n_ops == 3);
    CHECK(s->ops[1].event == 1 && s->ops[2].event == 1 && s->ops[2].stream == 2);
    own_check* check = check_of(s);
    CHECK(check->n_unrecorded_waits == 1 && check->unrecorded_waits[0] == 1);
}

TEST(times_match_the_device) {
    own_rig g = rig_open(0, 1);
    fake* f = g.f;
    memo_device* d = g.d;
    memo_schedule* s;
    own_times *measured = NULL, *simulated = NULL;
    char a[64] = "", b[64];
    memo_op_desc desc = {.name = "forward"};
    CHECK_OK(memo_annotate(d, g.compute, &desc, &error)); /* 0: 0 to 20 */
    fake_launch(f, g.compute, 20);
    CHECK_OK(memo_event_record(d, g.event, g.compute, &error));          /* 1: 20 */
    CHECK_OK(memo_fill(d, g.copy, b, 0, 5, &error));                     /* 2: 0 to 5 */
    CHECK_OK(memo_event_wait(d, g.event, g.copy, &error));               /* 3: 5 to 20 */
    CHECK_OK(memo_copy(d, g.copy, MEMO_COPY_TO_HOST, b, a, 30, &error)); /* 4: 20 to 50 */
    CHECK_OK(memo_annotate(d, g.compute, &desc, &error));                /* 5: 20 to 27 */
    fake_launch(f, g.compute, 7);
    CHECK_FAILS(memo_recorder_get_schedule(g.recorder, &s, &error), DEVICE); /* copy still runs */
    CHECK(s == NULL && strcmp(error.message, "not done yet") == 0);
    CHECK_OK(memo_stream_synchronize(d, g.copy, &error)); /* 6: at 50 */
    desc.name = "backward";
    desc.duration_s = 99;                                 /* known before */
    CHECK_OK(memo_annotate(d, g.compute, &desc, &error)); /* 7: 50 to 53 */
    fake_launch(f, g.compute, 3);
    CHECK_OK(memo_stream_synchronize(d, g.compute, &error)); /* 8: at 53 */
    s = rig_schedule(&g);
    CHECK_IS(s->n_ops, ==, 9);
    CHECK_OK(memo_schedule_measured(s, &measured, &error));
    {
        static const double start[9] = {0, 20, 0, 5, 20, 20, 0, 50, 50};
        static const double end[9] = {20, 20, 5, 20, 50, 27, 50, 53, 53};
        for (int64_t i = 0; i < 9; i++)
            CHECK_CASE(measured->start_s[i] == start[i] && measured->end_s[i] == end[i],
                       "op %d: %g to %g", (int)i, measured->start_s[i], measured->end_s[i]);
    }
    CHECK(measured->makespan_s == 53 && measured->busy_s[0] == 30 && measured->busy_s[1] == 35);
    CHECK(measured->stall_s[0] == 23 && measured->stall_s[1] == 15);
    CHECK(s->ops[4].duration_s == 30 && s->ops[7].duration_s == 99);
    s->ops[7].duration_s = 3;
    CHECK_OK(memo_schedule_simulate(s, &simulated, &error)); /* the model of the device agrees */
    for (int64_t i = 0; i < 9; i++)
        CHECK(simulated->start_s[i] == measured->start_s[i] &&
              simulated->end_s[i] == measured->end_s[i]);
    CHECK(rig_schedule(&g) == s && s->ops[4].end_s == 50); /* nothing is read twice */
    CHECK_IS(n_events_used(f), ==, 2); /* those that were read are gone; time 0 stays */
    CHECK_OK(memo_fill(d, g.copy, b, 0, 5, &error));
    CHECK_IS(n_events_used(f), ==, 4);
    f->elapsed_fails = 1;
    CHECK_IS(memo_recorder_get_schedule(g.recorder, &s, &error), ==, MEMO_STATUS_DEVICE);
    CHECK(!s);
}

TEST(an_open_operation_ends_with_the_schedule) {
    own_rig g = rig_open(0, 1);
    memo_op_desc desc = {0};
    CHECK_OK(memo_annotate(g.d, g.compute, &desc, &error));
    fake_launch(g.f, g.compute, 4);
    CHECK_OK(g.f->device.stream_synchronize(g.f, g.compute, &error));
    g.f->record_s = 1; /* its end comes later than what the caller synchronized */
    memo_schedule* s = rig_schedule(&g);
    CHECK(s && s->n_ops == 1 && s->ops[0].end_s - s->ops[0].start_s == 5);
}

TEST(pauses_leave_no_trace_but_a_sync) {
    own_rig g = rig_open(1, 1);
    memo_device* d = g.d;
    memo_op_desc desc = {0};
    char a[64], b[64];
    int32_t is_done;
    CHECK_OK(memo_fill(d, g.compute, a, 0, 64, &error)); /* 0 */
    memo_recorder_pause(g.recorder);
    memo_recorder_pause(g.recorder);
    memo_stream later = new_stream(d, "later");
    CHECK_OK(memo_annotate(d, g.compute, &desc, &error));
    CHECK_OK(memo_fill(d, later, a, 0, 64, &error));
    CHECK_OK(memo_copy(d, later, MEMO_COPY_ON_DEVICE, b, a, 64, &error));
    CHECK_OK(memo_copy_rows(d, later, MEMO_COPY_ON_DEVICE, b, 8, a, 8, 8, 2, &error));
    CHECK_OK(memo_event_record(d, g.event, later, &error));
    CHECK_OK(memo_event_wait(d, g.event, g.compute, &error));
    CHECK_OK(memo_event_synchronize(d, g.event, &error));
    CHECK_OK(memo_event_query(d, g.event, &is_done, &error));
    CHECK_OK(memo_stream_synchronize(d, later, &error));
    CHECK_OK(memo_stream_synchronize(d, g.compute, &error));
    memo_recorder_resume(g.recorder); /* 1 to 3 */
    memo_recorder_resume(g.recorder);
    CHECK_OK(memo_event_wait(d, g.event, g.compute, &error)); /* recorded outside: covered */
    CHECK_OK(memo_event_synchronize(d, g.event, &error));
    CHECK_OK(memo_event_query(d, g.event, &is_done, &error));
    CHECK_OK(memo_fill(d, later, a, 0, 64, &error));     /* 4 */
    CHECK_OK(memo_stream_synchronize(d, later, &error)); /* 5 */
    memo_schedule* s = rig_schedule(&g);
    CHECK_IS(g.f->n_annotated, ==, 1);
    CHECK(s->n_ops == 6 && s->n_streams == 3);
    CHECK(is_op(s, 1, MEMO_OP_SYNC, "sync", 0) && is_op(s, 3, MEMO_OP_SYNC, "sync", 2));
    CHECK(is_op(s, 4, MEMO_OP_RUN, "fill", 2));
    own_check* check = check_of(s);
    CHECK(check->n_races == 0 && check->n_unrecorded_waits == 0);
}

TEST(recorders_stack) {
    own_memory fake* f = fake_create(0);
    memo_recorder* inner = new_recorder((memo_recorder_desc){.device = &f->device, .is_timed = 1});
    memo_recorder* outer =
        new_recorder((memo_recorder_desc){.device = memo_recorder_get_device(inner)});
    memo_device* d = memo_recorder_get_device(outer);
    memo_schedule *a, *b;
    char bytes[8];
    memo_stream stream = new_stream(d, "compute");
    memo_op_desc desc = {.name = "work"};
    CHECK_OK(memo_annotate(d, stream, &desc, &error));
    CHECK_OK(memo_fill(d, stream, bytes, 0, 8, &error));
    CHECK_OK(memo_stream_synchronize(d, stream, &error));
    CHECK_OK(memo_recorder_get_schedule(inner, &a, &error));
    CHECK_OK(memo_recorder_get_schedule(outer, &b, &error));
    CHECK_IS(a->n_ops, ==, 3);
    CHECK_OK(memo_schedule_compare(a, b, &error));
    memo_recorder_destroy(outer);
    memo_recorder_destroy(inner);
}

TEST(shorter_tables_are_understood) {
    own_memory fake* f = fake_create(1);
    memo_recorder_desc desc = {0};
    memo_recorder* recorder;
    memo_op_desc op = {0};
    CHECK_IS(memo_recorder_create(&desc, &recorder, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.device = &f->device;
    f->device.struct_bytes = 8;
    CHECK_IS(memo_recorder_create(&desc, &recorder, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(recorder == NULL);
    f->device.struct_bytes = (int64_t)offsetof(memo_device, annotate); /* ends before annotate */
    CHECK_OK(memo_recorder_create(&desc, &recorder, &error));
    memo_device* d = memo_recorder_get_device(recorder);
    memo_stream stream = new_stream(d, NULL);
    CHECK_OK(memo_annotate(d, stream, &op, &error));
    CHECK_IS(f->n_annotated, ==, 0);
    memo_recorder_destroy(recorder);
}

/* An event without timing comes from the function for it, through a recorder too; a table without
 * that function, or one that ends before it, makes an ordinary event. */
static int n_untimed;
FAKE(event_create_untimed, memo_event* event) {
    n_untimed++;
    return fake_event_create(context, event, e);
}

TEST(untimed_events_fall_back_to_timed_ones) {
    for (int kind = 0; kind < 3; kind++)
        for (int is_recorded = 0; is_recorded < 2; is_recorded++) {
            own_memory fake* f = fake_create(1);
            own_recorder* recorder = NULL;
            const memo_device* d = &f->device;
            memo_event event = NULL;
            if (kind > 0) f->device.event_create_untimed = fake_event_create_untimed;
            if (kind > 1)
                f->device.struct_bytes = (int64_t)offsetof(memo_device, event_create_untimed);
            memo_recorder_desc desc = {.device = &f->device};
            if (is_recorded) {
                CHECK_OK(memo_recorder_create(&desc, &recorder, &error));
                d = memo_recorder_get_device(recorder);
            }
            n_untimed = 0;
            CHECK_OK(memo_event_create_untimed(d, &event, &error));
            CHECK_CASE(n_untimed == (kind == 1), "table %d, recorded %d", kind, is_recorded);
            CHECK(event != NULL);
            CHECK_OK(memo_event_destroy(d, event, &error));
        }
}

/* --- without memory --- */

static memo_status short_run(fake* f) {
    own_recorder* recorder = NULL;
    memo_stream a = NULL, b = NULL;
    memo_event event = NULL;
    memo_schedule* s;
    memo_op_desc op = {0};
    char bytes[64];
    memo_recorder_desc desc = {.device = &f->device, .is_timed = 1};
    memo_status status = memo_recorder_create(&desc, &recorder, &error);
    if (status) return status;
    memo_device* d = memo_recorder_get_device(recorder);
    void* c = d->context;
    status = d->stream_create(c, "a", 0, &a, &error);
    if (!status) status = d->stream_create(c, "b", 0, &b, &error);
    if (!status) status = d->event_create(c, &event, &error);
    for (int i = 0; i < 10 && !status; i++) {
        status = d->annotate(c, a, &op, &error);
        if (!status) status = d->event_record(c, event, a, &error);
        if (!status) status = d->event_wait(c, event, b, &error);
        if (!status)
            status = d->copy_rows(c, b, MEMO_COPY_TO_HOST, bytes, 8, bytes + 4, 8, 4, 3, &error);
        if (!status) status = d->fill(c, b, bytes, 0, 4, &error);
        if (!status) status = d->event_synchronize(c, event, &error);
    }
    if (!status) memo_recorder_pause(recorder);
    if (!status) memo_recorder_resume(recorder);
    if (!status) status = d->stream_synchronize(c, a, &error);
    if (!status) status = d->stream_synchronize(c, b, &error);
    if (!status) status = memo_recorder_name_stream(recorder, b, "a longer name", &error);
    if (!status) status = memo_recorder_get_schedule(recorder, &s, &error);
    if (!status) CHECK_IS(s->n_ops, ==, 64);
    if (event) CHECK_IS(d->event_destroy(c, event, &error), ==, MEMO_STATUS_OK);
    if (a) CHECK_IS(d->stream_destroy(c, a, NULL), !=, MEMO_STATUS_DEVICE);
    if (b) CHECK_IS(d->stream_destroy(c, b, NULL), !=, MEMO_STATUS_DEVICE);
    return status;
}

TEST(no_memory_is_an_error) {
    memo_status status = MEMO_STATUS_OK;
    refusal r = {0};
    while (next_refusal(&r, status)) {
        own_memory fake* f = fake_create(0);
        status = short_run(f);
        CHECK_CASE(n_events_used(f) == 0, "request %lld leaks", (long long)r.request);
        for (int i = 0; i < 8; i++) CHECK(!f->streams[i].is_used);
    }
    CHECK_IS(r.n_failed, >, 20);
}

/* Without a device nothing runs, and every call is in the schedule. */
TEST(paper_records_what_nothing_runs) {
    static const memo_op_kind kinds[] = {MEMO_OP_RUN, MEMO_OP_RECORD, MEMO_OP_WAIT,
                                         MEMO_OP_RUN, MEMO_OP_SYNC,   MEMO_OP_SYNC};
    memo_recorder* recorder;
    memo_event event;
    char *from = (char*)(uintptr_t)512, *to = (char*)(uintptr_t)1024; /* never accessed */
    int32_t is_done = 0;
    memo_recorder_desc desc = {.on_paper = 1, .is_timed = 1};
    CHECK_OK(memo_recorder_create(&desc, &recorder, &error));
    memo_device* d = memo_recorder_get_device(recorder);
    memo_stream first = new_stream(d, "first");
    memo_stream second = new_stream(d, "second");
    CHECK_OK(memo_event_create_untimed(d, &event, &error));
    CHECK_OK(memo_fill(d, first, from, 0, 512, &error));
    CHECK_OK(memo_event_record(d, event, first, &error));
    CHECK_OK(memo_event_wait(d, event, second, &error));
    CHECK_OK(memo_copy_rows(d, second, MEMO_COPY_ON_DEVICE, to, 16, from, 16, 8, 4, &error));
    CHECK_FAILS(memo_copy_rows(d, second, MEMO_COPY_ON_DEVICE, to, 64, from, 64, 64,
                               (int64_t)1 << 57, &error),
                OUT_OF_HOST_MEMORY); /* 2^63 bytes */
    CHECK_OK(memo_event_query(d, event, &is_done, &error));
    CHECK_OK(memo_stream_synchronize(d, second, &error));
    CHECK_OK(memo_event_destroy(d, event, &error));
    CHECK_OK(memo_stream_destroy(d, first, &error));
    CHECK_OK(memo_stream_destroy(d, second, &error));
    memo_schedule* s = recorded(recorder);
    CHECK(is_done && s->n_streams == 2);
    CHECK_IS(s->n_ops, ==, sizeof kinds / sizeof *kinds);
    for (int64_t i = 0; i < s->n_ops; i++) CHECK_IS(s->ops[i].kind, ==, kinds[i]);
    memo_recorder_destroy(recorder);
    desc.on_paper = 0;
    CHECK_IS(memo_recorder_create(&desc, &recorder, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

/* --- the host device: threads, which take turns of 2 us --- */

static void record_the_host_device(MEMO_UNUSED int argument) {
    enum { SIZE = 1 << 20 };
    memo_stream compute, copy;
    memo_event written, moved;
    own_times *measured = NULL, *simulated = NULL;
    void *on_device, *on_host;
    memo_device* host =
        new_device((memo_host_device_desc){.to_host_bytes_per_s = (double)SIZE / 0.03});
    memo_recorder* recorder = new_recorder((memo_recorder_desc){.device = host, .is_timed = 1});
    memo_device* d = memo_recorder_get_device(recorder);
    void* c = d->context;
    CHECK_OK(d->device_alloc(c, SIZE, &on_device, &error));
    CHECK_OK(d->host_alloc(c, SIZE, &on_host, &error));
    CHECK_OK(d->stream_create(c, "compute", 0, &compute, &error));
    CHECK_OK(d->stream_create(c, "copy", 0, &copy, &error));
    CHECK_OK(d->event_create(c, &written, &error));
    CHECK_OK(d->event_create(c, &moved, &error));
    memo_range range = {.begin = (uint64_t)(uintptr_t)on_device};
    range.end = range.begin + SIZE;
    memo_op_desc desc = {.name = "forward", .writes = &range, .n_writes = 1};
    CHECK_OK(d->annotate(c, compute, &desc, &error)); /* 0 */
    CHECK_OK(memo_host_device_sleep(host, compute, 0.02, &error));
    CHECK_OK(d->event_record(c, written, compute, &error));                          /* 1 */
    CHECK_OK(d->event_wait(c, written, copy, &error));                               /* 2 */
    CHECK_OK(d->copy(c, copy, MEMO_COPY_TO_HOST, on_host, on_device, SIZE, &error)); /* 3 */
    CHECK_OK(d->event_record(c, moved, copy, &error));                               /* 4 */
    desc.name = "elsewhere";
    desc.n_writes = 0;
    CHECK_OK(d->annotate(c, compute, &desc, &error)); /* 5: after the copy */
    CHECK_OK(memo_host_device_sleep(host, compute, 0.01, &error));
    CHECK_OK(d->event_wait(c, moved, compute, &error));        /* 6 */
    CHECK_OK(d->fill(c, compute, on_device, 0, SIZE, &error)); /* 7 */
    CHECK_OK(d->stream_synchronize(c, compute, &error));       /* 8 */
    CHECK_OK(d->stream_synchronize(c, copy, &error));          /* 9 */
    memo_schedule* s = recorded(recorder);
    CHECK_IS(s->n_ops, ==, 10);
    own_check* check = check_of(s);
    CHECK(check->n_races == 0 && check->n_redundant_waits == 0 && check->n_waits == 2);
    CHECK_OK(memo_schedule_measured(s, &measured, &error));
    for (int64_t i = 0; i < s->n_ops; i++) CHECK_IS(measured->start_s[i], <=, measured->end_s[i]);
    CHECK_IS(measured->end_s[0] - measured->start_s[0], >, 0.018);
    CHECK_IS(measured->end_s[3] - measured->start_s[3], >, 0.027);
    CHECK_IS(measured->start_s[3], >=, measured->end_s[0] - 0.001);
    CHECK_IS(measured->start_s[7], >=, measured->end_s[3] - 0.001);
    CHECK_IS(measured->end_s[6], >=,
             measured->end_s[3] - 0.001); /* held until the rows have left */
    CHECK_CASE(measured->makespan_s > 0.045 && measured->makespan_s < 0.06, "%g s",
               measured->makespan_s);
    CHECK(measured->stall_s[0] >= 0 && measured->busy_s[1] > 0.027);
    CHECK_OK(memo_schedule_simulate(s, &simulated, &error));
    CHECK_CASE(simulated->makespan_s > 0.045 &&
                   simulated->makespan_s < measured->makespan_s * 1.001,
               "%g s, measured %g s", simulated->makespan_s, measured->makespan_s);
    CHECK_OK(d->event_destroy(c, written, &error));
    CHECK_OK(d->event_destroy(c, moved, &error));
    CHECK_OK(d->stream_destroy(c, compute, &error));
    CHECK_OK(d->stream_destroy(c, copy, &error));
    CHECK_OK(d->device_free(c, on_device, &error));
    CHECK_OK(d->host_free(c, on_host, &error));
    memo_recorder_destroy(recorder);
    memo_host_device_destroy(host);
}
TEST(the_host_device_is_recorded) { in_timed_orders(record_the_host_device, 0, 2000); }

/* The last operation of a stream ends where its schedule is asked for: its event comes later than
 * what the caller synchronized. */
TEST(the_last_operation_is_waited_for) {
    own_rig g = rig_open(0, 1);
    memo_op_desc desc = {.name = "forward"};
    CHECK_OK(memo_annotate(g.d, g.compute, &desc, &error));
    fake_launch(g.f, g.compute, 2);
    g.f->record_s = 1;
    CHECK_OK(memo_stream_synchronize(g.d, g.compute, &error));
    const memo_schedule* s = rig_schedule(&g);
    CHECK(s->ops[0].end_s == s->ops[0].start_s + 3);
}

/* The last test. */
TEST(nothing_leaks) { CHECK_IS(mallocs_live, ==, 0); }
