/* linear_layers.h - linear layers split over tensor ranks, as plain loops on a host device.
 *
 * Column-parallel: each rank has the whole input and computes some of the outputs.  Row-parallel:
 * each rank has some of the inputs and computes a partial sum of all outputs.  Attention and MLP
 * are a column-parallel layer, a local part, and a row-parallel layer.  So they need one
 * collective, the one that ends the block.
 *
 * Everything is fp32: x (n_rows, n_in), weights (n_out, n_in), y (n_rows, n_out).  A trainer calls
 * BLAS or cuBLAS at these places.  Single translation unit: everything is static. */
#ifndef LINEAR_LAYERS_H
#define LINEAR_LAYERS_H

#include <math.h>
#include "memo.h"

typedef enum linear_split { LINEAR_COLUMN = 0, LINEAR_ROW } linear_split;

/* A rank's share of a linear layer. */
typedef struct linear_layer {
    memo_device* device; /* of the host */
    linear_split split;
    int32_t rank;        /* row-parallel: only rank 0 adds the bias, so that the sum has it once */
    int64_t n_in, n_out; /* of this rank */
    const float *weights, *bias; /* bias (n_out) and d_bias may be NULL */
    float *d_weights, *d_bias;   /* row-parallel: all ranks get the whole gradient of the bias */
} linear_layer;

typedef struct linear_args {
    linear_layer layer;
    const float *x, *d_y;
    float* result;
    int64_t n_rows;
} linear_args;

static memo_status linear_forward_run(void* args, memo_error* error) {
    const linear_args* a = (const linear_args*)args;
    const linear_layer* l = &a->layer;
    const float* bias = l->split == LINEAR_ROW && l->rank != 0 ? NULL : l->bias;
    (void)error;
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t o = 0; o < l->n_out; o++) {
            float sum = 0;
            for (int64_t i = 0; i < l->n_in; i++)
                sum = fmaf(a->x[r * l->n_in + i], l->weights[o * l->n_in + i], sum);
            a->result[r * l->n_out + o] = bias ? sum + bias[o] : sum;
        }
    return MEMO_STATUS_OK;
}

static memo_status linear_backward_run(void* args, memo_error* error) {
    const linear_args* a = (const linear_args*)args;
    const linear_layer* l = &a->layer;
    (void)error;
    for (int64_t r = 0; r < a->n_rows; r++) {
        float* d_x = a->result + r * l->n_in;
        for (int64_t i = 0; i < l->n_in; i++) d_x[i] = 0;
        for (int64_t o = 0; o < l->n_out; o++)
            for (int64_t i = 0; i < l->n_in; i++)
                d_x[i] = fmaf(a->d_y[r * l->n_out + o], l->weights[o * l->n_in + i], d_x[i]);
    }
    return MEMO_STATUS_OK;
}

static memo_status linear_weights_run(void* args, memo_error* error) {
    const linear_args* a = (const linear_args*)args;
    const linear_layer* l = &a->layer;
    (void)error;
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t o = 0; o < l->n_out; o++) {
            float d_y = a->d_y[r * l->n_out + o], *d_row = l->d_weights + o * l->n_in;
            if (l->d_bias) l->d_bias[o] += d_y;
            for (int64_t i = 0; i < l->n_in; i++)
                d_row[i] = fmaf(d_y, a->x[r * l->n_in + i], d_row[i]);
        }
    return MEMO_STATUS_OK;
}

static inline memo_status linear_launch(const linear_layer* layer, memo_stream stream,
                                        memo_host_function function, const float* x,
                                        const float* d_y, float* result, int64_t n_rows,
                                        memo_error* error) {
    const linear_args args = {*layer, x, d_y, result, n_rows};
    return memo_host_device_launch(layer->device, stream, function, &args, sizeof args, error);
}

/* Enqueue on stream.  The y of a row-parallel layer and the d_x of a column-parallel one are
 * partial sums; reduce them over the ranks.  linear_weights adds to d_weights and d_bias, rows in
 * order. */
static inline memo_status linear_forward(const linear_layer* layer, memo_stream stream,
                                         const float* x, float* y, int64_t n_rows,
                                         memo_error* error) {
    return linear_launch(layer, stream, linear_forward_run, x, NULL, y, n_rows, error);
}
static inline memo_status linear_backward(const linear_layer* layer, memo_stream stream,
                                          const float* d_y, float* d_x, int64_t n_rows,
                                          memo_error* error) {
    return linear_launch(layer, stream, linear_backward_run, NULL, d_y, d_x, n_rows, error);
}
static inline memo_status linear_weights(const linear_layer* layer, memo_stream stream,
                                         const float* x, const float* d_y, int64_t n_rows,
                                         memo_error* error) {
    return linear_launch(layer, stream, linear_weights_run, x, d_y, NULL, n_rows, error);
}

#endif
