#pragma once
#include "sp/attention/hybrid.h"
#include "sp/mesh.h"
/* ---- >>sequence ---------------------------------------------------------------------------------
 * Knows: the public functions of meshes, shardings, attention and exchanges, and the checks whose
 * errors name what the caller filled.  Knows nothing of how these work. */

struct memo_sequence {
    memo_sequence_desc desc; /* complete */
    memo_mesh* mesh;         /* NULL: one rank */
    int32_t rank;
    memo_sharding sharding; /* of the batch, or of creation */
    memo_sp_attention* attention;
    memo_exchange* exchange; /* NULL: no batch has begun */
    int64_t* begins;         /* the documents of the batch; behind them their parents */
    const int64_t* parents;  /* NULL: none */
    int64_t capacity;
    memo_segment* segments; /* of the mask */
    int64_t n_segments, segments_capacity;
    memo_sp_attention_sizes sizes; /* of a layer, rounded up */
    char* memory;                  /* of all layers */
};

/* The sharding and the exchange of documents that begins has. */
MEMOI memo_status memoi_sequence_shard(memo_sequence* s, int64_t n_documents, memo_error* error) {
    const memo_sharding_desc desc = {MEMO_SHARDING_DOCUMENTS,
                                     s->mesh ? s->mesh->degrees.ring : 1,
                                     s->mesh ? s->mesh->degrees.ulysses : 1,
                                     s->desc.n_tokens,
                                     0,
                                     s->begins,
                                     n_documents,
                                     s->parents,
                                     0};
    memo_sharding made;
    const memo_status status = memo_sharding_make(&desc, &made, error);
    if (!status) {
        memo_sharding_free(&s->sharding);
        s->sharding = made;
    }
    return status;
}

/* Fields that both descs have. */
/* clang-format off */
#define MEMOI_SEQUENCE_SAME(K)                                                                     \
    K(device) K(stream) K(n_batch) K(n_q_heads) K(n_kv_heads) K(head_size) K(v_head_size)          \
    K(latent) K(type) K(scale) K(softcap) K(sends_again) K(rounds_gradients) K(ulysses_groups)     \
    K(attention)
/* clang-format on */
#define MEMOI_SEQUENCE_COPY(field) attention.field = desc->field;

/* Checks the fields that the caller filled, in the desc that they were copied to. */
MEMOI memo_status memoi_sequence_check(const memo_sp_attention_desc* attention, memo_error* error) {
    static const char name[] = "memo_sequence_desc";
    const memo_status status = memoi_desc_heads_check(name, attention, error);
    return status ? status : memoi_hybrid_device_check(name, attention, error);
}

