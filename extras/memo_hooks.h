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
 * plan.  Tensors stay KEPT outside of layers, in recomputation (after the first unpack), or
 * unpacked while their layer is not open.  So does a tensor that other layers read, such as RoPE's
 * table, a mask or keys of another layer; it begins and ends no layer.  From the last layer that
 * moves to the first, further tensors stay KEPT as long as device_bytes >= KEPT bytes + bytes of
 * the swap engine.  All other tensors are SWAPPED.
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

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
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
    /* Of the call that is under way.  After a failure its steps do nothing. */
    memo_status status;
    memo_error* error;
};

/* A step of a call, unless one before has failed. */
#define MEMOI_HOOKS_TRY(h, step)                                                                   \
    do {                                                                                           \
        if (!(h)->status) (h)->status = (step);                                                    \
    } while (0)

MEMOI void memoi_hooks_enter(memo_hooks* h, memo_error* error) {
    h->status = MEMO_STATUS_OK;
    h->error = error;
}

/* Begins a call that needs an open micro-batch.  0: none is open. */
MEMOI int memoi_hooks_enter_open(memo_hooks* h, memo_error* error) {
    memoi_hooks_enter(h, error);
    if (!h->is_open)
        h->status = memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                                   "memo_hooks: no micro-batch is open; call memo_hooks_begin");
    return h->is_open;
}

