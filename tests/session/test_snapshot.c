/* test_snapshot.c - states are written out while steps go on: each has the bytes of the step at
 * which the snapshot began, however slow the disk is, at every moment of the update; a disk that
 * stands still delays no computation; a write that fails is told, and training goes on. */
#include "scarce.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "stepper.h"
#include <pthread.h>

/* What a snapshot writes. */
typedef struct disk {
    stepper* z;
    state_words words;
    int64_t n_bytes[T_LAYERS_MAX + 2][T_N_STATES]; /* written of each, in order */
    int32_t n_calls, fails_at;                     /* 0: it does not fail */
    int32_t most_us;                               /* a call takes up to this */
    uint64_t random;
    pthread_mutex_t mutex;
    pthread_cond_t goes_on;
    int32_t stands_still;
} disk;

static memo_status write_state(void* user, int32_t layer, int32_t state, int64_t at,
                               const void* bytes, int64_t n_bytes, memo_error* e) {
    disk* d = (disk*)user;
    pthread_mutex_lock(&d->mutex);
    while (d->stands_still) pthread_cond_wait(&d->goes_on, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
    d->random = t_mix(d->random, 1);
    if (d->most_us) usleep((useconds_t)(d->random % (uint64_t)d->most_us));
    if (++d->n_calls == d->fails_at) return memo_error_set(e, MEMO_STATUS_IO, "the disk is full");
    if (at != d->n_bytes[layer + 1][state] || n_bytes <= 0)
        return memo_error_set(e, MEMO_STATUS_IO, "bytes out of order");
    memcpy((char*)d->words[layer + 1][state] + at, bytes, (size_t)n_bytes);
    d->n_bytes[layer + 1][state] += n_bytes;
    return MEMO_STATUS_OK;
}

static void stand_still(disk* d, int32_t stands_still) {
    pthread_mutex_lock(&d->mutex);
    d->stands_still = stands_still;
    pthread_cond_broadcast(&d->goes_on);
    pthread_mutex_unlock(&d->mutex);
}

static void new_disk(disk* d, stepper* z) {
    memset(d, 0, sizeof *d);
    d->z = z;
    d->random = memo_test_random();
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->goes_on, NULL);
}

static memo_status begin(disk* d) {
    const memo_snapshot_desc desc = {write_state, d};
    memset(d->n_bytes, 0, sizeof d->n_bytes);
    return memo_session_snapshot(d->z->s, &desc, &error);
}

/* All states but gradients and FETCHED ones, once, with these bytes. */
static void check_disk(const disk* d, state_words expected) {
    const trainer* t = &d->z->t;
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= t->desc.n_layers; layer++)
        for (int32_t i = 0; i < T_N_STATES; i++) {
            const memo_state* state = &t->states[i];
            const int is_written =
                !(state->uses & (MEMO_STATE_GRADIENT | MEMO_STATE_FETCHED)) && t_has(t, layer, i);
            const int64_t n_bytes = is_written ? state->size_bytes : 0;
            CHECK_CASE(d->n_bytes[layer + 1][i] == n_bytes, "layer %d, state %d: %lld bytes",
                       (int)layer, (int)i, (long long)d->n_bytes[layer + 1][i]);
            CHECK_CASE(!memcmp(d->words[layer + 1][i], expected[layer + 1][i], (size_t)n_bytes),
                       "layer %d, state %d", (int)layer, (int)i);
        }
}

/* Other bytes of a state, or of all. */
static void set_words(stepper* z) {
    const int32_t layer = (int32_t)memo_test_int(0, z->t.desc.n_layers - 1);
    uint64_t* words = z->plain.states[layer + 1][S_WEIGHTS];
    const int64_t n = z->t.states[S_WEIGHTS].size_bytes;
    if (z->t.states[S_WEIGHTS].uses & MEMO_STATE_FETCHED) return;
    for (int64_t k = 0; k < n / 8; k++) words[k] = memo_test_random();
    CHECK_OK(memo_session_write_state(z->s, layer, S_WEIGHTS, 0, words, n, &error));
}

static int may_transfer(const stepper* z) {
    return !(z->is_over && z->t.desc.update_may & MEMO_MAY_FUSE);
}

TEST(a_snapshot_has_the_states_of_its_step) {
    static stepper z;
    static disk d;
    static state_words expected;
    int64_t n_snapshots = 0, n_streamed = 0, n_spilled = 0, n_resident = 0, n_hosted = 0;
    const int n_cases = memo_test_cases(25, 2000);
    for (int k = 0; k < n_cases; k++) {
        int is_open = 0;
        IN_CASE("session %d", k);
        init(&z);
        new_disk(&d, &z);
        d.most_us = memo_test_int(0, 1) ? 0 : (int32_t)memo_test_int(1, 2000);
        own_device* device = new_host(0);
        open_in(&z, device, NULL);
        if (!z.s) return;
        n_streamed += z.plan->n_streamed, n_spilled += z.plan->n_spilled;
        n_resident += z.plan->sleep_bytes > 0, n_hosted += z.plan->update_is_on_host;
        while (z.n_steps < STEPS && !memo_test.failures) {
            go_on(&z);
            if (memo_test_int(0, 2) == 0 && is_open) {
                CHECK_OK(memo_session_finish_snapshot(z.s, &error));
                CHECK_IS(memo_session_get_info(z.s).n_unwritten, ==, 0);
                check_disk(&d, expected);
                is_open = 0;
            }
            if (memo_test_int(0, 5) == 0 && may_transfer(&z)) set_words(&z);
            if (memo_test_int(0, 7) == 0) {
                CHECK_OK(memo_session_sleep(z.s, &error));
                CHECK_OK(memo_session_wake(z.s, &error));
            }
            if (memo_test_int(0, 2) || !may_transfer(&z)) continue;
            if (is_open) {
                const memo_snapshot_desc desc = {write_state, &d};
                CHECK_ERROR(memo_session_snapshot(z.s, &desc, &error), INVALID_STATE,
                            "memo_session_finish_snapshot comes next");
                continue;
            }
            memcpy(expected, z.plain.states, sizeof expected);
            CHECK_OK(begin(&d));
            is_open = 1;
            n_snapshots++;
        }
        if (memo_test_int(0, 1)) CHECK_OK(memo_session_finish_snapshot(z.s, &error));
        check_words(&z);
        end(&z);
        if (is_open) check_disk(&d, expected); /* destroyed sessions wait for it */
    }
    CHECK(n_snapshots > 0);
    if (n_cases >= 12) CHECK(n_streamed && n_spilled && n_resident && n_hosted);
    printf("# %lld snapshots\n", (long long)n_snapshots);
}

