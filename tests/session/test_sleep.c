/* test_sleep.c - sessions that give the device's memory away between micro-batches: two train by
 * turns in the same memory, each with the bits of plain arrays; what is kept is what the plan says;
 * a sleep that fails leaves the session awake, and a wake that fails leaves it asleep.
 * test_random_calls.c lets sessions sleep between other calls. */
#include "scarce.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "stepper.h"

/* Between any two calls, at each moment of the update: in a block of the caller, or in memory that
 * the device has once.  What sleeps keeps no more than its plan says. */
TEST(two_sessions_train_by_turns_in_the_same_memory) {
    static stepper z[2];
    int64_t n_sleeps = 0, n_streamed = 0, n_resident = 0;
    const int n_cases = memo_test_cases(20, 2000);
    for (int pair = 0; pair < n_cases; pair++) {
        const int is_given = (int)memo_test_int(0, 1);
        void* block = NULL;
        int now = 0;
        IN_CASE("pair %d", pair);
        for (int k = 0; k < 2; k++) init(&z[k]);
        const int64_t most = z[0].plan->device_bytes > z[1].plan->device_bytes
                                 ? z[0].plan->device_bytes
                                 : z[1].plan->device_bytes;
        own_device* device = new_device((memo_host_device_desc){.device_memory_bytes = most});
        if (is_given) CHECK_OK(memo_device_alloc(device, most, &block, &error));
        for (int k = 0; k < 2; k++) {
            open_in(&z[k], device, block);
            CHECK(z[k].s);
            n_streamed += z[k].plan->n_streamed;
            n_resident += z[k].plan->sleep_bytes > 0;
            if (!k) CHECK_OK(memo_session_sleep(z[k].s, &error));
        }
        for (now = 1; z[0].n_steps < STEPS || z[1].n_steps < STEPS;) {
            go_on(&z[now]);
            if (memo_test_int(0, 1)) continue;
            if (!is_given && z[now].plan->device_bytes + z[!now].plan->device_bytes > most)
                CHECK_ERROR(memo_session_wake(z[!now].s, &error), OUT_OF_DEVICE_MEMORY, "");
            if (memo_test_int(0, 3) == 0) CHECK_OK(memo_session_flush(z[now].s, &error));
            CHECK_OK(memo_session_sleep(z[now].s, &error));
            n_sleeps++;
            now = !now;
            CHECK_OK(memo_session_wake(z[now].s, &error));
        }
        for (int k = 0; k < 2; k++, now = !now) {
            if (z[now].is_over) go_on(&z[now]);
            check_words(&z[now]);
            CHECK(!is_given || !z[now].n_planned);
            CHECK_OK(memo_session_sleep(z[now].s, &error));
            if (!k) CHECK_OK(memo_session_wake(z[!now].s, &error));
        }
        for (int k = 0; k < 2; k++) end(&z[k]);
        if (block) CHECK_OK(memo_device_free(device, block, &error));
        if (memo_test.failures) return;
    }
    CHECK(n_sleeps > 0);
    if (n_cases >= 10) CHECK(n_streamed && n_resident);
    printf("# %lld sleeps\n", (long long)n_sleeps);
}

/* Each call of the device, and each request of host memory, fails once. */
TEST(a_sleep_or_wake_that_fails_loses_nothing) {
    static stepper z;
    for (int is_wake = 0; is_wake < 2; is_wake++)
        for (int of_memory = 0; of_memory < 2; of_memory++) {
            int64_t k, n_failed = 0;
            do {
                memo_step_plan_destroy(z.plan);
                init(&z);
            } while (z.t.desc.update_on == MEMO_UPDATE_HOST || z.t.desc.n_layers < 3);
            own_device* device = new_host(0);
            memo_faults f;
            memo_faults_init(&f, device);
            open_in(&z, &f.device, NULL);
            go_on(&z);
            for (k = 1; k < 1000; k++) {
                memo_status status;
                if (is_wake) CHECK_OK(memo_session_sleep(z.s, &error));
                if (of_memory)
                    mallocs_left = k - 1;
                else
                    f.failing_call = f.n_calls + k;
                IN_CASE("%s, %s %lld", is_wake ? "wake" : "sleep", of_memory ? "request" : "call",
                        (long long)k);
                status = is_wake ? memo_session_wake(z.s, &error) : memo_session_sleep(z.s, &error);
                mallocs_left = -1;
                f.failing_call = 0;
                if (!status) break;
                n_failed++;
                CHECK(status == (of_memory ? MEMO_STATUS_OUT_OF_HOST_MEMORY : MEMO_STATUS_DEVICE));
                if (is_wake) {
                    CHECK_ERROR(memo_session_run(z.s, NULL, &error), INVALID_STATE, "sleeps");
                    CHECK_OK(memo_session_wake(z.s, &error));
                } else
                    CHECK_ERROR(memo_session_wake(z.s, &error), INVALID_STATE, "does not sleep");
                go_on(&z);
            }
            CHECK(k < 1000 && n_failed > (of_memory ? 0 : 3));
            if (!is_wake) CHECK_OK(memo_session_wake(z.s, &error));
            while (z.is_over) go_on(&z);
            check_words(&z);
            end(&z);
        }
}

