#pragma once
#include "plan/offsets/stacks.h"
#include "plan/offsets/pack_doors.h"
/* ---- >>exact search -----------------------------------------------------------------------------
 * The engine that proves: is there a plan within a capacity?  Doors: memoi_exact_solve, all rounds
 * of a problem; or memoi_exact_begin and memoi_exact_step, an attempt after the other: at the bound
 * or a target first, then halfway between the last capacity given up and the best peak.  Knows
 * nothing of bytes.
 *
 * Among all plans take one whose offsets have the least sum.  In that plan every item lies at 0,
 * at the next aligned offset above an item below, or where the item is fixed.  So the plan is
 * reached by placing items upwards, each at its *minimum*, the top of its placed neighbors.
 * (Neighbors: items that overlap in time.)
 *
 * Branching.  An unplaced item c is *first* among its unplaced neighbors, and then lies at its
 * minimum; or c is not first, and then is *blocked* until a neighbor is placed.  The two cases
 * exclude each other and leave nothing out.  c is an item that can be first and would lie lowest,
 * at the *floor*: the lowest unplaced item of the plan is first among its neighbors, so every
 * unplaced item lies at the floor or higher.
 *
 * Pruning, in a page.  Each unplaced item has a *bound*: the plan cannot have it lower.  A rule
 * raises a bound, or fails the node.  An item whose bound is above its minimum cannot be first.  An
 * item whose bound leaves no room for it below the capacity fails the node.
 *
 * The unplaced items of a section lie above each other, in an order that is not known yet.  Four
 * items and a capacity of 20:
 *
 *         size  bound  end    The sizes are 16 in all, so the lowest of the four begins at 4 or
 *     a      6      0    6    lower, or the highest would pass 20.  4 is the section's *latest*
 *     b      4      3    7    offset.  a and b are *choices*: their bounds are 4 or lower, so each
 *     c      3      5    8    can be the lowest.  If there were no choice, the node would fail.
 *     d      3     12   15
 *
 *   head    what lies at 12 or higher must fit from there to 20, and so for each bound above 4: for
 *           5, c and d, whose sizes are 6.  Else the node fails.
 *   lift    c cannot be the lowest, so it lies above a or b.  a can end at 6, earlier than b: the
 *           bound of c becomes 6.
 *   block   a blocked item is not the lowest in one of its sections.  If that is a in this section,
 *           b is the lowest, and a lies at 7 or higher.  The bound of a becomes the least such
 *           offset of all its sections.
 *   floor   the bounds of all items become the floor or more.
 *   hole    an item that fits between its minimum and the floor could lie there, so this is not the
 *           plan of the least sum: the node fails.
 *   stack   of few items, latest offset and head count the holes that alignments leave in the
 *           best stack of the items; what is known of a set serves all nodes within the capacity.
 *
 * In a node memoi_search_prune applies floor, then head and lift to each section that is *stale*,
 * because one of its items has changed, then block.  A raise makes the sections of its item stale:
 * later sections follow in the same node, earlier ones in the next.
 *
 * A new rule uses only what memoi_search_tally hashes: else failures that are remembered are false.
 *
 * Parts.  Where no unplaced item reaches from a section into the next, the two sides are searched
 * alone; one that fails fails the node, without trying the other again.
 *
 * Failures.  A part's result depends on the capacity and its unplaced items: their minimums, bounds
 * and blocks.  Orders of decisions that lead to the same state are searched once: a failed state is
 * remembered as 128 bits of hash, beyond restarts, so that these prove something too.
 *
 * Runs.  A run succeeds soon or takes very long, so runs are short and grow slowly.  They differ in
 * the order of the items, and in how tight sections are that failed before.
 *
 * 1. Members of a section can be its lowest, or are lifted.
 * 2. The item to branch on lies on the floor, and is neither placed nor blocked.
 * 3. A node that fails leaves the search as it was. */

/* --- pruning: the rules of the page above, and failures that are remembered --- */

/* Sorts a section's unplaced items by bound into search->sorted; returns how many there are.  The
 * order, with placed items behind, is kept: from node to node it hardly changes. */
