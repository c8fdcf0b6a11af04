#pragma once
#include "plan/offsets/search_state.h"
/* --- >>pruning ---
 * Shows that a node of the exact search cannot lead to a plan: raises the bounds of items by the
 * rules head, lift, stack and block, and remembers failures.  Knows nothing of branching. */

/* Sorts a section's unplaced items by bound into search->sorted; returns how many there are.  The
 * order, with placed items behind, is kept for the next time: from node to node an order hardly
 * changes. */
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
    }
    for (k = --m; k >= 0; k--)
        if (search->is_placed[members[k]]) members[m--] = members[k];
    memcpy(members, sorted, (size_t)n * sizeof *members);
    return n;
}

/* The largest spare room of a set of items. */
MEMOI int64_t memoi_search_spare(const memoi_search* search, uint64_t set) {
    int64_t most = 0;
    for (; set && search->problem->spare > 0; set &= set - 1)
        most = memob_max(most, search->problem->items[__builtin_ctzll(set)].spare);
    return most;
}

/* The highest offset on which a set of items can be stacked within the capacity, or a higher
 * offset; -1: none.  most: that offset without alignments, which leave holes.  Sets are learned as
 * the run goes on, so that learning never takes much longer than the search itself. */
MEMOI int64_t memoi_search_base(memoi_search* search, uint64_t set, int64_t most) {
    const memoi_item* items = search->problem->items;
    int64_t best = -1;
    int64_t learned = MEMOI_BASES_FIRST + MEMOI_BASES_NODE * (search->n_nodes - search->node_begin);
    if (most < 0 || !(set & search->aligned)) return memob_max(most, -1);
    best = memob_map_get(&search->bases, (int64_t)set) - 1;
    if (best > -2) return best;
    learned = memob_min(learned, MEMOI_BASES_MOST);
    if (search->bases.n_filled >= learned) return most;

    /* The lowest item lies below a stack of all other items. */
    best = -1;
    for (uint64_t rest = set; rest && best < most; rest &= rest - 1) {
        const int64_t i = __builtin_ctzll(rest), size = items[i].size;
        const uint64_t others = set & ~((uint64_t)1 << i);
        int64_t base = most;
        if (others) {
            base += size + memoi_search_spare(search, others) - memoi_search_spare(search, set);
            base = memoi_search_base(search, others, base) - size;
        }
        if (base >= 0) best = memob_max(best, base - base % items[i].alignment);
    }
    if (search->bases.n_filled < learned && !memob_map_put(&search->bases, (int64_t)set, best + 1))
        search->is_out_of_memory = 1;
    return best;
}

