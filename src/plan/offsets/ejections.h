#pragma once
#include "plan/offsets/greedy.h"
#include "plan/offsets/neighbors.h"
/* ---- >>ejections --------------------------------------------------------------------------------
 * The engine for problems of any size, and for what is not plain: it lowers a plan, and never
 * proves one that is above the bound.  Door: memoi_ejections_solve.  Knows nothing of how the plan
 * was made.
 *
 * The highest item waits for a place within a capacity.  A waiting item takes the place where the
 * items in its way weigh least, and then these items wait.  An item that ejected others weighs
 * more from then on, so that items do not chase each other.  (A pool, Nagata and Braysy 2009.)
 *
 * 1. An item waits once, or has a place.
 * 2. In order of offset, a neighbor begins to be in the way before it ends. */

enum { MEMOI_EJECTIONS_BLOCK = 64 }; /* items */

typedef struct memoi_ejections {
    const memoi_problem* problem;
    memob_arrays arrays;
    int64_t* offsets; /* of items; -1: the item waits */
    double* weight;
    int32_t* waiting;           /* the last one is placed first */
    memob_keyed *begins, *ends; /* offsets between which a neighbor is in the way */
    memob_keyed* sorted;        /* scratch, and of a digit: where the next key goes */
    int32_t* place;
    int32_t* largest_end; /* of blocks of items: without lists, a block that is over is skipped */
    int64_t n_waiting;
    int64_t capacity, highest;   /* the highest item waits for a place within the capacity */
    int64_t step;                /* from the peak to the next capacity */
    int64_t places, places_left; /* that waiting items may try for a capacity, and have left */
    int64_t peak;                /* of the best plan after the last call */
    int64_t n_looks;             /* at neighbors */
    uint64_t random;
} memoi_ejections;

/* Lists where the placed neighbors of item i are in its way, in order of offset; returns how many
 * there are.  Without lists, all items that begin before i ends are looked at. */
MEMOI int64_t memoi_ejections_look(memoi_ejections* e, int64_t i) {
    const memoi_problem* problem = e->problem;
    const memoi_neighbors* lists = problem->neighbors;
    const memoi_item* items = problem->items;
    const int has_lists = lists->list != NULL;
    const int64_t first = has_lists ? lists->first[i] : 0;
    const int64_t last = has_lists ? lists->first[i + 1] : problem->first_item[items[i].end];
    int64_t n = 0, top = 0;

    /* Where item i may not begin: between its own size below a neighbor, and the neighbor's top. */
    for (int64_t k = first; k < last; k++) {
        const int64_t j = has_lists ? lists->list[k] : k;
        if (!has_lists && k % MEMOI_EJECTIONS_BLOCK == 0 &&
            e->largest_end[k / MEMOI_EJECTIONS_BLOCK] <= items[i].begin) {
            k += MEMOI_EJECTIONS_BLOCK - 1;
            continue;
        }
        if (e->offsets[j] < 0) continue;
        if (!has_lists && (items[j].end <= items[i].begin ||
                           (problem->has_gaps && !memoi_problem_items_overlap(problem, i, j))))
            continue;
        e->begins[n] = memob_keyed_of(e->offsets[j] - items[i].size, j);
        e->ends[n] = memob_keyed_of(e->offsets[j] + items[j].size, j);
        top = memob_max(top, e->ends[n++].key);
    }

    e->n_looks += n + (has_lists ? 0 : (last - first) / MEMOI_EJECTIONS_BLOCK);
    memob_digits_sort(e->begins, n, -items[i].size, top, e->sorted, e->place);
    memob_digits_sort(e->ends, n, 0, top, e->sorted, e->place);
    return n;
}

/* The offset within the capacity at which the n neighbors in the way of item i weigh least: 0,
 * or the top of a neighbor.  -1: fixed items leave no room.  *least: that weight. */
MEMOI int64_t memoi_ejections_find(const memoi_ejections* e, int64_t i, int64_t n, double* least) {
    const memoi_item* items = e->problem->items;
    int64_t n_begun = 0, n_ended = 0, n_fixed = 0, found = -1;
    double weight = 0;
    *least = HUGE_VAL;
    for (int64_t k = -1; *least > 0 && k < n; k++) {
        const int64_t offset = k < 0 ? 0 : memob_align_up(e->ends[k].key, items[i].alignment);
        if (memoi_item_top(&items[i], offset) > e->capacity) break;
        for (; n_begun < n && e->begins[n_begun].key < offset; n_begun++) {
            weight += e->weight[e->begins[n_begun].index];
            n_fixed += items[e->begins[n_begun].index].fixed >= 0;
        }
        for (; n_ended < n && e->ends[n_ended].key <= offset; n_ended++) {
            weight -= e->weight[e->ends[n_ended].index];
            n_fixed -= items[e->ends[n_ended].index].fixed >= 0;
        }
        MEMO_ASSERT(n_ended <= n_begun && n_fixed >= 0);   /* 2 */
        weight = n_begun == n_ended ? 0 : fmax(weight, 1); /* whatever rounding left */
        if (n_fixed > 0 || weight >= *least) continue;
        *least = weight;
        found = offset;
    }
    return found;
}

/* Places an item within the capacity.  0: fixed items leave no room. */
MEMOI int memoi_ejections_place(memoi_ejections* e, int64_t i) {
    const memoi_item* item = &e->problem->items[i];
    const int64_t n = memoi_ejections_look(e, i);
    double least;
    const int64_t place = memoi_ejections_find(e, i, n, &least);
    MEMO_ASSERT(e->offsets[i] < 0); /* 1 */
    if (place < 0) return 0;
    for (int64_t k = 0; k < n && least > 0; k++) {
        const int64_t j = e->ends[k].index;
        if (e->ends[k].key <= place || e->offsets[j] >= place + item->size) continue;
        e->offsets[j] = -1;
        e->waiting[e->n_waiting++] = (int32_t)j;
    }
    e->offsets[i] = place;
    if (least > 0)
        e->weight[i] += 2 * memob_random_real(&e->random) * (double)item->size *
                        (double)(item->end - item->begin);
    return 1;
}

