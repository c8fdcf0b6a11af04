/* test_models.c - models of other libraries: loss, gradients and ten steps of AdamW against what
 * PyTorch and transformers computed (tests/data/models, tests/trainer/models.py), and of adapters
 * what plain Python computed that has their numbers, with the same bits in every budget; files of
 * every type and split; models and adapters that are refused, and that are written.
 *
 * Weights are a function of a tensor's name and an element's index: nothing here needs PyTorch. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

#include "gpt_test.h"
#include "owned.h"

#ifndef GPT_JSON
TEST(models_are_read) {
    SKIP("built without cJSON (apt-get install libcjson-dev, then make setup)");
}
#else

/* ---- folders -------------------------------------------------------------------------------- */

static char folder[200];
__attribute__((constructor)) static void make_folder(void) {
    snprintf(folder, sizeof folder, "%s/memo-models-XXXXXX", memo_test_folder());
    if (!mkdtemp(folder)) abort();
}
static const char* path_in(const char* name) {
    static char paths[4][GPT_PATH_BYTES];
    static int next;
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s/%s", folder, name);
    return paths[next];
}
static const char* const file_names[] = {"config.json",
                                         "model.safetensors",
                                         "a.safetensors",
                                         "b.safetensors",
                                         "adapter_config.json",
                                         "adapter_model.safetensors",
                                         "model.safetensors.index.json"};
static void clear_folder(void) {
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names; i++)
        unlink(path_in(file_names[i]));
}
__attribute__((destructor)) static void remove_folder(void) {
    clear_folder();
    rmdir(folder);
}

static void write_file(const char* name, const void* bytes, int64_t n_bytes) {
    FILE* file = fopen(path_in(name), "wb");
    if (!file || (n_bytes && fwrite(bytes, (size_t)n_bytes, 1, file) != 1)) abort();
    fclose(file);
}
static char* read_file(const char* path, int64_t* n_bytes) {
    FILE* file = fopen(path, "rb");
    char* bytes = (char*)calloc(1, 1 << 20);
    if (!bytes) abort();
    *n_bytes = file ? (int64_t)fread(bytes, 1, (1 << 20) - 1, file) : -1;
    CHECK_CASE(file != NULL, "no file %s", path);
    if (file) fclose(file);
    return bytes;
}

/* ---- what was computed elsewhere -------------------------------------------------------------- */

enum { MOST_TENSORS = 64, N_SIGNS = 4, N_TIMES = 10 };
static const char name_of_plain_model[] = ".txt", name_of_adapters[] = ".lora.txt";
typedef struct reference_tensor {
    char name[80];
    int64_t rows, columns; /* columns 0: a vector */
    double norm, sums[N_SIGNS];
} reference_tensor;
typedef struct reference {
    int64_t batch, length;
    double rate, beta1, beta2, epsilon, decay;
    gpt_lora lora; /* rank 0: of a model without adapters */
    reference_tensor tensors[MOST_TENSORS];
    int n_tensors, n_steps;
    double steps[N_TIMES];
} reference;

static reference read_reference(const char* name, const char* end) {
    char path[128];
    int64_t n_bytes;
    reference r = {0};
    snprintf(path, sizeof path, "tests/data/models/%s%s", name, end);
    own_memory char* text = read_file(path, &n_bytes);
    for (char* line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        reference_tensor* t = &r.tensors[r.n_tensors];
        long long a, b;
        if (sscanf(line, "batch %lld %lld %lf %lf %lf %lf %lf", &a, &b, &r.rate, &r.beta1, &r.beta2,
                   &r.epsilon, &r.decay) == 7) {
            r.batch = a, r.length = b;
        } else if (sscanf(line, "lora %lld %lld", &a, &b) == 2) {
            r.lora.rank = (int32_t)a, r.lora.alpha = (double)b;
        } else if (sscanf(line, "tensor %79s %lld %lld %lf %lf %lf %lf %lf", t->name, &a, &b,
                          &t->norm, &t->sums[0], &t->sums[1], &t->sums[2], &t->sums[3]) == 8) {
            t->rows = a, t->columns = b;
            r.n_tensors += r.n_tensors < MOST_TENSORS - 1;
        } else if (r.n_steps < N_TIMES && sscanf(line, "step %lf", &r.steps[r.n_steps]) == 1) {
            r.n_steps++;
        } else {
            CHECK_CASE(*line == '#', "%s", line);
        }
    }
    CHECK(r.n_tensors > 15 && r.n_steps == N_TIMES && r.batch > 0);
    return r;
}

/* As in models.py. */
static uint64_t key_of(const char* name) {
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h;
}
static float weight_of(const char* name, int64_t i) {
    const int64_t u = (int64_t)(gpt_mix(key_of(name) ^ (uint64_t)i) >> 40) - (1 << 23);
    return (float)((strstr(name, "norm") ? 1.0 : 0.0) + (double)u / (1 << 25));
}
static int32_t token_of(int64_t sequence, int64_t i, int64_t vocabulary) {
    return (int32_t)(gpt_mix((uint64_t)(1000 * sequence + i)) % (uint64_t)vocabulary);
}
static double sign_of(int k, int64_t i) {
    return gpt_mix(gpt_mix((uint64_t)k) ^ (uint64_t)i) >> 63 ? 1 : -1;
}
static int64_t size_of(const reference_tensor* t) {
    return t->rows * (t->columns ? t->columns : 1);
}

