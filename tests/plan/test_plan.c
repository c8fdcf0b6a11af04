/* test_plan.c - the planners of offsets: greedy, search and MIP against brute force. */
#include "scarce.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "owned.h"
#include "slow_plan.h"
#include "plan_problems.h"

/* ---- memory plans ------------------------------------------------------------------------------
 */

/* The top of the placed items, whose offsets are not negative, that live within the time of item i;
 * of all fixed ones as well. */
static int64_t slow_top(const memoi_problem* problem, const int64_t* offsets, int64_t i) {
    const memoi_item* item = &problem->items[i];
    int64_t top = 0;
    for (int64_t k = 0; k < problem->n_items; k++) {
        const memoi_item* other = &problem->items[k];
        if (other->fixed >= 0 ||
            (offsets[k] >= 0 && other->begin < item->end && item->begin < other->end))
            top = memob_max(top, offsets[k] + other->size);
    }
    return top;
}

/* Against a slow twin: the item with the lowest key comes next, in a tie the first in order.  If
 * the top below it is higher by now, its key rises instead. */
TEST(lowest_offset_is_lowest) {
    for (int k = 0; k < 500; k++) {
        features with = {k % 7 == 1, k % 5 == 1, k % 3 == 1};
        own_problem problem;
        memoi_greedy greedy;
        int64_t i, rank, n_placed, offsets[80], key[80];
        own_plan* plan = random_plan(memo_test_int(1, 80), memo_test_int(1, 20), with);
        pose(plan, &problem);
        const memoi_deadline clock = {.deadline = HUGE_VAL};
        CHECK(memoi_greedy_create(&greedy, &problem, &clock));
        for (int run = 0; run < (int)MEMOI_N_ORDERS; run++) {
            memoi_greedy_order_items(&problem, (memoi_item_order)run, NULL, greedy.ranked);
            CHECK(memoi_plateau_run(&greedy));
            for (i = 0; i < problem.n_items; i++) {
                offsets[i] = problem.items[i].fixed;
                CHECK(problem.items[i].fixed < 0 || greedy.offsets[i] == problem.items[i].fixed);
                key[i] = memob_max(problem.items[i].fixed, 0);
            }
            for (n_placed = problem.n_fixed; n_placed < problem.n_items;) {
                int64_t best = -1, top, lowest;
                for (rank = 0; rank < problem.n_items; rank++) {
                    i = greedy.ranked[rank].index;
                    if (offsets[i] < 0 && (best < 0 || key[i] < key[best])) best = i;
                }
                top = slow_top(&problem, offsets, best);
                lowest = rounded(top, problem.items[best].alignment);
                if (top > key[best]) {
                    key[best] = top;
                    continue;
                }
                IN_CASE("case %d, run %d", k, run);
                CHECK_IS(greedy.offsets[best], ==, lowest);
                offsets[best] = greedy.offsets[best];
                n_placed++;
            }
        }
        memob_arrays_free(&greedy.arrays);
    }
}

/* No time at all, or a caller who stops: every rule stops, and there is a plan. */
TEST(a_deadline_leaves_a_plan) {
    for (int k = 0; k < 16; k++) {
        const int32_t stop = 1;
        const memoi_deadline clock = {.deadline = k % 2 ? HUGE_VAL : 0,
                                      .stop = k % 2 ? &stop : NULL};
        memoi_effort effort = effort_of(1000000, 0);
        own_problem problem;
        memoi_greedy greedy;
        own_plan* plan = random_plan(2000, 1000, features_of(k));
        pose(plan, &problem);
        CHECK(memoi_greedy_create(&greedy, &problem, &clock));
        memoi_greedy_order_items(&problem, MEMOI_ORDER_SIZE, NULL, greedy.ranked);
        CHECK(!memoi_plateau_run(&greedy));
        own_solution best = new_solution(&problem);
        CHECK_OK(memoi_greedy_solve(&problem, 0, 5, INT64_MAX - 1, &clock, &best, &error));
        effort.clock = clock;
        CHECK_OK(memoi_exact_solve(&problem, problem.lower_bound,
                                   memoi_exact_first(&problem, effort.nodes_left), &effort, &best,
                                   &error));
        CHECK_IS(effort.n_nodes, ==, 0);
        memob_arrays_free(&greedy.arrays);
        memo_plan_desc desc = {.engine = k / 8 ? MEMO_PLAN_ENGINE_BILEVEL : MEMO_PLAN_ENGINE_AUTO,
                               .time_limit_s = k % 2 ? 1000 : 1e-9,
                               .stop = k % 2 ? &stop : NULL};
        solve_valid(plan, &desc, k);
    }
}

