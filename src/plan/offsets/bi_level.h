#pragma once
#include "memo/plan.h"
#include "memo/marks.h"
#include "plan/offsets/pack_doors.h"
/* ---- >>bi-level ---------------------------------------------------------------------------------
 * The engine for steps of alike layers.  Door: memoi_bilevel_solve.  Plans each level by the solver
 * that it is given, the whole memo_plan_solve, and composes the offsets in the caller's plan.
 *
 * MEMO paper, section 4.2 and Figure 8: the layers of a step are alike, so the buffers inside a
 * layer are placed once.  Marks cut time into *windows*, one per phase of a layer.  The buffers
 * that live inside a window are its locals.  They form *groups*; a group ends if none of them is
 * live.  Groups with the same buffers at the same times are of one *kind*.
 *
 * A kind is solved once.  A group becomes a single block of the outer plan, beside the buffers that
 * live longer.  A layer that differs is a kind of its own.  (The paper makes one block of all
 * groups of a window; several blocks leave room between blocks.)  Each further trial leaves the
 * longest-lived locals to the outer plan.
 *
 * 1. Windows are disjoint, and ascend.
 * 2. A block holds its members. */

enum { MEMOI_BILEVEL_ROUNDS = 4 };

/* memo_plan_solve, for a level. */
typedef memo_status (*memoi_solver)(memo_plan* plan, const memo_plan_desc* desc, memo_error* error);

typedef struct memoi_group {
    int64_t first, n; /* members */
    int64_t begin, end;
    int64_t alignment_bytes;
    int64_t kind;         /* the first group like this one */
    int64_t height_bytes; /* of a kind */
} memoi_group;

typedef struct memoi_bilevel {
    memo_plan* plan;
    memoi_solver solve;
    memoi_effort* effort;
    int32_t is_open; /* a level is not proven */
    memob_arrays arrays;
    memoi_range* windows; /* times; disjoint, ascending */
    memoi_group* groups;
    int64_t* members; /* buffers, by group */
    int64_t* inside;  /* of the members of a kind: bytes from the begin of the block */
    memo_buffer* outer;
    int64_t* offsets; /* of items */
    int64_t n_windows, n_members, n_groups, n_kinds;
} memoi_bilevel;

/* The caller frees the arrays, whether it succeeds or not. */
MEMOI int memoi_bilevel_create(memoi_bilevel* bilevel, memo_plan* plan) {
    int64_t n = plan->n_buffers;
    memob_arrays* a = &bilevel->arrays;
    memset(bilevel, 0, sizeof *bilevel);
    bilevel->plan = plan;
    bilevel->windows = MEMOB_ARRAY(a, memoi_range, 2 * n);
    bilevel->groups = MEMOB_ARRAY(a, memoi_group, n + 1);
    bilevel->members = MEMOB_ARRAY(a, int64_t, n);
    bilevel->inside = MEMOB_ARRAY(a, int64_t, n);
    bilevel->outer = MEMOB_ARRAY(a, memo_buffer, n);
    bilevel->offsets = MEMOB_ARRAY(a, int64_t, n);
    return !a->failed;
}

/* --- windows: one for each phase of a layer, between the marks of the trace --- */

/* A mark inside a phase belongs to the phase, and a recomputation right before a backward to the
 * backward.  A phase is ignored if another layer interrupts it.  Each window has a request. */
MEMOI void memoi_bilevel_windows(memoi_bilevel* bilevel, const memo_trace* trace) {
    memo_mark open = MEMO_ZERO(memo_mark);
    int64_t time = 0, begin = 0;
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_request_kind kind = trace->requests[i].kind;
        memo_mark mark;
        time += kind == MEMO_REQUEST_MALLOC || kind == MEMO_REQUEST_FREE;
        if (kind != MEMO_REQUEST_MARK) continue;
        mark = memob_request_mark(trace, i);
        if (mark.layer < 0) continue;
        if (!mark.is_end && (open.phase == MEMO_PHASE_NONE || open.layer != mark.layer)) {
            open = mark;
            begin = time;
        } else if (!mark.is_end && open.phase == MEMO_PHASE_RECOMPUTE) {
            open.phase = mark.phase;
        } else if (mark.is_end && open.phase == mark.phase && open.layer == mark.layer) {
            open.phase = MEMO_PHASE_NONE;
            if (time == begin) continue;
            MEMO_ASSERT(bilevel->n_windows == 0 || /* 1 */
                        bilevel->windows[bilevel->n_windows - 1].end <= begin);
            bilevel->windows[bilevel->n_windows].begin = begin;
            bilevel->windows[bilevel->n_windows++].end = time;
        }
    }
}

