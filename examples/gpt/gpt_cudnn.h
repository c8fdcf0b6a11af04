/* gpt_cudnn.h - cuDNN's fused attention for gpt_kernels_cuda.h, for a program in C.
 *
 * Attention of whole sequences, of the last queries of one, and over ranks.  bf16; heads of a multiple of 8.
 * All graphs are built in prepare: a step builds nothing and allocates no device memory.  Every row of a part of
 * a sequence has the bits that it has beside earlier rows; prepare compares them, and refuses a cuDNN
 * without this property. */
#ifndef GPT_CUDNN_H
#define GPT_CUDNN_H

#include "gpt_kernels_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt_cudnn_desc {
    /* 1: gradients have the same bits in every run.  On Hopper this needs 2 bytes of scratch memory for each
     * pair of a query and a key of the heads that one call computes. */
    int32_t is_deterministic;
    /* Scratch memory to set aside; 0: what a call is expected to need, up to 2 GiB.  A call that needs more is
     * divided into groups of heads.  A group has at least one key head and its query heads, and gets the memory
     * that these are expected to need.  If cuDNN needs still more, prepare fails and names the bytes. */
    int64_t scratch_bytes;
} gpt_cudnn_desc;

typedef struct gpt_cudnn gpt_cudnn;

/* Needs no GPU: cuDNN is opened in prepare.  Errors: OUT_OF_HOST_MEMORY. */
memo_status gpt_cudnn_create(const gpt_cudnn_desc* desc, gpt_cudnn** cudnn, memo_error* error);
void gpt_cudnn_destroy(gpt_cudnn* cudnn); /* NULL works */
/* cudnn outlives its use.  One model at a time. */
gpt_cuda_attention gpt_cudnn_attention(gpt_cudnn* cudnn);

#ifdef __cplusplus
}
#endif

#endif
