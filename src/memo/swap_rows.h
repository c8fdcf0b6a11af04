#pragma once
#include "memo/list.h"
/* ---- >>swap rows --------------------------------------------------------------------------------
 * Knows: tensors, tiles, which rows each layer swaps and recomputes.  Knows nothing of
 * addresses. */

#define MEMOB_KINDS_MAX 32

/* The computation of one pass of one step. */
typedef struct memob_row_visit {
    int32_t pass, layer; /* layer: a step */
    int32_t odd;         /* the rounding buffer of the step */
    int32_t forward;     /* of a backward: the visit that is its forward */
    int32_t ends;        /* of a turn whose backward begins with the loss */
} memob_row_visit;

/* One tensor of one layer; the ranges of moved and recomputed rows may be empty. */
typedef struct memob_swap_place {
    int64_t row_bytes;
    int64_t offset; /* of row 0, in device memory; in a sum: from the border of its part */
    int64_t moved_begin, moved_end;
    int64_t recompute_begin, recompute_end;
    int64_t host_offset; /* of the moved rows, in the layer's part of host memory; is_layer: in all
                            of it */
    int32_t is_layer;    /* rows count from the layer's, not the slice's, row 0 */
    /* LATE_ROWS: the moved rows are the surplus; host_offset is in all of host memory. */
    int32_t is_routed, is_recomputed, is_followed; /* 1: by another step with the tensor */
    int64_t n_routed, stack_begin, stack_end;
} memob_swap_place;

/* What the tensors of a layer amount to, without offsets. */
typedef struct memob_swap_sum {
    int32_t uses_layer;    /* tensors with LAYER rows, in the region of even or odd layers */
    int32_t uses_routed;   /* tensors with LATE_ROWS */
    int32_t routed_before; /* the step before that has LATE_ROWS; -1: none, or this has none */
    int32_t returns;       /* the pack's rows leave, and come back */
    int32_t n_layer_copies, n_routed_copies;
    int64_t moved_bytes;          /* but for LAYER tensors; 0: not moved */
    int64_t host_bytes;           /* of its part of host memory */
    int64_t host_begin;           /* of that part, or of the layer's window */
    int32_t window;               /* of a layer in the file; -1: it stays on the host */
    int64_t file_bytes;           /* that it takes there, or would take */
    int64_t layer_bytes;          /* moved of LAYER tensors */
    int64_t routed_bytes;         /* moved of the surplus, if all steps have as many rows */
    int64_t input_bytes;          /* of moved_bytes: of the INPUT tensor of a slice */
    int32_t is_pack_overwritten;  /* by a later layer */
    double recompute_s, packed_s; /* of tensors that all kinds have; of packed ones */
    /* Bytes of the packed tensors, which only some kinds have: all rows; rows that lie beyond the
     * swapped rows (even layers high, odd layers low).  cut_: the tensor, split into swapped and
     * recomputed rows, that recomputes most. */
    int64_t pack_bytes, free_bytes, cut_bytes, cut_free_bytes;
    /* If the pack moves, as all of it does; host_bytes begins with those of rows. */
    int64_t pack_moved_bytes, pack_host_bytes;
} memob_swap_sum;

/* What becomes of a tensor's rows between forward and backward of a step: they are overwritten;
 * swapped rows leave, and come back. */
enum { MEMOI_SWAP_OVERWRITTEN = 1, MEMOI_SWAP_RETURNS = 2 };

