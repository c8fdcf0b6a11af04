#pragma once
#include "memo/spill_file.h"
#include "memo/swap_rows.h"
/* ---- >>swap places ------------------------------------------------------------------------------
 * Knows: the order of steps, where the rows of each step lie on the device and on the host, and how
 * long their recomputation takes.  Knows nothing of streams, and of when rows go to the file.
 *
 * Steps.  A step is what is computed at once: slice i % n_slices of layer i / n_slices of place
 * step / n, with n steps of a place and i = step % n.  "Layer" then means step, here and in every
 * call of the engine.  Without an order there is one place.  In a group the slices of a layer are
 * those of n_group micro-batches.  Even and odd steps are those whose place + i is even or odd;
 * even and odd layers, those whose place + layer is.
 *
 * LAYER rows of all slices lie at one address, in a region of even and a region of odd layers.
 * They leave with their slice, and stay on the device until another layer needs the region.
 * In the backward slice s no longer needs the rows of later slices; the rows of slice s make room
 * for the layer that comes next there.  These rows never spill.
 *
 * EDGE rows of a slice lie at two addresses, of even and odd steps; between two layers they wait on
 * the host.  So do the last outputs; in an order only those that the loss reads, of each place.
 * With one slice the addresses are of even and odd places, and rows leave between turns alone.  The
 * host stores INPUT once: the rows that EDGE leaves come back as INPUT, unless layers spill, or the
 * layer is the first of its place.
 *
 * Tensors that only some kinds of layers have share an area, the pack, instead of a region each:
 * an even layer's tensors lie at the bottom, swapped rows first, an odd layer's at the top, swapped
 * rows last.  B is the bytes of a layer's tensors there, R the part beyond the swapped rows.  The
 * area takes the largest B + B' - min(R, R') of an even and an odd layer that follow each other
 * there.
 *
 * LATE_ROWS.  If a plan keeps the rows of k of n steps, the item has a stack for k A / n rows, with
 * A = routed_rows_all, and behind it a scratch of routed_rows_layer rows.  Rows of a step begin
 * where rows of the step before end, at most at the end of the stack.  Rows in the scratch are the
 * surplus, except in the last step.
 *
 * The file.  If host memory has fewer places than layers move, the last two places (or the only
 * one) are windows.  Layers without a place have their homes in the file, and take turns in the
 * windows.  A layer that comes back before another layer uses its window is not written.  The file
 * takes classes: tensors with rows in the same steps.
 *
 * 1. A backward comes behind a forward of its place.
 * 2. Rows lie in the region of their tensor, or in that of a layer that keeps them.
 * 3. The tensors of a pack lie in the area of packs.
 * 4. Late rows begin in their stack, behind those of an earlier step.
 * 5. The INPUT tensor is alone in its class. */

/* Rows that a step computes if the micro-batch has n_rows; 0: an empty slice. */
MEMOI int64_t memob_swap_step_rows(const memob_swap_placement* placement, int32_t step,
                                   int64_t n_rows) {
    const int64_t left = n_rows - step % placement->n_of_batch * placement->slice_rows;
    return memob_max(0, memob_min(left, placement->slice_rows));
}

/* 1: the step is of the last layer of its place. */
MEMOI int memoi_swap_is_last(const memob_swap_placement* placement, int32_t step) {
    return step % placement->n_forwards >= placement->n_forwards - placement->n_slices;
}

/* 1: a turn of backwards begins with the visit, and the loss comes before. */
MEMOI int memob_swap_is_between(const memob_swap_placement* placement, int32_t k) {
    const memob_row_visit* visit = &placement->visits[k];
    return visit->pass == MEMOB_BACKWARD && k % placement->n_forwards == 0 && visit->ends &&
           !placement->has_loss;
}

/* 1: a micro-batch has its loss in the visit, the first of its backward. */
MEMOI int memob_swap_has_loss(const memob_swap_placement* placement, int32_t k) {
    const memob_row_visit* visit = &placement->visits[k];
    return placement->has_loss && visit->pass == MEMOB_BACKWARD && visit->ends &&
           memoi_swap_is_last(placement, visit->layer) &&
           visit->layer % placement->n_of_batch == placement->n_of_batch - 1;
}

/* 1: the loss is computed in the visit (is_begun 1): in that of LAST, whose states it uses, or with
 * has_loss in the last layer's backward of each micro-batch; or, without states, before the last
 * layer's backward begins (is_begun 0). */
MEMOI int memob_swap_computes_between(const memob_swap_placement* placement,
                                      const memob_visit* visit, int has_states, int is_begun) {
    if (!is_begun)
        return visit->row >= 0 && !has_states && memob_swap_is_between(placement, visit->row);
    if (visit->row < 0)
        return visit->pass == MEMOB_BACKWARD && visit->layer > 0 && !placement->has_loss;
    return memob_swap_has_loss(placement, visit->row);
}

/* 1: a turn begins, and the trainer writes the EDGE rows of the visit; 0: they are there. */
MEMOI int memob_swap_is_edge_new(const memob_swap_placement* placement,
                                 const memob_row_visit* visit) {
    const int32_t i = visit->layer;
    if (visit->pass != MEMOB_BACKWARD) return i % placement->n_forwards < placement->n_slices;
    return memoi_swap_is_last(placement, i) && !(visit->ends && placement->finds_outputs);
}

/* 1: the layer of the step uses the odd region of LAYER rows. */
MEMOI int32_t memoi_swap_is_odd_layer(const memob_swap_placement* placement, int32_t step) {
    const int32_t n = placement->n_forwards;
    return (step / n + step % n / placement->n_of_batch) & 1;
}

/* 1: EDGE rows of the step lie at the odd of two addresses. */
MEMOI int32_t memoi_swap_is_odd_edge(const memob_swap_placement* placement, int32_t step) {
    const int32_t n = placement->n_forwards;
    return (step / n + (placement->n_slices > 1 ? step % n : 0)) & 1;
}

MEMOI int32_t memoi_swap_count_visits(const memo_swap_desc* desc) {
    return desc->order ? desc->n_order * memob_swap_place_steps(desc) : 2 * desc->n_layers;
}

