#pragma once
#include "memo/law_ops.h"
#include "memo/states_places.h"
/* ---- >>states items -----------------------------------------------------------------------------
 * Knows: the lists of a step, which states their visits use, and which bytes these states share.
 * Knows nothing of streams.
 *
 * Visits of a list, with FIRST as layer 0 and LAST as the last one:
 *
 *   forward    up.  FIRST stays in use while layer 1 computes.  With deferred updates, each layer's
 *              update comes right before its forward.
 *   backward   down.  LAST, which also computes its forward there, stays in use while the layer
 *              before it computes; FIRST is in use from the visit of layer 1 on.  Fused updates of
 *              a layer come when nobody uses the layer any more.
 *   update     up.
 *   turns      those of an order: forwards of a chunk, or its backwards, with FIRST in turns of the
 *              first chunk, and LAST in backwards of the last.  Deferred updates come before a
 *              layer's first visit, fused ones behind its last.
 *
 * 1. The first backward of a step writes gradients, the others change them; updates spend them.
 * 2. No two layers that one visit uses have the same place.
 * 3. Which list comes next is known when a list begins, but for a mistake; see >>states.
 * 4. The pieces of an item follow each other, and there are fewer than borders of items. */

/* A list as a bit, and with its later one of a step. */
#define MEMOI_STATES_BIT(list)  (1u << MEMOB_STATES_##list)
#define MEMOI_STATES_BITS(list) (MEMOI_STATES_BIT(list) | MEMOI_STATES_BIT(MORE_##list))

/* Which lists may come behind which, as bits, by the moment of the update.  With turns a list has
 * all of an order.  Evaluations are forwards behind forwards. */
typedef struct memoi_states_next {
    uint32_t lists, at; /* at: memo_update_at, as bits */
    uint32_t next[2];   /* without turns, and with them */
} memoi_states_next;
static const memoi_states_next memoi_states_nexts[] = {
    {MEMOI_STATES_BIT(FORWARD),
     ~0u,
     {MEMOI_STATES_BIT(FORWARD) | MEMOI_STATES_BITS(BACKWARD), MEMOI_STATES_BIT(FORWARD)}},
    {MEMOI_STATES_BIT(FORWARD), 1u << MEMO_UPDATE_FUSED, {MEMOI_STATES_BITS(FUSED), 0}},
    {MEMOI_STATES_BIT(UPDATE_FORWARD),
     1u << MEMO_UPDATE_DEFERRED,
     {MEMOI_STATES_BIT(BACKWARD),
      MEMOI_STATES_BIT(MORE_BACKWARD) | MEMOI_STATES_BIT(UPDATE_FORWARD)}},
    {MEMOI_STATES_BITS(BACKWARD),
     ~0u,
     {MEMOI_STATES_BIT(FORWARD), MEMOI_STATES_BIT(MORE_BACKWARD)}},
    {MEMOI_STATES_BITS(BACKWARD),
     1u << MEMO_UPDATE_PASS,
     {MEMOI_STATES_BIT(UPDATE), MEMOI_STATES_BIT(UPDATE)}},
    {MEMOI_STATES_BITS(BACKWARD),
     1u << MEMO_UPDATE_DEFERRED,
     {MEMOI_STATES_BIT(UPDATE_FORWARD), MEMOI_STATES_BIT(UPDATE_FORWARD)}},
    {MEMOI_STATES_BITS(FUSED),
     1u << MEMO_UPDATE_FUSED,
     {MEMOI_STATES_BIT(FORWARD), MEMOI_STATES_BIT(FUSED)}},
    {MEMOI_STATES_BIT(UPDATE), ~0u, {MEMOI_STATES_BIT(FORWARD), MEMOI_STATES_BIT(BACKWARD)}}};

MEMOI uint32_t memoi_states_follow(const memob_states* states, int32_t list) {
    uint32_t next = 0;
    for (size_t k = 0; k < sizeof memoi_states_nexts / sizeof *memoi_states_nexts; k++) {
        const memoi_states_next* n = &memoi_states_nexts[k];
        if (n->lists >> list & n->at >> states->update_at & 1) next |= n->next[states->n_turns > 0];
    }
    return next;
}

