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
    memo_sharding sharding; /* of one document, which has all rows */
    int64_t begins[2];
    memo_sp_attention* attention;
    memo_sp_attention_sizes sizes; /* of a layer, rounded up */
    char* memory;                  /* of n_in_flight batches, (n_layers) each */
    /* (n_in_flight): which batch has a place of the memory; NULL: free. */
    const struct memo_sequence_batch** holders;
};

/* A layer's lse is that of its latest forward, which waits for its backward. */
enum { MEMOI_LAYER_NEW = 0, MEMOI_LAYER_FORWARD, MEMOI_LAYER_BACKWARD };
typedef struct memoi_batch_layer {
    int32_t state;
    const float* lse;
} memoi_batch_layer;

struct memo_sequence_batch {
    memo_exchange exchange; /* first: both are freed as one; its arrays are the batch's, too */
    memo_sequence* sequence;
    memo_sharding sharding;
    memoi_batch_layer* layers;
    char* kept; /* its place of the sequence's memory; NULL: none */
};

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

/* Of all layers of a batch. */
MEMOI int64_t memoi_sequence_kept_bytes(const memo_sequence* s) {
    return s->desc.n_layers * (s->sizes.lse_bytes + s->sizes.saved_bytes);
}

/* Batches that have ended, but not on the stream. */
enum { MEMOI_ENDED_BATCHES = 8 };

/* What passes would allocate otherwise. */
MEMOI memo_status memoi_sequence_reserve(memo_sequence* s, memo_error* error) {
    const int32_t n = s->desc.n_in_flight;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = 0; i < n + MEMOI_ENDED_BATCHES && !status; i++)
        status = memoi_flights_add(&s->attention->flights, s->desc.device, NULL, error);
    s->sizes.lse_bytes = memob_align_up(s->sizes.lse_bytes, MEMOB_DEVICE_ALIGNMENT);
    s->sizes.saved_bytes = memob_align_up(s->sizes.saved_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (status || !n || !memoi_sequence_kept_bytes(s)) return status;
    if ((double)memoi_sequence_kept_bytes(s) * n > (double)MEMOB_BYTES_MAX)
        return MEMOI_REFUSE("memo_sequence_desc.n_in_flight: %d batches of %lld bytes are too "
                            "large; fewer, or -1",
                            (int)n, (long long)memoi_sequence_kept_bytes(s));
    s->holders = (const memo_sequence_batch**)memob_calloc(n, sizeof *s->holders);
    if (!s->holders) return memob_no_memory(error, "a sequence");
    return memo_device_alloc(s->desc.device, n * memoi_sequence_kept_bytes(s), (void**)&s->memory,
                             error);
}

MEMOI memo_status memoi_sequence_prepare(memo_sequence* s, const memo_sequence_desc* desc,
                                         memo_error* error) {
    const int32_t size = desc->comm ? desc->comm->size : 1;
    const int32_t ulysses = desc->ulysses ? desc->ulysses : 1;
    memo_sharding_desc sharding = MEMO_ZERO(memo_sharding_desc);
    memo_mesh_desc mesh = MEMO_ZERO(memo_mesh_desc);
    memo_sp_attention_desc attention = MEMO_ZERO(memo_sp_attention_desc);
    memo_status status = MEMO_STATUS_OK;
    if (MEMOI_INTEGER("memo_sequence_desc", desc, n_layers, 0, 1 << 20) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, n_tokens, 1, MEMOB_BYTES_MAX / 2) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, window, 0, INT64_MAX) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, n_in_flight, -1, 1 << 20) ||
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
    s->desc.n_in_flight = desc->n_in_flight ? (int32_t)memob_max(desc->n_in_flight, 0) : 1;
    s->rank = desc->comm ? desc->comm->rank : 0;

    /* The ranks, and one document. */
    mesh.ulysses = ulysses;
    mesh.ring = size / ulysses;
    mesh.nodes = desc->nodes;
    if (size > 1) status = memo_mesh_create(desc->comm, &mesh, &s->mesh, error);
    s->begins[1] = desc->n_tokens;
    sharding.kind = MEMO_SHARDING_DOCUMENTS;
    sharding.ring = mesh.ring;
    sharding.ulysses = ulysses;
    sharding.n_tokens = desc->n_tokens;
    sharding.document_begins = s->begins;
    sharding.n_documents = 1;
    if (!status) status = memo_sharding_make(&sharding, &s->sharding, error);
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
    return status ? status : memoi_sequence_reserve(s, error);
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
    memo_sp_attention_destroy(s->attention);
    if (s->memory) memo_device_free(s->desc.device, s->memory, NULL);
    memo_sharding_free(&s->sharding);
    memo_mesh_destroy(s->mesh);
    MEMO_FREE(s->holders);
    MEMO_FREE(s);
}

memo_sp_attention_sizes memo_sequence_get_sizes(const memo_sequence* s) {
    return s ? s->sizes : MEMO_ZERO(memo_sp_attention_sizes);
}

