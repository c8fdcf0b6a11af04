/* memo_hooks.h - tensors that automatic differentiation saves: moved to the host, or audited.
 *
 * Such a trainer has no table of tensors.  Hooks *pack* the tensors that an operation saves for the
 * backward, and *unpack* a tensor when the backward needs the bytes.  Each micro-batch:
 *
 *     memo_hooks_begin(hooks, &error);
 *     memo_hooks_set_layer(hooks, layer, &error);                     // 0, 1, ...; then -1
 *     memo_hooks_pack(hooks, address, size_bytes, &token, &error);    // keep token for unpack
 *     memo_hooks_unpack(hooks, token, &address, &error);              // the backward
 *     memo_hooks_end(hooks, &error);
 *
 * A tensor is KEPT by the owner (token < 0), until the end of the tensor's backward, or SWAPPED:
 * pack copies the tensor to a place of memo on the compute stream.  The owner may free a SWAPPED
 * tensor at once, for later work on that stream.  The swap engine (memo.h, chapter 7) moves places.
 *
 * The first micro-batch with a backward is recorded, with all tensors KEPT.  The end makes the
 * plan.  Tensors stay KEPT outside of layers, in recomputation (after the first unpack), smaller
 * than least_bytes, or unpacked after a lower layer.  From the last layer that moves to the first,
 * each further tensor stays KEPT if device_bytes >= KEPT bytes + bytes of the swap engine.  All
 * other tensors are SWAPPED.
 *
 * The backward of a layer begins with the first unpack of a tensor of this layer or below, and ends
 * when the next backward begins; until then an unpacked address is valid.  Meanwhile the layer
 * below arrives.
 *
 * A tensor with other bytes than planned is KEPT and logged; only then may a call allocate.  With
 * is_checked tensors are hashed when packed and unpacked.  Without a device the bytes of tensors
 * must be on the host; then tensors are only hashed.  One thread at a time.  If the device fails,
 * call memo_hooks_begin.
 *
 * In one translation unit define MEMO_IMPLEMENTATION and MEMO_HOOKS_IMPLEMENTATION before the
 * include.  License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_HOOKS_H
#define MEMO_HOOKS_H

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 3
#error "memo_hooks.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memo_hooks_desc {
    const memo_device* device; /* NULL: nothing is moved */
    memo_stream compute_stream;
    int32_t computes_on_host; /* as in memo_swap_desc */
    int32_t is_checked;
    int64_t device_bytes; /* budget; 0: all tensors are KEPT */
    int64_t host_bytes;   /* pinned; 0: no limit */
    int64_t least_bytes;
    memo_log log; /* unplanned tensors, and findings of an audit */
} memo_hooks_desc;

typedef struct memo_hooks_stats {
    /* Of the plan. */
    int64_t n_tensors, kept_bytes;
    memo_swap_sizes swap; /* device_bytes and host_bytes are memo's; swapped_bytes travel */
    int64_t n_unplanned, n_findings; /* so far */
} memo_hooks_stats;

typedef struct memo_hooks memo_hooks;

/* Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_API memo_status memo_hooks_create(const memo_hooks_desc* desc, memo_hooks** hooks,
                                       memo_error* error);
/* Waits for the copies.  Synchronize the compute stream first. */
MEMO_API void memo_hooks_destroy(memo_hooks* hooks);

/* Begins a micro-batch, and abandons an open micro-batch.  Errors: the device's. */
MEMO_API memo_status memo_hooks_begin(memo_hooks* hooks, memo_error* error);
/* Ends a micro-batch and all tokens, and makes the plan.  Without a plan, the next micro-batch is
 * recorded.  Errors: INFEASIBLE (with bytes that are enough), INVALID_STATE, OUT_OF_HOST_MEMORY,
 * the device's. */
MEMO_API memo_status memo_hooks_end(memo_hooks* hooks, memo_error* error);
/* Begins a layer, and ends the layer before; -1: outside of layers.  No effect in the backward.
 * Errors: INVALID_STATE (wrong order), the device's. */