MEMOI int memob_states_is_fused(int32_t list) {
    return list == MEMOB_STATES_FUSED || list == MEMOB_STATES_MORE_FUSED;
}

/* The streamed states of a layer that a pass uses on the device. */
MEMOI uint32_t memob_states_needs(const memob_states* states, int32_t pass, int32_t layer) {
    uint32_t needs = states->used_by[pass];
    if (pass == MEMOB_BACKWARD && layer == states->n_layers - 1) /* with its forward */
        needs |= states->used_by[MEMOB_FORWARD];
    if (pass == MEMOB_UPDATE && states->updates) return 0;
    return needs & states->layers[layer].streamed & ~states->hosted;
}

/* How the latest visit uses a layer's states.  begins: gradients of the layer begin there. */
MEMOI void memoi_states_add_uses(memob_states* states, int32_t pass, int32_t layer, int begins) {
    memob_states_items* it = &states->items;
    const int on_host = it->on_host[it->n_visits - 1];
    uint32_t used = on_host
                        ? states->used_by[pass] & states->layers[layer].streamed & ~states->hosted
                        : memob_states_needs(states, pass, layer);
    for (; used; used &= used - 1) {
        const int32_t s = __builtin_ctz(used);
        const int is_gradient = (int)(states->gradients >> s & 1);
        memob_use use = {
            it->n_visits - 1,  layer * states->n_states + s, MEMOB_USE_READ, on_host, 0,
            MEMOB_HOST_DEFAULT};
        if (pass == MEMOB_BACKWARD && is_gradient)
            use.how = begins ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE;
        if (pass == MEMOB_UPDATE && is_gradient)
            use.how = MEMOB_USE_SPEND;
        else if (pass == MEMOB_UPDATE && states->made >> s & 1)
            use.how = MEMOB_USE_WRITE;
        else if (pass == MEMOB_UPDATE && states->updated >> s & 1)
            use.how = MEMOB_USE_CHANGE;
        MEMO_ASSERT(!is_gradient || use.how != MEMOB_USE_READ); /* 1 */
        it->uses[it->n_uses++] = use;
    }
}

/* A visit, with its layer's uses if it is in a list. */
MEMOI void memoi_states_add_visit(memob_states* states, int32_t pass, int32_t layer, int begins,
                                  uint32_t in_lists) {
    memob_states_items* it = &states->items;
    const memob_visit visit = {pass, layer, 0, 0, 0};
    it->on_host[it->n_visits] = pass == MEMOB_UPDATE && states->updates;
    it->in_lists[it->n_visits] = in_lists;
    it->visits[it->n_visits++] = visit;
    if (in_lists) memoi_states_add_uses(states, pass, layer, begins);
}

/* The lists of visits of a pass, as bits: of backwards that begin gradients, of all others, and of
 * the updates before a layer's visit and behind it. */
typedef struct memoi_states_bits {
    uint32_t first, more, deferred, fused;
} memoi_states_bits;

/* Forwards of layers [from, end). */
MEMOI void memoi_states_list_forwards(memob_states* states, int32_t from, int32_t end,
                                      const memoi_states_bits* in) {
    for (int32_t l = from; l < end; l++) {
        if (in->deferred) memoi_states_add_visit(states, MEMOB_UPDATE, l, 0, in->deferred);
        memoi_states_add_visit(states, MEMOB_FORWARD, l, 0, in->more);
        if (l == 1) memoi_states_add_uses(states, MEMOB_FORWARD, 0, 0);
    }
}

/* Backwards of layers [end, from), downwards. */
MEMOI void memoi_states_list_backwards(memob_states* states, int32_t from, int32_t end,
                                       const memoi_states_bits* in) {
    const uint32_t lists[] = {in->first, in->more};
    const int32_t last = states->n_layers - 1;
    for (int32_t l = from - 1; l >= end; l--) {
        if (l == last && in->deferred)
            memoi_states_add_visit(states, MEMOB_UPDATE, l, 0, in->deferred);
        for (int more = 0; more < 2; more++) {
            if (!lists[more]) continue;
            memoi_states_add_visit(states, MEMOB_BACKWARD, l, !more && l, lists[more]);
            if (l == last - 1) memoi_states_add_uses(states, MEMOB_BACKWARD, last, 0);
            if (l == 1) memoi_states_add_uses(states, MEMOB_BACKWARD, 0, !more);
        }
        if (!in->fused || l == last) continue;
        if (l == last - 1) memoi_states_add_visit(states, MEMOB_UPDATE, last, 0, in->fused);
        memoi_states_add_visit(states, MEMOB_UPDATE, l, 0, in->fused);
    }
}

