#pragma once
#include "plan/profile_file.h"
/* ---- 3 rows of every tensor ---------------------------------------------------------------------
 * Knows: the swap engine's sizes and places, how long operations take.  Knows nothing of devices.
 *
 * Tensors that are recomputed together are one *bundle*.  A *table* has a cell for each bundle of
 * each layer: kept, or how many tiles are swapped. */

void memo_swap_plan_destroy(memo_swap_plan* plan) {
    if (!plan) return;
    MEMO_FREE(plan->rows);
    MEMO_FREE(plan);
}

MEMOI double memoi_rows_later(double a_s, double b_s) { return b_s > a_s ? b_s : a_s; }
MEMOI double memoi_rows_sooner(double a_s, double b_s) { return b_s < a_s ? b_s : a_s; }
