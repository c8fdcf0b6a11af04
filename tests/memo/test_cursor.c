/* test_cursor.c - the cursor of a step against plain arrays.  Random states, orders, slices, rounds and
 * moments of the update; random deviations from the plan: fewer and more rounds, evaluations,
 * updates that are skipped, or run early, and errors at any visit.  Whatever a visit reads has the
 * bytes of plain arrays.  Copies run on threads of a host device, so a missing wait shows, too. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo.h"
#include "extras/memo_look.h"
#include "memo_test.h"
#include "random_turns.h"

enum { LAYERS_MAX = 8, STATES = 5, WORDS_MAX = 200, TURNS_MAX = 36 };

static memo_error error;
static struct {
    memob_states_desc desc;
    memo_state states[STATES];
    int32_t kinds[LAYERS_MAX], turns[TURNS_MAX];
    uint32_t streamed[LAYERS_MAX], spilled[LAYERS_MAX];
    memob_list_desc list;
    memob_states* engine;
    memob_step* step;
    memo_device* host;
    memo_faults faults; /* around it */

    /* Plain arrays: of each state one number in all words; 0: nobody may read it. */
    uint64_t values[LAYERS_MAX][STATES], next;
    int32_t n_rounds;        /* of this step so far */
    int is_owed[LAYERS_MAX]; /* deferred updates that wait */
    int64_t n_visits, n_reads, n_wrong;
} p;
static int64_t n_jumps_without_copies, n_jumps, n_errors, n_passed, n_planned;

/* ---- problems ---- */

static void random_problem(void) {
    static const uint32_t uses[] = {MEMO_STATE_WEIGHTS, MEMO_STATE_GRADIENT, MEMO_STATE_UPDATE,
                                    MEMO_STATE_FORWARD | MEMO_STATE_BACKWARD, MEMO_STATE_GRADIENT};
    const int has_file = memo_test_int(0, 2) == 0, on_host = !has_file && memo_test_int(0, 2) == 0;
    memset(&p, 0, sizeof p);
    p.list.n_layers = (int32_t)memo_test_int(on_host ? 2 : 1, LAYERS_MAX - 2);
    p.list.n_chunks = (int32_t)memo_test_int(1, p.list.n_layers);
    p.list.n_slices = memo_test_int(0, 1) ? 1 : (int32_t)memo_test_int(2, 3);
    p.list.n_rounds = (int32_t)memo_test_int(1, 7);
    p.list.update_at = (int32_t)memo_test_int(MEMO_UPDATE_PASS, MEMO_N_UPDATE_MOMENTS - 1);
    if (on_host && p.list.update_at == MEMO_UPDATE_DEFERRED) p.list.update_at = MEMO_UPDATE_PASS;
    p.list.updates_on_host = on_host;
    p.desc.n_layers = p.list.n_layers + 2;
    p.desc.n_states = STATES;
    p.desc.update_at = p.list.update_at;
    for (int32_t s = 0; s < STATES; s++) {
        p.states[s].name = "state";
        p.states[s].uses = uses[s];
        if (uses[s] & MEMO_STATE_UPDATE && memo_test_int(0, 1)) p.states[s].uses |= MEMO_STATE_MADE;
        p.states[s].size_bytes = 8 * memo_test_int(s > 2 ? 0 : 1, WORDS_MAX);
        p.states[s].kinds = memo_test_int(0, 2) ? 0 : 3;
    }
    for (int32_t l = 0; l < p.desc.n_layers; l++) {
        p.kinds[l] = (int32_t)memo_test_int(0, 2);
        p.streamed[l] = on_host || memo_test_int(0, 1) ? 31 : (uint32_t)memo_test_int(0, 31);
        p.spilled[l] = has_file ? (uint32_t)memo_test_int(0, 31) : 0;
    }
    for (int32_t s = 0; s < STATES && !on_host; s++) {
        const int streams = memo_test_int(0, 3) > 0;
        if (memo_test_int(0, 2)) continue;
        p.states[s].uses |= MEMO_STATE_SHARED;
        for (int32_t l = 0; l < p.desc.n_layers; l++)
            p.streamed[l] = (p.streamed[l] & ~(1u << s)) | (uint32_t)streams << s;
    }
    if (p.list.n_layers == 1) p.streamed[0] = 0; /* FIRST, the layer and LAST are in use at once */
    p.desc.states = p.states;
    p.desc.layer_kinds = p.kinds;
    p.desc.streamed = p.streamed;
    p.desc.spilled = p.spilled;
    p.desc.spill_directory = memo_test_folder();
    p.desc.computes_on_host = 1;
    p.list.turns = p.turns;
    if (memo_test_int(0, 1))
        p.list.n_turns = random_turns(p.list.n_layers, &p.list.n_chunks, p.turns);
    else
        p.list.turns = NULL, p.list.n_chunks = 1;
    p.desc.turns = p.list.turns;
    p.desc.n_turns = p.list.n_turns;
    p.desc.n_chunks = p.list.n_chunks;
}

