/* memo_hooks.h - tensors that automatic differentiation saves: moved to the host, or audited.
 *
 * Such a trainer has no table of tensors.  Hooks *pack* the tensors that an operation saves for the
 * backward, and *unpack* them when the backward needs the bytes.  Each micro-batch:
 *
 *     memo_hooks_begin(hooks, &error);
 *     memo_hooks_set_layer(hooks, layer, &error);                     // 0, 1, ...; then -1
 *     memo_hooks_pack(hooks, address, size_bytes, &token, &error);    // keep token for unpack
 *     memo_hooks_unpack(hooks, tokens, n, addresses, &error);         // all tensors of an operator
 *     memo_hooks_end(hooks, &error);
 *
 * A tensor is KEPT by the owner (token < 0), until the end of the tensor's backward, or SWAPPED:
 * pack copies the tensor to a place of memo on the compute stream.  The owner may free a SWAPPED
 * tensor at once, for later work on that stream.  The swap engine (memo.h, chapter 7) moves places.
 *
 * Unpack all tensors of an operator by one call.  The addresses are valid until the next call of
 * memo_hooks_unpack: only that call may end a layer.  The backward of a layer begins with the first
 * call for a tensor of this layer or below.  The layer above ends with the next call that does not
 * unpack its tensors; then the layer below arrives.
 *
 * The first micro-batch with a backward is recorded, with all tensors KEPT.  The end makes the
 * plan.  Tensors stay KEPT outside of layers, in recomputation (after the first unpack), smaller
 * than least_bytes, or unpacked while their layer is not open.  So does a tensor that other layers
 * read, such as RoPE's table, a mask or keys of another layer; it begins and ends no layer.  From
 * the last layer that moves to the first, further tensors stay KEPT as long as device_bytes >= KEPT
 * bytes + bytes of the swap engine.  All other tensors are SWAPPED.
 *
 * A tensor with other bytes than planned is KEPT and logged; only then may a call allocate.  The
 * order of unpacks may differ from the plan as long as the layers of a call are open.
 *
 * Checked (is_checked).  Tensors are hashed when packed and unpacked.  Bytes that nobody may read
 * are NaN: unpacked SWAPPED tensors when their layer has ended, and the owner's bytes of a SWAPPED
 * tensor after its pack.  pack names the first tensor that is computed from such bytes.  Calls
 * wait.  It takes four times the largest layer beside device_bytes.
 *
 * One budget.  If the owner's tensors lie in an arena (memo.h, chapter 5), memo_hooks_fit runs the
 * step dry and plans the arena and the hooks together.
 *
 * Without a device the bytes of tensors must be on the host; then tensors are only hashed.  One
 * thread at a time.  If the device fails, call memo_hooks_begin.
 *
 * In one translation unit define MEMO_IMPLEMENTATION and MEMO_HOOKS_IMPLEMENTATION before the
 * include.  License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_HOOKS_H
#define MEMO_HOOKS_H

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 4
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
    memo_log log; /* unplanned tensors, and findings of an audit: a line of each, while they last */
    /* Checked: 1 leaves the owner's bytes after a pack, for an owner whose forward reads them on.
     */
    int32_t owner_reads_on;
} memo_hooks_desc;

typedef struct memo_hooks_stats {
    /* The plan's. */
    int64_t n_tensors, kept_bytes;
    memo_swap_sizes swap; /* device_bytes and host_bytes are memo's; swapped_bytes travel */
    int64_t n_unplanned, n_findings; /* so far */
} memo_hooks_stats;

typedef struct memo_hooks memo_hooks;

/* Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_hooks_create(const memo_hooks_desc* desc, memo_hooks** hooks,
                                       memo_error* error);
/* Waits for the copies.  Synchronize the compute stream first. */
MEMO_API void memo_hooks_destroy(memo_hooks* hooks);

/* Begins a micro-batch, and abandons an open micro-batch.  Errors: the device's. */
MEMO_TRY memo_status memo_hooks_begin(memo_hooks* hooks, memo_error* error);
/* Ends a micro-batch and all tokens, and makes the plan.  Without a plan, the next micro-batch is
 * recorded.  Errors: INFEASIBLE (with bytes that are enough), INVALID_STATE, OUT_OF_HOST_MEMORY,
 * the device's. */
MEMO_TRY memo_status memo_hooks_end(memo_hooks* hooks, memo_error* error);
/* Begins a layer, and ends the layer before; -1: outside of layers.  No effect in the backward, and
 * for the layer that is open.  Errors: INVALID_STATE (wrong order), the device's. */
MEMO_TRY memo_status memo_hooks_set_layer(memo_hooks* hooks, int32_t layer, memo_error* error);
/* Pack a tensor once, though several operations save it.  Errors: INVALID_ARGUMENT, INVALID_STATE
 * (no micro-batch; is_checked: computed from bytes that nobody may read), OUT_OF_HOST_MEMORY, the
 * device's. */
MEMO_TRY memo_status memo_hooks_pack(memo_hooks* hooks, void* address, int64_t size_bytes,
                                     int64_t* token, memo_error* error);