/* The tensor of a token; NULL: not of this micro-batch. */
MEMOI memoi_hooks_tensor* memoi_hooks_find(memo_hooks* h, int64_t token) {
    const int64_t at = token < 0 ? ~token : token, i = at & 0xffffffff;
    if (at >> 32 == h->micro_batch && i < h->n_tensors) return &h->tensors[i];
    h->status = MEMOB_INVALID(h->error, "memo_hooks: token: not of this micro-batch (%lld)",
                              (long long)token);
    return NULL;
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

MEMOI void memoi_hooks_copy(memo_hooks* h, void* to, const void* from, int64_t n_bytes) {
    if (!h->desc.computes_on_host)
        MEMOI_HOOKS_TRY(h, memo_copy(h->desc.device, h->desc.compute_stream, MEMO_COPY_ON_DEVICE,
                                     to, from, n_bytes, h->error));
    else
        memcpy(to, from, (size_t)n_bytes);
}

/* Nobody may read the bytes from now on. */
MEMOI void memoi_hooks_poison(memo_hooks* h, char* bytes, int64_t n_bytes) {
    MEMOI_HOOKS_TRY(h, memob_probe_sweep(&h->probe, bytes, n_bytes, 1, NULL, h->error));
}

/* --- the backward's layers --- */

/* A begin or an end of a layer, if the engine has the layer. */
MEMOI void memoi_hooks_visit(memo_hooks* h, int is_backward, int is_end, int32_t layer) {
    if (layer < 0 || layer >= h->n_swap_layers || h->status) return;
    if (!is_backward && !is_end) h->n_begun = layer + 1;
    h->status = memob_swap_visit(h->swap, is_backward, is_end, layer, h->error);
}

MEMOI void memoi_hooks_end_top(memo_hooks* h) {
    const int32_t layer = --h->top;
    if (h->slots && layer < h->n_swap_layers)
        memoi_hooks_poison(h, memoi_hooks_slot(h, layer), h->place_bytes[layer]);
    memoi_hooks_visit(h, 1, 1, layer);
}

/* An unpack of tensors of layers low to high.  Layers above end, and layers down to low begin; -1:
 * all end.  The first call ends the forward. */
MEMOI void memoi_hooks_turn(memo_hooks* h, int64_t low, int64_t high) {
    if (!h->is_backward) {
        memoi_hooks_visit(h, 0, 1, h->layer);
        while (h->n_begun < h->n_swap_layers && !h->status) {
            memoi_hooks_visit(h, 0, 0, h->n_begun);
            memoi_hooks_visit(h, 0, 1, h->n_begun - 1);
        }
        h->at = h->top = (int32_t)memob_max(h->n_layers, h->n_swap_layers);
        h->is_backward = 1;
    }

    /* The call before is over: what it read may end. */
    if (h->top - h->at == 2 && high <= h->at) memoi_hooks_end_top(h);
    while (h->at > low) {
        if (h->top - h->at == 2) memoi_hooks_end_top(h);
        memoi_hooks_visit(h, 1, 0, --h->at);
    }
    while (low < 0 && h->top > 0) memoi_hooks_end_top(h);
    h->is_open &= !h->status;
}

/* --- the plan --- */

/* Which tensors begin their layer: the heaviest sequence of first unpacks, in the order of calls,
 * in which layers only go down.  The others were unpacked by another layer.  Tensors of one call
 * have no order: the highest layer comes first.  Uses are numbered from 1; 0: none, of weight 0.
 * best: of each layer, the use that ends the heaviest sequence so far. */
MEMOI void memoi_hooks_find_turns(memo_hooks* h, memob_keyed* order, int64_t* weights,
                                  int64_t* before, int64_t* best) {
    int64_t last = 0;
    for (int64_t k = 0; k < h->n_uses; k++) {
        const int32_t layer = h->planned[h->uses[k].tensor].layer;
        order[k] = memob_keyed_of(h->uses[k].call * (h->n_layers + 2) + h->n_layers - layer, k);
    }
    memob_keyed_sort(order, h->n_uses);

    for (int64_t i = 0; i < h->n_uses; i++) {
        const int64_t k = order[i].index + 1;
        memoi_hooks_tensor* t = &h->planned[h->uses[k - 1].tensor];
        if (t->layer < 0 || t->taken) continue;
        t->taken = 1; /* its first unpack */
        for (int32_t l = t->layer; l < h->n_layers; l++)
            if (weights[best[l]] > weights[before[k]]) before[k] = best[l];
        weights[k] = t->size_bytes + 1 + weights[before[k]];
        best[t->layer] = k; /* heavier than the one before, which it can follow */
        if (weights[k] > weights[last]) last = k;
    }
    for (; last; last = before[last]) h->planned[h->uses[last - 1].tensor].turns = 1;
}

/* Replays the calls: a tensor may move if its layer is open whenever it is unpacked. */
MEMOI void memoi_hooks_find_movable(memo_hooks* h) {
    h->at = h->top = h->n_layers;
    for (int64_t i = 0, end; i < h->n_uses; i = end) {
        int64_t low = h->at, high = -1;
        for (end = i; end < h->n_uses && h->uses[end].call == h->uses[i].call; end++) {
            const memoi_hooks_tensor* t = &h->planned[h->uses[end].tensor];
            if (t->turns) low = memob_min(low, t->layer);
            high = memob_max(high, t->layer);
        }
        memoi_hooks_turn(h, low, high);
        for (int64_t k = i; k < end; k++) {
            memoi_hooks_tensor* t = &h->planned[h->uses[k].tensor];
            t->may_move &= t->layer >= h->at && t->layer < h->top;
        }
    }
}

MEMOI void memoi_hooks_analyze(memo_hooks* h) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_keyed* order = MEMOB_ARRAY(&arrays, memob_keyed, h->n_uses + 1);
    int64_t* weights = MEMOB_ARRAY(&arrays, int64_t, h->n_uses + 1);
    int64_t* before = MEMOB_ARRAY(&arrays, int64_t, h->n_uses + 1);
    int64_t* best = MEMOB_ARRAY(&arrays, int64_t, h->n_layers + 1);
    for (int64_t i = 0; i < h->n_planned; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        t->taken = t->turns = 0;
        t->may_move = t->layer >= 0 && t->size_bytes;
    }
    if (arrays.failed) {
        h->status = memob_no_memory(h->error, "memo_hooks");
    } else {
        memoi_hooks_find_turns(h, order, weights, before, best);
        memoi_hooks_find_movable(h);
    }
    for (int64_t i = 0; i < h->n_planned; i++) h->planned[i].taken = 0;
    memob_arrays_free(&arrays);
}

/* Lays out the SWAPPED tensors.  A layer is one tensor of the swap engine, of 1 to 31 units; the
 * units are its kind, so that layers share the engine's area as closely as their sizes let them.
 * is_last: also creates the engine. */