MEMOI int64_t memoi_search_sort(memoi_search* search, int64_t s) {
    int32_t* members = search->members + search->first_member[s];
    int32_t* sorted = search->sorted;
    const int64_t* bound = search->bound;
    int64_t n_unplaced = search->n_unplaced[s], n = 0, m, k;
    for (m = 0; n < n_unplaced; m++) {
        int32_t i = members[m];
        if (search->is_placed[i]) continue;
        for (k = n++; k > 0 && bound[sorted[k - 1]] > bound[i]; k--) sorted[k] = sorted[k - 1];
        sorted[k] = i;
        search->n_looks += n - k;
    }
    for (k = --m; k >= 0; k--)
        if (search->is_placed[members[k]]) members[m--] = members[k];
    memcpy(members, sorted, (size_t)n * sizeof *members);
    return n;
}

/* The latest offset of the lowest unplaced item of a section.  At best the spare room of one item
 * lies above the capacity. */
MEMOI int64_t memoi_search_latest(memoi_search* search, int64_t s, uint64_t set) {
    const int32_t* members = search->members + search->first_member[s];
    int64_t spare = 0;
    for (int64_t m = 0, k = 0; search->problem->spare > 0 && k < search->n_unplaced[s]; m++) {
        if (search->is_placed[members[m]]) continue;
        spare = memob_max(spare, search->problem->items[members[m]].spare);
        k++;
    }
    return memoi_stack_base(search, set, search->capacity - search->unplaced_sum[s] + spare);
}

/* Counts the choices of a section: how many unplaced members can be the lowest, and where these
 * would end.  Lists the others in search->lifted; returns how many. */
MEMOI int64_t memoi_search_look(memoi_search* search, int64_t s, uint64_t set, int64_t latest,
                                memoi_look* look, int64_t* highest) {
    const int32_t* members = search->members + search->first_member[s];
    const int64_t* bound = search->bound;
    const int64_t most = search->capacity - search->unplaced_sum[s], n = search->n_unplaced[s];
    int64_t lowest = INT64_MAX, n_lifted = 0, m, k;
    look->least_end = look->second_end = INT64_MAX;
    look->least_item = -1;
    look->n_choices = 0;

    /* Placed members lie between the others. */
    for (m = 0, k = 0; k < n; m++) {
        const int32_t i = members[m];
        const int64_t end = bound[i] + search->size[i];
        if (search->is_placed[i]) continue;
        k++;
        *highest = memob_max(*highest, bound[i]);
        lowest = memob_min(lowest, bound[i]);
        if (bound[i] > latest || !memoi_stack_has_room(search, set, i, end, most)) {
            search->lifted[n_lifted++] = i;
            continue;
        }
        look->n_choices++;
        if (end < look->least_end) {
            look->second_end = look->least_end;
            look->least_end = end;
            look->least_item = i;
        } else if (end < look->second_end) {
            look->second_end = end;
        }
    }

    MEMO_ASSERT(n_lifted + look->n_choices == n); /* 1 */
    look->slack = n ? latest - lowest : INT64_MAX;
    search->n_looks += m;
    return n_lifted;
}

/* The rule head: from each bound above `latest` on, items must fit.  0: they do not.  A choice has
 * a bound that is not above, so the loop ends. */
MEMOI int memoi_search_head(memoi_search* search, int64_t s, uint64_t set, int64_t latest) {
    uint64_t above = 0;
    int64_t most = search->capacity, spare = 0;
    for (int64_t k = memoi_search_sort(search, s) - 1; search->bound[search->sorted[k]] > latest;
         k--) {
        const int32_t i = search->sorted[k];
        if (set) above |= (uint64_t)1 << i;
        most -= search->size[i];
        spare = memob_max(spare, search->problem->items[i].spare);
        if (search->bound[i] > memoi_stack_base(search, above, most + spare)) return 0;
    }
    return 1;
}

