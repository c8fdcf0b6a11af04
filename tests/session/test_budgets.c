/* test_budgets.c - sessions meet any budget, or name one that works: random models, policies, tables of rows, kinds
 * of layers, plans in files. */
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "session_model.h"

/* Bytes of a session that keeps everything. */
static int64_t kept_bytes(model* m) {
    model copy = *m;
    copy.desc.n_shapes = 0;
    copy.desc.device = NULL;
    copy.desc.device_bytes = copy.desc.host_bytes = 0;
    copy.desc.user = &copy;
    memo_session_info info = {0};
    own_session* s = new_session(&copy.desc);
    if (s) info = memo_session_get_info(s);
    CHECK(!info.plan->times && info.plan->sizes.swapped_bytes == 0);
    return info.plan->device_bytes;
}

/* --- tests --- */

/* For any budget: a session within it that brings everything back, or a refusal that names a
 * budget, which then works. */
TEST(any_budget_is_met_or_refused) {
    const int n_rounds = memo_test_cases(12, 110);
    int n_least = 0, n_created = 0, n_moved = 0, n_recomputed = 0, n_spilled = 0;
    int n_device_refusals = 0, n_host_refusals = 0, n_given = 0;
    for (int round = 0; round < n_rounds; round++) {
        memo_session* s = NULL;
        const memo_step_plan* plan;
        memo_batch batch = {.n_rows = 0};
        model m;
        int64_t most, i;
        random_model(&m);
        most = kept_bytes(&m);
        m.gives = round % 4;
        m.desc.device_bytes = memo_test_int(1, most / 512 + 2) * 512;
        if (memo_test_int(0, 1) || m.gives == 3)
            m.desc.host_bytes =
                memo_test_int(1, most / (memo_test_int(0, 1) ? 512 : 4096) + 1) * 512;
        if (memo_test_int(0, 2) == 0) { /* a file takes whole pages */
            m.desc.spill_directory = memo_test_folder();
            m.desc.host_bytes = memo_test_int(1, 8) * (memo_test_int(0, 2) ? 4096 : 1024);
            m.tensors[0].row_bytes = 100 * memo_test_int(1, 9);
            item_choose(&m.tensors[0], MEMO_MOVE, MEMO_SLICE, 0);
            most = kept_bytes(&m);
            m.desc.device_bytes = most / memo_test_int(2, 3);
            m.desc.device_bytes += 8192;
        }
        open_device(&m, m.desc.device_bytes, m.desc.host_bytes);
        memset(&error, 0, sizeof error);
        memo_status status = memo_session_create(&m.desc, &s, &error);
        if (status) {
            const char* raise = strstr(error.message, "raise device_bytes to ");
            CHECK_CASE(status == MEMO_STATUS_INFEASIBLE && !s, "round %d: %s", round,
                       error.message);
            n_device_refusals += strstr(error.message, ".device_bytes") != NULL;
            n_host_refusals += strstr(error.message, ".host_bytes") != NULL;
            close_device(&m);
            if (!raise || m.desc.host_bytes) continue;

            /* What the message says is enough; the least is, and nothing below. */
            m.desc.device = NULL;
            int64_t least = least_of_session(&m.desc);
            CHECK_IS(least, <=, strtoll(raise + strlen("raise device_bytes to "), NULL, 10));
            for (i = 0; i < 2; i++) {
                m.desc.device_bytes = least - i;
                own_step_plan* planned = step_plan_of(&m.desc, NULL);
                for (plan = planned, n_least++; plan && plan->fits; plan = plan->next) {
                }
                CHECK_CASE(!plan == !i, "round %d: %lld bytes", round,
                           (long long)m.desc.device_bytes);
            }
            m.desc.device_bytes = strtoll(raise + strlen("raise device_bytes to "), NULL, 10);
            open_device(&m, m.desc.device_bytes, 0);
            CHECK_CASE(memo_session_create(&m.desc, &s, &error) == MEMO_STATUS_OK,
                       "round %d: %lld: %s", round, (long long)m.desc.device_bytes, error.message);
            memo_session_destroy(s);
            close_device(&m);
            continue;
        }
        settle(&m, s, 0);
        const memo_session_info info = memo_session_get_info(s);
        n_created++;
        n_moved += info.plan->sizes.swapped_bytes > 0;
        n_spilled += info.plan->sizes.n_spilled_layers > 0;
        n_given += m.desc.device_memory && m.desc.host_memory && info.plan->sizes.host_bytes > 0;
        n_recomputed += info.plan->times && info.plan->times->recompute_s > 0;
        for (plan = info.plan, i = 0; plan; plan = plan->next, i++) {
            CHECK_IS(plan->device_bytes, <=, m.desc.device_bytes);
            CHECK(!m.desc.host_bytes || plan->host_bytes <= m.desc.host_bytes);
            CHECK(!memo_plan_check(plan->addresses, plan->trace, &error));
            CHECK(!m.desc.n_shapes || plan->swap.n_rows == m.shapes[i].n_rows);
        }
        CHECK_IS(i, ==, m.desc.n_shapes ? m.desc.n_shapes : 1);
        for (i = 0; i < 4 + 4 * m.desc.n_shapes; i++) {
            m.micro_batch = i;
            batch.shape = m.desc.n_shapes ? (int32_t)memo_test_int(0, m.desc.n_shapes - 1) : 0;
            batch.n_rows = m.desc.n_shapes ? m.shapes[batch.shape].n_rows : m.desc.n_rows;
            batch.n_rows = memo_test_int(0, 1) ? 0 : memo_test_int(1, batch.n_rows);
            CHECK_OK(memo_session_run(s, &batch, &error));
        }
        finish(&m, s);
    }
    printf("# %d rounds: %d created, %d moved, %d recomputed, %d spilled, %d and %d refused, %d "
           "least, "
           "%d in given memory\n",
           n_rounds, n_created, n_moved, n_recomputed, n_spilled, n_device_refusals,
           n_host_refusals, n_least, n_given);
    CHECK(n_rounds < 20 || (n_created && n_device_refusals && n_least));
    CHECK(n_rounds < 100 || (n_created > n_rounds / 4 && n_moved > 2 && n_recomputed > 2 &&
                             n_least > 4 && n_spilled && n_host_refusals && n_given));
}

