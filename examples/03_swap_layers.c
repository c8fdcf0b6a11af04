/* 03_swap_layers.c - swaps the activations of a chain of layers to the host while the next layers
 * compute.
 *
 * Each of six layers is y = x + sin(x)^2 / 4.  The calling thread computes.  All rows of x are
 * swapped.  Half of the rows of sin(x) are swapped, the other half is recomputed.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/03_swap_layers.c -o 03_swap_layers -lpthread -lm
 * Expected output:
 *     6 layers of 1024 KiB: device 1792 KiB, host 3072 KiB; last gradient 1.0163
 */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include <stdio.h>

enum { N_LAYERS = 6, N_ROWS = 131072 };
static float value[N_ROWS], gradient[N_ROWS]; /* passed from layer to layer */

static memo_status step(memo_swap* swap, memo_error* error) {
    for (int32_t layer = 0; layer < N_LAYERS; layer++) {
        float *x = memo_swap_get_address(swap, layer, 0),
              *sine = memo_swap_get_address(swap, layer, 1);
        if (memo_swap_forward_begin(swap, layer, error)) return error->status;
        for (int64_t i = 0; i < N_ROWS; i++) {
            x[i] = value[i];
            sine[i] = sinf(x[i]);
            value[i] += sine[i] * sine[i] / 4;
        }
        if (memo_swap_forward_end(swap, layer, error)) return error->status;
    }

    for (int32_t layer = N_LAYERS - 1; layer >= 0; layer--) {
        float *x = memo_swap_get_address(swap, layer, 0),
              *sine = memo_swap_get_address(swap, layer, 1);
        int64_t begin = 0, end = 0;
        if (memo_swap_backward_begin(swap, layer, error)) return error->status;
        memo_swap_get_recompute_rows(swap, layer, 1, &begin, &end);
        for (int64_t i = begin; i < end; i++) sine[i] = sinf(x[i]);
        for (int64_t i = 0; i < N_ROWS; i++) gradient[i] *= 1 + sine[i] * cosf(x[i]) / 2;
        if (memo_swap_backward_end(swap, layer, error)) return error->status;
    }
    return MEMO_STATUS_OK;
}

int main(void) {
    const memo_item tensors[] = {MEMO_ITEM("x", sizeof(float), MEMO_MOVE),
                                 MEMO_ITEM("sine", sizeof(float), MEMO_ROWS)};
    memo_host_device_desc device_desc = {0};
    memo_swap_desc desc = {0};
    memo_device* device = NULL;
    memo_swap* swap = NULL;
    memo_swap_sizes sizes;
    memo_error error;
    memo_status status;

    for (int i = 0; i < N_ROWS; i++) value[i] = (float)i / N_ROWS, gradient[i] = 1;
    desc.computes_on_host = 1;
    desc.tensors = tensors;
    desc.n_tensors = 2;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    desc.alpha = 0.5;

    status = memo_host_device_create(&device_desc, &device, &error);
    desc.device = device;
    if (!status) status = memo_swap_create(&desc, &swap, &error);
    if (!status) status = step(swap, &error);
    if (!status) status = memo_swap_desc_get_sizes(&desc, &sizes, &error);
    if (!status)
        printf("%d layers of %d KiB: device %d KiB, host %d KiB; last gradient %.4f\n", N_LAYERS,
               (int)(sizes.layer_bytes >> 10), (int)(sizes.device_bytes >> 10),
               (int)(sizes.host_bytes >> 10), gradient[N_ROWS - 1]);
    if (status) fprintf(stderr, "03_swap_layers: %s\n", error.message);
    memo_swap_destroy(swap);
    memo_host_device_destroy(device);
    return status ? 1 : 0;
}
