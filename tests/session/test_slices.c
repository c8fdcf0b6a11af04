/* test_slices.c - sessions that compute layers in slices: losses and gradients have the bits of
 * every policy, device memory does not grow with the length, and plans, micro-batches and errors
 * are as without slices. */
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "session_times.h"
#include "trainer.h"

#include <math.h>

/* --- the trainer of trainer.h in slices: all of its tensors --- */

enum { LAYERS = 5 };

typedef struct model {
    trainer t; /* first */
    memo_session* session;
    double loss;
    int breaks_order, mixes_rows;
} model;

/* Checks where rows lie. */
static void forward(void* user, memo_session* s, int32_t layer) {
    const model* m = (const model*)user;
    const memo_slice slice = memo_session_get_slice(s);
    for (int64_t r = 0; r < slice.end - slice.begin; r++) {
        void* first[T_N_TENSORS];
        memo_session_get_addresses(s, layer, m->mixes_rows ? slice.begin + r : r, first);
        for (int32_t t = 0; t < T_EXPERT && !m->mixes_rows; t++) /* all of one row, but LAYER */
            CHECK((char*)first[t] ==
                  (char*)memo_session_get_address(s, layer, t) +
                      (t == T_K || t == T_V || t == T_CARRIED ? 0 : r * T_ROW_BYTES));
    }
    t_forward(user, s, layer);
}

/* Of the open slice of the last layer, whose output is in x. */
static void loss(void* user, memo_session* s) {
    const uint64_t* x = (uint64_t*)memo_session_get_address(s, LAYERS - 1, T_X);
    const memo_slice slice = memo_session_get_slice(s);
    for (int64_t i = 0; i < (slice.end - slice.begin) * T_WORDS; i++)
        ((model*)user)->loss += (double)(x[i] >> 48);
}

/* The same without these functions. */
static void step(void* user, memo_session* s) {
    const model* m = (const model*)user;
    const int32_t n = memo_session_get_slice(s).n_slices;
    for (int32_t k = 0; k < LAYERS * n; k++) {
        if (memo_session_forward_begin(s, m->breaks_order ? k % n % LAYERS : k / n))
            forward(user, s, k / n);
        memo_session_forward_end(s, k / n);
    }
    for (int32_t k = LAYERS * n - 1; k >= 0 && !memo_session_get_batch(s).is_forward_only; k--) {
        if (memo_session_backward_begin(s, k / n)) t_backward(user, s, k / n);
        memo_session_backward_end(s, k / n);
    }
}

/* Begins two layers at a time. */
static void open_two(void* user, memo_session* s) {
    (void)user;
    for (int32_t layer = 0; layer < 2; layer++) (void)memo_session_forward_begin(s, layer);
}

static void model_init(model* m, int64_t n_rows, int64_t slice_rows, memo_policy policy) {
    memset(m, 0, sizeof *m);
    t_init(&m->t, LAYERS, n_rows, slice_rows);
    m->t.desc.forward = forward;
    m->t.desc.policy = policy;
    m->t.desc.alpha = 0.5;
}

/* A micro-batch, whose sums remain. */
static memo_status run_batch(model* m, int64_t n_rows, int32_t shape) {
    memo_batch batch = {.n_rows = n_rows, .shape = shape};
    memset(&m->t.sums, 0, sizeof m->t.sums);
    return memo_session_run(m->session, &batch, &error);
}

/* Two micro-batches of n_rows. */
static memo_status model_run(model* m, int64_t n_rows) {
    memo_status status = memo_session_create(&m->t.desc, &m->session, &error);
    for (int k = 0; k < 2 && !status; k++) status = run_batch(m, n_rows, 0);
    return status;
}

/* Those of plain arrays. */
static void expect_bits(model* m, int64_t n_rows, int is_forward_only) {
    static t_plain plain;
    memset(&m->t.plain_sums, 0, sizeof m->t.plain_sums);
    t_run_plain(&m->t, &plain, n_rows, is_forward_only);
    CHECK_CASE(!memcmp(&m->t.sums, &m->t.plain_sums, sizeof m->t.sums), "%lld rows: other bits",
               (long long)n_rows);
}

/* Also at once, checked, with a file, and with little memory. */
TEST(gradients_are_those_without_slices) {
    static const int64_t lengths[][3] = {{24, 6, 24}, {31, 8, 31}, {64, 2, 64}, {31, 8, 13},
                                         {20, 10, 7}, {9, 64, 9},  {96, 4, 95}};
    enum { AT_ONCE = MEMO_POLICY_ROWS, CHECKED, SPILLS, TIGHT, N_WAYS };
    static model m;
    const size_t n_lengths = sizeof lengths / sizeof lengths[0];
    int n_spilled = 0;
    for (size_t k = memo_test_all() ? 0 : 3; k < n_lengths; k++) {
        const int64_t n = lengths[k][0], rows_now = lengths[k][2];
        for (int way = 0; way < N_WAYS; way++) {
            const int64_t slice_rows = way == AT_ONCE ? n : lengths[k][1];
            model_init(&m, n, slice_rows,
                       way == AT_ONCE                    ? MEMO_POLICY_KEEP
                       : way == CHECKED || way == SPILLS ? MEMO_POLICY_ALPHA
                       : way == TIGHT                    ? MEMO_POLICY_MEMO
                                                         : (memo_policy)way);
            m.t.desc.is_checked = way == CHECKED;
            if (way == SPILLS) {
                m.t.desc.spill_directory = memo_test_folder();
                own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
                m.t.desc.host_bytes = plan->host_bytes * 3 / 4 + 8192; /* two places of a page */
                n_spilled += plan->host_bytes > m.t.desc.host_bytes;
            }
            if (way == TIGHT) m.t.desc.device_bytes = 18 * n * T_ROW_BYTES + 3072;
            CHECK_CASE(model_run(&m, rows_now) == MEMO_STATUS_OK, "way %d, %lld rows: %s", way,
                       (long long)n, error.message);
            if (!m.session) continue;
            CHECK_IS(memo_session_get_slice(m.session).n_slices, ==, (n - 1) / slice_rows + 1);
            memo_session_destroy(m.session);
            expect_bits(&m, rows_now, 0);
            CHECK(way != MEMO_POLICY_RECOMPUTE || m.t.n_recomputed > 0);
        }
    }
    CHECK_IS(n_spilled, >, 0);

    /* `loss` is called for each slice: before its backward, or after its forward alone, in which
     * the slices come in another order. */
    for (int k = 0; k < 2; k++) {
        memo_batch batch = {.n_rows = 95, .is_forward_only = 1};
        model_init(&m, 96, 4, MEMO_POLICY_SWAP);
        m.t.desc.loss = loss;
        if (k) m.t.desc.step = step;
        CHECK_OK(model_run(&m, 95));
        expect_bits(&m, 95, 0);
        CHECK(k || m.loss == 2 * m.t.sums.output);
        memset(&m.t.sums, 0, sizeof m.t.sums);
        m.loss = 0;
        CHECK_OK(memo_session_run(m.session, &batch, &error));
        expect_bits(&m, 95, 1);
        CHECK(k || m.loss == m.t.sums.output);
        memo_session_destroy(m.session);
    }
}