void memo_sequence_get_items(const memo_sequence* s, memo_item items[2]) {
    const memo_item none = MEMO_ZERO(memo_item);
    int64_t n_rows;
    if (!items) return;
    items[0] = items[1] = none;
    items[0].name = "lse";
    items[1].name = "q_k_v_by_heads";
    items[0].away = items[1].away = MEMO_MOVE;
    if (!s) return;
    n_rows = memob_max(s->desc.n_batch, 1) * s->sharding.local_tokens;
    items[0].row_bytes = (s->sizes.lse_bytes + n_rows - 1) / n_rows;
    items[1].row_bytes = (s->sizes.saved_bytes + n_rows - 1) / n_rows;
}

/* --- batches --- */

MEMOI memo_status memoi_batch_check(const memo_sequence* s, const memo_sequence_batch_desc* desc,
                                    int64_t n_tokens, memo_error* error) {
    static const char name[] = "memo_sequence_batch_desc";
    const char* also = NULL;
    if (MEMOI_INTEGER(name, desc, n_tokens, 0, s->desc.n_tokens))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->document_begins &&
        (memoi_sharding_check_documents("memo_sequence_batch_desc.document_begins",
                                        desc->document_begins, desc->n_documents, n_tokens,
                                        error) ||
         memoi_sharding_check_parents("memo_sequence_batch_desc.document_parents",
                                      desc->document_parents, desc->n_documents, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->document_parents && s->desc.window) also = "beside memo_sequence_desc.window";
    if (desc->document_parents && !s->desc.has_trees)
        also = "but memo_sequence_desc.has_trees is 0";
    if (desc->document_parents && !desc->document_begins) also = "without document_begins";
    if (also)
        return MEMOI_REFUSE("%s.document_parents: not NULL %s; pass NULL, or documents to a "
                            "sequence with trees and without a window",
                            name, also);
    return MEMO_STATUS_OK;
}

/* Copies the documents, and shares them out.  *windows: what they see, if the sequence has a
 * window; the caller frees its segments. */
MEMOI memo_status memoi_batch_shard(memo_sequence_batch* b, const memo_sequence_batch_desc* from,
                                    memo_mask* windows, memo_error* error) {
    const memo_sequence* s = b->sequence;
    const int64_t n = from->document_begins ? from->n_documents : 1;
    memob_arrays* arrays = &b->exchange.arrays;
    int64_t* begins = MEMOB_ARRAY(arrays, int64_t, n + 1);
    int64_t* parents = from->document_parents ? MEMOB_ARRAY(arrays, int64_t, n) : NULL;
    memo_sharding_piece* pieces;
    memo_segment* segments;
    memo_sharding_desc desc = MEMO_ZERO(memo_sharding_desc);
    memo_mask_desc mask = MEMO_ZERO(memo_mask_desc);
    memo_status status;
    b->layers = MEMOB_ARRAY(arrays, memoi_batch_layer, s->desc.n_layers);
    if (arrays->failed) return memob_no_memory(error, "a batch");

    desc.kind = MEMO_SHARDING_DOCUMENTS;
    desc.ring = s->sharding.ring;
    desc.ulysses = s->sharding.ulysses;
    desc.capacity = s->desc.n_tokens;
    desc.n_tokens = from->n_tokens ? from->n_tokens : desc.capacity;
    begins[n] = desc.n_tokens;
    if (from->document_begins) memcpy(begins, from->document_begins, (size_t)n * sizeof *begins);
    if (parents) memcpy(parents, from->document_parents, (size_t)n * sizeof *parents);
    desc.document_begins = begins;
    desc.n_documents = n;
    desc.document_parents = parents;

    /* Ranks have as many scores under a window, too. */
    mask.n_tokens = desc.n_tokens;
    mask.document_begins = begins;
    mask.n_documents = n;
    mask.window_before = s->desc.window;
    if (s->desc.window) {
        windows->n_segments = desc.n_segments = memoi_mask_fill(&mask, NULL);
        windows->segments = desc.segments = segments =
            (memo_segment*)memob_calloc(desc.n_segments + 1, sizeof *segments);
        if (!segments) return memob_no_memory(error, "a batch");
        (void)memoi_mask_fill(&mask, segments);
    }
    status = memo_sharding_make(&desc, &b->sharding, error);
    if (status) return status;

    /* Its memory goes with the other arrays. */
    pieces = MEMOB_ARRAY(arrays, memo_sharding_piece, b->sharding.n_pieces + 1);
    if (pieces)
        memcpy(pieces, b->sharding.pieces, (size_t)(b->sharding.n_pieces + 1) * sizeof *pieces);
    memo_sharding_free(&b->sharding);
    b->sharding.pieces = pieces;
    return pieces ? MEMO_STATUS_OK : memob_no_memory(error, "a batch");
}

memo_status memo_sequence_batch_create(memo_sequence* s, const memo_sequence_batch_desc* desc,
                                       memo_sequence_batch** result, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "batch", result);
    *result = NULL;
    MEMOB_REFUSE_NULL(error, "sequence", s);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memo_exchange_desc exchange = MEMO_ZERO(memo_exchange_desc);
    memo_mask windows = MEMO_ZERO(memo_mask);
    memo_sequence_batch* b;
    memo_status status =
        memoi_batch_check(s, desc, desc->n_tokens ? desc->n_tokens : s->desc.n_tokens, error);
    if (status) return status;

    memoi_flights_free_passed(&s->attention->flights);
    b = (memo_sequence_batch*)memob_calloc(1, sizeof *b);
    if (!b) return memob_no_memory(error, "a batch");
    b->sequence = s;
    exchange.sharding = &b->sharding;
    if (s->desc.window) exchange.masks = &windows; /* else causal within the documents */
    status = memoi_batch_shard(b, desc, &windows, error);
    if (!status) status = memoi_hybrid_plan(&b->exchange, s->attention, &exchange, error);
    MEMO_FREE((void*)(uintptr_t)windows.segments);
    if (status)
        memoi_exchange_free(&b->exchange);
    else
        *result = b;
    return status;
}

