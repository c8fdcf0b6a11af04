/* 03_swap_layers.c - a chain of layers whose activations leave the device behind the computation.
 *
 * y = x + sin(x)^2 / 4, six times.  x is swapped, of sin(x) half is swapped and half recomputed.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/03_swap_layers.c -o 03_swap_layers -lpthread -lm
 * Expected output:
 *     6 layers of 1024 KiB: device 2048 KiB, host 3072 KiB; last gradient 1.0163
 */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include <stdio.h>

enum { N_LAYERS = 6, N_ROWS = 131072 };
static float value[N_ROWS], gradient[N_ROWS]; /* passed from layer to layer */

typedef struct work {
    memo_swap_view x, sine; /* N_ROWS rows of one float */
    int64_t begin, end;     /* rows of sine to compute again */
    int is_backward;
} work;

static memo_status layer(void* args, memo_error* error) { /* on the compute stream's thread */
    const work* w = (const work*)args;
    (void)error;
    for (int64_t row = 0; row < N_ROWS; row++) {
        float* x = (float*)memo_swap_row(&w->x, row);
        float* sine = (float*)memo_swap_row(&w->sine, row);
        if (!w->is_backward) *x = value[row];
        if (!w->is_backward || (row >= w->begin && row < w->end)) *sine = sinf(*x);
        if (!w->is_backward)
            value[row] = *x + *sine * *sine / 4;
        else
            gradient[row] *= 1 + *sine * cosf(*x) / 2;
    }
    return MEMO_STATUS_OK;
}

static memo_status step(memo_device* device, memo_stream stream, memo_swap* swap, memo_error* e) {
    for (int32_t k = 0; k < 2 * N_LAYERS; k++) { /* layers 0, 1, ..., and back */
        int32_t back = k >= N_LAYERS, i = back ? 2 * N_LAYERS - 1 - k : k;
        work args = {memo_swap_get_view(swap, i, 0), memo_swap_get_view(swap, i, 1), 0, 0, back};
        memo_swap_recompute_rows(swap, i, 1, &args.begin, &args.end);
        if ((back ? memo_swap_backward_begin : memo_swap_forward_begin)(swap, i, e) ||
            memo_host_device_launch(device, stream, layer, &args, sizeof args, e) ||
            (back ? memo_swap_backward_end : memo_swap_forward_end)(swap, i, e))
            return e->status;
    }
    return memo_stream_synchronize(device, stream, e);
}

int main(void) {
    const memo_swap_tensor tensors[] = {{"x", sizeof(float), MEMO_SWAP_WHOLE, 0},
                                        {"sine", sizeof(float), MEMO_SWAP_SPLIT, 0}};
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    memo_swap_desc desc = memo_swap_desc_default();
    memo_device* device = NULL;
    memo_swap* swap = NULL;
    memo_error error;
    for (int i = 0; i < N_ROWS; i++) value[i] = (float)i / N_ROWS, gradient[i] = 1;
    desc.tensors = tensors;
    desc.n_tensors = 2;
    desc.n_layers = N_LAYERS;
    desc.n_rows = N_ROWS;
    desc.alpha = 0.5;
    int failed = memo_host_device_create(&device_desc, &device, &error) ||
                 memo_stream_create(device, "compute", 0, &desc.compute_stream, &error) ||
                 (desc.device = device, memo_swap_create(&desc, &swap, &error)) ||
                 step(device, desc.compute_stream, swap, &error);
    if (failed) fprintf(stderr, "03_swap_layers: %s\n", error.message);
    if (!failed)
        printf("%d layers of %d KiB: device %d KiB, host %d KiB; last gradient %.4f\n", N_LAYERS,
               (int)(2 * N_ROWS * sizeof(float) >> 10),
               (int)(memo_swap_sizes_of(swap).device_bytes >> 10),
               (int)(memo_swap_sizes_of(swap).host_bytes >> 10), gradient[N_ROWS - 1]);
    memo_swap_destroy(swap);
    memo_host_device_destroy(device);
    return failed;
}
