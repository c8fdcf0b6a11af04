/* test_pipeline_slices.c - sessions with an order whose layers are computed in slices, or whose loss
 * finds the last outputs in the MEMO_EDGE: the sums are those of micro-batches one after the other
 * in plain arrays, for every policy, order and number of chunks.  Predicted steps and bytes are
 * those of recorded operations. */
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "extras/memo_look.h"
#include "owned.h"
#include "session_times.h"
#include "trainer.h"
#include "pipeline.h"
#include "timed.h"

enum { ROWS_MAX = 40, WORDS = ROWS_MAX * T_WORDS };

/* A stage with all layers of a small model, which hands rows from chunk to chunk itself. */
typedef struct flight {
    trainer t; /* first */
    stage of;  /* its order */
    pipeline p;
    int32_t n_chunks;
    int64_t n_rows; /* of this step */
    /* Of the forward to a chunk, and of gradients from it. */
    uint64_t wires[2][P_MICRO_BATCHES_MAX][P_CHUNKS_MAX + 1][WORDS];
    double loss;
    int64_t n_losses;
} flight;

/* Copies rows, or adds their sum. */
typedef struct rows_job {
    uint64_t* to;
    const uint64_t* from;
    int64_t n;
    double* sum;
} rows_job;

static memo_status run_rows(void* arguments, MEMO_UNUSED memo_error* e) {
    const rows_job* j = (const rows_job*)arguments;
    for (int64_t i = 0; i < j->n; i++)
        if (j->sum)
            *j->sum += (double)(j->from[i] >> 48);
        else
            j->to[i] = j->from[i];
    return MEMO_STATUS_OK;
}

/* Runs the job, or writes down what it does to the session's rows, and enqueues it. */
static void launch_rows(flight* f, const rows_job* j, int is_written) {
    op_uses u = {.n = {0, 0}};
    const memo_session_desc* d = &f->t.desc;
    if (!f->t.host) {
        CHECK_OK(run_rows((void*)(uintptr_t)j, NULL));
        return;
    }
    add_use(&u, is_written, is_written ? j->to : j->from, 8 * j->n);
    CHECK_OK(announce(d->device, d->compute_stream, "rows", &u));
    CHECK_OK(memo_host_device_launch(f->t.host, d->compute_stream, run_rows, j, (int64_t)sizeof *j,
                                     &error));
}

static void copy_rows(flight* f, memo_session* s, int32_t layer, uint64_t* wire, int is_out) {
    uint64_t* x = (uint64_t*)memo_session_get_address(s, layer, T_X);
    const memo_slice slice = memo_session_get_slice(s);
    uint64_t* rows = wire + slice.begin * T_WORDS;
    const rows_job j = {is_out ? rows : x, is_out ? x : rows, (slice.end - slice.begin) * T_WORDS,
                        NULL};
    launch_rows(f, &j, !is_out);
}

static void f_forward(void* user, memo_session* s, int32_t layer) {
    flight* f = (flight*)user;
    const int32_t n = f->t.desc.n_layers / f->n_chunks;
    const memo_turn turn = memo_session_get_batch(s).turn;
    uint64_t(*wires)[WORDS] = f->wires[0][turn.micro_batch];
    if (layer % n == 0) copy_rows(f, s, layer, wires[turn.chunk], 0);
    t_forward(user, s, layer);
    if (layer % n == n - 1) copy_rows(f, s, layer, wires[turn.chunk + 1], 1);
}

static void f_backward(void* user, memo_session* s, int32_t layer) {
    flight* f = (flight*)user;
    const int32_t n = f->t.desc.n_layers / f->n_chunks;
    const memo_turn turn = memo_session_get_batch(s).turn;
    uint64_t(*wires)[WORDS] = f->wires[1][turn.micro_batch];
    if (layer % n == n - 1 && turn.chunk < f->n_chunks - 1)
        copy_rows(f, s, layer, wires[turn.chunk + 1], 0);
    else if (layer % n == n - 1 && !f->t.desc.loss) /* the gradient is the output */
        copy_rows(f, s, layer, f->wires[0][turn.micro_batch][f->n_chunks], 0);
    t_backward(user, s, layer);
    if (layer % n == 0) copy_rows(f, s, layer, wires[turn.chunk], 1);
}

