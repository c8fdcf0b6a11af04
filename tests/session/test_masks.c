/* test_masks.c - steps that leave states out, states that a forward alone reads, and states that
 * layers share: the bits of a trainer that does the same by itself, the bytes that travel, and what
 * is refused.
 * test_random_calls.c has random choices beside plain arrays. */
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "owned.h"
#include "trainer_words.h"

/* A state of the layer that is open; NULL: it lacks the state, or the step leaves it out. */
static uint64_t mix_state(uint64_t h, memo_session* s, const memo_session_desc* d, int32_t layer,
                          int32_t state) {
    return t_mix_words(h, memo_session_get_state(s, layer, state), d->states[state].size_bytes / 8);
}
static void add_words(memo_session* s, const memo_session_desc* d, int32_t layer, int32_t state,
                      uint64_t h) {
    t_add_words(memo_session_get_state(s, layer, state), d->states[state].size_bytes / 8, h);
}
static void change_words(memo_session* s, const memo_session_desc* d, int32_t layer, int32_t state,
                         uint64_t h) {
    t_change_words(memo_session_get_state(s, layer, state), d->states[state].size_bytes / 8, h);
}

enum { LAYERS = 10, STEPS = 12, ADAPTERS = 4, WEIGHT_WORDS = 512, ADAPTER_WORDS = 64 };
enum scene { TRAINS_BY_TURNS, TENANTS, AVERAGED, REFERENCE };

/* Layers of weights; of adapters, one of which trains in a step; or of an average beside. */
typedef struct scripted {
    enum scene scene;
    int is_masked, is_alone; /* the batch names states; the average is ALONE */
    memo_session_desc desc;
    memo_state states[1 + 3 * ADAPTERS];
    char names[1 + 3 * ADAPTERS][8];
    memo_item input;
    int step;           /* in `update` that of the gradients */
    uint64_t x, output; /* hashes of the forward */
    uint32_t masks[2][LAYERS + 2];
} scripted;
enum { W, G, M, A }; /* states of the other scenes */

static int adapter(const scripted* t, int k) { return 1 + 3 * (t->step % ADAPTERS) + k; }
static int trains(const scripted* t, int32_t layer) {
    return t->scene != TRAINS_BY_TURNS || layer % 5 == t->step % 5;
}

static void forward(void* user, memo_session* s, int32_t layer) {
    scripted* t = (scripted*)user;
    const int is_alone = memo_session_get_batch(s).is_forward_only;
    const int reads = t->scene >= AVERAGED && is_alone ? A : W;
    if (layer == 0) t->x = (uint64_t)t->step;
    t->x = mix_state(t->x, s, &t->desc, layer, reads);
    if (t->scene == TENANTS) t->x = mix_state(t->x, s, &t->desc, layer, adapter(t, 0));
    if (!is_alone) *(uint64_t*)memo_session_get_address(s, layer, 0) = t->x;
    if (is_alone && layer == LAYERS - 1) t->output = t_mix(t->output, t->x);
}

static void backward(void* user, memo_session* s, int32_t layer) {
    scripted* t = (scripted*)user;
    const int gradient = t->scene == TENANTS ? adapter(t, 1) : G;
    uint64_t h = t_mix(t->x, *(uint64_t*)memo_session_get_address(s, layer, 0));
    t->x = h = mix_state(h, s, &t->desc, layer, W);
    if (t->scene == REFERENCE) h = t_mix(h, t->output);
    if (trains(t, layer)) add_words(s, &t->desc, layer, gradient, h);
}

static void update_layer(const scripted* t, memo_session* s, int32_t layer) {
    const int is_tenant = t->scene == TENANTS;
    const uint64_t h = mix_state(1, s, &t->desc, layer, is_tenant ? adapter(t, 1) : G);
    change_words(s, &t->desc, layer, is_tenant ? adapter(t, 2) : M, h);
    change_words(s, &t->desc, layer, is_tenant ? adapter(t, 0) : W, h);
    if (t->scene == AVERAGED) change_words(s, &t->desc, layer, A, h);
}

