#pragma once
#include "plan/offsets/sections.h"
#include "plan/offsets/reuse.h"
/* --- >>cover ---
 * Sections instead of pairs, which makes the exact search the engine for holds.  Door:
 * memoi_problem_hold.  Knows which items conflict, and nothing of why.
 *
 * Sections are largest sets of items that conflict with each other, until each pair of items in
 * conflict is in a section.  Then nothing needs the pairs, and all bounds of sections count held
 * items.  Gaps make such sets too: items of which each two overlap may never live all at once.  A
 * set grows item by item.  The next item brings the most pairs that no section has yet, times its
 * size.  An item without such pairs comes last, however large: else a set might end without the
 * pair that the set was made for.
 *
 * 1. A section grows by items in conflict with all its members. */

enum { MEMOI_COVER_WORK = 1 << 28 }; /* items looked at; then the pairs stay */

typedef struct memoi_cover {
    const memoi_problem* problem;
    memob_arrays arrays;
    int64_t n_words;
    uint64_t* conflicts; /* (items, words): a bit for each neighbor */
    uint64_t* open;      /* (items, words): neighbors with which the item shares no section yet */
    int32_t* members;    /* of the section */
    int32_t* candidates; /* items in conflict with all members */
    int64_t* gain;       /* of a candidate: new pairs with the members */
    int64_t n_members, n_candidates, n_sections, n_work;
    memob_keyed* stays; /* an item in a section */
    memob_keyed* order; /* sections by time: that of the latest member, then of the earliest */
    int64_t n_stays, stay_capacity, order_capacity;
} memoi_cover;

MEMOI int memoi_cover_create(memoi_cover* cover, const memoi_problem* problem) {
    const memoi_neighbors* neighbors = problem->neighbors;
    int64_t n = problem->n_items;
    memob_arrays* a = &cover->arrays;
    memset(cover, 0, sizeof *cover);
    cover->problem = problem;
    cover->n_words = (n + 63) / 64;
    cover->conflicts = MEMOB_ARRAY(a, uint64_t, n * cover->n_words);
    cover->open = MEMOB_ARRAY(a, uint64_t, n * cover->n_words);
    cover->members = MEMOB_ARRAY(a, int32_t, n);
    cover->candidates = MEMOB_ARRAY(a, int32_t, n);
    cover->gain = MEMOB_ARRAY(a, int64_t, n);
    if (a->failed) return 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = neighbors->first[i]; k < neighbors->first[i + 1]; k++) {
            int32_t j = neighbors->list[k];
            cover->conflicts[i * cover->n_words + j / 64] |= (uint64_t)1 << j % 64;
        }
    memcpy(cover->open, cover->conflicts, (size_t)(n * cover->n_words) * sizeof(uint64_t));
    return 1;
}

/* Item i joins the section.  0: no memory. */
MEMOI int memoi_cover_join(memoi_cover* cover, int32_t i) {
    const uint64_t* conflicts = cover->conflicts + i * cover->n_words;
    uint64_t* open = cover->open + i * cover->n_words;
    int64_t n = 0;
    for (int64_t k = 0; k < cover->n_members; k++) { /* its pairs have a section now */
        int32_t j = cover->members[k];
        MEMO_ASSERT(conflicts[j / 64] >> j % 64 & 1); /* 1 */
        cover->open[j * cover->n_words + i / 64] &= ~((uint64_t)1 << i % 64);
        open[j / 64] &= ~((uint64_t)1 << j % 64);
    }
    cover->members[cover->n_members++] = i;
    for (int64_t k = 0; k < cover->n_candidates; k++) {
        int32_t j = cover->candidates[k];
        cover->candidates[n] = j;
        n += (int64_t)(conflicts[j / 64] >> j % 64 & 1);
        cover->gain[j] += (int64_t)(open[j / 64] >> j % 64 & 1);
    }
    cover->n_work += cover->n_members + cover->n_candidates;
    cover->n_candidates = n;
    if (!memob_reserve(&cover->stays, &cover->stay_capacity, cover->n_stays + 1,
                       sizeof(memob_keyed)))
        return 0;
    cover->stays[cover->n_stays++] = memob_keyed_of(i, cover->n_sections);
    return 1;
}

/* Makes a section that contains item i and the items of the set.  0: no memory. */
MEMOI int memoi_cover_grow(memoi_cover* cover, int32_t i, const char* is_in_set) {
    const memoi_neighbors* neighbors = cover->problem->neighbors;
    int64_t earliest = i, latest = i;
    int ok;
    cover->n_members = cover->n_candidates = 0;
    for (int64_t k = neighbors->first[i]; k < neighbors->first[i + 1]; k++) {
        cover->candidates[cover->n_candidates++] = neighbors->list[k];
        cover->gain[neighbors->list[k]] = 0;
    }

    /* The candidate with the largest gain joins, until there is none. */
    ok = memoi_cover_join(cover, i);
    while (ok && cover->n_candidates > 0) {
        double most = -1, size;
        for (int64_t k = 0; k < cover->n_candidates; k++) {
            int32_t j = cover->candidates[k];
            size = (double)cover->problem->items[j].size;
            size *= is_in_set && is_in_set[j] ? 1e18 : (double)cover->gain[j] + 1e-30;
            if (size <= most) continue;
            most = size;
            i = j;
        }
        ok = memoi_cover_join(cover, i);
    }

    for (int64_t k = 0; k < cover->n_members; k++) {
        earliest = memob_min(earliest, cover->members[k]);
        latest = memob_max(latest, cover->members[k]);
    }
    if (!ok || !memob_reserve(&cover->order, &cover->order_capacity, cover->n_sections + 1,
                              sizeof(memob_keyed)))
        return 0;
    cover->order[cover->n_sections] =
        memob_keyed_of(latest * cover->problem->n_items + earliest, cover->n_sections);
    cover->n_sections++;
    return 1;
}

