/* test_states.c - random models whose states are streamed end with the bits of plain arrays; the
 * recorded operations have no race, and every fault is a status that loses nothing. */
#include "scarce.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "owned.h"
#include <fcntl.h>

OWNED_TYPE(memob_states, states, memob_states_destroy)

enum { LAYERS_MAX = 12, STATES_MAX = 6, WORDS_MAX = 40, KEYS_MAX = 512 };

typedef struct model {
    memo_device* host;         /* runs functions */
    const memo_device* device; /* of the engine */
    memo_stream compute;
    memo_state table[STATES_MAX];
    int32_t kinds[LAYERS_MAX];
    uint32_t streamed[LAYERS_MAX], spilled[LAYERS_MAX];
    memob_states_desc desc;
    memob_states* states;
    uint64_t expected[LAYERS_MAX][STATES_MAX][WORDS_MAX]; /* the same computed in plain arrays */
    uint64_t seen, expected_seen;                         /* what all passes have read */
    uint64_t host_seen, expected_host_seen;               /* and updates on the host */
    uint64_t keys[KEYS_MAX];                              /* of these updates, in their order */
    int64_t n_keys, n_updated;
} model;

static int has(const model* m, int32_t layer, int32_t s) {
    const memo_state* state = &m->table[s];
    return state->size_bytes && (!state->kinds || state->kinds >> m->kinds[layer] & 1);
}

/* --- what a pass computes, on any arrays --- */

typedef struct visit {
    uint64_t* words[STATES_MAX]; /* NULL: absent */
    int64_t n_words[STATES_MAX];
    uint32_t uses[STATES_MAX];
    int32_t pass, n_states, updates; /* updates: after a fused backward */
    uint64_t key;
    uint64_t* seen;
} visit;

static uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}

static void compute_pass(const visit* v, int32_t pass) {
    static const uint32_t reads[3] = {MEMO_STATE_FORWARD, MEMO_STATE_BACKWARD,
                                      MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT};
    uint64_t h = v->key;
    for (int32_t s = 0; s < v->n_states; s++)
        for (int64_t i = 0; v->words[s] && (v->uses[s] & reads[pass]) && i < v->n_words[s]; i++)
            h = mix(h, v->words[s][i]);
    *v->seen = mix(*v->seen, h);
    for (int32_t s = 0; s < v->n_states; s++) {
        const uint32_t writes = pass == 1 ? MEMO_STATE_GRADIENT : pass == 2 ? MEMO_STATE_UPDATE : 0;
        for (int64_t i = 0; v->words[s] && (v->uses[s] & writes) && i < v->n_words[s]; i++)
            v->words[s][i] = pass == 1 ? v->words[s][i] + mix(h, (uint64_t)i)
                                       : mix(v->words[s][i], h + (uint64_t)i);
    }
}

static memo_status run_visit(void* arguments, MEMO_UNUSED memo_error* e) {
    const visit* v = (const visit*)arguments;
    compute_pass(v, v->pass);
    if (v->updates) compute_pass(v, 2);
    return MEMO_STATUS_OK;
}

static visit visit_of(const model* m, int32_t pass, int32_t layer, int updates, uint64_t key) {
    visit v = {.pass = pass,
               .updates = updates,
               .n_states = m->desc.n_states,
               .key = mix(key, (uint64_t)(pass * 1000 + layer))};
    for (int32_t s = 0; s < v.n_states; s++) {
        v.uses[s] = m->table[s].uses;
        v.n_words[s] = m->table[s].size_bytes / 8;
    }
    return v;
}

/* An update on the host; computed as compute_pass, from the bytes there. */
static memo_status update_host(void* user, int32_t layer, MEMO_UNUSED memo_error* e) {
    model* m = (model*)user;
    visit v = visit_of(m, 2, layer, 0, m->keys[m->n_updated++ % KEYS_MAX]);
    v.seen = &m->host_seen;
    for (int32_t s = 0; s < v.n_states; s++)
        if (v.uses[s] & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT))
            v.words[s] = (uint64_t*)memob_states_get_host_address(m->states, layer, s);
    compute_pass(&v, 2);
    return MEMO_STATUS_OK;
}

/* The same in plain arrays. */
static void expect_update(model* m, int32_t layer, uint64_t key) {
    visit v = visit_of(m, 2, layer, 0, key);
    m->keys[m->n_keys++ % KEYS_MAX] = key;
    v.seen = &m->expected_host_seen;
    for (int32_t s = 0; s < v.n_states; s++)
        v.words[s] = has(m, layer, s) ? m->expected[layer][s] : NULL;
    compute_pass(&v, 2);
}

static void drop_gradients(model* m, int32_t begin, int32_t end) {
    for (; begin < end; begin++)
        for (int32_t s = 0; s < m->desc.n_states; s++)
            if (m->table[s].uses & MEMO_STATE_GRADIENT)
                memset(m->expected[begin][s], 0, sizeof m->expected[begin][s]);
}

static memo_status compute(model* m, memob_states_pass pass, int32_t layer, int updates,
                           uint64_t key) {
    const int on_host = m->desc.update_host != NULL;
    const int is_updated = updates || pass == MEMOB_STATES_PASS_UPDATE;
    if (on_host) updates = 0;
    visit v = visit_of(m, (int32_t)pass, layer, updates, key);
    memo_range reads[STATES_MAX], writes[STATES_MAX];
    memo_op_desc what = {.name = "compute", .reads = reads, .writes = writes};
    const uint32_t all[3] = {MEMO_STATE_FORWARD,
                             MEMO_STATE_BACKWARD | MEMO_STATE_GRADIENT |
                                 (updates ? MEMO_STATE_UPDATE : 0u),
                             MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT};
    const uint32_t changed = pass == MEMOB_STATES_PASS_BACKWARD
                                 ? MEMO_STATE_GRADIENT | (updates ? MEMO_STATE_UPDATE : 0u)
                             : pass == MEMOB_STATES_PASS_UPDATE ? (uint32_t)MEMO_STATE_UPDATE
                                                                : 0u;
    memset(reads, 0, sizeof reads);
    memset(writes, 0, sizeof writes);

    /* In plain arrays. */
    v.seen = &m->expected_seen;
    for (int32_t s = 0; s < v.n_states; s++)
        v.words[s] = has(m, layer, s) ? m->expected[layer][s] : NULL;
    if (pass != MEMOB_STATES_PASS_UPDATE || !on_host) run_visit(&v, NULL);
    if (on_host && is_updated) expect_update(m, layer, key);
    if (is_updated) drop_gradients(m, layer, layer + 1);
    if (on_host && pass == MEMOB_STATES_PASS_UPDATE) return MEMO_STATUS_OK;

    /* In the engine's. */
    v.seen = &m->seen;
    for (int32_t s = 0; s < v.n_states; s++) {
        v.words[s] = (uint64_t*)memob_states_get_address(m->states, layer, s);
        CHECK(!v.words[s] ==
              (!has(m, layer, s) || (on_host && m->table[s].uses == MEMO_STATE_UPDATE)));
        if (!v.words[s]) continue;
        const uint64_t begin = (uint64_t)(uintptr_t)v.words[s];
        const memo_range range = {begin, begin + (uint64_t)m->table[s].size_bytes};
        if (m->table[s].uses & all[pass]) reads[what.n_reads++] = range;
        if (m->table[s].uses & changed) writes[what.n_writes++] = range;
    }
    if (m->desc.computes_on_host) return run_visit(&v, NULL);
    memo_status status = memo_annotate(m->device, m->compute, &what, &error);
    return status ? status
                  : memo_host_device_launch(m->host, m->compute, run_visit, &v, (int64_t)sizeof v,
                                            &error);
}

/* --- a step --- */

static memo_status run_pass(model* m, memob_states_pass pass, int updates, uint64_t key) {
    const int32_t n = m->desc.n_layers;
    const int fused = (int)(key % 3 == 0); /* the next layer begins before this one ends */
    memo_status status = MEMO_STATUS_OK;
    for (int32_t k = 0; k < n && !status; k++) {
        const int32_t layer = pass == MEMOB_STATES_PASS_BACKWARD ? n - 1 - k : k;
        const int32_t after = pass == MEMOB_STATES_PASS_BACKWARD ? layer - 1 : layer + 1;
        if (k == 0 || !fused) status = memob_states_begin(m->states, pass, layer, &error);
        if (!status) status = compute(m, pass, layer, updates, key);
        if (!status && fused && k + 1 < n)
            status = memob_states_begin(m->states, pass, after, &error);
        if (!status) status = memob_states_end(m->states, pass, layer, &error);
    }
    return status;
}

static memo_status run_step(model* m, int64_t n_batches, uint64_t key) {
    const int is_late = key % 4 == 1; /* no micro-batch is announced as the last */
    const int is_fused = m->desc.update_is_fused && !is_late;
    const int64_t n_dropped = key % 7 == 1; /* micro-batches whose gradients are dropped */
    memo_status status = MEMO_STATUS_OK;
    for (int64_t b = -n_dropped; b < n_batches && !status; b++) {
        const int is_last = b + 1 == n_batches && !is_late;
        if (key % 5 == 1) { /* an evaluation between micro-batches */
            status = memob_states_set_batch(m->states, 0, 1, &error);
            if (!status) status = run_pass(m, MEMOB_STATES_PASS_FORWARD, 0, key + 7);
        }
        if (!status) status = memob_states_set_batch(m->states, is_last, 0, &error);
        if (!status) status = run_pass(m, MEMOB_STATES_PASS_FORWARD, 0, key + (uint64_t)b);
        if (!status)
            status =
                run_pass(m, MEMOB_STATES_PASS_BACKWARD, is_last && is_fused, key + (uint64_t)b);
        if (b >= 0 || status) continue;
        status = memob_states_abandon(m->states, &error);
        drop_gradients(m, 0, m->desc.n_layers);
    }
    if (!status && !is_fused) status = run_pass(m, MEMOB_STATES_PASS_UPDATE, 0, key);
    return status;
}

/* --- random models --- */

