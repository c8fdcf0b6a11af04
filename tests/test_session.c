/* test_session.c - the session: random models under random budgets.  Layers write patterns and check that they come
 * back, on the calling thread or on a stream.  The device's capacity is the budget, so that a session which takes more
 * fails. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "memo_test.h"
#include "stats.h"

#include <stdlib.h>

static memo_error error;

enum { TENSORS_MAX = 6, LAYERS_MAX = 9 };

typedef struct model {
    memo_session_desc desc;
    memo_tensor tensors[TENSORS_MAX];
    memo_device* host;
    memo_stream compute;
    int64_t setup_bytes, scratch_bytes;
    char *state, *scratch; /* from the session */
    int64_t micro_batch;
    int32_t n_backward;    /* layers; 0: forward alone */
    int32_t failing_layer; /* fails in its forward; -1: none */
    int64_t n_wrong;       /* bytes; written by the thread that computes the layer */
    int64_t n_setups, n_dry, n_calls;
} model;

/* --- the computation of a layer --- */

typedef struct job {
    unsigned char* bytes;
    int64_t begin, end;
    uint64_t key;
    int64_t* n_wrong; /* NULL: write */
} job;

static memo_status run_job(void* arguments, memo_error* e) {
    const job* j = (const job*)arguments;
    int64_t i;
    (void)e;
    for (i = j->begin; i < j->end; i++) {
        unsigned char byte = (unsigned char)(((j->key ^ (uint64_t)i) * 0x9e3779b97f4a7c15u) >> 40);
        if (!j->n_wrong)
            j->bytes[i] = byte;
        else
            *j->n_wrong += j->bytes[i] != byte;
    }
    return MEMO_STATUS_OK;
}

static void launch(model* m, memo_session* s, void* bytes, int64_t begin, int64_t end, uint64_t key,
                   int checks) {
    job j;
    if (!bytes || begin >= end) return;
    j.bytes = (unsigned char*)bytes;
    j.begin = begin;
    j.end = end;
    j.key = key;
    j.n_wrong = checks ? &m->n_wrong : NULL;
    m->n_calls++;
    if (m->desc.computes_on_host || !m->host) {
        (void)run_job(&j, NULL);
    } else {
        memo_error e;
        memo_status status =
            memo_host_device_launch(m->host, m->compute, run_job, &j, (int64_t)sizeof j, &e);
        if (status) memo_session_fail(s, status, e.message);
    }
}

static void launch_rows(model* m, memo_session* s, int32_t layer, int32_t t, int64_t begin,
                        int64_t end, int checks) {
    int64_t row_bytes = m->tensors[t].row_bytes;
    uint64_t key = (uint64_t)((m->micro_batch * 64 + layer) * 16 + t) * 1000003u;
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
    int32_t t;
    for (t = 0; t < m->desc.n_tensors; t++)
        launch_rows(m, s, layer, t, 0, memo_session_get_n_rows(s), 0);
    if (layer == m->failing_layer) memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

static void recompute(void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t begin,
                      int64_t end) {
    model* m = (model*)user;
    int32_t t;
    for (t = 0; t < m->desc.n_tensors; t++)
        if (t == tensor || m->tensors[t].with == tensor + 1)
            launch_rows(m, s, layer, t, begin, end, 0);
}

static void backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    memo_session_info info;
    int64_t begin, end;
    int32_t t;
    memo_session_get_info(s, &info);
    for (t = 0; t < m->desc.n_tensors && m->desc.backward_recomputes; t++) {
        memo_swap_get_recompute_rows(info.swap, layer, t, &begin, &end);
        launch_rows(m, s, layer, t, begin, end, 0);
    }
    for (t = 0; t < m->desc.n_tensors; t++)
        launch_rows(m, s, layer, t, 0, memo_session_get_n_rows(s), 1);
}

