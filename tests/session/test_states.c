/* test_states.c - sessions whose states are streamed end with the bits of plain arrays; the
 * recorded operations have no race, and every fault is a status that loses nothing. */
#include "scarce.h"
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "owned.h"
#include "session_times.h"
#include "item_choices.h"
#include "timed.h"
#include "trainer.h"
#include "fetched.h"
#include <fcntl.h>
#include <math.h>

enum { ROWS = 40 };

/* The bytes that the states take, and the largest layer's, by an own sum. */
static int64_t bytes_of_states(const trainer* t, int64_t* largest) {
    int64_t sum = 0;
    *largest = 0;
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++) {
        int64_t of_layer = 0;
        for (int32_t s = 0; s < T_N_STATES; s++)
            of_layer += t_has(t, layer, s) ? (t->states[s].size_bytes + 511) / 512 * 512 : 0;
        sum += of_layer;
        if (of_layer > *largest) *largest = of_layer;
    }
    return sum;
}

static int64_t bytes_of_owners(const memo_step_plan* plan, int tier, int begin, int end) {
    int64_t sum = 0;
    for (int owner = begin; owner < end; owner++) sum += plan->bytes[tier][owner];
    return sum;
}

static int64_t planned_states(const memo_step_plan* plan, int tier) {
    return bytes_of_owners(plan, tier, 0, MEMO_OWNER_ACTIVATIONS);
}

/* Each state stays on one tier, and the plan takes the bytes of all owners. */
static void check_owners(const trainer* t, const memo_step_plan* plan) {
    const int64_t all[MEMO_N_TIERS] = {plan->device_bytes, plan->host_bytes, plan->disk_bytes};
    int64_t expected[3] = {0, 0, 0}, fetched_bytes = 0;
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++)
        for (int32_t s = 0; s < T_N_STATES; s++) {
            const uint32_t uses = t->states[s].uses;
            const int64_t n_bytes = (t->states[s].size_bytes + 511) / 512 * 512;
            const memo_owner owner = uses == MEMO_STATE_GRADIENT ? MEMO_OWNER_GRADIENTS
                                     : uses & (MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD)
                                         ? MEMO_OWNER_WEIGHTS
                                         : MEMO_OWNER_OPTIMIZER;
            if (!t_has(t, layer, s)) continue;
            if (uses & MEMO_STATE_FETCHED)
                fetched_bytes += n_bytes;
            else
                expected[owner] += n_bytes;
        }
    for (int owner = 0; owner < 3; owner++) {
        int64_t sum = 0;
        for (int tier = 0; tier < MEMO_N_TIERS; tier++) sum += plan->bytes[tier][owner];
        if (owner == MEMO_OWNER_WEIGHTS && fetched_bytes) { /* on the device, or nowhere */
            CHECK_IS(sum, >=, expected[owner]);
            if (!plan->n_spilled) CHECK_IS(sum - plan->bytes[0][owner], <=, expected[owner]);
            CHECK_IS(plan->bytes[0][owner], <=, expected[owner] + fetched_bytes);
        } else if (plan->n_spilled) /* of 4,096 in a file */
            CHECK_IS(sum, >=, expected[owner]);
        else
            CHECK_IS(sum, ==, expected[owner]);
    }
    for (int tier = 0; tier < MEMO_N_TIERS; tier++)
        CHECK_IS(bytes_of_owners(plan, tier, 0, MEMO_N_OWNERS), ==, all[tier]);
    CHECK_IS(plan->device_bytes, ==, plan->addresses->peak_bytes);
}

/* --- bits --- */

/* A part of a state in the session and in plain arrays gets other bytes, or zero. */
static void change_bytes(trainer* t, memo_session* s, t_plain* plain) {
    const int32_t layer = (int32_t)memo_test_int(-1, t->desc.n_layers);
    const int32_t i = (int32_t)memo_test_int(0, T_N_STATES - 1);
    const int64_t begin = memo_test_int(0, t->states[i].size_bytes);
    const int64_t n = memo_test_int(0, t->states[i].size_bytes - begin);
    const uint64_t* words = memo_test_int(0, 1) ? plain->states[1][S_WEIGHTS] : NULL;
    char* expected = (char*)plain->states[layer + 1][i] + begin;
    if (!t_has(t, layer, i) || t->states[i].uses & (MEMO_STATE_GRADIENT | MEMO_STATE_FETCHED))
        return;
    CHECK_OK(memo_session_write_state(s, layer, i, begin, words, n, &error));
    if (words)
        memmove(expected, words, (size_t)n);
    else
        memset(expected, 0, (size_t)n);
}

typedef uint64_t state_words[T_LAYERS_MAX + 2][T_N_STATES][T_STATE_WORDS_MAX];

/* Reads all states but gradients, or writes them, in two parts each; FETCHED ones are only read. */
static memo_status transfer_states(memo_session* s, const trainer* t, int is_write,
                                   state_words words) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++)
        for (int32_t i = 0; i < T_N_STATES; i++) {
            const int64_t n = t->states[i].size_bytes, parts[] = {0, memo_test_int(0, n), n};
            if (t->states[i].uses & MEMO_STATE_GRADIENT || !t_has(t, layer, i)) continue;
            if (is_write && t->states[i].uses & MEMO_STATE_FETCHED) continue;
            for (int k = 1; k >= 0 && !status; k--) {
                char* bytes = (char*)words[layer + 1][i] + parts[k];
                const int64_t n_part = parts[k + 1] - parts[k];
                status =
                    is_write
                        ? memo_session_write_state(s, layer, i, parts[k], bytes, n_part, &error)
                        : memo_session_read_state(s, layer, i, parts[k], bytes, n_part, &error);
            }
        }
    return status;
}

static void set_words(state_words words, int64_t key) {
    for (int64_t k = 0; k < (int64_t)(sizeof(state_words) / 8); k++)
        (&words[0][0][0])[k] = t_mix((uint64_t)key, (uint64_t)k);
}

/* Steps of any number of micro-batches, some of whose gradients are dropped, with forwards alone
 * between them.  All that passes read, and all states, are those of plain arrays. */
static void train_in(trainer* t, memo_session* s, int on_host, int n_steps) {
    static t_plain plain;
    static state_words words;
    memset(&plain, 0, sizeof plain);
    memset(&t->sums, 0, sizeof t->sums);
    memset(&t->plain_sums, 0, sizeof t->plain_sums);
    set_words(plain.states, (int64_t)memo_test_random());
    t_drop_gradients(t, &plain);
    t_fetch_plain(t, &plain);
    CHECK_OK(transfer_states(s, t, 1, plain.states));
    memcpy(words, plain.states, sizeof words); /* layers lack some states */
    for (int step = 0; step < n_steps; step++) {
        const int64_t n = memo_test_int(1, 3);
        t->rate = on_host ? 0 : memo_test_random();
        for (int64_t b = -(memo_test_int(0, 3) == 0); b < n; b++) {
            const memo_batch look = {.is_forward_only = 1, .shape = t->desc.n_shapes - 1};
            memo_batch batch = {.more_follow =
                                    b < 0 ? t->desc.update_may & MEMO_MAY_FUSE : b < n - 1,
                                .values = &t->rate,
                                .values_bytes = sizeof t->rate};
            if (!t->shapes[1].is_forward_only)
                batch.shape = (int32_t)memo_test_int(0, t->desc.n_shapes - 1);
            if (memo_test_int(0, 2) == 0)
                batch.n_rows = memo_test_int(1, t->shapes[batch.shape].n_rows);
            if (b > 0 && memo_test_int(0, 2) == 0) { /* the session's own copy */
                batch.values = memo_session_get_batch(s).values;
                batch.values_bytes = MEMO_BATCH_VALUES_MAX;
            }
            if ((!t->desc.n_order || t->shapes[look.shape].is_forward_only) &&
                memo_test_int(0, 2) == 0) {
                CHECK_OK(memo_session_run(s, &look, &error));
                t_run_plain_call(t, &plain,
                                 t->shapes[look.shape].is_forward_only ? 1 : t_n_in_call(t, s),
                                 t->shapes[look.shape].n_rows, 1);
            }
            CHECK_OK(t_run_call(t, s, batch));
            t_run_plain_call(t, &plain, t_n_in_call(t, s),
                             batch.n_rows ? batch.n_rows : t->shapes[batch.shape].n_rows, 0);
            if (batch.more_follow && memo_test_int(0, 3) == 0)
                CHECK_ERROR(memo_session_update(s, &error), INVALID_STATE, "more_follow was 1");
            if (b >= 0) continue;
            CHECK_OK(memo_session_skip_update(s, &error));
            t_drop_gradients(t, &plain);
        }
        CHECK_OK(memo_session_update(s, &error));
        t_update_plain(t, &plain);
        if (memo_test_int(0, 1)) change_bytes(t, s, &plain); /* ends deferred updates */
        if (memo_test_int(0, 7) == 0) CHECK_OK(memo_session_flush(s, &error));
    }
    CHECK_OK(transfer_states(s, t, 0, words));
    CHECK(!memcmp(words, plain.states, sizeof words));
    CHECK(!memcmp(&t->sums, &t->plain_sums, sizeof t->sums));
}

static void train(trainer* t, const memo_step_plan* plan, const memo_device* device) {
    t->desc.device = device;
    own_session* s = session_of_plan(&t->desc, plan);
    if (s) train_in(t, s, plan->update_is_on_host, 3);
}

/* Trains on the calling thread, or on a stream that is late or whose operations are recorded.
 * given_bytes: the caller's host memory, with all of the device; 0: the session takes its own. */
static void train_on(trainer* t, const memo_step_plan* plan, memo_host_device_desc capacity,
                     int64_t given_bytes, int64_t i) {
    if (i % 5 == 0) capacity.to_host_bytes_per_s = capacity.to_device_bytes_per_s = 1e8;
    own_device* host = new_device(capacity);
    own_recorder* recorder = i % 4 == 3 ? new_recorder((memo_recorder_desc){.device = host}) : NULL;
    memo_faults delays;
    memo_faults_init(&delays, host);
    delays.delay_s = i % 4 == 1 ? 2e-4 : 0;
    delays.seed = memo_test_random();
    const memo_device* device = recorder ? memo_recorder_get_device(recorder) : &delays.device;
    if (i % 4) {
        t->host = host;
        t->desc.computes_on_host = 0;
        t->desc.compute_stream = new_stream(device, "compute");
    }
    if (given_bytes) {
        t->desc.device_bytes = (capacity.device_memory_bytes + 511) / 512 * 512;
        t->desc.host_bytes = given_bytes;
        CHECK_OK(memo_device_alloc(device, t->desc.device_bytes, &t->desc.device_memory, &error));
        CHECK_OK(memo_host_alloc(device, given_bytes, &t->desc.host_memory, &error));
    }
    train(t, plan, device);
    if (given_bytes) {
        CHECK_OK(memo_device_free(device, t->desc.device_memory, &error));
        CHECK_OK(memo_host_free(device, t->desc.host_memory, &error));
    }
    if (i % 4) memo_stream_destroy(device, t->desc.compute_stream, NULL);
    if (!recorder) return;
    own_check* check = check_of(recorded(recorder));
    CHECK_CASE(check->n_races == 0, "case %lld", (long long)i);
}

/* --- the first steps are timed --- */

static int32_t n_planned;
static void count_plans(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                        MEMO_UNUSED const memo_step_plan* plan) {
    n_planned++;
}

static const memo_device* pinning_device;
static int64_t pins_left = -1; /* the request after so many is refused, once; below 0: none */
static memo_status refused_pin(void* context, int64_t n_bytes, void** address, memo_error* e) {
    if (pins_left >= 0 && pins_left-- == 0)
        return memo_error_set(e, MEMO_STATUS_OUT_OF_HOST_MEMORY, "none is left to pin");
    return pinning_device->host_alloc(context, n_bytes, address, e);
}

/* A session that plans again after some steps trains as plain arrays do, wherever states lie then:
 * with a file, an update at any moment or on the host, in slices and shapes, checked or not, and
 * where pinned memory lacks; the recorded operations have no race. */
TEST(planning_again_keeps_every_bit) {
    const int64_t n = memo_test_cases(4, 400);
    int64_t n_again = 0, n_moved = 0, n_other = 0, n_stayed = 0;
    for (int64_t i = 0; i < n; i++) {
        trainer t;
        memo_session_info first, last;
        int64_t largest;
        own_session* s = NULL;
        t_init_random(&t, ROWS);
        if (i % 3) t.desc.n_layers = (int32_t)memo_test_int(4, 8);
        if (i % 4 > 1) t_take_fetched(&t);
        if (i % 4) t.desc.update_may = (int32_t)memo_test_int(0, 3);
        if (i % 4 == 1) t.desc.update_may = MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS; /* pending then */
        t.desc.policy = i % 7 ? MEMO_POLICY_MEMO : MEMO_POLICY_ALPHA;
        t.desc.is_checked = i % 6 == 5;
        if (t.desc.is_checked) t.desc.update_may &= ~MEMO_MAY_FUSE;
        if (i % 5 == 2) t_take_order(&t);
        t.desc.timed_steps = (int32_t)memo_test_int(2, 4);
        t.desc.planned = count_plans;
        t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&t.desc, NULL);
        t.desc.device_bytes = least->device_bytes +
                              memo_test_int(0, 2) * memo_test_int(0, bytes_of_states(&t, &largest));
        if (i % 5 == 4) t.desc.host_bytes = 2 * least->host_bytes;
        own_device* host = new_device((memo_host_device_desc){
            .to_host_bytes_per_s = i % 2 ? 1e8 : 0, .to_device_bytes_per_s = i % 2 ? 1e8 : 0});
        own_recorder* recorder =
            i % 4 == 3 ? new_recorder((memo_recorder_desc){.device = host}) : NULL;
        t.desc.device = recorder ? memo_recorder_get_device(recorder) : host;
        if (i % 4) {
            t.host = host;
            t.desc.computes_on_host = 0;
            t.desc.compute_stream = new_stream(t.desc.device, "compute");
        }
        memo_device table =
            *t.desc.device; /* memory lacks while states move, or for the new plan */
        table.host_alloc = refused_pin;
        pinning_device = t.desc.device;
        if (i % 3 == 2 && !recorder) t.desc.device = &table;
        const memo_status status = memo_session_create(&t.desc, &s, &error);
        if (s && i % 3 == 2) pins_left = memo_test_int(0, 2);
        CHECK_CASE(!status || status == MEMO_STATUS_INFEASIBLE, "case %lld: %s", (long long)i,
                   error.message);
        n_planned = 0;
        if (s) {
            first = memo_session_get_info(s);
            const int64_t n_streamed = first.plan->n_streamed,
                          rows = first.plan->sizes.swapped_bytes;
            const int32_t at = first.plan->update_at;
            train_in(&t, s, first.plan->update_is_on_host, 8);
            last = memo_session_get_info(s);
            n_again += n_planned == 1;
            n_moved += last.plan->n_streamed != n_streamed || last.plan->update_at != at;
            n_other += last.plan->sizes.swapped_bytes != rows;
            n_stayed += !n_planned;
            CHECK_IS(n_planned, <=, 1);
        }
        memo_session_destroy(s);
        s = NULL;
        pins_left = -1;
        if (i % 4) memo_stream_destroy(t.desc.device, t.desc.compute_stream, NULL);
        if (!recorder) continue;
        own_check* check = check_of(recorded(recorder));
        CHECK_CASE(check->n_races == 0, "case %lld", (long long)i);
    }
    printf("# %lld sessions planned again, %lld moved states, %lld other rows, %lld did not plan\n",
           (long long)n_again, (long long)n_moved, (long long)n_other, (long long)n_stayed);
    CHECK(n_again > n / 2);
    CHECK(n < 100 || (n_moved > n / 12 && n_other > n / 8));
}

/* With the least device memory or more, in which the session's bytes are all that there is. */
TEST(streamed_states_have_the_bits_of_plain_arrays) {
    const int n = memo_test_cases(48, 1000);
    int64_t n_streamed = 0, n_spilled = 0, n_on_host = 0, n_deferred = 0;
    for (int64_t i = 0; i < n; i++) {
        trainer t;
        int64_t largest, given_bytes = 0;
        memo_host_device_desc capacity = {0};
        t_init_random(&t, ROWS);
        t.desc.policy =
            (memo_policy)memo_test_int(MEMO_POLICY_MEMO + (i % 8 > 0), MEMO_POLICY_ALPHA);
        if (i % 4 > 1) t_take_fetched(&t);
        if (i % 2) t.desc.n_layers = 10; /* enough for a file to help */
        if (i % 2 && i % 8 < 6) t.desc.update_on = MEMO_UPDATE_DEVICE;
        if (i % 3 == 1) t_take_order(&t);
        const int64_t state_bytes = bytes_of_states(&t, &largest);
        t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&t.desc, NULL);
        CHECK_IS(least->fits, ==, 0);
        /* FIRST, a layer and LAST are open at once if there is one layer. */
        CHECK_IS(planned_states(least, 0), <=, (t.desc.n_layers > 1 ? 2 : 3) * largest);
        t.desc.device_bytes =
            least->device_bytes + memo_test_int(0, 2) * memo_test_int(0, state_bytes) / 2;
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        if (i % 2) { /* a quarter less of host memory, if a file helps */
            t.desc.spill_directory = memo_test_folder();
            t.desc.host_bytes = plan->host_bytes * 3 / 4 + 1;
            own_step_plan* spilling = step_plan_of(&t.desc, NULL);
            CHECK_IS(spilling->host_bytes, <=, t.desc.host_bytes + (1 << 20) * !spilling->fits);
            if (spilling->fits && (!spilling->next || spilling->next->fits)) {
                memo_step_plan_destroy(plan);
                plan = spilling;
                spilling = NULL;
            }
        }
        CHECK_CASE(plan->fits, "case %lld: %s", (long long)i, plan->shortage);
        if (!plan->fits) continue;
        n_streamed += plan->n_streamed > 0;
        n_spilled += plan->n_spilled > 0;
        n_on_host += plan->update_is_on_host;
        n_deferred += plan->update_at == MEMO_UPDATE_DEFERRED;
        CHECK_IS(plan->update_is_on_host, ==, t.desc.update_on == MEMO_UPDATE_HOST);
        for (const memo_step_plan* p = plan; p; p = p->next) {
            check_owners(&t, p);
            if (p->device_bytes > capacity.device_memory_bytes)
                capacity.device_memory_bytes = p->device_bytes;
            if (p->host_bytes > given_bytes) given_bytes = p->host_bytes;
        }
        /* Or in memory of the caller, which then is all that there is: every other file has it. */
        if (plan->n_spilled ? n_spilled % 2 : i % 3) given_bytes = 0;
        given_bytes = (given_bytes + 511) / 512 * 512;
        capacity.host_memory_bytes = given_bytes;

        train_on(&t, plan, capacity, given_bytes, i);
    }
    printf("# %d trainers: %lld streamed, %lld with a file, %lld on the host, %lld deferred\n", n,
           (long long)n_streamed, (long long)n_spilled, (long long)n_on_host,
           (long long)n_deferred);
    CHECK(n_streamed > n / 3 && n_spilled > n / 12 && n_on_host > n / 24 && n_deferred > n / 12);
}

