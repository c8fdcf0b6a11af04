#pragma once
#include "plan/offsets/solution.h"
/* --- >>pack doors ---
 * The calls by which the planner takes engines for puzzles from extras/memo_pack.h, if that header
 * is included first.  Without it one search runs at a time, and waits cannot be bought. */

struct memoi_exact;
struct memoi_loop;

#ifdef MEMO_PACK

/* Several searches, or one of the items that decide.  The verdict; -1: one search is enough. */
MEMOI int memoi_pack_attempt(struct memoi_exact* exact, int64_t capacity, int64_t n_nodes);
MEMOI void memoi_pack_forget(struct memoi_exact* exact); /* frees what attempts have made */
/* Before all orders of greedy, or behind the first of a large problem. */
MEMOI memo_status memoi_pack_sweep(const memoi_problem* problem, int64_t target,
                                   const memoi_deadline* clock, memoi_solution* best,
                                   memo_error* error);
/* In each round, behind first fit. */
MEMOI memo_status memoi_pack_round(struct memoi_loop* loop, int64_t n_nodes, memo_error* error);
/* Buys waits. */
MEMOI memo_status memoi_pack_buy(memo_plan* plan, const memo_plan_desc* desc, memo_error* error);

#else

#define memoi_pack_attempt(exact, capacity, n_nodes)          (-1)
#define memoi_pack_forget(exact)                              ((void)(exact))
#define memoi_pack_sweep(problem, target, clock, best, error) MEMO_STATUS_OK
#define memoi_pack_round(loop, n_nodes, error)                MEMO_STATUS_OK
#define memoi_pack_buy(plan, desc, error)                                                          \
    memo_error_set(error, MEMO_STATUS_UNSUPPORTED,                                                 \
                   "memo_plan_desc.offers: needs extras/memo_pack.h; include it before the "       \
                   "implementation of memo_plan.h")

#endif