static void random_model(model* m) {
    static const uint32_t uses[] = {MEMO_STATE_WEIGHTS,
                                    MEMO_STATE_GRADIENT,
                                    MEMO_STATE_UPDATE,
                                    MEMO_STATE_FORWARD,
                                    MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD,
                                    MEMO_STATE_BACKWARD | MEMO_STATE_UPDATE};
    memset(m, 0, sizeof *m);
    m->desc.n_layers = (int32_t)memo_test_int(1, LAYERS_MAX);
    m->desc.n_states = (int32_t)memo_test_int(1, STATES_MAX);
    m->desc.update_is_fused = (int32_t)memo_test_int(0, 1);
    m->desc.computes_on_host = memo_test_int(0, 3) == 0;
    for (int32_t s = 0; s < m->desc.n_states; s++) {
        m->table[s].name = "state";
        m->table[s].size_bytes = 8 * memo_test_int(0, WORDS_MAX);
        m->table[s].uses = uses[s < 3 ? s : memo_test_int(0, 5)];
        m->table[s].kinds = memo_test_int(0, 2) ? 0 : (uint32_t)memo_test_int(1, 7);
    }
    const int64_t how = memo_test_int(0, 3), is_spilled = memo_test_int(0, 3) == 0;
    const uint32_t common = (uint32_t)memo_test_int(0, 63);
    for (int32_t layer = 0; layer < m->desc.n_layers; layer++) {
        m->kinds[layer] = (int32_t)memo_test_int(0, 2);
        m->streamed[layer] = how == 0   ? 63
                             : how == 1 ? common
                             : how == 2 ? (uint32_t)memo_test_int(0, 63)
                                        : (memo_test_int(0, 1) ? common : 0);
        m->spilled[layer] = is_spilled ? (uint32_t)memo_test_int(0, 63) | common : 0;
    }
    if (memo_test_int(0, 2) == 0) { /* all that the update uses is on the host */
        m->desc.update_host = update_host;
        for (int32_t s = 0; s < m->desc.n_states; s++)
            for (int32_t layer = 0; layer < m->desc.n_layers; layer++)
                if (m->table[s].uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT)) {
                    m->streamed[layer] |= 1u << s;
                    m->spilled[layer] &= ~(1u << s);
                }
    }
    m->desc.spilled = m->spilled;
    m->desc.spill_directory = memo_test_folder();
    m->desc.layer_kinds = m->kinds;
    m->desc.states = m->table;
    m->desc.streamed = m->streamed;
}

static memo_status set_bytes(model* m, int32_t layer, int32_t s, int64_t begin, const void* bytes,
                             int64_t n) {
    return memob_states_transfer(m->states, layer, s, 0, begin, (void*)(uintptr_t)bytes, n, &error);
}
static memo_status get_bytes(model* m, int32_t layer, int32_t s, int64_t begin, void* bytes,
                             int64_t n) {
    return memob_states_transfer(m->states, layer, s, 1, begin, bytes, n, &error);
}

/* All bytes of a state, in two parts. */
static memo_status set_state(model* m, int32_t layer, int32_t s, const uint64_t* words) {
    const int64_t n = m->table[s].size_bytes, part = memo_test_int(0, n);
    memo_status status =
        set_bytes(m, layer, s, part, words ? (const char*)words + part : NULL, n - part);
    return status ? status : set_bytes(m, layer, s, 0, words, part);
}
static memo_status get_state(model* m, int32_t layer, int32_t s, uint64_t* words) {
    const int64_t n = m->table[s].size_bytes, part = memo_test_int(0, n);
    memo_status status = get_bytes(m, layer, s, part, (char*)words + part, n - part);
    return status ? status : get_bytes(m, layer, s, 0, words, part);
}

static memo_status open_model(model* m, memo_device* host, const memo_device* device) {
    m->host = host;
    m->device = m->desc.device = device;
    m->desc.user = m;
    memo_status status = memo_stream_create(device, "compute", 0, &m->compute, &error);
    m->desc.compute_stream = m->compute;
    if (!status) status = memob_states_create(&m->desc, 0, &m->states, &error);
    for (int32_t layer = 0; layer < m->desc.n_layers && !status; layer++)
        for (int32_t s = 0; s < m->desc.n_states && !status; s++) {
            if (!has(m, layer, s) || m->table[s].uses & MEMO_STATE_GRADIENT) continue;
            for (int64_t i = 0; i < WORDS_MAX; i++) m->expected[layer][s][i] = memo_test_random();
            status = set_state(m, layer, s, m->expected[layer][s]);
        }
    return status;
}

static void close_model(model* m) {
    if (m->compute) memo_stream_synchronize(m->device, m->compute, NULL);
    memob_states_destroy(m->states);
    if (m->compute) memo_stream_destroy(m->device, m->compute, NULL);
    m->states = NULL;
    m->compute = NULL;
}

/* Waits for computation and for updates on the host.  Returns 0 if no layer has a state. */
static int wait_for_all(model* m) {
    uint64_t word;
    CHECK_OK(memo_stream_synchronize(m->device, m->compute, &error));
    for (int32_t layer = 0; layer < m->desc.n_layers; layer++)
        for (int32_t s = 0; s < m->desc.n_states; s++) {
            if (!has(m, layer, s)) continue;
            CHECK_OK(get_bytes(m, layer, s, 0, &word, 8));
            return 1;
        }
    return 0;
}

/* Every state of every layer has the bits of the plain arrays; gradients only inside a step. */
static void check_bits(model* m, int64_t n_case) {
    uint64_t words[WORDS_MAX];
    const int has_states = wait_for_all(m);
    for (int32_t layer = 0; layer < m->desc.n_layers; layer++)
        for (int32_t s = 0; s < m->desc.n_states; s++) {
            if (!has(m, layer, s) || m->table[s].uses & MEMO_STATE_GRADIENT) continue;
            CHECK_OK(get_state(m, layer, s, words));
            CHECK_CASE(memcmp(words, m->expected[layer][s], (size_t)m->table[s].size_bytes) == 0,
                       "case %lld: layer %d, state %d", (long long)n_case, (int)layer, (int)s);
        }
    CHECK_CASE(m->seen == m->expected_seen &&
                   (m->host_seen == m->expected_host_seen || !has_states),
               "case %lld: a pass read other bits", (long long)n_case);
}

/* A part of a state gets other bytes, or zero. */
static void change_bytes(model* m) {
    const int32_t layer = (int32_t)memo_test_int(0, m->desc.n_layers - 1);
    const int32_t s = (int32_t)memo_test_int(0, m->desc.n_states - 1);
    const int64_t begin = memo_test_int(0, m->table[s].size_bytes);
    const int64_t n = memo_test_int(0, m->table[s].size_bytes - begin);
    const uint64_t* words = memo_test_int(0, 1) ? m->expected[0][0] : NULL;
    char* expected = (char*)m->expected[layer][s] + begin;
    if (!has(m, layer, s) || m->table[s].uses & MEMO_STATE_GRADIENT) return;
    CHECK_OK(set_bytes(m, layer, s, begin, words, n));
    if (words)
        memmove(expected, words, (size_t)n);
    else
        memset(expected, 0, (size_t)n);
}

TEST(streamed_states_have_the_bits_of_resident_ones) {
    for (int64_t i = 0; i < (memo_test_all() ? 3000 : 300); i++) {
        own_device* host = new_host(i % 3 ? 0 : 1e8);
        memo_faults delays;
        model m;
        random_model(&m);
        memo_faults_init(&delays, host);
        delays.delay_s = i % 4 ? 0 : 2e-4;
        delays.seed = memo_test_random();
        CHECK_OK(open_model(&m, host, &delays.device));
        for (uint64_t step = 0; step < 4; step++) {
            CHECK_OK(run_step(&m, memo_test_int(1, 3), memo_test_random() % 1000));
            change_bytes(&m);
        }
        check_bits(&m, i);
        close_model(&m);
    }
}

/* The engine makes no wait for a copy that is not made, nor for a pass that a copy before waits for.
 * Where no pass computes between two places, a wait of the second may still be redundant. */
TEST(recorded_steps_have_no_race) {
    int64_t n_waits = 0, n_redundant = 0;
    for (int64_t i = 0; i < (memo_test_all() ? 1000 : 150); i++) {
        own_device* host = new_host(0);
        model m;
        own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
        random_model(&m);
        m.desc.computes_on_host = 0;
        CHECK_OK(open_model(&m, host, memo_recorder_get_device(recorder)));
        for (uint64_t step = 0; step < 3; step++)
            CHECK_OK(run_step(&m, memo_test_int(1, 3), memo_test_random() % 1000));
        own_check* check = check_of(recorded(recorder));
        CHECK_CASE(check && check->n_races == 0, "case %lld", (long long)i);
        n_waits += check ? check->n_waits : 0;
        n_redundant += check ? check->n_redundant_waits : 0;
        check_bits(&m, i);
        close_model(&m);
    }
    CHECK_CASE(5 * n_redundant < n_waits, "%lld of %lld waits are redundant",
               (long long)n_redundant, (long long)n_waits);
    printf("# %lld of %lld waits are redundant\n", (long long)n_redundant, (long long)n_waits);
}

/* --- faults and refusals --- */

/* A step after a fault starts again from where the step began.  If the update has begun, the
 * states are set again; the others are never lost. */
static memo_status step_after_faults(model* m, const model* before, int64_t n_batches,
                                     uint64_t key) {
    memo_status status = run_step(m, n_batches, key);
    if (!status) return status;
    const memo_error fault = error;
    memcpy(m->expected, before->expected, sizeof m->expected);
    const memo_status doubt = memob_states_abandon(m->states, &error);
    memo_error why = error;
    wait_for_all(m);
    m->n_updated = m->n_keys;
    if (doubt) {
        CHECK(strstr(why.message, "set the states of all layers again") != NULL);
        for (int32_t layer = 0; layer < m->desc.n_layers; layer++)
            for (int32_t s = 0; s < m->desc.n_states; s++)
                if (has(m, layer, s) && !(m->table[s].uses & MEMO_STATE_GRADIENT))
                    CHECK_OK(set_state(m, layer, s, m->expected[layer][s]));
    }
    CHECK_OK(run_step(m, n_batches, key));
    error = fault;
    return status;
}