/* With a buffer for a part of the step, and perhaps without a backward. */
static void step(void* user, memo_session* s) {
    model* m = (model*)user;
    int32_t l, n = m->desc.n_layers;
    m->n_dry += !memo_session_computes(s);
    for (l = 0; l < n; l++) {
        if (memo_session_forward_begin(s, l)) forward(user, s, l);
        memo_session_forward_end(s, l);
    }
    for (l = n - 1; l >= n - m->n_backward; l--) {
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

static void random_model(model* m) {
    int32_t t;
    memset(m, 0, sizeof *m);
    m->failing_layer = -1;
    m->desc = memo_session_desc_default();
    m->desc.user = m;
    m->desc.tensors = m->tensors;
    m->desc.n_tensors = (int32_t)memo_test_int(1, TENSORS_MAX);
    m->desc.n_layers = (int32_t)memo_test_int(memo_test_int(0, 3) ? 4 : 1, LAYERS_MAX);
    m->desc.n_rows = memo_test_int(1, 60);
    m->desc.tile_rows = memo_test_int(0, 9);
    m->desc.computes_on_host = memo_test_int(0, 1) != 0;
    for (t = 0; t < m->desc.n_tensors; t++) {
        static const char* const names[] = {"a", "b", "c", "d", "e", "f"};
        m->tensors[t].name = names[t];
        m->tensors[t].row_bytes = memo_test_int(0, 9) ? memo_test_int(1, 200) : 0;
        m->tensors[t].rule = (memo_tensor_rule)memo_test_int(0, memo_test_int(0, 2) ? 2 : 3);
        if (t && memo_test_int(0, 4) == 0 && m->tensors[t - 1].row_bytes && !m->tensors[t - 1].with)
            m->tensors[t].with = t;
    }
    m->desc.forward = forward;
    m->desc.backward = backward;
    m->desc.recompute = recompute;
    m->desc.setup = setup;
    if (memo_test_int(0, 1)) m->desc.step = step;
    m->desc.backward_recomputes = memo_test_int(0, 2) == 0;
    m->n_backward = m->desc.n_layers;
    m->setup_bytes = memo_test_int(1, 3000);
    m->scratch_bytes = m->desc.step ? memo_test_int(1, 3000) : 0;
}

/* Bytes of a session that keeps everything. */
static int64_t kept_bytes(model* m) {
    memo_session* s = NULL;
    memo_session_info info;
    model copy = *m;
    copy.desc.device = NULL;
    copy.desc.device_bytes = copy.desc.host_bytes = 0;
    copy.desc.user = &copy;
    memset(&info, 0, sizeof info);
    CHECK_OK(memo_session_create(&copy.desc, &s, &error));
    if (s) memo_session_get_info(s, &info);
    CHECK(info.profile == NULL && info.sizes.swapped_bytes == 0);
    memo_session_destroy(s);
    return info.device_bytes;
}

/* A device that has just the budget. */
static void open_device(model* m, int64_t device_bytes, int64_t host_bytes) {
    memo_host_device_desc desc = memo_host_device_desc_default();
    desc.device_memory_bytes = device_bytes;
    desc.host_memory_bytes = host_bytes;
    CHECK_OK(memo_host_device_create(&desc, &m->host, &error));
    CHECK_OK(memo_stream_create(m->host, "compute", 0, &m->compute, &error));
    m->desc.device = m->host;
    m->desc.compute_stream = m->desc.computes_on_host ? NULL : m->compute;
}

static void close_device(model* m) {
    memo_host_device_stats stats;
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    memo_host_device_get_stats(m->host, &stats);
    CHECK_CASE(stats.device_bytes == 0 && stats.host_bytes == 0, "%lld and %lld bytes left",
               (long long)stats.device_bytes, (long long)stats.host_bytes);
    memo_host_device_destroy(m->host);
    m->host = NULL;
}

/* --- tests --- */

/* For any budget: a session within it that brings everything back, or a refusal that names a budget,
 * which then works. */
static void any_budget_is_met_or_refused(void) {
    int round, n_created = 0, n_moved = 0, n_recomputed = 0, n_spilled = 0;
    int n_device_refusals = 0, n_host_refusals = 0;
    for (round = 0; round < 200; round++) {
        memo_session* s = NULL;
        memo_session_info info;
        memo_status status;
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
            m.desc.host_bytes = memo_test_int(2, 4) * 8192;
            m.tensors[0].row_bytes = 100 * memo_test_int(1, 9);
            m.tensors[0].rule = MEMO_TENSOR_SWAPPED;
            most = kept_bytes(&m);
            m.desc.device_bytes = most / memo_test_int(2, 3);
            m.desc.device_bytes += 8192;
        }
        open_device(&m, m.desc.device_bytes, m.desc.host_bytes);
        memset(&error, 0, sizeof error);
        status = memo_session_create(&m.desc, &s, &error);
        if (status) {
            const char* raise = strstr(error.message, "raise device_bytes to ");
            CHECK_CASE(status == MEMO_STATUS_INFEASIBLE && !s, "round %d: %s", round,
                       error.message);
            n_device_refusals += strstr(error.message, ".device_bytes") != NULL;
            n_host_refusals += strstr(error.message, ".host_bytes") != NULL;
            close_device(&m);
            if (!raise || m.desc.host_bytes) continue;
            /* What the message says is enough. */
            m.desc.device_bytes = strtoll(raise + strlen("raise device_bytes to "), NULL, 10);
            open_device(&m, m.desc.device_bytes, 0);
            CHECK_CASE(memo_session_create(&m.desc, &s, &error) == MEMO_STATUS_OK,
                       "round %d: %lld: %s", round, (long long)m.desc.device_bytes, error.message);
            memo_session_destroy(s);
            close_device(&m);
            continue;
        }
        memo_session_get_info(s, &info);
        n_created++;
        n_moved += info.sizes.swapped_bytes > 0;
        n_spilled += info.sizes.n_spilled_layers > 0;
        n_recomputed += info.swap_plan && info.swap_plan->recompute_s > 0;
        CHECK_IS(info.device_bytes, <=, m.desc.device_bytes);
        CHECK(!m.desc.host_bytes || info.host_bytes <= m.desc.host_bytes);
        for (i = 0; i < 4; i++) {
            m.micro_batch = i;
            CHECK_OK(memo_session_run(s, memo_test_int(0, 1) ? 0 : memo_test_int(1, m.desc.n_rows),
                                      &error));
        }
        CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
        CHECK_CASE(m.n_wrong == 0, "round %d: %lld bytes differ", round, (long long)m.n_wrong);
        memo_session_destroy(s);
        close_device(&m);
    }
    CHECK_CASE(n_created > 30 && n_moved > 5 && n_recomputed > 5 && n_spilled &&
                   n_device_refusals > 5 && n_host_refusals,
               "%d created, %d moved, %d recomputed, %d spilled, %d and %d refused", n_created,
               n_moved, n_recomputed, n_spilled, n_device_refusals, n_host_refusals);
}

/* A model whose session must swap and recompute. */
static void tight_model(model* m) {
    static const memo_tensor tensors[] = {{"input", 100, MEMO_TENSOR_SWAPPED, 0},
                                          {"up", 400, MEMO_TENSOR_ROWS, 0},
                                          {"attention", 100, MEMO_TENSOR_WHOLE, 0},
                                          {"lse", 4, MEMO_TENSOR_WHOLE, 3}};
    memset(m, 0, sizeof *m);
    m->failing_layer = -1;
    m->desc = memo_session_desc_default();
    m->desc.user = m;
    memcpy(m->tensors, tensors, sizeof tensors);
    m->desc.tensors = m->tensors;
    m->desc.n_tensors = 4;
    m->desc.n_layers = 8;
    m->desc.n_rows = 64;
    m->desc.tile_rows = 8;
    m->desc.step = step;
    m->desc.setup = setup;
    m->desc.recompute = recompute;
    m->n_backward = 8;
    m->setup_bytes = 1000;
    m->scratch_bytes = 2000;
    m->desc.device_bytes = 128 << 10; /* everything takes some 305 KiB */
}

static void forward_alone_needs_nothing_else(void) {
    memo_session* s = NULL;
    model m;
    int i;
    tight_model(&m);
    open_device(&m, m.desc.device_bytes, 0);
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    for (i = 0; i < 6; i++) {
        m.micro_batch = i;
        m.n_backward = i % 3 == 0 ? 8 : i % 3 == 1 ? 0 : 3; /* all, none, given up */
        CHECK_OK(memo_session_run(s, 0, &error));
    }
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    CHECK_IS(m.n_wrong, ==, 0);
    memo_session_destroy(s);
    close_device(&m);
}

static void the_first_error_is_kept(void) {
    memo_session* s = NULL;
    model m;
    int64_t n_calls;
    tight_model(&m);
    open_device(&m, m.desc.device_bytes, 0);
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK(strstr(error.message, "memo_session_begin first") != NULL);

    /* An error of the trainer: later calls do nothing. */
    m.failing_layer = 2;
    n_calls = m.n_calls;
    CHECK_IS(memo_session_run(s, 0, &error), ==, MEMO_STATUS_DEVICE);
    CHECK(strstr(error.message, "the trainer's own") != NULL);
    CHECK_IS(m.n_calls, ==, n_calls + 3 * 4);
    m.failing_layer = -1;
    m.micro_batch = 1;
    CHECK_OK(memo_session_run(s, 0, &error));

    /* The engine's, the arena's, and calls that make no sense. */
    CHECK_IS(memo_session_run(s, 65, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "n_rows: out of range (65)") != NULL);
    CHECK_IS(memo_session_begin(s, 0), ==, 1);
    CHECK(memo_session_forward_begin(s, 1) == 0 && memo_session_computes(s) == 0);
    CHECK(memo_session_alloc(s, 1) == NULL);
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK(strstr(error.message, "forward_begin(0) comes next") != NULL);
    CHECK_IS(memo_session_begin(s, 0), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 8), ==, 0);
    CHECK_IS(memo_session_end(s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_session_begin(s, 0), ==, 1);
    CHECK(memo_session_alloc(s, 1 << 20) == NULL);
    CHECK_IS(memo_session_end(s, NULL), ==, MEMO_STATUS_DIVERGED);

    /* begin abandons a micro-batch that was not ended. */
    CHECK_IS(memo_session_begin(s, 0), ==, 1);
    CHECK_IS(memo_session_forward_begin(s, 0), ==, 1);
    m.micro_batch = 2;
    CHECK_OK(memo_session_run(s, 0, &error));
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    CHECK_IS(m.n_wrong, ==, 0);
    memo_session_destroy(s);
    close_device(&m);
}

static void bad_descs_are_refused(void) {
    memo_session* s = NULL;
    model m;
    tight_model(&m);
    m.desc.device_bytes = 3000;
    CHECK(memo_session_create(&m.desc, &s, &error) == MEMO_STATUS_INFEASIBLE && !s);
    CHECK_CASE(strstr(error.message, "the smallest plan needs ") &&
                   strstr(error.message, " of 2.9 KiB") && strstr(error.message, "of activations"),
               "%s", error.message);
    m.desc.other_device_bytes = 3000;
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "other_device_bytes: not below device_bytes") != NULL);
    m.desc.other_device_bytes = 0;
    m.desc.step = NULL;
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "step: NULL, and so is forward or backward; set step") != NULL);
    m.desc.step = step;
    m.desc.recompute = NULL;
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    m.desc.recompute = recompute;
    m.tensors[1].name = "with blanks";
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    m.tensors[1].name = "up";
    m.desc.n_tensors = 0;
    CHECK(memo_session_create(&m.desc, &s, &error) == MEMO_STATUS_INVALID_ARGUMENT && !s);
}

