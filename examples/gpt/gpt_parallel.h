/* gpt_parallel.h - what several ranks do together at the end of a step, and what ZeRO splits: sums of
 * gradients and totals, each rank's part of the update, parameters gathered.
 *
 * Single translation unit: everything is static. */
#ifndef GPT_PARALLEL_H
#define GPT_PARALLEL_H

#include "gpt_enqueue.h"

/* --- buckets: the units of sums and of ZeRO --- */

/* Buckets are the embedding, each layer, and final norm with classifier. */
static int64_t gpt_n_buckets(const gpt_config* config) { return config->n_layers + 2; }
static int64_t gpt_bucket_begin(const gpt_model* model, int64_t bucket) {
    const gpt_layout* at = &model->layout;
    if (bucket == 0) return 0;
    if (bucket == gpt_n_buckets(&model->config)) return at->n;
    return at->layers + (bucket - 1) * at->layer_stride;
}
static int64_t gpt_bucket_of(const gpt_config* config, int64_t tensor) { /* gpt_parameter_at */
    const int64_t last = gpt_n_buckets(config) - 1;
    return tensor == 0 ? 0 : gpt_min((tensor - 1) / 8 + 1, last);
}

/* A rank's part of a bucket: parameters [begin, end), with the addresses of its gradient and
 * moments. */
typedef struct gpt_part {
    int64_t begin, end;
    gpt_real *gradients, *moments1, *moments2;
} gpt_part;

static gpt_part gpt_part_at(const gpt_model* model, int64_t bucket, int32_t rank) {
    const int64_t begin = gpt_bucket_begin(model, bucket), n_ranks = model->share.n_ranks;
    const int64_t n = (gpt_bucket_begin(model, bucket + 1) - begin) / n_ranks;
    gpt_part part;
    part.begin = begin + rank * n;
    part.end = part.begin + n;
    part.gradients = model->gradients + (model->zero == 2 ? begin / n_ranks : part.begin);
    part.moments1 = model->moments1 + (model->zero ? begin / n_ranks : part.begin);
    part.moments2 = model->moments2 + (part.moments1 - model->moments1);
    return part;
}

/* Ranks whose parts this rank updates: its own part, or all parts. */
static int32_t gpt_first_part(const gpt_model* model) {
    return model->zero ? model->share.rank : 0;
}
static int32_t gpt_end_part(const gpt_model* model) {
    return model->zero ? model->share.rank + 1 : model->share.n_ranks;
}

typedef struct gpt_sum_args {
    gpt_real* to; /* += from */
    const gpt_real* from;
    int64_t n;
} gpt_sum_args;

static memo_status gpt_sum_run(void* pointer, memo_error* error) {
    const gpt_sum_args* a = (const gpt_sum_args*)pointer;
    int64_t i;
    (void)error;
    for (i = 0; i < a->n; i++) a->to[i] += a->from[i];
    return MEMO_STATUS_OK;
}

/* Sums n reals at `gradients` over ranks.  Each rank receives its part of the sum, in place. */
static void gpt_reduce_scatter(gpt_model* model, gpt_real* gradients, int64_t n) {
    const int64_t n_part = n / model->share.n_ranks;
    gpt_op op = gpt_op_make("sum over ranks");
    if (gpt_is_idle(model)) return;
    gpt_reads(&op, gradients, n * (int64_t)sizeof *gradients);
    gpt_writes(&op, gradients + model->share.rank * n_part, n_part * (int64_t)sizeof *gradients);
    gpt_announce(model, &op);
    if (!model->status)
        model->status = memo_reduce_scatter(model->gradient, model->compute, gradients,
                                            gradients + model->share.rank * n_part, n_part,
                                            GPT_TYPE, MEMO_REDUCTION_SUM, &model->error);
}

/* With zero 2 a bucket has a gradient only while its backward runs. */
static void gpt_begin_bucket(gpt_model* model, int64_t bucket) {
    const int64_t begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_bucket_begin(model, bucket + 1) - begin;
    if (model->zero < 2) return;
    model->bucket = gpt_take(model, gpt_rows_make(0, n), 1);
    model->bucket_begin = begin;
    if (!gpt_is_idle(model))
        model->status = memo_fill(&model->device, model->compute, model->bucket.address, 0,
                                  n * (int64_t)sizeof(gpt_real), &model->error);
}

