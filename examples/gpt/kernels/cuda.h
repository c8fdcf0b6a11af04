/* cuda.h - the operations of kernels.h on a GPU, for a program in C.
 *
 * Matrix products are cuBLASLt's.  Those of the forward run tile by tile, as on the host, so that
 * recomputed rows have the bits of the forward.  The other operations are kernels of
 * cuda.cu.
 *
 * Types: F32 and BF16.  Nothing enqueued allocates or synchronizes. */
#ifndef GPT_KERNELS_CUDA_H
#define GPT_KERNELS_CUDA_H

#include "gpt/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch memory of all but attention: cuBLASLt's workspace, parts of sums, and sums over
 * GPT_CUDA_CHUNK rows each: of a norm's weight, of a bias.  A norm of heads has a row for each
 * head. */
enum {
    GPT_CUDA_WORKSPACE = 32 << 20,
    GPT_CUDA_PARTIALS = 4096, /* of a long sum, each of a warp or of a thread */
    GPT_CUDA_CHUNK = 256      /* rows that one thread sums */
};
static inline int64_t gpt_cuda_rows_bytes(const gpt_shapes* shapes) {
    const int64_t n_chunks = (shapes->n_rows + GPT_CUDA_CHUNK - 1) / GPT_CUDA_CHUNK;
    const int64_t of_heads = n_chunks * shapes->q + shapes->head_size;
    const int64_t n = n_chunks * shapes->hidden;
    return ((n > of_heads ? n : of_heads) * (int64_t)sizeof(float) + 511) / 512 * 512;
}
static inline int64_t gpt_cuda_own_bytes(const gpt_shapes* shapes) {
    return GPT_CUDA_WORKSPACE + (GPT_CUDA_PARTIALS + 64) * (int64_t)sizeof(double) +
           gpt_cuda_rows_bytes(shapes);
}

/* Attention instead of the built-in kernels, which are exact, deterministic and slow. */
typedef struct gpt_cuda_attention {
    void* context;
    int64_t (*scratch_bytes)(void* context, const gpt_shapes* shapes); /* needs no GPU */
    memo_status (*prepare)(void* context, const gpt_shapes* shapes, memo_stream compute,
                           void* scratch, memo_error* error);
    /* kind: GPT_KIND_ATTENTION or GPT_KIND_ATTENTION_BACKWARD. */
    memo_status (*enqueue)(void* context, memo_stream stream, gpt_kind kind,
                           const gpt_attention_args* args, void* scratch, memo_error* error);
    memo_attention over_ranks;
} gpt_cuda_attention;

typedef struct gpt_cuda_kernels gpt_cuda_kernels;

/* One model at a time, on the GPU that is current when it is prepared: to plan needs none.
 * attention: NULL for the built-in kernels; they do not attend over ranks.  Errors:
 * OUT_OF_HOST_MEMORY. */
memo_status gpt_cuda_kernels_create(const gpt_cuda_attention* attention, gpt_cuda_kernels** kernels,
                                    memo_error* error);
void gpt_cuda_kernels_destroy(gpt_cuda_kernels* kernels); /* NULL works */
/* The table; kernels outlives its use. */
gpt_kernels gpt_cuda_kernels_table(gpt_cuda_kernels* kernels);

#ifdef __cplusplus
}
#endif

#endif
