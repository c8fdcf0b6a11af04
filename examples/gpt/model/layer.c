#include "gpt/model/layer.h"

#include "gpt/model/experts.h"

/* ---- addresses of tensors ------------------------------------------------------------------ */

gpt_array gpt_skeletal(const gpt_model* model, int32_t layer, int tensor, int64_t begin) {
    void* address =
        gpt_is_idle(model) ? NULL : memo_session_get_address(model->session, layer, tensor);
    const gpt_array x = {(char*)address, begin, model->columns[tensor],
                         gpt_tensor_type(&model->config, tensor), 0};
    return x;
}

gpt_rows gpt_part_rows(const gpt_model* model, int32_t part) {
    return gpt_part_of(&model->config, model->slice_rows, model->open, part);
}

gpt_rows gpt_group_rows(const gpt_model* model, gpt_rows part, int32_t degree) {
    const int32_t n_groups = gpt_degree(model->config.tensor) / degree;
    const memo_share share =
        memo_share_of(part.end - part.begin, n_groups, model->share.tensor_rank / degree);
    return gpt_rows_make(part.begin + share.begin, part.begin + share.begin + share.count);
}

static int32_t gpt_degree_of(const gpt_model* model, int32_t layer, int tensor) {
    return gpt_block_degree(&model->config, 2 * layer + (tensor >= GPT_MIDDLE));
}

static int64_t gpt_columns(const gpt_model* model, int32_t layer, int tensor) {
    const int is_split = (tensor >= GPT_Q_RAW && tensor <= GPT_LSE) || tensor >= GPT_UP;
    return model->columns[tensor] *
           (is_split ? gpt_degree(model->config.tensor) / gpt_degree_of(model, layer, tensor) : 1);
}

/* Only the current part's rows.  The engine has room for all rows in the width of the largest
 * degree.  In a smaller one this rank has fewer and wider rows, stored part by part. */
static void gpt_take_part(const gpt_model* model, int32_t layer, int tensor, gpt_array* x) {
    const int32_t degree = gpt_degree_of(model, layer, tensor);
    const int32_t wider = gpt_degree(model->config.tensor) / degree;
    const gpt_rows part = gpt_part_rows(model, model->tensor.part);
    x->address =
        gpt_offset(x->address, part.begin / wider * x->n_columns * memo_type_bytes(x->type));
    x->begin = gpt_group_rows(model, part, degree).begin;
}

gpt_array gpt_tensor(const gpt_model* model, int32_t layer, int tensor) {
    /* All slices of keys, or of values, of a layer lie at one address. */
    const int is_of_layer = model->n_slices > 1 && (tensor == GPT_K || tensor == GPT_V);
    if (tensor >= gpt_n_tensors(&model->config)) return model->chunk[tensor];
    gpt_array x = gpt_skeletal(model, layer, tensor, is_of_layer ? 0 : model->open.begin);
    x.n_columns = gpt_columns(model, layer, tensor);
    if (gpt_is_mixed(&model->config)) gpt_take_part(model, layer, tensor, &x);
    return x;
}

static void gpt_get_tensors(const gpt_model* model, int32_t layer, gpt_array t[GPT_N_TENSORS]) {
    for (int i = 0; i < GPT_N_TENSORS; i++) t[i] = gpt_tensor(model, layer, i);
}

/* ---- a layer ------------------------------------------------------------------------------- */

/* --- two blocks --- */

