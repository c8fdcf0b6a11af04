#pragma once
#include "memo/base.h"
/* ---- >>problem ----------------------------------------------------------------------------------
 * THE PLANNER OF OFFSETS IN A PAGE: a problem, its bounds, engines, and a loop.  This room has the
 * types of a problem, and knows nothing of engines.
 *
 *   problem   >>items makes it of a plan's buffers and of what streams keep apart; >>neighbors
 *             lists what conflicts with an item; >>cover makes sections of what streams keep apart
 *   bounds    >>sections: no plan is lower than the items that live together, rounded up; >>reuse:
 *             than items that streams keep apart
 *   engines   each lowers the best plan so far (>>solution), and has a file of its own
 *   loop      >>loop: memoi_loop_run gives the engines work that doubles from round to round, until
 *             the plan is proven, nothing gains, or nodes or time are spent.  >>plan solve calls
 *             it, and >>pack doors takes engines for puzzles from extras/memo_pack.h.
 *
 * docs/architecture.md has recipes for a new engine, and for a new rule of the exact search.
 *
 * Engines as they run; AUTO and BILEVEL have rounds, GREEDY and MIP one.
 *   >>bi-level                rounds of BILEVEL      marks of layers; no holds      a plan
 *   >>greedy                  first; large: rounds   any problem                    a plan
 *   >>first fit               first round: all       any problem                    a plan
 *                             orders; easy, not
 *                             large: one a round
 *   >>mixed-integer program   MIP, behind greedy     no alignments, few conflicts   a plan, a proof
 *   >>full sections           rounds                 easy, not small                a plan, a bound
 *   >>ejections               rounds; GREEDY if not  any; before the search unless  a plan
 *                             easy                   small and plain, or a cover
 *   >>exact search            rounds                 not large; holds as a cover    a plan, a proof
 * MEMOI_WITHOUT switches off orders (but the first), first_fit, reuse, cover, full_sections,
 * ejections, or search.
 * memo_plan_solve makes a pass or two; a pass has rounds; a round of the search tries capacities;
 * an attempt at one has runs, each with an order of its own; a run visits nodes.
 *
 * TERMS.  Sizes are counted in units, time in *sections*: a section is a set of items that live
 * together, to which no other item can be added.  Two items overlap exactly where they share a
 * section, so a packing of every section is a plan.
 *   step    the largest number that divides sizes, rounded up, and fixed offsets; its largest power
 *           of two, if an alignment neither divides it nor is a multiple of it
 *   unit    the largest number that divides the step and all spare room
 *   spare   bytes by which a size is rounded up to the least alignment, as offsets are multiples of
 *           it; the spare room of the topmost item does not count in the peak
 *   large   above MEMOI_SEARCH_ITEMS items; *small*: at most MEMOI_SMALL_ITEMS, often proven
 *   plain   without alignments, gaps, holds and fixed items; *easy*: with alignments at most
 *   gap     a time in an item's life in which other items may take its bytes
 *   wait    one stream waits for another: what lives on the two is in order
 *   hold    without that wait, an item is *held* against items of the other stream: *pairs*
 *   cover   sections made from conflicts, not from time: these replace gaps and pairs
 */

enum {
    MEMOI_SMALL_ITEMS = 500,
    MEMOI_SEARCH_ITEMS = 8000, /* at most in the exact search, which is as deep as the items */
    MEMOI_CLOCK = 64,          /* steps of greedy or ejections between two looks at the clock */
    MEMOI_TRIES = 16,          /* of what costs little; and a share that does */
    MEMOI_SHARE = 4,           /* an engine gets this part of the nodes that it may spend in vain */
    MEMOI_PLACED_NODE = 8      /* items that a greedy run places in the time of a node */
};

/* What makers of lists and engines return.  UNFIT: not for this problem, so callers do without. */
typedef enum memoi_made { MEMOI_UNFIT = -1, MEMOI_NO_MEMORY, MEMOI_MADE } memoi_made;