/* The session calls these instead of a step. */
/* Two sessions in one block of the caller, by turns: the device has nothing else.  The times of
 * copies, too, are taken within the block. */
TEST(two_sessions_take_turns_in_the_caller_s_memory) {
    model m[2];
    memo_session* s[2] = {NULL, NULL};
    int64_t device_bytes = 0, host_bytes = 0;
    void *device_memory = NULL, *host_memory = NULL;
    memo_host_device_stats stats;
    for (int i = 0; i < 2; i++) {
        tight_model(&m[i]);
        m[i].desc.n_rows -= 16 * i;
        m[i].desc.n_buffers = 0; /* those of SESSION would have to stay */
        m[i].desc.buffers = NULL;
        m[i].desc.device_bytes += 512 * i;
        m[i].desc.host_bytes = 512 << 10;
        device_bytes = m[i].desc.device_bytes;
        host_bytes = m[i].desc.host_bytes;
    }
    own_device* host = new_device((memo_host_device_desc){.device_memory_bytes = device_bytes,
                                                          .host_memory_bytes = host_bytes});
    CHECK_OK(memo_device_alloc(host, device_bytes, &device_memory, &error));
    CHECK_OK(memo_host_alloc(host, host_bytes, &host_memory, &error));
    for (int i = 0; i < 2; i++) {
        m[i].host = host;
        m[i].desc.device = host;
        m[i].desc.computes_on_host = 1;
        m[i].desc.device_memory = device_memory;
        m[i].desc.host_memory = host_memory;
        if (i) m[i].desc.policy = MEMO_POLICY_ALPHA, m[i].desc.alpha = 1;
        CHECK_OK(memo_session_create(&m[i].desc, &s[i], &error));
        settle(&m[i], s[i], 0);
        const memo_session_info info = memo_session_get_info(s[i]);
        CHECK(i || info.plan->times); /* measured */
        CHECK(!i || info.plan->sizes.swapped_bytes > 0);
        for (int32_t l = 0; l < m[i].desc.n_layers; l++) {
            const char* at = (const char*)memo_session_get_address(s[i], l, 0);
            CHECK(at >= (char*)device_memory && at < (char*)device_memory + device_bytes);
        }
    }
    for (int64_t k = 0; k < 8; k++) {
        const int i = (int)memo_test_int(0, 1);
        m[i].micro_batch = k;
        CHECK_OK(memo_session_run(s[i], NULL, &error));
        CHECK_IS(m[i].n_wrong, ==, 0);
    }
    stats = memo_host_device_get_stats(host);
    CHECK_IS(stats.device_peak_bytes, ==, device_bytes);
    CHECK_IS(stats.host_peak_bytes, ==, host_bytes);
    for (int i = 0; i < 2; i++) memo_session_destroy(s[i]);
    stats = memo_host_device_get_stats(host);
    CHECK(stats.device_bytes == device_bytes && stats.host_bytes == host_bytes);

    /* A plan of another budget. */
    own_step_plan* large = step_plan_of(&m[1].desc, NULL);
    m[0].desc.device_bytes = 4096;
    CHECK_ERROR(memo_session_open(&m[0].desc, large, &s[0], &error), INVALID_ARGUMENT, "rows");
    m[1].desc.device_bytes = 4096;
    CHECK_ERROR(memo_session_open(&m[1].desc, large, &s[1], &error), INFEASIBLE,
                "memo_session_desc.device_memory: the plan takes ");
    m[1].desc.device_bytes = device_bytes;
    m[1].desc.host_bytes = 512;
    CHECK_ERROR(memo_session_open(&m[1].desc, large, &s[1], &error), INFEASIBLE,
                "memo_session_desc.host_memory: the plan takes ");
    CHECK_OK(memo_device_free(host, device_memory, &error));
    CHECK_OK(memo_host_free(host, host_memory, &error));
}