void gpt_compute_attention(gpt_model* model, int32_t layer, const gpt_rows need[GPT_N_TENSORS],
                           gpt_rows rows, gpt_array y) {
    gpt_array t[GPT_N_TENSORS];
    gpt_get_tensors(model, layer, t);

    gpt_norm(model, layer, GPT_W_NORM1, NULL, t[GPT_NORM1], t[GPT_RSTD1], t[GPT_INPUT],
             need[GPT_NORM1]);
    for (int i = 0; i < 3; i++) {
        /* Norms of heads read q and k before RoPE turns them in place. */
        const int is_normed = model->config.has_head_norms && i < 2;
        const int to = is_normed ? GPT_Q_RAW + i : GPT_Q + i;
        gpt_linear(model, layer, GPT_W_QUERY + i, t[to], t[GPT_NORM1], need[to]);
        if (model->config.has_biases)
            gpt_bias(model, layer, GPT_W_QUERY_BIAS + i, 0, t[to], need[to]);
        if (is_normed)
            gpt_head_norm(model, layer, GPT_W_QUERY_NORM + i, NULL, t[GPT_Q + i], NULL, t[to],
                          need[GPT_Q + i]);
    }
    gpt_rope_rows(model, "RoPE of q", t[GPT_Q], 1, need[GPT_Q]);
    gpt_rope_rows(model, "RoPE of k", t[GPT_K], 1, need[GPT_K]);
    /* A query needs the keys of all earlier rows: attention is computed for all rows or for
     * none. */
    if (gpt_count(need[GPT_ATTENTION])) gpt_attention(model, t, NULL, rows);
    gpt_linear(model, layer, GPT_W_PROJECTION, y, t[GPT_ATTENTION], need[GPT_MIDDLE]);
}

void gpt_compute_mlp(gpt_model* model, int32_t layer, const gpt_rows need[GPT_N_TENSORS]) {
    gpt_array t[GPT_N_TENSORS];
    gpt_get_tensors(model, layer, t);
    gpt_norm(model, layer, GPT_W_NORM2, NULL, t[GPT_NORM2], t[GPT_RSTD2], t[GPT_MIDDLE],
             need[GPT_NORM2]);
    gpt_choose_experts(model, layer, t[GPT_ROUTER], t[GPT_ROUTES], t[GPT_NORM2], need[GPT_ROUTER]);
    gpt_mlp_product(model, layer, GPT_W_UP, t[GPT_UP], t[GPT_NORM2], t[GPT_ROUTES], need[GPT_UP]);
    gpt_activate(model, t[GPT_ACTIVATED], t[GPT_UP], NULL, need[GPT_ACTIVATED]);
}

int64_t gpt_mlp_rows(const gpt_model* model) {
    return model->config.mlp_rows ? model->chunk_rows : model->slice_rows;
}

void gpt_begin_chunk(gpt_model* model, int32_t layer, gpt_rows rows) {
    gpt_rows need[GPT_N_TENSORS];
    if (!model->config.mlp_rows) return;
    for (int t = gpt_n_tensors(&model->config); t < GPT_N_TENSORS; t++) {
        need[t] = rows;
        model->chunk[t] = gpt_take_typed(model, rows, gpt_columns(model, layer, t),
                                         gpt_tensor_type(&model->config, t));
    }
    gpt_compute_mlp(model, layer, need);
}
void gpt_end_chunk(gpt_model* model) {
    if (!model->config.mlp_rows) return;
    model->work.used[0] = model->work.used[1] = 0; /* the next chunk takes the same memory */
}

void gpt_backward_mlp(gpt_model* model, int32_t layer, gpt_array to, gpt_array dx, gpt_rows rows) {
    const int64_t hidden = model->config.hidden;
    const gpt_widths w = gpt_widths_of(&model->config, layer);
    gpt_array t[GPT_N_TENSORS];
    gpt_get_tensors(model, layer, t);

    /* down and the activation. */
    gpt_array masked = gpt_take(model, rows, hidden);
    gpt_drop_elements(model, masked, dx, NULL, layer, GPT_SITE_MLP, rows);
    gpt_array d_logits = gpt_take_at_end(model, rows, model->config.experts.n);
    gpt_array d_activated = gpt_take_at_end(model, rows, w.wide);
    gpt_mlp_product_back(model, layer, GPT_W_DOWN, d_activated, masked, t[GPT_ACTIVATED], t,
                         d_logits, rows);
    gpt_give(model, masked);
    gpt_array d_up = gpt_take(model, rows, w.up);
    gpt_activate(model, d_up, d_activated, &t[GPT_UP], rows);
    gpt_give(model, d_activated);

    /* up and the norm. */
    gpt_array d_norm = gpt_take_at_end(model, rows, hidden);
    gpt_mlp_product_back(model, layer, GPT_W_UP, d_norm, d_up, t[GPT_NORM2], t, d_logits, rows);
    gpt_give(model, d_up);
    gpt_norm(model, layer, GPT_W_NORM2, &to, d_norm, t[GPT_RSTD2], t[GPT_MIDDLE], rows);
    gpt_give(model, d_logits); /* and d_norm */
}