static memo_status no_update(void* user, int32_t layer, memo_error* e) {
    (void)user, (void)layer, (void)e;
    return MEMO_STATUS_OK;
}

static void open_problem(void) {
    const memo_host_device_desc host_desc = MEMO_ZERO(memo_host_device_desc);
    CHECK(!memo_host_device_create(&host_desc, &p.host, &error));
    memo_faults_init(&p.faults, p.host);
    p.desc.device = &p.faults.device;
    if (p.list.updates_on_host) p.desc.trainer.update_host = no_update;
    CHECK(!memob_states_create(&p.desc, 0, &p.engine, &error));
    CHECK(!memob_states_get_step(p.engine, p.list.n_slices, p.list.n_rounds, &p.step, &error));
    for (int32_t l = 0; l < p.desc.n_layers; l++)
        for (int32_t s = 0; s < STATES; s++) p.values[l][s] = p.engine->ends[s] ? 0 : UINT64_MAX;
    p.next = 1;
}

static void close_problem(void) {
    memob_states_destroy(p.engine);
    memo_host_device_destroy(p.host);
}

/* ---- the trainer ---- */

static int has(int32_t layer, int32_t s) { return (int)(p.engine->layers[layer].has >> s & 1); }

/* 1: another layer updates it. */
static int is_lent(int32_t layer, int32_t s) {
    return (int)(p.engine->layers[layer].lent >> s & 1);
}

/* SHARED states are of their lowest layer. */
static uint64_t* value_of(int32_t layer, int32_t s) {
    return &p.values[memob_states_home(p.engine, layer, s)][s];
}

static uint64_t* bytes_of(int32_t layer, int32_t s, int on_host) {
    return (uint64_t*)(on_host ? memob_states_get_host_address(p.engine, layer, s)
                               : memob_states_get_address(p.engine, layer, s));
}

/* First values are zero bytes. */
static void check(int32_t layer, int32_t s, int on_host) {
    const uint64_t* words = bytes_of(layer, s, on_host);
    const uint64_t value = *value_of(layer, s);
    if (!has(layer, s) || !value || !words) return;
    p.n_reads++;
    for (int64_t i = 0; i < p.states[s].size_bytes / 8; i++)
        if (words[i] != (value == UINT64_MAX ? 0 : value)) {
            p.n_wrong++;
            return;
        }
}

static void put(int32_t layer, int32_t s, int on_host) {
    uint64_t* words = bytes_of(layer, s, on_host);
    if (!has(layer, s) || !words) return;
    *value_of(layer, s) = p.next++;
    for (int64_t i = 0; i < p.states[s].size_bytes / 8; i++) words[i] = *value_of(layer, s);
}

static void compute_layer(int32_t pass, int32_t layer, int begins) {
    for (int32_t s = 0; s < STATES; s++) {
        const uint32_t uses = p.states[s].uses;
        if (pass == MEMOB_FORWARD && uses & MEMO_STATE_FORWARD) check(layer, s, 0);
        if (pass != MEMOB_BACKWARD) continue;
        if (uses & MEMO_STATE_BACKWARD) check(layer, s, 0);
        if (layer == p.list.n_layers + 1 && uses & MEMO_STATE_FORWARD) check(layer, s, 0);
        if (!(uses & MEMO_STATE_GRADIENT)) continue;
        if (!begins || p.engine->layers[layer].begun >> s & 1) check(layer, s, 0);
        put(layer, s, 0);
    }
}

