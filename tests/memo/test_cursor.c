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
#include <math.h>

enum { LAYERS_MAX = 8, STATES = 5, WORDS_MAX = 200, TURNS_MAX = 36 };

static memo_error error;
static struct {
    memob_states_desc desc;
    memo_state states[STATES];
    int32_t kinds[LAYERS_MAX], turns[TURNS_MAX];
    uint32_t streamed[LAYERS_MAX], spilled[LAYERS_MAX];
    memob_list_desc list;
    memob_states* engine;
    memob_use* uses;
    char ends[LAYERS_MAX * STATES];
    memob_step step;
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
}

static memo_status no_update(void* user, int32_t layer, memo_error* e) {
    (void)user, (void)layer, (void)e;
    return MEMO_STATUS_OK;
}

/* The cursor of p.engine's states. */
static void open_step(void) {
    memob_step_desc d;
    memob_list list;
    int32_t n_items = p.desc.n_layers * STATES;
    CHECK(!memoi_list_make(&p.list, &list, &error));
    p.uses = (memob_use*)calloc((size_t)(2 * STATES * list.n_visits), sizeof *p.uses);
    memset(&d, 0, sizeof d);
    memoi_states_list_uses(p.engine, &list, p.uses, &d.n_uses);
    for (int32_t i = 0; i < n_items; i++)
        p.ends[i] = (char)(p.states[i % STATES].uses == MEMO_STATE_GRADIENT);
    d.list = &list;
    d.items = p.engine->items.items;
    d.bytes = p.engine->bytes;
    d.ends = p.ends;
    d.n_items = n_items;
    d.n_of_layer = STATES;
    memcpy(d.n_slots, p.engine->items.n_slots, sizeof d.n_slots);
    d.uses = p.uses;
    d.sink = &p.engine->sink;
    memob_law_free(&d.sink->law);
    CHECK(!memoi_step_make(&d, &p.step, &error));
}

static void open_problem(void) {
    const memo_host_device_desc host_desc = MEMO_ZERO(memo_host_device_desc);
    CHECK(!memo_host_device_create(&host_desc, &p.host, &error));
    memo_faults_init(&p.faults, p.host);
    p.desc.device = &p.faults.device;
    if (p.list.updates_on_host) p.desc.trainer.update_host = no_update;
    CHECK(!memob_states_create(&p.desc, 0, &p.engine, &error));
    open_step();
    for (int32_t l = 0; l < p.desc.n_layers; l++)
        for (int32_t s = 0; s < STATES; s++) p.values[l][s] = p.ends[s] ? 0 : UINT64_MAX;
    p.next = 1;
}

/* The law and the cells of the sink are the step's. */
static void close_problem(void) {
    memob_sink* sink = &p.engine->sink;
    memset(&sink->law, 0, sizeof sink->law);
    memoi_step_free(&p.step);
    memob_states_destroy(p.engine);
    memo_host_device_destroy(p.host);
    free(p.uses);
}

/* ---- the trainer ---- */

static int has(int32_t layer, int32_t s) { return (int)(p.engine->layers[layer].has >> s & 1); }

static uint64_t* bytes_of(int32_t layer, int32_t s, int on_host) {
    return (uint64_t*)(on_host ? memob_states_get_host_address(p.engine, layer, s)
                               : memob_states_get_address(p.engine, layer, s));
}

/* First values are zero bytes. */
static void check(int32_t layer, int32_t s, int on_host) {
    const uint64_t* words = bytes_of(layer, s, on_host);
    const uint64_t value = p.values[layer][s];
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
    p.values[layer][s] = p.next++;
    for (int64_t i = 0; i < p.states[s].size_bytes / 8; i++) words[i] = p.values[layer][s];
}

static void compute_layer(int32_t pass, int32_t layer, int begins) {
    for (int32_t s = 0; s < STATES; s++) {
        const uint32_t uses = p.states[s].uses;
        if (pass == MEMOB_FORWARD && uses & MEMO_STATE_FORWARD) check(layer, s, 0);
        if (pass != MEMOB_BACKWARD) continue;
        if (uses & MEMO_STATE_BACKWARD) check(layer, s, 0);
        if (layer == p.list.n_layers + 1 && uses & MEMO_STATE_FORWARD) check(layer, s, 0);
        if (!(uses & MEMO_STATE_GRADIENT)) continue;
        if (!begins) check(layer, s, 0);
        put(layer, s, 0);
    }
}