/* Fills addresses[0 .. n): where the bytes of tokens are, for work on the compute stream, until the
 * next call.  Errors: INVALID_ARGUMENT (token), INVALID_STATE (a lower layer has the place;
 * is_checked: the bytes changed), OUT_OF_HOST_MEMORY (the first micro-batch), the device's. */
MEMO_TRY memo_status memo_hooks_unpack(memo_hooks* hooks, const int64_t* tokens, int64_t n,
                                       void** addresses, memo_error* error);
/* is_checked: did the trainer recompute the bytes of token at address?  Errors: as above. */
MEMO_TRY memo_status memo_hooks_compare(memo_hooks* hooks, int64_t token, void* address,
                                        memo_error* error);
MEMO_API void memo_hooks_get_stats(const memo_hooks* hooks, memo_hooks_stats* stats);

#ifdef MEMO_PLAN_H /* include memo_plan.h before */
/* Plans the arena and the hooks of a trainer together: plan->peak_bytes and the places of the hooks
 * take at most device_bytes, and as many tensors as possible stay KEPT.  Replaces
 * desc.device_bytes.  Hooks with a plan make a new plan.
 *
 * step requests persistent buffers from the arena, then runs a micro-batch: memo_arena_begin and
 * memo_hooks_begin, requests, packs and unpacks of a training step, memo_hooks_end and
 * memo_arena_end.  It computes nothing, because there is no memory: addresses must not be used.  It
 * is called some 20 times.  Tensors with token >= 0 are freed when they are packed, others after
 * their backward.  Errors: INVALID_ARGUMENT, INVALID_STATE (no backward), INFEASIBLE (with bytes
 * that are enough), of step, of memo_plan_solve, the device's. */
MEMO_TRY memo_status memo_hooks_fit(
    memo_hooks* hooks, memo_status (*step)(void* user, memo_arena* arena, memo_error* error),
    void* user, int64_t device_bytes, memo_plan** plan, memo_error* error);
#endif

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
    char* address; /* the owner's; of a SWAPPED tensor: in the place of its layer */
    int64_t size_bytes;
    int64_t offset; /* in the place; -1: KEPT */
    int64_t taken;  /* in a plan: the micro-batch that has packed it */
    uint64_t hash;
    int32_t layer, number, is_unpacked;
    int32_t may_move, turns; /* in a plan; turns: its unpack begins its layer */
} memoi_hooks_tensor;

/* A token of a call of memo_hooks_unpack, in the micro-batch that is recorded. */
typedef struct memoi_hooks_use {
    int64_t call, tensor;
} memoi_hooks_use;

struct memo_hooks {
    memo_hooks_desc desc;
    memo_swap* swap;
    memoi_hooks_tensor *tensors, *planned;
    memoi_hooks_use* uses;
    int64_t n_tensors, capacity, n_planned, layer_begin, plan_begin, micro_batch;
    int64_t n_uses, uses_capacity, n_calls;
    int32_t layer, n_layers, n_swap_layers; /* open, or -1; begun; of the plan */
    int32_t at, top; /* in the backward: layers [at, top) are open, at most two */
    int32_t n_begun; /* layers of the swap engine */
    int32_t is_open, is_backward;
    int32_t is_dry;       /* addresses are not used, and nothing is moved */
    int64_t* place_bytes; /* (n_swap_layers) */
    /* Checked: an unpacked tensor is a copy in the slot of its layer, modulo the slots, so that a
     * slot stays NaN for a while after its layer has ended.  A place gets the bytes of another
     * layer. */
    char* slots;
    int64_t slot_bytes;
    int32_t* kinds;
    int64_t n_unplanned, n_unplanned_before; /* of this micro-batch and of the one before */
    int64_t n_forgotten;                     /* never unpacked in the last micro-batch */
    memo_hooks_stats stats;
    memob_probe probe;
};

/* Is a micro-batch open?  token: and does it belong there; *t is its tensor. */
MEMOI memo_status memoi_hooks_check(const memo_hooks* h, const int64_t* token,
                                    memoi_hooks_tensor** t, memo_error* error) {
    const int64_t value = token ? *token : 0, at = value < 0 ? ~value : value;
    if (!h->is_open)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_hooks: no micro-batch is open; call memo_hooks_begin");
    if (token && (at >> 32 != h->micro_batch || (at & 0xffffffff) >= h->n_tensors))
        return MEMOB_INVALID(error, "memo_hooks: token: not of this micro-batch (%lld)",
                             (long long)*token);
    if (token) *t = &h->tensors[at & 0xffffffff];
    return MEMO_STATUS_OK;
}

/* Logs a line, with how many other tensors it also holds for. */
MEMOI memo_status memoi_hooks_say(memo_hooks* h, const memoi_hooks_tensor* t, const char* what,
                                  int64_t n_others, memo_error* error) {
    memo_error mine;
    char others[64] = "";
    if (n_others) snprintf(others, sizeof others, "; so %lld others", (long long)n_others);
    memo_error_set(&mine, MEMO_STATUS_INVALID_STATE, "Tensor %d of layer %d %s (%lld bytes)%s",
                   (int)t->number, (int)t->layer, what, (long long)t->size_bytes, others);
    if (h->desc.log.write) h->desc.log.write(h->desc.log.user, mine.message);
    if (error) *error = mine;
    return MEMO_STATUS_INVALID_STATE;
}

