#include "gpt/model/layout.h"

#include "gpt/model/lora.h"

/* ---- parameters: one flat array ------------------------------------------------------------ */

int32_t gpt_least_degree(const gpt_config* config) {
    int32_t least = gpt_degree(config->tensor), block;
    for (block = 0; block < 2 * config->n_layers && config->degrees; block++)
        if (config->degrees[block] < least) least = config->degrees[block];
    return least;
}

gpt_config gpt_whole_config(const gpt_config* config) {
    gpt_config whole = *config;
    whole.data = whole.ring = whole.ulysses = whole.tensor = whole.sub_batches = 1;
    whole.degrees = NULL;
    return whole;
}

memo_mesh_desc gpt_mesh_desc(const gpt_config* config) {
    const memo_mesh_desc desc = {gpt_degree(config->data),    1,
                                 gpt_degree(config->tensor),  gpt_degree(config->ring),
                                 gpt_degree(config->ulysses), 0};
    return desc;
}

/* The products of norm2: up, and with SwiGLU gate.  Their rows take turns, so that each tensor
 * rank's share of both is one range of rows. */
static int64_t gpt_n_products(const gpt_config* config) {
    return config->mlp == GPT_MLP_SWIGLU ? 2 : 1;
}

static gpt_widths gpt_widths_at(const gpt_config* config, int32_t attention, int32_t mlp) {
    gpt_widths w;
    w.degrees[0] = attention;
    w.degrees[1] = mlp;
    w.q = gpt_q_columns(config) / attention;
    w.kv = gpt_head_size(config) * config->n_kv_heads / attention;
    w.heads = config->n_heads / attention;
    w.wide = gpt_n_chosen(config) * gpt_wide(config) / mlp;
    w.up = gpt_n_products(config) * w.wide;
    return w;
}
gpt_widths gpt_widths_of(const gpt_config* config, int32_t layer) {
    return gpt_widths_at(config, gpt_block_degree(config, 2 * layer),
                         gpt_block_degree(config, 2 * layer + 1));
}
gpt_widths gpt_even_widths(const gpt_config* config) {
    return gpt_widths_at(config, gpt_degree(config->tensor), gpt_degree(config->tensor));
}

static int gpt_is_norm(int w) {
    return w == GPT_W_NORM1 || w == GPT_W_NORM2 || w == GPT_W_FINAL_NORM || w == GPT_W_QUERY_NORM ||
           w == GPT_W_KEY_NORM;
}

/* Each tensor, with offset 0; 0 elements: absent. */
static void gpt_fill_parameters(const gpt_config* config, gpt_widths w,
                                gpt_parameter parameters[GPT_N_W]) {
    const int64_t h = config->hidden, all = gpt_vocabulary(config) * h, wide = gpt_wide(config);
    const int64_t q = gpt_q_columns(config), head = gpt_head_size(config);
    const int64_t e = gpt_n_experts(config), n_chosen = gpt_n_chosen(config);
    const int64_t one_up = w.up / n_chosen, one_wide = w.wide / n_chosen; /* of an expert */
    const int32_t attention = w.degrees[0], mlp = w.degrees[1];
    /* The two matrices that add to the residual stream start smaller, so that the sum over all
     * layers has the size of one (GPT-2). */
    const double std = 0.02, residual_std = std / sqrt(2.0 * config->n_layers);
    /* If an operation reads the whole stream, tensor ranks split its outputs.  If it adds to the
     * stream, they split its inputs. */
    const struct {
        const char* name;
        int64_t n, n_columns, stride, step;
        int32_t degree;
        double std;
    } table[] = {
        {"embedding", all, h, h, 0, 1, std},
        {"norm1", h, h, h, 0, 1, 0},
        {"query", w.q * h, h, h, w.q * h, attention, std},
        {"key", w.kv * h, h, h, w.kv * h, attention, std},
        {"value", w.kv * h, h, h, w.kv * h, attention, std},
        {"query bias", w.q, w.q, w.q, w.q, attention, 0},
        {"key bias", w.kv, w.kv, w.kv, w.kv, attention, 0},
        {"value bias", w.kv, w.kv, w.kv, w.kv, attention, 0},
        {"query norm", head, head, head, 0, 1, 0},
        {"key norm", head, head, head, 0, 1, 0},
        {"projection", h * w.q, w.q, q, w.q, attention, residual_std},
        {"norm2", h, h, h, 0, 1, 0},
        {"router", e * h, h, h, 0, 1, std},
        {"up", e * one_up * h, h, h, one_up * h, mlp, std},
        {"down", e * h * one_wide, one_wide, wide, one_wide, mlp, residual_std},
        {"final norm", h, h, h, 0, 1, 0},
        {"classifier", all, h, h, 0, 1, std},
    };
    MEMOB_TABLE_OF(GPT_N_W, table);

    memset(parameters, 0, GPT_N_W * sizeof *parameters);
    for (int t = 0; t < GPT_N_W; t++) {
        gpt_parameter* p = &parameters[t];
        p->name = table[t].name;
        p->w = t;
        p->n = gpt_has_parameter(config, t) ? table[t].n : 0;
        p->n_columns = table[t].n_columns;
        p->stride = table[t].stride;
        p->step = table[t].step;
        p->degree = table[t].degree;
        p->n_matrices = t == GPT_W_UP || t == GPT_W_DOWN ? (int32_t)e : 1;
        p->initial_std = table[t].std;
        p->initial_mean = gpt_is_norm(t) ? 1 : 0;
        p->decays = table[t].std > 0;
        p->is_partial = gpt_is_norm(t) && t != GPT_W_FINAL_NORM;
    }
}