static void gpt_end_bucket(gpt_model* model, int64_t bucket) {
    const int64_t begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_bucket_begin(model, bucket + 1) - begin;
    gpt_op op = gpt_op_make("add to the rank's part");
    gpt_sum_args a;
    if (model->zero < 2) return;
    if (!gpt_is_idle(model)) {
        gpt_reduce_scatter(model, model->bucket.address, n);
        a.n = n / model->share.n_ranks;
        a.to = gpt_part_at(model, bucket, model->share.rank).gradients;
        a.from = model->bucket.address + model->share.rank * a.n;
        gpt_reads(&op, a.from, a.n * (int64_t)sizeof(gpt_real));
        gpt_writes(&op, a.to, a.n * (int64_t)sizeof(gpt_real));
        gpt_launch(model, &op, gpt_sum_run, &a, sizeof a);
    }
    gpt_give(model, model->bucket);
}

static void gpt_sum_layer_gradients(gpt_model* model);

/* Sums the gradient of all micro-batches over ranks, once a step.  With zero 2 this is already
 * done. */
static void gpt_reduce_gradients(gpt_model* model) {
    gpt_op op = gpt_op_make("sum over ranks");
    int64_t b;
    if (model->is_reduced) return;
    model->is_reduced = 1;
    if (model->gradient && model->zero == 0) {
        gpt_reads(&op, model->gradients, model->layout.n * (int64_t)sizeof(gpt_real));
        gpt_writes(&op, model->gradients, model->layout.n * (int64_t)sizeof(gpt_real));
        gpt_announce(model, &op);
        if (!model->status)
            model->status =
                memo_all_reduce(model->gradient, model->compute, model->gradients, model->gradients,
                                model->layout.n, GPT_TYPE, MEMO_REDUCTION_SUM, &model->error);
    }
    for (b = 0; b < gpt_n_buckets(&model->config) && model->zero == 1; b++)
        gpt_reduce_scatter(model, model->gradients + gpt_bucket_begin(model, b),
                           gpt_bucket_begin(model, b + 1) - gpt_bucket_begin(model, b));
    gpt_sum_layer_gradients(model);
}

static void gpt_reduce_total(gpt_model* model, memo_comm* ranks, int first, int end) {
    double* totals = model->totals + first;
    const int64_t n_bytes = (end - first) * (int64_t)sizeof(double);
    gpt_op op = gpt_op_make("totals over ranks");
    if (!ranks || ranks->size == 1) return;
    gpt_reads(&op, totals, n_bytes);
    gpt_writes(&op, totals, n_bytes);
    gpt_announce(model, &op);
    if (!model->status)
        model->status = memo_all_reduce(ranks, model->compute, totals, totals, end - first,
                                        MEMO_TYPE_F64, MEMO_REDUCTION_SUM, &model->error);
}

/* Sums loss and votes over all ranks, and the squares if each rank has only its own part.  Tensor
 * ranks have the same loss. */
static void gpt_reduce_totals(gpt_model* model) {
    gpt_reduce_total(model, model->tensor.ranks, GPT_TOTAL_VOTES, GPT_N_TOTALS);
    gpt_reduce_total(model, model->gradient, 0, model->zero ? GPT_N_TOTALS : GPT_TOTAL_SQUARES);
}

/* Gathers the parts of the parameters, after each rank has updated its own part. */
static void gpt_gather_parameters(gpt_model* model) {
    int64_t b;
    for (b = 0; b < gpt_n_buckets(&model->config) && model->zero && !model->status; b++) {
        const gpt_part part = gpt_part_at(model, b, model->share.rank);
        gpt_real* bucket = model->parameters + gpt_bucket_begin(model, b);
        const int64_t n = part.end - part.begin;
        gpt_op op = gpt_op_make("gather parameters");
        gpt_reads(&op, model->parameters + part.begin, n * (int64_t)sizeof(gpt_real));
        gpt_writes(&op, bucket, n * model->share.n_ranks * (int64_t)sizeof(gpt_real));
        gpt_announce(model, &op);
        if (!model->status)
            model->status =
                memo_all_gather(model->gradient, model->compute, model->parameters + part.begin,
                                bucket, n, GPT_TYPE, &model->error);
    }
}