/* Of the open slice of the last layer, whose output is in x. */
static void f_loss(void* user, memo_session* s) {
    flight* f = (flight*)user;
    const memo_slice slice = memo_session_get_slice(s);
    const rows_job j = {NULL,
                        (const uint64_t*)memo_session_get_address(s, f->t.desc.n_layers - 1, T_X),
                        (slice.end - slice.begin) * T_WORDS, &f->loss};
    CHECK_IS(memo_session_get_batch(s).turn.chunk, ==, f->n_chunks - 1);
    launch_rows(f, &j, 0);
    f->n_losses++;
}

/* Tensors of any layer but late rows, of which an order has none. */
static void f_random(flight* f) {
    static const int32_t n_chunks[] = {1, 1, 2, 3};
    const int32_t n = (int32_t)memo_test_int(1, 3);
    const int64_t n_rows = memo_test_int(2, ROWS_MAX);
    memset(f, 0, sizeof *f);
    f->n_chunks = n_chunks[memo_test_int(0, 3)];
    t_init(&f->t, n * f->n_chunks, n_rows, n_rows);
    f->t.desc.n_tensors = memo_test_int(0, 3) ? T_EXPERT : T_N_SHORT;
    f->t.desc.routed_rows_layer = f->t.desc.routed_rows_all = 0;
    if (f->t.desc.n_tensors == T_N_SHORT) f->t.desc.n_buffers = 0;
    f->t.desc.tile_rows = memo_test_int(1, 4);
    if (memo_test_int(0, 3)) /* lengths that divide nothing */
        f->t.desc.slice_rows = f->t.desc.tile_rows * memo_test_int(1, 1 + n_rows / 4);
    f->t.desc.forward = f_forward;
    f->t.desc.backward = f_backward;
    if (memo_test_int(0, 2)) f->t.desc.loss = f_loss; /* otherwise a stage that is not the last */

    f->p.n_stages = 1;
    f->p.n_chunks = f->n_chunks;
    f->p.n_micro_batches = (int32_t)memo_test_int(1, P_MICRO_BATCHES_MAX);
    f->of.p = &f->p;
    if (memo_test_int(0, 2))
        p_random_order(&f->of);
    else
        p_interleaved(&f->of, (int32_t)memo_test_int(f->n_chunks - 1, 2 * P_MICRO_BATCHES_MAX));
    f->t.desc.order = f->of.order;
    f->t.desc.n_order = f->of.desc.n_order;
}

static memo_status f_step(flight* f, memo_session* s) {
    memo_status status = MEMO_STATUS_OK;
    f->t.number = 0;
    for (int32_t k = 0; k < f->t.desc.n_order && !status; k++) {
        memo_batch batch = {.n_rows = f->n_rows, .turn = f->of.order[k]};
        status = memo_session_run(s, &batch, &error);
    }
    return status;
}

/* The sums of a step in plain arrays, without a session, an order, or slices. */
static void f_run_plain(flight* f) {
    static t_plain plain;
    memset(&f->t.plain_sums, 0, sizeof f->t.plain_sums);
    f->t.number = 0;
    t_run_plain_call(&f->t, &plain, f->p.n_micro_batches, f->n_rows, 0);
}