enum { MEMOI_HOOKS_SLOTS = 4 };
MEMOI char* memoi_hooks_slot(const memo_hooks* h, int32_t layer) {
    return h->slots + layer % MEMOI_HOOKS_SLOTS * h->slot_bytes;
}

MEMOI memo_status memoi_hooks_copy(memo_hooks* h, void* to, const void* from, int64_t n_bytes,
                                   memo_error* error) {
    if (!h->desc.computes_on_host)
        return memo_copy(h->desc.device, h->desc.compute_stream, MEMO_COPY_ON_DEVICE, to, from,
                         n_bytes, error);
    memcpy(to, from, (size_t)n_bytes);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_hooks_poison(memo_hooks* h, char* bytes, int64_t n_bytes,
                                     memo_error* error) {
    return h->desc.is_checked ? memob_probe_sweep(&h->probe, bytes, n_bytes, 1, NULL, error)
                              : MEMO_STATUS_OK;
}

/* --- the backward's layers --- */

MEMOI memo_status memoi_hooks_end_top(memo_hooks* h, memo_error* error) {
    const int32_t layer = --h->top;
    memo_status status = MEMO_STATUS_OK;
    if (layer >= h->n_swap_layers) return status;
    if (h->slots)
        status = memoi_hooks_poison(h, memoi_hooks_slot(h, layer), h->place_bytes[layer], error);
    return status ? status : memo_swap_backward_end(h->swap, layer, error);
}

/* An unpack of tensors of layers low to high.  Layers above end, and layers down to low begin; -1:
 * all end.  The first call ends the forward. */
MEMOI memo_status memoi_hooks_turn(memo_hooks* h, int32_t low, int32_t high, memo_error* error) {
    const int32_t n = h->n_swap_layers;
    memo_status status = MEMO_STATUS_OK;
    if (!h->is_backward) {
        if (h->layer >= 0 && h->layer < n) status = memo_swap_forward_end(h->swap, h->layer, error);
        for (; h->n_begun < n && !status; h->n_begun++) {
            status = memo_swap_forward_begin(h->swap, h->n_begun, error);
            if (!status) status = memo_swap_forward_end(h->swap, h->n_begun, error);
        }
        h->at = h->top = h->n_layers > n ? h->n_layers : n;
        h->is_backward = 1;
    }

    /* The call before is over: what it read may end. */
    if (!status && h->top - h->at == 2 && high <= h->at) status = memoi_hooks_end_top(h, error);
    while (h->at > low && !status) {
        if (h->top - h->at == 2) status = memoi_hooks_end_top(h, error);
        if (!status && --h->at >= 0 && h->at < n)
            status = memo_swap_backward_begin(h->swap, h->at, error);
    }
    while (low < 0 && h->top > 0 && !status) status = memoi_hooks_end_top(h, error);
    if (status) h->is_open = 0;
    return status;
}

/* --- the plan --- */

/* Which tensors begin their layer: the heaviest sequence of first unpacks, in the order of calls,
 * in which layers only go down.  The others were unpacked by another layer.  best[k] of a Fenwick
 * tree over layers: 1 + the use that ends the heaviest sequence so far. */
MEMOI void memoi_hooks_find_turns(memo_hooks* h, int64_t* weights, int64_t* before, int64_t* best) {
    int64_t last = -1;
    memset(best, 0, (size_t)(h->n_layers + 1) * sizeof *best);
    for (int64_t i = 0, call_end; i < h->n_uses; i = call_end) {
        for (call_end = i; call_end < h->n_uses && h->uses[call_end].call == h->uses[i].call;)
            call_end++;

        /* Tensors of one call have no order: the highest layer comes first.  A call has few. */
        for (int32_t high = h->n_layers, next; high >= 0; high = next) {
            next = -1;
            for (int64_t k = i; k < call_end; k++) {
                memoi_hooks_tensor* t = &h->planned[h->uses[k].tensor];
                if (t->layer < high) next = t->layer > next ? t->layer : next;
                if (t->layer != high || t->taken) continue;
                t->taken = 1; /* its first unpack */
                before[k] = -1;
                weights[k] = t->size_bytes + 1;
                for (int32_t b = h->n_layers - t->layer; b > 0; b -= b & -b)
                    if (best[b] && (before[k] < 0 || weights[best[b] - 1] > weights[before[k]]))
                        before[k] = best[b] - 1;
                if (before[k] >= 0) weights[k] += weights[before[k]];
                for (int32_t b = h->n_layers - t->layer; b <= h->n_layers; b += b & -b)
                    if (!best[b] || weights[k] > weights[best[b] - 1]) best[b] = k + 1;
                if (last < 0 || weights[k] > weights[last]) last = k;
            }
        }
    }
    for (; last >= 0; last = before[last]) h->planned[h->uses[last].tensor].turns = 1;
}

/* Replays the calls: a tensor may move if its layer is open whenever it is unpacked. */
MEMOI void memoi_hooks_find_movable(memo_hooks* h) {
    h->at = h->top = h->n_layers;
    for (int64_t i = 0, end; i < h->n_uses; i = end) {
        int32_t low = h->at, high = -1;
        for (end = i; end < h->n_uses && h->uses[end].call == h->uses[i].call; end++) {
            const memoi_hooks_tensor* t = &h->planned[h->uses[end].tensor];
            if (t->turns && t->layer < low) low = t->layer;
            if (t->layer > high) high = t->layer;
        }
        (void)memoi_hooks_turn(h, low, high, NULL);
        for (int64_t k = i; k < end; k++) {
            memoi_hooks_tensor* t = &h->planned[h->uses[k].tensor];
            t->may_move &= t->layer >= h->at && t->layer < h->top;
        }
    }
}

MEMOI memo_status memoi_hooks_analyze(memo_hooks* h, memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    int64_t* weights = MEMOB_ARRAY(&arrays, int64_t, h->n_uses + 1);
    int64_t* before = MEMOB_ARRAY(&arrays, int64_t, h->n_uses + 1);
    int64_t* best = MEMOB_ARRAY(&arrays, int64_t, h->n_layers + 1);
    for (int64_t i = 0; i < h->n_planned; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        t->taken = t->turns = 0;
        t->may_move = t->layer >= 0 && t->size_bytes && t->size_bytes >= h->desc.least_bytes;
    }
    if (!arrays.failed) {
        memoi_hooks_find_turns(h, weights, before, best);
        memoi_hooks_find_movable(h);
    }
    for (int64_t i = 0; i < h->n_planned; i++) h->planned[i].taken = 0;
    memob_arrays_free(&arrays);
    return arrays.failed ? memob_no_memory(error, "memo_hooks") : MEMO_STATUS_OK;
}

/* Lays out the SWAPPED tensors.  A layer is one tensor of the swap engine, of 1 to 31 units; the
 * units are its kind, so that layers share the engine's area as closely as their sizes let them.
 * is_last: also creates the engine. */
MEMOI memo_status memoi_hooks_lay_out(memo_hooks* h, int is_last, memo_error* error) {
    memo_swap_desc desc = MEMO_ZERO(memo_swap_desc);
    memo_item sizes[MEMOI_HOOKS_SIZES];
    uint32_t tensor_kinds[MEMOI_HOOKS_SIZES];
    int64_t most = 0, unit;
    h->stats.kept_bytes = 0;
    memset(h->place_bytes, 0, (size_t)h->n_layers * sizeof *h->place_bytes);
    for (int64_t i = 0; i < h->n_planned; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset < 0) {
            h->stats.kept_bytes += t->size_bytes;
            continue;
        }
        t->offset = h->place_bytes[t->layer];
        h->place_bytes[t->layer] += memob_align_up(t->size_bytes, 512);
        most = memob_max(most, h->place_bytes[t->layer]);
    }
    if (!is_last) memset(&h->stats.swap, 0, sizeof h->stats.swap);
    if (!most) return MEMO_STATUS_OK;

    unit = memob_align_up((most - 1) / MEMOI_HOOKS_SIZES + 1, 512);
    for (int64_t i = 0; i < h->n_layers; i++)
        h->kinds[i] = (int32_t)((h->place_bytes[i] + unit - 1) / unit);
    memset(sizes, 0, sizeof sizes);
    for (int32_t k = 0; k < MEMOI_HOOKS_SIZES; k++) {
        sizes[k].name = "saved";
        sizes[k].row_bytes = (k + 1) * unit;
        sizes[k].away = MEMO_MOVE;
        tensor_kinds[k] = 2u << k;
    }
    desc.device = h->desc.device;
    desc.compute_stream = h->desc.compute_stream;
    desc.computes_on_host = h->desc.computes_on_host;
    desc.tensors = sizes;
    desc.n_tensors = MEMOI_HOOKS_SIZES;
    desc.n_layers = h->n_layers;
    desc.layer_kinds = h->kinds;
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

/* Keeps as many of the SWAPPED tensors [begin, end) as fit: all, or what fits of the later half,
 * then of the other half.  The last two layers are not moved anyway. */
MEMOI void memoi_hooks_keep(memo_hooks* h, int64_t begin, int64_t end, int64_t budget,
                            int32_t* n_tries, memo_status* status, memo_error* error) {
    const int64_t middle = (begin + end) / 2;
    int64_t n = 0;
    int fits;
    for (int64_t i = begin; i < end; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset >= 0 && t->layer < h->n_layers - 2) n++, t->offset = -2;
    }
    if (n && !*status && --*n_tries >= 0) *status = memoi_hooks_lay_out(h, 0, error);
    fits = n && !*status && *n_tries >= 0 &&
           h->stats.kept_bytes + h->stats.swap.device_bytes <= budget;
    for (int64_t i = begin; i < end; i++)
        if (h->planned[i].offset == -2) h->planned[i].offset = fits ? -1 : 0;
    if (!n || fits || n == 1 || *n_tries < 0) return;
    memoi_hooks_keep(h, middle, end, budget, n_tries, status, error);
    memoi_hooks_keep(h, begin, middle, budget, n_tries, status, error);
}

