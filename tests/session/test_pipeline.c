/* test_pipeline.c - sessions with an order: several micro-batches in flight, in chunks of layers.
 * Random legal orders under random budgets, with and without a file, give the gradients of a plain
 * loop; device memory is that of the formula in memo_plan.h; recorded operations have no race. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "scarce.h"
#include "memo_plan.h"
#include "extras/memo_check.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "owned.h"
#include "session_times.h"
#include "pipeline.h"
#include "timed.h"

/* A stage alone, with any legal order, 1F1B or GPipe. */
static void random_stage(pipeline* p, stage* s) {
    p_random(p, 1, (int32_t)memo_test_int(1, P_CHUNKS_MAX));
    p_open_stage(s, p, 0);
    if (memo_test_int(0, 3))
        p_random_order(s);
    else
        p_interleaved(s, (int32_t)memo_test_int(p->n_chunks - 1, 2 * P_MICRO_BATCHES_MAX));
}

/* Of some stages that move rows the host holds a few layers, and a file the others.  Pages are
 * larger than the rows of a layer. */
static void random_file(stage* s) {
    own_step_plan* plan = step_plan_of(&s->desc, NULL);
    CHECK_CASE(plan && plan->fits, "%s", plan ? plan->shortage : error.message);
    if (!plan || plan->host_bytes <= 4096 || memo_test_int(0, 2) == 0) return;
    const int64_t most = (plan->host_bytes - 1) / 4096;
    s->desc.spill_directory = memo_test_folder();
    for (int64_t least = 1; least <= most; least++) { /* a page of each class at least */
        s->desc.host_bytes = 4096 * least;
        own_step_plan* small = step_plan_of(&s->desc, NULL);
        if (!small->fits) continue;
        s->desc.host_bytes = 4096 * memo_test_int(least, most);
        return;
    }
    s->desc.spill_directory = NULL, s->desc.host_bytes = 0;
}

/* --- device memory --- */

static int64_t up(int64_t n_bytes) { return (n_bytes + 511) / 512 * 512; }

/* The most that are in flight at once, of each class of chunks. */
static int32_t places_of(const stage* s) {
    const int32_t n = s->p->n_of_chunk;
    int32_t sum = 0;
    for (int32_t of = 0; of < s->p->n_chunks; of++) {
        int32_t now = 0, most = 0, is_first = 1;
        for (int32_t c = 0; c < of; c++)
            is_first &= memcmp(s->layer_kinds + c * n, s->layer_kinds + of * n,
                               (size_t)n * sizeof *s->layer_kinds) != 0;
        for (int32_t k = 0; k < s->desc.n_order && is_first; k++) {
            const memo_turn* turn = &s->order[k];
            if (memcmp(s->layer_kinds + turn->chunk * n, s->layer_kinds + of * n,
                       (size_t)n * sizeof *s->layer_kinds))
                continue;
            now += turn->pass == MEMO_PASS_FORWARD ? 1 : -1;
            if (now > most) most = now;
        }
        sum += most;
    }
    return sum;
}

static void check_bytes(const stage* s, const memo_step_plan* plan) {
    const int64_t rows = s->p->n_rows, x = up(8 * P_WORDS * rows);
    CHECK_IS(plan->swap.n_places, ==, places_of(s));
    CHECK_IS(plan->swap.n_layers, ==, plan->swap.n_places * s->p->n_of_chunk);
    CHECK_IS(plan->device_bytes, ==, plan->sizes.device_bytes + 2 * x);
}

