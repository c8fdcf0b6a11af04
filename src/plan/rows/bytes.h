#pragma once
#include "plan/rows/planner.h"
/* --- >>row bytes ---
 * Knows: what a table of rows takes, moves and recomputes.  Knows nothing of how long a step takes.
 *
 * The same bytes as memo.h's placement of the table, whose sums it shares (>>swap places), without
 * the offsets.  test_swap_plan compares both.
 *
 * 1. Tables with the same version of a bundle have the same cells of it. */

/* A table as memo_swap_desc.rows.  Slices share the cell of a LAYER tensor: the first slice's. */
MEMOI void memoi_rows_fill(const memoi_rows_planner* p, const int64_t* cells, int64_t* rows) {
    const memo_swap_desc* swap = p->desc->swap;
    for (int32_t layer = 0; layer < p->n_layers; layer++)
        for (int32_t t = 0; t < swap->n_tensors; t++) {
            const int32_t slice =
                memob_swap_is_layer(swap, t) ? layer % memob_swap_batch_slices(swap) : 0;
            const int64_t b = p->bundle_of[t];
            const int64_t cell = b < 0 ? MEMO_ROWS_KEPT : cells[b * p->n_layers + layer - slice];
            *rows++ = cell == MEMO_ROWS_KEPT ? MEMO_ROWS_KEPT
                                             : memob_swap_rows_of_tiles(swap, layer, cell);
        }
}

/* Copies the bundles that differ. */
MEMOI void memoi_rows_copy(const memoi_rows_planner* p, const memoi_rows_table* from,
                           memoi_rows_table* to) {
    to->score = from->score;
    for (int32_t b = 0; b < p->n_bundles; b++) {
        const int64_t first = (int64_t)b * p->n_layers;
        const size_t n_bytes = (size_t)p->n_layers * sizeof(int64_t);
        MEMO_ASSERT(to->versions[b] != from->versions[b] || /* 1 */
                    !memcmp(to->cells + first, from->cells + first, n_bytes));
        if (to->versions[b] == from->versions[b]) continue;
        to->versions[b] = from->versions[b];
        memcpy(to->cells + first, from->cells + first, n_bytes);
    }
}

/* The trial becomes the table of desc->swap->rows. */
MEMOI void memoi_rows_take(memoi_rows_planner* p, const memo_swap_desc* swap) {
    p->is_summed = 0; /* cheaper than differences of all bundles */
    for (int32_t b = 0; b < p->n_bundles; b++) {
        p->trial.versions[b] = ++p->n_versions;
        for (int32_t layer = 0; layer < p->n_layers; layer++)
            p->trial.cells[(int64_t)b * p->n_layers + layer] =
                memob_swap_tiles(swap, layer, p->bundles[b].leader);
    }
}

/* The sums of the trial's rows.  Only bundles whose cells differ from the table added up last are
 * added anew, unless some tensors are only of some kinds (their bytes have a maximum). */
MEMOI void memoi_rows_add_bundles(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    const int is_new = !p->is_summed || memob_swap_has_kinds(swap);
    const double call_s = p->desc->profile->recompute_call_s;
    if (is_new) memset(p->sums, 0, (size_t)p->n_layers * sizeof *p->sums);
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        const int32_t b = p->bundle_of[t]; /* -1: EDGE, which has no cells */
        const int64_t first = (int64_t)memob_max(b, 0) * p->n_layers;
        const double* all_s = b >= 0 && p->bundles[b].leader == t ? p->all_s + first : NULL;
        memob_swap_region region;
        if (!swap->tensors[t].row_bytes) continue;
        if (!is_new && (b < 0 || p->trial.versions[b] == p->summed.versions[b])) continue;
        region = memob_swap_sum_tensor(swap, t, p->trial.cells + first,
                                       is_new ? NULL : p->summed.cells + first, all_s, call_s,
                                       &p->clock.order, p->sums, NULL);
        p->held_bytes[2 * t] = (double)region.n_kept * (double)region.whole_bytes +
                               (double)region.even_bytes + (double)region.scratch_bytes +
                               (double)region.odd_bytes;
        p->held_bytes[2 * t + 1] = (double)region.n_fixed * (double)region.whole_bytes;
    }
    memoi_rows_copy(p, &p->trial, &p->summed);
    p->is_summed = 1;
}

/* What all cells of the trial amount to: the sums, and the memory.  With a file, host memory has as
 * many places as fit. */
MEMOI void memoi_rows_add_up(memoi_rows_planner* p) {
    const memo_swap_desc* swap = p->desc->swap;
    memoi_rows_score* score = &p->trial.score;
    memob_swap_placement* order = &p->clock.order;
    memob_swap_sum* sums = order->sums;
    double fixed_bytes = 0;
    memset(score, 0, sizeof *score);
    memoi_rows_add_bundles(p);
    if (sums != p->sums) memcpy(sums, p->sums, (size_t)p->n_layers * sizeof *sums);
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        score->device_bytes += p->held_bytes[2 * t];
        fixed_bytes += p->held_bytes[2 * t + 1];
    }

    score->device_bytes += (double)memob_swap_end_sums(swap, order);
    for (int32_t layer = p->n_layers - 1; layer >= 0; layer--) {
        if (sums[layer].recompute_s < p->hair_s) sums[layer].recompute_s = 0; /* rounding */
        score->swapped_bytes += (double)(sums[layer].moved_bytes + sums[layer].layer_bytes) +
                                (double)sums[layer].routed_bytes;
    }
    for (int32_t k = 0; k < order->n_visits; k++)
        if (order->visits[k].pass == MEMOB_BACKWARD)
            score->recompute_s += sums[order->visits[k].layer].recompute_s;
    if (!(score->recompute_s < MEMOI_ROWS_IMPOSSIBLE)) p->is_summed = 0; /* infinite: stays so */

    /* Host memory and the file take whole layers. */
    fixed_bytes = memoi_rows_sooner(fixed_bytes, (double)MEMOB_BYTES_MAX);
    order->fixed_host_bytes = memob_align_up((int64_t)fixed_bytes, MEMOB_SPILL_ALIGNMENT);
    memob_swap_find_places(swap, p->desc->spill_bytes ? p->desc->host_bytes : 0, 0, order);
    score->sizes = order->sizes;
    score->n_host_layers = order->n_windows ? order->n_host_layers : 0;
}