static void update(void* user, memo_session* s, int32_t layer) {
    scripted* t = (scripted*)user;
    const int now = t->step;
    if (layer < 0 || layer >= LAYERS) return;
    memcpy(&t->step, memo_session_get_batch(s).values, sizeof t->step);
    if (t->is_masked) CHECK(trains(t, layer)); /* no other layer is updated */
    if (trains(t, layer)) update_layer(t, s, layer);
    t->step = now;
}

static void init(scripted* t, enum scene scene, int is_masked, int is_alone) {
    static const uint32_t of_tenants[] = {MEMO_STATE_WEIGHTS, MEMO_STATE_GRADIENT,
                                          MEMO_STATE_UPDATE};
    const uint32_t reads = is_alone ? MEMO_STATE_ALONE : MEMO_STATE_FORWARD;
    const uint32_t uses[] = {MEMO_STATE_WEIGHTS, MEMO_STATE_GRADIENT, MEMO_STATE_UPDATE,
                             reads | (scene == AVERAGED ? MEMO_STATE_UPDATE : 0u)};
    const int n = scene == TENANTS ? 1 + 3 * ADAPTERS : scene == TRAINS_BY_TURNS ? 3 : 4;
    memset(t, 0, sizeof *t);
    t->desc = MEMO_ZERO(memo_session_desc);
    t->scene = scene, t->is_masked = is_masked, t->is_alone = is_alone;
    t->input = (memo_item)MEMO_ITEM("input", 8, MEMO_MOVE);
    for (int k = 0; k < n; k++) {
        snprintf(t->names[k], sizeof t->names[k], "s%d", k);
        t->states[k] = (memo_state){t->names[k], 8 * WEIGHT_WORDS, uses[k % 4], 0};
        if (scene != TENANTS) continue;
        t->states[k].uses = k ? of_tenants[(k - 1) % 3] : MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD;
        if (k) t->states[k].size_bytes = 8 * ADAPTER_WORDS;
    }
    t->desc.tensors = &t->input, t->desc.n_tensors = 1;
    t->desc.n_layers = LAYERS, t->desc.n_rows = 4;
    t->desc.states = t->states, t->desc.n_states = n;
    t->desc.user = t;
    t->desc.forward = forward, t->desc.backward = backward, t->desc.update = update;
    t->desc.micro_batches = 2;
    t->desc.timed_steps = -1;
}

/* The masks of this step, and of a forward alone. */
static void choose(scripted* t) {
    for (int32_t l = 0; l < LAYERS + 2; l++) {
        const uint32_t all = (1u << W) | (1u << G) | (1u << M);
        t->masks[0][l] = trains(t, l - 1) ? all : 1u << W;
        t->masks[1][l] = 1u << A;
        if (t->scene == TENANTS) t->masks[0][l] = 1u | 7u << adapter(t, 0);
        if (t->scene == AVERAGED) t->masks[0][l] = all | 1u << A;
    }
}

typedef struct result {
    uint64_t states, output;
    int64_t to_device_bytes, alone_bytes; /* of the later steps, and of a forward alone in them */
} result;

static int64_t to_device(const memo_session* s) {
    return memo_session_get_info(s).states_to_device_bytes;
}

static void look(scripted* t, memo_session* s, result* r) {
    const int64_t before = to_device(s);
    memo_batch batch = {.is_forward_only = 1, .states = t->is_masked ? t->masks[1] : NULL};
    CHECK_OK(memo_session_run(s, &batch, &error));
    r->alone_bytes = to_device(s) - before;
}

