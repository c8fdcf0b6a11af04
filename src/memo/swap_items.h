#pragma once
#include "memo/cursor.h"
#include "memo/swap_places.h"
/* ---- >>swap items -------------------------------------------------------------------------------
 * Knows: which rows of a step share bytes, on the device and on the host.  Knows nothing of how
 * offsets are found, of streams and of times.
 *
 * The law of a micro-batch, or of all that are in flight, for the engine and for the planner's
 * clock.  An item is what moves together of a step: rows of the tensors that use the rounding
 * buffers in the same steps (a class), LAYER rows, the surplus of LATE_ROWS, EDGE rows of a
 * slice of a place.  Items lie at numbers of slots instead of offsets, one byte each: all rows
 * that a slot holds at different times share bytes.
 *
 * 1. A class has a slot for even and one for odd steps; so have EDGE rows.  A slice of LAYER rows
 *    has a slot for even and one for odd layers.  The surplus has one slot, the scratch.
 * 2. The host keeps the INPUT of a step where it keeps the EDGE rows of the layer before, unless
 *    the step goes to the file, or is of the first layer of its place.
 * 3. Steps that share a window on the host share its slots, one for each class.
 * 4. An item's bytes move only if its rows are used.
 * 5. Uses come in the order of visits and fit into the list; each names an item, a visit and a slot
 *    that there are. */

typedef struct memob_swap_items {
    int32_t n_steps, n_of_batch; /* n_of_batch: slices of a micro-batch in a layer */
    int32_t n_classes;
    int32_t input; /* the class of the INPUT tensor; -1: none */
    int32_t n_items, n_uses, n_uses_most, n_visits;
    uint32_t* in_lists; /* (n_visits) */
    memob_item* items;
    memob_use* uses;
    int64_t* n_bytes;    /* (n_items): that move, of whole steps; 0: none, even if others use the
                           slot */
    int64_t* file_bytes; /* (n_items): of the item in the file */
    int32_t* n_copies;   /* (n_items): in which they move */
    char* uses_of;       /* (n_items): memoi_swap_use_kind; all that the law depends on */
    /* An engine's; NULL: not made. */
    memob_move* pieces;           /* of each item, one behind the other */
    int32_t* first_piece;         /* (n_items + 1) */
    int64_t *device_at, *host_at; /* of each slot: its begin; the host has one for each item */
    int64_t* file_at;             /* (n_classes, n_steps): of each item in the file */
    memob_arrays arrays;
} memob_swap_items;

/* The items: of each class all steps, then LAYER and late rows of all steps, then EDGE rows of
 * each slice of each place. */
typedef enum memob_swap_item_kind {
    MEMOB_SWAP_ITEM_CLASS = 0,
    MEMOB_SWAP_ITEM_LAYER,
    MEMOB_SWAP_ITEM_LATE,
    MEMOB_SWAP_ITEM_EDGE
} memob_swap_item_kind;

MEMOI memob_swap_item_kind memoi_swap_item_kind_of(const memob_swap_items* it, int32_t item) {
    const int32_t k = item / it->n_steps - it->n_classes;
    MEMO_ASSERT(item >= 0 && item < it->n_items);
    if (k < 0) return MEMOB_SWAP_ITEM_CLASS;
    if (k == 0) return MEMOB_SWAP_ITEM_LAYER;
    return k == 1 ? MEMOB_SWAP_ITEM_LATE : MEMOB_SWAP_ITEM_EDGE;
}

/* Tables of the law. */
enum { MEMOB_SWAP_FORWARD_ONLY, MEMOB_SWAP_BOTH };

/* How visits use an item; 0: not. */
enum {
    MEMOI_SWAP_USED = 1,
    MEMOI_SWAP_MOVED = 2,
    MEMOI_SWAP_SHARED = 4,
    MEMOI_SWAP_IN_FILE = 8 /* times 1 + window */
};