TEST(any_order_gives_the_same_gradients) {
    const int64_t n = memo_test_cases(12, 500);
    int64_t n_moved = 0, n_deep = 0, n_recomputed = 0, n_spilled = 0;
    for (int64_t i = 0; i < n; i++) {
        static pipeline p;
        static stage s;
        random_stage(&p, &s);
        s.desc.policy = MEMO_POLICY_KEEP;
        own_step_plan* kept = step_plan_of(&s.desc, NULL);
        if (!kept) continue;
        check_bytes(&s, kept);
        s.desc.policy = (memo_policy)memo_test_int(0, MEMO_POLICY_ALPHA);
        s.desc.is_checked = memo_test_int(0, 3) == 0;
        if (s.desc.policy == MEMO_POLICY_MEMO)
            s.desc.device_bytes = memo_test_int(least_of_session(&s.desc), kept->device_bytes);
        random_file(&s);
        own_step_plan* plan = step_plan_of(&s.desc, NULL);
        if (!plan || !plan->fits) {
            CHECK_CASE(0, "case %lld: %s", (long long)i, plan ? plan->shortage : error.message);
            continue;
        }
        if (s.desc.device_bytes) CHECK_IS(plan->device_bytes, <=, s.desc.device_bytes);
        if (s.desc.host_bytes) CHECK_IS(plan->host_bytes, <=, s.desc.host_bytes);
        CHECK_IS(plan->disk_bytes, ==, plan->sizes.spill_bytes);
        CHECK_IS(plan->disk_bytes, >=, 4096 * plan->sizes.n_spilled_layers);
        check_bytes(&s, plan);
        own_session* session = session_of_plan(&s.desc, plan);
        for (int step = 0; step < 2 && session; step++) CHECK_OK(p_step(&s, session));
        CHECK_CASE(p_n_wrong(&s, 2) == 0, "case %lld: %lld gradients of %d layers differ",
                   (long long)i, (long long)p_n_wrong(&s, 2), (int)s.desc.n_layers);
        n_moved += plan->sizes.swapped_bytes > 0;
        n_deep += plan->swap.n_places > 2;
        n_recomputed += s.desc.policy == MEMO_POLICY_RECOMPUTE;
        n_spilled += plan->sizes.n_spilled_layers > 0;
    }
    CHECK_IS(n_moved, >, n / 8);
    CHECK_CASE(n_spilled > n / 8 || n < 100, "%lld have a file", (long long)n_spilled);
    CHECK_CASE(n_deep > 0 || n < 12, "none has a third place");
    CHECK_CASE(n_recomputed > 0 || n < 100, "none is recomputed");
}

/* --- operations on a recording device --- */

/* The end of what was written to the file. */
static int64_t file_bytes_of(const memo_schedule* schedule) {
    const uint64_t file = (uint64_t)1 << 63, offset = ((uint64_t)1 << 48) - 1;
    int64_t end = 0;
    for (int64_t k = 0; k < schedule->n_ops; k++) {
        const memo_op* op = &schedule->ops[k];
        for (int64_t r = op->n_reads; r < op->n_reads + op->n_writes; r++) {
            const memo_range* range = &schedule->ranges[op->first_range + r];
            if (op->kind == MEMO_OP_RUN && range->begin >= file &&
                (int64_t)(range->end & offset) > end)
                end = (int64_t)(range->end & offset);
        }
    }
    return end;
}

/* Half of the rows swapped, the others recomputed; copies are slow or random, so that a missing
 * wait gives other bits. */
TEST(orders_have_no_race) {
    const int64_t n = memo_test_cases(8, 600);
    int64_t n_copies = 0, n_spilled = 0, n_waits = 0, n_redundant = 0;
    for (int64_t i = 0; i < n; i++) {
        static pipeline p;
        static stage s;
        memo_host_device_desc desc = {0};
        random_stage(&p, &s);
        desc.to_host_bytes_per_s = desc.to_device_bytes_per_s = i % 3 ? 0 : 5e6;
        own_device* host = new_device(desc);
        own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
        s.device = s.desc.device = memo_recorder_get_device(recorder);
        s.desc.compute_stream = s.stream = new_stream(s.device, "compute");
        s.host = host;
        s.desc.policy = i % 2 ? MEMO_POLICY_SWAP : MEMO_POLICY_ALPHA;
        s.desc.alpha = 0.5;
        random_file(&s);
        own_step_plan* plan = step_plan_of(&s.desc, NULL);
        memo_session* session = session_of_plan(&s.desc, plan);
        for (int step = 0; step < 2 && session; step++) CHECK_OK(p_step(&s, session));
        CHECK_OK(memo_stream_synchronize(host, s.stream, &error));
        memo_recorder_pause(recorder);
        memo_schedule* schedule = recorded(recorder);
        own_check* check = check_of(schedule);
        CHECK_CASE(check->n_races == 0, "case %lld: %lld races", (long long)i,
                   (long long)check->n_races);
        CHECK_CASE(s.desc.host_bytes || check->n_redundant_waits == 0, "case %lld: %lld waits",
                   (long long)i, (long long)check->n_redundant_waits);
        n_waits += check->n_waits;
        n_redundant += check->n_redundant_waits;
        CHECK_IS(p_n_wrong(&s, 2), ==, 0);
        CHECK_IS(file_bytes_of(schedule), <=, plan->sizes.spill_bytes);
        n_copies += plan->sizes.swapped_bytes;
        n_spilled += plan->sizes.n_spilled_layers > 0;
        memo_session_destroy(session);
        memo_stream_destroy(host, s.stream, NULL);
    }
    /* Of two layers that share a place on the host some rows may have no byte in common. */
    printf("# %lld of %lld waits are redundant, %lld stages have a file\n", (long long)n_redundant,
           (long long)n_waits, (long long)n_spilled);
    CHECK_IS(20 * n_redundant, <=, n_waits);
    CHECK_IS(n_copies, >, 0);
    CHECK_CASE(n_spilled > n / 8 || n < 100, "%lld have a file", (long long)n_spilled);
}