TEST(a_fault_at_any_call_loses_nothing) {
    int64_t n_failed = 0;
    for (int64_t i = 0; i < (memo_test_all() ? 40 : 2); i++) {
        const uint64_t seed = memo_test_random();
        uint64_t strides = seed;
        memo_status status = MEMO_STATUS_DEVICE;
        for (int64_t k = 1; status && k < 5000;
             k += memo_test_all() ? 1 : 1 + (int64_t)(memo_test_next(&strides) % 5)) {
            own_device* host = new_host(0);
            memo_faults f;
            model m, before;
            memo_test.state = seed;
            memset(&error, 0, sizeof error);
            random_model(&m);
            memo_faults_init(&f, host);
            f.failing_call = k;
            status = open_model(&m, host, &f.device);
            const int is_open = !status;
            for (uint64_t step = 0; step < 2 && !status; step++) {
                before = m;
                status = step_after_faults(&m, &before, 2, 11 + step);
            }
            if (is_open) {
                f.failing_call = 0;
                wait_for_all(&m);
                m.seen = m.expected_seen; /* a pass that failed is not in both */
                m.host_seen = m.expected_host_seen;
                check_bits(&m, k);
            }
            close_model(&m);
            CHECK_CASE(!status == !f.failed, "call %lld, %s: %s", (long long)k, f.failed,
                       error.message);
            n_failed += status != MEMO_STATUS_OK;
        }
    }
    CHECK_CASE(n_failed > 100, "%lld calls failed", (long long)n_failed);
}

/* --- waits --- */

enum { COMPUTE, TO_HOST, TO_DEVICE, FILE_STREAM };
enum { COMPUTED, STORED, LOADED, FILED, DONE };

/* A device that leaves out all waits of a stream for one of the engine's events. */
static struct {
    memo_device table, inner;          /* both have the inner one's context */
    memo_stream streams[4];            /* compute, to host, to device, file */
    memo_event events[LAYERS_MAX + 8]; /* of both places: computed, stored, loaded, filed; of
                                          updates on the host: done */
    int32_t n_streams, n_events, stream, event;
    int64_t n_dropped;
} dropper;

static memo_status dropper_stream(void* context, const char* name, int32_t priority,
                                  memo_stream* stream, memo_error* e) {
    const memo_status status = dropper.inner.stream_create(context, name, priority, stream, e);
    if (!status && dropper.n_streams < 4) dropper.streams[dropper.n_streams++] = *stream;
    return status;
}
static memo_status dropper_event(void* context, memo_event* event, memo_error* e) {
    const memo_status status = dropper.inner.event_create(context, event, e);
    if (!status && dropper.n_events < LAYERS_MAX + 8) dropper.events[dropper.n_events++] = *event;
    return status;
}
static memo_status dropper_wait(void* context, memo_event event, memo_stream stream,
                                memo_error* e) {
    int is_event = 0;
    for (int32_t i = 0; i < dropper.n_events; i++)
        is_event |= event == dropper.events[i] && (i < 8 ? i / 2 : (int32_t)DONE) == dropper.event;
    if (!is_event || stream != dropper.streams[dropper.stream])
        return dropper.inner.event_wait(context, event, stream, e);
    dropper.n_dropped++;
    return MEMO_STATUS_OK;
}

/* Races of recorded steps of a model with a file, or with updates on the host. */
static int64_t races_without(int32_t stream, int32_t event, int on_host) {
    own_device* host = new_host(0);
    model m;
    own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
    memset(&dropper, 0, sizeof dropper);
    dropper.inner = dropper.table = *memo_recorder_get_device(recorder);
    dropper.table.stream_create = dropper_stream;
    dropper.table.event_create = dropper_event;
    dropper.table.event_wait = dropper_wait;
    dropper.stream = stream;
    dropper.event = event;
    do random_model(&m);
    while ((m.desc.update_host != NULL) != on_host);
    m.desc.computes_on_host = 0;
    for (int32_t layer = 0; layer < m.desc.n_layers; layer++)
        m.spilled[layer] = on_host ? 0 : (uint32_t)memo_test_int(0, 63);
    CHECK_OK(open_model(&m, host, &dropper.table));
    CHECK_IS(dropper.n_events, ==, 8 + (on_host ? m.desc.n_layers : 0));
    for (uint64_t step = 0; step < 2; step++)
        CHECK_OK(run_step(&m, memo_test_int(1, 2), memo_test_random() % 1000));
    own_check* check = check_of(recorded(recorder));
    int64_t n_races = check->n_races;
    close_model(&m);
    return n_races;
}

/* Each wait of the engine and its file: without it some steps have a race. */
TEST(every_wait_is_necessary) {
    static const int32_t waits[][2] = {{TO_HOST, COMPUTED},
                                       {TO_HOST, FILED},
                                       {FILE_STREAM, STORED},
                                       {FILE_STREAM, LOADED},
                                       {TO_DEVICE, COMPUTED},
                                       {TO_DEVICE, STORED},
                                       {TO_DEVICE, FILED},
                                       {COMPUTE, LOADED},
                                       /* With updates on the host, which the file's stream runs: */
                                       {TO_HOST, COMPUTED},
                                       {FILE_STREAM, STORED},
                                       {FILE_STREAM, LOADED},
                                       {TO_DEVICE, DONE},
                                       {TO_HOST, DONE},
                                       {TO_DEVICE, STORED}};
    for (int w = 0; w < 14; w++) {
        int64_t n_races = 0, n_dropped = 0;
        for (int i = 0; i < 200 && !n_races; i++) {
            n_races = races_without(waits[w][0], waits[w][1], w >= 8);
            n_dropped += dropper.n_dropped;
        }
        CHECK_CASE(n_races > 0, "wait %d: %lld left out, no race", w, (long long)n_dropped);
    }
}

/* --- faults that are known late --- */

typedef uint64_t model_words[LAYERS_MAX][STATES_MAX][WORDS_MAX];

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

/* Steps from *step on; after each all states are read. */
static memo_status run_to_the_end(model* m, model_words words, uint64_t* step) {
    static model_words found;
    memo_status status = MEMO_STATUS_OK;
    while (*step < 3 && !status) {
        status = run_step(m, 2, 11 + 2 * *step);
        for (int32_t layer = 0; layer < m->desc.n_layers; layer++)
            for (int32_t s = 0; s < m->desc.n_states && !status; s++)
                if (!(m->table[s].uses & MEMO_STATE_GRADIENT))
                    status = get_state(m, layer, s, found[layer][s]);
        if (status) return status;
        memcpy(words, found, sizeof found);
        ++*step;
    }
    return status;
}

/* A run of three steps.  At a call, or a use of the file, it is cut; a new engine goes on from what
 * was read last.  words: what it ends with.  Returns the status of the fault. */
static memo_status run_with_a_cut(uint64_t seed, int64_t failing_call, int64_t failing_file,
                                  model_words words, int64_t* n_doubtful) {
    static model_words kept;
    static model m;
    memo_status fault = MEMO_STATUS_OK;
    uint64_t step = 0;
    for (int run = 0; run < 2 && step < 3; run++) {
        own_device* host = new_host(0);
        memo_device with_file = *host;
        memo_faults f;
        memo_test.state = seed;
        do random_model(&m);
        while (!m.spilled[0] || m.desc.n_layers < 4 || !has(&m, 0, 0));
        const int next = dup(0); /* the file's number */
        close(next);
        file_of_states.inner = *host;
        file_of_states.number = next;
        file_of_states.n_left = run ? -1 : failing_file;
        with_file.launch_host = launch_with_file;
        memo_faults_init(&f, host);
        f.failing_call = run ? 0 : failing_call;
        f.is_late = 1;
        memo_status status = open_model(&m, host, failing_file < 0 ? &f.device : &with_file);
        if (!status && step > 0) {
            memcpy(m.expected, kept, sizeof kept);
            for (int32_t layer = 0; layer < m.desc.n_layers; layer++)
                for (int32_t s = 0; s < m.desc.n_states; s++)
                    if (!(m.table[s].uses & MEMO_STATE_GRADIENT))
                        CHECK_OK(set_state(&m, layer, s, kept[layer][s]));
        }
        if (!status) status = run_to_the_end(&m, words, &step);
        memcpy(kept, words, sizeof kept);
        if (status) {
            /* The error says that states lie on the host from two steps, or nothing is lost. */
            uint64_t found[WORDS_MAX];
            const memo_error reason = error;
            fault = status;
            CHECK(run == 0 && (failing_file < 0 || reason.status == MEMO_STATUS_IO));
            if (m.states && memob_states_abandon(m.states, &error)) {
                CHECK_TEXT(error.message, "set the states of all layers again");
                if (strstr(error.message, "failed on its stream")) {
                    ++*n_doubtful;
                    CHECK(get_bytes(&m, 0, 0, 0, found, 0) != MEMO_STATUS_OK);
                }
            }
            error = reason;
        }
        close_model(&m);
    }
    return fault;
}

TEST(a_run_that_is_cut_late_resumes_with_the_same_bits) {
    static model_words expected, words;
    const int64_t stride = memo_test_all() ? 1 : 300;
    int64_t n_failed[2] = {0, 0}, n_doubtful = 0;
    for (int i = 0; i < 10; i++) {
        const int of_file = i & 1;
        const uint64_t seed = memo_test_random() ^ (uint64_t)i << 32;
        memset(expected, 0, sizeof expected);
        CHECK_OK(run_with_a_cut(seed, 0, -1, expected, &n_doubtful));
        memo_status status = MEMO_STATUS_DEVICE;
        uint64_t after = seed;
        for (int64_t k = 1; status && k < 5000; n_failed[of_file]++) {
            memset(words, 0, sizeof words);
            status = of_file ? run_with_a_cut(seed, 0, k, words, &n_doubtful)
                             : run_with_a_cut(seed, k, -1, words, &n_doubtful);
            CHECK_CASE(!memcmp(words, expected, sizeof words), "call %lld: %s", (long long)k,
                       status ? error.message : "no fault");
            memo_test.state = ++after;
            k += memo_test_int(1, of_file ? stride / 8 + 1 : stride);
        }
    }
    CHECK_CASE(n_failed[0] > 10 && n_failed[1] > 5 && n_doubtful > 4, "%lld, %lld, %lld",
               (long long)n_failed[0], (long long)n_failed[1], (long long)n_doubtful);
}

/* --- sessions --- */