MEMO_API memo_status memo_hooks_set_layer(memo_hooks* hooks, int32_t layer, memo_error* error);
/* Pack a tensor once, though several operations save it.
 * Errors: INVALID_ARGUMENT, INVALID_STATE (no micro-batch), OUT_OF_HOST_MEMORY, the device's. */
MEMO_API memo_status memo_hooks_pack(memo_hooks* hooks, void* address, int64_t size_bytes,
                                     int64_t* token, memo_error* error);
/* Where the bytes are, for work on the compute stream.  Errors: INVALID_ARGUMENT (token),
 * INVALID_STATE (a lower layer has the place; is_checked: the bytes changed), the device's. */
MEMO_API memo_status memo_hooks_unpack(memo_hooks* hooks, int64_t token, void** address,
                                       memo_error* error);
/* is_checked: did the trainer recompute the bytes of token at address?  Errors: as above. */
MEMO_API memo_status memo_hooks_compare(memo_hooks* hooks, int64_t token, void* address,
                                        memo_error* error);
MEMO_API void memo_hooks_get_stats(const memo_hooks* hooks, memo_hooks_stats* stats);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_HOOKS_H */

#if defined(MEMO_HOOKS_IMPLEMENTATION) && !defined(MEMO_HOOKS_IMPLEMENTATION_DONE)
#define MEMO_HOOKS_IMPLEMENTATION_DONE

#ifndef MEMO_IMPLEMENTATION_DONE
#error "memo_hooks.h: define MEMO_IMPLEMENTATION in the same translation unit, before its include"
#endif

#define MEMOI_HOOKS_SIZES 31 /* sizes of layers: kinds 1 to 31 of the swap engine */

typedef struct memoi_hooks_tensor {
    char* address; /* of the owner */
    int64_t size_bytes;
    int64_t offset; /* in the place of its layer; -1: KEPT */
    int64_t taken;  /* in a plan: the micro-batch that has packed it */
    int32_t layer, number, is_late, is_unpacked;
    uint64_t hash;
} memoi_hooks_tensor;

struct memo_hooks {
    memo_hooks_desc desc;
    memo_swap* swap;
    memoi_hooks_tensor *tensors, *planned;
    int64_t n_tensors, capacity, n_planned, layer_begin, plan_begin, micro_batch;
    int32_t layer, n_layers, n_swap_layers; /* open, or -1; begun; of the plan */
    int32_t at, n_begun; /* of the backward; n_begun: layers of the swap engine */
    int32_t is_open, is_backward;
    memo_hooks_stats stats;
};

