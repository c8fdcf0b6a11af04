/* gpt_layers.h - a planning problem for test_swap_plan.c and bench/swap_plan.c: the layers of a GPT
 * with hidden size 4096 in bf16, with the figures of one H200 and tiles of 1024 rows. */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include "memo_plan.h"

enum { GPT_TENSORS = 13 };

/* Fills all arrays and descs but the capacities and the rates of a file. */
static MEMO_UNUSED void gpt_layers(memo_item* gpt, double* recompute_s_per_row,
                                   memo_kind_times* times, memo_swap_desc* swap,
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
    for (int t = 0; t < GPT_TENSORS; t++) {
        gpt[t] = table[t];
        recompute_s_per_row[t] = 1e-6 * (table[t].away == MEMO_WHOLE ? attention_us : us[t]);
    }
    swap->tensors = gpt;
    swap->n_tensors = GPT_TENSORS;
    swap->n_layers = n_layers;
    swap->n_rows = n_rows;
    swap->tile_rows = 1024;
    desc->swap = swap;
    memset(times, 0, sizeof *times);
    times->recompute_s_per_row = recompute_s_per_row;
    desc->kinds = times;
    times->forward_s = 1e-6 * (0.57 + attention_us) * (double)n_rows;
    times->backward_s = 1e-6 * (2 * 0.57 + 2.5 * attention_us) * (double)n_rows;
    desc->between_s = 0.05;
    desc->copy_s = 5e-6;
    desc->to_host_bytes_per_s = desc->to_device_bytes_per_s = 55e9;
}

#endif
