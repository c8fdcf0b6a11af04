/* session_model.h - random models for tests of sessions.  Layers write patterns and check that they
 * come back, on the calling thread or on a stream.  The device's capacity is the budget, so that a
 * session which takes more fails. */
#ifndef SESSION_MODEL_H
#define SESSION_MODEL_H
#include "scarce.h"
#include "memo_plan.h"
#include "owned.h"
#include "session_times.h"
#include "pattern.h"
#include "item_choices.h"

enum { TENSORS_MAX = 6, LAYERS_MAX = 9 };

typedef struct model {
    memo_session_desc desc;
    memo_item tensors[TENSORS_MAX];
    int32_t layer_kinds[LAYERS_MAX];
    memo_shape shapes[3];
    memo_device* host;
    memo_stream compute;
    memo_session_buffer buffers[2]; /* of the desc; `step` and tests use them */
    int64_t micro_batch;
    int32_t n_backward;    /* layers; 0: forward alone */
    int32_t failing_layer; /* fails in its forward; -1: none */
    int64_t n_wrong;       /* bytes; written by the thread that computes the layer */
    int64_t n_calls;
    int32_t gives; /* bit 0: device memory, bit 1: host memory; the whole budget */
} model;

/* --- the computation of a layer --- */

MEMO_UNUSED static void launch(model* m, memo_session* s, void* bytes, int64_t begin, int64_t end,
                               uint64_t key, int checks) {
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

MEMO_UNUSED static void launch_rows(model* m, memo_session* s, int32_t layer, int32_t t,
                                    int64_t begin, int64_t end, int checks) {
    int64_t row_bytes = m->tensors[t].row_bytes;
    uint64_t key = (uint64_t)((m->micro_batch * 64 + layer) * 16 + t) * 1000003u;
    const uint32_t kinds = m->tensors[t].kinds;
    if (!row_bytes || (kinds && !(kinds >> m->desc.layer_kinds[layer] & 1)))
        return; /* the layer lacks it */
    launch(m, s, memo_session_get_address(s, layer, t), begin * row_bytes, end * row_bytes, key,
           checks);
}

/* All bytes of a buffer of the model. */
enum { OF_SESSION, OF_LAYERS };
MEMO_UNUSED static void launch_buffer(model* m, memo_session* s, int32_t buffer, uint64_t key,
                                      int checks) {
    if (m->desc.buffers != m->buffers) return; /* the test has others */
    launch(m, s, memo_session_get_buffer(s, buffer), 0, m->buffers[buffer].size_bytes, key, checks);
}

MEMO_UNUSED static void forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        launch_rows(m, s, layer, t, 0, memo_session_get_batch(s).n_rows, 0);
    if (layer == m->failing_layer) memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}

MEMO_UNUSED static void recompute(void* user, memo_session* s, int32_t layer, int32_t tensor,
                                  int64_t begin, int64_t end) {
    model* m = (model*)user;
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        if (item_leader(m->tensors, t) == tensor) launch_rows(m, s, layer, t, begin, end, 0);
}

MEMO_UNUSED static void backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    int64_t begin, end;
    const memo_session_info info = memo_session_get_info(s);
    for (int32_t t = 0; t < m->desc.n_tensors; t++) {
        if (!(m->tensors[item_leader(m->tensors, t)].is & MEMO_BY_BACKWARD)) continue;
        memo_swap_get_recompute_rows(info.swap, layer, t, &begin, &end);
        launch_rows(m, s, layer, t, begin, end, 0);
    }
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        launch_rows(m, s, layer, t, 0, memo_session_get_batch(s).n_rows, 1);
}

/* With a buffer for a part of the step, and perhaps without a backward.  The first micro-batch
 * writes what the session keeps. */
MEMO_UNUSED static void step(void* user, memo_session* s) {
    model* m = (model*)user;
    int32_t n = m->desc.n_layers;
    const int has_backward = !memo_session_get_batch(s).is_forward_only;
    if (m->micro_batch == 0) launch_buffer(m, s, OF_SESSION, 7, 0);
    for (int32_t l = 0; l < n; l++) {
        if (memo_session_forward_begin(s, l)) forward(user, s, l);
        memo_session_forward_end(s, l);
    }
    for (int32_t l = n - 1; l >= n - m->n_backward && has_backward; l--) {
        if (memo_session_backward_begin(s, l)) {
            launch_buffer(m, s, OF_LAYERS, 3, 0);
            launch_buffer(m, s, OF_SESSION, 7, 1);
            backward(user, s, l);
            launch_buffer(m, s, OF_LAYERS, 3, 1);
        }
        memo_session_backward_end(s, l);
    }
}

MEMO_UNUSED static void empty_model(model* m) {
    memset(m, 0, sizeof *m);
    m->failing_layer = -1;
    m->desc = MEMO_ZERO(memo_session_desc);
    m->desc.user = m;
    m->desc.tensors = m->tensors;
    for (int32_t t = 0; t < TENSORS_MAX; t++) m->tensors[t].away = MEMO_ROWS;
    m->desc.recompute = recompute;
    m->desc.alpha = -1; /* planned */
    m->buffers[OF_SESSION] = (memo_session_buffer){.name = "state"};
    m->buffers[OF_LAYERS] = (memo_session_buffer){
        .name = "scratch", .first = MEMO_PASS_BACKWARD, .first_layer = MEMO_EACH_LAYER};
    m->desc.buffers = m->buffers;
    m->desc.n_buffers = 2;
}