typedef struct memob_swap_placement {
    memo_swap_sizes sizes;
    int32_t n_layers, n_tensors;
    memob_swap_place* places;     /* (n_layers, n_tensors) */
    memob_row_visit* visits;      /* (n_visits) */
    int32_t n_visits, n_forwards; /* n_forwards: of a place, before its backwards */
    memob_swap_sum* sums;         /* (n_layers) */
    int64_t* moves; /* (n_tensors, n_layers): bytes that move of the tensor in a rounding buffer; 0:
                       it stays there; -1: it has none there */
    char* lost; /* (n_tensors + 1, n_layers): of rows in rounding buffers: MEMOI_SWAP_OVERWRITTEN,
                       _RETURNS; the last: of the tensor that is added, or of the packs */
    int64_t* tiles;        /* (n_layers): of the tensor that is placed, or of the packs */
    int32_t n_host_layers; /* places for layers in host memory, with the windows of others */
    int32_t n_windows;     /* of n_host_layers; 0: no layer goes to the file */
    int64_t window_bytes;  /* of each */
    int32_t n_classes;     /* see memoi_swap_find_classes */
    int32_t* class_of;     /* (n_tensors): -1: it has no rows in rounding buffers */
    int32_t n_slices;      /* of a layer, */
    int32_t n_of_batch;    /* and of a micro-batch in a layer */
    int32_t has_loss;      /* in visits of the last layer; 0: between forwards and backwards */
    int32_t finds_outputs; /* the last layer's backward finds its EDGE rows of the forward */
    int64_t slice_rows, tile_rows;
    int64_t routed_rows_layer, routed_rows_all, n_routed; /* n_routed: of this micro-batch so far */
    struct memob_swap_items* items; /* an engine's, with the surplus of late rows; NULL: none */
    int32_t handed, input;    /* the tensors EDGE, if it moves, and INPUT of slices; -1: none */
    int64_t handed_row_bytes; /* 0: none */
    int64_t fixed_host_bytes; /* at the begin of host memory: LAYER and EDGE rows */
    int64_t handed_begin;     /* of the EDGE rows of a layer, in host memory */
    memob_arrays arrays;      /* all of these */
} memob_swap_placement;

MEMOI const char* memoi_swap_desc_name(const memo_swap_desc* desc) {
    return desc->desc_name ? desc->desc_name : "memo_swap_desc";
}
#define MEMOI_INVALID(desc, format, ...)                                                           \
    MEMOB_INVALID(error, "%s." format, memoi_swap_desc_name(desc), __VA_ARGS__)

/* --- the table of rows --- */

/* The item whose recomputation makes item t: the last before it that is not WITH, or t itself. */
MEMOI int32_t memob_item_leader(const memo_item* items, int32_t t) {
    while (t > 0 && items[t].away == MEMO_WITH) t--;
    return t;
}

/* 1: recomputation makes the rows, or some of them. */
MEMOI int memob_is_recomputed(int32_t away) { return away == MEMO_ROWS || away == MEMO_WHOLE; }

/* Steps of a micro-batch in flight. */
MEMOI int32_t memob_swap_place_steps(const memo_swap_desc* desc) {
    return (int32_t)(desc->n_layers / memob_max(desc->n_places, 1));
}

/* Slices of a micro-batch in a layer. */
MEMOI int32_t memob_swap_batch_slices(const memo_swap_desc* desc) {
    return (int32_t)(memob_max(desc->n_slices, 1) / memob_max(desc->n_group, 1));
}

/* 1: the step uses the odd rounding buffer.  The last step of a place and that of the next place
 * use both, because a forward of one comes before a backward of the other. */
MEMOI int32_t memoi_swap_is_odd(const memo_swap_desc* desc, int32_t step) {
    const int32_t n = memob_swap_place_steps(desc);
    return (step / n + step % n) & 1;
}

/* 1: the last layer's backward finds its EDGE rows of the forward.  In an order the loss alone
 * reads them; without one the trainer writes the gradient that it has received. */
MEMOI int memoi_swap_finds_outputs(const memo_swap_desc* desc) {
    return !desc->order || desc->has_loss;
}

/* 1: slices or places overwrite EDGE rows that come back. */
MEMOI int memoi_swap_hands(const memo_swap_desc* desc) {
    return desc->n_slices > 1 || (desc->n_places > 1 && memoi_swap_finds_outputs(desc));
}