/* A figure that would read like its budget is printed in bytes. */
static void nothing_needs_as_much_as_there_is(void) {
    char text[96];
    CHECK(!strcmp(memoi_session_needs(text, sizeof text, 14155777, 14155776),
                  "needs 14155777 of 14155776 bytes"));
    CHECK(!strcmp(memoi_session_needs(text, sizeof text, 14155776, 12582912),
                  "needs 13.5 MiB of 12.0 MiB"));
}

static const char* scratch_file(void) {
    static char path[250];
    return memo_test_path(path, "session");
}

/* The rows read are the rows written; a file that was altered or belongs to another
 * model is refused. */
static void a_plan_is_written_and_read(void) {
    memo_session *s = NULL, *again = NULL;
    memo_session_info a, b;
    memo_text report;
    model m;
    char* text = NULL;
    int64_t n_bytes = 0, i;
    tight_model(&m);
    open_device(&m, m.desc.device_bytes, 0);
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    CHECK_OK(memo_session_write(s, scratch_file(), &error));
    memo_session_get_info(s, &a);
    CHECK(a.profile && a.swap_plan && a.sizes.swapped_bytes > 0);
    memset(&report, 0, sizeof report);
    memo_session_put_report(s, &report);
    CHECK_CASE(strstr(report.data, "rows      layers") && strstr(report.data, "attention, lse") &&
                   strstr(report.data, "limit     ") && strstr(report.data, "predicted ") &&
                   strstr(report.data, " of 128 KiB"),
               "%s", report.data);
    memo_text_free(&report);

    /* What it chose can be drawn, and simulated. */
    {
        memo_swap_times times = memo_swap_times_default();
        memo_schedule* schedule = NULL;
        memo_check* check = NULL;
        CHECK_OK(memo_swap_generate(a.swap_desc, &times, &schedule, &error));
        CHECK_OK(memo_schedule_check(schedule, &check, &error));
        CHECK(check->n_races == 0 && check->n_waits > 0);
        memo_check_destroy(check);
        memo_schedule_destroy(schedule);
        CHECK_OK(memo_plan_write_svg(a.plan, a.trace, "a step", scratch_file(), &error));
        text = memo_test_file(scratch_file(), &n_bytes);
        CHECK(n_bytes > 0 && strstr(text, "<svg") && strstr(text, "backward"));
        free(text);
        CHECK_OK(memo_session_write(s, scratch_file(), &error));
    }

    /* On another device, without measuring. */
    {
        model other = m;
        other.desc.device = NULL;
        other.host = NULL;
        other.desc.user = &other;
        other.desc.plan_path = scratch_file();
        CHECK_OK(memo_session_create(&other.desc, &again, &error));
        memo_session_get_info(again, &b);
        CHECK(!b.profile && !memcmp(a.rows, b.rows, 8 * 4 * sizeof *a.rows));
        CHECK(a.device_bytes == b.device_bytes && a.n_host_layers == b.n_host_layers);
        CHECK_OK(memo_session_run(again, 0, &error));
        CHECK_IS(other.n_wrong, ==, 0);
        memo_session_destroy(again);

        other.tensors[1].row_bytes++;
        other.desc.tensors = other.tensors;
        CHECK_IS(memo_session_create(&other.desc, &again, &error), ==,
                 MEMO_STATUS_INVALID_ARGUMENT);
        CHECK_CASE(strstr(error.message, "row_bytes") && error.line > 0, "%s", error.message);
        other.tensors[1].row_bytes--;

        /* Any altered byte, any length. */
        text = memo_test_file(scratch_file(), &n_bytes);
        for (i = 0; i < n_bytes; i += 7) {
            FILE* file = fopen(scratch_file(), "wb");
            char kept = text[i];
            text[i] = (char)(kept ^ 1);
            fwrite(text, 1, (size_t)(i % 2 ? n_bytes : i), file);
            fclose(file);
            text[i] = kept;
            CHECK_CASE(memo_session_create(&other.desc, &again, &error) != MEMO_STATUS_OK,
                       "byte %lld", (long long)i);
        }
        free(text);
        other.desc.plan_path = "/nonexistent/plan";
        CHECK_IS(memo_session_create(&other.desc, &again, &error), ==, MEMO_STATUS_IO);
    }
    remove(scratch_file());
    memo_session_destroy(s);
    close_device(&m);
}

