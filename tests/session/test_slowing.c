/* test_slowing.c - timed steps in virtual time.  Copies slow computation by a known share: timed
 * steps find it, and plans by it take what they predict.  States move within the budget. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "owned.h"
#include "virtual_device.h"

enum { TENSORS = 4, LAYERS_MAX = 9, KINDS = 2 };

typedef struct model {
    memo_session_desc desc;
    virtual_device v;
    memo_device device;
    double forward_s[KINDS], backward_s[KINDS], row_s[TENSORS], between_s, update_s;
    double noise; /* a pass takes up to such a share more or less */
    int32_t layer_kinds[LAYERS_MAX];
} model;

static void take(const model* m, double duration_s) {
    const memo_op_desc op = {.name = "compute", .duration_s = duration_s};
    CHECK_OK(memo_annotate(&m->device, m->desc.compute_stream, &op, &error));
}
static void take_pass(const model* m, const memo_session* s, int32_t layer, const double* times_s) {
    const memo_slice slice = memo_session_get_slice(s);
    const double share = m->noise > 0 ? 1 + m->noise * (2 * memo_test_real() - 1) : 1;
    take(m, share * times_s[m->layer_kinds[layer]] * (double)(slice.end - slice.begin) /
                (double)m->desc.n_rows);
}
static void forward(void* user, memo_session* s, int32_t layer) {
    take_pass((const model*)user, s, layer, ((const model*)user)->forward_s);
}
static void backward(void* user, memo_session* s, int32_t layer) {
    take_pass((const model*)user, s, layer, ((const model*)user)->backward_s);
}
static void between(void* user, MEMO_UNUSED memo_session* s) {
    take((const model*)user, ((const model*)user)->between_s);
}
static void recompute(void* user, MEMO_UNUSED memo_session* s, MEMO_UNUSED int32_t layer, int32_t t,
                      int64_t begin, int64_t end) {
    take((const model*)user, ((const model*)user)->row_s[t] * (double)(end - begin));
}
static void update(void* user, MEMO_UNUSED memo_session* s, int32_t layer) {
    const model* m = (const model*)user;
    if (layer >= 0 && layer < m->desc.n_layers)
        take(m, m->update_s); /* FIRST, LAST have no bytes */
}

static const memo_item tensors[TENSORS] = {
    MEMO_ITEM("input", 100, MEMO_MOVE), MEMO_ITEM("up", 400, MEMO_ROWS),
    MEMO_ITEM("attention", 100, MEMO_WHOLE), MEMO_ITEM("gate", 200, MEMO_ROWS)};
static const memo_state states[] = {{"weights", 40000, MEMO_STATE_WEIGHTS, 0},
                                    {"gradients", 40000, MEMO_STATE_GRADIENT, 0},
                                    {"moments", 80000, MEMO_STATE_UPDATE, 0}};

/* Layers of milliseconds, on links on which their rows take about as long. */
static void random_model(model* m, int has_states) {
    memo_session_desc* d = &m->desc;
    memset(m, 0, sizeof *m);
    d->tensors = tensors;
    d->n_tensors = TENSORS;
    d->n_layers = (int32_t)memo_test_int(6, 9);
    d->n_rows = 64 * memo_test_int(1, 3);
    d->tile_rows = 8;
    d->layer_kinds = m->layer_kinds;
    for (int k = 0; k < LAYERS_MAX; k++) m->layer_kinds[k] = memo_test_int(0, 2) == 0;
    for (int k = 0; k < KINDS; k++) {
        m->forward_s[k] = 1e-2 * (1 + memo_test_real());
        m->backward_s[k] = 2e-2 * (1 + memo_test_real());
    }
    for (int t = 0; t < TENSORS; t++) m->row_s[t] = 1e-2 * memo_test_real() / (double)d->n_rows;
    m->between_s = 1e-2 * memo_test_real();
    m->update_s = 1e-2 * memo_test_real();
    for (int way = 0; way < 2; way++) {
        m->v.bytes_per_s[way] = 800 * (double)d->n_rows / 1e-2 * (0.3 + memo_test_real());
        m->v.loss[way] = 0.02 + 0.3 * memo_test_real();
        if (has_states) m->v.bytes_per_s[way] += 40000 / 1e-2;
    }
    if (has_states) {
        d->states = states;
        d->n_states = 3;
        d->update = update;
        d->micro_batches = (int32_t)memo_test_int(1, 3);
    }
    d->forward = forward;
    d->backward = backward;
    d->between = between;
    d->recompute = recompute;
    d->user = m;
    m->device = virtual_table(&m->v);
    d->device = &m->device;
    CHECK_OK(memo_stream_create(&m->device, "compute", 0, &d->compute_stream, &error));
}

