/* test_session.c - the session: random models under random budgets.  Layers write patterns and
 * check that they come back, on the calling thread or on a stream.  The device's capacity is the
 * budget, so that a session which takes more fails. */
#include "scarce.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "owned.h"
#include "session_times.h"
#include "pattern.h"
#include "item_choices.h"

enum { TENSORS_MAX = 6, LAYERS_MAX = 9 };

typedef struct model {
    memo_session_desc desc;
    memo_item tensors[TENSORS_MAX];
    int32_t layer_kinds[LAYERS_MAX];
    uint32_t tensor_kinds[TENSORS_MAX];
    memo_shape shapes[3];
    memo_device* host;
    memo_stream compute;
    int64_t setup_bytes, scratch_bytes;
    char *state, *scratch; /* from the session */
    int64_t micro_batch;
    int32_t n_backward;    /* layers; 0: forward alone */
    int32_t failing_layer; /* fails in its forward; -1: none */
    int64_t n_wrong;       /* bytes; written by the thread that computes the layer */
    int64_t n_setups, n_dry, n_calls;
    int32_t gives; /* bit 0: device memory, bit 1: host memory; the whole budget */
} model;

/* --- the computation of a layer --- */

static void launch(model* m, memo_session* s, void* bytes, int64_t begin, int64_t end, uint64_t key,
                   int checks) {
    pattern j = {bytes, begin, end, key, checks ? &m->n_wrong : NULL};
    if (!bytes || begin >= end) return;
    m->n_calls++;
    if (m->desc.computes_on_host || !m->host) {
        (void)run_pattern(&j, NULL);
    } else {
        memo_error e;
        memo_status status =
            memo_host_device_launch(m->host, m->compute, run_pattern, &j, (int64_t)sizeof j, &e);
        if (status) memo_session_fail(s, status, e.message);
    }
}

static void launch_rows(model* m, memo_session* s, int32_t layer, int32_t t, int64_t begin,
                        int64_t end, int checks) {
    int64_t row_bytes = m->tensors[t].row_bytes;
    uint64_t key = (uint64_t)((m->micro_batch * 64 + layer) * 16 + t) * 1000003u;
    if (!row_bytes || (m->desc.layer_kinds && m->tensor_kinds[t] &&
                       !(m->desc.tensor_kinds[t] >> m->desc.layer_kinds[layer] & 1)))
        return; /* the layer lacks it */
    launch(m, s, memo_session_get_address(s, layer, t), begin * row_bytes, end * row_bytes, key,
           checks);
}

static void setup(void* user, memo_session* s) {
    model* m = (model*)user;
    m->n_setups++;
    m->state = (char*)memo_session_alloc(s, m->setup_bytes);
    if (memo_session_computes(s)) launch(m, s, m->state, 0, m->setup_bytes, 7, 0);
}

static void forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        launch_rows(m, s, layer, t, 0, memo_session_get_batch(s).n_rows, 0);
    if (layer == m->failing_layer) memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

static void recompute(void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t begin,
                      int64_t end) {
    model* m = (model*)user;
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        if (item_leader(m->tensors, t) == tensor) launch_rows(m, s, layer, t, begin, end, 0);
}

static void backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    int64_t begin, end;
    memo_session_info info;
    memo_session_get_info(s, &info);
    for (int32_t t = 0; t < m->desc.n_tensors && m->desc.backward_recomputes; t++) {
        memo_swap_get_recompute_rows(info.swap, layer, t, &begin, &end);
        launch_rows(m, s, layer, t, begin, end, 0);
    }
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        launch_rows(m, s, layer, t, 0, memo_session_get_batch(s).n_rows, 1);
}

/* With a buffer for a part of the step, and perhaps without a backward. */
static void step(void* user, memo_session* s) {
    model* m = (model*)user;
    int32_t n = m->desc.n_layers;
    const int has_backward = !memo_session_get_batch(s).is_forward_only;
    m->n_dry += !memo_session_computes(s);
    for (int32_t l = 0; l < n; l++) {
        if (memo_session_forward_begin(s, l)) forward(user, s, l);
        memo_session_forward_end(s, l);
    }
    for (int32_t l = n - 1; l >= n - m->n_backward && has_backward; l--) {
        m->scratch = (char*)memo_session_alloc(s, m->scratch_bytes);
        if (memo_session_backward_begin(s, l)) {
            launch(m, s, m->scratch, 0, m->scratch_bytes, 3, 0);
            launch(m, s, m->state, 0, m->setup_bytes, 7, 1);
            backward(user, s, l);
            launch(m, s, m->scratch, 0, m->scratch_bytes, 3, 1);
        }
        memo_session_backward_end(s, l);
        memo_session_free(s, m->scratch);
    }
}

static void empty_model(model* m) {
    memset(m, 0, sizeof *m);
    m->failing_layer = -1;
    m->desc = MEMO_ZERO(memo_session_desc);
    m->desc.user = m;
    m->desc.tensors = m->tensors;
    for (int32_t t = 0; t < TENSORS_MAX; t++) m->tensors[t].away = MEMO_ROWS;
    m->desc.setup = setup;
    m->desc.recompute = recompute;
}

static void random_model(model* m) {
    empty_model(m);
    m->desc.n_tensors = (int32_t)memo_test_int(1, TENSORS_MAX);
    m->desc.n_layers = (int32_t)memo_test_int(memo_test_int(0, 3) ? 4 : 1, LAYERS_MAX);
    m->desc.n_rows = memo_test_int(1, 60);
    m->desc.tile_rows = memo_test_int(0, 9);
    m->desc.computes_on_host = memo_test_int(0, 1) != 0;
    for (int32_t t = 0; t < m->desc.n_tensors; t++) {
        static const char* const names[] = {"a", "b", "c", "d", "e", "f"};
        m->tensors[t].name = names[t];
        m->tensors[t].row_bytes = memo_test_int(0, 9) ? memo_test_int(1, 200) : 0;
        m->tensors[t].away = random_away(memo_test_int(0, 2) ? 3 : 4);
        if (t && memo_test_int(0, 4) == 0 && m->tensors[t - 1].row_bytes &&
            m->tensors[t - 1].away != MEMO_WITH)
            m->tensors[t].away = MEMO_WITH;
    }
    for (int32_t t = 0; t < LAYERS_MAX; t++) m->layer_kinds[t] = (int32_t)memo_test_int(0, 2);
    for (int32_t t = 0; t < m->desc.n_tensors; t++) /* 0: all kinds */
        m->tensor_kinds[t] = m->tensors[t].away == MEMO_WITH ? m->tensor_kinds[t - 1]
                                                             : (uint32_t)memo_test_int(0, 7);
    if (memo_test_int(0, 2) == 0) {
        m->desc.layer_kinds = m->layer_kinds;
        m->desc.tensor_kinds = m->tensor_kinds;
    }
    m->desc.forward = forward;
    m->desc.backward = backward;
    if (memo_test_int(0, 1)) m->desc.step = step;
    if (memo_test_int(0, 3) == 0) {
        m->desc.shapes = m->shapes;
        m->desc.n_shapes = (int32_t)memo_test_int(1, 3);
    }
    for (int32_t t = 0; t < m->desc.n_shapes; t++) {
        m->shapes[t].n_rows = t ? memo_test_int(1, m->desc.n_rows) : m->desc.n_rows;
        m->shapes[t].is_forward_only = t && memo_test_int(0, 2) == 0;
    }
    m->desc.backward_recomputes = memo_test_int(0, 2) == 0;
    m->n_backward = m->desc.n_layers;
    m->setup_bytes = memo_test_int(1, 3000);
    m->scratch_bytes = m->desc.step ? memo_test_int(1, 3000) : 0;
}

/* Bytes of a session that keeps everything. */
static int64_t kept_bytes(model* m) {
    model copy = *m;
    copy.desc.n_shapes = 0;
    copy.desc.device = NULL;
    copy.desc.device_bytes = copy.desc.host_bytes = 0;
    copy.desc.user = &copy;
    memo_session_info info = {0};
    own_session* s = new_session(&copy.desc);
    if (s) memo_session_get_info(s, &info);
    CHECK(!info.plan->times && info.plan->sizes.swapped_bytes == 0);
    return info.plan->device_bytes;
}

/* A device that has just the budget.  If the model gives memory, nothing is left of it. */
static void open_device(model* m, int64_t device_bytes, int64_t host_bytes) {
    m->host = new_device((memo_host_device_desc){.device_memory_bytes = device_bytes,
                                                 .host_memory_bytes = host_bytes});
    CHECK_OK(memo_stream_create(m->host, "compute", 0, &m->compute, &error));
    m->desc.device = m->host;
    m->desc.compute_stream = m->desc.computes_on_host ? NULL : m->compute;
    if (m->gives & 1 && device_bytes % 512 == 0)
        CHECK_OK(memo_device_alloc(m->host, device_bytes, &m->desc.device_memory, &error));
    if (m->gives & 2 && host_bytes)
        CHECK_OK(memo_host_alloc(m->host, host_bytes, &m->desc.host_memory, &error));
}

static void close_device(model* m) {
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    if (m->desc.device_memory) CHECK_OK(memo_device_free(m->host, m->desc.device_memory, &error));
    if (m->desc.host_memory) CHECK_OK(memo_host_free(m->host, m->desc.host_memory, &error));
    m->desc.device_memory = m->desc.host_memory = NULL;
    drop_device(&m->host);
}
#define own_model OWNED(close_device) model

/* Runs the steps that the session times, and the one before which it plans. */
static void settle(model* m, memo_session* s, int32_t shape) {
    const memo_batch batch = {.shape = shape};
    for (m->micro_batch = 0; s && m->micro_batch < 5; m->micro_batch++)
        CHECK_OK(memo_session_run(s, &batch, &error));
}

/* Creates a session on a device that has just the budget of the desc.  info NULL: it has run
 * nothing; else it has planned by measured times. */
static memo_session* create(model* m, memo_session_info* info) {
    open_device(m, m->desc.device_bytes, m->desc.host_bytes);
    memo_session* s = new_session(&m->desc);
    if (info) settle(m, s, 0);
    if (s && info) memo_session_get_info(s, info);
    return s;
}

/* All bytes came back; nothing is left of the session and its device. */
static void finish(model* m, memo_session* s) {
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    CHECK_CASE(m->n_wrong == 0, "%lld bytes differ", (long long)m->n_wrong);
    memo_session_destroy(s);
    close_device(m);
}

/* Runs micro-batches, in which all bytes come back, and destroys the session. */
static void run_all(model* m, memo_session* s, int n) {
    for (m->micro_batch = 0; s && m->micro_batch < n; m->micro_batch++)
        CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    CHECK_IS(m->n_wrong, ==, 0);
    memo_session_destroy(s);
}

static void expect_refused(const memo_session_desc* desc, const char* text) {
    memo_session* s = NULL;
    CHECK_ERROR(memo_session_create(desc, &s, &error), INVALID_ARGUMENT, text);
    CHECK(!s);
}

/* --- tests --- */

/* For any budget: a session within it that brings everything back, or a refusal that names a
 * budget, which then works. */
