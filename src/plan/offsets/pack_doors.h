#pragma once
#include "plan/offsets/solution.h"
/* --- >>pack doors ---
 * The calls by which the planner takes engines for puzzles and for several streams from
 * extras/memo_pack.h, if that header is included first.  Without it one search runs, in its own
 * order, with its own score and without stacks, and waits cannot be bought. */

struct memoi_search;
struct memoi_exact;
struct memoi_loop;

#ifdef MEMO_PACK

/* Holds and gaps as sections, and their bound.  0: no memory. */
MEMOI int memoi_pack_pose(const memo_plan* plan, memoi_problem* problem);
/* Several searches, or one of the items that decide.  The verdict; -1: one search is enough. */
MEMOI int memoi_pack_attempt(struct memoi_exact* exact, int64_t capacity, int64_t n_nodes);
MEMOI void memoi_pack_forget(struct memoi_exact* exact); /* frees what attempts have made */
/* The order of ties of a run of the search, and how tight a section is. */
MEMOI memoi_item_order memoi_pack_style(struct memoi_search* search, int64_t run);
MEMOI double memoi_pack_tightness(const struct memoi_search* search, int64_t s);
/* The highest offset, `most` without alignments, on which a set of items can be stacked within the
 * capacity, or a higher one; -1: none.  Can the others lie above item i, which ends there? */
MEMOI int64_t memoi_pack_base(struct memoi_search* search, uint64_t set, int64_t most);
MEMOI int memoi_pack_has_room(struct memoi_search* search, uint64_t set, int64_t i, int64_t end,
                              int64_t most);
/* Side by side: a search has an answer; another has answered earlier. */
MEMOI void memoi_pack_answer(struct memoi_search* search);
MEMOI int memoi_pack_is_overtaken(const struct memoi_search* search);
/* Beside the runs of greedy; for GREEDY and MIP, after greedy; first in a round. */
MEMOI memo_status memoi_pack_sweep(const memoi_problem* problem, int64_t target,
                                   const memoi_deadline* clock, memoi_solution* best,
                                   memo_error* error);
MEMOI memo_status memoi_pack_greedy(struct memoi_loop* loop, memo_error* error);
MEMOI memo_status memoi_pack_round(struct memoi_loop* loop, int64_t n_nodes, memo_error* error);
/* Buys waits. */
MEMOI memo_status memoi_pack_buy(memo_plan* plan, const memo_plan_desc* desc, memo_error* error);

#else

#define memoi_pack_pose(plan, problem)               1
#define memoi_pack_attempt(exact, capacity, n_nodes) (-1)
#define memoi_pack_forget(exact)                     ((void)(exact))
#define memoi_pack_style(search, run)                ((void)(run), MEMOI_ORDER_SECTIONS)
#define memoi_pack_tightness(search, s)                                                            \
    (((double)(search)->looks[s].slack + 1) * (double)(search)->looks[s].n_choices)
#define memoi_pack_base(search, set, most)                    ((void)(set), memob_max(most, -1))
#define memoi_pack_has_room(search, set, i, end, most)        ((void)(set), (void)(most), 1)
#define memoi_pack_answer(search)                             ((void)(search))
#define memoi_pack_is_overtaken(search)                       0
#define memoi_pack_sweep(problem, target, clock, best, error) MEMO_STATUS_OK
#define memoi_pack_greedy(loop, error)                        MEMO_STATUS_OK
#define memoi_pack_round(loop, n_nodes, error)                MEMO_STATUS_OK
#define memoi_pack_buy(plan, desc, error)                                                          \
    memo_error_set(error, MEMO_STATUS_UNSUPPORTED,                                                 \
                   "memo_plan_desc.offers: needs extras/memo_pack.h; include it before the "       \
                   "implementation of memo_plan.h")

#endif
