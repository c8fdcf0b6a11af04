#pragma once
#include "sp/row_kernels.h"
#include "cuda/row_lanes.h"
#include "cuda/state.h"
/* ---- >>row kernels ------------------------------------------------------------------------------
 * Knows: grids.  Knows nothing of the arithmetic. */
#ifdef MEMO_SP_H

#define MEMOI_CUDA_THREADS 256

/* Enough threads to fill the GPU several times, not more than there are items. */
MEMOI memo_status memoi_cuda_grid(int64_t n_items, int64_t items_per_block, unsigned* n_blocks,
                                  memo_error* error) {
    int ordinal = 0, n_processors = 0;
    int64_t wanted = n_items / items_per_block + (n_items % items_per_block != 0), most;
    memo_status status = MEMOI_CUDA_CALL(cudaGetDevice, (&ordinal), error);
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetAttribute,
                                 (&n_processors, cudaDevAttrMultiProcessorCount, ordinal), error);
    most = (int64_t)n_processors * 32;
    *n_blocks = (unsigned)(wanted < most ? wanted : most);
    return status;
}

/* n_blocks at a time, which bounds the registers: 64 for four, 84 for three. */
#define MEMOI_CUDA_ITEMS(name, n_blocks, desc_type, item_function)                                 \
    static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS, n_blocks)                         \
        memoi_cuda_##name##_kernel(const __grid_constant__ desc_type desc, int64_t n_items) {      \
        int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                             \
        for (; item < n_items; item += (int64_t)gridDim.x * blockDim.x)                            \
            item_function(&desc, item);                                                            \
    }

MEMOI_CUDA_ITEMS(add, 4, memo_add_desc, memo_add_item)
MEMOI_CUDA_ITEMS(cast, 3, memo_add_desc, memo_cast_item) /* with four it would spill */
MEMOI_CUDA_ITEMS(reduce, 4, memo_reduce_desc, memo_reduce_item)
MEMOI_CUDA_ITEMS(add_packed, 4, memo_pack_desc, memo_add_packed_item)
MEMOI_CUDA_ITEMS(cross_entropy, 3, memo_cross_entropy_desc, memo_entropy_item) /* and this */

/* n_lanes threads share a row, so a warp has several.  Its threads stay together: all call the
 * kernel's function of a row, which has_row tells from a place behind the last row.  Four blocks at
 * a time; without the bound the compiler uses registers for three. */
#define MEMOI_CUDA_ROWS(name, desc_type, n_lanes)                                                  \
    static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS, 4)                                \
        memoi_cuda_##name##_kernel(const __grid_constant__ desc_type desc, int64_t n_rows) {       \
        const int64_t each = 32 / (n_lanes); /* rows of a warp */                                  \
        const int32_t lane = (int32_t)(threadIdx.x % (n_lanes));                                   \
        int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32 * each;              \
        for (; first < n_rows; first += (int64_t)gridDim.x * blockDim.x / 32 * each) {             \
            const int64_t row = first + threadIdx.x % 32 / (n_lanes);                              \
            memoi_cuda_##name##_row(&desc, row, lane, row < n_rows);                               \
        }                                                                                          \
    }

/* The lanes of a row, and then its end: all lanes have read the LSE that lane 0 replaces. */
#define MEMOI_CUDA_LANES(name, desc_type, lane_of, end)                                            \
    static __device__ void memoi_cuda_##name##_row(const desc_type* desc, int64_t row,             \
                                                   int32_t lane, bool has_row) {                   \
        if (has_row) lane_of(desc, row, lane);                                                     \
        __syncwarp();                                                                              \
        if (has_row && lane == 0) end(desc, row);                                                  \
    }                                                                                              \
    MEMOI_CUDA_ROWS(name, desc_type, MEMO_ROW_LANES)
MEMOI_CUDA_LANES(merge, memo_merge_desc, memo_merge_lane, memo_merge_end)
MEMOI_CUDA_LANES(sinks, memo_sinks_desc, memo_sink_lane, memo_sink_end)

/* Shuffles move 32 bits. */
template <typename Value>
static __device__ Value memoi_cuda_shuffle(Value value, int apart, int n_lanes) {
    float words[sizeof value / 4];
    memcpy(words, &value, sizeof value);
#ifdef __CUDA_ARCH__ /* host compilers do not know it */
#pragma unroll
#endif
    for (int k = 0; k < (int)(sizeof value / 4); k++)
        words[k] = __shfl_xor_sync(0xffffffffu, words[k], apart, n_lanes);
    memcpy(&value, words, sizeof value);
    return value;
}

/* The lanes of a row compute values, which are joined in a fixed order. */
#define MEMOI_CUDA_JOINS(name, desc_type, n_lanes, value_type, lane_of, join, end)                 \
    static __device__ void memoi_cuda_##name##_row(const desc_type* desc, int64_t row,             \
                                                   int32_t lane, bool has_row) {                   \
        value_type value = value_type();                                                           \
        if (has_row) value = lane_of(desc, row, lane);                                             \
        for (int apart = (n_lanes) / 2; apart > 0; apart /= 2)                                     \
            value = join(value, memoi_cuda_shuffle(value, apart, n_lanes));                        \
        if (has_row && lane == 0) end(desc, row, value);                                           \
    }                                                                                              \
    MEMOI_CUDA_ROWS(name, desc_type, n_lanes)