enum { T_X, T_INPUT, T_HIDDEN, N_TENSORS, ROWS = 40, WORDS = 3 };
enum {
    S_WEIGHTS,
    S_GRADIENTS,
    S_MOMENTS,
    S_FROZEN,
    S_FIRST,
    S_FIRST_GRADIENTS,
    S_LAST,
    S_LAST_GRADIENTS,
    N_STATES
};

enum mistakes {
    NO_MISTAKE,
    FORWARD_WRITES,   /* to weights */
    BACKWARD_WRITES,  /* to a frozen state */
    UPDATE_MISSES,    /* a layer */
    WRITES_TO_CLOSED, /* layer, between two micro-batches */
    FILL_FAILS,       /* gradients are not zeroed */
    N_MISTAKES
};

/* A trainer on words: the forward mixes states into rows, the backward adds to gradients. */
typedef struct trainer {
    memo_session_desc desc;
    memo_tensor tensors[N_TENSORS];
    memo_state states[N_STATES];
    int32_t kinds[LAYERS_MAX];
    memo_shape shapes[2];     /* training, and a forward alone or shorter training */
    uint64_t x[ROWS * WORDS]; /* between layers, without slices */
    uint64_t seen;            /* what all functions have read */
    int32_t mistake;          /* planted: enum mistakes */
    int32_t is_late;          /* no micro-batch is announced as the last; some are dropped */
    int32_t n_updates;        /* of layers */
} trainer;

static uint64_t mix_state(memo_session* s, const trainer* t, int32_t layer, int32_t state,
                          uint64_t h) {
    const uint64_t* words = (const uint64_t*)memo_session_get_state(s, layer, state);
    for (int64_t i = 0; words && i < t->states[state].size_bytes / 8; i++) h = mix(h, words[i]);
    return h;
}

static void add_gradient(memo_session* s, const trainer* t, int32_t layer, int32_t state,
                         uint64_t h) {
    uint64_t* words = (uint64_t*)memo_session_get_state(s, layer, state);
    for (int64_t i = 0; words && i < t->states[state].size_bytes / 8; i++)
        words[i] += mix(h, (uint64_t)i);
}

static uint64_t* rows_of(memo_session* s, int32_t layer, int32_t tensor) {
    return (uint64_t*)memo_session_get_address(s, layer, tensor);
}

static void recompute_words(void* user, memo_session* s, int32_t layer, int32_t tensor,
                            int64_t begin, int64_t end) {
    const trainer* t = (const trainer*)user;
    const uint64_t* input = rows_of(s, layer, T_INPUT);
    uint64_t *hidden = rows_of(s, layer, tensor), h = mix_state(s, t, layer, S_WEIGHTS, 5);
    h = mix_state(s, t, layer, S_FROZEN, h);
    for (int64_t i = begin * WORDS; i < end * WORDS; i++) hidden[i] = mix(input[i], h);
}

static void forward_words(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    const int is_sliced = t->desc.slice_rows > 0;
    int64_t begin, end;
    memo_session_get_slice(s, &begin, &end);
    uint64_t* x = is_sliced ? rows_of(s, layer, T_X) : t->x;
    uint64_t *input = rows_of(s, layer, T_INPUT), *hidden = rows_of(s, layer, T_HIDDEN);
    const int64_t n = (end - begin) * WORDS;
    if (t->mistake == FORWARD_WRITES && layer == 0) add_gradient(s, t, layer, S_WEIGHTS, 1);
    for (int64_t i = 0; i < n && layer == 0; i++)
        x[i] = mix_state(s, t, MEMO_LAYER_FIRST, S_FIRST, (uint64_t)(begin * WORDS + i));
    memcpy(input, x, (size_t)n * 8);
    recompute_words(user, s, layer, T_HIDDEN, 0, end - begin);
    for (int64_t i = 0; i < n; i++) x[i] = mix(x[i], hidden[i]);
}

static void backward_words(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    const int32_t n_layers = t->desc.n_layers;
    int64_t begin, end;
    memo_session_get_slice(s, &begin, &end);
    uint64_t* x = t->desc.slice_rows > 0 ? rows_of(s, layer, T_X) : t->x;
    const uint64_t *input = rows_of(s, layer, T_INPUT), *hidden = rows_of(s, layer, T_HIDDEN);
    uint64_t h = mix_state(s, t, layer, S_WEIGHTS, 9);
    if (layer == n_layers - 1) {
        h = mix_state(s, t, n_layers, S_LAST, h);
        add_gradient(s, t, n_layers, S_LAST_GRADIENTS, h);
    }
    for (int64_t i = 0; i < (end - begin) * WORDS; i++) {
        h = mix(mix(h, input[i]), hidden[i] + x[i]);
        x[i] = mix(x[i], h);
    }
    add_gradient(s, t, layer, S_GRADIENTS, h);
    if (t->mistake == BACKWARD_WRITES) (void)add_gradient(s, t, layer, S_FROZEN, h);
    if (layer == 0) add_gradient(s, t, MEMO_LAYER_FIRST, S_FIRST_GRADIENTS, h);
    t->seen = mix(t->seen, h);
}

/* at: of a layer's states. */
static void update_at(const trainer* t, memo_session* s, int32_t layer,
                      void* (*at)(const memo_session*, int32_t, int32_t)) {
    static const int32_t pairs[][2] = {{S_WEIGHTS, S_GRADIENTS},
                                       {S_MOMENTS, S_GRADIENTS},
                                       {S_FIRST, S_FIRST_GRADIENTS},
                                       {S_LAST, S_LAST_GRADIENTS}};
    if (t->mistake == UPDATE_MISSES && layer == 1) return;
    for (int p = 0; p < 4; p++) {
        uint64_t* words = (uint64_t*)at(s, layer, pairs[p][0]);
        const uint64_t* gradient = (const uint64_t*)at(s, layer, pairs[p][1]);
        uint64_t h = 3;
        for (int64_t i = 0; gradient && i < t->states[pairs[p][1]].size_bytes / 8; i++)
            h = mix(h, gradient[i]);
        for (int64_t i = 0; words && i < t->states[pairs[p][0]].size_bytes / 8; i++)
            words[i] = mix(words[i], h);
    }
}

static void update_words(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    t->n_updates++;
    update_at(t, s, layer, memo_session_get_state);
}

static void update_on_host(void* user, memo_session* s, int32_t layer) {
    update_at((const trainer*)user, s, layer, memo_session_get_host_state);
}

static void random_trainer(trainer* t) {
    const uint32_t first = MEMO_STATE_FIRST, last = MEMO_STATE_LAST;
    memset(t, 0, sizeof *t);
    const int is_sliced = memo_test_int(0, 1) == 0;
    const uint32_t one_kind = memo_test_int(0, 1) ? 1u : 0u;
    const memo_tensor tensors[N_TENSORS] = {
        {"x", 8 * WORDS * is_sliced, MEMO_TENSOR_HANDED, 0},
        {"input", 8 * WORDS, is_sliced ? MEMO_TENSOR_INPUT : MEMO_TENSOR_SWAPPED, 0},
        {"hidden", 8 * WORDS, MEMO_TENSOR_ROWS, 0}};
    const memo_state states[N_STATES] = {
        {"weights", 8 * memo_test_int(1, 300), MEMO_STATE_WEIGHTS, 0},
        {"gradients", 8 * memo_test_int(1, 300), MEMO_STATE_GRADIENT, 0},
        {"moments", 8 * memo_test_int(0, 600), MEMO_STATE_UPDATE, one_kind},
        {"frozen", 8 * memo_test_int(0, 200), MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, one_kind},
        {"first", 8 * memo_test_int(0, 300), MEMO_STATE_WEIGHTS, first},
        {"first_gradients", 8 * memo_test_int(0, 300), MEMO_STATE_GRADIENT, first},
        {"last", 8 * memo_test_int(0, 300), MEMO_STATE_WEIGHTS, last},
        {"last_gradients", 8 * memo_test_int(0, 300), MEMO_STATE_GRADIENT, last}};
    memcpy(t->tensors, tensors, sizeof tensors);
    memcpy(t->states, states, sizeof states);
    for (int32_t layer = 0; layer < LAYERS_MAX; layer++)
        t->kinds[layer] = (int32_t)memo_test_int(0, 1);
    memo_session_desc* d = &t->desc;
    *d = MEMO_ZERO(memo_session_desc);
    d->n_outputs = MEMO_NO_OUTPUTS;
    d->tensors = t->tensors;
    d->n_tensors = N_TENSORS;
    d->n_layers = (int32_t)memo_test_int(1, 6);
    d->layer_kinds = t->kinds;
    d->n_rows = ROWS;
    d->tile_rows = 4;
    d->slice_rows = is_sliced ? 4 * memo_test_int(2, 5) : 0;
    t->shapes[0].n_rows = ROWS;
    t->shapes[1].n_rows = memo_test_int(1, ROWS);
    t->shapes[1].is_forward_only = (int32_t)memo_test_int(0, 1);
    d->shapes = t->shapes;
    d->n_shapes = (int32_t)memo_test_int(1, 2);
    d->states = t->states;
    d->n_states = N_STATES;
    d->forward = forward_words;
    d->backward = backward_words;
    d->recompute = recompute_words;
    d->update = update_words;
    d->update_host = update_on_host;
    d->update_on =
        d->n_layers > 1 && memo_test_int(0, 2) == 0 ? MEMO_UPDATE_HOST : MEMO_UPDATE_DEVICE;
    d->update_is_fused = (int32_t)memo_test_int(0, 1);
    d->user = t;
    d->computes_on_host = 1;
}