/* Gives each recorded tensor its rule.  The later a layer, the less time it has to travel. */
MEMOI memo_status memoi_hooks_choose(memo_hooks* h, int64_t budget, memo_error* error) {
    int32_t n_tries = 200; /* however many tensors there are */
    int64_t all_bytes = 0;
    memo_status status = MEMO_STATUS_OK;
    for (int64_t i = 0; i < h->n_planned; i++) all_bytes += h->planned[i].size_bytes;
    for (int64_t i = 0; i < h->n_planned; i++)
        h->planned[i].offset = h->planned[i].may_move && all_bytes > budget ? 0 : -1;
    memoi_hooks_keep(h, 0, h->n_planned, budget, &n_tries, &status, error);
    if (!status) status = memoi_hooks_lay_out(h, 0, error);
    h->stats.n_tensors = h->n_planned;
    return status;
}

MEMOI memo_status memoi_hooks_plan(memo_hooks* h, int64_t budget, memo_error* error) {
    memo_status status = memoi_hooks_choose(h, budget, error);
    if (!status)
        status = memoi_hooks_fits("device_bytes", budget,
                                  h->stats.kept_bytes + h->stats.swap.device_bytes, error);
    return status ? status
                  : memoi_hooks_fits("host_bytes", h->desc.host_bytes, h->stats.swap.host_bytes,
                                     error);
}