/* Steps that may be open at a time. */
MEMOI int32_t memob_swap_open_most(const memo_swap_desc* desc) {
    return desc->n_slices > 1 || desc->routed_rows_layer || desc->order ? 1 : 2;
}

/* 0 without layer_kinds. */
MEMOI int32_t memob_layer_kind(const memo_swap_desc* desc, int32_t layer) {
    return desc->layer_kinds ? desc->layer_kinds[layer] : 0;
}

/* Rows of all slices of a micro-batch in a layer. */
MEMOI int64_t memob_swap_layer_rows(const memo_swap_desc* desc) {
    return desc->layer_rows ? desc->layer_rows : memob_swap_batch_slices(desc) * desc->n_rows;
}

/* SLICE to CARRIED: of the leader of item t. */
MEMOI int32_t memob_item_scope(const memo_swap_desc* desc, int32_t t) {
    return desc->tensors[memob_item_leader(desc->tensors, t)].scope;
}

/* 1: a micro-batch has slices, and tensor t is of the layer. */
MEMOI int memob_swap_is_layer(const memo_swap_desc* desc, int32_t t) {
    return memob_swap_batch_slices(desc) > 1 && memob_item_scope(desc, t) == MEMO_LAYER;
}

/* KEEP to WHOLE: what item t does, or what its leader does. */
MEMOI int32_t memob_item_away(const memo_swap_desc* desc, int32_t t) {
    const int32_t away = desc->tensors[memob_item_leader(desc->tensors, t)].away;
    return memob_is_recomputed(away) && memob_swap_is_layer(desc, t) ? MEMO_MOVE : away;
}

/* 1: how many rows tensor t has is known late. */
MEMOI int memob_tensor_is_routed(const memo_swap_desc* desc, int32_t t) {
    return desc->tensors[t].row_bytes &&
           desc->tensors[memob_item_leader(desc->tensors, t)].is & MEMO_LATE_ROWS;
}

/* Rows of row_bytes that a step has of tensor t, at most.  A CARRIED tensor is one row, as if it
 * were of the slice's first token: slices without tokens have none. */
MEMOI int64_t memob_tensor_rows(const memo_swap_desc* desc, int32_t t) {
    const memo_item* item = &desc->tensors[memob_item_leader(desc->tensors, t)];
    if (item->scope == MEMO_CARRIED) return 1;
    return item->is & MEMO_LATE_ROWS ? desc->routed_rows_layer : desc->n_rows;
}

/* 1: some items are only of some kinds. */
MEMOI int memob_swap_has_kinds(const memo_swap_desc* desc) {
    int32_t t = 0;
    while (t < desc->n_tensors && !desc->tensors[t].kinds) t++;
    return t < desc->n_tensors;
}

/* 1: the layer has bytes of tensor t. */
MEMOI int memob_layer_has(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    const uint32_t kinds = desc->tensors[t].kinds;
    return desc->tensors[t].row_bytes && (!kinds || kinds >> memob_layer_kind(desc, layer) & 1);
}

/* Late rows of each step if all have as many. */
MEMOI int64_t memob_swap_routed_rows(const memo_swap_desc* desc, int32_t t) {
    int32_t n = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) n += memob_layer_has(desc, layer, t);
    return memob_min(desc->routed_rows_all / memob_max(n, 1), desc->routed_rows_layer);
}

MEMOI const char* memob_tensor_name(const memo_item* tensor) {
    return tensor->name ? tensor->name : "unnamed";
}

/* Rows of a tile, at most n_rows. */
MEMOI int64_t memob_swap_tile_rows(const memo_swap_desc* desc) {
    return memob_min(desc->tile_rows ? desc->tile_rows : 1, desc->n_rows);
}

MEMOI int64_t memob_swap_n_tiles(const memo_swap_desc* desc) {
    return (desc->n_rows - 1) / memob_swap_tile_rows(desc) + 1;
}

