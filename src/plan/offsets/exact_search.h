#pragma once
#include "plan/offsets/neighbors.h"
#include "plan/offsets/greedy.h"
/* ---- >>exact search -----------------------------------------------------------------------------
 * Knows: the problem and a capacity.  Knows nothing of where the capacity comes from.
 *
 * Is there a plan within the capacity?  Among all plans take one whose offsets have the least sum.
 * In that plan every item lies at 0, right on top of an item below, or where the item is fixed.  So
 * the plan is reached by placing items upwards, each at its *minimum*, the top of its placed
 * neighbors.  (Neighbors: items that overlap in time.)
 *
 * Branching.  An unplaced item c is *first* among its unplaced neighbors, and then lies at its
 * minimum; or c is not first, and then is *blocked* until a neighbor is placed.  The two cases
 * exclude each other and leave nothing out.  c is an item that can be first and would lie lowest,
 * at the *floor*: the lowest unplaced item of the plan is first among its neighbors, so every
 * unplaced item lies at the floor or higher.
 *
 * Pruning.  Every unplaced item has a *bound* >= its minimum; above it, the item cannot be first.
 * In each section that a decision touched, once in a node:
 *   head    for every t: t + the sizes of the items with bound >= t must fit below the capacity
 *   lift    if bound of i + all unplaced sizes do not fit, i is not the section's lowest: its bound
 *           becomes the least end of the items that can be
 *   stack   head and lift count the holes that alignments leave in the best stack of the items,
 *           from the capacity down; what is known of a set serves all nodes within the capacity
 *   block   a blocked item likewise, over all the sections that it meets
 *   hole    an unplaced item would fit under the floor: then it could be lowered, and the plan is
 *           not the one looked for
 *
 * Parts.  Where no unplaced item reaches from a section into the next, the two sides are searched
 * alone; one that fails fails the node, without trying the other again.
 *
 * Failures.  The result of a part depends on its unplaced items alone: their minimums, bounds and
 * blocks.  Orders of decisions that lead to the same state are searched once: a failed state is
 * remembered as 128 bits of hash.  Failures outlast restarts, so that restarts prove something too.
 */

typedef enum memoi_verdict {
    MEMOI_FAILED = 0, /* exhausted: there is no such plan */
    MEMOI_FOUND,
    MEMOI_STOPPED /* by the limit of nodes or time */
} memoi_verdict;

/* Which of several items at the floor comes next: the one that meets the tightest section, that
 * with the least */
typedef enum memoi_tightness {
    MEMOI_TIGHT_BOTH = 0, /* product of the other two */
    MEMOI_TIGHT_SLACK,    /* room left over */
    MEMOI_TIGHT_CHOICES,  /* number of items that can be the section's lowest */
    MEMOI_N_TIGHTNESSES
} memoi_tightness;

/* What a section's unplaced items say together. */
typedef struct memoi_look {
    int64_t slack;      /* capacity - lowest bound - sizes */
    int64_t least_end;  /* bound + size, least of the items that can be lowest */
    int64_t second_end; /* the next */
    int32_t least_item;
    int32_t n_choices; /* items that can be lowest */
} memoi_look;

typedef enum memoi_change_kind {
    MEMOI_CHANGE_MINIMUM,
    MEMOI_CHANGE_BOUND,
    MEMOI_CHANGE_BLOCKED,
    MEMOI_CHANGE_PLACED,
    MEMOI_CHANGE_STALE /* of a section */
} memoi_change_kind;

typedef struct memoi_change {
    int64_t value; /* before */
    int32_t index; /* item or section */
    int32_t kind;
} memoi_change;

typedef struct memoi_old_look {
    memoi_look look;
    int64_t section;
} memoi_old_look;

/* A state of a part that has failed: the unplaced items of the part with all that is known of these
 * items, in 128 bits. */
typedef struct memoi_failure {
    uint64_t low, high;
} memoi_failure;

enum { MEMOI_FAILURES = 1 << 16 }; /* remembered; a later one replaces an earlier one */

/* What unplaced items say together.  A tally is kept for each block of items, and is taken again
 * only if an item of the block has changed. */
typedef struct memoi_tally {
    memoi_failure state;        /* sum of hashes */
    int64_t floor, hole, bound; /* least minimum of those that can be first; top above the minimum;
                                   bound.  INT64_MAX: none */
} memoi_tally;