/* ---- files, written without the code that reads them ------------------------------------------- */

typedef enum stored_as { AS_F32, AS_BF16, AS_F16, N_STORED } stored_as;

static uint16_t half_of(float value) { /* of a number that a half can hold */
    int exponent;
    const double fraction = frexp(fabs((double)value), &exponent); /* 0.5 to 1 */
    const unsigned sign = value < 0 ? 0x8000u : 0;
    if (!(fraction > 0)) return (uint16_t)sign;
    if (exponent < -13) return (uint16_t)(sign | (unsigned)ldexp(fraction, exponent + 24));
    return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 |
                      ((unsigned)ldexp(fraction, 11) & 1023));
}

/* Rounds to 8 bits, which all three types hold; a half has no smaller numbers with as many. */
static float coarse(float value) {
    int exponent;
    const double fraction = frexp((double)value, &exponent);
    return exponent < -13 ? 0 : (float)ldexp(rint(ldexp(fraction, 8)), exponent - 8);
}

/* Tensors first to end of the reference. */
static void write_tensors(const char* name, const reference* r, int first, int end, stored_as as) {
    static const char* const types[] = {"F32", "BF16", "F16"};
    own_memory char* bytes = (char*)calloc(1, 1 << 20);
    char* header = bytes + 8;
    int64_t at = 0, n = 0;
    if (!bytes) abort();
    header += sprintf(header, "{");
    for (int t = first; t < end; t++) {
        const int64_t n_bytes = size_of(&r->tensors[t]) * (as ? 2 : 4);
        header +=
            sprintf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld", t > first ? "," : "",
                    r->tensors[t].name, types[as], (long long)r->tensors[t].rows);
        if (r->tensors[t].columns)
            header += sprintf(header, ",%lld", (long long)r->tensors[t].columns);
        header += sprintf(header, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                          (long long)(at + n_bytes));
        at += n_bytes;
    }
    header += sprintf(header, "}");
    n = header - bytes - 8;
    for (int i = 0; i < 8; i++) bytes[i] = (char)(n >> 8 * i);
    for (int t = first; t < end; t++)
        for (int64_t i = 0; i < size_of(&r->tensors[t]); i++) {
            const float exact = weight_of(r->tensors[t].name, i),
                        value = as ? coarse(exact) : exact;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            if (as) bits = as == AS_BF16 ? bits >> 16 : half_of(value);
            for (int k = 0; k < (as ? 2 : 4); k++) *header++ = (char)(bits >> 8 * k & 255);
        }
    write_file(name, bytes, header - bytes);
}

static void write_config(const char* name) {
    char path[128];
    int64_t n_bytes;
    snprintf(path, sizeof path, "tests/data/models/%s.json", name);
    own_memory char* text = read_file(path, &n_bytes);
    write_file("config.json", text, n_bytes);
}
static reference write_model(const char* name, stored_as as) {
    const reference r = read_reference(name, name_of_plain_model);
    clear_folder();
    write_config(name);
    write_tensors("model.safetensors", &r, 0, r.n_tensors, as);
    return r;
}

/* ---- a model from the folder ------------------------------------------------------------------- */

static gpt_config config_of(const reference* r) {
    gpt_config config = gpt_test_config(1, 2, 1, 1, r->length, r->batch, 8, 0);
    gpt_model_file file;
    CHECK_OK(gpt_read_config(folder, &config, &file, &error));
    CHECK_IS(file.end_token, ==, 2);
    return config;
}

/* Loads the folder into an open model. */
static void load(gpt_model* model) {
    gpt_stored stored;
    CHECK_OK(gpt_stored_open(folder, &stored, &error));
    CHECK_OK(gpt_check_weights(&model->config, &stored, &error));
    CHECK_OK(gpt_load_weights(model, &stored, &error));
    gpt_stored_close(&stored);
}

/* Losses of ten steps; gradients of the first, unless NULL. */
static void train(gpt_model* model, const reference* r, float* gradients, double losses[N_TIMES]) {
    const gpt_update_values update = {{r->rate, r->beta1, r->beta2, r->epsilon, r->decay, 0}, 0, 0};
    const int64_t n = r->batch * r->length;
    int32_t tokens[256], targets[256];
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = token_of(i / r->length, i % r->length, model->config.vocabulary);
        targets[i] = token_of(i / r->length, i % r->length + 1, model->config.vocabulary);
    }
    for (int step = 0; step < N_TIMES; step++) {
        CHECK_OK(gpt_micro_batch(model, tokens, targets, step, 0, 1.0 / (double)n, &error));
        if (!step && gradients) CHECK_OK(gpt_get_gradients(model, gradients, &error));
        CHECK_OK(gpt_update(model, &update, &losses[step], &error));
    }
}

/* The gradient of a tensor of the file, in its order: rows of up and gate take turns here. */
static int64_t gradient_in_file(const gpt_config* config, const float* gradients, const char* name,
                                float* to) {
    for (int64_t t = 0; t < gpt_n_parameter_tensors(config); t++) {
        const gpt_parameter p = gpt_parameter_at(config, t);
        const int64_t n_rows = p.n / p.n_columns / gpt_weight_parts(&p);
        const int step = gpt_weight_turns(&p);
        for (int part = 0; part < gpt_weight_parts(&p); part++) {
            if (strcmp(gpt_weight_name_of(&p, part).text, name)) continue;
            for (int64_t row = 0; row < n_rows; row++) {
                const int64_t at = (part / step * n_rows + row) * step + part % step;
                memcpy(to + row * p.n_columns, gradients + p.offset + at * p.n_columns,
                       (size_t)p.n_columns * sizeof *to);
            }
            return n_rows * p.n_columns;
        }
    }
    return 0;
}