/* Device memory at one slice size, for 1 to 16 times the length: the formula, and a device that has
 * no more. */
TEST(memory_does_not_grow_with_the_length) {
    static const int64_t row = T_ROW_BYTES;
    int64_t rest = 0;
    for (int k = 1; k <= 16; k += k < 4 ? 1 : 3) {
        static model m;
        const int64_t n = 6 * k;
        const int64_t of_length =
            (2 * 2 + 2) * row * n; /* keys, values of two layers; gradients of one */
        model_init(&m, n, 6, MEMO_POLICY_ALPHA);
        own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
        if (k == 3)
            rest =
                plan->device_bytes - of_length; /* fewer slices do not need both buffers in full */
        if (k > 3)
            CHECK_CASE(labs((long)(plan->device_bytes - of_length - rest)) <= 5 * 512,
                       "%lld rows: %lld and %lld bytes", (long long)n,
                       (long long)(plan->device_bytes - of_length), (long long)rest);
        memo_device* device =
            new_device((memo_host_device_desc){.device_memory_bytes = plan->device_bytes});
        m.t.desc.device = device;
        CHECK_OK(memo_session_open(&m.t.desc, plan, &m.session, &error));
        CHECK_OK(memo_session_run(m.session, NULL, &error));
        memo_session_destroy(m.session);
        memo_host_device_destroy(device);
    }
}

/* A forward alone hands rows on through the host too: its output is that of a step.  Then a step.
 * A plan gives slices to a desc that leaves them open, and is refused for others. */
TEST(forwards_alone_and_slices_of_plans) {
    static model m;
    double outputs[2];
    model_init(&m, 30, 6, MEMO_POLICY_ALPHA);
    own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
    expect_words(plan, "late      expert: 0 of 150 rows are kept, the others move; at "
                       "most 6 in a step\nlate      up: 0 of 150");
    CHECK_IS(plan->swap.n_slices, ==, 5);
    m.t.desc.slice_rows = 0; /* the plan's */
    CHECK_OK(memo_session_open(&m.t.desc, plan, &m.session, &error));
    for (int k = 0; k < 2; k++) {
        memo_batch batch = {.is_forward_only = !k};
        memset(&m.t.sums, 0, sizeof m.t.sums);
        CHECK_OK(memo_session_run(m.session, &batch, &error));
        outputs[k] = m.t.sums.output;
    }
    CHECK(outputs[0] > 0 && outputs[0] == outputs[1]);
    expect_bits(&m, 30, 0);
    memo_session_destroy(m.session);
    m.t.desc.slice_rows = 4;
    CHECK_ERROR(memo_session_open(&m.t.desc, plan, &m.session, &error), INVALID_ARGUMENT,
                "it has 6 as slice_rows, the session has 4");
}

TEST(mistakes_are_errors) {
    static model m;
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    m.t.desc.step = step;
    m.breaks_order = 1;
    CHECK_ERROR(model_run(&m, 30), INVALID_STATE, "comes next, once for each slice");
    memo_session_destroy(m.session);
    model_init(&m, 30, 7, MEMO_POLICY_KEEP);
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT, "slice_rows: 7 rows split a tile of 2");
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    m.t.tensors[T_X].scope = MEMO_SLICE;
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT,
                "memo_session_desc.slice_rows: set, but no tensor is a MEMO_EDGE");
    model_init(&m, 30, 6, MEMO_POLICY_KEEP);
    m.mixes_rows = 1; /* of the layer instead of the slice */
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT,
                "memo_session_get_addresses: row: out of range (6); 0 to 5 are valid, counted from "
                "the first row of the open slice");
    memo_session_destroy(m.session);

    /* Zeroed in the last slice of the backward instead of the first, and in each slice. */
    model_init(&m, 30, 6, MEMO_POLICY_MEMO);
    const memo_verify_output outputs[] = {
        {"gw", m.t.sums.layers, LAYERS * sizeof m.t.sums.layers[0], MEMO_TYPE_F64, LAYERS},
        {"gx", m.t.sums.input, sizeof m.t.sums.input, MEMO_TYPE_F64, 0}};
    const memo_verify_desc check = {.outputs = outputs, .n_outputs = 2};
    CHECK_OK(memo_session_verify(&m.t.desc, &check, &error));
    m.t.mistake = T_ROUNDS;
    CHECK_OK(memo_session_verify(&m.t.desc, &check, &error));
    m.t.mistake = T_ZEROES_LAST;
    CHECK_ERROR(memo_session_verify(&m.t.desc, &check, &error), INVALID_ARGUMENT,
                "memo_session_verify: output `gw`, layer 0");
    CHECK(strstr(error.message, "reads bytes that no kernel has written") != NULL);
    m.t.mistake = T_ZEROES_EACH;
    CHECK_ERROR(memo_session_verify(&m.t.desc, &check, &error), INVALID_ARGUMENT,
                "memo_session_verify: output `gw`, layer 0: in slices it differs by");

    /* Late rows are of one open layer. */
    model_init(&m, 30, 30, MEMO_POLICY_KEEP);
    m.t.desc.step = open_two;
    CHECK_ERROR(model_run(&m, 30), INVALID_STATE,
                "memo_session: forward begin of layer 1 of 5: out of order; forward end of layer 0 "
                "comes next");
    memo_session_destroy(m.session);

    /* More rows for the expert than declared. */
    model_init(&m, 30, 6, MEMO_POLICY_ALPHA);
    m.t.desc.routed_rows_layer = 5;
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT,
                "memo_session_set_routed.n_rows: out of range");
    memo_session_destroy(m.session);

    /* Too few rows for the expert, or no number at all. */
    for (int k = 1; k < 4; k++) {
        model_init(&m, 30, 0, MEMO_POLICY_KEEP);
        m.t.desc.is_checked = k < 3; /* the second is an error in every session */
        m.t.mistake = k == 1 ? T_ROUTES_TOO_FEW : T_FORGETS_TO_ROUTE;
        CHECK_CASE(model_run(&m, 30) &&
                       strstr(error.message,
                              k == 1 ? "layer 0, tensor `expert`, row"
                                     : "layer 0, tensor `expert`: its rows are not known; call "
                                       "memo_session_set_routed first"),
                   "%s", error.message);
        memo_session_destroy(m.session);
    }

    /* An INPUT that is not what the EDGE was: found by a checked session. */
    model_init(&m, 30, 6, MEMO_POLICY_SWAP);
    m.t.desc.is_checked = 1;
    m.t.mistake = T_FORGETS_INPUT;
    CHECK_ERROR(model_run(&m, 30), INVALID_ARGUMENT, "tensor `input`");
    memo_session_destroy(m.session);
}

