#pragma once
#include "sp/shardings.h"
#include "sp/attention/ulysses.h"
/* ---- >>attention desc ---------------------------------------------------------------------------
 * Knows: what a desc of attention may say, and the shape that follows.  Knows nothing of memory or
 * of passes. */

MEMOI int memoi_desc_is_alike(const memo_sharding* a, const memo_sharding* b) {
    return a->kind == b->kind && a->ring == b->ring && a->ulysses == b->ulysses &&
           a->slice_tokens == b->slice_tokens && a->padded_tokens == b->padded_tokens &&
           a->local_tokens == b->local_tokens && a->ring_tokens == b->ring_tokens &&
           !a->pieces == !b->pieces;
}

/* A sharding must be as memo_sharding_make left it: memory is counted from its fields. */
MEMOI memo_status memoi_desc_made_check(const char* field, const memo_sharding* sharding,
                                        memo_error* error) {
    memo_sharding made = *sharding;
    if (memoi_sharding_measure(&made, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    if (memoi_desc_is_alike(&made, sharding) && !made.pieces == !made.document_begins)
        return MEMO_STATUS_OK;
    return MEMOI_REFUSE("memo_sp_attention_desc.%s: changed (local_tokens %lld); use it as "
                        "memo_sharding_make left it (%lld)",
                        field, (long long)sharding->local_tokens, (long long)made.local_tokens);
}

/* Communicators and shardings come from different calls, so they may disagree. */
MEMOI memo_status memoi_desc_rank_check(const char* name, const char* rank_name,
                                        const memo_comm* comm, int32_t degree, int32_t rank,
                                        memo_error* error) {
    if (comm && comm->size != degree)
        return MEMOI_REFUSE("memo_sp_attention_desc.%s: its size is not the sharding's degree (%d, "
                            "%d); make both from one mesh",
                            name, (int)comm->size, (int)degree);
    return memob_check_integer("memo_sp_attention_desc", rank_name, rank, 0, degree - 1, error);
}

MEMOI int32_t memoi_desc_n_nodes(const memo_sp_attention_desc* desc) {
    const int32_t n = desc->nodes ? desc->nodes->size : desc->n_nodes;
    return n > 1 ? n : 1;
}

/* Consecutive ring ranks share a node. */
MEMOI memo_status memoi_desc_nodes_check(const memo_sp_attention_desc* desc, memo_error* error) {
    const int32_t n = memoi_desc_n_nodes(desc), ring = desc->sharding.ring;
    const int32_t rank = desc->ring ? desc->ring->rank : desc->ring_rank;
    if (desc->n_nodes < 0 || ring % n)
        return MEMOI_REFUSE(
            "memo_sp_attention_desc.n_nodes: %d nodes do not divide the ring (%d); 1, or a divisor",
            (int)(desc->n_nodes < 0 ? desc->n_nodes : n), (int)ring);
    if (desc->nodes && desc->nodes->rank != rank / (ring / n))
        return MEMOI_REFUSE("memo_sp_attention_desc.nodes: rank %d of nodes, but rank %d of the "
                            "ring; make both from one mesh",
                            (int)desc->nodes->rank, (int)rank);
    return MEMO_STATUS_OK;
}

/* What the desc of a sequence has, too; name: of the desc that the caller filled. */
MEMOI memo_status memoi_desc_heads_check(const char* name, const memo_sp_attention_desc* desc,
                                         memo_error* error) {
    const memo_sharding *sharding = &desc->sharding, *keys = &desc->key_sharding;
    const int32_t n_batch = desc->n_batch ? desc->n_batch : 1;
    const int64_t head_size =
        memob_max(memob_max(desc->head_size, desc->v_head_size), desc->latent.size);
    if (desc->n_q_heads < 1 || desc->n_kv_heads < 1 || desc->n_q_heads % desc->n_kv_heads)
        return MEMOI_REFUSE("%s.n_q_heads: not a positive multiple of n_kv_heads (%d, %d); choose "
                            "one that is",
                            name, (int)desc->n_q_heads, (int)desc->n_kv_heads);
    if (MEMOI_INTEGER(name, desc, n_batch, 0, INT32_MAX) ||
        MEMOI_INTEGER(name, desc, ulysses_groups, 0, INT32_MAX) ||
        MEMOI_INTEGER(name, desc, head_size, 1, 1 << 24) ||
        MEMOI_INTEGER(name, desc, v_head_size, 0, 1 << 24) ||
        MEMOI_INTEGER(name, desc, latent.size, 0, 1 << 24) ||
        MEMOI_INTEGER(name, desc, latent.n_heads, 0, INT32_MAX) ||
        MEMOI_REAL(name, desc, softcap, 0, 3e38) || MEMOI_REAL(name, desc, scale, -3e38, 3e38) ||
        memoi_check_row_type(name, "type", desc->type, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    if (desc->ulysses_groups > 1 && sharding->ulysses > 1) {
        const int64_t n_q = desc->n_q_heads, n_ranks = sharding->ulysses;
        int64_t works = memob_min(desc->ulysses_groups, n_q);
        while (works > 1 && n_q % (n_ranks * works)) works--;
        if (works < desc->ulysses_groups)
            return MEMOI_REFUSE("%s.ulysses_groups: %d do not divide the query heads of each rank "
                                "(%lld of %lld ranks); %lld would work",
                                name, (int)desc->ulysses_groups, (long long)n_q, (long long)n_ranks,
                                (long long)works);
    }

    /* Every count of bytes must fit 63 bits: all heads, sent to every rank, in every hop. */
    if ((double)memob_max(sharding->ring_tokens, keys->ring_tokens) * sharding->ring * n_batch *
            desc->n_q_heads * (double)head_size * sharding->ulysses >
        (double)(MEMOB_BYTES_MAX / 1024))
        return MEMOI_REFUSE("%s: too large (%lld tokens, %d query heads of %d, batch %d); tokens x "
                            "heads x head size x batch x ulysses may be 2^52",
                            name, (long long)memob_max(sharding->n_tokens, keys->n_tokens),
                            (int)desc->n_q_heads, (int)head_size, (int)n_batch);
    return MEMO_STATUS_OK;
}

/* Everything that does not need a device. */
MEMOI memo_status memoi_desc_shape_check(const memo_sp_attention_desc* desc, memo_error* error) {
    const memo_sharding *sharding = &desc->sharding, *keys = &desc->key_sharding;
    const int32_t n_batch = desc->n_batch ? desc->n_batch : 1;
    if (sharding->ring < 1 || sharding->ulysses < 1 || sharding->local_tokens < 1)
        return MEMOI_REFUSE(
            "memo_sp_attention_desc.sharding: empty; fill it with memo_sharding_make");
    if (memoi_desc_made_check("sharding", sharding, error) ||
        (keys->local_tokens && memoi_desc_made_check("key_sharding", keys, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;

    if (memoi_desc_rank_check("ring", "ring_rank", desc->ring, sharding->ring, desc->ring_rank,
                              error) ||
        memoi_desc_rank_check("ulysses", "ulysses_rank", desc->ulysses, sharding->ulysses,
                              desc->ulysses_rank, error) ||
        memoi_desc_nodes_check(desc, error) ||
        memoi_desc_heads_check("memo_sp_attention_desc", desc, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->n_masks < 0 || (desc->n_masks > 1 && desc->n_masks != n_batch))
        return MEMOI_REFUSE(
            "memo_sp_attention_desc.n_masks: not valid (%d); 1 and n_batch (%d) are",
            (int)desc->n_masks, (int)n_batch);

    if (keys->local_tokens && (keys->ring != sharding->ring || keys->ulysses != sharding->ulysses))
        return MEMOI_REFUSE("memo_sp_attention_desc.key_sharding: ring %d x ulysses %d, but "
                            "sharding has %d x %d; make both with the same degrees",
                            (int)keys->ring, (int)keys->ulysses, (int)sharding->ring,
                            (int)sharding->ulysses);
    return MEMO_STATUS_OK;
}

/* Without tokens. */
MEMOI memo_status memoi_desc_shape_make(const memo_sp_attention_desc* desc, memoi_shape* shape,
                                        memo_error* error) {
    const int64_t n_q = desc->n_q_heads;
    int64_t n_ranks = desc->sharding.ulysses;
    memo_status status = memoi_desc_shape_check(desc, error);
    memset(shape, 0, sizeof *shape);
    if (status) return status;

    /* Who holds which tokens. */
    shape->sharding = desc->sharding;
    shape->has_key_sharding = desc->key_sharding.local_tokens > 0;
    shape->key_sharding = shape->has_key_sharding ? desc->key_sharding : desc->sharding;
    shape->ring_rank = desc->ring ? desc->ring->rank : desc->ring_rank;
    shape->ulysses_rank = desc->ulysses ? desc->ulysses->rank : desc->ulysses_rank;

    shape->n_nodes = memoi_desc_n_nodes(desc);
    if (shape->n_nodes == desc->sharding.ring) shape->n_nodes = 1; /* nothing to pass on */

    /* The attention of a head. */
    shape->n_batch = desc->n_batch ? desc->n_batch : 1;
    shape->n_q_heads = desc->n_q_heads;
    shape->n_kv_heads = desc->latent.size ? 1 : desc->n_kv_heads;
    shape->n_read_heads = desc->n_kv_heads;
    shape->head_size = desc->head_size;
    shape->v_head_size = desc->v_head_size ? desc->v_head_size : desc->head_size;
    shape->kv_size[0] = desc->latent.size ? desc->latent.size : shape->head_size;
    shape->kv_size[1] = desc->latent.size ? 0 : shape->v_head_size;
    shape->latent = desc->latent;
    shape->type = desc->type;
    shape->scale = desc->scale != 0 ? desc->scale : (float)(1 / sqrt((double)desc->head_size));
    shape->softcap = desc->softcap;

    /* How it travels. */
    shape->sends_again = desc->sends_again;
    shape->carried_type =
        desc->rounds_gradients && desc->sharding.ring > 1 ? desc->type : MEMO_TYPE_F32;
    shape->n_groups = 1;
    if (desc->ulysses_groups && n_ranks > 1) shape->n_groups = desc->ulysses_groups;
    shape->heads = memoi_shape_split_heads(desc->n_q_heads, shape->n_kv_heads, (int32_t)n_ranks,
                                           shape->ulysses_rank);
    n_ranks *= shape->n_groups;
    for (int64_t r = 1; r < n_ranks;
         r++) /* does a rank or group begin within those of a key head? */
        shape->is_replicated |= r * n_q / n_ranks % (n_q / shape->n_kv_heads) != 0;
    shape->n_parts = desc->n_masks ? desc->n_masks : 1;
    shape->has_levels = desc->has_levels != 0;
    return MEMO_STATUS_OK;
}

/* The shape of one group of heads. */
MEMOI memoi_shape memoi_desc_group_of(const memoi_shape* shape, int32_t group) {
    memoi_shape part = *shape;
    part.group = group;
    part.heads = memoi_shape_heads_of(&part, shape->ulysses_rank);
    return part;
}