/* Checked, with updates at every moment: nothing is blamed. */
TEST(checked_states_have_the_bits_of_plain_arrays) {
    const int n = memo_test_cases(24, 400);
    int64_t n_at[MEMO_N_UPDATE_MOMENTS] = {0}, n_made = 0;
    for (int64_t i = 0; i < n; i++) {
        trainer t;
        int64_t largest;
        own_device* host = new_host(0);
        t_init_random(&t, ROWS);
        if (i % 4 > 1) t_take_fetched(&t);
        t.desc.policy = MEMO_POLICY_ALPHA;
        if (i % 3 == 1) t_take_order(&t);
        t.desc.update_may = (int32_t)memo_test_int(0, 3) | (i % 2 ? MEMO_MAY_NOT_PASS : 0);
        t.desc.is_checked = 1;
        t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&t.desc, NULL);
        t.desc.device_bytes = least->device_bytes +
                              memo_test_int(0, 2) * memo_test_int(0, bytes_of_states(&t, &largest));
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        IN_CASE("case %lld, update %d", (long long)i, (int)plan->update_at);
        train(&t, plan, host);
        n_at[plan->update_at]++;
        n_made += plan->update_at == MEMO_UPDATE_FUSED && t.states[2].uses & MEMO_STATE_MADE;
    }
    printf("# %d trainers: %lld fused, %lld deferred, %lld make moments in a fused update\n", n,
           (long long)n_at[MEMO_UPDATE_FUSED], (long long)n_at[MEMO_UPDATE_DEFERRED],
           (long long)n_made);
    CHECK(n_at[MEMO_UPDATE_FUSED] > n / 20);
    CHECK(n < 100 || (n_at[MEMO_UPDATE_DEFERRED] > n / 40 && n_made > 0));
}

/* Copies to the host that come behind one to the device, behind the same visit: behind each, its
 * stream records an event. */
static int64_t count_late_stores(const memo_schedule* schedule, int64_t begin) {
    int64_t n_late = 0;
    int has_load = 0;
    for (int64_t k = begin; k < schedule->n_ops; k++) {
        const memo_op* op = &schedule->ops[k];
        const char* stream = schedule->text + schedule->streams[op->stream];
        const int is_to_host = strstr(stream, "to host") != NULL;
        const int is_to_device = strstr(stream, "to device") != NULL;
        if (op->kind == MEMO_OP_RECORD && !is_to_host && !is_to_device) has_load = 0;
        if (!op->link_bytes) continue;
        has_load |= is_to_device;
        n_late += is_to_host && has_load;
    }
    return n_late;
}

/* Rows and states of a layer share waits: in a step that repeats, waits of one do not follow from
 * those of the other.  What is left waits for layers in which nothing is computed, or for a norm that
 * a trainer may compute before an update on the host. */
TEST(waits_of_rows_and_states_are_necessary) {
    const int n_cases = memo_test_cases(24, 400), n = n_cases > 24 ? n_cases : 24; /* for shares */
    int64_t n_waits = 0, n_redundant = 0, n_with_both = 0, n_late = 0, n_ordered = 0;
    for (int64_t i = 0; i < n; i++) {
        trainer t;
        int64_t begin = 0, largest;
        t_init_random(&t, ROWS);
        if (i % 4 > 1) t_take_fetched(&t);
        t.desc.n_shapes = 1;
        t.desc.micro_batches = 2 * (t.desc.n_group ? t.desc.n_group : 1);
        if (i % 3 == 1) t_take_order(&t);
        t.desc.policy = MEMO_POLICY_SWAP;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        t.desc.device_bytes += i % 2 * memo_test_int(0, bytes_of_states(&t, &largest));
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        n_with_both += plan->n_streamed && plan->sizes.swapped_bytes;

        /* Four steps, of which the last one counts. */
        own_device* host = new_host(0);
        own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
        t.host = host;
        t.desc.device = memo_recorder_get_device(recorder);
        t.desc.computes_on_host = 0;
        t.desc.compute_stream = new_stream(t.desc.device, "compute");
        memo_session* s = session_of_plan(&t.desc, plan);
        for (int step = 0; step < 4 && s; step++) {
            begin = recorded(recorder)->n_ops;
            for (int k = t.desc.n_order > 0; k < 2; k++) { /* an order is a step */
                const memo_batch batch = {
                    .more_follow = !k, .values = &t.rate, .values_bytes = sizeof t.rate};
                CHECK_OK(t_run_call(&t, s, batch));
            }
            CHECK_OK(memo_session_update(s, &error));
        }
        const memo_schedule* schedule = recorded(recorder);
        own_check* check = check_of(schedule);
        CHECK_IS(check->n_races, ==, 0);
        if (plan->n_streamed && plan->swap.n_slices == 1 && !plan->n_spilled) {
            n_late += count_late_stores(schedule, begin);
            n_ordered++;
        }
        for (int64_t k = begin; k < schedule->n_ops; k++)
            n_waits += schedule->ops[k].kind == MEMO_OP_WAIT;
        for (int64_t k = 0; k < check->n_redundant_waits; k++)
            n_redundant += check->redundant_waits[k] >= begin;
        memo_session_destroy(s);
        memo_stream_destroy(t.desc.device, t.desc.compute_stream, NULL);
    }
    printf("# %lld sessions, in which %lld stores come behind loads\n", (long long)n_ordered,
           (long long)n_late);
    printf("# %lld sessions with rows and states: %lld of %lld waits are redundant\n",
           (long long)n_with_both, (long long)n_redundant, (long long)n_waits);
    CHECK_IS(n_late, ==, 0);
    CHECK_IS(n_ordered, >, 0);       /* a third of them */
    CHECK_IS(n_with_both, >, n / 5); /* two thirds */
    CHECK_CASE(30 * n_redundant < n_waits, "%lld of %lld waits are redundant",
               (long long)n_redundant, (long long)n_waits);
}

/* Which function takes a state that its visit does not bring, of which layer beside its own. */
static struct {
    int32_t pass, state, by; /* by: layers above the function's */
    int is_behind;           /* between micro-batches */
    char log[400];
} wrong;

static void wrong_use(memo_session* s, int32_t pass, int32_t layer) {
    if (pass == wrong.pass && layer == 2 && !wrong.is_behind)
        CHECK(!memo_session_get_state(s, layer + wrong.by, wrong.state));
}
static void wrong_forward(void* user, memo_session* s, int32_t layer) {
    (void)user;
    wrong_use(s, T_FORWARD, layer);
}
static void wrong_between(void* user, memo_session* s) { (void)user, (void)s; }
static void wrong_backward(void* user, memo_session* s, int32_t layer) {
    (void)user;
    wrong_use(s, T_BACKWARD, layer);
}
static void wrong_update(void* user, memo_session* s, int32_t layer) {
    (void)user;
    wrong_use(s, T_UPDATE, layer);
}
static void keep_wrong(void* user, const char* line) {
    (void)user;
    if (strstr(line, "memo_session_get_state")) snprintf(wrong.log, sizeof wrong.log, "%s", line);
}

/* A state that the open visit does not bring has no address, whatever the plan streams: the bytes
 * there may be those of another layer under the next plan. */
TEST(states_are_where_a_visit_uses_them) {
    enum { WEIGHTS, GRADIENTS, MOMENTS, FROZEN, N };
    static const struct {
        int32_t pass, state, by;
        int is_behind;
        const char* message;
    } cases[] = {
        {T_FORWARD, MOMENTS, 0, 0, "layer 2, state `moments`: the forward does not use it"},
        {T_FORWARD, GRADIENTS, 0, 0, "layer 2, state `gradients`: the forward does not"},
        {T_FORWARD, WEIGHTS, 1, 0, "layer 3, state `weights`: the layer is not open"},
        {T_FORWARD, WEIGHTS, -1, 0, "layer 1, state `weights`: the layer is not open"},
        {T_BACKWARD, MOMENTS, 0, 0, "layer 2, state `moments`: the backward does not"},
        {T_BACKWARD, GRADIENTS, 1, 0, "layer 3, state `gradients`: the layer is not open"},
        {T_UPDATE, FROZEN, 0, 0, "layer 2, state `frozen`: the update does not use it"},
        {T_UPDATE, GRADIENTS, 2, 0, "layer 4, state `gradients`: the layer is not open"},
        {T_FORWARD, WEIGHTS, 0, 1, "layer 2, state `weights`: the layer is not open"}};
    static const memo_item tensors[] = {MEMO_ITEM("x", 64, MEMO_MOVE)};
    static const int32_t moments[] = {0, MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS,
                                      MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS};
    const memo_state states[N] = {{"weights", 4096, MEMO_STATE_WEIGHTS, 0},
                                  {"gradients", 4096, MEMO_STATE_GRADIENT, 0},
                                  {"moments", 4096, MEMO_STATE_UPDATE, 0},
                                  {"frozen", 4096, MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, 0}};
    /* Each mistake with two memories and three moments; every fifth has each of them. */
    for (int i = 0; i < 6 * (int)(sizeof cases / sizeof *cases); i += memo_test_all() ? 1 : 5) {
        own_device* device = new_host(0);
        memo_session_desc d = MEMO_ZERO(memo_session_desc);
        memo_status status = MEMO_STATUS_OK;
        const int k = i / 6, is_tight = i % 2;
        wrong.pass = cases[k].pass, wrong.state = cases[k].state, wrong.by = cases[k].by;
        wrong.is_behind = cases[k].is_behind;
        *wrong.log = 0;
        d.device = device;
        d.computes_on_host = 1;
        d.tensors = tensors, d.n_tensors = 1;
        d.n_layers = 6, d.n_rows = 8;
        d.states = states, d.n_states = N;
        d.forward = wrong_forward, d.between = wrong_between, d.backward = wrong_backward,
        d.update = wrong_update;
        d.update_may = moments[i / 2 % 3];
        d.log.write = keep_wrong;
        if (is_tight) CHECK_OK(memo_session_get_least(&d, &d.device_bytes, &error));
        own_step_plan* plan = step_plan_of(&d, NULL);
        CHECK(is_tight == (plan->n_streamed > 0));
        memo_session* s = session_of_plan(&d, plan);
        if (wrong.is_behind) CHECK(!memo_session_get_state(s, 2, wrong.state));
        for (int step = 0; step < 2 && !status; step++) { /* deferred updates come in the second */
            status = memo_session_run(s, NULL, &error);
            if (!status) status = memo_session_update(s, &error);
        }
        CHECK_CASE(status == MEMO_STATUS_INVALID_STATE && strstr(error.message, cases[k].message) &&
                       strstr(wrong.log, cases[k].message),
                   "case %d of %d: %s", k, i % 6, status ? error.message : "not found");
        memo_session_destroy(s);
    }
}

static void count_rounds(void* user, const char* line) {
    *(int*)user += strstr(line, "micro-batches, and micro_batches is") != NULL;
}

static int64_t travelled(const memo_session* s) {
    const memo_session_info info = memo_session_get_info(s);
    return info.states_to_host_bytes + info.states_to_device_bytes;
}

/* Steps of another number of micro-batches than the desc says are told once.  From the third step on
 * states travel as if it had been the desc's. */
TEST(another_number_of_micro_batches_is_told) {
    int64_t n_bytes[3] = {0, 0, 0}; /* that states travel in the last step */
    const uint64_t seed = memo_test.state;
    for (int i = 0; i < 3; i++) { /* 2 of 2; 2 of 1; evaluations beside 2 of 2 */
        int n_told = 0;
        trainer t;
        memo_test.state = seed;
        t_init_random(&t, ROWS);
        t.desc.n_layers = 6;
        t.desc.n_shapes = 1;
        t.desc.n_group = 0;
        t.desc.micro_batches = i == 1 ? 1 : 2;
        t.desc.policy = MEMO_POLICY_RECOMPUTE;
        t.desc.log.write = count_rounds, t.desc.log.user = &n_told;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        CHECK(plan->n_streamed > 0);
        own_device* host = new_host(0);
        t.desc.device = host;
        memo_session* s = session_of_plan(&t.desc, plan);
        for (int k = 0; k < 10 && s; k++) {
            const memo_batch batch = {
                .more_follow = !(k % 2), .values = &t.rate, .values_bytes = sizeof t.rate};
            const memo_batch evaluation = {.is_forward_only = 1};
            if (k == 8) n_bytes[i] = -travelled(s);
            CHECK_OK(memo_session_run(s, &batch, &error));
            if (k % 2) CHECK_OK(memo_session_update(s, &error));
            if (k == 9) n_bytes[i] += travelled(s);
            if (i == 2 && k < 4) CHECK_OK(memo_session_run(s, &evaluation, &error));
        }
        CHECK_IS(n_told, ==, i == 1);
        memo_session_destroy(s);
    }
    CHECK_CASE(n_bytes[1] == n_bytes[0] && n_bytes[2] == n_bytes[0], "%lld, %lld, %lld",
               (long long)n_bytes[0], (long long)n_bytes[1], (long long)n_bytes[2]);
}

/* The bytes of states that three steps copy in the least memory. */
static void copy_states(trainer* t, uint32_t uses, int32_t update_may, memo_session_info* info) {
    own_device* device = new_host(0);
    own_session* s = NULL;
    t->states[S_WEIGHTS].uses = uses;
    t->desc.update_may = update_may | MEMO_MAY_NOT_PASS;
    t->desc.device = NULL;
    CHECK_OK(memo_session_get_least(&t->desc, &t->desc.device_bytes, &error));
    own_step_plan* plan = step_plan_of(&t->desc, NULL);
    t->desc.device = device;
    memset(info, 0, sizeof *info);
    CHECK_OK(memo_session_open(&t->desc, plan, &s, &error));
    for (int step = 0; step < 3 && s; step++) {
        CHECK_OK(memo_session_run(s, NULL, &error));
        CHECK_OK(memo_session_update(s, &error));
    }
    if (s) CHECK_OK(memo_session_flush(s, &error));
    if (s) *info = memo_session_get_info(s);
}

/* Weights that the update makes do not travel to it, unless the backward reads them in the same
 * visit. */
TEST(made_states_do_not_travel_to_updates) {
    static const int32_t moments[] = {0, MEMO_MAY_FUSE, MEMO_MAY_DEFER};
    for (int k = 0; k < memo_test_cases(6, 6); k++) {
        trainer t;
        memo_session_info read, made;
        t_init_random(&t, ROWS);
        t.desc.n_layers = 6;
        t.desc.n_shapes = 1;
        t.desc.update_on = MEMO_UPDATE_DEVICE;
        t.states[S_WEIGHTS].size_bytes = 2048;
        copy_states(&t, MEMO_STATE_WEIGHTS, moments[k % 3], &read);
        copy_states(&t, MEMO_STATE_WEIGHTS | MEMO_STATE_MADE, moments[k % 3], &made);
        CHECK_IS(made.states_to_host_bytes, ==, read.states_to_host_bytes);
        if (moments[k % 3] == MEMO_MAY_FUSE)
            CHECK_IS(made.states_to_device_bytes, ==, read.states_to_device_bytes);
        else
            CHECK_IS(made.states_to_device_bytes + 4 * 2048, <=, read.states_to_device_bytes);
    }
}

/* --- predicted times --- */

/* Layers of two kinds with states. */
static void random_times(trainer* t, timed* times) {
    t_init_random(t, ROWS);
    t->desc.n_shapes = 0;
    take_random_times(times, &t->desc);
}