/* A gradient takes the memory of a skeletal tensor of its size if nothing reads that again in this
 * step. */
static gpt_array gpt_take_over(gpt_model* model, int is_free, gpt_array skeletal, gpt_rows rows,
                               int64_t n_columns) {
    return is_free && skeletal.n_columns == n_columns ? skeletal : gpt_take(model, rows, n_columns);
}

/* The gradient of k or v, of all keys that the rows read.  It takes the memory of k or v itself,
 * unless rows of a sequence add to sums. */
static gpt_array gpt_take_keys(gpt_model* model, gpt_array sums, gpt_array skeletal, gpt_rows rows,
                               int64_t n_columns) {
    if (model->shares_keys) return sums;
    return gpt_take_over(model, !gpt_is_mixed(&model->config), skeletal, rows, n_columns);
}
/* The gradient of these rows alone.  Later rows ran before, so that a sum is complete. */
static gpt_array gpt_complete_keys(gpt_model* model, gpt_array keys, gpt_rows rows) {
    const memo_type type = model->config.type;
    if (!model->shares_keys || !gpt_is_rounded(&model->config)) return keys;
    gpt_array rounded = gpt_take(model, rows, keys.n_columns);
    if (model->pass != GPT_PASS_WEIGHTS && gpt_count(rows))
        gpt_cast(model, rounded.address, type, gpt_at(keys, rows.begin), gpt_sum_type(type),
                 gpt_count(rows) * keys.n_columns);
    return rounded;
}

/* The gradient of q or k before their norm (i 0 or 1), from that behind.  rstd is made again. */
static gpt_array gpt_back_head_norm(gpt_model* model, int32_t layer, int i, gpt_array dy,
                                    gpt_array raw, gpt_rows rows) {
    const int64_t n_heads = dy.n_columns / gpt_head_size(&model->config);
    gpt_array dx, rstd;
    if (!model->config.has_head_norms) return dy;
    dx = gpt_take(model, rows, dy.n_columns);
    rstd = gpt_take_sums(model, rows, n_heads);
    gpt_head_norm(model, layer, GPT_W_QUERY_NORM + i, NULL, dx, &rstd, raw, rows);
    gpt_head_norm(model, layer, GPT_W_QUERY_NORM + i, &dx, dy, &rstd, raw, rows);
    gpt_give(model, rstd);
    return dx;
}

void gpt_backward_attention(gpt_model* model, int32_t layer, gpt_array to, gpt_array dx,
                            gpt_rows rows) {
    const int64_t hidden = model->config.hidden;
    const gpt_widths w = gpt_widths_of(&model->config, layer);
    /* Blocks of other degrees have other rows; the pass of weights reads masked and attention
     * again. */
    const int is_free = !gpt_is_mixed(&model->config), is_plain = !gpt_is_split(&model->config);
    gpt_array t[GPT_N_TENSORS], masked, d_norm;
    gpt_attention_back g;
    gpt_get_tensors(model, layer, t);

    /* dq outlives dout.  If it takes the memory of masked, it is written after masked is read. */
    masked = gpt_take_over(model, is_free, t[GPT_MIDDLE], rows, hidden);
    gpt_drop_elements(model, masked, dx, NULL, layer, GPT_SITE_PROJECTION, rows);
    g.dq = gpt_take_over(model, is_plain, t[GPT_MIDDLE], rows, w.q);
    g.dout = gpt_take(model, rows, w.q);
    gpt_linear_back(model, layer, GPT_W_PROJECTION, g.dout, masked, t[GPT_ATTENTION], 1, rows);
    g.dk = gpt_take_keys(model, model->d_key, t[GPT_K], rows, w.kv);
    g.dv = gpt_take_keys(model, model->d_value, t[GPT_V], rows, w.kv);
    /* unused over ranks of a sequence, but small */
    g.delta = gpt_take_sums(model, rows, w.heads);
    gpt_attention(model, t, &g, rows);
    gpt_give(model, g.dout); /* and delta */
    g.dk = gpt_complete_keys(model, g.dk, rows);
    g.dv = gpt_complete_keys(model, g.dv, rows);
    gpt_rope_rows(model, "RoPE of q", g.dq, -1, rows);
    gpt_rope_rows(model, "RoPE of k", g.dk, -1, rows);
    g.dq = gpt_back_head_norm(model, layer, 0, g.dq, t[GPT_Q_RAW], rows);
    g.dk = gpt_back_head_norm(model, layer, 1, g.dk, t[GPT_K_RAW], rows);
    if (model->config.has_biases) {
        gpt_bias(model, layer, GPT_W_QUERY_BIAS, 1, g.dq, rows);
        gpt_bias(model, layer, GPT_W_KEY_BIAS, 1, g.dk, rows);
        gpt_bias(model, layer, GPT_W_VALUE_BIAS, 1, g.dv, rows);
    }
    d_norm = gpt_take_over(model, is_plain, t[GPT_ATTENTION], rows, hidden);
    gpt_linear_back(model, layer, GPT_W_QUERY, d_norm, g.dq, t[GPT_NORM1], 1, rows);
    gpt_linear_back(model, layer, GPT_W_KEY, d_norm, g.dk, t[GPT_NORM1], 0, rows);
    gpt_linear_back(model, layer, GPT_W_VALUE, d_norm, g.dv, t[GPT_NORM1], 0, rows);
    gpt_norm(model, layer, GPT_W_NORM1, &to, d_norm, t[GPT_RSTD1], t[GPT_INPUT], rows);
    gpt_give(model, g.dk); /* and what came after it: the backward is over */
}

