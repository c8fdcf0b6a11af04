/* test_states_law.c - the engine of states alone, in steps of any kind and in any order: every state
 * that a visit uses, and all that is read at the end, has the bytes of plain arrays.  Without any of
 * the copies some have not.  If a stream computes, threads run in an order drawn from a seed. */
#include "turns.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "memo_test.h"
#include "random_turns.h"

enum { LAYERS_MAX = 9, STATES = 4, BYTES_MAX = 5000, LATE_MAX = 16, PASSES_MAX = 64 };
enum { ORDER_MAX = 3 * 2 * (LAYERS_MAX - 2) };

/* What an operation finds in a state, and leaves there: one value in all bytes; -1: any, none. */
typedef struct state_use {
    uint8_t* bytes;
    int64_t n_bytes;
    int32_t expected, left;
} state_use;

/* All that a visit of a layer does.  pass: of updates, which has handed a value over; -1: none. */
typedef struct layer_use {
    state_use states[STATES];
    int32_t pass;
} layer_use;

static memo_error error;
static struct {
    memo_device host;                       /* without the one copy that is dropped */
    int64_t n_copies, dropped, n_before[3]; /* before the first step, the second and the last */
    int is_same;                            /* it would have changed nothing */
} device;
static struct {
    memob_states_desc desc;
    memo_state states[STATES];
    int32_t kinds[LAYERS_MAX];
    uint32_t streamed[LAYERS_MAX], spilled[LAYERS_MAX];
    int32_t turns[ORDER_MAX];
    memob_states* engine;
    memob_step *step, *other; /* other: with slices */
    int has_surprises;
    memo_device* host;
    uint8_t value[LAYERS_MAX]
                 [STATES]; /* of all bytes of a state, when all that was enqueued ends */
    int has_gradients[LAYERS_MAX];
    layer_use late[LAYERS_MAX][LATE_MAX]; /* updates on the host that were enqueued */
    int32_t n_late[LAYERS_MAX], n_run[LAYERS_MAX];
    int32_t n_passes, handed[PASSES_MAX]; /* 1: by the trainer's own computation before the pass */
    int64_t n_wrong, n_checked;
} p;

static memo_status copy_but_one(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                const void* from, int64_t size_bytes, memo_error* e) {
    if (device.n_copies++ == device.dropped) {
        const memo_status status = device.host.stream_synchronize(context, stream, e);
        device.is_same = !memcmp(to, from, (size_t)size_bytes);
        return status;
    }
    return device.host.copy(context, stream, kind, to, from, size_bytes, e);
}

static int has(int32_t layer, int32_t s) { return (int)(p.engine->layers[layer].has >> s & 1); }

/* All bytes of a state are those of the plain array. */
static void check_state(const uint8_t* bytes, int64_t n_bytes, int32_t expected) {
    __atomic_fetch_add(&p.n_checked, 1, __ATOMIC_RELAXED); /* updates on the host check, too */
    for (int64_t k = 0; k < n_bytes; k++)
        if (bytes[k] != expected) {
            __atomic_fetch_add(&p.n_wrong, 1, __ATOMIC_RELAXED);
            return;
        }
}

/* Now. */
static memo_status run_use(void* use, memo_error* e) {
    const layer_use* u = (const layer_use*)use;
    (void)e;
    if (u->pass >= 0 && !p.handed[u->pass]) __atomic_fetch_add(&p.n_wrong, 1, __ATOMIC_RELAXED);
    for (int32_t s = 0; s < STATES; s++) {
        const state_use* of = &u->states[s];
        if (of->expected >= 0) check_state(of->bytes, of->n_bytes, of->expected);
        if (of->left >= 0) memset(of->bytes, of->left, (size_t)of->n_bytes);
    }
    return MEMO_STATUS_OK;
}
static memo_status hand_over(void* pass, memo_error* e) {
    (void)e;
    p.handed[*(const int32_t*)pass] = 1;
    return MEMO_STATUS_OK;
}

/* By the thread that calls, or on the stream. */
static void compute(memo_status (*function)(void*, memo_error*), void* args, int64_t n_bytes) {
    if (p.desc.computes_on_host)
        CHECK(!function(args, &error));
    else
        CHECK(!memo_host_device_launch(p.host, p.desc.compute_stream, function, args, n_bytes,
                                       &error));
}

