#pragma once
#include "memo/text.h"
#include "memo/plan.h"
#include "plan/offsets/sections.h"
/* --- >>items ---
 * Makes the problem of a plan: an item of each buffer, in units, with its sections and bounds, and
 * the pairs that may not share bytes although they live at different times.  Doors:
 * memoi_items_create, then memoi_items_add_holds.  Knows nothing of how items are planned.
 *
 * 1. A size is a multiple of the step, and more than its spare room.
 * 2. An alignment that the step does not guarantee is a multiple of the step.
 * 3. The earlier item of a pair comes first. */

/* How a problem may be made simpler, in bits. */
enum {
    MEMOI_STRETCHED = 1, /* each buffer lives to the end of its last hold */
    MEMOI_ROUNDED = 2    /* spare room counts in the peak */
};

/* Adds a range to the item that is being made, unless the range is empty. */
MEMOI void memoi_items_add_range(memoi_problem* problem, int64_t begin, int64_t end) {
    if (end <= begin) return;
    problem->ranges[problem->n_ranges].begin = begin;
    problem->ranges[problem->n_ranges++].end = end;
}

/* Adds the item of buffer i, with a range before, between and behind its gaps; none of an empty
 * buffer, which needs no place.  *gap, *hold: those of the buffer come next, and are passed. */
MEMOI void memoi_items_add(memoi_problem* problem, const memo_plan* plan, int64_t i, int64_t* gap,
                           int64_t* hold) {
    const memo_buffer* buffer = &plan->buffers[i];
    memoi_item* item = &problem->items[problem->n_items];
    int64_t time = buffer->begin, end = buffer->end;
    memset(item, 0, sizeof *item);
    item->first_range = problem->n_ranges;
    for (; *hold < plan->n_holds && plan->holds[*hold].buffer == i; (*hold)++)
        if (problem->is_stretched) end = memob_max(end, plan->holds[*hold].until);
    for (; *gap < plan->n_gaps && plan->gaps[*gap].buffer == i; (*gap)++) {
        memoi_items_add_range(problem, time, plan->gaps[*gap].begin);
        time = plan->gaps[*gap].end;
    }
    memoi_items_add_range(problem, time, end);
    item->n_ranges = problem->n_ranges - item->first_range;
    item->size = memob_buffer_bytes(plan, i);
    if (item->size == 0 || item->n_ranges == 0) {
        problem->n_ranges = item->first_range;
        return;
    }

    item->alignment = memob_buffer_alignment(plan, i);
    item->fixed = buffer->is_fixed ? buffer->offset_bytes : -1;
    item->lifetime = end - buffer->begin;
    item->origin = i;
    problem->n_fixed += item->fixed >= 0;
    problem->has_gaps |=
        item->n_ranges > 1 || problem->ranges[item->first_range].begin > buffer->begin;
    problem->n_items++;
}

/* Rounds sizes up to the least alignment, and returns the step in bytes. */
MEMOI int64_t memoi_items_step(memoi_problem* problem, int simpler) {
    int64_t step = 0, least = INT64_MAX;
    for (int64_t i = 0; i < problem->n_items; i++)
        least = memob_min(least, problem->items[i].alignment);
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        item->spare = memob_align_up(item->size, least) - item->size;
        item->size += item->spare;
        if (simpler & MEMOI_ROUNDED) {
            problem->is_rounded |= item->spare > 0;
            item->spare = 0;
        }
        step = memoi_problem_gcd(step, item->size);
        if (item->fixed > 0) step = memoi_problem_gcd(step, item->fixed);
    }

    /* Offsets are sums of sizes, rounded up to alignments: an alignment divides the step, or is a
     * multiple of it.  If one is neither, the step becomes a power of two, as alignments are. */
    for (int64_t i = 0; i < problem->n_items; i++) {
        const int64_t alignment = problem->items[i].alignment;
        if (step % alignment && alignment % step) step &= -step;
    }
    return problem->n_items > 0 ? step : 1;
}

/* Refuses what could overflow.  Finds out whether the step guarantees all alignments. */
MEMOI memo_status memoi_items_check(memoi_problem* problem, int64_t step, memo_error* error) {
    int64_t highest = 0, fixed_top = 0, padding = 0;
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        if (item->fixed >= 0) fixed_top = memob_max(fixed_top, item->fixed + item->size);
        highest = memob_min(highest + item->size, MEMOB_BYTES_MAX + 1);
        if (step % item->alignment == 0) continue;
        problem->has_alignment = 1;
        padding = memob_max(padding, item->alignment);
    }
    if (highest > MEMOB_BYTES_MAX - fixed_top ||
        padding > (MEMOB_BYTES_MAX - fixed_top - highest) / (problem->n_items + 1))
        return MEMOB_INVALID(error, "sizes, alignments and fixed offsets together may pass 2^62");
    if (problem->n_ranges >= INT32_MAX)
        return MEMOB_INVALID(error,
                             "plan.n_buffers: with gaps %lld is too many; at most 2^31 are planned",
                             (long long)problem->n_ranges);
    return MEMO_STATUS_OK;
}