static double worst_gradient, worst_loss;
static void check_gradients(const gpt_config* config, const float* gradients, const reference* r) {
    for (int t = 0; t < r->n_tensors; t++) {
        const reference_tensor* tensor = &r->tensors[t];
        static float gradient[1 << 16];
        double squares = 0;
        const int64_t n = gradient_in_file(config, gradients, tensor->name, gradient);
        CHECK_CASE(n == size_of(tensor), "%s: %lld elements", tensor->name, (long long)n);
        for (int64_t i = 0; i < n; i++) squares += pow((double)gradient[i], 2);
        double worst = fabs(sqrt(squares) / tensor->norm - 1);
        for (int k = 0; k < N_SIGNS; k++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += (double)gradient[i] * sign_of(k, i);
            worst = memo_test_worst(worst, fabs(sum - tensor->sums[k]) / tensor->norm);
        }
        CHECK_CASE(worst < 1e-5, "%s: off by %g of its norm", tensor->name, worst);
        worst_gradient = memo_test_worst(worst_gradient, worst);
    }
}

/* Against the reference, and then in the smallest device under several policies: the same bits. */
static void check_family(const char* name) {
    const reference r = write_model(name, AS_F32);
    const gpt_config config = config_of(&r);
    const int64_t n = gpt_n_parameters(&config);
    own_memory float* gradients = (float*)calloc((size_t)n, sizeof *gradients);
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    double losses[N_TIMES], again[N_TIMES];
    own_run run = {0};
    IN_CASE("%s", name);
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    load(run.model);
    train(run.model, &r, gradients, losses);
    check_gradients(&config, gradients, &r);
    for (int step = 0; step < N_TIMES; step++) {
        const double difference = fabs(losses[step] / r.steps[step] - 1);
        CHECK_CASE(difference < (step ? 1e-4 : 1e-6), "step %d: loss %.9g instead of %.9g", step,
                   losses[step], r.steps[step]);
        worst_loss = memo_test_worst(worst_loss, difference);
    }

    for (int policy = MEMO_POLICY_RECOMPUTE; policy <= MEMO_POLICY_MEMO; policy++) {
        memo_session_desc budgets = {.policy = (memo_policy)policy, .alpha = 0.5};
        own_run small = {0};
        desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
        desc.session = &budgets;
        budgets.device_bytes = gpt_test_least(desc);
        CHECK_OK(gpt_plan(&desc, NULL, &small.step, &error));
        if (!small.step) return;
        memo_host_device_desc host = {.device_memory_bytes = small.step->device_bytes};
        desc.plan = small.step;
        CHECK_OK(memo_host_device_create(&host, &small.host, &error));
        gpt_test_attach(&small, &desc);
        CHECK_OK(gpt_create(&desc, &small.model, &error));
        if (!small.model) return;
        CHECK_IS(small.step->n_streamed, >, 0);
        load(small.model);
        train(small.model, &r, NULL, again);
        CHECK_CASE(!memcmp(losses, again, sizeof losses), "policy %d: other bits", policy);
    }
}

/* ---- adapters ---------------------------------------------------------------------------------- */

/* Of all products, or of attention's. */
static void write_adapters(const reference* r) {
    static const char config[] =
        "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"r\":4,\"lora_alpha\":8,"
        "\"lora_dropout\":0.0,\"bias\":\"none\",\"use_dora\":false,"
        "\"rank_pattern\":{},\"modules_to_save\":null,\"inference_mode\":true,"
        "\"target_modules\":[\"v_proj\",\"q_proj\",\"k_proj\",\"o_proj\"%s]}";
    const char* others = r->n_tensors == 28 ? ",\"down_proj\",\"up_proj\",\"gate_proj\"" : "";
    char text[512];
    write_file("adapter_config.json", text, snprintf(text, sizeof text, config, others));
    write_tensors("adapter_model.safetensors", r, 0, r->n_tensors, AS_F32);
}

/* The folder as an adapter, into an open model. */
static void load_adapters(gpt_model* model) {
    gpt_stored stored;
    gpt_lora lora;
    CHECK_OK(gpt_read_adapter(folder, &lora, &error));
    CHECK(lora.rank == model->config.lora.rank);
    CHECK_IS(lora.targets, ==, model->config.experts.n ? 15 : 127);
    CHECK_OK(gpt_stored_open_file(folder, "adapter_model.safetensors", &stored, &error));
    CHECK_OK(gpt_check_weights(&model->config, &stored, &error));
    CHECK_OK(gpt_load_weights(model, &stored, &error));
    gpt_stored_close(&stored);
}

