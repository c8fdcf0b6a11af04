#pragma once
/* ---- 1 offsets: where every buffer goes ------------------------------------------------------ */

typedef enum memo_plan_engine {
    MEMO_PLAN_ENGINE_AUTO = 0, /* greedy, then branch and bound, of all or of parts */
    MEMO_PLAN_ENGINE_GREEDY,   /* the best of a few orders, in milliseconds */
    MEMO_PLAN_ENGINE_MIP,      /* greedy, then the paper's program by lp_solve; small cases */
    MEMO_PLAN_ENGINE_BILEVEL,  /* marked layers of a trace without holds, then what AUTO does */
    MEMO_N_PLAN_ENGINES
} memo_plan_engine;

typedef struct memo_plan_desc {
    memo_plan_engine engine;
    int64_t capacity_bytes; /* stops at a plan this small; 0: looks for the smallest */
    double time_limit_s;    /* then the best plan found is kept; 0: 10, beyond 8,000 buffers 3 */
    uint64_t seed;          /* of random choices */
    int32_t n_threads;      /* of the search; 0: 1.  Always 1 with MEMO_NO_HOST_DEVICE */
    memo_log log;           /* receives a line for every attempt of the search */
    const int32_t* stop;    /* optional; once it is not 0, planning ends as if time were up */
    /* Optional: the trace of the plan.  BILEVEL needs the marks of the trace, which say where
     * layers begin and end. */
    const memo_trace* trace;
    /* Optional: waits that the plan of this trace may buy, instead of the waits that the plan has.
     * The plan buys waits that make the peak smaller; with a capacity, a set with which the plan
     * fits: the cheapest of up to 12 offers, or a cheap one.  Every bought wait is necessary. */
    const memo_wait* offers;
    int64_t n_offers;
    int64_t memoi_node_limit; /* private: 0 */
} memo_plan_desc;

/* Chooses an offset for every buffer of a plan, with the smallest peak found (MEMO paper, section
 * 4.2).  Sets offsets, peak, bound, proof and engine of plan; desc may be NULL.
 *
 * Proof is OPTIMAL if no plan with the same waits is smaller; holds count as conflicts.  The plan
 * is valid even if the capacity is not met: then the call returns INFEASIBLE, and the message
 * states the proven bound.  The same seed, node limit and number of threads give the same plan,
 * unless time runs out first.
 *
 * The exact search takes buffers that overlap in time without a break: at most 8,000 buffers, 300
 * bytes of stack and a megabyte of memory each thread.  In larger problems the search places the
 * buffers around the highest buffers again.  If these are too many, or if there are holds, greedy
 * runs that learn from the last run improve the plan.
 * Errors: INVALID_ARGUMENT (as memo_plan_prepare; fixed buffers that share bytes in spite of a
 * hold; another plan's trace; a negative limit; n_threads outside [0, 64]), INFEASIBLE,
 * OUT_OF_HOST_MEMORY, UNSUPPORTED (if greedy does not meet bound or capacity: the MIP without
 * lp_solve, with unlike alignments, or with too many pairs of buffers). */
MEMO_TRY memo_status memo_plan_solve(memo_plan* plan, const memo_plan_desc* desc,
                                     memo_error* error);