/* What does not depend on rows of (n_visits): the order of steps. */
MEMOI void memoi_swap_list_visits(const memo_swap_desc* desc, memob_swap_placement* p) {
    static const int32_t one[] = {0, -1};
    const int32_t *order = desc->order ? desc->order : one, n = memob_swap_place_steps(desc);
    int32_t before;
    p->n_visits = memoi_swap_count_visits(desc);
    p->n_forwards = n;
    for (int32_t k = 0; k < p->n_visits; k++) {
        memob_row_visit* visit = &p->visits[k];
        const int32_t turn = order[k / n], is_backward = turn < 0;
        const int32_t place = memob_turn_of(turn), i = is_backward ? n - 1 - k % n : k % n;
        visit->pass = is_backward ? MEMOB_BACKWARD : MEMOB_FORWARD;
        visit->layer = place * n + i;
        visit->odd = memoi_swap_is_odd(desc, visit->layer);
        visit->ends = !desc->ends || desc->ends[k / n];
        for (before = k / n - 1; is_backward && order[before] != place; before--)
            MEMO_ASSERT(before > 0); /* 1 */
        visit->forward = is_backward ? before * n + i : k;
    }
}

/* The region of a tensor in bytes: swapped by even layers | recomputed | swapped by odd layers.
 * Row 0 must be aligned.  So the swapped rows of even layers end up to 511 bytes before the first
 * border, and those of odd layers begin up to 511 bytes after the second.  The recomputed bytes
 * between belong to the layer that uses the buffer. */
typedef struct memob_swap_region {
    int64_t even_bytes, scratch_bytes, odd_bytes;
    int64_t begin;       /* offset in device memory */
    int64_t whole_bytes; /* of all rows; LAYER: of all slices; EDGE: of all of a layer that wait */
    int64_t n_kept;      /* layers that keep the tensor, outside */
    int64_t n_fixed;     /* times that all rows lie at the begin of host memory */
} memob_swap_region;

/* The layer recomputes the rows that it does not swap: even layers swap their first rows, odd
 * layers their last. */
MEMOI void memoi_swap_recompute(const memo_swap_desc* desc, int32_t layer, int64_t swapped,
                                memob_swap_place* place) {
    if (swapped == desc->n_rows) return;
    place->recompute_begin = memoi_swap_is_odd(desc, layer) ? 0 : swapped;
    place->recompute_end = place->recompute_begin + desc->n_rows - swapped;
}

/* Sets for each layer of a micro-batch whether another one overwrites its LAYER rows between
 * forward and backward. */
MEMOI void memoi_swap_find_layers(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                                  const memob_swap_placement* order, char* all_lost) {
    const int32_t n_slices = order->n_of_batch;
    int32_t owners[2] = {-1, -1}, since[2] = {-1, -1}; /* of each region: a layer; its visit */
    memset(all_lost, 0, (size_t)(order->n_layers / n_slices));
    for (int32_t k = 0; k < order->n_visits; k += n_slices) { /* slices follow each other */
        const memob_row_visit* visit = &order->visits[k];
        const int32_t layer = visit->layer / n_slices;
        const int32_t odd = memoi_swap_is_odd_layer(order, visit->layer);
        if (!memob_layer_has(desc, visit->layer, t) || tiles[layer * n_slices] == MEMO_ROWS_KEPT)
            continue;
        if (owners[odd] != layer) since[odd] = k;
        owners[odd] = layer;
        if (visit->pass == MEMOB_BACKWARD) all_lost[layer] |= since[odd] > visit->forward;
    }
}

/* A tensor of scope LAYER: two regions of all its rows, of even and odd layers; in a group the
 * layers of each micro-batch count.  Rows move that another layer overwrites. */
MEMOI void memoi_swap_sum_layer(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                                int sign, const memob_swap_placement* order,
                                memob_swap_region* region, memob_swap_sum* sums,
                                memob_swap_place* places) {
    const int64_t n = desc->n_rows, n_all = memob_swap_layer_rows(desc);
    const int32_t n_slices = memob_swap_batch_slices(desc);
    char* is_lost = order->lost + (int64_t)desc->n_tensors * desc->n_layers;
    memoi_swap_find_layers(desc, t, tiles, order, is_lost);
    for (int32_t step = desc->n_layers - 1; step >= 0; step--) {
        const int32_t slice = step % n_slices;
        const int64_t n_moved = memob_min(n_all - slice * n, n);
        if (!memob_layer_has(desc, step, t)) continue;
        if (tiles[step - slice] == MEMO_ROWS_KEPT) {
            region->n_kept += !slice;
            continue;
        }
        sums[step].uses_layer += sign;
        *(memoi_swap_is_odd_layer(order, step) ? &region->odd_bytes : &region->even_bytes) =
            region->whole_bytes;
        if (!is_lost[step / n_slices]) continue;
        sums[step].layer_bytes += sign * n_moved * desc->tensors[t].row_bytes;
        sums[step].n_layer_copies += sign;
        region->n_fixed += !slice;
        if (!places) continue;
        places[(int64_t)step * desc->n_tensors].moved_begin = slice * n;
        places[(int64_t)step * desc->n_tensors].moved_end = slice * n + n_moved;
    }
}

/* A tensor with LATE_ROWS: a stack of the kept rows, scratch, and room on the host
 * for what the stack cannot hold.  Each step may waste an alignment of the stack. */
