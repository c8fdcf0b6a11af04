/* test_gpt_ranks.c - the trainer's model on ranks that are threads: losses, gradients and
 * parameters against one rank's; equal bits under every policy and ZeRO stage; capacities;
 * failures. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

static int64_t n_group_queries = 65536;
#define GPT_GROUP_QUERIES n_group_queries
#include "gpt_ranks_test.h"
#include "owned.h"

static gpt_config config_of(int32_t data, int32_t ring, int32_t ulysses, int32_t zero) {
    gpt_config config = gpt_test_config(3, 16, 4, 2, 21, 4, 4, 0.1);
    config.data = data;
    config.ring = ring;
    config.ulysses = ulysses;
    config.zero = zero;
    return config;
}

/* ---- against one rank ----------------------------------------------------------------------- */

/* data, ring, ulysses, ZeRO: 21 tokens divide by none, 4 heads not by 3, 2 key heads not by 4. */
static const int32_t splits[][4] = {{2, 1, 1, 1}, {1, 2, 1, 2}, {1, 1, 2, 0}, {4, 1, 1, 2},
                                    {1, 4, 1, 0}, {1, 1, 4, 1}, {1, 2, 2, 2}, {2, 2, 1, 0},
                                    {2, 1, 2, 1}, {1, 1, 3, 2}, {1, 3, 1, 1}};

TEST(ranks_do_what_one_does) {
    double worst_loss = 0, worst_gradient = 0;
    for (int64_t accumulate = 1; accumulate <= 2; accumulate++) {
        const int64_t window = accumulate == 2 ? 9 : 0;
        const gpt_config plain = config_of(1, 1, 1, 0);
        own_training one =
            trained(window ? with_masks(plain, window, 21) : plain, MEMO_POLICY_KEEP, accumulate);
        for (size_t k = (size_t)accumulate - 1; k < sizeof splits / sizeof splits[0]; k += 2) {
            const int32_t* s = splits[k];
            const gpt_config split = config_of(s[0], s[1], s[2], s[3]);
            own_training t = trained(window ? with_masks(split, window, 21) : split,
                                     (memo_policy)(k % 4), accumulate);
            const double loss = loss_difference(&one, &t), gradient = gradient_difference(&one, &t);
            CHECK_CASE(loss < 1e-6 && gradient < 2e-6 && copies_are_equal(&t) &&
                           fabs(t.norms[0] / one.norms[0] - 1) < 1e-5,
                       "data %d ring %d ulysses %d zero %d: losses differ by %g, gradients by %g",
                       s[0], s[1], s[2], s[3], loss, gradient);
            worst_loss = fmax(worst_loss, loss);
            worst_gradient = fmax(worst_gradient, gradient);
        }
    }
    printf("# largest difference to one rank: loss %.2g, gradient over its norm %.2g\n", worst_loss,
           worst_gradient);
}

/* ---- the same bits -------------------------------------------------------------------------- */

/* With several micro-batches ZeRO 2 adds in another order: ranks first. */
static void check_zero_stages(int64_t accumulate, memo_type type, memo_type states, int is_tied) {
    gpt_config config = config_of(2, 1, 2, 0);
    config.is_tied = is_tied;
    training t[3];
    config.type = type;
    config.states = states;
    for (int32_t zero = 0; zero < 3; zero++) {
        config.zero = zero;
        t[zero] = trained(config, MEMO_POLICY_KEEP, accumulate);
    }
    CHECK(are_the_same(&t[0], &t[1]));
    if (accumulate == 1)
        CHECK(are_the_same(&t[0], &t[2]));
    else
        CHECK_IS(loss_difference(&t[0], &t[2]), <, 1e-6);
    for (int32_t zero = 0; zero < 3; zero++) training_free(&t[zero]);
}
TEST(zero_stages_give_the_same_bits) {
    check_zero_stages(1, MEMO_TYPE_F32, MEMO_TYPE_F32, 0);
    check_zero_stages(2, MEMO_TYPE_F32, MEMO_TYPE_F32, 0);
    check_zero_stages(1, MEMO_TYPE_F32, MEMO_TYPE_BF16, 0);
    check_zero_stages(1, MEMO_TYPE_BF16, MEMO_TYPE_BF16, 0);
    check_zero_stages(2, MEMO_TYPE_F32, MEMO_TYPE_F32, 1);
    check_zero_stages(1, MEMO_TYPE_BF16, MEMO_TYPE_F32, 1);
}