/* A fault in every call, of a checked session in some: a status, nothing leaked, and the next
 * micro-batch is right.  Returns the number of calls. */
static int64_t fail_every_call(int is_checked) {
    static model m;
    int64_t k;
    int n_failed = 0, is_done = 0;
    for (k = 1; !is_done && k < 10000; k += 1 + k / (is_checked ? 20 : 60)) {
        own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
        memo_faults f;
        memo_faults_init(&f, host);
        f.failing_call = k;
        model_init(&m, 12, 4, MEMO_POLICY_SWAP);
        m.t.desc.device = &f.device;
        m.t.desc.is_checked = is_checked;
        memo_status status = model_run(&m, 11);
        is_done = !f.failed;
        CHECK_CASE(is_done || status || !is_checked, "call %lld, %s, fails unseen", (long long)k,
                   f.failed ? f.failed : "none");
        if (status && m.session) CHECK_OK(run_batch(&m, 11, 0));
        n_failed += status != MEMO_STATUS_OK;
        if (m.session) expect_bits(&m, 11, 0);
        memo_session_destroy(m.session);
    }
    CHECK_CASE(is_done && n_failed > 50, "%d failed, %lld calls", n_failed, (long long)k);
    return k;
}

TEST(every_fault_is_a_status) {
    const int64_t n_calls = fail_every_call(0);
    CHECK_IS(fail_every_call(1), >, n_calls);
}

/* Each shape has its number of slices. */
TEST(shapes_have_slices) {
    static const memo_shape shapes[] = {{31, 0}, {13, 0}, {31, 1}, {5, 0}};
    static const int32_t order[] = {0, 2, 1, 3, 2, 1, 0, 3};
    static model all;
    for (int policy = 0; policy < MEMO_N_POLICIES; policy++) {
        model_init(&all, 31, 8,
                   policy == MEMO_POLICY_ROWS ? MEMO_POLICY_ALPHA : (memo_policy)policy);
        all.t.desc.is_checked = policy == MEMO_POLICY_ROWS;
        all.t.desc.shapes = shapes;
        all.t.desc.n_shapes = 4;
        if (policy == MEMO_POLICY_MEMO) all.t.desc.device_bytes = 15 * 31 * T_ROW_BYTES + 1024;
        CHECK_CASE(memo_session_create(&all.t.desc, &all.session, &error) == MEMO_STATUS_OK,
                   "policy %d: %s", policy, error.message);
        for (int k = 0; k < 8 && all.session; k++) {
            CHECK_OK(run_batch(&all, 0, order[k]));
            CHECK_IS(memo_session_get_slice(all.session).n_slices, ==,
                     (shapes[order[k]].n_rows - 1) / 8 + 1);
            expect_bits(&all, shapes[order[k]].n_rows, shapes[order[k]].is_forward_only);
        }
        memo_session_destroy(all.session);
    }
}

/* --- a clock of its own, which only computation moves --- */
static struct {
    memo_device inner;
    double now_s, times_s[4096];
    memo_event events[4096];
    int n;
    double wait_s; /* of the compute stream for an event */
    memo_stream compute;
} virtual_clock;

static int virtual_find(memo_event event) {
    int i = 0;
    while (i < virtual_clock.n && virtual_clock.events[i] != event) i++;
    return i;
}
static memo_status virtual_record(void* context, memo_event event, memo_stream stream,
                                  memo_error* e) {
    const int i = virtual_find(event);
    virtual_clock.events[i] = event;
    virtual_clock.times_s[i] = virtual_clock.now_s;
    if (i == virtual_clock.n && i < 4095) virtual_clock.n++;
    return virtual_clock.inner.event_record(context, event, stream, e);
}
static memo_status virtual_elapsed(MEMO_UNUSED void* context, memo_event begin, memo_event end,
                                   double* s, MEMO_UNUSED memo_error* e) {
    *s = virtual_clock.times_s[virtual_find(end)] - virtual_clock.times_s[virtual_find(begin)];
    if (*s == 0) *s = 1e-9; /* of copies */
    return MEMO_STATUS_OK;
}
static memo_status virtual_wait(void* context, memo_event event, memo_stream stream,
                                memo_error* e) {
    if (stream == virtual_clock.compute) virtual_clock.now_s += virtual_clock.wait_s;
    return virtual_clock.inner.event_wait(context, event, stream, e);
}
/* A device whose events have the virtual time, from 0 on. */
static memo_device virtual_device(const memo_device* inner) {
    memo_device device = *inner;
    memset(&virtual_clock, 0, sizeof virtual_clock);
    virtual_clock.inner = *inner;
    device.event_record = virtual_record;
    device.event_elapsed = virtual_elapsed;
    device.event_wait = virtual_wait;
    return device;
}
/* Seconds of rows [begin, end), if a row and a row with one before it take so many. */
static double virtual_s(int64_t begin, int64_t end, double row_s, double pair_s) {
    return (double)(end - begin) * (row_s + pair_s * (double)(begin + end) / 2);
}
static void virtual_compute(memo_session* s, int32_t layer, double row_s, double pair_s) {
    const memo_slice slice = memo_session_get_slice(s);
    virtual_clock.now_s += virtual_s(slice.begin, slice.end, row_s, pair_s) * (layer == 2 ? 7 : 1);
}
static void virtual_forward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    virtual_compute(s, layer, 3, 0.25);
}
/* The last layer's also computes the loss. */
static void virtual_backward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    virtual_compute(s, layer, 5 + (layer == LAYERS - 1), 0.75);
}
static void virtual_recompute(void* user, memo_session* s, int32_t layer, int32_t t, int64_t first,
                              int64_t last) {
    const int64_t begin = memo_session_get_slice(s).begin;
    (void)user;
    (void)layer;
    if (t == T_ATTENTION)
        virtual_clock.now_s += virtual_s(begin + first, begin + last, 0.5, 0.125);
    else
        virtual_clock.now_s += (double)(last - first);
}