MEMOI void memoi_swap_sum_routed(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                                 const double* all_s, double call_s, int sign,
                                 memob_swap_region* region, memob_swap_sum* sums,
                                 memob_swap_place* places) {
    const int is_moved = memob_item_away(desc, t) == MEMO_MOVE;
    const int64_t row_bytes = desc->tensors[t].row_bytes, n_rows = memob_swap_routed_rows(desc, t);
    int64_t waste_bytes, most_rows, most_bytes;
    int32_t n = 0, n_kept = 0, k = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        if (!memob_layer_has(desc, layer, t)) continue;
        n++;
        n_kept += tiles[layer] == MEMO_ROWS_KEPT;
    }

    if (!n) return;
    waste_bytes = row_bytes + n * (int64_t)MEMOB_DEVICE_ALIGNMENT;
    most_rows = desc->routed_rows_all / n < desc->routed_rows_layer ? desc->routed_rows_all
                                                                    : n * desc->routed_rows_layer;
    most_bytes = memob_align_up(most_rows * row_bytes, MEMOB_DEVICE_ALIGNMENT);

    /* With all rows kept the stack holds the most that there can be. */
    region->n_kept = 0;
    region->even_bytes = n_kept * memob_align_up(n_rows * row_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (n_kept == n)
        region->even_bytes = memob_align_up(most_bytes + waste_bytes, MEMOB_DEVICE_ALIGNMENT);
    else
        region->scratch_bytes =
            memob_align_up(desc->routed_rows_layer * row_bytes, MEMOB_DEVICE_ALIGNMENT);
    region->n_fixed = is_moved && n_kept < n;
    region->whole_bytes = memob_align_up(
        memob_min(most_bytes, memob_max(most_bytes - region->even_bytes, 0) + waste_bytes),
        MEMOB_DEVICE_ALIGNMENT);

    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        memob_swap_sum* sum = &sums[layer];
        if (!memob_layer_has(desc, layer, t)) continue;
        sum->uses_routed += sign;
        if (places) {
            memob_swap_place* place = &places[(int64_t)layer * desc->n_tensors];
            place->is_routed = 1;
            place->is_recomputed = !is_moved;
            place->is_followed = k + 1 < n;
        }
        k++;
        if (k <= n_kept || k == n) continue;
        if (is_moved && n_rows) sum->n_routed_copies += sign;
        if (is_moved) sum->routed_bytes += sign * n_rows * row_bytes;
        if (!is_moved && all_s && n_rows) sum->recompute_s += sign * (all_s[layer] + call_s);
    }
}

/* Sets for each step whether the tensor's rows are overwritten between forward and backward.
 * Swapped rows move then: another step swaps rows in the same buffer.  Other rows are recomputed:
 * another step also recomputes rows; or swaps rows in the same buffer, because recomputed rows may
 * begin before the border.  Tensors with the same rows get the same answer, so that one
 * recomputation serves all of these tensors. */
MEMOI void memoi_swap_find_overwritten(const memob_swap_placement* order, const int64_t* tiles,
                                       int64_t n_tiles, char* all_lost) {
    int32_t k, cut = -1, whole[2] = {-1, -1}, swapped[2] = {-1, -1}; /* the latest visits */
    memset(all_lost, 0, (size_t)order->n_layers);
    for (k = 0; k < order->n_visits; k++) {
        const memob_row_visit* visit = &order->visits[k];
        const int64_t n = tiles[visit->layer];
        if (n == MEMO_ROWS_KEPT) continue;
        if (visit->pass == MEMOB_BACKWARD) {
            char* lost = &all_lost[visit->layer];
            if (cut > visit->forward || (n && whole[visit->odd] > visit->forward))
                *lost |= MEMOI_SWAP_OVERWRITTEN;
            if (n && swapped[visit->odd] > visit->forward) *lost |= MEMOI_SWAP_RETURNS;
        }
        *(n < n_tiles ? &cut : &whole[visit->odd]) = k;
        if (n) swapped[visit->odd] = k;
    }
}

/* Bytes of a tensor in a step that swaps so many of its tiles. */
typedef struct memoi_swap_cut {
    int64_t tiles;
    int64_t swapped, moved; /* rows; moved: of the step's own */
    int64_t recomputed_bytes, own_bytes, host_bytes;
    double others; /* the share of the step's rows that it recomputes */
} memoi_swap_cut;

MEMOI void memoi_swap_find_cut(const memo_swap_desc* desc, int32_t t, int32_t layer, int64_t tiles,
                               memoi_swap_cut* cut) {
    const int64_t n = memob_tensor_rows(desc, t), row_bytes = desc->tensors[t].row_bytes;
    const int is_odd = memoi_swap_is_odd(desc, layer);
    const int32_t n_slices = memob_swap_batch_slices(desc);
    const int64_t n_own = memob_swap_layer_rows(desc) - (n_slices - 1) * n;
    cut->tiles = tiles;
    cut->swapped =
        tiles == memob_swap_n_tiles(desc) ? n : memob_swap_rows_of_tiles(desc, layer, tiles);
    cut->recomputed_bytes = (n - cut->swapped) * row_bytes;
    cut->own_bytes = cut->swapped * row_bytes; /* of an odd layer: behind the second border */
    if (cut->swapped && is_odd) cut->own_bytes += cut->recomputed_bytes % MEMOB_DEVICE_ALIGNMENT;
    cut->own_bytes = memob_align_up(cut->own_bytes, MEMOB_DEVICE_ALIGNMENT);

    /* The last slice may have fewer rows, but not a smaller state. */
    cut->moved = cut->swapped;
    cut->others = (double)(n - cut->swapped) / (double)n;
    if (memob_item_scope(desc, t) != MEMO_CARRIED && n_slices > 1 && (layer + 1) % n_slices == 0) {
        cut->moved =
            is_odd ? memob_max(n_own - (n - cut->swapped), 0) : memob_min(n_own, cut->swapped);
        cut->others = (double)(n_own - cut->moved) / (double)n_own;
    }
    cut->host_bytes = memob_align_up(cut->moved * row_bytes, MEMOB_DEVICE_ALIGNMENT);
}

/* Adds a step of a tensor in rounding buffers to its sum, or takes it away (sign -1).  lost: what
 * becomes of the rows.  Returns the bytes that move. */
MEMOI int64_t memoi_swap_sum_cut(const memo_swap_desc* desc, int32_t t, const memoi_swap_cut* cut,
                                 int lost, double recompute_s, int sign, memob_swap_sum* sum) {
    const int is_packed = desc->tensors[t].kinds != 0;
    const int is_input = desc->tensors[t].scope == MEMO_INPUT && desc->n_slices > 1;
    const int64_t moved_bytes = cut->moved * desc->tensors[t].row_bytes;

    /* What is recomputed; of packs memoi_swap_sum_packs decides. */
    if (lost & MEMOI_SWAP_OVERWRITTEN && cut->swapped < memob_tensor_rows(desc, t))
        *(is_packed ? &sum->packed_s : &sum->recompute_s) += sign * recompute_s;
    if (!cut->swapped || !(lost & MEMOI_SWAP_RETURNS)) return 0;

    /* What is moved.  A pack moves as a whole: see memob_swap_end_sums. */
    if (is_input) sum->input_bytes += sign * moved_bytes;
    *(is_packed ? &sum->pack_moved_bytes : &sum->moved_bytes) += sign * moved_bytes;
    *(is_packed ? &sum->pack_host_bytes : &sum->host_bytes) += sign * cut->host_bytes;
    return moved_bytes;
}