TEST(predicted_steps_are_those_of_recorded_operations) {
    int64_t n_streamed = 0, n_spilled = 0, n_sliced = 0, n_host = 0, n = memo_test_cases(8, 10000);
    int64_t n_order = 0;
    int64_t n_at[MEMO_N_UPDATE_MOMENTS] = {0}; /* pass, fused, deferred */
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t largest;
        double step_s, update_s;
        trainer t;
        timed times;
        random_times(&t, &times);
        if (i % 4 > 1) t_take_fetched(&t);
        if (t.desc.fetch) t.desc.fetch = fetch_zeros;
        t.desc.micro_batches = i % 2 ? 0 : (int32_t)memo_test_int(1, 64);
        if (t.desc.n_group > 1)
            t.desc.micro_batches = t.desc.n_group * (int32_t)memo_test_int(1, 64 / t.desc.n_group);
        for (int k = 0; k < T_N_STATES && i % 3 == 1; k++) t.states[k].size_bytes *= 16;
        if (i % 3 == 1) t.desc.n_layers = 6;
        if (i % 4 == 2) {
            t_take_order(&t);
            take_random_times(&times, &t.desc);
            n_order++;
        }
        t.desc.computes_on_host = i % 5 == 3;
        if (i % 5 == 4 && t.desc.n_layers > 1) { /* the host's update is the bottleneck */
            times.times.update_host_s_per_byte *= 200 * memo_test_real();
            t.desc.update_on = MEMO_UPDATE_HOST;
        }
        t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&t.desc, NULL);
        if (memo_test_all() ? i % 2 : i != 1) /* such plans are found sooner */
            t.desc.policy = MEMO_POLICY_ALPHA;
        t.desc.device_bytes =
            least->device_bytes + (i % 3 ? 0 : memo_test_int(0, bytes_of_states(&t, &largest)));
        own_step_plan* plan = step_plan_of(&t.desc, &times.times);
        CHECK_CASE(plan->fits, "case %lld: %s", (long long)i, plan->shortage);
        if (i % 3 == 1 && plan->fits) { /* a file, if it helps */
            t.desc.spill_directory = memo_test_folder();
            t.desc.host_bytes = plan->host_bytes * 3 / 4;
            own_step_plan* spilling = step_plan_of(&t.desc, &times.times);
            if (spilling && spilling->fits) {
                memo_step_plan_destroy(plan);
                plan = spilling;
                spilling = NULL;
            }
            n_spilled += plan->n_spilled > 0;
        }
        if (!plan->fits) continue;
        simulate_steps(&times, plan, &step_s, &update_s);
        CHECK_CASE(plan->times->to_host_bytes == times.copied_bytes[0] &&
                       plan->times->to_device_bytes == times.copied_bytes[1],
                   "case %lld: %lld and %lld bytes, not %lld and %lld", (long long)i,
                   (long long)plan->times->to_host_bytes, (long long)plan->times->to_device_bytes,
                   (long long)times.copied_bytes[0], (long long)times.copied_bytes[1]);
        const double whole_s = plan->times->step_s;
        const double off =
            (fabs(step_s + update_s - whole_s) + fabs(update_s - plan->times->update_s)) / whole_s;
        n_streamed += plan->n_streamed > 0;
        n_sliced += plan->slice_rows > 0 && plan->slice_rows < t.desc.n_rows;
        n_host += plan->update_is_on_host;
        n_at[plan->update_at] += plan->n_streamed > 0;
        worst = off > worst ? off : worst;
        CHECK_CASE(off < 1e-6,
                   "case %lld: %d micro-batches: predicted %g, of which %g update, "
                   "simulated %g + %g",
                   (long long)i, (int)t.desc.micro_batches, whole_s, plan->times->update_s, step_s,
                   update_s);
    }
    printf(
        "# off by at most %.2g; %lld streamed, with a pass %lld, fused %lld, deferred %lld, on the "
        "host %lld, in slices %lld, with a file %lld, orders %lld\n",
        worst, (long long)n_streamed, (long long)n_at[MEMO_UPDATE_PASS],
        (long long)n_at[MEMO_UPDATE_FUSED], (long long)n_at[MEMO_UPDATE_DEFERRED],
        (long long)n_host, (long long)n_sliced, (long long)n_spilled, (long long)n_order);
    CHECK_IS(n_streamed, >, n / 4);
    CHECK(n < 1000 ||
          (n_streamed > n / 2 && n_sliced > 0 && n_spilled > n / 12 && n_host > n / 20 &&
           n_at[1] > n / 20 && n_at[2] > n / 20 && n_at[3] > n / 20));
}

/* A loss in the last layer's backward waits for the states that this needs, also if micro-batches
 * are not grouped. */
TEST(losses_in_layers_take_their_time_there) {
    for (int i = 0; i < 40; i++) {
        double step_s, update_s;
        trainer t;
        timed times;
        random_times(&t, &times);
        t.desc.n_group = 1;
        t.desc.between = NULL;
        t.desc.loss = loss_takes;
        t.desc.policy = MEMO_POLICY_RECOMPUTE;
        t.desc.micro_batches = (int32_t)memo_test_int(2, 4);
        for (int k = 0; k < T_N_STATES; k++) t.states[k].size_bytes *= 4;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        own_step_plan* plan = step_plan_of(&t.desc, &times.times);
        simulate_steps(&times, plan, &step_s, &update_s);
        CHECK_CASE(fabs(step_s + update_s - plan->times->step_s) < 1e-6 * plan->times->step_s,
                   "case %d: predicted %g, took %g", i, plan->times->step_s, step_s + update_s);
    }
}

/* The least of each budget and what keeps everything, for random budgets between the two. */
typedef struct memories {
    int64_t least[3], most[3]; /* device, host, file */
} memories;

static memories memories_of(trainer* t) {
    memories m = {{0, 0, 0}, {0, 0, 0}};
    memo_session_desc d = t->desc;
    d.policy = MEMO_POLICY_KEEP;
    d.device_bytes = 0;
    own_step_plan* keep = step_plan_of(&d, NULL);
    d.policy = MEMO_POLICY_MEMO;
    CHECK_OK(memo_session_get_least(&d, &m.least[0], &error));
    d.device_bytes = m.least[0];
    own_step_plan* least = step_plan_of(&d, NULL);
    m.most[0] = keep->device_bytes + keep->device_bytes / 8;
    m.most[1] = least->host_bytes + least->host_bytes / 2;
    return m;
}

/* What a step takes in these budgets; infinite: it does not fit. */
static double step_within(trainer* t, const memo_profile* profile, const int64_t* budgets) {
    memo_session_desc d = t->desc;
    d.device_bytes = budgets[0];
    d.host_bytes = budgets[1];
    d.disk_bytes = budgets[2];
    d.spill_directory = budgets[2] ? memo_test_folder() : NULL;
    own_step_plan* plan = step_plan_of(&d, profile);
    return plan && plan->fits ? plan->times->step_s : HUGE_VAL;
}

/* A random step, and two sets of budgets, of device, host and file, the second of which has more. */
static void random_pair(trainer* t, timed* times, int64_t* small, int64_t* large) {
    random_times(t, times);
    if (!t->desc.n_group) t->desc.micro_batches = (int32_t)memo_test_int(0, 3);
    const memories m = memories_of(t);
    small[0] = memo_test_int(m.least[0], m.most[0]);
    small[1] = memo_test_int(0, 1) ? 0 : memo_test_int(m.most[1] / 8, m.most[1]);
    small[2] = small[1] && memo_test_int(0, 1) ? 1 + memo_test_int(0, m.most[1]) : 0;
    memcpy(large, small, 3 * sizeof *large);
    for (int k = 0; k < 3; k++)
        if (small[k] && memo_test_int(0, 1)) large[k] += memo_test_int(0, small[k]);
}

/* With more memory on the device, on the host or in a file no plan is slower, but for what the search
 * leaves: a random walk ends elsewhere under another limit.  Of 1,000 pairs four were, by at most
 * .26 %, three with more host memory. */
TEST(more_memory_is_never_slower) {
    const int n = memo_test_cases(4, 2000);
    int n_faster = 0, n_slower = 0, n_none = 0;
    double worst = 1;
    for (int i = 0; i < n; i++) {
        trainer t;
        timed times;
        int64_t small[3], large[3];
        random_pair(&t, &times, small, large);
        const double small_s = step_within(&t, &times.times, small);
        const double large_s = step_within(&t, &times.times, large);
        n_none += small_s >= HUGE_VAL;
        n_faster += large_s < small_s;
        if (large_s > small_s * (1 + 1e-9)) {
            n_slower++;
            worst = fmax(worst, large_s / small_s);
            printf("# pair %d: %lld, %lld, %lld: %g s; %lld, %lld, %lld: %g s\n", i,
                   (long long)small[0], (long long)small[1], (long long)small[2], small_s,
                   (long long)large[0], (long long)large[1], (long long)large[2], large_s);
        }
    }
    printf("# %d of %d pairs faster, %d slower, by at most %g; %d do not fit\n", n_faster, n,
           n_slower, worst, n_none);
    CHECK_CASE(worst < 1.006 && n_slower <= 1 + n / 250, "%d pairs slower, by %g", n_slower, worst);
}

/* Pairs that were slower, by up to 0.43 %: a search ended where a smaller budget's search goes on; a
 * limit of the host that does not bind led the search elsewhere; numbers of streamed states were tried around the best share of
 * bytes alone, and another that was as good had better ones beside it; a choice near the best was
 * not ranked again with the best rows. */
TEST(pairs_that_were_slower_are_not) {
    static const uint64_t states[] = {0x75d47ca28c1141ffu, 0x50d257a32f89f834u, 0x8608d39e116c9671u,
                                      0x1419fb73e254bfb2u};
    for (int i = 0; i < memo_test_cases(1, (int)(sizeof states / sizeof *states)); i++) {
        trainer t;
        timed times;
        int64_t small[3], large[3];
        memo_test.state = states[i];
        random_pair(&t, &times, small, large);
        const double small_s = step_within(&t, &times.times, small);
        const double large_s = step_within(&t, &times.times, large);
        CHECK_CASE(large_s <= small_s * 1.001, "pair %d: %g s, with more memory %g s", i, small_s,
                   large_s);
    }
}

/* As of adapters beside frozen weights: a step with many tiny states takes what it takes without
 * them.  If they left the device first, it would take up to a third more: their layers have places,
 * for which weights wait, and most choices would differ in tiny states alone. */
TEST(tiny_states_hide_no_choice) {
    enum { N_TINY = 24, LARGE = 4096, N_LAYERS = 12, BYTES = 2400 * LARGE };
    const int n = memo_test_cases(8, 60);
    memo_state states[1 + N_TINY] = {
        {"frozen", BYTES, MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, 0}};
    double worst = 0, mean = 0;
    for (int i = 1; i <= N_TINY; i++) states[i] = (memo_state){"tiny", 8, MEMO_STATE_UPDATE, 0};
    for (int i = 0; i < n; i++) {
        trainer t;
        timed times;
        int64_t least, budgets[3] = {0, 0, 0};
        memo_session_desc* d = &t.desc;
        if (i < 2) memo_test.state = i ? 40 : 10; /* 1.13 and 1.16 before */
        t_init(&t, N_LAYERS, ROWS, 0);
        d->n_tensors = T_N_SHORT;
        d->n_buffers = 0;
        d->routed_rows_layer = d->routed_rows_all = 0;
        d->layer_kinds = t.kinds;
        d->is_unadvised = 1;
        d->states = states;
        d->n_states = 1 + N_TINY;
        d->update_may = MEMO_MAY_DEFER | MEMO_MAY_FUSE;
        for (int k = 0; k < T_N_SHORT; k++) t.tensors[k].row_bytes *= LARGE;
        t.tensors[T_X].row_bytes = 0;
        t.tensors[T_INPUT].scope = MEMO_SLICE;

        /* Copies of no latency. */
        take_random_times(&times, d);
        times.times.update_s_per_byte /= LARGE;
        for (int k = 0; k < 2; k++) {
            memo_profile_transfer* copy = &times.times.copies[k];
            copy->size_bytes *= LARGE;
            copy->out_s -= 0.001;
            copy->back_s -= 0.001;
        }

        CHECK_OK(memo_session_get_least(d, &least, &error));
        budgets[0] = least + memo_test_int(0, N_LAYERS * BYTES);
        const double step_s = step_within(&t, &times.times, budgets);
        d->n_states = 1;
        const double ratio = step_s / step_within(&t, &times.times, budgets);
        worst = fmax(worst, ratio);
        mean += ratio / n;
    }
    printf("# with tiny states a step takes %.4f of one without in the mean, at most %.4f\n", mean,
           worst);
    CHECK_CASE(worst < 1.1 && mean < 1.03, "worst %g, mean %g", worst, mean);
}

/* The budgets that a refusal names. */
static int follow_advice(const char* shortage, memo_session_desc* d, int64_t** raised) {
    static const char* const names[] = {"raise device_bytes to ", "raise host_bytes to ",
                                        "raise disk_bytes to "};
    int64_t* const budgets[] = {&d->device_bytes, &d->host_bytes, &d->disk_bytes};
    int n = 0;
    for (int k = 0; k < 3; k++) {
        const char* at = strstr(shortage, names[k]);
        if (!at) continue;
        *budgets[k] = strtoll(at + strlen(names[k]), NULL, 10);
        *raised = budgets[k];
        n++;
    }
    return n;
}

static const memo_step_plan* unfit_shape(const memo_step_plan* plan) {
    while (plan && plan->fits) plan = plan->next;
    return plan;
}

/* No plan fits. */
static int is_refused(const memo_session_desc* desc, const memo_profile* times) {
    memo_session_desc d = *desc;
    d.is_unadvised = 1;
    own_step_plan* plan = step_plan_of(&d, times);
    return unfit_shape(plan) != NULL;
}

/* A refusal that names another budget says which device_bytes alone would do, too, and that is
 * what memo_session_get_least finds without times.  Returns whether it names device_bytes. */
static int device_alone_is_enough(const char* shortage, const memo_session_desc* desc,
                                  const memo_profile* times) {
    static const char name[] = "or device_bytes to ";
    const char* at = strstr(shortage, name);
    memo_session_desc d = *desc;
    int64_t least;
    if (!at) return 0;
    d.device_bytes = strtoll(at + strlen(name), NULL, 10);
    own_step_plan* enough = step_plan_of(&d, times);
    CHECK_CASE(!unfit_shape(enough), "%s; then %s", shortage, unfit_shape(enough)->shortage);
    d.device_bytes -= 512;
    CHECK_CASE(is_refused(&d, times), "less than %s", shortage);
    if (times) return 1;
    CHECK_OK(memo_session_get_least(&d, &least, &error));
    d.device_bytes = least;
    own_step_plan* least_plan = step_plan_of(&d, NULL);
    CHECK_CASE(!unfit_shape(least_plan), "least %lld: %s", (long long)least,
               unfit_shape(least_plan)->shortage);
    d.device_bytes -= 512;
    CHECK_CASE(is_refused(&d, NULL), "less than the least of %lld", (long long)least);
    return 1;
}

/* A budget that lacks a byte of what a refusal named is told that number; so is one that lacks 512
 * bytes, if a byte less is still enough.  Returns 0 if another budget alone would do, which is named
 * instead. */
static int a_byte_less_is_told(memo_session_desc* d, const memo_profile* times, int64_t* raised) {
    const int64_t named = *raised;
    int64_t* again = NULL;
    *raised = named - 1;
    if (!is_refused(d, times)) *raised = named - 512;
    own_step_plan* plan = step_plan_of(d, times);
    CHECK(unfit_shape(plan));
    if (!unfit_shape(plan)) return 0;
    const char* shortage = unfit_shape(plan)->shortage;
    (void)follow_advice(shortage, d, &again);
    if (again != raised) return 0;
    CHECK_CASE(*again == named, "a byte less than %lld: %s", (long long)named, shortage);
    return 1;
}

/* What a refusal names, applied by a program, fits at once, for all shapes; 512 bytes less do not,
 * also if a tile has more. */
TEST(advice_is_enough_and_no_more) {
    const int n = memo_test_cases(2, 500);
    int n_tiers[3] = {0, 0, 0}, n_many = 0, n_shapes = 0, n_sliced = 0, n_timed = 0, n_tried = 0;
    int n_or_device = 0, n_told = 0, n_large = 0;
    for (int i = 0; i < n; n_tried++) {
        trainer t;
        timed times;
        memo_session_desc* d = &t.desc;
        const int is_timed = (int)memo_test_int(0, 1);
        int64_t* raised = NULL;
        t_init_random(&t, ROWS);
        if (memo_test_int(0, 1)) d->n_layers = 10; /* enough for a file to help */
        if (memo_test_int(0, 3) == 0) t_take_order(&t);
        const int64_t scale = memo_test_int(0, 1) ? 1 : memo_test_int(2, 200);
        for (int k = 0; k < d->n_tensors; k++)
            t.tensors[k].row_bytes = scale * t.tensors[k].row_bytes;
        for (int k = 0; k < d->n_states; k++) t.states[k].size_bytes *= scale;
        if (is_timed) {
            d->n_shapes = 0;
            take_random_times(&times, d);
        }
        const memories m = memories_of(&t);
        d->device_bytes = m.least[0] - 512;
        CHECK_CASE(is_refused(d, NULL), "less than the least of %lld", (long long)m.least[0]);
        d->device_bytes = 1 + memo_test_int(0, m.most[0]);
        d->host_bytes = memo_test_int(0, 2) ? 1 + memo_test_int(0, m.most[1] / 2) : 0;
        d->spill_directory = memo_test_int(0, 1) ? memo_test_folder() : NULL;
        if (d->spill_directory && memo_test_int(0, 1))
            d->disk_bytes = 1 + memo_test_int(0, m.most[1]);
        own_step_plan* plan = step_plan_of(d, is_timed ? &times.times : NULL);
        const memo_step_plan* short_of = unfit_shape(plan);
        if (!short_of) continue;
        i++;
        n_or_device +=
            device_alone_is_enough(short_of->shortage, d, is_timed ? &times.times : NULL);
        const int n_raised = follow_advice(short_of->shortage, d, &raised);
        CHECK_CASE(n_raised, "case %d: %s", i, short_of->shortage);
        if (!n_raised) continue;
        n_tiers[0] += raised == &d->device_bytes;
        n_tiers[1] += raised == &d->host_bytes;
        n_tiers[2] += raised == &d->disk_bytes;
        n_many += n_raised > 1;
        n_shapes += d->n_shapes > 1;
        n_sliced += d->slice_rows > 0;
        n_timed += is_timed;
        n_large += scale > 1;
        own_step_plan* enough = step_plan_of(d, is_timed ? &times.times : NULL);
        CHECK_CASE(!unfit_shape(enough), "case %d: %s; then %s", i, short_of->shortage,
                   unfit_shape(enough)->shortage);
        *raised -= 512;
        CHECK_CASE(*raised <= 0 || is_refused(d, is_timed ? &times.times : NULL),
                   "case %d: less than %s", i, short_of->shortage);
        *raised += 512;
        n_told += a_byte_less_is_told(d, is_timed ? &times.times : NULL, raised);
    }
    printf("# device %d, host %d, file %d, several at once %d, or the device %d; of shapes %d, "
           "slices %d, large tiles %d, with times %d; a byte less was told %d; %d fitted\n",
           n_tiers[0], n_tiers[1], n_tiers[2], n_many, n_or_device, n_shapes, n_sliced, n_large,
           n_timed, n_told, n_tried - n);
    CHECK(n < 100 || (n_tiers[0] && n_tiers[1] && n_tiers[2] && n_many && n_or_device && n_shapes &&
                      n_sliced && n_timed && n_large && n_told > n / 2));
}