/* Is a micro-batch open?  token: and does it belong there; *t is its tensor. */
MEMOI memo_status memoi_hooks_check(const memo_hooks* h, const int64_t* token,
                                    memoi_hooks_tensor** t, memo_error* error) {
    const int64_t at = !token ? 0 : *token < 0 ? ~*token : *token;
    if (!h->is_open)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_hooks: no micro-batch is open; call memo_hooks_begin");
    if (token && (at >> 32 != h->micro_batch || (at & 0xffffffff) >= h->n_tensors))
        return MEMOB_INVALID(error, "memo_hooks: token: not of this micro-batch (%lld)",
                             (long long)*token);
    if (token) *t = &h->tensors[at & 0xffffffff];
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_hooks_say(memo_hooks* h, const memoi_hooks_tensor* t, const char* what,
                                  int64_t* count, memo_error* error) {
    memo_error mine;
    ++*count;
    memo_error_set(&mine, MEMO_STATUS_INVALID_STATE, "Tensor %d of layer %d %s (%lld bytes)",
                   (int)t->number, (int)t->layer, what, (long long)t->size_bytes);
    if (h->desc.log.write) h->desc.log.write(h->desc.log.user, mine.message);
    if (error) *error = mine;
    return MEMO_STATUS_INVALID_STATE;
}

MEMOI memo_status memoi_hooks_hash(memo_hooks* h, void* address, int64_t size_bytes, uint64_t* hash,
                                   memo_error* error) {
    const memo_device* d = h->desc.device;
    const int is_away = d && !h->desc.computes_on_host && size_bytes;
    memo_status status = MEMO_STATUS_OK;
    void* bytes = address;
    if (is_away) status = memo_host_alloc(d, size_bytes, &bytes, error);
    if (status) return status;
    if (is_away)
        status = memo_copy(d, h->desc.compute_stream, MEMO_COPY_TO_HOST, bytes, address, size_bytes,
                           error);
    if (is_away && !status) status = memo_stream_synchronize(d, h->desc.compute_stream, error);
    if (!status) *hash = memob_hash((const char*)bytes, size_bytes);
    if (is_away) memo_host_free(d, bytes, NULL);
    return status;
}

/* --- the plan --- */

/* Lays out the SWAPPED tensors.  A layer is one tensor of the swap engine, of 1 to 31 units; the
 * units are its kind, so that layers share the engine's area as closely as their sizes let them.
 * is_last: also creates the engine. */
MEMOI memo_status memoi_hooks_lay_out(memo_hooks* h, int64_t* layer_bytes, int32_t* kinds,
                                      int is_last, memo_error* error) {
    memo_swap_desc desc = MEMO_ZERO(memo_swap_desc);
    memo_tensor sizes[MEMOI_HOOKS_SIZES];
    uint32_t tensor_kinds[MEMOI_HOOKS_SIZES];
    int64_t most = 0, unit;
    h->stats.kept_bytes = 0;
    memset(layer_bytes, 0, (size_t)h->n_layers * sizeof *layer_bytes);
    for (int64_t i = 0; i < h->n_planned; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset < 0) {
            h->stats.kept_bytes += t->size_bytes;
            continue;
        }
        t->offset = layer_bytes[t->layer];
        layer_bytes[t->layer] += memob_align_up(t->size_bytes, 512);
        most = memob_max(most, layer_bytes[t->layer]);
    }
    if (!is_last) memset(&h->stats.swap, 0, sizeof h->stats.swap);
    if (!most) return MEMO_STATUS_OK;

    unit = memob_align_up((most - 1) / MEMOI_HOOKS_SIZES + 1, 512);
    for (int64_t i = 0; i < h->n_layers; i++)
        kinds[i] = (int32_t)((layer_bytes[i] + unit - 1) / unit);
    memset(sizes, 0, sizeof sizes);
    for (int32_t k = 0; k < MEMOI_HOOKS_SIZES; k++) {
        sizes[k].name = "saved";
        sizes[k].row_bytes = (k + 1) * unit;
        sizes[k].rule = MEMO_TENSOR_SWAPPED;
        tensor_kinds[k] = 2u << k;
    }
    desc.device = h->desc.device;
    desc.compute_stream = h->desc.compute_stream;
    desc.computes_on_host = h->desc.computes_on_host;
    desc.tensors = sizes;
    desc.n_tensors = MEMOI_HOOKS_SIZES;
    desc.n_layers = h->n_layers;
    desc.layer_kinds = kinds;
    desc.tensor_kinds = tensor_kinds;
    desc.n_rows = 1;
    desc.alpha = 1;
    if (is_last) return memo_swap_create(&desc, &h->swap, error);
    return memo_swap_desc_get_sizes(&desc, &h->stats.swap, error);
}

MEMOI memo_status memoi_hooks_fits(const char* field, int64_t budget, int64_t needed,
                                   memo_error* error) {
    if (!budget || needed <= budget) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "memo_hooks_desc.%s: too small (%lld); %lld are enough", field,
                          (long long)budget, (long long)needed);
}

