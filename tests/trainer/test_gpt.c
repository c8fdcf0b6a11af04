/* test_gpt.c - the trainer's math against slow, obvious references; the model's bits under every
 * policy. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_look.h"

#define GPT_LOGITS_BYTES     8192 /* 8 rows of f32: so that models of a test have many chunks */
#define GPT_TEST_ACCUMULATED 2
#include "gpt_test.h"
#include "stats.h"
#include "owned.h"
#include "gpt_plain.h"

static gpt_real* random_reals(int64_t n) {
    gpt_real* result = (gpt_real*)allocate(n, sizeof(gpt_real));
    const uint64_t key = memo_test_random();
    for (int64_t i = 0; i < n; i++) result[i] = (gpt_real)gpt_normal(key, (uint64_t)i);
    return result;
}

/* ---- the operations alone ------------------------------------------------------------------- */

TEST(exponential_is_accurate) {
    double worst = 0;
    for (int i = -86000; i <= 87000; i++) {
        const gpt_real x = (gpt_real)(i * 1e-3 + 1e-4 * memo_test_real());
        worst = memo_test_worst(worst, fabs((double)gpt_exp(x) / exp((double)x) - 1));
    }
    CHECK_CASE(worst < 1.2e-7, "relative error %g", worst);
    CHECK_IS(gpt_exp(-(gpt_real)INFINITY), ==, 0);
    CHECK_IS(gpt_exp(0), ==, 1);
}

TEST(gemm_matches_three_loops) {
    for (int trial = 0; trial < 200; trial++) {
        const int64_t m = memo_test_int(1, trial % 4 ? 40 : 220);
        const int64_t n = memo_test_int(1, trial % 5 ? 40 : 300);
        const int64_t k = memo_test_int(1, trial % 3 ? 40 : 290);
        const int ta = (int)memo_test_int(0, 1), tb = (int)memo_test_int(0, 1);
        const int64_t lda = (ta ? m : k) + memo_test_int(0, 5);
        const int64_t ldb = (tb ? k : n) + memo_test_int(0, 5), ldc = n + memo_test_int(0, 5);
        const gpt_real alpha = (gpt_real)memo_test_int(-2, 2);
        const gpt_real beta = (gpt_real)memo_test_int(0, 2) / 2;
        own_memory gpt_real *a = random_reals((ta ? k : m) * lda),
                            *b = random_reals((tb ? n : k) * ldb);
        own_memory gpt_real* c = random_reals(m * ldc);
        own_memory double* expected = (double*)allocate(m * ldc, sizeof(double));
        if (beta == 0) c[0] = (gpt_real)NAN; /* not read then */
        for (int64_t i = 0; i < m * ldc; i++) expected[i] = (double)c[i];
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < k; p++)
                    sum += (double)a[ta ? p * lda + i : i * lda + p] *
                           (double)b[tb ? j * ldb + p : p * ldb + j];
                expected[i * ldc + j] =
                    (double)alpha * sum + (beta == 0 ? 0 : (double)beta * (double)c[i * ldc + j]);
            }
        gpt_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        CHECK_CASE(largest_difference(c, expected, m * ldc) < rounding, "%d %d %d", (int)m, (int)n,
                   (int)k);
    }
}

/* Policies place the same tile at different addresses: the bits must not depend on them. */
TEST(gemm_gives_the_same_bits_at_any_address) {
    for (int trial = 0; trial < 60; trial++) {
        const int64_t m = memo_test_int(1, 70), n = memo_test_int(1, 140),
                      k = memo_test_int(1, 140);
        const int ta = (int)memo_test_int(0, 1), tb = (int)memo_test_int(0, 1);
        own_memory gpt_real *a = random_reals(m * k + 64), *b = random_reals(n * k + 64);
        own_memory gpt_real *c = random_reals(m * n + 64), *moved_c = random_reals(m * n + 64);
        const int64_t at[3] = {memo_test_int(0, 63), memo_test_int(0, 63), memo_test_int(0, 63)};
        memcpy(moved_c + at[2], c, (size_t)(m * n) * sizeof *c);
        gpt_gemm(ta, tb, m, n, k, 1, a, ta ? m : k, b, tb ? k : n, 1, c, n);
        memmove(a + at[0], a, (size_t)(m * k) * sizeof *a);
        memmove(b + at[1], b, (size_t)(n * k) * sizeof *b);
        gpt_gemm(ta, tb, m, n, k, 1, a + at[0], ta ? m : k, b + at[1], tb ? k : n, 1,
                 moved_c + at[2], n);
        CHECK_CASE(!memcmp(c, moved_c + at[2], (size_t)(m * n) * sizeof *c), "%d %d %d", (int)m,
                   (int)n, (int)k);
    }
}

TEST(dropout_keeps_its_rate) {
    enum { N_ROWS = 400, N_COLUMNS = 256 };
    const gpt_dropout dropout = gpt_dropout_make(0.3, 1, 2, 3, 4);
    const gpt_dropout other_step = gpt_dropout_make(0.3, 1, 3, 3, 4);
    const gpt_dropout other_layer = gpt_dropout_make(0.3, 1, 2, 4, 4);
    const gpt_dropout other_site = gpt_dropout_make(0.3, 1, 2, 3, 3);
    const double n = N_ROWS * N_COLUMNS, tolerance = 5 / sqrt(n); /* 10 standard deviations */
    int64_t dropped = 0, below = 0, beside = 0, same[3] = {0, 0, 0}, row, column;
    for (row = 0; row < N_ROWS; row++)
        for (column = 0; column < N_COLUMNS; column++) {
            const uint64_t key = gpt_token_key(&dropout, row);
            const gpt_real mask = gpt_mask(&dropout, key, column);
            CHECK(mask == 0 || mask == (gpt_real)dropout.scale);
            dropped += mask == 0;
            below += mask == gpt_mask(&dropout, gpt_token_key(&dropout, row + 1), column);
            beside += mask == gpt_mask(&dropout, key, column + 1);
            same[0] += mask == gpt_mask(&other_step, gpt_token_key(&other_step, row), column);
            same[1] += mask == gpt_mask(&other_layer, gpt_token_key(&other_layer, row), column);
            same[2] += mask == gpt_mask(&other_site, gpt_token_key(&other_site, row), column);
        }
    CHECK_IS(fabs((double)dropped / n - 0.3), <, tolerance);
    /* Independent masks agree with probability 0.3^2 + 0.7^2. */
    CHECK_IS(fabs((double)below / n - 0.58), <, tolerance);
    CHECK_IS(fabs((double)beside / n - 0.58), <, tolerance);
    for (row = 0; row < 3; row++) CHECK_IS(fabs((double)same[row] / n - 0.58), <, tolerance);
}

/* Some rows alone give the same bits as all rows together, in each operation that threads share by
 * rows. */
TEST(rows_do_not_depend_on_their_company) {
    enum { N_ROWS = 13, N_COLUMNS = 37, N = N_ROWS * N_COLUMNS };
    own_memory gpt_real *x = random_reals(2 * N), *z = random_reals(2 * N),
                        *weight = random_reals(N_COLUMNS);
    gpt_real together[2 * N], alone[2 * N], rstd[2][N_ROWS];
    int64_t token_numbers[N_ROWS], row;
    gpt_batch_values values = {2, 5, 1};
    gpt_elements_args elements = {0};
    gpt_norm_args norm = {0};
    for (row = 0; row < N_ROWS; row++) token_numbers[row] = row % 5 ? row : -1;
    norm.x = elements.x = x;
    elements.z = z;
    norm.weight = weight;
    norm.rows = elements.rows = gpt_rows_make(3, 3 + N_ROWS);
    norm.hidden = elements.n_columns = N_COLUMNS;
    elements.token_numbers = token_numbers;
    elements.values = &values;
    elements.rate = 0.2;
    for (int kind = GPT_KIND_NORM; kind <= GPT_KIND_SWIGLU_BACKWARD; kind++) {
        const gpt_work work = kind == GPT_KIND_NORM      ? gpt_norm_rows
                              : kind == GPT_KIND_DROPOUT ? gpt_dropout_rows
                                                         : gpt_activation_rows;
        const void* args = kind == GPT_KIND_NORM ? (const void*)&norm : &elements;
        if (kind == GPT_KIND_NORM_BACKWARD) continue;
        elements.kind = (gpt_kind)kind;
        memset(together, 0, sizeof together);
        memset(alone, 0, sizeof alone);
        norm.y = elements.y = together;
        norm.rstd = rstd[0];
        work(args, 3, 3 + N_ROWS);
        norm.y = elements.y = alone;
        norm.rstd = rstd[1];
        for (row = 3 + N_ROWS; row-- > 3;) work(args, row, row + 1);
        CHECK_CASE(!memcmp(together, alone, sizeof alone), "kind %d", kind);
        CHECK(kind != GPT_KIND_NORM || !memcmp(rstd[0], rstd[1], sizeof rstd[0]));
    }
}

