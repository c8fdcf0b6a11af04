/* 07_cuda_swap_gemm.cu - swaps the activations of a chain of products while the GPU computes.
 *
 * z = x W, next x = relu(z), eight times.  x is swapped; half of the rows of z are swapped, the
 * other half recomputed.  The gradients of the weights have the same bits as if everything is kept
 * on the GPU.
 *
 * Build:
 *     nvcc -arch=native -I. examples/07_cuda_swap_gemm.cu -lcublas -o 07_cuda_swap_gemm
 * Expected output:
 *     keep: 256 MiB on the device, 0 MiB on the host
 *     swap: 56 MiB on the device, 144 MiB on the host
 *     the same gradients
 */
#define MEMO_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"
#include <cublas_v2.h>
#include <stdio.h>
#include <string.h>

enum { N_LAYERS = 8, ROWS = 8192, H = 512, TILE = 1024, DW = N_LAYERS * H * H };
static float *w, *dw, *value, *dz, *dw_of[2]; /* (N_LAYERS, H, H) x 2, (ROWS, H) x 2, as dw */
static cublasHandle_t blas;
static cublasStatus_t blas_status; /* of the first call that failed */

__global__ static void relu(float* to, const float* from, const float* z) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = z[i] > 0 ? from[i] : 0;
}
__global__ static void set(float* to, float size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = size * ((float)(i * 7919ll % 2003) / 1001 - 1);
}

/* Row-major C (m, n) = op(A) op(B), as C^T = op(B)^T op(A)^T. */
static void product(float* c, const float* a, int ta, const float* b, int tb, int m, int n, int k) {
    const float one = 1, zero = 0;
    if (!blas_status)
        blas_status =
            cublasSgemm(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m,
                        k, &one, b, tb ? k : n, a, ta ? m : k, &zero, c, n);
}

static memo_status step(const memo_device* d, memo_stream stream, memo_swap* swap,
                        memo_error* error) {
    const cudaStream_t s = memo_cuda_stream(stream);
    set<<<ROWS * H / 256, 256, 0, s>>>(value, 1);
    for (int32_t k = 0; k < 2 * N_LAYERS; k++) { /* layers 0, 1, ..., and back */
        int32_t back = k >= N_LAYERS, i = back ? 2 * N_LAYERS - 1 - k : k;
        float *x = (float*)memo_swap_get_address(swap, i, 0),
              *z = (float*)memo_swap_get_address(swap, i, 1);
        float *wi = w + i * H * H, *dwi = dw + i * H * H;
        int64_t begin = 0, end = ROWS; /* of z, to compute */
        if (back) memo_swap_get_recompute_rows(swap, i, 1, &begin, &end);
        if ((back ? memo_swap_backward_begin : memo_swap_forward_begin)(swap, i, error) ||
            (!back &&
             memo_copy(d, stream, MEMO_COPY_ON_DEVICE, x, value, sizeof(float) * ROWS * H, error)))
            return error->status;

        for (int64_t row = begin; row < end; row += TILE) /* so that bits do not depend on begin */
            product(z + row * H, x + row * H, 0, wi, 0, TILE, H, H);
        relu<<<ROWS * H / 256, 256, 0, s>>>(back ? dz : value, back ? value : z, z);
        if (back) { /* value: the gradient of the next x, then of x */
            product(dwi, x, 1, dz, 0, H, H, ROWS);
            product(value, dz, 0, wi, 1, ROWS, H, H);
        }
        if ((back ? memo_swap_backward_end : memo_swap_forward_end)(swap, i, error))
            return error->status;
    }

    if (blas_status)
        return memo_error_set(error, MEMO_STATUS_DEVICE, "cublasSgemm: %s",
                              cublasGetStatusString(blas_status));
    return memo_cuda_check(cudaGetLastError(), "the step", error);
}

static memo_status run(const memo_device* d, memo_stream stream, int is_swapped,
                       memo_error* error) {
    const memo_item tensors[] = {
        MEMO_ITEM("x", H * sizeof(float), is_swapped ? MEMO_MOVE : MEMO_KEEP),
        MEMO_ITEM("z", H * sizeof(float), is_swapped ? MEMO_ROWS : MEMO_KEEP)};
    memo_swap_desc desc = {};
    memo_swap* swap;
    memo_swap_sizes sizes;

    desc.device = d;
    desc.compute_stream = stream;
    desc.tensors = tensors;
    desc.n_tensors = 2;
    desc.n_layers = N_LAYERS;
    desc.n_rows = ROWS;
    desc.tile_rows = TILE;
    desc.alpha = 0.5;

    if (memo_swap_create(&desc, &swap, error)) return error->status;
    memo_status status = step(d, stream, swap, error);
    if (!status)
        status = memo_copy(d, stream, MEMO_COPY_TO_HOST, dw_of[is_swapped], dw, sizeof(float) * DW,
                           error);
    if (memo_stream_synchronize(d, stream, status ? NULL : error) && !status)
        status = error->status;

    if (!status) status = memo_swap_desc_get_sizes(&desc, &sizes, error);
    if (!status)
        printf("%s: %d MiB on the device, %d MiB on the host\n", is_swapped ? "swap" : "keep",
               (int)(sizes.device_bytes >> 20), (int)(sizes.host_bytes >> 20));
    memo_swap_destroy(swap);
    return status;
}

int main(void) {
    memo_cuda_device_desc desc = {};
    const int64_t w_bytes = sizeof(float) * DW, x_bytes = sizeof(float) * ROWS * H;
    memo_device* d = NULL;
    memo_stream stream = NULL;
    memo_error error;
    memo_status status = memo_cuda_device_create(&desc, &d, &error);
    if (!status) status = memo_stream_create(d, "compute", 0, &stream, &error);
    if (!status) status = memo_device_alloc(d, w_bytes, (void**)&w, &error);
    if (!status) status = memo_device_alloc(d, w_bytes, (void**)&dw, &error);
    if (!status) status = memo_device_alloc(d, x_bytes, (void**)&value, &error);
    if (!status) status = memo_device_alloc(d, x_bytes, (void**)&dz, &error);
    if (!status) status = memo_host_alloc(d, w_bytes, (void**)&dw_of[0], &error);
    if (!status) status = memo_host_alloc(d, w_bytes, (void**)&dw_of[1], &error);

    if (!status && (cublasCreate(&blas) || cublasSetStream(blas, memo_cuda_stream(stream))))
        status = memo_error_set(&error, MEMO_STATUS_DEVICE, "cublasCreate failed");
    if (!status) set<<<DW / 256, 256, 0, memo_cuda_stream(stream)>>>(w, 0.08f);
    if (!status) status = run(d, stream, 0, &error);
    if (!status) status = run(d, stream, 1, &error);

    if (status) fprintf(stderr, "07_cuda_swap_gemm: %s\n", error.message);
    int is_same = !status && memcmp(dw_of[0], dw_of[1], (size_t)w_bytes) == 0;
    if (!status) printf("%s gradients\n", is_same ? "the same" : "OTHER");

    if (blas) cublasDestroy(blas);
    if (stream) memo_stream_destroy(d, stream, NULL);
    memo_cuda_device_destroy(d);
    return !is_same;
}