/* Runs a few steps in a session with a budget; 0: none.  Returns the hash of all states. */
static uint64_t hash_of_training(trainer* t, int64_t device_bytes, int64_t host_bytes,
                                 memo_step_plan* plan) {
    memo_host_device_desc capacity = {0};
    own_device* device = NULL;
    memo_session* s = NULL;
    uint64_t words[600], hash = 1;
    t->desc.device_bytes = device_bytes;
    t->desc.host_bytes = host_bytes;
    t->seen = 0;
    for (const memo_step_plan* p = plan; p; p = p->next) /* the device has no byte more */
        if (p->device_bytes > capacity.device_memory_bytes)
            capacity.device_memory_bytes = p->device_bytes;
    CHECK_OK(memo_host_device_create(&capacity, &device, &error));
    t->desc.device = device;
    CHECK_OK(plan ? memo_session_open(&t->desc, plan, &s, &error)
                  : memo_session_create(&t->desc, &s, &error));
    if (!s) return 0;
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++)
        for (int32_t state = 0; state < N_STATES; state++) {
            for (int i = 0; i < 600; i++)
                words[i] = mix((uint64_t)(100 * layer + state), (uint64_t)i);
            if (t->states[state].uses & MEMO_STATE_GRADIENT) continue;
            CHECK_OK(memo_session_write_state(s, layer, state, 0, words,
                                              t->states[state].size_bytes, &error));
        }
    for (int step = 0; step < 3; step++) {
        const memo_batch dropped = {.more_follow = t->desc.update_is_fused};
        if (t->is_late) CHECK_OK(memo_session_run(s, &dropped, &error));
        if (t->is_late) CHECK_OK(memo_session_skip_update(s, &error));
        for (int b = 0; b < 2; b++) {
            const memo_batch batch = {.n_rows = step == 1 ? 17 : 0,
                                      .more_follow = b == 0 || t->is_late};
            const memo_batch evaluation = {.is_forward_only = 1, .shape = t->desc.n_shapes - 1};
            const memo_batch short_batch = {.shape = t->desc.n_shapes - 1, .more_follow = 1};
            if (step) CHECK_OK(memo_session_run(s, &evaluation, &error));
            if (step == 2 && b == 0 && !t->shapes[1].is_forward_only)
                CHECK_OK(memo_session_run(s, &short_batch, &error));
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        if (!t->desc.update_is_fused || t->is_late) CHECK_OK(memo_session_update(s, &error));
    }
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++)
        for (int32_t state = 0; state < N_STATES; state++) {
            memset(words, 0, sizeof words);
            if (t->states[state].uses & MEMO_STATE_GRADIENT) continue;
            CHECK_OK(memo_session_read_state(s, layer, state, 0, words, t->states[state].size_bytes,
                                             &error));
            for (int i = 0; i < 600; i++) hash = mix(hash, words[i]);
        }
    memo_session_destroy(s);
    t->desc.device = NULL;
    return hash;
}

/* The bytes that the states take, and the largest layer's, by an own sum. */
static int64_t bytes_of_states(const trainer* t, int64_t* largest) {
    int64_t sum = 0;
    *largest = 0;
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++) {
        int64_t of_layer = 0;
        for (int32_t s = 0; s < N_STATES; s++) {
            const uint32_t kinds = t->states[s].kinds;
            const int is_inside = layer >= 0 && layer < t->desc.n_layers;
            const int has = kinds == MEMO_STATE_FIRST  ? layer < 0
                            : kinds == MEMO_STATE_LAST ? layer == t->desc.n_layers
                            : is_inside                ? !kinds || kinds >> t->kinds[layer] & 1
                                                       : 0;
            of_layer += has ? (t->states[s].size_bytes + 511) / 512 * 512 : 0;
        }
        sum += of_layer;
        if (of_layer > *largest) *largest = of_layer;
    }
    return sum;
}

TEST(sessions_stream_states_with_the_same_bits) {
    int64_t n_streamed = 0, n_spilled = 0, n_on_host = 0;
    for (int64_t i = 0; i < (memo_test_all() ? 200 : 6); i++) {
        trainer t;
        int64_t largest;
        random_trainer(&t);
        if (i % 2) t.desc.n_layers = 8;
        if (i == 3) t.desc.update_on = MEMO_UPDATE_HOST;
        if (i == 5 || i == 7) t.desc.update_on = MEMO_UPDATE_DEVICE;
        const int64_t state_bytes = bytes_of_states(&t, &largest);
        t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&t.desc, NULL);
        if (!least) continue;
        CHECK_IS(least->fits, ==, 0);
        /* FIRST, a layer and LAST are open at once if there is one layer. */
        CHECK_IS(least->state_bytes, <=, (t.desc.n_layers > 1 ? 2 : 3) * largest);
        const memo_update update_on = t.desc.update_on;
        t.desc.update_on = MEMO_UPDATE_DEVICE; /* all stays there */
        const uint64_t kept = hash_of_training(&t, 0, 0, NULL), seen = t.seen;
        t.desc.update_on = update_on;
        const int64_t span = state_bytes + 4 * least->device_bytes;
        for (int64_t k = 0; k < 4; k += 1 + i % 2) {
            const int64_t budget = least->device_bytes + k * k * k * span / 64;
            own_step_plan* spilling = NULL;
            t.desc.device_bytes = budget;
            t.desc.spill_directory = NULL;
            t.desc.host_bytes = 0;
            own_step_plan* plan = step_plan_of(&t.desc, NULL);
            if (i % 2) { /* a quarter less of host memory, if a file helps */
                t.desc.spill_directory = memo_test_folder();
                t.desc.host_bytes = plan->host_bytes * 3 / 4 + 1;
                CHECK_OK(memo_session_plan(&t.desc, NULL, &spilling, &error));
                CHECK_IS(spilling->host_bytes, <=, t.desc.host_bytes + (1 << 20) * !spilling->fits);
            }
            if (spilling && spilling->fits) {
                memo_step_plan_destroy(plan);
                plan = spilling;
                spilling = NULL;
                n_spilled += plan->n_spilled > 0;
            }
            CHECK_CASE(plan->fits, "case %lld: %s", (long long)i, plan->shortage);
            if (!plan->fits) continue;
            n_streamed += plan->n_streamed > 0;
            n_on_host += plan->update_is_on_host;
            CHECK_IS(plan->update_is_on_host, ==, update_on == MEMO_UPDATE_HOST);
            CHECK_IS(plan->device_bytes, ==,
                     plan->activation_bytes + plan->state_bytes + plan->persistent_bytes +
                         plan->transient_bytes);
            t.is_late = k == 2;
            CHECK_CASE(hash_of_training(&t, budget, t.desc.host_bytes, plan) == kept &&
                           (t.is_late || t.seen == seen),
                       "case %lld, budget %lld", (long long)i, (long long)budget);
        }
    }
    CHECK_IS(n_streamed, >, 6);
    CHECK_IS(n_spilled, >, 0);
    CHECK_IS(n_on_host, >, 1);
}

/* --- predicted times --- */

/* A trainer whose functions only take time, on a device that writes down what is enqueued. */
typedef struct timed_trainer {
    trainer t; /* first */
    memo_profile profile;
    const memo_device* device;
    memo_stream stream;
} timed_trainer;

static void take_time(const timed_trainer* t, double duration_s) {
    memo_op_desc op = {.name = "compute", .duration_s = duration_s};
    CHECK_OK(memo_annotate(t->device, t->stream, &op, &error));
}

static void take_layer(const timed_trainer* t, const memo_session* s, int32_t layer,
                       const double* times_s) {
    int64_t begin, end;
    memo_session_get_slice(s, &begin, &end);
    take_time(t, times_s[t->t.kinds[layer]] * (double)(end - begin) / (double)t->profile.n_rows);
}
static void forward_takes(void* user, memo_session* s, int32_t layer) {
    const timed_trainer* t = (const timed_trainer*)user;
    take_layer(t, s, layer, t->profile.forward_s);
}
static void between_takes(void* user, MEMO_UNUSED memo_session* s) {
    const timed_trainer* t = (const timed_trainer*)user;
    take_time(t, t->profile.between_s);
}
static void backward_takes(void* user, memo_session* s, int32_t layer) {
    const timed_trainer* t = (const timed_trainer*)user;
    take_layer(t, s, layer, t->profile.backward_s);
}
static void recompute_takes(void* user, MEMO_UNUSED memo_session* s, int32_t layer, int32_t tensor,
                            int64_t begin, int64_t end) {
    const timed_trainer* t = (const timed_trainer*)user;
    take_time(t, t->profile.tensors[tensor].recompute_s_per_row[t->t.kinds[layer]] *
                     (double)(end - begin));
}
static void update_takes(void* user, memo_session* s, int32_t layer) {
    const timed_trainer* t = (const timed_trainer*)user;
    double n_bytes = 0;
    for (int32_t i = 0; i < N_STATES; i++)
        if (t->t.states[i].uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT) &&
            memo_session_get_state(s, layer, i))
            n_bytes += (double)t->t.states[i].size_bytes;
    take_time(t, n_bytes * t->profile.update_s_per_byte);
}

static void random_times(timed_trainer* t) {
    memo_profile* p = &t->profile;
    const double rate = 3000 * (0.3 + 2 * memo_test_real());
    random_trainer(&t->t);
    memo_session_desc* d = &t->t.desc;
    d->n_shapes = 0;
    d->forward = forward_takes;
    d->between = between_takes;
    d->backward = backward_takes;
    d->recompute = recompute_takes;
    d->update = update_takes;
    d->computes_on_host = 0;
    p->n_rows = d->slice_rows ? d->slice_rows : d->n_rows;
    p->n_kinds = 2;
    p->n_tensors = N_TENSORS;
    p->between_s = memo_test_real();
    p->update_s_per_byte = memo_test_int(0, 1) ? 1e-4 * memo_test_real() : 0;
    p->update_host_s_per_byte = 2e-4 * memo_test_real();
    for (int i = 0; i < N_TENSORS; i++) {
        snprintf(p->tensors[i].name, sizeof p->tensors[i].name, "%s", t->t.tensors[i].name);
        for (int k = 0; k < 2; k++)
            p->tensors[i].recompute_s_per_row[k] = i == T_HIDDEN ? 0.01 * memo_test_real() : -1;
    }
    for (int k = 0; k < 2; k++) {
        p->forward_s[k] = memo_test_real();
        p->backward_s[k] = 2 * memo_test_real();
    }
    for (int k = 0; k < 2; k++) {
        p->copies[k].size_bytes = k ? 64000 : 1000;
        p->copies[k].out_s = 0.001 + (double)p->copies[k].size_bytes / rate;
        p->copies[k].back_s = 0.001 + (double)p->copies[k].size_bytes / (1.2 * rate);
    }
    p->file.size_bytes = 1000;
    p->file.out_s = 0.3 * memo_test_real() + 0.001;
    p->file.back_s = 0.3 * memo_test_real() + 0.001;
}