/* The gradient is multiplied by scale. */
static void run_adamw(gpt_real* p, void* m, void* v, memo_type states, const gpt_real* g,
                      double scale, gpt_adamw_desc desc, gpt_rounding keys, int64_t n) {
    const gpt_update_values values = {desc, scale, 0};
    const double squares = 1;
    gpt_adamw_args args = {0};
    args.parameters = p;
    args.gradients = g;
    args.moments1 = m;
    args.moments2 = v;
    args.kept = args.summed = GPT_REAL_TYPE;
    args.states = states;
    args.rounding = keys;
    args.squares = &squares;
    args.values = &values;
    args.decays = 1;
    args.n = n;
    gpt_adamw(&args, 0, n);
}

static void check_adamw(memo_type states) {
    const gpt_adamw_desc desc = {0.01, 0.9, 0.99, 1e-8, 0.1, 3};
    const gpt_rounding first = {1, 0};
    const double unit = states == MEMO_TYPE_BF16 ? 1.0 / 128 : 1e-6; /* of rounding a moment */
    gpt_real moments[2], p = 2;
    const gpt_real g = -3;
    double em = 0.9 * 0.5 + 0.1 * (-3 * 0.5), ev = 0.99 * 0.25 + 0.01 * 2.25, expected;
    expected =
        2 - 0.01 * (em / (1 - pow(0.9, 3)) / (sqrt(ev / (1 - pow(0.99, 3))) + 1e-8) + 0.1 * 2);
    gpt_store(&moments[0], states, 0, (gpt_real)0.5);
    gpt_store(&moments[1], states, 0, (gpt_real)0.25);
    run_adamw(&p, &moments[0], &moments[1], states, &g, 0.5, desc, first, 1);
    CHECK_IS(fabs((double)gpt_load(&moments[0], states, 0) / em - 1), <, unit);
    CHECK_IS(fabs((double)gpt_load(&moments[1], states, 0) / ev - 1), <, unit);
    CHECK_IS(fabs((double)p - expected), <, 1e-6);
}
TEST(adamw_matches_its_paper) {
    check_adamw(GPT_REAL_TYPE);
    check_adamw(MEMO_TYPE_BF16);
}

/* Without gradients the second moment decays by beta2 an update, less than a bf16 can show.
 * Rounding to nearest would leave it at 1. */
TEST(moments_in_bf16_keep_their_mean) {
    enum { N = 1000, N_UPDATES = 1500, N_FIRST = 300 };
    gpt_real p[N], g[N];
    uint16_t m[N], v[N], parts[N];
    gpt_adamw_desc desc = {0.01, 0.9, 0.999, 1e-8, 0, 0};
    const gpt_rounding all = {memo_test_random(), 7}, rest = {all.seed, all.first + N_FIRST};
    const double expected = pow(desc.beta2, N_UPDATES);
    double mean = 0;
    for (int i = 0; i < N; i++) p[i] = g[i] = 0, m[i] = 0, v[i] = parts[i] = memo_bf16_from_f32(1);
    for (desc.update = 1; desc.update <= N_UPDATES; desc.update++) {
        run_adamw(p, m, v, MEMO_TYPE_BF16, g, 1, desc, all, N);
        run_adamw(p, m, parts, MEMO_TYPE_BF16, g, 1, desc, all, N_FIRST);
        run_adamw(p, m, parts + N_FIRST, MEMO_TYPE_BF16, g, 1, desc, rest, N - N_FIRST);
    }
    for (int i = 0; i < N; i++) mean += (double)memo_f32_from_bf16(v[i]) / N;
    CHECK_CASE(fabs(mean / expected - 1) < 0.02, "%g instead of %g", mean, expected);
    CHECK(!memcmp(v, parts, sizeof v));
    CHECK(v[0] != v[1] || v[1] != v[2] || v[2] != v[3]);

    /* Exact numbers and those that are not finite stay. */
    CHECK_IS(gpt_bf16_rounded(-1.5f, 0xffffu), ==, memo_bf16_from_f32(-1.5f));
    CHECK_IS(gpt_bf16_rounded(-INFINITY, 0xffffu), ==, memo_bf16_from_f32(-INFINITY));
    CHECK(gpt_bf16_rounded(NAN, 0xffffu) == memo_bf16_from_f32(NAN));
}