/* Rows that a layer swaps with n_tiles tiles.  The last tile may be short: even layers swap the
 * last tile last, odd layers first. */
MEMOI int64_t memob_swap_rows_of_tiles(const memo_swap_desc* desc, int32_t layer, int64_t n_tiles) {
    const int64_t tile_rows = memob_swap_tile_rows(desc);
    if (n_tiles == 0) return 0;
    return memoi_swap_is_odd(desc, layer)
               ? desc->n_rows - (memob_swap_n_tiles(desc) - n_tiles) * tile_rows
               : memob_min(n_tiles * tile_rows, desc->n_rows);
}

MEMOI int64_t memoi_swap_tiles_of_alpha(const memo_swap_desc* desc) {
    int64_t n_tiles = memob_swap_n_tiles(desc);
    double n_swapped = desc->alpha * (double)n_tiles + 0.5;
    return n_swapped >= (double)n_tiles ? n_tiles : (int64_t)n_swapped;
}

/* Rows that a layer swaps of tensor t, by the table of rows or by alpha; or MEMO_ROWS_KEPT, as if a
 * tensor that it lacks, and an EDGE, were kept with 0 bytes. */
MEMOI int64_t memoi_swap_cell(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    if (!memob_layer_has(desc, layer, t)) return MEMO_ROWS_KEPT;
    if (desc->tensors[t].scope == MEMO_EDGE) return MEMO_ROWS_KEPT;
    if (desc->rows) return desc->rows[(int64_t)layer * desc->n_tensors + t];
    switch (memob_item_away(desc, t)) {
    case MEMO_KEEP: return MEMO_ROWS_KEPT;
    case MEMO_ROWS:
        if (memob_tensor_is_routed(desc, t)) return 0;
        return memob_swap_rows_of_tiles(desc, layer, memoi_swap_tiles_of_alpha(desc));
    default: return desc->n_rows;
    }
}

/* The same in tiles.  A short last tile counts as one. */
MEMOI int64_t memob_swap_tiles(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    const int64_t rows = memoi_swap_cell(desc, layer, t), tile_rows = memob_swap_tile_rows(desc);
    return rows == MEMO_ROWS_KEPT ? MEMO_ROWS_KEPT : (rows + tile_rows - 1) / tile_rows;
}

/* Returns why item t may not swap so many of its rows; NULL: it may. */
MEMOI const char* memoi_swap_away_fault(const memo_swap_desc* desc, int32_t t, int64_t swapped) {
    switch (memob_item_away(desc, t)) {
    case MEMO_KEEP: return "is MEMO_KEEP; MEMO_ROWS_KEPT is valid";
    case MEMO_ROWS:
        return swapped && memob_tensor_is_routed(desc, t)
                   ? "is MEMO_ROWS, known late; 0 and MEMO_ROWS_KEPT are valid"
                   : NULL;
    case MEMO_WHOLE:
        return swapped > 0 && swapped < desc->n_rows ? "is MEMO_WHOLE; swap all rows or none"
                                                     : NULL;
    default:
        if (swapped == desc->n_rows) return NULL;
        return memob_swap_is_layer(desc, t)
                   ? "is of all slices of the layer, so it is not recomputed; swap all rows or "
                     "keep "
                     "them"
                   : "is MEMO_MOVE, so it cannot be recomputed; swap all rows or keep them";
    }
}

/* Returns why a number of swapped rows is no number of tiles; NULL: it is one. */
MEMOI const char* memoi_swap_tiles_fault(const memo_swap_desc* desc, int32_t layer,
                                         int64_t swapped) {
    const int64_t n = desc->n_rows;
    int64_t border;
    if (!memob_is_within(swapped, 0, n))
        return "is out of range; 0 to n_rows and MEMO_ROWS_KEPT are valid";
    border = memoi_swap_is_odd(desc, layer) ? n - swapped : swapped;
    return border < n && border % memob_swap_tile_rows(desc)
               ? "splits a tile; the border between swapped and recomputed rows must be a "
                 "multiple of tile_rows"
               : NULL;
}

