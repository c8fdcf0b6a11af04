/* test_gpt_update.c - what AdamW makes of a gradient, against a plain reference: clipped by each
 * norm, with states of each kind; and the same bits at every moment of the update, in every
 * budget. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

#define GPT_TEST_ACCUMULATED 2
#include "gpt_test.h"
#include "owned.h"

enum { N_STEPS = 3 };
static const gpt_update_values update = {{0.01, 0.9, 0.99, 1e-8, 0.1, 0}, 0.05, 0};

static gpt_config random_config(void) {
    gpt_config config =
        gpt_test_config((int32_t)memo_test_int(2, 4), 16, 2, 1, memo_test_int(3, 24), 1, 8, 0.1);
    if (memo_test_int(0, 1)) config = with_swiglu(config);
    if (memo_test_int(0, 2) == 0) config = with_tied_tables(config);
    if (memo_test_int(0, 2) == 0) config.slice_rows = 8;
    if (memo_test_int(0, 1)) config.type = MEMO_TYPE_BF16;
    return config;
}

/* --states f32, bf16, pure-bf16, 8bit. */
enum { N_KINDS = 4 };
static gpt_config with_states(gpt_config config, int kind) {
    config.states = kind == 0 ? MEMO_TYPE_F32 : kind < 3 ? MEMO_TYPE_BF16 : MEMO_TYPE_U8;
    config.is_pure = kind > 1;
    return config;
}

/* The micro-batches of a step. */
static memo_status run_gradients(gpt_model* model, int64_t step, const gpt_update_values* values) {
    const gpt_config* config = &model->config;
    const int64_t n = config->batch * config->sequence;
    const uint8_t* tokens = gpt_test_text() + step * GPT_TEST_ACCUMULATED * n;
    memo_status status = MEMO_STATUS_OK;
    gpt_set_update(model, values);
    for (int64_t m = 0; m < GPT_TEST_ACCUMULATED && !status; m++, tokens += n)
        status = gpt_micro_batch(model, tokens, tokens + 1, step, m,
                                 1.0 / (double)(GPT_TEST_ACCUMULATED * n), &error);
    return status;
}

/* ---- a plain reference ------------------------------------------------------------------------- */

/* The numbers of codes without a sign, as the paper has them: decades that end at 10^0, 10^-1 ...,
 * of half as many parts each, from the smallest. */
static int plain_codes(int bits, double values[256]) {
    int n = 0;
    values[n++] = 0;
    for (int decade = 0; decade < bits; decade++) {
        const double end = pow(10, decade + 1 - bits), n_parts = pow(2, decade);
        for (int part = 1; part <= (int)n_parts; part++)
            values[n++] = end / 10 + (end - end / 10) * part / n_parts;
    }
    return n;
}

/* Array `array` of a model, as doubles. */
static double* doubles_of(gpt_model* model, int array) {
    const gpt_config* config = &model->config;
    const memo_type type = array == GPT_GRADIENTS  ? gpt_gradient_type(config)
                           : array >= GPT_MOMENTS1 ? gpt_state_type(config)
                                                   : gpt_full_type(config);
    const int64_t n = model->layout.n;
    double *values = (double*)calloc((size_t)n, sizeof *values), codes[256];
    void* stored = calloc((size_t)n, sizeof(double));
    float* scales = (float*)calloc((size_t)n, sizeof *scales);
    if (!values || !stored || !scales) abort();
    plain_codes(array == GPT_MOMENTS1 ? 7 : 8, codes);
    for (int64_t b = 0; b < gpt_n_buckets(config); b++) {
        const gpt_rows rows = gpt_whole_bucket(model, b);
        gpt_copy_array(model, 0, array, rows, stored);
        if (type == MEMO_TYPE_U8) gpt_copy_array(model, 0, GPT_SCALES, rows, scales);
        for (int64_t i = 0; i < gpt_count(rows); i++) {
            const uint8_t code = ((const uint8_t*)stored)[i];
            double* value = &values[rows.begin + i];
            if (type != MEMO_TYPE_U8)
                *value = (double)gpt_load(stored, type, i);
            else if (array == GPT_MOMENTS1)
                *value = (code & 0x80 ? -1 : 1) * codes[code & 0x7f] * (double)scales[i / 256 * 2];
            else
                *value = codes[code] * (double)scales[i / 256 * 2 + 1];
        }
    }
    CHECK_OK(gpt_finish(model, &error));
    free(stored);
    free(scales);
    return values;
}

