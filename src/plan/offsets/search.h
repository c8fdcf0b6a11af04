#pragma once
#include "plan/offsets/greedy.h"
#include "plan/offsets/neighbors.h"
/* --- >>search ---
 * What a node of the exact search knows, how it places an item, and how it undoes that.  Doors:
 * memoi_search_create, memoi_search_place, memoi_search_raise, memoi_search_undo.  Knows nothing of
 * which item comes next, nor why a node fails: >>exact search has both, of the same names.
 *
 * 1. The bound of an unplaced item is its minimum or more; a placed item lies at its minimum.
 * 2. The sums and counts of a section are those of its unplaced items, and never negative. */

typedef enum memoi_verdict {
    MEMOI_FAILED = 0, /* exhausted: there is no such plan */
    MEMOI_FOUND,
    MEMOI_STOPPED /* by the limit of nodes or time */
} memoi_verdict;

/* What a section's unplaced items say together. */
typedef struct memoi_look {
    int64_t slack;      /* latest offset - lowest bound */
    int64_t least_end;  /* bound + size, least of the choices */
    int64_t second_end; /* the next */
    int32_t least_item;
    int32_t n_choices;
} memoi_look;

/* What changed: of an item, from LOOK on of a section. */
typedef enum memoi_change_kind {
    MEMOI_CHANGE_MINIMUM,
    MEMOI_CHANGE_BOUND,
    MEMOI_CHANGE_BLOCKED,
    MEMOI_CHANGE_PLACED,
    MEMOI_CHANGE_LOOK,
    MEMOI_CHANGE_STALE
} memoi_change_kind;

typedef struct memoi_change {
    int32_t index; /* item or section */
    int32_t kind;
    union {
        int64_t value;
        memoi_look look;
    } before;
} memoi_change;

/* A state of a part that has failed: its unplaced items with all that is known of these. */
typedef struct memoi_failure {
    uint64_t low, high;
} memoi_failure;

/* What unplaced items say together: kept for a block of items until an item there changes. */
typedef struct memoi_tally {
    memoi_failure state; /* sum of hashes: of everything that decides the result */
    int64_t floor;       /* the least minimum of those that can be first; INT64_MAX: none can */
    int64_t hole, bound; /* least top above the minimum; least bound.  INT64_MAX: none */
    int32_t is_kept;     /* no item of the block has changed since */
} memoi_tally;

enum {
    MEMOI_FAILURES = 1 << 16,       /* remembered; a later one replaces an earlier one */
    MEMOI_TALLY_ITEMS = 64,         /* of a block */
    MEMOI_BASE_ITEMS = 62,          /* a set has one bit for each, and a sign */
    MEMOI_SEARCH_MEMBERS = 1 << 26, /* of all sections */
    MEMOI_SEARCH_LOOKS = 1 << 14,   /* that take the time of a node */
    MEMOI_THREADS = 64              /* in extras/memo_pack.h */
};

typedef struct memoi_search {
    const memoi_problem* problem;
    memob_arrays arrays; /* all but the log */

    /* fixed for the problem */
    int64_t* size;       /* of item i */
    int64_t least_nodes; /* of a run that comes to a plan at once */
    int32_t* members;    /* of section s at [first_member[s], first_member[s + 1]), in any order */
    int64_t* first_member;

    /* the node */
    int64_t *minimum, *bound;
    char *is_placed, *is_blocked;
    int64_t* unplaced_sum; /* sizes, of a section */
    int32_t* n_unplaced;   /* of a section */
    int32_t* crossing;     /* unplaced items that begin before section s and reach into s */
    memoi_tally* tallies;  /* of a block of items */
    memoi_look* looks;     /* at a section, when last taken */
    char* is_stale;        /* section: an item there has changed since the last look */

    memoi_change* changes; /* to undo */
    int64_t n_changes, change_capacity;
    memoi_failure* failures;

    /* the run */
    int64_t capacity;
    int32_t* rank;                   /* of an item, the last tie break */
    int32_t *sorted, *lifted;        /* scratch */
    memoi_ranked* ranked;            /* scratch */
    int64_t n_branches, branch_stop; /* of all runs so far; where this run stops */
    int64_t n_looks;                 /* at neighbors and members, until they make a node */
    int64_t n_nodes; /* spent: a branch is a node, and so are MEMOI_SEARCH_LOOKS looks */
    const memoi_deadline* clock;
    int32_t is_out_of_time, is_out_of_memory;
    uint64_t random;

    /* within one capacity */
    int64_t n_runs, node_begin, node_end; /* of its budget; 0: another search has answered */
    double run_length;
    memoi_verdict verdict;

    /* of few items with alignments: see >>stacks */
    uint64_t* sets;    /* the free members of a section, one bit each; NULL: not so */
    uint64_t aligned;  /* items with an alignment */
    uint64_t unplaced; /* items, where there are sets */
    memob_map bases; /* of a set of items: 1 + the highest offset on which the set can be stacked */
    double* weight;  /* of a section: 1 + how often the section failed lately */
    int64_t place;   /* among the searches */
    int64_t* answered; /* the earliest answer so far; a search beyond it stops; NULL: no others */
} memoi_search;