int gpt_has_parameter(const gpt_config* config, int w) {
    if (w >= GPT_W_QUERY_BIAS && w <= GPT_W_VALUE_BIAS) return config->has_biases;
    if (w == GPT_W_QUERY_NORM || w == GPT_W_KEY_NORM) return config->has_head_norms;
    if (w == GPT_W_ROUTER) return config->experts.n > 0;
    return w != GPT_W_CLASSIFIER || !config->is_tied;
}

int64_t gpt_n_layer_tensors(const gpt_config* config) {
    int64_t n = 0;
    if (config->lora.rank) return gpt_lora_n_tensors(config);
    for (int w = GPT_W_NORM1; w <= GPT_W_DOWN; w++) n += gpt_has_parameter(config, w);
    return n;
}

gpt_layout gpt_layout_make(const gpt_config* config) {
    const int64_t unit = gpt_unit(config) * gpt_n_ranks(config);
    const int32_t least = gpt_least_degree(config);
    gpt_parameter parameters[GPT_N_W];
    gpt_layout l = MEMO_ZERO(gpt_layout);
    l.widths = gpt_widths_at(config, least, least);
    if (config->lora.rank) return gpt_lora_layout(config, l.widths);
    gpt_fill_parameters(config, l.widths, parameters);

    /* Three kinds of buckets, each of which splits evenly among the ranks. */
    l.n = l.layer_stride = 0;
    for (int t = 0; t < GPT_N_W; t++) {
        l.at[t] = l.n;
        l.n += gpt_round_up(parameters[t].n, gpt_unit(config));
        if (t == GPT_W_EMBEDDING || t == GPT_W_DOWN || t == GPT_W_CLASSIFIER)
            l.n = gpt_round_up(l.n, unit);
        if (t != GPT_W_DOWN) continue;
        l.layer_stride = l.n - l.at[GPT_W_NORM1];
        l.n += (config->n_layers - 1) * l.layer_stride;
    }
    if (config->is_tied) l.at[GPT_W_CLASSIFIER] = l.at[GPT_W_EMBEDDING];
    return l;
}

int64_t gpt_n_parameters(const gpt_config* config) { return gpt_layout_make(config).n; }

int64_t gpt_n_parameters_of_token(const gpt_config* config) {
    const int64_t n = gpt_n_parameters(config), e = gpt_n_experts(config);
    gpt_parameter parameters[GPT_N_W];
    gpt_fill_parameters(config, gpt_even_widths(config), parameters);
    return n - config->n_layers * (parameters[GPT_W_UP].n + parameters[GPT_W_DOWN].n) / e *
                   (e - gpt_n_chosen(config));
}

int64_t gpt_n_parameter_tensors(const gpt_config* config) {
    const int64_t n_others = config->lora.rank ? 0 : config->is_tied ? 2 : 3;
    return gpt_n_layer_tensors(config) * config->n_layers + n_others;
}

gpt_parameter gpt_parameter_at(const gpt_config* config, int64_t index) {
    if (config->lora.rank) return gpt_lora_parameter_at(config, index);
    const gpt_layout l = gpt_layout_make(config);
    const int64_t n = gpt_n_layer_tensors(config);
    const int64_t layer = index ? gpt_min((index - 1) / n, config->n_layers - 1) : 0;
    int64_t left = index - layer * n; /* tensors before it, of those that the model has */
    int t = 0;
    gpt_parameter parameters[GPT_N_W];
    for (; left > 0 || !gpt_has_parameter(config, t); t++) left -= gpt_has_parameter(config, t);
    gpt_fill_parameters(config, gpt_widths_of(config, (int32_t)layer), parameters);
    parameters[t].layer = t > GPT_W_EMBEDDING && t <= GPT_W_DOWN ? (int32_t)layer : 0;
    parameters[t].offset = l.at[t] + parameters[t].layer * l.layer_stride;
    return parameters[t];
}