TEST(any_budget_is_met_or_refused) {
    const int n_rounds = memo_test_all() ? 110 : 20;
    int n_least = 0, n_created = 0, n_moved = 0, n_recomputed = 0, n_spilled = 0;
    int n_device_refusals = 0, n_host_refusals = 0, n_given = 0;
    for (int round = 0; round < n_rounds; round++) {
        memo_session* s = NULL;
        const memo_step_plan* plan;
        memo_batch batch = {.n_rows = 0};
        model m;
        int64_t most, i;
        random_model(&m);
        most = kept_bytes(&m);
        m.desc.device_bytes = memo_test_int(1, most / 512 + 2) * 512;
        if (memo_test_int(0, 1))
            m.desc.host_bytes =
                memo_test_int(1, most / (memo_test_int(0, 1) ? 512 : 4096) + 1) * 512;
        if (memo_test_int(0, 2) == 0) { /* a file takes whole pages */
            m.desc.spill_directory = memo_test_folder();
            m.desc.host_bytes = memo_test_int(1, 8) * (memo_test_int(0, 2) ? 4096 : 1024);
            m.tensors[0].row_bytes = 100 * memo_test_int(1, 9);
            m.tensors[0].away = MEMO_MOVE;
            most = kept_bytes(&m);
            m.desc.device_bytes = most / memo_test_int(2, 3);
            m.desc.device_bytes += 8192;
        }
        m.gives = round % 4;
        open_device(&m, m.desc.device_bytes, m.desc.host_bytes);
        memset(&error, 0, sizeof error);
        memo_status status = memo_session_create(&m.desc, &s, &error);
        if (status) {
            const char* raise = strstr(error.message, "raise device_bytes to ");
            CHECK_CASE(status == MEMO_STATUS_INFEASIBLE && !s, "round %d: %s", round,
                       error.message);
            n_device_refusals += strstr(error.message, ".device_bytes") != NULL;
            n_host_refusals += strstr(error.message, ".host_bytes") != NULL;
            close_device(&m);
            if (!raise || m.desc.host_bytes) continue;

            /* What the message says is enough; the least is, and nothing below. */
            m.desc.device = NULL;
            int64_t least = least_of_session(&m.desc);
            CHECK_IS(least, <=, strtoll(raise + strlen("raise device_bytes to "), NULL, 10));
            for (i = 0; i < 2; i++) {
                m.desc.device_bytes = least - i;
                own_step_plan* planned = step_plan_of(&m.desc, NULL);
                for (plan = planned, n_least++; plan && plan->fits; plan = plan->next) {
                }
                CHECK_CASE(!plan == !i, "round %d: %lld bytes", round,
                           (long long)m.desc.device_bytes);
            }
            m.desc.device_bytes = strtoll(raise + strlen("raise device_bytes to "), NULL, 10);
            open_device(&m, m.desc.device_bytes, 0);
            CHECK_CASE(memo_session_create(&m.desc, &s, &error) == MEMO_STATUS_OK,
                       "round %d: %lld: %s", round, (long long)m.desc.device_bytes, error.message);
            memo_session_destroy(s);
            close_device(&m);
            continue;
        }
        memo_session_info info;
        settle(&m, s, 0);
        memo_session_get_info(s, &info);
        n_created++;
        n_moved += info.plan->sizes.swapped_bytes > 0;
        n_spilled += info.plan->sizes.n_spilled_layers > 0;
        n_given += m.desc.device_memory && m.desc.host_memory && info.plan->sizes.host_bytes > 0;
        n_recomputed += info.plan->times && info.plan->times->recompute_s > 0;
        for (plan = info.plan, i = 0; plan; plan = plan->next, i++) {
            CHECK_IS(plan->device_bytes, <=, m.desc.device_bytes);
            CHECK(!m.desc.host_bytes || plan->host_bytes <= m.desc.host_bytes);
            CHECK(!memo_plan_check(plan->addresses, plan->trace, &error));
            CHECK(!m.desc.n_shapes || plan->swap.n_rows == m.shapes[i].n_rows);
        }
        CHECK_IS(i, ==, m.desc.n_shapes ? m.desc.n_shapes : 1);
        for (i = 0; i < 4 + 4 * m.desc.n_shapes; i++) {
            m.micro_batch = i;
            batch.shape = m.desc.n_shapes ? (int32_t)memo_test_int(0, m.desc.n_shapes - 1) : 0;
            batch.n_rows = m.desc.n_shapes ? m.shapes[batch.shape].n_rows : m.desc.n_rows;
            batch.n_rows = memo_test_int(0, 1) ? 0 : memo_test_int(1, batch.n_rows);
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        finish(&m, s);
    }
    CHECK_CASE(
        n_created > n_rounds / 4 && n_least > 4 && n_moved > 2 && n_recomputed > 2 && n_spilled &&
            n_device_refusals > 2 && ((n_host_refusals && n_given) || !memo_test_all()),
        "%d created, %d moved, %d recomputed, %d spilled, %d and %d refused, %d in given "
        "memory",
        n_created, n_moved, n_recomputed, n_spilled, n_device_refusals, n_host_refusals, n_given);
}

/* A model whose session must swap and recompute. */
static void tight_model(model* m) {
    static const memo_item tensors[] = {
        MEMO_ITEM("input", 100, MEMO_MOVE), MEMO_ITEM("up", 400, MEMO_ROWS),
        MEMO_ITEM("attention", 100, MEMO_WHOLE), MEMO_ITEM("lse", 4, MEMO_WITH)};
    empty_model(m);
    memcpy(m->tensors, tensors, sizeof tensors);
    m->desc.n_tensors = 4;
    m->desc.n_layers = 8;
    m->desc.n_rows = 64;
    m->desc.tile_rows = 8;
    m->desc.step = step;
    m->n_backward = 8;
    m->setup_bytes = 1000;
    m->scratch_bytes = 2000;
    m->desc.device_bytes = 128 << 10; /* everything takes some 305 KiB */
}

/* The session calls these instead of a step. */
/* Two sessions in one block of the caller, by turns: the device has nothing else.  The times of
 * copies, too, are taken within the block. */
TEST(two_sessions_take_turns_in_the_caller_s_memory) {
    model m[2];
    memo_session* s[2] = {NULL, NULL};
    int64_t device_bytes = 0, host_bytes = 0;
    void *device_memory = NULL, *host_memory = NULL;
    memo_host_device_stats stats;
    for (int i = 0; i < 2; i++) {
        tight_model(&m[i]);
        m[i].desc.n_rows -= 16 * i;
        m[i].setup_bytes = m[i].scratch_bytes =
            1; /* bytes of setup must stay: this model has none */
        m[i].desc.setup = NULL;
        m[i].desc.device_bytes += 512 * i;
        m[i].desc.host_bytes = 512 << 10;
        device_bytes = m[i].desc.device_bytes;
        host_bytes = m[i].desc.host_bytes;
    }
    own_device* host = new_device((memo_host_device_desc){.device_memory_bytes = device_bytes,
                                                          .host_memory_bytes = host_bytes});
    CHECK_OK(memo_device_alloc(host, device_bytes, &device_memory, &error));
    CHECK_OK(memo_host_alloc(host, host_bytes, &host_memory, &error));
    for (int i = 0; i < 2; i++) {
        memo_session_info info;
        m[i].host = host;
        m[i].desc.device = host;
        m[i].desc.computes_on_host = 1;
        m[i].desc.device_memory = device_memory;
        m[i].desc.host_memory = host_memory;
        if (i) m[i].desc.policy = MEMO_POLICY_ALPHA, m[i].desc.has_alpha = 1, m[i].desc.alpha = 1;
        CHECK_OK(memo_session_create(&m[i].desc, &s[i], &error));
        settle(&m[i], s[i], 0);
        memo_session_get_info(s[i], &info);
        CHECK(i || info.plan->times); /* measured */
        CHECK(!i || info.plan->sizes.swapped_bytes > 0);
        for (int32_t l = 0; l < m[i].desc.n_layers; l++) {
            const char* at = (const char*)memo_session_get_address(s[i], l, 0);
            CHECK(at >= (char*)device_memory && at < (char*)device_memory + device_bytes);
        }
    }
    for (int64_t k = 0; k < 8; k++) {
        const int i = (int)memo_test_int(0, 1);
        m[i].micro_batch = k;
        CHECK_OK(memo_session_run(s[i], NULL, &error));
        CHECK_IS(m[i].n_wrong, ==, 0);
    }
    memo_host_device_get_stats(host, &stats);
    CHECK_IS(stats.device_peak_bytes, ==, device_bytes);
    CHECK_IS(stats.host_peak_bytes, ==, host_bytes);
    for (int i = 0; i < 2; i++) memo_session_destroy(s[i]);
    memo_host_device_get_stats(host, &stats);
    CHECK(stats.device_bytes == device_bytes && stats.host_bytes == host_bytes);

    /* A plan of another budget. */
    own_step_plan* large = step_plan_of(&m[1].desc, NULL);
    m[0].desc.device_bytes = 4096;
    CHECK_ERROR(memo_session_open(&m[0].desc, large, &s[0], &error), INVALID_ARGUMENT, "rows");
    m[1].desc.device_bytes = 4096;
    CHECK_ERROR(memo_session_open(&m[1].desc, large, &s[1], &error), INFEASIBLE,
                "memo_session_desc.device_memory: the plan takes ");
    m[1].desc.device_bytes = device_bytes;
    m[1].desc.host_bytes = 512;
    CHECK_ERROR(memo_session_open(&m[1].desc, large, &s[1], &error), INFEASIBLE,
                "memo_session_desc.host_memory: the plan takes ");
    CHECK_OK(memo_device_free(host, device_memory, &error));
    CHECK_OK(memo_host_free(host, host_memory, &error));
}

static void by_layers(model* m, void (*forward_of)(void*, memo_session*, int32_t),
                      void (*backward_of)(void*, memo_session*, int32_t)) {
    m->desc.step = NULL;
    m->desc.forward = forward_of;
    m->desc.backward = backward_of;
}

/* Of three layers, whose search is short, for tests with many sessions. */
static void shorten(model* m) {
    m->desc.n_layers = m->n_backward = 3;
    m->desc.device_bytes = 80 << 10;
}

TEST(forward_alone_needs_nothing_else) {
    model m;
    tight_model(&m);
    memo_session* s = create(&m, NULL);
    for (int i = 0; i < 6; i++) {
        m.micro_batch = i;
        m.n_backward = i % 3 == 0 ? 8 : i % 3 == 1 ? 0 : 3; /* all, none, given up */
        CHECK_OK(memo_session_run(s, NULL, &error));
    }
    finish(&m, s);
}

TEST(the_first_error_is_kept) {
    model m;
    tight_model(&m);
    memo_session* s = create(&m, NULL);
    CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "memo_session_begin first");

    /* An error of the trainer: later calls do nothing. */
    m.failing_layer = 2;
    int64_t n_calls = m.n_calls;
    CHECK_ERROR(memo_session_run(s, NULL, &error), DEVICE, "the trainer's own");
    CHECK_IS(m.n_calls, ==, n_calls + 3 * 4);
    m.failing_layer = -1;
    m.micro_batch = 1;
    CHECK_OK(memo_session_run(s, NULL, &error));

    /* The engine's, the arena's, and calls that make no sense. */
    memo_batch batch = {.n_rows = 65};
    CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_ARGUMENT,
                "memo_batch.n_rows: out of range (65)");
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK(memo_session_forward_begin(s, 1) == 0 && memo_session_computes(s) == 0);
    CHECK(memo_session_alloc(s, 1) == NULL);
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
    CHECK_IS(memo_session_forward_begin(s, 8), ==, 0);
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK(memo_session_alloc(s, 1 << 20) == NULL);
    CHECK_IS(memo_session_end(s, NULL), ==, MEMO_STATUS_DIVERGED);
    CHECK(memo_session_alloc(s, 8) == NULL);
    CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE,
                "memo_session_alloc: called outside of a micro-batch");
    CHECK_OK(memo_session_run(s, NULL, &error));

    /* begin abandons a micro-batch that was not ended; run refuses. */
    CHECK_IS(memo_session_begin(s, NULL), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
    CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE,
                "memo_session_run: called inside a micro-batch");
    CHECK_IS(memo_session_computes(s), ==, 1);
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
                                        "get_buffer: buffer: out of range (0)",
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
            CHECK(!memo_session_get_buffer(s, k == 5 ? 0 : -INT32_MAX));
        if (k == 3 || k == 4) CHECK(first[0] == memo_session_get_address(s, 0, 0));
        CHECK_ERROR(memo_session_end(s, &error), INVALID_ARGUMENT, words[k]);
    }
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
    m.desc.alpha = NAN, m.desc.has_alpha = 1;
    expect_refused(&m.desc, "memo_session_desc.alpha: out of range (nan); 0 to 1 are valid");
    m.desc.alpha = -1;
    expect_refused(&m.desc, "memo_session_desc.alpha: out of range (-1); 0 to 1 are valid");
    m.desc.has_alpha = 0;
    m.desc.compute_stream = NULL;
    expect_refused(&m.desc, "compute_stream: NULL; pass a stream");
    CHECK_ERROR(memo_stream_synchronize(m.host, NULL, &error), INVALID_ARGUMENT,
                "stream: NULL; pass a stream of this host device");
    close_device(&m);
    m.desc.n_tensors = 0;
    expect_refused(&m.desc, "n_tensors");
}

static const char* scratch_file(void) {
    static char path[250];
    return memo_test_path(path, "session");
}

/* Rows and addresses read are those written; a file that was altered or belongs to another model is
 * refused. */
TEST(a_plan_is_written_and_read) {
    memo_session *s = NULL, *again = NULL;
    memo_session_info a;
    memo_step_plan* above = NULL;
    memo_swap_times times = {0};
    own_schedule* schedule = NULL;
    static const char* const words[] = {"rows      layers", "attention, lse",
                                        "limit     ",       "predicted ",
                                        " of 128 KiB",      "device    activations "};
    model m;
    char* text = NULL;
    int64_t n_bytes = 0, highest = 0;
    tight_model(&m);
    s = create(&m, &a);
    CHECK_OK(memo_step_plan_write(a.plan, scratch_file(), &error));
    CHECK(a.plan->times && a.plan->sizes.swapped_bytes > 0);
    for (int64_t i = 0; i < 6; i++) expect_words(a.plan, words[i]);

    /* What it chose can be simulated, and drawn. */
    CHECK_OK(memo_swap_generate(&a.plan->swap, &times, &schedule, &error));
    own_check* check = check_of(schedule);
    CHECK(check->n_races == 0 && check->n_waits > 0);
    CHECK_OK(
        memo_plan_write_svg(a.plan->addresses, a.plan->trace, "a step", scratch_file(), &error));
    text = memo_test_file(scratch_file(), &n_bytes);
    CHECK(n_bytes > 0 && strstr(text, "<svg") && strstr(text, "backward"));
    free(text);
    CHECK_OK(memo_step_plan_write(a.plan, scratch_file(), &error));

    /* On another device, without measuring. */
    model other = m;
    other.desc.device = NULL;
    other.host = NULL;
    other.desc.user = &other;
    memo_step_plan* plan = step_plan_of_file(&other.desc, scratch_file());
    if (plan) {
        CHECK(plan->policy == MEMO_POLICY_MEMO && plan->fits && !plan->times);
        CHECK(!memcmp(a.plan->swap.rows, plan->swap.rows, 8 * 4 * sizeof(int64_t)));
        CHECK(a.plan->device_bytes == plan->device_bytes &&
              a.plan->swap.n_host_layers == plan->swap.n_host_layers);
        for (int64_t i = 0; i < plan->addresses->n_buffers; i++)
            CHECK_IS(plan->addresses->buffers[i].offset_bytes, ==,
                     a.plan->addresses->buffers[i].offset_bytes);
        CHECK_OK(memo_session_open(&other.desc, plan, &again, &error));
        CHECK_OK(memo_session_run(again, NULL, &error));
        CHECK_IS(other.n_wrong, ==, 0);
        memo_session_destroy(again);

        /* Addresses above the bound are valid; those that share bytes are not. */
        for (int64_t i = 1; i < plan->addresses->n_buffers; i++)
            if (plan->addresses->buffers[i].offset_bytes >
                plan->addresses->buffers[highest].offset_bytes)
                highest = i;
        other.desc.device_bytes *= 2;
        plan->addresses->buffers[highest].offset_bytes += 512;
        CHECK_OK(memo_step_plan_write(plan, scratch_file(), &error));
        plan->addresses->buffers[highest].offset_bytes = 0;
        CHECK_OK(memo_step_plan_read(&other.desc, scratch_file(), &above, &error));
        CHECK(above && above->addresses->proof == MEMO_PROOF_FEASIBLE &&
              above->device_bytes == plan->device_bytes + 512);
        CHECK_OK(memo_session_open(&other.desc, above, &again, &error));
        if (again) CHECK_OK(memo_session_run(again, NULL, &error));
        CHECK_IS(other.n_wrong, ==, 0);
        memo_session_destroy(again);
        memo_step_plan_destroy(above);
        CHECK_OK(memo_step_plan_write(plan, scratch_file(), &error));
        CHECK_ERROR(memo_step_plan_read(&other.desc, scratch_file(), &above, &error),
                    INVALID_ARGUMENT, "share bytes");
        other.desc.device_bytes /= 2;
        CHECK_OK(memo_step_plan_write(a.plan, scratch_file(), &error));

        /* A plan belongs to its tensors. */
        other.tensors[1].row_bytes++;
        other.desc.tensors = other.tensors;
        CHECK_ERROR(memo_session_open(&other.desc, plan, &again, &error), INVALID_ARGUMENT,
                    "shape 0 of the plan: tensor `up`: it has 400 as row_bytes, "
                    "the session has 401; plan again");
        memo_step_plan_destroy(plan);
    }
    CHECK_FAILS(memo_step_plan_read(&other.desc, scratch_file(), &plan, &error), INVALID_ARGUMENT);
    CHECK_CASE(strstr(error.message, "tensor `up`: it has 400 as row_bytes") && error.line > 0,
               "%s", error.message);
    other.tensors[1].row_bytes--;

    /* And to its requests. */
    other.scratch_bytes += 512;
    CHECK_ERROR(memo_step_plan_read(&other.desc, scratch_file(), &plan, &error), INVALID_ARGUMENT,
                "has 2000 bytes, not 2512; plan again");
    other.scratch_bytes -= 512;

    /* Other versions are refused. */
    text = memo_test_file(scratch_file(), &n_bytes);
    for (char version = '0'; version <= '3'; version++) {
        static const char* const why[] = {"invalid version 0", "older version 1", NULL,
                                          "newer version 3"};
        FILE* file = fopen(scratch_file(), "wb");
        strstr(text, "step-plan 2")[strlen("step-plan ")] = version;
        fwrite(text, 1, (size_t)n_bytes, file);
        fclose(file);
        strstr(text, "step-plan ")[strlen("step-plan ")] = '2';
        if (!why[version - '0']) continue;
        CHECK_ERROR(memo_step_plan_read(&other.desc, scratch_file(), &plan, &error), VERSION,
                    why[version - '0']);
    }

    /* Any altered byte, any length. */
    for (int64_t i = 0; i < n_bytes - 1; i += 7) { /* the last line may lack its end */
        FILE* file = fopen(scratch_file(), "wb");
        char kept = text[i];
        text[i] = (char)(kept ^ 1);
        fwrite(text, 1, (size_t)(i % 2 ? n_bytes : i), file);
        fclose(file);
        text[i] = kept;
        CHECK_CASE(memo_step_plan_read(&other.desc, scratch_file(), &plan, &error) && !plan,
                   "byte %lld", (long long)i);
    }
    free(text);
    CHECK_FAILS(memo_step_plan_read(&other.desc, "/nonexistent/plan", &plan, &error), IO);
    remove(scratch_file());
    memo_session_destroy(s);
    close_device(&m);
}

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
    memo_session_info info;
    memo_session_get_info(s, &info);
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

/* Layers are computed in micro-batches that train, once each, and never for times.  What setup has
 * written stays, at its address; the file is written once, and a second session begins with it. */