MEMOI memo_status memoi_hooks_create_engine(memo_hooks* h, memo_error* error) {
    memo_status status = memoi_hooks_lay_out(h, 1, error);
    for (int64_t i = 0; i < h->n_planned && !status; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset >= 0)
            t->address =
                (char*)memo_swap_get_address(h->swap, t->layer, h->kinds[t->layer] - 1) + t->offset;
    }
    h->n_swap_layers = h->swap ? h->n_layers : 0;
    if (status || !h->swap || !h->desc.is_checked) return status;
    for (int32_t l = 0; l < h->n_layers; l++)
        h->slot_bytes = memob_max(h->slot_bytes, h->place_bytes[l]);
    return memo_device_alloc(h->desc.device, MEMOI_HOOKS_SLOTS * h->slot_bytes, (void**)&h->slots,
                             error);
}

MEMOI void memoi_hooks_drop_plan(memo_hooks* h) {
    memo_swap_destroy(h->swap);
    if (h->slots) memo_device_free(h->desc.device, h->slots, NULL);
    h->swap = NULL;
    h->slots = NULL;
    h->n_swap_layers = 0;
    MEMO_FREE(h->planned);
    MEMO_FREE(h->place_bytes);
    MEMO_FREE(h->kinds);
    h->planned = NULL;
    h->place_bytes = NULL;
    h->kinds = NULL;
    h->n_planned = 0;
}

/* The micro-batch that ends is the plan's; the next one is a new list. */
MEMOI memo_status memoi_hooks_take_record(memo_hooks* h, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    h->planned = h->tensors;
    h->n_planned = h->n_tensors;
    h->tensors = NULL;
    h->capacity = 0;
    h->place_bytes = (int64_t*)memob_calloc(h->n_layers + 1, sizeof *h->place_bytes);
    h->kinds = (int32_t*)memob_calloc(h->n_layers + 1, sizeof *h->kinds);
    if (!h->place_bytes || !h->kinds ||
        !memob_reserve(&h->tensors, &h->capacity, h->n_planned, sizeof *h->tensors))
        status = memob_no_memory(error, "memo_hooks");
    if (!status) status = memoi_hooks_analyze(h, error);
    return status;
}

/* --- calls --- */

MEMO_TRY memo_status memo_hooks_create(const memo_hooks_desc* desc, memo_hooks** hooks,
                                       memo_error* error) {
    memo_hooks* h;
    memo_status status;
    if (!desc || !hooks) return MEMOB_INVALID(error, "memo_hooks_create: desc or hooks is NULL");
    *hooks = NULL;
    if (desc->device_bytes < 0 || desc->host_bytes < 0 || desc->least_bytes < 0)
        return MEMOB_INVALID(error, "memo_hooks_desc: negative bytes; 0 is the default");
    h = (memo_hooks*)memob_calloc(1, sizeof *h);
    if (!h) return memob_no_memory(error, "memo_hooks");
    h->desc = *desc;
    if (!desc->device) h->desc.device_bytes = 0;
    status = memob_probe_create(&h->probe,
                                desc->is_checked && !desc->computes_on_host ? desc->device : NULL,
                                "memo_hooks_desc.device", &h->desc.compute_stream, 1, error);
    if (status)
        memo_hooks_destroy(h);
    else
        *hooks = h;
    return status;
}

MEMO_API void memo_hooks_destroy(memo_hooks* h) {
    if (!h) return;
    memoi_hooks_drop_plan(h);
    memob_probe_destroy(&h->probe);
    MEMO_FREE(h->tensors);
    MEMO_FREE(h->uses);
    MEMO_FREE(h);
}