/* A log that counts searches for budgets. */
static void count_looks(void* user, const char* line) {
    *(int*)user += strstr(line, "looking for the least budgets") != NULL;
}

/* Without host memory the least is that of recomputation, which moves nothing. */
TEST(least_without_host_memory) {
    static const memo_item items[] = {MEMO_ITEM("inp", 512, MEMO_MOVE),
                                      MEMO_ITEM("out", 2048, MEMO_ROWS)};
    memo_session_desc d = MEMO_ZERO(memo_session_desc);
    int64_t least, recompute;
    d.tensors = items, d.n_tensors = 2;
    d.n_layers = 8, d.n_rows = 64, d.tile_rows = 8;
    d.host_bytes = 1;
    d.policy = MEMO_POLICY_RECOMPUTE;
    CHECK_OK(memo_session_get_least(&d, &recompute, &error));
    d.policy = MEMO_POLICY_MEMO;
    CHECK_OK(memo_session_get_least(&d, &least, &error));
    CHECK_CASE(least >= recompute && least < recompute + 8 * 512, "%lld of %lld", (long long)least,
               (long long)recompute);

    /* Less is refused with that number; a file does not help if there is none to spill to. */
    d.device_bytes = least - 8 * 512;
    own_step_plan* plan = step_plan_of(&d, NULL);
    CHECK(plan && !plan->fits && strstr(plan->shortage, "raise host_bytes to "));
    CHECK(plan && device_alone_is_enough(plan->shortage, &d, NULL));

    /* The same plan says what it lacks, sooner, and the least of the device is looked for still. */
    int n_looks = 0;
    d.log.write = count_looks, d.log.user = &n_looks;
    d.is_unadvised = 1;
    own_step_plan* unadvised = step_plan_of(&d, NULL);
    CHECK(unadvised && !unadvised->fits && !strstr(unadvised->shortage, "device_bytes"));
    CHECK(plan && unadvised && unadvised->host_bytes == plan->host_bytes);
    CHECK(unadvised && strstr(unadvised->shortage, "raise host_bytes to "));
    CHECK_IS(n_looks, ==, 0);
    CHECK_OK(memo_session_get_least(&d, &recompute, &error));
    CHECK_IS(recompute, ==, least);
    CHECK_IS(n_looks, ==, 1);
    d.is_unadvised = 0;

    /* Where the device cannot help, no refusal says that it could. */
    d.policy = MEMO_POLICY_SWAP;
    CHECK_ERROR(memo_session_get_least(&d, &least, &error), INFEASIBLE, "raise host_bytes to ");
    CHECK(!strstr(error.message, "device_bytes"));
}

/* Tables of rows that keep some rows and move others. */
static int moves_some(const memo_step_plan* plan) {
    int64_t n_kept = 0, n_moved = 0;
    for (int64_t i = 0; i < (int64_t)plan->swap.n_layers * plan->swap.n_tensors; i++) {
        if (!plan->swap.tensors[i % plan->swap.n_tensors].row_bytes) continue;
        n_kept += plan->swap.rows[i] == MEMO_ROWS_KEPT;
        n_moved += plan->swap.rows[i] > 0;
    }
    return n_kept && n_moved;
}

/* What the planner says fits opens on a device that has the budgets and no more, and trains with
 * the bits of plain arrays. */
TEST(every_plan_opens_and_runs) {
    const int n = memo_test_cases(2, 1000);
    int n_tried = 0, n_streamed = 0, n_file = 0, n_mixed = 0, n_sliced = 0, n_timed = 0, n_host = 0;
    int n_order = 0;
    for (int i = 0; i < n; n_tried++) {
        trainer t;
        timed times;
        memo_session_desc* d = &t.desc;
        memo_host_device_desc capacity = {0};
        const int is_timed = memo_test_int(0, 3) > 0;
        t_init_random(&t, ROWS);
        if (memo_test_int(0, 1)) t_take_fetched(&t);
        d->n_layers = (int32_t)memo_test_int(2, 10);
        if (memo_test_int(0, 1)) d->update_on = MEMO_UPDATE_PLANNED;
        if (memo_test_int(0, 3) == 0) t_take_order(&t);
        if (is_timed) { /* the trainer keeps its own functions */
            memo_session_desc slow = *d;
            d->n_shapes = 1;
            take_random_times(&times, &slow);
        }
        const memories m = memories_of(&t);
        d->device_bytes = memo_test_int(m.least[0], m.most[0]);
        d->host_bytes = memo_test_int(0, 3) ? memo_test_int(m.most[1] / 4, m.most[1]) : 0;
        d->spill_directory = d->host_bytes && memo_test_int(0, 2) ? memo_test_folder() : NULL;
        if (d->spill_directory && memo_test_int(0, 1))
            d->disk_bytes = memo_test_int(m.most[1] / 4, m.most[1]);
        own_step_plan* plan = step_plan_of(d, is_timed ? &times.times : NULL);
        if (!plan || unfit_shape(plan)) continue;
        for (const memo_step_plan* p = plan; p; p = p->next)
            CHECK_CASE(p->device_bytes <= d->device_bytes &&
                           (!d->host_bytes || p->host_bytes <= d->host_bytes) &&
                           (!d->disk_bytes || p->disk_bytes <= d->disk_bytes),
                       "case %d: %lld of %lld, %lld of %lld, %lld of %lld", i,
                       (long long)p->device_bytes, (long long)d->device_bytes,
                       (long long)p->host_bytes, (long long)d->host_bytes, (long long)p->disk_bytes,
                       (long long)d->disk_bytes);
        n_streamed += plan->n_streamed > 0;
        n_file += plan->disk_bytes > 0;
        n_host += plan->update_is_on_host;
        n_mixed += moves_some(plan);
        n_sliced += d->slice_rows > 0 && !d->n_order;
        n_order += d->n_order > 0;
        n_timed += is_timed;
        capacity.device_memory_bytes = d->device_bytes;
        train_on(&t, plan, capacity, 0, i++);
    }
    printf("# %d plans of %d: states streamed %d, a file %d, updates on the host %d, rows kept and "
           "moved %d, slices %d, orders %d, with times %d\n",
           n, n_tried, n_streamed, n_file, n_host, n_mixed, n_sliced, n_order, n_timed);
    CHECK(n < 100 || (n_streamed > n / 10 && n_file > n / 40 && n_host && n_mixed > n / 10 &&
                      n_sliced > n / 10 && n_order > n / 10 && n_timed > n / 4));
}

/* PLANNED updates where the predicted step is shorter, or where only that fits. */
TEST(the_update_is_planned_where_it_is_faster) {
    int n_on_host = 0, n_on_device = 0, n_limits = 0;
    for (int i = 0; i < 24; i++) {
        memo_step_plan* plans[3] = {NULL, NULL, NULL};
        double step_s[3];
        trainer t;
        timed times;
        do random_times(&t, &times);
        while (t.desc.n_layers < 3);
        times.times.update_host_s_per_byte *= i % 2 ? 0.01 : 10;
        t.desc.policy = MEMO_POLICY_RECOMPUTE;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        for (int on = 0; on < 3; on++) {
            t.desc.update_on = (memo_update)on;
            CHECK_OK(memo_session_plan(&t.desc, &times.times, &plans[on], &error));
            step_s[on] = plans[on]->fits ? plans[on]->times->step_s : HUGE_VAL;
        }
        CHECK(plans[MEMO_UPDATE_HOST]->update_is_on_host &&
              !plans[MEMO_UPDATE_DEVICE]->update_is_on_host);
        CHECK_CASE(step_s[0] <= 1.002 * fmin(step_s[1], step_s[2]),
                   "case %d: %g, device %g, host %g", i, step_s[0], step_s[1], step_s[2]);
        n_on_host += plans[0]->update_is_on_host;
        n_limits += plans[MEMO_UPDATE_HOST]->times->limit == MEMO_SWAP_LIMIT_UPDATE;
        if (plans[MEMO_UPDATE_HOST]->times->limit == MEMO_SWAP_LIMIT_UPDATE)
            expect_words(plans[MEMO_UPDATE_HOST],
                         "the update on the host is the limit; one twice ");
        n_on_device += !plans[0]->update_is_on_host;
        for (int on = 0; on < 3; on++) memo_step_plan_destroy(plans[on]);
    }
    CHECK_CASE(n_on_host > 3 && n_on_device > 3 && n_limits > 3,
               "%d on the host, %d on the device, %d limited by the host", n_on_host, n_on_device,
               n_limits);
}

/* Of the moments that a trainer allows the plan takes the one of the shortest step. */
TEST(the_update_is_planned_when_it_is_fastest) {
    int n[MEMO_N_UPDATE_MOMENTS] = {0};
    for (int i = 0; i < 24; i++) {
        static const int32_t may[] = {0, MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS,
                                      MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS, MEMO_MAY_DEFER,
                                      MEMO_MAY_FUSE | MEMO_MAY_DEFER};
        double step_s[5];
        trainer t;
        timed times;
        do random_times(&t, &times);
        while (t.desc.n_layers < 3);
        t.desc.update_on = MEMO_UPDATE_DEVICE;
        t.desc.policy = MEMO_POLICY_RECOMPUTE;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        for (int k = 0; k < 5; k++) {
            t.desc.update_may = may[k];
            own_step_plan* plan = step_plan_of(&t.desc, &times.times);
            step_s[k] = plan->fits ? plan->times->step_s : HUGE_VAL;
            if (k < 3 && plan->n_streamed) CHECK_IS(plan->update_at, ==, MEMO_UPDATE_PASS + k);
            if (k > 2) n[plan->update_at]++;
        }
        CHECK_CASE(step_s[3] <= 1.002 * fmin(step_s[0], step_s[2]), "case %d: %g, %g, %g", i,
                   step_s[3], step_s[0], step_s[2]);
        CHECK_CASE(step_s[4] <= 1.002 * fmin(step_s[0], fmin(step_s[1], step_s[2])),
                   "case %d: %g, pass %g, fused %g, deferred %g", i, step_s[4], step_s[0],
                   step_s[1], step_s[2]);
    }
    CHECK_CASE(n[MEMO_UPDATE_FUSED] > 3 && n[MEMO_UPDATE_DEFERRED] > 3,
               "%d passes, %d fused, %d deferred", n[MEMO_UPDATE_PASS], n[MEMO_UPDATE_FUSED],
               n[MEMO_UPDATE_DEFERRED]);
}

/* Also by a checked session.  A plan needs the functions that its sessions call. */
TEST(updates_on_the_host_are_measured) {
    own_device* device = new_host(0);
    memo_profile profiles[2];
    trainer t;
    do t_init_random(&t, ROWS);
    while (t.desc.n_layers < 2);
    t.desc.update_on = MEMO_UPDATE_HOST;
    t.desc.device = device;
    t.desc.is_checked = 1;
    CHECK_OK(session_times(&t.desc, profiles, &error));
    CHECK(profiles[0].update_host_s_per_byte > 0 && profiles[0].update_s_per_byte == 0);
    t.desc.device = NULL;
    CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
    own_step_plan* plan = step_plan_of(&t.desc, profiles);
    CHECK(plan->fits && plan->update_is_on_host);
    expect_words(plan, "update    on the host\n");

    own_session* s = NULL;
    t.desc.update_host = NULL;
    t.desc.update_on = MEMO_UPDATE_DEVICE;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &s, &error), INVALID_ARGUMENT,
                "update_host: NULL");
}

/* --- faults of sessions --- */

/* Two micro-batches, or orders, and the update. */
static memo_status step_of_session(const trainer* t, memo_session* s) {
    memo_status status = MEMO_STATUS_OK;
    for (int b = 0; b < 2 && !status; b++) {
        const memo_batch batch = {.more_follow = b == 0};
        status = t_run_call(t, s, batch);
    }
    return status ? status : memo_session_update(s, &error);
}

/* A call that fails once works the second time. */
static memo_status transfer_or_again(memo_session* s, const trainer* t, int is_write,
                                     state_words words) {
    const memo_status status = transfer_states(s, t, is_write, words);
    if (status) CHECK_OK(transfer_states(s, t, is_write, words));
    return status;
}

/* Two steps.  A step that fails is repeated, after the states have been written again if the error
 * says so.  Returns the status of the fault. */
static memo_status train_through_faults(memo_session* s, const trainer* t, state_words words,
                                        int64_t* n_halved) {
    static state_words after;
    memo_status fault = transfer_or_again(s, t, 1, words), status;
    for (int step = 0; step < 2; step++) {
        if ((status = transfer_or_again(s, t, 0, words))) fault = status;
        if (!(status = step_of_session(t, s))) continue;
        fault = status;
        if (strstr(error.message, "set the states of all layers again")) {
            ++*n_halved;
            CHECK_OK(transfer_states(s, t, 1, words));
        } else if (strstr(error.message, "run the whole step again"))
            CHECK_OK(memo_session_skip_update(s, &error));
        memcpy(after, words, sizeof after);
        CHECK_OK(transfer_states(s, t, 0, after));
        CHECK_CASE(!memcmp(after, words, sizeof after), "%s", error.message);
        CHECK_OK(step_of_session(t, s));
    }
    status = transfer_or_again(s, t, 0, words);
    return fault ? fault : status;
}

/* In the least device memory. */
static memo_step_plan* plan_of_layers(trainer* t, int32_t n_layers, int32_t update_may) {
    t_init_random(t, ROWS);
    if (memo_test_int(0, 1)) t_take_fetched(t);
    t->desc.n_layers = n_layers;
    t->desc.n_shapes = 1;
    if (n_layers < 10 && memo_test_int(0, 2) == 0) t_take_order(t);
    t->desc.policy = MEMO_POLICY_RECOMPUTE; /* is planned soon */
    t->desc.update_may = update_may;
    CHECK_OK(memo_session_get_least(&t->desc, &t->desc.device_bytes, &error));
    return step_plan_of(&t->desc, NULL);
}

/* Each device call of a session fails once.  It is one error, and leaves nothing behind.  States
 * have their bytes, unless the error says that an update has changed some. */
TEST(a_fault_in_a_session_loses_no_state) {
    static state_words expected, words;
    const int n = memo_test_cases(2, 20);
    int64_t n_failed = 0, n_halved = 0;
    for (int64_t i = 0; i < n; i++) {
        memo_status status = MEMO_STATUS_OK;
        trainer t;
        own_step_plan* plan = plan_of_layers(&t, 3, i % 2 ? MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS : 0);
        /* Each call, or a sample of the calls; 0: none fails. */
        for (int64_t k = 0; k < 2 || status;
             k += k && !memo_test_all() ? memo_test_int(1, 12) : 1) {
            own_device* host = new_host(0);
            memo_session* s = NULL;
            memo_faults f;
            memo_faults_init(&f, host);
            t.desc.device = &f.device;
            f.failing_call = k;
            set_words(words, i);
            status = memo_session_open(&t.desc, plan, &s, &error);
            if (s) status = train_through_faults(s, &t, words, &n_halved);
            CHECK(!status == !f.failed && (!status || status == MEMO_STATUS_DEVICE));
            if (s && k == 0) memcpy(expected, words, sizeof words);
            if (s)
                CHECK_CASE(!memcmp(words, expected, sizeof words), "call %lld, %s", (long long)k,
                           f.failed ? f.failed : "none");
            memo_session_destroy(s);
            n_failed += status != MEMO_STATUS_OK;
        }
    }
    CHECK_CASE(n_failed > 20 * n && n_halved > n, "%lld failed, %lld in updates",
               (long long)n_failed, (long long)n_halved);
}

/* Three steps, whose updates are deferred, then all states. */
static memo_status train_deferred(memo_session* s, const trainer* t, state_words words) {
    memo_status status = MEMO_STATUS_OK;
    for (int step = 0; step < 3 && !status; step++) status = step_of_session(t, s);
    return status ? status : transfer_states(s, t, 0, words);
}

/* Each device call fails once while updates are deferred.  States are then those of a whole step,
 * unless the error says that an update has changed some; a run from the first states ends with the
 * bits of a run without a fault. */