#define MEMOI_CUDA_ADD(a, b) ((a) + (b))
MEMOI_CUDA_JOINS(sums, memo_add_desc, MEMO_ROW_LANES, float, memo_row_sum_lane, MEMOI_CUDA_ADD,
                 memo_row_sum_end)
MEMOI_CUDA_JOINS(softmax_parts, memo_cross_entropy_desc, MEMO_LOSS_LANES, memo_softmax_sum,
                 memo_softmax_lane, memo_softmax_join, memo_softmax_end)
MEMOI_CUDA_JOINS(loss_sums, memo_cross_entropy_desc, MEMO_LOSS_LANES, double, memo_loss_lane,
                 MEMOI_CUDA_ADD, memo_loss_end)
MEMOI_CUDA_JOINS(sink_sums, memo_sinks_desc, MEMO_LOSS_LANES, double, memo_sink_sum_lane,
                 MEMOI_CUDA_ADD, memo_sink_sum_end)

/* kernel<<<n_blocks, MEMOI_CUDA_THREADS, 0, stream>>>(desc, n_items) for the items of a resolved
 * desc, but returns only its own error, not an earlier one.  No grid if there are none. */
template <typename Desc>
static memo_status memoi_cuda_enqueue(void (*kernel)(Desc, int64_t), memo_stream stream,
                                      const void* desc, int64_t n_items, int64_t items_per_block,
                                      memo_error* error) {
    cudaLaunchConfig_t config = {};
    unsigned n_blocks = 0;
    memo_status status;
    if (n_items == 0) return MEMO_STATUS_OK;
    status = memoi_cuda_grid(n_items, items_per_block, &n_blocks, error);
    if (status) return status;
    config.gridDim = dim3(n_blocks, 1, 1);
    config.blockDim = dim3(MEMOI_CUDA_THREADS, 1, 1);
    config.stream = memo_cuda_stream(stream);
    return memo_cuda_check_at(cudaLaunchKernelEx(&config, kernel, *(const Desc*)desc, n_items),
                              "cudaLaunchKernelEx", __FILE__, __LINE__, error);
}

MEMOI memo_status memoi_cuda_row_kernel_here(void* context, memo_stream stream,
                                             const memo_row_call* call, memo_error* error) {
    const memo_row_desc& d = *(const memo_row_desc*)call->desc;
    const int64_t items = MEMOI_CUDA_THREADS, rows = MEMOI_CUDA_THREADS / MEMO_ROW_LANES,
                  warps = MEMOI_CUDA_THREADS / MEMO_LOSS_LANES;
    (void)context;
    switch (call->kind) {
#define MEMOI_CUDA_CASE(kind, kernel, n_items, per_block)                                          \
    case kind:                                                                                     \
        return memoi_cuda_enqueue(memoi_cuda_##kernel##_kernel, stream, &d, n_items, per_block,    \
                                  error);
        MEMOI_CUDA_CASE(MEMO_ROW_MERGE, merge, d.merge.n_batches * d.merge.n_rows, rows)
        MEMOI_CUDA_CASE(MEMO_ROW_ADD, add, memo_add_items(&d.add), items)
        MEMOI_CUDA_CASE(MEMO_ROW_SUMS, sums, d.add.n_rows, rows)
        MEMOI_CUDA_CASE(MEMO_ROW_CAST, cast, memo_cast_items(&d.add), items)
        MEMOI_CUDA_CASE(MEMO_ROW_SOFTMAX_PARTS, softmax_parts, d.entropy.n_rows, warps)
        MEMOI_CUDA_CASE(MEMO_ROW_CROSS_ENTROPY, cross_entropy, d.entropy.n_rows * MEMO_LOSS_LANES,
                        items)
        MEMOI_CUDA_CASE(MEMO_ROW_LOSS_SUMS, loss_sums,
                        d.entropy.n_rows > 0 && d.entropy.sums ? 3 : 0, warps)
        MEMOI_CUDA_CASE(MEMO_ROW_SINKS, sinks, d.sinks.n_rows * d.sinks.n_heads, rows)
        MEMOI_CUDA_CASE(MEMO_ROW_SINK_SUMS, sink_sums, d.sinks.n_heads, warps)
        MEMOI_CUDA_CASE(MEMO_ROW_REDUCE, reduce, d.reduce.count, items)
        MEMOI_CUDA_CASE(MEMO_ROW_ADD_PACKED, add_packed, memo_add_packed_items(&d.pack), items)
    case MEMO_N_ROW_KINDS: break;
    }
    return MEMOB_INVALID(error, "row kernel: not a memo_row_kind (%d)", (int)call->kind);
}

MEMOI memo_status memoi_cuda_row_kernel(void* context, memo_stream stream,
                                        const memo_row_call* call, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    return on.status ? on.status : memoi_cuda_row_kernel_here(context, stream, call, error);
}
#endif /* MEMO_SP_H */
