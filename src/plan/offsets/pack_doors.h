#pragma once
#include "plan/offsets/solution.h"
/* --- >>pack doors ---
 * The calls by which the planner takes engines for puzzles and for several streams from
 * extras/memo_pack.h, if that header is included first.  Without it, these calls do nothing. */

struct memoi_exact;
struct memoi_greedy;
struct memoi_loop;

/* memo_plan_solve, for what plans smaller plans on its way. */
typedef memo_status (*memoi_solver)(memo_plan* plan, const memo_plan_desc* desc, memo_error* error);

#ifdef MEMO_PACK

/* Turns the holds and gaps of a posed problem into sections; raises the bound.  0: no memory. */
MEMOI int memoi_pack_pose(const memo_plan* plan, memoi_problem* problem);
/* Searches on several threads, or for a few items that decide.  Returns the verdict, a
 * memoi_verdict, and spends the effort; -1: one search is enough, or no memory. */
MEMOI int memoi_pack_attempt(struct memoi_exact* exact, int64_t capacity, int64_t n_nodes);
MEMOI void memoi_pack_forget(struct memoi_exact* exact); /* frees what attempts have made */
/* Plans a large problem at once, before other greedy runs.  0: no memory. */
MEMOI int memoi_pack_sweep(struct memoi_greedy* greedy, int64_t target, memoi_solution* best);
/* More greedy runs, for a problem that is not easy. */
MEMOI memo_status memoi_pack_greedy(struct memoi_loop* loop, memo_error* error);
/* More engines in a round, each with so many nodes. */
MEMOI memo_status memoi_pack_round(struct memoi_loop* loop, int64_t n_nodes, memo_error* error);
/* Buys waits; solve: plans with some of them. */
MEMOI memo_status memoi_pack_buy(memo_plan* plan, const memo_plan_desc* desc, memoi_solver solve,
                                 memo_error* error);

#else

#define memoi_pack_pose(plan, problem)               1
#define memoi_pack_attempt(exact, capacity, n_nodes) (-1)
#define memoi_pack_forget(exact)                     ((void)(exact))
#define memoi_pack_sweep(greedy, target, best)       1
#define memoi_pack_greedy(loop, error)               MEMO_STATUS_OK
#define memoi_pack_round(loop, n_nodes, error)       MEMO_STATUS_OK
#define memoi_pack_buy(plan, desc, solve, error)                                                   \
    memo_error_set(error, MEMO_STATUS_UNSUPPORTED,                                                 \
                   "memo_plan_desc.offers: needs extras/memo_pack.h; include it before the "       \
                   "implementation of memo_plan.h")

#endif