TEST(any_order_gives_the_sums_of_plain_arrays) {
    const int64_t n = memo_test_cases(10, 3000);
    int64_t n_moved = 0, n_sliced = 0, n_whole = 0, n_chunked = 0, n_checked = 0, n_tight = 0;
    for (int64_t i = 0; i < n; i++) {
        static flight f;
        f_random(&f);
        memo_session_desc* d = &f.t.desc;
        d->policy = (memo_policy)memo_test_int(0, MEMO_POLICY_ALPHA);
        d->alpha = memo_test_real();
        d->is_checked = memo_test_int(0, 3) == 0;
        if (d->policy == MEMO_POLICY_MEMO) {
            int64_t least = least_of_session(d);
            own_step_plan* kept = step_plan_of(d, NULL);
            d->device_bytes = memo_test_int(least, kept->device_bytes);
            n_tight++;
        }
        own_step_plan* plan = step_plan_of(d, NULL);
        if (!plan || !plan->fits) {
            CHECK_CASE(0, "case %lld: %s", (long long)i, plan ? plan->shortage : error.message);
            continue;
        }
        own_session* session = session_of_plan(d, plan);
        for (int step = 0; step < 3 && session; step++) {
            f.n_rows = step ? memo_test_int(1, d->n_rows) : d->n_rows;
            f.loss = 0, f.n_losses = 0;
            memset(&f.t.sums, 0, sizeof f.t.sums);
            CHECK_CASE(f_step(&f, session) == MEMO_STATUS_OK, "case %lld: %s", (long long)i,
                       error.message);
            f_run_plain(&f);
            CHECK_CASE(!memcmp(&f.t.sums, &f.t.plain_sums, sizeof f.t.sums),
                       "case %lld: %s, %d chunks of %d layers, slices of %lld of %lld rows",
                       (long long)i, memo_policy_name(d->policy), (int)f.n_chunks,
                       (int)(d->n_layers / f.n_chunks), (long long)d->slice_rows,
                       (long long)f.n_rows);
            if (!d->loss) continue;
            CHECK_IS(f.loss, ==, f.t.plain_sums.output);
            CHECK_IS(f.n_losses, ==,
                     f.p.n_micro_batches * ((f.n_rows - 1) / plan->swap.n_rows + 1));
        }
        n_moved += plan->sizes.swapped_bytes > 0;
        n_sliced += plan->swap.n_slices > 1 && plan->swap.n_places > 1;
        n_whole += plan->swap.n_slices == 1 && plan->swap.n_places > 1;
        n_chunked += f.n_chunks > 1;
        n_checked += d->is_checked;
    }
    CHECK(n_moved > 0 && n_sliced > 0 && n_chunked > 0);
    CHECK(n < 100 ||
          (n_sliced > n / 4 && n_whole > n / 20 && n_checked > n / 8 && n_tight > n / 8));
}

/* A session times itself, chooses the slices, plans again, is verified, and reads its plan from a
 * file; all of it gives the same sums. */