/* Where the rows of a step lie, before the step is added to its sum.  Offsets begin at the first
 * border of the region. */
MEMOI void memoi_swap_place_cut(const memo_swap_desc* desc, int32_t t, int32_t layer,
                                const memoi_swap_cut* cut, int lost, memob_swap_sum* sum,
                                memob_swap_place* place) {
    const int is_odd = memoi_swap_is_odd(desc, layer);
    const int is_packed = desc->tensors[t].kinds != 0;
    const int64_t n = memob_tensor_rows(desc, t);
    if (lost & MEMOI_SWAP_OVERWRITTEN && !is_packed && cut->swapped < n)
        memoi_swap_recompute(desc, layer, cut->swapped, place);
    if (!cut->swapped) return;
    place->offset = is_odd ? cut->recomputed_bytes % MEMOB_DEVICE_ALIGNMENT - cut->recomputed_bytes
                           : -cut->own_bytes;
    if (!(lost & MEMOI_SWAP_RETURNS)) return;
    place->moved_begin = is_odd ? n - cut->swapped : 0;
    place->moved_end = place->moved_begin + cut->moved;
    place->host_offset = is_packed ? sum->pack_host_bytes : sum->host_bytes;
}

/* Adds a step of a packed tensor to what its pack takes. */
MEMOI void memoi_swap_pack_cut(const memoi_swap_cut* cut, int64_t all_bytes, memob_swap_sum* sum) {
    sum->pack_bytes += all_bytes;
    if (!cut->swapped) sum->free_bytes += all_bytes;
    if (cut->swapped && cut->recomputed_bytes > sum->cut_bytes) {
        sum->cut_bytes = cut->recomputed_bytes;
        sum->cut_free_bytes = all_bytes - cut->own_bytes;
    }
}

/* Time to recompute what a step does not swap; all_s NULL: none. */
MEMOI double memoi_swap_cut_s(const memoi_swap_cut* cut, const double* all_s, int32_t layer,
                              double call_s) {
    return all_s ? call_s * (cut->others > 0) + all_s[layer] * cut->others : 0;
}

/* Adds the steps of a tensor in rounding buffers. */
MEMOI void memoi_swap_sum_rows(const memo_swap_desc* desc, int32_t t, const int64_t* tiles,
                               const int64_t* before, const double* all_s, double call_s,
                               const memob_swap_placement* order, memob_swap_region* region,
                               memob_swap_sum* sums, memob_swap_place* places) {
    const int is_packed = desc->tensors[t].kinds != 0;
    const int32_t n = desc->n_layers, n_slices = memob_swap_batch_slices(desc);
    int64_t* moves = order->moves + (int64_t)t * n;
    char *lost = order->lost + (int64_t)t * n,
         *is_lost = order->lost + (int64_t)desc->n_tensors * n;
    memoi_swap_cut cuts[2][2]; /* of the latest even and odd step, which most repeat; before */
    if (is_packed)
        memset(is_lost, MEMOI_SWAP_OVERWRITTEN | MEMOI_SWAP_RETURNS, (size_t)n);
    else
        memoi_swap_find_overwritten(order, tiles, memob_swap_n_tiles(desc), is_lost);
    for (int k = 0; k < 4; k++) cuts[k / 2][k % 2].tiles = MEMO_ROWS_KEPT;

    for (int32_t layer = n - 1; layer >= 0; layer--) {
        const int is_odd = memoi_swap_is_odd(desc, layer);
        const int is_last = n_slices > 1 && (layer + 1) % n_slices == 0;
        const int is_same =
            before && before[layer] == tiles[layer] && lost[layer] == is_lost[layer];
        memoi_swap_cut *cut = &cuts[0][is_odd], *old = &cuts[1][is_odd];
        memob_swap_sum* sum = &sums[layer];
        if (is_packed && !memob_layer_has(desc, layer, t)) continue;
        if (!is_same && before && before[layer] != MEMO_ROWS_KEPT) {
            if (before[layer] != old->tiles || is_last)
                memoi_swap_find_cut(desc, t, layer, before[layer], old);
            (void)memoi_swap_sum_cut(desc, t, old, lost[layer],
                                     memoi_swap_cut_s(old, all_s, layer, call_s), -1, sum);
            if (is_last) old->tiles = MEMO_ROWS_KEPT; /* of no other */
        }
        lost[layer] = is_lost[layer];
        if (tiles[layer] == MEMO_ROWS_KEPT) {
            region->n_kept++;
            moves[layer] = -1;
            continue;
        }

        if (tiles[layer] != cut->tiles || is_last)
            memoi_swap_find_cut(desc, t, layer, tiles[layer], cut);
        if (is_last) cut->tiles = MEMO_ROWS_KEPT;
        if (is_packed) {
            memoi_swap_pack_cut(cut, region->whole_bytes, sum);
        } else {
            int64_t* most = is_odd ? &region->odd_bytes : &region->even_bytes;
            *most = memob_max(*most, cut->own_bytes);
            region->scratch_bytes = memob_max(region->scratch_bytes, cut->recomputed_bytes);
        }
        if (is_same) continue;
        if (places)
            memoi_swap_place_cut(desc, t, layer, cut, is_lost[layer], sum,
                                 &places[(int64_t)layer * desc->n_tensors]);
        moves[layer] = memoi_swap_sum_cut(desc, t, cut, is_lost[layer],
                                          memoi_swap_cut_s(cut, all_s, layer, call_s), 1, sum);
        if (!cut->swapped) moves[layer] = -1;
    }
    region->scratch_bytes = memob_align_up(region->scratch_bytes, MEMOB_DEVICE_ALIGNMENT);
}