static void is_near(double a, double b) {
    CHECK_CASE(fabs(a - b) < 1e-6 * (1 + fabs(b)), "%g, not %g", a, b);
}

/* The times of its passes on the virtual device, on which the compute stream waits for wait_s
 * whenever it waits. */
static memo_profile measured(model* m, double wait_s) {
    own_device* inner = new_device(MEMO_ZERO(memo_host_device_desc));
    memo_device device = virtual_device(inner);
    memo_profile p;
    memo_stream stream = new_stream(&device, "compute");
    virtual_clock.wait_s = wait_s;
    virtual_clock.compute = stream;
    if (m->t.desc.recompute) m->t.desc.recompute = virtual_recompute;
    m->t.desc.device = &device;
    m->t.desc.computes_on_host = 0;
    m->t.desc.compute_stream = stream;
    CHECK_OK(session_times_of(&m->t.desc, 12, &p, &error));
    memo_stream_destroy(&device, stream, NULL);
    return p;
}

/* Measured times are the line that they were made from, whatever the number of slices.  One slow
 * layer of five does not change the times of its kind.  The rest of the micro-batch has what this
 * layer and the loss take in addition. */
TEST(times_are_lines) {
#ifdef MEMO_TEST_STRICT
    SKIP("a virtual clock, by which copies take no time and are many");
#endif
    static const int64_t lengths[][2] = {{48, 6}, {47, 12}, {45, 10}, {96, 32}, {31, 31}, {8, 2}};
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        static model m;
        const int64_t n = lengths[k][0], rows_now = lengths[k][1];
        const double middle = (double)n / 2, all = (double)n, of_slice = (double)rows_now;
        const int has_slices = rows_now < n;
        model_init(&m, n, rows_now, MEMO_POLICY_MEMO);
        m.t.desc.tile_rows = 1;
        m.t.desc.forward = virtual_forward, m.t.desc.backward = virtual_backward;
        const memo_profile p = measured(&m, k % 2 ? 0 : 1000);
        is_near(p.forward_s[0], of_slice * (3 + 0.25 * middle));
        is_near(p.backward_s[0], of_slice * (5 + 0.75 * middle));
        is_near(p.tensors[T_ATTENTION].recompute_s_per_row[0], 0.5 + 0.125 * middle);
        is_near(p.tensors[T_MIDDLE].recompute_s_per_row[0], 1);
        is_near(p.forward_growth_s[0], has_slices * of_slice * 0.125 * all);
        is_near(p.backward_growth_s[0], has_slices * of_slice * 0.375 * all);
        is_near(p.tensors[T_ATTENTION].recompute_growth_s_per_row[0], has_slices * 0.0625 * all);
        is_near(p.tensors[T_MIDDLE].recompute_growth_s_per_row[0], 0);
        is_near(p.between_s, all + 6 * (virtual_s(0, n, 3, 0.25) + virtual_s(0, n, 5, 0.75)));
    }
}

/* So are those of micro-batches in flight, whose loss is timed apart: it would be in every layer that
 * a stage computes last. */
static void virtual_plain_backward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    virtual_compute(s, layer, 5, 0.75);
}
static void virtual_loss(MEMO_UNUSED void* user, memo_session* s) {
    const memo_slice slice = memo_session_get_slice(s);
    virtual_clock.now_s += virtual_s(slice.begin, slice.end, 1, 0);
}
TEST(times_of_orders_are_lines) {
#ifdef MEMO_TEST_STRICT
    SKIP("a virtual clock, by which copies take no time and are many");
#endif
    static const int64_t lengths[][2] = {{48, 6}, {47, 12}, {96, 32}, {31, 31}};
    static const memo_turn order[] = {{0, 0, MEMO_PASS_FORWARD},  {1, 0, MEMO_PASS_FORWARD},
                                      {0, 0, MEMO_PASS_BACKWARD}, {2, 0, MEMO_PASS_FORWARD},
                                      {1, 0, MEMO_PASS_BACKWARD}, {2, 0, MEMO_PASS_BACKWARD}};
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        static model m;
        const int64_t n = lengths[k][0], rows_now = lengths[k][1];
        const double middle = (double)n / 2, all = (double)n, of_slice = (double)rows_now;
        const int has_slices = rows_now < n;
        model_init(&m, n, rows_now, MEMO_POLICY_MEMO);
        m.t.desc.tile_rows = 1;
        m.t.desc.n_tensors = T_EXPERT;
        m.t.desc.routed_rows_layer = m.t.desc.routed_rows_all = 0;
        m.t.desc.order = order, m.t.desc.n_order = 6;
        m.t.desc.forward = virtual_forward, m.t.desc.backward = virtual_plain_backward;
        m.t.desc.loss = virtual_loss;
        const memo_profile p = measured(&m, k % 2 ? 0 : 1000);
        is_near(p.forward_s[0], of_slice * (3 + 0.25 * middle));
        is_near(p.backward_s[0], of_slice * (5 + 0.75 * middle));
        is_near(p.forward_growth_s[0], has_slices * of_slice * 0.125 * all);
        is_near(p.backward_growth_s[0], has_slices * of_slice * 0.375 * all);
        is_near(p.between_s, all);
    }
}

