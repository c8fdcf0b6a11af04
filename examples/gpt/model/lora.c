#include "gpt/model/lora.h"

#include "gpt/model/enqueue.h"

/* ---- products with adapters -------------------------------------------------------------------- */

const char* const gpt_lora_names[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                      "gate_proj", "up_proj", "down_proj"};
MEMOB_TABLE_OF(GPT_N_ADAPTED, gpt_lora_names);

/* The product that each is a part of.  turn: of its rows; of n_turns. */
static const struct {
    int w, turn, n_turns;
} gpt_lora_of[] = {{GPT_W_QUERY, 0, 1},      {GPT_W_KEY, 0, 1}, {GPT_W_VALUE, 0, 1},
                   {GPT_W_PROJECTION, 0, 1}, {GPT_W_UP, 1, 2},  {GPT_W_UP, 0, 2},
                   {GPT_W_DOWN, 0, 1}};
MEMOB_TABLE_OF(GPT_N_ADAPTED, gpt_lora_of);

uint32_t gpt_lora_parse(const char* names) {
    uint32_t targets = 0;
    if (!strcmp(names, "all")) return (1u << GPT_N_ADAPTED) - 1;
    while (*names) {
        const size_t n = strcspn(names, ",");
        int i = 0;
        for (; i < GPT_N_ADAPTED; i++) { /* the name, or without _proj */
            const size_t n_name = strlen(gpt_lora_names[i]);
            if ((n == n_name || n + 5 == n_name) && !strncmp(names, gpt_lora_names[i], n)) break;
        }
        if (i == GPT_N_ADAPTED) return 0;
        targets |= 1u << i;
        names += n + (names[n] == ',');
    }
    return targets;
}

static int gpt_lora_has(const gpt_config* config, int target) {
    return (int)(gpt_lora_targets(&config->lora) >> target & 1);
}

memo_status gpt_lora_check(const gpt_config* c, memo_error* error) {
    const gpt_lora* lora = &c->lora;
    if (!lora->rank) return MEMO_STATUS_OK;
    if (lora->rank < 0 || lora->rank > c->hidden)
        return gpt_invalid(error,
                           "--lora %d: a rank from 1 to %d, the width of a token, would work",
                           lora->rank, c->hidden);
    if (!(lora->alpha > 0 && lora->alpha < 1e6))
        return gpt_invalid(error, "--lora-alpha %g: a number above 0, and below 10^6, would work",
                           lora->alpha);
    if (lora->targets >> GPT_N_ADAPTED)
        return gpt_invalid(error, "gpt_config.lora.targets: %#x; bits 0 to %d are known",
                           (unsigned)lora->targets, GPT_N_ADAPTED - 1);
    if (c->mlp == GPT_MLP_SWIGLU) return MEMO_STATUS_OK;
    return gpt_unsupported(error, "--lora %d: --mlp gelu has no gate; --mlp swiglu would work",
                           lora->rank);
}

/* ---- parameters -------------------------------------------------------------------------------- */

/* With offset 0.  Entries of A begin as those of a linear layer in PyTorch, uniformly within 1 /
 * sqrt(inputs); B begins as zero, so that the first loss is that of the model. */
static void gpt_lora_fill(const gpt_config* config, gpt_widths w,
                          gpt_parameter parameters[2 * GPT_N_ADAPTED]) {
    const int64_t h = config->hidden, r = config->lora.rank;
    const int64_t q = gpt_q_columns(config), wide = gpt_wide(config);
    /* Of the whole, and of a rank. */
    const struct {
        int64_t inputs, n_inputs, n_outputs;
        int32_t degree;
        int by_inputs;
    } table[] = {{h, h, w.q, w.degrees[0], 0},      {h, h, w.kv, w.degrees[0], 0},
                 {h, h, w.kv, w.degrees[0], 0},     {q, w.q, h, w.degrees[0], 1},
                 {h, h, w.wide, w.degrees[1], 0},   {h, h, w.wide, w.degrees[1], 0},
                 {wide, w.wide, h, w.degrees[1], 1}};
    MEMOB_TABLE_OF(GPT_N_ADAPTED, table);

    memset(parameters, 0, 2 * GPT_N_ADAPTED * sizeof *parameters);
    for (int k = 0; k < 2 * GPT_N_ADAPTED; k++) {
        gpt_parameter* p = &parameters[k];
        const int i = k / 2, is_b = k % 2, is_split = table[i].by_inputs != is_b;
        p->name = is_b ? "lora_B" : "lora_A";
        p->w = GPT_N_W + k;
        p->n_columns = is_b ? r : table[i].n_inputs;
        p->stride = is_b ? r : table[i].inputs;
        p->n = p->n_columns * (is_b ? table[i].n_outputs : r);
        p->n_matrices = 1;
        p->degree = is_split ? table[i].degree : 1;
        p->step = !is_split ? 0 : is_b ? p->n : p->n_columns;
        p->initial_std = is_b ? 0 : 1 / sqrt(3 * (double)table[i].inputs);
        p->is_uniform = !is_b;
        p->decays = 1;
        p->is_partial = !is_split;
        if (!gpt_lora_has(config, i)) p->n = 0;
    }
}