static result run(scripted* t, int update_may, int64_t device_bytes, int is_checked) {
    static uint64_t words[WEIGHT_WORDS];
    result r = {0};
    int64_t begin_bytes = 0, looks_bytes = 0;
    t->desc.update_may = update_may;
    t->desc.is_checked = is_checked;
    t->desc.device_bytes = device_bytes;
    own_session* s = new_session(&t->desc);
    for (int32_t l = 0; l < LAYERS && s; l++)
        for (int32_t k = 0; k < t->desc.n_states; k++) {
            if (t->states[k].uses == MEMO_STATE_GRADIENT) continue;
            for (int i = 0; i < WEIGHT_WORDS; i++)
                words[i] = t_mix((uint64_t)(l * 100 + k), (uint64_t)i);
            CHECK_OK(memo_session_write_state(s, l, k, 0, words, t->states[k].size_bytes, &error));
        }
    for (t->step = 0; t->step < STEPS && s; t->step++) {
        if (t->step == STEPS / 2) begin_bytes = to_device(s), looks_bytes = 0;
        choose(t);
        if (t->scene == REFERENCE) look(t, s, &r), looks_bytes += r.alone_bytes;
        for (int k = 0; k < 2; k++) {
            memo_batch batch = {.more_follow = !k, .states = t->is_masked ? t->masks[0] : NULL};
            batch.values = &t->step, batch.values_bytes = sizeof t->step;
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        CHECK_OK(memo_session_update(s, &error));
        if (t->scene == AVERAGED && t->step % 3 == 2) look(t, s, &r), looks_bytes += r.alone_bytes;
    }
    if (s) r.to_device_bytes = to_device(s) - begin_bytes - looks_bytes;
    for (int32_t l = 0; l < LAYERS && s; l++)
        for (int32_t k = 0; k < t->desc.n_states; k++) {
            if (t->states[k].uses == MEMO_STATE_GRADIENT) continue;
            CHECK_OK(memo_session_read_state(s, l, k, 0, words, t->states[k].size_bytes, &error));
            for (int64_t i = 0; i < t->states[k].size_bytes / 8; i++)
                r.states = t_mix(r.states, words[i]);
        }
    r.output = t->output;
    return r;
}

/* The same bits with masks, under every budget and moment; their bytes in the least budget. */
TEST(steps_that_leave_states_out_have_the_same_bits) {
    static const int may[] = {0, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS,
                              MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS};
    static const int64_t more[] = {0, 40000, 10000000, 0};
    static const double most[] = {.60, .63, .82, .82};
    for (int scene = TRAINS_BY_TURNS; scene <= REFERENCE; scene++)
        for (int m = 0; m < 3; m++) {
            scripted t;
            init(&t, (enum scene)scene, 0, 0);
            int64_t least_bytes = 0;
            t.desc.update_may = may[m];
            CHECK_OK(memo_session_get_least(&t.desc, &least_bytes, &error));
            const result all = run(&t, may[m], least_bytes, 0);
            for (int k = 0; k < (m == scene % 3 ? 4 : 3); k++) {
                IN_CASE("scene %d, update_may %d, %lld more bytes%s", scene, may[m],
                        (long long)more[k], k < 3 ? "" : ", checked");
                init(&t, (enum scene)scene, 1, scene >= AVERAGED);
                const result one = run(&t, may[m], least_bytes + more[k], k == 3);
                CHECK(one.states == all.states && one.output == all.output);
                CHECK(k != 2 || one.to_device_bytes == 0);
                if (k || m) continue;
                printf("# scene %d: %.2f of the bytes to the device, %.2f in a forward alone\n",
                       scene, (double)one.to_device_bytes / (double)all.to_device_bytes,
                       (double)one.alone_bytes / (double)(all.alone_bytes ? all.alone_bytes : 1));
                CHECK((double)one.to_device_bytes < most[scene] * (double)all.to_device_bytes);
            }
        }
}

TEST(masks_are_those_of_the_step) {
    scripted t;
    init(&t, TRAINS_BY_TURNS, 1, 0);
    own_session* s = new_session(&t.desc);
    choose(&t);
    memo_batch batch = {.more_follow = 1, .states = t.masks[0]};
    CHECK_OK(memo_session_run(s, &batch, &error));
    CHECK(memo_session_get_batch(s).states && memo_session_get_batch(s).states[1] == t.masks[0][1]);
    batch.states = NULL;
    CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_ARGUMENT, "not those of the first");
    const memo_batch alone = {.is_forward_only = 1}; /* which has masks of its own */
    CHECK_OK(memo_session_run(s, &alone, &error));
    batch.states = t.masks[0];
    for (int l = 0; l < LAYERS + 2; l++) t.masks[0][l] |= 1u << 20; /* of no state */
    batch.more_follow = 0;
    CHECK_OK(memo_session_run(s, &batch, &error));
    CHECK_OK(memo_session_update(s, &error));

    /* Without states there is nothing to leave out. */
    memo_session_desc desc = t.desc;
    desc.n_states = 0, desc.states = NULL, desc.update = NULL;
    own_session* plain = new_session(&desc);
    batch.more_follow = 0;
    CHECK_ERROR(memo_session_run(plain, &batch, &error), INVALID_ARGUMENT, "no states");
}