/* A session times itself on the virtual device, whose copies take no time, in slices and at once.
 * The step that its plan predicts is the step that then runs. */
TEST(sessions_that_time_themselves_predict_their_steps) {
#ifdef MEMO_TEST_STRICT
    SKIP("a virtual clock, by which copies take no time and are many");
#endif
    double worst = 0;
    int n_recomputed = 0;
    for (int k = memo_test_all() ? 0 : 3; k < 6; k++) {
        static model m;
        const int64_t n = 48, rows_now = k % 3 ? 16 * (k % 3) : n;
        model_init(&m, n, rows_now, MEMO_POLICY_MEMO);
        m.t.desc.tile_rows = 1;
        m.t.desc.forward = virtual_forward, m.t.desc.backward = virtual_backward;
        m.t.desc.recompute = virtual_recompute;
        m.t.desc.timed_steps = 3 + k % 2;
        m.t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&m.t.desc, NULL);
        m.t.desc.device_bytes = least->device_bytes;
        if (k > 2) m.t.desc.host_bytes = least->host_bytes * 5 / 4; /* some rows are recomputed */
        own_device* inner = new_device(MEMO_ZERO(memo_host_device_desc));
        memo_device device = virtual_device(inner);
        memo_stream stream = new_stream(&device, "compute");
        m.t.desc.device = &device;
        m.t.desc.computes_on_host = 0;
        m.t.desc.compute_stream = stream;
        CHECK_OK(memo_session_create(&m.t.desc, &m.session, &error));
        if (!m.session) return;
        for (int i = 0; i < 5; i++) CHECK_OK(run_batch(&m, n, 0));
        const double begin_s = virtual_clock.now_s;
        CHECK_OK(run_batch(&m, n, 0));
        const memo_session_info info = memo_session_get_info(m.session);
        const double took_s = virtual_clock.now_s - begin_s, said_s = info.plan->times->step_s;
        n_recomputed += info.plan->times->recompute_s > 0;
        worst = fmax(worst, fabs(said_s / took_s - 1));
        CHECK_CASE(fabs(said_s / took_s - 1) < 0.005, "case %d: predicted %g, took %g", k, said_s,
                   took_s);
        memo_session_destroy(m.session);
        memo_stream_destroy(&device, stream, NULL);
    }
    printf("# off by at most %.2g of a step\n", worst);
    CHECK_IS(n_recomputed, >, 0);
}

/* A layer in four is late, and takes 4 s instead of 1 s.  The profile's layers take what measured
 * micro-batches took, not the sum of medians. */
static void late_compute(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                         MEMO_UNUSED int32_t layer) {
    static uint64_t draws = 1;
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    virtual_clock.now_s += draws >> 62 ? 1 : 4;
}
TEST(late_layers_count) {
#ifdef MEMO_TEST_STRICT
    SKIP("a virtual clock, by which copies take no time and are many");
#endif
    static model m;
    model_init(&m, 48, 6, MEMO_POLICY_MEMO);
    m.t.desc.forward = m.t.desc.backward = late_compute;
    const memo_profile p = measured(&m, 0);
    CHECK_CASE(p.forward_s[0] + p.backward_s[0] > 2.6 && p.forward_s[0] + p.backward_s[0] < 4,
               "%g s; the mean is 3.5", p.forward_s[0] + p.backward_s[0]);
}

/* A backward that recomputes itself, in its own order, and layers of which two are open. */
static void recomputing_backward(void* user, memo_session* s, int32_t layer) {
    const memo_session_info info = memo_session_get_info(s);
    for (int32_t t = T_N_TENSORS - 1; t >= 0; t--) {
        const memo_item* tensor = &info.plan->swap.tensors[t];
        int64_t begin = 0, end = 0;
        if (!(tensor->is & MEMO_BY_BACKWARD)) continue;
        memo_swap_get_recompute_rows(info.swap, layer, t, &begin, &end);
        if (begin < end) virtual_recompute(user, s, layer, t, begin, end);
    }
    virtual_backward(user, s, layer);
}
static void fused_step(void* user, memo_session* s) {
    int computes = memo_session_forward_begin(s, 0);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layer + 1 < LAYERS) (void)memo_session_forward_begin(s, layer + 1);
        if (computes) virtual_forward(user, s, layer);
        memo_session_forward_end(s, layer);
    }
    computes = memo_session_backward_begin(s, LAYERS - 1);
    for (int32_t layer = LAYERS - 1; layer >= 0; layer--) {
        if (layer > 0) (void)memo_session_backward_begin(s, layer - 1);
        if (computes) virtual_backward(user, s, layer);
        memo_session_backward_end(s, layer);
    }
}
TEST(nothing_is_timed_twice) {
#ifdef MEMO_TEST_STRICT
    SKIP("a virtual clock, by which copies take no time and are many");
#endif
    enum { N = 24 };
    double whole_s = 0;
    for (int k = 0; k < 4; k++) {
        static model m;
        model_init(&m, N, N, MEMO_POLICY_RECOMPUTE);
        m.t.desc.forward = virtual_forward;
        m.t.desc.backward = k % 2 ? recomputing_backward : virtual_backward;
        m.t.desc.n_buffers = 0, m.t.desc.routed_rows_layer = m.t.desc.routed_rows_all = 0;
        for (int t = 0; t < T_N_TENSORS; t++) /* EDGE and late rows allow one open layer */
            if (m.t.tensors[t].scope || m.t.tensors[t].is)
                item_choose(&m.t.tensors[t], MEMO_MOVE, MEMO_SLICE, 0);
        for (int t = 0; t < T_N_TENSORS && k % 2; t++)
            if (item_recomputes(m.t.tensors, t) && (k == 1 || t == T_MIDDLE))
                m.t.tensors[t].is = MEMO_BY_BACKWARD;
        if (k == 2) m.t.desc.step = fused_step;
        const memo_profile p = measured(&m, 1000);
        is_near(p.forward_s[0], virtual_s(0, N, 3, 0.25));
        is_near(p.backward_s[0], virtual_s(0, N, 5, 0.75));
        is_near(p.tensors[T_ATTENTION].recompute_s_per_row[0], 0.5 + 0.125 * N / 2);
        is_near(p.tensors[T_MIDDLE].recompute_s_per_row[0], 1);
        if (k == 0) whole_s = p.between_s;
        is_near(p.between_s, whole_s);
    }
}

