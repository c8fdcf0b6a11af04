/* test_session_errors.c - bad descs, calls out of order, and a lack of memory are errors with words. */
#include "session_model.h"

TEST(the_first_error_is_kept) {
    model m;
    tight_model(&m);
    memo_session* s = create(&m, NULL);
    CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "memo_session_begin first");

    /* An error of the trainer: later calls do nothing. */
    m.failing_layer = 2;
    int64_t n_calls = m.n_calls;
    CHECK_ERROR(memo_session_run(s, NULL, &error), DEVICE, "the trainer's own");
    CHECK_IS(m.n_calls, ==, n_calls + 1 + 3 * 4); /* and the session's buffer */
    m.failing_layer = -1;
    m.micro_batch = 1;
    CHECK_OK(memo_session_run(s, NULL, &error));

    /* The engine's, the arena's, and calls that make no sense. */
    memo_batch batch = {.n_rows = 65};
    CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_ARGUMENT,
                "memo_batch.n_rows: out of range (65)");
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK(memo_session_forward_begin(s, 1) == 0);
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_CASE(
        strstr(error.message, "memo_session: forward begin of layer 1 of 8: out of order; ") &&
            strstr(error.message, "forward begin of layer 0 comes next") &&
            !strstr(error.message, "memo_swap"),
        "%s", error.message);
    batch = (memo_batch){.is_forward_only = 1}; /* although nothing moves */
    CHECK_IS(memo_session_begin(s, &batch), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 1), ==, 0);
    CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "forward begin of layer 0 comes next");
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    for (int32_t layer = 0; layer < 3; layer++) /* two may be open */
        CHECK_IS(memo_session_forward_begin(s, layer), ==, layer < 2);
    CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "forward end of layer 0 comes next");
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 8), ==, 0);
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_OK(memo_session_run(s, NULL, &error));

    /* begin abandons a micro-batch that was not ended; run refuses. */
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
    CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE,
                "memo_session_run: called inside a micro-batch");
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_STATE);
    m.micro_batch = 2;
    CHECK_OK(memo_session_run(s, NULL, &error));

    /* Arguments out of range are errors that name them. */
    static const char* const words[] = {"get_address: layer: out of range (-1)",
                                        "get_address: layer: out of range (2147483647)",
                                        "get_address: tensor: out of range (4)",
                                        "get_addresses: row: out of range (-1)",
                                        "get_addresses: row: out of range (41234567890123)",
                                        "get_buffer: buffer: out of range (2)",
                                        "get_buffer: buffer: out of range (-2147483647)"};
    for (int k = 0; k < 7; k++) {
        void* first[TENSORS_MAX];
        CHECK_IS(memo_session_begin(s, NULL), ==, 1);
        CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
        if (k < 3)
            CHECK(!memo_session_get_address(s,
                                            k == 0   ? -1
                                            : k == 1 ? INT32_MAX
                                                     : 0,
                                            k == 2 ? m.desc.n_tensors : 0));
        else if (k < 5) /* the addresses of row 0, so that a trainer that goes on harms nothing */
            memo_session_get_addresses(s, 0, k == 3 ? -1 : 41234567890123, first);
        else
            CHECK(!memo_session_get_buffer(s, k == 5 ? 2 : -INT32_MAX));
        if (k == 3 || k == 4) CHECK(first[0] == memo_session_get_address(s, 0, 0));
        CHECK_ERROR(memo_session_end(s, &error), INVALID_ARGUMENT, words[k]);
    }

    /* An abandoned micro-batch takes its error with it: nobody asks for it any more. */
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK(!memo_session_get_address(s, -1, 0));
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
    CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "layer 0 is still open");
    finish(&m, s);
}

static memo_status run_inside, begin_inside;

static void running_forward(void* user, memo_session* s, int32_t layer) {
    memo_error e;
    forward(user, s, layer);
    if (layer == 2) {
        run_inside = memo_session_run(s, NULL, &e);
        CHECK_TEXT(e.message, "memo_session_run: called inside");
    }
    if (layer == 3 && begin_inside) (void)memo_session_begin(s, NULL);
}

/* A micro-batch inside another one is refused, and the other one goes on; a begin, which has no
 * status, fails it. */
TEST(micro_batches_do_not_nest) {
    model m;
    tight_model(&m);
    by_layers(&m, running_forward, backward);
    begin_inside = MEMO_STATUS_OK;
    memo_session* s = create(&m, NULL);
    run_inside = MEMO_STATUS_OK;
    m.micro_batch = 1;
    CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(run_inside, ==, MEMO_STATUS_INVALID_STATE);
    WITH(begin_inside, MEMO_STATUS_INVALID_STATE,
         CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE,
                     "memo_session_begin: called inside memo_session_run"));
    m.micro_batch = 2;
    CHECK_OK(memo_session_run(s, NULL, &error));
    finish(&m, s);
}

