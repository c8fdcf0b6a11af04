/* test_groups.c - groups of micro-batches, which go through each layer together: losses, gradients
 * and states have the bits of micro-batches one after the other, states travel once a group, and
 * the planner groups where that makes a step shorter. */
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "session_times.h" /* of timed.h */
#include "timed.h"
#include "trainer.h"

enum { LAYERS = 5, ROWS = 24, GROUP = 3 };

typedef struct model {
    trainer t; /* first */
    int32_t n_forwards, n_backwards, n_losses;
    int32_t backwards[LAYERS * GROUP * ROWS]; /* layer * GROUP + micro-batch, as they came */
} model;

/* The buffer behind those of the trainer lives from the first forward to the last backward: each
 * micro-batch finds there what it left. */
static uint64_t* notes_of(const model* m, memo_session* s) {
    return (uint64_t*)memo_session_get_buffer(s, m->t.desc.n_buffers - 1);
}

static void forward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    const memo_slice slice = memo_session_get_slice(s);
    const int32_t batch = slice.micro_batch;
    for (int64_t r = slice.begin; r < slice.end && layer == 0; r++)
        notes_of(m, s)[r] = (uint64_t)(batch + r);
    m->n_forwards++;
    t_forward(user, s, layer);
}

static void loss(void* user, memo_session* s) {
    model* m = (model*)user;
    CHECK_IS(memo_session_get_slice(s).micro_batch, ==,
             m->n_losses++ / 3); /* of three slices each */
}

static void backward(void* user, memo_session* s, int32_t layer) {
    model* m = (model*)user;
    const memo_slice slice = memo_session_get_slice(s);
    const int32_t batch = slice.micro_batch;
    for (int64_t r = slice.begin; r < slice.end; r++)
        CHECK_IS(notes_of(m, s)[r], ==, (uint64_t)(batch + r));
    m->backwards[m->n_backwards++ % (LAYERS * GROUP * ROWS)] = layer * GROUP + batch;
    t_backward(user, s, layer);
}

static void model_init(model* m, int64_t slice_rows, memo_policy policy) {
    static memo_session_buffer buffers[T_N_BUFFERS + 1];
    memset(m, 0, sizeof *m);
    t_init(&m->t, LAYERS, ROWS, slice_rows);
    memcpy(buffers, m->t.buffers, sizeof m->t.buffers);
    buffers[T_N_BUFFERS] = (memo_session_buffer){
        .name = "notes", .row_bytes = 8, .first = MEMO_PASS_FORWARD, .last = MEMO_PASS_BACKWARD};
    m->t.desc.buffers = buffers, m->t.desc.n_buffers = T_N_BUFFERS + 1;
    m->t.desc.n_group = m->t.desc.micro_batches = GROUP;
    m->t.desc.forward = forward;
    m->t.desc.backward = backward;
    m->t.desc.policy = policy;
    m->t.desc.alpha = 0.5;
}

/* Two calls; sums are those of plain arrays, micro-batch by micro-batch. */
static void expect_bits(model* m, memo_session* s, int64_t n_rows) {
    static t_plain plain;
    for (int call = 0; call < 2; call++) {
        const memo_batch batch = {.n_rows = n_rows, .is_forward_only = call};
        m->n_forwards = m->n_backwards = 0;
        memset(&m->t.sums, 0, sizeof m->t.sums);
        memset(&m->t.plain_sums, 0, sizeof m->t.plain_sums);
        CHECK_OK(memo_session_run(s, &batch, &error));
        t_run_plain_call(&m->t, &plain, GROUP, n_rows, call);
        CHECK(!memcmp(&m->t.sums, &m->t.plain_sums, sizeof m->t.sums));
    }
}