/* Steps on a recorder; the times between their marks by memo_schedule_simulate. */
static void simulate_steps(timed_trainer* t, const memo_step_plan* plan, double* step_s,
                           double* update_s) {
    enum { STEPS = 4 };
    const double small_s[2] = {t->profile.copies[0].out_s, t->profile.copies[0].back_s};
    const double file_s[2] = {t->profile.file.out_s, t->profile.file.back_s}; /* of 1000 bytes */
    own_device* host = new_host(0);
    memo_schedule* schedule = NULL;
    double marks_s[2 * STEPS];
    int64_t marks[2 * STEPS];
    own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
    t->device = t->t.desc.device = memo_recorder_get_device(recorder);
    CHECK_OK(memo_stream_create(t->device, "compute", 0, &t->stream, &error));
    t->t.desc.compute_stream = t->stream;
    memo_session* s = session_of_plan(&t->t.desc, plan);
    for (int step = 0; step < STEPS && s; step++) {
        CHECK_OK(memo_session_run(s, NULL, &error));
        take_time(t, 0);
        CHECK_OK(memo_recorder_get_schedule(recorder, &schedule, &error));
        marks[2 * step] = schedule->n_ops - 1;
        if (!t->t.desc.update_is_fused) CHECK_OK(memo_session_update(s, &error));
        take_time(t, 0);
        CHECK_OK(memo_recorder_get_schedule(recorder, &schedule, &error));
        marks[2 * step + 1] = schedule->n_ops - 1;
    }
    memo_recorder_pause(recorder);
    memo_session_destroy(s);
    memo_stream_destroy(host, t->stream, NULL);

    time_copies(schedule, "to host", 1000 / (small_s[0] - 0.001), 0.001);
    time_copies(schedule, "to device", 1000 / (small_s[1] - 0.001), 0.001);
    time_copies(schedule, "to file", 1000 / file_s[0], 0);
    time_copies(schedule, "from file", 1000 / file_s[1], 0);
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (!strcmp(memo_schedule_op_name(schedule, i), "update on host"))
            schedule->ops[i].duration_s =
                t->profile.update_host_s_per_byte * (double)schedule->ops[i].link_bytes;
    own_times* times = times_of(schedule);
    for (int k = 0; k < 2 * STEPS; k++) marks_s[k] = times->end_s[marks[k]];
    *step_s = marks_s[2 * STEPS - 2] - marks_s[2 * STEPS - 3];
    *update_s = marks_s[2 * STEPS - 1] - marks_s[2 * STEPS - 2];
}

TEST(predicted_steps_are_those_of_recorded_operations) {
    int64_t n_streamed = 0, n_spilled = 0, n_exact = 0, n = memo_test_all() ? 600 : 9;
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t largest;
        double step_s, update_s;
        timed_trainer t = {0};
        random_times(&t);
        for (int k = 0; k < N_STATES && i % 3 == 1; k++) t.t.states[k].size_bytes *= 16;
        if (i % 3 == 1) t.t.desc.n_layers = 6;
        t.t.desc.device_bytes = 1;
        own_step_plan* least = step_plan_of(&t.t.desc, NULL);
        if (memo_test_all() ? i % 2 : i != 1) /* such plans are found sooner */
            t.t.desc.policy = MEMO_POLICY_ALPHA;
        t.t.desc.device_bytes =
            least->device_bytes + (i % 3 ? 0 : memo_test_int(0, bytes_of_states(&t.t, &largest)));
        own_step_plan* plan = step_plan_of(&t.t.desc, &t.profile);
        CHECK_CASE(plan->fits, "case %lld: %s", (long long)i, plan->shortage);
        if (i % 3 == 1 && plan->fits) { /* a file, if it helps */
            t.t.desc.spill_directory = memo_test_folder();
            t.t.desc.host_bytes = plan->host_bytes * 3 / 4;
            own_step_plan* spilling = step_plan_of(&t.t.desc, &t.profile);
            if (spilling && spilling->fits) {
                memo_step_plan_destroy(plan);
                plan = spilling;
                spilling = NULL;
            }
            n_spilled += plan->n_spilled > 0;
        }
        if (!plan->fits) continue;
        simulate_steps(&t, plan, &step_s, &update_s);
        const double whole_s = plan->times->step_s + plan->times->update_s;
        const double off = fabs((step_s + update_s) / whole_s - 1);
        n_streamed += plan->n_streamed > 0;
        n_exact += fabs(step_s - plan->times->step_s) + fabs(update_s - plan->times->update_s) <
                   1e-9 * whole_s;
        worst = off > worst ? off : worst;
        CHECK_CASE(off < 0.03, "case %lld: predicted %g + %g, simulated %g + %g", (long long)i,
                   plan->times->step_s, plan->times->update_s, step_s, update_s);
    }
    CHECK_CASE(n_streamed > n / 2 && n_spilled > n / 10 && n_exact >= n - n / 20,
               "%lld of %lld with streamed states, %lld with a file, %lld exact, worst %g",
               (long long)n_streamed, (long long)n, (long long)n_spilled, (long long)n_exact,
               worst);
}

/* PLANNED updates where the predicted step is shorter, or where only that fits. */
TEST(the_update_is_planned_where_it_is_faster) {
    int n_on_host = 0, n_on_device = 0;
    for (int i = 0; i < 24; i++) {
        memo_step_plan* plans[3] = {NULL, NULL, NULL};
        double step_s[3];
        timed_trainer t = {0};
        do random_times(&t);
        while (t.t.desc.n_layers < 3);
        t.profile.update_host_s_per_byte *= i % 2 ? 0.01 : 10;
        t.t.desc.policy = MEMO_POLICY_RECOMPUTE;
        CHECK_OK(memo_session_get_least(&t.t.desc, &t.t.desc.device_bytes, &error));
        for (int on = 0; on < 3; on++) {
            t.t.desc.update_on = (memo_update)on;
            CHECK_OK(memo_session_plan(&t.t.desc, &t.profile, &plans[on], &error));
            step_s[on] =
                plans[on]->fits ? plans[on]->times->step_s + plans[on]->times->update_s : HUGE_VAL;
        }
        CHECK(plans[MEMO_UPDATE_HOST]->update_is_on_host &&
              !plans[MEMO_UPDATE_DEVICE]->update_is_on_host);
        CHECK_CASE(step_s[0] <= 1.002 * fmin(step_s[1], step_s[2]),
                   "case %d: %g, device %g, host %g", i, step_s[0], step_s[1], step_s[2]);
        n_on_host += plans[0]->update_is_on_host;
        n_on_device += !plans[0]->update_is_on_host;
        for (int on = 0; on < 3; on++) memo_step_plan_destroy(plans[on]);
    }
    CHECK_CASE(n_on_host > 3 && n_on_device > 3, "%d on the host, %d on the device", n_on_host,
               n_on_device);
}

/* Also by a checked session.  A plan needs the functions that its sessions call. */
TEST(updates_on_the_host_are_measured) {
    own_device* device = new_host(0);
    memo_profile profiles[2];
    trainer t;
    do random_trainer(&t);
    while (t.desc.n_layers < 2);
    t.desc.update_on = MEMO_UPDATE_HOST;
    t.desc.device = device;
    t.desc.is_checked = 1;
    CHECK_OK(memo_session_measure(&t.desc, profiles, &error));
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

typedef uint64_t state_words[LAYERS_MAX][N_STATES][600];

/* Reads all states but gradients, or writes them. */
static memo_status transfer_states(memo_session* s, const trainer* t, int is_write,
                                   state_words words) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t layer = -1; layer <= t->desc.n_layers; layer++)
        for (int32_t i = 0; i < N_STATES && !status; i++) {
            const int64_t n = t->states[i].size_bytes;
            if (t->states[i].uses & MEMO_STATE_GRADIENT) continue;
            status = is_write
                         ? memo_session_write_state(s, layer, i, 0, words[layer + 1][i], n, &error)
                         : memo_session_read_state(s, layer, i, 0, words[layer + 1][i], n, &error);
        }
    return status;
}

static memo_status step_of_session(memo_session* s, const trainer* t) {
    memo_status status = MEMO_STATUS_OK;
    for (int b = 0; b < 2 && !status; b++) {
        const memo_batch batch = {.more_follow = b == 0};
        status = memo_session_run(s, &batch, &error);
    }
    return status || t->desc.update_is_fused ? status : memo_session_update(s, &error);
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
        if (!(status = step_of_session(s, t))) continue;
        fault = status;
        if (strstr(error.message, "set the states of all layers again")) {
            ++*n_halved;
            CHECK_OK(transfer_states(s, t, 1, words));
        }
        memcpy(after, words, sizeof after);
        CHECK_OK(transfer_states(s, t, 0, after));
        CHECK_CASE(!memcmp(after, words, sizeof after), "%s", error.message);
        CHECK_OK(step_of_session(s, t));
    }
    status = transfer_or_again(s, t, 0, words);
    return fault ? fault : status;
}

static void set_words(state_words words, int64_t key) {
    for (int64_t k = 0; k < (int64_t)(sizeof(state_words) / 8); k++)
        (&words[0][0][0])[k] = mix((uint64_t)key, (uint64_t)k);
}

/* In the least device memory. */
static memo_step_plan* plan_of_three_layers(trainer* t, int64_t is_fused) {
    random_trainer(t);
    t->desc.n_layers = 3;
    t->desc.update_is_fused = (int32_t)is_fused;
    CHECK_OK(memo_session_get_least(&t->desc, &t->desc.device_bytes, &error));
    return step_plan_of(&t->desc, NULL);
}

/* Each device call of a session fails once.  It is one error, and leaves nothing behind.  States
 * have their bytes, unless the error says that an update has changed some. */
