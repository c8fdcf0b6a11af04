#pragma once
#include "memo/swap_rows.h"
#include "memo/text.h"
/* --- >>row words ---
 * Knows: tables of rows, and predicted times, in words.  Knows nothing of planning, and not of the
 * reason of a plan (>>row limits). */

/* Swapped; -1: kept, -2: the layer lacks the tensor. */
MEMOI int64_t memoi_rows_tiles(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    return memob_layer_has(desc, layer, t) ? memob_swap_tiles(desc, layer, t) : -2;
}

/* 1: every layer keeps every tensor. */
MEMOI int memoi_rows_are_kept(const memo_swap_desc* desc) {
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        for (int32_t t = 0; t < desc->n_tensors; t++)
            if (memoi_rows_tiles(desc, layer, t) >= 0) return 0;
    return 1;
}

/* An EDGE leaves nothing to choose; late rows have their own lines. */
MEMOI int memoi_rows_are_shown(const memo_swap_desc* desc, int32_t t) {
    return desc->tensors[t].row_bytes && desc->tensors[t].scope != MEMO_EDGE &&
           !memob_tensor_is_routed(desc, t);
}

/* 1 if a is shown, with the tiles of tensor b in every layer.  A short last tile counts as one. */
MEMOI int memoi_rows_are_alike(const memo_swap_desc* desc, int32_t a, int32_t b) {
    if (!memoi_rows_are_shown(desc, a)) return 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++)
        if (memoi_rows_tiles(desc, layer, a) != memoi_rows_tiles(desc, layer, b)) return 0;
    return 1;
}

/* What a plan holds of a tensor with late rows, whatever the routing. */
MEMOI void memoi_rows_put_routed(const memo_swap_desc* desc, int32_t t, memo_text* text) {
    const int moves = memob_item_away(desc, t) == MEMO_MOVE;
    const char* others = moves ? ", the others move" : ", the others are recomputed";
    int64_t n_kept = 0, n = 0;
    for (int32_t layer = 0; layer < desc->n_layers; layer++) {
        n += memob_layer_has(desc, layer, t);
        n_kept += memoi_rows_tiles(desc, layer, t) == MEMO_ROWS_KEPT;
    }
    memo_text_put(
        text, "late      %s: %lld of %lld rows are kept%s; at most %lld in a step\n",
        desc->tensors[t].name,
        (long long)(n_kept == n ? desc->routed_rows_all : n_kept * memob_swap_routed_rows(desc, t)),
        (long long)desc->routed_rows_all, n_kept == n ? "" : others,
        (long long)desc->routed_rows_layer);
}

/* Appends a table of rows: one line for neighboring layers and tensors that are alike. */
MEMOI void memoi_rows_put(const memo_swap_desc* desc, memo_text* text) {
    int32_t other, layer;
    memo_text_put(text,
                  "rows      %s    kept  swapped  recomputed   of %lld in tiles of %lld; the last "
                  "swapped and recomputed rows stay on the device\n",
                  desc->n_slices > 1 ? "steps " : "layers", (long long)desc->n_rows,
                  (long long)memob_swap_tile_rows(desc));

    /* Tensors with equal rows share their lines, so that the table stays short. */
    for (int32_t t = 0; t < desc->n_tensors; t++) {
        for (other = 0; other < t && !memoi_rows_are_alike(desc, other, t); other++) {
        }
        if (other < t || !memoi_rows_are_shown(desc, t)) continue;

        /* A line for each run of layers with the same tiles, beside layers that lack the tensor. */
        for (int32_t first = 0; first < desc->n_layers; first = layer) {
            int64_t rows = desc->rows[(int64_t)first * desc->n_tensors + t];
            int64_t kept = rows < 0 ? desc->n_rows : 0, swapped = memob_max(rows, 0);
            int64_t tiles = memoi_rows_tiles(desc, first, t), next = tiles;
            int32_t last = first;
            char layers[48];
            for (layer = first + 1; layer < desc->n_layers; layer++) {
                next = memoi_rows_tiles(desc, layer, t);
                if (next >= -1 && next != tiles) break;
                if (next == tiles) last = layer;
            }
            if (tiles < -1) continue;
            snprintf(layers, sizeof layers, last > first ? "%d-%d" : "%d", (int)first, (int)last);
            memo_text_put(text, "          %-6s %7lld %8lld %11lld   ", layers, (long long)kept,
                          (long long)swapped, (long long)(desc->n_rows - kept - swapped));
            for (other = t; other < desc->n_tensors; other++)
                if (memoi_rows_are_alike(desc, other, t))
                    memo_text_put(text, "%s%s%s", other == t ? "" : ", ", desc->tensors[other].name,
                                  memob_tensor_rows(desc, other) < desc->n_rows ? " (state)" : "");
            memo_text_put(text, "\n");
        }
    }
    for (int32_t t = 0; t < desc->n_tensors; t++)
        if (memob_tensor_is_routed(desc, t)) memoi_rows_put_routed(desc, t, text);
}

/* Appends the limit, and the predicted times of a step. */
MEMOI void memoi_rows_put_times(const memo_swap_plan* plan, memo_text* text) {
    memo_text_put(text, "limit     %s\n", plan->reason);
    memo_text_put(text,
                  "predicted %.1f ms a step, of which %.1f ms stalled and %.1f ms recomputing",
                  1e3 * plan->step_s, 1e3 * plan->stall_s, 1e3 * plan->recompute_s);
    if (plan->update_s > 0) memo_text_put(text, ", %.1f ms in the update", 1e3 * plan->update_s);
    if (plan->step_s - plan->update_s > 1.5 * plan->micro_batch_s)
        memo_text_put(text, "; %.1f ms a micro-batch", 1e3 * plan->micro_batch_s);
    if (plan->rows && plan->alpha >= 0)
        memo_text_put(text, "; %.1f ms with the best single alpha, %.4g", 1e3 * plan->alpha_step_s,
                      plan->alpha);
    memo_text_put(text, "\n");
}
