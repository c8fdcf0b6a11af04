#pragma once
#include "memo/poison.h"
#include "plan/rows/bytes.h"
/* --- >>row score ---
 * Knows: the step of a table, and which of two tables is better.  Knows nothing of how tables are
 * found.
 *
 * 1. A table that fits has a time.
 * 2. A cell that a table may get is MEMO_ROWS_KEPT, or tiles from 0 to n_tiles. */

/* Bytes beyond a capacity; 0: no limit. */
MEMOI double memoi_rows_excess(int64_t capacity_bytes, double n_bytes) {
    return capacity_bytes ? memoi_rows_later(0, n_bytes - (double)capacity_bytes) : 0;
}

MEMOI double memoi_rows_held(const memoi_rows_score* score) {
    return score->device_bytes + (double)score->sizes.host_bytes + (double)score->sizes.spill_bytes;
}

/* Sets what the trial's bytes exceed, which guides the search toward tables that fit; without a
 * file none is used.  Returns 1 if nobody asks for its time: it does not fit, or takes too long
 * even if nothing stalls. */
MEMOI int memoi_rows_weigh(memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    memoi_rows_score* score = &p->trial.score;
    const double recompute_s = score->recompute_s * memob_rows_n_batches(desc);
    const double least_s = (1 - 1e-9) * (p->clock.least_s + recompute_s);
    const double host_bytes = memoi_rows_excess(desc->host_bytes, (double)score->sizes.host_bytes);
    score->excess_bytes = memoi_rows_excess(desc->device_bytes, score->device_bytes) + host_bytes +
                          memoi_rows_excess(desc->spill_bytes, (double)score->sizes.spill_bytes);
    p->meets_host |= host_bytes > 0 || score->n_host_layers;
    score->lifted_bytes = 0;
    if (p->lifted == MEMO_SWAP_LIMIT_HOST_MEMORY)
        score->lifted_bytes = (double)score->sizes.host_bytes;
    if (p->lifted == MEMO_SWAP_LIMIT_DEVICE_MEMORY) score->lifted_bytes = score->device_bytes;
    if (score->recompute_s >= MEMOI_ROWS_IMPOSSIBLE ||
        memoi_rows_held(score) > (double)MEMOB_BYTES_MAX)
        score->excess_bytes = MEMOI_ROWS_IMPOSSIBLE;
    if (score->excess_bytes >= MEMOI_ROWS_IMPOSSIBLE) return 1;
    if (score->excess_bytes > 0 && !desc->swap->rows) return 1;
    if (least_s > p->clock.enough_s) score->step_s = HUGE_VAL;
    return least_s > p->clock.enough_s;
}

/* Finds the trial's bytes, and its step with as many layers in host memory as fit: the makespan,
 * and the stall, the part in which nothing is computed.  Returns 1 if there is a step; 0: it
 * takes longer than enough, or none fits. */
MEMOI int memoi_rows_time_trial(memoi_rows_planner* p) {
    memoi_rows_score* score = &p->trial.score;
    memoi_rows_add_up(p);
    if (memoi_rows_weigh(p)) return 0;
    if (memoi_rows_find_law(&p->clock, NULL)) {
        p->lacks_memory = 1;
        score->excess_bytes = MEMOI_ROWS_IMPOSSIBLE;
        return 0;
    }
    p->clock.recompute_s = score->recompute_s;
    score->step_s = memoi_rows_step(&p->clock);
    score->stall_s = p->clock.now.stall_s;
    score->update_s = p->clock.update_s;
    memcpy(score->copied_bytes, p->clock.now.copied_bytes, sizeof score->copied_bytes);
    return p->is_timed = !p->clock.is_long;
}

/* Scores the trial.  A search comes to the same tables again and again, above all if they have few
 * cells; what is known of a table depends on the times alone, and on the host's budget if that is
 * the number of places of a file. */