/* --- predicted times --- */

TEST(predicted_orders_are_those_of_recorded_operations) {
    const int64_t n = memo_test_cases(6, 100);
    int64_t n_moved = 0, n_spilled = 0;
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        static pipeline p;
        static stage s;
        timed times;
        double step_s, update_s;
        random_stage(&p, &s);
        take_random_times(&times, &s.desc);
        int64_t least = least_of_session(&s.desc);
        own_step_plan* kept = step_plan_of(&s.desc, &times.times);
        if (i % 2)
            s.desc.policy = MEMO_POLICY_SWAP;
        else
            s.desc.device_bytes = memo_test_int(least, kept->device_bytes);
        random_file(&s);
        own_step_plan* plan = step_plan_of(&s.desc, &times.times);
        CHECK_CASE(plan->fits, "case %lld: %s", (long long)i, plan->shortage);
        simulate_steps(&times, plan, &step_s, &update_s);
        const double off = fabs(step_s / plan->times->step_s - 1);
        n_moved += plan->sizes.swapped_bytes > 0;
        n_spilled += plan->sizes.n_spilled_layers > 0;
        worst = off > worst ? off : worst;
        CHECK_CASE(off < 1e-12, "case %lld: predicted %g, simulated %g", (long long)i,
                   plan->times->step_s, step_s);
    }
    printf("# %lld of %lld move rows, %lld through a file, worst %g\n", (long long)n_moved,
           (long long)n, (long long)n_spilled, worst);
    CHECK_CASE((n_moved > n / 8 && n_spilled > 0) || n < 100, "%lld move rows", (long long)n_moved);
}

/* --- what is refused --- */

/* Two chunks of two layers, two micro-batches. */
static void small_stage(pipeline* p, stage* s, int32_t n_chunks) {
    memset(p, 0, sizeof *p);
    p->n_stages = 1;
    p->n_chunks = n_chunks;
    p->n_of_chunk = p->n_micro_batches = 2;
    p->n_rows = 12;
    for (int32_t i = 0; i < P_LAYERS_MAX; i++) p->weights[i] = (uint64_t)(3 + i);
    for (int32_t i = 0; i < P_ROWS_MAX * P_WORDS; i++)
        p->wires[0][0][0][i] = p->wires[0][1][0][i] = (uint64_t)(i + 1);
    p_expect(p);
    p_open_stage(s, p, 0);
    p_interleaved(s, 1);
    s->desc.policy = MEMO_POLICY_SWAP;
}

static void expect_refused(const memo_session_desc* desc, const char* text) {
    own_step_plan* plan = NULL;
    const memo_status status = memo_session_plan(desc, NULL, &plan, &error);
    CHECK_CASE(status == MEMO_STATUS_INVALID_ARGUMENT && strstr(error.message, text),
               "%s: %s, not: %s", memo_status_name(status), error.message, text);
}

