#pragma once
#include "memo/states_places.h"
/* ---- >>states items -----------------------------------------------------------------------------
 * Knows: which states a visit uses, and which bytes these states share.  Knows nothing of the order
 * of visits, and of streams.
 *
 * FIRST is also used beside layer 1, and LAST, which computes its forward in the visit of its
 * backward, beside the backward of the layer before it.  Item l * n_states + s is state s of layer
 * l.
 *
 * 1. No two layers that one visit uses have the same place; what they share has one address. */

/* The states of a layer that a pass uses on the device, wherever they lie.  is_alone: of a forward
 * of no backward. */
MEMOI uint32_t memoi_states_used(const memob_states* states, int32_t pass, int32_t layer,
                                 int is_alone) {
    uint32_t used = states->used_by[pass];
    if (is_alone && pass == MEMOB_FORWARD) used |= states->alone;
    if (pass == MEMOB_BACKWARD && layer == states->n_layers - 1) /* with its forward */
        used |= states->used_by[MEMOB_FORWARD];
    if (pass == MEMOB_UPDATE) used &= ~states->layers[layer].lent;
    if (pass == MEMOB_UPDATE && states->updates) return 0;
    return used & states->layers[layer].has;
}

/* The same of a visit that is open, in this step. */
MEMOI uint32_t memob_states_used(const memob_states* states, int32_t pass, int32_t layer) {
    const int is_alone = states->is_running && states->is_forward_only;
    return memoi_states_used(states, pass, layer, is_alone) & states->masks[layer];
}

/* 1: this step updates the layer: it uses a gradient of it, or the layer never has one. */
MEMOI int memoi_states_is_updated(const memob_states* states, int32_t layer) {
    const uint32_t gradients = states->layers[layer].has & states->gradients;
    return !gradients || gradients & states->masks[layer];
}

/* The bytes of items on the device (tier 0) or the host (1) as slots, each of which is of the same
 * items.  Sets begin and end of each item, and on the device those of SHARED states in each layer;
 * begins: NULL, or where each slot begins.  borders: (n_items, 2), scratch.  Returns how many slots
 * there are. */
MEMOI int32_t memoi_states_find_slots(const memob_states* states, int32_t tier,
                                      memob_keyed* borders, int32_t* slots, int64_t* begins) {
    const int32_t n_items = states->n_layers * states->n_states;
    int64_t n = 0;
    int32_t slot = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const memob_state_bytes* of = &states->bytes[i];
        const memob_states_layer* layer = &states->layers[i / states->n_states];
        const uint32_t moves = layer->streamed & ~(states->hosted | (tier ? layer->lent : 0));
        if (!(moves >> i % states->n_states & 1)) continue; /* it has no slots */
        borders[n++] = memob_keyed_of(of->at[tier], 2 * (int64_t)i);
        borders[n++] = memob_keyed_of(of->at[tier] + of->n_bytes, 2 * (int64_t)i + 1);
    }

    /* Equal addresses are one border. */
    memob_keyed_sort(borders, n);
    for (int64_t k = 0; k < n; k++) {
        MEMO_ASSERT(!k || borders[k - 1].key <= borders[k].key);
        slot += k && borders[k - 1].key < borders[k].key;
        slots[borders[k].index] = slot;
        if (begins) begins[slot] = borders[k].key;
    }
    return n ? slot + 1 : 0;
}

