/* generate.c - continues a text, on the host with a key-value cache. */
#include "gpt/kernels/math.h"
#include "gpt/model/enqueue.h"

typedef struct gpt_generator {
    gpt_config config;
    gpt_layout layout;
    int64_t n_positions;
    int64_t document; /* where that of the next token begins */
    gpt_real* memory; /* one allocation for all arrays below */
    gpt_real* parameters;
    gpt_real *keys, *values; /* (layers, positions, kv_hidden) */
    gpt_real* rope;          /* (head size), of a position */
    gpt_real *x, *y, *q;     /* (hidden); y and q: or as wide as q */
    gpt_real* up;            /* (up_wide) */
    gpt_real* lse;           /* (heads) */
    gpt_real* logits;        /* (vocabulary) */
} gpt_generator;

static int gpt_generator_create(gpt_generator* g, const gpt_config* config, int64_t n_positions) {
    gpt_real** const places[10] = {&g->parameters, &g->keys, &g->values, &g->rope, &g->x,
                                   &g->y,          &g->q,    &g->up,     &g->lse,  &g->logits};
    g->config = *config;
    g->layout = gpt_layout_make(config);
    g->n_positions = n_positions;
    g->document = 0;
    const int64_t hidden = config->hidden, q = gpt_q_columns(config),
                  wide = q > hidden ? q : hidden;
    const int64_t n = config->n_layers * n_positions * g->layout.widths.kv;
    const int64_t sizes[10] = {g->layout.n,     n,        n,    gpt_head_size(config),
                               hidden,          wide,     wide, g->layout.widths.up,
                               config->n_heads, GPT_BYTES};
    int64_t n_all = 0;
    for (int i = 0; i < 10; i++) n_all += sizes[i];
    g->memory = (gpt_real*)malloc((size_t)n_all * sizeof(gpt_real));
    if (!g->memory) return 0;
    for (int i = 9; i >= 0; i--) *places[i] = g->memory + (n_all -= sizes[i]);
    return 1;
}

/* y = what the query q at `position` reads of the keys that it sees: `sequence` at most. */
static void gpt_generate_attention(gpt_generator* g, const gpt_real* keys, const gpt_real* values,
                                   int64_t position) {
    const gpt_config* config = &g->config;
    const int64_t begins[2] = {g->document, position + 1};
    gpt_attention_args a = MEMO_ZERO(gpt_attention_args);
    a.shape.first = position;
    a.shape.sequence = position + 1;
    a.shape.n_heads = config->n_heads;
    a.shape.n_kv_heads = config->n_kv_heads;
    a.shape.head_size = gpt_head_size(config);
    a.shape.window = gpt_min(config->window ? config->window : config->sequence, config->sequence);
    a.shape.documents = 1;
    a.begins = begins;
    a.q = g->q;
    a.k = keys;
    a.v = values;
    a.out = g->y;
    a.lse = g->lse;
    for (int64_t head = 0; head < config->n_kv_heads; head++) gpt_attention_forward(&a, 0, head);
}

/* y (outputs) = or += W x (inputs), with weight W (outputs, inputs). */
static void gpt_generate_linear(gpt_real* y, int adds, const gpt_real* x, const gpt_real* weight,
                                int64_t n_outputs, int64_t n_inputs) {
    for (int64_t i = 0; i < n_outputs; i++)
        y[i] = (adds ? y[i] : 0) + gpt_dot(weight + i * n_inputs, x, n_inputs);
}