/* The caller frees the arrays.  UNFIT: pairs are too many for lists. */
MEMOI memoi_made memoi_ejections_create(memoi_ejections* e, const memoi_problem* problem,
                                        uint64_t seed) {
    const int64_t n = problem->n_items;
    const memoi_made listed = memoi_neighbors_list(problem);
    memob_arrays* a = &e->arrays;
    memset(e, 0, sizeof *e);
    e->problem = problem;
    e->random = seed;
    e->places = MEMOI_TRIES;
    if (listed == MEMOI_UNFIT && problem->held) return MEMOI_UNFIT;

    e->offsets = MEMOB_ARRAY(a, int64_t, n);
    e->weight = MEMOB_ARRAY(a, double, n);
    e->waiting = MEMOB_ARRAY(a, int32_t, n);
    e->begins = MEMOB_ARRAY(a, memob_keyed, n);
    e->ends = MEMOB_ARRAY(a, memob_keyed, n);
    e->sorted = MEMOB_ARRAY(a, memob_keyed, n);
    e->place = MEMOB_ARRAY(a, int32_t, n + 2);
    e->largest_end = MEMOB_ARRAY(a, int32_t, n / MEMOI_EJECTIONS_BLOCK + 1);
    if (a->failed || listed == MEMOI_NO_MEMORY) return MEMOI_NO_MEMORY;

    for (int64_t i = 0; i < n; i++) {
        int32_t* largest = &e->largest_end[i / MEMOI_EJECTIONS_BLOCK];
        const memoi_item* item = &problem->items[i];
        e->weight[i] = (double)item->size * (double)(item->end - item->begin);
        *largest = (int32_t)memob_max(*largest, item->end);
    }
    return MEMOI_MADE;
}

/* Places waiting items until none waits, or the places of this capacity, n_nodes or the time are
 * spent.  Fixed items that leave no room take all places. */
MEMOI void memoi_ejections_settle(memoi_ejections* e, int64_t n_nodes, memoi_effort* effort) {
    enum { PLACES = 4, LOOKS = 256 }; /* of a node */
    int64_t n_places = 0, n_spent = 0;
    e->n_looks = 0;
    for (; e->n_waiting > 0 && e->places_left > 0 && n_spent < n_nodes; n_places++) {
        if (n_places % MEMOI_CLOCK == 0 && memoi_deadline_is_over(&effort->clock)) break;
        e->places_left--;
        if (!memoi_ejections_place(e, e->waiting[--e->n_waiting])) {
            e->n_waiting++;
            e->places_left = 0;
        }
        n_spent = memob_max(n_places / PLACES, e->n_looks / LOOKS) + 1;
    }
    memoi_effort_spend(effort, memob_max(n_spent, 1));
}

/* Begins again at the best plan, with another capacity. */
MEMOI void memoi_ejections_restore(memoi_ejections* e, memoi_solution* best) {
    memcpy(e->offsets, best->offsets, (size_t)e->problem->n_items * sizeof(int64_t));
    e->highest = memoi_solution_highest(e->problem, best->offsets, &best->peak);
    e->n_waiting = 0;
    e->capacity = INT64_MAX;
}

/* Lowers the best plan until the goal is met or n_nodes are spent; the next call goes on from
 * there.  Weights stay: an item that was often in the way stays heavy.  Each capacity that is met
 * doubles the step to the next; failures shorten the step, and the shortest step gets more
 * places. */
MEMOI void memoi_ejections_solve(memoi_ejections* e, int64_t goal, int64_t n_nodes,
                                 memoi_effort* effort, memoi_solution* best) {
    enum { STEPS = 160 }; /* from a plan to the goal, at most */
    const int64_t last = effort->n_nodes + memob_min(n_nodes, effort->nodes_left);
    if (MEMOI_WITHOUT(ejections)) return;
    if (best->peak != e->peak) memoi_ejections_restore(e, best);
    while (best->peak > goal && effort->n_nodes < last && !memoi_effort_is_over(effort)) {
        if (e->capacity >= best->peak) {
            e->step = memob_max(2 * e->step, (best->peak - goal) / STEPS + 1);
            e->capacity = memob_max(goal, best->peak - e->step);
        }
        if (e->n_waiting == 0) { /* the highest item waits */
            e->offsets[e->highest] = -1;
            e->waiting[e->n_waiting++] = (int32_t)e->highest;
            e->places_left = e->places;
        }
        memoi_ejections_settle(e, last - effort->n_nodes, effort);

        /* Nothing waits, so this is a plan, perhaps above the capacity; or no place is left. */
        if (e->n_waiting == 0) { /* an equal peak is taken too */
            memcpy(best->offsets, e->offsets, (size_t)e->problem->n_items * sizeof(int64_t));
            e->highest = memoi_solution_highest(e->problem, best->offsets, &best->peak);
        } else if (e->places_left == 0) {
            memoi_ejections_restore(e, best);
            e->step /= MEMOI_SHARE; /* and twice that comes next */
            if (e->step <= (best->peak - goal) / STEPS)
                e->places = memob_min(2 * e->places, (int64_t)1 << 40);
            memoi_effort_report(effort, e->problem, best);
        }
    }
    e->peak = best->peak;
}