TEST(a_state_alone_is_for_forwards_alone) {
    scripted t;
    memo_session* none = NULL;
    init(&t, AVERAGED, 0, 1);
    t.states[G].uses = MEMO_STATE_GRADIENT | MEMO_STATE_ALONE;
    CHECK_ERROR(memo_session_create(&t.desc, &none, &error), INVALID_ARGUMENT, "states[1].uses");
    t.states[G].uses = MEMO_STATE_GRADIENT;
    t.states[W].uses = MEMO_STATE_ALONE | MEMO_STATE_UPDATE; /* the trainer's forward reads it */
    own_session* s = new_session(&t.desc);
    CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_STATE, "does not use it");
}

/* --- shared states --- */

/* A table that FIRST, some layers and LAST use, with its gradient and moments. */
enum { TABLE, TABLE_GRADIENT, TABLE_MOMENTS, TABLE_WORDS = 300 };
typedef struct tied {
    memo_session_desc desc;
    memo_state states[6];
    memo_item input;
    int32_t kinds[LAYERS];
    uint64_t x;
    int n_updates;    /* of the table */
    char* at[2];      /* of the table, in FIRST and in LAST */
    int32_t fails_in; /* the forward of this layer, once; -1: of none */
    int32_t overruns; /* the backward of this layer writes behind the table's gradient */
} tied;
enum { T_W = 3, T_G, T_M };

static uint32_t table_layers = 0x222; /* bit l: layer l uses the table, as FIRST and LAST do */
static int uses_table(int32_t layer) {
    return layer < 0 || layer == LAYERS || table_layers >> layer & 1;
}

static void tied_forward(void* user, memo_session* s, int32_t layer) {
    tied* t = (tied*)user;
    if (layer == 0) t->x = mix_state(3, s, &t->desc, MEMO_LAYER_FIRST, TABLE);
    if (layer == 0) t->at[0] = (char*)memo_session_get_state(s, MEMO_LAYER_FIRST, TABLE);
    t->x = mix_state(t->x, s, &t->desc, layer, T_W);
    if (uses_table(layer)) t->x = mix_state(t->x, s, &t->desc, layer, TABLE);
    *(uint64_t*)memo_session_get_address(s, layer, 0) = t->x;
    if (layer != t->fails_in) return;
    t->fails_in = -1;
    memo_session_fail(s, MEMO_STATUS_DEVICE, "the trainer's own");
}
static void tied_between(void* user, memo_session* s) {
    tied* t = (tied*)user;
    t->x = mix_state(t->x, s, &t->desc, LAYERS, TABLE);
    t->at[1] = (char*)memo_session_get_state(s, LAYERS, TABLE);
    if (!memo_session_get_batch(s).is_forward_only)
        add_words(s, &t->desc, LAYERS, TABLE_GRADIENT, t->x);
}
static void tied_backward(void* user, memo_session* s, int32_t layer) {
    tied* t = (tied*)user;
    t->x = mix_state(t_mix(t->x, *(uint64_t*)memo_session_get_address(s, layer, 0)), s, &t->desc,
                     layer, T_W);
    add_words(s, &t->desc, layer, T_G, t->x);
    if (uses_table(layer)) add_words(s, &t->desc, layer, TABLE_GRADIENT, t->x);
    if (layer == t->overruns)
        ((uint64_t*)memo_session_get_state(s, layer, TABLE_GRADIENT))[TABLE_WORDS] = 1;
    if (layer == 0) add_words(s, &t->desc, MEMO_LAYER_FIRST, TABLE_GRADIENT, ~t->x);
}
static void tied_update(void* user, memo_session* s, int32_t layer) {
    tied* t = (tied*)user;
    const int has_table = memo_session_get_state(s, layer, TABLE) != NULL;
    CHECK(has_table == (layer == MEMO_LAYER_FIRST));
    t->n_updates += has_table;
    const int of = has_table ? TABLE : T_W;
    change_words(s, &t->desc, layer, of + 2, mix_state(1, s, &t->desc, layer, of + 1));
    change_words(s, &t->desc, layer, of, mix_state(2, s, &t->desc, layer, of + 2));
}

