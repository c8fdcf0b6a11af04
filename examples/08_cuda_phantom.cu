/* 08_cuda_phantom.cu - records a step of a length that does not fit.
 *
 * A device with phantom memory has terabytes of addresses that kernels can use.  One chunk of the
 * GPU's memory backs all of them.  The trainer runs its step unchanged.  Its numbers are garbage,
 * but its requests are recorded and planned.  The plan shows how much memory the step needs.
 *
 * Build:
 *     nvcc -arch=native -I. examples/08_cuda_phantom.cu -o 08_cuda_phantom
 * Expected output:
 *     1048576 tokens: 98 requests, 0.66 TiB at the peak; the GPU has ... TiB
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_cuda.cuh"
#include "memo_plan.h"
#include <stdio.h>

enum { N_LAYERS = 16, HIDDEN = 4096 };

/* A layer keeps its input and 4 h of its MLP.  Another 4 h live only during its forward. */
static memo_status step(memo_arena* arena, const memo_device* device, memo_stream stream,
                        int64_t n_tokens, memo_error* error) {
    const int64_t row_bytes = 2 * HIDDEN;
    void *input[N_LAYERS], *hidden[N_LAYERS], *moment;
    memo_status status = memo_arena_begin(arena, error);
    for (int i = 0; i < N_LAYERS && !status; i++) {
        status = memo_arena_alloc(arena, n_tokens * row_bytes, 0, &input[i], error);
        if (!status)
            status = memo_arena_alloc(arena, 4 * n_tokens * row_bytes, 0, &hidden[i], error);
        if (!status) status = memo_arena_alloc(arena, 4 * n_tokens * row_bytes, 0, &moment, error);
        /* Stands for a kernel: the last rows are mapped, like all others. */
        if (!status)
            status = memo_fill(device, stream, (char*)moment + (4 * n_tokens - 16) * row_bytes, 0,
                               16 * row_bytes, error);
        if (!status) status = memo_arena_free(arena, moment, error);
    }
    for (int i = N_LAYERS - 1; i >= 0 && !status; i--) {
        status = memo_arena_free(arena, hidden[i], error);
        if (!status) status = memo_arena_free(arena, input[i], error);
    }
    return status ? status : memo_arena_end(arena, error);
}

int main(void) {
    const int64_t n_tokens = 1 << 20;
    memo_cuda_device_desc device_desc = {};
    memo_arena_desc desc = {};
    memo_device* device = NULL;
    memo_stream stream = NULL;
    memo_trace* trace = NULL;
    memo_plan* plan = NULL;
    memo_arena* arena = NULL;
    memo_error error;
    size_t free_bytes, total_bytes;

    device_desc.phantom_bytes = (int64_t)2 << 40;
    memo_status status = memo_cuda_device_create(&device_desc, &device, &error);
    if (!status) status = memo_stream_create(device, "compute", 0, &stream, &error);
    if (!status) status = memo_trace_create(&trace, &error);
    desc.device = device;
    desc.trace = trace;
    if (!status) status = memo_arena_create(&desc, &arena, &error);
    if (!status) status = step(arena, device, stream, n_tokens, &error);
    if (!status) status = memo_stream_synchronize(device, stream, &error);
    if (!status) status = memo_plan_from_trace(trace, 0, &plan, &error);
    if (!status) status = memo_plan_solve(plan, NULL, &error);
    if (!status)
        status =
            memo_cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo", &error);

    if (status)
        fprintf(stderr, "08_cuda_phantom: %s\n", error.message);
    else
        printf("%lld tokens: %lld requests, %.2f TiB at the peak; the GPU has %.2f TiB\n",
               (long long)n_tokens, (long long)trace->n_requests,
               (double)plan->peak_bytes / (1ll << 40), (double)total_bytes / (1ll << 40));

    memo_arena_destroy(arena);
    memo_plan_destroy(plan);
    memo_trace_destroy(trace);
    if (stream) memo_stream_destroy(device, stream, NULL);
    memo_cuda_device_destroy(device);
    return status ? 1 : 0;
}