/* Its height is the optimum, and greedy rarely meets it. */
TEST(search_fills_cut_rectangles) {
    int n_met = 0;
    for (int k = 0; k < 40; k++) {
        int64_t n = memo_test_int(20, 60), i;
        own_plan* plan = new_plan(n, 0, 1);
        cut_rectangle(plan->buffers, n, 1000, 1);
        for (i = 0; i < n; i++) plan->buffers[i].id = i;
        memo_plan_desc desc = {
            .memoi_node_limit = 100000, .time_limit_s = 1000, .n_threads = 1 + k % 3};
        solve_valid(plan, &desc, k);
        n_met += plan->peak_bytes == 1000;
        solve_again(plan, &desc, k);
    }
    CHECK_IS(n_met, ==, 40);
}

/* A fixed buffer above does not raise the bound of a part without it. */
TEST(a_part_has_a_bound_of_its_own) {
    own_problem problem, part;
    own_plan* plan = new_plan(4, 0, 1);
    for (int64_t i = 0; i < 4; i++) put_buffer(plan, i, i > 0, 1 + (i > 0), 10);
    plan->buffers[0].is_fixed = 1;
    plan->buffers[0].offset_bytes = 1000;
    pose(plan, &problem);
    CHECK(memoi_problem_pick(&problem, "\0\1\1\1", &part));
    CHECK_IS(problem.lower_bound * problem.unit_bytes, ==, 1010);
    CHECK_IS(part.lower_bound * part.unit_bytes, ==, 30);
}

TEST(search_meets_brute_force) {
    for (int k = 0; k < 2000; k++) {
        memo_plan_desc desc = {0};
        own_plan* plan = random_plan(memo_test_int(1, 7), memo_test_int(1, 12), features_of(k));
        solve_valid(plan, &desc, k);
        int64_t least = brute_force(plan);
        expect_optimal(plan, least);
        desc.capacity_bytes = least - 1;
        if (least > 1) CHECK_IS(memo_plan_solve(plan, &desc, &error), ==, MEMO_STATUS_INFEASIBLE);
    }
}

/* A plan of raw sizes whose alignments are all at least some power of two. */
static memo_plan* raw_plan(int64_t n, int64_t largest, features with) {
    const int64_t least = (int64_t)1 << memo_test_int(1, 5);
    with.has_alignment = 0;
    memo_plan* plan = random_plan(n, largest, with);
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->alignment_bytes = memo_test_int(0, 2) ? least : least << memo_test_int(0, 2);
        buffer->offset_bytes *= 4 * least;
    }
    return plan;
}

/* The bound counts roundings, but for the highest item's, and is never above the least peak. */
TEST(rounded_sizes_meet_brute_force) {
    int n_raised = 0, n_met = 0, n_above = 0;
    for (int k = 0; k < 3000; k++) {
        own_problem problem;
        memo_plan_desc desc = {0};
        own_plan* plan = raw_plan(memo_test_int(1, 7), memo_test_int(1, 200), features_of(k % 4));
        solve_valid(plan, &desc, k);
        const int64_t least = brute_force(plan);
        expect_optimal(plan, least);
        pose(plan, &problem);
        const int64_t bound = problem.lower_bound * problem.unit_bytes;
        CHECK_CASE(bound <= least, "case %d: bound %lld, least peak %lld", k, (long long)bound,
                   (long long)least);
        n_raised += bound > plan->lower_bound_bytes;
        n_met += bound == least;
        desc.capacity_bytes = least - 1;
        if (least > 1) CHECK_IS(memo_plan_solve(plan, &desc, &error), ==, MEMO_STATUS_INFEASIBLE);
        desc.capacity_bytes = least + memo_test_int(0, 7);
        solve_valid(plan, &desc, k);
        n_above += plan->peak_bytes > least;
    }
    CHECK_CASE(n_raised > 1000 && n_met > 2000 && n_above > 0, "%d raised, %d met, %d above",
               n_raised, n_met, n_above);
}

