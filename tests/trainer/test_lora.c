/* test_lora.c - adapters: loss and gradients against the plain model with merged weights; the same
 * bits in every budget and at every moment of the update; frozen weights that lie in files alone and
 * do not change; what is refused.  test_gpt_gradients.c does the first in double. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

#define GPT_TEST_ACCUMULATED 2
#include "gpt_test.h"
#include "owned.h"
#include "gpt_plain.h"
#include "lora_plain.h"

static gpt_config small_config(void) {
    gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 8, 0.2);
    config.mlp_columns = 24;
    return config;
}

/* ---- against the plain model -------------------------------------------------------------------- */

TEST(of_all_products) {
    check_adapters_against_plain(with_adapters(small_config(), 3, 5, 0), MEMO_POLICY_KEEP, 0);
}
TEST(of_each_product_alone) {
    for (int i = 0; i < GPT_N_ADAPTED; i++) {
        IN_CASE("%s", gpt_lora_names[i]);
        check_adapters_against_plain(with_adapters(small_config(), 2, 4, 1u << i),
                                     MEMO_POLICY_ALPHA, 0.5);
    }
}
TEST(of_random_models) {
    const int n = memo_test_cases(8, 100);
    for (int k = 0; k < n; k++) {
        const int64_t slices = memo_test_int(0, 2), chunks = memo_test_int(0, 1);
        const int32_t rank = (int32_t)memo_test_int(1, 8);
        const memo_policy policies[] = {MEMO_POLICY_KEEP, MEMO_POLICY_RECOMPUTE, MEMO_POLICY_SWAP,
                                        MEMO_POLICY_ALPHA};
        gpt_config config = small_config();
        config.n_layers = (int32_t)memo_test_int(1, 3);
        config.tile_rows = 4;
        config.has_biases = (int32_t)memo_test_int(0, 1);
        config.has_head_norms = (int32_t)memo_test_int(0, 1);
        config.is_tied = (int32_t)memo_test_int(0, 1);
        config.head_size = memo_test_int(0, 1) ? 6 : 0;
        if (slices) config = in_slices(config, 12);
        if (chunks) config = mlp_in_chunks(config, 8);
        config = with_adapters(config, rank, 0.5 + 10 * memo_test_real(),
                               (uint32_t)memo_test_int(1, 127));
        IN_CASE("model %d", k);
        check_adapters_against_plain(config, policies[memo_test_int(0, 3)], 0.5);
    }
}

/* A model with merged weights has the loss of the adapters. */
TEST(merged_weights_have_the_loss_of_adapters) {
    const gpt_config config = with_adapters(small_config(), 4, 8, 0),
                     base = gpt_base_config(&config);
    own_memory double *frozen = lora_random(&base), *adapters = lora_random(&config);
    own_memory double* merged = lora_merge(&config, frozen, adapters);
    own_frozen stored = lora_freeze(&base, frozen);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    const gpt_desc whole = gpt_test_desc(base, MEMO_POLICY_KEEP, 0);
    own_run a = {0}, b = {0};
    desc.frozen = &stored;
    CHECK_OK(gpt_test_open(&desc, &a, &error));
    CHECK_OK(gpt_test_open(&whole, &b, &error));
    if (!a.model || !b.model) return;
    lora_set(a.model, adapters);
    lora_set(b.model, merged);
    const double of_adapters = lora_loss(a.model, NULL), of_merged = lora_loss(b.model, NULL);
    CHECK_CASE(fabs(of_adapters / of_merged - 1) < 1e-5, "%.9g and %.9g", of_adapters, of_merged);

    /* Without adapters both would be other models; as they begin, adapters change nothing. */
    lora_set(b.model, frozen);
    const double of_frozen = lora_loss(b.model, NULL);
    CHECK_IS(fabs(of_frozen / of_merged - 1), >, 1e-4);
    CHECK_OK(gpt_restart(a.model, &error));
    const double at_first = lora_loss(a.model, NULL);
    CHECK_CASE(!memcmp(&at_first, &of_frozen, sizeof at_first), "%.17g and %.17g", at_first,
               of_frozen);
}

/* A of the initial adapters is uniform within 1 / sqrt(inputs), as in PyTorch; B is zero. */
TEST(adapters_begin_as_in_peft) {
    gpt_config config = with_adapters(gpt_test_config(2, 64, 4, 2, 13, 2, 8, 0), 16, 16, 0);
    const gpt_config base = gpt_base_config(&config);
    own_memory double* frozen = lora_random(&base);
    own_frozen stored = lora_freeze(&base, frozen);
    own_memory gpt_real* values = (gpt_real*)allocate(gpt_n_parameters(&config), sizeof *values);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    own_run run = {0};
    desc.frozen = &stored;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    CHECK_OK(gpt_get_parameters(run.model, values, &error));
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
        const gpt_parameter p = gpt_parameter_at(&config, t);
        const double bound = 1 / sqrt((double)p.n_columns);
        double least = 0, most = 0, squares = 0;
        for (int64_t i = p.offset; i < p.offset + p.n; i++) {
            least = fmin(least, (double)values[i]);
            most = fmax(most, (double)values[i]);
            squares += pow((double)values[i], 2) / (double)p.n;
        }
        if (t % 2) {
            CHECK(least >= 0 && most <= 0);
            continue;
        }
        CHECK(least > -bound && least < -0.95 * bound && most < bound && most > 0.95 * bound);
        CHECK_CASE(fabs(squares / (bound * bound / 3) - 1) < 0.2, "%g of %g", squares,
                   bound * bound / 3);
    }
}

