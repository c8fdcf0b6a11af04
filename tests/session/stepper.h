/* stepper.h - a random trainer with states (trainer.h) that goes on by one call at a time: a
 * micro-batch, an update, or none; and the same in plain arrays.  Its states may be compared
 * between any two calls. */
#ifndef STEPPER_H
#define STEPPER_H
#include "session_times.h"
#include "trainer.h"
#include "fetched.h"

enum { ROWS = 40, STEPS = 6 };
typedef uint64_t state_words[T_LAYERS_MAX + 2][T_N_STATES][T_STATE_WORDS_MAX];

/* A trainer between two micro-batches, and its plain arrays. */
typedef struct stepper {
    trainer t;
    t_plain plain;
    memo_step_plan* plan;
    memo_session* s;
    int32_t n_left, n_steps; /* micro-batches of this step; steps that are over */
    int32_t is_over;         /* the update comes next */
    int32_t n_planned;       /* calls of desc.planned */
} stepper;

/* The first values come from a key. */
static void fill_words(stepper* z, uint64_t key) {
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= z->t.desc.n_layers; layer++)
        for (int32_t i = 0; i < T_N_STATES; i++) {
            const memo_state* state = &z->t.states[i];
            uint64_t* words = z->plain.states[layer + 1][i];
            if (state->uses & (MEMO_STATE_GRADIENT | MEMO_STATE_FETCHED) || !t_has(&z->t, layer, i))
                continue;
            for (int64_t k = 0; k < state->size_bytes / 8; k++)
                words[k] = t_mix(key + (uint64_t)(100 * layer + i), (uint64_t)k);
            CHECK_OK(memo_session_write_state(z->s, layer, i, 0, words, state->size_bytes, &error));
        }
    t_fetch_plain(&z->t, &z->plain);
}

static MEMO_UNUSED void check_words(stepper* z) {
    static uint64_t words[T_STATE_WORDS_MAX];
    for (int32_t layer = MEMO_LAYER_FIRST; layer <= z->t.desc.n_layers; layer++)
        for (int32_t i = 0; i < T_N_STATES; i++) {
            const memo_state* state = &z->t.states[i];
            if (state->uses & MEMO_STATE_GRADIENT || !t_has(&z->t, layer, i)) continue;
            CHECK_OK(memo_session_read_state(z->s, layer, i, 0, words, state->size_bytes, &error));
            CHECK_CASE(!memcmp(words, z->plain.states[layer + 1][i], (size_t)state->size_bytes),
                       "layer %d, state %d", (int)layer, (int)i);
        }
    CHECK(!memcmp(&z->t.sums, &z->t.plain_sums, sizeof z->t.sums));
}

static void be_planned(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                       MEMO_UNUSED const memo_step_plan* plan) {
    stepper* z = (stepper*)user; /* its first field is the trainer */
    z->n_planned++;
}

/* The least device memory, or more. */
static void plan(stepper* z, int64_t more_bytes) {
    memo_session_desc* d = &z->t.desc;
    memo_step_plan_destroy(z->plan);
    d->is_unadvised = 1;
    d->device_bytes = 1;
    z->plan = step_plan_of(d, NULL);
    d->device_bytes = z->plan->device_bytes + more_bytes;
    memo_step_plan_destroy(z->plan);
    z->plan = step_plan_of(d, NULL);
    if (memo_test_int(0, 1) || d->update_on == MEMO_UPDATE_HOST || !z->plan->n_streamed) return;

    /* A file takes what fits least into host memory. */
    const int64_t host_bytes = z->plan->host_bytes;
    d->spill_directory = "/tmp";
    for (int64_t share = 1; share <= 8; share++) {
        d->host_bytes = host_bytes * share / 8 + 1;
        memo_step_plan_destroy(z->plan);
        z->plan = step_plan_of(d, NULL);
        if (z->plan->fits) return;
    }
    CHECK(z->plan && z->plan->fits);
}

/* A random trainer with states, at the least budget or with more. */
static MEMO_UNUSED void init(stepper* z) {
    memset(z, 0, sizeof *z);
    t_init_random(&z->t, ROWS);
    if (memo_test_int(0, 2) == 0) t_take_order(&z->t);
    if (z->t.desc.update_on == MEMO_UPDATE_DEVICE && memo_test_int(0, 1)) t_take_fetched(&z->t);
    z->t.desc.planned = be_planned;
    z->t.desc.n_shapes = 1;
    z->t.desc.policy = (memo_policy[]){MEMO_POLICY_RECOMPUTE, MEMO_POLICY_SWAP,
                                       MEMO_POLICY_MEMO}[memo_test_int(0, 2)];
    plan(z, 512 * memo_test_int(0, 40));
}

static MEMO_UNUSED void open_in(stepper* z, const memo_device* device, void* memory) {
    z->t.desc.device = device;
    z->t.desc.device_memory = memory;
    z->s = session_of_plan(&z->t.desc, z->plan);
    if (z->s) fill_words(z, memo_test_random());
}

static MEMO_UNUSED void end(stepper* z) {
    memo_session_destroy(z->s);
    memo_step_plan_destroy(z->plan);
    z->plan = NULL;
}

/* A micro-batch, a group, an order, or what ends the step. */
static MEMO_UNUSED void go_on(stepper* z) {
    trainer* t = &z->t;
    if (z->is_over) {
        const int skips = !(t->desc.update_may & MEMO_MAY_FUSE) && memo_test_int(0, 5) == 0;
        CHECK_OK(skips ? memo_session_skip_update(z->s, &error)
                       : memo_session_update(z->s, &error));
        if (skips)
            t_drop_gradients(t, &z->plain);
        else
            t_update_plain(t, &z->plain);
        z->n_steps++;
        z->is_over = 0;
        return;
    }
    if (!z->n_left) {
        z->n_left = (int32_t)memo_test_int(1, 3);
        t->rate = t->desc.update_on == MEMO_UPDATE_HOST ? 0 : memo_test_random();
    }
    const memo_batch batch = {.more_follow = --z->n_left > 0,
                              .n_rows = memo_test_int(0, 1) ? 0 : memo_test_int(1, ROWS),
                              .values = &t->rate,
                              .values_bytes = sizeof t->rate};
    CHECK_OK(t_run_call(t, z->s, batch));
    t_run_plain_call(t, &z->plain, t_n_in_call(t, z->s), batch.n_rows ? batch.n_rows : ROWS, 0);
    z->is_over = !z->n_left;
}

#endif