TEST(model_matches_the_plain_one) {
    check_against_plain(gpt_test_config(2, 32, 4, 4, 24, 1, 8, 0), MEMO_POLICY_KEEP, 0);
    check_against_plain(gpt_test_config(2, 32, 4, 2, 21, 2, 8, 0.2), MEMO_POLICY_KEEP, 0);
    check_against_plain(gpt_test_config(3, 48, 4, 1, 37, 1, 16, 0.1), MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(gpt_test_config(1, 24, 2, 1, GPT_ATTENTION_TILE * 2 + 5, 1, 32, 0.1),
                        MEMO_POLICY_SWAP, 0);
    /* Heads so large that a tile of the backward has 62 keys. */
    check_against_plain(gpt_test_config(1, 264, 1, 1, 70, 1, 16, 0), MEMO_POLICY_KEEP, 0);
    check_against_plain(gpt_test_config(4, 16, 1, 1, 5, 3, 64, 0.1), MEMO_POLICY_RECOMPUTE, 0);
    check_against_plain(mlp_in_chunks(gpt_test_config(3, 48, 4, 1, 37, 1, 4, 0.1), 9),
                        MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(with_swiglu(gpt_test_config(2, 32, 4, 2, 21, 2, 8, 0.2)), MEMO_POLICY_ALPHA,
                        0.5);
    check_against_plain(in_slices(gpt_test_config(3, 48, 4, 1, 37, 2, 4, 0.1), 24),
                        MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(gpt_test_config(1, 16, 2, 2, 1, 1, 1, 0), MEMO_POLICY_ALPHA, 0);
    /* The gradient of a tied table is added once, of all slices. */
    const gpt_config tied = with_tied_tables(gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2));
    check_against_plain(tied, MEMO_POLICY_KEEP, 0);
    check_against_plain(in_slices(tied, 12), MEMO_POLICY_ALPHA, 0.5);
    /* Windows shorter and longer than a tile of attention, documents, both. */
    check_against_plain(with_masks(gpt_test_config(1, 16, 2, 1, 150, 1, 16, 0), 1, 0),
                        MEMO_POLICY_KEEP, 0);
    check_against_plain(with_masks(gpt_test_config(1, 16, 2, 1, 211, 1, 16, 0), 70, 0),
                        MEMO_POLICY_KEEP, 0);
    check_against_plain(with_masks(gpt_test_config(2, 16, 2, 2, 133, 2, 16, 0.1), 0, 133),
                        MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(
        in_slices(with_masks(gpt_test_config(1, 16, 2, 1, 133, 2, 16, 0), 9, 133), 48),
        MEMO_POLICY_SWAP, 0);
}

/* The caller's mistake: the model remains. */
TEST(too_many_documents_are_refused) {
    const gpt_config config = with_masks(gpt_test_config(1, 16, 2, 1, 12, 2, 4, 0), 0, 2);
    const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    uint8_t text[25];
    own_run run;
    double loss = 0;
    memset(text, 'a', sizeof text);
    text[11] = text[23] = 'm'; /* the last of a sequence begins no document */
    text[15] = 'm';
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    CHECK_OK(gpt_micro_batch(run.model, text, text + 1, 0, 0, 1.0 / 24, &error));
    text[14] = 'm';
    CHECK_ERROR(gpt_micro_batch(run.model, text, text + 1, 0, 1, 1.0 / 24, &error),
                INVALID_ARGUMENT, "sequence 1 has 3 documents");
    CHECK_OK(gpt_test_discard(run.model, &loss, &error));
    CHECK_IS(fabs(loss - log(256)), <, 0.1);
}

/* ---- every policy, bit by bit ------------------------------------------------------------------
 */

enum { N_STEPS = 2, N_ACCUMULATED = GPT_TEST_ACCUMULATED };

typedef struct history {
    double loss[N_STEPS], gradient_norm[N_STEPS];
    uint64_t digests[N_STEPS]; /* of the gradients */
    gpt_real* gradients;       /* (N_STEPS, n) */
    gpt_real* parameters;      /* (n), at the end */
} history;

static memo_status train(gpt_model* model, const gpt_config* config, int64_t n_steps,
                         history* result) {
    const int64_t n = gpt_n_parameters(config);
    memo_status status = MEMO_STATUS_OK;
    for (int64_t step = 0; step < n_steps && !status; step++)
        status = gpt_test_step(model, config, step, N_ACCUMULATED, result->gradients + step * n,
                               &result->digests[step], &result->loss[step],
                               &result->gradient_norm[step], &error);
    return status ? status : gpt_get_parameters(model, result->parameters, &error);
}

static history history_make(const gpt_config* config) {
    const int64_t n = gpt_n_parameters(config);
    history result = {.gradients = (gpt_real*)allocate(N_STEPS * n, sizeof(gpt_real))};
    result.parameters = (gpt_real*)allocate(n, sizeof(gpt_real));
    return result;
}
static void history_free(history* result) {
    free(result->gradients);
    free(result->parameters);
}
#define own_history OWNED(history_free) history

/* A new model. */
static void train_anew(const gpt_desc* desc, int64_t n_steps, history* result) {
    own_run run;
    CHECK_OK(gpt_test_open(desc, &run, &error));
    if (run.model) CHECK_OK(train(run.model, &desc->config, n_steps, result));
}

/* N_STEPS with everything kept. */
static history train_kept(const gpt_config* config) {
    const gpt_desc desc = gpt_test_desc(*config, MEMO_POLICY_KEEP, 0);
    history result = history_make(config);
    train_anew(&desc, N_STEPS, &result);
    return result;
}

/* All but the gradients, whose digests have every bit; n_bytes of parameters. */
static void check_equal(const history* result, const history* expected, int64_t n_bytes) {
    CHECK(!memcmp(result->loss, expected->loss, sizeof result->loss));
    CHECK(!memcmp(result->gradient_norm, expected->gradient_norm, sizeof result->gradient_norm));
    CHECK(!memcmp(result->digests, expected->digests, sizeof result->digests));
    CHECK(!memcmp(result->parameters, expected->parameters, (size_t)n_bytes));
}

static void check_rows(const gpt_desc* desc, const history* expected) {
    const int64_t n_bytes = gpt_n_parameters(&desc->config) * (int64_t)sizeof(gpt_real);
    own_history result = history_make(&desc->config);
    train_anew(desc, N_STEPS, &result);
    check_equal(&result, expected, n_bytes);
    CHECK(!memcmp(result.gradients, expected->gradients, (size_t)(N_STEPS * n_bytes)));
}

static void check_policies(gpt_config config) {
    static const struct {
        memo_policy policy;
        double alpha;
    } cases[7] = {{MEMO_POLICY_RECOMPUTE, 0}, {MEMO_POLICY_SWAP, 0},     {MEMO_POLICY_ALPHA, 0},
                  {MEMO_POLICY_ALPHA, 0.125}, {MEMO_POLICY_ALPHA, 0.25}, {MEMO_POLICY_ALPHA, 0.5},
                  {MEMO_POLICY_ALPHA, 1}};
    own_history expected = train_kept(&config);
    CHECK(expected.loss[0] > 1 && expected.gradient_norm[0] > 0);
    for (int i = 0; i < 7; i++) {
        const gpt_desc desc = gpt_test_desc(config, cases[i].policy, cases[i].alpha);
        IN_CASE("policy %d, alpha %g, %d layers", (int)cases[i].policy, cases[i].alpha,
                config.n_layers);
        gpt_helpers_begin(1 + i % 3); /* nor does the number of threads change a bit */
        check_rows(&desc, &expected);
        gpt_helpers_end();
    }
}

/* The definition in gpt.h, word by word; a digest differs if any bit does. */
static uint64_t plain_digest(const gpt_real* x, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n * (int64_t)sizeof *x / 4; i++) {
        uint32_t word;
        memcpy(&word, (const char*)x + 4 * i, sizeof word);
        sum += gpt_mix(word + gpt_mix((uint64_t)i));
    }
    return sum;
}
TEST(a_digest_has_every_bit) {
    const gpt_config config = gpt_test_config(2, 16, 2, 1, 20, 1, 4, 0.1);
    const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    const int64_t n = gpt_n_parameters(&config);
    own_history result = history_make(&config);
    train_anew(&desc, 1, &result);
    CHECK(result.digests[0] != 0 && result.digests[0] == plain_digest(result.gradients, n));
    for (int trial = 0; trial < 100; trial++) {
        unsigned char* byte =
            (unsigned char*)result.gradients + memo_test_int(0, n * (int64_t)sizeof(gpt_real) - 1);
        const unsigned char bit = (unsigned char)(1 << memo_test_int(0, 7));
        *byte ^= bit;
        CHECK(plain_digest(result.gradients, n) != result.digests[0]);
        *byte ^= bit;
    }
}

/* The last slice is short, and one crosses from a sequence to the next.  Losses are those of all
 * rows at once, bit by bit; gradients up to rounding. */
TEST(policies_give_the_same_bits_in_slices) {
    gpt_config config = gpt_test_config(3, 32, 4, 2, 83, 2, 8, 0.1);
    const int64_t n = gpt_n_parameters(&config);
    own_history at_once = history_make(&config), sliced = history_make(&config);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    double largest = 0;
    train_anew(&desc, 1, &at_once);
    config.slice_rows = desc.config.slice_rows = 40;
    CHECK_IS(gpt_n_slices(&config), ==, 5);
    train_anew(&desc, 1, &sliced);
    CHECK_IS(sliced.loss[0], ==, at_once.loss[0]);
    for (int64_t i = 0; i < n; i++)
        largest =
            memo_test_worst(largest, fabs((double)(at_once.gradients[i] - sliced.gradients[i])));
    CHECK_IS(largest, <, 1e-6 * at_once.gradient_norm[0]);
    check_policies(config);
}
/* Products large enough for a BLAS library to use its threads; under instruments there is none, and
 * everything is slow. */
#if defined(MEMO_TEST_VALGRIND) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define WIDE     32
#define N_TABLES (memo_test_all() ? 5 : 3)
#else
#define WIDE     128
#define N_TABLES (memo_test_all() ? 12 : 4)
#endif

/* 1, 2 and 5 layers, rows of a size that no alignment divides, large tiles. */
TEST(policies_give_the_same_bits) {
    check_policies(gpt_test_config(1, 32, 4, 2, 50, 1, 8, 0.1));
    if (memo_test_all()) check_policies(gpt_test_config(2, 32, 4, 2, 35, 2, 8, 0.1));
    check_policies(with_masks(gpt_test_config(5, 32, 4, 2, 50, 1, 8, 0.1), 20, 50));
    check_policies(gpt_test_config(4, 18, 3, 1, 29, 1, 3, 0.1));
    if (memo_test_all()) check_policies(gpt_test_config(3, WIDE, 4, 2, 100, 1, 64, 0.1));
}

/* ---- any table of rows, bit by bit ----------------------------------------------------------- */

/* The rows of n_swapped tiles: the first ones in even steps, the last ones in odd steps. */
static int64_t rows_of_tiles(const gpt_config* config, int64_t step, int64_t n_swapped) {
    const int64_t n = gpt_slice_rows(config), n_tiles = (n - 1) / config->tile_rows + 1;
    const int64_t border =
        gpt_min((step % 2 ? n_tiles - n_swapped : n_swapped) * config->tile_rows, n);
    return step % 2 ? n - border : border;
}

/* Random rows for each tensor of each step, a slice of a layer, or equal steps; whole tensors are
 * frequent. */
static int64_t* random_rows(const gpt_config* config) {
    const int32_t n_tensors = gpt_n_tensors(config);
    const int64_t n_tiles = (gpt_slice_rows(config) - 1) / config->tile_rows + 1;
    const int64_t n_slices = gpt_n_slices(config), n_steps = config->n_layers * n_slices;
    const int is_alike = memo_test_int(0, 2) == 0;
    int64_t* rows = gpt_test_table();
    memo_item tensors[GPT_N_TENSORS];
    gpt_fill_tensors(config, tensors);
    for (int t = 0; t < n_tensors; t++) {
        int64_t tiles = 0; /* swapped; -1: all are kept */
        for (int64_t step = 0; step < n_steps; step++) {
            const int is_in_layer = tensors[t].scope == MEMO_LAYER && step % n_slices > 0;
            if (step == 0 || (!is_alike && !is_in_layer)) {
                tiles = memo_test_int(0, n_tiles);
                if (tensors[t].away == MEMO_WHOLE || memo_test_int(0, 2) == 0)
                    tiles = memo_test_int(0, 1) * n_tiles;
                if (gpt_is_lost(config, tensors, t)) tiles = n_tiles;
                if (memo_test_int(0, 2) == 0) tiles = -1;
            }
            rows[step * n_tensors + t] =
                tiles < 0 ? MEMO_ROWS_KEPT : rows_of_tiles(config, step, tiles);
        }
    }
    for (int64_t step = 0; step < n_steps; step++)
        for (int t = 0; t < n_tensors; t++)
            rows[step * n_tensors + t] = rows[step * n_tensors + item_leader(tensors, t)];
    return rows;
}

static void check_tables(gpt_config config, int n_tables) {
    own_history expected = train_kept(&config);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    for (; n_tables > 0; n_tables--) {
        IN_CASE("table %d of %d layers", n_tables, config.n_layers);
        desc.rows = random_rows(&config);
        check_rows(&desc, &expected);
    }
}

TEST(tables_of_rows_give_the_same_bits) {
    for (int trial = 0; trial < N_TABLES; trial++)
        check_tables(gpt_test_config((int32_t)memo_test_int(1, 6),
                                     16 * (int32_t)memo_test_int(1, 2), 4, trial % 2 ? 4 : 2,
                                     memo_test_int(1, 40), memo_test_int(1, 2),
                                     memo_test_int(1, 12), 0.1),
                     6);
    check_tables(gpt_test_config(4, WIDE, 4, 2, 100, 1, 64, 0.1), memo_test_all() ? 4 : 1);
}

TEST(policies_give_the_same_bits_with_swiglu) {
    check_policies(with_swiglu(gpt_test_config(3, 32, 4, 2, 50, 1, 8, 0.1)));
    check_tables(with_swiglu(gpt_test_config(4, 18, 3, 1, 29, 2, 3, 0.1)), N_TABLES);
    check_policies(with_swiglu(mlp_in_chunks(gpt_test_config(2, 32, 4, 2, 35, 2, 8, 0.1), 8)));
}

/* Everything that published models have beside. */
TEST(policies_give_the_same_bits_with_biases_norms_of_heads_and_a_tied_table) {
    const gpt_config config = with_tied_tables(with_biases(
        with_head_norms(with_rope(gpt_test_config(3, 18, 3, 1, 29, 2, 3, 0.1), GPT_ROPE_LLAMA3))));
    check_policies(with_head_size(config, 10));
    check_tables(with_head_size(config, 4), N_TABLES);
    check_policies(in_slices(config, 24));
}

/* ---- rows at a time -------------------------------------------------------------------------- */

TEST(chunks_of_the_mlp_give_the_same_bits) {
    check_policies(mlp_in_chunks(gpt_test_config(3, 32, 4, 2, 50, 1, 8, 0.1), 20));
    check_tables(mlp_in_chunks(gpt_test_config(4, 18, 3, 1, 29, 2, 3, 0.1), 5), N_TABLES);
}

/* If its chunks are those of the other backward, an MLP in chunks has the bits of one whose tensors
 * are kept. */
TEST(an_mlp_in_chunks_is_the_same_mlp) {
    const gpt_config config = gpt_test_config(3, 32, 4, 2, 50, 1, 8, 0.1);
    const gpt_desc in_chunks =
        gpt_test_desc(mlp_in_chunks(config, gpt_chunk_rows(&config)), MEMO_POLICY_RECOMPUTE, 0);
    own_history expected = train_kept(&config);
    check_rows(&in_chunks, &expected);
}

/* Of the arena in a dry run. */
typedef struct arena_bytes {
    int64_t peak, largest, live; /* largest request, and most live bytes, of a micro-batch's own */
} arena_bytes;
static arena_bytes arena_bytes_of(gpt_config config, memo_policy policy) {
    const gpt_desc desc = gpt_test_desc(config, policy, 0);
    arena_bytes bytes = {0, 0, 0};
    int64_t k, live;
    own_run run = {0};
    CHECK_OK(gpt_test_plan(&desc, &run, &error));
    if (run.plan) bytes.peak = run.plan->peak_bytes;
    for (int64_t i = 0; run.plan && i < run.plan->n_buffers; i++) {
        const memo_buffer* a = &run.plan->buffers[i];
        if (a->memory_class != MEMO_CLASS_TRANSIENT) continue;
        if (a->size_bytes > bytes.largest) bytes.largest = a->size_bytes;
        for (live = k = 0; k < run.plan->n_buffers; k++) {
            const memo_buffer* b = &run.plan->buffers[k];
            if (b->memory_class == MEMO_CLASS_TRANSIENT && b->begin <= a->begin &&
                a->begin < b->end)
                live += b->size_bytes;
        }
        if (live > bytes.live) bytes.live = live;
    }
    return bytes;
}

/* Of a large vocabulary in a large tile, one row of logits exists at a time here, beside three of the
 * stream and a sum. */
TEST(logits_never_exist_as_a_whole) {
    gpt_config config = gpt_test_config(1, 16, 2, 2, 128, 1, 128, 0);
    config.vocabulary = 50304;
    CHECK_IS(gpt_loss_rows(&config), ==, 1);
    const int64_t real = (int64_t)sizeof(gpt_real);
    CHECK_IS(arena_bytes_of(config, MEMO_POLICY_KEEP).largest, ==,
             (config.vocabulary + 3 * config.hidden) * real + GPT_WORK_UNIT);
    config.vocabulary = 0;
    CHECK_IS(gpt_loss_rows(&config), ==, GPT_LOGITS_BYTES / 256 / (int64_t)sizeof(gpt_real));
    config.tile_rows = 3; /* of whole tiles */
    CHECK_IS(gpt_loss_rows(&config) % 3, ==, 0);
}

/* The MLP's tensors have 9 hidden columns and rstd; of the others only the chunk's scratch is wide.
 * Attention's gradient, and a sum for each head, take more than a chunk. */
TEST(an_mlp_in_chunks_takes_the_memory_of_a_chunk) {
    const gpt_config config = gpt_test_config(2, 64, 4, 4, 4096, 1, 64, 0);
    const int64_t row = (9 * config.hidden + 1) * (int64_t)sizeof(gpt_real);
    const arena_bytes whole = arena_bytes_of(config, MEMO_POLICY_RECOMPUTE);
    const arena_bytes in_chunks = arena_bytes_of(mlp_in_chunks(config, 128), MEMO_POLICY_RECOMPUTE);
    CHECK_IS(in_chunks.peak, <=, whole.peak - config.sequence * row + 128 * 2 * row);
    CHECK_IS(in_chunks.largest, ==,
             config.sequence * (config.hidden + config.n_heads) * (int64_t)sizeof(gpt_real));
}

/* One gradient of attention, a sum for each head, and a chunk.  Tensor ranks have two of their own
 * heads. */
TEST(attention_s_backward_takes_one_tensor) {
    static const int32_t ranks[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 2}};
    for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
        gpt_config config = mlp_in_chunks(gpt_test_config(2, 64, 4, 4, 4096, 1, 64, 0),
                                          128); /* tokens of 8 bytes */
        const int64_t real = (int64_t)sizeof(gpt_real), n = ranks[k][2] > 1 ? 2 : 1;
        const int64_t chunk = 128 * (12 * config.hidden + 1) * real;
        config.ring = ranks[k][0];
        config.ulysses = ranks[k][1];
        config.tensor = ranks[k][2];
        int64_t n_rows = gpt_n_rows(&config);
        int64_t live = arena_bytes_of(config, MEMO_POLICY_RECOMPUTE).live;
        CHECK_IS(live, >=, n * n_rows * config.hidden * real);
        CHECK_IS(live, <=,
                 n * n_rows * config.hidden * real + n_rows * (config.n_heads * real + 8) + chunk);
    }
}