#define F MEMO_PASS_FORWARD
#define B MEMO_PASS_BACKWARD
TEST(bad_orders_are_refused) {
    static const struct {
        const char* text;
        int32_t n;
        memo_turn order[6];
    } bad[] = {
        {"order[0]: the backward of micro-batch 0, chunk 0, comes before its forward",
         2,
         {{0, 0, B}, {0, 0, F}}},
        {"order[1]: the forward of micro-batch 0, chunk 0, repeats order[0]; give each",
         4,
         {{0, 0, F}, {0, 0, F}, {0, 0, B}, {0, 0, B}}},
        {"order[1]: the forward of micro-batch 1, chunk 0, never gets its backward; append {1, 0, "
         "MEMO_PASS_BACKWARD}",
         3,
         {{0, 0, F}, {1, 0, F}, {0, 0, B}}},
        {"order[0]: the forward of micro-batch 0, chunk 1, comes before the forward of chunk 0",
         4,
         {{0, 1, F}, {0, 0, F}, {0, 1, B}, {0, 0, B}}},
        {"order[2]: the backward of micro-batch 0, chunk 0, comes before the backward of chunk 1",
         4,
         {{0, 0, F}, {0, 1, F}, {0, 0, B}, {0, 1, B}}},
        {"order[2]: the backward of micro-batch 0, chunk 0, repeats order[1]",
         3,
         {{0, 0, F}, {0, 0, B}, {0, 0, B}}},
        {"order[0]: the backward of micro-batch 1, chunk 0, comes before its forward",
         3,
         {{1, 0, B}, {0, 0, F}, {0, 0, B}}},
        {"order[1]: micro-batch 0, chunk 0, pass 2 is out of range",
         2,
         {{0, 0, F}, {0, 0, MEMO_PASS_BETWEEN}}},
        {"order[0]: micro-batch 2, chunk 0, pass 1 is out of range; micro-batches below n_order",
         2,
         {{2, 0, F}, {2, 0, B}}},
        {"order: it names 3 chunks, but n_layers is 4",
         6,
         {{0, 0, F}, {0, 1, F}, {0, 2, F}, {0, 2, B}, {0, 1, B}, {0, 0, B}}}};
    static const memo_shape shapes[] = {{12, 0}, {12, 1}};
    static pipeline p;
    static stage s;
    small_stage(&p, &s, 2);
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        memo_session_desc desc = s.desc;
        desc.order = bad[k].order;
        desc.n_order = bad[k].n;
        desc.n_buffers = 0;
        expect_refused(&desc, bad[k].text);
    }

    memo_session_desc desc = s.desc;
    desc.order = NULL;
    expect_refused(&desc, "memo_session_desc.order: NULL; set the table");
    desc = s.desc, desc.n_order = MEMO_TURNS_MAX + 1;
    expect_refused(&desc, "memo_session_desc.n_order: out of range (4097)");
    desc = s.desc, desc.shapes = shapes, desc.n_shapes = 2;
    expect_refused(&desc, "memo_session_desc.order: does not work with chunks and shapes");
    WITH(s.buffers[P_X].last_layer, 2,
         expect_refused(&s.desc, "`x` has a life in two chunks of the order"));
    WITH(s.buffers[P_X].last, MEMO_PASS_BACKWARD,
         expect_refused(&s.desc, "`x` has a life in two turns of the order; declare a MEMO_KEEP "
                                 "tensor"));
    item_choose(&s.tensors[P_GATE], MEMO_MOVE, MEMO_SLICE, MEMO_LATE_ROWS);
    s.desc.routed_rows_layer = s.desc.routed_rows_all = 4;
    expect_refused(&s.desc, "memo_session_desc.order: does not work with MEMO_LATE_ROWS");
}
#undef F
#undef B

static void fail_turn(stage* s, memo_session* session, int32_t k, const char* text) {
    memo_batch batch = {.turn = s->order[k]};
    CHECK(memo_session_run(session, &batch, &error) != MEMO_STATUS_OK);
    CHECK_CASE(strstr(error.message, text) != NULL, "%s, not: %s", error.message, text);
}

static void leave_early(void* user, memo_session* session) {
    stage* s = (stage*)user;
    const memo_turn turn = memo_session_get_batch(session).turn;
    const int is_backward = turn.pass == MEMO_PASS_BACKWARD;
    if (s->mistake == 2) { /* the other pass */
        (void)memo_session_backward_begin(session, 1);
    } else if (s->mistake == 3) { /* another layer */
        (void)memo_session_forward_begin(session, 1);
    } else {
        for (int32_t i = 0; i < 2 - (s->mistake == 4); i++) {
            const int32_t layer = is_backward ? 1 - i : i;
            if (is_backward ? memo_session_backward_begin(session, layer)
                            : memo_session_forward_begin(session, layer))
                (is_backward ? p_backward : p_forward)(user, session, layer);
            (is_backward ? memo_session_backward_end : memo_session_forward_end)(session, layer);
            if (is_backward && i == 1 && s->mistake == 5) memo_session_fail(session, 1, "mine");
        }
    }
}

