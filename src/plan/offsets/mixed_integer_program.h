#pragma once
#include "memo/text.h"
#include "plan/offsets/neighbors.h"
#include "plan/offsets/solution.h"
/* ---- >>mixed-integer program --------------------------------------------------------------------
 * The engine of the paper, by lp_solve.  Door: memoi_mip_solve.  Knows nothing of the search.  Only
 * the order of the items is taken from lp_solve's answer; the offsets are rebuilt from it in whole
 * units.
 *
 * MEMO paper, section 4.2.1: offsets o_i, peak M, for pairs i < j a binary z_ij, "i is below j":
 *     minimize M,   o_i + s_i <= M,   o_i + s_i <= o_j + U (1 - z_ij),   o_j + s_j <= o_i + U z_ij
 * where U is the best peak known, with the largest spare room.  Items end at the peak but for their
 * spare room.  Added: bounds on M.
 *
 * 1. Each pair has a column of its own. */

#ifdef MEMO_LP_SOLVE

enum { MEMOI_MIP_PAIRS = 20000 }; /* more, with items, are too many for lp_solve to factorize */

typedef struct memoi_mip {
    const memoi_problem* problem;
    int64_t n_pairs;
    lprec* lp;
    double scale; /* from units to what lp_solve sees */
    const memoi_deadline* clock;
} memoi_mip;

static int __WINAPI memoi_mip_abort(lprec* lp, void* user) {
    (void)lp;
    return memoi_deadline_is_over(((const memoi_mip*)user)->clock);
}

/* Adds the row x[a] - x[b] + factor z <= limit; without z if its column is 0. */
MEMOI int memoi_mip_row(const memoi_mip* mip, int a, int b, int z, double factor, double limit) {
    double value[3] = {1, -1, factor};
    int column[3] = {a, b, z};
    return add_constraintex(mip->lp, z ? 3 : 2, value, column, LE, limit);
}

/* Columns: o_i at 1 + i, M at 1 + n, the pairs after it. */
MEMOI int memoi_mip_build(memoi_mip* mip, const memoi_solution* best) {
    const memoi_problem* problem = mip->problem;
    const memoi_neighbors* neighbors = problem->neighbors;
    int64_t n = problem->n_items, j;
    int peak_column = (int)n + 1, z = peak_column, ok = 1;
    double slack = 0.25 * mip->scale, limit = (double)(best->peak + problem->spare) * mip->scale;
    lprec* lp = mip->lp;

    /* The peak lies between the bound and the best plan; slack allows for lp_solve's tolerances. */
    set_verbose(lp, 0);
    set_minim(lp);
    ok &= set_mat(lp, 0, peak_column, 1.0);
    ok &= set_bounds(lp, peak_column, (double)problem->lower_bound * mip->scale - slack,
                     (double)best->peak * mip->scale + slack);

    /* Offsets, and which of a pair lies below the other. */
    for (int64_t i = 0; i < n; i++) {
        const memoi_item* item = &problem->items[i];
        const double highest = limit - (double)item->size * mip->scale + slack;
        const double fixed = (double)item->fixed * mip->scale;
        ok &= set_bounds(lp, 1 + (int)i, fmax(fixed, 0), item->fixed < 0 ? highest : fixed);
    }
    for (int64_t k = 1; k <= mip->n_pairs; k++) ok &= set_binary(lp, peak_column + (int)k, TRUE);

    /* Each item ends at the peak or below.  Row mode makes adding rows faster. */
    ok &= set_add_rowmode(lp, TRUE);
    for (int64_t i = 0; i < n; i++)
        ok &= memoi_mip_row(mip, 1 + (int)i, peak_column, 0, 0,
                            -(double)memoi_item_top(&problem->items[i], 0) * mip->scale);

    /* One of each conflicting pair lies below the other. */
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = neighbors->first[i]; k < neighbors->first[i + 1]; k++) {
            if ((j = neighbors->list[k]) < i) continue;
            z++;
            ok &= memoi_mip_row(mip, 1 + (int)i, 1 + (int)j, z, limit,
                                limit - (double)problem->items[i].size * mip->scale);
            ok &= memoi_mip_row(mip, 1 + (int)j, 1 + (int)i, z, -limit,
                                -(double)problem->items[j].size * mip->scale);
        }
    MEMO_ASSERT(z == peak_column + mip->n_pairs); /* 1 */

    /* Only an exact optimum is a proof. */
    ok &= set_add_rowmode(lp, FALSE);
    set_bb_floorfirst(lp, BRANCH_CEILING);
    set_mip_gap(lp, TRUE, 0);
    set_mip_gap(lp, FALSE, 0);

    /* Peaks are whole units, so a peak within half a unit of the bound is at the bound. */
    set_break_at_value(lp, ((double)problem->lower_bound + 0.5) * mip->scale);
    put_abortfunc(lp, memoi_mip_abort, mip);
    return ok;
}