MEMO_TRY memo_status memo_hooks_begin(memo_hooks* h, memo_error* error) {
    memo_status status = h->swap && h->n_begun ? memo_swap_abandon(h->swap, error) : MEMO_STATUS_OK;
    if (status) return status;
    h->n_tensors = h->layer_begin = h->plan_begin = 0;
    h->n_layers = h->n_begun = h->is_backward = 0;
    h->n_uses = h->n_calls = 0;
    h->n_unplanned_before = h->n_unplanned;
    h->n_unplanned = 0;
    h->layer = -1;
    h->is_open = 1;
    h->micro_batch++;
    return status;
}

MEMO_TRY memo_status memo_hooks_set_layer(memo_hooks* h, int32_t layer, memo_error* error) {
    const int32_t n = h->n_swap_layers;
    memo_status status = memoi_hooks_check(h, NULL, NULL, error);
    if (status || h->is_backward || layer == h->layer) return status;
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

/* The next planned tensor of the layer with as many bytes; NULL: none. */
MEMOI memoi_hooks_tensor* memoi_hooks_match(memo_hooks* h, int64_t size_bytes) {
    int64_t p = h->plan_begin;
    while (p < h->n_planned && h->planned[p].layer == h->layer &&
           h->planned[p].taken == h->micro_batch)
        h->plan_begin = ++p;
    for (; p < h->n_planned && h->planned[p].layer <= h->layer; p++)
        if (h->planned[p].layer == h->layer && h->planned[p].size_bytes == size_bytes &&
            h->planned[p].taken != h->micro_batch)
            return &h->planned[p];
    return NULL;
}

/* Copies a SWAPPED tensor to its place; from then on nobody reads the owner's bytes. */
MEMOI memo_status memoi_hooks_move(memo_hooks* h, memoi_hooks_tensor* t, char* address,
                                   memo_error* error) {
    const memo_status status = memoi_hooks_copy(h, t->address, address, t->size_bytes, error);
    return status || h->desc.owner_reads_on ? status
                                            : memoi_hooks_poison(h, address, t->size_bytes, error);
}

/* Gives the tensor of an open layer its place in the plan, if the plan has the tensor. */
MEMOI memo_status memoi_hooks_place(memo_hooks* h, memoi_hooks_tensor* t, memo_error* error) {
    memoi_hooks_tensor* planned = memoi_hooks_match(h, t->size_bytes);
    char* address = t->address;
    if (!planned) {
        h->stats.n_unplanned++;
        if (!h->n_unplanned++ && !h->n_unplanned_before)
            memoi_hooks_say(h, t, "is not as planned: its owner keeps it", 0, NULL);
        return MEMO_STATUS_OK;
    }
    planned->taken = h->micro_batch;
    t->turns = planned->turns;
    t->offset = planned->offset;
    if (t->offset < 0 || h->is_dry) return MEMO_STATUS_OK;
    t->address = planned->address;
    return memoi_hooks_move(h, t, address, error);
}

/* The tensor of a plan is the next one of its layer; else it is recorded. */
MEMO_TRY memo_status memo_hooks_pack(memo_hooks* h, void* address, int64_t size_bytes,
                                     int64_t* token, memo_error* error) {
    const int is_in_layer = h->layer >= 0 && !h->is_backward;
    memo_status status = memoi_hooks_check(h, NULL, NULL, error);
    memoi_hooks_tensor* t;
    int is_of_poison = 0;
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
    if (h->desc.is_checked && !h->is_dry)
        status =
            memob_probe_hash(&h->probe, t->address, size_bytes, &t->hash, &is_of_poison, error);

    if (!status && is_in_layer && h->planned) status = memoi_hooks_place(h, t, error);
    *token = h->micro_batch << 32 | h->n_tensors++;
    if (t->offset < 0) *token = ~*token;
    if (status) h->is_open = 0;
    if (!status && is_of_poison) {
        h->stats.n_findings++;
        status = memoi_hooks_say(h, t,
                                 "is computed from bytes of a tensor that memo has moved, or whose "
                                 "layer has ended; unpack the tensor, or set owner_reads_on",
                                 0, error);
    }
    return status;
}

/* The bytes at address must be those that were packed. */
MEMOI memo_status memoi_hooks_audit(memo_hooks* h, memoi_hooks_tensor* t, void* address,
                                    const char* what, memo_error* error) {
    uint64_t hash = t->hash;
    int is_of_poison;
    memo_status status = MEMO_STATUS_OK;
    t->is_unpacked = 1;
    if (h->desc.is_checked && !h->is_dry)
        status =
            memob_probe_hash(&h->probe, (char*)address, t->size_bytes, &hash, &is_of_poison, error);
    if (status || hash == t->hash) return status;
    h->stats.n_findings++;
    return memoi_hooks_say(h, t, what, 0, error);
}

/* Remembers a call for the plan. */
MEMOI memo_status memoi_hooks_record(memo_hooks* h, const int64_t* tokens, int64_t n,
                                     memo_error* error) {
    if (h->planned || !h->desc.device_bytes) return MEMO_STATUS_OK;
    if (!memob_reserve(&h->uses, &h->uses_capacity, h->n_uses + n, sizeof *h->uses))
        return memob_no_memory(error, "memo_hooks");
    for (int64_t i = 0; i < n; i++) {
        const int64_t tensor = (tokens[i] < 0 ? ~tokens[i] : tokens[i]) & 0xffffffff;
        const memoi_hooks_use use = {h->n_calls, tensor};
        h->uses[h->n_uses++] = use;
    }
    h->n_calls++;
    return MEMO_STATUS_OK;
}

/* Layers turn before the addresses are given, so that all tensors of an operator are there. */
MEMO_TRY memo_status memo_hooks_unpack(memo_hooks* h, const int64_t* tokens, int64_t n,
                                       void** addresses, memo_error* error) {
    memoi_hooks_tensor* t = NULL;
    int32_t low = INT32_MAX, high = -1;
    memo_status status = memoi_hooks_check(h, NULL, NULL, error);
    if (status || n <= 0) return status;
    for (int64_t i = 0; i < n; i++) {
        status = memoi_hooks_check(h, &tokens[i], &t, error);
        if (status) return status;
        if ((t->turns || t->offset >= 0) && t->layer < low) low = t->layer;
        if (t->layer > high) high = t->layer;
    }
    status = memoi_hooks_record(h, tokens, n, error);
    if (!status) status = memoi_hooks_turn(h, low, high, error);
    if (status) return status;

    for (int64_t i = 0; i < n; i++) {
        memo_status found;
        (void)memoi_hooks_check(h, &tokens[i], &t, NULL);
        if (t->offset >= 0 && t->layer >= h->top)
            return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                                  "memo_hooks: tensor %d of layer %d: unpacked after layer %d, "
                                  "unlike in the recorded micro-batch",
                                  (int)t->number, (int)t->layer, (int)h->at);
        if (h->slots && t->offset >= 0 && !t->is_unpacked) {
            char* slot = memoi_hooks_slot(h, t->layer) + t->offset;
            found = memoi_hooks_copy(h, slot, t->address, t->size_bytes, status ? NULL : error);
            if (found) return found;
            t->address = slot;
        }
        addresses[i] = t->address;
        found = memoi_hooks_audit(h, t, t->address, "changed between forward and backward",
                                  status ? NULL : error);
        if (!status) status = found;
    }
    return status;
}

