/* gpt_layers.h - a planning problem for test_swap_plan.c and bench/swap_plan.c: the layers of a GPT
 * with hidden size 4096 in bf16, with the figures of one H200 and tiles of 1024 rows. */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include "memo_plan.h"

enum { GPT_TENSORS = 13 };

/* Rates of copies, or of a file; 0: no time. */
static MEMO_UNUSED void set_rates(memo_profile_transfer* transfer, double out_bytes_per_s,
                                  double back_bytes_per_s) {
    transfer->size_bytes = 1 << 30;
    transfer->out_s = out_bytes_per_s > 0 ? (1 << 30) / out_bytes_per_s : 0;
    transfer->back_s = back_bytes_per_s > 0 ? (1 << 30) / back_bytes_per_s : 0;
}

/* Each copy takes copy_s in addition to its bytes, whose rates are set. */
static MEMO_UNUSED void set_copy_s(memo_profile* profile, double copy_s) {
    for (int k = 0; k < 2; k++) {
        profile->copies[k].out_s += copy_s;
        profile->copies[k].back_s += copy_s;
    }
}

/* Fills all descs but the capacities and the rates of a file. */
static MEMO_UNUSED void gpt_layers(memo_item* gpt, memo_profile* profile, memo_swap_desc* swap,
                                   memo_swap_plan_desc* desc, int32_t n_layers, int64_t n_rows) {
    static const memo_item table[GPT_TENSORS] = {
        MEMO_ITEM("input", 8192, MEMO_MOVE),      MEMO_ITEM("norm1", 8192, MEMO_ROWS),
        MEMO_ITEM("rstd1", 4, MEMO_WITH),         MEMO_ITEM("q", 8192, MEMO_ROWS),
        MEMO_ITEM("k", 8192, MEMO_ROWS),          MEMO_ITEM("v", 8192, MEMO_ROWS),
        MEMO_ITEM("attention", 8192, MEMO_WHOLE), MEMO_ITEM("lse", 128, MEMO_WITH),
        MEMO_ITEM("middle", 8192, MEMO_ROWS),     MEMO_ITEM("norm2", 8192, MEMO_ROWS),
        MEMO_ITEM("rstd2", 4, MEMO_WITH),         MEMO_ITEM("up", 32768, MEMO_ROWS),
        MEMO_ITEM("gelu", 32768, MEMO_ROWS)};
    static const double us[GPT_TENSORS] = {-1, 0.004,  0,     0.0475, 0.0475, 0.0475, 0,
                                           0,  0.0475, 0.004, 0,      0.19,   0.015};
    double attention_us = 0.92 * (double)n_rows / 65536;
    *swap = MEMO_ZERO(memo_swap_desc);
    *desc = MEMO_ZERO(memo_swap_plan_desc);
    memset(profile, 0, sizeof *profile);
    for (int t = 0; t < GPT_TENSORS; t++) {
        gpt[t] = table[t];
        strcpy(profile->tensors[t].name, table[t].name);
        profile->tensors[t].recompute_s_per_row[0] =
            1e-6 * (table[t].away == MEMO_WHOLE ? attention_us : us[t]);
    }
    swap->tensors = gpt;
    swap->n_tensors = GPT_TENSORS;
    swap->n_layers = n_layers;
    swap->n_rows = n_rows;
    swap->tile_rows = 1024;
    desc->swap = swap;
    desc->profile = profile;
    profile->n_rows = n_rows;
    profile->n_kinds = 1;
    profile->n_tensors = GPT_TENSORS;
    profile->forward_s[0] = 1e-6 * (0.57 + attention_us) * (double)n_rows;
    profile->backward_s[0] = 1e-6 * (2 * 0.57 + 2.5 * attention_us) * (double)n_rows;
    profile->between_s = 0.05;
    set_rates(&profile->copies[1], 55e9, 55e9);
    set_copy_s(profile, 5e-6);
}

#endif