/* --- groups of the buffers inside a window, and the kinds of groups that are alike --- */

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

/* Forms groups.  Buffers that live longer than life_limit stay in the outer plan.  Returns the
 * longest life of the others. */
MEMOI int64_t memoi_bilevel_group(memoi_bilevel* bilevel, int64_t life_limit) {
    const memo_plan* plan = bilevel->plan;
    int64_t window = 0, gap = 0, longest = 0;
    memoi_group* group = bilevel->groups;
    bilevel->n_groups = bilevel->n_members = 0;
    memset(group, 0, sizeof *group);

    /* A group is a chain of buffers that overlap within one window. */
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        int64_t life = buffer->end - buffer->begin;
        const int64_t first_gap = gap;
        while (gap < plan->n_gaps && plan->gaps[gap].buffer == i) gap++;
        while (window < bilevel->n_windows && bilevel->windows[window].end <= buffer->begin)
            window++;
        if (window == bilevel->n_windows || buffer->begin < bilevel->windows[window].begin ||
            buffer->end > bilevel->windows[window].end || gap > first_gap || buffer->is_fixed ||
            buffer->size_bytes == 0 || life > life_limit)
            continue;
        longest = memob_max(longest, life);
        if (buffer->begin >= group->end) group = memoi_group_next(bilevel, buffer->begin);
        group->end = memob_max(group->end, buffer->end);
        group->alignment_bytes = memob_max(group->alignment_bytes, memob_buffer_alignment(plan, i));
        bilevel->members[bilevel->n_members++] = i;
    }
    memoi_group_next(bilevel, 0);
    return longest;
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

/* Finds the kind of each group: that of the latest group like it, among as many as is fast. */
MEMOI void memoi_bilevel_find_kinds(memoi_bilevel* bilevel) {
    enum { COMPARED = 1000 };
    memoi_group* groups = bilevel->groups;
    bilevel->n_kinds = 0;
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const int64_t least = memob_max(g - COMPARED, 0);
        int64_t k = g - 1;
        while (k >= least && !memoi_groups_alike(bilevel, &groups[g], &groups[k])) k--;
        groups[g].kind = k < least ? g : groups[k].kind;
        bilevel->n_kinds += k < least;
    }
}

/* --- two levels: each kind once, then blocks beside the long-lived buffers --- */

/* Plans a level with so many nodes, which are spent unless the level is proven. */
MEMOI memo_status memoi_level_solve(memoi_bilevel* bilevel, memo_plan* level, int64_t n_nodes,
                                    memo_error* error) {
    memoi_effort* effort = bilevel->effort;
    memo_plan_desc desc = MEMO_ZERO(memo_plan_desc);
    memo_status status;
    desc.time_limit_s = fmax(effort->clock.deadline - memob_now_s(), 1e-6);
    desc.stop = effort->clock.stop;
    desc.memoi_node_limit = memob_max(memob_min(n_nodes, effort->nodes_left), 1);
    desc.seed = effort->seed;
    desc.n_threads = (int32_t)effort->n_threads;
    status = bilevel->solve(level, &desc, error);
    if (level->proof == MEMO_PROOF_OPTIMAL) return status;
    bilevel->is_open = 1;
    memoi_effort_spend(effort, desc.memoi_node_limit);
    return status;
}

MEMOI memo_status memoi_kind_solve(memoi_bilevel* bilevel, memoi_group* kind, int64_t n_nodes,
                                   memo_error* error) {
    const int64_t* members = bilevel->members + kind->first;
    memo_plan* inner;
    memo_status status =
        memo_plan_create(kind->n, 0, bilevel->plan->alignment_bytes, &inner, error);
    if (status) return status;
    for (int64_t k = 0; k < kind->n; k++) inner->buffers[k] = bilevel->plan->buffers[members[k]];
    status = memoi_level_solve(bilevel, inner, n_nodes, error);
    kind->height_bytes = inner->peak_bytes;
    for (int64_t k = 0; k < kind->n; k++) /* in the same order, as members begin in it */
        bilevel->inside[kind->first + k] = inner->buffers[k].offset_bytes;
    memo_plan_destroy(inner);
    return status;
}

/* The outer plan: the first member of a group becomes the group's block, and other members have no
 * bytes.  So buffers stay in order of their begin. */