/* What a pass of a layer finds, and what it leaves in the plain arrays. */
static layer_use use_of(int32_t pass, int32_t layer, int on_host) {
    const int begins = pass == MEMOB_BACKWARD && !p.has_gradients[layer];
    layer_use u;
    memset(&u, 0, sizeof u);
    u.pass = -1;
    for (int32_t s = 0; s < STATES; s++) {
        const uint32_t uses = p.states[s].uses;
        const int is_gradient = uses == MEMO_STATE_GRADIENT;
        const uint32_t is_used = pass == MEMOB_FORWARD ? uses & MEMO_STATE_FORWARD
                                 : pass == MEMOB_BACKWARD
                                     ? uses & (MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT)
                                     : uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT);
        uint8_t* value = &p.value[layer][s];
        state_use* of = &u.states[s];
        of->expected = of->left = -1;
        if (!has(layer, s) || !is_used) continue;
        of->bytes = (uint8_t*)(on_host ? memob_states_get_host_address(p.engine, layer, s)
                                       : memob_states_get_address(p.engine, layer, s));
        of->n_bytes = p.states[s].size_bytes;
        if (begins && is_gradient) *value = 0;
        if (!(pass == MEMOB_UPDATE && uses & MEMO_STATE_MADE)) of->expected = *value;
        if (pass == MEMOB_BACKWARD && is_gradient)
            of->left = *value = (uint8_t)(*value + layer + 3);
        if (pass == MEMOB_UPDATE && !is_gradient)
            of->left = *value = (uint8_t)(5 * *value + layer + s + 1);
    }
    p.has_gradients[layer] |= pass == MEMOB_BACKWARD;
    if (pass == MEMOB_UPDATE) p.has_gradients[layer] = 0;
    return u;
}

static void use(int32_t pass, int32_t layer) {
    layer_use u = use_of(pass, layer, 0);
    compute(run_use, &u, sizeof u);
}

/* An update on the host will come. */
static void use_late(int32_t layer, int32_t pass) {
    layer_use* u = &p.late[layer][p.n_late[layer]++ % LATE_MAX];
    *u = use_of(MEMOB_UPDATE, layer, 1);
    u->pass = pass;
}
static memo_status update_host(void* user, int32_t layer, memo_error* e) {
    (void)user;
    return run_use(&p.late[layer][p.n_run[layer]++ % LATE_MAX], e);
}

static memo_status update(void* user, int32_t layer) {
    (void)user;
    use(MEMOB_UPDATE, layer);
    return MEMO_STATUS_OK;
}

static memo_status look(void* user, int32_t pass, int32_t layer, int is_end) {
    (void)user;
    if (pass != MEMOB_UPDATE && (!is_end || pass == MEMOB_FORWARD)) use(pass, layer);
    if (pass == MEMOB_UPDATE && p.engine->updates && !is_end)
        use_late(layer, p.engine->step->phase == MEMOB_UPDATES ? p.n_passes - 1 : -1);
    return MEMO_STATUS_OK;
}

static void run_layers(int32_t pass, int32_t begin, int32_t end) {
    const int32_t n = 2 * p.engine->step->list.desc.n_slices; /* begins and ends of a layer */
    for (int32_t k = n * begin; k < n * end; k++) {
        const int32_t of = pass == MEMOB_BACKWARD ? n * (begin + end) - 1 - k : k;
        CHECK_OK(memob_states_visit(p.engine, pass, of / 2, k % 2, &error));
    }
}

/* The planned step, or that of another shape. */
static memob_step* any_step(void) {
    return p.has_surprises && memo_test_int(0, 2) == 0 ? p.other : p.step;
}

/* Turns of an order up to `end`, as a stage of a pipeline runs them. */
static void run_turns(int is_last, int32_t end) {
    const int32_t each = (p.desc.n_layers - 2) / p.desc.n_chunks;
    CHECK(!memob_states_begin_round(p.engine, any_step(), NULL, is_last, 0, &error));
    for (int32_t k = 0; k < end; k++) {
        const int32_t turn = p.turns[k], chunk = turn < 0 ? -1 - turn : turn;
        CHECK_OK(memob_states_begin_turn(p.engine, turn, &error));
        run_layers(turn < 0 ? MEMOB_BACKWARD : MEMOB_FORWARD, chunk * each, (chunk + 1) * each);
        CHECK_OK(memob_states_end_turn(p.engine, turn, &error));
    }
}

