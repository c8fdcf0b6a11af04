/* gpt_parallel.h - what several ranks do together at the end of a step, and what ZeRO splits: sums
 * of gradients and totals, each rank's part of the update, parameters gathered. */
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
/* In gpt_model.buckets. */
static int gpt_bucket_place(const gpt_model* model, int64_t bucket) {
    return bucket == 0 ? 0 : bucket < gpt_n_buckets(&model->config) - 1 ? 1 : 2;
}
static int64_t gpt_bucket_of(const gpt_config* config, int64_t tensor) { /* gpt_parameter_at */
    const int64_t last = gpt_n_buckets(config) - 1;
    return tensor == 0 ? 0 : gpt_min((tensor - 1) / 8 + 1, last);
}

/* A rank's part of a bucket: parameters [begin, end), with the addresses of its gradient and
 * moments. */
typedef struct gpt_part {
    int64_t begin, end;
    char *masters, *gradients, *moments1, *moments2;
} gpt_part;

static gpt_part gpt_part_at(const gpt_model* model, int64_t bucket, int32_t rank) {
    const int64_t begin = gpt_bucket_begin(model, bucket), n_ranks = model->share.n_ranks;
    const int64_t n = (gpt_bucket_begin(model, bucket + 1) - begin) / n_ranks;
    const int64_t own =
        model->zero ? begin / n_ranks : begin + rank * n; /* in this rank's arrays */
    gpt_part part;
    part.begin = begin + rank * n;
    part.end = part.begin + n;
    part.gradients =
        model->gradients + gpt_sum_bytes(model, model->zero == 2 ? begin / n_ranks : part.begin);
    part.moments1 = model->moments1 + gpt_states_bytes(model, own);
    part.moments2 = model->moments2 + gpt_states_bytes(model, own);
    part.masters = gpt_has_masters(&model->config) ? model->masters + gpt_sum_bytes(model, own)
                                                   : gpt_weight(model, part.begin);
    return part;
}

/* Ranks whose parts this rank updates: its own part, or all parts. */
static int32_t gpt_first_part(const gpt_model* model) {
    return model->zero ? model->share.rank : 0;
}
static int32_t gpt_end_part(const gpt_model* model) {
    return model->zero ? model->share.rank + 1 : model->share.n_ranks;
}

/* All that this rank updates of a bucket. */
static gpt_part gpt_updated_part(const gpt_model* model, int64_t bucket) {
    gpt_part part = gpt_part_at(model, bucket, gpt_first_part(model));
    if (!model->zero)
        part.end = gpt_bucket_begin(model, bucket + 1); /* the parts lie side by side */
    return part;
}

/* --- sums of gradients, behind the backward ---
 *
 * The sum of a bucket begins when its backward is enqueued, on a stream of its own, while the
 * compute stream goes on with the next bucket.  Each bucket is summed as a whole: where a sum is
 * cut may change its bits.  With zero 2 it is summed in every micro-batch, otherwise in the last
 * one of a step. */

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

/* The compute stream waits for all sums so far. */
static void gpt_join_sums(gpt_model* model) {
    if (model->is_summing && !gpt_is_idle(model))
        model->status =
            memo_event_wait(&model->device, model->summed, model->compute, &model->error);
    model->is_summing = 0;
}

/* Over the ranks that train copies.  With ZeRO each rank receives its part of the sum. */
static void gpt_sum_copies(gpt_model* model, int64_t bucket) {
    const memo_type type = gpt_sum_type(model->config.type);
    const int64_t n_ranks = model->share.n_ranks, begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_bucket_begin(model, bucket + 1) - begin;
    const int64_t n_part = model->zero ? n / n_ranks : n;
    gpt_op op = gpt_op_make("sum over ranks");
    char *gradients, *part;
    if (gpt_is_idle(model)) return;
    gradients = gpt_gradient(model, begin);
    part = gradients + (model->zero ? gpt_sum_bytes(model, model->share.rank * n_part) : 0);
    gpt_reads(&op, gradients, gpt_sum_bytes(model, n));
    gpt_writes(&op, part, gpt_sum_bytes(model, n_part));
    gpt_announce(model, &op);
    GPT_TRY(model, model->zero
                       ? memo_reduce_scatter(model->gradient, model->compute, gradients, part,
                                             n_part, type, MEMO_REDUCTION_SUM, &model->error)
                       : memo_all_reduce(model->gradient, model->compute, gradients, part, n, type,
                                         MEMO_REDUCTION_SUM, &model->error));
    if (model->zero == 2)
        gpt_add(model, "add to the rank's part", type,
                gpt_part_at(model, bucket, model->share.rank).gradients, part, n_part);
}