static void train(model* m, memo_session* s) {
    const int32_t n = m->desc.micro_batches ? m->desc.micro_batches : 1;
    for (int32_t k = 0; k < n; k++) {
        const memo_batch batch = {.more_follow = k < n - 1};
        CHECK_OK(memo_session_run(s, &batch, &error));
    }
    if (m->desc.n_states) CHECK_OK(memo_session_update(s, &error));
}

/* The seconds of a step in the middle of many, none of which the host waits for. */
static double time_steps(model* m, memo_session* s) {
    enum { FIRST = 8, LAST = 24 };
    memo_event events[2];
    double elapsed_s = 0;
    for (int i = 0; i < 2; i++) CHECK_OK(memo_event_create(&m->device, &events[i], &error));
    for (int step = 0; step < LAST; step++) {
        if (step == FIRST)
            CHECK_OK(memo_event_record(&m->device, events[0], m->desc.compute_stream, &error));
        train(m, s);
    }
    CHECK_OK(memo_event_record(&m->device, events[1], m->desc.compute_stream, &error));
    CHECK_OK(memo_event_synchronize(&m->device, events[1], &error));
    CHECK_OK(memo_event_elapsed(&m->device, events[0], events[1], &elapsed_s, &error));
    for (int i = 0; i < 2; i++) CHECK_OK(memo_event_destroy(&m->device, events[i], &error));
    return elapsed_s / (LAST - FIRST);
}

static int64_t bytes_of_policy(const memo_session_desc* desc, memo_policy policy) {
    memo_session_desc own = *desc;
    own.policy = policy;
    own.device_bytes = own.host_bytes = 0;
    own.alpha = 1;
    own_step_plan* plan = NULL;
    CHECK_OK(memo_session_plan(&own, NULL, &plan, &error));
    return plan ? plan->device_bytes : 0;
}

/* A share of what is between the least device memory and that for everything. */
static void take_budget(model* m, double share) {
    const int64_t most = bytes_of_policy(&m->desc, MEMO_POLICY_KEEP);
    const int64_t least = least_of_session(&m->desc);
    m->desc.device_bytes = least + (int64_t)(share * (double)(most - least));
}

static void end_model(model* m, memo_session* s) {
    memo_session_destroy(s);
    CHECK_OK(memo_stream_destroy(&m->device, m->desc.compute_stream, &error));
    CHECK_IS(m->v.host_bytes, ==, 0);
    virtual_end(&m->v);
}

/* What a session finds on a device whose copies cost computation: the rates of both ways, and times
 * of layers alone, so that the step by its plan takes what was predicted.  A plan that takes copies
 * for free would be wrong by as much as they cost. */
static void check_slowdowns(int has_states, int n_models) {
    double worst_rate = 0, worst_step = 0, worst_free = 0;
    int n_slow = 0;
    for (int round = 0; round < n_models; round++) {
        model m;
        memo_profile p;
        random_model(&m, has_states);
        const int64_t most = bytes_of_policy(&m.desc, MEMO_POLICY_KEEP);
        int64_t least = 0;
        CHECK_OK(memo_session_get_least(&m.desc, &least, &error));
        m.desc.device_bytes =
            (int64_t)((double)least + (0.2 + 0.5 * memo_test_real()) * (double)(most - least));
        m.desc.timed_steps = (int32_t)memo_test_int(0, 1) * 6;
        memo_session* s = new_session(&m.desc);
        for (int step = 0; step < 7 && s; step++) train(&m, s);
        if (memo_session_get_profile(s, 0, &p, &error)) { /* everything can be kept */
            end_model(&m, s);
            continue;
        }
        for (int way = 0; way < 2; way++) {
            const double rate = m.v.loss[way] / m.v.bytes_per_s[way];
            const double off = fabs(p.slowdown_s_per_byte[way] / rate - 1);
            CHECK_CASE(off < 0.03, "round %d, way %d: %g s a byte found, %g planted", round, way,
                       p.slowdown_s_per_byte[way], rate);
            worst_rate = fmax(worst_rate, off);
        }

        memo_session_info info = memo_session_get_info(s);
        m.v.beside_s[0] = m.v.beside_s[1] = 0;
        const double step_s = time_steps(&m, s), off = fabs(info.plan->times->step_s / step_s - 1);
        CHECK_CASE(off < 0.005, "round %d: step %g s, predicted %g", round, step_s,
                   info.plan->times->step_s);
        worst_step = fmax(worst_step, off);
        const double cost_s = m.v.beside_s[0] * m.v.loss[0] + m.v.beside_s[1] * m.v.loss[1];
        worst_free = fmax(worst_free, cost_s / (24 * step_s));
        n_slow += cost_s > 0.01 * 24 * step_s;
        memo_session_destroy(s);
        CHECK_OK(memo_stream_destroy(&m.device, m.desc.compute_stream, &error));
        virtual_end(&m.v);
    }
    printf(
        "# rates off by at most %.2g, steps by %.2g; copies cost up to %.2g of a step, over .01 in "
        "%d of %d\n",
        worst_rate, worst_step, worst_free, n_slow, n_models);
    CHECK(2 * n_slow > n_models);
}