/* Mostly the plan of rounded sizes is at the bound, and if not, at most a rounding above. */
TEST(raw_sizes_are_no_worse_than_rounded_sizes) {
    int n_proven = 0, n_best = 0;
    for (int k = 0; k < 40; k++) {
        own_plan* plan = random_plan(150, 100000, (features){0, 0, 0});
        memo_plan_desc desc = {.memoi_node_limit = 3000, .time_limit_s = 1000};
        for (int64_t i = 0; i < plan->n_buffers; i++) plan->buffers[i].alignment_bytes = 64;
        solve_valid(plan, &desc, k);
        const int64_t peak = plan->peak_bytes;
        const memo_proof proof = plan->proof;
        for (int64_t i = 0; i < plan->n_buffers; i++)
            plan->buffers[i].size_bytes = rounded(plan->buffers[i].size_bytes, 64);
        solve_valid(plan, &desc, k);
        IN_CASE("case %d", k);
        CHECK_IS(peak, <=, plan->peak_bytes);
        n_best += plan->proof == MEMO_PROOF_OPTIMAL;
        n_proven += proof == MEMO_PROOF_OPTIMAL;
    }
    CHECK_CASE(n_proven >= 30 && n_best >= n_proven, "%d of 40 proven, rounded %d", n_proven,
               n_best);
}

TEST(search_is_valid_and_deterministic) {
    for (int k = 0; k < 300; k++) {
        own_plan* plan = random_plan(memo_test_int(8, 60), memo_test_int(1, 1000), features_of(k));
        memo_plan_desc desc = {.memoi_node_limit = 3000, .time_limit_s = 1000, .seed = (uint64_t)k};
        solve_valid(plan, &desc, k);
        solve_again(plan, &desc, k);
    }
}

/* Few buffers on three streams; some streams have not waited for another when its buffer ends. */
static memo_plan* plan_with_holds(int64_t n) {
    const int64_t n_times = memo_test_int(3, 2 * n);
    memo_plan* plan = new_plan(n, 0, 1);
    plan->holds = (memo_hold*)calloc((size_t)n, sizeof *plan->holds);
    CHECK(plan->holds != NULL);
    for (int64_t i = 0; i < n && plan->holds; i++) {
        const int64_t begin = memo_test_int(0, n_times - 2);
        const int64_t end = memo_test_int(begin + 1, memob_min(n_times - 1, begin + 4));
        memo_buffer* buffer = put_buffer(plan, i, begin, end, memo_test_int(1, 40));
        buffer->lane = (int32_t)memo_test_int(0, 2);
        if (memo_test_int(0, 3) == 0) buffer->alignment_bytes = (int64_t)1 << memo_test_int(1, 5);
        if (memo_test_int(0, 1)) continue;
        plan->holds[plan->n_holds].buffer = i;
        plan->holds[plan->n_holds].lane = (buffer->lane + 1) % 3;
        plan->holds[plan->n_holds++].until = memo_test_int(end + 1, n_times + 1);
    }
    return plan;
}

/* The least peak of a plan with holds and without fixed buffers: in every order, each buffer goes
 * to the lowest offset above the earlier ones with which it conflicts. */