/* Adds tensor t to the sums of all layers; returns the region of t.  tiles: the tiles that each
 * layer swaps, or MEMO_ROWS_KEPT; an EDGE has none.  before: NULL, or the tiles that were
 * added to these sums last, of a tensor that all kinds have: the sums change by the difference.
 * all_s: time to recompute all rows of each layer, in addition to call_s; NULL: no time.  order:
 * the visits.  places: of t from layer 0 on, n_tensors apart; NULL: none. */
MEMOI memob_swap_region memob_swap_sum_tensor(const memo_swap_desc* desc, int32_t t,
                                              const int64_t* tiles, const int64_t* before,
                                              const double* all_s, double call_s,
                                              const memob_swap_placement* order,
                                              memob_swap_sum* sums, memob_swap_place* places) {
    const int64_t row_bytes = desc->tensors[t].row_bytes;
    const int64_t n_all = memob_swap_layer_rows(desc);
    const int64_t n_batches = memob_max(desc->n_group, 1) *
                              (memoi_swap_finds_outputs(desc) ? memob_max(desc->n_places, 1) : 1);
    const int is_layer = memob_swap_is_layer(desc, t);
    const int is_handed = desc->tensors[t].scope == MEMO_EDGE;
    memob_swap_region region = MEMO_ZERO(memob_swap_region), old = MEMO_ZERO(memob_swap_region);
    region.whole_bytes = memob_align_up((is_layer ? n_all : memob_tensor_rows(desc, t)) * row_bytes,
                                        MEMOB_DEVICE_ALIGNMENT);
    if (is_handed)
        region.whole_bytes = memob_align_up(n_batches * n_all * row_bytes, MEMOB_DEVICE_ALIGNMENT);
    old.whole_bytes = region.whole_bytes;

    /* An EDGE that does not move has one address in all layers.  Otherwise even and odd slices
     * have, or places, and all of a layer wait on the host: its output, or a gradient. */
    if (is_handed) {
        const int64_t slice_bytes =
            memob_align_up(memob_tensor_rows(desc, t) * row_bytes, MEMOB_DEVICE_ALIGNMENT);
        region.n_fixed = memoi_swap_hands(desc);
        region.even_bytes = slice_bytes;
        region.odd_bytes = region.n_fixed * slice_bytes;
    } else if (is_layer) {
        if (before) memoi_swap_sum_layer(desc, t, before, -1, order, &old, sums, NULL);
        memoi_swap_sum_layer(desc, t, tiles, 1, order, &region, sums, places);
    } else if (memob_tensor_is_routed(desc, t)) {
        if (before) memoi_swap_sum_routed(desc, t, before, all_s, call_s, -1, &old, sums, NULL);
        memoi_swap_sum_routed(desc, t, tiles, all_s, call_s, 1, &region, sums, places);
    } else {
        memoi_swap_sum_rows(desc, t, tiles, before, all_s, call_s, order, &region, sums, places);
    }
    return region;
}

/* What the packs of two visits take of the area together; at -1: none, or one of the same
 * buffer. */
MEMOI int64_t memoi_swap_pair_packs(const memob_swap_placement* p, int32_t k, int32_t at) {
    const memob_swap_sum *sum = &p->sums[p->visits[k].layer], *other;
    if (at < 0 || p->visits[at].odd == p->visits[k].odd) return 0;
    other = &p->sums[p->visits[at].layer];
    if (!other->pack_bytes) return 0;
    return sum->pack_bytes + other->pack_bytes - memob_min(sum->free_bytes, other->free_bytes);
}

/* Which packs other visits overwrite before the backward of the pack.  Returns the bytes of the
 * area of packs: the most that an even and an odd layer need at once. */
MEMOI int64_t memoi_swap_sum_packs(const memob_swap_placement* p) {
    const memob_row_visit* visits = p->visits;
    int64_t area_bytes = 0;
    int32_t last[2] = {-1, -1}, before[2] = {-1, -1}; /* in each buffer; in the other before that */
    for (int32_t layer = 0; layer < p->n_layers; layer++) {
        memob_swap_sum* sum = &p->sums[layer];
        if (!sum->pack_bytes) continue;
        sum->free_bytes += sum->cut_free_bytes;
        area_bytes = memob_max(area_bytes, sum->pack_bytes);
    }

    /* Rows of a forward stay until they have left.  Rows of a backward come back from the last
     * visit of the buffer on, while rows there before still leave and other visits compute. */
    for (int32_t k = 0; k < p->n_visits; k++) {
        const int32_t odd = visits[k].odd;
        const int32_t left[2] = {last[!odd], visits[k].pass == MEMOB_BACKWARD ? before[odd] : -1};
        if (!p->sums[visits[k].layer].pack_bytes) continue;
        for (int32_t q = 0; q < 2; q++)
            if (left[q] >= 0 && visits[left[q]].pass != MEMOB_BACKWARD)
                area_bytes = memob_max(area_bytes, memoi_swap_pair_packs(p, k, left[q]));
        for (int32_t q = last[odd] + 1; q < k && visits[k].pass == MEMOB_BACKWARD; q++)
            area_bytes = memob_max(area_bytes, memoi_swap_pair_packs(p, k, q));
        before[odd] = last[!odd];
        last[odd] = k;
    }

    for (int32_t k = 0; k < p->n_visits; k++) {
        const memob_row_visit* visit = &p->visits[k];
        memob_swap_sum* sum = &p->sums[visit->layer];
        if (visit->pass != MEMOB_BACKWARD || !sum->pack_bytes || sum->is_pack_overwritten) continue;
        for (int32_t q = visit->forward + 1; q < k && !sum->is_pack_overwritten; q++) {
            const int64_t n_bytes = p->sums[p->visits[q].layer].pack_bytes;
            sum->is_pack_overwritten = n_bytes && (p->visits[q].odd == visit->odd ||
                                                   sum->pack_bytes > area_bytes - n_bytes);
        }
        if (sum->is_pack_overwritten) sum->recompute_s += sum->packed_s;
    }
    return area_bytes;
}

/* After all tensors: a pack moves if another pack uses its buffer between its forward and its
 * backward.  Returns the bytes of the packs. */