MEMOI memo_status memoi_swap_check_cell(const memo_swap_desc* desc, int32_t layer, int32_t t,
                                        memo_error* error) {
    int64_t n = desc->n_rows, tile = memob_swap_tile_rows(desc);
    int64_t swapped = memoi_swap_cell(desc, layer, t);
    const int32_t leader = memob_item_leader(desc->tensors, t);
    const char* why = NULL;
    if (swapped != MEMO_ROWS_KEPT) {
        why = memoi_swap_tiles_fault(desc, layer, swapped);
        if (!why) why = memoi_swap_away_fault(desc, t, swapped);
    }
    if (!why && memoi_swap_cell(desc, layer, leader) != swapped)
        why = "differs from the tensor that it is recomputed with; give both the same rows";
    if (!why && memob_swap_is_layer(desc, t) &&
        memoi_swap_cell(desc, layer - layer % memob_swap_batch_slices(desc), t) != swapped)
        why = "is MEMO_LAYER; swap or keep it in all slices of the layer";

    if (!why || !memob_layer_has(desc, layer, t)) return MEMO_STATUS_OK;
    return MEMOI_INVALID(desc,
                         "rows: layer %d, tensor %d (%s) %s (%lld of %lld rows, tile_rows %lld)",
                         (int)layer, (int)t, memob_tensor_name(&desc->tensors[t]), why,
                         (long long)swapped, (long long)n, (long long)tile);
}

/* The choices of an item that do not work together; NULL: they do. */
MEMOI const char* memoi_swap_choices_fault(const memo_item* item) {
    const int stays_or_moves = item->away == MEMO_KEEP || item->away == MEMO_MOVE;
    const memob_rule rules[] = {
        {!memob_is_within(item->away, 0, MEMO_N_AWAYS - 1),
         "away is invalid; MEMO_KEEP, MEMO_MOVE, MEMO_ROWS, MEMO_WHOLE and MEMO_WITH are valid"},
        {!memob_is_within(item->scope, 0, MEMO_N_SCOPES - 1),
         "scope is invalid; MEMO_SLICE, MEMO_LAYER, MEMO_EDGE, MEMO_INPUT and MEMO_CARRIED are "
         "valid"},
        {item->is & ~(MEMO_LATE_ROWS | MEMO_BY_BACKWARD),
         "is: invalid; sums of MEMO_LATE_ROWS and MEMO_BY_BACKWARD are valid"},
        {item->away == MEMO_WITH && (item->scope || item->is),
         "a MEMO_WITH item has the scope and the rows of the item before it; 0, 0 works"},
        {item->scope == MEMO_EDGE && item->away != MEMO_MOVE,
         "a MEMO_EDGE is handed on; MEMO_MOVE works"},
        {(item->scope == MEMO_INPUT || item->scope == MEMO_CARRIED) && !stays_or_moves,
         "a copy that the trainer makes cannot be recomputed; MEMO_MOVE and MEMO_KEEP work"},
        {(item->is & MEMO_LATE_ROWS) &&
             (item->scope || (item->away != MEMO_MOVE && item->away != MEMO_ROWS)),
         "MEMO_LATE_ROWS works with MEMO_MOVE and MEMO_ROWS, and with MEMO_SLICE"},
        {(item->is & MEMO_BY_BACKWARD) && !memob_is_recomputed(item->away),
         "MEMO_BY_BACKWARD works with MEMO_ROWS and MEMO_WHOLE, which are recomputed"}};
    return MEMOB_FIRST_FAULT(rules);
}