/* Applies the rules head and lift; returns 0 if the section cannot be filled. */
MEMOI int memoi_search_section(memoi_search* search, int64_t s) {
    const int32_t* members = search->members + search->first_member[s];
    const int64_t* bound = search->bound;
    const memoi_item* items = search->problem->items;
    uint64_t set = search->sets ? search->sets[s] & search->unplaced : 0, above = 0;
    int64_t most = search->capacity - search->unplaced_sum[s], spare = 0, latest;
    int64_t lowest = INT64_MAX, highest = 0, n = search->n_unplaced[s], n_lifted = 0, m, k;
    memoi_look look;
    look.least_end = look.second_end = INT64_MAX;
    look.least_item = -1;
    look.n_choices = 0;

    /* One item's spare room lies above the capacity at best.  The lowest item starts at latest or
     * below. */
    for (m = 0, k = 0; search->problem->spare > 0 && k < n; m++) {
        if (search->is_placed[members[m]]) continue;
        spare = memob_max(spare, items[members[m]].spare);
        k++;
    }
    latest = memoi_search_base(search, set, most + spare);

    /* Look at every unplaced member: how many can start low enough to be the lowest, and where
     * these would end. */
    for (m = 0, k = 0; k < n; m++) {
        int32_t i = members[m];
        int64_t end = bound[i] + search->size[i];
        if (search->is_placed[i]) continue;
        k++;
        if (bound[i] > highest) highest = bound[i];
        if (bound[i] < lowest) lowest = bound[i];
        if (bound[i] > latest ||
            (set & search->aligned && n > 1 &&
             end > memoi_search_base(search, set & ~((uint64_t)1 << i),
                                     most + search->size[i] +
                                         memoi_search_spare(search, set & ~((uint64_t)1 << i))))) {
            search->lifted[n_lifted++] = i;
            continue;
        }
        look.n_choices++;
        if (end < look.least_end) {
            look.second_end = look.least_end;
            look.least_end = end;
            look.least_item = i;
        } else if (end < look.second_end) {
            look.second_end = end;
        }
    }

    search->n_looks += m;

    /* Branching reads the look later.  The log restores the old one if the node fails. */
    look.slack = n ? latest - lowest : INT64_MAX;
    memoi_search_log_look(search, s);
    search->looks[s] = look;

    /* The rules below need an item that cannot be the lowest, and one that can. */
    if (n_lifted == 0) return 1; /* then neither rule says more */
    if (look.n_choices == 0) (void)MEMOI_PROVE(search, 's', s, 0);
    if (look.n_choices == 0) return 0;

    /* Head: the items from each bound upward must fit under the capacity. */
    if (highest > latest) n = memoi_search_sort(search, s);
    most = search->capacity;
    spare = 0;
    for (k = n - 1; highest > latest && bound[search->sorted[k]] > latest; k--) {
        int32_t i = search->sorted[k];
        if (set) above |= (uint64_t)1 << i;
        most -= search->size[i];
        spare = memob_max(spare, items[i].spare);
        if (bound[i] <= memoi_search_base(search, above, most + spare)) continue;
        (void)MEMOI_PROVE(search, 's', s, 0);
        return 0;
    }

    /* Lift: an item that cannot be lowest starts no lower than the earliest end of the items that
     * can. */
    for (k = 0; k < n_lifted; k++) {
        (void)MEMOI_PROVE(search, 'l', s, search->lifted[k]);
        if (!memoi_search_raise(search, search->lifted[k], look.least_end)) return 0;
    }
    return 1;
}

/* A blocked item lies above another item in one of its sections. */
MEMOI int memoi_search_block(memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    int64_t least = INT64_MAX;
    for (int64_t k = 0; k < item->n_ranges; k++) {
        const memoi_range* range = &search->problem->ranges[item->first_range + k];
        for (int64_t s = range->begin; s < range->end; s++) {
            const memoi_look* look = &search->looks[s];
            int64_t end = look->least_item == i ? look->second_end : look->least_end;
            if (end < least) least = end;
        }
    }
    return least < INT64_MAX && memoi_search_raise(search, i, least);
}

/* Adds an unplaced item to a state.  The order of items does not matter. */
MEMOI void memoi_failure_add(memoi_failure* state, int64_t i, int64_t minimum, int64_t bound,
                             int is_blocked) {
    /* Two hashes that share no constant: both agree by chance once in 2^128. */
    uint64_t x = (uint64_t)minimum * 0x9e3779b97f4a7c15u + (uint64_t)(2 * i + is_blocked);
    uint64_t y = (uint64_t)bound * 0xc2b2ae3d27d4eb4fu + (uint64_t)i;
    uint64_t low = (x ^ (y << 32 | y >> 32)) * 0xbf58476d1ce4e5b9u;
    uint64_t high = (y ^ (x << 32 | x >> 32)) * 0x94d049bb133111ebu;
    low = (low ^ low >> 29) * 0xff51afd7ed558ccdu;
    high = (high ^ high >> 33) * 0xc4ceb9fe1a85ec53u;
    state->low += low ^ low >> 32;
    state->high += high ^ high >> 29;
}

MEMOI memoi_failure* memoi_failure_slot(const memoi_search* search, const memoi_failure* state) {
    return &search->failures[state->low % MEMOI_FAILURES];
}

/* Sections [begin, end), and the floor: the lowest offset at which an item of these sections can be
 * first. */