/* Gives each recorded tensor its rule, and creates the engine. */
MEMOI memo_status memoi_hooks_plan(memo_hooks* h, int64_t* layer_bytes, int32_t* kinds,
                                   memo_error* error) {
    const int64_t budget = h->desc.device_bytes;
    memo_hooks_stats* stats = &h->stats;
    memo_status status;
    for (int64_t i = 0; i < h->n_planned; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        const int is_kept = t->layer < 0 || t->is_late || t->size_bytes < h->desc.least_bytes;
        t->taken = 0;
        t->offset = is_kept || !t->size_bytes ? -1 : 0;
    }
    status = memoi_hooks_lay_out(h, layer_bytes, kinds, 0, error);
    if (!status)
        status = memoi_hooks_fits("device_bytes", budget,
                                  stats->kept_bytes + stats->swap.device_bytes, error);

    /* The last layers are not moved anyway.  The later a layer, the less time it has to travel. */
    for (int64_t i = h->n_planned - 1; i >= 0 && !status; i--) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset < 0 || t->layer >= h->n_layers - 2) continue;
        t->offset = -1;
        status = memoi_hooks_lay_out(h, layer_bytes, kinds, 0, error);
        if (stats->kept_bytes + stats->swap.device_bytes > budget) t->offset = 0;
    }
    if (!status) status = memoi_hooks_lay_out(h, layer_bytes, kinds, 0, error);
    if (!status)
        status = memoi_hooks_fits("host_bytes", h->desc.host_bytes, stats->swap.host_bytes, error);
    if (!status) status = memoi_hooks_lay_out(h, layer_bytes, kinds, 1, error);
    for (int64_t i = 0; i < h->n_planned && !status; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset >= 0)
            t->address =
                (char*)memo_swap_get_address(h->swap, t->layer, kinds[t->layer] - 1) + t->offset;
    }
    h->n_swap_layers = h->swap ? h->n_layers : 0;
    stats->n_tensors = h->n_planned;
    return status;
}

/* --- calls --- */

MEMO_API memo_status memo_hooks_create(const memo_hooks_desc* desc, memo_hooks** hooks,
                                       memo_error* error) {
    memo_hooks* h;
    if (!desc || !hooks) return MEMOB_INVALID(error, "memo_hooks_create: desc or hooks is NULL");
    *hooks = NULL;
    if (desc->device_bytes < 0 || desc->host_bytes < 0 || desc->least_bytes < 0)
        return MEMOB_INVALID(error, "memo_hooks_desc: negative bytes; 0 is the default");
    h = (memo_hooks*)memob_calloc(1, sizeof *h);
    if (!h) return memob_no_memory(error, "memo_hooks");
    h->desc = *desc;
    if (!desc->device) h->desc.device_bytes = 0;
    *hooks = h;
    return MEMO_STATUS_OK;
}

MEMO_API void memo_hooks_destroy(memo_hooks* h) {
    if (!h) return;
    memo_swap_destroy(h->swap);
    MEMO_FREE(h->planned);
    MEMO_FREE(h->tensors);
    MEMO_FREE(h);
}

MEMO_API memo_status memo_hooks_begin(memo_hooks* h, memo_error* error) {
    memo_status status = h->swap && h->n_begun ? memo_swap_abandon(h->swap, error) : MEMO_STATUS_OK;
    if (status) return status;
    h->n_tensors = h->layer_begin = h->plan_begin = 0;
    h->n_layers = h->n_begun = h->is_backward = 0;
    h->layer = -1;
    h->is_open = 1;
    h->micro_batch++;
    return status;
}

