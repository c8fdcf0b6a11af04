#include "gpt/model/parallel.h"

gpt_rows gpt_updated_part(const gpt_model* model, int64_t bucket) {
    return gpt_bucket_rows(model, GPT_MOMENTS1, bucket);
}

gpt_rows gpt_part_rows_of(gpt_rows part, const gpt_parameter* p) {
    return gpt_rows_in(part, gpt_rows_make(p->offset, p->offset + p->n));
}

/* --- sums of gradients, behind the backward --- */

/* Operations up to gpt_end_sum run on the stream of sums, after all that compute has now.  Returns
 * the compute stream. */
static memo_stream gpt_begin_sum(gpt_model* model) {
    const memo_stream compute = model->compute;
    if (gpt_is_idle(model)) return compute;
    model->status = memo_event_record(&model->device, model->computed, compute, &model->error);
    GPT_TRY(model, memo_event_wait(&model->device, model->computed, model->sums, &model->error));
    model->compute = model->sums;
    return compute;
}

static void gpt_end_sum(gpt_model* model, memo_stream compute) {
    GPT_DO(model, memo_event_record(&model->device, model->summed, model->sums, &model->error));
    model->is_summing = !gpt_is_idle(model);
    model->compute = compute;
}

void gpt_join_sums(gpt_model* model) {
    if (model->is_summing && !gpt_is_idle(model))
        model->status =
            memo_event_wait(&model->device, model->summed, model->compute, &model->error);
    model->is_summing = 0;
}

/* Over the ranks that train copies.  With ZeRO each rank receives its part of the sum. */
static void gpt_sum_copies(gpt_model* model, int64_t bucket) {
    const memo_type type = gpt_sum_type(model->config.type);
    const int64_t begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_count(gpt_whole_bucket(model, bucket));
    const int64_t n_part = n / model->share.n_ranks;
    if (gpt_is_idle(model) || !n) return;
    char* gradients = gpt_gradient(model, begin);
    char* part = gradients + gpt_sum_bytes(model, model->share.rank * n_part);
    if (!model->zero) {
        gpt_all_reduce(model, model->gradient, "sum over ranks", gradients, n, type);
        return;
    }
    gpt_announce_ranges(model, "sum over ranks", gradients, gpt_sum_bytes(model, n), part,
                        gpt_sum_bytes(model, n_part));
    GPT_TRY(model, memo_reduce_scatter(model->gradient, model->compute, gradients, part, n_part,
                                       type, MEMO_REDUCTION_SUM, &model->error));
}

/* Adds what this rank has of a bucket to the gradients of the step. */
static void gpt_add_bucket(gpt_model* model, int64_t bucket) {
    const gpt_rows rows = model->zero ? gpt_part_at(model, bucket, model->share.rank)
                                      : gpt_whole_bucket(model, bucket);
    gpt_add(model, gpt_address(model, GPT_GRADIENTS, rows.begin), gpt_gradient_type(&model->config),
            gpt_gradient(model, rows.begin), gpt_sum_type(model->config.type), gpt_count(rows));
}

/* For degrees 2^a < 2^b. */
static int gpt_level(int32_t degree) {
    int level = 0;
    while (1 << level < degree) level++;
    return level;
}
degree_comms* gpt_pair(gpt_model* model, int32_t degree, int32_t larger) {
    return &model->tensor.pairs[gpt_level(degree)][gpt_level(larger)];
}

/* Ranks that have other rows of a layer's parameter; for a norm, all ranks.  No other stream uses
 * them. */
static memo_comm* gpt_ranks_to_sum(gpt_model* model, const gpt_parameter* p) {
    const int32_t all = gpt_degree(model->config.tensor);
    if (p->is_partial) return model->tensor.norms;
    return p->degree == all ? NULL : gpt_pair(model, p->degree, all)->data;
}

/* Sums the gradients of a layer's bucket that are partial sums on tensor ranks, of the part that
 * this rank updates. */
