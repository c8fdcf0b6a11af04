/* test_pack.c - extras/memo_pack.h: engines for puzzles and streams, against brute force. */
#include "scarce.h"
#include "signals.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "extras/memo_pack.h"
#include "owned.h"
#include "slow_plan.h"
#include "plan_problems.h"

/* Cuts a block into n = 4 k + 1 buffers: four around a fifth, each of which is cut again.  No cut
 * goes through the whole block, so no part of the plan can be searched alone. */
static memo_buffer* cut_pinwheel(memo_buffer block, int64_t n, memo_buffer* made) {
    memo_buffer piece[5] = {block, block, block, block, block};
    int64_t n_pieces[5] = {1, 1, 1, 1, 1};
    if (n == 1) {
        *made = block;
        return made + 1;
    }
    int64_t left = block.begin + (block.end - block.begin) * memo_test_int(10, 45) / 100;
    int64_t right = block.end - (block.end - block.begin) * memo_test_int(10, 45) / 100;
    int64_t low = block.size_bytes * memo_test_int(10, 45) / 100;
    int64_t high = block.size_bytes * memo_test_int(10, 45) / 100;
    piece[0].end = piece[4].end = right;
    piece[1].begin = right;
    piece[2].begin = piece[4].begin = left;
    piece[3].end = left;
    piece[0].size_bytes = low;
    piece[1].size_bytes -= high;
    piece[2].size_bytes = high;
    piece[3].size_bytes -= low;
    piece[4].size_bytes -= low + high;
    for (n -= 5; n > 0; n -= 4) n_pieces[memo_test_int(0, 4)] += 4;
    for (int k = 0; k < 5; k++) made = cut_pinwheel(piece[k], n_pieces[k], made);
    return made;
}

/* Tilings that leave no byte free are joined, brick by brick, until few are left: cuts of a rectangle
 * in two, some of whose ends and sizes agree by chance, and pinwheels; buffers in any order. */
TEST(tilings_are_proven) {
    int n_met = 0;
    for (int k = 0; k < 14; k++) {
        int64_t n = k % 2 ? 4097 : 3000;
        own_plan* plan = new_plan(n, 0, 1);
        memo_buffer block = plan->buffers[0];
        block.end = block.size_bytes = (int64_t)1 << 40;
        if (k % 2)
            cut_pinwheel(block, n, plan->buffers);
        else
            cut_rectangle(plan->buffers, n, k % 4 ? 5000 : (int64_t)1 << 40, 3);
        for (int64_t i = 0; i < n; i++) {
            int64_t other = memo_test_int(0, n - 1);
            block = plan->buffers[i];
            plan->buffers[i] = plan->buffers[other];
            plan->buffers[other] = block;
        }
        for (int64_t i = 0; i < n; i++) plan->buffers[i].id = i;
        memo_plan_desc desc = {.memoi_node_limit = 30000, .time_limit_s = 1000};
        solve_valid(plan, &desc, k);
        n_met += plan->proof == MEMO_PROOF_OPTIMAL;
    }
    CHECK_CASE(n_met > 12, "%d of 14 are proven", n_met);
}

/* Steps of alike layers that leave no byte free fill little of the bound, because a buffer of each
 * layer lives from its forward to its backward.  Bricks are tried, as most borders are level. */
TEST(layers_without_a_free_byte_are_proven) {
    int n_met = 0;
    for (int k = 0; k < 6; k++) {
        enum { LAYERS = 60, PIECES = 73, WHOLE = 2 * LAYERS * PIECES };
        const int64_t length = 4 * PIECES;
        own_plan* plan = new_plan(WHOLE + LAYERS, 0, 1);
        memo_buffer cut[2][PIECES];
        for (int phase = 0; phase < 2; phase++) {
            memset(cut[phase], 0, sizeof cut[phase]);
            cut_rectangle(cut[phase], PIECES, 1 << 20, 3);
        }
        for (int64_t i = 0; i < WHOLE; i++) {
            const int64_t step = i / PIECES;
            const memo_buffer* piece = &cut[step >= LAYERS][i % PIECES];
            put_buffer(plan, i, step * length + piece->begin, step * length + piece->end,
                       piece->size_bytes);
        }
        for (int64_t l = 0; l < LAYERS; l++)
            put_buffer(plan, WHOLE + l, l * length, (2 * LAYERS - l) * length, 1 << 19);
        memo_plan_desc desc = {.memoi_node_limit = 8000, .time_limit_s = 1000};
        solve_valid(plan, &desc, k);
        n_met += plan->proof == MEMO_PROOF_OPTIMAL;
    }
    CHECK_CASE(n_met > 2, "%d of 6 are proven", n_met);
}