/* While a session sleeps, the device has all of its memory again, and the host what the plan says. */
TEST(the_memory_of_a_session_that_sleeps_is_free) {
    static stepper z;
    for (int k = 0; k < memo_test_cases(10, 200); k++) {
        int64_t free_bytes = 0, total_bytes = 0;
        init(&z);
        own_device* device =
            new_device((memo_host_device_desc){.device_memory_bytes = z.plan->device_bytes});
        open_in(&z, device, NULL);
        CHECK(z.s);
        while (!z.is_over) go_on(&z);
        CHECK_OK(memo_session_sleep(z.s, &error)); /* the first makes a stream */
        CHECK_OK(memo_session_wake(z.s, &error));
        const long long before = mallocs_bytes;
        CHECK_OK(memo_session_sleep(z.s, &error));
        CHECK_IS(mallocs_bytes - before, <=, z.plan->sleep_bytes + 1);
        CHECK_OK(memo_memory_info(device, &free_bytes, &total_bytes, &error));
        CHECK_IS(free_bytes, ==, z.plan->device_bytes);
        CHECK_OK(memo_session_wake(z.s, &error));
        go_on(&z);
        check_words(&z);
        CHECK_OK(memo_session_sleep(z.s, &error)); /* destroyed while it sleeps */
        end(&z);
        if (memo_test.failures) return;
    }
}

/* A session without states, which counts in a buffer of its own. */
enum { KEPT_WORDS = 700 };
static void count(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    uint64_t* kept = (uint64_t*)memo_session_get_buffer(s, 0);
    uint64_t* row = (uint64_t*)memo_session_get_address(s, layer, 0);
    for (int k = 0; k < KEPT_WORDS; k++) kept[k] = t_mix(kept[k], (uint64_t)(k + layer));
    *row = kept[layer];
}
static void count_back(void* user, memo_session* s, int32_t layer) {
    const uint64_t* row = (const uint64_t*)memo_session_get_address(s, layer, 0);
    uint64_t* sum = (uint64_t*)user;
    *sum = t_mix(*sum, *row);
}

TEST(buffers_of_the_session_sleep_too) {
    static const memo_item rows = MEMO_ITEM("rows", 8, MEMO_MOVE);
    static const memo_session_buffer buffers[] = {
        {.name = "kept", .size_bytes = 8 * KEPT_WORDS},
        {.name = "scratch", .row_bytes = 64, .first = MEMO_PASS_FORWARD, .last = MEMO_PASS_AFTER}};
    static const memo_shape shapes[] = {{32, 0}, {16, 1}};
    uint64_t sums[2] = {0}, kept[2][KEPT_WORDS];
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        memo_session_desc d = MEMO_ZERO(memo_session_desc);
        d.tensors = &rows, d.n_tensors = 1, d.n_layers = 4, d.n_rows = 32;
        d.shapes = shapes, d.n_shapes = 2;
        d.buffers = buffers, d.n_buffers = 2;
        d.policy = MEMO_POLICY_SWAP;
        d.user = &sums[sleeps];
        d.forward = count, d.backward = count_back;
        own_step_plan* plan = step_plan_of(&d, NULL);
        own_session* s = session_of_plan(&d, plan);
        if (!s) return;
        CHECK_IS(plan->sleep_bytes, >=, 8 * KEPT_WORDS);
        memset(memo_session_get_buffer(s, 0), 1, 8 * KEPT_WORDS);
        for (int k = 0; k < 6; k++) {
            const memo_batch batch = {.shape = k % 2};
            CHECK_OK(memo_session_run(s, &batch, &error));
            CHECK((memo_session_get_buffer(s, 1) != NULL));
            if (!sleeps) continue;
            CHECK_OK(memo_session_sleep(s, &error));
            CHECK(!memo_session_get_buffer(s, 0));
            CHECK_ERROR(memo_session_wake(s, &error), INVALID_STATE, "get_buffer: buffer: the se");
            CHECK_OK(memo_session_wake(s, &error));
            CHECK(!memo_session_get_buffer(s, 1)); /* what AFTER kept has ended */
        }
        memcpy(kept[sleeps], memo_session_get_buffer(s, 0), sizeof kept[0]);
    }
    CHECK(sums[0] == sums[1] && !memcmp(kept[0], kept[1], sizeof kept[0]));
}

/* Micro-batches in flight cannot wait on a device whose memory is given away. */
TEST(a_session_in_flight_does_not_sleep) {
    static stepper z;
    memo_batch batch = MEMO_ZERO(memo_batch);
    do {
        init(&z);
        if (z.t.desc.n_order < 4) end(&z);
    } while (z.t.desc.n_order < 4);
    own_device* device = new_host(0);
    open_in(&z, device, NULL);
    batch.turn = z.t.order[0];
    CHECK_OK(memo_session_run(z.s, &batch, &error));
    CHECK_ERROR(memo_session_sleep(z.s, &error), INVALID_STATE, "run the turns that are left");
    for (int32_t k = 1; k < z.t.desc.n_order; k++) {
        batch.turn = z.t.order[k];
        CHECK_OK(memo_session_run(z.s, &batch, &error));
    }
    CHECK_OK(memo_session_sleep(z.s, &error));
    CHECK_ERROR(memo_session_sleep(z.s, &error), INVALID_STATE, "memo_session_wake comes next");
    CHECK_OK(memo_session_wake(z.s, &error));
    CHECK_OK(memo_session_update(z.s, &error));
    end(&z);
}