/* A model of the folder with its adapters, in a device of these budgets. */
static void open_adapted(gpt_config config, const gpt_stored* frozen,
                         const memo_session_desc* session, gpt_test_run* run) {
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    memo_session_desc budgets = session ? *session : MEMO_ZERO(memo_session_desc);
    desc.session = &budgets;
    desc.frozen = frozen;
    if (session) budgets.device_bytes = gpt_test_least(desc);
    CHECK_OK(gpt_plan(&desc, NULL, &run->step, &error));
    if (!run->step) return;
    memo_host_device_desc host = {.device_memory_bytes = run->step->device_bytes};
    desc.plan = run->step;
    CHECK_OK(memo_host_device_create(&host, &run->host, &error));
    gpt_test_attach(run, &desc);
    CHECK_OK(gpt_create(&desc, &run->model, &error));
    if (run->model) load_adapters(run->model);
}

/* Of a family, as check_family. */
static void check_adapters(const char* name) {
    const reference whole = write_model(name, AS_F32), r = read_reference(name, name_of_adapters);
    gpt_config config = config_of(&whole);
    double losses[N_TIMES], again[N_TIMES];
    gpt_stored frozen;
    own_run run = {0};
    IN_CASE("%s", name);
    CHECK(r.lora.rank == 4 && r.n_tensors == (config.experts.n ? 16 : 28));
    write_adapters(&r);
    CHECK_OK(gpt_read_adapter(folder, &config.lora, &error));
    CHECK(config.lora.rank == 4 && config.lora.alpha > 7.9 && config.lora.alpha < 8.1);
    own_memory float* gradients = (float*)calloc((size_t)gpt_n_parameters(&config), sizeof(float));
    CHECK_OK(gpt_stored_open(folder, &frozen, &error));
    open_adapted(config, &frozen, NULL, &run);
    if (!run.model) return;
    train(run.model, &r, gradients, losses);
    check_gradients(&config, gradients, &r);
    for (int step = 0; step < N_TIMES; step++) {
        const double difference = fabs(losses[step] / r.steps[step] - 1);
        CHECK_CASE(difference < (step ? 1e-4 : 1e-6), "step %d: loss %.9g instead of %.9g", step,
                   losses[step], r.steps[step]);
        worst_loss = memo_test_worst(worst_loss, difference);
    }

    for (int policy = MEMO_POLICY_RECOMPUTE; policy <= MEMO_POLICY_MEMO; policy++) {
        const memo_session_desc budgets = {.policy = (memo_policy)policy, .alpha = 0.5};
        own_run small = {0};
        open_adapted(config, &frozen, &budgets, &small);
        if (!small.model) break;
        CHECK_IS(small.step->n_streamed, >, 0);
        train(small.model, &r, NULL, again);
        CHECK_CASE(!memcmp(losses, again, sizeof losses), "policy %d: other bits", policy);
    }
    gpt_stored_close(&frozen);
}

TEST(adapters_are_as_in_plain_python) {
    static const char* const names[] = {"llama2", "llama3", "qwen2", "qwen3", "qwen3_moe"};
    for (int i = 0; i < 5; i++) check_adapters(names[i]);
}

/* What is written is read again, with all its bits, in bf16 too. */
TEST(adapters_are_written_as_they_were_trained) {
    for (int as_bf16 = 0; as_bf16 < 2; as_bf16++) {
        const reference whole = write_model("qwen3", as_bf16 ? AS_BF16 : AS_F32),
                        r = read_reference("qwen3", name_of_adapters);
        gpt_config config = config_of(&whole);
        gpt_stored frozen, before, after;
        double losses[2][N_TIMES];
        own_run run = {0}, again = {0};
        write_adapters(&r);
        config.type = as_bf16 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
        CHECK_OK(gpt_read_adapter(folder, &config.lora, &error));
        CHECK_OK(gpt_stored_open(folder, &frozen, &error));
        open_adapted(config, &frozen, NULL, &run);
        if (!run.model) return;
        char* text = gpt_adapter_text(&config.lora, "a model", &error);
        CHECK_OK(gpt_stored_open_file(folder, "adapter_model.safetensors", &before, &error));
        CHECK_OK(gpt_save_weights(run.model, folder, text, 7, &error));
        CHECK_OK(gpt_stored_open_file(folder, "adapter_model.safetensors", &after, &error));
        CHECK_IS(after.n_tensors, ==, before.n_tensors);
        for (int64_t t = 0; t < after.n_tensors; t++) {
            const gpt_stored_tensor *a = &before.tensors[t], *b = &after.tensors[t];
            CHECK_CASE(!strcmp(a->name, b->name) && !strcmp(a->type, b->type) &&
                           a->n_bytes == b->n_bytes && !memcmp(a->dims, b->dims, sizeof a->dims) &&
                           !memcmp(a->bytes, b->bytes, (size_t)a->n_bytes),
                       "%s", a->name);
        }
        gpt_stored_close(&before);
        gpt_stored_close(&after);

        /* After steps, too: the moments begin again, so that only the first loss is the same. */
        train(run.model, &r, NULL, losses[0]);
        CHECK_OK(gpt_save_weights(run.model, folder, text, 7, &error));
        train(run.model, &r, NULL, losses[0]);
        open_adapted(config, &frozen, NULL, &again);
        if (!again.model) return;
        train(again.model, &r, NULL, losses[1]);
        CHECK(!memcmp(&losses[0][0], &losses[1][0], sizeof(double)));
        CHECK_TEXT(text, "\"base_model_name_or_path\":\t\"a model\"");
        free(text);
        gpt_stored_close(&frozen);
    }
}