int64_t gpt_element_of_whole(const gpt_parameter* p, int32_t tensor_rank, int64_t i) {
    return tensor_rank % p->degree * p->step + i / p->n_columns * p->stride + i % p->n_columns;
}

/* ---- a rank's rows ------------------------------------------------------------------------- */

gpt_share gpt_share_make(const gpt_config* config, const memo_mesh* mesh) {
    memo_sharding_desc desc = MEMO_ZERO(memo_sharding_desc);
    memo_sharding sliced;
    gpt_share share = MEMO_ZERO(gpt_share);
    desc.kind = config->ring > 1 ? MEMO_SHARDING_ZIGZAG : MEMO_SHARDING_PLAIN;
    desc.ring = config->ring;
    desc.ulysses = config->ulysses;
    desc.n_tokens = config->sequence;
    if (memo_sharding_make(&desc, &share.layout, NULL)) return share; /* the config is valid */
    /* A slice of a sequence over ranks is shared by all of them.  gpt_check_slices sees whether it
     * can be. */
    desc.slice_tokens = config->slice_rows * gpt_degree(config->ring) * gpt_degree(config->ulysses);
    if (config->slice_rows > 0 && config->slice_rows < share.layout.local_tokens &&
        !memo_sharding_make(&desc, &sliced, NULL))
        share.layout = sliced;
    share.batch = config->batch / gpt_degree(config->data);
    share.n_rows = share.batch * share.layout.local_tokens;
    share.n_ranks = gpt_n_ranks(config);
    if (mesh) {
        share.data_rank = mesh->data_rank;
        share.sequence_rank = mesh->sequence_rank;
        share.rank = mesh->gradient_rank;
        share.tensor_rank = mesh->tensor_rank;
    }
    return share;
}

int64_t gpt_n_rows(const gpt_config* config) { return gpt_share_make(config, NULL).n_rows; }

int64_t gpt_token_of(const gpt_share* share, int64_t row) {
    const memo_sharding* layout = &share->layout;
    const int64_t sequence = share->data_rank * share->batch + row / layout->local_tokens;
    const int64_t position =
        memo_sharding_position(layout, share->sequence_rank, row % layout->local_tokens);
    return position < layout->n_tokens ? sequence * layout->n_tokens + position : -1;
}

/* ---- slices and chunks of rows ------------------------------------------------------------- */

int64_t gpt_slice_rows(const gpt_config* config) {
    const int64_t n_rows = gpt_n_rows(config);
    return config->slice_rows > 0 ? gpt_min(config->slice_rows, n_rows) : n_rows;
}
gpt_rows gpt_slice_at(const gpt_config* config, int64_t slice) {
    const int64_t begin = slice * gpt_slice_rows(config);
    return gpt_rows_make(begin, gpt_min(begin + gpt_slice_rows(config), gpt_n_rows(config)));
}

gpt_rows gpt_part_of(const gpt_config* config, int64_t slice_rows, gpt_rows slice, int32_t part) {
    const memo_share share = memo_share_of(slice_rows, gpt_degree(config->sub_batches), part);
    return gpt_rows_make(gpt_min(slice.begin + share.begin, slice.end),
                         gpt_min(slice.begin + share.begin + share.count, slice.end));
}
int gpt_shares_keys(const gpt_config* config) {
    return gpt_n_slices(config) > 1 ||
           config->batch / gpt_degree(config->data) % gpt_degree(config->sub_batches) != 0;
}

gpt_run gpt_run_at(int64_t sequence, gpt_rows rows) {
    gpt_run run;
    run.first = rows.begin % sequence;
    run.batch = run.first ? 0 : gpt_count(rows) / sequence;
    run.rows = rows;
    run.rows.end = gpt_min(rows.end, rows.begin - run.first + sequence);
    if (run.batch) run.rows.end = rows.begin + run.batch * sequence;
    run.adds = run.rows.end % sequence != 0;
    if (!run.batch) run.batch = 1;
    return run;
}

double gpt_keys_seen(const gpt_config* config) {
    const double length =
        (double)config->sequence / (config->documents ? (double)config->documents : 1);
    const double window = (double)config->window;
    return window > 0 && window < length ? window - window * window / (2 * length) : length / 2;
}