/* What copies of items move: each is one piece.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_find_moves(memob_states* states, memo_error* error) {
    const int32_t n_items = states->n_layers * states->n_states;
    memob_arrays* arrays = &states->sink.engine.arrays;
    memob_move* pieces = MEMOB_ARRAY(arrays, memob_move, n_items);
    int32_t* first_piece = MEMOB_ARRAY(arrays, int32_t, n_items + 1);
    int64_t* n_bytes = MEMOB_ARRAY(arrays, int64_t, n_items);
    int64_t* file_bytes = MEMOB_ARRAY(arrays, int64_t, n_items);
    int64_t* file_at = MEMOB_ARRAY(arrays, int64_t, n_items);
    const memob_states_sizes* sizes = &states->sizes;
    const memob_moves moves = {n_bytes,
                               file_bytes,
                               NULL,
                               &states->sink.engine.memory,
                               {sizes->device_bytes, sizes->host_bytes, sizes->spill_bytes},
                               pieces,
                               first_piece,
                               states->slot_at,
                               NULL,
                               file_at,
                               0,
                               states->there.leaves,
                               &states->snapshot};
    if (arrays->failed) return memob_no_memory(error, "the bytes of states");

    states->moves = moves;
    for (int32_t i = 0; i < n_items; i++) {
        const memob_state_bytes* of = &states->bytes[i];
        const memob_move piece = {0, of->at[1], of->n_bytes, 0, 0};
        pieces[i] = piece;
        first_piece[i + 1] = i + 1;
        n_bytes[i] = of->n_bytes;
        file_bytes[i] = memob_align_up(of->n_bytes, MEMOB_SPILL_ALIGNMENT);
        file_at[i] = of->at[2];
    }
    return MEMO_STATUS_OK;
}

/* Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_states_make_items(memob_states* states, memo_error* error) {
    const int32_t n_items = states->n_layers * states->n_states;
    memob_arrays* arrays = &states->sink.engine.arrays;
    memob_keyed* borders = MEMOB_ARRAY(arrays, memob_keyed, 2 * (int64_t)n_items);
    int32_t* on_device = MEMOB_ARRAY(arrays, int32_t, 2 * (int64_t)n_items);
    int32_t* on_host = MEMOB_ARRAY(arrays, int32_t, 2 * (int64_t)n_items);
    states->items = MEMOB_ARRAY(arrays, memob_item, n_items);
    states->ends = MEMOB_ARRAY(arrays, char, n_items);
    states->slot_at = MEMOB_ARRAY(arrays, int64_t, 2 * (int64_t)n_items + 1);
    if (arrays->failed) return memob_no_memory(error, "the items of states");
    states->n_slots[0] = memoi_states_find_slots(states, 0, borders, on_device, states->slot_at);
    states->n_slots[1] = memoi_states_find_slots(states, 1, borders, on_host, NULL);
    for (int32_t i = 0; i < n_items; i++) {
        const memob_states_layer* layer = &states->layers[i / states->n_states];
        const uint32_t bit = 1u << i % states->n_states;
        const int is_spilled = (layer->spilled & bit) != 0;
        const memob_spot spot = {on_device[2 * i], on_device[2 * i + 1] - on_device[2 * i]};
        const memob_item item = {layer->lent & bit ? 0 : spot.n_slots,
                                 on_host[2 * i + 1] - on_host[2 * i],
                                 1,
                                 -1,
                                 on_host[2 * i],
                                 is_spilled ? states->n_slots[2] : -1};
        MEMO_ASSERT(item.n_slots >= 0 && item.n_host >= 0);
        states->items[i] = item;
        states->bytes[i].spot = spot;
        states->ends[i] = (char)(states->gradients >> i % states->n_states & 1);
        if (is_spilled) states->n_slots[2] += item.n_host;
    }

    /* What lies on the device: nothing so far. */
    states->there.lies = MEMOB_ARRAY(arrays, uint8_t, n_items);
    states->there.in_slot = MEMOB_ARRAY(arrays, int32_t, states->n_slots[0]);
    states->there.spots = MEMOB_ARRAY(arrays, memob_spot, states->n_states);
    states->there.pending = MEMOB_ARRAY(arrays, char, states->n_layers);
    states->there.leaves = MEMOB_ARRAY(arrays, uint8_t, n_items);
    if (arrays->failed) return memob_no_memory(error, "the items of states");
    return memoi_states_find_moves(states, error);
}

/* --- uses of a list's visits --- */

/* Appends how a visit uses the states of a layer, behind its uses from `first` on.  Layers that are
 * open at once use a SHARED state at one address, so it is one use, of the visit's own layer. */
MEMOI void memoi_states_use(const memob_states* states, const memob_list* list, int32_t k,
                            int32_t layer, int begins, int32_t first, memob_use* uses,
                            int32_t* n_uses) {
    const memob_visit* visit = &list->visits[k];
    const int32_t pass = visit->pass;
    const int is_alone = k >= list->begin[MEMOB_EVALUATION] && k < list->end[MEMOB_EVALUATION];
    uint32_t used =
        visit->on_host ? states->used_by[pass] : memoi_states_used(states, pass, layer, is_alone);
    used &= states->layers[layer].streamed & ~states->hosted;
    for (; used; used &= used - 1) {
        const int32_t s = __builtin_ctz(used);
        const memob_spot spot = memoi_states_bytes(states, layer, s)->spot;
        const int32_t item = memob_states_home(states, layer, s) * states->n_states + s;
        const int is_gradient = (int)(states->gradients >> s & 1);
        const int is_new = begins && !(states->layers[layer].begun >> s & 1);
        memob_use use = {
            k, item, MEMOB_USE_READ, visit->on_host, spot.at, MEMOB_HOST_DEFAULT, spot.n_slots};
        int32_t same = states->shared_items[s] == item ? first : *n_uses;

        while (same < *n_uses && uses[same].item != item) same++;
        if (same < *n_uses) {
            MEMO_ASSERT(uses[same].at == use.at); /* 1 */
            continue;
        }
        if (is_gradient && pass == MEMOB_BACKWARD)
            use.how = is_new ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE;
        else if (pass == MEMOB_UPDATE && states->made >> s & 1)
            use.how = MEMOB_USE_REWRITE;
        else if (pass == MEMOB_UPDATE && states->updated >> s & 1)
            use.how = MEMOB_USE_CHANGE;
        uses[(*n_uses)++] = use;
    }
}