TEST(forward_alone_needs_nothing_else) {
    model m;
    tight_model(&m);
    memo_session* s = create(&m, NULL);
    for (int i = 0; i < 6; i++) {
        m.micro_batch = i;
        m.n_backward = i % 3 == 0 ? 8 : i % 3 == 1 ? 0 : 3; /* all, none, given up */
        CHECK_OK(memo_session_run(s, NULL, &error));
    }
    finish(&m, s);
}

/* A plan says what it chose, can be simulated and drawn, and opens on another device; it belongs to
 * its tensors. */
TEST(a_plan_is_data) {
    memo_session *s = NULL, *again = NULL;
    memo_session_info a;
    own_schedule* schedule = NULL;
    static const char* const words[] = {
        "rows      layers",
        "attention, lse",
        "limit     ",
        "predicted ",
        " of 128 KiB",
        "device    activations ",
        "the last swapped and recomputed rows stay on the device\n"};
    model m;
    char* text = NULL;
    int64_t n_bytes = 0;
    tight_model(&m);
    s = create(&m, &a);
    CHECK(a.plan->times && a.plan->sizes.swapped_bytes > 0);
    for (int64_t i = 0; i < 7; i++) expect_words(a.plan, words[i]);

    /* What it chose can be simulated, and drawn. */
    const memo_swap_plan_desc step = {.swap = &a.plan->swap};
    CHECK_OK(memo_swap_generate(&step, 1, &schedule, &error));
    own_check* check = check_of(schedule);
    CHECK(check->n_races == 0 && check->n_waits > 0);
    CHECK_OK(
        memo_plan_write_svg(a.plan->addresses, a.plan->trace, "a step", scratch_file(), &error));
    text = memo_test_file(scratch_file(), &n_bytes);
    CHECK(n_bytes > 0 && strstr(text, "<svg") && strstr(text, "backward"));
    free(text);

    /* On another device, without measuring; operations of the first one count in m. */
    CHECK_OK(memo_stream_synchronize(m.host, m.compute, &error));
    model other = m;
    other.desc.device = NULL;
    other.host = NULL;
    other.desc.user = &other;
    CHECK_OK(memo_session_open(&other.desc, a.plan, &again, &error));
    CHECK_OK(memo_session_run(again, NULL, &error));
    CHECK_IS(other.n_wrong, ==, 0);
    memo_session_destroy(again);

    /* A plan belongs to its tensors. */
    other.tensors[1].row_bytes++;
    other.desc.tensors = other.tensors;
    CHECK_ERROR(memo_session_open(&other.desc, a.plan, &again, &error), INVALID_ARGUMENT,
                "shape 0 of the plan: tensor `up`: it has 400 as row_bytes, "
                "the session has 401; plan again");
    other.tensors[1].row_bytes--;
    other.tensors[1].name = "down";
    CHECK_ERROR(memo_session_open(&other.desc, a.plan, &again, &error), INVALID_ARGUMENT,
                "tensor `down`: it has `up` instead");
    remove(scratch_file());
    memo_session_destroy(s);
    close_device(&m);
}