static double norm_of(const double* x, gpt_rows rows) {
    double sum = 0;
    for (int64_t i = rows.begin; i < rows.end; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* The factor of bucket b's gradient. */
static double factor_of(const gpt_model* model, const double* g, double before, int64_t b) {
    const int64_t n = gpt_n_buckets(&model->config);
    double norm = norm_of(g, gpt_rows_make(0, model->layout.n)), limit = update.clip;
    if (model->config.clip_by == GPT_CLIP_BEFORE) norm = before;
    if (model->config.clip_by == GPT_CLIP_LAYER) {
        norm = norm_of(g, gpt_whole_bucket(model, b));
        limit /= sqrt((double)n);
    }
    return norm > limit ? limit / norm : 1;
}

/* One after another, with the corrections of the paper. */
static void plain_adamw(const gpt_model* model, int64_t t, double before, const double* g,
                        double* w, double* m, double* v) {
    const gpt_adamw_desc* a = &update.adamw;
    for (int64_t p = 0; p < gpt_n_parameter_tensors(&model->config); p++) {
        const gpt_parameter of = gpt_parameter_at(&model->config, p);
        const double factor = factor_of(model, g, before, gpt_bucket_of(model, of.offset));
        for (int64_t i = of.offset; i < of.offset + of.n; i++) {
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * factor * g[i];
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * pow(factor * g[i], 2);
            const double m_hat = m[i] / (1 - pow(a->beta1, (double)t)),
                         v_hat = v[i] / (1 - pow(a->beta2, (double)t));
            w[i] -= a->learning_rate *
                    (m_hat / (sqrt(v_hat) + a->epsilon) + (of.decays ? a->weight_decay * w[i] : 0));
        }
    }
}

/* Each within so much of its size, and a little. */
static void check_near(const char* what, const double* x, const double* y, int64_t n, double unit) {
    for (int64_t i = 0; i < n; i++) {
        if (fabs(x[i] - y[i]) <= unit * fabs(y[i]) + 1e-7) continue;
        CHECK_CASE(0, "%s %lld: %.9g instead of %.9g", what, (long long)i, x[i], y[i]);
        return;
    }
}

/* Moments of 8 bits: the largest of a block is there, each other is one of the two codes beside it;
 * but not 0, of a second moment. */
static void check_codes(const gpt_model* model, int bits, const double* x, const double* y) {
    double codes[256];
    const int n_codes = plain_codes(bits, codes);
    int64_t n_wrong = 0;
    for (int64_t begin = 0; begin < model->layout.n; begin += 256) {
        double most = 0;
        for (int64_t i = begin; i < begin + 256; i++) most = fmax(most, fabs(y[i]));
        for (int64_t i = begin; i < begin + 256 && most > 0; i++) {
            const double at = fabs(y[i]) / most, is = fabs(x[i]) / most;
            int k = 0;
            while (k + 2 < n_codes && codes[k + 1] <= at) k++;
            const double low = bits == 8 && k == 0 && at > 0 ? codes[1] : codes[k];
            n_wrong += is < low * (1 - 1e-4) || is > codes[k + 1] * (1 + 1e-4);
            n_wrong += x[i] * y[i] < 0;
        }
    }
    CHECK_IS(n_wrong, ==, 0);
}

static void check_moments(const gpt_model* model, int bits, const double* x, const double* y) {
    const memo_type states = gpt_state_type(&model->config);
    if (states == MEMO_TYPE_U8)
        check_codes(model, bits, x, y);
    else
        check_near(bits == 7 ? "moment1" : "moment2", x, y, model->layout.n,
                   states == MEMO_TYPE_BF16 ? 0.01 : 1e-4);
}

static void check_update(gpt_config config) {
    const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    double before = 0, loss = 0;
    own_run run;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    gpt_model* model = run.model;
    const int full = gpt_full_weights(model);
    for (int64_t step = 0; step < N_STEPS; step++) {
        own_memory double* w = doubles_of(model, full);
        own_memory double* m = doubles_of(model, GPT_MOMENTS1);
        own_memory double* v = doubles_of(model, GPT_MOMENTS2);
        CHECK_OK(run_gradients(model, step, &update));
        own_memory double* g = doubles_of(model, GPT_GRADIENTS);
        plain_adamw(model, step + 1, before, g, w, m, v);
        before = norm_of(g, gpt_rows_make(0, model->layout.n));
        CHECK_OK(gpt_update(model, &update, &loss, &error));

        own_memory double* new_w = doubles_of(model, full);
        own_memory double* new_m = doubles_of(model, GPT_MOMENTS1);
        own_memory double* new_v = doubles_of(model, GPT_MOMENTS2);
        IN_CASE("step %lld, clip %d, states %d, pure %d, type %d", (long long)step,
                (int)config.clip_by, (int)config.states, config.is_pure, (int)config.type);
        CHECK_IS(before, >, 2 * update.clip); /* it is clipped */
        check_near("weight", new_w, w, model->layout.n,
                   gpt_full_type(&config) == MEMO_TYPE_BF16 ? 0.01 : 1e-4);
        check_moments(model, 7, new_m, m);
        check_moments(model, 8, new_v, v);
    }
}

TEST(updates_match_a_plain_one) {
    for (int trial = 0; trial < (int)memo_test_cases(6, 60); trial++) {
        gpt_config config = with_states(random_config(), trial % N_KINDS);
        config.clip_by = (gpt_clip)(trial % GPT_N_CLIPS);
        check_update(config);
    }
}

/* Gradients in bf16 are those in fp32, summed over a micro-batch and then rounded. */
TEST(gradients_in_bf16_are_rounded_once_a_micro_batch) {
    for (int trial = 0; trial < (int)memo_test_cases(3, 30); trial++) {
        gpt_config config = random_config();
        double* gradients[2];
        for (int is_pure = 0; is_pure < 2; is_pure++) {
            config.is_pure = is_pure;
            const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
            own_run run;
            CHECK_OK(gpt_test_open(&desc, &run, &error));
            if (!run.model) return;
            CHECK_OK(run_gradients(run.model, 0, &update));
            gradients[is_pure] = doubles_of(run.model, GPT_GRADIENTS);
        }
        const int64_t n = gpt_n_parameters(&config);
        double most = 0;
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(gradients[0][i]));
        for (int64_t i = 0; i < n; i++) /* two micro-batches, which may cancel */
            if (fabs(gradients[1][i] - gradients[0][i]) > fabs(gradients[0][i]) / 128 + most / 256)
                CHECK_CASE(0, "%lld: %g instead of %g", (long long)i, gradients[1][i],
                           gradients[0][i]);
        free(gradients[0]);
        free(gradients[1]);
    }
}

/* Codes are in the order of their numbers, 1 is exact, and what lies between two becomes either, so
 * that its mean is itself. */
TEST(codes_of_8_bits_keep_the_mean) {
    for (int bits = 7; bits <= 8; bits++) {
        double codes[256];
        const int n = plain_codes(bits, codes);
        CHECK_IS(n, ==, 1 << bits);
        CHECK_IS(gpt_code_value(bits, (uint32_t)n - 1), ==, 1);
        for (int k = 0; k < n; k++) {
            const float value = gpt_code_value(bits, (uint32_t)k);
            CHECK_CASE(fabs((double)value - codes[k]) <= 1e-6 * codes[k], "%d: %g", k, codes[k]);
            CHECK_IS(gpt_code_of(bits, value, 0), ==, (uint32_t)k);
            CHECK_IS(gpt_code_of(bits, value, 0xffff), ==, (uint32_t)k);
        }
        for (int trial = 0; trial < 300; trial++) {
            const double x = pow(10, -8.5 * memo_test_real());
            double sum = 0;
            int k = 0;
            while (codes[k + 1] <= x) k++;
            for (uint32_t random = 0; random < 0x10000; random += 16)
                sum += codes[gpt_code_of(bits, (float)x, random)];
            CHECK_CASE(fabs(sum / 4096 - x) <= 1e-3 * (codes[k + 1] - codes[k]) + 1e-6 * x,
                       "%g becomes %g", x, sum / 4096);
        }
        CHECK_IS(gpt_code_of(bits, NAN, 0), ==, 0u);
        CHECK_IS(gpt_code_of(bits, 2, 0), ==, (uint32_t)n - 1);
    }
    CHECK_IS(gpt_moment2_code((gpt_real)1e-30, 1, 0xffff), ==, 1); /* not 0 */
    CHECK_IS(gpt_moment2_code(0, 0, 0), ==, 0);
    CHECK_IS(gpt_moment1_code((gpt_real)-1e-30, 1, 0xffff), ==, 0); /* without a sign */
}

/* ---- every moment, every budget ---------------------------------------------------------------- */

/* Losses of N_STEPS, and all states after them. */
typedef struct outcome {
    double losses[N_STEPS];
    uint64_t digests[GPT_N_ARRAYS];
} outcome;

static outcome outcome_of(gpt_model* model) {
    const int64_t n = model->layout.n;
    own_memory uint8_t* bytes = (uint8_t*)malloc((size_t)n * sizeof(double));
    outcome of = {0};
    for (int64_t step = 0; step < N_STEPS; step++) {
        gpt_update_values values = update; /* a rate of each step, as of a schedule */
        values.adamw.learning_rate /= (double)(step + 1);
        CHECK_OK(run_gradients(model, step, &values));
        CHECK_OK(gpt_update(model, &values, &of.losses[step], &error));
    }
    for (int array = 0; array < GPT_FROZEN; array++) {
        if (array == GPT_GRADIENTS) continue;
        for (int64_t b = 0; b < gpt_n_buckets(&model->config); b++) {
            const int is_there =
                model->states[GPT_N_PLACES * array + gpt_bucket_place(model, b)].size_bytes > 0;
            const gpt_rows rows = gpt_whole_bucket(model, b);
            if (!is_there) continue;
            gpt_copy_array(model, 0, array, rows, bytes);
            for (int64_t i = 0; i < gpt_array_bytes(model, array, gpt_count(rows)); i++)
                of.digests[array] = gpt_mix(of.digests[array] ^ bytes[i]);
        }
    }
    CHECK_OK(gpt_finish(model, &error));
    return of;
}

static const struct moment {
    const char* name;
    memo_update on;
    int32_t may;
} moments[] = {{"pass", MEMO_UPDATE_DEVICE, 0},
               {"deferred", MEMO_UPDATE_DEVICE, MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS},
               {"fused", MEMO_UPDATE_DEVICE, MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS},
               {"host", MEMO_UPDATE_HOST, 0},
               {"host, fused", MEMO_UPDATE_HOST, MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS}};
enum { N_MOMENTS = sizeof moments / sizeof *moments };

/* A model at a moment, in a device of exactly these bytes; 0: the least. */
static void check_moment(gpt_config config, const struct moment* at, int64_t device_bytes,
                         const outcome* expected, int counts[3]) {
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    memo_session_desc budgets = {0};
    own_run run = {0};
    budgets.update_on = at->on;
    budgets.update_may = at->may;
    desc.session = &budgets;
    gpt_test_attach(&run, &desc);
    budgets.device_bytes = device_bytes ? device_bytes : gpt_test_least(desc);
    CHECK_OK(gpt_plan(&desc, NULL, &run.step, &error));
    if (!run.step || !run.step->fits) return;
    memo_host_device_desc host = {.device_memory_bytes = run.step->device_bytes};
    host.host_memory_bytes =
        run.step->host_bytes + gpt_staging_bytes(&config, desc.n_micro_batches);
    desc.plan = run.step;
    CHECK_OK(memo_host_device_create(&host, &run.host, &error));
    gpt_test_attach(&run, &desc);
    CHECK_OK(gpt_create(&desc, &run.model, &error));
    if (!run.model) return;
    const outcome of = outcome_of(run.model);
    IN_CASE("%s, %lld bytes, clip %d, states %d, pure %d, type %d", at->name,
            (long long)device_bytes, (int)config.clip_by, (int)config.states, config.is_pure,
            (int)config.type);
    CHECK(!memcmp(of.losses, expected->losses, sizeof of.losses));
    for (int array = 0; array < GPT_FROZEN; array++)
        CHECK_CASE(of.digests[array] == expected->digests[array], "array %d", array);
    counts[0] += run.step->n_streamed > 0;
    counts[1] += run.step->update_at == MEMO_UPDATE_FUSED;
    counts[2] += run.step->update_is_on_host;
}

TEST(every_moment_and_budget_gives_the_same_bits) {
    int counts[3] = {0};
    for (int trial = 0; trial < (int)memo_test_cases(3, 40); trial++) {
        gpt_config config = with_states(random_config(), (trial + 2) % N_KINDS);
        config.clip_by = (gpt_clip)((trial + 1) % GPT_N_CLIPS);
        const gpt_desc kept = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
        own_run run;
        CHECK_OK(gpt_test_open(&kept, &run, &error));
        if (!run.model) continue;
        const outcome expected = outcome_of(run.model);
        for (int m = 0; m < N_MOMENTS; m++) {
            const int is_fused = (moments[m].may & MEMO_MAY_FUSE) != 0;
            const int on_host = moments[m].on == MEMO_UPDATE_HOST;
            if (is_fused && config.clip_by == GPT_CLIP_STEP) continue;
            if (on_host && (config.clip_by == GPT_CLIP_LAYER || config.is_tied)) continue;
            check_moment(config, &moments[m], 0, &expected, counts);
            if (m % 3 == trial % 3) /* nothing leaves the device */
                check_moment(config, &moments[m], gpt_test_peak(config, 0, 0), &expected, counts);
        }
    }
    CHECK_IS(counts[0], >, 3); /* streamed, fused, on the host */
    CHECK_IS(counts[1], >, 1);
    CHECK_IS(counts[2], >=, 0);
}
