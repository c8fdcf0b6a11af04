#pragma once
#include "plan/offsets/bricks.h"
#include "plan/offsets/full_sections.h"
/* --- >>parts ---
 * Knows: where no item crosses.  Knows nothing of how a part is planned. */

/* A part of a plan begins with item first, and no item crosses the borders of a part; with holds,
 * all items are a single part.  Returns the first item after the part.  *end: the first section
 * after the part.  *peak: the peak of its items. */
MEMOI int64_t memoi_search_extent(const memoi_problem* problem, const int64_t* offsets,
                                  int64_t first, int64_t* end, int64_t* peak) {
    int64_t last = first;
    *end = problem->held || problem->is_cover || MEMOI_WITHOUT(parts) ? problem->n_sections
                                                                      : problem->items[first].end;
    *peak = 0;
    for (; last < problem->n_items && problem->items[last].begin < *end; last++) {
        *end = memob_max(*end, problem->items[last].end);
        *peak = memob_max(*peak, memoi_item_top(&problem->items[last], offsets[last]));
    }
    return last;
}

/* Searches the parts that end above the goal, the highest first.  No other part need become lower
 * than the result of the highest.  Each part gets a share of the remaining effort; the last
 * part gets all.  parts: scratch, one per item.  *peak: of all parts. */
MEMOI memo_status memoi_search_pass(const memoi_problem* problem, int64_t target,
                                    memoi_effort* effort, memob_keyed* parts, memoi_solution* best,
                                    int64_t* bound, int64_t* peak, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t n = 0, first, last, end, part_peak;

    /* Parts of the plan that share no item, the highest first: only the highest decides the
     * peak. */
    for (first = 0; first < problem->n_items; first = last) {
        last = memoi_search_extent(problem, best->offsets, first, &end, &part_peak);
        parts[n].key = -part_peak;
        parts[n++].index = first;
    }
    qsort(parts, (size_t)n, sizeof *parts, memob_keyed_compare);

    /* Lower each part no further than the goal or the highest part so far, because more gains
     * nothing. */
    *peak = 0;
    for (int64_t k = 0; k < n && !status; k++) {
        int64_t goal = memob_max(memob_max(target, *bound), *peak);
        memoi_effort own;
        int is_last;
        part_peak = -parts[k].key;
        if (part_peak <= goal || effort->nodes_left <= 0 || memob_now_s() > effort->deadline) {
            *peak = memob_max(*peak, part_peak); /* the parts behind are no higher */
            break;
        }
        is_last = k + 1 == n || -parts[k + 1].key <= goal;
        own = memoi_effort_take(effort, is_last ? 1 : 1.0 / (int)MEMOI_SHARE);
        first = parts[k].index;
        last = memoi_search_extent(problem, best->offsets, first, &end, &part_peak);
        status = memoi_search_part_at(problem, first, last, NULL, goal, &own, best, bound,
                                      &part_peak, error);
        effort->nodes_left += own.nodes_left;
        *peak = memob_max(*peak, part_peak);
    }
    return status;
}

/* What easy parts leave of their shares goes to hard parts in another pass, with another seed.
 * best holds a plan of the whole, which stays valid whatever happens to a part. */
MEMOI memo_status memoi_search_solve(const memoi_problem* problem, int64_t target,
                                     memoi_effort* effort, memoi_solution* best,
                                     memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    int64_t bound = problem->lower_bound, peak = 0, nodes_before;
    uint64_t seed = effort->seed;
    memob_keyed* parts = (memob_keyed*)memob_calloc(problem->n_items, sizeof(memob_keyed));
    if (!parts) return memob_no_memory(error, "the parts of the plan");
    if (memoi_problem_is_plain(problem) && !MEMOI_WITHOUT(bricks) &&
        memob_now_s() < effort->deadline)
        status = memoi_bricks_solve(problem, target, effort, best, error);
    if (!status && best->peak > target && problem->n_items > MEMOI_SMALL_ITEMS &&
        memoi_problem_is_easy(problem) && !MEMOI_WITHOUT(full_sections)) {
        /* What is left outside may fit if a few percent more or less count as full. */
        double share = 1.0 / (int)MEMOI_SHARE;
        for (int percent = 81; percent < 100 && !status && best->peak > memob_max(target, bound) &&
                               memob_now_s() < effort->deadline;
             percent += 4, share /= 2)
            status = memoi_full_solve(problem, percent, share, target, effort, best, &bound, error);
    }

    do {
        nodes_before = effort->nodes_left;
        if (!status)
            status = memoi_search_pass(problem, target, effort, parts, best, &bound, &peak, error);
        effort->seed++;
    } while (!status && peak > memob_max(target, bound) && effort->nodes_left > 0 &&
             effort->nodes_left < nodes_before && memob_now_s() < effort->deadline);

    effort->seed = seed;
    MEMO_FREE(parts);
    if (!status) {
        best->peak = peak;
        best->is_optimal = peak <= bound;
    }
    return status;
}