MEMOI int64_t memob_swap_end_sums(const memo_swap_desc* desc, memob_swap_placement* p) {
    char* lost = p->lost + (int64_t)p->n_tensors * p->n_layers;
    int64_t pack_bytes;
    if (!memob_swap_has_kinds(desc)) return 0;
    pack_bytes = memoi_swap_sum_packs(p);
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        p->tiles[layer] = p->sums[layer].pack_bytes ? 1 : MEMO_ROWS_KEPT;
    memoi_swap_find_overwritten(p, p->tiles, 1, lost);
    for (int32_t layer = 0; layer < p->n_layers; layer++) {
        memob_swap_sum* sum = &p->sums[layer];
        sum->returns = (lost[layer] & MEMOI_SWAP_RETURNS) != 0;
        if (!sum->returns) continue;
        sum->moved_bytes += sum->pack_moved_bytes;
        sum->host_bytes += sum->pack_host_bytes;
    }
    return pack_bytes;
}

/* --- classes and places on the host --- */

/* A step of the placement has the tensor's rows in a rounding buffer. */
MEMOI int memoi_swap_has_slot(const memob_swap_placement* p, int32_t t, int32_t step) {
    return p->moves[(int64_t)t * p->n_layers + step] >= 0;
}

/* Tensors with rows in the same steps are a class; all packed ones are, since a pack moves as a
 * whole.  INPUT is a class of its own. */
MEMOI void memoi_swap_find_classes(const memo_swap_desc* desc, memob_swap_placement* p) {
    p->n_classes = 0;
    for (int32_t t = 0; t < desc->n_tensors; t++) p->class_of[t] = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const int is_packed = desc->tensors[t].kinds != 0;
        int32_t step = 0, same = -1;
        while (step < p->n_layers && !memoi_swap_has_slot(p, t, step)) step++;
        if (step == p->n_layers) continue;
        for (int32_t u = 0; u < t && same < 0 && t != p->input; u++) {
            if (p->class_of[u] < 0 || u == p->input) continue;
            if (is_packed != (desc->tensors[u].kinds != 0)) continue;
            for (step = 0; step < p->n_layers && !is_packed; step++)
                if (memoi_swap_has_slot(p, t, step) != memoi_swap_has_slot(p, u, step)) break;
            if (is_packed || step == p->n_layers) same = u;
        }
        p->class_of[t] = same < 0 ? p->n_classes++ : p->class_of[same];
        MEMO_ASSERT(same < 0 || (t != p->input && same != p->input)); /* 5 */
    }
}

/* Bytes of a class in the file, whole pages. */
MEMOI int64_t memoi_swap_file_bytes(const memo_swap_desc* desc, const memob_swap_placement* p,
                                    int32_t class_number, int32_t step) {
    int64_t n_bytes = 0;
    for (int32_t t = 0; t < p->n_tensors; t++) {
        if (p->class_of[t] != class_number) continue;
        if (desc->tensors[t].kinds && !p->sums[step].returns) continue;
        n_bytes += memob_align_up(memob_max(p->moves[(int64_t)t * p->n_layers + step], 0),
                                  MEMOB_DEVICE_ALIGNMENT);
    }
    return memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT);
}

#define MEMOI_SWAP_WINDOWS 2

/* Bytes of windows, in which each class has its own, and of the moved layers in the file. */
MEMOI void memoi_swap_size_windows(const memo_swap_desc* desc, memob_swap_placement* p) {
    memoi_swap_find_classes(desc, p);
    p->window_bytes = 0;
    for (int32_t step = 0; step < p->n_layers; step++) p->sums[step].file_bytes = 0;
    for (int32_t c = 0; c < p->n_classes; c++) {
        int64_t most_bytes = 0;
        for (int32_t step = 0; step < p->n_layers; step++) {
            int64_t n_bytes;
            if (!p->sums[step].moved_bytes) continue;
            n_bytes = memoi_swap_file_bytes(desc, p, c, step);
            p->sums[step].file_bytes += n_bytes;
            most_bytes = memob_max(most_bytes, n_bytes);
        }
        p->window_bytes += most_bytes;
    }
}

/* With so many places in host memory: which of the moved layers go to the file, evenly spread, and
 * what host memory and the file take. */
MEMOI void memoi_swap_take_places(int64_t n_places, memob_swap_placement* p) {
    memo_swap_sizes* sizes = &p->sizes;
    const int64_t n_moved = sizes->n_swapped_layers;
    int64_t n_file = 0, k = 0, at = p->fixed_host_bytes;
    p->n_host_layers = (int32_t)n_places;
    p->n_windows = n_places < n_moved ? (int32_t)memob_min(n_places, MEMOI_SWAP_WINDOWS) : 0;
    if (p->n_windows) n_file = n_moved - n_places + p->n_windows;
    sizes->n_spilled_layers = 0;
    sizes->spill_bytes = 0;
    for (int32_t step = 0; step < p->n_layers; step++) {
        memob_swap_sum* sum = &p->sums[step];
        sum->window = -1;
        sum->host_begin = at;
        if (!sum->moved_bytes) continue;
        if (n_file * ++k / n_moved == sizes->n_spilled_layers) {
            at += sum->host_bytes;
            continue;
        }
        sum->window = sizes->n_spilled_layers++ % p->n_windows;
        sizes->spill_bytes += sum->file_bytes;
    }

    if (p->n_windows) at = memob_align_up(at, MEMOB_SPILL_ALIGNMENT);
    for (int32_t step = 0; step < p->n_layers && p->n_windows; step++)
        if (p->sums[step].window >= 0)
            p->sums[step].host_begin = at + p->sums[step].window * p->window_bytes;
    sizes->host_bytes = at + p->n_windows * p->window_bytes;
}

/* Finds places in host memory for the moved layers.  host_bytes 0: n_places, or (0) one for each
 * layer.  Otherwise a bisection finds how many fit, at least one.  If layers move unlike bytes, a
 * larger number may also fit: other layers then have the places. */