/* Most bytes of logits that exist at a time. */
#ifndef GPT_LOGITS_BYTES
#define GPT_LOGITS_BYTES ((int64_t)256 << 20)
#endif

int64_t gpt_chunk_rows(const gpt_config* config) {
    const int64_t quarter = (gpt_slice_rows(config) + 3) / 4;
    return gpt_round_up(config->mlp_rows ? config->mlp_rows : quarter, config->tile_rows);
}

int64_t gpt_loss_rows(const gpt_config* config) {
    const int64_t row_bytes = gpt_vocabulary(config) * memo_type_bytes(config->type);
    const int64_t quarter = gpt_round_up((gpt_slice_rows(config) + 3) / 4, config->tile_rows);
    const int64_t most = GPT_LOGITS_BYTES / row_bytes;
    if (most >= quarter) return quarter;
    if (most >= config->tile_rows) return most / config->tile_rows * config->tile_rows;
    return most > 1 ? most : 1;
}

/* ---- skeletal tensors ---------------------------------------------------------------------- */

memo_type gpt_tensor_type(const gpt_config* config, int tensor) {
    const int is_sum =
        tensor == GPT_RSTD1 || tensor == GPT_RSTD2 || tensor == GPT_LSE || tensor == GPT_ROUTES;
    return is_sum ? gpt_sum_type(config->type) : config->type;
}

/* With order `fine`, or if degrees differ, recomputation needs no sum over ranks: it starts from
 * the input of each block.  Other orders recompute a layer from its input.  They repeat attention's
 * final sum for the recomputed rows of middle. */
static int gpt_has_middle(const gpt_config* config) {
    return gpt_is_split(config) && (config->schedule == MEMO_BLOCKS_FINE || gpt_is_mixed(config));
}

void gpt_fill_tensors(const gpt_config* config, memo_item tensors[GPT_N_TENSORS]) {
    const int64_t hidden = config->hidden;
    const gpt_widths w = gpt_even_widths(config);
    const int64_t n_raw = config->has_head_norms ? 1 : 0; /* 0: absent */
    const char* activated = config->mlp == GPT_MLP_SWIGLU ? "swiglu" : "gelu";
    const int64_t lse = gpt_round_up(w.heads, gpt_degree(config->ulysses));
    /* If degrees differ, a rank has other rows in each block, so a tensor is treated as a whole. */
    const int32_t rows = gpt_is_mixed(config) ? MEMO_WHOLE : MEMO_ROWS;
    const int32_t middle = gpt_has_middle(config) ? MEMO_MOVE : rows;
    const memo_item table[] = {
        MEMO_ITEM("stream", hidden, MEMO_MOVE, MEMO_EDGE),
        MEMO_ITEM("input", hidden, MEMO_MOVE, MEMO_INPUT),
        MEMO_ITEM("norm1", hidden, rows),
        MEMO_ITEM("rstd1", 1, MEMO_WITH),
        MEMO_ITEM("q_raw", n_raw * w.q, rows),
        MEMO_ITEM("k_raw", n_raw * w.kv, rows),
        MEMO_ITEM("q", w.q, rows),
        MEMO_ITEM("k", w.kv, rows, MEMO_LAYER),
        MEMO_ITEM("v", w.kv, rows, MEMO_LAYER),
        MEMO_ITEM("attention", w.q, MEMO_WHOLE),
        MEMO_ITEM("lse", lse, MEMO_WITH),
        MEMO_ITEM("middle", hidden, middle),
        MEMO_ITEM("norm2", hidden, rows),
        MEMO_ITEM("rstd2", 1, MEMO_WITH),
        MEMO_ITEM("router", config->experts.n, rows),
        MEMO_ITEM("routes", 2 * config->experts.n_chosen, MEMO_WITH),
        MEMO_ITEM("up", w.up, rows),
        MEMO_ITEM(activated, w.wide, rows),
    };
    MEMOB_TABLE_OF(GPT_N_TENSORS, table);

    /* From columns to bytes.  memo_blocks recomputes in an order of its own. */
    for (int t = 0; t < GPT_N_TENSORS; t++) {
        tensors[t] = table[t];
        tensors[t].row_bytes *= memo_type_bytes(gpt_tensor_type(config, t));
        if (gpt_is_split(config) && (table[t].away == MEMO_ROWS || table[t].away == MEMO_WHOLE))
            tensors[t].is = MEMO_BY_BACKWARD;
    }
}
