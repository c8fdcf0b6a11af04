#pragma once
#include "plan/offsets/pruning.h"
/* --- >>branching ---
 * Chooses the item on which a node branches, and searches a node: both cases of the item, and parts
 * that share no item one by one.  Knows nothing of restarts and capacities. */

MEMOI double memoi_search_tightness(const memoi_search* search, int64_t i) {
    const memoi_item* item = &search->problem->items[i];
    double least = HUGE_VAL;
    for (int64_t k = 0; k < item->n_ranges; k++) {
        const memoi_range* range = &search->problem->ranges[item->first_range + k];
        for (int64_t s = range->begin; s < range->end; s++) {
            double slack = (double)search->looks[s].slack;
            double choices = (double)search->looks[s].n_choices, here;
            if (search->tightness == MEMOI_TIGHT_CHOICES)
                here = choices + 1e-7 * slack;
            else if (search->tightness == MEMOI_TIGHT_SLACK)
                here = 1000 * slack + choices;
            else
                here = (slack + 1) * choices;
            if (search->use_weights) here /= search->weight[s];
            if (here < least) least = here;
        }
    }
    return least;
}

MEMOI int64_t memoi_search_choose(memoi_search* search, const memoi_part* part) {
    int64_t last = search->first_item[part->end], next = 0, best = -1, i;
    double least = -1; /* of the best; not computed while the best has no rival */

    /* Of the items that can lie on the floor of the part: the one with the tightest sections. */
    for (i = search->first_item[part->begin]; i < last; i++) {
        double tightness;
        if (i >= next) {
            const memoi_tally* block = memoi_search_block_tally(search, i, last, &next);
            if (block && block->floor != part->floor) {
                i = next - 1;
                continue;
            }
        }
        if (search->bound[i] != part->floor || search->minimum[i] != part->floor ||
            search->is_placed[i] || search->is_blocked[i])
            continue;
        if (best < 0) {
            best = i;
            continue;
        }
        if (least < 0) least = memoi_search_tightness(search, best);
        tightness = memoi_search_tightness(search, i);
        if (tightness < least || (tightness <= least && search->rank[i] < search->rank[best])) {
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

/* A moment among several searches.  It counts nodes, which do not depend on a clock; the place of
 * the search breaks ties. */
MEMOI int64_t memoi_search_moment_of(const memoi_search* search) {
    return (search->n_nodes - search->node_begin) * MEMOI_THREADS + search->place;
}

MEMOI int memoi_search_is_stopped(memoi_search* search) {
    search->n_nodes += 1 + search->n_looks / MEMOI_SEARCH_LOOKS;
    search->n_looks %= MEMOI_SEARCH_LOOKS;
    if (++search->n_branches % 16 == 0) {
        if (memoi_deadline_is_over(search->clock)) search->is_out_of_time = 1;
        if (search->answered &&
            __atomic_load_n(search->answered, __ATOMIC_RELAXED) < memoi_search_moment_of(search))
            search->is_overtaken = 1;
    }
    return search->is_out_of_time || search->is_out_of_memory || search->is_overtaken ||
           search->n_branches >= search->branch_stop || search->n_nodes >= search->node_end;
}

/* Places all unplaced items of sections [begin, end); no such item crosses these ends.  A failure
 * leaves the search unchanged. */
MEMOI memoi_verdict memoi_search_node(memoi_search* search, int64_t begin, int64_t end) {
    memoi_search_moment start = memoi_search_now(search), branch;
    memoi_verdict verdict = MEMOI_FAILED;
    memoi_failure state = {0, 0};
    int is_first = 1;
    (void)MEMOI_PROVE(search, '(', 0, 0);
    for (;; is_first = 0) {
        int64_t chosen, s, cut;
        memoi_part part = memoi_search_part(search, begin, end);
        const memoi_failure* known = memoi_failure_slot(search, &part.state);
        if (is_first) state = part.state;
        if (part.is_done) verdict = MEMOI_FOUND;
        if (part.is_done) break;

        /* Stop here if this state failed before, or if a bound shows that it must fail. */
        if (memoi_search_is_stopped(search)) verdict = MEMOI_STOPPED;
        if (known->low == part.state.low && known->high == part.state.high &&
            MEMOI_PROVE(search, 'm', (int64_t)known->low, 0))
            break;
        if (part.is_dead) (void)MEMOI_PROVE(search, 'd', 0, 0);
        if (verdict == MEMOI_STOPPED || part.is_dead) break;
        if (!memoi_search_prune(search, &part)) break;

        /* Parts that share no item are independent: solve one after the other. */
        cut = memoi_search_cut(search, begin, end);
        if (cut < end) {
            for (s = begin, verdict = MEMOI_FOUND; s < end && verdict == MEMOI_FOUND; s = cut) {
                cut = memoi_search_cut(search, s, end);
                (void)MEMOI_PROVE(search, 'w', s, cut);
                verdict = memoi_search_node(search, s, cut);
                (void)MEMOI_PROVE(search, 'v', verdict, 0);
            }
            break;
        }

        /* Choose the item to branch on. */
        part = memoi_search_part(search, begin, end); /* a lift may have raised the floor */
        if (part.is_dead) (void)MEMOI_PROVE(search, 'd', 0, 0);
        if (part.is_dead) break;
        chosen = memoi_search_choose(search, &part);

        /* Place the chosen item.  If that fails, forbid its place and choose again. */
        branch = memoi_search_now(search);
        for (s = begin; (s = memoi_search_marked(search->is_stale, s, end)) < end; s++)
            memoi_search_log(search, MEMOI_CHANGE_STALE, s, 0);
        (void)MEMOI_PROVE(search, 'p', chosen, 0);
        if (memoi_search_place(search, chosen)) verdict = memoi_search_node(search, begin, end);
        if (verdict != MEMOI_FAILED) break;
        (void)MEMOI_PROVE(search, 'b', chosen, 0);
        memset(search->is_stale + begin, 0, (size_t)(end - begin));
        memoi_search_undo(search, branch);
        memoi_search_log(search, MEMOI_CHANGE_BLOCKED, chosen, 0);
        search->is_blocked[chosen] = 1;
    }

    /* Only a complete failure is remembered: a stopped search proves nothing. */
    (void)MEMOI_PROVE(search, ')', verdict, (int64_t)state.low);
    if (verdict != MEMOI_FOUND) memoi_search_undo(search, start);
    if (verdict == MEMOI_FAILED) *memoi_failure_slot(search, &state) = state;
    return verdict;
}
