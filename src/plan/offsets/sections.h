#pragma once
#include "plan/offsets/problem.h"
/* --- >>sections ---
 * Knows: when items live.  Knows nothing of their sizes. */

/* Sets the first and the last section of each item from its ranges.  No item begins later than an
 * item behind it, although a gap may come first and a cover may have sections in another order. */
MEMOI void memoi_problem_limits(memoi_problem* problem) {
    int64_t begin = INT64_MAX;
    for (int64_t i = problem->n_items - 1; i >= 0; i--) {
        memoi_item* item = &problem->items[i];
        begin = memob_min(begin, problem->ranges[item->first_range].begin);
        item->begin = begin;
        item->end = item->until = problem->ranges[item->first_range + item->n_ranges - 1].end;
    }
}

/* Sets the sum of live sizes in each section, and the bound: no plan is lower than a live set, or
 * than the top of a fixed item.  0: no memory. */
MEMOI int memoi_problem_bounds(memoi_problem* problem) {
    int64_t n = problem->n_sections;
    int64_t* bounds = (int64_t*)memob_calloc(n + 1, sizeof(int64_t));
    MEMO_FREE(problem->section_bounds);
    problem->section_bounds = bounds;
    if (!bounds) return 0;
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        for (int64_t k = item->first_range; k < item->first_range + item->n_ranges; k++) {
            bounds[problem->ranges[k].begin] += item->size; /* as differences, summed below */
            bounds[problem->ranges[k].end] -= item->size;
        }
        if (item->fixed >= 0)
            problem->ground = memob_max(problem->ground, item->fixed + item->size);
    }
    problem->lower_bound = memob_max(problem->lower_bound, problem->ground);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) bounds[i] += bounds[i - 1];
        problem->lower_bound = memob_max(problem->lower_bound, bounds[i]);
    }
    return 1;
}

/* Turns the ranges from times into sections, and sets the limits of items.  A section ends if a
 * range ends and another has begun since the section before: only then is the live set a largest
 * one. */
MEMOI int memoi_problem_sections(memoi_problem* problem) {
    int64_t n = problem->n_ranges, born = 0, died = 0, closed = 0;
    int has_birth = 0;
    memob_keyed* begins = (memob_keyed*)memob_calloc(n, sizeof(memob_keyed));
    memob_keyed* ends = (memob_keyed*)memob_calloc(n, sizeof(memob_keyed));
    if (!begins || !ends) {
        MEMO_FREE(begins);
        MEMO_FREE(ends);
        return 0;
    }

    /* Begins and ends in order of time. */
    for (int64_t i = 0; i < n; i++) {
        begins[i].key = problem->ranges[i].begin;
        ends[i].key = problem->ranges[i].end;
        begins[i].index = ends[i].index = i;
    }
    memob_keyed_sort(begins, n);
    memob_keyed_sort(ends, n);

    /* At equal times ends come first: a range that ends and one that begins then do not overlap. */
    while (died < n) {
        if (born < n && begins[born].key < ends[died].key) {
            problem->ranges[begins[born++].index].begin = closed;
            has_birth = 1;
        } else {
            closed += has_birth;
            has_birth = 0;
            problem->ranges[ends[died++].index].end = closed;
        }
    }
    problem->n_sections = closed;
    memoi_problem_limits(problem);
    MEMO_FREE(begins);
    MEMO_FREE(ends);
    return 1;
}