TEST(sessions_plan_orders_in_slices) {
    static flight f;
    static const memo_turn order[] = {{0, 0, MEMO_PASS_FORWARD},  {1, 0, MEMO_PASS_FORWARD},
                                      {0, 0, MEMO_PASS_BACKWARD}, {2, 0, MEMO_PASS_FORWARD},
                                      {1, 0, MEMO_PASS_BACKWARD}, {2, 0, MEMO_PASS_BACKWARD}};
    const memo_verify_output output = {"gw", f.t.sums.layers, sizeof f.t.sums.layers, MEMO_TYPE_F64,
                                       0};
    const memo_verify_desc check = {.outputs = &output, .n_outputs = 1};
    do f_random(&f);
    while (f.n_chunks > 1 || f.t.desc.n_rows < 20 || f.t.desc.n_tensors == T_N_SHORT);
    memo_session_desc* d = &f.t.desc;
    d->order = order, d->n_order = 6;
    memcpy(f.of.order, order, sizeof order);
    f.p.n_micro_batches = 3;
    d->tile_rows = 2, d->slice_rows = 6;
    own_step_plan* kept = step_plan_of(d, NULL);
    const int64_t least = least_of_session(d);
    d->device_bytes = (least + kept->device_bytes) / 2;
    CHECK_OK(memo_session_verify(d, &check, &error));

    /* The first steps are timed; the last ones run by the plan of their times. */
    d->timed_steps = 3;
    own_session* session = new_session(d);
    f.n_rows = d->n_rows;
    for (int step = 0; step < 6; step++) {
        memset(&f.t.sums, 0, sizeof f.t.sums);
        CHECK_OK(f_step(&f, session));
        f_run_plain(&f);
        CHECK_CASE(!memcmp(&f.t.sums, &f.t.plain_sums, sizeof f.t.sums), "step %d", step);
    }
    CHECK(memo_session_get_info(session).plan->times != NULL);

    /* The table of a plan. */
    own_step_plan* plan = step_plan_of(d, NULL);
    CHECK_IS(plan->swap.n_slices, ==, (d->n_rows - 1) / 6 + 1);
    d->policy = MEMO_POLICY_ROWS;
    d->rows = plan->swap.rows;
    own_session* by_rows = new_session(d);
    memset(&f.t.sums, 0, sizeof f.t.sums);
    CHECK_OK(f_step(&f, by_rows));
    CHECK(!memcmp(&f.t.sums, &f.t.plain_sums, sizeof f.t.sums));
}

/* The planner chooses the size of slices with an order, too. */
TEST(the_planner_chooses_slices_of_orders) {
    static pipeline p;
    static stage s;
    timed times;
    memset(&p, 0, sizeof p);
    p.n_stages = p.n_chunks = 1, p.n_of_chunk = 3, p.n_micro_batches = 4;
    p.n_rows = 2;
    p_open_stage(&s, &p, 0);
    p_interleaved(&s, 2);
    s.tensors[P_GATE].kinds = 0;
    item_choose(&s.tensors[P_GATE], MEMO_MOVE, MEMO_EDGE, 0);
    s.desc.tile_rows = 64;
    s.desc.n_rows = 8192;
    take_random_times(&times, &s.desc);
    s.desc.slice_rows = s.desc.n_rows;
    own_step_plan* whole = step_plan_of(&s.desc, NULL);
    s.desc.slice_rows = 0;
    s.desc.device_bytes = whole->device_bytes;
    own_step_plan* as_whole = step_plan_of(&s.desc, NULL);
    CHECK_IS(as_whole->swap.n_slices, ==, 1);
    s.desc.slice_rows = s.desc.n_rows;
    s.desc.device_bytes = least_of_session(&s.desc) * 3 / 4;
    s.desc.slice_rows = 0;
    own_step_plan* sliced = step_plan_of(&s.desc, NULL);
    CHECK_CASE(sliced->fits && sliced->swap.n_slices > 1, "%d slices: %s",
               (int)sliced->swap.n_slices, sliced->shortage);
}

/* A call of the device fails, while the session opens or in any turn: a status, nothing leaked, and
 * the next step is right. */
TEST(every_fault_is_a_status) {
    int64_t k, n_failed = 0;
    int is_done = 0;
    for (k = 1; !is_done && k < 10000; k += 1 + k / 40) {
        static flight f;
        memo_session* session = NULL;
        own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
        memo_faults faults;
        memo_test.state = 7; /* the same stage each time */
        do f_random(&f);
        while (f.p.n_micro_batches < 3 || f.t.desc.slice_rows == f.t.desc.n_rows);
        memo_faults_init(&faults, host);
        f.t.desc.device = &faults.device;
        f.t.desc.policy = MEMO_POLICY_SWAP;
        f.n_rows = f.t.desc.n_rows;
        f_run_plain(&f);
        own_step_plan* plan = step_plan_of(&f.t.desc, NULL);
        faults.n_calls = 0;
        faults.failing_call = k;
        memo_status status = memo_session_open(&f.t.desc, plan, &session, &error);
        if (!status) status = f_step(&f, session);
        is_done = !faults.failed;
        CHECK_CASE((status == MEMO_STATUS_OK) == is_done, "call %lld, %s", (long long)k,
                   faults.failed ? faults.failed : "none");
        if (status && session) {
            memset(&f.t.sums, 0, sizeof f.t.sums);
            CHECK_OK(f_step(&f, session));
        }
        if (session) CHECK(!memcmp(&f.t.sums, &f.t.plain_sums, sizeof f.t.sums));
        n_failed += status != MEMO_STATUS_OK;
        memo_session_destroy(session);
    }
    CHECK_CASE(is_done && n_failed > 30, "%lld failed, %lld calls", (long long)n_failed,
               (long long)k);
}

