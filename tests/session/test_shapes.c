/* test_shapes.c - shapes of micro-batches share memory and streams. */
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "session_model.h"

/* --- shapes that exclude each other --- */

enum { N_SHAPES = 9, OUTPUT = 1 };
static const memo_shape shapes[N_SHAPES] = {{61, 0}, {64, 0}, {47, 0}, {37, 0}, {29, 0},
                                            {17, 0}, {9, 0},  {1, 0},  {64, 7}};
static const memo_session_buffer shape_buffers[] = {
    {"state", 100, 20, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"output", 8, 30, MEMO_PASS_FORWARD, 7, MEMO_PASS_AFTER, 0, 0},
    {"scratch", 0, 60, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};

static void shape_step(void* user, memo_session* s) {
    model* m = (model*)user;
    const memo_batch batch = memo_session_get_batch(s);
    CHECK(batch.is_forward_only == (shapes[batch.shape].is_forward_only != 0));
    step(user, s);
    launch(m, s, memo_session_get_buffer(s, OUTPUT), 0, 8 + 30 * batch.n_rows, 5, 0);
}

static void shape_model(model* m) {
    tight_model(m);
    m->desc.step = shape_step;
    m->desc.buffers = shape_buffers;
    m->desc.n_buffers = 3;
    m->desc.shapes = shapes;
    m->desc.n_shapes = N_SHAPES;
    m->desc.device_bytes = 112 << 10; /* the longest must swap and recompute */
}

TEST(shapes_share_memory) {
    memo_session* s = NULL;
    memo_session_info info;
    memo_step_plan* again = NULL;
    const memo_step_plan *plan, *longest;
    memo_host_device_stats stats;
    memo_batch batch = {.n_rows = 0};
    int64_t host_bytes;
    model m;
    for (int round = 0; round < 3; round++) {
        shape_model(&m);
        m.desc.computes_on_host = round == 1;
        m.desc.is_checked = round != 1;
        open_device(&m, round == 2 ? 0 : m.desc.device_bytes, 0);
        if (round == 0) /* the device has no room for checks */
            CHECK_ERROR(memo_session_create(&m.desc, &s, &error), OUT_OF_DEVICE_MEMORY,
                        "a checked session takes");
        m.desc.is_checked = round == 2;
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        if (!s) return;
        settle(&m, s, 1);
        CHECK_OK(memo_session_run(s, NULL, &error));
        info = memo_session_get_info(s);
        longest = info.plan->next;
        host_bytes = 0;
        /* Times are measured: rounds have other plans. */
        for (plan = info.plan; plan; plan = plan->next) {
            CHECK_OK(memo_plan_check(plan->addresses, plan->trace, &error));
            CHECK_IS(plan->device_bytes, <=, m.desc.device_bytes);
            if (plan->host_bytes > host_bytes) host_bytes = plan->host_bytes;
        }
        CHECK(longest->times != NULL);
        stats = memo_host_device_get_stats(m.host);
        CHECK(round == 2 ||
              (stats.device_bytes <= m.desc.device_bytes && stats.host_bytes <= host_bytes));

        /* In any order, of any length; buffers of the session stay, outputs until the next. */
        for (int i = 0; i < 40; i++) {
            void* state = memo_session_get_buffer(s, 0);
            m.micro_batch = i;
            batch.shape = i < N_SHAPES ? i : (int32_t)memo_test_int(0, N_SHAPES - 1);
            batch.n_rows = memo_test_int(0, shapes[batch.shape].n_rows);
            if (i % 5 == 4) { /* one that fails, or is given up: nothing is left of it */
                m.failing_layer = i % 2 ? 2 : -1;
                if (m.failing_layer >= 0)
                    CHECK_IS(memo_session_run(s, &batch, &error), ==, MEMO_STATUS_DEVICE);
                else if (memo_session_begin(s, &batch))
                    CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
                batch.shape = (int32_t)memo_test_int(0, N_SHAPES - 1);
                batch.n_rows = 0;
                if (m.failing_layer < 0 && memo_session_begin(s, &batch)) /* abandons the other */
                    IGNORE(memo_session_end(s, NULL));
                m.failing_layer = -1;
            }
            CHECK_OK(memo_session_run(s, &batch, &error));
            batch = memo_session_get_batch(s);
            CHECK(memo_session_get_buffer(s, 0) == state);
            CHECK(m.desc.is_checked || !memo_session_get_buffer(s, 2));
            launch(&m, s, memo_session_get_buffer(s, OUTPUT), 0, 8 + 30 * batch.n_rows, 5, 1);
            info = memo_session_get_info(s);
            CHECK((info.swap == NULL) == (shapes[batch.shape].is_forward_only != 0));
            CHECK_IS(info.plan->swap.n_rows, ==, shapes[batch.shape].n_rows);
            batch.is_forward_only = 0;
        }
        CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
        CHECK_CASE(m.n_wrong == 0, "round %d: %lld bytes differ", round, (long long)m.n_wrong);

        batch.shape = N_SHAPES;
        CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_ARGUMENT,
                    "memo_batch.shape: out of range (9); 0 to 8 are valid");
        batch = (memo_batch){.n_rows = 10, .shape = 6};
        CHECK_IS(memo_session_run(s, &batch, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);

        /* In words, and as a plan that a session opens. */
        CHECK_OK(memo_session_run(s, NULL, &error));
        info = memo_session_get_info(s);
        expect_words(info.plan, "shapes    9 share device memory of ");
        expect_words(info.plan, "shape     8, 64 rows\n");
        memo_session_destroy(s);
        s = NULL;
        if (round < 2 && !memo_test_all()) {
            close_device(&m);
            continue;
        }
        CHECK_OK(memo_session_plan(&m.desc, NULL, &again, &error));
        if (again) CHECK_OK(memo_session_open(&m.desc, again, &s, &error));
        for (batch = (memo_batch){.n_rows = 0}; batch.shape < N_SHAPES && s; batch.shape++)
            CHECK_OK(memo_session_run(s, &batch, &error));
        CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
        CHECK_IS(m.n_wrong, ==, 0);
        memo_session_destroy(s);

        /* Another number of shapes. */
        m.desc.n_shapes = 8;
        CHECK_ERROR(memo_session_open(&m.desc, again, &s, &error), INVALID_ARGUMENT,
                    "shape 7 of the plan");
        memo_step_plan_destroy(again);
        close_device(&m);
    }
}

/* Opens shapes without call k of the device: an error, and nothing is left.  Returns the number of
 * calls. */
static int64_t open_without_call(memo_step_plan* plan, model* m, int64_t k) {
    memo_faults faults;
    memo_session* s = NULL;
    open_device(m, m->desc.device_bytes, 0);
    memo_faults_init(&faults, m->host);
    m->desc.device = &faults.device;
    faults.failing_call = k;
    memo_status status = memo_session_open(&m->desc, plan, &s, &error);
    CHECK_CASE((status != MEMO_STATUS_OK) == (faults.failed != NULL), "call %lld (%s): %s",
               (long long)k, faults.failed ? faults.failed : "none", memo_status_name(status));
    k = faults.n_calls;
    memo_session_destroy(s);
    close_device(m);
    return k;
}

TEST(every_call_of_opening_shapes_may_fail) {
    model m;
    shape_model(&m);
    m.desc.computes_on_host = 1;
    m.desc.n_shapes = 3;
    own_step_plan* plan = step_plan_of(&m.desc, NULL);
    int64_t n = open_without_call(plan, &m, 0);
    CHECK_IS(n, >, 20);
    for (int64_t k = 1; k <= n; k++) (void)open_without_call(plan, &m, k);
}

/* Without a budget, the arena is that of the longest, and a forward alone takes two layers. */
TEST(the_longest_shape_takes_most) {
    memo_step_plan *plan = NULL, *p;
    model m;
    shape_model(&m);
    m.desc.device_bytes = 0;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    for (p = plan; p; p = p->next) {
        CHECK_IS(p->device_bytes, <=, plan->next->device_bytes);
        if (!p->next) CHECK_IS(p->sizes.device_bytes, <=, (2 * 100 + 504) * 64 + 4 * 1024);
    }
    memo_step_plan_destroy(plan);

    /* In a budget the short ones keep all, and the longest swaps; without times, by any machine. */
    int n_kept = 0;
    shape_model(&m);
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    for (p = plan; p; p = p->next) {
        CHECK_IS(p->device_bytes, <=, plan->next->device_bytes);
        n_kept += p->sizes.swapped_bytes == 0;
    }
    CHECK(plan->next->sizes.swapped_bytes > 0 && n_kept >= 4);
    memo_step_plan_destroy(plan);
}

/* Training fits in less than the budget; a longer forward takes all of it. */
TEST(a_longer_forward_takes_more_than_training) {
    const memo_shape short_and_long[2] = {{2, 0}, {64, 1}};
    model m;
    shape_model(&m);
    m.desc.shapes = short_and_long;
    m.desc.n_shapes = 2;
    m.desc.device_bytes = 0;
    own_step_plan* plan = step_plan_of(&m.desc, NULL);
    CHECK_IS(plan->device_bytes, <, plan->next->device_bytes);
    m.desc.device_bytes = plan->next->device_bytes;
    own_step_plan* within = step_plan_of(&m.desc, NULL);
    CHECK(within->fits && within->next->fits);
    CHECK_IS(within->next->device_bytes, <=, m.desc.device_bytes);
}

TEST(bad_shapes_are_refused) {
    memo_shape wrong[2] = {{64, 0}, {65, 0}};
    own_model m;
    shape_model(&m);
    open_device(&m, 0, 0);
    m.desc.shapes = wrong;
    m.desc.n_shapes = 2;
    expect_refused(&m.desc, "shapes[1].n_rows: out of range (65); 1 to 64 are valid");
    m.desc.n_shapes = 17;
    expect_refused(&m.desc, "n_shapes");
    m.desc.n_shapes = 2;
    m.desc.shapes = NULL;
    expect_refused(&m.desc, "shapes");
}

static const memo_device* watched;
static int n_created_streams;
static memo_status counted_stream(void* context, const char* name, int32_t priority,
                                  memo_stream* stream, memo_error* e) {
    n_created_streams++;
    return watched->stream_create(context, name, priority, stream, e);
}

/* All shapes copy on the same two streams. */
TEST(shapes_share_streams) {
    own_step_plan* plan = NULL;
    memo_session* s = NULL;
    model m;
    tight_model(&m);
    m.desc.policy = MEMO_POLICY_SWAP;
    m.desc.device_bytes = 0;
    m.desc.shapes = m.shapes;
    m.desc.n_shapes = 3;
    for (int k = 0; k < 3; k++) m.shapes[k] = (memo_shape){64 - 16 * k, 0};
    open_device(&m, 1 << 20, 0);
    watched = m.host;
    memo_device table = *m.host;
    table.stream_create = counted_stream;
    m.desc.device = &table;
    n_created_streams = 0;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    CHECK_OK(memo_session_open(&m.desc, plan, &s, &error));
    CHECK_IS(n_created_streams, ==, 2);
    for (int32_t k = 0; k < 3; k++) {
        const memo_batch batch = {.shape = k};
        CHECK_OK(memo_session_run(s, &batch, &error));
    }
    memo_session_destroy(s);
    close_device(&m);
}