TEST(adapters_that_are_not_supported_are_refused_by_field) {
    static const struct {
        const char *field, *value, *part;
    } cases[] = {
        {"peft_type", "\"LOHA\"", "peft_type: \"LOHA\" is not supported; LORA would work"},
        {"peft_type", NULL, "peft_type: nothing is not supported"},
        {"bias", "\"all\"", "bias: \"all\" is not supported; none would work"},
        {"lora_dropout", "0.05", "lora_dropout: 0.05 is not supported"},
        {"use_dora", "true", "use_dora: true is not supported; an adapter without it"},
        {"use_rslora", "true", "use_rslora: true"},
        {"rank_pattern", "{\"q_proj\":8}", "rank_pattern: {\"q_proj\":8}"},
        {"modules_to_save", "[\"lm_head\"]", "modules_to_save: [\"lm_head\"]"},
        {"layers_to_transform", "[0]", "layers_to_transform: [0]"},
        {"r", "0", "r: not such a number"},
        {"r", NULL, "r: missing; a whole number"},
        {"r", "4.5", "r: not such a number"},
        {"lora_alpha", "\"8\"", "lora_alpha: not such a number"},
        {"lora_alpha", "-1", "lora_alpha: not such a number"},
        {"lora_alpha", NULL, "lora_alpha: missing"},
        {"target_modules", "\"all-linear\"", "target_modules: \"all-linear\" is not supported"},
        {"target_modules", "[\"q_proj\",\"lm_head\"]", "target_modules: [\"q_proj\",\"lm_head\"]"},
        {"target_modules", "[]", "target_modules: []"},
        {"target_modules", "[3]", "target_modules: [3]"},
    };
    const reference r = read_reference("qwen3", name_of_adapters);
    int64_t n_bytes;
    clear_folder();
    write_adapters(&r);
    own_memory char* good = read_file(path_in("adapter_config.json"), &n_bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON* json = cJSON_Parse(good);
        gpt_lora lora = {0};
        IN_CASE("%s: %s", cases[i].field, cases[i].value ? cases[i].value : "none");
        cJSON_DeleteItemFromObject(json, cases[i].field);
        if (cases[i].value) cJSON_AddRawToObject(json, cases[i].field, cases[i].value);
        char* text = cJSON_Print(json);
        write_file("adapter_config.json", text, (int64_t)strlen(text));
        cJSON_free(text);
        cJSON_Delete(json);
        memset(&error, 0, sizeof error);
        const memo_status status = gpt_read_adapter(folder, &lora, &error);
        CHECK(status && status == error.status);
        CHECK_TEXT(error.message, cases[i].part);
        CHECK_TEXT(error.message, "/adapter_config.json: ");
        CHECK(!strchr(error.message, '\n'));
    }
    gpt_lora lora = {0};
    write_file("adapter_config.json", good, n_bytes / 2);
    CHECK_IS(gpt_read_adapter(folder, &lora, &error), ==, MEMO_STATUS_FORMAT);
    CHECK_TEXT(error.message, "adapter_config.json: not JSON");
    clear_folder();
    CHECK_IS(gpt_read_adapter(folder, &lora, &error), ==, MEMO_STATUS_IO);
}

static void check_adapters_refused(const gpt_config* config, const char* part) {
    gpt_stored stored;
    memset(&error, 0, sizeof error);
    memo_status status = gpt_stored_open_file(folder, "adapter_model.safetensors", &stored, &error);
    if (!status) status = gpt_check_weights(config, &stored, &error);
    CHECK(status == MEMO_STATUS_FORMAT && status == error.status);
    CHECK_TEXT(error.message, part);
    CHECK_TEXT(error.message, "adapter_model.safetensors: tensor `");
    gpt_stored_close(&stored);
}

TEST(adapters_of_another_shape_are_refused_by_tensor) {
    const reference whole = write_model("qwen3", AS_F32),
                    r = read_reference("qwen3", name_of_adapters);
    gpt_config config = config_of(&whole);
    reference other = r;
    int64_t n_bytes;
    write_adapters(&r);
    CHECK_OK(gpt_read_adapter(folder, &config.lora, &error));
    config.lora.rank = 5;
    check_adapters_refused(&config,
                           "lora_A.weight`: shape 4 x 32; adapter_config.json says 5 x 32");
    config.lora.rank = 4;
    config.lora.targets = 1;
    check_adapters_refused(&config, "not one of the adapters that adapter_config.json states");
    config.lora.targets = 0;
    write_tensors("adapter_model.safetensors", &r, 0, r.n_tensors - 1, AS_F32);
    check_adapters_refused(&config, "missing");
    snprintf(other.tensors[3].name, 80, "base_model.model.lm_head.lora_A.weight");
    write_tensors("adapter_model.safetensors", &other, 0, other.n_tensors, AS_F32);
    check_adapters_refused(&config, "missing");
    write_adapters(&r);
    own_memory char* bytes = read_file(path_in("adapter_model.safetensors"), &n_bytes);
    write_file("adapter_model.safetensors", bytes, n_bytes - 8);
    check_adapters_refused(&config, "data_offsets: outside of the file");
}