MEMOI void memob_swap_find_places(const memo_swap_desc* desc, int64_t host_bytes, int64_t n_places,
                                  memob_swap_placement* p) {
    int32_t n_moved = 0, low = 1, high;
    for (int32_t step = 0; step < p->n_layers; step++) n_moved += p->sums[step].moved_bytes > 0;
    p->sizes.n_swapped_layers = n_moved;
    memoi_swap_take_places(n_moved, p);
    if (host_bytes ? p->sizes.host_bytes <= host_bytes : !n_places || n_places >= n_moved) return;
    memoi_swap_size_windows(desc, p);
    for (high = n_moved; host_bytes && low + 1 < high;) {
        const int32_t middle = low + (high - low) / 2;
        memoi_swap_take_places(middle, p);
        *(p->sizes.host_bytes <= host_bytes ? &low : &high) = middle;
    }
    memoi_swap_take_places(host_bytes ? low : n_places, p);
}

/* With this limit no sum of bytes overflows: all layers have the tensors at most three times, on
 * the device, on the host and in the file, and align them. */
MEMOI memo_status memoi_swap_check_bytes(const memo_swap_desc* desc, memo_error* error) {
    int64_t left = MEMOB_BYTES_MAX / 16;
    for (int32_t t = 0; t < desc->n_tensors && left >= 0; t++) {
        const int is_routed = memob_tensor_is_routed(desc, t);
        const int64_t n_rows = is_routed ? desc->routed_rows_all : desc->n_rows;
        const int64_t count = is_routed ? 1 : desc->n_layers,
                      row_bytes = desc->tensors[t].row_bytes;
        if (row_bytes > left / desc->n_layers || n_rows > left / (count * row_bytes + 1))
            left = -1;
        else
            left -=
                n_rows * count * row_bytes + 2 * MEMOB_DEVICE_ALIGNMENT * (int64_t)desc->n_layers;
    }
    if (left >= 0) return MEMO_STATUS_OK;
    return MEMOI_INVALID(desc, "n_rows: %lld rows of these tensors in %d layers exceed 2^58 bytes",
                         (long long)desc->n_rows, (int)desc->n_layers);
}

/* Part of a pack: tensors swapped whole, cut in two, recomputed whole; MEMOI_SWAP_PARTS: none. */
#define MEMOI_SWAP_PARTS 4
MEMOI int memoi_swap_part_of(const memo_swap_desc* desc, int32_t layer, int32_t t, int32_t last) {
    int64_t swapped = memoi_swap_cell(desc, layer, t);
    if (!desc->tensors[t].kinds || swapped == MEMO_ROWS_KEPT || memob_swap_is_layer(desc, t) ||
        memob_tensor_is_routed(desc, t))
        return MEMOI_SWAP_PARTS;
    if (swapped == desc->n_rows) return 0;
    if (swapped == 0) return 3;
    return t == last ? 2 : 1;
}

/* Sets the offsets of a pack that begins there. */
MEMOI void memoi_swap_pack_layer(const memo_swap_desc* desc, int32_t layer, int64_t begin,
                                 memob_swap_place* places) {
    int64_t n = desc->n_rows, most = -1;
    int32_t last = -1;

    /* The tensor that recomputes most lies last among the tensors cut in two, so that its rows are
     * free. */
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        int64_t others = (n - memoi_swap_cell(desc, layer, t)) * desc->tensors[t].row_bytes;
        if (memoi_swap_part_of(desc, layer, t, -1) != 1 || others <= most) continue;
        most = others;
        last = t;
    }

    /* Even layers: swapped rows first.  Odd layers: the mirror image. */
    for (int k = 0; k < MEMOI_SWAP_PARTS; k++)
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            if (memoi_swap_part_of(desc, layer, t, last) !=
                (memoi_swap_is_odd(desc, layer) ? MEMOI_SWAP_PARTS - 1 - k : k))
                continue;
            places[t].offset = begin;
            begin += memob_align_up(memob_tensor_rows(desc, t) * desc->tensors[t].row_bytes,
                                    MEMOB_DEVICE_ALIGNMENT);
        }
}

/* Appends the area of the tensors that only some kinds have, and sets the offsets of these tensors
 * in every layer that does not keep them. */
MEMOI void memoi_swap_place_packs(const memo_swap_desc* desc, memob_swap_placement* placement) {
    const int64_t begin = placement->sizes.device_bytes;
    const int64_t area_bytes = memob_swap_end_sums(desc, placement);
    placement->sizes.device_bytes += area_bytes;
    for (int32_t layer = 0; layer < desc->n_layers && area_bytes; layer++) {
        const memob_swap_sum* sum = &placement->sums[layer];
        memob_swap_place* places = &placement->places[(int64_t)layer * desc->n_tensors];
        memoi_swap_pack_layer(
            desc, layer,
            begin + (memoi_swap_is_odd(desc, layer) ? area_bytes - sum->pack_bytes : 0), places);
        for (int32_t t = 0; t < desc->n_tensors; t++) {
            if (memoi_swap_part_of(desc, layer, t, -1) == MEMOI_SWAP_PARTS) continue;
            MEMO_ASSERT(places[t].offset >= begin && /* 3 */
                        places[t].offset +
                                memob_tensor_rows(desc, t) * desc->tensors[t].row_bytes <=
                            begin + area_bytes);
            if (sum->is_pack_overwritten)
                memoi_swap_recompute(desc, layer, memoi_swap_cell(desc, layer, t), &places[t]);
            if (!sum->returns) places[t].moved_end = places[t].moved_begin;
            places[t].host_offset += sum->host_bytes - sum->pack_host_bytes;
        }
    }
}