typedef struct memoi_range {
    int64_t begin, end; /* [begin, end): times at first, then sections */
} memoi_range;

typedef struct memoi_item {
    int64_t size;       /* rounded up to the least alignment; in units, as four of those below */
    int64_t spare;      /* part of the size that the rounding added */
    int64_t alignment;  /* 1 if the step guarantees it */
    int64_t fixed;      /* offset, or -1 */
    int64_t begin, end; /* [begin, end): its sections, those in gaps too; see >>sections */
    int64_t until;      /* end, or later: where the last item held against it begins */
    int64_t first_range, n_ranges;
    int64_t load;     /* the bound of the fullest section that it meets, gaps included */
    int64_t lifetime; /* in the plan's time */
    int64_t origin;   /* index of the plan's buffer or, of a picked item, in the whole */
} memoi_item;

typedef struct memoi_problem {
    memob_arrays arrays; /* all but held, which grows */
    memoi_item* items;   /* ordered by begin */
    memoi_range* ranges; /* one an item, more with gaps; in the order of items */
    int64_t n_items, n_ranges, n_sections, n_fixed;
    int32_t* first_item;     /* of a section, and of the end: that begins there or later */
    int64_t* section_bounds; /* the least peak of a section's items, without other sections */
    int64_t lower_bound;
    int64_t ground; /* the top of the highest fixed item, with spare room */
    int64_t spare;  /* the largest of an item */
    int64_t step, unit_bytes;
    int32_t has_alignment, has_gaps;
    int32_t is_rounded;   /* spare room counts in the peak: proofs are of that peak */
    int32_t is_cover;     /* sections replace pairs, and are not in order of time */
    int32_t is_stretched; /* items live to the end of their last hold: nothing is proven */
    int32_t* held;        /* pairs, the earlier item first; NULL: there are none */
    int64_t n_held;
    struct memoi_neighbors* neighbors;
} memoi_problem;

/* The items that conflict with item i are list[first[i]] to list[first[i + 1] - 1]: fixed items
 * first, the lowest first.  The lists are made on first use. */
typedef struct memoi_neighbors {
    memob_arrays arrays;
    int64_t* first;
    int32_t* list;
    int32_t are_too_many;
} memoi_neighbors;

MEMOI void memoi_problem_free(memoi_problem* problem) {
    if (problem->neighbors) memob_arrays_free(&problem->neighbors->arrays);
    memob_arrays_free(&problem->arrays);
    MEMO_FREE(problem->held);
    memset(problem, 0, sizeof *problem);
}

/* The highest byte of an item that counts in the peak, for an item at this offset. */
MEMOI int64_t memoi_item_top(const memoi_item* item, int64_t offset) {
    return offset + item->size - item->spare;
}

/* Is nothing fixed, and does every item live in one piece, with conflicts only at its time? */
MEMOI int memoi_problem_is_easy(const memoi_problem* problem) {
    return !problem->n_fixed && !problem->has_gaps && !problem->held;
}

MEMOI int memoi_problem_is_plain(const memoi_problem* problem) {
    return memoi_problem_is_easy(problem) && !problem->has_alignment;
}

MEMOI int memoi_problem_is_large(const memoi_problem* problem) {
    return problem->n_items > MEMOI_SEARCH_ITEMS;
}

MEMOI int64_t memoi_problem_gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

MEMOI int memoi_problem_items_overlap(const memoi_problem* problem, int64_t i, int64_t j) {
    const memoi_item* a = &problem->items[i];
    const memoi_item* b = &problem->items[j];
    const memoi_range *x = problem->ranges + a->first_range, *y = problem->ranges + b->first_range;
    if (a->begin >= b->end || b->begin >= a->end) return 0;
    for (int64_t k = 0; k < a->n_ranges; k++)
        for (int64_t l = 0; l < b->n_ranges; l++)
            if (x[k].begin < y[l].end && y[l].begin < x[k].end) return 1;
    return 0;
}