/* Replaces the pairs by the sections, in order of time.  An item has a range for each run of
 * sections that contain it.  0: no memory. */
MEMOI int memoi_cover_use(memoi_cover* cover, memoi_problem* problem) {
    int64_t* number = MEMOB_ARRAY(&cover->arrays, int64_t, cover->n_sections);
    memoi_range* range = MEMOB_ARRAY(&problem->arrays, memoi_range, cover->n_stays);
    if (!number || !range) return 0;
    qsort(cover->order, (size_t)cover->n_sections, sizeof(memob_keyed), memob_keyed_compare);
    for (int64_t k = 0; k < cover->n_sections; k++) number[cover->order[k].index] = k;
    for (int64_t k = 0; k < cover->n_stays; k++)
        cover->stays[k].index = number[cover->stays[k].index];
    qsort(cover->stays, (size_t)cover->n_stays, sizeof(memob_keyed), memob_keyed_compare);

    MEMO_FREE(problem->held);
    problem->held = NULL;
    problem->n_held = 0;
    problem->ranges = range;
    problem->n_sections = cover->n_sections;
    problem->n_ranges = 0;
    problem->has_gaps = problem->is_cover = 1;

    for (int64_t k = 0; k < cover->n_stays; k++) {
        memoi_item* item = &problem->items[cover->stays[k].key];
        const int64_t section = cover->stays[k].index;
        const int is_first = k == 0 || cover->stays[k - 1].key != cover->stays[k].key;
        if (is_first) item->first_range = problem->n_ranges;
        if (is_first || range[problem->n_ranges - 1].end != section)
            range[problem->n_ranges++].begin = section;
        range[problem->n_ranges - 1].end = section + 1;
        item->n_ranges = problem->n_ranges - item->first_range;
    }
    return memoi_sections_bounds(problem);
}

/* Replaces the pairs of a problem, which has lists of neighbors, by sections.  It does nothing if
 * that takes too long.  is_in_set: the first section; if that is empty, any.  0: no memory. */
MEMOI int memoi_problem_cover(memoi_problem* problem, const char* is_in_set) {
    const int64_t n = problem->n_items, *first = problem->neighbors->first;
    int32_t i = 0;
    memoi_cover cover;
    int ok;
    if (memoi_problem_is_large(problem) || MEMOI_WITHOUT(cover)) return 1;
    ok = memoi_cover_create(&cover, problem);
    while (i < n && !is_in_set[i]) i++;
    if (ok && i < n) ok = memoi_cover_grow(&cover, i, is_in_set);

    /* Sections for all pairs of an item, or one of the item alone if it has none. */
    for (i = 0; ok && i < n && cover.n_work < MEMOI_COVER_WORK; i++) {
        const uint64_t* open = cover.open + i * cover.n_words;
        ok = first[i] < first[i + 1] || memoi_cover_grow(&cover, i, NULL);
        for (int64_t k = 0; k < cover.n_words; k++)
            while (ok && open[k] && cover.n_work < MEMOI_COVER_WORK)
                ok = memoi_cover_grow(&cover, i, NULL);
    }

    /* After too much work the pairs stay. */
    if (ok && cover.n_work < MEMOI_COVER_WORK) ok = memoi_cover_use(&cover, problem);
    memob_arrays_free(&cover.arrays);
    MEMO_FREE(cover.stays);
    MEMO_FREE(cover.order);
    return ok;
}

/* Turns the pairs of a problem into sections in reasonable time, and raises its bound; gaps of a
 * small problem, too.  It does nothing if the lists of neighbors are too long.  0: no memory. */
MEMOI int memoi_problem_hold(memoi_problem* problem) {
    const int has_pairs = problem->n_held > 0;
    char* is_in_set;
    memoi_made listed;
    int ok;
    if (!has_pairs && (!problem->has_gaps || problem->n_items > MEMOI_SMALL_ITEMS)) return 1;
    listed = memoi_neighbors_list(problem);
    if (listed != MEMOI_MADE) return listed == MEMOI_UNFIT;
    is_in_set = (char*)memob_calloc(problem->n_items, 1);
    ok = is_in_set && (!has_pairs || memoi_problem_reuse(problem, is_in_set)) &&
         memoi_problem_cover(problem, is_in_set);
    MEMO_FREE(is_in_set);
    return ok;
}
