/* test_session_calls.c - what a session allows between the micro-batches and the update of a step, after
 * errors too: the same under every plan, whenever the update runs. */
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "owned.h"

enum { LAYERS = 4, ROWS = 64, WIDTH = 16, WEIGHTS = 1024 };
enum { INPUT, HIDDEN, N_TENSORS };
enum { W, G, M, N_STATES };
enum { MOMENTS = 3 };

static const memo_item items[] = {MEMO_ITEM("input", 4 * WIDTH, MEMO_MOVE),
                                  MEMO_ITEM("hidden", 4 * WIDTH, MEMO_ROWS)};
static const memo_state states[] = {{"w", 4 * WEIGHTS, MEMO_STATE_WEIGHTS, 0},
                                    {"g", 4 * WEIGHTS, MEMO_STATE_GRADIENT, 0},
                                    {"m", 4 * WEIGHTS, MEMO_STATE_UPDATE, 0}};
static const char* const names[MOMENTS] = {"pass", "fused", "deferred"};
static const int32_t moments[MOMENTS] = {0, MEMO_MAY_FUSE, MEMO_MAY_DEFER};

static float x[ROWS * WIDTH], d_x[ROWS * WIDTH];
static int forward_fails, update_fails; /* in layer 2 */
static int left_out;                    /* a layer; -1: none */
static int batch_value, update_value;   /* that passes find; 0: they do not look */
static int n_looks;
static int32_t n_turns, next_turn; /* of an order; 0: there is none */

static float* rows_of(memo_session* s, int32_t layer, int32_t tensor) {
    return (float*)memo_session_get_address(s, layer, tensor);
}
static float* state_of(memo_session* s, int32_t layer, int32_t state) {
    return (float*)memo_session_get_state(s, layer, state);
}
static void look(memo_session* s, int value) {
    if (!value) return;
    CHECK_IS(*(const int*)memo_session_get_batch(s).values, ==, value);
    n_looks++;
}
static void recompute(MEMO_UNUSED void* user, memo_session* s, int32_t layer, int32_t tensor,
                      int64_t begin, int64_t end) {
    const float* in = rows_of(s, layer, INPUT);
    float* out = rows_of(s, layer, tensor);
    CHECK(layer != left_out);
    for (int64_t i = begin * WIDTH; i < end * WIDTH; i++)
        out[i] = in[i] * (1 + state_of(s, layer, W)[0]) + 1;
}
static void forward(void* user, memo_session* s, int32_t layer) {
    look(s, batch_value);
    for (int i = 0; i < ROWS * WIDTH && !layer; i++) x[i] = (float)(i % 13) - 6;
    if (layer == 2 && forward_fails) {
        memo_session_fail(s, MEMO_STATUS_DEVICE, "planted");
        return;
    }
    if (layer == left_out) {
        memo_session_skip_layer(s, layer);
        return;
    }
    memcpy(rows_of(s, layer, INPUT), x, sizeof x);
    recompute(user, s, layer, HIDDEN, 0, ROWS);
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] += rows_of(s, layer, HIDDEN)[i];
}
static void backward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    if (layer == LAYERS - 1) memcpy(d_x, x, sizeof d_x);
    if (layer == left_out) return;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        state_of(s, layer, G)[i % WEIGHTS] += d_x[i] * rows_of(s, layer, HIDDEN)[i] * 1e-3f;
        d_x[i] *= 1.5f;
    }
}
static void update(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    if (!state_of(s, layer, W)) return;
    look(s, update_value);
    for (int i = 0; i < WEIGHTS; i++) {
        state_of(s, layer, M)[i] = .5f * state_of(s, layer, M)[i] + state_of(s, layer, G)[i];
        state_of(s, layer, W)[i] -= .125f * state_of(s, layer, M)[i];
    }
    if (layer == 2 && update_fails) memo_session_fail(s, MEMO_STATUS_DEVICE, "planted");
}
static void fill(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    for (int32_t i = 0; i < N_STATES && state_of(s, layer, W); i += M)
        memset(state_of(s, layer, i), 0, 4 * WEIGHTS);
}