MEMOI void memoi_hooks_lay_out(memo_hooks* h, int is_last) {
    memo_swap_desc desc = MEMO_ZERO(memo_swap_desc);
    memo_item sizes[MEMOI_HOOKS_SIZES];
    int64_t most = 0, unit;
    if (h->status) return;
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
    h->slot_bytes = h->desc.is_checked ? most : 0;
    if (!is_last) memset(&h->stats.swap, 0, sizeof h->stats.swap);
    if (!most) return;

    unit = memob_align_up((most - 1) / MEMOI_HOOKS_SIZES + 1, 512);
    for (int64_t i = 0; i < h->n_layers; i++)
        h->kinds[i] = (int32_t)((h->place_bytes[i] + unit - 1) / unit);
    memset(sizes, 0, sizeof sizes);
    for (int32_t k = 0; k < MEMOI_HOOKS_SIZES; k++) {
        sizes[k].name = "saved";
        sizes[k].row_bytes = (k + 1) * unit;
        sizes[k].away = MEMO_MOVE;
        sizes[k].kinds = 2u << k;
    }
    desc.device = h->desc.device;
    desc.compute_stream = h->desc.compute_stream;
    desc.computes_on_host = h->desc.computes_on_host;
    desc.tensors = sizes;
    desc.n_tensors = MEMOI_HOOKS_SIZES;
    desc.n_layers = h->n_layers;
    desc.layer_kinds = h->kinds;
    desc.n_rows = 1;
    desc.alpha = 1;
    h->status = is_last ? memo_swap_create(&desc, &h->swap, h->error)
                        : memo_swap_desc_get_sizes(&desc, &h->stats.swap, h->error);
}

/* what: a field, or a function with its argument. */
MEMOI void memoi_hooks_fits(memo_hooks* h, const char* what, int64_t budget, int64_t needed) {
    if (budget && needed > budget)
        MEMOI_HOOKS_TRY(h, memo_error_set(h->error, MEMO_STATUS_INFEASIBLE,
                                          "memo_hooks_%s: too small (%lld); %lld are enough", what,
                                          (long long)budget, (long long)needed));
}

/* Keeps as many of the SWAPPED tensors [begin, end) as fit: all, or what fits of the later half,
 * then of the other half.  The last two layers are not moved anyway. */
MEMOI void memoi_hooks_keep(memo_hooks* h, int64_t begin, int64_t end, int64_t budget,
                            int32_t* n_tries) {
    const int64_t middle = (begin + end) / 2;
    int64_t n = 0;
    int fits;
    if (*n_tries <= 0 || h->status) return;
    for (int64_t i = begin; i < end; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset < 0 || t->layer >= h->n_layers - 2) continue;
        t->offset = -2;
        n++;
    }
    if (!n) return;
    --*n_tries;
    memoi_hooks_lay_out(h, 0);
    fits = !h->status && h->stats.kept_bytes + h->stats.swap.device_bytes <= budget;
    for (int64_t i = begin; i < end; i++)
        if (h->planned[i].offset == -2) h->planned[i].offset = fits ? -1 : 0;
    if (fits || n == 1) return;
    memoi_hooks_keep(h, middle, end, budget, n_tries);
    memoi_hooks_keep(h, begin, middle, budget, n_tries);
}

/* Gives each recorded tensor its rule.  The later a layer, the less time it has to travel. */
MEMOI void memoi_hooks_choose(memo_hooks* h, int64_t budget) {
    int32_t n_tries = 200; /* however many tensors there are */
    int64_t all_bytes = 0;
    for (int64_t i = 0; i < h->n_planned; i++) all_bytes += h->planned[i].size_bytes;
    for (int64_t i = 0; i < h->n_planned; i++)
        h->planned[i].offset = h->planned[i].may_move && all_bytes > budget ? 0 : -1;
    memoi_hooks_keep(h, 0, h->n_planned, budget, &n_tries);
    memoi_hooks_lay_out(h, 0);
    h->stats.n_tensors = h->n_planned;
}

MEMOI void memoi_hooks_create_engine(memo_hooks* h) {
    memoi_hooks_lay_out(h, 1);
    if (h->status || !h->swap) return;
    h->n_swap_layers = h->n_layers;
    for (int64_t i = 0; i < h->n_planned; i++) {
        memoi_hooks_tensor* t = &h->planned[i];
        if (t->offset >= 0)
            t->address =
                (char*)memo_swap_get_address(h->swap, t->layer, h->kinds[t->layer] - 1) + t->offset;
    }
    if (h->slot_bytes)
        h->status = memo_device_alloc(h->desc.device, MEMOI_HOOKS_SLOTS * h->slot_bytes,
                                      (void**)&h->slots, h->error);
}