/* Applies the rules head and lift; returns 0 if the section cannot be filled. */
MEMOI int memoi_search_section(memoi_search* search, int64_t s) {
    const uint64_t set = search->sets ? search->sets[s] & search->unplaced : 0;
    const int64_t latest = memoi_search_latest(search, s, set);
    int64_t highest = 0, n_lifted;
    memoi_look* look = &search->looks[s];
    memoi_search_log(search, MEMOI_CHANGE_LOOK, s, 0); /* branching reads looks later */
    n_lifted = memoi_search_look(search, s, set, latest, look, &highest);

    /* The rules need an item that cannot be the lowest, and an item that can. */
    if (n_lifted == 0) return 1;
    if (look->n_choices == 0 || (highest > latest && !memoi_search_head(search, s, set, latest))) {
        (void)MEMOI_PROVE(search, 's', s, 0);
        return 0;
    }
    for (int64_t k = 0; k < n_lifted; k++) { /* lift */
        (void)MEMOI_PROVE(search, 'l', s, search->lifted[k]);
        if (!memoi_search_raise(search, search->lifted[k], look->least_end)) return 0;
    }
    return 1;
}

/* The rule block: a blocked item lies above another item in one of its sections. */
MEMOI int memoi_search_block(memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    int64_t least = INT64_MAX;
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++)
        for (int64_t s = range->begin; s < range->end; s++) {
            const memoi_look* look = &search->looks[s];
            least = memob_min(least, look->least_item == i ? look->second_end : look->least_end);
        }
    return least < INT64_MAX && memoi_search_raise(search, i, least);
}

/* Adds the unplaced items of [first, last) to a tally.  The order of items does not matter. */
MEMOI void memoi_search_tally(const memoi_search* search, int64_t first, int64_t last,
                              memoi_tally* tally) {
    for (int64_t i = first; i < last; i++) {
        const int64_t minimum = search->minimum[i], bound = search->bound[i];
        const int is_blocked = search->is_blocked[i];
        uint64_t x, y, low, high;
        if (search->is_placed[i]) continue;

        /* Two hashes that share no constant: both agree by chance once in 2^128. */
        x = (uint64_t)minimum * 0x9e3779b97f4a7c15u + (uint64_t)(2 * i + is_blocked);
        y = (uint64_t)bound * 0xc2b2ae3d27d4eb4fu + (uint64_t)i;
        low = (x ^ (y << 32 | y >> 32)) * 0xbf58476d1ce4e5b9u;
        high = (y ^ (x << 32 | x >> 32)) * 0x94d049bb133111ebu;
        low = (low ^ low >> 29) * 0xff51afd7ed558ccdu;
        high = (high ^ high >> 33) * 0xc4ceb9fe1a85ec53u;
        tally->state.low += low ^ low >> 32;
        tally->state.high += high ^ high >> 29;
        tally->bound = memob_min(tally->bound, bound);
        if (bound == minimum && !is_blocked) tally->floor = memob_min(tally->floor, minimum);
        if (search->problem->items[i].fixed < 0)
            tally->hole = memob_min(tally->hole, minimum + search->size[i]);
    }
}

/* The tally of the items from i to the end of i's block or to last, which *next becomes.  NULL if
 * this is not the whole block: then no tally is kept. */
MEMOI const memoi_tally* memoi_search_block_tally(memoi_search* search, int64_t i, int64_t last,
                                                  int64_t* next) {
    static const memoi_tally empty = {{0, 0}, INT64_MAX, INT64_MAX, INT64_MAX, 1};
    int64_t block = i / MEMOI_TALLY_ITEMS, first = block * MEMOI_TALLY_ITEMS;
    int64_t end = memob_min(first + MEMOI_TALLY_ITEMS, search->problem->n_items);
    *next = memob_min(end, last);
    if (i != first || *next != end) return NULL;
    if (!search->tallies[block].is_kept) {
        search->tallies[block] = empty;
        memoi_search_tally(search, first, end, &search->tallies[block]);
    }
    return &search->tallies[block];
}

/* The tally of sections [begin, end) within the capacity. */
MEMOI memoi_tally memoi_search_part(memoi_search* search, int64_t begin, int64_t end) {
    const int64_t last = search->problem->first_item[end];
    const uint64_t capacity = (uint64_t)search->capacity;
    memoi_tally part = {{capacity, -capacity}, INT64_MAX, INT64_MAX, INT64_MAX, 0};
    for (int64_t i = search->problem->first_item[begin], next; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (!block) {
            memoi_search_tally(search, i, next, &part);
            continue;
        }
        part.state.low += block->state.low;
        part.state.high += block->state.high;
        part.floor = memob_min(part.floor, block->floor);
        part.hole = memob_min(part.hole, block->hole);
        part.bound = memob_min(part.bound, block->bound);
    }
    return part;
}