static memo_session_desc desc_of(int32_t update_may) {
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    forward_fails = update_fails = 0;
    left_out = -1;
    n_turns = next_turn = 0;
    desc.tensors = items, desc.n_tensors = N_TENSORS;
    desc.n_layers = LAYERS, desc.n_rows = ROWS;
    desc.states = states, desc.n_states = N_STATES;
    desc.policy = MEMO_POLICY_SWAP;
    desc.forward = forward, desc.backward = backward, desc.recompute = recompute;
    desc.update = update;
    desc.update_may = update_may ? update_may | MEMO_MAY_NOT_PASS : 0;
    desc.timed_steps = -1, desc.device_bytes = 60000;
    return desc;
}
static memo_session* session_of(const memo_session_desc* desc) {
    memo_session* s = NULL;
    CHECK_OK(memo_session_create(desc, &s, &error));
    return s;
}

static memo_status run(memo_session* s, int more_follow, int is_forward_only) {
    memo_batch batch = MEMO_ZERO(memo_batch);
    batch.more_follow = more_follow;
    batch.is_forward_only = is_forward_only;
    batch.shape = is_forward_only && n_turns;
    return memo_session_run(s, &batch, &error);
}

/* Reads the weights and moments of all layers, or writes them in pieces. */
static memo_status transfer(memo_session* s, int writes, float words[LAYERS][N_STATES][WEIGHTS]) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t layer = 0; layer < LAYERS; layer++)
        for (int32_t i = 0; i < N_STATES; i += M)
            for (int64_t at = 0; at < 4 * WEIGHTS && !status; at += 1024)
                status = writes
                             ? memo_session_write_state(s, layer, i, at,
                                                        (char*)words[layer][i] + at, 1024, &error)
                             : memo_session_read_state(s, layer, i, at, (char*)words[layer][i] + at,
                                                       1024, &error);
    return status;
}

/* --- where a step is --- */

typedef enum { IDLE, PART, OVER, FLIGHT, AGAIN, LOST, ASLEEP, N_WHERE } where;
static const char* const where_names[] = {"idle",  "part", "over",  "in flight",
                                          "again", "lost", "asleep"};
#define LOST_WORDS "set the states of all layers again"

/* A micro-batch in an order of two, if the session has one, all of the order or a turn alone. */
static const memo_shape with_alone[] = {{ROWS, 0}, {ROWS, 1}};
static const memo_turn order[] = {{0, 0, MEMO_PASS_FORWARD},
                                  {1, 0, MEMO_PASS_FORWARD},
                                  {0, 0, MEMO_PASS_BACKWARD},
                                  {1, 0, MEMO_PASS_BACKWARD}};
static memo_status run_turns(memo_session* s, int more_follow, int32_t n) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < n && !status; k++) {
        memo_batch batch = MEMO_ZERO(memo_batch);
        batch.more_follow = more_follow;
        batch.turn = order[(next_turn + k) % 4];
        status = memo_session_run(s, &batch, &error);
    }
    return status;
}
static memo_status run_all(memo_session* s, int more_follow) {
    return n_turns ? run_turns(s, more_follow, n_turns - next_turn) : run(s, more_follow, 0);
}

/* Brings a new session there. */
static void bring(memo_session* s, where to) {
    next_turn = 0;
    if (to == PART || to == AGAIN) CHECK_OK(run_all(s, 1));
    if (to == OVER) CHECK_OK(run_all(s, 0));
    if (to == FLIGHT) CHECK_OK(run_turns(s, 0, 1));
    next_turn = to == FLIGHT;
    forward_fails = to == AGAIN;
    if (to == AGAIN) {
        CHECK_ERROR(run_all(s, 0), DEVICE, "planted; run the whole step again");
        forward_fails = 0;
    }
    if (to == LOST) {
        memo_status status;
        update_fails = 1;
        status = run_all(s, 0);
        if (!status) status = memo_session_update(s, &error);
        if (!status) status = memo_session_flush(s, &error);
        update_fails = 0;
        CHECK_ERROR(status, DEVICE, "planted; the update has changed ");
        CHECK_ERROR(status, DEVICE, "of 6 layers; " LOST_WORDS);
    }
    if (to == ASLEEP) CHECK_OK(memo_session_sleep(s, &error));
}