/* Rank 0 keeps the rows that it shares.  The other rank gets the same rows, even if it measured other times. */
static unsigned char shared[1 << 16];
static int64_t n_shared, n_taken;
static int is_first;

static memo_status share(void* user, void* data, int64_t n_bytes, memo_error* e) {
    (void)user;
    (void)e;
    if (is_first) {
        CHECK_IS(n_shared + n_bytes, <=, (int64_t)sizeof shared);
        memcpy(shared + n_shared, data, (size_t)n_bytes);
        n_shared += n_bytes;
    } else {
        CHECK_IS(n_taken + n_bytes, <=, n_shared);
        memcpy(data, shared + n_taken, (size_t)n_bytes);
        n_taken += n_bytes;
    }
    return MEMO_STATUS_OK;
}

static void ranks_choose_alike(void) {
    memo_session* s[2] = {NULL, NULL};
    memo_session_info info[2];
    model m[2];
    int rank;
    n_shared = n_taken = 0;
    for (rank = 0; rank < 2; rank++) {
        tight_model(&m[rank]);
        is_first = rank == 0;
        m[rank].desc.share = share;
        m[rank].desc.computes_on_host = rank; /* the second measures otherwise */
        open_device(&m[rank], m[rank].desc.device_bytes, 0);
        CHECK_OK(memo_session_create(&m[rank].desc, &s[rank], &error));
        memo_session_get_info(s[rank], &info[rank]);
    }
    CHECK(n_taken == n_shared && n_shared > 0);
    CHECK(!memcmp(info[0].rows, info[1].rows, 8 * 4 * sizeof *info[0].rows));
    CHECK(!memcmp(info[0].profile, info[1].profile, sizeof *info[0].profile));
    for (rank = 0; rank < 2; rank++) {
        memo_session_destroy(s[rank]);
        close_device(&m[rank]);
    }
}