/* Appends a tensor, and sets its offsets in every layer. */
MEMOI void memoi_swap_place_tensor(const memo_swap_desc* desc, int32_t t,
                                   memob_swap_placement* placement) {
    const int is_layer = memob_swap_is_layer(desc, t);
    const int is_handed = desc->tensors[t].scope == MEMO_EDGE;
    int64_t *total = &placement->sizes.device_bytes, *fixed = &placement->fixed_host_bytes;
    const int is_packed MEMO_UNUSED = desc->tensors[t].kinds && !is_layer;
    const int64_t all_bytes MEMO_UNUSED =
        (is_layer ? memob_swap_layer_rows(desc) : memob_tensor_rows(desc, t)) *
        desc->tensors[t].row_bytes;
    int64_t* tiles = placement->tiles;
    memob_swap_place* places = &placement->places[t];
    memob_swap_region region;
    int is_odd;
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        tiles[layer] = memob_swap_tiles(desc, layer, t);
    region =
        memob_swap_sum_tensor(desc, t, tiles, NULL, NULL, 0, placement, placement->sums, places);
    region.begin = *total;
    *total += region.even_bytes + region.scratch_bytes + region.odd_bytes;

    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        memob_swap_place* place = &places[(int64_t)layer * desc->n_tensors];
        if (!place->row_bytes) continue;
        place->is_layer = is_layer;
        if (place->is_routed) {
            place->offset = place->stack_begin = region.begin;
            place->stack_end = region.begin + region.even_bytes;
            place->host_offset = *fixed;
            continue;
        }
        is_odd = memoi_swap_is_odd(desc, layer);
        if (is_layer) is_odd = memoi_swap_is_odd_layer(placement, layer);
        if (is_handed) is_odd = memoi_swap_is_odd_edge(placement, layer);
        if (is_handed || (is_layer && tiles[layer] != MEMO_ROWS_KEPT)) {
            place->offset = region.begin + (is_odd && region.odd_bytes ? region.even_bytes : 0);
        } else if (tiles[layer] != MEMO_ROWS_KEPT) {
            place->offset += region.begin + region.even_bytes;
            if (tiles[layer] && is_odd) place->offset += region.scratch_bytes;
        } else if (is_layer && layer % placement->n_of_batch) {
            place->offset = place[-desc->n_tensors].offset;
        } else {
            place->offset = *total;
            *total += region.whole_bytes;
        }
        MEMO_ASSERT((is_packed && tiles[layer] != MEMO_ROWS_KEPT) || /* 2 */
                    (place->offset >= region.begin && place->offset + all_bytes <= *total));
        if (!is_layer || place->moved_end == place->moved_begin) continue;

        /* Slices follow each other. */
        place->host_offset = *fixed + place->moved_begin * place->row_bytes;
        if ((layer + 1) % placement->n_of_batch == 0) *fixed += region.whole_bytes;
    }
    if (is_handed) placement->handed_begin = *fixed;
    if (region.n_fixed && !is_layer) *fixed += region.whole_bytes;
}

MEMOI void memoi_swap_place_rows(const memo_swap_desc* desc, memob_swap_placement* placement) {
    placement->handed = placement->input = -1;
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        const memo_item* tensor = &desc->tensors[t];
        if (!tensor->row_bytes) continue;
        memoi_swap_place_tensor(desc, t, placement);
        if (tensor->scope == MEMO_INPUT && desc->n_slices > 1) placement->input = t;
        if (tensor->scope != MEMO_EDGE || !memoi_swap_hands(desc)) continue;
        placement->handed = t;
        placement->handed_row_bytes = tensor->row_bytes;
    }
    placement->fixed_host_bytes =
        memob_align_up(placement->fixed_host_bytes, MEMOB_SPILL_ALIGNMENT);
    memoi_swap_place_packs(desc, placement);
}

/* Places the moved layers in host memory, and sums up what they move.  Which late rows follow
 * which. */
MEMOI void memoi_swap_place_on_host(const memo_swap_desc* desc, int64_t host_bytes,
                                    memob_swap_placement* placement) {
    memo_swap_sizes* sizes = &placement->sizes;
    int32_t routed = -1;
    memob_swap_find_places(desc, host_bytes, desc->n_host_layers, placement);
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        memob_swap_sum* sum = &placement->sums[layer];
        const int64_t n_bytes = sum->moved_bytes + sum->layer_bytes + sum->routed_bytes;
        sizes->swapped_bytes += n_bytes;
        sizes->layer_swapped_bytes = memob_max(sizes->layer_swapped_bytes, n_bytes);
        sum->routed_before = sum->uses_routed ? routed : -1;
        if (sum->uses_routed) routed = layer;
    }
}

MEMOI const memob_swap_place* memob_swap_place_of(const memob_swap_placement* placement,
                                                  int32_t step, int32_t t) {
    MEMO_ASSERT(step >= 0 && step < placement->n_layers && t >= 0 && t < placement->n_tensors);
    return &placement->places[(int64_t)step * placement->n_tensors + t];
}

/* The step has so many late rows.  They begin where rows of the step before end.  Rows behind
 * the stack are the surplus, unless no later step uses the scratch or no backward follows. */
MEMOI void memoi_swap_route(memob_swap_placement* placement, int32_t step, int64_t n_rows,
                            int is_forward_only) {
    const int32_t routed_before = placement->sums[step].routed_before;
    for (int32_t t = 0; t < placement->n_tensors; t++) {
        const int64_t at = (int64_t)step * placement->n_tensors + t;
        memob_swap_place *place = &placement->places[at], *before = NULL;
        int64_t n_kept, *range;
        if (!place->is_routed) continue;
        if (routed_before >= 0 && !is_forward_only)
            before = &placement->places[(int64_t)routed_before * placement->n_tensors + t];

        place->n_routed = n_rows;
        place->offset = place->stack_begin;
        if (before) {
            const int64_t end = before->offset + before->n_routed * before->row_bytes;
            place->offset =
                memob_min(memob_align_up(end, MEMOB_DEVICE_ALIGNMENT), place->stack_end);
            place->host_offset =
                before->host_offset + (before->moved_end - before->moved_begin) * before->row_bytes;
        }

        MEMO_ASSERT(routed_before < step && /* 4 */
                    memob_is_within(place->offset, place->stack_begin, place->stack_end));
        n_kept = memob_min(n_rows, (place->stack_end - place->offset) / place->row_bytes);
        if (place->is_recomputed && n_kept < n_rows)
            n_kept -= n_kept % placement->tile_rows; /* recomputed by whole tiles */
        if (is_forward_only || !place->is_followed) n_kept = n_rows;
        place->moved_begin = place->moved_end = 0;
        place->recompute_begin = place->recompute_end = n_rows;
        range = place->is_recomputed ? &place->recompute_begin : &place->moved_begin;
        range[0] = n_kept, range[1] = n_rows;
    }
}

MEMOI void memob_swap_placement_free(memob_swap_placement* placement) {
    memob_arrays_free(&placement->arrays);
    memset(placement, 0, sizeof *placement);
}