/* Copies on other streams have no race, whatever is moved. */
TEST(orders_in_slices_have_no_race) {
    const int64_t n = memo_test_cases(4, 600);
    int64_t n_copies = 0;
    for (int64_t i = 0; i < n; i++) {
        static flight f;
        memo_host_device_desc desc = {0};
        f_random(&f);
        memo_session_desc* d = &f.t.desc;
        desc.to_host_bytes_per_s = desc.to_device_bytes_per_s = i % 3 ? 0 : 2e7;
        own_device* host = new_device(desc);
        own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
        f.t.host = host;
        d->device = memo_recorder_get_device(recorder);
        d->computes_on_host = 0;
        d->compute_stream = new_stream(d->device, "compute");
        d->policy = i % 2 ? MEMO_POLICY_SWAP : MEMO_POLICY_ALPHA;
        d->alpha = 0.5;
        own_step_plan* plan = step_plan_of(d, NULL);
        memo_session* session = session_of_plan(d, plan);
        for (int step = 0; step < 2 && session; step++) {
            f.n_rows = step ? memo_test_int(1, d->n_rows) : d->n_rows;
            memset(&f.t.sums, 0, sizeof f.t.sums);
            CHECK_OK(f_step(&f, session));
            CHECK_OK(memo_stream_synchronize(host, d->compute_stream, &error));
            f_run_plain(&f);
            CHECK_CASE(!memcmp(&f.t.sums, &f.t.plain_sums, sizeof f.t.sums), "case %lld",
                       (long long)i);
        }
        memo_recorder_pause(recorder);
        memo_schedule* schedule = recorded(recorder);
        own_check* check = check_of(schedule);
        CHECK_CASE(check->n_races == 0, "case %lld: %lld races", (long long)i,
                   (long long)check->n_races);
        n_copies += plan->sizes.swapped_bytes;
        memo_session_destroy(session);
        memo_stream_destroy(host, d->compute_stream, NULL);
    }
    CHECK_IS(n_copies, >, 0);
}

/* A stage whose functions only take time, with an EDGE, in slices or with a loss. */
static void random_timed_stage(pipeline* p, stage* s, timed* times) {
    static const int32_t scopes[] = {MEMO_SLICE, MEMO_LAYER, MEMO_INPUT};
    p_random(p, 1, (int32_t)memo_test_int(1, P_CHUNKS_MAX));
    p_open_stage(s, p, 0);
    if (memo_test_int(0, 3)) p_random_order(s);
    s->tensors[P_GATE].kinds = 0;
    item_choose(&s->tensors[P_GATE], MEMO_MOVE, MEMO_EDGE, 0);
    s->tensors[P_INPUT].scope = scopes[memo_test_int(0, 2)];
    if (memo_test_int(0, 3))
        s->desc.slice_rows = s->desc.tile_rows * memo_test_int(1, 1 + p->n_rows / 4);
    take_random_times(times, &s->desc);
    if (memo_test_int(0, 1)) s->desc.loss = loss_takes, s->desc.between = NULL;
}