/* Turns bytes into units: the step, or less if sizes have spare room. */
MEMOI void memoi_items_scale(memoi_problem* problem, int64_t step) {
    int64_t unit = step;
    for (int64_t i = 0; i < problem->n_items; i++)
        unit = memoi_problem_gcd(unit, problem->items[i].spare);
    problem->unit_bytes = unit;
    problem->step = step / unit;
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        item->size /= unit;
        item->spare /= unit;
        item->alignment = step % item->alignment ? item->alignment / unit : 1;
        if (item->fixed > 0) item->fixed /= unit;
        problem->spare = memob_max(problem->spare, item->spare);
        MEMO_ASSERT(item->spare < item->size && item->size % problem->step == 0);  /* 1 */
        MEMO_ASSERT(item->alignment == 1 || item->alignment % problem->step == 0); /* 2 */
    }
}

/* Makes the problem without pairs.  Errors: no memory; sizes or counts that are too large. */
MEMOI memo_status memoi_items_create(const memo_plan* plan, int simpler, memoi_problem* problem,
                                     memo_error* error) {
    int64_t gap = 0, hold = 0, step;
    memob_arrays* a = &problem->arrays;
    memo_status status;
    memset(problem, 0, sizeof *problem);
    problem->is_stretched = simpler & MEMOI_STRETCHED;
    problem->items = MEMOB_ARRAY(a, memoi_item, plan->n_buffers);
    problem->ranges = MEMOB_ARRAY(a, memoi_range, plan->n_buffers + plan->n_gaps);
    problem->neighbors = MEMOB_ARRAY(a, memoi_neighbors, 1);
    status = a->failed ? memob_no_memory(error, "the planning problem") : MEMO_STATUS_OK;

    /* In bytes and times first. */
    for (int64_t i = 0; i < plan->n_buffers && !status; i++)
        memoi_items_add(problem, plan, i, &gap, &hold);
    step = memoi_items_step(problem, simpler);
    if (!status) status = memoi_items_check(problem, step, error);

    /* Sections replace times, because the search goes through live sets, not through requests. */
    if (!status) memoi_items_scale(problem, step);
    if (!status && !memoi_sections_find(problem))
        status = memob_no_memory(error, "the planning problem");
    if (status) memoi_problem_free(problem);
    return status;
}

/* --- pairs that holds keep apart, because one stream has not waited for another --- */

enum { MEMOI_HELD_PAIRS = 1 << 25 }; /* beyond, lifetimes are stretched instead */

/* Adds the pair of items i and j, if both are items.  UNFIT: there are too many. */
MEMOI memoi_made memoi_items_add_pair(memoi_problem* problem, int64_t i, int64_t j,
                                      int64_t* capacity) {
    const int64_t k = 2 * problem->n_held;
    if (i < 0 || j < 0) return MEMOI_MADE;
    if (problem->n_held == MEMOI_HELD_PAIRS) return MEMOI_UNFIT;
    if (!memob_reserve(&problem->held, capacity, k + 2, sizeof(int32_t))) return MEMOI_NO_MEMORY;
    MEMO_ASSERT(i < j); /* 3 */
    problem->held[k] = (int32_t)i;
    problem->held[k + 1] = (int32_t)j;
    problem->n_held++;
    problem->items[i].until = memob_max(problem->items[i].until, problem->items[j].begin + 1);
    return MEMOI_MADE;
}

/* Adds the pairs that holds keep apart.  UNFIT: there are too many. */
MEMOI memoi_made memoi_items_add_holds(memoi_problem* problem, const memo_plan* plan) {
    int64_t capacity = 0;
    int64_t* item_of = (int64_t*)memob_calloc(plan->n_buffers, sizeof(int64_t)); /* + 1 */
    memoi_made made = item_of ? MEMOI_MADE : MEMOI_NO_MEMORY;
    for (int64_t i = 0; made && i < problem->n_items; i++)
        item_of[problem->items[i].origin] = i + 1;
    for (int64_t h = 0; made == MEMOI_MADE && h < plan->n_holds; h++) {
        const memo_hold* hold = &plan->holds[h];
        for (int64_t j = hold->buffer + 1; made == MEMOI_MADE && j < plan->n_buffers; j++) {
            const memo_buffer* other = &plan->buffers[j];
            if (other->begin >= hold->until) break;
            if (other->lane == hold->lane && other->begin >= plan->buffers[hold->buffer].end)
                made = memoi_items_add_pair(problem, item_of[hold->buffer] - 1, item_of[j] - 1,
                                            &capacity);
        }
    }
    MEMO_FREE(item_of);
    return made;
}
