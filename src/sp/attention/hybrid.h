#pragma once
#include "sp/attention/buffers.h"
#include "sp/attention/masks.h"
#include "sp/attention/uploads.h"
/* ---- >>hybrid attention -------------------------------------------------------------------------
 * Knows: Ulysses and the ring as functions, and the buffers that these need.  Knows nothing of how
 * Ulysses and the ring work.
 *
 * 1. The rows of a group's LSEs are of heads that this rank has. */

struct memo_sp_attention {
    memo_sp_attention_desc desc;
    memoi_shape shape; /* without tokens */
    memoi_target target;
    memoi_ring_rooms rooms;
    memoi_buffers buffers[2]; /* of forward and backward, in the same memory */
    memoi_flights flights;    /* of exchanges in flight */
    int64_t n_begun;          /* exchanges, in one order on all ranks */
};

/* --- what all ranks must agree on ---
 *
 * A rank whose desc or mask differs would compute other numbers than the others expect. */

/* Fields of digests: K(field, name in errors). */
#define MEMOI_AGREED_ALL(K)                                                                        \
    K(PASS, "memo_sp_attention_forward on one rank, memo_sp_attention_backward on another")        \
    K(SCALE, "memo_sp_attention_desc.scale")                                                       \
    K(SOFTCAP, "memo_sp_attention_desc.softcap")                                                   \
    K(HEADS, "memo_sp_attention_desc: n_q_heads, n_kv_heads, head_size, v_head_size or latent")    \
    K(BATCH, "memo_sp_attention_desc: n_batch, n_masks or type")                                   \
    K(WAY, "memo_sp_attention_desc: rounds_gradients, sends_again, ulysses_groups or nodes")       \
    K(SHARDING, "memo_sp_attention_desc.sharding or memo_exchange_desc.sharding")                  \
    K(KEY_SHARDING, "memo_sp_attention_desc.key_sharding")                                         \
    K(SINKS, "memo_exchange_desc.has_sinks")                                                       \
    K(ORDER, "the order of exchanges, or of a sequence's batches and layers")                      \
    K(MASKS, "memo_exchange_desc.masks: segments")

#define MEMOI_AGREED_ENUM(field, name) MEMOI_AGREED_##field,
#define MEMOI_AGREED_NAME(field, name) name,
enum { MEMOI_AGREED_ALL(MEMOI_AGREED_ENUM) MEMOI_AGREED_N };
typedef char memoi_agreed_fits[MEMOI_AGREED_N == MEMO_LABEL_FIELDS ? 1 : -1];
static const char* const memoi_agreed_fields[] = {MEMOI_AGREED_ALL(MEMOI_AGREED_NAME)};

/* Adds the shape and its shardings. */
MEMOI void memoi_agreed_shape(memo_label* label, const memoi_shape* shape) {
    const int64_t heads[] = {shape->n_q_heads, shape->n_read_heads, shape->head_size,
                             shape->v_head_size, shape->latent.size};
    const int64_t batch[] = {shape->n_batch, shape->n_parts, shape->type};
    const int64_t way[] = {shape->carried_type, shape->sends_again, shape->n_groups,
                           shape->n_nodes};
    memset(label, 0, sizeof *label);
    label->fields = memoi_agreed_fields;
    memoi_label_add(label, MEMOI_AGREED_SCALE, &shape->scale, sizeof shape->scale);
    memoi_label_add(label, MEMOI_AGREED_SOFTCAP, &shape->softcap, sizeof shape->softcap);
    memoi_label_add(label, MEMOI_AGREED_HEADS, heads, sizeof heads);
    memoi_label_add(label, MEMOI_AGREED_BATCH, batch, sizeof batch);
    memoi_label_add(label, MEMOI_AGREED_WAY, way, sizeof way);
    for (int32_t i = 0; i <= shape->has_key_sharding; i++) {
        const int field = i ? MEMOI_AGREED_KEY_SHARDING : MEMOI_AGREED_SHARDING;
        const memo_sharding* own = &shape->tokens[i].sharding;
        memoi_label_add_number(label, field, own->kind);
        memoi_label_add_number(label, field, own->n_tokens);
        memoi_label_add_number(label, field, own->padded_tokens);
        memoi_label_add_number(label, field, own->slice_tokens);
        memoi_label_add_array(label, field, own->document_begins, own->n_documents + 1);
        memoi_label_add_array(label, field, own->document_parents, own->n_documents);
        memoi_label_add_array(label, field, own->pieces ? &own->pieces->row : NULL,
                              2 * (own->n_pieces + 1));
    }
}