/* A turn that is not the next loses nothing; after an error the order begins again. */
TEST(turns_that_are_not_the_next_are_refused) {
    static const memo_shape shapes[] = {{12, 0}, {12, 1}};
    static pipeline p;
    static stage s;
    small_stage(&p, &s, 1);
    s.desc.shapes = shapes;
    s.desc.n_shapes = 2;
    own_session* session = new_session(&s.desc);
    memo_batch batch = {.turn = s.order[0]};
    CHECK_OK(memo_session_run(session, &batch, &error));
    fail_turn(&s, session, 0,
              "it is another turn; the next turn is order[1], the forward of "
              "micro-batch 1, chunk 0, in shape 0");
    CHECK(memo_session_run(session, NULL, &error) == MEMO_STATUS_INVALID_STATE);
    batch.turn = s.order[1], batch.n_rows = 7;
    CHECK_ERROR(memo_session_run(session, &batch, &error), INVALID_STATE,
                "n_rows must be those of the micro-batches in flight");
    batch.n_rows = 0, batch.shape = 1;
    CHECK(memo_session_run(session, &batch, &error) == MEMO_STATUS_INVALID_STATE);
    batch.shape = 0, batch.is_forward_only = 1;
    CHECK(memo_session_run(session, &batch, &error) == MEMO_STATUS_INVALID_STATE);
    batch.is_forward_only = 0;
    for (int32_t k = 1; k < s.desc.n_order; k++) {
        batch.turn = s.order[k];
        CHECK_OK(memo_session_run(session, &batch, &error));
    }
    CHECK_IS(p_n_wrong(&s, 1), ==, 0);

    /* A forward alone, between two orders. */
    batch = (memo_batch){.shape = 1};
    CHECK_OK(memo_session_run(session, &batch, &error));
    CHECK_OK(p_step(&s, session));
    CHECK_IS(p_n_wrong(&s, 2), ==, 0);

    /* An error between two turns, and a turn that is abandoned. */
    batch = (memo_batch){.turn = s.order[0]};
    CHECK_OK(memo_session_run(session, &batch, &error));
    memo_session_fail(session, MEMO_STATUS_IO, "mine");
    fail_turn(&s, session, 0, "mine");
    CHECK(memo_session_begin(session, &batch));
    CHECK(memo_session_begin(session, &batch));
    batch.turn = s.order[1];
    CHECK(!memo_session_begin(session, &batch));
    CHECK(memo_session_end(session, &error));
    CHECK_OK(p_step(&s, session));
    CHECK_IS(p_n_wrong(&s, 3), ==, 0);
}

/* A step with each of the mistakes fails, with its text. */
static void expect_mistakes(stage* s, memo_session* session, int first, int last,
                            const char* const* texts) {
    for (s->mistake = first; s->mistake <= last; s->mistake++) {
        memset(s->gradients, 0, sizeof s->gradients);
        CHECK(p_step(s, session) != MEMO_STATUS_OK);
        CHECK_TEXT(error.message, texts[s->mistake - first]);
    }
}

TEST(turns_compute_their_layers) {
    static const char* const texts[] = {
        "backward begin of layer 1 of 2: out of order; forward begin of layer 0 comes next",
        "forward begin of layer 1 of 2: out of order; forward begin of layer 0 comes next",
        "the forward of micro-batch 0, chunk 0, has computed 1 of its 2 layers", "mine"};
    static pipeline p;
    static stage s;
    small_stage(&p, &s, 1);
    s.desc.step = leave_early;
    s.desc.policy = MEMO_POLICY_KEEP;
    own_session* session = new_session(&s.desc);
    expect_mistakes(&s, session, 2, 5, texts);
}

/* --- timing, verifying, files --- */