static void gpt_sum_tensor_ranks(gpt_model* model, int64_t bucket);

/* Sums a bucket's gradients over copies: at the end of a step, with zero 2 after every micro-batch.
 * Then, at the end of a step, over tensor ranks. */
static void gpt_sum_bucket(gpt_model* model, int64_t bucket, int over_copies,
                           int over_tensor_ranks) {
    over_copies &= model->gradient != NULL;
    over_tensor_ranks &= gpt_degree(model->config.tensor) > 1 && bucket > 0 &&
                         bucket < gpt_n_buckets(&model->config) - 1; /* copies are equal */
    if (!over_copies && !over_tensor_ranks) return;
    memo_stream compute = gpt_begin_sum(model);
    if (over_copies) gpt_sum_copies(model, bucket);
    if (over_tensor_ranks) gpt_sum_tensor_ranks(model, bucket);
    gpt_end_sum(model, compute);
}

/* With zero 2 a bucket has a gradient only from its backward to the end of its sum. */
static void gpt_begin_bucket(gpt_model* model, int64_t bucket) {
    const int64_t begin = gpt_bucket_begin(model, bucket);
    const int64_t n = gpt_bucket_begin(model, bucket + 1) - begin;
    const int place = gpt_bucket_place(model, bucket);
    if (model->zero < 2) return;
    model->buckets[place] = gpt_take_sums(model, gpt_rows_make(0, n), 1);
    model->bucket_begins[place] = begin;
    gpt_clear(model, model->buckets[place].address, gpt_sum_bytes(model, n));
}

/* The bucket before gives its memory back now: its sum had the time of this one's backward. */
static void gpt_give_summed_bucket(gpt_model* model) {
    if (!model->has_summed_bucket) return;
    gpt_join_sums(model);
    gpt_give(model, model->summed_bucket);
    model->has_summed_bucket = 0;
}

static void gpt_end_bucket(gpt_model* model, int64_t bucket) {
    gpt_give_summed_bucket(model);
    gpt_sum_bucket(model, bucket, model->zero == 2 || model->is_last, model->is_last);
    if (model->zero < 2) return;
    model->summed_bucket = model->buckets[gpt_bucket_place(model, bucket)];
    model->has_summed_bucket = 1;
}

/* Ends the sums of all micro-batches, once a step; those that no micro-batch has begun run now. */
static void gpt_reduce_gradients(gpt_model* model) {
    if (model->is_reduced) return;
    model->is_reduced = 1;
    for (int64_t b = gpt_n_buckets(&model->config); b-- > 0 && !model->is_summed;)
        gpt_sum_bucket(model, b, model->zero < 2, 1);
    gpt_join_sums(model);
}

static void gpt_reduce_total(gpt_model* model, memo_comm* ranks, int first, int end) {
    double* totals = model->totals + first;
    const int64_t n_bytes = (end - first) * (int64_t)sizeof(double);
    gpt_op op = gpt_op_make("totals over ranks");
    if (!ranks || ranks->size == 1) return;
    gpt_reads(&op, totals, n_bytes);
    gpt_writes(&op, totals, n_bytes);
    gpt_announce(model, &op);
    GPT_TRY(model, memo_all_reduce(ranks, model->compute, totals, totals, end - first,
                                   MEMO_TYPE_F64, MEMO_REDUCTION_SUM, &model->error));
}