MEMOI void memoi_hooks_plan(memo_hooks* h) {
    memoi_hooks_choose(h, h->desc.device_bytes);
    memoi_hooks_fits(h, "desc.device_bytes", h->desc.device_bytes,
                     h->stats.kept_bytes + h->stats.swap.device_bytes);
    memoi_hooks_fits(h, "desc.host_bytes", h->desc.host_bytes, h->stats.swap.host_bytes);
    memoi_hooks_create_engine(h);
}

MEMOI void memoi_hooks_drop_plan(memo_hooks* h) {
    memo_swap_destroy(h->swap);
    if (h->slots) memo_device_free(h->desc.device, h->slots, NULL);
    h->swap = NULL;
    h->slots = NULL;
    h->n_swap_layers = h->n_begun = 0;
    MEMO_FREE(h->planned);
    MEMO_FREE(h->place_bytes);
    MEMO_FREE(h->kinds);
    h->planned = NULL;
    h->place_bytes = NULL;
    h->kinds = NULL;
    h->n_planned = 0;
}

/* The micro-batch that ends is the plan's; the next one is a new list. */
MEMOI void memoi_hooks_take_record(memo_hooks* h) {
    h->planned = h->tensors;
    h->n_planned = h->n_tensors;
    h->tensors = NULL;
    h->capacity = 0;
    h->place_bytes = (int64_t*)memob_calloc(h->n_layers + 1, sizeof *h->place_bytes);
    h->kinds = (int32_t*)memob_calloc(h->n_layers + 1, sizeof *h->kinds);
    if (h->place_bytes && h->kinds &&
        memob_reserve(&h->tensors, &h->capacity, h->n_planned, sizeof *h->tensors))
        memoi_hooks_analyze(h);
    else
        h->status = memob_no_memory(h->error, "memo_hooks");
}

/* --- calls --- */

MEMO_TRY memo_status memo_hooks_create(const memo_hooks_desc* desc, memo_hooks** hooks,
                                       memo_error* error) {
    memo_hooks* h;
    memo_status status;
    if (!desc || !hooks) return MEMOB_INVALID(error, "memo_hooks_create: desc or hooks is NULL");
    *hooks = NULL;
    if (desc->device_bytes < 0 || desc->host_bytes < 0)
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
    memo_status status = h->n_begun ? memo_swap_abandon(h->swap, error) : MEMO_STATUS_OK;
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
    if (!memoi_hooks_enter_open(h, error) || h->is_backward || layer == h->layer) return h->status;
    if (layer != -1 && layer != h->n_layers)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_hooks_set_layer: layer: out of order (%d); layer %d is next",
                              (int)layer, (int)h->n_layers);
    memoi_hooks_visit(h, 0, 1, h->layer);
    memoi_hooks_visit(h, 0, 0, layer);
    while (h->plan_begin < h->n_planned && h->planned[h->plan_begin].layer < layer) h->plan_begin++;
    h->layer_begin = h->n_tensors;
    h->layer = layer;
    if (layer >= 0) h->n_layers++;
    h->is_open &= !h->status;
    return h->status;
}

/* The next planned tensor of the layer with as many bytes; NULL: none. */
MEMOI memoi_hooks_tensor* memoi_hooks_match(memo_hooks* h, int64_t size_bytes) {
    for (int64_t p = h->plan_begin; p < h->n_planned && h->planned[p].layer <= h->layer; p++) {
        memoi_hooks_tensor* t = &h->planned[p];
        const int is_left = t->layer == h->layer && t->taken != h->micro_batch;
        if (is_left && t->size_bytes == size_bytes) return t;
        h->plan_begin += !is_left && p == h->plan_begin;
    }
    return NULL;
}

/* Gives the tensor of an open layer its place in the plan, if the plan has the tensor.  A SWAPPED
 * tensor is copied there; from then on nobody reads the owner's bytes. */