MEMOI void memoi_search_free(memoi_search* search) {
    memob_arrays_free(&search->arrays);
    memob_map_free(&search->bases);
    MEMO_FREE(search->changes);
}

/* Lists the members of all sections, by counting, and sets the nodes that placing all takes. */
MEMOI void memoi_search_list_members(memoi_search* search) {
    const memoi_problem* problem = search->problem;
    int64_t* first = search->first_member;
    double looks = 0;
    for (int64_t i = 0; i < problem->n_ranges; i++)
        for (int64_t s = problem->ranges[i].begin; s < problem->ranges[i].end; s++) first[s + 1]++;
    for (int64_t s = 0; s < problem->n_sections; s++) {
        looks += (double)first[s + 1] * (double)first[s + 1]; /* each member looks at all others */
        search->unplaced_sum[s] = first[s];
        first[s + 1] += first[s];
    }

    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* here = &problem->items[i];
        search->size[i] = here->size;
        if (here->alignment > 1 && search->sets) search->aligned |= (uint64_t)1 << i;
        for (int64_t k = here->first_range; k < here->first_range + here->n_ranges; k++)
            for (int64_t s = problem->ranges[k].begin; s < problem->ranges[k].end; s++) {
                search->members[search->unplaced_sum[s]++] = (int32_t)i; /* as scratch */
                if (search->sets) search->sets[s] |= (uint64_t)1 << i;
            }
    }
    search->least_nodes = problem->n_items + (int64_t)(looks / 2 / (double)MEMOI_SEARCH_LOOKS);
}

/* UNFIT: too large, or has pairs.  The caller frees the search in any case. */
MEMOI memoi_made memoi_search_create(memoi_search* search, const memoi_problem* problem,
                                     uint64_t seed, const memoi_deadline* clock) {
    int64_t n = problem->n_items, n_sections = problem->n_sections, n_members = 0;
    memob_arrays* a = &search->arrays;
    memoi_made listed;
    memset(search, 0, sizeof *search);
    search->problem = problem;
    search->clock = clock;
    search->random = seed;
    if (n > MEMOI_SEARCH_ITEMS || problem->held) return MEMOI_UNFIT;
    listed = memoi_neighbors_list(problem);
    if (listed != MEMOI_MADE) return listed;
    for (int64_t i = 0; i < problem->n_ranges; i++)
        n_members += problem->ranges[i].end - problem->ranges[i].begin;
    if (n_members > MEMOI_SEARCH_MEMBERS) return MEMOI_UNFIT;

    search->size = MEMOB_ARRAY(a, int64_t, n);
    search->members = MEMOB_ARRAY(a, int32_t, n_members);
    search->first_member = MEMOB_ARRAY(a, int64_t, n_sections + 1);
    search->minimum = MEMOB_ARRAY(a, int64_t, n);
    search->bound = MEMOB_ARRAY(a, int64_t, n);
    search->is_placed = (char*)memob_arrays_add(a, n, 1);
    search->is_blocked = (char*)memob_arrays_add(a, n, 1);
    search->unplaced_sum = MEMOB_ARRAY(a, int64_t, n_sections);
    search->n_unplaced = MEMOB_ARRAY(a, int32_t, n_sections);
    search->crossing = MEMOB_ARRAY(a, int32_t, n_sections);
    search->tallies = MEMOB_ARRAY(a, memoi_tally, n / MEMOI_TALLY_ITEMS + 1);
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
    if (a->failed) return MEMOI_NO_MEMORY;

    for (int64_t k = 0; k < n_sections; k++) search->weight[k] = 1;
    memoi_search_list_members(search);
    return MEMOI_MADE;
}

/* Remembers what an item had before a change, or the look at a section. */
MEMOI void memoi_search_log(memoi_search* search, memoi_change_kind kind, int64_t index,
                            int64_t before) {
    memoi_change* change;
    if (search->n_changes == search->change_capacity &&
        !memob_reserve(&search->changes, &search->change_capacity, search->n_changes + 1,
                       sizeof(memoi_change))) {
        search->is_out_of_memory = 1; /* the run ends, and its state is not used again */
        return;
    }
    change = &search->changes[search->n_changes++];
    change->kind = (int32_t)kind;
    change->index = (int32_t)index;
    change->before.value = before;
    if (kind == MEMOI_CHANGE_LOOK) change->before.look = search->looks[index];
    if (kind < MEMOI_CHANGE_LOOK) search->tallies[index / MEMOI_TALLY_ITEMS].is_kept = 0;
}

