/* cudnn_scratch.h - the device memory of cuDNN's attention beside its tensors, known without CUDA.
 * C.
 *
 * Shared by cudnn_attention.h, which sets it aside, and by dry runs. */
#ifndef CUDNN_SCRATCH_H
#define CUDNN_SCRATCH_H

#include <stdint.h>

/* One call: b sequences, n_q queries of h_q heads, n_k keys of h_k heads of size d, in bf16. */
typedef struct cudnn_call {
    int64_t b, n_q, n_k, h_q, h_k, d;
    int is_backward, is_deterministic;            /* the latter of the backward only */
    int has_alone_q_results, has_alone_k_results; /* out and d_q, d_k and d_v lie in the scratch */
    int64_t documents; /* the most sequences that are packed; 0: a sequence is one */
} cudnn_call;

/* Sequences that a block over ranks packs at most: a ring cuts documents and windows. */
static inline int64_t cudnn_most_sequences(int64_t ring, int64_t documents) {
    return (documents ? documents : 1) + (ring > 1 ? 3 : 0);
}

static inline int64_t cudnn_round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Statistics, results that lie alone, and of documents their begins in CUDNN_N_BEGINS tensors and
 * the lengths of queries and keys. */
enum { CUDNN_N_BEGINS = 7 };
static inline int64_t cudnn_result_bytes(const cudnn_call* c) {
    const int64_t n_q = c->b * c->h_q * c->n_q, n_k = c->b * c->h_k * c->n_k;
    int64_t n_bytes = cudnn_round_up(n_q * 4, 512);
    if (c->documents)
        n_bytes += cudnn_round_up(CUDNN_N_BEGINS * (c->documents + 1) * 8, 512) +
                   cudnn_round_up(2 * c->documents * 4, 512);
    if (c->has_alone_q_results)
        n_bytes += (1 + c->is_backward) * cudnn_round_up(n_q * c->d * 2, 512);
    if (c->has_alone_k_results && c->is_backward)
        n_bytes += 2 * cudnn_round_up(n_k * c->d * 2, 512);
    return n_bytes;
}

/* A deterministic backward on Hopper keeps the gradient of all scores in bf16.  Each packed
 * document has the scores of a whole sequence: in cudnn-frontend's
 * scaled_dot_product_flash_attention.h dS is (documents, h_q, n_q, n_k).  n_q and n_k are rounded
 * up to unit.  The result is at most 1e18. */
static inline int64_t cudnn_scores_bytes(const cudnn_call* c, int64_t unit) {
    const double n_q = (double)cudnn_round_up(c->n_q, unit);
    const double n_k = (double)cudnn_round_up(c->n_k, unit);
    const double n_bytes =
        2.0 * (double)(c->documents ? c->documents : c->b) * (double)c->h_q * n_q * n_k;
    if (!c->is_backward || !c->is_deterministic) return 0;
    return n_bytes < 1e18 ? (int64_t)n_bytes : (int64_t)1e18;
}

/* The workspace that cuDNN is expected to need at most.  A backward sums d_q in fp32.  A quarter
 * and 8 MiB are for what cuDNN takes besides. */
static inline int64_t cudnn_workspace_bytes(const cudnn_call* c) {
    const int64_t n_q = cudnn_round_up(c->n_q, 128), n_k = cudnn_round_up(c->n_k, 128);
    int64_t n_bytes = 0;
    if (c->is_backward) n_bytes = c->b * c->h_q * n_q * (4 * c->d + 8);
    if (c->is_backward && c->h_q != c->h_k) n_bytes += c->b * c->h_q * n_k * c->d * 4;
    n_bytes += cudnn_scores_bytes(c, 128);
    return n_bytes + n_bytes / 4 + ((int64_t)8 << 20);
}

/* Results and workspace: at most limit_bytes, or else what one key head and its query heads
 * need. */
static inline int64_t cudnn_scratch_bytes(const cudnn_call* c, int64_t limit_bytes) {
    int64_t n_bytes = 0;
    for (int64_t n_calls = 1; n_calls <= c->h_k; n_calls++) {
        cudnn_call part = *c;
        if (c->h_k % n_calls) continue;
        part.h_q = (c->h_q + n_calls - 1) / n_calls;
        part.h_k = c->h_k / n_calls;
        n_bytes = cudnn_result_bytes(&part) + cudnn_workspace_bytes(&part);
        if (n_bytes <= limit_bytes) break;
    }
    return n_bytes;
}

#endif