static void gpt_sum_tensor_ranks(gpt_model* model, int64_t bucket) {
    const gpt_rows part = gpt_updated_part(model, bucket);
    GPT_EACH_TENSOR(t, model, bucket) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        const gpt_rows rows = gpt_part_rows_of(part, &p);
        memo_comm* ranks = gpt_ranks_to_sum(model, &p);
        if (!ranks || !gpt_count(rows) || gpt_is_idle(model)) continue;
        gpt_all_reduce(model, ranks, "sum over tensor ranks",
                       gpt_address(model, GPT_GRADIENTS, rows.begin), gpt_count(rows),
                       gpt_gradient_type(&model->config));
    }
}

/* Three buckets are open in the slices of a single layer. */
static int gpt_has_third_bucket(const gpt_model* model) {
    return model->config.n_layers == 1 && model->n_slices > 1;
}

/* No sum over ranks is under way while the next bucket is open: a layer has one buffer. */
static int gpt_is_alone(const gpt_model* model) {
    return model->share.n_ranks == 1 && gpt_degree(model->config.tensor) == 1;
}

int64_t gpt_bucket_bytes(const gpt_model* model, gpt_buffer buffer) {
    const int64_t first = gpt_count(gpt_whole_bucket(model, 0));
    const int64_t last = gpt_count(gpt_whole_bucket(model, gpt_n_buckets(&model->config) - 1));
    const int64_t of_layer = gpt_count(gpt_whole_bucket(model, 1));
    const int64_t largest = first > last ? first : last;
    const int has_other = !gpt_is_alone(model) || model->n_slices > 1;
    if (!gpt_has_buckets(model)) return 0;
    if (buffer == GPT_BUFFER_OTHER_BUCKET) return has_other ? gpt_sum_bytes(model, of_layer) : 0;
    if (buffer == GPT_BUFFER_THIRD_BUCKET)
        return gpt_has_third_bucket(model) ? gpt_sum_bytes(model, first) : 0;
    return gpt_sum_bytes(model, largest > of_layer ? largest : of_layer);
}

/* Embedding and classifier may be larger than a layer.  Slices of the first layer, and of the last
 * one, have a second bucket open.  Other buckets take the memory that is not under a sum. */
static gpt_buffer gpt_choose_bucket(const gpt_model* model, int64_t bucket) {
    const int64_t n_layers = model->config.n_layers;
    if (bucket == 0 && gpt_has_third_bucket(model)) return GPT_BUFFER_THIRD_BUCKET;
    if (bucket == 0 || bucket == n_layers + 1) return GPT_BUFFER_BUCKET;
    if (gpt_is_alone(model))
        return model->n_slices > 1 ? GPT_BUFFER_OTHER_BUCKET : GPT_BUFFER_BUCKET;
    if (bucket == n_layers || (bucket == 1 && model->n_slices > 1)) return GPT_BUFFER_OTHER_BUCKET;
    return model->summed_in == GPT_BUFFER_BUCKET ? GPT_BUFFER_OTHER_BUCKET : GPT_BUFFER_BUCKET;
}

void gpt_begin_bucket(gpt_model* model, int64_t bucket) {
    const gpt_rows whole = gpt_whole_bucket(model, bucket);
    const int place = gpt_bucket_place(model, bucket);
    const gpt_buffer in = gpt_choose_bucket(model, bucket);
    if (!gpt_has_buckets(model) || !gpt_count(whole)) return;
    if (in == model->summed_in) gpt_give_summed_bucket(model);
    const gpt_array sums = {gpt_buffer_address(model, in), whole.begin, 1,
                            gpt_sum_type(model->config.type), 0};
    model->bucket_in[place] = in;
    model->buckets[place] = sums;
    gpt_clear(model, sums.address, gpt_bytes(sums, whole));
}

void gpt_give_summed_bucket(gpt_model* model) {
    if (!model->has_summed_bucket) return;
    gpt_join_sums(model);
    model->has_summed_bucket = 0;
}