TEST(predicted_orders_in_slices_are_those_of_recorded_operations) {
    const int64_t n = memo_test_cases(3, 1000);
    int64_t n_moved = 0, n_sliced = 0;
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        static pipeline p;
        static stage s;
        timed times;
        double step_s, update_s;
        random_timed_stage(&p, &s, &times);
        int64_t least = least_of_session(&s.desc);
        own_step_plan* kept = step_plan_of(&s.desc, &times.times);
        s.desc.device_bytes = memo_test_int(least, kept->device_bytes);
        own_step_plan* plan = step_plan_of(&s.desc, &times.times);
        CHECK_CASE(plan->fits, "case %lld: %s", (long long)i, plan->shortage);
        if (!plan->fits) continue;
        simulate_steps(&times, plan, &step_s, &update_s);
        const double off = fabs(step_s / plan->times->step_s - 1);
        n_moved += plan->sizes.swapped_bytes > 0;
        n_sliced += plan->swap.n_slices > 1 && plan->swap.n_places > 1;
        worst = off > worst ? off : worst;
        CHECK_CASE(off < 0.005, "case %lld: predicted %g, simulated %g", (long long)i,
                   plan->times->step_s, step_s);
    }
    printf("# %lld of %lld move rows, %lld in slices, worst %g\n", (long long)n_moved, (long long)n,
           (long long)n_sliced, worst);
    CHECK_CASE(n < 100 || (n_moved > n / 8 && n_sliced > n / 8), "%lld move rows, %lld in slices",
               (long long)n_moved, (long long)n_sliced);
}

/* What the EDGE holds when a layer begins, in a checked session of two layers in three slices. */
static int n_new[2][2]; /* of forwards and backwards: rows that nobody has written, by layer */

static void see_edge(memo_session* s, int32_t layer, int is_backward) {
    double* x = (double*)memo_session_get_address(s, layer, 0);
    const memo_slice slice = memo_session_get_slice(s);
    for (int64_t i = 0; i < slice.end - slice.begin && x; i++) {
        n_new[is_backward][layer] += isnan(x[i]) != 0;
        x[i] = 1;
    }
}
static void see_forward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    double* kept = (double*)memo_session_get_address(s, layer, 1);
    see_edge(s, layer, 0);
    for (int64_t i = 0; i < 4; i++) kept[i] = 1;
}
static void see_backward(MEMO_UNUSED void* user, memo_session* s, int32_t layer) {
    see_edge(s, layer, 1);
}

static void see_loss(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s) {}

/* A trainer that reads what it must write, an input or a received gradient, reads NaN. */
TEST(checked_turns_begin_with_poison) {
    static const memo_turn order[] = {{0, 0, MEMO_PASS_FORWARD},
                                      {1, 0, MEMO_PASS_FORWARD},
                                      {0, 0, MEMO_PASS_BACKWARD},
                                      {1, 0, MEMO_PASS_BACKWARD}};
    const memo_item tensors[] = {MEMO_ITEM("x", 8, MEMO_MOVE, MEMO_EDGE),
                                 MEMO_ITEM("kept", 8, MEMO_MOVE)};
    for (int has_loss = 0; has_loss < 2; has_loss++) {
        memo_session_desc d = MEMO_ZERO(memo_session_desc);
        d.tensors = tensors, d.n_tensors = 2;
        d.n_layers = 2, d.n_rows = 12, d.slice_rows = 4;
        d.order = order, d.n_order = 4;
        d.forward = see_forward, d.backward = see_backward;
        if (has_loss) d.loss = see_loss;
        d.computes_on_host = d.is_checked = 1;
        own_session* s = new_session(&d);
        memset(n_new, 0, sizeof n_new);
        for (int k = 0; k < 4 && s; k++) {
            const memo_batch batch = {.turn = order[k]};
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        CHECK(n_new[0][0] == 24 && n_new[0][1] == 0);
        CHECK(n_new[1][0] == 0 && n_new[1][1] == (has_loss ? 0 : 24));
    }
}