TEST(a_fault_in_a_deferred_update_is_told) {
    static state_words begin, of_step[4], words;
    const int n = memo_test_cases(1, 10);
    int64_t n_failed = 0, n_halved = 0, n_whole = 0;
    for (int64_t i = 0; i < n; i++) {
        trainer t;
        own_step_plan* plan = NULL;
        do {
            memo_step_plan_destroy(plan);
            plan = plan_of_layers(&t, 3, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS);
        } while (plan->update_at != MEMO_UPDATE_DEFERRED);
        set_words(begin, i);
        memo_status status = MEMO_STATUS_OK;
        for (int64_t k = 0; k < 2 || status; k += k && !memo_test_all() ? memo_test_int(1, 5) : 1) {
            own_device* host = new_host(0);
            memo_session* s = NULL;
            memo_faults f;
            memo_faults_init(&f, host);
            t.desc.device = &f.device;
            status = memo_session_open(&t.desc, plan, &s, &error);
            CHECK_OK(transfer_states(s, &t, 1, begin));
            memcpy(words, begin, sizeof words);
            for (int step = 0; step < 4 && k == 0; step++) {
                memcpy(of_step[step], words, sizeof words);
                CHECK_OK(step_of_session(&t, s));
                CHECK_OK(transfer_states(s, &t, 0, words));
            }
            f.failing_call = f.n_calls + k;
            if (k) status = train_deferred(s, &t, words);
            CHECK(!status == !(k && f.failed));
            if (status) {
                const int is_halved = !!strstr(error.message, "set the states of all layers again");
                int is_whole = 0;
                if (!is_halved) {
                    CHECK_OK(transfer_states(s, &t, 0, words));
                    for (int step = 0; step < 4; step++)
                        is_whole |= !memcmp(words, of_step[step], sizeof words);
                    CHECK_CASE(is_whole, "call %lld, %s", (long long)k, f.failed);
                }
                n_failed++;
                n_halved += is_halved;
                n_whole += is_whole;
                if (is_halved)
                    CHECK_ERROR(memo_session_skip_update(s, &error), INVALID_STATE,
                                "set the states of all layers again");
                else
                    CHECK_OK(memo_session_skip_update(s, &error));
                CHECK_OK(transfer_states(s, &t, 1, begin));
                CHECK_OK(train_deferred(s, &t, words));
            }
            if (k) CHECK(!memcmp(words, of_step[3], sizeof words));
            memo_session_destroy(s);
        }
    }
    CHECK_CASE(n_failed > 20 * n && n_halved > 2 * n && n_whole > 2 * n,
               "%lld failed, %lld halved, %lld whole", (long long)n_failed, (long long)n_halved,
               (long long)n_whole);
}

/* --- what a failure says --- */

static const char what_to_do[] = "set the states of all layers again";

static int n_times(const char* text, const char* words) {
    int n = 0;
    for (; (text = strstr(text, words)) != NULL; text++) n++;
    return n;
}

/* The words of a failed call: the cause once and, if states are lost, what to do, whole and last. */
static int says_what_to_do(const char* cause) {
    const char* at = strstr(error.message, what_to_do);
    const int loses =
        strstr(error.message, "states are lost") || strstr(error.message, "the update");
    const int is_refused = /* because of what an earlier call has said */
        strstr(error.message, "memo_session_begin: the update has changed") != NULL;
    CHECK_CASE(n_times(error.message, cause) == !is_refused, "%s", error.message);
    CHECK_CASE(!loses || at, "%s", error.message);
    if (!at) return 0;
    at += strlen(what_to_do);
    CHECK_CASE(!*at || !strcmp(at, ", in a new session"), "%s", error.message);
    return 1;
}

/* Three steps; after a failure every call that trainers may try next.  Returns how many calls said
 * what to do; *n_unsaid: those of a run that did not.  Updates have begun since states were written. */
static int train_and_try_on(memo_session* s, const trainer* t, const char* cause, int* n_unsaid) {
    memo_batch batch = {.more_follow = 1};
    memo_status status = MEMO_STATUS_OK;
    int n_said = 0;
    if (t->desc.n_order) batch.turn = t->order[0];
    for (int step = 0; step < 3 && !status; step++) status = step_of_session(t, s);
    if (!status) status = memo_session_flush(s, &error);
    if (!status) return 0;
    n_said += says_what_to_do(cause);
    *n_unsaid += !n_said;
    for (int k = 0; k < 2; k++) {
        const memo_status ignored =
            k ? memo_session_flush(s, &error) : memo_session_skip_update(s, &error);
        (void)ignored;
        if (!memo_session_run(s, &batch, &error)) break; /* the call alone had failed */
        const int says = says_what_to_do(cause);
        n_said += says;
        *n_unsaid += !says;
    }
    return n_said;
}

/* Each operation of three steps fails, in its call or later on its stream. */
TEST(a_failure_says_its_cause_once_and_what_to_do) {
    static state_words words;
    const int n = memo_test_cases(4, 24);
    int64_t n_failed = 0, n_said = 0;
    for (int64_t i = 0; i < n; i++) {
        static const int32_t may[] = {0, MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS,
                                      MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS};
        const int is_late = i % 4 != 3;
        int failed = 1;
        trainer t;
        own_step_plan* plan = plan_of_layers(&t, 3, may[i % 3]);
        for (int64_t k = 1; failed; k += memo_test_all() ? 1 : memo_test_int(1, 20)) {
            own_device* host = new_host(0);
            own_session* s = NULL;
            memo_faults f;
            int n_unsaid = 0;
            memo_faults_init(&f, host);
            t.desc.device = &f.device;
            CHECK_OK(memo_session_open(&t.desc, plan, &s, &error));
            set_words(words, i);
            CHECK_OK(transfer_states(s, &t, 1, words));
            CHECK_OK(step_of_session(&t, s)); /* one update is unseen, or deferred */
            CHECK_OK(memo_session_flush(s, &error));
            f.failing_call = f.n_calls + k;
            f.is_late = is_late;
            n_said += train_and_try_on(s, &t, "fails on purpose", &n_unsaid);
            failed = f.failed != NULL;
            n_failed += failed;
            /* Calls without a stream fail at once, and lose nothing. */
            if (is_late && !(failed && strstr(f.failed, "synchronize")))
                CHECK_CASE(!n_unsaid, "call %lld, %s", (long long)k, f.failed ? f.failed : "none");
        }
        t.desc.device = NULL;
    }
    CHECK_CASE(n_failed > 10 * n && n_said > n_failed, "%lld failed, %lld said",
               (long long)n_failed, (long long)n_said);
}

/* A cause of so many bytes. */
static char planted[sizeof error.message];
static memo_status fail_at_length(MEMO_UNUSED void* argument, memo_error* e) {
    return memo_error_set(e, MEMO_STATUS_DEVICE, "%s", planted);
}
static void update_that_fails(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    if (layer == 1) memo_session_fail(s, MEMO_STATUS_INVALID_STATE, planted);
}

/* A long cause loses its end, and nothing of what to do. */
TEST(a_long_cause_leaves_room_for_what_to_do) {
    static state_words words;
    for (int64_t n_bytes = 300; n_bytes <= (int64_t)sizeof error.message; n_bytes += 7) {
        own_device* host = new_host(0);
        own_session* s = NULL;
        memo_stream stream = NULL;
        trainer t;
        int n_unsaid = 0;
        own_step_plan* plan = plan_of_layers(&t, 3, 0);
        t.desc.device = host;
        if (plan->update_is_on_host) continue;
        if (n_bytes % 2) t.desc.update = update_that_fails;
        CHECK_OK(memo_session_open(&t.desc, plan, &s, &error));
        set_words(words, n_bytes);
        CHECK_OK(transfer_states(s, &t, 1, words));
        snprintf(planted, (size_t)n_bytes, "planted%0*d", (int)n_bytes - 8, 0);
        if (n_bytes % 2) {
            CHECK(step_of_session(&t, s));
            CHECK(says_what_to_do("planted"));
        } else {
            CHECK_OK(step_of_session(&t, s));
            stream = new_stream(host, "own");
            CHECK_OK(memo_host_device_launch(host, stream, fail_at_length, NULL, 0, &error));
            CHECK(memo_stream_synchronize(host, stream, &error));
            CHECK_IS(train_and_try_on(s, &t, "planted", &n_unsaid), ==, 3);
        }
    }
}

/* Steps from *step on, which begin with words; after each step words are its states. */
static memo_status train_to_the_end(memo_session* s, const trainer* t, state_words words,
                                    int* step) {
    static state_words found;
    memo_status status = transfer_states(s, t, 1, words);
    memcpy(found, words, sizeof found);
    while (*step < 3 && !status) {
        status = step_of_session(t, s);
        if (!status) status = transfer_states(s, t, 0, found);
        if (status) return status;
        memcpy(words, found, sizeof found);
        ++*step;
    }
    return status;
}

/* A file that is gone after so many operations: later ones fail on their stream. */
static struct {
    memo_device inner;
    int number;
    int64_t n_left;
} file_of_states;

static memo_status launch_with_file(void* context, memo_stream stream, memo_host_call* call,
                                    memo_error* e) {
    if (file_of_states.n_left-- == 0) {
        const int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, file_of_states.number);
        close(nothing);
    }
    return file_of_states.inner.launch_host(context, stream, call, e);
}

/* Trains from words on, for three steps, until the device or the file is cut.  Then a new session
 * goes on from the states that were read last.  Returns the status of the cut. */
static memo_status train_with_a_cut(trainer* t, const memo_step_plan* plan, int64_t failing_call,
                                    int64_t failing_file, state_words words, int64_t* n_doubtful) {
    memo_status fault = MEMO_STATUS_OK;
    int step = 0;
    for (int run = 0; run < 2 && step < 3; run++) {
        own_device* host = new_host(0);
        own_session* s = NULL;
        memo_device with_file = *host;
        memo_faults f;
        const int next = dup(0); /* the file's number */
        close(next);
        file_of_states.inner = *host;
        file_of_states.number = next;
        file_of_states.n_left = run ? -1 : failing_file;
        with_file.launch_host = launch_with_file;
        memo_faults_init(&f, host);
        f.failing_call = run ? 0 : failing_call;
        f.is_late = 1;
        t->desc.device = failing_file < 0 ? &f.device : &with_file;
        memo_status status = memo_session_open(&t->desc, plan, &s, &error);
        if (!status) status = train_to_the_end(s, t, words, &step);
        if (!status) continue;
        fault = status;
        CHECK_CASE(run == 0 && (failing_file < 0 ? failing_call > 0 : status == MEMO_STATUS_IO),
                   "%s", error.message);
        if (!strstr(error.message, "set the states of all layers again")) continue;
        ++*n_doubtful; /* states lie on the host from two steps: no bytes are given out */
        if (strstr(error.message, "resident states are lost"))
            CHECK(transfer_states(s, t, 0, words));
    }
    t->desc.device = NULL;
    return fault;
}

/* An operation fails on its stream, and with it the device, or the file.  The next session ends
 * with the bits of a run without a fault. */
TEST(a_session_that_is_cut_late_resumes_with_the_same_bits) {
    static state_words expected, words;
    const int n = memo_test_cases(3, 20);
    int64_t n_failed[2] = {0, 0}, n_doubtful = 0;
    for (int64_t i = 0; i < n; i++) {
        const int of_file = i > 1;
        memo_status fault = MEMO_STATUS_OK;
        trainer t;
        own_step_plan* plan = plan_of_layers(&t, 3, (int32_t)(i % 3) | MEMO_MAY_NOT_PASS);
        while (of_file && !(plan->fits && plan->n_spilled)) {
            memo_step_plan_destroy(plan);
            plan = plan_of_layers(&t, 10, (int32_t)(i % 3) | MEMO_MAY_NOT_PASS);
            if (t.desc.update_on == MEMO_UPDATE_HOST) continue; /* nothing is spilled */
            t.desc.spill_directory = memo_test_folder();
            t.desc.host_bytes = plan->host_bytes * 3 / 4;
            memo_step_plan_destroy(plan);
            plan = step_plan_of(&t.desc, NULL);
        }
        const int64_t stride = memo_test_all() ? 3 : of_file ? 40 : 60;
        for (int64_t k = 0; k < 2 || fault; k += k ? memo_test_int(1, stride) : 1) {
            set_words(words, i);
            fault = train_with_a_cut(&t, plan, of_file ? 0 : k, of_file && k ? k - 1 : -1, words,
                                     &n_doubtful);
            if (k == 0) memcpy(expected, words, sizeof words);
            if (k == 0 && fault) return;
            CHECK_CASE(!memcmp(words, expected, sizeof words), "case %lld, call %lld", (long long)i,
                       (long long)k);
            n_failed[of_file] += fault != MEMO_STATUS_OK;
        }
    }
    printf("# %lld failed calls, %lld of a file, %lld in updates\n", (long long)n_failed[0],
           (long long)n_failed[1], (long long)n_doubtful);
    CHECK(n_failed[0] > 5 * n && (n < 4 || (n_failed[1] > n && n_doubtful > 4)));
}

/* --- fetched states --- */

/* What windows of FETCHED states take at most: those of two layers that follow each other. */
static int64_t bytes_of_windows(const trainer* t) {
    int64_t most = 0, before = 0;
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++) {
        int64_t n_bytes = 0, all = 0;
        for (int32_t s = 0; s < T_N_STATES; s++) {
            all += t_has(t, layer, s);
            if (t_has(t, layer, s) && t->states[s].uses & MEMO_STATE_FETCHED)
                n_bytes += (t->states[s].size_bytes + 4095) / 4096 * 4096;
        }
        if (!all) continue; /* nothing is streamed, so the places do not take turns */
        most = before + n_bytes > most ? before + n_bytes : most;
        before = n_bytes;
    }
    return most;
}

/* If all states are streamed, FETCHED ones take their windows of the host, and nothing else; with
 * the bytes of plain arrays in each moment, and any order. */
TEST(fetched_states_take_windows_alone) {
    const int n = memo_test_cases(24, 400);
    for (int i = 0; i < n; i++) {
        trainer t;
        int64_t own_bytes = 0;
        t_init_random(&t, ROWS);
        t.desc.n_layers = (int32_t)memo_test_int(2, 9);
        t_take_fetched(&t);
        if (i % 3 == 1) t_take_order(&t);
        t.desc.policy = MEMO_POLICY_RECOMPUTE;
        t.desc.update_may = (int32_t)memo_test_int(0, 2) | MEMO_MAY_NOT_PASS;
        t.desc.device_bytes = 1; /* all are streamed */
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        for (int32_t layer = -1; layer <= t.desc.n_layers; layer++)
            for (int32_t s = 0; s < T_N_STATES; s++)
                if (t_has(&t, layer, s) && !(t.states[s].uses & MEMO_STATE_FETCHED))
                    own_bytes += (t.states[s].size_bytes + 511) / 512 * 512;
        IN_CASE("case %d", i);
        CHECK_IS(bytes_of_owners(plan, 1, 0, MEMO_OWNER_PLACES), ==, own_bytes);
        CHECK_IS(plan->bytes[1][MEMO_OWNER_PLACES], <=, bytes_of_windows(&t) + 4095);
        CHECK_IS(plan->bytes[1][MEMO_OWNER_PLACES], >=, bytes_of_windows(&t));
        CHECK_IS(plan->disk_bytes, ==, 0);
        CHECK_IS(bytes_of_owners(plan, 0, 0, MEMO_OWNER_PLACES), ==, 0);

        fetched.kinds = 0;
        t.desc.device_bytes = plan->device_bytes;
        t.desc.host_bytes = plan->host_bytes;
        own_step_plan* tight = step_plan_of(&t.desc, NULL);
        CHECK(tight->fits);
        train_on(&t, tight, MEMO_ZERO(memo_host_device_desc), 0, i);
        for (int32_t layer = -1; layer <= t.desc.n_layers; layer++)
            if (t_has(&t, layer, S_FROZEN)) CHECK(fetched.kinds >> S_FROZEN & 1);
    }
}

/* Each call of fetch fails once, also those before the first step.  The error names layer and state;
 * a session behind it, which goes on from what was read last, ends with the same bits. */
TEST(a_fetch_that_fails_is_named) {
    static state_words expected, words;
    const int n = memo_test_cases(3, 20);
    int64_t n_failed = 0, n_at_open = 0;
    for (int64_t i = 0; i < n; i++) {
        trainer t;
        own_step_plan* plan = NULL;
        do {
            memo_step_plan_destroy(plan);
            plan = plan_of_layers(&t, 3, (int32_t)(i % 3) | MEMO_MAY_NOT_PASS);
        } while (!t.desc.fetch || t.desc.update_on == MEMO_UPDATE_HOST);
        if (i % 2) { /* some are resident */
            int64_t largest;
            t.desc.device_bytes += bytes_of_states(&t, &largest) / 2;
            memo_step_plan_destroy(plan);
            plan = step_plan_of(&t.desc, NULL);
        }
        memo_status status = MEMO_STATUS_OK;
        for (int64_t k = 0; k < 2 || status; k += k && !memo_test_all() ? memo_test_int(1, 9) : 1) {
            memo_status again = MEMO_STATUS_OK;
            int step = 0;
            set_words(words, i);
            status = MEMO_STATUS_OK;
            for (int run = 0; run < 2 && step < 3; run++) {
                char name[48];
                own_device* host = new_host(0);
                own_session* s = NULL;
                fetched.n_calls = 0;
                fetched.fails_at = run ? 0 : k;
                snprintf(name, sizeof name, "call %lld is lost", (long long)k);
                t.desc.device = host;
                again = memo_session_open(&t.desc, plan, &s, &error);
                n_at_open += again != MEMO_STATUS_OK;
                CHECK(!again == !!s);
                if (!again) again = train_to_the_end(s, &t, words, &step);
                if (!again) continue;
                status = again;
                CHECK_CASE(!run && k && status == MEMO_STATUS_IO && strstr(error.message, name) &&
                               strstr(error.message, "memo_session_desc.fetch: layer ") &&
                               strstr(error.message, ", state `"),
                           "call %lld: %s", (long long)k, error.message);
            }
            CHECK(!again);
            if (again) return;
            if (k == 0) memcpy(expected, words, sizeof words);
            CHECK_CASE(!memcmp(words, expected, sizeof words), "case %lld, call %lld", (long long)i,
                       (long long)k);
            n_failed += status != MEMO_STATUS_OK;
        }
        fetched.fails_at = 0;
        t.desc.device = NULL;
    }
    printf("# %lld failed, %lld at open\n", (long long)n_failed, (long long)n_at_open);
    CHECK(n_failed > 3 * n && n_at_open > 0);
}

