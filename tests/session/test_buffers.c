/* test_buffers.c - buffers of a session live as declared, and have alternatives. */
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
    m.desc.setup = NULL;
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
    CHECK_IS(info.plan->bytes[0][MEMO_OWNER_MICRO_BATCH], ==, 6144);
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
    const int n_rounds = memo_test_cases(1, 20);
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
    const memo_session_info info = memo_session_get_info(s);
    CHECK_IS(info.plan->alternatives[OF_LOSS], ==, 3);
    expect_words(info.plan, "less      buffers[2] by alternatives[2]\n");
    for (m.micro_batch = 0; m.micro_batch < 3; m.micro_batch++)
        CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(m.n_wrong, ==, 0);
    CHECK_IS(memo_session_get_alternative(s, N_OF), ==, 0); /* an error */
    CHECK_ERROR(memo_session_end(s, &error), INVALID_ARGUMENT, "memo_session_get_alternative: ");
    memo_session_destroy(s);
}