/* Until the next update nothing waits; the update waits for the disk. */
TEST(a_disk_that_stands_still_delays_no_computation) {
    static stepper z;
    static disk d;
    static state_words expected;
    static const int32_t moments[] = {0, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS,
                                      MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS};
    int n_sessions = 0;
    for (int k = 0; k < 12; k++) {
        IN_CASE("moment %d", k % 3);
        do {
            memo_step_plan_destroy(z.plan);
            init(&z);
        } while (z.t.desc.n_order || z.t.desc.n_group || z.t.desc.update_on == MEMO_UPDATE_HOST);
        z.t.desc.update_may = moments[k % 3];
        z.t.desc.micro_batches = 4;
        plan(&z, 0);
        if (!z.plan->n_streamed || z.plan->n_spilled) continue;
        n_sessions++;
        new_disk(&d, &z);
        own_device* device = new_host(0);
        open_in(&z, device, NULL);
        for (int step = 0; step < 2; step++)
            for (z.n_left = 4; z.n_left || z.is_over;) go_on(&z);
        memcpy(expected, z.plain.states, sizeof expected);
        stand_still(&d, 1);
        CHECK_OK(begin(&d));
        const int32_t n = memo_session_get_info(z.s).n_unwritten;
        CHECK_IS(n, >, 0);
        z.n_left = 4; /* a long step: its last micro-batch may update */
        while (z.n_left > 1) go_on(&z);
        CHECK_IS(memo_session_get_info(z.s).n_unwritten, ==, n);
        stand_still(&d, 0);
        while (z.n_steps < 4) go_on(&z);
        CHECK_OK(memo_session_finish_snapshot(z.s, &error));
        check_disk(&d, expected);
        check_words(&z);
        end(&z);
    }
    CHECK(n_sessions > 4);
}

TEST(a_write_that_fails_is_told_and_training_goes_on) {
    static stepper z;
    static disk d;
    int32_t n_failed = 0;
    init(&z);
    new_disk(&d, &z);
    own_device* device = new_host(0);
    open_in(&z, device, NULL);
    for (d.fails_at = 1;; d.fails_at++) {
        d.n_calls = 0;
        while (z.is_over) go_on(&z);
        CHECK_OK(begin(&d));
        go_on(&z);
        const memo_status status = memo_session_finish_snapshot(z.s, &error);
        CHECK_OK(memo_session_finish_snapshot(z.s, &error)); /* it is told once */
        if (!status) break;
        CHECK_IS(status, ==, MEMO_STATUS_IO);
        CHECK_TEXT(error.message, "memo_session_snapshot: layer ");
        CHECK_TEXT(error.message, "the disk is full");
        CHECK_IS(d.n_calls, ==, d.fails_at);
        n_failed++;
    }
    CHECK(n_failed > 3);
    check_words(&z);
    end(&z);
}

/* Each call of the device, and each request of host memory, fails once: no snapshot has begun. */
TEST(a_snapshot_that_does_not_begin_loses_nothing) {
    static stepper z;
    static disk d;
    for (int of_memory = 0; of_memory < 2; of_memory++) {
        int64_t k, n_failed = 0;
        do {
            memo_step_plan_destroy(z.plan);
            init(&z);
        } while (z.t.desc.update_on == MEMO_UPDATE_HOST || z.t.desc.n_layers < 3 ||
                 !z.plan->n_streamed || z.plan->n_spilled);
        new_disk(&d, &z);
        own_device* device = new_host(0);
        memo_faults f;
        memo_faults_init(&f, device);
        open_in(&z, &f.device, NULL);
        for (k = 1; k < 1000; k++) {
            memo_status status;
            while (z.is_over) go_on(&z);
            CHECK_OK(memo_session_flush(z.s, &error)); /* which may fail by itself */
            if (of_memory)
                mallocs_left = k - 1;
            else
                f.failing_call = f.n_calls + k;
            IN_CASE("%s %lld", of_memory ? "request" : "call", (long long)k);
            status = begin(&d);
            mallocs_left = -1;
            f.failing_call = 0;
            if (!status) break;
            n_failed++;
            CHECK(status == (of_memory ? MEMO_STATUS_OUT_OF_HOST_MEMORY : MEMO_STATUS_DEVICE));
            CHECK_OK(memo_session_finish_snapshot(z.s, &error)); /* there is none */
            go_on(&z);
        }
        CHECK(k < 1000 && n_failed > 0);
        go_on(&z);
        CHECK_OK(memo_session_finish_snapshot(z.s, &error));
        check_words(&z);
        end(&z);
    }
}
