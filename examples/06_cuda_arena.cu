/* 06_cuda_arena.cu - plans the memory of a step before its allocation, then serves it on a GPU.
 *
 * Build:
 *     nvcc -arch=native -I. examples/06_cuda_arena.cu -o 06_cuda_arena
 * Expected output:
 *     3 buffers of 16 MiB in a block of 32 MiB; 300 requests served; z[0] is 2
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_CUDA_IMPLEMENTATION
#include "memo_sp.h" /* the row kernels */
#include "memo_cuda.cuh"
#include "memo_plan.h"
#include <stdio.h>

enum { N = 1 << 22 }; /* floats */

__global__ static void set(float* x, float value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x)
        x[i] = value;
}

/* y = x + x, z = y + y.  Without a device it only requests memory. */
static memo_status step(memo_arena* arena, const memo_device* device, memo_stream stream,
                        float* result, memo_error* error) {
    const int64_t size_bytes = N * sizeof(float);
    memo_add_desc first = {}, second = {};
    void *x, *y, *z;
    if (memo_arena_begin(arena, error) || memo_arena_alloc(arena, size_bytes, 0, &x, error) ||
        memo_arena_alloc(arena, size_bytes, 0, &y, error) || memo_arena_free(arena, x, error) ||
        memo_arena_alloc(arena, size_bytes, 0, &z,
                         error)) /* in x's place: the stream is in order */
        return error->status;
    first.n_columns = second.n_columns = N;
    first.to = y;
    second.a = second.b = y;
    first.a = first.b = x;
    second.to = z;
    if (device) {
        set<<<256, 256, 0, memo_cuda_stream(stream)>>>((float*)x, 0.5f);
        if (memo_row_add(device, stream, &first, error) ||
            memo_row_add(device, stream, &second, error) ||
            memo_copy(device, stream, MEMO_COPY_TO_HOST, result, z, sizeof *result, error))
            return error->status;
    }
    if (memo_arena_free(arena, y, error) || memo_arena_free(arena, z, error)) return error->status;
    return memo_arena_end(arena, error);
}

int main(void) {
    memo_cuda_device_desc device_desc = {};
    memo_arena_desc record = {}, replay = {};
    memo_device* device = NULL;
    memo_trace* trace = NULL;
    memo_plan* plan = NULL;
    memo_arena *dry = NULL, *arena = NULL;
    memo_stream stream = NULL;
    memo_error error;
    void* result = NULL;

    /* Record a dry step, plan it, and create the arena of the plan. */
    memo_status status = memo_cuda_device_create(&device_desc, &device, &error);
    if (!status) status = memo_stream_create(device, "compute", 0, &stream, &error);
    if (!status) status = memo_host_alloc(device, sizeof(float), &result, &error);
    if (!status) status = memo_trace_create(&trace, &error);
    record.trace = trace;
    if (!status) status = memo_arena_create(&record, &dry, &error);
    if (!status) status = step(dry, NULL, NULL, NULL, &error);
    if (!status) status = memo_plan_from_trace(trace, 0, &plan, &error);
    if (!status) status = memo_plan_solve(plan, NULL, &error);
    replay.device = device;
    replay.plan = plan;
    if (!status) status = memo_arena_create(&replay, &arena, &error);

    for (int k = 0; k < 100 && !status; k++)
        status = step(arena, device, stream, (float*)result, &error);
    if (!status) status = memo_stream_synchronize(device, stream, &error);
    if (status) {
        fprintf(stderr, "06_cuda_arena: %s\n", error.message);
    } else {
        const memo_arena_stats stats = memo_arena_get_stats(arena);
        printf("3 buffers of 16 MiB in a block of %d MiB; %d requests served; z[0] is %g\n",
               (int)(stats.reserved_bytes >> 20), (int)stats.n_requests, *(float*)result);
    }

    memo_arena_destroy(arena);
    memo_arena_destroy(dry);
    memo_plan_destroy(plan);
    memo_trace_destroy(trace);
    if (stream) memo_stream_destroy(device, stream, NULL);
    memo_cuda_device_destroy(device);
    return status ? 1 : 0;
}