static void compute_update(int32_t layer, int on_host) {
    for (int32_t s = 0; s < STATES; s++) {
        const uint32_t uses = p.states[s].uses;
        if (uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT) && !(uses & MEMO_STATE_MADE) &&
            !is_lent(layer, s))
            check(layer, s, on_host);
    }
    for (int32_t s = 0; s < STATES; s++)
        if (is_lent(layer, s))
            continue;
        else if (p.states[s].uses & MEMO_STATE_UPDATE)
            put(layer, s, on_host);
        else if (p.states[s].uses & MEMO_STATE_GRADIENT)
            p.values[layer][s] = 0;
    p.is_owed[layer] = 0;
    p.engine->there.pending[layer] = 0;
}

/* The visit's layer, and those that are in use beside it. */
static void compute(const memob_visit* v) {
    memob_engine* e = &p.engine->sink.engine;
    if (v->pass == MEMOB_UPDATE) {
        if (v->on_host)
            CHECK(!memo_stream_synchronize(p.host, e->streams[MEMOB_STREAM_FILE], &error));
        compute_update(v->layer, v->on_host);
        return;
    }
    compute_layer(v->pass, v->layer, v->begins);
    if (v->layer == 1) compute_layer(v->pass, 0, v->begins);
    if (v->layer == p.list.n_layers && v->pass == MEMOB_BACKWARD)
        compute_layer(v->pass, v->layer + 1, 0);
}

/* Gradients of layers without an update that waits are lost. */
static void drop_gradients(void) {
    for (int32_t l = 0; l < p.desc.n_layers; l++)
        for (int32_t s = 0; s < STATES && !p.is_owed[l]; s++)
            if (p.engine->ends[s]) p.values[l][s] = 0;
    p.n_rounds = 0;
}

/* 1: the device has failed, as it was told to. */
static int has_failed(memo_status status) {
    if (status) CHECK(strstr(error.message, "fails on purpose") != NULL);
    return status != MEMO_STATUS_OK;
}

/* Gives up. */
static int fail(void) {
    memob_step_abandon(p.step);
    drop_gradients();
    p.faults.failing_call = 0;
    n_errors++;
    return 0;
}

/* All visits of a phase; left: visits before an error, inside of which it comes, or behind which.
 * runs: updates run if they are owed (1), all (2).  Returns 0: an error came. */
static int run_phase(int32_t phase, int runs, int32_t left) {
    const memob_visit* v;
    const int64_t before = p.engine->sink.engine.memory.copied_bytes[0];
    const int is_planned = p.step->phase == phase && !p.step->is_entered;
    if (has_failed(memob_step_go(p.step, phase, NULL, &error))) return fail();
    n_jumps += !is_planned, n_planned += is_planned;
    n_jumps_without_copies += !is_planned && p.engine->sink.engine.memory.copied_bytes[0] == before;
    while ((v = memoi_step_visit(p.step))) {
        const memob_visit visit = *v;
        if (left-- == 0 && (visit.pass != MEMOB_UPDATE || memo_test_int(0, 1))) {
            if (visit.pass != MEMOB_UPDATE && memo_test_int(0, 1))
                (void)has_failed(memob_step_begin(p.step, &error));
            return fail();
        }
        p.n_visits++;
        if (visit.pass == MEMOB_UPDATE && !(runs == 2 || (runs && p.is_owed[visit.layer]))) {
            n_passed++;
            if (has_failed(memoi_step_pass(p.step, &error))) return fail();
            continue;
        }
        if (has_failed(memob_step_begin(p.step, &error))) return fail();
        compute(&visit);
        if (has_failed(memob_step_end(p.step, &error))) return fail();
    }
    return 1;
}

static int is_any_owed(void) {
    for (int32_t l = 0; l < p.desc.n_layers; l++)
        if (p.is_owed[l]) return 1;
    return 0;
}

/* One of the next calls of the device fails, with `surprise` percent. */
static void maybe_fail(int surprise) {
    p.faults.n_calls = p.faults.failing_call = 0;
    if (memo_test_int(0, 99) < surprise) p.faults.failing_call = memo_test_int(1, 150);
}

/* Updates that are owed, until none fails. */
static void run_updates(int surprise) {
    do maybe_fail(surprise);
    while (!run_phase(MEMOB_UPDATES, 1, -1));
    p.faults.failing_call = 0;
}

