/* test_plan.c - the planners of offsets: greedy, search and MIP against brute force. */
#include "scarce.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "owned.h"
#include "slow_plan.h"

/* ---- random problems, and brute force ----------------------------------------------------------
 */

typedef struct features {
    int has_fixed, has_gaps, has_alignment;
} features;

/* Each combination in turn. */
static features features_of(int k) {
    return (features){.has_fixed = k % 2, .has_gaps = k / 2 % 2, .has_alignment = k / 4 % 2};
}

/* n buffers in about 2n times; fixed ones get places that a greedy plan without them would use, or
 * high ones, so that they never overlap each other. */
static memo_plan* random_plan(int64_t n, int64_t largest, features with) {
    static const int64_t alignments[] = {1, 2, 4, 8, 16};
    int64_t i, n_gaps = with.has_gaps ? memo_test_int(0, n) : 0, gap = 0;
    memo_plan* plan = new_plan(n, n_gaps, with.has_alignment ? alignments[memo_test_int(0, 3)] : 1);
    for (i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = 100 + i;
        buffer->size_bytes = memo_test_int(memo_test_int(0, 9) ? 1 : 0, largest);
        buffer->begin = memo_test_int(0, 2 * n - 1);
        buffer->end = buffer->begin + memo_test_int(1, n);
        if (with.has_alignment && memo_test_int(0, 1))
            buffer->alignment_bytes = plan->alignment_bytes * alignments[memo_test_int(0, 2)];
    }
    for (i = 0; i < n && gap < n_gaps; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        if (buffer->end - buffer->begin < 3) continue;
        plan->gaps[gap].buffer = i;
        plan->gaps[gap].begin = memo_test_int(buffer->begin, buffer->end - 2);
        plan->gaps[gap].end = memo_test_int(plan->gaps[gap].begin + 1, buffer->end - 1);
        gap++;
    }
    plan->n_gaps = gap;
    if (with.has_fixed) {
        int64_t raised = memo_test_int(0, 1) * 64 * memo_test_int(0, largest);
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY,
                               .time_limit_s = n < 1000 ? 0 : 1e-9}; /* the first, not the best */
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        for (i = 0; i < n; i++) {
            plan->buffers[i].is_fixed = memo_test_int(0, 3) == 0;
            plan->buffers[i].offset_bytes += raised;
        }
    }
    return plan;
}

static int64_t rounded(int64_t value, int64_t alignment) {
    if (alignment < 2) return value;
    return (value + alignment - 1) / alignment * alignment;
}

/* The plan of this desc, NULL: the default, is valid. */
static void solve_valid(memo_plan* plan, const memo_plan_desc* desc, int k) {
    IN_CASE("case %d", k);
    CHECK_OK(memo_plan_solve(plan, desc, &error));
    CHECK_OK(memo_plan_validate(plan, &error));
}

/* The same desc gives the same offsets again, whatever was there before. */
static void solve_again(memo_plan* plan, const memo_plan_desc* desc, int k) {
    const int64_t peak = plan->peak_bytes, n = plan->n_buffers;
    own_memory int64_t* offsets = (int64_t*)calloc((size_t)n, sizeof *offsets);
    for (int64_t i = 0; i < n; i++) {
        offsets[i] = plan->buffers[i].offset_bytes;
        if (!plan->buffers[i].is_fixed) plan->buffers[i].offset_bytes = -7;
    }
    solve_valid(plan, desc, k);
    CHECK_IS(plan->peak_bytes, ==, peak);
    for (int64_t i = 0; i < n; i++) CHECK_IS(plan->buffers[i].offset_bytes, ==, offsets[i]);
}

static void pose(memo_plan* plan, memoi_problem* problem) {
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK_OK(memoi_problem_create(plan, 0, problem, &error));
}

/* A solution with room for the offsets of the problem's items. */
static memoi_solution new_solution(const memoi_problem* problem) {
    memoi_solution made;
    memoi_solution_begin(&made, (int64_t*)calloc((size_t)problem->n_items, sizeof(int64_t)));
    CHECK(made.offsets != NULL);
    return made;
}
static void drop_solution(memoi_solution* solution) { free(solution->offsets); }
#define own_solution OWNED(drop_solution) memoi_solution

/* The smallest peak: in every order, each buffer is put on top of the earlier ones.  An optimal
 * plan's order by offset gives its peak or less. */
