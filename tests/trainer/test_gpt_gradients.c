/* test_gpt_gradients.c - the gradients of the whole model with dropout against the plain one's, to
 * nearly all digits of double precision.  Compile with -DGPT_DOUBLE. */
#ifndef GPT_DOUBLE
#define GPT_DOUBLE
#endif
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

#define GPT_TEST_ACCUMULATED 2
#include "gpt_test.h"
#include "owned.h"
#include "gpt_plain.h"
#include "lora_plain.h"

/* The plain model's own gradients, of a sample of the parameters. */
TEST(the_plain_gradients_match_central_differences) {
    const gpt_config config = with_swiglu(gpt_test_config(2, 16, 4, 2, 13, 1, 8, 0.2));
    const int64_t n = gpt_n_parameters(&config);
    own_memory double* w = (double*)allocate(n, sizeof(double));
    own_memory double* gradients = (double*)allocate(n, sizeof(double));
    own_memory double* ignored = (double*)allocate(n, sizeof(double));
    const uint8_t* text = gpt_test_text();
    for (int64_t i = 0; i < n; i++) w[i] = 0.3 * gpt_normal(7, (uint64_t)i);
    plain_sequence(&config, w, gradients, text, text + 1, 3, 0, 1, NULL);
    for (int64_t i = memo_test_int(0, 99); i < n; i += memo_test_int(1, 199)) {
        const double kept = w[i], step = 1e-5;
        w[i] = kept + step;
        const double above = plain_sequence(&config, w, ignored, text, text + 1, 3, 0, 1, NULL);
        w[i] = kept - step;
        const double below = plain_sequence(&config, w, ignored, text, text + 1, 3, 0, 1, NULL);
        w[i] = kept;
        const double difference = (above - below) / (2 * step);
        CHECK_CASE(fabs(difference - gradients[i]) <= 1e-7 + 1e-6 * fabs(difference),
                   "parameter %d: gradient %.10g, difference %.10g", (int)i, gradients[i],
                   difference);
    }
}