static void run_batch(int is_last, int is_forward_only) {
    const int32_t n = p.desc.n_layers - 2;
    if (p.desc.turns && !is_forward_only) {
        run_turns(is_last, p.desc.n_turns);
        return;
    }
    CHECK(!memob_states_begin_round(p.engine, any_step(), NULL, is_last, is_forward_only, &error));
    CHECK_OK(memob_states_begin_turn(p.engine, 0, &error));
    run_layers(MEMOB_FORWARD, 0, n);
    if (!is_forward_only) run_layers(MEMOB_BACKWARD, 0, n);
    CHECK_OK(memob_states_end_turn(p.engine, 0, &error));
}

/* A pass of updates, behind what the trainer computes from all gradients. */
static void run_updates(void) {
    compute(hand_over, &p.n_passes, sizeof p.n_passes);
    p.n_passes++;
    CHECK(p.n_passes <= PASSES_MAX);
    CHECK_OK(memob_states_update_all(p.engine, &error));
}

static void transfer(int32_t layer, int32_t s, int is_out) {
    uint8_t bytes[BYTES_MAX];
    if (!has(layer, s) || p.states[s].uses == MEMO_STATE_GRADIENT) return;
    if (!is_out) p.value[layer][s] = (uint8_t)memo_test_int(1, 255);
    memset(bytes, is_out ? 0 : p.value[layer][s], sizeof bytes);
    CHECK(!memob_states_transfer(p.engine, layer, s, is_out, 0, bytes, p.states[s].size_bytes,
                                 &error));
    if (is_out) check_state(bytes, p.states[s].size_bytes, p.value[layer][s]);
}

/* Steps with what trainers do between them. */
static void run_steps(int n_steps, int has_surprises) {
    for (int step = 0; step < n_steps; step++) {
        if (step < 2) device.n_before[step > 0] = device.n_copies;
        if (step == n_steps - 1) device.n_before[2] = device.n_copies;
        const int64_t n = has_surprises ? memo_test_int(1, 3) : p.step->list.desc.n_rounds;
        const int is_late = has_surprises && memo_test_int(0, 4) == 0;
        for (int64_t k = 0; k < n; k++) {
            if (has_surprises && !p.engine->n_pending && memo_test_int(0, 3) == 0) run_batch(0, 1);
            if (has_surprises && !p.engine->n_pending && memo_test_int(0, 5) == 0)
                transfer((int32_t)memo_test_int(0, p.desc.n_layers - 1),
                         (int32_t)memo_test_int(0, STATES - 1), (int)memo_test_int(0, 1));
            run_batch(k == n - 1 && !is_late, 0);
        }
        if (has_surprises && memo_test_int(0, 5) == 0 && !p.engine->is_running &&
            p.engine->update_at != MEMO_UPDATE_FUSED) {
            CHECK(!memob_states_abandon(p.engine, &error)); /* a step without an update */
            memset(p.has_gradients, 0, sizeof p.has_gradients);
        } else if (p.engine->update_at == MEMO_UPDATE_DEFERRED && !p.engine->updates)
            memob_states_defer(p.engine);
        else if (p.engine->update_at != MEMO_UPDATE_FUSED || is_late)
            run_updates();
        if (!has_surprises || memo_test_int(0, 4)) continue;
        if (p.engine->n_pending) run_updates(); /* a flush */
        if (p.desc.turns)
            run_turns(0, (int32_t)memo_test_int(0, p.desc.n_turns));
        else
            run_batch(0, 0);
        CHECK(!memob_states_abandon(p.engine, &error)); /* gradients are dropped */
        memset(p.has_gradients, 0, sizeof p.has_gradients);
    }
    if (p.engine->n_pending) run_updates();
    for (int32_t l = 0; l < p.desc.n_layers; l++)
        for (int32_t s = 0; s < STATES; s++) transfer(l, s, 1);
}