MEMO_TRY memo_status memo_hooks_compare(memo_hooks* h, int64_t token, void* address,
                                        memo_error* error) {
    memoi_hooks_tensor* t = NULL;
    memo_status status = memoi_hooks_check(h, &token, &t, error);
    return status ? status : memoi_hooks_audit(h, t, address, "differs after recomputation", error);
}

/* After a backward: one line for all tensors that it has forgotten, until their number changes. */
MEMOI void memoi_hooks_report(memo_hooks* h) {
    const memoi_hooks_tensor* first = NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < h->n_tensors && h->desc.is_checked; i++) {
        if (h->tensors[i].is_unpacked) continue;
        if (!n++) first = &h->tensors[i];
    }
    h->stats.n_findings += n;
    if (n && n != h->n_forgotten) memoi_hooks_say(h, first, "was never unpacked", n - 1, NULL);
    h->n_forgotten = n;
}

MEMO_TRY memo_status memo_hooks_end(memo_hooks* h, memo_error* error) {
    const int had_backward = h->is_backward;
    memo_status status = memo_hooks_set_layer(h, -1, error);
    if (!status && had_backward) status = memoi_hooks_turn(h, -1, -1, error);
    if (status) return status;
    if (had_backward && !h->is_dry) memoi_hooks_report(h);
    h->is_open = 0;
    if (h->swap && !had_backward) return memo_swap_abandon(h->swap, error);
    h->n_begun = 0;
    if (h->planned || !had_backward || !h->desc.device_bytes) return status;

    status = memoi_hooks_take_record(h, error);
    if (h->is_dry && !status) return status; /* memo_hooks_fit plans */
    if (!status) status = memoi_hooks_plan(h, h->desc.device_bytes, error);
    if (!status) status = memoi_hooks_create_engine(h, error);
    if (status) memoi_hooks_drop_plan(h);
    return status;
}

MEMO_API void memo_hooks_get_stats(const memo_hooks* h, memo_hooks_stats* stats) {
    *stats = h->stats;
}

#ifdef MEMO_PLAN_H
/* Runs the step dry.  *bytes: the arena's most live bytes and the places; plan not NULL: of a plan,
 * which is solved. */