gpt_lora_product gpt_lora_product_at(const gpt_config* config, int i) {
    gpt_parameter parameters[2 * GPT_N_ADAPTED];
    gpt_lora_product product = {0, 0, 0};
    if (!config->lora.rank || !gpt_lora_has(config, i)) return product;
    gpt_lora_fill(config, gpt_even_widths(config), parameters);
    product.w = gpt_lora_of[i].w;
    product.n_inputs = parameters[2 * i].n_columns;
    product.n_outputs = gpt_lora_of[i].n_turns * parameters[2 * i + 1].n / config->lora.rank;
    return product;
}

int64_t gpt_lora_n_tensors(const gpt_config* config) {
    int64_t n = 0;
    for (int i = 0; i < GPT_N_ADAPTED; i++) n += 2 * gpt_lora_has(config, i);
    return n;
}

/* All buckets but those of layers are empty. */
gpt_layout gpt_lora_layout(const gpt_config* config, gpt_widths widths) {
    gpt_parameter parameters[2 * GPT_N_ADAPTED];
    gpt_layout l = MEMO_ZERO(gpt_layout);
    l.widths = widths;
    gpt_lora_fill(config, widths, parameters);
    for (int k = 0; k < 2 * GPT_N_ADAPTED; k++) {
        l.at[GPT_N_W + k] = l.layer_stride;
        l.layer_stride += gpt_round_up(parameters[k].n, gpt_unit(config));
    }
    l.layer_stride = gpt_round_up(l.layer_stride, gpt_unit(config) * gpt_n_ranks(config));
    l.n = config->n_layers * l.layer_stride;
    return l;
}

gpt_parameter gpt_lora_parameter_at(const gpt_config* config, int64_t index) {
    const gpt_layout l = gpt_layout_make(config);
    const int64_t n = gpt_lora_n_tensors(config), layer = index / n;
    gpt_parameter parameters[2 * GPT_N_ADAPTED];
    int64_t left = index % n; /* tensors of the layer before it */
    int k = 0;
    gpt_lora_fill(config, gpt_widths_of(config, (int32_t)layer), parameters);
    for (; left > 0 || !gpt_lora_has(config, k / 2); k++) left -= gpt_lora_has(config, k / 2);
    parameters[k].layer = (int32_t)layer;
    parameters[k].offset = l.at[GPT_N_W + k] + layer * l.layer_stride;
    return parameters[k];
}

void gpt_lora_put_name(const gpt_parameter* p, char* text, size_t n_text) {
    const int k = p->w - GPT_N_W, i = k / 2;
    const char* block =
        gpt_lora_of[i].w == GPT_W_UP || gpt_lora_of[i].w == GPT_W_DOWN ? "mlp" : "self_attn";
    snprintf(text, n_text, "base_model.model.model.layers.%d.%s.%s.%s.weight", (int)p->layer, block,
             gpt_lora_names[i], p->name);
}

/* ---- what adapters add to a product ------------------------------------------------------------ */

/* Parts of the buffer: rows of x A^T and of its gradient; B spread over the rows of a product, and
 * its gradient. */
typedef struct gpt_lora_work {
    gpt_array low, d_low;
    char *spread, *d_spread;
    int64_t n_bytes;
} gpt_lora_work;

static gpt_lora_work gpt_lora_work_at(const gpt_model* model, char* address, gpt_rows rows) {
    const int64_t r = model->config.lora.rank;
    const int64_t of_up = gpt_lora_has(&model->config, 4) || gpt_lora_has(&model->config, 5);
    const int64_t n_spread = of_up * model->base.widths.up * r;
    const int64_t low_bytes = gpt_round_up(gpt_n_bytes(model, gpt_count(rows) * r), GPT_WORK_UNIT);
    const int64_t spread_bytes = gpt_round_up(gpt_n_bytes(model, n_spread), GPT_WORK_UNIT);
    const gpt_array low = {address, rows.begin, r, model->config.type, 0};
    gpt_lora_work work;
    work.low = work.d_low = low;
    work.d_low.address = gpt_offset(address, low_bytes);
    work.spread = gpt_offset(address, 2 * low_bytes);
    work.d_spread = gpt_offset(address, 2 * low_bytes + spread_bytes);
    work.n_bytes = 2 * low_bytes + spread_bytes + gpt_sum_bytes(model, n_spread);
    return work;
}

int64_t gpt_lora_bytes(const gpt_model* model) {
    const gpt_rows all = gpt_rows_make(0, model->slice_rows);
    return model->config.lora.rank ? gpt_lora_work_at(model, NULL, all).n_bytes : 0;
}

/* An adapter of a layer, beside a product of n_turns * n_outputs rows.  Its rows take turns with
 * those of others: they are rows turn, turn + n_turns, ... */
typedef struct gpt_adapter {
    gpt_lora_work work;
    int64_t a, b, n_outputs; /* a, b: parameters */
    int turn, n_turns;
    gpt_product low, high; /* x A^T; what it adds, with all rows of the product */
} gpt_adapter;