/* Slots of rows in rounding buffers, LAYER rows, the surplus and EDGE rows. */
MEMOI int32_t memoi_swap_device_slots(const memob_swap_items* it) {
    return 2 * it->n_classes + 2 * it->n_of_batch + 3;
}

MEMOI void memoi_swap_add_use(memob_swap_items* it, int32_t visit, int32_t item, int32_t how,
                              int64_t at, int64_t host) {
    const memob_use use = {visit, item, how, 0, at, host, 0};
    MEMO_ASSERT(it->n_uses < it->n_uses_most);                           /* 5 */
    MEMO_ASSERT(item >= 0 && item < it->n_items && it->uses_of[item]);   /* 5 */
    MEMO_ASSERT(at >= 0 && at < memoi_swap_device_slots(it));            /* 1, 5 */
    MEMO_ASSERT(!it->n_uses || it->uses[it->n_uses - 1].visit <= visit); /* 5 */
    it->uses[it->n_uses++] = use;
}

/* EDGE rows of a layer: slices, of all places if outputs wait for the backward. */
MEMOI int32_t memoi_swap_n_edges(const memob_swap_placement* p) {
    return (p->finds_outputs ? p->n_layers / p->n_forwards : 1) * p->n_slices;
}

/* Those of a step. */
MEMOI int32_t memoi_swap_edge_of(const memob_swap_placement* p, int32_t step) {
    return (p->finds_outputs ? step / p->n_forwards : 0) * p->n_slices + step % p->n_slices;
}

/* The EDGE rows of a visit. */
MEMOI void memoi_swap_use_edge(const memob_swap_placement* p, memob_swap_items* it, int32_t k,
                               int64_t at) {
    const memob_row_visit* visit = &p->visits[k];
    const int32_t i = visit->layer, next = i + p->n_slices; /* the slice in the next layer */
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    const int is_shared = !is_backward && !memoi_swap_is_last(p, i) && it->input >= 0 &&
                          it->uses_of[it->input * p->n_layers + next] & MEMOI_SWAP_SHARED;
    memoi_swap_add_use(it, k, (it->n_classes + 2) * p->n_layers + memoi_swap_edge_of(p, i),
                       memob_swap_is_edge_new(p, visit) ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE,
                       at + memoi_swap_is_odd_edge(p, i),
                       is_shared ? it->items[it->input * p->n_layers + next].host : -1);
}

/* The LAYER rows of a visit.  They come back before the last slice, which is the first of a
 * backward, and are free when the backward of their own slice is over; the waits are those of uses
 * by all slices.  With places another turn may bring back its rows behind a forward, which has read
 * those of all slices then. */
MEMOI void memoi_swap_use_layer(const memob_swap_placement* p, memob_swap_items* it, int32_t k,
                                int64_t at) {
    const memob_row_visit* visit = &p->visits[k];
    const int32_t i = visit->layer, n_slices = p->n_of_batch, slice = i % n_slices;
    const int32_t odd = memoi_swap_is_odd_layer(p, i);
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    const int is_of_all = slice == n_slices - 1 && (is_backward || p->n_forwards < p->n_layers);
    for (int32_t s = slice; s >= (is_of_all ? 0 : slice); s--) {
        const int32_t item = it->n_classes * p->n_layers + i - slice + s;
        int32_t how = it->uses_of[item] & MEMOI_SWAP_MOVED ? MEMOB_USE_READ : MEMOB_USE_MAKE;
        if (!is_backward) how = s == slice ? MEMOB_USE_WRITE : MEMOB_USE_READ;
        if (it->uses_of[item]) memoi_swap_add_use(it, k, item, how, at + odd * n_slices + s, -1);
    }
}