/* ---- activations and weights in bf16 --------------------------------------------------------- */

static gpt_config bf16_config(gpt_config config) {
    config.type = MEMO_TYPE_BF16;
    return config;
}

TEST(policies_give_the_same_bits_in_bf16) {
    check_policies(bf16_config(gpt_test_config(3, 32, 4, 2, 50, 1, 8, 0.1)));
    check_policies(bf16_config(gpt_test_config(4, 18, 3, 1, 29, 2, 3, 0.1)));
    check_policies(bf16_config(with_swiglu(gpt_test_config(2, 32, 4, 2, 50, 1, 64, 0.1))));
    check_policies(
        bf16_config(in_slices(mlp_in_chunks(gpt_test_config(3, 32, 4, 2, 50, 1, 8, 0.1), 8), 24)));
    check_tables(bf16_config(in_slices(gpt_test_config(4, 32, 4, 2, 33, 1, 7, 0.1), 14)), N_TABLES);
    check_policies(bf16_config(with_tied_tables(with_biases(
        with_head_norms(with_head_size(gpt_test_config(2, 18, 3, 1, 29, 2, 3, 0.1), 4))))));
}

/* The moments take half the memory, with activations of either type; they change the next steps. */
TEST(policies_give_the_same_bits_with_states_in_bf16) {
    gpt_config config = gpt_test_config(3, 32, 4, 2, 50, 1, 8, 0.1), plain = config;
    const int64_t n = gpt_n_parameters(&config);
    config.states = MEMO_TYPE_BF16;
    CHECK_IS(arena_bytes_of(plain, MEMO_POLICY_KEEP).peak -
                 arena_bytes_of(config, MEMO_POLICY_KEEP).peak,
             >=, 2 * n * ((int64_t)sizeof(gpt_real) - 2) - 1024);
    check_policies(config);
    config = bf16_config(config);
    check_policies(config);
}