/* A part that the search does not finish gets the effort that other parts leave. */
TEST(no_effort_is_left_over) {
    int n_open = 0;
    for (int k = 0; k < 12; k++) {
        enum { HARD = 300, EASY = 300 };
        long long nodes = 0;
        own_plan* plan = new_plan(HARD + EASY, 0, 1);
        cut_rectangle(plan->buffers, HARD, 5000, 1);
        for (int64_t i = 0; i < HARD; i++)
            plan->buffers[i].size_bytes -= memo_test_int(0, plan->buffers[i].size_bytes / 8);
        for (int64_t i = HARD; i < HARD + EASY; i++)
            put_buffer(plan, i, 4 * HARD + i, 4 * HARD + i + 1, memo_test_int(1, 1000));
        memo_plan_desc desc = {.memoi_node_limit = 6000,
                               .time_limit_s = 1000,
                               .log.write = keep_nodes,
                               .log.user = &nodes};
        solve_valid(plan, &desc, k);
        n_open += plan->proof != MEMO_PROOF_OPTIMAL;
        CHECK_CASE(plan->proof == MEMO_PROOF_OPTIMAL || nodes >= 6000, "case %d: %lld nodes", k,
                   nodes);
    }
    CHECK_IS(n_open, >, 0);
}

/* Cores answer for the whole: no plan below the least peak, and one from there on. */
TEST(cores_meet_brute_force) {
    int n_found = 0, n_failed = 0;
    for (int k = 0; k < 600; k++) {
        own_problem problem;
        memoi_cores cores;
        memoi_solution best;
        memoi_verdict verdict;
        int64_t n_nodes = 1000000, least, capacity;
        int64_t offsets[8];
        own_plan* plan = random_plan(memo_test_int(2, 7), memo_test_int(1, 30), features_of(k));
        for (int64_t i = 0; i < plan->n_buffers;
             i++) /* empty buffers are no items, but fixed they count */
            if (plan->buffers[i].size_bytes == 0) plan->buffers[i].is_fixed = 0;
        pose(plan, &problem);
        if (problem.n_items > 0) {
            least = brute_force(plan) / problem.unit_bytes;
            capacity = memob_max(least - memo_test_int(0, 2), 0);
            const memoi_deadline clock = {.deadline = HUGE_VAL};
            memoi_solution_begin(&best, &problem, offsets);
            CHECK(memoi_neighbors_list(&problem) == 1);
            CHECK(memoi_cores_create(&cores, &problem, (uint64_t)k, &clock));
            CHECK(memoi_cores_attempt(&cores, capacity, &n_nodes, &verdict, &best));
            IN_CASE("case %d", k);
            CHECK_IS(verdict, ==, (capacity < least ? MEMOI_FAILED : MEMOI_FOUND));
            if (verdict == MEMOI_FOUND) {
                CHECK_IS(best.peak, ==, least);
                memoi_plan_store(plan, &problem, &best, "cores");
                CHECK_OK(memo_plan_validate(plan, &error));
            }
            n_found += verdict == MEMOI_FOUND;
            n_failed += verdict == MEMOI_FAILED;
            memob_arrays_free(&cores.arrays);
        }
    }
    CHECK_CASE(n_found > 100 && n_failed > 100, "%d found, %d failed", n_found, n_failed);
}

/* Each two of n buffers live together for a moment, all others being in a gap.  So they need the
 * sum of their sizes, though at no time more than two are live. */