/* Sums loss and votes over all ranks, and the squares if each rank has only its own part.  Tensor
 * ranks have the same loss. */
static void gpt_reduce_totals(gpt_model* model) {
    gpt_reduce_total(model, model->tensor.ranks, GPT_TOTAL_VOTES, GPT_N_SUMMED);
    gpt_reduce_total(model, model->gradient, 0, model->zero ? GPT_N_SUMMED : GPT_TOTAL_SQUARES);
}

/* Gathers the parts of the parameters, after each rank has updated its own part. */
static void gpt_gather_parameters(gpt_model* model) {
    for (int64_t b = 0; b < gpt_n_buckets(&model->config) && model->zero && !model->status; b++) {
        const gpt_part part = gpt_part_at(model, b, model->share.rank);
        char* bucket = gpt_weight(model, gpt_bucket_begin(model, b));
        const int64_t n = part.end - part.begin;
        gpt_op op = gpt_op_make("gather parameters");
        gpt_reads(&op, gpt_weight(model, part.begin), gpt_n_bytes(model, n));
        gpt_writes(&op, bucket, gpt_n_bytes(model, n * model->share.n_ranks));
        gpt_announce(model, &op);
        GPT_TRY(model,
                memo_all_gather(model->gradient, model->compute, gpt_weight(model, part.begin),
                                bucket, n, model->config.type, &model->error));
    }
}

/* --- the update --- */

/* The elements of a parameter in a part; none: begin = end. */
static gpt_rows gpt_part_rows_of(const gpt_part* part, const gpt_parameter* p) {
    gpt_rows rows = gpt_rows_make(p->offset > part->begin ? p->offset : part->begin,
                                  gpt_min(p->offset + p->n, part->end));
    if (rows.end < rows.begin) rows.end = rows.begin;
    return rows;
}

static void gpt_add_squares_of(gpt_model* model, const gpt_part* part, gpt_rows rows) {
    gpt_op op = gpt_op_make("squares of the gradient");
    gpt_squares_args a;
    if (!gpt_count(rows)) return;
    memset(&a, 0, sizeof a);
    a.x = part->gradients + gpt_sum_bytes(model, rows.begin - part->begin);
    a.n = gpt_count(rows);
    a.lanes = &model->totals[GPT_TOTAL_LANES];
    gpt_reads(&op, a.x, gpt_sum_bytes(model, a.n));
    gpt_writes(&op, a.lanes, GPT_LANES * (int64_t)sizeof(double));
    gpt_launch(model, &op, GPT_KIND_SQUARES, &a);
}

/* Adds the squares of the elements that no lower tensor rank holds. */
static void gpt_add_split_squares(gpt_model* model, int64_t bucket, const gpt_part* part) {
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&model->config); t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        if (model->share.tensor_rank < p.degree && gpt_bucket_of(&model->config, t) == bucket)
            gpt_add_squares_of(model, part, gpt_part_rows_of(part, &p));
    }
}

/* Adds part by part in the order of ranks: the sum over ranks has the same order. */
static void gpt_gradient_norm(gpt_model* model) {
    gpt_total_args a;
    a.lanes = &model->totals[GPT_TOTAL_LANES];
    a.total = &model->totals[GPT_TOTAL_SQUARES];
    a.vote = &model->totals[GPT_TOTAL_VOTES];
    a.values = model->update;
    for (int32_t r = gpt_first_part(model); r < gpt_end_part(model); r++) {
        gpt_op op = gpt_op_make("gradient norm");
        for (int64_t b = 0; b < gpt_n_buckets(&model->config); b++) {
            const gpt_part part = gpt_part_at(model, b, r);
            if (model->share.tensor_rank == 0)
                gpt_add_squares_of(model, &part, gpt_rows_make(part.begin, part.end));
            else
                gpt_add_split_squares(model, b, &part);
        }
        gpt_reads(&op, a.values, (int64_t)sizeof *a.values);
        gpt_writes(&op, a.vote, 2 * (int64_t)sizeof(double)); /* the total too */
        gpt_writes(&op, a.lanes, GPT_LANES * (int64_t)sizeof(double));
        gpt_launch(model, &op, GPT_KIND_NORM_TOTAL, &a);
    }
}