static double* gpt_lanes_of(const gpt_model* model, int64_t part) {
    return &model->totals[GPT_TOTAL_LANES + part * GPT_LANES];
}

static void gpt_add_squares_of(gpt_model* model, int64_t part, gpt_rows rows) {
    gpt_op op = gpt_op_make("squares of the gradient", GPT_KIND_SQUARES);
    gpt_squares_args* a = &op.args.squares;
    a->n = gpt_count(rows);
    if (!a->n) return; /* perhaps of no bucket */
    a->type = gpt_gradient_type(&model->config);
    gpt_use_bytes(&op, GPT_READ, &a->x, gpt_address(model, GPT_GRADIENTS, rows.begin),
                  gpt_array_bytes(model, GPT_GRADIENTS, a->n));
    gpt_use(&op, GPT_WRITTEN, &a->lanes, gpt_lanes_of(model, part), MEMO_TYPE_F64, GPT_LANES);
    gpt_launch(model, &op);
}

int64_t gpt_n_parts(const gpt_model* model) { return model->zero ? 1 : model->share.n_ranks; }

/* Of a bucket, part by part: the sum over ranks has the same order.  Tensor ranks add the elements
 * that no lower rank holds. */
static void gpt_add_squares(gpt_model* model, int64_t bucket) {
    for (int64_t r = 0; r < gpt_n_parts(model); r++) {
        const gpt_rows part = gpt_part_at(model, bucket, model->zero ? model->share.rank : r);
        const int32_t rank = model->share.tensor_rank;
        if (rank == 0) gpt_add_squares_of(model, r, part);
        GPT_EACH_TENSOR(t, model, bucket) {
            const gpt_parameter p = gpt_parameter_at(&model->config, t);
            if (rank > 0 && rank < p.degree)
                gpt_add_squares_of(model, r, gpt_part_rows_of(part, &p));
        }
    }
}

void gpt_end_bucket(gpt_model* model, int64_t bucket) {
    const int is_of_layer = bucket > 0 && bucket < gpt_n_buckets(&model->config) - 1;
    const int over_copies = model->gradient && (gpt_has_buckets(model) || model->is_last);
    /* The gradients of embedding, final norm and classifier are equal on tensor ranks. */
    const int over_tensor_ranks =
        gpt_degree(model->config.tensor) > 1 && model->is_last && is_of_layer;
    if (!gpt_count(gpt_whole_bucket(model, bucket))) return; /* frozen */
    gpt_give_summed_bucket(model);
    const int is_sum = over_copies || over_tensor_ranks;
    const memo_stream compute = is_sum ? gpt_begin_sum(model) : model->compute;
    if (over_copies) gpt_sum_copies(model, bucket);
    if (gpt_has_buckets(model)) gpt_add_bucket(model, bucket);
    if (over_tensor_ranks) gpt_sum_tensor_ranks(model, bucket);
    if (is_sum) gpt_end_sum(model, compute);
    if (model->streams) gpt_join_sums(model);
    if (model->streams && model->is_last && model->config.clip_by != GPT_CLIP_LAYER)
        gpt_add_squares(model, bucket);
    if (!gpt_has_buckets(model)) return;
    model->summed_in = model->bucket_in[gpt_bucket_place(model, bucket)];
    model->has_summed_bucket = 1;
}

static void gpt_reduce_total(gpt_model* model, memo_comm* ranks, int first, int end) {
    if (!ranks || ranks->size == 1) return;
    gpt_all_reduce(model, ranks, "totals over ranks", model->totals + first, end - first,
                   MEMO_TYPE_F64);
}

void gpt_reduce_totals(gpt_model* model) {
    gpt_reduce_total(model, model->tensor.ranks, GPT_TOTAL_VOTES, GPT_N_SUMMED);
    gpt_reduce_total(model, model->gradient, 0, model->zero ? GPT_N_SUMMED : GPT_TOTAL_SQUARES);
}