/* Losses and gradients differ, and little.  Of the first step only: Adam divides by the gradient's
 * size, and small ones are noise. */
static void check_near(gpt_config config, gpt_config other, memo_policy policy, double loss_bound,
                       double gradient_bound) {
    const gpt_desc descs[2] = {gpt_test_desc(config, policy, 0), gpt_test_desc(other, policy, 0)};
    own_history a = history_make(&config), b = history_make(&other);
    train_anew(&descs[0], 1, &a);
    train_anew(&descs[1], 1, &b);
    CHECK_IS(a.loss[0], !=, b.loss[0]);
    CHECK_IS(fabs(a.loss[0] / b.loss[0] - 1), <, loss_bound);
    CHECK_IS(gpt_test_distance(a.gradients, b.gradients, gpt_n_parameters(&config)), <,
             gradient_bound);
}

/* The distance of a bf16 number to the exact one, in units of its last place. */
static double distance_in_units(uint16_t bits, double exact) {
    const double value = (double)memo_f32_from_bf16(bits);
    return fabs(value - exact) / ldexp(1, ilogb(exact) - 7);
}

/* Sums are float: a result of 200 products is half a unit from the exact one, not 200 times
 * that. */
TEST(an_operation_is_rounded_once) {
    enum { N = 9, K = 200, M = 11 };
    const gpt_config config = bf16_config(gpt_test_config(1, 64, 2, 2, 64, 1, 8, 0));
    const gpt_shapes shapes = gpt_shapes_make(&config);
    const uint64_t key = memo_test_random();
    uint16_t x[N * K], w[M * K], y[N * M];
    own_run run = {.host = new_device(MEMO_ZERO(memo_host_device_desc))};
    if (!run.host) return;
    run.kernels = gpt_kernels_host(&run.host_kernels, run.host);
    own_memory void* scratch = allocate(run.kernels.scratch_bytes(run.kernels.context, &shapes), 1);
    memo_stream stream = new_stream(run.host, "compute");
    CHECK_OK(run.kernels.prepare(run.kernels.context, &shapes, stream, scratch, &error));
    for (int i = 0; i < N * K; i++) x[i] = memo_bf16_from_f32((float)gpt_normal(key, (uint64_t)i));
    for (int i = 0; i < M * K; i++)
        w[i] = memo_bf16_from_f32((float)gpt_normal(key + 1, (uint64_t)i));
    gpt_op op = gpt_op_make("linear", GPT_KIND_LINEAR);
    gpt_linear_args* a = &op.args.linear;
    gpt_use(&op, GPT_WRITTEN, &a->y, y, MEMO_TYPE_BF16, N * M);
    gpt_use(&op, GPT_READ, &a->x, x, MEMO_TYPE_BF16, N * K);
    gpt_use(&op, GPT_READ, &a->weight, w, MEMO_TYPE_BF16, M * K);
    a->rows = gpt_rows_make(3, 3 + N);
    a->tile_rows = 8;
    a->n_outputs = M;
    a->n_inputs = K;
    a->scale = 1;
    CHECK_OK(run.kernels.enqueue(run.kernels.context, stream, &op, &error));
    CHECK_OK(memo_stream_synchronize(run.host, stream, &error));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++) {
            double exact = 0;
            for (int k = 0; k < K; k++)
                exact += (double)memo_f32_from_bf16(x[i * K + k]) *
                         (double)memo_f32_from_bf16(w[j * K + k]);
            CHECK_CASE(distance_in_units(y[i * M + j], exact) < 0.51, "(%d, %d): %g for %g", i, j,
                       (double)memo_f32_from_bf16(y[i * M + j]), exact);
        }
    CHECK_OK(memo_stream_destroy(run.host, stream, &error));
}

TEST(sums_stay_float_in_bf16) {
    own_run run = {.host = new_device(MEMO_ZERO(memo_host_device_desc))};
    if (!run.host) return;
    run.kernels = gpt_kernels_host(&run.host_kernels, run.host);
    gpt_test_check_sums(run.host, &run.kernels);
}

/* As far from float as the rounding of activations and weights explains. */
TEST(bf16_is_close_to_float) {
    const gpt_config config = gpt_test_config(3, 64, 4, 2, 50, 2, 16, 0.1);
    check_near(bf16_config(config), config, MEMO_POLICY_SWAP, 1e-3, 2e-2);
}

/* Each policy below the one before; the sizes promised are the sizes used. */
TEST(policies_save_memory) {
    const gpt_config config = gpt_test_config(6, 64, 4, 4, 256, 1, 16, 0);
    const int64_t peaks[] = {gpt_test_peak(config, MEMO_POLICY_KEEP, 0),
                             gpt_test_peak(config, MEMO_POLICY_SWAP, 0),
                             gpt_test_peak(config, MEMO_POLICY_ALPHA, 0.25),
                             gpt_test_peak(config, MEMO_POLICY_ALPHA, 0)};
    for (int i = 1; i < 4; i++) CHECK_IS(peaks[i], <, peaks[i - 1]);
}

/* What the copies of a stream move. */
static int64_t moved_bytes(const memo_schedule* s, const char* stream) {
    int64_t n_bytes = 0;
    for (int64_t i = 0; i < s->n_ops; i++)
        if (s->ops[i].kind == MEMO_OP_RUN &&
            !strcmp(s->text + s->streams[s->ops[i].stream], stream))
            n_bytes += s->ops[i].link_bytes;
    return n_bytes;
}

