/* test_gpt_gradients.c - the gradients of the whole model with dropout, against central differences
 * in double precision.  Compile with -DGPT_DOUBLE. */
#ifndef GPT_DOUBLE
#define GPT_DOUBLE
#endif
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

#define GPT_TEST_ACCUMULATED 2
#include "gpt_test.h"
#include "owned.h"

enum { N_MICRO_BATCHES = GPT_TEST_ACCUMULATED, N_SAMPLES = 6 };

/* The loss of one step; the gradients stay until gpt_discard, which returns it. */
static double step_loss(gpt_model* model, const uint8_t* text, gpt_real* gradients) {
    const int64_t n_rows = model->n_rows;
    double loss = 0;
    for (int64_t i = 0; i < N_MICRO_BATCHES; i++)
        if (gpt_micro_batch(model, text + i * n_rows, text + i * n_rows + 1, 3, i,
                            1.0 / (double)(N_MICRO_BATCHES * n_rows), &error))
            return NAN;
    if (gradients && gpt_get_gradients(model, gradients, &error)) return NAN;
    return gpt_discard(model, &loss, &error) ? NAN : loss;
}

static void check_gradients(gpt_config config, memo_policy policy, double alpha) {
    const int64_t n = gpt_n_parameters(&config), n_rows = config.sequence * config.batch;
    const double step = 1e-5;
    const gpt_desc desc = gpt_test_desc(config, policy, alpha);
    own_run run;
    own_memory gpt_real* parameters = (gpt_real*)malloc((size_t)n * sizeof(gpt_real));
    own_memory gpt_real* gradients = (gpt_real*)malloc((size_t)n * sizeof(gpt_real));
    const uint8_t* text = gpt_test_text();
    double loss;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (run.model) {
        /* Larger than training starts with, so that no gradient is lost in rounding. */
        for (int64_t i = 0; i < n; i++) parameters[i] = 0;
        for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
            const gpt_parameter p = gpt_parameter_at(&config, t);
            for (int64_t i = 0; i < p.n; i++)
                parameters[p.offset + i] = (p.initial_std > 0 ? 0.0 : 1.0) +
                                           0.3 * gpt_normal((uint64_t)t + 7, (uint64_t)i);
        }
        CHECK_OK(gpt_set_parameters(run.model, parameters, &error));
        loss = step_loss(run.model, text, gradients);
        CHECK_CASE(loss > 1 && loss < 20, "loss %g", loss);
        for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
            const gpt_parameter p = gpt_parameter_at(&config, t);
            for (int sample = 0; sample < N_SAMPLES; sample++) {
                /* Of the embedding only rows of bytes that occur have a gradient. */
                const int64_t at =
                    p.offset + (t == 0 ? text[memo_test_int(0, n_rows - 1)] * config.hidden +
                                             memo_test_int(0, config.hidden - 1)
                                       : memo_test_int(0, p.n - 1));
                const gpt_real kept = parameters[at];
                parameters[at] = kept + step;
                CHECK_OK(gpt_set_parameters(run.model, parameters, &error));
                double above = step_loss(run.model, text, NULL);
                parameters[at] = kept - step;
                CHECK_OK(gpt_set_parameters(run.model, parameters, &error));
                double below = step_loss(run.model, text, NULL);
                parameters[at] = kept;
                double difference = (above - below) / (2 * step);
                CHECK_CASE(fabs(difference - gradients[at]) <= 1e-8 + 1e-5 * fabs(difference),
                           "%s (tensor %d), element %d: gradient %.10g, difference %.10g", p.name,
                           (int)t, (int)(at - p.offset), gradients[at], difference);
            }
        }
    }
}

/* Two sequences of an odd length: tiles straddle their border, the last tile is short. */
TEST(of_grouped_heads_and_a_short_tile) {
    check_gradients(gpt_test_config(2, 16, 4, 2, 13, 2, 8, 0.2), MEMO_POLICY_KEEP, 0);
}
TEST(of_split_rows) {
    check_gradients(gpt_test_config(3, 16, 4, 2, 13, 2, 8, 0.2), MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_recomputed_layers) {
    check_gradients(gpt_test_config(3, 12, 2, 1, 9, 1, 4, 0.1), MEMO_POLICY_RECOMPUTE, 0);
}
/* A slice holds the end of a sequence and the begin of the next. */
TEST(of_slices_with_an_mlp_in_chunks) {
    gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 4, 0.2);
    config.mlp_rows = 8;
    config.slice_rows = 12;
    check_gradients(config, MEMO_POLICY_ALPHA, 0.5);
}
TEST(of_swiglu) {
    gpt_config config = gpt_test_config(2, 16, 4, 2, 13, 2, 8, 0.2);
    config.mlp = GPT_MLP_SWIGLU;
    config.mlp_columns = 22;
    check_gradients(config, MEMO_POLICY_ALPHA, 0.5);
}
/* Longer than a tile of attention. */
TEST(of_several_attention_tiles) {
    check_gradients(gpt_test_config(1, 8, 2, 2, GPT_ATTENTION_TILE + 9, 1, 32, 0), MEMO_POLICY_SWAP,
                    0);
}