/* Adds a byte at a position; logits are those that follow it. */
static void gpt_generator_read(gpt_generator* g, uint8_t token, int64_t position) {
    const gpt_layout* at = &g->layout;
    const int64_t hidden = g->config.hidden, kv_hidden = at->widths.kv;
    const int64_t head_size = gpt_head_size(&g->config), q = at->widths.q;
    const double epsilon = gpt_norm_epsilon(&g->config);
    gpt_real rstd;
    memcpy(g->x, g->parameters + at->at[GPT_W_EMBEDDING] + token * hidden,
           (size_t)hidden * sizeof *g->x);
    gpt_rope_row(g->rope, &g->config.rope, position, head_size);

    for (int64_t layer = 0; layer < g->config.n_layers; layer++) {
        const gpt_real* w = g->parameters + layer * at->layer_stride;
        gpt_real* keys = g->keys + layer * g->n_positions * kv_hidden;
        gpt_real* values = g->values + layer * g->n_positions * kv_hidden;
        gpt_real *key = keys + position * kv_hidden, *value = values + position * kv_hidden;

        /* Attention; the keys and values stay for later tokens. */
        gpt_norm_forward(g->y, &rstd, g->x, w + at->at[GPT_W_NORM1], 1, hidden, epsilon);
        gpt_generate_linear(g->q, 0, g->y, w + at->at[GPT_W_QUERY], q, hidden);
        gpt_generate_linear(key, 0, g->y, w + at->at[GPT_W_KEY], kv_hidden, hidden);
        gpt_generate_linear(value, 0, g->y, w + at->at[GPT_W_VALUE], kv_hidden, hidden);
        gpt_rope(g->q, g->rope, 1, 0, 1, 1, g->config.n_heads, head_size);
        gpt_rope(key, g->rope, 1, 0, 1, 1, g->config.n_kv_heads, head_size);
        gpt_generate_attention(g, keys, values, position);
        gpt_generate_linear(g->x, 1, g->y, w + at->at[GPT_W_PROJECTION], hidden, q);

        /* The MLP. */
        gpt_norm_forward(g->y, &rstd, g->x, w + at->at[GPT_W_NORM2], 1, hidden, epsilon);
        gpt_generate_linear(g->up, 0, g->y, w + at->at[GPT_W_UP], at->widths.up, hidden);
        for (int64_t i = 0; i < at->widths.wide; i++)
            g->up[i] = g->config.mlp == GPT_MLP_SWIGLU ? gpt_swiglu(g->up[2 * i], g->up[2 * i + 1])
                                                       : gpt_gelu(g->up[i]);
        gpt_generate_linear(g->x, 1, g->up, w + at->at[GPT_W_DOWN], hidden, at->widths.wide);
    }

    if (g->config.documents && token == g->config.separator) g->document = position + 1;
    gpt_norm_forward(g->y, &rstd, g->x, g->parameters + at->at[GPT_W_FINAL_NORM], 1, hidden,
                     epsilon);
    gpt_generate_linear(g->logits, 0, g->y, g->parameters + at->at[GPT_W_CLASSIFIER], GPT_BYTES,
                        hidden);
}

/* uniform in (0, 1) decides. */
static uint8_t gpt_sample(const gpt_real* logits, double temperature, double uniform) {
    const double max = (double)gpt_max(logits, GPT_BYTES);
    double sum = 0, left;
    int likeliest = 0;
    for (int i = 1; i < GPT_BYTES; i++)
        if (logits[i] > logits[likeliest]) likeliest = i;
    if (temperature <= 0) return (uint8_t)likeliest;
    for (int i = 0; i < GPT_BYTES; i++) sum += exp(((double)logits[i] - max) / temperature);
    left = uniform * sum;
    for (int i = 0; i < GPT_BYTES; i++) {
        left -= exp(((double)logits[i] - max) / temperature);
        if (left < 0) return (uint8_t)i;
    }
    return (uint8_t)likeliest;
}

/* Copies the parameters of all tensor ranks to shares (ranks, parameters); share 0 has this rank's.
 * They are gathered on the device, in the memory of partial sums, which nothing uses between
 * micro-batches, and pass through the staging buffer: shares need not be pinned. */