/* A step with so many rounds, and what comes between.  surprise: in percent. */
static void run_step(int32_t n_rounds, int surprise) {
    const int32_t at = p.list.update_at;
    for (int32_t k = p.n_rounds; k < n_rounds; k = p.n_rounds) {
        const int32_t phase = memoi_list_phase_of(&p.list, k, k + 1 < n_rounds);
        const int32_t left = memo_test_int(0, 399) < surprise ? (int32_t)memo_test_int(0, 60) : -1;
        const int is_fused = at == MEMO_UPDATE_FUSED && k + 1 == n_rounds; /* an error loses all */
        if (memo_test_int(0, 99) < surprise) { /* evaluations see all updates */
            if (is_any_owed()) run_updates(surprise);
            maybe_fail(surprise);
            if (!run_phase(MEMOB_EVALUATION, 0, -1)) continue;
        }
        maybe_fail(is_fused ? 0 : surprise);
        if (!run_phase(phase, at == MEMO_UPDATE_FUSED ? 2 : 1, is_fused ? -1 : left)) continue;
        p.faults.failing_call = 0;
        p.n_rounds++;
    }
    p.n_rounds = 0;
    if (at == MEMO_UPDATE_FUSED) return;
    if (memo_test_int(0, 99) < surprise) { /* skipped */
        memob_step_abandon(p.step);
        drop_gradients();
        return;
    }
    memset(p.step->there.pending, 1, (size_t)p.desc.n_layers); /* with FIRST and LAST */
    for (int32_t l = 0; l < p.desc.n_layers; l++) p.is_owed[l] = 1;
    if (at == MEMO_UPDATE_PASS || memo_test_int(0, 99) < surprise)
        run_updates(surprise); /* flushed */
}

/* Bytes that copies move in a step. */
static int64_t run_counted(int32_t n_rounds) {
    const memob_memory* e = &p.engine->sink.engine.memory;
    const int64_t before = e->copied_bytes[0] + e->copied_bytes[1];
    run_step(n_rounds, 0);
    return e->copied_bytes[0] + e->copied_bytes[1] - before;
}

TEST(visits_find_what_they_read) {
    const int n = memo_test_cases(150, 4000);
    const uint64_t seed = memo_test.state;
    int64_t n_reads = 0, n_visits = 0;
    for (int k = 0; k < n; k++) {
        int64_t second, third;
        memo_test.state = seed + (uint64_t)k * 1000003;
        snprintf(memo_test.case_name, sizeof memo_test.case_name, "case %d", k);
        random_problem();
        open_problem();
        run_step(p.list.n_rounds, 0);
        second = run_counted(p.list.n_rounds), third = run_counted(p.list.n_rounds);
        CHECK(second == third); /* steps as planned repeat */
        for (int i = 0; i < 6; i++)
            run_step(memo_test_int(0, 1) ? p.list.n_rounds : (int32_t)memo_test_int(1, 8), 15);
        run_step(p.list.n_rounds, 0);
        run_step(p.list.n_rounds, 0);
        CHECK(run_counted(p.list.n_rounds) == third); /* and go on as planned */

        /* Everything comes home. */
        if (is_any_owed()) run_updates(0);
        for (int32_t i = 0; i < p.desc.n_layers * STATES; i++)
            CHECK(!memoi_step_bring_home(p.step, i, i % 2, &error));
        CHECK(!memob_states_synchronize(p.engine, &error));
        for (int32_t l = 0; l < p.desc.n_layers; l++)
            for (int32_t s = 0; s < STATES; s++)
                if (p.streamed[l] & ~p.spilled[l] & 1u << s) check(l, s, 1);
        CHECK(p.n_wrong == 0);
        n_reads += p.n_reads, n_visits += p.n_visits;
        close_problem();
    }
    printf("# %lld visits, %lld reads of states; %lld phases as planned, %lld jumps, of which %lld "
           "store nothing; %lld errors, %lld updates passed\n",
           (long long)n_visits, (long long)n_reads, (long long)n_planned, (long long)n_jumps,
           (long long)n_jumps_without_copies, (long long)n_errors, (long long)n_passed);
    CHECK(n_errors > n / 8 && n_passed > n && n_jumps > 4 * n);
}