/* Groups of micro-batches have the bits of one after the other: on one rank and on several, with
 * documents and dropout, in slices, and with every policy. */
TEST(groups_give_the_same_bits) {
    static const int32_t groups[] = {2, 4};
    for (int k = 0; k < 8; k++) {
        gpt_config config = config_of(1 + k % 2, 1, k < 6 ? 1 : 2, k % 3);
        config.batch = k < 6 ? 2 : 1 + k % 2;
        if (k < 6) config = with_masks(config, 0, 21);
        if (k >= 4) config.slice_rows = k < 6 ? 16 : 8;
        config.is_tied = k / 2 % 2;
        own_training single = trained(config, MEMO_POLICY_KEEP, 4);
        for (int i = 0; i < 2; i++) {
            memo_session_desc session = {.policy = (memo_policy)((k + i) % 4),
                                         .alpha = 0.5,
                                         .micro_batches = 4,
                                         .n_group = groups[i]};
            own_training t = training_of(config, MEMO_POLICY_KEEP, 4);
            t.desc.session = &session;
            t.records = 1;
            CHECK_OK(train_all(&t, &error));
            CHECK_CASE(are_the_same(&single, &t) && copies_are_equal(&t) && !t.n_races,
                       "case %d, groups of %d", k, groups[i]);
            CHECK_IS(t.planned.step->n_group, ==, groups[i]);
        }
    }
}

/* On data ranks.  Loss and gradients match those of all rows at once up to rounding, because
 * libraries choose a product's algorithm by its shape. */
TEST(zero_stages_give_the_same_bits_in_slices) {
    gpt_config config = config_of(2, 1, 1, 1);
    training at_once = trained(config, MEMO_POLICY_KEEP, 1), t[3];
    config.slice_rows = 16; /* of 42 */
    for (config.zero = 0; config.zero < 3; config.zero++) {
        training* of = &t[config.zero];
        *of = trained(config, config.zero ? MEMO_POLICY_MEMO : MEMO_POLICY_SWAP, 1);
        CHECK(are_the_same(&t[0], of) && copies_are_equal(of));
    }
    CHECK_IS(loss_difference(&at_once, &t[0]), <, 1e-6);
    CHECK_IS(gradient_difference(&at_once, &t[1]), <, 2e-6);
    for (config.zero = 0; config.zero < 3; config.zero++) training_free(&t[config.zero]);
    training_free(&at_once);
}

/* Two buffers take turns, of which one holds the larger buckets of embedding and classifier. */
TEST(buckets_of_any_number_of_layers_take_turns) {
    for (int k = 0; k < 8; k++) {
        gpt_config config = config_of(2, 1, 1, 1);
        config.n_layers = 1 + k / 2;
        if (k % 2) config.slice_rows = 16;
        own_training parts = trained(config, MEMO_POLICY_RECOMPUTE, 1);
        config.zero = 2;
        own_training t = training_of(config, MEMO_POLICY_RECOMPUTE, 1);
        t.records = 1;
        CHECK_OK(train_all(&t, &error));
        CHECK_CASE(are_the_same(&parts, &t) && copies_are_equal(&t) && !t.n_races,
                   "%d layers: %d races", (int)config.n_layers, (int)t.n_races);
    }
}

/* Each rank has a share of each slice.  Losses and gradients are those of one rank; policies give
 * the same bits. */