MEMO_UNUSED static void random_model(model* m) {
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
        m->tensors[t].kinds = m->tensors[t].away == MEMO_WITH ? m->tensors[t - 1].kinds
                                                              : (uint32_t)memo_test_int(0, 7);
    if (memo_test_int(0, 2) == 0) m->desc.layer_kinds = m->layer_kinds;
    for (int32_t t = 0; t < m->desc.n_tensors && !m->desc.layer_kinds; t++) m->tensors[t].kinds = 0;
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
    const int64_t n_by_backward = memo_test_int(0, 2); /* none, some or all */
    for (int32_t t = 0; t < m->desc.n_tensors; t++)
        if (m->tensors[t].away != MEMO_WITH && item_recomputes(m->tensors, t) &&
            memo_test_int(1, 2) <= n_by_backward)
            m->tensors[t].is = MEMO_BY_BACKWARD;
    m->n_backward = m->desc.n_layers;
    m->buffers[OF_SESSION].size_bytes = memo_test_int(1, 3000);
    m->buffers[OF_LAYERS].size_bytes = m->desc.step ? memo_test_int(1, 3000) : 0;
}

/* A device that has just the budget.  If the model gives memory, nothing is left of it. */
MEMO_UNUSED static void open_device(model* m, int64_t device_bytes, int64_t host_bytes) {
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

MEMO_UNUSED static void close_device(model* m) {
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    if (m->desc.device_memory) CHECK_OK(memo_device_free(m->host, m->desc.device_memory, &error));
    if (m->desc.host_memory) CHECK_OK(memo_host_free(m->host, m->desc.host_memory, &error));
    m->desc.device_memory = m->desc.host_memory = NULL;
    drop_device(&m->host);
}
#define own_model OWNED(close_device) model

/* Runs the steps that the session times, and the one before which it plans. */
MEMO_UNUSED static void settle(model* m, memo_session* s, int32_t shape) {
    const memo_batch batch = {.shape = shape};
    for (m->micro_batch = 0; s && m->micro_batch < 5; m->micro_batch++) {
        CHECK_OK(memo_session_run(s, &batch, &error));
        if (m->desc.agree) CHECK_OK(memo_session_update(s, &error));
    }
}

/* Creates a session on a device that has just the budget of the desc.  info NULL: it has run
 * nothing; else it has planned by measured times. */
MEMO_UNUSED static memo_session* create(model* m, memo_session_info* info) {
    open_device(m, m->desc.device_bytes, m->desc.host_bytes);
    memo_session* s = new_session(&m->desc);
    if (info) settle(m, s, 0);
    if (s && info) *info = memo_session_get_info(s);
    return s;
}

/* All bytes came back; nothing is left of the session and its device. */
MEMO_UNUSED static void finish(model* m, memo_session* s) {
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    CHECK_CASE(m->n_wrong == 0, "%lld bytes differ", (long long)m->n_wrong);
    memo_session_destroy(s);
    close_device(m);
}

/* Runs micro-batches, in which all bytes come back, and destroys the session. */
MEMO_UNUSED static void run_all(model* m, memo_session* s, int n) {
    for (m->micro_batch = 0; s && m->micro_batch < n; m->micro_batch++)
        CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_OK(memo_stream_synchronize(m->host, m->compute, &error));
    CHECK_IS(m->n_wrong, ==, 0);
    memo_session_destroy(s);
}

MEMO_UNUSED static void expect_refused(const memo_session_desc* desc, const char* text) {
    memo_session* s = NULL;
    CHECK_ERROR(memo_session_create(desc, &s, &error), INVALID_ARGUMENT, text);
    CHECK(!s);
}

/* A model whose session must swap and recompute. */
MEMO_UNUSED static void tight_model(model* m) {
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
    m->buffers[OF_SESSION].size_bytes = 1000;
    m->buffers[OF_LAYERS].size_bytes = 2000;
    m->desc.device_bytes = 128 << 10; /* everything takes some 305 KiB */
}

MEMO_UNUSED static void by_layers(model* m, void (*forward_of)(void*, memo_session*, int32_t),
                                  void (*backward_of)(void*, memo_session*, int32_t)) {
    m->desc.step = NULL;
    m->desc.forward = forward_of;
    m->desc.backward = backward_of;
}

/* Of three layers, whose search is short, for tests with many sessions. */
MEMO_UNUSED static void shorten(model* m) {
    m->desc.n_layers = m->n_backward = 3;
    m->desc.device_bytes = 80 << 10;
}

MEMO_UNUSED static const char* scratch_file(void) {
    static char path[250];
    return memo_test_path(path, "session");
}

MEMO_UNUSED static const memo_shape two_shapes[2] = {{64, 0}, {35, 1}};

#endif