TEST(first_steps_are_timed) {
    static const int32_t timed_steps[] = {0, 2, 3, 7, -1};
    for (int k = 0; k < 5; k++) {
        memo_session* s = NULL;
        memo_session_info info;
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
        const int64_t n_setups = m.n_setups;
        const char* state = m.state;
        memo_session_get_info(s, &info);
        CHECK(!info.plan->times);
        CHECK_ERROR(memo_session_get_profile(s, 0, &profile, &error), INVALID_STATE,
                    "times are not known");
        CHECK_ERROR(memo_session_get_profile(s, 1, &profile, &error), INVALID_ARGUMENT, "shape");
        for (int64_t i = 0; i < 12; i++) {
            CHECK_OK(train(&m, s, i));
            launch(&m, s, m.state, 0, m.setup_bytes, 7, 1); /* what setup has written */
        }
        CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
        CHECK_IS(n_outside, ==, 0);
        CHECK(n_layer_calls[0] == 12 * 8 && n_layer_calls[1] == 12 * 8);
        CHECK_IS(planned_at, ==, k == 0 ? 4 : k == 1 ? 6 : k < 4 ? timed_steps[k] : -1);
        CHECK_IS(n_times_planned, ==, k < 4);
        CHECK(m.state == state && m.n_setups == n_setups);
        memo_session_get_info(s, &info);
        CHECK((info.plan->times != NULL) == (k < 4));
        CHECK(k == 4 || info.plan->policy == MEMO_POLICY_MEMO);
        CHECK_IS(n_lines_with("times are in"), ==, k < 4);
        if (k < 4) CHECK_OK(memo_session_get_profile(s, 0, &profile, &error));
        CHECK(k == 4 || (profile.forward_s[0] > 0 && profile.copies[1].size_bytes > 0));
        finish(&m, s);

        /* The file's times: no step is timed. */
        if (k == 4) continue;
        timed_model(&m);
        m.desc.profile_path = path;
        open_device(&m, m.desc.device_bytes, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        memo_session_get_info(s, &info);
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
        memo_session_info info;
        memo_profile profile;
        model m;
        timed_model(&m);
        m.desc.policy = (memo_policy)k;
        m.desc.has_alpha = 1, m.desc.alpha = 0.5;
        m.desc.device_bytes = 1 << 20;
        m.desc.timed_steps = 3;
        open_device(&m, 1 << 20, 0);
        CHECK_OK(memo_session_create(&m.desc, &s, &error));
        for (int64_t i = 0; i < 6; i++) CHECK_OK(train(&m, s, i));
        CHECK_OK(memo_session_get_profile(s, 0, &profile, &error));
        memo_session_get_info(s, &info);
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
    memo_session_get_info(s, &first);
    const int64_t device_bytes = first.plan->device_bytes;
    CHECK_IS(first.plan->sizes.host_bytes, ==, 0);
    refuses_host = 1;
    for (int64_t i = 0; i < 9; i++) CHECK_OK(train(&m, s, i));
    memo_session_get_info(s, &last);
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

/* --- ranks ---------------------------------------------------------------------------------------
 *
 * Each rank is a thread with a device.  They agree by a communicator on other devices; a rank that
 * waits for another for 20 s has found a deadlock. */

enum { RANKS_MAX = 3 };

typedef struct rank_model {
    model m;
    memo_faults faults;
    const thread_rank* thread;
    int64_t n_agreed;
    int is_apart; /* another rank did not come, or with another number of values */
    memo_status status;
    memo_error error;
    const char* path;    /* of a plan that it reads instead; NULL: none */
    int64_t fails_later; /* the call that fails after the session is there; -1: none, 0: earlier */
    int64_t n_failed;    /* micro-batches */
    int64_t rows[8 * 4];
    int64_t device_bytes;
    memo_profile profile[2];
    double step_s;
} rank_model;

static rank_model ranks[RANKS_MAX];

static memo_status agree(void* user, int64_t* values, int64_t n, memo_error* e) {
    rank_model* r = (rank_model*)((char*)user - offsetof(rank_model, m));
    const thread_rank* t = r->thread;
    memo_status status = memo_all_reduce(t->comm, t->stream, values, values, n, MEMO_TYPE_I64,
                                         MEMO_REDUCTION_MAX, e);
    r->n_agreed++;
    /* Integers, never doubles seen as integers. */
    CHECK((char*)(values + n) <= (char*)r->profile ||
          (char*)values >= (char*)r->profile + sizeof r->profile);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    r->is_apart |= status != MEMO_STATUS_OK;
    return status;
}

/* Creates a session, and runs one micro-batch. */
static memo_status rank_main(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    own_session* s = NULL;
    (void)e;
    r->thread = thread;
    memset(&r->error, 0, sizeof r->error);
    if (r->path) {
        own_step_plan* plan = NULL;
        r->status = memo_step_plan_read(&r->m.desc, r->path, &plan, &r->error);
        return MEMO_STATUS_OK;
    }
    r->status = memo_session_create(&r->m.desc, &s, &r->error);
    if (r->status) return MEMO_STATUS_OK;
    if (!r->fails_later) {
        r->faults.failing_call = 0;
        settle(&r->m, s, 0);
    }
    if (r->fails_later > 0) r->faults.failing_call = r->faults.n_calls + r->fails_later;
    for (int i = 0; i < 6 && r->fails_later; i++) /* whatever fails: all ranks begin as often */
        r->n_failed += memo_session_run(s, NULL, NULL) != MEMO_STATUS_OK;
    memo_session_info info;
    memo_session_get_info(s, &info);
    memcpy(r->rows, info.plan->swap.rows,
           (size_t)(r->m.desc.n_layers * r->m.desc.n_tensors) * sizeof *r->rows);
    r->device_bytes = info.plan->device_bytes;
    r->step_s = info.plan->times ? info.plan->times->step_s : 0;
    r->faults.failing_call = 0;
    r->status = memo_session_run(s, NULL, &r->error);
    return MEMO_STATUS_OK;
}

/* Opens a plan, which rank 1 lacks. */
static memo_status open_planned(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    own_step_plan* plan = NULL;
    own_session* s = NULL;
    r->thread = thread;
    if (memo_session_plan(&r->m.desc, NULL, &plan, e)) return e->status;
    r->status = memo_session_open(&r->m.desc, r == ranks ? plan : NULL, &s, &r->error);
    return MEMO_STATUS_OK;
}

/* Times steps, and plans with layers that are slower on later ranks. */
static memo_status time_and_plan(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    memo_profile slower[2];
    own_step_plan* plan = NULL;
    r->thread = thread;
    if (session_times(&r->m.desc, r->profile, e)) return e->status;
    memcpy(slower, r->profile, sizeof slower);
    slower[0].forward_s[0] *= 1 + thread->comm->rank;
    if (memo_session_plan(&r->m.desc, slower, &plan, e)) return e->status;
    r->step_s = plan->times ? plan->times->step_s : 0;
    return MEMO_STATUS_OK;
}

static const memo_shape two_shapes[2] = {{64, 0}, {35, 1}};

/* The device fails on demand. */
static void open_rank_device(rank_model* r, int64_t device_bytes) {
    open_device(&r->m, device_bytes, 0);
    memo_faults_init(&r->faults, r->m.host);
    r->m.desc.device = &r->faults.device;
}

static void open_rank(int32_t rank) {
    rank_model* r = &ranks[rank];
    tight_model(&r->m);
    r->m.desc.shapes = two_shapes;
    r->m.desc.n_shapes = 2;
    r->n_agreed = r->is_apart = 0;
    r->fails_later = r->n_failed = 0;
    r->path = NULL;
    r->m.desc.agree = agree;
    r->m.desc.computes_on_host = rank == 1; /* it measures otherwise */
    open_rank_device(r, 512 << 10);
}

/* Runs the ranks; 1 if all agreed equally often, on as many values. */
static int run_ranks_of(int32_t n, memo_status (*function)(thread_rank* rank, memo_error* e)) {
    memo_host_device_desc device_desc = {0};
    int32_t is_even = 1;
    memo_comm_threads_desc comm_desc = {.timeout_s = 20};
    CHECK_OK(thread_ranks_run_on(&device_desc, &comm_desc, n, function, NULL, &error));
    for (int32_t i = 0; i < n; i++)
        is_even &= ranks[i].n_agreed == ranks[0].n_agreed && !ranks[i].is_apart;
    CHECK(is_even);
    return is_even;
}
static int run_ranks(int32_t n) { return run_ranks_of(n, rank_main); }

/* Ranks with unequal budgets, times and buffers of their own choose the same rows, within the least
 * budget. */
TEST(ranks_choose_alike) {
    int32_t n;
    for (int32_t round = memo_test_all() ? 0 : 3; round < 6; round++) {
        n = 2 + round % 2;
        for (int32_t i = 0; i < n; i++) {
            open_rank(i);
            ranks[i].m.desc.device_bytes = (int64_t)(128 + 40 * ((i + round) % n)) << 10;
            ranks[i].m.scratch_bytes = 2000 + 600 * i;
            if (round == 4) ranks[i].m.desc.device_bytes = i ? (int64_t)1 << 40 : 128 << 10;
            if (round == 5) ranks[i].m.desc.device_bytes = 0; /* free memory, which differs */
            if (round == 5 && i == 1) { /* everything would fit on the others */
                close_device(&ranks[i].m);
                open_rank_device(&ranks[i], 128 << 10);
            }
        }
        run_ranks(n);
        for (int32_t i = 0; i < n; i++) {
            CHECK_CASE(!ranks[i].status, "round %d, rank %d: %s", (int)round, (int)i,
                       ranks[i].error.message);
            CHECK(!memcmp(ranks[i].rows, ranks[0].rows, sizeof ranks[0].rows));
            CHECK_IS(ranks[i].device_bytes, <=, (int64_t)128 << 10);
            finish(&ranks[i].m, NULL);
        }
    }
}

static void open_short_rank(int32_t rank) {
    open_rank(rank);
    shorten(&ranks[rank].m);
}

/* Measured times are the same on all ranks.  Of unequal times the longest count, on all ranks. */
TEST(ranks_have_the_longest_times) {
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks_of(2, time_and_plan);
    CHECK(!memcmp(ranks[1].profile, ranks[0].profile, sizeof ranks[0].profile[0]));
    CHECK(ranks[0].step_s > 0 && ranks[1].step_s == ranks[0].step_s);
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* One rank's device fails in one call: every rank gets an error, and none waits. */
TEST(a_fault_on_one_rank_fails_all) {
    int64_t k, step, n_calls[2], n_faults = 0;
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks(2);
    for (int32_t i = 0; i < 2; i++) {
        CHECK_IS(ranks[i].status, ==, MEMO_STATUS_OK);
        n_calls[i] = ranks[i].faults.n_calls;
        close_device(&ranks[i].m);
    }
    for (int32_t victim = 0; victim < 2; victim++) {
        step = n_calls[victim] / (memo_test_all() ? 80 : 24) + 1;
        for (k = 1; k < n_calls[victim]; k += k < 30 ? 1 : memo_test_int(1, 2 * step)) {
            for (int32_t i = 0; i < 2; i++) open_short_rank(i);
            ranks[victim].faults.failing_call = k;
            if (!run_ranks(2)) return;
            if (ranks[victim].faults.failed && ranks[victim].status) {
                n_faults++;
                CHECK_CASE(!ranks[!victim].status ||
                               strstr(ranks[!victim].error.message, "another rank failed"),
                           "call %lld (%s): %s", (long long)k, ranks[victim].faults.failed,
                           ranks[!victim].error.message);
            }
            CHECK_CASE(!ranks[0].status == !ranks[1].status, "call %lld: %s and %s", (long long)k,
                       memo_status_name(ranks[0].status), memo_status_name(ranks[1].status));
            for (int32_t i = 0; i < 2; i++) memo_host_device_destroy(ranks[i].m.host);
        }
    }
    CHECK_IS(n_faults, >, 60);
}

/* Ranks plan again at the same step, by the same times, or not at all, if a call of one of them
 * fails in any step; then all go on. */
TEST(a_fault_keeps_ranks_together_while_they_plan_again) {
    int64_t n_calls, n_faults = 0, n_planned = 0, n_stayed = 0;
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    ranks[0].fails_later = ranks[1].fails_later = -1;
    run_ranks(2);
    n_calls = ranks[0].faults.n_calls;
    CHECK(ranks[0].step_s > 0 && fabs(ranks[0].step_s / ranks[1].step_s - 1) < 1e-9);
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
    for (int64_t k = 1; k < n_calls; k += memo_test_all() ? 3 : memo_test_int(8, 24)) {
        for (int32_t i = 0; i < 2; i++) open_short_rank(i);
        ranks[0].fails_later = k;
        ranks[1].fails_later = -1;
        if (!run_ranks(2)) return;
        n_faults += ranks[0].faults.failed != NULL;
        for (int32_t i = 0; i < 2; i++)
            CHECK_CASE(!ranks[i].status && ranks[i].n_failed <= 1, "call %lld (%s): rank %d: %s",
                       (long long)k, ranks[0].faults.failed ? ranks[0].faults.failed : "none",
                       (int)i, ranks[i].error.message);
        CHECK_CASE(!memcmp(ranks[0].rows, ranks[1].rows, sizeof ranks[0].rows), "call %lld (%s)",
                   (long long)k, ranks[0].faults.failed);
        CHECK((ranks[0].step_s > 0) == (ranks[1].step_s > 0));
        n_planned += ranks[0].step_s > 0;
        n_stayed += ranks[0].step_s <= 0;
        for (int32_t i = 0; i < 2; i++) memo_host_device_destroy(ranks[i].m.host);
    }
    printf("# %lld faults: %lld times planned again, %lld times not\n", (long long)n_faults,
           (long long)n_planned, (long long)n_stayed);
    CHECK_CASE(n_faults > 5 && n_planned > 3, "%lld, %lld", (long long)n_faults,
               (long long)n_planned);
}

TEST(a_rank_without_a_plan_fails_all) {
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks_of(2, open_planned);
    CHECK_TEXT(ranks[0].error.message, "another rank failed");
    CHECK_TEXT(ranks[1].error.message, "plan: NULL");
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* Layers of all ranks wait for each other, and need all ranks. */
static void meeting_forward(void* user, memo_session* s, int32_t layer) {
    rank_model* r = (rank_model*)((char*)user - offsetof(rank_model, m));
    int64_t value = 0;
    memo_error e;
    forward(user, s, layer);
    (void)agree(user, &value, 1, &e);
    r->n_agreed--; /* it is the trainer's */
}

/* A checked session takes memory to measure.  The ranks that have it do not begin without those
 * that lack it. */
TEST(a_rank_without_memory_for_checks_fails_all) {
    for (int32_t i = 0; i < 2; i++) {
        open_short_rank(i);
        ranks[i].m.desc.is_checked = 1;
        by_layers(&ranks[i].m, meeting_forward, backward);
    }
    close_device(&ranks[1].m);
    open_rank_device(&ranks[1], 100 << 10); /* 80 KiB of the budget, and a layer takes 38 KiB */
    ranks[1].m.desc.device_bytes = 80 << 10;
    run_ranks(2);
    CHECK_IS(ranks[1].status, ==, MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    CHECK_TEXT(ranks[0].error.message, "another rank failed");
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* A rank that cannot read its file says so, and the others end with it. */
TEST(a_rank_without_its_file_fails_all) {
    memo_step_plan* plan = NULL;
    for (int32_t i = 0; i < 2; i++) {
        memo_session_desc* d = &ranks[i].m.desc;
        open_short_rank(i);
        d->policy = MEMO_POLICY_KEEP;
        by_layers(&ranks[i].m, forward, backward);
        d->device_bytes = (int64_t)1 << 30;
    }
    {
        memo_session_desc alone = ranks[0].m.desc;
        alone.agree = NULL;
        CHECK_OK(memo_session_plan(&alone, NULL, &plan, &error));
        CHECK_OK(memo_step_plan_write(plan, scratch_file(), &error));
        memo_step_plan_destroy(plan);
    }
    for (int32_t i = 0; i < 3; i++) { /* both read it, then one does not */
        ranks[0].path = i == 1 ? "/nonexistent/plan" : scratch_file();
        ranks[1].path = i == 2 ? "/nonexistent/plan" : scratch_file();
        run_ranks(2);
        CHECK_CASE(ranks[0].status == (i ? MEMO_STATUS_IO : MEMO_STATUS_OK) &&
                       ranks[1].status == ranks[0].status,
                   "%s, %s", ranks[0].error.message, ranks[1].error.message);
        if (i == 0) continue;
        CHECK(strstr(ranks[i - 1].error.message, "/nonexistent/plan") != NULL);
        CHECK(strstr(ranks[2 - i].error.message, "another rank failed") != NULL);
    }
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
    remove(scratch_file());
}

/* Fields that must match are named on all ranks. */
TEST(unequal_descs_are_refused) {
    static const char* const names[] = {"n_layers", "n_tensors",    "n_rows", "tile_rows",
                                        "policy",   "tensors",      "rows",   "backward_recomputes",
                                        "buffers",  "device_bytes", "shapes"};
    static const memo_session_buffer buffer[2] = {
        {"one", 1, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
        {"one", 2, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0}};
    int64_t rows[2][2 * 8 * 4];
    for (int32_t i = 0; i < 2 * 2 * 8 * 4; i++) (&rows[0][0])[i] = MEMO_ROWS_KEPT;
    rows[1][1] = 0;
    for (int32_t k = 0; k < 11; k++) {
        memo_session_desc* d = &ranks[1].m.desc;
        for (int32_t i = 0; i < 2; i++) open_rank(i);
        if (k == 0) d->n_layers = 7;
        if (k == 1) d->n_tensors = 2;
        if (k == 2) d->n_rows = 65;
        if (k == 3) d->tile_rows = 16;
        if (k == 4) d->policy = MEMO_POLICY_ALPHA;
        if (k == 5) ranks[1].m.tensors[1].row_bytes = 404;
        for (int32_t i = 0; i < 2 && k == 6; i++) {
            ranks[i].m.desc.policy = MEMO_POLICY_ROWS;
            ranks[i].m.desc.rows = rows[i];
        }
        if (k == 7) d->backward_recomputes = 1;
        for (int32_t i = 0; i < 2 && k == 8; i++) { /* of other sizes */
            ranks[i].m.desc.buffers = &buffer[i];
            ranks[i].m.desc.n_buffers = 1;
        }
        if (k == 10) d->n_shapes = 1;
        if (k == 9) d->device_bytes = -1; /* one rank's desc is not valid */
        run_ranks(2);
        for (int32_t i = 0; i < 2; i++) {
            CHECK_IS(ranks[i].status, ==, MEMO_STATUS_INVALID_ARGUMENT);
            CHECK_CASE(strstr(ranks[i].error.message, names[k]) ||
                           (k == 9 && strstr(ranks[i].error.message, "another rank failed")),
                       "%s: %s", names[k], ranks[i].error.message);
            close_device(&ranks[i].m);
        }
    }
}

/* Rows that the trainer gives are used as they are. */
TEST(given_rows_are_used) {
    memo_session_info info;
    model m;
    int64_t rows[8 * 4];
    tight_model(&m);
    for (int i = 0; i < 8 * 4; i++) rows[i] = i % 4 == 0 ? 64 : i % 4 == 1 ? 16 : 0;
    m.desc.rows = rows;
    m.desc.policy = MEMO_POLICY_ROWS;
    memo_session* s = create(&m, &info);
    CHECK(!memcmp(info.plan->swap.rows, rows, sizeof rows) && !info.plan->times);
    CHECK_OK(memo_session_run(s, NULL, &error));
    finish(&m, s);
    m.desc.device = NULL;
    WITH(rows[1], 15, expect_refused(&m.desc, "rows"));
    WITH(rows[1], INT64_MIN, expect_refused(&m.desc, "rows"));
    m.desc.device_bytes = 50000;
    CHECK_ERROR(memo_session_create(&m.desc, &s, &error), INFEASIBLE,
                "device_bytes: policy rows needs ");
    m.desc.rows = NULL;
    expect_refused(&m.desc, "rows");
}

/* Every policy has a plan with its bytes and times, whether it fits or not, without a device. */
/* With a file every table that has room on the host opens and runs, in whatever order its layers
 * leave and come back. */
TEST(tables_with_a_file_open_or_do_not_fit) {
    int n_opened = 0, n_spilled = 0, n_lacking = 0;
    for (int i = 0; i < 60; i++) {
        int64_t rows[8 * 4];
        model m;
        tight_model(&m);
        for (int32_t k = 0; k < 8 * 4; k++)
            rows[k] = memo_test_int(0, 1) ? MEMO_ROWS_KEPT
                      : k % 4 == 1        ? 8 * memo_test_int(0, 8)
                      : k % 4 == 0        ? 64
                                          : 64 * memo_test_int(0, 1);
        for (int32_t k = 0; k < 8; k++) rows[4 * k + 3] = rows[4 * k + 2]; /* with attention */
        m.desc.policy = MEMO_POLICY_ROWS;
        m.desc.rows = rows;
        m.desc.device_bytes = 0;
        own_step_plan* all = step_plan_of(&m.desc, NULL);
        m.desc.spill_directory = memo_test_folder();
        m.desc.host_bytes = all->host_bytes / 2 + 12288;
        own_step_plan* plan = step_plan_of(&m.desc, NULL);
        if (!plan) continue; /* an error, which has failed the test */
        n_lacking += !plan->fits;
        if (!plan->fits) CHECK(strstr(plan->shortage, "host_bytes"));
        if (!plan->fits) continue;
        n_spilled += plan->sizes.n_spilled_layers > 0;
        open_device(&m, 1 << 20, m.desc.host_bytes);
        memo_session* s = NULL;
        CHECK_CASE(memo_session_open(&m.desc, plan, &s, &error) == MEMO_STATUS_OK, "table %d: %s",
                   i, error.message);
        if (s) CHECK_OK(memo_session_run(s, NULL, &error));
        n_opened += s != NULL;
        memo_session_destroy(s);
        close_device(&m);
    }
    CHECK_CASE(n_opened > 50 && n_spilled > 30 && n_lacking < 5, "%d, %d, %d", n_opened, n_spilled,
               n_lacking);
}

TEST(policies_are_compared_without_a_device) {
    memo_step_plan* plan = NULL;
    memo_profile profile;
    int64_t step_bytes[MEMO_N_POLICIES];
    double step_s[MEMO_N_POLICIES];
    model m;
    tight_model(&m);
    CHECK(MEMO_ZERO(memo_session_desc).policy == MEMO_POLICY_MEMO);
    open_device(&m, 256 << 10, 0);
    m.desc.device_bytes = 200 << 10;
    CHECK_OK(session_times(&m.desc, &profile, &error));
    close_device(&m);
    m.desc.device = NULL;
    m.n_calls = 0;
    for (int policy = 0; policy < MEMO_POLICY_ROWS; policy++) {
        m.desc.policy = (memo_policy)policy;
        CHECK_OK(memo_session_plan(&m.desc, &profile, &plan, &error));
        if (!plan) continue;
        CHECK_CASE(plan->fits == (policy == MEMO_POLICY_MEMO || policy == MEMO_POLICY_ALPHA ||
                                  plan->device_bytes <= 200 << 10) &&
                       plan->fits == !*plan->shortage,
                   "%s: %s", memo_policy_name(plan->policy), plan->shortage);
        CHECK_IS(plan->device_bytes, ==,
                 plan->activation_bytes + plan->persistent_bytes + plan->transient_bytes);
        step_bytes[policy] = plan->device_bytes;
        step_s[policy] = plan->times ? plan->times->step_s : 0;
        CHECK(step_s[policy] > 0);
        expect_words(plan, "predicted ");
        memo_step_plan_destroy(plan);
    }
    CHECK(m.n_calls == 0);
    CHECK(step_bytes[MEMO_POLICY_RECOMPUTE] < step_bytes[MEMO_POLICY_KEEP]);
    CHECK(step_s[MEMO_POLICY_MEMO] <= step_s[MEMO_POLICY_ALPHA] * (1 + 1e-9));
    CHECK(step_s[MEMO_POLICY_KEEP] <= step_s[MEMO_POLICY_MEMO] * (1 + 1e-9));

    /* One that does not fit cannot be opened. */
    m.desc.policy = MEMO_POLICY_KEEP;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    if (plan) {
        memo_session* s = NULL;
        CHECK(!plan->fits && !plan->times);
        CHECK_TEXT(plan->shortage, "policy keep needs ");
        CHECK_TEXT(plan->shortage, "raise device_bytes to ");
        CHECK_IS(memo_session_open(&m.desc, plan, &s, &error), ==, MEMO_STATUS_INFEASIBLE);
        CHECK(!strcmp(error.message, plan->shortage));
        CHECK_IS(memo_session_open(&m.desc, NULL, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
        memo_step_plan_destroy(plan);
    }
}

/* Plans lengths that fit nowhere, takes no memory and computes nothing. */
TEST(a_plan_takes_no_memory) {
    memo_text report = {NULL, 0, 0, 0};
    model m;
    tight_model(&m);
    m.desc.n_rows = 16 << 20;
    m.desc.tile_rows = 1 << 14;
    m.desc.device_bytes = (int64_t)32 << 30;
    own_step_plan* plan = step_plan_of(&m.desc, NULL);
    CHECK(plan->fits && plan->device_bytes <= m.desc.device_bytes && plan->sizes.swapped_bytes > 0);
    CHECK(!plan->times && m.n_calls == 0);
    memo_step_plan_put(plan, &report);
    CHECK(strstr(report.data, " of 32.0 GiB") && !strstr(report.data, "predicted"));
    memo_text_free(&report);
    memo_step_plan_destroy(plan);
    m.desc.device_bytes = (int64_t)4 << 30;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    CHECK_CASE(!plan->fits && strstr(plan->shortage, "the smallest plan needs "), "%s",
               plan->shortage);
    memo_step_plan_destroy(plan);

    /* A single alpha is planned even if everything could be kept, because hidden swaps cost no
     * time. */
    m.desc.device_bytes = m.desc.host_bytes = (int64_t)1 << 40;
    m.desc.policy = MEMO_POLICY_ALPHA;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    CHECK(plan->fits && plan->sizes.swapped_bytes > 0);
}

/* Whatever is swapped of `up` takes far more of other memory. */
static void greedy_step(void* user, memo_session* s) {
    memo_session_info info;
    memo_session_get_info(s, &info);
    void* more = memo_session_alloc(s, info.plan->swap.rows[1] > 0 ? 1 << 20 : 512);
    step(user, s);
    memo_session_free(s, more);
}

/* If no planned alpha fits, 0 is tried. */
TEST(the_last_alpha_is_none) {
    model m;
    tight_model(&m);
    m.desc.policy = MEMO_POLICY_ALPHA;
    for (int k = 0; k < 2; k++) {
        if (k) m.desc.step = greedy_step;
        own_step_plan* plan = step_plan_of(&m.desc, NULL);
        CHECK_CASE(plan->fits, "%s", plan->shortage);
        CHECK_CASE((plan->swap.rows[1] == 0) == k, "%lld rows", (long long)plan->swap.rows[1]);
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

/* A search is begun only if greedy orders miss the budget, and could meet it. */
static void hard_step(void* user, memo_session* s) {
    void* buffers[20];
    uint64_t random = 1;
    int i;
    step(user, s);
    for (i = 0; i < 20; i++) buffers[i] = NULL;
    for (int k = 0; k < 90; k++) { /* fragments: lifetimes and sizes without order */
        random = random * 6364136223846793005u + 1442695040888963407u;
        i = (int)(random >> 33) % 20;
        if (buffers[i]) memo_session_free(s, buffers[i]);
        buffers[i] = memo_session_alloc(s, 512 * (1 + (int64_t)(random >> 40) % 97));
    }
    for (i = 0; i < 20; i++) memo_session_free(s, buffers[i]);
}

static int n_searches;
static void count_searches(MEMO_UNUSED void* user, const char* line) {
    n_searches += strstr(line, "searching for addresses") != NULL;
}

TEST(searches_are_rare) {
    own_step_plan* plan = NULL;
    model m;
    tight_model(&m);
    m.desc.step = hard_step;
    m.desc.policy = MEMO_POLICY_KEEP;
    m.desc.log.write = count_searches;
    for (int k = 0; k < 4; k++) { /* no budget, a wide one, the lower bound, less */
        m.desc.device_bytes = k == 0   ? 0
                              : k == 1 ? (int64_t)64 << 20
                                       : plan->addresses->lower_bound_bytes - (k - 2) * 512;
        if (plan) memo_step_plan_destroy(plan);
        n_searches = 0;
        CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
        CHECK_IS(n_searches, ==, k == 2);
        CHECK(plan->fits == (k < 3));
    }
}

/* Lines of a tensor are of layers that have it. */
static void rows_of_kinds(const model* m) {
    memo_swap_desc desc = {0};
    memo_text text = {NULL, 0, 0, 0};
    int64_t rows[8][4] = {{64, 8, 1, 1},   {64, 0, 0, 0},  {64, 8, 2, 2}, {64, 16, 3, 3},
                          {64, 0, 64, 64}, {64, 16, 4, 4}, {64, 0, 0, 0}, {64, 16, 5, 5}};
    desc.tensors = m->tensors, desc.n_tensors = 4, desc.n_layers = 8, desc.n_rows = 64;
    desc.tile_rows = 8, desc.rows = rows[0];
    desc.layer_kinds = m->desc.layer_kinds, desc.tensor_kinds = m->desc.tensor_kinds;
    memo_swap_put_rows(&desc, &text);
    CHECK_CASE(!strcmp(strchr(text.data, '\n'),
                       "\n          0-7          0       64           0   input"
                       "\n          0-2          0        8          56   up"
                       "\n          3-7          0       16          48   up"
                       "\n          1            0        0          64   attention, lse"
                       "\n          4            0       64           0   attention, lse"
                       "\n          6            0        0          64   attention, lse\n"),
               "%s", text.data);
    memo_text_free(&text);
}

/* An EDGE has no line; it hides no other one with the same rows. */
TEST(a_tensor_without_choice_hides_no_other) {
    static const memo_item tensors[] = {MEMO_ITEM("state", 4, MEMO_MOVE, MEMO_EDGE),
                                        MEMO_ITEM("input", 4, MEMO_MOVE),
                                        MEMO_ITEM("up", 4, MEMO_ROWS)};
    static const int64_t rows[] = {MEMO_ROWS_KEPT, MEMO_ROWS_KEPT, 8};
    memo_swap_desc desc = {0};
    memo_text text = {NULL, 0, 0, 0};
    desc.tensors = tensors, desc.n_tensors = 3, desc.n_layers = 1, desc.n_rows = 64;
    desc.tile_rows = 8, desc.rows = rows;
    memo_swap_put_rows(&desc, &text);
    CHECK_CASE(!strcmp(strchr(text.data, '\n'),
                       "\n          0           64        0           0   input"
                       "\n          0            0        8          56   up\n"),
               "%s", text.data);
    memo_text_free(&text);
}

/* Each kind of layer has its own times, and a plan for other kinds is refused. */
TEST(layers_have_kinds) {
    static const int32_t kinds[8] = {0, 1, 0, 0, 1, 0, 2, 0};
    static const uint32_t of_tensors[4] = {0, 1, 6, 6};
    int32_t others[8];
    memo_profile profile;
    own_model m;
    tight_model(&m);
    m.desc.layer_kinds = kinds;
    m.desc.tensor_kinds = of_tensors;
    m.desc.device_bytes = 96 << 10;
    m.desc.computes_on_host = 1;
    open_device(&m, m.desc.device_bytes, 0);
    WITH(m.desc.layer_kinds, NULL,
         CHECK_ERROR(session_times(&m.desc, &profile, &error), INVALID_ARGUMENT,
                     "memo_session_desc.layer_kinds: NULL, so all layers are"));
    CHECK_OK(session_times(&m.desc, &profile, &error));
    CHECK_IS(profile.n_kinds, ==, 3);
    for (int k = 0; k < 3; k++) {
        CHECK(profile.forward_s[k] > 0 && profile.backward_s[k] > 0);
        CHECK(profile.tensors[0].recompute_s_per_row[k] < 0);
        for (int t = 1; t < 3; t++) { /* a busy machine may find no time beside a call's */
            const double row_s = profile.tensors[t].recompute_s_per_row[k];
            CHECK((t == 1) == (k == 0) ? row_s + profile.recompute_call_s > 0 && row_s >= 0
                                       : row_s <= 0);
        }
    }
    memo_step_plan* plan = step_plan_of(&m.desc, &profile);
    memo_session* s = session_of_plan(&m.desc, plan);
    CHECK(!memo_session_get_address(s, 0, 2) && !memo_session_get_address(s, 1, 1));
    CHECK(memo_session_get_address(s, 6, 3) != NULL);
    run_all(&m, s, 4);
    memcpy(others, kinds, sizeof others);
    rows_of_kinds(&m);
    others[3] = 1;
    m.desc.layer_kinds = others;
    CHECK_ERROR(memo_session_open(&m.desc, plan, &s, &error), INVALID_ARGUMENT,
                "layer 3: it has 0 as layer_kinds, the session has 1");
    others[3] = 3;
    memo_step_plan_destroy(plan);
    CHECK_ERROR(memo_session_plan(&m.desc, &profile, &plan, &error), INVALID_ARGUMENT,
                "layer 3 is of kind 3");
}

/* --- declared buffers, forwards alone --- */

enum { STATE, X, LOSS, SCRATCH, D_X, N_BUFFERS };
static const memo_session_buffer buffers[N_BUFFERS] = {
    {"state", 3000, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
    {"x", 2000, 0, MEMO_PASS_FORWARD, 0, MEMO_PASS_BETWEEN, 0, 0},
    {"loss", 700, 0, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BETWEEN, 0, 0},
    {"scratch", 900, 0, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_SESSION, 0, 0},
    {"d_x", 1500, 0, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BACKWARD, 2, 0}};

static void check_buffers(memo_session* s, unsigned int alive) {
    for (int i = 0; i < N_BUFFERS; i++) {
        void* address = memo_session_get_buffer(s, i);
        CHECK_CASE((address != NULL) == (alive >> i & 1), "buffer %d", i);
        if (address) memset(address, i, (size_t)buffers[i].size_bytes);
    }
}

static void buffered_forward(void* user, memo_session* s, int32_t layer) {
    check_buffers(s, 1u << STATE | 1u << X);
    forward(user, s, layer);
}
static void buffered_between(MEMO_UNUSED void* user, memo_session* s) {
    check_buffers(s, 1u << STATE | 1u << X | 1u << LOSS | 1u << D_X);
}
static void buffered_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                               int64_t begin, int64_t end) {
    check_buffers(s, 1u << STATE | 1u << SCRATCH | (layer >= 2 ? 1u << D_X : 0));
    recompute(user, s, layer, tensor, begin, end);
}
static void buffered_backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    void* addresses[4];
    check_buffers(s, 1u << STATE | 1u << SCRATCH | (layer >= 2 ? 1u << D_X : 0));
    memo_session_get_addresses(s, layer, 3, addresses);
    for (int t = 0; t < 4; t++)
        CHECK(addresses[t] ==
              (char*)memo_session_get_address(s, layer, t) + 3 * m->desc.tensors[t].row_bytes);
    m->n_backward++;
    backward(user, s, layer);
}

TEST(buffers_live_as_declared) {
    memo_swap_stats before, after;
    memo_session_info info;
    memo_batch batch = {.is_forward_only = 1};
    static const memo_session_buffer wrong[] = {
        {"x", -1, 0, MEMO_PASS_FORWARD, 0, MEMO_PASS_BETWEEN, 0, 0},
        {"x", 9, 0, (memo_pass)7, 0, MEMO_PASS_BETWEEN, 0, 0},
        {"x", 9, 0, MEMO_PASS_FORWARD, 0, MEMO_PASS_SESSION, 0, 0},
        {"x", 9, 0, MEMO_PASS_FORWARD, 8, MEMO_PASS_BETWEEN, 0, 0},
        {"x", 9, 0, MEMO_PASS_BETWEEN, MEMO_EACH_LAYER, MEMO_PASS_BETWEEN, 0, 0},
        {"x", 9, 0, MEMO_PASS_BACKWARD, 2, MEMO_PASS_BACKWARD, 3, 0}};
    own_model m;
    tight_model(&m);
    by_layers(&m, buffered_forward, buffered_backward);
    m.desc.setup = NULL;
    m.desc.computes_on_host = 1;
    m.desc.between = buffered_between;
    m.desc.recompute = buffered_recompute;
    m.desc.buffers = buffers;
    m.desc.n_buffers = N_BUFFERS;
    memo_session* s = create(&m, &info);
    CHECK(info.plan->sizes.swapped_bytes > 0 && info.plan->persistent_bytes >= 3000);

    /* A forward alone moves nothing, in any order with micro-batches that do. */
    for (int i = 0; i < 6; i++) {
        batch.is_forward_only = i % 3 != 0;
        batch.n_rows = i == 4 ? 17 : 0;
        m.micro_batch = i;
        m.n_backward = 0;
        CHECK_OK(memo_swap_get_stats(info.swap, &before, &error));
        CHECK_OK(memo_session_run(s, &batch, &error));
        CHECK_OK(memo_swap_get_stats(info.swap, &after, &error));
        CHECK_IS(m.n_backward, ==, i % 3 ? 0 : 8);
        CHECK((after.to_host_bytes == before.to_host_bytes) == (i % 3 != 0));
        CHECK(memo_session_get_buffer(s, STATE) && !memo_session_get_buffer(s, X));
    }
    CHECK_IS(m.n_wrong, ==, 0);
    batch.is_forward_only = 1;
    CHECK_IS(memo_session_begin(s, &batch), ==, 1);
    CHECK_IS(memo_session_backward_begin(s, 7), ==, 0);
    CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "is_forward_only is 1");
    memo_session_destroy(s);

    /* Lives that make no sense. */
    for (int i = 0; i < 6; i++) {
        m.desc.buffers = &wrong[i];
        m.desc.n_buffers = 1;
        expect_refused(&m.desc, "buffers[0]: `x` has ");
    }
}

static void kinds_forward(void* user, memo_session* s, int32_t layer) {
    const model* m = (model*)user;
    for (int k = 0; k < 3; k++) {
        void* scratch = memo_session_get_buffer(s, k);
        CHECK_CASE((scratch != NULL) == (m->desc.layer_kinds[layer] == k), "layer %d", (int)layer);
        if (scratch) memset(scratch, k, (size_t)m->desc.buffers[k].size_bytes);
    }
    forward(user, s, layer);
}

/* Scratch of three kinds of layers takes as much as the largest. */
TEST(buffers_are_of_kinds) {
    static const int32_t kinds[8] = {0, 1, 0, 0, 1, 0, 2, 0};
    memo_session_buffer of_kinds[] = {
        {"a", 3000, 0, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 1},
        {"b", 6144, 0, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 2},
        {"c", 5000, 0, MEMO_PASS_FORWARD, MEMO_EACH_SLICE, MEMO_PASS_FORWARD, 0, 4}};
    static const uint32_t of_tensors[4] = {0, 0, 0, 0};
    memo_session_info info;
    own_model m;
    tight_model(&m);
    by_layers(&m, kinds_forward, backward);
    m.desc.setup = NULL;
    m.desc.computes_on_host = 1;
    m.desc.layer_kinds = kinds;
    m.desc.tensor_kinds = of_tensors;
    m.desc.buffers = of_kinds;
    m.desc.n_buffers = 3;
    memo_session* s = create(&m, &info);
    CHECK_IS(info.plan->transient_bytes, ==, 6144);
    run_all(&m, s, 1);
    WITH(m.desc.layer_kinds, NULL, expect_refused(&m.desc, "buffers[1]: `b` has kinds, but"));
    of_kinds[2].first_layer = 0;
    expect_refused(&m.desc, "buffers[2]: `c` has kinds, but");
}

/* --- alternatives of buffers --- */

enum { OF_FORWARD, OF_BACKWARD, OF_LOSS, N_OF };
static memo_session_buffer of_step[N_OF] = {
    {"scores", 0, 300, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 2},
    {"up", 40000, 0, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
    {"logits", 0, 900, MEMO_PASS_FORWARD, 3, MEMO_PASS_BACKWARD, 3, 0}};
static memo_session_alternative less[] = {{OF_LOSS, 0, 500, 0},
                                          {OF_BACKWARD, 20000, 0, 0},
                                          {OF_LOSS, 4000, 60, 0},
                                          {OF_FORWARD, 8000, 0, 0}};
enum { N_LESS = 4 };
static const int32_t of_layers[4] = {0, 1, 0, 1};

/* A layer's scratch has the bytes of its alternative, and nothing else lies there. */
static void use_scratch(model* m, memo_session* s, int32_t layer, int32_t b, int checks) {
    const int32_t k = memo_session_get_alternative(s, b);
    const int64_t n_rows = memo_session_get_batch(s).n_rows;
    const int64_t n_bytes = k ? less[k - 1].size_bytes + n_rows * less[k - 1].row_bytes
                              : of_step[b].size_bytes + n_rows * of_step[b].row_bytes;
    CHECK(!k || less[k - 1].buffer == b);
    if (b == OF_FORWARD && of_layers[layer] == 0) return;
    if (b == OF_LOSS && layer < m->desc.n_layers - 1) return;
    launch(m, s, memo_session_get_buffer(s, b), 0, n_bytes, 11 + (uint64_t)b, checks);
}
static void scratch_forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    use_scratch(m, s, layer, OF_FORWARD, 0);
    forward(user, s, layer);
    use_scratch(m, s, layer, OF_FORWARD, 1);
    use_scratch(m, s, layer, OF_LOSS, 0);
}
static void scratch_backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    use_scratch(m, s, layer, OF_BACKWARD, 0);
    backward(user, s, layer);
    use_scratch(m, s, layer, OF_BACKWARD, 1);
    use_scratch(m, s, layer, OF_LOSS, 1);
}

static void scratch_model(model* m) {
    tight_model(m);
    by_layers(m, scratch_forward, scratch_backward);
    m->desc.setup = NULL;
    m->desc.layer_kinds = of_layers, m->desc.n_layers = 4;
    m->desc.buffers = of_step, m->desc.n_buffers = N_OF;
}

/* The step of given alternatives: buffers of their sizes, in a profile with their times.  Negative:
 * it does not fit. */
static double step_of(const model* m, const memo_profile* profile, const int32_t* chosen) {
    memo_session_desc desc = m->desc;
    memo_session_buffer own[N_OF];
    memo_profile times = *profile;
    double step_s = -1;
    desc.n_alternatives = 0;
    desc.buffers = own;
    for (int b = 0; b < N_OF; b++) {
        own[b] = of_step[b];
        if (!chosen[b]) continue;
        const memo_session_alternative* a = &less[chosen[b] - 1];
        own[b].size_bytes = a->size_bytes, own[b].row_bytes = a->row_bytes;
        if (b == OF_FORWARD) times.forward_s[1] += 64 * a->s_per_row;
        if (b == OF_BACKWARD) times.backward_s[0] += 64 * a->s_per_row;
        if (b == OF_BACKWARD) times.backward_s[1] += 64 * a->s_per_row;
        if (b == OF_LOSS) times.between_s += 64 * a->s_per_row;
    }
    own_step_plan* plan = step_plan_of(&desc, &times);
    if (plan && plan->fits) step_s = plan->times->step_s;
    return step_s;
}

/* Plans choose alternatives with the rows, as well as a search of all combinations does; they run
 * within their peak, and are read again. */
TEST(alternatives_are_planned_with_rows) {
    const int n_rounds = memo_test_all() ? 20 : 1;
    int n_fit = 0, n_less = 0;
    for (int round = 0; round < n_rounds; round++) {
        int64_t least_bytes[2];
        double best_s = -1;
        own_model m;
        scratch_model(&m);
        CHECK_OK(memo_session_get_least(&m.desc, &least_bytes[0], &error));
        m.desc.alternatives = less, m.desc.n_alternatives = N_LESS;
        for (int i = 0; i < N_LESS; i++)
            less[i].s_per_row = 0.004 * (1 + i / 2) * memo_test_real() * (i == 2 ? 2 : 1);
        less[2].s_per_row += less[0].s_per_row;
        CHECK_OK(memo_session_get_least(&m.desc, &least_bytes[1], &error));
        CHECK_IS(least_bytes[1], <=, least_bytes[0] - 20000);

        memo_profile profile = {0};
        profile.n_rows = 64, profile.n_kinds = 2, profile.n_tensors = 4;
        profile.between_s = 0.1;
        for (int k = 0; k < 2; k++) {
            profile.forward_s[k] = 1, profile.backward_s[k] = 2;
            profile.copies[k].size_bytes = 4000 * (k + 1);
            profile.copies[k].out_s = profile.copies[k].back_s = 0.3 * (k + 1);
        }
        for (int t = 0; t < 4; t++) {
            snprintf(profile.tensors[t].name, 32, "%s", m.tensors[t].name);
            for (int k = 0; k < 2; k++)
                profile.tensors[t].recompute_s_per_row[k] = t ? 0.2 * memo_test_real() / 64 : -1;
        }
        m.desc.device_bytes = least_bytes[1] + memo_test_int(0, 60000);
        own_step_plan* plan = step_plan_of(&m.desc, &profile);
        if (!plan) return;
        CHECK(plan->fits && plan->device_bytes <= m.desc.device_bytes);
        for (int code = 0; code < 12; code++) {
            const int32_t chosen[N_OF] = {code % 2 * 4, code / 2 % 2 * 2,
                                          code / 4 == 2 ? 3 : code / 4};
            const double step_s = step_of(&m, &profile, chosen);
            if (step_s < 0) continue;
            n_fit++;
            if (best_s < 0 || step_s < best_s) best_s = step_s;
            if (!memcmp(chosen, plan->alternatives, sizeof chosen))
                CHECK_CASE(fabs(plan->times->step_s / step_s - 1) < 1e-3, "%g, %g",
                           plan->times->step_s, step_s);
        }
        for (int b = 0; b < N_OF; b++) n_less += plan->alternatives[b] > 0;
        CHECK_CASE(plan->times->step_s <= 1.005 * best_s, "%.6g, not %.6g", plan->times->step_s,
                   best_s);

        /* As a file, and on a device of the plan's bytes. */
        m.desc.computes_on_host = round % 2;
        CHECK_OK(memo_step_plan_write(plan, scratch_file(), &error));
        own_step_plan* again = step_plan_of_file(&m.desc, scratch_file());
        CHECK(again && !memcmp(again->alternatives, plan->alternatives, sizeof plan->alternatives));
        open_device(&m, plan->device_bytes, 0);
        memo_session* s = session_of_plan(&m.desc, again);
        run_all(&m, s, 3);
        m.desc.n_alternatives = 3;
        if (plan->alternatives[OF_FORWARD])
            CHECK_ERROR(memo_session_open(&m.desc, plan, &s, &error), INVALID_ARGUMENT,
                        "it has other alternatives");
    }
    printf("# %d combinations fit, %d buffers take less\n", n_fit, n_less);
    CHECK(n_less > 0 && n_fit > 0);
}

/* Times are measured with small buffers, and are those of the buffers as declared. */
TEST(alternatives_are_measured_and_checked) {
    static const memo_session_alternative wrong[] = {{N_OF, 1, 0, 0},
                                                     {OF_BACKWARD, 40000, 0, 0},
                                                     {OF_BACKWARD, 2000, 0, -1},
                                                     {OF_FORWARD, -1, 0, 0}};
    own_model m;
    scratch_model(&m);
    for (int i = 0; i < 4; i++) {
        m.desc.alternatives = &wrong[i], m.desc.n_alternatives = 1;
        expect_refused(&m.desc, "alternatives[0]: it has ");
    }
    m.desc.alternatives = less, m.desc.n_alternatives = N_LESS;
    for (int i = 0; i < N_LESS; i++) less[i].s_per_row = 1e-12 * (1 + i);
    CHECK_OK(memo_session_get_least(&m.desc, &m.desc.device_bytes, &error));
    m.desc.is_checked = 1, m.desc.computes_on_host = 1;
    open_device(&m, 0, 0);
    memo_session* s = new_session(&m.desc);
    if (!s) return;
    memo_session_info info;
    memo_session_get_info(s, &info);
    CHECK_IS(info.plan->alternatives[OF_LOSS], ==, 3);
    expect_words(info.plan, "less      buffers[2] by alternatives[2]\n");
    for (m.micro_batch = 0; m.micro_batch < 3; m.micro_batch++)
        CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(m.n_wrong, ==, 0);
    CHECK_IS(memo_session_get_alternative(s, N_OF), ==, 0); /* an error */
    CHECK_ERROR(memo_session_end(s, &error), INVALID_ARGUMENT, "memo_session_get_alternative: ");
    memo_session_destroy(s);
}

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
    CHECK(memo_session_computes(s) || batch.n_rows == shapes[batch.shape].n_rows);
    step(user, s);
    m->scratch = (char*)memo_session_alloc(s, 40 * batch.n_rows); /* an output: never freed */
    if (!memo_session_computes(s)) return;
    launch(m, s, memo_session_get_buffer(s, OUTPUT), 0, 8 + 30 * batch.n_rows, 5, 0);
    launch(m, s, m->scratch, 0, 40 * batch.n_rows, 6, 0);
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
    int64_t most_bytes, host_bytes;
    int n_kept;
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
        memo_session_get_info(s, &info);
        longest = info.plan->next;
        most_bytes = host_bytes = n_kept = 0; /* times are measured: rounds have other plans */
        for (plan = info.plan; plan; plan = plan->next) {
            CHECK_OK(memo_plan_check(plan->addresses, plan->trace, &error));
            n_kept += plan->sizes.swapped_bytes == 0;
            if (plan->device_bytes > most_bytes) most_bytes = plan->device_bytes;
            if (plan->host_bytes > host_bytes) host_bytes = plan->host_bytes;
        }
        CHECK(longest->times && longest->sizes.swapped_bytes > 0 && n_kept >= 4);
        CHECK_IS(most_bytes, ==, longest->device_bytes);
        memo_host_device_get_stats(m.host, &stats);
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
            launch(&m, s, m.scratch, 0, 40 * batch.n_rows, 6, 1);
            launch(&m, s, m.state, 0, m.setup_bytes, 7, 1);
            memo_session_get_info(s, &info);
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

        /* In words and in a file. */
        CHECK_OK(memo_session_run(s, NULL, &error));
        memo_session_get_info(s, &info);
        expect_words(info.plan, "shapes    9 share device memory of ");
        expect_words(info.plan, "shape     8, 64 rows\n");
        CHECK_OK(memo_step_plan_write(info.plan, scratch_file(), &error));
        CHECK_OK(memo_step_plan_read(&m.desc, scratch_file(), &again, &error));
        memo_session_destroy(s);
        s = NULL;
        if (again) CHECK_OK(memo_session_open(&m.desc, again, &s, &error));
        for (batch = (memo_batch){.n_rows = 0}; batch.shape < N_SHAPES && s; batch.shape++)
            CHECK_OK(memo_session_run(s, &batch, &error));
        CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
        CHECK_IS(m.n_wrong, ==, 0);
        memo_session_destroy(s);

        /* Another number of shapes, other shapes, other requests. */
        m.desc.n_shapes = 8;
        CHECK_ERROR(memo_session_open(&m.desc, again, &s, &error), INVALID_ARGUMENT,
                    "shape 7 of the plan");
        memo_step_plan_destroy(again);
        m.desc.n_shapes = 0;
        CHECK_FAILS(memo_step_plan_read(&m.desc, scratch_file(), &again, &error), INVALID_ARGUMENT);
        close_device(&m);
        remove(scratch_file());
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
        if (!p->next) CHECK_IS(p->activation_bytes, <=, (2 * 100 + 504) * 64 + 4 * 1024);
    }
    memo_step_plan_destroy(plan);
}

/* What setup requests for one shape alone. */
static void uneven_setup(void* user, memo_session* s) {
    model* m = (model*)user;
    m->state = (char*)memo_session_alloc(s, memo_session_get_batch(s).shape == 3 ? 2000 : 1000);
}

TEST(bad_shapes_are_refused) {
    memo_shape wrong[2] = {{64, 0}, {65, 0}};
    own_model m;
    shape_model(&m);
    m.desc.setup = uneven_setup;
    open_device(&m, 0, 0);
    expect_refused(&m.desc, "request 2 for shape 3 is another than for shape 0");
    m.desc.shapes = wrong;
    m.desc.n_shapes = 2;
    expect_refused(&m.desc, "shapes[1].n_rows: out of range (65); 1 to 64 are valid");
    m.desc.n_shapes = 17;
    expect_refused(&m.desc, "n_shapes");
    m.desc.n_shapes = 2;
    m.desc.shapes = NULL;
    expect_refused(&m.desc, "shapes");
}

/* --- checked sessions: a trainer that computes, with planted mistakes --- */

enum { C_ROWS = 48, C_WIDTH = 5, C_LAYERS = 6 };
enum { C_INPUT, C_HIDDEN, C_OUT };
typedef struct computer {
    memo_session_desc desc;
    memo_item tensors[3];
    double x[C_ROWS * C_WIDTH], d[C_ROWS * C_WIDTH], sum;
    int64_t block; /* rows that one product takes: its rounding depends on them */
    int places[3]; /* where the kernels think that the tensors are */
    int forgets, clobbers, misplaces, counts, reads, lacks, continues, copies, early, n_runs;
    int drifts;           /* gradients depend on the run */
    int whole;            /* c_hidden computes this many rows at once, if it is given fewer, too */
    int keeps, elsewhere; /* addresses are kept from the first call; of this tensor - 1: own */
    double* addresses[C_LAYERS][3];
    double own[2 * C_ROWS * C_WIDTH];
    double weight, *sums;           /* of layers */
    memo_session_buffer buffers[2]; /* the gradient of x, whose address is kept; scratch */
    double* kept;
    char log[2000];
} computer;

static double* c_at(computer* c, memo_session* s, int32_t layer, int t) {
    double** kept = &c->addresses[layer][t];
    if (t == c->elsewhere - 1) return c->own;
    if (!c->keeps || !*kept) *kept = (double*)memo_session_get_address(s, layer, c->places[t]);
    return *kept;
}

static void c_hidden(computer* c, memo_session* s, int32_t layer, int64_t begin, int64_t end) {
    const double* in = c_at(c, s, layer, C_INPUT);
    double* hidden = c_at(c, s, layer, C_HIDDEN);
    if (c->counts) c->n_runs++;
    if (c->whole) end = begin + (end - begin + c->whole - 1) / c->whole * c->whole;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < 2 * C_WIDTH; k++)
            hidden[i * 2 * C_WIDTH + k] = /* as if a library took another algorithm for few rows */
                sin(in[i * C_WIDTH + k % C_WIDTH] + (double)k) + c->weight +
                (end - begin < c->block ? 1e-16 * (double)(i + 1) : 0) + layer + c->n_runs +
                (c->continues && i > 0 ? hidden[(i - 1) * 2 * C_WIDTH + k] : 0);
}
static void c_out(computer* c, memo_session* s, int32_t layer, int64_t begin, int64_t end) {
    const double* hidden = c_at(c, s, layer, C_HIDDEN);
    double* out = c_at(c, s, layer, C_OUT);
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < C_WIDTH; k++)
            out[i * C_WIDTH + k] = cos(hidden[i * 2 * C_WIDTH + k] * hidden[i * 2 * C_WIDTH + 5]);
}
static void c_forward(void* user, memo_session* s, int32_t layer) {
    computer* c = (computer*)user;
    for (int64_t i = 0; i < C_ROWS * C_WIDTH && layer == 0; i++) c->x[i] = sin((double)i);
    memcpy(c_at(c, s, layer, C_INPUT), c->x, sizeof c->x);
    c_hidden(c, s, layer, 0, C_ROWS);
    if (c->lacks == 1 && layer == 2) return;
    if (c->early && layer == 1) *(double*)memo_session_get_buffer(s, c->early - 1) = 1;
    c_out(c, s, layer, 0, C_ROWS);
    memcpy(c->x, c_at(c, s, layer - (layer == 3 && c->reads == 2), C_OUT), sizeof c->x);
    if (c->clobbers == 1 && layer == 5) c_at(c, s, 4, C_INPUT)[7 * C_WIDTH] = 1;
    if (c->clobbers == 2 && layer == 5) c_at(c, s, 4, C_INPUT)[7 * C_WIDTH] *= 2;
}
static void c_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t begin,
                        int64_t end) {
    computer* c = (computer*)user;
    if (c->misplaces) end -= begin, begin = 0;
    for (int64_t i = begin * C_WIDTH; i < end * C_WIDTH && c->copies && tensor == C_INPUT; i++)
        c_at(c, s, layer, C_INPUT)[i] = c->x[i]; /* what the last layer gave */
    if (tensor == c->places[C_HIDDEN]) c_hidden(c, s, layer, begin, end);
    if (tensor == c->places[C_HIDDEN] && c->forgets == 3) c_out(c, s, layer, begin, end);
    if (tensor == c->places[C_OUT] && (!c->forgets || (c->forgets == 2 && layer != 2)))
        c_out(c, s, layer, begin, end);
}
static void c_between(void* user, memo_session* s) {
    computer* c = (computer*)user;
    c->kept = (double*)memo_session_get_buffer(s, 0);
    for (int64_t i = 0; i < C_ROWS * C_WIDTH; i++) c->kept[i] = 1;
}
static void c_backward(void* user, memo_session* s, int32_t layer) {
    computer* c = (computer*)user;
    double* scratch = (double*)memo_session_get_buffer(s, 1);
    if (c->drifts) c->n_runs++;
    const int32_t read = layer + (c->reads == 1 && layer + 1 < C_LAYERS); /* that one has ended */
    const double *hidden = c_at(c, s, layer, C_HIDDEN), *out = c_at(c, s, read, C_OUT);
    if (c->clobbers == 3) c_at(c, s, layer, C_OUT)[C_ROWS * C_WIDTH] = 1;
    for (int64_t i = 0; i < C_ROWS * C_WIDTH; i++) {
        scratch[i] = c->kept[i] += 1;
        c->sum += hidden[2 * i] * out[i] * (double)(layer + 1);
        if (c->sums) c->sums[layer] += hidden[2 * i] * out[i] + c->n_runs;
    }
}
static void c_log(void* user, const char* line) {
    computer* c = (computer*)user;
    size_t n = strlen(c->log);
    snprintf(c->log + n, sizeof c->log - n, "%s\n", line);
}

static void c_make(computer* c, int is_checked) {
    static const memo_item tensors[] = {MEMO_ITEM("input", 8 * C_WIDTH, MEMO_MOVE),
                                        MEMO_ITEM("hidden", 16 * C_WIDTH, MEMO_ROWS),
                                        MEMO_ITEM("out", 8 * C_WIDTH, MEMO_ROWS)};
    memset(c, 0, sizeof *c);
    static const memo_session_buffer declared[2] = {
        {"d_x", 0, 8 * C_WIDTH, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BACKWARD, 0, 0},
        {"scratch", 0, 8 * C_WIDTH, MEMO_PASS_BACKWARD, MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0}};
    memcpy(c->tensors, tensors, sizeof tensors);
    memcpy(c->buffers, declared, sizeof declared);
    for (int t = 0; t < 3; t++) c->places[t] = t;
    c->desc = MEMO_ZERO(memo_session_desc);
    c->desc.user = c;
    c->desc.tensors = c->tensors;
    c->desc.n_tensors = 3;
    c->desc.n_layers = C_LAYERS;
    c->desc.n_rows = C_ROWS;
    c->desc.tile_rows = 8;
    c->desc.buffers = c->buffers;
    c->desc.n_buffers = 2;
    c->desc.forward = c_forward;
    c->desc.between = c_between;
    c->desc.backward = c_backward;
    c->desc.recompute = c_recompute;
    c->desc.policy = MEMO_POLICY_RECOMPUTE;
    c->desc.is_checked = is_checked;
    c->desc.log.write = c_log;
    c->desc.log.user = c;
}

/* Two micro-batches, or as many as a session times and two; the last must be as the one before. */
static memo_status c_run(computer* c) {
    own_session* s = NULL;
    memo_status status = memo_session_create(&c->desc, &s, &error);
    for (int k = 0; k < (c->keeps ? 4 : 0) && !status; k++)
        status = memo_session_run(s, NULL, &error);
    c->sum = 0;
    if (!status) status = memo_session_run(s, NULL, &error);
    double sum = c->sum;
    c->weight += 0 * c->sum;
    c->sum = 0;
    if (!status) status = memo_session_run(s, NULL, &error);
    CHECK(status || (sum >= c->sum && sum <= c->sum));
    return status;
}

/* A device that looks at rows itself, byte by byte. */
typedef struct inspection {
    const unsigned char* bytes;
    int64_t row_bytes, n_rows;
    memo_row_content* found;
} inspection;
static int64_t n_inspected;
static memo_status inspect_rows(void* args, MEMO_UNUSED memo_error* e) {
    static const uint32_t poisoned[2] = {0x7fa07da0u, 0x7ff17da0u};
    const inspection* in = (const inspection*)args;
    for (int64_t row = 0; row < in->n_rows; row++) {
        const unsigned char* bytes = in->bytes + row * in->row_bytes;
        memo_row_content* f = &in->found[row];
        int64_t n_of_poison = 0;
        memset(f, 0, sizeof *f);
        while (f->n_poisoned < in->row_bytes) {
            const uintptr_t at = (uintptr_t)(bytes + f->n_poisoned) % 8;
            if (bytes[f->n_poisoned] != (poisoned[at / 4] >> 8 * (at % 4) & 255)) break;
            f->n_poisoned++;
        }
        for (int64_t i = 0; i < in->row_bytes; i++)
            f->digest = (f->digest ^ bytes[i]) * 1099511628211u;
        for (int64_t i = 0; i + 4 <= in->row_bytes; i += 4) {
            uint32_t word;
            memcpy(&word, bytes + i, sizeof word);
            word &= 0x7fffffff;
            n_of_poison += word == 0x7fe07da0 || word == 0x7ff97da0 ||
                           (word == 0x7ff17da0 && (uintptr_t)(bytes + i) % 8 == 0);
        }
        f->is_of_poison = n_of_poison > 1;
    }
    n_inspected += in->n_rows;
    return MEMO_STATUS_OK;
}
static memo_device* inspected;
static memo_status inspect(MEMO_UNUSED void* context, memo_stream stream, const void* bytes,
                           int64_t row_bytes, int64_t n_rows, memo_row_content* found,
                           memo_error* e) {
    const inspection in = {(const unsigned char*)bytes, row_bytes, n_rows, found};
    return memo_host_device_launch(inspected, stream, inspect_rows, &in, (int64_t)sizeof in, e);
}

/* On the calling thread, under three policies; and on a device that inspects. */
TEST(mistakes_are_found) {
    static const int32_t kinds[C_LAYERS] = {0, 0, 1, 0, 0, 0};
    static const uint32_t of_kinds[3] = {0, 0, 1};
    static const memo_shape forward_only = {C_ROWS / 2, 1};
    static const memo_shape whole_and_half[2] = {{C_ROWS, 0}, {C_ROWS / 2, 0}};
    static const struct {
        const char* what;
        const char* message;
    } mistakes[] = {
        {"none", ""},
        {"row_bytes too small", "tensor `hidden`, row 48: the forward wrote behind"},
        {"another order", "tensor `out`, row 48: the forward wrote behind"},
        {"n_rows halved", "tensor `input`, row 24: the forward wrote behind"},
        {"an input declared ROWS", "tensor `input`, row 0: recompute did not write it"},
        {"a tensor forgotten", "tensor `out`, row 0: recompute did not write it"},
        {"tiles too small", "if they are right, tile_rows of 16 would work"},
        {"not by rows", "but not if all 48 are; compute rows from `begin`, check"},
        {"another layer's bytes", "layer 4, tensor `input`, row 7: its bytes changed"},
        {"rows at another place", "but not if all 48 are; compute rows from `begin`, check"},
        {"another run each time", "recompute gives it other bytes than the forward"},
        {"an update in place, later", "layer 4, tensor `input`, row 7: its bytes changed"},
        {"a backward", "layer 5, tensor `out`, row 48: the backward wrote behind"},
        {"one kind", "layer 2, tensor `out`, row 0: recompute did not write it"},
        {"a forward alone", "layer 0, tensor `input`, row 24: the forward wrote behind"},
        {"a layer without it",
         "the forward of layer 2 wrote nothing into `out`: a forgotten or cached address, bytes of "
         "a tensor that has ended, or a layer that lacks the tensor"},
        {"a recurrence by rows",
         "but not if all 48 are; compute rows from `begin`, check row_bytes"},
        {"a buffer that ends too early",
         "buffer `d_x` of 1920 bytes: something writes to it after"},
        {"a buffer too small", "buffer `scratch` of 1912 bytes: something writes behind it"},
        {"a tensor that has ended", "the forward of layer 4 wrote nothing into `input`"},
        {"an input copied again", "other bytes than the forward; it must compute the same rows by "
                                  "the same operations, or tile_rows is too small, or the table "
                                  "has another order; if no tensor before it gives it, declare it "
                                  "MEMO_MOVE"},
        {"a backward that reads a layer that has ended",
         "layer 0, tensor `hidden`, row 0: its weights or its input are NaN since the micro-batch "
         "before: the backward read bytes"},
        {"an absent tensor", "memo_session_get_address: layer 2 is of kind 1, which lacks tensor "
                             "`out` of 40 bytes a row; do not use it there"},
        {"a buffer before its life",
         "memo_session_get_buffer: `d_x` does not live in the forward of layer 1; it is declared "
         "from the begin of `between` to the end of the backward of layer 0"},
        {"a buffer of the other pass",
         "`scratch` does not live in the forward of layer 1; it is declared from the begin of a "
         "layer's backward to the end of that layer"},
        {"row_bytes too large",
         "in tiles of 8 rows, or they write behind these; check row_bytes; if they are right"},
        {"MEMO_WITH forgotten",
         "layer 5, tensor `out`, row 0: recompute did not write it; recompute "
         "it, declare it MEMO_WITH"}};
    const memo_host_device_desc host = {0};
    memo_device table;
    computer c;
    int i;
    CHECK_OK(memo_host_device_create(&host, &inspected, &error));
    table = *inspected;
    table.inspect = inspect;
    c_make(&c, 0);
    CHECK_OK(c_run(&c));
    double right = c.sum;
    for (int k = 0; k < 4 * (int)(sizeof mistakes / sizeof mistakes[0]); k++) {
        i = k / 4;
        c_make(&c, 1);
        if (k % 4 == 3) c.desc.device = &table, c.desc.computes_on_host = 1;
        if (k % 4 == 1) c.desc.policy = MEMO_POLICY_KEEP;
        if (k % 4 == 2) { /* measures */
            c.desc.policy = MEMO_POLICY_MEMO;
            c.desc.device_bytes = i == 3 ? 14000 : 28000;
        }
        if (i == 1) c.tensors[C_HIDDEN].row_bytes -= 8;
        if (i == 2) { /* the table's order is not the kernels' */
            memo_item swap = c.tensors[C_HIDDEN];
            c.tensors[C_HIDDEN] = c.tensors[C_OUT];
            c.tensors[C_OUT] = swap;
            c.tensors[C_HIDDEN].name = "out";
        }
        if (i == 3) c.desc.n_rows /= 2;
        if (i == 4) c.tensors[C_INPUT].away = MEMO_ROWS;
        if (i == 5) c.forgets = 1;
        if (i == 6) c.block = 13;
        if (i == 7) c.block = C_ROWS;
        if (i == 8) c.clobbers = 1;
        if (i == 8 && k % 4 % 3 == 0) c.desc.policy = MEMO_POLICY_SWAP;
        if (i == 9) c.misplaces = 1;
        if (i == 10) c.counts = 1;
        if (i == 11) c.clobbers = 2;
        if (i == 12) c.clobbers = 3;
        if (i == 13) c.desc.layer_kinds = kinds, c.forgets = 2; /* in layer 2 alone */
        if (i == 15) c.desc.layer_kinds = kinds, c.lacks = 1;   /* and no tensor_kinds */
        if (i == 16) c.continues = 1;
        if (i == 19) c.reads = 2; /* layer 3 hands on another's tensor */
        if (i == 17) c.buffers[0].last_layer = C_LAYERS - 1;
        if (i == 18) c.buffers[1].size_bytes = 1912, c.buffers[1].row_bytes = 0;
        if (i == 14) c.desc.shapes = &forward_only, c.desc.n_shapes = 1;
        if (i == 20) c.tensors[C_INPUT].away = MEMO_ROWS, c.copies = 1;
        if (i == 21) c.reads = 1;
        if (i == 22) c.desc.layer_kinds = kinds, c.desc.tensor_kinds = of_kinds, c.lacks = 2;
        if (i == 23 || i == 24) c.early = i - 22;
        if (i == 25) c.tensors[C_HIDDEN].row_bytes += 8;
        if (i == 26) c.forgets = 3;
        memo_status status = c_run(&c);
        if (i == 0) {
            CHECK_OK(status);
            CHECK(c.sum >= right && c.sum <= right);
            CHECK(strstr(c.log, "tensor `hidden` keeps its bits in tiles of 1 rows") != NULL);
            continue;
        }
        CHECK_CASE(status == (i == 23 || i == 24 ? MEMO_STATUS_INVALID_STATE
                                                 : MEMO_STATUS_INVALID_ARGUMENT) &&
                       strstr(error.message, mistakes[i].message),
                   "%s: %s: %s", mistakes[i].what, memo_policy_name(c.desc.policy),
                   status ? error.message : "not found");
    }
    CHECK_IS(n_inspected, >, 0);

    /* Kernels of whole tiles write behind the rows that trials of fewer rows give them: the layer
     * gets its bytes back, and a tile_rows that is too small is refused. */
    for (int k = 0; k < 4; k++) {
        c_make(&c, 1);
        c.whole = 8;
        if (k % 2) c.desc.device = &table, c.desc.computes_on_host = 1;
        if (k > 1) c.desc.tile_rows = 2;
        memo_status status = c_run(&c);
        CHECK_CASE(k > 1 ? status == MEMO_STATUS_INVALID_ARGUMENT &&
                               strstr(error.message, "tile_rows of 8 would work")
                         : !status && c.sum >= right && c.sum <= right &&
                               strstr(c.log, "`hidden` keeps its bits in tiles of 8 rows"),
                   "case %d: %s", k, status ? error.message : c.log);
    }
    memo_host_device_destroy(inspected);

    /* Every shape is checked: the second is too short for the kernels. */
    {
        own_memory memo_profile* profiles = (memo_profile*)malloc(2 * sizeof *profiles);
        c_make(&c, 1);
        c.desc.shapes = whole_and_half, c.desc.n_shapes = 2;
        CHECK_ERROR(session_times(&c.desc, profiles, &error), INVALID_ARGUMENT,
                    "tensor `input`, row 24: the forward wrote behind");
    }

    /* Who reads a layer that has ended gets NaN. */
    c_make(&c, 1);
    c.desc.policy = MEMO_POLICY_KEEP, c.reads = 1;
    own_session* reader = new_session(&c.desc);
    CHECK_OK(memo_session_run(reader, NULL, &error));
    CHECK(c.sum != c.sum);

    /* A mistake between micro-batches is the error of the next one. */
    c.reads = 0;
    (void)memo_session_get_buffer(reader, 1);
    CHECK_ERROR(memo_session_run(reader, NULL, &error), INVALID_STATE,
                "`scratch` does not live in the end of the micro-batch");
    CHECK_OK(memo_session_run(reader, NULL, &error));

    /* Under every policy, on the calling thread or a stream, with layers of several kinds. */
    for (i = 0; i < 40; i++) {
        model m;
        random_model(&m);
        m.desc.is_checked = 1;
        m.desc.policy = (memo_policy)memo_test_int(0, MEMO_POLICY_ALPHA);
        if (m.desc.policy == MEMO_POLICY_MEMO) m.desc.policy = MEMO_POLICY_RECOMPUTE;
        open_device(&m, 0, 0);
        memo_session* s = new_session(&m.desc);
        for (int k = 0; k < 3 && s; k++) {
            m.micro_batch = k;
            memo_batch batch = {.shape = m.desc.n_shapes ? k % m.desc.n_shapes : 0};
            batch.n_rows = m.desc.n_shapes ? m.shapes[batch.shape].n_rows : m.desc.n_rows;
            batch.n_rows = memo_test_int(1, batch.n_rows);
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        finish(&m, s);
    }

    /* The environment does the same for a program that is built. */
    setenv("MEMO_CHECK", "1", 1);
    c_make(&c, 0);
    c.forgets = 1;
    CHECK_IS(c_run(&c), ==, MEMO_STATUS_INVALID_ARGUMENT);
    setenv("MEMO_CHECK", "0", 1);
    c_make(&c, 0);
    CHECK_OK(c_run(&c));
    unsetenv("MEMO_CHECK");
}

/* --- misuse --- */

static int misuse;
static void misused_setup(void* user, memo_session* s) {
    setup(user, s);
    if (misuse == 1) IGNORE(memo_session_run(s, NULL, NULL));
}
static void misused_recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                              int64_t begin, int64_t end) {
    if (misuse == 2) CHECK(memo_session_alloc(s, 8) == NULL);
    recompute(user, s, layer, tensor, begin, end);
}

/* Computes in a dry run, too. */
static void computing_step(void* user, memo_session* s) {
    model* m = (model*)user;
    for (int32_t l = 0; l < m->desc.n_layers; l++) {
        void* scratch = memo_session_alloc(s, 1 << 20);
        (void)memo_session_forward_begin(s, l);
        if (misuse == 3) memset(memo_session_get_address(s, l, 1), 1, 400 * 64);
        memset(scratch, 1, 1 << 20);
        CHECK_IS((uintptr_t)scratch % 512, ==, 0);
        memo_session_forward_end(s, l);
        memo_session_free(s, scratch);
    }
}

/* Forgets the end of a layer, which a dry run finds as well. */
static void forgetful_step(void* user, memo_session* s) {
    model* m = (model*)user;
    for (int32_t l = 0; l < m->desc.n_layers; l++) {
        if (memo_session_forward_begin(s, l)) forward(user, s, l);
        if (l != misuse - 10) memo_session_forward_end(s, l);
    }
    if (misuse == 9) memo_session_backward_end(s, 7);
}

TEST(misuse_is_an_error) {
    static const struct {
        int misuse;
        const char* message;
    } orders[] = {
        {11, "memo_session: forward end of layer 2 of 8: out of order; forward end of layer 1 "
             "comes next"},
        {17, "memo_session_end: layer 7 is still open; end each layer that begins"},
        {9, "memo_session: backward end of layer 7 of 8: out of order; backward begin of layer 7 "
            "comes next"}};
    static const memo_session_buffer each = {
        "scratch", 8, 0, MEMO_PASS_FORWARD, MEMO_EACH_LAYER, MEMO_PASS_FORWARD, 0, 0};
    memo_session* s = NULL;
    memo_step_plan* plan = NULL;
    own_model m;
    tight_model(&m);
    m.desc.setup = misused_setup;
    m.desc.recompute = misused_recompute;
    open_device(&m, m.desc.device_bytes, 0);
    WITH(misuse, 1,
         CHECK_ERROR(memo_session_create(&m.desc, &s, &error), INVALID_STATE,
                     "called inside setup"));
    m.desc.step = computing_step;
    misuse = 3;
    CHECK_ERROR(memo_session_create(&m.desc, &s, &error), INVALID_STATE, "called in a dry run");
    m.desc.step = step;
    misuse = 2;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE,
                "called inside recompute; declare a buffer");
    memo_session_destroy(s);
    m.desc.step = forgetful_step;
    for (int k = 0; k < 3; k++) {
        misuse = orders[k].misuse;
        CHECK_ERROR(memo_session_plan(&m.desc, NULL, &plan, &error), INVALID_STATE,
                    orders[k].message);
    }
    m.desc.buffers = &each;
    m.desc.n_buffers = 1;
    misuse = 11; /* layers 1 and 2 are open */
    CHECK_ERROR(memo_session_plan(&m.desc, NULL, &plan, &error), INVALID_STATE,
                "`scratch` lives in each layer, but two layers are open");
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
    alpha.has_alpha = 1;
    alpha.alpha = 0.5;
    CHECK_ERROR(memo_session_create(&alpha, &stored, &error), INFEASIBLE, ".device_bytes");
    CHECK(!stored);
}

TEST(null_is_refused_by_name) {
    memo_profile profile[MEMO_SHAPES_MAX];
    memo_session* s = (memo_session*)&profile;
    memo_step_plan* plan = (memo_step_plan*)&profile;
    int64_t n_bytes;
#define NULL_IS_REFUSED(call, argument)                                                            \
    CHECK_ERROR(call, INVALID_ARGUMENT, ": " argument ": NULL; pass one")
    NULL_IS_REFUSED(memo_session_create(NULL, &s, &error), "desc");
    CHECK(!s);
    s = (memo_session*)&profile;
    NULL_IS_REFUSED(memo_session_open(NULL, NULL, &s, &error), "desc");
    CHECK(!s);
    NULL_IS_REFUSED(memo_session_plan(NULL, NULL, &plan, &error), "desc");
    CHECK(!plan);
    plan = (memo_step_plan*)&profile;
    NULL_IS_REFUSED(memo_step_plan_read(NULL, "build/none", &plan, &error), "desc");
    CHECK(!plan);
    NULL_IS_REFUSED(memo_session_get_least(NULL, &n_bytes, &error), "desc");
    NULL_IS_REFUSED(memo_session_verify(NULL, &error), "desc");

    NULL_IS_REFUSED(memo_session_run(NULL, NULL, &error), "session");
    NULL_IS_REFUSED(memo_session_end(NULL, &error), "session");
    NULL_IS_REFUSED(memo_session_update(NULL, &error), "session");
    NULL_IS_REFUSED(memo_session_skip_update(NULL, &error), "session");
    NULL_IS_REFUSED(memo_session_fill_states(NULL, NULL, &error), "session");
    NULL_IS_REFUSED(memo_session_read_state(NULL, 0, 0, 0, &n_bytes, 8, &error), "session");
    NULL_IS_REFUSED(memo_session_write_state(NULL, 0, 0, 0, &n_bytes, 8, &error), "session");
    CHECK_IS(memo_session_run(NULL, NULL, NULL), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

/* A number that no buffer has forms no address, which `make ubsan CC=clang` would see; an error without
 * words has those of its status. */
TEST(errors_of_a_session_have_words) {
    static const int32_t numbers[] = {-1, 0, 1, INT32_MAX, INT32_MIN};
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

/* Each step changes a gradient and a generator, on the compute stream. */
static struct {
    uint64_t gradient[8], generator;
    int n_steps, fails; /* which no output names */
} changed;
static memo_status change(MEMO_UNUSED void* arguments, MEMO_UNUSED memo_error* e) {
    changed.gradient[3]++, changed.generator *= 3;
    return MEMO_STATUS_OK;
}
static void changing_step(void* user, memo_session* s) {
    model* m = (model*)user;
    step(user, s);
    if (!memo_session_computes(s)) return;
    changed.n_steps++;
    CHECK_OK(memo_host_device_launch(m->host, m->compute, change, &m, sizeof m, &error));
    if (changed.fails) memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

TEST(verifying_gives_outputs_back) {
    const memo_session_output outputs[] = {
        {"gradient", changed.gradient, sizeof changed.gradient, MEMO_TYPE_I64, 0},
        {"generator", &changed.generator, sizeof changed.generator, MEMO_TYPE_I64, 0}};
    memo_session* s = NULL;
    model m;
    computer c;
    tight_model(&m);
    shorten(&m);
    open_device(&m, 0, 0);
    m.desc.step = changing_step;
    memset(&changed, 0, sizeof changed);
    changed.gradient[3] = 5, changed.generator = 7;

    m.desc.n_outputs = 2;
    CHECK_ERROR(memo_session_verify(&m.desc, &error), INVALID_ARGUMENT, "outputs: NULL");
    m.desc.outputs = outputs;
    changed.fails = 1; /* after it has changed them */
    CHECK_ERROR(memo_session_verify(&m.desc, &error), DEVICE, "the trainer's own");
    CHECK(changed.n_steps == 1 && changed.gradient[3] == 5 && changed.generator == 7);
    changed.fails = 0;
    CHECK_OK(memo_session_verify(&m.desc, &error));
    CHECK(changed.n_steps > 3 && changed.gradient[3] == 5 && changed.generator == 7);

    /* A session that times its steps changes them once in each. */
    m.desc.timed_steps = 3;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    for (int i = 0; i < 5; i++) CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    CHECK(changed.gradient[3] == 10 && changed.generator == 7 * 243);
    finish(&m, s);

    /* The calling thread computes; the sum adds up. */
    c_make(&c, 0);
    const memo_session_output sum = {"sum", &c.sum, sizeof c.sum, MEMO_TYPE_F64, 0};
    c.desc.outputs = &sum, c.desc.n_outputs = 1;
    c.desc.policy = MEMO_POLICY_ALPHA;
    c.sum = 5;
    CHECK_OK(memo_session_verify(&c.desc, &error));
    CHECK(c.sum <= 5 && c.sum >= 5);
    CHECK_OK(memo_session_create(&c.desc, &s, &error));
    CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK(c.sum < 5 || c.sum > 5);
    memo_session_destroy(s);
}

/* Of what the update would read: two arrays of gradients, of which one is forgotten in outputs. */
typedef struct gradients {
    computer c; /* first, because memo passes it as user */
    double listed[C_LAYERS], other[C_LAYERS];
} gradients;
static void g_backward(void* user, memo_session* s, int32_t layer) {
    gradients* g = (gradients*)user;
    c_backward(user, s, layer);
    g->other[layer] += g->listed[layer];
}
static double g_norm(void* user) {
    const gradients* g = (const gradients*)user;
    double sum = 0;
    for (int l = 0; l < C_LAYERS; l++)
        sum += g->listed[l] * g->listed[l] + g->other[l] * g->other[l];
    return sqrt(sum);
}

TEST(a_missing_output_is_named) {
    gradients g;
    const memo_session_output outputs[] = {
        {"listed", g.listed, sizeof g.listed, MEMO_TYPE_F64, C_LAYERS},
        {"other", g.other, sizeof g.other, MEMO_TYPE_F64, C_LAYERS},
        {"half of listed", g.listed, sizeof g.listed / 2, MEMO_TYPE_F64, C_LAYERS / 2}};
    for (int k = 0; k < 10; k++) {
        const int which = k % 5, begins_at_0 = k < 5;
        const int n_listed = which == 3 ? 1 : which == 4 ? 2 : which, is_right = which == 2;
        if (!n_listed) continue; /* nothing to compare */
        memset(&g, 0, sizeof g);
        c_make(&g.c, 0);
        g.c.sums = g.listed;
        if (!begins_at_0) g.listed[1] = 0.5, g.other[2] = 5;
        g.c.desc.backward = g_backward, g.c.desc.norm = g_norm;
        g.c.desc.outputs = outputs + (which == 4), g.c.desc.n_outputs = n_listed;
        if (which == 3) g.c.desc.norm = NULL; /* nobody sees it */
        g.c.desc.policy = MEMO_POLICY_ALPHA;
        const memo_status status = memo_session_verify(&g.c.desc, &error);
        IN_CASE("case %d: %s", k, status ? error.message : "ok");
        CHECK_IS(status, ==,
                 is_right || which == 3 ? MEMO_STATUS_OK : MEMO_STATUS_INVALID_ARGUMENT);
        if (status)
            CHECK(strstr(error.message, "memo_session_desc.outputs: norm was ") &&
                  strstr(error.message, begins_at_0 ? "was 0 and is " : "was 5.02493781 and is ") &&
                  strstr(error.message, "list what else a micro-batch changes"));
        CHECK((g.other[2] <= 5 && g.other[2] >= 5) == (n_listed == 2 && !begins_at_0));
    }
}

static memo_status other_memory_info(MEMO_UNUSED void* context, int64_t* free_bytes,
                                     int64_t* total_bytes, MEMO_UNUSED memo_error* e) {
    *free_bytes = *total_bytes = (int64_t)80 << 30;
    return MEMO_STATUS_OK;
}

/* Mistakes that a checked session finds as well, and some that it cannot, change gradients. */
static memo_status keep_memory(MEMO_UNUSED void* context, MEMO_UNUSED void* address,
                               MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}

/* Addresses kept from the plan before, or from a session before: under each budget.  The
 * device frees nothing before its end, because the mistake writes to memory of a closed session. */
TEST(tensors_that_no_forward_writes_are_named) {
    static double sums[C_LAYERS];
    const memo_session_output outputs[] = {{"sums", sums, sizeof sums, MEMO_TYPE_F64, C_LAYERS}};
    const memo_host_device_desc plain = MEMO_ZERO(memo_host_device_desc);
    computer c;
    memo_device* host = NULL;
    CHECK_OK(memo_host_device_create(&plain, &host, &error));
    memo_device keeping = *host;
    keeping.device_free = keep_memory;
    for (int k = 0; k < 8; k++) {
        c_make(&c, 1);
        c.desc.device = &keeping, c.desc.computes_on_host = 1;
        c.keeps = k < 4;
        c.elsewhere = k < 4 ? 0 : 2 + k % 2;
        c.desc.policy = MEMO_POLICY_MEMO;
        c.desc.device_bytes = 24000 + 2000 * (k % 4);
        CHECK_CASE(c_run(&c) == MEMO_STATUS_INVALID_ARGUMENT &&
                       strstr(error.message, "the forward of layer 0 wrote nothing into `") &&
                       strstr(error.message, "a forgotten or cached address"),
                   "case %d: %s", k, error.message);
    }
    for (int k = 0; k < 2; k++) {
        c_make(&c, 0);
        c.desc.device = &keeping, c.desc.computes_on_host = 1;
        c.keeps = k;
        c.elsewhere = 2 * !k;
        c.sums = sums;
        c.desc.outputs = outputs, c.desc.n_outputs = 1;
        CHECK_ERROR(memo_session_verify(&c.desc, &error), INVALID_ARGUMENT, "wrote nothing into");
    }
    memo_host_device_destroy(host);
}

TEST(verify_finds_other_gradients) {
    static const struct {
        int reads, block, drifts;
        memo_policy policy;
        const char* message;
    } cases[] = {
        {0, 0, 0, MEMO_POLICY_MEMO, NULL},
        {0, 0, 0, MEMO_POLICY_SWAP, NULL},
        {1, 0, 0, MEMO_POLICY_MEMO,
         "output `sums`, layer 0, number 0 (byte 0 of 8): a checked session changes it; the "
         "backward reads bytes that no kernel has written"},
        {0, C_ROWS, 0, MEMO_POLICY_KEEP, "in tiles of 8 rows, but not if all 48 are"},
        {0, 13, 0, MEMO_POLICY_KEEP, "if they are right, tile_rows of 16 would work"},
        {0, 0, 1, MEMO_POLICY_MEMO, "two micro-batches with every tensor kept differ"}};
    double sums[C_LAYERS + 1], before[C_LAYERS + 1];
    const memo_session_output outputs[] = {
        {"sums", sums, C_LAYERS * sizeof *sums, MEMO_TYPE_F64, C_LAYERS}};
    computer c;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        c_make(&c, 0);
        c.sums = sums;
        c.reads = cases[k].reads, c.block = cases[k].block, c.drifts = cases[k].drifts;
        c.desc.policy = cases[k].policy;
        c.desc.outputs = outputs, c.desc.n_outputs = 1;
        for (int l = 0; l <= C_LAYERS; l++) before[l] = sums[l] = 3.5 * l;
        memo_status status = memo_session_verify(&c.desc, &error);
        CHECK_CASE(cases[k].message ? status == MEMO_STATUS_INVALID_ARGUMENT &&
                                          strstr(error.message, cases[k].message)
                                    : status == MEMO_STATUS_OK,
                   "case %d: %s", (int)k, status ? error.message : "ok");
        CHECK(!memcmp(sums, before, sizeof sums));
    }
    c.desc.n_outputs = 0;
    CHECK_ERROR(memo_session_verify(&c.desc, &error), INVALID_ARGUMENT, "nothing to compare");
}

/* Without a budget a session leaves bytes to libraries. */
TEST(a_reserve_is_left) {
    own_step_plan* plan = NULL;
    model m;
    tight_model(&m);
    open_device(&m, 1 << 20, 0);
    for (int k = 0; k < 3; k++) { /* a host device; a reserve; another device */
        memo_device table = *m.host;
        int32_t other[16] = {0};
        m.desc.device_bytes = 0;
        m.desc.reserve_bytes = k == 1 ? 700 << 10 : 0;
        if (k == 2) table.context = other, table.memory_info = other_memory_info;
        m.desc.device = &table;
        CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
        CHECK_IS(plan->device_budget_bytes, ==,
                 k == 0   ? 1 << 20
                 : k == 1 ? 324 << 10
                          : ((int64_t)80 << 30) - ((int64_t)80 << 30) / 100 * 3);
        CHECK(plan->fits);
        memo_step_plan_destroy(plan);
        plan = NULL;
    }
    close_device(&m);
}

static const memo_device* watched;
static int n_events; /* timed */
static memo_status counted_create(void* context, memo_event* event, memo_error* e) {
    n_events++;
    return watched->event_create(context, event, e);
}
/* Timed steps reuse events: more layers need no more. */
TEST(timed_steps_take_few_events) {
    int n_timed = 0;
    for (int k = 0; k < 2; k++) {
        memo_profile profile;
        model m;
        tight_model(&m);
        if (k) shorten(&m);
        open_device(&m, 512 << 10, 0);
        m.desc.device_bytes = 0;
        watched = m.host;
        memo_device table = *m.host;
        table.event_create = counted_create;
        m.desc.device = &table;
        n_events = 0;
        CHECK_OK(session_times(&m.desc, &profile, &error));
        CHECK(profile.forward_s[0] > 0 &&
              profile.tensors[2].recompute_s_per_row[0] + profile.recompute_call_s > 0);
        close_device(&m);
        if (k) CHECK_CASE(n_events == n_timed && n_timed > 0, "%d and %d", n_timed, n_events);
        n_timed = n_events;
    }
}

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

/* A kernel that ends only when somebody waits for its stream, and the frees of device memory before
 * it ends. */
static int is_running, is_awaited, n_early_frees;
static memo_status run_until_awaited(void* arguments, memo_error* e) {
    const struct timespec nap = {0, 50000};
    (void)arguments, (void)e;
    while (!__atomic_load_n(&is_awaited, __ATOMIC_ACQUIRE)) nanosleep(&nap, NULL);
    __atomic_store_n(&is_running, 0, __ATOMIC_RELEASE);
    return MEMO_STATUS_OK;
}
static memo_status watched_synchronize(void* context, memo_stream stream, memo_error* e) {
    if (__atomic_load_n(&is_running, __ATOMIC_ACQUIRE))
        __atomic_store_n(&is_awaited, 1, __ATOMIC_RELEASE);
    return watched->stream_synchronize(context, stream, e);
}
static memo_status watched_free(void* context, void* address, memo_error* e) {
    if (__atomic_load_n(&is_running, __ATOMIC_ACQUIRE)) {
        n_early_frees++;
        __atomic_store_n(&is_awaited, 1, __ATOMIC_RELEASE);
    }
    return watched->device_free(context, address, e);
}
static void failing_forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    forward(user, s, layer);
    __atomic_store_n(&is_running, 1, __ATOMIC_RELAXED);
    CHECK_OK(memo_host_device_launch(m->host, m->compute, run_until_awaited, NULL, 0, &error));
    memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

/* A checked micro-batch computes in memory that is freed after it. */
TEST(an_error_of_a_checked_step_waits_for_kernels) {
    memo_profile profile;
    own_model m;
    tight_model(&m);
    by_layers(&m, failing_forward, backward);
    m.desc.is_checked = 1;
    open_device(&m, 0, 0);
    watched = m.host;
    memo_device table = *m.host;
    table.device_free = watched_free;
    table.stream_synchronize = watched_synchronize;
    m.desc.device = &table;
    CHECK_ERROR(session_times(&m.desc, &profile, &error), DEVICE, "the trainer's own");
    CHECK_IS(n_early_frees, ==, 0);
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