/* Other bytes than before are an error of a checked session, from whatever call on. */
TEST(fetched_bytes_that_change_are_found) {
    int64_t n_found = 0, n_calls = 2;
    for (int64_t k = 0; k <= n_calls; k += k ? memo_test_int(1, 3) : 1) {
        own_device* device = new_host(0);
        memo_status status = MEMO_STATUS_OK;
        trainer t;
        t_init(&t, 5, 16, 0);
        f_map();
        t.states[S_FROZEN] = (memo_state){"frozen", 640, 3 | MEMO_STATE_FETCHED, 0};
        for (int32_t s = 0; s < T_N_STATES; s++) /* none */
            if (s != S_FROZEN) t.states[s] = (memo_state){"none", 0, MEMO_STATE_WEIGHTS, 0};
        t.desc.n_tensors = T_N_SHORT;
        t.desc.n_buffers = 0;
        t.desc.routed_rows_layer = t.desc.routed_rows_all = 0;
        t.desc.states = t.states, t.desc.n_states = T_N_STATES;
        t.desc.update = t_update, t.desc.fetch = t_fetch;
        t.desc.is_checked = 1;
        t.desc.policy = MEMO_POLICY_RECOMPUTE;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        CHECK_IS(plan->n_streamed, >, 0);
        t.desc.device = device;
        fetched.n_calls = 0;
        fetched.changes_at = k;
        own_session* s = session_of_plan(&t.desc, plan);
        for (int step = 0; step < 3 && !status && s; step++) {
            const memo_batch batch = {.values = &t.rate, .values_bytes = sizeof t.rate};
            status = memo_session_run(s, &batch, &error);
            if (!status) status = memo_session_update(s, &error);
        }
        if (!k) n_calls = fetched.n_calls;
        n_found += status != MEMO_STATUS_OK;
        CHECK_CASE(!status || (k && strstr(error.message, ", state `frozen`, ") &&
                               strstr(error.message, "desc.fetch must give the same bytes")),
                   "from call %lld on: %s", (long long)k, error.message);
        CHECK(status || k <= 1 || k > n_calls - 2); /* always another; the last loads are ahead */
        fetched.changes_at = 0;
    }
    CHECK_IS(n_found, >, 4);
}

/* Pieces of a large state come from several threads, and make up the state. */
enum { LARGE_BYTES = 40 << 20, LARGE_ODD = 5 };
static int64_t large_pieces, large_bytes;

static memo_status fetch_large(void* user, int32_t layer, int32_t state, int64_t at, void* to,
                               int64_t n_bytes, memo_error* e) {
    (void)user, (void)state, (void)e;
    __atomic_add_fetch(&large_pieces, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&large_bytes, n_bytes, __ATOMIC_RELAXED);
    for (int64_t k = 0; k < n_bytes; k++) ((char*)to)[k] = (char)(((at + k) >> 12) + layer);
    return MEMO_STATUS_OK;
}
static void forward_large(void* user, memo_session* s, int32_t layer) {
    const char* w = (const char*)memo_session_get_state(s, layer, 0);
    for (int64_t k = 0; k < LARGE_BYTES - LARGE_ODD && w; k += 1021)
        *(int64_t*)user += w[k] != (char)((k >> 12) + layer);
}
static void backward_large(void* user, memo_session* s, int32_t layer) {
    forward_large(user, s, layer);
}
static void update_nothing(void* user, memo_session* s, int32_t layer) {
    (void)user, (void)s, (void)layer;
}

TEST(large_states_are_fetched_in_pieces) {
    static const memo_item tensors[] = {MEMO_ITEM("x", 64, MEMO_MOVE)};
    const memo_state states[] = {{"large", LARGE_BYTES - LARGE_ODD, 3 | MEMO_STATE_FETCHED, 0}};
    for (int is_tight = 0; is_tight < 2; is_tight++) {
        int64_t n_wrong = 0;
        char bytes[4];
        own_device* device = new_host(0);
        own_session* s = NULL;
        memo_session_desc d = MEMO_ZERO(memo_session_desc);
        d.device = device, d.computes_on_host = 1;
        d.user = &n_wrong;
        d.tensors = tensors, d.n_tensors = 1, d.n_layers = 4, d.n_rows = 8;
        d.states = states, d.n_states = 1;
        d.forward = forward_large, d.backward = backward_large, d.update = update_nothing;
        d.fetch = fetch_large;
        d.timed_steps = -1;
        if (is_tight) CHECK_OK(memo_session_get_least(&d, &d.device_bytes, &error));
        large_pieces = large_bytes = 0;
        CHECK_OK(memo_session_create(&d, &s, &error));
        CHECK_IS(large_bytes, ==, is_tight ? 0 : 4 * states[0].size_bytes);
        CHECK_OK(memo_session_run(s, NULL, &error));
        CHECK_OK(memo_session_update(s, &error));
        CHECK_OK(memo_session_read_state(s, 2, 0, LARGE_BYTES - LARGE_ODD - 3, bytes, 3, &error));
        CHECK(bytes[2] == (char)(((LARGE_BYTES - LARGE_ODD - 1) >> 12) + 2));
        CHECK_IS(n_wrong, ==, 0);
        if (is_tight) CHECK_IS(large_pieces, >=, 3 * (4 + 2)); /* loads, of which some stay */
        if (!is_tight) CHECK_IS(large_bytes, ==, 4 * states[0].size_bytes); /* never again */
    }
}

static void update_stops(void* user, memo_session* s, int32_t layer) {
    t_update(user, s, layer);
    if (layer == 1) memo_session_fail(s, MEMO_STATUS_DEVICE, "stopped");
}

/* An update changes some layers: then all states must be written, but not FETCHED ones. */
TEST(fetched_states_are_never_lost) {
    static state_words words;
    trainer t;
    own_device* device = new_host(0);
    own_session* s = NULL;
    do t_init_random(&t, ROWS);
    while (t.desc.n_layers < 4 || t.desc.update_on == MEMO_UPDATE_HOST);
    t_take_fetched(&t);
    memset(t.kinds, 0, sizeof t.kinds);
    t.desc.update_may = 0;
    t.desc.update = update_stops;
    t.desc.timed_steps = -1;
    t.desc.device = device;
    CHECK_OK(memo_session_create(&t.desc, &s, &error));
    CHECK_ERROR(step_of_session(&t, s), DEVICE, "set the states of all layers again");
    CHECK_ERROR(memo_session_read_state(s, 0, S_FROZEN, 0, words, 1, &error), INVALID_STATE,
                "the update has changed");
    CHECK_OK(transfer_states(s, &t, 1, words));
    CHECK_OK(memo_session_read_state(s, 0, S_FROZEN, 0, words, 1, &error));
    CHECK(!memcmp(words, fetched.bytes + f_offset(0, S_FROZEN), 1));
}

TEST(misused_fetched_states_are_errors) {
    uint64_t words[4] = {0};
    trainer t;
    own_device* device = new_host(0);
    own_session* s = NULL;
    own_step_plan* bad = NULL;
    do t_init_random(&t, ROWS);
    while (t.desc.n_layers < 4 || t.desc.update_on == MEMO_UPDATE_HOST);
    t.kinds[0] = 0;
    t_take_fetched(&t);
    static const uint32_t wrong_uses[] = {0, MEMO_STATE_WEIGHTS, MEMO_STATE_GRADIENT,
                                          MEMO_STATE_UPDATE, 3 | MEMO_STATE_MADE};
    for (size_t k = 0; k < sizeof wrong_uses / sizeof *wrong_uses; k++)
        WITH(t.states[S_FROZEN].uses, wrong_uses[k] | MEMO_STATE_FETCHED,
             CHECK_ERROR(memo_session_plan(&t.desc, NULL, &bad, &error), INVALID_ARGUMENT,
                         "without it also _FETCHED"));

    /* A plan needs no function, a session does. */
    t.desc.policy = MEMO_POLICY_RECOMPUTE;
    CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
    t.desc.fetch = NULL;
    own_step_plan* plan = step_plan_of(&t.desc, NULL);
    t.desc.device = device;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &s, &error), INVALID_ARGUMENT,
                "memo_session_desc.fetch: NULL, but a state is MEMO_STATE_FETCHED");
    t.desc.fetch = t_fetch;
    memo_device table = *device;
    table.launch_host = NULL;
    t.desc.device = &table;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &s, &error), UNSUPPORTED,
                "no launch_host, which MEMO_STATE_FETCHED needs");
    t.desc.device = device;

    /* Its bytes are the caller's. */
    CHECK_OK(memo_session_open(&t.desc, plan, &s, &error));
    CHECK_ERROR(memo_session_write_state(s, 0, S_FROZEN, 0, words, 8, &error), INVALID_ARGUMENT,
                "write_state: state 3 is FETCHED");
    CHECK_OK(step_of_session(&t, s));
    CHECK_OK(memo_session_fill_states(s, update_nothing, &error));
    CHECK_OK(memo_session_verify(&t.desc, NULL, &error));
}

/* A session that times itself times fetch, too. */
TEST(fetch_is_timed) {
    own_device* device = new_host(0);
    memo_profile profiles[2];
    trainer t;
    do t_init_random(&t, ROWS);
    while (t.desc.n_shapes > 1);
    t.desc.device = device;
    CHECK_OK(session_times(&t.desc, profiles, &error));
    CHECK(profiles[0].fetch_s_per_byte == 0);
    t_take_fetched(&t);
    CHECK_OK(session_times(&t.desc, profiles, &error));
    CHECK(profiles[0].fetch_s_per_byte > 0);
}

/* --- checked sessions --- */

static memo_status fill_nothing(MEMO_UNUSED void* context, MEMO_UNUSED memo_stream stream,
                                MEMO_UNUSED void* address, MEMO_UNUSED int32_t value,
                                MEMO_UNUSED int64_t n_bytes, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}

/* Correct trainers pass; each mistake is an error that names layer and state. */
static uint64_t* kept_words; /* of layer 1, from its forward */
static void (*kept_forward)(void* user, memo_session* s, int32_t layer);
static void forward_keeps(void* user, memo_session* s, int32_t layer) {
    if (layer == 1) kept_words = (uint64_t*)memo_session_get_state(s, layer, S_WEIGHTS);
    kept_forward(user, s, layer);
}

TEST(checked_sessions_find_planted_mistakes) {
    enum { CLOSED = 4 /* written to between two micro-batches */, UNFILLED /* not zeroed */, N };
    static const struct {
        enum t_mistake mistake;
        const char* message;
    } cases[N] = {{T_RIGHT, ""},
                  {T_FORWARD_WRITES, "layer 0, state `weights`, forward: the pass wrote to it"},
                  {T_BACKWARD_WRITES, "state `frozen`, backward: the pass wrote to it"},
                  {T_UPDATE_MISSES, "layer 1, state `weights`, update: not changed"},
                  {T_RIGHT, "something has written to where it lay in an earlier visit"},
                  {T_RIGHT, "gradients`, backward: not zero when the first backward"}};
    for (int64_t i = 0; i < memo_test_cases(12, 200); i++) {
        const int k = (int)(i % N), is_tight = k && i % 2;
        own_device* device = new_host(0);
        memo_device unfilled = *device;
        memo_status status = MEMO_STATUS_OK;
        trainer t;
        do /* a write between two slices, or in a group, is found as another one's recomputation */
            t_init_random(&t, ROWS);
        while (cases[k].mistake == T_BACKWARD_WRITES && (t.desc.slice_rows || t.desc.n_group > 1));
        t.desc.n_layers = 3;
        if (k == CLOSED) t.desc.update_on = MEMO_UPDATE_DEVICE; /* resident */
        if (k == CLOSED) /* an update that makes them anew makes good what was written */
            t.states[S_WEIGHTS].uses &= ~(uint32_t)MEMO_STATE_MADE;
        if (cases[k].mistake == T_UPDATE_MISSES)
            t.states[S_MOMENTS].uses &= ~(uint32_t)MEMO_STATE_MADE; /* they show that it ran */
        if (k) {
            for (int state = 0; state < T_N_STATES; state++) t.states[state].size_bytes = 512;
            memset(t.kinds, 0, sizeof t.kinds);
        }
        t.mistake = cases[k].mistake;
        kept_forward = t.desc.forward;
        t.desc.forward = forward_keeps;
        t.desc.is_checked = 1;
        t.desc.computes_on_host = k != UNFILLED;
        unfilled.fill = fill_nothing;
        t.desc.device = k == UNFILLED ? &unfilled : device;
        if (!t.desc.computes_on_host) /* computed at once: an idle stream has nothing to order */
            t.desc.compute_stream = new_stream(device, "compute");
        t.desc.device_bytes = least_of_session(&t.desc);
        if (!is_tight) t.desc.device_bytes += 1 << 20;
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        own_session* s = session_of_plan(&t.desc, plan);
        for (int step = 0; step < 3 && !status; step++) {
            if (step == 1 && k == CLOSED && !is_tight) kept_words[3]++;
            status = step_of_session(&t, s);
        }
        if (!k || (k == CLOSED && is_tight))
            CHECK_CASE(!status, "case %lld: %s", (long long)i, error.message);
        else
            CHECK_CASE(
                status == MEMO_STATUS_INVALID_ARGUMENT && strstr(error.message, cases[k].message),
                "case %lld, mistake %d: %s", (long long)i, k, status ? error.message : "not found");
        memo_session_destroy(s);
        s = NULL;
        if (t.desc.compute_stream) memo_stream_destroy(device, t.desc.compute_stream, NULL);
    }
}

/* --- ranks --- */

static trainer rank_trainers[2];
static const thread_rank* rank_threads[2];
static memo_error rank_errors[2];

static memo_status agree_as_ranks(void* user, int64_t* values, int64_t n, memo_error* e) {
    const thread_rank* rank = rank_threads[user == &rank_trainers[1]];
    memo_status status = memo_all_reduce(rank->comm, rank->stream, values, values, n, MEMO_TYPE_I64,
                                         MEMO_REDUCTION_MAX, e);
    return status ? status : memo_stream_synchronize(rank->device, rank->stream, e);
}

static memo_status plan_as_rank(thread_rank* rank, MEMO_UNUSED memo_error* e) {
    const int i = rank->comm->rank;
    own_step_plan* plan = NULL;
    rank_threads[i] = rank;
    memset(&rank_errors[i], 0, sizeof rank_errors[i]);
    IGNORE(memo_session_plan(&rank_trainers[i].desc, NULL, &plan, &rank_errors[i]));
    return MEMO_STATUS_OK;
}

/* Sizes, uses, kinds or a fused update of one rank alone are an error on all ranks. */
TEST(ranks_with_other_states_are_an_error) {
    memo_host_device_desc device_desc = {0};
    memo_comm_threads_desc comm_desc = {.timeout_s = 300};
    for (int round = 0; round < 5; round++) {
        const uint64_t seed = memo_test_random();
        for (int i = 0; i < 2; i++) {
            memo_test.state = seed;
            t_init_random(&rank_trainers[i], ROWS);
            rank_trainers[i].desc.agree = agree_as_ranks;
        }
        memo_state* weights = &rank_trainers[1].states[S_WEIGHTS];
        if (round == 1) weights->size_bytes++;
        if (round == 2) weights->uses = MEMO_STATE_FORWARD;
        if (round == 3) weights->kinds ^= 2;
        if (round == 4) rank_trainers[1].desc.update_may ^= 1;
        CHECK_OK(thread_ranks_run_on(&device_desc, &comm_desc, 2, plan_as_rank, NULL, &error));
        for (int i = 0; i < 2; i++)
            CHECK_CASE(round ? strstr(rank_errors[i].message, round == 4
                                                                  ? "update_may: not the same"
                                                                  : "states: not the same") != NULL
                             : !rank_errors[i].status,
                       "round %d, rank %d: %s", round, i, rank_errors[i].message);
    }
}

static state_words rank_words[2];
static memo_status rank_statuses[2];

static memo_status train_as_rank(thread_rank* rank, MEMO_UNUSED memo_error* e) {
    const int i = rank->comm->rank;
    trainer* t = &rank_trainers[i];
    memo_session* s = NULL;
    rank_threads[i] = rank;
    t->desc.device = rank->device;
    rank_statuses[i] = memo_session_create(&t->desc, &s, &rank_errors[i]);
    for (int step = 0; step < 3 && s && !rank_statuses[i]; step++)
        rank_statuses[i] = step_of_session(t, s);
    if (s && !rank_statuses[i]) rank_statuses[i] = transfer_states(s, t, 0, rank_words[i]);
    memo_session_destroy(s);
    return MEMO_STATUS_OK;
}

/* Two ranks fetch from one mapped file.  If fetch of one fails when the session opens, neither
 * opens. */
TEST(ranks_share_what_they_fetch) {
    memo_host_device_desc device_desc = {0};
    memo_comm_threads_desc comm_desc = {.timeout_s = 300};
    for (int round = 0; round < 6; round++) {
        const int fails = round % 3;
        const uint64_t seed = memo_test_random();
        for (int i = 0; i < 2; i++) {
            trainer* t = &rank_trainers[i];
            memo_test.state = seed;
            do t_init_random(t, ROWS);
            while (t->desc.n_layers < 4);
            memset(t->kinds, 0, sizeof t->kinds);
            t_take_fetched(t);
            t->desc.policy = MEMO_POLICY_RECOMPUTE;
            t->desc.update_on = MEMO_UPDATE_DEVICE;
            t->desc.agree = NULL;
            CHECK_OK(memo_session_get_least(&t->desc, &t->desc.device_bytes, &error));
            if (fails) t->desc.device_bytes = 0; /* resident, so fetched when the session opens */
            t->desc.agree = agree_as_ranks;
        }
        memset(rank_words, 0, sizeof rank_words);
        memset(rank_errors, 0, sizeof rank_errors);
        fetched.n_calls = 0;
        fetched.fails_at = fails;
        CHECK_OK(thread_ranks_run_on(&device_desc, &comm_desc, 2, train_as_rank, NULL, &error));
        fetched.fails_at = 0;
        for (int i = 0; i < 2; i++) {
            IN_CASE("round %d, rank %d: %s", round, i, rank_errors[i].message);
            CHECK(!rank_statuses[i] == !fails);
            CHECK(!fails || strstr(rank_errors[i].message, "desc.fetch: layer ") ||
                  strstr(rank_errors[1 - i].message, "desc.fetch: layer "));
            rank_trainers[i].desc.device = NULL;
        }
        CHECK(!memcmp(rank_words[0], rank_words[1], sizeof rank_words[0]));
    }
}