/* The engine of the model's session moves what memo_swap_generate says of the same table; the
 * order of its operations is test_swap's.  Returns these bytes. */
static int64_t check_moves(const gpt_desc* desc, const memo_schedule* recorded,
                           int32_t n_micro_batches) {
    static const char* const streams[] = {"to host", "to device"};
    memo_item tensors[GPT_N_TENSORS];
    const memo_swap_desc swap = gpt_swap_desc(desc, tensors);
    int64_t n_bytes = 0;
    const memo_swap_plan_desc step = {.swap = &swap, .micro_batches = n_micro_batches};
    own_schedule* promised = schedule_of_swap(&step, 1);
    for (int i = 0; i < 2 && promised; i++) {
        CHECK_IS(moved_bytes(recorded, streams[i]), ==, moved_bytes(promised, streams[i]));
        n_bytes += moved_bytes(promised, streams[i]);
    }
    return n_bytes;
}

/* Every byte range that operations announce, and the engine's copies between them: no race. */
TEST(recorded_steps_have_no_race) {
    int64_t n_conflicts = 0, n_moved = 0;
    for (int trial = 0; trial < 24; trial++) {
        const gpt_config whole =
            gpt_test_config((int32_t)memo_test_int(1, 6), 16, 2, 1, memo_test_int(3, 40),
                            memo_test_int(1, 2), memo_test_int(1, 9), 0.1);
        const int64_t n_rows = whole.sequence * whole.batch;
        gpt_config config = in_slices(
            whole, gpt_round_up(n_rows / (trial % 3 ? memo_test_int(2, 4) : 1), whole.tile_rows));
        if (trial % 3 == 1) config = with_tied_tables(with_biases(config));
        if (trial % 5 == 1) config = with_head_norms(with_head_size(config, 4));
        gpt_desc desc = gpt_test_desc(config, (memo_policy)(trial / 2 % 4), memo_test_real());
        if (trial % 2) desc.rows = random_rows(&config);
        gpt_test_run run = {0};
        CHECK_OK(gpt_test_plan(&desc, &run, &error));
        run.host = new_device(MEMO_ZERO(memo_host_device_desc));
        memo_recorder* recorder = new_recorder((memo_recorder_desc){.device = run.host});
        gpt_test_attach(&run, &desc);
        desc.device = memo_recorder_get_device(recorder);
        memo_recorder_pause(recorder); /* states are zero at first */
        CHECK_OK(gpt_create(&desc, &run.model, &error));
        memo_recorder_resume(recorder);
        for (int i = 0; i < 4 && run.model; i++) {
            CHECK_OK(gpt_micro_batch(run.model, gpt_test_text(), gpt_test_text() + 1, i / 2, i % 2,
                                     0.5 / (double)n_rows, &error));
            if (i % 2) CHECK_OK(gpt_test_discard(run.model, NULL, &error));
        }
        memo_schedule* schedule = recorded(recorder);
        own_check* check = check_of(schedule);
        if (check) {
            n_conflicts += check->n_conflicts;
            CHECK_IS(check->n_unrecorded_waits, ==, 0);
            CHECK_CASE(check->n_races == 0, "%lld races, trial %d; the first between %s and %s",
                       (long long)check->n_races, trial,
                       memo_schedule_op_name(schedule, check->races[0].first),
                       memo_schedule_op_name(schedule, check->races[0].second));
        }
        if (schedule) n_moved += check_moves(&desc, schedule, 4);
        gpt_destroy(run.model);
        run.model = NULL;
        memo_recorder_destroy(recorder);
        gpt_test_close(&run);
    }
    CHECK(n_conflicts > 0 && n_moved > 0); /* there was something to order */
}

/* ---- rows of the model's own choice ---------------------------------------------------------- */

/* A session in a device that is too small times its first steps, plans by their times, and gives the
 * same numbers, under both plans. */
TEST(a_model_chooses_its_rows) {
    const gpt_config config = gpt_test_config(6, 32, 4, 2, 100, 1, 8, 0.1);
    own_history expected = train_kept(&config), result = history_make(&config);
    own_history timed = history_make(&config);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    memo_session_desc budgets = {0};
    memo_session_info info;
    memo_profile profile;
    memo_item tensors[GPT_N_TENSORS];
    gpt_fill_tensors(&config, tensors);
    budgets.device_bytes = gpt_test_peak(config, MEMO_POLICY_KEEP, 0) * 3 / 4;
    budgets.timed_steps = N_STEPS;
    budgets.update_may = MEMO_MAY_DEFER;
    own_run run = {
        .host = new_device((memo_host_device_desc){.device_memory_bytes = budgets.device_bytes})};
    gpt_test_attach(&run, &desc);
    desc.session = &budgets;
    CHECK_OK(gpt_create(&desc, &run.model, &error));
    if (run.model) {
        info = memo_session_get_info(gpt_session(run.model));
        CHECK(!info.plan->times);
        CHECK_OK(train(run.model, &config, N_STEPS, &timed));
        CHECK(!memcmp(timed.loss, expected.loss, sizeof timed.loss));
        CHECK_OK(gpt_restart(run.model, &error));
        CHECK_OK(train(run.model, &config, N_STEPS, &result));
        info = memo_session_get_info(gpt_session(run.model));
        CHECK(info.plan->times && info.plan->times->step_s > 0);
        CHECK(!memcmp(result.loss, expected.loss, sizeof result.loss));
        CHECK(!memcmp(result.parameters, expected.parameters,
                      (size_t)gpt_n_parameters(&config) * sizeof(gpt_real)));
        CHECK_OK(memo_session_get_profile(gpt_session(run.model), 0, &profile, &error));
        CHECK(profile.forward_s[0] > 0);
        for (int t = 0; t < GPT_N_TENSORS; t++)
            if (!gpt_is_lost(&config, tensors, t) && tensors[t].away != MEMO_WITH &&
                tensors[t].row_bytes)
                CHECK_IS(profile.tensors[t].recompute_s_per_row[0] + profile.recompute_call_s, >,
                         0);
    }
}

/* ---- states that leave the device ------------------------------------------------------------- */

/* An update on the host that ends when the next step has long begun. */
static void update_late(const void* args) {
    const struct timespec ms = {0, 1000000};
    nanosleep(&ms, NULL);
    gpt_adamw_run(args);
}

/* Losses, norms, gradients, parameters and moments have the bits of a run with all states on the
 * device, in devices of exactly the planned capacity, down to the least that a plan needs, updated
 * on the device or on the host. */
