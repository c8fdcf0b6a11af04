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
#include "tools/trace_layers.h"
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
                                   .memoi_node_limit = 200000,
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

/* Large plans near the bound are proven by orders of greedy, which take no nodes. */
TEST(many_layers_take_no_nodes) {
    memo_trace *few, *trace;
    CHECK_OK(memo_trace_read("tests/data/llama-1b-s8k-recompute.trace", &few, &error));
    for (int64_t n = 96; n <= 384; n += 32) {
        long long nodes = 0;
        memo_plan_desc desc = {.time_limit_s = 2000, .log.write = keep_nodes, .log.user = &nodes};
        CHECK_OK(trace_apply_layers(few, n, &trace, &error));
        own_plan* plan = plan_of_trace(trace, 512);
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        CHECK_CASE(plan->proof == MEMO_PROOF_OPTIMAL && !nodes, "%lld layers: %lld nodes",
                   (long long)n, nodes);
        memo_trace_destroy(trace);
    }
    memo_trace_destroy(few);
}

/* Few nodes end soon, also where one is left for the search of a part: no loop waits for the time. */
TEST(few_nodes_end_before_the_time) {
    double most_s = 0;
    int n_open = 0;
    for (int k = 0; k < memo_test_cases(400, 4000); k++) {
        const int64_t n = memo_test_int(30, 70);
        own_plan* plan = new_plan(2 * n, 0, 1); /* two parts, one after the other */
        cut_rectangle(plan->buffers, n, 1000, 1);
        cut_rectangle(plan->buffers + n, n, 1000, 1);
        for (int64_t i = 0; i < 2 * n; i++) {
            plan->buffers[i].id = i;
            plan->buffers[i].begin += i < n ? 0 : 2000;
            plan->buffers[i].end += i < n ? 0 : 2000;
        }
        memo_plan_desc desc = {.time_limit_s = 1000, .memoi_node_limit = 1 + k % 100};
        const double begin_s = looks_s;
        solve_valid(plan, &desc, k);
        most_s = fmax(most_s, looks_s - begin_s);
        n_open += plan->proof != MEMO_PROOF_OPTIMAL;
    }
    printf("# at most %.0f looks at the clock, %d plans are open\n", most_s * 1e3, n_open);
    CHECK(n_open > 100 && most_s < 10);
}

/* The peak of first fit, the longest lives first, around fixed buffers. */
static int64_t slow_first_fit(const memo_plan* plan) {
    const int64_t n = plan->n_buffers;
    int64_t peak = 0;
    memo_plan copy = *plan;
    char is_placed[64] = {0};
    copy.buffers = malloc((size_t)n * sizeof(memo_buffer));
    if (!copy.buffers) abort();
    memcpy(copy.buffers, plan->buffers, (size_t)n * sizeof(memo_buffer));
    for (int64_t i = 0; i < n; i++) is_placed[i] = (char)plan->buffers[i].is_fixed;
    for (int64_t placed = 0; placed >= 0;) {
        memo_buffer* next;
        int64_t most = -1, moved = 1;
        placed = -1;
        for (int64_t i = 0; i < n; i++) {
            const memo_buffer* b = &plan->buffers[i];
            const int64_t life = b->end - b->begin;
            if (is_placed[i] || life * 100000 + b->size_bytes <= most) continue;
            most = life * 100000 + b->size_bytes;
            placed = i;
        }
        if (placed < 0) break;
        next = &copy.buffers[placed];
        next->offset_bytes = 0;
        while (moved) {
            moved = 0;
            for (int64_t j = 0; j < n; j++) {
                const memo_buffer* b = &copy.buffers[j];
                if (!is_placed[j] || b->begin >= next->end || b->end <= next->begin ||
                    b->offset_bytes >= next->offset_bytes + next->size_bytes ||
                    b->offset_bytes + b->size_bytes <= next->offset_bytes)
                    continue;
                next->offset_bytes = b->offset_bytes + b->size_bytes;
                moved = 1;
            }
        }
        is_placed[placed] = 1;
    }
    for (int64_t i = 0; i < n; i++)
        peak = memob_max(peak, copy.buffers[i].offset_bytes + copy.buffers[i].size_bytes);
    free(copy.buffers);
    return peak;
}

/* Lowest offset lies above all fixed buffers; first fit uses the room below. */
TEST(greedy_takes_first_fit_around_fixed_buffers) {
    for (int k = 0; k < 100; k++) {
        own_plan* plan = random_plan(60, 1000, (features){.has_fixed = 1});
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_GREEDY, .time_limit_s = 1e6};
        const int64_t most = slow_first_fit(plan);
        solve_valid(plan, &desc, k);
        CHECK_CASE(plan->peak_bytes <= most, "case %d: %lld, first fit %lld", k,
                   (long long)plan->peak_bytes, (long long)most);
    }
}

/* Raw sizes with one alignment are plain: no nodes go to ejections and cores, which do not help.
 * These 12 problems take 6,742 nodes, and took 10,486 with both. */
TEST(rounded_sizes_take_the_nodes_of_plain_ones) {
    long long sum = 0;
    for (int k = 0; k < 12; k++) {
        uint64_t random = (uint64_t)k;
        long long nodes = 0;
        memo_plan_desc desc = {.time_limit_s = 1e6,
                               .memoi_node_limit = 40000,
                               .log.write = keep_nodes,
                               .log.user = &nodes};
        own_plan* plan = new_plan(200, 0, 1);
        for (int64_t i = 0; i < 200; i++) {
            memo_buffer* buffer = &plan->buffers[i];
            const double life = memob_random_real(&random);
            buffer->id = i;
            buffer->begin = (int64_t)(250 * memob_random_real(&random));
            buffer->end = buffer->begin + 1 + (int64_t)(100 * life * life);
            buffer->size_bytes = 1 + (int64_t)(20000 * memob_random_real(&random));
            buffer->alignment_bytes = 64;
        }
        solve_valid(plan, &desc, k);
        sum += nodes;
    }
    CHECK_CASE(sum < 8500, "%lld nodes", sum);
}