TEST(buffers_that_meet_in_pairs_are_bounded_together) {
    enum { N = 20 };
    int64_t sum = 0, j, time = 0, n_gaps = 0;
    int k;
    own_plan* plan = new_plan(N, N * N * N, 1);
    for (int64_t i = 0; i < N; i++) {
        put_buffer(plan, i, 0, N * (N - 1) / 2, 64 * memo_test_int(1, 100) + 1);
        sum += plan->buffers[i].size_bytes;
        for (j = 0, time = 0; j < N; j++)
            for (k = 0; k < j; k++, time++) {
                if (i == j || i == k) continue;
                plan->gaps[n_gaps].buffer = i;
                plan->gaps[n_gaps].begin = time;
                plan->gaps[n_gaps++].end = time + 1;
            }
    }
    plan->n_gaps = n_gaps;
    memo_plan_desc desc = {.memoi_node_limit = 1};
    solve_valid(plan, &desc, k);
    expect_optimal(plan, sum);
    CHECK_IS(plan->lower_bound_bytes, <, sum / 4);
}

/* The lowest hole for each item, fixed ones first, one after the other. */
static void slow_fit(const memoi_problem* problem, const memoi_ranked* order, int64_t* offsets) {
    int64_t i;
    for (i = 0; i < problem->n_items; i++) offsets[i] = problem->items[i].fixed;
    for (int64_t k = 0; k < problem->n_items; k++) {
        const memoi_item* item = &problem->items[i = order[k].index];
        int64_t low = 0;
        for (int64_t j = 0; j < problem->n_items && item->fixed < 0; j++) {
            int64_t end = offsets[j] + problem->items[j].size;
            if (j == i || offsets[j] < 0 || end <= low || offsets[j] >= low + item->size ||
                !memoi_problem_items_overlap(problem, i, j))
                continue;
            low = rounded(end, item->alignment);
            j = -1; /* again from the start */
        }
        if (item->fixed < 0) offsets[i] = low;
    }
}

/* First fit by each order against its slow twin; in a capacity it tells which item does not fit.
 * Ejections make the best of these plans no worse, and often better, with lists and without. */
TEST(first_fit_is_first_fit) {
    memoi_effort effort = effort_of(INT64_MAX, 1);
    memob_keyed keys[200], sorted[200];
    int32_t place[202];
    int k, n_better[2] = {0, 0};
    for (k = 0; k < 60; k++) {
        own_problem problem;
        memoi_greedy greedy;
        int64_t before, n, i, missing, rank;
        own_plan* plan = random_plan(memo_test_int(2, 200), memo_test_int(1, 1000), features_of(k));
        pose(plan, &problem);
        n = problem.n_items;
        own_memory int64_t* offsets = (int64_t*)calloc((size_t)n, sizeof(int64_t));
        own_solution best = new_solution(&problem);
        own_memory memoi_range* places = (memoi_range*)calloc((size_t)n, 2 * sizeof *places);
        CHECK(offsets && places && memoi_greedy_create(&greedy, &problem, &effort.clock));
        CHECK_IS(memoi_neighbors_list(&problem), ==, 1);
        for (int order = 0; order < (int)MEMOI_N_ORDERS; order++) {
            memoi_greedy_order_items(&problem, (memoi_item_order)order, NULL, greedy.ranked);
            for (i = 0; i < n; i++) greedy.offsets[i] = problem.items[i].fixed;
            CHECK_IS(memoi_fit_run(&problem, greedy.ranked, INT64_MAX, &effort.clock, places,
                                   greedy.offsets),
                     ==, -1);
            memoi_solution_offer(&problem, greedy.offsets, &best);
            slow_fit(&problem, greedy.ranked, offsets);
            IN_CASE("case %d, order %d", k, order);
            for (i = 0; i < n; i++) CHECK_IS(greedy.offsets[i], ==, offsets[i]);

            /* The first in the order that ends above the bound. */
            for (i = 0; i < n; i++) greedy.offsets[i] = problem.items[i].fixed;
            missing = memoi_fit_run(&problem, greedy.ranked, problem.lower_bound, NULL, places,
                                    greedy.offsets);
            for (rank = 0; rank < n; rank++) {
                i = greedy.ranked[rank].index;
                if (memoi_item_top(&problem.items[i], offsets[i]) > problem.lower_bound) break;
            }
            CHECK_IS(missing, ==, rank < n ? i : -1);
        }
        before = best.peak;
        if (k / 8 % 2) {
            memob_arrays_free(&problem.neighbors->arrays);
            problem.neighbors->list = NULL;
            problem.neighbors->are_too_many = 1;
        }
        memoi_ejections ejections;
        CHECK_IS(memoi_ejections_create(&ejections, &problem, 1), ==, 1);
        memoi_ejections_solve(&ejections, problem.lower_bound, 1000, &effort, &best);
        memob_arrays_free(&ejections.arrays);
        memoi_plan_store(plan, &problem, &best, "search");
        CHECK_OK(memo_plan_validate(plan, &error));
        CHECK_IS(best.peak, <=, before);
        n_better[k / 8 % 2] += best.peak < before;
        for (i = 0; i < n; i++) keys[i].key = memo_test_int(0, (int64_t)1 << 62);
        memob_digits_sort(keys, n, 0, (int64_t)1 << 62, sorted, place);
        for (i = 1; i < n; i++) CHECK_IS(keys[i - 1].key, <=, keys[i].key);
        memob_arrays_free(&greedy.arrays);
    }
    CHECK_CASE(n_better[0] > 0 && n_better[1] > 0 && n_better[0] + n_better[1] > 5,
               "%d and %d of 30 were improved", n_better[0], n_better[1]);
}