static int64_t least_with_holds(memo_plan* plan, uint32_t placed, int64_t peak, int64_t best) {
    const int64_t n = plan->n_buffers;
    if (peak >= best) return best;
    if (placed + 1 == (uint32_t)1 << n) return peak;
    for (int64_t i = 0; i < n; i++) {
        int64_t offset = 0;
        if (placed >> i & 1) continue;
        for (int64_t j = 0; j < n; j++)
            if (placed >> j & 1 && slow_conflict(plan, i, j))
                offset = memob_max(offset, plan->buffers[j].offset_bytes + slow_size(plan, j));
        plan->buffers[i].offset_bytes = rounded(offset, slow_alignment(plan, i));
        best = least_with_holds(plan, placed | (uint32_t)1 << i,
                                memob_max(peak, plan->buffers[i].offset_bytes + slow_size(plan, i)),
                                best);
    }
    return best;
}

/* Sections of what holds keep apart are searched as those of time are. */
TEST(plans_with_holds_meet_brute_force) {
    int n_above = 0;
    for (int k = 0; k < memo_test_cases(200, 2000); k++) {
        memo_plan_desc desc = {.time_limit_s = 1e6, .memoi_node_limit = 20000};
        own_plan* plan = plan_with_holds(memo_test_int(3, 7));
        solve_valid(plan, &desc, k);
        n_above += plan->peak_bytes > plan->lower_bound_bytes;
        CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
        CHECK_IS(plan->peak_bytes, ==, least_with_holds(plan, 0, 0, plan->peak_bytes + 1));
    }
    CHECK_CASE(n_above > 20, "%d are above the sum of live sizes", n_above);
}

/* More buffers than brute force can take are proven, too. */
TEST(small_plans_with_holds_are_proven) {
    for (int k = 0; k < 58; k++) {
        memo_plan_desc desc = {.time_limit_s = 1e6, .memoi_node_limit = 200000};
        own_plan* plan = plan_with_holds(memo_test_int(8, 20));
        solve_valid(plan, &desc, k);
        CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
    }
}

/* Pairs that stay, as those of too many buffers do, are beyond the exact search: ejections alone
 * lower such a plan, and end, long before their nodes are spent. */
TEST(pairs_that_stay_end) {
    enum { LIMIT = 1 << 24 };
    int n_open = 0;
    for (int k = 0; k < memo_test_cases(40, 40); k++) {
        const memo_plan_desc desc = {.time_limit_s = 1e6};
        memoi_effort effort = effort_of(LIMIT, 0);
        memoi_loop loop = {.effort = &effort, .desc = &desc, .solve = memo_plan_solve};
        own_problem problem;
        own_plan* plan = plan_with_holds(memo_test_int(3, 8));
        pose(plan, &problem);
        CHECK_IS(memoi_items_add_holds(&problem, plan), ==, MEMOI_MADE);
        own_solution best = new_solution(&problem);
        loop.problem = &problem;
        loop.plan = plan;
        loop.best = &best;
        CHECK_OK(memoi_loop_run(&loop, &error));
        memoi_plan_store(plan, &problem, &best, loop.name);
        CHECK_OK(memo_plan_validate(plan, &error));
        CHECK_IS(effort.n_nodes, <, LIMIT);
        n_open += best.peak > best.bound;
    }
    CHECK_IS(n_open, >, 0);
}

/* The search of hundreds of items takes all nodes for its first capacity: ejections come before. */
TEST(ejections_come_before_a_long_search) {
    int n_open = 0;
    for (int k = 0; k < 12; k++) {
        const memo_plan_desc desc = {.time_limit_s = 1e6};
        memoi_effort effort = effort_of(5000, 0);
        memoi_loop loop = {.effort = &effort, .desc = &desc, .solve = memo_plan_solve};
        own_problem problem;
        own_plan* plan = random_plan(MEMOI_SMALL_ITEMS + 100, 1000000, (features){0, 0, 0});
        pose(plan, &problem);
        own_solution best = new_solution(&problem);
        loop.problem = &problem;
        loop.plan = plan;
        loop.best = &best;
        CHECK_OK(memoi_loop_run(&loop, &error));
        if (best.peak == best.bound) continue;
        n_open++;
        CHECK(loop.ejections.problem != NULL);
    }
    CHECK_IS(n_open, >, 0);
}