MEMOI void memoi_rows_score_trial(memoi_rows_planner* p) {
    const size_t n_bytes = (size_t)p->n_cells * sizeof *p->trial.cells;
    const uint64_t digest = memob_digest((const char*)p->trial.cells, (int64_t)n_bytes);
    const int64_t place = (int64_t)(digest & (uint64_t)(p->n_known - 1));
    memoi_rows_known* known = &p->known[place];
    int64_t* cells = p->known_cells + place * p->n_cells;
    if (known->times_version == p->times_version && !memcmp(cells, p->trial.cells, n_bytes)) {
        p->trial.score = known->score;
        if (memoi_rows_weigh(p) || known->is_timed) return;
        p->trial.score.step_s = HUGE_VAL;
        if (known->over_s >= p->clock.enough_s) return;
    }
    p->clock.is_long = 0;
    known->is_timed = memoi_rows_time_trial(p);
    known->over_s = p->clock.is_long ? p->clock.enough_s : 0;
    known->score = p->trial.score;
    known->times_version = p->times_version;
    memcpy(cells, p->trial.cells, n_bytes);
}

/* Less beyond the capacities; if both fit a shorter step; then less of a lifted memory, less
 * recomputed, moved, held. */
MEMOI int memoi_rows_is_better(const memoi_rows_score* a, const memoi_rows_score* b) {
    const double hair = 1e-12 * b->step_s;
    if (a->excess_bytes < b->excess_bytes || a->excess_bytes > b->excess_bytes)
        return a->excess_bytes < b->excess_bytes;
    if (a->excess_bytes > 0) return 0;
    if (a->step_s < b->step_s - hair) return 1;
    if (a->step_s > b->step_s + hair) return 0;
    if (a->lifted_bytes < b->lifted_bytes || a->lifted_bytes > b->lifted_bytes)
        return a->lifted_bytes < b->lifted_bytes;
    if (a->recompute_s < b->recompute_s - hair) return 1;
    if (a->recompute_s > b->recompute_s + hair) return 0;
    if (a->swapped_bytes < b->swapped_bytes || a->swapped_bytes > b->swapped_bytes)
        return a->swapped_bytes < b->swapped_bytes;
    return memoi_rows_held(a) < memoi_rows_held(b);
}

/* From now on trials are only compared with p->best, and with steps of other_s. */
MEMOI void memoi_rows_set_enough(memoi_rows_planner* p, const memoi_rows_score* other,
                                 double other_s) {
    const int is_open = p->best.score.excess_bytes > 0 || other->excess_bytes > 0;
    p->clock.enough_s =
        is_open ? HUGE_VAL : (1 + 1e-9) * memoi_rows_later(p->best.score.step_s, other_s);
}

/* All trials are timed, however long they take. */
MEMOI void memoi_rows_time_all(memoi_rows_planner* p) { p->clock.enough_s = HUGE_VAL; }

/* Scores p->trial.  A better trial becomes p->best, and the result is 1. */
MEMOI int memoi_rows_try(memoi_rows_planner* p) {
    memoi_rows_score_trial(p);
    MEMO_ASSERT(p->trial.score.step_s >= 0 || p->trial.score.excess_bytes > 0); /* 1 */
    if (!memoi_rows_is_better(&p->trial.score, &p->best.score)) return 0;
    memoi_rows_copy(p, &p->trial, &p->best);
    return 1;
}

/* 1 if a bundle may have this cell in a layer. */
MEMOI int memoi_rows_is_valid(const memoi_rows_planner* p, int32_t layer, int32_t b, int64_t cell) {
    const memoi_rows_rule rule = p->rules[(int64_t)b * p->n_layers + layer];
    MEMO_ASSERT(memob_is_within(cell, MEMO_ROWS_KEPT, p->n_tiles)); /* 2 */
    if (cell == MEMO_ROWS_KEPT || rule == MEMOI_RULE_ROWS) return 1;
    if (rule == MEMOI_RULE_KEEP || rule == MEMOI_RULE_ABSENT) return 0;
    if (rule == MEMOI_RULE_LATE) return cell == 0;
    return cell == p->n_tiles || (cell == 0 && rule == MEMOI_RULE_WHOLE);
}