/* The backward recomputes the tensors with the bit, from the last to the first source. */
static int64_t n_calls[T_N_TENSORS], n_by_backward;
static void counted_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                              int64_t begin, int64_t end) {
    n_calls[tensor]++;
    t_recompute(user, s, layer, tensor, begin, end);
}
static void forgetful_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                                int64_t begin, int64_t end) {
    if (tensor != T_OUT) t_recompute(user, s, layer, tensor, begin, end);
}
static void partly_recomputing_backward(void* user, memo_session* s, int32_t layer) {
    const memo_session_info info = memo_session_get_info(s);
    const memo_slice slice = memo_session_get_slice(s);
    const int32_t step =
        layer * slice.n_slices + (int32_t)(slice.begin / info.plan->swap.n_rows); /* the engine's */
    for (int32_t t = 0; t < T_N_TENSORS; t++) {
        int64_t begin = 0, end = 0;
        if (!(info.plan->swap.tensors[t].is & MEMO_BY_BACKWARD)) continue;
        memo_swap_get_recompute_rows(info.swap, step, t, &begin, &end);
        if (begin < end) t_recompute(user, s, layer, t, begin, end);
        n_by_backward += end - begin;
    }
    t_backward(user, s, layer);
}

/* `recompute` makes the other tensors, and those of the backward only to time them.  In slices and
 * at once, checked and not, timed and not. */
TEST(a_backward_recomputes_some_tensors) {
    enum { N = 30, OUT = 1 << T_OUT, UP = 1 << T_UP, MIDDLE = 1 << T_MIDDLE };
    static const uint32_t sets[] = {OUT, OUT | MIDDLE, UP, OUT | UP};
    for (int k = 0; k < 32; k += memo_test_all() ? 1 : 3) {
        static model m;
        const uint32_t set = sets[k / 8];
        const int is_timed = k & 4;
        model_init(&m, N, k & 1 ? 6 : N, MEMO_POLICY_RECOMPUTE);
        m.t.desc.backward = partly_recomputing_backward;
        m.t.desc.recompute = counted_recompute;
        m.t.desc.is_checked = (k & 2) != 0;
        m.t.desc.timed_steps = is_timed ? 3 : 0;
        for (int t = 0; t < T_N_TENSORS; t++)
            if (set >> t & 1) m.t.tensors[t].is |= MEMO_BY_BACKWARD;
        memset(n_calls, 0, sizeof n_calls);
        CHECK_OK(memo_session_create(&m.t.desc, &m.session, &error));
        for (int i = 0; i < 6 && m.session; i++) {
            n_by_backward = 0;
            if (i == 4) memset(n_calls, 0, sizeof n_calls);
            CHECK_OK(run_batch(&m, N, 0));
            expect_bits(&m, N, 0);
            CHECK_CASE(n_by_backward > 0, "case %d, micro-batch %d", k, i);
            for (int t = 0; t < T_N_TENSORS && i % 3 == 2;
                 t++) /* in the first three, the last two */
                CHECK_CASE((n_calls[t] > 0) == (item_recomputes(m.t.tensors, t) &&
                                                ((is_timed && i == 2) || !(set >> t & 1))),
                           "case %d, micro-batch %d: %s", k, i, m.t.tensors[t].name);
        }
        memo_session_destroy(m.session);
    }

    /* What `recompute` makes from such a tensor is made too early. */
    static model m;
    model_init(&m, N, N, MEMO_POLICY_RECOMPUTE);
    m.t.desc.backward = partly_recomputing_backward;
    m.t.desc.is_checked = 1;
    m.t.tensors[T_HIDDEN].is = MEMO_BY_BACKWARD;
    CHECK_ERROR(model_run(&m, N), INVALID_ARGUMENT,
                "tensor `attention`, row 0: recompute gives it");
    memo_session_destroy(m.session);

    /* It is called to time them, so it must make them. */
    m.t.tensors[T_HIDDEN].is = 0;
    m.t.tensors[T_OUT].is = MEMO_BY_BACKWARD;
    m.t.desc.recompute = forgetful_recompute;
    m.t.desc.timed_steps = 3;
    CHECK_ERROR(model_run(&m, N), INVALID_ARGUMENT, "tensor `out`, row 0: recompute did not write");
    memo_session_destroy(m.session);
    m.t.desc.recompute = NULL;
    CHECK_ERROR(model_run(&m, N), INVALID_ARGUMENT, "memo_session_desc.recompute: NULL");
}

/* States of FIRST and LAST alone have an update, too. */
static void virtual_update(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s, int32_t layer) {
    CHECK(layer == MEMO_LAYER_FIRST || layer == LAYERS);
    virtual_clock.now_s += layer < 0 ? 3 * 2048 : 1024;
}
static void no_update_between(void* user, memo_session* s, int32_t layer) {
    if (layer == MEMO_LAYER_FIRST || layer == LAYERS) virtual_update(user, s, layer);
}
TEST(updates_of_embedding_and_classifier_are_timed) {
#ifdef MEMO_TEST_STRICT
    SKIP("a virtual clock, by which copies take no time and are many");
#endif
    static const memo_state states[] = {
        {"embedding", 2048, MEMO_STATE_FORWARD | MEMO_STATE_UPDATE, MEMO_STATE_FIRST},
        {"d_embedding", 2048, MEMO_STATE_GRADIENT, MEMO_STATE_FIRST},
        {"classifier", 1024, MEMO_STATE_FORWARD | MEMO_STATE_UPDATE, MEMO_STATE_LAST}};
    static model m;
    model_init(&m, 24, 24, MEMO_POLICY_MEMO);
    m.t.desc.forward = virtual_forward, m.t.desc.backward = virtual_backward;
    m.t.desc.states = states, m.t.desc.n_states = 3;
    m.t.desc.update = no_update_between;
    const memo_profile p = measured(&m, 0);
    is_near(p.update_s_per_byte, (3 * 2048 + 1024) / (2 * 2048 + 1024.0));
}