/* A buffer whose gaps cover its life takes no place beside the others, but no plan is lower than its
 * size: what the others need is not searched below it. */
TEST(a_buffer_in_gaps_counts_in_the_bound) {
    for (int k = 0; k < 8; k++) {
        long long nodes = 0;
        memo_plan_desc desc = {.time_limit_s = 1e6,
                               .memoi_node_limit = 1000,
                               .log.write = keep_nodes,
                               .log.user = &nodes};
        const int64_t n = 60;
        own_plan* plan = new_plan(n + 1, 2, 1);
        cut_rectangle(plan->buffers, n, 1000, 1);
        for (int64_t i = 0; i < n; i++) plan->buffers[i].id = i;
        put_buffer(plan, n, 3, 9, k / 2 % 2 ? 4000 : 900 + k)->alignment_bytes = k / 4 ? 64 : 1;
        for (int64_t g = 0; g < 2; g++) {
            plan->gaps[g].buffer = n;
            plan->gaps[g].begin = 3 + 2 * g;
            plan->gaps[g].end = 5 + 4 * g;
        }
        solve_valid(plan, &desc, k);
        if (k / 2 % 2) expect_optimal(plan, 4000);
        if (k / 2 % 2) CHECK_IS(nodes, ==, 0);
        desc.capacity_bytes = 3999;
        if (k / 2 % 2)
            CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INFEASIBLE,
                        "none needs less than 4000");
    }
}

/* Recorded steps on two and three streams need few nodes, without extras/memo_pack.h. */
TEST(recorded_streams_are_proven) {
    static const char* const names[] = {"fsdp-limit2-ckpt", "offload-reload-unsynced",
                                        "prefetch-mid-bwd"};
    for (int k = 0; k < 6; k++) {
        char path[128];
        own_trace* trace = NULL;
        const memo_plan_desc desc = {.time_limit_s = 1e6, .memoi_node_limit = 3000};
        snprintf(path, sizeof path, "../shared/instances/stream_%s.trace", names[k / 2]);
        if (memo_trace_read(path, &trace, &error))
            SKIP("../shared/instances is not there; the test reads public instances from it");
        own_plan* plan = plan_of_trace(trace, k % 2 ? 512 : 1);
        solve_valid(plan, &desc, k);
        CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
    }
}

/* The optimum is thousands of units above the bound: to prove unit after unit impossible would take
 * as many attempts. */
TEST(proofs_halve_what_is_open) {
    int n_above = 0;
    for (int k = 0; k < 200; k++) {
        int64_t n = memo_test_int(2, 5), i;
        own_plan* plan = new_plan(n, 0, 1);
        for (i = 0; i < n; i++) {
            memo_buffer* buffer = &plan->buffers[i];
            buffer->begin = memo_test_int(0, 2);
            buffer->end = memo_test_int(3, 6);
            buffer->size_bytes = memo_test_int(1, 200000);
            buffer->alignment_bytes = (int64_t)1 << memo_test_int(0, 17);
        }
        memo_plan_desc desc = {.memoi_node_limit = 3000,
                               .time_limit_s = 1000,
                               .n_threads = (int32_t)memo_test_int(1, 3)};
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        IN_CASE("case %d", k);
        CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
        n_above += plan->peak_bytes > plan->lower_bound_bytes + 2000;
    }
    CHECK_CASE(n_above > 10, "%d above the bound", n_above);
}

/* An alignment that divides all sizes holds by itself, whatever the others are. */
TEST(the_unit_is_as_large_as_alignments_allow) {
    static const int64_t alignments[][3] = {{1, 256, 64}, {1, 2, 4}, {8, 512, 64}, {256, 1, 128}};
    for (int k = 0; k < 4; k++) {
        own_problem problem;
        own_plan* plan = new_plan(3, 0, 1);
        for (int i = 0; i < 3; i++)
            put_buffer(plan, i, 0, 1, 64 * (3 + 2 * i))->alignment_bytes = alignments[k][i];
        pose(plan, &problem);
        CHECK_IS(problem.unit_bytes, ==, 64);
        for (int i = 0; i < 3; i++)
            CHECK_IS(problem.items[i].alignment, ==, memob_max(alignments[k][i] / 64, 1));
    }
}

