#include "gpt/model/experts.h"

#include "gpt/model/lora.h"

memo_status gpt_experts_check(const gpt_config* c, memo_error* error) {
    const gpt_experts* e = &c->experts;
    const double rows = (double)c->sequence * (double)c->batch, wide = (double)gpt_wide(c);
    if (!e->n) return MEMO_STATUS_OK;
    if (e->n < 1 || e->n > 4096 || e->n_chosen < 1 || e->n_chosen > e->n)
        return gpt_invalid(error,
                           "gpt_config.experts: %d of %d; 1 to all of at most 4096 would work",
                           e->n_chosen, e->n);
    /* As gpt_check_model: no product of sizes exceeds 64 bits. */
    if (2 * wide * e->n_chosen > 1 << 30 ||
        16.0 * c->n_layers * wide * (3.0 * e->n * c->hidden + 3.0 * e->n_chosen * rows) > 1e18)
        return gpt_invalid(error,
                           "%d experts of %g columns in %d layers need more than 10^18 bytes, or a "
                           "row more than 2^30 columns; fewer of each would work",
                           e->n, wide, c->n_layers);

    if (c->mlp != GPT_MLP_SWIGLU)
        return gpt_unsupported(error, "--mlp gelu: experts have gates; --mlp swiglu would work");
    if (gpt_is_split(c))
        return gpt_unsupported(error,
                               "--tensor %d, --sub-batches %d: do not work with experts; --data, "
                               "--ring, --ulysses and --zero would work",
                               gpt_degree(c->tensor), gpt_degree(c->sub_batches));
    if (c->lora.rank && gpt_lora_targets(&c->lora) >> GPT_LORA_GATE)
        return gpt_unsupported(error, "--lora-targets: experts have no adapters; --lora-targets "
                                      "q,k,v,o would work");
    return MEMO_STATUS_OK;
}

/* ---- the router ------------------------------------------------------------------------------ */

/* dlogits, dshares: of the backward; NULL: the forward. */
static void gpt_enqueue_routes(gpt_model* model, gpt_array logits, gpt_array routes,
                               const gpt_array* dlogits, const gpt_array* dshares, gpt_rows rows) {
    gpt_op op = gpt_op_make("routes", dlogits ? GPT_KIND_ROUTE_BACKWARD : GPT_KIND_ROUTE);
    gpt_route_args* a = &op.args.route;
    a->rows = rows;
    a->n_experts = model->config.experts.n;
    a->n_chosen = model->config.experts.n_chosen;
    a->is_normed = model->config.experts.is_normed;
    gpt_use_rows(&op, dlogits ? GPT_READ : GPT_WRITTEN, &a->routes, routes, rows);
    gpt_use_rows(&op, GPT_READ, &a->logits, logits, rows);
    if (dlogits) {
        gpt_use_rows(&op, GPT_WRITTEN, &a->dlogits, *dlogits, rows);
        gpt_use_rows(&op, GPT_READ, &a->dshares, *dshares, rows);
    }
    gpt_launch(model, &op);
}

void gpt_choose_experts(gpt_model* model, int32_t layer, gpt_array logits, gpt_array routes,
                        gpt_array x, gpt_rows rows) {
    if (!model->config.experts.n) return;
    gpt_linear(model, layer, GPT_W_ROUTER, logits, x, rows);
    gpt_enqueue_routes(model, logits, routes, NULL, NULL, rows);
}

/* ---- products -------------------------------------------------------------------------------- */

static gpt_op gpt_experts_op(gpt_model* model, int w, gpt_kind kind, gpt_array y, gpt_array x,
                             gpt_rows rows) {
    gpt_op op = gpt_op_make(w == GPT_W_UP ? "up of experts" : "down of experts", kind);
    gpt_experts_args* a = &op.args.experts;
    a->rows = rows;
    a->n_experts = model->config.experts.n;
    a->n_chosen = model->config.experts.n_chosen;
    a->spreads = w == GPT_W_UP;
    a->n_outputs = y.n_columns / (a->spreads ? a->n_chosen : 1);
    a->n_inputs = x.n_columns / (a->spreads ? 1 : a->n_chosen);
    return op;
}

void gpt_mlp_product(gpt_model* model, int32_t layer, int w, gpt_array y, gpt_array x,
                     gpt_array routes, gpt_rows rows) {
    gpt_op op;
    gpt_experts_args* a = &op.args.experts;
    if (!model->config.experts.n) {
        gpt_linear(model, layer, w, y, x, rows);
        return;
    }
    op = gpt_experts_op(model, w, GPT_KIND_EXPERTS, y, x, rows);
    gpt_use_rows(&op, GPT_WRITTEN, &a->y, y, rows);
    gpt_use_rows(&op, GPT_READ, &a->x, x, rows);
    gpt_use_rows(&op, GPT_READ, &a->routes, routes, rows);
    gpt_use_weight(model, &op, &a->weight, layer, w, a->n_experts * a->n_outputs * a->n_inputs);
    gpt_launch(model, &op);
}

void gpt_mlp_product_back(gpt_model* model, int32_t layer, int w, gpt_array dx, gpt_array dy,
                          gpt_array x, const gpt_array* t, gpt_array d_logits, gpt_rows rows) {
    gpt_op op;
    gpt_experts_args* a = &op.args.experts;
    gpt_array d_shares = {NULL, 0, 0, MEMO_TYPE_F32, 0};
    if (!model->config.experts.n) {
        gpt_linear_back(model, layer, w, dx, dy, x, 1, rows);
        return;
    }
    op = gpt_experts_op(model, w, GPT_KIND_EXPERTS_BACKWARD, dy, x, rows);
    if (w == GPT_W_DOWN) d_shares = gpt_take_sums(model, rows, a->n_chosen);
    gpt_use_rows(&op, GPT_READ, &a->y, dy, rows);
    gpt_use_rows(&op, GPT_READ, &a->x, x, rows);
    gpt_use_rows(&op, GPT_WRITTEN, &a->dx, dx, rows);
    gpt_use_rows(&op, GPT_READ, &a->routes, t[GPT_ROUTES], rows);
    gpt_use_weight(model, &op, &a->weight, layer, w, a->n_experts * a->n_outputs * a->n_inputs);
    gpt_use_gradient(model, &op, &a->dweight, layer, w, a->n_experts * a->n_outputs * a->n_inputs);
    if (w == GPT_W_DOWN) gpt_use_rows(&op, GPT_WRITTEN, &a->dshares, d_shares, rows);
    gpt_launch(model, &op);
    if (w == GPT_W_UP) {
        gpt_linear_back(model, layer, GPT_W_ROUTER, dx, d_logits, x, 0, rows);
        return;
    }
    gpt_enqueue_routes(model, t[GPT_ROUTER], t[GPT_ROUTES], &d_logits, &d_shares, rows);
    gpt_give(model, d_shares);
}