/* All tensors, also in slices, checked, with a file, and with little memory. */
TEST(groups_have_the_bits_of_single_micro_batches) {
    enum { CHECKED = MEMO_POLICY_ROWS, SPILLS, TIGHT, N_WAYS };
    static model m;
    int n_spilled = 0;
    for (int k = 0; k < 3 * N_WAYS; k++) {
        const int way = k / 3;
        const int64_t slice_rows = k % 3 == 0 ? ROWS : k % 3 == 1 ? 8 : 10;
        const int64_t n_rows = memo_test_int(0, 1) ? ROWS : memo_test_int(1, ROWS);
        own_session* s = NULL;
        model_init(&m, slice_rows,
                   way < CHECKED  ? (memo_policy)way
                   : way == TIGHT ? MEMO_POLICY_MEMO
                                  : MEMO_POLICY_ALPHA);
        m.t.desc.is_checked = way == CHECKED;
        if (way == SPILLS) {
            m.t.desc.spill_directory = memo_test_folder();
            own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
            m.t.desc.host_bytes = plan->host_bytes * 3 / 4 + 8192;
            n_spilled += plan->host_bytes > m.t.desc.host_bytes;
        }
        if (way == TIGHT) m.t.desc.device_bytes = 1;
        if (way == TIGHT)
            CHECK_OK(memo_session_get_least(&m.t.desc, &m.t.desc.device_bytes, &error));
        IN_CASE("way %d, slices of %lld, %lld rows", way, (long long)slice_rows, (long long)n_rows);
        CHECK_OK(memo_session_create(&m.t.desc, &s, &error));
        if (!s) continue;
        CHECK_IS(memo_session_get_slice(s).n_slices, ==, GROUP * ((ROWS - 1) / slice_rows + 1));
        CHECK_IS(memo_session_get_slice(s).micro_batch, ==, 0);
        expect_bits(&m, s, n_rows);
    }
    CHECK_IS(n_spilled, >, 0);
}

/* Gradients and losses are added in the order of the micro-batches, so sums round as without a
 * group. */
TEST(backwards_come_in_the_order_of_micro_batches) {
    static model m;
    int32_t n = 0;
    model_init(&m, 8, MEMO_POLICY_SWAP);
    m.t.desc.loss = loss;
    own_session* s = NULL;
    CHECK_OK(memo_session_create(&m.t.desc, &s, &error));
    m.n_losses = 0;
    if (s) CHECK_OK(memo_session_run(s, NULL, &error));
    CHECK_IS(m.n_forwards, ==, LAYERS * GROUP * 3);
    CHECK_IS(m.n_backwards, ==, LAYERS * GROUP * 3);
    for (int32_t layer = LAYERS - 1; layer >= 0; layer--)
        for (int32_t batch = 0; batch < GROUP; batch++)
            for (int32_t slice = 0; slice < 3; slice++)
                CHECK_IS(m.backwards[n++], ==, layer * GROUP + batch);
}

/* --- states --- */

/* Layers with weights, gradients and moments, which all travel in the least memory. */
static void states_init(trainer* t, int32_t n_layers, int32_t n_group, int32_t micro_batches) {
    t_init(t, n_layers, ROWS, 0);
    t->states[S_WEIGHTS] = (memo_state){"weights", 2048, MEMO_STATE_WEIGHTS, 0};
    t->states[S_GRADIENTS] = (memo_state){"gradients", 2048, MEMO_STATE_GRADIENT, 0};
    t->states[S_MOMENTS] = (memo_state){"moments", 4096, MEMO_STATE_UPDATE, 0};
    t->desc.n_tensors = T_N_SHORT;
    t->desc.n_buffers = 0;
    t->desc.routed_rows_layer = t->desc.routed_rows_all = 0;
    t->desc.layer_kinds = t->kinds;
    t->desc.states = t->states;
    t->desc.n_states = S_MOMENTS + 1;
    t->desc.update = t_update;
    t->desc.n_group = n_group;
    t->desc.micro_batches = micro_batches;
}

/* A step of four micro-batches copies the states of a layer as often as it has groups, and once
 * more for the update. */
