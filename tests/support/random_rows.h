/* random_rows.h - a valid table of rows for a memo_swap_desc: whole tensors, parts, and kept ones;
 * any layers, equal layers, or equal layers of which some keep all.
 *
 * Include after the implementation of memo.h, and memo_test.h. */
#ifndef RANDOM_ROWS_H
#define RANDOM_ROWS_H

static void random_rows(const memo_swap_desc* swap, int64_t* rows) {
    const int64_t n_tiles = memob_swap_n_tiles(swap), kind = memo_test_int(0, 2);
    const int64_t kept = memo_test_int(0, memo_test_int(0, 1) ? 100 : 30);
    const int64_t whole = memo_test_int(0, 100);
    const int32_t n = swap->n_tensors;
    for (int32_t layer = 0; layer < swap->n_layers; layer++)
        for (int32_t t = 0; t < n; t++) {
            const int32_t away = memob_item_away(swap, t);
            const int is_late = memob_tensor_is_routed(swap, t);
            int64_t tiles = memo_test_int(0, n_tiles), *row = &rows[layer * n + t];
            if (memo_test_int(0, 99) < whole || away == MEMO_WHOLE)
                tiles = memo_test_int(0, 1) * n_tiles;
            if (is_late || away == MEMO_MOVE || away == MEMO_KEEP)
                tiles = away == MEMO_ROWS ? 0 : n_tiles;
            *row = memob_swap_rows_of_tiles(swap, layer, tiles);
            if (away == MEMO_KEEP || swap->tensors[t].scope == MEMO_EDGE ||
                memo_test_int(0, 99) < kept)
                *row = MEMO_ROWS_KEPT;
            *row = row[memob_item_leader(swap->tensors, t) - t];
            if (kind && layer >= 2 && !swap->n_places) *row = row[-2 * n];
        }

    for (int32_t layer = 0; layer < swap->n_layers; layer++) {
        const int keeps_all = kind == 2 && memo_test_int(0, 2) == 0;
        for (int32_t t = 0; t < n; t++) {
            int64_t* row = &rows[layer * n + t];
            if (keeps_all) *row = MEMO_ROWS_KEPT;
            if (memob_swap_is_layer(swap, t) && layer % memob_swap_batch_slices(swap))
                *row = row[-n];
        }
    }
}

#endif