static void compute_update(int32_t layer, int on_host) {
    for (int32_t s = 0; s < STATES; s++) {
        const uint32_t uses = p.states[s].uses;
        if (uses & (MEMO_STATE_UPDATE | MEMO_STATE_GRADIENT) && !(uses & MEMO_STATE_MADE))
            check(layer, s, on_host);
    }
    for (int32_t s = 0; s < STATES; s++)
        if (p.states[s].uses & MEMO_STATE_UPDATE)
            put(layer, s, on_host);
        else if (p.states[s].uses & MEMO_STATE_GRADIENT)
            p.values[layer][s] = 0;
    p.is_owed[layer] = 0;
    p.step.pending[layer] = 0;
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
            if (p.ends[s]) p.values[l][s] = 0;
    p.n_rounds = 0;
}

/* 1: the device has failed, as it was told to. */
static int has_failed(memo_status status) {
    if (status) CHECK(strstr(error.message, "fails on purpose") != NULL);
    return status != MEMO_STATUS_OK;
}

/* Gives up. */
static int fail(void) {
    memoi_step_abandon(&p.step);
    drop_gradients();
    p.faults.failing_call = 0;
    n_errors++;
    return 0;
}

/* All visits of a phase; left: visits before an error, inside of which it comes, or behind which.
 * runs: updates run if they are owed (1), all (2).  Returns 0: an error came. */
static int run_phase(int32_t phase, int runs, int32_t left) {
    const memob_visit* v;
    const int64_t before = p.engine->sink.engine.copied_bytes[0];
    const int is_planned = p.step.phase == phase && !p.step.is_entered;
    if (has_failed(memoi_step_go(&p.step, phase, &error))) return fail();
    n_jumps += !is_planned, n_planned += is_planned;
    n_jumps_without_copies += !is_planned && p.engine->sink.engine.copied_bytes[0] == before;
    while ((v = memoi_step_visit(&p.step))) {
        const memob_visit visit = *v;
        if (left-- == 0 && (visit.pass != MEMOB_UPDATE || memo_test_int(0, 1))) {
            if (visit.pass != MEMOB_UPDATE && memo_test_int(0, 1))
                (void)has_failed(memoi_step_begin(&p.step, &error));
            return fail();
        }
        p.n_visits++;
        if (visit.pass == MEMOB_UPDATE && !(runs == 2 || (runs && p.is_owed[visit.layer]))) {
            n_passed++;
            if (has_failed(memoi_step_pass(&p.step, &error))) return fail();
            continue;
        }
        if (has_failed(memoi_step_begin(&p.step, &error))) return fail();
        compute(&visit);
        if (has_failed(memoi_step_end(&p.step, &error))) return fail();
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
        memoi_step_abandon(&p.step);
        drop_gradients();
        return;
    }
    memoi_step_defer(&p.step);
    for (int32_t l = 0; l < p.desc.n_layers; l++) p.is_owed[l] = 1;
    if (at == MEMO_UPDATE_PASS || memo_test_int(0, 99) < surprise)
        run_updates(surprise); /* flushed */
}

/* Bytes that copies move in a step. */
static int64_t run_counted(int32_t n_rounds) {
    const memob_engine* e = &p.engine->sink.engine;
    const int64_t before = e->copied_bytes[0] + e->copied_bytes[1];
    run_step(n_rounds, 0);
    return e->copied_bytes[0] + e->copied_bytes[1] - before;
}

/* ---- beside the engine of lists in pairs ---- */

static double pass_s[MEMOB_N_PASSES]; /* of a slice, on a clock */

static memo_status nothing(void* user, int32_t layer) {
    (void)user, (void)layer;
    return MEMO_STATUS_OK;
}

/* A turn, or a micro-batch, of the engine. */
static void walk_turn(memob_states* e, int32_t turn, int32_t pass, int32_t chunk) {
    const int32_t n = p.list.n_layers / p.list.n_chunks * p.list.n_slices;
    for (int32_t i = 0; i < n; i++) {
        const int32_t step = chunk * n + (pass == MEMOB_BACKWARD ? n - 1 - i : i);
        const int is_first = !i && (p.list.n_turns || pass == MEMOB_FORWARD);
        const int is_last = i == n - 1 && (p.list.n_turns || pass == MEMOB_BACKWARD);
        if (is_first) CHECK(!memob_states_begin_turn(e, turn, &error));
        CHECK(!memob_states_step(e, pass, step, 0, &error));
        if (e->sink.clock) memob_clock_add(e->sink.clock, MEMOB_STREAM_COMPUTE, pass_s[pass]);
        CHECK(!memob_states_step(e, pass, step, 1, &error));
        if (is_last) CHECK(!memob_states_end_turn(e, turn, &error));
    }
}

