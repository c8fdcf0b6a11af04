/* cudnn.h - cuDNN's fused attention for cuda.h, for a program in C.
 *
 * Attention of whole sequences, of the last queries of one, and over ranks.  bf16; heads of a
 * multiple of 8.  All graphs are built in prepare: a step builds nothing and allocates no device
 * memory.  Rows of a part of a sequence match those of the whole up to rounding: cuDNN does not
 * promise the same bits. */
#ifndef GPT_CUDNN_H
#define GPT_CUDNN_H

#include "cudnn_scratch.h"
#include "gpt/kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt_cudnn_desc {
    /* 1: gradients have the same bits in every run.  On Hopper this needs 2 bytes of scratch memory
     * for each pair of a query and a key of the heads that one call computes, and as much for each
     * packed document. */
    int32_t is_deterministic;
    /* Scratch memory to set aside; 0: what a call is expected to need, up to 2 GiB.  A call that
     * needs more is divided into groups of heads.  A group has at least one key head and its query
     * heads, and gets the memory that these are expected to need.  If cuDNN needs still more,
     * prepare fails and names the bytes. */
    int64_t scratch_bytes;
} gpt_cudnn_desc;

/* What a step's attention is expected to need.  Over ranks: the block of a rank's own keys, the
 * largest. */
static inline int64_t gpt_cudnn_desc_scratch_bytes(const gpt_cudnn_desc* desc,
                                                   const gpt_shapes* of) {
    const int64_t limit = desc->scratch_bytes ? desc->scratch_bytes : (int64_t)2 << 30;
    const memo_sp_attention_desc* sp = &of->over_ranks;
    const int is_over_ranks = sp->sharding.ring * sp->sharding.ulysses > 1;
    const int32_t n = is_over_ranks ? sp->sharding.ulysses : of->n_attention;
    int64_t most = desc->scratch_bytes, n_bytes;
    for (int32_t i = 0; i < n; i++) {
        const gpt_attention_shape* shape = &of->attention[i].shape;
        memo_sp_attention_desc of_rank = *sp;
        memo_sp_attention_sizes sizes;
        cudnn_call c = MEMO_ZERO(cudnn_call);
        c.has_alone_k_results = c.is_backward = 1; /* needs more than the forward */
        c.is_deterministic = desc->is_deterministic;
        of_rank.ulysses_rank = i;
        if (is_over_ranks && memo_sp_attention_desc_get_sizes(&of_rank, &sizes, NULL)) return 0;

        if (is_over_ranks) {
            const int32_t n_groups =
                sp->sharding.ulysses > 1 && sp->ulysses_groups > 1 ? sp->ulysses_groups : 1;
            c.b = sp->n_batch > 1 ? sp->n_batch : 1;
            c.n_q = c.n_k = sp->sharding.ring_tokens;
            c.h_q = (sizes.heads.n_q + n_groups - 1) / n_groups;
            c.h_k = (sizes.heads.n_kv + n_groups - 1) / n_groups;
            c.d = sp->head_size;
            c.has_alone_q_results = 1;
            c.documents = 0;
            if (of->documents || (sp->sharding.ring > 1 && of->window))
                c.documents = cudnn_most_sequences(sp->sharding.ring, of->documents);
            if (c.documents) c.b = 1;
        } else {
            c.b = shape->documents ? 1 : of->attention[i].batch; /* a call each */
            c.documents = shape->documents;
            c.n_q = shape->sequence - shape->first;
            c.n_k = shape->sequence;
            c.h_q = shape->n_heads;
            c.h_k = shape->n_kv_heads;
            c.d = shape->head_size;
        }

        n_bytes = cudnn_scratch_bytes(&c, limit);
        if (n_bytes > most) most = n_bytes;
    }
    return most;
}

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