/* First fit by orders in which an item that ends above the bound has moved forward, kept while they
 * are no worse: the peak after so many runs. */
static int64_t order_search(const memoi_problem* problem, int n_runs) {
    int64_t n = problem->n_items, best = INT64_MAX, i, peak;
    own_memory memoi_range* places = (memoi_range*)calloc((size_t)n, 2 * sizeof(memoi_range));
    own_memory memoi_ranked* order = (memoi_ranked*)calloc((size_t)n, sizeof(memoi_ranked));
    own_memory memoi_ranked* tried = (memoi_ranked*)calloc((size_t)n, sizeof(memoi_ranked));
    own_memory int64_t* offsets = (int64_t*)calloc((size_t)n, sizeof(int64_t));
    own_memory int64_t* high = (int64_t*)calloc((size_t)n, sizeof(int64_t));
    CHECK(order && tried && offsets && high && places);
    CHECK_IS(memoi_neighbors_list(problem), ==, 1);
    memoi_greedy_order_items(problem, MEMOI_ORDER_SIZE, NULL, order);
    for (; n_runs > 0; n_runs--) {
        int64_t n_high = 0, from, to;
        memcpy(tried, order, (size_t)n * sizeof *order);
        for (int64_t k = 0; k < n && best < INT64_MAX; k++)
            if (offsets[tried[k].index] + problem->items[tried[k].index].size >
                problem->lower_bound)
                high[n_high++] = k;
        if (n_high > 0) {
            from = high[memo_test_int(0, n_high - 1)];
            to = memo_test_int(0, from);
            memoi_ranked moved = tried[from];
            memmove(tried + to + 1, tried + to, (size_t)(from - to) * sizeof moved);
            tried[to] = moved;
        }
        for (i = 0; i < n; i++) offsets[i] = problem->items[i].fixed;
        memoi_fit_run(problem, tried, INT64_MAX, NULL, places, offsets);
        for (peak = 0, i = 0; i < n; i++)
            peak = memob_max(peak, offsets[i] + problem->items[i].size);
        if (peak > best) continue;
        best = peak;
        memcpy(order, tried, (size_t)n * sizeof *order);
    }
    return best;
}

/* With alignments and gaps, which the exact search cannot solve in time. */
TEST(greedy_runs_beat_an_order_search) {
    double sum = 0, sum_orders = 0;
    for (int k = 0; k < 6; k++) {
        features with = {0, 1, 1};
        own_plan* plan = random_plan(150, 1000, with);
        memo_plan_desc desc = {0};
        own_problem problem;
        pose(plan, &problem);
        desc.memoi_node_limit = 200 * 150; /* shared with greedy runs, eight items placed a node */
        desc.time_limit_s = 1000;
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        sum += (double)plan->peak_bytes / (double)(problem.unit_bytes * problem.lower_bound);
        sum_orders += (double)order_search(&problem, 200) / (double)problem.lower_bound;
    }
    CHECK_CASE(sum < sum_orders, "over the bound: %.3f %%, orders %.3f %%", 100 * (sum / 6 - 1),
               100 * (sum_orders / 6 - 1));
}

/* Too large for the search: windows meet the bound up to 0.05 %, are no worse than greedy around
 * fixed, aligned buffers, and do the same with the same nodes. */