typedef struct brute {
    const memo_plan* plan;
    int64_t meets[16][16]; /* bytes of the second that the first must stand on */
    int64_t offsets[16];
    int is_placed[16];
    int64_t best;
} brute;

static void brute_place(brute* b, int64_t n_placed, int64_t peak) {
    int64_t n = b->plan->n_buffers;
    if (peak >= b->best) return;
    if (n_placed == n) {
        b->best = peak;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const memo_buffer* buffer = &b->plan->buffers[i];
        int64_t size = slow_size(b->plan, i), offset = 0;
        if (b->is_placed[i]) continue;
        for (int64_t j = 0; j < n && size; j++) {
            int64_t top = b->offsets[j] + b->meets[i][j];
            if (b->is_placed[j] && b->meets[i][j] > 0 && top > offset) offset = top;
        }
        while (offset % (buffer->alignment_bytes ? buffer->alignment_bytes : 1) ||
               offset % b->plan->alignment_bytes)
            offset++;
        if (buffer->is_fixed && offset > buffer->offset_bytes && size) continue;
        if (buffer->is_fixed) offset = buffer->offset_bytes;
        b->is_placed[i] = 1;
        b->offsets[i] = offset;
        brute_place(b, n_placed + 1, offset + size > peak ? offset + size : peak);
        b->is_placed[i] = 0;
    }
}

static int64_t brute_force(const memo_plan* plan) {
    brute b = {.plan = plan, .best = INT64_MAX};
    for (int64_t i = 0; i < plan->n_buffers; i++)
        for (int64_t j = 0; j < plan->n_buffers; j++)
            b.meets[i][j] = i == j ? 0 : slow_meet_bytes(plan, i, j);
    brute_place(&b, 0, 0);
    return b.best;
}

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
        CHECK(memoi_greedy_create(&greedy, &problem, HUGE_VAL));
        for (int run = 0; run < (int)MEMOI_N_ORDERS; run++) {
            memoi_greedy_order_items(&problem, (memoi_item_order)run, NULL, greedy.ranked);
            CHECK(memoi_greedy_run(&greedy));
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

/* No time at all: every rule stops, the search asks for no memory but its list of parts, and there
 * is a plan. */
TEST(a_deadline_leaves_a_plan) {
    for (int k = 0; k < 16; k++) {
        memo_log log = {0};
        memoi_effort effort = {.nodes_left = 1000000, .n_threads = 1, .log = &log};
        own_problem problem;
        memoi_greedy greedy;
        own_plan* plan = random_plan(2000, 1000, features_of(k));
        pose(plan, &problem);
        CHECK(memoi_greedy_create(&greedy, &problem, 0));
        memoi_greedy_order_items(&problem, MEMOI_ORDER_SIZE, NULL, greedy.ranked);
        CHECK(!memoi_greedy_run(&greedy));
        CHECK(memoi_greedy_fit(&greedy) && greedy.is_fit);
        CHECK(!memoi_greedy_run(&greedy));
        own_solution best = new_solution(&problem);
        CHECK(memoi_sweep_run(&problem, 0, greedy.offsets));
        memoi_solution_offer(&problem, greedy.offsets, &best);
        const long long before = mallocs_done;
        CHECK_OK(memoi_search_solve(&problem, problem.lower_bound, &effort, &best, &error));
        CHECK_IS(mallocs_done, ==, before + 1);
        memob_arrays_free(&greedy.arrays);
        memo_plan_desc desc = {.engine = k / 8 ? MEMO_PLAN_ENGINE_BILEVEL : MEMO_PLAN_ENGINE_AUTO,
                               .time_limit_s = 1e-9};
        solve_valid(plan, &desc, k);
    }
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
        const double end = k / 2 * 1e9;
        CHECK(k < 4 ? !memoi_greedy_solve(&problem, INT64_MAX - 1, end, end, &best, &error)
                    : memoi_sweep_run(&problem, 0.125, best.offsets));
        memoi_plan_store(plan, &problem, &best, "greedy");
        CHECK_OK(memo_plan_validate(plan, &error));
        double above = (double)plan->peak_bytes / (double)plan->lower_bound_bytes - 1;
        CHECK_CASE(above < (k % 2 ? 0.04 : 0.01), "case %d: %.2f %%", k, 100 * above);
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
        memo_plan_desc desc = {.node_limit = 100000, .time_limit_s = 1000, .n_threads = 1 + k % 3};
        solve_valid(plan, &desc, k);
        n_met += plan->peak_bytes == 1000;
        solve_again(plan, &desc, k);
    }
    CHECK_IS(n_met, ==, 40);
}

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
        memo_plan_desc desc = {.node_limit = 30000, .time_limit_s = 1000};
        solve_valid(plan, &desc, k);
        n_met += plan->proof == MEMO_PROOF_OPTIMAL;
    }
    CHECK_CASE(n_met > 12, "%d of 14 are proven", n_met);
}