/* The chunks of up to three micro-batches, each in its order, with turns of the others between. */
/* Several kinds; weights that are made or not; resident, streamed and spilled; each update; orders
 * of turns. */
static void random_problem(int is_all_streamed) {
    static const uint32_t uses[] = {MEMO_STATE_WEIGHTS, MEMO_STATE_GRADIENT, MEMO_STATE_UPDATE, 3};
    const int has_file = memo_test_int(0, 2) == 0, on_host = !has_file && memo_test_int(0, 2) == 0;
    const int is_empty = on_host && memo_test_int(0, 3) == 0; /* updates of no state */
    memset(&p, 0, sizeof p);
    p.desc.n_layers = (int32_t)memo_test_int(3, LAYERS_MAX);
    p.desc.n_states = STATES;
    p.desc.update_at = (int32_t)memo_test_int(MEMO_UPDATE_PASS, MEMO_N_UPDATE_MOMENTS - 1);
    for (int32_t s = 0; s < STATES; s++) {
        p.states[s].name = "state";
        p.states[s].uses = uses[s] | (!s && memo_test_int(0, 1) ? MEMO_STATE_MADE : 0u);
        p.states[s].size_bytes = is_empty ? 0 : memo_test_int(1, BYTES_MAX);
        p.states[s].kinds = memo_test_int(0, 2) ? 0 : 3;
    }
    for (int32_t l = 0; l < p.desc.n_layers; l++) {
        const int32_t open = l || p.desc.n_layers > 3; /* else all three are open at once */
        p.kinds[l] = (int32_t)memo_test_int(0, 2);
        p.streamed[l] = (uint32_t)(is_all_streamed ? 15 : memo_test_int(0, 15));
        p.spilled[l] = has_file ? (uint32_t)memo_test_int(0, 15) : 0;
        if (on_host && p.desc.n_layers > 3) p.streamed[l] |= 7;
        if (!open) p.streamed[l] = 0;
    }
    p.desc.trainer.update = update;
    p.desc.trainer.look = look;
    if (on_host && p.desc.n_layers > 3) p.desc.trainer.update_host = update_host;
    p.desc.states = p.states;
    p.desc.layer_kinds = p.kinds;
    p.desc.streamed = p.streamed;
    p.desc.spilled = p.spilled;
    p.desc.spill_directory = memo_test_folder();
    p.desc.computes_on_host = 1;
    if (memo_test_int(0, 1)) {
        p.desc.n_chunks = (int32_t)memo_test_int(1, p.desc.n_layers - 2);
        p.desc.n_turns = random_turns(p.desc.n_layers - 2, &p.desc.n_chunks, p.turns);
        p.desc.turns = p.turns;
    }
}

/* Runs the problem from its first values on; drops a copy of number `dropped`. */
static void run_problem(uint64_t seed, int64_t dropped, int n_steps, int has_surprises) {
    memo_host_device_desc desc;
    memo_device *host = NULL, table;
    memset(&desc, 0, sizeof desc);
    if (!p.desc.computes_on_host) turns_begin(seed);
    CHECK(!memo_host_device_create(&desc, &host, &error));
    memo_test.state = seed;
    device.host = table = *host;
    table.copy = copy_but_one;
    device.n_copies = 0;
    device.dropped = dropped;

    p.host = host;
    p.desc.device = &table;
    p.n_wrong = p.n_checked = p.n_passes = 0;
    memset(p.value, 0, sizeof p.value);
    memset(p.has_gradients, 0, sizeof p.has_gradients);
    memset(p.n_late, 0, sizeof p.n_late);
    memset(p.n_run, 0, sizeof p.n_run);
    memset(p.handed, 0, sizeof p.handed);
    if (!p.desc.computes_on_host)
        CHECK(!memo_stream_create(host, "compute", 0, &p.desc.compute_stream, &error));
    CHECK(!memob_states_create(&p.desc, 0, &p.engine, &error));
    if (p.engine)
        CHECK_OK(memob_states_get_step(p.engine, 1, (int32_t)memo_test_int(1, 4), &p.step, &error));
    CHECK_OK(memob_states_get_step(p.engine, (int32_t)memo_test_int(1, 3),
                                   (int32_t)memo_test_int(1, 4), &p.other, &error));
    p.has_surprises = has_surprises;
    if (p.step && p.other) run_steps(n_steps, has_surprises);
    memob_states_destroy(p.engine);

    if (p.desc.compute_stream) memo_stream_destroy(host, p.desc.compute_stream, &error);
    memo_host_device_destroy(host);
    turns_end();
}