/* Is no turn in [k, end) the same? */
MEMOI int memoi_states_is_only(const memob_states* states, int32_t turn, int32_t k, int32_t end) {
    while (k < end && states->turns[k] != turn) k++;
    return k == end;
}

/* All turns of an order. */
MEMOI void memoi_states_list_turns(memob_states* states) {
    const uint32_t deferred = MEMOI_STATES_BIT(UPDATE_FORWARD);
    const uint32_t first = MEMOI_STATES_BIT(BACKWARD) | MEMOI_STATES_BIT(FUSED) | deferred;
    const uint32_t fused = MEMOI_STATES_BITS(FUSED);
    const uint32_t more = MEMOI_STATES_BIT(MORE_BACKWARD) | MEMOI_STATES_BIT(MORE_FUSED);
    const int32_t each = (states->n_layers - 2) / states->n_chunks;
    for (int32_t k = 0; k < states->n_turns; k++) {
        const int32_t turn = states->turns[k], chunk = memob_turn_of(turn);
        const int32_t begin = chunk ? 1 + chunk * each : 0, end = 1 + (chunk + 1) * each;
        const int is_first = memoi_states_is_only(states, turn, 0, k);
        const int is_last = memoi_states_is_only(states, turn, k + 1, states->n_turns);
        memoi_states_bits in = {0, first | more, 0, 0};
        if (is_first && states->update_at == MEMO_UPDATE_DEFERRED) in.deferred = deferred;
        if (turn >= 0) {
            memoi_states_list_forwards(states, begin, end, &in);
            continue;
        }
        if (is_first) in.first = first, in.more = more;
        if (is_last && states->update_at == MEMO_UPDATE_FUSED) in.fused = fused;
        memoi_states_list_backwards(states, end + (chunk == states->n_chunks - 1), begin, &in);
    }
}

/* A micro-batch, forward and backward. */
MEMOI void memoi_states_list_batch(memob_states* states) {
    const uint32_t deferred = MEMOI_STATES_BIT(UPDATE_FORWARD);
    const int is_fused = states->update_at == MEMO_UPDATE_FUSED;
    const memoi_states_bits forward = {0, MEMOI_STATES_BIT(FORWARD) | deferred,
                                       states->update_at == MEMO_UPDATE_DEFERRED ? deferred : 0, 0};
    const memoi_states_bits backward = {MEMOI_STATES_BIT(BACKWARD) | MEMOI_STATES_BIT(FUSED),
                                        MEMOI_STATES_BIT(MORE_BACKWARD) |
                                            MEMOI_STATES_BIT(MORE_FUSED),
                                        0, is_fused ? MEMOI_STATES_BITS(FUSED) : 0};
    memoi_states_list_forwards(states, 0, states->n_layers, &forward);
    memoi_states_list_backwards(states, states->n_layers, 0, &backward);
}

/* Two lists in a row tell what the first does: what it lacks at its begin, which a list of nothing
 * before it brings, and what it prepares for the second. */
MEMOI void memoi_states_pair_lists(memob_states* states) {
    memob_states_items* it = &states->items;
    for (int32_t list = 0; list < MEMOB_STATES_N_LISTS; list++)
        for (int32_t next = 0; next < MEMOB_STATES_N_LISTS; next++) {
            if (!(memoi_states_follow(states, list) >> next & 1)) continue;
            it->lists[it->n_lists++] = MEMOB_STATES_NOTHING;
            it->lists[it->n_lists++] = list;
            it->lists[it->n_lists++] = next + MEMOB_LIST_AHEAD;
            it->table_of[list][next] = it->n_lists / 3;
        }
}

/* Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_make_items(memob_states* states, memo_error* error) {
    static const memoi_states_bits alone = {0, MEMOI_STATES_BIT(FORWARD), 0, 0};
    memob_states_items* it = &states->items;
    const int64_t n = states->n_layers, n_items = n * states->n_states;
    /* A turn visits each layer of its chunk at most three times, updates included, and uses FIRST
     * and LAST beside their neighbors. */
    const int64_t n_of_turns = states->n_turns * (3 * ((n - 2) / states->n_chunks + 2) + 1);
    const int64_t n_visits = 6 * n + 1 + n_of_turns;
    const int64_t n_uses = (n_visits + 5 + 4 * states->n_turns) * states->n_states;
    it->visits = MEMOB_ARRAY(&it->arrays, memob_visit, n_visits);
    it->in_lists = MEMOB_ARRAY(&it->arrays, uint32_t, n_visits);
    it->on_host = MEMOB_ARRAY(&it->arrays, char, n_visits);
    it->items = MEMOB_ARRAY(&it->arrays, memob_item, n_items);
    it->uses = MEMOB_ARRAY(&it->arrays, memob_use, n_uses);
    if (it->arrays.failed) return memob_no_memory(error, "the items of states");
    memoi_states_add_visit(states, MEMOB_FORWARD, 0, 0, 0); /* see memob_law_desc */
    if (states->n_turns) {
        memoi_states_list_forwards(states, 0, states->n_layers, &alone);
        memoi_states_list_turns(states);
    } else
        memoi_states_list_batch(states);
    for (int32_t l = 0; l < states->n_layers; l++)
        memoi_states_add_visit(states, MEMOB_UPDATE, l, 0, MEMOI_STATES_BIT(UPDATE));
    memoi_states_pair_lists(states);
    MEMO_ASSERT(it->n_visits <= n_visits && it->n_uses <= n_uses);
    return MEMO_STATUS_OK;
}

/* The law of all pairs of lists.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_make_law(memob_states* states, memo_error* error) {
    const memob_states_items* it = &states->items;
    memob_law_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.n_visits = it->n_visits;
    desc.items = it->items;
    desc.n_items = states->n_layers * states->n_states;
    desc.uses = it->uses;
    desc.n_uses = it->n_uses;
    memcpy(desc.n_slots, it->n_slots, sizeof desc.n_slots);
    desc.lists = it->lists;
    desc.in_lists = it->in_lists;
    desc.is_any_order = 1;
    desc.n_lists = it->n_lists;
    desc.on_host = it->on_host;
    return memob_law_make(&desc, &states->sink.law, error);
}

/* The bytes of items on the device (tier 0) or the host (1) as slots, each of which is of the same
 * items.  Sets begin and end of each item.  borders: (n_items, 2), scratch.  Returns how many slots
 * there are. */
MEMOI int32_t memoi_states_find_slots(const memob_states* states, int32_t tier,
                                      memob_keyed* borders, int32_t* slots) {
    const int32_t n_items = states->n_layers * states->n_states;
    int64_t n = 0;
    int32_t slot = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const memob_state_bytes* of = &states->bytes[i];
        const uint32_t moves = states->layers[i / states->n_states].streamed & ~states->hosted;
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
    }
    return n ? slot + 1 : 0;
}