MEMOI void memoi_hooks_place(memo_hooks* h, memoi_hooks_tensor* t) {
    memoi_hooks_tensor* planned = memoi_hooks_match(h, t->size_bytes);
    char* address = t->address;
    if (!planned) {
        h->stats.n_unplanned++;
        if (!h->n_unplanned++ && !h->n_unplanned_before)
            memoi_hooks_say(h, t, "is not as planned: its owner keeps it", 0, NULL);
        return;
    }
    planned->taken = h->micro_batch;
    t->turns = planned->turns;
    t->offset = planned->offset;
    if (t->offset < 0 || h->is_dry) return;
    t->address = planned->address;
    memoi_hooks_copy(h, t->address, address, t->size_bytes);
    if (h->slots && !h->desc.owner_reads_on) memoi_hooks_poison(h, address, t->size_bytes);
}

/* Hashes the bytes of a tensor, if they are checked. */
MEMOI void memoi_hooks_hash(memo_hooks* h, const memoi_hooks_tensor* t, uint64_t* hash,
                            int* is_of_poison) {
    if (h->desc.is_checked && !h->is_dry)
        MEMOI_HOOKS_TRY(h, memob_probe_hash(&h->probe, t->address, t->size_bytes, hash,
                                            is_of_poison, h->error));
}

/* The tensor of a plan is the next one of its layer; else it is recorded. */
MEMO_TRY memo_status memo_hooks_pack(memo_hooks* h, void* address, int64_t size_bytes,
                                     int64_t* token, memo_error* error) {
    const int is_in_layer = h->layer >= 0 && !h->is_backward;
    memoi_hooks_tensor* t;
    int is_of_poison = 0;
    if (!memoi_hooks_enter_open(h, error)) return h->status;
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
    memoi_hooks_hash(h, t, &t->hash, &is_of_poison);
    if (!h->status && is_in_layer && h->planned) memoi_hooks_place(h, t);

    *token = h->micro_batch << 32 | h->n_tensors++;
    if (t->offset < 0) *token = ~*token;
    h->is_open &= !h->status;
    if (h->status || !is_of_poison) return h->status;
    h->stats.n_findings++;
    return memoi_hooks_say(h, t,
                           "is computed from bytes of a tensor that memo has moved, or whose "
                           "layer has ended; unpack the tensor, or set owner_reads_on",
                           0, error);
}

/* The bytes of a tensor that is unpacked must be those that were packed.  The error is of the first
 * finding. */
MEMOI void memoi_hooks_audit(memo_hooks* h, memoi_hooks_tensor* t, memo_status* finding) {
    uint64_t hash = t->hash;
    int is_of_poison;
    t->is_unpacked = 1;
    memoi_hooks_hash(h, t, &hash, &is_of_poison);
    if (h->status || hash == t->hash) return;
    h->stats.n_findings++;
    *finding = memoi_hooks_say(h, t, "changed between forward and backward", 0,
                               *finding ? NULL : h->error);
}

/* Remembers a call for the plan. */
MEMOI void memoi_hooks_record(memo_hooks* h, const int64_t* tokens, int64_t n) {
    if (h->planned || !h->desc.device_bytes) return;
    if (!memob_reserve(&h->uses, &h->uses_capacity, h->n_uses + n, sizeof *h->uses)) {
        h->status = memob_no_memory(h->error, "memo_hooks");
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const memoi_hooks_use use = {h->n_calls, memoi_hooks_find(h, tokens[i]) - h->tensors};
        h->uses[h->n_uses++] = use;
    }
    h->n_calls++;
}

/* Layers turn before the addresses are given, so that all tensors of an operator are there. */
MEMO_TRY memo_status memo_hooks_unpack(memo_hooks* h, const int64_t* tokens, int64_t n,
                                       void** addresses, memo_error* error) {
    memoi_hooks_tensor* t;
    int64_t low = INT64_MAX, high = -1;
    memo_status finding = MEMO_STATUS_OK;
    if (!memoi_hooks_enter_open(h, error) || n <= 0) return h->status;
    for (int64_t i = 0; i < n; i++) {
        t = memoi_hooks_find(h, tokens[i]);
        if (!t) return h->status;
        if (t->turns || t->offset >= 0) low = memob_min(low, t->layer);
        high = memob_max(high, t->layer);
    }
    memoi_hooks_record(h, tokens, n);
    if (!h->status) memoi_hooks_turn(h, low, high);

    for (int64_t i = 0; i < n && !h->status; i++) {
        t = memoi_hooks_find(h, tokens[i]);
        if (t->offset >= 0 && t->layer >= h->top)
            return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                                  "memo_hooks: tensor %d of layer %d: unpacked after layer %d, "
                                  "unlike in the recorded micro-batch",
                                  (int)t->number, (int)t->layer, (int)h->at);
        if (h->slots && t->offset >= 0 && !t->is_unpacked) {
            char* slot = memoi_hooks_slot(h, t->layer) + t->offset;
            memoi_hooks_copy(h, slot, t->address, t->size_bytes);
            t->address = slot;
        }
        addresses[i] = t->address;
        memoi_hooks_audit(h, t, &finding);
    }
    return h->status ? h->status : finding;
}