/* --- large models, without a device --- */

/* A model as Llama's: bf16 weights, fp32 gradients and master weights, bf16 moments; 14 bytes of
 * states a parameter.  Kernels reach half of the device's peak, copies the link's rate. */
typedef struct large_model {
    const char* name;
    int64_t n_layers, width, inner, kv_width, heads, vocabulary;
    int64_t n_rows, slice_rows, device_gib, host_gib;
    double peak_flops, link_bytes_per_s, memory_bytes_per_s;
} large_model;

enum {
    L_X,
    L_INPUT,
    L_NORM1,
    L_Q,
    L_K,
    L_V,
    L_ATTENTION,
    L_LSE,
    L_MIDDLE,
    L_NORM2,
    L_GATE,
    L_UP,
    L_ACTIVATION,
    N_LARGE
};

static int64_t parameters_of(const large_model* m, int32_t layer) {
    if (layer < 0) return m->vocabulary * m->width;
    if (layer == m->n_layers) return m->vocabulary * m->width + m->width;
    return m->width * (2 * m->width + 2 * m->kv_width + 3 * m->inner + 2);
}

static void large_tensors(const large_model* m, memo_item* tensors, memo_profile* p) {
    const int64_t h = 2 * m->width, f = 2 * m->inner, kv = 2 * m->kv_width;
    const memo_item table[N_LARGE] = {
        MEMO_ITEM("x", h, MEMO_MOVE, MEMO_EDGE),   MEMO_ITEM("input", h, MEMO_MOVE, MEMO_INPUT),
        MEMO_ITEM("norm1", h, MEMO_ROWS),          MEMO_ITEM("q", h, MEMO_ROWS),
        MEMO_ITEM("k", kv, MEMO_MOVE, MEMO_LAYER), MEMO_ITEM("v", kv, MEMO_MOVE, MEMO_LAYER),
        MEMO_ITEM("attention", h, MEMO_WHOLE),     MEMO_ITEM("lse", 4 * m->heads, MEMO_WITH),
        MEMO_ITEM("middle", h, MEMO_ROWS),         MEMO_ITEM("norm2", h, MEMO_ROWS),
        MEMO_ITEM("gate", f, MEMO_ROWS),           MEMO_ITEM("up", f, MEMO_ROWS),
        MEMO_ITEM("activation", f, MEMO_ROWS)};
    const double rate = 0.5 * m->peak_flops, bytes = 0.8 * m->memory_bytes_per_s;
    const double w = (double)m->width, inner = (double)m->inner, n = (double)m->n_rows;
    const double attention_s = 2 * w * n / rate; /* causal, of a row in the middle */
    const double row_s[N_LARGE] = {
        [L_NORM1] = 2 * (double)h / bytes, [L_Q] = 2 * w * w / rate,
        [L_ATTENTION] = attention_s,       [L_MIDDLE] = 2 * w * w / rate,
        [L_NORM2] = 2 * (double)h / bytes, [L_GATE] = 2 * w * inner / rate,
        [L_UP] = 2 * w * inner / rate,     [L_ACTIVATION] = 3 * (double)f / bytes};
    const double products_s = 2 * (double)parameters_of(m, 0) / rate;
    const double rows = (double)m->slice_rows;
    memcpy(tensors, table, sizeof table);
    memset(p, 0, sizeof *p);
    p->n_rows = m->slice_rows;
    p->n_kinds = 1;
    p->n_tensors = N_LARGE;
    p->forward_s[0] = rows * (products_s + attention_s);
    p->backward_s[0] = rows * (2 * products_s + 2.5 * attention_s);
    p->forward_growth_s[0] = rows * attention_s;
    p->backward_growth_s[0] = rows * 2.5 * attention_s;
    p->between_s = 3 * n * 2 * (double)parameters_of(m, -1) / rate;
    p->update_s_per_byte = 2 / bytes;
    for (int t = 0; t < N_LARGE; t++) {
        snprintf(p->tensors[t].name, sizeof p->tensors[t].name, "%s", table[t].name);
        p->tensors[t].recompute_s_per_row[0] = item_recomputes(table, t) ? row_s[t] : -1;
        p->tensors[t].recompute_growth_s_per_row[0] = t == L_ATTENTION ? attention_s : 0;
    }
    for (int k = 0; k < 2; k++) {
        p->copies[k].size_bytes = k ? 1 << 30 : 32768;
        p->copies[k].out_s = p->copies[k].back_s =
            10e-6 + (double)p->copies[k].size_bytes / m->link_bytes_per_s;
    }
}

/* The states' bytes on the device (resident, and the most of two layers in turn) and on the host, by
 * an own sum over what the plan streams. */
static void sum_states(const large_model* m, const memo_state* states, int n_states,
                       int64_t n_streamed, int64_t* device_bytes, int64_t* host_bytes) {
    const int64_t n = m->n_layers + 2;
    int64_t latest = 0, both_places = 0;
    *device_bytes = *host_bytes = 0;
    for (int64_t layer = 0; layer < n; layer++) {
        int64_t in_place = 0;
        for (int i = 0; i < n_states; i++) { /* the table is in the order of streaming */
            int64_t before = 0;
            for (int k = 0; k < i; k++) before += n;
            int64_t count = n_streamed - before < 0   ? 0
                            : n_streamed - before > n ? n
                                                      : n_streamed - before;
            const int has = layer == 0       ? states[i].kinds == MEMO_STATE_FIRST
                            : layer == n - 1 ? states[i].kinds == MEMO_STATE_LAST
                                             : !states[i].kinds;
            if (!has) continue;
            const int64_t bytes = (states[i].size_bytes + 511) / 512 * 512;
            if ((layer + 1) * count / n > layer * count / n)
                in_place += bytes;
            else
                *device_bytes += bytes;
        }
        *host_bytes += in_place;
        if (!in_place) continue;
        if (latest + in_place > both_places) both_places = latest + in_place;
        latest = in_place;
    }
    *device_bytes += both_places;
}

/* The bytes of rows on the host and on the device.  What no later step, or layer, takes the place of
 * stays. */
static void sum_rows(const large_model* m, const memo_step_plan* plan, int64_t* host_bytes,
                     int64_t* device_bytes) {
    const int64_t n_slices = m->n_rows / m->slice_rows, n_steps = m->n_layers * n_slices;
    *host_bytes = *device_bytes = 0;
    for (int t = 0; t < N_LARGE; t++) {
        const memo_item* tensor = &plan->swap.tensors[t];
        const int is_layer = tensor->scope == MEMO_LAYER;
        int64_t most[2] = {0, 0}, recomputed = 0, n_kept = 0;
        for (int64_t step = n_steps - 1; step >= 0; step--) {
            const int64_t rows = plan->swap.rows[step * N_LARGE + t], layer = step / n_slices;
            int64_t* part = &most[(is_layer ? layer : step) % 2];
            n_kept += rows < 0;
            if (rows < 0) continue;
            if (is_layer ? layer < m->n_layers - 2 : *part > 0)
                *host_bytes += rows * tensor->row_bytes;
            if (rows > *part) *part = rows;
            if (m->slice_rows - rows > recomputed) recomputed = m->slice_rows - rows;
        }
        if (tensor->scope == MEMO_EDGE) {
            *host_bytes += m->n_rows * tensor->row_bytes;
            most[0] = most[1] = m->slice_rows;
            n_kept = 0;
        }
        *device_bytes += tensor->row_bytes * ((most[0] + most[1]) * (is_layer ? n_slices : 1) +
                                              recomputed + n_kept * m->slice_rows);
    }
}

static void no_update(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                      MEMO_UNUSED int32_t layer) {}

TEST(large_models) {
    static const large_model models[] = {{"8B at 128K, 24 GB card, PCIe 4", 32, 4096, 14336, 1024,
                                          32, 128256, 131072, 4096, 22, 256, 165e12, 25e9, 1.0e12},
                                         {"70B at 64K, H200", 80, 8192, 28672, 1024, 64, 128256,
                                          65536, 8192, 135, 1536, 989e12, 50e9, 4.8e12},
                                         {"8B at 1M, H200", 32, 4096, 14336, 1024, 32, 128256,
                                          1 << 20, 32768, 135, 1024, 989e12, 50e9, 4.8e12},
                                         {"8B at 4M, H200", 32, 4096, 14336, 1024, 32, 128256,
                                          1 << 22, 131072, 135, 4096, 989e12, 50e9, 4.8e12}};
    for (int i = 0; i < (memo_test_all() ? 4 : 1); i++) {
        large_model model = models[i];
        const large_model* m = &model;
#if defined(MEMO_TEST_TSAN)
        model.n_layers /= 8; /* one thread plans; all layers take minutes */
#else
        if (!memo_test_all()) model.n_layers /= 4; /* seconds */
#endif
        memo_item tensors[N_LARGE];
        memo_profile profile;
        memo_state states[12];
        int n_states = 0;
        for (int use = 0; use < 3; use++) /* in the order in which they are streamed */
            for (int part = 0; part < 3; part++) {
                static const uint32_t uses[] = {MEMO_STATE_UPDATE, MEMO_STATE_GRADIENT,
                                                MEMO_STATE_WEIGHTS};
                static const int64_t bytes[] = {4 + 2 + 2, 4, 2};
                static const uint32_t kinds[] = {0, MEMO_STATE_FIRST, MEMO_STATE_LAST};
                const int32_t layer = part == 0 ? 0 : part == 1 ? -1 : (int32_t)m->n_layers;
                memo_state* state = &states[n_states++];
                state->name = "state";
                state->size_bytes = bytes[use] * parameters_of(m, layer);
                state->uses = uses[use];
                state->kinds = kinds[part];
            }
        const memo_session_buffer buffers[] = {
            {"gradients of keys and values", 0, 8 * m->kv_width, MEMO_PASS_BACKWARD,
             MEMO_EACH_LAYER, MEMO_PASS_BACKWARD, 0, 0},
            {"backward", 0, 2 * (2 * m->inner + 3 * m->width), MEMO_PASS_BACKWARD, MEMO_EACH_SLICE,
             MEMO_PASS_BACKWARD, 0, 0},
            {"logits", 256 << 20, 0, MEMO_PASS_BETWEEN, 0, MEMO_PASS_BETWEEN, 0, 0}};
        large_tensors(m, tensors, &profile);
        memo_session_desc d = {.tensors = tensors,
                               .n_tensors = N_LARGE,
                               .n_layers = (int32_t)m->n_layers,
                               .n_rows = m->n_rows,
                               .tile_rows = 1024,
                               .slice_rows = m->slice_rows,
                               .states = states,
                               .n_states = n_states,
                               .update = no_update,
                               .update_may = MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS,
                               .buffers = buffers,
                               .n_buffers = 3,
                               .device_bytes = m->device_gib << 30,
                               .host_bytes = m->host_gib << 30};
        own_step_plan* plan = step_plan_of(&d, &profile);
        if (!plan) continue;
        CHECK_CASE(plan->fits, "%s: %s", m->name, plan->shortage);

        /* Every byte. */
        int64_t state_bytes, host_bytes, moved_bytes, place_bytes;
        sum_states(m, states, n_states, plan->n_streamed, &state_bytes, &host_bytes);
        sum_rows(m, plan, &moved_bytes, &place_bytes);
        CHECK_IS(plan->sizes.device_bytes, ==, place_bytes);
        CHECK_IS(plan->sizes.host_bytes, ==, moved_bytes);
        CHECK_IS(planned_states(plan, 0), ==, state_bytes);
        CHECK_IS(plan->device_bytes, <=, d.device_bytes);
        CHECK_IS(plan->host_bytes, <=, d.host_bytes);
        CHECK_IS(plan->host_bytes - (plan->sizes.host_bytes + 511) / 512 * 512, ==, host_bytes);

        const double step_s = plan->times->step_s;
        double flops = 0;
        for (int32_t layer = -1; layer < m->n_layers; layer++)
            flops +=
                6.0 * (double)m->n_rows * (double)parameters_of(m, layer) +
                (layer < 0 ? 0 : 6.0 * (double)m->n_rows * (double)m->n_rows * (double)m->width);
        printf("# %s: device %.1f GiB (states %.1f), host %.1f GiB (states %.1f), %lld of %d "
               "streamed; "
               "step %.0f s, MFU %.1f %%, stalled %.1f %%, recomputed %.1f %%; %s\n",
               m->name, (double)plan->device_bytes / 1073741824.0,
               (double)state_bytes / 1073741824.0, (double)plan->host_bytes / 1073741824.0,
               (double)host_bytes / 1073741824.0, (long long)plan->n_streamed,
               n_states * (int)(m->n_layers + 2), step_s, 100 * flops / step_s / m->peak_flops,
               100 * plan->times->stall_s / step_s, 100 * plan->times->recompute_s / step_s,
               plan->times->reason);
    }
}

/* --- misuse --- */

TEST(bad_states_are_refused) {
    own_device* host = new_host(0);
    memo_device table = *host;
    own_session* s = NULL;
    own_step_plan* bad = NULL;
    trainer t;
    do t_init_random(&t, ROWS);
    while (t.desc.update_on != MEMO_UPDATE_HOST);
    WITH(t.states[0].uses, MEMO_STATE_GRADIENT | MEMO_STATE_FORWARD,
         CHECK_ERROR(memo_session_plan(&t.desc, NULL, &bad, &error), INVALID_ARGUMENT,
                     "states[0].uses: 9"));
    WITH(t.states[0].size_bytes, -8,
         CHECK_ERROR(memo_session_plan(&t.desc, NULL, &bad, &error), INVALID_ARGUMENT,
                     "states[0].size_bytes: -8"));
    WITH(t.states[0].kinds, MEMO_STATE_FIRST | MEMO_STATE_LAST | 1,
         CHECK_ERROR(memo_session_plan(&t.desc, NULL, &bad, &error), INVALID_ARGUMENT,
                     "states[0].kinds: FIRST and LAST, which would be two states"));
    WITH(t.states[0].size_bytes, (int64_t)1 << 61,
         CHECK_ERROR(memo_session_plan(&t.desc, NULL, &bad, &error), INVALID_ARGUMENT,
                     "states[0].size_bytes"));

    /* Updates on the host need host functions, and all of their states there. */
    own_step_plan* plan = step_plan_of(&t.desc, NULL);
    table.launch_host = NULL;
    t.desc.device = &table;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &s, &error), UNSUPPORTED,
                "no launch_host, which update_host needs");
    plan->n_streamed = 0;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &s, &error), INVALID_ARGUMENT,
                "has states for the update that are not streamed");
}

/* Takes the rows of a layer that has ended.  A plan has overwritten them: layers l and l + 2 share
 * a buffer.  Layer l + 1 lies where the copy of layer l - 1 may still be under way. */
static void backward_behind(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    uint64_t* gradients = (uint64_t*)memo_session_get_state(s, layer, S_GRADIENTS);
    t_backward(user, s, layer);
    if (layer + 2 < t->desc.n_layers)
        gradients[0] += *(uint64_t*)memo_session_get_address(s, layer + 2, T_INPUT);
}

TEST(gradients_of_states_are_verified) {
    own_device* device = new_host(0);
    trainer t;
    for (int round = 0; round < memo_test_cases(4, 10); round++) {
        do t_init_random(&t, ROWS);
        while (t.desc.n_layers < 6 || t.desc.slice_rows);
        t.desc.device = device;
        CHECK_OK(memo_session_verify(&t.desc, NULL, &error));
        t.desc.backward = backward_behind;
        CHECK_ERROR(memo_session_verify(&t.desc, NULL, &error), INVALID_ARGUMENT,
                    "memo_session_verify: output `gradients`, layer ");
        t.desc.backward = t_backward;
        t_take_order(&t);
        CHECK_OK(memo_session_verify(&t.desc, NULL, &error));
    }
}