/* The first of [begin, end) that has a mark, or end. */
MEMOI int64_t memoi_search_marked(const char* marks, int64_t begin, int64_t end) {
    const void* found = begin < end ? memchr(marks + begin, 1, (size_t)(end - begin)) : NULL;
    return found ? (int64_t)((const char*)found - marks) : end;
}

/* Applies all rules but hole; returns 0 if the part cannot be filled. */
MEMOI int memoi_search_prune(memoi_search* search, int64_t begin, int64_t end, int64_t floor) {
    const int64_t first = search->problem->first_item[begin];
    const int64_t last = search->problem->first_item[end];
    int64_t i, next, s;
    for (i = first; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (block && block->bound >= floor) continue;
        for (; i < next; i++) {
            if (search->is_placed[i]) continue;
            (void)MEMOI_PROVE(search, 'f', i, floor);
            if (!memoi_search_raise(search, i, floor)) return 0;
        }
    }
    for (s = begin; (s = memoi_search_marked(search->is_stale, s, end)) < end; s++) {
        search->is_stale[s] = 0;
        if (memoi_search_section(search, s)) continue;
        search->weight[s] += 1;
        return 0;
    }
    for (i = first; (i = memoi_search_marked(search->is_blocked, i, last)) < last; i++) {
        (void)MEMOI_PROVE(search, 'k', i, 0); /* no placed item is blocked */
        if (!memoi_search_block(search, i)) return 0;
    }
    return 1;
}

/* --- branching: the item of a node, both of its cases, and parts one by one --- */

/* How tight an item's tightest section is: little room, few choices, and failures.  The least is
 * the tightest. */
MEMOI double memoi_search_tightness(const memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    double least = HUGE_VAL;
    const memoi_range *range = search->problem->ranges + item->first_range, *last;
    for (last = range + item->n_ranges; range < last; range++)
        for (int64_t s = range->begin; s < range->end; s++) {
            const memoi_look* look = &search->looks[s];
            const double room = (double)look->slack + 1;
            least = fmin(least, room * (double)look->n_choices / search->weight[s]);
        }
    return least;
}

/* The item that can lie on the floor and has the tightest sections. */
MEMOI int64_t memoi_search_choose(memoi_search* search, int64_t begin, int64_t end, int64_t floor) {
    const int64_t last = search->problem->first_item[end];
    int64_t next, best = -1, i;
    double least = HUGE_VAL; /* tightness, of the best */
    for (i = search->problem->first_item[begin]; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (block && block->floor != floor) continue;
        for (; i < next; i++) {
            double tightness;
            if (search->bound[i] != floor || search->minimum[i] != floor || search->is_placed[i] ||
                search->is_blocked[i])
                continue;
            tightness = memoi_search_tightness(search, i);
            if (best >= 0 && (tightness > least ||
                              (tightness >= least && search->rank[i] >= search->rank[best])))
                continue;
            best = i;
            least = tightness;
        }
    }
    return best;
}

/* The first section after begin that no unplaced item reaches from one before; at most end. */
MEMOI int64_t memoi_search_cut(const memoi_search* search, int64_t begin, int64_t end) {
    int64_t s = begin + 1;
    while (s < end && search->crossing[s]) s++;
    return s;
}

/* A moment among searches side by side.  It counts nodes, which do not depend on a clock; the place
 * of the search breaks ties. */
MEMOI int64_t memoi_search_moment(const memoi_search* search) {
    return (search->n_nodes - search->node_begin) * MEMOI_THREADS + search->place;
}

