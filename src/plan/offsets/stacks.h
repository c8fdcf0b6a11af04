#pragma once
#include "plan/offsets/search.h"
/* --- >>stacks ---
 * The holes that alignments leave in the best stack of a set of items that live together, in a
 * problem of few items.  Doors: memoi_stack_base, memoi_stack_has_room.  What is known of a set
 * serves all nodes within the capacity.  Knows nothing of other sections.
 *
 * 1. Holes only lower a stack. */

enum {
    MEMOI_BASES_FIRST = 1 << 12,
    MEMOI_BASES_NODE = 8, /* sets for each node within a capacity */
    MEMOI_BASES_MOST = 1 << 19
};

/* The largest spare room of a set of items. */
MEMOI int64_t memoi_stack_spare(const memoi_search* search, uint64_t set) {
    int64_t most = 0;
    for (; set && search->problem->spare > 0; set &= set - 1)
        most = memob_max(most, search->problem->items[__builtin_ctzll(set)].spare);
    return most;
}

/* The highest offset, `most` without alignments, on which a set of items can be stacked within the
 * capacity, or a higher one; -1: none.  Sets are learned as the run goes on, so that learning never
 * takes much longer than the search itself. */
MEMOI int64_t memoi_stack_base(memoi_search* search, uint64_t set, int64_t most) {
    const memoi_item* items = search->problem->items;
    int64_t best = -1;
    int64_t learned = MEMOI_BASES_FIRST + MEMOI_BASES_NODE * (search->n_nodes - search->node_begin);
    if (most < 0 || !(set & search->aligned)) return memob_max(most, -1);
    best = memob_map_get(&search->bases, (int64_t)set) - 1;
    MEMO_ASSERT(best <= most); /* 1 */
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
            base += size + memoi_stack_spare(search, others) - memoi_stack_spare(search, set);
            base = memoi_stack_base(search, others, base) - size;
        }
        if (base >= 0) best = memob_max(best, base - base % items[i].alignment);
    }
    if (search->bases.n_filled < learned && !memob_map_put(&search->bases, (int64_t)set, best + 1))
        search->is_out_of_memory = 1;
    return best;
}

/* Can the others of a set lie above item i, which ends there? */
MEMOI int memoi_stack_has_room(memoi_search* search, uint64_t set, int64_t i, int64_t end,
                               int64_t most) {
    uint64_t others;
    if (!(set & search->aligned)) return 1; /* always, of more than 64 items */
    others = set & ~((uint64_t)1 << i);
    most += search->size[i] + memoi_stack_spare(search, others);
    return !others || end <= memoi_stack_base(search, others, most);
}