enum { MEMOI_TALLY_ITEMS = 64 };

typedef struct memoi_search {
    const memoi_problem* problem;
    memob_arrays arrays; /* all but the two logs */

    /* fixed for the problem */
    int64_t* size; /* of item i */
    const memoi_neighbors* neighbors;
    int64_t least_nodes; /* of a run that comes to a plan at once */
    int32_t* members;    /* of section s at [first_member[s], first_member[s + 1]), in any order */
    int64_t* first_member;
    int32_t* first_item; /* that begins in section s or later; items are ordered by begin */
    uint64_t* sets;      /* the free members of a section, one bit each; NULL without alignments */
    uint64_t aligned;    /* items with an alignment */

    /* the node */
    uint64_t unplaced; /* items, where there are sets */
    int64_t* minimum;
    int64_t* bound;
    char* is_placed;
    char* is_blocked;
    int64_t* unplaced_sum; /* sizes, of a section */
    int32_t* n_unplaced;   /* of a section */
    int32_t* crossing;     /* unplaced items that begin before section s and reach into s */
    memoi_tally* tallies;  /* of a block of items */
    char* is_stale_tally;  /* of a block: an item has changed since */
    memoi_look* looks;     /* at a section, when last taken */
    char* is_stale;        /* section: an item there has changed since the last look */

    /* how to undo a change */
    memoi_change* changes;
    int64_t n_changes, change_capacity;
    memoi_old_look* old_looks;
    int64_t n_old_looks, old_look_capacity;
    memoi_failure* failures;

    /* the run */
    int64_t capacity;
    int32_t* rank;        /* of an item, the last tie break */
    double* weight;       /* of a section: 1 + how often the section failed lately */
    int32_t* sorted;      /* scratch */
    int32_t* lifted;      /* scratch */
    memoi_ranked* ranked; /* scratch */
    memoi_tightness tightness;
    int32_t use_weights;
    int64_t n_branches, branch_stop; /* nodes of the tree; of this run */
    int64_t n_looks;                 /* at neighbors and members, until they make a node */
    int64_t n_nodes; /* spent: a branch is a node, and so are MEMOI_SEARCH_LOOKS looks */
    const memoi_deadline* clock;
    int32_t is_out_of_time, is_out_of_memory;
    uint64_t random;

    /* within one capacity */
    memob_map bases; /* of a set of items: 1 + the highest offset on which the set can be stacked */
    int64_t n_runs;
    double run_length;
    int64_t node_end; /* of its budget */

    int64_t node_begin;
    memoi_verdict verdict;

    /* side by side with other searches, if extras/memo_pack.h runs several */
    int64_t place;     /* among them */
    int64_t* answered; /* the earliest answer so far; a search beyond it stops; NULL: no others */
    int32_t is_overtaken;
} memoi_search;

MEMOI void memoi_search_free(memoi_search* search) {
    memob_arrays_free(&search->arrays);
    memob_map_free(&search->bases);
    MEMO_FREE(search->changes);
    MEMO_FREE(search->old_looks);
    memset(search, 0, sizeof *search);
}

/* Items of every section, by counting. */
MEMOI void memoi_search_list_members(memoi_search* search) {
    const memoi_problem* problem = search->problem;
    int64_t item = 0, *fill = search->unplaced_sum;
    for (int64_t s = 0; s < problem->n_sections; s++) fill[s] = search->first_member[s];
    for (int64_t i = 0; i < problem->n_items; i++) {
        search->size[i] = problem->items[i].size;
        if (problem->items[i].alignment > 1 && search->sets) search->aligned |= (uint64_t)1 << i;
        for (int64_t k = 0; k < problem->items[i].n_ranges; k++) {
            const memoi_range* range = &problem->ranges[problem->items[i].first_range + k];
            for (int64_t s = range->begin; s < range->end; s++) {
                search->members[fill[s]++] = (int32_t)i;
                if (search->sets) search->sets[s] |= (uint64_t)1 << i;
            }
        }
    }
    for (int64_t s = 0; s <= problem->n_sections; s++) {
        while (item < problem->n_items && problem->items[item].begin < s) item++;
        search->first_item[s] = (int32_t)item;
    }
}

