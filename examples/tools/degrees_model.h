/* degrees_model.h - costs of a GPT's blocks at each tensor-parallel degree, from constants of a
 * cluster.  degrees_plan --estimate uses it.
 *
 * Include it in a file with MEMO_IMPLEMENTATION, after memo_sp.h. */
#ifndef DEGREES_MODEL_H
#define DEGREES_MODEL_H

#include "degrees_problem.h"

/* A GPT of identical layers from constants, bf16; blocks 0, 2, ... are attention.  With t_d = batch
 * * d * sequence / (2 n_gpus) tokens of a sub-batch in a group of d:
 *   F            attention 8 t h^2 + 2 t s h, MLP 16 t h^2 floating-point operations,
 *                / (d * flops_per_s); half the pairs of a causal mask
 *   R, B         F without its last product (attention 2 t h^2, MLP 8 t h^2), 2 F
 *   C = CB       2 (d - 1) / d * 2 t h / bandwidth[d] + 2 (d - 1) * latency
 *   AllGather    (1 - p / q) * 2 t_q h / bandwidth[q] + (q / p - 1) * latency
 *   gradients    2 (D - 1) / D * 2 P / d / data_bandwidth, D = n_gpus / d, P = 4 h^2 and 8 h^2
 *   state        16 P / d          saved  2 * 2 t h
 *   runtime      attention 2 t (4 h + 4 * 3 h / d), MLP 2 t (4 h + 4 * 4 h / d) */
typedef struct degrees_model {
    int32_t n_layers, hidden;
    int64_t sequence, batch; /* tokens of a sequence, sequences of the global batch */
    int32_t n_gpus;
    int32_t n_degrees;
    int32_t degrees[MEMO_DEGREES_MAX];
    double bandwidth_bytes_per_s[MEMO_DEGREES_MAX]; /* of a collective over degrees[k] ranks */
    double data_bandwidth_bytes_per_s;              /* of the gradients; 0: they do not count */
    double latency_s;                               /* of one step of a collective */
    double flops_per_s;                             /* reached by a block */
    int64_t memory_bytes;
    int32_t boundary_degree;
} degrees_model;

static memo_status degrees_model_check(const degrees_model* model, memo_error* error) {
    const char* wrong = model->n_layers < 1 || model->n_layers > MEMO_DEGREES_BLOCKS_MAX / 2
                            ? "n_layers"
                        : model->hidden < 1                                           ? "hidden"
                        : model->sequence < 1 || model->sequence > 1LL << 40          ? "sequence"
                        : model->batch < 1 || model->batch > 1LL << 40                ? "batch"
                        : model->n_gpus < 1                                           ? "n_gpus"
                        : model->n_degrees < 1 || model->n_degrees > MEMO_DEGREES_MAX ? "n_degrees"
                        : !(model->data_bandwidth_bytes_per_s >= 0) ? "data_bandwidth_bytes_per_s"
                        : !(model->latency_s >= 0)                  ? "latency_s"
                        : !(model->flops_per_s > 0)                 ? "flops_per_s"
                                                                    : NULL;
    if (wrong)
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "degrees_model.%s: out of range",
                              wrong);
    for (int32_t k = 0; k < model->n_degrees; k++)
        if (!(model->bandwidth_bytes_per_s[k] > 0) || model->degrees[k] < 1 ||
            model->n_gpus % model->degrees[k])
            return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "degrees_model.degrees: %d does not divide the %d GPUs, or "
                                  "its bandwidth is not above 0",
                                  (int)model->degrees[k], (int)model->n_gpus);
    return MEMO_STATUS_OK;
}

static memo_status degrees_problem_from_model(const degrees_model* model,
                                              memo_degrees_problem** problem, memo_error* error) {
    double h = model->hidden, s = (double)model->sequence;
    memo_status status = degrees_model_check(model, error);
    *problem = NULL;
    if (status) return status;
    *problem = degrees_problem_create(2 * model->n_layers, model->degrees, model->n_degrees);
    if (!*problem) return memob_no_memory(error, "a problem of degrees");

    /* Two blocks per layer, attention and MLP.  The time of a ring all-reduce or gather is latency
     * plus bytes by bandwidth. */
    for (int32_t p = 0; p < model->n_degrees; p++) {
        double d = model->degrees[p], replicas = model->n_gpus / d;
        double tokens = (double)model->batch * d * s / (2.0 * model->n_gpus);
        double message_bytes = tokens * h * 2;
        double reduce_s = 2 * (d - 1) / d * message_bytes / model->bandwidth_bytes_per_s[p] +
                          2 * (d - 1) * model->latency_s;
        for (int32_t q = 0; q < p; q++) {
            double ratio = d / model->degrees[q];
            (*problem)->gather_s[q][p] =
                (1 - 1 / ratio) * message_bytes / model->bandwidth_bytes_per_s[p] +
                (ratio - 1) * model->latency_s;
        }

        /* The backward costs twice the forward plus a recomputation, which omits the last
         * product. */
        for (int32_t i = 0; i < 2 * model->n_layers; i++) {
            int is_mlp = i % 2;
            double parameters = (is_mlp ? 8 : 4) * h * h;
            double last_flops = (is_mlp ? 8 : 2) * tokens * h * h;
            double flops = is_mlp ? 16 * tokens * h * h : 8 * tokens * h * h + 2 * tokens * s * h;
            memo_degree_cost* c = &(*problem)->costs[i * model->n_degrees + p];
            c->forward_s = flops / d / model->flops_per_s;
            c->forward_collective_s = c->backward_collective_s = reduce_s;
            c->backward_s = (3 * flops - last_flops) / d / model->flops_per_s;
            if (model->data_bandwidth_bytes_per_s > 0)
                c->gradient_s = 2 * (replicas - 1) / replicas * parameters / d * 2 /
                                model->data_bandwidth_bytes_per_s;
            c->state_bytes = (int64_t)(16 * parameters / d);
            c->saved_bytes = (int64_t)(2 * message_bytes);
            c->runtime_bytes = (int64_t)(2 * tokens * (4 * h + 4 * (is_mlp ? 4 : 3) * h / d));
        }
    }

    /* Extreme constants can pass the limits of a problem, so check the result. */
    (*problem)->memory_bytes = model->memory_bytes;
    (*problem)->boundary_degree = model->boundary_degree;
    (*problem)->has_gradients = model->data_bandwidth_bytes_per_s > 0;
    status = memo_degrees_problem_check(*problem, error);
    if (status) {
        MEMO_FREE(*problem);
        *problem = NULL;
    }
    return status;
}

#endif
