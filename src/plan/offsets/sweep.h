#pragma once
#include "plan/offsets/problem.h"
/* --- >>sweep ---
 * Knows: what lives now, and when it ends.  Knows nothing of what comes later.
 *
 * A plan at once, exact where memory is scarcest.  The items of the fullest section form a stack,
 * the first to end at the bottom.  From there a pass goes forward in time, and another pass
 * backward, as if time were mirrored.  Each item goes into a hole between live items, beside the
 * item whose end is closest to its own: items that end together leave a single hole.  The smaller
 * the rest of the hole, the better.  Every item stays above all fixed items.
 *
 * Holes of similar size are in one bin, and a step looks at a bounded number of holes, so the time
 * of a step does not depend on the number of items. */

enum { MEMOI_SWEEP_BINS = 512, MEMOI_SWEEP_LOOKS = 128 };

/* A live item, by address.  The hole below it, if there is one, is in a bin. */
typedef struct memoi_tenant {
    int32_t below, above;
    int32_t previous, next; /* in the bin; -1: none */
    int32_t end;            /* a section, in the direction of the pass */
} memoi_tenant;

typedef struct memoi_sweep {
    const memoi_problem* problem;
    int64_t* offsets;
    memob_keyed *stack, *begins, *ends;
    int64_t n_stack;
    double near; /* share of a life within which ends are near; the cost of others is quadratic */
    memoi_tenant* blocks; /* of an item; the last one is below the lowest and above the highest */
    int32_t bins[MEMOI_SWEEP_BINS]; /* the first of each, or -1 */
} memoi_sweep;

/* Eight bins for each power of two. */
MEMOI int memoi_sweep_bin(int64_t size) {
    int shift = 0;
    while (size >> shift >= 16) shift++;
    return 8 * shift + (int)(size >> shift);
}

/* The hole below an item; the last block has one below the bound. */
MEMOI memoi_range memoi_sweep_hole(const memoi_sweep* sweep, int32_t i) {
    const memoi_problem* problem = sweep->problem;
    const int32_t below = sweep->blocks[i].below, n = (int32_t)problem->n_items;
    memoi_range hole;
    hole.begin = below == n ? problem->ground : sweep->offsets[below] + problem->items[below].size;
    hole.end = i < n ? sweep->offsets[i] : memob_align_up(problem->lower_bound, problem->step);
    return hole;
}

/* Puts the hole below an item into its bin, or takes it out. */
MEMOI void memoi_sweep_list(memoi_sweep* sweep, int32_t i, int is_new) {
    memoi_tenant* block = &sweep->blocks[i];
    const memoi_range hole = memoi_sweep_hole(sweep, i);
    int32_t* first;
    if (hole.end <= hole.begin) return;
    first = &sweep->bins[memoi_sweep_bin(hole.end - hole.begin)];
    if (is_new) {
        block->previous = -1;
        block->next = *first;
        *first = i;
        if (block->next >= 0) sweep->blocks[block->next].previous = i;
    } else {
        if (block->next >= 0) sweep->blocks[block->next].previous = block->previous;
        *(block->previous >= 0 ? &sweep->blocks[block->previous].next : first) = block->next;
    }
}

MEMOI void memoi_sweep_put(memoi_sweep* sweep, int32_t i, int32_t above, int64_t offset) {
    const int32_t below = sweep->blocks[above].below;
    memoi_sweep_list(sweep, above, 0);
    sweep->offsets[i] = offset;
    sweep->blocks[i].below = below;
    sweep->blocks[i].above = above;
    sweep->blocks[below].above = sweep->blocks[above].below = i;
    memoi_sweep_list(sweep, i, 1);
    memoi_sweep_list(sweep, above, 1);
}

MEMOI void memoi_sweep_free(memoi_sweep* sweep, int32_t i) {
    const int32_t below = sweep->blocks[i].below, above = sweep->blocks[i].above;
    memoi_sweep_list(sweep, i, 0);
    memoi_sweep_list(sweep, above, 0);
    sweep->blocks[below].above = above;
    sweep->blocks[above].below = below;
    memoi_sweep_list(sweep, above, 1);
}

/* Places an item into the best of the smallest holes.  An item that fits no hole, or is stacked,
 * goes on top of all live items. */