TEST(states_travel_once_a_group) {
    int64_t to_device_bytes[5] = {0}, to_host_bytes[5] = {0};
    const int64_t layer_bytes = 8 * 2048; /* weights or gradients of all layers */
    for (int32_t n_group = 1; n_group <= 4; n_group *= 2) {
        trainer t;
        memo_session_info before, info;
        own_device* device = new_host(0);
        own_session* s = NULL;
        states_init(&t, 8, n_group, 4);
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        CHECK_IS(plan->n_streamed, >, 24);
        t.desc.device = device;
        CHECK_OK(memo_session_open(&t.desc, plan, &s, &error));
        memset(&before, 0, sizeof before);
        for (int step = 0; step < 3 && s; step++) {
            before = memo_session_get_info(s);
            for (int32_t k = 0; k < 4; k += n_group) {
                const memo_batch batch = {.more_follow = k + n_group < 4};
                CHECK_OK(memo_session_run(s, &batch, &error));
            }
            CHECK_OK(memo_session_update(s, &error));
        }
        if (!s) continue;
        info = memo_session_get_info(s);
        to_device_bytes[n_group] = info.states_to_device_bytes - before.states_to_device_bytes;
        to_host_bytes[n_group] = info.states_to_host_bytes - before.states_to_host_bytes;
    }
    /* Of two groups: weights and gradients for the second backward, weights for its forward.  The
     * places hold two layers, which need not travel again. */
    for (int32_t n_group = 1; n_group < 4; n_group *= 2) {
        const int64_t n_more = 4 / n_group - 2 / n_group; /* groups */
        const int64_t saved_bytes = to_device_bytes[n_group] - to_device_bytes[2 * n_group];
        CHECK_IS(saved_bytes, <=, n_more * 3 * layer_bytes);
        CHECK_IS(saved_bytes, >=, n_more * 3 * (layer_bytes - 2 * 2048));
        CHECK_IS(to_host_bytes[n_group] - to_host_bytes[2 * n_group], ==, n_more * layer_bytes);
    }
}

/* --- planning --- */

static memo_step_plan* plan_group(trainer* t, const timed* times, int32_t n_group) {
    t->desc.n_group = n_group;
    return step_plan_of(&t->desc, &times->times);
}

/* The shorter of the steps, by prediction; one micro-batch at a time where nothing travels, or
 * where the host has no room for the rows of more. */
TEST(the_planner_groups_if_that_is_faster) {
    const int n = memo_test_cases(8, 8);
    int n_grouped = 0, n_single = 0;
    for (int i = 0; i < n; i++) {
        static const int32_t groups[] = {1, 2, 4};
        trainer t;
        timed times;
        states_init(&t, 6, MEMO_GROUP_PLANNED, 4);
        take_random_times(&times, &t.desc);
        t.desc.policy = MEMO_POLICY_ALPHA; /* its plans are found sooner */
        t.desc.device_bytes = 1;
        own_step_plan* single = step_plan_of(&t.desc, NULL);
        CHECK_IS(single->n_group, ==, 1);
        t.desc.n_group = 4;
        own_step_plan* least = step_plan_of(&t.desc, NULL); /* with two places of EDGE rows */
        t.desc.device_bytes = least->device_bytes;
        if (i % 2) t.desc.host_bytes = single->host_bytes;
        own_step_plan* chosen = plan_group(&t, &times, MEMO_GROUP_PLANNED);
        for (int k = 0; k < 3; k++) {
            own_step_plan* plan = plan_group(&t, &times, groups[k]);
            CHECK_IS(plan->n_group, ==, groups[k]);
            if (groups[k] == chosen->n_group)
                CHECK_CASE(!strcmp(plan->times->reason, chosen->times->reason) &&
                               fabs(plan->times->step_s / chosen->times->step_s - 1) < 1e-12,
                           "case %d", i);
            if (!plan->fits) continue;
            CHECK_IS(chosen->times->step_s, <=, (groups[k] == 1 ? 1 : 1.003) * plan->times->step_s);
        }
        n_grouped += chosen->n_group > 1;
        n_single += chosen->n_group == 1;
        CHECK(!(i % 2) || chosen->n_group == 1);
    }
    CHECK_CASE((n_grouped > 0 || n < 8) && n_single > 0, "%d and %d", n_grouped, n_single);
}

/* Groups of 4 need more time than groups of 2, and groups of 8 need least: a number that is worse
 * does not end the search. */