/* What a visit uses. */
MEMOI void memoi_swap_use_items(const memob_swap_placement* p, memob_swap_items* it, int32_t k) {
    const memob_row_visit* visit = &p->visits[k];
    const int32_t i = visit->layer, n = p->n_layers, routed = (it->n_classes + 1) * n;
    const int32_t read = visit->pass == MEMOB_BACKWARD ? MEMOB_USE_READ : MEMOB_USE_WRITE;
    const int32_t make = visit->pass == MEMOB_BACKWARD ? MEMOB_USE_MAKE : MEMOB_USE_WRITE;
    const int64_t layer_at = 2 * (int64_t)it->n_classes, routed_at = layer_at + 2 * p->n_of_batch;

    for (int32_t c = 0; c < it->n_classes; c++) {
        const char uses = it->uses_of[c * n + i];
        if (uses)
            memoi_swap_add_use(it, k, c * n + i, uses & MEMOI_SWAP_MOVED ? read : make,
                               2 * c + visit->odd, -1);
    }

    memoi_swap_use_layer(p, it, k, layer_at);
    if (it->uses_of[routed + i]) memoi_swap_add_use(it, k, routed + i, read, routed_at, -1);
    if (p->handed >= 0) memoi_swap_use_edge(p, it, k, routed_at + 1);
}

MEMOI void memob_swap_items_free(memob_swap_items* it) {
    memob_arrays_free(&it->arrays);
    memset(it, 0, sizeof *it);
}

MEMOI void memoi_swap_add_rows(const memo_swap_desc* desc, const memob_swap_placement* p, int32_t t,
                               memob_swap_items* it) {
    const int32_t n = p->n_layers, first = p->class_of[t] * n;
    const int is_packed = desc->tensors[t].kinds != 0;
    const int64_t* moves = p->moves + (int64_t)t * n;
    for (int32_t step = 0; step < n && p->class_of[t] >= 0; step++) {
        char* uses = &it->uses_of[first + step];
        if (moves[step] >= 0 || (is_packed && p->sums[step].pack_bytes)) *uses |= MEMOI_SWAP_USED;
        if (moves[step] <= 0) continue;
        *uses |= MEMOI_SWAP_MOVED;
        it->n_bytes[first + step] += moves[step];
        it->n_copies[first + step]++;
    }
}

/* Sums up the bytes of the items, and how they are used. */
MEMOI void memoi_swap_sum_items(const memo_swap_desc* desc, const memob_swap_placement* p,
                                memob_swap_items* it) {
    const int32_t n = p->n_layers;
    int is_routed = 0;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        is_routed |= memob_tensor_is_routed(desc, t) && memob_item_away(desc, t) == MEMO_MOVE;
        memoi_swap_add_rows(desc, p, t, it);
    }
    for (int32_t step = p->n_slices; step < n && it->input >= 0; step++)
        if (p->handed >= 0 && p->sums[step].input_bytes && p->sums[step].window < 0) /* 2 */
            it->uses_of[it->input * n + step] |= MEMOI_SWAP_SHARED;
    for (int32_t k = 0; k < it->n_classes * n; k++) {
        if (!it->uses_of[k] || p->sums[k % n].window < 0) continue;
        it->uses_of[k] |= (char)(MEMOI_SWAP_IN_FILE * (1 + p->sums[k % n].window));
        it->file_bytes[k] = memoi_swap_file_bytes(desc, p, k / n, k % n);
    }
    for (int32_t step = 0, k = it->n_classes * n; step < n; step++, k++) {
        const memob_swap_sum* sum = &p->sums[step];
        if (sum->uses_layer)
            it->uses_of[k] = MEMOI_SWAP_USED | (sum->layer_bytes ? MEMOI_SWAP_MOVED : 0);
        it->n_bytes[k] = sum->layer_bytes;
        it->n_copies[k] = sum->n_layer_copies;
        it->uses_of[k + n] = is_routed && sum->uses_routed > 0;
        it->n_bytes[k + n] = sum->routed_bytes;
        it->n_copies[k + n] = sum->n_routed_copies;
    }

    /* What moves is used; the surplus and EDGE rows may be used without. */
    for (int32_t k = 0; k < (it->n_classes + 1) * n; k++)
        MEMO_ASSERT(!it->n_bytes[k] || it->uses_of[k] & MEMOI_SWAP_MOVED); /* 4 */
    for (int32_t edge = 0, k = (it->n_classes + 2) * n; edge < memoi_swap_n_edges(p); edge++, k++) {
        it->uses_of[k] = p->handed >= 0;
        it->n_bytes[k] =
            memob_swap_step_rows(p, edge, memob_swap_layer_rows(desc)) * p->handed_row_bytes;
        it->n_copies[k] = 1;
    }
}