/* --- both blocks, one after the other --- */

void gpt_compute_middle(gpt_model* model, int32_t layer, gpt_array y,
                        const gpt_rows need[GPT_N_TENSORS]) {
    gpt_drop_elements(model, gpt_tensor(model, layer, GPT_MIDDLE),
                      gpt_tensor(model, layer, GPT_INPUT), &y, layer, GPT_SITE_PROJECTION,
                      need[GPT_MIDDLE]);
    gpt_compute_mlp(model, layer, need);
}

void gpt_compute(gpt_model* model, int32_t layer, const gpt_rows need[GPT_N_TENSORS]) {
    const gpt_array middle = gpt_tensor(model, layer, GPT_MIDDLE);
    gpt_compute_attention(model, layer, need, model->open, middle);
    gpt_compute_middle(model, layer, middle, need);
}

void gpt_copy_rows(gpt_model* model, gpt_array to, gpt_array from, gpt_rows rows) {
    if (!gpt_count(rows)) return;
    gpt_copy(model, MEMO_COPY_ON_DEVICE, gpt_at(to, rows.begin), gpt_at(from, rows.begin),
             gpt_bytes(to, rows));
}

void gpt_forward_plain(gpt_model* model, int32_t layer, gpt_array x) {
    const gpt_rows all = model->open;
    gpt_rows need[GPT_N_TENSORS];
    memset(need, 0, sizeof need);
    for (int i = 0; i < gpt_n_tensors(&model->config); i++) need[i] = all;
    gpt_copy_rows(model, gpt_tensor(model, layer, GPT_INPUT), x, all);
    gpt_compute(model, layer, need);

    GPT_EACH_PIECE(rows, all, gpt_mlp_rows(model)) {
        gpt_begin_chunk(model, layer, rows);
        gpt_array y = gpt_take(model, rows, model->config.hidden);
        gpt_mlp_product(model, layer, GPT_W_DOWN, y, gpt_tensor(model, layer, GPT_ACTIVATED),
                        gpt_tensor(model, layer, GPT_ROUTES), rows);
        gpt_drop_elements(model, x, gpt_tensor(model, layer, GPT_MIDDLE), &y, layer, GPT_SITE_MLP,
                          rows);
        gpt_give(model, y);
        gpt_end_chunk(model);
    }
}

void gpt_backward_plain(gpt_model* model, int32_t layer, gpt_array dx) {
    GPT_EACH_PIECE(rows, model->open, model->chunk_rows) {
        gpt_begin_phase(model, layer, "recompute");
        gpt_begin_chunk(model, layer, rows);
        gpt_begin_phase(model, layer, "backward");
        gpt_backward_mlp(model, layer, dx, dx, rows);
        gpt_end_chunk(model);
    }
    gpt_backward_attention(model, layer, dx, dx, model->open);
}
