/* lora_test.h - shared by tests of adapters: frozen weights in files of memory, random values of
 * adapters.  Include after gpt_test.h. */
#ifndef LORA_TEST_H
#define LORA_TEST_H

static void* lora_allocate(int64_t n, size_t size) {
    void* result = calloc((size_t)n, size);
    if (!result) abort();
    return result;
}

enum { LORA_Q = 1, LORA_V = 4, LORA_GATE = 16, LORA_UP = 32 };

static inline gpt_config with_adapters(gpt_config config, int32_t rank, double alpha,
                                       uint32_t targets) {
    config.mlp = GPT_MLP_SWIGLU;
    config.lora.rank = rank;
    config.lora.alpha = alpha;
    config.lora.targets = targets;
    return config;
}

/* ---- frozen weights ----------------------------------------------------------------------------- */

static int lora_by_name(const void* a, const void* b) {
    return strcmp(((const gpt_stored_tensor*)a)->name, ((const gpt_stored_tensor*)b)->name);
}

/* The tensors of a model, as a file has them.  base (gpt_n_parameters of a model without
 * adapters) are floats. */
static gpt_stored lora_freeze(const gpt_config* base, const double* values) {
    const int64_t n = gpt_n_parameter_tensors(base);
    gpt_stored stored = MEMO_ZERO(gpt_stored);
    stored.tensors = (gpt_stored_tensor*)lora_allocate(2 * n, sizeof *stored.tensors);
    for (int64_t t = 0; t < n; t++) {
        const gpt_parameter p = gpt_parameter_at(base, t);
        const int64_t n_parts = p.w == GPT_W_UP ? 2 : 1, n_rows = p.n / p.n_columns;
        for (int part = 0; part < n_parts; part++) {
            gpt_stored_tensor* to = &stored.tensors[stored.n_tensors++];
            float* floats = (float*)lora_allocate(p.n / n_parts, sizeof *floats);
            to->name = strdup(gpt_weight_name_of(&p, part).text);
            to->path = "frozen";
            to->n = p.n / n_parts;
            to->bytes = (unsigned char*)floats;
            to->n_bytes = 4 * to->n;
            snprintf(to->type, sizeof to->type, "F32");
            for (int64_t row = part; row < n_rows; row += n_parts)
                for (int64_t c = 0; c < p.n_columns; c++)
                    *floats++ = (float)values[p.offset + row * p.n_columns + c];
        }
    }
    qsort(stored.tensors, (size_t)stored.n_tensors, sizeof *stored.tensors, lora_by_name);
    return stored;
}
static void lora_thaw(gpt_stored* stored) {
    for (int64_t t = 0; t < stored->n_tensors; t++) {
        free(stored->tensors[t].name);
        free((void*)(uintptr_t)stored->tensors[t].bytes);
    }
    free(stored->tensors);
    memset(stored, 0, sizeof *stored);
}
#define own_frozen OWNED(lora_thaw) gpt_stored

/* Random values that are floats: of a model without adapters; of adapters, whose B is not zero. */
static double* lora_random(const gpt_config* config) {
    const uint64_t key = memo_test_random();
    double* values = (double*)lora_allocate(gpt_n_parameters(config), sizeof *values);
    for (int64_t t = 0; t < gpt_n_parameter_tensors(config); t++) {
        const gpt_parameter p = gpt_parameter_at(config, t);
        for (int64_t i = 0; i < p.n; i++)
            values[p.offset + i] =
                (double)(float)((p.w < GPT_N_W ? p.initial_mean : 0) +
                                0.1 * gpt_normal(key ^ (uint64_t)t, (uint64_t)i));
    }
    return values;
}

/* ---- a model ------------------------------------------------------------------------------------ */

static void lora_set(gpt_model* model, const double* values) {
    const int64_t n = gpt_n_parameters(&model->config);
    gpt_real* reals = (gpt_real*)lora_allocate(n, sizeof *reals);
    uint16_t* rounded = (uint16_t*)lora_allocate(n, sizeof *rounded);
    const int has_masters = gpt_has_masters(&model->config);
    for (int64_t i = 0; i < n; i++) reals[i] = (gpt_real)values[i];
    for (int64_t i = 0; i < n; i++) rounded[i] = memo_bf16_from_f32((float)values[i]);
    model->status = MEMO_STATUS_OK;
    if (has_masters) gpt_copy_array(model, 1, GPT_MASTERS, gpt_rows_make(0, n), reals);
    gpt_copy_array(model, 1, GPT_WEIGHTS, gpt_rows_make(0, n),
                   has_masters ? (void*)rounded : (void*)reals);
    CHECK(!model->status);
    free(reals);
    free(rounded);
}

#endif