/* it: all zero, or made before, whose memory is used again.  The law's visits, items and uses are
 * made by memob_swap_items_law.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_items_make(const memo_swap_desc* desc, memob_swap_placement* p,
                                        memob_swap_items* it, memo_error* error) {
    memob_arrays arrays = it->arrays;
    memoi_arrays_rewind(&arrays);
    memset(it, 0, sizeof *it);
    it->arrays = arrays;
    it->n_steps = p->n_layers;
    it->n_of_batch = p->n_of_batch;
    it->n_visits = p->n_visits;
    memoi_swap_find_classes(desc, p);
    it->n_classes = p->n_classes;
    it->input = p->input < 0 ? -1 : p->class_of[p->input];
    it->n_items = (it->n_classes + 2) * it->n_steps + memoi_swap_n_edges(p);
    it->n_bytes = MEMOB_ARRAY(&it->arrays, int64_t, it->n_items);
    it->file_bytes = MEMOB_ARRAY(&it->arrays, int64_t, it->n_items);
    it->n_copies = MEMOB_ARRAY(&it->arrays, int32_t, it->n_items);
    it->uses_of = MEMOB_ARRAY(&it->arrays, char, it->n_items);
    if (it->arrays.failed) {
        memob_swap_items_free(it);
        return memob_no_memory(error, "the items of a step");
    }
    memoi_swap_sum_items(desc, p, it);
    return MEMO_STATUS_OK;
}

/* Slots of the host for classes.  A clock needs few: a load waits for its store by the slot of the
 * device that both use, unless steps share a window, or the store is that of EDGE rows. */
MEMOI int32_t memoi_swap_class_hosts(const memob_swap_placement* p, const memob_swap_items* it,
                                     int is_clock) {
    if (!is_clock || p->n_windows) return it->n_classes * p->n_layers;
    return it->input < 0 ? 0 : p->n_layers;
}

/* Fills in items, visits and uses for the law.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_swap_list_uses(const memob_swap_placement* p, memob_swap_items* it,
                                       int is_clock, memo_error* error) {
    const int32_t n = p->n_layers, n_rows = it->n_classes * n;
    const int32_t n_hosts = memoi_swap_class_hosts(p, it, is_clock);
    int32_t first[MEMOI_SWAP_WINDOWS]; /* step in each window */
    it->in_lists = MEMOB_ARRAY_OF_ANY(&it->arrays, uint32_t, p->n_visits);
    it->items = MEMOB_ARRAY_OF_ANY(&it->arrays, memob_item, it->n_items);
    /* Each visit uses at most one item of each class, of LAYER and EDGE rows and of the surplus;
     * once in a layer a visit uses LAYER rows of all slices. */
    it->n_uses_most = p->n_visits * (it->n_classes + 4);
    it->uses = MEMOB_ARRAY_OF_ANY(&it->arrays, memob_use, it->n_uses_most);
    if (it->arrays.failed) return memob_no_memory(error, "the uses of a step");
    for (int32_t step = n - 1; step >= 0; step--)
        if (p->sums[step].window >= 0) first[p->sums[step].window] = step;
    for (int32_t c = 0, k = 0; c < it->n_classes; c++)
        for (int32_t step = 0; step < n; step++, k++) {
            const int32_t copy_of = c == it->input && p->handed >= 0
                                        ? n_rows + 2 * n + memoi_swap_edge_of(p, step)
                                        : -1;
            MEMO_ASSERT(copy_of < 0 || /* 2 */
                        memoi_swap_item_kind_of(it, copy_of) == MEMOB_SWAP_ITEM_EDGE);
            const int32_t window = p->sums[step].window;
            memob_item item = {
                it->uses_of[k] != 0, 1, 0, copy_of, window < 0 ? k : c * n + first[window],
                window < 0 ? -1 : k};
            if (n_hosts < n_rows) {
                item.n_host = c == it->input;
                item.host = item.n_host * step;
            }
            it->items[k] = item;
        }
    for (int32_t k = n_rows; k < it->n_items; k++) {
        const memob_item item = {it->uses_of[k] != 0, 1, 0, -1, k - n_rows + n_hosts, -1};
        it->items[k] = item;
    }

    /* A forward alone has the first forwards. */
    for (int32_t k = 0; k < p->n_visits; k++) {
        it->in_lists[k] = 1u << MEMOB_SWAP_BOTH | (uint32_t)(k < p->n_forwards)
                                                      << MEMOB_SWAP_FORWARD_ONLY;
        memoi_swap_use_items(p, it, k);
    }
    return MEMO_STATUS_OK;
}