/* --- the update --- */
typedef struct gpt_update_args {
    gpt_model* model; /* outlives the operation: gpt_destroy waits for the stream */
    gpt_adamw_desc adamw;
    double clip, vote;
} gpt_update_args;

/* Adds the squares of the elements that no lower tensor rank holds. */
static void gpt_add_split_squares(const gpt_model* model, double lanes[GPT_LANES], int64_t bucket,
                                  const gpt_part* part) {
    int64_t t;
    for (t = 0; t < gpt_n_parameter_tensors(&model->config); t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        const int64_t begin = p.offset > part->begin ? p.offset : part->begin;
        const int64_t end = gpt_min(p.offset + p.n, part->end);
        if (model->share.tensor_rank < p.degree && gpt_bucket_of(&model->config, t) == bucket &&
            begin < end)
            gpt_add_squares(lanes, part->gradients + (begin - part->begin), end - begin);
    }
}

/* Adds part by part in the order of ranks: the sum over ranks has the same order. */
static memo_status gpt_gradient_norm_run(void* pointer, memo_error* error) {
    const gpt_update_args* a = (const gpt_update_args*)pointer;
    const gpt_model* model = a->model;
    int64_t b;
    int32_t r;
    (void)error;
    model->totals[GPT_TOTAL_VOTES] = a->vote;
    model->totals[GPT_TOTAL_SQUARES] = 0;
    for (r = gpt_first_part(model); r < gpt_end_part(model); r++) {
        double lanes[GPT_LANES] = {0};
        for (b = 0; b < gpt_n_buckets(&model->config); b++) {
            const gpt_part part = gpt_part_at(model, b, r);
            if (model->share.tensor_rank == 0)
                gpt_add_squares(lanes, part.gradients, part.end - part.begin);
            else
                gpt_add_split_squares(model, lanes, b, &part);
        }
        model->totals[GPT_TOTAL_SQUARES] += gpt_sum_squares(lanes);
    }
    return MEMO_STATUS_OK;
}

/* Updates the elements of a tensor in this part. */
static void gpt_adamw_part(gpt_model* model, const gpt_part* part, const gpt_parameter* p,
                           double scale, const gpt_adamw_desc* adamw) {
    const int64_t begin = p->offset > part->begin ? p->offset : part->begin;
    const int64_t end = gpt_min(p->offset + p->n, part->end), at = begin - part->begin;
    if (begin < end)
        gpt_adamw(model->parameters + begin, part->moments1 + at, part->moments2 + at,
                  part->gradients + at, scale, adamw, end - begin);
}

static memo_status gpt_adamw_run(void* pointer, memo_error* error) {
    const gpt_update_args* a = (const gpt_update_args*)pointer;
    gpt_model* model = a->model;
    const double norm = sqrt(model->totals[GPT_TOTAL_SQUARES]);
    const double scale = a->clip > 0 && norm > a->clip ? a->clip / norm : 1;
    int64_t t;
    int32_t r;
    (void)error;
    for (t = 0; t < gpt_n_parameter_tensors(&model->config); t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        gpt_adamw_desc adamw = a->adamw;
        if (p.initial_std <= 0) adamw.weight_decay = 0;
        for (r = gpt_first_part(model); r < gpt_end_part(model); r++) {
            const gpt_part part = gpt_part_at(model, gpt_bucket_of(&model->config, t), r);
            gpt_adamw_part(model, &part, &p, scale, &adamw);
        }
    }
    return MEMO_STATUS_OK;
}

/* The arguments are copied at launch, and their size is limited. */
typedef char gpt_linear_args_fit[sizeof(gpt_linear_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
typedef char gpt_norm_args_fit[sizeof(gpt_norm_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
typedef char gpt_elements_args_fit[sizeof(gpt_elements_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
typedef char gpt_attention_args_fit[sizeof(gpt_attention_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];

#endif