/* Places items in an order, each on top of the items before it.  0: fixed items leave no room. */
MEMOI int memoi_mip_stack(const memoi_problem* problem, const memob_keyed* order,
                          int64_t* offsets) {
    const memoi_neighbors* neighbors = problem->neighbors;
    for (int64_t i = 0; i < problem->n_items; i++) offsets[i] = -1;
    for (int64_t k = 0; k < problem->n_items; k++) {
        const int64_t i = order[k].index;
        int64_t top = memob_max(problem->items[i].fixed, 0);
        for (int64_t l = neighbors->first[i]; l < neighbors->first[i + 1]; l++) {
            const int64_t j = neighbors->list[l];
            if (offsets[j] >= 0) top = memob_max(top, offsets[j] + problem->items[j].size);
        }
        if (problem->items[i].fixed >= 0 && top > problem->items[i].fixed) return 0;
        offsets[i] = top;
    }
    return 1;
}

MEMOI memo_status memoi_mip_solve(const memoi_problem* problem, const memoi_deadline* clock,
                                  memoi_solution* best, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t n = problem->n_items, *offsets = NULL;
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memob_keyed* order = NULL;
    double* columns = NULL;
    memoi_mip mip = MEMO_ZERO(memoi_mip);
    memoi_made made;
    mip.problem = problem;
    mip.clock = clock;

    /* What the program cannot express, or lp_solve cannot handle. */
    if (problem->has_alignment)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "the MIP counts in one unit, which these alignments do not allow; "
                              "use the search");
    made = memoi_neighbors_list(problem);
    mip.n_pairs =
        (made == MEMOI_MADE ? problem->neighbors->first[n] : memoi_neighbors_count(problem)) / 2;
    if (made != MEMOI_NO_MEMORY && n + mip.n_pairs > MEMOI_MIP_PAIRS)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "%lld buffers and %lld overlapping pairs are too many for the MIP "
                              "(limit %d); use the search",
                              (long long)n, (long long)mip.n_pairs, (int)MEMOI_MIP_PAIRS);
    columns = MEMOB_ARRAY(&arrays, double, n + 1 + mip.n_pairs);
    offsets = MEMOB_ARRAY(&arrays, int64_t, n);
    order = MEMOB_ARRAY(&arrays, memob_keyed, n);
    if (made == MEMOI_NO_MEMORY || arrays.failed) status = memob_no_memory(error, "the MIP");

    /* lp_solve's tolerances are absolute: scale the peak to at most 100000. */
    mip.scale = best->peak > 100000 ? 100000.0 / (double)best->peak : 1.0;

    if (!status) mip.lp = make_lp(0, (int)(n + 1 + mip.n_pairs));
    if (!status && (!mip.lp || !memoi_mip_build(&mip, best)))
        status = memob_no_memory(error, "lp_solve");
    if (!status) {
        int result = solve(mip.lp);
        double peak = get_objective(mip.lp) / mip.scale;
        if ((result == OPTIMAL || result == SUBOPTIMAL) && get_variables(mip.lp, columns)) {
            for (int64_t i = 0; i < n; i++)
                order[i] = memob_keyed_of((int64_t)(columns[i] / mip.scale + 0.5), i);
            qsort(order, (size_t)n, sizeof *order, memob_keyed_compare);
            if (memoi_mip_stack(problem, order, offsets))
                memoi_solution_offer(problem, offsets, best);

            /* The search was complete, and the plan is within half a unit of its peak. */
            if (result == OPTIMAL && (double)best->peak < peak + 0.5) best->bound = best->peak;
        }
    }
    if (mip.lp) delete_lp(mip.lp);
    memob_arrays_free(&arrays);
    return status;
}

#else

#define memoi_mip_solve(problem, clock, best, error)                                               \
    memo_error_set(error, MEMO_STATUS_UNSUPPORTED,                                                 \
                   "built without lp_solve: define MEMO_LP_SOLVE and link -llpsolve55, or use "    \
                   "the search")

#endif /* MEMO_LP_SOLVE */