TEST(rows_that_move_slow_computation) { check_slowdowns(0, memo_test_cases(6, 100)); }
TEST(states_that_move_slow_computation) { check_slowdowns(1, memo_test_cases(4, 60)); }

/* Copies that cost nothing, beside layers that take now more, now less: a rate is rarely found, and
 * none by which copies would cost more than half of the speed. */
TEST(noise_is_no_slowdown) {
    const int n = memo_test_cases(8, 200);
    int n_timed = 0, n_found = 0;
    for (int round = 0; round < n; round++) {
        model m;
        memo_profile p;
        random_model(&m, 0);
        m.v.loss[0] = m.v.loss[1] = 0;
        m.noise = round % 2 ? 0.02 : 0.6;
        take_budget(&m, 0.1);
        m.desc.timed_steps = 8;
        memo_session* s = new_session(&m.desc);
        for (int step = 0; step < 9 && s; step++) train(&m, s);
        for (int way = 0; way < 2 && !memo_session_get_profile(s, 0, &p, &error); way++) {
            const double loss = p.slowdown_s_per_byte[way] * m.v.bytes_per_s[way];
            CHECK_CASE(loss < (round % 2 ? 0.051 : 0.51), "round %d: %g", round, loss);
            n_timed++;
            n_found += loss > 0;
        }
        end_model(&m, s);
    }
    printf("# %d of %d rates found in noise\n", n_found, n_timed);
    CHECK(n_timed > n && (n < 30 || 10 * n_found < n_timed));
}

/* Trains until a session has planned again.  1: then it streams other states.  *need: host memory
 * that this took by the plans; *most: that was pinned at once. */
static int moves_states(model* m, int64_t* need, int64_t* most) {
    memo_session* s = new_session(&m->desc);
    const memo_session_info first = memo_session_get_info(s);
    const int64_t n_streamed = first.plan->n_streamed, host_bytes = first.plan->host_bytes,
                  states_bytes = s->states_sizes.host_bytes;
    const int64_t kept = s->states ? memoi_timing_kept_bytes(s) : 0;
    for (int step = 0; step < 7; step++) train(m, s);
    const memo_session_info last = memo_session_get_info(s);
    const int moves = s->states && last.plan->n_streamed != n_streamed;
    CHECK(last.plan->times);
    *need = kept + memob_max(host_bytes, last.plan->host_bytes + states_bytes);
    *most = m->v.most_host_bytes;
    memo_session_destroy(s);
    m->v.most_host_bytes = 0;
    return moves;
}

/* States move if the host has memory for both plans' states, and for those of the device meanwhile;
 * with a byte less they stay, and the budget is kept. */
TEST(moving_states_is_in_the_budget) {
    const int n = memo_test_cases(4, 60);
    int n_moved = 0;
    for (int round = 0; n_moved < n && round < 20 * n; round++) {
        int64_t need, most, same;
        model m;
        random_model(&m, 1);
        take_budget(&m, 0.05 + 0.4 * memo_test_real());
        if (moves_states(&m, &need, &most)) {
            n_moved++;
            CHECK_CASE(most <= need, "round %d: %lld of %lld bytes", round, (long long)most,
                       (long long)need);
            m.desc.host_bytes = need;
            CHECK_CASE(moves_states(&m, &same, &most) && most <= need, "round %d: %lld, %lld",
                       round, (long long)most, (long long)need);
            m.desc.host_bytes = need - 1;
            CHECK_CASE(!moves_states(&m, &same, &most) && most < need, "round %d", round);
        }
        end_model(&m, NULL);
    }
    CHECK_IS(n_moved, ==, n);
}