/* --- the update --- */

/* Adds the lanes of all parts to a total, and clears them. */
static void gpt_add_lanes(gpt_model* model, int total, int vote) {
    double* totals = model->totals;
    for (int64_t r = 0; r < gpt_n_parts(model); r++) {
        gpt_op op = gpt_op_make("gradient norm", GPT_KIND_NORM_TOTAL);
        gpt_total_args* a = &op.args.total;
        gpt_use(&op, GPT_WRITTEN, &a->total, &totals[total], MEMO_TYPE_F64, 1);
        gpt_use(&op, GPT_WRITTEN, &a->vote, &totals[vote], MEMO_TYPE_F64, 1);
        gpt_use(&op, GPT_WRITTEN, &a->lanes, gpt_lanes_of(model, r), MEMO_TYPE_F64, GPT_LANES);
        gpt_use_bytes(&op, GPT_READ, &a->values, model->update, (int64_t)sizeof *model->update);
        gpt_launch(model, &op);
    }
}

void gpt_gradient_norm(gpt_model* model) {
    const int adds = !model->streams && model->config.clip_by != GPT_CLIP_LAYER;
    for (int64_t b = gpt_n_buckets(&model->config); b-- > 0 && adds;) gpt_add_squares(model, b);
    gpt_add_lanes(model, GPT_TOTAL_SQUARES, GPT_TOTAL_VOTES);
}

/* Of a bucket that is updated now, over ranks as gpt_reduce_totals: lanes are free. */
static void gpt_bucket_norm(gpt_model* model, int64_t bucket) {
    double* squares = &model->totals[GPT_TOTAL_BUCKET];
    gpt_clear(model, squares, (int64_t)sizeof *squares);
    gpt_add_squares(model, bucket);
    gpt_add_lanes(model, GPT_TOTAL_BUCKET, GPT_TOTAL_UNUSED);
    gpt_reduce_total(model, model->tensor.ranks, GPT_TOTAL_BUCKET, GPT_TOTAL_BUCKET + 1);
    if (model->zero)
        gpt_reduce_total(model, model->gradient, GPT_TOTAL_BUCKET, GPT_TOTAL_BUCKET + 1);
}

/* The squares that clip an update; NULL: by a factor. */
static const double* gpt_clip_squares(const gpt_model* model, void* const* on_host) {
    if (model->config.clip_by == GPT_CLIP_BEFORE) return NULL;
    if (on_host) return &model->handed->squares;
    return &model->totals[model->config.clip_by == GPT_CLIP_LAYER ? GPT_TOTAL_BUCKET
                                                                  : GPT_TOTAL_SQUARES];
}

/* Updates `rows` of a parameter, on the device or (on_host not NULL) on the host. */
static gpt_adamw_args gpt_adamw_args_make(const gpt_model* model, void* const* on_host,
                                          gpt_rows rows, const gpt_parameter* p) {
    const gpt_handed_update* handed = model->handed;
    gpt_adamw_args a = MEMO_ZERO(gpt_adamw_args);
    a.squares = gpt_clip_squares(model, on_host);
    a.values = on_host ? &handed->values : model->update;
    a.rounding.seed = model->config.seed;
    a.rounding.first = rows.begin;
    a.states = gpt_state_type(&model->config);
    a.summed = gpt_gradient_type(&model->config);
    a.kept = gpt_full_type(&model->config);
    a.decays = p->decays;
    a.n = gpt_count(rows);
    a.parameters = gpt_address_at(model, on_host, gpt_full_weights(model), rows.begin);
    if (gpt_has_masters(&model->config))
        a.weights = gpt_address_at(model, on_host, GPT_WEIGHTS, rows.begin);
    a.gradients = gpt_address_at(model, on_host, GPT_GRADIENTS, rows.begin);
    a.moments1 = gpt_address_at(model, on_host, GPT_MOMENTS1, rows.begin);
    a.moments2 = gpt_address_at(model, on_host, GPT_MOMENTS2, rows.begin);
    if (a.states == MEMO_TYPE_U8) a.scales = gpt_address_at(model, on_host, GPT_SCALES, rows.begin);
    return a;
}