TEST(the_planner_tries_every_group) {
    static const int32_t groups[] = {1, 2, 4, 8};
    double step_s[4];
    trainer t;
    timed times;
    memo_profile* p = &times.times;
    states_init(&t, 6, 8, 8);
    take_random_times(&times, &t.desc);
    p->between_s = 0.85;
    p->update_s_per_byte = 8e-5;
    for (int k = 0; k < 2; k++) {
        p->forward_s[k] = 0.98;
        p->backward_s[k] = 0.32;
        p->copies[k].out_s = 0.001 + (double)p->copies[k].size_bytes / 3400;
        p->copies[k].back_s = 0.001 + (double)p->copies[k].size_bytes / 4100;
        for (int i = 0; i < t.desc.n_tensors; i++)
            if (p->tensors[i].recompute_s_per_row[k] >= 0)
                p->tensors[i].recompute_s_per_row[k] = 0.005;
    }
    t.desc.policy = MEMO_POLICY_ALPHA;
    t.desc.device_bytes = 1;
    own_step_plan* least = step_plan_of(&t.desc, NULL);
    t.desc.device_bytes = least->device_bytes + 1000;
    for (int k = 0; k < 4; k++) {
        own_step_plan* plan = plan_group(&t, &times, groups[k]);
        step_s[k] = plan->times->step_s;
    }
    CHECK_CASE(step_s[2] > step_s[1] && step_s[3] < 0.999 * step_s[1], "%g, %g, %g, %g s",
               step_s[0], step_s[1], step_s[2], step_s[3]);
    own_step_plan* chosen = plan_group(&t, &times, MEMO_GROUP_PLANNED);
    CHECK_IS(chosen->n_group, ==, 8);
}

/* Copies of states come between those of rows, micro-batch by micro-batch.  Both would end with the
 * computation of their layer; behind all copies of states, EDGE rows would be late in each layer, by
 * 3 % of the step.  Some are late by less than the copy of a state takes. */
TEST(rows_pass_between_copies_of_states) {
    trainer t;
    timed times;
    memo_profile* p = &times.times;
    states_init(&t, 12, 8, 8);
    for (int k = 0; k < t.desc.n_states; k++) t.states[k].size_bytes *= 16;
    t.desc.update_may = MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS;
    take_random_times(&times, &t.desc);
    p->between_s = p->recompute_call_s = 0;
    p->update_s_per_byte = 1e-9;
    memset(p->slowdown_s_per_byte, 0, sizeof p->slowdown_s_per_byte);
    for (int k = 0; k < p->n_kinds; k++) {
        p->forward_s[k] = 1;
        p->backward_s[k] = 2;
        p->forward_growth_s[k] = p->backward_growth_s[k] = 0;
    }
    for (int k = 0; k < 2; k++)
        p->copies[k].out_s = p->copies[k].back_s = (double)p->copies[k].size_bytes / 40000;
    t.desc.policy = MEMO_POLICY_SWAP;
    t.desc.device_bytes = 1;
    own_step_plan* least = step_plan_of(&t.desc, NULL);
    t.desc.device_bytes = least->device_bytes;
    own_step_plan* plan = step_plan_of(&t.desc, p);
    CHECK(plan->fits && plan->n_streamed > 36);
    CHECK_CASE(plan->times->stall_s < plan->times->step_s / 200, "%g s of %g", plan->times->stall_s,
               plan->times->step_s);
}

static void count_plans(void* user, MEMO_UNUSED memo_session* s,
                        MEMO_UNUSED const memo_step_plan* plan) {
    ((model*)user)->n_losses++;
}

/* A device on which computation takes a nanosecond, and copies at least a microsecond a byte: the
 * link is the limit on every machine. */
static struct {
    memo_device inner;
    memo_stream compute;
    memo_event events[256]; /* of the compute stream */
    int n;
} quick;

static memo_status quick_record(void* context, memo_event event, memo_stream stream,
                                memo_error* e) {
    if (stream == quick.compute && quick.n < 256) quick.events[quick.n++] = event;
    return quick.inner.event_record(context, event, stream, e);
}
static memo_status quick_elapsed(void* context, memo_event begin, memo_event end, double* s,
                                 memo_error* e) {
    const memo_status status = quick.inner.event_elapsed(context, begin, end, s, e);
    for (int i = 0; i < quick.n; i++)
        if (quick.events[i] == begin) *s = 1e-9;
    return status;
}

/* A session that may group plans in memo_session_update, another when the next step begins; states
 * have the same bits. */