/* The law of the items.  Its tables: forwards alone, then forwards and backwards.  work: the second
 * alone, without events; see memob_law_desc.  Errors: as memob_law_make. */
MEMOI memo_status memob_swap_items_law(memob_swap_items* it, const memob_swap_placement* p,
                                       memob_arrays* work, memob_law* law, memo_error* error) {
    static const int32_t lists[] = {MEMOB_SWAP_FORWARD_ONLY, MEMOB_SWAP_BOTH};
    memob_law_desc desc;
    memo_status status = memoi_swap_list_uses(p, it, work != NULL, error);
    if (status) return status;
    memset(&desc, 0, sizeof desc);
    desc.in_lists = it->in_lists;
    desc.n_visits = it->n_visits;
    desc.items = it->items;
    desc.n_items = it->n_items;
    desc.uses = it->uses;
    desc.n_uses = it->n_uses;
    desc.lists = lists + (work != NULL);
    desc.n_lists = 2 - (work != NULL);
    desc.work = work;
    desc.n_slots[0] = memoi_swap_device_slots(it);
    desc.n_slots[1] =
        it->n_items - it->n_classes * it->n_steps + memoi_swap_class_hosts(p, it, work != NULL);
    desc.n_slots[2] = p->n_windows ? it->n_classes * it->n_steps : 0;
    return memob_law_make(&desc, law, error);
}

/* --- pieces --- */

/* The tensor's rows move with items of the kind. */
MEMOI int memoi_swap_is_of(memob_swap_item_kind kind, int is_of_class,
                           const memob_swap_place* place) {
    switch (kind) {
    case MEMOB_SWAP_ITEM_CLASS: return is_of_class;
    case MEMOB_SWAP_ITEM_LAYER: return place->is_layer;
    case MEMOB_SWAP_ITEM_LATE: return place->is_routed;
    case MEMOB_SWAP_ITEM_EDGE: break;
    }
    return 0;
}

/* Writes the pieces of an item behind those of the items before.  LATE_ROWS have pieces when their
 * step has been routed. */