/* The backward is at layer, and the layers above have ended.  The first call ends the forward. */
MEMOI memo_status memoi_hooks_turn(memo_hooks* h, int32_t layer, memo_error* error) {
    const int32_t n = h->n_swap_layers;
    memo_status status = MEMO_STATUS_OK;
    if (!h->is_backward) {
        if (h->layer >= 0 && h->layer < n) status = memo_swap_forward_end(h->swap, h->layer, error);
        for (; h->n_begun < n && !status; h->n_begun++) {
            status = memo_swap_forward_begin(h->swap, h->n_begun, error);
            if (!status) status = memo_swap_forward_end(h->swap, h->n_begun, error);
        }
        h->at = h->n_layers > n ? h->n_layers : n;
        h->is_backward = 1;
    }
    for (; h->at > layer && !status; h->at--) {
        if (h->at < n) status = memo_swap_backward_end(h->swap, h->at, error);
        if (!status && h->at > 0 && h->at <= n)
            status = memo_swap_backward_begin(h->swap, h->at - 1, error);
    }
    if (status) h->is_open = 0;
    return status;
}

MEMO_API memo_status memo_hooks_set_layer(memo_hooks* h, int32_t layer, memo_error* error) {
    const int32_t n = h->n_swap_layers;
    memo_status status = memoi_hooks_check(h, NULL, NULL, error);
    if (status || h->is_backward) return status;
    if (layer != -1 && layer != h->n_layers)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_hooks_set_layer: layer: out of order (%d); layer %d is next",
                              (int)layer, (int)h->n_layers);
    if (h->layer >= 0 && h->layer < n) status = memo_swap_forward_end(h->swap, h->layer, error);
    if (!status && layer >= 0 && layer < n) {
        h->n_begun = layer + 1;
        status = memo_swap_forward_begin(h->swap, layer, error);
    }
    while (h->plan_begin < h->n_planned && h->planned[h->plan_begin].layer < layer) h->plan_begin++;
    h->layer_begin = h->n_tensors;
    h->layer = layer;
    if (layer >= 0) h->n_layers++;
    if (status) h->is_open = 0;
    return status;
}

MEMO_API memo_status memo_hooks_pack(memo_hooks* h, void* address, int64_t size_bytes,
                                     int64_t* token, memo_error* error) {
    const memo_device* d = h->desc.device;
    const int is_in_layer = h->layer >= 0 && !h->is_backward;
    memo_status status = memoi_hooks_check(h, NULL, NULL, error);
    memoi_hooks_tensor *t, *planned;
    int64_t p;
    if (status) return status;
    if (size_bytes < 0 || (size_bytes && !address))
        return MEMOB_INVALID(error, "memo_hooks_pack: no bytes (address %p, size_bytes %lld)",
                             address, (long long)size_bytes);
    if (!memob_reserve(&h->tensors, &h->capacity, h->n_tensors + 1, sizeof *t))
        return memob_no_memory(error, "memo_hooks");
    t = &h->tensors[h->n_tensors];
    memset(t, 0, sizeof *t);
    t->address = (char*)address;
    t->size_bytes = size_bytes;
    t->offset = -1;
    t->layer = is_in_layer ? h->layer : -1;
    t->number = (int32_t)(h->n_tensors - h->layer_begin);
    if (h->desc.is_checked) status = memoi_hooks_hash(h, address, size_bytes, &t->hash, error);

    /* The next planned tensor of the layer with as many bytes. */
    for (p = h->plan_begin; p < h->n_planned && h->planned[p].layer <= h->layer; p++)
        if (h->planned[p].layer == h->layer && h->planned[p].size_bytes == size_bytes &&
            h->planned[p].taken != h->micro_batch)
            break;
    planned = p < h->n_planned && h->planned[p].layer == h->layer ? &h->planned[p] : NULL;
    if (!status && is_in_layer && h->planned && !planned)
        memoi_hooks_say(h, t, "is not as planned: its owner keeps it", &h->stats.n_unplanned, NULL);
    if (!status && is_in_layer && planned) {
        planned->taken = h->micro_batch;
        t->offset = planned->offset;
        if (t->offset >= 0) t->address = planned->address;
        if (t->offset >= 0 && h->desc.computes_on_host)
            memcpy(t->address, address, (size_t)size_bytes);
        else if (t->offset >= 0)
            status = memo_copy(d, h->desc.compute_stream, MEMO_COPY_ON_DEVICE, t->address, address,
                               size_bytes, error);
    }
    *token = h->micro_batch << 32 | h->n_tensors++;
    if (t->offset < 0) *token = ~*token;
    if (status) h->is_open = 0;
    return status;
}