TEST(any_budget_gives_the_same_bits) {
    int64_t n_streamed = 0, n_on_host = 0;
    for (int trial = 0; trial < (memo_test_all() ? 12 : 7); trial++) {
        gpt_config config = gpt_test_config((int32_t)memo_test_int(1, 5), 16, 2, 1,
                                            memo_test_int(3, 40), 1, 8, 0.1);
        if (trial % 4 > 1) config = bf16_config(config);
        if (trial % 3 == 0) config.states = MEMO_TYPE_BF16;
        if (trial % 5 == 0) config.slice_rows = 8;
        if (trial % 3 == 1) config = with_tied_tables(config); /* not updated on the host */
        if (trial % 3 == 2) config = with_head_norms(with_biases(with_head_size(config, 6)));
        gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
        const int64_t n = gpt_n_parameters(&config), all = gpt_test_peak(config, 0, 0);
        memo_session_desc budgets = {0};
        own_history expected = train_kept(&config), result = history_make(&config);
        own_memory char* moments = (char*)allocate(4 * n, sizeof(gpt_real));
        own_run kept, run = {0};
        double losses[2][4] = {{0}};
        CHECK_OK(gpt_test_open(&desc, &kept, &error));
        CHECK_OK(train(kept.model, &config, N_STEPS, &expected));

        desc.session = &budgets;
        gpt_test_attach(&run, &desc);
        run.kernels.update_on_host = update_late;
        if (config.n_layers > 1) budgets.update_on = (memo_update)(trial % 3);
        budgets.device_bytes = gpt_test_least(desc);
        if (trial % 2) budgets.device_bytes = memo_test_int(budgets.device_bytes, all);
        CHECK_OK(gpt_plan(&desc, NULL, &run.step, &error));
        if (!run.step) continue;
        memo_host_device_desc host = {.device_memory_bytes = run.step->device_bytes};
        host.host_memory_bytes =
            run.step->host_bytes + gpt_staging_bytes(&config, desc.n_micro_batches);
        n_streamed += run.step->n_streamed > 0;
        n_on_host += run.step->update_is_on_host;
        desc.plan = run.step;
        CHECK_OK(memo_host_device_create(&host, &run.host, &error));
        gpt_test_attach(&run, &desc);
        run.kernels.update_on_host = update_late;
        CHECK_OK(gpt_create(&desc, &run.model, &error));
        if (!run.model || !kept.model) continue;
        CHECK_OK(train(run.model, &config, N_STEPS, &result));
        IN_CASE("trial %d: %lld of %lld bytes, %d streamed", trial, (long long)budgets.device_bytes,
                (long long)all, (int)run.step->n_streamed);
        check_equal(&result, &expected, gpt_n_bytes(run.model, n));
        for (int k = 0; k < 8; k++) { /* nothing waits between these steps */
            gpt_model* model = k % 2 ? run.model : kept.model;
            CHECK_OK(gpt_test_step(model, &config, k / 2 % N_STEPS, N_ACCUMULATED, NULL, NULL,
                                   &losses[k % 2][k / 2], NULL, &error));
        }
        CHECK(!memcmp(losses[0], losses[1], sizeof losses[0])); /* of later steps */
        for (int array = GPT_MOMENTS1; array <= GPT_MOMENTS2; array++) {
            const int64_t n_bytes = gpt_array_bytes(run.model, array, n);
            gpt_copy_array(run.model, 0, array, gpt_rows_make(0, n), moments);
            gpt_copy_array(kept.model, 0, array, gpt_rows_make(0, n), moments + n_bytes);
            CHECK(!run.model->status && !memcmp(moments, moments + n_bytes, (size_t)n_bytes));
        }
    }
    CHECK_IS(n_streamed, >, 6);
    CHECK_IS(n_on_host, >, 2);
}

/* ---- failures -----------------------------------------------------------------------------------
 */

/* If any call fails: a status with a message, nothing leaked, and an existing model still works. */
TEST(any_failing_call_is_reported) {
    const gpt_config config = gpt_test_config(4, 16, 2, 1, 20, 1, 4, 0.1);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_ALPHA, 0.5);
    const int64_t n = gpt_n_parameters(&config);
    const uint8_t* text = gpt_test_text();
    own_history expected = history_make(&config), result = history_make(&config);
    own_memory gpt_real* start = (gpt_real*)allocate(n, sizeof(gpt_real));
    memo_faults faults;
    int64_t failing, n_recovered = 0;
    int is_done = 0;
    own_run run = {0};
    CHECK_OK(gpt_test_plan(&desc, &run, &error));
    run.host = new_device(MEMO_ZERO(memo_host_device_desc));
    if (!run.host || !run.plan) return;
    gpt_test_attach(&run, &desc);
    CHECK_OK(gpt_create(&desc, &run.model, &error));
    if (run.model) {
        CHECK_OK(gpt_get_parameters(run.model, start, &error));
        CHECK_OK(train(run.model, &config, 1, &expected));
    }
    gpt_destroy(run.model);
    run.model = NULL;

    desc.device = &faults.device;
    /* Each call, or a sample of the calls. */
    for (failing = 1; !is_done; failing += memo_test_all() ? 1 : memo_test_int(1, 36)) {
        gpt_model* model = NULL;
        memo_faults_init(&faults, run.host);
        faults.failing_call = failing;
        memset(&error, 0, sizeof error);
        memo_status status = gpt_create(&desc, &model, &error);
        if (status) CHECK(!model);
        if (!status) status = train(model, &config, 1, &result);
        is_done = faults.n_calls < failing;
        CHECK_CASE(is_done ? !status : status && error.message[0], "call %lld, %s",
                   (long long)failing, is_done ? "none" : faults.failed);
        if (model && status && failing % (memo_test_all() ? 7 : 3) == 0) {
            /* The step is lost, the model is not: from the same start it gives the same numbers. */
            double loss = 0;
            CHECK_OK(gpt_test_discard(model, NULL, &error));
            CHECK_OK(gpt_set_parameters(model, start, &error));
            for (int64_t i = 0; i < N_ACCUMULATED; i++)
                CHECK_OK(gpt_micro_batch(model, text + i * 20, text + i * 20 + 1, 0, i,
                                         1.0 / (N_ACCUMULATED * 20), &error));
            CHECK_OK(gpt_get_gradients(model, result.gradients, &error));
            CHECK_OK(gpt_test_discard(model, &loss, &error));
            CHECK_CASE(loss == expected.loss[0] && !memcmp(result.gradients, expected.gradients,
                                                           (size_t)n * sizeof(gpt_real)),
                       "after call %lld", (long long)failing);
            n_recovered++;
        }
        gpt_destroy(model);
        CHECK_IS(host_device_stats(run.host).device_bytes, ==, 0);
        CHECK_IS(host_device_stats(run.host).host_bytes, ==, 0);
        if (failing > 10000) break;
    }
    CHECK(is_done && failing > 100 && n_recovered > 5);
    CHECK(!memcmp(result.parameters, expected.parameters, (size_t)n * sizeof(gpt_real)));
}

TEST(impossible_configurations_are_refused) {
    const gpt_config good = gpt_test_config(2, 32, 4, 2, 16, 1, 8, 0.1);
    gpt_desc cases[22];
    for (int i = 0; i < 22; i++) cases[i] = gpt_test_desc(good, MEMO_POLICY_SWAP, 0);
    cases[0].config.hidden = 30;
    cases[1].config.n_kv_heads = 3;
    cases[2].config.hidden = 36; /* heads of an odd size */
    cases[3].config.dropout = 1;
    cases[4].config.sequence = 0;
    cases[5].config.n_layers = 0;
    cases[6].config.tile_rows = -1;
    cases[7].config.batch = -1;
    cases[8].config.sequence = (int64_t)1 << 50;
    cases[9].config.mlp_rows = -8;
    cases[10].config.states = MEMO_TYPE_I32;
    cases[11].config.window = -1;
    cases[12].config.documents = -1;
    cases[13].config.head_size = 5;
    cases[14].config.norm_epsilon = -1;
    cases[15].config.rope.kind = GPT_ROPE_LINEAR; /* without a factor */
    cases[16].config = with_rope(good, GPT_ROPE_LLAMA3);
    cases[16].config.rope.high_factor = cases[16].config.rope.low_factor;
    cases[17].config.rope.theta = memo_test_nan();
    cases[18].config = with_experts(good, 4, 0, 1);
    cases[19].config = with_experts(good, 4, 5, 1);
    cases[20].config = with_experts(good, -1, 1, 1);
    cases[21].config = with_experts(good, 4096, 4096, 1);
    cases[21].config.mlp_columns = 1048576; /* a row has more than 2^30 */
    for (int i = 0; i < 22; i++) {
        gpt_model* model = NULL;
        memo_swap_sizes sizes;
        memset(&error, 0, sizeof error);
        CHECK_CASE(gpt_create(&cases[i], &model, &error) == MEMO_STATUS_INVALID_ARGUMENT &&
                       error.message[0] && !model,
                   "case %d", i);
        CHECK_IS(gpt_swap_sizes(&cases[i], &sizes, NULL), ==, MEMO_STATUS_INVALID_ARGUMENT);
    }
}

/* The session chooses slices if all rows at once do not fit: the plan is that of these slices, given
 * by hand; twice as large do not fit, and fewer are not tried. */