/* A tool may write down the steps by which a node fails: examples/tools/plan_proof.h defines this
 * before.  It is 1, or of step m, a state that failed before, 0 if that failure is not there. */
#ifndef MEMOI_PROVE
#define MEMOI_PROVE(search, step, a, b) 1
#endif

/* Counts item i as unplaced (sign 1) or no longer (-1). */
MEMOI void memoi_search_count(memoi_search* search, int64_t i, int sign) {
    const memoi_item* item = &search->problem->items[i];
    const int64_t change = sign * item->size;
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++) {
        for (int64_t s = range->begin; s < range->end; s++) search->unplaced_sum[s] += change;
        for (int64_t s = range->begin; s < range->end; s++) {
            search->n_unplaced[s] += sign;
            MEMO_ASSERT(search->n_unplaced[s] >= 0 && search->unplaced_sum[s] >= 0); /* 2 */
        }
    }
    for (int64_t s = item->begin + 1; s < item->end; s++) search->crossing[s] += sign;
    if (search->sets) search->unplaced ^= (uint64_t)1 << i;
}

/* Undoes all but so many changes. */
MEMOI void memoi_search_undo(memoi_search* search, int64_t n_changes) {
    while (search->n_changes > n_changes) {
        const memoi_change* change = &search->changes[--search->n_changes];
        const int32_t k = change->index;
        if (change->kind < (int32_t)MEMOI_CHANGE_LOOK)
            search->tallies[k / MEMOI_TALLY_ITEMS].is_kept = 0;
        switch (change->kind) {
        case MEMOI_CHANGE_MINIMUM: search->minimum[k] = change->before.value; break;
        case MEMOI_CHANGE_BOUND: search->bound[k] = change->before.value; break;
        case MEMOI_CHANGE_BLOCKED: search->is_blocked[k] = (char)change->before.value; break;
        case MEMOI_CHANGE_LOOK: search->looks[k] = change->before.look; break;
        case MEMOI_CHANGE_STALE: search->is_stale[k] = 1; break;
        default: search->is_placed[k] = 0; memoi_search_count(search, k, 1);
        }
    }
}

MEMOI void memoi_search_touch(memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++)
        memset(search->is_stale + range->begin, 1, (size_t)(range->end - range->begin));
}

/* Returns 0 if the item then no longer fits. */
MEMOI int memoi_search_raise(memoi_search* search, int64_t i, int64_t bound) {
    const memoi_item* item = &search->problem->items[i];
    if (bound <= search->bound[i]) return 1;
    if (item->fixed >= 0) return 0;
    bound = memoi_neighbors_clear(search->problem, i, bound);
    if (memoi_item_top(item, bound) > search->capacity) return 0;
    MEMO_ASSERT(bound >= search->minimum[i] && !search->is_placed[i]); /* 1 */
    memoi_search_log(search, MEMOI_CHANGE_BOUND, i, search->bound[i]);
    search->bound[i] = bound;
    memoi_search_touch(search, i);
    return 1;
}

/* Puts i at its minimum; returns 0 if a neighbor then no longer fits. */
MEMOI int memoi_search_place(memoi_search* search, int64_t i) {
    const memoi_problem* problem = search->problem;
    const memoi_neighbors* neighbors = problem->neighbors;
    const int64_t* first = neighbors->first;
    int64_t top = search->minimum[i] + search->size[i], k;
    MEMO_ASSERT(search->bound[i] == search->minimum[i]); /* 1 */
    memoi_search_log(search, MEMOI_CHANGE_PLACED, i, 0);
    search->is_placed[i] = 1;
    memoi_search_count(search, i, -1);
    memoi_search_touch(search, i);
    search->n_looks += first[i + 1] - first[i];
    for (k = first[i]; k < first[i + 1]; k++) {
        int64_t j = neighbors->list[k], offset = top;
        if (search->is_placed[j]) continue;
        if (search->is_blocked[j]) {
            memoi_search_log(search, MEMOI_CHANGE_BLOCKED, j, 1);
            search->is_blocked[j] = 0;
        }
        if (top <= search->minimum[j]) continue;
        if (problem->has_alignment) offset = memob_align_up(top, problem->items[j].alignment);
        memoi_search_log(search, MEMOI_CHANGE_MINIMUM, j, search->minimum[j]);
        search->minimum[j] = offset;
        if (!memoi_search_raise(search, j, offset)) return 0;
    }
    return 1;
}