/* Counts a branch.  Must the run stop? */
MEMOI int memoi_search_is_stopped(memoi_search* search) {
    const int64_t before = search->n_nodes;
    search->n_branches++;
    search->n_nodes += 1 + search->n_looks / MEMOI_SEARCH_LOOKS;
    search->n_looks %= MEMOI_SEARCH_LOOKS;
    if (search->n_nodes / 16 > before / 16) {
        search->is_out_of_time |= memoi_deadline_is_over(search->clock);
        if (search->answered &&
            __atomic_load_n(search->answered, __ATOMIC_RELAXED) < memoi_search_moment(search))
            search->node_end = 0;
    }
    return search->is_out_of_time || search->is_out_of_memory ||
           search->n_branches >= search->branch_stop || search->n_nodes >= search->node_end;
}

MEMOI memoi_verdict memoi_search_node(memoi_search* search, int64_t begin, int64_t end);

/* Parts that share no item are independent: solves one after the other. */
MEMOI memoi_verdict memoi_search_parts(memoi_search* search, int64_t begin, int64_t end) {
    memoi_verdict verdict = MEMOI_FOUND;
    for (int64_t s = begin, cut; s < end && verdict == MEMOI_FOUND; s = cut) {
        cut = memoi_search_cut(search, s, end);
        (void)MEMOI_PROVE(search, 'w', s, cut);
        verdict = memoi_search_node(search, s, cut);
        (void)MEMOI_PROVE(search, 'v', verdict, 0);
    }
    return verdict;
}

/* Places the item to branch on, and all others.  If that fails, forbids its place. */
MEMOI memoi_verdict memoi_search_branch(memoi_search* search, int64_t i, int64_t begin,
                                        int64_t end) {
    const int64_t n_changes = search->n_changes;
    memoi_verdict verdict = MEMOI_FAILED;
    for (int64_t s = begin; (s = memoi_search_marked(search->is_stale, s, end)) < end; s++)
        memoi_search_log(search, MEMOI_CHANGE_STALE, s, 0);
    (void)MEMOI_PROVE(search, 'p', i, 0);
    if (memoi_search_place(search, i)) verdict = memoi_search_node(search, begin, end);
    if (verdict != MEMOI_FAILED) return verdict;
    (void)MEMOI_PROVE(search, 'b', i, 0);
    memset(search->is_stale + begin, 0, (size_t)(end - begin));
    memoi_search_undo(search, n_changes); /* sections are stale as before the place */
    memoi_search_log(search, MEMOI_CHANGE_BLOCKED, i, 0);
    search->is_blocked[i] = 1;
    return verdict;
}

/* Places all unplaced items of [begin, end), which none crosses.  A failure changes nothing. */
MEMOI memoi_verdict memoi_search_node(memoi_search* search, int64_t begin, int64_t end) {
    const int64_t n_changes = search->n_changes;
    memoi_verdict verdict = MEMOI_FAILED;
    memoi_tally part = memoi_search_part(search, begin, end);
    const memoi_failure state = part.state;
    (void)MEMOI_PROVE(search, '(', 0, 0);
    for (;; part = memoi_search_part(search, begin, end)) {
        const memoi_failure* known = &search->failures[part.state.low % MEMOI_FAILURES];
        int64_t chosen;
        if (part.bound == INT64_MAX)
            verdict = MEMOI_FOUND; /* nothing is unplaced */
        else if (memoi_search_is_stopped(search))
            verdict = MEMOI_STOPPED;
        if (verdict != MEMOI_FAILED) break;

        /* The node fails if this state failed before, by the rule hole, or by a bound.  If nothing
         * can be first, the floor is infinite, so there is a hole. */
        if (known->low == part.state.low && known->high == part.state.high &&
            MEMOI_PROVE(search, 'm', (int64_t)known->low, 0))
            break;
        if (part.hole <= part.floor && MEMOI_PROVE(search, 'd', 0, 0)) break;
        if (!memoi_search_prune(search, begin, end, part.floor)) break;
        if (memoi_search_cut(search, begin, end) < end) {
            verdict = memoi_search_parts(search, begin, end);
            break;
        }
        part = memoi_search_part(search, begin, end); /* a lift may have raised the floor */
        if (part.hole <= part.floor && MEMOI_PROVE(search, 'd', 0, 0)) break;

        /* Branch: the chosen item is first, or is blocked from then on. */
        chosen = memoi_search_choose(search, begin, end, part.floor);
        MEMO_ASSERT(chosen >= 0 && search->bound[chosen] == part.floor); /* 2 */
        verdict = memoi_search_branch(search, chosen, begin, end);
        if (verdict != MEMOI_FAILED) break;
    }

    /* Only a complete failure is remembered: a stopped search proves nothing. */
    (void)MEMOI_PROVE(search, ')', verdict, (int64_t)state.low);
    if (verdict != MEMOI_FOUND) memoi_search_undo(search, n_changes);
    if (verdict == MEMOI_FAILED) search->failures[state.low % MEMOI_FAILURES] = state;
    MEMO_ASSERT(verdict != MEMOI_FAILED || search->is_out_of_memory || /* 3 */
                memoi_search_part(search, begin, end).state.high == state.high);
    return verdict;
}