TEST(bad_descs_are_refused) {
#ifdef MEMO_TEST_STRICT
    SKIP("messages of the host device");
#endif
    memo_session* s = NULL;
    model m;
    tight_model(&m);
    const memo_shape shapes_of[2] = {{m.desc.n_rows / 2, 0}, {m.desc.n_rows, 0}};
    m.desc.shapes = shapes_of, m.desc.n_shapes = 2; /* the second needs more */
    m.desc.device_bytes = 3000;
    CHECK(memo_session_create(&m.desc, &s, &error) == MEMO_STATUS_INFEASIBLE && !s);
    m.desc.n_shapes = 0;
    CHECK_TEXT(error.message, "the smallest plan of shape 1 needs ");
    CHECK_TEXT(error.message, "of activations");
    WITH(m.desc.device_bytes, -1, expect_refused(&m.desc, "device_bytes: out of range (-1)"));
    m.desc.device_bytes = 0;
    WITH(m.desc.device_memory, (void*)512,
         expect_refused(&m.desc, "device_memory: set, but device_bytes is 0; device_bytes must"));
    m.desc.device_bytes = 3000;
    WITH(m.desc.host_memory, (void*)4096,
         expect_refused(&m.desc, "host_memory: set, but host_bytes is 0; host_bytes must be"));
    WITH(m.desc.device_memory, (void*)256,
         expect_refused(&m.desc, "device_memory: not a multiple of 512 bytes"));
    m.desc.host_bytes = 4096;
    WITH(m.desc.host_memory, (void*)256,
         expect_refused(&m.desc, "host_memory: not a multiple of 512 bytes"));
    m.desc.host_bytes = 0;
    WITH(m.desc.step, NULL, expect_refused(&m.desc, "forward: NULL; set it, or `step`"));
    WITH(m.desc.recompute, NULL, expect_refused(&m.desc, "recompute"));
    WITH(m.tensors[1].name, "with blanks", expect_refused(&m.desc, "name"));
    WITH(m.tensors[1].name, "lse",
         expect_refused(&m.desc, "tensors[3].name: `lse` is also the name of tensors[1]"));

    /* A device without a function, or without a stream that computes. */
    open_device(&m, 0, 0);
    memo_device table = *m.host;
    table.copy = NULL;
    m.desc.device = &table;
    expect_refused(&m.desc, "memo_session_desc.device.copy: NULL; set it");
    table.copy = m.host->copy;
    table.event_synchronize = NULL; /* timing waits for events */
    expect_refused(&m.desc, "memo_session_desc.device.event_synchronize: NULL; set it");
    m.desc.device = m.host;
    WITH(m.desc.spill_directory, "", /* would be the root folder */
         expect_refused(&m.desc, "memo_session_desc.spill_directory: an empty string; NULL"));
    WITH(m.desc.alpha, NAN,
         expect_refused(&m.desc, "memo_session_desc.alpha: out of range (nan); 0 to 1 are valid"));
    WITH(m.desc.alpha, 1.5,
         expect_refused(&m.desc, "memo_session_desc.alpha: out of range (1.5); 0 to 1 are valid"));
    m.desc.compute_stream = NULL;
    expect_refused(&m.desc, "compute_stream: NULL; pass a stream");
    CHECK_ERROR(memo_stream_synchronize(m.host, NULL, &error), INVALID_ARGUMENT,
                "stream: NULL; pass a stream of this host device");
    close_device(&m);
    m.desc.n_tensors = 0;
    expect_refused(&m.desc, "n_tensors");
}

/* A trainer that stores its session where memo_session_create does. */
static memo_session* stored;
static void storing_step(void* user, memo_session* s) {
    stored = s;
    step(user, s);
}

TEST(a_session_that_fails_is_null) {
    memo_session_desc alpha;
    own_model m;
    tight_model(&m);
    m.desc.step = storing_step;
    open_device(&m, 1 << 20, 0);
    m.desc.device_bytes = 512; /* planning refuses it */
    CHECK_ERROR(memo_session_create(&m.desc, &stored, &error), INFEASIBLE, ".device_bytes");
    CHECK(!stored);
    alpha = m.desc; /* opening refuses it */
    alpha.policy = MEMO_POLICY_ALPHA;
    alpha.alpha = 0.5;
    CHECK_ERROR(memo_session_create(&alpha, &stored, &error), INFEASIBLE, ".device_bytes");
    CHECK(!stored);
}