MEMOI memo_status memoi_sequence_prepare(memo_sequence* s, const memo_sequence_desc* desc,
                                         memo_error* error) {
    const int32_t size = desc->comm ? desc->comm->size : 1;
    const int32_t ulysses = desc->ulysses ? desc->ulysses : 1;
    memo_mesh_desc mesh = MEMO_ZERO(memo_mesh_desc);
    memo_sp_attention_desc attention = MEMO_ZERO(memo_sp_attention_desc);
    memo_status status = MEMO_STATUS_OK;
    if (MEMOI_INTEGER("memo_sequence_desc", desc, n_layers, 0, 1 << 20) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, n_tokens, 1, MEMOB_BYTES_MAX / 2) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, window, 0, INT64_MAX) ||
        MEMOI_GIVEN("memo_sequence_desc", desc, device))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (ulysses < 1 || size % ulysses)
        return MEMOI_REFUSE("memo_sequence_desc.ulysses: %d, which does not divide the ranks of "
                            "comm (%d); 1, or a divisor",
                            (int)ulysses, (int)size);
    if (desc->nodes < 0 || size / ulysses % (desc->nodes ? desc->nodes : 1))
        return MEMOI_REFUSE(
            "memo_sequence_desc.nodes: %d, which does not divide the ring (%d); 1, or a divisor",
            (int)desc->nodes, (int)(size / ulysses));
    s->desc = *desc;
    s->desc.n_layers = desc->n_layers ? desc->n_layers : 1;
    s->rank = desc->comm ? desc->comm->rank : 0;
    if (!memob_reserve(&s->begins, &s->capacity, 2, sizeof *s->begins))
        return memob_no_memory(error, "a sequence");

    /* The ranks, and one document until the first batch. */
    mesh.ulysses = ulysses;
    mesh.ring = size / ulysses;
    mesh.nodes = desc->nodes;
    if (size > 1) status = memo_mesh_create(desc->comm, &mesh, &s->mesh, error);
    s->begins[0] = 0;
    s->begins[1] = desc->n_tokens;
    if (!status) status = memoi_sequence_shard(s, 1, error);
    if (status) return status;

    attention.ring = s->mesh ? s->mesh->ring : NULL;
    attention.ulysses = s->mesh ? s->mesh->ulysses : NULL;
    attention.nodes = s->mesh ? s->mesh->nodes : NULL;
    attention.sharding = s->sharding;
    MEMOI_SEQUENCE_SAME(MEMOI_SEQUENCE_COPY)
    attention.has_levels = desc->has_trees;
    status = memoi_sequence_check(&attention, error);
    if (!status) status = memo_sp_attention_desc_get_sizes(&attention, &s->sizes, error);
    if (!status) status = memo_sp_attention_create(&attention, &s->attention, error);
    if (status) return status;

    /* What a layer keeps. */
    s->sizes.lse_bytes = memob_align_up(s->sizes.lse_bytes, MEMOB_DEVICE_ALIGNMENT);
    s->sizes.saved_bytes = memob_align_up(s->sizes.saved_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (!(s->sizes.lse_bytes + s->sizes.saved_bytes)) return MEMO_STATUS_OK;
    return memo_device_alloc(desc->device,
                             s->desc.n_layers * (s->sizes.lse_bytes + s->sizes.saved_bytes),
                             (void**)&s->memory, error);
}

memo_status memo_sequence_create(const memo_sequence_desc* desc, memo_sequence** sequence,
                                 memo_error* error) {
    MEMOB_REFUSE_NULL(error, "sequence", sequence);
    *sequence = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memo_sequence* s = (memo_sequence*)memob_calloc(1, sizeof *s);
    memo_status status =
        s ? memoi_sequence_prepare(s, desc, error) : memob_no_memory(error, "a sequence");
    if (status) memo_sequence_destroy(s);
    *sequence = status ? NULL : s;
    return status;
}

void memo_sequence_destroy(memo_sequence* s) {
    if (!s) return;
    memo_exchange_destroy(s->exchange);
    memo_sp_attention_destroy(s->attention);
    if (s->memory) memo_device_free(s->desc.device, s->memory, NULL);
    memo_sharding_free(&s->sharding);
    memo_mesh_destroy(s->mesh);
    MEMO_FREE(s->begins);
    MEMO_FREE(s->segments);
    MEMO_FREE(s);
}

MEMOI memo_status memoi_sequence_fill_mask(memo_sequence* s, int64_t n_documents,
                                           memo_error* error) {
    memo_mask_desc desc = MEMO_ZERO(memo_mask_desc);
    memo_status status;
    desc.n_tokens = s->desc.n_tokens;
    desc.window_before = s->desc.window;
    desc.document_begins = s->begins;
    desc.n_documents = n_documents;
    desc.document_parents = s->parents;
    status = memo_mask_documents(&desc, NULL, &s->n_segments, error);
    if (status) return status;
    if (!memob_reserve(&s->segments, &s->segments_capacity, s->n_segments, sizeof *s->segments))
        return memob_no_memory(error, "the mask of a batch");
    return memo_mask_documents(&desc, s->segments, &s->n_segments, error);
}