/* Updates the elements of a parameter in this part. */
static void gpt_adamw_part(gpt_model* model, const gpt_part* part, const gpt_parameter* p,
                           gpt_adamw_args a) {
    const gpt_rows rows = gpt_part_rows_of(part, p);
    const int64_t at = gpt_sum_bytes(model, rows.begin - part->begin);
    const int64_t state = gpt_states_bytes(model, rows.begin - part->begin);
    gpt_op op = gpt_op_make("AdamW");
    if (!gpt_count(rows)) return;
    a.decays = p->initial_std > 0;
    a.n = gpt_count(rows);
    a.rounding.first = rows.begin;
    a.parameters = part->masters + at;
    if (gpt_has_masters(&model->config)) a.weights = gpt_weight(model, rows.begin);
    a.gradients = part->gradients + at;
    a.moments1 = part->moments1 + state;
    a.moments2 = part->moments2 + state;
    gpt_reads(&op, a.gradients, gpt_sum_bytes(model, a.n));
    gpt_reads(&op, a.squares, (int64_t)sizeof(double));
    gpt_reads(&op, a.values, (int64_t)sizeof *a.values);
    gpt_writes(&op, a.parameters, gpt_sum_bytes(model, a.n));
    if (a.weights) gpt_writes(&op, a.weights, gpt_n_bytes(model, a.n));
    gpt_writes(&op, a.moments1, gpt_states_bytes(model, a.n));
    gpt_writes(&op, a.moments2, gpt_states_bytes(model, a.n));
    gpt_launch(model, &op, GPT_KIND_ADAMW, &a);
}

static void gpt_adamw_parts(gpt_model* model) {
    gpt_adamw_args a;
    memset(&a, 0, sizeof a);
    a.squares = &model->totals[GPT_TOTAL_SQUARES];
    a.values = model->update;
    a.rounding.seed = model->config.seed;
    a.states = gpt_state_type(&model->config);
    for (int64_t t = 0; t < gpt_n_parameter_tensors(&model->config); t++) {
        const gpt_parameter p = gpt_parameter_at(&model->config, t);
        const gpt_part part = gpt_updated_part(model, gpt_bucket_of(&model->config, t));
        gpt_adamw_part(model, &part, &p, a);
    }
}

/* Sets the master weights that this rank updates to the weights. */
static void gpt_set_masters(gpt_model* model) {
    if (!gpt_has_masters(&model->config)) return;
    for (int64_t b = 0; b < gpt_n_buckets(&model->config) && !gpt_is_idle(model); b++) {
        const gpt_part part = gpt_updated_part(model, b);
        memo_add_desc cast;
        memset(&cast, 0, sizeof cast);
        cast.to = part.masters;
        cast.to_type = gpt_sum_type(model->config.type);
        cast.a = gpt_weight(model, part.begin);
        cast.a_type = model->config.type;
        cast.n_columns = part.end - part.begin;
        model->status = memo_row_cast(&model->device, model->compute, &cast, &model->error);
    }
}

/* Adds a digest of the gradients that this rank updates. */
static void gpt_digest(gpt_model* model) {
    gpt_digest_args a;
    memset(&a, 0, sizeof a);
    a.digest = (uint64_t*)(void*)&model->totals[GPT_TOTAL_DIGEST];
    for (int64_t b = 0; b < gpt_n_buckets(&model->config); b++) {
        const gpt_part part = gpt_updated_part(model, b);
        gpt_op op = gpt_op_make("digest");
        a.x = part.gradients;
        a.n_bytes = gpt_sum_bytes(model, part.end - part.begin);
        a.first = gpt_sum_bytes(model, part.begin) / 4;
        gpt_reads(&op, a.x, a.n_bytes);
        gpt_writes(&op, a.digest, (int64_t)sizeof *a.digest);
        gpt_launch(model, &op, GPT_KIND_DIGEST, &a);
    }
}

#endif