/* Rows that the trainer gives are used as they are. */
TEST(given_rows_are_used) {
    memo_session_info info;
    model m;
    int64_t rows[8 * 4];
    tight_model(&m);
    for (int i = 0; i < 8 * 4; i++) rows[i] = i % 4 == 0 ? 64 : i % 4 == 1 ? 16 : 0;
    m.desc.rows = rows;
    m.desc.policy = MEMO_POLICY_ROWS;
    memo_session* s = create(&m, &info);
    CHECK(!memcmp(info.plan->swap.rows, rows, sizeof rows) && !info.plan->times);
    CHECK_OK(memo_session_run(s, NULL, &error));
    finish(&m, s);
    m.desc.device = NULL;
    WITH(rows[1], 15, expect_refused(&m.desc, "rows"));
    WITH(rows[1], INT64_MIN, expect_refused(&m.desc, "rows"));
    m.desc.device_bytes = 50000;
    CHECK_ERROR(memo_session_create(&m.desc, &s, &error), INFEASIBLE,
                "device_bytes: policy rows needs ");
    m.desc.rows = NULL;
    expect_refused(&m.desc, "rows");
}

/* Every policy has a plan with its bytes and times, whether it fits or not, without a device. */
/* With a file every table that has room on the host opens and runs, in whatever order its layers
 * leave and come back. */
TEST(tables_with_a_file_open_or_do_not_fit) {
    int n_opened = 0, n_spilled = 0, n_lacking = 0;
    for (int i = 0; i < 60; i++) {
        int64_t rows[8 * 4];
        model m;
        tight_model(&m);
        for (int32_t k = 0; k < 8 * 4; k++)
            rows[k] = memo_test_int(0, 1) ? MEMO_ROWS_KEPT
                      : k % 4 == 1        ? 8 * memo_test_int(0, 8)
                      : k % 4 == 0        ? 64
                                          : 64 * memo_test_int(0, 1);
        for (int32_t k = 0; k < 8; k++) rows[4 * k + 3] = rows[4 * k + 2]; /* with attention */
        m.desc.policy = MEMO_POLICY_ROWS;
        m.desc.rows = rows;
        m.desc.device_bytes = 0;
        own_step_plan* all = step_plan_of(&m.desc, NULL);
        m.desc.spill_directory = memo_test_folder();
        m.desc.host_bytes = all->host_bytes / 2 + 12288;
        own_step_plan* plan = step_plan_of(&m.desc, NULL);
        if (!plan) continue; /* an error, which has failed the test */
        n_lacking += !plan->fits;
        if (!plan->fits) CHECK(strstr(plan->shortage, "host_bytes"));
        if (!plan->fits) continue;
        n_spilled += plan->sizes.n_spilled_layers > 0;
        open_device(&m, 1 << 20, m.desc.host_bytes);
        memo_session* s = NULL;
        CHECK_CASE(memo_session_open(&m.desc, plan, &s, &error) == MEMO_STATUS_OK, "table %d: %s",
                   i, error.message);
        if (s) CHECK_OK(memo_session_run(s, NULL, &error));
        n_opened += s != NULL;
        memo_session_destroy(s);
        close_device(&m);
    }
    CHECK_CASE(n_opened > 40 && n_spilled > 25 && n_lacking < 15, "%d, %d, %d", n_opened, n_spilled,
               n_lacking);
}