void memo_sequence_batch_destroy(memo_sequence_batch* b) {
    if (!b || b->exchange.has_ended) return;
    for (int32_t i = 0; i < b->sequence->desc.n_in_flight && b->kept; i++)
        if (b->sequence->holders[i] == b) b->sequence->holders[i] = NULL;
    memo_exchange_destroy(&b->exchange);
}

const memo_sharding* memo_sequence_batch_get_sharding(const memo_sequence_batch* b) {
    return b ? &b->sharding : NULL;
}

void memo_sequence_batch_get_positions(const memo_sequence_batch* b, int64_t* positions) {
    if (b && positions) memoi_sharding_positions(&b->sharding, b->sequence->rank, positions);
}

/* --- passes --- */

/* Gives a batch a place of the sequence's memory.  The stream orders who uses it. */
MEMOI memo_status memoi_batch_keep(memo_sequence_batch* b, memo_error* error) {
    memo_sequence* s = b->sequence;
    int32_t i = 0;
    while (i < s->desc.n_in_flight && s->holders[i]) i++;
    if (i == s->desc.n_in_flight)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence_batch_attend: %d batches are in flight, and "
                          "memo_sequence_desc.n_in_flight is %d; destroy one first, set more, or "
                          "pass tensors.lse and saved",
                          (int)i, (int)i);
    s->holders[i] = b;
    b->kept = s->memory + i * memoi_sequence_kept_bytes(s);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_batch_pass(memo_sequence_batch* b, int32_t layer,
                                   const memo_sp_attention_tensors* tensors, int is_backward,
                                   memo_error* error) {
    memo_sequence* s = b->sequence;
    memo_sp_attention_tensors t = *tensors;
    memoi_batch_layer* l;
    memo_status status;
    if (b->exchange.has_ended)
        return MEMOI_FAIL(INVALID_STATE, "memo_sequence_batch: destroyed; create another");
    if (memob_check_integer("memo_sequence_batch", "layer", layer, 0, s->desc.n_layers - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    l = &b->layers[layer];
    if (is_backward && l->state != MEMOI_LAYER_FORWARD)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence_batch_attend_backward: layer %d of this batch %s; call "
                          "memo_sequence_batch_attend first",
                          (int)layer, l->state ? "has had its backward" : "has had no forward");

    /* What the layer keeps. */
    if (!t.lse && !t.saved && s->memory) {
        if (!b->kept && memoi_batch_keep(b, error)) return MEMO_STATUS_INVALID_STATE;
        t.lse = (float*)(void*)(b->kept + layer * (s->sizes.lse_bytes + s->sizes.saved_bytes));
        t.saved = (char*)t.lse + s->sizes.lse_bytes;
    }
    if (is_backward && l->lse != t.lse)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence_batch_attend_backward: tensors.lse: not the address of "
                          "this batch's forward of layer %d; pass the same",
                          (int)layer);

    status = b->exchange.has_begun ? MEMO_STATUS_OK : memoi_exchange_begin(&b->exchange, error);
    if (!status)
        status = memoi_hybrid_run(s->attention, &b->exchange, &t, is_backward, layer, error);
    l->lse = t.lse;
    if (!is_backward) l->state = status ? MEMOI_LAYER_NEW : MEMOI_LAYER_FORWARD;
    if (is_backward && !status) l->state = MEMOI_LAYER_BACKWARD;
    return status;
}

memo_status memo_sequence_batch_attend(memo_sequence_batch* b, int32_t layer,
                                       const memo_sp_attention_tensors* tensors,
                                       memo_error* error) {
    MEMOB_REFUSE_NULL(error, "batch", b);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_batch_pass(b, layer, tensors, 0, error);
}
memo_status memo_sequence_batch_attend_backward(memo_sequence_batch* b, int32_t layer,
                                                const memo_sp_attention_tensors* tensors,
                                                memo_error* error) {
    MEMOB_REFUSE_NULL(error, "batch", b);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_batch_pass(b, layer, tensors, 1, error);
}