/* What is measured are the largest slices that fit under any policy, even if recomputation alone
 * needs smaller ones. */
TEST(the_largest_slices_are_measured) {
    static const memo_policy policies[] = {MEMO_POLICY_RECOMPUTE, MEMO_POLICY_MEMO,
                                           MEMO_POLICY_RECOMPUTE};
    static const int fits[] = {0, 1, 1};
    enum { N = 2048 };
    static model m;
    memo_profile profile;
    memset(&virtual_clock, 0, sizeof virtual_clock);
    model_init(&m, N, 0, MEMO_POLICY_RECOMPUTE);
    m.t.desc.forward = virtual_forward;
    m.t.desc.backward = virtual_backward;
    m.t.desc.recompute = virtual_recompute;
    for (int k = 0; k < 4; k++) {
        if (k) m.t.desc.policy = policies[k - 1];
        m.t.desc.slice_rows = k < 3 ? N : N / 2;
        own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
        if (!k) m.t.desc.device_bytes = plan->device_bytes - 512;
        if (k) CHECK_CASE(plan->fits == fits[k - 1], "%d: %s", k, plan->shortage);
    }
    m.t.desc.policy = MEMO_POLICY_MEMO;
    m.t.desc.slice_rows = 0;
    CHECK_OK(session_times(&m.t.desc, &profile, &error));
    CHECK_IS(profile.n_rows, ==, N);
}

/* A larger table, for plans alone: times of a slice grow with its position. */
static void table_init(model* m, memo_profile* profile, int64_t n_rows) {
    model_init(m, n_rows, 0, MEMO_POLICY_MEMO);
    m->t.desc.slice_rows = 0;
    m->t.desc.tile_rows = 128;
    for (int t = 0; t < T_N_TENSORS; t++)
        m->t.tensors[t].row_bytes = t == T_K ? 768 : t == T_V ? 256 : 256 * (1 + t % 3);
    m->t.tensors[T_INPUT].row_bytes = m->t.tensors[T_X].row_bytes;
    memset(profile, 0, sizeof *profile);
    profile->n_rows = 2048;
    profile->n_kinds = 1;
    profile->forward_s[0] = 0.010;
    profile->backward_s[0] = 0.025;
    profile->forward_growth_s[0] = 0.006;
    profile->backward_growth_s[0] = 0.015;
    profile->n_tensors = T_N_TENSORS;
    for (int t = 0; t < T_N_TENSORS; t++) {
        snprintf(profile->tensors[t].name, sizeof profile->tensors[t].name, "%s",
                 m->t.tensors[t].name);
        profile->tensors[t].recompute_s_per_row[0] =
            t < T_HIDDEN || t == T_K || t == T_V ? -1 : (t == T_ATTENTION ? 0.006 : 0.001) / 2048;
    }
    profile->tensors[T_ATTENTION].recompute_growth_s_per_row[0] = 0.006 / 2048;
    profile->copies[1].size_bytes = 1 << 20;
    profile->copies[1].out_s = profile->copies[1].back_s = (1 << 20) / 3e8;
}

/* slice_rows 0: the largest size that fits, and a plan whose time is that of the schedule. */
TEST(the_planner_chooses_the_size) {
    static model m;
    const int64_t n = memo_test_all() ? 16384 : 2048, of_length = (2 * 2 + 2) * n * 768;
    int n_sliced = 0;
    for (int k = memo_test_all() ? 0 : 2; k < 4; k++) {
        memo_profile profile;
        table_init(&m, &profile, n);
        m.t.desc.device_bytes = of_length + (int64_t)(n >> k) * 7000;
        own_step_plan* plan = step_plan_of(&m.t.desc, &profile);
        CHECK_CASE(plan->fits, "%s", plan->shortage);
        if (!plan->fits || !plan->times) {
            memo_step_plan_destroy(plan);
            continue;
        }
        n_sliced += plan->swap.n_slices > 1;
        memo_step_plan* larger = NULL;
        if (plan->swap.n_slices > 1) { /* a larger one does not fit, or is no faster */
            m.t.desc.slice_rows = 2 * plan->swap.n_rows;
            CHECK_OK(memo_session_plan(&m.t.desc, &profile, &larger, &error));
            CHECK_CASE(!larger->fits || larger->times->step_s >= plan->times->step_s,
                       "%g s, not %g s", larger->times->step_s, plan->times->step_s);
            memo_step_plan_destroy(larger);
        }

        /* The simulated schedule of the plan. */
        const memo_swap_plan_desc step = {.swap = &plan->swap, .profile = &profile};
        own_schedule* schedule = schedule_of_swap(&step, 1);
        own_times* simulation = times_of(schedule);
        CHECK_CASE(fabs(simulation->makespan_s / plan->times->step_s - 1) < 0.05,
                   "%lld rows: %g s, predicted %g s", (long long)plan->swap.n_rows,
                   simulation->makespan_s, plan->times->step_s);
        printf("# %lld rows of %lld: %g s, predicted %g s\n", (long long)plan->swap.n_rows,
               (long long)n, simulation->makespan_s, plan->times->step_s);
    }
    CHECK_IS(n_sliced, >, 1);
}