/* Both places take the most of two neighbors, also if the first and the last layer are large. */
TEST(places_take_two_neighbors) {
    const int32_t kinds[] = {1, 0, 0, 0, 0, 2};
    const uint32_t streamed[] = {7, 7, 7, 7, 7, 7};
    const memo_state table[] = {{"weights", 1024, MEMO_STATE_FORWARD | MEMO_STATE_UPDATE, 1},
                                {"embedding", 8192, MEMO_STATE_FORWARD | MEMO_STATE_UPDATE, 2},
                                {"classifier", 4096, MEMO_STATE_FORWARD | MEMO_STATE_UPDATE, 4}};
    memob_states_desc desc = MEMO_ZERO(memob_states_desc);
    memob_states states = MEMO_ZERO(memob_states);
    desc.states = table;
    desc.n_states = 3;
    desc.n_layers = 6;
    desc.layer_kinds = kinds;
    desc.streamed = streamed;
    desc.spilled = streamed;
    desc.spill_directory = "/tmp";
    CHECK_OK(memob_states_init(&states, &desc, &error));
    CHECK_IS(states.sizes.device_bytes, ==, 8192 + 1024);
    CHECK_IS(states.sizes.host_bytes, ==, 8192 + 4096); /* whole pages */
    for (int32_t l = 0; l < 5; l++) {
        const int64_t a = memoi_states_bytes(&states, l, l == 0)->at[0];
        const int64_t b = memoi_states_bytes(&states, l + 1, l == 4 ? 2 : 0)->at[0];
        const int64_t n = l == 0 ? 8192 : 1024, m = l == 4 ? 4096 : 1024;
        CHECK_CASE(a + n <= b || b + m <= a, "layer %d at %lld, the next at %lld", (int)l,
                   (long long)a, (long long)b);
    }
    memob_states_free(&states);
}

TEST(states_have_the_bytes_of_plain_arrays_in_any_order) {
    const int n = memo_test_cases(80, 4000);
    int64_t n_checked = 0;
    for (int i = 0; i < n; i++) {
        random_problem(i % 2);
        p.desc.computes_on_host = i % 8 != 3; /* threads by turns are slow */
        run_problem(memo_test_random(), -1, 4, i % 4 > 0);
        CHECK_CASE(!p.n_wrong, "case %d: %lld of %lld", i, (long long)p.n_wrong,
                   (long long)p.n_checked);
        n_checked += p.n_checked;
    }
    CHECK(n_checked > 25 * n);
}

/* In steps as planned no copy is too many, but for one: a value that its update makes anew is stored
 * in case that the update is skipped.  What the last step fetches for another one is not used. */
TEST(a_copy_that_is_dropped_is_found) {
    int64_t n_found[] = {0, 0}, n_dropped[] = {0, 0}; /* with made weights */
    for (int i = 0; i < memo_test_cases(16, 400); i++) {
        uint64_t seed;
        int64_t first, n;
        random_problem(1);
        seed = memo_test_random();
        run_problem(seed, -1, 4, 0);
        first = device.n_before[1];
        n = device.n_before[2] - first;
        for (int k = 0; k < 10 && n; k++) {
            memo_test.state = seed + (uint64_t)k + 1;
            run_problem(seed, first + memo_test_int(0, n - 1), 4, 0);
            if (device.is_same) continue;
            n_dropped[p.states[0].uses & MEMO_STATE_MADE ? 1 : 0]++;
            n_found[p.states[0].uses & MEMO_STATE_MADE ? 1 : 0] += p.n_wrong > 0;
        }
    }
    printf("# %lld of %lld and %lld of %lld dropped copies are found\n", (long long)n_found[0],
           (long long)n_dropped[0], (long long)n_found[1], (long long)n_dropped[1]);
    CHECK(n_found[0] == n_dropped[0] && 10 * n_found[1] > 9 * n_dropped[1]);
}