/* A number that no buffer has forms no address, which `make asan-ubsan CC=clang` would see; an error without
 * words has those of its status. */
TEST(errors_of_a_session_have_words) {
    static const int32_t numbers[] = {-1, 2, 3, INT32_MAX, INT32_MIN};
    model m;
    tight_model(&m);
    memo_session* s = create(&m, NULL);
    for (int k = 0; k < 5; k++) {
        char text[100];
        CHECK(memo_session_begin(s, NULL));
        CHECK(!memo_session_get_buffer(s, numbers[k]));
        snprintf(text, sizeof text, "buffer: out of range (%d)", (int)numbers[k]);
        CHECK_ERROR(memo_session_end(s, &error), INVALID_ARGUMENT, text);
    }
    for (int k = 0; k < 2; k++) {
        CHECK(memo_session_begin(s, NULL));
        memo_session_fail(s, MEMO_STATUS_OUT_OF_DEVICE_MEMORY, k ? "" : NULL);
        CHECK_ERROR(memo_session_end(s, &error), OUT_OF_DEVICE_MEMORY,
                    "memo_session_fail: out of device memory, without a message");
    }
    CHECK_OK(memo_session_run(s, NULL, &error));
    finish(&m, s);
}

/* Each of the first and last requests, and some of the planner's, which are many and similar. */
TEST(every_lack_of_memory_is_a_status) {
    const int64_t first = memo_test_all() ? 100 : 30, last = memo_test_all() ? 60 : 12;
    refusal r = {.can_do_without = 1}; /* another plan */
    memo_status status = MEMO_STATUS_OK;
    int64_t n = 0; /* requests */
    model m;
    tight_model(&m);
    shorten(&m);
    m.desc.shapes = two_shapes;
    m.desc.n_shapes = 2;
    open_device(&m, m.desc.device_bytes, 0);
    n -= mallocs_done;
    memo_session_destroy(new_session(&m.desc));
    n += mallocs_done;
    close_device(&m);
    while (next_refusal(&r, status)) {
        const int64_t k = r.request, n_left = n - last - 1 - k;
        own_session* s = NULL;
        WITH(mallocs_left, -1, open_device(&m, m.desc.device_bytes, 0));
        status = memo_session_create(&m.desc, &s, &error);
        CHECK(!status == (s != NULL));
        memo_session_destroy(s);
        s = NULL;
        close_device(&m);
        if (k >= first && n_left > 0) r.request += k / 8 < n_left ? k / 8 : n_left;
    }
    CHECK_CASE(r.n_failed > (first + last) / 3, "%lld requests, %lld refused", (long long)n,
               (long long)r.n_failed);
}

/* Neither the session nor its host device. */
TEST(steps_allocate_nothing) {
    model m;
    tight_model(&m);
    m.desc.timed_steps = -1; /* a later plan allocates */
    memo_session* s = create(&m, NULL);
    const int64_t n = mallocs_done;
    for (m.micro_batch = 0; m.micro_batch < 10; m.micro_batch++)
        CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(mallocs_done, ==, n);
    finish(&m, s);
}

/* Without memory a planner does not take other rows, or another place for them. */
TEST(a_lack_of_memory_changes_no_plan) {
    for (int k = 0; k < 2; k++) {
        model m;
        int n_refused = 0;
        tight_model(&m);
        if (k) {
            m.desc.policy = MEMO_POLICY_SWAP;
            m.desc.host_bytes = 64 << 10;
            m.desc.spill_directory = memo_test_folder();
        } else {
            shorten(&m);
        }
        int64_t n = mallocs_done;
        own_step_plan* good = step_plan_of(&m.desc, NULL);
        n = mallocs_done - n;
        for (int64_t i = 0; i < n; i += 1 + i / 16) {
            own_step_plan* plan = NULL;
            mallocs_left = i;
            memo_status status = memo_session_plan(&m.desc, NULL, &plan, &error);
            mallocs_left = -1;
            n_refused += status == MEMO_STATUS_OUT_OF_HOST_MEMORY;
            CHECK_CASE(status ? status == MEMO_STATUS_OUT_OF_HOST_MEMORY
                              : plan->swap.n_host_layers == good->swap.n_host_layers &&
                                    !memcmp(plan->swap.rows, good->swap.rows,
                                            (size_t)m.desc.n_layers * 4 * sizeof(int64_t)),
                       "request %lld of %lld: %s", (long long)i, (long long)n, error.message);
        }
        CHECK_CASE(good->fits && n_refused > 20, "%d refused", n_refused);
    }
}