/* The bytes at address must be those that were packed. */
MEMOI memo_status memoi_hooks_audit(memo_hooks* h, memoi_hooks_tensor* t, void* address,
                                    const char* what, memo_error* error) {
    uint64_t hash = t->hash;
    memo_status status = MEMO_STATUS_OK;
    t->is_unpacked = 1;
    if (h->desc.is_checked) status = memoi_hooks_hash(h, address, t->size_bytes, &hash, error);
    if (status || hash == t->hash) return status;
    return memoi_hooks_say(h, t, what, &h->stats.n_findings, error);
}

MEMO_API memo_status memo_hooks_unpack(memo_hooks* h, int64_t token, void** address,
                                       memo_error* error) {
    memoi_hooks_tensor* t = NULL;
    memo_status status = memoi_hooks_check(h, &token, &t, error);
    if (status) return status;
    status = memoi_hooks_turn(h, t->layer < 0 ? h->n_layers : t->layer, error);
    if (status) return status;
    t->is_late |= t->layer > h->at;
    if (t->is_late && t->offset >= 0)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_hooks: tensor %d of layer %d: unpacked after layer %d, unlike "
                              "in the recorded micro-batch",
                              (int)t->number, (int)t->layer, (int)h->at);
    *address = t->address;
    return memoi_hooks_audit(h, t, t->address, "changed between forward and backward", error);
}

MEMO_API memo_status memo_hooks_compare(memo_hooks* h, int64_t token, void* address,
                                        memo_error* error) {
    memoi_hooks_tensor* t = NULL;
    memo_status status = memoi_hooks_check(h, &token, &t, error);
    return status ? status : memoi_hooks_audit(h, t, address, "differs after recomputation", error);
}

MEMO_API memo_status memo_hooks_end(memo_hooks* h, memo_error* error) {
    const int had_backward = h->is_backward;
    memob_arrays arrays = {NULL, 0};
    int64_t* layer_bytes;
    int32_t* kinds;
    memo_status status = memo_hooks_set_layer(h, -1, error);
    if (!status && had_backward) status = memoi_hooks_turn(h, -1, error);
    if (status) return status;
    for (int64_t i = 0; i < h->n_tensors && had_backward && h->desc.is_checked; i++)
        if (!h->tensors[i].is_unpacked)
            memoi_hooks_say(h, &h->tensors[i], "was never unpacked", &h->stats.n_findings, NULL);
    h->is_open = 0;
    if (h->swap && !had_backward) return memo_swap_abandon(h->swap, error);
    h->n_begun = 0;
    if (h->planned || !had_backward || !h->desc.device_bytes) return status;

    /* The first whole step is the plan's; the next step records into a new list. */
    h->planned = h->tensors;
    h->n_planned = h->n_tensors;
    h->tensors = NULL;
    h->capacity = 0;
    layer_bytes = MEMOB_ARRAY(&arrays, int64_t, h->n_layers);
    kinds = MEMOB_ARRAY(&arrays, int32_t, h->n_layers);
    if (arrays.failed ||
        !memob_reserve(&h->tensors, &h->capacity, h->n_planned, sizeof *h->tensors))
        status = memob_no_memory(error, "memo_hooks");
    else
        status = memoi_hooks_plan(h, layer_bytes, kinds, error);
    memob_arrays_free(&arrays);
    if (status) {
        MEMO_FREE(h->planned);
        h->planned = NULL;
        h->n_planned = 0;
    }
    return status;
}

MEMO_API void memo_hooks_get_stats(const memo_hooks* h, memo_hooks_stats* stats) {
    *stats = h->stats;
}

#endif /* MEMO_HOOKS_IMPLEMENTATION */