/* Sizes are tried until two are no better than the best, though all rows at once fit. */
TEST(smaller_slices_are_tried_while_they_gain) {
    enum { N = 16384, LEAST = N / 8 };
    int n_after_three = 0;
    for (int k = 0; k < memo_test_cases(2, 4); k++) {
        static model m;
        memo_profile profile;
        double of_three_s = HUGE_VAL, best_s = HUGE_VAL;
        table_init(&m, &profile, N);
        m.t.desc.tile_rows = 512;
        m.t.desc.n_layers = 2;
        m.t.desc.device_bytes = 6 * N * 768 + (int64_t)(4 + k) * N * 500;
        own_step_plan* chosen = step_plan_of(&m.t.desc, &profile);
        for (int64_t rows = N; rows >= LEAST; rows /= 2) {
            m.t.desc.slice_rows = rows;
            own_step_plan* plan = step_plan_of(&m.t.desc, &profile);
            CHECK_CASE(plan->fits, "slices of %lld", (long long)rows);
            best_s = fmin(best_s, plan->times->step_s);
            if (rows >= N / 4) of_three_s = best_s;
        }
        CHECK_CASE(chosen->times->step_s <= 1.001 * best_s, "%g s in slices of %lld, not %g",
                   chosen->times->step_s, (long long)chosen->swap.n_rows, best_s);
        n_after_three += best_s < 0.999 * of_three_s;
    }
    CHECK_IS(n_after_three, >, 0);
}

/* Without enough host memory no size fits: the plan is the one that fits the device and lacks the
 * fewest bytes on the host. */
TEST(the_nearest_size_is_returned) {
    static model m;
    memo_profile profile;
    const int64_t n = memo_test_all() ? 16384 : 2048, fitting = memo_test_all() ? n / 4 : n / 2;
    memo_step_plan* other = NULL;
    int n_fit_device = 0;
    table_init(&m, &profile, n);
    m.t.desc.device_bytes = (2 * 2 + 2) * n * 768 / 2 + fitting * 7000;
    m.t.desc.host_bytes = n * 768;
    own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
    CHECK(!plan->fits && plan->device_bytes <= m.t.desc.device_bytes);
    for (int64_t rows = n; rows >= n / (memo_test_all() ? 16 : 4); rows /= 2) {
        m.t.desc.slice_rows = rows;
        CHECK_OK(memo_session_plan(&m.t.desc, NULL, &other, &error));
        CHECK(!other->fits);
        if (other->device_bytes <= m.t.desc.device_bytes) {
            n_fit_device++;
            CHECK_CASE((double)plan->host_bytes <= (double)other->host_bytes / 0.999,
                       "%lld bytes, %lld in slices of %lld", (long long)plan->host_bytes,
                       (long long)other->host_bytes, (long long)rows);
        }
        memo_step_plan_destroy(other);
    }
    CHECK_IS(n_fit_device, >, 0);
}

/* Small problems: no table is more than 0.1 % shorter than the plan, which may keep keys in all
 * slices of a layer. */
TEST(layers_keep_their_keys_if_that_is_faster) {
    enum { L = 3, S = 2, N = L * S };
    static const int64_t choices[] = {MEMO_ROWS_KEPT, 0, 2, 4};
    static const memo_item tensors[] = {MEMO_ITEM("h", 100, MEMO_MOVE, MEMO_EDGE),
                                        MEMO_ITEM("k", 2048, MEMO_MOVE, MEMO_LAYER),
                                        MEMO_ITEM("mlp", 1536, MEMO_ROWS)};
    int n_keeping = 0;
    for (int round = 0; round < 6; round += memo_test_all() ? 1 : 2) {
        memo_swap_plan* other = NULL;
        int64_t rows[N * 3];
        double best_s = 1e300, moved_s = 1e300;
        int32_t i, kept;
        memo_profile times = {.n_rows = 4,
                              .n_kinds = 1,
                              .n_tensors = 3,
                              .forward_s = {1},
                              .backward_s = {2},
                              .forward_growth_s = {0.5},
                              .tensors = {{"h", {-1}, {0}},
                                          {"k", {-1}, {0}},
                                          {"mlp", {0.1 + 0.2 * memo_test_real()}, {0}}}};
        memo_swap_desc swap = {.tensors = tensors,
                               .n_tensors = 3,
                               .n_layers = N,
                               .n_slices = S,
                               .n_rows = 4,
                               .tile_rows = 2};
        memo_swap_plan_desc desc = {.swap = &swap, .profile = &times};
        times.copies[1].size_bytes = 16384;
        times.copies[1].out_s = times.copies[1].back_s = 2 + 8 * memo_test_real();
        for (i = 0; i < N * 3; i++) rows[i] = i % 3 == 0 ? MEMO_ROWS_KEPT : i % 3 == 1 ? 4 : 0;
        swap.rows = rows;
        memo_swap_sizes least = sizes_of_desc(&swap);
        for (i = 0; i < N * 3; i++) rows[i] = MEMO_ROWS_KEPT;
        memo_swap_sizes most = sizes_of_desc(&swap);
        desc.device_bytes =
            least.device_bytes + (most.device_bytes - least.device_bytes) * (round + 1) / 7;

        /* Every table. */
        for (int32_t code = 0; code < 1 << (2 * N + L); code++) {
            for (i = 0; i < N; i++) {
                kept = code >> (2 * N + i / S) & 1;
                rows[3 * i] = MEMO_ROWS_KEPT;
                rows[3 * i + 1] = kept ? MEMO_ROWS_KEPT : 4;
                rows[3 * i + 2] = choices[code >> 2 * i & 3];
            }
            memo_swap_sizes sizes = sizes_of_desc(&swap);
            if (sizes.device_bytes > desc.device_bytes) continue;
            CHECK_OK(memo_plan_swap(&desc, &other, &error));
            if (other->step_s < best_s) best_s = other->step_s;
            if (!(code >> 2 * N) && other->step_s < moved_s) moved_s = other->step_s;
            memo_swap_plan_destroy(other);
        }
        swap.rows = NULL;
        own_swap_plan* plan = swap_plan_of(&desc);
        CHECK_CASE(plan->step_s <= 1.001 * best_s, "round %d: %g s, not %g s", round, plan->step_s,
                   best_s);
        for (i = 0, kept = 0; i < N; i++) kept += plan->rows && plan->rows[3 * i + 1] < 0;
        CHECK_IS(kept % S, ==, 0);
        CHECK_CASE(kept || plan->step_s >= 0.999 * moved_s, "%g s", plan->step_s);
        n_keeping += kept && plan->step_s < 0.999 * moved_s;
        printf("# %lld bytes: %g s, best %g s, with all keys moved %g s\n",
               (long long)desc.device_bytes, plan->step_s, best_s, moved_s);
    }
    CHECK_IS(n_keeping, >, 0);
}