/* Twice the rows, and a place for one layer on the host; a file has the others. */
static void small_file(stage* s) {
    s->desc.n_rows = s->p->n_rows = 24;
    p_expect(s->p);
    s->desc.spill_directory = memo_test_folder();
    s->desc.host_bytes = 4096;
}

/* A budget that is too small names one that does, or a file, which takes the rest. */
TEST(a_file_takes_what_the_host_lacks) {
    static pipeline p;
    static stage s;
    small_stage(&p, &s, 2);
    small_file(&s);
    own_step_plan* plan = step_plan_of(&s.desc, NULL);
    CHECK_CASE(plan->fits, "%s", plan->shortage);
    const int64_t file_bytes = plan->disk_bytes;
    CHECK(plan->host_bytes <= s.desc.host_bytes && file_bytes == plan->sizes.spill_bytes);
    s.desc.spill_directory = NULL;
    own_step_plan* without = step_plan_of(&s.desc, NULL);
    CHECK(!without->fits && strstr(without->shortage, "memo_session_desc.host_bytes: "));
    CHECK_TEXT(without->shortage, "or set spill_directory");
    s.desc.spill_directory = memo_test_folder();
    s.desc.disk_bytes = 4096;
    own_step_plan* less = step_plan_of(&s.desc, NULL);
    CHECK(!less->fits && strstr(less->shortage, "memo_session_desc.disk_bytes: "));
    const char* to = strstr(less->shortage, "raise disk_bytes to ");
    CHECK_CASE(to != NULL, "%s", less->shortage);
    s.desc.disk_bytes = to ? atoll(to + strlen("raise disk_bytes to ")) : 0;
    CHECK_IS(s.desc.disk_bytes, ==, file_bytes);
    own_step_plan* again = step_plan_of(&s.desc, NULL);
    CHECK_CASE(again->fits, "%s", again->shortage);
}

static void timed_order(int has_file) {
    static pipeline p;
    static stage s;
    static memo_profile profile;
    small_stage(&p, &s, 2);
    if (!has_file) s.desc.policy = MEMO_POLICY_MEMO;
    if (!has_file) s.desc.device_bytes = least_of_session(&s.desc) + 1024;
    if (has_file) small_file(&s);
    CHECK_OK(memo_session_verify(&s.desc, &s.check, &error));
    CHECK_OK(session_times(&s.desc, &profile, &error));
    CHECK(profile.forward_s[0] > 0 && profile.backward_s[0] > 0);
    CHECK_IS(p_n_wrong(&s, 8), ==, 0); /* 7 steps that are timed, 1 that plans */
    own_step_plan* plan = step_plan_of(&s.desc, &profile);
    expect_words(plan, "order     8 turns, 2 places of 2 layers\n");
    if (has_file) expect_words(plan, "layers through a file of ");

    /* A plan has its order, which must be the session's. */
    memo_session* session = session_of_plan(&s.desc, plan);
    CHECK_OK(p_step(&s, session));
    CHECK_IS(p_n_wrong(&s, 9), ==, 0);
    memo_session_destroy(session);
    p_interleaved(&s, 8);
    CHECK_ERROR(memo_session_open(&s.desc, plan, &session, &error), INVALID_ARGUMENT,
                "order[2]: it has 0 as micro_batch");
    s.desc.n_order = 0;
    CHECK_ERROR(memo_session_open(&s.desc, plan, &session, &error), INVALID_ARGUMENT,
                "it has 8 as n_order, the session has 0");
}
TEST(timed_orders_are_verified_and_written) {
    for (int has_file = 0; has_file < 2; has_file++) timed_order(has_file);
}

/* Bits of a backward that reads what another turn has left in its buffer are found. */
TEST(checked_orders_find_buffers_that_have_ended) {
    static pipeline p;
    static stage s;
    own_session* session = NULL;
    small_stage(&p, &s, 1);
    s.desc.is_checked = 1;
    s.mistake = 1; /* the forward takes a buffer of the backward */
    CHECK_OK(memo_session_create(&s.desc, &session, &error));
    fail_turn(&s, session, 0, "`dx` does not live in the forward of layer 0");
    s.mistake = 0;
    CHECK_OK(p_step(&s, session));

    /* After its backward a tensor is NaN, before the next forward takes the place. */
    for (int32_t i = 0; i < s.desc.n_order; i++) {
        memo_batch batch = {.turn = s.order[i]};
        double number = 0;
        CHECK_OK(memo_session_run(session, &batch, &error));
        if (s.order[i].pass != MEMO_PASS_BACKWARD) continue;
        memcpy(&number, s.seen, sizeof number);
        CHECK(isnan(number));
    }
}

