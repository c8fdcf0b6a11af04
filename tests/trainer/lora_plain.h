/* lora_plain.h - loss and gradients of adapters against the plain model with merged weights: the
 * gradients of adapters follow from those of the weights that they change.
 *
 * Include after gpt_plain.h. */
#ifndef LORA_PLAIN_H
#define LORA_PLAIN_H

#include "lora_test.h"

/* ---- merged weights ----------------------------------------------------------------------------- */

/* The rows of W that an adapter changes: turn, turn + n_turns, ... */
static const struct {
    int w, turn, n_turns;
} lora_rows[] = {{GPT_W_QUERY, 0, 1},      {GPT_W_KEY, 0, 1}, {GPT_W_VALUE, 0, 1},
                 {GPT_W_PROJECTION, 0, 1}, {GPT_W_UP, 1, 2},  {GPT_W_UP, 0, 2},
                 {GPT_W_DOWN, 0, 1}};

/* A and B of an adapter, and the rows of W that they change. */
typedef struct lora_pair {
    int64_t a, b;         /* parameters */
    int64_t w, step;      /* element of the frozen weights; from row to row */
    int64_t rows, inputs; /* of B; of A */
} lora_pair;

static int64_t lora_n_pairs(const gpt_config* config) {
    return gpt_n_parameter_tensors(config) / 2;
}
static lora_pair lora_pair_at(const gpt_config* config, int64_t k) {
    const gpt_parameter a = gpt_parameter_at(config, 2 * k),
                        b = gpt_parameter_at(config, 2 * k + 1);
    const gpt_config base = gpt_base_config(config);
    const gpt_layout at = gpt_layout_make(&base);
    const int i = (a.w - GPT_N_W) / 2;
    lora_pair pair;
    CHECK(!strcmp(a.name, "lora_A") && !strcmp(b.name, "lora_B") && a.layer == b.layer);
    pair.a = a.offset;
    pair.b = b.offset;
    pair.rows = b.n / config->lora.rank;
    pair.inputs = a.n / config->lora.rank;
    pair.step = lora_rows[i].n_turns * pair.inputs;
    pair.w = at.at[lora_rows[i].w] + a.layer * at.layer_stride + lora_rows[i].turn * pair.inputs;
    return pair;
}

/* W + alpha / rank B A. */
static double* lora_merge(const gpt_config* config, const double* base, const double* adapters) {
    const gpt_config without = gpt_base_config(config);
    const int64_t n = gpt_n_parameters(&without), r = config->lora.rank;
    const double scale = config->lora.alpha / (double)r;
    double* merged = (double*)allocate(n, sizeof *merged);
    memcpy(merged, base, (size_t)n * sizeof *merged);
    for (int64_t k = 0; k < lora_n_pairs(config); k++) {
        const lora_pair p = lora_pair_at(config, k);
        for (int64_t row = 0; row < p.rows; row++)
            for (int64_t c = 0; c < p.inputs; c++)
                for (int64_t j = 0; j < r; j++)
                    merged[p.w + row * p.step + c] +=
                        scale * adapters[p.b + row * r + j] * adapters[p.a + j * p.inputs + c];
    }
    return merged;
}

/* dA = alpha / rank B^T dW, dB = alpha / rank dW A^T. */
static double* lora_gradients(const gpt_config* config, const double* dw, const double* adapters) {
    const int64_t r = config->lora.rank;
    const double scale = config->lora.alpha / (double)r;
    double* gradients = (double*)allocate(gpt_n_parameters(config), sizeof *gradients);
    for (int64_t k = 0; k < lora_n_pairs(config); k++) {
        const lora_pair p = lora_pair_at(config, k);
        for (int64_t row = 0; row < p.rows; row++)
            for (int64_t c = 0; c < p.inputs; c++)
                for (int64_t j = 0; j < r; j++) {
                    const int64_t a = p.a + j * p.inputs + c, b = p.b + row * r + j;
                    gradients[a] += scale * adapters[b] * dw[p.w + row * p.step + c];
                    gradients[b] += scale * adapters[a] * dw[p.w + row * p.step + c];
                }
    }
    return gradients;
}

/* Loss of two micro-batches, and gradients unless NULL; nothing is updated. */
static double lora_loss(gpt_model* model, gpt_real* gradients) {
    const int64_t n = model->config.batch * model->config.sequence;
    const uint8_t* text = gpt_test_text();
    double loss = 0;
    for (int64_t i = 0; i < 2; i++)
        CHECK_OK(gpt_micro_batch(model, text + i * n, text + i * n + 1, 5, i, 1 / (double)(2 * n),
                                 &error));
    if (gradients) CHECK_OK(gpt_get_gradients(model, gradients, &error));
    CHECK_OK(gpt_test_discard(model, &loss, &error));
    return loss;
}

/* Loss and gradients of two micro-batches, against the plain model with merged weights. */
static void check_adapters_against_plain(gpt_config config, memo_policy policy, double alpha) {
    const gpt_config base = gpt_base_config(&config);
    const int64_t n = gpt_n_parameters(&config), n_rows = config.batch * config.sequence;
    const uint8_t* text = gpt_test_text();
    own_memory double *frozen = lora_random(&base), *adapters = lora_random(&config);
    own_memory double* merged = lora_merge(&config, frozen, adapters);
    own_memory double* dw = (double*)allocate(gpt_n_parameters(&base), sizeof *dw);
    own_memory gpt_real* gradients = (gpt_real*)allocate(n, sizeof *gradients);
    own_frozen stored = lora_freeze(&base, frozen);
    gpt_desc desc = gpt_test_desc(config, policy, alpha);
    double expected = 0;
    own_run run = {0};
    desc.frozen = &stored;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    lora_set(run.model, adapters);
    const double loss = lora_loss(run.model, gradients);
    for (int64_t b = 0; b < 2 * config.batch; b++)
        expected += plain_sequence(&base, merged, dw, text + b * config.sequence,
                                   text + b * config.sequence + 1, 5, b * config.sequence,
                                   1 / (double)(2 * n_rows), NULL);
    CHECK_CASE(fabs(loss - expected) < rounding * expected, "loss %.9g instead of %.9g", loss,
               expected);
    own_memory double* exact = lora_gradients(&config, dw, adapters);
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&config); t++) {
        const gpt_parameter p = gpt_parameter_at(&config, t);
        const double difference = largest_difference(gradients + p.offset, exact + p.offset, p.n);
        double largest = 0;
        for (int64_t i = 0; i < p.n; i++)
            largest = memo_test_worst(largest, fabs(exact[p.offset + i]));
        CHECK_CASE(largest > 0 && difference < rounding * largest,
                   "%s of %s, layer %d: off by %g, largest gradient %g", p.name,
                   gpt_lora_names[(p.w - GPT_N_W) / 2], p.layer, difference, largest);
    }
}

#endif