/* The same trainer on plain arrays. */
static uint64_t plain_table[3][TABLE_WORDS], plain_layers[LAYERS][3][WEIGHT_WORDS];
static void run_plain_tied(void) {
    enum { E = TABLE_WORDS, N = WEIGHT_WORDS };
    uint64_t inputs[LAYERS], x = t_mix_words(3, plain_table[0], E);
    for (int l = 0; l < LAYERS; l++) {
        x = t_mix_words(x, plain_layers[l][0], N);
        if (uses_table(l)) x = t_mix_words(x, plain_table[0], E);
        inputs[l] = x;
    }
    x = t_mix_words(x, plain_table[0], E);
    t_add_words(plain_table[1], E, x);
    for (int l = LAYERS - 1; l >= 0; l--) {
        x = t_mix_words(t_mix(x, inputs[l]), plain_layers[l][0], N);
        t_add_words(plain_layers[l][1], N, x);
        if (uses_table(l)) t_add_words(plain_table[1], E, x);
    }
    t_add_words(plain_table[1], E, ~x);
}
static void update_plain_tied(void) {
    for (int l = -1; l < LAYERS; l++) {
        uint64_t* of = l < 0 ? plain_table[0] : plain_layers[l][0];
        const int n = l < 0 ? TABLE_WORDS : WEIGHT_WORDS;
        t_change_words(of + 2 * n, n, t_mix_words(1, of + n, n));
        t_change_words(of, n, t_mix_words(2, of + 2 * n, n));
        memset(of + n, 0, (size_t)n * 8);
    }
}

static void init_tied(tied* t, int is_shared) {
    const uint32_t shared = is_shared ? MEMO_STATE_SHARED : 0;
    const uint32_t where = is_shared ? MEMO_STATE_FIRST | MEMO_STATE_LAST | 2u : MEMO_STATE_FIRST;
    const memo_state states[] = {{"table", 8 * TABLE_WORDS, MEMO_STATE_WEIGHTS | shared, where},
                                 {"d", 8 * TABLE_WORDS, MEMO_STATE_GRADIENT | shared, where},
                                 {"m", 8 * TABLE_WORDS, MEMO_STATE_UPDATE | shared, where},
                                 {"w", 8 * WEIGHT_WORDS, MEMO_STATE_WEIGHTS, 3},
                                 {"g", 8 * WEIGHT_WORDS, MEMO_STATE_GRADIENT, 3},
                                 {"m2", 8 * WEIGHT_WORDS, MEMO_STATE_UPDATE, 3}};
    memset(t, 0, sizeof *t);
    t->desc = MEMO_ZERO(memo_session_desc);
    memcpy(t->states, states, sizeof states);
    for (int l = 0; l < LAYERS; l++) t->kinds[l] = uses_table(l);
    t->input = (memo_item)MEMO_ITEM("input", 8, MEMO_MOVE);
    t->desc.tensors = &t->input, t->desc.n_tensors = 1;
    t->desc.n_layers = LAYERS, t->desc.n_rows = 4;
    t->desc.layer_kinds = t->kinds;
    t->desc.states = t->states, t->desc.n_states = 6;
    t->desc.user = t;
    t->desc.forward = tied_forward, t->desc.between = tied_between;
    t->desc.backward = tied_backward, t->desc.update = tied_update;
    t->desc.micro_batches = 2;
    t->desc.timed_steps = -1;
    t->fails_in = t->overruns = -1;
}