TEST(a_plan_takes_the_largest_slices_that_fit) {
    const gpt_config config = gpt_test_config(2, 16, 2, 1, 8192, 1, 128, 0);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    memo_step_plan *plan = NULL, *given = NULL;
    memo_session_desc budgets = {.policy = MEMO_POLICY_RECOMPUTE}; /* plans without a search */
    desc.session = &budgets;
    WITH(desc.config.slice_rows, 2048, budgets.device_bytes = gpt_test_least(desc));
    for (int64_t most = 0; most <= 8; most += most < 4 ? 1 : 4) {
        desc.most_slices = most;
        CHECK_OK(gpt_plan(&desc, NULL, &plan, &error));
        CHECK_IS(plan->fits, ==, most >= 4);
        CHECK_IS(plan->swap.n_slices, <=, most > 1 ? most : 1);
        if (most < 8) memo_step_plan_destroy(plan);
    }

    for (int64_t times = 1; times <= 2; times++) {
        desc.config.slice_rows = times * plan->swap.n_rows;
        CHECK_OK(gpt_plan(&desc, NULL, &given, &error));
        CHECK_IS(given->fits, ==, times == 1);
        if (times == 1) CHECK_IS(given->device_bytes, ==, plan->device_bytes);
        memo_step_plan_destroy(given);
    }
    memo_step_plan_destroy(plan);

    desc.config = gpt_test_config(2, 16, 2, 1, 8192, 2, 128, 0);
    desc.config.ring = 2; /* these sequences cannot be sliced */
    CHECK_OK(gpt_plan(&desc, NULL, &plan, &error));
    CHECK(!plan->fits && plan->swap.n_slices == 1);
    memo_step_plan_destroy(plan);
}

TEST(invalid_tables_are_refused) {
    const gpt_config config = gpt_test_config(4, 32, 4, 2, 16, 1, 8, 0.1);
    const struct {
        int cell;
        int64_t rows;
        const char* reason;
    } cases[4] = {
        {GPT_N_TENSORS + GPT_INPUT, 8, "(input) is MEMO_MOVE, so it cannot be recomputed"},
        {GPT_ATTENTION, 8, "(attention) is MEMO_WHOLE"},
        {GPT_UP, 9, "(up) splits a tile"},
        {GPT_RSTD1, 8, "(rstd1) differs from the tensor that it is recomputed with"}};
    int64_t* rows = gpt_test_table();
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    desc.rows = rows;
    for (int i = 0; i < 4; i++) {
        memo_step_plan* plan = NULL;
        CHECK_OK(gpt_fill_rows(&config, MEMO_POLICY_SWAP, 0, rows, &error));
        rows[cases[i].cell] = cases[i].rows;
        memset(&error, 0, sizeof error);
        CHECK(gpt_plan(&desc, NULL, &plan, &error) == MEMO_STATUS_INVALID_ARGUMENT && !plan);
        CHECK_TEXT(error.message, cases[i].reason);
    }
    CHECK_FAILS(gpt_fill_rows(&config, MEMO_POLICY_ALPHA, 1.5, rows, &error), INVALID_ARGUMENT);
}

TEST(too_small_a_device_is_refused) {
    gpt_desc desc = gpt_test_desc(gpt_test_config(3, 32, 4, 2, 32, 1, 8, 0), MEMO_POLICY_SWAP, 0);
    memo_host_device_desc host = {0};
    own_run run = {0};
    memo_swap_sizes sizes = {0};
    CHECK_OK(gpt_test_plan(&desc, &run, &error));
    CHECK_OK(gpt_swap_sizes(&desc, &sizes, &error));
    if (!run.plan) return;
    CHECK(gpt_create(&desc, &run.model, &error) == MEMO_STATUS_INVALID_ARGUMENT && !run.model);
    for (int i = 0; i < 2; i++) {
        const int64_t staging = gpt_staging_bytes(&desc.config, desc.n_micro_batches);
        host.device_memory_bytes = i == 0 ? run.step->sizes.device_bytes : run.plan->peak_bytes;
        host.host_memory_bytes = sizes.host_bytes + staging - (i == 1 ? 512 : 0);
        CHECK_OK(memo_host_device_create(&host, &run.host, &error));
        gpt_test_attach(&run, &desc);
        CHECK_IS(gpt_create(&desc, &run.model, &error), ==,
                 (i == 0 ? MEMO_STATUS_INFEASIBLE : MEMO_STATUS_OUT_OF_HOST_MEMORY));
        CHECK(!run.model);
        memo_host_device_destroy(run.host);
        run.host = NULL;
    }
}

/* ---- training and generating -------------------------------------------------------------------
 */

static void check_learning(memo_type type, gpt_mlp mlp, int64_t window) {
    static const char verse[] = "the quick brown fox jumps over the lazy dog; ";
    enum { LENGTH = sizeof verse - 1, SEQUENCE = 40, N_NEW = 90 };
    gpt_config config = gpt_test_config(3, 32, 4, 2, SEQUENCE, 2, 16, 0.05);
    const gpt_update_values update = {{5e-3, 0.9, 0.99, 1e-8, 0.01, 0}, 1.0, 0};
    uint8_t text[LENGTH + 2 * SEQUENCE + 1], recited[N_NEW], again[N_NEW];
    double first_loss = 0, loss = 0, norm = 0;
    own_run run;
    config.type = type;
    config.mlp = mlp;
    config.window = window;
    config.documents = window ? 2 : 0; /* " jumps" begins one */
    config.separator = 'x';
    config.states = type == MEMO_TYPE_BF16 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
    int64_t n = gpt_n_parameters(&config);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_ALPHA, 0.5);
    desc.n_micro_batches = 1;
    for (int64_t i = 0; i < (int64_t)sizeof text; i++) text[i] = (uint8_t)verse[i % LENGTH];
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    for (int64_t i = 0; i < 150; i++) {
        const int64_t at = memo_test_int(0, LENGTH - 1);
        CHECK_OK(gpt_micro_batch(run.model, text + at, text + at + 1, i, 0, 1.0 / (2 * SEQUENCE),
                                 &error));
        CHECK_OK(gpt_test_update(run.model, &update, &loss, &norm, &error));
        if (i == 0) first_loss = loss;
    }
    CHECK_CASE(fabs(first_loss - log(256)) < 0.1, "first loss %g", first_loss);
    CHECK_CASE(loss < 0.5, "last loss %g", loss);
    CHECK_OK(gpt_generate(run.model, text, LENGTH, 0, 1, recited, N_NEW, &error));
    CHECK_CASE(!memcmp(recited, text, SEQUENCE), "%.*s", N_NEW, (const char*)recited);
    CHECK_OK(gpt_generate(run.model, text, LENGTH, 0.8, 1, recited, N_NEW, &error));
    CHECK_OK(gpt_generate(run.model, text, LENGTH, 0.8, 1, again, N_NEW, &error));
    CHECK(!memcmp(recited, again, N_NEW));
    CHECK_FAILS(gpt_generate(run.model, text, 0, 0, 1, recited, N_NEW, &error), INVALID_ARGUMENT);
    if (type == GPT_REAL_TYPE) {
        /* The generator's logits are the model's. */
        gpt_config plain = config;
        gpt_real* parameters = (gpt_real*)allocate(n, sizeof(gpt_real));
        double* w = (double*)allocate(n, sizeof(double));
        double* dw = (double*)allocate(n, sizeof(double));
        double logits[256];
        gpt_generator generator;
        CHECK_OK(gpt_get_parameters(run.model, parameters, &error));
        for (int64_t i = 0; i < n; i++) w[i] = (double)parameters[i];
        plain.dropout = 0;
        plain_sequence(&plain, w, dw, text, text + 1, 0, 0, 1, logits);
        CHECK(gpt_generator_create(&generator, &config, SEQUENCE));
        memcpy(generator.parameters, parameters, (size_t)n * sizeof(gpt_real));
        for (int64_t i = 0; i < SEQUENCE; i++) gpt_generator_read(&generator, text[i], i);
        CHECK_IS(largest_difference(generator.logits, logits, 256), <, 20 * rounding);
        free(generator.memory);
        free(parameters), free(w), free(dw);
    }
}

TEST(a_model_learns_and_recites) {
    if (!memo_test_all()) SKIP("run make test-all"); /* the next two have as much */
    check_learning(GPT_REAL_TYPE, GPT_MLP_GELU, 0);
}
TEST(a_model_with_swiglu_window_and_documents_learns_and_recites) {
    check_learning(GPT_REAL_TYPE, GPT_MLP_SWIGLU, 24);
}
TEST(a_model_in_bf16_learns_and_recites) { check_learning(MEMO_TYPE_BF16, GPT_MLP_GELU, 0); }