TEST(timed_sessions_group_between_steps) {
    static uint64_t words[2][8][256];
    for (int k = 0; k < 2; k++) {
        static model m;
        memo_session_info info;
        own_device* inner = NULL;
        own_session* s = NULL;
        const memo_host_device_desc slow = {.to_host_bytes_per_s = 1e6,
                                            .to_device_bytes_per_s = 1e6};
        memset(&m, 0, sizeof m);
        states_init(&m.t, 8, 4, 4);
        CHECK_OK(memo_session_get_least(&m.t.desc, &m.t.desc.device_bytes, &error));
        CHECK_OK(memo_host_device_create(&slow, &inner, &error));
        memo_device device = *inner;
        device.event_record = quick_record;
        device.event_elapsed = quick_elapsed;
        m.t.host = inner;
        m.t.desc.device = &device;
        m.t.desc.computes_on_host = 0;
        m.t.desc.compute_stream = new_stream(&device, "compute");
        quick.inner = *inner;
        quick.compute = m.t.desc.compute_stream;
        quick.n = 0;

        m.t.desc.timed_steps = 3;
        m.t.desc.n_group = k ? MEMO_GROUP_PLANNED : 1;
        m.t.desc.planned = count_plans;
        CHECK_OK(memo_session_create(&m.t.desc, &s, &error));
        for (int step = 0; step < 6 && s; step++) {
            info = memo_session_get_info(s);
            CHECK_CASE((info.plan->n_group > 1) == (k && step >= 3), "step %d: groups of %d", step,
                       (int)info.plan->n_group);
            CHECK_IS(m.n_losses, ==, step >= 3);
            for (int32_t i = 0, n = info.plan->n_group; i < 4; i += n) {
                const memo_batch batch = {.more_follow = i + n < 4};
                m.t.number = i;
                CHECK_OK(memo_session_run(s, &batch, &error));
            }
            CHECK_OK(memo_session_update(s, &error));
        }
        for (int32_t layer = 0; layer < 8 && s; layer++)
            CHECK_OK(
                memo_session_read_state(s, layer, S_WEIGHTS, 0, words[k][layer], 2048, &error));
        memo_session_destroy(s);
        s = NULL;
        memo_stream_destroy(&device, m.t.desc.compute_stream, NULL);
    }
    CHECK(!memcmp(words[0], words[1], sizeof words[0]));
}

/* A plan has its group, which a session takes that leaves the group open. */
TEST(a_session_takes_the_group_of_its_plan) {
    static model m;
    own_session* s = NULL;
    model_init(&m, 8, MEMO_POLICY_SWAP);
    own_step_plan* plan = step_plan_of(&m.t.desc, NULL);
    m.t.desc.n_group = MEMO_GROUP_PLANNED;
    CHECK_IS(plan->n_group, ==, GROUP);
    CHECK_OK(memo_session_open(&m.t.desc, plan, &s, &error));
    if (s) expect_bits(&m, s, ROWS);
    memo_session_destroy(s);
    s = NULL;
    m.t.desc.n_group = 1;
    CHECK_ERROR(memo_session_open(&m.t.desc, plan, &s, &error), INVALID_ARGUMENT,
                "it has 3 as n_group, the session has 1");
}

static void no_between(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s) {}

TEST(mistakes_are_errors) {
    static model m;
    own_step_plan* plan = NULL;
    model_init(&m, 8, MEMO_POLICY_SWAP);
    WITH(m.t.desc.micro_batches, 4,
         CHECK_ERROR(memo_session_plan(&m.t.desc, NULL, &plan, &error), INVALID_ARGUMENT,
                     "n_group: 3, which does not divide micro_batches (4); a divisor works"));
    WITH(m.t.desc.n_group, -2,
         CHECK_ERROR(memo_session_plan(&m.t.desc, NULL, &plan, &error), INVALID_ARGUMENT,
                     "n_group: out of range (-2)"));
    WITH(m.t.desc.between, no_between,
         CHECK_ERROR(memo_session_plan(&m.t.desc, NULL, &plan, &error), INVALID_ARGUMENT,
                     "`between` would find the hidden state of one micro-batch"));
    m.t.desc.slice_rows = ROWS;
    m.t.tensors[T_X].scope = m.t.tensors[T_INPUT].scope = MEMO_SLICE;
    CHECK_ERROR(memo_session_plan(&m.t.desc, NULL, &plan, &error), INVALID_ARGUMENT,
                "n_group: no item is MEMO_EDGE");
}