/* The law's items and their slots.  Items that share no piece stay where they are, but for what the
 * host uses.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_states_find_pieces(memob_states* states, memo_error* error) {
    memob_states_items* it = &states->items;
    const int32_t n_items = states->n_layers * states->n_states;
    const uint32_t used_on_host = states->updates ? states->used_by[MEMOB_UPDATE] : 0;
    memob_keyed* borders = MEMOB_ARRAY(&it->arrays, memob_keyed, 2 * (int64_t)n_items);
    int32_t* on_device = MEMOB_ARRAY(&it->arrays, int32_t, 2 * (int64_t)n_items);
    int32_t* on_host = MEMOB_ARRAY(&it->arrays, int32_t, 2 * (int64_t)n_items);
    states->owners = MEMOB_ARRAY(&it->arrays, int32_t, 2 * (int64_t)n_items);
    if (it->arrays.failed) return memob_no_memory(error, "the pieces of states");
    it->n_slots[0] = memoi_states_find_slots(states, 0, borders, on_device);
    it->n_slots[1] = memoi_states_find_slots(states, 1, borders, on_host);

    /* Until they are known, owners counts the items of each piece. */
    for (int32_t i = 0; i < n_items; i++) {
        states->bytes[i].first_piece = on_device[2 * i];
        states->bytes[i].end_piece = on_device[2 * i + 1];
        MEMO_ASSERT(on_device[2 * i] <= on_device[2 * i + 1] && /* 4 */
                    on_device[2 * i + 1] < 2 * n_items);
        for (int32_t p = on_device[2 * i]; p < on_device[2 * i + 1]; p++) states->owners[p]++;
    }
    for (int32_t i = 0; i < n_items; i++) {
        const int is_spilled = states->bytes[i].at[MEMO_TIER_FILE] >= 0;
        const memob_item item = {on_device[2 * i + 1] - on_device[2 * i],
                                 on_host[2 * i + 1] - on_host[2 * i],
                                 1,
                                 -1,
                                 on_host[2 * i],
                                 is_spilled ? it->n_slots[2] : -1};
        int is_alone = !(used_on_host >> i % states->n_states & 1);
        for (int32_t p = on_device[2 * i]; p < on_device[2 * i + 1]; p++)
            is_alone &= states->owners[p] == 1;
        it->items[i] = item;
        it->items[i].lives_on += is_alone;
        if (is_spilled) it->n_slots[2] += item.n_host;
    }
    for (int32_t p = 0; p < 2 * n_items; p++) states->owners[p] = -1;
    for (int32_t u = 0; u < it->n_uses; u++) it->uses[u].at = on_device[2 * it->uses[u].item];
    return MEMO_STATUS_OK;
}

/* --- uses of a list's visits --- */

/* Appends how a visit uses the states of a layer. */
MEMOI void memoi_states_use(const memob_states* states, const memob_list* list, int32_t k,
                            int32_t layer, int begins, memob_use* uses, int32_t* n_uses) {
    const memob_visit* visit = &list->visits[k];
    const int32_t pass = visit->pass;
    uint32_t used = visit->on_host
                        ? states->used_by[pass] & states->layers[layer].streamed & ~states->hosted
                        : memob_states_needs(states, pass, layer);
    for (; used; used &= used - 1) {
        const int32_t s = __builtin_ctz(used), item = layer * states->n_states + s;
        const int is_gradient = (int)(states->gradients >> s & 1);
        memob_use use = {k, item, MEMOB_USE_READ, visit->on_host, 0, MEMOB_HOST_DEFAULT};
        use.at = states->bytes[item].first_piece;
        if (is_gradient && pass == MEMOB_BACKWARD)
            use.how = begins ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE;
        else if (pass == MEMOB_UPDATE && states->made >> s & 1)
            use.how = MEMOB_USE_REWRITE;
        else if (pass == MEMOB_UPDATE && states->updated >> s & 1)
            use.how = MEMOB_USE_CHANGE;
        uses[(*n_uses)++] = use;
    }
}

/* How all visits of a list use states.  FIRST is used beside layer 1, and LAST beside the last
 * layer's backward.  uses: room for 2 n_states of each visit. */
MEMOI void memoi_states_list_uses(const memob_states* states, const memob_list* list,
                                  memob_use* uses, int32_t* n_uses) {
    const int32_t n = list->desc.n_layers;
    *n_uses = 0;
    for (int32_t k = 0; k < list->n_visits; k++) {
        const memob_visit* visit = &list->visits[k];
        const int is_backward = visit->pass == MEMOB_BACKWARD;
        memoi_states_use(states, list, k, visit->layer, visit->begins, uses, n_uses);
        if (visit->pass == MEMOB_UPDATE) continue;
        if (visit->layer == 1) memoi_states_use(states, list, k, 0, visit->begins, uses, n_uses);
        if (visit->layer == n && is_backward)
            memoi_states_use(states, list, k, n + 1, 0, uses, n_uses);
    }
}