TEST(llama_2_with_linear_scaling_is_as_in_transformers) { check_family("llama2"); }
TEST(llama_3_with_scaled_frequencies_is_as_in_transformers) { check_family("llama3"); }
TEST(qwen_2_with_biases_and_a_tied_table_is_as_in_transformers) { check_family("qwen2"); }
TEST(qwen_3_with_norms_of_heads_is_as_in_transformers) { check_family("qwen3"); }
TEST(qwen_3_with_experts_is_as_in_plain_python) {
    check_family("qwen3_moe");
    printf("# largest differences: gradient %.2g of its norm, loss %.2g\n", worst_gradient,
           worst_loss);
}

/* ---- every type and split ---------------------------------------------------------------------- */

/* The parameters in the order of the trainer; weights of the folder. */
static float* loaded(const gpt_config* config) {
    const gpt_desc desc = gpt_test_desc(*config, MEMO_POLICY_KEEP, 0);
    float* parameters = (float*)calloc((size_t)gpt_n_parameters(config), sizeof *parameters);
    own_run run = {0};
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model || !parameters) return parameters;
    load(run.model);
    gpt_copy_array(run.model, 0, gpt_full_weights(run.model),
                   gpt_rows_make(0, gpt_n_parameters(config)), parameters);
    CHECK(!run.model->status);
    return parameters;
}

TEST(files_of_every_type_and_split_have_the_same_weights) {
    const reference r = write_model("qwen2", AS_BF16);
    gpt_config config = config_of(&r);
    const size_t n_bytes = (size_t)gpt_n_parameters(&config) * sizeof(float);
    own_memory float* of_bf16 = loaded(&config);
    CHECK(fabs((double)of_bf16[5] - (double)coarse(weight_of(r.tensors[0].name, 5))) < 1e-30);
    write_tensors("model.safetensors", &r, 0, r.n_tensors, AS_F16);
    own_memory float* of_f16 = loaded(&config);
    CHECK(!memcmp(of_bf16, of_f16, n_bytes));

    /* In two files, one of each type; the trainer in bf16 has master weights of fp32. */
    own_memory char* index = (char*)calloc(1, 1 << 14);
    char* at = index + sprintf(index, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (int t = 0; t < r.n_tensors; t++)
        at += sprintf(at, "%s\"%s\":\"%s\"", t ? "," : "", r.tensors[t].name,
                      t < 9 ? "a.safetensors" : "b.safetensors");
    at += sprintf(at, "}}");
    write_file("model.safetensors.index.json", index, at - index);
    write_tensors("a.safetensors", &r, 0, 9, AS_BF16);
    write_tensors("b.safetensors", &r, 9, r.n_tensors, AS_F16);
    write_file("model.safetensors", "", 0);
    config.type = MEMO_TYPE_BF16;
    own_memory float* of_two = loaded(&config);
    CHECK(!memcmp(of_bf16, of_two, n_bytes));
}

/* ---- refusals ----------------------------------------------------------------------------------- */

/* The config of a family, with one field replaced: value NULL is none. */
static void alter_config(const char* name, const char* field, const char* value) {
    char path[128], *text;
    int64_t n_bytes;
    snprintf(path, sizeof path, "tests/data/models/%s.json", name);
    own_memory char* whole = read_file(path, &n_bytes);
    cJSON* json = cJSON_Parse(whole);
    cJSON_DeleteItemFromObject(json, field);
    if (value) cJSON_AddRawToObject(json, field, value);
    text = cJSON_Print(json);
    write_file("config.json", text, (int64_t)strlen(text));
    cJSON_free(text);
    cJSON_Delete(json);
}

TEST(configs_that_are_not_supported_are_refused_by_field) {
    static const struct {
        const char *family, *field, *value, *part;
    } cases[] = {
        {"llama2", "model_type", "\"gemma\"",
         "model_type: \"gemma\" is not supported; llama, qwen2"},
        {"llama2", "model_type", NULL, "model_type:"},
        {"llama2", "hidden_act", "\"gelu\"", "hidden_act: \"gelu\" is not supported"},
        {"llama2", "attention_bias", "true", "attention_bias: true is not supported"},
        {"llama2", "attention_bias", "1", "attention_bias: not true or false"},
        {"llama2", "mlp_bias", "true", "mlp_bias: true"},
        {"llama2", "attention_dropout", "0.1", "attention_dropout: 0.1"},
        {"llama2", "rope_scaling", "{\"type\":\"dynamic\",\"factor\":2}",
         "rope_scaling: {\"type\":\"dynamic\""},
        {"llama2", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2}",
         "rope_scaling: {\"rope_type\":\"yarn\""},
        {"llama2", "rope_scaling", "{\"type\":\"linear\"}", "factor: not a number above 0"},
        {"llama2", "rope_scaling", "3", "rope_scaling: not an object"},
        {"llama3", "rope_scaling",
         "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":64}",
         "high_freq_factor: not above low_freq_factor"},
        {"llama2", "partial_rotary_factor", "0.5", "partial_rotary_factor: 0.5"},
        {"llama2", "num_key_value_heads", "3", "num_key_value_heads: does not divide"},
        {"llama2", "num_hidden_layers", "2.5", "num_hidden_layers: not such a number"},
        {"llama2", "hidden_size", NULL, "hidden_size: missing"},
        {"llama2", "hidden_size", "33", "hidden_size: no multiple of num_attention_heads"},
        {"llama2", "hidden_size", "36", "head_dim: odd"},
        {"llama2", "vocab_size", "1e99", "vocab_size: not such a number"},
        {"llama2", "rms_norm_eps", "-1", "rms_norm_eps: not a number above 0"},
        {"llama2", "quantization_config", "{}", "quantization_config: {}"},
        {"qwen2", "use_sliding_window", "true", "use_sliding_window: true is not supported"},
        {"qwen3", "layer_types", "[\"full_attention\",\"sliding_attention\"]", "layer_types:"},
        {"qwen3", "model_type", "\"qwen3_next\"", "model_type: \"qwen3_next\""},
        {"qwen3", "num_experts", "4", "num_experts: 4"},
        {"qwen3_moe", "num_experts", "0", "num_experts: not such a number"},
        {"qwen3_moe", "num_experts_per_tok", "7", "num_experts_per_tok: above num_experts"},
        {"qwen3_moe", "moe_intermediate_size", "2.5", "moe_intermediate_size: not such a number"},
        {"qwen3_moe", "norm_topk_prob", "1", "norm_topk_prob: not true or false"},
        {"qwen3_moe", "decoder_sparse_step", "2",
         "decoder_sparse_step: 2 is not supported; 1 would work"},
        {"qwen3_moe", "mlp_only_layers", "[0]",
         "mlp_only_layers: [0] is not supported; [] would work"},
        {"qwen3_moe", "output_router_logits", "true",
         "output_router_logits: true is not supported"},
    };
    clear_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gpt_config config = {0};
        gpt_model_file file;
        IN_CASE("%s: %s", cases[i].field, cases[i].value ? cases[i].value : "none");
        alter_config(cases[i].family, cases[i].field, cases[i].value);
        memset(&error, 0, sizeof error);
        const memo_status status = gpt_read_config(folder, &config, &file, &error);
        CHECK(status && status == error.status);
        CHECK_TEXT(error.message, cases[i].part);
        CHECK_TEXT(error.message, "/config.json: ");
        CHECK(!strchr(error.message, '\n'));
    }
    gpt_config config = {0};
    gpt_model_file file;
    write_file("config.json", "{]", 2);
    CHECK_IS(gpt_read_config(folder, &config, &file, &error), ==, MEMO_STATUS_FORMAT);
    CHECK_TEXT(error.message, "config.json: not JSON");
    clear_folder();
    CHECK_IS(gpt_read_config(folder, &config, &file, &error), ==, MEMO_STATUS_IO);
}