MEMOI void memoi_sweep_place(memoi_sweep* sweep, int32_t i, int is_stacked) {
    const memoi_item* item = &sweep->problem->items[i];
    int32_t above = (int32_t)sweep->problem->n_items, k, looks = 0;
    int64_t offset = memob_align_up(memoi_sweep_hole(sweep, above).begin, item->alignment);
    int bin = is_stacked ? MEMOI_SWEEP_BINS : memoi_sweep_bin(item->size), side;
    const double near = sweep->near * (double)(item->until - item->begin);
    double least = HUGE_VAL;

    /* The hole and the side with the least cost: an end near the neighbor's, little left over. */
    for (; bin < MEMOI_SWEEP_BINS && looks < MEMOI_SWEEP_LOOKS; bin++) {
        for (k = sweep->bins[bin]; k >= 0 && looks < MEMOI_SWEEP_LOOKS; k = sweep->blocks[k].next) {
            const memoi_range hole = memoi_sweep_hole(sweep, k);
            const int64_t low = memob_align_up(hole.begin, item->alignment);
            const int64_t high = (hole.end - item->size) / item->alignment * item->alignment;
            if (low + item->size > hole.end) continue;
            for (side = 0; side < 2; side++, looks++) {
                const int32_t neighbor = side ? k : sweep->blocks[k].below;
                double apart =
                    fabs((double)sweep->blocks[neighbor].end - (double)sweep->blocks[i].end);
                double rest = (double)(hole.end - hole.begin - item->size + item->size / 64 + 1);
                double cost = (apart * (apart > near ? apart : near) + 1) * rest;
                if (cost >= least) continue;
                least = cost;
                above = k;
                offset = side ? high : low;
            }
        }
    }
    memoi_sweep_put(sweep, i, above, offset);
}

/* Stacks the items of a section, and places all that begin behind it, in their order. */
MEMOI void memoi_sweep_pass(memoi_sweep* sweep, int64_t section, int is_backward) {
    const memoi_problem* problem = sweep->problem;
    const int64_t n = problem->n_items, n_sections = problem->n_sections;
    const int64_t from = is_backward ? n_sections - 1 - section : section;
    memob_keyed *begins = sweep->begins, *ends = sweep->ends;
    memoi_tenant* last = &sweep->blocks[n];
    int64_t n_free = 0, over = 0;
    for (int64_t i = 0; i < n; i++) {
        const memoi_item* item = &problem->items[i];
        if (item->fixed >= 0) continue;
        begins[n_free].key = is_backward ? n_sections - item->until : item->begin;
        ends[n_free].key = is_backward ? n_sections - item->begin : item->until;
        sweep->blocks[i].end = (int32_t)ends[n_free].key;
        begins[n_free].index = ends[n_free].index = i;
        n_free++;
    }
    memob_keyed_sort(begins, n_free);
    memob_keyed_sort(ends, n_free);
    memset(sweep->bins, -1, sizeof sweep->bins);
    last->below = last->above = (int32_t)n;
    last->end = INT32_MAX;
    memoi_sweep_list(sweep, (int32_t)n, 1);
    for (int64_t k = 0; k < sweep->n_stack; k++)
        memoi_sweep_place(sweep, (int32_t)sweep->stack[k].index, 1);

    /* Items that end at a section are over before others begin there. */
    while (over < n_free && ends[over].key <= from) over++;
    for (int64_t k = 0; k < n_free; k++) {
        if (begins[k].key <= from) continue;
        for (; ends[over].key <= begins[k].key; over++)
            memoi_sweep_free(sweep, (int32_t)ends[over].index);
        memoi_sweep_place(sweep, (int32_t)begins[k].index, 0);
    }
}

/* Sets all offsets.  near: 0, or a share of an item's life (memoi_sweep).  0: no memory. */
MEMOI int memoi_sweep_run(const memoi_problem* problem, double near, int64_t* offsets) {
    const int64_t n = problem->n_items;
    int64_t fullest = 0;
    int ok;
    memob_arrays a = MEMO_ZERO(memob_arrays);
    memoi_sweep sweep;
    memset(&sweep, 0, sizeof sweep);
    sweep.problem = problem;
    sweep.near = near;
    sweep.offsets = offsets;

    sweep.stack = MEMOB_ARRAY(&a, memob_keyed, n);
    sweep.begins = MEMOB_ARRAY(&a, memob_keyed, n);
    sweep.ends = MEMOB_ARRAY(&a, memob_keyed, n);
    sweep.blocks = MEMOB_ARRAY(&a, memoi_tenant, n + 1);
    ok = !a.failed;
    if (ok) {
        for (int64_t i = 1; i < problem->n_sections; i++)
            if (problem->section_bounds[i] > problem->section_bounds[fullest]) fullest = i;
        for (int64_t i = 0; i < n; i++) {
            const memoi_item* item = &problem->items[i];
            offsets[i] = item->fixed;
            if (item->fixed >= 0 || item->begin > fullest || item->until <= fullest) continue;
            sweep.stack[sweep.n_stack].key = item->until;
            sweep.stack[sweep.n_stack++].index = i;
        }

        memob_keyed_sort(sweep.stack, sweep.n_stack);
        memoi_sweep_pass(&sweep, fullest, 0);
        memoi_sweep_pass(&sweep, fullest, 1);
    }
    memob_arrays_free(&a);
    return ok;
}