/* After a backward: one line for all tensors that it has forgotten, until their number changes. */
MEMOI void memoi_hooks_report(memo_hooks* h) {
    const memoi_hooks_tensor* first = NULL;
    int64_t n = 0;
    if (!h->desc.is_checked || h->is_dry) return;
    for (int64_t i = h->n_tensors - 1; i >= 0; i--) {
        if (h->tensors[i].is_unpacked) continue;
        first = &h->tensors[i];
        n++;
    }
    h->stats.n_findings += n;
    if (n && n != h->n_forgotten) memoi_hooks_say(h, first, "was never unpacked", n - 1, NULL);
    h->n_forgotten = n;
}

MEMO_TRY memo_status memo_hooks_end(memo_hooks* h, memo_error* error) {
    const int had_backward = h->is_backward;
    if (memo_hooks_set_layer(h, -1, error)) return h->status;
    if (!had_backward) {
        h->is_open = 0;
        return h->swap ? memo_swap_abandon(h->swap, error) : MEMO_STATUS_OK;
    }
    memoi_hooks_turn(h, -1, -1);
    if (h->status) return h->status;
    memoi_hooks_report(h);
    h->is_open = h->n_begun = 0;
    if (h->planned || !h->desc.device_bytes) return MEMO_STATUS_OK;

    memoi_hooks_take_record(h);
    if (!h->is_dry) memoi_hooks_plan(h); /* else memo_hooks_fit does */
    if (h->status) memoi_hooks_drop_plan(h);
    return h->status;
}

MEMO_API void memo_hooks_get_stats(const memo_hooks* h, memo_hooks_stats* stats) {
    *stats = h->stats;
}

#ifdef MEMO_PLAN_H
/* A trainer whose step memo_hooks_fit runs dry, and what that has found. */
typedef struct memoi_hooks_fitting {
    memo_hooks* hooks;
    memo_status (*step)(void* user, memo_arena* arena, memo_error* error);
    void* user;
    int64_t device_bytes;
    int64_t bytes, least_bytes; /* of the latest run; of all plans */
    memo_plan* plan;
    memo_error* error;
} memoi_hooks_fitting;

/* Runs the step dry, with at most this budget of kept bytes.  f->bytes: the arena's most live bytes
 * and the places; solves: of a plan, which is solved. */
MEMOI void memoi_hooks_run_dry(memoi_hooks_fitting* f, int64_t budget, int solves) {
    memo_hooks* h = f->hooks;
    memo_arena_desc desc = MEMO_ZERO(memo_arena_desc);
    memo_arena_stats stats = MEMO_ZERO(memo_arena_stats);
    memo_arena* arena = NULL;
    memo_status status;
    if (h->planned) memoi_hooks_choose(h, budget);
    MEMOI_HOOKS_TRY(h, memo_trace_create(&desc.trace, f->error));
    MEMOI_HOOKS_TRY(h, memo_arena_create(&desc, &arena, f->error));
    if (!h->status) {
        status = f->step(f->user, arena, f->error); /* enters calls of its own */
        memoi_hooks_enter(h, f->error);
        h->status = status;
        stats = memo_arena_get_stats(arena);
    }
    memo_arena_destroy(arena);
    if (!h->planned)
        MEMOI_HOOKS_TRY(
            h, memo_error_set(f->error, MEMO_STATUS_INVALID_STATE,
                              "memo_hooks_fit: step has unpacked nothing; it must run a forward "
                              "and a backward, from memo_hooks_begin to memo_hooks_end"));

    f->bytes = stats.reserved_bytes;
    if (solves) {
        memo_plan_destroy(f->plan);
        f->plan = NULL;
        MEMOI_HOOKS_TRY(h, memo_plan_from_trace(desc.trace, 0, &f->plan, f->error));
        MEMOI_HOOKS_TRY(h, memo_plan_solve(f->plan, NULL, f->error));
        if (!h->status) f->bytes = f->plan->peak_bytes;
    }
    f->bytes += h->stats.swap.device_bytes;
    memo_trace_destroy(desc.trace);
}