enum {
    RUN_MORE,
    RUN_LAST,
    RUN_ALONE,
    UPDATE,
    VALUES,
    SKIP,
    FLUSH,
    READ,
    READ_GRADIENT,
    WRITE,
    FILL,
    SLEEP, /* and wake */
    WAKE,
    SNAPSHOT,
    N_CALLS
};
static memo_status write_nowhere(MEMO_UNUSED void* user, MEMO_UNUSED int32_t layer,
                                 MEMO_UNUSED int32_t state, MEMO_UNUSED int64_t at,
                                 MEMO_UNUSED const void* bytes, MEMO_UNUSED int64_t n_bytes,
                                 MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}
static const memo_snapshot_desc nowhere = {write_nowhere, NULL};
static memo_status call(memo_session* s, int which) {
    float word = 0;
    memo_status status;
    switch (which) {
    case RUN_MORE: return run_all(s, 1);
    case RUN_LAST: return run_all(s, 0);
    case RUN_ALONE: return run(s, 0, 1); /* an order has a shape of its own */
    case UPDATE: return memo_session_update(s, &error);
    case VALUES: return memo_session_set_update_values(s, &word, sizeof word, &error);
    case SKIP: return memo_session_skip_update(s, &error);
    case FLUSH: return memo_session_flush(s, &error);
    case READ: return memo_session_read_state(s, 0, W, 0, &word, sizeof word, &error);
    case READ_GRADIENT: return memo_session_read_state(s, 0, G, 0, &word, sizeof word, &error);
    case WRITE: return memo_session_write_state(s, 0, W, 0, &word, sizeof word, &error);
    case FILL: return memo_session_fill_states(s, fill, &error);
    case SLEEP:
        status = memo_session_sleep(s, &error);
        return status ? status : memo_session_wake(s, &error);
    case SNAPSHOT:
        status = memo_session_snapshot(s, &nowhere, &error);
        return status ? status : memo_session_finish_snapshot(s, &error);
    default: return memo_session_wake(s, &error);
    }
}

#define NEXT   "memo_session_update comes next"
#define REPEAT "call memo_session_skip_update, then run the whole step again"
#define TURNS  "run the turns that are left"
#define SLEEPS "memo_session_wake comes next"
#define NONE   "no step of states is over"
#define MORE   "more_follow was 1"
#define FUSES  "update_may has MEMO_MAY_FUSE"
#define EMPTY  "no bytes before the first backward"

/* What a call says there, whatever the plan is; or where it leads: a digit, of `where`. */
static const char* const table[N_CALLS][N_WHERE] = {
    [RUN_MORE] = {"1", "1", NEXT, "more_follow must be that", REPEAT, LOST_WORDS, SLEEPS},
    [RUN_LAST] = {"2", "2", NEXT, "2", REPEAT, LOST_WORDS, SLEEPS},
    [RUN_ALONE] = {"0", "1", NEXT, "the next turn is order", "4", LOST_WORDS, SLEEPS},
    [UPDATE] = {NONE, MORE, "0", TURNS, REPEAT, LOST_WORDS, SLEEPS},
    [VALUES] = {NONE, MORE, "2", TURNS, REPEAT, LOST_WORDS, SLEEPS},
    [SKIP] = {"0", "0", "0", TURNS, "0", LOST_WORDS, SLEEPS},
    [FLUSH] = {"0", "1", "2", TURNS, "4", LOST_WORDS, SLEEPS},
    [READ] = {"0", "1", "2", "in flight", "4", LOST_WORDS, SLEEPS},
    [READ_GRADIENT] = {EMPTY, "1", "2", "in flight", EMPTY, LOST_WORDS, SLEEPS},
    [WRITE] = {"0", "1", "2", "in flight", "4", "5", SLEEPS},
    [FILL] = {"0", "0", "0", TURNS, "0", "0", SLEEPS},
    [SLEEP] = {"0", "1", "2", TURNS, "4", LOST_WORDS, SLEEPS},
    [SNAPSHOT] = {"0", "1", "2", TURNS, "4", LOST_WORDS, SLEEPS},
    [WAKE] = {"does not sleep", "does not sleep", "does not sleep", "does not sleep",
              "does not sleep", "does not sleep", "0"},
};
static const char* expected(int32_t may, int which, where to) {
    const int is_late = which == SKIP || which == READ || which == READ_GRADIENT ||
                        which == WRITE || which == FILL || which == SNAPSHOT;
    if (may == MEMO_MAY_FUSE && to == OVER && (which == VALUES || is_late)) return FUSES;
    if (may == MEMO_MAY_FUSE && which == VALUES &&
        (to == IDLE || to == PART || to == AGAIN || to == LOST))
        return FUSES;
    return table[which][to];
}