TEST(large_plans_are_improved) {
    for (int k = 0; k < 2; k++) {
        features with = {0, 0, k};
        int64_t n = 8500, greedy;
        own_plan* plan = random_plan(n, 1000, with);
        for (int64_t i = 0; i < n; i++) { /* short lives, which nothing separates */
            memo_buffer* buffer = &plan->buffers[i];
            buffer->end = buffer->begin + memo_test_int(1, memo_test_int(1, 200));
        }
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY};
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        for (int64_t i = 0; i < n && k; i += 8) plan->buffers[i].is_fixed = 1;
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        greedy = plan->peak_bytes;
        desc.engine = MEMO_PLAN_ENGINE_AUTO;
        desc.memoi_node_limit = 24 * n;
        desc.time_limit_s = 1000;
        solve_valid(plan, &desc, k);
        CHECK_CASE(k ? plan->peak_bytes <= greedy
                     : 2000 * plan->peak_bytes <= 2001 * plan->lower_bound_bytes,
                   "case %d: %lld, greedy %lld, bound %lld", k, (long long)plan->peak_bytes,
                   (long long)greedy, (long long)plan->lower_bound_bytes);
        solve_again(plan, &desc, k);
    }
}

/* Of a dense plan of many buffers, which windows and full sections do not lower, ejections get more
 * than half of all nodes: the plan is no higher than with ejections alone and half of the nodes.
 * These come to the same offsets in many calls as in one. */
/* The top of a neighbor is free, and weighs nothing; below lies the neighbor itself. */
TEST(an_item_takes_the_free_top_of_a_neighbor) {
    own_plan* plan = new_plan(2, 0, 1);
    own_problem problem;
    memoi_ejections e;
    double least;
    for (int i = 0; i < 2; i++) put_buffer(plan, i, 0, 2, 1);
    pose(plan, &problem);
    CHECK_IS(memoi_ejections_create(&e, &problem, 0), ==, 1);
    e.offsets[0] = 0, e.offsets[1] = -1;
    e.capacity = 2;
    CHECK_IS(memoi_ejections_look(&e, 1), ==, 1);
    CHECK_IS(memoi_ejections_find(&e, 1, 1, &least), ==, 1);
    CHECK(least == 0);
    e.capacity = 1; /* nothing but the neighbor's place */
    CHECK_IS(memoi_ejections_find(&e, 1, 1, &least), ==, 0);
    CHECK(least > 0);
    memob_arrays_free(&e.arrays);
}

TEST(ejections_lower_dense_plans) {
    enum { N = 8500, NODES = 64 * N / MEMOI_PLACED_NODE };
    own_plan* plan = new_plan(N, 0, 1);
    own_problem problem;
    memoi_deadline clock = {.deadline = HUGE_VAL};
    for (int64_t i = 0; i < N; i++)
        put_buffer(plan, i, i, i + 1000 + i * 104729 % 500, 1 + i * 7919 % 2000);
    pose(plan, &problem);
    own_solution once = new_solution(&problem), often = new_solution(&problem);
    for (int k = 0; k < 2; k++) {
        const int run = (int)(k ? MEMOI_ORDER_START : MEMOI_ORDER_LOAD);
        CHECK_OK(memoi_greedy_solve(&problem, run, run + 1, 0, &clock, &once, &error));
        CHECK_OK(memoi_greedy_solve(&problem, run, run + 1, 0, &clock, &often, &error));
    }
    const int64_t greedy = once.peak;
    for (int k = 0; k < 2; k++) {
        memoi_effort effort = effort_of(INT64_MAX, 0);
        memoi_ejections ejections;
        CHECK_IS(memoi_ejections_create(&ejections, &problem, 0), ==, 1);
        if (k == 0)
            memoi_ejections_solve(&ejections, problem.lower_bound, NODES / 2, &effort, &once);
        while (k == 1 && often.peak > once.peak && effort.n_nodes < NODES)
            memoi_ejections_solve(&ejections, problem.lower_bound, 100, &effort, &often);
        memob_arrays_free(&ejections.arrays);
    }
    CHECK_IS(once.peak, <, greedy);
    for (int64_t i = 0; i < N; i++) CHECK_IS(often.offsets[i], ==, once.offsets[i]);

    /* So many nodes do not place the items of a window once, so it waits for more. */
    memoi_effort effort = effort_of(INT64_MAX, 0);
    CHECK(memoi_windows_solve(&problem, 0, problem.lower_bound, 8 * N, &effort, &once));
    CHECK_IS(effort.n_nodes, ==, 0);

    memo_plan_desc desc = {.memoi_node_limit = NODES, .time_limit_s = 1000};
    solve_valid(plan, &desc, 0);
    CHECK_IS(plan->peak_bytes, <=, once.peak);
}