enum { MEMOI_HOOKS_ROUNDS = 14 };

/* Finds how many bytes may be kept, at most `high`, which the latest run had.  More kept bytes take
 * more of the arena, but for places that few layers need.  Returns the most that fit; *least: those
 * that took least. */
MEMOI int64_t memoi_hooks_bisect(memoi_hooks_fitting* f, int64_t high, int64_t* least) {
    int64_t least_bytes = f->bytes, low = f->bytes <= f->device_bytes ? high : 0;
    *least = high;
    for (int round = 0; round < MEMOI_HOOKS_ROUNDS && !f->hooks->status && low < high; round++) {
        const int64_t budget = low + (high - low + 1) / 2;
        memoi_hooks_run_dry(f, budget, 0);
        if (f->bytes < least_bytes) *least = budget;
        least_bytes = memob_min(least_bytes, f->bytes);
        if (f->bytes <= f->device_bytes)
            low = budget;
        else
            high = budget - 1;
    }
    return low;
}

/* Plans with at most this budget of kept bytes.  Returns whether the plan fits, or failed. */
MEMOI int memoi_hooks_solve(memoi_hooks_fitting* f, int64_t budget) {
    memoi_hooks_run_dry(f, budget, 1);
    f->least_bytes = memob_min(f->least_bytes, f->bytes);
    return f->hooks->status || f->bytes <= f->device_bytes;
}

MEMO_TRY memo_status
memo_hooks_fit(memo_hooks* h, memo_status (*step)(void* user, memo_arena* arena, memo_error* error),
               void* user, int64_t device_bytes, memo_plan** plan, memo_error* error) {
    memoi_hooks_fitting f = {h, step, user, device_bytes, 0, INT64_MAX, NULL, error};
    int64_t low, high = 0, least;
    int is_done = 0;
    if (!h || !step || !plan)
        return MEMOB_INVALID(error, "memo_hooks_fit: hooks, step or plan is NULL");
    *plan = NULL;
    if (device_bytes <= 0 || !h->desc.device)
        return MEMOB_INVALID(
            error,
            "memo_hooks_fit: device_bytes: %lld %s; pass a budget, and give the hooks a device",
            (long long)device_bytes, h->desc.device ? "on a device" : "without a device");

    /* The first run keeps all. */
    memoi_hooks_enter(h, error);
    memoi_hooks_drop_plan(h);
    memset(&h->stats.swap, 0, sizeof h->stats.swap);
    h->desc.device_bytes = device_bytes;
    h->is_dry = 1;
    memoi_hooks_run_dry(&f, 0, 0);
    for (int64_t i = 0; i < h->n_planned; i++) high += h->planned[i].size_bytes;
    low = memoi_hooks_bisect(&f, high, &least);

    /* A plan takes more than the live bytes: the bytes that it lacks are not kept.  At last all
     * move, or what took least. */
    for (int round = 2; round < MEMOI_HOOKS_ROUNDS && low > 0 && !is_done; round++) {
        is_done = memoi_hooks_solve(&f, low);
        low -= f.bytes - device_bytes;
    }
    if (!is_done && !memoi_hooks_solve(&f, 0)) (void)memoi_hooks_solve(&f, least);
    memoi_hooks_fits(h, "fit: device_bytes", device_bytes, f.least_bytes);
    memoi_hooks_fits(h, "desc.host_bytes", h->desc.host_bytes, h->stats.swap.host_bytes);

    h->is_dry = h->is_open = 0;
    memoi_hooks_create_engine(h);
    if (!h->status) {
        *plan = f.plan;
    } else {
        memo_plan_destroy(f.plan);
        memoi_hooks_drop_plan(h);
    }
    return h->status;
}
#endif

#endif /* MEMO_HOOKS_IMPLEMENTATION */