/* Where a session is: what update says there. */
static where find(memo_session* s) {
    static const char* const words[] = {NONE, MORE, NULL, TURNS, REPEAT, LOST_WORDS, SLEEPS};
    if (!memo_session_update(s, &error)) return OVER;
    for (int k = 0; k < N_WHERE; k++)
        if (words[k] && strstr(error.message, words[k])) return (where)k;
    return N_WHERE;
}

/* Calls x where x moments, that a plan must take or may take, in an order of turns and without. */
TEST(what_is_legal_does_not_depend_on_the_plan) {
    int64_t n_cells = 0;
    for (int k = 0; k < 4 * MOMENTS; k++) {
        const int32_t moment = moments[k % MOMENTS];
        for (int to = 0; to < N_WHERE; to++)
            for (int which = 0; which < N_CALLS; which++) {
                memo_session_desc desc = desc_of(moment);
                const char* words = expected(moment, which, (where)to);
                memo_status status;
                if (k / MOMENTS % 2) desc.update_may &= ~MEMO_MAY_NOT_PASS;
                n_turns = k / MOMENTS / 2 ? 4 : 0;
                if (n_turns) desc.order = order, desc.n_order = n_turns, desc.device_bytes = 120000;
                if (n_turns) desc.shapes = with_alone, desc.n_shapes = 2;
                if (to == FLIGHT && !n_turns) continue;
                own_session* s = session_of(&desc);
                if (!s) return;
                bring(s, (where)to);
                status = call(s, which);
                n_cells++;
                IN_CASE("%s, %s%s, call %d: %s", names[k % MOMENTS], where_names[to],
                        n_turns ? " of an order" : "", which, status ? error.message : "OK");
                if (words[0] < '0' || words[0] > '9') {
                    CHECK(status == MEMO_STATUS_INVALID_STATE && strstr(error.message, words));
                    CHECK_IS(find(s), ==, to); /* nothing has changed */
                } else {
                    CHECK(!status);
                    CHECK_IS(find(s), ==, words[0] - '0');
                }
            }
    }
    printf("# %lld cells\n", (long long)n_cells);
}

/* By every plan: the call that returns it does nothing else, and no gradients are lost. */
TEST(an_error_between_micro_batches_is_the_next_calls) {
    for (int k = 0; k < MOMENTS; k++)
        for (int which = 0; which < N_CALLS; which++) {
            static float words[2][LAYERS][N_STATES][WEIGHTS];
            const memo_session_desc desc = desc_of(moments[k]);
            const where to = which == UPDATE ? OVER : PART;
            if (which == VALUES || which == RUN_MORE || which == WAKE) continue;
            IN_CASE("%s, call %d", names[k], which);
            for (int errs = 0; errs < 2; errs++) {
                own_session* s = session_of(&desc);
                bring(s, to);
                if (errs) {
                    CHECK(!memo_session_get_address(s, -1, 0));
                    CHECK_ERROR(call(s, which), INVALID_ARGUMENT, "out of range (-1)");
                }
                CHECK_OK(call(s, which));
                if (which != UPDATE && which != RUN_LAST) CHECK_OK(run(s, 0, 0));
                if (which != UPDATE) CHECK_OK(memo_session_update(s, &error));
                CHECK_OK(transfer(s, 0, words[errs]));
            }
            CHECK(!memcmp(words[0], words[1], sizeof words[0]));
        }
}

/* Values come with micro-batches, and some steps give others to their updates: in a pass, or in the
 * next step's forward.  Skipped ones are dropped; a micro-batch without values has those before. */
TEST(updates_find_the_values_of_their_step) {
    for (int k = 0; k < MOMENTS; k += 2) {
        const memo_session_desc desc = desc_of(moments[k]);
        own_session* s = session_of(&desc);
        n_looks = update_value = 0;
        for (int step = 1; step <= 40; step++) {
            const int gives = (int)memo_test_int(0, 1), sets = (int)memo_test_int(0, 1);
            const int skips = memo_test_int(0, 3) == 0, flushes = memo_test_int(0, 3) == 0;
            const int value = 1000 + step;
            memo_batch batch = MEMO_ZERO(memo_batch);
            if (gives || step == 1) batch_value = step;
            if (gives || step == 1) batch.values = &step, batch.values_bytes = sizeof step;
            CHECK_OK(memo_session_run(s, &batch, &error));
            if (sets) CHECK_OK(memo_session_set_update_values(s, &value, sizeof value, &error));
            if (skips) {
                CHECK_OK(memo_session_skip_update(s, &error));
                continue;
            }
            update_value = sets ? value : batch_value;
            CHECK_OK(memo_session_update(s, &error));
            if (flushes) CHECK_OK(memo_session_flush(s, &error));
        }
        batch_value = update_value = 0;
        CHECK_OK(memo_session_flush(s, &error));
        CHECK_IS(n_looks, >, 40 * LAYERS);
    }
}