static void gpt_get_shares(gpt_model* model, char* shares) {
    memo_comm* ranks = model->tensor.ranks;
    const gpt_array room = model->tensor.partial;
    const int64_t n = model->layout.n, n_rows = model->slice_rows;
    const int64_t n_staged =
        gpt_places_bytes(&model->config, model->n_micro_batches) / gpt_n_bytes(model, 1);
    const int64_t most = gpt_min(2 * n_rows * room.n_columns / (ranks->size + 1), n_staged);
    int64_t n_piece;
    for (int64_t at = 0; at < n && !model->status; at += n_piece) {
        n_piece = gpt_min(most, n - at);
        const int64_t n_bytes = gpt_n_bytes(model, n_piece);
        char* own = room.address + ranks->size * n_bytes;
        memcpy(model->staging, shares + gpt_n_bytes(model, at), (size_t)n_bytes);
        gpt_copy(model, MEMO_COPY_TO_DEVICE, own, model->staging, n_bytes);
        GPT_TRY(model, memo_all_gather(ranks, model->compute, own, room.address, n_piece,
                                       model->config.type, &model->error));
        for (int32_t r = 0; r < ranks->size; r++) {
            gpt_copy(model, MEMO_COPY_TO_HOST, model->staging, room.address + r * n_bytes, n_bytes);
            gpt_synchronize(model);
            memcpy(shares + gpt_n_bytes(model, r * n + at), model->staging, (size_t)n_bytes);
        }
    }
}

/* The parameters of all tensor ranks, in the layout of one rank. */
static memo_status gpt_get_whole_parameters(gpt_model* model, const gpt_config* one,
                                            gpt_real* whole, memo_error* error) {
    const memo_comm* ranks = model->tensor.ranks;
    const int64_t size = ranks ? ranks->size : 1;
    const memo_type type = model->config.type;
    const int64_t n_bytes = gpt_n_bytes(model, model->layout.n);
    char* shares = (char*)malloc((size_t)(n_bytes * size));
    if (!shares) return gpt_no_memory("the parameters of all ranks", error);

    model->status = MEMO_STATUS_OK;
    gpt_copy_array(model, 0, GPT_WEIGHTS, gpt_rows_make(0, model->layout.n), shares);
    if (size > 1) gpt_get_shares(model, shares);

    /* Each rank's share of a tensor goes to its place in the whole. */
    for (int64_t t = 0; t < gpt_n_parameter_tensors(one) && !model->status; t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        gpt_real* to = whole + gpt_parameter_at(one, t).offset;
        for (int32_t r = 0; r < p.degree; r++)
            for (int64_t i = 0; i < p.n; i++)
                to[gpt_element_of_whole(&p, r, i)] =
                    gpt_load(shares + r * n_bytes, type, p.offset + i);
    }
    free(shares);
    return gpt_finish(model, error);
}

memo_status gpt_generate(gpt_model* model, const uint8_t* text, int64_t n_text, double temperature,
                         uint64_t seed, uint8_t* result, int64_t n_new, memo_error* error) {
    const int64_t n_read = gpt_min(n_text, model->config.sequence);
    gpt_generator generator;
    if (gpt_vocabulary(&model->config) != GPT_BYTES)
        return gpt_unsupported(error, "only a model of bytes, vocabulary 256, continues a text");
    if (model->config.has_biases || model->config.has_head_norms)
        return gpt_unsupported(error, "a model with biases or norms of heads continues no text");
    if (model->config.experts.n)
        return gpt_unsupported(error, "a model with experts continues no text");
    if (model->config.lora.rank)
        return gpt_unsupported(error, "a model with adapters continues no text");
    if (n_text < 1 || n_new < 0)
        return gpt_invalid(error,
                           "%lld bytes of text and %lld new ones: 1 or more are needed, and not "
                           "a negative number",
                           (long long)n_text, (long long)n_new);

    const gpt_config whole = gpt_whole_config(&model->config);
    if (!gpt_generator_create(&generator, &whole, n_read + n_new))
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "no host memory to generate %lld bytes", (long long)n_new);
    memo_status status =
        gpt_get_whole_parameters(model, &generator.config, generator.parameters, error);

    text += n_text - n_read;
    for (int64_t i = 0; i < n_read && !status; i++) gpt_generator_read(&generator, text[i], i);
    for (int64_t i = 0; i < n_new && !status; i++) {
        result[i] = gpt_sample(generator.logits, temperature, gpt_uniform(seed, (uint64_t)i));
        if (i + 1 < n_new) gpt_generator_read(&generator, result[i], n_read + i);
    }
    free(generator.memory);
    return status;
}