TEST(a_fault_in_a_session_loses_no_state) {
    static state_words expected, words;
    int64_t n_failed = 0, n_halved = 0;
    for (int64_t i = 0; i < (memo_test_all() ? 20 : 2); i++) {
        memo_status status = MEMO_STATUS_OK;
        trainer t;
        own_step_plan* plan = plan_of_three_layers(&t, i % 2);
        /* Each call, or a sample of the calls; 0: none fails. */
        for (int64_t k = 0; k < 2 || status; k += k && !memo_test_all() ? memo_test_int(1, 5) : 1) {
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
    CHECK_CASE(n_failed > 40 && n_halved > 2, "%lld failed, %lld in updates", (long long)n_failed,
               (long long)n_halved);
}

/* Steps from *step on, which begin with words; after each step words are its states. */
static memo_status train_to_the_end(memo_session* s, const trainer* t, state_words words,
                                    int* step) {
    static state_words found;
    memo_status status = transfer_states(s, t, 1, words);
    memcpy(found, words, sizeof found);
    while (*step < 3 && !status) {
        status = step_of_session(s, t);
        if (!status) status = transfer_states(s, t, 0, found);
        if (status) return status;
        memcpy(words, found, sizeof found);
        ++*step;
    }
    return status;
}

/* An operation fails on its stream, and with it the device.  A new session goes on from the states
 * that were read last, and ends with the bits of a run without a fault. */
TEST(a_session_that_is_cut_late_resumes_with_the_same_bits) {
    static state_words expected, words;
    int64_t n_failed = 0, n_doubtful = 0;
    for (int64_t i = 0; i < (memo_test_all() ? 10 : 2); i++) {
        memo_status fault = MEMO_STATUS_OK;
        trainer t;
        own_step_plan* plan = plan_of_three_layers(&t, i % 2);
        for (int64_t k = 0; k < 2 || fault;
             k += k ? memo_test_int(1, memo_test_all() ? 3 : 30) : 1) {
            int step = 0;
            fault = MEMO_STATUS_OK;
            set_words(words, i);
            for (int run = 0; run < 2 && step < 3; run++) {
                own_device* host = new_host(0);
                own_session* s = NULL;
                memo_faults f;
                memo_faults_init(&f, host);
                t.desc.device = &f.device;
                f.failing_call = run ? 0 : k;
                f.is_late = 1;
                memo_status status = memo_session_open(&t.desc, plan, &s, &error);
                if (!status) status = train_to_the_end(s, &t, words, &step);
                CHECK_CASE(!status || run == 0, "call %lld: %s", (long long)k, error.message);
                if (status) fault = status;
                n_doubtful += status && strstr(error.message, "set the states of all layers again");
            }
            if (k == 0) memcpy(expected, words, sizeof words);
            CHECK_CASE(!memcmp(words, expected, sizeof words), "call %lld", (long long)k);
            n_failed += fault != MEMO_STATUS_OK;
        }
        t.desc.device = NULL;
    }
    CHECK_CASE(n_failed > 20 && n_doubtful > 2, "%lld failed, %lld in updates", (long long)n_failed,
               (long long)n_doubtful);
}

/* --- checked sessions --- */

static memo_status fill_nothing(MEMO_UNUSED void* context, MEMO_UNUSED memo_stream stream,
                                MEMO_UNUSED void* address, MEMO_UNUSED int32_t value,
                                MEMO_UNUSED int64_t n_bytes, MEMO_UNUSED memo_error* e) {
    return MEMO_STATUS_OK;
}

/* Correct trainers pass; each mistake is an error that names layer and state. */
TEST(checked_sessions_find_planted_mistakes) {
    static const char* const messages[N_MISTAKES] = {
        "",
        "layer 0, state `weights`, forward: the pass wrote to it",
        "state `frozen`, backward: the pass wrote to it",
        "layer 1, state `weights`, update: not changed",
        "layer 1, state `weights`, forward: it changed while its layer was closed",
        "gradients`, backward: not zero when the first backward"};
    for (int64_t i = 0; i < (memo_test_all() ? 200 : 18); i++) {
        const int mistake = (int)(i % N_MISTAKES), is_tight = mistake && i % 2;
        own_device* device = new_host(0);
        memo_device unfilled = *device;
        memo_status status = MEMO_STATUS_OK;
        trainer t;
        do
            random_trainer(
                &t); /* a write between two slices is found as another one's recomputation */
        while (mistake == BACKWARD_WRITES && t.desc.slice_rows);
        t.desc.n_layers = 3;
        if (mistake == WRITES_TO_CLOSED) t.desc.update_on = MEMO_UPDATE_DEVICE; /* resident */
        if (mistake) {
            for (int k = 0; k < N_STATES; k++) t.states[k].size_bytes = 512;
            memset(t.kinds, 0, sizeof t.kinds);
        }
        t.mistake = mistake;
        t.desc.is_checked = 1;
        t.desc.computes_on_host = mistake != FILL_FAILS;
        unfilled.fill = fill_nothing;
        t.desc.device = mistake == FILL_FAILS ? &unfilled : device;
        if (!t.desc.computes_on_host) /* computed at once: an idle stream has nothing to order */
            CHECK_OK(memo_stream_create(device, "compute", 0, &t.desc.compute_stream, &error));
        CHECK_OK(memo_session_get_least(&t.desc, &t.desc.device_bytes, &error));
        if (!is_tight) t.desc.device_bytes += 1 << 20;
        own_step_plan* plan = step_plan_of(&t.desc, NULL);
        own_session* s = session_of_plan(&t.desc, plan);
        for (int step = 0; step < 3 && !status; step++) {
            uint64_t* words = (uint64_t*)memo_session_get_state(s, 1, S_WEIGHTS);
            if (step == 1 && mistake == WRITES_TO_CLOSED && !is_tight) words[3]++;
            status = step_of_session(s, &t);
        }
        if (!mistake || (mistake == WRITES_TO_CLOSED && is_tight))
            CHECK_CASE(!status, "case %lld: %s", (long long)i, error.message);
        else
            CHECK_CASE(status == MEMO_STATUS_INVALID_ARGUMENT &&
                           strstr(error.message, messages[mistake]),
                       "case %lld, mistake %d: %s", (long long)i, mistake,
                       status ? error.message : "not found");
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
    (void)memo_session_plan(&rank_trainers[i].desc, NULL, &plan, &rank_errors[i]);
    return MEMO_STATUS_OK;
}

/* Sizes, uses, kinds or a fused update of one rank alone are an error on all ranks. */
TEST(ranks_with_other_states_are_an_error) {
    memo_host_device_desc device_desc = {0};
    memo_comm_threads_desc comm_desc = {.timeout_s = 20};
    for (int round = 0; round < 5; round++) {
        const uint64_t seed = memo_test_random();
        for (int i = 0; i < 2; i++) {
            memo_test.state = seed;
            random_trainer(&rank_trainers[i]);
            rank_trainers[i].desc.agree = agree_as_ranks;
        }
        memo_state* weights = &rank_trainers[1].states[S_WEIGHTS];
        if (round == 1) weights->size_bytes++;
        if (round == 2) weights->uses = MEMO_STATE_FORWARD;
        if (round == 3) weights->kinds ^= 2;
        if (round == 4) rank_trainers[1].desc.update_is_fused ^= 1;
        CHECK_OK(thread_ranks_run_on(&device_desc, &comm_desc, 2, plan_as_rank, NULL, &error));
        for (int i = 0; i < 2; i++)
            CHECK_CASE(round ? strstr(rank_errors[i].message, round == 4
                                                                  ? "update_is_fused: not the same"
                                                                  : "states: not the same") != NULL
                             : !rank_errors[i].status,
                       "round %d, rank %d: %s", round, i, rank_errors[i].message);
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

static void large_tensors(const large_model* m, memo_tensor* tensors, memo_profile* p) {
    const int64_t h = 2 * m->width, f = 2 * m->inner, kv = 2 * m->kv_width;
    const memo_tensor table[N_LARGE] = {{"x", h, MEMO_TENSOR_HANDED, 0},
                                        {"input", h, MEMO_TENSOR_INPUT, 0},
                                        {"norm1", h, MEMO_TENSOR_ROWS, 0},
                                        {"q", h, MEMO_TENSOR_ROWS, 0},
                                        {"k", kv, MEMO_TENSOR_LAYER, 0},
                                        {"v", kv, MEMO_TENSOR_LAYER, 0},
                                        {"attention", h, MEMO_TENSOR_WHOLE, 0},
                                        {"lse", 4 * m->heads, MEMO_TENSOR_WHOLE, 1 + L_ATTENTION},
                                        {"middle", h, MEMO_TENSOR_ROWS, 0},
                                        {"norm2", h, MEMO_TENSOR_ROWS, 0},
                                        {"gate", f, MEMO_TENSOR_ROWS, 0},
                                        {"up", f, MEMO_TENSOR_ROWS, 0},
                                        {"activation", f, MEMO_TENSOR_ROWS, 0}};
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
        p->tensors[t].recompute_s_per_row[0] = table[t].rule <= MEMO_TENSOR_WHOLE ? row_s[t] : -1;
        p->tensors[t].recompute_growth_s_per_row[0] = t == L_ATTENTION ? attention_s : 0;
    }
    for (int k = 0; k < 2; k++) {
        p->copies[k].size_bytes = k ? 1 << 30 : 32768;
        p->copies[k].out_s = p->copies[k].back_s =
            10e-6 + (double)p->copies[k].size_bytes / m->link_bytes_per_s;
    }
}

/* The states' bytes on the device (resident, and the largest layers of each place) and on the host,
 * by an own sum over what the plan streams. */
static void sum_states(const large_model* m, const memo_state* states, int n_states,
                       int64_t n_streamed, int64_t* device_bytes, int64_t* host_bytes) {
    const int64_t n = m->n_layers + 2;
    int64_t places[2] = {0, 0}, turn = 0;
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
        if (in_place > places[turn]) places[turn] = in_place;
        turn ^= 1;
    }
    *device_bytes += places[0] + places[1];
}

/* The bytes of rows on the host and on the device.  The last two steps, or layers, stay. */
static void sum_rows(const large_model* m, const memo_step_plan* plan, int64_t* host_bytes,
                     int64_t* device_bytes) {
    const int64_t n_slices = m->n_rows / m->slice_rows, n_steps = m->n_layers * n_slices;
    *host_bytes = *device_bytes = 0;
    for (int t = 0; t < N_LARGE; t++) {
        const memo_tensor* tensor = &plan->swap.tensors[t];
        const int is_layer = tensor->rule == MEMO_TENSOR_LAYER;
        int64_t most[2] = {0, 0}, recomputed = 0, n_kept = 0;
        for (int64_t step = 0; step < n_steps; step++) {
            const int64_t rows = plan->swap.rows[step * N_LARGE + t], layer = step / n_slices;
            int64_t* part = &most[(is_layer ? layer : step) % 2];
            n_kept += rows < 0;
            if (rows < 0) continue;
            if (rows > *part) *part = rows;
            if (m->slice_rows - rows > recomputed) recomputed = m->slice_rows - rows;
            if (is_layer ? layer < m->n_layers - 2 : step < n_steps - 2)
                *host_bytes += rows * tensor->row_bytes;
        }
        if (tensor->rule == MEMO_TENSOR_HANDED) {
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
        const large_model* m = &models[i];
        memo_tensor tensors[N_LARGE];
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
                               .update_is_fused = 1,
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
        CHECK_IS(plan->activation_bytes, ==, place_bytes);
        CHECK_IS(plan->sizes.host_bytes, ==, moved_bytes);
        CHECK_IS(plan->state_bytes, ==, state_bytes);
        CHECK_IS(plan->device_bytes, ==,
                 plan->activation_bytes + plan->state_bytes + plan->persistent_bytes +
                     plan->transient_bytes);
        CHECK_IS(plan->device_bytes, <=, d.device_bytes);
        CHECK_IS(plan->host_bytes, <=, d.host_bytes);
        CHECK_IS(plan->host_bytes - (plan->sizes.host_bytes + 511) / 512 * 512, ==, host_bytes);

        const double step_s = plan->times->step_s + plan->times->update_s;
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
    memob_states_sizes sizes;
    model m;
    random_model(&m);
    m.table[0].uses = MEMO_STATE_GRADIENT | MEMO_STATE_FORWARD;
    CHECK_ERROR(memob_states_get_sizes(&m.desc, &sizes, &error), INVALID_ARGUMENT,
                "states[0].uses: 9");
    m.table[0].uses = MEMO_STATE_UPDATE;
    m.table[0].size_bytes = -8;
    CHECK_ERROR(memob_states_get_sizes(&m.desc, &sizes, &error), INVALID_ARGUMENT,
                "states[0].size_bytes: -8");
    m.table[0].size_bytes = (int64_t)1 << 61;
    CHECK_ERROR(memob_states_get_sizes(&m.desc, &sizes, &error), INVALID_ARGUMENT,
                "states[0].size_bytes");
    do random_model(&m);
    while (!m.desc.update_host || !has(&m, 0, 0));
    CHECK_OK(memob_states_get_sizes(&m.desc, &sizes, &error));
    m.spilled[0] |= 1;
    CHECK_ERROR(memob_states_get_sizes(&m.desc, &sizes, &error), INVALID_ARGUMENT,
                "update_host: layer 0 has states for the update that are not streamed");
}

TEST(updates_on_the_host_need_host_functions) {
    own_device* host = new_host(0);
    memo_device table = *host;
    model m;
    do random_model(&m);
    while (!m.desc.update_host || m.spilled[0]);
    memset(m.spilled, 0, sizeof m.spilled);
    table.launch_host = NULL;
    m.desc.device = &table;
    CHECK_ERROR(memob_states_create(&m.desc, 0, &m.states, &error), UNSUPPORTED,
                "no launch_host, which update_host needs");
}

TEST(an_open_layer_has_no_transfers) {
    own_device* host = new_host(0);
    uint64_t words[1];
    model m;
    do random_model(&m);
    while (m.desc.n_layers < 3 || m.desc.update_is_fused || !has(&m, 0, 0));
    CHECK_OK(open_model(&m, host, host));
    CHECK_OK(memob_states_set_batch(m.states, 1, 0, &error));
    CHECK_OK(memob_states_begin(m.states, MEMOB_STATES_PASS_FORWARD, 0, &error));
    CHECK_ERROR(get_bytes(&m, 0, 0, 0, words, 8), INVALID_STATE, "a layer is open");
    CHECK_OK(memob_states_abandon(m.states, &error));
    CHECK_ERROR(set_bytes(&m, 0, 0, m.table[0].size_bytes - 7, words, 8), INVALID_ARGUMENT,
                "offset_bytes: 8 bytes from byte");
    CHECK_OK(run_step(&m, 2, 4));
    check_bits(&m, 0);
    close_model(&m);
}

/* Takes the rows of a layer that has ended.  A plan has overwritten them: layers l and l + 2 share
 * a buffer.  Layer l + 1 lies where the copy of layer l - 1 may still be under way. */
static void backward_behind(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    backward_words(user, s, layer);
    if (layer + 2 < t->desc.n_layers)
        add_gradient(s, t, layer, S_GRADIENTS, rows_of(s, layer + 2, T_INPUT)[0]);
}

TEST(gradients_of_states_are_verified) {
    own_device* device = new_host(0);
    trainer t;
    for (int round = 0; round < 10; round++) {
        do random_trainer(&t);
        while (t.desc.n_layers < 6 || t.desc.slice_rows);
        t.desc.device = device;
        CHECK_OK(memo_session_verify(&t.desc, &error));
        t.desc.backward = backward_behind;
        CHECK_ERROR(memo_session_verify(&t.desc, &error), INVALID_ARGUMENT,
                    "memo_session_verify: output `gradients`, layer ");
    }
}

TEST(misused_states_of_a_session_are_errors) {
    own_device* device = new_host(0);
    own_session* s = NULL;
    trainer t;
    uint64_t words[600];
    do random_trainer(&t);
    while (t.desc.update_is_fused || t.desc.update_on == MEMO_UPDATE_HOST || t.desc.n_layers < 2);
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
    (void)memo_session_begin(s, NULL);
    CHECK_ERROR(memo_session_write_state(s, 0, 0, 0, words, 8, &error), INVALID_STATE,
                "between micro-batches");
    (void)memo_session_end(s, &error);

    /* A plan for other states. */
    own_session* other = NULL;
    t.desc.device = NULL;
    own_step_plan* plan = step_plan_of(&t.desc, NULL);
    t.states[S_WEIGHTS].size_bytes += 4096;
    CHECK_ERROR(memo_session_open(&t.desc, plan, &other, &error), INVALID_ARGUMENT,
                "made for other states");
}

/* A plan file keeps what is streamed. */
TEST(plan_files_keep_streamed_states) {
    trainer t;
    char path[250];
    random_trainer(&t);
    t.desc.device_bytes = 1;
    own_step_plan* plan = step_plan_of(&t.desc, NULL);
    CHECK(plan && plan->n_streamed > 0);
    CHECK_OK(memo_step_plan_write(plan, memo_test_path(path, "plan"), &error));
    own_step_plan* read = step_plan_of_file(&t.desc, path);
    CHECK(read && read->n_streamed == plan->n_streamed &&
          read->update_is_on_host == plan->update_is_on_host &&
          read->state_bytes == plan->state_bytes && read->device_bytes == plan->device_bytes &&
          read->host_bytes == plan->host_bytes);
    remove(path);
}

/* Writes the first values of what the update uses. */
static void fill_words(void* user, memo_session* s, int32_t layer) {
    trainer* t = (trainer*)user;
    t->n_updates++;
    for (int32_t state = 0; state < N_STATES; state++) {
        uint64_t* words = (uint64_t*)memo_session_get_state(s, layer, state);
        for (int64_t i = 0; words && i < t->states[state].size_bytes / 8; i++)
            words[i] = mix((uint64_t)(100 * layer + state), (uint64_t)i);
    }
}

/* A budget that holds no states all at once: states stay and do not fit, or leave the device and are
 * filled layer by layer. */
TEST(first_values_are_filled_layer_by_layer) {
    for (int i = 0; i < 4; i++) {
        own_device* device = new_host(0);
        own_step_plan* stays = NULL;
        trainer t;
        int64_t largest;
        uint64_t words[600];
        do random_trainer(&t);
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
        CHECK_IS(stays->state_bytes, ==, bytes_of_states(&t, &largest));

        t.desc.states_stay = 0;
        t.desc.device = device;
        if (i % 2) t.desc.update_on = MEMO_UPDATE_HOST;
        own_session* s = session_of_plan(&t.desc, plan);
        if (!s) return;
        t.n_updates = 0;
        CHECK_OK(memo_session_fill_states(s, fill_words, &error));
        CHECK_IS(t.n_updates, ==, t.desc.n_layers + 2);
        for (int32_t layer = -1; layer <= t.desc.n_layers; layer++)
            for (int32_t state = 0; state < N_STATES; state++) {
                if (!(t.states[state].uses & MEMO_STATE_UPDATE)) continue;
                memset(words, 0, sizeof words);
                CHECK_OK(memo_session_read_state(s, layer, state, 0, words,
                                                 t.states[state].size_bytes, &error));
                const int has = words[0] || words[1];
                for (int64_t k = 0; has && k < t.states[state].size_bytes / 8; k++)
                    CHECK_IS(words[k], ==, mix((uint64_t)(100 * layer + state), (uint64_t)k));
                if (state == S_WEIGHTS) CHECK_IS(has, ==, layer >= 0 && layer < t.desc.n_layers);
            }
        (void)memo_session_begin(s, NULL);
        CHECK_ERROR(memo_session_fill_states(s, fill_words, &error), INVALID_STATE,
                    "memo_session_fill_states: a micro-batch is open");
        (void)memo_session_end(s, &error);
    }
}

/* Each request for host memory of a session with streamed states is refused in turn. */
TEST(without_host_memory_sessions_with_states_are_an_error) {
    static state_words words;
    refusal r = {.can_do_without = 1};
    memo_status status = MEMO_STATUS_OK;
    trainer t;
    random_trainer(&t);
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

/* Each request for host memory is refused in turn. */
TEST(without_host_memory_states_are_an_error) {
    refusal r = {0};
    memo_status status = MEMO_STATUS_OK;
    while (next_refusal(&r, status)) {
        memo_host_device_desc desc = {0};
        own_device* host = NULL;
        model m;
        memo_test.state = 5;
        random_model(&m);
        m.desc.computes_on_host = 1;
        status = memo_host_device_create(&desc, &host, &error);
        m.desc.device = host;
        if (!status) status = memob_states_create(&m.desc, 0, &m.states, &error);
        memob_states_destroy(m.states);
    }
    CHECK_IS(r.n_failed, >, 2);
}