/* --- a pipeline of several stages --- */

/* Whether a wire has been sent.  A receiver waits. */
typedef struct mailbox {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int32_t has[2][P_MICRO_BATCHES_MAX][P_LAYERS_MAX + 1];
} mailbox;

static void post(stage* s, int32_t is_backward, int32_t micro_batch, int32_t boundary) {
    mailbox* box = (mailbox*)s->link;
    pthread_mutex_lock(&box->mutex);
    box->has[is_backward][micro_batch][boundary] = 1;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->mutex);
}

static void await(stage* s, int32_t is_backward, int32_t micro_batch, int32_t boundary) {
    mailbox* box = (mailbox*)s->link;
    const int32_t n = s->p->n_stages * s->p->n_chunks;
    int32_t* has = &box->has[is_backward][micro_batch][boundary];
    if (boundary == (is_backward ? n : 0)) return; /* the batch, or the loss */
    pthread_mutex_lock(&box->mutex);
    while (!*has) pthread_cond_wait(&box->changed, &box->mutex);
    *has = 0;
    pthread_mutex_unlock(&box->mutex);
}

static stage stages[THREAD_RANKS_MAX];

enum { STEPS = 5 };
static int32_t n_stages_planned;
static void count_stage_plans(MEMO_UNUSED void* user, MEMO_UNUSED memo_session* s,
                              const memo_step_plan* plan) {
    CHECK(plan->times != NULL);
    __atomic_fetch_add(&n_stages_planned, 1, __ATOMIC_RELAXED);
}

/* Each stage has its own order and budget, and times its own steps. */
static memo_status run_stage(thread_rank* rank, memo_error* e) {
    stage* s = &stages[rank->comm->rank];
    memo_session* session = NULL;
    memo_status status = memo_session_create(&s->desc, &session, e);
    for (int step = 0; step < STEPS && !status; step++) {
        for (int32_t k = 0; k < s->desc.n_order && !status; k++) {
            memo_batch batch = {.turn = s->order[k]};
            status = memo_session_run(session, &batch, e);
        }
    }
    memo_session_destroy(session);
    return status;
}

TEST(stages_on_threads_give_the_gradients_of_one_rank) {
    static pipeline p;
    static mailbox box;
    const int64_t n = memo_test_cases(3, 30);
    int64_t n_moved = 0;
    pthread_mutex_init(&box.mutex, NULL);
    pthread_cond_init(&box.changed, NULL);
    for (int64_t i = 0; i < n; i++) {
        p_random(&p, (int32_t)memo_test_int(2, 4), (int32_t)memo_test_int(1, P_CHUNKS_MAX));
        memset(box.has, 0, sizeof box.has);
        for (int32_t r = 0; r < p.n_stages; r++) {
            stage* s = &stages[r];
            p_open_stage(s, &p, r);
            if (i % 3 == 2) p_interleaved(s, 1000); /* GPipe */
            s->send = post;
            s->receive = await;
            s->link = &box;
            s->desc.policy = i % 3 ? MEMO_POLICY_MEMO : MEMO_POLICY_KEEP;
            int64_t least = least_of_session(&s->desc);
            s->desc.policy = MEMO_POLICY_KEEP;
            own_step_plan* kept = step_plan_of(&s->desc, NULL);
            check_bytes(s, kept);
            if (i % 3 != 2 && p.n_chunks == 1) {
                const int32_t ahead = p_ahead(&p, r);
                CHECK_IS(kept->swap.n_places, ==,
                         1 + (ahead < p.n_micro_batches ? ahead : p.n_micro_batches - 1));
            }
            s->desc.policy = r == 1 ? MEMO_POLICY_MEMO : MEMO_POLICY_SWAP;
            s->desc.device_bytes = r == 1 ? (least + kept->device_bytes) / 2 : 0;
            if (i % 3 != 1 && r != 1) random_file(s);
            s->desc.timed_steps = 3; /* of policy SWAP, too */
            s->desc.planned = count_stage_plans;
            n_moved += s->desc.policy == MEMO_POLICY_SWAP;
        }
        n_stages_planned = 0;
        CHECK_OK(thread_ranks_run(p.n_stages, run_stage, NULL, &error));
        for (int32_t r = 0; r < p.n_stages; r++)
            CHECK_CASE(p_n_wrong(&stages[r], STEPS) == 0, "case %lld: stage %d of %d, %d chunks",
                       (long long)i, (int)r, (int)p.n_stages, (int)p.n_chunks);
        CHECK_IS(n_stages_planned, ==, p.n_stages);
    }
    CHECK_IS(n_moved, >, 0);
}