/* The rectangle is planned alone, and the others go around it.  An allocator's plan is higher. */
TEST(full_sections_come_first) {
    enum { N = 60 };
    int n_open = 0, n_above = 0;
    for (int k = 0; k < N; k++) {
        own_plan* plan = rectangle_and_others(k);
        own_problem problem;
        memoi_effort effort = effort_of(300000, 0);
        pose(plan, &problem);
        const memoi_deadline clock = {.deadline = 0};
        own_solution best = new_solution(&problem);
        CHECK_OK(
            memoi_greedy_solve(&problem, k % 5, 5, problem.lower_bound, &clock, &best, &error));
        n_open += best.peak > problem.lower_bound;
        memo_status status = MEMO_STATUS_OK;
        refusal r = {.can_do_without = 1};
        while (!k && next_refusal(&r, status))
            status =
                memoi_full_solve(&problem, 80, problem.lower_bound, 100000, &effort, &best, &error);
        CHECK_IS(r.request - r.n_failed, <=, 2); /* that a sort can do without */
        CHECK_OK(
            memoi_full_solve(&problem, 80, problem.lower_bound, 100000, &effort, &best, &error));
        IN_CASE("case %d", k); /* the others' alignments, every second time, may leave holes */
        CHECK_IS(best.peak, <=, best.bound + (k % 2 ? best.bound / 10 : 0));
        n_above += best.peak > best.bound;
        memoi_plan_store(plan, &problem, &best, "search");
        CHECK_OK(memo_plan_validate(plan, &error));
    }
    CHECK_IS(n_open, >, 10);
    CHECK_IS(n_above, <, N / 10);
}

#ifdef MEMO_LP_SOLVE
/* The program alone, from the worst plan: every item on top of the earlier ones.  Greedy orders
 * leave it nothing to do in such small problems. */
static void check_program(const memo_plan* plan) {
    own_problem problem;
    memoi_solution best;
    int64_t stacked[8], offsets[8], top = 0, i;
    CHECK_OK(memoi_items_create(plan, 0, &problem, &error));
    for (i = 0; i < problem.n_items; i++)
        if (problem.items[i].fixed >= 0)
            top = memob_max(top, problem.items[i].fixed + problem.items[i].size);
    for (i = 0; i < problem.n_items; i++) {
        stacked[i] = problem.items[i].fixed >= 0 ? problem.items[i].fixed : top;
        if (problem.items[i].fixed < 0) top += problem.items[i].size;
    }
    memoi_solution_begin(&best, &problem, offsets);
    memoi_solution_offer(&problem, stacked, &best);
    const memoi_deadline clock = {.deadline = HUGE_VAL};
    CHECK_OK(memoi_mip_solve(&problem, &clock, &best, &error));
    CHECK_IS(best.peak, ==, best.bound);
    CHECK_IS(best.peak * problem.unit_bytes, ==, brute_force(plan));
}
#endif

TEST(mip_meets_brute_force) {
#ifdef MEMO_LP_SOLVE
    for (int k = 0; k < 2000; k++) {
        features with = {k % 3 == 1, k / 3 % 2, 0};
        own_plan* plan = random_plan(memo_test_int(1, 7), memo_test_int(1, 12), with);
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_MIP, .time_limit_s = 1000};
        solve_valid(plan, &desc, k);
        expect_optimal(plan, brute_force(plan));
        if (k < 200) check_program(plan);
    }
