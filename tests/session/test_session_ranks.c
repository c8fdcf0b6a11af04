/* test_session_ranks.c - ranks choose alike, and a fault of one rank is an error on every rank. */
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "thread_ranks.h"
#include "session_model.h"

/* --- ranks ---------------------------------------------------------------------------------------
 *
 * Each rank is a thread with a device.  They agree by a communicator on other devices; a rank that
 * waits for another for 20 s has found a deadlock. */

enum { RANKS_MAX = 3 };

typedef struct rank_model {
    model m;
    memo_faults faults;
    const thread_rank* thread;
    int64_t n_agreed;
    int is_apart; /* another rank did not come, or with another number of values */
    memo_status status;
    memo_error error;
    const char* path;    /* of a plan that it reads instead; NULL: none */
    int64_t fails_later; /* the call that fails after the session is there; -1: none, 0: earlier */
    int64_t n_failed;    /* micro-batches */
    int64_t rows[8 * 4];
    int64_t device_bytes;
    memo_profile profile[2];
    double step_s;
} rank_model;

static rank_model ranks[RANKS_MAX];

static memo_status agree(void* user, int64_t* values, int64_t n, memo_error* e) {
    rank_model* r = (rank_model*)((char*)user - offsetof(rank_model, m));
    const thread_rank* t = r->thread;
    memo_status status = memo_all_reduce(t->comm, t->stream, values, values, n, MEMO_TYPE_I64,
                                         MEMO_REDUCTION_MAX, e);
    r->n_agreed++;
    /* Integers, never doubles seen as integers. */
    CHECK((char*)(values + n) <= (char*)r->profile ||
          (char*)values >= (char*)r->profile + sizeof r->profile);
    if (!status) status = memo_stream_synchronize(t->device, t->stream, e);
    r->is_apart |= status != MEMO_STATUS_OK;
    return status;
}

/* Creates a session, and runs one micro-batch. */
static memo_status rank_main(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    own_session* s = NULL;
    (void)e;
    r->thread = thread;
    memset(&r->error, 0, sizeof r->error);
    r->status = memo_session_create(&r->m.desc, &s, &r->error);
    if (r->status) return MEMO_STATUS_OK;
    if (!r->fails_later) {
        r->faults.failing_call = 0;
        settle(&r->m, s, 0);
    }
    if (r->fails_later > 0) r->faults.failing_call = r->faults.n_calls + r->fails_later;
    for (int i = 0; i < 6 && r->fails_later; i++) { /* whatever fails: all ranks end as often */
        r->n_failed += memo_session_run(s, NULL, NULL) != MEMO_STATUS_OK;
        (void)!memo_session_update(s, NULL);
    }
    const memo_session_info info = memo_session_get_info(s);
    memcpy(r->rows, info.plan->swap.rows,
           (size_t)(r->m.desc.n_layers * r->m.desc.n_tensors) * sizeof *r->rows);
    r->device_bytes = info.plan->device_bytes;
    r->step_s = info.plan->times ? info.plan->times->step_s : 0;
    r->faults.failing_call = 0;
    r->status = memo_session_run(s, NULL, &r->error);
    return MEMO_STATUS_OK;
}

/* Opens a plan, which rank 1 lacks. */
static memo_status open_planned(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    own_step_plan* plan = NULL;
    own_session* s = NULL;
    r->thread = thread;
    if (memo_session_plan(&r->m.desc, NULL, &plan, e)) return e->status;
    r->status = memo_session_open(&r->m.desc, r == ranks ? plan : NULL, &s, &r->error);
    return MEMO_STATUS_OK;
}

/* Times steps, and plans with layers that are slower on later ranks. */
static memo_status time_and_plan(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    memo_profile slower[2];
    own_step_plan* plan = NULL;
    r->thread = thread;
    if (session_times(&r->m.desc, r->profile, e)) return e->status;
    memcpy(slower, r->profile, sizeof slower);
    slower[0].forward_s[0] *= 1 + thread->comm->rank;
    if (memo_session_plan(&r->m.desc, slower, &plan, e)) return e->status;
    r->step_s = plan->times ? plan->times->step_s : 0;
    return MEMO_STATUS_OK;
}

/* The device fails on demand. */
static void open_rank_device(rank_model* r, int64_t device_bytes) {
    open_device(&r->m, device_bytes, 0);
    memo_faults_init(&r->faults, r->m.host);
    r->m.desc.device = &r->faults.device;
}