/* A fixed buffer above does not raise the bound of a part without it. */
TEST(a_part_has_a_bound_of_its_own) {
    own_problem problem, part;
    own_plan* plan = new_plan(4, 0, 1);
    for (int64_t i = 0; i < 4; i++) put_buffer(plan, i, i > 0, 1 + (i > 0), 10);
    plan->buffers[0].is_fixed = 1;
    plan->buffers[0].offset_bytes = 1000;
    pose(plan, &problem);
    CHECK(memoi_problem_pick(&problem, 1, 4, NULL, NULL, 0, &part));
    CHECK_IS(problem.lower_bound * problem.unit_bytes, ==, 1010);
    CHECK_IS(part.lower_bound * part.unit_bytes, ==, 30);
}

/* A part that the search does not finish gets the effort that other parts leave. */
TEST(no_effort_is_left_over) {
    int n_open = 0;
    for (int k = 0; k < 12; k++) {
        enum { HARD = 300, EASY = 300 };
        own_problem problem;
        own_plan* plan = new_plan(HARD + EASY, 0, 1);
        cut_rectangle(plan->buffers, HARD, 5000, 1);
        for (int64_t i = 0; i < HARD; i++)
            plan->buffers[i].size_bytes -= memo_test_int(0, plan->buffers[i].size_bytes / 8);
        for (int64_t i = HARD; i < HARD + EASY; i++)
            put_buffer(plan, i, 4 * HARD + i, 4 * HARD + i + 1, memo_test_int(1, 1000));
        pose(plan, &problem);
        memo_log log = {0};
        memoi_effort effort = {
            .deadline = memob_now_s() + 1000, .nodes_left = 6000, .n_threads = 1, .log = &log};
        own_solution best = new_solution(&problem);
        CHECK_OK(
            memoi_greedy_solve(&problem, problem.lower_bound, HUGE_VAL, HUGE_VAL, &best, &error));
        CHECK_OK(memoi_search_solve(&problem, problem.lower_bound, &effort, &best, &error));
        n_open += !best.is_optimal;
        CHECK_CASE(best.is_optimal || effort.nodes_left <= 0, "case %d: %lld nodes are left", k,
                   (long long)effort.nodes_left);
    }
    CHECK_IS(n_open, >, 0);
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
        memo_plan_desc desc = {.node_limit = 3000, .time_limit_s = 1000};
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
        memo_plan_desc desc = {.node_limit = 3000, .time_limit_s = 1000, .seed = (uint64_t)k};
        solve_valid(plan, &desc, k);
        solve_again(plan, &desc, k);
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
        memo_plan_desc desc = {
            .node_limit = 3000, .time_limit_s = 1000, .n_threads = (int32_t)memo_test_int(1, 3)};
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        IN_CASE("case %d", k);
        CHECK_IS(plan->proof, ==, MEMO_PROOF_OPTIMAL);
        n_above += plan->peak_bytes > plan->lower_bound_bytes + 2000;
    }
    CHECK_CASE(n_above > 10, "%d above the bound", n_above);
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
            memoi_effort effort = {.seed = (uint64_t)k, .deadline = HUGE_VAL};
            memoi_solution_begin(&best, offsets);
            CHECK(memoi_neighbors_list(&problem) == 1);
            CHECK(memoi_cores_create(&cores, &problem, &effort));
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
        CHECK(memoi_search_create(&search, &problem) == 1);
        for (i = 0; i < n; i++) sum += problem.items[i].size;
        search.capacity = memob_max(sum + memo_test_int(-2, 12), 0);
        const uint64_t all = ((uint64_t)1 << n) - 1;
        const int64_t most = search.capacity - sum + memoi_search_spare(&search, all);
        for (base = search.capacity; base >= 0; base--)
            if (is_stackable(&problem, (1 << n) - 1, base, search.capacity)) break;
        n_holes += base < most;
        search.node_begin = 1 << 20; /* nothing may be learned yet */
        CHECK_IS(memoi_search_base(&search, all, most), >=, base);
        search.node_begin = 0;
        CHECK_IS(memoi_search_base(&search, all, most), ==, base);
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
        memo_plan_desc desc = {.node_limit = 5000, .time_limit_s = 1000};
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        n_proven += plan->proof == MEMO_PROOF_OPTIMAL;
    }
    CHECK_CASE(n_proven >= 26, "%d of 40 are proven", n_proven);
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
    memo_plan_desc desc = {.node_limit = 1};
    solve_valid(plan, &desc, k);
    expect_optimal(plan, sum);
    CHECK_IS(plan->lower_bound_bytes, <, sum / 4);
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
    memo_log log = {NULL, NULL};
    memoi_effort effort = {HUGE_VAL, INT64_MAX, 1, 1, &log};
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
        CHECK(offsets && memoi_greedy_create(&greedy, &problem, HUGE_VAL));
        CHECK(memoi_greedy_fit(&greedy) && greedy.is_fit);
        for (int order = 0; order < (int)MEMOI_N_ORDERS; order++) {
            memoi_greedy_order_items(&problem, (memoi_item_order)order, NULL, greedy.ranked);
            CHECK(memoi_greedy_run(&greedy));
            memoi_solution_offer(&problem, greedy.offsets, &best);
            slow_fit(&problem, greedy.ranked, offsets);
            IN_CASE("case %d, order %d", k, order);
            for (i = 0; i < n; i++) CHECK_IS(greedy.offsets[i], ==, offsets[i]);

            /* The first in the order that ends above the bound. */
            for (i = 0; i < n; i++) greedy.offsets[i] = problem.items[i].fixed;
            missing = memoi_fit_run(&problem, greedy.ranked, problem.lower_bound, HUGE_VAL,
                                    greedy.places, greedy.offsets);
            for (rank = 0; rank < n; rank++) {
                i = greedy.ranked[rank].index;
                if (memoi_item_top(&problem.items[i], offsets[i]) > problem.lower_bound) break;
            }
            CHECK_IS(missing, ==, rank < n ? i : -1);
        }
        before = best.peak;
        if (k / 8 % 2) {
            MEMO_FREE(problem.neighbors->list);
            problem.neighbors->list = NULL;
            problem.neighbors->are_too_many = 1;
        }
        CHECK(memoi_ejections_rounds(&problem, problem.lower_bound, 1000, &effort, NULL, &best));
        memoi_plan_store(plan, &problem, &best, "search");
        CHECK_OK(memo_plan_validate(plan, &error));
        CHECK_IS(best.peak, <=, before);
        n_better[k / 8 % 2] += best.peak < before;
        for (i = 0; i < n; i++) keys[i].key = memo_test_int(0, (int64_t)1 << 62);
        memoi_digits_sort(keys, n, 0, (int64_t)1 << 62, sorted, place);
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
        memoi_fit_run(problem, tried, INT64_MAX, HUGE_VAL, places, offsets);
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
        desc.node_limit = 200 * 150; /* shared with greedy runs, eight items placed a node */
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
        desc.node_limit = 24 * n;
        desc.time_limit_s = 1000;
        solve_valid(plan, &desc, k);
        CHECK_CASE(k ? plan->peak_bytes <= greedy
                     : 2000 * plan->peak_bytes <= 2001 * plan->lower_bound_bytes,
                   "case %d: %lld, greedy %lld, bound %lld", k, (long long)plan->peak_bytes,
                   (long long)greedy, (long long)plan->lower_bound_bytes);
        solve_again(plan, &desc, k);
    }
}