/* Two sequences of an odd length: tiles straddle their border, the last tile is short. */
TEST(of_grouped_heads_and_a_short_tile) {
    check_against_plain(gpt_test_config(2, 16, 4, 2, 13, 2, 8, 0.2), MEMO_POLICY_KEEP, 0);
}
TEST(of_split_rows) {
    check_against_plain(gpt_test_config(3, 16, 4, 2, 13, 2, 8, 0.2), MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_recomputed_layers) {
    check_against_plain(gpt_test_config(3, 12, 2, 1, 9, 1, 4, 0.1), MEMO_POLICY_RECOMPUTE, 0);
}
/* A slice holds the end of a sequence and the begin of the next. */
TEST(of_slices_with_an_mlp_in_chunks) {
    const gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2);
    check_against_plain(in_slices(mlp_in_chunks(config, 8), 12), MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_swiglu) {
    gpt_config config = with_swiglu(gpt_test_config(2, 16, 4, 2, 13, 2, 8, 0.2));
    config.mlp_columns = 22;
    check_against_plain(config, MEMO_POLICY_ALPHA, 0.5);
}
/* Heads that are together wider, or narrower, than the stream. */
TEST(of_heads_of_their_own_size) {
    const gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2);
    check_against_plain(with_head_size(config, 6), MEMO_POLICY_KEEP, 0);
    check_against_plain(with_head_size(config, 2), MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(in_slices(with_head_size(config, 10), 12), MEMO_POLICY_RECOMPUTE, 0);
    check_against_plain(with_head_size(gpt_test_config(1, 10, 3, 3, 7, 1, 4, 0), 8),
                        MEMO_POLICY_KEEP, 0);
}
TEST(of_scaled_frequencies) {
    const gpt_config config = gpt_test_config(2, 32, 2, 1, 33, 1, 8, 0);
    for (int kind = 0; kind < GPT_N_ROPES; kind++)
        check_against_plain(with_rope(config, (gpt_rope_kind)kind), MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_biases) {
    const gpt_config config = with_biases(gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2));
    check_against_plain(config, MEMO_POLICY_KEEP, 0);
    check_against_plain(in_slices(config, 12), MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_norms_of_heads) {
    const gpt_config config = with_head_norms(gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2));
    check_against_plain(config, MEMO_POLICY_KEEP, 0);
    check_against_plain(config, MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(in_slices(with_head_size(config, 6), 12), MEMO_POLICY_RECOMPUTE, 0);
    check_against_plain(with_biases(with_head_size(config, 2)), MEMO_POLICY_SWAP, 0);
}
/* Logits that are often equal, against sorting: the first expert of equal ones comes first. */
TEST(equal_logits_choose_the_first_expert) {
    enum { MOST = 20 };
    for (int trial = 0; trial < 200; trial++) {
        const int64_t n = memo_test_int(1, MOST), n_chosen = memo_test_int(1, n);
        const int is_normed = (int)memo_test_int(0, 1);
        double logits[MOST], routes[2 * MOST], sum = 0, of_all = 0;
        int64_t rank[MOST];
        for (int64_t e = 0; e < n; e++) logits[e] = (double)memo_test_int(-2, 2);
        gpt_route(routes, logits, MEMO_TYPE_F64, 0, n, n_chosen, is_normed);
        for (int64_t e = 0; e < n; e++) {
            rank[e] = 0;
            for (int64_t i = 0; i < n; i++)
                rank[e] += logits[i] > logits[e] || (logits[i] >= logits[e] && i < e);
            of_all += exp(logits[e]);
            if (rank[e] < n_chosen) sum += exp(logits[e]);
        }
        for (int64_t e = 0; e < n; e++) {
            if (rank[e] >= n_chosen) continue;
            CHECK_IS((int64_t)routes[rank[e]], ==, e);
            CHECK(fabs(routes[n_chosen + rank[e]] - exp(logits[e]) / (is_normed ? sum : of_all)) <
                  1e-14);
        }
    }
    /* What is not a number chooses experts that there are. */
    const double wild[] = {NAN, INFINITY, NAN, -INFINITY};
    double routes[8];
    gpt_route(routes, wild, MEMO_TYPE_F64, 0, 4, 4, 1);
    for (int j = 0; j < 4; j++) CHECK(routes[j] >= 0 && routes[j] < 4);
}
/* More experts than a vector of numbers has, and fewer than rows; all of them; one. */
TEST(of_experts) {
    const gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2);
    check_against_plain(with_experts(config, 5, 2, 1), MEMO_POLICY_KEEP, 0);
    check_against_plain(with_experts(config, 5, 3, 0), MEMO_POLICY_ALPHA, 0.5);
    check_against_plain(with_experts(with_head_norms(config), 3, 3, 1), MEMO_POLICY_RECOMPUTE, 0);
    check_against_plain(with_experts(in_slices(config, 12), 40, 1, 0), MEMO_POLICY_SWAP, 0);
    check_against_plain(with_experts(mlp_in_chunks(config, 8), 4, 2, 0), MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_random_experts) {
    for (int trial = 0; trial < 4; trial++) {
        const int32_t n = (int32_t)memo_test_int(1, 9), n_chosen = (int32_t)memo_test_int(1, n);
        const int is_normed = n_chosen > 1 && memo_test_int(0, 1); /* the share of one is 1 */
        const int64_t slice = 4 * memo_test_int(2, 8);
        const memo_policy policy = (memo_policy)memo_test_int(MEMO_POLICY_KEEP, MEMO_POLICY_ALPHA);
        gpt_config config = gpt_test_config(2, 16, 4, 2, memo_test_int(5, 17), 2, 4, 0.1);
        config = with_experts(in_slices(config, slice), n, n_chosen, is_normed);
        config.mlp_columns = (int32_t)memo_test_int(1, 40);
        if (n == 1) continue; /* nothing to choose: the router has no gradient */
        IN_CASE("%d of %d experts, normed %d, slices of %d", n_chosen, n, is_normed, (int)slice);
        check_against_plain(config, policy, 0.5);
    }
}
/* Longer than a tile of attention. */
TEST(of_several_attention_tiles) {
    check_against_plain(gpt_test_config(1, 8, 2, 2, GPT_ATTENTION_TILE + 9, 1, 32, 0),
                        MEMO_POLICY_SWAP, 0);
}

/* ---- adapters ----------------------------------------------------------------------------------- */

TEST(of_adapters) {
    const gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2);
    check_adapters_against_plain(with_adapters(config, 3, 5, 0), MEMO_POLICY_KEEP, 0);
    check_adapters_against_plain(with_adapters(with_biases(in_slices(config, 12)), 4, 2, 0),
                                 MEMO_POLICY_ALPHA, 0.5);
    check_adapters_against_plain(
        with_adapters(with_head_norms(with_tied_tables(mlp_in_chunks(config, 8))), 1, 1, 0),
        MEMO_POLICY_RECOMPUTE, 0);
}

/* The loss of the trainer itself, with one element of an adapter a little larger and smaller. */
TEST(adapters_match_central_differences) {
    const gpt_config config = with_adapters(gpt_test_config(2, 16, 4, 2, 13, 1, 8, 0.2), 3, 6, 0),
                     base = gpt_base_config(&config);
    own_memory double *frozen = lora_random(&base), *adapters = lora_random(&config);
    own_frozen stored = lora_freeze(&base, frozen);
    own_memory gpt_real* gradients =
        (gpt_real*)allocate(gpt_n_parameters(&config), sizeof *gradients);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    own_run run = {0};
    desc.frozen = &stored;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    lora_set(run.model, adapters);
    (void)lora_loss(run.model, gradients);
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
        const gpt_parameter p = gpt_parameter_at(&config, t);
        for (int trial = 0; trial < 4; trial++) {
            const int64_t i = p.offset + memo_test_int(0, p.n - 1);
            const double kept = adapters[i], step = 1e-5;
            double losses[2];
            for (int side = 0; side < 2; side++) {
                adapters[i] = kept + (side ? step : -step);
                lora_set(run.model, adapters);
                losses[side] = lora_loss(run.model, NULL);
            }
            adapters[i] = kept;
            const double difference = (losses[1] - losses[0]) / (2 * step);
            CHECK_CASE(fabs(difference - gradients[i]) <= 1e-8 + 1e-6 * fabs(difference),
                       "%s, element %d: gradient %.10g, difference %.10g", p.name,
                       (int)(i - p.offset), gradients[i], difference);
        }
    }
}