/* ---- budgets ------------------------------------------------------------------------------------ */

enum { N_STEPS = 3 };
typedef struct trained {
    double losses[N_STEPS], norms[N_STEPS];
    uint64_t digests[N_STEPS];
    gpt_real* adapters; /* the masters */
} trained;

static int frozen_are_same(gpt_model* model, const double* frozen) {
    const int64_t n = model->base.n, size = memo_type_bytes(model->config.type);
    const gpt_config base = gpt_base_config(&model->config);
    own_memory char* bytes = (char*)allocate(n, (size_t)size);
    int is_same = 1;
    gpt_copy_array(model, 0, GPT_FROZEN, gpt_rows_make(0, n), bytes);
    CHECK(!model->status);
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&base); t++) {
        const gpt_parameter p = gpt_parameter_at(&base, t);
        for (int64_t i = p.offset; i < p.offset + p.n; i++) {
            const float value = (float)frozen[i];
            const uint16_t rounded = memo_bf16_from_f32(value);
            is_same &= !memcmp(bytes + i * size, size == 2 ? (void*)&rounded : (void*)&value,
                               (size_t)size);
        }
    }
    return is_same;
}

static void train(gpt_desc desc, const double* frozen, const double* adapters, int is_least,
                  trained* result) {
    const int64_t n = gpt_n_parameters(&desc.config);
    own_run run = {0};
    memo_session_desc budgets = desc.session ? *desc.session : MEMO_ZERO(memo_session_desc);
    desc.session = &budgets;
    if (is_least) budgets.device_bytes = gpt_test_least(desc);
    result->adapters = (gpt_real*)allocate(n, sizeof(gpt_real));
    CHECK_OK(gpt_plan(&desc, NULL, &run.step, &error));
    if (!run.step) return;
    memo_host_device_desc host = {.device_memory_bytes = run.step->device_bytes};
    desc.plan = run.step;
    CHECK_OK(memo_host_device_create(&host, &run.host, &error));
    gpt_test_attach(&run, &desc);
    CHECK_OK(gpt_create(&desc, &run.model, &error));
    if (!run.model) return;
    lora_set(run.model, adapters);
    for (int step = 0; step < N_STEPS; step++)
        CHECK_OK(gpt_test_step(run.model, &desc.config, step, 2, NULL, &result->digests[step],
                               &result->losses[step], &result->norms[step], &error));
    gpt_copy_array(run.model, 0, gpt_full_weights(run.model), gpt_rows_make(0, n),
                   result->adapters);
    CHECK(frozen_are_same(run.model, frozen));
    if (!is_least) return;

    /* Of the frozen weights the host has two windows at most. */
    const int64_t of_weights = run.step->bytes[MEMO_TIER_HOST][MEMO_OWNER_WEIGHTS],
                  of_windows = run.step->bytes[MEMO_TIER_HOST][MEMO_OWNER_PLACES];
    const gpt_rows table = gpt_base_bucket(run.model, 0), layer = gpt_base_bucket(run.model, 1);
    const int64_t largest =
        gpt_count(table) > gpt_count(layer) ? gpt_count(table) : gpt_count(layer);
    CHECK_IS(run.step->n_streamed, >, 0);
    CHECK_IS(of_weights, <=, gpt_n_bytes(run.model, n) + 512 * desc.config.n_layers);
    CHECK_IS(of_windows, <=, 2 * (gpt_n_bytes(run.model, largest) + 4096));
}

/* In the least memory, under each policy, moment and place of the update: the bits of everything on
 * the device.  Clipping is on: gpt_test_step clips at 1. */