enum {
    MEMOI_BASE_ITEMS = 62, /* a set has one bit for each, and a sign */
    MEMOI_BASES_FIRST = 1 << 12,
    MEMOI_BASES_NODE = 8, /* sets for each node within a capacity */
    MEMOI_BASES_MOST = 1 << 19
};

/* Members of all sections; pairs and threads, in extras/memo_pack.h. */
enum { MEMOI_SEARCH_MEMBERS = 1 << 26, MEMOI_THREADS = 64 };

enum { MEMOI_SEARCH_LOOKS = 1 << 14 }; /* that take the time of a node */

/* Returns 1; 0 without memory; -1 if the problem is too large to search, or has pairs.  The caller
 * frees the search in any case. */
MEMOI int memoi_search_create(memoi_search* search, const memoi_problem* problem, uint64_t seed,
                              const memoi_deadline* clock) {
    int64_t n = problem->n_items, n_sections = problem->n_sections, n_members = 0;
    memob_arrays* a = &search->arrays;
    double looks = 0;
    int listed;
    memset(search, 0, sizeof *search);
    search->problem = problem;
    search->clock = clock;
    search->random = seed;
    if (n > MEMOI_SEARCH_ITEMS || problem->held) return -1;
    listed = memoi_neighbors_list(problem);
    if (listed <= 0) return listed;
    search->neighbors = problem->neighbors;
    for (int64_t i = 0; i < problem->n_ranges; i++)
        n_members += problem->ranges[i].end - problem->ranges[i].begin;
    if (n_members > MEMOI_SEARCH_MEMBERS) return -1;

    search->size = MEMOB_ARRAY(a, int64_t, n);
    search->members = MEMOB_ARRAY(a, int32_t, n_members);
    search->first_member = MEMOB_ARRAY(a, int64_t, n_sections + 1);
    search->first_item = MEMOB_ARRAY(a, int32_t, n_sections + 1);
    search->minimum = MEMOB_ARRAY(a, int64_t, n);
    search->bound = MEMOB_ARRAY(a, int64_t, n);
    search->is_placed = (char*)memob_arrays_add(a, n, 1);
    search->is_blocked = (char*)memob_arrays_add(a, n, 1);
    search->unplaced_sum = MEMOB_ARRAY(a, int64_t, n_sections);
    search->n_unplaced = MEMOB_ARRAY(a, int32_t, n_sections);
    search->crossing = MEMOB_ARRAY(a, int32_t, n_sections);
    search->tallies = MEMOB_ARRAY(a, memoi_tally, n / MEMOI_TALLY_ITEMS + 1);
    search->is_stale_tally = (char*)memob_arrays_add(a, n / MEMOI_TALLY_ITEMS + 1, 1);
    search->looks = MEMOB_ARRAY(a, memoi_look, n_sections);
    search->is_stale = (char*)memob_arrays_add(a, n_sections, 1);
    if (problem->has_alignment && n <= MEMOI_BASE_ITEMS && !problem->n_fixed)
        search->sets = MEMOB_ARRAY(a, uint64_t, n_sections);
    search->rank = MEMOB_ARRAY(a, int32_t, n);
    search->weight = MEMOB_ARRAY(a, double, n_sections);
    search->sorted = MEMOB_ARRAY(a, int32_t, n);
    search->lifted = MEMOB_ARRAY(a, int32_t, n);
    search->ranked = MEMOB_ARRAY(a, memoi_ranked, n);
    search->failures = MEMOB_ARRAY(a, memoi_failure, MEMOI_FAILURES);
    if (a->failed) return 0;

    /* The members of each section. */
    for (int64_t i = 0; i < problem->n_ranges; i++)
        for (int64_t s = problem->ranges[i].begin; s < problem->ranges[i].end; s++)
            search->first_member[s + 1]++;
    for (int64_t s = 0; s < problem->n_sections; s++) {
        const int64_t n_here = search->first_member[s + 1];
        looks += (double)n_here * (double)n_here; /* each member placed looks at all others */
        search->first_member[s + 1] += search->first_member[s];
        search->weight[s] = 1;
    }
    search->least_nodes = n + (int64_t)(looks / 2 / (double)MEMOI_SEARCH_LOOKS);
    memoi_search_list_members(search);
    return 1;
}