/* Updates the elements of a parameter in this part. */
static void gpt_adamw_part(gpt_model* model, gpt_rows part, const gpt_parameter* p) {
    const gpt_rows rows = gpt_part_rows_of(part, p);
    gpt_op op = gpt_op_make("AdamW", GPT_KIND_ADAMW);
    gpt_adamw_args* a = &op.args.adamw;
    const int64_t n = gpt_count(rows);
    if (!n || gpt_is_idle(model)) return;
    *a = gpt_adamw_args_make(model, NULL, rows, p);
    gpt_use_bytes(&op, GPT_READ, &a->gradients, a->gradients,
                  gpt_array_bytes(model, GPT_GRADIENTS, n));
    if (a->squares)
        gpt_use_bytes(&op, GPT_READ, &a->squares, a->squares, (int64_t)sizeof *a->squares);
    gpt_use_bytes(&op, GPT_READ, &a->values, a->values, (int64_t)sizeof *a->values);
    gpt_use_bytes(&op, GPT_WRITTEN, &a->parameters, a->parameters,
                  gpt_array_bytes(model, gpt_full_weights(model), n));
    if (a->weights) gpt_use_bytes(&op, GPT_WRITTEN, &a->weights, a->weights, gpt_n_bytes(model, n));
    gpt_use_bytes(&op, GPT_WRITTEN, &a->moments1, a->moments1,
                  gpt_array_bytes(model, GPT_MOMENTS1, n));
    gpt_use_bytes(&op, GPT_WRITTEN, &a->moments2, a->moments2,
                  gpt_array_bytes(model, GPT_MOMENTS2, n));
    if (a->scales)
        gpt_use_bytes(&op, GPT_WRITTEN, &a->scales, a->scales,
                      gpt_array_bytes(model, GPT_SCALES, n));
    gpt_launch(model, &op);
}

void gpt_update_bucket(void* user, memo_session* session, int32_t layer) {
    gpt_model* model = (gpt_model*)user;
    const int64_t bucket = layer + 1;
    const gpt_rows part = gpt_updated_part(model, bucket);
    snprintf(model->phase, sizeof model->phase, "update");
    if (model->config.clip_by == GPT_CLIP_LAYER && gpt_count(gpt_whole_bucket(model, bucket)))
        gpt_bucket_norm(model, bucket);
    GPT_EACH_TENSOR(t, model, bucket) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        gpt_adamw_part(model, part, &p);
    }
    if (model->zero && gpt_count(part) && !gpt_is_idle(model)) /* each rank has updated its part */
        gpt_all_gather(model, model->gradient, "gather parameters", gpt_weight(model, part.begin),
                       gpt_weight(model, gpt_bucket_begin(model, bucket)), gpt_count(part));
    memo_session_fail(session, model->status, model->error.message);
}

void gpt_update_bucket_on_host(void* user, int32_t layer, void* const* states) {
    const gpt_model* model = (const gpt_model*)user;
    GPT_EACH_TENSOR(t, model, layer + 1) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        const gpt_adamw_args a =
            gpt_adamw_args_make(model, states, gpt_rows_make(p.offset, p.offset + p.n), &p);
        model->kernels.update_on_host(&a);
    }
}

void gpt_set_masters(gpt_model* model, int64_t bucket) {
    const gpt_rows part = gpt_updated_part(model, bucket);
    const memo_type type = model->config.type;
    if (!gpt_has_masters(&model->config) || gpt_is_idle(model) || !gpt_count(part)) return;
    gpt_cast(model, gpt_address(model, GPT_MASTERS, part.begin), gpt_sum_type(type),
             gpt_weight(model, part.begin), type, gpt_count(part));
}
