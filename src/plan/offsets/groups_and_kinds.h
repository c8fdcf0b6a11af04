#pragma once
#include "plan/offsets/bi_level.h"
/* --- >>groups and kinds ---
 * Forms groups of the buffers that live inside a window, and finds the groups that are alike.
 * Knows nothing of offsets. */

/* Ends the group that is being made, and begins another; a group of one is no group. */
MEMOI memoi_group* memoi_group_next(memoi_bilevel* bilevel, int64_t begin) {
    memoi_group* group = &bilevel->groups[bilevel->n_groups];
    group->n = bilevel->n_members - group->first;
    if (group->n == 1) bilevel->n_members--;
    if (group->n > 1) group = &bilevel->groups[++bilevel->n_groups];
    memset(group, 0, sizeof *group);
    group->first = bilevel->n_members;
    group->begin = group->end = begin;
    return group;
}

/* Forms groups.  Buffers that live longer than life_limit stay in the outer plan. */
MEMOI void memoi_bilevel_group(memoi_bilevel* bilevel, int64_t life_limit) {
    const memo_plan* plan = bilevel->plan;
    int64_t window = 0, gap = 0;
    memoi_group* group = bilevel->groups;
    bilevel->n_groups = bilevel->n_members = bilevel->longest_life = 0;
    memset(group, 0, sizeof *group);

    /* A group is a chain of buffers that overlap within one window; a new one begins if none is
     * live. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        int64_t life = buffer->end - buffer->begin;
        int has_gap = gap < plan->n_gaps && plan->gaps[gap].buffer == i;
        while (gap < plan->n_gaps && plan->gaps[gap].buffer == i) gap++;
        while (window < bilevel->n_windows && bilevel->windows[window].end <= buffer->begin)
            window++;
        if (window == bilevel->n_windows || buffer->begin < bilevel->windows[window].begin ||
            buffer->end > bilevel->windows[window].end || has_gap || buffer->is_fixed ||
            buffer->size_bytes == 0 || life > life_limit)
            continue;
        bilevel->longest_life = memob_max(bilevel->longest_life, life);
        if (buffer->begin >= group->end) group = memoi_group_next(bilevel, buffer->begin);
        group->end = memob_max(group->end, buffer->end);
        group->alignment_bytes =
            memob_max(group->alignment_bytes,
                      buffer->alignment_bytes ? buffer->alignment_bytes : plan->alignment_bytes);
        bilevel->members[bilevel->n_members++] = i;
    }
    memoi_group_next(bilevel, 0);
}

MEMOI int memoi_groups_alike(const memoi_bilevel* bilevel, const memoi_group* a,
                             const memoi_group* b) {
    if (a->n != b->n) return 0;
    for (int64_t k = 0; k < a->n; k++) {
        const memo_buffer* x = &bilevel->plan->buffers[bilevel->members[a->first + k]];
        const memo_buffer* y = &bilevel->plan->buffers[bilevel->members[b->first + k]];
        if (x->begin - a->begin != y->begin - b->begin || x->end - a->begin != y->end - b->begin ||
            x->size_bytes != y->size_bytes || x->alignment_bytes != y->alignment_bytes)
            return 0;
    }
    return 1;
}

/* Finds the kind of each group: the latest kind that is like the group, among as many as is
 * fast. */
MEMOI void memoi_bilevel_find_kinds(memoi_bilevel* bilevel) {
    enum { COMPARED = 1000 };
    int64_t* kinds = bilevel->kinds;
    int64_t n = 0, k;
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        memoi_group* group = &bilevel->groups[g];
        int64_t least = memob_max(n - COMPARED, 0);
        for (k = n - 1; k >= least; k--)
            if (memoi_groups_alike(bilevel, group, &bilevel->groups[kinds[k]])) break;
        if (k < least) kinds[k = n++] = g;
        group->kind = kinds[k];
    }
    bilevel->n_kinds = n;
}
