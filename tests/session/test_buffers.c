/* test_buffers.c - buffers of a session live as declared. */
#include "session_model.h"

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
    m.desc.computes_on_host = 1;
    m.desc.between = buffered_between;
    m.desc.recompute = buffered_recompute;
    m.desc.buffers = buffers;
    m.desc.n_buffers = N_BUFFERS;
    memo_session* s = create(&m, &info);
    CHECK(info.plan->sizes.swapped_bytes > 0 && info.plan->bytes[0][MEMO_OWNER_SESSION] >= 3000);

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
    memo_session_info info;
    own_model m;
    tight_model(&m);
    by_layers(&m, kinds_forward, backward);
    m.desc.computes_on_host = 1;
    m.desc.layer_kinds = kinds;
    m.desc.buffers = of_kinds;
    m.desc.n_buffers = 3;
    memo_session* s = create(&m, &info);
    CHECK_IS(info.plan->bytes[0][MEMO_OWNER_MICRO_BATCH], ==, 6144);
    run_all(&m, s, 1);
    WITH(m.desc.layer_kinds, NULL, expect_refused(&m.desc, "buffers[1]: `b` has kinds, but"));
    of_kinds[2].first_layer = 0;
    expect_refused(&m.desc, "buffers[2]: `c` has kinds, but");
}