static void open_rank(int32_t rank) {
    rank_model* r = &ranks[rank];
    tight_model(&r->m);
    r->m.desc.shapes = two_shapes;
    r->m.desc.n_shapes = 2;
    r->n_agreed = r->is_apart = 0;
    r->fails_later = r->n_failed = 0;
    r->path = NULL;
    r->m.desc.agree = agree;
    r->m.desc.alpha = -1 - rank;            /* planned on both: the same */
    r->m.desc.computes_on_host = rank == 1; /* it measures otherwise */
    open_rank_device(r, 512 << 10);
}

/* Runs the ranks; 1 if all agreed equally often, on as many values. */
static int run_ranks_of(int32_t n, memo_status (*function)(thread_rank* rank, memo_error* e)) {
    memo_host_device_desc device_desc = {0};
    int32_t is_even = 1;
    memo_comm_threads_desc comm_desc = {.timeout_s = 300};
    CHECK_OK(thread_ranks_run_on(&device_desc, &comm_desc, n, function, NULL, &error));
    for (int32_t i = 0; i < n; i++)
        is_even &= ranks[i].n_agreed == ranks[0].n_agreed && !ranks[i].is_apart;
    CHECK(is_even);
    return is_even;
}
static int run_ranks(int32_t n) { return run_ranks_of(n, rank_main); }

/* Ranks with unequal budgets and times choose the same rows, within the least
 * budget. */
TEST(ranks_choose_alike) {
    int32_t n;
    for (int32_t round = memo_test_all() ? 0 : 3; round < 6; round++) {
        n = 2 + round % 2;
        for (int32_t i = 0; i < n; i++) {
            open_rank(i);
            ranks[i].m.desc.device_bytes = (int64_t)(128 + 40 * ((i + round) % n)) << 10;
            ranks[i].m.buffers[OF_LAYERS].size_bytes = 2600;
            if (round == 4) ranks[i].m.desc.device_bytes = i ? (int64_t)1 << 40 : 128 << 10;
            if (round == 5) ranks[i].m.desc.device_bytes = 0; /* free memory, which differs */
            if (round == 5 && i == 1) { /* everything would fit on the others */
                close_device(&ranks[i].m);
                open_rank_device(&ranks[i], 128 << 10);
            }
        }
        run_ranks(n);
        for (int32_t i = 0; i < n; i++) {
            CHECK_CASE(!ranks[i].status, "round %d, rank %d: %s", (int)round, (int)i,
                       ranks[i].error.message);
            CHECK(!memcmp(ranks[i].rows, ranks[0].rows, sizeof ranks[0].rows));
            CHECK_IS(ranks[i].device_bytes, <=, (int64_t)128 << 10);
            finish(&ranks[i].m, NULL);
        }
    }
}

static void open_short_rank(int32_t rank) {
    open_rank(rank);
    shorten(&ranks[rank].m);
}

