#pragma once
#include "memo/law.h"
#include "memo/swap_places.h"
/* ---- >>swap items -------------------------------------------------------------------------------
 * Knows: which rows of a step share bytes, on the device and on the host.  Knows nothing of
 * offsets, streams and times.
 *
 * The law of a micro-batch, or of all that are in flight, for the engine and for the planner's
 * clock.  An item is what moves together of a step: rows of the tensors that use the rounding
 * buffers in the same steps (a class), LAYER rows, the surplus of ROUTED tensors, HANDED rows of a
 * slice.  Items lie at numbers of slots instead of offsets, one byte each: all rows that a slot
 * holds at different times share bytes.
 *
 * 1. A class has a slot for even and one for odd steps; so have HANDED rows.  A slice of LAYER rows
 *    has a slot for even and one for odd layers.  The surplus has one slot, the scratch.
 * 2. The host keeps the INPUT of a step where it keeps the HANDED rows of the layer before, unless
 *    layers share places there.
 * 3. With places, the rows of a step are a parcel, of one slot on the host. */

typedef struct memob_swap_items {
    int32_t n_steps, n_slices;
    int32_t n_classes;
    int32_t* class_of; /* (n_tensors): -1: it has no rows in rounding buffers */
    int32_t input;     /* the class of the INPUT tensor; -1: none */
    int32_t n_items, n_uses, n_visits;
    memob_visit* visits;
    memob_item* items;
    memob_use* uses;
    char* moves;   /* (n_classes, n_steps): 0: none of the rows move, even if others use the slot */
    int64_t n_own; /* slots of the host for rows; behind them: LAYER, ROUTED, HANDED */
    memob_arrays arrays;
} memob_swap_items;

/* The items: of each class all steps, then LAYER and ROUTED rows of all steps, then HANDED rows of
 * each slice. */
typedef enum memob_swap_item_kind {
    MEMOB_SWAP_ITEM_CLASS = 0,
    MEMOB_SWAP_ITEM_LAYER,
    MEMOB_SWAP_ITEM_ROUTED,
    MEMOB_SWAP_ITEM_HANDED
} memob_swap_item_kind;

MEMOI memob_swap_item_kind memob_swap_item_kind_of(const memob_swap_items* it, int32_t item) {
    const int32_t k = item / it->n_steps - it->n_classes;
    return k < 0 ? MEMOB_SWAP_ITEM_CLASS : (memob_swap_item_kind)memob_min(k + 1, 3);
}

/* Tables of the law. */
enum { MEMOB_SWAP_FORWARD_ONLY, MEMOB_SWAP_BOTH };

/* A step of the placement has the tensor's rows in a rounding buffer. */
MEMOI int memoi_swap_has_slot(const memob_swap_placement* p, int32_t t, int32_t step) {
    return p->moves[(int64_t)t * p->n_layers + step] >= 0;
}

/* Tensors with rows in the same steps are a class; all packed ones are, since a pack moves as a
 * whole.  INPUT is a class of its own. */
MEMOI void memoi_swap_find_classes(const memo_swap_desc* desc, const memob_swap_placement* p,
                                   memob_swap_items* it) {
    it->input = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const int is_packed = memob_tensor_kinds(desc, t) != 0;
        int32_t step = 0, same = -1;
        it->class_of[t] = -1;
        while (step < p->n_layers && !memoi_swap_has_slot(p, t, step)) step++;
        if (step == p->n_layers) continue;
        for (int32_t u = 0; u < t && same < 0 && t != p->input; u++) {
            if (it->class_of[u] < 0 || u == p->input) continue;
            if (is_packed != (memob_tensor_kinds(desc, u) != 0)) continue;
            for (step = 0; step < p->n_layers && !is_packed; step++)
                if (memoi_swap_has_slot(p, t, step) != memoi_swap_has_slot(p, u, step)) break;
            if (is_packed || step == p->n_layers) same = u;
        }
        it->class_of[t] = same < 0 ? it->n_classes++ : it->class_of[same];
        if (t == p->input) it->input = it->class_of[t];
    }
}