/* transformers 5 has both in one field. */
TEST(rope_parameters_are_read) {
    gpt_config config = {0};
    gpt_model_file file;
    clear_folder();
    alter_config("qwen3", "rope_parameters", "{\"rope_theta\":5000,\"rope_type\":\"default\"}");
    CHECK_OK(gpt_read_config(folder, &config, &file, &error));
    CHECK(config.rope.theta > 4999 && config.rope.theta < 5001 &&
          config.rope.kind == GPT_ROPE_PLAIN);
    CHECK(config.head_size == 12 && config.has_head_norms && !config.is_tied && !config.has_biases);
}

static void check_refused(const reference* r, const char* part) {
    const gpt_config config = config_of(r);
    gpt_stored stored;
    memset(&error, 0, sizeof error);
    CHECK_OK(gpt_stored_open(folder, &stored, &error));
    const memo_status status = gpt_check_weights(&config, &stored, &error);
    CHECK(status == MEMO_STATUS_FORMAT && status == error.status);
    CHECK_TEXT(error.message, part);
    CHECK_TEXT(error.message, "model.safetensors: tensor `");
    gpt_stored_close(&stored);
}

TEST(weights_of_another_model_are_refused_by_tensor) {
    const reference r = write_model("qwen3", AS_F32);
    reference other = r;
    write_tensors("model.safetensors", &r, 1, r.n_tensors, AS_F32);
    check_refused(&r, "tensor `model.embed_tokens.weight`: missing");
    write_tensors("model.safetensors", &r, 0, r.n_tensors - 1, AS_F32);
    check_refused(&r, "tensor `lm_head.weight`: missing");
    other.tensors[0].rows++;
    write_tensors("model.safetensors", &other, 0, r.n_tensors, AS_F32);
    check_refused(&r,
                  "tensor `model.embed_tokens.weight`: shape 68 x 32; config.json says 67 x 32");
    other = r;
    snprintf(other.tensors[other.n_tensors++].name, 80, "model.layers.2.input_layernorm.weight");
    other.tensors[other.n_tensors - 1].rows = 32;
    write_tensors("model.safetensors", &other, 0, other.n_tensors, AS_F32);
    check_refused(&r, "tensor `model.layers.2.input_layernorm.weight`: not one of the model");

    /* Frequencies of earlier versions, and the copy of a tied table, are not needed. */
    snprintf(other.tensors[other.n_tensors - 1].name, 80,
             "model.layers.0.self_attn.rotary_emb.inv_freq");
    write_tensors("model.safetensors", &other, 0, other.n_tensors, AS_F32);
    gpt_config config = config_of(&r);
    gpt_stored stored;
    CHECK_OK(gpt_stored_open(folder, &stored, &error));
    CHECK_OK(gpt_check_weights(&config, &stored, &error));
    config.is_tied = 1;
    CHECK_OK(gpt_check_weights(&config, &stored, &error));
    gpt_stored_close(&stored);
}