/* Measured times are the same on all ranks.  Of unequal times the longest count, on all ranks. */
TEST(ranks_have_the_longest_times) {
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks_of(2, time_and_plan);
    CHECK(!memcmp(ranks[1].profile, ranks[0].profile, sizeof ranks[0].profile[0]));
    CHECK(ranks[0].step_s > 0 && ranks[1].step_s == ranks[0].step_s);
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* One rank's device fails in one call: every rank gets an error, and none waits. */
TEST(a_fault_on_one_rank_fails_all) {
    int64_t k, step, n_calls[2], n_faults = 0;
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks(2);
    for (int32_t i = 0; i < 2; i++) {
        CHECK_IS(ranks[i].status, ==, MEMO_STATUS_OK);
        n_calls[i] = ranks[i].faults.n_calls;
        close_device(&ranks[i].m);
    }
    for (int32_t victim = 0; victim < 2; victim++) {
        step = n_calls[victim] / (memo_test_all() ? 80 : 8) + 1;
        for (k = 1; k < n_calls[victim]; k += k < 30 ? 1 : memo_test_int(1, 2 * step)) {
            for (int32_t i = 0; i < 2; i++) open_short_rank(i);
            ranks[victim].faults.failing_call = k;
            if (!run_ranks(2)) return;
            if (ranks[victim].faults.failed && ranks[victim].status) {
                n_faults++;
                CHECK_CASE(!ranks[!victim].status ||
                               strstr(ranks[!victim].error.message, "another rank failed"),
                           "call %lld (%s): %s", (long long)k, ranks[victim].faults.failed,
                           ranks[!victim].error.message);
            }
            CHECK_CASE(!ranks[0].status == !ranks[1].status, "call %lld: %s and %s", (long long)k,
                       memo_status_name(ranks[0].status), memo_status_name(ranks[1].status));
            for (int32_t i = 0; i < 2; i++) memo_host_device_destroy(ranks[i].m.host);
        }
    }
    CHECK_IS(n_faults, >, 60);
}

static int64_t failing_request; /* once both ranks have begun to plan; -1: none */

static memo_status plan_states(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    own_step_plan* plan = NULL;
    int64_t value = 0;
    r->thread = thread;
    r->n_agreed = 0;
    CHECK_OK(agree(&r->m, &value, 1, e)); /* both are there */
    if (r == ranks) mallocs_left = failing_request;
    r->status = memo_session_plan(&r->m.desc, r->profile, &plan, &r->error);
    return MEMO_STATUS_OK;
}

static void update_nothing(void* user, memo_session* s, int32_t layer) {
    (void)user, (void)s, (void)layer;
}

/* One rank lacks memory in one request while the ranks look for the states that they stream: every
 * rank gets an error, and none waits. */
TEST(a_lack_of_memory_on_one_rank_fails_all) {
    static const memo_state states[] = {{"weights", 2048, MEMO_STATE_WEIGHTS, 0},
                                        {"moments", 8192, MEMO_STATE_UPDATE, 0}};
    const int64_t n_cases = memo_test_all() ? 60 : 8;
    int64_t n, n_failed = 0;
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks_of(2, time_and_plan);
    for (int32_t i = 0; i < 2; i++) {
        ranks[i].m.desc.states = states;
        ranks[i].m.desc.n_states = 2;
        ranks[i].m.desc.update = update_nothing;
    }
    n = mallocs_done;
    failing_request = -1;
    run_ranks_of(2, plan_states);
    CHECK_CASE(!ranks[0].status && !ranks[1].status, "%s", ranks[0].error.message);
    n = mallocs_done - n;
    for (int64_t k = 0; k < n; k += memo_test_int(n / n_cases / 2, 3 * n / n_cases / 2)) {
        failing_request = k;
        const int is_even = run_ranks_of(2, plan_states);
        mallocs_left = -1;
        if (!is_even) return;
        n_failed += ranks[0].status != MEMO_STATUS_OK;
        CHECK_CASE(!ranks[0].status == !ranks[1].status, "request %lld of %lld: %s and %s",
                   (long long)k, (long long)n, ranks[0].error.message, ranks[1].error.message);
    }
    CHECK_IS(n_failed, >, 3); /* about two of three do */
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* Ranks plan again at the same step, by the same times, or not at all, if a call of one of them
 * fails in any step; then all go on. */
TEST(a_fault_keeps_ranks_together_while_they_plan_again) {
    int64_t n_calls, n_faults = 0, n_planned = 0, n_stayed = 0;
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    ranks[0].fails_later = ranks[1].fails_later = -1;
    run_ranks(2);
    n_calls = ranks[0].faults.n_calls;
    CHECK(ranks[0].step_s > 0 && fabs(ranks[0].step_s / ranks[1].step_s - 1) < 1e-9);
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
    for (int64_t k = 1; k < n_calls; k += memo_test_all() ? 3 : memo_test_int(24, 60)) {
        for (int32_t i = 0; i < 2; i++) open_short_rank(i);
        ranks[0].fails_later = k;
        ranks[1].fails_later = -1;
        if (!run_ranks(2)) return;
        n_faults += ranks[0].faults.failed != NULL;
        for (int32_t i = 0; i < 2; i++)
            CHECK_CASE(!ranks[i].status && ranks[i].n_failed <= 1, "call %lld (%s): rank %d: %s",
                       (long long)k, ranks[0].faults.failed ? ranks[0].faults.failed : "none",
                       (int)i, ranks[i].error.message);
        CHECK_CASE(!memcmp(ranks[0].rows, ranks[1].rows, sizeof ranks[0].rows), "call %lld (%s)",
                   (long long)k, ranks[0].faults.failed);
        CHECK((ranks[0].step_s > 0) == (ranks[1].step_s > 0));
        n_planned += ranks[0].step_s > 0;
        n_stayed += ranks[0].step_s <= 0;
        for (int32_t i = 0; i < 2; i++) memo_host_device_destroy(ranks[i].m.host);
    }
    printf("# %lld faults: %lld times planned again, %lld times not\n", (long long)n_faults,
           (long long)n_planned, (long long)n_stayed);
    CHECK_CASE(n_faults > 5 && n_planned > 3, "%lld, %lld", (long long)n_faults,
               (long long)n_planned);
}

/* --- steps of ranks that are not alike --- */

static uint64_t unlike_seed;
static int unlike_skips;      /* the step that rank 1 alone skips, from 1 on; 0: none */
static int unlike_fails;      /* the step behind which rank 0 has an error; 0: none */
static int unlike_has_states; /* without a micro-batch there is no update then */

/* The trainer's own collective: the sum of gradients, behind the last micro-batch of a step. */
static void reduce_gradients(rank_model* r, int64_t step) {
    int64_t values[2] = {-step, step};
    memo_error e;
    CHECK_CASE(!agree(&r->m, values, 2, &e), "%s", e.message);
    CHECK(values[0] == -step && values[1] == step);
    r->n_agreed--;
}

/* Micro-batches as a budget of tokens gives them, in some steps none without states, and
 * validations in between. */
static memo_status run_unlike(thread_rank* thread, memo_error* e) {
    rank_model* r = &ranks[thread->comm->rank];
    own_session* s = NULL;
    uint64_t random = unlike_seed ^ (uint64_t)(thread->comm->rank + 1) * 0x9e3779b97f4a7c15u;
    r->thread = thread;
    r->n_failed = 0;
    memset(&r->error, 0, sizeof r->error);
    r->status = memo_session_create(&r->m.desc, &s, e);
    for (int64_t step = 1; step <= 9 && !r->status; step++) {
        const memo_batch look = {.is_forward_only = 1};
        int32_t n;
        random = random * 6364136223846793005u + 1442695040888963407u;
        n = (int32_t)(random >> 33) % 3 + (unlike_has_states || random >> 63);
        for (int32_t k = 0; k < n && !r->status; k++) {
            const memo_batch batch = {.more_follow = k + 1 < n};
            r->status = memo_session_run(s, &batch, &r->error);
        }
        if (!r->status) reduce_gradients(r, step);
        if (r == &ranks[0] && step == unlike_fails) {
            memo_session_fail(s, MEMO_STATUS_IO, "a file of rank 0");
            CHECK_IS(memo_session_update(s, &r->error), ==, MEMO_STATUS_IO);
            CHECK_TEXT(r->error.message, "a file of rank 0");
        } else if (!r->status)
            r->status = r == &ranks[1] && step == unlike_skips
                            ? memo_session_skip_update(s, &r->error)
                            : memo_session_update(s, &r->error);
        if (!r->status && random >> 62 == 0) r->status = memo_session_run(s, &look, &r->error);
        r->n_failed += r->status != MEMO_STATUS_OK;
    }
    if (s) r->step_s = memo_session_get_info(s).plan->times ? 1 : 0;
    return MEMO_STATUS_OK;
}

/* Ranks meet where a step ends, with states or without, so that their steps may have unlike numbers
 * of micro-batches, and a rank may validate alone: all plan at the same step, also if a step of one
 * ended with an error. */
TEST(steps_of_ranks_may_be_unlike) {
    static const memo_state states[] = {{"gradients", 512, MEMO_STATE_GRADIENT, 0},
                                        {"moments", 2048, MEMO_STATE_UPDATE, 0}};
    const int n = memo_test_cases(6, 1000);
    int n_planned = 0;
    for (int i = 0; i < n; i++) {
        unlike_seed = (uint64_t)memo_test_int(1, INT64_MAX - 1);
        unlike_skips = 0;
        unlike_has_states = i % 2;
        unlike_fails = i % 3 < 2 ? 2 : 0; /* all else goes on */
        for (int32_t k = 0; k < 2; k++) {
            open_short_rank(k);
            ranks[k].m.desc.n_shapes = 0;
            ranks[k].m.desc.micro_batches = 3;
            ranks[k].m.desc.states = states;
            ranks[k].m.desc.n_states = i % 2 ? 2 : 0;
            ranks[k].m.desc.update = update_nothing;
            ranks[k].m.desc.update_may = i % 4 == 1 ? MEMO_MAY_DEFER : 0;
            ranks[k].m.desc.is_checked = i % 3 == 2;
        }
        if (!run_ranks_of(2, run_unlike)) return;
        for (int32_t k = 0; k < 2; k++)
            CHECK_CASE(!ranks[k].status, "case %d: %s", i, ranks[k].error.message);
        CHECK(ranks[0].step_s == ranks[1].step_s);
        n_planned += ranks[0].step_s > 0;
        for (int32_t k = 0; k < 2; k++) close_device(&ranks[k].m);
    }
    CHECK_CASE(n_planned > n / 2, "%d of %d plan again", n_planned, n);
}

/* A rank that skips an update alone is named on all ranks: in a checked session at once, in another
 * one before the ranks plan. */
TEST(a_rank_that_skips_alone_is_told) {
    for (int i = 0; i < 4; i++) {
        unlike_seed = 1;
        unlike_skips = 2;
        unlike_fails = 0;
        for (int32_t k = 0; k < 2; k++) {
            open_short_rank(k);
            ranks[k].m.desc.n_shapes = 0;
            ranks[k].m.desc.is_checked = i % 2;
        }
        if (!run_ranks_of(2, run_unlike)) return;
        for (int32_t k = 0; k < 2; k++) {
            char words[96];
            snprintf(words, sizeof words, "of %d steps this rank has skipped %d, ranks 0 to 1",
                     i % 2 ? 2 : 4, (int)k);
            CHECK_IS(ranks[k].status, ==, MEMO_STATUS_INVALID_STATE);
            CHECK_TEXT(ranks[k].error.message, words);
            close_device(&ranks[k].m);
        }
    }
}

TEST(a_rank_without_a_plan_fails_all) {
    for (int32_t i = 0; i < 2; i++) open_short_rank(i);
    run_ranks_of(2, open_planned);
    CHECK_TEXT(ranks[0].error.message, "another rank failed");
    CHECK_TEXT(ranks[1].error.message, "plan: NULL");
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* Layers of all ranks wait for each other, and need all ranks. */
static void meeting_forward(void* user, memo_session* s, int32_t layer) {
    rank_model* r = (rank_model*)((char*)user - offsetof(rank_model, m));
    int64_t value = 0;
    memo_error e;
    forward(user, s, layer);
    (void)agree(user, &value, 1, &e);
    r->n_agreed--; /* it is the trainer's */
}

/* A checked session takes memory to measure.  The ranks that have it do not begin without those
 * that lack it. */
TEST(a_rank_without_memory_for_checks_fails_all) {
    for (int32_t i = 0; i < 2; i++) {
        open_short_rank(i);
        ranks[i].m.desc.is_checked = 1;
        by_layers(&ranks[i].m, meeting_forward, backward);
    }
    close_device(&ranks[1].m);
    open_rank_device(&ranks[1], 100 << 10); /* 80 KiB of the budget, and a layer takes 38 KiB */
    ranks[1].m.desc.device_bytes = 80 << 10;
    run_ranks(2);
    CHECK_IS(ranks[1].status, ==, MEMO_STATUS_OUT_OF_DEVICE_MEMORY);
    CHECK_TEXT(ranks[0].error.message, "another rank failed");
    for (int32_t i = 0; i < 2; i++) close_device(&ranks[i].m);
}

/* Fields that must match are named on all ranks. */
TEST(unequal_descs_are_refused) {
    static const char* const names[] = {
        "n_layers", "n_tensors", "n_rows",       "tile_rows", "policy",       "tensors", "rows",
        "tensors",  "buffers",   "device_bytes", "shapes",    "is_unadvised", "tensors"};
    static const memo_session_buffer buffer[2] = {
        {"one", 1, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0},
        {"one", 2, 0, MEMO_PASS_SESSION, 0, MEMO_PASS_SESSION, 0, 0}};
    int64_t rows[2][2 * 8 * 4];
    for (int32_t i = 0; i < 2 * 2 * 8 * 4; i++) (&rows[0][0])[i] = MEMO_ROWS_KEPT;
    rows[1][1] = 0;
    for (int32_t k = 0; k < 13; k++) {
        memo_session_desc* d = &ranks[1].m.desc;
        for (int32_t i = 0; i < 2; i++) open_rank(i);
        if (k == 0) d->n_layers = 7;
        if (k == 1) d->n_tensors = 2;
        if (k == 2) d->n_rows = 65;
        if (k == 3) d->tile_rows = 16;
        if (k == 4) d->policy = MEMO_POLICY_ALPHA;
        if (k == 5) ranks[1].m.tensors[1].row_bytes = 404;
        for (int32_t i = 0; i < 2 && k == 6; i++) {
            ranks[i].m.desc.policy = MEMO_POLICY_ROWS;
            ranks[i].m.desc.rows = rows[i];
        }
        if (k == 7) ranks[1].m.tensors[1].is = MEMO_BY_BACKWARD;
        for (int32_t i = 0; i < 2 && k == 8; i++) { /* of other sizes */
            ranks[i].m.desc.buffers = &buffer[i];
            ranks[i].m.desc.n_buffers = 1;
        }
        if (k == 10) d->n_shapes = 1;
        if (k == 11) d->is_unadvised = 1; /* who advises agrees more often */
        if (k == 12) ranks[1].m.tensors[1].kinds = 1;
        if (k == 9) d->device_bytes = -1; /* one rank's desc is not valid */
        run_ranks(2);
        for (int32_t i = 0; i < 2; i++) {
            CHECK_IS(ranks[i].status, ==, MEMO_STATUS_INVALID_ARGUMENT);
            CHECK_CASE(strstr(ranks[i].error.message, names[k]) ||
                           (k == 9 && strstr(ranks[i].error.message, "another rank failed")),
                       "%s: %s", names[k], ranks[i].error.message);
            close_device(&ranks[i].m);
        }
    }
}

/* --- what attention over ranks keeps --- */

static memo_item kept_items[2];

static memo_status attend_nothing(void* user, memo_stream stream, const memo_attention_block* block,
                                  memo_error* e) {
    (void)user, (void)stream, (void)block, (void)e;
    return MEMO_STATUS_OK;
}

static memo_status sequence_items(thread_rank* thread, memo_error* e) {
    memo_sequence_desc desc = MEMO_ZERO(memo_sequence_desc);
    memo_sequence* sequence = NULL;
    desc.device = thread->device;
    desc.stream = thread->stream;
    desc.comm = thread->comm;
    desc.ulysses = 8;
    desc.n_tokens = 64; /* an item is of one row */
    desc.n_layers = 32;
    desc.n_q_heads = 32;
    desc.n_kv_heads = 8;
    desc.head_size = 128;
    desc.type = MEMO_TYPE_BF16;
    desc.n_in_flight = -1;
    desc.attention.forward = attend_nothing;
    desc.attention.backward = attend_nothing;
    if (memo_sequence_create(&desc, &sequence, e)) return e->status;
    if (!thread->comm->rank) memo_sequence_get_items(sequence, kept_items);
    memo_sequence_destroy(sequence);
    return MEMO_STATUS_OK;
}

/* An 8B shape with 128K tokens, its heads over 8 ranks: log-sum-exps, and q, k and v by heads, are
 * 6.06 GiB on each.  In a session they follow its budgets, down to two layers in the rounding
 * buffers. */
TEST(what_passes_keep_follows_the_budget) {
    enum { LAYERS = 32, ROWS = 131072 / 8 };
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    CHECK_OK(thread_ranks_run(8, sequence_items, NULL, &error));
    const int64_t layer_bytes = ROWS * (kept_items[0].row_bytes + kept_items[1].row_bytes);
    CHECK_IS(LAYERS * layer_bytes, ==, ((int64_t)6 << 30) + (64 << 20));
    desc.tensors = kept_items;
    desc.n_tensors = 2;
    desc.n_layers = LAYERS;
    desc.n_rows = ROWS;
    desc.tile_rows = 1024;
    for (int64_t n_kept = LAYERS; n_kept >= 0; n_kept -= 8) {
        desc.policy = n_kept == LAYERS ? MEMO_POLICY_KEEP : MEMO_POLICY_MEMO;
        desc.device_bytes = n_kept == LAYERS ? 0 : (n_kept + 2) * layer_bytes;
        own_step_plan* plan = step_plan_of(&desc, NULL);
        printf("# budget %.2f GiB: device %.2f, host %.2f\n", (double)desc.device_bytes / (1 << 30),
               (double)plan->device_bytes / (1 << 30), (double)plan->host_bytes / (1 << 30));
        CHECK(plan->fits && plan->device_bytes <= (n_kept + 2) * layer_bytes);
        CHECK_IS(plan->device_bytes + plan->host_bytes, >=, LAYERS * layer_bytes);
    }
}