MEMOI void memoi_swap_add_use(memob_swap_items* it, int32_t visit, int32_t item, int32_t how,
                              int64_t at, int64_t host) {
    const memob_use use = {visit, item, how, 0, at, host};
    if (it->uses) it->uses[it->n_uses] = use;
    it->n_uses++;
}

/* What a visit uses.  LAYER rows come back before the last slice, which is the first of a backward,
 * and are free when the backward of their own slice is over; the waits are those of uses by all
 * slices. */
MEMOI void memoi_swap_use_items(const memo_swap_desc* desc, const memob_swap_placement* p,
                                memob_swap_items* it, int32_t k) {
    const memob_swap_visit* visit = &p->visits[k];
    const int32_t i = visit->step, n = p->n_layers, n_slices = p->n_slices, slice = i % n_slices;
    const int32_t read = visit->is_backward ? MEMOB_USE_READ : MEMOB_USE_WRITE;
    const int32_t make = visit->is_backward ? MEMOB_USE_MAKE : MEMOB_USE_WRITE;
    const int32_t layers = it->n_classes * n, routed = layers + n, handed = routed + n;
    const int64_t layer_at = 2 * (int64_t)it->n_classes, routed_at = layer_at + 2 * n_slices;
    for (int32_t c = 0; c < it->n_classes; c++)
        if (it->items[c * n + i].n_bytes)
            memoi_swap_add_use(it, k, c * n + i, it->moves[c * n + i] ? read : make,
                               2 * c + visit->odd, -1);
    for (int32_t s = slice; s >= 0; s--)
        if (p->sums[i - slice + s].uses_layer &&
            (s == slice || (visit->is_backward && slice == n_slices - 1)))
            memoi_swap_add_use(it, k, layers + i - slice + s, read,
                               layer_at + (i / n_slices & 1) * n_slices + s, -1);
    if (it->items[routed + i].n_bytes) memoi_swap_add_use(it, k, routed + i, read, routed_at, -1);
    if (p->handed >= 0) {
        const int is_shared =
            !visit->is_backward && i + n_slices < n && memob_swap_shares_input(p, i + n_slices);
        memoi_swap_add_use(it, k, handed + slice,
                           i < n_slices && !visit->is_backward ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE,
                           routed_at + 1 + visit->odd,
                           is_shared ? it->items[it->input * n + i + n_slices].host : -1);
    }
    (void)desc;
}

MEMOI void memob_swap_items_free(memob_swap_items* it) {
    memob_arrays_free(&it->arrays);
    memset(it, 0, sizeof *it);
}

/* Fills in the items; 0 bytes: the step has none. */
MEMOI void memoi_swap_fill_items(const memo_swap_desc* desc, const memob_swap_placement* p,
                                 memob_swap_items* it) {
    const int32_t n = p->n_layers, has_places = p->sizes.n_spilled_layers > 0;
    int is_routed = 0;
    for (int32_t t = 0; t < desc->n_tensors; t++)
        is_routed |= memob_tensor_rule(desc->tensors, t) == MEMO_TENSOR_ROUTED;
    it->n_own = has_places ? p->n_host_layers : (int64_t)it->n_classes * n;
    for (int32_t k = 0; k < it->n_items; k++) {
        const memob_swap_item_kind kind = memob_swap_item_kind_of(it, k);
        const int32_t step = k % n, of_class = k / n;
        const memob_item item = {0, 0, 0, -1, -1, it->n_own + k - it->n_classes * n, -1};
        memob_item* made = &it->items[k];
        *made = item;
        if (kind == MEMOB_SWAP_ITEM_LAYER) made->n_bytes = p->sums[step].uses_layer > 0;
        if (kind == MEMOB_SWAP_ITEM_ROUTED)
            made->n_bytes = is_routed && p->sums[step].uses_routed > 0;
        if (kind == MEMOB_SWAP_ITEM_HANDED) made->n_bytes = p->handed >= 0;
        if (kind != MEMOB_SWAP_ITEM_CLASS) continue;
        made->parcel = has_places ? step : -1;
        made->host = has_places ? 0 : k;
        if (of_class == it->input && p->handed >= 0)
            made->copy_of = (it->n_classes + 2) * n + step % p->n_slices;
    }
    for (int32_t t = 0; t < desc->n_tensors; t++)
        for (int32_t step = 0; step < n && it->class_of[t] >= 0; step++)
            if (memoi_swap_has_slot(p, t, step) ||
                (memob_tensor_kinds(desc, t) && p->sums[step].pack_bytes))
                it->items[it->class_of[t] * n + step].n_bytes = 1;
    for (int32_t t = 0; t < desc->n_tensors; t++)
        for (int32_t step = 0; step < n && it->class_of[t] >= 0; step++)
            it->moves[it->class_of[t] * n + step] |= (char)(p->moves[(int64_t)t * n + step] > 0);
}

/* Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_items_make(const memo_swap_desc* desc, const memob_swap_placement* p,
                                        memob_swap_items* it, memo_error* error) {
    const int32_t n = p->n_layers;
    memset(it, 0, sizeof *it);
    it->n_steps = n;
    it->n_slices = p->n_slices;
    it->n_visits = p->n_visits;
    it->class_of = MEMOB_ARRAY(&it->arrays, int32_t, desc->n_tensors);
    it->visits = MEMOB_ARRAY(&it->arrays, memob_visit, p->n_visits);
    if (!it->arrays.failed) {
        memoi_swap_find_classes(desc, p, it);
        it->n_items = (it->n_classes + 2) * n + p->n_slices;
        it->items = MEMOB_ARRAY(&it->arrays, memob_item, it->n_items);
        it->moves = MEMOB_ARRAY(&it->arrays, char, it->n_classes* n);
    }
    if (it->arrays.failed) {
        memob_swap_items_free(it);
        return memob_no_memory(error, "the items of a step");
    }
    memoi_swap_fill_items(desc, p, it);

    /* A forward alone has the first forwards.  Count uses, then fill them in. */
    for (int32_t k = 0; k < p->n_visits; k++) {
        const memob_visit visit = {p->visits[k].is_backward ? MEMOB_BACKWARD : MEMOB_FORWARD,
                                   p->visits[k].step, 0, k >= p->n_forwards, 0};
        it->visits[k] = visit;
    }
    for (int pass = 0; pass < 2 && !it->arrays.failed; pass++) {
        const int32_t n_uses = it->n_uses;
        it->n_uses = 0;
        if (pass) it->uses = MEMOB_ARRAY(&it->arrays, memob_use, n_uses);
        for (int32_t k = 0; k < p->n_visits && !it->arrays.failed; k++)
            memoi_swap_use_items(desc, p, it, k);
    }
    if (!it->arrays.failed) return MEMO_STATUS_OK;
    memob_swap_items_free(it);
    return memob_no_memory(error, "the uses of a step");
}

/* The law of the items.  Its tables: forwards alone, unless only_both; then forwards and backwards.
 * Errors: as memob_law_make. */
MEMOI memo_status memob_swap_items_law(const memob_swap_items* it, const memob_swap_placement* p,
                                       int only_both, memob_law* law, memo_error* error) {
    static const int32_t lists[] = {MEMOB_LIST_EVALUATION, MEMOB_LIST_EVERY};
    memob_law_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.visits = it->visits;
    desc.n_visits = it->n_visits;
    desc.items = it->items;
    desc.n_items = it->n_items;
    desc.uses = it->uses;
    desc.n_uses = it->n_uses;
    desc.lists = lists + only_both;
    desc.n_lists = 2 - only_both;
    desc.has_no_events = only_both;
    desc.n_slots[0] = 2 * it->n_classes + 2 * it->n_slices + 3;
    desc.n_slots[1] = (int32_t)it->n_own + it->n_items - it->n_classes * it->n_steps;
    desc.n_slots[2] = it->n_steps;
    if (p->sizes.n_spilled_layers) {
        desc.n_parcels = it->n_steps;
        desc.n_places = p->n_host_layers;
        desc.place_bytes = 1;
    }
    return memob_law_make(&desc, law, error);
}