/* A part that is too large for the search is lowered as a whole plan is, beside one that is not. */
TEST(large_parts_are_improved) {
    const features with = {0, 0, 0};
    const int64_t n = 8500;
    own_plan* plan = random_plan(n, 1000, with);
    int64_t greedy;
    for (int64_t i = 0; i < n; i++) { /* many live at a time */
        plan->buffers[i].begin = i + 1 < n ? memo_test_int(0, n) : 1 << 20;
        plan->buffers[i].end = plan->buffers[i].begin + memo_test_int(1, 2000);
    }
    memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY};
    CHECK_OK(memo_plan_solve(plan, &desc, &error));
    greedy = plan->peak_bytes;
    desc.engine = MEMO_PLAN_ENGINE_AUTO;
    desc.memoi_node_limit = 3 * n;
    desc.time_limit_s = 1000;
    solve_valid(plan, &desc, 0);
    CHECK_IS(plan->peak_bytes, <, greedy);
}

/* All windows together look at no more nodes than the limit. */
TEST(windows_keep_the_node_limit) {
    enum { LIMIT = 300 };
    const features with = {0, 0, 0};
    int n_full = 0;
    for (int k = 0; k < 6; k++) {
        own_plan* plan = random_plan(8500, 1000, with);
        long long nodes = 0;
        for (int64_t i = 0; i < plan->n_buffers; i++)
            plan->buffers[i].end = plan->buffers[i].begin + memo_test_int(1, memo_test_int(1, 200));
        memo_plan_desc desc = {.memoi_node_limit = LIMIT,
                               .time_limit_s = 1000,
                               .log.write = keep_nodes,
                               .log.user = &nodes};
        solve_valid(plan, &desc, k);
        CHECK_CASE(nodes <= LIMIT + 1, "case %d: %lld nodes", k, nodes);
        n_full += nodes > LIMIT / 2;
    }
    CHECK_IS(n_full, >, 0);
}

/* Buffers that end in the order in which they begin: a sweep alone leaves few holes. */
TEST(sweeps_keep_queues_dense) {
    for (int k = 0; k < 8; k++) {
        own_problem problem;
        own_plan* plan = new_plan(8000, 0, 1);
        for (int64_t i = 0; i < plan->n_buffers; i++) {
            const int64_t size_bytes = memo_test_int(1, 2000);
            put_buffer(plan, i, i, i + 500 + (k % 2 ? memo_test_int(0, 50) : 0), size_bytes);
        }
        pose(plan, &problem);
        own_solution best = new_solution(&problem);
        const memoi_deadline clock = {.deadline = k / 2 * 1e9};
        CHECK(k < 4 ? !memoi_greedy_solve(&problem, 0, 5, INT64_MAX - 1, &clock, &best, &error)
                    : memoi_sweep_run(&problem, 0.125, best.offsets));
        memoi_plan_store(plan, &problem, &best, "greedy");
        CHECK_OK(memo_plan_validate(plan, &error));
        double above = (double)plan->peak_bytes / (double)plan->lower_bound_bytes - 1;
        CHECK_CASE(above < (k % 2 ? 0.04 : 0.01), "case %d: %.2f %%", k, 100 * above);
    }
}

/* Can a set of items lie on each other from an offset to the capacity?  By all orders. */
static int is_stackable(const memoi_problem* problem, int set, int64_t from, int64_t capacity) {
    for (int64_t i = 0; i < problem->n_items; i++) {
        const memoi_item* item = &problem->items[i];
        int64_t low = memob_align_up(from, item->alignment);
        if (set >> i & 1 && memoi_item_top(item, low) <= capacity &&
            is_stackable(problem, set & ~(1 << i), low + item->size, capacity))
            return 1;
    }
    return set == 0;
}

/* The search knows how high a stack can begin; while it has learned too few sets, it takes a higher
 * bound. */