/* A micro-batch of a step fails.  After memo_session_skip_update the whole step has the bits of one
 * without a failure; a forward alone in between changes nothing. */
TEST(a_step_that_fails_half_way_runs_again) {
    static float right[LAYERS][N_STATES][WEIGHTS], found[LAYERS][N_STATES][WEIGHTS];
    for (int k = 0; k < MOMENTS; k++)
        for (int fails = 0; fails < 2; fails++) {
            const memo_session_desc desc = desc_of(moments[k]);
            own_session* s = session_of(&desc);
            if (fails) {
                bring(s, AGAIN);
                CHECK_OK(run(s, 0, 1));
                CHECK_OK(memo_session_skip_update(s, &error));
            }
            CHECK_OK(run(s, 1, 0));
            CHECK_OK(run(s, 0, 0));
            CHECK_OK(memo_session_update(s, &error));
            CHECK_OK(transfer(s, 0, fails ? found : right));
        }
    CHECK(!memcmp(found, right, sizeof right));
    CHECK(right[0][W][1] != 0);
}

/* An update that fails leaves layers of different steps: in memo_session_update, in a backward, or
 * before a forward alone.  The session goes on when all states are set, and not before. */
TEST(an_update_that_fails_half_way_is_remembered) {
    static float words[LAYERS][N_STATES][WEIGHTS], found[LAYERS][N_STATES][WEIGHTS];
    for (int k = 0; k < MOMENTS; k++)
        for (int fills = 0; fills < 2; fills++) {
            const memo_session_desc desc = desc_of(moments[k]);
            own_session* s = session_of(&desc);
            CHECK_OK(run(s, 0, 0));
            CHECK_OK(memo_session_update(s, &error));
            CHECK_OK(transfer(s, 0, words));
            if (moments[k] == MEMO_MAY_DEFER) {
                CHECK_OK(run(s, 0, 0));
                CHECK_OK(memo_session_update(s, &error));
                update_fails = 1;
                CHECK_ERROR(run(s, 0, 1), DEVICE, "planted; the update has changed ");
                CHECK(strstr(error.message, LOST_WORDS));
                update_fails = 0;
            } else
                bring(s, LOST);
            CHECK_ERROR(run(s, 0, 0), INVALID_STATE, LOST_WORDS);
            CHECK_ERROR(memo_session_flush(s, &error), INVALID_STATE, LOST_WORDS);
            CHECK_ERROR(transfer(s, 0, found), INVALID_STATE, LOST_WORDS);

            /* All but one piece, which is not enough; then all. */
            if (fills)
                CHECK_OK(memo_session_fill_states(s, fill, &error));
            else {
                CHECK_OK(
                    memo_session_write_state(s, 0, W, 0, words[0][W], 4 * WEIGHTS - 4, &error));
                for (int32_t layer = 0; layer < LAYERS; layer++)
                    for (int32_t i = 0; i < N_STATES; i += M)
                        if (layer || i)
                            CHECK_OK(memo_session_write_state(s, layer, i, 0, words[layer][i],
                                                              4 * WEIGHTS, &error));
                CHECK_ERROR(transfer(s, 0, found), INVALID_STATE, LOST_WORDS);
                CHECK_OK(transfer(s, 1, words));
            }
            if (fills) memset(words, 0, sizeof words);
            CHECK_OK(transfer(s, 0, found));
            CHECK(!memcmp(found, words, sizeof words));
            CHECK_OK(run(s, 0, 0));
            CHECK_OK(memo_session_update(s, &error));
        }
}