TEST(budgets_and_moments_change_no_bit) {
    static const struct {
        memo_update on;
        int32_t may;
    } updates[] = {{MEMO_UPDATE_DEVICE, 0},
                   {MEMO_UPDATE_DEVICE, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS},
                   {MEMO_UPDATE_HOST, 0},
                   {MEMO_UPDATE_PLANNED, MEMO_MAY_DEFER}};
    static const memo_policy policies[] = {MEMO_POLICY_RECOMPUTE, MEMO_POLICY_SWAP,
                                           MEMO_POLICY_MEMO};
    for (int model = 0; model < 4; model++) {
        gpt_config config = gpt_test_config(4, 32, 4, 2, 24, 2, 8, 0.1);
        config.is_tied = model % 2;
        config.type = model < 2 ? MEMO_TYPE_F32 : MEMO_TYPE_BF16;
        config = with_adapters(config, 4, 8, model == 3 ? LORA_Q | LORA_V | LORA_UP : 0);
        const gpt_config base = gpt_base_config(&config);
        own_memory double *frozen = lora_random(&base), *adapters = lora_random(&config);
        own_frozen stored = lora_freeze(&base, frozen);
        const size_t n_bytes = (size_t)gpt_n_parameters(&config) * sizeof(gpt_real);
        gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
        trained kept = {0};
        desc.frozen = &stored;
        train(desc, frozen, adapters, 0, &kept);
        for (size_t i = 0; i < sizeof policies / sizeof *policies * 4; i++) {
            memo_session_desc budgets = {.policy = policies[i / 4],
                                         .update_on = updates[i % 4].on,
                                         .update_may = updates[i % 4].may,
                                         .micro_batches = 2};
            trained least = {0};
            if ((i / 4 + i + (size_t)model) % 3 && !memo_test_all()) continue;
            IN_CASE("model %d, policy %d, update %d", model, (int)(i / 4), (int)(i % 4));
            desc.session = &budgets;
            train(desc, frozen, adapters, 1, &least);
            CHECK(!memcmp(kept.losses, least.losses, sizeof kept.losses));
            CHECK(!memcmp(kept.norms, least.norms, sizeof kept.norms));
            CHECK(!memcmp(kept.digests, least.digests, sizeof kept.digests));
            CHECK(least.adapters && !memcmp(kept.adapters, least.adapters, n_bytes));
            free(least.adapters);
        }
        free(kept.adapters);
    }
}

/* A norm above the limit is that of adapters alone: of a larger one, updates differ. */
TEST(the_norm_that_clips_is_of_adapters) {
    const gpt_config config = with_adapters(small_config(), 3, 6, 0),
                     base = gpt_base_config(&config);
    own_memory double *frozen = lora_random(&base), *adapters = lora_random(&config);
    own_frozen stored = lora_freeze(&base, frozen);
    own_memory gpt_real* gradients =
        (gpt_real*)allocate(gpt_n_parameters(&config), sizeof *gradients);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    double loss, norm = 0, squares = 0;
    own_run run = {0};
    desc.frozen = &stored;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    lora_set(run.model, adapters);
    CHECK_OK(gpt_test_step(run.model, &config, 0, 2, gradients, NULL, &loss, &norm, &error));
    for (int64_t i = 0; i < gpt_n_parameters(&config); i++) squares += pow((double)gradients[i], 2);
    CHECK_CASE(fabs(norm / sqrt(squares) - 1) < 1e-6, "%g and %g", norm, sqrt(squares));
}

/* ---- refusals ----------------------------------------------------------------------------------- */

TEST(adapters_that_cannot_be_are_refused) {
    const gpt_config good = with_adapters(small_config(), 3, 6, 0);
    gpt_config config = good;
    config.lora.rank = 17;
    CHECK_IS(gpt_check_config(&config, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_TEXT(error.message, "--lora 17: a rank from 1 to 16, the width of a token, would work");
    config = good;
    config.lora.alpha = 0;
    CHECK_IS(gpt_check_config(&config, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_TEXT(error.message, "--lora-alpha 0: ");
    config = good;
    config.lora.targets = 128;
    CHECK_IS(gpt_check_config(&config, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    config = good;
    config.mlp = GPT_MLP_GELU;
    CHECK_IS(gpt_check_config(&config, &error), ==, MEMO_STATUS_UNSUPPORTED);
    CHECK_TEXT(error.message, "--mlp swiglu would work");
    const gpt_desc desc = gpt_test_desc(good, MEMO_POLICY_KEEP, 0);
    own_run run = {0};
    CHECK_IS(gpt_test_open(&desc, &run, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_TEXT(error.message, "gpt_desc.frozen: NULL");

    CHECK_IS(gpt_lora_parse("q,v"), ==, LORA_Q | LORA_V);
    CHECK_IS(gpt_lora_parse("gate_proj,up"), ==, LORA_GATE | LORA_UP);
    CHECK_IS(gpt_lora_parse("all"), ==, 127);
    CHECK_IS(gpt_lora_parse("q,,v"), ==, 0);
    CHECK_IS(gpt_lora_parse("que"), ==, 0);
    CHECK_IS(gpt_lora_parse(""), ==, 0);
}

/* A weight that is not finite is an error of the session, with the tensor. */
TEST(a_frozen_weight_that_is_not_finite_is_refused) {
    const gpt_config config = with_adapters(small_config(), 3, 6, 0),
                     base = gpt_base_config(&config);
    own_memory double* frozen = lora_random(&base);
    const gpt_parameter p = gpt_parameter_at(&base, 5);
    frozen[p.offset + 7] = (double)NAN;
    own_frozen stored = lora_freeze(&base, frozen);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    own_run run = {0};
    desc.frozen = &stored;
    CHECK_IS(gpt_test_open(&desc, &run, &error), ==, MEMO_STATUS_FORMAT);
    CHECK_TEXT(error.message, "is not finite");
    CHECK_TEXT(error.message, "layer 0");
}