MEMOI memo_status memoi_hooks_run_dry(
    memo_hooks* h, memo_status (*step)(void* user, memo_arena* arena, memo_error* error),
    void* user, memo_plan** plan, int64_t* bytes, memo_error* error) {
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    memo_arena_stats stats = MEMO_ZERO(memo_arena_stats);
    memo_arena* arena = NULL;
    memo_status status = memo_trace_create(&desc.trace, error);
    if (!status) status = memo_arena_create(&desc, &arena, error);
    if (!status) status = step(user, arena, error);
    if (!status) memo_arena_get_stats(arena, &stats);
    memo_arena_destroy(arena);
    if (!status && !h->planned)
        status = memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                                "memo_hooks_fit: step has unpacked nothing; it must run a forward "
                                "and a backward, from memo_hooks_begin to memo_hooks_end");

    *bytes = stats.reserved_bytes;
    if (!status && plan) status = memo_plan_from_trace(desc.trace, 0, plan, error);
    if (!status && plan) status = memo_plan_solve(*plan, NULL, error);
    if (!status && plan) *bytes = (*plan)->peak_bytes;
    *bytes += h->stats.swap.device_bytes;
    memo_trace_destroy(desc.trace);
    return status;
}

enum { MEMOI_HOOKS_ROUNDS = 14 };

/* Finds how many bytes may be kept, at most `high`, with which all takes `bytes`.  More kept bytes
 * take more of the arena, but for places that few layers need.  *low: the most that fit; *least:
 * those that took least. */
MEMOI memo_status memoi_hooks_bisect(memo_hooks* h,
                                     memo_status (*step)(void* user, memo_arena* arena,
                                                         memo_error* error),
                                     void* user, int64_t device_bytes, int64_t high, int64_t bytes,
                                     int64_t* low, int64_t* least, memo_error* error) {
    int64_t least_bytes = bytes;
    memo_status status = MEMO_STATUS_OK;
    *least = high;
    *low = bytes <= device_bytes ? high : 0;
    for (int round = 0; round < MEMOI_HOOKS_ROUNDS && !status && *low < high; round++) {
        const int64_t budget = *low + (high - *low + 1) / 2;
        status = memoi_hooks_choose(h, budget, error);
        if (!status) status = memoi_hooks_run_dry(h, step, user, NULL, &bytes, error);
        if (bytes < least_bytes) *least = budget;
        least_bytes = memob_min(least_bytes, bytes);
        if (bytes <= device_bytes)
            *low = budget;
        else
            high = budget - 1;
    }
    return status;
}

MEMO_TRY memo_status
memo_hooks_fit(memo_hooks* h, memo_status (*step)(void* user, memo_arena* arena, memo_error* error),
               void* user, int64_t device_bytes, memo_plan** plan, memo_error* error) {
    int64_t low = 0, high = 0, least = 0, least_bytes = INT64_MAX, bytes = 0;
    memo_status status = MEMO_STATUS_OK;
    if (!h || !step || !plan)
        return MEMOB_INVALID(error, "memo_hooks_fit: hooks, step or plan is NULL");
    *plan = NULL;
    if (device_bytes <= 0 || !h->desc.device)
        return MEMOB_INVALID(
            error,
            "memo_hooks_fit: device_bytes: %lld %s; pass a budget, and give the hooks a device",
            (long long)device_bytes, h->desc.device ? "on a device" : "without a device");

    /* The first run keeps all. */
    memoi_hooks_drop_plan(h);
    memset(&h->stats.swap, 0, sizeof h->stats.swap);
    h->desc.device_bytes = device_bytes;
    h->is_dry = 1;
    status = memoi_hooks_run_dry(h, step, user, NULL, &bytes, error);
    for (int64_t i = 0; i < h->n_planned && !status; i++) high += h->planned[i].size_bytes;

    if (!status)
        status = memoi_hooks_bisect(h, step, user, device_bytes, high, bytes, &low, &least, error);

    /* A plan takes more than the live bytes: the bytes that it lacks are not kept.  At last all
     * move, or what took least. */
    for (int round = 0; round < MEMOI_HOOKS_ROUNDS && !status; round++) {
        memo_plan_destroy(*plan);
        *plan = NULL;
        status = memoi_hooks_choose(h, low, error);
        if (!status) status = memoi_hooks_run_dry(h, step, user, plan, &bytes, error);
        least_bytes = memob_min(least_bytes, bytes);
        if (bytes <= device_bytes) break;
        if (low == 0) round = (int)memob_max(round, MEMOI_HOOKS_ROUNDS - 2);
        low = round < MEMOI_HOOKS_ROUNDS - 3 ? memob_max(0, low - (bytes - device_bytes)) : 0;
        if (round == MEMOI_HOOKS_ROUNDS - 2) low = least;
    }

    if (!status && bytes > device_bytes)
        status = memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                                "memo_hooks_fit: device_bytes: too small (%lld); %lld are enough",
                                (long long)device_bytes, (long long)least_bytes);
    if (!status)
        status =
            memoi_hooks_fits("host_bytes", h->desc.host_bytes, h->stats.swap.host_bytes, error);
    h->is_dry = h->is_open = 0;
    if (!status) status = memoi_hooks_create_engine(h, error);
    if (!status) return status;
    memo_plan_destroy(*plan);
    *plan = NULL;
    memoi_hooks_drop_plan(h);
    return status;
}
#endif

#endif /* MEMO_HOOKS_IMPLEMENTATION */