memo_status memo_sequence_begin(memo_sequence* s, const int64_t* document_begins,
                                const int64_t* document_parents, int64_t n_documents,
                                memo_error* error) {
    MEMOB_REFUSE_NULL(error, "sequence", s);
    memo_exchange_desc exchange = MEMO_ZERO(memo_exchange_desc);
    memo_mask mask;
    memo_status status;
    memo_exchange_destroy(s->exchange); /* waits for the stream */
    s->exchange = NULL;
    s->parents = NULL;
    if (!document_begins) n_documents = 1;
    if (document_parents && !s->desc.has_trees)
        return MEMOI_REFUSE("memo_sequence_begin.document_parents: not NULL, but "
                            "memo_sequence_desc.has_trees is 0; set it to 1");
    if (document_begins &&
        (memoi_sharding_check_documents("memo_sequence_begin.document_begins", document_begins,
                                        n_documents, s->desc.n_tokens, error) ||
         memoi_sharding_check_parents("memo_sequence_begin.document_parents", document_parents,
                                      n_documents, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (document_begins && document_parents && s->desc.window)
        return MEMOI_REFUSE("memo_sequence_begin.document_parents: not NULL beside a window "
                            "(%lld); pass NULL, or set memo_sequence_desc.window to 0",
                            (long long)s->desc.window);
    if (!memob_reserve(&s->begins, &s->capacity, 2 * n_documents + 1, sizeof *s->begins))
        return memob_no_memory(error, "the documents of a batch");
    s->begins[0] = 0;
    s->begins[n_documents] = s->desc.n_tokens;
    if (document_begins)
        memcpy(s->begins, document_begins, (size_t)(n_documents + 1) * sizeof *s->begins);
    if (document_begins && document_parents)
        s->parents = (const int64_t*)memcpy(s->begins + n_documents + 1, document_parents,
                                            (size_t)n_documents * sizeof *s->begins);

    status = memoi_sequence_shard(s, n_documents, error);
    if (!status) status = memoi_sequence_fill_mask(s, n_documents, error);
    mask.segments = s->segments;
    mask.n_segments = s->n_segments;
    exchange.masks = &mask;
    exchange.sharding = &s->sharding;
    if (!status) status = memo_exchange_create(s->attention, &exchange, &s->exchange, error);
    return status;
}

const memo_sharding* memo_sequence_get_sharding(const memo_sequence* s) {
    return s->exchange ? &s->sharding : NULL;
}

void memo_sequence_get_positions(const memo_sequence* s, int64_t* positions) {
    if (s && positions) memoi_sharding_positions(&s->sharding, s->rank, positions);
}

/* Adds what a layer keeps. */
MEMOI memo_status memoi_sequence_layer(const memo_sequence* s, int32_t layer,
                                       memo_sp_attention_tensors* t, memo_error* error) {
    const int64_t n_bytes = s->sizes.lse_bytes + s->sizes.saved_bytes;
    char* at = s->memory + layer * n_bytes;
    if (!s->exchange)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence: no batch has begun; call memo_sequence_begin first");
    if (memob_check_integer("memo_sequence", "layer", layer, 0, s->desc.n_layers - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (s->sizes.lse_bytes) t->lse = (float*)(void*)at;
    if (s->sizes.saved_bytes) t->saved = at + s->sizes.lse_bytes;
    return MEMO_STATUS_OK;
}

memo_status memo_sequence_attend(memo_sequence* s, int32_t layer, const void* q, const void* k,
                                 const void* v, void* out, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "sequence", s);
    memo_sp_attention_tensors t = {q, k, v, out, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    const memo_status status = memoi_sequence_layer(s, layer, &t, error);
    return status ? status : memo_sp_attention_forward(s->attention, s->exchange, &t, error);
}

memo_status memo_sequence_attend_backward(memo_sequence* s, int32_t layer, const void* q,
                                          const void* k, const void* v, const void* out,
                                          const void* d_out, void* d_q, void* d_k, void* d_v,
                                          memo_error* error) {
    MEMOB_REFUSE_NULL(error, "sequence", s);
    memo_sp_attention_tensors t = {
        q, k, v, (void*)(uintptr_t)out, NULL, NULL, NULL, NULL, d_out, d_q, d_k, d_v};
    const memo_status status = memoi_sequence_layer(s, layer, &t, error);
    return status ? status : memo_sp_attention_backward(s->attention, s->exchange, &t, error);
}
