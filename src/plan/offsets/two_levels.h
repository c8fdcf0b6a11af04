#pragma once
#include "memo/plan.h"
#include "plan/offsets/marked_windows.h"
#include "plan/offsets/groups_and_kinds.h"
/* --- >>two levels ---
 * The door of bi-level: memoi_bilevel_solve plans each kind once, then the blocks of all groups
 * beside the long-lived buffers, and joins both.  Knows nothing of windows. */

/* Plans a level with so many nodes. */
MEMOI memo_status memoi_level_solve(memoi_bilevel* bilevel, memo_plan* level, int64_t n_nodes,
                                    memo_error* error) {
    memoi_effort* effort = bilevel->effort;
    memo_plan_desc desc = MEMO_ZERO(memo_plan_desc);
    memo_status status;
    desc.time_limit_s = fmax(effort->clock.deadline - memob_now_s(), 1e-6);
    desc.stop = effort->clock.stop;
    desc.node_limit = memob_max(memob_min(n_nodes, effort->nodes_left), 1);
    desc.seed = effort->seed;
    desc.n_threads = (int32_t)effort->n_threads;
    status = bilevel->solve(level, &desc, error);
    if (level->proof == MEMO_PROOF_OPTIMAL) return status;
    bilevel->is_open = 1;
    memoi_effort_spend(effort, desc.node_limit);
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
    for (int64_t k = 0; k < kind->n;
         k++) /* members begin one after the other: the order has stayed */
        bilevel->inside[kind->first + k] = inner->buffers[k].offset_bytes;
    memo_plan_destroy(inner);
    return status;
}

/* The outer plan: the first member of a group becomes the group's block, and other members have no
 * bytes.  So buffers stay in order of their begin. */
MEMOI memo_plan memoi_bilevel_outer(memoi_bilevel* bilevel) {
    memo_plan outer = *bilevel->plan;
    outer.n_waits = 0; /* names of lives */
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

/* Sets the plan's offsets from those of the outer plan and those within the blocks. */
MEMOI void memoi_bilevel_compose(memoi_bilevel* bilevel) {
    memo_buffer* buffers = bilevel->plan->buffers;
    for (int64_t i = 0; i < bilevel->plan->n_buffers; i++)
        buffers[i].offset_bytes = bilevel->outer[i].offset_bytes;
    for (int64_t g = 0; g < bilevel->n_groups; g++) {
        const memoi_group* group = &bilevel->groups[g];
        const int64_t* members = bilevel->members + group->first;
        const int64_t* inside = bilevel->inside + bilevel->groups[group->kind].first;
        for (int64_t k = 0; k < group->n; k++)
            buffers[members[k]].offset_bytes = bilevel->outer[members[0]].offset_bytes + inside[k];
    }
}

/* Solves both levels and combines their plans. */
MEMOI memo_status memoi_bilevel_round(memoi_bilevel* bilevel, const memoi_problem* problem,
                                      int64_t n_nodes, memoi_solution* best, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memo_plan outer;
    int64_t* offsets;

    /* Inner plans: one of each kind serves all its groups. */
    for (int64_t g = 0; g < bilevel->n_kinds && !status; g++)
        status = memoi_kind_solve(bilevel, &bilevel->groups[bilevel->kinds[g]],
                                  n_nodes / bilevel->n_kinds, error);

    /* Outer plan: each group is one block.  Inner and outer plans together are a plan. */
    outer = memoi_bilevel_outer(bilevel);
    if (!status) status = memoi_level_solve(bilevel, &outer, n_nodes, error);
    offsets = (int64_t*)memob_calloc(problem->n_items, sizeof(int64_t));
    if (!status && !offsets) status = memob_no_memory(error, "the layers of the plan");
    if (!status) {
        memoi_bilevel_compose(bilevel);
        for (int64_t i = 0; i < problem->n_items; i++)
            offsets[i] =
                bilevel->plan->buffers[problem->items[i].buffer].offset_bytes / problem->unit_bytes;
        memoi_solution_offer(problem, offsets, best);
    }
    MEMO_FREE(offsets);
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
    if (ok) memoi_windows_from_marks(&bilevel, trace);

    /* Blocks can waste room: each round leaves the longest-lived buffers to the outer plan. */
    for (round = 0; ok && round < MEMOI_BILEVEL_ROUNDS && !status; round++) {
        memoi_bilevel_group(&bilevel, life_limit);
        memoi_bilevel_find_kinds(&bilevel);
        life_limit = bilevel.longest_life / 2;
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