MEMOI void memoi_swap_items_cut(const memob_swap_placement* p, memob_swap_items* it, int32_t item) {
    const memob_swap_item_kind kind = memoi_swap_item_kind_of(it, item);
    const int32_t step = item % it->n_steps, slice = step % p->n_of_batch;
    const int64_t slice_row = slice * p->slice_rows;
    int64_t in_window = 0;
    memob_move* piece = &it->pieces[it->first_piece[item]];
    if (kind == MEMOB_SWAP_ITEM_EDGE) {
        const memob_move rows = {0, 0, p->slice_rows * p->handed_row_bytes, slice_row,
                                 p->handed_row_bytes};
        *piece++ = rows;
    }

    for (int32_t t = 0; t < p->n_tensors && kind != MEMOB_SWAP_ITEM_EDGE; t++) {
        const memob_swap_place* place = memob_swap_place_of(p, step, t);
        const int64_t row_bytes = place->row_bytes;
        const int64_t n_bytes = (place->moved_end - place->moved_begin) * row_bytes;
        memob_move rows = {place->offset + place->moved_begin * row_bytes, place->host_offset,
                           n_bytes, place->moved_begin, row_bytes};
        if (!memoi_swap_is_of(kind, p->class_of[t] == item / it->n_steps, place)) continue;
        if (kind == MEMOB_SWAP_ITEM_CLASS) rows.first_row += slice_row;
        if (t == p->input) rows.host = 0; /* 2 */
        if (kind == MEMOB_SWAP_ITEM_CLASS && p->sums[step].window >= 0) rows.host = in_window;
        if (kind == MEMOB_SWAP_ITEM_LATE) rows.row_bytes = 0; /* the surplus */
        in_window += memob_align_up(n_bytes, MEMOB_DEVICE_ALIGNMENT);
        *piece++ = rows;
    }

    it->first_piece[item + 1] = (int32_t)(piece - it->pieces);
    MEMO_ASSERT(kind != MEMOB_SWAP_ITEM_CLASS || p->sums[step].window < 0 || /* 3 */
                in_window <= it->file_bytes[item]);
}

/* Where slots begin, and the pieces of all items.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_swap_find_pieces(const memo_swap_desc* desc, const memob_swap_placement* p,
                                         memob_swap_items* it, memo_error* error) {
    const int32_t n = it->n_steps, n_slots = memoi_swap_device_slots(it);
    const int32_t n_edges = memoi_swap_n_edges(p);
    int64_t in_window = 0, in_file = 0;
    it->pieces = MEMOB_ARRAY(&it->arrays, memob_move, (int64_t)n * p->n_tensors + n_edges);
    it->first_piece = MEMOB_ARRAY(&it->arrays, int32_t, it->n_items + 1);
    it->device_at = MEMOB_ARRAY(&it->arrays, int64_t, n_slots);
    it->host_at = MEMOB_ARRAY(&it->arrays, int64_t, it->n_items);
    it->file_at = MEMOB_ARRAY(&it->arrays, int64_t, (int64_t)it->n_classes * n);
    if (it->arrays.failed) return memob_no_memory(error, "the pieces of a step");

    for (int32_t k = 0, c = 0; c < it->n_classes; c++) {
        int64_t most_bytes = 0;
        for (int32_t step = 0; step < n; step++, k++) {
            it->host_at[k] = p->sums[step].host_begin;
            if (p->sums[step].window < 0) continue;
            it->host_at[k] += in_window;
            it->file_at[k] = in_file;
            in_file += it->file_bytes[k];
            most_bytes = memob_max(most_bytes, it->file_bytes[k]);
        }
        in_window += most_bytes;
    }
    MEMO_ASSERT(in_window <= p->window_bytes && in_file == p->sizes.spill_bytes); /* 3 */
    for (int32_t step = 0; step < n && it->input >= 0; step++)
        if (p->sums[step].window < 0)
            it->host_at[it->input * n + step] +=
                memob_swap_place_of(p, step, p->input)->host_offset;
    if (p->handed >= 0) {
        const int64_t even_at = memob_swap_place_of(p, 0, p->handed)->offset;
        it->device_at[n_slots - 2] = even_at;
        it->device_at[n_slots - 1] =
            even_at + memob_align_up(p->slice_rows * p->handed_row_bytes, MEMOB_DEVICE_ALIGNMENT);
    }
    for (int32_t edge = 0; edge < n_edges; edge++)
        it->host_at[(it->n_classes + 2) * n + edge] =
            p->handed_begin + (edge / p->n_of_batch * memob_swap_layer_rows(desc) +
                               edge % p->n_of_batch * p->slice_rows) *
                                  p->handed_row_bytes;
    for (int32_t k = 0; k < it->n_items; k++) memoi_swap_items_cut(p, it, k);
    return MEMO_STATUS_OK;
}

/* --- for a step --- */