/* Rows that the trainer gives are used as they are. */
static void given_rows_are_used(void) {
    memo_session* s = NULL;
    memo_session_info info;
    model m;
    int64_t rows[8 * 4];
    int i;
    tight_model(&m);
    for (i = 0; i < 8 * 4; i++) rows[i] = i % 4 == 0 ? 64 : i % 4 == 1 ? 16 : 0;
    m.desc.rows = rows;
    open_device(&m, m.desc.device_bytes, 0);
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    memo_session_get_info(s, &info);
    CHECK(!memcmp(info.rows, rows, sizeof rows) && !info.profile);
    CHECK_OK(memo_session_run(s, 0, &error));
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    CHECK_IS(m.n_wrong, ==, 0);
    memo_session_destroy(s);
    rows[1] = 15;
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    rows[1] = 16;
    m.desc.device_bytes = 50000;
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INFEASIBLE);
    CHECK(strstr(error.message, "device_bytes: the given table of rows needs ") != NULL);
    close_device(&m);
}

/* A dry run chooses for lengths that fit nowhere, and takes no memory. */
static void a_dry_run_takes_no_memory(void) {
    memo_session* s = NULL;
    memo_session_info info;
    memo_text report;
    model m;
    tight_model(&m);
    open_device(&m, 4096, 4096);
    m.desc.is_dry_run = 1;
    m.desc.n_rows = 16 << 20;
    m.desc.tile_rows = 1 << 14;
    m.desc.device_bytes = (int64_t)32 << 30;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    memo_session_get_info(s, &info);
    CHECK(info.device_bytes <= m.desc.device_bytes && info.sizes.swapped_bytes > 0);
    CHECK(!info.arena && !info.swap && !info.profile && m.n_calls == 0);
    CHECK_IS(host_device_stats(m.host).device_peak_bytes, ==, 0);
    memset(&report, 0, sizeof report);
    memo_session_put_report(s, &report);
    CHECK(strstr(report.data, " of 32.0 GiB") && !strstr(report.data, "predicted"));
    memo_text_free(&report);
    CHECK_IS(memo_session_run(s, 0, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK(strstr(error.message, "cannot run") != NULL);
    memo_session_destroy(s);
    m.desc.device_bytes = (int64_t)4 << 30;
    CHECK_IS(memo_session_create(&m.desc, &s, &error), ==, MEMO_STATUS_INFEASIBLE);
    close_device(&m);
}

/* The report states the memory of given rows, even if it exceeds the budgets. */
static void a_dry_run_reports_rows_that_do_not_fit(void) {
    int64_t rows[64], i;
    memo_session* s = NULL;
    memo_session_info info;
    model m;
    tight_model(&m);
    CHECK_IS((int64_t)m.desc.n_layers * m.desc.n_tensors, <=, 64);
    for (i = 0; i < 64; i++) rows[i] = MEMO_ROWS_KEPT;
    open_device(&m, 4096, 4096);
    m.desc.is_dry_run = 1;
    m.desc.rows = rows;
    m.desc.device_bytes = 1024;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    memo_session_get_info(s, &info);
    CHECK(info.device_bytes > 1024 && info.plan && !info.arena && !info.swap_plan);
    memo_session_destroy(s);
    close_device(&m);
}

/* A single alpha is planned even if everything could be kept, because hidden swaps cost no time. */
static void one_alpha_is_planned_if_everything_fits(void) {
    memo_session* s = NULL;
    memo_session_info info;
    model m;
    tight_model(&m);
    open_device(&m, 4096, 4096);
    m.desc.is_dry_run = m.desc.is_alpha_only = 1;
    m.desc.device_bytes = (int64_t)1 << 40;
    m.desc.host_bytes = (int64_t)1 << 40;
    CHECK_OK(memo_session_create(&m.desc, &s, &error));
    memo_session_get_info(s, &info);
    CHECK(info.swap_plan && info.swap_plan->alpha >= 0 && info.sizes.swapped_bytes > 0);
    memo_session_destroy(s);
    close_device(&m);
}

/* Creates a session whose request k for bookkeeping memory is refused: a status, or a plan that does
 * not need it, and no leak.  Returns the number of requests. */
static int64_t create_without_request(int64_t k, int64_t* n_refused) {
    memo_session* s = NULL;
    memo_status status;
    int64_t n = mallocs_done;
    int is_through;
    model m;
    tight_model(&m);
    open_device(&m, m.desc.device_bytes, 0);
    mallocs_left = k;
    status = memo_session_create(&m.desc, &s, &error);
    is_through = mallocs_left >= 0; /* no request was refused */
    mallocs_left = -1;
    *n_refused += status == MEMO_STATUS_OUT_OF_HOST_MEMORY;
    CHECK_CASE(!status || (status == MEMO_STATUS_OUT_OF_HOST_MEMORY && !s && !is_through),
               "request %lld: %s", (long long)k, error.message);
    memo_session_destroy(s);
    close_device(&m);
    return mallocs_done - n;
}

/* Each of the first and last requests, and some of the planner's, which are many and similar. */
static void every_lack_of_memory_is_a_status(void) {
    int64_t n_refused = 0, k, n = create_without_request((int64_t)1 << 40, &n_refused);
    CHECK_IS(n_refused, ==, 0);
    for (k = 0; k < n; k += k < 100 || k >= n - 60 ? 1 : memob_min(k / 8, n - 61 - k) + 1)
        create_without_request(k, &n_refused);
    CHECK_CASE(n_refused > 50, "%lld requests, %lld refused", (long long)n, (long long)n_refused);
}

int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    TEST(any_budget_is_met_or_refused);
    TEST(forward_alone_needs_nothing_else);
    TEST(the_first_error_is_kept);
    TEST(bad_descs_are_refused);
    TEST(nothing_needs_as_much_as_there_is);
    TEST(a_plan_is_written_and_read);
    TEST(ranks_choose_alike);
    TEST(given_rows_are_used);
    TEST(a_dry_run_takes_no_memory);
    TEST(a_dry_run_reports_rows_that_do_not_fit);
    TEST(one_alpha_is_planned_if_everything_fits);
    TEST(every_lack_of_memory_is_a_status);
    return memo_test_end();
}