/* Elements are looked at when they are loaded. */
TEST(weights_that_are_not_finite_are_refused) {
    const reference r = write_model("llama3", AS_F32);
    const gpt_config config = config_of(&r);
    const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    gpt_stored stored;
    int64_t n_bytes;
    own_run run = {0};
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    for (int trial = 0; trial < 4 && run.model; trial++) {
        own_memory char* bytes = read_file(path_in("model.safetensors"), &n_bytes);
        const int64_t at = n_bytes - 4 * memo_test_int(1, 20000);
        char kept[4];
        memcpy(kept, bytes + at, 4);
        memcpy(bytes + at, trial % 2 ? "\0\0\300\177" : "\0\0\200\377", 4);
        write_file("model.safetensors", bytes, n_bytes);
        CHECK_OK(gpt_stored_open(folder, &stored, &error));
        CHECK_IS(gpt_load_weights(run.model, &stored, &error), ==, MEMO_STATUS_FORMAT);
        CHECK_TEXT(error.message, "is not finite");
        gpt_stored_close(&stored);
        memcpy(bytes + at, kept, 4);
        write_file("model.safetensors", bytes, n_bytes);
    }
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* What is written has the bits that were read, and config.json the fields, but for the type. */
TEST(a_model_is_written_as_it_was_read) {
    static const char* const names[] = {"llama2", "qwen2", "qwen3", "qwen3_moe"};
    for (int k = 0; k < 8; k++) {
        const reference r = write_model(names[k % 4], k < 4 ? AS_F32 : AS_BF16);
        gpt_config config = config_of(&r);
        int64_t n_before, n_after;
        own_run run = {0};
        gpt_stored before, after;
        config.type = k < 4 ? MEMO_TYPE_F32 : MEMO_TYPE_BF16;
        const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_RECOMPUTE, 0);
        CHECK_OK(gpt_test_open(&desc, &run, &error));
        if (!run.model) continue;
        load(run.model);
        CHECK_OK(gpt_stored_open(folder, &before, &error)); /* it stays mapped */
        own_memory char* old_config = read_file(path_in("config.json"), &n_before);
        char* text = gpt_config_text(folder, &config, &error);
        CHECK_OK(gpt_save_weights(run.model, folder, text, 7, &error));
        free(text);
        CHECK_OK(gpt_stored_open(folder, &after, &error));
        CHECK_IS(after.n_tensors, ==, r.n_tensors);
        CHECK_IS(after.files[0].mapped.n_bytes, ==, gpt_weights_bytes(&config));
        for (int64_t t = 0; t < after.n_tensors; t++) {
            const gpt_stored_tensor *a = &before.tensors[t], *b = &after.tensors[t];
            CHECK_CASE(!strcmp(a->name, b->name) && a->n_bytes == b->n_bytes &&
                           !strcmp(a->type, b->type) && !memcmp(a->dims, b->dims, sizeof a->dims) &&
                           !memcmp(a->bytes, b->bytes, (size_t)a->n_bytes),
                       "%s", a->name);
        }
        gpt_stored_close(&before);
        gpt_stored_close(&after);
        own_memory char* new_config = read_file(path_in("config.json"), &n_after);
        cJSON *a = cJSON_Parse(old_config), *b = cJSON_Parse(new_config);
        const cJSON* type = cJSON_GetObjectItem(b, "torch_dtype");
        CHECK(type && !strcmp(type->valuestring, k < 4 ? "float32" : "bfloat16"));
        cJSON_DeleteItemFromObject(a, "torch_dtype");
        cJSON_DeleteItemFromObject(b, "torch_dtype");
        CHECK(cJSON_Compare(a, b, 1));
        cJSON_Delete(a);
        cJSON_Delete(b);
    }
}

/* A write that fails leaves the files before it, and none aside. */
TEST(a_failed_write_leaves_what_was_there) {
    const reference r = write_model("qwen3", AS_F32);
    const gpt_config config = config_of(&r);
    const gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    int64_t n_before, n_after;
    own_run run = {0};
    CHECK_OK(gpt_test_open(&desc, &run, &error));
    if (!run.model) return;
    own_memory char* before = read_file(path_in("model.safetensors"), &n_before);
    write_file("model.safetensors.part-9", "x", 1); /* of another run: never opened */
    CHECK_IS(gpt_save_weights(run.model, folder, "{}", 9, &error), ==, MEMO_STATUS_IO);
    CHECK_TEXT(error.message, "model.safetensors: cannot be written: File exists");
    unlink(path_in("model.safetensors.part-9"));
    write_file("config.json.part-9", "x", 1);
    CHECK_IS(gpt_save_weights(run.model, folder, "{}", 9, &error), ==, MEMO_STATUS_IO);
    CHECK_TEXT(error.message, "config.json: cannot be written: File exists");
    unlink(path_in("config.json.part-9"));
    CHECK(access(path_in("model.safetensors.part-9"), F_OK) != 0);
    own_memory char* after = read_file(path_in("model.safetensors"), &n_after);
    CHECK(n_before == n_after && !memcmp(before, after, (size_t)n_before));
    CHECK_OK(gpt_save_weights(run.model, folder, "{}", 9, &error));
    CHECK(access(path_in("model.safetensors.part-9"), F_OK) != 0);
}
#endif
