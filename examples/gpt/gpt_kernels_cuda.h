/* gpt_kernels_cuda.h - the operations of gpt_kernels.h on a GPU, for a program in C.
 *
 * Matrix products are cuBLASLt's, in one pinned algorithm for each shape of the weight: a row of a result
 * has the same bits whatever rows are computed with it, so that recomputed rows are those of the
 * forward.  If no algorithm has this property, products run tile by tile.  The other operations are
 * kernels of gpt_kernels_cuda.cu.
 *
 * Types: F32 and BF16.  Nothing enqueued allocates or synchronizes. */
#ifndef GPT_KERNELS_CUDA_H
#define GPT_KERNELS_CUDA_H

#include <stdio.h>

#include "gpt_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attention instead of the built-in kernels, which are exact, deterministic and slow. */
typedef struct gpt_cuda_attention {
    void* context;
    int64_t (*scratch_bytes)(void* context, const gpt_shapes* shapes); /* needs no GPU */
    memo_status (*prepare)(void* context, const gpt_shapes* shapes, memo_stream compute,
                           void* scratch, memo_error* error);
    /* Of prepare alone; optional. */
    int64_t (*check_bytes)(void* context, const gpt_shapes* shapes);
    /* kind: GPT_KIND_ATTENTION or GPT_KIND_ATTENTION_BACKWARD. */
    memo_status (*enqueue)(void* context, memo_stream stream, gpt_kind kind,
                           const gpt_attention_args* args, void* scratch, memo_error* error);
    memo_attention over_ranks;
} gpt_cuda_attention;

typedef struct gpt_cuda_kernels gpt_cuda_kernels;

/* One model at a time, on the GPU that is current when it is prepared: to plan needs none.  attention: NULL
 * for the built-in kernels; they do not attend over ranks.  Errors: OUT_OF_HOST_MEMORY. */
memo_status gpt_cuda_kernels_create(const gpt_cuda_attention* attention, gpt_cuda_kernels** kernels,
                                    memo_error* error);
void gpt_cuda_kernels_destroy(gpt_cuda_kernels* kernels); /* NULL works */
/* The table; kernels outlives its use. */
gpt_kernels gpt_cuda_kernels_table(gpt_cuda_kernels* kernels);
/* Device memory that prepare takes beside the scratch, and gives back. */
int64_t gpt_cuda_kernels_check_bytes(const gpt_cuda_kernels* kernels, const gpt_shapes* shapes);
/* A line: the algorithm pinned for the forward of each weight.  After prepare; nothing before. */
void gpt_cuda_kernels_put_products(const gpt_cuda_kernels* kernels, FILE* file);

#ifdef __cplusplus
}
#endif

#endif
