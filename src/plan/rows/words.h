#pragma once
#include "memo/swap_rows.h"
#include "plan/profile_file.h"
/* --- >>row words ---
 * Knows: tables of rows in words, a profile as times of a desc.  Knows nothing of planning. */

/* Swapped; -1: kept, -2: the layer lacks the tensor. */
MEMOI int64_t memoi_rows_tiles(const memo_swap_desc* desc, int32_t layer, int32_t t) {
    return memob_layer_has(desc, layer, t) ? memob_swap_tiles(desc, layer, t) : -2;
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
        text, "routed    %s: %lld of %lld rows are kept%s; at most %lld in a step\n",
        desc->tensors[t].name,
        (long long)(n_kept == n ? desc->routed_rows_all : n_kept * memob_swap_routed_rows(desc, t)),
        (long long)desc->routed_rows_all, n_kept == n ? "" : others,
        (long long)desc->routed_rows_layer);
}

void memo_swap_put_rows(const memo_swap_desc* desc, memo_text* text) {
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
            int64_t kept = rows < 0 ? desc->n_rows : 0, swapped = rows < 0 ? 0 : rows;
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

void memo_swap_plan_put(const memo_swap_plan* plan, int is_measured, memo_text* text) {
    memo_text_put(text, "limit     %s\n", plan->reason);
    if (!is_measured) return;
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

/* Layers in slices hand rows on; only they may be planned in slices of another size. */
MEMOI int memoi_rows_are_handed(const memo_item* tensors, int32_t n) {
    int32_t t = 0;
    while (t < n && tensors[t].scope != MEMO_EDGE) t++;
    return t < n;
}

memo_status memo_swap_plan_use_profile(memo_swap_plan_desc* desc, memo_kind_times* times,
                                       double* recompute_s_per_row, const memo_profile* profile,
                                       memo_error* error) {
    const memo_swap_desc* swap = desc->swap;
    const double share = (double)swap->n_rows / (double)profile->n_rows; /* of other slices */
    const memo_profile_transfer *small = &profile->copies[0], *large = &profile->copies[1];
    const memo_profile_transfer* file = &profile->file;
    double bytes, to_host_s, to_device_s;
    int32_t i;
    memo_status status = memoi_profile_check(profile, error);
    if (status) return status;
    if (profile->n_rows != swap->n_rows && !memoi_rows_are_handed(swap->tensors, swap->n_tensors))
        return MEMOB_INVALID(
            error,
            "profile.n_rows: %lld do not match the %lld of the plan; measure with the same rows",
            (long long)profile->n_rows, (long long)swap->n_rows);

    for (int32_t layer = 0; layer < swap->n_layers; layer++)
        if (memob_layer_kind(swap, layer) >= profile->n_kinds)
            return MEMOB_INVALID(
                error, "profile.n_kinds: %d, but layer %d is of kind %d; measure this model",
                (int)profile->n_kinds, (int)layer, (int)memob_layer_kind(swap, layer));

    /* Match tensors by name, because a profile may have others or another order. */
    for (int32_t t = 0; t < swap->n_tensors; t++) {
        const char* name = swap->tensors[t].name;
        for (i = 0; i < profile->n_tensors; i++)
            if (name && strcmp(profile->tensors[i].name, name) == 0) break;
        if (i == profile->n_tensors)
            return MEMOB_INVALID(error, "profile.tensors: tensor `%s` is missing; measure it too",
                                 name ? name : "NULL");
        for (int32_t k = 0; k < profile->n_kinds; k++) {
            double* per_row = recompute_s_per_row + 2 * k * swap->n_tensors + t;
            per_row[0] = profile->tensors[i].recompute_s_per_row[k];
            per_row[swap->n_tensors] = profile->tensors[i].recompute_growth_s_per_row[k];
        }
    }

    for (int32_t k = 0; k < profile->n_kinds; k++) {
        memset(&times[k], 0, sizeof times[k]);
        times[k].forward_s = share * profile->forward_s[k];
        times[k].backward_s = share * profile->backward_s[k];
        times[k].forward_growth_s = share * profile->forward_growth_s[k];
        times[k].backward_growth_s = share * profile->backward_growth_s[k];
        times[k].recompute_s_per_row = recompute_s_per_row + 2 * k * swap->n_tensors;
        times[k].recompute_growth_s_per_row = times[k].recompute_s_per_row + swap->n_tensors;
    }
    desc->kinds = times;
    desc->between_s = profile->between_s;
    desc->recompute_call_s = profile->recompute_call_s;
    memcpy(desc->slowdown_s_per_byte, profile->slowdown_s_per_byte,
           sizeof desc->slowdown_s_per_byte);
    desc->update_s_per_byte = profile->update_s_per_byte;
    desc->update_host_s_per_byte = profile->update_host_s_per_byte;

    /* Two copies give a line: its slope is the rate, and its value at 0 bytes is copy_s. */
    bytes = (double)(large->size_bytes - small->size_bytes);
    to_host_s = large->out_s - small->out_s;
    to_device_s = large->back_s - small->back_s;
    if (bytes <= 0 || to_host_s <= 0 || to_device_s <= 0) { /* noise, or one size only */
        bytes = (double)large->size_bytes;
        to_host_s = large->out_s;
        to_device_s = large->back_s;
    }
    desc->to_host_bytes_per_s = memoi_rows_over(bytes, to_host_s);
    desc->to_device_bytes_per_s = memoi_rows_over(bytes, to_device_s);
    desc->copy_s = memoi_rows_later(
        0, (small->out_s - memoi_rows_over((double)small->size_bytes * to_host_s, bytes) +
            small->back_s - memoi_rows_over((double)small->size_bytes * to_device_s, bytes)) /
               2);

    desc->file_s = 0;
    desc->to_file_bytes_per_s = memoi_rows_over((double)file->size_bytes, file->out_s);
    desc->from_file_bytes_per_s = memoi_rows_over((double)file->size_bytes, file->back_s);
    return MEMO_STATUS_OK;
}