TEST(slices_over_ranks_do_what_one_rank_does) {
    static const int32_t cases[][4] = {{1, 2, 1, 0}, {1, 1, 2, 2}, {1, 2, 2, 1},
                                       {2, 2, 1, 2}, {1, 3, 1, 1}, {2, 1, 2, 1}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        gpt_config config = config_of(1, 1, 1, 0);
        config.batch = cases[k][0];
        if (k % 2) config.window = 7;
        own_training one = trained(config, MEMO_POLICY_KEEP, 1);
        config.data = cases[k][0];
        config.ring = cases[k][1];
        config.ulysses = cases[k][2];
        config.zero = cases[k][3];
        config.slice_rows = 4;
        own_training keep = trained(config, MEMO_POLICY_KEEP, 1);
        IN_CASE("case %d", (int)k);
        CHECK_IS(loss_difference(&one, &keep), <, 1e-6);
        CHECK_IS(gradient_difference(&one, &keep), <, 2e-6);
        CHECK(copies_are_equal(&keep));
        own_training memo = trained(config, MEMO_POLICY_MEMO, 1);
        CHECK(are_the_same(&keep, &memo));
        config.type = MEMO_TYPE_BF16;
        own_training narrow = trained(config, MEMO_POLICY_KEEP, 1);
        own_training swapped = trained(config, MEMO_POLICY_SWAP, 1);
        CHECK(are_the_same(&narrow, &swapped));
    }
}

static void check_policies(const int32_t cases[][4], size_t n_cases, memo_type type) {
    for (size_t k = 0; k < n_cases; k++) {
        const int32_t* s = cases[k];
        gpt_config config = config_of(s[0], s[1], s[2], s[3]);
        if (k % 2) config = with_masks(config, 7, 21);
        config.type = type;
        own_training keep = trained(config, MEMO_POLICY_KEEP, 1);
        for (int policy = MEMO_POLICY_MEMO; policy <= MEMO_POLICY_ALPHA; policy++) {
            if (policy == MEMO_POLICY_KEEP) continue;
            own_training t = trained(config, (memo_policy)policy, 1);
            CHECK_CASE(are_the_same(&keep, &t), "case %d, policy %d", (int)k, policy);
        }
    }
}

TEST(policies_give_the_same_bits) {
    static const int32_t cases[][4] = {{2, 2, 1, 2}, {1, 1, 3, 0}, {1, 2, 2, 1}};
    check_policies(cases, sizeof cases / sizeof cases[0], MEMO_TYPE_F32);
}
TEST(policies_give_the_same_bits_in_bf16) {
    static const int32_t cases[][4] = {{2, 1, 2, 1}, {2, 2, 1, 2}, {2, 1, 1, 0}};
    check_policies(cases, sizeof cases / sizeof cases[0], MEMO_TYPE_BF16);
}

/* Two groups of heads on each rank: every policy, no race, and the bits of one group. */
TEST(groups_of_heads_give_the_same_bits) {
    for (int32_t ring = 1; ring < 3; ring++)
        for (int32_t type = 0; type < 2; type++) {
            gpt_config config = config_of(1, ring, 2, ring);
            config.n_kv_heads = 4;
            config.type = type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
            own_training whole = trained(config, MEMO_POLICY_KEEP, 1);
            n_group_queries = 1;
            for (int32_t policy = MEMO_POLICY_MEMO; policy <= MEMO_POLICY_ALPHA; policy++) {
                own_training t = training_of(config, (memo_policy)policy, 1);
                t.records = 1;
                t.n_races = -1;
                CHECK_OK(train_all(&t, &error));
                IN_CASE("ring %d, policy %d", (int)ring, (int)policy);
                CHECK(are_the_same(&whole, &t));
                CHECK_IS(t.n_races, ==, 0);
            }
            n_group_queries = 65536;
        }
}

/* ---- memory, order, failure ----------------------------------------------------------------- */