static void update_host(MEMO_UNUSED void* user, MEMO_UNUSED int32_t layer, void* const* state) {
    for (int i = 0; i < WEIGHTS && state[W]; i++)
        ((float*)state[W])[i] -= ((float*)state[M])[i] = ((const float*)state[G])[i] + 1;
}
/* Copies of an update on the host, and the update itself, are late: what is filled in follows them. */
TEST(states_are_filled_after_updates_that_are_late) {
    static float words[LAYERS][N_STATES][WEIGHTS], zeros[LAYERS][N_STATES][WEIGHTS];
    for (int k = 0; k < MOMENTS; k++) {
        memo_session_desc desc = desc_of(moments[k]);
        own_device* host = new_host(0);
        memo_faults late;
        memo_faults_init(&late, host);
        late.delay_s = .002;
        desc.device = &late.device;
        desc.computes_on_host = 1;
        CHECK_OK(memo_stream_create(desc.device, "compute", 0, &desc.compute_stream, &error));
        desc.update_host = update_host;
        desc.update_on = MEMO_UPDATE_HOST;
        own_session* s = session_of(&desc);
        for (int i = 0; i < 8; i++) {
            IN_CASE("%s, step %d", names[k], i);
            late.seed = (uint64_t)memo_test_int(1, 1 << 20);
            CHECK_OK(run(s, 0, 0));
            CHECK_OK(memo_session_update(s, &error));
            CHECK_OK(memo_session_fill_states(s, fill, &error));
            CHECK_OK(transfer(s, 0, words));
            for (int32_t layer = 0; layer < LAYERS; layer++)
                for (int32_t state = 0; state < N_STATES; state += M)
                    CHECK(!memcmp(words[layer][state], zeros[layer][state], 4 * WEIGHTS));
        }
    }
}

/* --- layers that are left out --- */

/* LayerDrop: a layer that is left out of a micro-batch writes nothing, and is not recomputed.  The
 * gradients are those of a session that keeps everything, checked or not; without the call a checked
 * session takes the layer for a forgotten address. */
TEST(a_layer_may_be_left_out) {
    static float right[LAYERS][N_STATES][WEIGHTS], found[LAYERS][N_STATES][WEIGHTS];
    for (int k = 0; k < 5; k++) {
        memo_session_desc desc = desc_of(0);
        desc.policy = k == 0 ? MEMO_POLICY_KEEP : k % 2 ? MEMO_POLICY_SWAP : MEMO_POLICY_RECOMPUTE;
        desc.is_checked = k > 2;
        desc.device_bytes = k == 0 ? 0 : 80000;
        own_session* s = session_of(&desc);
        for (int step = 0; step < 2 * LAYERS; step++) {
            left_out = step % 2 ? step / 2 : -1;
            CHECK_OK(run(s, 0, 0));
            CHECK_OK(memo_session_update(s, &error));
        }
        CHECK_OK(transfer(s, 0, k ? found : right));
        CHECK_CASE(k == 0 || !memcmp(found, right, sizeof right), "session %d", k);
        memo_session_skip_layer(s, 1);
        CHECK_ERROR(run(s, 0, 0), INVALID_STATE, "memo_session_skip_layer: layer 1: its forward");
    }
}

/* --- groups --- */

static void nothing(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                    MEMO_UNUSED int32_t layer) {}
static void no_loss(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s) {}
static void no_rows(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s, MEMO_UNUSED int32_t layer,
                    MEMO_UNUSED int32_t tensor, MEMO_UNUSED int64_t begin,
                    MEMO_UNUSED int64_t end) {}

/* n_group is how many micro-batches a training call takes, whichever shape ran last. */
TEST(a_validation_leaves_the_group) {
    static const memo_item edge[] = {MEMO_ITEM("h", 4 * WIDTH, MEMO_MOVE, MEMO_EDGE),
                                     MEMO_ITEM("hidden", 4 * WIDTH, MEMO_ROWS)};
    static const memo_shape shapes[] = {{ROWS, 0}, {ROWS, 1}};
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    memo_batch batch = MEMO_ZERO(memo_batch);
    desc.tensors = edge, desc.n_tensors = 2, desc.n_layers = LAYERS;
    desc.n_rows = desc.slice_rows = ROWS;
    desc.micro_batches = 4, desc.n_group = 2, desc.shapes = shapes, desc.n_shapes = 2;
    desc.forward = desc.backward = nothing, desc.loss = no_loss, desc.recompute = no_rows;
    desc.timed_steps = -1;
    own_session* s = session_of(&desc);
    for (int k = 0; k < 4; k++) {
        CHECK_IS(memo_session_get_info(s).plan->n_group, ==, 2);
        batch.shape = k % 2;
        CHECK_OK(memo_session_run(s, &batch, &error));
    }
}