/* What is made with another has its layers and its number of rows.  NULL: it has. */
MEMOI const char* memoi_swap_with_fault(const memo_swap_desc* desc, int32_t t) {
    const int32_t leader = memob_item_leader(desc->tensors, t);
    const memo_item* item = &desc->tensors[leader];
    if (desc->tensors[t].away != MEMO_WITH) return NULL;
    if (leader == t) return "MEMO_WITH needs an item before it that is made with it";
    if ((!item->row_bytes && desc->tensors[t].row_bytes) || item->kinds != desc->tensors[t].kinds)
        return "MEMO_WITH needs an item before it that has bytes and the same kinds";
    if (item->is & MEMO_LATE_ROWS || item->scope == MEMO_EDGE || item->scope == MEMO_INPUT)
        return "the MEMO_EDGE, MEMO_INPUT or MEMO_LATE_ROWS before it is made alone; MEMO_MOVE and "
               "MEMO_KEEP work";
    return NULL;
}

/* *which: the EDGE or INPUT before t, or -1; becomes t. */
MEMOI const char* memoi_swap_only_fault(const memo_swap_desc* desc, int32_t t, int32_t* which) {
    if (*which >= 0 || desc->tensors[t].kinds)
        return "MEMO_EDGE and MEMO_INPUT are each of one item of all layers; give it no kinds, and "
               "other items another scope";
    *which = t;
    return NULL;
}

/* other: an item with late rows, or t; its kinds are those of t. */
MEMOI memo_status memoi_swap_check_routed(const memo_swap_desc* desc, int32_t t, int32_t other,
                                          memo_error* error) {
    const memo_item* item = &desc->tensors[t];
    if (desc->routed_rows_layer >= 1 && desc->routed_rows_all >= desc->routed_rows_layer &&
        desc->routed_rows_all <= MEMOB_BYTES_MAX / 8 / item->row_bytes &&
        desc->tensors[t].kinds == desc->tensors[other].kinds)
        return MEMO_STATUS_OK;
    return MEMOI_INVALID(
        desc,
        "routed_rows_layer: %lld, routed_rows_all %lld, tensors[%d] (%s): invalid; 1 "
        "to routed_rows_all rows are valid, and the same kinds for all MEMO_LATE_ROWS",
        (long long)desc->routed_rows_layer, (long long)desc->routed_rows_all, (int)t,
        memob_tensor_name(item));
}

MEMOI memo_status memoi_swap_check_tensors(const memo_swap_desc* desc, memo_error* error) {
    int32_t edge = -1, input = -1, late = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const memo_item* item = &desc->tensors[t];
        memo_status status = MEMO_STATUS_OK;
        const char* why = memoi_swap_choices_fault(item);
        if (item->row_bytes < 0)
            return MEMOI_INVALID(
                desc,
                "tensors[%d].row_bytes (%s): negative (%lld); 0 means that the tensor is absent",
                (int)t, memob_tensor_name(item), (long long)item->row_bytes);

        if (!why && item->row_bytes && item->scope == MEMO_EDGE)
            why = memoi_swap_only_fault(desc, t, &edge);
        if (!why && item->row_bytes && item->scope == MEMO_INPUT)
            why = memoi_swap_only_fault(desc, t, &input);
        if (!why) why = memoi_swap_with_fault(desc, t);
        if (why)
            return MEMOI_INVALID(desc, "tensors[%d] (%s): %s (away %d, scope %d, is %d)", (int)t,
                                 memob_tensor_name(item), why, (int)item->away, (int)item->scope,
                                 (int)item->is);
        if (!item->row_bytes || !(item->is & MEMO_LATE_ROWS)) continue;
        status = memoi_swap_check_routed(desc, t, late < 0 ? t : late, error);
        if (status) return status;
        late = t;
    }

    /* INPUT is a copy of EDGE. */
    if (edge >= 0 && input >= 0 && desc->tensors[edge].row_bytes != desc->tensors[input].row_bytes)
        return MEMOI_INVALID(
            desc,
            "tensors[%d].row_bytes (%s): %lld, but the MEMO_EDGE, of which it is a "
            "copy, has %lld; give both the same",
            (int)input, memob_tensor_name(&desc->tensors[input]),
            (long long)desc->tensors[input].row_bytes, (long long)desc->tensors[edge].row_bytes);
    return MEMO_STATUS_OK;
}