/* --- runs and capacities --- */

MEMOI void memoi_search_reset(memoi_search* search) {
    const memoi_problem* problem = search->problem;
    const int64_t n = problem->n_items, n_sections = problem->n_sections;
    search->n_changes = 0;
    search->unplaced = 0;
    memset(search->is_stale, 1, (size_t)n_sections);
    memset(search->tallies, 0, (size_t)(n / MEMOI_TALLY_ITEMS + 1) * sizeof(memoi_tally));
    memset(search->crossing, 0, (size_t)n_sections * sizeof(int32_t));
    memset(search->n_unplaced, 0, (size_t)n_sections * sizeof(int32_t));
    memset(search->unplaced_sum, 0, (size_t)n_sections * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) {
        search->minimum[i] = memob_max(problem->items[i].fixed, 0);
        search->bound[i] = search->minimum[i];
        if (problem->items[i].fixed < 0) search->bound[i] = memoi_neighbors_clear(problem, i, 0);
        search->is_placed[i] = search->is_blocked[i] = 0;
        memoi_search_count(search, i, 1);
    }
}

/* A run within search->capacity.  Returns 1 if another run may follow.  Sections count, but less in
 * a cover or in a small problem: there every second run has another order. */
MEMOI int memoi_search_run(memoi_search* search) {
    static const memoi_item_order orders[] = {MEMOI_ORDER_SECTIONS, MEMOI_ORDER_AREA,
                                              MEMOI_ORDER_SECTIONS, MEMOI_ORDER_LIFETIME};
    const memoi_problem* problem = search->problem;
    const int is_one = problem->n_items > MEMOI_SMALL_ITEMS && !problem->is_cover;
    const int64_t run = is_one ? 0 : (search->place + search->n_runs++) % 4;
    memoi_search_reset(search);
    memoi_greedy_order_items(search->problem, orders[run], &search->random, search->ranked);
    for (int64_t i = 0; i < search->problem->n_items; i++)
        search->rank[search->ranked[i].index] = (int32_t)i;

    search->branch_stop = search->n_branches + (int64_t)search->run_length;
    search->verdict = memoi_search_node(search, 0, search->problem->n_sections);
    if (search->verdict != MEMOI_STOPPED || search->is_out_of_time || search->is_out_of_memory)
        return 0;

    /* The next run is longer and forgets a part of the weights. */
    for (int64_t s = 0; s < search->problem->n_sections; s++)
        search->weight[s] = 1 + 0.9 * (search->weight[s] - 1);
    search->run_length *= search->problem->is_cover ? 1.12 : 1.05;
    return search->n_nodes < search->node_end;
}

/* Begins an attempt at a capacity: again with the first order and the shortest run, which
 * needs a branch for each item; in a cover many short runs find more plans than a few long ones. */
MEMOI void memoi_search_begin(memoi_search* search, int64_t capacity, int64_t budget) {
    search->capacity = capacity;
    memob_map_free(&search->bases);
    search->verdict = MEMOI_STOPPED;
    search->n_runs = 0;
    search->run_length =
        (double)memob_max(500, (search->problem->is_cover ? 3 : 6) * search->problem->n_items / 2);
    search->node_begin = search->n_nodes;
    search->node_end = search->n_nodes + budget;
}