MEMOI memo_plan memoi_bilevel_outer(memoi_bilevel* bilevel) {
    memo_plan outer = *bilevel->plan;
    outer.n_waits = 0; /* they name buffers of the plan */
    outer.buffers = bilevel->outer;
    memcpy(outer.buffers, bilevel->plan->buffers, (size_t)outer.n_buffers * sizeof(memo_buffer));
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const memoi_group* group = &bilevel->groups[g];
        const int64_t* members = bilevel->members + group->first;
        memo_buffer* block = &outer.buffers[members[0]];
        for (int64_t k = 1; k < group->n; k++) outer.buffers[members[k]].size_bytes = 0;
        block->size_bytes = bilevel->groups[group->kind].height_bytes;
        block->end = group->end;
        block->alignment_bytes = group->alignment_bytes;
    }
    return outer;
}

/* Offers the plan: its offsets come from those of the outer plan and those within the blocks. */
MEMOI void memoi_bilevel_compose(memoi_bilevel* bilevel, const memoi_problem* problem,
                                 memoi_solution* best) {
    memo_buffer* buffers = bilevel->plan->buffers;
    for (int64_t i = 0; i < bilevel->plan->n_buffers; i++)
        buffers[i].offset_bytes = bilevel->outer[i].offset_bytes;
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const memoi_group* group = &bilevel->groups[g];
        const int64_t* members = bilevel->members + group->first;
        const int64_t* inside = bilevel->inside + bilevel->groups[group->kind].first;
        for (int64_t k = 0; k < group->n; k++) {
            MEMO_ASSERT(inside[k] + buffers[members[k]].size_bytes <= /* 2 */
                        bilevel->groups[group->kind].height_bytes);
            buffers[members[k]].offset_bytes = bilevel->outer[members[0]].offset_bytes + inside[k];
        }
    }
    for (int64_t i = 0; i < problem->n_items; i++)
        bilevel->offsets[i] = buffers[problem->items[i].origin].offset_bytes / problem->unit_bytes;
    memoi_solution_offer(problem, bilevel->offsets, best);
}

/* Solves both levels and combines their plans. */
MEMOI memo_status memoi_bilevel_round(memoi_bilevel* bilevel, const memoi_problem* problem,
                                      int64_t n_nodes, memoi_solution* best, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memo_plan outer;

    /* Inner plans: one of each kind serves all its groups. */
    for (int64_t g = 0; g < bilevel->n_groups && !status; g++)
        if (bilevel->groups[g].kind == g)
            status =
                memoi_kind_solve(bilevel, &bilevel->groups[g], n_nodes / bilevel->n_kinds, error);

    /* Outer plan: each group is one block.  Inner and outer plans together are a plan. */
    outer = memoi_bilevel_outer(bilevel);
    if (!status) status = memoi_level_solve(bilevel, &outer, n_nodes, error);
    if (!status) memoi_bilevel_compose(bilevel, problem, best);
    return status;
}

/* Offers the plan of the two levels to best, with so many nodes a level.  *is_open: more nodes may
 * make another plan.  A plan without windows is no error. */
MEMOI memo_status memoi_bilevel_solve(memo_plan* plan, const memo_trace* trace,
                                      const memoi_problem* problem, int64_t target, int64_t n_nodes,
                                      memoi_effort* effort, memoi_solver solve,
                                      memoi_solution* best, int32_t* is_open, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memoi_bilevel bilevel;
    int64_t life_limit = INT64_MAX;
    int ok = memoi_bilevel_create(&bilevel, plan), round;
    bilevel.effort = effort;
    bilevel.solve = solve;
    if (ok) memoi_bilevel_windows(&bilevel, trace);

    /* Blocks can waste room: each round leaves the longest-lived buffers to the outer plan. */
    for (round = 0; ok && round < MEMOI_BILEVEL_ROUNDS && !status; round++) {
        life_limit = memoi_bilevel_group(&bilevel, life_limit) / 2;
        memoi_bilevel_find_kinds(&bilevel);
        if (bilevel.n_groups == 0 || best->peak <= target || memoi_effort_is_over(effort)) break;
        status = memoi_bilevel_round(&bilevel, problem, n_nodes, best, error);
    }
    *is_open = bilevel.is_open;
    if (!ok) status = memob_no_memory(error, "the layers of the plan");

    /* Blocks can pass 2^62 bytes although the plan does not, so that is no error. */
    if (status == MEMO_STATUS_INVALID_ARGUMENT) status = MEMO_STATUS_OK;
    memob_arrays_free(&bilevel.arrays);
    return status;
}