TEST(ranks_divide_the_optimizer) {
    gpt_config config = config_of(2, 1, 2, 0);
    const int64_t n = gpt_n_parameters(&config) * (int64_t)sizeof(gpt_real);
    int64_t peaks[3];
    for (config.zero = 0; config.zero < 3; config.zero++)
        peaks[config.zero] = gpt_test_peak(config, MEMO_POLICY_KEEP, 0);
    /* Two moments, up to the rounding of sizes. */
    CHECK_IS(llabs(peaks[0] - peaks[1] - 2 * (n - n / 4)), <, 2048);
    CHECK_IS(peaks[2], <, peaks[1]);
}

TEST(groups_of_heads_take_less_memory) {
    gpt_config config = gpt_test_config(2, 64, 8, 8, 4096, 1, 64, 0);
    int64_t peaks[2];
    config.ring = config.ulysses = 2;
    for (int i = 0; i < 2; i++) {
        n_group_queries = i ? 2048 : 65536; /* of 8192: 4 groups of one head */
        peaks[i] = gpt_test_peak(config, MEMO_POLICY_RECOMPUTE, 0);
    }
    n_group_queries = 65536;
    /* Of 9 tensors of keys, 4 of them fp32 gradients that travel, a quarter remains at most
     * twice. */
    CHECK_IS(peaks[0] - peaks[1], >, 6 * (int64_t)4096 / 4 * config.hidden * 4);
}