TEST(alignments_leave_holes_in_a_stack) {
    int n_holes = 0;
    for (int k = 0; k < 300; k++) {
        own_problem problem;
        memoi_search search;
        int64_t n = memo_test_int(2, 5), sum = 0, i, base;
        own_plan* plan = new_plan(n, 0, 1);
        for (i = 0; i < n; i++) {
            memo_buffer* buffer = put_buffer(plan, i, 0, 1, memo_test_int(1, 12));
            buffer->alignment_bytes = (int64_t)1 << memo_test_int(0, 3);
        }
        pose(plan, &problem);
        CHECK(memoi_neighbors_list(&problem) == 1);
        const memoi_deadline clock = {.deadline = HUGE_VAL};
        CHECK(memoi_search_create(&search, &problem, 0, &clock) == 1);
        for (i = 0; i < n; i++) sum += problem.items[i].size;
        search.capacity = memob_max(sum + memo_test_int(-2, 12), 0);
        const uint64_t all = ((uint64_t)1 << n) - 1;
        const int64_t most = search.capacity - sum + memoi_stack_spare(&search, all);
        for (base = search.capacity; base >= 0; base--)
            if (is_stackable(&problem, (1 << n) - 1, base, search.capacity)) break;
        n_holes += base < most;
        search.node_begin = 1 << 20; /* nothing may be learned yet */
        CHECK_IS(memoi_stack_base(&search, all, most), >=, base);
        search.node_begin = 0;
        CHECK_IS(memoi_stack_base(&search, all, most), ==, base);
        memoi_search_free(&search);
    }
    CHECK_CASE(n_holes > 50, "%d with holes", n_holes);
}

/* Holes that alignments leave prune the search: most of these plans are proven within few nodes. */
TEST(plans_with_alignments_are_proven) {
    static const int64_t sizes[] = {7, 11, 13, 17, 23, 31, 37};
    int n_proven = 0;
    for (int k = 0; k < 40; k++) {
        int64_t n = 25;
        own_plan* plan = new_plan(n, 0, 1);
        for (int64_t i = 0; i < n; i++) {
            memo_buffer* buffer = &plan->buffers[i];
            buffer->begin = memo_test_int(0, 25);
            buffer->end = buffer->begin + memo_test_int(3, 15);
            buffer->size_bytes = sizes[memo_test_int(0, 6)];
            buffer->alignment_bytes = memo_test_int(0, 2) ? 1 : (int64_t)8 << memo_test_int(0, 2);
        }
        memo_plan_desc desc = {.memoi_node_limit = 5000, .time_limit_s = 1000};
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        n_proven += plan->proof == MEMO_PROOF_OPTIMAL;
    }
    CHECK_CASE(n_proven >= 26, "%d of 40 are proven", n_proven);
}

/* Whatever the threads' order in time: a search of several gives the same offsets twice. */
TEST(threads_give_the_same_plan_twice) {
    int n_other = 0;
    for (int k = 0; k < 60; k++) {
        int64_t i, n = memo_test_int(20, 90), offsets[90], peak, bound;
        own_plan* plan = random_plan(n, memo_test_int(1, 1000), features_of(k));
        memo_plan_desc desc = {.memoi_node_limit = 10000,
                               .time_limit_s = 1000,
                               .n_threads = (int32_t)memo_test_int(2, 5),
                               .seed = (uint64_t)k};
        CHECK_SIGNALS(0, solve_valid(plan, &desc, k));
        peak = plan->peak_bytes;
        bound = plan->proof == MEMO_PROOF_OPTIMAL ? peak : plan->lower_bound_bytes;
        for (i = 0; i < n; i++) offsets[i] = plan->buffers[i].offset_bytes;
        solve_again(plan, &desc, k);
        desc.n_threads = 1;
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        CHECK_IS(plan->peak_bytes, >=, bound);
        CHECK(plan->proof != MEMO_PROOF_OPTIMAL || plan->peak_bytes <= peak);
        for (i = 0; i < n && plan->buffers[i].offset_bytes == offsets[i];) i++;
        n_other += i < n;
        desc.n_threads = 65;
        CHECK_IS(memo_plan_solve(plan, &desc, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    }
    CHECK_CASE(n_other > 0, "it was always the first one that answered");
    CHECK_IS(signals_n_threads, >, 60);
}