static void keep_nodes(void* user, const char* line) {
    long long peak, bound, nodes;
    if (sscanf(line, "search: peak %lld, bound %lld, %lld nodes", &peak, &bound, &nodes) == 3)
        *(long long*)user = nodes;
}

/* A full rectangle, and many small buffers that live later, beside what is left of it; some are
 * aligned. */
static memo_plan* rectangle_and_others(int k) {
    enum { PIECES = 40, OTHERS = 600 };
    memo_plan* plan = new_plan(PIECES + OTHERS, 0, 1);
    int64_t right = 0;
    cut_rectangle(plan->buffers, PIECES, 1000, 1);
    for (int64_t i = 0; i < PIECES; i++) right = memob_max(right, plan->buffers[i].end);
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        if (i < PIECES) {
            buffer->end += buffer->end == right ? memo_test_int(0, 100) : 0;
            continue;
        }
        buffer->size_bytes = memo_test_int(1, 20);
        buffer->begin = right + memo_test_int(60, 2000);
        buffer->end = buffer->begin + memo_test_int(1, 100);
        buffer->alignment_bytes = k % 2 ? memo_test_int(0, 1) * 16 : 0;
    }
    return plan;
}

/* The rectangle is planned alone, and the others go around it.  An allocator's plan is higher. */
TEST(full_sections_come_first) {
    int n_open = 0;
    for (int k = 0; k < 20; k++) {
        own_plan* plan = rectangle_and_others(k);
        own_problem problem;
        int64_t bound = 0;
        pose(plan, &problem);
        memo_log log = {0};
        memoi_effort effort = {
            .deadline = memob_now_s() + 1000, .nodes_left = 300000, .n_threads = 1, .log = &log};
        own_memory int64_t* offsets = (int64_t*)calloc((size_t)problem.n_items, sizeof(int64_t));
        own_solution best = new_solution(&problem);
        CHECK(offsets && memoi_sweep_run(&problem, k % 2 * 0.125, offsets));
        memoi_solution_offer(&problem, offsets, &best);
        n_open += best.peak > problem.lower_bound;
        CHECK_OK(memoi_full_solve(&problem, 80, 0.3, problem.lower_bound, &effort, &best, &bound,
                                  &error));
        IN_CASE("case %d", k);
        CHECK_IS(best.peak, ==, bound);
        memoi_plan_store(plan, &problem, &best, "search");
        CHECK_OK(memo_plan_validate(plan, &error));
    }
    CHECK_IS(n_open, >, 10);
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
        memo_plan_desc desc = {
            .node_limit = LIMIT, .time_limit_s = 1000, .log.write = keep_nodes, .log.user = &nodes};
        solve_valid(plan, &desc, k);
        CHECK_CASE(nodes <= LIMIT + 1, "case %d: %lld nodes", k, nodes);
        n_full += nodes > LIMIT / 2;
    }
    CHECK_IS(n_full, >, 0);
}

