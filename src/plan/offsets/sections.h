#pragma once
#include "plan/offsets/problem.h"
/* --- >>sections ---
 * Finds the maximal sets of items that live together, and the bytes that no plan of such a set can
 * do without: the bounds.  Door: memoi_sections_find.  Knows nothing of offsets but those that
 * are fixed.
 *
 * 1. Each range, a piece of a life without gaps, spans a section or more.  The sections of an item
 *    follow from its ranges, but that it begins no later than the items behind it.
 * 2. What begins ends: behind the last section nothing lives. */

/* Raises the bounds of sections by the items whose alignment is at least this one: each starts at a
 * multiple of it, so each but the highest takes its size rounded up; at most the largest rounding
 * is saved.  Scratch: rounding, two a section; sums, one more than sections. */
MEMOI void memoi_sections_bounds_at(memoi_problem* problem, int64_t alignment, int64_t* rounding,
                                    int64_t* sums) {
    const int64_t n = problem->n_sections;
    int64_t sum = 0, left, right;
    memset(sums, 0, (size_t)(n + 1) * sizeof *sums);
    memset(rounding, 0, (size_t)(2 * n) * sizeof *rounding);
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        const int64_t size = memob_align_up(item->size, alignment);
        const int64_t rounded = size - item->size + item->spare;
        if (item->alignment < alignment) continue;
        for (int64_t k = item->first_range; k < item->first_range + item->n_ranges; k++) {
            sums[problem->ranges[k].begin] += size; /* as differences, summed below */
            sums[problem->ranges[k].end] -= size;

            /* The nodes of a tree over sections that cover the range. */
            left = rounded > 0 ? n + problem->ranges[k].begin : 0;
            right = rounded > 0 ? n + problem->ranges[k].end : 0;
            for (; left < right; left /= 2, right /= 2) {
                if (left & 1) rounding[left] = memob_max(rounding[left], rounded), left++;
                if (right & 1) right--, rounding[right] = memob_max(rounding[right], rounded);
            }
        }
    }
    for (int64_t k = 2; k < 2 * n; k++) rounding[k] = memob_max(rounding[k], rounding[k / 2]);
    for (int64_t s = 0; s < n; s++) {
        sum += sums[s];
        problem->section_bounds[s] = memob_max(problem->section_bounds[s], sum - rounding[n + s]);
        problem->lower_bound = memob_max(problem->lower_bound, problem->section_bounds[s]);
    }
    MEMO_ASSERT(sum + sums[n] == 0); /* 2 */
}

/* Sets what follows from ranges in sections: limits and loads of items, the first items, and the
 * bounds, by the items of each section and by fixed items.  0: no memory. */
MEMOI int memoi_sections_bounds(memoi_problem* problem) {
    const int64_t n = problem->n_sections;
    int64_t alignments = 1 /* powers of two, one bit each */, begin = INT64_MAX;
    memob_arrays* a = &problem->arrays;
    int32_t* first = problem->first_item = MEMOB_ARRAY(a, int32_t, n + 1);
    const int64_t* bounds = problem->section_bounds = MEMOB_ARRAY(a, int64_t, n + 1);
    int64_t* scratch = a->failed ? NULL : (int64_t*)memob_calloc(3 * n + 1, sizeof(int64_t));
    if (!scratch) return 0;

    /* No item begins later than an item behind it, although a gap may come first and a cover may
     * have sections in another order. */
    for (int64_t i = problem->n_items - 1; i >= 0; i--) {
        memoi_item* item = &problem->items[i];
        const memoi_range* range = &problem->ranges[item->first_range];
        item->begin = begin = memob_min(begin, range->begin);
        item->end = item->until = range[item->n_ranges - 1].end;
        alignments |= item->alignment;
        if (item->fixed < 0) continue;
        problem->ground = memob_max(problem->ground, item->fixed + item->size);
        problem->lower_bound = memob_max(problem->lower_bound, memoi_item_top(item, item->fixed));
    }
    for (int64_t s = 0, i = 0; s <= n; first[s++] = (int32_t)i)
        while (i < problem->n_items && problem->items[i].begin < s) i++;
    for (; alignments > 0; alignments &= alignments - 1)
        memoi_sections_bounds_at(problem, alignments & -alignments, scratch, scratch + 2 * n);

    /* Loads, by a tree of the largest bounds. */
    memcpy(scratch + n, bounds, (size_t)n * sizeof *bounds);
    for (int64_t k = n - 1; k > 0; k--) scratch[k] = memob_max(scratch[2 * k], scratch[2 * k + 1]);
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        int64_t left = n + item->begin, right = n + item->end;
        for (item->load = 0; left < right; left /= 2, right /= 2) {
            if (left & 1) item->load = memob_max(item->load, scratch[left++]);
            if (right & 1) item->load = memob_max(item->load, scratch[--right]);
        }
    }
    MEMO_FREE(scratch);
    return 1;
}

/* Turns ranges from times into sections, and sets what follows from these.  A live set is a largest
 * one only if a range ends and another has begun since the section before.  0: no memory. */
MEMOI int memoi_sections_find(memoi_problem* problem) {
    int64_t n = problem->n_ranges, born = 0, died = 0, closed = 0;
    int has_birth = 0;
    memob_keyed* begins = (memob_keyed*)memob_calloc(2 * n, sizeof(memob_keyed));
    memob_keyed* ends = begins ? begins + n : NULL;
    if (!begins) return 0;

    /* Begins and ends in order of time. */
    for (int64_t i = 0; i < n; i++) {
        begins[i] = memob_keyed_of(problem->ranges[i].begin, i);
        ends[i] = memob_keyed_of(problem->ranges[i].end, i);
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
            problem->ranges[ends[died].index].end = closed;
            MEMO_ASSERT(problem->ranges[ends[died].index].begin < closed); /* 1 */
            died++;
        }
    }
    problem->n_sections = closed;
    MEMO_FREE(begins);
    return memoi_sections_bounds(problem);
}
