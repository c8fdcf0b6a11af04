#pragma once
#include "memo/text.h"
#include "memo/plan.h"
#include "plan/offsets/sections.h"
/* --- >>items ---
 * Makes the problem of a plan: an item of each buffer, in units, with its sections and bounds.
 * Knows nothing of how items are planned. */

/* How a problem may be made simpler, in bits. */
enum {
    MEMOI_STRETCHED = 1, /* each buffer lives to the end of its last hold */
    MEMOI_ROUNDED = 2    /* spare room counts in the peak */
};

/* The problem without holds. */
MEMOI memo_status memoi_problem_create(const memo_plan* plan, int simpler, memoi_problem* problem,
                                       memo_error* error) {
    const int is_stretched = simpler & MEMOI_STRETCHED;
    int64_t gap = 0, hold = 0, unit = 0, highest = 0, fixed_top = 0, padding = 0, least = INT64_MAX;
    memset(problem, 0, sizeof *problem);
    problem->is_stretched = is_stretched;
    problem->items = (memoi_item*)memob_calloc(plan->n_buffers, sizeof(memoi_item));
    problem->ranges =
        (memoi_range*)memob_calloc(plan->n_buffers + plan->n_gaps, sizeof(memoi_range));
    problem->neighbors = (memoi_neighbors*)memob_calloc(1, sizeof(memoi_neighbors));
    if (!problem->items || !problem->ranges || !problem->neighbors) goto no_memory;

    /* An item has a range between each two gaps.  Empty buffers need no place, so no item is made
     * of them. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        memoi_item* item = &problem->items[problem->n_items];
        int64_t time = buffer->begin, end = buffer->end;
        memset(item, 0, sizeof *item);
        item->first_range = problem->n_ranges;
        for (; is_stretched && hold < plan->n_holds && plan->holds[hold].buffer == i; hold++)
            end = memob_max(end, plan->holds[hold].until);
        for (; gap < plan->n_gaps && plan->gaps[gap].buffer == i; gap++) {
            if (plan->gaps[gap].begin > time) {
                problem->ranges[problem->n_ranges].begin = time;
                problem->ranges[problem->n_ranges++].end = plan->gaps[gap].begin;
            }
            time = plan->gaps[gap].end;
        }
        if (end > time) {
            problem->ranges[problem->n_ranges].begin = time;
            problem->ranges[problem->n_ranges++].end = end;
        }
        item->n_ranges = problem->n_ranges - item->first_range;
        item->size = memob_buffer_bytes(plan, i);
        if (item->size == 0 || item->n_ranges == 0) {
            problem->n_ranges = item->first_range;
            continue;
        }

        item->alignment = buffer->alignment_bytes ? buffer->alignment_bytes : plan->alignment_bytes;
        item->fixed = buffer->is_fixed ? buffer->offset_bytes : -1;
        item->lifetime = end - buffer->begin;
        item->buffer = i;
        least = memob_min(least, item->alignment);
        problem->n_fixed += item->fixed >= 0;
        problem->has_gaps |=
            item->n_ranges > 1 || problem->ranges[item->first_range].begin > buffer->begin;
        problem->n_items++;
    }

    /* The unit is the largest that divides all sizes and fixed offsets: smaller numbers make a
     * smaller search. */
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        item->spare = memob_align_up(item->size, least) - item->size;
        item->size += item->spare;
        if (simpler & MEMOI_ROUNDED) {
            problem->is_rounded |= item->spare > 0;
            item->spare = 0;
        }
        unit = memoi_problem_gcd(unit, item->size);
        if (item->fixed > 0) unit = memoi_problem_gcd(unit, item->fixed);
    }

    /* Offsets are sums of sizes, rounded up to alignments.  An alignment that divides the unit
     * holds by itself; any other alignment must be a multiple of the unit.  A smaller unit can
     * break an earlier item's alignment, so the loop begins again.  The unit halves at least, so
     * that is rare. */
    for (int64_t i = 0; i < problem->n_items; i++) {
        int64_t alignment = problem->items[i].alignment;
        if (unit % alignment == 0 || alignment % unit == 0) continue;
        unit = memoi_problem_gcd(unit, alignment);
        i = -1;
    }
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        if (item->fixed >= 0) fixed_top = memob_max(fixed_top, item->fixed + item->size);
        highest = memob_min(highest + item->size, MEMOB_BYTES_MAX + 1);
        if (unit % item->alignment == 0) continue;
        problem->has_alignment = 1;
        padding = memob_max(padding, item->alignment);
    }

    /* Refuse what could overflow: offsets in 64 bits, indices of ranges in 32. */
    if (highest > MEMOB_BYTES_MAX - fixed_top ||
        padding > (MEMOB_BYTES_MAX - fixed_top - highest) / (problem->n_items + 1)) {
        memoi_problem_free(problem);
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                              "sizes, alignments and fixed offsets together may pass 2^62");
    }
    if (problem->n_ranges >= INT32_MAX) {
        memoi_problem_free(problem);
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "plan.n_buffers: with gaps %lld is too many; at most 2^31 are planned",
            (long long)problem->n_ranges);
    }

    /* Sections replace times, because the search goes through live sets, not through requests. */
    if (unit == 0) unit = 1; /* nothing to place */
    problem->step = unit;
    for (int64_t i = 0; i < problem->n_items; i++)
        unit = memoi_problem_gcd(unit, problem->items[i].spare);
    problem->unit_bytes = unit;
    if (!memoi_problem_sections(problem)) goto no_memory;

    /* Sizes in units. */
    for (int64_t i = 0; i < problem->n_items; i++) {
        memoi_item* item = &problem->items[i];
        item->size /= unit;
        item->spare /= unit;
        item->alignment = problem->step % item->alignment ? item->alignment / unit : 1;
        if (item->fixed > 0) item->fixed /= unit;
        problem->spare = memob_max(problem->spare, item->spare);
    }
    problem->step /= unit;
    if (!memoi_problem_bounds(problem)) goto no_memory;
    return MEMO_STATUS_OK;
no_memory:
    memoi_problem_free(problem);
    return memob_no_memory(error, "the planning problem");
}