#else
    int64_t i;
    /* greedy needs 5 here, the bound is 4: were it at the bound, no MIP would be asked */
    static const int64_t rows[][3] = {{0, 2, 1}, {0, 1, 2}, {1, 3, 2}, {2, 4, 1}, {3, 4, 3}};
    own_plan* plan = new_plan(5, 0, 1);
    for (i = 0; i < 5; i++) put_buffer(plan, i, rows[i][0], rows[i][1], rows[i][2]);
    memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_MIP, .time_limit_s = 1000};
    i = (int64_t)memo_plan_solve(plan, &desc, &error);
    CHECK(i == MEMO_STATUS_OK || i == MEMO_STATUS_UNSUPPORTED);
#endif
}

TEST(memory_that_runs_out_is_reported) {
    static const memo_plan_engine engines[] = {MEMO_PLAN_ENGINE_GREEDY, MEMO_PLAN_ENGINE_AUTO,
                                               MEMO_PLAN_ENGINE_MIP, MEMO_PLAN_ENGINE_BILEVEL,
                                               MEMO_PLAN_ENGINE_AUTO};
    for (size_t k = 0; k < 5; k++) {
        features with = {0, 1, 0};
        memo_status status = MEMO_STATUS_OK;
        refusal r = {.can_do_without = 1}; /* a sort can do without its memory */
        own_plan* plan = k < 4 ? random_plan(40, 1000, with) : rectangle_and_others(1);
        memo_plan_desc desc = {.engine = engines[k],
                               .memoi_node_limit = 2000,
                               .time_limit_s = engines[k] == MEMO_PLAN_ENGINE_MIP ? 0.05 : 1000};
        while (next_refusal(&r, status)) {
            status = memo_plan_solve(plan, &desc, &error);
            if (!status) status = memo_plan_validate(plan, &error);
            if (k == 2 && status == MEMO_STATUS_UNSUPPORTED) status = MEMO_STATUS_OK;
        }
        CHECK_IS(r.n_failed, >, 8);
    }
}

TEST(odd_problems_are_answered) {
    own_plan* plan = new_plan(0, 0, 0);
    CHECK_OK(memo_plan_solve(plan, NULL, &error));
    CHECK(plan->peak_bytes == 0 && plan->proof == MEMO_PROOF_OPTIMAL);
    memo_plan_destroy(plan);

    CHECK_OK(memo_plan_create(2, 0, 16, &plan, &error));
    for (int i = 0; i < 2; i++) {
        memo_buffer* buffer = put_buffer(plan, i, i, 2, 20);
        buffer->id = 7 + i;
        buffer->is_fixed = 1;
        buffer->offset_bytes = 16 + 16 * i;
    }
    CHECK_ERROR(memo_plan_solve(plan, NULL, &error), INVALID_ARGUMENT, "7");
    CHECK_TEXT(error.message, "8");
    plan->buffers[1].offset_bytes = 48;
    CHECK_OK(memo_plan_solve(plan, NULL, &error));
    CHECK_IS(plan->peak_bytes, ==, 80);
    memo_plan_desc desc = {.capacity_bytes = 79};
    CHECK_IS(memo_plan_solve(plan, &desc, &error), ==, MEMO_STATUS_INFEASIBLE);
    CHECK_OK(memo_plan_validate(plan, &error));
    desc.capacity_bytes = 80;
    CHECK_OK(memo_plan_solve(plan, &desc, &error));
    WITH(desc.time_limit_s, -1,
         CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT,
                     "memo_plan_desc.time_limit_s: out of range (-1)"));
    desc.engine = (memo_plan_engine)9;
    CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT,
                "memo_plan_desc.engine: out of range (9); 0 to 3 are valid");
    memo_plan_destroy(plan);

    /* Sizes that a double cannot hold exactly. */
    CHECK_OK(memo_plan_create(3, 0, 1, &plan, &error));
    for (int i = 0; i < 3; i++) put_buffer(plan, i, 0, 1, i < 2 ? ((int64_t)1 << 60) + 1 + i : 3);
    solve_valid(plan, NULL, 0);
    CHECK_IS(plan->peak_bytes, ==, ((int64_t)1 << 61) + 6);
}