/* A slice must be whole tiles; only the last may be shorter. */
MEMOI memo_status memoi_swap_check_slices(const memo_swap_desc* desc, memo_error* error) {
    const char* const name = memoi_swap_desc_name(desc);
    const int64_t n = desc->n_slices, rows = desc->n_rows, n_group = memob_max(desc->n_group, 1);
    memo_status status;
    if ((status = memob_check_integer(name, "n_slices", n, 0, desc->n_layers, error)) ||
        (status = memob_check_integer(name, "n_group", desc->n_group, 0, memob_max(n, 1), error)) ||
        (status = memob_check_integer(name, "layer_rows", desc->layer_rows, 0, INT64_MAX, error)))
        return status;

    if (n > 1 && memob_swap_place_steps(desc) % n)
        return MEMOI_INVALID(desc,
                             "n_layers: %d steps are not whole layers of %d slices; set it to "
                             "n_slices times the layers",
                             (int)memob_swap_place_steps(desc), (int)n);
    if (n > 1 && n % n_group)
        return MEMOI_INVALID(desc,
                             "n_slices: %d slices of a layer are not those of %d micro-batches "
                             "(n_group); a multiple would work",
                             (int)n, (int)n_group);
    if (n > n_group && desc->tile_rows && rows % desc->tile_rows)
        return MEMOI_INVALID(
            desc,
            "n_rows: slices of %lld rows split a tile of %lld; a multiple of tile_rows would work",
            (long long)rows, (long long)desc->tile_rows);
    if (desc->layer_rows && (n <= n_group ? desc->layer_rows != rows
                                          : (desc->layer_rows - 1) / rows != n / n_group - 1))
        return MEMOI_INVALID(desc,
                             "layer_rows: %lld rows are not %lld slices of %lld rows, of which the "
                             "last may be shorter",
                             (long long)desc->layer_rows, (long long)memob_max(n / n_group, 1),
                             (long long)rows);
    return MEMO_STATUS_OK;
}

/* Returns why a place's forwards and backwards do not alternate in the order; NULL: they do. */
MEMOI const char* memoi_swap_place_fault(const memo_swap_desc* desc, int32_t place) {
    int32_t n_used = 0;
    for (int32_t k = 0; k < desc->n_order; k++) {
        const int32_t turn = desc->order[k];
        if (turn < -desc->n_places || turn >= desc->n_places)
            return "names a place that n_places lacks";
        if (memob_turn_of(turn) != place) continue;
        if (n_used % 2 == 0 && turn != place) return "has a backward of a place without a forward";
        if (n_used % 2 == 1 && turn == place)
            return "has two forwards of a place without a backward between";
        n_used++;
    }
    if (!n_used) return "leaves out a place";
    return n_used % 2 ? "ends before the last backward of a place" : NULL;
}

/* Returns what is wrong with the order of turns; NULL: nothing. */
MEMOI const char* memoi_swap_order_fault(const memo_swap_desc* desc) {
    const char* why = NULL;
    if (!desc->order || desc->n_order > INT32_MAX / 8 / memob_swap_place_steps(desc))
        return "is NULL or too long";
    for (int32_t place = 0; place < desc->n_places && !why; place++)
        why = memoi_swap_place_fault(desc, place);
    if (why) return why;

    /* These features assume that backwards come in the reverse order of forwards. */
    for (int32_t t = 0; t < desc->n_tensors && desc->tensors; t++)
        if (memob_tensor_is_routed(desc, t)) return "does not work with MEMO_LATE_ROWS";
    if (desc->n_group > 1) return "does not work with n_group above 1";
    return NULL;
}