/* --- memory of the caller --- */

/* Copies are timed in the caller's memory, with a file too. */
TEST(copies_are_timed_in_memory_of_the_caller) {
    for (int64_t device_bytes = 6144; device_bytes <= 3 * 6144; device_bytes += 6144) {
        static const memo_item small[] = {MEMO_ITEM("input", 64, MEMO_MOVE),
                                          MEMO_ITEM("hidden", 64, MEMO_ROWS)};
        own_device* device = new_device(MEMO_ZERO(memo_host_device_desc));
        memo_session_desc desc = MEMO_ZERO(memo_session_desc);
        CHECK_OK(memo_stream_create(device, "compute", 0, &desc.compute_stream, &error));
        desc.device = device, desc.device_bytes = device_bytes, desc.host_bytes = 16384;
        CHECK_OK(memo_device_alloc(device, desc.device_bytes, &desc.device_memory, &error));
        CHECK_OK(memo_host_alloc(device, desc.host_bytes, &desc.host_memory, &error));
        desc.spill_directory = "build";
        desc.tensors = small, desc.n_tensors = 2, desc.n_layers = 8, desc.n_rows = 16;
        desc.forward = desc.backward = nothing, desc.recompute = no_rows;
        const memo_host_device_stats before = memo_host_device_get_stats(device);
        memo_session* s = session_of(&desc);
        CHECK_IS(memo_host_device_get_stats(device).device_peak_bytes, ==,
                 before.device_peak_bytes);
        memo_session_destroy(s);
        CHECK_OK(memo_device_free(device, desc.device_memory, &error));
        CHECK_OK(memo_host_free(device, desc.host_memory, &error));
    }
}

/* --- memory that cannot be pinned --- */

static memo_status create_pinnable(int64_t pinnable_bytes, int64_t host_bytes,
                                   int64_t device_bytes) {
    own_device* device = new_device((memo_host_device_desc){.host_memory_bytes = pinnable_bytes});
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    memo_session* s = NULL;
    CHECK_OK(memo_stream_create(device, "compute", 0, &desc.compute_stream, &error));
    desc.device = device, desc.device_bytes = device_bytes, desc.host_bytes = host_bytes;
    desc.tensors = items, desc.n_tensors = N_TENSORS, desc.n_layers = 16, desc.n_rows = 4 * ROWS;
    desc.forward = desc.backward = nothing, desc.recompute = no_rows, desc.timed_steps = -1;
    const memo_status status = memo_session_create(&desc, &s, &error);
    if (s && !host_bytes) CHECK_IS(memo_session_get_info(s).plan->host_bytes, <=, pinnable_bytes);
    memo_session_destroy(s);
    return status;
}

/* Without host_bytes a plan may pin more than the device can: it is made again with what can be
 * pinned, or the error names budgets that work. */
TEST(what_cannot_be_pinned_is_planned_again) {
    long long n_opened = 0, n_told = 0, host_bytes = 0, device_bytes = 0;
    for (int64_t device = 140000; device <= 600000; device *= 4)
        for (int64_t pinnable = 4096; pinnable <= 400000; pinnable *= 6) {
            const char* at;
            IN_CASE("device %lld, pinnable %lld", (long long)device, (long long)pinnable);
            if (create_pinnable(pinnable, 0, device) == MEMO_STATUS_OK) {
                n_opened++;
                continue;
            }
            n_told++;
            CHECK_CASE(!strncmp(error.message, "memo_session_desc.host_bytes: 0", 31), "%s",
                       error.message);
            at = strstr(error.message, "; with ");
            CHECK(at && sscanf(at, "; with %lld", &host_bytes) == 1);
            CHECK_IS(host_bytes, <=, pinnable);
            at = strstr(error.message, "or device_bytes to ");
            CHECK_CASE(at && sscanf(at, "or device_bytes to %lld", &device_bytes) == 1, "%s",
                       error.message);
            CHECK_OK(create_pinnable(pinnable, host_bytes, device_bytes));
        }
    CHECK(n_opened > 1 && n_told > 0);
}