/* The layers whose states a visit uses: its own; beside layer 1 FIRST, and beside the backward of
 * the layer before it LAST.  Returns how many. */
MEMOI int32_t memob_states_beside(const memob_visit* visit, int32_t n_layers, int32_t layers[3]) {
    int32_t n = 0;
    layers[n++] = visit->layer;
    if (visit->layer == 1 && visit->pass != MEMOB_UPDATE) layers[n++] = 0;
    if (visit->layer == n_layers - 2 && visit->pass == MEMOB_BACKWARD) layers[n++] = n_layers - 1;
    return n;
}

/* How all visits of a list use states.  The first and the last slice of a layer stand for all.
 * uses: room for 2 n_states of each visit. */
MEMOI void memoi_states_list_uses(const memob_states* states, const memob_list* list,
                                  memob_use* uses, int32_t* n_uses) {
    *n_uses = 0;
    for (int32_t k = 0; k < list->n_visits; k++) {
        const memob_visit* visit = &list->visits[k];
        int32_t layers[3];
        const int32_t n = memob_states_beside(visit, states->n_layers, layers), first = *n_uses;
        if (visit->row >= 0 && visit->slice && visit->slice < list->desc.n_slices - 1) continue;
        for (int32_t i = 0; i < n; i++) /* LAST has begun in a visit of its own */
            memoi_states_use(states, list, k, layers[i], visit->begins && layers[i] <= visit->layer,
                             first, uses, n_uses);
    }
}

/* Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_make_step(memob_states* states, int32_t n_slices, int32_t n_rounds,
                                         memob_step* step, memo_error* error) {
    const memob_list_desc list_desc = {states->n_turns ? states->turns : NULL,
                                       states->n_turns,
                                       states->n_chunks,
                                       states->n_layers - 2,
                                       n_slices,
                                       n_rounds,
                                       states->update_at,
                                       states->updates != NULL,
                                       1};
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_step_desc desc;
    memob_list list;
    memo_status status = memoi_list_make(&list_desc, &list, error);
    memob_use* uses =
        MEMOB_ARRAY(&arrays, memob_use, 2 * (int64_t)states->n_states * list.n_visits);
    memset(&desc, 0, sizeof desc);
    if (!status && !uses) status = memob_no_memory(error, "the uses of states");

    if (!status) {
        memoi_states_list_uses(states, &list, uses, &desc.n_uses);
        desc.list = &list;
        desc.items = states->items;
        desc.bytes = states->bytes;
        desc.ends = states->ends;
        if (states->shared) desc.shared = states->shared_items;
        desc.moves = states->moves;
        desc.n_items = states->n_layers * states->n_states;
        desc.n_of_layer = states->n_states;
        memcpy(desc.n_slots, states->n_slots, sizeof desc.n_slots);
        desc.uses = uses;
        desc.sink = &states->sink;
        desc.there = &states->there;
        status = memoi_step_make(&desc, step, error);
    }
    memoi_list_free(&list);
    memob_arrays_free(&arrays);
    return status;
}

/* The step of micro-batches with n_slices of a layer, n_rounds of them between two updates.  It is
 * made when it is asked for first.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_states_get_step(memob_states* states, int32_t n_slices, int32_t n_rounds,
                                        memob_step** result, memo_error* error) {
    memob_step* step = states->steps;
    memo_status status;
    for (; step; step = step->next)
        if (step->list.desc.n_slices == n_slices && step->list.desc.n_rounds == n_rounds) break;
    *result = step;
    if (step) return MEMO_STATUS_OK;
    step = (memob_step*)memob_calloc(1, sizeof *step);
    if (!step) return memob_no_memory(error, "the step of states");
    status = memoi_states_make_step(states, n_slices, n_rounds, step, error);
    if (status) {
        memob_step_free(step);
        MEMO_FREE(step);
        return status;
    }
    step->next = states->steps;
    states->steps = *result = step;
    return MEMO_STATUS_OK;
}