/* The rows of a step, for a clock. */
MEMOI memob_moves memob_swap_moves(const memob_swap_items* it) {
    memob_moves moves = MEMO_ZERO(memob_moves);
    moves.n_bytes = it->n_bytes;
    moves.file_bytes = it->file_bytes;
    moves.n_copies = it->n_copies;
    return moves;
}

/* The step of rows without states: one round, and beside it forwards alone.  Errors:
 * OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_make_step(const memo_swap_desc* desc, const memob_swap_placement* p,
                                       memob_sink* sink, memob_step* step, memo_error* error) {
    const int32_t n_places = p->n_layers / p->n_forwards, n_layers = p->n_layers / p->n_slices;
    const memob_list_desc list_desc = {
        desc->order, desc->n_order, n_places, n_layers, p->n_slices, 1, MEMO_UPDATE_PASS, 0, 0};
    memob_step_desc step_desc;
    memob_list list;
    memo_status status = memoi_list_make(&list_desc, &list, error);
    memset(&step_desc, 0, sizeof step_desc);
    step_desc.list = &list;
    step_desc.sink = sink;
    if (!status) status = memoi_step_make(&step_desc, step, error);
    MEMO_ASSERT(status || step->list.end[MEMOB_ONLY] == p->n_visits);
    memoi_list_free(&list);
    return status;
}

/* Visits of a round; of forwards alone. */
MEMOI int32_t memoi_swap_n_visits(const memob_swap_placement* p, int is_forward_only) {
    return is_forward_only ? p->n_forwards : p->n_visits;
}

/* The visit of a layer that begins or ends next, of those before `end`; NULL: none may.  At most
 * n_open_most are open, of one pass; the older one ends first. */
MEMOI const memob_row_visit* memob_swap_due(const memob_swap_placement* p, const memob_step* step,
                                            int is_end, int32_t end, int32_t n_open_most) {
    const memob_row_visit *older = &p->visits[step->n_ended], *next = &p->visits[step->n_begun];
    const int32_t n_open = step->n_begun - step->n_ended;
    if (is_end) return n_open > 0 ? older : NULL;
    return n_open < n_open_most && step->n_begun < end && next->pass == older->pass ? next : NULL;
}

/* The step has so many late rows: pieces of its surplus follow. */
MEMOI void memoi_swap_route_items(memob_swap_placement* p, int32_t step, int64_t n_rows,
                                  int is_forward_only) {
    memob_swap_items* it = p->items;
    memoi_swap_route(p, step, n_rows, is_forward_only);
    if (it) memoi_swap_items_cut(p, it, (it->n_classes + 1) * it->n_steps + step);
}

/* The forward of a step begins: it has no late rows yet. */
MEMOI void memob_swap_route_none(memob_swap_placement* p, int32_t step, int is_forward_only) {
    if (!p->routed_rows_layer) return;
    if (step == 0) p->n_routed = 0;
    memoi_swap_route_items(p, step, 0, is_forward_only);
}

/* The step whose forward is open has so many late rows.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memob_swap_set_routed(memob_swap_placement* p, int32_t step, int64_t n_rows,
                                        int is_forward_only, memo_error* error) {
    const memob_bounds bounds[] = {{"n_rows", n_rows, 0, p->routed_rows_layer},
                                   {"n_rows so far", p->n_routed + n_rows, 0, p->routed_rows_all}};
    const memo_status status = MEMOB_CHECK_FIELDS("memo_session_set_routed", bounds, error);
    if (status) return status;
    p->n_routed += n_rows;
    memoi_swap_route_items(p, step, n_rows, is_forward_only);
    return MEMO_STATUS_OK;
}

/* --- placements --- */

