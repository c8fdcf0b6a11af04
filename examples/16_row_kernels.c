/* 16_row_kernels.c - runs row kernels on the calling thread: adds rows, sums their products, rounds
 * them, and merges the attention over two parts of the keys (memo_sp.h, chapter 11).
 *
 * A device has the same kernels as operations of a stream: memo_row_add(device, stream, ...) and so
 * on.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/16_row_kernels.c -o 16_row_kernels -lpthread -lm
 * Expected output:
 *     doubled: 0 2 4 6
 *     row sums of x and y: 0 8 32 72; as bf16: 0 2 4 6
 *     merged attention: 2.000, LSE 0.693
 */
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include <stdio.h>

enum { N_TOKENS = 4, N_COLUMNS = 4 };

/* y = x + x; sums of x * y; y as bf16. */
static memo_status twice(float x[N_TOKENS][N_COLUMNS], float y[N_TOKENS][N_COLUMNS],
                         float sums[N_TOKENS], uint16_t narrow[N_TOKENS][N_COLUMNS],
                         memo_error* error) {
    memo_add_desc add = {0}, products = {0}, cast = {0};

    add.to = y; /* as F32, which is 0 */
    add.a = add.b = x;
    add.n_rows = N_TOKENS;
    add.n_columns = N_COLUMNS;
    if (memo_row_run(MEMO_ROW_ADD, &add, error)) return error->status;

    products.to = sums;
    products.a = x;
    products.b = y;
    products.n_rows = N_TOKENS;
    products.n_columns = N_COLUMNS;
    if (memo_row_run(MEMO_ROW_SUMS, &products, error)) return error->status;

    cast.a = y;
    cast.to = narrow;
    cast.to_type = MEMO_TYPE_BF16;
    cast.n_columns = N_TOKENS * N_COLUMNS;
    return memo_row_run(MEMO_ROW_CAST, &cast, error);
}

int main(void) {
    float x[N_TOKENS][N_COLUMNS], y[N_TOKENS][N_COLUMNS], sums[N_TOKENS];
    uint16_t narrow[N_TOKENS][N_COLUMNS];
    float out = 1, lse = 0, part_out = 3, part_lse = 0; /* equal weights: the mean */
    memo_merge_desc merge = {0};
    memo_error error;

    for (int i = 0; i < N_TOKENS; i++)
        for (int k = 0; k < N_COLUMNS; k++) x[i][k] = (float)i;

    merge.out = &out;
    merge.lse = &lse;
    merge.part_out = &part_out;
    merge.part_lse = &part_lse;
    merge.n_rows = merge.n_columns = 1;

    if (twice(x, y, sums, narrow, &error) || memo_row_run(MEMO_ROW_MERGE, &merge, &error)) {
        fprintf(stderr, "16_row_kernels: %s\n", error.message);
        return 1;
    }

    printf("doubled:");
    for (int i = 0; i < N_TOKENS; i++) printf(" %g", y[i][0]);
    printf("\nrow sums of x and y:");
    for (int i = 0; i < N_TOKENS; i++) printf(" %g", sums[i]);
    printf("; as bf16:");
    for (int i = 0; i < N_TOKENS; i++) printf(" %g", memo_f32_from_bf16(narrow[i][0]));
    printf("\nmerged attention: %.3f, LSE %.3f\n", out, lse);
    return 0;
}