static void init_plain_tied(void) {
    memset(plain_table, 0, sizeof plain_table);
    memset(plain_layers, 0, sizeof plain_layers);
    for (int i = 0; i < TABLE_WORDS; i++) plain_table[0][i] = t_mix(9, (uint64_t)i);
}
static void check_plain_tied(memo_session* s) {
    static uint64_t words[WEIGHT_WORDS];
    for (int32_t l = -1; l <= LAYERS; l++)
        for (int i = 0; i < 3; i += 2) {
            if (uses_table(l)) {
                CHECK_OK(memo_session_read_state(s, l, i, 0, words, 8 * TABLE_WORDS, &error));
                CHECK(!memcmp(words, plain_table[i], 8 * TABLE_WORDS));
            }
            if (l < 0 || l == LAYERS) continue;
            CHECK_OK(memo_session_read_state(s, l, T_W + i, 0, words, 8 * WEIGHT_WORDS, &error));
            CHECK(!memcmp(words, plain_layers[l][i], 8 * WEIGHT_WORDS));
        }
}

/* Neighbors that share the table, at both ends too, and layers far apart. */
TEST(layers_share_a_state_in_one_place) {
    static const int may[] = {0, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS,
                              MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS};
    static const uint32_t layers[] = {0x222, 0, 0x301};
    enum { N_LAYERS = sizeof layers / sizeof *layers };
    for (int m = 0; m < 3 * N_LAYERS; m++)
        for (int k = 0; k < 4; k++) { /* the least, more, all; checked */
            tied t;
            int64_t least_bytes = 0;
            table_layers = layers[m / 3];
            IN_CASE("layers %x, update_may %d, budget %d", (unsigned)table_layers, may[m % 3], k);
            init_tied(&t, 1);
            t.desc.update_may = may[m % 3];
            t.desc.is_checked = k == 3;
            CHECK_OK(memo_session_get_least(&t.desc, &least_bytes, &error));
            t.desc.device_bytes = least_bytes + (k % 3) * (k % 3) * 30000;
            own_session* s = new_session(&t.desc);
            const memo_verify_output count = {"count", &t.n_updates, 4, MEMO_TYPE_I32, 0};
            const memo_verify_desc check = {.outputs = &count, .n_outputs = 1};
            CHECK_OK(memo_session_watch(s, &check, &error)); /* which runs updates for nothing */
            init_plain_tied();
            CHECK_OK(
                memo_session_write_state(s, -1, TABLE, 0, plain_table[0], 8 * TABLE_WORDS, &error));
            for (int step = 0; step < 4; step++) {
                for (int i = 0; i < 2; i++) {
                    const memo_batch batch = {.more_follow = !i};
                    CHECK_OK(memo_session_run(s, &batch, &error));
                    run_plain_tied();
                }
                CHECK_OK(memo_session_update(s, &error));
                update_plain_tied();
            }
            check_plain_tied(s);
            CHECK_IS(t.n_updates, ==, 4);
            const memo_step_plan* plan = memo_session_get_info(s).plan;
            if (k == 2) CHECK_IS(plan->n_streamed, ==, 0);
            if (!k && !table_layers) { /* the least streams it, to each layer's place */
                CHECK_IS(plan->bytes[MEMO_TIER_DEVICE][MEMO_OWNER_WEIGHTS], ==, 0);
                CHECK(t.at[0] != t.at[1]);
            }
            if (k == 2) CHECK(t.at[0] == t.at[1]);
        }
    table_layers = layers[0];
}

