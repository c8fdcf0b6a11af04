/* test_timed_steps.c - sessions that time their first steps and plan again. */
#include "session_model.h"

/* --- the first steps are timed --- */

static const memo_device* watched_host;
static int64_t n_layer_calls[2], n_outside; /* forward, backward; while no micro-batch is open */
static int is_training;
static void counted_forward(void* user, memo_session* s, int32_t layer) {
    n_layer_calls[0]++;
    n_outside += !is_training;
    forward(user, s, layer);
}
static void counted_backward(void* user, memo_session* s, int32_t layer) {
    n_layer_calls[1]++;
    n_outside += !is_training;
    backward(user, s, layer);
}
static void counted_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                              int64_t begin, int64_t end) {
    n_outside += !is_training;
    recompute(user, s, layer, tensor, begin, end);
}
static int64_t planned_at, n_times_planned;
static void note_plan(void* user, memo_session* s, const memo_step_plan* plan) {
    const memo_session_info info = memo_session_get_info(s);
    CHECK(plan == info.plan || plan->next);
    planned_at = ((model*)user)->micro_batch;
    n_times_planned++;
}
static char timing_log[4000];
static void keep_log(MEMO_UNUSED void* user, const char* line) {
    const size_t n = strlen(timing_log);
    snprintf(timing_log + n, sizeof timing_log - n, "%s\n", line);
}
static int n_lines_with(const char* word) {
    int n = 0;
    for (const char* at = timing_log; (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

static void timed_model(model* m) {
    tight_model(m);
    by_layers(m, counted_forward, counted_backward);
    m->desc.recompute = counted_recompute;
    m->desc.planned = note_plan;
    m->desc.log.write = keep_log;
    memset(n_layer_calls, 0, sizeof n_layer_calls);
    n_outside = n_times_planned = is_training = 0;
    planned_at = -1;
    *timing_log = 0;
}

static memo_status train(model* m, memo_session* s, int64_t micro_batch) {
    m->micro_batch = micro_batch;
    is_training = 1;
    const memo_status status = memo_session_run(s, NULL, &error);
    is_training = 0;
    return status;
}

static memo_stream watched_stream;
static int synchronize_fails;
static memo_status failing_synchronize(void* context, memo_stream stream, memo_error* e) {
    if (synchronize_fails && stream == watched_stream)
        return memo_error_set(e, MEMO_STATUS_DEVICE, "planted");
    return watched_host->stream_synchronize(context, stream, e);
}

/* A plan takes the place of the first when the step before is over on the device: what fails there
 * leaves the first plan. */
TEST(a_plan_waits_for_the_step_before) {
    for (int fails = 0; fails < 2; fails++) {
        model m;
        timed_model(&m);
        m.desc.computes_on_host = 0;
        open_device(&m, m.desc.device_bytes, 0);
        memo_device table = *m.host;
        table.stream_synchronize = failing_synchronize;
        watched_host = m.host;
        watched_stream = m.compute;
        m.desc.device = &table;
        memo_session* s = new_session(&m.desc);
        for (int64_t i = 0; s && i < 7; i++) {
            synchronize_fails = fails;
            CHECK_OK(train(&m, s, i));
            synchronize_fails = 0;
        }
        CHECK_IS(n_times_planned, ==, 1);
        CHECK_CASE(n_lines_with("the first plan stays: planted") == fails, "%s", timing_log);
        CHECK_IS(n_lines_with("planned by the times"), ==, !fails);
        finish(&m, s);
    }
}

/* The first shape's times are at the path, the second one's at the path and ".1". */
TEST(each_shape_has_a_file_of_times) {
    char path[1024], second[1032];
    memo_profile profile;
    model m;
    timed_model(&m);
    m.shapes[0].n_rows = m.desc.n_rows;
    m.shapes[1].n_rows = m.desc.n_rows / 2;
    m.desc.shapes = m.shapes;
    m.desc.n_shapes = 2;
    m.desc.profile_path = memo_test_path(path, "shapes.profile");
    snprintf(second, sizeof second, "%s.1", path);
    remove(path);
    remove(second);
    open_device(&m, m.desc.device_bytes, 0);
    memo_session* s = new_session(&m.desc);
    for (int32_t i = 0; s && i < 16; i++) {
        const memo_batch batch = {.shape = i % 2, .n_rows = m.shapes[i % 2].n_rows};
        m.micro_batch = i;
        CHECK_OK(memo_session_run(s, &batch, &error));
    }
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    CHECK_IS(n_times_planned, ==, 1);
    for (int k = 0; k < 2; k++) {
        CHECK_OK(memo_profile_read(k ? second : path, &profile, &error));
        CHECK_IS(profile.n_rows, ==, m.shapes[k].n_rows);
    }
    finish(&m, s);
}

/* Layers are computed in micro-batches that train, once each, and never for times.  A buffer of
 * the session stays, at its address; the file is written once, and a second session begins with it. */
TEST(first_steps_are_timed) {
    static const int32_t timed_steps[] = {0, 2, 3, 7, -1};
    for (int k = 0; k < 5; k++) {
        memo_session* s = NULL;
        memo_profile profile;
        char path[1024];
        model m;
        timed_model(&m);
        m.desc.timed_steps = timed_steps[k];
        m.desc.micro_batches = k == 1 ? 3 : 0;
        m.desc.profile_path = memo_test_path(path, "times.profile");
        remove(path);
        open_device(&m, m.desc.device_bytes, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        const void* state = memo_session_get_buffer(s, OF_SESSION);
        launch_buffer(&m, s, OF_SESSION, 7, 0);
        memo_session_info info = memo_session_get_info(s);
        CHECK(!info.plan->times);
        CHECK_ERROR(memo_session_get_profile(s, 0, &profile, &error), INVALID_STATE,
                    "times are not known");
        CHECK_ERROR(memo_session_get_profile(s, 1, &profile, &error), INVALID_ARGUMENT, "shape");
        for (int64_t i = 0; i < 12; i++) {
            CHECK_OK(train(&m, s, i));
            launch_buffer(&m, s, OF_SESSION, 7, 1);
        }
        CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
        CHECK_IS(n_outside, ==, 0);
        CHECK(n_layer_calls[0] == 12 * 8 && n_layer_calls[1] == 12 * 8);
        CHECK_IS(planned_at, ==, k == 0 ? 4 : k == 1 ? 6 : k < 4 ? timed_steps[k] : -1);
        CHECK_IS(n_times_planned, ==, k < 4);
        CHECK(memo_session_get_buffer(s, OF_SESSION) == state);
        info = memo_session_get_info(s);
        CHECK((info.plan->times != NULL) == (k < 4));
        CHECK(k == 4 || info.plan->policy == MEMO_POLICY_MEMO);
        CHECK_IS(n_lines_with("times are in"), ==, k < 4);
        CHECK(n_lines_with("keeping everything takes ") > 0 &&
              n_lines_with("(exceeds device_bytes)") > 0);
        CHECK(n_lines_with(" of host memory") > 0 && !n_lines_with("pinned"));
        if (k < 4) CHECK_OK(memo_session_get_profile(s, 0, &profile, &error));
        CHECK(k == 4 || (profile.forward_s[0] > 0 && profile.copies[1].size_bytes > 0));
        finish(&m, s);

        /* The file's times: no step is timed. */
        if (k == 4) continue;
        timed_model(&m);
        m.desc.profile_path = path;
        open_device(&m, m.desc.device_bytes, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        info = memo_session_get_info(s);
        CHECK(info.plan->times != NULL);
        CHECK_OK(memo_session_get_profile(s, 0, &profile, &error));
        for (int64_t i = 0; i < 9; i++) CHECK_OK(train(&m, s, i));
        CHECK(n_times_planned == 0 && n_lines_with("times are in") == 0);
        finish(&m, s);
        remove(path);
    }
}

/* A session that is told to time its steps does so even if nothing needs times. */
TEST(times_of_any_policy_may_be_asked_for) {
    for (int k = 0; k < MEMO_POLICY_ROWS; k++) {
        memo_session* s = NULL;
        memo_profile profile;
        model m;
        timed_model(&m);
        m.desc.policy = (memo_policy)k;
        m.desc.alpha = 0.5;
        m.desc.device_bytes = 1 << 20;
        m.desc.timed_steps = 3;
        open_device(&m, 1 << 20, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        for (int64_t i = 0; i < 6; i++) CHECK_OK(train(&m, s, i));
        CHECK_OK(memo_session_get_profile(s, 0, &profile, &error));
        const memo_session_info info = memo_session_get_info(s);
        CHECK_CASE(info.plan->times != NULL && info.plan->policy == m.desc.policy, "policy %d", k);
        CHECK_IS(n_times_planned, ==, 1);
        finish(&m, s);
    }
}

/* Micro-batches of at least half of the rows count; shorter ones do not, and the session waits. */
TEST(short_micro_batches_are_timed_in_proportion) {
    static const int64_t rows[] = {64, 40, 32, 31};
    for (int k = 0; k < 4; k++) {
        memo_session* s = NULL;
        memo_profile profile;
        const memo_batch batch = {.n_rows = rows[k]};
        model m;
        timed_model(&m);
        open_device(&m, m.desc.device_bytes, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        is_training = 1;
        for (m.micro_batch = 0; m.micro_batch < 12; m.micro_batch++)
            CHECK_OK(memo_session_run(s, &batch, &error));
        CHECK_IS(planned_at, ==, k < 3 ? 4 : -1);
        CHECK((memo_session_get_profile(s, 0, &profile, &error) == MEMO_STATUS_OK) == (k < 3));
        CHECK(k == 3 || profile.n_rows == 64);
        finish(&m, s);
    }
}

static int refuses_host, n_refused_pins;
static memo_status refused_host_alloc(void* context, int64_t n_bytes, void** address,
                                      memo_error* e) {
    if (!refuses_host) return watched_host->host_alloc(context, n_bytes, address, e);
    n_refused_pins++;
    return memo_error_set(e, MEMO_STATUS_OUT_OF_HOST_MEMORY, "none is left to pin");
}

/* If the plan by measured times cannot be opened, the first plan stays, and training goes on. */
TEST(the_first_plan_stays_if_memory_lacks) {
    memo_session* s = NULL;
    memo_session_info first, last;
    model m;
    timed_model(&m);
    open_device(&m, m.desc.device_bytes, 0);
    watched_host = m.host;
    memo_device table = *m.host;
    table.host_alloc = refused_host_alloc;
    m.desc.device = &table;
    refuses_host = n_refused_pins = 0;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    first = memo_session_get_info(s);
    const int64_t device_bytes = first.plan->device_bytes;
    CHECK_IS(first.plan->sizes.host_bytes, ==, 0);
    refuses_host = 1;
    for (int64_t i = 0; i < 9; i++) CHECK_OK(train(&m, s, i));
    last = memo_session_get_info(s);
    CHECK_CASE(n_refused_pins == 1 && last.plan->device_bytes == device_bytes &&
                   !last.plan->sizes.swapped_bytes,
               "%d requests refused", n_refused_pins);
    CHECK_CASE(n_lines_with("the first plan stays: none is left to pin") == 1, "%s", timing_log);
    CHECK_IS(n_times_planned, ==, 1);
    m.desc.device = m.host;
    finish(&m, s);
}

/* Micro-batches that fail or are abandoned do not count as times, and nothing is left of a session
 * that ends in its timed steps. */
TEST(timed_steps_may_fail_or_end) {
    for (int k = 0; k < 12; k++) {
        memo_session* s = NULL;
        memo_profile profile;
        model m;
        timed_model(&m);
        m.desc.computes_on_host = k % 2;
        open_device(&m, m.desc.device_bytes, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        for (int64_t i = 0; i < k; i++) {
            m.failing_layer = i % 3 == 1 ? 2 : -1;
            const memo_status status = train(&m, s, i);
            CHECK_IS(status, ==, (m.failing_layer < 0 ? MEMO_STATUS_OK : MEMO_STATUS_DEVICE));
            m.failing_layer = -1;
            if (i % 3 == 2 && memo_session_begin(s, NULL))
                CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
            if (i % 3 == 2 && memo_session_begin(s, NULL)) /* abandons the other */
                IGNORE(memo_session_end(s, NULL));
        }
        CHECK_IS(n_times_planned, ==, k > 5); /* at the fourth step one has been timed */
        CHECK((memo_session_get_profile(s, 0, &profile, &error) == MEMO_STATUS_OK) == (k > 5));
        finish(&m, s);
    }
}

/* A profile from elsewhere is checked before it is planned from. */
TEST(bad_profiles_are_refused) {
    memo_profile good, bad;
    own_step_plan* plan = NULL;
    double* times[6];
    const double wrong[] = {NAN, INFINITY, -1, 1e300};
    model m;
    tight_model(&m);
    open_device(&m, 256 << 10, 0);
    CHECK_OK(session_times(&m.desc, &good, &error));
    close_device(&m);
    m.desc.device = NULL;
    times[0] = &bad.forward_s[0];
    times[1] = &bad.backward_s[0];
    times[2] = &bad.between_s;
    times[3] = &bad.copies[0].out_s;
    times[4] = &bad.copies[0].back_s;
    times[5] = &bad.tensors[1].recompute_s_per_row[0];
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 4; k++) {
            if (i == 5 && k == 2) continue; /* it cannot be recomputed */
            bad = good;
            *times[i] = wrong[k];
            CHECK_CASE(memo_session_plan(&m.desc, &bad, &plan, &error) ==
                               MEMO_STATUS_INVALID_ARGUMENT &&
                           !plan,
                       "%d %d", i, k);
        }
    bad = good;
    bad.n_tensors = 100000;
    CHECK_IS(memo_session_plan(&m.desc, &bad, &plan, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_session_plan(&m.desc, &good, &plan, &error));
}

/* A budget without room to time a file beside copies is no reason to fail, if a plan fits. */
TEST(timing_fits_into_little_host_memory) {
    own_model m;
    memo_profile profile;
    tight_model(&m);
    m.desc.spill_directory = memo_test_folder();
    m.desc.host_bytes = 6000;
    open_device(&m, m.desc.device_bytes, m.desc.host_bytes);
    CHECK_OK(session_times(&m.desc, &profile, &error));
    CHECK(profile.copies[1].size_bytes > 0 && profile.file.size_bytes == 0);
}

static const memo_device* watched;
static int n_waits; /* of the host, while a micro-batch is open */
static memo_status counted_synchronize(void* context, memo_event event, memo_error* e) {
    n_waits += is_training;
    return watched->event_synchronize(context, event, e);
}
static void open_micro_batch(void* user, memo_session* s) {
    is_training = 1; /* what was timed before has been read */
    step(user, s);
    is_training = 0;
}
/* The host enqueues a timed micro-batch without waiting for any of its spans, on a device that is
 * far behind; spans are read when the next begins.  Then the session has their times. */
TEST(the_host_waits_for_no_span) {
    for (int k = 0; k < 2; k++) {
        memo_profile profile;
        model m;
        tight_model(&m);
        if (k) shorten(&m);
        m.desc.step = open_micro_batch;
        open_device(&m, 512 << 10, 0);
        m.desc.device_bytes = 0;
        watched = m.host;
        memo_device table = *m.host;
        table.event_synchronize = counted_synchronize;
        m.desc.device = &table;
        n_waits = 0;
        CHECK_OK(session_times(&m.desc, &profile, &error));
        CHECK(profile.forward_s[0] > 0 &&
              profile.tensors[2].recompute_s_per_row[0] + profile.recompute_call_s > 0);
        CHECK_IS(n_waits, ==, 0);
        close_device(&m);
    }
}
