#pragma once
#include "memo/base.h"
/* ---- >>attention shape --------------------------------------------------------------------------
 * Knows: tokens, heads and masks of an attention on one rank.  Knows nothing of how it is
 * computed.
 *
 * 1. Runs are those of a rank of the ring. */

/* n_q_heads must be a multiple of n_kv_heads; nothing else needs to divide. */
MEMOI memo_ulysses_heads memoi_shape_split_heads(int32_t n_q_heads, int32_t n_kv_heads,
                                                 int32_t ulysses, int32_t ulysses_rank) {
    memo_ulysses_heads heads;
    int32_t group = n_q_heads / n_kv_heads, end;
    heads.first_q = (int32_t)((int64_t)ulysses_rank * n_q_heads / ulysses);
    end = (int32_t)(((int64_t)ulysses_rank + 1) * n_q_heads / ulysses);
    heads.n_q = end - heads.first_q;
    heads.first_kv = heads.first_q / group;
    heads.n_kv = heads.n_q ? (end - 1) / group - heads.first_kv + 1 : 0;
    return heads;
}

/* A sharding, and the runs of all ring ranks under it. */
typedef struct memoi_shape_tokens {
    memo_sharding sharding;
    memo_run* runs;   /* (ring, max_runs) */
    int32_t* n_runs;  /* (ring) */
    int64_t max_runs; /* of a rank */
} memoi_shape_tokens;

/* An attention on one rank.  Its documents come with each exchange. */
typedef struct memoi_shape {
    memo_sharding sharding, key_sharding; /* the desc's; an exchange may have other documents */
    int32_t has_key_sharding;             /* cross-attention */
    int32_t ring_rank, ulysses_rank;
    int32_t n_nodes; /* of the ring; consecutive ring ranks share a node */
    int32_t n_batch, n_q_heads, head_size, v_head_size;
    int32_t n_kv_heads, kv_size[2]; /* of keys, of values: as they travel */
    int32_t n_read_heads;           /* of keys, as attention reads them */
    memo_latent latent;
    memo_type type;
    float scale, softcap;
    int32_t sends_again;
    memo_type carried_type; /* of d_k and d_v in the ring: F32, or type */
    int32_t n_groups;       /* of the heads of each rank */
    int32_t group;          /* the one that heads are of, but in the whole shape */
    memo_ulysses_heads heads;
    int32_t is_replicated; /* several ranks, or groups, need the same key head */
    int32_t has_levels;    /* masks may have several */
    int32_t n_parts;       /* of the batch: 1, or n_batch if sequences have masks */
    /* (2) of an exchange: of queries; of cross-attention's keys. */
    const memoi_shape_tokens* tokens;
} memoi_shape;

MEMOI const memo_sharding* memoi_shape_sharding(const memoi_shape* shape, int is_kv) {
    return is_kv ? &shape->key_sharding : &shape->sharding;
}

MEMOI const memoi_shape_tokens* memoi_shape_tokens_of(const memoi_shape* shape, int is_kv) {
    return &shape->tokens[is_kv && shape->has_key_sharding];
}

MEMOI const memo_run* memoi_shape_runs(const memoi_shape* shape, int is_kv, int32_t ring_rank,
                                       int32_t* n) {
    const memoi_shape_tokens* tokens = memoi_shape_tokens_of(shape, is_kv);
    MEMO_ASSERT(ring_rank >= 0 && ring_rank < shape->sharding.ring); /* 1 */
    *n = tokens->n_runs[ring_rank];
    return tokens->runs + ring_rank * tokens->max_runs;
}

/* The heads of a rank's group, as if each group of each rank were a rank. */
MEMOI memo_ulysses_heads memoi_shape_heads_of(const memoi_shape* shape, int32_t rank) {
    return memoi_shape_split_heads(shape->n_q_heads, shape->n_kv_heads,
                                   shape->sharding.ulysses * shape->n_groups,
                                   rank * shape->n_groups + shape->group);
}