/* The layer's own backward, and one beside which FIRST and LAST are open. */
TEST(a_checked_session_names_who_writes_behind_a_shared_state) {
    static const int32_t layers[] = {5, 0, LAYERS - 1};
    for (int k = 0; k < 6; k++) {
        tied t;
        table_layers = 0x221;
        IN_CASE("layer %d, budget %d", layers[k / 2], k % 2);
        init_tied(&t, 1);
        t.overruns = layers[k / 2];
        t.desc.is_checked = 1;
        if (k % 2) CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        own_session* s = new_session(&t.desc);
        CHECK_ERROR(memo_session_run(s, NULL, &error), INVALID_ARGUMENT, "something writes behind");
        CHECK(strstr(error.message, "state `d`, backward"));
    }
    table_layers = 0x222;
}

/* One table takes the bytes of one. */
TEST(a_shared_state_counts_once) {
    int64_t bytes[2];
    for (int is_shared = 0; is_shared < 2; is_shared++) {
        tied t;
        init_tied(&t, is_shared);
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        bytes[is_shared] = plan->device_bytes;
    }
    CHECK_IS(bytes[0], ==, bytes[1]);
}

TEST(bad_shared_states_are_refused) {
    tied t;
    memo_session* none = NULL;
    init_tied(&t, 1);
    t.states[TABLE].uses &= ~(uint32_t)MEMO_STATE_SHARED;
    CHECK_ERROR(memo_session_create(&t.desc, &none, &error), INVALID_ARGUMENT,
                "add MEMO_STATE_SHARED");
    init_tied(&t, 1);
    uint32_t masks[LAYERS + 2];
    for (int l = 0; l < LAYERS + 2; l++) masks[l] = l == 2 ? ~1u : ~0u;
    own_session* s = new_session(&t.desc);
    const memo_batch batch = {.states = masks};
    CHECK_ERROR(memo_session_run(s, &batch, &error), INVALID_ARGUMENT,
                "SHARED state is used in some");
}

/* Deferred updates of the layers before have run, those behind still wait: nothing is lost. */
TEST(a_forward_that_fails_leaves_later_updates_pending) {
    const memo_batch first = {.more_follow = 1}, last = {0}, alone = {.is_forward_only = 1};
    for (int how = 0; how < 5; how++)
        for (int32_t layer = 0; layer < LAYERS; layer += 3) {
            tied t;
            IN_CASE("layer %d fails, then %d", (int)layer, how);
            init_tied(&t, 1);
            t.desc.update_may = MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS;
            t.desc.policy = MEMO_POLICY_SWAP;
            CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
            own_session* s = new_session(&t.desc);
            init_plain_tied();
            CHECK_OK(
                memo_session_write_state(s, -1, TABLE, 0, plain_table[0], 8 * TABLE_WORDS, &error));
            CHECK_IS(memo_session_get_info(s).plan->update_at, ==, MEMO_UPDATE_DEFERRED);
            for (int step = 0; step < 3; step++) {
                if (step == 1) {
                    t.fails_in = layer;
                    CHECK_ERROR(memo_session_run(s, &first, &error), DEVICE, "the trainer's own");
                    CHECK(!strstr(error.message, "again"));
                    if (how == 1) CHECK_OK(memo_session_flush(s, &error));
                    if (how == 2) check_plain_tied(s);
                    if (how == 3) CHECK_OK(memo_session_run(s, &alone, &error));
                    if (how == 4) CHECK_OK(memo_session_skip_update(s, &error));
                }
                CHECK_OK(memo_session_run(s, &first, &error));
                CHECK_OK(memo_session_run(s, &last, &error));
                for (int i = 0; i < 2; i++) run_plain_tied();
                CHECK_OK(memo_session_update(s, &error));
                update_plain_tied();
            }
            check_plain_tied(s);
            CHECK_IS(t.n_updates, ==, 3);
        }
}
