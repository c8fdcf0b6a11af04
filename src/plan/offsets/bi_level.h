#pragma once
#include "plan/offsets/pack_doors.h"
/* ---- >>bi-level ---------------------------------------------------------------------------------
 * Knows: a plan, the marks of its trace, how to pose and compose smaller plans.  Knows nothing of
 * how a plan is solved.
 *
 * MEMO paper, section 4.2 and Figure 8: the layers of a step are alike, so the buffers inside a
 * layer are placed once.  Marks cut time into *windows*, one per phase of a layer.  The buffers
 * that live inside a window are its locals.  They form *groups*; a group ends if none of them is
 * live.  Groups with the same buffers at the same times are of one *kind*.
 *
 * A kind is solved once.  A group becomes a single block of the outer plan, beside the buffers that
 * live longer.  A layer that differs is a kind of its own.  (The paper makes one block of all
 * groups of a window; several blocks leave room between blocks.)  A recomputation inside a backward
 * belongs to the backward. */

enum { MEMOI_BILEVEL_ROUNDS = 4 };

typedef struct memoi_group {
    int64_t first, n; /* members */
    int64_t begin, end;
    int64_t alignment_bytes;
    int64_t kind;         /* the first group like this one */
    int64_t height_bytes; /* of a kind */
} memoi_group;

typedef struct memoi_bilevel {
    memo_plan* plan;
    memoi_solver solve; /* for a level */
    memoi_effort* effort;
    int32_t is_open; /* a level is not proven */
    memob_arrays arrays;
    memoi_range* windows; /* times; disjoint, ascending */
    memoi_group* groups;
    int64_t* members; /* buffers, by group */
    int64_t* inside;  /* of the members of a kind: bytes from the begin of the block */
    int64_t* kinds;   /* the first group of each */
    memo_buffer* outer;
    int64_t n_windows, n_members, n_groups, n_kinds;
    int64_t longest_life; /* of the members */
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
    bilevel->kinds = MEMOB_ARRAY(a, int64_t, n + 1);
    bilevel->outer = MEMOB_ARRAY(a, memo_buffer, n);
    return !a->failed;
}