/* Forwards and backwards of each place must alternate. */
MEMOI memo_status memoi_swap_check_order(const memo_swap_desc* desc, memo_error* error) {
    const char* why;
    if (desc->n_places <= 1 && !desc->order) return MEMO_STATUS_OK;
    if (desc->n_places < 1 || desc->n_layers % desc->n_places)
        return MEMOI_INVALID(desc,
                             "n_places: %d, but n_layers, which counts the layers of all places, "
                             "is %d; a divisor works",
                             (int)desc->n_places, (int)desc->n_layers);
    why = memoi_swap_order_fault(desc);
    if (!why) return MEMO_STATUS_OK;
    return MEMOI_INVALID(desc, "order: %s (%d turns of %d places)", why, (int)desc->n_order,
                         (int)desc->n_places);
}

/* Errors: INVALID_ARGUMENT. */
MEMOI memo_status memob_swap_check_desc(const memo_swap_desc* desc, memo_error* error) {
    const char* const name = memoi_swap_desc_name(desc);
    const int32_t n_slices = desc->n_slices > 1 ? desc->n_slices : 1;
    const memob_bounds fields[] = {{"n_layers", desc->n_layers, 1, INT32_MAX},
                                   {"n_rows", desc->n_rows, 1, INT64_MAX},
                                   {"n_tensors", desc->n_tensors, 1, INT32_MAX},
                                   {"tile_rows", desc->tile_rows, 0, INT64_MAX},
                                   {"n_host_layers", desc->n_host_layers, 0, INT32_MAX}};
    memo_status status = MEMOB_CHECK_FIELDS(name, fields, error);
    if (!status && !desc->rows) status = memob_check_real(name, "alpha", desc->alpha, 0, 1, error);
    if (!status)
        status = memob_check_rate(name, "spill_bytes_per_s", desc->spill_bytes_per_s, error);
    if (status) return status;
    if (!desc->tensors)
        return MEMOB_INVALID(error, "%s.tensors: NULL; pass n_tensors tensors", name);
    for (int32_t layer = 0; layer < desc->n_layers && desc->layer_kinds; layer++)
        if (!memob_is_within(desc->layer_kinds[layer], 0, MEMOB_KINDS_MAX - 1))
            return MEMOI_INVALID(desc, "layer_kinds[%d]: out of range (%d); 0 to %d are valid",
                                 (int)layer, (int)desc->layer_kinds[layer], MEMOB_KINDS_MAX - 1);
        else if (layer % n_slices && desc->layer_kinds[layer] != desc->layer_kinds[layer - 1])
            return MEMOI_INVALID(desc,
                                 "layer_kinds[%d]: %d, but the slice before it has %d; give all "
                                 "slices of a layer the same kind",
                                 (int)layer, (int)desc->layer_kinds[layer],
                                 (int)desc->layer_kinds[layer - 1]);

    if (desc->spill_directory && !*desc->spill_directory) /* the root folder */
        return MEMOB_INVALID(error,
                             "%s.spill_directory: an empty string; NULL (no file), \".\" and other "
                             "folders are valid",
                             name);
    /* Tensors first: the other checks read the tables by their numbers. */
    status = memoi_swap_check_tensors(desc, error);
    if (!status) status = memoi_swap_check_order(desc, error);
    return status ? status : memoi_swap_check_slices(desc, error);
}

/* Fills a table of rows (n_layers, n_tensors) from desc->alpha. */
MEMOI memo_status memob_swap_fill_rows(const memo_swap_desc* desc, int64_t* rows,
                                       memo_error* error) {
    memo_swap_desc by_alpha = *desc;
    memo_status status;
    by_alpha.rows = NULL;
    status = memob_swap_check_desc(&by_alpha, error);
    for (int32_t layer = 0; layer < desc->n_layers && !status; layer++)
        for (int32_t t = 0; t < desc->n_tensors; t++)
            *rows++ = memoi_swap_cell(&by_alpha, layer, t);
    return status;
}