typedef struct memoi_part {
    int64_t begin, end, floor;
    memoi_failure state; /* hash of everything that decides the result */
    int32_t is_done;     /* nothing is unplaced */
    int32_t is_dead;     /* nothing can be first, or a hole is left */
} memoi_part;

/* Adds the unplaced items of [first, last) to a tally. */
MEMOI void memoi_search_tally(const memoi_search* search, int64_t first, int64_t last,
                              memoi_tally* tally) {
    for (int64_t i = first; i < last; i++) {
        int64_t minimum = search->minimum[i], bound = search->bound[i];
        if (search->is_placed[i]) continue;
        memoi_failure_add(&tally->state, i, minimum, bound, search->is_blocked[i]);
        tally->bound = memob_min(tally->bound, bound);
        if (bound == minimum && !search->is_blocked[i])
            tally->floor = memob_min(tally->floor, minimum);
        if (search->problem->items[i].fixed < 0)
            tally->hole = memob_min(tally->hole, minimum + search->size[i]);
    }
}

/* The tally of the items from i to the end of i's block or to last, which *next becomes.  NULL if
 * this is not the whole block: then no tally is kept. */
MEMOI const memoi_tally* memoi_search_block_tally(memoi_search* search, int64_t i, int64_t last,
                                                  int64_t* next) {
    static const memoi_tally empty = {{0, 0}, INT64_MAX, INT64_MAX, INT64_MAX};
    int64_t block = i / MEMOI_TALLY_ITEMS, first = block * MEMOI_TALLY_ITEMS;
    int64_t end = memob_min(first + MEMOI_TALLY_ITEMS, search->problem->n_items);
    *next = memob_min(end, last);
    if (i != first || *next != end) return NULL;
    if (search->is_stale_tally[block]) {
        search->is_stale_tally[block] = 0;
        search->tallies[block] = empty;
        memoi_search_tally(search, first, end, &search->tallies[block]);
    }
    return &search->tallies[block];
}

MEMOI memoi_part memoi_search_part(memoi_search* search, int64_t begin, int64_t end) {
    int64_t last = search->first_item[end], i, next;
    memoi_tally sum = {{0, 0}, INT64_MAX, INT64_MAX, INT64_MAX};
    memoi_part part;
    for (i = search->first_item[begin]; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (!block) {
            memoi_search_tally(search, i, next, &sum);
            continue;
        }
        sum.state.low += block->state.low;
        sum.state.high += block->state.high;
        sum.floor = memob_min(sum.floor, block->floor);
        sum.hole = memob_min(sum.hole, block->hole);
        sum.bound = memob_min(sum.bound, block->bound);
    }
    part.begin = begin;
    part.end = end;
    part.floor = sum.floor;
    part.state.low = sum.state.low + (uint64_t)search->capacity;
    part.state.high = sum.state.high - (uint64_t)search->capacity;
    part.is_done = sum.bound == INT64_MAX;
    part.is_dead = !part.is_done && (part.floor == INT64_MAX || sum.hole <= part.floor);
    return part;
}

/* The first of [begin, end) that has a mark, or end. */
MEMOI int64_t memoi_search_marked(const char* marks, int64_t begin, int64_t end) {
    const void* found = begin < end ? memchr(marks + begin, 1, (size_t)(end - begin)) : NULL;
    return found ? (int64_t)((const char*)found - marks) : end;
}

/* Applies all rules; returns 0 if the part cannot be filled. */
MEMOI int memoi_search_prune(memoi_search* search, const memoi_part* part) {
    int64_t first = search->first_item[part->begin], last = search->first_item[part->end], i, next,
            s;
    for (i = first; i < last; i = next) {
        const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
        if (block && block->bound >= part->floor) continue;
        for (; i < next; i++) {
            if (search->is_placed[i]) continue;
            (void)MEMOI_PROVE(search, 'f', i, part->floor);
            if (!memoi_search_raise(search, i, part->floor)) return 0;
        }
    }
    for (s = part->begin; (s = memoi_search_marked(search->is_stale, s, part->end)) < part->end;
         s++) {
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