TEST(policies_are_compared_without_a_device) {
    memo_step_plan* plan = NULL;
    memo_profile profile;
    int64_t step_bytes[MEMO_N_POLICIES];
    double step_s[MEMO_N_POLICIES];
    model m;
    tight_model(&m);
    CHECK(MEMO_ZERO(memo_session_desc).policy == MEMO_POLICY_MEMO);
    open_device(&m, 256 << 10, 0);
    m.desc.device_bytes = 200 << 10;
    CHECK_OK(session_times(&m.desc, &profile, &error));
    close_device(&m);
    m.desc.device = NULL;
    m.n_calls = 0;
    for (int policy = 0; policy < MEMO_POLICY_ROWS; policy++) {
        m.desc.policy = (memo_policy)policy;
        CHECK_OK(memo_session_plan(&m.desc, &profile, &plan, &error));
        if (!plan) continue;
        CHECK_CASE(plan->fits == (policy == MEMO_POLICY_MEMO || policy == MEMO_POLICY_ALPHA ||
                                  plan->device_bytes <= 200 << 10) &&
                       plan->fits == !*plan->shortage,
                   "%s: %s", memo_policy_name(plan->policy), plan->shortage);
        CHECK_IS(plan->bytes[0][MEMO_OWNER_ACTIVATIONS] + plan->bytes[0][MEMO_OWNER_SESSION] +
                     plan->bytes[0][MEMO_OWNER_MICRO_BATCH],
                 ==, plan->addresses->peak_bytes);
        step_bytes[policy] = plan->device_bytes;
        step_s[policy] = plan->times ? plan->times->step_s : 0;
        CHECK(step_s[policy] > 0);
        expect_words(plan, "predicted ");
        memo_step_plan_destroy(plan);
    }
    CHECK(m.n_calls == 0);
    CHECK(step_bytes[MEMO_POLICY_RECOMPUTE] < step_bytes[MEMO_POLICY_KEEP]);
    CHECK(step_s[MEMO_POLICY_MEMO] <= step_s[MEMO_POLICY_ALPHA] * (1 + 1e-9));
    CHECK(step_s[MEMO_POLICY_KEEP] <= step_s[MEMO_POLICY_MEMO] * (1 + 1e-9));

    /* One that does not fit cannot be opened. */
    m.desc.policy = MEMO_POLICY_KEEP;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    if (plan) {
        memo_session* s = NULL;
        CHECK(!plan->fits && !plan->times);
        CHECK_TEXT(plan->shortage, "policy keep needs ");
        CHECK_TEXT(plan->shortage, "raise device_bytes to ");
        CHECK_IS(memo_session_open(&m.desc, plan, &s, &error), ==, MEMO_STATUS_INFEASIBLE);
        CHECK(!strcmp(error.message, plan->shortage));
        CHECK_IS(memo_session_open(&m.desc, NULL, &s, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
        memo_step_plan_destroy(plan);
    }
}

/* Plans lengths that fit nowhere, takes no memory and computes nothing. */
TEST(a_plan_takes_no_memory) {
    memo_text report = {NULL, 0, 0, 0};
    model m;
    tight_model(&m);
    m.desc.n_rows = 16 << 20;
    m.desc.tile_rows = 1 << 14;
    m.desc.device_bytes = (int64_t)32 << 30;
    own_step_plan* plan = step_plan_of(&m.desc, NULL);
    CHECK(plan->fits && plan->device_bytes <= m.desc.device_bytes && plan->sizes.swapped_bytes > 0);
    CHECK(!plan->times && m.n_calls == 0);
    memo_step_plan_put(plan, &report);
    CHECK(strstr(report.data, " of 32.0 GiB") && !strstr(report.data, "predicted"));
    memo_text_free(&report);
    memo_step_plan_destroy(plan);
    m.desc.device_bytes = (int64_t)4 << 30;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    CHECK_CASE(!plan->fits && strstr(plan->shortage, "the smallest plan needs "), "%s",
               plan->shortage);
    memo_step_plan_destroy(plan);

    /* Rows are listed even if nothing moves. */
    m.desc.policy = MEMO_POLICY_RECOMPUTE;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    CHECK(!plan->times && plan->sizes.swapped_bytes == 0);
    memo_step_plan_put(plan, &report);
    CHECK_TEXT(report.data, "recomputed   of 16777216 in tiles of 16384");
    memo_text_free(&report);
    memo_step_plan_destroy(plan);

    /* A single alpha is planned even if everything could be kept, because hidden swaps cost no
     * time. */
    m.desc.device_bytes = m.desc.host_bytes = (int64_t)1 << 40;
    m.desc.policy = MEMO_POLICY_ALPHA;
    CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
    CHECK(plan->fits && plan->sizes.swapped_bytes > 0);
}

/* Alpha 0 is the default, and recomputes; any number below 0 plans it. */
TEST(an_alpha_below_0_is_planned) {
    static const double alphas[] = {0, -1, -1e-300, -HUGE_VAL};
    int64_t swapped_bytes[4];
    model m;
    tight_model(&m);
    CHECK(!(MEMO_ZERO(memo_session_desc).alpha < 0));
    m.desc.policy = MEMO_POLICY_ALPHA;
    m.desc.device_bytes = 0; /* hidden swaps cost no time */
    for (int k = 0; k < 4; k++) {
        m.desc.alpha = alphas[k];
        own_step_plan* plan = step_plan_of(&m.desc, NULL);
        swapped_bytes[k] = plan->sizes.swapped_bytes;
        for (int32_t layer = 0; layer < 8 && k == 0; layer++) /* of `up` */
            CHECK_IS(plan->swap.rows[4 * layer + 1], ==, 0);
    }
    CHECK_IS(swapped_bytes[1], >, swapped_bytes[0]);
    CHECK(swapped_bytes[1] == swapped_bytes[2] && swapped_bytes[1] == swapped_bytes[3]);
}

/* Fragments: lives of up to six layers and sizes without order. */
enum { N_HARD = 40 };
static void hard_buffers(memo_session_buffer* buffers, int32_t n_layers) {
    uint64_t random = 4;
    for (int k = 0; k < N_HARD; k++) {
        memo_session_buffer* b = &buffers[k];
        int64_t at[2];
        for (int i = 0; i < 2; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            at[i] = (int64_t)(random >> 33) % (2 * n_layers);
        }
        at[1] = at[0] + at[1] % 6;
        if (at[1] >= 2 * n_layers) at[1] = 2 * n_layers - 1;
        *b = (memo_session_buffer){.name = "hard"};
        b->size_bytes = 512 * (1 + (int64_t)(random >> 40) % 97);
        b->first = at[0] < n_layers ? MEMO_PASS_FORWARD : MEMO_PASS_BACKWARD;
        b->last = at[1] < n_layers ? MEMO_PASS_FORWARD : MEMO_PASS_BACKWARD;
        b->first_layer = (int32_t)(at[0] < n_layers ? at[0] : 2 * n_layers - 1 - at[0]);
        b->last_layer = (int32_t)(at[1] < n_layers ? at[1] : 2 * n_layers - 1 - at[1]);
    }
}

static int n_searches;
static void count_searches(MEMO_UNUSED void* user, const char* line) {
    n_searches += strstr(line, "searching for addresses") != NULL;
}

/* A search is begun only if greedy orders miss the budget, and could meet it. */
TEST(searches_are_rare) {
    static memo_session_buffer buffers[N_HARD];
    own_step_plan* plan = NULL;
    model m;
    tight_model(&m);
    hard_buffers(buffers, m.desc.n_layers);
    m.desc.buffers = buffers, m.desc.n_buffers = N_HARD;
    m.desc.policy = MEMO_POLICY_KEEP;
    m.desc.log.write = count_searches;
    for (int k = 0; k < 4; k++) { /* no budget, a wide one, the lower bound, less */
        m.desc.device_bytes = k == 0   ? 0
                              : k == 1 ? (int64_t)64 << 20
                                       : plan->addresses->lower_bound_bytes - (k - 2) * 512;
        if (plan) memo_step_plan_destroy(plan);
        n_searches = 0;
        CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
        CHECK_IS(n_searches, ==, k == 2);
        CHECK(plan->fits == (k < 3));
    }
}

/* Compares the table of rows of a plan, behind its first line. */
static void expect_rows(const memo_swap_desc* desc, const char* lines) {
    memo_step_plan plan = {0};
    memo_plan addresses = {0};
    memo_text text = {NULL, 0, 0, 0};
    plan.swap = *desc;
    plan.addresses = &addresses;
    plan.device_bytes = 1;
    memo_step_plan_put(&plan, &text);
    CHECK_CASE(!strncmp(strchr(text.data, '\n'), lines, strlen(lines)), "%s", text.data);
    memo_text_free(&text);
}

/* Lines of a tensor are of layers that have it. */
static void rows_of_kinds(const model* m) {
    memo_swap_desc desc = {0};
    int64_t rows[8][4] = {{64, 8, 1, 1},   {64, 0, 0, 0},  {64, 8, 2, 2}, {64, 16, 3, 3},
                          {64, 0, 64, 64}, {64, 16, 4, 4}, {64, 0, 0, 0}, {64, 16, 5, 5}};
    desc.tensors = m->tensors, desc.n_tensors = 4, desc.n_layers = 8, desc.n_rows = 64;
    desc.tile_rows = 8, desc.rows = rows[0];
    desc.layer_kinds = m->desc.layer_kinds;
    expect_rows(&desc, "\n          0-7          0       64           0   input"
                       "\n          0-2          0        8          56   up"
                       "\n          3-7          0       16          48   up"
                       "\n          1            0        0          64   attention, lse"
                       "\n          4            0       64           0   attention, lse"
                       "\n          6            0        0          64   attention, lse\nplan ");
}

/* An EDGE has no line; it hides no other one with the same rows. */
TEST(a_tensor_without_choice_hides_no_other) {
    static const memo_item tensors[] = {MEMO_ITEM("state", 4, MEMO_MOVE, MEMO_EDGE),
                                        MEMO_ITEM("input", 4, MEMO_MOVE),
                                        MEMO_ITEM("up", 4, MEMO_ROWS)};
    static const int64_t rows[] = {MEMO_ROWS_KEPT, MEMO_ROWS_KEPT, 8};
    memo_swap_desc desc = {0};
    desc.tensors = tensors, desc.n_tensors = 3, desc.n_layers = 1, desc.n_rows = 64;
    desc.tile_rows = 8, desc.rows = rows;
    expect_rows(&desc, "\n          0           64        0           0   input"
                       "\n          0            0        8          56   up\nplan ");
}

/* Each kind of layer has its own times, and a plan for other kinds is refused. */
TEST(layers_have_kinds) {
    static const int32_t kinds[8] = {0, 1, 0, 0, 1, 0, 2, 0};
    int32_t others[8];
    memo_profile profile;
    own_model m;
    tight_model(&m);
    m.desc.layer_kinds = kinds;
    m.tensors[1].kinds = 1, m.tensors[2].kinds = m.tensors[3].kinds = 6;
    m.desc.device_bytes = 96 << 10;
    m.desc.computes_on_host = 1;
    open_device(&m, m.desc.device_bytes, 0);
    WITH(m.desc.layer_kinds, NULL,
         CHECK_ERROR(session_times(&m.desc, &profile, &error), INVALID_ARGUMENT,
                     "memo_session_desc.layer_kinds: NULL, so all layers are"));
    CHECK_OK(session_times(&m.desc, &profile, &error));
    CHECK_IS(profile.n_kinds, ==, 3);
    for (int k = 0; k < 3; k++) {
        CHECK(profile.forward_s[k] > 0 && profile.backward_s[k] > 0);
        CHECK(profile.tensors[0].recompute_s_per_row[k] < 0);
        for (int t = 1; t < 3; t++) { /* a busy machine may find no time beside a call's */
            const double row_s = profile.tensors[t].recompute_s_per_row[k];
            CHECK((t == 1) == (k == 0) ? row_s + profile.recompute_call_s > 0 && row_s >= 0
                                       : row_s <= 0);
        }
    }
    memo_step_plan* plan = step_plan_of(&m.desc, &profile);
    memo_session* s = session_of_plan(&m.desc, plan);
    CHECK(!memo_session_get_address(s, 0, 2) && !memo_session_get_address(s, 1, 1));
    CHECK(memo_session_get_address(s, 6, 3) != NULL);
    run_all(&m, s, 4);
    memcpy(others, kinds, sizeof others);
    rows_of_kinds(&m);
    others[3] = 1;
    m.desc.layer_kinds = others;
    CHECK_ERROR(memo_session_open(&m.desc, plan, &s, &error), INVALID_ARGUMENT,
                "layer 3: it has 0 as layer_kinds, the session has 1");
    m.desc.layer_kinds = kinds;
    WITH(m.tensors[1].kinds, 3,
         CHECK_ERROR(memo_session_open(&m.desc, plan, &s, &error), INVALID_ARGUMENT,
                     "tensor `up`: it has 1 as kinds, the session has 3"));
    m.desc.layer_kinds = others;
    others[3] = 3;
    memo_step_plan_destroy(plan);
    CHECK_ERROR(memo_session_plan(&m.desc, &profile, &plan, &error), INVALID_ARGUMENT,
                "layer 3 is of kind 3");
}

static memo_status other_memory_info(MEMO_UNUSED void* context, int64_t* free_bytes,
                                     int64_t* total_bytes, MEMO_UNUSED memo_error* e) {
    *free_bytes = *total_bytes = (int64_t)80 << 30;
    return MEMO_STATUS_OK;
}

/* Without a budget a session leaves bytes to libraries. */
TEST(a_reserve_is_left) {
    own_step_plan* plan = NULL;
    model m;
    tight_model(&m);
    open_device(&m, 1 << 20, 0);
    for (int k = 0; k < 3; k++) { /* a host device; a reserve; another device */
        memo_device table = *m.host;
        int32_t other[16] = {0};
        m.desc.device_bytes = 0;
        m.desc.reserve_bytes = k == 1 ? 700 << 10 : 0;
        if (k == 2) table.context = other, table.memory_info = other_memory_info;
        m.desc.device = &table;
        CHECK_OK(memo_session_plan(&m.desc, NULL, &plan, &error));
        CHECK_IS(plan->device_budget_bytes, ==,
                 k == 0   ? 1 << 20
                 : k == 1 ? 324 << 10
                          : ((int64_t)80 << 30) - ((int64_t)80 << 30) / 100 * 3);
        CHECK(plan->fits);
        memo_step_plan_destroy(plan);
        plan = NULL;
    }
    close_device(&m);
}