static gpt_adapter gpt_adapter_make(gpt_model* model, int32_t layer, int i, gpt_array y,
                                    gpt_rows rows) {
    const gpt_layout* at = &model->layout;
    const gpt_product none = {gpt_lora_names[i], NULL, NULL, 1, 0};
    gpt_adapter of = MEMO_ZERO(gpt_adapter);
    of.work = gpt_lora_work_at(model, gpt_buffer_address(model, GPT_BUFFER_ADAPTER), rows);
    of.a = at->at[GPT_N_W + 2 * i] + layer * at->layer_stride;
    of.b = at->at[GPT_N_W + 2 * i + 1] + layer * at->layer_stride;
    of.turn = gpt_lora_of[i].turn;
    of.n_turns = gpt_lora_of[i].n_turns;
    of.n_outputs = y.n_columns / of.n_turns;
    of.low = of.high = none;
    of.low.weight = gpt_weight(model, of.a);
    of.high.weight = of.n_turns > 1 ? of.work.spread : gpt_weight(model, of.b);
    of.high.scale = model->config.lora.alpha / (double)model->config.lora.rank;
    return of;
}

/* Writes B to its turns of the rows of a matrix of zeros; or adds these rows of the gradient of the
 * matrix to that of B. */
static void gpt_adapter_spread(gpt_model* model, const gpt_adapter* of, int of_gradient) {
    const int64_t r = model->config.lora.rank, n = of->n_outputs * r;
    const memo_type type = of_gradient ? gpt_sum_type(model->config.type) : model->config.type;
    gpt_op op = gpt_op_make(of->low.name, of_gradient ? GPT_KIND_SPREAD_BACKWARD : GPT_KIND_SPREAD);
    gpt_spread_args* a = &op.args.spread;
    if (of->n_turns == 1) return;
    a->n = of->n_turns * n;
    a->n_columns = r;
    a->turn = of->turn;
    a->n_turns = of->n_turns;
    gpt_use(&op, of_gradient ? GPT_READ : GPT_WRITTEN, &a->wide,
            of_gradient ? of->work.d_spread : of->work.spread, type, a->n);
    gpt_use(&op, of_gradient ? GPT_READ | GPT_WRITTEN : GPT_READ, &a->narrow,
            of_gradient ? gpt_gradient(model, of->b) : gpt_weight(model, of->b), type, n);
    gpt_launch(model, &op);
}

static int gpt_lora_is_of(const gpt_model* model, int i, int w) {
    return model->config.lora.rank && gpt_lora_of[i].w == w && gpt_lora_has(&model->config, i);
}

void gpt_lora_forward(gpt_model* model, int32_t layer, int w, gpt_array y, gpt_array x,
                      gpt_rows rows) {
    for (int i = 0; i < GPT_N_ADAPTED; i++) {
        if (!gpt_lora_is_of(model, i, w) || gpt_count(rows) <= 0) continue;
        gpt_adapter of = gpt_adapter_make(model, layer, i, y, rows);
        gpt_adapter_spread(model, &of, 0);
        of.high.adds = 1;
        gpt_multiply(model, &of.low, of.work.low, x, rows);
        gpt_multiply(model, &of.high, y, of.work.low, rows);
    }
}

/* With y = scale (x A^T) B^T: the gradient of x A^T is scale dy B, that of B scale dy^T (x A^T).
 * model->pass is the whole backward's meanwhile: a pass of weights needs both low matrices again. */
static void gpt_adapter_back(gpt_model* model, gpt_pass pass, gpt_adapter* of, const gpt_array* dx,
                             gpt_array dy, gpt_array x, gpt_rows rows) {
    const int64_t r = model->config.lora.rank;
    gpt_adapter_spread(model, of, 0);
    if (pass != GPT_PASS_INPUTS) {
        gpt_multiply(model, &of->low, of->work.low, x, rows);
        of->low.dweight = gpt_gradient(model, of->a);
        of->high.dweight = of->n_turns > 1 ? of->work.d_spread : gpt_gradient(model, of->b);
        if (of->n_turns > 1)
            gpt_clear(model, of->work.d_spread,
                      gpt_sum_bytes(model, of->n_turns * of->n_outputs * r));
    }
    gpt_multiply_back(model, &of->high, &of->work.d_low, dy, of->work.low, rows);
    if (pass != GPT_PASS_INPUTS) gpt_adapter_spread(model, of, 1);
    of->low.adds = 1;
    gpt_multiply_back(model, &of->low, pass == GPT_PASS_WEIGHTS ? NULL : dx, of->work.d_low, x,
                      rows);
}

void gpt_lora_backward(gpt_model* model, int32_t layer, int w, gpt_array dx, gpt_array dy,
                       gpt_array x, gpt_rows rows) {
    for (int i = 0; i < GPT_N_ADAPTED; i++) {
        if (!gpt_lora_is_of(model, i, w) || gpt_count(rows) <= 0) continue;
        const gpt_pass pass = model->pass;
        gpt_adapter of = gpt_adapter_make(model, layer, i, dy, rows);
        model->pass = GPT_PASS_BOTH;
        gpt_adapter_back(model, pass, &of, &dx, dy, x, rows);
        model->pass = pass;
    }
}