/* --- faults --- */

/* Each call of the device fails once, while the session opens or in any turn.  The same session
 * then runs the whole order. */
TEST(every_call_of_an_order_may_fail) {
    static pipeline p;
    static stage s;
    int64_t k = 1, n_failed = 0, n_of_file = 0;
    for (int kind = 0; kind < 4; kind++) {
        const int late = kind & 1, has_file = kind >> 1;
        for (k = 1;; k++) {
            own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
            memo_faults faults;
            memo_session* session = NULL;
            small_stage(&p, &s, 2);
            if (has_file) small_file(&s);
            memo_faults_init(&faults, host);
            faults.is_late = late;
            s.desc.device = &faults.device;
            s.desc.computes_on_host = 1;
            own_step_plan* plan = step_plan_of(&s.desc, NULL);
            CHECK_IS(plan->sizes.n_spilled_layers > 0, ==, has_file);
            faults.failing_call = k;
            faults.n_calls = 0;
            memo_status status = memo_session_open(&s.desc, plan, &session, &error);
            if (!status) status = p_step(&s, session);
            const int is_over = faults.n_calls < k;
            faults.failing_call = 0;
            n_failed += status != MEMO_STATUS_OK;
            n_of_file += status && !late && faults.failed && !strcmp(faults.failed, "launch_host");
            CHECK_CASE(is_over == !status || late, "call %lld: %s", (long long)k,
                       memo_status_name(status));
            if (session && status && !late) {
                memset(s.gradients, 0, sizeof s.gradients);
                CHECK_OK(p_step(&s, session));
                CHECK_CASE(p_n_wrong(&s, 1) == 0, "call %lld, %s", (long long)k, faults.failed);
            }
            memo_session_destroy(session);
            if (is_over) break;
        }
    }
    CHECK_IS(n_failed, >, 60);
    CHECK_IS(n_of_file, >, 4);
}

/* After a step the unnamed file can be read alone: a write of a later turn fails, and a call says
 * so; nothing hangs. */
TEST(a_failing_file_ends_an_order) {
    static pipeline p;
    static stage s;
    int n_files = 0;
    small_stage(&p, &s, 2);
    small_file(&s);
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    s.desc.device = host;
    s.desc.computes_on_host = 1;
    own_step_plan* plan = step_plan_of(&s.desc, NULL);
    own_session* session = session_of_plan(&s.desc, plan);
    CHECK_OK(p_step(&s, session));
    CHECK_IS(p_n_wrong(&s, 1), ==, 0);
    const int nothing = open("/dev/null", O_RDONLY);
    CHECK(nothing >= 0);
    for (int fd = 3; fd < 64; fd++) {
        struct stat file;
        if (fstat(fd, &file) || !S_ISREG(file.st_mode) || file.st_nlink) continue;
        n_files += dup2(nothing, fd) == fd;
    }
    close(nothing);
    CHECK_IS(n_files, ==, 1);
    CHECK_ERROR(p_step(&s, session), IO, "spill_directory");
    CHECK(p_step(&s, session) != MEMO_STATUS_OK);
}

TEST(every_lack_of_memory_of_an_order_is_a_status) {
    static pipeline p;
    static stage s;
    refusal r = {.can_do_without = 1};
    memo_status status = MEMO_STATUS_OK;
    small_stage(&p, &s, 2);
    while (next_refusal(&r, status)) {
        own_step_plan* plan = NULL;
        own_session* session = NULL;
        status = memo_session_plan(&s.desc, NULL, &plan, &error);
        if (!status) status = memo_session_open(&s.desc, plan, &session, &error);
        if (!status) status = p_step(&s, session);
    }
    CHECK_IS(r.n_failed, >, 20);
}