TEST(recorded_steps_have_no_race) {
    static const int32_t cases[][4] = {{1, 2, 2, 2}, {2, 2, 1, 1}, {2, 1, 2, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const gpt_config plain = config_of(cases[k][0], cases[k][1], cases[k][2], cases[k][3]);
        gpt_config config = k ? plain : with_masks(plain, 7, 21);
        if (k == 1) config.batch = 2; /* one sequence for each data rank, in slices */
        if (k == 1) config.slice_rows = 4;
        own_training t = training_of(config, MEMO_POLICY_MEMO, 1);
        t.records = 1;
        t.n_races = -1;
        CHECK_OK(train_all(&t, &error));
        CHECK_CASE(t.n_races == 0, "%d races", (int)t.n_races);
    }
}

/* Five buckets: classifier, three layers, embedding.  Nothing of the backward is left beside the
 * last sum. */
TEST(sums_run_beside_the_backward) {
    for (int32_t zero = 0; zero < 3; zero++) {
        own_training t = training_of(config_of(2, 1, 1, zero), MEMO_POLICY_KEEP, 1);
        t.records = 1;
        CHECK_OK(train_all(&t, &error));
        IN_CASE("zero %d", zero);
        CHECK_IS(t.n_races, ==, 0);
        CHECK_IS(t.n_sums, ==, 5);
        CHECK_IS(t.n_sums_beside, ==, 4);
    }
}

/* A step of one micro-batch has no second, a step of two not one. */
TEST(a_step_has_its_micro_batches) {
    own_training more = training_of(config_of(2, 1, 1, 1), MEMO_POLICY_KEEP, 2);
    own_training fewer = training_of(config_of(2, 1, 1, 1), MEMO_POLICY_KEEP, 1);
    more.desc.n_micro_batches = 1;
    fewer.desc.n_micro_batches = 2;
    CHECK_ERROR(train_all(&more, &error), INVALID_STATE, "last micro-batch of a step is over");
    CHECK_ERROR(train_all(&fewer, &error), INVALID_STATE, "the last of 2 micro-batches");
}

/* The others get to know, and the error is that of the rank that failed. */
TEST(a_rank_that_fails_ends_all) {
    for (int32_t rank = 0; rank < 4; rank += 3) {
        own_training t = training_of(config_of(2, 2, 1, 0), MEMO_POLICY_RECOMPUTE, 1);
        t.failing_rank = rank;
        CHECK_IS(train_all(&t, &error), ==, MEMO_STATUS_INFEASIBLE);
    }
}

TEST(impossible_ranks_are_refused) {
    static const int32_t bad[][4] = {{3, 1, 1, 0}, {-1, 1, 1, 0}, {1, -2, 1, 0}, {1, 1, 1, 3}};
    memo_swap_sizes sizes;
    gpt_desc desc;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        desc = gpt_test_desc(config_of(bad[k][0], bad[k][1], bad[k][2], bad[k][3]),
                             MEMO_POLICY_KEEP, 0);
        CHECK_IS(gpt_swap_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    }
    /* Slices over ranks: two sequences of a rank, documents, an odd number of rows. */
    for (int k = 0; k < 3; k++) {
        gpt_config config = config_of(1, 2, 1, 0);
        config.slice_rows = 4;
        config.batch = k ? 1 : 2;
        if (k == 1) config = with_masks(config, 0, 21);
        if (k == 2) config.slice_rows = config.tile_rows = 3;
        desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
        CHECK_ERROR(gpt_swap_sizes(&desc, &sizes, &error), UNSUPPORTED, "--slice-rows");
    }
    desc = gpt_test_desc(config_of(2, 1, 1, 0), MEMO_POLICY_KEEP, 0);
    own_run run = {.host = new_device(MEMO_ZERO(memo_host_device_desc))};
    gpt_test_attach(&run, &desc);
    CHECK(gpt_create(&desc, &run.model, &error) == MEMO_STATUS_INVALID_ARGUMENT && !run.model);
    CHECK(strstr(error.message, "need a mesh of these degrees") != NULL);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

static int files_are_equal(const char* a, const char* b) {
    int64_t n_a, n_b;
    own_memory char *text_a = memo_test_file(a, &n_a), *text_b = memo_test_file(b, &n_b);
    int are_equal =
        text_a && text_b && n_a == n_b && n_a > 512 && !memcmp(text_a, text_b, (size_t)n_a);
    return are_equal;
}

static void write_file(const char* path, const char* text, int64_t n_bytes) {
    FILE* file = fopen(path, "wb");
    CHECK(file && fwrite(text, 1, (size_t)n_bytes, file) == (size_t)n_bytes);
    if (file) fclose(file);
}

/* What any ranks resume from a file, and save at once, is the same file. */
TEST(a_checkpoint_fits_any_ranks) {
    static const int32_t degrees[][5] = {{1, 1, 1, 1, 0}, {2, 1, 1, 1, 1}, {2, 1, 2, 1, 2},
                                         {1, 2, 1, 2, 1}, {1, 1, 1, 2, 0}, {3, 1, 1, 1, 2}};
    char first[250], again[250];
    memo_test_path(first, "first");
    memo_test_path(again, "again");
    for (size_t type = 0; type < 3; type++) {
        gpt_config config = config_of(2, 1, 1, 2);
        config.batch = 6; /* data 2 and 3 divide it */
        config.type = type ? MEMO_TYPE_BF16 : GPT_REAL_TYPE;
        config.states = type == 2 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
        if (type == 1) config = with_tied_tables(with_biases(with_head_norms(config)));
        training t = training_of(config, MEMO_POLICY_KEEP, 1);
        t.saved_last = first;
        CHECK_OK(train_all(&t, &error));
        training_free(&t);
        for (size_t k = 0; k < sizeof degrees / sizeof *degrees; k++) {
            const int32_t* d = degrees[k];
            config.data = d[0], config.ring = d[1], config.ulysses = d[2];
            config.tensor = d[3], config.zero = d[4];
            t = training_of(config, MEMO_POLICY_RECOMPUTE, 1);
            t.resumed = first;
            t.saved_first = again;
            CHECK_OK(train_all(&t, &error));
            CHECK_CASE(files_are_equal(first, again), "type %d, case %d", (int)type, (int)k);
            training_free(&t);
        }
    }
    remove(first);
    remove(again);
}

/* A file that is cut short, altered, foreign or of another model is refused on all ranks, and the
 * model keeps its parameters.  A failed save leaves the file before it. */
TEST(bad_checkpoints_are_refused) {
    const gpt_config config = config_of(1, 1, 1, 0);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    gpt_config other = config;
    const int64_t n_parameters = gpt_n_parameters(&config) * (int64_t)sizeof(gpt_real);
    own_memory gpt_real *before = (gpt_real*)malloc((size_t)n_parameters),
                        *after = (gpt_real*)malloc((size_t)n_parameters);
    char path[250], other_path[250], aside[260], victim[260];
    struct stat info;
    int64_t n_bytes, step = -1;
    gpt_test_run run = {.host = new_device(MEMO_ZERO(memo_host_device_desc))};
    memo_test_path(path, "checkpoint");
    gpt_save save = {.path = path, .aside = 0xab};
    memo_test_path(other_path, "checkpoint_of_no_step");
    gpt_test_attach(&run, &desc);
    CHECK_OK(gpt_create(&desc, &run.model, &error));
    CHECK_OK(gpt_write_checkpoint(run.model, &save, 7, &error));
    CHECK_OK(gpt_read_checkpoint(run.model, path, 0, &step, &error));
    CHECK_IS(step, ==, 7);
    CHECK_OK(gpt_get_parameters(run.model, before, &error));
    own_memory char* text = memo_test_file(path, &n_bytes);
    step = -1;
    for (int k = 0; k < 30; k++) {
        int64_t at = memo_test_int(0, n_bytes - 1);
        if (k >= 20) at = memo_test_int(0, 511);
        if (k % 2) text[at] = (char)(text[at] ^ 32);
        write_file(path, text, k % 2 ? n_bytes : at);
        CHECK_CASE(gpt_read_checkpoint(run.model, path, 0, &step, &error) &&
                       strstr(error.message, path),
                   "case %d, byte %lld", k, (long long)at);
        if (k % 2) text[at] = (char)(text[at] ^ 32);
    }
    CHECK_IS(step, ==, -1);
    CHECK_OK(gpt_get_parameters(run.model, after, &error));
    CHECK(!memcmp(before, after, (size_t)n_parameters));
    write_file(path, text, n_bytes);
    CHECK_OK(gpt_read_checkpoint(run.model, path, 0, &step, &error));

    /* The name aside is taken, by a link to another file. */
    snprintf(aside, sizeof aside, "%s.part-ab", path);
    snprintf(victim, sizeof victim, "%s.victim", path);
    write_file(victim, text, 100);
    CHECK(symlink(victim, aside) == 0);
    CHECK_IS(gpt_write_checkpoint(run.model, &save, 8, &error), ==, MEMO_STATUS_IO);
    CHECK(stat(victim, &info) == 0 && info.st_size == 100);
    CHECK(unlink(aside) == 0 && unlink(victim) == 0);
    CHECK_OK(gpt_read_checkpoint(run.model, path, 0, &step, &error));
    CHECK_IS(step, ==, 7);

    /* A whole file that another has replaced, and one of a step that there is not. */
    CHECK_ERROR(gpt_read_checkpoint(run.model, path, 1, &step, &error), FORMAT, "replaced after");
    save.path = other_path;
    CHECK_OK(gpt_write_checkpoint(run.model, &save, -1, &error));
    CHECK_ERROR(gpt_read_checkpoint(run.model, other_path, 0, &step, &error), FORMAT,
                "altered: saved after step -1");
    remove(other_path);
    gpt_destroy(run.model);
    run.model = NULL;

    other.n_layers++;
    desc.config = other;
    CHECK_OK(gpt_create(&desc, &run.model, &error));
    CHECK_ERROR(gpt_read_checkpoint(run.model, path, 0, &step, &error), INVALID_ARGUMENT,
                "its --layers is 3, not 4");
    gpt_test_close(&run);
    remove(path);
}