/* Attempts a capacity, and sets the verdict.  Returns the nodes spent, of so many. */
MEMOI int64_t memoi_search_attempt(memoi_search* search, int64_t capacity, int64_t n_nodes) {
    memoi_search_begin(search, capacity, n_nodes);
    while (memoi_search_run(search)) continue;
    return search->n_nodes - search->node_begin;
}

/* The exact search of a problem, from attempt to attempt. */
typedef struct memoi_exact {
    memoi_search search;
    memoi_effort* effort;
    memoi_solution* best;
    int64_t given_up, n_attempts; /* of the round */
    void* pack;                   /* of extras/memo_pack.h */
} memoi_exact;

/* As memoi_search_create. */
MEMOI memoi_made memoi_exact_create(memoi_exact* exact, const memoi_problem* problem,
                                    memoi_effort* effort, memoi_solution* best) {
    memset(exact, 0, sizeof *exact);
    exact->effort = effort;
    exact->best = best;
    if (MEMOI_WITHOUT(search)) return MEMOI_UNFIT;
    return memoi_search_create(&exact->search, problem, effort->seed, &effort->clock);
}

MEMOI void memoi_exact_free(memoi_exact* exact) {
    memoi_pack_forget(exact);
    memoi_search_free(&exact->search);
}

/* Begins a round of attempts. */
MEMOI void memoi_exact_begin(memoi_exact* exact, int64_t target) {
    exact->given_up = memob_max(target, exact->best->bound);
    exact->n_attempts = 0;
}

/* Attempts a capacity with so many nodes, which lowers the best plan or raises its bound: the goal
 * first, then halfway from the capacity given up to the best peak.  0: none is left between, a run
 * needs a later round, or no memory. */
MEMOI int memoi_exact_step(memoi_exact* exact, int64_t n_nodes) {
    memoi_search* search = &exact->search;
    memoi_solution* best = exact->best;
    int64_t capacity = exact->given_up;
    int verdict;
    if (n_nodes < search->least_nodes) return 0;
    if (exact->n_attempts++ > 0) capacity += (best->peak - capacity) / 2;
    capacity = memob_max(capacity, best->bound);
    n_nodes = memob_min(n_nodes, exact->effort->nodes_left);
    verdict = memoi_pack_attempt(exact, capacity, n_nodes);
    if (verdict < 0) {
        memoi_effort_spend(exact->effort, memoi_search_attempt(search, capacity, n_nodes));
        verdict = (int)search->verdict;
        if (verdict == MEMOI_FOUND) memoi_solution_offer(search->problem, search->minimum, best);
    }
    if (search->is_out_of_memory) return 0;
    if (verdict == MEMOI_FAILED) best->bound = memob_max(best->bound, capacity + 1);
    if (verdict != MEMOI_FOUND) exact->given_up = capacity;
    memoi_effort_report(exact->effort, search->problem, best);
    return exact->given_up < best->peak - 1;
}

/* The nodes of a first attempt: for eight of the shortest runs (in a cover sixteen), at most half
 * of what is left. */
MEMOI int64_t memoi_exact_first(const memoi_problem* problem, int64_t nodes_left) {
    return memob_min(memob_max(5000, 24 * problem->n_items), nodes_left / 2 + 1);
}

/* Lowers the best plan in rounds, the first with so many nodes an attempt and each with twice as
 * many, until the effort is over; does nothing if the problem is too large.  n_nodes is above 0. */
MEMOI memo_status memoi_exact_solve(const memoi_problem* problem, int64_t target, int64_t n_nodes,
                                    memoi_effort* effort, memoi_solution* best, memo_error* error) {
    memoi_exact exact;
    memoi_made made;
    if (best->peak <= target) return MEMO_STATUS_OK;
    made = memoi_exact_create(&exact, problem, effort, best);
    for (; made == MEMOI_MADE && memoi_effort_goes_on(effort, best, target); n_nodes *= 2) {
        memoi_exact_begin(&exact, target);
        while (memoi_effort_goes_on(effort, best, target) && memoi_exact_step(&exact, n_nodes))
            continue;
        if (exact.search.is_out_of_memory) made = MEMOI_NO_MEMORY;
    }
    memoi_exact_free(&exact);
    return made == MEMOI_NO_MEMORY ? memob_no_memory(error, "the search") : MEMO_STATUS_OK;
}
