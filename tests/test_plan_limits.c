/* test_plan_limits.c - what a time limit changes: nothing but the end.  Time is counted in looks at
 * the clock, so that the test is the same on every machine. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo.h"

static double looks_s; /* a millisecond each */
static double now_by_looks(void) { return looks_s += 1e-3; }
#define memob_now_s now_by_looks
#include "extras/memo_pack.h"
#include "owned.h"
#include "slow_plan.h"
#include "plan_problems.h"

/* A plain problem, a full rectangle, or one with every feature. */
static memo_plan* problem_of(int k) {
    const int64_t n = memo_test_int(20, 120);
    memo_plan* plan;
    if (k % 3) return random_plan(n, 1000, k % 3 == 1 ? (features){0, 0, 0} : features_of(k / 3));
    plan = new_plan(n, 0, 1);
    cut_rectangle(plan->buffers, n, 1000, 1);
    for (int64_t i = 0; i < n; i++) plan->buffers[i].id = i;
    return plan;
}

/* The nodes to a proof are the same, however long the limit is, and so is the plan. */
TEST(a_longer_limit_takes_the_same_nodes) {
    int n_searched = 0;
    for (int k = 0; k < 150; k++) {
        long long nodes[3] = {0, 0, 0};
        int64_t peak = 0;
        own_plan* plan = problem_of(k);
        for (int round = 0; round < 3; round++) {
            static const double limits[] = {2, 20, 2000};
            memo_plan_desc desc = {.time_limit_s = limits[round],
                                   .node_limit = 200000,
                                   .log.write = keep_nodes,
                                   .log.user = &nodes[round]};
            const double begin = looks_s;
            solve_valid(plan, &desc, k);
            if (plan->proof != MEMO_PROOF_OPTIMAL) {
                IN_CASE("case %d, limit %g", k, limits[round]);
                CHECK_IS(round, ==, 0); /* longer limits prove what shorter ones do */
                break;
            }
            CHECK_CASE(round == 0 || (nodes[round] == nodes[0] && plan->peak_bytes == peak),
                       "case %d, limit %g: %lld nodes, %lld before; %g s", k, limits[round],
                       nodes[round], nodes[0], looks_s - begin);
            peak = plan->peak_bytes;
            n_searched += round == 2 && nodes[2] > 0;
        }
    }
    CHECK_CASE(n_searched > 30, "%d were searched", n_searched);
}

/* A node of a dense problem looks at millions of buffers, which count as nodes. So all engines have
 * had their share within few nodes, and the plan is lower than that of greedy. */
TEST(dense_problems_leave_greedy_behind) {
    for (int k = 0; k < 2; k++) {
        enum { N = 1500 };
        own_plan* plan = new_plan(N, 0, 1);
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY, .time_limit_s = 1e6};
        int64_t peak;
        for (int64_t i = 0; i < N; i++) {
            const int64_t times[2] = {memo_test_int(0, 10 * N), memo_test_int(0, 10 * N)};
            plan->buffers[i].id = i;
            plan->buffers[i].size_bytes = memo_test_int(1, 2000);
            plan->buffers[i].begin = memob_min(times[0], times[1]);
            plan->buffers[i].end = memob_max(times[0], times[1]) + 1;
        }
        solve_valid(plan, &desc, k);
        peak = plan->peak_bytes;
        desc.engine = MEMO_PLAN_ENGINE_AUTO;
        desc.node_limit = 20000;
        solve_valid(plan, &desc, k);
        CHECK_CASE(plan->peak_bytes < peak || plan->proof == MEMO_PROOF_OPTIMAL,
                   "case %d: %lld, greedy %lld", k, (long long)plan->peak_bytes, (long long)peak);
    }
}

/* Without holes below its plateaus, lowest offset lies above all fixed buffers; first fit does not. */
TEST(greedy_fills_the_room_below_fixed_buffers) {
    own_plan* plan = new_plan(2, 0, 1);
    memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY};
    for (int64_t i = 0; i < 2; i++) {
        plan->buffers[i].id = i;
        plan->buffers[i].end = 10;
        plan->buffers[i].size_bytes = 100;
    }
    plan->buffers[0].is_fixed = 1;
    plan->buffers[0].offset_bytes = 100;
    solve_valid(plan, &desc, 0);
    CHECK_IS(plan->peak_bytes, ==, 200);
}