/* A step of the engine. */
static void walk_step(memob_states* e) {
    const int32_t n = p.list.n_rounds;
    for (int32_t k = 0; k < n; k++) {
        CHECK(!memob_states_set_batch(e, p.list.n_slices, k == n - 1, 0, &error));
        for (int32_t t = 0; t < p.list.n_turns; t++)
            walk_turn(e, p.turns[t], p.turns[t] < 0, memob_turn_of(p.turns[t]));
        for (int32_t pass = 0; pass < 2 && !p.list.n_turns; pass++) walk_turn(e, 0, pass, 0);
    }
    if (p.list.update_at == MEMO_UPDATE_DEFERRED) memob_states_defer(e);
    for (int32_t k = 0; k < 2 * p.desc.n_layers && memob_states_is_due(e); k++)
        CHECK(!memob_states_visit(e, MEMOB_UPDATE, k / 2, k % 2, &error));
}

/* The desc, with its turns, for the engine. */
static memob_states_desc desc_of_engine(void) {
    memob_states_desc desc = p.desc;
    desc.turns = p.list.turns;
    desc.n_turns = p.list.n_turns;
    desc.n_chunks = p.list.n_chunks;
    if (p.list.updates_on_host) desc.trainer.update_host = no_update;
    return desc;
}

/* Bytes that the engine copies in the third step. */
static int64_t bytes_of_engine(void) {
    memob_states_desc desc = desc_of_engine();
    memob_states* e;
    int64_t before = 0, n_bytes;
    desc.trainer.update = nothing;
    CHECK(!memob_states_create(&desc, 0, &e, &error));
    for (int step = 0; step < 3; step++) {
        before = e->sink.engine.copied_bytes[0] + e->sink.engine.copied_bytes[1];
        walk_step(e);
    }
    n_bytes = e->sink.engine.copied_bytes[0] + e->sink.engine.copied_bytes[1] - before;
    memob_states_destroy(e);
    return n_bytes;
}

TEST(visits_find_what_they_read) {
    const int n = memo_test_cases(150, 4000);
    const uint64_t seed = memo_test.state;
    int64_t n_reads = 0, n_visits = 0, n_fewer = 0;
    for (int k = 0; k < n; k++) {
        int64_t second, third, of_engine;
        memo_test.state = seed + (uint64_t)k * 1000003;
        snprintf(memo_test.case_name, sizeof memo_test.case_name, "case %d", k);
        random_problem();
        open_problem();
        run_step(p.list.n_rounds, 0);
        second = run_counted(p.list.n_rounds), third = run_counted(p.list.n_rounds);
        CHECK(second == third); /* steps as planned repeat */
        of_engine = bytes_of_engine();
        CHECK(third <= of_engine);
        n_fewer += third < of_engine;
        for (int i = 0; i < 6; i++)
            run_step(memo_test_int(0, 1) ? p.list.n_rounds : (int32_t)memo_test_int(1, 8), 15);
        run_step(p.list.n_rounds, 0);
        run_step(p.list.n_rounds, 0);
        CHECK(run_counted(p.list.n_rounds) == third); /* and go on as planned */

        /* At home everything is newest when nothing is taken. */
        if (is_any_owed()) run_updates(0);
        CHECK(!memoi_step_leave(&p.step, &error));
        CHECK(!memob_states_synchronize(p.engine, &error));
        for (int32_t l = 0; l < p.desc.n_layers; l++)
            for (int32_t s = 0; s < STATES; s++)
                if (p.streamed[l] & ~p.spilled[l] & 1u << s) check(l, s, 1);
        CHECK(p.n_wrong == 0);
        n_reads += p.n_reads, n_visits += p.n_visits;
        close_problem();
    }
    printf("# %lld visits, %lld reads of states; %lld phases as planned, %lld jumps, of which %lld "
           "store nothing; %lld errors, %lld updates passed; fewer bytes than pairs of lists in "
           "%lld\n",
           (long long)n_visits, (long long)n_reads, (long long)n_planned, (long long)n_jumps,
           (long long)n_jumps_without_copies, (long long)n_errors, (long long)n_passed,
           (long long)n_fewer);
    CHECK(n_errors > n / 8 && n_passed > n && n_jumps > 4 * n);
}

/* ---- on a clock ---- */

static memob_clock now;
static double bytes_per_s, file_bytes_per_s;

static memo_status timed_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                              const void* from, int64_t n_bytes, memo_error* e) {
    (void)context, (void)kind, (void)to, (void)from, (void)e;
    memob_clock_add(&now, (int32_t)(intptr_t)stream, (double)n_bytes / bytes_per_s);
    return MEMO_STATUS_OK;
}
static memo_status timed_fill(void* context, memo_stream stream, void* address, int32_t value,
                              int64_t n_bytes, memo_error* e) {
    (void)context, (void)stream, (void)address, (void)value, (void)n_bytes, (void)e;
    return MEMO_STATUS_OK;
}
static memo_status timed_file(void* context, memo_stream stream, memo_host_call* call,
                              memo_error* e) {
    const memob_spill_op* op = (const memob_spill_op*)call->argument;
    (void)context, (void)e;
    memob_clock_add(&now, (int32_t)(intptr_t)stream,
                    call->function == memob_states_run_update
                        ? pass_s[MEMOB_UPDATE]
                        : (double)op->n_bytes / file_bytes_per_s);
    return MEMO_STATUS_OK;
}
static memo_status timed_update(void* user, int32_t layer) {
    (void)user, (void)layer;
    memob_clock_add(&now, MEMOB_STREAM_COMPUTE, pass_s[MEMOB_UPDATE]);
    return MEMO_STATUS_OK;
}

