#pragma once
#include "plan/session/plan.h"
/* --- >>session slices ---
 * Knows: plans of several sizes of slices, and of groups.  Knows nothing of how one is made. */

#define MEMOI_SESSION_LEAST_SLICE 1024 /* rows: smaller slices leave kernels little to do */

/* Is the size of a slice the planner's choice? */
MEMOI int memoi_session_chooses(const memo_session_desc* desc) {
    return desc->slice_rows == 0 && desc->n_rows > MEMOI_SESSION_LEAST_SLICE &&
           desc->n_rows <= MEMOB_BYTES_MAX && desc->tile_rows <= MEMOB_BYTES_MAX && desc->tensors &&
           memoi_rows_are_handed(desc->tensors, desc->n_tensors);
}

/* Predicted seconds of all shapes.  If a shape does not fit: bytes beyond all seconds, of the host
 * if they fit the device, or of the device beyond all bytes of hosts. */
MEMOI double memoi_step_plan_cost(const memo_step_plan* plan) {
    const int64_t limit_bytes = plan->device_budget_bytes;
    const int fits = memob_step_plan_fits(plan);
    int64_t device_bytes = 0, host_bytes = 0;
    double step_s = 0;
    for (; plan; plan = plan->next) {
        step_s += memoi_step_plan_s(plan);
        device_bytes = memob_max(device_bytes, plan->device_bytes);
        host_bytes = memob_max(host_bytes, plan->host_bytes);
    }
    if (fits) return step_s;
    return memoi_is_over(device_bytes, limit_bytes) ? 1e50 * (double)device_bytes
                                                    : 1e20 * (double)host_bytes;
}

/* Takes a trial that is better than the plan by a thousandth, or the first; destroys the other.
 * Returns whether the trial is better. */
MEMOI int memoi_planner_take_better(memoi_planner* p, memo_step_plan** plan,
                                    memo_step_plan* trial) {
    const double step_s = memoi_step_plan_cost(trial);
    const int is_better = !*plan || step_s < 0.999 * memoi_step_plan_cost(*plan);
    if (memob_step_plan_fits(trial) && (p->best_s <= 0 || step_s < p->best_s)) p->best_s = step_s;
    memo_step_plan_destroy(is_better ? *plan : trial);
    if (is_better) *plan = trial;
    return is_better;
}

/* 1, 2, 4, ... slices, until the step fits and two more sizes are no better than the best.  Sizes
 * end where the trainer's functions cannot work with so many slices.  All ranks choose the same,
 * because sizes, times and this end are agreed. */
MEMOI memo_status memoi_planner_plan_sizes(memoi_planner* p, const memo_session_desc* desc,
                                           memo_step_plan** plan, memo_error* error) {
    memo_session_desc own;
    int64_t tile_rows;
    int n_fit = 0;
    *plan = NULL;
    if (!memoi_session_chooses(desc)) return memoi_planner_plan_shapes(p, desc, plan, error);
    own = *desc;
    tile_rows = memob_max(desc->tile_rows, 1);

    for (int64_t n_slices = 1; n_fit < (p->profile && !p->effort ? 3 : 1); n_slices *= 2) {
        const int64_t larger = own.slice_rows;
        memo_step_plan* trial = NULL;
        memo_error failed;
        memo_status status;
        int fits;
        own.slice_rows = memob_align_up((desc->n_rows - 1) / n_slices + 1, tile_rows);
        if (own.slice_rows == larger) break; /* a tile */
        if (n_slices > 1 && own.slice_rows < memob_max(tile_rows, MEMOI_SESSION_LEAST_SLICE)) break;

        status = memoi_planner_plan_shapes(p, &own, &trial, &failed);
        if (status && *plan) { /* all ranks have failed: are slices too small for a function? */
            if (status == MEMO_STATUS_UNSUPPORTED || status == MEMO_STATUS_INVALID_ARGUMENT ||
                status == MEMO_STATUS_INFEASIBLE)
                status = MEMO_STATUS_OK;
            status = memob_session_verdict(desc, status, &failed);
            if (!status) break;
        }
        if (status) {
            if (error) *error = failed;
            memo_step_plan_destroy(*plan);
            *plan = NULL;
            return status;
        }
        fits = memob_step_plan_fits(trial);
        n_fit = memoi_planner_take_better(p, plan, trial) ? fits : n_fit + fits;
    }
    return MEMO_STATUS_OK;
}

/* Micro-batches one after the other; if states travel then, also groups of them, which fetch the
 * states of a layer less often, and hold more rows on the host: of every number that divides them
 * and fits, because a larger group may be faster where a smaller one is not, until nothing stalls
 * and nothing is recomputed.  All ranks choose the same. */
MEMOI memo_status memoi_planner_plan_groups(memoi_planner* p, const memo_session_desc* desc,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session_desc own = *desc;
    memo_status status = MEMO_STATUS_OK;
    int64_t most = memob_min(desc->micro_batches, MEMO_GROUP_MAX);
    *plan = NULL;
    p->best_s = 0;
    if (desc->n_group != MEMO_GROUP_PLANNED) return memoi_planner_plan_sizes(p, desc, plan, error);
    if (!p->profile || p->effort || desc->rows) most = 1; /* a table is of one micro-batch */

    for (own.n_group = 1; !status && own.n_group <= memob_max(most, 1); own.n_group++) {
        const memo_swap_plan* times = *plan ? (*plan)->times : NULL;
        memo_step_plan* trial = NULL;
        if (*plan && !((*plan)->fits && (*plan)->n_streamed)) break;
        if (times && times->stall_s + times->recompute_s <= 0.001 * times->step_s) break;
        if (desc->micro_batches % own.n_group) continue;
        status = memoi_planner_plan_sizes(p, &own, &trial, error);
        if (status) break;
        if (!memob_step_plan_fits(trial)) most = 0; /* nor do larger groups */
        (void)memoi_planner_take_better(p, plan, trial);
    }
    return status;
}