TEST(misused_states_of_a_session_are_errors) {
    own_device* device = new_host(0);
    own_session* s = NULL;
    trainer t;
    uint64_t words[T_STATE_WORDS_MAX];
    do t_init_random(&t, ROWS);
    while (t.desc.update_may != MEMO_MAY_NOT_PASS || t.desc.update_on == MEMO_UPDATE_HOST ||
           t.desc.n_layers < 2);
    t.desc.device = device;
    memo_session_desc bad = t.desc;
    bad.update = NULL;
    CHECK_ERROR(memo_session_create(&bad, &s, &error), INVALID_ARGUMENT, "update: NULL");
    for (int k = 0; k < 2; k++) {
        t.kinds[0] = k ? -1 : 30;
        CHECK_ERROR(memo_session_create(&t.desc, &s, &error), INVALID_ARGUMENT,
                    "with states 0 to 29");
    }
    t.kinds[0] = 0;

    CHECK_OK(memo_session_create(&t.desc, &s, &error));
    CHECK_ERROR(memo_session_update(s, &error), INVALID_STATE, "no step of states is over");
    for (int is_end = 0; is_end < 2; is_end++) {
        const memo_batch look = {.is_forward_only = 1};
        (void)memo_session_begin(s, &look); /* without layers it leaves nothing open */
        CHECK_OK(memo_session_end(s, &error));
        (void)memo_session_begin(s, NULL);
        if (is_end)
            memo_session_forward_end(s, 0);
        else
            (void)memo_session_forward_begin(s, 1);
        CHECK_ERROR(memo_session_end(s, &error), INVALID_STATE, "out of order; ");
    }
    CHECK_OK(memo_session_run(s, NULL, &error));
    const memo_batch more = {.more_follow = 1};
    CHECK_ERROR(memo_session_run(s, &more, &error), INVALID_STATE,
                "memo_session_update comes next");
    t.n_updates = 0;
    CHECK_OK(memo_session_update(s, &error));
    CHECK_IS(t.n_updates, ==, t.desc.n_layers + 2);
    CHECK_ERROR(memo_session_read_state(s, t.desc.n_layers + 1, 0, 0, words, 8, &error),
                INVALID_ARGUMENT, "layer");
    CHECK_ERROR(memo_session_write_state(s, 0, 0, t.states[0].size_bytes - 7, words, 8, &error),
                INVALID_ARGUMENT, "offset_bytes: 8 bytes from byte");
    CHECK_ERROR(memo_session_write_state(s, 0, 1, 0, words, 8, &error), INVALID_ARGUMENT,
                "state 1 is a gradient");
    (void)memo_session_begin(s, NULL);
    CHECK_ERROR(memo_session_write_state(s, 0, 0, 0, words, 8, &error), INVALID_STATE,
                "between micro-batches");
    IGNORE(memo_session_end(s, &error));

    /* Micro-batches of an order are in flight. */
    own_session* in_flight = NULL;
    do t_take_order(&t);
    while (t.desc.n_order < 4);
    CHECK_OK(memo_session_create(&t.desc, &in_flight, &error));
    const memo_batch first = {.turn = t.order[0]}, second = {.turn = t.order[1], .more_follow = 1};
    CHECK_OK(memo_session_run(in_flight, &first, &error));
    CHECK_ERROR(memo_session_run(in_flight, &second, &error), INVALID_STATE,
                "more_follow must be that of the first turn; the next turn is order[1]");
    CHECK_ERROR(memo_session_update(in_flight, &error), INVALID_STATE,
                "micro-batches are in flight; run the turns that are left");
    CHECK_ERROR(memo_session_skip_update(in_flight, &error), INVALID_STATE, "are in flight");
    CHECK_ERROR(memo_session_flush(in_flight, &error), INVALID_STATE, "are in flight");
    CHECK_ERROR(memo_session_fill_states(in_flight, t_update, &error), INVALID_STATE,
                "are in flight");
    CHECK_ERROR(memo_session_read_state(in_flight, 0, 0, 0, words, 8, &error), INVALID_STATE,
                "while none is in flight");
    for (int32_t k = 1; k < t.desc.n_order; k++) { /* nothing is lost */
        const memo_batch batch = {.turn = t.order[k]};
        CHECK_OK(memo_session_run(in_flight, &batch, &error));
    }
    CHECK_ERROR(memo_session_run(in_flight, &first, &error), INVALID_STATE,
                "memo_session_update comes next");
    CHECK_OK(memo_session_update(in_flight, &error));
    t.desc.n_order = 0, t.desc.order = NULL;

    /* A plan for other states. */
    own_session* other = NULL;
    t.desc.device = NULL;
    own_step_plan* plan = step_plan_of(&t.desc, NULL);
    t.states[S_WEIGHTS].size_bytes += 4096;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &other, &error), INVALID_ARGUMENT,
                "made for other states");
}

/* Writes the first values of what the update uses. */
static void fill_words(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    t->n_updates++;
    for (int32_t state = 0; state < T_N_STATES; state++) {
        if (!(t->states[state].uses & MEMO_STATE_UPDATE)) continue; /* it is not there */
        uint64_t* words = (uint64_t*)memo_session_get_state(s, layer, state);
        for (int64_t i = 0; words && i < t->states[state].size_bytes / 8; i++)
            words[i] = t_mix((uint64_t)(100 * layer + state), (uint64_t)i);
    }
}

/* A budget that holds no states all at once: states stay and do not fit, or leave the device and
 * are filled layer by layer. */
TEST(first_values_are_filled_layer_by_layer) {
    for (int i = 0; i < memo_test_cases(4, 4); i++) {
        own_device* device = new_host(0);
        own_step_plan* stays = NULL;
        trainer t;
        int64_t largest;
        uint64_t words[T_STATE_WORDS_MAX];
        do t_init_random(&t, ROWS);
        while (t.desc.n_layers < 3);
        t.desc.n_shapes = 1;
        t.desc.update_on = i % 2 ? MEMO_UPDATE_HOST : MEMO_UPDATE_DEVICE;
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        const int64_t least = t.desc.device_bytes;
        if (i % 2) { /* without moments on the device */
            t.desc.states_stay = 1;
            CHECK_ERROR(memo_session_plan(&t.desc, NULL, &stays, &error), INVALID_ARGUMENT,
                        "update_on: HOST, but states_stay is 1");
            t.desc.update_on = MEMO_UPDATE_DEVICE;
            t.desc.states_stay = 0;
            CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
            CHECK_IS(least, <=, t.desc.device_bytes);
            t.desc.device_bytes = least;
        }
        t.desc.states_stay = 1;
        CHECK_OK(memo_session_plan(&t.desc, NULL, &stays, &error));
        CHECK(plan->n_streamed > 0 && stays->n_streamed == 0 && !stays->fits);
        CHECK_IS(planned_states(stays, 0), ==, bytes_of_states(&t, &largest));

        t.desc.states_stay = 0;
        t.desc.device = device;
        if (i % 2) t.desc.update_on = MEMO_UPDATE_HOST;
        own_session* s = session_of_plan(&t.desc, plan);
        if (!s) return;
        t.n_updates = 0;
        CHECK_OK(memo_session_fill_states(s, fill_words, &error));
        CHECK_IS(t.n_updates, ==, t.desc.n_layers + 2);
        for (int32_t layer = -1; layer <= t.desc.n_layers; layer++)
            for (int32_t state = 0; state < T_N_STATES; state++) {
                if (!(t.states[state].uses & MEMO_STATE_UPDATE)) continue;
                memset(words, 0, sizeof words);
                CHECK_OK(memo_session_read_state(s, layer, state, 0, words,
                                                 t.states[state].size_bytes, &error));
                const int has = words[0] || words[1];
                for (int64_t k = 0; has && k < t.states[state].size_bytes / 8; k++)
                    CHECK_IS(words[k], ==, t_mix((uint64_t)(100 * layer + state), (uint64_t)k));
                if (state == S_WEIGHTS) CHECK_IS(has, ==, layer >= 0 && layer < t.desc.n_layers);
            }
        (void)memo_session_begin(s, NULL);
        CHECK_ERROR(memo_session_fill_states(s, fill_words, &error), INVALID_STATE,
                    "memo_session_fill_states: a micro-batch is open");
        IGNORE(memo_session_end(s, &error));
    }
}

static void fill_until(void* user, memo_session* s, int32_t layer) {
    if (layer == 1) memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
    fill_words(user, s, layer);
}

/* On the device and on the host: layers of two steps are refused until all are set again. */
TEST(a_fill_that_fails_is_told) {
    static state_words words;
    for (int on_host = 0; on_host < 2; on_host++) {
        trainer t;
        do t_init_random(&t, ROWS);
        while (t.desc.n_layers < 3);
        t.desc.update_on = on_host ? MEMO_UPDATE_HOST : MEMO_UPDATE_DEVICE;
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        own_session* s = session_of_plan(&t.desc, plan);
        CHECK_ERROR(memo_session_fill_states(s, fill_until, &error), DEVICE, "the trainer's own");
        CHECK_TEXT(error.message, "set the states of all layers again");
        CHECK_ERROR(memo_session_read_state(s, 0, 0, 0, words, 8, &error), INVALID_STATE,
                    "set the states of all layers again");
        CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE, "set the states of all");
        if (on_host) /* either way */
            CHECK_OK(memo_session_fill_states(s, fill_words, &error));
        else
            CHECK_OK(transfer_states(s, &t, 1, words));
        CHECK_OK(transfer_states(s, &t, 0, words));
        CHECK_OK(step_of_session(&t, s));
    }
}

/* Each call of the device fails once: layers are as before, or the error says that they differ. */
TEST(a_fill_whose_device_fails_is_told) {
    static const int32_t moments[] = {0, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS,
                                      MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS};
    static state_words words, zero;
    for (int m = 0; m < 3; m++) {
        int64_t n_told = 0;
        trainer t;
        t_init_random(&t, ROWS);
        t.desc.n_layers = 3, t.desc.n_shapes = 1;
        t.desc.update_on = MEMO_UPDATE_DEVICE, t.desc.update_may = moments[m];
        t.desc.device_bytes = least_of_session(&t.desc);
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        for (int64_t k = 1;; k++) {
            own_device* device = new_host(0);
            memo_faults f;
            memo_faults_init(&f, device);
            t.desc.device = &f.device;
            own_session* s = session_of_plan(&t.desc, plan);
            IN_CASE("moment %d, call %lld", m, (long long)k);
            f.failing_call = f.n_calls + k;
            const memo_status status = memo_session_fill_states(s, fill_words, &error);
            f.failing_call = 0;
            if (!status) break;
            if (strstr(error.message, "set the states of all layers again")) {
                n_told++;
                CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE, "set the states of");
                continue;
            }
            CHECK_OK(transfer_states(s, &t, 0, words));
            CHECK(!memcmp(words, zero, sizeof words));
        }
        CHECK(n_told > 0);
        t.desc.device = NULL;
    }
}

/* Whatever the plan does, until memo_session_update has been called. */
TEST(states_that_may_be_updated_are_refused) {
    uint64_t words[1];
    trainer t;
    t_init_random(&t, ROWS);
    for (int may_fuse = 0; may_fuse < 2; may_fuse++) {
        t.desc.update_may = may_fuse ? MEMO_MAY_FUSE : 0;
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        own_session* s = session_of_plan(&t.desc, plan);
        CHECK_OK(memo_session_run(s, NULL, &error));
        for (int k = 0; k < 3; k++) {
            const memo_status status =
                k == 0   ? memo_session_read_state(s, 0, 0, 0, words, 8, &error)
                : k == 1 ? memo_session_write_state(s, 0, 0, 0, words, 8, &error)
                         : memo_session_fill_states(s, fill_words, &error);
            CHECK_IS(status, ==, may_fuse ? MEMO_STATUS_INVALID_STATE : MEMO_STATUS_OK);
            if (may_fuse) CHECK_TEXT(error.message, "call memo_session_update first");
        }
        if (may_fuse) CHECK_OK(memo_session_update(s, &error));
        CHECK_OK(memo_session_fill_states(s, fill_words, &error));
    }
}

static uint64_t seen_rate;
static int32_t seen_rows;
static void see_values(MEMO_UNUSED void* user, memo_session* s, MEMO_UNUSED int32_t layer) {
    const memo_batch batch = memo_session_get_batch(s);
    memcpy(&seen_rate, batch.values, sizeof seen_rate);
    seen_rows = (int32_t)batch.n_rows;
}

/* Not what `update` finds, either. */
TEST(a_refused_micro_batch_changes_nothing) {
    const uint64_t rates[2] = {3, 5};
    for (int may_defer = 0; may_defer < 2; may_defer++) {
        trainer t;
        memo_batch batch = {.n_rows = 2, .values = &rates[0], .values_bytes = 8};
        do t_init_random(&t, ROWS);
        while (t.desc.update_on == MEMO_UPDATE_HOST);
        t.desc.update_may = may_defer ? MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS : 0;
        t.desc.update = see_values;
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        own_session* s = session_of_plan(&t.desc, plan);
        CHECK_OK(memo_session_run(s, &batch, &error));
        batch.n_rows = 1;
        batch.values = &rates[1];
        CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_STATE, "memo_session_update");
        CHECK_OK(memo_session_update(s, &error));
        CHECK_OK(memo_session_flush(s, &error));
        CHECK_IS(seen_rate, ==, rates[0]);
        CHECK_IS(seen_rows, ==, 2);
    }
}

/* Each request for host memory of a session with streamed states is refused in turn. */
TEST(without_host_memory_sessions_with_states_are_an_error) {
    static state_words words;
    refusal r = {.can_do_without = 1};
    memo_status status = MEMO_STATUS_OK;
    trainer t;
    t_init_random(&t, ROWS);
    CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
    own_step_plan* plan = step_plan_of(&t.desc, NULL);
    while (next_refusal(&r, status)) {
        memo_host_device_desc desc = {0};
        own_device* host = NULL;
        own_session* s = NULL;
        int64_t n_halved = 0;
        status = memo_host_device_create(&desc, &host, &error);
        t.desc.device = host;
        if (!status) status = memo_session_open(&t.desc, plan, &s, &error);
        if (!status) status = train_through_faults(s, &t, words, &n_halved);
    }
    CHECK_IS(r.n_failed, >, 20);
}

/* --- states of any number of bytes --- */

static int n_wrong_bytes;

/* Layers write all bytes of a tensor; states are added to as bytes. */
static void bytes_forward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    memset(memo_session_get_address(s, layer, 0), layer, 8 * 64);
}
static void bytes_between(void* user, memo_session* s) {
    const int64_t n_bytes = *(const int64_t*)user;
    const char* last = (const char*)memo_session_get_state(s, 4, 2);
    for (int64_t i = 0; last && i < n_bytes; i++) n_wrong_bytes += last[i] != 7;
}
static void bytes_backward(void* user, memo_session* s, int32_t layer) {
    const char* weights = (const char*)memo_session_get_state(s, layer, 0);
    char* gradients = (char*)memo_session_get_state(s, layer, 1);
    for (int64_t i = 0; i < *(const int64_t*)user; i++)
        gradients[i] ^= (char)(weights[i + 2] + layer);
}
static void bytes_update(void* user, memo_session* s, int32_t layer) {
    char* weights = (char*)memo_session_get_state(s, layer, 0);
    const char* gradients = (const char*)memo_session_get_state(s, layer, 1);
    for (int64_t i = 0; weights && i < *(const int64_t*)user; i++) weights[i] ^= gradients[i];
}
static void bytes_fill(void* user, memo_session* s, int32_t layer) {
    void* weights = memo_session_get_state(s, layer, 0);
    if (weights) memset(weights, 7, 2 + (size_t) * (const int64_t*)user);
}

/* Four layers, which have all; LAST has the third, which the forward alone reads. */
static memo_session_desc bytes_desc(int64_t* n_bytes, memo_state* states) {
    static const memo_item tensors[] = {MEMO_ITEM("t", 64, MEMO_MOVE)};
    memo_session_desc desc = {.tensors = tensors, .n_tensors = 1, .n_layers = 4, .n_rows = 8};
    states[0] = (memo_state){"weights", *n_bytes + 2, MEMO_STATE_WEIGHTS, 1};
    states[1] = (memo_state){"gradients", *n_bytes, MEMO_STATE_GRADIENT, 1};
    states[2] = (memo_state){"last", *n_bytes, MEMO_STATE_FORWARD, MEMO_STATE_LAST | 1};
    desc.states = states;
    desc.n_states = 3;
    desc.user = n_bytes;
    desc.forward = bytes_forward;
    desc.between = bytes_between;
    desc.backward = bytes_backward;
    desc.update = bytes_update;
    return desc;
}

/* In the least memory every layer's states are streamed, and sessions are filled at any time. */
TEST(states_of_odd_bytes_are_filled_used_and_verified) {
    memo_state states[3];
    char bytes[2000];
    for (int k = 0; k < memo_test_cases(8, 16); k++) {
        int64_t n_bytes = memo_test_int(0, 999) * 2 + 1, least;
        memo_session_desc desc = bytes_desc(&n_bytes, states);
        own_session* s = NULL;
        desc.is_checked = k & 1;
        desc.update_may = (k >> 1 & 3) | MEMO_MAY_NOT_PASS;
        if (k & 4) CHECK_OK(memo_session_get_least(&desc, &desc.device_bytes, &error));
        CHECK_OK(memo_session_get_least(&desc, &least, &error));
        if (!desc.is_checked) CHECK_OK(memo_session_verify(&desc, NULL, &error));
        CHECK_OK(memo_session_create(&desc, &s, &error)); /* which may measure with zeros */
        n_wrong_bytes = 0;
        memset(bytes, 7, sizeof bytes); /* the update does not use these states */
        for (int32_t layer = 0; layer <= 4; layer++)
            CHECK_OK(memo_session_write_state(s, layer, 2, 0, bytes, n_bytes, &error));
        for (int step = 0; step < 4; step++) {
            if (step != 2) CHECK_OK(memo_session_fill_states(s, bytes_fill, &error));
            CHECK_OK(memo_session_run(s, NULL, &error));
            if (step || desc.update_may & MEMO_MAY_FUSE) CHECK_OK(memo_session_update(s, &error));
        }
        CHECK_CASE(n_wrong_bytes == 0, "%d bytes of LAST, case %d", n_wrong_bytes, k);
    }
}

/* A long forward-only shape may need more of the device than the training shape. */
TEST(all_shapes_stream_what_one_needs) {
    memo_state states[3];
    for (int k = 0; k < memo_test_cases(3, 12); k++) {
        const memo_shape shapes[] = {{memo_test_int(100, 300), 1},
                                     {memo_test_int(8, 60), k % 3 == 0}};
        int64_t n_bytes = memo_test_int(1, 9000), least = 0;
        memo_session_desc desc = bytes_desc(&n_bytes, states);
        own_step_plan* plan = NULL;
        desc.n_rows = shapes[0].n_rows;
        desc.shapes = shapes;
        desc.n_shapes = 2;
        CHECK_OK(memo_session_get_least(&desc, &least, &error));
        for (int64_t more = -1; more < 40000; more += 1 + memo_test_int(0, 4000)) {
            desc.device_bytes = least + more;
            memo_step_plan_destroy(plan);
            CHECK_OK(memo_session_plan(&desc, NULL, &plan, &error));
            CHECK_CASE((plan->fits && plan->next->fits) == (more >= 0), "%lld bytes more: %s %s",
                       (long long)more, plan->shortage, plan->next->shortage);
            CHECK_IS(plan->n_streamed, ==, plan->next->n_streamed);
        }
    }
}
