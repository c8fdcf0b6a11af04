/* test_gpt_update.c - what AdamW makes of a gradient, against a plain reference: clipped by each
 * norm; and the same bits at every moment of the update, in every budget. */
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
    if (memo_test_int(0, 1)) config.states = MEMO_TYPE_BF16;
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

/* Array `array` of a model, as doubles. */
static double* doubles_of(gpt_model* model, int array, memo_type type) {
    const int64_t n = model->layout.n;
    double* values = (double*)calloc((size_t)n, sizeof *values);
    void* stored = calloc((size_t)n, sizeof(double));
    if (!values || !stored) abort();
    for (int64_t b = 0; b < gpt_n_buckets(&model->config); b++) {
        const gpt_rows rows = gpt_whole_bucket(model, b);
        gpt_copy_array(model, 0, array, rows, stored);
        for (int64_t i = rows.begin; i < rows.end; i++)
            values[i] = (double)gpt_load(stored, type, i - rows.begin);
    }
    CHECK_OK(gpt_finish(model, &error));
    free(stored);
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

static void check_update(gpt_config config) {
    const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    const memo_type sums = gpt_sum_type(config.type), states = gpt_state_type(&config);
    const double unit = 1e-4;
    double before = 0, loss = 0;
    own_run run;
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    gpt_model* model = run.model;
    const int full = gpt_full_weights(model);
    const memo_type full_type = full == GPT_MASTERS ? sums : config.type;
    for (int64_t step = 0; step < N_STEPS; step++) {
        own_memory double* w = doubles_of(model, full, full_type);
        own_memory double* m = doubles_of(model, GPT_MOMENTS1, states);
        own_memory double* v = doubles_of(model, GPT_MOMENTS2, states);
        CHECK_OK(run_gradients(model, step, &update));
        own_memory double* g = doubles_of(model, GPT_GRADIENTS, sums);
        plain_adamw(model, step + 1, before, g, w, m, v);
        before = norm_of(g, gpt_rows_make(0, model->layout.n));
        CHECK_OK(gpt_update(model, &update, &loss, &error));

        own_memory double* new_w = doubles_of(model, full, full_type);
        own_memory double* new_m = doubles_of(model, GPT_MOMENTS1, states);
        own_memory double* new_v = doubles_of(model, GPT_MOMENTS2, states);
        IN_CASE("step %lld, clip %d", (long long)step, (int)config.clip_by);
        CHECK_IS(before, >, 2 * update.clip); /* it is clipped */
        check_near("weight", new_w, w, model->layout.n, unit);
        check_near("moment1", new_m, m, model->layout.n, states == MEMO_TYPE_BF16 ? 0.01 : unit);
        check_near("moment2", new_v, v, model->layout.n, states == MEMO_TYPE_BF16 ? 0.01 : unit);
    }
}

TEST(updates_match_a_plain_one) {
    for (int clip = 0; clip < GPT_N_CLIPS; clip++)
        for (int trial = 0; trial < (int)memo_test_cases(2, 20); trial++) {
            gpt_config config = random_config();
            config.clip_by = (gpt_clip)clip;
            check_update(config);
        }
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
    IN_CASE("%s, %lld bytes, clip %d, states %d, type %d", at->name, (long long)device_bytes,
            (int)config.clip_by, (int)config.states, (int)config.type);
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
        gpt_config config = random_config();
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