/* Adds the rest of an exchange. */
MEMOI void memoi_agreed_masks(memo_label* label, const memo_exchange* plan) {
    const int64_t n_masks = (int64_t)plan->shape.n_parts * plan->n_levels;
    memoi_label_add_number(label, MEMOI_AGREED_SINKS, plan->has_sinks);
    for (int64_t i = 0; i < plan->first_seen[n_masks]; i++) {
        const memo_segment* s = &plan->seen[i];
        const int64_t numbers[] = {s->q_begin, s->q_end, s->k_begin, s->k_end, s->type, s->level};
        memoi_label_add(label, MEMOI_AGREED_MASKS, numbers, sizeof numbers);
    }
    memoi_label_add_array(label, MEMOI_AGREED_MASKS, plan->first_seen, n_masks + 1);
}

/* --- creation --- */

/* name: of the desc that the caller filled. */
MEMOI memo_status memoi_hybrid_device_check(const char* name, const memo_sp_attention_desc* desc,
                                            memo_error* error) {
    if (MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_GIVEN(name, desc, attention.forward) || MEMOI_GIVEN(name, desc, attention.backward) ||
        MEMOI_INTEGER(name, desc, attention.launches, 0, MEMO_N_LAUNCH_KINDS - 1) ||
        (desc->latent.size && MEMOI_GIVEN(name, desc, latent.expand)) ||
        (desc->latent.size && MEMOI_GIVEN(name, desc, latent.reduce)) ||
        (desc->sharding.ring > 1 && MEMOI_GIVEN(name, desc, ring)) ||
        (desc->n_nodes > 1 && MEMOI_GIVEN(name, desc, nodes)) ||
        (desc->sharding.ulysses > 1 && MEMOI_GIVEN(name, desc, ulysses)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->attention.launches &&
        memob_max(desc->sharding.ring_tokens, desc->key_sharding.ring_tokens) > INT32_MAX)
        return MEMOI_REFUSE("%s.attention.launches: rows of a ring rank do not fit 32 bits (%lld); "
                            "more ring ranks, or MEMO_LAUNCHES_NONE",
                            name, (long long)desc->sharding.ring_tokens);
    return memoi_check_memory(name, desc->device_memory, error);
}

/* A step fills a room of keys and two of contributions; step 0 one.  Rows that are held for the
 * node have a room, and one of sums. */
MEMOI memo_status memoi_hybrid_order_make(memo_sp_attention* a, memo_error* error) {
    memoi_ring_rooms* rooms = &a->rooms;
    const int64_t n_steps =
        (int64_t)a->shape.n_groups * (a->shape.sharding.ring + a->shape.n_nodes - 1);
    if (n_steps > INT32_MAX / 8) return memob_no_memory(error, "the waits of an attention");
    rooms->n_cells = 1 + 3 * (int32_t)n_steps;
    rooms->first_cell = MEMOI_CELL_KEYS + (int32_t)memob_max(a->shape.n_groups, 2);
    for (int i = 0; i < MEMOI_N_POOLS; i++) /* a room cuts at its begin and end */
        rooms->pools[i].stretches =
            MEMOB_ARRAY(&a->target.arrays, memoi_pool_stretch, 2 * (int64_t)rooms->n_cells);
    return memoi_target_order_make(&a->target, rooms->first_cell + rooms->n_cells, error);
}

MEMOI memo_status memoi_sp_attention_prepare(memo_sp_attention* a,
                                             const memo_sp_attention_desc* desc,
                                             memo_error* error) {
    const char* names[MEMOI_TARGET_N_STREAMS] = {NULL}; /* of the engine's streams */
    const memo_device* device = desc->device;
    int64_t n_bytes;
    int has_streams = 0; /* beside the caller's */
    memo_status status = memoi_desc_shape_make(desc, &a->shape, error);
    if (!status) status = memoi_hybrid_device_check("memo_sp_attention_desc", desc, error);
    if (status) return status;

    /* Streams and events. */
    if (a->shape.sharding.ring > 1) names[MEMOI_TARGET_RING] = "ring";
    if (a->shape.n_groups > 1) names[MEMOI_TARGET_ULYSSES] = "ulysses";
    if (a->shape.n_nodes > 1) names[MEMOI_TARGET_NODES] = "nodes";
    a->target.device = device;
    a->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    a->desc = *desc;
    for (int i = MEMOI_TARGET_RING; i < MEMOI_TARGET_N_STREAMS && !status; i++) {
        if (!names[i]) continue;
        status = memo_stream_create(device, names[i], 1, &a->target.streams[i], error);
        has_streams = 1;
    }
    if (has_streams && !status) status = memoi_hybrid_order_make(a, error);

    /* Scratch memory. */
    n_bytes = memoi_buffers_carve_all(&a->shape, NULL, a->buffers);
    if (!status && !desc->device_memory && n_bytes)
        status = memo_device_alloc(device, n_bytes, &a->target.memory, error);
    if (n_bytes)
        memoi_buffers_carve_all(
            &a->shape, (char*)(desc->device_memory ? desc->device_memory : a->target.memory),
            a->buffers);
    return status;
}

void memo_sp_attention_destroy(memo_sp_attention* a) {
    if (!a) return;
    memoi_target_close(&a->target);
    memoi_flights_close(&a->flights, a->target.device);
    MEMO_FREE(a);
}
MEMOI_TARGET_CREATE(sp_attention, "an attention over ranks")

/* --- exchanges --- */

/* Causal within the documents of the keys. */
MEMOI memo_status memoi_hybrid_causal_mask(memo_exchange* plan, memo_mask* mask,
                                           memo_error* error) {
    const memoi_shape* shape = &plan->shape;
    const memo_sharding* keys = &memoi_shape_tokens_of(shape, 1)->sharding;
    memo_mask_desc desc = MEMO_ZERO(memo_mask_desc);
    memo_segment* list;
    desc.n_tokens = shape->sharding.n_tokens;
    desc.n_keys = keys->n_tokens;
    desc.document_begins = keys->document_begins;
    desc.n_documents = keys->n_documents;
    desc.document_parents = keys->document_parents;
    if (shape->has_key_sharding && shape->tokens[0].sharding.n_documents)
        return MEMOI_REFUSE("memo_exchange_desc.masks: NULL, but queries have documents, and keys "
                            "a sharding of their own; pass the mask, from memo_mask_cross");
    if (memoi_mask_check_desc(&desc, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    mask->n_segments = memoi_mask_fill(&desc, NULL);
    mask->segments = list = MEMOB_ARRAY(&plan->arrays, memo_segment, mask->n_segments + 1);
    if (list) (void)memoi_mask_fill(&desc, list);
    return list ? MEMO_STATUS_OK : memob_no_memory(error, "the mask of an exchange");
}

/* The masks of all parts, checked and copied, with as many levels each. */
MEMOI memo_status memoi_hybrid_plan_masks(memo_exchange* plan, const memo_mask* given,
                                          memo_error* error) {
    const memoi_shape* shape = &plan->shape;
    const int64_t n_tokens = shape->sharding.n_tokens, n_keys = shape->key_sharding.n_tokens;
    int64_t begins[MEMO_LEVELS_MAX + 1], n = 0, at = 0;
    int32_t n_levels;
    memo_mask causal = {NULL, 0};
    memo_status status = MEMO_STATUS_OK;
    plan->n_levels = 1;
    if (!given) status = memoi_hybrid_causal_mask(plan, &causal, error);
    if (status) return status;
    for (int32_t i = 0; i < shape->n_parts; i++) {
        const memo_mask* mask = given ? &given[i] : &causal;
        if (memoi_mask_check(mask, n_tokens, n_keys, begins, &n_levels, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        plan->n_levels = (int32_t)memob_max(plan->n_levels, n_levels);
        n += mask->n_segments;
    }
    if (plan->n_levels > 1 && !shape->has_levels)
        return MEMOI_REFUSE("memo_exchange_desc.masks: %d levels, but the attention has no memory "
                            "for them; set memo_sp_attention_desc.has_levels to 1",
                            (int)plan->n_levels);

    plan->seen = MEMOB_ARRAY(&plan->arrays, memo_segment, n + 1);
    plan->first_seen =
        MEMOB_ARRAY(&plan->arrays, int64_t, (int64_t)shape->n_parts * plan->n_levels + 1);
    if (plan->arrays.failed) return memob_no_memory(error, "the masks of an exchange");
    for (int32_t i = 0; i < shape->n_parts * plan->n_levels; i++) {
        const int32_t part = i / plan->n_levels, level = i % plan->n_levels;
        const memo_mask* mask = given ? &given[part] : &causal;
        plan->first_seen[i] = at;
        for (int64_t k = 0; k < mask->n_segments; k++)
            if (mask->segments[k].level == level) plan->seen[at++] = mask->segments[k];
    }
    plan->first_seen[shape->n_parts * plan->n_levels] = at;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_hybrid_plan(memo_exchange* plan, memo_sp_attention* attention,
                                    const memo_exchange_desc* desc, memo_error* error) {
    memoi_shape* shape = &plan->shape;
    const memo_sharding* sharding = desc->sharding ? desc->sharding : &attention->shape.sharding;
    const memo_sharding* const shardings[2] = {sharding, &attention->shape.key_sharding};
    memo_status status;
    plan->attention = attention;
    plan->has_sinks = desc->has_sinks != 0;
    plan->launches = attention->desc.attention.launches;
    *shape = attention->shape;
    if (!memoi_desc_is_alike(sharding, &shape->sharding))
        return MEMOI_REFUSE("memo_exchange_desc.sharding: does not match the attention's, which is "
                            "%s, ring %d x ulysses %d, %lld rows a rank; only its tokens and "
                            "documents may differ",
                            memoi_sharding_name(shape->sharding.kind), (int)shape->sharding.ring,
                            (int)shape->sharding.ulysses, (long long)shape->sharding.local_tokens);
    if (sharding->kind == MEMO_SHARDING_DOCUMENTS &&
        memoi_sharding_check_documents("memo_exchange_desc.sharding.document_begins",
                                       sharding->document_begins, sharding->n_documents,
                                       sharding->n_tokens, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Who holds which tokens. */
    shape->sharding = *sharding;
    if (!shape->has_key_sharding) shape->key_sharding = *sharding;
    for (int32_t i = 0; i <= shape->has_key_sharding && !plan->arrays.failed; i++) {
        memoi_exchange_take_tokens(&plan->tokens[i], shardings[i], &plan->arrays);
        plan->most_runs = memob_max(plan->most_runs, plan->tokens[i].max_runs);
    }
    if (plan->arrays.failed) return memob_no_memory(error, "the plan of an exchange");
    shape->tokens = plan->tokens;

    /* Who sees what. */
    status = memoi_hybrid_plan_masks(plan, desc->masks, error);
    if (status) return status;
    memoi_exchange_look(plan);
    if (!plan->arrays.failed) memoi_exchange_make(plan);
    if (plan->arrays.failed) return memob_no_memory(error, "the plan of an exchange");
    memoi_agreed_shape(&plan->agreed, shape);
    memoi_agreed_masks(&plan->agreed, plan);
    return memoi_exchange_measure(plan, desc, error);
}

/* Before the first pass, on the thread of passes.  Allocates only if no flight has room. */
MEMOI memo_status memoi_exchange_begin(memo_exchange* plan, memo_error* error) {
    memo_sp_attention* a = plan->attention;
    const memo_stream stream = a->target.streams[MEMOI_TARGET_COMPUTE];
    memo_status status = MEMO_STATUS_OK;
    if (!plan->flight) {
        memoi_label_add_number(&plan->agreed, MEMOI_AGREED_ORDER, ++a->n_begun);
        status = memoi_flights_take(&a->flights, a->target.device, plan, error);
    }
    if (!status) status = memoi_exchange_upload(plan, a->target.device, stream, error);
    if (!status) status = memoi_comm_meet(a->desc.ring, stream, &plan->agreed, "exchange", error);
    if (!status)
        status = memoi_comm_meet(a->desc.ulysses, stream, &plan->agreed, "exchange", error);
    plan->has_begun = !status;
    return status;
}

memo_status memo_exchange_create(memo_sp_attention* attention, const memo_exchange_desc* desc,
                                 memo_exchange** result, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "exchange", result);
    memo_exchange* plan;
    memo_status status = memob_check_given("memo_exchange_create", "attention", attention, error);
    if (!status) status = memob_check_given("memo_exchange_create", "desc", desc, error);
    *result = NULL;
    if (status) return status;
    memoi_flights_free_passed(&attention->flights);
    plan = (memo_exchange*)memob_calloc(1, sizeof *plan);
    status = plan ? memoi_hybrid_plan(plan, attention, desc, error)
                  : memob_no_memory(error, "the plan of an exchange");
    if (!status) status = memoi_exchange_begin(plan, error);
    if (status)
        memo_exchange_destroy(plan);
    else
        *result = plan;
    return status;
}

/* The stream may still read runs and segments.  Without an event they stay until the attention
 * ends. */
void memo_exchange_destroy(memo_exchange* plan) {
    if (!plan || plan->has_ended) return;
    memo_sp_attention* a = plan->attention;
    plan->has_ended = 1;
    if (!plan->flight)
        memoi_flights_pass(&a->flights, plan);
    else
        plan->flight->has_end = !memo_event_record(a->target.device, plan->flight->end,
                                                   a->target.streams[MEMOI_TARGET_COMPUTE], NULL);
}

/* --- one forward or backward --- */

/* One forward or backward of this rank. */
typedef struct memoi_hybrid_walk {
    const memoi_shape* shape;
    memoi_shape groups[2]; /* of heads: even and odd ones */
    memoi_target target;
    memoi_buffers buffers;
    memo_sp_attention_tensors tensors;
    memoi_ulysses ulysses;
    memoi_ring ring;
    float* d_kv[2]; /* of a group: the sums of this rank's rows */
} memoi_hybrid_walk;

MEMOI void memoi_hybrid_walk_init(memoi_hybrid_walk* walk, const memo_exchange* plan,
                                  const memo_sp_attention_tensors* tensors, int32_t is_backward,
                                  memo_error* error) {
    const memo_sp_attention* a = plan->attention;
    memset(walk, 0, sizeof *walk);
    walk->shape = walk->ring.shape = &plan->shape;
    walk->target = a->target;
    walk->target.error = error;
    walk->buffers = a->buffers[is_backward];
    walk->tensors = *tensors;
    if (walk->shape->latent.size) { /* no bytes of values travel; any address will do */
        walk->tensors.v = tensors->k;
        walk->tensors.d_v = tensors->d_k;
    }

    walk->ulysses.target = walk->ring.target = &walk->target;
    walk->ulysses.stream = a->shape.n_groups > 1 ? MEMOI_TARGET_ULYSSES : MEMOI_TARGET_COMPUTE;
    walk->ulysses.comm = a->desc.ulysses;
    walk->ulysses.staging = walk->buffers.staging;
    walk->ring.comm = a->desc.ring;
    walk->ring.attention = &a->desc.attention;
    walk->ring.is_backward = is_backward;
    walk->ring.plan = plan;
    walk->ring.nodes = a->desc.nodes;
    walk->ring.rooms = &plan->attention->rooms;
    walk->ring.last_step = a->shape.heads.n_q ? plan->last_step : 0;
}

/* --- one group of heads --- */

/* Where q, k and v of a group are by heads. */
MEMOI void memoi_hybrid_find_heads(const memoi_hybrid_walk* walk, int32_t g, char** q,
                                   char* kv[2]) {
    const memo_sp_attention_tensors* t = &walk->tensors;
    const memoi_shape* group = &walk->groups[g % 2];
    memoi_carver saved = {(char*)t->saved, 0};
    if (!group->heads.n_q) { /* a rank without heads gets no bytes; any address will do */
        *q = kv[0] = kv[1] = (char*)t->out;
        return;
    }
    *q = walk->buffers.q[g % 2];
    kv[0] = walk->buffers.kv[g % 2][0];
    kv[1] = walk->buffers.kv[g % 2][1];
    for (int32_t earlier = 0; earlier <= g && !walk->shape->sends_again; earlier++) {
        const memoi_shape part = memoi_desc_group_of(walk->shape, earlier);
        memoi_buffers_carve_heads(&part, &saved, q, kv);
    }
}

/* The cell of these keys; without Ulysses of the user's, which their gradients may replace. */
MEMOI int32_t memoi_hybrid_keys_cell(const memoi_hybrid_walk* walk, int32_t g) {
    return MEMOI_CELL_KEYS + (walk->shape->sends_again ? g % 2 : g);
}

/* What attention reads of a group arrives by heads.  q, k and v arrive in forward, and in backward
 * if the desc says that they are sent again; otherwise q, k and v were saved. */
MEMOI void memoi_hybrid_arrive(memoi_hybrid_walk* walk, int32_t g) {
    const memo_sp_attention_tensors* t = &walk->tensors;
    const memoi_shape* shape = walk->shape;
    const memoi_buffers* b = &walk->buffers;
    const memoi_exchanged q = {"q to heads", 0, shape->head_size, shape->type};
    const memoi_exchanged k = {"k to heads", 1, shape->kv_size[0], shape->type};
    const memoi_exchanged v = {"v to heads", 1, shape->kv_size[1], shape->type};
    const memoi_exchanged d_out = {"d_out to heads", 0, shape->v_head_size, shape->type};
    const memoi_exchanged dots = {"row dots to heads", 0, 1, MEMO_TYPE_F32};
    const int sends = !walk->ring.is_backward || shape->sends_again;
    memoi_target_op op = memoi_target_op_on(walk->ulysses.stream);
    char *q_heads, *kv_heads[2];
    walk->groups[g % 2] = memoi_desc_group_of(shape, g);
    if (shape->sharding.ulysses == 1) return;

    memoi_target_touch(&walk->target, &op, MEMOI_CELL_ROWS, 0);
    if (walk->groups[g % 2].heads.n_q) {
        memoi_target_touch(&walk->target, &op, MEMOI_CELL_HEADS + g % 2, 1);
        if (sends) memoi_target_touch(&walk->target, &op, memoi_hybrid_keys_cell(walk, g), 1);
    }
    memoi_target_begin(&walk->target, &op);
    walk->ulysses.shape = &walk->groups[g % 2];
    if (sends) {
        memoi_hybrid_find_heads(walk, g, &q_heads, kv_heads);
        memoi_ulysses_to_heads(&walk->ulysses, &q, t->q, q_heads);
        memoi_ulysses_to_heads(&walk->ulysses, &k, t->k, kv_heads[0]);
        memoi_ulysses_to_heads(&walk->ulysses, &v, t->v, kv_heads[1]);
    }
    if (walk->ring.is_backward) {
        memoi_ulysses_to_heads(&walk->ulysses, &d_out, t->d_out, b->d_out[g % 2]);
        memoi_ulysses_to_heads(&walk->ulysses, &dots, b->dots_rows, b->dots[g % 2]);
    }
    memoi_target_end(&walk->target, &op);
}

/* Gives a group's tensors and buffers to the ring. */
MEMOI void memoi_hybrid_enter(memoi_hybrid_walk* walk, int32_t g) {
    const memoi_shape* group = &walk->groups[g % 2];
    const memo_sp_attention_tensors* t = &walk->tensors;
    const memoi_buffers* b = &walk->buffers;
    memoi_ring* ring = &walk->ring;
    int is_direct = memoi_buffers_is_direct(walk->shape), has_ulysses = group->sharding.ulysses > 1;
    ring->shape = group;
    ring->q = (char*)(uintptr_t)t->q;
    ring->kv[0] = (char*)(uintptr_t)t->k;
    ring->kv[1] = (char*)(uintptr_t)t->v;
    if (has_ulysses) memoi_hybrid_find_heads(walk, g, &ring->q, ring->kv);
    ring->keys_cell = memoi_hybrid_keys_cell(walk, g);
    ring->heads_cell = MEMOI_CELL_HEADS + g % 2;

    /* The LSEs of a group follow those of earlier groups. */
    ring->lse = t->lse;
    MEMO_ASSERT(!group->heads.n_q || (group->heads.first_q >= walk->shape->heads.first_q && /* 1 */
                                      group->heads.first_q + group->heads.n_q <=
                                          walk->shape->heads.first_q + walk->shape->heads.n_q));
    if (t->lse)
        ring->lse += (int64_t)group->n_batch * group->sharding.ring_tokens *
                     (group->heads.n_q ? group->heads.first_q - walk->shape->heads.first_q : 0);
    ring->buffers = b->ring;
    if (!ring->is_backward) {
        ring->out = is_direct ? (float*)t->out : b->out;
        return;
    }
    ring->d_out = has_ulysses ? b->d_out[g % 2] : (const char*)t->d_out;
    ring->row_dots = b->dots[g % 2];
    ring->d_q = is_direct ? (float*)t->d_q : b->out;

    /* A step reads k while step 0 adds to d_k, which may be k. */
    is_direct &= group->sharding.ring == 1;
    ring->d_kv_final[0] = walk->d_kv[0] = is_direct ? (float*)t->d_k : b->ring.d_kv[0];
    ring->d_kv_final[1] = walk->d_kv[1] = is_direct ? (float*)t->d_v : b->ring.d_kv[1];
}

/* A result of a group: output; or d_q, d_k or d_v. */
typedef struct memoi_hybrid_result {
    memoi_exchanged x;
    const void* from; /* by heads, in the type that is sent */
    void* to;         /* the user's rows */
} memoi_hybrid_result;

/* Result i, converted to the type that is sent, or to the user's tensor if nothing is sent. */
MEMOI memoi_hybrid_result memoi_hybrid_result_of(memoi_hybrid_walk* walk, int32_t i) {
    static const char* const names[] = {"out to rows", "d_q to rows", "d_k to rows", "d_v to rows"};
    const memoi_ring* ring = &walk->ring;
    const memoi_shape* group = ring->shape;
    const memo_sp_attention_tensors* t = &walk->tensors;
    const float* const computed[] = {ring->out, ring->d_q, walk->d_kv[0], walk->d_kv[1]};
    void* const rows[] = {t->out, t->d_q, t->d_k, t->d_v};
    const int32_t sizes[] = {group->v_head_size, group->head_size, group->kv_size[0],
                             group->kv_size[1]};
    const int32_t k = ring->is_backward + i, has_ulysses = group->sharding.ulysses > 1;
    /* Gradients of replicas are summed before they are rounded. */
    const memo_type type = i && group->is_replicated ? MEMO_TYPE_F32 : group->type;
    memoi_hybrid_result result = {{names[k], i > 0, sizes[k], type}, computed[k], rows[k]};
    void* to;
    if (has_ulysses && group->n_groups == 1 && type == MEMO_TYPE_F32)
        return result; /* sent as it is */

    to = has_ulysses ? (void*)walk->buffers.results[i] : result.to;
    if (to != result.from) /* not computed in place */
        memoi_target_cast(&walk->target, MEMOI_TARGET_COMPUTE, to, type, computed[k],
                          group->n_batch * memoi_shape_sharding(group, i > 0)->ring_tokens *
                              (i ? group->heads.n_kv : group->heads.n_q) * sizes[k]);
    result.from = to;
    return result;
}

/* Result i goes to its rows.  Replicas are summed there, and the last group rounds the sums. */
MEMOI void memoi_hybrid_return(memoi_hybrid_walk* walk, const memoi_hybrid_result* result,
                               int32_t i, int32_t g) {
    const memoi_shape* shape = walk->shape;
    const memoi_exchanged* x = &result->x;
    int64_t n = shape->n_batch * shape->key_sharding.local_tokens * shape->n_kv_heads * x->n;
    float* sums = i && shape->is_replicated ? walk->buffers.sums[i - 1] : NULL;
    if (shape->sharding.ulysses == 1) return;
    walk->ulysses.shape = &walk->groups[g % 2];
    memoi_ulysses_to_rows(&walk->ulysses, x, result->from, result->to, sums);
    if (sums && g == shape->n_groups - 1)
        memoi_target_cast(&walk->target, walk->ulysses.stream, result->to, shape->type, sums, n);
}

/* The results of a group leave.  With several groups they do behind the next one's attention. */
MEMOI void memoi_hybrid_leave(memoi_hybrid_walk* walk, int32_t g) {
    memoi_target* target = &walk->target;
    const int is_grouped = walk->shape->n_groups > 1, has_heads = walk->ring.shape->heads.n_q > 0;
    const int32_t n = walk->ring.is_backward ? 3 : 1;
    memoi_target_op casts = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    memoi_target_op returns = memoi_target_op_on(MEMOI_TARGET_ULYSSES);
    memoi_hybrid_result results[3];
    if (has_heads) memoi_target_touch(target, &casts, MEMOI_CELL_RESULTS, 1);
    if (has_heads && n > 1) memoi_target_touch(target, &casts, MEMOI_CELL_OWN_SUMS, 0);
    if (walk->shape->sharding.ulysses == 1 && n > 1)
        memoi_target_touch(target, &casts, walk->ring.keys_cell, 1);
    memoi_target_begin(target, &casts);
    for (int32_t i = 0; i < n; i++) {
        results[i] = memoi_hybrid_result_of(walk, i);
        if (!is_grouped) memoi_hybrid_return(walk, &results[i], i, g);
    }
    memoi_target_end(target, &casts);
    if (!is_grouped) return;

    if (has_heads) memoi_target_touch(target, &returns, MEMOI_CELL_RESULTS, 0);
    memoi_target_touch(target, &returns, MEMOI_CELL_ROWS, 1);
    memoi_target_begin(target, &returns);
    for (int32_t i = 0; i < n; i++) memoi_hybrid_return(walk, &results[i], i, g);
    memoi_target_end(target, &returns);
}

/* --- all groups, in the order of chapter 5 --- */

MEMOI void memoi_hybrid_open(memoi_hybrid_walk* walk) {
    const memoi_shape* shape = walk->shape;
    const memo_sp_attention_tensors* t = &walk->tensors;
    memoi_target* target = &walk->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    if (walk->ring.is_backward) {
        memo_add_desc dots = MEMO_ZERO(memo_add_desc);
        /* Row dots are computed from rows, where out and d_out are, then exchanged with d_out. */
        dots.to = walk->buffers.dots_rows;
        dots.a = t->out;
        dots.b = t->d_out;
        dots.a_type = dots.b_type = shape->type;
        dots.n_rows = shape->n_batch * shape->sharding.local_tokens * shape->n_q_heads;
        dots.n_columns = shape->v_head_size;
        memoi_target_touch(target, &op, MEMOI_CELL_ROWS, 1);
        memoi_target_begin(target, &op);
        memoi_target_kernel(target, MEMOI_TARGET_COMPUTE, MEMO_ROW_SUMS, &dots);
        memoi_target_end(target, &op);
    }
    if (walk->ring.is_backward && t->sinks)
        memoi_target_fill(target, MEMOI_TARGET_COMPUTE, t->d_sinks, (int64_t)shape->n_q_heads * 4);
    memoi_hybrid_arrive(walk, 0);
}

/* After all steps of a group's ring, so that a sink counts once; before the result leaves. */
MEMOI void memoi_hybrid_sinks(memoi_hybrid_walk* walk) {
    const memoi_ring* ring = &walk->ring;
    const memo_ulysses_heads* heads = &ring->shape->heads;
    memo_sinks_desc sinks = MEMO_ZERO(memo_sinks_desc);
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    if (!walk->tensors.sinks || !heads->n_q) return;
    sinks.lse = ring->lse;
    sinks.sinks = walk->tensors.sinks + heads->first_q;
    sinks.n_rows = ring->shape->n_batch * ring->shape->sharding.ring_tokens;
    sinks.n_heads = heads->n_q;
    sinks.n_columns = ring->shape->v_head_size;
    sinks.out = ring->out;
    sinks.row_dots = ring->row_dots;
    if (ring->is_backward) sinks.d_sinks = walk->tensors.d_sinks + heads->first_q;
    if (ring->is_backward) memoi_target_touch(&walk->target, &op, ring->heads_cell, 0);
    memoi_target_begin(&walk->target, &op);
    memoi_target_kernel(&walk->target, MEMOI_TARGET_COMPUTE,
                        ring->is_backward ? MEMO_ROW_SINK_SUMS : MEMO_ROW_SINKS, &sinks);
    memoi_target_end(&walk->target, &op);
}

MEMOI memo_status memoi_hybrid_walk_through(memoi_hybrid_walk* walk) {
    const int32_t n_groups = walk->shape->n_groups;
    if (walk->target.order) memoi_ring_clear_rooms(walk->ring.rooms);
    memoi_target_fence(&walk->target, walk->ring.rooms->first_cell + 1);
    memoi_hybrid_open(walk);
    for (int32_t g = 0; g < n_groups; g++) {
        if (g + 1 < n_groups) memoi_hybrid_arrive(walk, g + 1); /* during the attention of g */
        memoi_hybrid_enter(walk, g);
        memoi_ring_run(&walk->ring);
        memoi_hybrid_sinks(walk);
        memoi_hybrid_leave(walk, g);
    }
    memoi_target_fence(&walk->target, 0);
    return walk->target.status;
}

/* The tensors that a pass of this attention needs. */
MEMOI memo_status memoi_hybrid_check_tensors(const memo_sp_attention* a,
                                             const memo_sp_attention_tensors* t, int is_backward,
                                             memo_error* error) {
    static const char name[] = "memo_sp_attention_tensors";
    const int has_ulysses = a->shape.sharding.ulysses > 1, sends = a->shape.sends_again;
    const int needs_saved = has_ulysses && !sends && a->shape.heads.n_q;
    const int needs_qkv = !is_backward || !has_ulysses || sends;
    const int has_v = !a->shape.latent.size;
    if (needs_qkv &&
        (MEMOI_GIVEN(name, t, q) || MEMOI_GIVEN(name, t, k) || (has_v && MEMOI_GIVEN(name, t, v))))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (MEMOI_GIVEN(name, t, out) || (a->shape.heads.n_q && MEMOI_GIVEN(name, t, lse)) ||
        (needs_saved && MEMOI_GIVEN(name, t, saved)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (is_backward &&
        (MEMOI_GIVEN(name, t, d_out) || MEMOI_GIVEN(name, t, d_q) || MEMOI_GIVEN(name, t, d_k) ||
         (has_v && MEMOI_GIVEN(name, t, d_v)) || (t->sinks && MEMOI_GIVEN(name, t, d_sinks))))
        return MEMO_STATUS_INVALID_ARGUMENT;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_hybrid_run(memo_sp_attention* a, const memo_exchange* plan,
                                   const memo_sp_attention_tensors* tensors, int is_backward,
                                   int32_t layer, memo_error* error) {
    const char* call = is_backward ? "memo_sp_attention_backward" : "memo_sp_attention_forward";
    memoi_hybrid_walk walk;
    memo_label agreed;
    if (memob_check_given(call, "attention", a, error) ||
        memob_check_given(call, "exchange", plan, error) ||
        memob_check_given(call, "tensors", tensors, error) ||
        memoi_hybrid_check_tensors(a, tensors, is_backward, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (plan->has_ended)
        return MEMOI_FAIL(INVALID_STATE, "%s: exchange: destroyed; create another", call);

    /* An exchange belongs to one attention; ranks agreed on its sinks. */
    if (plan->attention != a)
        return MEMOI_REFUSE("exchange: made for another attention; make one for each");
    if (!tensors->sinks != !plan->has_sinks)
        return MEMOI_REFUSE("memo_sp_attention_tensors.sinks: %s, but the exchange was made with "
                            "has_sinks %d; ranks compare has_sinks, so make another exchange",
                            tensors->sinks ? "not NULL" : "NULL", (int)plan->has_sinks);
    if (tensors->sinks && memoi_check_row_kernels(a->target.device, error))
        return MEMO_STATUS_UNSUPPORTED;

    agreed = plan->agreed;
    memoi_hybrid_walk_init(&walk, plan, tensors, is_backward, error);
    memoi_label_add_number(&agreed, MEMOI_AGREED_PASS, is_backward);
    memoi_label_add_number(&agreed, MEMOI_AGREED_ORDER, layer);
    walk.target.agreed = &agreed;
    return memoi_hybrid_walk_through(&walk);
}

memo_status memo_sp_attention_forward(memo_sp_attention* attention, const memo_exchange* exchange,
                                      const memo_sp_attention_tensors* tensors, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "attention", attention);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_hybrid_run(attention, exchange, tensors, 0, 0, error);
}
memo_status memo_sp_attention_backward(memo_sp_attention* attention, const memo_exchange* exchange,
                                       const memo_sp_attention_tensors* tensors,
                                       memo_error* error) {
    MEMOB_REFUSE_NULL(error, "attention", attention);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_hybrid_run(attention, exchange, tensors, 1, 0, error);
}