static void open_on_clock(memob_states* e) {
    memob_states_desc desc = desc_of_engine();
    memset(e, 0, sizeof *e);
    memset(&now, 0, sizeof now);
    desc.device = NULL;
    desc.computes_on_host = 0;
    CHECK(!memob_states_init(e, &desc, &error));
    e->sink.clock = &now;
    CHECK(!memob_states_prepare(e, MEMOB_N_STREAMS, &error));
    e->trainer.update = timed_update;
    e->sink.engine.device.copy = timed_copy;
    e->sink.engine.device.fill = timed_fill;
    e->sink.engine.device.launch_host = timed_file;
    for (int32_t k = MEMOB_STREAM_TO_HOST; k < MEMOB_N_STREAMS; k++)
        e->sink.engine.streams[k] = (memo_stream)(intptr_t)k;
}

/* Seconds from the third step's end to the fourth's, by the engine and by the cursor. */
static double time_engine(void) {
    memob_states e;
    double begin_s = 0;
    open_on_clock(&e);
    for (int step = 0; step < 4; step++) {
        begin_s = now.time_s[0];
        walk_step(&e);
    }
    memob_states_free(&e);
    return now.time_s[0] - begin_s;
}

static void time_phase(int32_t phase, int first_on_host) {
    const memob_visit* v;
    CHECK(!memoi_step_go(&p.step, phase, &error));
    while ((v = memoi_step_visit(&p.step))) {
        const memob_visit visit = *v;
        const int is_layer = visit.layer > 0 && visit.layer <= p.list.n_layers;
        if (visit.on_host && first_on_host)
            memoi_sink_follow(p.step.desc.sink, MEMOB_STREAM_FILE, 0);
        if (visit.on_host) first_on_host = 0;
        CHECK(!memoi_step_begin(&p.step, &error));
        if (visit.pass == MEMOB_UPDATE)
            memob_clock_add(&now, visit.on_host ? MEMOB_STREAM_FILE : 0, pass_s[MEMOB_UPDATE]);
        else if (is_layer)
            memob_clock_add(&now, MEMOB_STREAM_COMPUTE, pass_s[visit.pass]);
        CHECK(!memoi_step_end(&p.step, &error));
    }
}

static double time_cursor(void) {
    memob_states e;
    double begin_s = 0;
    open_on_clock(&e);
    p.engine = &e;
    open_step();
    for (int step = 0; step < 4; step++) {
        begin_s = now.time_s[0];
        for (int32_t k = 0; k < p.list.n_rounds; k++)
            time_phase(memoi_list_phase_of(&p.list, k, k + 1 < p.list.n_rounds), 0);
        if (p.list.update_at == MEMO_UPDATE_PASS) time_phase(MEMOB_UPDATES, 1);
    }
    memset(&e.sink.law, 0, sizeof e.sink.law);
    memoi_step_free(&p.step);
    memob_states_free(&e);
    free(p.uses);
    return now.time_s[0] - begin_s;
}

TEST(steps_are_not_longer) {
    const int n = memo_test_cases(300, 10000);
    const uint64_t seed = memo_test.state;
    int n_longer = 0, n_shorter = 0;
    double sums_s[2] = {0, 0}, worst = 0;
    for (int k = 0; k < n; k++) {
        double engine_s, cursor_s;
        memo_test.state = seed + (uint64_t)k * 1000003;
        random_problem();
        for (int pass = 0; pass < MEMOB_N_PASSES; pass++)
            pass_s[pass] = (double)memo_test_int(1, 8) / 4;
        bytes_per_s = (double)memo_test_int(200, 6000);
        file_bytes_per_s = (double)memo_test_int(4000, 60000);
        engine_s = time_engine();
        cursor_s = time_cursor();
        n_longer += cursor_s > engine_s * (1 + 1e-9), n_shorter += cursor_s < engine_s * (1 - 1e-9);
        worst = fmax(worst, cursor_s / engine_s);
        sums_s[0] += engine_s, sums_s[1] += cursor_s;
    }
    printf("# %d steps, %d longer, %d shorter, worst %.3f, sum %+.2f %%\n", n, n_longer, n_shorter,
           worst, 100 * (sums_s[1] / sums_s[0] - 1));
    CHECK(sums_s[1] <= sums_s[0]);
}