/* Whatever the threads' order in time: a search of several gives the same offsets twice. */
TEST(threads_give_the_same_plan_twice) {
    int n_other = 0;
    for (int k = 0; k < 60; k++) {
        int64_t i, n = memo_test_int(20, 90), offsets[90], peak, bound;
        own_plan* plan = random_plan(n, memo_test_int(1, 1000), features_of(k));
        memo_plan_desc desc = {.node_limit = 10000,
                               .time_limit_s = 1000,
                               .n_threads = (int32_t)memo_test_int(2, 5),
                               .seed = (uint64_t)k};
        solve_valid(plan, &desc, k);
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
}

#ifdef MEMO_LP_SOLVE
/* The program alone, from the worst plan: every item on top of the earlier ones.  Greedy orders
 * leave it nothing to do in such small problems. */
static void check_program(const memo_plan* plan) {
    own_problem problem;
    memoi_solution best;
    int64_t stacked[8], offsets[8], top = 0, i;
    CHECK_OK(memoi_problem_create(plan, 0, &problem, &error));
    for (i = 0; i < problem.n_items; i++)
        if (problem.items[i].fixed >= 0)
            top = memob_max(top, problem.items[i].fixed + problem.items[i].size);
    for (i = 0; i < problem.n_items; i++) {
        stacked[i] = problem.items[i].fixed >= 0 ? problem.items[i].fixed : top;
        if (problem.items[i].fixed < 0) top += problem.items[i].size;
    }
    memoi_solution_begin(&best, offsets);
    memoi_solution_offer(&problem, stacked, &best);
    CHECK_OK(memoi_mip_solve(&problem, HUGE_VAL, &best, &error));
    CHECK(best.is_optimal);
    CHECK_IS(best.peak * problem.unit_bytes, ==, brute_force(plan));
}
#endif

TEST(mip_meets_brute_force) {
#ifdef MEMO_LP_SOLVE
    for (int k = 0; k < 2000; k++) {
        features with = {k % 3 == 1, k / 3 % 2, 0};
        own_plan* plan = random_plan(memo_test_int(1, 7), memo_test_int(1, 12), with);
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_MIP};
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
    memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_MIP};
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
                               .node_limit = 2000,
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