/* Every offset and size that follows from desc.  host_bytes 0: with desc->n_host_layers places;
 * otherwise with the number that memob_swap_find_places finds.  One place remains even if it does
 * not fit: compare sizes.host_bytes.  Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_swap_placement_make(const memo_swap_desc* desc, int64_t host_bytes,
                                            memob_swap_placement* placement, memo_error* error) {
    memo_status status = memob_swap_check_desc(desc, error);
    memob_arrays* a;
    memset(placement, 0, sizeof *placement);
    placement->n_layers = desc->n_layers;
    placement->n_tensors = desc->n_tensors;
    placement->n_slices = (int32_t)memob_max(desc->n_slices, 1);
    placement->n_of_batch = (int32_t)memob_max(memob_swap_batch_slices(desc), 1);
    placement->has_loss = desc->has_loss || placement->n_slices > placement->n_of_batch;
    placement->finds_outputs = memoi_swap_finds_outputs(desc);
    placement->slice_rows = desc->n_rows;
    placement->tile_rows = memob_max(desc->tile_rows, 1);
    placement->routed_rows_layer = desc->routed_rows_layer;
    placement->routed_rows_all = desc->routed_rows_all;
    if (!status) status = memoi_swap_check_bytes(desc, error);
    for (int32_t layer = 0; layer < desc->n_layers && !status; layer++)
        for (int32_t t = 0; t < desc->n_tensors && !status; t++)
            status = memoi_swap_check_cell(desc, layer, t, error);
    if (status) return status;

    a = &placement->arrays;
    placement->places = MEMOB_ARRAY(a, memob_swap_place, (int64_t)desc->n_layers * desc->n_tensors);
    placement->visits = MEMOB_ARRAY(a, memob_row_visit, memoi_swap_count_visits(desc));
    placement->sums = MEMOB_ARRAY(a, memob_swap_sum, desc->n_layers);
    placement->lost = MEMOB_ARRAY(a, char, (int64_t)desc->n_layers*(desc->n_tensors + 1));
    placement->tiles = MEMOB_ARRAY(a, int64_t, desc->n_layers);
    placement->class_of = MEMOB_ARRAY(a, int32_t, desc->n_tensors);
    placement->moves = MEMOB_ARRAY(a, int64_t, (int64_t)desc->n_layers * desc->n_tensors);
    if (a->failed) {
        memob_swap_placement_free(placement);
        return memob_no_memory(error, "the table of skeletal tensors");
    }
    memoi_swap_list_visits(desc, placement);
    for (int64_t k = 0; k < (int64_t)desc->n_layers * desc->n_tensors; k++)
        placement->moves[k] = -1;

    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        int64_t layer_bytes = 0;
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            memob_swap_place* place = &placement->places[(int64_t)layer * desc->n_tensors + t];
            place->recompute_begin = place->recompute_end = desc->n_rows; /* nothing, yet */
            if (memob_layer_has(desc, layer, t)) place->row_bytes = desc->tensors[t].row_bytes;
            layer_bytes += memob_tensor_rows(desc, t) * place->row_bytes;
        }
        placement->sizes.layer_bytes = memob_max(placement->sizes.layer_bytes, layer_bytes);
    }
    if (!desc->rows)
        placement->sizes.alpha =
            (double)memob_swap_rows_of_tiles(desc, 0, memoi_swap_tiles_of_alpha(desc)) /
            (double)desc->n_rows;
    memoi_swap_place_rows(desc, placement);
    memoi_swap_place_on_host(desc, host_bytes, placement);
    return MEMO_STATUS_OK;
}

/* Also writes to desc how many places host_bytes have room for; 0: no limit. */
MEMOI memo_status memob_swap_placement_fit(memo_swap_desc* desc, int64_t host_bytes,
                                           memob_swap_placement* placement, memo_error* error) {
    memo_status status;
    desc->n_host_layers = 0;
    status = memob_swap_placement_make(desc, host_bytes, placement, error);
    if (!status && placement->n_windows) desc->n_host_layers = placement->n_host_layers;
    return status;
}

memo_status memo_swap_desc_get_sizes(const memo_swap_desc* desc, memo_swap_sizes* sizes,
                                     memo_error* error) {
    memob_swap_placement placement;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sizes", sizes);
    status = memob_swap_placement_make(desc, 0, &placement, error);
    if (!status) *sizes = placement.sizes;
    memob_swap_placement_free(&placement);
    return status;
}
